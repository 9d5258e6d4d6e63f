"""Stationary distribution of a large sparse irreducible chain by sweeps and aggregation.

Solves ``x = P'x``, ``sum x = 1`` for ``P`` = weights divided by their row sums. Three things are combined:

* Gauss-Seidel sweeps, ``O(nnz)`` each, enough by themselves where the chain mixes well;
* blocks found at gaps in the weights, with the chain between blocks solved exactly
  (Koury-McAllister-Stewart): a nearly decomposable chain then takes as many sweeps as its blocks;
* blocks of strongly linked neighbors, level upon level, for chains that are slow without a gap.

Convergence is declared only after a coarse correction over clusters of states has been seen to change
nothing: small changes from sweep to sweep would also be seen on a chain that hardly moves.

References
----------
J. R. Koury, D. F. McAllister, W. J. Stewart (1984). Iterative methods for computing stationary
    distributions of nearly completely decomposable Markov chains. SIAM Journal on Algebraic and Discrete
    Methods 5.
Y. Takahashi (1975). A lumping method for numerical calculations of stationary distributions of Markov
    chains. Research report B-18, Tokyo Institute of Technology.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lingendice.kernels import aggregation_steps as kernels
from lingendice.kernels.gth_dense import dense_bias, dense_factor, gth_dense
from lingendice.kernels.parallel import resolve_threads
from lingendice.model.pull_system import FloatArray, IntArray, go_on
from lingendice.solvers.control import Monitor, Outcome, Stopped
from lingendice.solvers.gauss_seidel import Extrapolation
from lingendice.solvers.levels import (
    DENSE_LIMIT,
    ROUNDING,
    CycleEffort,
    Indices,
    Level,
    choose_blocks,
    cluster_correct,
    cycle,
    gap_blocks,
    jump_chain,
)

SAFETY = 0.1  # share of the tolerance the estimated error of a slow run may take
PROBE = 12  # sweeps before their rate is believed
PATIENCE = 150  # sweeps worth making before blocks are tried
SWEEP_LAGS = (2, 4, 6)
CYCLE_LAGS = (1, 2, 3)
CAUTION = 4.0  # by which the rate of cycles, seen over few of them, may flatter the error
WORTH_MIXING = 0.4  # rate of plain cycles above which acceleration pays

SWEEPS, VISITS = 2, 2  # of a cycle for relative values
PLAIN = 4  # such cycles before acceleration may start
EPSILON = float(np.finfo(np.float64).eps)

BEHIND_GAP = CycleEffort(before=4, after=0, visits=2)
GENERAL = CycleEffort(before=2, after=2, visits=2)


@dataclass(frozen=True)
class Plan:
    """What the weights and some sweeps say about a chain.

    ``method`` is "sweeps" (mixes well), "aggregation" (blocks at a gap of the weights), "direct" (slow and
    without a gap: compare the work of an elimination with ``predicted_sweeps``) or "ended" (the work must
    end: ``solve_stationary`` gives what was reached). ``run`` lets ``solve_stationary`` go on instead of
    starting again.
    """

    method: str
    predicted_sweeps: float
    blocks: int
    run: StationaryRun


def contraction(changes: list[float], lags: tuple[int, ...]) -> float | None:
    """A cautious rate from the last changes: the slowest mean over several lags, None if unknown."""
    # Changes of the size of rounding fall no more: they would show a rate of 1.
    trusted = [change for change in changes[-2 * lags[-1] :] if change > ROUNDING]
    if len(trusted) <= lags[-1]:
        return None
    # Changes may rise and fall in turn (modes with complex or negative eigenvalues): a mean over one lag may
    # see a steep stretch alone.
    slowest = max((trusted[-1] / trusted[-1 - lag]) ** (1.0 / lag) for lag in lags)
    slowest = min(max(slowest, 0.05), 1.0)
    # The error that is left is change * rate / (1 - rate), so that near 1 a rate a little too low is an error
    # much too small: a tenth of the way to 1 is given away.
    return slowest + 0.1 * (1.0 - slowest)


@dataclass(kw_only=True)
class Pace:
    """What the changes of an iteration say of its rate and of the error that is left."""

    tol: float
    rate: float = 1.0
    error: float = np.inf

    @property
    def condition(self) -> float:
        return 1.0 / (1.0 - self.rate) if self.rate < 1.0 else np.inf

    @property
    def allowed(self) -> float:
        """Error that may be left: fast rates are seen clearly, slow ones may still be creeping up."""
        return (0.5 if self.rate < 0.6 else SAFETY) * self.tol

    def judge(self, changes: list[float], lags: tuple[int, ...]) -> bool:
        """Estimate rate and error from these changes; true when the error is safely within ``tol``."""
        rate = contraction(changes, lags)
        if rate is not None:
            self.rate = rate
        elif len(changes) > 2 and max(changes[-3:]) < ROUNDING:
            # at rest before a rate could be seen: the check over clusters has the last word
            self.rate = min(self.rate, 0.5)
        # A change of 0 is rounding that happens to repeat, not an error of 0.
        self.error = max(changes[-1], ROUNDING / 10) * self.rate * self.condition
        return self.error <= self.allowed

    def foreseen(self) -> float:
        """Sweeps still needed at the present rate."""
        if self.rate >= 1.0:
            return np.inf
        return float(max(0.0, np.log(self.allowed / self.error) / np.log(self.rate)))


@dataclass
class Mixing:
    """Cycles of a map, extrapolated between the look at their plain rate and the verdict.

    Extrapolation hides that rate, which the error estimate needs. It is therefore switched on only after the
    rate was seen, and off again before the verdict. ``total``: see :class:`Extrapolation`.
    """

    pace: Pace
    depth: int = 6
    total: Callable[[FloatArray], FloatArray] | None = None
    plain: list[float] = field(default_factory=list)
    """Changes of the last cycles that were not extrapolated."""
    mixer: Extrapolation | None = None

    def settles(self, y: FloatArray, change: float) -> bool:
        """Take note of a cycle's outcome, which may be extrapolated; true once it is within ``tol``."""
        pace = self.pace
        # the rate seen while mixing began may be too bleak: look again once it could be over
        if self.mixer is not None and change * min(pace.condition, 20.0) > SAFETY * pace.tol:
            self.mixer.observe(y)
            return False
        if self.mixer is not None:
            self.mixer, self.plain = None, []
        self.plain.append(change)
        before = pace.rate
        if pace.judge(self.plain, CYCLE_LAGS):
            # The first changes after an extrapolation may fall faster than the map does: of two rates seen,
            # the slower one counts.
            if before < 1.0:
                pace.rate = max(pace.rate, before)
            pace.error = max(pace.error, CAUTION * change * pace.condition)
            if pace.error <= pace.tol:
                return True
        if self.shows_rate and pace.rate > WORTH_MIXING:
            self.mixer = Extrapolation(y, self.depth, period=1, power=1.0, total=self.total)
        return False

    @property
    def shows_rate(self) -> bool:
        """Whether the plain cycles since the last extrapolation are enough to know their rate."""
        return len(self.plain) > CYCLE_LAGS[-1]


@dataclass(kw_only=True)
class StationaryRun(Pace):
    """A solve under way: the chain, the present ``y`` and everything seen so far."""

    level: Level
    y: FloatArray
    monitor: Monitor
    changes: list[float] = field(default_factory=list)
    sweeps: int = 0
    method: str = "sweeps"
    settled: bool = False
    blocks: tuple[Indices | None, int] | None = None

    def sweep_until(self, limit: int, patience: float) -> bool:
        """Sweep until settled (true), or until more than ``patience`` further sweeps are foreseen (false).

        Once the rate ``r`` of plain sweeps is seen, they are over-relaxed by ``2 / (1 + sqrt(1 - r))``, which
        is best for chains that look alike in both directions of time, and undone where it does not help. The
        last sweep is plain, and its change must agree.
        """
        recent: list[float] = []
        relaxation, plain_rate, tried = 1.0, 1.0, False
        for _ in range(limit):
            recent.append(self.level.sweep(self.y, True, relaxation))
            self.changes.append(recent[-1])
            self.sweeps += 1
            self.monitor.note(self.sweeps, self.error)
            if not np.isfinite(recent[-1]):
                self.error = np.inf
                return False
            if self.judge(recent, SWEEP_LAGS):
                # Relaxed sweeps shrink faster than the chain lets plain ones: their changes understate the
                # error. One plain sweep, judged by the plain rate, says what is left.
                if relaxation > 1.0:
                    last = self.level.sweep(self.y, True)
                    self.rate = max(self.rate, plain_rate)
                    self.error = last * self.rate * self.condition
                    self.changes.append(last)
                    self.sweeps += 1
                    relaxation, recent = 1.0, []
                if self.error <= self.allowed:
                    return True
            elif len(recent) == SWEEP_LAGS[-1] + 1:
                seen = (recent[-1] / recent[-3]) ** 0.5
                # Decided once, after seven sweeps. Faster chains are done before relaxation pays; for slower
                # ones the factor would be above 1.6 and rest on a rate seen over two sweeps.
                if not tried and 0.3 < seen < 0.95:
                    relaxation, plain_rate, tried = (
                        2.0 / (1.0 + (1.0 - seen) ** 0.5),
                        max(seen, self.rate),
                        True,
                    )
                    recent = []
                elif relaxation > 1.0 and seen > plain_rate:
                    relaxation, recent = 1.0, []
            if len(recent) >= PROBE and self.foreseen() > patience:
                return False
        return False

    def cycle_until(self, effort: CycleEffort, limit: int, give_up: float) -> bool:
        """Cycle until settled (true), or until ``limit`` or a plain rate above ``give_up`` is met (false)."""
        mixing = Mixing(self)
        for _ in range(limit):
            # Blocks of neighbors depend on y and are chosen anew for each cycle; blocks at a gap depend on
            # the weights alone.
            if not self.level.gap:
                self.level.label = None
            old = self.y.copy()
            largest = cycle(self.level, self.y, effort)
            self.y /= self.y.sum()
            change = float(np.max(np.abs(self.y / old - 1.0))) if np.isfinite(largest) else np.inf
            self.changes.append(change)
            self.sweeps += effort.before + effort.after
            self.monitor.note(self.sweeps, self.error)
            if not np.isfinite(change):
                self.y, self.error = old, np.inf
                return False
            if mixing.settles(self.y, change):
                return True
            if mixing.shows_rate and self.rate > give_up:
                return False
        return False

    def use_gap(self) -> bool:
        """Use the blocks found at a gap of the weights, if there is one."""
        if self.blocks is None:
            self.blocks = gap_blocks(self.level)
        label, count = self.blocks
        if label is None:
            return False
        self.level.use_blocks(label, count, gap=True)
        # The rate of sweeps says nothing of that of cycles, nor does the distribution they left off at help.
        self.rate, self.error = 1.0, np.inf
        self.y[:] = 1.0 / self.level.size
        return True

    def verify(self) -> bool:
        """Correct over clusters; true when that changes nothing that ``tol`` would notice."""
        # The correction tells, and removes, what the masses of clusters were off by. It does not see errors
        # within clusters, which are allowed for by counting it twice.
        self.error += 2.0 * cluster_correct(self.level, self.y)
        return self.error <= self.tol

    def advance(self, max_cycles: int) -> bool:
        """From sweeps or blocks at a gap to blocks of neighbors, until one of them settles."""
        if self.level.size <= DENSE_LIMIT:
            self.solve_densely()
            return True
        # Sweeps first: where they settle and the check over clusters agrees, blocks need not be looked for.
        if self.settled or (self.blocks is None and self.sweep_until(4 * PROBE, PATIENCE) and self.verify()):
            return True
        if self.use_gap():
            self.method = "blocks"
            # Behind a true gap cycles shrink the error by the size of the coupling, so that a rate above .7
            # says that the gap was not what made the chain slow.
            settled = self.cycle_until(BEHIND_GAP, max_cycles, give_up=0.7)
        else:
            settled = self.sweep_until(10 * PATIENCE, PATIENCE)
        if settled and self.verify():
            return True
        self.method, self.level.gap = "multilevel", False
        return self.cycle_until(GENERAL, max_cycles, give_up=1.0)

    def solve_densely(self) -> None:
        """Eliminate the few states there are: no iteration, and an error of rounding only."""
        level = self.level
        self.method = "dense"
        if level.size > 1:
            dense = np.zeros((level.size, level.size))
            kernels.scatter_dense(*level.edges, dense)
            self.y, _ = gth_dense(dense)
        self.rate, self.error = 0.0, ROUNDING

    def outcome(self, converged: bool) -> Outcome:
        """What was found; its reason is what settled it: "dense", "sweeps", "blocks" or "multilevel"."""
        level = self.level
        level.tick = go_on  # the residual is measured also where the work must end
        visits = self.y * level.stay
        x, total = level.unsorted(visits), visits.sum()
        converged = converged and bool(np.all(x > 0.0)) and bool(np.isfinite(total))
        return Outcome(
            distribution=x / total,
            method={"dense": "gth", "sweeps": "gauss-seidel"}.get(self.method, "aggregation"),
            reason=self.method,
            converged=converged,
            n_iter=self.sweeps,
            error=float(self.error),
            error_kind="estimate",
            condition=float(self.condition),
            residual=level.imbalance(visits, self.y, np.zeros(level.size)) / float(total),
            stopped=None if converged else self.monitor.stopped,
            history=tuple(self.changes),
        )


def _begin(
    indptr: IntArray,
    indices: NDArray[np.int32],
    data: FloatArray,
    tol: float,
    threads: int | None,
    monitor: Monitor | None,
) -> StationaryRun:
    monitor = monitor or Monitor()
    level = jump_chain(indptr, indices, data, monitor.check, resolve_threads(threads))
    return StationaryRun(level=level, y=np.full(level.size, 1.0 / level.size), monitor=monitor, tol=tol)


def plan(
    indptr: IntArray,
    indices: NDArray[np.int32],
    data: FloatArray,
    *,
    tol: float = 1e-10,
    threads: int | None = None,
    monitor: Monitor | None = None,
) -> Plan:
    """Say which method suits an irreducible chain, from the gaps of its weights and some sweeps.

    ``O(nnz)``: a few passes over the weights, then at most four dozen sweeps, fewer where they are seen to
    be slow. The work is not lost, also where it must end: hand the plan to ``solve_stationary``. Raises
    ``Stopped`` before the first sweep.
    """
    run = _begin(indptr, indices, data, tol, threads, monitor)
    try:
        run.settled = run.sweep_until(4 * PROBE, PATIENCE) and run.verify()
        falls_apart = not run.settled and run.use_gap()
    except Stopped:
        return Plan("ended", np.inf, 1, run)
    if falls_apart:
        return Plan("aggregation", np.inf, run.blocks[1] if run.blocks else 1, run)
    predicted = 0.0 if run.settled else run.foreseen()
    return Plan("sweeps" if predicted <= PATIENCE else "direct", predicted, 1, run)


def solve_stationary(
    indptr: IntArray,
    indices: NDArray[np.int32],
    data: FloatArray,
    *,
    tol: float = 1e-10,
    max_cycles: int = 100,
    threads: int | None = None,
    monitor: Monitor | None = None,
    plan: Plan | None = None,
) -> Outcome:
    """Stationary distribution of an irreducible sparse chain, to entrywise relative error ``tol``.

    Rows of the weights (CSR: int64, int32, float64) are sources, of any positive scale; the caller answers
    for irreducibility. With two threads or more, sweeps over large chains run as two halves side by side. The
    ``monitor`` is asked between kernel calls and notes the error as estimated after every sweep or cycle;
    where it ends the work, and after ``max_cycles`` of each kind, the best distribution so far is returned.
    A ``plan`` for the same chain is gone on from: its ``tol``, ``threads`` and ``monitor`` stand.

    ``converged`` is true only when the estimate of the largest entrywise relative error is within ``tol`` and
    was confirmed by a correction over clusters of states; ``residual`` is ``||x - P'x||_1``, weighted by exit
    probabilities.

    Memory: one transposed copy of the weights, the chains between blocks, and up to 14 vectors.
    """
    run = _begin(indptr, indices, data, tol, threads, monitor) if plan is None else plan.run
    try:
        converged = run.advance(max_cycles)
    except Stopped:
        converged = False
    return run.outcome(converged)


# -- relative values at gamma = 1 ----------------------------------------------------------------------------
#
# (I - P) h = r - g with g = x'r and x'h = 0, given the stationary distribution x. In terms of the chain
# watched when it moves, h_i = d_i + sum_j Q_ij h_j with d_i = stay_i (r_i - g): Gauss-Seidel by rows, with
# corrections constant on blocks, whose equations are weighted by the distribution. Each cycle costs a few
# passes over the weights. The right side is known, so the residual certifies the answer.


@dataclass(frozen=True)
class RelativeValues:
    """Relative values and their certificate.

    ``residual`` is the largest ``|r_i - g - ((I - P) h)_i|`` times the mean stay in ``i``, relative to the
    largest right side so scaled. ``floor`` is the part of it that rounding of ``h`` alone explains; on nearly
    decomposable chains, where ``h`` is as large as the inverse coupling, no vector of doubles does better.
    ``change`` is the last change of ``h`` relative to its largest entry.
    """

    h: FloatArray
    gain: float
    residual: float
    floor: float
    change: float
    converged: bool
    stopped: bool
    cycles: int


@dataclass
class Rung:
    """One chain of the ladder by rows, and how its states fall into the blocks of the next."""

    rows: Level
    y: FloatArray
    label: Indices
    outflow: FloatArray

    def sweep(self, d: FloatArray, h: FloatArray, forward: bool) -> None:
        for first, last in self.rows.ranges if forward else reversed(self.rows.ranges):
            self.rows.tick()
            kernels.row_sweep(*self.rows.edges, d, h, first, last, forward)

    def residual(self, d: FloatArray, h: FloatArray) -> FloatArray:
        out = np.empty(h.size)
        for first, last in self.rows.ranges:
            self.rows.tick()
            kernels.row_residual(*self.rows.edges, d, h, first, last, out)
        return out


@dataclass
class Ladder:
    """Chains between blocks, built once for a known distribution, down to one that is eliminated."""

    rungs: list[Rung]
    front: FloatArray
    exits: FloatArray

    def cycle(self, depth: int, d: FloatArray, h: FloatArray) -> None:
        """Improve ``h`` in place on the rung ``depth``."""
        if depth == len(self.rungs):
            h += dense_bias(self.front, self.exits, d)
            return
        rung = self.rungs[depth]
        for _ in range(SWEEPS):
            rung.sweep(d, h, True)
        # The right side of the chain between blocks: residuals summed with the weights y of their states, by
        # what flows out of the block. Its solution is the constant that each block's values are off by.
        coarse = np.bincount(rung.label, rung.y * rung.residual(d, h), rung.outflow.size) / rung.outflow
        c = np.zeros(coarse.size)
        # The chain after the last rung is eliminated: a second visit would find nothing left to correct.
        for _ in range(1 if depth + 1 == len(self.rungs) else VISITS):
            self.cycle(depth + 1, coarse, c)
        h += c[rung.label]
        for _ in range(SWEEPS):
            rung.sweep(d, h, False)


def _ladder(level: Level, y: FloatArray) -> Ladder:
    rungs: list[Rung] = []
    use_gaps = True
    while level.size > DENSE_LIMIT:
        label, count = gap_blocks(level) if use_gaps else (None, 1)
        if label is None:
            use_gaps = False
            choose_blocks(level, y)
        else:
            level.use_blocks(label, count, gap=True)
        assert level.label is not None
        coarse, outflow = level.coarse(y)
        if not outflow.min() > 0.0:
            raise ValueError(
                "the distribution underflows between blocks of states: relative values cannot be found"
            )
        rungs.append(Rung(level.jumps_back(), y, level.label, outflow))
        level, y = coarse, outflow
    dense = np.zeros((level.size, level.size))
    kernels.scatter_dense(*level.edges, dense)
    front, exits, _ = dense_factor(dense)
    return Ladder(rungs, front, exits)


def relative_values(
    indptr: IntArray,
    indices: NDArray[np.int32],
    data: FloatArray,
    x: FloatArray,
    reward: FloatArray,
    *,
    tol: float = 1e-10,
    max_cycles: int = 200,
    threads: int | None = None,
    monitor: Monitor | None = None,
) -> RelativeValues:
    """Relative values ``h`` of ``reward`` under the chain with stationary distribution ``x``.

    ``tol`` bounds the residual and the last change, both relative (see ``RelativeValues``); a residual that
    rounding of ``h`` alone explains is accepted and reported. Other arguments are those of
    ``solve_stationary``.
    """
    if not (np.all(x > 0.0) and np.isfinite(x.sum())):
        raise ValueError(f"x must be positive, but x[{int(np.argmin(x))}] is {np.min(x)!r}")
    level = jump_chain(indptr, indices, data, (monitor or Monitor()).check, resolve_threads(threads))
    gain = float(np.dot(x, reward))
    x = level.sorted(x)
    d = level.stay * (level.sorted(reward) - gain)
    h = np.zeros(level.size)
    scale = float(np.max(np.abs(d), initial=0.0))
    if scale == 0.0 or level.size == 1:
        return RelativeValues(h, gain, 0.0, 0.0, 0.0, True, False, 0)
    residual, floor, change, cycles, converged, stopped = 1.0, 0.0, np.inf, 0, False, False
    mixer: Extrapolation | None = None
    try:
        ladder = _ladder(level, x / level.stay)
        for cycles in range(1, max_cycles + 1):
            image = h.copy()
            ladder.cycle(0, d, image)
            # h is determined up to a constant, which would drift from cycle to cycle and take digits with it.
            image -= np.dot(x, image)
            largest = float(np.max(np.abs(image)))
            before, change = change, float(np.max(np.abs(image - h))) / largest
            # Rounding of h itself leaves a residual of a few units in the last place of its largest entry.
            floor = 4.0 * EPSILON * largest / scale
            left = ladder.rungs[0].residual(d, image) if ladder.rungs else np.zeros(1)
            residual = float(np.max(np.abs(left))) / scale
            if mixer is None and cycles >= PLAIN and change > WORTH_MIXING * before:
                mixer = Extrapolation(h, depth=8, period=1, power=0.0)
            h, h_next = image, image
            if mixer is not None:
                h_next = image.copy()
                mixer.observe(h_next)
            if not ladder.rungs or (change <= tol and residual <= max(tol, floor)):
                converged = True
                break
            h = h_next
    except Stopped:
        stopped = True
    h = level.unsorted(h - np.dot(x, h))
    return RelativeValues(h, gain, residual, floor, change, converged, stopped, cycles)
