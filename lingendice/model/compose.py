"""Compose counts, policy and the user's choices into an :class:`EmpiricalOperator`."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.by_label import read_distribution, read_policy_table, read_rewards
from lingendice.data.checks import (
    Floats,
    compressed_rows,
    first_bad,
    numeric_array,
    require_choice,
    require_distribution,
    require_number,
    require_policy,
    require_reward,
)
from lingendice.data.counts import Counts
from lingendice.data.rows import row_sums
from lingendice.model.leaks import read_fallbacks
from lingendice.model.operator import EmpiricalOperator
from lingendice.model.transition_rows import TransitionRows, add_hub


class Choices(NamedTuple):
    """What the user may say about the operator; the names are those of ``solve``."""

    gamma: float = 1.0
    policy: Any = None
    behavior: Any = None
    reward: Any = None
    initial: Any = None
    ratio: str = "auto"
    leak: str = "restart"
    restart: Any = None
    unseen: str = "auto"
    terminal: str = "auto"
    clone: Any = None
    smoothing: Any = None
    horizon: Any = None
    """Steps that count; None for all."""

    @property
    def ends_for_good(self) -> bool:
        """Whether mass starts from the initial distribution and is lost at ends: a discount or a horizon."""
        return self.gamma < 1.0 or self.horizon is not None

    def as_arrays(self, counts: Counts) -> Choices:
        """Policies, distributions and rewards as arrays over the counts' states, given by label or not.

        Arrays of our own: intervals, bounds and replicates read them again, long after the call.
        """
        owned = {}
        for name, read in _BY_LABEL.items():
            values = getattr(self, name)
            if values is not None:
                owned[name] = _owned(name, values if _is_numeric(values) else read(name, values, counts))
        for name in ("policy", "behavior"):  # what they may leave out depends on the first states
            values = getattr(self, name)
            if values is not None:
                read_values = read_policy_table(name, values, counts, owned.get("initial"))
                owned[name] = _owned(name, read_values)
        if isinstance(self.smoothing, tuple) and len(self.smoothing) == 2:
            weight, prior = self.smoothing
            prior = prior if _is_numeric(prior) else read_distribution("smoothing", prior, counts)
            owned["smoothing"] = weight, _owned("smoothing distribution", prior)
        return self._replace(**owned)


def _is_numeric(values: Any) -> bool:
    return type(values) is np.ndarray and values.dtype.kind in "biuf"


def _owned(name: str, values: Any) -> Any:
    """The values as an array that nobody else can write to; what is none is left for others to refuse."""
    if hasattr(values, "toarray"):
        values = compressed_rows(name, values).toarray()
    if not isinstance(values, (list, tuple)) and not hasattr(values, "__array__"):
        return values
    array = numeric_array(name, values)
    if array.flags.writeable or array.base is not None:
        array = array.copy()
        array.flags.writeable = False
    return array


_BY_LABEL = {
    "initial": read_distribution,
    "restart": read_distribution,
    "reward": read_rewards,
}


def compose(counts: Counts, choices: Choices) -> EmpiricalOperator:
    """Check the choices against the counts and build the operator. O(nnz), nothing dense is formed."""
    choices, gamma = choices.as_arrays(counts), choices.gamma
    n = counts.cell_count.astype(float)
    _require_data(counts, n, choices.ends_for_good)
    initial = _initial_distribution(counts, choices)
    policy, ratio = effective_policy(counts, choices)
    smoothing, prior = _smoothing(counts, choices)
    targets = {
        "prior": prior,
        "initial": initial,
        "data": counts.data_distribution.reshape(counts.n_states, -1).sum(axis=1),
    }
    if choices.restart is not None:  # checked even where nothing leaks
        targets["restart"] = require_distribution("restart", choices.restart, counts.n_states)
    fallbacks = read_fallbacks(
        choices.leak, choices.terminal, choices.ends_for_good, has_terminals=counts.has_terminals,
        has_initial=initial is not None, has_restart=choices.restart is not None, smoothed=smoothing > 0.0,
    )  # fmt: skip
    weighed = np.where(n + smoothing > 0, n + smoothing, 1.0)
    # Not 1 - observed: of a prior beside billions of transitions, rounding would leave few digits of it.
    observed, unseen = n / weighed, np.where(n + smoothing > 0, smoothing / weighed, 1.0)
    ended, keep = np.zeros(counts.n_cells), observed
    indptr, indices, weight, total = counts.indptr, counts.indices, counts.count, n
    if counts.has_terminals:
        indptr, indices, weight = _without_terminals(counts)
        total = n - counts.terminal_count
        ended = observed * np.divide(counts.terminal_count, n, out=np.zeros_like(n), where=n > 0)
        # Not observed - ended: where nearly all episodes end, rounding would leave few digits of it.
        keep = observed * np.divide(total, n, out=np.zeros_like(n), where=n > 0)
    out, distribution = np.zeros((counts.n_cells, 0)), np.zeros((0, counts.n_states))
    falling: dict[str, Floats] = {}
    for share, source in ((unseen, fallbacks.unseen), (ended, fallbacks.ended)):
        if source is not None and share.any():
            out, distribution = add_hub(out, distribution, share, targets[source])
            falling[source] = falling[source] + share if source in falling else share
    return EmpiricalOperator(
        counts=counts,
        gamma=gamma,
        initial=initial,
        policy=policy,
        ratio=ratio,
        rows=TransitionRows(indptr, indices, weight, total, keep, out, distribution),
        ended=ended if fallbacks.ends_absorb else np.zeros(counts.n_cells),
        reward=_cell_reward(counts, choices.reward),
        falling=falling,
        choices=choices,
    )


def _require_data(counts: Counts, n: Floats, restarts: bool) -> None:
    """Refuse counts without transitions, and cells whose counts are too small to divide by.

    A chain without transitions may still restart: its distribution is the initial one, all of it
    leak.
    """
    if counts.n_states == 0 or (not n.any() and (not restarts or counts.n_actions is not None)):
        raise ValueError("there are no transitions to learn from: the counts are empty; add data first")
    smallest = np.min(n, where=n > 0, initial=np.inf)
    if smallest < np.finfo(float).tiny * max(1.0, float(counts.total)):
        cell = int(np.argmin(np.where(n > 0, n, np.inf)))
        raise ValueError(
            f"the counts of cell {cell} sum to {smallest:g} of {counts.total:g}, too little to divide by in "
            "float64; multiply the smallest counts by a constant, or leave them out"
        )


def _initial_distribution(counts: Counts, choices: Choices) -> Floats | None:
    """As given, else of the log's first states, else uniform for a chain.

    At gamma = 1 it is given, or it matters to restarts after a terminal state alone; a horizon needs it.
    """
    logged, n = counts.initial_count, counts.n_states
    if choices.initial is not None:
        return require_distribution("initial", choices.initial, n)
    if logged is not None and logged.sum() > 0:
        wanted = choices.ends_for_good or counts.has_terminals
        return logged / logged.sum() if wanted else None
    if not choices.ends_for_good:
        return None
    if counts.n_actions is None:
        return np.full(n, 1.0 / n)
    raise ValueError(
        f"{'gamma < 1' if choices.gamma < 1.0 else 'horizon='} needs the distribution of the first state, "
        "and the log has no episodes to take it from; pass initial=, episode= to Counts.from_transitions, or "
        "first_state= to gpu.count_transitions"
    )


def _smoothing(counts: Counts, choices: Choices) -> tuple[float, Floats]:
    """Total weight of the Dirichlet prior on every row, and its distribution."""
    weight, prior = choices.smoothing, np.full(counts.n_states, 1.0 / counts.n_states)
    if weight is None:
        return 0.0, prior
    if isinstance(weight, tuple) and len(weight) == 2:
        prior = require_distribution("smoothing distribution", weight[1], counts.n_states)
        weight = weight[0]
    if not isinstance(weight, numbers.Real):
        got = f"{len(weight)} entries" if isinstance(weight, tuple) else type(weight).__name__
        raise ValueError(f"smoothing must be a weight or a pair (weight, distribution), got {got}")
    return require_number("smoothing", weight), prior


def _without_terminals(counts: Counts) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    goes_on = counts.indices != counts.n_states
    lengths = row_sums(counts.indptr, goes_on.astype(np.int64))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return indptr, counts.indices[goes_on], counts.count[goes_on]


def _cell_reward(counts: Counts, given: Any) -> Floats | None:
    """Expected reward of each cell: the user's, or the log's mean."""
    if given is None:
        return counts.reward
    reward = numeric_array("reward", given).astype(float)
    n_states, n_actions = counts.n_states, counts.n_actions or 1
    require_reward("reward", reward)
    if reward.shape == (n_states, n_actions) or reward.shape == (n_states * n_actions,):
        return reward.reshape(-1)
    if reward.shape == (n_states,):
        return np.repeat(reward, n_actions)
    raise ValueError(
        f"reward has shape {reward.shape}; give one per state ({n_states},)"
        + (f" or one per state and action ({n_states}, {n_actions})" if counts.n_actions else "")
    )


# -- policies -----------------------------------------------------------------------------------


def effective_policy(counts: Counts, choices: Choices) -> tuple[Floats | None, str]:
    """The policy W that the operator follows, and which ratio is asked for.

    ``ratio="state_action"`` follows the target itself. ``ratio="state"`` weights the logged actions by
    target / behavior with weights of mean 1 in every state, which is the same as following a
    transformed policy: the target restricted to what was seen, shrunk toward the behavior by ``clone``.
    """
    ratio = require_choice("ratio", choices.ratio, ("auto", "state", "state_action"))
    unseen = require_choice("unseen", choices.unseen, ("auto", "renormalize", "mean", "leak"))
    _refuse_unused(choices, unseen)
    if counts.n_actions is None:
        if choices.policy is not None or choices.behavior is not None:
            raise ValueError(
                "a policy is given but the counts have no actions; pass action= to Counts.from_transitions"
            )
        if ratio == "state_action":
            raise ValueError('ratio="state_action" needs actions; pass action= to Counts.from_transitions')
        return None, "state"
    seen = counts.cell_count.reshape(counts.n_states, counts.n_actions).astype(float)
    if choices.policy is None:
        # Without a target the question is about the chain that was logged: the cloned behavior.
        return _rows_or_uniform(seen), "state" if ratio == "auto" else ratio
    target = require_policy("policy", choices.policy, counts.n_states, counts.n_actions)
    if ratio == "auto":
        ratio = "state_action"
    shrink = float(choices.clone or 0.0)
    if ratio != "state" and shrink > 0.0:
        raise ValueError('clone= is about the cloned behavior of ratio="state"; set that, or leave clone out')
    if choices.behavior is not None:
        return _weighted_by_behavior(target, seen, choices, ratio), ratio
    if shrink > 0.0:
        return _fall_back(target * seen / np.where(seen > 0, seen + shrink * target, 1.0), target), ratio
    if unseen == "auto":
        unseen = "leak" if ratio == "state_action" else "renormalize"
    if unseen == "leak":
        return target, ratio
    known = np.where(seen > 0, target, 0.0)
    if unseen == "renormalize":
        return _fall_back(known, target), ratio
    # Not 1 - known.sum(): what rounding leaves of it would be taken to actions that the target never takes.
    missing = np.where(seen > 0, 0.0, target).sum(axis=1, keepdims=True)
    visited = seen.sum(axis=1, keepdims=True) > 0
    return np.where(visited, known + missing * _rows_or_uniform(seen), target), ratio


def _refuse_unused(choices: Choices, unseen: str) -> None:
    """Refuse words about how a policy is followed that the others leave no say."""
    given = {
        "behavior": choices.behavior is not None,
        "clone": bool(choices.clone),
        "unseen": unseen != "auto",
    }
    asked = [name for name in given if given[name]]
    if choices.policy is None and asked:
        raise ValueError(f"{asked[0]}= is about following another policy than the logged one; pass policy=")
    if given["behavior"] and given["clone"]:
        raise ValueError(
            "clone= is about a behavior cloned from the log, and behavior= says what it is; leave one out"
        )
    if unseen in ("leak", "mean") and (given["behavior"] or given["clone"]):
        raise ValueError(
            f"{asked[0]}= weighs logged actions alone, so that unseen={unseen!r} has no effect; leave one out"
        )


def _weighted_by_behavior(target: Floats, seen: Floats, choices: Choices, ratio: str) -> Floats:
    if ratio != "state":
        raise ValueError('behavior= is used by ratio="state" alone; state-action ratios need no behavior')
    behavior = checked_behavior(target, seen, choices)
    weighted = np.divide(seen * target, behavior, out=np.zeros_like(seen), where=behavior > 0)
    return _fall_back(weighted, target)


def checked_behavior(target: Floats, seen: Floats, choices: Choices) -> Floats:
    """The given behavior; every logged action must be possible under it."""
    behavior = require_policy("behavior", choices.behavior, *target.shape)
    impossible = (seen > 0) & (behavior == 0)
    if impossible.any():
        state, action = first_bad(impossible)
        raise ValueError(
            f"behavior[{state}, {action}] is 0 but that action was logged {seen[state, action]:g} times; "
            "leave behavior out to clone it from the log"
        )
    return behavior


def _fall_back(weights: Floats, target: Floats) -> Floats:
    """Normalize each row; a row without weight keeps the target, whose cells then leak."""
    totals = weights.sum(axis=1, keepdims=True)
    return np.where(totals > 0, weights / np.where(totals > 0, totals, 1.0), target)


def _rows_or_uniform(table: Floats) -> Floats:
    return _fall_back(table, np.full(table.shape, 1.0 / table.shape[1]))


def compose_episodes(counts: Counts, choices: Choices) -> EmpiricalOperator:
    """The operator of single episodes: they start from the initial distribution and end for good.

    Target actions never logged in a state take the mean of its logged ones.
    """
    unseen = "mean" if choices.policy is not None and choices.unseen == "auto" else choices.unseen
    return compose(counts, choices._replace(unseen=unseen))
