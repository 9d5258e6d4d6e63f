"""20 million transitions to counts, against SciPy from the same ids, with its ones made beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import alternate
from scipy.sparse import coo_matrix

from lingendice.data.counting import count_pairs

N = 20_000_000


def cells_and_successors(rng):
    row = rng.integers(0, 12_000, N)
    successors = rng.integers(0, 2_000, (12_000, 3))
    return 12_000, 2_000, row, successors[row, rng.choice(3, N, p=[0.8, 0.15, 0.05])]


def cells_uniform(rng):
    return 12_000, 2_000, rng.integers(0, 12_000, N), rng.integers(0, 2_000, N)


def million(rng):
    return 1_000_000, 1_000_000, rng.integers(0, 1_000_000, N), rng.integers(0, 1_000_000, N)


CASES = {
    "12,000 cells x 2,000 states, uniform": (cells_uniform, 5.0),
    "12,000 cells x 2,000 states, three successors": (cells_and_successors, 5.0),
    "1M states": (million, 3.0),
}


@pytest.mark.parametrize("ids", [np.int64, np.int32])
@pytest.mark.parametrize("name", CASES)
def test_counting(record, name, ids):
    make, goal = CASES[name]
    n_rows, n_columns, row, column = make(np.random.default_rng(0))
    pair = row.astype(ids), column.astype(ids)
    ones = np.ones(N, np.int32)

    def scipy_counts():
        return coo_matrix((ones, pair), shape=(n_rows, n_columns)).tocsr()

    mine, theirs = count_pairs(*pair, n_rows, n_columns, threads=2), scipy_counts()
    theirs.sort_indices()
    assert np.array_equal(mine.indptr, theirs.indptr)
    assert np.array_equal(mine.count, theirs.data)
    title = f"count 20M transitions, {name}, {np.dtype(ids).name} ids"
    one = alternate({"ours": lambda: count_pairs(*pair, n_rows, n_columns, threads=1)}, 3)["ours"]
    record.ratio(
        title,
        lambda: count_pairs(*pair, n_rows, n_columns, threads=2),
        {"scipy coo to csr": scipy_counts},
        goal,
        5,
        f"two threads; one thread takes {one * 1e3:.0f} ms",
    )
