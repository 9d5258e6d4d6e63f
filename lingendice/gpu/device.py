"""What the host code asks of a device: CuPy on the current CUDA device and stream.

The same host code runs on anything with the methods of :class:`Device`; the tests run it on an emulator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.gpu.catalog import KERNELS, expression, expressions, module_source

COMPILER_OPTIONS = ("-std=c++17",)


class DeviceUnavailable(ImportError):
    """CuPy, the driver or the GPU is missing."""


class DeviceMemoryError(MemoryError):
    """The problem does not fit into the memory of the device."""


class Device:
    """CuPy on the current device: arrays that live there, kernels that run there, explicit ways in and out.

    All work goes to the current stream; nothing waits but downloads, and numbers read from arrays of one
    entry. There are also ``empty`` and ``zeros`` of a shape and type,
    ``arange`` and ``download``, the one way to the host. Functions of NumPy work on device arrays as on those
    of the host, so that much code, checks above all, serves both.
    """

    block = 256
    """Threads of an ordinary block."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.empty, self.zeros, self.arange = cupy.empty, cupy.zeros, cupy.arange
        self.download = cupy.asnumpy
        self._number = cupy.cuda.Device().id
        properties = cupy.cuda.runtime.getDeviceProperties(self._number)
        self.name: str = properties["name"].decode()
        # A multiprocessor holds 2,048 threads at most, 8 blocks of 256. Twice as many blocks leave it one to
        # begin with when another has ended early; more would only make longer lists of partial sums.
        self.most_blocks = 16 * int(properties["multiProcessorCount"])
        """Blocks that keep the device busy: kernels take the rest in strides."""

    def upload(self, array: Any, dtype: Any = None) -> Any:
        """A copy of a host array on the device."""
        return self._cupy.asarray(np.ascontiguousarray(array, dtype))

    def adopt(self, array: Any) -> Any:
        """A device array of another library, by DLPack or ``__cuda_array_interface__``, without a copy."""
        if isinstance(array, self._cupy.ndarray):
            return array
        if hasattr(array, "__cuda_array_interface__"):
            return self._cupy.asarray(array)
        return self._cupy.from_dlpack(array)

    def sort_order(self, keys: Any) -> Any:
        """Places of the keys in rising order, equal keys in their own order, as int64."""
        # CuPy's argsort is a radix sort for integers: stable.
        return self._cupy.argsort(keys, kind="stable").astype(np.int64, copy=False)

    def free_bytes(self) -> int:
        """Memory that may still be taken."""
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def pinned(self, array: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """A copy in page-locked host memory, from which the device copies at the speed of the bus."""
        cuda, dtype = self._cupy.cuda, np.dtype(dtype)
        try:
            memory = cuda.alloc_pinned_memory(max(array.size, 1) * dtype.itemsize)
        except cuda.runtime.CUDARuntimeError:
            # The host may lock no more pages: copies are then slower, and right all the same.
            return np.ascontiguousarray(array, dtype)
        held = np.frombuffer(memory, dtype, array.size)
        held[:] = array
        return held

    def copy(self, into: Any, array: NDArray[Any]) -> None:
        """Fill a device array from page-locked memory of the host, on the current stream."""
        # On the stream of the kernels: it waits for those that still read what the buffer held before, and
        # those launched next wait for it. The host does not wait at all, which takes page-locked memory.
        into.set(array, stream=self._cupy.cuda.get_current_stream())

    def load(self, kernel: str, arguments: tuple[str, ...]) -> Callable[..., None]:
        """A compiled kernel, called as ``kernel(grid, block, arguments, shared_mem=bytes)``."""
        function: Callable[..., None] = _function(self._cupy, self._number, kernel, arguments)
        return function

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work once, and return what repeats its launches: as one CUDA graph, on the current stream.

        The work must be launches alone, over arrays that stay where they are. It is captured on a stream of
        its own.
        """
        cuda = self._cupy.cuda
        work()  # which also compiles the kernels: that cannot be captured
        cuda.get_current_stream().synchronize()
        # The default stream cannot be captured; a blocking one is tied to it, and work there would invalidate
        # the capture.
        stream = cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            work()
            graph = stream.end_capture()
        again: Callable[[], None] = graph.launch  # on whatever stream is the current one by then
        return again


def _is_single(wanted: str) -> bool:
    return "float" in wanted


@cache
def _function(cupy: Any, device_number: int, kernel: str, arguments: tuple[str, ...]) -> Any:
    """A kernel as loaded on one GPU; looking it up anew would cost more than launching it."""
    wanted = expression(kernel, arguments)
    return _compiled(cupy, KERNELS[kernel].module, _is_single(wanted)).get_function(wanted)


@cache
def _compiled(cupy: Any, module: str, single: bool) -> Any:
    """One RawModule per source and precision, compiled by NVRTC once; CuPy keeps the result on disk."""
    # By precision: most users need one of them, and need not wait until the other is compiled, too.
    names = names_of(module, single)
    return cupy.RawModule(code=module_source(module), options=COMPILER_OPTIONS, name_expressions=names)


def names_of(module: str, single: bool) -> list[str]:
    """Kernels of one RawModule: those of a source in single precision, or all others."""
    return [name for name in expressions(module) if _is_single(name) == single]


_users: set[int] = set()
"""The process that uses CUDA; one forked from it inherits the number of its parent."""
_chosen: ContextVar[Device | None] = ContextVar("device", default=None)


@contextmanager
def using(device: Device) -> Iterator[Device]:
    """Let ``device="cuda"`` mean this device for a while: how tests put an emulator in its place."""
    token = _chosen.set(device)
    try:
        yield device
    finally:
        _chosen.reset(token)


def current_device() -> Device:
    """The device that ``device="cuda"`` means; an error that says what is missing where there is none."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    try:
        import cupy
    except ImportError as error:
        raise DeviceUnavailable(
            'device="cuda" needs CuPy, which is not installed; next step: '
            "pip install 'lingendice[cuda12]' or 'lingendice[cuda13]', whichever nvidia-smi shows"
        ) from error
    if _users and os.getpid() not in _users:
        raise DeviceUnavailable(
            "CUDA was used before this process was forked, and cannot be used in a child; start processes "
            'by multiprocessing.get_context("spawn"), fork before the first use, or take device="cpu"'
        )
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceUnavailable(
            f'device="cuda" needs an NVIDIA driver and GPU; CUDA says: {error}. '
            'Next step: check nvidia-smi, or use device="cpu"'
        ) from error
    if not count:
        raise DeviceUnavailable('device="cuda" needs an NVIDIA GPU, and CUDA sees none; use device="cpu"')
    _users.add(os.getpid())
    return Device(cupy)


# -- launching -----------------------------------------------------------------------------------------


def n_blocks(device: Device, size: int, a_block: int) -> int:
    """Blocks for ``size`` pieces of work, ``a_block`` of them to a block."""
    # One block even for nothing: CUDA refuses an empty grid. Kernels stride over what exceeds the grid.
    return max(1, min(-(-size // a_block), device.most_blocks))


def launch(
    device: Device, kernel: str, templates: tuple[str, ...], grid: int, arguments: tuple[Any, ...], *,
    block: int | None = None, shared_bytes: int = 0,
) -> None:  # fmt: skip
    """Launch a kernel. Numbers must be NumPy scalars: CuPy would guess the width of others."""
    for place, argument in enumerate(arguments):
        if isinstance(argument, (bool, int, float, np.ndarray)) and not isinstance(argument, np.generic):
            kind = type(argument).__name__
            raise TypeError(f"argument {place} of {kernel} is a {kind}; pass NumPy scalars or device arrays")
    device.load(kernel, templates)((grid,), (block or device.block,), arguments, shared_mem=shared_bytes)


def for_each(
    device: Device, kernel: str, templates: tuple[str, ...], size: int, arguments: tuple[Any, ...], *,
    a_thread: int = 1,
) -> None:  # fmt: skip
    """Launch a kernel over ``size`` pieces, ``a_thread`` threads working on each."""
    launch(device, kernel, templates, n_blocks(device, size, device.block // a_thread), arguments)


def load_everything(device: Device) -> int:
    """Compile every kernel; returns how many there are. For the self-test."""
    every = [(name, arguments) for name, kernel in KERNELS.items() for arguments in kernel.variants]
    for name, arguments in every:
        device.load(name, arguments)
    return len(every)


def require_bytes(device: Device, needed: int, advice: str = '; use device="cpu"') -> None:
    """Refuse what does not fit into the memory that is free."""
    free = device.free_bytes()
    if needed > free:
        text = f"about {needed / 1e9:.3g} GB of device memory are needed and {free / 1e9:.3g} GB are free"
        raise DeviceMemoryError(text + advice)
