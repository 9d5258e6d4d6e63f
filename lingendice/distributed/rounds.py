"""Stationary distribution of a spread chain: the same program on every part, which meet once per round.

Plain rounds are power steps of ``x = base + s T'x`` with s set by the balance of mass, which takes the
slowest mode away. Their number depends on the chain and not on how many parts it is cut into. Where it would
be large, rounds of another kind follow: masses of a few hundred clusters of states are set right by the small
chain between clusters, each part then solves its own rows exactly given what flows in from the others
(Koury-McAllister-Stewart), and iterates are extrapolated (Anderson). Pace, extrapolation and clusters are
those of :mod:`lingendice.solvers.aggregation`.

All decisions are made from numbers summed over parts in the same order, so that all parts decide alike.

References
----------
J. R. Koury, D. F. McAllister, W. J. Stewart (1984). Iterative methods for computing stationary
    distributions of nearly completely decomposable Markov chains. SIAM Journal on Algebraic and Discrete
    Methods 5.
D. G. Anderson (1965). Iterative procedures for nonlinear integral equations. Journal of the ACM 12.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.distributed.mesh import Mesh
from lingendice.distributed.part import Part, vector
from lingendice.kernels import part_rounds
from lingendice.kernels.gth_dense import gth_dense
from lingendice.model.pull_system import go_on
from lingendice.model.transition_rows import find_classes, submatrix
from lingendice.solvers.aggregation import PROBE, SWEEP_LAGS, Mixing, Pace
from lingendice.solvers.control import Controls, Outcome, Stop, error_bound
from lingendice.solvers.gauss_seidel import Extrapolation
from lingendice.solvers.levels import Level, cluster_flows, join_clusters
from lingendice.solvers.stationary import solve_irreducible

MOST_ROUNDS = 20_000
MOST_CLUSTER_ROUNDS = 200
_SINGLE = 1e-5  # change above which rounds are made, and their sums sent, in single precision
_PATIENCE = 300  # plain rounds worth making before clusters are tried
_CIRCLES = 0.98  # rate above which plain steps at gamma = 1 may go round in circles
_DAMPING = 0.7  # share of a step that is taken then
_PART_ERROR = 1.6e-13  # relative error of an entry that solves of parts, exact but for rounding, leave
_MOST_PASSES, _STALLED = 5_000, 200  # for values: passes at most, and without a new least step
CLUSTERS = 400
"""Clusters of all states, up to twice as many: the chain between them is solved densely on every part."""
DEPTH = 10
"""Rounds that an extrapolation combines."""


class RoundTerms(NamedTuple):
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
    """States by such distributions."""
    start: Any


class Facts(NamedTuple):
    """Sums over all parts that a round begins with."""

    change: float
    """L1 norm of the last round's change."""
    largest: float
    """The largest change of an entry, relative to it."""
    lost: float
    mass: float
    stop: float
    """Positive where a part was told to end."""


class Rounds(Pace):
    """The state of one solve on one part."""

    def __init__(self, part: Part, mesh: Mesh, terms: RoundTerms) -> None:
        super().__init__(tol=terms.tol)
        self.part, self.mesh, self.terms, self.gamma = part, mesh, terms, terms.gamma
        self.c = np.array([terms.gamma])
        """Times weights, probabilities: gamma alone where weights are probabilities already."""
        total = part.totals()
        if total is not None:
            kept = terms.gamma * vector(terms.keep, part.size)
            self.c = np.divide(kept, total, out=np.zeros(part.size), where=total > 0)
        self.base, self.loss = np.atleast_1d(terms.base), np.atleast_1d(terms.loss)
        self.out = terms.gamma * terms.out
        self.x = vector(terms.start, part.size).copy()
        self.step, self.in_single = 1.0, True
        self.method, self.n_rounds, self.residual = "power", 0, math.inf
        self.history: list[float] = []
        self.change = self.largest = math.inf
        self.weigh()

    def weigh(self) -> None:
        """Set what depends on x, after x was set."""
        self.y = self.c * self.x
        self.lost, self.mass = float(np.sum(self.loss * self.x)), float(self.x.sum())

    def push(self, from_others: bool = False) -> tuple[Floats, Facts]:
        """Inflow of the part's states from all states (or all others), and the facts about the present x."""
        own = [self.change, self.largest, self.lost, self.mass, float(self.mesh.run.stop)]
        numbers = np.array([*own, *(self.x @ self.out)])
        y = self.y.astype(np.float32) if self.in_single else self.y
        drawn, everybody = self.part.pushed(self.mesh, y, numbers, from_others=from_others)
        total = np.sum(everybody, axis=0)
        total[1] = max(each[1] for each in everybody)
        if self.out.shape[1]:
            drawn += self.terms.distribution @ total[5:]
        return drawn, Facts(*total[:5])

    def scale(self, facts: Facts) -> float:
        """The factor that gives x the mass that the equation has."""
        if self.gamma == 1.0:
            return 1.0 / facts.mass
        return (1.0 - self.gamma) / facts.lost if facts.lost > 0.0 else 1.0

    def round(self) -> Facts:
        """One plain round; returns the facts about the x that it began with."""
        drawn, facts = self.push()
        self.change, self.largest, self.lost, self.mass = part_rounds.finish_round(
            self.base, self.scale(facts), drawn, self.step, self.c, self.loss, self.x, self.y
        )
        self.n_rounds += 1
        return facts

    def must_end(self, facts: Facts) -> bool:
        """Whether the client or the limit has the last word."""
        return facts.stop > 0.0 or self.n_rounds >= (self.terms.max_rounds or MOST_ROUNDS)

    def plain_rounds(self) -> str:
        """Rounds until "settled", "slow" or "stopped"."""
        changes: list[float] = []
        in_double = 0
        while True:
            in_double += not self.in_single
            facts = self.round()
            known = self.n_rounds > 1  # the facts are about the x that the round began with
            if known and not math.isfinite(facts.change):
                return "stopped"
            settled = False
            if known:
                changes.append(facts.change if self.gamma < 1.0 else facts.largest)
                self.residual = facts.change / self.step / (1.0 if self.gamma < 1.0 else facts.mass)
                settled = self.judge(changes, SWEEP_LAGS)
                if self.gamma < 1.0:
                    self.error = error_bound(facts.change, self.gamma)
                    settled = self.error <= 0.9 * self.tol
                self.in_single = self.in_single and changes[-1] > _SINGLE
                self.note()
            if settled and in_double > 1:
                return "settled"
            if self.must_end(facts):
                return "stopped"
            if len(changes) < PROBE or settled:
                continue
            if self.gamma == 1.0 and self.step == 1.0 and self.rate > _CIRCLES:
                # A chain that goes round in circles is met halfway, before anything else is tried.
                self.step, changes = _DAMPING, []
            elif self.foreseen() > _PATIENCE:
                return "slow"

    def note(self) -> None:
        """Record how far the work has come."""
        self.history.append(self.error)
        self.mesh.run.step = self.n_rounds, self.error

    def run(self) -> Outcome:
        """Plain rounds, and rounds over clusters where these are slow or, at gamma = 1, to confirm them."""
        ended = self.plain_rounds()
        if ended == "slow" or (ended == "settled" and self.gamma == 1.0):
            clusters = ClusterRounds(self)
            if ended == "slow" or not clusters.confirm():
                ended = clusters.run()
        converged = ended == "settled" and self.error <= self.tol
        limited = not converged and self.n_rounds >= (self.terms.max_rounds or math.inf)
        return Outcome(
            self.x,
            self.method,
            "",
            converged,
            n_iter=self.n_rounds,
            error=self.error,
            error_kind="estimate" if self.gamma == 1.0 else "bound",
            condition=self.condition if self.gamma == 1.0 else None,
            residual=self.residual,
            stopped=Stop.ITERATIONS if limited else None,
            history=tuple(self.history),
        )


# -- slow chains: clusters balanced exactly, parts solved exactly, iterates combined -------------------------


class ClusterRounds:
    """Goes on from the x of plain rounds."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.part, self.mesh = rounds, rounds.part, rounds.mesh
        pull, index = self.part.pull, self.part.index
        self.own = slice(pull.cuts[index], pull.cuts[index + 1])
        rounds.in_single, rounds.step = False, 1.0
        weights = pull.weights if pull.weights.size else np.ones(pull.sources.size)
        sources = pull.sources.astype(np.uint32) + np.uint32(self.own.start)
        self.level = Level(
            pull.indptr, sources, weights.astype(np.float64, copy=False), np.empty(0), None, 1, go_on
        )
        """The part's entries over its targets, its own states among them."""
        self.target_label = pull.targets.astype(np.uint32)
        self.n_clusters = join_clusters(
            self.level,
            self._passed_on(),
            self.target_label,
            self.part.block.n_states,
            CLUSTERS,
            self._strongest,
        )
        self.label = self.target_label[self.own]
        base = np.broadcast_to(rounds.base, self.label.shape)
        known = [base, *rounds.terms.distribution.T]
        self.base, *self.distribution = self.mesh.total(np.stack([self._by_cluster(each) for each in known]))

    def _by_cluster(self, values: Floats) -> Floats:
        return np.bincount(self.label, values, self.n_clusters).astype(float)

    def _passed_on(self) -> Floats:
        """What every state passes on along its entries, over targets: nothing of those of other parts."""
        passed = np.zeros(self.target_label.size)
        passed[self.own] = self.rounds.c * self.rounds.x
        return passed

    def _strongest(self, best: Floats, origin: Any) -> None:
        """Of the inflows that parts know, the strongest."""
        for strength, source in self.mesh.gather(best.copy(), origin.copy()):
            stronger = strength > best
            best[stronger], origin[stronger] = strength[stronger], source[stronger]

    def balance(self) -> float:
        """Rescale x cluster by cluster as the chain between clusters has it; returns the largest change."""
        rounds, n = self.rounds, self.n_clusters
        flow = cluster_flows(self.level, self._passed_on(), self.target_label, n)
        sums = [rounds.loss * rounds.x, rounds.x, *(rounds.x * column for column in rounds.out.T)]
        summed = self.mesh.total(np.vstack([flow, *map(self._by_cluster, sums)]))
        flow, (lost, mass, *leaving) = summed[:n], summed[n:]
        for each, where in zip(leaving, self.distribution, strict=True):
            flow += np.outer(each, where)
        factor = _factors(flow, lost, mass, self.base, rounds.gamma)
        if factor is None:
            return math.inf
        rounds.x *= factor[self.label]
        rounds.weigh()
        return float(np.abs(factor - 1.0).max())

    def confirm(self) -> bool:
        """Whether the chain between clusters changes nothing that the tolerance would notice."""
        self.rounds.error += 2.0 * self.balance()
        return self.rounds.error <= self.rounds.tol

    def exits(self) -> Floats:
        """What leaves the part from each of its states: to other parts, to distributions, for good."""
        pull, rounds = self.part.pull, self.rounds
        elsewhere = np.ones(pull.cuts[-1])
        elsewhere[self.own] = 0.0
        loss = 0.0 if rounds.gamma == 1.0 else rounds.loss
        total: Floats = rounds.c * self.part.pulled_back(elsewhere) + rounds.out.sum(axis=1) + loss
        return total

    def solve_part(self, probability: Any, inflow: Floats, leaving: Floats) -> Floats:
        """x = inflow + P' x over the part's own states, exactly: visits per entry from outside."""
        from scipy import sparse

        size, entering = self.part.size, float(inflow.sum())
        controls = Controls(tol=max(1e-13, 2e-3 * self.rounds.tol), threads=1)
        if entering == 0.0:
            # The whole class lies in this part, or none of it.
            nodes = np.flatnonzero(self.rounds.x > 0.0)
            alone = np.zeros(size)
            if nodes.size:
                found = solve_irreducible(submatrix(probability, nodes), 0, "auto", controls)
                alone[nodes] = found.distribution / found.distribution.sum() * self.rounds.x.sum()
            return alone
        edge = sparse.csr_array(leaving[:, None])
        rates = sparse.block_array(
            [[probability, edge], [sparse.csr_array(inflow[None, :] / entering), None]], format="csr"
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
        """Rounds until settled, stalled or stopped."""
        rounds = self.rounds
        rounds.method, rounds.rate, rounds.error = "aggregation", 1.0, math.inf
        probability = self.part.own_matrix(np.broadcast_to(rounds.c, (self.part.size,))).T.tocsr()
        leaving = self.exits()
        mixing = Mixing(rounds, DEPTH, self.mesh.total)
        for _ in range(MOST_CLUSTER_ROUNDS):
            before = rounds.x.copy()
            self.balance()
            drawn, facts = rounds.push(from_others=True)
            rounds.x[:] = self.solve_part(probability, rounds.base + rounds.scale(facts) * drawn, leaving)
            rounds.n_rounds += 1
            settled = mixing.settles(rounds.x, self._change(before))
            rounds.note()
            ending = rounds.must_end(facts)
            if settled or ending:
                self._check_residual()
                if settled and rounds.error <= rounds.tol:
                    return "settled"
            if ending:
                return "stopped"
        self._check_residual()
        return "stalled"

    def _change(self, before: Floats) -> float:
        """The largest relative change of an entry in any part."""
        x = self.rounds.x
        known = x > 0.0
        own = float((np.abs(x[known] - before[known]) / x[known]).max(initial=0.0))
        return max(float(held[0][0]) for held in self.mesh.gather(np.array([own])))

    def _check_residual(self) -> None:
        """Two plain rounds: the second knows the residual of the x that the first one made.

        It proves the error at gamma < 1; at gamma = 1 it says little of it.
        """
        rounds = self.rounds
        rounds.weigh()
        rounds.round()
        rounds.residual = rounds.round().change
        rounds.error += _PART_ERROR
        if rounds.gamma < 1.0:
            rounds.error = error_bound(rounds.residual, rounds.gamma)
        rounds.history.append(rounds.error)


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


def stationary(part: Part, mesh: Mesh, terms: RoundTerms) -> tuple[Outcome, int]:
    """The stationary distribution over the part's states, and how many bytes were sent.

    All else of the outcome is the same on every part.
    """
    return Rounds(part, mesh, terms).run(), mesh.bytes_sent


def state_values(
    part: Part, mesh: Mesh, terms: RoundTerms, reward: Any, distribution: Any, goal: float
) -> tuple[Floats, float]:
    """V = r + gamma P V, or at gamma = 1 the bias with mu V = 0, by passes that are extrapolated.

    Returns the values of the part's states, and how far the equation is from being met anywhere.
    """
    rounds = Rounds(part, mesh, terms)
    r, mu = vector(reward, part.size), vector(distribution, part.size)
    v = np.zeros(part.size)
    mixer = Extrapolation(v, DEPTH, period=1, power=0.0, total=mesh.total)
    least, since, best = math.inf, 0, v
    for number in range(_MOST_PASSES):
        image = r + rounds.c * part.pulled_back(part.fetched(mesh, v))
        if terms.out.shape[1]:
            image += rounds.out @ mesh.total(terms.distribution.T @ v)
        if terms.gamma == 1.0:
            image -= mesh.total(np.array([mu @ image]))[0]
        own = np.array([np.abs(image - v).max(initial=0.0), float(mesh.run.stop)])
        residual, stop = np.max([held[0] for held in mesh.gather(own)], axis=0).tolist()
        mesh.run.step = number, residual
        since = 0 if residual < least else since + 1
        if residual < least:
            least, best = residual, image.copy()
        if residual <= goal or since > _STALLED or stop:
            break
        mixer.observe(image)
        v = image
    return best, least
