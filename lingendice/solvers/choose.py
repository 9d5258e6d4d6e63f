"""Pick the solver for an irreducible chain, run it, and say why it was picked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lingendice.data.checks import Floats
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers.control import Controls, Monitor, Outcome, direct_error, error_bound, watch

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lingendice.solvers.aggregation import Plan
    from lingendice.solvers.elimination import Elimination

DENSE_NODES = 300
"""Nodes up to which dense elimination is as fast as anything."""
FEW_NODES = 3000
"""Nodes up to which elimination is tried before anything is iterated: it is exact entry by entry."""
QUICK_FLOPS, MODERATE_FLOPS, PATIENT_FLOPS = 5e8, 5e10, 1e12
"""Cost of an elimination that is accepted at once, for slow chains, and where iterations have failed."""
SWEEPS_TRIED, SWEEPS_AT_MOST = 3000, 100_000
"""Sweeps made at gamma < 1 before elimination is tried, and where nothing else is allowed."""
LARGEST_FACTOR = 2**31
"""Bytes of a factor that are taken without being asked to."""


def solve_irreducible(
    rates: csr_array, n_hubs: int, method: str, controls: Controls, *, sweeps_failed: bool = False
) -> Outcome:
    """Stationary distribution (up to scale) of an irreducible chain over nodes; its last ``n_hubs`` are
    hubs."""
    n = rates.shape[0]
    if n == 1:
        return Outcome(np.ones(1), "gth", "a single state", converged=True, error=0.0)
    with watch(controls) as monitor:
        try:
            outcome = _run(rates, n_hubs, method, controls, monitor, sweeps_failed)
            if n_hubs:
                outcome.residual = None  # of the nodes, hubs included: not that of the states
        except InterruptedError:
            # An elimination has nothing to show before its end.
            outcome = Outcome(np.full(n, 1.0 / n), "elimination", "ended early", converged=False)
    if not outcome.converged:
        outcome.stopped = monitor.stopped
    return outcome


def _run(
    rates: csr_array, n_hubs: int, method: str, controls: Controls, monitor: Monitor, sweeps_failed: bool
) -> Outcome:
    n = rates.shape[0]
    if method == "gth" and 8 * n * n > LARGEST_FACTOR:
        raise ValueError(
            f'method="gth" would need {8e-9 * n * n:,.0f} GB for {n:,} states; use method="auto"'
        )
    if method == "gth" or (method == "auto" and n <= DENSE_NODES):
        return _dense(rates, monitor)
    if method == "elimination":
        factor = _analyze(rates, n_hubs, np.inf, monitor)
        return _eliminate(rates, factor, controls, monitor, "as asked")
    if method in ("gauss-seidel", "aggregation"):
        return _iterate(rates, controls, monitor, "as asked")
    return _automatic(rates, n_hubs, controls, monitor, sweeps_failed)


def _automatic(
    rates: csr_array, n_hubs: int, controls: Controls, monitor: Monitor, sweeps_failed: bool
) -> Outcome:
    """Elimination where it is cheap, sweeps where the chain mixes, blocks where it nearly falls apart."""
    n = rates.shape[0]
    if n <= FEW_NODES or sweeps_failed:
        factor = _analyze(rates, n_hubs, MODERATE_FLOPS if sweeps_failed else QUICK_FLOPS, monitor)
        if _fits(factor):
            why = "sweeps were too slow" if sweeps_failed else f"{n:,} nodes, little fill"
            return _eliminate(rates, factor, controls, monitor, why)
    from lingendice.solvers.aggregation import plan

    found = plan(
        *csr_arrays(rates),
        tol=controls.tol,
        threads=controls.threads,
        monitor=monitor,
    )
    if found.method == "direct" and not sweeps_failed:
        factor = _analyze(rates, n_hubs, MODERATE_FLOPS, monitor)
        if _fits(factor):
            return _eliminate(rates, factor, controls, monitor, "slow mixing and moderate fill")
    why = {
        "sweeps": f"mixes well: about {found.predicted_sweeps:.0f} further sweeps foreseen",
        "aggregation": f"falls apart into {found.blocks:,} nearly separate blocks",
        "direct": "slow mixing and much fill",
    }[found.method]
    outcome = _iterate(rates, controls, monitor, why, found)
    if outcome.converged or monitor.stopped is not None:
        return outcome
    factor = _analyze(rates, n_hubs, PATIENT_FLOPS, monitor)
    if not _fits(factor):
        return outcome
    return _eliminate(rates, factor, controls, monitor, "the iterations did not settle")


def _dense(rates: csr_array, monitor: Monitor) -> Outcome:
    from lingendice.kernels.chains.gth_dense import gth_dense

    distribution, regular = gth_dense(rates.toarray(), monitor)
    n = rates.shape[0]
    return Outcome(distribution, "gth", f"small: {n:,} nodes", converged=regular, error=direct_error(n))


def csr_arrays(rates: csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row pointers, columns and entries in the types that kernels take."""
    return (
        rates.indptr.astype(np.int64, copy=False),
        rates.indices.astype(np.int32, copy=False),
        rates.data.astype(np.float64, copy=False),
    )


def _analyze(rates: csr_array, n_hubs: int, max_flops: float, monitor: Monitor) -> Elimination:
    from lingendice.solvers.elimination import Elimination

    indptr, indices, data = csr_arrays(rates)
    return Elimination.analyze(
        indptr, indices, rates.shape[0], n_hubs, data=data, max_flops=max_flops, monitor=monitor
    )


def _fits(factor: Elimination) -> bool:
    return factor.complete and 8 * factor.fill <= LARGEST_FACTOR


def _eliminate(
    rates: csr_array, factor: Elimination, controls: Controls, monitor: Monitor, reason: str
) -> Outcome:
    factor.factorize(rates.data, keep_rows=False, threads=controls.threads, monitor=monitor)
    error = direct_error(rates.shape[0])
    return Outcome(factor.stationary(), "elimination", reason, converged=True, error=error)


def _iterate(
    rates: csr_array, controls: Controls, monitor: Monitor, reason: str, found: Plan | None = None
) -> Outcome:
    from lingendice.solvers.aggregation import solve_stationary

    result = solve_stationary(
        *csr_arrays(rates),
        tol=controls.tol,
        threads=controls.threads,
        monitor=monitor,
        plan=found,
    )
    return Outcome(
        distribution=result.x,
        method="gauss-seidel" if result.method == "sweeps" else "aggregation",
        reason=reason,
        converged=result.converged,
        n_iter=result.sweeps,
        error=result.error,
        error_kind="estimate",
        condition=result.condition,
        residual=result.residual,
        history=tuple(result.changes),
    )


def solve_discounted(
    chain: TransitionRows, gamma: float, initial: Floats, method: str, controls: Controls
) -> Outcome | None:
    """Distribution for gamma < 1 by sweeps; None where elimination of the restarting chain is better."""
    if method in ("gth", "elimination", "aggregation") or (method == "auto" and chain.n <= DENSE_NODES):
        return None
    # What rounding leaves of the tolerance, a little less: the residual is measured again elsewhere.
    goal = 0.9 * controls.tol - error_bound(0.0, gamma)
    if goal <= 0.0 and method == "auto":
        return None
    from lingendice.solvers.discounted import discounted_distribution

    limit = controls.max_iter or (SWEEPS_TRIED if method == "auto" else SWEEPS_AT_MOST)
    with watch(controls) as monitor:
        result = discounted_distribution(
            chain.returning(initial),
            gamma,
            initial,
            tol=goal if goal > 0.0 else controls.tol,
            threads=controls.threads,
            max_sweeps=limit,
            monitor=monitor,
        )
    if not result.converged and monitor.stopped is None and method == "auto" and controls.max_iter is None:
        return None
    distribution = result.solution
    outcome = Outcome(
        distribution=distribution,
        method="gauss-seidel",
        reason="as asked" if method != "auto" else f"{chain.n:,} states and gamma < 1",
        converged=result.converged,
        n_iter=result.sweeps,
        residual=result.residual,
        stopped=None if result.converged else monitor.stopped,
        history=tuple(result.history.tolist()),
    )
    if chain.absorbed.any():
        # Absorbed mass restarted from the initial distribution: the shape is right, the scale is set here.
        outcome.distribution = (1.0 - gamma) * distribution / float(distribution @ chain.restarts(gamma))
        outcome.residual = None
    return outcome
