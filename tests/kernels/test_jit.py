"""What compiled kernels leave on disk: used again while it holds, never read once its sources have changed.

Every call is a process of its own, as the next start after an upgrade is.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import lingendice.kernels
lingendice.kernels.__path__.append(sys.argv[1])
from lingendice.kernels.caller import total
from lingendice.kernels.{home} import Pair
print(total(Pair(1.0, 2.0)), sum(total.stats.cache_hits.values()))
"""
CALLER = "from lingendice.kernels.callee import scale\n"
TOTAL = """
@{decorator}
def total(pair):
    return pair.first + scale(pair.second)
"""
PAIR = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    first: float\n    second: float\n"
SCALE = "from lingendice.kernels.jit import kernel\n@kernel\ndef scale(x):\n    return {factor} * x\n"
OURS = CALLER + "from lingendice.kernels.jit import kernel" + TOTAL.format(decorator="kernel")
PLAIN = CALLER + "from numba import njit" + TOTAL.format(decorator="njit(cache=True)")


@pytest.fixture
def drawer(tmp_path):
    """Write modules of kernels, and call them in a new process."""

    class Drawer:
        cache = tmp_path / "cache"

        def write(self, caller=OURS, home="here", factor=3):
            for known in tmp_path.glob("*.py"):
                known.unlink()
            self.home = home
            for name, text in [("caller", caller), (home, PAIR), ("callee", SCALE.format(factor=factor))]:
                (tmp_path / f"{name}.py").write_text(text)

        def run(self):
            return subprocess.run(
                [sys.executable, "-B", "-c", SCRIPT.format(home=self.home), tmp_path],
                env={**os.environ, "NUMBA_CACHE_DIR": str(self.cache)}, capture_output=True, text=True,
            )  # fmt: skip

        def call(self):
            done = self.run()
            assert not done.returncode, done.stderr
            value, hits = done.stdout.split()
            return float(value), int(hits)

    return Drawer()


def test_what_is_on_disk_is_used_again(drawer):
    drawer.write()
    assert drawer.call() == (7.0, 0)
    assert drawer.call() == (7.0, 1)


@pytest.mark.parametrize("caller", [OURS, PLAIN], ids=["kernel", "njit"])
def test_a_class_has_moved_since(drawer, caller):
    # The kernel's file has not changed; only where the class of its argument lives.
    drawer.write(caller, home="here")
    assert drawer.call() == (7.0, 0)
    drawer.write(caller, home="there")
    if caller is PLAIN:  # what we guard against: once Numba copes, `_Index._load_index` can go
        assert "No module named 'lingendice.kernels.here'" in drawer.run().stderr
    else:
        assert drawer.call() == (7.0, 0)
        assert drawer.call() == (7.0, 1)


@pytest.mark.parametrize(("caller", "second"), [(OURS, 11.0), (PLAIN, 7.0)], ids=["kernel", "njit"])
def test_a_kernel_of_another_file_has_changed_since(drawer, caller, second):
    # Numba alone goes on with the old factor, which is compiled into its caller.
    drawer.write(caller, factor=3)
    assert drawer.call() == (7.0, 0)
    drawer.write(caller, factor=5)
    assert drawer.call()[0] == second


@pytest.mark.parametrize("keep", [0.0, 0.9])
def test_an_index_that_was_cut_short(drawer, keep):
    drawer.write()
    assert drawer.call() == (7.0, 0)
    (index,) = drawer.cache.rglob("caller.total*.nbi")
    content = index.read_bytes()
    index.write_bytes(content[: int(keep * len(content))])
    assert drawer.call() == (7.0, 0)
    assert drawer.call() == (7.0, 1)


def test_c_entries_follow_the_kernels_that_they_call():
    from lingendice.kernels import c_entries, jit

    versions = {
        getattr(c_entries, name)._cache._cache_file._version
        for name in ("c_count", "c_solve", "c_solve_csr", "c_ratio", "c_value")
    }
    (version,) = versions
    assert version.endswith(jit._digest(c_entries.__name__))
