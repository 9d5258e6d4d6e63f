"""Minibatch steps over dense features: the same bits however a run of them is cut, and a prompt end."""

from __future__ import annotations

import os
import signal
import threading
from itertools import pairwise

import numpy as np
import pytest
from flows import mdp_flow
from saddle_problems import chain_flow, some_features

from lingendice.data.interrupts import interruptible
from lingendice.solvers.control import Controls, Stop, run
from lingendice.solvers.problem import RatioProblem
from lingendice.solvers.sgd import OPTIONS, _Runner, _State, bounded_for_sgd, solve_sgd, step_sizes


def dense_problem(flow, **choices):
    features = [some_features(flow.n_cells, size, seed=size) for size in (3, 5)]
    return RatioProblem.build(flow, *features, bound=4.0, dual_bound=2.0, **choices)


@pytest.mark.parametrize(
    ("normalize", "kind"), [("penalty", "chain"), ("self", "chain"), ("penalty", "policy")]
)
@pytest.mark.parametrize("batch", [1, 30, 37])
def test_dense_steps_have_the_same_bits_however_they_are_cut(batch, normalize, kind):
    flow = chain_flow(12, 0.9) if kind == "chain" else mdp_flow(0.9, False)[0]
    problem = dense_problem(flow, normalize=normalize)

    def steps(cuts):
        runner, state = _Runner(problem, step_sizes(problem), batch, 1.0), _State(problem, 3, None)
        for first, last in pairwise(cuts):
            runner.run(state, first, last, 400)
        return np.concatenate([state.w, state.v, state.w_sum, state.v_sum, [state.u, state.u_sum]])

    whole = steps((0, 400))
    assert np.isfinite(whole).all()
    assert np.array_equal(steps((0, 1, 150, 400)), whole)


def test_an_interrupt_ends_minibatch_steps():
    problem = bounded_for_sgd(dense_problem(chain_flow(12, 0.9)))
    solver = solve_sgd(problem, 1e-12, 0, {**OPTIONS, "batch": 64})
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with interruptible("return"):
        outcome = run(solver, Controls(tol=1e-12))
    timer.join()
    assert outcome.stopped is Stop.INTERRUPT
