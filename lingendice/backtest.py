"""``backtest``: does one part of a log predict what the other earned?"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import lingendice as lg
from lingendice.data.checks import (
    Floats,
    described,
    refuse_unknown,
    require_choice,
    require_gamma,
    require_positive,
    require_whole,
)
from lingendice.data.counts import Counts
from lingendice.data.parts import Pieces, counts_of, find_pieces, transitions_of
from lingendice.data.transitions import Transitions, step_discounts
from lingendice.results.backtest import NAMES, Backtest, Split
from lingendice.results.build import LeakWarning
from lingendice.results.targets import Interval, require_level, student_quantile

SOLVE_OPTIONS = ("ridge", "clone", "unseen", "ratio", "reward_range", "method", "tol", "max_iter", "options")
"""Arguments of ``solve`` that a prediction may be made with; the default is judged where none is given."""
FEWEST = 2
"""Pieces that either part has at least: the spread of one piece is unknown."""
LEAST_RECURRENT = 0.5
"""Share of a held-out part's rows in states that its chain does not leave for ever: below it what the chain
earns in the long run is not what these rows earned."""


class Question(NamedTuple):
    """What both parts of every split are asked for."""

    gamma: float
    of: str
    """"return" or "value"."""
    level: float
    options: dict[str, Any]
    """Of the solve that predicts."""


def backtest(
    log: Any,
    gamma: float = 1.0,
    *,
    split: str | tuple[str, ...] = ("random", "time"),
    n_splits: int = 5,
    level: float = 0.95,
    seed: int = 0,
    time_limit: float | None = None,
    threads: int | None = None,
    **solve_options: Any,
) -> Backtest:
    """Predict what one part of a log earned from the other part, and compare.

    The behavior of the held-out part is cloned, the other part predicts by ``solve(part, gamma,
    policy=clone)`` what that policy earns, and the held-out part tells what it did earn: the return of an
    episode where episodes end, else the value per step. A change of the behavior alone is no difference,
    since the clone has it, too; a change of the process is.

    Parameters
    ----------
    log
        :class:`Counts` that kept their episodes, or :class:`Transitions` with ``episode``, with rewards. One
        single path is split into blocks.
    gamma
        In (0, 1].
    split
        ``"random"``: random halves. ``"interleaved"``: every k-th episode is predicted from the others.
        ``"time"``: the first k / (n_splits + 1) of the episodes, in the order in which they begin in the log,
        predict the rest. Several are made one after the other; ``"random"`` and ``"time"`` together tell
        drift from intervals that are too narrow.
    n_splits
        Splits of each kind.
    level
        Confidence level of the intervals of the differences.
    seed
        Of the random halves, and of networks.
    time_limit
        In seconds for all splits; those that were not reached have no answer, and say so.
    **solve_options
        ``ridge``, ``clone``, ``unseen``, ``ratio``, ``reward_range``, ``method``, ``tol``, ``max_iter`` and
        ``options`` of the predicting solve, where not its default is to be judged.

    Returns
    -------
    Backtest
        ``rows``, ``verdict``, ``drift``, ``to_frame()``; ``print`` shows all.

    Notes
    -----
    What the held-out part earned is the plug-in of its own counts, which at gamma = 1 is the mean return
    where all episodes end, and the mean reward of one long path. Its standard error is that for a fixed
    policy: how the held-out actions happened to fall is in the clone, too, and cancels. For
    :class:`Transitions` it is the discounted average over the episodes; there the whole noise is counted, so
    that intervals are rather wide. The allowance for bias of a prediction counts as three standard
    deviations.

    Two solves per split: fractions of a second over counts, some 10 seconds over :class:`Transitions`, where
    ``n_splits=2`` is enough to begin with.

    Examples
    --------
    >>> import numpy as np
    >>> import lingendice as lg
    >>> rng = np.random.default_rng(0)
    >>> state, action = rng.integers(0, 3, 4000), rng.integers(0, 2, 4000)
    >>> log = {"state": state, "action": action, "reward": state * action, "terminal": rng.random(4000) < 0.1}
    >>> found = lg.backtest(lg.Counts.from_transitions(**log, next_state=np.roll(state, -1)))
    >>> found.drift
    False
    """
    gamma, level = require_gamma(gamma), require_level(level)
    kinds = dict.fromkeys((split,) if isinstance(split, str) else tuple(split))
    for kind in kinds:
        require_choice("split", kind, tuple(NAMES))
    n_splits, seed = require_whole("n_splits", n_splits, at_least=1), require_whole("seed", seed)
    limit = math.inf if time_limit is None else require_positive("time_limit", time_limit)
    refuse_unknown(solve_options, SOLVE_OPTIONS, "backtest")
    pieces, of = _read(log, gamma)
    question = Question(gamma, of, level, {**solve_options, "seed": seed, "threads": threads})
    deadline = time.monotonic() + limit
    rows: list[Split] = []
    failed: list[ValueError] = []
    for kind in kinds:
        for number, held_out in enumerate(_held_out(kind, n_splits, pieces.n, seed, pieces.kind), 1):
            where = {
                "split": kind, "number": number, "level": level,
                "n_fitted": int((~held_out).sum()), "n_held_out": int(held_out.sum()),
            }  # fmt: skip
            try:
                rows.append(_judge(log, pieces, held_out, question, deadline, where))
            except ValueError as error:  # such as a part none of whose episodes ends
                failed.append(error)
                rows.append(Split.unanswered(str(error), **where))
    if len(failed) == len(rows):
        raise ValueError(f"no split of the log has an answer; the first: {failed[0]}") from failed[0]
    return Backtest(tuple(rows), gamma, level, of, pieces.kind)


def _read(log: Any, gamma: float) -> tuple[Pieces, str]:
    """The pieces of a log that can be tested, and what is predicted."""
    if not isinstance(log, (Counts, Transitions)):
        raise ValueError(
            f"a backtest is of Counts or Transitions, got {described(log)}; count a log by "
            "Counts.from_transitions or read_transitions, with episode="
        )
    pieces = find_pieces(log)
    if isinstance(log, Counts):
        assert log.episodes is not None
        rewarded, ends = log.episodes.reward is not None, log.has_terminals
    else:
        if log.n_states is not None:
            raise ValueError("states are integers: count them by Counts.from_transitions, which is exact")
        # Over continuous states a return is known for gamma < 1 alone.
        rewarded = log.reward is not None
        ends = gamma < 1.0 and log.terminal is not None and bool(log.terminal.any())
    if not rewarded:
        raise ValueError("the log holds no rewards, so nothing was earned; pass reward=")
    return pieces, "return" if ends else "value"


def _held_out(kind: str, n_splits: int, n: int, seed: int, pieces: str) -> Iterator[NDArray[np.bool_]]:
    """Which pieces each split holds out."""
    needed = {"random": 2, "interleaved": max(n_splits, 2), "time": n_splits + 1}[kind] * FEWEST
    if n < needed:
        raise ValueError(
            f"{n_splits} splits by {kind!r} need {needed} episodes, and the log has {n} {pieces}; "
            "lower n_splits="
        )
    place = np.arange(n)
    for k in range(n_splits):
        if kind == "random":
            place = np.random.default_rng([seed, k]).permutation(n)
            yield place >= n // 2
        elif kind == "interleaved":
            yield place % max(n_splits, 2) == k
        else:
            yield place >= n * (k + 1) // (n_splits + 1)


def _judge(
    log: Counts | Transitions,
    pieces: Pieces,
    held_out: NDArray[np.bool_],
    question: Question,
    deadline: float,
    where: dict[str, Any],
) -> Split:
    """One split: what the pieces that are not held out predict, and what the others earned."""
    left = deadline - time.monotonic()
    if left <= 0.0:
        return Split.unanswered("the time limit came before it", **where)
    limit = None if math.isinf(left) else left
    asked = question._replace(options={**question.options, "time_limit": limit})
    parts = ~held_out, held_out
    threads = question.options["threads"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)  # leaks of one part are no news of the log
        fitted: Any
        policy: Any = None
        if isinstance(log, Counts):
            fitted, later = (counts_of(log, pieces, part, threads) for part in parts)
            if log.n_actions is not None:
                policy = clone_table(later, fitted)
            earned, degrees = _earned_by_counts(later, policy, asked)
        else:
            from lingendice.continuous.clone import clone_policy

            fitted, held = (transitions_of(log, pieces, part) for part in parts)
            if held.action is not None:
                policy = clone_policy(held, question.options["seed"])
            earned, degrees = earned_by_rows(held, asked)
        solution = lg.solve(fitted, question.gamma, policy=policy, **asked.options)
        predicted = solution.interval(question.level, of=question.of)
    if solution.status.ended_short:
        return Split.unanswered(f"the prediction ended short of its goal ({solution.status.value})", **where)
    return Split.of(predicted, earned, (solution.value_scores().degrees, degrees), **where)


def clone_table(held_out: Counts, fitted: Counts) -> Floats:
    """Shares of the actions logged in each state: of the held-out part, else of the other, else uniform."""
    shape = (held_out.n_states, -1)
    taken, before = (part.cell_count.reshape(shape).astype(float) for part in (held_out, fitted))
    taken = np.where(taken.any(axis=1, keepdims=True), taken, before)
    taken[~taken.any(axis=1)] = 1.0
    shares: Floats = taken / taken.sum(axis=1, keepdims=True)
    return shares


def _earned_by_counts(later: Counts, policy: Floats | None, asked: Question) -> tuple[Interval, float]:
    """The plug-in of the held-out part for its own behavior, with its noise for that policy as given.

    At gamma = 1 without ends a short part has spurious traps, such as a state whose only exit is itself. The
    plug-in stays there for ever, which is not what was earned.
    """
    plain = {name: asked.options[name] for name in ("threads", "time_limit")}
    if policy is not None:
        plain |= {"policy": policy, "ridge": 0.0, "clone": 0.0, "ratio": "state_action"}
    solution = lg.solve(later, asked.gamma, **plain)
    if asked.gamma == 1.0 and asked.of == "value":
        rows = later.cell_count.reshape(later.n_states, -1).sum(axis=1)
        stays = solution.stationary.reshape(later.n_states, -1).sum(axis=1) > 0.0
        share = float(rows[stays].sum() / rows.sum())
        if share < LEAST_RECURRENT:
            raise ValueError(
                f"the chain of the held-out part ends up in states with {share:.0%} of its rows, a trap that "
                "more rows would open; take fewer splits, or gamma < 1"
            )
    return solution.interval(asked.level, of=asked.of), solution.value_scores().degrees


def earned_by_rows(later: Transitions, asked: Question) -> tuple[Interval, float]:
    """Discounted average reward of the held-out episodes, on the scale of the value, or of the return.

    Step t counts gamma^t; an end counts as all steps that do not follow it, since they earn nothing.
    """
    assert later.reward is not None
    assert later.episode is not None
    gamma, n = asked.gamma, int(later.episode.max()) + 1
    weight = step_discounts(later.episode, len(later), gamma)
    mass = weight.copy()
    if gamma < 1.0 and later.terminal is not None:
        mass[later.terminal] /= 1.0 - gamma
    earned, steps = (np.bincount(later.episode, part, n) for part in (weight * later.reward, mass))
    value = float(earned.sum() / steps.sum())
    scores = (earned - value * steps) / steps.sum()
    error = float(np.sqrt((scores**2).sum() * n / (n - 1)))
    found = Interval.around(
        value, error * student_quantile(asked.level, n - 1), standard_error=error, level=asked.level,
        method="average", note=f"clustered by {n:,} episodes",
    )  # fmt: skip
    return found.scaled(1.0 / (1.0 - gamma) if asked.of == "return" else 1.0), n - 1.0
