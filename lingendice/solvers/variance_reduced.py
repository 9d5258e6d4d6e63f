"""SVRG for the saddle point: cheap stochastic steps that converge linearly."""

from __future__ import annotations

import math
import time

import numpy as np

from lingendice.divergences import FDivergence, TotalVariation
from lingendice.features import Tabular
from lingendice.problem import RatioProblem
from lingendice.sampler import build_sampler, event_table
from lingendice.solvers.iterate import Step
from lingendice.solvers.saddle import SaddleOutcome, SaddleSolver, certified

CHUNK_SECONDS = 0.1
PASSES = 8
"""Steps between snapshots, in units of the number of cells with data."""
PATIENCE = 12
"""Epochs within which the gap must fall by a tenth."""
FIRST_STEP = 0.1
"""Step length at the start, in units of 1 / cells; halved whenever an epoch makes the gap worse."""


def solve_svrg(problem: RatioProblem, tol: float, seed: int, max_iter: int | None = None) -> SaddleSolver:
    """Stochastic steps around snapshots at which the full gradient is known (Palaniappan and Bach, 2016).

    A step costs O(1), a snapshot O(nnz). Cells are drawn half by the data, half uniformly, and weighted
    back, so that rare cells are not waited for. The concave excess makes the saddle point attract plain
    gradient steps, so total variation and metrics without excess are not served. Use it for tabular
    problems with so many pairs that even one pass of ``extragradient`` is long.
    """
    divergence = problem.divergence
    tabular = isinstance(problem.features, Tabular) and isinstance(problem.dual_features, Tabular)
    if not tabular or problem.self_normalised:
        raise ValueError(
            'method="svrg" is for tabular problems with a penalty; use "convex" or "extragradient"'
        )
    if (
        not isinstance(divergence, FDivergence)
        or isinstance(divergence, TotalVariation)
        or divergence.code == 7
    ):
        raise ValueError(f'method="svrg" needs a divergence with a smooth excess, not {divergence.name}')
    from lingendice.kernels.svrg import finish_drift, svrg_tabular

    flow = problem.flow
    sampler = build_sampler(flow)
    n_seen = int(flow.seen.sum())
    draws = 0.5 * flow.p + 0.5 * flow.seen / n_seen
    ratio = np.divide(flow.p, draws, out=np.zeros_like(draws), where=draws > 0)
    events = event_table(sampler.probability / ratio[sampler.cell], sampler.cell, sampler.following)
    p = np.where(flow.seen, flow.p, 1.0)
    top = np.where(flow.seen, problem.upper, 0.0)
    limit = divergence.dual_limit
    low = max(-float(problem.dual_box[0]), -1e300)
    high = min(float(problem.dual_top[0]), 0.999 * limit if math.isfinite(limit) else 1e300)
    highs = np.full(p.size, high)
    w, v, u = problem.start(), np.zeros(p.size), 0.0
    best: SaddleOutcome = certified(problem, w, v, u, tol, "svrg", 0)
    kept = (w, v, u)
    trace, recent = [(0, best.gap.value)], []
    counter = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    step, n_iter, n_steps, chunk = FIRST_STEP / n_seen, 0, PASSES * n_seen, 1000
    stopped = False
    while not stopped and best.gap.value > tol and step * n_seen > 1e-8:
        on_w, on_v, on_u = problem.gradients(*kept)
        tau, f, u = kept[0].copy(), kept[1].copy(), kept[2]
        w_drift, v_drift = step * on_w / p, step * on_v / p
        u_drift = step * on_u / max(problem.penalty, 1e-300)
        w_last, v_last = np.zeros(p.size, np.int64), np.zeros(p.size, np.int64)
        scalars = (flow.gamma, problem.penalty, problem.ridge, step)
        done = 0
        while done < n_steps:
            size = min(chunk, n_steps - done, math.inf if max_iter is None else max(1, max_iter - n_iter))
            began = time.perf_counter()
            counter, u = svrg_tabular(
                np.uint64(counter), done, done + size, events, sampler.tables, sampler.redirects, scalars,
                divergence.code, divergence.weighs_by_ratio, sampler.actions, ratio, tau, f, u, *kept,
                w_drift, v_drift, u_drift, w_last, v_last, p, flow.mass_weight, top, low, high,
            )  # fmt: skip
            chunk = max(
                1000, min(int(size * CHUNK_SECONDS / max(time.perf_counter() - began, 1e-6)), 20 * size)
            )
            done, n_iter = done + size, n_iter + size
            if (yield Step(n_iter, best.gap.value)) is not None:
                stopped = True
                break
        finish_drift(done, tau, -w_drift, w_last, 0.0, top)
        finish_drift(done, f, v_drift, v_last, low, highs)
        found = certified(problem, tau, f, u, tol, "svrg", n_iter)
        trace.append((n_iter, found.gap.value))
        if found.gap.value < best.gap.value:
            best = found
        kept = (tau, f, u)
        # The first epochs may climb while f finds its scale; what must not happen is to climb on.
        recent.append(found.gap.value)
        half = len(recent) // 2
        if not math.isfinite(found.gap.value):
            step, recent, kept = 0.25 * step, [], (best.w.copy(), best.v.copy(), best.u)
        elif half >= PATIENCE and min(recent[half:]) > 0.9 * min(recent[:half]):
            step, recent = 0.5 * step, []
    best.n_iter, best.trace = n_iter, tuple(trace)
    best.history = tuple(gap for _, gap in trace)
    return best
