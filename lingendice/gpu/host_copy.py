"""Data on the device where only the host can choose: copied there with a warning."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import outside_level
from lingendice.data.counts import Counts
from lingendice.gpu.arrays import lies_on_device
from lingendice.gpu.device_counts import DeviceCounts

if TYPE_CHECKING:
    from lingendice.solvers.request import Request

ARRAYS = ("policy", "behavior", "reward", "initial", "restart")
FEATURES = ("features", "dual_features")
COPY = "copy_to_host"
"""The option that allows the copy beforehand."""


class HostCopyWarning(UserWarning):
    """Counts that lie on the device are copied to the host, because what was asked for is chosen there."""


def what_needs_the_host(request: Request) -> str | None:
    """What the exact equation over cells, solved in place, does not give; None where no more is asked."""
    choices = request.problem
    asked = {
        "the saddle point (features, bound, method=)": request.wants_saddle,
        "the default with a policy (advantages shrunk by the data)": request.is_left_to_us,
        "a ridge": request.ridge > 0.0,
        "a cloned behavior": choices.clone not in (None, 0),
        "a behavior policy": choices.behavior is not None,
        "smoothing": choices.smoothing not in (None, 0),
        "unseen=": choices.unseen not in ("auto", "leak"),
        'ratio="state" with a policy': choices.ratio == "state" and choices.policy is not None,
    }
    return next((name for name, needed in asked.items() if needed), None)


def copied_to_host(what: str, counts: DeviceCounts, request: Request) -> tuple[Counts, Request]:
    """Everything that the host needs to compose the problem; a warning says so unless it was allowed."""
    device = counts.device
    for name in (*ARRAYS, *FEATURES):
        value = getattr(request.problem if name in ARRAYS else request.objective, name)
        if value is not None and not lies_on_device(value):
            raise ValueError(
                f"{name} lies on the host and the data on the device; pass it as a device array "
                f"(cupy.asarray({name})), or move the data to the host first: counts.to_host()"
            )
    options = dict(request.method.options)
    if not options.pop(COPY, False):
        size = sum(part.nbytes for part in (counts.indptr, counts.indices, counts.count))
        warnings.warn(
            f"{what} is chosen on the host: the counts on the device ({size / 1e6:.3g} MB) are copied there, "
            "steps are made on the device, and the answer is put back. Pass "
            f"options={{{COPY!r}: True}} if that is meant, or ridge=0, clone=0 for the exact equation, "
            "which needs no copy",
            HostCopyWarning,
            stacklevel=outside_level(),
        )

    def down(value: Any) -> Any:
        return None if value is None else device.download(device.adopt(value)).astype(np.float64)

    moved = {name: down(getattr(request.problem, name)) for name in ARRAYS}
    for name in ("policy", "behavior"):
        if moved[name] is not None:
            moved[name] = moved[name].reshape(counts.n_states, -1)
    features = {name: down(getattr(request.objective, name)) for name in FEATURES}
    return counts.to_host(), request._replace(
        problem=request.problem._replace(**moved),
        objective=request.objective._replace(**features),
        method=request.method._replace(options=options),
    )
