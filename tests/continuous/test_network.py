"""One network at given inputs, against the same in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from neural_problems import net

from lingendice.continuous.learner import start
from lingendice.continuous.network import Network


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_outputs_of_a_network(activation):
    rng = np.random.default_rng(0)
    network = Network(5, (30, 11), activation)
    parameters = start(network, rng, 0.3, output_scale=1.0)
    inputs = (3.0 * rng.normal(size=(301, 5))).astype(np.float32)
    expected = net(network.layers(parameters), inputs.astype(float), activation)
    np.testing.assert_allclose(network.outputs(parameters, inputs)[:, 0], expected, atol=5e-6)


def test_layers_fill_the_vector_of_parameters():
    network = Network(3, (5, 7), n_outputs=2)
    layers = network.layers(np.arange(network.size, dtype=np.float32))
    assert [weights.shape for weights, _ in layers] == [(3, 5), (5, 7), (7, 2)]
    inside = np.concatenate([part.ravel() for layer in layers for part in layer])
    np.testing.assert_array_equal(inside, np.arange(network.size))


def test_tanh_is_right_to_half_a_millionth():
    network = Network(1, (1,))
    parameters = start(network, np.random.default_rng(0), 0.0)
    for weights, biases in network.layers(parameters):
        weights[:], biases[:] = 1.0, 0.0
    x = np.concatenate([np.linspace(-12.0, 12.0, 40_001), np.geomspace(1e-6, 1.0, 1000)]).astype(np.float32)
    expected = np.tanh(x.astype(float))
    off = np.abs(network.outputs(parameters, x[:, None])[:, 0] - expected)
    assert (off <= 5e-7 * np.abs(expected)).all()


def test_not_a_number_is_not_hidden():
    network = Network(3, (16, 16))
    parameters = start(network, np.random.default_rng(0), 0.0)
    inputs = np.full((7, 3), np.nan, dtype=np.float32)
    assert np.isnan(network.outputs(parameters, inputs)).all()
