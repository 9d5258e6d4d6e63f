"""What the page on embedding and the examples show runs, and comes out as it should."""

from __future__ import annotations

import ctypes
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lingendice import embed

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def test_queueing_network_finds_the_product_form(capsys):
    distribution, exact = runpy.run_path(str(ROOT / "examples" / "queueing_network.py"))["main"]()
    assert np.abs(distribution - exact).sum() < 0.05
    assert distribution[exact == 0].sum() == 0.0
    assert "solved" in capsys.readouterr().out


def test_taxi_is_followed_both_ways(capsys):
    exact, inside, beside = runpy.run_path(str(ROOT / "examples" / "taxi_online.py"))["main"](100_000, 3)
    assert inside[-1] == pytest.approx(exact, abs=0.02)
    assert beside[-1] == pytest.approx(exact, abs=0.02)
    assert f"{exact:.4f}" in capsys.readouterr().out


def test_page_runs(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "embedding.md", "exec"), names)
    shown = capsys.readouterr().out
    assert "[0.9 0.1]\n[0.1 0.9]" in shown
    assert shown.count("solved") == 2 + bool(shutil.which("cc"))


@pytest.fixture
def simulate(tmp_path):
    """The example in C, of which all is known but the seed, the numbers of states and of steps, and gamma."""
    if COMPILER is None:
        pytest.skip("no C compiler on this machine")
    library = tmp_path / "simulator.so"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-std=c99", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *flags, "-o", library, ROOT / "examples" / "simulator.c"], check=True)
    simulate = ctypes.CDLL(str(library)).simulate
    simulate.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint64, ctypes.c_double,
        ctypes.c_void_p,
    ]  # fmt: skip
    simulate.restype = ctypes.c_int32
    address = embed.c_addresses()

    def call(n, n_steps, seed, gamma, distribution):
        at = distribution.ctypes.data
        return simulate(address["count"], address["solve"], n, n_steps, seed, gamma, at)

    return call


@pytest.mark.parametrize("seed", [9, 0])
def test_c_program_counts_and_solves(simulate, seed):
    distribution = np.empty(5)
    assert simulate(5, 400_000, seed, 1.0, distribution) == embed.SOLVED
    # The chain that the C code walks: two steps in three clockwise, and half of the time staying in state 0.
    chain = np.zeros((5, 5))
    chain[np.arange(5), (np.arange(5) + 1) % 5] = 2 / 3
    chain[np.arange(5), (np.arange(5) - 1) % 5] = 1 / 3
    chain[0] = 0.5 * chain[0] + 0.5 * np.eye(5)[0]
    values, vectors = np.linalg.eig(chain.T)
    exact = np.abs(vectors[:, np.argmax(values.real)].real)
    np.testing.assert_allclose(distribution, exact / exact.sum(), atol=0.01)
    assert simulate(5, 0, seed, 1.0, distribution) == embed.NO_DATA
    assert simulate(5, 10, seed, 2.0, distribution) == embed.BAD_GAMMA


@pytest.mark.parametrize("n", [2**31, 2**32, 2**40])
def test_c_program_says_that_memory_ran_out(simulate, n):
    status = simulate(n, 10, 1, 1.0, np.empty(5))
    assert status == embed.NO_MEMORY
    assert "memory ran out" in embed.message(status)


@pytest.mark.parametrize("n", [0, -3])
def test_c_program_refuses_to_walk_over_no_states(simulate, n):
    assert simulate(n, 10, 1, 1.0, np.empty(5)) == embed.BAD_ENTRY
