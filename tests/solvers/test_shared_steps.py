"""Minibatch steps over dense features that threads share: the same bits, and nobody left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from flows import mdp_flow
from saddle_problems import chain_flow, some_features

from lingendice.data.interrupts import interruptible
from lingendice.model.problem import RatioProblem
from lingendice.solvers.control import Controls, Stop, run
from lingendice.solvers.sgd import (
    OPTIONS,
    _Crew,
    _Runner,
    _State,
    bounded_for_sgd,
    part_size,
    solve_sgd,
    step_sizes,
)


def dense_problem(flow, **choices):
    features = [some_features(flow.n_cells, size, seed=size) for size in (3, 5)]
    return RatioProblem.build(flow, *features, bound=4.0, dual_bound=2.0, **choices)


@pytest.mark.parametrize(
    ("normalize", "kind"), [("penalty", "chain"), ("self", "chain"), ("penalty", "policy")]
)
@pytest.mark.parametrize("batch", [30, 37])
def test_dense_steps_have_the_same_bits_for_any_number_of_threads(monkeypatch, batch, normalize, kind):
    """A batch in parts of eight, shared or not, cut anywhere; one part gives the same up to rounding."""
    flow = chain_flow(12, 0.9) if kind == "chain" else mdp_flow(0.9, False)[0]
    problem = dense_problem(flow, normalize=normalize)

    def steps(threads, cuts=(0, 400), part=8 * 61):
        monkeypatch.setattr("lingendice.solvers.sgd.PART", part)
        runner, state = _Runner(problem, step_sizes(problem), batch, 1.0, threads), _State(problem, 3, None)
        for first, last in pairwise(cuts):
            runner.run(state, first, last, 400)
        return np.concatenate([state.w, state.v, state.w_sum, state.v_sum, [state.u, state.u_sum]]), runner

    alone, runner = steps(1)
    assert runner.part_size == 8
    for threads, cuts in ((2, (0, 400)), (5, (0, 400)), (2, (0, 1, 150, 400))):
        assert np.array_equal(steps(threads, cuts)[0], alone)
    # Helpers that are sent away at once, as on a busy machine, and called again later.
    monkeypatch.setattr("lingendice.solvers.sgd.PATIENCE", (-1, 0))
    sent_away, runner = steps(3, range(0, 401, 40))
    assert np.array_equal(sent_away, alone)
    assert runner.crew.repeated > 1
    whole, runner = steps(1, part=10**6)
    assert runner.part_size == batch
    assert np.allclose(whole, alone, rtol=1e-9, atol=1e-12)


def test_helpers_are_called_less_and_less_while_they_stand_in_the_way():
    crew, called = _Crew(4), []
    for dismissed in [True] * 12 + [False] * 4:
        called.append(crew.next())
        crew.note(called[-1], dismissed)
    assert called == [4, 1, 4, 1, 1, 1, 4, 1, 1, 1, 1, 1, 1, 1, 4, 4]


def test_large_batches_alone_are_cut():
    """Parts depend on the problem alone: of some microseconds of work each, sixteen at most."""

    def parts(width, batch):
        problem = RatioProblem.build(chain_flow(12, 0.9), *[some_features(12, width)] * 2, bound=4.0)
        return -(-batch // part_size(problem, batch))

    assert [parts(64, batch) for batch in (1, 64, 65, 256, 10**5)] == [1, 1, 2, 4, 16]
    assert [parts(8, batch) for batch in (256, 512, 1024)] == [2, 3, 5]


def test_an_interrupt_ends_shared_steps_and_leaves_nobody_at_work(monkeypatch):
    monkeypatch.setattr("lingendice.solvers.sgd.PART", 8 * 61)
    problem = bounded_for_sgd(dense_problem(chain_flow(12, 0.9)))
    solver = solve_sgd(problem, 1e-12, 0, {**OPTIONS, "batch": 64}, threads=2)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with interruptible("return"):
        outcome = run(solver, Controls(tol=1e-12, threads=2))
    timer.join()
    assert outcome.stopped is Stop.INTERRUPT
    spent = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - spent < 0.1
