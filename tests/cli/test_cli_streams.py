"""What the command writes where: any encoding, readers that go away, names that are no text."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HOSTILE = "\x1b[31mred\x1b[0m\x07\x9b2J\u202egnp"


def command(*arguments, env=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "lingendice", *map(str, arguments)],
        env={**os.environ, **(env or {})},
        check=False,
        **options,
    )


@pytest.fixture
def walk(tmp_path):
    """A walk between two states with unpleasant names."""
    path = tmp_path / "walk.csv"
    path.write_text(f"state,next_state\n{HOSTILE},zürich 東\nzürich 東,{HOSTILE}\n", encoding="utf-8")
    return path


def test_control_characters_reach_no_terminal(walk):
    done = command("solve", walk, capture_output=True, encoding="utf-8", env={"PYTHONIOENCODING": "utf-8"})
    assert done.returncode == 0, done.stderr
    assert "\\x1b[31mred" in done.stdout
    assert "zürich 東" in done.stdout
    assert not set(done.stdout) & set("\x1b\x07\x9b\u202e")
    wrong = command("solve", walk, "--state", HOSTILE, capture_output=True, encoding="utf-8",
                    env={"PYTHONIOENCODING": "utf-8"})  # fmt: skip
    assert wrong.returncode == 2
    assert "no column" in wrong.stderr
    assert not set(wrong.stderr) & set("\x1b\x07\x9b\u202e")
    found = json.loads(command("solve", walk, "--json", capture_output=True, encoding="utf-8").stdout)
    assert found["state_labels"] == [HOSTILE, "zürich 東"]


def test_a_c_locale_shows_what_it_cannot_encode_escaped(walk):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    done = command("solve", walk, capture_output=True, encoding="ascii", env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert "z\\xfcrich" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("arguments", "both"), [(("solve",), False), (("audit", "--json"), True)])
def test_a_reader_that_goes_away_is_no_failure(walk, arguments, both):
    """As in ``lingendice solve walk.csv | head -1``, with nobody left when the output comes."""
    read, write = os.pipe()
    os.close(read)
    name, *options = arguments
    stderr = write if both else subprocess.PIPE
    done = command(name, walk, *options, stdout=write, stderr=stderr, text=True)
    os.close(write)
    assert done.returncode == 141
    assert not done.stderr


def test_halves_of_surrogates_break_no_report(tmp_path):
    import lingendice as lg

    counts = lg.Counts.from_transitions(["a\udc80", "b\x1b"], ["b\x1b", "a\udc80"])
    path = tmp_path / "report.html"
    lg.report(lg.solve(counts, gamma=0.9), path, title="of \udcff", source="\ud800")
    page = path.read_text(encoding="utf-8")
    assert "a\\udc80" in page
    assert "of \\udcff" in page
    assert "\x1b" not in page
    counts.save(tmp_path / "counts.npz")
    assert lg.Counts.load(tmp_path / "counts.npz") == counts
