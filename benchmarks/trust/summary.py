"""What the rows of a run say: errors, coverage, widths, the worth of the checks, and standard errors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trust.methods import AVERAGE, BASELINES, BOUNDED, DEFAULT, KNOWN, METHODS, SLOW_LOGS

Booleans = NDArray[np.bool_]
NEAR_ZERO = 1e-6
"""Truths below this share of the reward span are judged by the span."""
TOLERANCE = 0.05
EVEN = 1e-3
"""Root mean squared errors below this share of the truth count as equal to it."""
ZERO_WIDTH = 1e-9
"""In units of the scale: narrower intervals have no width."""


class Number(NamedTuple):
    """A statistic and its standard error; nan where there is nothing to count."""

    value: float
    error: float

    def text(self, digits: int = 2) -> str:
        return "-" if math.isnan(self.value) else f"{self.value:.{digits}f} ± {self.error:.{digits}f}"

    def percent(self) -> str:
        return Number(100 * self.value, 100 * self.error).text(1)


class Runs:
    """Rows as columns, with what follows from each row by itself."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)

        def column(name: str) -> NDArray:
            return np.array([row[name] for row in rows])

        def number(name: str) -> NDArray[np.float64]:
            return np.array([math.nan if row[name] is None else row[name] for row in rows], dtype=float)

        self.family, self.problem, self.method = column("family"), column("problem"), column("method")
        self.size, self.gamma, self.log = column("size"), column("gamma"), column("log")
        self.worst_shown = np.array([row.get("worst_shown", True) for row in rows], dtype=bool)
        self.value, self.low, self.high = number("value"), number("low"), number("high")
        self.truth, span, self.seconds = number("truth"), number("span"), number("seconds")
        small = np.abs(self.truth) < NEAR_ZERO * span
        self.scale = np.where(small, span, np.abs(self.truth))
        self.answered = np.isfinite(self.value)
        self.given = np.isfinite(self.low) & np.isfinite(self.high)
        half = np.where(self.given, (self.high - self.low) / 2, 0.0)
        error = np.where(self.answered, np.abs(self.value - self.truth), np.inf)
        rounding = 1e-9 * self.scale
        self.covered = self.given & (self.low - rounding <= self.truth) & (self.truth <= self.high + rounding)
        self.fires: dict[str, Booleans] = {}
        for i, row in enumerate(rows):
            for name in row["failed"]:
                self.fires.setdefault(name, np.zeros(len(rows), dtype=bool))[i] = True
        self.flagged = np.array([bool(row["failed"]) for row in rows], dtype=bool)
        markov = [fires for name, fires in self.fires.items() if "markov" in name.lower()]
        self.markov = np.logical_or.reduce([np.zeros(len(rows), dtype=bool), *markov])
        self.failure = error > 3 * half / 1.96 + TOLERANCE * self.scale
        self.no_width = self.given & (half <= ZERO_WIDTH * self.scale) & (error > EVEN * self.scale)
        self.width = np.where(self.given, 2 * half / self.scale, np.nan)
        self.stratum = _number([self.problem_key(i) for i in range(len(rows))])
        self.cluster = _number([(*self.problem_key(i), self.log[i]) for i in range(len(rows))])

    def problem_key(self, i: int) -> tuple[Any, ...]:
        return self.family[i], self.problem[i], int(self.size[i])

    def share(self, hit: Booleans, among: Booleans) -> Number:
        """Share of ``among`` that is hit, over clusters: the gammas of one log are not independent.

        Problems and sizes are strata, since a repetition has the same ones. Where no two clusters differ, as
        where all or none are hit, the error is that of one cluster: 1 / (their number).
        """
        total = int(among.sum())
        if total == 0:
            return Number(math.nan, math.nan)
        share = float((hit & among).sum() / total)
        clusters = np.unique(self.cluster[among]).size
        error = self.standard_error(((hit & among) - share * among) / total, among)
        return Number(share, error if error > 1e-12 else 1 / clusters)

    def standard_error(self, influence: NDArray[np.float64], among: Booleans) -> float:
        """Root of the sum of squares of the clusters' influences, centered within strata."""
        cluster, first = np.unique(self.cluster[among], return_index=True)
        place = np.searchsorted(cluster, self.cluster[among])
        sums = np.bincount(place, weights=influence[among])
        stratum = np.unique(self.stratum[among][first], return_inverse=True)[1]
        count = np.bincount(stratum)
        mean = np.bincount(stratum, weights=sums) / count
        # A single log in a stratum says nothing of its spread: it stays uncentered.
        centered = np.where(count[stratum] > 1, sums - mean[stratum], sums)
        return float(np.sqrt((centered**2 * count[stratum] / np.maximum(count[stratum] - 1, 1)).sum()))


def _number(keys: list[tuple[Any, ...]]) -> NDArray[np.int64]:
    place: dict[tuple[Any, ...], int] = {}
    return np.array([place.setdefault(key, len(place)) for key in keys], dtype=np.int64)


class Cell(NamedTuple):
    """A method on one problem, size and gamma."""

    family: str
    problem: str
    size: int
    gamma: float
    method: str
    logs: int
    unanswered: int
    ln_mse: float
    bias: float
    """Mean error."""
    scale: float
    rows: NDArray[np.int64]
    relative: NDArray[np.float64]
    """Squared errors over their mean: the influence of each log on the logarithm."""


def cells(runs: Runs) -> dict[tuple[str, str, int, float], dict[str, Cell]]:
    """Errors by problem, size, gamma and method; a missing answer is replaced by the log's plain average."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i in range(runs.value.size):
        key = (*runs.problem_key(i), float(runs.gamma[i]), str(runs.method[i]))
        groups.setdefault(key, []).append(i)
    plain = {
        (*runs.problem_key(i), float(runs.gamma[i]), int(runs.log[i])): runs.value[i]
        for i in np.flatnonzero(runs.method == AVERAGE)
    }
    found: dict[tuple[str, str, int, float], dict[str, Cell]] = {}
    for (*place, method), members in groups.items():
        rows = np.array(members)
        value = np.array(
            [
                runs.value[i] if runs.answered[i] else plain.get((*place, int(runs.log[i])), math.nan)
                for i in rows
            ]
        )
        scale = float(runs.scale[rows[0]])
        error = value - runs.truth[rows]
        squared = error**2
        mse = max(float(squared.mean()), (EVEN * scale) ** 2)
        cell = Cell(
            *place, method, rows.size, int((~runs.answered[rows]).sum()), math.log(mse), float(error.mean()),
            scale, rows, squared / mse,
        )  # fmt: skip
        found.setdefault(tuple(place), {})[method] = cell
    return found


def best_baseline(methods: dict[str, Cell]) -> Cell | None:
    """The baseline of least error, among those that answered every log they saw, and saw enough."""
    least = min(SLOW_LOGS, max(cell.logs for cell in methods.values()))
    able = [
        methods[name]
        for name in BASELINES
        if name in methods and methods[name].unanswered == 0 and methods[name].logs >= least
    ]
    return min(able, key=lambda cell: cell.ln_mse) if able else None


def regret(runs: Runs, chosen: list[dict[str, Cell]], method: str = DEFAULT) -> Number:
    """Mean over cells of ln MSE minus that of the best baseline in hindsight."""
    influence = np.zeros(runs.value.size)
    among = np.zeros(runs.value.size, dtype=bool)
    gaps = []
    for methods in chosen:
        best = best_baseline(methods)
        if method not in methods or best is None or not math.isfinite(methods[method].ln_mse):
            continue
        gaps.append(_add_gap(methods[method], best, influence, among))
    return _mean_gap(runs, gaps, influence, among)


def _add_gap(first: Cell, second: Cell, influence: NDArray[np.float64], among: Booleans) -> float:
    """The difference of two ln MSE; what each log adds to it is added to ``influence``."""
    for cell, sign in ((first, 1.0), (second, -1.0)):
        influence[cell.rows] += sign * cell.relative / cell.logs
        among[cell.rows] = True
    return first.ln_mse - second.ln_mse


def _mean_gap(runs: Runs, gaps: list[float], influence: NDArray[np.float64], among: Booleans) -> Number:
    if not gaps:
        return Number(math.nan, math.nan)
    return Number(float(np.mean(gaps)), runs.standard_error(influence / len(gaps), among))


def excess(runs: Runs, chosen: list[dict[str, Cell]], method: str) -> Number:
    """Mean over cells of the method's ln MSE minus the default's: above 0 the default is better."""
    influence = np.zeros(runs.value.size)
    among = np.zeros(runs.value.size, dtype=bool)
    gaps = []
    for methods in chosen:
        if method not in methods or DEFAULT not in methods:
            continue
        gaps.append(_add_gap(methods[method], methods[DEFAULT], influence, among))
    return _mean_gap(runs, gaps, influence, among)


def mean_ln_mse(runs: Runs, chosen: list[dict[str, Cell]], method: str) -> Number:
    """Mean ln MSE over the cells where the method applies."""
    influence = np.zeros(runs.value.size)
    among = np.zeros(runs.value.size, dtype=bool)
    held = [methods[method] for methods in chosen if method in methods]
    held = [cell for cell in held if math.isfinite(cell.ln_mse)]
    if not held:
        return Number(math.nan, math.nan)
    for cell in held:
        influence[cell.rows] = cell.relative / cell.logs / len(held)
        among[cell.rows] = True
    return Number(float(np.mean([cell.ln_mse for cell in held])), runs.standard_error(influence, among))


def judge_default(runs: Runs, mine: Booleans, method: str = DEFAULT) -> dict[str, Any]:
    """Intervals and checks of the default over some rows; an interval that it withholds does not cover."""
    among = mine & (runs.method == method)
    quiet, bad = among & ~runs.flagged, runs.failure
    width = runs.width[among]
    return {
        "runs": int(among.sum()),
        "unanswered": runs.share(~runs.answered, among),
        "coverage": runs.share(runs.covered, among),
        "coverage_unflagged": runs.share(runs.covered, quiet),
        "median_width": float(np.nanmedian(width)) if np.isfinite(width).any() else math.nan,
        "failures": runs.share(bad, among),
        "failures_flagged": runs.share(runs.flagged, among & bad),
        "good_alarmed": runs.share(runs.flagged, among & ~bad),
        "silent_failures": runs.share(bad & ~runs.flagged, among),
        "zero_width_wrong": runs.share(runs.no_width, among),
        "flagged": runs.share(runs.flagged, among),
        "markov_alarms": runs.share(runs.markov, among),
        "median_seconds": float(np.median(runs.seconds[among])) if among.any() else math.nan,
    }


def _paired(runs: Runs, mine: Booleans, method: str) -> dict[str, Any]:
    """A variant of the default beside the default on the same logs: it does not apply to all of them."""
    key = _number([(*runs.problem_key(i), float(runs.gamma[i]), int(runs.log[i])) for i in range(mine.size)])
    same = mine & np.isin(key, key[mine & (runs.method == method)])
    return judge_default(runs, mine, method) | {"untold": judge_default(runs, same)}


def _worst_not_shown(runs: Runs, mine: Booleans) -> dict[str, Number]:
    """Shares of runs, failures and silent failures whose log does not show the worst reward there is."""
    among = mine & (runs.method == DEFAULT)
    silent = among & runs.failure & ~runs.flagged
    hidden = ~runs.worst_shown
    return {
        "runs": runs.share(hidden, among),
        "failures": runs.share(hidden, among & runs.failure),
        "silent_failures": runs.share(hidden, silent),
        "silent_where_shown": runs.share(silent, among & ~hidden),
        "covered_where_shown": runs.share(runs.covered, among & ~hidden & ~runs.flagged),
    }


def check_rates(runs: Runs, mine: Booleans) -> dict[str, dict[str, Number]]:
    """How often each check of the default fires among failures and among good runs."""
    among = mine & (runs.method == DEFAULT)
    return {
        name: {
            "failures": runs.share(fires, among & runs.failure),
            "good": runs.share(fires, among & ~runs.failure),
        }
        for name, fires in sorted(runs.fires.items())
        if (fires & among).any()
    }


def summarize(rows: Iterable[dict[str, Any]], fits: dict[str, bool]) -> dict[str, Any]:
    """Everything the tables show. ``fits`` tells which families a Markov model fits."""
    runs = Runs(rows)
    every = cells(runs)
    families = [family for family in fits if (runs.family == family).any()]
    groups = {family: [family] for family in families}
    groups["all that a Markov model fits"] = [family for family in families if fits[family]]
    groups["all that it does not"] = [family for family in families if not fits[family]]
    result: dict[str, Any] = {"groups": {}, "cells": [], "by_size": {}}
    for name, members in groups.items():
        if not members:
            continue
        chosen = [methods for place, methods in every.items() if place[0] in members]
        mine = np.isin(runs.family, members)
        result["groups"][name] = {
            "problems": len({place[:2] for place in every if place[0] in members}),
            "logs": _range([methods[DEFAULT].logs for methods in chosen if DEFAULT in methods]),
            "ln_mse": {method: mean_ln_mse(runs, chosen, method) for method in METHODS},
            "regret": {method: regret(runs, chosen, method) for method in METHODS},
            "excess": {method: excess(runs, chosen, method) for method in (*BASELINES, KNOWN)},
            "bias": _bias(chosen),
            **judge_default(runs, mine),
            "coverage_of": {
                method: runs.share(runs.covered, mine & runs.given & (runs.method == method))
                for method in METHODS
            },
            "checks": check_rates(runs, mine),
            "variants": {method: _paired(runs, mine, method) for method in (BOUNDED, KNOWN)},
            "worst_not_shown": _worst_not_shown(runs, mine),
        }
    fields = ("family", "problem", "size", "gamma", "method", "logs", "unanswered", "ln_mse", "bias", "scale")
    for methods in every.values():
        result["cells"] += [{field: getattr(cell, field) for field in fields} for cell in methods.values()]
    result["by_size"] = _by_size(every)
    return result


def _range(numbers: list[int]) -> tuple[int, int]:
    return (min(numbers), max(numbers)) if numbers else (0, 0)


def _bias(chosen: list[dict[str, Cell]]) -> dict[str, float]:
    """Median over cells of |mean error| / |truth|, and the mean share of the squared error that is bias."""
    held = [methods[DEFAULT] for methods in chosen if DEFAULT in methods]
    held = [cell for cell in held if math.isfinite(cell.bias)]
    if not held:
        return {"median": math.nan, "share": math.nan}
    share = [min(1.0, cell.bias**2 / math.exp(cell.ln_mse)) for cell in held]
    return {
        "median": float(np.median([abs(cell.bias) / cell.scale for cell in held])),
        "share": float(np.mean(share)),
    }


def _by_size(every: dict[tuple[str, str, int, float], dict[str, Cell]]) -> dict[str, list[float]]:
    """The default's ln MSE, averaged over gammas, by log size, where a problem has four sizes or more."""
    found: dict[str, dict[int, list[float]]] = {}
    for (family, problem, size, _), methods in every.items():
        if DEFAULT in methods:
            found.setdefault(f"{family}: {problem}", {}).setdefault(size, []).append(methods[DEFAULT].ln_mse)
    return {
        name: [float(np.mean(sizes[size])) for size in sorted(sizes)]
        for name, sizes in found.items()
        if len(sizes) >= 4
    }
