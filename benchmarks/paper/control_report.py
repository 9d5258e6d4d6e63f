"""Tables and figures of the control experiments, from the runs there are."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import control_plan as plan
import numpy as np
from figures import draw_line, finish, new_figure
from reporting import errors, table, write

Runs = dict[tuple[str, int, str], dict[str, Any]]
Truth = dict[str, dict[str, dict[str, float]]]
TRAINED = ("DualDICE", "GenDICE", "ours", "ours, cloned base")
"""Methods whose estimate is shown over training steps."""
GAMMA_LABEL = {0.99: "gamma 0.99", 1.0: "average reward"}


class Summary:
    """Errors over reported seeds, by setting and method."""

    def __init__(self, mode: plan.Mode, runs: Runs, truth: Truth) -> None:
        self.mode, self.truth = mode, truth
        self.entries: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for (setting, seed, method), entry in sorted(runs.items()):
            if seed < plan.FIRST_TUNING_SEED:
                self.entries[setting, method].append(entry)

    def true_value(self, setting: plan.Setting) -> float:
        return self.truth[setting.environment][f"{setting.gamma:g}"]["value"]

    def cell(self, setting: plan.Setting, method: str) -> dict[str, Any] | None:
        """Errors of one method in one setting; None where nothing was run, no standard error from one log."""
        entries = self.entries.get((setting.key, method), [])
        given = np.array([entry["value"] for entry in entries])
        given = given[np.isfinite(given)]
        if given.size == 0:
            return None
        truth = self.true_value(setting)
        if given.size == 1:
            error = float(given[0] - truth)
            found = {"ln_mse": math.log(error**2), "ln_mse_se": None, "bias": error, "sd": None, "n": 1}
        else:
            found = dict(errors(given, truth))
        return {
            **found,
            "refused": len(entries) - int(given.size),
            "seconds": float(np.mean([entry["seconds"] for entry in entries])),
        }

    def curve(self, setting: plan.Setting, method: str) -> tuple[list[int], Any] | None:
        """Training steps, and estimates of shape (seeds, steps)."""
        curves = [e["curve"] for e in self.entries.get((setting.key, method), []) if "curve" in e]
        if not curves:
            return None
        return [step for step, _ in curves[0]], np.array([[value for _, value in curve] for curve in curves])


def settings_run(summary: Summary) -> list[plan.Setting]:
    """Settings of the plan with at least one cell, in order."""
    known = {key for key, _ in summary.entries}
    return list(dict.fromkeys(job.setting for job in plan.jobs(summary.mode) if job.setting.key in known))


def draw_panels(summary: Summary, environment: str) -> None:
    """Log MSE by behavior, number and length of trajectories; discounted and average reward."""
    names = {"behavior": "alpha", "trajectories": "trajectories", "steps": "truncation length"}
    panels = [
        (gamma, name)
        for gamma in plan.GAMMAS
        for name in names
        if sum(any(summary.cell(one, m) for m in plan.HEADLINE)
               for one in plan.axis(environment, gamma, name, summary.mode)) > 1
    ]  # fmt: skip
    if not panels:
        return
    figure, axes = new_figure(len(panels), width=3.6, height=4.4)
    for one, (gamma, name) in zip(axes, panels, strict=True):
        settings = plan.axis(environment, gamma, name, summary.mode)
        settings = [s for s in settings if any(summary.cell(s, m) for m in plan.HEADLINE)]
        for place, method in enumerate(plan.HEADLINE):
            draw_cells(one, place, method, [summary.cell(setting, method) for setting in settings])
        one.set_xticks(range(len(settings)), [str(getattr(setting, name)) for setting in settings])
        one.set_xlabel(names[name])
        one.set_title(f"{environment}, {GAMMA_LABEL[gamma]}", fontsize=9)
    axes[0].set_ylabel("natural log of the MSE (± s.e.)")
    finish(figure, axes, f"control_{environment}_{summary.mode.name}")


def draw_cells(axes: Any, place: int, label: str, cells: list[dict[str, Any] | None]) -> None:
    """One method's points where there are any."""
    x = [k for k, cell in enumerate(cells) if cell]
    if x:
        y, spread = ([cell[key] or 0.0 for cell in cells if cell] for key in ("ln_mse", "ln_mse_se"))
        draw_line(axes, place, label, x, y, spread)


def draw_training(summary: Summary, environment: str) -> None:
    """Log MSE (left) and estimate (right) over training steps, for each behavior and gamma."""
    shown = [
        setting
        for gamma in plan.GAMMAS
        for setting in plan.axis(environment, gamma, "behavior", summary.mode)
        if summary.curve(setting, "GenDICE")
    ]
    if not shown:
        return
    for what in ("error", "estimate"):
        figure, axes = new_figure(len(shown), width=3.0, height=4.0)
        for one, setting in zip(axes, shown, strict=True):
            truth = summary.true_value(setting)
            for place, method in enumerate(TRAINED):
                found = summary.curve(setting, method)
                if not found:
                    continue
                steps, values = found
                if what == "error":
                    draw_line(one, place, method, steps, np.log(((values - truth) ** 2).mean(axis=0)))
                else:
                    draw_line(one, place, method, steps, values.mean(axis=0), values.std(axis=0))
            if what == "estimate":
                one.axhline(truth, color="black", linestyle="--", linewidth=1.2, label="truth")
            one.set_title(f"{GAMMA_LABEL[setting.gamma]}, alpha {setting.behavior}", fontsize=9)
            one.set_xlabel("training steps")
        label = "natural log of the MSE" if what == "error" else "estimate (± s.d. over logs)"
        axes[0].set_ylabel(f"{environment}: {label}")
        finish(figure, axes, f"control_{environment}_{what}_{summary.mode.name}")


def draw_ablations(summary: Summary, environment: str) -> None:
    """Learning rate, output, discount and penalty."""
    middle = {gamma: plan.center(environment, gamma, summary.mode) for gamma in plan.ABLATION_GAMMAS}
    by_alpha = {one.behavior: one for one in plan.axis(environment, 1.0, "behavior", summary.mode)}
    rates, outputs = [f"{rate:g}" for rate in plan.RATES], list(plan.OUTPUTS)
    penalties = [f"{penalty:g}" for penalty in plan.PENALTIES]
    panels = [
        ("rate", rates, {f"alpha {a}": [(by_alpha[a], f"GenDICE, rate {v}") for v in rates]
                         for a in ("0", "0.33")}),
        ("output", outputs, {f"alpha {a}": [(by_alpha[a], f"GenDICE, output {v}") for v in outputs]
                             for a in ("0", "0.33", "0.66")}),
        ("gamma", [f"{g:g}" for g in middle], {m: [(s, m) for s in middle.values()] for m in TRAINED}),
        ("penalty", penalties, {GAMMA_LABEL[g]: [(middle[g], f"GenDICE, penalty {v}") for v in penalties]
                                for g in plan.GAMMAS}),
    ]  # fmt: skip
    panels = [
        one for one in panels if any(summary.cell(*where) for line in one[2].values() for where in line)
    ]
    if not panels:
        return
    figure, axes = new_figure(len(panels), width=3.6, height=4.0)
    for one, (name, values, lines) in zip(axes, panels, strict=True):
        for place, (label, where) in enumerate(lines.items()):
            draw_cells(one, place, label, [summary.cell(*cell) for cell in where])
        one.set_xticks(range(len(values)), values)
        one.set_xlabel(name)
        one.set_title(f"{environment}: {name}", fontsize=9)
        one.legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("natural log of the MSE (± s.e.)")
    finish(figure, axes, f"control_{environment}_ablations_{summary.mode.name}", legend=False)


def show(cell: dict[str, Any] | None, best: float) -> str:
    """Log MSE with its standard error, the best in bold."""
    if cell is None:
        return ""
    bold = "**" if cell["ln_mse"] == best else ""
    spread = "" if cell["ln_mse_se"] is None else f" ± {cell['ln_mse_se']:.1f}"
    return f"{bold}{cell['ln_mse']:.2f}{bold}{spread}"


def headline_table(summary: Summary) -> str:
    """Log MSE of every method in every setting."""
    rows = []
    for setting in settings_run(summary):
        cells = {method: summary.cell(setting, method) for method in plan.HEADLINE}
        if not any(cells.values()):
            continue
        best = min((c["ln_mse"] for c in cells.values() if c), default=math.nan)
        texts = [show(cell, best) for cell in cells.values()]
        n = max(cell["n"] for cell in cells.values() if cell)
        log = f"{setting.trajectories} x {setting.steps}"
        rows.append([setting.environment, f"{setting.gamma:g}", log, setting.behavior, str(n), *texts])
    return table(["environment", "gamma", "log", "alpha", "logs", *plan.HEADLINE], rows)


def duel(summary: Summary, settings: list[plan.Setting], method: str, baseline: str) -> str:
    """In how many settings the mean squared error is smaller, over logs that both have; mean difference."""
    differences = []
    for setting in settings:
        truth = summary.true_value(setting)
        squares = [
            {entry["seed"]: (entry["value"] - truth) ** 2 for entry in summary.entries[setting.key, name]}
            for name in (method, baseline)
        ]
        both = squares[0].keys() & squares[1].keys()
        if both:
            ours, theirs = (sum(one[seed] for seed in both) for one in squares)
            differences.append(math.log(ours / theirs))
    if not differences:
        return ""
    won = sum(one < 0 for one in differences)
    return f"{won} of {len(differences)} ({np.mean(differences):+.1f})"


def duels_table(summary: Summary) -> str:
    """Our methods against the others over the headline settings of each environment and gamma."""
    baselines = ("DualDICE", "IS, cloned", "naive", "model-based", "cloned base, untrained")
    headline = [one for one in settings_run(summary) if one.gamma in plan.GAMMAS]
    rows = []
    for gamma in plan.GAMMAS:
        for environment in plan.ENVIRONMENTS:
            settings = [s for s in headline if (s.environment, s.gamma) == (environment, gamma)]
            for method in ("GenDICE", "ours", "ours, cloned base"):
                texts = [duel(summary, settings, method, baseline) for baseline in baselines]
                rows.append([environment, f"{gamma:g}", method, *texts])
    return table(["environment", "gamma", "method", *(f"over {baseline}" for baseline in baselines)], rows)


def ablation_table(summary: Summary) -> str:
    """Log MSE of the ablated variants."""
    rows = []
    for job in plan.jobs(summary.mode):
        for method in job.methods:
            cell = summary.cell(job.setting, method)
            if cell and method not in plan.HEADLINE:
                rows.append(
                    [job.setting.key, method, show(cell, math.nan), f"{cell['bias']:.4g}", str(cell["n"])]
                )
    return table(["setting", "method", "ln MSE", "bias", "logs"], rows) if rows else "None run yet."


def report(mode: plan.Mode, runs: Runs, choices: dict[str, dict[str, float | None]], truth: Truth) -> None:
    """Write the figures, the JSON summary and the page of one mode."""
    summary = Summary(mode, runs, truth)
    for environment in plan.ENVIRONMENTS:
        draw_panels(summary, environment)
        draw_training(summary, environment)
        if mode.ablation_seeds:
            draw_ablations(summary, environment)
    everything = plan.jobs(mode)
    planned = {
        (job.setting, method, k) for job in everything for method in job.methods for k in range(job.seeds)
    }
    done = sum((setting.key, plan.FIRST_SEED + k, method) in runs for setting, method, k in planned)
    cells = [
        {"setting": job.setting.key, "method": method, **cell}
        for job in everything
        for method in job.methods
        if (cell := summary.cell(job.setting, method))
    ]
    truths = [
        [environment, gamma, f"{one['value']:.5f}", f"{one['standard_error']:.1g}",
         f"{one['n_trajectories']} x {one['n_steps']}"]
        for environment, known in truth.items()
        for gamma, one in known.items()
    ]  # fmt: skip
    picked = [[place, *(f"{method}: {value:g}" for method, value in one.items() if value is not None)]
              for place, one in choices.items()]  # fmt: skip
    text = (
        f"# Control experiments ({mode.name} run)\n\n"
        f"{done:,} of the {len(planned):,} estimates of this mode are there. "
        f"{mode.training_steps:,} training steps, batches of {mode.batch}, two hidden layers of 64 (tanh). "
        f"Reported logs have seeds from {plan.FIRST_SEED}; tuning logs ({mode.tuning_logs} for each "
        f"environment and gamma) from {plan.FIRST_TUNING_SEED}. In each cell: natural log of the mean "
        "squared error over logs ± its standard error; the least of a row in bold. From a single log there "
        "is no standard error, and little to conclude.\n\n"
        f"{headline_table(summary)}\n\n## Settings won\n\n"
        "Settings in which the mean squared error is smaller, over the logs that both methods have, and the "
        "mean difference of the logarithms (negative is better).\n\n"
        f"{duels_table(summary)}\n\n## Ablations\n\n{ablation_table(summary)}\n\n"
        f"## True values\n\n{table(['environment', 'gamma', 'value', 's.e.', 'rollouts'], truths)}\n\n"
        "## Chosen on the tuning logs\n\n"
        + "\n".join(f"- {one[0]}: {'; '.join(one[1:]) or 'not tuned yet'}" for one in picked)
    )
    write(
        f"control_{mode.name}",
        {"mode": mode.name, "training_steps": mode.training_steps, "estimates_done": done,
         "estimates_planned": len(planned), "chosen": choices, "truth": truth, "cells": cells},
        text,
    )  # fmt: skip
