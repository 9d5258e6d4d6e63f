"""The solvers on the device: the exact equation, and SGD over tables. All else is solved on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.gpu.chain import METHOD, DeviceOptions, device_distribution
from lingendice.gpu.device import current_device, require_bytes
from lingendice.gpu.device_sgd import ADVICE, device_sgd, sgd_bytes
from lingendice.model.transition_rows import find_classes
from lingendice.solvers.saddle import solve_saddle
from lingendice.solvers.stationary import Distributions, stationary_distributions

if TYPE_CHECKING:
    from lingendice.model.operator import EmpiricalOperator
    from lingendice.solvers.control import Controls
    from lingendice.solvers.problem import RatioProblem, SaddleFit, SaddleSolver
    from lingendice.solvers.request import MethodChoices, Request

ON_HOST = "; solved on the host: the GPU has no solver for it (see device=)"
"""What the reason of a solution says where the GPU was asked for in vain."""
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
                f"options[{name!r}] is for what the GPU solves, and this is solved on the host; leave it "
                "out, or ask for the exact equation of one recurrent class (with a policy: ridge=0, clone=0)"
            )


def stationary(operator: EmpiricalOperator, request: Request) -> Distributions:
    """The stationary distribution, by extrapolated power steps; of several, all of them, by the host."""
    first, limits = operator.initial, request.limits
    if operator.gamma == 1.0:
        classes = find_classes(operator.chain.extended()[0]).recurrent
        if len(classes) > 1:
            refuse_options(request)
            found = stationary_distributions(
                operator.chain, 1.0, operator.initial, request.follows_initial, "auto", limits
            )
            found.outcome.reason += ON_HOST
            return found
        first = np.zeros(operator.n_states)
        first[classes[0][classes[0] < operator.n_states]] = 1.0  # what restarts are drawn from are no states
        first /= first.sum()
    assert first is not None  # composing sees to it
    options = DeviceOptions.read(request.method.options)
    outcome = device_distribution(current_device(), operator, first, limits, options)
    return Distributions(outcome.distribution, (outcome.distribution,), outcome)


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
