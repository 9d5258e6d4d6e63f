"""Offline PageRank ablations of the paper: divergences, penalty weight, penalty against self-normalization.

    python benchmarks/paper/opr_ablations.py [--trials 20] [--write] [--only PART ...]

Barabasi-Albert graph of 100 nodes (4 edges a new node), weights |N(0, 1)| for each direction normalized by
row, one walk of 10,000 steps, KL(true || estimated), natural logarithms of its mean. The asymptotic bound
for a walk is (1 / 2N) sum_i S_ii / mu_i with S = diag(mu) Z + Z' diag(mu) - diag(mu) - mu mu' and
Z = (I - P + 1 mu')^-1.

On one long walk the visit counts p are themselves close to the distribution, tau = 1 to within a few per
cent, so a
method that starts at tau = 1 has nothing to do. SGD therefore starts from the distribution that knows
nothing, mu uniform over the nodes, here.

``--only`` runs some parts anew and keeps the others as committed: ``normalization_sgd`` compares at equal
running time, and wants a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
from reporting import provenance

import lingendice as lg
from lingendice.divergences import MMD, Wasserstein

HERE = Path(__file__).parent
NODES, STEPS = 100, 10_000
PENALTIES = (0.1, 0.3, 1.0, 3.0, 5.0)
EXACT = {
    "chi2": "chi2",
    "jensen_shannon": "jensen_shannon",
    "hellinger": "hellinger",
    "kl": "kl",
    "reverse_kl": "reverse_kl",
    "total_variation": "total_variation",
    "mmd (learned kernel)": MMD(bandwidth="learned"),
    "wasserstein": "wasserstein",
    "wasserstein (gradient penalty)": Wasserstein(gradient_penalty=10.0),
    "dudley": "dudley",
}
BY_SGD = ("chi2", "jensen_shannon", "hellinger", "kl", "reverse_kl", "total_variation")
BOUND = 5.0
"""The paper's C; tau lies well within it."""
STEPS_SGD = 5_000_000
BUDGET_SECONDS = (0.03, 0.1, 0.3, 1.0)


def make_trial(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(counts of one walk, true distribution, transition matrix)."""
    rng = np.random.default_rng(seed)
    graph = nx.barabasi_albert_graph(NODES, 4, seed=seed)
    weights = nx.to_numpy_array(graph) * np.abs(rng.standard_normal((NODES, NODES)))
    step = weights / weights.sum(axis=1, keepdims=True)
    system = np.vstack([step.T - np.eye(NODES), np.ones(NODES)])
    distribution = np.linalg.lstsq(system, np.append(np.zeros(NODES), 1.0), rcond=None)[0]
    rises = np.cumsum(step, axis=1)
    counts = np.zeros((NODES, NODES), dtype=np.int64)
    at = int(rng.choice(NODES, p=distribution))
    for draw in rng.uniform(size=STEPS):
        following = min(int(np.searchsorted(rises[at], draw)), NODES - 1)
        counts[at, following] += 1
        at = following
    return counts, distribution, step


def efficiency_bound(distribution: np.ndarray, step: np.ndarray) -> float:
    """Mean KL that no regular estimator from a walk beats, to first order in 1 / N."""
    z = np.linalg.inv(np.eye(NODES) - step + distribution[None, :])
    spread = distribution * np.diag(z) * 2 - distribution - distribution * distribution
    return float((spread / distribution).sum() / (2 * STEPS))


def kl(distribution: np.ndarray, solution: lg.Solution) -> float:
    """KL(true || estimated), the estimate normalized and kept above the smallest float."""
    estimate = np.maximum(solution.stationary, 1e-300)
    estimate = estimate / estimate.sum()
    return float((distribution * np.log(distribution / estimate)).sum())


def by_sgd(counts: np.ndarray, seed: int, **choices: object) -> lg.Solution:
    """SGD with the step sizes of the analysis, from mu uniform over the nodes."""
    start = lg.solve(counts, method="convex", tol=1e-3)
    p = counts.sum(axis=1) / counts.sum()
    uniform = replace(start, w_tau=1.0 / (NODES * np.maximum(p, 1.0 / STEPS)))
    return lg.solve(counts, method="sgd", bound=BOUND, seed=seed, warm_start=uniform, **choices)


def summary(values: list[float]) -> dict[str, float]:
    """Log of the mean, and mean and spread of the logs."""
    logs = np.log(values)
    return {
        "log_mean_kl": math.log(float(np.mean(values))),
        "mean_log_kl": float(logs.mean()),
        "sd_log_kl": float(logs.std(ddof=1)) if len(values) > 1 else 0.0,
    }


def run(trials: int, only: list[str], kept: dict) -> dict:
    """The ablations named in ``only`` (all if empty) over the same trials; the rest as in ``kept``."""
    drawn = [make_trial(seed) for seed in range(trials)]
    bound = math.log(
        float(np.mean([efficiency_bound(distribution, step) for _, distribution, step in drawn]))
    )
    found: dict = {"trials": trials, "nodes": NODES, "samples": STEPS, "log_efficiency_bound": bound}
    for name, part in PARTS.items():
        found[name] = part(drawn) if not only or name in only else kept[name]
    return found


def _visit_counts(drawn: list) -> dict:
    visits = [counts.sum(axis=1) / counts.sum() for counts, _, _ in drawn]
    return summary(
        [
            float((distribution * np.log(distribution / p)).sum())
            for (_, distribution, _), p in zip(drawn, visits, strict=True)
        ]
    )


def _divergences_exact(drawn: list) -> dict:
    return {
        # The gradient penalty has no closed inner maximum: each certificate costs a quasi-Newton solve.
        name: _solved(drawn, "extragradient", 1e-5, divergence=divergence)
        if "gradient" in name
        else _solved(drawn, "convex", divergence=divergence)
        for name, divergence in EXACT.items()
    }


def _normalization_sgd(drawn: list) -> dict:
    for normalize in ("penalty", "self"):
        # Compiled code is loaded at the first call: not within the seconds of the first trial.
        by_sgd(drawn[0][0], 0, normalize=normalize, max_iter=5000)
    return {
        normalize: {
            str(budget): _by_sgd(drawn, normalize=normalize, time_limit=budget) for budget in BUDGET_SECONDS
        }
        for normalize in ("penalty", "self")
    }


PARTS = {
    "exact": lambda drawn: summary([kl(distribution, lg.solve(counts)) for counts, distribution, _ in drawn]),
    "visit_counts": _visit_counts,
    "divergences_exact": _divergences_exact,
    "divergences_sgd": lambda drawn: {
        name: _by_sgd(drawn, divergence=name, max_iter=STEPS_SGD) for name in BY_SGD
    },
    "penalty_exact": lambda drawn: {
        str(weight): _solved(drawn, "convex", penalty=weight) for weight in PENALTIES
    },
    "penalty_sgd": lambda drawn: {
        str(weight): _by_sgd(drawn, penalty=weight, max_iter=STEPS_SGD) for weight in PENALTIES
    },
    "normalization_exact": lambda drawn: {
        normalize: _solved(drawn, "convex", normalize=normalize) for normalize in ("penalty", "self")
    },
    "normalization_sgd": _normalization_sgd,
}


def _by_sgd(drawn: list, **choices: object) -> dict:
    """Figures of SGD, seed k for trial k, with its mean gap and steps."""
    solutions = [by_sgd(counts, seed, **choices) for seed, (counts, _, _) in enumerate(drawn)]
    figures = summary(
        [kl(distribution, solution) for (_, distribution, _), solution in zip(drawn, solutions, strict=True)]
    )
    gaps, steps = [solution.gap for solution in solutions], [solution.n_iter for solution in solutions]
    return {**figures, "mean_gap": float(np.mean(gaps)), "mean_steps": float(np.mean(steps))}


def _solved(drawn: list, method: str, tol: float = 1e-8, **choices: object) -> dict:
    """Figures of a deterministic method, with its largest gap."""
    began = time.perf_counter()
    solutions = [lg.solve(counts, method=method, tol=tol, max_iter=5000, **choices) for counts, _, _ in drawn]
    seconds = (time.perf_counter() - began) / len(drawn)
    figures = summary(
        [kl(distribution, solution) for (_, distribution, _), solution in zip(drawn, solutions, strict=True)]
    )
    return {**figures, "largest_gap": max(solution.gap for solution in solutions), "seconds": seconds}


def draw_figure(found: dict, path: Path) -> None:
    """Three panels: divergences, penalty weight, normalization against running time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(14, 4.2), constrained_layout=True)
    names = list(found["divergences_exact"])
    place = np.arange(len(names))
    exact = [found["divergences_exact"][name]["mean_log_kl"] for name in names]
    spread = [found["divergences_exact"][name]["sd_log_kl"] for name in names]
    panels[0].errorbar(place, exact, spread, fmt="o", color="tab:blue", label="optimum (gap below 1e-8)")
    stochastic = [found["divergences_sgd"].get(name) for name in names]
    panels[0].errorbar(
        [k + 0.15 for k, entry in enumerate(stochastic) if entry],
        [entry["mean_log_kl"] for entry in stochastic if entry],
        [entry["sd_log_kl"] for entry in stochastic if entry],
        fmt="s", color="tab:orange", label="SGD, 5M steps",
    )  # fmt: skip
    panels[0].set_xticks(place, names, rotation=40, ha="right", fontsize=8)
    panels[0].set_title("divergence")
    weights = list(found["penalty_exact"])
    for key, color, label in (
        ("penalty_exact", "tab:blue", "optimum"),
        ("penalty_sgd", "tab:orange", "SGD, 5M steps"),
    ):
        entries = [found[key][weight] for weight in weights]
        panels[1].errorbar(
            [float(weight) for weight in weights],
            [entry["mean_log_kl"] for entry in entries],
            [entry["sd_log_kl"] for entry in entries],
            fmt="o-", color=color, label=label,
        )  # fmt: skip
    panels[1].set_xscale("log")
    panels[1].set_title("penalty weight, chi2")
    panels[1].set_xlabel("lambda")
    for normalize, color in (("penalty", "tab:blue"), ("self", "tab:red")):
        entries = found["normalization_sgd"][normalize]
        panels[2].errorbar(
            [float(budget) for budget in entries],
            [entry["mean_log_kl"] for entry in entries.values()],
            [entry["sd_log_kl"] for entry in entries.values()],
            fmt="o-", color=color, label=f"{normalize}, SGD",
        )  # fmt: skip
    panels[2].axhline(-4.74, color="tab:blue", linestyle=":", label="paper, penalty")
    panels[2].axhline(-4.26, color="tab:red", linestyle=":", label="paper, self")
    panels[2].set_xscale("log")
    panels[2].set_xlabel("seconds")
    panels[2].set_title("normalization at equal running time")
    for panel in panels:
        panel.axhline(found["log_efficiency_bound"], color="black", linestyle="--", label="efficiency bound")
        panel.set_ylabel("log KL(true || estimate)")
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=[])
    arguments = parser.parse_args()
    chosen = arguments.only or list(PARTS)
    print(f"opr_ablations: {len(PARTS) - len(chosen)} parts kept, {len(chosen)} to compute", flush=True)
    found = run(arguments.trials, arguments.only, json.loads((HERE / "opr_ablations.json").read_text()))
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.write:
        (HERE / "opr_ablations.json").write_text(text + "\n")
        if not arguments.only:
            provenance.mark("opr_ablations")
        draw_figure(found, HERE / "opr_ablations.png")


if __name__ == "__main__":
    main()
