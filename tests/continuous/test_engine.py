"""The MLP engine: gradients against differences of the objective, against PyTorch, and bits among threads."""

from __future__ import annotations

import numpy as np
import pytest
from neural_problems import batch_objective, drawn, gradients, make_learner, ratio
from scipy import stats

from lingendice.kernels.jit import kernel
from lingendice.kernels.random_numbers import fill_normals, stream_key

CASES = [
    {},
    {"kind": "none", "gamma": 1.0, "hidden": (16,)},
    {"kind": "gaussian", "gamma": 1.0, "hidden": (17, 40, 9), "output": "softplus"},
    {"kind": "gaussian", "hidden": (33, 5, 8), "output": "exp", "divergence": "kl"},
    {"activation": "relu", "divergence": "reverse_kl"},
    {"activation": "relu", "divergence": "hellinger"},
    {"divergence": "jensen_shannon", "batch": 96},
    {"divergence": "weighted_l2", "output": "identity", "gamma": 1.0},
]


def layers_of(learner, parameters):
    return [(w.astype(float), b.astype(float)) for w, b in learner.network.layers(parameters)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())) or "default")
def test_gradients_are_slopes_of_the_objective(case):
    learner = make_learner(**case)
    rng = np.random.default_rng(5)
    nets = [layers_of(learner, p) for p in (learner.tau_parameters, learner.f_parameters)]
    for which, gradient in enumerate(gradients(learner)):
        for layer in range(len(nets[which])):
            for part in range(2):
                along = rng.normal(size=nets[which][layer][part].shape)
                # Small for relu, so that hardly any unit crosses its kink in between.
                step = 1e-5 if learner.network.activation == "tanh" else 1e-7
                values = []
                for sign in (1.0, -1.0):
                    moved = [[list(pair) for pair in one] for one in nets]
                    moved[which][layer][part] = nets[which][layer][part] + sign * step * along
                    values.append(batch_objective(learner, *moved, learner.u))
                slope = (values[0] - values[1]) / (2.0 * step)
                engine = float((gradient[layer][part] * along).sum())
                scale = np.linalg.norm(gradient[layer][part]) * np.linalg.norm(along)
                assert engine == pytest.approx(slope, abs=2e-5 * max(scale, 1e-3), rel=1e-4)


def test_gradients_against_autograd():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    learner = make_learner(kind="none", hidden=(64, 64), batch=1024, ridge=0.0)
    samples = learner.batches.samples
    rows, firsts, restarts = drawn(learner)
    assert (restarts < 0).all()  # at gamma < 1 ended episodes are absorbed
    nets = [
        [(torch.tensor(w, requires_grad=True), torch.tensor(b, requires_grad=True)) for w, b in layers]
        for layers in (layers_of(learner, learner.tau_parameters), layers_of(learner, learner.f_parameters))
    ]

    def run(layers, inputs):
        x = torch.tensor(inputs.astype(float))
        for w, b in layers[:-1]:
            x = torch.tanh(x @ w + b)
        return (x @ layers[-1][0] + layers[-1][1])[:, 0]

    tau = run(nets[0], samples.logged[rows]) ** 2
    f, first = run(nets[1], samples.logged[rows]), run(nets[1], samples.starting.states[firsts])
    flows = torch.tensor(~samples.absorbed[rows])
    following = run(nets[1], samples.following.states[rows]) * flows
    nu = torch.tensor(samples.mass_weight[rows])
    objective = 0.1 * first.mean() + 0.9 * (tau * following).mean() - (tau * (f + f * f / 4)).mean()
    objective = objective + 1.5 * (0.2 * ((nu * tau).mean() - 1) - 0.02)
    objective.backward()
    for layers, engine in zip(nets, gradients(learner), strict=True):
        for pair, ours in zip(layers, engine, strict=True):
            for tensor, mine in zip(pair, ours, strict=True):
                theirs = tensor.grad.numpy()
                assert np.abs(mine - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("kind", ["discrete", "gaussian"])
def test_bits_do_not_depend_on_threads_or_chunks(kind):
    learners = [make_learner(kind=kind, batch=1100) for _ in range(3)]
    learners[0].advance(6)
    learners[1].advance(6, threads=2)
    for count in (1, 3, 2):
        learners[2].advance(count, threads=3)
    for other in learners[1:]:
        for name, held in learners[0].snapshot().items():
            np.testing.assert_array_equal(held, other.snapshot()[name])


@pytest.mark.parametrize("clip", [1e-3, 1e3])
def test_steps_are_those_of_adam_on_clipped_gradients(clip):
    learner = make_learner(kind="none", clip=clip, decay=False)

    def flat(parameters):
        return np.concatenate([part.ravel() for pair in layers_of(learner, parameters) for part in pair])

    for step in (1, 2, 3):
        before = [flat(parameters) for parameters in (learner.tau_parameters, learner.f_parameters)]
        seconds = [flat(moments[1]) for moments in learner.moments]
        slopes = [np.concatenate([p.ravel() for pair in net for p in pair]) for net in gradients(learner)]
        learner.advance(1)
        after = (learner.tau_parameters, learner.f_parameters)
        for k, signed_rate in enumerate((-3e-3, 9e-3)):
            norm = np.linalg.norm(slopes[k])
            assert (norm > clip) == (clip < 1.0)
            slope = slopes[k] * min(1.0, clip / norm)
            second = 0.999 * seconds[k] + 0.001 * slope**2
            held = flat(learner.moments[k][1])
            np.testing.assert_allclose(held, second, rtol=1e-4, atol=1e-4 * second.max())
            # Where rounding is small beside the slope: the change does not shrink with it.
            clear = np.abs(slope) > 1e-3 * np.abs(slope).max()
            change = signed_rate * slope / (np.sqrt(second / (1.0 - 0.999**step)) + 1e-8)
            np.testing.assert_allclose((flat(after[k]) - before[k])[clear], change[clear], atol=2e-5)


@kernel
def _normals(seed, count, radius, as_float, turn, out):
    fill_normals(stream_key(seed, 0, 3), 0, count, radius, as_float, turn, out)


def test_normals_are_normal_and_independent():
    count = 200_000
    out, half = np.empty(count, np.float32), np.zeros((2, count), np.int32)
    _normals(3, count, half[0], half[0].view(np.float32), half[1], out)
    assert stats.kstest(out, "norm").pvalue > 1e-3
    pairs = out.reshape(2, -1)
    assert abs(np.corrcoef(pairs)[0, 1]) < 4.0 / np.sqrt(count / 2)
    assert abs(np.corrcoef(pairs[0, 1:], pairs[0, :-1])[0, 1]) < 4.0 / np.sqrt(count / 2)
    assert abs(np.mean(out**4) - 3.0) < 0.1


def test_the_average_is_of_the_last_parameters():
    learner = make_learner()
    history = []
    for _ in range(100):
        learner.advance(1)
        history.append(learner.tau_parameters.copy())
    np.testing.assert_allclose(learner.mean, np.mean(history[50:], axis=0), atol=2e-5)
    z = learner.network.outputs(learner.mean, learner.batches.samples.logged)[:, 0].astype(float)
    np.testing.assert_allclose(learner.tau(learner.batches.samples.logged), ratio(z, "square"))
