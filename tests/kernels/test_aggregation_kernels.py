from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from lingendice.kernels import aggregation_steps as kernels


def pull(matrix):
    """Pull layout of a matrix whose rows are sources."""
    csc = sp.csc_matrix(matrix)
    csc.sort_indices()
    return csc.indptr.astype(np.int64), csc.indices.astype(np.uint32), csc.data.astype(np.float64)


def random_chain(n, density, seed):
    rng = np.random.default_rng(seed)
    w = np.where(rng.random((n, n)) < density, rng.uniform(0.1, 1.0, (n, n)), 0.0)
    w[np.arange(n), (np.arange(n) + 1) % n] = 0.5
    np.fill_diagonal(w, 0.0)
    return w / w.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(3))
def test_coarsen_equals_a_triple_product(seed):
    n, count = 60, 7
    w = random_chain(n, 0.1, seed)
    rng = np.random.default_rng(seed)
    y = rng.uniform(0.1, 1.0, n)
    label = np.concatenate([np.arange(count), rng.integers(0, count, n - count)]).astype(np.uint32)
    start, source, weight = pull(w)
    begin, member = kernels.list_members(label, count)
    block_start = np.zeros(count + 1, np.int64)
    block_source, flow = np.empty(source.size, np.uint32), np.empty(source.size)
    outflow, slot = np.zeros(count), np.full(count, -1, np.int64)
    for first, last in ((0, 3), (3, count)):
        kernels.coarsen(
            kernels.Pull(start, source, weight), y, kernels.Partition(label, begin, member), first, last,
            slot, kernels.Pull(block_start, block_source, flow), outflow,
        )  # fmt: skip
    used = block_start[-1]
    got = np.zeros((count, count))
    kernels.scatter_dense(block_start, block_source[:used], flow[:used], got)
    indicator = np.eye(count)[label]
    expected = indicator.T @ (y[:, None] * w) @ indicator
    np.fill_diagonal(expected, 0.0)
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(outflow, expected.sum(axis=1), rtol=1e-13)
    dense = np.zeros((count, count))
    kernels.dense_flows(start, source, weight, y, label, 0, n, dense)
    np.testing.assert_allclose(dense, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("seed", range(3))
def test_merge_bins_finds_the_components_scipy_finds(seed):
    rng = np.random.default_rng(seed)
    n = 200
    w = sp.random(
        n, n, 0.02, random_state=rng, data_rvs=lambda size: 2.0 ** -rng.uniform(0, 12, size)
    ).tocsc()
    start, source, weight = pull(w)
    parent = np.arange(n).astype(np.uint32)
    left = kernels.merge_bins(start, source, weight.view(np.int64), 0, n, 0, 6, n, parent)
    strong = w.multiply(w >= 2.0**-6)
    count, expected = sp.csgraph.connected_components(strong, directed=False)
    label = np.empty(n, np.uint32)
    assert left == kernels.label_components(parent, label) == count
    pairs = {(int(a), int(b)) for a, b in zip(label, expected, strict=True)}
    assert len(pairs) == count


def test_weight_bins_are_binary_exponents():
    values = np.array([1.0, 0.75, 0.5, 0.3, 2.0**-100, 1e-300])
    bins = [kernels.weight_bin(b) for b in values.view(np.int64)]
    assert bins == [0, 1, 1, 2, 100, 127]


@pytest.mark.parametrize("seed", range(3))
def test_neighbor_blocks_cover_and_halve(seed):
    n = 300
    w = random_chain(n, 0.02, seed)
    start, source, weight = pull(w)
    y, label, count = np.full(n, 1 / n), np.full(n, n, np.uint32), 0
    for first, last in ((0, 90), (90, n)):
        count = kernels.root_blocks(start, source, weight, y, 0.25, first, last, count, label)
    kernels.join_blocks(start, source, weight, y, 0, n, label)
    assert count <= n // 2
    assert set(label.tolist()) == set(range(count))
    assert np.bincount(label).min() >= 2


def test_join_strongest_respects_size_and_number():
    n = 300
    w = random_chain(n, 0.02, 7)
    start, source, weight = pull(w)
    label = np.arange(n).astype(np.uint32)
    best, best_source = np.zeros(n), np.zeros(n, np.uint32)
    kernels.strongest_inflows(start, source, weight, np.ones(n), label, 0, n, best, best_source)
    np.testing.assert_array_equal(best, w.max(axis=0))
    np.testing.assert_array_equal(best_source, w.argmax(axis=0))
    size = np.ones(n, np.int64)
    count = kernels.join_strongest(best_source, 10, 5, size, label)
    assert 5 <= count < n
    np.testing.assert_array_equal(np.bincount(label), size[:count])
    assert size[:count].max() <= 10
