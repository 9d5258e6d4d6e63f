"""The one place that ends work early."""

from __future__ import annotations

import math
import os
import signal
import sys

import numpy as np
import pytest

from lingendice.data.interrupts import interruptible
from lingendice.solvers.control import Controls, Outcome, Step, Stop, run, watch


def counting(limit, error=lambda n: 1.0 / n, on_step=lambda n: None):
    """A solver that needs ``limit`` steps and returns how many it took."""

    def solver():
        n = 0
        while n < limit:
            n += 1
            on_step(n)
            stop = yield Step(n, error(n))
            if stop is not None:
                return Outcome(np.array([n]), "count", "told to stop", converged=False, n_iter=n)
        return Outcome(np.array([n]), "count", "finished", converged=True, n_iter=n)

    return solver()


def ctrl_c_at(step):
    return lambda n: os.kill(os.getpid(), signal.SIGINT) if n == step else None


def test_a_solver_runs_to_its_end():
    outcome = run(counting(7), Controls())
    assert outcome.converged
    assert outcome.n_iter == 7
    assert outcome.stopped is None


def test_iteration_limit_keeps_the_best_so_far():
    outcome = run(counting(100), Controls(max_iter=5))
    assert (outcome.n_iter, outcome.stopped) == (5, Stop.ITERATIONS)


def test_time_limit():
    outcome = run(counting(10**9), Controls(time_limit=0.05))
    assert outcome.stopped is Stop.TIME
    assert outcome.n_iter > 1


def test_nan_ends_the_work():
    outcome = run(counting(100, error=lambda n: math.nan if n == 3 else 1.0), Controls())
    assert (outcome.n_iter, outcome.stopped) == (3, Stop.NOT_FINITE)


def test_ctrl_c_becomes_a_request_to_stop_and_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    with interruptible("return"):
        outcome = run(counting(1000, on_step=ctrl_c_at(4)), Controls())
    assert outcome.stopped is Stop.INTERRUPT
    assert outcome.n_iter == 4
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("step", [3, 7])  # amid the work, and in its last step
def test_ctrl_c_is_raised_where_nobody_else_answers_for_it(step):
    with pytest.raises(KeyboardInterrupt):
        run(counting(7, on_step=ctrl_c_at(step)), Controls())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_raises_at_once():
    def twice(n):
        if n in (2, 3):
            os.kill(os.getpid(), signal.SIGINT)

    def deaf():
        for n in range(1, 100):
            twice(n)
            if n % 50 == 0:
                yield Step(n)
        return Outcome(np.ones(1), "deaf", "", converged=True)

    with pytest.raises(KeyboardInterrupt):
        run(deaf(), Controls())


def test_an_embedding_program_keeps_its_own_handler():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        outcome = run(counting(5, on_step=ctrl_c_at(2)), Controls())
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.converged
    assert seen == [signal.SIGINT]


def test_progress_goes_to_stderr_and_is_wiped(capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with watch(Controls(progress=True, started=-1e9)) as monitor:
        monitor.note(12, 1e-3)
    out, err = capfd.readouterr()
    assert out == ""
    assert "step 12, error 1.0e-03" in err
    assert err.endswith("\r")


def test_progress_vanishes_in_a_pipe(capfd):
    with watch(Controls(progress=True, started=-1e9)) as monitor:
        monitor.note(12, 1e-3)
    assert capfd.readouterr() == ("", "")


def test_monitor_says_why():
    with watch(Controls(time_limit=1e-9)) as monitor:
        assert monitor()
        assert monitor.stopped is Stop.TIME
