"""A context in which whatever solves, checks or bounds fails: what is shown there was known."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lingendice

PACKAGE = Path(lingendice.__file__).parent
COSTLY = [
    str(PACKAGE / place)
    for place in (
        "solvers",
        "continuous",
        *(
            f"results/{name}.py"
            for name in (
                "allowance", "bootstrap", "diagnostics", "interval", "markov_test",
                "ridge_path", "trust_checks",
            )
        ),
    )
]  # fmt: skip
FREE = {"total_weight", "steps", "identified", "leak"}
"""Sums over what is held already, and formulas."""


class Computed(AssertionError):
    """Something was computed while nothing may be."""


@contextmanager
def nothing_is_computed(monkeypatch) -> Iterator[None]:
    """Fail on any call into the rooms that compute, and on any compiled kernel."""
    from numba.core.dispatcher import Dispatcher

    def refused(*_, **__):
        raise Computed("a kernel ran")

    def watch(frame, event, _):
        code = frame.f_code
        costly = event == "call" and any(code.co_filename.startswith(place) for place in COSTLY)
        if costly and code.co_name not in FREE and not code.co_name.startswith("<"):
            raise Computed(f"{code.co_filename}: {code.co_name}")

    with monkeypatch.context() as patch:
        for name, module in list(sys.modules.items()):
            # Counting a matrix anew is how a small chain tells what it is made of.
            if name.startswith("lingendice.") and not name.startswith("lingendice.kernels.partition"):
                for attribute, held in list(vars(module).items()):
                    if isinstance(held, Dispatcher):
                        patch.setattr(module, attribute, refused)
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            yield
        finally:
            sys.setprofile(before)


def looked_at(result) -> str:
    """All that looking at a result shows."""
    shown = [repr(result), str(result), json.dumps(result.to_dict(), allow_nan=False)]
    return "\n".join([*shown, result._repr_html_()])
