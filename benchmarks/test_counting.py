"""20 million transitions to compressed counts, against SciPy given its best: int32 indices, ones made before."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_matrix

from lingendice.tally import count_pairs

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


@pytest.mark.parametrize("name", CASES)
def test_counting(record, name):
    make, goal = CASES[name]
    n_rows, n_columns, row, column = make(np.random.default_rng(0))
    narrow = row.astype(np.int32), column.astype(np.int32)
    ones = np.ones(N, np.int32)

    def scipy_counts():
        return coo_matrix((ones, narrow), shape=(n_rows, n_columns)).tocsr()

    mine, theirs = count_pairs(*narrow, n_rows, n_columns, threads=2), scipy_counts()
    theirs.sort_indices()
    assert np.array_equal(mine.indptr, theirs.indptr)
    assert np.array_equal(mine.count, theirs.data)
    for threads in (2, 1):
        title = f"count 20M transitions, {name}, {threads} thread{'s' * (threads > 1)}"
        note = "int32 ids on both sides"
        peers = {"scipy coo to csr": scipy_counts}
        record.ratio(
            title, lambda t=threads: count_pairs(*narrow, n_rows, n_columns, threads=t), peers, goal, 5, note
        )
