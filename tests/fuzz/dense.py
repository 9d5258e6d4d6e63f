"""What other methods must answer, in dense float64 algebra and plain loops over the log.

The exact equation is the oracle's (:mod:`fuzz.oracle`); here are the problems that have other answers: the
first H steps, the ridge, the tabular saddle points where data leak, and importance sampling. Nothing of the
library is imported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from .oracle import (
    Log,
    Question,
    Refused,
    Table,
    _initial,
    _kernel,
    _Numbers,
    cell_reward,
    followed_policy,
    target_cells,
)  # fmt: skip

FLOATS = 10**9
"""A number of states beyond which the oracle computes in long double."""


@dataclass
class Model:
    """The empirical operator over cells, dense: rows are cells, columns next states or next cells."""

    kernel: np.ndarray
    """K(s'|x)"""
    step: np.ndarray
    """T(x'|x) = K(s'|x) W(a'|s')"""
    follow: np.ndarray | None
    initial: np.ndarray | None
    """mu0 over states."""
    start: np.ndarray
    """mu0 over cells; zeros where there is none."""
    ended: np.ndarray
    p: np.ndarray
    reward: np.ndarray | None

    @property
    def seen(self) -> np.ndarray:
        return self.p > 0

    def cells(self, states: np.ndarray) -> np.ndarray:
        """Mass over states spread over cells by the policy."""
        return states if self.follow is None else (states[:, None] * self.follow).ravel()


def model(table: Table, question: Question, ends_for_good: bool | None = None) -> Model:
    """The operator; ``ends_for_good`` says whether mass may be lost (by default: a discount)."""
    make = _Numbers(FLOATS)
    if ends_for_good and question.gamma == 1:
        question = replace(question, gamma=0.5)  # only whether it is below 1 is looked at
    n = make.array([sum(row) + end for row, end in zip(table.count, table.ends, strict=True)])
    if not any(n > 0) and (question.gamma == 1 or table.n_actions is not None):
        raise Refused("there are no transitions")
    initial = _initial(table, question, make, any(end > 0 for end in table.ends))
    follow, _ = followed_policy(table, question, n, make)
    kernel, ended = _kernel(table, question, make, n, initial)
    reward = cell_reward(table, question, make, n)
    over_cells = kernel if follow is None else np.einsum("xs,sa->xsa", kernel, follow).reshape(len(n), -1)
    found = Model(
        kernel.astype(float), over_cells.astype(float), None if follow is None else follow.astype(float),
        None if initial is None else initial.astype(float), np.zeros(len(n)), ended.astype(float),
        (n / n.sum() if any(n > 0) else n).astype(float), None if reward is None else reward.astype(float),
    )  # fmt: skip
    if initial is not None:
        found.start = found.cells(found.initial)
    return found


# -- the first steps -----------------------------------------------------------------------------------


def first_steps(table: Table, question: Question, horizon: int) -> dict[str, Any]:
    """Where the first H steps are, one after the other; target actions never logged take the state's mean."""
    if question.policy is not None and question.unseen == "auto":
        question = replace(question, unseen="mean")
    at = model(table, question, ends_for_good=True)
    state, mass, gone, ended, weight, whole = at.initial, 0.0, 0.0, 0.0, 1.0, 0.0
    for _ in range(horizon):
        cells = at.cells(state)
        mass, gone, whole = mass + weight * cells, gone + weight * ended, whole + weight
        state, ended = cells @ at.kernel, ended + cells @ at.ended
        weight *= question.gamma
    mass, gone = mass / whole, gone / whole
    seen = at.seen
    leak = float(mass[~seen].sum())
    if question.leak == "error" and leak > 0:
        raise Refused("a cell without outgoing transitions is reached")
    identified = float(mass[seen].sum() + gone)
    found = {"leak": leak, "terminal_mass": gone, "expected_length": math.nan}
    found["states"] = mass if at.follow is None else mass.reshape(len(at.follow), -1).sum(axis=1)
    if identified > 0 and mass[seen].sum() > 0:
        found["expected_length"] = float(mass[seen].sum()) / identified * whole
    if at.reward is not None:
        known = (mass[seen & target_cells(question, seen.size)] > 0).any()
        found["value"] = float(mass[seen] @ at.reward[seen]) / identified if known else math.nan
        found["expected_return"] = found["value"] * whole
    return found


# -- problems over the cells with data -----------------------------------------------------------------


@dataclass
class Closed:
    """Residual A m - b and total mass 1 of masses m over cells with data; leaks are folded away."""

    residual: np.ndarray
    goal: np.ndarray
    mass: np.ndarray
    """Total mass of a unit on each cell, with what visits leaks and what has ended."""
    offset: float
    p: np.ndarray
    reward: np.ndarray | None
    unseen: np.ndarray
    """Mass in leaks of a unit on each cell."""
    unseen_offset: float


def closed(at: Model, gamma: float, fold: bool = True) -> Closed:
    """Fold the leaks away: m_u = b_u + gamma (T' m)_u, all it takes to leave them out of the unknowns.

    Without ``fold`` they are absorbing, and their mass is not counted.
    """
    seen = at.seen
    into_seen, into_leaks = at.step[:, seen], at.step[:, ~seen]
    start = (1 - gamma) * at.start
    ends = 1 + (gamma / (1 - gamma) * at.ended[seen] if gamma < 1 else 0.0 * at.ended[seen])
    inside = np.eye(seen.sum()) - gamma * into_seen[seen].T
    if not fold or seen.all():
        zero = np.zeros(seen.sum())
        return Closed(
            inside, start[seen], ends, 0.0, at.p[seen],
            None if at.reward is None else at.reward[seen], zero, 0.0,
        )  # fmt: skip
    among = np.eye((~seen).sum()) - gamma * into_leaks[~seen].T
    if np.linalg.cond(among) > 1e11:
        raise Refused("mass that enters cells without data never comes back")
    visits = np.linalg.solve(among, np.column_stack([gamma * into_leaks[seen].T, start[~seen]]))
    back = gamma * into_seen[~seen].T @ visits
    reward = None if at.reward is None else at.reward[seen]
    # A visit is one step; what is absorbed stays for all the steps that would have followed.
    stays = 1 - at.kernel[~seen].sum(axis=1)
    worth = 1 + gamma / (1 - gamma) * stays if gamma < 1 else np.ones(stays.size)
    leak = worth @ visits
    return Closed(
        inside - back[:, :-1], start[seen] + back[:, -1], ends + leak[:-1], float(leak[-1]), at.p[seen],
        reward, leak[:-1], float(leak[-1]),
    )  # fmt: skip


def ridge(problem: Closed, eps: float) -> tuple[np.ndarray, float]:
    """tau by nonnegative least squares for y = sqrt(p) tau, and the condition of its matrix."""
    q = np.sqrt(problem.p)
    rows = [problem.residual * q / q[:, None], [problem.mass * q], np.sqrt(eps) * np.eye(q.size)]
    right = np.concatenate([problem.goal / q, [1 - problem.offset], np.sqrt(eps) * q])
    matrix = np.concatenate(rows)
    y, _ = nnls(matrix, right, maxiter=100 * q.size + 1000)
    return y / q, float(np.linalg.cond(matrix))


def least_squares(problem: Closed, penalty: float) -> tuple[np.ndarray, float]:
    """min |A m - b|^2 / (2 p) + penalty (M - 1)^2 / 2 over m = p tau of either sign: tau, condition."""
    q = np.sqrt(problem.p)
    matrix = np.concatenate([problem.residual * q / q[:, None], [np.sqrt(penalty) * problem.mass * q]])
    right = np.append(problem.goal / q, np.sqrt(penalty) * (1 - problem.offset))
    return np.linalg.lstsq(matrix, right, rcond=None)[0] / q, float(np.linalg.cond(matrix))


def violation(problem: Closed, tau: np.ndarray, zeta: float, nu: float, earned: float) -> float:
    """How far tau >= 0 is from the optimum of the regularized Lagrangian, in slopes per p.

    min zeta/2 E tau^2 - earned E[tau r] + |A m - b|^2_{1/p} / (2 nu) subject to M = 1: at the optimum the
    slope is a multiple of the constraint's where tau > 0, and not below it where tau = 0.
    """
    p, residual = problem.p, problem.residual @ (problem.p * tau) - problem.goal
    slope = zeta * tau - earned * problem.reward + problem.residual.T @ (residual / p) / nu
    free = tau > 1e-12 * tau.max(initial=0.0)
    weight = problem.mass
    if not free.any():
        return math.inf
    multiplier = float(slope[free] @ weight[free] / (weight[free] @ weight[free]))
    off = slope - multiplier * weight
    worst = max(np.abs(off[free]).max(), -off.min(initial=0.0))
    terms = np.abs(problem.residual).T @ (np.abs(residual) / p) / nu + zeta * np.abs(tau)
    scale = float((terms + np.abs(earned * problem.reward)).max()) + abs(multiplier)
    return max(float(worst) / scale, abs(float(weight @ (p * tau)) - 1.0))


# -- importance sampling -------------------------------------------------------------------------------


@dataclass
class Episode:
    """Rows of one episode in their order, and whether it came to its end."""

    rows: list[int]
    ended: bool


def episodes(log: Log) -> list[Episode]:
    """Runs of equal ids that no flag cuts; without ids the log is one path, cut at flagged rows."""
    found: list[Episode] = []
    running: dict[Any, Episode] = {}
    for row in range(len(log.state)):
        name = None if log.episode is None else log.episode[row]
        if name not in running:
            running[name] = Episode([], False)
            found.append(running[name])
        running[name].rows.append(row)
        ended = log.terminal is not None and log.terminal[row]
        if ended or (log.truncated is not None and log.truncated[row]):
            running.pop(name).ended = bool(ended)
    return found


def action_ratios(log: Log, table: Table, question: Question) -> list[float]:
    """target / behavior of every logged action; the behavior n(s, a) / n(s) where none is given."""
    n_actions = table.n_actions
    n = [sum(row) + end for row, end in zip(table.count, table.ends, strict=True)]
    ratios = []
    for state, action in zip(log.state, log.action, strict=True):
        target = question.policy[state][action]
        if question.behavior is not None:
            logged = question.behavior[state][action]
        else:
            own = n[state * n_actions : (state + 1) * n_actions]
            logged = own[action] / sum(own)
        if logged == 0:
            raise Refused("an action was logged that the behavior never takes")
        ratios.append(target / logged)
    return ratios


def _cut(log: Log, gamma: float, horizon: int | None) -> list[Episode]:
    if horizon is None:
        if gamma == 1 and log.terminal is not None and any(log.terminal):
            raise Refused("the mean over logged steps is undefined where episodes end")
        return episodes(log)
    return [Episode(one.rows[:horizon], one.ended and len(one.rows) <= horizon) for one in episodes(log)]


def _steps(gamma: float, first: int, last: float) -> float:
    """sum of gamma^t from ``first`` to before ``last`` (which may be infinite for gamma < 1)."""
    if last <= first:
        return 0.0
    if math.isinf(last):
        return gamma**first / (1 - gamma)
    return float(sum(gamma**t for t in range(first, int(last))))


def trajectory_wise(
    log: Log, ratios: list[float], gamma: float, weighted: bool, horizon: int | None
) -> float:
    above, below, positive = 0.0, 0.0, False
    for one in _cut(log, gamma, horizon):
        weight = math.prod(ratios[row] for row in one.rows)
        earned = sum(gamma**t * log.reward[row] for t, row in enumerate(one.rows))
        last = len(one.rows)
        if one.ended:
            last = horizon if horizon is not None else math.inf
        positive = positive or weight > 0
        above += weight * earned
        below += (weight if weighted else 1.0) * _steps(gamma, 0, last)
    return above / below if positive else math.nan


def step_wise(log: Log, ratios: list[float], gamma: float, weighted: bool, horizon: int | None) -> float:
    kept = _cut(log, gamma, horizon)
    longest = max(len(one.rows) for one in kept)
    value, whole, ended_share = 0.0, 0.0, 0.0
    for t in range(longest):
        earned = below = 0.0
        ended = 0.0  # of the weight of this step's denominator, what has ended after it
        for one in kept:
            if t >= len(one.rows) and not one.ended:
                continue
            weight = math.prod(ratios[row] for row in one.rows[: t + 1])
            counted = weight if weighted else 1.0
            below += counted
            ended += counted if one.ended and t >= len(one.rows) - 1 else 0.0
            if t < len(one.rows):
                earned += weight * log.reward[one.rows[t]]
        if below > 0:
            value += gamma**t * earned / below
            whole += gamma**t
        ended_share = ended / below if below > 0 else 0.0
    last = horizon if horizon is not None else (math.inf if gamma < 1 else longest)
    whole += _steps(gamma, longest, last) * ended_share
    weighs = any(ratios[one.rows[0]] > 0 for one in kept)
    return value / whole if weighs else math.nan


def doubly_robust(log: Log, ratios: list[float], at: Model, gamma: float, weighted: bool) -> float:
    """(1 - gamma) mean over episodes of V(s0) + sum gamma^t w_t (r + gamma V(s') - Q)."""
    n_actions = at.follow.shape[1]
    q = np.linalg.solve(np.eye(at.p.size) - gamma * at.step, at.reward)
    v = (at.follow * q.reshape(at.follow.shape)).sum(axis=1)
    kept = episodes(log)
    mean = {}
    for t in range(max(len(one.rows) for one in kept)):
        alive = [one for one in kept if t < len(one.rows)]
        mean[t] = sum(math.prod(ratios[row] for row in one.rows[: t + 1]) for one in alive) / len(alive)
    total = 0.0
    for one in kept:
        total += v[log.state[one.rows[0]]]
        weight = 1.0
        for t, row in enumerate(one.rows):
            weight *= ratios[row]
            ended = log.terminal is not None and log.terminal[row]
            ahead = 0.0 if ended else v[log.next_state[row]]
            surprise = log.reward[row] + gamma * ahead - q[log.state[row] * n_actions + log.action[row]]
            scaled = weight if not weighted else (weight / mean[t] if mean[t] > 0 else 0.0)
            total += gamma**t * scaled * surprise
    return (1 - gamma) * total / len(kept)
