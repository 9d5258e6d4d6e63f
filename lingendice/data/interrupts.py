"""Ctrl-C: the one place that holds it back while work is under way, and that raises it afterwards.

Whoever offers a piece of work to the user opens :func:`interruptible` around it. Once the work has something
worth keeping it calls ``hold``; from then on the first Ctrl-C is a request, ``raised``, that solvers read
between kernel calls, and a second one raises at once. Opened within another piece of work, in the same thread
or in one that :mod:`lingendice.kernels.parallel` runs for it, it joins that one. However the outermost piece
of work ends, also if it has just finished, a Ctrl-C that was held back is raised there.

Signals are touched in the main thread alone, and only where Ctrl-C would raise KeyboardInterrupt: a program
with a handler of its own keeps it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from lingendice.data.checks import require_choice


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during ``solve``; ``solution`` holds the best solution so far, or the finished one."""

    def __init__(self, solution: Any) -> None:
        super().__init__("solve was interrupted; the best solution so far is in the exception's .solution")
        self.solution = solution


class _Flag:
    """Ctrl-C as all the work within one call sees it."""

    def __init__(self) -> None:
        self.raised = self.closed = False
        self._held = False

    def hold(self) -> None:
        if self._held or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._held = True
            signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        if self.raised:
            # Whatever this exception cuts short, a clean-up included, no trace of us is left.
            self.closed = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        self.raised = True

    def close(self) -> None:
        self.closed = True
        if self._held:
            signal.signal(signal.SIGINT, signal.default_int_handler)


_current: ContextVar[_Flag | None] = ContextVar("interrupt", default=None)


class Work:
    """A piece of work that Ctrl-C may end."""

    def __init__(self, flag: _Flag) -> None:
        self._flag = flag
        self.solution: Any = None
        """What to hand over when the work is interrupted: the best so far."""

    @property
    def raised(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._flag.raised

    def hold(self) -> None:
        """From here on a Ctrl-C waits until the work has ended, which is to look at ``raised``."""
        self._flag.hold()


@contextmanager
def interruptible(on_interrupt: str = "raise") -> Iterator[Work]:
    """A piece of work; the outermost one raises a Ctrl-C at its end, with the solution that it was given.

    ``on_interrupt="return"``: the work ends by itself, and its caller gets what it returns.
    """
    outer = _current.get()
    if outer is not None and not outer.closed:
        yield Work(outer)
        return
    flag = _Flag()
    work = Work(flag)
    token = _current.set(flag)
    try:
        yield work
    except (Exception, KeyboardInterrupt) as error:
        flag.close()
        if not flag.raised or (on_interrupt == "return" and isinstance(error, Exception)):
            raise
        # An error may well come of work that was cut short: what the user asked for is to stop.
        raise _interruption(work) from error
    finally:
        flag.close()
        _current.reset(token)
    if flag.raised and on_interrupt == "raise":
        raise _interruption(work)


def pending() -> bool:
    """Whether the work that this is part of was interrupted, and is to end."""
    flag = _current.get()
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


def _interruption(work: Work) -> KeyboardInterrupt:
    return KeyboardInterrupt() if work.solution is None else Interrupted(work.solution)
