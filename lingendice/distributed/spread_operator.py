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
from lingendice.distributed.rounds import RoundTerms, state_values, stationary
from lingendice.model.compose import compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.model.transition_rows import find_classes
from lingendice.results.build import exact_solution
from lingendice.results.remote_solution import SpreadSolution
from lingendice.results.solution import Solution
from lingendice.solvers.control import Controls, Monitor, Outcome, Stopped, combined, watch
from lingendice.solvers.stationary import Distributions

if TYPE_CHECKING:
    from lingendice.distributed.counts import DistributedCounts
    from lingendice.solvers.request import Request


def solve_spread(counts: DistributedCounts, request: Request) -> Solution:
    """The exact equation for one request."""
    request = _checked(counts, request)
    operator = SpreadOperator.of(counts, request.problem)
    with interruptible(request.on_interrupt) as work:
        found = operator.stationary(request.limits, request.follows_initial)
        work.solution = solution = exact_solution(
            operator, found, request.limits, request.reward_range,
            residual=found.outcome.residual, kind=SpreadSolution,
        )  # fmt: skip
    return solution


def _checked(counts: DistributedCounts, request: Request) -> Request:
    """Refuse what is for one machine; a policy table that is a Dask array is brought here."""
    require_choice("method", request.method.name, ("auto",))
    advice = "use counts.gather() and solve on one machine"
    problem, objective = request.problem, request.objective
    given = {
        "a ridge": objective.ridge is not None and objective.ridge != 0,
        "clone=": problem.clone is not None and problem.clone != 0,
        "features=": objective.features is not None or objective.dual_features is not None,
        "bound=": objective.bound is not None,
        "horizon=": problem.horizon is not None,
        "device='cuda'": request.method.device != "cpu",
        "a comparison of policies": holds_several(problem.policy, counts.vectors),
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

    counts: Any
    """A :class:`DistributedCounts`."""
    vectors: Any = None
    """Its chain without entries."""
    key: str = ""
    """Names what the workers computed from it."""

    @classmethod
    def of(cls, counts: DistributedCounts, choices: Any) -> SpreadOperator:
        """Compose from the vectors of the counts."""
        composed = compose(counts.vectors, choices)
        held = {each.name: getattr(composed, each.name) for each in fields(EmpiricalOperator)}
        # Whoever reaches for entries gets None, and not an empty matrix.
        nothing: Any = None
        rows = replace(composed.rows, indptr=nothing, indices=nothing, weight=nothing)
        held |= {"counts": counts, "rows": rows}
        return cls(**held, vectors=composed.chain, key=uuid.uuid4().hex)

    @property
    def chain(self) -> Any:  # type: ignore[override]
        """Not here."""
        return self.counts.indptr  # says why not

    # -- what the parts are told ---------------------------------------------------------------------------

    def _by_part(self, *given: Any) -> list[tuple[Any, ...]]:
        """Arguments by part: arrays over states or cells are cut, all else is for every part."""
        edges = itertools.pairwise(self.counts.edges)
        return [tuple(_cut(each, *part, self.n_states) for each in given) for part in edges]

    def terms(self, limits: Controls, start: Floats) -> list[RoundTerms]:
        """The equation, by part."""
        chain, gamma = self.vectors, self.gamma
        base = 0.0 if gamma == 1.0 or self.initial is None else (1.0 - gamma) * self.initial
        by_part = self._by_part(
            gamma, limits.tol, limits.max_iter, chain.keep, base, chain.restarts(gamma), chain.out,
            chain.distribution.T, start,
        )  # fmt: skip
        return [RoundTerms(*part) for part in by_part]

    def _run(self, steps: Callable[[Crew], Any], monitor: Monitor) -> Any:
        """Steps over the prepared parts, begun anew where a worker is lost."""

        def on_prepared(crew: Crew) -> Any:
            # Nothing is made anew but where the policy or a part is another.
            key, weights = "counts", None
            if self.policy is not None:
                key, weights = self.key, self.policy.ravel() * self.rows.keep
            crew.phase(Part.prepare, self._by_part(key, weights))
            return steps(crew)

        return self.counts.crew.run(on_prepared, monitor)

    def _asked(self, steps: Callable[[Crew], Any]) -> Any:
        """The same for what is computed when asked for, and has nothing to show before its end."""
        with watch(Controls()) as monitor:
            try:
                return self._run(steps, monitor)
            except Stopped:
                raise KeyboardInterrupt from None

    # -- phases --------------------------------------------------------------------------------------------

    def expected_next(self, state_values: Floats) -> Floats:
        """K applied to values over states."""
        arguments = self._by_part(state_values)
        counted = np.concatenate(self._asked(lambda crew: crew.phase(Part.expected_next, arguments)))
        return self.rows.scale * counted + self.rows.out @ (self.rows.distribution @ state_values)

    def state_values(self, reward: Floats, distribution: Floats, tol: float) -> Floats:
        """V = r + gamma P V; the bias at gamma = 1."""
        goal = tol * max(float(np.abs(reward).max()), np.finfo(float).tiny)
        if self.gamma == 1.0:
            reward = reward - distribution @ reward
        terms = self.terms(Controls(tol=tol), np.zeros(self.n_states))
        by_part = self._by_part(reward, distribution, goal)
        arguments = [(term, *rest) for term, rest in zip(terms, by_part, strict=True)]
        found = self._asked(lambda crew: crew.phase(state_values, arguments))
        values, (residual, *_) = zip(*found, strict=True)
        if not residual <= 1e3 * goal:
            raise ValueError(
                f"the values of states did not settle (residual {residual:.1e}): the chain is too slow for "
                "passes over a cluster; solve counts.gather() on one machine"
            )
        return np.concatenate(values)

    def entry_sums(
        self, values: Floats, ending: float, tau: Floats, total: float, share: Floats, shift: Floats,
        reward: Floats | None,
    ) -> Floats:  # fmt: skip
        """Sums of squared influences over all entries, as they count and as they are pooled."""
        arguments = self._by_part(values, ending, tau, total, share, shift, reward)
        return np.sum(self._asked(lambda crew: crew.phase(Part.influence, arguments)), axis=0)

    # -- stationary distributions --------------------------------------------------------------------------

    def stationary(self, limits: Controls, follow_initial: bool) -> Distributions:
        """Every stationary distribution, with the L1 residual of the worst."""
        starts: list[Floats] = []

        def steps(crew: Crew) -> list[Outcome]:
            if self.gamma < 1.0:
                assert self.initial is not None
                starts[:] = [self.initial]
            else:
                marks = [np.bincount(states, minlength=self.n_states) for states in self._recurrent(crew)]
                starts[:] = [mark / mark.sum() for mark in marks]
                if len(starts) > 1 and follow_initial:
                    raise ValueError(
                        f"the chain has {len(starts)} recurrent classes, and the limit from initial= is not "
                        "computed on a cluster; leave initial= out and read sol.distributions, or solve "
                        "counts.gather()"
                    )
            return [self._solve_from(crew, start, limits) for start in starts]

        with watch(limits) as monitor:
            try:
                outcomes = self._run(steps, monitor)
            except Stopped:
                start = starts[0] if starts else np.full(self.n_states, 1.0 / self.n_states)
                outcomes = [Outcome(start, "power", "ended early", False, error=math.inf, residual=2.0)]
            for outcome in outcomes:
                if not outcome.converged and outcome.stopped is None:
                    outcome.stopped = monitor.stopped
        every = tuple(outcome.distribution for outcome in outcomes)
        worst = combined(outcomes)
        worst.residual = max(float(outcome.residual or 0.0) for outcome in outcomes)
        return Distributions(every[0] if len(every) == 1 else None, every, worst)

    def _solve_from(self, crew: Crew, start: Floats, limits: Controls) -> Outcome:
        found = crew.phase(stationary, [(term,) for term in self.terms(limits, start)])
        outcomes, sent = zip(*found, strict=True)
        x = np.concatenate([part.distribution for part in outcomes])
        lost = f", {crew.n_begun - 1} times begun again" if crew.n_begun > 1 else ""
        told = (
            f"{len(found)} parts on {len(set(crew.addresses))} workers, {sum(sent) / 1e6:,.3g} MB between "
            f"them{lost}"
        )
        return replace(outcomes[0], distribution=x if self.gamma < 1.0 else x / x.sum(), reason=told)

    def recurrent_classes(self) -> tuple[tuple[Any, ...], Any]:
        """The states of every recurrent class, and all others: for the audit."""
        found = self._asked(self._recurrent)
        transient = np.ones(self.n_states, bool)
        for states in found:
            transient[states] = False
        return tuple(found), np.flatnonzero(transient)

    def _recurrent(self, crew: Crew) -> list[Any]:
        """The states of every recurrent class, in the order of their first states.

        Components within parts are found there, and classes of the graph between components here.
        """
        from scipy.sparse import csr_array

        chain = self.vectors
        parts = crew.phase(Part.condense, self._by_part(chain.out, chain.distribution.T))
        n = parts[0].n_all + chain.n_hubs
        source, target = np.concatenate([part.edges for part in parts], axis=1)
        graph = csr_array((np.ones(source.size), (source, target)), shape=(n, n))
        graph.sum_duplicates()
        component = np.concatenate([part.component for part in parts])
        found = [np.flatnonzero(np.isin(component, nodes)) for nodes in find_classes(graph).recurrent]
        return sorted((states for states in found if states.size), key=lambda states: int(states[0]))


def _cut(value: Any, first: int, last: int, n_states: int) -> Any:
    """An array over states, or the cells of states, between two states; one number where all are the same."""
    if not isinstance(value, np.ndarray):
        return value
    per_state = len(value) // n_states
    part = value[first * per_state : last * per_state]
    if part.ndim == 1 and part.size and part[0] == part[-1] and (part == part[0]).all():
        return float(part[0])
    return part
