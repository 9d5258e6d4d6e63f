"""Policies as users have them: functions, PyTorch modules, and models with ``predict`` or ``sample_action``.

What a function returns tells what it is: tensors are detached; a tuple (Stable-Baselines3's action and hidden
state) stands for its first entry; whole numbers, one per state, are actions taken for sure; rows that sum to
1 are probabilities of discrete actions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, first_bad, numeric_array

Function = Callable[..., Any]
DRAWS = 64


def is_policy(given: Any) -> bool:
    """Whether something acts: it can be called, or it predicts."""
    return callable(given) or callable(getattr(given, "predict", None))


def plain_output(found: Any, call: str) -> NDArray[Any]:
    """An array from what ``call`` returned."""
    if isinstance(found, tuple):
        found = found[0]
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    return numeric_array(call, found)


@dataclass(frozen=True, eq=False)
class Adapted:
    """What acts, as one function of states and a random generator."""

    given: Any
    bounds: tuple[Any, Any] | None = None
    """Least and largest action, from a Gymnasium ``Box``."""

    def __call__(self, states: Floats, rng: np.random.Generator | None = None) -> NDArray[Any]:
        """One action per state, or one row of probabilities."""
        call = "policy(states, rng)" if takes_rng(self.given) else "policy(states)"
        found = plain_output(self._call(states, rng), call)
        if self.bounds is not None and found.dtype.kind == "f":
            found = np.clip(found, *self.bounds)
        return found

    def _call(self, states: Floats, rng: np.random.Generator | None) -> Any:
        given = self.given
        if callable(getattr(given, "predict", None)):
            greedy = {"deterministic": True} if "deterministic" in _names(given.predict) else {}
            return given.predict(self._as_trained(states), **greedy)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(given, torch.nn.Module):
            parameter = next(iter(given.parameters()), None)
            kind = torch.float32 if parameter is None else parameter.dtype
            place = "cpu" if parameter is None else parameter.device
            with torch.no_grad():
                return given(torch.as_tensor(np.array(states), dtype=kind, device=place))
        return given(states, rng) if takes_rng(given) else given(states)

    def _as_trained(self, states: Floats) -> Floats:
        """Models that were trained on single precision refuse double."""
        space = getattr(self.given, "observation_space", None)
        kind = getattr(space, "dtype", np.float32)
        return states.astype(kind) if states.dtype.kind == "f" else states


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


def adapted(given: Any) -> Adapted:
    """What acts, with the bounds of its Gymnasium action space where it has one."""
    space = getattr(given, "action_space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return Adapted(given, None if low is None or high is None else (low, high))


def mean_action_rows(given: Any, states: NDArray[Any], n_actions: int) -> Floats:
    """Probabilities of a policy that only draws, from ``DRAWS`` draws in each state."""
    rng = np.random.default_rng(0)
    drawn = [action_rows(adapted(given)(states, rng), len(states), n_actions) for _ in range(DRAWS)]
    return np.mean(drawn, axis=0)


def action_rows(found: NDArray[Any], n: int, n_actions: int) -> Floats:
    """Probabilities of discrete actions, one row per state, from probabilities or from actions."""
    if found.shape in ((n,), (n, 1)) and found.dtype.kind in "biu":
        ids = found.reshape(n).astype(np.int64)
        wrong = (ids < 0) | (ids >= n_actions)
        if wrong.any():
            (row,) = first_bad(wrong)
            raise ValueError(
                f"policy(states)[{row}] is action {ids[row]}, but the log has actions 0..{n_actions - 1}; "
                "pass n_actions= to Transitions where some were never logged"
            )
        return np.eye(n_actions)[ids]
    return found
