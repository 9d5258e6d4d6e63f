"""``import lingendice`` is light: nothing heavy loads before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import lingendice as lg

HEAVY = (
    "numba", "llvmlite", "scipy", "networkx", "pandas", "matplotlib", "typer", "rich", "pooch", "cupy",
    "pyarrow", "duckdb", "minari", "dask", "distributed",
)  # fmt: skip


def test_import_loads_numpy_alone():
    code = f"import sys, json, lingendice; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_public_names_exist_and_are_documented():
    for name in lg.__all__:
        assert getattr(lg, name) is not None
        if name != "__version__":
            assert getattr(lg, name).__doc__
