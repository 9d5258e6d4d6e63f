"""Mass and ratio over cells on the device, and the sums that the numbers of a solution are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingendice.gpu.catalog import c_type
from lingendice.gpu.chain import DeviceProblem
from lingendice.gpu.device import launch, n_blocks
from lingendice.gpu.equation import SCRATCH

EARNED, KNOWN, LEAKED, ENDED, SQUARED, COVERED, REPORTED = range(7)


def report(parts: DeviceProblem, distribution: Any) -> tuple[Any, Any, Any]:
    """Mass and ratio over cells on the device, and the sums of a report on the host."""
    counts, device = parts.counts, parts.counts.device
    n_cells = counts.n_cells
    mass, ratio = device.empty(n_cells, np.float64), device.empty(n_cells, np.float64)
    reward = parts.reward if parts.reward is not None else device.zeros(n_cells, np.float64)
    n_parts = n_blocks(device, n_cells, device.block)
    partials = device.empty(REPORTED * n_parts, np.float64)
    launch(
        device, "report_cells", (c_type(distribution.dtype),), n_parts,
        (np.int32(n_cells), np.int32(counts.n_actions or 1), distribution, parts.policy, parts.p, reward,
        parts.ended,
         mass, ratio, partials, np.int32(n_parts)),
        shared_bytes=REPORTED * SCRATCH,
    )  # fmt: skip
    return mass, ratio, device.download(partials).reshape(REPORTED, n_parts).sum(axis=1)
