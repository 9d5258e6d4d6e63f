"""The one home of compiler options.

Every kernel is compiled to machine code on first use and kept on disk. Kernels release
the interpreter lock, so that threads run them side by side; none of them uses Numba's own
thread pool, whose compile time is several times that of a plain function.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

# A later Numba may have other classes for its cache: its own rules are then better than no kernel at all.
try:
    from lingendice.kernels.disk_cache import open_cache
except (ImportError, AttributeError):
    from numba.core.caching import FunctionCache as open_cache

F = TypeVar("F", bound=Callable[..., Any])

_FUSED = {"reassoc", "contract", "nsz", "arcp"}


def _keep(compiled: Any, function: Callable[..., Any]) -> Any:
    """Keep what is compiled on disk, until its sources or the package change; else in memory alone."""
    if hasattr(compiled, "enable_caching"):  # else compiling is switched off
        try:
            compiled._cache = open_cache(function)
        except (AttributeError, TypeError):
            compiled.enable_caching()
    return compiled


def kernel(function: F) -> F:
    """Compile a kernel with IEEE semantics: same bits on every run."""
    return _keep(njit(nogil=True, error_model="numpy")(function), function)


def fused_kernel(function: F) -> F:
    """Compile a kernel whose sums may be reordered and fused: for throughput loops."""
    compiled = njit(nogil=True, error_model="numpy", fastmath=_FUSED)(function)
    return _keep(compiled, function)


def internal(function: F) -> F:
    """A function of fused kernels alone: no entry from Python or C, and no file of its own."""
    return njit(
        nogil=True, error_model="numpy", fastmath=_FUSED, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)


def inlined(function: F) -> F:
    """A part of kernels that becomes one with each of them: no call, no counting of references to arrays."""
    compiled = njit(nogil=True, error_model="numpy", inline="always")(function)
    return _keep(compiled, function)


def c_callable(signature: Any) -> Callable[[F], Any]:
    """Compile a function that C can call by its address."""

    def compile_now(function: F) -> Any:
        options = {"nopython": True, "error_model": "numpy"}
        compiled = _keep(CFunc(function, normalize_signature(signature), {}, options), function)
        compiled.compile()
        return compiled

    return compile_now


if hasattr(os, "register_at_fork"):
    # A thread that compiles while another forks would leave the child with a lock that nobody opens.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
