"""``import lingendice`` is light: nothing heavy loads before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import lingendice as lg

HEAVY = (
    "numba", "llvmlite", "scipy", "networkx", "pandas", "matplotlib", "typer", "rich", "cupy",
    "pyarrow", "duckdb", "minari", "dask", "distributed",
)  # fmt: skip


def test_import_loads_numpy_alone():
    heavy = (*HEAVY, "lingendice.gpu", "lingendice.io", "lingendice.cli")
    code = f"import sys, json, lingendice; print(json.dumps([m for m in {heavy!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_public_names_exist_and_are_documented():
    for name in lg.__all__:
        assert getattr(lg, name) is not None
        if name != "__version__":
            assert getattr(lg, name).__doc__


def test_the_version_is_said_once():
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{lg.__version__}"' in project


def test_names_are_sorted_and_complete():
    """What a user imports is what is frozen: nothing public is left out of __all__ by accident."""
    assert sorted(lg.__all__) == lg.__all__
    ours = {
        name
        for name, value in vars(lg).items()
        if not isinstance(value, ModuleType) and getattr(value, "__module__", "").startswith("lingendice.")
    }
    assert ours <= set(lg.__all__)
    assert set(lg.__all__) <= set(dir(lg))
    for name in lg.__all__:
        assert getattr(lg, name) is not None


PUBLIC_MODULES = sorted(name for name in lg.__all__ if isinstance(getattr(lg, name), ModuleType))


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_modules_are_imported_by_their_public_names(name):
    """In a process where nothing else has loaded them."""
    code = f"import lingendice.{name} as module, lingendice as lg; assert lg.{name} is module"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    module = import_module(f"lingendice.{name}")
    assert module.__doc__
    for member in getattr(module, "__all__", ()):
        assert getattr(module, member) is not None


def test_names_are_imported_from_public_modules():
    from lingendice.embed import count
    from lingendice.features import rbf
    from lingendice.model import features
    from lingendice.policies import GaussianPolicy

    assert rbf is features.rbf is lg.features.rbf
    assert GaussianPolicy is lg.policies.GaussianPolicy
    assert count is lg.embed.count
