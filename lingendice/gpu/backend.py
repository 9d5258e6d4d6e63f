"""The device's backend: the same three verbs as on the host, and a fourth for data that lie on the device."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lingendice.data.checks import NotAvailableYet, require_choice
from lingendice.divergences import FDivergence
from lingendice.gpu.arrays import lies_on_device
from lingendice.gpu.chain import (
    DeviceDistributions,
    DeviceProblem,
    Settings,
    compose_on_device,
    device_distributions,
    solve_chain,
)
from lingendice.gpu.device import Device, current_device, require_bytes
from lingendice.gpu.device_counts import DeviceCounts, read_matrix
from lingendice.gpu.device_extragradient import device_extragradient
from lingendice.gpu.device_ridge import RidgeOnDevice
from lingendice.gpu.device_saddle import ADVICE, saddle_bytes
from lingendice.gpu.host_copy import COPY
from lingendice.gpu.stochastic import device_sgd
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers import sgd
from lingendice.solvers.control import Stop
from lingendice.solvers.ridge import RidgeSystem
from lingendice.solvers.saddle import limited, read_options, read_problem
from lingendice.solvers.saddle_outcome import SaddleFit, run_saddle, without_steps
from lingendice.solvers.stationary import Distributions

if TYPE_CHECKING:
    from lingendice.solvers.request import Request

OPTIONS = ("chunk_rows", "storage", "poll_every")
EXACT_METHODS = ("auto", "power-extrapolated")
HOST_METHODS = ("convex",)
DEVICE_BATCH = 1024
"""Samples of one step of SGD on the device unless options['batch'] says otherwise."""


class ResidentFit(NamedTuple):
    """Distributions of counts on the device, and the problem they belong to."""

    problem: DeviceProblem
    found: DeviceDistributions
    storage: str


class CudaBackend:
    """The verbs on one device, for one request: what lies there is shared between its solves."""

    def __init__(self, data: Any, request: Request) -> None:
        """Refuse to mix host and device, and to work on the host with data that lie on the device."""
        self.resident = lies_on_device(data)
        if self.resident and request.method.device == "cpu":
            raise ValueError(
                'the data lie on a CUDA device and device="cpu"; pass device="cuda" to solve there, '
                "or copy them to the host first"
            )
        if self.resident:
            return
        for name in ("policy", "behavior", "reward", "initial", "restart"):
            if lies_on_device(getattr(request.problem, name)):
                raise ValueError(
                    f"{name} lies on the device and the data on the host; "
                    "copy one of them: nothing moves in silence"
                )

    @cached_property
    def device(self) -> Device:
        """The current device, opened when first needed."""
        return current_device()

    def check(self, request: Request) -> None:
        """Refuse methods and options that there are not; those of the saddle point are read there."""
        if request.wants_saddle:
            return
        require_choice("method", request.method.name, EXACT_METHODS)
        request.require_exact_terms()
        known = {*OPTIONS, COPY} if self.resident else set(OPTIONS)
        for name in sorted(set(request.method.options) - known):
            raise ValueError(f"options has no entry {name!r} on the device; known: {', '.join(OPTIONS)}")

    def refuse_exact_options(self, request: Request) -> None:
        """The default with a policy is fitted on the host, where options of the device say nothing."""
        _refuse_with_ridge(request)

    def stationary(self, operator: EmpiricalOperator, request: Request) -> Distributions:
        """Power steps, extrapolated; the distributions come back to the host."""
        _require_transitions(operator)
        settings = Settings.read(request.method.options)
        return device_distributions(self.device, operator, request.follows_initial, request.limits, settings)

    def ridge(self, operator: EmpiricalOperator, request: Request) -> RidgeSystem:
        """Conjugate gradients on the device, everything else by the host's own system."""
        _refuse_with_ridge(request)
        storage = Settings.read(request.method.options).storage
        return RidgeOnDevice(self.device, storage)(operator, request.ridge, 1.0)

    def saddle(self, operator: EmpiricalOperator, request: Request) -> SaddleFit:
        """Extragradient or minibatch SGD on the device; gaps are certified on the host."""
        _require_transitions(operator)
        method, reason = _saddle_method(request)
        problem, back = read_problem(operator, request.objective)
        if not isinstance(problem.divergence, FDivergence) or problem.divergence.name == "equality":
            raise NotAvailableYet(f"divergence {problem.divergence.name} on the device", 'use device="cpu"')
        own = {name: value for name, value in request.method.options.items() if name != "storage"}
        storage = np.dtype(
            Settings.read({"storage": request.method.options.get("storage", "float64")}).storage
        )
        options = read_options(method, {"batch": DEVICE_BATCH} | own if method == "sgd" else own)
        if method == "sgd":
            if problem.self_normalized:
                raise NotAvailableYet(
                    'normalize="self" with SGD on the device', 'use method="extragradient", or device="cpu"'
                )
            problem = sgd.bounded_for_sgd(problem)
        if not problem.bound_is_feasible:
            outcome = without_steps(problem, request.limits.tol, method, Stop.BOUND)
        elif not math.isfinite(problem.largest_mass):
            outcome = without_steps(problem, request.limits.tol, method, Stop.UNBOUNDED)
        else:
            batch = int(options["batch"]) if method == "sgd" else None
            require_bytes(self.device, saddle_bytes(problem, batch, storage.itemsize), ADVICE)
            controls = limited(method, problem, options, request.limits)
            if method == "sgd":
                solver = device_sgd(self.device, problem, storage, controls, request.method.seed, options)
            else:
                solver = device_extragradient(self.device, problem, storage, controls)
            outcome = run_saddle(solver, controls)
        outcome.reason = f"{reason}, on {self.device.name}"
        return SaddleFit(problem, outcome, back)

    def adopt(self, data: Any) -> DeviceCounts:
        """Counts or a matrix that lie on the device, as counts there."""
        return data if isinstance(data, DeviceCounts) else read_matrix(self.device, data)

    def stationary_resident(self, counts: DeviceCounts, request: Request) -> ResidentFit:
        """The exact equation for counts that lie on the device; nothing but numbers comes to the host."""
        settings = Settings.read(request.method.options)
        problem = compose_on_device(counts, request.problem, settings, request.limits.tol)
        found = solve_chain(problem.chain, request.follows_initial, request.limits, settings.poll_every)
        return ResidentFit(problem, found, settings.storage)


def _require_transitions(operator: EmpiricalOperator) -> None:
    if not operator.counts.count.size:
        raise ValueError(
            "there are no transitions to learn from: the counts are empty; add data first, or use "
            'device="cpu", where a chain without them restarts at gamma < 1'
        )


def _refuse_with_ridge(request: Request) -> None:
    """What concerns the exact equation on the device says nothing to the ridge problem."""
    if request.method.name != "auto":
        raise ValueError(
            f"method={request.method.name!r} solves the exact equation; leave it out, or pass ridge=0"
        )
    for name in sorted(set(request.method.options) - {"storage"}):
        raise ValueError(
            f"options[{name!r}] is for the exact equation; leave it out, or pass ridge=0, clone=0"
        )


def _saddle_method(request: Request) -> tuple[str, str]:
    """The method for a saddle point, and why."""
    given, objective = request.method.name, request.objective
    if given in HOST_METHODS:
        raise NotAvailableYet(
            f"method={given!r} on the device", 'use method="extragradient", or device="cpu"'
        )
    method = require_choice("method", given, ("auto", "extragradient", "sgd"))
    if method == "sgd" and (objective.features is not None or objective.dual_features is not None):
        raise NotAvailableYet(
            "features= with SGD on the device", 'use method="extragradient", or device="cpu"'
        )
    if request.method.warm_start is not None:
        raise NotAvailableYet("warm_start on the device", 'leave it out, or use device="cpu"')
    if method == "auto":
        return "extragradient", "the method for features, bounds and divergences"
    return method, "chosen by the caller"
