"""List the differences between what the library found and what the oracle says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .cases import Case
from .library import SEVERAL, Found
from .oracle import LEAK_WORTH_BOUNDS, Answer, Refused

RELATIVE = 1e-8
DIRECT = ("gth", "elimination")


def differences(case: Case, found: Found) -> list[str]:
    """Texts of the form "what: why"; empty where all agree."""
    said = [f"input: {name} was changed" for name in found.changed]
    if found.error is not None and not isinstance(found.error, ValueError):
        where = found.error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = "" if where is None else f" in {where.tb_frame.f_code.co_name}"
        return [*said, f"crash: {type(found.error).__name__}{place}: {found.error}"]
    if isinstance(case.expected, Refused):
        if found.error is None:
            said.append(f"refusal: none, though {case.expected}")
        return said
    if found.error is not None:
        if not case.may_refuse:
            said.append(f"refusal: {found.error}")
        return said
    said += _count_differences(case, found)
    return said or _solution_differences(case.expected, case, found)


def _count_differences(case: Case, found: Found) -> list[str]:
    """Counts are exact; means of rewards up to rounding."""
    table, counts, form, said = case.table, found.counts, case.form, []
    sizes = (counts.n_states, counts.n_actions)
    n_actions = None if table.n_actions is None else form.n_actions
    if sizes != (form.n_states, n_actions):
        return [f"counts: {sizes} states and actions, not {(form.n_states, n_actions)}"]
    cells = found.cells()
    matrix = counts.matrix.tocsr()
    small = matrix[cells][:, found.states].toarray()
    if not (small == np.array(table.count, dtype=float)).all() or np.count_nonzero(small) != matrix.nnz:
        said.append(f"counts: {small.tolist()} of {matrix.nnz} entries, not {_floats(table.count).tolist()}")
    ends = counts.terminal_count
    if ends[cells].tolist() != [float(end) for end in table.ends] or ends.sum() != ends[cells].sum():
        said.append(f"counts: ends {ends[cells].tolist()}, not {_floats(table.ends).tolist()}")
    first = counts.initial_count
    if (first is None) != (table.first is None):
        said.append(f"counts: first states {first}, not {table.first}")
    elif table.first is not None and first[found.states].tolist() != [float(c) for c in table.first]:
        said.append(
            f"counts: first states {first[found.states].tolist()}, not {_floats(table.first).tolist()}"
        )
    if (counts.reward is None) != (table.reward is None):
        said.append("counts: rewards")
    elif table.reward is not None and table.reward_size is not None:
        n = [sum(row) + end for row, end in zip(table.count, table.ends, strict=True)]
        for shown, total, size, visits in zip(
            counts.reward[cells], table.reward, table.reward_size, n, strict=True
        ):
            if visits and not abs(shown - float(total / visits)) <= 1e-12 * float(size / visits):
                said.append(f"counts: mean reward {shown}, not {float(total / visits)}")
    if counts.has_sample_size != table.has_sample_size:
        said.append(f"counts: has_sample_size {counts.has_sample_size}")
    return said


def _solution_differences(expected: Answer, case: Case, found: Found) -> list[str]:
    solution = found.solution
    several = expected.stationary is None
    if (solution.status.value == SEVERAL) != several:
        return [f"status: {solution.status.value}, but {len(expected.distributions)} distributions"]
    said = _status_differences(expected, case, found)
    # Iterations at gamma < 1 promise an L1 error, all else is accurate entry by entry.
    direct = solution.method in DIRECT or case.question.gamma == 1
    if not direct and not solution.converged:
        return said
    slack = 0.0 if direct else solution.tol
    shown = _Shown(expected, case, found, slack)
    if len(found.distributions) != len(expected.distributions):
        said.append(f"distributions: {len(found.distributions)}, not {len(expected.distributions)}")
    else:
        # Classes do not overlap: the order of their first states in the small space pairs them.
        places = _places(expected, found)
        shown_in_order = sorted(found.distributions, key=lambda mu: int(np.argmax(mu[places] > 0)))
        for mu, true in zip(shown_in_order, expected.distributions, strict=True):
            said += shown.array("distributions", mu, true)
    if several:
        for name in ("stationary", "tau"):
            try:
                getattr(solution, name)
            except ValueError:
                continue
            said.append(f"{name}: readable, though there are several distributions")
        return said
    said += shown.array("stationary", solution.stationary, expected.stationary)
    said += shown.array("p", found.p, expected.p)
    said += shown.ratio(solution.tau)
    said += shown.numbers()
    return said


def _status_differences(expected: Answer, case: Case, found: Found) -> list[str]:
    """A solved status keeps its word: the stated error is within tol, the true one within the stated."""
    solution, said = found.solution, []
    error, kind = solution.error, solution.error_kind
    if solution.converged and error is not None and kind != "direct" and error > solution.tol:
        said.append(f"status: {solution.status.value} with {kind} {error:.1e} above tol {solution.tol:.0e}")
    honest = error is not None and kind == "bound" and error > solution.tol
    if expected.value is not None and math.isnan(expected.value):
        honest = True  # the status has to say that the value is not identified
        if solution.converged:
            said.append(f"status: {solution.status.value}, but no value is identified")
    if not solution.converged and solution.method in DIRECT and not honest:
        said.append(f"status: {solution.status.value} by {solution.method}")
    if kind == "bound" and error is not None and expected.stationary is not None:
        shown = solution.stationary[_places(expected, found)]
        true = float(np.abs(shown - _floats(expected.stationary)).sum())
        if true > error:
            said.append(f"error: {true:.1e} in L1, above the bound {error:.1e}")
    if expected.stationary is not None and case.table.has_sample_size:
        near = abs(float(expected.leak) - 0.01) < 1e-6
        if found.warned != expected.warns and not near:
            said.append(f"warning: {found.warned} at a leak of {float(expected.leak):.3g}")
    return said


class _Shown:
    """Compares arrays and numbers of a solution; ``slack`` is an absolute error that is allowed."""

    def __init__(self, expected: Answer, case: Case, found: Found, slack: float) -> None:
        self.expected, self.case, self.found, self.slack = expected, case, found, slack

    def array(self, name: str, shown: Any, true: Any) -> list[str]:
        """Entries that differ by more than 1e-8 of themselves, and mass outside the small space."""
        shown, places, true = np.asarray(shown), _places(self.expected, self.found), _floats(true)
        full = self.found.n_states * (1 if self.expected.over_states else self.found.n_actions)
        if shown.shape != (full,):
            return [f"{name}: shape {shown.shape}, not ({full},)"]
        outside = np.ones(full, dtype=bool)
        outside[places] = False
        said = []
        if np.any(shown[outside] != 0):
            said.append(f"{name}: {np.nansum(shown[outside])} outside the data's states")
        wrong = ~(np.abs(shown[places] - true) <= RELATIVE * true + self.slack)
        if wrong.any():
            at = int(np.argmax(wrong))
            said.append(f"{name}: entry {at} is {shown[places][at]!r}, not {true[at]!r}")
        return said

    def ratio(self, tau: Any) -> list[str]:
        """tau = mu / p where p > 0, nan elsewhere."""
        p, true = _floats(self.expected.p), _floats(self.expected.stationary)
        places = _places(self.expected, self.found)
        shown, known = np.asarray(tau)[places], p > 0
        if not (np.isnan(shown) == ~known).all() or np.isnan(np.asarray(tau)).sum() != tau.size - known.sum():
            return ["tau: nan in other places than where there is no data"]
        true = true[known] / p[known]
        wrong = ~(np.abs(shown[known] - true) <= RELATIVE * true + self.slack / p[known])
        if wrong.any():
            at = int(np.argmax(wrong))
            return [f"tau: entry {at} of those with data is {shown[known][at]!r}, not {true[at]!r}"]
        return []

    def numbers(self) -> list[str]:
        """Leak, terminal mass, value and its bounds."""
        solution, expected = self.found.solution, self.expected
        gamma = self.case.question.gamma
        wide = self.slack / (1 - gamma) if gamma < 1 else 0.0
        said = []
        said += self._close("leak", solution.leak, expected.leak, float(expected.leak), wide)
        said += self._close(
            "terminal_mass", solution.terminal_mass, expected.terminal_mass, float(expected.terminal_mass),
            wide,
        )  # fmt: skip
        said += self._of_episodes(wide)
        if expected.value is None:
            return said if solution.value is None else [*said, f"value: {solution.value}, but no rewards"]
        if solution.value is None:
            return [*said, "value: None, though there are rewards"]
        if math.isnan(expected.value):
            if not math.isnan(solution.value):
                said.append(f"value: {solution.value}, though nothing is identified")
            return said
        largest = 1e7 / float(expected.identified)
        scale = float(expected.value_scale)
        said += self._close("value", solution.value, expected.value, scale, wide * largest)
        near = abs(float(expected.leak) - LEAK_WORTH_BOUNDS) <= 1e-6 + wide
        if not near and (expected.bounds is None) != (solution.value_bounds is None):
            said.append(f"value_bounds: {solution.value_bounds}, not {expected.bounds}")
        elif expected.bounds is not None and solution.value_bounds is not None:
            for shown, true in zip(solution.value_bounds, expected.bounds, strict=True):
                said += self._close("value_bounds", shown, true, scale + 16, wide * 1e7)
        return said

    def _of_episodes(self, wide: float) -> list[str]:
        """Return and length of an episode."""
        solution, expected, said = self.found.solution, self.expected, []
        gamma = self.case.question.gamma
        steps = expected.expected_length if gamma == 1 else 1 / (1 - gamma)
        for name in ("expected_return", "expected_length"):
            shown, true = getattr(solution, name), getattr(expected, name)
            if shown is None or true is None:
                if (shown is None) != (true is None):
                    said.append(f"{name}: {shown}, not {true}")
            elif math.isnan(true) or math.isnan(shown):
                if not (math.isnan(true) and math.isnan(shown)):
                    said.append(f"{name}: {shown}, not {true}")
            else:
                largest = 1e7 / float(expected.identified)
                scale = float(steps) * float(expected.value_scale if name == "expected_return" else 1)
                said += self._close(name, shown, true, scale, wide * largest * float(steps))
        return said

    def _close(self, name: str, shown: Any, true: Any, scale: float, slack: float) -> list[str]:
        true = float(true)
        if abs(shown - true) <= RELATIVE * max(scale, abs(true)) + slack:
            return []
        return [f"{name}: {shown!r}, not {true!r}"]


def _places(expected: Answer, found: Found) -> np.ndarray:
    """Where the entries of the oracle's arrays stand in the library's."""
    return found.states if expected.over_states else found.cells()


def _floats(values: Any) -> np.ndarray:
    return np.array(values, dtype=object).astype(float)
