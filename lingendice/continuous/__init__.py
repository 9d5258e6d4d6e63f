"""Estimators for continuous states."""
