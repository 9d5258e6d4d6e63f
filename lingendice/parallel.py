"""Run kernels that release the interpreter lock side by side, with fixed partitions.

Partitions depend on the problem alone, never on the number of threads, so that results
which are reduced in partition order are the same bits for any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")


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


def run_beside(task: Callable[[], T], helpers: Iterable[Callable[[], object]], threads: int) -> T:
    """Run a task that others may help; a busy pool starts them late, or not at all.

    Returns, or raises, only when nobody works any more.
    """
    started: list[Future[object]] = []
    try:
        for helper in helpers:
            started.append(_pool(threads).submit(helper))
        return task()
    finally:
        for future in started:
            if not future.cancel():
                future.result()


def run_all(tasks: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """Run every task and return their results in the order given."""
    tasks = list(tasks)
    if threads == 1 or len(tasks) == 1:
        return [task() for task in tasks]
    return list(_pool(threads).map(lambda task: task(), tasks))
