"""A task beside its helpers: nobody works on when it has ended, however it ended."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from lingendice.kernels.parallel import run_beside


def test_helpers_have_ended_when_the_task_fails():
    begun, ended = threading.Event(), threading.Event()

    def help_out():
        begun.set()
        threading.Event().wait(0.1)
        ended.set()

    def fail():
        assert begun.wait(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_beside(fail, [help_out], 2)
    assert ended.is_set()


def test_a_helper_that_never_began_is_not_waited_for():
    release, done = threading.Event(), []

    def occupy(name):
        done.append(name)
        assert release.wait(10)

    def task():
        while len(done) < 3:
            threading.Event().wait(0.001)
        # The pool's three threads are taken: a task beside a fourth helper ends by itself.
        assert run_beside(lambda: "alone", [partial(occupy, "late")], 3) == "alone"
        release.set()

    run_beside(task, [partial(occupy, name) for name in "abc"], 3)
    assert sorted(done) == ["a", "b", "c"]


def test_what_a_helper_raises_is_raised():
    begun = threading.Event()

    def fail():
        begun.set()
        raise ArithmeticError("of a helper")

    with pytest.raises(ArithmeticError, match="of a helper"):
        run_beside(lambda: begun.wait(10), [fail], 2)
