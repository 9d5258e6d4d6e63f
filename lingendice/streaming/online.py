"""``OnlineRatio``: the stationary ratio of a running stream, kept up to date as transitions arrive."""

from __future__ import annotations

import copy
import os
import threading
import time
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import lingendice as lg
from lingendice.data.checks import (
    LARGEST_REWARD,
    Floats,
    numeric_array,
    require_below,
    require_distribution,
    require_gamma,
    require_number,
    require_positive,
    require_reward,
    require_whole,
)
from lingendice.data.counts import Counts
from lingendice.data.interrupts import interruptible, unmask
from lingendice.data.rows import read_only
from lingendice.model.compose import Choices, compose
from lingendice.results.build import certified_solution
from lingendice.results.solution import Solution
from lingendice.results.status import with_identified_status
from lingendice.solvers.control import Controls, Outcome, direct_error
from lingendice.solvers.stationary import Distributions

Ids = NDArray[np.int64]
MOST_STATES = 4096
"""States up to which a dense table of counts is kept."""
BUFFER = 1024
"""Single transitions gathered before they are counted together."""
HEAVIEST = 2.0**300
"""Weight of a new transition at which, with forgetting, all counts are scaled down."""
LIGHTEST = 2.0**-700
"""Weight, when counts are scaled down, below which a row is dropped while all its digits are still there."""
MOST_STEPS_PER_FACTOR = 15
"""Steps of a re-solve after which the next one starts from a new factor."""
MOST_STEPS = 30
"""Steps after which a re-solve gives up and factors the chain anew."""
SLOWEST = 0.5
"""Ratio of successive changes from which a re-solve gives up."""
CAUTION = 10.0
"""Factor on the error that the last changes foretell."""

_lock = threading.RLock()
"""Held while a stream is updated or read, and while the process forks: no child gets one half updated."""


class DenseFactor(NamedTuple):
    """An elimination of the recurrent class as it was, in a form that turns residuals into changes.

    With flow_k = distribution_k exit_k, the flow from node k to the nodes eliminated after it,
    ``shares[k, j]`` is what k sends to j, directly (below the diagonal) or in the end (above it), over the
    flow of j. Changes are relative to the ratio and residuals to the flows, so that no entry is too small for
    single precision, which halves the memory that a step reads. The steps correct what it rounds off.
    """

    shares: NDArray[np.float32]
    flow: Floats
    distribution: Floats
    """The ratio y = mu / n at the time, of sum 1."""
    members: Ids
    """States of the class, and then ``n_states`` for its hub, where it has one."""
    total: float
    """Weight of all data at the time."""
    rounding: float
    """Relative error of the worst entry that rounding in a residual may bring, or nan."""

    @classmethod
    def from_rates(cls, rates: Floats, members: Ids, total: float) -> DenseFactor | None:
        """Of the rates between the nodes of a class; None where elimination breaks down. 2 n^3 / 3."""
        from lingendice.kernels.gth_dense import dense_distribution, dense_factor

        front, exit_rate, broken = dense_factor(rates)
        if broken >= 0:
            return None
        distribution, lost = dense_distribution(front, exit_rate)
        if lost >= 0:
            return None
        flow = distribution * exit_rate
        with np.errstate(all="ignore"):  # what overflows makes the rounding nan, and is not used again
            sent = np.tril(front, -1) * distribution[:, None] + np.triu(front, 1) * flow[:, None]
            flow[-1] = np.inf  # nothing is carried to the last node, whose relative change is 0
            factor = cls((sent / flow).astype(np.float32), flow, distribution, members, total, np.nan)
            exit_scale = rates.sum(axis=1) - rates.diagonal()
            signs = np.random.default_rng(0).choice([-1.0, 1.0], exit_scale.size)
            moved = factor.change(signs * 2.0**-53 * distribution * exit_scale, exit_scale)
            return factor._replace(rounding=float(np.max(np.abs(moved) / distribution)))

    def change(self, right: Floats, mass: Floats) -> Floats:
        """The dy that solves dy M_0 = right, up to single precision, and adds no ``mass``. O(n^2)."""
        from lingendice.kernels.online_updates import carry_changes

        relative = (right / self.flow).astype(np.float32)
        carry_changes(self.shares, relative)
        change = self.distribution * relative
        # M_0 does not see its own distribution, along which dy may be shifted.
        shift = np.einsum("i,i->", change, mass) / np.einsum("i,i->", self.distribution, mass)
        return change - shift * self.distribution


class OnlineRatio:
    """The ratio tau = mu / p of a stream of transitions; each solve starts from the last one.

    Solves ``mu = (1 - gamma) mu0 + gamma P' mu`` for the chain counted so far, as :func:`lingendice.solve`
    does for the same counts: same defaults, leaks and recurrent classes. There are no actions: for another
    policy, count with :meth:`Counts.from_transitions`.

    Parameters
    ----------
    n_states
        Number of states, up to 4096: counts are held in a dense table. For more, count in batches with
        :meth:`Counts.from_transitions`, add them up and call :func:`lingendice.solve`.
    gamma
        In (0, 1]; 1 is the average-reward distribution.
    initial, restart
        As for :func:`lingendice.solve`.
    forgetting
        Weight of a transition relative to the next one, in [1e-100, 1]. 1 keeps all; 0.999 weighs the last
        thousand or so. Rows of states are dropped in the end, below 1e-210 of the weight of the last one.
    tol
        Relative error of the worst entry at which a re-solve stops.

    Notes
    -----
    Counting is O(1) per transition. The first read factors the chain (2 n^3 / 3); later ones take a few steps
    of O(n^2) with that factor, and make a new one when that takes too many, when the recurrent class changed,
    or when rounding would be amplified beyond ``tol``. All methods may be called from several threads;
    streams wait for each other.

    Examples
    --------
    >>> import lingendice as lg
    >>> online = lg.OnlineRatio(2)
    >>> online.update([0, 0, 1, 0, 1], [0, 1, 0, 1, 1])
    >>> online.update(1, 0)
    >>> online.stationary
    array([0.5, 0.5])
    """

    def __init__(
        self,
        n_states: int,
        gamma: float = 1.0,
        *,
        initial: ArrayLike | None = None,
        restart: ArrayLike | None = None,
        forgetting: float = 1.0,
        tol: float = 1e-10,
    ) -> None:
        try:
            self.n_states = require_whole("n_states", n_states, at_least=1, at_most=MOST_STATES)
        except ValueError as error:
            raise ValueError(f"{error}; for more add up Counts of batches and call lg.solve") from None
        self.gamma = require_gamma(gamma)
        self.forgetting = require_number("forgetting", forgetting)
        if not 1e-100 <= self.forgetting <= 1.0:  # below LIGHTEST the last transition itself is dropped
            raise ValueError(f"forgetting must lie in [1e-100, 1], got {forgetting!r}; 1 keeps everything")
        self.tol = require_positive("tol", tol)
        self._initial = None if initial is None else require_distribution("initial", initial, self.n_states)
        self._restart = None if restart is None else require_distribution("restart", restart, self.n_states)
        _hold_at_forks()
        self._pending: list[tuple[int, int, float | None]] = []
        self._counts = np.zeros((self.n_states, self.n_states))
        self._totals = np.zeros(self.n_states)
        self._rewards: tuple[Floats, Floats, Floats, Floats] | None = None
        self._weight = 1.0
        self._factor: DenseFactor | None = None
        self._ratio: Floats | None = None
        self._distribution: Floats | None = None
        self._distributions: tuple[Floats, ...] = ()
        self._error: float | None = None
        self._counted = 0
        self.n_factorizations = 0
        """How often the chain was factored afresh."""
        self.n_steps = 0
        """Steps that the last re-solve took; 0 where it factored the chain."""

    def __getstate__(self) -> dict[str, Any]:
        with _lock:
            # Copied under the lock: the stream may go on while the state is written out.
            return copy.deepcopy(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # The limit from `initial` is none of the several distributions.
        self._distribution = None if self._distribution is None else read_only(self._distribution)
        self._distributions = tuple(map(read_only, self._distributions))
        _hold_at_forks()

    # -- counting ---------------------------------------------------------------------------------

    def update(self, state: Any, next_state: Any, reward: Any = None) -> None:
        """Count one transition, or arrays of them in time order.

        Parameters
        ----------
        state, next_state
            Numbers of states, 0 to ``n_states - 1``; scalars or arrays of one length.
        reward
            One finite number per transition, or None where none is known.
        """
        if type(state) is int and type(next_state) is int and (reward is None or type(reward) is float):
            n = self.n_states
            if 0 <= state < n and 0 <= next_state < n and (reward is None or abs(reward) <= LARGEST_REWARD):
                with _lock:
                    self._pending.append((state, next_state, reward))
                    if len(self._pending) >= BUFFER:
                        self._flush()
                return
        states = self._states("state", state)
        next_states = self._states("next_state", next_state)
        if states.size != next_states.size:
            raise ValueError(f"next_state has {next_states.size} entries but state has {states.size}")
        rewards = None
        if reward is not None:
            rewards = np.atleast_1d(numeric_array("reward", reward)).astype(np.float64)
            require_reward("reward", rewards)
            if rewards.shape != states.shape:
                raise ValueError(f"reward has shape {rewards.shape} but state {states.shape}; give one each")
        # What is counted by halves would be counted wrongly ever after.
        with _lock, interruptible() as work, work.held():
            self._flush()
            self._count(states, next_states, rewards)

    def _states(self, name: str, given: Any) -> Ids:
        states = np.atleast_1d(numeric_array(name, given))
        if states.ndim != 1 or (states.size and states.dtype.kind not in "iu"):
            raise ValueError(
                f"{name} must be a whole number or a one-dimensional array of them, "
                f"got shape {states.shape}, dtype {states.dtype}"
            )
        require_below(name, states, self.n_states)
        return states.astype(np.int64, copy=False)

    def _flush(self) -> None:
        """Count the single transitions gathered so far, in their order."""
        if not self._pending:
            return
        with interruptible() as work, work.held():
            pending, self._pending = self._pending, []
            for rewarded, some in groupby(pending, lambda transition: transition[2] is not None):
                states, next_states, rewards = zip(*some, strict=True)
                earned = np.array(rewards, float) if rewarded else None
                self._count(np.array(states, np.int64), np.array(next_states, np.int64), earned)

    def _count(self, states: Ids, next_states: Ids, rewards: Floats | None) -> None:
        # Scalings keep weights far from the ends of float64, at the same transitions whatever the batches.
        growth, start = 1.0 / self.forgetting, 0
        most = max(1, int(np.log(HEAVIEST) / np.log(growth))) if growth > 1.0 else 2**62
        while start < states.size:
            part = slice(start, start + most - self._counted % most)
            earned = None if rewards is None else rewards[part]
            self._count_part(states[part], next_states[part], earned, growth)
            if self._counted % most == 0:
                self._scale_down()
            start = part.stop

    def _count_part(self, states: Ids, next_states: Ids, rewards: Floats | None, growth: float) -> None:
        from lingendice.kernels.online_updates import add_rewards, add_transitions

        if rewards is not None:
            if self._rewards is None:
                n = self.n_states
                self._rewards = (np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n)), np.zeros((2, n)))
            add_rewards(states, next_states, rewards, self._weight, growth, *self._rewards)
        inside = np.zeros(self.n_states, bool)
        if self._factor is not None:
            members = self._factor.members
            inside[members[members < self.n_states]] = True
        self._weight, changed = add_transitions(
            states, next_states, self._weight, growth, self._counts, self._totals, inside
        )
        if changed:
            self._factor = None
        self._counted += states.size
        self._distribution = None
        self._distributions = ()

    def _scale_down(self) -> None:
        """Bring the weight of the next transition back to 1; what weighs next to nothing was forgotten."""
        self._counts /= self._weight
        self._counts[self._counts.sum(axis=1) < LIGHTEST] = 0.0
        np.sum(self._counts, axis=1, out=self._totals)
        if self._rewards is not None:
            pair_weight, pair_mean, pair_m2, cells = self._rewards
            pair_weight /= self._weight
            pair_m2 /= self._weight
            pair_weight[pair_weight.sum(axis=1) < LIGHTEST] = 0.0
            np.sum(pair_weight, axis=1, out=cells[0])
            np.einsum("ij,ij->i", pair_weight, pair_mean, out=cells[1])
        self._weight = 1.0
        self._factor = None

    # -- solving ----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Make the distribution that of the present counts."""
        self._flush()
        if self._distribution is not None or self._distributions:
            return
        if self._counted == 0:
            raise ValueError("there are no transitions to learn from; call update first")
        try:
            self._solve()
        except BaseException as error:
            # A factor or a ratio that is half renewed must not be followed; the counts are whole.
            self._factor, self._ratio, self._distribution, self._distributions = None, None, None, ()
            unmask(error)
            raise

    def _solve(self) -> None:
        if self._follow() or self._factorize():
            return
        solution = lg.solve(
            self._frozen(), self.gamma, initial=self._initial, restart=self._restart, tol=self.tol
        )
        self._distribution, self._distributions = solution.state_distribution, solution.state_distributions
        self._error, self.n_steps = solution.error, 0
        self.n_factorizations += 1

    def _follow(self) -> bool:
        """Refresh the ratio with the factor at hand; False where that is not possible or not worth it.

        In units of counts the ratio y = mu / n solves y M = 0, M = D - W over the nodes of the class (see
        `kernels.counted_chains`). With the factor of an older M_0, data having grown by a factor g since,

            dy = -(y M) M_0^-1 / g ,   y <- y + dy

        converges as fast as M / g and M_0 are alike. The changes of y, not the residual y M, give the error.
        """
        from lingendice.kernels.online_updates import entering

        factor, ratio = self._factor, self._ratio
        if factor is None or ratio is None or self.n_steps > MOST_STEPS_PER_FACTOR:
            return False
        if not factor.rounding <= 0.25 * self.tol:
            return False
        n, members, mass = self.n_states, factor.members, self._masses(factor.members)
        to_hub, from_hub = self._rates_to_hub(), self._rates_from_hub()
        exit_rate = np.append(self.gamma * self._totals + to_hub, from_hub.sum())
        growth = self._totals.sum() / factor.total
        y, before, slowest = np.zeros(n + 1), np.inf, 0.0
        for step in range(MOST_STEPS):
            y[members] = ratio
            residual = y * exit_rate
            residual[:n] -= self.gamma * entering(y[:n], self._counts) + y[n] * from_hub
            residual[n] -= np.einsum("i,i->", y[:n], to_hub)
            dy = factor.change(residual[members] / -growth, mass)
            ratio += dy
            if not ratio.min() > 0.0:
                return False
            change = float(np.max(np.abs(dy) / ratio))
            rate = change / before
            slowest = max(slowest, rate)
            ahead = CAUTION * change * (slowest / (1.0 - slowest) if 0.0 < slowest < SLOWEST else 1.0)
            if change <= 1e-3 * self.tol or (step > 0 and rate < SLOWEST and ahead <= 0.9 * self.tol):
                self.n_steps, self._error = step + 1, max(ahead, factor.rounding)
                self._take(members, ratio)
                return True
            if not rate < SLOWEST:
                return False
            before = change
        return False

    def _factorize(self) -> bool:
        """Solve afresh and keep the factor; False for several distributions or kinds of restart."""
        self._factor = None
        if self.gamma < 1.0 and self._restart is not None and not self._totals.all():
            return False
        n = self.n_states
        rates = np.zeros((n + 1, n + 1))
        np.multiply(self._counts, self.gamma, out=rates[:n, :n])
        rates[:n, n], rates[n, :n] = self._rates_to_hub(), self._rates_from_hub()
        members = closed_class(rates)
        if members is None:
            return False
        factor = DenseFactor.from_rates(rates[np.ix_(members, members)], members, float(self._totals.sum()))
        if factor is None:
            return False
        self._factor, self._ratio = factor, factor.distribution.copy()
        self.n_steps, self._error = 0, None
        self.n_factorizations += 1
        self._take(members, self._ratio)
        return True

    def _rates_to_hub(self) -> Floats:
        """What goes from each state to the hub, in units of counts: restarts, and all of a leak."""
        return np.where(self._totals > 0.0, (1.0 - self.gamma) * self._totals, 1.0)

    def _rates_from_hub(self) -> Floats:
        """What the hub sends to each state: by default as the data lie at gamma = 1, anywhere else.

        The hub takes no time, so that its rates may have any scale. In proportion to all data they grow as
        the others do, and an old factor lasts longer.
        """
        given = self._initial if self.gamma < 1.0 else self._restart
        if given is None:
            return self._totals if self.gamma == 1.0 else np.full(self.n_states, self._totals.mean())
        return given * self._totals.sum()

    def _masses(self, members: Ids) -> Floats:
        """What one unit of y at each node weighs in mu: its count, 1 for a leak, 0 for a hub."""
        by_node = np.concatenate([np.where(self._totals > 0, self._totals, 1.0), [0.0]])
        return by_node[np.minimum(members, self.n_states)]

    def _take(self, members: Ids, ratio: Floats) -> None:
        """Turn the ratio of the nodes into the distribution of the states."""
        distribution = np.zeros(self.n_states + 1)
        distribution[members] = ratio * self._masses(members)
        self._distribution = read_only(distribution[:-1] / distribution.sum())
        self._distributions = (self._distribution,)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def n_transitions(self) -> int:
        """Transitions counted so far."""
        with _lock:
            return self._counted + len(self._pending)

    @property
    def stationary(self) -> Floats:
        """mu: the stationary distribution of the chain counted so far (read-only).

        Raises :class:`lingendice.SeveralDistributions` where there is more than one.
        """
        with _lock:
            self._refresh()
            if self._distribution is None:
                return self._as_solution().stationary  # names the ways out
            return self._distribution

    @property
    def tau(self) -> Floats:
        """mu / p; nan where there is no data."""
        with _lock:
            distribution, totals = self.stationary, self._totals
            return np.divide(
                distribution * totals.sum(), totals, out=np.full(distribution.shape, np.nan), where=totals > 0
            )

    @property
    def leak(self) -> float:
        """Stationary mass of states that were reached but have no outgoing transitions."""
        with _lock:
            return float(self.stationary[self._totals == 0].sum())

    @property
    def value(self) -> float | None:
        """Per-step value, sum p tau r over the mass whose rewards are known; None without rewards."""
        with _lock:
            self._flush()
            if self._rewards is None:
                return None
            distribution = self.stationary
            weight, total = self._rewards[3]
            known = weight > 0
            identified = float(distribution[known].sum())
            earned = float(np.einsum("s,s->", distribution[known], total[known] / weight[known]))
            return earned / identified if identified > 0.0 else float("nan")

    def snapshot(self) -> Counts:
        """The counts at this moment, frozen: later updates do not touch them.

        Without forgetting they are whole numbers; with it the last transition weighs 1.
        """
        with _lock:
            self._flush()
            return self._frozen()

    def solution(self) -> Solution:
        """The answer at this moment, frozen, with all that a :class:`Solution` offers."""
        with _lock:
            self._refresh()
            return with_identified_status(self._as_solution())

    def _frozen(self) -> Counts:
        entries = rows, columns = np.nonzero(self._counts)
        last = self._weight * self.forgetting  # the weight of the last transition

        def read(weights: Floats) -> NDArray[Any]:
            held = weights[entries] / last
            return np.rint(held).astype(np.int64) if self.forgetting == 1.0 else held

        rewards: dict[str, Any] = {}
        if self._rewards is not None:
            weight, mean, m2, _ = self._rewards
            rewards = {
                "reward_count": read(weight),
                "reward_mean": mean[entries],
                "reward_m2": m2[entries] / last,
            }
        indptr = np.searchsorted(rows, np.arange(self.n_states + 1)).astype(np.int64)
        return Counts(self.n_states, None, indptr, columns.astype(np.int32), read(self._counts), **rewards)

    def _as_solution(self) -> Solution:
        started = time.perf_counter()
        choices = Choices(gamma=self.gamma, initial=self._initial, restart=self._restart)
        operator = compose(self._frozen(), choices)
        direct = self._error is None
        outcome = Outcome(
            self._distributions[0],
            method="gth",
            reason="kept up to date" if self.n_steps else "solved afresh",
            converged=True,
            n_iter=self.n_steps,
            error=direct_error(self.n_states + 1) if direct else self._error,
            error_kind="direct" if direct else "estimate",
        )
        found = Distributions(self._distribution, self._distributions, outcome)
        return certified_solution(operator, found, Controls(tol=self.tol, started=started))

    def __repr__(self) -> str:
        kept = "" if self.forgetting == 1.0 else f", forgetting={self.forgetting:g}"
        seen = f"{kept}, {self.n_transitions:,} transitions"
        return f"OnlineRatio({self.n_states:,} states, gamma={self.gamma:g}{seen})"


def closed_class(rates: Floats) -> Ids | None:
    """Nodes of the one class that no rate leaves; None where there are several."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    edges = csr_array(rates > 0.0)
    n_components, component = connected_components(edges, connection="strong")
    source, target = edges.nonzero()
    closed = np.ones(n_components, bool)
    closed[component[source[component[source] != component[target]]]] = False
    return np.flatnonzero(component == np.argmax(closed)) if closed.sum() == 1 else None


@cache
def _hold_at_forks() -> None:
    """Have the lock held while the process forks.

    Handlers registered last run first: this one is taken before that of the compiler. The other way round a
    stream that has to compile would wait for that lock, and the fork for the stream.
    """
    import lingendice.kernels.jit  # noqa: F401

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
