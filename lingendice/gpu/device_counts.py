"""Transitions to counts on the device: a dense table where it is small, sorting where it is not."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import CellSums, Counts
from lingendice.gpu.catalog import OFFSETS, WEIGHTS, c_type
from lingendice.gpu.device import Device, current_device, for_each, lies_on_device, require_bytes
from lingendice.gpu.equation import index_type, row_totals
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator

DENSE_BINS = 1 << 24
"""Bins up to which a dense table is counted into."""


@dataclass(frozen=True, eq=False)
class DeviceCounts:
    """Counts in the memory of a device: what :class:`lingendice.Counts` is on the host.

    ``lg.solve(counts, device="cuda")`` takes it; ``to_host()`` copies it.
    """

    device: Device
    n_states: int
    n_actions: int | None
    indptr: Any
    indices: Any
    count: Any
    reward_mean: Any = None
    reward_m2: Any = None
    initial_count: Any = None
    has_sample_size: bool = True

    on_device = True

    @property
    def n_cells(self) -> int:
        """Number of states, or of state-action pairs."""
        return self.n_states * (self.n_actions or 1)

    def to_host(self) -> Counts:
        """The same counts in host memory; the one way back, taken only when asked for."""
        held = {
            name: None if getattr(self, name) is None else self.device.download(getattr(self, name))
            for name in ("indptr", "indices", "count", "reward_mean", "reward_m2", "initial_count")
        }
        count = held["count"].astype(np.int64 if held["count"].dtype.kind == "i" else np.float64)  # type: ignore[union-attr]
        return Counts(
            n_states=self.n_states,
            n_actions=self.n_actions,
            indptr=held["indptr"].astype(np.int64),  # type: ignore[union-attr]
            indices=held["indices"],  # type: ignore[arg-type]
            count=count,
            reward_count=None if self.reward_mean is None else count,
            reward_mean=held["reward_mean"],
            reward_m2=held["reward_m2"],
            initial_count=held["initial_count"],
            has_sample_size=self.has_sample_size,
        )

    @cached_property
    def cell_sums(self) -> CellSums:
        """Sums over cells, on the host; entries stay where they are."""
        device, down = self.device, self.device.download
        total, bad = row_totals(device, self.indptr, self.count)
        if bad is not None:
            row = int(down((self.indptr <= bad).sum())) - 1
            place = f"counts[{row}, {int(down(self.indices[bad]))}]"
            raise ValueError(f"{place} is {down(self.count[bad])}, negative or not finite; fix it")
        cell_count: NDArray[Any] = down(total)
        # An end is the last entry of its row, in the column past the states.
        last = device.where(total > 0.0, self.indptr[1:].astype(np.int64) - 1, 0)
        ends = (total > 0.0) & (self.indices[last] == self.n_states)
        ended = down(device.where(ends, self.count[last], 0)).astype(np.float64)
        reward = None
        if self.reward_mean is not None:
            earned = down(row_totals(device, self.indptr, self.count * self.reward_mean)[0])
            reward = np.divide(
                earned, cell_count, out=np.full(cell_count.size, np.nan), where=cell_count > 0.0
            )
        if np.dtype(self.count.dtype).kind == "i":
            cell_count, ended = cell_count.astype(np.int64), ended.astype(np.int64)
        frame = replace(
            Counts.empty(self.n_states, self.n_actions),
            initial_count=None if self.initial_count is None else down(self.initial_count),
            has_sample_size=self.has_sample_size,
        )
        return CellSums.of(frame, cell_count, ended if ended.any() else None, reward)

    def __repr__(self) -> str:
        actions = "" if self.n_actions is None else f" x {self.n_actions:,} actions"
        size = f"{self.n_states:,} states{actions}, {self.count.size:,} distinct"
        return f"DeviceCounts({size}, on {self.device.name})"


@dataclass(frozen=True, eq=False)
class DeviceOperator(EmpiricalOperator):
    """The operator of counts on a device: its vectors are here, the entries of its rows there."""

    device: Any = None

    @classmethod
    def of(cls, counts: DeviceCounts, choices: Choices) -> DeviceOperator:
        """Composed by the host from sums over cells."""
        composed = compose(counts.cell_sums, choices)
        held = {part.name: getattr(composed, part.name) for part in fields(EmpiricalOperator)}
        rows = replace(composed.rows, indptr=counts.indptr, indices=counts.indices, weight=counts.count)
        # Whoever reaches for entries meets device arrays, and not an empty matrix.
        sums = copy(counts.cell_sums)
        sums.__dict__.update(indptr=counts.indptr, indices=counts.indices, count=counts.count)
        return cls(**held | {"rows": rows, "counts": sums}, device=counts.device)

    def expected_next(self, state_values: Floats) -> Floats:
        """K applied to values over states."""
        device, rows = self.device, self.rows
        values = device.upload(np.append(state_values, 0.0))  # an end is worth nothing
        counted, _ = row_totals(device, rows.indptr, rows.weight * values[rows.indices])
        fallen = rows.out @ (rows.distribution @ state_values)
        return rows.scale * device.download(counted) + fallen  # type: ignore[no-any-return]


def count_transitions(
    state: Any,
    next_state: Any,
    action: Any = None,
    *,
    n_states: int,
    n_actions: int | None = None,
    reward: Any = None,
    weight: Any = None,
    terminal: Any = None,
    first_state: Any = None,
) -> DeviceCounts:
    """Count transitions that lie on the device; nothing of the log comes to the host.

    Parameters
    ----------
    state, next_state, action
        Ids as device arrays (CuPy, or anything with DLPack or ``__cuda_array_interface__``), one entry per
        transition.
    n_states, n_actions
        Sizes; they are not looked up in the log, which would cost a wait for the device.
    reward, weight, terminal
        One number (or flag) a transition. Rewards and weights may be float32, and are then read as they are;
        sums and means are double.
    first_state
        The state that each episode began in: the initial distribution.

    Notes
    -----
    O(N) memory. Up to 2^24 pairs are counted into a table, beyond that (and with rewards or weights) they are
    sorted, O(N) passes of a radix sort. Sums are made in the order of the log: the same bits on every run.

    Examples
    --------
    >>> import cupy, lingendice as lg                                           # doctest: +SKIP
    >>> state, following = cupy.array([0, 1]), cupy.array([1, 0])               # doctest: +SKIP
    >>> counts = lg.gpu.count_transitions(state, following, n_states=2)         # doctest: +SKIP
    >>> lg.solve(counts, device="cuda").stationary                              # doctest: +SKIP
    array([0.5, 0.5])
    """
    device = current_device()
    if (action is None) != (n_actions is None):
        raise ValueError("pass action= and n_actions= together, or neither")
    state = _column(device, "state", state, None)
    n = int(state.size)
    if n == 0:
        raise ValueError("there are no transitions to count: state is empty")
    next_state = _column(device, "next_state", next_state, n)
    action = state if action is None else _column(device, "action", action, n)
    # Narrowed to one another's type, ids beyond 32 bits would come back as others.
    wide = np.int64 if any(ids.dtype == np.int64 for ids in (state, next_state, action)) else np.int32
    state, next_state, action = (ids.astype(wide, copy=False) for ids in (state, next_state, action))
    n_columns, n_cells = n_states + 1, n_states * (n_actions or 1)
    n_pairs = n_cells * n_columns
    columns = _value_columns(device, n, weight, reward)
    densely = not columns and n_pairs <= DENSE_BINS
    needed = counting_bytes(
        n, n_cells, n_pairs, densely, sum(column.dtype.itemsize for column in columns.values())
    )
    require_bytes(device, needed, "; count parts of the log, or on the host by lingendice.Counts")
    keys = _keys(device, state, action, next_state, terminal, n_states, n_actions)
    if densely:
        distinct, count = _count_densely(device, keys, n_pairs)
        mean = deviation = None
    else:
        distinct, count, mean, deviation = _count_by_sorting(device, keys, **columns)
    indptr, indices = _compressed_keys(device, distinct, n_columns, n_cells)
    initial = None if first_state is None else _count_states(device, first_state, n_states)
    return DeviceCounts(device, n_states, n_actions, indptr, indices, count, mean, deviation, initial)


def counting_bytes(n: int, n_cells: int, n_pairs: int, densely: bool, value_bytes: int) -> int:
    """Device memory of counting n transitions, each with values of this many bytes, at its peak."""
    key, offset = index_type(n_pairs).itemsize, index_type(n + 1).itemsize
    listed = offset * (n_cells + 1) + (key + 12) * min(n, n_pairs)
    if densely:
        return (key + 1) * n + 24 * n_pairs + listed
    sorting = 2 * (key + 8) * n  # keys, order, and what the sort itself takes
    return n + sorting + 3 * 8 * n + value_bytes * n + (24 * n if value_bytes else 0) + listed


def _value_columns(device: Device, n: int, weight: Any, reward: Any) -> dict[str, Any]:
    """The given ones of weight and reward in one type: float32 if all are, else float64."""
    given = {
        name: device.adopt(value)
        for name, value in (("weight", weight), ("reward", reward))
        if value is not None
    }
    for name, column in given.items():
        if column.size != n:
            raise ValueError(f"{name} has {column.size} entries but state has {n}; give one a transition")
    single = all(column.dtype == np.float32 for column in given.values())
    return {
        name: column.astype(np.float32 if single else np.float64, copy=False)
        for name, column in given.items()
    }


def _compressed_keys(device: Device, distinct: Any, n_columns: int, n_cells: int) -> tuple[Any, Any]:
    """(indptr, indices) of distinct keys in rising order."""
    size, key, width = np.int64(distinct.size), c_type(distinct.dtype), np.int64(n_columns)
    indptr = device.empty(n_cells + 1, index_type(distinct.size + 1))
    rows = (size, distinct, width, np.int64(n_cells), indptr)
    for_each(device, "key_rows", (key, c_type(indptr.dtype)), n_cells + 1, rows)
    return indptr, (distinct % distinct.dtype.type(n_columns)).astype(np.int32)


def _column(device: Device, name: str, value: Any, n: int | None) -> Any:
    if not lies_on_device(value):
        raise ValueError(f"{name} lies on the host; pass cupy.asarray({name}), or use lingendice.Counts")
    array = device.adopt(value)
    if array.ndim != 1 or (n is not None and array.size != n):
        raise ValueError(f"{name} must be one-dimensional with one entry per transition, got {array.shape}")
    if np.dtype(array.dtype).kind not in "iu":
        raise ValueError(f"{name} has dtype {array.dtype}; give integer ids")
    return array if np.dtype(array.dtype).name in OFFSETS else array.astype(np.int64)


def _keys(
    device: Device, state: Any, action: Any, next_state: Any, terminal: Any, n_states: int,
    n_actions: int | None,
) -> Any:  # fmt: skip
    n = int(state.size)
    ended = device.zeros(1, np.uint8)
    if terminal is not None:
        ended = (device.adopt(terminal) != 0).astype(np.uint8)
        if ended.size != n:
            raise ValueError(f"terminal has {ended.size} entries but state has {n}; give one a transition")
    n_pairs = n_states * (n_actions or 1) * (n_states + 1)
    keys = device.empty(n, index_type(n_pairs))
    nowhere = np.iinfo(np.uint64).max
    first_bad = device.upload(np.array([nowhere], np.uint64))
    for_each(
        device, "transition_keys", (c_type(state.dtype), c_type(keys.dtype)), n,
        (np.int64(n), state, action, next_state, ended, np.int32(n_actions is not None),
         np.int32(terminal is not None), np.int64(n_states), np.int64(n_actions or 1), keys, first_bad),
    )  # fmt: skip
    bad = int(device.download(first_bad)[0])
    if bad != nowhere:
        what = f"state {int(device.download(state[bad]))}, next_state {int(device.download(next_state[bad]))}"
        if n_actions is not None:
            what += f", action {int(device.download(action[bad]))}"
        sizes = f"n_states={n_states}" + ("" if n_actions is None else f", n_actions={n_actions}")
        raise ValueError(f"transition {bad} ({what}) is out of range for {sizes}; raise the sizes")
    return keys


def _count_densely(device: Device, keys: Any, n_bins: int) -> tuple[Any, Any]:
    n = int(keys.size)
    bins, key = device.zeros(n_bins, np.uint64), (c_type(keys.dtype),)
    for_each(device, "count_in_global", key, n, (np.int64(n), keys, np.int64(n_bins), bins))
    number = device.running_total((bins != 0).astype(np.int64))
    n_distinct = int(device.download(number[n_bins - 1]))
    distinct, count = device.empty(n_distinct, keys.dtype), device.empty(n_distinct, np.int64)
    for_each(device, "compress_bins", key, n_bins, (np.int64(n_bins), bins, number, distinct, count))
    return distinct, count


def _count_by_sorting(
    device: Device, keys: Any, weight: Any = None, reward: Any = None
) -> tuple[Any, Any, Any, Any]:
    n, key = int(keys.size), (c_type(keys.dtype),)
    order = device.sort_order(keys)
    heads = device.empty(n, np.int64)
    for_each(device, "mark_heads", key, n, (np.int64(n), keys, order, heads))
    number = device.running_total(heads)
    n_runs = int(device.download(number[n - 1]))
    distinct, run_first = device.empty(n_runs, keys.dtype), device.empty(n_runs + 1, np.int64)
    for_each(device, "list_runs", key, n, (np.int64(n), keys, order, number, distinct, run_first))
    if reward is None and weight is None:
        return distinct, run_first[1:] - run_first[:-1], None, None
    value = (reward if weight is None else weight).dtype
    columns = [device.zeros(1, value) if column is None else column for column in (weight, reward)]
    total, mean, deviation = (device.zeros(n_runs, np.float64) for _ in range(3))
    flags = (np.int32(weight is not None), np.int32(reward is not None))
    arguments = (np.int64(n_runs), run_first, order, *columns, *flags, total, mean, deviation)
    for_each(device, "run_moments", (c_type(value),), n_runs, arguments, a_thread=32)
    count = total if weight is not None else total.astype(np.int64)
    return (distinct, count, mean, deviation) if reward is not None else (distinct, count, None, None)


def _count_states(device: Device, first_state: Any, n_states: int) -> Any:
    states = _column(device, "first_state", first_state, None)
    outside = (states < 0) | (states >= n_states)
    if states.size and bool(device.download(outside.any())):
        place = int(device.download(outside.argmax()))
        raise ValueError(
            f"first_state[{place}] is {int(device.download(states[place]))}, outside 0..{n_states - 1}; "
            "raise n_states or fix the id"
        )
    bins = device.zeros(n_states, np.uint64)
    arguments = (np.int64(states.size), states, np.int64(n_states), bins)
    for_each(device, "count_in_global", (c_type(states.dtype),), states.size, arguments)
    return bins.astype(np.int64)


def read_matrix(device: Device, data: Any) -> DeviceCounts:
    """A square matrix on the device, dense or cupyx sparse, as counts; rows are sources."""
    if hasattr(data, "tocsr"):
        flags = np.dtype(getattr(data, "dtype", np.float64)).kind == "b"
        compressed = (data.astype(np.float64) if flags else data).tocsr()  # for True + True is True there
        if not getattr(compressed, "has_canonical_format", True):
            compressed = compressed.copy()
            compressed.sum_duplicates()
        _require_square(compressed.shape)
        indptr, indices = compressed.indptr, compressed.indices.astype(np.int32, copy=False)
        count = compressed.data.astype(np.int64) if flags else _weights(compressed.data)
        _require_rows(device, indptr, indices, compressed.shape[0], int(count.size))
    else:
        indptr, indices, count = _compress(device, device.adopt(data))
    n = indptr.size - 1
    if count.size == 0:
        raise ValueError("there are no transitions to learn from: the counts are empty; add data first")
    totals, _ = row_totals(device, indptr, count)
    stochastic = np.dtype(count.dtype).kind == "f" and bool(
        device.download(((abs(totals - 1.0) <= 1e-8) | (totals == 0.0)).min())
    )
    return DeviceCounts(device, n, None, indptr, indices, count, has_sample_size=not stochastic)


def _weights(values: Any) -> Any:
    if np.dtype(values.dtype).name in WEIGHTS:
        return values
    return values.astype(np.int64 if np.dtype(values.dtype).kind in "biu" else np.float64)


def _require_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"counts must be a square matrix (states by next states), got shape {tuple(shape)}")


def _require_rows(device: Device, indptr: Any, indices: Any, n: int, n_entries: int) -> None:
    """Refuse compressed rows that point outside, which kernels would follow."""
    sound = (indptr.size, indices.size) == (n + 1, n_entries)
    if sound and n_entries:
        ends = device.download(indptr[n]) == n_entries and device.download(indptr[0]) == 0
        rises = bool(device.download((indptr[1:] >= indptr[:-1]).min()))
        inside = bool(device.download(((indices >= 0) & (indices < n)).min()))
        sound = bool(ends) and rises and inside
    if not sound:
        raise ValueError(
            f"the compressed rows of counts point outside {n} x {n}; build the matrix anew from its entries"
        )


def _compress(device: Device, dense: Any) -> tuple[Any, Any, Any]:
    """Compressed rows of a dense matrix: entries that are not zero, in the order of rows."""
    _require_square(dense.shape)
    n = dense.shape[0]
    flat = _weights(dense.reshape(n * n))
    filled = (flat != 0).astype(np.int64)
    number = device.running_total(filled)
    size = int(device.download(number[n * n - 1]))
    order = device.sort_order(1 - filled)[:size]
    ends = device.zeros(n + 1, np.int64)
    ends[1:] = number.reshape((n, n))[:, n - 1]
    indices = (order % np.int64(n)).astype(np.int32)
    return ends, indices, flat[order]
