"""DualDICE, GradientDICE and BestDICE with a table for every function, and DualDICE with networks.

The test function f of a cell without data has no counter-term in any of the tabular saddle points; it is held
at zero, which is what absorbing the mass that goes there amounts to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous import learner
from lingendice.continuous.samples import prepare
from lingendice.continuous.train import train
from lingendice.data.checks import Floats, require_gamma, require_number, require_whole
from lingendice.data.counts import Counts
from lingendice.data.interrupts import interruptible, read_on_interrupt
from lingendice.data.transitions import Transitions
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.build import baseline_solution, continuous_solution
from lingendice.results.calls import recorded
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.solution import effective_size
from lingendice.results.targets import Estimate
from lingendice.results.variants import BaselineSolution
from lingendice.solvers.control import Controls
from lingendice.solvers.stationary import refusal_of_classes, several_classes

if TYPE_CHECKING:
    from scipy.sparse import csc_array


class Stationarity(NamedTuple):
    """M tau = b over seen cells: M = diag(p) - gamma T' diag(p), b = (1 - gamma) mu0."""

    seen: NDArray[np.int64]
    p: Floats
    matrix: csc_array
    right: Floats
    reward: Floats
    operator: EmpiricalOperator
    weight: Floats
    """Mass that a unit on each seen cell stands for: its own, and what it leaves in terminal states."""

    def answer(
        self, method: str, tau: Floats, note: str, started: float, settled: bool = True
    ) -> BaselineSolution:
        """The solution that a ratio over the seen cells amounts to; the value E_p[tau r] is not rescaled."""
        distribution = np.zeros(self.operator.n_cells)
        distribution[self.seen] = self.p * tau
        total, mean = float(self.operator.counts.total), float(self.p @ tau)
        size = effective_size(total, mean, float(self.p @ tau**2))
        value = float(self.p @ (tau * self.reward))
        gamma = self.operator.gamma
        # E_p tau, with what has ended for good.
        kept = float(self.p @ (tau * self.weight))
        found = Estimate(
            value, gamma, method, note, effective_sample_size=size, settled=settled, mean_ratio=kept
        )
        return baseline_solution(self.operator, distribution, found, started)

    def saddle(
        self, free: NDArray[np.bool_], dual: float, primal: float, coupling: float, corner: float, earned: Any
    ) -> tuple[Floats, Floats, float]:
        """f over the seen cells, tau over the free ones and u of a saddle point, by one factorization of

        [dual P, M, 0;  M', primal P, coupling m;  0, m', corner] (f, tau, u) = (b, earned, 1) ,  m = p weight
        """
        from scipy import sparse
        from scipy.sparse.linalg import spsolve

        n, inside = self.seen.size, self.matrix[:, np.flatnonzero(free)]
        mass = sparse.csc_array((self.p * self.weight)[free][:, None])
        blocks = [
            [dual * sparse.diags_array(self.p), inside, None],
            [inside.T, primal * sparse.diags_array(self.p[free]), coupling * mass],
            [None, mass.T, sparse.csc_array([[corner]])],
        ]
        right = np.concatenate([self.right, np.broadcast_to(earned, int(free.sum())), [1.0]])
        solved = spsolve(sparse.block_array(blocks, format="csc"), right)
        return solved[:n], solved[n:-1], float(solved[-1])


def stationarity(counts: Counts, policy: Any, gamma: float, initial: Any) -> Stationarity:
    """Build the equation; nnz(counts) times the number of actions entries."""
    from scipy import sparse

    operator = target_operator(counts, gamma, policy, initial)
    if operator.reward is None:
        raise ValueError("the data hold no rewards; pass reward= to Counts.from_transitions")
    seen = np.flatnonzero(operator.seen)
    policy = np.ones(operator.n_cells) if operator.policy is None else operator.policy.ravel()
    state_of = seen // (operator.n_cells // operator.n_states)
    step = operator.rows.kernel()[seen]
    # Of the distributions that rows fall back to, only restarts after terminal states concern cells with
    # data.
    back = operator.rows.out[seen]
    used = np.flatnonzero(back.any(axis=0))
    if used.size:
        step = step + sparse.csr_array(back[:, used]) @ sparse.csr_array(operator.rows.distribution[used])
    moves = step[:, state_of] @ sparse.diags_array(policy[seen])
    flow = operator.flow(closed=False)
    p = flow.p[seen]
    matrix = sparse.diags_array(p) - gamma * (moves.T @ sparse.diags_array(p))
    reward, weight = operator.reward[seen], flow.mass_weight[seen]
    return Stationarity(seen, p, matrix.tocsc(), flow.start[seen], reward, operator, weight)


def _require_one_class(method: str, operator: EmpiricalOperator) -> None:
    n_classes = several_classes(operator.chain, operator.gamma)
    if n_classes > 1:
        raise refusal_of_classes(method, n_classes)


def target_operator(
    counts: Counts, gamma: float, policy: Any = None, initial: Any = None
) -> EmpiricalOperator:
    """The operator over cells that a baseline is measured against; by default the logged chain."""
    ratio = "auto" if counts.n_actions is None else "state_action"
    return compose(counts, Choices(gamma=gamma, policy=policy, initial=initial, ratio=ratio))


@recorded("baselines.dual_dice")
def dual_dice(counts: Counts, gamma: float, *, policy: Any, initial: Any = None) -> BaselineSolution:
    """min over nu of E_p[(nu - gamma T nu)^2] / 2 - (1 - gamma) E_mu0[nu]; tau = nu - gamma T nu.

    The optimum satisfies M tau = (1 - gamma) mu0 over the cells with data, solved here by one sparse
    factorization: with a table and nu held at 0 where there is no data, the mass that leaves the data is
    absorbed, E_p tau = 1 - leak, and the value E_p[tau r] is not rescaled, as in the original.

    gamma = 1 is not supported: the objective loses its linear term and tau = 0 is optimal.

    References
    ----------
    O. Nachum, Y. Chow, B. Dai, L. Li (2019). DualDICE: Behavior-agnostic estimation of discounted
        stationary distribution corrections. NeurIPS.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.dual_dice(counts, 0.9, policy=policy).value, 2)
    0.51
    """
    from scipy.sparse.linalg import spsolve

    started = time.perf_counter()
    gamma = require_gamma(gamma)
    if gamma == 1.0:
        raise ValueError("dual_dice needs gamma < 1: at gamma=1 its optimum is tau = 0; use solve(...)")
    system = stationarity(counts, policy, gamma, initial)
    tau = spsolve(system.matrix, system.right)
    return system.answer("DualDICE", tau, f"E_p tau = {float(system.p @ tau):.4f}, not rescaled", started)


@recorded("baselines.gradient_dice")
def gradient_dice(
    counts: Counts, gamma: float = 1.0, *, policy: Any, initial: Any = None, penalty: float = 1.0
) -> BaselineSolution:
    """min over tau of |M tau - b|^2 / (2 p) + penalty (E_p tau - 1)^2 / 2, tau of either sign.

    The saddle point's linear system in (f, tau, u), 2 n + 1 unknowns for n cells with data, is factorized
    once; normal equations would square its condition. The expectation in the penalty is that of the data,
    E_p, to which the mass of terminal states is added where they absorb. The value is E_p[tau r], not
    rescaled.

    gamma = 1 is supported (``penalty`` > 0); several recurrent classes are refused there.

    References
    ----------
    S. Zhang, B. Liu, S. Whiteson (2020). GradientDICE: Rethinking generalized offline estimation of
        stationary values. ICML.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.gradient_dice(counts, 0.9, policy=policy).value, 2)
    0.51
    """
    started = time.perf_counter()
    gamma = require_gamma(gamma)
    if require_number("penalty", penalty) == 0.0 and gamma == 1.0:
        raise ValueError("gradient_dice at gamma=1 needs penalty > 0: without it tau = 0 is optimal")
    system = stationarity(counts, policy, gamma, initial)
    _require_one_class("gradient_dice", system.operator)
    every = np.ones(system.seen.size, dtype=bool)
    _, tau, _ = system.saddle(every, 1.0, 0.0, -penalty, -1.0, 0.0)
    note = f"E_p tau = {float(system.p @ tau):.4f}, least tau {tau.min():.3g}"
    return system.answer("GradientDICE", tau, note, started)


MOST_EXCHANGES = 100
"""Rounds in which cells enter or leave the set held at zero."""


@recorded("baselines.best_dice")
def best_dice(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    initial: Any = None,
    alpha_zeta: float = 1.0,
    alpha_nu: float = 1e-6,
    alpha_reward: float = 1.0,
    nonnegative: bool = True,
) -> BaselineSolution:
    """Saddle point of the regularized Lagrangian with normalization and positivity.

        max over zeta >= 0, min over nu, lam of  (1 - gamma) E_mu0[nu] + lam
            + E_p[zeta (alpha_reward r + gamma nu(x') - nu(x) - lam)] + alpha_nu E_p[nu^2] / 2
            - alpha_zeta E_p[zeta^2] / 2

    so that E_p zeta = 1 holds exactly (with the mass of terminal states, where they absorb) and stationarity
    up to ``alpha_nu``, which must be positive: where data leak the two constraints contradict each other. The
    value is E_p[zeta r]. Each round of the active-set method factorizes one sparse system of 2 n + 1 unknowns
    for n cells with data.

    gamma = 1 is supported; several recurrent classes are refused there, of which it would take those that
    earn most.

    References
    ----------
    M. Yang, O. Nachum, B. Dai, L. Li, D. Schuurmans (2020). Off-policy evaluation via the regularized
        Lagrangian. NeurIPS.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.best_dice(counts, 0.9, policy=policy).value, 2)
    0.51
    """
    started = time.perf_counter()
    gamma = require_gamma(gamma)
    for name, number in (("alpha_zeta", alpha_zeta), ("alpha_nu", alpha_nu)):
        if require_number(name, number) == 0.0:
            raise ValueError(f"{name} must be positive: without it the tabular saddle point need not exist")
    alpha_reward = require_number("alpha_reward", alpha_reward, at_least=-np.inf)
    system = stationarity(counts, policy, gamma, initial)
    _require_one_class("best_dice", system.operator)
    free, zeta = np.ones(system.seen.size, dtype=bool), np.zeros(system.seen.size)
    earned = alpha_reward * system.p * system.reward
    settled = False
    for _ in range(MOST_EXCHANGES):
        zeta[:] = 0.0
        nu, zeta[free], multiplier = system.saddle(free, -alpha_nu, alpha_zeta, 1.0, 0.0, earned[free])
        size = 1e-12 * max(1.0, float(np.abs(zeta).max()))
        # The objective's slope, per p, says which of the cells held at 0 have a ratio after all.
        slope = alpha_reward * system.reward - multiplier * system.weight - (system.matrix.T @ nu) / system.p
        leave, enter = free & (zeta < -size), ~free & (slope > size)
        if not nonnegative or not (leave.any() or enter.any()):
            settled = True
            break
        free = (free & ~leave) | enter
    zeta = np.maximum(zeta, 0.0) if nonnegative else zeta
    note = f"{int((~free).sum()):,} cells held at zero"
    if not settled:
        note += "; the active set did not settle: raise alpha_zeta, or pass nonnegative=False"
    return system.answer("BestDICE", zeta, note, started, settled)


@recorded("baselines.neural_dual_dice")
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

    :func:`dual_dice` with networks, for gamma < 1 as there. tau = zeta, which may be negative. The same
    networks, batches, optimizer and ``options`` (but ``output`` and ``base``) as ``solve(...,
    method="gendice")``, at the same cost per step.

    Examples
    --------
    >>> import numpy as np
    >>> import lingendice as lg
    >>> rng = np.random.default_rng(0)
    >>> state, action = rng.normal(size=(2, 200, 1))
    >>> episode = np.repeat(np.arange(10), 20)
    >>> data = lg.Transitions(state, action, state[:, 0], 0.5 * state + action, episode=episode)
    >>> target = lg.policies.GaussianPolicy(lambda states: 0.0 * states, std=0.5)
    >>> lg.baselines.neural_dual_dice(data, 0.9, policy=target, max_iter=10).tau.shape
    (200,)
    """
    if require_gamma(gamma) == 1.0:
        raise ValueError(
            "neural_dual_dice needs gamma < 1: at gamma=1 its optimum is tau = 0; use solve(...)"
        )
    chosen = learner.read_neural_options(options, learner.DUAL_DICE)
    if chosen.output != "identity" or chosen.base != "none":
        name = "base" if chosen.output == "identity" else "output"
        raise ValueError(f"options[{name!r}] is for solve(..., method='gendice'); leave it out")
    seed = require_whole("seed", seed)
    samples = prepare(transitions, policy, gamma, terminal, chosen.standardize)
    controls = Controls.read(1e-10, max_iter, threads=threads, progress=progress)
    with interruptible(read_on_interrupt(options)) as work:
        outcome = train(samples, learner.dual_dice(gamma), chosen, controls, seed, method="neural DualDICE")
        work.solution = solution = continuous_solution(outcome, controls)
    return solution
