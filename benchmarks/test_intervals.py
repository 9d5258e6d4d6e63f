"""Speed of intervals on Taxi: closed form, and bootstrap replicates a second on all cores."""

from __future__ import annotations

import pytest

import lingendice as lg
from lingendice.environments import taxi

REPLICATES = 200


@pytest.fixture(scope="module")
def policies():
    return taxi.train_policies(seed=0)


@pytest.fixture(scope="module")
def counts(policies):
    return taxi.simulate(policies.base, 50, 100, seed=0).counts(keep_episodes=True)


OPTIONS = {"default": {}, "state-action ratio": {"ratio": "state_action"}}


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("gamma", [0.99, 1.0])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("method", ["influence", "bootstrap"])
def test_interval(benchmark, record, counts, policies, gamma, name, method):
    solution = lg.solve(counts, gamma, policy=policies.target, **OPTIONS[name])

    def run():
        drawn = {"replicates": REPLICATES} if method == "bootstrap" else {}
        return solution.interval(method=method, **drawn)

    found = benchmark.pedantic(run, warmup_rounds=1, rounds=5)
    assert found.standard_error > 0
    if method == "bootstrap":
        record.least(
            f"Taxi, 50 x 100 steps: bootstrap, gamma {gamma:g}, {name}",
            REPLICATES / benchmark.stats["median"], 200, "replicates a second", "each solves for tau again",
        )  # fmt: skip
