"""Types of the arguments of ``solve``, for its overloads: the data and the policy decide what is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from numpy.typing import ArrayLike, NDArray

OnePolicy: TypeAlias = NDArray[Any] | Sequence[int] | Sequence[Sequence[float]] | None
ManyPolicies: TypeAlias = Mapping[str, Any] | Sequence[NDArray[Any]] | Sequence[Sequence[Sequence[float]]]


class Arguments(TypedDict, total=False):
    """The keyword arguments of :func:`lingendice.solve` but for the policy."""

    behavior: ArrayLike | None
    reward: ArrayLike | None
    initial: ArrayLike | None
    ratio: str
    leak: str
    restart: ArrayLike | None
    unseen: str
    terminal: str
    ridge: float | str | None
    clone: float | str | None
    smoothing: float | tuple[float, ArrayLike] | str | None
    features: Any
    dual_features: Any
    divergence: Any
    penalty: float
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
