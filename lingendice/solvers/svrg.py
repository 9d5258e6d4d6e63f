"""SVRG for the saddle point: cheap stochastic steps that converge linearly."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences import FDivergence, TotalVariation
from lingendice.model.features import FeatureMap, Tabular
from lingendice.model.problem import RatioProblem
from lingendice.model.sampler import build_sampler, event_table
from lingendice.solvers.control import Step
from lingendice.solvers.saddle_outcome import (
    SaddleOutcome,
    SaddleSolver,
    certified,
    compressed,
    diagonal_metric,
    squared,
)

CHUNK_SECONDS = 0.1
PASSES = 8
"""Steps between snapshots, in units of the number of cells with data."""
PATIENCE = 12
"""Epochs within which the gap must fall by a tenth."""
FIRST_STEP = 0.1
"""Step length at the start, in units of 1 / features; halved whenever an epoch makes the gap worse."""


def solve_svrg(problem: RatioProblem, tol: float, seed: int, max_iter: int | None = None) -> SaddleSolver:
    """Stochastic steps around snapshots at which the full gradient is known (Palaniappan and Bach, 2016).

    A step costs the entries of three rows of features (O(1) for a table), a snapshot a pass over all of
    them. Cells are drawn half by the data, half by their leverage (a table: uniformly), and weighted back,
    so that those with rare features are not waited for. The concave excess makes the saddle point attract
    plain gradient steps, so total variation and metrics without excess are not served. Use it for problems
    with so many pairs that even one pass of ``extragradient`` is long.

    ``normalize="self"`` imposes N = 1, of which u is the multiplier. A gradient of J(w / a'w, .) is no sum
    over samples, and the constraint alone has no curvature in u; so each epoch takes the finite sum
    penalty (u (N - 1) - (u - u_0)^2 / 2) with u_0 from the epoch before, the proximal-point method in u.
    """
    divergence = problem.divergence
    if (
        not isinstance(divergence, FDivergence)
        or isinstance(divergence, TotalVariation)
        or divergence.code == 7
    ):
        raise ValueError(f'method="svrg" needs a divergence with a smooth excess, not {divergence.name}')
    from lingendice.kernels.saddle.svrg_steps import finish_drift, svrg_steps

    flow = problem.flow
    penalized = problem
    if problem.self_normalized:
        penalized = replace(problem, normalize="penalty", penalty=problem.penalty or 1.0)
    steps = _Sampling(problem)
    psi, phi = compressed(problem.features), compressed(problem.dual_features)
    w_low, top = np.zeros(problem.features.n_features), np.where(problem.mass_row > 0, problem.upper, 0.0)
    limit = divergence.dual_limit
    low, high = np.maximum(-problem.dual_box, -1e300), np.minimum(problem.dual_top, 1e300)
    if isinstance(problem.dual_features, Tabular) and math.isfinite(limit):
        # Inside the domain of phi* by a margin: its slope is infinite at the very end.
        high = np.minimum(high, 0.999 * limit)
    point = (problem.start(), np.zeros(high.size), 0.0)
    best: SaddleOutcome = certified(problem, *point, tol, "svrg", 0)
    trace, recent = [(0, best.gap.value)], []
    counter = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    step, n_iter, chunk = FIRST_STEP / steps.unit, 0, 1000
    n_steps = PASSES * int(flow.seen.sum())
    stopped = False
    while not stopped and best.gap.value > tol and step * steps.unit > 1e-8:
        on_w, on_v, on_u = penalized.gradients(*point)
        if problem.self_normalized:
            on_u = penalized.penalty * (problem.total(point[0]) - 1.0)
        # f and tau at the snapshot, over the cells.
        held = (problem.features.apply(point[0]), problem.dual_features.apply(point[1]), point[2])
        w, v, u = point[0].copy(), point[1].copy(), point[2]
        w_drift, v_drift = -step * on_w / steps.on_w, step * on_v / steps.on_v
        u_drift = step * on_u / max(penalized.penalty, 1e-300)
        w_last, v_last = np.zeros(w.size, np.int64), np.zeros(v.size, np.int64)
        scalars = (flow.gamma, penalized.penalty, problem.ridge, step)
        done = 0
        while done < n_steps:
            size = min(chunk, n_steps - done, math.inf if max_iter is None else max(1, max_iter - n_iter))
            began = time.perf_counter()
            counter, u = svrg_steps(
                np.uint64(counter), done, done + size, *steps.source, scalars, divergence.code,
                divergence.weighs_by_ratio, steps.actions, steps.ratio, psi, phi, w, v, u, *held,
                w_drift, v_drift, u_drift, w_last, v_last, steps.on_w, steps.on_v, flow.mass_weight,
                w_low, top, low, high,
            )  # fmt: skip
            chunk = max(
                1000, min(int(size * CHUNK_SECONDS / max(time.perf_counter() - began, 1e-6)), 20 * size)
            )
            done, n_iter = done + size, n_iter + size
            if (yield Step(n_iter, best.gap.value)) is not None:
                stopped = True
                break
        finish_drift(done, w, w_drift, w_last, w_low, top)
        finish_drift(done, v, v_drift, v_last, low, high)
        found = certified(problem, w, v, u, tol, "svrg", n_iter)
        trace.append((n_iter, found.gap.value))
        if found.gap.value < best.gap.value:
            best = found
        point = (w, v, u)
        # The first epochs may climb while f finds its scale; what must not happen is to climb on.
        recent.append(found.gap.value)
        half = len(recent) // 2
        if not math.isfinite(found.gap.value):
            step, recent, point = 0.25 * step, [], (best.w.copy(), best.v.copy(), best.u)
        elif half >= PATIENCE and min(recent[half:]) > 0.9 * min(recent[:half]):
            step, recent = 0.5 * step, []
    best.n_iter, best.trace = n_iter, tuple(trace)
    best.history = tuple(gap for _, gap in trace)
    return best


class _Sampling:
    """The metric, how often cells are drawn in it, and the events drawn so."""

    def __init__(self, problem: RatioProblem) -> None:
        flow = problem.flow
        both = (problem.features, problem.dual_features)
        self.on_w, self.on_v = (diagonal_metric(features, flow.p) for features in both)
        shares = [
            flow.p * _leverage(features, metric)
            for features, metric in zip(both, (self.on_w, self.on_v), strict=True)
        ]
        self.unit = max(float(share.sum()) for share in shares)
        """The number of features that the data meets: steps are shorter by this factor."""
        draws = 0.5 * flow.p + sum(0.25 * share / share.sum() for share in shares)
        self.ratio = np.divide(flow.p, draws, out=np.zeros_like(draws), where=draws > 0)
        sampler = build_sampler(flow)
        events = event_table(sampler.probability / self.ratio[sampler.cell], sampler.cell, sampler.following)
        self.source, self.actions = (events, sampler.tables, sampler.redirects), sampler.actions


def _leverage(features: FeatureMap, metric: Floats) -> Floats:
    """sum_j psi_j(x)^2 / metric_j: how much a sample of the cell can change the coefficients."""
    if isinstance(features, Tabular):
        return 1.0 / metric
    return np.asarray(squared(features) @ (1.0 / metric))
