"""Questions that need many predictions: largest, best, playout, sensitivity, regions, tables, sweeps."""
