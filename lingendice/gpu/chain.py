"""From counts to the equation on the device, its stationary distributions, and sums over them.

The host's operator is uploaded, or counts that lie on the device are composed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import require_choice, require_whole
from lingendice.gpu import equation
from lingendice.gpu.catalog import VALUES, c_type
from lingendice.gpu.device import Device, device_vector, launch, n_blocks, require_bytes
from lingendice.gpu.device_counts import DeviceCounts
from lingendice.gpu.equation import MOST_HUBS, SCRATCH, Equation
from lingendice.gpu.power_steps import DEPTH, Reach, iterate_distribution
from lingendice.model.compose import Choices, initial_source
from lingendice.model.leaks import read_fallbacks
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, Outcome, combined, run
from lingendice.solvers.stationary import Distributions

MOST_STATES = 2**31 - 2
EARNED, KNOWN, LEAKED, ENDED, SQUARED, COVERED, REPORTED = range(7)
"""Sums that the numbers of a solution are made of: see ``report_cells`` in cuda/operator.cu."""


@dataclass(frozen=True)
class Settings:
    """Options of the device path: see :func:`lingendice.solve`."""

    storage: str = "float64"
    chunk_rows: int | None = None
    poll_every: int | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Settings:
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
            held = equation.resident_matrix(push.device, *held)
        zero = push.device.zeros(push.n_in, push.value_type)
        return Equation(push.device, held, push.distributions, push.shares, push.n_hubs, zero, 1.0, push.n_in)


def required_bytes(
    n_states: int, n_cells: int, n_entries: int, n_hubs: int, gamma: float, storage: str
) -> int:
    """Device memory of a solve at its peak, which is the sorting of the entries by column."""
    value = np.dtype(storage).itemsize
    offset = equation.index_type(n_entries).itemsize
    rows = n_entries * (4 + 8 + value + 4) + offset * n_cells  # as counted, and composed
    by_column = n_entries * (value + 4)
    sorting = 2 * 8 * n_entries + 4 * n_entries
    vectors = _vector_bytes(n_states, n_cells, n_hubs, gamma, value, offset)
    return vectors + rows + by_column + sorting


def streamed_bytes(
    n_states: int, n_cells: int, n_entries: int, most_entries: int, n_hubs: int, gamma: float, storage: str
) -> int:
    """Device memory of a solve whose matrix stays on the host: vectors, and two buffers for chunks."""
    value = np.dtype(storage).itemsize
    vectors = _vector_bytes(n_states, n_cells, n_hubs, gamma, value, equation.index_type(n_entries).itemsize)
    return vectors + 2 * most_entries * (value + 4)


def _vector_bytes(n_states: int, n_cells: int, n_hubs: int, gamma: float, value: int, offset: int) -> int:
    # At gamma = 1 another start is stepped beside the distribution: two vectors, and two in passing.
    trial = 8 + 3 * value if gamma == 1.0 else 0
    return ((DEPTH + 4 + 2 * n_hubs) * value + offset + 12 + trial) * n_states + 24 * n_cells


def require_memory(
    device: Device, needed: int, n_states: int, n_entries: int, gamma: float, settings: Settings
) -> None:
    """An estimate in place of an allocation that fails half-way, and what would fit."""
    free, text = device.free_bytes(), ""
    if settings.chunk_rows is None and n_entries:
        room = max(free - required_bytes(n_states, n_states, 0, 1, gamma, settings.storage), 0)
        a_row = 2 * n_entries / n_states * (np.dtype(settings.storage).itemsize + 4)
        rows = int(0.5 * room / max(a_row, 1e-9))
        if rows:
            text += f'; counts on the host can be streamed: options={{"chunk_rows": {min(rows, n_states)}}}'
    if settings.storage == "float64":
        text += '; options={"storage": "float32"} halves distributions and rates'
    require_bytes(device, needed, text)


# -- counts on the host -----------------------------------------------------------------------------------


def chain_of_operator(
    device: Device, operator: EmpiricalOperator, settings: Settings, tol: float
) -> DeviceChain:
    """Upload a composed operator; its policy is mixed in on the device, its matrix transposed there."""
    rows, gamma = operator.rows, operator.gamma
    require_sizes(operator.n_states, rows.n_hubs)
    build = _streamed_parts if settings.chunk_rows is not None else _resident_parts
    matrix, columns = build(device, operator, settings)
    hubs = [
        device.upload(part.ravel() if part.size else np.zeros(1), settings.storage)
        for part in (operator.gather(rows.out).T, rows.distribution)
    ]
    initial = None if operator.initial is None else device.upload(operator.initial)
    return _assembled(device, matrix, columns, hubs, rows.n_hubs, initial, gamma, tol)


def _assembled(
    device: Device, matrix: equation.PullMatrix, columns: Any, hubs: Sequence[Any], n_hubs: int, initial: Any,
    gamma: float, tol: float,
) -> DeviceChain:  # fmt: skip
    """The chain of a matrix by column and by row, shares and distributions, and mu0 in double precision."""
    n_states, kind = matrix.n_rows, matrix.value_type
    start = device.zeros(n_states, kind)
    if gamma < 1.0:
        start = ((1.0 - gamma) * initial).astype(kind)
    first = None if initial is None else initial.astype(kind)
    shares, distributions = (part.astype(kind, copy=False) for part in hubs)
    push = Equation(device, matrix, shares, distributions, n_hubs, start, gamma, n_states, tol)
    return DeviceChain(push, first, columns)


def require_sizes(n_states: int, n_hubs: int) -> None:
    """Refuse what kernels do not number."""
    if n_states > MOST_STATES:
        raise ValueError(f"the device path numbers states in 32 bits; {n_states:,} are too many")
    if n_hubs > MOST_HUBS:
        raise ValueError(f"the device path serves {MOST_HUBS} distributions to fall back to, not {n_hubs}")


def _resident_parts(device: Device, operator: EmpiricalOperator, settings: Settings) -> tuple[Any, Any]:
    rows, n_states = operator.rows, operator.n_states
    n_entries = rows.indices.size
    needed = required_bytes(
        n_states, operator.n_cells, n_entries, rows.n_hubs, operator.gamma, settings.storage
    )
    require_memory(device, needed, n_states, n_entries, operator.gamma, settings)
    weight = rows.weight if rows.weight.dtype == np.int64 else rows.weight.astype(np.float64, copy=False)
    policy = np.ones(operator.n_cells) if operator.policy is None else operator.policy.ravel()
    up = device.upload
    indptr, columns = up(rows.indptr, equation.index_type(n_entries)), up(rows.indices, np.int32)
    return _composed(
        device, n_states, indptr, columns, (up(weight), up(rows.scale), up(policy)), settings.storage
    )


def _composed(
    device: Device, n_states: int, indptr: Any, columns: Any, factors: tuple[Any, Any, Any], storage: Any
) -> tuple[equation.PullMatrix, tuple[Any, Any, Any]]:
    """The matrix by column, and (indptr, columns, rates) by row, from rows over cells that lie on the device.

    ``factors`` are the weights of entries, the scale of cells and the policy.
    """
    n_actions = (indptr.size - 1) // n_states
    sources, rates = equation.composed_rates(device, indptr, *factors, n_actions, storage)
    by_column = equation.transposed(device, columns, n_states, sources, rates, np.dtype(indptr.dtype))
    return equation.resident_matrix(device, *by_column), (indptr[::n_actions].copy(), columns, rates)


def _streamed_parts(device: Device, operator: EmpiricalOperator, settings: Settings) -> tuple[Any, Any]:
    """The matrix by column and by row, both kept on the host and fed through the same buffers."""
    assert settings.chunk_rows is not None
    by_row = operator.chain.kernel()
    both = (by_row.T.tocsr(), by_row)
    most = max(equation.most_entries(held.indptr, settings.chunk_rows) for held in both)
    sizes = (operator.n_states, operator.n_cells, by_row.nnz, most, operator.rows.n_hubs)
    needed = streamed_bytes(*sizes, operator.gamma, settings.storage)
    require_memory(device, needed, operator.n_states, by_row.nnz, operator.gamma, settings)
    feed = equation.Feed(device, most, settings.storage)
    by_column, backward = (equation.streamed_matrix(device, held, settings.chunk_rows, feed) for held in both)
    return by_column, backward


# -- counts on the device ---------------------------------------------------------------------------------


@dataclass(eq=False)
class DeviceProblem:
    """A chain on the device and what its solution is read with; all arrays over cells unless said."""

    chain: DeviceChain
    counts: DeviceCounts
    policy: Any
    p: Any
    reward: Any
    ended: Any
    leak_policy: str
    ratio: str

    def report(self, distribution: Any) -> Any:
        """Mass and ratio over cells on the device, and the sums of a report on the host."""
        device = self.counts.device
        reward = device.zeros(self.counts.n_cells, np.float64) if self.reward is None else self.reward
        return report(device, distribution, self.policy, self.p, reward, self.ended)


def compose_on_device(
    counts: DeviceCounts, choices: Choices, settings: Settings, tol: float
) -> DeviceProblem:
    """What :func:`lingendice.model.compose.compose` does, for counts that lie on the device."""
    device = counts.device
    if settings.chunk_rows is not None:
        raise ValueError("chunk_rows streams counts that lie on the host; these already lie on the device")
    if choices.policy is not None and counts.n_actions is None:
        raise ValueError(
            "a policy is given but the counts have no actions; pass action= to count_transitions"
        )
    sizes = (counts.n_states, counts.n_cells, counts.count.size, 2)
    needed = required_bytes(*sizes, choices.gamma, settings.storage)
    require_memory(device, needed, counts.n_states, counts.count.size, choices.gamma, settings)
    total, bad = equation.row_totals(device, counts.indptr, counts.count)
    if bad is not None:
        value = device.download(counts.count[bad])
        raise ValueError(f"entry {bad} of the counts is {value}, negative or not finite; fix it")
    seen = total > 0.0
    p = total / float(device.download(total.sum()))
    ended = _ended_share(counts, total, seen)
    has_ends = bool(device.download(ended.any()))
    initial = _initial(counts, choices, has_ends)
    fallbacks = read_fallbacks(
        choices.leak, choices.terminal, choices.ends_for_good, has_terminals=has_ends,
        has_initial=initial is not None, has_restart=choices.restart is not None,
    )  # fmt: skip
    policy = _policy(counts, choices, total)
    unseen = device.where(seen, 0.0, 1.0)
    hubs = _hubs(counts, choices, p, initial, (unseen, fallbacks.unseen), (ended, fallbacks.ended))
    # Ends are counted in the total and have no column: what goes on keeps its share of all transitions.
    scale = device.where(seen, 1.0 / device.where(seen, total, 1.0), 0.0)
    factors = (counts.count, scale, policy)
    matrix, (indptr, columns, rates) = _composed(
        device, counts.n_states, counts.indptr, counts.indices, factors, settings.storage
    )
    if has_ends:  # by row an end is sent to state 0 at no rate
        ends = counts.indices == counts.n_states
        columns = device.where(ends, 0, columns).astype(np.int32)
        rates = device.where(ends, 0.0, rates).astype(rates.dtype)
    require_sizes(counts.n_states, len(hubs))
    stacked = _stack(device, hubs, counts, policy, matrix.value_type)
    chain = _assembled(
        device, matrix, (indptr, columns, rates), stacked, len(hubs), initial, choices.gamma, tol
    )
    absorbed = ended if fallbacks.ends_absorb else device.zeros(counts.n_cells, np.float64)
    ratio = "state" if choices.policy is None or choices.ratio == "state" else "state_action"
    return DeviceProblem(chain, counts, policy, p, _reward(counts, choices), absorbed, choices.leak, ratio)


def _ended_share(counts: DeviceCounts, total: Any, seen: Any) -> Any:
    """Share of each cell's transitions that ended: the last entry of a row, in the column past the states."""
    last = counts.indptr[1:].astype(np.int64) - 1
    place = counts.device.where(seen, last, 0)
    ends = seen & (counts.indices[place] == counts.n_states)
    return counts.device.where(ends, counts.count[place] / counts.device.where(seen, total, 1.0), 0.0)


def _distribution(device: Device, name: str, value: Any, n: int) -> Any:
    distribution = device_vector(device, name, value, n)
    lowest, total = float(device.download(distribution.min())), float(device.download(distribution.sum()))
    if not (lowest >= 0.0 and 0.0 < total < np.inf):
        raise ValueError(f"{name} must be nonnegative with a positive sum; its least entry is {lowest:g}")
    return distribution / total


def _initial(counts: DeviceCounts, choices: Choices, has_ends: bool) -> Any:
    device, n, logged = counts.device, counts.n_states, counts.initial_count
    is_chain = counts.n_actions is None
    source = initial_source(
        choices, has_first_states=logged is not None, has_terminals=has_ends, is_chain=is_chain
    )
    if source is None:
        return None
    if source == "uniform":
        return device.zeros(n, np.float64) + 1.0 / n
    return _distribution(device, "initial", choices.initial if source == "given" else logged, n)


def _policy(counts: DeviceCounts, choices: Choices, total: Any) -> Any:
    device, n_actions = counts.device, counts.n_actions or 1
    if counts.n_actions is None:
        return device.zeros(counts.n_cells, np.float64) + 1.0
    shape = (counts.n_states, n_actions)
    given = total
    if choices.policy is not None:
        given = device_vector(device, "policy", choices.policy, counts.n_cells)
        sums = given.reshape(shape).sum(axis=1)
        off = abs(sums - 1.0)
        if float(device.download(given.min())) < 0.0 or float(device.download(off.max())) > 1e-6:
            state = int(device.download(off.argmax()))
            raise ValueError(
                f"policy[{state}] sums to {float(device.download(sums[state])):.6g}, not 1; normalize it"
            )
    table = given.reshape(shape)
    sums = table.sum(axis=1).reshape((counts.n_states, 1))
    rows = device.where(sums > 0.0, table / device.where(sums > 0.0, sums, 1.0), 1.0 / n_actions)
    return rows.reshape(counts.n_cells)


def _hubs(
    counts: DeviceCounts, choices: Choices, p: Any, initial: Any, *falling: tuple[Any, str | None]
) -> list[tuple[Any, Any]]:
    """(share over cells, distribution over states) of every distribution that rows fall back to."""
    device = counts.device
    known = {"initial": initial}
    if choices.restart is not None:  # checked even where nothing leaks
        known["restart"] = _distribution(device, "restart", choices.restart, counts.n_states)
    hubs = []
    for share, source in falling:
        if source is None or not bool(device.download(share.any())):
            continue
        if source == "data":
            known["data"] = p.reshape((counts.n_states, counts.n_actions or 1)).sum(axis=1)
        hubs.append((share, known[source]))
    return hubs


def _stack(device: Device, hubs: list[tuple[Any, Any]], counts: DeviceCounts, policy: Any, dtype: Any) -> Any:
    n = counts.n_states
    shares, distributions = (device.zeros(max(len(hubs), 1) * n, dtype) for _ in range(2))
    for k, (share, distribution) in enumerate(hubs):
        over_states = (share * policy).reshape((n, counts.n_actions or 1)).sum(axis=1)
        shares[k * n : (k + 1) * n] = over_states.astype(dtype)
        distributions[k * n : (k + 1) * n] = distribution.astype(dtype)
    return shares, distributions


def _reward(counts: DeviceCounts, choices: Choices) -> Any:
    device = counts.device
    if choices.reward is not None:
        size = int(device.adopt(choices.reward).size)
        n_actions = counts.n_actions or 1
        if size == counts.n_states and n_actions > 1:
            by_state = device_vector(device, "reward", choices.reward, counts.n_states)
            return (
                device.zeros((counts.n_states, n_actions), np.float64) + by_state.reshape((-1, 1))
            ).reshape(-1)
        return device_vector(device, "reward", choices.reward, counts.n_cells)
    if counts.reward_mean is None:
        return None
    earned, _ = equation.row_totals(device, counts.indptr, counts.count * counts.reward_mean)
    total, _ = equation.row_totals(device, counts.indptr, counts.count)
    return device.where(total > 0.0, earned / device.where(total > 0.0, total, 1.0), np.nan)


def report(device: Device, distribution: Any, policy: Any, p: Any, reward: Any, ended: Any) -> Any:
    """Mass and ratio over cells on the device, and the sums of a report on the host."""
    n_cells, n_actions = policy.size, policy.size // distribution.size
    mass, ratio = device.empty(n_cells, np.float64), device.empty(n_cells, np.float64)
    n_parts = n_blocks(device, n_cells, device.block)
    partials = device.empty(REPORTED * n_parts, np.float64)
    launch(
        device, "report_cells", (c_type(distribution.dtype),), n_parts,
        (np.int32(n_cells), np.int32(n_actions), distribution, policy, p, reward, ended, mass, ratio,
         partials, np.int32(n_parts)),
        shared_bytes=REPORTED * SCRATCH,
    )  # fmt: skip
    return mass, ratio, device.download(partials).reshape(REPORTED, n_parts).sum(axis=1)


def solve_chain(
    chain: DeviceChain, follow_initial: bool, controls: Controls, poll_every: int | None
) -> Distributions:
    """Solve ``mu = (1 - gamma) mu0 + gamma P' mu``; at gamma = 1 one distribution for each recurrent class.

    Distributions are device arrays. With several classes and ``follow_initial`` the chain is followed from
    the initial distribution: its steps keep the probability of ending in each class, and so does their
    extrapolation.
    """
    device, dtype = chain.push.device, chain.push.value_type

    def distribution_from(first: Any, unique: bool = True) -> Outcome:
        return run(iterate_distribution(chain.push, first, poll_every, controls.max_iter, unique), controls)

    if chain.push.gamma < 1.0:
        outcome = distribution_from(chain.initial)
        return Distributions(outcome.distribution, (outcome.distribution,), outcome)
    classes = Reach(chain.push, chain.backward()).recurrent_classes()
    outcomes = [
        distribution_from((mark / float(device.download(mark.sum()))).astype(dtype)) for mark in classes
    ]
    distributions = tuple(outcome.distribution for outcome in outcomes)
    if len(distributions) == 1:
        return Distributions(distributions[0], distributions, outcomes[0])
    if not follow_initial or chain.initial is None:
        return Distributions(None, distributions, combined(outcomes))
    mixture = distribution_from(chain.initial, unique=False)
    # Mass that has not left the transient states yet belongs to no distribution.
    outside = float(device.download((mixture.distribution * (1 - sum(classes))).sum()))
    mixture.converged = mixture.converged and outside <= chain.push.tol
    return Distributions(mixture.distribution, distributions, combined([*outcomes, mixture]))


def device_distributions(
    device: Device, operator: EmpiricalOperator, follow_initial: bool, controls: Controls, settings: Settings
) -> Distributions:
    """Those of an operator whose counts lie on the host: up, solved, and down again."""
    # A little stricter than asked where the residual is measured again on the host, which rounds otherwise.
    tol = 0.9 * controls.tol if operator.gamma < 1.0 else controls.tol
    chain = chain_of_operator(device, operator, settings, tol)
    found = solve_chain(chain, follow_initial, controls, settings.poll_every)

    def down(distribution: Any) -> Any:
        host = device.download(distribution).astype(np.float64)
        return host / host.sum() if operator.gamma == 1.0 else host

    every = tuple(map(down, found.every))
    found.outcome.residual = None
    single = every[0] if len(every) == 1 else None if found.single is None else down(found.single)
    return Distributions(single, every, found.outcome)
