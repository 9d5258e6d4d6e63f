"""One pair of networks in training: where parameters lie, how they start, and the steps that change them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.objective import ACTIVATIONS, NeuralOptions, Objective
from lingendice.continuous.samples import Arrivals, Samples, Singles
from lingendice.data.checks import Floats
from lingendice.data.rows import zeros_by_line
from lingendice.kernels.networks import ratio_step
from lingendice.kernels.networks.mlp import WIDTH, transpose_weights
from lingendice.kernels.networks.ratio_step import (
    TILE,
    Gradients,
    Loss,
    Pair,
    Rates,
    Rows,
    Settings,
    Shape,
    Work,
    evaluate_rows,
)
from lingendice.kernels.parallel import run_all


def aligned(*shape: int) -> Singles:
    """Zeros of float32 whose rows begin at cache lines."""
    columns = -(-shape[-1] // 16) * 16
    size = math.prod(shape[:-1]) * columns
    return zeros_by_line(size, np.float32).reshape(*shape[:-1], columns)


def aligned_rows(values: NDArray[Any], columns: int) -> Singles:
    """Values as float32 rows padded with zeros to ``columns``, flat."""
    rows = aligned(len(values) * columns)[: len(values) * columns]
    rows.reshape(len(values), columns)[:, : values.shape[1]] = values
    return rows


@dataclass(frozen=True)
class Network:
    """A multilayer perceptron with one output: sizes, not numbers."""

    n_inputs: int
    hidden: tuple[int, ...]
    activation: str = "tanh"

    @property
    def stride(self) -> int:
        """Numbers between rows of inputs."""
        return -(-self.n_inputs // 8) * 8

    @cached_property
    def layout(self) -> NDArray[np.int64]:
        """The table of ``kernels/mlp.py``."""
        rows, at, turned = [], 0, 0
        inner, stride = self.n_inputs, self.stride
        for width in self.hidden:
            wide = -(-width // WIDTH) * WIDTH
            rows.append((inner, stride, wide, at, at + stride * wide, turned))
            turned += stride * wide if len(rows) > 1 else 0
            at += stride * wide + wide
            inner, stride = width, wide
        rows.append((stride, stride, 1, at, at + stride, turned))
        return np.array(rows, dtype=np.int64)

    @property
    def size(self) -> int:
        """Length of the vector of parameters, padding included."""
        return int(self.layout[-1, 4]) + 16

    @property
    def turned_size(self) -> int:
        """Length of the vector of transposed weights."""
        return int(self.layout[-1, 5]) + 16

    @property
    def code(self) -> int:
        """The activation's number."""
        return ACTIVATIONS.index(self.activation)

    def layers(self, parameters: Singles) -> list[tuple[Singles, Singles]]:
        """Views of (weights, biases) of every layer, without padding."""
        views = []
        sizes = (self.n_inputs, *self.hidden, 1)
        for (_, stride, wide, at, bias_at, _), inner, width in zip(
            self.layout, sizes[:-1], sizes[1:], strict=True
        ):
            weights = parameters[at : at + stride * wide].reshape(stride, wide)[:inner, :width]
            views.append((weights, parameters[bias_at : bias_at + width]))
        return views

    def start(self, rng: np.random.Generator, bias: float, output_scale: float = 0.1) -> Singles:
        """Random parameters, uniform in +- sqrt(6 / (in + out)).

        Those of the last layer are small, so that the output begins near ``bias``.
        """
        parameters = aligned(self.size)
        for k, (weights, biases) in enumerate(self.layers(parameters)):
            limit = math.sqrt(6.0 / sum(weights.shape))
            if k == len(self.hidden):
                limit *= output_scale
                biases[:] = bias
            weights[:] = rng.uniform(-limit, limit, weights.shape)
        return parameters

    def outputs(self, parameters: Singles, inputs: Singles) -> NDArray[np.float64]:
        """The network's output at each row of inputs."""
        rows = aligned_rows(inputs, self.stride).reshape(len(inputs), self.stride)
        scratch = aligned(TILE * (self.stride + int(self.layout[:-1, 2].sum())))
        out = np.empty(len(inputs), dtype=np.float32)
        part = aligned(TILE)
        evaluate_rows(parameters, self.layout, rows, scratch, part, out, self.code)
        return out.astype(np.float64)


_KINDS = {
    "none": ratio_step.ACT_NONE,
    "discrete": ratio_step.ACT_DISCRETE,
    "gaussian": ratio_step.ACT_GAUSSIAN,
    "sampled": ratio_step.ACT_GIVEN,
}
_START = {"square": 1.0, "softplus": math.log(math.e - 1.0), "exp": 0.0, "identity": 1.0}
"""Output of the network at which tau is 1."""


class Batches:
    """Samples in the layout that the kernels gather from; shared by all members of an ensemble."""

    def __init__(self, samples: Samples, network: Network) -> None:
        self.samples = samples
        n, stride = len(samples.logged), network.stride
        pairs = np.zeros((n, 2 * stride), dtype=np.float32)
        pairs[:, : samples.n_inputs] = samples.logged
        following = _with_means(samples, samples.following)
        pairs[:, stride : stride + following.shape[1]] = following
        starting = samples.starting or Arrivals(
            np.empty(0), np.zeros((1, samples.n_states_in), np.float32), samples.following.action[:1]
        )
        self.n_firsts = 0 if samples.starting is None else len(starting.states)
        flags = np.full(n, ratio_step.FLOWS, dtype=np.int8)
        flags[samples.absorbed] = ratio_step.ABSORBED
        flags[samples.restarted] = ratio_step.RESTARTED
        self.flags = flags
        self.rows = Rows(
            Shape(
                n, self.n_firsts, stride, samples.n_states_in, samples.n_actions_in, _KINDS[samples.kind],
                samples.n_branches, int(samples.restarted.sum()),
            ),
            aligned_rows(pairs, 2 * stride),
            aligned_rows(_with_means(samples, starting), stride),
            np.ascontiguousarray(samples.following.action).ravel(),
            np.ascontiguousarray(starting.action).ravel(),
            samples.noise,
            flags,
            samples.mass_weight.astype(np.float32),
        )  # fmt: skip


def _with_means(samples: Samples, arrivals: Arrivals) -> Singles:
    """States, and the means of Gaussian actions in the place that the actions take."""
    return np.hstack([arrivals.states, arrivals.action]) if samples.kind == "gaussian" else arrivals.states


class Learner:
    """tau, f and u, the moments of Adam, and the average of tau; bits depend on the seed alone."""

    def __init__(
        self, batches: Batches, network: Network, objective: Objective, options: NeuralOptions, steps: int,
        seed: int,
    ) -> None:  # fmt: skip
        self.batches, self.network, self.objective, self.options = batches, network, objective, options
        self.planned, self.seed = steps, seed
        rng = np.random.default_rng([seed, 1])
        self.tau_parameters = network.start(rng, _START[objective.output])
        self.f_parameters = network.start(rng, 0.0)
        self.mean = self.tau_parameters.copy()
        self.moments = (aligned(2, network.size), aligned(2, network.size))
        self.state = np.zeros(5)
        self._turned = (aligned(network.turned_size), aligned(network.turned_size))
        self._works: list[Work] = []
        self._turn()

    @property
    def step(self) -> int:
        """Steps taken."""
        return int(self.state[3])

    @property
    def u(self) -> float:
        """Multiplier of the normalization."""
        return float(self.state[0])

    def _turn(self) -> None:
        for parameters, turned in zip((self.tau_parameters, self.f_parameters), self._turned, strict=True):
            transpose_weights(parameters, self.network.layout, turned)

    # -- training ------------------------------------------------------------------------------------

    def advance(self, steps: int, threads: int = 1) -> None:
        """Take some steps; with threads, the groups of each step run side by side."""
        for _ in range(steps):
            self.add_gradients(threads)
            ratio_step.finish_step(
                self.options.batch, self._rates, self._nets, self._gradients, self.moments, self.mean,
                self.state,
            )  # fmt: skip

    def add_gradients(self, threads: int = 1) -> Gradients:
        """Gradients of the next step's batch, group by group."""
        nothing = np.zeros(1, dtype=np.float32)
        given = self._draw_actions() if self.batches.samples.kind == "sampled" else (nothing, nothing)
        common = (
            (self.seed, self.step), self._settings, self._loss, self.u, self.batches.rows, self._nets,
            self._gradients, given,
        )  # fmt: skip
        groups = self._gradients.mass.size
        threads = min(threads, groups)
        cuts = [groups * k // threads for k in range(threads + 1)]
        run_all(
            [
                partial(ratio_step.add_gradients, cuts[k], cuts[k + 1], *common, self._work(k))
                for k in range(threads)
            ],
            threads,
        )
        return self._gradients

    def _draw_actions(self) -> tuple[Singles, Singles]:
        """Actions of a policy that only the interpreter can sample, at the rows that the next step draws."""
        samples, batch = self.batches.samples, self.options.batch
        rng = np.random.default_rng([self.seed, 2, self.step])
        rows, firsts, restarts = np.empty((3, batch), dtype=np.int64)
        ratio_step.draw_rows(
            self.seed, self.step, batch, len(samples.logged), self.batches.n_firsts, self.batches.flags, rows,
            firsts, restarts,
        )  # fmt: skip
        following = samples.draw(samples.following, rows, rng)
        if samples.starting is None:
            return following.ravel(), following[0]
        again = np.flatnonzero(restarts >= 0)
        if again.size:
            following[again] = samples.draw(samples.starting, restarts[again], rng)
        starting = samples.draw(samples.starting, firsts, rng) if self.objective.gamma < 1.0 else following[0]
        return following.ravel(), starting.ravel()

    @cached_property
    def _settings(self) -> Settings:
        return Settings(self.options.batch, ratio_step.GROUP, ratio_step.TILE, self.network.code)

    @cached_property
    def _loss(self) -> Loss:
        return self.objective.numbers()

    @cached_property
    def _nets(self) -> Pair:
        return Pair(self.network.layout, self.tau_parameters, self.f_parameters, *self._turned)

    @cached_property
    def _rates(self) -> Rates:
        options = self.options
        average_from = self.planned * (1.0 - options.average) if options.average > 0 else math.inf
        return Rates(
            float(options.learning_rate),
            float(options.dual_learning_rate or 3.0 * options.learning_rate),
            float(options.clip),
            float(self.planned),
            float(average_from),
            float(options.decay),
            float(options.momentum),
        )

    @cached_property
    def _gradients(self) -> Gradients:
        groups = -(-self.options.batch // ratio_step.GROUP)
        return Gradients(
            aligned(groups, self.network.size), aligned(groups, self.network.size), np.zeros(groups)
        )

    def _work(self, thread: int) -> Work:
        """Scratch of one thread."""
        if thread == len(self._works):
            self._works.append(self._new_work())
        return self._works[thread]

    def _new_work(self) -> Work:
        tile, samples = ratio_step.TILE, self.batches.samples
        sets = 1 + 2 * samples.n_branches
        rows = tile * sets
        widths = int(self.network.layout[:-1, 2].sum())
        normals = tile * (samples.n_actions_in + 1)
        integers = np.zeros((2, normals), dtype=np.int32)
        return Work(
            aligned(rows * (self.network.stride + widths) + tile * widths),
            aligned(2, rows),
            aligned(2, rows),
            aligned(2, tile * samples.n_branches),
            aligned(2, normals),
            integers,
            integers.view(np.float32),
            np.zeros((3, tile), dtype=np.int64),
            aligned(rows * int(self.network.layout[:, 1].max())),
        )

    # -- what was learnt -----------------------------------------------------------------------------

    @property
    def is_finite(self) -> bool:
        """Whether all parameters are numbers."""
        return bool(np.isfinite(self.tau_parameters.sum() + self.f_parameters.sum() + self.state.sum()))

    @property
    def best_parameters(self) -> Singles:
        """Of tau: the averaged ones once there are any."""
        return self.mean if self.state[4] > 0 else self.tau_parameters

    def tau(self, inputs: Singles) -> Floats:
        """The ratio at given inputs."""
        return ratio_of(self.objective.output, self.network.outputs(self.best_parameters, inputs))

    # -- to and from a file --------------------------------------------------------------------------

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "tau": self.tau_parameters,
            "f": self.f_parameters,
            "mean": self.mean,
            "tau_moments": self.moments[0],
            "f_moments": self.moments[1],
            "state": self.state,
        }

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Copies of all that training changes."""
        return {name: values.copy() for name, values in self._arrays().items()}

    def restore(self, held: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot; training goes on from it to the bit."""
        for name, values in self._arrays().items():
            values[...] = held[name]
        self._turn()


def ratio_of(output: str, z: Floats) -> Floats:
    """tau from the network's outputs."""
    if output == "square":
        return z * z
    if output == "softplus":
        return np.logaddexp(0.0, z)
    return np.exp(np.minimum(z, 20.0)) if output == "exp" else z
