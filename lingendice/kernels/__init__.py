"""Numba functions on raw arrays. They know nothing of the rooms above them."""
