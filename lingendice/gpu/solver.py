"""The solvers on the device: the exact equation, and SGD over tables. All else is solved on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.gpu.chain import METHOD, DeviceOptions, device_distributions
from lingendice.gpu.device import current_device, require_bytes
from lingendice.gpu.device_sgd import ADVICE, device_sgd, sgd_bytes
from lingendice.solvers.saddle import solve_saddle

if TYPE_CHECKING:
    from lingendice.model.operator import EmpiricalOperator
    from lingendice.solvers.control import Controls
    from lingendice.solvers.problem import RatioProblem, SaddleFit, SaddleSolver
    from lingendice.solvers.request import MethodChoices, Request
    from lingendice.solvers.stationary import Distributions

DEVICE_BATCH = 1024
"""Samples of one step of SGD on the device unless options['batch'] says otherwise: a step of one sample would
leave the device idle."""


def serves(request: Request) -> bool:
    """Whether the device has a solver for the request, unless it is for the default with a policy."""
    method, objective = request.method, request.objective
    if request.wants_saddle:
        over_tables = objective.features is None and objective.dual_features is None
        plain = objective.normalize == "penalty" and method.warm_start is None
        return method.name == "sgd" and over_tables and plain
    exact = request.ridge == 0.0 and request.problem.horizon is None
    return exact and method.name in ("auto", METHOD)


def refuse_options(request: Request) -> None:
    """Refuse options of the device for what is solved on the host: they would be ignored there."""
    for name in DeviceOptions.NAMES:
        if name in request.method.options:
            raise ValueError(
                f"options[{name!r}] is for the exact equation and SGD over tables on the device, and this is "
                "solved on the host; leave it out, or pass ridge=0, clone=0 for the exact equation"
            )


def stationary(operator: EmpiricalOperator, request: Request) -> Distributions:
    """Every stationary distribution, by extrapolated power steps; they come back to the host."""
    options = DeviceOptions.read(request.method.options)
    return device_distributions(current_device(), operator, request.follows_initial, request.limits, options)


def saddle(operator: EmpiricalOperator, request: Request) -> SaddleFit:
    """GenDICE's saddle point over tables by minibatch SGD; its gap is certified on the host."""
    device = current_device()
    own = {"batch": DEVICE_BATCH} | dict(request.method.options)
    storage = np.dtype(DeviceOptions.read(own).storage)
    own.pop("storage", None)

    def begin(
        problem: RatioProblem, method: str, choices: MethodChoices, options: dict[str, Any],
        controls: Controls,
    ) -> SaddleSolver:  # fmt: skip
        require_bytes(device, sgd_bytes(problem, options["batch"], storage.itemsize), ADVICE)
        return device_sgd(device, problem, storage, controls, choices.seed, options)

    fit = solve_saddle(operator, request._replace(method=request.method._replace(options=own)), begin)
    fit.outcome.reason += f", on {device.name}"
    return fit
