"""Stationary distribution and bias of a sparse chain by elimination without subtractions.

References
----------
C. A. O'Cinneide (1993). Entrywise perturbation theory and error analysis for Markov chains. Numerische
    Mathematik 65.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from lingendice.kernels import fronts as elimination
from lingendice.kernels import gth_dense, ordering, symbolic
from lingendice.kernels.parallel import run_all
from lingendice.solvers.control import EliminationError, Monitor

Array = np.ndarray
Lists = tuple[Array, Array]  # where each list starts, and all lists in a row
Entries = tuple[Array, Array, Array]

# What one kernel call does: a twentieth of a second or so on a slow core.
_CHUNK_OPERATIONS = float(gth_dense.PORTION)
_CHUNK_VISITS = 5_000_000
_CHUNK_COUNTED = 20_000_000
_CHUNK_ENTRIES = 20_000_000
_CHUNK_WIDE_ENTRIES = 2_000_000


class Elimination:
    """Sparse direct elimination of an irreducible chain, accurate entry by entry.

    Solves x_j sum_k W_jk = sum_i x_i W_ij with sum x = 1, where W holds nonnegative rates off the diagonal
    (rows are sources; diagonal and explicit zeros are ignored; rows need not sum to one). The elimination
    subtracts nothing, so each entry of x is as accurate as the rates, however slowly the chain mixes and
    however nearly it falls apart.

    Use it as ``Elimination.analyze(...)``, look at `fill` and `flops`, then `factorize`, then `stationary`
    and `bias`. Cost: `flops` operations and 16 bytes per entry of `fill` (8 without rows), which are modest
    for planar and other locally connected chains and prohibitive for expander-like ones.

    Attributes
    ----------
    fill : int
        Entries of the factor, zeros stored for the sake of speed included.
    flops : float
        Floating-point operations of `factorize`.
    n : int
        Number of states.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.fill = 0
        self.flops = 0.0
        self.complete = False
        self._pattern: Entries
        self._graph: Lists
        self._fronts: elimination.Fronts
        self._factor: elimination.FrontFactor
        self._order = self._begin = self._size = self._owner = self._above = np.empty(0, np.int32)
        self._block = np.empty(0, np.int64)

    @classmethod
    def analyze(
        cls,
        indptr: np.ndarray,
        indices: np.ndarray,
        n: int,
        n_last: int = 0,
        data: np.ndarray | None = None,
        max_flops: float = np.inf,
        monitor: Monitor | None = None,
    ) -> Elimination:
        """Order the states and predict the cost, in time and memory nearly linear in the entries.

        The pattern is in CSR form; indices need not be sorted. Explicit zeros of ``data``, where given, are
        left out of it, and later `factorize` calls must share them. The last ``n_last`` states (hubs with
        dense rows or columns) are eliminated last. Ordering ends as soon as more than ``max_flops`` are
        certain; the prediction is then at least a lower bound, `complete` is False, and `factorize` refuses.
        `InterruptedError` where the ``monitor``, asked between chunks, ends the work.
        """
        self, monitor = cls(n), monitor or Monitor()
        indptr = np.ascontiguousarray(indptr, np.int64)
        indices = np.ascontiguousarray(indices, np.int32)
        values = np.ones(indices.size) if data is None else np.ascontiguousarray(data, np.float64)
        entries: Any = ordering.build_graph(indptr, indices, values, n)
        self._pattern = entries[:3]
        graph: Lists = entries[3:]
        # A node next to this many others would slow the ordering down and is bound to come late anyway.
        dense_degree = max(16, 10 * int(np.sqrt(n)))
        state, nodes, lists = ordering.begin_order(*graph, n, n_last, dense_degree)
        ordered = False
        while not ordered:
            ordered = ordering.continue_order(state, nodes, lists, _CHUNK_VISITS)
            monitor.check()
            self.fill, self.flops = int(state[ordering.FILL]), float(state[ordering.FLOPS])
            if self.flops > max_flops:
                return self
        order = ordering.finish_order(state, nodes)
        self._order, parent = symbolic.elimination_tree(*graph, order)
        count = symbolic.count_columns(*graph, self._order, parent, _CHUNK_COUNTED, monitor.check)
        self._begin, self._size, self._owner, self._above = symbolic.group_steps(parent, count)
        self._graph = graph
        width = np.diff(self._begin).astype(np.float64)
        self.fill = int((width * (2 * self._size - width)).sum())
        border = self._size - width
        self.flops = float((2 / 3 * (self._size**3 - border**3)).sum())
        # The last nodes, all neighbors of each other, are ordered at once: that may be most of the work.
        self.complete = self.flops <= max_flops
        return self

    def factorize(
        self,
        data: np.ndarray,
        *,
        keep_rows: bool = True,
        threads: int = 1,
        monitor: Monitor | None = None,
    ) -> Elimination:
        """Eliminate all states of the chain whose rates are ``data``, one per entry of the analyzed pattern.

        ``keep_rows`` keeps what `bias` needs; without it the factor takes half the memory. Independent
        subtrees are shared among the threads: the result is the same for any number. `EliminationError` where
        the chain is not irreducible, `InterruptedError` where the ``monitor``, asked between chunks of less
        than 0.1 s, ends the work.
        """
        monitor = monitor or Monitor()
        if not self.complete:
            raise ValueError("the analysis stopped early because the elimination is too large")
        data = np.ascontiguousarray(data, np.float64)
        begin, size = self._begin, self._size
        border: Lists = symbolic.front_states(*self._graph, self._order, begin, size, self._above)
        entries = elimination.FrontEntries(*symbolic.sort_entries(*self._pattern, self._order, self._owner))
        planned: Any = elimination.plan_runs(begin, size, self._above, threads)
        schedule, run, self._block, left_over, left_size, child, sibling = planned
        plan = elimination.FrontPlan(schedule, child, sibling, left_over)
        fronts = elimination.Fronts(begin, size, *border, self._block)
        rows = np.empty(self._block[-1] if keep_rows else 0)
        factor = elimination.FrontFactor(np.empty(self._block[-1]), rows, np.empty(self.n))
        left = np.empty(left_size)

        def run_part(r: int) -> int:
            first, stop = int(run[r]), int(run[r + 1])
            if first == stop:
                return -1
            widest = int(size[schedule[first:stop]].max())
            progress = np.zeros(elimination.PROGRESS_SIZE, np.int64)
            progress[elimination.NEXT_PLACE], progress[elimination.BROKEN_STEP] = first, -1
            room = elimination.Room(
                np.empty(widest * widest),
                np.empty(self.n, np.int32),
                np.empty((widest + gth_dense.BLOCK, gth_dense.BLOCK)),
            )
            while not elimination.eliminate_fronts(
                progress, stop, plan, fronts, entries, data, left, factor, room, _CHUNK_OPERATIONS
            ):
                monitor.check()
            return int(progress[elimination.BROKEN_STEP])

        broken = max(run_all([partial(run_part, r) for r in range(threads)], threads))
        if broken < 0:
            broken = run_part(threads)
        if broken >= 0:
            state = int(self._order[broken])
            raise EliminationError(
                "the chain is not irreducible: state {state} cannot reach the others (or only at rates that "
                "underflow); multiply the counts that leave it by a constant",
                state,
            )
        self._fronts, self._factor = fronts, factor
        return self

    def _chunks(self, entries: int) -> list[tuple[int, int]]:
        """Ranges of steps with about this many entries of the factor, in order."""
        of_step = self._size[self._owner]
        last = np.cumsum(of_step)
        n_chunks = 1 + int(last[-1]) // entries
        levels = np.linspace(0, last[-1], n_chunks + 1)[1:-1]
        cuts = np.unique(np.concatenate([[0], np.searchsorted(last, levels), [self.n]]))
        return list(pairwise(cuts.tolist()))

    def stationary(self, monitor: Monitor | None = None) -> np.ndarray:
        """The stationary distribution, sum one, every entry relatively accurate. Cost: one pass over the
        factor; `InterruptedError` where the ``monitor`` ends the work."""
        monitor = monitor or Monitor()
        x = np.empty(self.n)
        x[-1] = 1.0
        factored = self._fronts, self._factor, self._owner
        safe = True
        for low, high in reversed(self._chunks(_CHUNK_ENTRIES)):
            monitor.check()
            safe = elimination.solve_distribution(*factored, x, high, low)
            if not safe:
                break
        if safe:
            x /= x.sum()
        else:
            mantissa = np.zeros(self.n)
            mantissa[-1] = 1.0
            exponent = np.zeros(self.n, np.int64)
            for low, high in reversed(self._chunks(_CHUNK_WIDE_ENTRIES)):
                monitor.check()
                elimination.solve_distribution_wide(*factored, mantissa, exponent, high, low)
            lost = gth_dense.gather_wide(mantissa, exponent, x)
            if lost >= 0:
                state = int(self._order[lost])
                raise EliminationError("the rates into state {state} underflow: rescale its row", state)
        distribution = np.empty(self.n)
        distribution[self._order] = x
        return distribution

    def bias(
        self, reward: np.ndarray, time: np.ndarray | None = None, monitor: Monitor | None = None
    ) -> tuple[float, np.ndarray]:
        """Gain g and bias h with (D - W) h = reward - g time, D the row sums of W off the diagonal.

        ``time`` is one everywhere by default; states that take no time (hubs) have zero. The bias is zero
        at the state eliminated last: shift it as needed. Two passes over the factor; `InterruptedError` where
        the ``monitor`` ends the work.
        """
        monitor = monitor or Monitor()
        factored = self._fronts, self._factor, self._owner
        if self._factor.rows.size < self._block[-1]:
            raise ValueError("bias needs a factor made with keep_rows=True")
        r = np.asarray(reward, np.float64)[self._order]
        t = np.ones(self.n) if time is None else np.asarray(time, np.float64)[self._order]
        chunks, buffer = self._chunks(_CHUNK_ENTRIES), np.empty((2, int(self._size.max())))
        for low, high in chunks:
            monitor.check()
            elimination.push_rewards(*factored, r, t, buffer, low, high)
        gain = float(r[-1] / t[-1])
        by_step = np.empty(self.n)
        for low, high in reversed(chunks):
            monitor.check()
            elimination.solve_bias(*factored, r, t, gain, by_step, high, low)
        h = np.empty(self.n)
        h[self._order] = by_step
        return gain, h

    # -- a chain whose last state is never left: all others lead there ---------------------------------------

    def values_until_end(self, reward: np.ndarray, monitor: Monitor | None = None) -> np.ndarray:
        """V with (D - W) V = reward before the last state, where V = 0: what is earned until then.

        The last state, given as ``n_last=1``, has an empty row. Nothing is subtracted: where the reward is
        nonnegative every entry is as accurate as the rates. Two passes over the factor.
        """
        end = np.zeros(self.n)
        end[-1] = 1.0
        return self.bias(reward, end, monitor)[1]

    def visits_until_end(self, mass: np.ndarray, monitor: Monitor | None = None) -> np.ndarray:
        """d with (D - W)' d = mass before the last state: visits until the chain is there.

        The transpose of `values_until_end`, from the same factor, and as accurate.
        """
        monitor = monitor or Monitor()
        factored = self._fronts, self._factor, self._owner
        if self._factor.rows.size < self._block[-1]:
            raise ValueError("visits need a factor made with keep_rows=True")
        z = np.asarray(mass, np.float64)[self._order]
        chunks, buffer = self._chunks(_CHUNK_ENTRIES), np.empty(int(self._size.max()))
        for low, high in chunks:
            monitor.check()
            elimination.push_mass(*factored, z, buffer, low, high)
        by_step = np.empty(self.n)
        for low, high in reversed(chunks):
            monitor.check()
            elimination.solve_visits(*factored, z, by_step, high, low)
        visits = np.empty(self.n)
        visits[self._order] = by_step
        return visits
