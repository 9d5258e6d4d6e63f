"""Minibatch primal-dual SGD on the device: samples sorted ahead, coordinates moved without conflict.

Samples do not depend on the iterates, so those of many steps are drawn at once and sorted by (step,
coordinate). A step then computes the gradient of every sample at the old point, and one thread for each
coordinate it met adds up that coordinate's share in order and moves it: no atomics, the same bits every time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lingendice.divergences import FDivergence
from lingendice.gpu.device import Device, for_each, launch, n_blocks
from lingendice.gpu.equation import SCRATCH
from lingendice.problem import RatioProblem
from lingendice.sampler import alias_table, build_sampler
from lingendice.solvers.iterate import Step
from lingendice.solvers.saddle import Checkpoints, SaddleSolver, certified
from lingendice.solvers.sgd import step_sizes

STEPS_AT_ONCE = 32
_GOLDEN = 0x9E3779B97F4A7C15


class _Block:
    """One block of variables on the device: values, lazy sums, step lengths and box."""

    def __init__(self, device: Device, value: Any, length: Any, low: Any, high: Any) -> None:
        self.device = device
        n = value.size
        self.value, self.length = device.upload(value.astype(float)), device.upload(length.astype(float))
        self.low = device.upload(np.broadcast_to(low, n).astype(float))
        self.high = device.upload(np.broadcast_to(high, n).astype(float))
        self.sum, self.last = (device.zeros(n, np.float64) for _ in range(2))

    def reset(self) -> None:
        self.sum[:] = 0.0
        self.last[:] = 0.0

    def average(self, n_steps: int) -> Any:
        """Mean over the steps so far, on the host."""
        return self.device.download((self.sum + self.value * (n_steps - self.last)) / n_steps)


class _Samples:
    """Samples of STEPS_AT_ONCE steps and the order of their coordinates."""

    def __init__(self, device: Device, problem: RatioProblem, batch: int) -> None:
        flow = problem.flow
        sampler = build_sampler(flow)
        self.device, self.batch, self.n_cells = device, batch, flow.n_cells
        event_t, event_a = alias_table(sampler.probability)
        law_t, law_a, policy_t, policy_a, restart_t, restart_a = sampler.tables
        start_t, start_a, self.start_mass = sampler.starts
        seen, factor = sampler.redirects
        redirects = seen.size > 0
        if redirects and restart_t.size != flow.n_cells:
            factor = 0.0
        up = device.upload
        self.n_samples = STEPS_AT_ONCE * batch
        self.before = (
            np.int64(event_t.size), up(event_t), up(event_a), up(sampler.cell), up(sampler.following),
            np.int64(law_t.shape[1]), up(law_t.ravel()), up(law_a.ravel()), np.int32(sampler.actions),
            up(policy_t), up(policy_a), np.int32(redirects), np.float64(factor), up(flow.p),
            np.int64(flow.n_cells), up(restart_t), up(restart_a), np.float64(self.start_mass), up(start_t),
            up(start_a), np.float64(flow.gamma),
        )  # fmt: skip
        size = self.n_samples
        self.from_, self.to, self.started = (device.empty(size, np.int32) for _ in range(3))
        self.discount = device.empty(size, np.float64)
        self.tau_keys, self.f_keys = device.empty(size, np.int64), device.empty(3 * size, np.int64)
        self.tau_order, self.f_order = device.empty(size, np.int64), device.empty(3 * size, np.int64)

    def draw(self, counter: int) -> None:
        size = np.int64(self.n_samples)
        drawn = (self.from_, self.to, self.started)
        arguments = (size, np.uint64(counter), *self.before, *drawn, self.discount)
        for_each(self.device, "draw_samples", (), self.n_samples, arguments)
        keys = (size, np.int64(self.batch), np.int64(self.n_cells), *drawn, self.tau_keys, self.f_keys)
        for_each(self.device, "sample_keys", (), self.n_samples, keys)
        self.tau_order[:] = self.device.sort_order(self.tau_keys)
        self.f_order[:] = self.device.sort_order(self.f_keys)


class _Run:
    """Everything on the device, and the launches of STEPS_AT_ONCE steps."""

    def __init__(self, device: Device, problem: RatioProblem, batch: int, scale: float) -> None:
        self.device, self.problem, self.batch, self.scale = device, problem, batch, scale
        divergence = problem.divergence
        assert isinstance(divergence, FDivergence)
        self.lengths = step_sizes(problem)
        n = problem.flow.n_cells
        zero = np.zeros(n)
        self.tau = _Block(device, np.clip(problem.start(), 0.0, problem.upper), zero, 0.0, problem.upper)
        self.f = _Block(device, zero, zero, -problem.dual_box, problem.dual_top)
        self.u, self.clock = device.zeros(2, np.float64), device.zeros(1, np.float64)
        self.samples = _Samples(device, problem, batch)
        self.weight = device.upload(problem.flow.mass_weight)
        self.kind = (np.int32(divergence.code), np.int32(divergence.weighs_by_ratio))
        self.on_tau, self.on_f = device.empty(batch, np.float64), device.empty(3 * batch, np.float64)
        self.n_parts = n_blocks(device, batch, device.block)
        self.u_parts = device.empty(self.n_parts, np.float64)
        self.u_length = 0.0

    def begin_epoch(self, n_steps: int) -> None:
        pace = self.scale / math.sqrt(n_steps)
        self.tau.length[:] = self.device.upload(self.lengths.w * pace)
        self.f.length[:] = self.device.upload(self.lengths.v * pace)
        self.u_length = self.lengths.u * pace
        self.tau.reset()
        self.f.reset()
        self.u[1:] = 0.0

    def steps(self, first: int, size: int, counter: int) -> None:
        """Steps ``first : first + size`` of the epoch; size is at most STEPS_AT_ONCE."""
        self.samples.draw(counter)
        self.clock[:] = float(first)
        for step in range(size):
            self._step(step)

    def _step(self, step: int) -> None:
        device, samples, problem, batch = self.device, self.samples, self.problem, self.batch
        flow = problem.flow
        launch(
            device, "sample_gradients", (), self.n_parts,
            (np.int64(step * batch), np.int32(batch), np.int64(flow.n_cells), samples.from_, samples.to,
             samples.discount, np.float64(samples.start_mass), self.tau.value, self.f.value, self.u,
             self.weight, *self.kind, np.float64(problem.penalty), np.float64(flow.mass_offset),
             np.float64(problem.ridge), np.float64(problem.ridge_centre), self.on_tau, self.on_f,
             self.u_parts),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        moves = (
            (self.tau, samples.tau_keys, samples.tau_order, self.on_tau, 1, -1.0),
            (self.f, samples.f_keys, samples.f_order, self.on_f, 3, 1.0),
        )
        for block, keys, order, gradient, each, sign in moves:
            first, entries = step * batch * each, batch * each
            for_each(
                device, "update_coordinates", (), entries,
                (np.int64(first), np.int32(entries), np.int64(step), np.int64(flow.n_cells), keys, order,
                 np.int64(first), gradient, np.float64(sign / batch), block.length, block.low, block.high,
                 self.clock, block.value, block.sum, block.last),
            )  # fmt: skip
        launch(
            device, "update_multiplier", (), 1,
            (np.int32(self.n_parts), self.u_parts, np.float64(self.u_length / batch),
             np.float64(self.lengths.u_top), self.u),
            block=1,
        )  # fmt: skip


def device_sgd(
    device: Device,
    problem: RatioProblem,
    tol: float,
    seed: int,
    options: dict[str, Any],
    max_iter: int | None,
) -> SaddleSolver:
    """Epochs of doubling length, as on the host, each step the mean gradient of ``batch`` samples.

    The constants of :func:`lingendice.solvers.sgd.step_sizes` hold for any batch; a larger one lowers the
    noise below what they allow for.
    """
    batch, average = int(options["batch"]), bool(options["average"])
    run = _Run(device, problem, batch, float(options["step_scale"]))
    counter = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    checkpoints = Checkpoints()
    n_iter, n_steps, stopped = 0, int(options["first_epoch"]), False
    while not stopped:
        if max_iter is not None and max_iter - n_iter < 3 * n_steps:
            n_steps = max(1, max_iter - n_iter)
        run.begin_epoch(n_steps)
        done = 0
        while done < n_steps and not stopped:
            size = min(STEPS_AT_ONCE, n_steps - done)
            run.steps(done, size, counter)
            counter = (counter + 6 * size * batch * _GOLDEN) % 2**64
            done += size
            n_iter += size
            # A total of the values costs one number, and shows any that is not finite.
            total = float(device.download(run.tau.value.sum())) + float(device.download(run.f.value.sum()))
            error = checkpoints.gap if math.isfinite(total) else math.nan
            stopped = (yield Step(n_iter, error)) is not None
        u = device.download(run.u)
        if average:
            point = run.tau.average(done), run.f.average(done), float(u[1]) / done
        else:
            point = device.download(run.tau.value), device.download(run.f.value), float(u[0])
        checkpoints.note(certified(problem, *point, tol, "sgd", n_iter))
        if checkpoints.gap <= tol:
            break
        n_steps *= 2
    return checkpoints.finish(n_iter)
