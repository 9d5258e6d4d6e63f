"""Kernels of the saddle-point solvers."""
