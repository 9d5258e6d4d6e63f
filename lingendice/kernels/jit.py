"""The one home of compiler options.

Every kernel is compiled to machine code on first use and kept on disk. Kernels release
the interpreter lock, so that threads run them side by side; none of them uses Numba's own
thread pool, whose compile time is several times that of a plain function.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from numba import cfunc, njit
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., Any])


_FUSED = {"reassoc", "contract", "nsz", "arcp"}


def kernel(function: F) -> F:
    """Compile a kernel with IEEE semantics: same bits on every run."""
    return njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def fused_kernel(function: F) -> F:
    """Compile a kernel whose sums may be reordered and fused: for throughput loops."""
    return njit(cache=True, nogil=True, error_model="numpy", fastmath=_FUSED)(function)  # type: ignore[no-any-return]


def internal(function: F) -> F:
    """A function of fused kernels alone: no entry from Python or C, and no file of its own."""
    return njit(  # type: ignore[no-any-return]
        nogil=True, error_model="numpy", fastmath=_FUSED, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)


def inlined(function: F) -> F:
    """A part of kernels that becomes one with each of them: no call, no counting of references to arrays."""
    return njit(cache=True, nogil=True, error_model="numpy", inline="always")(function)  # type: ignore[no-any-return]


def shared(function: F) -> F:
    """A function of scalars for kernels and for Python, which runs it as it is."""
    return register_jitable(inline="always")(function)  # type: ignore[no-any-return]


def c_callable(signature: Any) -> Callable[[F], Any]:
    """Compile a function that C can call by its address."""
    return cfunc(signature, nopython=True, cache=True, error_model="numpy")  # type: ignore[no-any-return]


if hasattr(os, "register_at_fork"):
    # A thread that compiles while another forks would leave the child with a lock that nobody opens.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
