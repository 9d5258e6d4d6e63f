"""The empirical transition operator: counts, policy, restart, smoothing and gamma composed.

Nothing of the size cells x cells is ever formed. With ``K(s'|x)`` the estimated distribution of the next
state and ``W(a|s)`` the (effective) policy,

    K(s'|x)  = keep(x) count(x, s') / total(x) + sum_k out(x, k) distribution(k, s')
    T(x'|x)  = K(s'|x) W(a'|s')
    G        = gamma T + (1 - gamma) 1 mu0'

Rows of K that fall short of 1 lose their mass: it is absorbed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.rows import scale_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class FlowChain(NamedTuple):
    """The chain over states that the exact solvers work on.

    ``P(j|i) = keep[i] weight[i, j] / total[i] + sum_k out[i, k] distribution[k, j]``; rows may fall short of
    1.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weight: NDArray[Any]
    total: Floats
    keep: Floats
    out: Floats
    distribution: Floats

    @property
    def n(self) -> int:
        """Number of states."""
        return self.indptr.size - 1

    @property
    def n_hubs(self) -> int:
        """Number of distributions that rows fall back to."""
        return self.distribution.shape[0]

    def scale(self) -> Floats:
        """keep / total, 0 for empty rows: what turns weights into probabilities."""
        return np.divide(self.keep, self.total, out=np.zeros(self.n), where=self.total > 0)

    def absorbed(self) -> Floats:
        """What each row falls short of 1, rounding left out."""
        missing = 1.0 - self.keep - self.out.sum(axis=1)
        return np.where(missing > 1e-12, missing, 0.0)

    def kernel(self) -> csr_array:
        """The counted part of P as a SciPy sparse array."""
        from scipy.sparse import csr_array

        data = scale_rows(self.indptr, self.weight, self.scale())
        return csr_array((data, self.indices, self.indptr), shape=(self.n, self.n))

    def push(self, distribution: Floats) -> Floats:
        """P' distribution: one step of the chain from a distribution over states."""
        return (
            _weights_matrix(self).T @ (distribution * self.scale())
            + (distribution @ self.out) @ self.distribution
        )

    def pull(self, values: Floats) -> Floats:
        """P values: expected value after one step."""
        return self.scale() * (_weights_matrix(self) @ values) + self.out @ (self.distribution @ values)


def _weights_matrix(chain: FlowChain) -> csr_array:
    from scipy.sparse import csr_array

    return csr_array((chain.weight, chain.indices, chain.indptr), shape=(chain.n, chain.n))


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
    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weight: NDArray[Any]
    total: Floats
    keep: Floats
    out: Floats
    distribution: Floats
    ended: Floats
    """Share of each cell's transitions that ended in a terminal state and were absorbed."""
    reward: Floats | None
    leak_policy: str
    choices: Any = None
    """The :class:`lingendice.model.compose.Choices` it was built from: what to repeat on resampled counts."""

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
        """Cells that were seen leaving: p > 0."""
        seen: NDArray[np.bool_] = self.counts.cell_count > 0
        return seen

    @cached_property
    def cell_initial(self) -> Floats | None:
        """mu0 over cells: first state, then an action of the policy."""
        return None if self.initial is None else self.spread(self.initial)

    def spread(self, state_values: Floats) -> Floats:
        """Multiply values over states by the policy: a distribution over states becomes one over cells."""
        if self.policy is None:
            return state_values
        return (state_values[:, None] * self.policy).ravel()

    def gather(self, cell_values: Floats) -> Floats:
        """Average values over cells by the policy: Q becomes V."""
        if self.policy is None:
            return cell_values
        return np.einsum("sa,sa->s", self.policy, cell_values.reshape(self.policy.shape))

    def next_state_distribution(self, cell_distribution: Floats) -> Floats:
        """K' applied to a distribution over cells: the distribution of the next state."""
        return (
            self._weights.T @ (cell_distribution * self._scale)
            + (cell_distribution @ self.out) @ self.distribution
        )

    def expected_next(self, state_values: Floats) -> Floats:
        """K applied to values over states."""
        return self._scale * (self._weights @ state_values) + self.out @ (self.distribution @ state_values)

    def apply(self, values: Floats) -> Floats:
        """G values, for values over cells."""
        stepped = self.gamma * self.expected_next(self.gather(np.asarray(values, dtype=float)))
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * (self.cell_initial @ values)
        return stepped

    def apply_transpose(self, distribution: Floats) -> Floats:
        """G' distribution, for a (signed) distribution over cells."""
        stepped = self.gamma * self.spread(
            self.next_state_distribution(np.asarray(distribution, dtype=float))
        )
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * np.sum(distribution) * self.cell_initial
        return stepped

    def residual(self, cell_distribution: Floats) -> Floats:
        """mu - (1 - gamma) mu0 - gamma T' mu over cells; absorbed mass makes it no distribution of G."""
        stepped = self.gamma * self.spread(self.next_state_distribution(cell_distribution))
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * self.cell_initial
        return cell_distribution - stepped

    @cached_property
    def chain(self) -> FlowChain:
        """The chain over states under the policy; mu(s, a) = d(s) W(a|s) for its distribution d."""
        if self.policy is None:
            return FlowChain(
                self.indptr, self.indices, self.weight, self.total, self.keep, self.out, self.distribution
            )
        from scipy.sparse import csr_array

        n_states, n_actions = self.policy.shape
        choose = csr_array(
            (
                self.policy.ravel() * self._scale,
                np.arange(self.n_cells),
                np.arange(0, self.n_cells + 1, n_actions),
            ),
            shape=(n_states, self.n_cells),
        )
        choose.eliminate_zeros()
        mixed = choose @ self._weights
        keep = self.gather(self.keep)
        keep = np.minimum(keep, 1.0)  # an average of shares, rounded
        out = (
            np.stack([self.gather(column) for column in self.out.T], axis=1)
            if self.out.size
            else self.out[:n_states]
        )
        return FlowChain(
            mixed.indptr.astype(np.int64),
            mixed.indices,
            mixed.data,
            keep,
            keep,
            out.reshape(n_states, -1),
            self.distribution,
        )

    @cached_property
    def _scale(self) -> Floats:
        return np.divide(self.keep, self.total, out=np.zeros(self.total.size), where=self.total > 0)

    @cached_property
    def _weights(self) -> csr_array:
        from scipy.sparse import csr_array

        return csr_array((self.weight, self.indices, self.indptr), shape=(self.n_cells, self.n_states))
