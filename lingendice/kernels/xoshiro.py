"""Random numbers from state held in plain arrays: one row of four words is one stream.

The generator is xoshiro256++ (Blackman and Vigna), its state filled by SplitMix64. Every
stream belongs to a piece of work (an episode, a resample), never to a thread, so results
are the same bits for any number of threads.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_DOUBLE_UNIT = 2.0**-53


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
        word = mix(mix(np.uint64(seed) + _GOLDEN) + np.uint64(first_stream + i) * _GOLDEN)
        for k in range(4):
            word += _GOLDEN
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
    return (next_word(stream) >> np.uint64(11)) * _DOUBLE_UNIT


@kernel
def next_below(stream, n):
    """Advance one stream and return a whole number uniform on 0..n-1 (bias below n / 2**53)."""
    return np.int64(next_double(stream) * n)
