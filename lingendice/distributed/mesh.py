"""The workers' side: parts, and the numbered rounds of messages in which they talk, each with a deadline.

A phase is one function that all parts run at the same time. A worker takes part in it by one Dask task,
whatever the number of rounds; messages go from worker to worker on Dask's own connections.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

Array = NDArray[Any]
PIECE = 500_000
"""Numbers that one message holds at most: larger ones take a multiple of the time (fresh pages)."""
_LOOK = 0.2  # seconds between two looks at whether a wait is to end
_REMEMBERED = 200  # ended runs whose late messages are dropped


class PartLost(RuntimeError):
    """A part of the problem, or the worker that held it, does not answer: the work is to be begun anew."""


class Mailbox:
    """Messages that came in for one part, by round and sender; safe between threads."""

    def __init__(self) -> None:
        self._messages: dict[Any, tuple[Array, ...]] = {}
        self._changed = threading.Condition()
        self._closed: str | None = None

    def put(self, key: Any, arrays: tuple[Array, ...]) -> None:
        """Leave a message."""
        with self._changed:
            self._messages[key] = arrays
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Whoever waits, or will wait, gets an error."""
        with self._changed:
            self._closed = self._closed or why
            self._changed.notify_all()

    def take(self, key: Any, patience: float) -> tuple[Array, ...]:
        """Wait for a message."""
        deadline = time.monotonic() + patience
        with self._changed:
            while key not in self._messages:
                if self._closed is not None:
                    raise PartLost(self._closed)
                left = deadline - time.monotonic()
                if left <= 0.0:
                    raise PartLost(f"part {key[1]} sent nothing for {patience:.0f} s")
                self._changed.wait(min(left, _LOOK))
            return self._messages.pop(key)


Send = Callable[[int, Any, tuple[Array, ...]], Any]
"""Sends arrays to a part under a key; returns what ends (``result(timeout)``) when they have arrived."""


class Mesh:
    """One part's place among all parts. Every part must make the same calls in the same order."""

    def __init__(
        self, index: int, n_parts: int, box: Mailbox, send: Send, patience: float = 60.0,
        flags: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.index, self.n_parts, self.patience = index, n_parts, patience
        self.others = [(index + shift) % n_parts for shift in range(1, n_parts)]
        self.flags = {} if flags is None else flags
        """``stop``: whether this part was told to end; ``step``: how far the work has come."""
        self.bytes_sent = 0
        self._box, self._send = box, send
        self._round = 0
        self._under_way: list[list[Any]] = [[], []]

    def begin(self) -> int:
        """Begin the next round; returns which of two sets of buffers is free for its messages."""
        self._round += 1
        parity = self._round % 2
        for sent in self._under_way[parity]:
            try:
                sent.result(self.patience)
            except Exception as error:  # whatever the connection raises: the other side is gone
                raise PartLost(f"a message did not arrive: {error!r}") from error
        self._under_way[parity] = []
        return parity

    def post(self, dest: int, piece: int, *arrays: Array) -> None:
        """Send arrays to another part; they must not change until the round after next begins."""
        sent = self._send(dest, (self._round, self.index, piece), arrays)
        self.bytes_sent += sum(array.nbytes for array in arrays)
        if sent is not None:
            self._under_way[self._round % 2].append(sent)

    def take(self, source: int, piece: int = 0) -> tuple[Array, ...]:
        """What another part sent in this round."""
        return self._box.take((self._round, source, piece), self.patience)

    def gather(self, *arrays: Array) -> list[tuple[Array, ...]]:
        """A round by itself: the arrays of every part, by part."""
        self.begin()
        for dest in self.others:
            self.post(dest, 0, *arrays)
        return [arrays if part == self.index else self.take(part) for part in range(self.n_parts)]

    def total(self, numbers: Floats) -> Floats:
        """A round by itself: the sum over parts, the same bits everywhere."""
        return sum_parts([held[0] for held in self.gather(numbers)])

    def tell(self, step: int, error: float) -> None:
        """Note how far the work has come."""
        self.flags["step"] = (step, error)

    @property
    def told_to_stop(self) -> bool:
        """Whether the client wants the best so far."""
        return bool(self.flags.get("stop"))


def sum_parts(numbers: Sequence[Floats]) -> Floats:
    """Numbers of all parts added in order."""
    total = np.array(numbers[0], dtype=np.float64)
    for other in numbers[1:]:
        total = total + other
    return total


# -- the worker --------------------------------------------------------------------------------------------


class Site:
    """The parts on one worker."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.parts: dict[tuple[str, int], Any] = {}
        self.flags: dict[str, dict[str, Any]] = {}
        self._boxes: dict[tuple[str, int], Mailbox] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()
        worker.handlers["lingendice_message"] = self.receive

    def box(self, run: str, index: int) -> Mailbox:
        """The mailbox of a part in one run, which may get messages before the part has begun."""
        with self._lock:
            box = self._boxes.get((run, index))
            if box is None:
                box = Mailbox()
                if run in self._ended:
                    box.close(self._ended[run])
                else:
                    self._boxes[run, index] = box
            return box

    def receive(self, run: str, index: int, key: Sequence[int], arrays: Sequence[Array]) -> str:
        """A message from another worker."""
        self.box(run, index).put(tuple(key), tuple(arrays))
        return "received"

    def end(self, run: str, why: str) -> None:
        """Forget a run; whoever still waits in it gets an error."""
        with self._lock:
            self._ended[run] = why
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
            for key in [key for key in self._boxes if key[0] == run]:
                self._boxes.pop(key).close(why)
            self.flags.pop(run, None)

    # The client calls these on every worker at once, by :func:`ask`.

    def held(self, name: str) -> list[int]:
        """Which parts of a problem the worker holds."""
        return [index for problem, index in self.parts if problem == name]

    def forget(self, names: Sequence[str]) -> None:
        """Let go of the parts of problems."""
        for key in [key for key in self.parts if key[0] in names]:
            del self.parts[key]

    def stop(self, run: str) -> None:
        """Ask the parts to end with the best they have."""
        self.flags.setdefault(run, {})["stop"] = True

    def step(self, run: str) -> tuple[int, float] | None:
        """How far a run has come."""
        step: tuple[int, float] | None = self.flags.get(run, {}).get("step")
        return step

    def send(
        self, run: str, addresses: Sequence[str], dest: int, key: tuple[int, ...], arrays: tuple[Array, ...]
    ) -> Any:
        """Bring arrays to a part; what is returned ends when they have arrived."""
        if addresses[dest] == self.worker.address:
            self.box(run, dest).put(key, arrays)
            return None
        return asyncio.run_coroutine_threadsafe(
            self._send(addresses[dest], run, dest, key, arrays), self.worker.loop.asyncio_loop
        )

    async def _send(
        self, address: str, run: str, dest: int, key: tuple[int, ...], arrays: tuple[Array, ...]
    ) -> None:
        from distributed.protocol.serialize import Serialize

        held = [Serialize(array) for array in arrays]  # type: ignore[no-untyped-call]
        await self.worker.rpc(address).lingendice_message(run=run, index=dest, key=key, arrays=held)


_sites: dict[str, Site] = {}


def site_of(worker: Any) -> Site:
    """The site of a worker, made when first asked for."""
    site = _sites.get(worker.address)
    if site is None or site.worker is not worker:
        site = _sites[worker.address] = Site(worker)
    return site


def ask(method: str, *arguments: Any, dask_worker: Any = None) -> Any:
    """What a method of the worker's site returns."""
    return getattr(site_of(dask_worker), method)(*arguments)


def _site_here() -> Site:
    from distributed import get_worker

    return site_of(get_worker())


# -- tasks -------------------------------------------------------------------------------------------------


def install(name: str, index: int, make: Callable[..., Any], *arguments: Any) -> int:
    """Make a part of what has come to this worker."""
    _site_here().parts[name, index] = make(*arguments)
    return index


def run_phase(
    run: str, function: Callable[..., Any], name: str, addresses: Sequence[str], patience: float,
    arguments: Mapping[int, tuple[Any, ...]],
) -> dict[int, Any]:  # fmt: skip
    """Run a phase for all parts on this worker; returns what each has found."""
    site = _site_here()
    flags = site.flags.setdefault(run, {})
    send = partial(site.send, run, addresses)
    found: dict[int, Any] = {}
    errors: list[BaseException] = []

    def go(index: int, terms: tuple[Any, ...]) -> None:
        part = site.parts.get((name, index))
        try:
            if part is None:
                raise PartLost(f"part {index} is not on {site.worker.address}")
            mesh = Mesh(index, len(addresses), site.box(run, index), send, patience, flags)
            found[index] = function(part, mesh, *terms)
        except BaseException as error:
            errors.append(error)
            site.end(run, f"part {index} ended: {error}")

    threads = [threading.Thread(target=go, args=item) for item in arguments.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise ([error for error in errors if not isinstance(error, PartLost)] or errors)[0]
    return found
