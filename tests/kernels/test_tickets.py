"""Parts of rounds among threads: each part once, rounds in order, and nobody waited for who never came."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from lingendice.kernels.jit import kernel
from lingendice.kernels.networks.tickets import (
    await_round,
    claim_part,
    draw_part,
    is_last,
    new_counters,
    open_next,
    wait_for_all,
    were_dismissed,
)

PARTS, ROUNDS = 5, 4000


@kernel
def _work(slot, counters, parts, rounds, done, sums, early):
    """Every part sees the sum that the round before left, and adds one to it at the round's end."""
    total = parts * rounds
    while True:
        part = draw_part(counters, total)
        if part >= total:
            break
        round_number = part // parts
        early[slot] += sums[0] != round_number
        done[part] += 1
        if is_last(counters, part, parts):
            sums[0] += 1
            open_next(counters, part, parts)
    if slot == 0:
        wait_for_all(counters, total)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rounds_follow_one_another(threads):
    counters = new_counters(PARTS)
    done, sums = np.zeros(PARTS * ROUNDS, dtype=np.int64), np.zeros(1, dtype=np.int64)
    early = np.zeros(threads, dtype=np.int64)
    arguments = (counters, PARTS, ROUNDS, done, sums, early)
    others = [threading.Thread(target=_work, args=(slot, *arguments)) for slot in range(1, threads)]
    for thread in others:
        thread.start()
    _work(0, *arguments)
    assert (done == 1).all()
    assert sums[0] == ROUNDS
    assert not early.any()
    for thread in others:
        thread.join()


def test_who_comes_late_finds_nothing_left():
    counters = new_counters(PARTS)
    done, sums = np.zeros(PARTS * 3, dtype=np.int64), np.zeros(1, dtype=np.int64)
    arguments = (counters, PARTS, 3, done, sums, np.zeros(2, dtype=np.int64))
    _work(0, *arguments)
    _work(1, *arguments)
    assert (done == 1).all()


@kernel
def _hold(counters, goal, patience):
    """Take a part, and wait for a round that only others can open."""
    part = claim_part(counters)
    await_round(counters, part + goal, patience)


@kernel
def _open(counters):
    open_next(counters, 0, 1)


@pytest.mark.parametrize(("patience", "sent"), [(10**12, False), (10**6, True)])
def test_a_long_wait_sends_helpers_away(patience, sent):
    counters = new_counters(1)
    waiting = threading.Thread(target=_hold, args=(counters, 1, patience))
    waiting.start()
    time.sleep(0.05)
    assert not were_dismissed(counters)
    _open(counters)
    waiting.join()
    assert were_dismissed(counters) == sent
