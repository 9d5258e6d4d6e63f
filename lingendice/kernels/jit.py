"""The one home of compiler options.

Every kernel is compiled to machine code on first use and kept on disk. Kernels release
the interpreter lock, so that threads run them side by side; none of them uses Numba's own
thread pool, whose compile time is several times that of a plain function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import cfunc, njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a kernel with IEEE semantics: same bits on every run."""
    return njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def fused_kernel(function: F) -> F:
    """Compile a kernel whose sums may be reordered and fused: for throughput loops."""
    flags = {"reassoc", "contract", "nsz", "arcp"}
    return njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function)  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """A part of kernels that becomes one with each of them: no call, no counting of references to arrays."""
    return njit(cache=True, nogil=True, error_model="numpy", inline="always")(function)  # type: ignore[no-any-return]


def c_callable(signature: Any) -> Callable[[F], Any]:
    """Compile a function that C can call by its address."""
    return cfunc(signature, nopython=True, cache=True, error_model="numpy")  # type: ignore[no-any-return]
