"""Every kernel, the template arguments it is compiled for, and its source.

One list for CuPy, nvcc and the emulator. The sources lie in an installed wheel, or in a checkout.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VALUES = {"float32": "float", "float64": "double"}
"""How vectors over states and cells, rates and columns of a log may be stored."""
OFFSETS = {"int32": "int", "int64": "long long"}
"""How places in a matrix, ids in a log and pairs of them may be numbered."""
WEIGHTS = OFFSETS | VALUES
"""How counts may come."""
LANES = (1, 8, 32)
"""Threads that may work on one row."""
DEPTH = 6
"""Steps of a cycle of extrapolation."""
_PACKAGE = Path(__file__).resolve().parents[1]
_HOMES = (_PACKAGE / "_cuda", _PACKAGE.parent / "cuda")
MODULES = ("operator", "saddle")


class Kernel(NamedTuple):
    """Where a kernel lies, what its templates take, and how large its blocks may be."""

    module: str
    variants: tuple[tuple[str, ...], ...] = ((),)
    most_threads: int = 1024


def _variants(*choices: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(product(*choices))


_VALUES, _WEIGHTS, _OFFSETS = (tuple(kinds.values()) for kinds in (VALUES, WEIGHTS, OFFSETS))
_LANES, _DEPTH = tuple(map(str, LANES)), (str(DEPTH),)
_EACH_VALUE = _variants(_VALUES)

KERNELS = {
    "pull_rows": Kernel("operator", _variants(_VALUES, _OFFSETS, _LANES), 256),
    "pull_segments": Kernel("operator", _variants(_VALUES, _OFFSETS), 256),
    "settle_long_rows": Kernel("operator", _EACH_VALUE, 256),
    "weigh_distribution": Kernel("operator", _EACH_VALUE, 256),
    "finish_pass": Kernel("operator", most_threads=256),
    "change_products": Kernel("operator", _variants(_VALUES, _DEPTH), 256),
    "mix_weights": Kernel("operator", _variants(_DEPTH), 256),
    "mix_iterates": Kernel("operator", _variants(_VALUES, _DEPTH), 256),
    "scale_distribution": Kernel("operator", _EACH_VALUE),
    "draw_factors": Kernel("operator", _EACH_VALUE),
    "row_totals": Kernel("operator", _variants(_WEIGHTS, _OFFSETS), 256),
    "compose_rates": Kernel("operator", _variants(_VALUES, _WEIGHTS, _OFFSETS), 256),
    "draw_samples": Kernel("saddle"),
    "list_entries": Kernel("saddle"),
    "sort_segments": Kernel("saddle", most_threads=256),
    "sample_gradients": Kernel("saddle", _EACH_VALUE, 256),
    "update_coordinates": Kernel("saddle", _EACH_VALUE),
    "update_multiplier": Kernel("saddle"),
    "advance_clock": Kernel("saddle"),
}


def c_type(dtype: Any) -> str:
    """What C++ calls a type of NumPy."""
    return WEIGHTS[np.dtype(dtype).name]


def expression(kernel: str, arguments: tuple[str, ...] = ()) -> str:
    """The kernel as C++ writes it, say ``pull_rows<double, int, 8>``."""
    return f"{kernel}<{', '.join(arguments)}>" if arguments else kernel


def expressions(module: str) -> tuple[str, ...]:
    """Every kernel of a module with every choice of its template arguments."""
    return tuple(
        expression(name, arguments)
        for name, kernel in KERNELS.items()
        if kernel.module == module
        for arguments in kernel.variants
    )


def cuda_source(name: str) -> str:
    """Text of ``cuda/<name>.cu``."""
    for home in _HOMES:
        path = home / f"{name}.cu"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    known = sorted({path.stem for home in _HOMES for path in home.glob("*.cu")})
    raise FileNotFoundError(f"no CUDA source named {name!r}; there are: {', '.join(known) or 'none'}")


def module_source(name: str) -> str:
    """A module as compilers take it: what all kernels share, then its own kernels. No includes."""
    return cuda_source("prelude") + "\n" + cuda_source(name)
