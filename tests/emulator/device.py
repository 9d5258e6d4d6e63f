"""The device protocol on the CPU: arrays that refuse to mix with host arrays, kernels run by the emulator."""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path

import numpy as np

from lingendice.gpu.catalog import KERNELS, expression


class EmulatorError(RuntimeError):
    """A kernel did what hardware leaves undefined, or was called wrongly."""


class OrderError(RuntimeError):
    """A capture does what a graph cannot hold, or a copy comes from memory that may move."""


class Capture:
    """Launches kept instead of run, with their arguments as they were."""

    def __init__(self, device) -> None:
        self.device, self.launches = device, []

    def __call__(self) -> None:
        """Launch the graph."""
        self.device.graph_launches += 1
        for launch in self.launches:
            self.device.run(*launch)


class Memory:
    """Bytes of all emulated arrays: those that live, and the most that lived at once since ``watch``."""

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._owners: set[int] = set()

    def watch(self) -> int:
        """Begin a measurement: the bytes that live now, less what only waits for the garbage collector."""
        gc.collect()
        self.peak = self.live
        return self.live

    def hold(self, array: np.ndarray) -> None:
        """Count an array that owns its memory until it goes."""
        if array.base is None and id(array) not in self._owners:
            self._owners.add(id(array))
            self.live += array.nbytes
            self.peak = max(self.peak, self.live)
            weakref.finalize(array, self._release, id(array), array.nbytes)

    def _release(self, owner: int, size: int) -> None:
        self._owners.discard(owner)
        self.live -= size


FUNCTIONS = {
    "argmax",
    "bincount",
    "cumsum",
    "flatnonzero",
    "ndim",
    "searchsorted",
    "where",
}
"""Functions of NumPy that device code calls on device arrays; CuPy has them by the same names."""
MEMORY = Memory()
_captures: list[Capture] = []


class EmulatedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for a CuPy array: no implicit way to the host, no arithmetic with host arrays."""

    def __init__(self, held: np.ndarray) -> None:
        if _captures and held.base is None:
            raise OrderError("a capture allocates memory: graphs repeat launches over the same arrays")
        self.held = held
        MEMORY.hold(held)

    shape = property(lambda self: self.held.shape)
    dtype = property(lambda self: self.held.dtype)
    size = property(lambda self: self.held.size)
    ndim = property(lambda self: self.held.ndim)
    nbytes = property(lambda self: self.held.nbytes)

    @property
    def __cuda_array_interface__(self):
        return self.held.__array_interface__ | {"version": 3, "stream": None}

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion of a device array to a host array")

    def __len__(self):
        return len(self.held)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return EmulatedArray(np.asarray(getattr(ufunc, method)(*map(_held, inputs), **kwargs)))

    def __array_function__(self, function, types, given, more):
        assert function.__name__ in FUNCTIONS, f"is there a cupy.{function.__name__}? then list it"
        if function is np.bincount and not given[0].size:
            raise ValueError("zero-size array to reduction operation cupy_max which has no identity")
        found = function(*map(_held, given), **{name: _held(value) for name, value in more.items()})
        return EmulatedArray(np.asarray(found)) if isinstance(found, (np.ndarray, np.generic)) else found

    def _number(self):
        """The one entry, which comes to the host as from CuPy: asked for, and waited for."""
        if _captures:
            raise OrderError("a capture reads a number")
        if self.size != 1:
            raise TypeError("only arrays of one entry are numbers")
        return self.held.item()

    def __bool__(self):
        return bool(self._number())

    def __int__(self):
        return int(self._number())

    def __float__(self):
        return float(self._number())

    def __str__(self):
        return str(self.held[()])

    def __getitem__(self, place):
        return EmulatedArray(np.asarray(self.held[_place(place)]))

    def __setitem__(self, place, value):
        if _captures:
            raise OrderError("a capture assigns to an array outside of a kernel")
        self.held[_place(place)] = _held(value)

    def astype(self, dtype, copy=True):
        return EmulatedArray(self.held.astype(dtype, copy=copy))

    def reshape(self, *shape):
        return EmulatedArray(self.held.reshape(*shape))

    def ravel(self):
        return EmulatedArray(self.held.ravel())

    def sum(self, axis=None, dtype=None):
        return EmulatedArray(np.asarray(self.held.sum(axis=axis, dtype=dtype)))

    def max(self):
        return EmulatedArray(np.asarray(self.held.max()))

    def min(self):
        return EmulatedArray(np.asarray(self.held.min()))

    def argmax(self):
        return EmulatedArray(np.asarray(self.held.argmax()))

    def any(self):
        return EmulatedArray(np.asarray(self.held.any()))

    def all(self):
        return EmulatedArray(np.asarray(self.held.all()))

    def copy(self):
        return EmulatedArray(self.held.copy())


def _held(value):
    if isinstance(value, EmulatedArray):
        return value.held
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("a host array meets a device array; CuPy would refuse")
    return value


def _place(place):
    return tuple(map(_held, place)) if isinstance(place, tuple) else _held(place)


class EmulatedDevice:
    """Kernels from a library made by ``build_emulator``, run in the order that a seed decides."""

    name = "the emulator"
    most_blocks = 3  # so few that small arrays, too, make kernels stride
    most_shared = 48 * 1024  # what a block may have on every GPU without asking for more

    def __init__(self, library: Path, seed: int = 0, order: int = 2, block: int = 64) -> None:
        self.path = library
        self._library = ctypes.CDLL(str(library))
        self._library.emulator_launch.restype = ctypes.c_char_p
        self.seed, self.order, self.block = seed, order, block
        self.free = 1 << 30
        self.downloaded = 0
        """Bytes that went to the host."""
        self.uploaded = 0
        self.launches = self.graph_launches = 0
        self.page_locked: set[int] = set()

    def empty(self, shape, dtype):
        array = np.empty(shape, dtype)
        array.view(np.uint8).fill(0xFF)  # device memory is not zero by itself
        return EmulatedArray(array)

    def zeros(self, shape, dtype):
        return EmulatedArray(np.zeros(shape, dtype))

    def upload(self, array, dtype=None):
        assert isinstance(array, np.ndarray)
        copied = np.array(array, dtype, order="C", copy=True)
        self.uploaded += copied.nbytes
        return EmulatedArray(copied)

    def download(self, array):
        assert isinstance(array, EmulatedArray)
        self.refuse_in_capture("a copy to the host")
        self.downloaded += array.nbytes
        return array.held.copy()

    def adopt(self, array):
        if isinstance(array, EmulatedArray):
            return array
        if hasattr(array, "__cuda_array_interface__"):
            face = type("Face", (), {"__array_interface__": array.__cuda_array_interface__, "owner": array})
            return EmulatedArray(np.asarray(face()))
        return EmulatedArray(np.from_dlpack(_OnHost(array)))

    def arange(self, size):
        return EmulatedArray(np.arange(size))

    def sort_order(self, keys):
        return EmulatedArray(np.argsort(keys.held, kind="stable").astype(np.int64))

    def free_bytes(self):
        return self.free

    def record(self, work):
        work()  # as on CuPy, where the first time compiles what a capture cannot
        capture = Capture(self)
        _captures.append(capture)
        try:
            work()
        finally:
            _captures.pop()
        return capture

    def refuse_in_capture(self, what):
        if _captures:
            raise OrderError(f"a capture makes {what}")

    # -- page-locked memory ----------------------------------------------------------------------------

    def pinned(self, array, dtype):
        copied = np.array(array, dtype, order="C", copy=True)
        self.lock_pages(copied)
        return copied

    def lock_pages(self, array):
        """Remember host memory as page-locked as long as it lives."""
        place = array.ctypes.data
        self.page_locked.add(place)
        weakref.finalize(array, self.page_locked.discard, place)

    def copy(self, into, array):
        self.refuse_in_capture("a copy from the host")
        if array.ctypes.data not in self.page_locked:
            raise OrderError("a copy that nobody waits for needs page-locked memory")
        assert into.dtype == array.dtype
        self.uploaded += array.nbytes
        into.held[...] = array

    # -- launches --------------------------------------------------------------------------------------

    def load(self, kernel, arguments):
        assert arguments in KERNELS[kernel].variants, (kernel, arguments)
        name, most_threads = expression(kernel, arguments), KERNELS[kernel].most_threads

        def call(grid, block, given, *, shared_mem=0):
            launch = (name, most_threads, grid, block, given, shared_mem)
            if _captures:
                _captures[-1].launches.append(launch)
            else:
                self.run(*launch)

        return call

    def run(self, name, most_threads, grid, block, given, shared_bytes):
        """Run a kernel."""
        n = len(given)
        pointers, types, kept = (ctypes.c_void_p * n)(), (ctypes.c_char_p * n)(), []
        for i, argument in enumerate(given):
            if isinstance(argument, EmulatedArray):
                if not argument.held.flags.c_contiguous:
                    raise EmulatorError(f"{name} argument {i} is not contiguous")
                box = ctypes.c_void_p(argument.held.ctypes.data)
                pointers[i], types[i] = ctypes.addressof(box), b"*" + argument.dtype.str[1:].encode()
            elif isinstance(argument, np.generic):
                box = np.array(argument)
                pointers[i], types[i] = box.ctypes.data, box.dtype.str[1:].encode()
            else:
                raise EmulatorError(f"{name} argument {i} is a {type(argument).__name__}, not a NumPy scalar")
            kept.append(box)
        three = [(ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in (grid, block)]
        self.launches += 1
        answer = self._library.emulator_launch(
            name.encode(), *three, ctypes.c_size_t(shared_bytes), pointers, types, n, self.order,
            ctypes.c_uint(self.seed + self.launches), ctypes.c_size_t(self.most_shared), most_threads,
        )  # fmt: skip
        if answer:
            raise EmulatorError(answer.decode())


class _OnHost:
    """A tensor that says it lies on a GPU, read as the host memory that it really is."""

    def __init__(self, tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_):
        return self._tensor.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)
