"""Kernels of the neural networks."""
