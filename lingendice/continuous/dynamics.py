"""A model of the environment: an ensemble of networks that knows of restarts, rolled out under the policy.

With z a standardized state, a step either stays on the dynamics or restarts,

    z' = z + scale (f(z, a) + error)   with probability 1 - q(z'),     z' ~ initial distribution   else,

with q a logistic function of the predicted next state. Where the log flags its terminal states they are the
ends; where it does not (``restarts="auto"``), which rows are restarts is inferred by expectation
maximization: a regression through the jumps of restarts is wrong everywhere. Each member leaves out a third
of the episodes, at whose steps it errs: simulated steps draw one of these errors.

References
----------
K. Chua, R. Calandra, R. McAllister, S. Levine (2018). Deep reinforcement learning in a handful of trials
    using probabilistic dynamics models. NeurIPS.
A. P. Dempster, N. M. Laird, D. B. Rubin (1977). Maximum likelihood from incomplete data via the EM algorithm.
    Journal of the Royal Statistical Society B 39.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.regression import (
    EndProbability,
    Fitting,
    NetworkFit,
    Perceptron,
    fit_end_probability,
    run_steps,
    squared,
)
from lingendice.continuous.samples import PolicySamples, Singles, spread_of
from lingendice.data.checks import Floats
from lingendice.data.interrupts import check
from lingendice.data.policies import DiscretePolicy, GaussianPolicy
from lingendice.kernels import simulators
from lingendice.kernels.parallel import run_all

MEMBERS = 3
FITTING = Fitting(steps=1000, batch=256, rate=3e-3, weight_decay=1e-5, hidden=(128, 128))
_MAD = 1.4826
"""Of a normal distribution: standard deviation over median absolute deviation."""
_LEAST_SPREAD = 1e-3
"""Of a coordinate's noise, in standard deviations of the coordinate."""
_LEAST_CHANGE = 1e-4
"""Of a coordinate in a step, in standard deviations of the coordinate."""
_MISFIT = 0.1
"""Of the variance of errors on rows that a member did not see, what the members differ by: above that the
networks err, below it the process is random. Under noise of several kinds .006 to .05 was found, of a
runner, an arm and a pole, where nothing is random, .2 to .6."""
_NEARLY = 0.1
"""How far beyond the range a coordinate has to be to count as outside, in units of its change."""
_RATES = (1e-4, 0.5)
"""Between which the share of restarts is kept while they are inferred."""
_LONGEST_PATH = 2000
_VISITS = 10_000
"""Draws of the simulated distribution, about."""
_FORGOTTEN = 0.0025
"""Weight of a step, relative to the first, below which a path ends."""
_TAIL = 4.0
"""Degrees of freedom of a step's error where restarts are inferred. Networks err with heavier tails than a
normal distribution has: by that, 11 and 23 of 5,000 ordinary steps of a pendulum that starts anywhere were
taken for restarts, by this none. On Cartpole, Reacher and HalfCheetah both find the same rows."""
_TRIES = 8
"""Draws of an error for one step, where episodes have ends that it may not go beyond."""
_SURE = 0.9
"""Posterior probability from which a row counts as a restart whose next state is a fresh start."""


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The fitted model, in standardized coordinates."""

    samples: PolicySamples
    members: tuple[Perceptron, ...]
    change_scale: Floats
    reward_center: float
    reward_scale: float
    errors: Singles
    """(n, d): what steps are drawn with, in units of ``change_scale``: those at logged rows, each of the
    member that did not see it. Whole rows: skewed, bounded and dependent noise stays what it is. Coordinates
    that are not random have normal errors, as large as most."""
    ended: Floats
    """(N,): probability that the row was a restart, or ended the episode."""
    inferred: bool
    """Whether ``ended`` is inferred: then s' of such a row is a fresh start."""
    absorbing: bool
    """Whether what ended stays ended."""
    ends: EndProbability | None
    """None where nothing ever ends."""
    ending_reward: float
    """What the reward of a step that ends differs by."""
    starts: NDArray[Any]
    """Raw states to start from."""
    low: Floats
    high: Floats
    """Between which paths are kept: where the log goes on from, or arrives without ending there."""
    _policy_lock: Any = field(default_factory=threading.Lock, repr=False)

    def raw(self, states: Floats) -> Floats:
        """States as the user gave them."""
        scaling = self.samples.state_scaling
        return scaling.shift + states * scaling.scale

    @cached_property
    def action_noise(self) -> Floats:
        """(3, k): standard deviation, least and largest value that :meth:`decide` leaves to be applied."""
        policy, k = self.samples.policy, self.samples.n_actions_in
        if isinstance(policy, GaussianPolicy):
            return np.stack(policy.scales(k))
        return np.array([0.0, -np.inf, np.inf]).repeat(k).reshape(3, k)

    def decide(self, raw: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """One action of the policy per state, (n, k), and draws that a Gaussian one adds in deviations."""
        samples, policy = self.samples, self.samples.policy
        shape = (len(raw), samples.n_actions_in)
        if policy is None:
            return np.zeros(shape), np.zeros(shape)
        # Policies are functions of the user, who was not told that threads would call them.
        with self._policy_lock:
            if isinstance(policy, DiscretePolicy):
                weight = np.cumsum(policy.probabilities(raw), axis=1)
                taken = (rng.random((len(raw), 1)) > weight[:, :-1]).sum(axis=1)
                return np.eye(shape[1])[taken], np.zeros(shape)
            if not isinstance(policy, GaussianPolicy):
                return samples.require_actions(policy.sample(raw, rng)), np.zeros(shape)
            means = samples.require_actions(policy.means(raw))
        return means, rng.standard_normal(shape)

    def act(self, states: Floats, rng: np.random.Generator) -> NDArray[np.float32]:
        """Inputs of the networks at standardized states, with one action of the policy each."""
        actions, draws = self.decide(self.raw(states), rng)
        std, low, high = self.action_noise
        actions = self.samples.action_scaling(np.clip(actions + std * draws, low, high))
        return np.hstack([states, actions], dtype=np.float32)

    def predict(self, member: int, inputs: NDArray[np.float32]) -> Prediction:
        """What one member expects of a step."""
        out = self.members[member](inputs).astype(np.float64)
        states = inputs[:, : self.low.size] + out[:, :-1] * self.change_scale
        ends = np.zeros(len(inputs)) if self.ends is None else self.ends(states)
        reward = self.reward_center + self.reward_scale * out[:, -1] + ends * self.ending_reward
        return Prediction(states, reward, ends)

    @property
    def tolerance(self) -> Floats:
        """How far beyond the range counts as outside: networks err a little on constants."""
        return np.maximum(_NEARLY * self.change_scale, 2.0 * _LEAST_CHANGE)

    def draws(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(n, tries): rows of ``errors`` to try one after another until a step stays within the range.

        What goes on after flagged ends did not arrive beyond them: its noise is that of steps which stay.
        """
        tries = _TRIES if self.ends is not None and not self.inferred else 1
        return rng.integers(0, len(self.errors), (n, tries))

    def shake(self, states: Floats, rng: np.random.Generator) -> Floats:
        """Predicted states with the noise of a step, within the range."""
        draws = self.draws(len(states), rng)
        found = states + self.change_scale * self.errors[draws[:, 0]]
        for again in draws.T[1:]:
            beyond = np.flatnonzero(((found < self.low) | (found > self.high)).any(axis=1))
            found[beyond] = states[beyond] + self.change_scale * self.errors[again[beyond]]
        return np.clip(found, self.low, self.high)

    def fresh(self, n: int, rng: np.random.Generator) -> Floats:
        """Standardized draws of the initial distribution."""
        return self.samples.state_scaling(self.starts[rng.integers(0, len(self.starts), n)])


class Prediction(NamedTuple):
    """Of one step at some inputs."""

    states: Floats
    """Standardized, without noise, if the step does not end."""
    reward: Floats
    """Expected, whether or not it ends."""
    ends: Floats
    """Probability of that."""


def fit_dynamics(
    samples: PolicySamples, restarts: str, seed: int, threads: int, fitting: Fitting = FITTING
) -> Dynamics:
    """Fit the ensemble: four rounds of training, with the probability of a restart renewed after each.

    Costs about 6 K B (d h + h^2 + h d) multiplications per step, with K members, batches of B rows, d inputs
    and width h.
    """
    transitions, scaling = samples.transitions, samples.state_scaling
    here = scaling(transitions.state)
    change = scaling(transitions.next_state) - here
    flags = None if transitions.terminal is None else transitions.terminal.astype(np.float64)
    beginnings = _Beginnings.read(samples, restarts)
    ended = np.zeros(len(here)) if beginnings is None else _first_guess(samples, change, beginnings)
    if flags is not None and not flags.all():
        # What happens at an end is kept apart from steps: some logs hold a filler in place of its next state.
        ended = flags
    reward = np.zeros(len(here)) if transitions.reward is None else transitions.reward
    weight = 1.0 - ended
    scale = np.maximum(np.sqrt(np.average(change**2, axis=0, weights=weight + 1e-9)), _LEAST_CHANGE)
    stays = ended < 0.5
    center = float(reward[stays].mean())
    spread = spread_of(reward, stays)
    d = change.shape[1]
    targets = np.column_stack([change / scale, (reward - center) / spread]).astype(np.float32)
    fold = folds(samples, MEMBERS, seed)
    learners = [
        NetworkFit(
            Perceptron(samples.n_inputs, d + 1, fitting, seed * MEMBERS + member), samples.logged, targets,
            weight.astype(np.float32), "huber", squared(d + 1, d, 0.5, 1.0 / math.sqrt(d)),
            np.flatnonzero(fold != member),
        )
        for member in range(MEMBERS)
    ]  # fmt: skip
    done = 0
    for part in range(1, 5):
        run_steps(learners, fitting.steps * part // 4 - done, threads)
        done = fitting.steps * part // 4
        if beginnings is not None:
            ended = _posterior(learners, targets, scale, ended, beginnings.log_density(here + change))
            for learner in learners:
                learner.weights[:] = 1.0 - ended
    predicted = np.stack(run_all([partial(one.net, samples.logged) for one in learners], threads))
    unseen = targets - predicted[fold, np.arange(len(here))]
    stays = ended < 0.5
    if flags is not None:
        ended = flags
    mean = predicted.mean(axis=0).astype(np.float64)
    expected = here + mean[:, :-1] * scale
    ends = fit_end_probability(expected, ended, folds(samples, 3, seed + 1))
    off = reward - (center + spread * mean[:, -1])
    next_states = np.vstack([here, (here + change)[stays]])
    first = transitions.first_states
    fresh = transitions.next_state[ended > _SURE] if beginnings is not None else transitions.state[:0]
    starts = transitions.state if first is None else np.concatenate([first, fresh])
    return Dynamics(
        samples=samples,
        members=tuple(one.net for one in learners),
        change_scale=scale,
        reward_center=center,
        reward_scale=spread,
        errors=_noise_of(unseen[stays, :-1], predicted[:, stays, :-1], np.random.default_rng([seed, 31])),
        ended=ended,
        inferred=beginnings is not None,
        absorbing=bool(samples.absorbed.any()),
        ends=ends,
        ending_reward=float(ended @ off / ended.sum()) if ended.sum() > 0.5 else 0.0,
        starts=starts,
        low=next_states.min(axis=0),
        high=next_states.max(axis=0),
    )  # fmt: skip


def _noise_of(unseen: Singles, predicted: Singles, rng: np.random.Generator) -> Singles:
    """Errors to draw from, given those on rows that were not trained on and what every member predicts.

    Where a coordinate is random they are the errors. Where it is the networks that err, by little in most
    steps and by much in some places, large errors drawn anywhere would throw a runner over: normal ones of
    the median's deviation take their place.
    """
    errors = unseen.astype(np.float64)
    own, whole = predicted.astype(np.float64).var(axis=0, ddof=1).mean(axis=0), (errors**2).mean(axis=0)
    deviation = _MAD * np.median(np.abs(errors), axis=0)
    normal = deviation * rng.standard_normal(errors.shape)
    return np.ascontiguousarray(np.where(own > _MISFIT * whole, normal, errors), dtype=np.float32)


def folds(samples: PolicySamples, n: int, seed: int) -> NDArray[np.int64]:
    """A part 0..n-1 for each row: whole episodes where there are enough of them, else runs of rows."""
    episode = samples.transitions.episode
    if episode is None or int(episode.max()) + 1 < n:
        rows = len(samples.logged)
        if rows < 2:
            raise ValueError(
                "one transition is too few to fit on some and to check on others; log more of them"
            )
        episode = np.arange(rows) * min(10 * n, rows) // rows
    return np.random.default_rng([seed, 30]).permutation(int(episode.max()) + 1)[episode] % n


class _Beginnings(NamedTuple):
    """The initial distribution as independent normals around the initial states."""

    mean: Floats
    spread: Floats

    @classmethod
    def read(cls, samples: PolicySamples, restarts: str) -> _Beginnings | None:
        """None where restarts are flagged, not to be looked for, or could not be recognized."""
        transitions = samples.transitions
        if restarts == "none" or transitions.terminal is not None or samples.starting is None:
            return None
        first = samples.state_scaling(np.asarray(transitions.first_states, dtype=np.float64))
        if len(first) < 3:
            return None
        return cls(first.mean(axis=0), np.maximum(1.1 * first.std(axis=0, ddof=1), _LEAST_SPREAD))

    def log_density(self, states: Floats) -> Floats:
        z = (states - self.mean) / self.spread
        return (-0.5 * z * z - np.log(self.spread)).sum(axis=1)


def _first_guess(samples: PolicySamples, change: Floats, beginnings: _Beginnings) -> Floats:
    """Probability of a restart at each row, by ten rounds with a linear model of the change."""
    inputs = np.column_stack([samples.logged, np.ones(len(change))]).astype(np.float64)
    arrived = inputs[:, : change.shape[1]] + change
    fresh, share, ended = beginnings.log_density(arrived), 0.01, np.zeros(len(change))
    for _ in range(10):
        weighted = inputs * (1.0 - ended)[:, None]
        gram = inputs.T @ weighted + 1e-3 * np.eye(inputs.shape[1])
        off = change - inputs @ np.linalg.solve(gram, weighted.T @ change)
        spread = np.maximum(_MAD * np.median(np.abs(off), axis=0), _LEAST_SPREAD)
        stayed = (-0.5 * np.minimum((off / spread) ** 2, 1e4) - np.log(spread)).sum(axis=1)
        ended = _logistic(fresh - stayed + math.log(share / (1.0 - share)))
        share = float(np.clip(ended.mean(), *_RATES))
    return ended


def _posterior(
    learners: list[NetworkFit], targets: NDArray[np.float32], scale: Floats, ended: Floats, fresh: Floats
) -> Floats:
    """Probability of a restart at each row, by the networks as they are."""
    out = np.stack([one.net(one.inputs)[:, :-1] for one in learners]).astype(np.float64)
    wanted = targets[:, :-1]
    weight = (1.0 - ended)[None, :, None]
    spread = np.sqrt((weight * (out - wanted) ** 2).sum(axis=(0, 1)) / (len(out) * weight.sum()))
    spread = np.maximum(spread, 1e-3)
    z = (out.mean(axis=0) - wanted) / spread
    stayed = -0.5 * (_TAIL + 1.0) * np.log1p(z * z / _TAIL).sum(axis=1) - np.log(spread * scale).sum()
    share = float(np.clip(ended.mean(), 1e-5, _RATES[1]))
    return _logistic(fresh - stayed + math.log(share / (1.0 - share)))


def _logistic(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -50.0, 50.0)))


# -- rolling out --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rollout:
    """Paths of the policy in the model."""

    value: float
    members: Floats
    """Value by each member."""
    paths: Floats
    """Value of each path."""
    clipped: float
    """Share of the coordinates that left the range of the log."""
    visited: NDArray[np.float32]
    """Inputs (state, action) drawn from the simulated distribution."""


def step_weights(gamma: float) -> Floats:
    """Weights of the steps of a path, which sum to 1: gamma^t until it is 0.0025, for 2,000 steps at most.

    Where gamma^t is larger by then, the time that is left is spent as in the last quarter. At gamma = 1 a
    path has 1,000 steps, of which the first quarter is left out.
    """
    if gamma == 1.0:
        weight = (np.arange(1000) >= 250).astype(np.float64)
    else:
        horizon = min(_LONGEST_PATH, max(10, math.ceil(math.log(_FORGOTTEN) / math.log(gamma))))
        weight = np.power(gamma, np.arange(horizon, dtype=np.float64))
        left = gamma**horizon
        if left > _FORGOTTEN:
            weight[-(horizon // 4) :] += left / (1.0 - gamma) / (horizon // 4)
    return weight / weight.sum()


def roll_out(model: Dynamics, gamma: float, paths: int, seed: int, threads: int) -> Rollout:
    """Follow the policy along ``paths`` paths for each member, in two blocks that hold all members.

    Each block has a random stream of its own: bits do not depend on the number of threads. Restarts are
    drawn, absorption is followed as a weight.
    """
    n = len(model.members)
    sizes = (paths // 2, paths - paths // 2)
    tasks = [partial(_follow, model, gamma, n * size, [seed, 5, k]) for k, size in enumerate(sizes)]
    earned, clipped, visited = zip(*run_all(tasks, threads), strict=True)
    values = np.concatenate([part.reshape(n, -1) for part in earned], axis=1)
    members = values.mean(axis=1)
    return Rollout(
        float(members.mean()), members, values.ravel(), float(np.mean(clipped)), np.concatenate(visited)
    )


def _follow(model: Dynamics, gamma: float, n: int, seed: list[int]) -> tuple[Floats, float, Singles]:
    """What ``n`` paths earn, the share of them that is clipped, and inputs on their way.

    Members have equal shares of the paths. The policy is asked here, all else is one kernel.
    """
    rng = np.random.default_rng(seed)
    simulation, paths = _simulation(model), _begin(model, n, rng)
    restarts = not model.absorbing and model.ends is not None
    visit_draws, end_draws = np.empty(n), np.ones(n)
    clipped, lived, visited = 0.0, 0.0, []
    for step, share in enumerate(step_weights(gamma)):
        if step % 20 == 0:
            check()
        actions, action_draws = model.decide(paths.raw.copy(), rng)
        rng.random(out=visit_draws)
        error_draws = model.draws(n, rng)
        if restarts:
            rng.random(out=end_draws)
        n_visited, n_restarted, left, here = simulators.simulate_step(
            simulation, paths, actions, action_draws, visit_draws, error_draws, end_draws,
            (share, _VISITS / 2 / n, model.absorbing),
        )  # fmt: skip
        clipped, lived = clipped + left, lived + here
        visited.append(paths.inputs[paths.visited[:n_visited]])
        if n_restarted:
            again = paths.restarted[:n_restarted]
            paths.states[again] = model.fresh(n_restarted, rng)
            paths.raw[again] = model.raw(paths.states[again])
    return paths.earned, clipped / lived, np.concatenate(visited)


def _simulation(model: Dynamics) -> simulators.Simulation:
    samples, ends = model.samples, model.ends
    constant, linear, quadratic = np.empty(0), np.empty(0), np.empty((0, 0))
    if ends is not None:
        constant, linear, quadratic = np.array([ends.constant]), ends.linear, ends.quadratic
    return simulators.Simulation(
        parameters=np.stack([net.parameters for net in model.members]),
        layout=model.members[0].network.layout,
        state_scaling=np.stack([samples.state_scaling.shift, samples.state_scaling.scale]),
        action_scaling=np.stack([samples.action_scaling.shift, samples.action_scaling.scale]),
        action_noise=model.action_noise,
        change=np.stack([model.change_scale, model.low, model.high, model.tolerance]),
        errors=model.errors,
        reward=np.array([model.reward_center, model.reward_scale, model.ending_reward]),
        end_constant=constant,
        end_linear=linear,
        end_quadratic=quadratic,
    )


def _begin(model: Dynamics, n: int, rng: np.random.Generator) -> simulators.Paths:
    """Paths at draws of the initial distribution, with room for a step."""
    states, network = model.fresh(n, rng), model.members[0].network
    return simulators.Paths(
        states=states,
        raw=model.raw(states),
        alive=np.ones(n),
        earned=np.zeros(n),
        inputs=np.empty((n, model.samples.n_inputs), dtype=np.float32),
        outputs=np.empty((n, network.n_outputs), dtype=np.float32),
        hidden=network.hidden_values(n),
        visited=np.empty(n, dtype=np.int64),
        restarted=np.empty(n, dtype=np.int64),
    )
