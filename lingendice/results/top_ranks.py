"""The nodes that rank highest for each of many seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False, repr=False)
class TopRanks:
    """The highest ranks of every seed, in falling order, with a proven bound on their error.

    Rows of all arrays are seeds, in the order given.
    """

    nodes: tuple[tuple[Any, ...], ...]
    """The nodes by name, the highest first."""
    ranks: Floats
    error: Floats
    """L1 error of each seed's ranks over all nodes, proven: no rank is off by more."""
    positions: NDArray[np.int64]
    """The nodes by position."""
    n_nodes: int

    @property
    def matrix(self) -> csr_array:
        """Seeds by all nodes, sparse: 0 but for the highest ranks."""
        from scipy.sparse import csr_array

        n_seeds, kept = self.ranks.shape
        order = np.argsort(self.positions, axis=1)
        columns = np.take_along_axis(self.positions, order, axis=1).ravel()
        data = np.take_along_axis(self.ranks, order, axis=1).ravel()
        starts = np.arange(n_seeds + 1) * kept
        return csr_array((data, columns, starts), shape=(n_seeds, self.n_nodes))

    @property
    def is_certain(self) -> NDArray[np.bool_]:
        """Whether the error is too small to change the order of a seed's highest ranks among themselves."""
        return np.all(-np.diff(self.ranks, axis=1) > self.error[:, None], axis=1)

    def to_dict(self, seed: int = 0) -> dict[Any, float]:
        """The highest ranks of one seed by node."""
        return dict(zip(self.nodes[seed], self.ranks[seed].tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        worst = float(self.error.max(initial=0.0))
        return f"TopRanks({len(self):,} seeds x {self.ranks.shape[1]} nodes, error at most {worst:.1e})"
