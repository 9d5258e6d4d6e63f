"""Views of the operator: adjoint to their transposes and the same chain, over one list of problems."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from problems import dense_operator

import lingendice as lg
from lingendice.model.compose import Choices, compose
from lingendice.model.pull_system import go_on
from lingendice.solvers.ridge import RidgeSystem

LEAKS = ("restart", "absorb", "error")
TERMINALS = ("restart", "absorb")
RATIOS = ("chain", "state", "state_action")
EVERY = [
    (gamma, leak, terminal, ratio)
    for gamma, leak, terminal, ratio in product((1.0, 0.9), LEAKS, TERMINALS, RATIOS)
    if gamma < 1.0 or "absorb" not in (leak, terminal)
]


def build(gamma, leak, terminal, ratio):
    """Seven states of which two have no outgoing transitions; some episodes end."""
    rng = np.random.default_rng(5)
    state, following = rng.integers(0, 5, 80), rng.integers(0, 7, 80)
    ends = rng.uniform(size=80) < 0.1
    action = None if ratio == "chain" else rng.integers(0, 2, 80)
    sizes = {"n_states": 7} if ratio == "chain" else {"n_states": 7, "n_actions": 2}
    counts = lg.Counts.from_transitions(
        state, following, action, terminal=ends, episode=np.arange(80), **sizes
    )
    choices = Choices(gamma=gamma, leak=leak, terminal=terminal, initial=rng.dirichlet(np.ones(7)))
    if ratio != "chain":
        choices = choices._replace(policy=rng.dirichlet(np.ones(2), 7), ratio=ratio, unseen="leak")
    return compose(counts, choices)


def pulled(system, y):
    """A y by a pull system."""
    image, zero = np.empty(system.size), np.zeros(system.size)
    system.residual(zero, system.sorted(y), zero, np.ones(system.size), image)
    return system.unsorted(image)


def pull_form(operator):
    """The counted part of the chain, swept by Gauss-Seidel."""
    chain, order = operator.chain, np.random.default_rng(0).permutation(operator.n_states)
    down, up, share = chain.pull_values(1, go_on), chain.pull(1, go_on, order), chain.counted.share
    return (
        lambda values: share * pulled(down, values),
        lambda mass: pulled(up, share * mass),
        operator.n_states,
        operator.n_states,
    )


def extended(operator):
    rates, _ = operator.chain.extended(operator.gamma, operator.initial)
    return rates.__matmul__, rates.T.__matmul__, *rates.shape


def ridge_rows(operator):
    system = RidgeSystem(operator, 1e-3)
    return system.scaled_transpose, system.scaled, system.q.size, system.q.size


def flow_view(closed):
    def view(operator):
        flow = operator.flow(closed=closed)
        only = flow.seen if closed else np.ones(flow.n_cells, dtype=bool)
        return (
            lambda values: np.where(only, flow.apply(np.where(only, values, 0.0)), 0.0),
            lambda mass: flow.apply_transpose(np.where(only, mass, 0.0)),
            flow.n_cells,
            flow.n_cells,
        )

    return view


VIEWS = {
    "operator": lambda operator: (
        operator.apply, operator.apply_transpose, operator.n_cells, operator.n_cells,
    ),
    "rows": lambda operator: (
        operator.rows.apply, operator.rows.apply_transpose, operator.n_cells, operator.n_states,
    ),
    "chain": lambda operator: (
        operator.chain.apply, operator.chain.apply_transpose, operator.n_states, operator.n_states,
    ),
    "flow": flow_view(closed=False),
    "closed flow": flow_view(closed=True),
    "extended chain": extended,
    "pull form": pull_form,
    "rows for the ridge": ridge_rows,
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("problem", EVERY, ids=str)
def test_adjointness(view, problem):
    apply, apply_transpose, n_rows, n_columns = VIEWS[view](build(*problem))
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=n_columns), rng.normal(size=n_rows)
    assert apply(x) @ y == pytest.approx(x @ apply_transpose(y), rel=1e-11, abs=1e-13)


def stationary(operator):
    """mu over cells by dense linear algebra."""
    dense, n = dense_operator(operator), operator.n_cells
    if operator.gamma == 1.0:
        system = np.vstack([dense.T - np.eye(n), np.ones(n)])
        return np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]
    right = (1.0 - operator.gamma) * operator.cell_initial
    return np.linalg.solve(np.eye(n) - operator.gamma * dense.T, right)


@pytest.mark.parametrize("problem", EVERY, ids=str)
def test_every_view_has_the_stationary_distribution_of_the_operator(problem):
    operator = build(*problem)
    gamma, mu = operator.gamma, stationary(operator)
    assert (~operator.seen).any()
    assert mu[~operator.seen].sum() > 1e-3
    assert np.abs(operator.residual(mu)).max() < 1e-13
    states = mu.reshape(7, -1).sum(axis=1)
    start = (1.0 - gamma) * operator.initial
    assert np.allclose(start + gamma * operator.chain.apply_transpose(states), states, atol=1e-13)
    for closed in (False, True):
        flow = operator.flow(closed=closed)
        over = mu if flow.n_cells == operator.n_cells else states
        if closed:
            mass = np.where(flow.seen, over, 0.0)
            assert np.allclose(flow.inflow(mass), mass, atol=1e-13)
            assert np.allclose(flow.completed(mass), over, atol=1e-13)
            # Of states with a seen action, those never logged still leak within ratio="state".
            if operator.ratio == "state_action" or operator.policy is None:
                assert flow.mass_weight @ mass + flow.mass_offset == pytest.approx(1.0)
        else:
            assert np.allclose(flow.inflow(over), over, atol=1e-13)
    system = RidgeSystem(operator, 1e-3)
    over = mu if system.over_cells else states
    assert np.allclose(system.scaled(over[system.seen] / system.q), system._target, atol=1e-12)


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("problem", [one for one in EVERY if one[0] < 1.0], ids=str)
def test_the_mass_of_leaks_terminals_and_data_is_one(problem):
    operator = build(*problem)
    mu, gamma = stationary(operator), operator.gamma
    ended = gamma / (1.0 - gamma) * float(mu @ operator.ended)
    assert float(mu @ operator.visit_mass) + ended == pytest.approx(1.0)
    if operator.choices.leak != "error":
        named = ("policy", "initial", "leak", "terminal", "ratio", "unseen")
        choices = {name: getattr(operator.choices, name) for name in named}
        solution = lg.solve(operator.counts, gamma, **choices, ridge=0, clone=0)
        assert solution.leak == pytest.approx(float((mu * operator.visit_mass)[~operator.seen].sum()))


def test_a_prior_leads_on_from_leaks_that_would_absorb():
    counts = lg.Counts.from_transitions([0, 0, 1], [1, 2, 2], n_states=3)
    operator = compose(counts, Choices(gamma=0.9, leak="absorb", smoothing=2.0))
    assert not operator.absorbs_leaks
    assert np.array_equal(operator.visit_mass, np.ones(3))
    solution = lg.solve(counts, 0.9, leak="absorb", smoothing=2.0)
    assert solution.leak == pytest.approx(solution.stationary[2])
    assert solution.stationary.sum() == pytest.approx(1.0)
