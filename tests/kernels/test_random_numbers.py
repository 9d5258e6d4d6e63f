"""The generator against an independent implementation in plain Python integers."""

from __future__ import annotations

import numpy as np
from scipy import stats

from lingendice.kernels import random_numbers

MASK = 2**64 - 1


def _rotate(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & MASK


def _reference_words(state: list[int], count: int) -> list[int]:
    words = []
    for _ in range(count):
        words.append((_rotate((state[0] + state[3]) & MASK, 23) + state[0]) & MASK)
        shifted = (state[1] << 17) & MASK
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= shifted
        state[3] = _rotate(state[3], 45)
    return words


def test_words_match_plain_python():
    stream = np.array([1, 2, 3, 4], dtype=np.uint64)
    got = [int(random_numbers.next_word(stream)) for _ in range(50)]
    assert got == _reference_words([1, 2, 3, 4], 50)
    assert got[0] == 41943041  # the first published output for the state 1, 2, 3, 4


def test_mix_is_splitmix64():
    # First output of SplitMix64 seeded with 0, as published with the generator.
    assert int(random_numbers.mix(np.uint64(0x9E3779B97F4A7C15))) == 0xE220A8397B1DCDAF


def test_streams_differ_and_do_not_depend_on_how_many_are_made():
    few, many = np.empty((3, 4), dtype=np.uint64), np.empty((2000, 4), dtype=np.uint64)
    random_numbers.fill_streams(7, 0, few)
    random_numbers.fill_streams(7, 0, many)
    assert np.array_equal(few, many[:3])
    assert np.unique(many).size == many.size
    other = np.empty((3, 4), dtype=np.uint64)
    random_numbers.fill_streams(8, 0, other)
    assert not np.intersect1d(other, many).size


def test_doubles_are_uniform():
    stream = np.empty((1, 4), dtype=np.uint64)
    random_numbers.fill_streams(3, 0, stream)
    draws = np.array([random_numbers.next_double(stream[0]) for _ in range(20_000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3


def test_next_below_covers_its_range_evenly():
    stream = np.empty((1, 4), dtype=np.uint64)
    random_numbers.fill_streams(4, 0, stream)
    counts = np.bincount([random_numbers.next_below(stream[0], 3) for _ in range(9000)], minlength=3)
    assert counts.size == 3
    assert stats.chisquare(counts).pvalue > 1e-3
