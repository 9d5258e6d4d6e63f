"""Target policies over continuous states, with discrete or continuous actions, and what users have for them.

Functions, PyTorch modules, and models with ``predict`` or ``sample_action`` are adapted. What a function
returns tells what it is: tensors are detached; a tuple (Stable-Baselines3's action and hidden state) stands
for its first entry; whole numbers, one per state, are actions taken for sure; rows that sum to 1 are
probabilities of discrete actions.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingendice.data.checks import (
    Floats,
    first_bad,
    normalized_rows,
    numeric_array,
    require_below,
    require_finite,
    require_nonnegative,
    require_policy,
)

Function = Callable[..., Any]
DRAWS = 64


def is_policy(given: Any) -> bool:
    """Whether something acts: it can be called, or it predicts."""
    return callable(given) or callable(getattr(given, "predict", None))


def act(given: Any, states: Floats, rng: np.random.Generator | None = None) -> NDArray[Any]:
    """One action per state, or one row of probabilities; actions stay within a Gymnasium ``Box``."""
    found = _call(given, states, rng)
    if isinstance(found, tuple):
        found = found[0]
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    found = numeric_array("policy(states, rng)" if takes_rng(given) else "policy(states)", found)
    space = getattr(given, "action_space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is not None and high is not None and found.dtype.kind == "f":
        found = np.clip(found, low, high)
    return found


def _call(given: Any, states: Floats, rng: np.random.Generator | None) -> Any:
    if callable(getattr(given, "predict", None)):
        greedy = {"deterministic": True} if "deterministic" in _names(given.predict) else {}
        # Models that were trained on single precision refuse double.
        kind = getattr(getattr(given, "observation_space", None), "dtype", np.float32)
        return given.predict(states.astype(kind) if states.dtype.kind == "f" else states, **greedy)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.nn.Module):
        parameter = next(iter(given.parameters()), None)
        kind = torch.float32 if parameter is None else parameter.dtype
        place = "cpu" if parameter is None else parameter.device
        with torch.no_grad():
            return given(torch.as_tensor(np.array(states), dtype=kind, device=place))
    try:
        return given(states, rng) if takes_rng(given) else given(states)
    except ValueError as error:
        if "truth value of an array" not in str(error):
            raise
        raise ValueError(
            f"the policy is called with all states at once, shape {states.shape}, and asks whether an "
            "array is true; use numpy.where(states[:, 0] > 0, 1, 0) in place of if"
        ) from error


def _names(function: Function) -> Mapping[str, inspect.Parameter]:
    """Parameters of a function by name; none where it does not tell."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def takes_rng(function: Function) -> bool:
    """Whether a function wants a random generator as its second argument."""
    given = _names(function).values()
    wanted = [
        one
        for one in given
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    ]
    return len(wanted) >= 2 or any(one.name in ("rng", "generator") for one in given)


def mean_action_rows(given: Any, states: NDArray[Any], n_actions: int) -> Floats:
    """Probabilities of a policy that only draws, from ``DRAWS`` draws in each state."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        rows = action_rows(act(given, states, rng), len(states), n_actions)
        drawn.append(require_action_distributions("policy(states, rng)", rows, len(states)))
    return np.mean(drawn, axis=0)


def action_rows(found: NDArray[Any], n: int, n_actions: int) -> Floats:
    """Probabilities of discrete actions, one row per state, from probabilities or from actions."""
    if found.shape in ((n,), (n, 1)) and found.dtype.kind in "biu":
        ids = found.reshape(n).astype(np.int64)
        remedy = "pass n_actions= to Transitions where some actions were never logged"
        require_below("policy(states)", ids, n_actions, remedy, "action ")
        return np.eye(n_actions)[ids]
    return found


# -- policies as objects -------------------------------------------------------------------------------------


class DiscretePolicy(ABC):
    """A distribution over actions 0..A-1 in every state: expectations over the next action are exact sums."""

    has_density = True

    @abstractmethod
    def probabilities(self, states: NDArray[Any]) -> Floats:
        """Action probabilities, one row per state."""


class ContinuousPolicy(ABC):
    """A distribution over action vectors that can be sampled, and perhaps has a density."""

    @abstractmethod
    def sample(self, states: Floats, rng: np.random.Generator) -> Floats:
        """One action for each state, shape (n, action dimension)."""

    @property
    def has_density(self) -> bool:
        """Whether ``log_density`` can be asked."""
        return type(self).log_density is not ContinuousPolicy.log_density

    def log_density(self, states: Floats, actions: Floats) -> Floats:
        """Log density of each action; only importance sampling and a cloned base need it."""
        raise ValueError(
            f"{type(self).__name__} has no density; importance sampling and a cloned base need one: pass "
            "SampledPolicy(sample, density=...) or a GaussianPolicy"
        )


@dataclass(frozen=True, eq=False)
class CallablePolicy(DiscretePolicy):
    """Probabilities (n, n_actions), or one action per state, computed by a function or a model of states."""

    function: Any
    n_actions: int

    def probabilities(self, states: NDArray[Any]) -> Floats:
        if takes_rng(self.function):
            return mean_action_rows(self.function, states, self.n_actions)
        found = action_rows(act(self.function, states), len(states), self.n_actions)
        return require_action_distributions("policy(states)", found, len(states))


@dataclass(frozen=True, eq=False)
class TablePolicy(DiscretePolicy):
    """A table of probabilities: one distribution for all states, or one row for each integer state."""

    table: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", numeric_array("table", self.table).astype(np.float64, copy=False))

    def probabilities(self, states: NDArray[Any]) -> Floats:
        if self.table.ndim == 1:
            return np.broadcast_to(self.table, (len(states), self.table.size))
        return self.table[states]


@dataclass(frozen=True, eq=False)
class SampledPolicy(ContinuousPolicy):
    """Actions drawn by a function, ``function(states, rng) -> (n, action dimension)``, or by a model.

    The function is called with whole batches of states and must draw every action afresh from ``rng`` (a
    NumPy generator); one of states alone, or a model's ``predict``, is a policy that acts for sure.
    ``density(states, actions)`` returns log densities with respect to the same measure as the other policy of
    an importance weight.
    """

    function: Any
    density: Callable[[Floats, Floats], ArrayLike] | None = None

    def sample(self, states: Floats, rng: np.random.Generator) -> Floats:
        actions = act(self.function, states, rng).astype(np.float64, copy=False)
        if actions.ndim == 1:
            actions = actions[:, None]
        if actions.ndim != 2 or len(actions) != len(states):
            raise ValueError(
                f"policy(states, rng) returned shape {actions.shape} for {len(states)} states; "
                "return one row of action coordinates per state"
            )
        require_finite("policy(states, rng)", actions)
        return actions

    @property
    def has_density(self) -> bool:
        return self.density is not None

    def log_density(self, states: Floats, actions: Floats) -> Floats:
        if self.density is None:
            return super().log_density(states, actions)
        density = numeric_array("density(states, actions)", self.density(states, actions))
        density = density.astype(np.float64, copy=False)
        if density.shape not in ((len(states),), (len(states), 1)):
            raise ValueError(
                f"density(states, actions) returned shape {density.shape} for {len(states)} states; give one "
                "log density per row"
            )
        density = density.reshape(len(states))
        wrong = np.isnan(density) | (density == np.inf)
        if wrong.any():
            (row,) = first_bad(wrong)
            raise ValueError(
                f"density(states, actions)[{row}] is {density[row]}; log densities are finite, or -inf where "
                "the policy never takes the action"
            )
        return density


@dataclass(frozen=True, eq=False)
class GaussianPolicy(ContinuousPolicy):
    """Independent normal coordinates around ``mean(states)``, clipped to [low, high] where given.

    The fastest continuous policy: means are computed once, and the noise of every training step is drawn
    inside the compiled loop. A clipped coordinate has an atom at each bound; ``log_density`` gives the
    atom's probability there and the normal density between, so that samples and densities agree.

    Examples
    --------
    >>> import numpy as np
    >>> from lingendice.data.policies import GaussianPolicy
    >>> policy = GaussianPolicy(lambda states: 0.5 * states, std=0.1, low=-1.0, high=1.0)
    >>> policy.sample(np.zeros((2, 1)), np.random.default_rng(0)).shape
    (2, 1)
    """

    mean: Callable[[Floats], ArrayLike]
    std: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None

    def means(self, states: Floats) -> Floats:
        """Mean action of each state, before clipping."""
        means = numeric_array("mean(states)", self.mean(states)).astype(np.float64, copy=False)
        means = means[:, None] if means.ndim == 1 else means
        if means.ndim != 2 or len(means) != len(states):
            raise ValueError(
                f"mean(states) returned shape {means.shape} for {len(states)} states; give one row per state"
            )
        require_finite("mean(states)", means)
        return means

    def scales(self, dimension: int) -> tuple[Floats, Floats, Floats]:
        """(std, low, high) of every coordinate."""
        given = {
            "std": self.std,
            "low": -np.inf if self.low is None else self.low,
            "high": np.inf if self.high is None else self.high,
        }
        arrays = {name: numeric_array(name, values) for name, values in given.items()}
        for name, values in arrays.items():
            if values.shape not in ((), (1,), (dimension,)):
                raise ValueError(
                    f"{name} has shape {values.shape}; give one number, or one for each of the {dimension} "
                    "coordinates of an action"
                )
        std, low, high = (
            np.broadcast_to(values.astype(np.float64, copy=False), (dimension,)) for values in arrays.values()
        )
        require_nonnegative("std", std, "standard deviations are at least 0")
        crossed = ~(low <= high)
        if crossed.any():
            (k,) = first_bad(crossed)
            raise ValueError(f"low[{k}] is {low[k]} and high[{k}] is {high[k]}; give low <= high")
        return std, low, high

    def sample(self, states: Floats, rng: np.random.Generator) -> Floats:
        means = self.means(states)
        std, low, high = self.scales(means.shape[1])
        return np.clip(means + std * rng.standard_normal(means.shape), low, high)

    @property
    def has_density(self) -> bool:
        return bool(np.min(numeric_array("std", self.std)) > 0)

    def log_density(self, states: Floats, actions: Floats) -> Floats:
        means = self.means(states)
        return normal_log_density(actions, means, *self.scales(means.shape[1]))


def normal_log_density(actions: Floats, means: Floats, std: Floats, low: Floats, high: Floats) -> Floats:
    """Log density of clipped normal coordinates: atoms at the bounds, the normal density between."""
    from scipy.special import log_ndtr

    z = (actions - means) / std
    inside = -0.5 * z * z - np.log(std) - 0.5 * np.log(2.0 * np.pi)
    with np.errstate(invalid="ignore"):
        at_low, at_high = log_ndtr((low - means) / std), log_ndtr((means - high) / std)
    return np.where(actions <= low, at_low, np.where(actions >= high, at_high, inside)).sum(axis=1)


Policy = DiscretePolicy | ContinuousPolicy


def require_action_distributions(name: str, values: ArrayLike, n: int) -> Floats:
    """Check one distribution over actions per row."""
    table = numeric_array(name, values)
    if table.ndim != 2 or len(table) != n:
        raise ValueError(
            f"{name} must have shape ({n}, n_actions), got {table.shape} of {table.dtype}; give one row of "
            "probabilities per state"
        )
    return normalized_rows(name, table, 1e-4, "its rows")


def is_list_of_policies(given: Any) -> bool:
    """Whether a list holds objects that act, and not the probabilities of one."""
    kinds = (DiscretePolicy, ContinuousPolicy)
    return isinstance(given, (list, tuple)) and any(isinstance(one, kinds) or is_policy(one) for one in given)


def read_policy(policy: Any, n_states: int | None, n_actions: int | None) -> Policy:
    """A policy object from what a user may give: an object, a table, a function, or a trained model.

    ``n_states`` is None where states are vectors, ``n_actions`` where actions are.
    """
    discrete = n_actions is not None
    if isinstance(policy, (DiscretePolicy, ContinuousPolicy)):
        if isinstance(policy, DiscretePolicy) != discrete:
            kind = "integers (discrete)" if discrete else "vectors of floats (continuous)"
            raise ValueError(f"{type(policy).__name__} does not fit the logged actions, which are {kind}")
        return policy
    if is_policy(policy):
        return SampledPolicy(policy) if n_actions is None else CallablePolicy(policy, n_actions)
    if not discrete:
        raise ValueError(
            "policy must be a GaussianPolicy, a SampledPolicy or a function (states, rng) -> actions, since "
            f"the logged actions are continuous; got {type(policy).__name__}"
        )
    table = numeric_array("policy", policy)
    if table.dtype.kind in "iu" and table.shape == (n_states,) and n_states is not None:
        if n_states == n_actions and table.sum() == 1:
            raise ValueError(
                f"policy {table.tolist()} may be one action per state or one distribution over actions; give "
                "a table (n_states, n_actions), or a distribution as floats"
            )
        return TablePolicy(require_policy("policy", table, n_states, n_actions or 0))
    table = table.astype(np.float64)
    if table.ndim == 1:
        return TablePolicy(require_action_distributions("policy", table[None, :], 1)[0])
    if n_states is None:
        raise ValueError(
            f"policy is a table of shape {table.shape}, but the states are vectors: give one distribution "
            "over actions (1-d), a function states -> probabilities, or integer states"
        )
    return TablePolicy(require_action_distributions("policy", table, n_states))
