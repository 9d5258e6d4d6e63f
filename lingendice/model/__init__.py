"""The empirical operator and the saddle-point problem, composed from data and choices."""
