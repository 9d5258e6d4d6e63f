"""Kernels that count transitions."""
