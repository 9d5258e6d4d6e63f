"""CONTRIBUTING and ARCHITECTURE are true to the tree, and the registries they speak of are complete."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from lingendice import baselines
from lingendice.divergences import DIVERGENCES, FDivergence
from lingendice.divergences.base import CONJUGATES
from lingendice.gpu.catalog import KERNELS
from lingendice.io import formats
from lingendice.kernels import saddle_steps

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(path.parent.name for path in (ROOT / "lingendice").glob("*/__init__.py"))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_every_file_that_is_named_exists(page):
    named = re.findall(
        r"`((?:lingendice|tests|cuda|benchmarks|docs|\.ci)/[\w./-]*)`", (ROOT / page).read_text()
    )
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_architecture_names_every_room():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert not [room for room in ROOMS if f"**`{room}/`**" not in text]


def test_every_file_of_divergences_is_registered():
    registered = {divergence.__module__.rsplit(".", 1)[1] for divergence in DIVERGENCES.values()}
    shared = {"__init__", "base"}
    files = {path.stem for path in (ROOT / "lingendice" / "divergences").glob("*.py")}
    assert files == registered | shared
    assert all(divergence.name == name for name, divergence in DIVERGENCES.items())


def test_compiled_code_numbers_conjugates_as_the_registry_does():
    """An integral metric has no conjugate, its f stays in a set; an f-divergence may do without kernels."""
    assert all(issubclass(DIVERGENCES[name], FDivergence) for name in CONJUGATES)
    assert [DIVERGENCES[name]().code for name in CONJUGATES] == list(range(len(CONJUGATES)))
    assert [getattr(saddle_steps, name.upper()) for name in CONJUGATES] == list(range(len(CONJUGATES)))
    on_device = re.search(r"enum \{ (CHI2, [^}]*?) \};", (ROOT / "cuda" / "saddle.cu").read_text())
    assert on_device
    assert on_device[1].lower().split(", ") == list(CONJUGATES)


def test_every_divergence_has_a_test():
    tested = (ROOT / "tests" / "divergences" / "test_divergences.py").read_text()
    shared = (ROOT / "tests" / "saddle_problems.py").read_text()
    assert not [
        name
        for name, each in DIVERGENCES.items()
        if f'"{name}"' not in tested + shared and each.__name__ not in tested + shared
    ]


def test_every_baseline_is_public_and_tested():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    found = set()
    for path in (ROOT / "lingendice" / "baselines").glob("*.py"):
        module = import_module(f"lingendice.baselines.{path.stem}".removesuffix(".__init__"))
        own = {name for name, entry in vars(module).items() if inspect.isfunction(entry)}
        found |= {name for name in own if name in baselines.__all__}
    functions = {name for name in baselines.__all__ if inspect.isfunction(getattr(baselines, name))}
    assert found == functions
    assert not [name for name in functions if name not in tests]


def test_every_cuda_kernel_is_in_the_catalog():
    text = {path.stem: path.read_text() for path in (ROOT / "cuda").glob("*.cu")}
    bare = re.sub(r"__launch_bounds__\([^)]*\)", "", "".join(text.values()))
    written = set(re.findall(r"__global__[^(;{]*?(\w+)\s*\(", bare))
    assert not [name for name, kernel in KERNELS.items() if f"{name}(" not in text[kernel.module]]
    assert written == KERNELS.keys()


def test_leaks_are_treated_in_one_module():
    """Elsewhere a treatment is passed on; the request only looks at what was left to the defaults."""
    compared = re.compile(r'leak(?:_policy)? (?:==|!=|in) ["(]')
    package = ROOT / "lingendice"
    found = {
        str(path.relative_to(package)) for path in package.rglob("*.py") if compared.search(path.read_text())
    }
    assert found == {"solvers/request.py"}
    assert 'require_choice("leak"' in (package / "model" / "leaks.py").read_text()


def test_no_suffix_has_two_formats():
    streamed = [*formats.PARQUET, *formats.IPC, *formats.TEXT, *formats.DUCKDB, *formats.MATRICES]
    assert len(streamed) == len(set(streamed))
    others = {path.name: path.read_text() for path in (ROOT / "lingendice" / "io").glob("*.py")}
    del others["formats.py"]
    assert not [name for name, text in others.items() if re.search(r'\("\.\w+", "\.\w+"', text)]


PLUMBING = {
    "solvers": {"__init__", "control", "dual_maximum", "levels", "request", "saddle", "stationary"},
    "continuous": {"__init__", "clone", "dispatch", "network", "outcome", "samples", "train"},
    "baselines": {"__init__"},
}
"""Files that hold no algorithm of their own: what they call says where it comes from."""


@pytest.mark.parametrize("room", PLUMBING)
def test_algorithms_say_where_they_come_from(room):
    files = {path.stem: path.read_text() for path in (ROOT / "lingendice" / room).glob("*.py")}
    assert PLUMBING[room] <= files.keys()
    silent = {name for name, text in files.items() if "References\n" not in text}
    assert silent <= PLUMBING[room]
