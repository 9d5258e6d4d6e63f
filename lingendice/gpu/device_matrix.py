"""Square matrices that lie on the device, dense or cupyx sparse, as counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingendice.gpu.catalog import WEIGHTS
from lingendice.gpu.device import Device
from lingendice.gpu.device_counts import DeviceCounts
from lingendice.gpu.pull import row_totals


def read_matrix(device: Device, data: Any) -> DeviceCounts:
    """A square matrix on the device, dense or cupyx sparse, as counts; rows are sources."""
    if hasattr(data, "tocsr"):
        flags = np.dtype(getattr(data, "dtype", np.float64)).kind == "b"
        compressed = (data.astype(np.float64) if flags else data).tocsr()  # for True + True is True there
        if not getattr(compressed, "has_canonical_format", True):
            compressed = compressed.copy()
            compressed.sum_duplicates()
        _require_square(compressed.shape)
        indptr, indices = compressed.indptr, compressed.indices.astype(np.int32, copy=False)
        count = compressed.data.astype(np.int64) if flags else _weights(compressed.data)
        _require_rows(device, indptr, indices, compressed.shape[0], int(count.size))
    else:
        indptr, indices, count = _compress(device, device.adopt(data))
    n = indptr.size - 1
    if count.size == 0:
        raise ValueError("there are no transitions to learn from: the counts are empty; add data first")
    totals, _ = row_totals(device, indptr, count)
    stochastic = np.dtype(count.dtype).kind == "f" and bool(
        device.download(((abs(totals - 1.0) <= 1e-8) | (totals == 0.0)).min())
    )
    return DeviceCounts(device, n, None, indptr, indices, count, has_sample_size=not stochastic)


def _weights(values: Any) -> Any:
    if np.dtype(values.dtype).name in WEIGHTS:
        return values
    return values.astype(np.int64 if np.dtype(values.dtype).kind in "biu" else np.float64)


def _require_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"counts must be a square matrix (states by next states), got shape {tuple(shape)}")


def _require_rows(device: Device, indptr: Any, indices: Any, n: int, n_entries: int) -> None:
    """Refuse compressed rows that point outside, which kernels would follow."""
    sound = (indptr.size, indices.size) == (n + 1, n_entries)
    if sound and n_entries:
        ends = device.download(indptr[n]) == n_entries and device.download(indptr[0]) == 0
        rises = bool(device.download((indptr[1:] >= indptr[:-1]).min()))
        inside = bool(device.download(((indices >= 0) & (indices < n)).min()))
        sound = bool(ends) and rises and inside
    if not sound:
        raise ValueError(
            f"the compressed rows of counts point outside {n} x {n}; build the matrix anew from its entries"
        )


def _compress(device: Device, dense: Any) -> tuple[Any, Any, Any]:
    """Compressed rows of a dense matrix: entries that are not zero, in the order of rows."""
    _require_square(dense.shape)
    n = dense.shape[0]
    flat = _weights(dense.reshape(n * n))
    filled = (flat != 0).astype(np.int64)
    number = device.running_total(filled)
    size = int(device.download(number[n * n - 1]))
    order = device.sort_order(1 - filled)[:size]
    ends = device.zeros(n + 1, np.int64)
    ends[1:] = number.reshape((n, n))[:, n - 1]
    indices = (order % np.int64(n)).astype(np.int32)
    return ends, indices, flat[order]
