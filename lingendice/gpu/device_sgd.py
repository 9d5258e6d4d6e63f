"""GenDICE's saddle point over tables on the device, by minibatch SGD; gaps are certified on the host.

Samples of SGD do not depend on the iterates, so those of many steps are drawn at once and sorted by (step,
coordinate). A step then computes the gradient of every sample at the old point, and one thread for each
coordinate it met adds up that coordinate's share in order and moves it: no atomics, the same bits every time.
Step counter, step lengths and the counter of the random numbers lie on the device: STEPS_AT_ONCE steps are
one sequence of launches that never changes, recorded once and repeated without involving the host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences import FDivergence
from lingendice.gpu.catalog import c_type
from lingendice.gpu.device import Device, for_each, launch, n_blocks
from lingendice.gpu.equation import SCRATCH
from lingendice.gpu.power_steps import POLL_SECONDS
from lingendice.solvers.control import Controls
from lingendice.solvers.problem import RatioProblem, SaddleSolver
from lingendice.solvers.sgd import alias_table, build_sampler, in_epochs, step_sizes

ADVICE = '; options={"storage": "float32"} halves vectors and matrices; or use device="cpu"'
STEPS_AT_ONCE = 32
"""Steps of SGD that are drawn, sorted and recorded together."""
# Places in the array of the clock: see cuda/saddle.cu.
STEP, EPOCH, MULTIPLIER_LENGTH, CLOCK = range(4)
SHARED_WIDTH = 4096
"""Entries of a segment that are sorted in shared memory."""


def sgd_bytes(problem: RatioProblem, batch: int, value: int) -> int:
    """Device memory of SGD with ``batch`` samples per step; ``value`` bytes per stored number."""
    flow = problem.flow
    n, n_hubs = flow.n_cells, flow.rows.n_hubs
    tables = 20 * (flow.rows.indices.size + n * n_hubs) + 12 * n_hubs * flow.n_states + 44 * n
    a_step = (12 + 8 + 8 * (2 + 6)) * batch  # samples, and entries padded to powers of two
    vectors = (11 * value + 5 * 8) * n  # values, boxes, lengths; sums, last steps and p are double
    return vectors + tables + STEPS_AT_ONCE * a_step + (5 * value) * batch


class _Coordinates:
    """One block of variables on the device: values, lazy sums, step lengths and box."""

    def __init__(self, up: Callable[[Any], Any], device: Device, value: Any, low: Any, high: Any) -> None:
        self.device = device
        n = value.size
        self.value, self.length = up(value), up(np.zeros(n))
        self.low, self.high = (up(np.broadcast_to(part, n)) for part in (low, high))
        self.sum, self.last = (device.zeros(n, np.float64) for _ in range(2))

    def reset(self) -> None:
        self.sum[:] = 0.0
        self.last[:] = 0.0

    def average(self, n_steps: int) -> Any:
        """Mean over the steps so far, on the host."""
        return self.device.download((self.sum + self.value * (n_steps - self.last)) / n_steps)


class _DrawnSamples:
    """Samples of STEPS_AT_ONCE steps, and which coordinates each step moves."""

    def __init__(self, device: Device, problem: RatioProblem, batch: int, seed: int) -> None:
        flow = problem.flow
        sampler = build_sampler(flow)
        source = sampler.source
        self.device, self.batch, self.n_cells = device, batch, flow.n_cells
        event_t, event_a = alias_table(sampler.probability)
        distribution_t, distribution_a, policy_t, policy_a, restart_t, restart_a = source.tables
        start_t, start_a, self.start_mass = source.starts
        seen, factor = source.redirects
        redirects = seen.size > 0
        if redirects and restart_t.size != flow.n_cells:
            factor = 0.0
        up = device.upload
        self.n_samples = STEPS_AT_ONCE * batch
        self.before = (
            np.int64(event_t.size), up(event_t), up(event_a), up(sampler.cell), up(sampler.following),
            np.int64(distribution_t.shape[1]), up(distribution_t.ravel()), up(distribution_a.ravel()),
            np.int32(source.actions),
            up(policy_t), up(policy_a), np.int32(redirects), np.float64(factor), up(flow.p),
            np.int64(flow.n_cells), up(restart_t), up(restart_a), np.float64(self.start_mass), up(start_t),
            up(start_a), np.float64(flow.gamma),
        )  # fmt: skip
        size = self.n_samples
        self.from_, self.to, self.started = (device.empty(size, np.int32) for _ in range(3))
        self.discount = device.empty(size, np.float64)
        self.counter = up(np.random.SeedSequence(seed).generate_state(1, np.uint64))
        self.width = {each: 1 << (each * batch - 1).bit_length() for each in (1, 3)}
        self.entries = {
            each: device.empty(STEPS_AT_ONCE * width, np.uint64) for each, width in self.width.items()
        }

    def draw(self) -> None:
        """Launches that draw the samples and sort what they move; a sample moves 1 tau and 3 f."""
        device, steps = self.device, STEPS_AT_ONCE
        drawn = (self.from_, self.to, self.started)
        arguments = (np.int64(self.n_samples), self.counter, *self.before, *drawn, self.discount)
        for_each(device, "draw_samples", (), self.n_samples, arguments)
        for each, entries in self.entries.items():
            width = self.width[each]
            sizes = (np.int64(steps), np.int32(self.batch), np.int32(each), np.int32(width))
            places = (*sizes, np.int64(self.n_cells), *drawn, entries)
            for_each(device, "list_entries", (), steps * width, places)
            near = width <= SHARED_WIDTH
            # One block per step of SGD: a segment is sorted by threads that can wait for each other.
            launch(
                device, "sort_segments", (), steps,
                (np.int32(steps), np.int32(width), np.int32(near), entries),
                shared_bytes=8 * width if near else 0,
            )  # fmt: skip


class _SgdSteps:
    """Everything on the device, and the launches of STEPS_AT_ONCE steps."""

    def __init__(
        self, device: Device, problem: RatioProblem, storage: np.dtype[Any], batch: int, scale: float,
        seed: int,
    ) -> None:  # fmt: skip
        self.device, self.problem, self.batch, self.scale = device, problem, batch, scale
        self.type = (c_type(storage),)
        divergence = problem.divergence
        assert isinstance(divergence, FDivergence)
        self.lengths = step_sizes(problem)
        zero = np.zeros(problem.flow.n_cells)
        start = np.clip(problem.start(), 0.0, problem.upper)
        self.up = partial(device.upload, dtype=storage)
        self.tau = _Coordinates(self.up, device, start, 0.0, problem.upper)
        self.f = _Coordinates(self.up, device, zero, -problem.dual_box, problem.dual_top)
        self.u, self.clock = device.zeros(2, np.float64), device.zeros(CLOCK, np.float64)
        self.samples = _DrawnSamples(device, problem, batch, seed)
        self.weight = self.up(problem.flow.mass_weight)
        self.kind = (np.int32(divergence.code), np.int32(divergence.weighs_by_ratio))
        self.on_tau, self.on_f = device.empty(batch, storage), device.empty(3 * batch, storage)
        self.n_parts = n_blocks(device, batch, device.block)
        self.u_parts = device.empty(self.n_parts, np.float64)
        self._rounds, self._finite = 1, True
        self._repeat: Callable[[], None] | None = None

    def begin_epoch(self, n_steps: int) -> None:
        pace = self.scale / math.sqrt(n_steps)
        self.tau.length[:] = self.up(self.lengths.w * pace)
        self.f.length[:] = self.up(self.lengths.v * pace)
        self.clock[:] = self.device.upload(np.array([0.0, n_steps, self.lengths.u * pace]))
        self.tau.reset()
        self.f.reset()
        self.u[1:] = 0.0

    def __call__(self) -> None:
        """The next STEPS_AT_ONCE steps of the epoch, or as many as it still has."""
        self.samples.draw()
        # Steps past the end of the epoch are launched, too, and do nothing: the sequence is always the same.
        for step in range(STEPS_AT_ONCE):
            self._step(step)
        # A launch of its own, since blocks of the kernels before read the clock that it moves.
        launch(
            self.device, "advance_clock", (), 1,
            (np.int32(STEPS_AT_ONCE), np.int32(self.batch), self.clock, self.samples.counter), block=1,
        )  # fmt: skip

    def _step(self, step: int) -> None:
        device, samples, problem, batch = self.device, self.samples, self.problem, self.batch
        flow, number = problem.flow, np.int32(step)
        launch(
            device, "sample_gradients", self.type, self.n_parts,
            (number, np.int32(batch), self.clock, samples.from_, samples.to, samples.discount,
             np.float64(samples.start_mass), self.tau.value, self.f.value, self.u, self.weight, *self.kind,
             np.float64(problem.penalty), np.float64(flow.mass_offset), np.float64(problem.ridge),
             self.on_tau, self.on_f, self.u_parts),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        # tau goes down its gradient and f up; a sample meets one entry of tau and up to three of f.
        for block, each, gradient, sign in ((self.tau, 1, self.on_tau, -1.0), (self.f, 3, self.on_f, 1.0)):
            for_each(
                device, "update_coordinates", self.type, each * batch,
                (number, np.int32(each * batch), np.int32(samples.width[each]), np.int64(flow.n_cells),
                 samples.entries[each], gradient, np.float64(sign / batch), block.length, block.low,
                 block.high, self.clock, block.value, block.sum, block.last),
            )  # fmt: skip
        launch(
            device, "update_multiplier", (), 1,
            (number, np.int32(self.n_parts), self.u_parts, np.float64(1.0 / batch),
             np.float64(self.lengths.u_top), self.clock, self.u),
            block=1,
        )  # fmt: skip

    def advance(self, done: int, n_steps: int) -> int:
        """Rounds of STEPS_AT_ONCE steps that take about POLL_SECONDS, and a look whether all is finite."""
        began, left = time.perf_counter(), -(-(n_steps - done) // STEPS_AT_ONCE)
        rounds = min(self._rounds, left)
        for _ in range(rounds):
            if self._repeat is None:
                self._repeat = self.device.record(self)  # which does it once
            else:
                self._repeat()
        # Two numbers from the device, whose sum shows any value that is not finite.
        shown = sum(float(self.device.download(block.value.sum())) for block in (self.tau, self.f))
        self._finite = math.isfinite(shown)
        spent = time.perf_counter() - began
        self._rounds = max(1, min(2 * rounds, int(rounds * POLL_SECONDS / max(spent, 1e-6))))
        return min(n_steps - done, rounds * STEPS_AT_ONCE)

    def is_finite(self) -> bool:
        return self._finite

    def point(self, done: int, average: bool) -> tuple[Floats, Floats, float]:
        """The average of the epoch, or the last point, on the host."""
        u, blocks = self.device.download(self.u), (self.tau, self.f)
        if average:
            w, v = (block.average(done) for block in blocks)
            return w, v, float(u[1]) / done
        w, v = (self.device.download(block.value).astype(float) for block in blocks)
        return w, v, float(u[0])


def device_sgd(
    device: Device, problem: RatioProblem, storage: np.dtype[Any], controls: Controls, seed: int,
    options: dict[str, Any],
) -> SaddleSolver:  # fmt: skip
    """Epochs of doubling length, as on the host, each step the mean gradient of ``batch`` samples.

    The constants of :func:`lingendice.solvers.sgd.step_sizes` hold for any batch; a larger one lowers the
    noise below what they allow for.
    """
    run = _SgdSteps(device, problem, storage, int(options["batch"]), float(options["step_scale"]), seed)
    return in_epochs(problem, run, controls.tol, options, controls.max_iter)
