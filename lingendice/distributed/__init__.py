"""Counting and solving on Dask (``pip install 'lingendice[dask]'``)."""

from lingendice.distributed.counting import count
from lingendice.distributed.counts import DistributedCounts, solve

__all__ = ["DistributedCounts", "count", "solve"]
