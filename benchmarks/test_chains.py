"""``lg.solve(P)`` without a hint on three kinds of chain, against peers that reach 1e-10 there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import lingendice as lg

sys.path.insert(0, str(Path(__file__).parent))
import chains
import peers


def entrywise(distribution, exact):
    return float(np.max(np.abs(distribution / exact - 1)))


def compare(record, name, matrix, exact, others):
    """Time those methods that reach 1e-10 entrywise; all others are named in the note."""
    mine = lg.solve(matrix)
    error = entrywise(mine.stationary, exact)
    assert error < 1e-10
    missed, able = [], {}
    for other, distribution in others.items():
        off = entrywise(distribution(matrix), exact)
        if off < 1e-10:
            able[other] = lambda distribution=distribution: distribution(matrix)
        else:
            missed.append(f"{other} is off by {off:.0e}")
    note = "; ".join([f"by {mine.method}, off by {error:.0e} entrywise", *missed])
    if able:
        record.ratio(f"stationary distribution, {name}", lambda: lg.solve(matrix), able, 1.0, 9, note)
    else:
        record.fact(f"stationary distribution, {name}", lambda: lg.solve(matrix), note)


def test_scale_free(record):
    matrix = chains.scale_free()
    exact = peers.iterated(matrix, None)
    others = {"power iteration": peers.power, "scipy eigs": peers.arnoldi}
    compare(record, "scale-free 20k", matrix, exact, others)


def test_grid(record):
    matrix = chains.grid()
    exact = peers.refined(matrix)
    others = {
        "scipy spsolve": peers.sparse_lu,
        "scipy spsolve (COLAMD)": lambda p: peers.sparse_lu(p, "COLAMD"),
        "power iteration": peers.power,
    }
    compare(record, "grid 40k", matrix, exact, others)


@pytest.mark.parametrize("coupling", [1e-3, 1e-6, 1e-9])
def test_nearly_decomposable(record, coupling):
    matrix = chains.nearly_decomposable(coupling=coupling)
    strong = matrix.multiply(matrix > 2.5 * coupling)
    exact = peers.iterated(matrix, sp.csgraph.connected_components(strong, directed=False)[1])
    others = {"scipy eigs": peers.arnoldi, "power iteration": peers.power}
    compare(record, f"nearly decomposable 20k, coupling {coupling:.0e}", matrix, exact, others)
