"""Bytes and flops of every CUDA kernel, the times they bound on two GPUs, and the CPU's own fraction.

``python benchmarks/roofline.py`` measures this machine's memory bandwidth and our sweep, writes
``results/roofline.json`` and puts the tables into ``docs/gpu.md``. No GPU is needed, and none is used: the
times are what the memory of a GPU allows at best, not measurements.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import provenance

HERE = Path(__file__).parent
RECORD = HERE / "results" / "roofline.json"
PAGE = HERE.parent / "docs" / "gpu.md"
BEGIN, END = "<!-- roofline: begin -->", "<!-- roofline: end -->"
STATES, TRANSITIONS, DEPTH, BATCH = 10_000_000, 100_000_000, 6, 1024
SECTOR = 32
"""Bytes that a GPU reads for one scattered number."""


class Gpu(NamedTuple):
    """Peak figures of the data sheet."""

    bandwidth: float
    flops: float


GPUS = {"A100 80 GB SXM": Gpu(2.039e12, 9.7e12), "H100 80 GB SXM": Gpu(3.35e12, 34e12)}


class Work(NamedTuple):
    """What a kernel streams, how many scattered reads it makes, and its floating-point operations."""

    name: str
    streamed: float
    scattered: float
    flops: float
    unit: str


def kernels(n: int, nnz: int) -> list[Work]:
    """Work of each kernel for n states and nnz transitions, distributions and rates in double, one hub."""
    pairs = DEPTH * (DEPTH + 1) // 2
    return [
        # rates 8, sources 4; per row: offset 4, row number 4, old 8, start 8, distribution 8, share 8, new 8
        Work("pull_rows: one step with its residual", 12 * nnz + 48 * n, nnz, 2 * nnz + 10 * n, "step"),
        Work("pull_rows in float32", 8 * nnz + 28 * n, nnz, 2 * nnz + 10 * n, "step"),
        Work("change_products", 8 * (DEPTH + 1) * n, 0, (2 * pairs + DEPTH) * n, "cycle"),
        Work("mix_iterates", 8 * (DEPTH + 2) * n, 0, (2 * DEPTH + 3) * n, "cycle"),
        Work("scale_distribution (gamma = 1)", 16 * n, 0, n, "cycle"),
        Work("compose_rates", 20 * nnz + 28 * n, 0, 2 * nnz, "setup"),
        # eight passes of a radix sort over 4-byte keys with 8-byte places, then sources and rates gathered
        Work("sort by column, two gathers", 4 * 2 * 12 * nnz + 40 * nnz, 2 * nnz, 0, "setup"),
        # three columns of 8-byte ids: checked in two passes each, then multiplied to keys, by the library
        Work("counting into a table (4-byte keys)", 140 * nnz, nnz, 0, "log"),
        Work("counting by sorting (8-byte keys)", 8 * 2 * 16 * nnz + 210 * nnz, nnz, 0, "log"),
        Work("sample_gradients, update_coordinates", 140 * BATCH, 13 * BATCH, 30 * BATCH, "step"),
        # tables met at random; entries of 8 bytes written, and sorted in shared memory
        Work("draw_samples, list_entries, sort_segments", 200 * BATCH, 6 * BATCH, 0, "step"),
    ]


def seconds(work: Work, gpu: Gpu) -> tuple[float, float]:
    """Least time if scattered numbers come from cache, and if each costs a sector."""
    compute = work.flops / gpu.flops
    near = max(work.streamed / gpu.bandwidth, compute)
    far = max((work.streamed + SECTOR * work.scattered) / gpu.bandwidth, compute)
    return near, far


def median_seconds(action, repeats: int = 7) -> float:
    action()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def triad_bandwidth(size: int = 20_000_000) -> float:
    """Bytes a second of a = b + s c on one core, counting two reads and one write."""
    from numba import njit

    @njit
    def triad(a, b, c, s):
        for i in range(a.size):
            a[i] = b[i] + s * c[i]

    a, b, c = np.zeros(size), np.ones(size), np.ones(size)
    return 24.0 * size / median_seconds(lambda: triad(a, b, c, 3.0))


def sweep(n: int = 1_000_000, degree: int = 10) -> tuple[float, int]:
    """Seconds of one Gauss-Seidel sweep of our CPU solver on one core, and its entries."""
    from lingendice.model.transition_rows import TransitionRows
    from lingendice.solvers.discounted import discounted_distribution

    rng = np.random.default_rng(0)
    indices = rng.integers(n, size=n * degree).astype(np.int32)
    indptr = np.arange(0, n * degree + 1, degree)
    weight = rng.random(indices.size)
    total, even = np.add.reduceat(weight, indptr[:-1]), np.full(n, 1.0 / n)
    chain = TransitionRows(indptr, indices, weight, total, np.ones(n), np.zeros((n, 1)), even[None, :])

    def run(sweeps: int):
        return lambda: discounted_distribution(chain, 0.99, even, tol=1e-300, threads=1, max_sweeps=sweeps)

    # Set-up and the search for a better order come before the tenth sweep: neither is a sweep's cost.
    return (median_seconds(run(18), 5) - median_seconds(run(10), 5)) / 8.0, indices.size


def measure() -> dict[str, float]:
    """This machine: bandwidth of the triad, and what a sweep takes of it."""
    bandwidth = triad_bandwidth()
    n = 1_000_000
    spent, nnz = sweep(n)
    streamed = 12.0 * nnz + 32.0 * n
    touched = streamed + 64.0 * nnz
    return {
        "triad_gb_s": bandwidth / 1e9,
        "sweep_seconds": spent,
        "states": n,
        "entries": nnz,
        "streamed_fraction": streamed / spent / bandwidth,
        "touched_fraction": touched / spent / bandwidth,
    }


def tables(record: dict[str, float]) -> str:
    """Both tables as Markdown."""
    names = list(GPUS)
    lines = [
        f"| kernel | unit | bytes streamed | scattered reads | flops | {names[0]} | {names[1]} |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in kernels(STATES, TRANSITIONS):
        times = [" - ".join(_time(value) for value in seconds(work, gpu)) for gpu in GPUS.values()]
        numbers = [f"{value:.3g}" for value in (work.streamed, work.scattered, work.flops)]
        lines.append(f"| {work.name} | {work.unit} | {' | '.join(numbers)} | {' | '.join(times)} |")
    every = {work.name: work for work in kernels(STATES, TRANSITIONS)}
    per_cycle = [every["change_products"], every["mix_iterates"]]
    step = every["pull_rows: one step with its residual"]
    for name, gpu in GPUS.items():
        low, high = (
            100 * seconds(step, gpu)[k] + 100 / DEPTH * sum(seconds(work, gpu)[k] for work in per_cycle)
            for k in (0, 1)
        )
        lines += ["", f"A solve of 100 steps on an {name}: {_time(low)} to {_time(high)}, set-up apart."]
    lines += [
        "",
        f"The CPU of the developers' machine, one core: the triad moves {record['triad_gb_s']:.1f} GB/s. A",
        f"Gauss-Seidel sweep over {record['states']:,} states and {record['entries']:,} entries with random",
        f"targets takes {record['sweep_seconds'] * 1e3:.0f} ms: {record['streamed_fraction']:.0%} of that "
        "bandwidth if only streamed bytes",
        f"count, {record['touched_fraction']:.0%} if each scattered read counts its 64-byte line.",
    ]
    return "\n".join(lines)


def _time(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.0f} us" if value >= 1e-5 else f"{value * 1e6:.2f} us"
    return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:.3g} s"


def main() -> None:
    """Measure, or with --keep take the last measurement, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="do not measure: use the recorded figures")
    if not parser.parse_args().keep:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
        provenance.mark("roofline")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    made = tables(json.loads(RECORD.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
