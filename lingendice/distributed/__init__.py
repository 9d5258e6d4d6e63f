"""Counting and solving on Dask (``pip install 'lingendice[dask]'``)."""

from lingendice.distributed.rounds import count, solve

__all__ = ["count", "solve"]
