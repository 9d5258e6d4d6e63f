"""Policies and distributions by label give what the same arrays give, bit by bit."""

from __future__ import annotations

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
        ({**NAMED, "new": "rum"}, r"policy\['new'\] names the action 'rum'.*there are 'run', \.\.\."),
        ({**NAMED, "new": {"run": 0.9}}, r"policy\['new'\] sums to 0.9, not 1"),
        ({**NAMED, "new": {"run": -1.0}}, r"policy\['new'\]\['run'\] must be finite and at least 0"),
        ({**NAMED, "new": [0.5, 0.5]}, r"policy\['new'\] has 2 probabilities for 3 actions"),
        (["run", "run"], "lists 2 actions for 3 states"),
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
    frame = pd.DataFrame([[90, 10], [30, 70]], index=["a", "b"], columns=["a", "b"])
    np.testing.assert_allclose(lg.solve(frame).stationary, [0.75, 0.25])
