"""The real device's code without a GPU: over a stand-in for CuPy, and its calls against CuPy itself."""

from __future__ import annotations

import inspect
import os
import sys

import numpy as np
import pytest
from emulator.device import FUNCTIONS, EmulatedDevice
from emulator.fake_cupy import FakeCupy

import lingendice as lg
from gpu.test_device_solve import counted_log, random_counts
from lingendice.gpu import HostCopyWarning, device
from lingendice.gpu.catalog import MODULES, expressions, module_source
from lingendice.gpu.device import (
    COMPILER_OPTIONS,
    Device,
    DeviceUnavailable,
    load_everything,
    names_of,
    using,
)

POLICY = np.random.default_rng(3).dirichlet(np.ones(3), size=12)


# -- over a stand-in -------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(libraries):
    """Device over the emulator, with the emulator."""
    emulator = EmulatedDevice(libraries(), block=256)
    cupy = FakeCupy(emulator)
    with using(Device(cupy)):
        yield emulator, cupy


def test_cuda_is_refused_after_a_fork(libraries, monkeypatch):
    cupy = FakeCupy(EmulatedDevice(libraries(), block=256))
    cupy.cuda.runtime.getDeviceCount = lambda: 1
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "_users", set())
    counts, here = random_counts(), os.getpid()
    expected = lg.solve(counts, 0.9, device="cuda").stationary
    assert lg.solve(counts, 0.9, device="cuda").stationary.tolist() == expected.tolist()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with pytest.raises(DeviceUnavailable, match=r"before this process was forked.*spawn"):
        lg.solve(counts, 0.9, device="cuda")


SGD = {"method": "sgd", "bound": 4.0, "max_iter": 40, "options": {"batch": 16, "first_epoch": 40}}
CASES = {
    "discounted": (random_counts(), 0.9, {}),
    "average": (random_counts(), 1.0, {}),
    "single precision": (random_counts(), 0.9, {"tol": 1e-5, "options": {"storage": "float32"}}),
    "chunked": (random_counts(), 0.9, {"options": {"chunk_rows": 7}}),
    "policy": (counted_log(), 0.9, {"policy": POLICY, "ridge": 0, "clone": 0}),
    "sgd": (counted_log(), 0.5, {"policy": POLICY} | SGD),
}


@pytest.mark.parametrize("case", CASES)
def test_the_device_of_cupy_solves(stand_in, case):
    """Bit for bit what the emulated device gives: only the way through CuPy's names differs."""
    counts, gamma, choices = CASES[case]
    there = lg.solve(counts, gamma, device="cuda", **choices)
    emulator, _ = stand_in
    assert (emulator.graph_launches > 0) == (case != "chunked")
    direct = EmulatedDevice(emulator.path, block=256)
    direct.most_blocks = 16
    with using(direct):
        expected = lg.solve(counts, gamma, device="cuda", **choices)
    assert (there.stationary == expected.stationary).all()


def test_data_of_cupy_are_copied_with_a_warning(stand_in):
    _, cupy = stand_in
    matrix = cupy.asarray(random_counts(20).toarray())
    with pytest.warns(HostCopyWarning):
        solution = lg.solve(matrix, 0.9, device="cuda")
    expected = lg.solve(random_counts(20), 0.9).stationary
    np.testing.assert_allclose(solution.stationary, expected, rtol=1e-9)


def test_memory_that_cannot_be_locked_is_copied_all_the_same(stand_in, monkeypatch):
    _, cupy = stand_in

    def refuse(size):
        raise cupy.cuda.runtime.CUDARuntimeError("out of memory")

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", refuse)
    held = Device(cupy).pinned(np.arange(5), np.float32)
    assert held.dtype == np.float32
    assert held.tolist() == [0, 1, 2, 3, 4]


def test_every_kernel_is_compiled_once(stand_in):
    _, cupy = stand_in
    device = Device(cupy)
    assert load_everything(device) == load_everything(device)
    compiled = [name for names in cupy.modules for name in names]
    assert sorted(compiled) == sorted(name for module in MODULES for name in expressions(module))


# -- against CuPy itself ---------------------------------------------------------------------------------


def absent(reason):
    """Skip, unless the run says that CuPy and its compiler must be there."""
    if os.environ.get("LINGENDICE_REQUIRE_CUPY"):
        pytest.fail(f"LINGENDICE_REQUIRE_CUPY is set, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def cupy():
    try:
        import cupy
    except ImportError:
        absent("CuPy is not installed (extras cuda12, cuda13)")
    return cupy


def test_cupy_has_what_its_device_calls(cupy):
    """Names and arguments; importing CuPy and looking needs no GPU."""
    cuda = cupy.cuda
    for owner, names in {
        cupy: "empty zeros arange asarray asnumpy from_dlpack RawModule get_default_memory_pool "
        + " ".join(FUNCTIONS),
        cuda: "Device Stream get_current_stream alloc_pinned_memory",
        cuda.runtime: "getDeviceCount getDeviceProperties memGetInfo CUDARuntimeError",
        cuda.Stream: "begin_capture end_capture synchronize",
        cuda.graph.Graph: "launch",
        cupy.ndarray: "set astype reshape ravel sum max min argmax any all copy __cuda_array_interface__ "
        "__array_ufunc__ __array_function__ __bool__ __int__ __float__ __matmul__",
        cupy.RawModule: "get_function",
    }.items():
        for name in names.split():
            assert hasattr(owner, name), f"{owner} has no {name}"
    assert "kind" in inspect.signature(cupy.argsort).parameters
    assert "'stable'" in cupy.argsort.__doc__
    assert "set(self, arr, stream=None)" in cupy.ndarray.set.__doc__
    assert issubclass(cuda.runtime.CUDARuntimeError, RuntimeError)


RAW_MODULES = [(module, single) for module in MODULES for single in (False, True) if names_of(module, single)]


@pytest.mark.parametrize(("module", "single"), RAW_MODULES)
def test_nvrtc_compiles_through_cupys_binding(cupy, module, single):
    """To machine code, by CuPy's own NVRTC, which needs no driver."""
    names = names_of(module, single)
    program = _compiler(cupy)._NVRTCProgram(module_source(module), f"{module}.cu", (), (), names)
    code, mapping = program.compile((*COMPILER_OPTIONS, "--gpu-architecture=sm_80"))
    assert set(mapping) == set(names)
    assert len(code) > 1000


@pytest.mark.parametrize("module", MODULES)
def test_cupy_compiles_as_a_raw_module_does(cupy, module, monkeypatch):
    """The way of RawModule up to the loading of its code: only the GPU is named instead of asked."""
    compiler = _compiler(cupy)
    monkeypatch.setattr(
        compiler, "_get_arch_for_options_for_nvrtc", lambda arch: (f"-arch=sm_{arch}", "cubin")
    )
    names = names_of(module, False)
    code, mapping = compiler.compile_using_nvrtc(
        module_source(module), COMPILER_OPTIONS, "90", f"{module}.cu", names
    )
    assert set(mapping) == set(names)
    assert len(code) > 1000


def _compiler(cupy):
    from cupy.cuda import compiler

    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as reason:
        absent(f"CuPy finds no NVRTC: {reason}")
    return compiler
