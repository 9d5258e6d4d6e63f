"""The ridge problem on the device: conjugate gradients there, everything else by the host's own system.

The host composes the operator, exchanges the active set between descents and certifies the result; a step of
a descent is one recorded sequence of launches, and scalars are read after a growing number of steps.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.gpu.chain import require_sizes
from lingendice.gpu.device import Device, for_each, launch, n_blocks, repeat, require_bytes
from lingendice.gpu.equation import SCRATCH, Equation, index_type
from lingendice.gpu.power_steps import POLL_SECONDS
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.ridge import RidgeSystem

# Places in the array of scalars, and roles of the kernel that finishes a sum: see cuda/ridge.cu.
GOAL, REMAINING, ALONG, STRIDE, MOMENTUM, MADE, DESCENT = range(7)
ALONG_DIRECTION, CURVATURE, LEFT = np.int32(0), np.int32(1), np.int32(2)
REFINED = 1e-3
"""Part of a residual down to which float32 is trusted."""
ADVICE = '; options={"storage": "float32"} halves vectors and matrix; or use device="cpu"'


def ridge_bytes(n_states: int, n_seen: int, n_entries: int, n_hubs: int, storage: str = "float64") -> int:
    """Device memory of a descent: the matrix both ways, hubs, and vectors over seen cells and states."""
    offset, value = index_type(n_entries).itemsize, np.dtype(storage).itemsize
    matrix = 2 * (4 + value) * n_entries + (offset + 12) * (n_states + n_seen)
    return matrix + 2 * value * n_hubs * (n_states + n_seen) + value * 11 * n_seen + value * 8 * n_states


class DeviceRidge(RidgeSystem):
    """The ridge problem of an operator, its descents made on the device."""

    def __init__(
        self, device: Device, operator: EmpiricalOperator, ridge: float, storage: str = "float64"
    ) -> None:
        super().__init__(operator, ridge)
        self._step = _Step(device, self, np.dtype(storage))
        single = " in float32, refined in float64" if storage == "float32" else ""
        self.where = f", on {device.name}{single}"

    def descent(self, free: NDArray[np.bool_], y: Floats, residual: Floats) -> _DeviceDescent:
        return _DeviceDescent(self._step, free, y, residual)


class _Step:
    """The matrix and vectors of a descent and the launches of one step, over memory that stays where it is.

    ``done`` is raised once a descent is over: passes over the matrix are then nothing, too.
    """

    def __init__(self, device: Device, system: RidgeSystem, storage: np.dtype[Any]) -> None:
        self.device, self.system, self.storage = device, system, storage
        n, n_states, distribution = system.q.size, system.operator.n_states, system.flow.rows.distribution
        require_sizes(n_states, len(distribution))
        needed = ridge_bytes(n_states, n, system.rows.nnz, len(distribution), storage.name)
        require_bytes(device, needed, ADVICE)
        hubs = (system.hub_out.T, distribution)
        self.push, self.pull = Equation.both_ways(device, system.rows, system.gamma, storage, *hubs)
        self.done = self.push.done = self.pull.done
        self.value = self.push.value
        self.group_first = device.upload(np.searchsorted(system.group, np.arange(n_states + 1)), np.int32)
        self.spread, self.q, self.diagonal = (
            device.upload(part, storage) for part in (system.spread, system.q, system.diagonal)
        )
        self.y, self.residual, self.direction, self.image, self.misfit, self.pulled = (
            device.empty(n, storage) for _ in range(6)
        )
        self.pushed, self.gathered = (device.empty(n_states, storage) for _ in range(2))
        self.free, self.scalars = device.empty(n, np.uint8), device.zeros(DESCENT, np.float64)
        self.n_parts = n_blocks(device, n, device.block)
        self.partials = device.empty(self.n_parts, np.float64)
        self._repeat: Any = None

    def begin(self, free: NDArray[np.bool_], residual: Floats) -> float:
        """Set out from 0, toward what takes the residual away; returns its square."""
        system, up = self.system, self.device.upload
        direction = np.where(free, residual / system.diagonal, 0.0)
        squared = float(direction @ residual)
        self.y[:], self.free[:] = 0.0, up(free, np.uint8)
        self.residual[:], self.direction[:] = up(residual, self.storage), up(direction, self.storage)
        scalars = np.zeros(DESCENT)
        scalars[REMAINING], scalars[ALONG] = squared, float(system.q @ direction)
        self.scalars[:] = self.device.upload(scalars)
        return squared

    def advance(self, goal: float, n_steps: int) -> Any:
        """At most this many steps; returns the scalars."""
        self.scalars[GOAL : GOAL + 1] = goal
        self.done[:] = 0
        self._repeat = repeat(self.device, self, self._repeat, n_steps)
        return self.device.download(self.scalars)

    def __call__(self) -> None:
        device, system = self.device, self.system
        n, scalars = system.q.size, (self.scalars, self.done)
        self.push.product(self.direction, self.pushed)
        n_states = system.operator.n_states
        around = (self.group_first, self.spread, self.pushed, self.direction, self.done)
        arguments = (np.int32(n_states), *around, self.misfit, self.gathered)
        for_each(device, "turn_around", (self.value,), n_states, arguments)
        self.pull.product(self.gathered, self.pulled)
        self._sum(
            "normal_image", CURVATURE,
            (np.int32(n), self.direction, self.misfit, self.pulled, self.q, np.float64(system.penalty),
             np.float64(system.ridge), *scalars, self.image),
        )  # fmt: skip
        self._sum(
            "step_along", LEFT,
            (np.int32(n), self.direction, self.image, self.diagonal, self.free, *scalars, self.y,
             self.residual),
        )  # fmt: skip
        self._sum(
            "turn_direction", ALONG_DIRECTION,
            (np.int32(n), self.residual, self.diagonal, self.free, self.q, *scalars, self.direction),
        )  # fmt: skip

    def _sum(self, kernel: str, role: Any, arguments: tuple[Any, ...]) -> None:
        """Launch a kernel whose blocks leave partial sums, and the one that adds them up and decides."""
        device, scalars = self.device, (self.scalars, self.done)
        launch(device, kernel, (self.value,), self.n_parts, (*arguments, self.partials), shared_bytes=SCRATCH)
        finish = (np.int32(self.n_parts), self.partials, role, *scalars)
        launch(device, "finish_descent", (), 1, finish, shared_bytes=SCRATCH)


class _DeviceDescent:
    """Conjugate gradients from y on the device; a correction to y is what lies there.

    Stored in float32 the residual that the steps carry on drifts from the true one. It is trusted down to
    REFINED of itself: then the correction is added here, what is left measured in double, and the way begun
    again.
    """

    def __init__(self, step: _Step, free: NDArray[np.bool_], y: Floats, residual: Floats) -> None:
        self.step, self.free, self.y, self.residual = step, free, y, residual
        self.single = step.storage == np.float32
        self.budget, self.start = 8, math.inf
        self._begin()

    def _begin(self) -> None:
        before = self.start
        self.start = self.squared = self.step.begin(self.free, self.residual)
        self.made, self.stuck = 0, self.single and not self.squared < 0.25 * before

    def advance(self, goal: float, at_most: int | None = None) -> tuple[float, int]:
        if not self.squared > goal or self.stuck:
            return self.squared, 0
        began = time.perf_counter()
        n_steps = self.budget if at_most is None else min(at_most, self.budget)
        near = max(goal, REFINED**2 * self.start) if self.single else goal
        scalars = self.step.advance(near, n_steps)
        spent = time.perf_counter() - began
        self.budget = max(1, min(2 * self.budget, int(n_steps * POLL_SECONDS / max(spent, 1e-6))))
        before, self.made = self.made, int(scalars[MADE])
        done, self.squared = self.made - before, float(scalars[REMAINING])
        if self.single and not self.squared > near:
            self.y, self.residual = self.point()
            self._begin()
        return self.squared, done

    def point(self) -> tuple[Floats, Floats]:
        download = self.step.device.download
        correction = download(self.step.y).astype(np.float64)
        if not self.single:
            return self.y + correction, download(self.step.residual)
        return self.y + correction, self.residual - self.step.system.normal(correction)
