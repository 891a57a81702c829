"""Numba kernels: how they are declared, compiled, stored with a wheel and loaded."""
