"""Confidence intervals of the value, the distribution, or any function on cells.

The closed form rests on the efficient influence function. For a function f with values ``V`` (the
adjoint ``V = W f + gamma P V``; the bias function at gamma = 1) one logged transition ``x -> s'`` moves
``sum mu f`` by

    psi = tau(x) (r - r(x) + gamma (V(s') - K V(x))) + N d(s) sum_a dW(a|s)/dn(x) Q(s, a) + h_p (V(s) - p V)

divided by N, and one logged first state ``s0`` by ``(1 - gamma + gamma h_0) (V(s0) - mu0 V)`` divided by
the number of episodes. The reward term is that of the value; the second term is there where the effective
policy W itself is estimated (a cloned or a given behavior); h_p and h_0 are the masses that restart
from the data distribution and from the estimated first-state distribution. The value divides all by 1 - leak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_choice, require_whole
from lingendice.data.counts import CellSums, Counts
from lingendice.data.episodes import (
    LONE_START,
    Sample,
    first_state_scores,
    group_sample,
    lone_start_rows,
)
from lingendice.data.rows import row_of_entry, row_sums
from lingendice.model.compose import effective_policy
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.allowance import rounding_of, without_rounding
from lingendice.results.bootstrap import bootstrap
from lingendice.results.targets import Interval, Target, ValueScores, read_target, require_level
from lingendice.solvers.adjoint import adjoint_of
from lingendice.solvers.control import Controls
from lingendice.solvers.ridge import ByMisfit, RidgeSystem

if TYPE_CHECKING:
    from lingendice.results.solution import Solution

COLUMNS_AT_ONCE = 64
"""Functions whose influence is held in memory at one time."""
REPLICATES = 1000
UNIDENTIFIED = "the value is not identified: no stationary mass lies where rewards were logged"


def interval(
    solution: Solution,
    level: float = 0.95,
    of: Any = "value",
    method: str = "influence",
    *,
    entries: Any = None,
    time_limit: float | None = None,
    replicates: int | None = None,
    kind: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
) -> Interval:
    """Confidence interval; see :meth:`lingendice.Solution.interval`."""
    require_choice("method", method, ("influence", "bootstrap"))
    drawing = {"replicates": replicates, "kind": kind, "seed": seed, "threads": threads}
    asked = [name for name, given in drawing.items() if given is not None]
    if method == "influence" and asked:
        raise ValueError(f'{asked[0]}= is for method="bootstrap"; the closed form draws nothing')
    if method == "bootstrap" and time_limit is not None:
        raise ValueError("time_limit= is for the closed form; take fewer replicates=")
    level = require_level(level)
    require_sample_size(solution.operator.counts)
    refuse_smoothing(solution)
    solution._single()
    wanted = read_target(solution, of, entries)
    if time_limit is not None and wanted.name != "stationary":
        raise ValueError(
            'time_limit= ends intervals of="stationary" between entries; leave it out of one interval'
        )
    controls = Controls.read(solution.tol or 1e-10, time_limit=time_limit)
    if wanted.name == "value":
        refuse_partial_rewards(solution.operator)
    if wanted.name == "value" and not _is_identified(solution):
        return Interval(*(math.nan,) * 4, level, method, UNIDENTIFIED)
    if method == "bootstrap":
        draws = require_whole("replicates", REPLICATES if replicates is None else replicates, at_least=20)
        begin = require_whole("seed", seed or 0)
        return _bootstrap_interval(solution, level, wanted, draws, kind or "t", begin, threads)
    if len(solution.state_distributions) > 1:
        raise ValueError(
            "the closed form holds for one recurrent class; several are mixed here by initial=: "
            'use method="bootstrap"'
        )
    influence = solution.influence()
    estimate, error, degrees = standard_errors(influence, wanted, controls)
    low, high = wanted.limits(solution, estimate, error, level, degrees)
    note = influence.note
    if time_limit is not None and (missing := int(np.isnan(error).sum())):
        low, high = (np.where(np.isnan(error), np.nan, end) for end in (low, high))
        note += f"; {missing:,} of {error.size:,} entries were not reached within time_limit={time_limit:g}"
    low, high, estimate, error = map(wanted.shape, (low, high, estimate, error))
    return Interval(low, high, estimate, error, level, method, note)


def _bootstrap_interval(
    solution: Solution, level: float, wanted: Target, replicates: int, kind: str, seed: int,
    threads: int | None,
) -> Interval:  # fmt: skip
    """Interval from replicates: see :meth:`lingendice.Solution.interval`.

    ``kind``: "t" takes the standard deviation of the replicates and Student's quantile, "percentile" the
    quantiles of the replicates, "basic" those reflected at the estimate.
    """
    require_choice("kind", kind, ("t", "percentile", "basic"))
    estimate, influence = wanted.read(solution), solution.influence()
    degrees, stretch = _stretch(influence, wanted, replicates)
    drawn = bootstrap(solution, wanted.read, replicates, seed=seed, threads=threads)
    if stretch is not None:
        mean = drawn.mean(axis=0)
        drawn = mean + stretch * (drawn - mean)
    error = drawn.std(axis=0, ddof=1)
    low, high = np.quantile(drawn, [0.5 - level / 2.0, 0.5 + level / 2.0], axis=0)
    if kind == "basic":
        low, high = 2.0 * estimate - high, 2.0 * estimate - low
    elif kind == "t":
        low, high = wanted.limits(solution, estimate, error, level, degrees)
    if wanted.name == "stationary":
        low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
    drawing = "replicates with replacement" if solution.ridge > 0.0 else "Bayesian replicates"
    if stretch is None:
        drawing += ", which understate the noise of cells seen a few times"
    note = f"{replicates:,} {drawing}, {kind}; {influence.note}"
    low, high, estimate, error = map(wanted.shape, (low, high, estimate, error))
    return Interval(low, high, estimate, error, level, "bootstrap", note)


def _stretch(influence: Influence, wanted: Target, replicates: int) -> tuple[float, Floats | None]:
    """Degrees of freedom, and the standard error in closed form over what replicates show of it.

    None where that would take more adjoint solves than there are replicates. With a ridge clusters are drawn
    with replacement, which shows all of the noise.
    """
    has_ridge, degrees, stretch = influence.solution.ridge > 0.0, influence.sample.degrees, None
    solves = 1 if wanted.entries is None else wanted.entries.size
    if len(influence.solution.state_distributions) == 1 and solves <= replicates:
        _, owed, degrees = standard_errors(influence, wanted)
        if not has_ridge:
            _, shown, _ = standard_errors(influence.as_reweighed(), wanted)
            stretch = np.divide(owed, shown, out=np.ones_like(owed), where=shown > 0.0)
    return degrees, np.ones(1) if has_ridge else stretch


def _is_identified(solution: Solution) -> bool:
    return solution.value is not None and not math.isnan(solution.value)


def require_sample_size(counts: Counts) -> None:
    """Refuse graphs and matrices of probabilities: they do not say how much data is behind them."""
    if not counts.has_sample_size:
        raise ValueError(
            "a graph or a row-stochastic matrix carries no sample size, so it has no standard error; "
            "pass a matrix of counts of transitions (whole numbers), or Counts.from_transitions of the log"
        )


def refuse_smoothing(solution: Solution) -> None:
    """Refuse a prior on rows: it moves the distribution by a bias that no noise of the data shows."""
    smoothing = solution.operator.choices.smoothing
    weight = smoothing[0] if isinstance(smoothing, tuple) else smoothing
    if weight:
        raise ValueError(
            f"smoothing={weight:g} biases the answer, and no standard error shows by how much; leave "
            "smoothing out for an interval"
        )


def refuse_partial_rewards(operator: EmpiricalOperator) -> None:
    """Refuse logged rewards of some transitions only: their noise is not that of all transitions."""
    missing = operator.counts.partly_rewarded
    if operator.logged_reward is not None and missing is not None:
        cell = int(np.argmax(missing))
        raise ValueError(
            f"some transitions from cell {cell} have no logged reward (logs with and without rewards were "
            "merged), and no standard error of the value shows that; merge only logs that have rewards, "
            "or pass reward= to solve"
        )


# -- influence -----------------------------------------------------------------------------------------


class Entries:
    """Counted transitions, or a block of them, and by cell what the influence of each is made of."""

    owes = True
    """Whether cells seen once, which show no spread, are given that of the others."""
    of_clusters = 1.0
    """For the degree of freedom that the mean of all clusters takes."""
    sample: Sample | None = None
    """How transitions group into independent pieces; None for a block of them."""

    def __init__(self, counts: Counts, tau: Floats, total: float) -> None:
        self.counts, self.tau, self.total = counts, tau, total
        self.n = n = counts.cell_count.astype(float)
        self.factor = tau * np.sqrt(np.divide(n, n - 1.0, out=np.zeros_like(n), where=n > 1.0))
        """tau, with the degree of freedom that the mean of a cell takes."""

    @cached_property
    def cell(self) -> NDArray[np.int64]:
        """Of every (cell, next state)."""
        return row_of_entry(self.counts.indptr)

    def noise(self, share: Floats, after: Floats) -> Floats:
        """What comes after every entry less the mean of its cell, times the cell's share; by column."""
        counted = [row_sums(self.counts.indptr, self.counts.count * column) for column in after.T]
        sums, n = np.stack(counted, axis=1), self.n[:, None]
        mean = np.divide(sums, n, out=np.zeros_like(sums), where=n > 0)
        noise: Floats = share[self.cell][:, None] * (after - mean[self.cell])
        return noise


class Influence(Entries):
    """Influence of every logged transition and first state on functionals of one solution.

    Holds what does not depend on the functional. Cost: one adjoint solve per functional, O(nnz + N) per
    functional beyond that, and as many evaluations of the effective policy as there are actions where
    that policy is estimated.
    """

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self.operator: EmpiricalOperator = solution.operator
        counts, distribution = self.operator.counts, solution.cell_distribution
        self.sample: Sample = group_sample(counts)
        total, n = float(counts.total), counts.cell_count
        tau = np.divide(distribution * total, n, out=np.zeros_like(distribution), where=n > 0)
        super().__init__(counts, tau, total)
        n_clusters = self.sample.n_clusters
        self.of_clusters = math.sqrt(n_clusters / (n_clusters - 1.0)) if n_clusters else 1.0

    def as_reweighed(self) -> Influence:
        """The same as exponential weights on clusters show it: too little.

        Of the variance of a mean of n they show n / (n + 1), and of that n - 1 degrees of freedom are left:
        in a cell seen twice a third, in one seen once nothing.
        """
        shown, n_clusters = copy(self), self.sample.n_clusters
        shown.factor = self.tau * np.sqrt(self.n / (self.n + 1.0))
        shown.of_clusters = math.sqrt(n_clusters / (n_clusters + 1.0)) if n_clusters else 1.0
        shown.owes = False
        return shown

    def value_scores(self) -> ValueScores:
        """Rows whose products add up to the variance of the value."""
        refuse_smoothing(self.solution)
        refuse_partial_rewards(self.operator)
        if not _is_identified(self.solution):
            return ValueScores(None, self.sample.degrees, self.note)
        rows = self.value().scores()
        sample = self.sample
        return ValueScores(rows, sample.effective_degrees(rows), self.note, most=sample.degrees)

    @property
    def note(self) -> str:
        """What the variance rests on."""
        lone = self.sample.cluster is not None and self.sample.first_state is None
        return self.sample.note + (LONE_START if lone and self.operator.initial_is_logged else "")

    def value(self) -> Piece:
        """Influence on the value: its own reward noise, and the division by what is identified."""
        solution = self.solution
        values = solution.state_values[:, None]
        piece = self._piece(solution._filled_reward[:, None], values, self.operator.logged_reward)
        if solution.ridge > 0.0:
            system = RidgeSystem(self.operator, solution.ridge)
            piece = self._with_misfit(piece, [system.by_misfit(solution.tau, solution.ridge_adjoint)])
        return replace(piece, scale=1.0 / solution._identified)

    def functions(self, columns: Floats) -> Piece:
        """Influence on sum mu f, for every column f over cells."""
        if self.solution.ridge > 0.0:
            return self._with_ridge(columns)
        return self._piece(columns, self.adjoint(self.operator.gather(columns)), None)

    def _with_ridge(self, columns: Floats) -> Piece:
        """The same from the adjoint of the regularized system, whose solution is not quite stationary."""
        solution, operator = self.solution, self.operator
        system = RidgeSystem(operator, solution.ridge)
        free = solution.tau[system.seen] > 0
        values, by_misfit = [], []
        for column in columns.T:
            # A distribution that loses mass to terminal states is not scaled to 1: its means are plain sums.
            mean = 0.0 if system.loses_mass else float(np.einsum("x,x->", solution.cell_distribution, column))
            by_row = column - mean if system.over_cells else operator.gather(column - mean)
            found = system.adjoint(by_row, free, solution.tol)
            earned = 0.0 if solution.gamma == 1.0 else mean / (1.0 - solution.gamma)
            values.append(found.values + earned)
            by_misfit.append(system.by_misfit(solution.tau, found))
        return self._with_misfit(self._piece(columns, np.stack(values, axis=1), None), by_misfit)

    def _with_misfit(self, piece: Piece, moved: list[ByMisfit]) -> Piece:
        """A piece with what the misfit of a ridge adds to each functional."""
        shifts, starts = zip(*map(self._of_misfit, moved), strict=True)
        first = piece.first if piece.first is None else piece.first + np.hstack(starts)
        return replace(piece, shift=piece.shift + np.hstack(shifts), first=first)

    def _of_misfit(self, moved: ByMisfit) -> tuple[Floats, Floats | None]:
        """Influence of every (cell, next state), and of a first state, by the misfit of a ridge."""
        operator, p = self.operator, self.counts.data_distribution
        mass = moved.mass if moved.mass.size == operator.n_cells else operator.spread(moved.mass)
        by_data = np.repeat(moved.by_data, operator.n_cells // moved.by_data.size)
        values = moved.values[:, None]
        after = np.vstack([values, self._value_of_ending(values)])[self.counts.indices]
        share = np.divide(mass, p, out=np.zeros_like(mass), where=p > 0)
        noise = self.noise(self.solution.gamma * self._observed_share() * share, after)
        fallen = self._fallen(values, mass)
        shift = (by_data - np.einsum("x,x->", p, by_data))[:, None] + self._restart_shift(fallen)
        if operator.ratio == "state":
            shift = shift + self._policy_shift(np.zeros((operator.n_cells, 1)), values, moved.mass)
        return noise + shift[self.cell], self._begun(moved.begun[:, None], fallen)

    def adjoint(self, columns: Floats) -> Floats:
        """V of every column over states."""
        return self._solver(columns)

    @cached_property
    def _solver(self) -> Callable[[Floats], Floats]:
        solution = self.solution
        return adjoint_of(
            self.operator.chain, solution.gamma, solution._single(), solution.tol, solution.threads
        )

    def _piece(self, function: Floats, values: Floats, reward: Floats | None) -> Piece:
        """``function`` over cells and ``values`` over states, one column per functional."""
        after = np.vstack([values, self._value_of_ending(values)[None, :]])[self.counts.indices]
        noise = self.noise(self.solution.gamma * self._observed_share(), after)
        first, none = self._first_state(values), rounding_of(function, values)
        return Piece(self, noise, self._shift(function, values)[self.cell], first, reward, rounding=none)

    def _shift(self, function: Floats, values: Floats) -> Floats:
        """What does not average out within a cell."""
        return self._policy_shift(function, values) + self._restart_shift(self._fallen(values))

    def _observed_share(self) -> Floats:
        """Weight of a row's own data beside a prior: n / (n + c).

        A row that always ends has the same value after every transition, so its share does not matter.
        """
        on = self.n - self.counts.terminal_count
        return np.divide(self.operator.rows.keep * self.n, on, out=np.zeros_like(self.n), where=on > 0)

    def _value_of_ending(self, values: Floats) -> Floats:
        """Value after a terminal transition: nothing, or a fresh start."""
        operator = self.operator
        if not self.counts.has_terminals or operator.ended.any() or operator.initial is None:
            return np.zeros(values.shape[1])
        return operator.initial @ values

    def _fallen(self, values: Floats, mass: Floats | None = None) -> dict[str, Floats]:
        """What the mass that falls back to a distribution is worth by the state it comes to; by its name."""
        gamma, mass = self.solution.gamma, self.solution.cell_distribution if mass is None else mass
        fallen = {source: np.einsum("x,x->", mass, out) for source, out in self.operator.falling.items()}
        return {source: gamma * float(share) * values for source, share in fallen.items()}

    def _restart_shift(self, fallen: dict[str, Floats]) -> Floats:
        """Rows that restart from the data distribution move with it."""
        operator = self.operator
        if "data" not in fallen:
            return np.zeros((operator.n_cells, 1))
        data = self.counts.data_distribution.reshape(operator.n_states, -1).sum(axis=1)
        worth = fallen["data"]
        return np.repeat(worth - data @ worth, operator.n_cells // operator.n_states, axis=0)

    def _first_state(self, values: Floats) -> Floats | None:
        """Influence of a first state in each state; None where the initial distribution is not estimated."""
        return self._begun((1.0 - self.solution.gamma) * values, self._fallen(values))

    def _begun(self, values: Floats, fallen: dict[str, Floats]) -> Floats | None:
        """The same for what beginning in a state is worth, and what falling back to it is."""
        initial = self.operator.initial
        if initial is None or not self.operator.initial_is_logged:
            return None
        worth = values + fallen["initial"] if "initial" in fallen else values
        started: Floats = worth - initial @ worth
        return started

    def _policy_shift(self, function: Floats, values: Floats, mass: Floats | None = None) -> Floats:
        """N d(s) sum_a dW(a|s)/dn(x) Q(s, a), by central differences of the effective policy; d is the
        ``mass`` over states, by default the distribution.

        The effective policy of a state depends on that state's action counts alone, so that all
        states are differenced at once: two evaluations per action.
        """
        operator, asked = self.operator, self.operator.choices
        shape = (operator.n_cells, values.shape[1])
        # No count moves the target itself, or what of it was logged.
        follows = operator.ratio == "state_action" and asked.policy is not None and asked.unseen != "mean"
        if operator.policy is None or follows:
            return np.zeros(shape)
        n_states, n_actions = operator.policy.shape
        q = self._q(function, values)
        seen = self.n.reshape(n_states, n_actions)
        distribution = self.solution._single() if mass is None else mass
        shift = np.zeros((n_states, n_actions, values.shape[1]))
        for a in range(n_actions):
            sides: list[Any] = []
            for step in (_STEP, -_STEP):
                raised = np.where(np.arange(n_actions) == a, 1.0 + step, 1.0)
                sums = CellSums.of(self.counts, (seen * raised).ravel(), None, None)
                sides.append(effective_policy(sums, asked)[0])
            slope = (sides[0] - sides[1]) / (2.0 * _STEP * np.where(seen[:, a] > 0, seen[:, a], 1.0))[:, None]
            shift[:, a] = np.einsum("s,sb,sbk->sk", self.total * distribution, slope, q)
        return np.where(seen[:, :, None] > 0, shift, 0.0).reshape(shape)

    def _q(self, function: Floats, values: Floats) -> Floats:
        """Q over states, actions and functionals."""
        assert self.operator.policy is not None
        onward = np.stack([self.operator.expected_next(column) for column in values.T], axis=1)
        q: Floats = function + self.solution.gamma * onward
        return q.reshape(*self.operator.policy.shape, -1)


_STEP = 1e-4
"""Relative step of the differences of the effective policy."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Influence on a few functionals, in the parts that the variance treats apart."""

    parent: Entries
    noise: Floats
    """gamma (V(s') - K V(x)) of every (cell, next state), one column per functional."""
    shift: Floats
    """What does not average out within a cell, of every (cell, next state)."""
    first: Floats | None
    """Of a first state in each state."""
    reward: Floats | None
    """Mean reward of each cell where the rewards are noisy, for the value alone."""
    scale: float = 1.0
    """Of all influences."""
    rounding: Floats | float = 0.0
    """What noise of the functionals is no more than rounding, by column."""

    def scores(self) -> Floats:
        """Rows whose products add up to the covariance of the functionals, one column per functional."""
        # Influences that cancel leave rounding, whose sign is chance: nothing is correlated with it.
        rows = without_rounding(self.rows(), self.rounding)
        variance, owed = (rows**2).sum(axis=0), self._once_seen()
        owed = np.where(owed <= self.rounding**2, 0.0, owed)
        # What is owed for cells seen once is taken to be correlated as the rest is.
        rows = rows * np.sqrt(1.0 + np.divide(owed, variance, out=np.zeros_like(owed), where=variance > 0))
        alone = np.where(variance > 0, 0.0, np.sqrt(owed))
        return self.scale * np.vstack([rows, alone])

    def rows(self) -> Floats:
        """The same before anything is owed: what clusters add, or what every transition adds."""
        sample = self.parent.sample
        if sample is not None and sample.cluster is not None:
            return self._rows_of_clusters(sample, sample.cluster)
        return np.vstack([self.rows_of_counts(), *self.rows_of_starts()])

    def _rows_of_clusters(self, sample: Sample, cluster: NDArray[np.int64]) -> Floats:
        """What each cluster adds to each functional."""
        from scipy.sparse import csr_array

        parent, episodes, n = self.parent, self.parent.counts.episodes, sample.n_clusters
        assert episodes is not None
        level = parent.factor[parent.cell][:, None] * self.noise + self.shift
        weight = np.ones(episodes.entry.size) if episodes.weight is None else episodes.weight
        counted = csr_array((weight, (cluster, episodes.entry)), shape=(n, level.shape[0]))
        rows: Floats = counted @ level / parent.total
        if self.reward is not None and episodes.reward is not None:
            cell = parent.cell[episodes.entry]
            known = np.where(np.isfinite(self.reward), self.reward, 0.0)
            lone = weight * parent.factor[cell] * (episodes.reward - known[cell])
            rows += np.bincount(cluster, weights=lone, minlength=n)[:, None] / parent.total
        if self.first is not None and sample.first_state is not None:
            rows += first_state_scores(sample, self.first)
        rows = parent.of_clusters * rows
        if self.first is None or sample.first_state is not None:
            return rows
        return np.vstack([rows, lone_start_rows(self.first, parent.counts)])

    def rows_of_counts(self) -> Floats:
        """Every transition on its own, from the counts and the spread of rewards alone."""
        parent, counts = self.parent, self.parent.counts
        factor = parent.factor[parent.cell]
        level = factor[:, None] * self._noise_with_rewards() + self.shift
        rows = level * np.sqrt(counts.count)[:, None] / parent.total
        # Rewards that have no noise get rows of zeros: rows of several values on one log must match.
        noisy = np.zeros_like(factor)
        if self.reward is not None and counts.reward_m2 is not None:
            noisy = factor * np.sqrt(counts.reward_m2) / parent.total
        return np.vstack([rows, np.broadcast_to(noisy[:, None], rows.shape)])

    def rows_of_starts(self) -> list[Floats]:
        """Every first state on its own; nothing where the initial distribution is not estimated."""
        logged = self.parent.counts.initial_count
        if self.first is None or logged is None:
            return []
        starts = np.asarray(logged, dtype=float)
        return [self.first * np.sqrt(starts)[:, None] / starts.sum()]

    def _noise_with_rewards(self) -> Floats:
        counts = self.parent.counts
        if self.reward is None or counts.reward_mean is None:
            return self.noise
        centered = counts.reward_mean - self.reward[self.parent.cell]
        return self.noise + np.where(np.isfinite(centered), centered, 0.0)[:, None]

    def _once_seen(self) -> Floats:
        """Variance owed to cells seen once, which show no spread: they get the spread of the others."""
        parent = self.parent
        if not parent.owes:
            return np.zeros(self.shift.shape[1])
        once, more = (parent.n > 0) & (parent.n <= 1.0), parent.n > 1.0
        owed = float((parent.n * parent.tau**2)[once].sum()) / parent.total**2
        spare = float((parent.n - 1.0)[more].sum())
        return (owed / spare if spare > 0.0 else 0.0) * self.pooled()

    def pooled(self) -> Floats:
        """Squared noise of all transitions, whatever their weight in the functional."""
        counts, level = self.parent.counts, self._noise_with_rewards()
        pooled: Floats = np.einsum("ek,ek,e->k", level, level, counts.count.astype(float))
        if self.reward is not None and counts.reward_m2 is not None:
            pooled = pooled + float(counts.reward_m2.sum())
        return pooled


def standard_errors(
    influence: Influence, wanted: Target, controls: Controls | None = None
) -> tuple[Floats, Floats, float]:
    """Estimates and standard errors of the functionals, and degrees of freedom.

    The distribution's entries take one adjoint solve each; up to 2,000 states they share one dense
    factorization, 2/3 n^3 operations and n^2 more per entry. Those that a time limit leaves out are nan.
    """
    controls = controls or Controls()
    solution = influence.solution
    estimate = wanted.read(solution)
    if wanted.entries is None:
        function = wanted.function
        one = influence.value() if function is None else influence.functions(function[:, None])
        rows = one.scores()
        return estimate, np.sqrt((rows**2).sum(axis=0)), influence.sample.effective_degrees(rows)
    errors = np.full(wanted.entries.size, np.nan)
    # Where time is limited, one by one: an entry may take seconds.
    at_once = COLUMNS_AT_ONCE if controls.time_limit is None else 1
    for begin in range(0, wanted.entries.size, at_once):
        if controls.out_of_time():
            break
        some = wanted.entries[begin : begin + at_once]
        rows = influence.functions(_columns(solution, some)).scores()
        errors[begin : begin + some.size] = np.sqrt((rows**2).sum(axis=0))
    return estimate, errors, influence.sample.degrees


def _columns(solution: Solution, entries: NDArray[np.int64]) -> Floats:
    """The functions on cells whose means are the given entries of the shown distribution."""
    n_cells = solution.operator.n_cells
    per_entry = n_cells // solution.stationary.size
    return (np.arange(n_cells)[:, None] // per_entry == entries).astype(float)
