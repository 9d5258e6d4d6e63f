"""Run kernels that release the interpreter lock side by side, with fixed partitions.

Partitions depend on the problem alone, never on the number of threads, so that results
which are reduced in partition order are the same bits for any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from contextvars import copy_context
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
WAKE = 0.1
"""Seconds after which a waiting thread looks up. A signal may reach any thread of the process, but Python
hears it in the main thread alone, and only while that is awake."""


def available_threads() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_threads(threads: int | None) -> int:
    """Turn the public ``threads`` argument into a number of threads."""
    if threads is None:
        return available_threads()
    try:
        sound = not isinstance(threads, (bool, str)) and int(threads) == threads and threads >= 1
    except (TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise ValueError(f"threads must be a positive whole number or None, got {threads!r}")
    return int(threads)


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="lingendice")


if hasattr(os, "register_at_fork"):
    # A forked child has the pool but none of its threads: what is handed to it would wait for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _outcome(future: Future[T]) -> T:
    while True:
        try:
            return future.result(WAKE)
        except NotYet:
            if future.done():
                return future.result()


def run_all(tasks: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """Run every task and return their results in the order given.

    Returns, or raises, only when none of them runs any more: they may write to arrays of the caller.
    """
    tasks = list(tasks)
    if threads == 1 or len(tasks) == 1:
        return [task() for task in tasks]
    # Each in the context of its caller: Ctrl-C, device and floating-point settings.
    started = [_pool(threads).submit(copy_context().run, task) for task in tasks]
    try:
        return [_outcome(future) for future in started]
    finally:
        for future in started:
            future.cancel()
        wait(started)
