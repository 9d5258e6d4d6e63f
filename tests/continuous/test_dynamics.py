"""The model of the dynamics: restarts that are inferred, flagged or absent, and the values it gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lingendice as lg
from lingendice.baselines import doubly_robust, fitted_q, model_based
from lingendice.continuous.dynamics import fit_dynamics, folds, roll_out, step_weights
from lingendice.continuous.evaluation import EFFORTS, Evaluation, EvaluationSettings, Preparation
from lingendice.continuous.regression import EndProbability, fit_end_probability
from lingendice.continuous.samples import prepare
from lingendice.data.policies import GaussianPolicy, SampledPolicy

QUICK = EFFORTS["quick"].model
START = np.array([2.0, -1.0])
PUSH = np.array([[0.3, 0.1]])


def steered(seed, restart, n_episodes=40, length=60, flags=False):
    """s' = .8 s + a B + noise from around (2, -1); at each step the chain restarts with some probability."""
    rng = np.random.default_rng(seed)
    state, action, following = [], [], []
    again = []
    for _ in range(n_episodes):
        now = START + 0.1 * rng.normal(size=2)
        for _ in range(length):
            a = 0.5 * rng.normal(size=1)
            then = 0.8 * now + a @ PUSH + 0.05 * rng.normal(size=2)
            jumps = rng.random() < restart
            state.append(now)
            action.append(a)
            fresh = START + 0.1 * rng.normal(size=2)
            following.append(then if flags or not jumps else fresh)
            again.append(jumps)
            now = fresh if jumps else then
    state, action, following = (np.array(part) for part in (state, action, following))
    episode = np.repeat(np.arange(n_episodes), length)
    flagged = {"terminal": np.array(again)} if flags else {}
    first = state[::length]
    log = lg.Transitions(state, action, state[:, 0], following, first, episode, **flagged)
    return log, np.array(again)


TARGET = GaussianPolicy(lambda states: np.full((len(states), 1), 0.5), 0.2)


def truth(gamma, restart):
    """E s under the target: the mean of s follows a line, with restarts to START."""
    total, mean, weight = 0.0, START[0], 0.0
    for t in range(5000 if gamma == 1.0 else 400):
        share = float(t >= 1000) if gamma == 1.0 else gamma**t
        total, weight = total + share * mean, weight + share
        mean = (1.0 - restart) * (0.8 * mean + 0.15) + restart * START[0]
    return total / weight


def test_restarts_are_recognized():
    log, again = steered(0, 0.05)
    model = fit_dynamics(prepare(log, TARGET, 1.0), "auto", 0, 2, QUICK)
    assert model.inferred
    # A restart right after another, when the chain is at its start anyway, cannot be recognized.
    seen = np.linalg.norm(log.state - START, axis=1) > 1.0
    assert np.mean((model.ended > 0.5) == again) > 0.995
    assert np.mean((model.ended > 0.5)[again & seen]) > 0.98
    # The noise, per coordinate, in units of the state.
    scaling = model.samples.state_scaling
    noise = model.errors * model.change_scale * scaling.scale
    np.testing.assert_allclose(np.median(np.abs(noise), axis=0), 0.6745 * 0.05, rtol=0.2)


def test_where_nothing_restarts_nothing_is_inferred():
    log, _ = steered(1, 0.0)
    model = fit_dynamics(prepare(log, TARGET, 1.0), "auto", 0, 2, QUICK)
    assert not (model.ended > 0.5).any()
    assert fit_dynamics(prepare(log, TARGET, 1.0), "none", 0, 2, QUICK).ends is None


@pytest.mark.parametrize("gamma", [0.95, 1.0])
@pytest.mark.parametrize("flags", [False, True])
def test_values_with_restarts(gamma, flags):
    log, again = steered(2, 0.05, flags=flags)
    rate = float(again.mean())
    terminal = "restart" if flags else "auto"
    found = model_based(log, gamma, policy=TARGET, terminal=terminal, effort="quick", seed=1)
    assert found.value == pytest.approx(truth(gamma, rate), abs=0.05)
    assert log.reward.mean() < truth(gamma, rate) - 0.2


def test_ignoring_restarts_is_worse():
    off = []
    for seed in (3, 4, 5, 6):
        log, again = steered(seed, 0.05)
        exact = truth(1.0, float(again.mean()))
        off.append(
            [
                abs(model_based(log, 1.0, policy=TARGET, effort="quick", restarts=restarts).value - exact)
                for restarts in ("auto", "none")
            ]
        )
    known, ignored = np.mean(off, axis=0)
    assert known < 0.5 * ignored


def test_what_has_ended_does_not_count_as_outside_the_log():
    # s grows by 1 a step and ends at 5; simulated on, it would soon leave the range of the log.
    rng = np.random.default_rng(9)
    state = np.tile(np.arange(5.0), 60)[:, None] + 0.01 * rng.normal(size=(300, 1))
    ends = np.tile(np.arange(5) == 4, 60)
    log = lg.Transitions(state, None, np.ones(300), state + 1.0, terminal=ends)
    found = lg.solve(log, 0.95, method="model", options={"effort": "quick"})
    assert found.value == pytest.approx(1.0 - 0.95**5, abs=0.01)
    assert found.evidence.clipped < 0.2
    assert model_based(log, 0.95, effort="quick").value == found.value


def test_absorbed_at_gamma_below_1():
    log, again = steered(4, 0.05, flags=True)
    gamma, stays = 0.9, 1.0 - float(again.mean())
    total, mean, alive = 0.0, START[0], 1.0
    for t in range(200):
        total += (1.0 - gamma) * gamma**t * alive * mean
        mean, alive = 0.8 * mean + 0.15, alive * stays
    for found in (
        model_based(log, gamma, policy=TARGET, effort="quick"),
        fitted_q(log, gamma, policy=TARGET, effort="quick"),
        doubly_robust(log, gamma, policy=TARGET, effort="quick"),
        doubly_robust(log, gamma, policy=TARGET, q="fqe", tau="cloned", effort="quick"),
        doubly_robust(log, gamma, policy=TARGET, tau="ratio", effort="quick"),
    ):
        assert found.value == pytest.approx(total, abs=0.08), found.method


@pytest.fixture(scope="module")
def evaluated():
    return evaluation_of(5, 1.0)


@pytest.fixture(scope="module")
def discounted():
    return evaluation_of(7, 0.9)


def evaluation_of(seed, gamma):
    log, again = steered(seed, 0.05)
    settings = EvaluationSettings("auto", EFFORTS["default"], 0, 2)
    return Evaluation(Preparation(log, gamma, "auto", settings), TARGET), truth(gamma, float(again.mean()))


@pytest.mark.parametrize("tau", ["model", "cloned", "ones"])
@pytest.mark.parametrize("q", ["model", "fqe"])
def test_doubly_robust_values(request, q, tau):
    # Off the policy differential temporal differences need not converge: one of three networks strays here.
    evaluation, exact = request.getfixturevalue("evaluated" if q == "model" else "discounted")
    found = evaluation.doubly_robust(q, np.ones(len(evaluation.samples.logged)) if tau == "ones" else tau)
    assert found.value == pytest.approx(exact, abs=3.0 * found.standard_error + 0.02)
    assert 0.0 < found.standard_error < 0.1
    if q == "model":
        # A restart that is replaced by its probability leaves little noise.
        assert found.value == pytest.approx(exact, abs=0.06)


def test_ratio_of_the_model(evaluated):
    evaluation, exact = evaluated
    found = evaluation.estimate("ratio")
    assert found.value == pytest.approx(exact, abs=4.0 * found.standard_error)
    tau, action = evaluation.tau_of_model, evaluation.samples.transitions.action[:, 0]
    # The target acts with mean .5 and deviation .2; the log with 0 and .5.
    assert tau @ action / tau.sum() == pytest.approx(0.5, abs=0.05)
    assert tau @ (action - 0.5) ** 2 / tau.sum() == pytest.approx(0.04, abs=0.02)


def test_heavy_tails_are_no_restarts():
    rng = np.random.default_rng(9)
    state = np.empty((40, 51, 1))
    state[:, 0] = rng.normal(size=(40, 1))
    for t in range(50):
        state[:, t + 1] = 0.9 * state[:, t] + rng.laplace(0.0, 0.05, size=(40, 1))
    log = lg.Transitions(
        state[:, :-1].reshape(-1, 1), None, np.zeros(2000), state[:, 1:].reshape(-1, 1),
        episode=np.repeat(np.arange(40), 50),
    )  # fmt: skip
    model = fit_dynamics(prepare(log, None, 0.9), "auto", 0, 1, QUICK)
    assert model.inferred
    assert not (model.ended > 0.5).any()


def test_bits_do_not_depend_on_threads():
    log, _ = steered(6, 0.05, n_episodes=10)
    found = []
    for threads in (1, 2):
        model = fit_dynamics(prepare(log, TARGET, 0.9), "auto", 3, threads, QUICK)
        found.append(roll_out(model, 0.9, 20, 3, threads).paths)
    np.testing.assert_array_equal(*found)


def follow(model, gamma, n, rng):
    """Paths of the model and the share of clipped coordinates, one member and one step after another."""
    states = model.fresh(n, rng)
    earned, alive, outside, lived = np.zeros(n), np.ones(n), 0.0, 0.0
    for share in step_weights(gamma):
        inputs = model.act(states, rng)
        parts = [model.predict(k, part) for k, part in enumerate(np.split(inputs, len(model.members)))]
        moved, reward, ends = (np.concatenate(part) for part in zip(*parts, strict=True))
        weight = share * alive
        earned += weight * reward
        rng.random(n)  # whether a row is kept as a visit
        draws = model.draws(n, rng)
        shaken = np.empty_like(moved)
        for r, tries in enumerate(draws):
            for row in tries:
                shaken[r] = moved[r] + model.change_scale * model.errors[row]
                if (shaken[r] >= model.low).all() and (shaken[r] <= model.high).all():
                    break
        states = np.clip(shaken, model.low, model.high)
        stays = weight * (1.0 - ends)
        outside += stays @ (np.abs(states - shaken) > model.tolerance).sum(axis=1)
        lived += stays.sum() * states.shape[1]
        if model.absorbing:
            alive = alive * (1.0 - ends)
        elif model.ends is not None:
            again = rng.random(n) < ends
            if again.any():
                states[again] = model.fresh(int(again.sum()), rng)
    return earned, outside / lived


def by_turns(states):
    """More of action 1 where the first coordinate is large."""
    up = 1.0 / (1.0 + np.exp(-states[:, 0]))
    return np.column_stack([1.0 - up, up])


@pytest.mark.parametrize(
    "policy", [None, by_turns, TARGET, GaussianPolicy(by_turns, 0.3, -0.2, 0.6), "sampled"]
)
@pytest.mark.parametrize("ends", ["inferred", "absorbing", "restarting", "none"])
def test_rollouts_are_those_of_plain_steps(policy, ends):
    log, _ = steered(11, 0.05, n_episodes=12, flags=ends in ("absorbing", "restarting"))
    action = log.action
    if policy is None:
        action = None
    elif policy is by_turns:
        action = (log.action[:, 0] > 0.0).astype(np.int64)
    elif policy == "sampled":
        policy = SampledPolicy(lambda states, rng: 0.1 * states[:, :1] + rng.normal(size=(len(states), 1)))
    elif policy is not TARGET:
        action = np.hstack([log.action, -log.action])
    flags = {} if log.terminal is None else {"terminal": log.terminal}
    log = lg.Transitions(
        log.state, action, log.reward, log.next_state, log.initial_state, log.episode, **flags
    )
    gamma = 0.9
    samples = prepare(log, policy, gamma, "restart" if ends == "restarting" else "auto")
    model = fit_dynamics(samples, "none" if ends == "none" else "auto", 0, 1, replace(QUICK, steps=40))
    assert (model.ends is None, model.absorbing) == (ends == "none", ends == "absorbing")
    if ends in ("absorbing", "inferred"):
        by_state = EndProbability(-3.0, np.array([0.5, -1.0]), np.array([[0.2, 0.7], [0.0, -0.3]]))
        model = replace(model, ends=by_state)
    found = roll_out(model, gamma, 20, 3, 2)
    blocks = [follow(model, gamma, 30, np.random.default_rng([3, 5, k])) for k in range(2)]
    wanted = np.concatenate([earned.reshape(3, 10) for earned, _ in blocks], axis=1)
    np.testing.assert_allclose(found.paths.reshape(3, 20), wanted, rtol=1e-12)
    assert found.clipped == pytest.approx(np.mean([clipped for _, clipped in blocks]), rel=1e-12)
    assert found.visited.shape[1] == samples.n_inputs
    assert len(found.visited) > 500


def test_actions_with_other_coordinates_than_the_log():
    log, _ = steered(12, 0.0, n_episodes=4)
    model = fit_dynamics(prepare(log, TARGET, 0.9), "none", 0, 1, replace(QUICK, steps=4))
    wide = SampledPolicy(lambda states, rng: np.zeros((len(states), 7)))
    with pytest.raises(ValueError, match="actions of 7 coordinates, the log has 1"):
        roll_out(replace(model, samples=prepare(log, wide, 0.9)), 0.9, 4, 0, 1)


def test_policies_without_density_and_mixed_actions():
    rng = np.random.default_rng(7)
    n = 3000
    state = rng.normal(size=(n, 1))
    gear = rng.integers(0, 2, size=(n, 1)).astype(float)
    force = rng.normal(size=(n, 1))
    following = 0.5 * state + gear * 0.4 * force + 0.05 * rng.normal(size=(n, 1))
    log = lg.Transitions(state, np.hstack([gear, force]), state[:, 0], following, episode=np.arange(n) // 30)

    def act(states, rng):
        return np.column_stack([np.ones(len(states)), np.full(len(states), 1.0)])

    solution = lg.solve(log, 1.0, policy=SampledPolicy(act), options={"effort": "quick", "restarts": "none"})
    # In gear 1 and at force 1: s = .5 s + .4.
    assert solution.value == pytest.approx(0.8, abs=0.06)
    assert solution.evidence.headline == "model"


def test_end_probability_at_a_bound():
    rng = np.random.default_rng(8)
    states = rng.normal(size=(4000, 2))
    ended = (np.abs(states[:, 0]) > 1.5).astype(float)
    found = fit_end_probability(states, ended, rng.integers(0, 3, 4000))
    predicted = found(states)
    assert np.mean((predicted > 0.5) == (ended > 0.5)) > 0.97
    assert predicted.mean() == pytest.approx(ended.mean(), abs=0.005)
    constant = fit_end_probability(states, np.full(4000, 0.1), rng.integers(0, 3, 4000))
    np.testing.assert_allclose(constant(states), 0.1, atol=0.01)
    assert fit_end_probability(states, np.zeros(4000), rng.integers(0, 3, 4000)) is None


def test_long_logs_are_read_in_strides(monkeypatch):
    rng = np.random.default_rng(10)
    states = rng.normal(size=(4000, 2))
    ended = (states[:, 0] > 1.0).astype(float)
    fold = rng.integers(0, 3, 4000)
    whole = fit_end_probability(states, ended, fold)(states)
    monkeypatch.setattr("lingendice.continuous.regression.MOST_ROWS", 1500)
    part = fit_end_probability(states, ended, fold)(states)
    assert not np.array_equal(whole, part)
    assert np.mean(np.abs(whole - part)) < 0.01


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99, 0.999, 0.9999, 0.999999, 1.0])
def test_steps_weigh_as_discounted_time_does(gamma):
    """Against the discounted mean of a reward that decays to a constant, 1 + 2 exp(-t / 20)."""
    weight = step_weights(gamma)
    found = weight @ (1.0 + 2.0 * np.exp(-np.arange(weight.size) / 20.0))
    truth = 1.0 + 2.0 * (1.0 - gamma) / (1.0 - gamma * np.exp(-1.0 / 20.0))
    assert weight.sum() == pytest.approx(1.0, rel=1e-12)
    assert found == pytest.approx(truth, rel=0.005)


# -- noise that is not normal, ends that shape it, units ----------------------------------------------------


def driven(noise, seed, episodes=40, length=50):
    """s' = .7 s + .4 a + noise of mean 0, both coordinates alike; rewards are up to the caller."""
    rng = np.random.default_rng(seed)
    now = 0.3 * rng.normal(size=(episodes, 2))
    parts = []
    for _ in range(length):
        action = 0.6 * rng.normal(size=(episodes, 1))
        then = 0.7 * now + 0.4 * action + noise(rng, episodes)
        parts.append((now, action, then))
        now = then
    rows = (np.stack(part, axis=1).reshape(episodes * length, -1) for part in zip(*parts, strict=True))
    return *rows, np.repeat(np.arange(episodes), length)


NOISES = {
    "skewed": lambda rng, n: 0.5 * (rng.exponential(size=(n, 1)) - 1.0) * np.ones(2),
    "jumps": lambda rng, n: 0.5 * (rng.random((n, 1)) < 0.3) * np.ones(2) - 0.15,
    "bounded": lambda rng, n: rng.uniform(-0.8, 0.8, (n, 2)),
    "dependent": lambda rng, n: 0.4 * rng.normal(size=(n, 1)) * np.array([1.0, -1.0]),
}
COVARIANCES = {
    "skewed": 0.25 * np.ones((2, 2)),
    "jumps": 0.25 * 0.21 * np.ones((2, 2)),
    "bounded": 0.64 / 3.0 * np.eye(2),
    "dependent": 0.16 * np.array([[1.0, -1.0], [-1.0, 1.0]]),
}


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("reward", ["first", "square", "product"])
def test_paths_have_the_noise_of_the_log(kind, reward):
    """Under a = .2 + .3 N the stationary mean is m = .08 / .3 and the covariance (.16 .09 + C) / .51."""
    state, action, following, episode = driven(NOISES[kind], 5)
    paid = {"first": state[:, 0], "square": state[:, 0] ** 2, "product": state[:, 0] * state[:, 1]}[reward]
    log = lg.Transitions(state, action, paid, following, episode=episode)
    policy = GaussianPolicy(lambda states: np.full((len(states), 1), 0.2), 0.3)
    moment = (COVARIANCES[kind] + 0.16 * 0.09) / (1.0 - 0.49)
    mean = 0.08 / 0.3
    exact = {"first": mean, "square": mean**2 + moment[0, 0], "product": mean**2 + moment[0, 1]}[reward]
    found = model_based(log, 1.0, policy=policy, effort="quick", restarts="none")
    assert abs(found.value - exact) < 0.09


def test_what_networks_err_by_is_no_noise():
    """Nothing is random in the first log, and there is too little of it to learn; the second is all noise."""
    rng = np.random.default_rng(8)
    onward = rng.normal(0.0, 0.6, size=(9, 8))
    now, rows = rng.normal(size=(20, 8)), []
    for _ in range(30):
        action = rng.normal(size=(20, 1))
        then = np.tanh(2.0 * np.hstack([now, action]) @ onward)
        rows.append((now, action, then))
        now = then
    state, action, following = (np.stack(part, 1).reshape(600, -1) for part in zip(*rows, strict=True))
    log = lg.Transitions(state, action, state[:, 0], following, episode=np.repeat(np.arange(20), 30))
    policy = GaussianPolicy(lambda states: 0.0 * states[:, :1], 0.3)
    model = fit_dynamics(prepare(log, policy, 0.9), "none", 0, 1, QUICK)
    logged = model.samples.state_scaling(following)
    every = np.stack([model.predict(member, model.samples.logged).states for member in range(3)])
    missed = (logged - every[folds(model.samples, 3, 0), np.arange(600)]) / model.change_scale
    median = np.median(np.abs(missed), axis=0)
    np.testing.assert_allclose(model.errors.std(axis=0), 1.4826 * median, rtol=0.1)
    noisy = driven(NOISES["bounded"], 5)
    log = lg.Transitions(noisy[0], noisy[1], noisy[0][:, 0], noisy[2], episode=noisy[3])
    model = fit_dynamics(prepare(log, policy, 0.9), "none", 0, 1, QUICK)
    deviation = model.errors.std(axis=0) * model.change_scale * model.samples.state_scaling.scale
    np.testing.assert_allclose(deviation, 0.8 / np.sqrt(3.0), rtol=0.08)


def test_a_constant_coordinate_is_not_outside():
    state, action, following, episode = driven(NOISES["bounded"], 6, episodes=20)
    seven = np.full((len(state), 1), 7.0)
    log = lg.Transitions(
        np.hstack([state, seven]), action, state[:, 0], np.hstack([following, seven]), episode=episode
    )
    policy = GaussianPolicy(lambda states: 0.0 * states[:, :1], 0.3)
    model = fit_dynamics(prepare(log, policy, 0.9), "none", 0, 1, QUICK)
    assert roll_out(model, 0.9, 20, 0, 1).clipped < 0.01


def walk(seed, episodes=150, fine=-3.0):
    """A walk that ends beyond 2, and pays ``fine`` with it; the log pushes either way at random."""
    rng = np.random.default_rng(seed)
    rows = []
    for name in range(episodes):
        now, over, step = 0.2 * rng.normal(), False, 0
        while not over and step < 40:
            action = int(rng.random() < 0.5)
            then = now + (0.3 if action else -0.3) + 0.4 * rng.normal()
            over, step = abs(then) > 2.0, step + 1
            rows.append((now, action, 1.0 + fine * over, then, name, over))
            now = then
    return [np.array(column) for column in zip(*rows, strict=True)]


def inward(states):
    """Probabilities of pushing left and right."""
    right = 1.0 / (1.0 + np.exp(2.0 * states[:, 0]))
    return np.column_stack([1.0 - right, right])


def exact_walk(gamma, fine, m=1201):
    """By quadrature over [-2, 2]."""
    x = np.linspace(-2.0, 2.0, m)
    h = x[1] - x[0]
    density = sum(
        inward(x[:, None])[:, [a]] * np.exp(-0.5 * ((x[None] - x[:, None] - push) / 0.4) ** 2)
        for a, push in enumerate((-0.3, 0.3))
    )
    inside = density * h / (0.4 * np.sqrt(2.0 * np.pi))
    inside[:, [0, -1]] *= 0.5
    reward = 1.0 + fine * (1.0 - inside.sum(axis=1))
    value = np.linalg.solve(np.eye(m) - gamma * inside, reward)
    start = np.exp(-0.5 * (x / 0.2) ** 2)
    return (1.0 - gamma) * float(start @ value / start.sum())


@pytest.mark.parametrize("filler", [False, True])
def test_flagged_ends_are_paid_once_and_shape_what_goes_on(filler):
    state, action, reward, following, episode, over = walk(0)
    if filler:
        following = np.where(over, 0.0, following)  # as some logs have it
    log = lg.Transitions(state, action, reward, following, episode=episode, terminal=over)
    exact = exact_walk(0.95, -3.0)
    found = model_based(log, 0.95, policy=inward, effort="quick")
    assert abs(found.value - exact) < 0.08


@pytest.mark.parametrize("pay", [1.0, 0.1, -3e5])
def test_a_constant_reward_is_worth_what_survives(pay):
    """As on CartPole: nothing varies but when it ends."""
    state, action, _, following, episode, over = walk(1)
    paid = np.full(len(state), pay)
    log = lg.Transitions(state, action, paid, following, episode=episode, terminal=over)
    found = lg.solve(log, 0.95, policy=inward, options={"effort": "quick"})
    exact = pay * exact_walk(0.95, 0.0)
    assert found.interval().contains(exact)
    assert found.interval().high - found.interval().low < 0.5 * abs(pay)
    for one in found.estimates:
        if one.name in ("model", "FQE", "DR"):
            assert abs(one.value - exact) < 0.1 * abs(pay)


@pytest.mark.parametrize("pay", [0.0, 0.1, 1e9])
@pytest.mark.parametrize("gamma", [0.95, 1.0])
def test_a_constant_reward_that_never_ends_is_the_value(pay, gamma):
    state, action, following, episode = driven(NOISES["bounded"], 7, episodes=10)
    policy = GaussianPolicy(lambda states: np.full((len(states), 1), 0.2), 0.3)
    log = lg.Transitions(state, action, np.full(len(state), pay), following, episode=episode)
    found = lg.solve(log, gamma, policy=policy, options={"effort": "quick"})
    np.testing.assert_allclose([one.value for one in found.estimates], pay, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.95, 1.0])
def test_answers_do_not_depend_on_units(gamma):
    state, action, following, episode = driven(NOISES["bounded"], 7, episodes=20)
    policy = GaussianPolicy(lambda states: np.full((len(states), 1), 0.5), 0.3)
    reward = state[:, 0] - action[:, 0] ** 2
    found = {}
    for scale, shift in ((1.0, 0.0), (1e-9, 0.0), (1e6, 0.0), (1.0, 1e5)):
        log = lg.Transitions(state, action, scale * reward + shift, following, episode=episode)
        solution = lg.solve(log, gamma, policy=policy, options={"effort": "quick"})
        found[scale, shift] = [(one.value - shift) / scale for one in solution.estimates]
        found[scale, shift].append(solution.interval().standard_error / scale)
    for other in found.values():
        np.testing.assert_allclose(other, found[1.0, 0.0], atol=2e-3)
    tiny = [1e-12 * part for part in (state, following)]
    small = GaussianPolicy(lambda states: np.full((len(states), 1), 0.5e-6), 0.3e-6)
    log = lg.Transitions(tiny[0], 1e-6 * action, reward, tiny[1], episode=episode)
    solution = lg.solve(log, gamma, policy=small, options={"effort": "quick"})
    np.testing.assert_allclose([one.value for one in solution.estimates], found[1.0, 0.0][:-1], atol=2e-3)


def test_every_member_has_rows_to_train_on():
    for n in range(2, 40):
        log = lg.Transitions(np.arange(n) / n, next_state=np.arange(n) / n, episode=np.zeros(n))
        for seed in range(5):
            assert np.unique(folds(prepare(log, None, 0.9), 3, seed)).size == min(n, 3)
    log = lg.Transitions([0.5], reward=[1.0], next_state=[0.7], episode=[0])
    for method in ("auto", "fqe", "model", "dr"):
        with pytest.raises(ValueError, match="one transition is too few"):
            lg.solve(log, 0.9, method=method)
