"""What is judged: the default and the baselines. Every use of the library is in this file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import lingendice as lg
from lingendice.environments import taxi
from trust.model import Floats
from trust.problem import Log, Problem

DEFAULT = "default"
BOUNDED = "default, rewards bounded"
"""Told the smallest and largest reward that can occur."""
KNOWN = "default, behavior known"
OURS = (DEFAULT, BOUNDED, KNOWN)
LEVEL = 0.95


class Answer(NamedTuple):
    """What a method says of one log; nan where it says nothing."""

    value: float
    low: float
    high: float
    failed: tuple[str, ...]
    """Names of failed checks."""
    seconds: float


class Case(NamedTuple):
    """One log to be judged at one gamma."""

    counts: Any
    gamma: float
    target: Floats
    initial: Floats
    """First states of the log: the exact equation needs them where a log has several recurrent classes."""
    ends: bool
    """Whether the log has terminal flags."""
    rewards: tuple[float, float]
    """The smallest and the largest reward that can occur."""
    behavior: Floats | None
    """Where a single one made the log, and states are shown whole."""


def read(problem: Problem, log: Log, gamma: float, counts: Any = None) -> Case:
    """Count a log; ``counts`` of an earlier case of the same log are used again."""
    n_states, model = problem.n_logged, problem.model
    if counts is None:
        warnings.simplefilter("ignore", lg.RowOrderWarning)  # careless logs: the checks are to see it
        counts = lg.Counts.from_transitions(
            log.state, log.next_state, action=log.action, reward=log.reward, episode=log.episode,
            terminal=log.terminal, n_states=n_states, n_actions=model.n_actions, keep_episodes=True,
            threads=1,
        )  # fmt: skip
    first = np.unique(log.episode, return_index=True)[1]
    initial = np.bincount(log.state[first], minlength=n_states) / first.size
    rewards = np.concatenate([model.reward, log.reward])  # the log's own where they are noisy
    known = problem.behaviors[0] if len(problem.behaviors) == 1 and problem.observe is None else None
    return Case(
        counts, gamma, problem.target, initial, log.terminal is not None,
        (float(rewards.min()), float(rewards.max())), known,
    )  # fmt: skip


def _default(case: Case) -> Any:
    return lg.solve(case.counts, case.gamma, policy=case.target, threads=1)


def _bounded(case: Case) -> Any:
    return lg.solve(case.counts, case.gamma, policy=case.target, reward_range=case.rewards, threads=1)


def _known(case: Case) -> Any:
    return lg.solve(case.counts, case.gamma, policy=case.target, behavior=case.behavior, threads=1)


def _plug_in(case: Case) -> Any:
    return lg.solve(
        case.counts, case.gamma, policy=case.target, initial=case.initial, ridge=0.0, clone=0.0,
        ratio="state_action", threads=1,
    )  # fmt: skip


def _average(case: Case) -> Any:
    return lg.baselines.naive_average(case.counts, case.gamma)


def _ips(case: Case) -> Any:
    return lg.baselines.ips(case.counts, case.gamma, policy=case.target, initial=case.initial)


def _dual_dice(case: Case) -> Any:
    return lg.baselines.dual_dice(case.counts, case.gamma, policy=case.target)


def _wis(case: Case) -> Any:
    return lg.baselines.step_wise(case.counts, case.gamma, policy=case.target, weighted=True)


def _doubly_robust(case: Case) -> Any:
    return lg.baselines.doubly_robust(case.counts, case.gamma, policy=case.target)


METHODS: dict[str, Callable[[Case], Any]] = {
    DEFAULT: _default,
    BOUNDED: _bounded,
    KNOWN: _known,
    "plug-in": _plug_in,
    "average": _average,
    "IPS": _ips,
    "DualDICE": _dual_dice,
    "WIS": _wis,
    "DR": _doubly_robust,
}
BASELINES = tuple(name for name in METHODS if name not in OURS)
AVERAGE = "average"
SLOW_LOGS = 10
"""On models of this many cells DualDICE, which factorizes cells, and variants see only the first logs."""
SLOW_CELLS = 1500


def applies(method: str, case: Case, number: int) -> bool:
    """Whether a method is defined here, and cheap enough for log ``number``."""
    slow = case.target.size > SLOW_CELLS and number >= SLOW_LOGS
    if method in OURS:
        return method == DEFAULT or not (slow or (method == KNOWN and case.behavior is None))
    if case.gamma == 1.0:
        return not (method in ("DualDICE", "DR") or (method == "WIS" and case.ends))
    return not (method == "DualDICE" and slow)


def judge(method: str, case: Case) -> Answer:
    """Run a method. Refusing an answer or an interval counts as a failed check: it is not silent."""
    started = time.perf_counter()
    value = low = high = float("nan")
    failed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            solution = METHODS[method](case)
            episodes = case.gamma == 1.0 and case.ends
            found = solution.expected_return if episodes else solution.value
            value = float("nan") if found is None else float(found)
        except (ValueError, ArithmeticError) as error:
            return Answer(value, low, high, (f"refused: {type(error).__name__}",), _since(started))
        try:
            interval = solution.interval(LEVEL, of="return" if episodes else "value")
            low, high = float(interval.low), float(interval.high)
        except ValueError:
            failed.append("no interval")
        if method in OURS:
            failed += _failed_checks(solution)
    return Answer(value, low, high, tuple(failed), _since(started))


def _failed_checks(solution: Any) -> list[str]:
    checks = solution.diagnose() if hasattr(solution, "diagnose") else lg.diagnose(solution)
    return [check.name for check in checks if not check.ok] + ["not converged"] * (not solution.converged)


def _since(started: float) -> float:
    return time.perf_counter() - started


def taxi_tables() -> tuple[sparse.csr_matrix, Floats]:
    """Taxi's exact transitions (cells x states) and rewards (states x actions)."""
    return taxi.transition_matrix(), taxi.expected_reward()


def taxi_policies(seed: int, base_iterations: int) -> tuple[Floats, Floats]:
    """A trained policy and the same after ``base_iterations`` of 1,000."""
    trained = taxi.train_policies(seed=seed, base_iterations=base_iterations)
    return trained.target, trained.base


def taxi_value(policy: Floats, gamma: float) -> float:
    """Taxi's own exact value of a policy, to test ours against."""
    return taxi.policy_value(policy, gamma)
