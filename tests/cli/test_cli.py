"""The command line: exit codes, what goes to which stream, and no traceback."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import lingendice as lg
from lingendice.cli import app
from lingendice.data.display import rounded


class FakeSolution:
    """Stands for a solution where the test is about the command line alone."""

    def __init__(self, n, status=lg.Status.SOLVED):
        self.status = status
        self.converged = status in (lg.Status.SOLVED, lg.Status.SEVERAL_DISTRIBUTIONS)
        self.value, self.leak, self.residual, self.gap = 0.5, 0.0, 1e-12, None
        self.distributions = tuple(np.eye(n))
        self._distribution = np.full(n, 1 / n)

    @property
    def stationary(self):
        if self.status is lg.Status.SEVERAL_DISTRIBUTIONS:
            raise lg.SeveralDistributions("several distributions")
        return self._distribution

    @property
    def tau(self):
        return np.ones_like(self.stationary)

    def diagnose(self):
        return ()

    def to_dict(self):
        return {"value": self.value, "converged": self.converged}

    def __str__(self):
        return "a short table"


@pytest.fixture
def run():
    runner = CliRunner()

    def _run(*arguments):
        return runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    return _run


@pytest.fixture
def calls(monkeypatch):
    """Replace the core; what it was called with is collected."""
    seen = SimpleNamespace(counts=None, solve=None, solution=FakeSolution(2), warning=None)

    def solve(counts, **options):
        seen.counts, seen.solve = counts, options
        if seen.warning:
            warnings.warn(seen.warning, UserWarning, stacklevel=1)
        if isinstance(seen.solution, Exception):
            raise seen.solution
        return seen.solution

    class Report:
        def to_dict(self):
            return {"leak": 0.0}

        def __str__(self):
            return "what the data can tell"

    monkeypatch.setattr(lg, "solve", solve)
    monkeypatch.setattr(lg, "audit", lambda counts, **options: Report())
    return seen


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("s,a,r,s2,e\n0,0,1,1,0\n1,1,0,0,0\n")
    return path


NAMED = ("--state", "s", "--action", "a", "--reward", "r", "--next-state", "s2", "--episode", "e")


def test_solve_hands_columns_policy_and_gamma_on(run, calls, log, tmp_path):
    np.save(tmp_path / "pi.npy", np.full((4, 3), 1 / 3))
    result = run("solve", log, "--gamma", "0.9", "--policy", tmp_path / "pi.npy", *NAMED)
    assert result.exit_code == 0
    assert "a short table" in result.stdout
    assert calls.solve["gamma"] == 0.9
    assert calls.solve["policy"].shape == (4, 3)
    assert (calls.counts.n_states, calls.counts.n_actions) == (4, 3)
    assert calls.counts.cell_count.tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert calls.counts.initial_count.tolist() == [1, 0, 0, 0]


def test_json_is_alone_on_stdout_and_warnings_go_to_stderr(run, calls, log):
    calls.warning = "3 % of the mass leaks"
    result = run("solve", log, "--json", *NAMED)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"value": 0.5, "converged": True}
    assert result.stderr == "warning: 3 % of the mass leaks\n"


def test_labels_are_shown(run, tmp_path):
    path = tmp_path / "walk.csv"
    path.write_text("state,next_state\nhome,work\nwork,home\n")
    shown = run("solve", path)
    assert "home" in shown.stdout
    assert "work" in shown.stdout
    assert json.loads(run("solve", path, "--json").stdout)["state_labels"] == ["home", "work"]


@pytest.mark.parametrize("name", ["result.npz", "result.json"])
def test_out_writes_by_suffix(run, calls, log, tmp_path, name):
    assert run("solve", log, "--out", tmp_path / name, *NAMED).exit_code == 0
    if name.endswith("npz"):
        with np.load(tmp_path / name) as archive:
            assert archive["tau"].tolist() == [1.0, 1.0]
            assert archive["stationary"].tolist() == [0.5, 0.5]
            assert float(archive["value"]) == 0.5
    else:
        assert json.loads((tmp_path / name).read_text())["value"] == 0.5


def test_out_of_unknown_kind_is_refused_before_solving(run, calls, log, tmp_path):
    result = run("solve", log, "--out", tmp_path / "result.txt", *NAMED)
    assert result.exit_code == 2
    assert calls.solve is None
    assert ".npz or .json" in result.stderr


def test_no_result_takes_the_place_of_what_is_read(run, tmp_path):
    log, policy = tmp_path / "log.npz", tmp_path / "pi.npy"
    np.savez(log, state=[0, 1], next_state=[1, 0], action=[0, 1], reward=[1.0, 0.0])
    np.save(policy, np.full((2, 2), 0.5))
    before = log.read_bytes(), policy.read_bytes()
    for command, out in (("solve", log), ("report", log), ("report", policy)):
        result = run(command, log, "--policy", policy, "--out", out)
        assert result.exit_code == 2
        assert "is read by this command; write the result to another file" in result.stderr
    assert (log.read_bytes(), policy.read_bytes()) == before


def test_a_level_without_rewards_names_the_option(run, tmp_path):
    np.savez(tmp_path / "walk.npz", state=[0, 1], next_state=[1, 0])
    result = run("solve", tmp_path / "walk.npz", "--level", "0.9")
    assert result.exit_code == 2
    assert "hold no rewards; name their column by --reward, or leave --level out" in result.stderr


def test_exit_code_1_without_convergence(run, calls, log):
    calls.solution = FakeSolution(2, lg.Status.ITERATION_LIMIT)
    result = run("solve", log, *NAMED)
    assert result.exit_code == 1
    assert "no convergence (iteration limit)" in result.stderr
    assert "Next step: max_iter" in result.stderr


def test_exit_code_1_without_a_unique_distribution(run, calls, log, tmp_path):
    calls.solution = FakeSolution(2, lg.Status.SEVERAL_DISTRIBUTIONS)
    result = run("solve", log, "--json", "--out", tmp_path / "distributions.npz", *NAMED)
    assert result.exit_code == 1
    assert "several recurrent classes" in result.stderr
    assert "--initial" in result.stderr
    json.loads(result.stdout)
    with np.load(tmp_path / "distributions.npz") as archive:
        np.testing.assert_array_equal(archive["distributions"], np.eye(2))


def test_errors_of_the_solver_are_told_in_a_line(run, calls, log):
    calls.solution = ValueError("policy row 3 sums to 0.9; make it 1")
    result = run("solve", log, *NAMED)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: policy row 3 sums to 0.9; make it 1\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["solve", "none.csv"], "none.csv: no such file"),
        (["solve"], "Missing argument"),
        (["solve", "x.csv", "--gamma", "much"], "--gamma"),
        (["sovle", "x.csv"], "No such command"),
        (["demo", "--episodes", "0"], "--episodes"),
    ],
)
def test_wrong_usage_exits_with_2(run, arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_matrix_files_are_counted_as_matrices(run, calls, tmp_path):
    np.save(tmp_path / "m.npy", np.array([[1, 2], [3, 4]]))
    assert run("solve", tmp_path / "m.npy").exit_code == 0
    assert calls.counts.matrix.toarray().tolist() == [[1, 2], [3, 4]]


def test_audit(run, calls, log):
    assert "what the data can tell" in run("audit", log, *NAMED).stdout
    assert json.loads(run("audit", log, "--json", *NAMED).stdout) == {"leak": 0.0}
    assert run("audit", "none.csv").exit_code == 2


@pytest.mark.parametrize("command", ["solve", "audit", "backtest", "compare", "report", "demo", "paper"])
def test_help_has_examples(run, command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"lingendice {command}" in result.stdout
    assert "Examples" in result.stdout


def test_without_typer_the_extra_is_named():
    """The console script in a core install: two lines, no traceback."""
    code = "import sys; sys.modules['typer'] = None; from lingendice.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "lingendice[cli]" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_starts_without_the_compiler():
    code = (
        "import sys; import lingendice.cli as cli; from typer.testing import CliRunner;"
        "CliRunner().invoke(cli.app, ['solve', '--help']);"
        "print('numba' in sys.modules, 'scipy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


class TestWithTheCore:
    """The same, with nothing replaced."""

    def test_two_states_by_hand(self, run, tmp_path):
        """Counts 0->1 twice, 0->0 twice, 1->0 once: distribution (2/3, 1/3), p (4/5, 1/5)."""
        path = tmp_path / "walk.csv"
        path.write_text("state,next_state\n" + "0,1\n" * 2 + "0,0\n" * 2 + "1,0\n")
        out = tmp_path / "result.npz"
        result = run("solve", path, "--gamma", "1", "--out", out, "--json")
        assert result.exit_code == 0, result.stderr
        json.loads(result.stdout)
        with np.load(out) as archive:
            np.testing.assert_allclose(archive["stationary"], [2 / 3, 1 / 3], rtol=1e-12)
            np.testing.assert_allclose(archive["tau"], [5 / 6, 5 / 3], rtol=1e-12)

    def test_two_classes_have_no_unique_distribution(self, run, tmp_path):
        path = tmp_path / "walk.csv"
        path.write_text("state,next_state\na,a\nb,b\n")
        result = run("solve", path, "--json")
        assert result.exit_code == 1
        json.loads(result.stdout)
        assert "Traceback" not in result.stderr

    def test_bad_input_names_the_entry(self, run, tmp_path):
        np.save(tmp_path / "m.npy", np.array([[1.0, -2.0], [3.0, 4.0]]))
        result = run("solve", tmp_path / "m.npy")
        assert result.exit_code == 2
        assert "-2" in result.stderr

    def test_audit(self, run, tmp_path):
        path = tmp_path / "walk.csv"
        path.write_text("state,next_state\n0,1\n1,2\n")
        assert run("audit", path).exit_code == 0
        json.loads(run("audit", path, "--json").stdout)

    def test_demo(self, run, tmp_path, monkeypatch):
        pytest.importorskip("matplotlib")
        from lingendice.cli import showcase

        result = showcase.run_demo(50, 100, report=lambda message: None)  # once: it trains two drivers
        monkeypatch.setattr(showcase, "run_demo", lambda *sizes, **options: result)
        shown = run("demo", "--out", tmp_path)
        assert shown.exit_code == 0, shown.stderr
        assert (tmp_path / "taxi.png").stat().st_size > 10_000
        assert "truth" in shown.stdout
        found = json.loads(run("demo", "--out", tmp_path, "--json").stdout)
        assert found["transitions"] == 5000
        assert [row["gamma"] for row in found["rows"]] == [0.99, 1.0]
        assert found["rows"][1]["estimate"] == result.rows[1].estimate

    def test_interval_of_the_value(self, run, policies):
        log, careful, _ = policies
        asked = run("solve", log, "--gamma", "0.9", "--policy", careful, "--level", "0.9", "--json")
        found = json.loads(asked.stdout)
        counts = lg.Counts.from_transitions(**columns_of(log), keep_episodes=True)
        expected = lg.solve(counts, 0.9, policy=np.load(careful)).interval(0.9)
        assert found["interval"]["low"] == pytest.approx(expected.low)
        assert "clustered" in found["interval"]["note"]
        assert "interval" in run("solve", log, "--gamma", "0.9", "--policy", careful, "--level", "0.9").stdout

    def test_compare_ranks_by_the_names_of_the_files(self, run, policies):
        log, careful, bold = policies
        found = json.loads(run("compare", log, careful, bold, "--gamma", "0.9", "--json").stdout)
        assert sorted(found["ranking"]) == ["bold", "careful"]
        counts = lg.Counts.from_transitions(**columns_of(log), keep_episodes=True)
        tables = {"careful": np.load(careful), "bold": np.load(bold)}
        expected = lg.solve(counts, 0.9, policy=tables)
        assert found["values"] == pytest.approx(expected.values.tolist())
        assert found["table"][0]["low"] == pytest.approx(expected.table()[0]["low"])
        shown = run("compare", log, careful, bold, "--gamma", "0.9")
        assert shown.exit_code == 0
        assert shown.stdout.index(found["ranking"][0]) < shown.stdout.index(found["ranking"][1])

    def test_nothing_is_cut_off_of_a_table_in_a_pipe(self, run, policies, monkeypatch):
        """Beyond 80 columns names and ends of intervals were."""
        log, *short = policies
        long = [path.rename(path.with_stem(f"{path.stem}_with_a_name_of_many_words")) for path in short]
        for width in ("80", "20"):
            monkeypatch.setenv("COLUMNS", width)
            shown = run("compare", log, *long, "--gamma", "0.9").stdout
            assert all(path.stem in shown for path in long)
            assert "…" not in shown

    def test_compare_reads_many_policies_from_one_file(self, run, policies, tmp_path):
        log, careful, bold = policies
        np.save(tmp_path / "all.npy", np.stack([np.load(careful), np.load(bold)]))
        found = json.loads(run("compare", log, tmp_path / "all.npy", "--gamma", "0.9", "--json").stdout)
        assert found["names"] == ["all[0]", "all[1]"]

    def test_report_writes_a_page(self, run, policies, tmp_path):
        pytest.importorskip("matplotlib")
        log, careful, bold = policies
        out = tmp_path / "page.html"
        found = json.loads(
            run("report", log, "--gamma", "0.9", "--policy", careful, "-o", out, "--json").stdout
        )
        page = out.read_text(encoding="utf-8")
        assert found["report"] == str(out)
        interval = found["interval"]
        assert rounded(found["value"], interval["standard_error"]) in page
        assert "sha256" in page
        both = run("report", log, "--gamma", "0.9", "--policy", careful, "--policy", bold, "-o", out)
        assert both.exit_code == 0, both.stderr
        assert "may be the best" in out.read_text(encoding="utf-8")

    def test_report_of_several_distributions_exits_with_1(self, run, tmp_path):
        pytest.importorskip("matplotlib")
        np.save(tmp_path / "m.npy", np.eye(2, dtype=int))
        result = run("report", tmp_path / "m.npy", "-o", tmp_path / "page.html")
        assert result.exit_code == 1
        assert (tmp_path / "page.html").exists()


def columns_of(log):
    with np.load(log) as archive:
        return dict(archive)


@pytest.fixture
def policies(tmp_path):
    rng = np.random.default_rng(0)
    state, action = rng.integers(4, size=600), rng.integers(2, size=600)
    reward = state * action + rng.normal(size=600)
    after = np.append(state[1:], 0)  # rows follow each other
    np.savez(
        tmp_path / "log.npz", state=state, action=action, reward=reward, next_state=after,
        episode=np.repeat(np.arange(30), 20),
    )  # fmt: skip
    for name, chance in (("careful", 0.2), ("bold", 0.8)):
        np.save(tmp_path / f"{name}.npy", np.tile([1 - chance, chance], (4, 1)))
    return tmp_path / "log.npz", tmp_path / "careful.npy", tmp_path / "bold.npy"


class TestCheckoutCommands:
    """paper runs scripts of the source; the scripts themselves are not run here."""

    def test_paper_lists_every_script(self, run):
        listed = run("paper", "--list")
        assert listed.exit_code == 0
        assert {"taxi", "pagerank"} <= {line.split()[0] for line in listed.stdout.splitlines()}
        assert set(json.loads(run("paper", "--list", "--json").stdout)) >= {"taxi", "pagerank"}

    def test_paper_runs_what_was_asked_for(self, run, monkeypatch):
        started = []

        def fake_run(command, **options):
            started.append(command[1:])
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr("lingendice.cli.showcase.subprocess.run", fake_run)
        found = json.loads(run("paper", "taxi", "taxi_default", "--quick", "--json").stdout)
        assert list(found["seconds"]) == ["taxi"]  # the other has no quick form
        ((script, option),) = started
        assert script.endswith("taxi.py")
        assert option == "--quick"

    def test_days_of_work_start_only_by_name(self, run, monkeypatch):
        started = []

        def fake_run(command, **options):
            started.append(Path(command[1]).stem)
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr("lingendice.cli.showcase.subprocess.run", fake_run)
        run("paper", "--json")
        assert "taxi" in started
        assert not {"control", "control_truth", "train_policies"} & set(started)
        run("paper", "control", "--json")
        assert started[-1] == "control"

    def test_a_failing_script_is_told(self, run, monkeypatch):
        monkeypatch.setattr(
            "lingendice.cli.showcase.subprocess.run", lambda command, **options: SimpleNamespace(returncode=3)
        )
        assert run("paper", "taxi").exit_code == 1

    def test_an_unknown_experiment_is_refused(self, run):
        result = run("paper", "taxy")
        assert result.exit_code == 2
        assert "choose from" in result.stderr

    def test_without_a_checkout_the_next_step_is_named(self, run, monkeypatch, tmp_path):
        monkeypatch.setattr("lingendice.cli.showcase.__file__", str(tmp_path / "a" / "b" / "show.py"))
        result = run("paper", "--list")
        assert result.exit_code == 2
        assert "unpack the source" in result.stderr


def test_interruption_has_its_own_exit_code(run, calls, log, monkeypatch):
    def interrupted(counts, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(lg, "solve", interrupted)
    result = run("solve", log, *NAMED)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr


def test_labels_are_no_markup(run, tmp_path):
    path = tmp_path / "walk.csv"
    path.write_text("state,next_state\n[bold]a[/bold],[red]\n[red],[bold]a[/bold]\n")
    shown = run("solve", path).stdout
    assert "[bold]a[/bold]" in shown
    assert "[red]" in shown


class TestBars:
    """Bars show on a terminal and nowhere else."""

    def test_nothing_is_drawn_in_a_pipe(self, capfd):
        from lingendice.cli.app import work

        with work("counting") as show:
            show("still counting")
        assert capfd.readouterr().err == ""

    def test_a_terminal_sees_the_message_and_keeps_nothing(self, monkeypatch, capsys):
        from lingendice.cli.app import work

        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        with work("reading") as show:
            show("counting")
        drawn = capsys.readouterr().err
        assert "counting" in drawn
        assert drawn.rstrip().endswith(("\x1b[2K", "\x1b[?25h")) or "\x1b[2K" in drawn


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell):
    variables = {
        "_LINGENDICE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "lingendice re",
        "COMP_CWORD": "1",
    }
    variables |= {"_TYPER_COMPLETE_ARGS": "lingendice re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-m", "lingendice"], capture_output=True, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert "report" in done.stdout
    assert "solve" not in done.stdout


@pytest.mark.parametrize("name", ["log.parquet", "log.feather"])
def test_parquet_and_feather_give_what_csv_gives(tmp_path, name):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table({"state": [0, 1, 2, 0], "next_state": [1, 2, 0, 2], "reward": [1.0, 0.0, 2.0, 1.0]})
    pa.csv.write_csv(table, tmp_path / "log.csv")
    write = pa.parquet.write_table if name.endswith("parquet") else pa.feather.write_feather
    write(table, str(tmp_path / name))
    results = [
        json.loads(
            CliRunner().invoke(app, ["solve", str(tmp_path / file), "--gamma", "0.9", "--json"]).stdout
        )
        for file in ("log.csv", name)
    ]
    assert results[0]["stationary"] == results[1]["stationary"]
    assert results[0]["value"] == results[1]["value"]
    wrong = CliRunner().invoke(app, ["solve", str(tmp_path / name), "--state", "nothing"])
    assert wrong.exit_code == 2


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("name", ["log.parquet", "log.feather"])
def test_intervals_of_parquet_logs_are_clustered_like_those_of_csv(tmp_path, name, labels):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    visits = rng.integers(0, 3, (40, 11))
    state, following = visits[:, :-1].ravel(), visits[:, 1:].ravel()
    columns = {"state": state, "next_state": following}
    if labels:
        columns = {role: [f"room {k}" for k in ids] for role, ids in columns.items()}
    columns |= {"reward": rng.normal(size=state.size).round(3), "episode": np.repeat(np.arange(40), 10)}
    table = pa.table(columns)
    pa.csv.write_csv(table, tmp_path / "log.csv")
    write = pa.parquet.write_table if name.endswith("parquet") else pa.feather.write_feather
    write(table, str(tmp_path / name))
    asked = ["--gamma", "0.9", "--level", "0.95", "--json"]
    from_csv, found = (
        json.loads(CliRunner().invoke(app, ["solve", str(tmp_path / file), *asked]).stdout)["interval"]
        for file in ("log.csv", name)
    )
    assert "cluster" in found["note"]
    assert "not clustered" not in found["note"]
    assert found == from_csv


def test_a_damaged_log_is_named_also_where_episodes_are_wanted(tmp_path):
    (tmp_path / "log.parquet").write_bytes(b"PAR1 and then nothing")
    done = CliRunner().invoke(app, ["solve", str(tmp_path / "log.parquet"), "--level", "0.9"])
    assert done.exit_code == 2
    assert "log.parquet" in done.stderr
    assert "cannot be read" in " ".join(done.stderr.split())


def test_policies_by_label(run, tmp_path):
    rng = np.random.default_rng(0)
    walk = rng.choice(["ill", "well"], (50, 11))
    rows = zip(walk[:, :-1].ravel(), walk[:, 1:].ravel(), rng.choice(["drug", "rest"], 500), strict=True)
    log = tmp_path / "log.csv"
    lines = [f"{s},{a},{len(s) + len(a)},{t},{k // 10}" for k, (s, t, a) in enumerate(rows)]
    log.write_text("\n".join(["state,action,reward,next_state,episode", *lines]))
    for name, text in {
        "table.csv": "1,0\n0.5,0.5\n",
        "long.csv": "state,action,probability\nill,drug,1\nwell,drug,0.5\nwell,rest,0.5\n",
        "wide.csv": "state,rest,drug\nwell,0.5,0.5\nill,0,1\n",
        "named.json": '{"ill": "drug", "well": {"drug": 0.5, "rest": 0.5}}',
        "start.csv": "state,probability\nwell,1\n",
        "several.json": '{"a": {"ill": "drug", "well": "rest"}, "b": {"ill": "rest", "well": "rest"}}',
    }.items():
        (tmp_path / name).write_text(text)
    found = []
    for policy in ("table.csv", "long.csv", "wide.csv", "named.json"):
        options = ("--gamma", 0.9, "--policy", tmp_path / policy, "--initial", tmp_path / "start.csv")
        found.append(json.loads(run("solve", log, *options, "--json").stdout))
    assert len({answer["value"] for answer in found}) == 1
    answer = run("compare", log, tmp_path / "table.csv", tmp_path / "long.csv", "--gamma", 0.9, "--json")
    assert len(set(json.loads(answer.stdout)["values"])) == 1
    several = run("solve", log, "--policy", tmp_path / "several.json")
    assert several.exit_code == 2
    assert "rank them with lingendice compare" in several.stderr


def write_log(path, n_states=3, **extra):
    rng = np.random.default_rng(1)
    columns = {"state": rng.integers(0, n_states, 200), "action": rng.integers(0, 2, 200)}
    columns |= {"next_state": rng.integers(0, n_states, 200), "reward": rng.integers(0, 4, 200), **extra}
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))


@pytest.mark.parametrize("name", ["greedy.npy", "greedy.npz", "greedy.csv"])
def test_a_file_may_hold_one_action_per_state(run, tmp_path, name):
    write_log(tmp_path / "log.csv", episode=np.arange(200) // 10)
    greedy = np.array([1, 0, 1, 0])  # for one state more than were logged
    if name.endswith(".npy"):
        np.save(tmp_path / name, greedy)
    elif name.endswith(".npz"):
        np.savez(tmp_path / name, greedy)
    else:
        (tmp_path / name).write_text("1\n0\n1\n0\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.RowOrderWarning)
        counts = lg.read_transitions(tmp_path / "log.csv", n_states=4)
    expected = lg.solve(counts, 0.9, policy=greedy)
    options = ("--gamma", 0.9, "--policy", tmp_path / name)
    answer = json.loads(run("solve", tmp_path / "log.csv", *options, "--json").stdout)
    assert answer["value"] == expected.value
    audited = json.loads(run("audit", tmp_path / "log.csv", *options, "--json").stdout)
    assert audited["coverage"] == lg.audit(counts, 0.9, policy=greedy).coverage


def test_audit_takes_an_initial_distribution(run, tmp_path):
    """Without episodes there is none to be read off the log, and gamma < 1 needs one."""
    write_log(tmp_path / "log.csv")
    np.save(tmp_path / "start.npy", np.array([0.0, 1.0, 0.0]))
    assert run("audit", tmp_path / "log.csv", "--gamma", 0.9).exit_code == 2
    told = run("audit", tmp_path / "log.csv", "--gamma", 0.9, "--initial", tmp_path / "start.npy", "--json")
    expected = lg.audit(lg.read_transitions(tmp_path / "log.csv"), 0.9, initial=[0, 1, 0])
    assert json.loads(told.stdout) == expected.to_dict()


def test_a_table_of_a_database(run, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    write_log(tmp_path / "log.csv")
    with duckdb.connect(str(tmp_path / "log.duckdb")) as connection:
        connection.execute(f"CREATE TABLE steps AS SELECT * FROM '{tmp_path / 'log.csv'}'")
    unnamed = run("solve", tmp_path / "log.duckdb")
    assert unnamed.exit_code == 2
    assert "name the table with --table" in unnamed.stderr
    answers = [
        json.loads(run("solve", *given, "--json").stdout)["stationary"]
        for given in ((tmp_path / "log.csv",), (tmp_path / "log.duckdb", "--table", "steps"))
    ]
    assert answers[0] == answers[1]


def test_a_report_is_about_whatever_solve_reads(run, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        write_log(folder / name, episode=np.arange(200) // 10)
    whole = b"".join((folder / name).read_bytes() for name in ("a.csv", "b.csv"))
    for source in (folder, folder / "*.csv"):
        assert run("report", source, "--gamma", 0.9, "-o", tmp_path / "page.html").exit_code == 0
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert f"{source.name}, 2 files, sha256 {hashlib.sha256(whole).hexdigest()}" in page


def test_a_report_into_no_folder_is_refused_before_solving(run, tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    monkeypatch.setattr(lg, "solve", None)
    answer = run("report", tmp_path / "log.csv", "-o", tmp_path / "nowhere" / "page.html")
    assert answer.exit_code == 2
    assert "there is no folder" in answer.stderr


def test_strict_exits_with_3_where_a_check_fails(run, tmp_path):
    """A log in which one action of the target is never taken, and one in which all are."""
    rng = np.random.default_rng(0)
    n = 2000
    for actions, code in ((1, 3), (2, 0)):
        state, action = rng.integers(5, size=n + 1), rng.integers(actions, size=n)
        table = np.stack([state[:-1], action, state[1:], np.arange(n) // 50], axis=1)
        path = tmp_path / f"log{actions}.csv"
        rows = [f"{s},{a},{t},{e},{r:.3f}" for (s, a, t, e), r in zip(table, rng.normal(size=n), strict=True)]
        path.write_text("\n".join(["state,action,next_state,episode,reward", *rows]))
        np.save(tmp_path / "pi.npy", np.full((5, 2), 0.5))
        given = ("--gamma", "0.9", "--policy", tmp_path / "pi.npy")
        assert run("solve", path, *given).exit_code == 0
        for command in (("solve", path, *given), ("report", path, *given, "-o", tmp_path / "page.html")):
            strict = run(*command, "--strict")
            assert strict.exit_code == code, strict.stderr
            assert ("not trusted: " in strict.stderr) == (code == 3)
            assert ("were never logged" in strict.stderr) == (code == 3)


# -- backtests ----------------------------------------------------------------------------------------------


def write_rewards(path, shift, n=60):
    """Episodes of five steps; the second half of them earns ``shift`` more per step."""
    rng = np.random.default_rng(2)
    lines = ["state,action,reward,next_state,episode,terminal"]
    for episode in range(n):
        state = 0
        for step in range(5):
            following = int(rng.integers(3))
            earned = state + rng.normal() + shift * (episode >= n // 2)
            lines.append(f"{state},{rng.integers(2)},{earned},{following},{episode},{int(step == 4)}")
            state = following
    path.write_text("\n".join(lines) + "\n")
    return path


def test_backtest_is_that_of_the_library(run, tmp_path):
    log = write_rewards(tmp_path / "log.csv", 0.0)
    expected = lg.backtest(lg.read_transitions(log), 0.9, split="interleaved", n_splits=3, level=0.9, seed=4)
    options = ("--gamma", 0.9, "--split", "interleaved", "--splits", 3, "--level", 0.9, "--seed", 4)
    assert json.loads(run("backtest", log, *options, "--json").stdout) == expected.to_dict()
    shown = run("backtest", log, *options, "--strict")
    assert shown.exit_code == 0
    assert "interleaved 3" in shown.stdout
    assert expected.verdict in shown.stdout


def test_backtest_tells_a_script_of_drift(run, tmp_path):
    log = write_rewards(tmp_path / "log.csv", 2.0)
    assert run("backtest", log).exit_code == 0
    found = run("backtest", log, "--strict")
    assert found.exit_code == 3
    assert "not trusted: " in found.stderr
    assert "Drift" in found.stderr
    assert json.loads(run("backtest", log, "--json").stdout)["drift"] is True


def test_backtest_names_what_is_missing(run, tmp_path):
    (tmp_path / "walk.csv").write_text("state,next_state\n0,1\n1,0\n")
    found = run("backtest", tmp_path / "walk.csv")
    assert found.exit_code == 2
    assert "episode" in found.stderr
    assert run("backtest", write_rewards(tmp_path / "log.csv", 0.0), "--split", "month").exit_code == 2
