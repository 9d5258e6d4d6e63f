"""What one call of ``solve`` asks for: read and checked once, frozen, and passed on as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingendice.data.checks import (
    NotAvailableYet,
    require_choice,
    require_gamma,
    require_horizon,
    require_number,
    require_positive,
    require_whole,
)
from lingendice.data.counts import Counts
from lingendice.data.interrupts import read_on_interrupt
from lingendice.model.compose import Choices
from lingendice.solvers.control import Controls

DEVICES = ("cpu", "cuda")
SADDLE_METHODS = ("sgd", "extragradient", "convex")
Distribution: TypeAlias = ArrayLike | Mapping[Any, float] | None
"""Over states: an array in their order, or weights by label."""
ByState: TypeAlias = (
    Mapping[Any, str] | Mapping[Any, int] | Mapping[Any, Mapping[Any, float]] | Callable[[Any], Any]
)
OnePolicy: TypeAlias = (
    NDArray[Any] | Sequence[int] | Sequence[str] | Sequence[Sequence[float]] | ByState | None
)
Table: TypeAlias = NDArray[Any] | Sequence[Sequence[float]]
ManyPolicies: TypeAlias = Mapping[Any, Table] | Sequence[Table] | Mapping[Any, ByState]


class Arguments(TypedDict, total=False):
    """The keyword arguments of :func:`lingendice.solve` but for the policy, for its overloads."""

    behavior: Any
    reward: Any
    initial: Distribution
    horizon: int | None
    ratio: str
    leak: str
    restart: Distribution
    unseen: str
    terminal: str
    ridge: float | None
    clone: float | None
    smoothing: float | tuple[float, ArrayLike] | None
    features: Any
    dual_features: Any
    divergence: Any
    penalty: float | None
    normalize: str
    bound: float | None
    reward_range: tuple[float, float] | None
    method: str
    tol: float
    max_iter: int | None
    time_limit: float | None
    seed: int
    threads: int | None
    device: str
    progress: bool
    warm_start: Any
    options: dict[str, Any] | None


class ObjectiveChoices(NamedTuple):
    """What the user may say about the objective; the names are those of ``solve``."""

    features: Any = None
    dual_features: Any = None
    divergence: Any = "chi2"
    penalty: float | None = None
    normalize: str = "penalty"
    bound: float | None = None
    ridge: float | None = None

    @classmethod
    def read(cls, **given: Any) -> ObjectiveChoices:
        """Check the numbers and words; features and divergences are read with the problem."""
        choices = cls(**given)
        require_choice("normalize", choices.normalize, ("penalty", "self"))
        return choices._replace(
            penalty=None if choices.penalty is None else require_number("penalty", choices.penalty),
            ridge=None if choices.ridge is None else require_number("ridge", choices.ridge),
            bound=None if choices.bound is None else require_positive("bound", choices.bound),
        )

    @property
    def mass_penalty(self) -> float:
        """lambda of linear problems; networks have a default of their own."""
        return 1.0 if self.penalty is None else self.penalty

    @property
    def over_features(self) -> list[str]:
        """Names of what has the answer found among some ratios only."""
        return [name for name in ("features", "dual_features", "bound") if getattr(self, name) is not None]

    @property
    def special(self) -> list[str]:
        """Names of what makes the objective another one; its tabular optimum without a ridge is the same."""
        plain = isinstance(self.divergence, str) and self.divergence in ("chi2", "weighted_l2")
        differs = {
            "divergence": not plain,
            "penalty": self.mass_penalty != 1.0,
            "normalize": self.normalize != "penalty",
        }
        return [name for name, other in differs.items() if other]


class MethodChoices(NamedTuple):
    """What the user may say about how the answer is found."""

    name: str = "auto"
    seed: int = 0
    warm_start: Any = None
    options: Mapping[str, Any] = {}
    """Those of the method: what concerns Ctrl-C has been taken out."""
    device: str = "cpu"


class Request(NamedTuple):
    """The arguments of one call of ``solve``, in groups."""

    problem: Choices
    objective: ObjectiveChoices
    method: MethodChoices
    limits: Controls
    reward_range: tuple[float, float] | None = None
    on_interrupt: str = "raise"

    @classmethod
    def read(
        cls, *, method: Any = "auto", seed: Any = 0, warm_start: Any = None, device: Any = "cpu",
        options: Any = None, reward_range: Any = None, tol: Any = 1e-10, max_iter: Any = None,
        time_limit: Any = None, threads: Any = None, progress: Any = False, **rest: Any,
    ) -> Request:  # fmt: skip
        """Sort the arguments of ``solve`` into groups and check what can be judged without the data.

        What is left out has its default. ``rest`` holds the fields of :class:`Choices` and
        :class:`ObjectiveChoices` by name; which values suit the data is for :func:`compose` to say, which
        methods and options there are for the backend.
        """
        limits = Controls.read(tol, max_iter, time_limit, threads, progress=progress)
        objective = ObjectiveChoices.read(
            **{name: rest.pop(name) for name in ObjectiveChoices._fields if name in rest}
        )
        if rest.get("clone") is not None:
            rest["clone"] = require_number("clone", rest["clone"])
        rest["gamma"] = require_gamma(rest.get("gamma", 1.0))
        rest["horizon"] = require_horizon(rest.get("horizon"))
        on_interrupt = read_on_interrupt(options)
        own = {name: value for name, value in options.items() if name != "on_interrupt"} if options else {}
        return cls(
            Choices(**rest),
            objective,
            MethodChoices(
                name=method,
                seed=require_whole("seed", seed),
                warm_start=warm_start,
                options=own,
                device=require_choice("device", device, DEVICES),
            ),
            limits,
            read_reward_range(reward_range),
            on_interrupt,
        )

    @property
    def follows_initial(self) -> bool:
        """Whether the limit from a given initial distribution is asked for."""
        return self.problem.initial is not None

    @property
    def wants_saddle(self) -> bool:
        """Whether the exact tabular solvers do not give the answer."""
        objective = self.objective
        other = bool(objective.over_features) or (bool(objective.special) and self.ridge != 0.0)
        return other or self.method.name in SADDLE_METHODS

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked beyond gamma, ``tol``, ``seed``, ``threads`` and ``progress``.

        A penalty has no say in the exact answer, unless it is 0.
        """
        objective, limits = self.objective, self.limits
        given = (
            *self.problem._replace(gamma=1.0),
            *(objective._replace(penalty=None) if objective.penalty != 0.0 else objective),
            *self.method._replace(seed=0),
            limits.max_iter, limits.time_limit, self.reward_range, self.on_interrupt,
        )  # fmt: skip
        # Entries may be arrays, which a comparison would go through entry by entry.
        return all(
            entry is plain or (type(entry) is type(plain) and entry == plain)
            for entry, plain in zip(given, _PLAIN, strict=True)
        )

    @property
    def ridge(self) -> float:
        """Weight of the ridge; 0 by default, for the exact equation."""
        return self.objective.ridge or 0.0

    @property
    def is_left_to_us(self) -> bool:
        """Whether a policy is to be evaluated, with nothing said of how."""
        problem = self.problem
        silent = problem.clone is None and problem.smoothing is None and self.objective.ridge is None
        silent = silent and problem.unseen == "auto" and problem.ratio != "state_action"
        plain = self.method.name == "auto" and not self.wants_saddle and not self.objective.special
        return silent and plain and problem.policy is not None and problem.leak == "restart"

    def shrinks(self, counts: Counts) -> bool:
        """Whether the default with a policy applies: actions, a sample size and rewards are known."""
        if not self.is_left_to_us or counts.n_actions is None:
            return False
        if not counts.has_sample_size or not counts.total:
            return False
        logged = counts.reward
        return self.problem.reward is not None or (logged is not None and bool(np.isfinite(logged).any()))

    def require_horizon_terms(self) -> None:
        """Refuse what the recursion over a horizon has no use for."""
        problem, objective = self.problem, self.objective
        if problem.leak == "absorb" or problem.terminal == "restart" or problem.ratio == "state":
            name = "leak" if problem.leak == "absorb" else "ratio" if problem.ratio == "state" else "terminal"
            raise ValueError(
                f"{name}={getattr(problem, name)!r} is for the stationary equation; with horizon= episodes "
                "end for good and the policy itself is followed: leave it out"
            )
        given = {"clone": problem.clone, "behavior": problem.behavior, "ridge": objective.ridge or None}
        asked = [name for name, value in given.items() if value is not None]
        asked += ["method"] if self.method.name != "auto" else []
        asked += objective.over_features + objective.special
        if asked:
            raise ValueError(
                f"{asked[0]}= belongs to ratios in the long run, and horizon= counts the first steps one by "
                "one; leave one of them out"
            )
        self.require_exact_terms()

    def refuse_exact_method(self) -> None:
        """Refuse a method of the exact equation where another problem is solved."""
        name = self.method.name
        if name != "auto":
            raise ValueError(f"method={name!r} solves the exact equation; leave it out, or pass ridge=0")

    def require_exact_terms(self) -> None:
        """Check what the exact tabular answer does not depend on, and refuse what it cannot use."""
        objective = self.objective
        if not (isinstance(objective.divergence, str) and objective.divergence == "chi2"):
            from lingendice.divergences import require_divergence  # all of them: the default needs none

            require_divergence(objective.divergence)
        if objective.penalty == 0.0:
            raise ValueError("penalty must be positive: without it tau = 0 is a solution at gamma=1")
        if self.method.warm_start is not None:
            raise NotAvailableYet("warm_start", "leave it out: exact solvers need no start")


_PLAIN = (*Choices(), *ObjectiveChoices(), *MethodChoices(), None, None, None, "raise")


def read_reward_range(given: Any) -> tuple[float, float] | None:
    """Check a pair (lowest, highest) of rewards."""
    if given is None:
        return None
    try:
        low, high = given
    except (TypeError, ValueError):
        raise ValueError(f"reward_range must be a pair (lowest, highest), got {given!r}") from None
    low, high = (require_number("reward_range", bound, at_least=-np.inf) for bound in (low, high))
    if low > high:
        raise ValueError(f"reward_range must be (lowest, highest), got {given!r}")
    return low, high


_NOT_FOR_TRANSITIONS = {
    "behavior": "no behavior policy is needed",
    "reward": "rewards belong to Transitions",
    "initial": "pass initial_state= to Transitions",
    "horizon": "take gamma < 1, or count states",
    "restart": "ended episodes restart from the initial distribution at gamma=1",
    "clone": "networks clone the behavior by options={'base': 'cloned'}",
    "smoothing": "it is a prior on counted rows",
    "reward_range": "there are no value bounds",
    "warm_start": "see options['checkpoint'] and options['resume']",
}
_PLAIN_FOR_TRANSITIONS = {"ratio": "auto", "leak": "restart", "unseen": "auto", "normalize": "penalty"}


def require_transitions_terms(request: Request) -> None:
    """Refuse what does not apply to continuous states."""
    if request.method.device != "cpu":
        raise NotAvailableYet(f"device={request.method.device!r} for Transitions", 'use device="cpu"')
    given = {
        **request.problem._asdict(),
        **request.objective._asdict(),
        "reward_range": request.reward_range,
        "warm_start": request.method.warm_start,
    }
    for name, instead in _NOT_FOR_TRANSITIONS.items():
        if given[name] is not None:
            raise ValueError(f"{name} does not apply to Transitions; leave it out ({instead})")
    for name, plain in _PLAIN_FOR_TRANSITIONS.items():
        if given[name] != plain:
            raise ValueError(f"{name} does not apply to Transitions; leave it out")
