"""Solutions are made in one place, and a field more is a matter of few files."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import lingendice
from lingendice.results.solution import Solution

PACKAGE = Path(lingendice.__file__).parent
KINDS = {
    "Solution",
    "PolicySolution",
    "LinearSolution",
    "BaselineSolution",
    "ContinuousSolution",
}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            yield node


def test_only_build_makes_solutions():
    makers = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if any(calls(path))}
    # A solution can also make a plain copy of itself.
    assert makers == {"results/build.py", "results/solution.py"}
    assert sum(1 for _ in calls(PACKAGE / "results/solution.py")) == 1


def test_nobody_lists_the_fields_of_a_solution():
    """A list of names elsewhere would have to grow with every field."""
    names = {entry.name for entry in fields(Solution)}
    for path in PACKAGE.rglob("*.py"):
        if path.name in ("solution.py", "build.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
                said = {entry.value for entry in node.elts if isinstance(entry, ast.Constant)}
                assert len(said & names) < 6, f"{path}:{node.lineno}"
