"""The command for paths answers as the library does."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import lingendice as lg
from lingendice.cli import app

JOURNEYS = ["search > mail > buy", "mail", "search > social > mail > buy", "social > search"]


def run(*arguments):
    return CliRunner().invoke(app, ["paths", *map(str, arguments)])


@pytest.fixture
def wide(tmp_path):
    pd.DataFrame({"path": JOURNEYS, "count": [3, 5, 2, 4]}).to_csv(tmp_path / "wide.csv", index=False)
    return tmp_path / "wide.csv"


def test_a_file_of_paths_is_counted_and_tested(wide, tmp_path):
    shown = run(wide)
    assert shown.exit_code == 0, shown.output
    assert repr(lg.Counts.from_paths(JOURNEYS, weight=[3, 5, 2, 4])) in shown.output
    assert (
        json.loads(run(wide, "--json").output)["order"]
        == lg.markov_order(JOURNEYS, weight=[3, 5, 2, 4]).order
    )
    (tmp_path / "lines.txt").write_text("\n".join(JOURNEYS) + "\n")
    assert repr(lg.Counts.from_paths(JOURNEYS)) in run(tmp_path / "lines.txt").output


@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "csv.gz"])
def test_one_row_per_state_in_any_order(tmp_path, kind):
    rows = [(k, step, state) for k, one in enumerate(JOURNEYS) for step, state in enumerate(one.split(" > "))]
    frame = pd.DataFrame(rows, columns=["journey", "when", "channel"]).sample(frac=1, random_state=0)
    file = tmp_path / f"long.{kind}"
    {"parquet": frame.to_parquet, "feather": lambda f: frame.reset_index(drop=True).to_feather(f)}.get(
        kind, lambda f: frame.to_csv(f, index=False)
    )(file)
    found = json.loads(run(file, "--time", "when", "--conversion", "buy", "--json").output)
    expected = lg.removal_effects(JOURNEYS, "buy")
    shares = dict(zip(found["channels"], found["share"], strict=True))
    assert shares == pytest.approx(dict(zip(expected.channels, expected.share.tolist(), strict=True)))


def test_attribution_by_columns(tmp_path):
    table = pd.DataFrame(
        {"path": ["a > b", "b", "c > a"], "count": [9, 8, 7], "sold": [4, 1, 0], "worth": [8, 3, 0]}
    )
    table.to_csv(tmp_path / "sold.csv", index=False)
    found = run(tmp_path / "sold.csv", "--conversion", "sold", "--value", "worth", "--order", 2, "--json")
    expected = lg.removal_effects(table, "sold", value="worth", order=2)
    assert json.loads(found.output)["value"] == pytest.approx(expected.value.tolist())
    assert json.loads(found.output)["intervals"]["share"]["low"] == pytest.approx(
        expected.interval().low.tolist()
    )


def test_timescales_over_lags(tmp_path):
    path = np.repeat(np.random.default_rng(0).integers(0, 3, 300), 5)
    np.save(tmp_path / "path.npy", path)
    found = run(tmp_path / "path.npy", "--lags", "1,2,5")
    assert found.output.startswith("lag")
    answer = json.loads(run(tmp_path / "path.npy", "--lags", "1,2,5", "--json").output)
    np.testing.assert_allclose(answer["timescales"], lg.lags(path, [1, 2, 5]).timescales)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--order", "2"], "give --conversion, too"),
        (["--lags", "1", "--conversion", "buy"], "two questions"),
        (["--lags", "one"], "must be whole numbers divided by commas"),
        (["--conversion", "bought"], "conversion='bought' is no state of the paths"),
        (["--state", "event"], "columns['state'] is 'event'"),
    ],
)
def test_errors_are_said_in_a_line(wide, options, message):
    shown = run(wide, *options)
    assert shown.exit_code == 2
    assert message in shown.output


def test_files_that_hold_no_paths(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    assert "paths are read from .csv" in run(tmp_path / "x.json").output
    (tmp_path / "empty.csv").write_text("path,count\n")
    assert "at least one row" in run(tmp_path / "empty.csv").output
    (tmp_path / "words.csv").write_text("path,count\na > b,many\n")
    assert "count holds entries that are no numbers" in run(tmp_path / "words.csv").output
    assert "no such file" in run(tmp_path / "absent.csv").output
