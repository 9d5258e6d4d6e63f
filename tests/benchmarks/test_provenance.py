"""Which code made a result: what digests see, how marks are kept, and what is listed as stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import provenance  # noqa: E402

CODE = '''"""A module."""
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 3
"""Of what."""


def double(x):
    """Twice x."""
    return 2 * x  # why


class One:
    """A class."""

    def half(self, x):
        return x / 2
'''


def digest_of(tmp_path, **files):
    package = tmp_path / str(len(list(tmp_path.iterdir())))
    for name, text in files.items():
        path = package / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return provenance.digest(("model", "solve.py"), package)


def test_prose_layout_imports_and_places_do_not_count(tmp_path):
    plain = digest_of(tmp_path, model__one=CODE)
    for before, after in (
        ("# why", "# because"), ("Twice x.", "Two times x."), ("A module.", "Another"), ("Of what.", "x"),
        ("import math", "import math, os"), ("return 2 * x", "return (2\n        * x)"),
        ("    from collections.abc import Sequence", "    from typing import Any"),
    ):  # fmt: skip
        assert before in CODE
        assert digest_of(tmp_path, model__one=CODE.replace(before, after)) == plain
    place = CODE.index("class One")
    assert digest_of(tmp_path, model__one=CODE[place:], solve=CODE[:place]) == plain
    assert digest_of(tmp_path, model__deep__er=CODE) == plain


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2 * x", "3 * x"), ("2 * x", "2.0 * x"), ("LIMIT = 3", "LIMIT = 4"), ("x / 2", "x // 2"),
        ("def double", "def twice"), ("return 2 * x", "return 2 * -x"), ("half(self, x)", "half(self, x=1)"),
        ("LIMIT = 3", "LIMIT = None"),
    ],
)  # fmt: skip
def test_code_counts(tmp_path, before, after):
    assert digest_of(tmp_path, model__one=CODE) != digest_of(tmp_path, model__one=CODE.replace(before, after))


def test_code_elsewhere_does_not_count_and_a_statement_more_does(tmp_path):
    plain = digest_of(tmp_path, model__one=CODE)
    assert digest_of(tmp_path, model__one=CODE, report__page="x = 1") == plain
    assert digest_of(tmp_path, model__one=CODE, model__two="x = 1") != plain


def test_every_committed_result_is_known():
    """Files of results below benchmarks/ are in the map, are made beside one that is, or have no digest."""
    known = {result.file for result in provenance.RESULTS.values()} | set(provenance.NOT_MEASURED)
    beside = {"paper/results/control.json": "paper/results/control_runs.jsonl.gz"}
    for folder in ("results", "paper/results", "trust/results"):
        for path in (BENCHMARKS / folder).iterdir():
            file = path.relative_to(BENCHMARKS).as_posix()
            if path.suffix in (".md", ".png") and file not in known:
                # Shown from the data of the same name.
                assert file.partition(".")[0] in {name.partition(".")[0] for name in known | set(beside)}, (
                    file
                )
            else:
                assert beside.get(file, file) in known, file
    assert all((BENCHMARKS / file).exists() for file in known | set(beside))


def test_every_source_that_is_named_exists_or_is_planned():
    planned = {"estimators", "request.py"}
    for result in provenance.RESULTS.values():
        missing = {name for name in result.sources if not (provenance.PACKAGE / name).exists()}
        assert missing <= planned | {"baselines"}, result
        assert provenance.digest(result.sources) == provenance.digest(tuple(reversed(result.sources)))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Two results of one package: one made at once, one in parts."""
    package = tmp_path / "package"
    (package / "model").mkdir(parents=True)
    (package / "model" / "one.py").write_text(CODE)
    (package / "__init__.py").write_text('__version__ = "1.2"\n')
    monkeypatch.setattr(provenance, "HERE", tmp_path)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "PACKAGE", package)
    monkeypatch.setattr(provenance, "MARKS", tmp_path / "made_by.json")
    monkeypatch.setattr(provenance, "RESULTS", {
        "table": provenance.Result("table.md", ("model",), "make table"),
        "grid": provenance.Result("grid.json", ("model",), "make grid", provenance._settings),
    })  # fmt: skip
    (tmp_path / "table.md").write_text("one\n")
    (tmp_path / "grid.json").write_text('{"settings": [{"x": 1}, {"x": 2}]}')

    def forget():
        for cached in (provenance._now, provenance._statements, provenance._last_written):
            cached.cache_clear()

    forget()
    yield tmp_path, forget
    forget()


def test_results_without_a_mark_are_stale(kept):
    assert provenance.is_stale("table")
    assert provenance.is_stale("grid")
    assert provenance.measured_at("table") == "an unknown version"
    assert provenance.listing().startswith("2 of 2 results")


def test_a_mark_holds_for_the_file_and_the_code_that_it_was_made_with(kept):
    folder, forget = kept
    provenance.mark("table")
    assert not provenance.is_stale("table")
    assert provenance.measured_at("table") == "1.2"
    source = folder / "package" / "model" / "one.py"
    source.write_text(CODE.replace("# why", "# because"))
    forget()
    assert not provenance.is_stale("table")
    source.write_text(CODE.replace("2 * x", "3 * x"))
    forget()
    assert provenance.is_stale("table")
    assert provenance.measured_at("table") == "1.2"
    assert "table.md" in provenance.listing()
    assert "make table" in provenance.listing()
    source.write_text(CODE)
    forget()
    assert not provenance.is_stale("table")
    (folder / "table.md").write_text("written without a mark\n")
    assert provenance.is_stale("table")
    assert provenance.measured_at("table") == "an unknown version"


def test_parts_carry_their_own_marks(kept):
    folder, _ = kept
    settings = json.loads((folder / "grid.json").read_text())["settings"]
    provenance.stamp("grid", settings)
    assert not provenance.is_ours(settings[0], "grid")
    settings[0]["made_by"] = provenance.made_by("grid")
    provenance.stamp("grid", settings)  # what has a mark keeps it
    assert provenance.is_ours(settings[0], "grid")
    (folder / "grid.json").write_text(json.dumps({"settings": settings}))
    assert provenance.is_stale("grid")
    assert "1 of 2 parts" in provenance.listing()
    assert provenance.measured_at("grid") == "1.2 and an unknown version"
    said = provenance.plan("grid", settings, 3, "settings")
    assert said == (
        "grid: 2 settings kept, 3 to compute; 1 of those kept were made by other code: FRESH=1 computes them"
    )
    assert provenance.plan("grid", settings[:1], 0, "settings") == "grid: 1 settings kept, 0 to compute"
    settings[1]["made_by"] = provenance.made_by("grid")
    (folder / "grid.json").write_text(json.dumps({"settings": settings}))
    assert not provenance.is_stale("grid")


def test_later_lines_replace_earlier_ones_of_the_same_part():
    lines = [
        {"case": "a", "values": 1}, {"case": "a", "slow": 2}, {"case": "b", "values": 3},
        {"case": "a", "values": 4},
    ]  # fmt: skip
    assert list(provenance.last_lines(lines)) == [lines[3], lines[1], lines[2]]
