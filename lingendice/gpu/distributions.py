"""Every stationary distribution of a chain on the device, as ``lingendice.solvers.stationary`` finds them on
the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.gpu.chain import DeviceChain, Settings, chain_of_operator
from lingendice.gpu.device import Device
from lingendice.gpu.power_steps import Reach, iterate_distribution
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, Outcome, combined, run
from lingendice.solvers.stationary import Distributions


class DeviceDistributions(NamedTuple):
    """Distributions over states as device arrays, and how the hardest was found."""

    single: Any
    every: tuple[Any, ...]
    outcome: Outcome


def solve_chain(
    chain: DeviceChain, follow_initial: bool, controls: Controls, poll_every: int | None
) -> DeviceDistributions:
    """Solve ``mu = (1 - gamma) mu0 + gamma P' mu``; at gamma = 1 one distribution for each recurrent class.

    With several classes and ``follow_initial`` the chain is followed from the initial distribution: its steps
    keep the chance of ending in each class, and so does their extrapolation.
    """
    device = chain.device
    dtype = chain.push.value_type

    def distribution_from(first: Any, unique: bool = True) -> Outcome:
        return run(iterate_distribution(chain.push, first, poll_every, controls.max_iter, unique), controls)

    if chain.gamma < 1.0:
        outcome = distribution_from(chain.initial)
        return DeviceDistributions(outcome.distribution, (outcome.distribution,), outcome)
    classes = Reach(chain.push, chain.backward()).recurrent_classes()
    outcomes = [
        distribution_from((mark / float(device.download(mark.sum()))).astype(dtype)) for mark in classes
    ]
    distributions = tuple(outcome.distribution for outcome in outcomes)
    if len(distributions) == 1:
        return DeviceDistributions(distributions[0], distributions, outcomes[0])
    if not follow_initial or chain.initial is None:
        return DeviceDistributions(None, distributions, combined(outcomes))
    mixture = distribution_from(chain.initial, unique=False)
    # Mass that has not left the transient states yet belongs to no distribution.
    outside = float(device.download((mixture.distribution * (1 - sum(classes))).sum()))
    mixture.converged = mixture.converged and outside <= chain.push.tol
    return DeviceDistributions(mixture.distribution, distributions, combined([*outcomes, mixture]))


def device_distributions(
    device: Device,
    operator: EmpiricalOperator,
    follow_initial: bool,
    controls: Controls,
    settings: Settings,
) -> Distributions:
    """Distributions of an operator whose counts lie on the host: up, solved, and the distributions down
    again."""
    # A little stricter than asked where the residual is measured again on the host, which rounds otherwise.
    tol = 0.9 * controls.tol if operator.gamma < 1.0 else controls.tol
    chain = chain_of_operator(device, operator, settings, tol)
    found = solve_chain(chain, follow_initial, controls, settings.poll_every)

    def down(distribution: Any) -> Any:
        host = device.download(distribution).astype(np.float64)
        return host / host.sum() if operator.gamma == 1.0 else host

    every = tuple(down(distribution) for distribution in found.every)
    found.outcome.residual = None
    if found.single is None:
        return Distributions(None, every, found.outcome)
    return Distributions(every[0] if len(every) == 1 else down(found.single), every, found.outcome)
