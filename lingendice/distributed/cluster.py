"""Questions to a Dask cluster that may lose its workers: each has a deadline, and an error that says more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from lingendice.data.interrupts import check

T = TypeVar("T")
REPLY = 60.0
"""Seconds that the scheduler may take to answer, and workers for a round, compilation included."""
SECONDS_PER_BYTE = 1e-6
"""On top, for what has to travel: a hundred times the usual."""
_LOST, _SILENT = (
    20,
    3,
)  # attempts in a row that lose a worker, or get no answer, before the cluster is given up
_NAPS = 0.001, 0.05  # seconds between two looks at the tasks, at first and at most
_LOOKS = 5.0  # seconds between two looks at what the workers do
_SILENCE = (TimeoutError, asyncio.TimeoutError)  # two classes up to Python 3.10


def client_of(client: Any) -> Any:
    """The given client, or the current one."""
    try:
        from distributed import default_client  # type: ignore[attr-defined]
    except ImportError as error:
        raise ImportError("lingendice.distributed needs Dask: pip install 'lingendice[dask]'") from error
    if client is not None:
        return client
    try:
        return default_client()  # type: ignore[no-untyped-call]
    except ValueError:
        raise ValueError(
            "no Dask client; start one first (from dask.distributed import Client; client = Client()) and "
            "pass client="
        ) from None


def within(client: Any, seconds: float, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """What a method of the client returns, or an error of :func:`lost_worker`."""
    try:
        answer: T = client.sync(function, *arguments, callback_timeout=seconds, **options)
    except _SILENCE:
        raise asyncio.TimeoutError(f"no answer within {seconds:.0f} s") from None
    except (KeyError, OSError) as error:
        # A worker that has left is unknown to the scheduler, or its connection is broken.
        raise CancelledError(f"{type(error).__name__}: {error}") from error
    return answer


def lost_worker() -> tuple[type[BaseException], ...]:
    """What is raised when data or a task went down with a worker, or nobody answers."""
    from distributed import KilledWorker

    return CancelledError, KilledWorker, *_SILENCE


def workers_of(client: Any) -> dict[str, int]:
    """Threads of every worker; an error where the cluster has none, or does not answer."""
    found: dict[str, int] = {}
    why = "the scheduler knows of none"
    try:
        found = within(client, REPLY, client.nthreads)
        if not found:
            client.wait_for_workers(1, timeout=REPLY)
            found = within(client, REPLY, client.nthreads)
    except (CancelledError, TimeoutError, asyncio.TimeoutError) as error:
        why = str(error)
    if not found:
        raise RuntimeError(
            f"the cluster has no worker ({why}); start some, see client.nthreads(), and call again"
        )
    return found


class Losses:
    """Attempts at one piece of work that were lost in a row; an error once they are too many."""

    def __init__(self) -> None:
        self.lost = self.silent = 0

    def count(self, error: BaseException) -> None:
        """Note an attempt that ended by an error of :func:`lost_worker`."""
        self.lost += 1
        self.silent += isinstance(error, _SILENCE)
        if self.lost == _LOST or self.silent == _SILENT:
            raise RuntimeError(
                f"the cluster lost {self.lost} rounds in a row (last: {error}); see the logs of its workers "
                "for why they end, first of all their memory, then call again"
            ) from error


def ask_everybody(client: Any, function: Callable[..., T], *arguments: Any) -> dict[str, T]:
    """What a short function returns on every worker, outside of all tasks; nothing of those that are lost."""
    try:
        answers: dict[str, T] = within(client, REPLY, client.run, function, *arguments, on_error="ignore")
    except CancelledError:
        return {}
    return answers


def await_futures(client: Any, futures: list[Any]) -> None:
    """Until all futures are done, however long it takes; an error once the cluster is idle for a minute."""
    nap, busy = _NAPS[0], time.monotonic()
    looked = busy
    while not all(future.done() for future in futures):
        check()
        time.sleep(nap)
        nap = min(2.0 * nap, _NAPS[1])
        now = time.monotonic()
        if now - looked < _LOOKS:
            continue
        looked = now
        if any(within(client, REPLY, client.processing).values()):
            busy = now
        elif now - busy > REPLY:
            raise RuntimeError(
                f"the cluster has been idle for {REPLY:.0f} s while counting; see that it has workers "
                "(client.nthreads()) and what their logs say, then count again"
            )
