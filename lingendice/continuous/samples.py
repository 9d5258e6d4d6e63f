"""What the estimators see of transitions under a policy: standardized float32 rows, ready to be gathered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, numeric_array, require_below, require_choice, require_finite
from lingendice.data.policies import ContinuousPolicy, DiscretePolicy, GaussianPolicy, Policy
from lingendice.data.transitions import Transitions

Singles = NDArray[np.float32]
ROUNDING = 1e-13
"""Spread of a constant, in units of itself, that its mean may leave by rounding."""
_LEAST_SPREAD = 1e-3
"""Of rewards, in units of their range: those that are constant but for a few stay nearly so."""


def spread_of(reward: Floats, rows: Any = slice(None)) -> float:
    """Standard deviation of rewards at some rows, as a unit: positive, and of the size that rewards have."""
    least = _LEAST_SPREAD * float(np.ptp(reward)), ROUNDING * float(np.abs(reward).max())
    return max(float(reward[rows].std()), *least, np.finfo(float).tiny)


@dataclass(frozen=True, eq=False)
class Scaling:
    """z = (x - shift) / scale, coordinate by coordinate; constant coordinates are only shifted."""

    shift: Floats
    scale: Floats

    @classmethod
    def of(cls, *samples: Floats) -> Scaling:
        """Mean 0 and variance 1 over the samples together."""
        together = np.concatenate(samples)
        spread, size = together.std(axis=0), np.abs(together).max(axis=0)
        return cls(together.mean(axis=0), np.where(spread > ROUNDING * size, spread, 1.0))

    @classmethod
    def none(cls, dimension: int) -> Scaling:
        """Leave coordinates as they are."""
        return cls(np.zeros(dimension), np.ones(dimension))

    def __call__(self, values: Floats) -> Floats:
        return (values - self.shift) / self.scale


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Standardized states that the policy acts in, and what it does there."""

    raw: NDArray[Any]
    """The states as the user gave them: what policies are called with."""
    states: Singles
    """(n, state inputs)."""
    action: Singles
    """Probabilities (n, A) of discrete actions; standardized means (n, k) of Gaussian ones; else (n, 0)."""


@dataclass(frozen=True, eq=False)
class PolicySamples:
    """Transitions under a policy, as the networks take them in: inputs are (state, action) side by side."""

    transitions: Transitions
    policy: Policy | None
    kind: str
    """How the next action is computed: "none", "discrete", "gaussian" or "sampled"."""
    state_scaling: Scaling
    action_scaling: Scaling
    logged: Singles
    """(N, d): inputs at the logged (s, a)."""
    following: Arrivals
    """At s', one row per transition."""
    starting: Arrivals | None
    """At the sample of the initial distribution; None where it is unknown and not needed."""
    noise: tuple[Singles, Singles, Singles]
    """(std, low, high) of a Gaussian policy, standardized."""
    absorbed: NDArray[np.bool_]
    """Rows whose next state is terminal and absorbed: nothing flows on."""
    restarted: NDArray[np.bool_]
    """Rows whose next state is drawn anew from the initial distribution."""
    gamma: float
    base: Floats
    """(N,): tau over what the networks learn; ones where they learn all of it."""

    @property
    def n_states_in(self) -> int:
        """State inputs of the networks."""
        return self.following.states.shape[1]

    @property
    def n_actions_in(self) -> int:
        """Action inputs of the networks."""
        return self.n_inputs - self.n_states_in

    @property
    def n_inputs(self) -> int:
        """State and action inputs of the networks."""
        return self.logged.shape[1]

    @property
    def n_branches(self) -> int:
        """Next actions that are summed over: all of them if discrete, else one sample."""
        return self.n_actions_in if self.kind == "discrete" else 1

    @property
    def has_density(self) -> bool:
        """Whether the policy says how likely a logged action is under it."""
        return isinstance(self.policy, DiscretePolicy) or (
            isinstance(self.policy, ContinuousPolicy) and self.policy.has_density
        )

    @property
    def mass_weight(self) -> Floats:
        """nu: sum mu = E_p[nu tau]; what a terminal state holds at gamma < 1 counts where it came from."""
        weight = np.ones(len(self.logged))
        if self.absorbed.any():
            weight += self.gamma / (1.0 - self.gamma) * self.absorbed
        return weight

    @property
    def reward(self) -> Floats:
        """The logged rewards, of a log that has been seen to hold some."""
        assert self.transitions.reward is not None
        return self.transitions.reward

    def inputs(self, state: Any, action: Any) -> Singles:
        """Standardized inputs at given states and actions."""
        if action is not None and self.transitions.action is None:
            raise ValueError("action is given, but the transitions have none; leave it out")
        return _inputs(state, action, self.transitions, self.state_scaling, self.action_scaling)

    def draw(self, arrivals: Arrivals, rows: NDArray[np.int64], rng: np.random.Generator) -> Singles:
        """Standardized actions of a sampled policy at some of the arrivals."""
        assert isinstance(self.policy, ContinuousPolicy)
        actions = self.policy.sample(arrivals.raw[rows], rng)
        return self.action_scaling(self.require_actions(actions)).astype(np.float32)

    def require_actions(self, actions: Any) -> Floats:
        """What the policy gave, as contiguous rows with the log's number of coordinates."""
        rows = np.require(actions, np.float64, ("C", "W"))  # what kernels are compiled for
        if rows.shape[1] != self.n_actions_in:
            raise ValueError(
                f"the policy gave actions of {rows.shape[1]} coordinates, the log has {self.n_actions_in}"
            )
        return rows

    def subset(self, rows: NDArray[Any]) -> PolicySamples:
        """The same with some of the transitions only."""
        part = Arrivals(*(getattr(self.following, name)[rows] for name in ("raw", "states", "action")))
        return replace(
            self,
            logged=self.logged[rows],
            following=part,
            absorbed=self.absorbed[rows],
            restarted=self.restarted[rows],
            base=self.base[rows],
        )


def prepare(
    transitions: Transitions,
    policy: Any,
    gamma: float,
    terminal: str = "auto",
    standardize: bool = True,
) -> PolicySamples:
    """Standardize the transitions and evaluate the policy at every s' and initial state."""
    require_choice("terminal", terminal, ("auto", "absorb", "restart"))
    target = transitions.read_policy(policy)
    n = len(transitions)
    ends = np.zeros(n, dtype=bool) if transitions.terminal is None else transitions.terminal
    restarts = terminal == "restart" or (terminal == "auto" and gamma == 1.0)
    if gamma == 1.0 and not restarts and ends.any():
        raise ValueError(
            'terminal="absorb" at gamma=1 leaves no stationary distribution; use terminal="restart"'
        )
    first = transitions.first_states
    if first is None and (gamma < 1.0 or (restarts and ends.any())):
        raise ValueError(
            "the initial distribution is unknown; pass initial_state= (or episode=) to Transitions, "
            "or take gamma=1 for the average reward"
        )
    state_scaling = _scaling(transitions.n_states, standardize, transitions.state, transitions.next_state)
    action_scaling = Scaling.none(0)
    if transitions.action is not None:
        action_scaling = _scaling(transitions.n_actions, standardize, transitions.action)
    scalings = state_scaling, action_scaling
    return PolicySamples(
        transitions=transitions,
        policy=target,
        kind=_kind(target),
        state_scaling=state_scaling,
        action_scaling=action_scaling,
        logged=_inputs(transitions.state, transitions.action, transitions, *scalings),
        following=_arrivals(transitions.next_state, transitions, target, *scalings),
        starting=None if first is None else _arrivals(first, transitions, target, *scalings),
        noise=_noise(target, action_scaling),
        absorbed=ends & (not restarts),
        restarted=ends & restarts,
        gamma=gamma,
        base=np.ones(n),
    )


def expected_inputs(
    samples: PolicySamples, arrivals: Arrivals, rows: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Singles, Singles]:
    """(rows, branches, d) inputs at arrivals and (rows, branches) weights: all actions, or one sample."""
    states = arrivals.states[rows]
    if samples.kind == "discrete":
        a = samples.n_actions_in
        actions = np.broadcast_to(np.eye(a, dtype=np.float32), (len(rows), a, a))
        weights = arrivals.action[rows]
    else:
        if samples.kind == "sampled":
            drawn = samples.draw(arrivals, rows, rng)
        else:  # of a chain, normal actions without coordinates
            std, low, high = samples.noise
            means = arrivals.action[rows]
            noise = rng.standard_normal(means.shape, dtype=np.float32)
            drawn = np.clip(means + std * noise, low, high)
        actions, weights = drawn[:, None, :], np.ones((len(rows), 1), dtype=np.float32)
    repeated = np.repeat(states[:, None, :], actions.shape[1], axis=1)
    return np.concatenate([repeated, actions], axis=2), weights


def sampled_inputs(
    samples: PolicySamples, arrivals: Arrivals, rows: NDArray[np.int64], rng: np.random.Generator
) -> Floats:
    """Inputs at some arrivals with one action of the policy each."""
    inputs, weights = expected_inputs(samples, arrivals, rows, rng)
    taken = (rng.random((len(rows), 1)) > np.cumsum(weights, axis=1)[:, :-1]).sum(axis=1)
    return inputs[np.arange(len(rows)), taken].astype(np.float64)


def _kind(policy: Policy | None) -> str:
    if policy is None:
        return "none"
    if isinstance(policy, DiscretePolicy):
        return "discrete"
    return "gaussian" if isinstance(policy, GaussianPolicy) else "sampled"


def _scaling(n_ids: int | None, standardize: bool, *samples: NDArray[Any]) -> Scaling:
    if n_ids is not None:
        return Scaling.none(n_ids)
    return Scaling.of(*samples) if standardize else Scaling.none(samples[0].shape[1])


def _encode(name: str, given: Any, n: int | None, scaling: Scaling) -> Singles:
    """Standardized vectors, or ids below ``n`` as unit vectors."""
    ids = numeric_array(name, given)
    if n is None:
        points = ids.astype(np.float64, copy=False)
        points = points[:, None] if points.ndim == 1 else points
        if points.ndim != 2 or points.shape[1] != scaling.shift.size:
            raise ValueError(
                f"{name} has shape {ids.shape}; give one row of {scaling.shift.size} coordinates for each"
            )
        require_finite(name, points)
        return scaling(points).astype(np.float32)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional integers, got shape {ids.shape} of {ids.dtype}")
    require_below(name, ids, n)
    return np.eye(n, dtype=np.float32)[ids]


def _inputs(
    state: Any, action: Any, transitions: Transitions, state_scaling: Scaling, action_scaling: Scaling
) -> Singles:
    states = _encode("state", state, transitions.n_states, state_scaling)
    if transitions.action is None:
        return states
    actions = _encode("action", action, transitions.n_actions, action_scaling)
    if len(actions) != len(states):
        raise ValueError(f"action has {len(actions)} rows but state has {len(states)}; give one per state")
    return np.hstack([states, actions])


def _arrivals(
    raw: NDArray[Any],
    transitions: Transitions,
    policy: Policy | None,
    state_scaling: Scaling,
    action_scaling: Scaling,
) -> Arrivals:
    states = _encode("state", raw, transitions.n_states, state_scaling)
    if isinstance(policy, DiscretePolicy):
        action = policy.probabilities(raw.copy())  # functions of users may write into what they get
        if action.shape[1] != transitions.n_actions:
            raise ValueError(
                f"the policy knows {action.shape[1]} actions, the log {transitions.n_actions}; pass "
                "n_actions= to Transitions where some actions were never logged"
            )
    elif isinstance(policy, GaussianPolicy):
        means = policy.means(raw.copy())
        if means.shape[1] != action_scaling.shift.size:
            raise ValueError(
                f"mean(states) has {means.shape[1]} coordinates, the logged actions "
                f"{action_scaling.shift.size}"
            )
        action = action_scaling(means)
    else:
        action = np.empty((len(states), 0))
    return Arrivals(raw, states, np.ascontiguousarray(action, dtype=np.float32))


def _noise(policy: Policy | None, scaling: Scaling) -> tuple[Singles, Singles, Singles]:
    if not isinstance(policy, GaussianPolicy):
        empty = np.empty(0, dtype=np.float32)
        return empty, empty, empty
    std, low, high = policy.scales(scaling.shift.size)
    std = std / scaling.scale
    return std.astype(np.float32), scaling(low).astype(np.float32), scaling(high).astype(np.float32)
