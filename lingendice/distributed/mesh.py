"""How the parts of a spread problem talk to each other: numbered rounds of messages, each with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

Array = NDArray[Any]
PIECE = 500_000
"""Numbers that one message holds at most: larger ones take a multiple of the time (fresh pages)."""
_LOOK = 0.2  # seconds between two looks at whether a wait is to end


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
