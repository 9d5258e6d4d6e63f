"""Policies and distributions by label give what the same arrays give, bit by bit."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

import lingendice as lg
from lingendice.data.by_label import holds_several, read_distribution, read_policy_table

STATES = ("broken", "new", "worn")
ACTIONS = ("repair", "run", "wait")
TABLE = np.array([[1.0, 0.0, 0.0], [0.0, 0.9, 0.1], [0.7, 0.3, 0.0]])
NAMED = {
    "new": {"run": 0.9, "wait": 0.1},
    "worn": {"repair": 0.7, "run": 0.3},
    "broken": {"repair": 1.0},
}


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(3)
    walk = rng.integers(0, 3, (60, 11))
    state, following = walk[:, :-1].ravel(), walk[:, 1:].ravel()
    action = rng.integers(0, 3, 600)
    return lg.Counts.from_transitions(
        np.array(STATES)[state],
        np.array(STATES)[following],
        action=np.array(ACTIONS)[action],
        reward=rng.normal(size=600) + state - action,
        episode=np.repeat(np.arange(60), 10),
    )


@pytest.fixture(scope="module")
def plain():
    """The same sizes without labels: states and actions are named by their numbers."""
    rng = np.random.default_rng(3)
    state, following, action = rng.integers(0, 3, (3, 600))
    return lg.Counts.from_transitions(state, following, action=action, reward=rng.normal(size=600))


def frames():
    rows = [(state, action, chance) for state, row in NAMED.items() for action, chance in row.items()]
    long = dict(zip(("State", "action", "prob"), map(list, zip(*rows, strict=True)), strict=True))
    wide = {"state": list(STATES), **{a: TABLE[:, k].tolist() for k, a in enumerate(ACTIONS)}}
    return long, wide


def table_kinds():
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    long, wide = frames()
    return {
        "columns": {"state": long["State"], "action": long["action"], "probability": long["prob"]},
        "pandas": pd.DataFrame(long),
        "pandas wide": pd.DataFrame(wide).set_index("state").loc[["worn", "broken", "new"]],
        "polars": pl.DataFrame(long),
        "polars lazy": pl.DataFrame(long).lazy(),
        "polars wide": pl.DataFrame(wide).reverse(),
        "arrow": pa.table(long),
    }


def test_every_form_is_the_same_table(counts):
    for policy in (NAMED, lambda state: NAMED[state], lambda state: list(TABLE[STATES.index(state)])):
        np.testing.assert_array_equal(read_policy_table("policy", policy, counts), TABLE)
    for kind, frame in table_kinds().items():
        np.testing.assert_array_equal(read_policy_table("policy", frame, counts), TABLE, err_msg=kind)
        assert not holds_several(frame, counts)


def test_one_action_per_state(counts):
    expected = np.eye(3)[[0, 1, 0]]
    named = {"broken": "repair", "new": "run", "worn": "repair"}
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"state": list(named), "action": list(named.values())})
    for policy in (named, named.get, frame, list(named.values()), np.array(list(named.values()))):
        np.testing.assert_array_equal(read_policy_table("policy", policy, counts), expected)
        assert lg.solve(counts, 0.9, policy=policy).value == lg.solve(counts, 0.9, policy=[0, 1, 0]).value


@pytest.mark.parametrize("kind", [str, object])
def test_actions_by_label_come_as_arrays_too(counts, kind):
    """They were refused for their dtype."""
    names = ["repair", "run", "repair"]
    found = lg.solve(counts, policy=np.array(names, dtype=kind), ridge=0, clone=0)
    np.testing.assert_array_equal(
        found.stationary, lg.solve(counts, policy=names, ridge=0, clone=0).stationary
    )


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_solve_gives_the_same_bits(counts, gamma):
    by_array = lg.solve(counts, gamma, policy=TABLE, initial=[0.0, 1.0, 0.0])
    by_label = lg.solve(counts, gamma, policy=NAMED, initial={"new": 1})
    np.testing.assert_array_equal(by_label.stationary, by_array.stationary)
    assert by_label.value == by_array.value
    assert by_label.interval().high == by_array.interval().high
    known = lg.solve(counts, gamma, policy=TABLE, behavior=np.full((3, 3), 1 / 3), ratio="state")
    row = dict.fromkeys(ACTIONS, 1 / 3)
    named = lg.solve(counts, gamma, policy=NAMED, behavior=dict.fromkeys(STATES, row), ratio="state")
    assert named.value == known.value


def test_doors_beside_solve_read_labels_too(counts):
    assert lg.audit(counts, 0.9, policy=NAMED).coverage == lg.audit(counts, 0.9, policy=TABLE).coverage
    kept = lg.Counts.from_transitions(
        ["a", "b"] * 50, ["b", "a"] * 50, action=["x", "y"] * 50, reward=[1.0, 2.0] * 50,
        episode=np.repeat(np.arange(10), 10), keep_episodes=True,
    )  # fmt: skip
    named, table = {"a": "x", "b": "y"}, np.eye(2)
    for baseline in (lg.baselines.step_wise, lg.baselines.model_based, lg.baselines.gradient_dice):
        assert baseline(kept, 0.9, policy=named).value == baseline(kept, 0.9, policy=table).value


def test_a_series_goes_by_its_index(counts):
    pd = pytest.importorskip("pandas")
    chosen = {"worn": "repair", "broken": "wait", "new": "run"}
    expected = read_policy_table("policy", chosen, counts)
    by_mapping = lg.solve(counts, policy=chosen, ridge=0).stationary
    number = {action: k for k, action in enumerate(ACTIONS)}
    pairs = pd.MultiIndex.from_tuples(list(chosen.items()))
    in_order = [chosen[state] for state in STATES]
    for policy in (
        pd.Series(chosen),
        pd.Series(chosen).astype("category"),
        pd.Series(1.0, index=pairs),
        pd.Series(in_order),
        np.array(in_order),
        np.array(in_order, dtype=object),
    ):
        np.testing.assert_array_equal(read_policy_table("policy", policy, counts), expected)
        solution = lg.solve(counts, policy=policy, ridge=0)
        np.testing.assert_array_equal(
            solution.stationary, lg.solve(counts, policy=chosen, ridge=0).stationary
        )
    numbered = lg.solve(counts, policy=pd.Series([number[action] for action in in_order]), ridge=0)
    np.testing.assert_array_equal(numbered.stationary, by_mapping)
    with pytest.raises(ValueError, match=r"policy names \('new', 'run'\) twice"):
        lg.solve(counts, policy=pd.Series(1.0, index=pd.MultiIndex.from_tuples([("new", "run")] * 2)))


def test_rewards_and_priors_of_pandas_go_by_their_index(counts):
    pd = pytest.importorskip("pandas")
    rewards = {"worn": 5.0, "new": 1.0, "broken": -2.0}
    expected = lg.solve(counts, reward=rewards).value
    assert lg.solve(counts, reward=pd.Series(rewards)).value == expected
    assert (
        lg.solve(counts, reward=pd.Series([rewards[state] for state in STATES]).repeat(1)).value == expected
    )
    nested = {state: {action: rewards[state] + k for k, action in enumerate(ACTIONS)} for state in rewards}
    expected = lg.solve(counts, reward=nested).value
    frame = pd.DataFrame(nested).T
    assert lg.solve(counts, reward=frame.stack()).value == expected
    assert lg.solve(counts, reward=frame.to_dict("index")).value == expected
    assert lg.solve(counts, reward=frame).value == expected
    prior = {"worn": 0.25, "new": 0.75}
    smoothed = lg.solve(counts, smoothing=(40.0, [prior.get(state, 0.0) for state in STATES])).stationary
    for given in (prior, pd.Series(prior)):
        np.testing.assert_array_equal(lg.solve(counts, smoothing=(40.0, given)).stationary, smoothed)


def test_distributions_in_every_form(counts):
    expected = np.array([0.0, 3.0, 1.0])
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = {"state": ["new", "worn"], "probability": [3.0, 1.0]}
    series = pd.Series(["new", "worn", "new", "new"]).value_counts()
    for given in ({"new": 3, "worn": 1}, series, pd.DataFrame(frame), pl.DataFrame(frame), frame):
        np.testing.assert_array_equal(read_distribution("initial", given, counts), expected)
    np.testing.assert_array_equal(read_distribution("initial", "new", counts), [0, 1, 0])
    array = np.ones(3)
    assert read_distribution("initial", array, counts) is array


def test_restart_by_label():
    edges = lg.Counts.from_transitions(["a", "b", "c"], ["b", "c", "d"])
    by_label = lg.solve(edges, 0.9, restart={"a": 1.0}, initial="a")
    by_array = lg.solve(edges, 0.9, restart=[1, 0, 0, 0], initial=[1, 0, 0, 0])
    np.testing.assert_array_equal(by_label.stationary, by_array.stationary)


def test_numbers_name_states_without_labels(plain):
    by_label = lg.solve(plain, policy={0: 2, 1: {0: 0.5, 2: 0.5}, np.int64(2): [0.0, 1.0, 0.0]})
    by_array = lg.solve(plain, policy=[[0, 0, 1], [0.5, 0, 0.5], [0, 1, 0]])
    assert by_label.value == by_array.value


def test_text_of_a_number_names_it(plain):
    """Sparse integers become names when read from files: 7 and "7" are one state."""
    np.testing.assert_array_equal(read_distribution("initial", {"2": 1.0}, plain), [0, 0, 1])
    sparse = lg.Counts.from_transitions(["1001", "2002"], ["2002", "1001"])
    np.testing.assert_array_equal(read_distribution("initial", {2002: 1.0}, sparse), [0, 1])


@pytest.mark.parametrize("name", ["\u00b2", "\u0663", "007", "+1", "1_0"])
def test_what_is_no_plain_number_names_nothing(plain, name):
    """A superscript was the bare error of int(), and 007 stood for 7."""
    with pytest.raises(ValueError, match=rf"names the state {re.escape(repr(name))}, which the data"):
        read_distribution("initial", {name: 1.0}, plain)
    with pytest.raises(ValueError, match=rf"{re.escape(repr(name))} is no state of the data"):
        lg.solve(plain, policy={name: 0, 1: 1, 2: 2})


def test_states_in_which_nothing_is_done_may_be_left_out():
    counts = lg.Counts.from_transitions(
        ["a", "b", "a"], ["b", "end", "b"], action=["x", "y", "x"], reward=[0.0, 1.0, 0.0],
        terminal=[False, True, False],
    )  # fmt: skip
    table = read_policy_table("policy", {"a": "x", "b": "y"}, counts)
    np.testing.assert_array_equal(table, [[1, 0], [0, 1], [0.5, 0.5]])
    assert lg.solve(counts, 0.9, policy={"a": "x", "b": "y"}).value is not None


# -- one or several --------------------------------------------------------------------------------------


def test_names_of_policies_make_a_comparison(counts):
    cautious = dict.fromkeys(STATES, "repair")
    several = {"table": TABLE, "named": NAMED, "function": NAMED.get, "cautious": cautious}
    compared = lg.solve(counts, 0.9, policy=several)
    assert compared.names == tuple(several)
    assert compared["table"].value == compared["named"].value == compared["function"].value
    listed = lg.solve(counts, 0.9, policy=[NAMED, cautious])
    assert listed[1].value == compared["cautious"].value


@pytest.mark.parametrize(
    ("policy", "several"),
    [
        ({"new": "run"}, False),
        (NAMED, False),
        ({"new": [0.0, 1.0, 0.0]}, False),
        ({"careful": TABLE}, True),
        ({"careful": TABLE.tolist()}, True),
        ({"new": TABLE}, True),  # a table is a whole policy, whatever it is called
        ({"careful": NAMED}, True),
        ({"careful": {"new": "run"}}, True),
        ({"careful": np.array([0, 1, 2])}, True),
        ([TABLE, TABLE], True),
        (TABLE, False),
        (np.stack([TABLE, TABLE]), True),
        ([0, 1, 2], False),
    ],
)
def test_what_a_mapping_holds_decides(counts, policy, several):
    assert holds_several(policy, counts) is several


@pytest.mark.parametrize("policy", [{0: {0: 1, 1: 0, 2: 0}, 1: {0: 0, 1: 1, 2: 0}}, {0: [1, 0, 0]}])
def test_what_reads_both_ways_is_refused(plain, policy):
    with pytest.raises(ValueError, match="one policy by state and as several"):
        lg.solve(plain, policy=policy)


def test_probabilities_written_as_floats_are_no_numbers_of_actions(plain):
    policy = {s: {a: float(a == s) for a in range(3)} for s in range(3)}
    assert lg.solve(plain, policy=policy).value == lg.solve(plain, policy=np.eye(3)).value


def test_mixtures_are_refused(counts):
    with pytest.raises(ValueError, match="mixes whole policies with actions"):
        lg.solve(counts, policy={"new": "run", "careful": TABLE})


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"new": "run"}, "says nothing about 2 of 3 states, the first of them 'broken'"),
        ({"new": "run", "bronken": "run", "worn": "run"}, "'bronken' is no state of the data"),
        (
            {**NAMED, "new": "rum"},
            r"policy\['new'\] names the action 'rum'.*there are 'run'",
        ),
        ({**NAMED, "new": {"run": 0.9}}, r"policy\['new'\] sums to 0.9, not 1"),
        ({**NAMED, "new": {"run": -1.0}}, r"policy\['new'\]\['run'\] must be finite and at least 0"),
        (
            {**NAMED, "new": [0.5, 0.5]},
            r"policy\['new'\] is a row of length 2; give one .* each of the 3 actions",
        ),
        (["run", "run"], "lists 2 actions for 3 states"),
        (SimpleNamespace(predict=len), "is a SimpleNamespace; give a function of a single state"),
        (lambda state: None, r"policy\['broken'\] names the action None"),
    ],
)
def test_errors_name_the_entry(counts, policy, message):
    with pytest.raises(ValueError, match=message):
        lg.solve(counts, policy=policy)


def test_errors_of_tables_and_distributions(counts):
    pd = pytest.importorskip("pandas")
    twice = pd.DataFrame({"state": ["new", "new"], "action": ["run", "run"], "probability": [0.5, 0.5]})
    with pytest.raises(ValueError, match="gives the action 'run' in the state 'new' twice"):
        lg.solve(counts, policy=twice)
    with pytest.raises(ValueError, match="give state, action and probability"):
        lg.solve(counts, policy=pd.DataFrame({"x": [1], "y": [2]}))
    with pytest.raises(ValueError, match=r"initial names the state 'newt'.*there are 'new', "):
        lg.solve(counts, 0.9, policy=NAMED, initial={"newt": 1.0})
    with pytest.raises(ValueError, match=r"initial\['new'\] must be a number"):
        lg.solve(counts, 0.9, policy=NAMED, initial={"new": "often"})
    with pytest.raises(ValueError, match="sums to 0"):
        lg.solve(counts, 0.9, policy=NAMED, initial={"new": 0.0})


# -- rewards, and what is no policy or matrix ---------------------------------------------------------------


def test_columns_that_mean_the_same_are_refused(counts):
    import pandas as pd

    rows = [(state, action, chance) for state, row in NAMED.items() for action, chance in row.items()]
    state, action, chance = map(list, zip(*rows, strict=True))
    given = pd.DataFrame({"state": state, "State": state[::-1], "action": action, "probability": chance})
    with pytest.raises(ValueError, match=r"column 'state' appears twice, as .*'State'"):
        read_policy_table("policy", given, counts)
    wide = pd.DataFrame([["new", 1, 0], ["worn", 1, 0], ["broken", 1, 0]], columns=["state", "run", "run"])
    with pytest.raises(ValueError, match="column 'run' appears twice; rename one"):
        read_policy_table("policy", wide, counts)


def test_a_policy_is_no_distribution(counts):
    policy = {"state": ["new", "new"], "action": ["run", "wait"], "probability": [0.9, 0.1]}
    with pytest.raises(ValueError, match=r"initial has a column of actions, as a policy has"):
        read_distribution("initial", policy, counts)


def test_rewards_by_label(counts):
    by_state = lg.solve(counts, 0.9, policy=NAMED, reward={"broken": -1.0, "new": 2.0, "worn": 1})
    assert by_state.value == lg.solve(counts, 0.9, policy=NAMED, reward=[-1.0, 2.0, 1.0]).value
    table = {"broken": dict.fromkeys(ACTIONS, 0.0), "new": 1.0, "worn": {"repair": 1, "run": 2, "wait": 3}}
    by_action = lg.solve(counts, 0.9, policy=NAMED, reward=table)
    array = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]]
    assert by_action.value == lg.solve(counts, 0.9, policy=NAMED, reward=array).value
    chain = lg.Counts.from_transitions(["a", "b", "a"], ["b", "a", "b"])
    assert lg.solve(chain, reward={"a": 1.0, "b": 3.0}).value == pytest.approx(2.0)
    with pytest.raises(ValueError, match="reward says nothing about the state 'new' for the action 'repair'"):
        lg.solve(counts, 0.9, policy=NAMED, reward={"broken": 1.0, "worn": 1.0})


def test_numbers_of_a_series_or_frame_go_by_their_labels(counts):
    """They were taken in the order in which they lie, as if they were arrays."""
    pd = pytest.importorskip("pandas")
    table = {"broken": [0.0, 5.0, 1.0], "new": [1.0, 2.0, 7.0], "worn": [3.0, -2.0, 4.0]}
    array = np.array(list(table.values()))
    wide = pd.DataFrame(array, index=list(table), columns=list(ACTIONS))
    long = wide.stack().rename("reward").rename_axis(["state", "action"])
    expected = lg.solve(counts, 0.9, policy=NAMED, reward=array).value
    mixed = wide.loc[["worn", "broken", "new"], ["wait", "repair", "run"]]
    for given in (
        mixed,
        long.sample(frac=1, random_state=0),
        long.reset_index(),
        mixed.rename_axis("state").reset_index(),
    ):
        assert lg.solve(counts, 0.9, policy=NAMED, reward=given).value == expected
    by_state = pd.Series({"worn": 3.0, "broken": 1.0, "new": 2.0})
    plain = lg.solve(counts, 0.9, policy=NAMED, reward=[1.0, 2.0, 3.0])
    for given in (by_state, by_state.to_frame("reward")):
        assert lg.solve(counts, 0.9, policy=NAMED, reward=given).value == plain.value
    assert plain.interval(of=by_state).estimate == plain.interval(of=[1.0, 2.0, 3.0]).estimate
    smoothed = lg.solve(counts, 0.9, policy=NAMED, smoothing=(2.0, by_state / 6))
    assert (
        smoothed.value
        == lg.solve(counts, 0.9, policy=NAMED, smoothing=(2.0, np.array([1.0, 2.0, 3.0]) / 6)).value
    )
    with pytest.raises(ValueError, match="names the state 'old'"):
        lg.solve(counts, 0.9, policy=NAMED, reward=by_state.rename({"new": "old"}))
    with pytest.raises(ValueError, match="names 'new' twice"):
        lg.solve(counts, 0.9, policy=NAMED, reward=pd.concat([by_state, by_state[["new"]]]))
    with pytest.raises(ValueError, match=r"give state\(, action\) and reward"):
        lg.solve(counts, 0.9, policy=NAMED, reward=long.reset_index().rename(columns={"reward": "worth"}))


@pytest.mark.parametrize("policy", ["greedy", 0, 0.5])
def test_what_is_no_policy(counts, policy):
    with pytest.raises(ValueError, match=r"give a table .* a mapping from states to actions"):
        lg.solve(counts, policy=policy)


def test_logs_are_no_matrices(tmp_path):
    pd = pytest.importorskip("pandas")
    log = {"state": ["a", "b"], "next_state": ["b", "a"]}
    for given in ("log.csv", tmp_path / "log.csv", log, pd.DataFrame(log)):
        with pytest.raises(ValueError, match=r"is not a matrix of counts.*lingendice.read_transitions"):
            lg.solve(given)
    with pytest.raises(ValueError, match=r"pairs of names.*pagerank\(edges\)"):
        lg.solve([("a", "b"), ("b", "a")])


def test_columns_of_a_frame_are_matched_with_its_rows_by_name():
    pd = pytest.importorskip("pandas")
    matrix = np.array([[1, 2, 0], [0, 1, 3], [4, 0, 1]])
    expected = lg.solve(matrix, 0.9, initial=[0, 0, 1]).stationary
    frame = pd.DataFrame(matrix, index=["x", "a", "m"], columns=["x", "a", "m"])
    for given in (frame, frame[["m", "x", "a"]], frame[["a", "m", "x"]].astype(pd.SparseDtype("int64", 0))):
        solution = lg.solve(given, 0.9, initial={"m": 1.0})
        assert solution.operator.counts.state_labels == ("x", "a", "m")
        np.testing.assert_array_equal(solution.stationary, expected)
    for unnamed in (pd.DataFrame(matrix), pd.DataFrame(matrix, columns=["x", "a", "m"])):
        np.testing.assert_array_equal(lg.solve(unnamed, 0.9, initial=[0, 0, 1]).stationary, expected)
    numbered = pd.DataFrame(matrix)[[2, 0, 1]]
    np.testing.assert_array_equal(lg.solve(numbered, 0.9, initial=[0, 0, 1]).stationary, expected)


def test_a_frame_over_other_states_in_rows_than_in_columns_is_refused():
    pd = pytest.importorskip("pandas")
    table = pd.crosstab(pd.Series(list("abab")), pd.Series(list("bcbc")))
    assert table.shape == (2, 2)
    with pytest.raises(ValueError, match=r"'a' names 1 of the rows and 0 of the columns, .*reindex\(index="):
        lg.solve(table)
    with pytest.raises(ValueError, match="'b' names 2 of the rows and 1 of the columns"):
        lg.solve(pd.DataFrame(np.ones((3, 3)), index=list("abb"), columns=list("abc")))
    full = table.reindex(index=list("abc"), columns=list("abc"), fill_value=0)
    np.testing.assert_array_equal(
        lg.Counts.from_matrix(full).matrix.toarray(), [[0, 2, 0], [0, 0, 2], [0, 0, 0]]
    )


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "numpy", "list"])
def test_a_long_log_in_place_of_a_matrix_is_refused_unread(library):
    """845,000 rows were converted for 3 seconds, to say that counts[98, 3] is missing."""
    n = 845_000 if library != "list" else 1000
    columns = {"s": np.arange(n) % 50, "a": np.arange(n) % 4, "r": np.where(np.arange(n) == 98, np.nan, 1.0)}
    if library == "numpy":
        log = np.rec.fromarrays(list(columns.values()), names=list(columns))
    elif library == "list":
        log = [{name: column[k] for name, column in columns.items()} for k in range(n)]
    else:
        module = pytest.importorskip(library)
        log = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    for door in (lg.solve, lg.audit):
        started = time.perf_counter()
        with pytest.raises(ValueError, match=r"is not a matrix of counts.*lingendice.read_transitions"):
            door(log)
        assert time.perf_counter() - started < 0.5
