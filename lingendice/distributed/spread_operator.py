"""The operator of counts on a cluster: composed on the client, applied and solved on the workers."""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.by_label import holds_several
from lingendice.data.checks import Floats, NotAvailableYet, refuse_unknown, require_choice
from lingendice.data.interrupts import interruptible
from lingendice.distributed.cluster import Crew
from lingendice.distributed.part import Part
from lingendice.distributed.rounds import Terms, state_values, stationary
from lingendice.model.compose import compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.model.transition_rows import TransitionRows, find_classes
from lingendice.results.build import exact_solution
from lingendice.results.remote_solution import SpreadSolution
from lingendice.results.solution import Solution
from lingendice.solvers.control import Controls, Monitor, Outcome, Stopped, combined, watch
from lingendice.solvers.stationary import Distributions

if TYPE_CHECKING:
    from lingendice.distributed.counts import DistributedCounts
    from lingendice.solvers.request import Request

METHODS = ("auto",)


def solve_spread(counts: DistributedCounts, request: Request) -> Solution:
    """The exact equation for one request."""
    request = _checked(request)
    operator = SpreadOperator.of(counts, request.problem)
    with interruptible(request.on_interrupt) as work:
        found, residual = operator.stationary(request.limits, request.follows_initial)
        work.solution = solution = exact_solution(
            operator, found, request.limits, request.reward_range, residual=residual, kind=SpreadSolution
        )
    return solution


def _checked(request: Request) -> Request:
    """Refuse what is for one machine; a policy table that is a Dask array is brought here."""
    require_choice("method", request.method.name, METHODS)
    advice = "use counts.gather() and solve on one machine"
    problem, objective = request.problem, request.objective
    given = {
        "a ridge": objective.ridge is not None and objective.ridge != 0,
        "clone=": problem.clone is not None and problem.clone != 0,
        "features=": objective.features is not None,
        "horizon=": problem.horizon is not None,
        "device='cuda'": request.method.device != "cpu",
        "a comparison of policies": holds_several(problem.policy),
    }
    for name in (name for name, asked in given.items() if asked):
        raise NotAvailableYet(f"{name} for counts on a cluster", advice)
    request.require_exact_terms()
    refuse_unknown(request.method.options, ("on_interrupt",), "for this method")
    policy = request.problem.policy
    if hasattr(policy, "__dask_graph__"):
        request = request._replace(problem=request.problem._replace(policy=policy.compute()))
    return request


@dataclass(frozen=True, eq=False)
class SpreadOperator(EmpiricalOperator):
    """The operator of counts on a cluster: vectors here, rows there."""

    vectors: Any = None
    """Its chain without entries."""
    key: str = ""
    """Names what the workers computed from it."""

    @classmethod
    def of(cls, counts: DistributedCounts, choices: Any) -> SpreadOperator:
        """Compose from the vectors of the counts."""
        composed = compose(counts.without_rows(), choices)
        held = {each.name: getattr(composed, each.name) for each in fields(EmpiricalOperator)}
        held |= {"counts": counts, "rows": _without_entries(composed.rows)}
        return cls(**held, vectors=composed.chain, key=uuid.uuid4().hex)

    @property
    def chain(self) -> Any:  # type: ignore[override]
        """Not here."""
        return self.counts.indptr  # says why not

    @property
    def spread_counts(self) -> DistributedCounts:
        """The counts, as what they are."""
        held: Any = self.counts
        return held  # type: ignore[no-any-return]

    # -- what the parts are told ---------------------------------------------------------------------------

    def _slices(self, values: Any, per_state: int = 1) -> list[Any]:
        """A vector by part; a part where all entries are the same gets one number."""
        edges = np.array(self.spread_counts.edges) * per_state
        return [_short(values[first:last]) for first, last in itertools.pairwise(edges)]

    def terms(self, limits: Controls, start: Floats) -> list[Terms]:
        """The equation, by part."""
        chain, gamma, edges = self.vectors, self.gamma, self.spread_counts.edges
        base = np.zeros(1)
        if gamma < 1.0 and self.initial is not None:
            base = (1.0 - gamma) * self.initial
        bases = self._slices(base) if base.size == self.n_states else [0.0] * (len(edges) - 1)
        losses = self._slices(chain.restarts(gamma))
        keeps, starts = self._slices(chain.keep), self._slices(start)
        return [
            Terms(
                gamma, limits.tol, limits.max_iter, keeps[part], bases[part], losses[part],
                chain.out[first:last], chain.distribution[:, first:last], starts[part],
            )
            for part, (first, last) in enumerate(itertools.pairwise(edges))
        ]  # fmt: skip

    def _run(self, steps: Callable[[Crew], Any], monitor: Monitor) -> Any:
        """Steps over the prepared parts, begun anew where a worker is lost."""

        def on_prepared(crew: Crew) -> Any:
            weights: list[Any] = [None] * len(crew.addresses)
            key = "counts"
            if self.policy is not None:
                weights = self._slices(self.policy.ravel() * self.rows.keep, self.policy.shape[1])
                key = self.key
            # Nothing is made anew but where the policy or a part is another.
            crew.phase(Part.prepare, [(key, weight) for weight in weights], monitor)
            return steps(crew)

        return self.spread_counts.crew.run(on_prepared, monitor)

    # -- phases --------------------------------------------------------------------------------------------

    def _phase(self, function: Callable[..., Any], arguments: Any) -> list[Any]:
        """One phase by itself, for what a solution computes when asked."""
        with watch(Controls()) as monitor:
            try:
                found: list[Any] = self._run(lambda crew: crew.phase(function, arguments, monitor), monitor)
            except Stopped:
                raise KeyboardInterrupt from None
        return found

    def expected_next(self, state_values: Floats) -> Floats:
        """K applied to values over states."""
        counted = np.concatenate(
            self._phase(Part.expected_next, [(part,) for part in self._slices(state_values)])
        )
        return self.rows.scale * counted + self.rows.out @ (self.rows.distribution @ state_values)

    def state_values(self, reward: Floats, distribution: Floats, tol: float) -> Floats:
        """V = r + gamma P V; the bias at gamma = 1."""
        size = max(float(np.abs(reward).max()), np.finfo(float).tiny)
        if self.gamma == 1.0:
            reward = reward - distribution @ reward
        goal = tol * size
        terms = self.terms(Controls(tol=tol), np.zeros(self.n_states))
        arguments = [
            (term, earned, mu, goal)
            for term, earned, mu in zip(terms, self._slices(reward), self._slices(distribution), strict=True)
        ]
        found = self._phase(state_values, arguments)
        if not found[0].residual <= 1e3 * goal:
            raise ValueError(
                f"the values of states did not settle (residual {found[0].residual:.1e}): the chain is too "
                "slow for passes over a cluster; solve counts.gather() on one machine"
            )
        return np.concatenate([part.values for part in found])

    def entry_sums(
        self, values: Floats, ending: float, tau: Floats, total: float, share: Floats, shift: Floats,
        reward: Floats | None,
    ) -> Floats:  # fmt: skip
        """Sums of squared influences over all entries, as they count and as they are pooled."""
        per_state = self.n_cells // self.n_states
        taus, shares, shifts = (self._slices(each, per_state) for each in (tau, share, shift))
        rewards = [None] * len(taus) if reward is None else self._slices(reward, per_state)
        by_part = zip(self._slices(values), taus, shares, shifts, rewards, strict=True)
        arguments = [(v, ending, t, total, *rest) for v, t, *rest in by_part]
        return np.sum(self._phase(Part.influence, arguments), axis=0)

    # -- stationary distributions --------------------------------------------------------------------------

    def stationary(self, limits: Controls, follow_initial: bool) -> tuple[Distributions, float]:
        """Every stationary distribution, and the L1 residual of the worst."""
        begun: list[Floats] = []
        with watch(limits) as monitor:

            def steps(crew: Crew) -> list[Outcome]:
                starts = [self.initial] if self.gamma < 1.0 else self._starts(crew, monitor)
                begun[:] = starts  # type: ignore[assignment]
                return [self._solve_from(crew, start, limits, monitor) for start in begun]

            try:
                outcomes = self._run(steps, monitor)
            except Stopped:
                start = begun[0] if begun else np.full(self.n_states, 1.0 / self.n_states)
                outcomes = [Outcome(start, "power", "ended early", converged=False, error=math.inf,
                                    residual=2.0)]  # fmt: skip
            for outcome in outcomes:
                if not outcome.converged and outcome.stopped is None:
                    outcome.stopped = monitor.stopped
        every = tuple(outcome.distribution for outcome in outcomes)
        residual = max(float(outcome.residual or 0.0) for outcome in outcomes)
        if len(every) > 1 and follow_initial:
            raise ValueError(
                f"the chain has {len(every)} recurrent classes, and the limit from initial= is not computed "
                "on a cluster; leave initial= out and read sol.distributions, or solve counts.gather()"
            )
        return Distributions(every[0] if len(every) == 1 else None, every, combined(outcomes)), residual

    def _solve_from(self, crew: Crew, start: Floats, limits: Controls, monitor: Monitor) -> Outcome:
        found = crew.phase(stationary, [(term,) for term in self.terms(limits, start)], monitor)
        outcomes, sent = zip(*found, strict=True)
        x = np.concatenate([part.distribution for part in outcomes])
        lost = f", {crew.n_begun - 1} times begun again" if crew.n_begun > 1 else ""
        told = (
            f"{len(found)} parts on {len(set(crew.addresses))} workers, {sum(sent) / 1e6:,.3g} MB between "
            f"them{lost}"
        )
        return replace(outcomes[0], distribution=x if self.gamma < 1.0 else x / x.sum(), reason=told)

    def _starts(self, crew: Crew, monitor: Monitor) -> list[Floats]:
        """For every recurrent class the uniform distribution over its states."""
        marks = [np.bincount(states, minlength=self.n_states) for states in self._recurrent(crew, monitor)]
        return [mark / mark.sum() for mark in marks]

    def recurrent_classes(self) -> tuple[tuple[Any, ...], Any]:
        """The states of every recurrent class, and all others: for the audit."""
        with watch(Controls()) as monitor:
            found = self._run(lambda crew: self._recurrent(crew, monitor), monitor)
        transient = np.ones(self.n_states, bool)
        for states in found:
            transient[states] = False
        return tuple(found), np.flatnonzero(transient)

    def _recurrent(self, crew: Crew, monitor: Monitor) -> list[Any]:
        """The states of every recurrent class, in the order of their first states."""
        component, classes = self._components(crew, monitor)
        found = [np.flatnonzero(np.isin(component, nodes)) for nodes in classes.recurrent]
        return sorted((states for states in found if states.size), key=lambda states: int(states[0]))

    def _components(self, crew: Crew, monitor: Monitor) -> tuple[Any, Any]:
        """The component of every state within its part, and the classes of the graph between components."""
        from scipy.sparse import csr_array

        chain, edges = self.vectors, self.spread_counts.edges
        arguments = [
            (chain.out[first:last], chain.distribution[:, first:last])
            for first, last in itertools.pairwise(edges)
        ]
        parts = crew.phase(Part.condense, arguments, monitor)
        n = parts[0].n_all + chain.n_hubs
        source, target = np.concatenate([part.edges for part in parts], axis=1)
        graph = csr_array((np.ones(source.size), (source, target)), shape=(n, n))
        graph.sum_duplicates()
        return np.concatenate([part.component for part in parts]), find_classes(graph)


class _RowsElsewhere(TransitionRows):
    """Rows of which only the vectors are here."""

    @property
    def n(self) -> int:
        return self.total.size


def _without_entries(rows: TransitionRows) -> TransitionRows:
    """The same vectors; whoever reaches for entries gets None, and not an empty matrix."""
    nothing: Any = None
    return _RowsElsewhere(nothing, nothing, nothing, rows.total, rows.keep, rows.out, rows.distribution)


def _short(values: Any) -> Any:
    """One number where all are the same."""
    if values.size and values.ndim == 1 and values[0] == values[-1] and (values == values[0]).all():
        return float(values[0])
    return values
