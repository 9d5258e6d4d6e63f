"""Docstrings: examples run and show what they say, and every public function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import lingendice as lg

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(lg.__path__, "lingendice.")
    if not module.name.endswith("__main__")
)
ALGORITHMS = ("best_dice", "doubly_robust", "dual_dice", "fitted_q", "gradient_dice", "ips", "step_wise")


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs an optional package: {error}")
    if ">>>" in inspect.getsource(module):
        assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def public_functions():
    yield from ((name, getattr(lg, name)) for name in lg.__all__ if inspect.isfunction(getattr(lg, name)))
    for name in lg.baselines.__all__:
        if inspect.isfunction(getattr(lg.baselines, name)):
            yield f"baselines.{name}", getattr(lg.baselines, name)


@pytest.mark.parametrize(("name", "function"), list(public_functions()))
def test_every_public_function_has_an_example(name, function):
    assert ">>> " in inspect.getdoc(function)
    if name.removeprefix("baselines.") in ALGORITHMS or name in ("solve", "pagerank"):
        assert "References\n" in inspect.getdoc(function)
