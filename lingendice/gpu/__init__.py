"""Large state spaces on an NVIDIA GPU, through CuPy: ``solve(..., device="cuda")``.

The CUDA sources lie in ``cuda/`` and travel in the wheel. They are compiled for five architectures and run on
an emulator in the tests; they have not yet run on a real GPU. ``python -m lingendice.gpu_selftest`` makes a
record of such a run.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DeviceCounts", "DeviceMemoryError", "DeviceUnavailable", "HostCopyWarning",
           "bootstrap", "count_transitions"]  # fmt: skip

_HOMES = {
    "DeviceCounts": "device_counts",
    "DeviceMemoryError": "device",
    "DeviceUnavailable": "device",
    "HostCopyWarning": "backend",
    "bootstrap": "device_bootstrap",
    "count_transitions": "device_counts",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for when first needed."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
