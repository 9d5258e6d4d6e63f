"""Sizes of a multilayer perceptron, and where ``kernels/mlp.py`` finds its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.samples import Singles
from lingendice.data.checks import require_whole
from lingendice.kernels import mlp

ACTIVATIONS = ("tanh", "relu", "silu")
"""By their numbers in ``kernels/mlp.py``."""
HIDDEN_NUMBERS = 2**18
"""Hidden values kept at a time where many rows are evaluated: rows that stay in the cache."""


def read_widths(name: str, widths: Any) -> tuple[int, ...]:
    """Check the widths of hidden layers; a number is one layer."""
    found = tuple(require_whole(name, width, at_least=1) for width in np.atleast_1d(widths).tolist())
    if not found:
        raise ValueError(f"{name} must name at least one layer, e.g. (64, 64)")
    return found


@dataclass(frozen=True)
class Network:
    """A multilayer perceptron; its parameters are a float32 vector that others keep."""

    n_inputs: int
    hidden: tuple[int, ...]
    activation: str = "tanh"
    n_outputs: int = 1

    @cached_property
    def layout(self) -> NDArray[np.int64]:
        """The table of ``kernels/mlp.py``."""
        rows, at = [], 0
        for inner, width in pairwise((self.n_inputs, *self.hidden, self.n_outputs)):
            rows.append((inner, width, at, at + inner * width))
            at += inner * width + width
        return np.array(rows, dtype=np.int64)

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return int(self.layout[-1, 3]) + self.n_outputs

    @property
    def hidden_width(self) -> int:
        """Hidden values per row, of all layers together."""
        return sum(self.hidden)

    @property
    def widest(self) -> int:
        """Width of the widest layer, inputs and outputs included."""
        return max(self.n_inputs, *self.hidden, self.n_outputs)

    def net(self, parameters: Singles) -> mlp.Net:
        """What kernels take."""
        return mlp.Net(parameters, self.layout, ACTIVATIONS.index(self.activation))

    def layers(self, parameters: Singles) -> list[tuple[Singles, Singles]]:
        """Views of (weights, biases) of every layer."""
        return [
            (parameters[at:bias_at].reshape(inner, width), parameters[bias_at : bias_at + width])
            for inner, width, at, bias_at in self.layout.tolist()
        ]

    def hidden_values(self, rows: int) -> Singles:
        """Room for the hidden values of some rows: of all of them, or of as many as stay in the cache."""
        width = self.hidden_width
        return np.empty(max(min(HIDDEN_NUMBERS, width * max(1, rows)), width), dtype=np.float32)

    def outputs(self, parameters: Singles, inputs: NDArray[Any]) -> Singles:
        """(rows, outputs) at rows of inputs; safe to call from several threads."""
        found = np.empty((len(inputs), self.n_outputs), dtype=np.float32)
        rows = np.ascontiguousarray(inputs, dtype=np.float32)
        mlp.outputs(self.net(parameters), rows, self.hidden_values(len(rows)), found)
        return found
