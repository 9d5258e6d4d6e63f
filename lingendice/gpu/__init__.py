"""An NVIDIA GPU, through CuPy: counting, the exact equation and SGD. ``solve(..., device="cuda")``.

The CUDA sources lie in ``cuda/`` and travel in the wheel. They are compiled for five architectures and run on
an emulator in the tests; they have not yet run on a real GPU. ``python -m lingendice.gpu.selftest`` makes a
record of such a run.
"""

from lingendice.gpu.device import DeviceMemoryError, DeviceUnavailable
from lingendice.gpu.device_counts import DeviceCounts, HostCopyWarning, count_transitions

__all__ = ["DeviceCounts", "DeviceMemoryError", "DeviceUnavailable", "HostCopyWarning", "count_transitions"]
