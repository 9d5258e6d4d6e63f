"""Stationary distribution of a spread chain: the same program on every part, which meet once a round.

Plain rounds are power steps of ``x = base + s T'x`` with s set by the balance of mass, which takes the
slowest mode away. Their number depends on the chain and not on how many parts it is cut into. Where it would
be large, rounds of another kind follow: masses of a few hundred clusters of states are set right by the small
chain between clusters, each part then solves its own rows exactly given what flows in from the others
(Koury-McAllister-Stewart), and iterates are extrapolated (Anderson).

All decisions are made from numbers summed over parts in the same order, so that all parts decide alike.

References
----------
J. R. Koury, D. F. McAllister, W. J. Stewart (1984). Iterative methods for computing stationary
    distributions of nearly completely decomposable Markov chains. SIAM Journal on Algebraic and Discrete
    Methods 5.
D. G. Anderson (1965). Iterative procedures for nonlinear integral equations. Journal of the ACM 12.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.distributed.mesh import Mesh, sum_parts
from lingendice.distributed.part import Part, vector
from lingendice.kernels import aggregation_steps, sweeps
from lingendice.kernels.gth_dense import gth_dense
from lingendice.model.pull_system import row_ranges
from lingendice.model.transition_rows import find_classes, submatrix
from lingendice.solvers.control import Controls, error_bound
from lingendice.solvers.gauss_seidel import Extrapolation
from lingendice.solvers.stationary import solve_irreducible

MOST_ROUNDS = 20_000
_SINGLE = 1e-5  # change above which rounds are made, and their sums sent, in single precision
_PROBE = 12  # plain rounds before their rate is believed
_PATIENCE = 300  # plain rounds worth making before clusters are tried
_LAGS = (2, 4, 6)  # rounds over which the rate is looked at; the slowest counts
_DAMPING = 0.7  # share of a step taken at gamma = 1 where plain steps go round in circles
_ROUNDING = 4e-14  # relative changes below this are rounding
_MOST_PASSES, _STALLED = 5_000, 200  # for values: passes at most, and without a new least step
CLUSTERS = 400
"""Clusters of all states, up to twice as many: the chain between them is solved densely on every part."""
_MOST = 300  # rounds at most
_SETTLED = 0.1  # share of the tolerance below which a change is worth a verdict
_CAUTION = 4.0
DEPTH = 10
"""Rounds that an extrapolation combines."""
_LOOKED = 3  # rounds without extrapolation that show the rate
_REST = 0.02  # share of the tolerance below which changes are those of inexact solves within parts
_CLUSTERS_STALLED = 40  # rounds without a new least change


class Terms(NamedTuple):
    """What a part needs to know of the equation: vectors over its own states, or one number for all."""

    gamma: float
    tol: float
    max_rounds: int | None
    keep: Any
    """Share of each row that follows its counts."""
    base: Any
    """(1 - gamma) mu0."""
    loss: Any
    """1 - gamma times what a row passes on."""
    out: Floats
    """Share of each row that goes to each of a few distributions."""
    distribution: Floats
    start: Any


@dataclass
class Found:
    """What one part returns; all but ``x`` is the same everywhere."""

    x: Floats
    converged: bool = False
    rounds: int = 0
    error: float = math.inf
    residual: float = math.inf
    condition: float | None = None
    history: list[float] = field(default_factory=list)
    method: str = "power"
    bytes_sent: int = 0


def short_vector(value: Any) -> Floats:
    """One number for all states, or one for each, as an array of one or of all."""
    return np.atleast_1d(np.ascontiguousarray(value, dtype=np.float64))


class Rounds:
    """The state of one solve on one part."""

    def __init__(self, part: Part, mesh: Mesh, terms: Terms, total: Floats | None) -> None:
        self.part, self.mesh, self.terms = part, mesh, terms
        self.gamma = terms.gamma
        if total is None:  # weights are probabilities already
            self.c = np.array([terms.gamma])
        else:
            keep = vector(terms.keep, part.size)
            self.c = np.divide(terms.gamma * keep, total, out=np.zeros(part.size), where=total > 0)
        self.base, self.loss = short_vector(terms.base), short_vector(terms.loss)
        self.out = terms.gamma * terms.out
        self.x = vector(terms.start, part.size).copy()
        self.y = self.c * self.x
        self.step = 1.0
        self.found = Found(self.x)
        self.change = self.largest = math.inf
        self.lost, self.mass = float(np.sum(self.loss * self.x)), float(self.x.sum())
        self.changes: list[float] = []
        self.in_single = True
        self.share = 0.9 if self.gamma < 1.0 else 0.2
        """Of the tolerance, below which plain rounds are settled: clusters may add some at gamma = 1."""

    # -- plain rounds --------------------------------------------------------------------------------------

    def numbers(self) -> Floats:
        """What is summed over parts in every round: facts about the present x."""
        head = [self.change, self.largest, self.lost, self.mass, float(self.mesh.run.stop)]
        return np.array([*head, *(self.x @ self.out)])

    def push(self, from_others: bool = False) -> tuple[Floats, Any]:
        """Inflow of the part's states from all states (or all others), and the facts about the present x."""
        y = self.y
        if self.in_single:
            y = y.astype(np.float32)
        drawn, everybody = self.part.pushed(self.mesh, y, self.numbers(), from_others=from_others)
        facts = sum_parts(everybody)
        facts[1] = max(numbers[1] for numbers in everybody)
        if self.out.shape[1]:
            drawn += facts[5:] @ self.terms.distribution
        return drawn, facts

    def scale(self, facts: Floats) -> float:
        """The factor that gives x the mass that the equation has."""
        if self.gamma == 1.0:
            return 1.0 / float(facts[3])
        return (1.0 - self.gamma) / float(facts[2]) if facts[2] > 0.0 else 1.0

    def round(self) -> Floats:
        """One plain round; returns the facts about the x that it began with."""
        drawn, facts = self.push()
        self.change, self.largest, self.lost, self.mass = sweeps.finish_round(
            self.base, self.scale(facts), drawn, self.step, self.c, self.loss, self.x, self.y
        )
        self.found.rounds += 1
        return facts

    def plain_rounds(self) -> str:
        """Rounds until "settled", "slow" or "stopped"."""
        before_in_single = True
        while True:
            was_single = self.in_single
            facts = self.round()
            if not math.isfinite(facts[0]) and self.found.rounds > 1:
                return "stopped"
            if self.found.rounds == 1 or not math.isfinite(facts[0]):
                if facts[4] > 0.0:
                    return "stopped"
                continue
            # The facts are about the x that the round began with: the one before made it.
            self._judge(float(facts[0]) / self._unit(facts), float(facts[1]))
            self.in_single = self.changes[-1] > _SINGLE
            exact = not (was_single or before_in_single)
            before_in_single = was_single
            self.mesh.run.step = self.found.rounds, self.found.error
            if exact and self.found.error <= self.share * self.terms.tol:
                return "settled"
            if facts[4] > 0.0 or self.found.rounds >= (self.terms.max_rounds or MOST_ROUNDS):
                return "stopped"
            if self._is_slow():
                return "slow"

    def _unit(self, facts: Floats) -> float:
        return 1.0 if self.gamma < 1.0 else float(facts[3])

    def _judge(self, change: float, largest: float) -> None:
        found = self.found
        self.changes.append(change if self.gamma < 1.0 else largest)
        found.residual = change / self.step
        if self.gamma < 1.0:
            found.error = error_bound(change, self.gamma)
        else:
            rate = self._rate()
            found.condition = None if rate is None else 1.0 / (1.0 - rate)
            found.error = math.inf if rate is None else largest * rate / (1.0 - rate) + _ROUNDING
        found.history.append(found.error)

    def _rate(self) -> float | None:
        """Share of the change that a round leaves: the slowest over several lags; None where not known."""
        seen = self.changes
        if len(seen) <= _LAGS[-1]:
            return None
        if seen[-1] <= _ROUNDING:
            return 0.5
        rate = max((seen[-1] / seen[-1 - lag]) ** (1.0 / lag) for lag in _LAGS)
        return None if rate >= 1.0 else max(rate, 0.05)

    def _is_slow(self) -> bool:
        if len(self.changes) < _PROBE or self.changes[-1] <= _ROUNDING:
            return False
        rate = self._rate()
        if rate is None or rate > 0.98:
            if self.gamma == 1.0 and self.step == 1.0 and len(self.changes) < 2 * _PROBE:
                # A chain that goes round in circles is met halfway, before anything else is tried.
                self.step, self.changes = _DAMPING, []
                return False
            if rate is None:
                return len(self.changes) > 2 * _PROBE
        goal = self.terms.tol * (1.0 - self.gamma if self.gamma < 1.0 else 1.0 - rate)
        return math.log(max(goal, 1e-300) / self.changes[-1]) / math.log(rate) > _PATIENCE

    # -- the whole -----------------------------------------------------------------------------------------

    def run(self) -> Found:
        """Plain rounds, and rounds over clusters where these are slow or, at gamma = 1, to confirm them."""
        found = self.found
        ended = self.plain_rounds()
        if ended != "stopped":
            if ended == "settled" and self.gamma == 1.0 and not ClusterRounds(self).confirms():
                ended = "slow"
            if ended == "slow":
                ended = ClusterRounds(self).run()
        if ended == "settled" and self.gamma < 1.0 and not found.error <= self.terms.tol:
            ended = "stalled"
        found.converged = ended == "settled"
        found.x = self.x
        found.bytes_sent = self.mesh.bytes_sent
        return found


# -- slow chains: clusters balanced exactly, parts solved exactly, iterates combined -------------------------


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
            mesh.run.step = found.rounds, change
            if facts[4] > 0.0 or found.rounds >= (rounds.terms.max_rounds or math.inf):
                self._finish()
                return "stopped"
            since = 0 if change < least else since + 1
            least = min(least, change)
            if since > _CLUSTERS_STALLED:
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


# -- phases ------------------------------------------------------------------------------------------------


def stationary(part: Part, mesh: Mesh, terms: Terms) -> Found:
    """The stationary distribution over the part's states."""
    return Rounds(part, mesh, terms, part.totals()).run()


class Values(NamedTuple):
    """Values of a part's states, and how far the equation is from being met."""

    values: Floats
    residual: float


def state_values(part: Part, mesh: Mesh, terms: Terms, reward: Any, distribution: Any, goal: float) -> Values:
    """V = r + gamma P V, or at gamma = 1 the bias with mu V = 0, by passes that are extrapolated."""
    rounds = Rounds(part, mesh, terms, part.totals())
    gamma, r, mu = terms.gamma, vector(reward, part.size), vector(distribution, part.size)
    c = np.broadcast_to(rounds.c, (part.size,))
    v = np.zeros(part.size)
    mixer = Extrapolation(v, DEPTH, period=1, power=0.0, total=mesh.total)
    least, since, best = math.inf, 0, v
    for number in range(_MOST_PASSES):
        image = r + c * part.pulled_back(part.fetched(mesh, v.copy()))
        if terms.out.shape[1]:
            image += rounds.out @ mesh.total(terms.distribution @ v)
        if gamma == 1.0:
            image -= mesh.total(np.array([mu @ image]))[0]
        own = float(np.abs(image - v).max(initial=0.0)), float(mesh.run.stop)
        held = [numbers[0] for numbers in mesh.gather(np.array(own))]
        residual = max(float(numbers[0]) for numbers in held)
        mesh.run.step = number, residual
        since = 0 if residual < least else since + 1
        if residual < least:
            least, best = residual, image.copy()
        if residual <= goal or since > _STALLED or any(numbers[1] for numbers in held):
            break
        mixer.observe(image)
        v = image
    return Values(best, least)
