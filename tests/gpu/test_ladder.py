"""The ladder that stands in for a GPU: compilers, emulation, sanitizers, and mutants that it must catch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from emulator import build, drill
from emulator.device import EmulatedDevice

from gpu.conftest import require
from lingendice.gpu.catalog import KERNELS, MODULES, cuda_source, expressions

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("prelude", *MODULES)


# -- the sources ------------------------------------------------------------------------------------------


def test_sources_are_found_by_name():
    assert "__global__" in cuda_source("operator")
    with pytest.raises(FileNotFoundError, match=r"there are: .*operator"):
        cuda_source("no_such_kernel")


@pytest.mark.parametrize("name", SOURCES)
def test_sources_have_no_includes_and_no_atomics(name):
    text = cuda_source(name)
    assert "#include" not in text
    assert text.isascii()
    assert not re.findall(r"atomic[A-Z]\w+", text)


def test_every_kernel_is_listed_and_every_listed_one_exists():
    for module in MODULES:
        defined = set(
            re.findall(r"__global__ void (?:__launch_bounds__\([\d, ]+\)\s*)?(\w+)\(", cuda_source(module))
        )
        assert defined == {name for name, kernel in KERNELS.items() if kernel.module == module}


def test_the_cuda_folder_is_no_package():
    assert not list((ROOT / "cuda").rglob("__init__.py"))
    assert {path.suffix for path in (ROOT / "cuda").iterdir()} == {".cu"}


# -- compilers --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cubins(tmp_path_factory):
    """What nvcc says of every module, two at a time."""
    require(build.NVCC, "nvcc")
    folder = tmp_path_factory.mktemp("cubins")
    with ThreadPoolExecutor(2) as pool:
        return {module: pool.submit(build.compile_cubins, folder, module) for module in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_nvcc_compiles_for_every_architecture_without_spills_or_warnings(cubins, module):
    assembled, messages = cubins[module].result()
    assert assembled == len(build.ARCHITECTURES) * len(expressions(module))
    assert all(f"for '{architecture}'" in messages for architecture in build.ARCHITECTURES)
    assert not re.findall(r"[1-9]\d* bytes spill", messages)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
@pytest.mark.parametrize("module", MODULES)
def test_nvcc_compiles_natively(tmp_path, module, architecture):
    require(build.NVCC, "nvcc")
    assert build.compile_cubins(tmp_path, module, architecture)[0] == len(expressions(module))


# -- emulation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1, 2])
def test_every_kernel_computes_what_it_should(libraries, monkeypatch, order):
    launched = set()
    plain = EmulatedDevice.run

    def run(self, name, *rest):
        launched.add(name)
        plain(self, name, *rest)

    monkeypatch.setattr(EmulatedDevice, "run", run)
    lines = drill.run(libraries(), drill.EXERCISES, (order,))
    assert [line for line in lines if not line.endswith(" ok")] == []
    assert {name.partition("<")[0] for name in launched} == set(KERNELS)  # so that sanitizers see them all
    lines = drill.run(libraries(), drill.EXERCISES, (order,), drill.EVERY_TYPE)
    assert [line for line in lines if not line.endswith(" ok")] == []
    assert launched == {name for module in MODULES for name in expressions(module)}


def sanitized(folder, kind, sources=None, modules=MODULES, name=None):
    """Run the drills in a process of their own; (exit code, output)."""
    library = build.build_emulator(folder, kind, sources, modules, name, quick=True)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    if kind != "plain":
        environment["LD_PRELOAD"] = build.preload(kind)
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    environment["TSAN_OPTIONS"] = "exitcode=66 report_bugs=1"
    command = [sys.executable, "-m", "emulator.drill", str(library), *modules]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def clean_runs(tmp_path_factory):
    """The drills under both sanitizers, side by side."""
    require(build.GXX, "g++")
    folder = tmp_path_factory.mktemp("sanitized")
    with ThreadPoolExecutor(2) as pool:
        return {kind: pool.submit(sanitized, folder, kind) for kind in ("address", "thread")}


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_sanitizers_have_nothing_to_say(clean_runs, kind):
    code, output = clean_runs[kind].result()
    assert code == 0, output[-3000:]
    assert output.count(" ok") == sum(map(len, drill.EXERCISES.values()))


# -- mutants ----------------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """A way to break a kernel, and the rung that must notice."""

    source: str
    old: str
    new: str
    rung: str
    module: str | None = None
    quick: bool = False


MUTANTS = {
    "barrier of block_sums removed": Mutant(
        "prelude", "    __syncthreads();  // warp sums are written\n", "", "plain", "saddle", True
    ),
    "second barrier of block_sums removed": Mutant(
        "prelude", "    __syncthreads();  // scratch may be used again\n", "", "thread", "operator", True
    ),
    "half of the shuffles": Mutant(
        "prelude",
        "offset = 16; offset > 0; offset >>= 1",
        "offset = 8; offset > 0; offset >>= 1",
        "plain",
        "saddle",
    ),
    "mask of one lane": Mutant("prelude", "0xffffffffu", "0x1u", "plain", "saddle", True),
    "row bound off by one": Mutant(
        "operator", "place < n_listed", "place <= n_listed", "address", quick=True
    ),
    "return before a shuffle": Mutant(
        "operator",
        "        const int row = present ? rows[place] : 0;\n",
        "        if (!present)\n            return;\n        const int row = rows[place];\n",
        "plain",
    ),
    "row end off by one": Mutant("operator", "k < indptr[row + 1]", "k <= indptr[row + 1]", "plain"),
    "stride of one block": Mutant(
        "operator", "base += (long long)gridDim.x * rows_a_block", "base += rows_a_block", "plain"
    ),
    "segments counted twice": Mutant(
        "operator", "k += blockDim.x)\n            sum +=", "k += 32)\n            sum +=", "plain"
    ),
    "barrier of mix_weights removed": Mutant(
        "operator", "    __syncthreads();  // all products are there\n", "", "plain"
    ),
    "blocks share a partial": Mutant(
        "operator", "first_part + blockIdx.x, n_parts", "first_part, n_parts", "plain"
    ),
    "partials of all blocks in one place": Mutant(
        "saddle", "u_parts[blockIdx.x] = on_u", "u_parts[0] = on_u", "thread", quick=True
    ),
    "every entry moves its coordinate": Mutant(
        "saddle", " || (e > 0 && mine[e - 1] >> 32 == met)", "", "plain", quick=True
    ),
    "runs followed past the end": Mutant(
        "saddle", "k < n_entries && mine[k]", "mine[k]", "address", quick=True
    ),
    "stages of a sort without a barrier": Mutant(
        "saddle", "                __syncthreads();  // the stage before is over\n", "", "plain", quick=True
    ),
    "a segment copied before it is sorted": Mutant(
        "saddle", "        __syncthreads();  // all is sorted\n", "", "thread"
    ),
    "a step past the end of the epoch": Mutant(
        "saddle", "if (now >= clock[EPOCH])", "if (now > clock[EPOCH])", "plain"
    ),
    "variate bound off by one": Mutant(
        "operator",
        "i < n;\n         i += (long long)gridDim.x * blockDim.x) {\n        const unsigned long long bits",
        "i <= n;\n         i += (long long)gridDim.x * blockDim.x) {\n        const unsigned long long bits",
        "address",
    ),
}


def broken(mutant):
    sources = build.all_sources()
    assert mutant.old in sources[mutant.source], "the mutant no longer fits its source"
    return sources | {mutant.source: sources[mutant.source].replace(mutant.old, mutant.new)}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory, request):
    """Run the mutants that were selected, two at a time."""
    require(build.GXX, "g++")
    folder = tmp_path_factory.mktemp("mutants")
    chosen = {
        item.callspec.params["name"] for item in request.session.items if "verdicts" in item.fixturenames
    }

    def judge(number_and_name):
        number, name = number_and_name
        mutant = MUTANTS[name]
        module = mutant.module or mutant.source
        return name, sanitized(folder, mutant.rung, broken(mutant), (module,), f"mutant_{number}")

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(judge, enumerate(sorted(chosen))))


SIGNS = {
    "plain": r" (value|misuse) ",
    "address": r"AddressSanitizer|runtime error",
    "thread": r"WARNING: ThreadSanitizer: data race",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if MUTANTS[name].quick else pytest.mark.slow) for name in MUTANTS]
)
def test_mutants_are_caught(verdicts, name):
    code, output = verdicts[name]
    assert code != 0, f"{name}: nobody noticed"
    assert re.search(SIGNS[MUTANTS[name].rung], output), output[-2000:]
