"""Compile the CUDA sources: by g++ for the emulator, with or without sanitizers, and by nvcc for GPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from lingendice.gpu.catalog import MODULES, cuda_source, expressions, module_source

HERE = Path(__file__).resolve().parent
GXX, NVCC = shutil.which("g++"), shutil.which("nvcc")
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
SANITIZERS = {
    "plain": ["-O1"],
    "address": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-O1", "-g1", "-fsanitize=thread"],
}
PRELOADS = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}


def emulator_text(sources: dict[str, str], modules: tuple[str, ...] = MODULES, quick: bool = False) -> str:
    """One translation unit: the emulator, the kernels, and a register of them (quick: in double alone)."""
    body = "\n".join(sources[name] for name in ("prelude", *modules))
    known = [name for module in modules for name in expressions(module) if not (quick and "float" in name)]
    register = "\n".join(
        f'static const emulator::Registered<{name}> registered_{number}("{name}");'
        for number, name in enumerate(known)
    )
    return f'#include "emulator.h"\n{body}\n{register}\n'


def all_sources() -> dict[str, str]:
    """Text of every CUDA source."""
    return {name: cuda_source(name) for name in ("prelude", *MODULES)}


def build_emulator(
    folder: Path,
    kind: str = "plain",
    sources: dict[str, str] | None = None,
    modules: tuple[str, ...] = MODULES,
    name: str | None = None,
    quick: bool = False,
) -> Path:
    """Compile the emulator with the kernels in it; returns the shared library."""
    text = folder / f"{name or kind}.cpp"
    library = text.with_suffix(".so")
    text.write_text(emulator_text(sources or all_sources(), modules, quick), encoding="utf-8")
    flags = ["-std=c++17", "-fPIC", "-shared", "-fno-gnu-unique", "-fvisibility=hidden", "-ffp-contract=off"]
    level = ["-O0"] if quick else []  # the last -O counts
    warnings = ["-Wall", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable"]
    command = [
        GXX,
        *flags,
        *warnings,
        *SANITIZERS[kind],
        *level,
        "-I",
        str(HERE),
        str(text),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return library


def preload(kind: str) -> str:
    """What LD_PRELOAD must hold for an interpreter that loads a sanitized library."""
    found = [
        subprocess.run(
            [GXX, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in PRELOADS[kind]
    ]
    return " ".join(found)


def compile_cubins(folder: Path, module: str, native: str | None = None) -> tuple[int, str]:
    """Machine code of a module for every architecture, spills and warnings being errors.

    One intermediate code for the oldest architecture, assembled for each; or, for ``native``, code made for
    that one alone. Returns how many kernels were assembled, and the assembler's messages.
    """
    text = folder / f"{module}_{native or 'all'}.cu"
    # Host code that takes a kernel's address makes nvcc compile that instance of its template.
    wanted = ",\n    ".join(f"reinterpret_cast<const void *>(&{name})" for name in expressions(module))
    text.write_text(
        module_source(module) + f"\nextern const void *const every_kernel[] = {{\n    {wanted}}};\n",
        encoding="utf-8",
    )
    oldest = (native or ARCHITECTURES[0]).replace("sm_", "compute_")
    targets = native or f"[{','.join(ARCHITECTURES)}]"
    flags = ["-fatbin", "-gencode", f"arch={oldest},code={targets}", "-std=c++17", "--Werror", "all-warnings"]
    command = [
        NVCC,
        *flags,
        "-Xptxas",
        "-v,--warn-on-spills",
        "-o",
        str(text.with_suffix(".fatbin")),
        str(text),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    messages = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(messages[-4000:])
    return len(re.findall(r"Compiling entry function", messages)), messages
