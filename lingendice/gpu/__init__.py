"""Large state spaces on an NVIDIA GPU, through CuPy: ``solve(..., device="cuda")``.

The CUDA sources lie in ``cuda/`` and travel in the wheel. They are compiled for five architectures and run on
an emulator in the tests; they have not yet run on a real GPU. ``python -m lingendice.gpu_selftest`` makes a
record of such a run.
"""

from lingendice.gpu.backend import HostCopyWarning
from lingendice.gpu.device import DeviceMemoryError, DeviceUnavailable
from lingendice.gpu.device_bootstrap import bootstrap
from lingendice.gpu.device_counts import DeviceCounts, count_transitions

__all__ = ["DeviceCounts", "DeviceMemoryError", "DeviceUnavailable", "HostCopyWarning",
           "bootstrap", "count_transitions"]  # fmt: skip
