"""The Bayesian bootstrap on the device: all of a replicate but its value stays there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_whole
from lingendice.data.episodes import group_sample
from lingendice.data.interrupts import check, interruptible
from lingendice.gpu.catalog import c_type
from lingendice.gpu.chain import Settings, chain_of_operator, required_bytes
from lingendice.gpu.device import current_device, for_each, require_bytes
from lingendice.gpu.equation import composed_rates, index_type, row_totals
from lingendice.gpu.power_steps import iterate_distribution
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, run

if TYPE_CHECKING:
    from lingendice.results.solution import Solution

REPLICATE_TOL = {"float64": 1e-7, "float32": 1e-4}
"""Error of the distribution of a replicate, by how it is stored; errors of replicates are far larger."""


def bootstrap(
    solution: Solution, replicates: int = 1000, *, seed: int = 0, storage: str = "float64"
) -> Floats:
    """Values of Bayesian bootstrap replicates, one number each.

    Parameters
    ----------
    solution
        An exact solution over counts on the host (``ridge=0``), with rewards.
    replicates, seed
        How many, and what they depend on; nothing else does.
    storage
        "float64", or "float32" for the log, counts, rates and distributions on the device; sums are double.

    Notes
    -----
    Every episode (block, or entry of the counts) gets a random weight of mean one; a replicate costs one pass
    over the log and a solve that starts from the distribution of the data, to an error of 1e-7 (1e-4 in
    float32; where that is out of reach, an error says so). What the host's bootstrap redraws besides (the
    initial distribution, cloned policies, priors, ends) is refused here by name.

    Examples
    --------
    >>> import lingendice as lg                                                  # doctest: +SKIP
    >>> solution = lg.solve(counts, policy=pi, ridge=0, clone=0, device="cuda")     # doctest: +SKIP
    >>> values = lg.gpu.bootstrap(solution)                                         # doctest: +SKIP
    """
    n_drawn, entropy = require_whole("replicates", replicates, at_least=1), require_whole("seed", seed)
    operator = solution.operator
    _require_plain(solution, operator)
    replicator = _Replicator(solution, operator, Settings.read({"storage": storage}))
    seeds = np.random.SeedSequence(entropy).generate_state(n_drawn, np.uint64)
    with interruptible() as work:
        work.solution = solution
        return np.array([replicator.value(number) for number in seeds])


def _require_plain(solution: Solution, operator: EmpiricalOperator) -> None:
    counts, choices = operator.counts, operator.choices
    reasons = {
        "a ridge": solution.ridge > 0.0,
        "a saddle point (features, bound, divergence)": solution.cell_ridge_distribution is not None,
        "a horizon, a baseline or the default with a policy": not solution.certified,
        "several distributions": len(solution.state_distributions) > 1,
        "no rewards": operator.reward is None,
        "rewards logged in part": choices.reward is None
        and counts.unrewarded is not None
        and bool(counts.unrewarded.any()),
        "smoothing": bool(choices.smoothing),
        "transitions into terminal states": counts.has_terminals,
        "a graph or probabilities, which are no sample": not counts.has_sample_size,
        "a cloned behavior": counts.n_actions is not None
        and (choices.policy is None or operator.ratio == "state" or choices.unseen == "mean"),
        "an initial distribution taken from the log": choices.initial is None
        and counts.initial_count is not None
        and operator.gamma < 1.0,
        "a restart distribution taken from the log": bool(operator.rows.distribution.size)
        and choices.restart is None
        and (operator.gamma == 1.0 or choices.initial is None),
    }
    for name, present in reasons.items():
        if present:
            raise ValueError(
                f"the bootstrap on the device does not serve {name}; use sol.interval(), there also with "
                'method="bootstrap"'
            )


def bootstrap_bytes(n_entries: int, n_cells: int, n_log: int, storage: str) -> int:
    """Device memory of replicates beside that of a solve."""
    value, place = np.dtype(storage).itemsize, index_type(n_log).itemsize
    a_transition = max(4 * 8 + place, 4 * value + 2 * place) + 2 * value + place  # its sort, or its weights
    return (36 + 8 * value) * n_entries + 120 * n_cells + a_transition * n_log


class _Replicator:
    """Draws counts on the device and solves for their distribution; the matrix is built once."""

    def __init__(self, solution: Solution, operator: EmpiricalOperator, settings: Settings) -> None:
        self.device = device = current_device()
        self.operator, self.tol = operator, REPLICATE_TOL[settings.storage]
        self.storage = np.dtype(settings.storage)
        self.up = partial(device.upload, dtype=self.storage)
        self.value_type = (c_type(self.storage),)
        counts = operator.counts
        self.sample = group_sample(counts)
        n_log = 0 if counts.episodes is None else counts.episodes.entry.size
        needed = required_bytes(operator, counts.count.size, settings.storage)
        needed += bootstrap_bytes(counts.count.size, counts.n_cells, n_log, settings.storage)
        require_bytes(device, needed, '; use sol.interval(method="bootstrap")')
        chain = chain_of_operator(device, operator, settings, self.tol)
        self.equation = chain.push
        up = device.upload
        self.indptr = up(operator.rows.indptr)
        _, columns, _ = chain.columns
        self.order = device.sort_order(columns)
        self.n_actions = operator.n_cells // operator.n_states
        policy = np.ones(operator.n_cells) if operator.policy is None else operator.policy.ravel()
        self.policy, self.keep = up(policy), up(operator.rows.keep)
        self.start = self.up(solution._single())
        self.count = self.up(counts.count)
        self.fixed_reward = operator.choices.reward is not None
        self.reward = up(operator.reward, float)
        if not self.fixed_reward:
            self.mean, self.m2 = (
                self.up(np.zeros(counts.count.size) if part is None else part)
                for part in (counts.reward_mean, counts.reward_m2)
            )
        self._by_entry()

    def _by_entry(self) -> None:
        """The log in the order of the entries it was counted into, where it was kept."""
        counts, device = self.operator.counts, self.device
        if self.sample.cluster is None or counts.episodes is None:
            return
        episodes = counts.episodes
        size = episodes.entry.size
        entry: NDArray[np.int64] = episodes.entry.astype(np.int64)
        up, place = device.upload, index_type(size + 1)
        order = device.sort_order(up(entry))
        bounds = np.concatenate([[0], np.cumsum(np.bincount(entry, minlength=counts.count.size))])
        self.entry_first = up(bounds, place)
        self.cluster = up(self.sample.cluster, place)[order]
        self.weight = self.up(np.ones(size) if episodes.weight is None else episodes.weight)[order]
        self.log_reward = self.up(np.zeros(size) if episodes.reward is None else episodes.reward)[order]

    def draw(self, seed: np.uint64) -> tuple[Any, Any]:
        """Counts and sums of rewards of one replicate, by entry."""
        device, size, value = self.device, int(self.count.size), self.value_type
        if self.sample.cluster is None:
            drawn, earned = (device.empty(size, self.storage) for _ in range(2))
            for_each(device, "draw_counts", value, size, (np.int64(size), seed, self.count, drawn))
            if self.fixed_reward:
                return drawn, drawn
            again = np.uint64((int(seed) + 0x632BE59BD9B4E019) % 2**64)
            arguments = (np.int64(size), again, self.mean, self.m2, self.count, earned)
            for_each(device, "draw_means", value, size, arguments)
            return drawn, drawn * earned
        n_clusters = self.sample.n_clusters
        factor = device.empty(n_clusters, self.storage)
        for_each(device, "draw_factors", value, n_clusters, (np.int64(n_clusters), seed, factor))
        weight = self.weight * factor[self.cluster]
        sums = (row_totals(device, self.entry_first, part) for part in (weight, weight * self.log_reward))
        drawn, earned = (part.astype(self.storage, copy=False) for part in sums)
        return drawn, earned

    def distribution(self, drawn: Any) -> tuple[Any, Any]:
        """Distribution over states of the chain with these counts, and the total of every cell."""
        device, operator = self.device, self.operator
        total = row_totals(device, self.indptr, drawn)
        scale = self.keep / np.where(total > 0.0, total, 1.0)
        _, rates = composed_rates(
            device, self.indptr, drawn, scale, self.policy, self.n_actions, self.storage
        )
        (chunk,) = self.equation.matrix.chunks
        chunk.rates[:] = rates[self.order]
        outcome = run(iterate_distribution(self.equation, self.start, 1), Controls(tol=self.tol))
        check()
        if not outcome.converged:
            instead = 'sol.interval(method="bootstrap")'
            if self.storage == np.float32:
                instead = f'storage="float64", or {instead}'
            raise ValueError(
                f"a replicate did not settle (error {outcome.error:.1e} at gamma={operator.gamma:g}, "
                f"{self.storage.name}); use {instead}"
            )
        return outcome.distribution, total

    def value(self, seed: np.uint64) -> float:
        """Value of one replicate."""
        device = self.device
        drawn, rewards = self.draw(seed)
        distribution, total = self.distribution(drawn)
        reward = self.reward
        if not self.fixed_reward:
            by_cell = row_totals(device, self.indptr, rewards)
            reward = np.where(total > 0.0, by_cell / np.where(total > 0.0, total, 1.0), np.nan)
        known = (total > 0.0) & (reward == reward)
        mass = (distribution.reshape((-1, 1)) * self.policy.reshape((-1, self.n_actions))).reshape(-1)
        identified = float(device.download((mass * known).sum()))
        earned = float(device.download(np.where(known, mass * reward, 0.0).sum()))
        return earned / identified if identified > 0.0 else np.nan
