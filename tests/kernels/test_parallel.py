"""Tasks side by side: nobody works on when they have ended, however they ended."""

from __future__ import annotations

import threading

import pytest

from lingendice.kernels.parallel import run_all


def test_results_come_in_the_order_given():
    first_may_end = threading.Event()

    def late():
        assert first_may_end.wait(10)
        return "late"

    def early():
        first_may_end.set()
        return "early"

    assert run_all([late, early], 2) == ["late", "early"]
    assert run_all([lambda: 1, lambda: 2], 1) == [1, 2]


def test_other_tasks_have_ended_when_one_fails():
    begun, ended = threading.Event(), threading.Event()

    def work():
        begun.set()
        threading.Event().wait(0.1)
        ended.set()

    def fail():
        assert begun.wait(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([fail, work], 2)
    assert ended.is_set()


def test_tasks_that_never_began_are_not_run_after_a_failure():
    begun = []

    def fail():
        raise ArithmeticError("of a task")

    def work():
        begun.append(1)
        threading.Event().wait(0.05)

    with pytest.raises(ArithmeticError, match="of a task"):
        run_all([fail, *[work] * 50], 2)
    assert len(begun) < 50
