"""Small calls, imports and first solves."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import lingendice as lg


def chain(n: int) -> np.ndarray:
    matrix = np.random.default_rng(n).random((n, n))
    return matrix / matrix.sum(axis=1, keepdims=True)


def test_ten_states(record):
    matrix = chain(10)
    lg.solve(matrix)
    rounds = []
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(200):
            lg.solve(matrix)
        rounds.append((time.perf_counter() - start) / 200)
    record.limit(
        "solve, 10-state array", 1e6 * float(np.median(rounds)), 40, "us", "whole call, after warm-up"
    )


def test_five_hundred_states(record):
    from quantecon.markov import gth_solve

    matrix = chain(500)
    assert np.max(np.abs(lg.solve(matrix).stationary / gth_solve(matrix) - 1)) < 1e-12
    record.ratio(
        "solve, dense 500 states",
        lambda: lg.solve(matrix),
        {"quantecon gth_solve": lambda: gth_solve(matrix)},
        1.5,
        15,
    )


def seconds_of(code: str, environment: dict[str, str] | None = None) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **(environment or {})})
    return time.perf_counter() - start


def test_import(record):
    light, peer = "import lingendice", "import scipy.sparse"
    times = {code: [] for code in (light, peer)}
    for _ in range(9):
        for code in times:
            times[code].append(seconds_of(code))
    ratio = float(np.median(times[light]) / np.median(times[peer]))
    record.limit("import lingendice", ratio, 1.5, "x import scipy.sparse", "whole process")


FIRST_SOLVES = {
    "small array": "lg.solve(np.array([[9., 1.], [3., 7.]]))",
    "logged MDP": (
        "c = lg.Counts.from_transitions([0, 1, 0], [1, 0, 1], action=[0, 1, 0], reward=[1., 2., 3.]); "
        "lg.solve(c, policy=[[1, 0], [0, 1]])"
    ),
    "sparse graph of 5,000": (
        "from scipy import sparse; rng = np.random.default_rng(0); "
        "i, j = rng.integers(5000, size=(2, 50_000)); "
        "P = sparse.csr_array((rng.random(50_000), (i, j)), shape=(5000, 5000)); "
        "P = P + sparse.eye_array(5000, k=1); "
        "lg.solve(sparse.csr_array(P), 0.85); lg.solve(sparse.csr_array(P), leak='restart')"
    ),
}


def test_first_solve(record):
    for name, code in FIRST_SOLVES.items():
        program = f"import numpy as np, lingendice as lg; {code}"
        with tempfile.TemporaryDirectory() as cache:
            environment = {"NUMBA_CACHE_DIR": cache}
            cold = seconds_of(program, environment)
            warm = float(np.median([seconds_of(program, environment) for _ in range(5)]))
        record.limit(f"first solve, cold cache: {name}", cold, 15, "s", "whole process, compiling")
        record.limit(f"first solve, warm cache: {name}", warm, 1.5, "s", "whole process")
