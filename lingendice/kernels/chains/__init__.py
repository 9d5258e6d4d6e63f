"""Kernels on Markov chains: elimination, sweeps, coarsening."""
