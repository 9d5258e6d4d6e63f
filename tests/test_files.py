"""Reading and writing files: what comes in is what was written, and errors name the entry."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import mmwrite

from lingendice.io.files import ColumnNames, FileError, TransitionTable, read_array, read_data, write_result


@pytest.fixture
def write(tmp_path):
    def _write(text, name="log.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def test_csv_with_every_column(write):
    path = write(
        "episode,state,action,reward,next_state,terminal,truncated,note\n"
        "7,0,1,0.5,2,false,0,first\n"
        "7,2,0,-1,1,True,1,\n"
    )
    table = read_data(path)
    assert table.state.tolist() == [0, 2]
    assert table.next_state.tolist() == [2, 1]
    assert table.action.tolist() == [1, 0]
    assert table.reward.tolist() == [0.5, -1.0]
    assert table.terminal.tolist() == [False, True]
    assert table.truncated.tolist() == [False, True]
    assert table.episode.size == 2
    assert table.weight is None
    assert set(table.as_dict()) == {
        "state", "next_state", "action", "reward", "episode", "terminal", "truncated",
    }  # fmt: skip


def test_columns_by_other_names_and_a_byte_order_mark(write):
    path = write("\ufeffs,s2,times\n0,1,3\n\n1,0,2\n")
    names = ColumnNames(state="s", next_state="s2", weight="times", required=frozenset({"weight"}))
    table = read_data(path, names)
    assert table.state.tolist() == [0, 1]
    assert table.weight.tolist() == [3, 2]


def test_strings_are_labels_even_where_one_column_is_numeric(write):
    table = read_data(write("state,next_state,action\n1,home,left\n2, 1,right\n"))
    assert table.state.tolist() == ["1", "2"]
    assert table.next_state.tolist() == ["home", "1"]
    assert table.action.tolist() == ["left", "right"]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["1.0", "2.0"], [1, 2]),
        (["-1", "2"], ["-1", "2"]),
        (["10000000001", "3"], ["10000000001", "3"]),
        (["99999999999999999999", "3"], ["99999999999999999999", "3"]),
        (["1.5", "2"], ["1.5", "2"]),
    ],
)
def test_what_counts_as_a_position_and_what_as_a_name(write, states, expected):
    rows = "".join(f"{state},0\n" for state in states)
    assert read_data(write("state,next_state\n" + rows)).state.tolist() == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty file"),
        ("state,next_state\n", "no transitions"),
        ("s,next_state\n0,1\n", r"no column 'state'.*found 's', 'next_state'.*--state"),
        ("state,next_state\n0,1\n0\n", "line 3 has 1 fields"),
        ("state,next_state\n0,1\n1, \n", "line 3 has no next_state"),
        ("state,next_state,reward\n0,1,2\n\n1,0,much\n", "line 4: reward much is not a number"),
        ("state,next_state,reward\n0,1,nan\n", "line 2: reward nan is not finite"),
        ("state,next_state,terminal\n0,1,maybe\n", "line 2: terminal maybe"),
        ("state,next_state,state\n0,1,2\n", "'state' appears twice"),
        ('state,next_state\n0,"a\nb"\n1\n', "line 4 has 1 fields"),
    ],
)
def test_bad_csv_is_told_by_its_line(write, text, says):
    with pytest.raises(FileError, match=says):
        read_data(write(text))


def test_a_column_that_was_asked_for_must_be_there(write):
    path = write("state,next_state\n0,1\n")
    with pytest.raises(FileError, match=r"no column 'r' for the reward.*--reward"):
        read_data(path, ColumnNames(reward="r", required=frozenset({"reward"})))


def test_csv_that_is_not_text(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(b"state,next_state\n\xff\xfe,1\n")
    with pytest.raises(FileError, match="not UTF-8"):
        read_data(path)


def test_npz_of_arrays(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, state=np.array([0, 1], dtype=np.uint8), next_state=[1, 0], reward=[1, 2], other=np.eye(3))
    table = read_data(path)
    assert isinstance(table, TransitionTable)
    assert table.state.tolist() == [0, 1]
    assert table.reward.tolist() == [1.0, 2.0]


def test_npz_arrays_that_do_not_fit(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, state=[0, 1], next_state=[1])
    with pytest.raises(FileError, match=r"'state' 2, 'next_state' 1"):
        read_data(path)
    np.savez(path, state=np.eye(2), next_state=[1])
    with pytest.raises(FileError, match="'state' has shape"):
        read_data(path)
    np.savez(path, a=[0, 1])
    with pytest.raises(FileError, match="found 'a'"):
        read_data(path)
    np.savez(path, state=[0.0, np.nan], next_state=[1, 0])
    with pytest.raises(FileError, match="entry 1 has no state"):
        read_data(path)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_matrix, sparse.csc_array])
def test_matrices_of_all_kinds(tmp_path, kind):
    dense = np.array([[0, 2, 0], [1, 0, 3], [4, 0, 0]])
    sparse.save_npz(tmp_path / "m.npz", kind(dense))
    mmwrite(tmp_path / "m.mtx", sparse.coo_matrix(dense))
    mmwrite(tmp_path / "d.mtx", dense)
    np.save(tmp_path / "m.npy", dense)
    graph = sparse.csr_matrix(dense)
    np.savez(tmp_path / "g.npz", indptr=graph.indptr, indices=graph.indices)
    for name in ("m.npz", "m.mtx"):
        np.testing.assert_array_equal(read_data(tmp_path / name).toarray(), dense)
    for name in ("m.npy", "d.mtx"):
        np.testing.assert_array_equal(read_data(tmp_path / name), dense)
    np.testing.assert_array_equal(read_data(tmp_path / "g.npz").toarray(), dense > 0)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read_data(tmp_path / "none.csv")
    with pytest.raises(FileError, match=r"suffix.*\.csv"):
        read_data(tmp_path / "log.xlsx")
    for name in ("broken.npz", "broken.npy", "broken.mtx"):
        (tmp_path / name).write_text("this is no such file")
        with pytest.raises(FileError, match=name):
            read_data(tmp_path / name)
    np.save(tmp_path / "wide.npy", np.ones((2, 3)))
    with pytest.raises(FileError, match=r"square.*\(2, 3\)"):
        read_data(tmp_path / "wide.npy")
    np.savez(tmp_path / "graph.npz", indptr=[0, 1, 2], indices=[0, 7])
    with pytest.raises(FileError, match="no CSR graph"):
        read_data(tmp_path / "graph.npz")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(FileError, match=r"objects\.npy"):
        read_data(tmp_path / "objects.npy")


def test_policies_and_laws(tmp_path, write):
    policy = np.array([[0.25, 0.75], [1.0, 0.0]])
    np.save(tmp_path / "p.npy", policy)
    np.savez(tmp_path / "p.npz", policy=policy)
    path = write("0.25,0.75\n1,0\n", "p.csv")
    for file in (tmp_path / "p.npy", tmp_path / "p.npz", path):
        np.testing.assert_array_equal(read_array(file), policy)
    np.savez(tmp_path / "two.npz", a=policy, b=policy)
    with pytest.raises(FileError, match="expected one array, found 'a', 'b'"):
        read_array(tmp_path / "two.npz")
    with pytest.raises(FileError, match="without a header"):
        read_array(write("a,b\n1,0\n", "q.csv"))
    with pytest.raises(FileError, match="no such file"):
        read_array(tmp_path / "none.npy")
    np.save(tmp_path / "text.npy", np.array(["a"]))
    with pytest.raises(FileError, match="expected numbers"):
        read_array(tmp_path / "text.npy")


def test_results(tmp_path):
    write_result(tmp_path / "r.npz", {"tau": np.arange(3.0)}, {})
    with np.load(tmp_path / "r.npz") as archive:
        assert archive["tau"].tolist() == [0, 1, 2]
    write_result(tmp_path / "r.json", {}, {"value": 1.5})
    assert json.loads((tmp_path / "r.json").read_text()) == {"value": 1.5}
    with pytest.raises(FileError, match=r"\.npz or \.json"):
        write_result(tmp_path / "r.txt", {}, {})
    with pytest.raises(FileError, match="no folder"):
        write_result(tmp_path / "missing" / "r.npz", {}, {})


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 500), st.floats(-1e6, 1e6, allow_subnormal=False)),
        min_size=1,
        max_size=20,
    )
)
def test_csv_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "log.csv"
    path.write_text("state,next_state,reward\n" + "".join(f"{s},{t},{r!r}\n" for s, t, r in rows))
    table = read_data(path)
    got = list(zip(table.state.tolist(), table.next_state.tolist(), table.reward.tolist(), strict=True))
    assert got == rows
