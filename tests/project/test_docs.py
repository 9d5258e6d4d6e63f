"""Every code block of the README and the documentation runs, and shows what it says it shows."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import lingendice as lg

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUN_ELSEWHERE = {
    "embedding.md": "streaming/test_embedding_examples.py",
    "scale.md": "project/test_scale_page.py",
}
"""Pages whose blocks another test runs, and that test."""
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PEERS = {
    "QuantEcon": "quantecon",
    "deeptime": "deeptime",
    "NetworkX": "networkx",
    "scope-rl": "scope_rl.ope.discrete",
    "dice_rl": "dice_rl.estimators",
    "CuPy": "cupy",
}
"""Titles of blocks that need a package which may not be there, and that package."""
ONLY_PARSED = {"demo", "paper"}
"""Commands that take long; their own tests run them on less."""


INSTEAD = {
    "max_iter=20_000": "max_iter=200",
}
"""What a page says of long work, and what the test does in its place."""


class Block(NamedTuple):
    language: str
    title: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fence = re.compile(r'^```(\w*)(?: title="([^"]*)")?[^\n]*\n(.*?)^```$', flags=re.DOTALL | re.MULTILINE)
    return [
        Block(found[1], found[2] or "", found[3], text.count("\n", 0, found.start()) + 1)
        for found in fence.finditer(text)
    ]


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def settled(output: str) -> list[str]:
    """Lines without what differs from run to run, or from one processor to the next."""
    lines = [line.rstrip() for line in output.strip().splitlines()]
    return [line for line in lines if not line.startswith(("time ", "iterations ", "residual ", "error "))]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder with the files that the command line's pages speak of."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    state, action = rng.integers(3, size=400), rng.integers(2, size=400)
    log = {
        "state": state,
        "action": action,
        "reward": state + action,
        "next_state": rng.integers(3, size=400),
    }
    log["episode"] = np.repeat(np.arange(20), 20)
    np.savez(tmp_path / "log.npz", **log)
    rows = zip(*log.values(), strict=True)
    for name, header in (("log.csv", list(log)), ("named.csv", ["s", "a", "r", "s2", "e"])):
        lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        rows = zip(*log.values(), strict=True)
    walk = "".join(f"{a},{b}\n" for a, b in zip(state, log["next_state"], strict=True))
    (tmp_path / "walk.csv").write_text("state,next_state\n" + walk)
    (tmp_path / "graph.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n3 3 4\n1 2 1\n2 3 1\n3 1 1\n1 3 1\n"
    )
    for name, weight in (("pi", 0.5), ("careful", 0.7), ("bold", 0.2)):
        table = np.tile([1 - weight, weight], (3, 1))
        np.save(tmp_path / f"{name}.npy", table)
    np.savetxt(tmp_path / "policy.csv", table, delimiter=",")
    np.save(tmp_path / "trajectory.npy", np.repeat(state, 3))
    (tmp_path / "journeys.csv").write_text("path,count\nsearch > mail > buy,3\nmail,5\nsearch > social,4\n")
    return tmp_path


def test_there_is_something_to_run():
    kinds = [block.language for page in PAGES for block in blocks(page)]
    assert kinds.count("python") > 20
    assert kinds.count("sh") > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_runs(page, workplace):
    pytest.importorskip("matplotlib")
    pytest.importorskip("networkx")
    if page.name in RUN_ELSEWHERE:
        assert page.name in (ROOT / "tests" / RUN_ELSEWHERE[page.name]).read_text(encoding="utf-8")
        return
    namespace: dict = {"__name__": "__main__"}
    output = io.StringIO()
    peers_ran = True
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.language == "python":
            if block.title in PEERS and not installed(PEERS[block.title]):
                peers_ran = False
            elif block.title != "both" or peers_ran:
                output = io.StringIO()
                source = block.code
                for said, done in INSTEAD.items():
                    source = source.replace(said, done)
                code = compile("\n" * block.line + source, str(page), "exec")
                with redirect_stdout(output):
                    exec(code, namespace)
        elif block.language == "text":
            assert settled(output.getvalue()) == settled(block.code), where
        elif block.language == "sh":
            output = io.StringIO()
            for line in block.code.splitlines():
                output.write(run_line(line.partition("#")[0].strip(), where))
        else:
            assert block.language in ("json", "sql"), f"{where}: nothing runs a block of {block.language!r}"


def run_line(line: str, where: str) -> str:
    """Run one line of shell: ours for real; of pip and make, that what they name is there."""
    words = shlex.split(line)
    if not words:
        return ""
    if words[0] == "pip":
        extras = re.findall(r"\[([a-z0-9,]+)\]", line)
        known = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extra in ",".join(extras).split(",") if extras else ():
            assert re.search(rf"^{extra} = \[", known, flags=re.MULTILINE), f"{where}: no extra {extra}"
        return ""
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), where
        return ""
    if words[:2] == ["python", "-m"]:
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
        # 2: what it needs, an NVIDIA GPU, is not there.
        assert done.returncode in (0, 2), f"{where}: {line}: {done.stderr}"
        return done.stdout
    assert words[0] == "lingendice", f"{where}: {line}"
    typer = pytest.importorskip("typer")
    from typer.testing import CliRunner

    from lingendice.cli import app

    if words[1] in ONLY_PARSED:
        command = typer.main.get_command(app)
        command.commands[words[1]].make_context(words[1], words[2:])
        return ""
    result = CliRunner().invoke(app, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, f"{where}: {line}: {result.stderr}"
    return result.stdout


def test_no_page_has_a_block_that_is_not_marked():
    """A fence without a language would slip past; indented blocks are formulas only."""
    for page in PAGES:
        for block in blocks(page):
            assert block.language, f"{page}:{block.line}"


def test_the_api_page_names_everything_public():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    named = {line.split(".")[-1] for line in re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)}
    missing = set(lg.__all__) - {"__version__"} - named
    assert {name for name in missing if f"::: lingendice.{name}." not in page} == set()


def test_pages_show_what_was_measured():
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    counted = 0
    for page in hooks.FILLED:
        text = page.read_text(encoding="utf-8")
        counted += text.count("<!-- table:")
        assert hooks.refreshed(text) == text, f"results have changed: run python docs/hooks.py ({page.name})"
    assert counted == 5


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "performance" / "index.html").read_text(encoding="utf-8")
    assert "igraph prpack" in page
    assert "<!-- table" not in page
