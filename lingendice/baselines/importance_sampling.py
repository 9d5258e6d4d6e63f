"""What episodes earned: on average, and weighed by importance over whole episodes or over their prefixes."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.baselines.dice import target_operator
from lingendice.continuous.clone import clone_log_ratio, target_log_density
from lingendice.data.by_label import read_policy_table
from lingendice.data.checks import (
    Floats,
    numeric_array,
    require_choice,
    require_finite,
    require_gamma,
    require_horizon,
    require_length,
    require_number,
    require_policy,
)
from lingendice.data.counts import Counts
from lingendice.data.episodes import find_episodes
from lingendice.data.rows import row_of_entry
from lingendice.data.transitions import Transitions
from lingendice.model.operator import average_reward
from lingendice.results.build import baseline_solution
from lingendice.results.calls import recorded
from lingendice.results.targets import Estimate
from lingendice.results.variants import BaselineSolution
from lingendice.solvers.horizon import total_weight


def clone_behavior(counts: Counts, strength: float = 0.0, prior: Any = None) -> Floats:
    """Maximum-likelihood policy n(s, a) / n(s), or its mean under a Dirichlet prior.

    With ``strength`` c > 0, (n(s, a) + c prior(a|s)) / (n(s) + c). States never left take the prior
    (uniform by default). O(n_cells). Does not depend on gamma.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> lg.baselines.clone_behavior(counts).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    if counts.n_actions is None:
        raise ValueError("a behavior is a distribution over actions; pass action= to Counts.from_transitions")
    shape = (counts.n_states, counts.n_actions)
    believed = np.full(shape, 1.0 / shape[1]) if prior is None else require_policy("prior", prior, *shape)
    seen = counts.cell_count.reshape(shape).astype(float) + require_number("strength", strength) * believed
    visits = seen.sum(axis=1, keepdims=True)
    return np.where(visits > 0, seen / np.where(visits > 0, visits, 1.0), believed)


class Paths(NamedTuple):
    """Transitions sorted by episode, then time."""

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    next_state: NDArray[np.int64]
    terminal: NDArray[np.bool_]
    reward: Floats
    episode: NDArray[np.int64]
    step: NDArray[np.int64]
    """Time since the start of the episode, from 0."""
    n_episodes: int

    @property
    def cell(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Index into tables of states by actions."""
        return self.state, self.action

    @property
    def last(self) -> NDArray[np.int64]:
        """The row of every episode's last step."""
        return np.append(np.flatnonzero(self.step == 0)[1:], self.step.size) - 1

    @classmethod
    def sort(
        cls, state: Any, action: Any, next_state: Any, terminal: Any, reward: Floats,
        episode: NDArray[np.int64], n_episodes: int,
    ) -> Paths:  # fmt: skip
        """Transitions as they were logged, of episodes 0..n-1."""
        order = np.argsort(episode, kind="stable")
        in_order = episode[order]
        step = np.arange(order.size) - np.searchsorted(in_order, np.arange(n_episodes))[in_order]
        columns = [column[order] for column in (state, action, next_state, terminal, reward)]
        return cls._make([*columns, in_order, step, n_episodes])

    def counted(self, method: str, gamma: float, horizon: int | None) -> Paths:
        """The first steps of every episode; all of them without a horizon, where there is such a mean."""
        if horizon is not None:
            kept = self.step < horizon
            return Paths._make([*(np.asarray(part)[kept] for part in self[:-1]), self.n_episodes])
        if gamma == 1.0 and self.terminal.any():
            raise ValueError(
                f"{method} at gamma=1 averages over the logged steps, and here episodes end in terminal "
                "states; pass horizon=, take gamma < 1, or solve(...), which restarts them"
            )
        return self

    def distribution(self, share: Floats, counts: Counts) -> Floats:
        """Shares of logged steps, added up by cell."""
        cell = self.state * (counts.n_actions or 1) + self.action
        return _sums(cell, share, counts.n_cells)


def read_paths(counts: Counts, method: str) -> Paths:
    """The kept episodes of a log, or an error that says what is missing."""
    episodes = counts.episodes
    if episodes is None:
        raise ValueError(f"{method} needs whole episodes; build the counts with keep_episodes=True")
    if counts.n_actions is None:
        raise ValueError(f"{method} needs actions; pass action= to Counts.from_transitions")
    if episodes.reward is None:
        raise ValueError(f"{method} needs logged rewards; pass reward= to Counts.from_transitions")
    if episodes.weight is not None:
        raise ValueError(f"{method} takes each transition once; leave weight= out")
    state, action = np.divmod(row_of_entry(counts.indptr)[episodes.entry], counts.n_actions)
    following = counts.indices[episodes.entry].astype(np.int64)
    ends, n_episodes = following == counts.n_states, episodes.first_state.size
    return Paths.sort(state, action, following, ends, episodes.reward, episodes.episode, n_episodes)


def _read_rows(transitions: Transitions) -> Paths:
    """The episodes of a log, with every row as a cell of its own; flagged rows end them, too."""
    if transitions.episode is None or transitions.reward is None:
        raise ValueError("importance sampling needs whole episodes and rewards; pass episode= and reward=")
    n, ends = len(transitions), transitions.terminal
    runs = find_episodes(transitions.episode, ends, transitions.truncated, n)
    assert runs is not None
    rows, ends = np.arange(n), np.zeros(n, dtype=bool) if ends is None else ends
    return Paths.sort(rows, rows, rows, ends, transitions.reward, runs.number, runs.start.size)


def log_ratios(counts: Counts, paths: Paths, policy: Any, behavior: Any) -> NDArray[np.longdouble]:
    """log(target / behavior) of every logged action; the behavior is cloned where it is not given."""
    shape = (counts.n_states, counts.n_actions or 1)
    target = require_policy("policy", read_policy_table("policy", policy, counts), *shape)
    logged = clone_behavior(counts)
    if behavior is not None:
        logged = require_policy("behavior", read_policy_table("behavior", behavior, counts), *shape)
    chance = logged[paths.cell]
    if not (chance > 0).all():
        row = int(np.argmin(chance))
        raise ValueError(
            f"behavior[{paths.state[row]}, {paths.action[row]}] is 0 but that action was logged; "
            "leave behavior out to clone it from the log"
        )
    with np.errstate(divide="ignore"):
        return np.log((target[paths.cell] / chance).astype(np.longdouble))


MOST_LOG_PRODUCT = 690.0
"""Products beyond e^690 are refused: sums of them would overflow."""


def running_logs(paths: Paths, log_ratio: NDArray[Any]) -> NDArray[np.longdouble]:
    """Log of the product of the ratios of an episode up to and including each step.

    Products over a thousand steps overflow, or underflow all alike. Extended precision, where there is one,
    keeps the digits of their ratios to one another.
    """
    logs = log_ratio.astype(np.longdouble)
    begin = np.flatnonzero(paths.step == 0)
    for first, last in zip(begin, np.append(begin[1:], logs.size), strict=True):
        logs[first:last] = np.cumsum(logs[first:last])
    return logs


def products(logs: NDArray[Any], level: Any = 0.0) -> Floats:
    """What logs of products stand for, divided by e^level; a level of -inf is that of products of 0."""
    scaled = (logs - np.where(np.isfinite(level), level, 0.0)).astype(np.float64)
    if scaled.max(initial=0.0) > MOST_LOG_PRODUCT:
        raise ValueError(
            f"a product of target / behavior over an episode is e^{scaled.max():.0f}, beyond float64; take "
            "the weighted form (step_wise, or weighted=True), or count fewer steps by horizon="
        )
    return np.exp(scaled)


def largest_by_step(paths: Paths, logs: NDArray[np.longdouble]) -> NDArray[np.longdouble]:
    """The largest log of any episode that reaches each step."""
    largest = np.full(int(paths.step.max()) + 1, -np.inf, np.longdouble)
    np.maximum.at(largest, paths.step, logs)
    return largest


def standard_error(influence: Floats) -> float | None:
    """Root of the squared influences of episodes; a single one shows no spread, so there is none to give."""
    n, largest = influence.size, float(np.abs(influence).max(initial=0.0))
    if n < 2:
        return None
    if not largest > 0.0:
        return largest
    return largest * float(np.sqrt(((influence / largest) ** 2).sum() * n / (n - 1)))


def effective_size(weights: Floats) -> float:
    """(sum w)^2 / sum w^2."""
    largest = float(weights.max(initial=0.0))
    if not largest > 0.0:
        return 0.0
    relative = weights / largest
    return float(relative.sum()) ** 2 / float(relative @ relative)


def largest_share(weights: Floats) -> float | None:
    """Share of the largest weight; None where none is positive."""
    total = float(weights.sum())
    return float(weights.max()) / total if total > 0.0 else None


@recorded("baselines.naive_average")
def naive_average(counts: Counts, gamma: float = 1.0) -> BaselineSolution:
    """Average reward of the log, the target ignored: the behavior's value, not the target's.

    gamma = 1: mean reward, from counts alone. gamma < 1: sum gamma^t r / sum gamma^t over kept
    episodes (an episode that ended in a terminal state earns 0 from then on). O(N).

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> round(lg.baselines.naive_average(counts).value, 2)
    0.75
    """
    started = time.perf_counter()
    gamma = require_gamma(gamma)
    note = "the behavior's own reward; the target plays no part"
    if gamma == 1.0:
        if counts.reward is None:
            raise ValueError("naive_average needs logged rewards; pass reward= to Counts.from_transitions")
        distribution = counts.data_distribution
        average = average_reward(distribution, counts.reward)
        value = np.nan if average is None else average
        # Where first states are unknown, ended episodes restart as the log's steps do.
        starts = counts.initial_count is not None and counts.initial_count.any()
        initial = None if starts else distribution.reshape(counts.n_states, -1).sum(axis=1)
        operator = target_operator(counts, gamma, initial=initial)
        found = Estimate(value, gamma, "naive average", note, effective_sample_size=counts.total)
        return baseline_solution(operator, distribution, found, started)
    paths = read_paths(counts, "naive_average at gamma < 1")
    logged = _Weights(gamma, None, paths, np.zeros(paths.step.size, np.longdouble))
    value, influence, share = logged.by_trajectory(True)
    error, size = standard_error(influence), effective_size(share)
    found = Estimate(value, gamma, "naive average", note, error, influence.size - 1, size)
    distribution = paths.distribution(share, counts)
    return baseline_solution(target_operator(counts, gamma), distribution, found, started)


@recorded("baselines.trajectory_wise")
def trajectory_wise(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    behavior: Any = None,
    weighted: bool = True,
    horizon: int | None = None,
) -> BaselineSolution:
    """Weigh each episode by the product of target / behavior over all its steps.

    With W_e that product, G_e = sum gamma^t r and Z_e = sum gamma^t over an episode (one that ended goes on
    at zero reward: 1 / (1 - gamma)), the value is sum W G / sum W Z (``weighted``, biased but bounded) or
    sum W G / sum Z. ``horizon`` counts the first H steps only. O(N). The variance grows exponentially with
    length.

    gamma = 1 without a horizon: the average over the logged steps, biased toward the start of episodes;
    refused where episodes end in terminal states. The value is nan where no episode has a positive weight.

    References
    ----------
    D. Precup, R. S. Sutton, S. Singh (2000). Eligibility traces for off-policy policy evaluation. ICML.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.trajectory_wise(counts, 0.9, policy=policy).value, 2)
    0.49
    """
    return _weigh("trajectory", counts, gamma, policy, behavior, weighted, horizon)


@recorded("baselines.step_wise")
def step_wise(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    behavior: Any = None,
    weighted: bool = True,
    horizon: int | None = None,
) -> BaselineSolution:
    """Weigh each reward by the product of target / behavior up to its own step.

    Step t has the mean A_t = sum_e w r / sum_e w (``weighted``) or sum_e w r / E over the episodes that
    reach it; one that ended in a terminal state goes on with its last weight and reward 0. The value is
    sum gamma^t A_t over the T logged steps, divided by sum_{t<T} gamma^t + e sum_{t>=T} gamma^t, with e the
    share of the weight at step T that has ended: what was cut off is left out, and so are steps that no
    positive weight reaches (``weighted``); what ended counts. So the value is (1 - gamma) times the
    discounted return where all episodes end. ``horizon`` counts the first H steps only. nan where no episode
    has a positive weight. O(N).

    gamma = 1 without a horizon: the average over the logged steps, biased toward the start of episodes;
    refused where episodes end in terminal states.

    References
    ----------
    D. Precup, R. S. Sutton, S. Singh (2000). Eligibility traces for off-policy policy evaluation. ICML.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.step_wise(counts, 0.9, policy=policy).value, 2)
    0.57
    """
    return _weigh("step", counts, gamma, policy, behavior, weighted, horizon)


@recorded("baselines.per_decision")
def per_decision(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    behavior: Any = None,
    horizon: int | None = None,
) -> BaselineSolution:
    """Per-decision importance sampling: :func:`step_wise` without weighting, unbiased over a horizon.

    gamma = 1 without a horizon: the average over the logged steps; refused where episodes end in terminal
    states.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.per_decision(counts, 0.9, policy=policy).value, 2)
    0.79
    """
    return step_wise(counts, gamma, policy=policy, behavior=behavior, weighted=False, horizon=horizon)


def _weigh(
    weighting: str, counts: Counts, gamma: float, policy: Any, behavior: Any, weighted: bool,
    horizon: int | None,
) -> BaselineSolution:  # fmt: skip
    """The value of counted episodes, and the distribution that their weights amount to."""
    started, method = time.perf_counter(), f"{weighting}_wise"
    gamma, horizon = require_gamma(gamma), require_horizon(horizon)
    paths = read_paths(counts, method).counted(method, gamma, horizon)
    logs = running_logs(paths, log_ratios(counts, paths, policy, behavior))
    note = "behavior cloned from the log" if behavior is None else "behavior as given"
    found, share = _Weights(gamma, horizon, paths, logs).estimate(weighting, weighted, note)
    operator = target_operator(counts, gamma, policy)
    return baseline_solution(operator, paths.distribution(share, counts), found, started)


class _Weights(NamedTuple):
    """Steps that count, each with the log of the product of target / behavior up to it."""

    gamma: float
    horizon: int | None
    paths: Paths
    logs: NDArray[np.longdouble]

    @property
    def final(self) -> Floats:
        """Products over whole episodes, relative to the largest."""
        logs = self.logs[self.paths.last]
        return products(logs, logs.max())

    def estimate(self, weighting: str, weighted: bool, note: str) -> tuple[Estimate, Floats]:
        """A value with the noise and the effective number of its episodes; the share of each step in it."""
        weigh = self.by_step if weighting == "step" else self.by_trajectory
        value, influence, share = weigh(weighted)
        found = Estimate(
            value, self.gamma, f"{weighting}-wise {'weighted ' * weighted}importance sampling", note,
            standard_error(influence), influence.size - 1, effective_size(self.final), "episodes",
            steps=counted_steps(self.gamma, self.horizon), mean_ratio=self.mean_ratio(weighting, weighted),
            largest_weight=largest_share(self.final),
        )  # fmt: skip
        return found, share

    def mean_ratio(self, weighting: str, weighted: bool) -> float:
        """Mean weight of the steps counted; ``weighted``, where weights are relative, the share reached."""
        gamma, paths = self.gamma, self.paths
        discount = np.asarray(gamma**paths.step, dtype=np.float64)
        if weighted:
            if weighting == "trajectory":
                return 1.0
            reached = np.isfinite(largest_by_step(paths, self.logs))[paths.step]
            return float(discount @ reached) / float(discount.sum())
        last, whole = products(self.logs[paths.last]), _spans(paths, gamma, self.horizon)
        if weighting == "trajectory":
            return float(last @ whole) / float(whole.sum())
        within = _sums(paths.episode, discount, paths.n_episodes)
        after: Floats = whole - within  # at the last weight, for what ended
        return (float(discount @ products(self.logs)) + float(last @ after)) / float(whole.sum())

    def by_trajectory(self, weighted: bool) -> tuple[float, Floats, Floats]:
        """The value, the influence of each episode and the share of each step: see ``trajectory_wise``."""
        gamma, paths, n = self.gamma, self.paths, self.paths.n_episodes
        weight = self.final if weighted else products(self.logs[paths.last])
        earned = weight * np.bincount(paths.episode, weights=gamma**paths.step * paths.reward, minlength=n)
        span = _spans(paths, gamma, self.horizon)
        if weighted:
            span = weight * span
        whole = float(span.sum()) or math.nan
        value = float(earned.sum()) / whole
        influence = earned / whole - value * (span / whole)
        return value, influence, gamma**paths.step * (weight / whole)[paths.episode]

    def by_step(self, weighted: bool) -> tuple[float, Floats, Floats]:
        """The same for weights up to each step: see ``step_wise``."""
        gamma, paths = self.gamma, self.paths
        n, logged, ends = paths.n_episodes, int(paths.step.max()) + 1, paths.terminal
        counted_logs = self.logs if weighted else np.zeros_like(self.logs)
        # Episodes that ended still stand in the denominator of every later step.
        ended = np.full(logged + 1, -np.inf, np.longdouble)
        np.logaddexp.at(ended, paths.step[ends] + 1, counted_logs[ends])
        ended = np.logaddexp.accumulate(ended)
        # Only the ratios of weights to one another count: those of a step are relative to the largest.
        level = np.maximum(largest_by_step(paths, self.logs), ended[:-1]) if weighted else np.zeros(logged)
        level[np.isneginf(level)] = 0.0
        weight = products(self.logs, level[paths.step])
        counted = weight if weighted else np.ones(paths.step.size)
        below = _sums(paths.step, counted, logged) + products(ended[:-1], level)
        earned = _sums(paths.step, weight * paths.reward, logged)
        mean = np.divide(earned, below, out=np.zeros(logged), where=below > 0)
        share = np.where(below > 0, gamma ** np.arange(logged), 0.0)
        asked = counted_steps(gamma, self.horizon)
        beyond = 0.0 if asked is None else max(asked - total_weight(gamma, logged), 0.0)
        left = float(below[-1])
        ended_share = float(products(ended[-1:], level[-1])[0]) / left if left > 0 else 0.0
        whole = (float(share.sum()) + beyond * ended_share) or math.nan
        value = float(share @ mean) / whole
        scale = np.divide(share / whole, below, out=np.zeros(logged), where=below > 0)
        average = mean[paths.step]
        centered = weight * (paths.reward - average) if weighted else weight * paths.reward - average
        influence = _sums(paths.episode, scale[paths.step] * centered, n)
        influence += _ended_influence(paths, counted_logs, scale * mean, level)
        if beyond > 0.0 and left > 0.0:
            at_end = ends | (paths.step == logged - 1)
            moved = products(counted_logs[at_end], level[-1]) * (ends[at_end] - ended_share) / left
            influence -= value * beyond / whole * _sums(paths.episode[at_end], moved, n)
        return value, influence, scale[paths.step] * weight


def counted_steps(gamma: float, horizon: int | None) -> float | None:
    """How many steps' value a return is; None where it is infinite."""
    if horizon is not None:
        return total_weight(gamma, horizon)
    return None if gamma == 1.0 else 1.0 / (1.0 - gamma)


def _spans(paths: Paths, gamma: float, horizon: int | None) -> Floats:
    """sum gamma^t over each episode, to the horizon for one that ended."""
    length = np.bincount(paths.episode, minlength=paths.n_episodes).astype(float)
    own = length if gamma == 1.0 else (1.0 - gamma**length) / (1.0 - gamma)
    ended = np.bincount(paths.episode, weights=paths.terminal, minlength=paths.n_episodes) > 0
    whole = counted_steps(gamma, horizon)
    return own if whole is None else np.where(ended, whole, own)


def _sums(place: NDArray[np.int64], weights: Floats, size: int) -> Floats:
    return np.bincount(place, weights=weights, minlength=size).astype(np.float64)


def _ended_influence(
    paths: Paths, counted_logs: NDArray[np.longdouble], scaled_mean: Floats, level: Floats
) -> Floats:
    """Ended episodes earn 0 where the others earn the mean, at every later step."""
    ends, influence = paths.terminal, np.zeros(paths.n_episodes)
    for sign in (1.0, -1.0):
        with np.errstate(divide="ignore"):
            # What a weight of 1 takes from the value at each step, then at all later ones.
            logs = np.log(np.maximum(sign * scaled_mean, 0.0)) - level
        later = np.append(np.logaddexp.accumulate(logs[::-1])[::-1][1:], -np.inf)
        taken = products(counted_logs[ends] + later[paths.step[ends]])
        influence -= sign * _sums(paths.episode[ends], taken, paths.n_episodes)
    return influence


@recorded("baselines.neural_importance_sampling")
def neural_importance_sampling(
    transitions: Transitions,
    gamma: float = 1.0,
    *,
    policy: Any,
    weighting: str = "step",
    behavior_log_density: Any = None,
    clone_options: dict[str, Any] | None = None,
    horizon: int | None = None,
    seed: int = 0,
) -> Estimate:
    """Weigh rewards by target / behavior along each episode, the behavior cloned where it is not given.

    ``weighting="step"``: each reward by the product of ratios up to its step, normalized over the episodes
    that reach the step; ``"trajectory"``: each whole episode by the product over all its steps. Episodes end
    with their ids, and at terminal and truncated rows. One that ended in a terminal state goes on with its
    last weight and reward 0. The value is sum gamma^t mean_t / sum gamma^t over the logged steps, and beyond
    them for what has ended by then: see :func:`step_wise`. ``horizon`` counts the first H steps only; without
    it gamma = 1 is refused where episodes end in terminal states. O(N). The standard error treats episodes as
    independent and the weights as known: it is short where few episodes carry most of the weight.

    Examples
    --------
    >>> import numpy as np
    >>> import lingendice as lg
    >>> rng = np.random.default_rng(0)
    >>> state, action = rng.normal(size=(2, 200, 1))
    >>> episode = np.repeat(np.arange(10), 20)
    >>> data = lg.Transitions(state, action, state[:, 0], 0.5 * state + action, episode=episode)
    >>> target = lg.policies.GaussianPolicy(lambda states: 0.0 * states, std=0.5)
    >>> options = {"steps": 10}
    >>> found = lg.baselines.neural_importance_sampling(data, 0.9, policy=target, clone_options=options)
    >>> abs(found.value) < 1.0
    True
    """
    gamma = require_gamma(gamma)
    horizon = require_horizon(horizon)
    require_choice("weighting", weighting, ("step", "trajectory"))
    paths = _read_rows(transitions).counted("importance sampling", gamma, horizon)
    if behavior_log_density is None:
        note = "behavior cloned by a network"
        log_ratio = clone_log_ratio(transitions, policy, **{"seed": seed, **(clone_options or {})})
    elif clone_options is not None:
        raise ValueError("behavior_log_density is given, and nothing to clone: leave clone_options out")
    else:
        note = "behavior as given"
        given = numeric_array("behavior_log_density", behavior_log_density).astype(np.float64)
        require_length("behavior_log_density", given, len(transitions))
        require_finite("behavior_log_density", given)
        log_ratio = target_log_density(transitions, policy) - given
    logs = running_logs(paths, log_ratio[paths.state])
    return _Weights(gamma, horizon, paths, logs).estimate(weighting, True, note)[0]
