"""Compressed rows that point outside are refused: nothing behind the door checks them again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import lingendice as lg
from lingendice.data.rows import unsorted_row

FAR = 10**9
CLASSES = [
    getattr(sparse, f"{form}_{kind}") for form in ("csr", "csc", "bsr") for kind in ("array", "matrix")
]


def random_matrix(n=50):
    rng = np.random.default_rng(0)
    return sparse.csr_array(rng.random((n, n)) * (rng.random((n, n)) < 0.2))


@pytest.mark.parametrize("build", CLASSES)
@pytest.mark.parametrize(
    ("part", "place", "value", "message"),
    [
        ("indices", 3, FAR, r"counts.indices\[3\] is 1000000000, outside 0\.\.49"),
        ("indices", 7, -1, r"counts.indices\[7\] is -1"),
        ("indptr", 5, FAR, "counts.indptr"),
        ("indptr", 5, -FAR, "counts.indptr"),
        ("indptr", -1, FAR, "counts.indptr runs from 0"),
        ("indptr", 0, 1, "counts.indptr runs from 1"),
    ],
)
def test_positions_outside_are_refused(build, part, place, value, message):
    matrix = build(random_matrix())
    getattr(matrix, part)[place] = value
    for read in (lg.solve, lg.Counts.from_matrix, lg.audit):
        with pytest.raises(ValueError, match=message):
            read(matrix)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("value", [FAR, -1])
def test_coordinates_outside_are_refused(axis, value):
    matrix = sparse.coo_array(random_matrix())
    matrix.coords[axis].flags.writeable = True
    matrix.coords[axis][2] = value
    with pytest.raises(ValueError, match=rf"counts.coords\[{axis}\]\[2\] is {value}, outside"):
        lg.solve(matrix)


def test_sparse_policies_and_features_are_checked_too():
    counts = lg.Counts.from_transitions([0, 1, 1, 0], [1, 0, 1, 0], action=[0, 1, 0, 1])
    for name in ("policy", "features"):
        table = sparse.csr_array(np.full((2 if name == "policy" else 4, 2), 0.5))
        table.indices[1] = FAR
        with pytest.raises(ValueError, match=rf"{name}.indices\[1\]"):
            lg.solve(counts, 0.9, initial=[1, 0], **{"policy": np.full((2, 2), 0.5), name: table})


def test_rows_of_a_shared_matrix_with_spare_room_are_read():
    held = random_matrix()
    spare = sparse.csr_array(held)
    spare.data, spare.indices = (np.append(part, part[:3]) for part in (held.data, held.indices))
    assert lg.Counts.from_matrix(spare) == lg.Counts.from_matrix(held)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": np.array([1, FAR, 0])}, r"counts.indices\[1\] is 1000000000, outside 0\.\.2"),
        ({"indices": np.array([1, 0, -1])}, r"counts.indices\[2\] is -1"),
        ({"indices": np.array([1, 0, 0])}, "must rise within every row"),
        ({"indices": np.array([1, 1, 0])}, "must rise within every row"),
        ({"indptr": np.array([0, 5, 3])}, r"counts.indptr"),
        ({"indptr": np.array([0, 2, 9])}, r"counts.indptr"),
        ({"indptr": np.array([0, 1, 2])}, r"end with the last"),
        ({"indptr": np.array([0, 3])}, r"n_rows \+ 1 = 3"),
        ({"indptr": np.array([0.0, 2.0, 3.0])}, "float64"),
        ({"count": np.array([1.0, np.nan, 1.0])}, r"counts.count\[1\] is nan"),
        ({"count": np.array([1, -2, 1])}, r"counts.count\[1\] is -2"),
        ({"count": np.array([1, 2])}, "counts.indptr"),
        ({"initial_count": np.array([1])}, r"initial_count must have shape \(2,\)"),
        ({"reward_mean": np.array([1.0])}, r"reward_mean must have shape \(3,\)"),
    ],
)
def test_counts_made_of_arrays_are_checked(change, message):
    good = lg.Counts(2, None, np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([1, 2, 1]))
    assert good.total == 4
    with pytest.raises(ValueError, match=message):
        replace(good, **change)


@pytest.mark.parametrize("change", [{"indices": np.array([1, FAR, 0])}, {"indptr": np.array([0, 7, 3])}])
def test_loaded_files_are_checked(tmp_path, change):
    from lingendice.data.saving import counts_arrays, read_archive, write_archive

    counts = lg.Counts(2, None, np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([1, 2, 1]))
    path = tmp_path / "counts.npz"
    counts.save(path)
    arrays, record = read_archive(path, "counts")
    assert sorted(arrays) == sorted(counts_arrays(counts))
    write_archive(path, {**arrays, **change}, {k: v for k, v in record.items() if k != "format"})
    with pytest.raises(ValueError, match=r"counts\.ind"):
        lg.Counts.load(path)


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_matrix_files_are_checked(tmp_path, form):
    from lingendice.io.array_files import read_matrix_file

    matrix = random_matrix().asformat(form)
    path = tmp_path / "matrix.npz"
    sparse.save_npz(path, matrix)
    assert lg.Counts.from_matrix(read_matrix_file(path)) == lg.Counts.from_matrix(random_matrix())
    matrix.indices[3] = FAR
    sparse.save_npz(path, matrix)
    with pytest.raises(ValueError, match=r"matrix\.npz.*indices\[3\]"):
        read_matrix_file(path)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=6))
def test_the_first_unsorted_row_is_found(rows):
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([column for row in rows for column in row], np.int32)
    wrong = [k for k, row in enumerate(rows) if row != sorted(set(row))]
    assert unsorted_row(indptr, indices) == (wrong[0] if wrong else -1)
