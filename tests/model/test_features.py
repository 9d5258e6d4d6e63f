"""Feature maps and builders."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lingendice.model.features import (
    MatrixFeatures,
    Tabular,
    nystroem,
    one_hot,
    orthonormalized,
    random_fourier,
    rbf,
    read_features,
    tile_coding,
)

POINTS = np.random.default_rng(0).uniform(-1, 1, (300, 2))


@pytest.mark.parametrize("build", [tile_coding, rbf, random_fourier, nystroem])
def test_builders_evaluate_new_points_as_the_fitted_ones(build):
    fitted = build(POINTS)
    again = fitted(POINTS[:7])
    dense = fitted.matrix.toarray() if sparse.issparse(fitted.matrix) else fitted.matrix
    again = again.toarray() if sparse.issparse(again) else again
    assert np.allclose(again, dense[:7])
    assert fitted.shape == dense.shape


@pytest.mark.parametrize("build", [tile_coding, rbf])
def test_builders_for_tau_are_nonnegative(build):
    matrix = build(POINTS).matrix
    matrix = matrix.toarray() if sparse.issparse(matrix) else matrix
    assert matrix.min() >= 0
    assert (matrix.sum(axis=1) > 0).all()


def test_tiles_sum_to_one_also_far_outside():
    fitted = tile_coding(POINTS, tiles=5, tilings=3)
    far = fitted(np.array([[100.0, -100.0], [0.0, 0.0]]))
    assert np.allclose(far.sum(axis=1), 1.0)
    assert (np.diff(far.indptr) == 3).all()


def test_fourier_and_nystroem_approximate_the_kernel():
    width = 0.8
    exact = np.exp(-((POINTS[:, None] - POINTS[None]) ** 2).sum(2) / (2 * width**2))
    cosines = random_fourier(POINTS, 4000, bandwidth=width).matrix
    assert np.abs(cosines @ cosines.T - exact).max() < 0.12
    kernels = nystroem(POINTS, 80, bandwidth=width).matrix
    assert np.abs(kernels @ kernels.T - exact).max() < 1e-4


def test_one_hot_groups():
    fitted = one_hot([3, 1, 3, 2])
    assert fitted.matrix.toarray().tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert fitted([2.0]).toarray().tolist() == [[0, 1, 0]]
    with pytest.raises(ValueError, match="not among those fitted"):
        fitted([9.0])


def test_reading_features():
    assert isinstance(read_features("features", None, 4, nonnegative=True), Tabular)
    assert read_features("features", sparse.eye(4), 4, nonnegative=True).is_sparse
    assert read_features("features", np.ones(4), 4, nonnegative=True).n_features == 1
    with pytest.raises(ValueError, match=r"features\[1, 0\] is -1"):
        read_features("features", [[1.0], [-1.0]], 2, nonnegative=True)
    with pytest.raises(ValueError, match="one row per cell"):
        read_features("features", np.ones((3, 2)), 4, nonnegative=True)
    with pytest.raises(ValueError, match="nan"):
        read_features("dual_features", [[np.nan], [1.0]], 2, nonnegative=False)


def test_orthonormal_basis_spans_the_same_functions():
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((50, 4))
    matrix = np.column_stack([matrix, matrix[:, 0] + 1e-9 * matrix[:, 1]])
    distribution = rng.dirichlet(np.ones(50))
    for given in (matrix, sparse.csr_array(matrix)):
        basis, back = orthonormalized(MatrixFeatures(given), distribution)
        assert basis.n_features == 4
        assert np.allclose(basis.matrix.T @ (distribution[:, None] * basis.matrix), np.eye(4), atol=1e-9)
        assert np.allclose(matrix @ back, basis.matrix)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tile_coding(POINTS, tiles=0), "^tiles must be a whole number of at least 1"),
        (lambda: tile_coding(POINTS, tilings=0), "^tilings must be"),
        (lambda: tile_coding(np.ones((3, 30))), "tiles=8 in 30 dimensions are too many"),
        (lambda: rbf(POINTS, 1), "^n_features must be a whole number of at least 2"),
        (lambda: rbf(POINTS, bandwidth=0.0), "^bandwidth must be positive"),
        (lambda: random_fourier(POINTS, 0), "^n_features must be"),
        (lambda: nystroem(POINTS, bandwidth=np.nan), "^bandwidth must be"),
        (lambda: rbf(POINTS[:0]), r"^points must have one row each.*\(0, 2\)"),
        (lambda: rbf(POINTS, 5)(np.ones((2, 3))), "^points have 3 columns, but rbf was fitted to 2"),
        (lambda: one_hot([[1, 2]]), "^groups must have one entry per cell"),
        (lambda: one_hot([3, 1])([1, 2]), r"^groups\[1\] is 2, which was not among those fitted"),
    ],
)
def test_builders_name_what_they_cannot_use(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_new_points_and_groups_are_taken_as_the_fitted_ones_were():
    tiles, low, high = tile_coding(POINTS, 3, 2), np.full((1, 2), -1e30), np.full((1, 2), 1e30)
    corners = [abs(tiles(corner) - tiles(corner / 1e25)).sum() for corner in (low, high)]
    assert corners == [0.0, 0.0]
    assert np.array_equal(one_hot(["a", "b", "a"])(["b", "a"]).toarray(), [[0.0, 1.0], [1.0, 0.0]])
