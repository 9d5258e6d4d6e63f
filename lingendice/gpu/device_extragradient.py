"""Extragradient on the device: trial, judgment and step in one recorded sequence, no word with the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lingendice.gpu.device import Device, for_each, launch, n_blocks
from lingendice.gpu.device_saddle import DeviceFlow
from lingendice.gpu.equation import SCRATCH
from lingendice.solvers.control import Controls, Step
from lingendice.solvers.extragradient import FIRST_CHECK, SAFETY, WORTH_RESTARTING, Geometry, gap_order
from lingendice.solvers.problem import RatioProblem
from lingendice.solvers.saddle_outcome import Checkpoints, SaddleSolver, certified

# Places in the array of the pace: see cuda/saddle.cu.
LENGTH, ACCEPTED, USED, TOTAL_LENGTH, ATTEMPTS, TAKEN, BROKEN, PACE = range(8)
MOST_BROKEN = 60
IDLE_CHECKS = 20


class _Iteration:
    """The arrays of the method, all on the device, and the launches of one attempt at a step."""

    def __init__(self, device: Device, problem: RatioProblem, storage: np.dtype[Any]) -> None:
        geometry = Geometry(problem)
        self.n_w, self.n_v = problem.features.n_features, problem.dual_features.n_features
        self.device, self.size = device, self.n_w + self.n_v + 1
        self.flow = DeviceFlow(device, problem, storage)
        up, self.value = self.flow.up, self.flow.value
        top = np.broadcast_to(geometry.top, self.n_w)
        self.metric = up(np.concatenate([geometry.on_w, geometry.on_v, [geometry.on_u]]))
        self.low = up(np.concatenate([np.zeros(self.n_w), geometry.low, [-math.inf]]))
        self.high = up(np.concatenate([top, geometry.high, [math.inf]]))
        start = np.concatenate([problem.start(), np.zeros(self.n_v), [0.0]])
        self.at, self.total = up(start), device.zeros(self.size, np.float64)
        self.middle, self.here, self.ahead = (device.empty(self.size, storage) for _ in range(3))
        pace = np.zeros(PACE)
        pace[LENGTH] = 1.0
        self.pace = device.upload(pace)
        self.n_parts = n_blocks(device, self.size, device.block)
        self.partials = device.empty(2 * self.n_parts, np.float64)
        self.flow.field(self.at, self.here)

    def __call__(self) -> None:
        """One attempt; a step too long leaves the point where it is and shortens the next."""
        device, size = self.device, np.int64(self.size)
        box = (self.metric, self.low, self.high, self.pace)
        for_each(device, "saddle_step", self.value, self.size, (size, self.at, self.here, *box, self.middle))
        self.flow.field(self.middle, self.ahead)
        parts = np.int32(self.n_parts)
        launch(
            device, "compare_fields", self.value, self.n_parts,
            (size, self.at, self.middle, self.here, self.ahead, self.metric, self.partials, parts),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        launch(
            device, "judge_step", (), 1, (parts, self.partials, np.float64(SAFETY), self.pace),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        step = (size, self.middle, self.ahead, *box, self.at, self.total)
        for_each(device, "take_step", self.value, self.size, step)
        self.flow.field(self.at, self.here)

    def restart(self, point: Any) -> None:
        """Begin a new average, from the given point where there is one."""
        self.total[:] = 0.0
        self.pace[TOTAL_LENGTH : TAKEN + 1] = 0.0
        if point is not None:
            self.at[:] = point.astype(self.at.dtype, copy=False)
            self.flow.field(self.at, self.here)


def device_extragradient(
    device: Device, problem: RatioProblem, storage: np.dtype[Any], controls: Controls
) -> SaddleSolver:
    """:func:`lingendice.solvers.extragradient.solve_extragradient` with its steps on the device.

    A step costs two passes over the matrix in each direction. Points come to the host only at checkpoints,
    where the gap is certified and a restart decided. In float32 gaps fall until they meet its rounding: after
    IDLE_CHECKS without a better one that is the end, with whatever gap was certified.
    """
    tol, max_iter, idle = controls.tol, controls.max_iter, 0
    iteration = _Iteration(device, problem, storage)
    repeat = device.record(iteration)
    made = 1  # recording makes an attempt
    n_w = iteration.n_w
    checkpoints = Checkpoints()
    n_iter, since, check, restart_gap = 0, 0, FIRST_CHECK, math.inf
    while True:
        if max_iter is not None:
            check = min(check, since + max(1, max_iter - n_iter))
        for _ in range(check - since - made):
            repeat()
        made = 0
        pace = device.download(iteration.pace)
        n_iter += check - since
        since = check
        broken = pace[BROKEN] > MOST_BROKEN or not math.isfinite(pace[LENGTH])
        averaged = iteration.total / max(float(pace[TOTAL_LENGTH]), 1e-300)
        points = [device.download(point) for point in (iteration.at, averaged)]
        candidates = [
            certified(problem, point[:n_w], point[n_w:-1], float(point[-1]), tol, "extragradient", n_iter)
            for point in (points if pace[TOTAL_LENGTH] > 0 else points[:1])
        ]
        found = min(candidates, key=lambda outcome: gap_order(outcome.gap.value))
        idle = 0 if gap_order(found.gap.value) < 0.99 * checkpoints.gap else idle + 1
        checkpoints.note(found)
        if checkpoints.gap <= tol or broken or (storage == np.float32 and idle >= IDLE_CHECKS):
            break
        if found.gap.value <= WORTH_RESTARTING * restart_gap or since >= 64 * FIRST_CHECK:
            restart_gap = found.gap.value
            iteration.restart(averaged if found is not candidates[0] else None)
            since, check = 0, FIRST_CHECK
        else:
            check = since + max(FIRST_CHECK, since // 2)
        if (yield Step(n_iter, checkpoints.gap)) is not None:
            break
    return checkpoints.finish(n_iter)
