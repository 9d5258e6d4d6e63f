"""Logs as columns, cut into parts, and what it means that two readings agree."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

NAMES = [f"room {i:02d}" for i in range(9)]


def make_log(n=500, seed=0, labeled=False):
    """Interleaved episodes that end in all ways; next states are given and follow from the rows too."""
    rng = np.random.default_rng(seed)
    rows, state, number = [], rng.integers(0, 9, 4), np.arange(4)
    for _ in range(n):
        e = rng.integers(0, 4)
        following = rng.integers(0, 9)
        ends = rng.random() < 0.05
        rows.append((number[e], state[e], rng.integers(0, 3), rng.normal() + 5, following, ends))
        state[e] = following
        if ends:
            number[e], state[e] = number.max() + 1, rng.integers(0, 9)
    e, s, a, r, s2, end = map(np.array, zip(*rows, strict=True))
    log = {"episode": e, "state": s, "action": a, "reward": r, "next_state": s2, "terminal": end}
    if labeled:
        names = np.array(NAMES)
        log |= {"state": names[s], "next_state": names[s2], "action": np.array(["x", "go", "a"])[a]}
    return log


def assert_same(found, expected):
    """Equal counts, labels and first states; reward statistics up to rounding."""
    for name in ("n_states", "n_actions", "state_labels", "action_labels"):
        assert getattr(found, name) == getattr(expected, name)
    for name in ("indptr", "indices", "count", "reward_count", "initial_count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    if expected.reward_mean is None:
        assert found.reward_mean is None
    else:
        np.testing.assert_allclose(found.reward_mean, expected.reward_mean, rtol=1e-13)
        np.testing.assert_allclose(found.reward_m2, expected.reward_m2, rtol=1e-11, atol=1e-12)


def cut(log, places):
    """The log as mappings of arrays, cut at some rows."""
    edges = [0, *sorted(places), len(log["state"])]
    return [{k: v[a:b] for k, v in log.items()} for a, b in pairwise(edges)]
