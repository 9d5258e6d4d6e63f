"""The workers' side: the numbered rounds of messages in which parts talk, each with a deadline.

A phase is one function that all parts run at the same time. A worker takes part in it by one Dask task,
whatever the number of rounds; messages go from worker to worker on Dask's own connections.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

Array = NDArray[Any]
_LOOK = 0.2  # seconds between two looks at whether a wait is to end
_REMEMBERED = 200  # ended runs whose late messages are dropped


class PartLost(RuntimeError):
    """A part of the problem, or the worker that held it, does not answer: the work is to be begun anew."""


class PhaseInbox:
    """One phase as a worker sees it: messages for its parts by destination, round and sender."""

    def __init__(self) -> None:
        self.stop = False
        """Whether the client wants the best so far."""
        self.step: tuple[int, float] | None = None
        """How far the work has come: rounds, and the error."""
        self.ended: str | None = None
        self._messages: dict[tuple[int, ...], tuple[Array, ...]] = {}
        self._changed = threading.Condition()

    def put(self, key: tuple[int, ...], arrays: tuple[Array, ...]) -> None:
        """Leave a message; one that comes late is dropped."""
        with self._changed:
            if self.ended is None:
                self._messages[key] = arrays
                self._changed.notify_all()

    def end(self, why: str) -> None:
        """Whoever waits, or will wait, gets an error."""
        with self._changed:
            self.ended = self.ended or why
            self._messages.clear()
            self._changed.notify_all()

    def take(self, key: tuple[int, ...], patience: float) -> tuple[Array, ...]:
        """Wait for a message."""
        deadline = time.monotonic() + patience
        with self._changed:
            while key not in self._messages:
                if self.ended is not None:
                    raise PartLost(self.ended)
                left = deadline - time.monotonic()
                if left <= 0.0:
                    raise PartLost(f"part {key[2]} sent nothing for {patience:.0f} s")
                self._changed.wait(min(left, _LOOK))
            return self._messages.pop(key)


class Mesh:
    """One part's place among all parts. Every part must make the same calls in the same order.

    ``send(dest, key, arrays)`` brings arrays to the run on the worker that holds part ``dest``.
    """

    def __init__(
        self, index: int, n_parts: int, run: PhaseInbox,
        send: Callable[[int, tuple[int, ...], tuple[Array, ...]], None], patience: float = 60.0,
    ) -> None:  # fmt: skip
        self.index, self.n_parts, self.run, self.patience = index, n_parts, run, patience
        self.others = [(index + shift) % n_parts for shift in range(1, n_parts)]
        self.bytes_sent = 0
        self._send, self._round = send, 0

    def begin(self) -> None:
        """Begin the next round."""
        self._round += 1

    def post(self, dest: int, *arrays: Array) -> None:
        """Send arrays to another part, which must not be changed any more."""
        self.bytes_sent += sum(array.nbytes for array in arrays)
        self._send(dest, (dest, self._round, self.index), arrays)

    def take(self, source: int) -> tuple[Array, ...]:
        """What another part sent in this round."""
        return self.run.take((self.index, self._round, source), self.patience)

    def gather(self, *arrays: Array) -> list[tuple[Array, ...]]:
        """A round by itself: the arrays of every part, by part."""
        self.begin()
        for dest in self.others:
            self.post(dest, *arrays)
        return [arrays if part == self.index else self.take(part) for part in range(self.n_parts)]

    def total(self, numbers: Floats) -> Floats:
        """A round by itself: the sum over parts, the same bits everywhere."""
        return np.sum([held[0] for held in self.gather(numbers)], axis=0)


# -- the worker --------------------------------------------------------------------------------------------


_runs: dict[str, PhaseInbox] = {}
_lock = threading.Lock()


def run_of(name: str) -> PhaseInbox:
    """A run by name, which may get messages before its task has begun here, and after it has ended."""
    with _lock:
        if name not in _runs:
            for old in [each for each, run in _runs.items() if run.ended is not None][:-_REMEMBERED]:
                del _runs[old]
            _runs[name] = PhaseInbox()
        return _runs[name]


def listen() -> Any:
    """The worker that this task runs on, which from now on takes messages."""
    from distributed import get_worker

    worker = get_worker()
    worker.handlers["lingendice_message"] = receive
    return worker


def receive(run: str, key: Sequence[int], arrays: Sequence[Array]) -> str:
    """A message from another worker."""
    run_of(run).put(tuple(key), tuple(arrays))
    return "received"


async def _deliver(
    worker: Any, address: str, run: str, key: tuple[int, ...], arrays: tuple[Array, ...]
) -> None:
    from distributed.protocol.serialize import Serialize

    held = [Serialize(array) for array in arrays]  # type: ignore[no-untyped-call]
    try:
        await worker.rpc(address).lingendice_message(run=run, key=key, arrays=held)
    except Exception as error:  # whatever the connection raises: the other side is gone
        run_of(run).end(f"a message did not arrive: {error!r}")


def run_phase(
    name: str, function: Callable[..., Any], parts: Mapping[int, Any],
    arguments: Mapping[int, tuple[Any, ...]], addresses: Sequence[str], patience: float,
) -> dict[int, Any]:  # fmt: skip
    """The task of one worker: run a phase for all parts that it holds; returns what each has found."""
    worker, run = listen(), run_of(name)
    found: dict[int, Any] = {}
    errors: list[BaseException] = []

    def send(dest: int, key: tuple[int, ...], arrays: tuple[Array, ...]) -> None:
        if addresses[dest] == worker.address:
            run.put(key, arrays)
            return
        sending = _deliver(worker, addresses[dest], name, key, arrays)
        asyncio.run_coroutine_threadsafe(sending, worker.loop.asyncio_loop)

    def go(index: int) -> None:
        try:
            mesh = Mesh(index, len(addresses), run, send, patience)
            found[index] = function(parts[index], mesh, *arguments[index])
        except BaseException as error:
            errors.append(error)
            run.end(f"part {index} ended: {error}")

    threads = [threading.Thread(target=go, args=(index,)) for index in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise ([error for error in errors if not isinstance(error, PartLost)] or errors)[0]
    return found


# -- what the client asks of every worker, outside of all tasks ----------------------------------------------


def end_run(name: str) -> None:
    """Forget a run; whoever still waits in it gets an error."""
    run_of(name).end("the phase has ended")


def stop_run(name: str) -> None:
    """Ask the parts to end with the best they have."""
    run_of(name).stop = True


def step_of(name: str) -> tuple[int, float] | None:
    """How far a run has come."""
    return run_of(name).step
