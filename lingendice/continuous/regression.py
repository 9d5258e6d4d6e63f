"""Networks fitted by regression on the same machinery: several outputs as one network each.

For the models and clones that baselines need. A regression network is trained on batches by Adam with
a gradient that the caller computes from the outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.network import Network, Singles, aligned, engine_code
from lingendice.data.checks import Floats
from lingendice.data.interrupts import check
from lingendice.kernels.networks.mlp import backward, forward, transpose_weights
from lingendice.kernels.networks.ratio_step import adam, padded
from lingendice.kernels.networks.records import Span

Slope = Callable[[Floats, NDArray[np.int64]], Floats]
"""d loss / d outputs, (rows, outputs), from the outputs at some rows."""


class Regression:
    """One network per output, trained side by side on the same batches."""

    def __init__(self, network: Network, n_outputs: int, seed: int, biases: Floats | None = None) -> None:
        self.network = network
        rng = np.random.default_rng([seed, 7])
        starts = np.zeros(n_outputs) if biases is None else biases
        self.parameters = [network.start(rng, float(start)) for start in starts]

    def __call__(self, inputs: Singles) -> Floats:
        """(rows, outputs)."""
        return np.stack([self.network.outputs(p, inputs) for p in self.parameters], axis=1)

    def fit(
        self,
        inputs: Singles,
        slope: Slope,
        steps: int,
        batch: int,
        rate: float,
        seed: int,
        engine: str = "auto",
    ) -> None:
        """Adam with a half-cosine decay; every step draws a fresh batch of rows."""
        network, code = self.network, engine_code(engine)
        batch = min(batch, len(inputs))
        rng = np.random.default_rng([seed, 8])
        rows, widths = padded(batch), int(network.layout[:-1, 2].sum())
        hidden_at, per_net = rows * network.stride, rows * widths
        scratch = aligned(hidden_at + per_net * len(self.parameters))
        out, factor = aligned(len(self.parameters), rows), aligned(rows)
        turned, spare = aligned(network.turned_size), aligned(rows * int(network.layout[:, 1].max()))
        gradient = aligned(network.size)
        moments = [aligned(2, network.size) for _ in self.parameters]
        spans = [Span(0, hidden_at + k * per_net, rows, rows) for k in range(len(self.parameters))]
        one = np.float32(1.0)
        for step in range(1, steps + 1):
            check()
            chosen = rng.integers(0, len(inputs), batch)
            view = scratch[:hidden_at].reshape(rows, network.stride)
            view[:batch, : network.n_inputs] = inputs[chosen]
            for k, p in enumerate(self.parameters):
                forward(p, network.layout, scratch, spans[k], out[k], network.code, code)
            slopes = slope(out[:, :batch].T.astype(np.float64), chosen) / batch
            decay = 0.5 * (1.0 + np.cos(np.pi * (step - 1) / steps))
            signed = np.float32(-rate * decay / (1.0 - 0.9**step))
            late = np.float32(1.0 / (1.0 - 0.999**step))
            for k, p in enumerate(self.parameters):
                factor[:batch] = slopes[:, k]
                gradient[:] = 0.0
                transpose_weights(p, network.layout, turned)
                backward(
                    p, turned, gradient, network.layout, scratch, spans[k], factor, network.code, code, spare
                )
                adam(p, gradient, moments[k], one, signed, late, 0.9)
