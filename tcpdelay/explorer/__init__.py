"""What the explorer's page is made of: predictions on a grid, and how well they hold in between."""

from tcpdelay.explorer.accuracy import Accuracy, measure_accuracy
from tcpdelay.explorer.grid import COARSE, FINE, Grid
from tcpdelay.explorer.interpolation import interpolated
from tcpdelay.explorer.surfaces import Surfaces, compute_surfaces

__all__ = ["COARSE", "FINE", "Accuracy", "Grid", "Surfaces", "compute_surfaces", "interpolated", "measure_accuracy"]
