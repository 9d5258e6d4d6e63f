"""The summary as Markdown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trust.methods import BASELINES, DEFAULT, KNOWN, METHODS, SLOW_CELLS, SLOW_LOGS


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def share(hits: list[float]) -> str:
    """A mean in percent with its standard error; at least one in n."""
    n, mean = len(hits), float(np.mean(hits))
    error = float(np.std(hits, ddof=1)) / n**0.5
    return f"{100 * mean:.1f} ± {100 * (error if error > 0 else 1 / n):.1f}"


def markdown(summary: dict[str, Any], title: str) -> str:
    """Accuracy, intervals and checks by family, each check, every method's coverage, and error by size."""
    groups = summary["groups"]
    parts = [
        f"# {title}",
        "ln MSE: mean over problems, sizes and gammas of the natural logarithm of the mean squared error of "
        "the value per step, where the method is defined: those with * lack some cells (DualDICE and DR need "
        "gamma < 1; WIS at gamma = 1 needs logs without ends). DualDICE sees at most "
        f"{SLOW_LOGS} logs of models of more than {SLOW_CELLS:,} cells. Regret: the default's ln MSE minus "
        "that of the best baseline in hindsight, cell by cell. ± is one standard error over logs.",
        _accuracy(groups),
        "ln MSE minus the default's on the same cells: above 0 the default is better.",
        _excess(groups),
        "The default's 95 % intervals and checks, in %. A failure is an error above 3 half-widths / 1.96 + "
        "5 % of the truth, a good run any other; flagged: a check failed; silent: failures without a failed "
        "check, of all runs; width and bias are medians relative to the truth.",
        _intervals(groups),
        "The same where the range of rewards, or the behavior, is told, beside nothing on the same logs (not "
        "every log: a behavior is known where there is one).",
        _variants(groups),
        "Each check: how often it fires, in % of failures and of good runs, where a Markov model fits.",
        _checks(groups),
        "Logs that do not show the worst reward that can occur, in % of runs, of failures and of silent "
        "failures; and, of logs that show it, silent failures and the coverage of what is not flagged.",
        _worst(groups),
        "Coverage of each method's own interval, in % of those that it gives.",
        _coverages(groups),
    ]
    if summary["by_size"]:
        parts += ["The default's ln MSE by log size, mean over gammas.", _sizes(summary["by_size"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _accuracy(groups: dict[str, Any]) -> str:
    rows = []
    for name, group in groups.items():
        low, high = group["logs"]
        logs = f"{low}" if low == high else f"{low} - {high}"
        rows.append(
            [name, str(group["problems"]), logs]
            + [group["ln_mse"][method].text() for method in METHODS]
            + [group["regret"][DEFAULT].text()]
        )
    names = [name + "*" * (name in ("DualDICE", "WIS", "DR")) for name in METHODS]
    return table(["family", "problems", "logs", *names, "regret of the default"], rows)


def _excess(groups: dict[str, Any]) -> str:
    rows = [
        [name, *(group["excess"][method].text() for method in (*BASELINES, KNOWN))]
        for name, group in groups.items()
    ]
    return table(["family", *BASELINES, KNOWN], rows)


def _intervals(groups: dict[str, Any]) -> str:
    header = [
        "family", "runs", "bias", "bias^2 / MSE", "coverage", "coverage, unflagged", "width", "failures",
        "failures flagged", "good runs alarmed", "silent", "zero width, wrong", "flagged", "Markov alarms",
        "ms",
    ]  # fmt: skip
    rows = [
        [
            name, str(group["runs"]), _percent(group["bias"]["median"]), _percent(group["bias"]["share"]),
            group["coverage"].percent(), group["coverage_unflagged"].percent(),
            _percent(group["median_width"]), group["failures"].percent(), group["failures_flagged"].percent(),
            group["good_alarmed"].percent(), group["silent_failures"].percent(),
            group["zero_width_wrong"].percent(), group["flagged"].percent(), group["markov_alarms"].percent(),
            f"{1000 * group['median_seconds']:.0f}",
        ]
        for name, group in groups.items()
    ]  # fmt: skip
    return table(header, rows)


def _variants(groups: dict[str, Any]) -> str:
    header = ["family", "told", "runs", "coverage", "coverage, unflagged", "width", "failures",
              "failures flagged", "good runs alarmed", "silent"]  # fmt: skip
    rows = [
        [
            name, told, str(found["runs"]), found["coverage"].percent(),
            found["coverage_unflagged"].percent(), _percent(found["median_width"]),
            found["failures"].percent(), found["failures_flagged"].percent(),
            found["good_alarmed"].percent(), found["silent_failures"].percent(),
        ]
        for name, group in groups.items()
        for method, variant in group["variants"].items()
        for told, found in (("nothing", variant["untold"]), (method.partition(", ")[2], variant))
        if found["runs"]
    ]  # fmt: skip
    return table(header, rows)


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _checks(groups: dict[str, Any]) -> str:
    rates = groups.get("all that a Markov model fits", {}).get("checks", {})
    rows = [[name, rate["failures"].percent(), rate["good"].percent()] for name, rate in rates.items()]
    return table(["check", "failures", "good runs"], rows) if rows else ""


def _worst(groups: dict[str, Any]) -> str:
    names = ("runs", "failures", "silent_failures", "silent_where_shown", "covered_where_shown")
    rows = [
        [name, *(group["worst_not_shown"][one].percent() for one in names)]
        for name, group in groups.items()
        if name in ("ruin", "all that a Markov model fits")
    ]
    header = ["family", "runs", "failures", "silent failures", "silent where shown", "covered where shown"]
    return table(header, rows)


def _coverages(groups: dict[str, Any]) -> str:
    rows = [
        [name, *(group["coverage_of"][method].percent() for method in METHODS)]
        for name, group in groups.items()
    ]
    return table(["family", *METHODS], rows)


def _sizes(by_size: dict[str, list[float]]) -> str:
    most = max(len(errors) for errors in by_size.values())
    rows = [
        [
            name,
            *(f"{error:.2f}" for error in errors),
            "yes" if errors == sorted(errors, reverse=True) else "no",
        ]
        for name, errors in by_size.items()
    ]
    return table(["problem", *(f"size {number + 1}" for number in range(most)), "falls"], rows)
