"""Steps per second of the Taxi sampler on one core, and the time to train both policies."""

from __future__ import annotations

import numpy as np

from lingendice.environments import taxi

UNIFORM = np.full((taxi.N_STATES, taxi.N_ACTIONS), 1 / taxi.N_ACTIONS)


def test_simulate_two_million_steps(benchmark):
    taxi.simulate(UNIFORM, 1, 1)
    benchmark(taxi.simulate, UNIFORM, 5000, 400, threads=1)
    benchmark.extra_info["steps per second"] = 2_000_000 / benchmark.stats["median"]


def test_train_both_policies(benchmark):
    taxi.train_policies(target_iterations=1, base_iterations=1)
    benchmark.pedantic(taxi.train_policies, rounds=3)
