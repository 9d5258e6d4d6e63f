"""The one home of compiler options.

Every kernel is compiled to machine code on first use and kept on disk. Kernels release
the interpreter lock, so that threads run them side by side; none of them uses Numba's own
thread pool, whose compile time is several times that of a plain function.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache as remember
from pickle import UnpicklingError
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

F = TypeVar("F", bound=Callable[..., Any])

_FUSED = {"reassoc", "contract", "nsz", "arcp"}
_IMPORTS = re.compile(rb"^from (lingendice\.kernels\.[\w.]+) import", re.MULTILINE)


@remember
def _digest(module: str) -> str:
    """A digest of a module and of all that its kernels take, and have compiled in, from other modules."""
    found = sys.modules[module]
    source = found.__loader__.get_data(found.__file__)
    parts = [_digest(name.decode()) for name in _IMPORTS.findall(source)]
    return hashlib.sha256("".join(parts).encode() + source).hexdigest()


class _Index(IndexDataCacheFile):
    """The list of what is on disk for one kernel, empty if it was written by other sources than today's.

    Numba compares the function's own file alone, and that only after it has unpickled every entry, which
    names the classes of its arguments: one that an upgrade has moved raises ModuleNotFoundError. What is
    compared here is compared first. A class that moved without any other change still raises, and counts
    as nothing found, like a file that was cut short.
    """

    def __init__(self, cache: Any, function: Callable[..., Any]) -> None:
        known = cache._cache_file
        super().__init__(cache.cache_path, cache._impl.filename_base, known._source_stamp)
        self._version = f"{known._version} {_digest('lingendice')} {_digest(function.__module__)}"

    def _load_index(self) -> dict[Any, str]:
        try:
            return super()._load_index()
        except (ImportError, AttributeError, UnpicklingError, EOFError, TypeError, ValueError):
            return {}


def _keep(compiled: Any, function: Callable[..., Any]) -> Any:
    """Keep what is compiled on disk, until its sources or the package change."""
    if hasattr(compiled, "enable_caching"):  # else compiling is switched off
        compiled.enable_caching()
        # A later Numba may keep its index elsewhere: its own rules are then better than no kernel at all.
        with suppress(AttributeError, TypeError):
            compiled._cache._cache_file = _Index(compiled._cache, function)
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
