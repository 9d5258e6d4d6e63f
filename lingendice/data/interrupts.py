"""Ctrl-C: the one place that holds it back while work is under way, and that raises it afterwards.

Whoever offers a piece of work to the user opens :func:`interruptible` around it. Once the work has something
worth keeping it calls ``hold``; from then on the first Ctrl-C is a request, ``raised``, that solvers read
between kernel calls, and a second one raises at once. Opened within another piece of work, in the same thread
or in one that :mod:`lingendice.kernels.parallel` runs for it, it joins that one. However the outermost piece
of work
ends, also if it has just finished, and also by another error, a Ctrl-C is raised there: compiled code that is
making its result turns one into a SystemError, and threads that are being started into a RuntimeError.

Signals are touched in the main thread alone, and only where Ctrl-C would raise KeyboardInterrupt: a program
with a handler of its own keeps it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any, TypeVar, cast

from lingendice.data.checks import require_choice

F = TypeVar("F", bound=Callable[..., Any])


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during ``solve``; ``solution`` holds the best solution so far, or the finished one."""

    def __init__(self, solution: Any) -> None:
        super().__init__("solve was interrupted; the best solution so far is in the exception's .solution")
        self.solution = solution


class _Flag:
    """Ctrl-C as all the work within one call sees it.

    A signal may come between any two instructions, those included that open and close the flag. So the
    handler waits while it opens, and whenever it raises it has closed the flag and put the old handler back:
    there is nothing left to do that the exception could cut short.
    """

    def __init__(self) -> None:
        self.raised = self.closed = self._installed = False
        self.holding = True
        self.owner = threading.current_thread()

    def open(self) -> None:
        if self.owner is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._installed = True
            signal.signal(signal.SIGINT, self._handle)

    def hold(self) -> None:
        if self.owner is threading.current_thread():
            self.holding = True

    def let_go(self) -> None:
        self.holding = False
        if self.raised:
            self.close()
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: Any) -> None:
        if self.raised or not self.holding:
            self.raised = True
            self.close()
            raise KeyboardInterrupt
        self.raised = True

    def close(self) -> None:
        self.closed = True
        if self._installed and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)


_current: ContextVar[_Flag | None] = ContextVar("interrupt", default=None)


def _outer() -> _Flag | None:
    """The flag of the work that this is part of.

    One that is closed was left behind by an exception, unless another thread works on for what its owner has
    given up.
    """
    flag = _current.get()
    return None if flag is None or (flag.closed and flag.owner is threading.current_thread()) else flag


class _Held:
    def __init__(self, flag: _Flag) -> None:
        self._flag = flag
        self._before = True

    def __enter__(self) -> None:
        self._before = self._flag.holding
        self._flag.hold()

    def __exit__(self, *_: object) -> None:
        if not self._before and self._flag.owner is threading.current_thread():
            self._flag.let_go()


class Work:
    """A piece of work that Ctrl-C may end; made by :func:`interruptible`."""

    def __init__(self, on_interrupt: str) -> None:
        self.solution: Any = None
        """What to hand over when the work is interrupted: the best so far."""
        self._on_interrupt = on_interrupt
        self._flag = _Flag()
        self._token: Token[_Flag | None] | None = None
        """Of the outermost work, which owns the flag."""

    @property
    def raised(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._flag.raised

    def hold(self) -> None:
        """From here on a Ctrl-C waits until the work has ended, which is to look at ``raised``."""
        self._flag.hold()

    def held(self) -> _Held:
        """For a step that must be done whole: a Ctrl-C is raised right after it."""
        return _Held(self._flag)

    def __enter__(self) -> Work:
        outer = _outer()
        if outer is not None:
            self._flag = outer
            return self
        self._flag.open()
        self._token = _current.set(self._flag)
        self._flag.let_go()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._token is None:
            return
        self._flag.close()
        if _current.get() is self._flag:
            _current.reset(self._token)
        if not self._flag.raised or not isinstance(error, (type(None), Exception, KeyboardInterrupt)):
            return
        if self._on_interrupt == "return" and not isinstance(error, (KeyboardInterrupt, SystemError)):
            return
        # An error may well come of work that was cut short: what the user asked for is to stop.
        raise KeyboardInterrupt if self.solution is None else Interrupted(self.solution) from error


def interruptible(on_interrupt: str = "raise") -> Work:
    """A piece of work; the outermost one raises a Ctrl-C at its end, with the solution that it was given.

    ``on_interrupt="return"``: the work ends by itself, and its caller gets what it returns.
    """
    return Work(on_interrupt)


def heeds_ctrl_c(function: F) -> F:
    """Make every call of a function a piece of work."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with interruptible():
            return function(*arguments, **options)

    return cast(F, call)


def unmask(error: BaseException) -> None:
    """Raise the Ctrl-C that compiled code made a SystemError of: for work too short for a handler."""
    behind: BaseException | None = error
    while isinstance(behind, SystemError):  # one for every function that it came through
        behind = behind.__cause__
    if behind is not error and isinstance(behind, KeyboardInterrupt):
        raise KeyboardInterrupt from error


def pending() -> bool:
    """Whether the work that this is part of was interrupted, and is to end."""
    flag = _outer()
    return flag is not None and flag.raised


def check() -> None:
    """Raise what was held back: for work that has nothing to return before its end."""
    if pending():
        raise KeyboardInterrupt


def read_on_interrupt(options: Mapping[str, Any] | None) -> str:
    """What the user's options say of Ctrl-C: "raise" or "return"."""
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"options must be a dict of names and values, got {options!r}")
    given = (options or {}).get("on_interrupt", "raise")
    return require_choice("options['on_interrupt']", given, ("raise", "return"))
