"""Devices that test bodies run over: the emulator where g++ is present, a real GPU where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from emulator import build
from emulator.device import EmulatedDevice

from lingendice.gpu.device import DeviceUnavailable, current_device, using

REQUIRED = bool(os.environ.get("LINGENDICE_REQUIRE_NVCC"))


def require(tool, name):
    """Skip where a compiler is absent, unless the run says that it must be there."""
    if tool is None:
        if REQUIRED:
            pytest.fail(f"{name} is absent and LINGENDICE_REQUIRE_NVCC is set")
        pytest.skip(f"{name} is not present")


def pytest_collection_modifyitems(items):
    """Rows of random logs do not follow each other; what is tested here is how they are counted."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning"))


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Emulator libraries by kind, each compiled once a session and when first asked for."""
    folder = tmp_path_factory.mktemp("emulator")
    made = {}

    def library(kind="plain"):
        require(build.GXX, "g++")
        if kind not in made:
            made[kind] = build.build_emulator(folder, kind)
        return made[kind]

    return library


def real_device():
    """The GPU, or a skip with the reason; a failure where LINGENDICE_REQUIRE_GPU=1."""
    try:
        return current_device()
    except DeviceUnavailable as reason:
        if os.environ.get("LINGENDICE_REQUIRE_GPU") == "1":
            pytest.fail(f"LINGENDICE_REQUIRE_GPU=1, but: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, libraries):
    """Every test that asks for it runs on the emulator and, where there is one, on a GPU."""
    chosen = EmulatedDevice(libraries()) if request.param == "emulator" else real_device()
    with using(chosen):
        yield chosen


@pytest.fixture
def emulator(libraries):
    """The emulator alone, for what only it can tell."""
    chosen = EmulatedDevice(libraries())
    with using(chosen):
        yield chosen
