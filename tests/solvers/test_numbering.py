from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from lingendice.model.pull_system import is_arbitrary, lacks_locality
from lingendice.solvers.levels import jump_chain


def edges(source, target, n):
    matrix = sp.csr_matrix((np.ones(source.size), (source, target)), shape=(n, n))
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)


def test_a_numbering_that_follows_the_flow_or_the_place_is_kept():
    n, rng = 4000, np.random.default_rng(0)
    source = np.repeat(np.arange(n), 6)
    assert is_arbitrary(*edges(source, rng.integers(n, size=source.size), n))
    assert not is_arbitrary(*edges(source, (source + rng.integers(1, 40, source.size)) % n, n))
    assert not is_arbitrary(*edges(source, np.maximum(source - rng.integers(1, n, source.size), 0), n))
    loops = np.arange(n)
    assert not is_arbitrary(*edges(loops, loops, n))
    assert not is_arbitrary(*edges(loops[:0], loops[:0], n))


def test_locality_is_asked_for_only_where_a_near_cache_is_too_small():
    n, rng = 100_000, np.random.default_rng(1)
    source = np.repeat(np.arange(n), 3)
    far = rng.integers(n, size=source.size)
    assert lacks_locality(*edges(source, far, n), window=1000)
    assert not lacks_locality(*edges(source, (source + 1) % n, n), window=1000)
    assert not lacks_locality(*edges(source, far, n), window=n)


@pytest.mark.parametrize("arbitrary", [True, False])
def test_renumbered_or_not_the_chain_is_the_same(arbitrary):
    n, rng = 300, np.random.default_rng(2)
    source = np.repeat(np.arange(n), rng.integers(1, 9, n))
    target = (
        rng.integers(n, size=source.size) if arbitrary else (source + rng.integers(1, 4, source.size)) % n
    )
    source, target = np.append(source, np.arange(n)), np.append(target, (np.arange(n) + 1) % n)
    matrix = sp.csr_matrix((rng.random(source.size), (source, target)), shape=(n, n))
    matrix.sum_duplicates()
    level = jump_chain(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data, lambda: None
    )
    assert (level.order is None) == (not arbitrary)
    order = np.arange(n) if level.order is None else level.order
    q = sp.csc_matrix((level.weights, level.sources.astype(np.int64), level.indptr), shape=(n, n)).toarray()
    moves = matrix.toarray() - np.diag(matrix.diagonal())
    expected = moves / moves.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(q, expected[np.ix_(order, order)], rtol=1e-13)
    np.testing.assert_allclose(
        level.unsorted(level.stay), matrix.toarray().sum(axis=1) / moves.sum(axis=1), rtol=1e-13
    )
    rows = level.jumps_back()
    back = sp.csr_matrix((rows.weights, rows.sources.astype(np.int64), rows.indptr), shape=(n, n)).toarray()
    np.testing.assert_array_equal(back, q)
