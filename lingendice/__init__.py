"""Stationary distributions and stationary ratios from logged transitions."""
