"""Every kernel and the template arguments it is compiled for: one list for CuPy, nvcc and the emulator."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

VALUES = {"float32": "float", "float64": "double"}
"""How laws and rates may be stored."""
WEIGHTS = {"int64": "long long", "float64": "double"}
"""How counts may come."""
OFFSETS = {"int32": "int", "int64": "long long"}
"""How places in a matrix (and ids in a log) may be numbered."""
LANES = (1, 8, 32)
"""Threads that may work on one row."""
DEPTHS = (6,)
"""Steps of a cycle of extrapolation."""
MODULES = ("operator", "counting", "saddle", "ridge", "resample")


class Kernel(NamedTuple):
    """Where a kernel lies, what its templates take, and how large its blocks may be."""

    module: str
    variants: tuple[tuple[str, ...], ...] = ((),)
    most_threads: int = 1024


def _variants(*choices: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(product(*choices))


_VALUES, _WEIGHTS, _OFFSETS = (tuple(kinds.values()) for kinds in (VALUES, WEIGHTS, OFFSETS))
_LANES, _DEPTHS = tuple(map(str, LANES)), tuple(map(str, DEPTHS))
_EACH_VALUE = _variants(_VALUES)

KERNELS = {
    "pull_rows": Kernel("operator", _variants(_VALUES, _OFFSETS, _LANES), 256),
    "pull_segments": Kernel("operator", _variants(_VALUES, _OFFSETS), 256),
    "settle_long_rows": Kernel("operator", _EACH_VALUE, 256),
    "weigh_law": Kernel("operator", _EACH_VALUE, 256),
    "finish_pass": Kernel("operator", most_threads=256),
    "change_products": Kernel("operator", _variants(_VALUES, _DEPTHS), 256),
    "mix_weights": Kernel("operator", _variants(_DEPTHS), 256),
    "mix_iterates": Kernel("operator", _variants(_VALUES, _DEPTHS), 256),
    "scale_law": Kernel("operator", _EACH_VALUE),
    "mark_reached": Kernel("operator", _EACH_VALUE),
    "classify_rows": Kernel("operator", _variants(_OFFSETS)),
    "row_totals": Kernel("operator", _variants(_WEIGHTS, _OFFSETS), 256),
    "compose_rates": Kernel("operator", _variants(_VALUES, _WEIGHTS, _OFFSETS), 256),
    "permute_entries": Kernel("operator", _EACH_VALUE),
    "lower_bounds": Kernel("operator", _variants(_OFFSETS, _OFFSETS)),
    "report_cells": Kernel("operator", _EACH_VALUE, 256),
    "transition_keys": Kernel("counting", _variants(_OFFSETS)),
    "count_in_shared": Kernel("counting"),
    "count_in_global": Kernel("counting"),
    "mark_filled": Kernel("counting"),
    "compress_bins": Kernel("counting"),
    "mark_heads": Kernel("counting"),
    "list_runs": Kernel("counting"),
    "run_moments": Kernel("counting", most_threads=256),
    "split_keys": Kernel("counting"),
    "key_rows": Kernel("counting"),
    "gather_actions": Kernel("saddle"),
    "weigh_ratio": Kernel("saddle"),
    "saddle_field": Kernel("saddle", most_threads=256),
    "finish_field": Kernel("saddle", most_threads=256),
    "saddle_step": Kernel("saddle"),
    "compare_fields": Kernel("saddle", most_threads=256),
    "judge_step": Kernel("saddle", most_threads=256),
    "take_step": Kernel("saddle"),
    "draw_samples": Kernel("saddle"),
    "list_entries": Kernel("saddle"),
    "sort_segments": Kernel("saddle", most_threads=256),
    "sample_gradients": Kernel("saddle", most_threads=256),
    "update_coordinates": Kernel("saddle"),
    "update_multiplier": Kernel("saddle"),
    "advance_clock": Kernel("saddle"),
    "turn_around": Kernel("ridge"),
    "normal_image": Kernel("ridge", most_threads=256),
    "step_along": Kernel("ridge", most_threads=256),
    "turn_direction": Kernel("ridge", most_threads=256),
    "finish_descent": Kernel("ridge", most_threads=256),
    "draw_factors": Kernel("resample"),
    "draw_counts": Kernel("resample"),
    "draw_means": Kernel("resample"),
    "reweigh_entries": Kernel("resample", most_threads=256),
}


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
