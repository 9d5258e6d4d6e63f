"""The wheel: what it carries, and that it works in an empty environment."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a release: the sdist, and the wheel that is built from it."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def test_twine_finds_no_fault(built):
    pytest.importorskip("twine")
    files = [str(path) for path in sorted(built.iterdir())]
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_sdist_carries_what_its_commands_need(built):
    """Sources, tests, documentation and benchmarks; no measured results, nothing that was built or cached."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("README.md", "LICENSE", "CHANGELOG.md", "Makefile", "mkdocs.yml", "docs/start.md")
    needed += (
        "tests/project/test_wheel.py",
        "benchmarks/paper/taxi.py",
        "cuda/operator.cu",
    )
    assert set(needed) <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "site/"))]
    measured = re.compile(r"benchmarks/.*(results/|figures/|\.png)")
    assert not [name for name in names if measured.match(name)]
    assert path.stat().st_size <= 1.8e6  # sources and tests, 1.2 MB; pictures of the documentation


def test_the_wheel_carries_all_it_needs_and_no_more(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "lingendice").rglob("*.py")}
    sources = {f"lingendice/_cuda/{path.name}" for path in (ROOT / "cuda").glob("*.cu")}
    assert modules
    assert sources
    assert modules | sources | {"lingendice/py.typed"} <= names
    assert not [name for name in names if name.endswith(".npz")]
    top = {name.split("/")[0] for name in names}
    assert top == {"lingendice", next(name for name in top if name.endswith(".dist-info"))}
    metadata = next(name for name in names if name.endswith(".dist-info/entry_points.txt"))
    assert b"lingendice = lingendice.__main__:main" in zipfile.ZipFile(wheel).read(metadata)


def test_the_wheel_solves_in_an_empty_environment(wheel, tmp_path):
    """Install for real, without checkout or extras, and run the solver and the bare command."""
    venv.create(tmp_path / "env", with_pip=True)
    scripts = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    code = (
        "import lingendice as lg; from lingendice.gpu.catalog import module_source\n"
        "assert 'pull_rows' in module_source('operator')\n"
        "distribution = lg.solve([[2, 2], [1, 0]], gamma=1).stationary\n"
        "assert abs(distribution[0] - 2 / 3) < 1e-14, distribution\n"
        "print(lg.__file__)"
    )
    solved = subprocess.run(
        [scripts / "python", "-I", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert solved.returncode == 0, solved.stderr
    assert str(tmp_path) in solved.stdout
    bare = subprocess.run([scripts / "lingendice"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert bare.returncode == 2
    assert "lingendice[cli]" in bare.stderr
