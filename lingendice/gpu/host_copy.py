"""Data on the device where only the host can choose: copied there with a warning, the answer put back."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lingendice.data.counts import Counts
from lingendice.gpu.arrays import lies_on_device
from lingendice.gpu.device import Device
from lingendice.gpu.device_counts import DeviceCounts
from lingendice.gpu.device_solution import DeviceSolution
from lingendice.model.compose import Choices
from lingendice.results.solution import Solution
from lingendice.solvers.linear_choices import LinearChoices

ARRAYS = ("policy", "behavior", "reward", "initial", "restart")
FEATURES = ("features", "dual_features")
COPY = "copy_to_host"
"""The option that allows the copy beforehand."""


class HostCopyWarning(UserWarning):
    """Counts that lie on the device are copied to the host, because what was asked for is chosen there."""


def what_needs_the_host(choices: Choices, linear: LinearChoices) -> str | None:
    """What the exact equation over cells, solved in place, does not give; None where no more is asked."""
    from lingendice.solve import _defaults

    given = choices
    choices, strength = _defaults(choices, linear)
    asked = {
        "the saddle point (features, bound, method=)": linear.is_asked,
        "a behavior policy": choices.behavior is not None,
        "the default regularization (a ridge and a cloned behavior chosen from the data)": strength is None
        and linear.ridge is None,
        "a ridge": strength != 0.0,
        "a cloned behavior": choices.clone not in (None, 0) or given.clone not in (None, 0),
        "smoothing": choices.smoothing not in (None, 0),
        "unseen=": choices.unseen not in ("auto", "leak"),
        'ratio="state" with a policy': choices.ratio == "state" and choices.policy is not None,
    }
    return next((name for name, needed in asked.items() if needed), None)


def copied_to_host(
    what: str, counts: DeviceCounts, choices: Choices, linear: LinearChoices, allowed: bool
) -> tuple[Counts, Choices, LinearChoices]:
    """Everything that the host needs to compose the problem; a warning says so unless it was allowed."""
    device = counts.device
    for name in (*ARRAYS, *FEATURES):
        value = getattr(choices if name in ARRAYS else linear, name)
        if value is not None and not lies_on_device(value):
            raise ValueError(
                f"{name} lies on the host and the data on the device; pass it as a device array "
                f"(cupy.asarray({name})), or move the data to the host first: counts.to_host()"
            )
    if not allowed:
        size = sum(part.nbytes for part in (counts.indptr, counts.indices, counts.count))
        warnings.warn(
            f"{what} is chosen on the host: the counts on the device ({size / 1e6:.3g} MB) are copied there, "
            "steps are made on the device, and the answer is put back. Pass "
            f"options={{{COPY!r}: True}} if that is meant, or ridge=0, clone=0 for the exact equation, "
            "which needs no copy",
            HostCopyWarning,
            stacklevel=4,  # the caller of solve
        )

    def down(value: Any) -> Any:
        return None if value is None else device.download(device.adopt(value)).astype(np.float64)

    moved = {name: down(getattr(choices, name)) for name in ARRAYS}
    for name in ("policy", "behavior"):
        if moved[name] is not None:
            moved[name] = moved[name].reshape(counts.n_states, -1)
    features = {name: down(getattr(linear, name)) for name in FEATURES}
    return counts.to_host(), choices._replace(**moved), linear._replace(**features)


@dataclass(frozen=True, eq=False, repr=False)
class HostedSolution(DeviceSolution):
    """A solution made by way of the host; its arrays lie on the device, ``to_host()`` costs nothing."""

    host: Solution | None = None
    device: Device | None = None

    @classmethod
    def of(cls, host: Solution, device: Device) -> HostedSolution:
        """Put the distributions of a solution on the device."""
        up = device.upload
        held = {part.name: getattr(host, part.name) for part in fields(Solution)}
        held |= {
            "state_distribution": None if host.state_distribution is None else up(host.state_distribution),
            "state_distributions": tuple(up(distribution) for distribution in host.state_distributions),
            "cell_ridge_distribution": None,
        }
        return cls(**held, host=host, device=device)

    def to_host(self) -> Solution:
        """The solution with its arrays on the host."""
        assert self.host is not None
        return self.host

    def _table(self) -> list[tuple[str, str]]:
        return self.to_host()._table()


def _array(name: str) -> Any:
    def read(self: HostedSolution) -> Any:
        assert self.device is not None
        value = getattr(self.to_host(), name)
        if isinstance(value, tuple):
            return tuple(map(self.device.upload, value))
        return self.device.upload(np.asarray(value))

    return property(read, doc=f"``{name}`` of a solution, on the device.")


def _number(name: str) -> Any:
    return property(lambda self: getattr(self.to_host(), name), doc=f"``{name}`` of a solution.")


for _name in ("stationary", "distributions", "data_distribution", "supported", "tau", "cell_distribution"):
    setattr(HostedSolution, _name, _array(_name))
for _name in ("leak", "terminal_mass", "effective_sample_size", "value", "value_bounds", "gap"):
    setattr(HostedSolution, _name, _number(_name))
