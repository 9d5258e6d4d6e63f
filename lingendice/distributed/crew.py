"""The client's side: who holds which part, phases that are repeated where a worker is lost, and deadlines."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

from lingendice.distributed import site
from lingendice.distributed.cluster import (
    REPLY,
    SECONDS_PER_BYTE,
    Losses,
    ask_everybody,
    lost_worker,
    within,
    workers_of,
)
from lingendice.distributed.mesh import PartLost
from lingendice.solvers.control import Monitor, Stopped

_NAPS = 0.001, 0.02  # seconds between two looks at the tasks, at first and at most
_LOOKS = 0.3  # seconds between two looks at who is still there, and how far the work has come
PATIENCE = 60.0
"""Seconds that a part waits for another, compilation included, and the client for a sign of progress."""
_GRACE = 15.0  # seconds that parts have to end with the best they have


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
            ask_everybody(self.client, site.forget, names)

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

    def phase(self, name: str, arguments: Sequence[tuple[Any, ...]], monitor: Monitor) -> list[Any]:
        """Run a phase on all parts; ``arguments`` and results are by part."""
        client, run = self.client, uuid.uuid4().hex
        by_worker: dict[str, dict[int, Any]] = {}
        for index, address in enumerate(self.addresses):
            by_worker.setdefault(address, {})[index] = arguments[index]
        try:
            tasks = []
            for address, given in by_worker.items():
                (sent,) = within(
                    client, REPLY + SECONDS_PER_BYTE * _size(given), client.scatter, [given],
                    workers=[address], hash=False,
                )  # fmt: skip
                tasks.append(
                    client.submit(
                        site.run_phase,
                        run,
                        self.name,
                        name,
                        self.addresses,
                        PATIENCE,
                        sent,
                        workers=[address],
                        allow_other_workers=False,
                        pure=False,
                    )
                )
            self._await(tasks, monitor, run)
            found: dict[int, Any] = {}
            for answer in within(client, 10 * REPLY, client.gather, tasks):
                found.update(answer)
        finally:
            ask_everybody(client, site.end_run, run, "the phase has ended")
        return [found[index] for index in range(len(self.addresses))]

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
                    ask_everybody(self.client, site.stop_run, run)
            time.sleep(nap)
            nap = min(1.5 * nap, _NAPS[1])
            if now - looked < _LOOKS:
                continue
            looked = now
            there = within(self.client, REPLY, self.client.nthreads)
            gone = [address for address in self.addresses if address not in there]
            if gone and run is not None:
                raise CancelledError(f"worker {gone[0]} has left")
            if run is not None:
                steps = ask_everybody(self.client, site.step_of_run, run)
                furthest = max((held for held in steps.values() if held), default=None)
                if furthest is not None and furthest != step:
                    moved, step = now, furthest
                    monitor.note(*furthest)
            elif any(within(self.client, REPLY, self.client.processing).values()):
                moved = now
            if now - moved > 2 * PATIENCE:
                raise asyncio.TimeoutError(f"nothing moved for {2 * PATIENCE:.0f} s")

    # -- placing -------------------------------------------------------------------------------------------

    def _place(self, monitor: Monitor) -> None:
        """See that every part lies on a worker that is there; what was lost is made again from its source."""
        client = self.client
        self.release_abandoned()
        threads = workers_of(client)
        held = {
            address: parts
            for address, parts in ask_everybody(client, site.held_parts, self.name).items()
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
            tasks.append(
                client.submit(
                    site.install,
                    self.name,
                    part,
                    self.edges,
                    blocks[part],
                    workers=[chosen],
                    allow_other_workers=False,
                    pure=False,
                )
            )
        self.addresses = [str(address) for address in addresses]
        self._await(tasks, monitor)
        within(client, 10 * REPLY, client.gather, tasks)


def _size(arguments: Any) -> int:
    """About how many bytes arguments take."""
    if hasattr(arguments, "nbytes"):
        return int(arguments.nbytes)
    if isinstance(arguments, dict):
        return sum(map(_size, arguments.values()))
    return sum(map(_size, arguments)) if isinstance(arguments, (tuple, list)) else 8
