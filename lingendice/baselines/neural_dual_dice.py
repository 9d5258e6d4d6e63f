"""DualDICE with networks."""

from __future__ import annotations

from typing import Any

from lingendice.continuous.objective import dual_dice, read_neural_options
from lingendice.continuous.samples import prepare
from lingendice.continuous.train import train
from lingendice.data.checks import require_gamma
from lingendice.data.interrupts import interruptible, read_on_interrupt
from lingendice.data.transitions import Transitions
from lingendice.results.build import continuous_solution
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.solvers.control import Controls


def neural_dual_dice(
    transitions: Transitions,
    gamma: float,
    *,
    policy: Any,
    terminal: str = "auto",
    max_iter: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = False,
    options: dict[str, Any] | None = None,
) -> ContinuousSolution:
    """min over nu, max over zeta of E zeta (nu - gamma nu') - E zeta^2 / 2 - (1 - gamma) E nu(x0).

    tau = zeta, which may be negative. The same networks, batches, optimizer and ``options`` as
    ``solve(..., method="gendice")``, at the same cost per step.

    gamma = 1 is not supported: the objective loses its linear term and tau = 0 is optimal.
    """
    if require_gamma(gamma) == 1.0:
        raise ValueError(
            "neural_dual_dice needs gamma < 1: at gamma=1 its optimum is tau = 0; use solve(...)"
        )
    chosen = read_neural_options({**(options or {}), "output": "identity"})
    samples = prepare(transitions, policy, gamma, terminal, chosen.standardize)
    controls = Controls.read(1e-10, max_iter, threads=threads, progress=progress)
    with interruptible(read_on_interrupt(options)) as work:
        outcome = train(samples, dual_dice(gamma), chosen, controls, seed, method="neural DualDICE")
        work.solution = solution = continuous_solution(outcome, controls)
    return solution
