"""Counting and solving inside compiled code, and re-solving a stream against solving it afresh."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
from numba import njit

import lingendice as lg
from lingendice import embed


@njit
def solve_many(counts, gamma, distribution, times):
    worst = 0
    for _ in range(times):
        worst = max(worst, embed.solve(counts, gamma, distribution))
    return worst


@njit
def count_many(counts, states):
    for t in range(states.size - 1):
        embed.count(counts, states[t], states[t + 1])


@njit
def count_sparse_many(keys, pairs, n, states):
    for t in range(states.size - 1):
        embed.count_sparse(keys, pairs, n, states[t], states[t + 1])


def seconds_each(action, size, rounds=15):
    """Median seconds of one of the ``size`` things that the action does."""
    action()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) / size)
    return float(np.median(taken))


def test_small_solve(record):
    counts = np.random.default_rng(0).integers(1, 50, (10, 10)).astype(float)
    distribution = np.empty(10)
    for gamma in (1.0, 0.9):
        microseconds = 1e6 * seconds_each(
            lambda gamma=gamma: solve_many(counts, gamma, distribution, 20_000), 20_000
        )
        np.testing.assert_allclose(distribution, lg.solve(counts, gamma).stationary, rtol=1e-12)
        record.limit(
            f"embedded solve, 10 states, gamma {gamma:g}", microseconds, 2, "us", "inside @njit code"
        )


def test_update(record):
    rng = np.random.default_rng(0)
    states = rng.integers(0, 500, 1_000_001)
    counts = np.zeros((500, 500))
    nanoseconds = 1e9 * seconds_each(lambda: count_many(counts, states), 1_000_000)
    record.limit(
        "embedded count, 500 states", nanoseconds, 100, "ns", "dense table, random pairs, in @njit code"
    )
    keys, pairs = np.full(2**19, -1), np.zeros(2**19)
    nanoseconds = 1e9 * seconds_each(lambda: count_sparse_many(keys, pairs, 500, states), 1_000_000)
    record.limit("embedded sparse count, 250,000 pairs", nanoseconds, 100, "ns", "hash table of 2**19 slots")
    online = lg.OnlineRatio(500)
    batch = 1e9 * seconds_each(lambda: online.update(states[:-1], states[1:]), 1_000_000)
    listed = states[:10_001].tolist()

    def one_by_one():
        for state, next_state in pairwise(listed):
            online.update(state, next_state)

    single = 1e9 * seconds_each(one_by_one, 10_000)
    record.limit("OnlineRatio.update, arrays", batch, 100, "ns", f"one by one from Python {single:.0f} ns")


def random_walk(matrix, length, rng):
    cumulative = np.cumsum(matrix, axis=1)
    states = np.zeros(length, np.int64)
    draws = rng.random(length)
    for t in range(1, length):
        states[t] = min(np.searchsorted(cumulative[states[t - 1]], draws[t]), matrix.shape[0] - 1)
    return states


def transition_matrices(rng, n=500):
    dense = rng.random((n, n))
    sparse = np.zeros((n, n))
    for i in range(n):
        sparse[i, rng.choice(n, 10, replace=False)] = rng.random(10)
    ring = np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1)
    for name, matrix in (("full rows", dense), ("ten successors", sparse), ("walk on a ring", ring)):
        yield name, matrix / matrix.sum(axis=1, keepdims=True)


def test_re_solve(record):
    portions, new = 30, 1000
    for name, matrix in transition_matrices(np.random.default_rng(1)):
        for before in (50_000, 200_000):
            states = random_walk(matrix, before + portions * new + 1, np.random.default_rng(2))
            online = lg.OnlineRatio(500)
            online.update(states[:before], states[1 : before + 1])
            _ = online.stationary
            warm, cold, compressed, worst, made = [], [], [], 0.0, online.n_factorizations
            for start in range(before, before + portions * new, new):
                online.update(states[start : start + new], states[start + 1 : start + new + 1])
                begin = time.perf_counter()
                distribution = online.stationary
                warm.append(time.perf_counter() - begin)
                counts = online.snapshot()
                table = counts.matrix.toarray()
                begin = time.perf_counter()
                reference = lg.solve(table).stationary
                cold.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                _ = lg.solve(counts).stationary
                compressed.append(time.perf_counter() - begin)
                held = reference > 0
                worst = max(worst, float(np.max(np.abs(distribution[held] / reference[held] - 1))))
            afresh, sparse = 1e3 * np.median(cold), 1e3 * np.median(compressed)
            note = (
                f"median {1e3 * np.median(warm):.2f} ms, array {afresh:.2f} ms, Counts {sparse:.2f} ms; "
                f"mean {1e3 * np.mean(warm):.2f} ms with {online.n_factorizations - made} new factors; "
                f"off by {worst:.0e} at worst"
            )
            record.limit(
                f"re-solve after 1,000 of {before:,} transitions, 500 states, {name}",
                float(np.median(warm) / np.median(cold)),
                0.1,
                "x lg.solve of the dense counts",
                note,
            )
