"""Saddle-point steps and solves against JAX, PyTorch and cvxpy (benchmarks/requirements-peers.txt)."""

from __future__ import annotations

import os
import time

# One thread in each operation of the peers: set before they are imported. XLA runs the operations of a scan
# side by side nevertheless: minibatches take 1.9 cores with the flags and without, and ours get all cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import linear_peers as peers
import numpy as np
import pytest
from conftest import alternate

from lingendice.model.features import MatrixFeatures, orthonormalized, rbf
from lingendice.solvers.control import Controls, run
from lingendice.solvers.convex import solve_convex
from lingendice.solvers.problem import RatioProblem

CELLS, GAMMA = peers.CELLS, peers.GAMMA


def bandwidth() -> float:
    """Bytes a second of a plain sum over an array far larger than any cache."""
    data = np.ones(30_000_000)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        taken.append(time.perf_counter() - start)
    return data.nbytes / min(taken)


@pytest.fixture(scope="module")
def tabular():
    flow, _ = peers.random_walk(CELLS)
    return flow, RatioProblem.build(flow, bound=10.0)


def test_tabular_against_jax(record, tabular):
    pytest.importorskip("jax", reason="pip install -r benchmarks/requirements-peers.txt")
    flow, problem = tabular
    ours = peers.our_sgd(problem, 1, 300_000)
    rows = {
        "as first written": (
            peers.jax_tabular_plain(flow, 500),
            500,
            "JAX with functional updates and the sums of the iterates in the carry; samples drawn beforehand",
        ),
        "same algorithm": (
            peers.jax_tabular_averaged(flow, 20_000),
            20_000,
            "JAX with the same projections and averages in its fastest form, its samples drawn beforehand",
        ),
        "bare scan": (
            peers.jax_tabular(flow, 20_000),
            20_000,
            "JAX without projections, averages and sampling: less than a step of the algorithm",
        ),
    }
    for kind, (task, n, note) in rows.items():
        steps = {"lingendice": 300_000, "jax lax.scan": n}
        name = f"SGD step, tabular, 12,000 cells, {kind}"
        record.ratio(name, ours, {"jax lax.scan": task}, 1, 15, note, steps)
    n = 320_000
    floor = alternate({"touch": peers.touched_cells(problem, n)}, 15)["touch"] / n
    row = record.rows[name]
    # One cache line for each random place that a step touches: event, start table (two), three cells.
    row["note"] += (
        f"; {1e-6 / row['seconds']['lingendice']:.0f}M updates a second,"
        f" {bandwidth() / (6 * 64) / 1e6:.0f}M at streaming bandwidth; drawing and touching"
        f" the same cells without any arithmetic takes {1e9 * floor:.0f} ns,"
        f" so that at most {row['seconds']['jax lax.scan'] / floor:.1f} x is attainable"
    )


def test_tabular_against_torch(record, tabular):
    pytest.importorskip("torch", reason="pip install -r benchmarks/requirements-peers.txt")
    flow, problem = tabular
    record.ratio(
        "SGD step, tabular, 12,000 cells, PyTorch",
        peers.our_sgd(problem, 1, 300_000),
        {
            "torch autograd, optim.SGD": peers.torch_tabular(flow, 100),
            "torch by hand": peers.torch_tabular_by_hand(flow, 1000),
        },
        300,
        9,
        "samples drawn beforehand",
        {"lingendice": 300_000, "torch autograd, optim.SGD": 100, "torch by hand": 1000},
    )


def test_minibatches(record):
    pytest.importorskip("jax", reason="pip install -r benchmarks/requirements-peers.txt")
    flow, points = peers.random_walk(CELLS)
    psi, phi = rbf(points, 64, seed=1).matrix, rbf(points, 64, seed=2).matrix
    problem = RatioProblem.build(flow, MatrixFeatures(psi), MatrixFeatures(phi), bound=10.0)
    n = 500
    ours = peers.our_sgd(problem, 256, n)
    steps = dict.fromkeys(("lingendice", "jax lax.scan"), n)
    for drawn, name in ((False, "same algorithm"), (True, "start states drawn")):
        task = peers.jax_minibatch(flow, psi, phi, 256, n, drawn)
        note = "d = 64, dense, float64; JAX's samples drawn beforehand; ours on one core, JAX on all"
        if drawn:
            note += ", x0 among them; ours takes the term of mu0 exactly"
        record.ratio(
            f"SGD step, features, batch 256, {name}", ours, {"jax lax.scan": task}, 1, 45, note, steps
        )
    found = alternate({"touch": peers.touched_rows(problem, 256, n)}, 45)
    record.rows["SGD step, features, batch 256, same algorithm"]["note"] += (
        f"; reading one entry of each cache line of the rows takes {1e6 * found['touch'] / n:.1f} us"
    )


@pytest.mark.parametrize("d", [50, 200])
def test_time_to_gap(record, d):
    pytest.importorskip("cvxpy")
    pytest.importorskip("clarabel")
    flow, points = peers.random_walk(10_000)
    psi, phi = rbf(points, d, seed=1).matrix, rbf(points, d, seed=2).matrix
    found = {}

    def ours() -> None:
        dual, _ = orthonormalized(MatrixFeatures(phi), flow.p)
        problem = RatioProblem.build(flow, MatrixFeatures(psi), dual)
        found["ours"] = run(solve_convex(problem, 1e-6), Controls(tol=1e-6)).gap

    dual, _ = orthonormalized(MatrixFeatures(phi), flow.p)
    problem = RatioProblem.build(flow, MatrixFeatures(psi), dual)
    tasks = {"cvxpy, matrix_frac": peers.cvxpy_matrix(problem)}
    if d == 50:  # at d = 200 it takes most of a minute, and is the slower one in both
        tasks["cvxpy, one cone per cell"] = peers.cvxpy_cones(problem)
    values = {}
    timed = {name: lambda name=name, task=task: values.update({name: task()}) for name, task in tasks.items()}
    name = f"chi2 to gap 1e-6, 10,000 cells, d = {d}"
    record.ratio(name, ours, timed, 10, 3)
    gap = found["ours"]
    assert gap.value <= 1e-6
    off = {peer: abs(value - gap.primal) / gap.primal for peer, value in values.items()}
    kept = f"{dual.n_features} dual directions kept"
    record.rows[name]["note"] = f"gap {gap.value:.0e}, {kept}; peers' objectives off by " + ", ".join(
        f"{100 * share:.2g} % ({peer})" for peer, share in off.items()
    )
