"""Stationary distributions of a chain, exactly: every recurrent class by the solver that suits it.

Dense elimination for few nodes, sparse elimination where it is cheap, sweeps where the chain mixes, blocks
where it nearly falls apart; the outcome says which was picked and why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import LARGEST_EXACT_COUNT, Floats
from lingendice.data.matrices import MISTAKEN, row_sum_tolerance
from lingendice.model.transition_rows import Classes, TransitionRows, find_classes, submatrix
from lingendice.solvers.control import (
    Controls,
    EliminationError,
    Monitor,
    Outcome,
    combined,
    direct_error,
    error_bound,
    stated_error,
    watch,
)

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


class Distributions(NamedTuple):
    """Stationary distributions over states and how they were found."""

    single: Floats | None
    every: tuple[Floats, ...]
    outcome: Outcome
    """Of the hardest class solved, with the largest error of any."""


def several_classes(chain: TransitionRows, gamma: float) -> int:
    """Number of recurrent classes where they leave the distribution open (gamma = 1), else 1. O(nnz)."""
    return len(find_classes(chain.extended()[0]).recurrent) if gamma == 1.0 else 1


def refusal_of_classes(method: str, n_classes: int) -> ValueError:
    """For methods to which any mixture of the classes is as good as any other."""
    return ValueError(
        f"at gamma=1 the chain has {n_classes} recurrent classes, and every mixture of their distributions "
        f"solves {method}; solve(...) without method=, features= or bound= gives one distribution per "
        "class (sol.distributions) or, with initial=, the limit from there; or take gamma < 1"
    )


def stationary_distributions(
    chain: TransitionRows,
    gamma: float,
    initial: Floats | None,
    follow_initial: bool,
    method: str,
    controls: Controls,
) -> Distributions:
    """Solve mu = (1 - gamma) mu0 + gamma P' mu exactly.

    At gamma = 1 every recurrent class is solved on its own; with several of them and ``follow_initial`` the
    limit distribution from ``initial`` is their mixture that the chain ends up in.
    """
    if gamma < 1.0:
        if initial is None:
            raise ValueError("gamma < 1 needs an initial distribution")
        distribution, outcome = _discounted(chain, gamma, initial, method, controls)
        return Distributions(distribution, (distribution,), outcome)
    rates, _ = chain.extended()
    return distributions_of_rates(rates, chain.n, initial if follow_initial else None, method, controls)


def distributions_of_rates(
    rates: csr_array, n_states: int, initial: Floats | None, method: str, controls: Controls
) -> Distributions:
    """The distribution of every recurrent class of rates between nodes: states first, then hubs.

    Each state's share of time, ``x_j sum_k W_jk = sum_i x_i W_ij``: rows need not sum to 1. From ``initial``,
    the mixture that the chain ends up in.
    """
    classes = find_classes(rates)
    outcomes = [solve_class(rates, nodes, n_states, method, controls) for nodes in classes.recurrent]
    distributions = []
    for nodes, outcome in zip(classes.recurrent, outcomes, strict=True):
        distribution = np.zeros(rates.shape[0])
        distribution[nodes] = outcome.distribution
        distributions.append(distribution[:n_states] / distribution[:n_states].sum())
    worst = combined(outcomes)
    if len(distributions) == 1:
        return Distributions(distributions[0], (distributions[0],), worst)
    if initial is None:
        return Distributions(None, tuple(distributions), worst)
    share, found = _absorption(rates, classes, initial, method, controls)
    outcome = combined([*outcomes, found])
    if worst.error is not None and found.error is not None:
        outcome.error = worst.error + found.error  # relative errors of the two factors of every entry
    mixture = np.zeros(n_states)
    for weight, distribution in zip(share, distributions, strict=True):
        mixture += weight * distribution
    return Distributions(mixture, tuple(distributions), outcome)


def solve_class(
    rates: csr_array, nodes: NDArray[Any], n_states: int, method: str, controls: Controls,
    accepted: float = 0.0,
) -> Outcome:  # fmt: skip
    """Solve one recurrent class; what fails there is named by its number in the whole chain."""
    n_hubs = int((nodes >= n_states).sum())
    try:
        return solve_irreducible(submatrix(rates, nodes), n_hubs, method, controls, accepted=accepted)
    except EliminationError as error:
        raise error.renumbered(nodes) from None


def _discounted(
    chain: TransitionRows, gamma: float, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    outcome = solve_discounted(chain, gamma, initial, method, controls)
    if outcome is not None:
        return outcome.distribution, outcome
    rates, feeds = chain.extended(gamma, initial)
    (nodes,) = find_classes(rates).recurrent
    # Sweeps of the chain itself were too slow, or rounding forbids them: 1 - gamma is too small.
    accepted = MODERATE_FLOPS if sweeps_goal(gamma, controls.tol) > 0.0 else QUICK_FLOPS
    outcome = solve_class(rates, nodes, chain.n, method, controls, accepted)
    visits = np.zeros(rates.shape[0])
    visits[nodes] = outcome.distribution
    # Every restart is one visit to the initial distribution: (1 - gamma) visits per step, absorbed
    # mass included.
    distribution = (1.0 - gamma) * visits[: chain.n] / float(visits @ feeds)
    absorbing = chain.absorbed > 0.0
    if outcome.error is not None and absorbing.any():
        # Shares that end are what rows fall short of 1: the smaller, the fewer of their digits are right.
        outcome.error += 2.0 * float(np.finfo(float).eps / feeds[: chain.n][absorbing].min())
    return distribution, outcome


def _absorption(
    rates: csr_array, classes: Classes, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    """Probability of ending up in each recurrent class from ``initial``, and how it was found.

    Each class is collapsed to one node that steps to a hub, the last node, which restarts from ``initial``;
    the visits to these nodes under the stationary distribution of that chain are in proportion to the
    probabilities.
    """
    from scipy import sparse

    n, transient, n_classes = rates.shape[0], classes.transient, len(classes.recurrent)
    hub = transient.size + n_classes
    place = np.empty(n, dtype=np.int64)
    place[transient] = np.arange(transient.size)
    for number, nodes in enumerate(classes.recurrent):
        place[nodes] = transient.size + number
    collapse = sparse.csr_array((np.ones(n), (np.arange(n), place)), shape=(n, hub + 1))
    to_hub = (np.ones(n_classes), np.full(n_classes, hub), np.arange(n_classes + 1))
    from_hub = np.bincount(place[: initial.size], initial, hub + 1)
    ends = [sparse.csr_array(to_hub, shape=(n_classes, hub + 1)), sparse.csr_array(from_hub[None, :])]
    collapsed = sparse.vstack([rates[transient] @ collapse, *ends], format="csr")
    (nodes,) = find_classes(collapsed).recurrent
    outcome = solve_irreducible(submatrix(collapsed, nodes), n_hubs=1, method=method, controls=controls)
    visits = np.zeros(hub + 1)
    visits[nodes] = outcome.distribution
    ended = visits[transient.size : hub]
    return ended / ended.sum(), outcome


# -- one irreducible chain -----------------------------------------------------------------------------------


def solve_irreducible(
    rates: csr_array, n_hubs: int, method: str, controls: Controls, accepted: float = 0.0
) -> Outcome:
    """Stationary distribution (up to scale) of an irreducible chain over nodes; its last ``n_hubs`` are
    hubs. An elimination of up to ``accepted`` operations is made before anything is iterated."""
    n = rates.shape[0]
    if n == 1:
        return Outcome(np.ones(1), "gth", "a single state", converged=True, error=0.0)
    with watch(controls) as monitor:
        try:
            outcome = _run(rates, n_hubs, method, controls, monitor, accepted)
            if n_hubs:
                outcome.residual = None  # of the nodes, hubs included: not that of the states
        except InterruptedError:
            # An elimination has nothing to show before its end.
            outcome = Outcome(np.full(n, 1.0 / n), "elimination", "ended early", converged=False)
    if not outcome.converged:
        outcome.stopped = monitor.stopped
    return outcome


def _run(
    rates: csr_array, n_hubs: int, method: str, controls: Controls, monitor: Monitor, accepted: float
) -> Outcome:
    n = rates.shape[0]
    if method == "gth" and 8 * n * n > LARGEST_FACTOR:
        raise ValueError(
            f'method="gth" would need {8e-9 * n * n:,.0f} GB for {n:,} states; use method="auto"'
        )
    if method == "gth" or (method == "auto" and n <= DENSE_NODES):
        return _dense(rates, monitor)
    if method == "elimination":
        outcome = _eliminate(rates, n_hubs, np.inf, controls, monitor, "as asked")
        assert outcome is not None
        return outcome
    if method in ("gauss-seidel", "aggregation"):
        outcome = _iterate(rates, controls, monitor)
        instead = _INSTEAD[outcome.reason].format(method)
        return replace(outcome, reason="as asked" if outcome.method == method else instead)
    return _automatic(rates, n_hubs, controls, monitor, accepted)


_INSTEAD = {
    "dense": "method={!r} eliminates chains of so few states",
    "sweeps": "method={!r} begins with sweeps, and ended with them",
    "blocks": "method={!r} foresaw too many sweeps; the chain falls apart into nearly separate blocks",
    "multilevel": "method={!r} foresaw too many sweeps",
}
"""Why an iteration ended as another one than was asked for, by what it ended with."""


def _automatic(
    rates: csr_array, n_hubs: int, controls: Controls, monitor: Monitor, accepted: float
) -> Outcome:
    """Elimination where it is cheap, sweeps where the chain mixes, blocks where it nearly falls apart."""
    n = rates.shape[0]
    if n <= FEW_NODES:
        accepted = max(accepted, QUICK_FLOPS)
    if accepted > 0.0:
        why = "sweeps were too slow" if accepted > QUICK_FLOPS else f"{n:,} nodes, little fill"
        outcome = _eliminate(rates, n_hubs, accepted, controls, monitor, why)
        if outcome is not None:
            return outcome
    from lingendice.solvers.aggregation import plan

    found = plan(*csr_arrays(rates), tol=controls.tol, threads=controls.threads, monitor=monitor)
    if found.method == "direct" and accepted < MODERATE_FLOPS:
        why = "slow mixing and moderate fill"
        outcome = _eliminate(rates, n_hubs, MODERATE_FLOPS, controls, monitor, why)
        if outcome is not None:
            return outcome
    why = {
        "sweeps": f"mixes well: about {found.predicted_sweeps:.0f} further sweeps foreseen",
        "aggregation": f"falls apart into {found.blocks:,} nearly separate blocks",
        "direct": "slow mixing and much fill",
        "ended": "ended early",
    }[found.method]
    iterated = replace(_iterate(rates, controls, monitor, found), reason=why)
    if iterated.converged or monitor.stopped is not None:
        return iterated
    why = "the iterations did not settle"
    return _eliminate(rates, n_hubs, PATIENT_FLOPS, controls, monitor, why) or iterated


def _dense(rates: csr_array, monitor: Monitor) -> Outcome:
    from lingendice.kernels.gth_dense import gth_dense

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


def analyzed(rates: csr_array, n_hubs: int, accepted: float, monitor: Monitor) -> Elimination | None:
    """An elimination of at most ``accepted`` operations; None where it takes more, or where its factor is too
    large for memory, unless any is accepted."""
    from lingendice.solvers.elimination import Elimination

    n = rates.shape[0]
    found = Elimination.analyze(
        rates.indptr, rates.indices, n, n_hubs, data=rates.data, max_flops=accepted, monitor=monitor
    )
    fits = accepted == np.inf or 8 * found.fill <= LARGEST_FACTOR
    return found if found.complete and fits else None


def _eliminate(
    rates: csr_array, n_hubs: int, accepted: float, controls: Controls, monitor: Monitor, reason: str
) -> Outcome | None:
    factor = analyzed(rates, n_hubs, accepted, monitor)
    if factor is None:
        return None
    try:
        factor.factorize(rates.data, keep_rows=False, threads=controls.threads, monitor=monitor)
    except MemoryError as failure:
        if accepted < np.inf:
            return None
        raise ValueError(
            f'method="elimination" needs more memory than there is ({failure}): its factor alone takes '
            f'{8e-9 * factor.fill:,.1f} GB; use method="auto"'
        ) from None
    error = direct_error(rates.shape[0])
    return Outcome(factor.stationary(monitor), "elimination", reason, converged=True, error=error)


def _iterate(rates: csr_array, controls: Controls, monitor: Monitor, found: Plan | None = None) -> Outcome:
    from lingendice.solvers.aggregation import solve_stationary

    return solve_stationary(
        *csr_arrays(rates), tol=controls.tol, threads=controls.threads, monitor=monitor, plan=found
    )


def sweeps_goal(gamma: float, tol: float) -> float:
    """What rounding leaves of the tolerance, a little less: the residual is measured again elsewhere."""
    return 0.9 * tol - error_bound(0.0, gamma)


def solve_discounted(
    chain: TransitionRows, gamma: float, initial: Floats, method: str, controls: Controls
) -> Outcome | None:
    """Distribution for gamma < 1 by sweeps; None where elimination of the restarting chain is better."""
    if method in ("gth", "elimination", "aggregation") or (method == "auto" and chain.n <= DENSE_NODES):
        return None
    goal = sweeps_goal(gamma, controls.tol)
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
    outcome = Outcome(
        distribution=result.solution,
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
        rate = float(result.solution @ chain.restarts(gamma))
        outcome.distribution = (1.0 - gamma) * result.solution / rate
        outcome.residual = None
    return outcome


# -- the short way for a plain dense chain -------------------------------------------------------------------


LARGEST_FULL = 1000
"""States up to which dense elimination of a full matrix is the fastest exact method."""


def solve_small(matrix: NDArray[Any], gamma: float, tol: float) -> Outcome | None:
    """Solve an irreducible dense chain, or return None for the long way to solve or to complain.

    The distribution is over states, the error and the residual are those to state.
    """
    from lingendice.kernels.gth_dense import dense_residual, gth_dense, prepare_dense

    n = matrix.shape[0]
    if n != matrix.shape[1] or not 0 < n <= LARGEST_FULL or matrix.dtype not in _PLAIN_DTYPES:
        return None
    whole, tolerance = matrix.dtype.kind in "iu", row_sum_tolerance(matrix.dtype)
    if matrix.dtype.itemsize != 8 or not matrix.flags.c_contiguous:
        matrix = np.ascontiguousarray(matrix, dtype=np.int64 if whole else np.float64)
    ok, rates, totals = prepare_dense(matrix, gamma, float(LARGEST_EXACT_COUNT) if whole else np.inf)
    if not ok:
        return None
    off = 0.0 if whole else np.abs(totals - 1.0).max()
    if off > tolerance and (off <= MISTAKEN or np.abs(matrix.sum(axis=0) - 1.0).max() <= tolerance):
        return None  # rows or columns may be probabilities, but rows do not sum to 1: the long way says so
    nodes, trusted = gth_dense(rates)
    if not trusted:
        return None
    distribution = nodes if gamma == 1.0 else nodes[:n] / nodes[:n].sum()
    residual = dense_residual(rates, distribution, gamma)
    error, kind = stated_error(direct_error(rates.shape[0]), "direct", residual, gamma, tol)
    return Outcome(
        distribution, "gth", "a small dense chain", True, error=error, error_kind=kind, residual=residual
    )


_PLAIN_DTYPES = frozenset(np.dtype(kind) for kind in ("f8", "f4", "i8", "i4", "i2", "i1", "u4", "u2", "u1"))
