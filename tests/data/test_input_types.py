"""Numbers of any type and layout are read as the numbers they are, or refused by name."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import lingendice as lg

# Random rows: their order is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")

INTEGERS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]
LAYOUTS = ["plain", "strided", "reversed", "column", "swapped", "read-only", "unaligned"]
LARGEST_ID = 40_000
"""Ids at the limit of 8- and 16-bit types without tables that make the tests slow."""


def laid_out(values, dtype, layout):
    """The same numbers as an array of another type and layout."""
    array = np.asarray(values).astype(dtype)
    if layout == "strided":
        wide = np.zeros(2 * array.size, dtype)
        wide[::2] = array
        return wide[::2]
    if layout == "reversed":
        return array[::-1].copy()[::-1]
    if layout == "column":
        return np.asfortranarray(np.stack([array, array], axis=0))[1]
    if layout == "swapped":
        return array.astype(array.dtype.newbyteorder())
    if layout == "read-only":
        array.flags.writeable = False
    if layout == "unaligned":
        held = np.zeros(array.nbytes + 1, np.uint8)
        shifted = held[1:].view(dtype)
        shifted[:] = array
        return shifted
    return array


@st.composite
def logs(draw):
    """A log whose ids reach the limit of their type."""
    dtype = draw(st.sampled_from(INTEGERS))
    limit = min(int(np.iinfo(dtype).max), LARGEST_ID)
    n = draw(st.integers(1, 12))
    state_ids = st.sampled_from([0, 1, 2, limit - 1, limit]) | st.integers(0, limit)

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    return {
        "dtype": dtype,
        "layout": draw(st.sampled_from(LAYOUTS)),
        "state": column(state_ids),
        "next_state": column(state_ids),
        "action": column(st.integers(0, 2)),
        "weight": column(st.integers(0, 127)),
        "episode": column(st.integers(0, 3)),
        "terminal": column(st.booleans()),
    }


def count_by_hand(log, n_states, n_actions, weight):
    """{(cell, next state or the end): weight}, one Python integer at a time."""
    pairs = Counter()
    for s, t, a, w, ended in zip(
        log["state"], log["next_state"], log["action"], weight, log["terminal"], strict=True
    ):
        if w:
            pairs[s * n_actions + a, n_states if ended else t] += w
    return dict(pairs)


def held(counts):
    cells = np.repeat(np.arange(counts.n_cells), np.diff(counts.indptr))
    return dict(
        zip(zip(cells.tolist(), counts.indices.tolist(), strict=True), counts.count.tolist(), strict=True)
    )


@settings(max_examples=150, deadline=None)
@given(logs(), st.booleans(), st.booleans())
def test_every_integer_type_counts_as_int64_does(log, weighted, by_episode):
    n_states, n_actions = max(log["state"] + log["next_state"]) + 1, max(log["action"]) + 1
    names = ["state", "next_state", "action"] + ["weight"] * weighted + ["episode"] * by_episode
    read = {name: laid_out(log[name], log["dtype"], log["layout"]) for name in names}
    counts = lg.Counts.from_transitions(**read, terminal=log["terminal"])
    assert (counts.n_states, counts.n_actions) == (n_states, n_actions)
    weight = log["weight"] if weighted else [1] * len(log["state"])
    assert held(counts) == count_by_hand(log, n_states, n_actions, weight)
    assert counts == lg.Counts.from_transitions(
        **{name: np.array(log[name], np.int64) for name in names}, terminal=log["terminal"]
    )


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_terminal_flags_survive_at_the_limit_of_the_type(dtype, layout):
    limit = int(np.iinfo(dtype).max)
    state, following, ended = [limit, 0, limit], [0, limit, limit], [False, True, False]
    counts = lg.Counts.from_transitions(
        laid_out(state, dtype, layout), laid_out(following, dtype, layout), terminal=ended
    )
    assert held(counts) == {(limit, 0): 1, (0, limit + 1): 1, (limit, limit): 1}
    assert counts.terminal_count.sum() == 1


@pytest.mark.parametrize("name", ["state", "next_state", "action"])
def test_ids_beyond_the_signed_integers_are_refused(name):
    log = {key: np.array([0, 1], np.uint64) for key in ("state", "next_state", "action")}
    assert lg.Counts.from_transitions(**log).total == 2
    log[name] = np.array([0, 2**63], np.uint64)
    with pytest.raises(ValueError, match="pass them as labels"):
        lg.Counts.from_transitions(**log)
    given = {"state": log["state"], "next_state": log["next_state"], "action": log["action"]}
    with pytest.raises(ValueError, match=rf"{name}\[1\] is 9223372036854775808"):
        lg.Transitions(**given)


def test_episodes_may_have_any_64_bit_number():
    ids = np.array([2**64 - 1, 2**64 - 1, 2**63, 2**63], np.uint64)
    counts = lg.Counts.from_transitions([0, 1, 2, 1], [1, 2, 1, 0], episode=ids)
    assert counts.initial_count.tolist() == [1, 0, 1]
    moved = lg.Transitions([0, 1, 2, 1], None, None, [1, 2, 1, 0], episode=ids)
    assert moved.n_episodes == 2


def test_weights_of_first_states_are_exact_beyond_2_to_the_53():
    weight = np.array([2**53 + 1, 1], np.uint64)
    counts = lg.Counts.from_transitions([0, 1], [1, 0], episode=[0, 1], weight=weight)
    assert counts.initial_count.tolist() == [2**53 + 1, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(INTEGERS), st.sampled_from(LAYOUTS), st.integers(0, 2**32), st.sampled_from([1.0, 0.9])
)
def test_matrices_of_every_integer_type_are_solved_as_int64(dtype, layout, seed, gamma):
    rng = np.random.default_rng(seed)
    values = rng.integers(1, min(np.iinfo(dtype).max, 10**9), 9, endpoint=True)
    square = laid_out(values, dtype, layout).reshape(3, 3)
    expected = lg.solve(values.reshape(3, 3), gamma)
    for form in (
        square,
        [*square[:2].tolist(), square[2]],
        np.asfortranarray(square),
        sparse.csr_array(values.astype(dtype).reshape(3, 3)),
    ):
        found = lg.solve(form, gamma)
        np.testing.assert_allclose(found.stationary, expected.stationary, rtol=1e-13)
        assert found.operator.counts == expected.operator.counts


@settings(max_examples=60, deadline=None)
@given(logs())
def test_streams_and_transitions_read_every_integer_type(log):
    small = {name: [k % 5 for k in log[name]] for name in ("state", "next_state")}
    columns = {name: laid_out(values, log["dtype"], log["layout"]) for name, values in small.items()}
    online = lg.OnlineRatio(5)
    online.update(**columns)
    pairs = Counter(zip(small["state"], small["next_state"], strict=True))
    assert held(online.snapshot()) == dict(pairs)
    action = laid_out(log["action"], log["dtype"], log["layout"])
    moved = lg.Transitions(columns["state"], action, None, columns["next_state"])
    assert moved.state.dtype == moved.action.dtype == np.int64
    assert (moved.state.tolist(), moved.action.tolist()) == (small["state"], log["action"])


# -- sparse matrices ---------------------------------------------------------------------------------------


def with_duplicates(kind, dtype, value):
    """A 2 x 2 matrix that holds [0, 1] twice (where the format can) and [1, 0] once."""
    array = kind.endswith("array")
    data = np.array([value, value, 1], dtype)
    rows, columns = [0, 0, 1], [1, 1, 0]
    name, pair = kind.split("_")[0], (data, (rows, columns))
    coo = (sparse.coo_array if array else sparse.coo_matrix)(pair, shape=(2, 2))
    if name == "coo":
        return coo
    if name == "csr":
        return getattr(sparse, kind)((data, np.array(columns), np.array([0, 2, 3])), shape=(2, 2))
    if name == "csc":
        order = [2, 0, 1]
        return getattr(sparse, kind)((data[order], np.array(rows)[order], np.array([0, 1, 3])), shape=(2, 2))
    if name == "bsr":
        blocks = data.reshape(3, 1, 1)
        return getattr(sparse, kind)((blocks, np.array(columns), np.array([0, 2, 3])), shape=(2, 2))
    return None


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr"])
@pytest.mark.parametrize("family", ["array", "matrix"])
@pytest.mark.parametrize(
    ("dtype", "value"), [("u1", 200), ("i1", 100), ("u2", 60_000), ("i4", 2**31 - 1), ("?", 1), ("f4", 2**24)]
)
def test_duplicates_are_widened_before_they_are_summed(form, family, dtype, value):
    matrix = with_duplicates(f"{form}_{family}", dtype, value)
    before = matrix.data.copy()
    counts = lg.Counts.from_matrix(matrix)
    assert held(counts) == {(0, 1): 2 * value, (1, 0): 1}
    assert counts.count.dtype == (np.float64 if dtype == "f4" else np.int64)
    np.testing.assert_array_equal(matrix.data, before)
    assert lg.solve(matrix).operator.counts == counts


@pytest.mark.parametrize("form", ["dok", "lil", "dia"])
@pytest.mark.parametrize("family", ["array", "matrix"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "?", "f8"])
def test_formats_without_duplicates_are_read(form, family, dtype):
    matrix = getattr(sparse, f"{form}_{family}")(np.array([[0, 1], [1, 0]], dtype))
    assert held(lg.Counts.from_matrix(matrix)) == {(0, 1): 1, (1, 0): 1}


def test_flags_are_added_as_numbers_in_sparse_policies_and_features():
    counts = lg.Counts.from_transitions([0, 0, 1, 1], [1, 0, 0, 1], action=[0, 1, 0, 1])
    policy = sparse.coo_array((np.ones(4, bool), ([0, 0, 1, 1], [0, 0, 1, 1])), shape=(2, 2))
    with pytest.raises(ValueError, match=r"policy\[0\] sums to 2"):
        lg.solve(counts, 0.9, policy=policy, initial=[1, 0])
    features = sparse.coo_array((np.full(4, 200, np.uint8), ([0, 0, 1, 1], [0, 0, 1, 1])), shape=(2, 2))
    before = sparse.csr_array((np.ones(3), np.array([1, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    chain = np.array([[1, 2], [2, 1]])
    assert lg.solve(chain, 0.9, features=features).status.name == "SOLVED"
    given = before.indices.copy()
    lg.solve(chain, 0.9, features=before)
    np.testing.assert_array_equal(before.indices, given)


# -- masks and missing entries -----------------------------------------------------------------------------

LOG = {"state": [0, 1, 0, 1], "next_state": [1, 0, 0, 1], "action": [0, 1, 1, 0]}
MASK = [False, False, True, False]


def masked(values):
    return np.ma.masked_array(values, MASK)


@pytest.mark.parametrize(
    "name",
    ["state", "next_state", "action", "reward", "weight", "episode", "terminal", "truncated"],
)
def test_masked_columns_are_refused_by_name(name):
    given = {**LOG, name: masked([0, 1, 0, 1])}
    with pytest.raises(ValueError, match=rf"{name}\[2\] is missing"):
        lg.Counts.from_transitions(**given)
    bare = {**given, name: np.ma.masked_array([0, 1, 0, 1])}
    assert lg.Counts.from_transitions(**bare) == lg.Counts.from_transitions(**{**LOG, name: [0, 1, 0, 1]})
    if name != "weight":
        with pytest.raises(ValueError, match=rf"{name}\[2\] is missing"):
            lg.Transitions(**given)


@pytest.mark.parametrize("form", ["array", "rows"])
def test_masked_matrices_are_refused_by_name(form):
    matrix = np.ma.masked_array(np.ones((3, 3)), np.eye(3)[::-1])
    with pytest.raises(ValueError, match=r"counts\[0, 2\] is missing"):
        lg.solve(matrix if form == "array" else list(matrix))


@pytest.mark.parametrize("name", ["initial", "restart", "reward", "features", "policy", "behavior"])
def test_masked_arguments_are_refused_by_name(name):
    counts = lg.Counts.from_transitions(**LOG)
    plain = {"initial": [0.5, 0.5], "policy": np.full((2, 2), 0.5)}
    if name == "restart":
        counts = counts.with_states(3, 2)
        plain = {"initial": [0.5, 0.5, 0], "policy": np.full((3, 2), 0.5), "leak": "restart"}
    if name == "behavior":
        plain["ratio"] = "state"
    shapes = {"initial": (2,), "restart": (3,), "reward": (2,), "features": (4, 1)}
    values = np.full(shapes.get(name, (2, 2)), 0.5)
    mask = np.zeros(values.shape, bool)
    mask[1] = True
    with pytest.raises(ValueError, match=rf"{name}\[1(, 0)?\] is missing"):
        lg.solve(counts, 0.9, **{**plain, name: np.ma.masked_array(values, mask)})


def test_masked_values_of_streams_and_policies_are_refused():
    online = lg.OnlineRatio(2)
    for name, column in {"state": masked([0, 1, 0, 1]), "reward": masked([0.0, 1.0, 0.0, 1.0])}.items():
        with pytest.raises(ValueError, match=rf"{name}\[2\] is missing"):
            online.update(**{"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 0], name: column})
    from lingendice.data.policies import CallablePolicy, GaussianPolicy, SampledPolicy, TablePolicy

    hidden = np.ma.masked_array([[0.5, 0.5]], [[False, True]])
    states, rng = np.zeros((1, 2)), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"policy\(states\)\[0, 1\] is missing"):
        CallablePolicy(lambda _: hidden, 2).probabilities(states)
    with pytest.raises(ValueError, match=r"policy\(states, rng\)\[0, 1\] is missing"):
        SampledPolicy(lambda states, rng: hidden).sample(states, rng)
    with pytest.raises(ValueError, match=r"mean\(states\)\[0, 1\] is missing"):
        GaussianPolicy(lambda _: hidden, 0.1).sample(states, rng)
    with pytest.raises(ValueError, match=r"std\[1\] is missing"):
        GaussianPolicy(lambda _: np.zeros((1, 2)), hidden[0]).sample(states, rng)
    with pytest.raises(ValueError, match=r"low\[0\] is 1.0 and high\[0\] is -1.0"):
        GaussianPolicy(lambda _: np.zeros((1, 2)), 0.1, low=1.0, high=-1.0).sample(states, rng)
    with pytest.raises(ValueError, match=r"table\[0, 1\] is missing"):
        TablePolicy(hidden)


NULLABLE = {
    "state": "Int64",
    "action": "UInt8",
    "reward": "Float64",
    "terminal": "boolean",
    "weight": "Int32",
}


@pytest.mark.parametrize("name", NULLABLE)
def test_nullable_columns_are_read_or_refused(name):
    pd = pytest.importorskip("pandas")
    values = [True, False, True, True] if name == "terminal" else [0, 1, 0, 1]
    full = pd.Series(values, dtype=NULLABLE[name])
    assert lg.Counts.from_transitions(**{**LOG, name: full}) == lg.Counts.from_transitions(
        **{**LOG, name: values}
    )
    gap = full.copy()
    gap[2] = pd.NA
    with pytest.raises(ValueError, match=rf"{name}\[2\] is missing"):
        lg.Counts.from_transitions(**{**LOG, name: gap})


def test_missing_labels_are_refused():
    pd = pytest.importorskip("pandas")
    for missing in (None, float("nan"), pd.NA, pd.NaT):
        labels = np.array(["a", missing, "b"], dtype=object)
        with pytest.raises(ValueError, match=r"state\[1\] is .*missing"):
            lg.Counts.from_transitions(labels, ["a", "b", "a"])
    with pytest.raises(ValueError, match=r"state\[1\] is missing"):
        lg.Counts.from_transitions(pd.Series(["a", None, "b"], dtype="string"), ["a", "b", "a"])


def test_matrix_objects_and_records():
    square = [[1, 2], [3, 4]]
    expected = lg.solve(square).stationary
    # np.matrix warns when it is made, and is what older code still passes.
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(square)
    np.testing.assert_array_equal(lg.solve(matrix).stationary, expected)
    with pytest.raises(ValueError, match="counts has dtype"):
        lg.solve(np.zeros((2, 2), dtype=[("n", float)]))
    with pytest.raises(ValueError, match=r"reward\[1\] is None"):
        lg.solve(square, reward=np.array([1.0, None], dtype=object))


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble, ">f8", ">f4"])
def test_floats_of_any_width_and_order(dtype):
    square = np.array([[1, 2], [3, 4]], dtype)
    np.testing.assert_allclose(lg.solve(square).stationary, lg.solve([[1, 2], [3, 4]]).stationary, rtol=1e-15)
    rewarded = lg.solve(square.astype(float), reward=np.array([1, 2], dtype))
    assert rewarded.value == lg.solve([[1, 2], [3, 4]], reward=[1, 2]).value


def test_labels_that_print_alike_stay_apart():
    counts = lg.Counts.from_transitions([1, "1"], ["1", 1])
    assert counts.state_labels == (1, "1")
    counts = lg.Counts.from_transitions(np.array([b"a"]), np.array(["a"]))
    assert counts.n_states == 2
    assert counts.matrix.toarray().tolist() == [[0, 1], [0, 0]]


def test_masked_batches_of_a_log_are_refused():
    log = {"state": masked([0, 1, 0, 1]), "next_state": np.array([1, 0, 1, 0])}
    with pytest.raises(ValueError, match="column 'state' is null"):
        lg.read_transitions(log)
    rewarded = {**log, "state": np.array([0, 1, 0, 1]), "reward": np.array([0, 1e308, 0, 0])}
    with pytest.raises(ValueError, match=r"column 'reward' is 1e\+308"):
        lg.read_transitions(rewarded)


def test_duplicates_that_wrap_are_refused():
    places = ([0, 0, 0, 0, 1], [1, 1, 1, 1, 0])
    wrapping = sparse.coo_array((np.array([2**62] * 4 + [1]), places), shape=(2, 2))  # 2**64 is 0 in 64 bits
    for form in ("coo", "csr", "csc"):
        with pytest.raises(ValueError, match="sums beyond 64 bits; scale the weights down"):
            lg.Counts.from_matrix(wrapping if form == "coo" else _apart(wrapping, form))


def _apart(matrix, form):
    """Compressed rows or columns with the duplicates still apart."""
    if form == "csr":
        return sparse.csr_array((matrix.data, matrix.coords[1], [0, 4, 5]), shape=(2, 2))
    return sparse.csc_array((matrix.data[::-1], matrix.coords[0][::-1], [0, 1, 5]), shape=(2, 2))
