"""Every stationary law of a chain on the device, as ``lingendice.solvers.stationary`` finds them on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.gpu.chain import DeviceChain, Settings, chain_of_operator
from lingendice.gpu.device import Device
from lingendice.gpu.power_steps import Reach, iterate_law
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, Outcome, combined, run
from lingendice.solvers.stationary import Laws


class DeviceLaws(NamedTuple):
    """Laws over states as device arrays, and how the hardest was found."""

    single: Any
    every: tuple[Any, ...]
    outcome: Outcome


def solve_chain(
    chain: DeviceChain, follow_initial: bool, controls: Controls, poll_every: int | None
) -> DeviceLaws:
    """Solve ``mu = (1 - gamma) mu0 + gamma P' mu``; at gamma = 1 one law for each recurrent class.

    With several classes and ``follow_initial`` the chain is followed from the initial law: its steps keep
    the chance of ending in each class, and so does their extrapolation.
    """
    device = chain.device
    dtype = chain.push.value_type

    def law_from(first: Any, unique: bool = True) -> Outcome:
        return run(iterate_law(chain.push, first, poll_every, controls.max_iter, unique), controls)

    if chain.gamma < 1.0:
        outcome = law_from(chain.initial)
        return DeviceLaws(outcome.law, (outcome.law,), outcome)
    classes = Reach(chain.push, chain.backward()).recurrent_classes()
    outcomes = [law_from((mark / float(device.download(mark.sum()))).astype(dtype)) for mark in classes]
    laws = tuple(outcome.law for outcome in outcomes)
    if len(laws) == 1:
        return DeviceLaws(laws[0], laws, outcomes[0])
    if not follow_initial or chain.initial is None:
        return DeviceLaws(None, laws, combined(outcomes))
    mixture = law_from(chain.initial, unique=False)
    # Mass that has not left the transient states yet belongs to no law.
    outside = float(device.download((mixture.law * (1 - sum(classes))).sum()))
    mixture.converged = mixture.converged and outside <= chain.push.tol
    return DeviceLaws(mixture.law, laws, combined([*outcomes, mixture]))


def device_laws(
    device: Device,
    operator: EmpiricalOperator,
    follow_initial: bool,
    controls: Controls,
    settings: Settings,
) -> Laws:
    """Laws of an operator whose counts lie on the host: up, solved, and the laws down again."""
    # A little stricter than asked where the residual is measured again on the host, which rounds otherwise.
    tol = 0.9 * controls.tol if operator.gamma < 1.0 else controls.tol
    chain = chain_of_operator(device, operator, settings, tol)
    found = solve_chain(chain, follow_initial, controls, settings.poll_every)

    def down(law: Any) -> Any:
        host = device.download(law).astype(np.float64)
        return host / host.sum() if operator.gamma == 1.0 else host

    every = tuple(down(law) for law in found.every)
    found.outcome.residual = None
    if found.single is None:
        return Laws(None, every, found.outcome)
    return Laws(every[0] if len(every) == 1 else down(found.single), every, found.outcome)
