"""Counts and transitions: arrays and matrices read into the records that every estimator starts from."""
