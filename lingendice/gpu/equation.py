"""x -> start + gamma T' x on the device: one pass over the matrix, its residual made on the way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lingendice.gpu.catalog import c_type
from lingendice.gpu.device import Device, launch, n_blocks
from lingendice.gpu.pull import Chunk, PullMatrix

MOST_HUBS = 4
SLOTS = 3 + MOST_HUBS
# Places in the array of scalars: see cuda/prelude.cu.
CHANGE, RELATIVE, MASS, HUBS = 0, 1, 2, 3
PREVIOUS, SLOWEST, RESIDUAL, LARGEST, ERROR, STEPS, CHECKS, SCALARS = range(SLOTS, SLOTS + 8)
WEIGHED, STEPPED, CHECKED, RESCALED = np.int32(0), np.int32(1), np.int32(2), np.int32(3)
HISTORY = 512
SCRATCH = 32 * 8
"""Bytes of shared memory for the sum of one number over a block."""


@dataclass(eq=False)
class Equation:
    """``T' = matrix + sum_k distribution_k share_k'``; ``shares`` is (K, n_in), ``distributions`` (K, n_out),
    flattened."""

    device: Device
    matrix: PullMatrix
    shares: Any
    distributions: Any
    n_hubs: int
    start: Any
    gamma: float
    n_in: int
    tol: float = 0.0

    def __post_init__(self) -> None:
        device = self.device
        self.scalars = device.zeros(SCALARS, np.float64)
        self.done = device.zeros(1, np.int32)
        self.history = device.zeros(HISTORY, np.float64)
        self.n_parts = self.matrix.n_parts()
        self.weigh_parts = n_blocks(device, self.n_in, device.block)
        self.partials = device.empty(SLOTS * max(self.n_parts, self.weigh_parts), np.float64)

    @property
    def value_type(self) -> np.dtype[Any]:
        """How distributions are stored."""
        return self.matrix.value_type

    @property
    def value(self) -> str:
        """The same in C++."""
        return c_type(self.value_type)

    @cached_property
    def rounding(self) -> float:
        """Unit in the last place of a stored total of one."""
        return float(np.finfo(self.value_type).eps)

    def reset(self) -> None:
        """Forget earlier steps."""
        self.scalars[:] = 0.0
        self.done[:] = 0
        self.history[:] = 0.0

    def finish(self, n_parts: int, role: Any) -> None:
        """Add up what the blocks of a pass left, and decide whether to stop, on the device."""
        launch(
            self.device, "finish_pass", (), 1,
            (np.int32(n_parts), self.partials, role, np.float64(self.gamma), np.float64(self.tol),
             np.float64(self.rounding), np.int32(HISTORY), self.scalars, self.done, self.history),
            shared_bytes=SLOTS * SCRATCH,
        )  # fmt: skip

    def weigh(self, x: Any) -> None:
        """Mass and hub masses of a distribution that no step has just made."""
        arguments = (np.int32(self.n_in), x, self.shares, np.int32(self.n_hubs), self.done, self.partials)
        launch(
            self.device, "weigh_distribution", (self.value,), self.weigh_parts,
            (*arguments, np.int32(self.weigh_parts)), shared_bytes=SLOTS * SCRATCH,
        )  # fmt: skip
        self.finish(self.weigh_parts, WEIGHED)

    def step(self, x: Any, out: Any, damping: float, role: Any) -> None:
        """out = x + damping (start + gamma T' x - x); x must have been weighed or stepped to."""
        self._pull(x, out, damping)
        self.finish(self.n_parts, role)

    def product(self, x: Any, out: Any, damping: float = 0.0) -> None:
        """out = start + gamma T' x, x being new; undamped, the matrix need not be square."""
        if self.n_hubs:
            self.weigh(x)
        self._pull(x, out, damping)

    def _pull(self, x: Any, out: Any, damping: float) -> None:
        value, offset = self.matrix.templates
        number = np.int64 if offset == "long long" else np.int32
        parts = np.int32(self.n_parts)
        first_part = 0
        around = (
            x, self.start, self.distributions, self.shares, np.int32(self.n_hubs),
            np.int32(self.matrix.n_rows),
            np.float64(self.gamma), np.float64(damping), self.scalars, self.done, out, self.partials,
        )  # fmt: skip
        for chunk, sources, rates in self.matrix.entries():
            blocks = self.matrix.grid(chunk)
            for (lanes, rows), grid in zip(chunk.lists, blocks, strict=False):
                launch(
                    self.device, "pull_rows", (value, offset, str(lanes)), grid,
                    (np.int32(rows.size), rows, self.matrix.indptr, number(chunk.first_entry), sources, rates,
                     *around, np.int32(first_part), parts),
                    shared_bytes=SLOTS * SCRATCH,
                )  # fmt: skip
                first_part += grid
            if chunk.long is not None:
                self._pull_long(chunk, sources, rates, x, around, blocks[-1], first_part)
                first_part += blocks[-1]

    def _pull_long(
        self,
        chunk: Chunk,
        sources: Any,
        rates: Any,
        x: Any,
        around: tuple[Any, ...],
        grid: int,
        first_part: int,
    ) -> None:
        long = chunk.long
        assert long is not None
        sums = self._segment_sums(long.n_segments)
        launch(
            self.device, "pull_segments", self.matrix.templates,
            min(long.n_segments, self.device.most_blocks),
            (np.int32(long.n_segments), long.segment_first, long.segment_last, sources, rates, x, self.done,
             sums),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        launch(
            self.device, "settle_long_rows", (self.value,), grid,
            (np.int32(long.rows.size), long.rows, long.first_segment, sums, *around, np.int32(first_part),
             np.int32(self.n_parts)),
            shared_bytes=SLOTS * SCRATCH,
        )  # fmt: skip

    def _segment_sums(self, size: int) -> Any:
        # Kept between passes: a recorded pass must find its memory where it was.
        held = self.__dict__.setdefault("_sums", {})
        if size not in held:
            held[size] = self.device.empty(size, np.float64)
        return held[size]
