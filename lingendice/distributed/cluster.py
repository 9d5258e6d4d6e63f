"""The client's side of a cluster that may lose its workers: deadlines, and who holds which part."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from lingendice.data.checks import require_whole
from lingendice.data.interrupts import check
from lingendice.distributed import mesh
from lingendice.distributed.part import make_part
from lingendice.solvers.control import Monitor, Stopped

T = TypeVar("T")
REPLY = 60.0
"""Seconds that the scheduler may take to answer."""
SECONDS_PER_BYTE = 1e-6
"""On top, for what has to travel: a hundred times the usual."""
PATIENCE = 60.0
"""Seconds that a part waits for another, compilation included; the client waits twice as long for a sign of
progress."""
_LOST, _SILENT = 20, 3  # attempts that lose a worker, or get no answer, until the cluster is given up
_NAPS = 0.001, 0.02  # seconds between two looks at the tasks, at first and at most
_LOOKS = 0.5  # seconds between two looks at who is still there, and how far the work has come
_GRACE = 15.0  # seconds that parts have to end with the best they have
_SILENCE = (TimeoutError, asyncio.TimeoutError)  # two classes up to Python 3.10
FAILED = ("error", "lost", "cancelled")


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


# -- deadlines -----------------------------------------------------------------------------------------------


def within(client: Any, seconds: float, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """What a method of the client returns; TimeoutError or CancelledError where a worker is lost."""
    try:
        answer: T = client.sync(function, *arguments, callback_timeout=seconds, **options)
    except _SILENCE:
        raise asyncio.TimeoutError(f"no answer within {seconds:.0f} s") from None
    except (KeyError, OSError) as error:
        # A worker that has left is unknown to the scheduler, or its connection is broken.
        raise CancelledError(f"{type(error).__name__}: {error}") from error
    return answer


def insist(attempt: Callable[[], T]) -> T:
    """What ``attempt`` returns, begun anew where a worker is lost; an error where that does not end."""
    from distributed import KilledWorker

    lost = silent = 0
    while True:
        try:
            return attempt()
        except (mesh.PartLost, CancelledError, KilledWorker, *_SILENCE) as error:
            lost += 1
            silent += isinstance(error, _SILENCE)
            if lost == _LOST or silent == _SILENT:
                raise RuntimeError(
                    f"the cluster lost {lost} rounds in a row (last: {error}); see the logs of its workers "
                    "for why they end, first of all their memory, then call again"
                ) from error


def workers_of(client: Any) -> dict[str, int]:
    """Threads of every worker; an error where the cluster has none, or does not answer."""
    found: dict[str, int] = {}
    why = "the scheduler knows of none"
    try:
        found = within(client, REPLY, client.nthreads)
        if not found:
            client.wait_for_workers(1, timeout=REPLY)
            found = within(client, REPLY, client.nthreads)
    except (CancelledError, *_SILENCE) as error:
        why = str(error)
    if not found:
        raise RuntimeError(
            f"the cluster has no worker ({why}); start some, see client.nthreads(), and call again"
        )
    return found


def blocks_of(client: Any, blocks: int | None) -> int:
    """How many blocks there are to be: as asked, or one for each thread of the workers."""
    return sum(workers_of(client).values()) if blocks is None else require_whole("blocks", blocks, at_least=1)


def scattered(client: Any, value: Any, **where: Any) -> Any:
    """A future of a value that is sent to a worker, with a deadline by its size."""
    from dask.sizeof import sizeof

    seconds = REPLY + SECONDS_PER_BYTE * sizeof(value)
    (sent,) = within(client, seconds, client.scatter, [value], hash=False, **where)
    return sent


def ask_everybody(client: Any, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """What a function returns on every worker, outside of all tasks; nothing of those that are lost."""
    try:
        return within(client, REPLY, client.run, function, *arguments, on_error="ignore")
    except CancelledError:
        return {}


def require_workers(client: Any, needed: Sequence[str]) -> None:
    """An error where a worker has left that is needed."""
    there = within(client, REPLY, client.nthreads) if needed else {}
    for address in needed:
        if address not in there:
            raise CancelledError(f"worker {address} has left")


def await_tasks(
    client: Any, tasks: Sequence[Any], monitor: Monitor | None = None, needed: Sequence[str] = (),
    run: str | None = None,
) -> None:  # fmt: skip
    """Until all tasks have ended, however long it takes; an error where one has failed or nothing moves.

    Tasks of a phase, ``run``, are asked to end with the best they have where the monitor says so.
    """
    nap, looked = _NAPS[0], time.monotonic()
    moved, told, step = looked, None, None
    while not all(task.done() for task in tasks):
        require_sound(tasks)
        now = time.monotonic()
        if monitor is None:
            check()
        elif monitor():
            if run is None or (told is not None and now - told > _GRACE):
                raise Stopped
            if told is None:
                told = now
                ask_everybody(client, mesh.stop_run, run)
        time.sleep(nap)
        nap = min(1.5 * nap, _NAPS[1])
        if now - looked < _LOOKS:
            continue
        looked = now
        require_workers(client, needed)
        steps = {} if run is None else ask_everybody(client, mesh.step_of, run)
        furthest = max(filter(None, steps.values()), default=None)
        if furthest is None:  # work that knows no steps, or has not come to the first
            moves = any(within(client, REPLY, client.processing).values())
        else:
            moves, step = furthest != step, furthest
            if monitor is not None:
                monitor.note(*furthest)
        if moves:
            moved = now
        elif now - moved > 2 * PATIENCE:
            raise asyncio.TimeoutError(f"nothing moved for {2 * PATIENCE:.0f} s")
    require_sound(tasks)


def require_sound(tasks: Sequence[Any]) -> None:
    """Raise what a task has failed by: an OSError of its own, of a file say, is no lost connection."""
    for task in tasks:
        if task.status == "error":
            raise task.exception(timeout=REPLY)
        if task.status in FAILED:
            raise CancelledError(f"task {task.key} is {task.status}")


def results(
    client: Any, tasks: Sequence[Any], monitor: Monitor | None = None, needed: Sequence[str] = (),
    run: str | None = None,
) -> list[Any]:  # fmt: skip
    """What tasks return; see :func:`await_tasks`.

    A needed worker that has left with its answer is not waited for, and large answers may take long.
    """
    await_tasks(client, tasks, monitor, needed, run)
    patience = 1.0 if needed else 100 * REPLY
    while True:
        try:
            return within(client, patience, client.gather, list(tasks))
        except asyncio.TimeoutError:
            require_workers(client, needed)
            if patience > 10 * REPLY:
                raise
            patience *= 2.0


# -- the parts of one problem ------------------------------------------------------------------------------


class Crew:
    """The parts of one problem: data of Dask's, each made and kept by the worker that works on it."""

    def __init__(self, client: Any, sources: Sequence[Callable[[], Any]], edges: list[int]) -> None:
        self.client, self.sources, self.edges = client, list(sources), edges
        self.parts: list[Any] = [None] * len(self.sources)
        self.addresses: list[str] = [""] * len(self.sources)
        self.n_begun, self.monitor = 0, Monitor()

    def run(self, steps: Callable[[Crew], Any], monitor: Monitor) -> Any:
        """What ``steps`` returns, which asks for phases; from its beginning again where a worker is lost."""
        self.n_begun, self.monitor = 0, monitor

        def attempt() -> Any:
            self.n_begun += 1
            self._place()
            return steps(self)

        return insist(attempt)

    def phase(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run ``function(part, mesh, *arguments)`` on all parts at once; all but ``function`` is by part."""
        run, tasks = uuid.uuid4().hex, []
        try:
            for address in dict.fromkeys(self.addresses):
                own = [part for part, held in enumerate(self.addresses) if held == address]
                sent = scattered(self.client, {part: arguments[part] for part in own}, workers=[address])
                parts = {part: self.parts[part] for part in own}
                where = (self.addresses, PATIENCE)
                tasks.append(self._submit(address, mesh.run_phase, run, function, parts, sent, *where))
            answers = results(self.client, tasks, self.monitor, self.addresses, run)
        finally:
            ask_everybody(self.client, mesh.end_run, run)
        found = {part: each for answer in answers for part, each in answer.items()}
        return [found[part] for part in range(len(self.parts))]

    def _submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """A task for one worker and no other."""
        return self.client.submit(function, *arguments, workers=[address], pure=False)

    def _place(self) -> None:
        """See that every part lies on a worker that is there; what was lost is made again from its source."""
        client, threads = self.client, workers_of(self.client)
        lost = [
            part
            for part, (held, address) in enumerate(zip(self.parts, self.addresses, strict=True))
            if held is None or held.status in FAILED or address not in threads
        ]
        blocks = {part: self.sources[part]() for part in lost}
        for part in lost:
            self.addresses[part] = ""
        where = within(client, REPLY, client.who_has, list(blocks.values())) if blocks else {}
        for part, block in blocks.items():
            near = where.get(block.key, ())
            load = {each: (self.addresses.count(each) / threads[each], each not in near) for each in threads}
            chosen = min(load, key=load.__getitem__)
            self.addresses[part] = chosen
            self.parts[part] = self._submit(chosen, make_part, block, part, self.edges)
        await_tasks(client, self.parts, self.monitor, self.addresses)
