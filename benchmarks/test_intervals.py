"""Speed of intervals on Taxi: closed form, and bootstrap replicates a second."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.environments import taxi


@pytest.fixture(scope="module")
def counts():
    policy = np.full((taxi.N_STATES, taxi.N_ACTIONS), 1 / taxi.N_ACTIONS)
    log = taxi.simulate(policy, 50, 100, seed=0)
    return log.counts(keep_episodes=True)


@pytest.fixture(scope="module")
def target():
    return np.random.default_rng(0).dirichlet(np.full(taxi.N_ACTIONS, 5.0), size=taxi.N_STATES)


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("gamma", [0.99, 1.0])
@pytest.mark.parametrize("options", [{}, {"ratio": "state_action", "ridge": 0.0}], ids=["default", "plug-in"])
@pytest.mark.parametrize("method", ["influence", "bootstrap"])
def test_interval(benchmark, counts, target, gamma, options, method):
    """One interval; the bootstrap draws 200 replicates, so under a second is 200 a second."""

    def run():
        solution = lg.solve(counts, gamma, policy=target, **options)
        return solution.interval(method=method, replicates=200)

    found = benchmark.pedantic(run, warmup_rounds=1, rounds=3)
    assert found.standard_error > 0
