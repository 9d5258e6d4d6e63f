"""Hand out the parts of successive rounds to threads that may come late, or not at all.

Parts are numbered through all rounds. A thread draws the next number, waits until its round is open, does the
part and reports it; whoever reports the last part of a round ends the round and opens the next. Only threads
that hold a part are ever waited for, so that a busy pool or a single core slows the work but cannot stop it.
"""

from __future__ import annotations

import os

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lingendice.kernels.jit import kernel

# Each counter on a cache line of its own (and the one beside it, which is fetched along).
_APART = 16
_DRAWN, _OPEN, _DONE, COUNTERS = 0, _APART, 2 * _APART, 3 * _APART
_LOOKS = 200
_long = ir.IntType(64)
_give_way = types.ExternalFunction("SwitchToThread" if os.name == "nt" else "sched_yield", types.intc())


def _place(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, value=arguments[0])
    return builder.gep(array.data, [arguments[1]])


@intrinsic
def _read(typing, counters, place):
    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", 8)

    return types.int64(counters, types.intp), generate


@intrinsic
def _write(typing, counters, place, value):
    def generate(context, builder, signature, arguments):
        at = _place(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], at, "release", 8)
        return context.get_dummy_value()

    return types.void(counters, types.intp, types.int64), generate


@intrinsic
def _count(typing, counters, place):
    """Add one; returns what was there before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), _long(1), "acq_rel")

    return types.int64(counters, types.intp), generate


def new_counters(parts):
    """Counters of rounds of ``parts`` parts each, the first of them open."""
    room = np.zeros(COUNTERS + _APART, dtype=np.int64)
    skipped = -(room.ctypes.data // room.itemsize) % _APART
    counters = room[skipped : skipped + COUNTERS]
    counters[_OPEN] = parts
    return counters


@kernel
def _wait(counters, place, goal):
    looks = 0
    while _read(counters, place) < goal:
        looks += 1
        if looks > _LOOKS:
            _give_way()


@kernel
def claim_part(counters):
    """The next part, whose round need not be open yet; ``total`` or more when all parts are given away."""
    return _count(counters, _DRAWN)


@kernel
def await_round(counters, part):
    """Until the round of a part is open."""
    _wait(counters, _OPEN, part + 1)


@kernel
def draw_part(counters, total):
    """The next part, once its round is open; ``total`` or more when all parts are given away."""
    part = claim_part(counters)
    if part < total:
        await_round(counters, part)
    return part


@kernel
def is_last(counters, part, parts):
    """Report a part; whether it was the last of its round, which the caller has then to end."""
    return _count(counters, _DONE) + 1 == (part // parts + 1) * parts


@kernel
def open_next(counters, part, parts):
    """End the round of a part."""
    _write(counters, _OPEN, (part // parts + 2) * parts)


@kernel
def wait_for_all(counters, total):
    """Until every round is ended."""
    _wait(counters, _OPEN, total + 1)
