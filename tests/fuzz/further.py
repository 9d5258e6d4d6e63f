"""Other questions about the data of a case: first steps, priors, ridges, saddle points, baselines.

Each case has one, drawn from its number and asked of the small space itself. What is expected comes from the
exact oracle where the problem is the exact equation, else from :mod:`fuzz.dense`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import lingendice as lg

from . import dense
from .cases import GAMMAS, LOG, Case, _chance, _pick
from .library import SEVERAL
from .oracle import Answer, Log, Question, Refused, Table, answer, count, target_cells

NOT_IDENTIFIED = "value not identified"
KINDS = (
    "horizon", "smoothing", "ridge", "saddle", "model_based", "ips", "naive_average", "trajectory_wise",
    "step_wise", "per_decision", "doubly_robust", "dual_dice", "gradient_dice", "best_dice",
)  # fmt: skip
OF_LOGS = KINDS[KINDS.index("ips") :]
"""Kinds that are about a policy, and rewards."""


@dataclass
class Further:
    """One question: how the library is called, what it answered, and what is wrong with that."""

    kind: str
    question: Question
    options: dict[str, Any]
    table: Table
    log: Log | None
    expected: Any = None
    solution: Any = None
    error: Exception | None = None
    calls: list[str] = field(default_factory=list)


def ask(case: Case) -> tuple[Further, list[str]]:
    """Draw the question of a case, ask it, and list the differences."""
    rng = np.random.default_rng([20200429, case.number])
    asked = _draw(rng, case)
    try:
        asked.expected = _EXPECT[asked.kind](asked)
    except Refused as refusal:
        asked.expected = refusal
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked.solution = _call(asked)
    except Exception as error:
        asked.error = error
    return asked, [f"{asked.kind}: {text}" for text in _differences(asked)]


# -- drawing -------------------------------------------------------------------------------------------


def _draw(rng: np.random.Generator, case: Case) -> Further:
    log, question = case.log, case.question
    table = case.table if log is None else count(log)
    kinds = KINDS[:4]
    if case.kind == LOG and table.n_actions is not None and table.first is not None:
        kinds = KINDS
    kind = _pick(rng, kinds)
    gamma = _pick(rng, GAMMAS, [0.15, 0.2, 0.2, 0.15, 0.02, 0.28])
    question = replace(question, gamma=gamma, reward_range=None, smoothing=None)
    if question.leak == "absorb" and gamma == 1:
        question.leak = "restart"
    if question.terminal == "absorb" and gamma == 1:
        question.terminal = "auto"
    options: dict[str, Any] = {}
    if kind in OF_LOGS:
        _about_a_policy(rng, table, question)
        question = Question(
            gamma, question.policy, question.behavior if kind in WEIGHING else None,
            initial=question.initial if kind.endswith("dice") else None,
        )  # fmt: skip
    if kind in WEIGHING:
        question.behavior = _behavior(rng, table) if _chance(rng, 0.3) else None
    if kind in ("trajectory_wise", "step_wise", "per_decision") and _chance(rng, 0.5):
        options["horizon"] = int(rng.integers(1, 16))
    if kind in ("trajectory_wise", "step_wise"):
        options["weighted"] = _chance(rng, 0.6)
    if kind == "doubly_robust":
        options["weighted"] = _chance(rng, 0.5)
    if kind == "horizon":
        question = replace(question, leak=_pick(rng, ("restart", "error")), terminal="auto", behavior=None)
        question.ratio = _pick(rng, ("auto", "state_action")) if table.n_actions is not None else "auto"
        options["horizon"] = int(rng.integers(1, 25))
    if kind == "smoothing":
        weight = float(rng.choice([0.5, 1.0, 3.0]))
        question.smoothing = weight
        if _chance(rng, 0.4):
            question.smoothing = (weight, rng.dirichlet(np.ones(table.n_states)).tolist())
        question.restart = None
        question.leak = "restart" if question.leak == "absorb" else question.leak
    if kind == "model_based":
        question = Question(gamma, question.policy, initial=question.initial, reward=question.reward)
        if _chance(rng, 0.5):
            question.smoothing, options["smoothing"] = float(table.n_states), "add-one"
    if kind in ("ridge", "saddle"):
        question.behavior = None
        question.leak = "restart" if question.leak == "error" else question.leak
    if kind == "ridge":
        options["ridge"] = float(rng.choice([1e-3, 0.1, 2.0]))
    if kind == "saddle":
        options["method"] = _pick(rng, ("convex", "extragradient"))
        question.gamma = gamma if gamma in (0.1, 0.5, 0.9, 1.0) else 0.9
    if kind == "gradient_dice":
        options["penalty"] = float(rng.choice([0.1, 1.0, 10.0]))
    if kind == "best_dice":
        options |= {"alpha_nu": float(rng.choice([1e-2, 1.0])), "alpha_zeta": float(rng.choice([0.1, 1.0]))}
        options["alpha_reward"] = float(rng.choice([0.0, 1.0]))
    return Further(kind, question, options, table, log)


WEIGHING = ("ips", "trajectory_wise", "step_wise", "per_decision", "doubly_robust")
"""Kinds that take the behavior."""


def _about_a_policy(rng: np.random.Generator, table: Table, question: Question) -> None:
    if question.policy is None:
        rows = rng.dirichlet(np.ones(table.n_actions), table.n_states)
        question.policy = rows.tolist()


def _behavior(rng: np.random.Generator, table: Table) -> list[list[float]]:
    weights = 1.0 + rng.integers(0, 4, (table.n_states, table.n_actions))
    return (weights / weights.sum(axis=1, keepdims=True)).tolist()


# -- asking --------------------------------------------------------------------------------------------


def _call(asked: Further) -> Any:
    question, options = asked.question, dict(asked.options)
    counts = _counts(asked)
    given: dict[str, Any] = {}
    for name in ("policy", "behavior", "initial", "restart", "reward"):
        if getattr(question, name) is not None:
            given[name] = np.array(getattr(question, name))
    for name in ("ratio", "leak", "unseen", "terminal"):
        if getattr(question, name) != getattr(Question(), name):
            given[name] = getattr(question, name)
    if question.smoothing is not None and "smoothing" not in options:
        given["smoothing"] = question.smoothing
    if asked.kind in ("horizon", "smoothing", "ridge", "saddle"):
        if asked.kind == "smoothing" and question.policy is not None:
            options |= {"ridge": 0}
        if asked.kind == "saddle":
            options |= {"ridge": 0, "tol": 1e-11}
            if options["method"] == "extragradient":
                options["max_iter"] = 20_000
        asked.calls.append(f"lg.solve(counts, {question.gamma}, **{given | options!r})")
        return lg.solve(counts, question.gamma, **given, **options)
    asked.calls.append(f"lg.baselines.{asked.kind}(counts, {question.gamma}, **{given | options!r})")
    if asked.kind == "naive_average":
        given = {}
    return getattr(lg.baselines, asked.kind)(counts, question.gamma, **given, **options)


def _counts(asked: Further) -> Any:
    log, table = asked.log, asked.table
    if log is None:
        return lg.Counts.from_matrix(np.array(table.count, dtype=float))
    columns = {
        name: np.array(getattr(log, name))
        for name in ("action", "reward", "weight", "terminal", "truncated", "episode")
        if getattr(log, name) is not None
    }
    sizes = {"n_states": log.n_states, "keep_episodes": table.first is not None}
    if log.action is not None:
        sizes["n_actions"] = log.n_actions
    asked.calls.append(
        f"counts = lg.Counts.from_transitions(np.array({log.state}), np.array({log.next_state}), "
        f"**{columns!r}, **{sizes!r})".replace("array(", "np.array(").replace("np.np.", "np.")
    )
    return lg.Counts.from_transitions(np.array(log.state), np.array(log.next_state), **columns, **sizes)


# -- what is expected ----------------------------------------------------------------------------------


def _exact(asked: Further) -> Answer:
    return answer(asked.table, asked.question)


def _state_ratio(asked: Further) -> Any:
    if asked.question.behavior is not None:
        ratios = dense.action_ratios(asked.log, asked.table, asked.question)
        assert ratios
    return answer(asked.table, replace(asked.question, ratio="state"))


def _of_the_plug_in(asked: Further) -> Answer:
    question = asked.question
    if question.policy is not None:
        question = replace(question, ratio="state_action")
    return answer(asked.table, question)


def _saddle(asked: Further) -> Any:
    found = answer(asked.table, asked.question)
    if asked.question.gamma == 1 and len(found.distributions) > 1:
        raise Refused("every mixture of several distributions is an optimum")
    dense.closed(_model(asked), asked.question.gamma)
    _require_transitions(asked)
    return found


def _model(asked: Further) -> dense.Model:
    """Over cells; over states where the ratio is one of states."""
    at = dense.model(asked.table, asked.question)
    question, n_states = asked.question, asked.table.n_states
    ratio = question.ratio
    if ratio == "auto":
        ratio = "state" if question.policy is None else "state_action"
    if at.follow is None or ratio == "state_action":
        return at
    follow = at.follow[:, :, None]
    by_state = (follow * at.kernel.reshape(*at.follow.shape, -1)).sum(axis=1)
    p = at.p.reshape(n_states, -1).sum(axis=1)
    start = np.zeros(n_states) if at.initial is None else at.initial
    # What is absorbed: of an action with data, what has ended; of one without, what does not go on.
    absorbed = np.where(at.seen, at.ended, 1 - at.kernel.sum(axis=1))
    ended = (at.follow * absorbed.reshape(at.follow.shape)).sum(axis=1)
    return dense.Model(by_state, by_state, None, at.initial, start, ended, p, None)


def _ridge(asked: Further) -> Any:
    question = asked.question
    answer(asked.table, question)  # refuses what the exact equation refuses
    _require_transitions(asked)
    at = _model(asked)
    problem = dense.closed(at, question.gamma)
    tau, condition = dense.ridge(problem, asked.options["ridge"])
    total = 1.0
    followed = np.ones(at.p.size, dtype=bool) if at.follow is None else at.follow.ravel() > 0
    if at.kernel[at.seen | followed].sum(axis=1).min() > 1 - 1e-9:  # no mass is absorbed
        total = float(problem.mass @ (problem.p * tau) + problem.offset)  # shown in total 1
    leak = (problem.unseen_offset + float(problem.unseen @ (problem.p * tau))) / total
    return problem, tau / total, leak, condition, at


def _first_steps(asked: Further) -> Any:
    return dense.first_steps(asked.table, asked.question, asked.options["horizon"])


def _naive(asked: Further) -> float:
    log, gamma = asked.log, asked.question.gamma
    _require_rewards(asked)
    if gamma == 1:
        n = sum(map(sum, asked.table.count)) + sum(asked.table.ends)
        return float(sum(asked.table.reward) / n)
    _refuse_weights(log)
    return dense.trajectory_wise(log, [1.0] * len(log.state), gamma, True, None)


def _require_transitions(asked: Further) -> None:
    if not any(map(any, asked.table.count)) and not any(asked.table.ends):
        raise Refused("there are no transitions")


def _require_rewards(asked: Further) -> None:
    if asked.table.reward is None:
        raise Refused("there are no rewards")


def _refuse_weights(log: Log) -> None:
    if log.weight is not None:
        raise Refused("transitions count once")


def _weighed(asked: Further) -> float:
    _require_rewards(asked)
    _refuse_weights(asked.log)
    method = dense.trajectory_wise if asked.kind == "trajectory_wise" else dense.step_wise
    weighted = asked.options.get("weighted", False)
    ratios = dense.action_ratios(asked.log, asked.table, asked.question)
    return method(asked.log, ratios, asked.question.gamma, weighted, asked.options.get("horizon"))


def _doubly_robust(asked: Further) -> float | None:
    _require_rewards(asked)
    _refuse_weights(asked.log)
    if asked.question.gamma == 1:
        raise Refused("there is no limit at gamma = 1")
    at = dense.model(asked.table, replace(asked.question, behavior=None, ratio="state_action"))
    ratios = dense.action_ratios(asked.log, asked.table, asked.question)
    reached = np.zeros(asked.table.n_states, dtype=bool)
    reached[[*asked.log.state, *asked.log.next_state]] = True
    if (at.follow[reached] * ~at.seen.reshape(at.follow.shape)[reached] > 0).any():
        return None  # a Q of cells without data is a matter of convention
    gamma, weighted = asked.question.gamma, asked.options["weighted"]
    return dense.doubly_robust(asked.log, ratios, at, gamma, weighted)


def _unfolded(asked: Further) -> tuple[dense.Closed, Any]:
    """The equation over cells with data, mass that leaks absorbed."""
    _require_rewards(asked)
    question = replace(asked.question, ratio="state_action")
    exact = answer(asked.table, question)
    if question.gamma == 1 and len(exact.distributions) > 1:
        raise Refused("several recurrent classes")
    return dense.closed(dense.model(asked.table, question), question.gamma, fold=False)


def _dual_dice(asked: Further) -> Any:
    if asked.question.gamma == 1:
        raise Refused("tau = 0 is optimal at gamma = 1")
    problem = _unfolded(asked)
    mass = np.linalg.solve(problem.residual, problem.goal)
    return problem, mass / problem.p, 1.0


def _gradient_dice(asked: Further) -> Any:
    problem = _unfolded(asked)
    return problem, *dense.least_squares(problem, asked.options["penalty"])


_EXPECT: dict[str, Callable[[Further], Any]] = {
    "horizon": _first_steps, "smoothing": _exact, "ridge": _ridge, "saddle": _saddle,
    "model_based": _of_the_plug_in, "ips": _state_ratio, "naive_average": _naive,
    "trajectory_wise": _weighed, "step_wise": _weighed, "per_decision": _weighed,
    "doubly_robust": _doubly_robust, "dual_dice": _dual_dice, "gradient_dice": _gradient_dice,
    "best_dice": _unfolded,
}  # fmt: skip


# -- comparing -----------------------------------------------------------------------------------------


def _differences(asked: Further) -> list[str]:
    expected, solution, error = asked.expected, asked.solution, asked.error
    if error is not None and not isinstance(error, ValueError):
        return [f"crash: {type(error).__name__}: {error}"]
    if isinstance(expected, Refused):
        return [] if error is not None else [f"refusal: none, though {expected}"]
    if error is not None:
        return [f"refusal: {error}"]
    said = _status_differences(solution)
    if asked.kind in ("smoothing", "model_based", "ips"):
        return said + _of_exact(asked, expected, solution, 1e-8)
    if asked.kind == "saddle":
        return said + _of_saddle(asked, expected, solution)
    if asked.kind == "ridge":
        return said + _of_ridge(asked, *expected)
    if asked.kind == "horizon":
        return said + _of_first_steps(asked, expected, solution)
    if asked.kind in ("dual_dice", "gradient_dice"):
        return said + _of_ratio(asked, *expected)
    if asked.kind == "best_dice":
        return said + _of_lagrangian(asked, expected)
    if expected is None:
        return said
    scale = max(map(abs, asked.log.reward))
    if asked.kind in ("per_decision", "doubly_robust") or asked.options.get("weighted") is False:
        # The terms may cancel: weights are products over whole episodes.
        ratios = dense.action_ratios(asked.log, asked.table, asked.question)
        scale *= (
            max(max(np.cumprod([ratios[row] for row in one.rows])) for one in dense.episodes(asked.log)) + 1.0
        )
    return said + _close("value", solution.value, expected, 1e-9 * scale)


def _status_differences(solution: Any) -> list[str]:
    """A value that is nan is never solved."""
    said = []
    if solution.value is not None and math.isnan(solution.value) and solution.status.value == "solved":
        said.append("status: solved, but the value is nan")
    error = solution.error
    if solution.converged and error is not None and solution.error_kind != "direct" and error > solution.tol:
        said.append(f"status: {solution.status.value} with {error:.1e} above tol {solution.tol:.0e}")
    return said


def _close(name: str, shown: Any, true: Any, slack: float) -> list[str]:
    if shown is None or true is None:
        return [] if shown is None and true is None else [f"{name}: {shown}, not {true}"]
    shown, true = float(shown), float(true)
    if math.isnan(shown) and math.isnan(true):
        return []
    return [] if abs(shown - true) <= slack else [f"{name}: {shown!r}, not {true!r}"]


def _of_exact(asked: Further, expected: Answer, solution: Any, relative: float) -> list[str]:
    several = expected.stationary is None
    if (solution.status.value == SEVERAL) != several:
        return [f"status: {solution.status.value}, but {len(expected.distributions)} distributions"]
    if several:
        return []
    tol = solution.tol if asked.question.gamma < 1 else 0.0
    true = np.array(expected.stationary, dtype=float)
    said = []
    if not np.abs(solution.stationary - true).max() <= relative + tol:
        said.append(f"stationary: {solution.stationary.tolist()}, not {true.tolist()}")
    scale = float(expected.value_scale or 0.0) + 1.0
    lost = (relative + tol) * 10 / max(float(expected.identified or 1.0), 1e-12)
    size = max([1.0, *map(abs, asked.log.reward if asked.log is not None and asked.log.reward else [])])
    said += _close("leak", solution.leak, expected.leak, relative + tol)
    said += _close("value", solution.value, expected.value, lost * scale * size)
    if expected.value is not None and not math.isnan(expected.value) and expected.expected_length:
        steps = float(expected.expected_length)
        slack = lost * scale * size * max(1.0, steps) ** 2 / max(1.0 - asked.question.gamma, 1e-2)
        said += _close("expected_length", solution.expected_length, expected.expected_length, slack)
        said += _close("expected_return", solution.expected_return, expected.expected_return, slack)
    return said


def _of_saddle(asked: Further, expected: Answer, solution: Any) -> list[str]:
    if not solution.converged:
        slow = ("iteration limit", "gap above tol", "stalled")
        hopeful = solution.status.value in slow or math.isnan(expected.value or 0.0)
        return [] if hopeful else [f"status: {solution.status.value}"]
    problem = dense.closed(_model(asked), asked.question.gamma)
    q = np.sqrt(problem.p)
    matrix = np.concatenate([problem.residual * q / q[:, None], [problem.mass * q]])
    least = np.linalg.svd(matrix, compute_uv=False)[-1]
    # chi2: gap >= |A m - b|^2 / 2 + (M - 1)^2 / 2 over the root of p, so that it bounds the distance.
    slack = 4.0 * math.sqrt(max(solution.gap, 0.0) + 1e-14) / least + 1e-8
    shown, true = solution.stationary, np.array(expected.stationary, dtype=float)
    if not np.abs(shown - true).max() <= slack * (1.0 + problem.mass.max()):
        return [f"stationary: {shown.tolist()}, not {true.tolist()}, gap {solution.gap:.1e}"]
    return []


def _of_ridge(
    asked: Further, problem: dense.Closed, tau: np.ndarray, leak: float, condition: float, at: dense.Model
) -> list[str]:
    solution = asked.solution
    identified = solution.value is None or not math.isnan(solution.value)
    if not solution.converged and identified:
        return [] if condition > 1e6 else [f"status: {solution.status.value}"]
    shown = np.asarray(solution.tau)
    if not (np.isnan(shown) == ~at.seen).all():
        return ["tau: nan in other places than where there is no data"]
    shown, slack = shown[at.seen], 1e-12 * condition**2 + 1e-7
    said = []
    if not (np.sqrt(problem.p) * np.abs(shown - tau)).max() <= slack * max(1.0, tau.max()):
        said.append(f"tau: {shown.tolist()}, not {tau.tolist()}")
    wide = slack * 10 * max(1.0, float(problem.unseen.max())) / np.sqrt(problem.p.min())
    if at.follow is None and asked.table.n_actions is not None:
        return said  # states of the ratio may have data, and actions of them not
    return said + _close("leak", solution.leak, leak, wide)


def _of_first_steps(asked: Further, expected: dict[str, Any], solution: Any) -> list[str]:
    said = []
    shown = solution.state_distribution
    if not np.abs(shown - expected["states"]).max() <= 1e-12:
        said.append(f"states: {shown.tolist()}, not {expected['states'].tolist()}")
    rewards = asked.log.reward if asked.log is not None and asked.log.reward else []
    size = max([10.0, *map(abs, rewards)])
    slack = 1e-11 * size
    for name in ("leak", "terminal_mass"):
        said += _close(name, getattr(solution, name), expected[name], 1e-12)
    for name in ("value", "expected_return", "expected_length"):
        said += _close(name, getattr(solution, name), expected.get(name), slack * 25)
    return said


def _of_ratio(asked: Further, problem: dense.Closed, tau: np.ndarray, condition: float) -> list[str]:
    if condition > 1e7:
        return []
    solution, q = asked.solution, np.sqrt(problem.p)
    gamma = asked.question.gamma
    slack = 1e-13 * condition**2 / max(1 - gamma, 1e-2) + 1e-9
    shown = np.asarray(solution.tau)
    shown = shown[~np.isnan(shown)]
    said = []
    if not (q * np.abs(shown - tau)).max() <= slack * max(1.0, np.abs(tau).max()):
        said.append(f"tau: {shown.tolist()}, not {tau.tolist()}")
    true = float(problem.p @ (tau * problem.reward)) if _identified(asked, tau) else math.nan
    # Of the rewards, not of their means: those may cancel to 0, up to rounding of their sums.
    scale = max(1.0, float(problem.p @ np.abs(tau))) * max(map(abs, asked.log.reward))
    return said + _close("value", solution.value, true, slack * scale * 10)


def _identified(asked: Further, tau: np.ndarray) -> bool:
    """Whether any weight lies on an action with data that the target takes; tau is over cells with data."""
    table = asked.table
    seen = np.array([any(row) or end > 0 for row, end in zip(table.count, table.ends, strict=True)])
    return bool((tau[target_cells(asked.question, seen.size)[seen]] != 0).any())


def _of_lagrangian(asked: Further, problem: dense.Closed) -> list[str]:
    solution, options = asked.solution, asked.options
    tau = np.asarray(solution.tau)
    tau = tau[~np.isnan(tau)]
    identified = _identified(asked, tau)
    if solution.converged != identified:
        return [f"status: {solution.status.value}"]
    off = dense.violation(problem, tau, options["alpha_zeta"], options["alpha_nu"], options["alpha_reward"])
    said = [] if off <= 1e-6 else [f"tau: off the optimum by {off:.1e}: {tau.tolist()}"]
    true = float(problem.p @ (tau * problem.reward)) if identified else math.nan
    scale = float(problem.p @ np.abs(tau * problem.reward))
    return said + _close("value", solution.value, true, 1e-9 * (scale + 1.0))
