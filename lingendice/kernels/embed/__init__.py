"""Kernels called from other programs' compiled code."""
