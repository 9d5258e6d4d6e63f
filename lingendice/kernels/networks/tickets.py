"""Hand out the parts of successive rounds to threads that may come late, or not at all.

Parts are numbered through all rounds. A thread draws the next number, waits until its round is open, does the
part and reports it; whoever reports the last part of a round ends the round and opens the next. Only threads
that hold a part are ever waited for, so that a busy pool or a single core slows the work but cannot stop it;
where it slows it too much, helpers are sent away.
"""

from __future__ import annotations

import os
import time

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lingendice.kernels.aligned import zeros_by_line
from lingendice.kernels.jit import internal

# Each counter on a cache line of its own (and the one beside it, which is fetched along).
_APART = 16
_DRAWN, _OPEN, _DONE, _DISMISSED, COUNTERS = 0, _APART, 2 * _APART, 3 * _APART, 4 * _APART
_LOOKS = 200
_long = ir.IntType(64)
_give_way = types.ExternalFunction("SwitchToThread" if os.name == "nt" else "sched_yield", types.intc())


@intrinsic
def _clock(typing):
    """Nanoseconds since some moment."""

    def generate(context, builder, signature, arguments):
        read = cgutils.alloca_once(builder, _long, 2)
        address = builder.bitcast(read, cgutils.voidptr_t)
        if os.name == "nt":
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
            name = "GetSystemTimePreciseAsFileTime"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [address])
            return builder.mul(builder.load(read), _long(100))
        kind = ir.FunctionType(cgutils.int32_t, [cgutils.int32_t, cgutils.voidptr_t])
        which = cgutils.int32_t(time.CLOCK_MONOTONIC)
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "clock_gettime"), [which, address])
        seconds, rest = builder.load(read), builder.load(builder.gep(read, [_long(1)]))
        return builder.add(builder.mul(seconds, _long(1_000_000_000)), rest)

    return types.int64(), generate


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
    counters = zeros_by_line(COUNTERS, np.int64)
    counters[_OPEN] = parts
    return counters


@internal
def _wait(counters, place, goal):
    """Returns how many nanoseconds it took, or 0 for a moment."""
    for _ in range(_LOOKS):
        if _read(counters, place) >= goal:
            return 0
    since = _clock()
    while _read(counters, place) < goal:
        _give_way()
    return _clock() - since


@internal
def claim_part(counters):
    """The next part, whose round need not be open yet; ``total`` or more when all parts are given away."""
    return _count(counters, _DRAWN)


@internal
def await_round(counters, part, patience):
    """Until the round of a part is open; a wait of more than ``patience`` nanoseconds sends all helpers away.

    It means that a thread was taken off its core in the midst of a part. On a busy machine that happens at
    every other part, and one thread by itself is far faster.
    """
    if _wait(counters, _OPEN, part + 1) > patience:
        _write(counters, _DISMISSED, 1)


@internal
def dismissed(counters):
    """Whether helpers are to draw no more parts."""
    return _read(counters, _DISMISSED) != 0


def were_dismissed(counters):
    """Whether helpers were sent away, for the caller of the kernel."""
    return bool(counters[_DISMISSED])


@internal
def draw_part(counters, total):
    """The next part, once its round is open; ``total`` or more when all parts are given away."""
    part = claim_part(counters)
    if part < total:
        _wait(counters, _OPEN, part + 1)
    return part


@internal
def is_last(counters, part, parts):
    """Report a part; whether it was the last of its round, which the caller has then to end."""
    return _count(counters, _DONE) + 1 == (part // parts + 1) * parts


@internal
def open_next(counters, part, parts):
    """End the round of a part."""
    _write(counters, _OPEN, (part // parts + 2) * parts)


@internal
def wait_for_all(counters, total):
    """Until every round is ended."""
    _wait(counters, _OPEN, total + 1)
