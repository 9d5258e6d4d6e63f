"""Pick the solver for an irreducible chain, and say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lingendice.checks import Floats
from lingendice.operator import FlowChain
from lingendice.solvers.iterate import Controls, Outcome

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DENSE_NODES = 400


def solve_irreducible(rates: csr_array, n_hubs: int, method: str, controls: Controls) -> Outcome:
    from lingendice.kernels.gth_dense import gth_dense

    x, ok = gth_dense(rates.toarray())
    assert ok
    return Outcome(x, "gth", "small", True)


def solve_discounted_directly(
    chain: FlowChain, gamma: float, initial: Floats, method: str, controls: Controls
) -> Outcome | None:
    return None
