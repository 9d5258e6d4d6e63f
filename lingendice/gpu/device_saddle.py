"""GenDICE's saddle point on the device, over tables or features; gaps are certified on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from lingendice.divergences import FDivergence
from lingendice.gpu.catalog import c_type
from lingendice.gpu.device import Device, for_each, launch, n_blocks
from lingendice.gpu.equation import SCRATCH, Equation
from lingendice.gpu.pull import PullMatrix, resident_matrix
from lingendice.model.features import FeatureMap, MatrixFeatures, Tabular
from lingendice.solvers.control import Controls, Step
from lingendice.solvers.extragradient import SAFETY, Geometry, Schedule
from lingendice.solvers.problem import RatioProblem
from lingendice.solvers.saddle import n_entries as stored_entries
from lingendice.solvers.saddle_outcome import Checkpoints, SaddleSolver, certified, gap_order

ADVICE = '; options={"storage": "float32"} halves vectors and matrices; or use device="cpu"'
STEPS_AT_ONCE = 32
"""Steps of SGD that are drawn, sorted and recorded together."""
# Places in the array of the pace: see cuda/saddle.cu.
LENGTH, ACCEPTED, USED, TOTAL_LENGTH, ATTEMPTS, TAKEN, BROKEN, PACE = range(8)
MOST_BROKEN = 60
IDLE_CHECKS = 20


def saddle_bytes(problem: RatioProblem, batch: int | None, value: int = 8) -> int:
    """Device memory of extragradient steps, or of SGD with samples of ``batch``; ``value`` bytes a number."""
    flow = problem.flow
    n, n_states = flow.n_cells, flow.n_states
    n_entries, n_hubs = flow.rows.indices.size, flow.rows.n_hubs
    if batch is not None:
        tables = 20 * (n_entries + n * n_hubs) + 12 * n_hubs * n_states + 44 * n
        a_step = (12 + 8 + 8 * (2 + 6)) * batch  # samples, and entries padded to powers of two
        vectors = (
            11 * value + 5 * 8
        ) * n  # values, boxes and lengths; sums, last steps and the distribution are double
        return vectors + tables + STEPS_AT_ONCE * a_step + (5 * value) * batch
    maps = [features for features in (problem.features, problem.dual_features) if features.n_features != n]
    over_features = sum(
        2 * (4 + value) * stored_entries(part) + 5 * value * (part.n_features + n) for part in maps
    )
    n_point = problem.features.n_features + problem.dual_features.n_features + 1
    matrices = 2 * (4 + value) * n_entries + (16 + value) * (n + n_states)
    return (
        matrices
        + 4 * value * n_hubs * (n + n_states)
        + (10 * value + 2 * 8) * n_point
        + value * (10 * n + 5 * n_states)
        + over_features
    )


class DeviceFlow:
    """gamma T' m and its adjoint gamma T f over cells, and the field of the saddle point.

    With features, tau = Psi w and f = Phi v are products with matrices like any other. Where mass that enters
    unseen cells goes on from the restart distribution, that is one more distribution to fall back to: its
    share of each cell is the chance of entering them.
    """

    def __init__(self, device: Device, problem: RatioProblem, storage: Any = np.float64) -> None:
        flow = problem.flow
        self.storage, self.value = np.dtype(storage), (c_type(storage),)
        rows, gamma = flow.rows, flow.gamma
        self.device, self.problem = device, problem
        self.n_cells = flow.n_cells
        self.n_states = flow.n_states
        self.n_actions = self.n_cells // self.n_states
        policy = np.ones(self.n_cells) if flow.policy is None else flow.policy.ravel()
        shares, distributions = list(flow.out.T), list(rows.distribution)
        counted = rows.kernel()
        by_state, by_cell = counted.T.tocsr(), counted
        self.push = self._equation(by_state, shares, distributions, gamma, self.n_cells)
        self.pull = self._equation(by_cell, distributions, shares, gamma, self.n_states)
        up = self.up
        self.policy, self.p = up(policy), up(flow.p)
        self.start, self.weight = up(flow.start), up(flow.mass_weight)
        self.only_seen = np.int32(flow.closure is not None)
        self.mass = device.empty(self.n_cells, storage)
        self.pushed, self.gathered = (device.empty(self.n_states, storage) for _ in range(2))
        self.pulled = device.empty(self.n_cells, storage)
        self.n_parts = n_blocks(device, self.n_cells, device.block)
        self.partials = device.empty(self.n_parts, np.float64)
        divergence = problem.divergence
        assert isinstance(divergence, FDivergence)
        self.kind = (np.int32(divergence.code), np.int32(divergence.weighs_by_ratio))
        self.maps = [_FeatureMap(self, features) for features in (problem.features, problem.dual_features)]
        self.n_w, self.n_v = problem.features.n_features, problem.dual_features.n_features
        own = problem.self_normalized
        self.price = np.float64(1.0 if own else problem.penalty)
        self.keep = np.float64(0.0 if own else 1.0)

    def _equation(self, matrix: Any, shares: Any, distributions: Any, gamma: float, n_in: int) -> Equation:
        device, n_hubs = self.device, len(distributions)
        on_device = self.matrix(matrix)
        flat = [self.up(np.concatenate(part) if n_hubs else np.zeros(1)) for part in (shares, distributions)]
        zero = device.zeros(matrix.shape[0], self.storage)
        return Equation(device, on_device, flat[0], flat[1], n_hubs, zero, gamma, n_in)

    def up(self, array: Any) -> Any:
        """A vector on the device, as vectors are stored there."""
        return self.device.upload(np.asarray(array).astype(self.storage, copy=False))

    def matrix(self, matrix: Any) -> PullMatrix:
        """A matrix of the host on the device."""
        offset = np.int32 if matrix.nnz < 2**31 else np.int64
        up = self.device.upload
        return resident_matrix(
            self.device,
            up(matrix.indptr.astype(offset)),
            up(matrix.indices.astype(np.int32)),
            self.up(matrix.data),
        )

    def product(self, matrix: Any) -> Equation:
        """x -> matrix x."""
        return self._equation(matrix, (), (), 1.0, matrix.shape[1])

    def field(self, point: Any, field: Any) -> None:
        """field = (dJ/dw, -dJ/dv, -dJ/du) at the point; nothing comes to the host."""
        device, n, problem = self.device, self.n_cells, self.problem
        parts = (slice(0, self.n_w), slice(self.n_w, self.n_w + self.n_v))
        last = slice(self.n_w + self.n_v, self.n_w + self.n_v + 1)
        tau, f = (over.values(point[part]) for over, part in zip(self.maps, parts, strict=True))
        on_tau, on_f = (over.gradient(field[part]) for over, part in zip(self.maps, parts, strict=True))
        for_each(device, "weigh_ratio", self.value, n, (np.int32(n), self.p, tau, self.mass))
        self.push.product(self.mass, self.pushed)
        sizes = (np.int32(self.n_states), np.int32(self.n_actions))
        gather = (*sizes, self.policy, self.p, self.only_seen, f, self.gathered)
        for_each(device, "gather_actions", self.value, self.n_states, gather)
        self.pull.product(self.gathered, self.pulled)
        launch(
            device, "saddle_field", self.value, self.n_parts,
            (np.int32(n), np.int32(self.n_actions), self.only_seen, tau, f, point[last], self.pushed,
             self.pulled, self.policy, self.p, self.start, self.weight, *self.kind, self.price,
             np.float64(problem.ridge), np.float64(problem.ridge_center), on_tau, on_f, self.partials),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        launch(
            device, "finish_field", self.value, 1,
            (np.int32(self.n_parts), self.partials, point[last], np.float64(problem.flow.mass_offset),
             self.price, self.keep, field[last]),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        for over, part in zip(self.maps, parts, strict=True):
            over.gather(field[part])


class _FeatureMap:
    """Psi and Psi' on the device; over tables values and coefficients are the same array."""

    def __init__(self, flow: DeviceFlow, features: FeatureMap) -> None:
        self.matrix: Equation | None = None
        if isinstance(features, Tabular):
            return
        assert isinstance(features, MatrixFeatures)
        matrix = csr_array(features.matrix)
        self.matrix, self.transposed = (flow.product(part) for part in (matrix, matrix.T.tocsr()))
        self._values, self._gradient = (flow.device.empty(features.n_cells, flow.storage) for _ in range(2))

    def values(self, coefficients: Any) -> Any:
        """Psi w over cells."""
        if self.matrix is None:
            return coefficients
        self.matrix.product(coefficients, self._values)
        return self._values

    def gradient(self, on_coefficients: Any) -> Any:
        """Where the gradient by values goes."""
        return on_coefficients if self.matrix is None else self._gradient

    def gather(self, on_coefficients: Any) -> None:
        """Psi' of the gradient by values."""
        if self.matrix is not None:
            self.transposed.product(self._gradient, on_coefficients)


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
    n_iter, schedule = 0, Schedule()
    while True:
        steps = schedule.check - schedule.since
        if max_iter is not None:
            steps = min(steps, max(1, max_iter - n_iter))
        for _ in range(steps - made):
            repeat()
        made = 0
        pace = device.download(iteration.pace)
        n_iter, schedule.since = n_iter + steps, schedule.since + steps
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
        if schedule.restarts(found.gap.value):
            iteration.restart(averaged if found is not candidates[0] else None)
        if (yield Step(n_iter, checkpoints.gap)) is not None:
            break
    return checkpoints.finish(n_iter)
