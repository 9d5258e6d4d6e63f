"""Importance sampling where weights vanish or leave the range of float64, against 40 digits."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from mpmath import mpf

import lingendice as lg
from lingendice import baselines

Episode = list[tuple[int, float]]
"""Actions and rewards in a single state."""


def count(episodes: list[Episode], ends: list[bool]) -> lg.Counts:
    action, reward = (list(column) for column in zip(*itertools.chain(*episodes), strict=True))
    number = np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes])
    last = np.append(np.flatnonzero(np.diff(number)), number.size - 1)
    terminal = np.zeros(number.size, bool)
    terminal[last] = ends
    state = np.zeros(number.size, int)
    return lg.Counts.from_transitions(
        state, state, action, reward, number, terminal=terminal if any(ends) else None,
        n_states=1, n_actions=2, keep_episodes=True,
    )  # fmt: skip


@mpmath.workdps(40)
def by_hand(episodes: list[Episode], ends: list[bool], target: list[mpf], often: list[mpf]):
    """(trajectory-wise, step-wise) at gamma = 1 over the longest episode's steps, behavior 1/2 and 1/2."""
    horizon = max(map(len, episodes))
    weights = [
        list(itertools.accumulate((2 * target[action] for action, _ in episode), lambda a, b: a * b))
        for episode in episodes
    ]
    above = below = steps = total = mpf(0)
    for episode, end, weight, k in zip(episodes, ends, weights, often, strict=True):
        above += k * weight[-1] * sum(mpf(reward) for _, reward in episode)
        below += k * weight[-1] * (horizon if end else len(episode))
    for t in range(horizon):
        earned = scale = mpf(0)
        for episode, end, weight, k in zip(episodes, ends, weights, often, strict=True):
            if t < len(episode):
                earned += k * weight[t] * mpf(episode[t][1])
                scale += k * weight[t]
            elif end:
                scale += k * weight[-1]
        if scale > 0:
            total, steps = total + earned / scale, steps + 1
    return above / below, total / steps


def drawn(length: int, n: int, seed: int, chance: float) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [
        [(int(rng.random() < chance), float(rng.normal())) for _ in range(length - 30 * e)] for e in range(n)
    ]


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize(
    ("length", "target", "chance"),
    [
        (150, (mpf(1) / 4, mpf(3) / 4), 0.5),
        (1300, (mpf(1) / 64, mpf(63) / 64), 0.99),  # products overflow
        (600, (mpf(1) / 64, mpf(63) / 64), 0.5),  # and underflow
    ],
)
@mpmath.workdps(40)
def test_weights_beyond_float64(length, target, chance, ending):
    episodes = drawn(length, 4, 0, chance)
    ends = [ending and e % 2 == 1 for e in range(4)]
    counts = count(episodes, ends)
    options = {
        "policy": [[float(part) for part in target]],
        "behavior": [[0.5, 0.5]],
        "horizon": length if ending else None,
    }
    ones = [mpf(1)] * 4
    expected = by_hand(episodes, ends, list(target), ones)
    for place, method in enumerate((baselines.trajectory_wise, baselines.step_wise)):
        found = method(counts, **options)
        assert found.value == pytest.approx(float(expected[place]), rel=1e-11)
        # The influence of an episode is the slope in how often it counts.
        step = mpf(10) ** -9
        more = [
            by_hand(episodes, ends, list(target), [*ones[:e], 1 + step, *ones[e + 1 :]]) for e in range(4)
        ]
        slopes = [float((one[place] - expected[place]) / step) for one in more]
        error = (sum(slope**2 for slope in slopes) * 4 / 3) ** 0.5
        assert found.standard_error == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.99, 1.0])
def test_a_reward_of_one_is_worth_one_where_weights_vanish(gamma):
    """The target never takes action 1: each episode counts until then, and the tenth step is not reached."""
    episodes = [[(int(t >= cut), 1.0) for t in range(10)] for cut in (4, 6, 9)]
    counts = count(episodes, [False] * 3)
    found = baselines.step_wise(counts, gamma, policy=[[1.0, 0.0]], behavior=[[0.5, 0.5]])
    assert found.value == pytest.approx(1.0, rel=1e-12)
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("method", [baselines.trajectory_wise, baselines.step_wise])
def test_plain_weights_beyond_float64_are_refused(method):
    counts = count([[(0, 1.0)] * 1100, [(1, 1.0)] * 1100], [False, False])
    options = {"policy": [[1.0, 0.0]], "behavior": [[0.5, 0.5]]}
    with pytest.raises(ValueError, match="beyond float64; take the weighted form"):
        method(counts, 0.9, weighted=False, **options)
    found = method(counts, 0.9, weighted=False, horizon=900, **options)
    assert found.standard_error == pytest.approx(found.value, rel=1e-12)  # two episodes, one of weight 0


def test_doubly_robust_with_weights_beyond_float64():
    """Scaled to mean one, the weights of two episodes are 2 and 0 at every step, however many there are."""
    episodes = [[(0, float(t % 3)) for t in range(1100)], [(t % 2, 1.0) for t in range(1100)]]
    options = {"policy": [[1.0, 0.0]], "behavior": [[0.5, 0.5]], "weighted": True}
    found = baselines.doubly_robust(count(episodes, [False] * 2), 0.9, **options)
    model = baselines.model_based(count(episodes, [False] * 2), 0.9, policy=[[1.0, 0.0]])
    value, v = 0.0, model.state_values[0]
    for e, episode in enumerate(episodes):
        for t, (action, reward) in enumerate(episode):
            weight = 1.0 if t == 0 else 2.0 * (e == 0)  # the second episode leaves the target at t = 1
            value += 0.05 * 0.9**t * weight * (reward + 0.9 * v - model.q_values[action])
    assert found.value == pytest.approx(value + 0.1 * v, rel=1e-10)


@pytest.mark.parametrize("weighting", ["step", "trajectory"])
@pytest.mark.parametrize("horizon", [None, 4])
@pytest.mark.parametrize("flag", ["terminal", "truncated"])
def test_episodes_end_where_a_row_says_so(weighting, horizon, flag):
    """An id for a trajectory that starts anew within: rows after an end are another episode, as in counts."""
    rng = np.random.default_rng(1)
    action, reward, number = rng.integers(0, 2, 40), rng.normal(size=40), np.repeat([0, 1, 2, 3], 10)
    ends = {flag: np.isin(np.arange(40) % 10, (2, 6, 9))}
    state = np.zeros(40, int)
    counts = lg.Counts.from_transitions(
        state, state, action, reward, number, n_states=1, n_actions=2, keep_episodes=True, **ends
    )
    method = baselines.step_wise if weighting == "step" else baselines.trajectory_wise
    expected = method(counts, 0.9, policy=[[0.3, 0.7]], behavior=[[0.5, 0.5]], horizon=horizon)
    shuffled = rng.permutation(4)[:, None] * 10 + np.arange(10)
    rows = shuffled.T.ravel()  # interleaved
    found = baselines.neural_importance_sampling(
        lg.Transitions(state[rows, None] / 1.0, action[rows], reward[rows], state[rows, None] / 1.0,
                       episode=number[rows], **{flag: ends[flag][rows]}),
        0.9, policy=np.array([0.3, 0.7]), weighting=weighting, horizon=horizon,
        behavior_log_density=np.full(40, np.log(0.5)),
    )  # fmt: skip
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-12)
    assert found.weighed == "episodes"


@pytest.mark.parametrize("weighting", ["step", "trajectory"])
def test_policies_with_zeros_over_continuous_states(weighting):
    """The same weights as in a table: an action that the target never takes ends an episode's weight."""
    rng = np.random.default_rng(0)
    # A weight of the first episode alone, which the target leaves half way; nobody reaches the last steps.
    actions = [[0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 1, 0], [0, 0, 0, 0]]
    episodes = [[(action, float(rng.normal())) for action in episode] for episode in actions]
    counts = count(episodes, [False] * 4)
    rows = list(itertools.chain(*episodes))
    number = np.repeat(np.arange(4), [len(episode) for episode in episodes])
    transitions = lg.Transitions(
        np.zeros((len(rows), 1)), np.array([a for a, _ in rows]), np.array([r for _, r in rows]),
        np.zeros((len(rows), 1)), episode=number,
    )  # fmt: skip
    method = baselines.step_wise if weighting == "step" else baselines.trajectory_wise
    expected = method(counts, 0.9, policy=[[1.0, 0.0]], behavior=[[0.5, 0.5]])
    found = baselines.neural_importance_sampling(
        transitions, 0.9, policy=np.array([1.0, 0.0]), weighting=weighting,
        behavior_log_density=np.full(len(rows), np.log(0.5)),
    )  # fmt: skip
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-12)
    assert found.effective_sample_size == pytest.approx(expected.effective_sample_size, rel=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("steps", "chance", "heavy"), [(4, 0.6, False), (20, 0.75, True)])
def test_a_standard_error_that_is_too_small_fails_a_check(steps, chance, heavy, weighted):
    """One state, two actions at .5: the products of an episode have a light or a heavy tail."""
    rng, n = np.random.default_rng(0), 200
    zeros, episode = np.zeros(n * steps, dtype=int), np.repeat(np.arange(n), steps)
    values, errors, doubts = [], [], []
    for _ in range(60):
        action = rng.integers(0, 2, n * steps)
        counts = lg.Counts.from_transitions(
            zeros, zeros, action, action + rng.normal(size=n * steps), episode, n_states=1, n_actions=2
        )
        found = lg.baselines.trajectory_wise(
            counts, policy=[[1 - chance, chance]], behavior=[[0.5, 0.5]], horizon=steps, weighted=weighted
        )
        values.append(found.value)
        errors.append(found.standard_error)
        doubts.append("largest weight" in {check.name for check in found.diagnose() if not check.ok})
        assert doubts[-1] == ("probably too small" in found.interval().note)
        weights = np.prod(np.where(action, chance, 1 - chance).reshape(n, steps) / 0.5, axis=1)
        assert found.found.largest_weight == pytest.approx(weights.max() / weights.sum(), rel=1e-9)
    assert np.mean(doubts) == heavy
    short = np.median(errors) / np.std(values)
    assert short < 0.75 if heavy else 0.85 < short < 1.15
