"""Reading and writing files: what comes in is what was written, and errors name the entry."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from scipy import sparse
from scipy.io import mmwrite

import lingendice as lg
from lingendice.io.array_files import read_array, read_matrix_file, write_result
from lingendice.io.formats import FileError


@pytest.fixture
def write(tmp_path):
    def _write(text, name="log.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_matrix, sparse.csc_array])
def test_matrices_of_all_kinds(tmp_path, kind):
    dense = np.array([[0, 2, 0], [1, 0, 3], [4, 0, 0]])
    sparse.save_npz(tmp_path / "m.npz", kind(dense))
    mmwrite(tmp_path / "m.mtx", sparse.coo_matrix(dense))
    mmwrite(tmp_path / "d.mtx", dense)
    np.save(tmp_path / "m.npy", dense)
    graph = sparse.csr_matrix(dense)
    np.savez(tmp_path / "g.npz", indptr=graph.indptr, indices=graph.indices)
    (tmp_path / "marked.mtx").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "m.mtx").read_bytes())
    for name in ("m.npz", "m.mtx", "marked.mtx"):
        np.testing.assert_array_equal(read_matrix_file(tmp_path / name).toarray(), dense)
    for name in ("m.npy", "d.mtx"):
        np.testing.assert_array_equal(read_matrix_file(tmp_path / name), dense)
    np.testing.assert_array_equal(read_matrix_file(tmp_path / "g.npz").toarray(), dense > 0)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read_matrix_file(tmp_path / "none.npz")
    for name in ("broken.npz", "broken.npy", "broken.mtx"):
        (tmp_path / name).write_text("this is no such file")
        with pytest.raises(FileError, match=name):
            read_matrix_file(tmp_path / name)
    np.save(tmp_path / "wide.npy", np.ones((2, 3)))
    with pytest.raises(FileError, match=r"square.*\(2, 3\)"):
        read_matrix_file(tmp_path / "wide.npy")
    np.savez(tmp_path / "graph.npz", indptr=[0, 1, 2], indices=[0, 7])
    with pytest.raises(FileError, match="no CSR graph"):
        read_matrix_file(tmp_path / "graph.npz")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(FileError, match=r"objects\.npy"):
        read_matrix_file(tmp_path / "objects.npy")


def test_policies_and_distributions(tmp_path, write):
    policy = np.array([[0.25, 0.75], [1.0, 0.0]])
    np.save(tmp_path / "p.npy", policy)
    np.savez(tmp_path / "p.npz", policy=policy)
    path = write("0.25,0.75\n1,0\n", "p.csv")
    for file in (tmp_path / "p.npy", tmp_path / "p.npz", path):
        np.testing.assert_array_equal(read_array(file), policy)
    np.savez(tmp_path / "two.npz", a=policy, b=policy)
    with pytest.raises(FileError, match="expected one array, found 'a', 'b'"):
        read_array(tmp_path / "two.npz")
    with pytest.raises(FileError, match="expected rows of numbers, or a header"):
        read_array(write("a,b\n1,0\n", "q.csv"))
    with pytest.raises(FileError, match="expected rows of numbers, or a header"):
        read_array(write("", "empty.csv"))
    np.testing.assert_array_equal(read_array(write("\ufeff0.25,0.75\r\n1,0\r\n", "marked.csv")), policy)
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


def test_tables_by_label(write):
    read = read_array(write("State , action,probability\na,x,0.25\n\na,y,.75\n", "long.csv"))
    assert read == {"state": ["a", "a"], "action": ["x", "y"], "probability": [0.25, 0.75]}
    counts = lg.Counts.from_transitions(["a", "b"], ["b", "a"])
    for name in ("states", "S", "state_id"):
        read = read_array(write(f"{name},p\nb,1\n", "initial.csv"))
        assert lg.solve(counts, 0.5, initial=read).stationary == pytest.approx([1 / 3, 2 / 3])
    assert read_array(write("state,x,y\n7,1,0\n", "wide.csv")) == {"state": ["7"], "x": [1.0], "y": [0.0]}
    assert read_array(write('{"a": {"x": 1}}', "policy.json")) == {"a": {"x": 1}}
    with pytest.raises(FileError, match=r"line 3: 1 entries, 2 in the lines before"):
        read_array(write("state,action\na,x\nb\n", "short.csv"))
    with pytest.raises(FileError, match="line 2, column 'probability': could not convert"):
        read_array(write("state,action,probability\na,x,often\n", "words.csv"))
    for header in ("state,x,x", "state,action,probability,probability"):
        with pytest.raises(ValueError, match=r"twice\.csv: column '(x|probability)' appears twice"):
            read_array(write(f"{header}\na{',1' * header.count(',')}\n", "twice.csv"))
    with pytest.raises(FileError, match="not readable as JSON"):
        read_array(write("{", "cut.json"))
    with pytest.raises(FileError, match=r"twice\.json: .*'a' appears twice; give it once"):
        read_array(write('{"a": {"x": 1}, "b": {"x": 1}, "a": {"y": 1}}', "twice.json"))
    with pytest.raises(FileError, match="expected an object"):
        read_array(write("[1, 2]", "list.json"))


# -- damage ------------------------------------------------------------------------------------------------


def header_of(shape):
    """A NumPy file that says it holds an array of this shape, and holds eight bytes."""
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(held, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return held.getvalue() + bytes(8)


@pytest.mark.parametrize("shape", [(10**7, 10**7), (2**62, 4), (3, 3)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("read", [read_matrix_file, read_array])
def test_headers_that_ask_for_more_than_there_is(tmp_path, shape, packed, read):
    """Petabytes raised MemoryError."""
    path = tmp_path / ("table.npz" if packed else "table.npy")
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("table.npy", header_of(shape))
    else:
        path.write_bytes(header_of(shape))
    with pytest.raises(FileError, match=r"table\.np[yz]: not a readable"):
        read(path)


def test_every_damaged_byte_of_a_packed_archive_is_a_file_error(tmp_path):
    """Of a damaged stream zlib.error came through; where a byte does not matter, all is as it was."""
    path = tmp_path / "log.npz"
    np.savez_compressed(path, state=np.arange(300) % 7, next_state=np.arange(1, 301) % 7)
    whole = path.read_bytes()
    unpacking = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            read_matrix_file(path)
        except FileError as error:
            text = str(error)
            assert text.startswith(str(path))
            unpacking += "while decompressing" in text
    assert unpacking


def test_a_sparse_matrix_of_absurd_shape(tmp_path):
    path = tmp_path / "matrix.npz"
    np.savez(
        path, format=b"coo", shape=np.array([2**60, 2**60]), row=np.array([0]), col=np.array([1]),
        data=np.array([1.0]),
    )  # fmt: skip
    with pytest.raises(FileError, match=r"matrix\.npz"):
        read_matrix_file(path)
    (tmp_path / "matrix.mtx").write_text("%%MatrixMarket matrix array real general\n10000000 10000000\n1.0\n")
    with pytest.raises(FileError, match=r"matrix\.mtx: not a readable"):
        read_matrix_file(tmp_path / "matrix.mtx")


@pytest.mark.parametrize("content", [b"garbage", b"\x80\x04K\x01.", "objects"])
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_nobody_is_advised_to_unpickle_what_is_no_file_of_numpy(tmp_path, content, suffix):
    """NumPy takes unknown bytes for a pickle and names the argument that would run it."""
    path = tmp_path / f"data{suffix}"
    if content == "objects":
        (np.save if suffix == ".npy" else np.savez)(path, np.array([{}], object), allow_pickle=True)
    else:
        path.write_bytes(content)
    doors = [lg.read_transitions, lg.pagerank, lambda found: lg.pagerank(edges=found)]
    doors += [lg.Counts.load] if suffix == ".npz" else [read_array]
    for read in doors:
        with pytest.raises(ValueError, match=path.name) as refused:
            read(path)
        assert "pickle" not in str(refused.value)
        assert "unsafe" not in str(refused.value)
