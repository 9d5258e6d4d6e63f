"""The client's side of a cluster that may lose its workers: deadlines, and who holds which part."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from lingendice.data.interrupts import check
from lingendice.distributed import mesh
from lingendice.distributed.mesh import PartLost
from lingendice.distributed.part import Part
from lingendice.solvers.control import Monitor, Stopped

T = TypeVar("T")
REPLY = 60.0
"""Seconds that the scheduler may take to answer, and workers for a round, compilation included."""
SECONDS_PER_BYTE = 1e-6
"""On top, for what has to travel: a hundred times the usual."""
PATIENCE = 60.0
"""Seconds that a part waits for another, compilation included, and the client for a sign of progress."""
_LOST, _SILENT = (
    20,
    3,
)  # attempts in a row that lose a worker, or get no answer, until the cluster is given up
_NAPS = 0.001, 0.02  # seconds between two looks at the tasks, at first and at most
_LOOKS = 5.0  # seconds between two looks at what the workers do while they count
_PHASE_LOOKS = 0.3  # seconds between two looks at who is still there, and how far a phase has come
_GRACE = 15.0  # seconds that parts have to end with the best they have
_FIRST_PATIENCE = 1.0  # seconds until it is asked whether those whose answers are awaited are still there
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


def ask_everybody(client: Any, method: str, *arguments: Any) -> dict[str, Any]:
    """What a method of every worker's site returns, outside of all tasks; nothing of those that are lost."""
    try:
        return within(client, REPLY, client.run, mesh.ask, method, *arguments, on_error="ignore")
    except CancelledError:
        return {}


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


def scattered(client: Any, value: Any, **where: Any) -> Any:
    """A future of a value that is sent to a worker, with a deadline by its size."""
    seconds = REPLY + SECONDS_PER_BYTE * _size(value)
    (sent,) = within(client, seconds, client.scatter, [value], hash=False, **where)
    return sent


def _size(value: Any) -> int:
    """About how many bytes a value takes."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, (tuple, list)) else 8


# -- the parts of one problem ------------------------------------------------------------------------------


_abandoned: set[str] = set()
"""Problems that nobody refers to any more; garbage collection is no time to ask a cluster for anything."""


def abandon(name: str) -> None:
    """Let the workers forget a problem, when they are next asked for one."""
    _abandoned.add(name)


class Crew:
    """The parts of one problem on the workers of a cluster."""

    def __init__(self, client: Any, sources: Sequence[Callable[[], Any]], edges: list[int]) -> None:
        self.client, self.sources, self.edges = client, list(sources), edges
        self.name = uuid.uuid4().hex
        self.addresses: list[str] = []
        self.system = 0
        """Grows whenever a part has to be made anew: what parts know of each other is then out of date."""
        self.n_lost = 0

    def release_abandoned(self) -> None:
        """Let the workers forget the parts of problems that are gone."""
        if _abandoned:
            names = sorted(_abandoned)
            _abandoned.difference_update(names)
            ask_everybody(self.client, "forget", names)

    # -- phases --------------------------------------------------------------------------------------------

    def run(self, steps: Callable[[Crew], Any], monitor: Monitor) -> Any:
        """What ``steps`` returns, which asks for phases; from its beginning again where a worker is lost."""
        losses = Losses()
        lost: tuple[type[BaseException], ...] = (PartLost, *lost_worker())
        while True:
            try:
                self._place(monitor)
                return steps(self)
            except lost as error:
                self.n_lost += 1
                losses.count(error)

    def phase(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], monitor: Monitor
    ) -> list[Any]:
        """Run ``function(part, mesh, *arguments)`` on all parts at once; all but ``function`` is by part."""
        client, run = self.client, uuid.uuid4().hex
        by_worker: dict[str, dict[int, Any]] = {}
        for index, address in enumerate(self.addresses):
            by_worker.setdefault(address, {})[index] = arguments[index]
        try:
            tasks = []
            for address, given in by_worker.items():
                sent = scattered(client, given, workers=[address])
                where = (self.name, self.addresses, PATIENCE)
                tasks.append(self._submit(address, mesh.run_phase, run, function, *where, sent))
            self._await(tasks, monitor, run)
            found: dict[int, Any] = {}
            for answer in self._gather(tasks):
                found.update(answer)
        finally:
            ask_everybody(client, "end", run, "the phase has ended")
        return [found[index] for index in range(len(self.addresses))]

    def _submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """A task for one worker and no other."""
        there = {"workers": [address], "allow_other_workers": False, "pure": False}
        return self.client.submit(function, *arguments, **there)

    def _await(self, tasks: list[Any], monitor: Monitor, run: str | None = None) -> None:
        """Until all tasks have ended, or one cannot end any more, or nothing moves for a minute."""
        nap, looked = _NAPS[0], time.monotonic()
        moved, told = looked, None
        step: tuple[int, float] | None = None
        while not all(task.done() for task in tasks):
            if any(task.status in ("error", "lost", "cancelled") for task in tasks):
                return
            now = time.monotonic()
            if monitor():
                if run is None or (told is not None and now - told > _GRACE):
                    raise Stopped
                if told is None:
                    told = now
                    ask_everybody(self.client, "stop", run)
            time.sleep(nap)
            nap = min(1.5 * nap, _NAPS[1])
            if now - looked < _PHASE_LOOKS:
                continue
            looked = now
            there = within(self.client, REPLY, self.client.nthreads)
            gone = [address for address in self.addresses if address not in there]
            if gone:
                raise CancelledError(f"worker {gone[0]} has left")
            if run is not None:
                steps = ask_everybody(self.client, "step", run)
                furthest = max((held for held in steps.values() if held), default=None)
                if furthest is not None and furthest != step:
                    moved, step = now, furthest
                    monitor.note(*furthest)
            elif any(within(self.client, REPLY, self.client.processing).values()):
                moved = now
            if now - moved > 2 * PATIENCE:
                raise asyncio.TimeoutError(f"nothing moved for {2 * PATIENCE:.0f} s")

    def _gather(self, tasks: list[Any]) -> list[Any]:
        """What tasks returned; a worker that has left with its answer is not waited for."""
        patience = _FIRST_PATIENCE
        while True:
            try:
                answers: list[Any] = within(self.client, patience, self.client.gather, tasks)
                return answers
            except asyncio.TimeoutError:
                there = within(self.client, REPLY, self.client.nthreads)
                gone = [address for address in self.addresses if address not in there]
                if gone:
                    raise CancelledError(f"worker {gone[0]} has left") from None
                if patience > 10 * REPLY:
                    raise
                patience *= 2.0  # large answers take long

    # -- placing -------------------------------------------------------------------------------------------

    def _place(self, monitor: Monitor) -> None:
        """See that every part lies on a worker that is there; what was lost is made again from its source."""
        client = self.client
        self.release_abandoned()
        threads = workers_of(client)
        held = {
            address: parts
            for address, parts in ask_everybody(client, "held", self.name).items()
            if address in threads and parts is not None
        }
        if not held:
            raise CancelledError("no worker answers")
        addresses: list[str | None] = [None] * len(self.sources)
        for address, parts in held.items():
            for part in parts:
                addresses[part] = addresses[part] or address
        missing = [part for part, address in enumerate(addresses) if address is None]
        if not missing:
            self.addresses = [str(address) for address in addresses]
            return
        self.system += 1
        blocks = {part: self.sources[part]() for part in missing}
        where = within(client, REPLY, client.who_has, list(blocks.values()))
        tasks = []
        for part in missing:
            load = {address: addresses.count(address) / threads[address] for address in held}
            near = [address for address in where.get(blocks[part].key, ()) if address in load]
            free = [address for address in near if addresses.count(address) < threads[address]]
            chosen = free[0] if free else min(load, key=lambda address: load[address])
            addresses[part] = chosen
            made = (Part, blocks[part], part, self.edges)
            tasks.append(self._submit(chosen, mesh.install, self.name, part, *made))
        self.addresses = [str(address) for address in addresses]
        self._await(tasks, monitor)
        self._gather(tasks)
