"""The ensemble of dynamics and fitted Q evaluation as PyTorch users would write them, with our settings.

Batched matrix products train all members at once; what is not a network (policy, restarts, noise) is NumPy in
both. d3rlpy's FQE evaluates an untrained policy: what that is does not matter to the time of a step.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from lingendice.continuous.dynamics import FITTING, Dynamics, step_weights
from lingendice.continuous.regression import fit_end_probability


def make_networks(torch: Any, count: int, sizes: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Weights and biases of ``count`` perceptrons side by side."""
    shapes = itertools.pairwise(sizes)
    return [
        (
            torch.nn.Parameter(torch.randn(count, n, m) * math.sqrt(2.0 / n)),
            torch.nn.Parameter(torch.zeros(count, 1, m)),
        )
        for n, m in shapes
    ]


def forward(torch: Any, layers: list[tuple[Any, Any]], x: Any) -> Any:
    for number, (weights, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weights)
        if number < len(layers) - 1:
            x = torch.nn.functional.silu(x)
    return x


class TorchModel:
    """The model of one log: trained anew by ``fit``, followed along paths by ``roll_out``."""

    def __init__(self, model: Dynamics) -> None:
        import torch

        self._torch, self._model = torch, model
        samples, d = model.samples, model.low.size
        change = samples.state_scaling(samples.transitions.next_state) - samples.logged[:, :d]
        reward = (samples.transitions.reward - model.reward_center) / model.reward_scale
        self._inputs = torch.from_numpy(samples.logged)
        self._change = torch.from_numpy((change / model.change_scale).astype(np.float32))
        self._reward = torch.from_numpy(reward.astype(np.float32))
        self._weight = torch.from_numpy((1.0 - model.ended).astype(np.float32))
        n = len(samples.logged)
        episode = samples.transitions.episode % len(model.members)
        self._rows = [np.arange(n)[episode != k] for k in range(len(model.members))]
        self._fold = episode
        self._layers: list[tuple[Any, Any]] = []

    def fit(self) -> None:
        torch, count, d = self._torch, len(self._rows), self._model.low.size
        self._layers = make_networks(torch, count, (self._inputs.shape[1], *FITTING.hidden, d + 1))
        parameters = [one for layer in self._layers for one in layer]
        optimizer = torch.optim.Adam(parameters, lr=FITTING.rate, weight_decay=FITTING.weight_decay)
        rng, scale = np.random.default_rng(0), self._model.change_scale
        for step in range(FITTING.steps):
            drawn = np.stack([rows[rng.integers(0, len(rows), FITTING.batch)] for rows in self._rows])
            rows = torch.from_numpy(drawn)
            out, weight = forward(torch, self._layers, self._inputs[rows]), self._weight[rows]
            off = torch.nn.functional.smooth_l1_loss(
                out[..., :d], self._change[rows], reduction="none", beta=0.5
            )
            loss = (weight[..., None] * off).mean() * count * math.sqrt(d)
            loss = loss + (weight * (out[..., d] - self._reward[rows]) ** 2).mean() * count
            for group in optimizer.param_groups:
                group["lr"] = FITTING.rate * 0.5 * (1.0 + math.cos(math.pi * step / FITTING.steps))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % (FITTING.steps // 4) == 0:  # where restarts are inferred anew
                with torch.no_grad():
                    every = forward(torch, self._layers, self._inputs.expand(count, -1, -1)).numpy()
        arrived = self._inputs.numpy()[:, :d] + every.mean(axis=0)[:, :d] * scale
        fit_end_probability(arrived, self._model.ended, self._fold % 3)

    def roll_out(self, gamma: float, paths: int) -> float:
        torch, model, count = self._torch, self._model, len(self._rows)
        d, n, rng = model.low.size, count * paths, np.random.default_rng(1)
        share, earned, states = step_weights(gamma), np.zeros(n), model.fresh(n, rng)
        for weight in share:
            inputs = model.act(states, rng)
            with torch.no_grad():
                out = forward(torch, self._layers, torch.from_numpy(inputs.reshape(count, paths, -1)))
            out = out.numpy().reshape(n, -1).astype(np.float64)
            moved = states + out[:, :d] * model.change_scale
            ends = np.zeros(n) if model.ends is None else model.ends(moved)
            earned += weight * (
                model.reward_center + model.reward_scale * out[:, d] + ends * model.ending_reward
            )
            states = model.shake(moved, rng)
            again = rng.random(n) < ends
            if again.any():
                states[again] = model.fresh(int(again.sum()), rng)
        return float(earned.mean())


class TorchFittedQ:
    """One network's steps of fitted Q evaluation, eager."""

    def __init__(self, steps: Any, gamma: float, hidden: tuple[int, ...], batch: int) -> None:
        import torch

        self._torch, self._gamma, self._batch = torch, gamma, batch
        self._inputs, self._reward = torch.from_numpy(steps.inputs), torch.from_numpy(steps.reward)
        self._arrivals = torch.from_numpy(steps.arrivals)
        sizes = (steps.inputs.shape[1], *hidden, 1)
        self._layers, self._slow = make_networks(torch, 1, sizes), make_networks(torch, 1, sizes)
        parameters = [one for layer in self._layers for one in layer]
        self._pairs = [(s, p) for slow, p in zip(self._slow, self._layers, strict=True)
                       for s, p in zip(slow, p, strict=True)]  # fmt: skip
        self._optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def run(self, steps: int) -> None:
        torch = self._torch
        for _ in range(steps):
            rows = torch.randint(0, len(self._inputs), (self._batch,))
            drawn = torch.randint(0, self._arrivals.shape[1], (self._batch,))
            with torch.no_grad():
                following = forward(torch, self._slow, self._arrivals[rows, drawn][None])[0, :, 0]
                wanted = self._reward[rows] + self._gamma * following
            loss = ((forward(torch, self._layers, self._inputs[rows][None])[0, :, 0] - wanted) ** 2).mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            with torch.no_grad():
                for slow, parameter in self._pairs:
                    slow.lerp_(parameter, 0.15)


class D3rlpyFittedQ:
    """d3rlpy's FQE with the same network and batch, its own loop and replay buffer."""

    def __init__(self, log: Any, hidden: tuple[int, ...], batch: int, gamma: float) -> None:
        import d3rlpy

        ends = np.diff(log.episode, append=-1) != 0
        self._data = d3rlpy.dataset.MDPDataset(
            log.state.astype(np.float32), log.action.astype(np.float32), log.reward.astype(np.float32),
            np.zeros(len(ends)), ends.astype(np.float32),
        )  # fmt: skip
        encoder = d3rlpy.models.VectorEncoderFactory(list(hidden))
        policy = d3rlpy.algos.BCConfig(encoder_factory=encoder, batch_size=batch).create(device="cpu:0")
        policy.build_with_dataset(self._data)
        settings = d3rlpy.ope.FQEConfig(encoder_factory=encoder, batch_size=batch, gamma=gamma, n_critics=1)
        self._fqe = d3rlpy.ope.FQE(algo=policy, config=settings, device="cpu:0")
        self._quiet = d3rlpy.logging.NoopAdapterFactory()

    def run(self, steps: int) -> None:
        self._fqe.fit(
            self._data, n_steps=steps, n_steps_per_epoch=steps, show_progress=False, save_interval=10**9,
            logger_adapter=self._quiet,
        )  # fmt: skip
