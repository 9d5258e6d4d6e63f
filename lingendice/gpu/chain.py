"""From a composed operator to the equation on the device, and its stationary distributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingendice.data.checks import require_choice, require_whole
from lingendice.gpu import equation
from lingendice.gpu.catalog import DEPTH, VALUES
from lingendice.gpu.device import Device, require_bytes
from lingendice.gpu.equation import MOST_HUBS, Equation
from lingendice.gpu.power_steps import iterate_distribution, recurrent_classes
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, Outcome, combined, run
from lingendice.solvers.stationary import Distributions

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


class DeviceChain(NamedTuple):
    """What a solve of ``mu = start + gamma T' mu`` over states needs, in both directions."""

    push: Equation
    initial: Any
    columns: Any
    """What :meth:`backward` is built from: (indptr, indices, rates) by source state."""

    def backward(self) -> Equation:
        """The transpose without start, to ask who reaches whom: shares and distributions change roles."""
        held, push = self.columns, self.push
        if not isinstance(held, equation.PullMatrix):
            indptr, columns, rates = held
            ends = columns == push.n_in
            if bool(push.device.download(ends.any())):  # they lead nowhere: to state 0 at no rate
                columns = np.where(ends, 0, columns).astype(np.int32)
                rates = np.where(ends, 0.0, rates).astype(rates.dtype)
            held = equation.resident_matrix(push.device, indptr, columns, rates)
        zero = push.device.zeros(push.n_in, push.value_type)
        return Equation(push.device, held, push.distributions, push.shares, push.n_hubs, zero, 1.0, push.n_in)

    def returning(self, marks: Any, tol: float) -> Equation:
        """The chain that begins anew from the initial distribution after every visit to a marked state."""
        push, device, n = self.push, self.push.device, self.push.n_in
        require_sizes(n, push.n_hubs + 1)
        where = device.download(marks) if push.matrix.streamed else marks
        chunks = []
        for chunk in push.matrix.chunks:
            rates = np.where(where[chunk.sources] > 0, 0, chunk.rates).astype(push.value_type)
            chunks.append(
                replace(chunk, rates=device.pinned(rates, rates.dtype) if push.matrix.streamed else rates)
            )
        shares, distributions = (device.empty((push.n_hubs + 1) * n, push.value_type) for _ in range(2))
        for hub in range(push.n_hubs):
            its = slice(hub * n, (hub + 1) * n)
            shares[its], distributions[its] = push.shares[its] * (1 - marks), push.distributions[its]
        shares[push.n_hubs * n :], distributions[push.n_hubs * n :] = marks, self.initial
        matrix = replace(push.matrix, chunks=tuple(chunks))
        return Equation(device, matrix, shares, distributions, push.n_hubs + 1, push.start, 1.0, n, tol)


def required_bytes(
    operator: EmpiricalOperator, n_entries: int, storage: str, streamed: int | None = None
) -> int:
    """Device memory of a solve at its peak: vectors, and the entries while they are sorted by column.

    Where the matrix stays on the host, a buffer for the entries of a chunk: ``streamed`` of them at most.
    """
    n_states, n_cells, n_hubs = operator.n_states, operator.n_cells, operator.rows.n_hubs
    value, offset = np.dtype(storage).itemsize, equation.index_type(n_entries).itemsize
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
            text += f'; counts on the host can be streamed: options={{"chunk_rows": {min(rows, n_states)}}}'
    if options.storage == "float64":
        text += '; options={"storage": "float32"} halves distributions and rates'
    require_bytes(device, needed, text)


# -- the equation of an operator ----------------------------------------------------------------------------


def chain_of_operator(
    device: Device, operator: EmpiricalOperator, options: DeviceOptions, tol: float
) -> DeviceChain:
    """The chain of a composed operator; its policy is mixed in on the device, its matrix transposed there."""
    rows, gamma, n_states = operator.rows, operator.gamma, operator.n_states
    require_sizes(n_states, rows.n_hubs)
    build = _streamed_parts if options.chunk_rows is not None else _resident_parts
    matrix, columns = build(device, operator, options)
    shares, distributions = (
        device.upload(part.ravel() if part.size else np.zeros(1), options.storage)
        for part in (operator.gather(rows.out).T, rows.distribution)
    )
    first = None if operator.initial is None else device.upload(operator.initial, options.storage)
    from_start = np.zeros(n_states) if operator.initial is None else (1.0 - gamma) * operator.initial
    start = device.upload(from_start, options.storage)
    push = Equation(device, matrix, shares, distributions, rows.n_hubs, start, gamma, n_states, tol)
    return DeviceChain(push, first, columns)


def require_sizes(n_states: int, n_hubs: int) -> None:
    """Refuse what kernels do not number."""
    if n_states > MOST_STATES:
        raise ValueError(f"the device path numbers states in 32 bits; {n_states:,} are too many")
    if n_hubs > MOST_HUBS:
        raise ValueError(f"the device path serves {MOST_HUBS} distributions to fall back to, not {n_hubs}")


def _resident_parts(device: Device, operator: EmpiricalOperator, options: DeviceOptions) -> tuple[Any, Any]:
    """The matrix by column, and (indptr, columns, rates) by row: counts go up, and are composed there."""
    rows, n_states, up = operator.rows, operator.n_states, device.upload
    n_entries = rows.indices.size
    needed = required_bytes(operator, n_entries, options.storage)
    require_memory(device, needed, operator, n_entries, options)
    indptr, columns = up(rows.indptr, equation.index_type(n_entries)), up(rows.indices, np.int32)
    weight = up(rows.weight, None if rows.weight.dtype == np.int64 else np.float64)
    policy = np.ones(operator.n_cells) if operator.policy is None else operator.policy.ravel()
    n_actions = operator.n_cells // n_states
    sources, rates = equation.composed_rates(
        device, indptr, weight, up(rows.scale), up(policy), n_actions, options.storage
    )
    by_column = equation.transposed(device, columns, n_states, sources, rates, np.dtype(indptr.dtype))
    return equation.resident_matrix(device, *by_column), (indptr[::n_actions].copy(), columns, rates)


def _streamed_parts(device: Device, operator: EmpiricalOperator, options: DeviceOptions) -> tuple[Any, Any]:
    """The matrix by column and by row, both kept on the host and fed through the same buffers."""
    assert options.chunk_rows is not None
    by_row = operator.chain.kernel()
    both = (by_row.T.tocsr(), by_row)
    most = max(equation.most_entries(held.indptr, options.chunk_rows) for held in both)
    needed = required_bytes(operator, by_row.nnz, options.storage, most)
    require_memory(device, needed, operator, by_row.nnz, options)
    # Shared by both directions: passes follow one another on the stream, and no pass needs both.
    buffers = device.empty(most, np.int32), device.empty(most, options.storage)
    by_column, backward = (
        equation.streamed_matrix(device, held, options.chunk_rows, buffers) for held in both
    )
    return by_column, backward


# -- its distributions ---------------------------------------------------------------------------------------


def solve_chain(
    chain: DeviceChain, follow_initial: bool, controls: Controls, poll_every: int | None
) -> Distributions:
    """Solve ``mu = (1 - gamma) mu0 + gamma P' mu``; at gamma = 1 one distribution for each recurrent class.

    Distributions are device arrays. With several classes and ``follow_initial`` they are weighed by where the
    chain from the initial distribution ends up: made to begin anew there after every visit to a class, it
    visits the classes in proportion to the probabilities of ending in them.
    """
    push, tol = chain.push, chain.push.tol
    device, dtype = push.device, push.value_type

    def distribution_from(equation: Equation, first: Any) -> Outcome:
        return run(iterate_distribution(equation, first, poll_every, controls.max_iter), controls)

    if push.gamma < 1.0:
        outcome = distribution_from(push, chain.initial)
        return Distributions(outcome.distribution, (outcome.distribution,), outcome)
    classes = recurrent_classes(push, chain.backward())
    mixes = len(classes) > 1 and follow_initial and chain.initial is not None
    if mixes:
        push = replace(push, tol=0.5 * tol)  # the other half is for the weights
    outcomes = [
        distribution_from(push, (mark / float(device.download(mark.sum()))).astype(dtype)) for mark in classes
    ]
    distributions = tuple(outcome.distribution for outcome in outcomes)
    if len(distributions) == 1:
        return Distributions(distributions[0], distributions, outcomes[0])
    worst = combined(outcomes)
    worst.residual = max(float(found.residual or 0.0) for found in outcomes)
    if not mixes:
        return Distributions(None, distributions, worst)
    visits = distribution_from(chain.returning(sum(classes), 0.25 * tol), chain.initial)
    ends = np.array([float(device.download((visits.distribution * mark).sum())) for mark in classes])
    outcome = combined([*outcomes, visits])
    assert worst.error is not None
    assert visits.error is not None
    outcome.error = worst.error + 2.0 * visits.error  # of an entry, of a weight and of their sum
    outcome.residual = worst.residual
    if not ends.sum() > 0.0:  # ended before any class was reached
        return Distributions(None, distributions, outcome)
    single = device.zeros(push.n_in, dtype)
    for weight, each in zip(ends / ends.sum(), distributions, strict=True):
        single[:] = single + float(weight) * each
    return Distributions(single, distributions, outcome)


def device_distributions(
    device: Device,
    operator: EmpiricalOperator,
    follow_initial: bool,
    controls: Controls,
    options: DeviceOptions,
) -> Distributions:
    """Those of an operator, solved on the device and brought to the host."""
    # A little stricter than asked where the residual is measured again on the host, which rounds otherwise.
    tol = 0.9 * controls.tol if operator.gamma < 1.0 else controls.tol
    chain = chain_of_operator(device, operator, options, tol)
    found = solve_chain(chain, follow_initial, controls, options.poll_every)

    def down(distribution: Any) -> Any:
        host = device.download(distribution).astype(np.float64)
        return host / host.sum() if operator.gamma == 1.0 else host

    every = tuple(map(down, found.every))
    found.outcome.residual = None  # of the distribution as it arrived, the caller measures it again
    single = every[0] if len(every) == 1 else None if found.single is None else down(found.single)
    return Distributions(single, every, found.outcome)
