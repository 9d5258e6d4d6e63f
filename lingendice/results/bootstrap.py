"""Bootstrap: weigh the log anew, solve again, and see how far the answer moves.

For exact solutions the weights are those of the Bayesian bootstrap: every episode (block, or transition)
gets a standard exponential weight. No episode vanishes, so that no cell does: each replicate has the
support and the recurrent classes of the log itself, while a resample with replacement would drop a third
of all cells seen once and invent leaks and traps. A ridge removes both: there episodes are drawn with
replacement.

Exponential weights show too little noise where cells are seen a few times: of n visits (n - 1) / (n + 1) of
the variance, of one nothing. How much is missing in all the closed form says; intervals spread the replicates
by as much around their mean.

References
----------
D. B. Rubin (1981). The Bayesian bootstrap. The Annals of Statistics 9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.episodes import Sample, group_sample
from lingendice.data.interrupts import check, interruptible, pending
from lingendice.data.rows import kernel_array, row_of_entry
from lingendice.kernels.parallel import resolve_threads, run_all
from lingendice.model.compose import compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls
from lingendice.solvers.ridge import RidgeSystem
from lingendice.solvers.stationary import stationary_distributions

if TYPE_CHECKING:
    from lingendice.results.solution import Solution

REPLICATES_PER_TASK = 8
"""Fixed, whatever the number of threads."""
MOST_SWEEPS = 4000
ENTRIES_PER_CALL = 20_000_000
"""Entries that one call of the sweeps passes over, about 0.1 s: Ctrl-C is heard in between."""
WARM_TOL = 1e-7
RIDGE_TOL = 1e-5
"""Moved the ends of an interval by less than 1e-4 of its width; drawing other replicates does by 5 %."""


def bootstrap(
    solution: Solution,
    statistic: Callable[[Solution], Floats],
    replicates: int = 1000,
    *,
    seed: int = 0,
    threads: int | None = None,
) -> Floats:
    """``statistic`` of the solution of each replicate, one row per replicate.

    Every replicate composes the operator from the reweighted counts and solves it again, by sweeps that
    start from the distribution of the data; where these do not settle, by the exact solver. The rows depend
    on the seed alone, not on ``threads``.
    """
    draws = _Draws(solution.operator.counts, whole=solution.ridge > 0.0)
    again = _Again(solution)
    seeds = np.random.SeedSequence(seed).spawn(-(-replicates // REPLICATES_PER_TASK))

    def replicate(rng: np.random.Generator) -> Floats:
        check()  # tasks in the queue end at once, too
        solved = again.solve(draws.counts(rng))
        check()  # what was cut short is no replicate
        return statistic(solved)

    def task(number: int) -> list[Floats]:
        rng = np.random.Generator(np.random.SFC64(seeds[number]))
        some = min(REPLICATES_PER_TASK, replicates - number * REPLICATES_PER_TASK)
        return [replicate(rng) for _ in range(some)]

    tasks = [partial(task, number) for number in range(len(seeds))]
    with interruptible() as work:
        work.solution = solution
        work.hold()
        return np.stack([row for rows in run_all(tasks, resolve_threads(threads)) for row in rows])


class _Draws:
    """Reweighted copies of counts."""

    def __init__(self, base: Counts, whole: bool = False) -> None:
        self.base = base
        self.whole = whole
        self.sample: Sample = group_sample(base)
        episodes = base.episodes
        if episodes is None or self.sample.cluster is None:
            return
        size = episodes.entry.size
        self.entry = episodes.entry.astype(np.int64)
        self.cluster = self.sample.cluster.astype(np.int64)
        self.weight = np.ones(size) if episodes.weight is None else episodes.weight.astype(float)
        self.reward = kernel_array(np.zeros(size) if episodes.reward is None else episodes.reward, float)
        visits = np.cumsum(base.cell_count.reshape(base.n_states, -1).sum(axis=1))
        self.visits_up_to = visits / visits[-1]

    def counts(self, rng: np.random.Generator) -> Counts:
        """One replicate."""
        if self.sample.cluster is None:
            return self._replaced(*self._rows(rng))
        n = self.sample.n_clusters
        if self.whole:
            factor = np.bincount(rng.integers(n, size=n), minlength=n).astype(float)
        else:
            factor = rng.standard_exponential(n)
        return self._replaced(*self._clusters(factor), self._first_states(factor, rng))

    def _replaced(self, count: Floats, mean: Floats | None, initial: Floats | None) -> Counts:
        return replace(
            self.base,
            count=count,
            reward_count=None if mean is None else count,
            reward_mean=mean,
            reward_m2=None,
            initial_count=initial,
            episodes=None,
        )

    def _clusters(self, factor: Floats) -> tuple[Floats, Floats | None]:
        """The log with every cluster taken ``factor`` times."""
        from lingendice.kernels.resampled_chains import reweigh

        base = self.base
        count, reward_sum = np.zeros(base.count.size), np.zeros(base.count.size)
        reweigh(self.entry, self.cluster, self.weight, self.reward, factor, count, reward_sum)
        mean = reward_sum / np.where(count > 0, count, 1.0) if base.reward_mean is not None else None
        return count, mean

    def _first_states(self, factor: Floats, rng: np.random.Generator) -> Floats | None:
        base, first = self.base, self.sample.first_state
        if base.initial_count is None:
            return None
        if first is not None:
            weight = self.sample.first_weight
            begun = factor if weight is None else factor * weight
            return np.bincount(first, begun, base.n_states).astype(float)
        # One first state shows no spread, which is taken to be that of the log's states.
        initial = np.zeros(base.n_states)
        initial[np.searchsorted(self.visits_up_to, rng.random(), side="right")] = 1.0
        return initial

    def _rows(self, rng: np.random.Generator) -> tuple[Floats, Floats | None, Floats | None]:
        base = self.base
        drawn: Any = rng.poisson(base.count) if self.whole else rng.standard_gamma(base.count)
        count: Floats = drawn.astype(np.float64)
        mean = base.reward_mean
        if mean is not None and base.reward_count is not None and base.reward_m2 is not None:
            n = np.maximum(base.reward_count.astype(float), 1.0)
            mean = mean + np.sqrt(base.reward_m2) / n * rng.standard_normal(mean.size)
        initial = base.initial_count
        if initial is not None:
            initial = rng.standard_gamma(initial.astype(float))
        return count, mean, initial


class _Again:
    """Solves operators that differ from the first in their numbers alone."""

    def __init__(self, solution: Solution) -> None:
        self.first = solution
        self.choices = solution.operator.choices
        self.start = solution._single()
        self.ratio = np.nan_to_num(solution.tau, nan=1.0)
        # Entries of the counts in the order of their next state; the same for every replicate.
        rows = solution.operator.rows
        self.order = np.argsort(rows.indices, kind="stable")
        column = np.searchsorted(rows.indices[self.order], np.arange(solution.operator.n_states + 1))
        self.column, self.cell = column.astype(np.int64), row_of_entry(rows.indptr)

    def solve(self, counts: Counts) -> Solution:
        """The solution of a replicate."""
        operator = compose(counts, self.choices)
        if self.first.ridge > 0.0:
            return self._ridge(operator)
        distribution, error = self._warm(operator)
        if not error <= WARM_TOL and not pending():
            distribution = self._exact(operator)
        return self.first.moved_to(distribution, source=operator)

    def _ridge(self, operator: EmpiricalOperator) -> Solution:
        """The ridge and the fitted behavior stay those of the data; the ratio is solved for again."""
        system = RidgeSystem(operator, self.first.ridge)
        start = system.q * self.ratio[system.seen]
        fit = system.solve(Controls(tol=RIDGE_TOL), start, rough=True)
        states, cells = operator.over_states_and_cells(fit.row_distribution)
        return self.first.moved_to(states, source=operator, cell_ridge_distribution=cells)

    def _warm(self, operator: EmpiricalOperator) -> tuple[Floats, float]:
        from lingendice.kernels.extrapolation import empty_past
        from lingendice.kernels.resampled_chains import (
            DEPTH,
            ResampledChain,
            begin_warm,
            pull_coefficients,
            warm_rounds,
        )

        rows = operator.rows
        if len(self.first.state_distributions) > 1 or rows.indices.size != self.order.size:
            return self.start, np.inf
        n_actions = operator.n_cells // operator.n_states
        policy = np.ones(operator.n_cells) if operator.policy is None else operator.policy.ravel()
        source, coefficient = np.empty(self.order.size, np.int64), np.empty(self.order.size)
        pull_coefficients(
            self.order, self.cell, n_actions, rows.weight.astype(float), rows.scale, policy, source,
            coefficient,
        )  # fmt: skip
        out = operator.gather(rows.out)
        initial = np.zeros(operator.n_states) if operator.initial is None else operator.initial
        distribution, mass = self.start.copy(), np.empty(rows.n_hubs)
        chain = ResampledChain(
            self.column, source, coefficient, operator.gamma, initial, out, rows.distribution
        )
        stay = begin_warm(distribution, mass, chain)
        past = empty_past(distribution, DEPTH - 1)
        error, slowest, done, left = np.inf, 0.5, False, -(-MOST_SWEEPS // (DEPTH + 1))
        portion = max(1, ENTRIES_PER_CALL // ((DEPTH + 1) * (source.size + distribution.size)))
        while left > 0 and not done and not pending():
            error, slowest, done = warm_rounds(
                distribution, mass, stay, past, chain, WARM_TOL, slowest, min(left, portion)
            )
            left -= portion
        return distribution, error

    def _exact(self, operator: EmpiricalOperator) -> Floats:
        follow = self.choices.initial is not None
        distributions: Any = stationary_distributions(
            operator.chain, operator.gamma, operator.initial, follow, "auto", Controls(tol=self.first.tol)
        )
        if distributions.single is None:
            raise ValueError("a replicate has several stationary distributions although the data have one")
        return distributions.single
