"""Taxi: steps per second of the sampler; one estimate against the quadratic program of Liu et al. (2018)."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from conftest import alternate

import lingendice as lg
from lingendice.environments import taxi

UNIFORM = np.full((taxi.N_STATES, taxi.N_ACTIONS), 1 / taxi.N_ACTIONS)


def test_simulate_two_million_steps(benchmark, record):
    taxi.simulate(UNIFORM, 1, 1)
    benchmark(taxi.simulate, UNIFORM, 5000, 400, threads=1)
    millions = 2.0 / benchmark.stats["median"]
    record.least("Taxi: steps of the sampler", millions, 5, "million a second", "one thread")


def test_train_both_policies(benchmark):
    taxi.train_policies(target_iterations=1, base_iterations=1)
    benchmark.pedantic(taxi.train_policies, rounds=3)


def quadratic_program(log: taxi.TaxiLog, target: np.ndarray, behavior: np.ndarray) -> float:
    """The value per step by a dense quadratic program in the state ratio, behavior known, gamma = 1.

    min over x >= 0, sum p x = 1 of x' G x with a small multiple of the identity, as in the published
    estimator (its regularizer 1e-3, G divided by 50); written anew here for the comparison alone.
    """
    import quadprog

    n = taxi.N_STATES
    weight = (target / behavior)[log.state, log.action]
    flow = np.zeros((n, n))
    np.add.at(flow, (log.state, log.next_state), weight)
    np.add.at(flow, (log.next_state, log.next_state), -1.0)
    visits = np.bincount(log.next_state, minlength=n).astype(float)
    scaled = flow / np.maximum(visits, 1.0)[None, :]
    G = scaled @ flow.T / 50.0 + 1e-3 * np.eye(n)
    share = np.bincount(log.state, minlength=n) / log.state.size
    constraints = np.column_stack([share, np.eye(n)])
    ratio = quadprog.solve_qp(G, np.zeros(n), constraints, np.concatenate([[1.0], np.zeros(n)]), meq=1)[0]
    weights = ratio[log.state] * weight
    return float(weights @ log.reward / weights.sum())


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_estimate_of_a_large_log(record):
    """200 x 400 steps, regularization chosen from the data, from counts to the value."""
    policies = taxi.train_policies(seed=0)
    log = taxi.simulate(policies.base, 200, 400, seed=3)
    counts = log.counts()
    truth = taxi.policy_value(policies.target, 1.0)

    def ours(threads: int | None = None) -> float:
        return float(lg.solve(counts, policy=policies.target, threads=threads).value)

    assert abs(ours() - truth) < 0.05
    seconds = alternate({"both cores": ours, "one thread": lambda: ours(1)}, 30)
    record.limit(
        "Taxi, 200 x 400 steps: one estimate", 1e3 * seconds["both cores"], 50, "ms",
        f"default of solve, after warm-up; one thread takes {1e3 * seconds['one thread']:.0f} ms",
    )  # fmt: skip
    pytest.importorskip("quadprog", reason="pip install -r benchmarks/requirements-peers.txt")
    its_value = quadratic_program(log, policies.target, policies.base)
    record.ratio(
        "Taxi, 200 x 400 steps: one estimate, against a dense program",
        lambda: statistics.fmean(ours(1) for _ in range(10)),
        {"quadprog": lambda: quadratic_program(log, policies.target, policies.base)},
        30,
        repeats=3,
        note=f"one thread each; off by {abs(ours() - truth):.4f} and {abs(its_value - truth):.4f}; "
        "the program is given the behavior",
        steps={"lingendice": 10, "quadprog": 1},
    )
