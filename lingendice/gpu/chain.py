"""From a composed operator to the equation on the device, and its distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lingendice.data.checks import Floats, require_choice, require_whole
from lingendice.gpu.catalog import DEPTH, VALUES
from lingendice.gpu.device import Device, require_bytes
from lingendice.gpu.equation import (
    MOST_HUBS,
    Equation,
    PullMatrix,
    composed_rates,
    index_type,
    most_entries,
    resident_matrix,
    streamed_matrix,
    transposed,
)
from lingendice.gpu.power_steps import iterate_distribution
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, Outcome, run

MOST_STATES = 2**31 - 2
METHOD = "power-extrapolated"


@dataclass(frozen=True)
class DeviceOptions:
    """Options of the device path: see :func:`lingendice.solve`."""

    NAMES: ClassVar[tuple[str, ...]] = ("storage", "chunk_rows", "poll_every")
    storage: str = "float64"
    chunk_rows: int | None = None
    poll_every: int | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> DeviceOptions:
        """Check the entries of ``options`` that concern the device."""
        storage = require_choice("options['storage']", options.get("storage", "float64"), tuple(VALUES))
        numbers = {
            name: require_whole(f"options[{name!r}]", options[name], at_least=1)
            for name in ("chunk_rows", "poll_every")
            if options.get(name) is not None
        }
        return cls(storage, **numbers)


def required_bytes(
    operator: EmpiricalOperator, n_entries: int, storage: str, streamed: int | None = None
) -> int:
    """Device memory of a solve at its peak: vectors, and the entries while they are sorted by column.

    Where the matrix stays on the host, a buffer for the entries of a chunk: ``streamed`` of them at most.
    """
    n_states, n_cells, n_hubs = operator.n_states, operator.n_cells, operator.rows.n_hubs
    value, offset = np.dtype(storage).itemsize, index_type(n_entries).itemsize
    # At gamma = 1 another start is stepped beside the distribution: two vectors, and two in passing.
    trial = 8 + 3 * value if operator.gamma == 1.0 else 0
    vectors = ((DEPTH + 4 + 2 * n_hubs) * value + offset + 12 + trial) * n_states + 24 * n_cells
    if streamed is not None:
        return vectors + streamed * (value + 4)
    rows = n_entries * (4 + 8 + value + 4) + offset * n_cells  # as counted, and composed
    by_column = n_entries * (value + 4)
    sorting = 2 * 8 * n_entries + 4 * n_entries
    return vectors + rows + by_column + sorting


def require_memory(
    device: Device, needed: int, operator: EmpiricalOperator, n_entries: int, options: DeviceOptions
) -> None:
    """An estimate in place of an allocation that fails half-way, and what would fit."""
    text, n_states = "", operator.n_states
    if options.chunk_rows is None and n_entries:
        room = device.free_bytes() - required_bytes(operator, n_entries, options.storage, streamed=0)
        a_row = n_entries / n_states * (np.dtype(options.storage).itemsize + 4)
        rows = int(0.5 * room / a_row)
        if rows > 0:
            text += f'; counts can be streamed from the host: options={{"chunk_rows": {min(rows, n_states)}}}'
    if options.storage == "float64":
        text += '; options={"storage": "float32"} halves distributions and rates'
    require_bytes(device, needed, text)


# -- the equation of an operator ----------------------------------------------------------------------------


def equation_of(device: Device, operator: EmpiricalOperator, options: DeviceOptions, tol: float) -> Equation:
    """The equation of a composed operator; the policy is mixed in and the matrix transposed there."""
    rows, gamma, n_states = operator.rows, operator.gamma, operator.n_states
    require_sizes(n_states, rows.n_hubs)
    build = _resident if options.chunk_rows is None else _streamed
    matrix = build(device, operator, options)
    shares, distributions = (
        device.upload(part.ravel() if part.size else np.zeros(1), options.storage)
        for part in (operator.gather(rows.out).T, rows.distribution)
    )
    from_start = np.zeros(n_states) if operator.initial is None else (1.0 - gamma) * operator.initial
    start = device.upload(from_start, options.storage)
    return Equation(device, matrix, shares, distributions, rows.n_hubs, start, gamma, n_states, tol)


def require_sizes(n_states: int, n_hubs: int) -> None:
    """Refuse what kernels do not number."""
    if n_states > MOST_STATES:
        raise ValueError(f"the device path numbers states in 32 bits; {n_states:,} are too many")
    if n_hubs > MOST_HUBS:
        raise ValueError(f"the device path serves {MOST_HUBS} distributions to fall back to, not {n_hubs}")


def _resident(device: Device, operator: EmpiricalOperator, options: DeviceOptions) -> PullMatrix:
    """The matrix on the device: counts go up, and are composed and sorted by column there."""
    rows, n_states, up = operator.rows, operator.n_states, device.upload
    n_entries = rows.indices.size
    needed = required_bytes(operator, n_entries, options.storage)
    require_memory(device, needed, operator, n_entries, options)
    indptr, columns = up(rows.indptr, index_type(n_entries)), up(rows.indices, np.int32)
    weight = up(rows.weight, None if rows.weight.dtype == np.int64 else np.float64)
    policy = np.ones(operator.n_cells) if operator.policy is None else operator.policy.ravel()
    n_actions = operator.n_cells // n_states
    sources, rates = composed_rates(
        device, indptr, weight, up(rows.scale), up(policy), n_actions, options.storage
    )
    return resident_matrix(
        device, *transposed(device, columns, n_states, sources, rates, np.dtype(indptr.dtype))
    )


def _streamed(device: Device, operator: EmpiricalOperator, options: DeviceOptions) -> PullMatrix:
    """The matrix in page-locked memory of the host, fed through one pair of buffers."""
    assert options.chunk_rows is not None
    by_column = operator.chain.kernel().T.tocsr()
    most = most_entries(by_column.indptr, options.chunk_rows)
    needed = required_bytes(operator, by_column.nnz, options.storage, most)
    require_memory(device, needed, operator, by_column.nnz, options)
    buffers = device.empty(most, np.int32), device.empty(most, options.storage)
    return streamed_matrix(device, by_column, options.chunk_rows, buffers)


# -- its distribution ----------------------------------------------------------------------------------------


def device_distribution(
    device: Device, operator: EmpiricalOperator, first: Floats, controls: Controls, options: DeviceOptions
) -> Outcome:
    """Solve ``mu = (1 - gamma) mu0 + gamma P' mu`` from ``first`` on the device; the answer is on the host.

    At gamma = 1 ``first`` has to lie within one recurrent class. In other states its mass would shrink for
    ever, and never be right relative to what is left of it.
    """
    # A little stricter than asked where the residual is measured again on the host, which rounds otherwise.
    tol = 0.9 * controls.tol if operator.gamma < 1.0 else controls.tol
    equation = equation_of(device, operator, options, tol)
    start = device.upload(first, options.storage)
    outcome = run(iterate_distribution(equation, start, options.poll_every, controls.max_iter), controls)
    found = device.download(outcome.distribution).astype(np.float64)
    outcome.distribution = found / found.sum() if operator.gamma == 1.0 else found
    outcome.residual = None  # the caller measures that of the distribution as it arrived
    return outcome
