"""What the numbers of the nodes say about the edges, from an evenly spread sample of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

CACHE_WINDOW = 32_768  # nodes whose values fit into a near cache together
FEW_NEAR = 0.25  # share of edges between near numbers below which the numbering has no locality
EVEN = 0.65  # share of edges in one direction above which the numbering follows the flow


def _steps(indptr: IntArray, indices: NDArray[np.signedinteger], sample: int) -> IntArray:
    """From source to target, in numbers, of the sampled edges."""
    places = np.linspace(0, indices.size - 1, sample).astype(np.int64)
    return np.asarray(indices[places] - (np.searchsorted(indptr, places, side="right") - 1), dtype=np.int64)


def lacks_locality(indptr: IntArray, indices: NDArray[np.signedinteger], window: int = CACHE_WINDOW) -> bool:
    """Whether most edges join nodes whose numbers are too far apart for a near cache."""
    if indptr.size - 1 <= 2 * window or not indices.size:
        return False
    return bool((np.abs(_steps(indptr, indices, 65_536)) > window).mean() > 0.5)


def is_arbitrary(indptr: IntArray, indices: NDArray[np.signedinteger]) -> bool:
    """Whether sweeps lose nothing by another order: edges lead far, and neither up nor down.

    Along a numbering that follows the flow of the chain one sweep does the work of many.
    """
    size = indptr.size - 1
    steps = _steps(indptr, indices, 2_048) if indices.size else np.zeros(0, dtype=np.int64)
    steps = steps[steps != 0]
    if not steps.size:
        return False
    near = float((np.abs(steps) < size / 32).mean())
    upwards = float((steps > 0).mean())
    return near < FEW_NEAR and 1.0 - EVEN < upwards < EVEN
