"""Distinguish device arrays from host arrays without importing a GPU library, and take them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lingendice.gpu.device import Device

_CUDA_IN_DLPACK = (2, 13)  # device memory, managed memory


def lies_on_device(value: Any) -> bool:
    """Whether a value is an array, a sparse matrix or counts in the memory of a CUDA device."""
    if value is None or isinstance(value, (str, int, float, list, tuple, dict)):
        return False
    if hasattr(value, "__cuda_array_interface__") or getattr(value, "on_device", False) is True:
        return True
    if type(value).__module__.partition(".")[0] in ("cupy", "cupyx"):
        return True
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[0]) in _CUDA_IN_DLPACK
    return False


def device_vector(device: Device, name: str, value: Any, size: int) -> Any:
    """One number per entry, as float64 on the device; host arrays are refused: nothing moves in silence."""
    import numpy as np

    if not lies_on_device(value):
        raise ValueError(
            f"{name} lies on the host and the data on the device; pass it as a device array "
            f"(cupy.asarray({name})), or move the data to the host first"
        )
    array = device.adopt(value)
    if array.size != size:
        raise ValueError(f"{name} must have {size} entries, got shape {tuple(array.shape)}")
    return array.reshape(size).astype(np.float64, copy=False)
