"""Data in and results out. Reading makes plain arrays; nothing here solves anything."""
