"""Bad input: a ValueError that names the entry and the next step, whatever is thrown at it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from problems import logged_mdp
from scipy import sparse

import lingendice as lg
from lingendice.solvers.control import EliminationError

CHAIN = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])


def with_entry(value):
    matrix = CHAIN.copy()
    matrix[1, 2] = value
    return matrix


@pytest.mark.parametrize(
    "form", [np.asarray, np.ndarray.tolist, sparse.csr_array, sparse.coo_matrix, sparse.csc_array]
)
@pytest.mark.parametrize(
    ("value", "kind"),
    [(np.nan, "not a finite"), (np.inf, "not a finite"), (-1.0, "negative"), (-np.inf, "not a finite")],
)
def test_bad_entries_are_named(form, value, kind):
    with pytest.raises(ValueError, match=rf"counts\[1, 2\] is .*{kind}"):
        lg.solve(form(with_entry(value)))
    with pytest.raises(ValueError, match=r"counts\[1, 2\]"):
        lg.Counts.from_matrix(form(with_entry(value)))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones(3), r"square.*from_paths\(states\)"),
        ([(0, 1), (1, 2), (2, 0)], r"square.*from_transitions\(pairs\[:, 0\], pairs\[:, 1\]\)"),
        ({"a": {"b": 1.0}, "b": {"a": 1.0}}, "a dict of rows .* with pandas"),
        (SimpleNamespace(P=np.eye(2)), "a SimpleNamespace is .* the attribute P"),
        (object(), "an object is not a matrix of counts; pass"),
        (np.ones((2, 2, 2)), "square"),
        (sparse.csr_array(np.ones((2, 3))), "square"),
        ([[1, 2], [3]], "ragged"),
        (np.array([["a", "b"], ["c", "d"]]), "dtype"),
        (np.array([[1, None], [2, 3]], dtype=object), r"counts\[0, 1\] is None"),
        (np.array([[1, 2], [3, 4]], dtype=object), "object array|64 bits"),
        (np.array([[1, 2j], [3, 4]]), "dtype"),
        ([[0, 2**70], [1, 0]], "64 bits"),
        (np.full((2, 2), 1e308), "overflow"),
        ("nonsense", "not a matrix of counts"),
        (None, "None is not a matrix of counts; pass"),
    ],
)
def test_bad_matrices(matrix, message):
    with pytest.raises(ValueError, match=message):
        lg.solve(matrix)


@pytest.mark.parametrize("gamma", [0, -0.1, 1.0000001, 2, np.nan, np.inf, "x", None])
def test_bad_gamma(gamma):
    for data in (CHAIN, CHAIN.tolist(), sparse.csr_array(CHAIN)):
        with pytest.raises(ValueError, match="gamma must"):
            lg.solve(data, gamma)


@pytest.mark.parametrize("name", ["initial", "restart"])
@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ([1, 2], r"shape \(3,\)"),
        ([1, -1, 1], r"{name}\[1\] is -1.* negative"),
        ([1, np.nan, 1], r"{name}\[1\] is nan"),
        ([0, 0, 0], "{name} sums to 0, not 1; give probabilities"),
        ([0.5, 0.6, 0], "{name} sums to 1.1, not 1; divide its entries by their sum"),
        ({0: 1, 2: 3}, "{name} sums to 4, not 1"),
        ([[1, 1, 1]], "shape"),
        (["a", "b", "c"], "dtype"),
    ],
)
def test_bad_distributions(name, distribution, message):
    matrix = CHAIN.copy()
    matrix[2] = 0  # so that the restart distribution is needed
    with pytest.raises(ValueError, match=message.format(name=name)):
        lg.solve(matrix, 0.9, **{name: distribution})


def test_policies_and_distributions_follow_one_rule():
    """A policy that sums to 1.1 was refused, an initial distribution divided by its sum without a word."""
    log = {
        "state": [0, 1, 0, 1],
        "next_state": [1, 0, 1, 0],
        "action": [0, 1, 1, 0],
        "reward": [1.0, 2, 3, 4],
    }
    counts = lg.Counts.from_transitions(**log)
    half, off = np.array([0.5, 0.5]), np.array([0.5, 0.6])
    for arguments, name in (
        ({"initial": off, "policy": [half, half]}, "initial"),
        ({"initial": half, "restart": off, "policy": [half, half]}, "restart"),
        (
            {"initial": half, "smoothing": (1.0, off), "policy": [half, half], "ridge": 0},
            "smoothing distribution",
        ),
        ({"initial": half, "policy": [off, half]}, r"policy\[0\]"),
        ({"initial": half, "policy": {0: off, 1: half}}, r"policy\[0\]"),
        ({"initial": {0: 0.5, 1: 0.6}, "policy": [half, half]}, "initial"),
    ):
        with pytest.raises(ValueError, match=rf"{name} sums to 1\.1, not 1"):
            lg.solve(counts, 0.9, **arguments)
    with pytest.raises(ValueError, match=r"initial sums to 1\.1, not 1"):
        lg.OnlineRatio(2, 0.9, initial=off)
    # What single precision rounds is no mistake, of either.
    third = np.full(3, 1 / 3, np.float32)
    assert lg.solve(CHAIN, 0.9, initial=third).stationary.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.ones((6, 3)) / 3, r"shape \(n_states, n_actions\) = \(6, 2\)"),
        (np.full((6, 2), 0.4), r"policy\[0\] sums to 0.8, not 1"),
        (np.tile([1.5, -0.5], (6, 1)), r"policy\[0, 1\] is -0.5"),
        (np.full((6, 2), np.nan), r"policy\[0, 0\] is nan"),
        (np.array([0, 1, 2, 0, 1, 0]), r"policy\[2\] is action 2, outside 0..1"),
    ],
)
def test_bad_policies(policy, message):
    mdp = logged_mdp(0, n_episodes=2, length=5)
    with pytest.raises(ValueError, match=message):
        lg.solve(mdp.counts, 0.9, policy=policy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, "method must be one of"),
        ({"ratio": "odds"}, "ratio must be one of"),
        ({"leak": "drip"}, "leak must be one of"),
        ({"unseen": "guess"}, "unseen must be one of"),
        ({"terminal": "x"}, "terminal must be one of"),
        ({"leak": "absorb"}, "loses all mass at gamma=1"),
        ({"leak": "absorb", "gamma": 0.9, "restart": [1, 0, 0]}, 'leak="absorb" keeps their mass'),
        ({"smoothing": 1, "restart": [1, 0, 0]}, "smoothing= leads on from there"),
        ({"tol": 0}, "tol must be positive"),
        ({"tol": -1}, "tol must be"),
        ({"tol": True}, "tol must be a number, got True"),
        ({"penalty": True}, "penalty must be a number, got True"),
        ({"clone": -1}, "clone must be finite and at least 0"),
        ({"clone": 5}, "clone= is about following another policy"),
        ({"method": "gth", "ridge": 0.1}, "method='gth' solves the exact equation"),
        ({"divergence": "magic"}, "divergence must be one of 'chi2', .*'dudley'"),
        ({"divergence": 3}, "divergence must be a name or a Divergence, got int"),
        ({"divergence": None}, "divergence must be a name or a Divergence, got NoneType"),
        ({"max_iter": 0}, "max_iter must be a whole number"),
        ({"time_limit": np.nan}, "time_limit must be"),
        ({"threads": 0}, "threads must be"),
        ({"policy": [[1]]}, "the counts have no actions"),
        ({"ratio": "state_action"}, "needs actions"),
        ({"options": {"momentum": 1}}, "no entry 'momentum'"),
        ({"reward": [1, 2]}, "reward has shape"),
        ({"reward": [1, np.nan, 2]}, r"reward\[1\] is nan"),
        ({"smoothing": -1}, "smoothing must be"),
        ({"smoothing": [1, 2]}, "smoothing must be a weight or a pair"),
        ({"reward_range": (2, 1)}, "lowest, highest"),
        ({"smoothing": "much"}, "smoothing must be a weight"),
        ({"ridge": "much"}, "ridge must be a number"),
        ({"ridge": -1.0}, "ridge must be"),
        ({"reward_range": 5}, r"reward_range must be a pair \(lowest, highest\), got 5"),
        ({"reward_range": (1, 2, 3)}, "reward_range must be a pair"),
        ({"reward_range": ("a", 2)}, "reward_range must be a number"),
        ({"penalty": -5}, "penalty must be"),
        ({"penalty": 0}, "penalty must be positive"),
        ({"penalty": "1"}, "penalty must be a number"),
        ({"seed": "a"}, "seed must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"threads": -1}, "threads must be"),
        ({"threads": np.inf}, "threads must be"),
        ({"threads": np.nan}, "threads must be"),
        ({"threads": "2"}, "threads must be"),
        ({"progress": "yes"}, "progress must be True or False"),
        ({"max_iter": 0.5}, "max_iter must be a whole number"),
        ({"max_iter": np.inf}, "max_iter must be a whole number"),
        ({"tol": "small"}, "tol must be a number"),
        ({"tol": 10**400}, "tol must be a number"),
        ({"method": np.array(["auto", "gth"])}, "method must be one of"),
        ({"leak": None}, "leak must be one of"),
        ({"options": "fast"}, "options must be a dict"),
        ({"reward": [1e308, -1e308, 0]}, r"reward\[0\] is 1e\+308, beyond 1e\+140"),
    ],
)
@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, sparse.csr_array])
def test_bad_options(form, arguments, message):
    with pytest.raises(ValueError, match=message):
        lg.solve(form(CHAIN), **arguments)


def test_the_short_way_refuses_the_counts_that_the_long_way_does():
    for bad, message in (
        ([[2**60, 1], [1, 1]], r"counts\[0, 0\] is 1152921504606846976, beyond 2\*\*53"),
        ([[1e308, 0], [1, 1e308]], "overflow when summed"),
        ([[1e-320, 2e-320], [1e-320, 1e-320]], "the counts of cell 1 sum to .*e-320 of .*e-320"),
        ([[1e200, 1e200], [1e-200, 1e-200]], r"the counts of cell 1 sum to 2e-200 of 2e\+200"),
    ):
        for form in (np.array(bad), bad, sparse.csr_array(bad)):
            for gamma in (1.0, 0.5):
                with pytest.raises(ValueError, match=message):
                    lg.solve(form, gamma)


def test_a_distribution_lost_to_underflow_is_not_called_stalled():
    # From state 0 to state 1 with probability 1e-323, and back at once.
    matrix = np.array([[1.0, 1e-323], [0.0, 0.0]])
    solution = lg.solve(matrix, method="gth")
    assert solution.status is lg.Status.NOT_FINITE
    assert not solution.converged
    assert "rescale" in solution.status.advice
    with pytest.raises(ValueError, match="underflow: rescale"):
        lg.solve(matrix, method="elimination")


def test_what_elimination_loses_is_named_by_its_number_in_the_whole_chain():
    # States 0 and 1 are left for good; the class that remains begins at state 2.
    matrix = np.zeros((4, 4))
    matrix[:2, 2] = 1.0
    matrix[2:, 2:] = [[1.0, 1e-323], [0.0, 0.0]]
    with pytest.raises(EliminationError, match=r"state [23] ") as caught:
        lg.solve(matrix, method="elimination", restart=[0, 0, 1, 0])
    assert caught.value.state in (2, 3)


def test_ratios_too_large_to_be_squared_still_have_a_sample_size():
    solution = lg.solve(np.array([[1e-200, 1e-200], [1.0, 1.0]]))
    assert solution.tau[0] > 1e190
    assert 0.0 <= solution.effective_sample_size < 1e-100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clone": "much"}, "clone must be a number"),
        ({"ridge": "auto"}, "ridge must be a number"),
        ({"clone": 2.0}, 'ratio="state"; set that'),
        ({"clone": 2.0, "ratio": "state_action"}, 'ratio="state"; set that'),
        ({"clone": 2.0, "policy": None}, "pass policy="),
    ],
)
def test_bad_clones(arguments, message):
    data = logged_mdp(0, n_episodes=2, length=5)
    with pytest.raises(ValueError, match=message):
        lg.solve(data.counts, **({"policy": data.policy} | arguments))


def test_smoothing_is_a_weight():
    with pytest.raises(ValueError, match="smoothing must be a weight"):
        lg.solve(np.array([[5, 5], [2, 8]]), smoothing="auto")


def test_what_is_not_served_yet_says_so():
    data = logged_mdp(0, n_episodes=2, length=5)
    with pytest.raises(lg.NotAvailableYet, match="not available yet"):
        lg.solve(data.counts, policy=data.policy, warm_start=np.ones(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": [0, -1], "next_state": [1, 0]}, "state id -1 in row 1 is negative"),
        ({"state": [0, 5], "next_state": [1, 0], "n_states": 3}, r"state id 5 in row 1 is outside 0\.\.2"),
        ({"state": [0, 1], "next_state": [1]}, "next_state has 1 entries but state has 2"),
        ({"state": [0.5, 1], "next_state": [1, 0]}, r"state\[0\] is 0.5"),
        ({"state": [0.0, 1.0], "next_state": [1, 0]}, r"state.astype\(int\)"),
        ({"state": [[0], [1]], "next_state": [1, 0]}, "one-dimensional"),
        ({"state": ["a", None], "next_state": ["b", "c"]}, r"state\[1\] is None, a missing value"),
        ({"state": [{}, {}], "next_state": [{}, {}]}, "cannot be a label"),
        ({"state": [0, 1], "next_state": [1, 0], "reward": [1, np.inf]}, r"reward\[1\] is inf"),
        ({"state": [0, 1], "next_state": [1, 0], "reward": [1]}, "reward has 1 entries"),
        ({"state": [0, 1], "next_state": [1, 0], "weight": [1, -1]}, r"weight\[1\] is -1"),
        ({"state": [0, 1], "next_state": [1, 0], "terminal": [0, 2]}, r"terminal\[1\] is 2"),
        ({"state": [0, 1], "next_state": [1, 0], "action": [0, 9], "n_actions": 2}, "action id 9 in row 1"),
        ({"state": [0, 1], "next_state": [1, 0], "n_actions": 2}, "pass action="),
        ({"state": [0, 1], "next_state": [1, 0], "n_states": -1}, "n_states must be"),
        ({"state": ["a", "b"], "next_state": ["b", "a"], "n_states": 1}, "2 distinct labels"),
        ({"state": [0, 1], "next_state": [1, 0], "keep_episodes": True}, "keep_episodes needs episode="),
        ({"state": [0, 2**62], "next_state": [1, 0]}, "pass them as labels"),
        ({"state": [0, 10**11], "next_state": [10**11, 0]}, r"pass them as labels .*return_inverse"),
        ({"state": [0, 10**6], "next_state": [1, 0], "action": [0, 10**6]}, "pass them as labels"),
        ({"state": [0, 1], "next_state": [1, 0], "n_states": np.inf}, "n_states must be a whole number"),
        ({"state": [0, 1], "next_state": [1, 0], "n_states": np.nan}, "n_states must be a whole number"),
        ({"state": [0, 1], "next_state": [1, 0], "n_states": "2"}, "n_states must be a whole number"),
        ({"state": [0, 1], "next_state": [1, 0], "n_states": 2.5}, "n_states must be a whole number"),
        ({"state": [0, 1], "next_state": [1, 0], "n_states": 1e19}, "would need"),
        ({"state": ["a", "b"], "next_state": ["b", "a"], "n_states": 1e19}, "would need"),
        ({"state": [0, 1], "next_state": [1, 0], "reward": [1e308, -1e308]}, r"reward\[0\] is 1e\+308"),
        ({"state": [0, 1], "next_state": [1, 0], "weight": [1e308, 1e308]}, "weight sums beyond"),
    ],
)
def test_bad_logs(arguments, message):
    with pytest.raises(ValueError, match=message):
        lg.Counts.from_transitions(**arguments)


@pytest.mark.parametrize("size", [np.inf, np.nan, -1, "3", None, 1e19, True])
def test_bad_sizes(size):
    with pytest.raises(ValueError, match=r"n_states must be|would need"):
        lg.Counts.empty(size)
    with pytest.raises(ValueError, match="n_states must be a whole number from 1 to 4096"):
        lg.OnlineRatio(size)
    if size is not None:
        with pytest.raises(ValueError, match=r"n_states must be|would need|n_states is"):
            lg.Transitions([0, 1], None, None, [1, 0], n_states=size)


@pytest.mark.parametrize("size", [np.inf, "3", 1e12, 2.5])
def test_bad_sizes_of_counts_that_grow(size):
    log = {"state": np.array([0, 1]), "next_state": np.array([1, 0])}
    with pytest.raises(ValueError, match=r"n_states must be a whole number|would need"):
        lg.read_transitions(log, n_states=size)
    with pytest.raises(ValueError, match=r"n_states must be a whole number|would need"):
        lg.Counts.from_transitions(**log).with_states(size)


@pytest.mark.parametrize("groups", [["a", None], [1.0, np.nan], np.ma.masked_array([0, 1], [False, True])])
def test_missing_groups_of_cells_are_refused(groups):
    with pytest.raises(ValueError, match=r"groups\[1\] is"):
        lg.features.one_hot(groups)


@pytest.mark.parametrize("reward", [1e308, -1e200, np.inf, np.nan])
def test_rewards_that_overflow_are_refused_wherever_they_enter(reward):
    online = lg.OnlineRatio(2)
    for one in (reward, [reward], np.array([reward])):
        with pytest.raises(ValueError, match=r"reward\[0\] is"):
            online.update(0 if one is reward else [0], 1 if one is reward else [1], one)
    with pytest.raises(ValueError, match=r"reward\[0\] is"):
        lg.Transitions([0, 1], None, [reward, 0.0], [1, 0])
    largest = lg.Counts.from_transitions([0, 0, 1], [1, 1, 0], reward=[1e140, -1e140, 0.0])
    assert np.isfinite(largest.reward).all()
    assert np.isfinite(largest.reward_m2).all()


def test_missing_categories_are_named():
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"state\[1\] is missing"):
        lg.Counts.from_transitions(
            pd.Series(["a", None], dtype="category"), pd.Series(["b", "a"], dtype="category")
        )


anything = hnp.arrays(
    dtype=st.sampled_from([np.float64, np.float32, np.int64, np.int8, np.uint16, bool]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning", "ignore::lingendice.RowSumWarning")
@settings(max_examples=300, deadline=None)
@example(np.array([[0.984375]]), 1.0, False)  # nearly probabilities
@given(anything, st.sampled_from([1.0, 0.5]), st.booleans())
def test_any_array_is_solved_or_refused_with_a_reason(matrix, gamma, as_list):
    before = matrix.copy()
    try:
        solution = lg.solve(matrix.tolist() if as_list else matrix, gamma)
    except ValueError as error:
        assert len(str(error)) > 15  # noqa: PT017
    else:
        for distribution in solution.distributions:
            assert np.all(distribution >= 0)
            assert distribution.sum() == pytest.approx(1.0)
        assert solution.residual < 1e-12
    assert np.array_equal(matrix, before, equal_nan=matrix.dtype.kind == "f")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"behavior": True}, "behavior= is about following another policy than the logged one; pass policy="),
        ({"unseen": "mean"}, "unseen= is about following another policy"),
        ({"policy": True, "behavior": True, "ratio": "state", "clone": 3}, "behavior= says what it is"),
        (
            {"policy": True, "behavior": True, "ratio": "state", "ridge": 0, "unseen": "mean"},
            "behavior= weighs logged actions alone, so that unseen='mean' has no effect",
        ),
        ({"policy": True, "ratio": "state", "clone": 3, "unseen": "leak"}, "clone= weighs logged actions"),
    ],
)
def test_words_about_a_policy_that_have_no_say(arguments, message):
    """They were ignored: the value was that of the call without them."""
    mdp = logged_mdp(0, n_episodes=10, length=10)
    tables = {"policy": mdp.policy, "behavior": np.full(mdp.policy.shape, 0.5)}
    given = {name: tables[name] if entry is True else entry for name, entry in arguments.items()}
    with pytest.raises(ValueError, match=message):
        lg.solve(mdp.counts, 0.9, **given)


@pytest.mark.parametrize("options", [{"ridge": 0}, {"ridge": 0.1}, {"horizon": 3}, {}, {"policy": None}])
def test_a_range_that_rewards_lie_outside_of(options):
    """It gave bounds on the value that rewards of the log itself break."""
    mdp = logged_mdp(0, n_episodes=10, length=10)
    least, most = mdp.rewards.min(), mdp.rewards.max()
    given = {"policy": mdp.policy} | options
    for narrow in ((least, 0.9 * most), (0.9 * least, most)):
        with pytest.raises(ValueError, match="does not hold the logged rewards"):
            lg.solve(mdp.counts, 0.9, **given, reward_range=narrow)
    lg.solve(mdp.counts, 0.9, **given, reward_range=(least, most))
    same = lg.Counts.from_transitions(
        mdp.state, mdp.next_state, mdp.action, np.full(mdp.state.size, 0.1), mdp.episode, keep_episodes=False
    )
    lg.solve(same, 0.9, **given, reward_range=(0.1, 0.1))


@pytest.mark.parametrize(
    ("policy", "remedy"),
    [
        (np.full(2, 0.5), r"np.tile\(policy, \(3, 1\)\)"),
        (np.full((2, 3), 0.5), r"its transpose, policy\.T"),
        (np.zeros(3), r"policy\.astype\(int\)"),
        (np.full((2, 2), 0.5), "subtract 1 from ids"),
        (np.full((4, 2), 0.5), "count it with n_states=4"),
        (np.full((3, 4), 0.25), "count it with n_actions=4"),
    ],
)
def test_a_policy_of_another_shape_is_told_what_to_change(policy, remedy):
    counts = lg.Counts.from_transitions([0, 1, 2, 0], [1, 2, 0, 1], action=[0, 1, 0, 1])
    with pytest.raises(ValueError, match=rf"policy must have shape .* = \(3, 2\), got .*; .*{remedy}"):
        lg.solve(counts, policy=policy)


@pytest.mark.parametrize("argument", ["reward", "initial", "restart"])
def test_what_is_no_array_is_named(argument):
    with pytest.raises(ValueError, match=f"{argument} is a function; give an array of numbers"):
        lg.solve([[1, 1], [1, 1]], 0.9, **{argument: lambda state: 1.0})


def test_a_level_in_percent_is_explained():
    with pytest.raises(ValueError, match=r"got 95; 95 % is level=0\.95"):
        lg.solve([[90, 10], [30, 70]]).interval(95, of="stationary")
    with pytest.raises(ValueError, match="'value', 'return', 'length', 'stationary', got 'returns'"):
        lg.solve([[90, 10], [30, 70]]).interval(of="returns")


@pytest.mark.parametrize("name", ["page.pdf", "page.PNG"])
def test_a_report_is_written_as_html_only(tmp_path, name):
    with pytest.raises(ValueError, match=r"HTML page; write it as \.html"):
        lg.report(lg.solve([[90, 10], [30, 70]]), tmp_path / name, plots=False)
    assert not list(tmp_path.iterdir())


def test_of_several_policies_the_bad_one_is_named():
    counts = lg.Counts.from_transitions([0, 1, 2, 0], [1, 2, 0, 1], action=[0, 1, 0, 1], reward=[1, 0, 2, 1])
    policies = {"careful": [0, 1, 0], "bold": np.full((4, 2), 0.5)}
    with pytest.raises(ValueError, match="for the policy 'bold': policy must have shape"):
        lg.solve(counts, policy=policies)
