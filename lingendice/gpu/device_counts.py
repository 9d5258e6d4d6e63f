"""Transitions to counts on the device: a dense table where it is small, sorting where it is not.

Checks are the host's own, run on device arrays.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from lingendice.data.checks import (
    lies_on_device,
    outside_level,
    read_flags,
    require_below,
    require_length,
    require_reward,
    whole_array,
)
from lingendice.data.counts import Counts
from lingendice.data.logs import require_size, require_weights
from lingendice.gpu.catalog import OFFSETS
from lingendice.gpu.device import Device, current_device, require_bytes
from lingendice.gpu.equation import index_type, row_totals

if TYPE_CHECKING:
    from lingendice.solvers.request import Request

DENSE_BINS = 1 << 24
"""Bins up to which a dense table is counted into."""
ARRAYS = ("policy", "behavior", "reward", "initial", "restart")
FEATURES = ("features", "dual_features")


@dataclass(frozen=True, eq=False)
class DeviceCounts:
    """Counts in the memory of a device; ``to_host()`` makes them :class:`lingendice.Counts`."""

    device: Device
    n_states: int
    n_actions: int | None
    indptr: Any
    indices: Any
    count: Any
    reward_mean: Any = None
    reward_m2: Any = None
    initial_count: Any = None

    on_device = True

    @property
    def n_cells(self) -> int:
        """Number of states, or of state-action pairs."""
        return self.n_states * (self.n_actions or 1)

    def to_host(self) -> Counts:
        """The same counts in host memory, where they can be solved for, also on the device."""
        held: dict[str, Any] = {
            name: None if getattr(self, name) is None else self.device.download(getattr(self, name))
            for name in ("indptr", "indices", "count", "reward_mean", "reward_m2", "initial_count")
        }
        held["indptr"] = held["indptr"].astype(np.int64)
        held["count"] = held["count"].astype(np.int64 if held["count"].dtype.kind == "i" else np.float64)
        held["reward_count"] = None if self.reward_mean is None else held["count"]
        return Counts(self.n_states, self.n_actions, **held)

    def __repr__(self) -> str:
        actions = "" if self.n_actions is None else f" x {self.n_actions:,} actions"
        size = f"{self.n_states:,} states{actions}, {self.count.size:,} distinct"
        return f"DeviceCounts({size}, on {self.device.name})"


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
    >>> lg.solve(counts.to_host(), device="cuda").stationary                    # doctest: +SKIP
    array([0.5, 0.5])
    """
    device = current_device()
    if (action is None) != (n_actions is None):
        raise ValueError("pass action= and n_actions= together, or neither")
    ids = {"state": state, "next_state": next_state} | ({} if action is None else {"action": action})
    columns = {name: _ids(device, name, column) for name, column in ids.items()}
    n = int(columns["state"].size)
    for name, column in columns.items():
        require_length(name, column, n)
    n_states = require_size("n_states", n_states, None, (columns["state"], columns["next_state"]))
    if n_actions is not None:
        n_actions = require_size("n_actions", n_actions, None, (columns["action"],))
    values = _values(device, n, {"reward": reward, "weight": weight, "terminal": terminal})
    n_cells = n_states * (n_actions or 1)
    n_pairs = n_cells * (n_states + 1)
    summed = [values[name] for name in ("reward", "weight") if name in values]
    densely = not summed and n_pairs <= DENSE_BINS
    needed = counting_bytes(n, n_cells, n_pairs, densely, sum(column.dtype.itemsize for column in summed))
    require_bytes(device, needed, "; count parts of the log, or on the host by lingendice.Counts")
    keys = _keys(columns, values.get("terminal"), n_states, n_actions)
    mean = deviation = None
    if densely:
        bins = _tally(device, keys, n_pairs)
        distinct = np.flatnonzero(bins)
        count = bins[distinct]
    else:
        distinct, count, mean, deviation = _count_by_sorting(
            device, keys, values.get("weight"), values.get("reward")
        )
    rows = distinct // distinct.dtype.type(n_states + 1)
    indptr = np.searchsorted(rows, device.arange(n_cells + 1)).astype(index_type(distinct.size + 1))
    indices = (distinct - rows * distinct.dtype.type(n_states + 1)).astype(np.int32)
    initial = None if first_state is None else _count_states(device, first_state, n_states)
    return DeviceCounts(device, n_states, n_actions, indptr, indices, count, mean, deviation, initial)


def counting_bytes(n: int, n_cells: int, n_pairs: int, densely: bool, value_bytes: int) -> int:
    """Device memory of counting n transitions, each with values of this many bytes, at its peak."""
    key, offset = index_type(n_pairs).itemsize, index_type(n + 1).itemsize
    listed = (offset + 8) * (n_cells + 1) + (2 * key + 12) * min(n, n_pairs)
    making = 5 * key * n  # ids as wide as keys, and what they are multiplied to
    if densely:
        return making + 8 * n_pairs + 8 * min(n, n_pairs) + listed
    sorting = 2 * (key + 8) * n  # keys, order, and what the sort itself takes
    summing = (40 + value_bytes) * n if value_bytes else 16 * n
    return making + sorting + summing + listed


def _adopted(device: Device, name: str, column: Any) -> Any:
    if not lies_on_device(column):
        raise ValueError(f"{name} lies on the host; pass cupy.asarray({name}), or use lingendice.Counts")
    return device.adopt(column)


def _ids(device: Device, name: str, column: Any) -> Any:
    """A column of ids as int32 or int64."""
    array = _adopted(device, name, column)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if np.dtype(array.dtype).kind == "f":
        raise ValueError(f"{name} holds floating-point numbers; cast it: {name}.astype(int)")
    if np.dtype(array.dtype).kind not in "biu":
        raise ValueError(f"{name} has dtype {array.dtype}; give integer ids")
    return array if np.dtype(array.dtype).name in OFFSETS else whole_array(name, array)


def _real(name: str, array: Any) -> Any:
    if np.dtype(array.dtype).kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}; give integers or real floating-point numbers")
    return array


def _values(device: Device, n: int, given: dict[str, Any]) -> dict[str, Any]:
    """Columns of numbers and flags, checked; those that are not given are left out."""
    values = {
        name: _real(name, _adopted(device, name, column))
        for name, column in given.items()
        if column is not None
    }
    if "reward" in values:
        require_length("reward", values["reward"], n)
        require_reward("reward", values["reward"])
    if "weight" in values:
        require_weights(values["weight"], n)
    if "terminal" in values:
        values["terminal"] = read_flags("terminal", values["terminal"], n)
    return values


def _keys(columns: dict[str, Any], terminal: Any, n_states: int, n_actions: int | None) -> Any:
    """One number for each (cell, next state) pair; the last column stands for the end of an episode."""
    kind = index_type(n_states * (n_actions or 1) * (n_states + 1))
    following = columns["next_state"].astype(kind, copy=False)
    if terminal is not None:
        following = np.where(terminal, kind.type(n_states), following)
    cell = columns["state"].astype(kind, copy=False)
    if n_actions is not None:
        cell = cell * kind.type(n_actions) + columns["action"].astype(kind, copy=False)
    return cell * kind.type(n_states + 1) + following


def _count_by_sorting(device: Device, keys: Any, weight: Any, reward: Any) -> tuple[Any, Any, Any, Any]:
    """Distinct keys, and the weight, mean and squared deviations of the rewards of each.

    Rows of equal keys are added up in the order of the log.
    """
    n, order = int(keys.size), device.sort_order(keys)  # stable: equal keys stay in the order of the log
    keys = keys[order]
    changes = keys[1:] != keys[:-1]
    places = np.flatnonzero(changes)
    first = device.zeros(places.size + 1 + (n > 0), np.int64)
    if n:
        first[1:-1] = places + 1
        first[-1:] = n
    distinct, mean, deviation = keys[first[:-1]], None, None
    count = first[1:] - first[:-1]
    if weight is not None:
        whole = np.dtype(weight.dtype).kind in "biu"
        weight = weight[order].astype(np.int64 if whole else np.float64, copy=False)
        count = row_totals(device, first, weight).astype(weight.dtype)
    if reward is not None:
        run = device.zeros(n, np.int64)
        run[1:] = np.cumsum(changes)
        reward = reward[order].astype(np.float64, copy=False)
        share = 1.0 if weight is None else weight
        mean = row_totals(device, first, share * reward) / np.where(count > 0, count, 1)
        reward = reward - mean[run]  # centered first: squares of rewards far from 0 would cancel
        deviation = row_totals(device, first, share * reward * reward)
    if weight is not None and not bool((count > 0).all()):
        kept = np.flatnonzero(count > 0)
        distinct, count = distinct[kept], count[kept]
        mean, deviation = (None if part is None else part[kept] for part in (mean, deviation))
    return distinct, count, mean, deviation


def _count_states(device: Device, first_state: Any, n_states: int) -> Any:
    states = _ids(device, "first_state", first_state)
    require_below("first_state", states, n_states, "raise n_states or fix the id")
    return _tally(device, states, n_states)


def _tally(device: Device, ids: Any, n: int) -> Any:
    """How often each id occurs; CuPy's function has no answer for none at all."""
    return np.bincount(ids, minlength=n) if ids.size else device.zeros(n, np.int64)


# -- from the device to the host ---------------------------------------------------------------------------


class HostCopyWarning(UserWarning):
    """Data that lie on the device are copied to the host, where operators are composed and solutions lie."""


def on_host(data: Any, request: Request) -> tuple[Counts, Request]:
    """Counts or a matrix on the device as counts on the host, and the request with its arrays there.

    A warning says that they are copied.
    """
    if request.method.device == "cpu":
        raise ValueError(
            'the data lie on a CUDA device and device="cpu"; pass device="cuda" to solve there, '
            "or copy them to the host first"
        )
    device = data.device if isinstance(data, DeviceCounts) else current_device()

    def down(value: Any) -> Any:
        return device.download(device.adopt(value)) if lies_on_device(value) else value

    counts = data.to_host() if isinstance(data, DeviceCounts) else _matrix_on_host(device, data)
    size = sum(part.nbytes for part in (counts.indptr, counts.indices, counts.count))
    warnings.warn(
        f"the counts on the device ({size / 1e6:.3g} MB) are copied to the host, where the operator is "
        "composed and the arrays of the solution lie; copy them first if that is meant: counts.to_host(), or "
        "cupy.asnumpy(matrix)",
        HostCopyWarning,
        stacklevel=outside_level(),
    )
    problem, objective = request.problem, request.objective
    return counts, request._replace(
        problem=problem._replace(**{name: down(getattr(problem, name)) for name in ARRAYS}),
        objective=objective._replace(**{name: down(getattr(objective, name)) for name in FEATURES}),
    )


def _matrix_on_host(device: Device, data: Any) -> Counts:
    """A square matrix on the device, dense or cupyx sparse; the checks are those of a matrix on the host."""
    if not hasattr(data, "tocsr"):
        return Counts.from_matrix(device.download(device.adopt(data)), copy=False)
    # Duplicates are added up on the way to compressed rows, and True + True is True there.
    flags = np.dtype(getattr(data, "dtype", np.float64)).kind == "b"
    rows = (data.astype(np.float64) if flags else data).tocsr()
    parts = [device.download(part) for part in (rows.data, rows.indices, rows.indptr)]
    try:
        matrix = csr_array(tuple(parts), shape=rows.shape)
        matrix.check_format(full_check=True)  # kernels follow the places of entries without looking
    except ValueError as error:
        n, n_columns = rows.shape
        raise ValueError(
            f"the compressed rows of counts point outside {n} x {n_columns}; rebuild the matrix from its "
            "entries"
        ) from error
    return Counts.from_matrix(matrix, copy=False)
