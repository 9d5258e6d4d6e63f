"""The empirical transition operator: counts, policy, restart, smoothing and gamma composed.

Nothing of the size cells x cells is ever formed. With ``K(s'|x)`` the estimated distribution of the next
state (:mod:`lingendice.model.transition_rows`) and ``W(a|s)`` the (effective) policy,

    T(x'|x)  = K(s'|x) W(a'|s')
    G        = gamma T + (1 - gamma) 1 mu0'

Solvers ask the operator for the view that they work on: ``rows`` (K over cells), ``chain`` (over states) with
``chain.extended()`` (hubs written as nodes) and ``chain.pull()`` (transposed, for sweeps), and ``flow()``
(masses over the cells that have data) with ``flow.scaled_rows()`` (for the ridge).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_policy
from lingendice.data.counts import Counts
from lingendice.model.leaks import Closure, absorbs, mass_per_visit
from lingendice.model.transition_rows import TransitionRows

if TYPE_CHECKING:
    from lingendice.model.compose import Choices


ROUNDING = 1e-14
"""Of a total mass of 1."""


def spread(policy: Floats | None, states: Any) -> Any:
    """Multiply by the policy: a distribution over states, or each column of them, becomes one over cells."""
    if policy is None:
        return states
    if states.ndim == 1:
        return (states[:, None] * policy).ravel()
    return (states[:, None, :] * policy[:, :, None]).reshape(policy.size, -1)


def gather(policy: Floats | None, cells: Floats) -> Floats:
    """Average values over cells, or each column of them, by the policy: Q becomes V."""
    if policy is None:
        return cells
    return np.einsum("sa,sa...->s...", policy, cells.reshape(*policy.shape, *cells.shape[1:]))


class ScaledRows(NamedTuple):
    """T between the cells with data, for masses divided by q = sqrt(p): the rows for the ridge.

    An entry x, x' is ``rows[x, group[x']] spread[x'] + hub_out[x] @ from_hubs[:, x']``.
    """

    seen: NDArray[np.int64]
    """Cells with data."""
    q: Floats
    rows: Any
    """q K as a SciPy sparse array: seen cells by states."""
    group: NDArray[np.int64]
    """State of each seen cell."""
    spread: Floats
    """Policy of each seen cell, over q."""
    hub_out: Floats
    from_hubs: Floats


@dataclass(frozen=True, eq=False)
class Flow:
    """One step of the chain on masses over cells (columns of a matrix are stepped together).

    For m = p tau, the mass that a ratio puts on the cells,

        inflow(m) = (1 - gamma) mu0 + gamma T' m ,     residual(m) = inflow(m) - m ,

    and the normalization N(m) = 1 is the total mass, with what sits in unseen and terminal cells counted in.

    ``closed`` folds away the cells without outgoing transitions: mass that enters one is counted there and
    goes on from its hub at once. Without it such cells are ends of the data, and what is learned there is
    what the dual features carry over from cells with data.
    """

    gamma: float
    p: Floats
    """Data distribution over cells."""
    initial: Floats
    """mu0 over cells; zeros where gamma = 1 and none is needed."""
    rows: TransitionRows
    """Distribution of the next state for every cell (cells by states)."""
    policy: Floats | None
    """Actions of the next state; None where cells are states."""
    ended: Floats
    """Share of each cell absorbed at a terminal state; of states, in their actions without data, too."""
    closed: bool

    @property
    def n_cells(self) -> int:
        """Number of cells (or states, for a state ratio)."""
        return self.p.size

    @property
    def n_states(self) -> int:
        """Number of states that cells lead to."""
        return self.rows.n_states

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Cells with data."""
        return self.p > 0

    @cached_property
    def closure(self) -> Closure | None:
        """How leaks are folded away; None without any, or where they are left as they are."""
        if not self.closed or bool(self.seen.all()):
            return None
        policy = np.ones((self.n_cells, 1)) if self.policy is None else self.policy
        return Closure.of(self.rows, policy, self.seen, self.gamma)

    @property
    def out(self) -> Floats:
        """Share of every row that falls back to each hub, leaks folded away."""
        return self.rows.out if self.closure is None else self.closure.out

    @cached_property
    def start(self) -> Floats:
        """(1 - gamma) mu0, with what starts in unseen cells moved on where leaks are folded away."""
        return self._arrive((1.0 - self.gamma) * self._starting)  # type: ignore[no-any-return]

    def apply_transpose(self, mass: Any) -> Any:
        """gamma T' m over cells; O(nnz) for each column."""
        return self._arrive(self.gamma * self.rows.apply_transpose(mass))

    def apply(self, values: Floats) -> Floats:
        """The adjoint of :meth:`apply_transpose`: gamma T f over cells."""
        return self.gamma * self.rows.apply(self.gather(self.with_leaks(values)))

    def with_leaks(self, values: Floats, own: Floats | float = 0.0) -> Floats:
        """Values over cells, those of leaks filled in: what is their ``own``, and what they lead to."""
        if self.closure is None:
            return values
        filled = np.where(self.seen, values, own)
        filled[~self.seen] += self.closure.values(self.gather(filled))
        return filled

    def scaled_rows(self) -> ScaledRows:
        """The rows for the ridge: only cells with data, scaled by the root of p. O(nnz)."""
        seen = np.flatnonzero(self.seen)
        q = np.sqrt(self.p[seen])
        policy = np.ones(self.n_cells) if self.policy is None else self.policy.ravel()
        group = seen // (self.n_cells // self.n_states)
        spread = policy[seen] / q
        rows = self.rows.kernel()[seen]
        rows.data = rows.data * np.repeat(q, np.diff(rows.indptr))
        return ScaledRows(
            seen, q, rows, group, spread, self.out[seen] * q[:, None],
            self.rows.distribution[:, group] * spread,
        )  # fmt: skip

    def inflow(self, mass: Floats) -> Floats:
        """(1 - gamma) mu0 + gamma T' m."""
        return self.start + self.apply_transpose(mass)  # type: ignore[no-any-return]

    @cached_property
    def mass_weight(self) -> Floats:
        """nu: the total mass is ``nu' m + mass_offset``; 1 everywhere without leak and terminals."""
        weight = np.ones(self.n_cells)
        if self.closure is not None:
            weight += self.gamma * self.rows.apply(self.mass_elsewhere)
        if self.ended.any():
            weight += self.gamma / (1.0 - self.gamma) * self.ended
        return weight

    @cached_property
    def mass_elsewhere(self) -> Floats:
        """Mass in unseen cells for each unit that arrives in a state, then and after later restarts."""
        return np.zeros(self.n_states) if self.closure is None else self.closure.held_in_all

    @cached_property
    def mass_offset(self) -> float:
        """Mass of unseen cells that the initial distribution alone puts there."""
        if self.closure is None:
            return 0.0
        mass = float((1.0 - self.gamma) * self._starting @ self.mass_elsewhere)
        return mass if mass < 1.0 - ROUNDING else 1.0  # all of it, and nothing is left for the data

    @property
    def loses_mass(self) -> bool:
        """Whether mass is absorbed on a row with data or one that is followed: its total is then below 1.

        A ridge puts mass on all rows with data, those that the policy never follows included.
        """
        loses = 1.0 - self.rows.keep - self.rows.out.sum(axis=1) > 1e-12
        return bool(loses[self.seen].any() or self.gather(loses.astype(float)).any())

    def completed(self, mass: Floats) -> Floats:
        """m on seen cells, and on unseen ones the mass that visits them."""
        if self.seen.all():
            return mass
        arriving = (1.0 - self.gamma) * self._starting + self.gamma * self.rows.apply_transpose(mass)
        if self.closure is not None:
            arriving = self.closure.arrivals(arriving)
        return np.where(self.seen, mass, self.spread(arriving))

    def gather(self, values: Floats) -> Floats:
        """Average values over cells by the policy."""
        return gather(self.policy, values)

    @property
    def _starting(self) -> Floats:
        """mu0 over states."""
        return self.initial.reshape(self.n_states, -1).sum(axis=1)

    def _arrive(self, arriving: Any) -> Any:
        """Mass over states as mass over cells."""
        if self.closure is None:
            return self.spread(arriving)
        cells = self.spread(self.closure.arrivals(arriving))
        cells[~self.seen] = 0.0
        return cells

    def spread(self, states: Any) -> Any:
        """Mass over states times the policy: mass over cells."""
        return spread(self.policy, states)


def average_reward(data_distribution: Floats, reward: Floats) -> float | None:
    """Mean reward over the cells whose reward is known, weighted by the data; None where none is known."""
    known = np.isfinite(reward) & (data_distribution > 0)
    mass = float(data_distribution[known].sum())
    return float(data_distribution[known] @ reward[known]) / mass if mass > 0.0 else None


@dataclass(frozen=True, eq=False)
class EmpiricalOperator:
    """What the data say about one step under the target policy.

    Built by :func:`lingendice.model.compose.compose`. Vectors over cells have length ``n_cells``.
    """

    counts: Counts
    gamma: float
    initial: Floats | None
    """Initial distribution; None at gamma = 1 where none was given."""
    policy: Floats | None
    """The effective policy W, states by actions; None for a chain."""
    ratio: str
    rows: TransitionRows
    """K: the distribution of the next state for every cell."""
    ended: Floats
    """Share of each cell's transitions that ended in a terminal state and were absorbed."""
    reward: Floats | None
    falling: Mapping[str, Floats]
    """Share of each row that falls back to a distribution, by its name in
    :class:`lingendice.model.leaks.Fallbacks`."""
    choices: Choices
    """What it was built from, and what to repeat on resampled counts."""

    @property
    def target(self) -> Floats | None:
        """The policy asked for, before any transform."""
        if self.policy is None or self.choices.policy is None:
            return self.policy
        return require_policy("policy", self.choices.policy, *self.policy.shape)

    @property
    def logged_reward(self) -> Floats | None:
        """Mean rewards of cells where they are the log's own, and so noisy; None where they were given."""
        return self.reward if self.choices.reward is None else None

    @property
    def initial_is_logged(self) -> bool:
        """Whether the initial distribution is that of the log's first states, and so noisy.

        One that was given is known, though it may have the same entries.
        """
        logged = self.counts.initial_count
        known = self.initial is None or self.choices.initial is not None
        return not known and logged is not None and bool(logged.sum() > 0)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.counts.n_states

    @property
    def n_cells(self) -> int:
        """Number of states, or of state-action pairs."""
        return self.counts.n_cells

    @property
    def logged_average(self) -> float | None:
        """Average reward of the data as they are, where known, without any correction; None without any."""
        return None if self.reward is None else average_reward(self.counts.data_distribution, self.reward)

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Cells with outgoing transitions: p > 0."""
        seen: NDArray[np.bool_] = self.counts.cell_count > 0
        return seen

    @property
    def absorbs_leaks(self) -> bool:
        """Whether mass that arrives in cells without outgoing transitions stays there; a prior leads on."""
        return absorbs(self.choices.leak) and bool(self.rows.absorbed[~self.seen].all())

    @cached_property
    def visit_mass(self) -> Floats:
        """Mass that a visit to each cell stands for: 1, and in a leak that absorbs all that would follow."""
        return np.where(self.seen, 1.0, mass_per_visit(self.rows.absorbed, self.gamma))

    @cached_property
    def cell_initial(self) -> Floats | None:
        """mu0 over cells: first state, then an action of the policy."""
        return None if self.initial is None else self.spread(self.initial)

    def spread(self, state_values: Floats) -> Floats:
        """Multiply values over states by the policy: a distribution over states becomes one over cells."""
        return spread(self.policy, state_values)  # type: ignore[no-any-return]

    def over_states_and_cells(self, fitted: Floats) -> tuple[Floats, Floats]:
        """Both forms of a distribution that was fitted over states (``ratio="state"``) or over cells."""
        states = fitted.reshape(self.n_states, -1).sum(axis=1)
        return states, fitted if fitted.size == self.n_cells else self.spread(fitted)

    def gather(self, cell_values: Floats) -> Floats:
        """Average values over cells, or each column of them, by the policy: Q becomes V."""
        return gather(self.policy, cell_values)

    def next_state_distribution(self, cell_distribution: Floats) -> Floats:
        """K' applied to a distribution over cells: the distribution of the next state."""
        return self.rows.apply_transpose(cell_distribution)

    def expected_next(self, state_values: Floats) -> Floats:
        """K applied to values over states."""
        return self.rows.apply(state_values)

    def apply(self, values: Floats) -> Floats:
        """G values, for values over cells."""
        stepped = self.gamma * self.expected_next(self.gather(np.asarray(values, dtype=float)))
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * (self.cell_initial @ values)
        return stepped

    def apply_transpose(self, distribution: Floats) -> Floats:
        """G' distribution, for a (signed) distribution over cells."""
        return self._stepped(np.asarray(distribution, dtype=float), np.sum(distribution))

    def residual(self, cell_distribution: Floats) -> Floats:
        """mu - (1 - gamma) mu0 - gamma T' mu over cells; absorbed mass makes it no distribution of G."""
        return cell_distribution - self._stepped(cell_distribution, 1.0)

    def _stepped(self, cell_distribution: Floats, started: float) -> Floats:
        """gamma T' mu, and what of the mass ``started`` begins anew."""
        stepped = self.gamma * self.spread(self.next_state_distribution(cell_distribution))
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * started * self.cell_initial
        return stepped

    # -- views -----------------------------------------------------------------------------------------

    @cached_property
    def chain(self) -> TransitionRows:
        """The chain over states under the policy; mu(s, a) = d(s) W(a|s) for its distribution d."""
        rows = self.rows
        if self.policy is None:
            return rows
        from scipy.sparse import csr_array

        n_states, n_actions = self.policy.shape
        first = np.arange(0, self.n_cells + 1, n_actions)
        choose = csr_array(
            (self.policy.ravel() * rows.scale, np.arange(self.n_cells), first), shape=(n_states, self.n_cells)
        )
        choose.eliminate_zeros()
        mixed = choose @ rows.weights
        keep = np.minimum(self.gather(rows.keep), 1.0)  # an average of shares, rounded
        indptr, out = mixed.indptr.astype(np.int64), self.gather(rows.out)
        return TransitionRows(indptr, mixed.indices, mixed.data, keep, keep, out, rows.distribution)

    def flow(self, *, closed: bool) -> Flow:
        """Masses over cells, or over states for ``ratio="state"``; ``closed`` folds leaks away."""
        data_distribution = np.asarray(self.counts.data_distribution)
        if self.policy is not None and self.ratio == "state":
            rows, policy = self.chain, None
            p = data_distribution.reshape(self.n_states, -1).sum(axis=1)
            initial = self.initial
            # A state may have data and be left by an action without any, where leaks may absorb.
            ended = np.where(p > 0, self.gather(np.where(self.seen, self.ended, self.rows.absorbed)), 0.0)
        else:
            rows, policy, p = self.rows, self.policy, data_distribution
            initial, ended = self.cell_initial, self.ended
        if initial is None or self.gamma == 1.0:
            initial = np.zeros(p.size)
        return Flow(self.gamma, p, initial, rows, policy, ended, closed)
