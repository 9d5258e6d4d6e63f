"""Minibatch primal-dual SGD on the device: samples sorted ahead, coordinates moved without conflict.

Samples do not depend on the iterates, so those of many steps are drawn at once and sorted by (step,
coordinate). A step then computes the gradient of every sample at the old point, and one thread for each
coordinate it met adds up that coordinate's share in order and moves it: no atomics, the same bits every time.

Step counter, step lengths and the counter of the random numbers lie on the device: STEPS_AT_ONCE steps are
one sequence of launches that never changes, recorded once and repeated without involving the host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lingendice.divergences import FDivergence
from lingendice.gpu.catalog import c_type
from lingendice.gpu.device import Device, for_each, launch, n_blocks
from lingendice.gpu.device_saddle import STEPS_AT_ONCE
from lingendice.gpu.equation import SCRATCH
from lingendice.gpu.power_steps import POLL_SECONDS
from lingendice.model.sampler import alias_table, build_sampler
from lingendice.solvers.control import Controls, Step
from lingendice.solvers.problem import RatioProblem
from lingendice.solvers.saddle_outcome import Checkpoints, SaddleSolver, certified
from lingendice.solvers.sgd import step_sizes

# Places in the array of the clock: see cuda/saddle.cu.
STEP, EPOCH, MULTIPLIER_LENGTH, CLOCK = range(4)
SHARED_WIDTH = 4096
"""Entries of a segment that are sorted in shared memory."""


class _Block:
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


class _Samples:
    """Samples of STEPS_AT_ONCE steps, and which coordinates each step moves."""

    def __init__(self, device: Device, problem: RatioProblem, batch: int, seed: int) -> None:
        flow = problem.flow
        sampler = build_sampler(flow)
        self.device, self.batch, self.n_cells = device, batch, flow.n_cells
        event_t, event_a = alias_table(sampler.probability)
        distribution_t, distribution_a, policy_t, policy_a, restart_t, restart_a = sampler.tables
        start_t, start_a, self.start_mass = sampler.starts
        seen, factor = sampler.redirects
        redirects = seen.size > 0
        if redirects and restart_t.size != flow.n_cells:
            factor = 0.0
        up = device.upload
        self.n_samples = STEPS_AT_ONCE * batch
        self.before = (
            np.int64(event_t.size), up(event_t), up(event_a), up(sampler.cell), up(sampler.following),
            np.int64(distribution_t.shape[1]), up(distribution_t.ravel()), up(distribution_a.ravel()),
            np.int32(sampler.actions),
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
            launch(
                device, "sort_segments", (), steps,
                (np.int32(steps), np.int32(width), np.int32(near), entries),
                shared_bytes=8 * width if near else 0,
            )  # fmt: skip


class _Run:
    """Everything on the device, and the launches of STEPS_AT_ONCE steps."""

    def __init__(
        self,
        device: Device,
        problem: RatioProblem,
        storage: np.dtype[Any],
        batch: int,
        scale: float,
        seed: int,
    ) -> None:
        self.device, self.problem, self.batch, self.scale = device, problem, batch, scale
        self.storage, self.type = storage, (c_type(storage),)
        divergence = problem.divergence
        assert isinstance(divergence, FDivergence)
        self.lengths = step_sizes(problem)
        zero = np.zeros(problem.flow.n_cells)
        start = np.clip(problem.start(), 0.0, problem.upper)
        self.tau = _Block(self.up, device, start, 0.0, problem.upper)
        self.f = _Block(self.up, device, zero, -problem.dual_box, problem.dual_top)
        self.u, self.clock = device.zeros(2, np.float64), device.zeros(CLOCK, np.float64)
        self.samples = _Samples(device, problem, batch, seed)
        self.weight = self.up(problem.flow.mass_weight)
        self.kind = (np.int32(divergence.code), np.int32(divergence.weighs_by_ratio))
        self.on_tau, self.on_f = device.empty(batch, storage), device.empty(3 * batch, storage)
        self.n_parts = n_blocks(device, batch, device.block)
        self.u_parts = device.empty(self.n_parts, np.float64)

    def up(self, array: Any) -> Any:
        """A vector on the device, as vectors are stored there."""
        return self.device.upload(np.ascontiguousarray(array, self.storage))

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
        for step in range(STEPS_AT_ONCE):
            self._step(step)
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
             np.float64(problem.ridge_center), self.on_tau, self.on_f, self.u_parts),
            shared_bytes=SCRATCH,
        )  # fmt: skip
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

    def watched(self) -> float:
        """Two numbers from the device, whose sum shows any value that is not finite."""
        return sum(float(self.device.download(block.value.sum())) for block in (self.tau, self.f))


def device_sgd(
    device: Device,
    problem: RatioProblem,
    storage: np.dtype[Any],
    controls: Controls,
    seed: int,
    options: dict[str, Any],
) -> SaddleSolver:
    """Epochs of doubling length, as on the host, each step the mean gradient of ``batch`` samples.

    The constants of :func:`lingendice.solvers.sgd.step_sizes` hold for any batch; a larger one lowers the
    noise below what they allow for.
    """
    tol, max_iter = controls.tol, controls.max_iter
    batch, average = int(options["batch"]), bool(options["average"])
    run = _Run(device, problem, storage, batch, float(options["step_scale"]), seed)
    checkpoints = Checkpoints()
    n_iter, n_steps, stopped, rounds = 0, int(options["first_epoch"]), False, 1
    repeat: Callable[[], None] | None = None
    while not stopped:
        if max_iter is not None and max_iter - n_iter < 3 * n_steps:
            n_steps = max(1, max_iter - n_iter)
        run.begin_epoch(n_steps)
        done = 0
        while done < n_steps and not stopped:
            began, left = time.perf_counter(), -(-(n_steps - done) // STEPS_AT_ONCE)
            rounds = min(rounds, left)
            for _ in range(rounds):
                if repeat is None:
                    repeat = device.record(run)  # which makes the steps
                else:
                    repeat()
            before, done = done, min(n_steps, done + rounds * STEPS_AT_ONCE)
            n_iter += done - before
            error = checkpoints.gap if math.isfinite(run.watched()) else math.nan
            stopped = (yield Step(n_iter, error)) is not None
            spent = time.perf_counter() - began
            rounds = max(1, min(2 * rounds, int(rounds * POLL_SECONDS / max(spent, 1e-6))))
        u = device.download(run.u)
        if average:
            point = run.tau.average(done), run.f.average(done), float(u[1]) / done
        else:
            w, v = (device.download(block.value).astype(float) for block in (run.tau, run.f))
            point = w, v, float(u[0])
        checkpoints.note(certified(problem, *point, tol, "sgd", n_iter))
        if checkpoints.gap <= tol:
            break
        n_steps *= 2
    return checkpoints.finish(n_iter)
