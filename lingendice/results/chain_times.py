"""What a chain is like in time: how soon states recur, how fast it forgets, how far states are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.display import strict_json
from lingendice.data.rows import read_only
from lingendice.results.result import Row, Shown
from lingendice.solvers.control import Controls
from lingendice.solvers.stationary import distributions_of_rates

if TYPE_CHECKING:
    from lingendice.model.operator import EmpiricalOperator
    from lingendice.model.transition_rows import TransitionRows

DENSE_CLASS = 1500
"""States of a class up to which its eigenvalues are all computed: 1,500 take about a second."""
ARNOLDI_TOL = 1e-10


@dataclass(frozen=True, eq=False, repr=False)
class ChainTimes(Shown):
    """Times of the chain at gamma = 1, in steps; tuples have one entry for each recurrent class."""

    recurrence: Floats
    """Mean steps from each state back to itself; inf in states that do not recur."""
    spectral_gap: tuple[float, ...]
    """1 - |lambda_2|: 0 for a periodic class; nan where it was not found."""
    kemeny: tuple[float | None, ...]
    """Mean steps from any state to one drawn from the stationary distribution, 0 if it is there already.

    None where the class is too large: it takes all eigenvalues."""
    periods: tuple[int, ...]
    how: dict[str, str]
    """How each was computed."""

    @property
    def relaxation(self) -> tuple[float, ...]:
        """1 / spectral gap: steps in which the distance from the stationary distribution falls by e."""
        return tuple(math.inf if gap == 0.0 else 1.0 / gap for gap in self.spectral_gap)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        names = ("recurrence", "spectral_gap", "relaxation", "kemeny", "periods", "how")
        return {name: strict_json(getattr(self, name)) for name in names}

    def __repr__(self) -> str:
        return f"ChainTimes({self.recurrence.size:,} states, {len(self.periods)} recurrent classes)"

    def _table(self) -> list[Row]:
        finite = self.recurrence[np.isfinite(self.recurrence)]
        known = [number for number in self.kemeny if number is not None]
        rows = [("recurrence times", f"{finite.min():.4g} to {finite.max():.4g} steps")]
        rows.append(("relaxation time", ", ".join(f"{time:.4g} steps" for time in self.relaxation[:5])))
        rows.append(("spectral gap", ", ".join(f"{gap:.4g}" for gap in self.spectral_gap[:5])))
        rows.append(
            ("Kemeny's constant", ", ".join(f"{each:.6g} steps" for each in known[:5]) or "not cheap")
        )
        return rows + [(f"how: {name}", text) for name, text in self.how.items()]


def chain_times(
    operator: EmpiricalOperator, classes: tuple[NDArray[np.int64], ...], periods: tuple[int, ...]
) -> ChainTimes:
    """Recurrence times by one stationary solve; gaps and Kemeny's constant by eigenvalues and one inverse."""
    chain = operator.chain
    rates, _ = chain.extended()
    found = distributions_of_rates(rates, chain.n, None, "auto", Controls())
    recurrence = np.full(chain.n, np.inf)
    gaps, kemeny = [], []
    for nodes, shares, period in zip(classes, found.every, periods, strict=True):
        with np.errstate(over="ignore"):
            recurrence[nodes] = 1.0 / shares[nodes]
        gaps.append(0.0 if period > 1 else _spectral_gap(chain, nodes))
        kemeny.append(_kemeny(chain, nodes, shares[nodes]))
    largest = max(map(len, classes), default=0)
    every = largest <= DENSE_CLASS
    gap_by = "all eigenvalues" if every else f"Arnoldi iterations to {ARNOLDI_TOL:.0e}, an estimate"
    return ChainTimes(
        recurrence=read_only(recurrence),
        spectral_gap=tuple(gaps),
        kemeny=tuple(kemeny),
        periods=periods,
        how={
            "recurrence": f"1 / stationary, by {found.outcome.method}",
            "spectral gap": f"{gap_by}; 0 by the period where that is above 1",
            "Kemeny's constant": "trace of the fundamental matrix, by one dense inverse"
            if every
            else f"left out of classes of over {DENSE_CLASS:,} states",
            "period": "common divisor of cycle lengths, from one search",
        },
    )


def _within(chain: TransitionRows, nodes: NDArray[np.int64]) -> Floats:
    """The transition matrix of a closed class."""
    inside: Floats = chain.kernel()[nodes][:, nodes].toarray()
    return inside + chain.out[nodes] @ chain.distribution[:, nodes]


def _spectral_gap(chain: TransitionRows, nodes: NDArray[np.int64]) -> float:
    """1 - |lambda_2| of an aperiodic class."""
    if nodes.size == 1:
        return 1.0
    if nodes.size <= DENSE_CLASS:
        from scipy.linalg import eigvals

        sizes = np.sort(np.abs(eigvals(_within(chain, nodes), check_finite=False)))
        return float(max(1.0 - sizes[-2], 0.0))
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    def step(values: Floats) -> Floats:
        full = np.zeros(chain.n)
        full[nodes] = values.ravel()
        return chain.apply(full)[nodes]

    size = nodes.size
    start = np.random.default_rng(0).normal(size=size)
    try:
        found = eigs(
            LinearOperator((size, size), matvec=step, dtype=float), k=2, which="LM", tol=ARNOLDI_TOL,
            v0=start, ncv=min(size - 1, 60), maxiter=200, return_eigenvectors=False,
        )  # fmt: skip
    except ArpackError:
        return math.nan
    return float(max(1.0 - np.sort(np.abs(found))[0], 0.0))


def _kemeny(chain: TransitionRows, nodes: NDArray[np.int64], shares: Floats) -> float | None:
    """trace (I - P + 1 pi')^-1 - 1; O(n^3)."""
    if nodes.size > DENSE_CLASS:
        return None
    from scipy.linalg import inv

    fundamental = inv(np.eye(nodes.size) - _within(chain, nodes) + shares, check_finite=False)
    return float(np.trace(fundamental) - 1.0)
