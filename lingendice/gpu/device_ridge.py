"""The ridge problem on the device: conjugate gradients there, everything else by the host's own system.

The host composes the operator, exchanges the active set between descents and certifies the result; of a step
three numbers come down.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.gpu.chain import require_sizes
from lingendice.gpu.device import Device, require_bytes
from lingendice.gpu.equation import Equation, index_type, row_totals
from lingendice.gpu.power_steps import POLL_SECONDS
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.ridge import RidgeSystem

REFINED = 1e-3
"""Part of a residual down to which float32 is trusted."""
ADVICE = '; options={"storage": "float32"} halves vectors and matrix; or use device="cpu"'


def ridge_bytes(n_states: int, n_seen: int, n_entries: int, n_hubs: int, storage: str = "float64") -> int:
    """Device memory of a descent: the matrix both ways, hubs, and vectors over seen cells and states."""
    offset, value = index_type(n_entries).itemsize, np.dtype(storage).itemsize
    matrix = 2 * (4 + value) * n_entries + (offset + 12) * (n_states + n_seen)
    vectors = (4 + 17 * value) * n_seen + (12 + 6 * value) * n_states
    return matrix + 2 * value * n_hubs * (n_states + n_seen) + vectors


class DeviceRidge(RidgeSystem):
    """The ridge problem of an operator, its descents made on the device."""

    def __init__(
        self, device: Device, operator: EmpiricalOperator, ridge: float, storage: str = "float64"
    ) -> None:
        super().__init__(operator, ridge)
        single = " in float32, refined in float64" if storage == "float32" else ""
        self.where = f", on {device.name}{single}"
        self.device, self.storage = device, np.dtype(storage)
        n_states, distribution = operator.n_states, self.flow.rows.distribution
        require_sizes(n_states, len(distribution))
        needed = ridge_bytes(n_states, self.q.size, self.rows.nnz, len(distribution), storage)
        require_bytes(device, needed, ADVICE)
        hubs = (self.hub_out.T, distribution)
        self._push, self._pull = Equation.both_ways(device, self.rows, self.gamma, self.storage, *hubs)
        self._group = device.upload(self.group, np.int32)
        self._group_first = device.upload(np.searchsorted(self.group, np.arange(n_states + 1)), np.int32)
        parts = (self.spread, self.mass_weight)
        self._spread, self._mass_weight = (device.upload(part, self.storage) for part in parts)

    def descent(self, free: NDArray[np.bool_], y: Floats, residual: Floats) -> _DeviceDescent:
        return _DeviceDescent(self, free, y, residual)

    def normal_there(self, y: Any) -> Any:
        """H y on the device: a pass over the matrix in each direction."""
        device = self.device
        arriving, back = (device.empty(size, self.storage) for size in (self.operator.n_states, y.size))
        self._push.product(y, arriving)
        misfit = y - self._spread * arriving[self._group]
        gathered = row_totals(device, self._group_first, self._spread * misfit)
        self._pull.product(gathered.astype(self.storage, copy=False), back)
        return misfit - back + dot(self._mass_weight, y) * self._mass_weight + self.ridge * y


def dot(one: Any, other: Any) -> float:
    """Inner product of device arrays, summed in double precision."""
    return float((one * other).sum(dtype=np.float64))


class _DeviceDescent:
    """Conjugate gradients from y on the device; a correction to y is what lies there.

    Stored in float32 the residual that the steps carry on drifts from the true one. It is trusted down to
    REFINED of itself: then the correction is added here, what is left measured in double, and the way begun
    again.
    """

    def __init__(self, system: DeviceRidge, free: NDArray[np.bool_], y: Floats, residual: Floats) -> None:
        self.system, self.y, self.residual = system, y, residual
        self.single, self.start = system.storage == np.float32, math.inf
        self.up = partial(system.device.upload, dtype=system.storage)
        self.preconditioner = self.up(np.where(free, 1.0 / system.diagonal, 0.0))
        self._begin()

    def _begin(self) -> None:
        before = self.start
        self.left, self.moved = self.up(self.residual), self.up(np.zeros(self.y.size))
        self.direction = self.left * self.preconditioner
        self.start = self.squared = dot(self.left, self.direction)
        self.stuck = self.single and not self.squared < 0.25 * before

    def advance(self, goal: float, at_most: int | None = None) -> tuple[float, int]:
        began, made = time.perf_counter(), 0
        near = max(goal, REFINED**2 * self.start) if self.single else goal
        while self.squared > near and not self.stuck and (at_most is None or made < at_most):
            image = self.system.normal_there(self.direction)
            curvature = dot(self.direction, image)
            if not curvature > 0.0:
                self.squared = math.nan
                break
            length = self.squared / curvature
            self.moved = self.moved + length * self.direction
            self.left = self.left - length * image
            downhill = self.left * self.preconditioner
            before, self.squared = self.squared, dot(self.left, downhill)
            self.direction = downhill + (self.squared / before) * self.direction
            made += 1
            if time.perf_counter() - began > POLL_SECONDS:
                break
        if self.single and made and not self.squared > near:
            self.y, self.residual = self.point()
            self._begin()
        return self.squared, made

    def point(self) -> tuple[Floats, Floats]:
        download = self.system.device.download
        correction = download(self.moved).astype(np.float64)
        if not self.single:
            return self.y + correction, download(self.left)
        return self.y + correction, self.residual - self.system.normal(correction)
