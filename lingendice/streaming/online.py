"""``OnlineRatio``: the stationary ratio of a running stream, kept up to date as transitions arrive."""

from __future__ import annotations

import copy
import os
import threading
import time
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

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
from lingendice.solvers.control import Controls, EliminationError, Outcome, direct_error
from lingendice.solvers.stationary import Distributions

if TYPE_CHECKING:
    from lingendice.solvers.elimination import Elimination

Ids = NDArray[np.int64]
MOST_STATES = 4096
"""States up to which a dense table of counts is kept."""
BUFFER = 1024
"""Single transitions gathered before they are counted together."""
HEAVIEST = 2.0**300
"""Weight of a new transition at which, with forgetting, all counts are scaled down."""
LIGHTEST = 2.0**-700
"""Weight, when counts are scaled down, below which a row is dropped while all its digits are still there."""
WORN = 8
"""Steps of a refresh after which the next one starts from a new factor."""
FEWEST_PLANNED = 64
"""Nodes from which a sparse elimination is looked into; fewer are eliminated densely in no time."""
FEW_SUCCESSORS = 8
"""Successors per node, on average, up to which the same holds."""
WORTH_PLANNING = 0.05
"""Share of the operations of a dense elimination up to which a sparse one is taken instead."""


class _Factor(NamedTuple):
    """An elimination of the chain as it was, and what places it among the states."""

    arrays: tuple[NDArray[np.float32], Floats, Floats]
    """Shares, flows and distribution y of the nodes of the recurrent class."""
    members: Ids
    """Number of each node of the class: states first, then the hub."""
    place: Ids
    """The inverse over states: -1 for transient ones."""
    hub: int
    """Place of the hub, -1 without one."""
    total: float
    """Data at the time, in the units of then."""
    rounding: float
    """Relative error that rounding in a residual can bring."""


class _Plan(NamedTuple):
    """How to eliminate a chain of few transitions afresh, which costs less than to follow it."""

    elimination: Elimination
    start: Ids
    target: NDArray[np.int32]
    """Places of the rates among the nodes, as compressed rows."""
    members: Ids
    place: Ids
    """As in a factor."""


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
    of O(n^2) with that factor, and make a new one when it has worn out, when the recurrent class changed, or
    when rounding would be amplified beyond ``tol``. If states have few, local successors (a walk on a ring
    or a grid), every read eliminates the chain again, in an order of states that is kept while no new pair
    is seen. All methods may be called from several threads.

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
        self._make_lock()
        self._pending: list[tuple[int, int, float | None]] = []
        self._counts = np.zeros((self.n_states, self.n_states))
        self._totals = np.zeros(self.n_states)
        self._rewards: tuple[Floats, Floats, Floats, Floats] | None = None
        self._weight = 1.0
        room = max(4096, 32 * self.n_states)
        self._recent = (np.empty((room, 2), np.int64), np.empty(room))
        self._n_recent = 0
        self._solved = 0
        """How many of the recent transitions the ratio knows."""
        self._factor: _Factor | None = None
        self._plan: _Plan | None = None
        self._may_plan = True
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
        with self._lock:
            # Copied under the lock: the stream may go on while the state is written out.
            return copy.deepcopy({name: held for name, held in self.__dict__.items() if name != "_lock"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # The limit from `initial` is none of the several distributions.
        self._distribution = None if self._distribution is None else read_only(self._distribution)
        self._distributions = tuple(map(read_only, self._distributions))
        self._make_lock()

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        _heed_forks()
        _streams.add(self)

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
                with self._lock:
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
        with self._lock, interruptible() as work, work.held():
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
        known = self._factor or self._plan
        place = np.full(self.n_states, -1, np.int64) if known is None else known.place
        self._weight, self._n_recent, changed, widened = add_transitions(
            states, next_states, self._weight, growth, self._counts, self._totals, place, self._recent,
            self._n_recent,
        )  # fmt: skip
        if changed or self._n_recent > self._recent[1].size:
            self._factor = None
        if changed or widened:
            self._plan = None
        self._may_plan |= bool(changed)
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
        self._factor = self._plan = None
        self._may_plan = True

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
        if self._follow() or self._eliminate() or self._factorize():
            return
        solution = lg.solve(
            self._frozen(), self.gamma, initial=self._initial, restart=self._restart, tol=self.tol
        )
        self._distribution, self._distributions = solution.state_distribution, solution.state_distributions
        self._error, self.n_steps = solution.error, 0
        self.n_factorizations += 1

    def _follow(self) -> bool:
        """Refresh the ratio with the factor at hand; False where that is not possible or not worth it."""
        factor = self._factor
        if factor is None or self._ratio is None or factor.rounding > 0.25 * self.tol or self.n_steps > WORN:
            return False
        ratio = self._ratio
        self.n_steps, error = self._refreshed(factor, ratio)
        if self.n_steps < 0:
            return False
        self._error, self._solved = max(error, factor.rounding), self._n_recent
        self._take(factor.members, ratio)
        return True

    def _refreshed(self, factor: _Factor, ratio: Floats) -> tuple[int, float]:
        """Bring the ratio up to date in place: steps (or -1) and error."""
        from lingendice.kernels.online_updates import Nodes, refresh

        leads_to = self._hub_distribution()
        follows_data = leads_to is self._totals and factor.hub >= 0
        nodes = Nodes(self.gamma, factor.members, factor.hub, leads_to, follows_data)
        steps, error = refresh(
            self._counts, self._totals, nodes, self._masses(factor.members), factor.arrays,
            self._totals.sum() / factor.total, factor.rounding, self._recent, self._solved, self._n_recent,
            self.tol, ratio,
        )  # fmt: skip
        return steps, error

    def _factorize(self) -> bool:
        """Solve afresh and keep the factor; False for several distributions or kinds of restart."""
        from lingendice.kernels.counted_chains import closed_class, compress, hubs_of, rows_among, to_dense
        from lingendice.kernels.gth_dense import dense_distribution, dense_factor
        from lingendice.kernels.online_updates import flow_factor, rounding_error
        from lingendice.kernels.sparse_rows import rows_between_nodes

        self._factor = None
        if self.gamma < 1.0 and self._restart is not None and not self._totals.all():
            return False
        initial, restart = (np.empty(0) if one is None else one for one in (self._initial, self._restart))
        out, distribution = hubs_of(self._totals, self.gamma, initial, restart)
        indptr, indices, data = compress(self._counts)
        scale = np.full(self.n_states, self.gamma)
        start, target, rate = rows_between_nodes(indptr, indices, data, scale, out, distribution)
        members, classes = closed_class(start, target)
        if classes != 1:
            return False
        start, target, rate = rows_among(start, target, rate, members)
        place = np.full(self.n_states, -1, np.int64)
        states = members < self.n_states
        place[members[states]] = np.flatnonzero(states)
        if self._may_plan:
            self._plan = self._make_plan(start, target, members, place)
            if self._eliminate():
                return True
        rates = to_dense(start, target, rate)
        front, exit_rate, broken = dense_factor(rates)
        if broken >= 0:
            return False
        ratio, lost = dense_distribution(front, exit_rate)
        if lost >= 0:
            return False
        np.fill_diagonal(rates, 0.0)
        arrays = (*flow_factor(front, exit_rate, ratio), ratio.copy())
        rounding = rounding_error(arrays, rates.sum(axis=1))
        hub = members.size - 1 if not states[-1] else -1
        self._factor = _Factor(arrays, members, place, hub, float(self._totals.sum()), float(rounding))
        self._n_recent = self._solved = self.n_steps = 0
        if self.n_factorizations == 0:
            self._refreshed(self._factor, ratio.copy())  # compiles it now, not in the midst of a stream
        self.n_factorizations += 1
        self._error, self._ratio = None, ratio
        self._take(members, ratio)
        return True

    def _make_plan(self, start: Ids, target: NDArray[np.int32], members: Ids, place: Ids) -> _Plan | None:
        """A plan where the chain is so sparse, and so local, that it is worth having."""
        from lingendice.solvers.elimination import Elimination

        size = members.size
        if size < FEWEST_PLANNED:
            return None
        self._may_plan = False  # until the class changes, pairs only become more
        if target.size > FEW_SUCCESSORS * size:
            return None
        most = WORTH_PLANNING * 2 / 3 * size**3
        n_hubs = int((members >= self.n_states).sum())
        elimination = Elimination.analyze(start, target, size, n_hubs, max_flops=most)
        self._may_plan = elimination.complete
        return _Plan(elimination, start, target, members, place) if self._may_plan else None

    def _eliminate(self) -> bool:
        """Solve afresh as planned; False without a plan, or where it does not serve."""
        from lingendice.kernels.online_updates import rates_among

        if self._plan is None:
            return False
        plan = self._plan
        nodes = plan.members, self._hub_distribution(), plan.start, plan.target
        rates = rates_among(self._counts, self._totals, self.gamma, *nodes)
        try:
            ratio = plan.elimination.factorize(rates, keep_rows=False).stationary()
        except EliminationError:
            self._plan = None
            return False
        self.n_factorizations += 1
        self.n_steps, self._error = 0, None
        self._take(plan.members, ratio)
        return True

    def _hub_distribution(self) -> Floats:
        """Where the hub leads: by default to the data at gamma = 1, anywhere else."""
        given = self._initial if self.gamma < 1.0 else self._restart
        if given is None:
            return self._totals if self.gamma == 1.0 else np.ones(self.n_states)
        return given

    def _masses(self, members: Ids) -> Floats:
        """What one unit of y at each node weighs in mu: its count, 1 for a leak, 0 for a hub."""
        by_node = np.concatenate([np.where(self._totals > 0, self._totals, 1.0), [0.0]])
        return by_node[np.minimum(members, self.n_states)]

    def _take(self, members: Ids, ratio: Floats) -> None:
        """Turn the ratio of the nodes into the distribution of the states."""
        from lingendice.kernels.counted_chains import share_out

        distribution = np.empty(self.n_states)
        share_out(ratio, members, self._totals, distribution)
        self._distribution = read_only(distribution)
        self._distributions = (self._distribution,)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def n_transitions(self) -> int:
        """Transitions counted so far."""
        with self._lock:
            return self._counted + len(self._pending)

    @property
    def stationary(self) -> Floats:
        """mu: the stationary distribution of the chain counted so far (read-only).

        Raises :class:`lingendice.SeveralDistributions` where there is more than one.
        """
        with self._lock:
            self._refresh()
            if self._distribution is None:
                return self._as_solution().stationary  # names the ways out
            return self._distribution

    @property
    def tau(self) -> Floats:
        """mu / p; nan where there is no data."""
        with self._lock:
            distribution, totals = self.stationary, self._totals
            return np.divide(
                distribution * totals.sum(), totals, out=np.full(distribution.shape, np.nan), where=totals > 0
            )

    @property
    def leak(self) -> float:
        """Stationary mass of states that were reached but have no outgoing transitions."""
        with self._lock:
            return float(self.stationary[self._totals == 0].sum())

    @property
    def value(self) -> float | None:
        """Per-step value, sum p tau r over the mass whose rewards are known; None without rewards."""
        with self._lock:
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
        with self._lock:
            self._flush()
            return self._frozen()

    def solution(self) -> Solution:
        """The answer at this moment, frozen, with all that a :class:`Solution` offers."""
        with self._lock:
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


_streams: WeakSet[OnlineRatio] = WeakSet()
_at_rest: list[OnlineRatio] = []


def _bring_to_rest() -> None:
    """Before a fork: no thread is in the midst of an update that the child would never see finished."""
    for stream in sorted(_streams, key=id):
        stream._lock.acquire()
        _at_rest.append(stream)


def _go_on() -> None:
    while _at_rest:
        _at_rest.pop()._lock.release()


@cache
def _heed_forks() -> None:
    """Handlers registered last run first: streams rest before the compiler's lock is taken.

    The other way round a stream that has to compile would wait for that lock, and the fork for the stream.
    """
    import lingendice.kernels.jit  # noqa: F401

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_bring_to_rest, after_in_parent=_go_on, after_in_child=_go_on)
