"""Files are replaced whole or not at all, wherever the library writes one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lingendice as lg
from lingendice.data import saving
from lingendice.io.array_files import write_result

CHAIN = [[90, 10], [30, 70]]


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/stdout and /proc")


def solved():
    return lg.solve(CHAIN)


WRITERS = {
    "counts.npz": lambda path: lg.Counts.from_matrix(CHAIN).save(path),
    "counts.parquet": lambda path: lg.Counts.from_matrix(CHAIN).save(path),
    "page.html": lambda path: lg.report(solved(), path, plots=False),
    "result.json": lambda path: write_result(path, {}, {"a": 1}),
    "result.npz": lambda path: write_result(path, {"a": np.ones(2)}, {}),
    "training.npz": lambda path: saving.write_archive(path, {}, {"kind": "training", "seed": 0}),
}


@pytest.fixture(params=WRITERS)
def written(request, tmp_path):
    return tmp_path / request.param, WRITERS[request.param]


def test_the_old_file_stays_when_the_last_move_fails(written, monkeypatch):
    path, write = written
    path.write_bytes(b"the old one")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write(path)
    assert path.read_bytes() == b"the old one"
    assert os.listdir(path.parent) == [path.name]


def test_permissions_and_links_are_those_of_an_ordinary_file(written):
    path, write = written
    write(path)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    real = path.rename(path.with_name(f"real{path.suffix}"))
    path.symlink_to(real.name)
    write(path)
    assert path.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_long_name_leaves_room_for_the_unfinished_file(tmp_path):
    path = tmp_path / f"{'a' * 250}.html"
    lg.report(solved(), path, plots=False)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_only_old_unfinished_files_of_ours_are_removed(written):
    path, write = written
    others = [".counts.npz.x1.part", ".lingendice-notes", "lingendice.part"]
    ours = [f".lingendice-{n}.part" for n in ("old", "young")]
    for name in others + ours:
        (path.parent / name).touch()
    for name in [*others, ours[0]]:
        os.utime(path.parent / name, (time.time() - 2 * saving.KEPT_SECONDS,) * 2)
    write(path)
    assert sorted(os.listdir(path.parent)) == sorted([*others, ours[1], path.name])


@LINUX
def test_pipes_and_devices_are_written_as_they_are(tmp_path):
    code = "import lingendice as lg; lg.report(lg.solve([[90, 10], [30, 70]]), '/dev/stdout', plots=False)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("<!doctype html>")
    assert Path("/dev/stdout").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    saving.write_text(tmp_path / "pipe", "through")
    assert reader.communicate(timeout=10)[0] == b"through"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*missing; make it first"):
        lg.report(solved(), tmp_path / "missing" / "page.html", plots=False)


@LINUX
def test_where_a_folder_takes_no_files():
    with pytest.raises(OSError, match=r"no file can be made in .*choose another folder.*version"):
        lg.report(solved(), "/proc/version", plots=False)


KILLED = """
import os, sys, lingendice as lg
os.fsync = lambda _: os.kill(os.getpid(), 9)
lg.report(lg.solve([[90, 10], [30, 70]]), sys.argv[1], title="another", plots=False)
"""


def test_a_killed_writer_leaves_the_old_page(tmp_path):
    path = tmp_path / "page.html"
    lg.report(solved(), path, plots=False)
    before = path.read_bytes()
    assert subprocess.run([sys.executable, "-c", KILLED, path], timeout=60).returncode == -9
    assert path.read_bytes() == before
    assert len(os.listdir(tmp_path)) == 2
    lg.report(solved(), path, title="a third", plots=False)
    assert b"a third" in path.read_bytes()
