"""Random draws in O(1): counters (``mix(counter)``, then ``counter + GOLDEN``) and alias tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import kernel
from lingendice.kernels.random_numbers import GOLDEN, mix

_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_SCALE = 2.0**-32


class Source(NamedTuple):
    """Where samples (x, x', x0) are drawn from; see `model.sampler.Sampler`."""

    events: Any
    tables: Any
    redirects: Any
    starts: Any
    actions: Any
    most_draws: Any


@kernel
def build_alias(weight, threshold, alias):  # type: ignore[no-untyped-def]
    """Fill an alias table for nonnegative weights: entry i is kept if a uniform is below threshold[i]."""
    n = weight.size
    total = 0.0
    for i in range(n):
        total += weight[i]
    small = np.empty(n, np.int64)
    large = np.empty(n, np.int64)
    n_small = 0
    n_large = 0
    for i in range(n):
        threshold[i] = weight[i] * n / total
        alias[i] = i
        if threshold[i] < 1.0:
            small[n_small] = i
            n_small += 1
        else:
            large[n_large] = i
            n_large += 1
    while n_small > 0 and n_large > 0:
        n_small -= 1
        i = small[n_small]
        j = large[n_large - 1]
        alias[i] = j
        threshold[j] -= 1.0 - threshold[i]
        if threshold[j] < 1.0:
            n_large -= 1
            small[n_small] = j
            n_small += 1
    while n_large > 0:
        n_large -= 1
        threshold[large[n_large]] = 1.0
    while n_small > 0:
        # Left over by rounding alone; one without weight must still never be drawn.
        n_small -= 1
        i = small[n_small]
        if weight[i] > 0.0:
            threshold[i] = 1.0


@kernel
def build_alias_rows(weight, threshold, alias):  # type: ignore[no-untyped-def]
    """One alias table for each row."""
    for i in range(weight.shape[0]):
        build_alias(weight[i], threshold[i], alias[i])


@kernel
def draw(bits, threshold, alias, first, size):  # type: ignore[no-untyped-def]
    """An entry of the alias table at ``first : first + size``, from 64 random bits (size < 2**32)."""
    i = first + np.int64(((bits >> _32) * np.uint64(size)) >> _32)
    other = first + np.int64(alias[i])
    # Both are read before the choice: a branch here would be guessed wrong every other time.
    return i if np.float64(bits & _LOW) * _SCALE < threshold[i] else other


@kernel
def pack_events(threshold, alias, cell, following, packed):  # type: ignore[no-untyped-def]
    """One record per event: threshold times 2**32, its own (cell, next), and those of its alias.

    A draw then touches one cache line instead of four.
    """
    for i in range(threshold.size):
        packed[i, 0] = np.int64(np.ceil(threshold[i] * 4294967296.0))
        packed[i, 1] = (np.int64(cell[i]) << 32) | (np.int64(following[i]) & 0xFFFFFFFF)
    for i in range(threshold.size):
        packed[i, 2] = packed[alias[i], 1]
        packed[i, 3] = 0


@kernel
def place_event(bits, events):  # type: ignore[no-untyped-def]
    """The record that 64 random bits look up first (fewer than 2**32 events)."""
    return np.int64(((bits >> _32) * np.uint64(events.shape[0])) >> _32)


@kernel
def draw_event(bits, events):  # type: ignore[no-untyped-def]
    """(cell, next) of a random event of `pack_events`, from 64 random bits."""
    i = place_event(bits, events)
    # Both are read before the choice: a branch here would be guessed wrong every other time.
    own, other = events[i, 1], events[i, 2]
    pair = own if np.int64(bits & _LOW) < events[i, 0] else other
    return pair >> 32, np.int64(np.int32(pair & 0xFFFFFFFF))


@kernel
def draw_next(counter, code, actions, tables, redirects):  # type: ignore[no-untyped-def]
    """The cell that an event leads to: (cell, factor on gamma, next counter); cell -1 where it is absorbed.

    ``code`` >= 0 is a next state, -1 the end, -2 - k a draw from distribution k. ``tables`` holds alias
    tables
    (threshold, alias) of the distributions, the policy rows, and the restart distribution past unseen cells;
    ``redirects`` = (seen, factor) where mass that enters an unseen cell goes on from the restart
    distribution.
    """
    distribution_t, distribution_a, policy_t, policy_a, restart_t, restart_a = tables
    seen, factor = redirects
    if code == -1:
        return -1, 0.0, counter
    state = np.int64(code)
    if code < -1:
        n_states = distribution_t.shape[1]
        k = -2 - code
        state = draw(mix(counter), distribution_t[k], distribution_a[k], 0, n_states)
        counter += GOLDEN
    cell = state
    if actions > 1:
        cell = draw(mix(counter), policy_t, policy_a, state * actions, actions)
        counter += GOLDEN
    if seen.size > 0 and not seen[cell]:
        if factor == 0.0:
            return -1, 0.0, counter
        cell = draw(mix(counter), restart_t, restart_a, 0, restart_t.size)
        counter += GOLDEN
        return cell, factor, counter
    return cell, 1.0, counter
