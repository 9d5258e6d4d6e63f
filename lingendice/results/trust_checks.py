"""Can a shrinkage estimate be trusted? Few checks, each with a number, a threshold, a sentence and a remedy.

The thresholds were set on the development families of benchmarks/trust and on variations of them (hidden
states, disasters, actions never taken, tiny logs, sparse rewards, slow chains, careless logs); the report
families judge them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.allowance import (
    FRONTIER,
    RULE_OF_THREE,
    Allowed,
    allowed_interval,
    is_cost_per_step,
    known_rewards,
)
from lingendice.results.diagnostics import Check, check_of_partial_rewards, make_check
from lingendice.results.markov_test import UNBROKEN, markov_test, row_order
from lingendice.solvers.shrinkage import Shrinkage

LEAST_SAMPLE = 0.01
"""Share of the log that the estimate must rest on, as an effective sample."""
LARGEST_LEAK = 0.02
OFTEN = 20.0
"""Visits after which an action never logged is no accident."""
LARGEST_GAP = 0.05
LARGEST_RIDGE = 0.05
"""Share of the half-width that the ridge may make up."""
LARGEST_FRONTIER, MOST_BEYOND = 0.05, 10.0
"""Share of the target's actions never logged where the log ends, and half-widths that new ones may move."""
WORTH_SAYING = 0.1
"""Share of a limit from which on a check that passes says how near it comes."""
LARGEST_Z = 2.33
"""Of the Markov test, standard normal for a Markov chain: an alarm in at most one of a hundred."""
LARGEST_ENDS = 0.2
SAME_END = 3
"""Visits to a transition, every one of them the last of its episode, that tell of a forgotten flag."""
NOTED_MASS, NOTED_PRIOR = 0.05, 0.6
"""Shares of the target's actions, never logged or valued by other actions, that are worth a note."""
RARE, NOTED_RARE = 10.0, 0.02
"""How many times as often the target takes a state that is rare in the log; share of time worth a note."""


class Grounds(NamedTuple):
    """What an estimate rests on: all that the checks look at."""

    operator: EmpiricalOperator
    """Of the effective policy."""
    cell_distribution: Floats
    filled_mass: Floats
    """Target mass, states by actions, that is valued by transitions of other actions."""
    leak: float
    trapped: float
    """The part of it in states from which no logged step leads to an end."""
    effective_sample: float
    behavior: Floats | None
    values: Floats
    """After a transition, over states."""
    ending: float
    """After a terminal transition."""

    @property
    def counts(self) -> Counts:
        """The data."""
        return self.operator.counts

    @property
    def identified(self) -> float:
        """Mass in states with outgoing transitions."""
        return max(float(self.cell_distribution.sum()) - self.leak, 1e-300)

    @property
    def cell_count(self) -> Floats:
        """States by actions."""
        return self.counts.cell_count.reshape(self.filled_mass.shape).astype(float)


def trust_checks(found: Shrinkage, reward_range: tuple[float, float] | None = None) -> tuple[Check, ...]:
    """All checks of an estimate and its interval. O(N log N) for the Markov test, O(nnz) for the rest."""
    allowed = allowed_interval(found, reward_range=reward_range)
    grounds = Grounds(
        operator=found.operator,
        cell_distribution=found.operator.spread(found.state_distribution),
        filled_mass=found.filled_mass,
        leak=found.leak + found.trapped,
        trapped=found.trapped,
        effective_sample=allowed.allowance.effective_sample,
        behavior=found.behavior,
        values=found.values,
        ending=found.outcome.ending,
    )
    ridge = (_ridge(found, allowed.half_width),) if found.ridge > 0.0 else ()
    return (*data_checks(grounds), _frontier(found, allowed), *ridge, *order_checks(grounds))


def data_checks(grounds: Grounds) -> tuple[Check, ...]:
    """Whether the log shows what the target does. O(nnz)."""
    checks = (_effective_sample, _leak, _never_logged, _rewards)
    return tuple(check(grounds) for check in checks)


def trust_notes(found: Shrinkage, reward_range: tuple[float, float] | None = None) -> tuple[str, ...]:
    """What the interval allows for, or no log can show, and a reader should know."""
    interval, allowance, half_width = allowed_interval(found, reward_range=reward_range)
    mass = max(found.mass, 1e-300)
    unlogged, filled = allowance.unlogged_mass / mass, float(found.filled_mass.sum()) / mass
    notes = []
    if unlogged > NOTED_MASS and allowance.fill > interval.standard_error:
        notes.append(
            f"{unlogged:.1%} of the target's actions, where it goes, were never logged: the interval allows "
            f"{allowance.fill:.3g} for them (standard error {interval.standard_error:.3g})"
        )
    if filled > NOTED_PRIOR:
        notes.append(f"{filled:.0%} of the target's actions are valued by transitions of other actions")
    # As a check this would flag one good run in 25 more, and hardly a failure (benchmarks/trust).
    distribution = np.where(found.visited, found.state_distribution, 0.0) / max(found.identified, 1e-300)
    rare = distribution * found.state_count.sum() > RARE * mass * found.state_count
    share = float(distribution[rare].sum()) / mass
    if share > NOTED_RARE:
        notes.append(
            f"{share:.1%} of the target's time is spent in states {RARE:.0f} times as rare in the log, which "
            "hardly shows where the target goes from there"
        )
    sample = allowance.effective_sample / RULE_OF_THREE
    if reward_range is None and math.isfinite(half_width * sample):
        notes.append(
            f"a log of this size cannot exclude what happens once in {sample:,.0f} steps of the target: if "
            f"that could cost more than {half_width * sample / mass:.3g}, the interval is too short; "
            "reward_range= makes it allow for rewards never logged"
        )
    return tuple(notes)


def _effective_sample(grounds: Grounds) -> Check:
    """(sum c)^2 / sum c^2 over transitions, c what each adds to the value."""
    share = min(grounds.effective_sample / max(float(grounds.counts.total), 1.0), 1.0)
    sentence = f"the estimate rests on {share:.1%} of the log, as an effective sample"
    remedy = "a few transitions decide: log more of the states and actions that the target takes"
    return make_check("effective sample", share, LEAST_SAMPLE, True, sentence, remedy)


def _leak(grounds: Grounds) -> Check:
    sentence = f"{grounds.leak:.2%} of the target's mass is in states without outgoing transitions"
    if grounds.trapped > 0.0:
        sentence += f", or ({grounds.trapped:.2%}) in states from which no logged step leads to an end"
    remedy = "log these states; where episodes end there, pass terminal= to Counts.from_transitions"
    return make_check("leak", grounds.leak, LARGEST_LEAK, False, sentence, remedy)


def _never_logged(grounds: Grounds) -> Check:
    """Target mass on actions that the behavior does not seem to take, where the target goes.

    By chance a behavior leaves actions unlogged in states where it has others logged once (Good and Turing):
    these are a matter for the interval. An action never logged in a state of many visits where every other
    action was logged often is not there by chance.
    """
    logged = grounds.cell_count
    never = logged == 0
    if grounds.behavior is not None:
        missing = np.where(never & (grounds.behavior == 0.0), grounds.filled_mass, 0.0).sum()
        where = "have probability 0 under the behavior"
    else:
        seldom = (logged == 1.0).any(axis=1) | (logged.sum(axis=1) < OFTEN)
        missing = np.where(never, grounds.filled_mass, 0.0).sum(axis=1)[~seldom].sum()
        where = f"were never logged in states of {OFTEN:.0f} visits or more whose other actions are not rare"
    share = float(missing) / grounds.identified
    sentence = f"{share:.2%} of the target's actions {where}"
    remedy = "log these actions: no data identify what they are worth"
    return make_check("never logged", share, LARGEST_GAP, False, sentence, remedy)


def _frontier(found: Shrinkage, allowed: Allowed) -> Check:
    """Whether the target leaves what the log shows: filled in from logged actions, it turns back there."""
    allowance, half = allowed.allowance, allowed.half_width
    mass = allowance.frontier_mass / max(found.mass, 1e-300)
    times = allowance.beyond / half if half > 0.0 and math.isfinite(half) else 0.0
    sentence = (
        f"{mass:.2%} of the target's actions were never logged, in states that it visits {FRONTIER:.0f} "
        f"times as often as the log; what is new there could move the value by {times:.1f} half-widths"
    )
    number = max(mass / LARGEST_FRONTIER, times / MOST_BEYOND)
    if number < WORTH_SAYING:
        sentence = "the target stays where the log goes"
    remedy = "log where the target goes: beyond the last visited states the estimate turns back"
    return make_check("frontier", number, 1.0, False, sentence, remedy)


def _rewards(grounds: Grounds) -> Check:
    """Share of the target's mass whose reward was logged; 0 where all logged rewards are the same."""
    counts, operator, squares = grounds.counts, grounds.operator, None
    assert operator.reward is not None
    if operator.logged_reward is not None:
        if counts.partly_rewarded is not None:
            return check_of_partial_rewards(counts.partly_rewarded, grounds.cell_distribution)
        squares = counts.reward_m2
    known = np.isfinite(operator.reward) & operator.seen
    share = float(grounds.cell_distribution[known].sum()) / grounds.identified
    rewards = known_rewards(operator)
    low, high = float(rewards.min()), float(rewards.max())
    sentence = f"rewards are known for {share:.1%} of the target's mass"
    # Single rewards may differ from their means by (cell, next state).
    spread = squares is not None and bool(squares.any())
    if spread or high - low > 1e-12 * max(abs(low), abs(high)):
        pass
    elif isinstance(counts, Counts) and is_cost_per_step(counts, (low, high)):
        sentence = f"every logged reward is {low:.4g}: a cost per step, and episodes differ in their length"
    else:
        share, sentence = (
            0.0,
            f"every logged reward is {low:.4g}: the log does not show what other rewards there are",
        )
    remedy = "log until others occur; reward_range= bounds what was never seen"
    return make_check("rewards", share, 0.99, True, sentence, remedy)


def _ridge(found: Shrinkage, half_width: float) -> Check:
    share = found.ridge_error / half_width if half_width > 0.0 else float(found.ridge_error > 0.0)
    sentence = (
        f"extrapolating the ridge to 0 may be off by {found.ridge_error:.3g}, {share:.0%} of the half-width"
    )
    remedy = "the log is short for so slow a chain: collect more data, or take a smaller gamma"
    return make_check("ridge", share, LARGEST_RIDGE, False, sentence, remedy)


def order_checks(grounds: Grounds) -> list[Check]:
    """Checks that need the order of rows; none where it was not kept."""
    order = row_order(grounds.counts)
    if order is None:
        return []
    sentence = f"{order.unbroken:.1%} of the rows begin in the state where the row before ended"
    remedy = "sort the rows by time within every episode, and begin a new episode where rows are missing"
    checks = [make_check("order of rows", order.unbroken, UNBROKEN, True, sentence, remedy)]
    counts = grounds.counts
    if grounds.operator.logged_reward is None and counts.episodes is not None:
        # What is given is the same for all outcomes of a cell.
        counts = replace(counts, episodes=counts.episodes._replace(reward=None))
    test = markov_test(counts, grounds.values, grounds.operator.gamma, grounds.ending)
    if test is not None:
        memory = max(test.memories, key=lambda name: test.memories[name], default="none")
        sentence = (
            f"history predicts the outcome of a transition with z = {test.z:.1f} (chance: 0), "
            f"most of all {memory}"
        )
        remedy = (
            "states seem to lack memory: add the previous state or action, or what is hidden, to the state"
        )
        checks.append(make_check("Markov property", test.z, LARGEST_Z, False, sentence, remedy))
        checks.append(_ends(grounds.counts))
    return checks


def _ends(counts: Counts) -> Check:
    """Share of episodes without a terminal flag that end in a transition after which no episode went on."""
    episodes = counts.episodes
    assert episodes is not None
    n = episodes.first_state.size
    last = np.zeros(n, dtype=np.int64)
    last[episodes.episode] = np.arange(episodes.episode.size)  # of equal ones the last is kept
    entry = episodes.entry[last]
    size = counts.count.size
    visits = np.bincount(episodes.entry, minlength=size)
    final = np.bincount(entry, minlength=size)
    unflagged = counts.indices[entry] != counts.n_states
    always = (final == visits) & (visits >= SAME_END)
    share = float((always[entry] & unflagged).sum()) / max(int(unflagged.sum()), 1)
    # A single path, or a handful of them, ends somewhere by accident.
    if int((always[entry] & unflagged).sum()) <= 2 * SAME_END:
        share = 0.0
    sentence = f"{share:.0%} of the episodes without a terminal flag end where no episode ever goes on"
    remedy = "if these are ends, pass terminal= to Counts.from_transitions"
    return make_check("forgotten ends", share, LARGEST_ENDS, False, sentence, remedy)
