"""How good the answers are: ln MSE, coverage and flags of the default and of other methods, for fixed seeds.

Problems are those of the development families of ``benchmarks/trust``, Taxi as the paper logs it, and small
chains. Errors are kept for each setting; shares of covered truths and of failed checks for each family, since
a share of few logs moves in large steps.
"""

from __future__ import annotations

import math
import multiprocessing
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from trust import families, methods, stationary
from trust.problem import Problem

import lingendice as lg

LN_TOLERANCE, SHARE_TOLERANCE = 0.15, 0.05
"""What an ln MSE or ln median width, and a share of logs, may move by."""
SHARES, ERRORS, WIDTHS = "share of logs", "ln MSE", "ln median width"
LOGS = 30
SMALLEST_ERROR = 1e-6
"""Errors below this share of the truth's scale count as this much: logarithms of rounding mean nothing."""
CHECKED = (methods.OURS[0],)
"""Only the default's checks are recorded one by one; of the others, whether any failed."""

SETTINGS = {
    "random MDPs": ("20 states, near", "40 states, unrelated", "60 states, pooled"),
    "random MDPs, episodic": ("20 states, uniform, greedy target", "40 states, epsilon", "60 states, pooled"),
    "grids": ("6 x 6 with a wall", "5 x 5, endless"),
    "grids, slippery": ("6 x 6", "5 x 5 with pits"),
    "formerly in the report": (
        "few and many episodes: 3 episodes", "queue: pushed into overload",
        "recommender: 30 items, three shown, new ranking",
    ),
    "rare losses": ("20 states, 400 once in 500", "one in 180 hard steps"),
    "tiny logs": ("5 states", "12 states, episodic"),
    "slow chains": ("20 states, stay 95 %", "walk of 50"),
    "one paying cell": ("30 states", "80 states"),
    "service desks": ("fewer agents", "the longer line first"),
    "upkeep": ("fast charging", "buses, soft optimum"),
    "lakes": ("5x5", "gambler"),
    "actions left out": ("20 states, one of four", "30 states, two of four"),
    "hidden or merged states": ("repeat the first action", "worn machine"),
    "partial observation": ("aliased maze",),
    "faint memories": ("a market",),
    "careless": ("20 states, no flags", "40 states, shuffled"),
}  # fmt: skip
"""Problems by development family, each with its smallest logs."""


class TaxiSetting(NamedTuple):
    """A pair of behavior and target, and logs as the paper's grid has them."""

    pair: str
    trajectories: int
    steps: int
    gammas: tuple[float, ...]
    logs: int


TAXI = (
    # Leaks and gamma near 1: here a ridge without a penalty on the total mass lost 1.9 in ln MSE.
    TaxiSetting("base -> trained", 200, 50, (0.9, 0.99, 0.999, 1.0), 20),
    TaxiSetting("base -> trained", 100, 100, (0.999,), 20),
    TaxiSetting("base, half uniform -> trained", 50, 100, (0.99, 0.999, 1.0), 20),
    TaxiSetting("base & earlier -> trained", 50, 50, (0.99, 1.0), 20),
    TaxiSetting("trained -> base", 50, 200, (0.99, 1.0), 10),
)
CHAINS = {"line of 40, stays 90 %": 5000, "20 rooms seldom entered": 4000, "cycle of 12 stages": 2000}
"""Chains of ``benchmarks/trust/stationary.py``, and the steps of one walk."""


class Seen(NamedTuple):
    """What one method answered about one log."""

    family: str
    setting: str
    method: str
    squared_error: float
    """nan where the method refused."""
    covered: float
    """Share of the truths covered; nan without an interval."""
    width: float
    """Of the interval, in units of the truth's scale; nan without one."""
    failed: tuple[str, ...]


class Task(NamedTuple):
    """A family's setting, to be judged by one process; ``pair`` of Taxi, or a name in ``SETTINGS``."""

    family: str
    name: str
    taxi: TaxiSetting | None = None


def tasks() -> list[Task]:
    """Every setting, those that take long first, so that two processes end at the same time."""
    return [
        *(Task("Taxi", f"{one.pair}, {one.trajectories} x {one.steps}", one) for one in TAXI),
        *(Task("chains", name) for name in CHAINS),
        *(Task(family, name) for family, names in SETTINGS.items() for name in names),
    ]


def judge(task: Task) -> list[Seen]:
    """Simulate the logs of a setting, and ask every method."""
    np.seterr(all="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if task.family == "chains":
            return list(_judge_chain(task))
        return list(_judge_problem(task))


@lru_cache(maxsize=8)
def _problem(family: str, name: str) -> Problem:
    found = {problem.name: problem for problem in families.problems("development", family)}
    return found[name]


def _judge_problem(task: Task) -> Iterator[Seen]:
    taxi = task.taxi
    problem = _problem(task.family, task.name if taxi is None else taxi.pair)
    if taxi is not None:
        problem = replace(problem, sizes=((taxi.trajectories, taxi.steps),), gammas=taxi.gammas)
    truths = {gamma: problem.headline(gamma) for gamma in problem.gammas}
    for number in range(LOGS if taxi is None else taxi.logs):
        log, counts = problem.log(0, number), None
        for gamma, truth in truths.items():
            case = methods.read(problem, log, gamma, counts)
            counts = case.counts
            scale = abs(truth) if abs(truth) > SMALLEST_ERROR else problem.model.reward_span
            for method in methods.METHODS:
                if not methods.applies(method, case, number):
                    continue
                found = methods.judge(method, case)
                known = math.isfinite(found.low) and math.isfinite(found.high)
                rounding = SMALLEST_ERROR * scale
                yield Seen(
                    task.family, f"{task.name}, gamma {gamma:g}", method,
                    max((found.value - truth) ** 2, rounding**2) if math.isfinite(found.value) else math.nan,
                    float(found.low - rounding <= truth <= found.high + rounding) if known else math.nan,
                    (found.high - found.low) / scale if known else math.nan, found.failed,
                )  # fmt: skip


def _judge_chain(task: Task) -> Iterator[Seen]:
    """The stationary distribution of one walk: squared distance, and the share of visited states covered."""
    matrix, steps = stationary.CHAINS[task.name][0], CHAINS[task.name]
    truth = stationary.stationary(matrix)
    for number in range(LOGS):
        rng = np.random.default_rng([number, 29])
        start = int(rng.choice(truth.size, p=truth))
        path = stationary.walk(matrix, start, steps, rng)
        counts = lg.Counts.from_transitions(
            path[:-1], path[1:], episode=np.zeros(steps, dtype=int), n_states=truth.size, keep_episodes=True
        )
        visits, initial = np.bincount(path[:-1], minlength=truth.size), np.eye(truth.size)[start]
        yield _seen_of_chain(task, "visits", visits / steps, truth)
        smoothed = lg.solve(counts, initial=initial, smoothing=0.5, threads=1)
        yield _seen_of_chain(task, "smoothed", smoothed.stationary, truth)
        solution = lg.solve(counts, initial=initial, threads=1)
        interval = solution.interval(methods.LEVEL, of="stationary")
        yield _seen_of_chain(task, methods.DEFAULT, solution.stationary, truth)._replace(
            covered=float(interval.contains(truth)[visits > 0].mean()),
            width=float((interval.high - interval.low).sum()),
            failed=tuple(check.name for check in lg.diagnose(solution) if not check.ok),
        )


def _seen_of_chain(task: Task, method: str, found: np.ndarray, truth: np.ndarray) -> Seen:
    squared = float(((found - truth) ** 2).sum())
    return Seen("chains", task.name, method, squared, math.nan, math.nan, ())


# -- summary -----------------------------------------------------------------------------------------------


def measure(workers: int = 2, chosen: list[Task] | None = None) -> dict[str, Any]:
    """Judge all settings in fresh processes, and summarize."""
    waiting = tasks() if chosen is None else chosen
    if workers == 1:
        return summarize([seen for task in waiting for seen in judge(task)])
    # Fresh interpreters: forks of a process that has run Numba's threads may hang.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return summarize([seen for part in pool.map(judge, waiting) for seen in part])


def summarize(seen: list[Seen]) -> dict[str, Any]:
    """Errors and widths of each setting, shares of each family and of all, by method."""
    by_setting: dict[str, dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))
    by_family: dict[str, dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        by_setting[f"{one.family}: {one.setting}"][one.method].append(one)
        for family in (one.family, "all families"):
            by_family[family][one.method].append(one)
    found: dict[str, Any] = {}
    for setting, by_method in by_setting.items():
        found[setting] = {
            ERRORS: _logarithms(by_method, lambda one: one.squared_error, np.mean),
            WIDTHS: _logarithms(
                {method: rows for method, rows in by_method.items() if method in CHECKED},
                lambda one: one.width, np.median,
            ),
        }  # fmt: skip
    for family, by_method in by_family.items():
        found[f"{family}, {SHARES}"] = {method: _shares(method, rows) for method, rows in by_method.items()}
    return found


def _logarithms(
    by_method: dict[str, list[Seen]], read: Callable[[Seen], float], middle: Callable[[Any], Any]
) -> dict[str, float]:
    found = {}
    for method, rows in by_method.items():
        given = np.array([read(one) for one in rows])
        given = given[np.isfinite(given)]
        if given.size >= 2 and middle(given) > 0:
            found[method] = round(math.log(middle(given)), 4)
    return found


def _shares(method: str, rows: list[Seen]) -> dict[str, float]:
    """Of all logs: refused, without an interval, covered where there is one, each failed check."""
    covered = np.array([one.covered for one in rows])
    given = np.isfinite(covered)
    shares = {
        "refused": np.mean([not math.isfinite(one.squared_error) for one in rows]),
        "no interval": np.mean(~given),
        "flagged": np.mean([bool(one.failed) for one in rows]),
    }
    if given.any():
        shares["covered"] = covered[given].mean()
    if method in CHECKED:
        for name in sorted({name for one in rows for name in one.failed}):
            shares[f"check: {name}"] = np.mean([name in one.failed for one in rows])
    return {name: round(float(share), 4) for name, share in shares.items()}


# -- comparing ---------------------------------------------------------------------------------------------


def drifted(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """(setting or family, what, before, now) wherever two summaries differ by more than is allowed."""
    for case in sorted(before.keys() | now.keys()):
        old, new = before.get(case, {}), now.get(case, {})
        of_shares = case.endswith(SHARES)
        for group in sorted(old.keys() | new.keys()):
            one, other = old.get(group, {}), new.get(group, {})
            for name in sorted(one.keys() | other.keys()):
                # A check that never failed is not in the record.
                unknown = 0.0 if of_shares and name.startswith("check: ") and one and other else None
                pair = one.get(name, unknown), other.get(name, unknown)
                if _apart(*pair, SHARE_TOLERANCE if of_shares else LN_TOLERANCE):
                    yield case, f"{group}, {name}", *pair


def _apart(before: float | None, now: float | None, tolerance: float) -> bool:
    if before is None or now is None:
        return True
    return abs(now - before) > tolerance + 1e-9
