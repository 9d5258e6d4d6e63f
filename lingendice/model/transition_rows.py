"""Rows of transition probabilities: counted transitions and a few distributions to fall back to.

    K(s'|x) = keep(x) weight(x, s') / total(x) + sum_k out(x, k) distribution(k, s')

The rows of an operator over cells and those of its chain over states have this one form. A distribution that
rows fall back to is called a hub: it is stored once, whatever the number of rows. Rows that fall short of 1
lose their mass: it is absorbed. Written as rates between nodes (`TransitionRows.extended`), a chain falls
into communicating classes: `find_classes` says which states recur and which are transient.

Views of the rows, each by one name: ``kernel`` (the counted part as a SciPy array), ``counted`` (the same in
the types that kernels take), ``extended`` (hubs as nodes), ``pull`` and ``pull_values`` (who draws on whom).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

if TYPE_CHECKING:
    from collections.abc import Callable

    from scipy.sparse import csr_array

    from lingendice.model.pull_system import PullSystem


class CountedRows(NamedTuple):
    """The counted part of the rows in the types that kernels take: share times data are probabilities."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.signedinteger[Any]]
    data: Floats
    """Empty, for ones, where the weights of each row are equal."""
    share: Floats
    """Probability that each row sends along an edge of weight one."""


@dataclass(frozen=True, eq=False)
class TransitionRows:
    """Distribution of the next state for every cell (or state); the module has the formula."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weight: NDArray[Any]
    total: Floats
    keep: Floats
    out: Floats
    """Share of each row that falls back to each hub, rows by hubs."""
    distribution: Floats
    """Hubs by states."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.total.size

    @property
    def n_states(self) -> int:
        """Number of states that rows lead to."""
        return int(self.distribution.shape[1])

    @property
    def n_hubs(self) -> int:
        """Number of distributions that rows fall back to."""
        return int(self.distribution.shape[0])

    @cached_property
    def scale(self) -> Floats:
        """keep / total, 0 for empty rows: what turns weights into probabilities."""
        return np.divide(self.keep, self.total, out=np.zeros(self.n), where=self.total > 0)

    @cached_property
    def absorbed(self) -> Floats:
        """What each row falls short of 1, rounding left out."""
        missing = 1.0 - self.keep - self.out.sum(axis=1)
        return np.where(missing > 1e-12, missing, 0.0)

    @cached_property
    def weights(self) -> csr_array:
        """The weights as they are."""
        from scipy.sparse import csr_array

        return csr_array((self.weight, self.indices, self.indptr), shape=(self.n, self.n_states))

    def kernel(self) -> csr_array:
        """The counted part of K as a SciPy sparse array."""
        from scipy.sparse import csr_array

        data = self.weight * np.repeat(self.scale, np.diff(self.indptr))
        return csr_array((data, self.indices, self.indptr), shape=(self.n, self.n_states))

    @cached_property
    def counted(self) -> CountedRows:
        """The counted part for kernels; O(nnz), nothing is copied but arrays of another type."""
        from lingendice.kernels.sparse_rows import rows_are_uniform
        from lingendice.model.pull_system import row_ranges

        indices = np.ascontiguousarray(self.indices, dtype=np.int32 if self.n < 2**31 else np.int64)
        data = np.ascontiguousarray(self.weight, dtype=np.float64)
        if all(rows_are_uniform(self.indptr, data, *some) for some in row_ranges(self.indptr, 0, self.n)):
            return CountedRows(
                self.indptr, indices, np.empty(0), self.keep / np.maximum(np.diff(self.indptr), 1)
            )
        return CountedRows(self.indptr, indices, data, self.scale)

    def pull(self, threads: int, tick: Callable[[], None], order: Any = None) -> PullSystem:
        """Who every state draws mass from: the counted part transposed, renumbered where that is faster."""
        from lingendice.model.pull_system import lacks_locality, transposed_system

        indptr, indices, data, _ = self.counted
        window = self.n if lacks_locality(indptr, indices) else 0
        return transposed_system(
            indptr, indices, data, order=order, window=window, threads=threads, tick=tick
        )

    def pull_values(self, threads: int, tick: Callable[[], None]) -> PullSystem:
        """Who every state draws values from: the counted part itself, self-loops apart."""
        from lingendice.model.pull_system import row_system

        indptr, indices, data, _ = self.counted
        return row_system(indptr, indices, data, threads=threads, tick=tick)

    def dense(self) -> Floats:
        """K as an array; for few rows alone."""
        dense: Floats = self.kernel().toarray() + self.out @ self.distribution
        return dense

    def apply(self, values: Floats) -> Floats:
        """K values: the expected value after one step. O(nnz) for each column."""
        counted = (self.weights @ values).T * self.scale
        return counted.T + self.out @ (self.distribution @ values)  # type: ignore[no-any-return]

    def apply_transpose(self, mass: Floats) -> Floats:
        """K' mass: the mass that arrives in every state. O(nnz) for each column."""
        counted = self.weights.T @ (mass.T * self.scale).T
        # For one hub out.T @ mass is a dot product, for which BLAS may wait longer than all else takes.
        fallen = np.einsum("rh,r...->h...", self.out, mass)
        return counted + self.distribution.T @ fallen  # type: ignore[no-any-return]

    # -- absorbed mass ---------------------------------------------------------------------------------

    def restarts(self, gamma: float) -> Floats:
        """Share of each visit that starts anew from the initial distribution, absorbed mass included."""
        # Not 1 - gamma (keep + out): of a difference that small rounding would leave few digits.
        return (1.0 - gamma) + gamma * self.absorbed

    def returning(self, target: Floats) -> TransitionRows:
        """The same rows with what they absorb sent to ``target``; they have a hub, and sum to 1."""
        if self.n_hubs and not self.absorbed.any():
            return self
        out, distribution = add_hub(self.out, self.distribution, self.absorbed, target)
        return replace(self, out=out, distribution=distribution)

    def with_sink(self) -> TransitionRows:
        """A chain whose absorbed mass goes to one more state, the last one, which it never leaves."""
        n, hubs = self.n, self.n_hubs
        return TransitionRows(
            indptr=np.append(self.indptr, self.indptr[-1] + 1),
            indices=np.append(self.indices, n),
            weight=np.append(self.weight, 1.0),
            total=np.append(self.total, 1.0),
            keep=np.append(self.keep, 1.0),
            out=np.vstack([np.column_stack([self.out, self.absorbed]), np.zeros((1, hubs + 1))]),
            distribution=np.vstack(
                [np.column_stack([self.distribution, np.zeros(hubs)]), np.eye(1, n + 1, n)]
            ),
        )

    def extended(self, gamma: float = 1.0, initial: Floats | None = None) -> tuple[csr_array, Floats]:
        """The chain with hubs written as nodes: rows step to their hub, which steps on at once.

        Where ``initial`` is given (gamma < 1 needs it) every node also steps to the hub of that distribution,
        with what gamma and absorption leave of its row. Returns the rates between nodes (states first, hubs
        last) and the rate at which each node feeds the initial distribution (zeros without one). The
        distribution of the states is that of this chain with hubs left out (censored): hubs take no time.
        """
        from scipy.sparse import csr_array

        from lingendice.kernels.sparse_rows import rows_between_nodes

        out, distribution, feeds = gamma * self.out, self.distribution, np.zeros(self.n)
        if gamma < 1.0 and initial is None:
            raise ValueError("gamma < 1 needs an initial distribution")
        if initial is not None:
            feeds = self.restarts(gamma)
            out, distribution = add_hub(out, distribution, feeds, initial)
        start, target, rate = rows_between_nodes(
            self.indptr, self.indices, self.weight.astype(float), gamma * self.scale, out, distribution
        )
        nodes = csr_array((rate, target, start), shape=(start.size - 1,) * 2)
        return nodes, np.concatenate([feeds, np.zeros(distribution.shape[0])])


def add_hub(out: Floats, distribution: Floats, share: Floats, target: Floats) -> tuple[Floats, Floats]:
    """Send ``share`` of each row to the distribution ``target``, over a hub with it if there is one."""
    for position in range(distribution.shape[0]):
        if np.array_equal(distribution[position], target):
            out = out.copy()
            out[:, position] += share
            return out, distribution
    return np.column_stack([out, share]), np.vstack([distribution, target])


# -- communicating classes -----------------------------------------------------------------------------------


class Classes(NamedTuple):
    """Strongly connected components of a chain over ``n`` nodes."""

    component: NDArray[Any]
    """The component of every node."""
    recurrent: tuple[NDArray[np.int64], ...]
    """Nodes of each closed component, in order of their first node."""

    @property
    def transient(self) -> NDArray[np.int64]:
        """Nodes outside every recurrent class."""
        stays = np.zeros(self.component.size, dtype=bool)
        for nodes in self.recurrent:
            stays[nodes] = True
        return np.flatnonzero(~stays)


def find_classes(rates: csr_array) -> Classes:
    """Strongly connected components, and which of them no edge leaves. O(nnz)."""
    from lingendice.kernels.sparse_rows import closed_components, strong_components

    indptr, indices = _pattern(rates)
    component = np.zeros(rates.shape[0], dtype=np.int32 if rates.shape[0] < 2**30 else np.int64)
    n_components = strong_components(indptr, indices, component)
    if n_components == 1:
        return Classes(component, (np.arange(rates.shape[0]),))
    closed = closed_components(indptr, indices, component, n_components)
    order = np.argsort(component, kind="stable")
    first = np.searchsorted(component[order], np.arange(n_components + 1))
    groups = [order[first[c] : first[c + 1]] for c in np.flatnonzero(closed)]
    groups.sort(key=lambda nodes: int(nodes[0]))
    return Classes(component, tuple(groups))


def period(rates: csr_array) -> int:
    """Period of an irreducible chain: the common divisor of its cycle lengths. O(nnz)."""
    from lingendice.kernels.sparse_rows import cycle_divisor

    return int(cycle_divisor(*_pattern(rates)))


def _pattern(rates: csr_array) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Row pointers and columns in the types that kernels take."""
    return rates.indptr.astype(np.int64, copy=False), rates.indices.astype(np.int32, copy=False)


def submatrix(rates: csr_array, nodes: NDArray[Any]) -> csr_array:
    """Rates among ``nodes``; the matrix itself where that is all of them."""
    if nodes.size == rates.shape[0]:
        return rates
    return rates[nodes][:, nodes]
