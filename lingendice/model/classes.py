"""Communicating classes of a chain: which states recur, which are transient, with what period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array


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
    from lingendice.kernels.chains.graph_walks import closed_components, strong_components

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
    from lingendice.kernels.chains.graph_walks import cycle_divisor

    return int(cycle_divisor(*_pattern(rates)))


def _pattern(rates: csr_array) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Row pointers and columns in the types that kernels take."""
    return rates.indptr.astype(np.int64, copy=False), rates.indices.astype(np.int32, copy=False)


def submatrix(rates: csr_array, nodes: NDArray[Any]) -> csr_array:
    """Rates among ``nodes``; the matrix itself where that is all of them."""
    if nodes.size == rates.shape[0]:
        return rates
    return rates[nodes][:, nodes]
