"""Feature maps over cells: tabular (no matrix), dense or sparse, and builders for continuous states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingendice.data.checks import (
    Floats,
    compressed_rows,
    is_missing,
    numeric_array,
    plain_array,
    require_finite,
    require_nonnegative,
    require_positive,
    require_whole,
)

LARGEST_FEATURE = 1e150
"""Larger ones have squares that overflow, and answers that would be NaN."""
COLLINEAR = 1e-10
"""Share of the variance of features of the same length below which a direction is a rounding error."""


class FeatureMap(ABC):
    """Psi, cells by features: tau = Psi w, or f = Psi w."""

    n_cells: int
    n_features: int
    n_entries: int
    """Stored entries; one per cell for a table."""

    @abstractmethod
    def apply(self, weights: Floats) -> Floats:
        """Psi w."""

    @abstractmethod
    def adjoint(self, values: Any) -> Any:
        """Psi' y (columns together)."""

    @abstractmethod
    def scaled(self, by: Floats) -> Any:
        """diag(by) Psi as an array or sparse array."""

    @abstractmethod
    def gram(self, weight: Floats) -> Floats:
        """Psi' diag(weight) Psi, dense."""

    @abstractmethod
    def squares(self, weight: Floats) -> Floats:
        """The diagonal of :meth:`gram`."""

    @abstractmethod
    def largest(self, box: Floats) -> Floats:
        """The most that each |Psi w| can be where |w| <= box."""

    @abstractmethod
    def compressed(self) -> tuple[Any, Any, Any]:
        """(indptr, indices, data) row by row, in the types that kernels take."""


class Tabular(FeatureMap):
    """One feature per cell: the identity, which costs no matrix."""

    def __init__(self, n_cells: int) -> None:
        self.n_cells = self.n_features = self.n_entries = n_cells

    def apply(self, weights: Floats) -> Floats:
        return weights

    def adjoint(self, values: Any) -> Any:
        return values

    def scaled(self, by: Floats) -> Any:
        from scipy.sparse import diags_array

        return diags_array(by, format="csr")

    def gram(self, weight: Floats) -> Floats:
        return np.diag(weight)

    def squares(self, weight: Floats) -> Floats:
        return weight

    def largest(self, box: Floats) -> Floats:
        return box

    def compressed(self) -> tuple[Any, Any, Any]:
        n = self.n_cells
        return np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32), np.ones(n)


class MatrixFeatures(FeatureMap):
    """Features held as a dense array or a compressed sparse one."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.n_cells, self.n_features = matrix.shape
        self.is_sparse = not isinstance(matrix, np.ndarray)
        self.n_entries = int(matrix.nnz if self.is_sparse else matrix.size)

    @cached_property
    def _transposed(self) -> Any:
        return self.matrix.T.tocsr() if self.is_sparse else self.matrix.T

    def apply(self, weights: Floats) -> Floats:
        return self.matrix @ weights

    def adjoint(self, values: Any) -> Any:
        return self._transposed @ values

    def scaled(self, by: Floats) -> Any:
        return self.matrix * by[:, None] if not self.is_sparse else (self.matrix.T * by).T.tocsr()

    def gram(self, weight: Floats) -> Floats:
        if self.is_sparse:
            return np.asarray((self.matrix.T @ self.scaled(weight)).todense())
        if weight.min() >= 0:
            root = self.scaled(np.sqrt(weight))
            return np.asarray(root.T @ root)
        return np.asarray(self.matrix.T @ self.scaled(weight))

    def squares(self, weight: Floats) -> Floats:
        squared = self.matrix.multiply(self.matrix) if self.is_sparse else self.matrix**2
        return np.asarray(squared.T @ weight).ravel()

    def largest(self, box: Floats) -> Floats:
        return np.asarray(abs(self.matrix) @ box)

    def compressed(self) -> tuple[Any, Any, Any]:
        from scipy.sparse import csr_array

        matrix = csr_array(self.matrix)
        return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(np.float64)


def read_features(name: str, given: Any, n_cells: int, *, nonnegative: bool) -> FeatureMap:
    """Check features over cells: None is tabular; an array, a sparse matrix, or a fitted builder."""
    from scipy import sparse

    if given is None:
        return Tabular(n_cells)
    if isinstance(given, FeatureMap):
        return given
    if isinstance(given, FittedFeatures):
        given = given.matrix
    if sparse.issparse(given):
        matrix: Any = compressed_rows(name, given).astype(np.float64)
        matrix.sum_duplicates()
        values = matrix.data
    else:
        matrix = np.ascontiguousarray(numeric_array(name, given), dtype=np.float64)
        if matrix.ndim == 1:
            matrix = matrix[:, None]
        values = matrix
    if matrix.ndim != 2 or matrix.shape[0] != n_cells:
        raise ValueError(f"{name} must have one row per cell, shape ({n_cells}, d), got shape {matrix.shape}")
    if matrix.shape[1] == 0:
        raise ValueError(f"{name} has no columns; give at least one feature")
    if nonnegative:
        require_nonnegative(
            name, values, "tau = features @ w with w >= 0 needs features of at least 0 (tile_coding, rbf)"
        )
    else:
        require_finite(name, values)
    largest = float(np.abs(values).max(initial=0.0))
    if largest > LARGEST_FEATURE:
        raise ValueError(f"{name} holds {largest:g}, whose square would overflow; divide the features by it")
    return MatrixFeatures(matrix)


# -- builders ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FittedFeatures:
    """Features fitted on points: ``matrix`` at those points, and callable on new ones."""

    name: str
    evaluate: Callable[[Any], Any]
    matrix: Any

    def __call__(self, points: ArrayLike) -> Any:
        """Features of new points, one row each."""
        return self.evaluate(points)

    @property
    def shape(self) -> tuple[int, int]:
        """(points, features)."""
        return (int(self.matrix.shape[0]), int(self.matrix.shape[1]))


def _points(points: ArrayLike) -> Floats:
    at = numeric_array("points", points).astype(np.float64)
    require_finite("points", at)
    at = at[:, None] if at.ndim == 1 else at
    if at.ndim != 2 or not at.size:
        raise ValueError(f"points must have one row each, in one column per dimension, got shape {at.shape}")
    return at


def _fit(name: str, points: Floats, evaluate: Callable[[Floats], Any]) -> FittedFeatures:
    def at_others(others: ArrayLike) -> Any:
        at = _points(others)
        if at.shape[1] != points.shape[1]:
            raise ValueError(f"points have {at.shape[1]} columns, but {name} was fitted to {points.shape[1]}")
        return evaluate(at)

    return FittedFeatures(name, at_others, evaluate(points))


def _width(bandwidth: float | None, points: Floats, rng: np.random.Generator) -> float:
    return median_distance(points, rng) if bandwidth is None else require_positive("bandwidth", bandwidth)


def tile_coding(points: ArrayLike, tiles: int = 8, tilings: int = 4) -> FittedFeatures:
    """Overlapping grids: each point switches on one tile of every tiling (sparse, nonnegative).

    The grids span the points, are shifted against each other, and points beyond them fall into the
    outermost tiles. ``tiles`` a dimension makes ``tilings * tiles**dimensions`` features, so that only
    the tiles some point falls into are kept, plus one a tiling for all others.
    """
    at = _points(points)
    tiles = require_whole("tiles", tiles, at_least=1)
    tilings = require_whole("tilings", tilings, at_least=1)
    if tiles ** at.shape[1] > np.iinfo(np.int64).max:
        raise ValueError(
            f"tiles={tiles} in {at.shape[1]} dimensions are too many to number; take fewer, or rbf features"
        )
    low = at.min(axis=0)
    width = np.maximum(at.max(axis=0) - low, 1e-12) / max(tiles - 1, 1)
    shifts = np.arange(tilings) / tilings
    powers = tiles ** np.arange(at.shape[1], dtype=np.int64)

    def tile_ids(x: Floats) -> NDArray[np.int64]:
        scaled = ((x - low) / width)[:, None, :] + shifts[None, :, None]
        return np.clip(scaled, 0, tiles - 1).astype(np.int64) @ powers

    fitted_ids = tile_ids(at)
    known = [np.unique(fitted_ids[:, k]) for k in range(tilings)]
    first = np.concatenate([[0], np.cumsum([ids.size + 1 for ids in known])])

    def evaluate(x: Floats) -> Any:
        from scipy.sparse import csr_array

        ids = tile_ids(x)
        columns = np.empty(ids.shape, dtype=np.int64)
        for k, held in enumerate(known):
            place = np.minimum(np.searchsorted(held, ids[:, k]), held.size - 1)
            columns[:, k] = first[k] + np.where(held[place] == ids[:, k], place, held.size)
        indptr = np.arange(0, columns.size + 1, tilings)
        ones = np.full(columns.size, 1.0 / tilings)
        return csr_array((ones, columns.ravel(), indptr), shape=(x.shape[0], int(first[-1])))

    return _fit("tile_coding", at, evaluate)


def spread_out(points: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Some of the points, each chosen far from those before it (k-means++ seeding)."""
    distinct = np.unique(points, axis=0)
    n = min(n, distinct.shape[0])
    chosen = [int(rng.integers(distinct.shape[0]))]
    nearest = ((distinct - distinct[chosen[0]]) ** 2).sum(axis=1)
    for _ in range(1, n):
        chosen.append(int(rng.choice(distinct.shape[0], p=nearest / nearest.sum())))
        nearest = np.minimum(nearest, ((distinct - distinct[chosen[-1]]) ** 2).sum(axis=1))
    return distinct[chosen]


def median_distance(points: Floats, rng: np.random.Generator) -> float:
    some = points[rng.permutation(points.shape[0])[:500]]
    square = ((some[:, None, :] - some[None, :, :]) ** 2).sum(axis=2)
    apart = square[square > 0]
    return float(np.sqrt(np.median(apart))) if apart.size else 1.0


def gauss(x: Floats, centers: Floats, width: float) -> Floats:
    square = (x * x).sum(1)[:, None] + (centers * centers).sum(1)[None, :] - 2.0 * x @ centers.T
    return np.exp(-np.maximum(square, 0.0) / (2.0 * width * width))


def rbf(
    points: ArrayLike,
    n_features: int = 50,
    bandwidth: float | None = None,
    seed: int = 0,
    constant: bool = True,
) -> FittedFeatures:
    """Gaussian bumps around spread-out points (dense, nonnegative), and a constant.

    ``bandwidth`` defaults to half the median distance between points.
    """
    at = _points(points)
    n_features = require_whole("n_features", n_features, at_least=1 + constant)
    rng = np.random.default_rng(seed)
    centers = spread_out(at, n_features - constant, rng)
    width = _width(bandwidth, at, rng) * (0.5 if bandwidth is None else 1.0)

    def evaluate(x: Floats) -> Floats:
        bumps = gauss(x, centers, width)
        return np.column_stack([np.ones(x.shape[0]), bumps]) if constant else bumps

    return _fit("rbf", at, evaluate)


def random_fourier(
    points: ArrayLike, n_features: int = 100, bandwidth: float | None = None, seed: int = 0
) -> FittedFeatures:
    """Cosines of random frequencies, whose products approximate a Gaussian kernel: for f, not for tau."""
    at = _points(points)
    n_features = require_whole("n_features", n_features, at_least=1)
    rng = np.random.default_rng(seed)
    width = _width(bandwidth, at, rng)
    frequency = rng.standard_normal((at.shape[1], n_features)) / width
    phase = rng.uniform(0.0, 2.0 * np.pi, n_features)
    scale = np.sqrt(2.0 / n_features)
    return _fit("random_fourier", at, lambda x: scale * np.cos(x @ frequency + phase))


def nystroem(
    points: ArrayLike,
    n_features: int = 50,
    bandwidth: float | None = None,
    seed: int = 0,
    whiten: bool = True,
) -> FittedFeatures:
    """Gaussian kernels at landmark points: for f whitened, for tau nonnegative (``whiten=False``)."""
    at = _points(points)
    rng = np.random.default_rng(seed)
    landmarks = spread_out(at, require_whole("n_features", n_features, at_least=1), rng)
    width = _width(bandwidth, at, rng)
    if not whiten:
        return _fit("nystroem", at, lambda x: gauss(x, landmarks, width))
    values, vectors = np.linalg.eigh(gauss(landmarks, landmarks, width))
    keep = values > values[-1] * 1e-12
    root = vectors[:, keep] / np.sqrt(values[keep])
    return _fit("nystroem", at, lambda x: gauss(x, landmarks, width) @ root)


def one_hot(groups: Any) -> FittedFeatures:
    """One feature for each distinct group of cells (state aggregation; sparse, nonnegative)."""
    from scipy.sparse import csr_array

    ids = plain_array("groups", groups)
    if ids.ndim != 1:
        raise ValueError(f"groups must have one entry per cell, got shape {ids.shape}")
    if ids.dtype.kind == "O":
        missing = [row for row, group in enumerate(ids) if is_missing(group)]
        if missing:
            raise ValueError(f"groups[{missing[0]}] is {ids[missing[0]]!r}, a missing value; fill it first")
    elif ids.dtype.kind == "f":
        require_finite("groups", ids)
    held, inverse = np.unique(ids, return_inverse=True)

    def rows(place: NDArray[Any]) -> Any:
        ones = np.ones(place.shape)
        return csr_array((ones, place, np.arange(place.size + 1)), shape=(place.size, held.size))

    def evaluate(others: Any) -> Any:
        labels = plain_array("groups", others).ravel()
        place = np.minimum(np.searchsorted(held, labels), held.size - 1)
        new = np.flatnonzero(held[place] != labels)
        if new.size:
            group = labels.tolist()[new[0]]
            raise ValueError(f"groups[{new[0]}] is {group!r}, which was not among those fitted")
        return rows(place)

    return FittedFeatures("one_hot", evaluate, rows(inverse))


def orthonormalized(
    features: MatrixFeatures, distribution: Floats, least_variance: float | None = None
) -> tuple[MatrixFeatures, Floats]:
    """The same span in a basis that is orthonormal under ``distribution``: (features @ back, back).

    Directions that are rounding errors of nearly collinear features would make every inner solve meaningless,
    and are dropped; features are scaled to the same length for this, so that their units do not matter.
    ``least_variance`` drops all directions with a smaller share of the variance of the features as they are.
    """
    gram = features.gram(distribution)
    length = np.ones(len(gram))
    if least_variance is None:
        length = np.sqrt(np.diag(gram))
        length[length == 0.0] = 1.0
    values, vectors = np.linalg.eigh(gram / length / length[:, None])
    keep = values > (COLLINEAR if least_variance is None else least_variance) * values[-1]
    back = vectors[:, keep] / np.sqrt(values[keep]) / length[:, None]
    return MatrixFeatures(np.ascontiguousarray(features.matrix @ back)), back
