"""The part of CuPy that ``Device`` calls, over the emulator: its code runs in tests without a GPU.

What CuPy itself does with these calls is CuPy's business; that they exist as they are called here is checked
where CuPy is installed (see ``tests/gpu/test_cupy.py``).
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np

from emulator import device as emulated
from emulator.device import Capture, EmulatedArray, EmulatedDevice


class FakeArray(EmulatedArray):
    """An array with CuPy's way to be filled on a stream."""

    def __getitem__(self, place):
        return FakeArray(super().__getitem__(place).held)

    def set(self, array, stream=None):
        assert stream is stream.streams[-1], "kernels of the current stream would not wait"
        stream.device.copy(self, array)


class FakeStream:
    """A stream of CuPy: capture, and being the current one."""

    def __init__(self, device: EmulatedDevice, streams: list) -> None:
        self.device, self.streams = device, streams

    def synchronize(self):
        pass  # the emulator has done all work by then

    def __enter__(self):
        self.streams.append(self)

    def __exit__(self, *_):
        self.streams.pop()

    def begin_capture(self):
        assert self.streams[-1] is self, "only the current stream captures what is launched"
        emulated._captures.append(Capture(self.device))

    def end_capture(self):
        return SimpleNamespace(launch=emulated._captures.pop())


class FakeModule:
    """A RawModule: kernels by the names that it was given, and no others."""

    def __init__(self, device, name_expressions):
        self._device, self._names = device, set(name_expressions)

    def get_function(self, name):
        assert name in self._names
        kernel, arguments = re.fullmatch(r"(\w+)(?:<(.*)>)?", name).groups()
        return self._device.load(kernel, tuple(arguments.split(", ")) if arguments else ())


class FakeCupy:
    """Stands for the module ``cupy``."""

    ndarray = EmulatedArray

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self.modules = []
        streams: list[FakeStream] = []
        streams.append(FakeStream(device, streams))

        class CUDARuntimeError(RuntimeError):
            pass

        properties = {"name": b"fake", "multiProcessorCount": 1}
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceProperties=lambda number: properties,
            memGetInfo=lambda: (device.free_bytes(), 0),
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            graph=SimpleNamespace(),
            Device=lambda: SimpleNamespace(id=0),
            Stream=lambda non_blocking: FakeStream(device, streams),
            get_current_stream=lambda: streams[-1],
            alloc_pinned_memory=self._pinned,
        )

    def _pinned(self, size):
        memory = np.zeros(size, np.uint8)
        self._device.lock_pages(memory)
        return memory

    def empty(self, shape, dtype):
        return FakeArray(self._device.empty(shape, dtype).held)

    def zeros(self, shape, dtype):
        return FakeArray(self._device.zeros(shape, dtype).held)

    def asarray(self, array):
        return self._device.upload(array) if isinstance(array, np.ndarray) else self._device.adopt(array)

    def asnumpy(self, array):
        return self._device.download(array)

    def from_dlpack(self, array):
        return self._device.adopt(array)

    def arange(self, size):
        return self._device.arange(size)

    def argsort(self, keys, kind):
        assert kind == "stable"
        return self._device.sort_order(keys)

    def get_default_memory_pool(self):
        return SimpleNamespace(free_bytes=lambda: 0)

    def RawModule(self, code, options, name_expressions):
        assert "__global__" in code
        self.modules.append(name_expressions)
        return FakeModule(self._device, name_expressions)
