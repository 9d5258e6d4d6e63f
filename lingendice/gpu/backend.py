"""The device's backend: the same three verbs as on the host, for rows on the host or on the device."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import NotAvailableYet, lies_on_device, outside_level, require_choice
from lingendice.data.counts import Counts
from lingendice.divergences import MMD, FDivergence
from lingendice.gpu.chain import Settings, device_distributions
from lingendice.gpu.device import Device, current_device, require_bytes
from lingendice.gpu.device_counts import DeviceCounts
from lingendice.gpu.device_ridge import DeviceRidge
from lingendice.gpu.device_saddle import ADVICE, device_extragradient, device_sgd, saddle_bytes
from lingendice.model.features import Tabular
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls
from lingendice.solvers.problem import RatioProblem, SaddleFit, SaddleSolver
from lingendice.solvers.ridge import RidgeSystem
from lingendice.solvers.saddle import read_start, solve_saddle
from lingendice.solvers.stationary import Distributions

if TYPE_CHECKING:
    from lingendice.solvers.request import MethodChoices, Request


OPTIONS = ("chunk_rows", "storage", "poll_every")
DEVICE_BATCH = 1024
"""Samples of one step of SGD on the device unless options['batch'] says otherwise."""
ARRAYS = ("policy", "behavior", "reward", "initial", "restart")
FEATURES = ("features", "dual_features")
COPY = "copy_to_host"
"""The option that allows the copy beforehand."""


class CudaBackend:
    """The verbs on one device, for one request."""

    def __init__(self, data: Any, request: Request) -> None:
        """Refuse to work on the host with data that lie on the device."""
        self.resident = lies_on_device(data)
        if self.resident and request.method.device == "cpu":
            raise ValueError(
                'the data lie on a CUDA device and device="cpu"; pass device="cuda" to solve there, '
                "or copy them to the host first"
            )

    @cached_property
    def device(self) -> Device:
        """The current device, opened when first needed."""
        return current_device()

    def check(self, request: Request) -> None:
        """Refuse methods and options that there are not; those of the saddle point are read there."""
        self.settings = Settings.read(request.method.options)
        if request.wants_saddle:
            return
        require_choice("method", request.method.name, ("auto", "power-extrapolated"))
        request.require_exact_terms()
        known = {*OPTIONS, COPY} if self.resident else set(OPTIONS)
        for name in sorted(set(request.method.options) - known):
            raise ValueError(f"options has no entry {name!r} on the device; known: {', '.join(OPTIONS)}")

    def refuse_exact_options(self, request: Request) -> None:
        """What concerns the exact equation on the device says nothing to a ridge problem."""
        request.refuse_exact_method()
        for option in sorted(set(request.method.options) - {"storage"}):
            raise ValueError(
                f"options[{option!r}] is for the exact equation; leave it out, or pass ridge=0, clone=0"
            )

    def stationary(self, operator: EmpiricalOperator, request: Request) -> Distributions:
        """Power steps, extrapolated; the distributions come back to the host."""
        _require_transitions(operator)
        return device_distributions(
            self.device, operator, request.follows_initial, request.limits, self.settings
        )

    def ridge(self, operator: EmpiricalOperator, request: Request) -> RidgeSystem:
        """Conjugate gradients on the device, everything else by the host's own system."""
        self.refuse_exact_options(request)
        return DeviceRidge(self.device, operator, request.ridge, self.settings.storage)

    def saddle(self, operator: EmpiricalOperator, request: Request) -> SaddleFit:
        """Extragradient or minibatch SGD on the device; gaps are certified on the host."""
        _require_transitions(operator)
        own = {"batch": DEVICE_BATCH} if request.method.name == "sgd" else {}
        own |= {name: value for name, value in request.method.options.items() if name != "storage"}
        request = request._replace(method=request.method._replace(options=own))
        fit = solve_saddle(operator, request, _saddle_method, self._begin_saddle)
        fit.outcome.reason += f", on {self.device.name}"
        return fit

    def _begin_saddle(
        self, problem: RatioProblem, method: str, choices: MethodChoices, options: dict[str, Any],
        controls: Controls,
    ) -> SaddleSolver:  # fmt: skip
        storage = np.dtype(self.settings.storage)
        batch = int(options["batch"]) if method == "sgd" else None
        require_bytes(self.device, saddle_bytes(problem, batch, storage.itemsize), ADVICE)
        if method == "extragradient":
            start = read_start(problem, choices.warm_start, method)
            return device_extragradient(self.device, problem, storage, controls.tol, start)
        if choices.warm_start is not None:
            raise NotAvailableYet("warm_start with SGD on the device", 'leave it out, or use device="cpu"')
        return device_sgd(self.device, problem, storage, controls, choices.seed, options)


def _require_transitions(operator: EmpiricalOperator) -> None:
    if not operator.counts.total:
        raise ValueError(
            "there are no transitions to learn from: the counts are empty; add data first, or use "
            'device="cpu", where a chain without them restarts at gamma < 1'
        )


def _saddle_method(problem: RatioProblem, given: str) -> tuple[str, str]:
    """The method for a saddle point on the device, and why; an error where only the host has one."""
    divergence, instead = problem.divergence, 'use method="extragradient", or device="cpu"'
    if given == "convex":
        raise NotAvailableYet(f"method={given!r} on the device", instead)
    method = require_choice("method", given, ("auto", "extragradient", "sgd"))
    if not isinstance(divergence, (FDivergence, MMD)):
        raise NotAvailableYet(f"divergence {divergence.name} on the device", 'use device="cpu"')
    if method == "auto":
        return "extragradient", "the method for features, bounds and divergences"
    missing = {
        "features=": not (
            isinstance(problem.features, Tabular) and isinstance(problem.dual_features, Tabular)
        ),
        f"divergence {divergence.name}": divergence.name in ("mmd", "equality"),
        'normalize="self"': problem.self_normalized,
    }
    for name in (name for name, asked in missing.items() if asked and method == "sgd"):
        raise NotAvailableYet(f"{name} with SGD on the device", instead)
    return method, "chosen by the caller"


class HostCopyWarning(UserWarning):
    """Counts that lie on the device are copied to the host, because what was asked for is chosen there."""


def what_needs_the_host(counts: DeviceCounts, request: Request) -> str | None:
    """What is not solved over rows that lie on the device; None where no more is asked."""
    asked = {
        "the saddle point (features, bound, method=)": request.wants_saddle,
        "the default with a policy (advantages shrunk by the data)": request.shrinks(counts.cell_sums),
        "a ridge": request.ridge > 0.0,
    }
    return next((name for name, needed in asked.items() if needed), None)


def with_host_arrays(counts: DeviceCounts, request: Request) -> Request:
    """The request with policies, distributions, rewards and features brought to the host, which composes."""
    device = counts.device

    def down(name: str, value: Any) -> Any:
        if value is None:
            return None
        if not lies_on_device(value):
            raise ValueError(
                f"{name} lies on the host and the data on the device; pass it as a device array "
                f"(cupy.asarray({name})), or move the data to the host first: counts.to_host()"
            )
        return device.download(device.adopt(value))

    problem, objective = request.problem, request.objective
    return request._replace(
        problem=problem._replace(**{name: down(name, getattr(problem, name)) for name in ARRAYS}),
        objective=objective._replace(**{name: down(name, getattr(objective, name)) for name in FEATURES}),
    )


def copied_to_host(what: str, counts: DeviceCounts, request: Request) -> tuple[Counts, Request]:
    """The rows, for what works on them on the host; a warning says so unless it was allowed."""
    options = dict(request.method.options)
    if not options.pop(COPY, False):
        size = sum(part.nbytes for part in (counts.indptr, counts.indices, counts.count))
        warnings.warn(
            f"{what} is chosen on the host: the counts on the device ({size / 1e6:.3g} MB) are copied there, "
            "steps are made on the device, and the answer is put back. Pass "
            f"options={{{COPY!r}: True}} if that is meant, or ridge=0, clone=0 for the exact equation, "
            "which needs no copy",
            HostCopyWarning,
            stacklevel=outside_level(),
        )
    return counts.to_host(), request._replace(method=request.method._replace(options=options))
