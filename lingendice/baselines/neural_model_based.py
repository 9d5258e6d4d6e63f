"""A model of the environment by networks, rolled out under the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.holdout import expected_inputs
from lingendice.continuous.network import Network
from lingendice.continuous.regression import Regression
from lingendice.continuous.samples import Arrivals, Samples, prepare
from lingendice.data.checks import Floats, require_gamma
from lingendice.data.policies import DiscretePolicy, GaussianPolicy
from lingendice.data.transitions import Transitions
from lingendice.results.baseline_solution import Estimate


def neural_model_based(
    transitions: Transitions,
    gamma: float = 1.0,
    *,
    policy: Any,
    steps: int = 5000,
    batch: int = 2048,
    learning_rate: float = 1e-3,
    hidden: tuple[int, ...] = (64, 64),
    rollouts: int = 200,
    horizon: int | None = None,
    terminal: str = "auto",
    seed: int = 0,
) -> Estimate:
    """Fit the change of state and its spread, the reward and the chance of ending; then roll the policy out.

    Next state: s + a network of (s, a), with Gaussian noise of the residuals' size; rewards and ends by
    networks of their own. The value is the mean of ``rollouts`` paths of ``horizon`` steps, discounted, or at
    gamma = 1 averaged after the first quarter. Model errors add up along a path: states are kept within the
    range seen.

    gamma = 1 is supported: ended paths restart from the initial distribution.
    """
    gamma = require_gamma(gamma)
    if transitions.reward is None:
        raise ValueError("neural_model_based needs rewards; pass reward= to Transitions")
    if transitions.n_states is not None:
        raise ValueError("neural_model_based is for states that are vectors; use model_based on Counts")
    samples = prepare(transitions, policy, gamma, terminal)
    if samples.starting is None:
        raise ValueError("neural_model_based needs initial states; pass initial_state= or episode=")
    change = samples.following.states.astype(np.float64) - samples.logged[:, : samples.n_states_in]
    ends = (samples.absorbed | samples.restarted).astype(np.float64)
    center, spread = change.mean(axis=0), np.maximum(change.std(axis=0), 1e-6)
    reward_center, reward_spread = transitions.reward.mean(), max(float(transitions.reward.std()), 1e-6)
    targets = np.column_stack(
        [(change - center) / spread, (transitions.reward - reward_center) / reward_spread, ends]
    )
    network = Network(samples.n_inputs, hidden)
    model = Regression(network, targets.shape[1], seed)

    def slope(out: Floats, rows: NDArray[np.int64]) -> Floats:
        return out - targets[rows]

    model.fit(samples.logged, slope, steps, batch, learning_rate, seed)
    noise = (model(samples.logged) - targets)[:, :-2].std(axis=0)
    scaled = (center, spread, reward_center, reward_spread, noise)
    horizon = horizon or (1000 if gamma == 1.0 else int(np.ceil(np.log(1e-3) / np.log(gamma))))
    earned = _roll_out(samples, model, scaled, bool(ends.any()), gamma, rollouts, horizon, seed)
    noise_of_paths = float(earned.std(ddof=1) / np.sqrt(rollouts)) if rollouts > 1 else None
    note = f"{rollouts} paths of {horizon} steps; the standard error is that of the paths, not of the model"
    return Estimate(
        float(earned.mean()),
        gamma,
        "neural model-based",
        note,
        standard_error=noise_of_paths,
        degrees=rollouts - 1,
    )


def _roll_out(
    samples: Samples,
    model: Regression,
    scaled: Any,
    ends: bool,
    gamma: float,
    rollouts: int,
    horizon: int,
    seed: int,
) -> Floats:
    """Per-step value of every path."""
    center, spread, reward_center, reward_spread, noise = scaled
    assert samples.starting is not None
    rng = np.random.default_rng([seed, 9])
    firsts = samples.starting.raw
    seen = np.concatenate([samples.logged[:, : samples.n_states_in], samples.following.states])
    low, high = seen.min(axis=0), seen.max(axis=0)
    raw = firsts[rng.integers(0, len(firsts), rollouts)]
    states = samples.state_scaling(raw)
    alive, earned, weight = np.ones(rollouts), np.zeros(rollouts), 0.0
    for step in range(horizon):
        inputs = _act(
            samples, samples.state_scaling.shift + states * samples.state_scaling.scale, states, rng
        )
        out = model(inputs)
        share = float(step >= horizon // 4) if gamma == 1.0 else gamma**step
        earned += share * alive * (reward_center + reward_spread * out[:, -2])
        weight += share
        moved = out[:, :-2] + noise * rng.standard_normal((rollouts, noise.size))
        states = np.clip(states + center + spread * moved, low, high)
        ended = rng.random(rollouts) < out[:, -1] if ends else np.zeros(rollouts, dtype=bool)
        if gamma < 1.0 and samples.absorbed.any():
            alive = alive * ~ended
        elif ended.any():
            again = firsts[rng.integers(0, len(firsts), int(ended.sum()))]
            states[ended] = samples.state_scaling(again)
    if gamma < 1.0:
        weight = (1.0 - gamma**horizon) / (1.0 - gamma)
    return earned / weight


def _act(samples: Samples, raw: Floats, states: Floats, rng: np.random.Generator) -> Any:
    """Inputs at states with one sampled action each."""
    policy = samples.policy
    action = np.empty((len(states), 0), dtype=np.float32)
    if isinstance(policy, DiscretePolicy):
        chances = policy.probabilities(raw)
        taken = (rng.random((len(raw), 1)) > np.cumsum(chances, axis=1)[:, :-1]).sum(axis=1)
        return np.hstack([states, np.eye(chances.shape[1])[taken]]).astype(np.float32)
    if isinstance(policy, GaussianPolicy):
        action = samples.action_scaling(policy.means(raw)).astype(np.float32)
    here = Arrivals(raw, states.astype(np.float32), action)
    return expected_inputs(samples, here, np.arange(len(states)), rng)[0][:, 0]
