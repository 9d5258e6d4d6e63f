"""Decode a log ahead of its counting, several parts side by side, and hand batches over in order."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from lingendice.data.interrupts import interruptible
from lingendice.io.columns import Batch
from lingendice.kernels.parallel import WAKE

MOST_THREADS = 4  # counting goes in the order of rows: two or three decoders keep it busy
_BATCHES_AHEAD = 2
_GOODBYE = 1.0  # seconds; a source that waits for its next batch, a socket say, ends with the process


Prepare = Callable[[Batch], Batch]
"""What is done to a batch where it is decoded."""


class Part(NamedTuple):
    """A part of a log that can be read by itself."""

    read: Callable[[], Iterator[Batch]]
    small: bool = False
    """Whether it may be held in memory whole."""


def in_order(parts: Iterator[Part], prepare: Prepare, threads: int) -> Generator[Batch, None, None]:
    """Batches of all parts, prepared; with several threads, decoded before they are asked for."""
    if threads == 1:
        for part in parts:
            yield from map(prepare, part.read())
        return
    with interruptible() as work, work.held():  # threads that are begun by halves would never end
        window = _Window(parts, prepare, min(threads, MOST_THREADS))
    try:
        yield from window.batches()
    finally:
        window.stop()


class _Task:
    """A part on its way: when done, it has batches or the error that ended it."""

    def __init__(self, part: Part, prepare: Prepare) -> None:
        self.part, self.prepare = part, prepare
        self.done = False
        self.batches: Iterator[Batch] = iter(())
        self.error: BaseException | None = None

    def run(self) -> None:
        ready: list[Batch] = []
        self.batches = iter(ready)
        try:
            if not self.part.small:
                self.batches = _stream(map(self.prepare, self.part.read()))
                return
            ready.extend(map(self.prepare, self.part.read()))
        except Exception as error:
            self.error = error


class _Window:
    """The next few parts, in order; whoever has nothing to do decodes one, the counting thread too."""

    def __init__(self, parts: Iterator[Part], prepare: Prepare, threads: int) -> None:
        self.parts, self.prepare = parts, prepare
        self.room = threads + 2
        self.tasks: deque[_Task] = deque()
        self.ended = False
        self.changed = threading.Condition()
        self.helpers = [
            threading.Thread(target=self._help, name="lingendice-read", daemon=True)
            for _ in range(threads - 1)
        ]
        for helper in self.helpers:
            helper.start()

    def batches(self) -> Iterator[Batch]:
        """Batches in the order of the log, then the error that ended it, if one did."""
        while True:
            task = self._head()
            if task is not None:
                yield from task.batches
                if task.error is not None:
                    raise task.error
            elif (task := self._take()) is not None:
                self._run(task)
            elif not self._wait():
                return

    def _head(self) -> _Task | None:
        """The first task, taken out, if it is done."""
        with self.changed:
            if not self.tasks or not self.tasks[0].done:
                return None
            self.changed.notify_all()
            return self.tasks.popleft()

    def _wait(self) -> bool:
        """Wait until the first task is done; False where there is none."""
        with self.changed:
            while self.tasks and not self.tasks[0].done:
                self.changed.wait(WAKE)
            return bool(self.tasks)

    def _take(self) -> _Task | None:
        """Take on the next part, where there is one and room for it."""
        with self.changed:
            if self.ended or len(self.tasks) >= self.room:
                return None
            try:
                part = next(self.parts, None)
            except Exception as error:
                # Raised in its turn, after the parts before it.
                self.ended = True
                self.changed.notify_all()
                failed = _Task(Part(lambda: iter(())), self.prepare)
                failed.done, failed.error = True, error
                self.tasks.append(failed)
                return None
            if part is None:
                self.ended = True
                self.changed.notify_all()
                return None
            self.tasks.append(_Task(part, self.prepare))
            return self.tasks[-1]

    def _run(self, task: _Task) -> None:
        task.run()
        with self.changed:
            task.done = True
            self.changed.notify_all()

    def _help(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.ended or len(self.tasks) < self.room)
                if self.ended:
                    return
            task = self._take()
            if task is not None:
                self._run(task)

    def stop(self) -> None:
        """Let the helpers end after the part that they are at."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        for helper in self.helpers:
            helper.join()


def _stream(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, made by a thread of their own a few ahead."""
    ready: queue.Queue[tuple[Batch | None, BaseException | None]] = queue.Queue(maxsize=_BATCHES_AHEAD)
    stopped = threading.Event()

    def put(batch: Batch | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((batch, error), timeout=0.1)
            except queue.Full:
                continue
            return

    def produce() -> None:
        try:
            for batch in batches:
                put(batch, None)
                if stopped.is_set():
                    return
        except BaseException as error:
            put(None, error)
        else:
            put(None, None)

    thread = threading.Thread(target=produce, name="lingendice-read", daemon=True)
    with interruptible() as work, work.held():
        thread.start()
    try:
        while True:
            try:
                batch, error = ready.get(timeout=WAKE)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if batch is None:
                return
            yield batch
    finally:
        stopped.set()
        thread.join(_GOODBYE)
