"""What runs on a worker: the parts that it holds, the messages that reach them, the phases they go through.

A phase is one function that all parts run at the same time. A worker takes part in it by one Dask task,
whatever the number of rounds; messages go from worker to worker on Dask's own connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lingendice.distributed.blocks import RowBlock
from lingendice.distributed.mesh import Array, Mailbox, Mesh, PartLost
from lingendice.distributed.part import Part
from lingendice.distributed.phases import PHASES

_REMEMBERED = 200  # ended runs whose late messages are dropped


class Site:
    """The parts on one worker."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.parts: dict[tuple[str, int], Part] = {}
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


def _site_here() -> Site:
    from distributed import get_worker

    return site_of(get_worker())


# -- called by the client on every worker, at once --------------------------------------------------------


def held_parts(name: str, dask_worker: Any = None) -> list[int]:
    """Which parts of a problem the worker holds."""
    return [index for held, index in site_of(dask_worker).parts if held == name]


def end_run(run: str, why: str, dask_worker: Any = None) -> None:
    """Forget a run."""
    site_of(dask_worker).end(run, why)


def stop_run(run: str, dask_worker: Any = None) -> None:
    """Ask the parts to end with the best they have."""
    site_of(dask_worker).flags.setdefault(run, {})["stop"] = True


def step_of_run(run: str, dask_worker: Any = None) -> tuple[int, float] | None:
    """How far a run has come."""
    step: tuple[int, float] | None = site_of(dask_worker).flags.get(run, {}).get("step")
    return step


def forget(names: Sequence[str], dask_worker: Any = None) -> None:
    """Let go of the parts of problems."""
    parts = site_of(dask_worker).parts
    for key in [key for key in parts if key[0] in names]:
        del parts[key]


# -- tasks -------------------------------------------------------------------------------------------------


def install(name: str, index: int, edges: list[int], block: RowBlock) -> int:
    """Make a part of a row block that has come to this worker."""
    _site_here().parts[name, index] = Part(block, index, edges)
    return index


def run_phase(
    run: str, name: str, phase: str, addresses: Sequence[str], patience: float, arguments: Mapping[int, Any]
) -> dict[int, Any]:
    """Run a phase for all parts on this worker; returns what each has found."""
    site = _site_here()
    flags = site.flags.setdefault(run, {})
    found: dict[int, Any] = {}
    errors: list[BaseException] = []

    def go(index: int, terms: tuple[Any, ...]) -> None:
        part = site.parts.get((name, index))
        try:
            if part is None:
                raise PartLost(f"part {index} is not on {site.worker.address}")
            mesh = Mesh(
                index,
                len(addresses),
                site.box(run, index),
                partial(site.send, run, addresses),
                patience,
                flags,
            )
            found[index] = PHASES[phase](part, mesh, *terms)
        except BaseException as error:
            errors.append(error)
            site.end(run, f"part {index} ended: {error}")

    threads = [threading.Thread(target=go, args=item) for item in arguments.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        lost = [error for error in errors if isinstance(error, PartLost)]
        raise (errors if len(lost) == len(errors) else [e for e in errors if e not in lost])[0]
    return found
