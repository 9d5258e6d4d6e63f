"""CUDA sources: found by name, free of includes, and compiled where nvcc is present."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lingendice.gpu.sources import cuda_source

SOURCES = sorted((Path(__file__).resolve().parents[1] / "cuda").glob("*.cu"))


def test_sources_are_found_by_name():
    assert 'extern "C" __global__' in cuda_source("apply_transpose")
    with pytest.raises(FileNotFoundError, match=r"there are: .*apply_transpose"):
        cuda_source("no_such_kernel")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_sources_have_no_includes(path):
    """NVRTC has no header search path on a user's machine."""
    assert "#include" not in path.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc not present")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_sources_compile(path, tmp_path):
    flags = ["-cubin", "-arch=sm_80", "-Xptxas", "--warn-on-spills", "--Werror", "all-warnings"]
    command = ["nvcc", *flags, "-o", str(tmp_path / "kernel.cubin"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
