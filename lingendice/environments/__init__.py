"""Environments whose exact answers are known, for tests, benchmarks and demonstrations."""
