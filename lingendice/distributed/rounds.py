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

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.distributed.cluster_rounds import DEPTH, ClusterRounds
from lingendice.distributed.mesh import Mesh, sum_parts
from lingendice.distributed.part import Part, vector
from lingendice.kernels.chains import sweeps
from lingendice.solvers.control import error_bound
from lingendice.solvers.gauss_seidel import Extrapolation

MOST_ROUNDS = 20_000
_SINGLE = 1e-5  # change above which rounds are made, and their sums sent, in single precision
_PROBE = 12  # plain rounds before their rate is believed
_PATIENCE = 300  # plain rounds worth making before clusters are tried
_LAGS = (2, 4, 6)  # rounds over which the rate is looked at; the slowest counts
_DAMPING = 0.7  # share of a step taken at gamma = 1 where plain steps go round in circles
_ROUNDING = 4e-14  # relative changes below this are rounding
_MOST_PASSES, _STALLED = 5_000, 200  # for values: passes at most, and without a new least step


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
        self.single: Any = np.empty(part.size, np.float32)
        self.buffers = part.buffers()
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
        head = [self.change, self.largest, self.lost, self.mass, float(self.mesh.told_to_stop)]
        return np.array([*head, *(self.x @ self.out)])

    def push(self, from_others: bool = False) -> tuple[Floats, Any]:
        """Inflow of the part's states from all states (or all others), and the facts about the present x."""
        y = self.y
        if self.in_single:
            self.single[:] = y
            y = self.single
        drawn, everybody = self.part.pushed(
            self.mesh, y, self.numbers(), self.buffers, from_others=from_others
        )
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
            self.mesh.tell(self.found.rounds, self.found.error)
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
        own = float(np.abs(image - v).max(initial=0.0)), float(mesh.told_to_stop)
        held = [numbers[0] for numbers in mesh.gather(np.array(own))]
        residual = max(float(numbers[0]) for numbers in held)
        mesh.tell(number, residual)
        since = 0 if residual < least else since + 1
        if residual < least:
            least, best = residual, image.copy()
        if residual <= goal or since > _STALLED or any(numbers[1] for numbers in held):
            break
        mixer.observe(image)
        v = image
    return Values(best, least)
