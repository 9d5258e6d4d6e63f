"""What compiled kernels leave on disk: used again while it holds, never read once its sources have changed.

Every call is a process of its own, as the next start after an upgrade is.
"""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lingendice

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

        def run(self, before=""):
            return subprocess.run(
                [sys.executable, "-B", "-c", before + SCRIPT.format(home=self.home), tmp_path],
                env={**os.environ, "NUMBA_CACHE_DIR": str(self.cache)}, capture_output=True, text=True,
            )  # fmt: skip

        def files(self, suffix):
            return sorted(self.cache.rglob(f"caller.total*{suffix}"))

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
    if caller is PLAIN:  # what we guard against: once Numba copes, `_KernelFiles._load_index` can go
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


def cut_short(content):
    return content[: len(content) // 2]


def emptied(content):
    return b""


def flipped(content):
    """One bit of the object code, which Numba would link and run."""
    place = 2 * len(content) // 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def replaced(content):
    return b"not a pickle at all"


@pytest.mark.parametrize("damage", [cut_short, emptied, flipped, replaced])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_damaged_files_are_compiled_anew(drawer, suffix, damage):
    drawer.write()
    assert drawer.call() == (7.0, 0)
    (file,) = drawer.files(suffix)
    file.write_bytes(damage(file.read_bytes()))
    value, hits = drawer.call()
    assert value == 7.0
    assert not hits or (suffix == ".nbi" and damage is flipped)  # not every bit of an index matters
    assert drawer.call() == (7.0, 1)


GARBLED = """
from lingendice.kernels import disk_cache
rebuild = disk_cache._Results.rebuild
disk_cache._Results.rebuild = lambda self, context, data: rebuild(self, context, (b"BC\\xc0\\xde", *data[1:]))
"""
"""Entries that can be read, and hold what LLVM refuses."""


def test_code_that_llvm_refuses_is_compiled_anew(drawer):
    drawer.write()
    assert drawer.call() == (7.0, 0)
    done = drawer.run(before=GARBLED)
    assert done.stdout.split() == ["7.0", "0"], done.stderr


def test_an_entry_under_the_key_of_another_is_not_run(drawer):
    """What two processes leave that compile one kernel for different arguments at the same time."""
    drawer.write()
    drawer.call()
    (file,) = drawer.files(".nbc")
    of_floats = file.read_bytes()
    for each in drawer.files(".nb?"):
        each.unlink()
    floats = SCRIPT.format(home="here")
    whole = floats.replace("Pair(1.0, 2.0)", "Pair(1, 2)")
    assert whole != floats
    command = [sys.executable, "-B", "-c", whole, file.parents[1].parent]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(drawer.cache)}
    outputs = []
    for _ in range(3):
        outputs.append(subprocess.check_output(command, env=environment, text=True).split())
        if len(outputs) == 1:
            file.write_bytes(of_floats)
    assert outputs == [["7", "0"], ["7", "0"], ["7", "1"]]


def test_other_classes_of_a_later_numba(drawer):
    drawer.write()
    for before in (
        "import numba.core.caching as caching; del caching.InTreeCacheLocator\n",
        "from lingendice.kernels import disk_cache; disk_cache._KernelFiles.__init__ = lambda self: None\n",
    ):
        done = drawer.run(before)
        assert done.stdout.split()[0] == "7.0", done.stderr


# -- without a folder that can be written --------------------------------------------------------------------

PACKAGE = Path(lingendice.__file__).parent
DROP_FROM_BOUNDING_SET, OVERRIDE_PERMISSIONS = 24, 1


def obey_permissions():
    """Take from root, on Linux, the right to write anywhere, so that read-only folders are read-only."""
    ctypes.CDLL(None).prctl(DROP_FROM_BOUNDING_SET, OVERRIDE_PERMISSIONS, 0, 0, 0)


SMALL_CHAIN = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from lingendice.kernels.counted_chains import count, ratio
    import numpy as np
    tau = np.empty(2)
    ratio(np.array([0.5, 0.5]), np.array([1.0, 3.0]), tau)
print(tau, sum(ratio.stats.cache_hits.values()), [str(each.message) for each in caught])
"""


@pytest.fixture
def container(tmp_path):
    """A copy of the package that cannot be written, called without a home directory or other folders."""
    home = tmp_path / "site"
    shutil.copytree(PACKAGE, home / "lingendice", ignore=shutil.ignore_patterns("__pycache__"))

    class Container:
        def seal(self):
            for each in (*home.rglob("*"), home):
                each.chmod(0o555 if each.is_dir() else 0o444)

        def call(self, **variables):
            kept = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA")}
            environment = {**kept, "PYTHONPATH": str(home), "HOME": "/dev/null/nobody", **variables}
            done = subprocess.run(
                [sys.executable, "-B", "-c", SMALL_CHAIN], env=environment, cwd="/", text=True,
                capture_output=True, preexec_fn=obey_permissions if os.geteuid() == 0 else None,
            )  # fmt: skip
            assert not done.returncode, done.stderr
            values, _, said = done.stdout.partition("]")
            assert values.strip("[ ").split() == ["2.", "0.66666667"]
            return int(said.split()[0]), ast.literal_eval(said.partition(" ")[2].partition(" ")[2])

    if not sys.platform.startswith("linux"):
        pytest.skip("other systems have other rules for who may write")
    yield Container()
    for each in (home, *home.rglob("*")):
        each.chmod(0o755)


def test_kernels_stay_in_memory_without_a_folder(container):
    container.seal()
    hits, (said,) = container.call()
    assert hits == 0
    assert "NUMBA_CACHE_DIR" in said


def test_a_folder_that_was_filled_before_is_read(container, tmp_path):
    filled = tmp_path / "filled"
    filled.mkdir()
    container.seal()
    assert container.call(NUMBA_CACHE_DIR=str(filled)) == (0, [])
    for each in (*filled.rglob("*"), filled):
        each.chmod(0o555 if each.is_dir() else 0o444)
    assert container.call(NUMBA_CACHE_DIR=str(filled)) == (1, [])
    for each in (filled, *filled.rglob("*")):
        each.chmod(0o755)


def test_a_full_disk_ends_no_call(drawer):
    drawer.write()
    full = """
import errno
from lingendice.kernels import disk_cache
def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
disk_cache._KernelFiles._save_index = full
"""
    done = drawer.run(full)
    assert done.stdout.split() == ["7.0", "0"]
    assert done.stderr.count("No space left on device") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr


def test_c_entries_follow_the_kernels_that_they_call():
    from lingendice.kernels import c_entries
    from lingendice.kernels.disk_cache import source_digest

    versions = {
        getattr(c_entries, name)._cache._cache_file._version
        for name in ("c_count", "c_solve", "c_solve_csr", "c_ratio", "c_value")
    }
    (version,) = versions
    assert version.endswith(source_digest(c_entries.__name__))
