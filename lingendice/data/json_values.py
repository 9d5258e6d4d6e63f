"""Results as values that strict JSON can hold: the one place that decides what becomes of nan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def strict_json(value: Any) -> Any:
    """The value as strict JSON types: arrays as lists, numbers that are not finite as None.

    Mappings, lists and tuples are converted entry by entry; strings, bools, integers and None stay as they
    are. Python's own encoder writes nan as ``NaN``, which is not JSON, and refuses NumPy's scalars.

    Examples
    --------
    >>> strict_json({"value": np.float64("nan"), "tau": np.array([0.5, np.inf])})
    {'value': None, 'tau': [0.5, None]}
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iub" or (value.dtype.kind == "f" and np.isfinite(value).all()):
            return value.tolist()
        return strict_json(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: strict_json(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(entry) for entry in value]
    return value
