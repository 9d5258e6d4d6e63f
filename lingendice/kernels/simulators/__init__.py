"""Simulators on raw arrays."""
