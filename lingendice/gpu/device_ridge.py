"""The ridge problem on the device: conjugate gradients there, everything else by the host's own system.

The host composes the operator, exchanges the active set between descents and certifies the result; a step of
a descent is one recorded sequence of launches, and scalars are read after a growing number of steps.
"""

from __future__ import annotations

import math
import time
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.gpu.chain import require_sizes
from lingendice.gpu.device import Device, for_each, launch, n_blocks, require_bytes
from lingendice.gpu.equation import SCRATCH, Equation
from lingendice.gpu.power_steps import POLL_SECONDS
from lingendice.gpu.pull import resident_matrix
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.ridge import RidgeSystem

# Places in the array of scalars, and roles of the kernel that finishes a sum: see cuda/ridge.cu.
GOAL, REMAINING, ALONG, STRIDE, MOMENTUM, MADE, DESCENT = range(7)
ALONG_DIRECTION, CURVATURE, LEFT = np.int32(0), np.int32(1), np.int32(2)
REFINED = 1e-3
"""Part of a residual down to which float32 is trusted."""
ADVICE = '; options={"storage": "float32"} halves vectors and matrix; or use device="cpu"'


class RidgeOnDevice:
    """Builds the systems of one call of ``solve``; those of one operator share what lies on the device."""

    def __init__(self, device: Device, storage: str = "float64") -> None:
        self.device, self.storage = device, np.dtype(storage)
        self._of: EmpiricalOperator | None = None
        self._parts: _Parts | None = None

    def __call__(self, operator: EmpiricalOperator, ridge: float, penalty: float) -> RidgeSystem:
        """The ridge problem of an operator, its descents made on the device."""
        system = _DeviceSystem(operator, ridge, penalty)
        if self._parts is None or self._of is not operator:
            self._parts = None  # gone before the next is made
            self._of, self._parts = operator, _Parts.of(self.device, system, self.storage)
        system.device, system.parts = self.device, self._parts
        return system


def ridge_bytes(n_states: int, n_seen: int, n_entries: int, n_hubs: int, storage: str = "float64") -> int:
    """Device memory of a descent: the matrix both ways, hubs, and vectors over seen cells and states."""
    offset, value = 8 if n_entries >= 2**31 else 4, np.dtype(storage).itemsize
    matrix = 2 * (4 + value) * n_entries + (offset + 12) * (n_states + n_seen)
    return matrix + 2 * value * n_hubs * (n_states + n_seen) + value * 11 * n_seen + value * 8 * n_states


class _Parts(NamedTuple):
    """What all descents over one operator share, on the device."""

    push: Equation
    pull: Equation
    group_first: Any
    spread: Any
    q: Any
    done: Any
    """Raised once a descent is over: passes over the matrix are then nothing, too."""

    @classmethod
    def of(cls, device: Device, system: RidgeSystem, storage: np.dtype[Any]) -> _Parts:
        by_cell, group, gamma = system.rows, system.group, system.gamma
        n_seen, n_states = system.q.size, system.operator.n_states
        distribution = system.flow.rows.distribution
        require_sizes(n_states, distribution.shape[0])
        require_bytes(
            device, ridge_bytes(n_states, n_seen, by_cell.nnz, distribution.shape[0], storage.name), ADVICE
        )
        done = device.zeros(1, np.int32)

        def up(array: NDArray[Any]) -> Any:
            return device.upload(
                array.astype(storage if array.dtype.kind == "f" else array.dtype, copy=False)
            )

        def equation(matrix: Any, shares: Floats, distributions: Floats) -> Equation:
            offset = np.int64 if matrix.nnz >= 2**31 else np.int32
            held = resident_matrix(
                device, up(matrix.indptr.astype(offset)), up(matrix.indices.astype(np.int32)), up(matrix.data)
            )
            flat = [
                up(np.ascontiguousarray(part).ravel() if distribution.size else np.zeros(1))
                for part in (shares, distributions)
            ]
            zero = device.zeros(matrix.shape[0], storage)
            made = Equation(
                device, held, flat[0], flat[1], distribution.shape[0], zero, gamma, matrix.shape[1]
            )
            made.done = done
            return made

        group_first = np.searchsorted(group, np.arange(n_states + 1)).astype(np.int32)
        return cls(
            equation(by_cell.T.tocsr(), system.hub_out.T, distribution),
            equation(by_cell, distribution, system.hub_out.T),
            up(group_first), up(system.spread), up(system.q), done,
        )  # fmt: skip


class _DeviceSystem(RidgeSystem):
    device: Device
    parts: _Parts

    @property
    def where(self) -> str:  # type: ignore[override]
        single = self.parts.push.value_type == np.float32
        return f", on {self.device.name}" + (" in float32, refined in float64" if single else "")

    @cached_property
    def _step(self) -> _Step:
        return _Step(self)

    def descent(self, free: NDArray[np.bool_], y: Floats, residual: Floats) -> _DeviceDescent:
        return _DeviceDescent(self._step, free, y, residual)


class _Step:
    """The vectors of a descent and the launches of one step; they stay where they are, to be recorded."""

    def __init__(self, system: _DeviceSystem) -> None:
        self.device, self.parts, self.system = system.device, system.parts, system
        device, n = self.device, system.q.size
        self.value, self.storage = self.parts.push.value, self.parts.push.value_type
        self.y, self.residual, self.direction, self.image, self.misfit, self.pulled = (
            device.empty(n, self.storage) for _ in range(6)
        )
        self.diagonal = self.up(system.diagonal)
        self.free = device.empty(n, np.uint8)
        n_states = system.operator.n_states
        self.pushed, self.gathered = (device.empty(n_states, self.storage) for _ in range(2))
        self.scalars, self.done = device.zeros(DESCENT, np.float64), self.parts.done
        self.n_parts = n_blocks(device, n, device.block)
        self.partials = device.empty(self.n_parts, np.float64)
        self._repeat: Any = None

    def up(self, array: Floats) -> Any:
        """A vector on the device, as vectors are stored there."""
        return self.device.upload(array.astype(self.storage, copy=False))

    def begin(self, free: NDArray[np.bool_], residual: Floats) -> float:
        """Set out from 0, toward what takes the residual away; returns its square."""
        up, system = self.up, self.system
        direction = np.where(free, residual / system.diagonal, 0.0)
        squared = float(direction @ residual)
        self.y[:], self.residual[:], self.direction[:] = 0.0, up(residual), up(direction)
        self.free[:] = self.device.upload(free.astype(np.uint8))
        scalars = np.zeros(DESCENT)
        scalars[REMAINING], scalars[ALONG] = squared, float(system.q @ direction)
        self.scalars[:] = self.device.upload(scalars)
        return squared

    def advance(self, goal: float, n_steps: int) -> Any:
        """At most this many steps; returns the scalars."""
        self.scalars[GOAL : GOAL + 1] = goal
        self.done[:] = 0
        for _ in range(n_steps):
            if self._repeat is None:
                self._repeat = self.device.record(self)  # which makes a step
            else:
                self._repeat()
        return self.device.download(self.scalars)

    def __call__(self) -> None:
        device, parts, system = self.device, self.parts, self.system
        n, scalars = system.q.size, (self.scalars, self.done)
        parts.push.product(self.direction, self.pushed)
        n_states = system.operator.n_states
        around = (parts.group_first, parts.spread, self.pushed, self.direction, self.done)
        arguments = (np.int32(n_states), *around, self.misfit, self.gathered)
        for_each(device, "turn_around", (self.value,), n_states, arguments)
        parts.pull.product(self.gathered, self.pulled)
        self._sum(
            "normal_image", CURVATURE,
            (np.int32(n), self.direction, self.misfit, self.pulled, parts.q, np.float64(system.penalty),
             np.float64(system.ridge), *scalars, self.image),
        )  # fmt: skip
        self._sum(
            "step_along", LEFT,
            (np.int32(n), self.direction, self.image, self.diagonal, self.free, *scalars, self.y,
             self.residual),
        )  # fmt: skip
        self._sum(
            "turn_direction", ALONG_DIRECTION,
            (np.int32(n), self.residual, self.diagonal, self.free, parts.q, *scalars, self.direction),
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
