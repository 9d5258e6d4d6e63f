"""Primal-dual stochastic gradient: the paper's algorithm, with the step sizes of its analysis.

Robust mirror-descent stochastic approximation (Nemirovski, Juditsky, Lan and Shapiro, 2009) in epochs of
doubling length. Each block b of variables (tau, f, u) has a diagonal metric omega and, over its box, the
squared radius R_b = max 1/2 |z - z'|^2. In the metric omega / (3 R_b) the whole set has radius 1, a
stochastic gradient G satisfies E |G|^2 <= M^2 with M computed from the boxes and the data, and N steps of
length sqrt(4/5) / (M sqrt(N)) from any start give, for the average point,

    E gap <= 2 sqrt(5) M / sqrt(N) .
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.rows import row_of_entry, zeros_by_line
from lingendice.divergences import FDivergence, TotalVariation
from lingendice.kernels.random_numbers import SampleSource, build_alias, build_alias_rows, pack_events
from lingendice.model.features import FeatureMap, MatrixFeatures, Tabular
from lingendice.model.operator import Flow
from lingendice.solvers.control import Step
from lingendice.solvers.problem import Checkpoints, RatioProblem, SaddleSolver, certified

if TYPE_CHECKING:
    from lingendice.kernels.saddle_steps import Terms

CHUNK_SECONDS = 0.1
DEFAULT_DUAL_BOUND = 2.0
"""|f| where the user gives no bound: inflow within a factor of two of the mass, for chi-square."""
LARGEST_COPY = 2 * 10**7
"""Entries of dense features up to which they are copied into a faster layout."""
_LINE = 8  # float64 entries of a cache line
OPTIONS = {"batch": 1, "step_scale": 1.0, "first_epoch": 1024, "average": True}


def bounded_for_sgd(problem: RatioProblem) -> RatioProblem:
    """The problem with a bounded dual, well inside the domain of phi*."""
    divergence = problem.divergence
    if not isinstance(divergence, FDivergence) or divergence.name == "equality":
        raise ValueError(
            f'method="sgd" serves f-divergences, not {divergence.name}; use "convex" or "extragradient"'
        )
    limit = divergence.dual_limit
    if isinstance(divergence, TotalVariation):
        return problem
    given = problem.given_dual_bound
    bound = DEFAULT_DUAL_BOUND if given is None else given
    if math.isfinite(limit):
        unit = problem.dual_features.largest(np.ones(problem.dual_features.n_features))
        bound = min(bound, 0.5 * limit, 0.5 * limit / float(unit.max()))
    return replace(problem, dual_bound=bound)


@dataclass(frozen=True)
class StepSizes:
    """Step lengths a unit of gradient (before division by sqrt(N)), and the constant of the bound."""

    w: Floats
    v: Floats
    u: float
    moment: float
    """M: the gap after N steps is at most 2 sqrt(5) M / sqrt(N) in expectation."""
    u_top: float

    def bound(self, n_steps: int) -> float:
        """The guarantee on the mean gap of the average of ``n_steps`` steps."""
        return 2.0 * math.sqrt(5.0) * self.moment / math.sqrt(n_steps)


def step_sizes(problem: RatioProblem) -> StepSizes:
    """Constants of the analysis from the boxes, the features and the data. O(nnz + features)."""
    flow, divergence = problem.flow, problem.divergence
    assert isinstance(divergence, FDivergence)
    p, gamma = flow.p, flow.gamma
    arriving, starting = flow.apply_transpose(p), flow.start
    start_mass = float(starting.sum())
    top, box = problem.upper, problem.dual_box
    if not (np.isfinite(top).all() and np.isfinite(box).all()):
        raise ValueError(
            "the ratio is unbounded here; pass bound= (and check that the features reach all cells)"
        )
    u_top = max(1.0, problem.largest_mass - 1.0)
    most_tau = problem.features.apply(top)
    most_f = problem.dual_features.largest(box)
    edge = np.minimum(most_f, 0.999 * divergence.dual_limit)
    excess = np.maximum(divergence.excess(edge), divergence.excess(-most_f))
    slope = np.maximum(np.abs(divergence.excess_slope(edge)), np.abs(divergence.excess_slope(-most_f)))
    beyond = float(most_f.max()) * gamma
    on_tau = most_f + beyond + problem.penalty * u_top * flow.mass_weight
    if divergence.weighs_by_ratio:
        on_tau = on_tau + excess
        slope = slope * most_tau
    if problem.ridge > 0:
        on_tau = on_tau + problem.ridge * np.maximum(most_tau, 1.0)
    # Second moments of each coordinate; three parts of the gradient of f may meet in one of them.
    square_w = problem.features.squares(p * on_tau**2)
    carried = gamma * flow.apply_transpose(p * most_tau**2)
    square_v = 3.0 * (
        problem.dual_features.squares(p * (most_tau + slope) ** 2)
        + problem.dual_features.squares(carried)
        + problem.dual_features.squares(start_mass * starting)
    )
    square_u = (problem.penalty * (float((flow.mass_weight * most_tau).max()) + 1.0 + u_top)) ** 2
    usual_w = _metric(problem.features, p)
    usual_v = _metric(problem.dual_features, p + arriving + starting)
    radius_w = 0.5 * float(usual_w @ top**2)
    radius_v = 0.5 * float(usual_v @ (2.0 * box) ** 2)
    radius_u = 2.0 * u_top**2
    moment = math.sqrt(
        3.0 * radius_w * float((square_w / usual_w).sum())
        + 3.0 * radius_v * float((square_v / usual_v).sum())
        + 3.0 * radius_u * square_u
    )
    pace = math.sqrt(0.8) / moment
    return StepSizes(
        pace * 3.0 * radius_w / usual_w, pace * 3.0 * radius_v / usual_v, pace * 3.0 * radius_u, moment, u_top
    )


def _metric(features: FeatureMap, distribution: Floats) -> Floats:
    """omega: the root of how often a coordinate is met, which makes M smallest among powers of it."""
    met = features.squares(distribution)
    return np.sqrt(np.maximum(met, 1e-12 * met.max()))


# -- the solver ----------------------------------------------------------------------------------------


class _State:
    """Iterates and lazy sums of one run."""

    def __init__(self, problem: RatioProblem, seed: int, start: tuple[Floats, Floats, float] | None) -> None:
        w, v, u = start or (problem.start(), np.zeros(problem.dual_features.n_features), 0.0)
        self.w = np.clip(w, 0.0, problem.upper)
        self.v = np.clip(v, -problem.dual_box, problem.dual_top)
        self.u = float(u)
        self.counter = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self.reset()

    def reset(self) -> None:
        self.w_sum, self.v_sum, self.u_sum = np.zeros_like(self.w), np.zeros_like(self.v), 0.0
        self.w_last = np.zeros(self.w.size, dtype=np.int64)
        self.v_last = np.zeros(self.v.size, dtype=np.int64)


class _Runner:
    """Calls the kernel that fits the features."""

    def __init__(self, problem: RatioProblem, steps: StepSizes, batch: int, scale: float) -> None:
        divergence = problem.divergence
        assert isinstance(divergence, FDivergence)
        self.problem, self.steps, self.scale, self.batch = problem, steps, scale, batch
        self.sampler: Sampler = build_sampler(problem.flow)
        self.code, self.by_ratio = divergence.code, divergence.weighs_by_ratio
        self.top, self.box = problem.upper, problem.dual_box
        kinds = {type(problem.features), type(problem.dual_features)}
        # A table in batches takes the steps of sparse features: its own kernel takes a sample at a time.
        self.tabular = kinds == {Tabular} and batch == 1
        self.dense = kinds == {MatrixFeatures} and not (
            problem.features.is_sparse or problem.dual_features.is_sparse  # type: ignore[attr-defined]
        )
        if self.dense:
            psi, phi = problem.features.matrix, problem.dual_features.matrix  # type: ignore[attr-defined]
            self.psi = _by_cache_lines(psi)
            self.phi = self.psi if phi is psi else _by_cache_lines(phi)
            self.start = np.asarray(problem.dual_features.adjoint(problem.flow.start))
        elif not self.tabular:
            self.psi, self.phi = problem.features.compressed(), problem.dual_features.compressed()
        self.own = problem.mass_row if problem.self_normalized else np.empty(0)
        self.mass = 1.0

    def run(self, state: _State, first: int, last: int, n_steps: int) -> None:
        """Steps ``first : last`` of an epoch of ``n_steps``."""
        from lingendice.kernels.saddle_steps import Terms

        problem = self.problem
        pace = self.scale / math.sqrt(n_steps)
        terms = Terms(
            problem.flow.gamma, problem.price, problem.flow.mass_offset, problem.ridge,
            self.steps.u * pace, self.steps.u_top, self.code, self.by_ratio,
        )  # fmt: skip
        if self.tabular:
            self._run_tabular(state, first, last, terms, pace)
        else:
            self._run_features(state, first, last, terms, pace)

    def _run_features(self, state: _State, first: int, last: int, terms: Terms, pace: float) -> None:
        from lingendice.kernels.saddle_steps import Block, Features, sgd_dense, sgd_sparse

        problem, source, counter = self.problem, self.sampler.source, np.uint64(state.counter)
        features = Features(self.psi, self.phi, problem.flow.mass_weight, self.own)
        low = np.zeros(state.w.size)
        primal = Block(state.w, state.w_sum, state.w_last, self.steps.w * pace, low, self.top)
        dual = Block(state.v, state.v_sum, state.v_last, self.steps.v * pace, -self.box, problem.dual_top)
        if self.dense:
            state.counter, state.u, state.u_sum = sgd_dense(
                counter, last - first, self.batch, source, terms, features, self.start, primal, dual,
                state.u, state.u_sum,
            )  # fmt: skip
        else:
            state.counter, state.u, state.u_sum, self.mass = sgd_sparse(
                counter, first, last, self.batch, source, terms, features, self.mass, primal, dual,
                state.u, state.u_sum,
            )  # fmt: skip

    def _run_tabular(self, state: _State, first: int, last: int, terms: Terms, pace: float) -> None:
        from lingendice.kernels.saddle_steps import TAU, F, pack, sgd_tabular, sgd_tabular_self

        problem = self.problem
        if first == 0:
            self.cells = rows_by_cache_line(state.w.size, 8)
            pack(
                state.w, self.steps.w * pace, self.top, state.v, self.steps.v * pace,
                problem.flow.mass_weight, self.cells,
            )  # fmt: skip
        common = (np.uint64(state.counter), first, last, self.sampler.source, terms, self.cells)
        low, high = -float(self.box[0]), float(problem.dual_top[0])
        if problem.self_normalized:
            state.counter, self.mass = sgd_tabular_self(*common, problem.mass_row, self.mass, low, high)
        else:
            state.counter, state.u, state.u_sum = sgd_tabular(*common, state.u, state.u_sum, low, high)
        state.w, state.v = self.cells[:, TAU].copy(), self.cells[:, F].copy()

    def averages(self, state: _State, n_steps: int) -> tuple[Floats, Floats, float]:
        """The average point of the first ``n_steps`` steps of the epoch."""
        if self.tabular:
            from lingendice.kernels.saddle_steps import F_MOVED, TAU_MOVED

            w, v = (self.cells[:, moved] / n_steps for moved in (TAU_MOVED, F_MOVED))
            return state.w - w, state.v - v, state.u_sum / n_steps
        if not self.dense:
            from lingendice.kernels.saddle_steps import finish_averages

            finish_averages(n_steps, state.w, state.w_sum, state.w_last)
            finish_averages(n_steps, state.v, state.v_sum, state.v_last)
        return state.w_sum / n_steps, state.v_sum / n_steps, state.u_sum / n_steps


def _by_cache_lines(matrix: Floats) -> Floats:
    """The matrix with rows that begin at cache lines, where a copy is cheap: random rows are read faster."""
    n_rows, width = matrix.shape
    padded = -(-width // _LINE) * _LINE
    if n_rows * padded > LARGEST_COPY:
        return np.ascontiguousarray(matrix, dtype=float)
    rows = rows_by_cache_line(n_rows, padded)
    rows[:, :width] = matrix
    return rows


def rows_by_cache_line(n_rows: int, width: int) -> Floats:
    """Zeros whose first row begins at a cache line; ``width`` a multiple of eight."""
    return zeros_by_line(n_rows * width).reshape(n_rows, width)


def solve_sgd(
    problem: RatioProblem,
    tol: float,
    seed: int,
    options: dict[str, Any],
    max_iter: int | None = None,
    start: Any = None,
) -> SaddleSolver:
    """SGD in epochs of doubling length; the gap of each epoch's average is a checkpoint.

    A tabular step costs O(1), some tens of ns; E gap falls as 1 / sqrt(steps). Use it for streams and for
    problems that nothing else can hold; where a few thousand features fit, ``convex`` is far more exact.
    """
    runner = _Runner(problem, step_sizes(problem), options["batch"], options["step_scale"])
    return in_epochs(problem, _HostRun(problem, runner, seed, start), tol, options, max_iter)


class SgdRun(Protocol):
    """Steps of SGD, wherever they are made."""

    def begin_epoch(self, n_steps: int) -> None:
        """Begin the averages of an epoch of this many steps."""

    def advance(self, done: int, n_steps: int) -> int:
        """Make some of the epoch's steps, of which ``done`` were made; returns how many."""

    def is_finite(self) -> bool:
        """Whether all iterates are."""

    def point(self, done: int, average: bool) -> tuple[Floats, Floats, float]:
        """The average of the epoch's steps, or the last point."""


def in_epochs(
    problem: RatioProblem, run: SgdRun, tol: float, options: dict[str, Any], max_iter: int | None
) -> SaddleSolver:
    """Epochs of doubling length, each certified at its end."""
    checkpoints = Checkpoints()
    n_iter, n_steps, stopped = 0, options["first_epoch"], False
    while not stopped:
        if max_iter is not None and max_iter - n_iter < 3 * n_steps:
            # The last epoch takes all that is left, so that a given max_iter always ends at the same point.
            n_steps = max(1, max_iter - n_iter)
        run.begin_epoch(n_steps)
        done = 0
        while done < n_steps and not stopped:
            size = run.advance(done, n_steps)
            done, n_iter = done + size, n_iter + size
            error = checkpoints.gap if run.is_finite() else math.nan
            stopped = (yield Step(n_iter, error)) is not None
        # A stopped epoch is used only if it got somewhere.
        point = run.point(done, options["average"])
        checkpoints.note(certified(problem, *point, tol, "sgd", n_iter))
        if checkpoints.gap <= tol:
            break
        n_steps *= 2
    return checkpoints.finish(n_iter)


class _HostRun:
    """Chunks of steps that take about CHUNK_SECONDS."""

    def __init__(self, problem: RatioProblem, runner: _Runner, seed: int, start: Any) -> None:
        self.runner, self.state, self.chunk = runner, _State(problem, seed, start), 1000
        if problem.self_normalized:
            self.state.w = problem.rescaled(self.state.w)
            runner.mass = float(problem.mass_row @ self.state.w)

    def begin_epoch(self, n_steps: int) -> None:
        self.state.reset()

    def advance(self, done: int, n_steps: int) -> int:
        size, began = min(self.chunk, n_steps - done), time.perf_counter()
        self.runner.run(self.state, done, done + size, n_steps)
        spent = time.perf_counter() - began
        self.chunk = max(1000, min(int(size * CHUNK_SECONDS / max(spent, 1e-6)), 20 * size))
        return size

    def is_finite(self) -> bool:
        return math.isfinite(float(self.state.w.sum()) + float(self.state.v.sum()) + self.state.u)

    def point(self, done: int, average: bool) -> tuple[Floats, Floats, float]:
        state = self.state
        return self.runner.averages(state, done) if average else (state.w, state.v, state.u)


# -- tables from which (x, x', x0) are drawn in O(1), built once from the flow -------------------------------


Alias = tuple[Floats, NDArray[np.int32]]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Alias tables in the layout that the kernels read, and what each event is."""

    source: SampleSource
    cell: NDArray[np.int32]
    """The cell that each event leaves."""
    following: NDArray[np.int32]
    probability: Floats
    """Of every event."""


def build_sampler(flow: Flow) -> Sampler:
    """O(nnz) time and memory; nothing of the data is copied per sample."""
    rows, p = flow.rows, flow.p
    n_cells, n_states = p.size, flow.n_states
    row, every = row_of_entry(rows.indptr), np.arange(n_cells)
    counted = rows.weight * (p * rows.scale)[row]
    ends = p - np.bincount(row, counted, n_cells)
    parts = [(row, rows.indices, counted)]
    for k in range(rows.n_hubs):
        share = p * rows.out[:, k]
        ends -= share
        parts.append((every, np.full(n_cells, -2 - k), share))
    parts.append((every, np.full(n_cells, -1), np.where(ends > 1e-12 * p, ends, 0.0)))
    cell, code, probability = (np.concatenate(part) for part in zip(*parts, strict=True))
    keep = probability > 0
    cell, code, probability = cell[keep].astype(np.int32), code[keep].astype(np.int32), probability[keep]
    closure = flow.closure
    seen = np.zeros(0, dtype=np.bool_) if closure is None else flow.seen
    factor, restart = 0.0, np.ones(1)
    if closure is not None:
        onward = np.where(flow.seen, flow.spread(closure.continuation), 0.0)
        factor = float(onward.sum())
        restart = onward if factor > 0.0 else restart
    start_mass = float(flow.start.sum())
    starts = (*alias_table(flow.start if start_mass > 0 else np.ones(1)), start_mass)
    actions = 1 if flow.policy is None else flow.policy.shape[1]
    policy = np.ones((n_states if actions > 1 else 1, actions)) if flow.policy is None else flow.policy
    policy_t, policy_a = alias_rows(policy)
    distribution_t, distribution_a = (
        alias_rows(rows.distribution) if rows.n_hubs else (np.ones((1, 1)), np.zeros((1, 1), np.int32))
    )
    tables = (distribution_t, distribution_a, policy_t.ravel(), policy_a.ravel(), *alias_table(restart))
    events = np.empty((cell.size, 4), dtype=np.int64)
    pack_events(*alias_table(probability), cell, code, events)
    source = SampleSource(
        events, tables, (seen, factor), starts, actions,
        1 + int(rows.n_hubs > 0) + int(actions > 1) + int(closure is not None),
    )  # fmt: skip
    return Sampler(source, cell, code, probability)


def alias_table(weight: Floats) -> Alias:
    """Thresholds and aliases of one distribution.

    References
    ----------
    A. J. Walker (1977). An efficient method for generating discrete random variables with general
        distributions. ACM Transactions on Mathematical Software 3.
    M. D. Vose (1991). A linear algorithm for generating random numbers with a given distribution. IEEE
        Transactions on Software Engineering 17.
    """
    threshold, alias = np.empty(weight.size), np.empty(weight.size, dtype=np.int32)
    build_alias(np.ascontiguousarray(weight, dtype=float), threshold, alias)
    return threshold, alias


def alias_rows(table: Floats) -> Alias:
    """One alias table per row, aliases counted from the start of the row."""
    threshold, alias = np.empty(table.shape), np.empty(table.shape, dtype=np.int32)
    build_alias_rows(np.ascontiguousarray(table, dtype=float), threshold, alias)
    return threshold, alias
