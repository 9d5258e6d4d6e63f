"""Counts: from any log or matrix, exactly, and with distributions of merging."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import lingendice as lg

SPARSE_KINDS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")


def as_counter(counts):
    matrix = counts.matrix.tocoo()
    return Counter({(int(i), int(j)): int(v) for i, j, v in zip(*matrix.coords, matrix.data, strict=True)})


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_any_integer_dtype_counts_the_same(dtype):
    state = np.array([0, 1, 2, 1, 0, 1], dtype=dtype)
    following = np.array([1, 2, 1, 0, 1, 2], dtype=dtype)
    counts = lg.Counts.from_transitions(state, following)
    assert as_counter(counts) == Counter(zip(state.tolist(), following.tolist(), strict=True))
    assert counts.n_states == 3
    assert counts.total == 6


def test_reward_statistics_per_pair_match_numpy():
    rng = np.random.default_rng(0)
    state, following = rng.integers(4, size=(2, 500))
    action = rng.integers(3, size=500)
    reward = rng.normal(size=500) + 1e6  # a large offset breaks sums of squares
    counts = lg.Counts.from_transitions(state, following, action, reward, n_states=4, n_actions=3)
    groups = defaultdict(list)
    for s, a, t, r in zip(state, action, following, reward, strict=True):
        groups[s * 3 + a, t].append(r)
    for cell in range(12):
        for entry in range(counts.indptr[cell], counts.indptr[cell + 1]):
            rewards = np.array(groups[cell, counts.indices[entry]])
            assert counts.count[entry] == counts.reward_count[entry] == rewards.size
            assert counts.reward_mean[entry] == pytest.approx(rewards.mean(), rel=1e-14)
            assert counts.reward_m2[entry] == pytest.approx(rewards.var() * rewards.size, rel=1e-6, abs=1e-9)
    first = np.array([r for (cell, _), rs in groups.items() if cell == 0 for r in rs])
    assert counts.reward[0] == pytest.approx(first.mean(), rel=1e-14)


def test_labels_of_every_kind_are_mapped_and_kept():
    strings = lg.Counts.from_transitions(["b", "a", "b"], ["a", "b", "c"])
    assert strings.state_labels == ("a", "b", "c")
    tuples = lg.Counts.from_transitions([(1, 2), (3, 4)], [(3, 4), (1, 2)], action=["go", "stop"])
    assert tuples.state_labels == ((1, 2), (3, 4))
    assert tuples.action_labels == ("go", "stop")
    frame = pd.DataFrame(
        {"s": pd.Categorical(["x", "y"], ["y", "x", "z"]), "t": pd.Categorical(["y", "x"], ["y", "x", "z"])}
    )
    categories = lg.Counts.from_transitions(frame["s"], frame["t"])
    assert categories.state_labels == ("y", "x", "z")
    assert as_counter(categories) == Counter({(1, 0): 1, (0, 1): 1})


def test_ragged_episodes_give_first_states():
    counts = lg.Counts.from_transitions([0, 1, 2, 0, 2], [1, 2, 0, 1, 2], episode=["a", "a", "a", "b", "c"])
    assert counts.initial_count.tolist() == [2, 0, 1]


def test_interleaved_episodes_begin_once():
    counts = lg.Counts.from_transitions([0, 2, 1, 1], [1, 1, 0, 0], episode=[7, 8, 7, 8], keep_episodes=True)
    assert counts.initial_count.tolist() == [1, 0, 1]
    assert counts.episodes.episode.tolist() == [0, 1, 0, 1]
    assert counts.episodes.first_state.tolist() == [0, 2]


def test_terminal_ends_and_truncated_goes_on():
    counts = lg.Counts.from_transitions(
        [0, 1, 0, 1], [1, 2, 1, 2], terminal=[False, True, False, False], truncated=[0, 0, 0, 1]
    )
    assert counts.terminal_count.tolist() == [0, 1, 0]
    assert as_counter(counts) == Counter({(0, 1): 2, (1, 2): 1})
    assert counts.initial_count.tolist() == [2, 0, 0]
    assert counts.cell_count.tolist() == [2, 2, 0]


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
def test_episodes_point_at_their_pairs():
    rng = np.random.default_rng(1)
    state, following, action = rng.integers(5, size=(3, 60))
    counts = lg.Counts.from_transitions(
        state, following, action, reward=np.ones(60), episode=np.repeat(np.arange(6), 10), keep_episodes=True
    )
    rebuilt = np.bincount(counts.episodes.entry, minlength=counts.count.size)
    assert rebuilt.tolist() == counts.count.tolist()
    cells = np.repeat(np.arange(counts.n_cells), np.diff(counts.indptr))[counts.episodes.entry]
    assert cells.tolist() == (state * counts.n_actions + action).tolist()
    assert counts.indices[counts.episodes.entry].tolist() == following.tolist()


def test_weights_are_frequencies():
    weighted = lg.Counts.from_transitions([0, 1, 1], [1, 0, 1], reward=[1.0, 2.0, 5.0], weight=[3, 1, 0])
    repeated = lg.Counts.from_transitions([0, 0, 0, 1], [1, 1, 1, 0], reward=[1.0, 1.0, 1.0, 2.0])
    assert as_counter(weighted) == as_counter(repeated)
    assert weighted == repeated


def test_counts_beyond_int32_are_exact():
    big = 3_000_000_000
    counts = lg.Counts.from_transitions([0, 0, 1], [1, 1, 0], weight=[big, big, 1])
    assert counts.total == 2 * big + 1
    assert counts.count.dtype == np.int64


@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_every_sparse_form_reads_the_same(kind):
    dense = np.array([[0, 2, 1], [4, 0, 0], [0, 3, 5]])
    expected = lg.Counts.from_matrix(dense)
    for made in (sparse.coo_array(dense).asformat(kind), sparse.coo_matrix(dense).asformat(kind)):
        assert lg.Counts.from_matrix(made) == expected
    assert lg.Counts.from_matrix(dense.tolist()) == expected


def test_sparse_duplicates_are_summed_and_zeros_dropped():
    made = sparse.coo_array(([1, 2, 0, 3], ([0, 0, 1, 1], [1, 1, 1, 0])), shape=(2, 2))
    before = made.data.copy()
    counts = lg.Counts.from_matrix(made)
    assert as_counter(counts) == Counter({(0, 1): 3, (1, 0): 3})
    assert made.data.tolist() == before.tolist()


def test_largest_exact_counts():
    top = 2**53
    assert lg.Counts.from_matrix([[0, top], [1, 0]]).count.max() == top
    assert lg.Counts.from_matrix([[0.0, float(top)], [1.0, 0.0]]).count.max() == top
    with pytest.raises(ValueError, match=r"counts\[0, 1\].*2\*\*53"):
        lg.Counts.from_matrix([[0, top + 1], [1, 0]])


def test_row_stochastic_floats_carry_no_sample_size():
    assert not lg.Counts.from_matrix([[0.5, 0.5], [1.0, 0.0]]).has_sample_size
    assert lg.Counts.from_matrix([[5, 5], [1, 0]]).has_sample_size
    assert lg.Counts.from_matrix([[0.5, 1.5], [1.0, 0.0]]).has_sample_size


def test_probabilities_in_single_precision_are_probabilities():
    matrix = np.random.default_rng(0).dirichlet(np.ones(50), size=50).astype(np.float32)
    assert np.abs(matrix.astype(float).sum(axis=1) - 1).max() > 1e-8
    for data in (matrix, sparse.csr_array(matrix)):
        assert not lg.Counts.from_matrix(data).has_sample_size
    assert lg.solve(matrix).method == "gth"


@pytest.mark.parametrize("wrap", [list, np.array, sparse.csr_array])
@pytest.mark.parametrize(
    ("rows", "row", "total"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], 0, "1.1"),
        ([[0.5, 0.5], [0.5, 0.4]], 1, "0.9"),
        ([[0.333, 0.333, 0.333], [0.5, 0.25, 0.25], [0.167, 0.667, 0.167]], 2, "1.001"),
        ([[0.0, 0.0], [0.5, 0.49]], 1, "0.99"),
    ],
)
def test_rows_that_nearly_sum_to_one_are_named(wrap, rows, row, total):
    with pytest.warns(lg.RowSumWarning, match=rf"row {row} sums to {total}, not 1") as caught:
        counts = lg.Counts.from_matrix(wrap(rows))
    assert caught[0].filename == __file__
    assert not counts.has_sample_size
    with pytest.warns(lg.RowSumWarning, match=f"row {row} sums to {total}"):
        solution = lg.solve(wrap(rows), 0.9)
    normalized = np.array(rows) / np.maximum(np.sum(rows, axis=1, keepdims=True), 1e-300)
    exact = lg.solve(normalized, 0.9)
    np.testing.assert_allclose(solution.stationary, exact.stationary, rtol=1e-12)


@pytest.mark.parametrize("wrap", [list, np.array, sparse.csr_array])
@pytest.mark.parametrize("low", [0.1, 0.4])
def test_columns_that_sum_to_one_are_noticed(wrap, low):
    """Rows sums of 1.7 and 0.3, beyond those of a mistyped entry, or of 1.4 and 0.6."""
    columns = [[1.0 - low, 0.8], [low, 0.2]]
    total = 1.8 - low
    with pytest.warns(
        lg.RowSumWarning, match=rf"every column sums to 1, but row 0 sums to {total:.6g};.*\.T"
    ):
        lg.solve(wrap(columns))


@pytest.mark.parametrize(
    "rows",
    [
        [[0.5, 1.5], [1.0, 0.0]],
        [[2.0, 3.0], [1.0, 1.0]],
        [[0.1, 0.2], [0.3, 0.4]],
        [[1, 0], [1, 1]],
        [[0.0, 0.0], [1.0, 1.0]],
    ],
)
def test_weights_are_not_taken_for_probabilities(rows):
    assert lg.Counts.from_matrix(rows).has_sample_size  # a warning would be an error


@pytest.mark.parametrize("make", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_graphs_agree_with_networkx(make):
    graph = make()
    graph.add_nodes_from("dcba")
    graph.add_weighted_edges_from([("a", "b", 2.5), ("b", "c", 1.0), ("c", "c", 4.0), ("a", "b", 0.5)])
    counts = lg.Counts.from_matrix(graph)
    assert counts.state_labels == tuple("dcba")
    assert np.allclose(counts.matrix.toarray(), nx.to_numpy_array(graph, weight="weight"))
    plain = lg.Counts.from_matrix(graph, weight=None)
    assert np.allclose(plain.matrix.toarray(), nx.to_numpy_array(graph, weight=None))


def test_inputs_stay_untouched_and_counts_are_frozen():
    state, following, reward = np.array([0, 1, 0]), np.array([1, 0, 0]), np.array([1.0, 2.0, 3.0])
    copies = state.copy(), following.copy(), reward.copy()
    counts = lg.Counts.from_transitions(state, following, reward=reward)
    assert all(np.array_equal(a, b) for a, b in zip((state, following, reward), copies, strict=True))
    assert state.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        counts.count[0] = 7
    with pytest.raises(AttributeError):
        counts.n_states = 3
    matrix = sparse.csr_array(np.array([[1, 2], [3, 0]]))
    shared = lg.Counts.from_matrix(matrix)
    matrix.data[0] = 99
    assert shared.count[0] == 1


def test_counts_pickle_and_show_themselves():
    counts = lg.Counts.from_transitions([0, 1], [1, 0], action=[0, 1], episode=[0, 0])
    assert pickle.loads(pickle.dumps(counts)) == counts
    assert repr(counts) == "Counts(2 states x 2 actions, 2 transitions, 2 distinct, 1 episodes)"
    weighted = lg.Counts.from_transitions([0], [1], weight=[3.0], episode=[0])
    assert repr(weighted) == "Counts(2 states, 3 transitions, 1 distinct, 3 episodes)"


# -- merging --------------------------------------------------------------------------------------

logs = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 4), st.integers(-5, 5)), max_size=12
)


def build(rows, labeled):
    state, action, following, reward = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    )
    if not rows:
        return lg.Counts.empty()
    if labeled:
        state, following = [f"s{i}" for i in state], [f"s{i}" for i in following]
        action = [f"a{i}" for i in action]
    return lg.Counts.from_transitions(
        state, following, action, np.array(reward, float), episode=[0] * len(state)
    )


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
@settings(max_examples=60, deadline=None)
@given(logs, logs, logs, st.booleans())
def test_merge_is_associative_with_an_identity(first, second, third, labeled):
    a, b, c = (build(rows, labeled) for rows in (first, second, third))
    left, right = (a + b) + c, a + (b + c)
    assert left.state_labels == right.state_labels
    assert left.count.tolist() == right.count.tolist()
    assert left.indices.tolist() == right.indices.tolist()
    assert left.indptr.tolist() == right.indptr.tolist()
    if left.reward_mean is not None:
        assert np.allclose(left.reward_mean, right.reward_mean, rtol=1e-12, atol=1e-12)
        assert np.allclose(left.reward_m2, right.reward_m2, rtol=1e-10, atol=1e-10)
    assert a + lg.Counts.empty() == a
    assert lg.Counts.empty() + a == a


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
@settings(max_examples=60, deadline=None)
@given(logs.filter(bool), logs.filter(bool))
def test_merge_is_the_concatenated_log(first, second):
    whole = build(first + second, labeled=False)
    parts = build(first, labeled=False) + build(second, labeled=False)
    assert as_counter(parts) == as_counter(whole)
    assert parts.n_states == whole.n_states
    assert np.allclose(parts.reward_m2, whole.reward_m2, atol=1e-10)
    assert np.allclose(parts.reward_mean, whole.reward_mean, atol=1e-12)


def test_merge_keeps_terminals_and_episodes_apart():
    a = lg.Counts.from_transitions([0, 1], [1, 0], terminal=[0, 1], episode=[0, 0], keep_episodes=True)
    b = lg.Counts.from_transitions([2, 0], [0, 1], terminal=[0, 1], episode=[0, 0], keep_episodes=True)
    merged = a + b
    assert merged.n_states == 3
    assert merged.terminal_count.tolist() == [1, 1, 0]
    assert merged.episodes.episode.tolist() == [0, 0, 1, 1]
    assert np.bincount(merged.episodes.entry).tolist() == merged.count.tolist()


def test_merge_refuses_to_mix_chains_and_mdps():
    chain = lg.Counts.from_transitions([0], [1])
    mdp = lg.Counts.from_transitions([0], [1], action=[0])
    with pytest.raises(ValueError, match="one log has actions"):
        chain + mdp
    with pytest.raises(ValueError, match="label both or neither"):
        chain + lg.Counts.from_transitions(["a"], ["b"])


def test_arguments_in_the_order_of_a_replay_buffer_are_noticed():
    """(s, a, r, s') with whole rewards was counted in silence, actions as next states."""
    rng = np.random.default_rng(0)
    action = rng.integers(2, size=400)
    path = np.concatenate([[0], np.cumsum(1 + action) % 7])
    reward = (path[:-1] == 3).astype(int)
    with pytest.warns(lg.RowOrderWarning, match="order of arguments is state, next_state, action, reward"):
        lg.Counts.from_transitions(path[:-1], action, reward, path[1:])
    lg.Counts.from_transitions(path[:-1], path[1:], action, reward)  # a warning would be an error
    lg.Counts.from_transitions(path[:-1], path[1:], action, path[1:])  # rewards that are next states


def test_counts_grow_in_states_alone_and_say_what_cannot_shrink():
    counts = lg.Counts.from_transitions([0, 1, 0], [1, 0, 1], action=[0, 1, 0])
    larger = counts.with_states(3)
    assert (larger.n_states, larger.n_actions, larger.total) == (3, 2, 3)
    with pytest.raises(ValueError, match="n_actions=1 but the data are over 2 actions"):
        counts.with_states(2, 1)
    with pytest.raises(ValueError, match="n_states=1 but the data are over 2 states"):
        counts.with_states(1)
    with pytest.raises(ValueError, match="n_actions=2 but the data hold no actions"):
        lg.Counts.from_transitions([0, 1], [1, 0]).with_states(2, 2)


def test_states_beyond_the_labels_of_a_log_are_called_by_their_numbers():
    counts = lg.Counts.from_transitions(["a", "b"], ["b", "a"], action=["x", "y"], n_states=3, n_actions=3)
    assert [counts.label_of(state) for state in range(3)] == ["a", "b", 2]
    assert counts.label_of_action(2) == 2
    policy = {"a": "x", "b": "y"}
    solution = lg.solve(counts, 0.5, policy=lambda state: policy.get(state, "x"), initial="a")
    assert list(solution.to_frame()["state"]) == ["a", "a", "a", "b", "b", "b", 2, 2, 2]
    assert solution.stationary == pytest.approx(lg.solve(counts, 0.5, policy=policy, initial="a").stationary)
    audit = lg.audit(counts, policy=np.full((3, 3), 1 / 3), initial=[0.0, 0.0, 1.0])
    assert audit.cell_name(5) == "b, 2"
    assert audit.cell_name(8) == "2, 2"
    ranks = lg.pagerank(lg.Counts.from_transitions(["a", "b"], ["b", "a"], n_states=3))
    assert list(ranks) == ["a", "b", 2]


def test_a_space_without_transitions_takes_nothing_from_a_log():
    log = lg.Counts.from_transitions([0, 1, 0], [1, 0, 1], reward=[1.0, 2.0, 3.0], episode=[0, 0, 1])
    for merged in (lg.Counts.empty(4) + log, log + lg.Counts.empty(4)):
        assert merged == log.with_states(4)
        assert merged.episodes.episode.tolist() == [0, 0, 1]


def test_ids_that_can_hardly_be_numbers_of_states_are_refused():
    """Two rows with an id of a billion were counted over a billion states."""
    with pytest.raises(ValueError, match=r"reach 1000000000 in a log of 2 rows.*n_states=1000000001"):
        lg.Counts.from_transitions([10**9, 5], [5, 10**9])
    with pytest.raises(ValueError, match="action ids reach 20000000"):
        lg.Counts.from_transitions([0, 1], [1, 0], action=[20_000_000, 0])
    assert lg.Counts.from_transitions([10_999_999], [5], n_states=11_000_000).n_states == 11_000_000
    assert lg.Counts.from_transitions(["1000000000", "5"], ["5", "1000000000"]).n_states == 2
