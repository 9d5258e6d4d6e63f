"""Rounds for slow chains: clusters of states balanced exactly, parts solved exactly, iterates combined."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.kernels.chains import aggregation_steps, sweeps
from lingendice.kernels.chains.gth_dense import gth_dense
from lingendice.solvers.control import Controls, error_bound
from lingendice.solvers.gauss_seidel import Extrapolation
from lingendice.solvers.pull_system import row_ranges

if TYPE_CHECKING:
    from lingendice.distributed.rounds import Rounds

CLUSTERS = 400
"""Clusters of all states, up to twice as many: the chain between them is solved densely on every part."""
_MOST = 300  # rounds at most
_SETTLED = 0.1  # share of the tolerance below which a change is worth a verdict
_CAUTION = 4.0
_ROUNDING = 4e-14
DEPTH = 10
"""Rounds that an extrapolation combines."""
_LOOKED = 3  # rounds without extrapolation that show the rate
_REST = 0.02  # share of the tolerance below which changes are those of inexact solves within parts
_STALLED = 40  # rounds without a new least change


class ClusterRounds:
    """Goes on from the x of plain rounds."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.part, self.mesh = rounds, rounds.part, rounds.mesh
        self.seen_rate = 0.5
        rounds.in_single, rounds.step = False, 1.0
        self.probability = self.part.own_matrix(np.broadcast_to(rounds.c, (self.part.size,)))
        self.target_label, self.n_clusters = self._clusters()
        own = slice(*self.part.pull.cuts[self.part.index : self.part.index + 2])
        self.label = self.target_label[own]
        base = np.broadcast_to(rounds.base, self.label.shape)
        known = np.stack([base, *rounds.terms.distribution])
        sums: Floats = np.stack([np.bincount(self.label, row, self.n_clusters) for row in known])  # type: ignore[assignment]
        self.base, *self.distribution = self.mesh.total(sums)

    def _clusters(self) -> tuple[Any, int]:
        """States joined along their strongest inflows, across parts; the cluster of every target.

        Takes 12 bytes a state of the whole on every part, for its first pass.
        """
        pull, mesh, index = self.part.pull, self.mesh, self.part.index
        first, last = pull.cuts[index], pull.cuts[index + 1]
        label = pull.targets.astype(np.uint32)
        mass = np.zeros(label.size)
        mass[first:last] = self.rounds.c * self.rounds.x
        sources = pull.sources.astype(np.uint32) + np.uint32(first)
        weights = pull.weights.astype(np.float64) if pull.weights.size else np.ones(sources.size)
        count = self.part.block.n_states
        sizes, most = np.ones(count, np.int64), max(2, 4 * count // CLUSTERS)
        while count > 2 * CLUSTERS:
            best, origin = np.zeros(count), np.arange(count, dtype=np.uint32)
            aggregation_steps.strongest_inflows(
                pull.indptr, sources, weights, mass, label, 0, label.size, best, origin
            )
            for strength, source in mesh.gather(best.copy(), origin.copy()):
                stronger = strength > best
                best[stronger], origin[stronger] = strength[stronger], source[stronger]
            joined = aggregation_steps.join_strongest(origin, most, CLUSTERS, sizes, label)
            if joined == count and most > sizes.size:
                # Nothing flows between what is left: neighbors by number are as good as any.
                label = (label.astype(np.int64) * CLUSTERS // count).astype(np.uint32)
                joined = CLUSTERS
            most = most if 2 * joined < count else 4 * most
            count = joined
        return label.astype(np.int64), count

    # -- clusters ------------------------------------------------------------------------------------------

    def balance(self) -> float:
        """Rescale x cluster by cluster as the chain between clusters has it; returns the largest change."""
        rounds, pull, n = self.rounds, self.part.pull, self.n_clusters
        y = rounds.c * rounds.x
        flow: Any = np.zeros(n * n)
        for first, last in row_ranges(pull.indptr, 0, pull.cuts[-1]):
            entries = slice(int(pull.indptr[first]), int(pull.indptr[last]))
            sources = pull.sources[entries]
            to = np.repeat(self.target_label[first:last], np.diff(pull.indptr[first : last + 1]))
            moved = y[sources] * pull.weights[entries] if pull.weights.size else y[sources]
            flow += np.bincount(self.label[sources] * n + to, moved, n * n)
        sums = [rounds.loss * rounds.x, rounds.x, *(rounds.x * column for column in rounds.out.T)]
        by_cluster = [np.bincount(self.label, each, n) for each in sums]
        summed = self.mesh.total(np.concatenate([flow, *by_cluster]))
        flow, (lost, mass, *leaving) = summed[: n * n].reshape(n, n), summed[n * n :].reshape(-1, n)
        for each, where in zip(leaving, self.distribution, strict=True):
            flow += np.outer(each, where)
        factor = _factors(flow, lost, mass, self.base, rounds.gamma)
        if factor is None:
            return math.inf
        rounds.x *= factor[self.label]
        return float(np.abs(factor - 1.0).max())

    def confirms(self) -> bool:
        """Whether the chain between clusters changes nothing that the tolerance would notice."""
        rounds = self.rounds
        change = self.balance()
        rounds.found.error += 2.0 * change
        rounds.y[:] = rounds.c * rounds.x
        return rounds.found.error <= rounds.terms.tol

    # -- parts ---------------------------------------------------------------------------------------------

    def exits(self) -> Floats:
        """What leaves the part from each of its states: to other parts, to distributions, for good."""
        pull, rounds, index = self.part.pull, self.rounds, self.part.index
        away = np.zeros(self.part.size)
        ones = np.ones(pull.cuts[-1])
        for first, last in ((0, pull.cuts[index]), (pull.cuts[index + 1], pull.cuts[-1])):
            sweeps.push_rows(pull.indptr, pull.sources, pull.weights, ones[first:last], first, last, away)
        loss = 0.0 if rounds.gamma == 1.0 else rounds.loss
        total: Floats = rounds.c * away + rounds.out.sum(axis=1) + loss
        return total

    def solve_part(self, inflow: Floats, leaving: Floats) -> Floats:
        """x = inflow + P' x over the part's own states, exactly: visits per entry from outside."""
        from scipy import sparse

        from lingendice.model.transition_rows import find_classes, submatrix
        from lingendice.solvers.stationary import solve_irreducible

        size, entering = self.part.size, float(inflow.sum())
        controls = Controls(tol=max(1e-13, 0.1 * _REST * self.rounds.terms.tol), threads=1)
        inner = self.probability.T.tocsr()
        if entering == 0.0:
            # The whole class lies in this part, or none of it.
            nodes = np.flatnonzero(self.rounds.x > 0.0)
            alone = np.zeros(size)
            if nodes.size:
                found = solve_irreducible(submatrix(inner, nodes), 0, "auto", controls)
                alone[nodes] = found.distribution / found.distribution.sum() * self.rounds.x.sum()
            return alone
        edge = sparse.csr_array(leaving[:, None])
        rates = sparse.block_array(
            [[inner, edge], [sparse.csr_array(inflow[None, :] / entering), None]], format="csr"
        )
        outside = [nodes for nodes in find_classes(rates).recurrent if nodes[-1] == size]
        if not outside:
            raise ValueError("a part of the chain cannot be left: its rows do not sum to one")
        (nodes,) = outside
        found = solve_irreducible(submatrix(rates, nodes), 1, "auto", controls)
        visits = np.zeros(size + 1)
        visits[nodes] = found.distribution
        solved: Floats = visits[:size] / visits[size] * entering
        return solved

    def run(self) -> str:
        """Rounds until settled, stalled or stopped; the last ones are plain and tell the residual."""
        rounds, found, mesh = self.rounds, self.rounds.found, self.mesh
        found.method = "aggregation"
        leaving, tol = self.exits(), rounds.terms.tol
        mixer: Extrapolation | None = None
        plain: list[float] = []
        least, since = math.inf, 0
        for _ in range(_MOST):
            before = rounds.x.copy()
            self.balance()
            rounds.y[:] = rounds.c * rounds.x
            rounds.lost, rounds.mass = float(np.sum(rounds.loss * rounds.x)), float(rounds.x.sum())
            drawn, facts = rounds.push(from_others=True)
            rounds.x[:] = self.solve_part(rounds.base + rounds.scale(facts) * drawn, leaving)
            found.rounds += 1
            change = self._change(before)
            mesh.tell(found.rounds, change)
            if facts[4] > 0.0 or found.rounds >= (rounds.terms.max_rounds or math.inf):
                self._finish()
                return "stopped"
            since = 0 if change < least else since + 1
            least = min(least, change)
            if since > _STALLED:
                self._finish()
                return "stalled"
            plain.append(change)
            if len(plain) == _LOOKED and mixer is None and change > _SETTLED * tol:
                # Extrapolation hides the rate that the verdict needs: it is looked at before.
                self.seen_rate = min(max(self.seen_rate, _slowest(plain)), 0.98)
                mixer = Extrapolation(before, DEPTH, period=1, power=1.0, total=mesh.total)
            if mixer is not None and change > _SETTLED * tol:
                mixer.observe(rounds.x)
            elif mixer is not None:
                mixer, plain = None, []
            elif len(plain) >= _LOOKED and self._verdict(plain):
                return "settled"
        self._finish()
        return "stalled"

    def _change(self, before: Floats) -> float:
        x = self.rounds.x
        known = x > 0.0
        own = float((np.abs(x[known] - before[known]) / x[known]).max(initial=0.0))
        return max(float(held[0][0]) for held in self.mesh.gather(np.array([own])))

    def _verdict(self, plain: list[float]) -> bool:
        """From rounds without extrapolation the error that is left, from plain ones the residual."""
        found, rounds = self.rounds.found, self.rounds
        recent = plain[-_LOOKED:]
        at_rest = max(recent) <= _REST * rounds.terms.tol
        rate = self.seen_rate if at_rest else max(_slowest(recent), 0.05)
        if rate >= 1.0:
            return False
        error = _CAUTION * (max(recent) * rate / (1.0 - rate) + _ROUNDING)
        self._finish()
        found.condition = 1.0 / (1.0 - rate)
        if rounds.gamma == 1.0:
            found.error = error
        return found.error <= rounds.terms.tol

    def _finish(self) -> None:
        """Two plain rounds: the second knows the residual of the x that the first one made."""
        rounds, found = self.rounds, self.rounds.found
        rounds.y[:] = rounds.c * rounds.x
        rounds.lost, rounds.mass = float(np.sum(rounds.loss * rounds.x)), float(rounds.x.sum())
        rounds.round()
        facts = rounds.round()
        change = float(facts[0])
        found.residual = change
        # Proven at gamma < 1; at gamma = 1 the last change says little of the error.
        unknown = math.inf if facts[1] > 0.0 else 0.0
        found.error = error_bound(change, rounds.gamma) if rounds.gamma < 1.0 else unknown
        found.history.append(found.error)


def _slowest(changes: list[float]) -> float:
    """The largest share of a change that the next one was."""
    return max(now / max(last, _ROUNDING) for last, now in itertools.pairwise(changes))


def _factors(flow: Floats, lost: Floats, mass: Floats, base: Floats, gamma: float) -> Floats | None:
    """Factors of the clusters under which the flows between them balance; None where they do not tell."""
    factor = np.ones(mass.size)
    some = np.flatnonzero(mass > 0.0)
    if some.size <= 1:
        return factor
    rates = flow[np.ix_(some, some)]
    if gamma < 1.0:
        # One more node, outside, that lost mass goes to and the base comes from.
        stay = np.append(lost[some], 0.0)
        rates = np.column_stack([np.vstack([rates, base[some]]), stay])
    np.fill_diagonal(rates, 0.0)
    found, regular = gth_dense(rates)
    if not regular or not np.isfinite(found).all() or found.min() <= 0.0:
        return None
    if gamma < 1.0:
        factor[some] = found[:-1] / found[-1]
    else:
        factor[some] = found * mass.sum() / (found @ mass[some])
    return factor
