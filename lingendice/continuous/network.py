"""Where the parameters of a network lie, how they start, and its outputs at given inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.options import ACTIVATIONS
from lingendice.data.rows import zeros_by_line
from lingendice.kernels.networks.mlp import BLAS, VECTOR
from lingendice.kernels.networks.ratio_step import TILE, evaluate_rows, padded
from lingendice.kernels.networks.vectors import PANEL, WIDE

Singles = NDArray[np.float32]


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


def engine_code(engine: str) -> int | None:
    """The engine by its name; "auto" takes explicit vectors where they are wide."""
    if engine == "auto":
        engine = "vector" if WIDE else "blas"
    return VECTOR if engine == "vector" else BLAS


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
            wide = -(-width // PANEL) * PANEL
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

    def outputs(self, parameters: Singles, inputs: Singles, engine: str = "auto") -> NDArray[np.float64]:
        """The network's output at each row of inputs."""
        rows = aligned_rows(inputs, self.stride).reshape(len(inputs), self.stride)
        scratch = aligned(padded(TILE) * (self.stride + int(self.layout[:-1, 2].sum())))
        out = np.empty(len(inputs), dtype=np.float32)
        part = aligned(padded(TILE))
        evaluate_rows(parameters, self.layout, rows, scratch, part, out, self.code, engine_code(engine))
        return out.astype(np.float64)
