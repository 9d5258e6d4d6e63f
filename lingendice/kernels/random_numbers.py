"""Random numbers from streams, and random numbers that are a function of their place.

A stream is one row of four words in a plain array. The generator is xoshiro256++ (Blackman and Vigna), its
state filled by SplitMix64. Every stream belongs to a piece of work (an episode, a resample), never to a
thread, so results are the same bits for any number of threads.

What a step of training draws is a function of (seed, step, purpose, place): no state, no order, any thread.
Draws from a distribution take O(1): a counter (64 bits are ``mix(counter)``, the next counter is
``counter + GOLDEN``) and an alias table (Walker, Vose).

References
----------
D. Blackman, S. Vigna (2021). Scrambled linear pseudorandom number generators. ACM Transactions on
    Mathematical Software 47.
G. L. Steele, D. Lea, C. H. Flood (2014). Fast splittable pseudorandom number generators. OOPSLA.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import internal, kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53


@kernel
def mix(word):
    """Scramble one 64-bit word (the finalizer of SplitMix64): a bijection."""
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


@kernel
def fill_streams(seed, first_stream, streams):
    """Fill ``streams[i]`` (four words each) for stream number ``first_stream + i`` of ``seed``."""
    for i in range(streams.shape[0]):
        word = mix(mix(np.uint64(seed) + GOLDEN) + np.uint64(first_stream + i) * GOLDEN)
        for k in range(4):
            word += GOLDEN
            streams[i, k] = mix(word)


@kernel
def next_word(stream):
    """Advance one stream and return 64 random bits."""
    s0, s1, s2, s3 = stream[0], stream[1], stream[2], stream[3]
    total = s0 + s3
    result = ((total << np.uint64(23)) | (total >> np.uint64(41))) + s0
    shifted = s1 << np.uint64(17)
    s2 ^= s0
    s3 ^= s1
    s1 ^= s2
    s0 ^= s3
    s2 ^= shifted
    s3 = (s3 << np.uint64(45)) | (s3 >> np.uint64(19))
    stream[0], stream[1], stream[2], stream[3] = s0, s1, s2, s3
    return result


@kernel
def next_double(stream):
    """Advance one stream and return a double uniform on [0, 1), a multiple of 2**-53."""
    return (next_word(stream) >> np.uint64(11)) * _UNIT


@kernel
def next_below(stream, n):
    """Advance one stream and return a whole number uniform on 0..n-1 (bias below n / 2**53)."""
    return np.int64(next_double(stream) * n)


# -- by (seed, step, purpose, place) --------------------------------------------------------------------

_LOG_2 = np.float32(np.log(2.0))
_ROOT_2 = np.float32(np.sqrt(2.0))
_F24 = np.float32(2.0**-24)
_EIGHTH_TURN = np.float32(np.pi / 4.0)
_LOW_24 = np.int32(0xFFFFFF)
_MANTISSA, _EXPONENT_OF_1 = np.int32(0x7FFFFF), np.int32(0x3F800000)
_ONE, _HALF = np.float32(1), np.float32(0.5)
_L3, _L5, _L7, _L9 = (np.float32(1 / k) for k in (3, 5, 7, 9))
_S3, _S5, _S7, _S9 = (np.float32(c) for c in (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880))
_C2, _C4, _C6, _C8 = (np.float32(c) for c in (-1 / 2, 1 / 24, -1 / 720, 1 / 40320))


@internal
def stream_key(seed, step, purpose):
    """Start of the stream of one purpose within one step."""
    return mix(mix(np.uint64(seed) + GOLDEN) + np.uint64(step * 8 + purpose) * GOLDEN)


@internal
def row_below(key, place, n):
    """Whole number uniform on 0..n-1 (bias below n / 2**53)."""
    word = mix(key + np.uint64(place + 1) * GOLDEN)
    return np.int64((word >> np.uint64(11)) * _UNIT * n)


@internal
def fill_normals(key, first, count, radius, as_float, turn, out):
    """Standard normals number ``first : first + count`` of a stream (both even) into ``out``.

    Box and Muller's polar form on float32 polynomials, in loops that vectorize; ``radius`` and ``turn`` are
    int32 scratch of half the length, ``as_float`` the first of them seen as float32. The tails end at 5.8
    standard deviations.
    """
    pairs = count // 2
    for i in range(pairs):
        word = mix(key + np.uint64(first // 2 + i + 1) * GOLDEN)
        radius[i] = np.int32(word >> np.uint64(40))
        turn[i] = np.int32((word >> np.uint64(8)) & np.uint64(0x3FFFFFF))
    for i in range(pairs):
        as_float[i] = np.float32(radius[i] + np.int32(1)) * _F24
    for i in range(pairs):
        bits = radius[i]
        out[i] = np.float32((bits >> np.int32(23)) - np.int32(127))
        radius[i] = (bits & _MANTISSA) | _EXPONENT_OF_1
    for i in range(pairs):
        m = as_float[i]
        power = out[i]
        large = m > _ROOT_2
        m = m * _HALF if large else m
        power = power + _ONE if large else power
        z = (m - _ONE) / (m + _ONE)
        w = z * z
        log = np.float32(2) * z * (((_L9 * w + _L7) * w + _L5) * w * w + _L3 * w + _ONE) + power * _LOG_2
        as_float[i] = np.sqrt(max(np.float32(-2) * log, np.float32(0)))
    for i in range(pairs):
        word = turn[i]
        # An angle within an eighth of a turn of the axis, then mirrored at random: uniform on the circle.
        angle = (np.float32(word & _LOW_24) * _F24 * np.float32(2) - _ONE) * _EIGHTH_TURN
        a = angle * angle
        sine = angle * ((((_S9 * a + _S7) * a + _S5) * a + _S3) * a + _ONE)
        cosine = (((_C8 * a + _C6) * a + _C4) * a + _C2) * a + _ONE
        r = as_float[i] if word & np.int32(1 << 24) else -as_float[i]
        swap = (word & np.int32(1 << 25)) != 0
        out[i] = r * (sine if swap else cosine)
        out[pairs + i] = r * (cosine if swap else sine)


# -- alias tables and what is drawn from them ----------------------------------------------------------------


_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_SCALE = 2.0**-32


class SampleSource(NamedTuple):
    """Where samples (x, x', x0) are drawn from."""

    events: Any
    """A record for each observed pair, each draw from a distribution, each end: see `pack_events`."""
    tables: Any
    redirects: Any
    starts: Any
    """(threshold, alias, total mass) of (1 - gamma) mu0."""
    actions: Any
    most_draws: Any
    """Random numbers that an event and what follows it may take."""


@kernel
def build_alias(weight, threshold, alias):
    """Fill an alias table for nonnegative weights: entry i is kept if a uniform is below threshold[i]."""
    n, total = weight.size, weight.sum()
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
def build_alias_rows(weight, threshold, alias):
    """One alias table for each row."""
    for i in range(weight.shape[0]):
        build_alias(weight[i], threshold[i], alias[i])


@kernel
def draw(bits, threshold, alias, first, size):
    """An entry of the alias table at ``first : first + size``, from 64 random bits (size < 2**32)."""
    i = first + np.int64(((bits >> _32) * np.uint64(size)) >> _32)
    other = first + np.int64(alias[i])
    # Both are read before the choice: a branch here would be guessed wrong every other time.
    return i if np.float64(bits & _LOW) * _SCALE < threshold[i] else other


def pack_events(threshold, alias, cell, following, packed):
    """One record per event: threshold times 2**32, its own (cell, next), and those of its alias.

    A draw then touches one cache line instead of four.
    """
    packed[:, 0] = np.ceil(threshold * 2.0**32)
    packed[:, 1] = (cell.astype(np.int64) << 32) | following.astype(np.uint32)
    packed[:, 2] = packed[alias, 1]
    packed[:, 3] = 0


@kernel
def draw_event(bits, events):
    """(cell, next) of a random event of `pack_events` (fewer than 2**32), from 64 random bits."""
    i = np.int64(((bits >> _32) * np.uint64(events.shape[0])) >> _32)
    # Both are read before the choice: a branch here would be guessed wrong every other time.
    own, other = events[i, 1], events[i, 2]
    pair = own if np.int64(bits & _LOW) < events[i, 0] else other
    return pair >> 32, np.int64(np.int32(pair & 0xFFFFFFFF))


@kernel
def draw_next(counter, code, actions, tables, redirects):
    """The cell that an event leads to: (cell, factor on gamma, next counter); cell -1 where it is absorbed.

    ``code`` >= 0 is a next state, -1 the end, -2 - k a draw from distribution k. ``tables`` holds alias
    tables (threshold, alias) of the distributions, the policy rows, and the restart distribution past unseen
    cells; ``redirects`` = (seen, factor) where mass that enters an unseen cell goes on from the restart
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
