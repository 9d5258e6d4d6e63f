"""Count a generated stream of transitions and print rows, seconds and the peak of resident memory as JSON.

    python benchmarks/stream_memory.py 200000000

A million states with eight successors each: eight million distinct pairs, as many as a large log has, and
episodes of a thousand steps.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import numpy as np

import lingendice as lg

N_STATES, SUCCESSORS, BATCH = 1_000_000, 8, 1 << 20


def batches(n_rows):
    """Batches without end of fresh rows, at a few nanoseconds a row."""
    rng = np.random.default_rng(0)
    state = rng.integers(0, N_STATES, BATCH)
    jump = rng.integers(0, SUCCESSORS, BATCH)
    row = np.arange(BATCH)
    for start in range(0, n_rows, BATCH):
        size = min(BATCH, n_rows - start)
        moved = (state[:size] + start) % N_STATES
        following = (moved * 31 + np.roll(jump, start >> 20)[:size] * 7919) % N_STATES
        yield {"state": moved, "next_state": following, "episode": (row[:size] + start) // 1000}


def peak_mb():
    """Peak of this program alone: getrusage would begin with the memory of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024


def main(n_rows):
    started = time.perf_counter()
    counts = lg.read_transitions(batches(n_rows))
    seconds = time.perf_counter() - started
    assert counts.total == n_rows
    told = {"rows": n_rows, "seconds": seconds, "peak_mb": peak_mb(), "pairs": int(counts.count.size)}
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
