"""Every format and every way to read it gives the counts of a plain Python loop over the rows."""

from __future__ import annotations

import csv
import gzip
import math
import re
import warnings
from unittest import mock

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lingendice as lg
from lingendice.cli.app import load
from lingendice.io.array_files import read_array
from lingendice.io.edge_lists import read_edge_file
from lingendice.io.formats import FileError

WORDS = {
    "words": ("no", "yes"),
    "capitals": ("False", "TRUE"),
    "digits": ("0", "1"),
    "floats": ("0.0", "1.0"),
}
TYPED_FLAGS = {"words": str, "capitals": str, "digits": np.int8, "floats": np.float64}


# -- the oracle -------------------------------------------------------------------------------------------


class Oracle:
    """Counts of rows by dictionaries; slow and plain."""

    def __init__(self, rows, ends=None):
        self.pairs, self.starts, self.n_breaks = {}, {}, 0
        self.n_ended = self.n_cut = 0
        last, ended = {}, set()
        told = bool(rows[0].keys() & {"episode", "terminal", "truncated"})
        derive = "next_state" not in rows[0]
        for row in rows:
            e = row.get("episode")
            goes_on = e in last and e not in ended
            if told and not goes_on:
                self.starts[row["state"]] = self.starts.get(row["state"], 0) + 1
            if goes_on and derive:
                self._add(last[e], row["state"])
            elif goes_on and told:
                self.n_breaks += last[e]["next_state"] != row["state"]
            ended.discard(e)
            if row.get("terminal") or row.get("truncated"):
                ended.add(e)
            if row.get("terminal"):
                self._add(row, None)
            elif not derive:
                self._add(row, row["next_state"])
            elif row.get("truncated"):
                self.n_cut += 1
            last[e] = row
        if derive:
            marked = "terminal" in rows[0] or "episode" not in rows[0]
            left = [row for e, row in last.items() if e not in ended]
            if (ends or ("truncated" if marked else "terminal")) == "terminal":
                self.n_ended = len(left)
                for row in left:
                    self._add(row, None)
            else:
                self.n_cut += len(left)
        if ends == "terminal" or not rows[0].keys() & {"action", "reward"}:
            self.n_ended = 0  # nothing to tell
        if not rows[0].keys() & {"action", "reward"}:
            self.n_cut = 0
        if not told:
            self.starts = None
        named = [row["state"] for row in rows] + [row["next_state"] for row in rows if "next_state" in row]
        self.states = self._labels(named)
        self.actions = self._labels([row["action"] for row in rows]) if "action" in rows[0] else None

    def _add(self, row, following):
        key = row["state"], row.get("action"), following
        self.pairs.setdefault(key, []).append(row.get("reward", 0.0))

    @staticmethod
    def _labels(named):
        """Names in sorted order, or None and the number of ids."""
        if isinstance(named[0], str):
            return tuple(sorted(set(named))), len(set(named))
        if max(named) < 20 * len(set(named)) + 10_000:
            return None, max(named) + 1
        return tuple(sorted(map(str, set(named)))), len(set(named))

    def check(self, counts, with_rewards):
        assert (counts.state_labels, counts.n_states) == self.states
        assert (counts.action_labels, counts.n_actions) == (self.actions or (None, None))

        def name(labels, number):
            return number if labels is None else labels[number]

        found, n_actions = {}, counts.n_actions or 1
        for cell in range(counts.n_cells):
            for entry in range(counts.indptr[cell], counts.indptr[cell + 1]):
                following = int(counts.indices[entry])
                key = (
                    name(counts.state_labels, cell // n_actions),
                    None if counts.n_actions is None else name(counts.action_labels, cell % n_actions),
                    None if following == counts.n_states else name(counts.state_labels, following),
                )
                found[key] = entry
        as_shown = {self._shown(key, counts): rewards for key, rewards in self.pairs.items()}
        assert found.keys() == as_shown.keys()
        for key, rewards in as_shown.items():
            entry, mean = found[key], math.fsum(rewards) / len(rewards)
            assert counts.count[entry] == len(rewards)
            if with_rewards:
                assert counts.reward_mean[entry] == pytest.approx(mean, rel=1e-12, abs=1e-12)
                m2 = math.fsum((reward - mean) ** 2 for reward in rewards)
                assert counts.reward_m2[entry] == pytest.approx(m2, rel=1e-9, abs=1e-9)
        assert (counts.reward_mean is not None) == with_rewards
        starts = None
        if counts.initial_count is not None:
            begun = np.flatnonzero(counts.initial_count).tolist()
            starts = {name(counts.state_labels, s): counts.initial_count[s] for s in begun}
        expected = self.starts
        if expected is not None and counts.state_labels is not None:
            expected = {str(state): n for state, n in expected.items()}
        assert starts == expected

    @staticmethod
    def _shown(key, counts):
        state, action, following = key
        if counts.state_labels is not None:
            state, following = str(state), None if following is None else str(following)
        return state, str(action) if counts.action_labels is not None else action, following


# -- logs -------------------------------------------------------------------------------------------------

LABELS = st.text("ab\"',; é\n#", max_size=3).map(lambda text: f"n{text}e")


@st.composite
def logs(draw):
    """Rows of ids, sparse integers or labels, the style of their flags, and what last rows are."""
    kind = draw(st.sampled_from(["ids", "sparse", "labels"]))
    pool = {"ids": st.integers(0, 4), "sparse": st.sampled_from([0, 7, 70_000, 10**12]), "labels": LABELS}[
        kind
    ]
    states = draw(st.lists(pool, min_size=1, max_size=4, unique=True))
    if kind == "sparse":
        states.append(10**13)
    present = {role for role in ("action", "reward", "terminal", "truncated") if draw(st.booleans())}
    if draw(st.booleans()):
        present.add("next_state")
    episodes = draw(st.sampled_from([None, [5, -2, 9], ["x", "y 1", "3"]]))
    acts = draw(st.sampled_from([[0, 1], [3, 90_000], ["left", "a,b"]]))
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        row = {"state": draw(st.sampled_from(states))}
        if episodes is not None:
            row["episode"] = draw(st.sampled_from(episodes))
        if "next_state" in present:
            row["next_state"] = draw(st.sampled_from(states))
        if "action" in present:
            row["action"] = draw(st.sampled_from(acts))
        if "reward" in present:
            row["reward"] = draw(st.sampled_from([0.0, -1.5, 1e6, 0.1]))
        for role in {"terminal", "truncated"} & present:
            row[role] = draw(st.booleans())
        rows.append(row)
    ends = None if "next_state" in present else draw(st.sampled_from([None, "terminal", "truncated"]))
    return rows, draw(st.sampled_from(sorted(WORDS))), ends


def columns_of(rows, style):
    columns = {}
    for role in rows[0]:
        entries = [row[role] for row in rows]
        if role in ("terminal", "truncated"):
            kind = TYPED_FLAGS[style]
            entries = [WORDS[style][entry] for entry in entries] if kind is str else np.array(entries, kind)
        columns[role] = np.array(entries)
    return columns


def write_text(path, rows, style, delimiter=","):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8-sig" if style == "words" else "utf-8") as stream:
        writer = csv.writer(stream, delimiter=delimiter, lineterminator="\r\n" if style == "digits" else "\n")
        writer.writerow([f" {role.upper()} " if style == "capitals" else role for role in rows[0]])
        for row in rows:
            flags = {role: WORDS[style][row[role]] for role in ("terminal", "truncated") if role in row}
            writer.writerow([flags.get(role, entry) for role, entry in row.items()])


def coded(role, column):
    """Ids by codes of a byte each."""
    if role in ("reward", "truncated", "terminal"):
        return column
    return column.combine_chunks().dictionary_encode().cast(pa.dictionary(pa.uint8(), column.type))


def files_of(folder, rows, style):
    columns = columns_of(rows, style)
    table = pa.table(columns)
    folder.mkdir()
    write_text(folder / "log.csv", rows, style)
    write_text(folder / "log.csv.gz", rows, style)
    write_text(folder / "log.tsv", rows, style, "\t")
    pq.write_table(table, folder / "log.parquet", row_group_size=5)
    coded = pa.table(
        {
            role: table[role]
            .combine_chunks()
            .dictionary_encode()
            .cast(pa.dictionary(pa.uint8(), table[role].type))
            for role in columns
            if role not in ("reward", "truncated", "terminal")
        }
        | {role: table[role] for role in columns if role in ("reward", "truncated", "terminal")}
    )
    pq.write_table(coded, folder / "coded.parquet")
    pa.feather.write_feather(table, str(folder / "log.feather"), chunksize=4)
    np.savez(folder / "log.npz", **columns)
    return sorted(folder.iterdir())


def frames_of(rows, style):
    columns = columns_of(rows, style)
    cut = len(rows) // 2
    halves = [
        {role: column[part] for role, column in columns.items()} for part in (slice(cut), slice(cut, None))
    ]
    return [pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns), columns, halves]


def read(reader, oracle):
    """What a reader gives; it must warn of exactly the rows that are out of order or have no next state."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        counts = reader()
    told = [str(warning.message) for warning in caught if warning.category is lg.RowOrderWarning]
    last = [str(warning.message) for warning in caught if warning.category is lg.EpisodeEndWarning]
    assert len(told) + len(last) == len(caught)
    assert len(told) == bool(oracle.n_breaks)
    if told:
        assert int(re.match(r"[\d,]+", told[0])[0].replace(",", "")) == oracle.n_breaks
    assert len(last) == bool(oracle.n_ended or oracle.n_cut)
    for text, n in (("counted as the end", oracle.n_ended), ("cut off", oracle.n_cut)):
        said = [
            int(found) for message in last for found in re.findall(rf"(\d+) last rows? \w+ {text}", message)
        ]
        assert said == [n] * bool(n)
    return counts


@settings(max_examples=40, deadline=None)
@given(logs())
def test_every_reader_counts_what_a_plain_loop_counts(tmp_path_factory, drawn):
    rows, style, ends = drawn
    oracle, with_rewards = Oracle(rows, ends), "reward" in rows[0]
    folder = tmp_path_factory.mktemp("logs") / "log"
    for file in files_of(folder, rows, style):
        oracle.check(read(lambda file=file: lg.read_transitions(file, ends=ends), oracle), with_rewards)
        oracle.check(read(lambda file=file: load(file, {"ends": ends})[0], oracle), with_rewards)
    for frame in frames_of(rows, style):
        oracle.check(
            read(lambda frame=frame: lg.read_transitions(frame, threads=1, ends=ends), oracle), with_rewards
        )


@settings(max_examples=40, deadline=None)
@given(logs())
def test_without_pyarrow_and_with_episodes_kept(tmp_path_factory, drawn):
    rows, style, ends = drawn
    oracle, with_rewards = Oracle(rows, ends), "reward" in rows[0]
    folder = tmp_path_factory.mktemp("logs") / "log"
    for file in files_of(folder, rows, style):
        if oracle.starts is not None:
            counts = read(lambda file=file: lg.read_transitions(file, keep_episodes=True, ends=ends), oracle)
            oracle.check(counts, with_rewards)
            assert counts.episodes.entry.size == counts.total
        oracle.check(read(lambda file=file: load(file, {"ends": ends})[0], oracle), with_rewards)
        if {".csv", ".tsv", ".npz"} & set(file.suffixes):
            with mock.patch("lingendice.data.saving.import_module", side_effect=ImportError):
                oracle.check(
                    read(lambda file=file: lg.read_transitions(file, ends=ends), oracle), with_rewards
                )


SPELLINGS = {
    "plain.csv": "{0}\na,b,2\nb,a,1\n",
    "marked.csv": "\ufeff{0}\r\na,b,2\r\nb,a,1\r\n",
    "quoted.csv": '{1}\n"a","b","2"\n"b","a","1"\n',
    "marked and quoted.csv": '\ufeff{1}\n"a","b","2"\n"b","a","1"\n',
    "blanks.csv": "\n{0}\n a , b,2 \n\nb,a , 1\n",
    "tabs.tsv": "{2}\na\tb\t2\nb\ta\t1\n",
    "packed.csv.gz": "{0}\na,b,2\nb,a,1\n",
    "packed.tsv.zst": "{2}\na\tb\t2\nb\ta\t1\n",
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_logs_policies_and_edges_are_read_from_the_same_text(tmp_path, name):
    def write(*names):
        quoted = ",".join(f'"{each}"' for each in names)
        text = SPELLINGS[name].format(",".join(names), quoted, "\t".join(names)).encode()
        if name.endswith(".zst"):
            text = pa.compress(text, "zstd", asbytes=True)
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return tmp_path / name

    log = lg.read_transitions(write("state", "next_state", "n"), weight="n")
    assert log.state_labels == ("a", "b")
    assert log.matrix.toarray().tolist() == [[0, 2], [1, 0]]
    table = {"state": ["a", "b"], "action": ["b", "a"], "probability": [2.0, 1.0]}
    assert read_array(write("state", "action", "probability")) == table
    edges = read_edge_file(write("source", "target", "weight"))
    assert edges.state_labels == ("a", "b")
    assert edges.matrix.toarray().tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"a,b\nb,a\nb\n", r"line 3: 1 entries, 2 in the lines before"),
        ("a,b\nb,é\n".encode("latin-1"), r"not UTF-8 text"),
        (b'a,b\n"b,a\nb,a\n', r"line 3: 1 entries, 2 in the lines before"),
    ],
)
def test_what_is_wrong_with_text_is_said_alike(tmp_path, text, says):
    for header, reader in (
        (b"state,next_state\n", lg.read_transitions),
        (b"state,action\n", read_array),
        (b"source,target\n", read_edge_file),
    ):
        (tmp_path / "table.csv").write_bytes(header + text.partition(b"\n")[2])
        with pytest.raises(ValueError, match=r"table\.csv.*" + says) as raised:
            reader(tmp_path / "table.csv")
        assert type(raised.value) is FileError


BAD_ENTRIES = {
    "negative id": "0,-1,1.0,no",
    "fraction": "0.5,0,1.0,no",
    "infinite": "0,0,inf,no",
    "empty": "0,0,,no",
    "flag": "0,0,1.0,maybe",
}


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("entry", BAD_ENTRIES)
def test_a_bad_entry_is_named_by_its_line_with_and_without_pyarrow(tmp_path, monkeypatch, entry, suffix):
    monkeypatch.setattr("lingendice.io.csv_reader._BLOCK", 1 << 12)  # several batches
    path = tmp_path / f"log{suffix}"
    lines = ["state,next_state,reward,terminal", *["0,1,1.0,no", "", '1,0,2.0,"no\n"'] * 400]
    lines += [BAD_ENTRIES[entry], *["0,1,1.0,no"] * 50]
    with (gzip.open if suffix == ".csv.gz" else open)(path, "wt", newline="") as stream:
        stream.write("\n".join(lines))
    where = re.escape(f"{path}, line {1 + 400 * 4 + 1}: ")
    with pytest.raises(FileError, match=where):
        lg.read_transitions(path)
    without = mock.patch("lingendice.data.saving.import_module", side_effect=ImportError)
    with without, pytest.raises(FileError, match=where):
        lg.read_transitions(path)


def test_a_row_of_a_frame_is_counted_from_its_beginning():
    n = 300_000  # several batches
    reward = np.ones(n)
    reward[n - 2] = np.nan
    frame = pa.table({"state": np.zeros(n, int), "next_state": np.zeros(n, int), "reward": reward})
    with pytest.raises(FileError, match=f"the Table, row {n - 2}: column 'reward' is nan"):
        lg.read_transitions(frame)


def with_and_without_pyarrow(read):
    """What ``read()`` gives either way."""
    with mock.patch("lingendice.data.saving.import_module", side_effect=ImportError):
        without = read()
    return read(), without


def test_files_may_hold_days_and_seconds(tmp_path):
    """Days were counted from 1970 like seconds, and came first."""
    (tmp_path / "a.csv").write_text("state,t\n0,2020-01-04 00:00:01\n1,2020-01-02 10:00:00\n")
    (tmp_path / "b.csv").write_text("state,t\n2,2020-01-01\n3,2020-01-03\n")
    expected = lg.Counts.from_transitions([2, 1, 3], [1, 3, 0])
    for found in with_and_without_pyarrow(lambda: lg.read_transitions(tmp_path, time="t")):
        assert found == expected


@pytest.mark.parametrize(
    ("entry", "labels"),
    [
        ("\u0663", ("0", "1", "\u0663")),  # a digit of Arabic
        ("\uff13", ("0", "1", "\uff13")),  # and a wide one
        ("\u00a03", ("0", "1", "\u00a03")),  # a blank that does not break
        ("1.0\n0,0x10", ("0", "0x10", "1", "1.0")),  # hexadecimal numbers are whole, as floats are not
    ],
)
def test_what_is_no_number_to_pyarrow_is_a_name_without_it(tmp_path, entry, labels):
    path = tmp_path / "log.csv"
    path.write_text(f"state,next_state\n0,1\n1,{entry}\n", encoding="utf-8")
    found, without = with_and_without_pyarrow(lambda: lg.read_transitions(path))
    assert found.state_labels == labels
    assert without == found


@pytest.mark.parametrize(
    ("column", "entry"),
    [
        ("weight", "0x1\n1,2.0"),
        ("reward", "\u0663"),
        ("reward", "\u00a03"),
        ("time", "true"),
        ("time", "2020-01-02\n1,0"),
    ],
)
def test_numbers_that_pyarrow_refuses_are_refused_without_it(tmp_path, column, entry):
    path = tmp_path / "log.csv"
    path.write_text(f"state,{column}\n0,{entry}\n1,{entry}\n", encoding="utf-8")

    def read():
        with pytest.raises(ValueError, match=rf"log\.csv, line 2|In column '{column}': line 2"):
            lg.read_transitions(path, **{column: column})

    with_and_without_pyarrow(read)


# -- ids of text: numbers or names, decided alike -----------------------------------------------------------

LONG = "state,next_state\n" + "1,2\n2,1\n" * 5_000


def read_both(tmp_path, text, **options):
    """What either reader makes of a file: labels and number of states, or the error."""
    file = tmp_path / "log.csv"
    file.write_text(text)
    found = []
    for modules in ({}, {"pyarrow": None}):
        with mock.patch.dict("sys.modules", modules):
            try:
                counts = lg.read_transitions(file, **options)
                found.append((counts.state_labels, counts.n_states, counts.total))
            except FileError as error:
                found.append(str(error))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("state,next_state\n007,7\n7,007\n", None, (("007", "7"), 2, 2)),
        ("state,next_state\n007,7\n7,007\n", True, (("007", "7"), 2, 2)),
        ("state,next_state\n007,7\n7,007\n", False, (None, 8, 2)),
        ("state,next_state\n7,7\n7, 07\n", None, (("07", "7"), 2, 2)),
        ("state,next_state\n0,7\n7,0\n", None, (None, 8, 2)),
        ("state,next_state\n7, 7\n 7,0.0\n", None, (None, 8, 2)),
        (LONG + "007,1\n", True, (("007", "1", "2"), 3, 10_001)),
        (LONG + "007,1\n", False, (None, 8, 10_001)),
        (LONG + " 2,1.0\n", None, (None, 3, 10_001)),
        ("state,next_state\n" + "1,2\n" * 9_999 + "x,1\n", None, (("1", "2", "x"), 3, 10_000)),
    ],
)
def test_numbers_with_zeros_in_front_are_names(tmp_path, text, labels, expected):
    assert read_both(tmp_path, text, labels=labels) == expected


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ("x,1", "line 10002: column 'state' is 'x', which is not a number as the first rows are"),
        ("1, NA", "line 10002: column 'next_state' is 'NA', which is not a number"),
        ("007,1", "line 10002: column 'state' is '007', and the first rows are numbers without zeros"),
        ("1,-01", "line 10002: column 'next_state' is '-01', and the first rows"),
        (",1", "line 10002: column 'state' is empty"),
    ],
)
def test_ids_that_turn_to_names_late_are_refused_alike(tmp_path, late, words):
    """PyArrow refused them and the standard library made names of all; either took 007 for 7."""
    assert words in read_both(tmp_path, f"{LONG}{late}\n1,2\n")


def test_episodes_with_zeros_in_front_are_their_own(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("state,next_state,episode\n0,1,01\n1,0,1\n0,1,001\n")
    for modules in ({}, {"pyarrow": None}):
        with mock.patch.dict("sys.modules", modules):
            assert lg.read_transitions(file).initial_count.sum() == 3
