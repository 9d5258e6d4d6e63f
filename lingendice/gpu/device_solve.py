"""``solve(..., device="cuda")``: read the data, compose, solve on the device."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from lingendice.data.checks import require_choice
from lingendice.data.counts import Counts
from lingendice.data.interrupts import interruptible, read_on_interrupt
from lingendice.gpu.arrays import lies_on_device
from lingendice.gpu.catalog import WEIGHTS
from lingendice.gpu.chain import Settings, compose_on_device
from lingendice.gpu.device import Device, current_device
from lingendice.gpu.device_counts import DeviceCounts
from lingendice.gpu.device_solution import DeviceSolution
from lingendice.gpu.distributions import solve_chain
from lingendice.gpu.host_copy import COPY, HostedSolution, copied_to_host, what_needs_the_host
from lingendice.gpu.pull import row_totals
from lingendice.model.compose import Choices, compose
from lingendice.results.solution import Solution, stated_error, with_identified_status
from lingendice.solvers.control import Controls
from lingendice.solvers.linear_choices import LinearChoices

OPTIONS = ("chunk_rows", "storage", "poll_every")
EXACT_METHODS = ("auto", "power-extrapolated")


def require_one_side(data: Any, choices: Choices, device: str) -> None:
    """Refuse to mix host and device, and to work on the host with data that lie on the device."""
    require_choice("device", device, ("cpu", "cuda"))
    on_device = lies_on_device(data)
    if on_device and device == "cpu":
        raise ValueError(
            'the data lie on a CUDA device and device="cpu"; pass device="cuda" to solve there, '
            "or copy them to the host first"
        )
    if on_device:
        return
    for name in ("policy", "behavior", "reward", "initial", "restart"):
        if lies_on_device(getattr(choices, name)):
            raise ValueError(
                f"{name} lies on the device and the data on the host; "
                "copy one of them: nothing moves in silence"
            )


def solve_on_device(
    data: Any,
    choices: Choices,
    linear: LinearChoices,
    controls: Controls,
    reward_range: tuple[float, float] | None,
    device: str,
) -> Solution:
    """Send checked arguments of ``solve`` to the device; data from the host come back to the host."""
    from lingendice.solve import _refuse_unavailable

    require_one_side(data, choices, device)
    on_interrupt = read_on_interrupt(linear.options)
    options = {name: value for name, value in (linear.options or {}).items() if name != "on_interrupt"}
    if not linear.is_asked:
        require_choice("method", linear.method, EXACT_METHODS)
        _refuse_unavailable(linear.divergence, linear.penalty, linear.normalize, linear.warm_start)
        for name in sorted(set(options) - set(OPTIONS) - ({COPY} if lies_on_device(data) else set())):
            raise ValueError(f"options has no entry {name!r} on the device; known: {', '.join(OPTIONS)}")
    with interruptible(on_interrupt) as work:
        if not lies_on_device(data):
            solution = _solve_from_host(data, choices, linear, options, controls, reward_range)
        else:
            allowed = bool(options.pop(COPY, False))
            counts = data if isinstance(data, DeviceCounts) else read_matrix(current_device(), data)
            what = what_needs_the_host(choices, linear)
            if what is None:
                solution = solve_resident(counts, choices, linear, options, controls, reward_range)
            else:
                held, choices, linear = copied_to_host(what, counts, choices, linear, allowed)
                solution = _solve_from_host(held, choices, linear, options, controls, reward_range)
                solution = HostedSolution.of(solution, counts.device)
        work.solution = solution
    return solution


def _solve_from_host(
    data: Any,
    choices: Choices,
    linear: LinearChoices,
    options: dict[str, Any],
    controls: Controls,
    reward_range: tuple[float, float] | None,
) -> Solution:
    """The exact equation, the ridge problem or the saddle point, as the host would choose."""
    from lingendice.solve import _defaults, _run, _run_ridge, check_leak

    counts = data if isinstance(data, Counts) else Counts.from_matrix(data, copy=False)
    if not counts.count.size:
        raise ValueError(
            "there are no transitions to learn from: the counts are empty; add data first, or use "
            'device="cpu", where a chain without them restarts at gamma < 1'
        )
    choices, strength = _defaults(choices, linear, counts)
    device = current_device()
    if linear.is_asked:
        from lingendice.gpu.device_saddle import solve_saddle

        solution = solve_saddle(device, compose(counts, choices), linear, options, controls, reward_range)
        check_leak(solution)
        return with_identified_status(solution)
    if strength != 0.0:
        from lingendice.gpu.device_ridge import RidgeOnDevice

        _refuse_with_ridge(linear.method, options)
        build = RidgeOnDevice(device, Settings.read(options).storage)
        return _run_ridge(counts, choices, strength, controls, reward_range, build, stacklevel=6)
    there = (device, Settings.read(options))
    follow_initial = choices.initial is not None
    return _run(
        compose(counts, choices), follow_initial, linear.method, controls, reward_range, there, stacklevel=6
    )


def _refuse_with_ridge(method: str, options: dict[str, Any]) -> None:
    """What concerns the exact equation on the device says nothing to the ridge problem."""
    if method != "auto":
        raise ValueError(f"method={method!r} solves the exact equation; leave it out, or pass ridge=0")
    for name in sorted(set(options) - {"storage"}):
        raise ValueError(
            f"options[{name!r}] is for the exact equation; leave it out, or pass ridge=0, clone=0"
        )


def solve_resident(
    counts: DeviceCounts,
    choices: Choices,
    linear: LinearChoices,
    options: dict[str, Any],
    controls: Controls,
    reward_range: tuple[float, float] | None,
) -> DeviceSolution:
    """Solve the exact equation for data that lie on the device; the arrays of the solution stay there."""
    from lingendice.solve import outcome_fields

    settings = Settings.read(options)
    problem = compose_on_device(counts, choices, settings, controls.tol)
    found = solve_chain(problem.chain, choices.initial is not None, controls, settings.poll_every)
    outcome = found.outcome
    error, kind = outcome.error, outcome.error_kind
    residual = outcome.residual if outcome.residual is not None else np.nan
    if settings.storage == "float64":
        error, kind = stated_error(error, kind, residual, choices.gamma, controls.tol)
    solution = DeviceSolution(
        **outcome_fields(outcome, found.single is None, error, controls),
        gamma=choices.gamma,
        state_distribution=found.single,
        state_distributions=found.every,
        residual=residual,
        error=error,
        error_kind=kind,
        source=_no_operator,
        reward_range=reward_range,
        problem=problem,
        choices=choices,
    )
    _check_leak(solution, choices)
    return with_identified_status(solution)


def _no_operator() -> Any:
    raise ValueError("the operator lies on the device; call sol.to_host()")


def _check_leak(solution: DeviceSolution, choices: Choices) -> None:
    from lingendice.solve import LeakWarning, leak_needs_warning

    if solution.state_distribution is None or solution.leak == 0.0:
        return
    policy = solution._parts.leak_policy
    if policy == "error":
        raise ValueError(
            f"{solution.leak:.2%} of the stationary mass lies in cells that are reached but were never seen "
            'leaving; add data there, or choose leak="restart" or leak="absorb"'
        )
    if leak_needs_warning(solution.leak, policy, choices) and solution._parts.counts.has_sample_size:
        warnings.warn(
            f"{solution.leak:.1%} of the stationary mass lies where there is no data; "
            "the value leaves it out",
            LeakWarning,
            stacklevel=5,  # the caller of solve
        )


# -- matrices on the device ----------------------------------------------------------------------------------


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
