"""Citation graphs: found where they are said to be, read as they are, never trusted unchecked."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from lingendice.io import edge_lists as graphs
from lingendice.io.formats import FileError

LINES = "b\ta\nc\ta\nc\tb\nc\tc\nc\ta\n"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "graphs"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv(graphs.DATA_VARIABLE, raising=False)
    (tmp_path / "cora.cites").write_text(LINES)
    return tmp_path


def arrows(counts):
    matrix = counts.matrix.tocoo()
    names = np.asarray(counts.state_labels)
    return {
        (str(names[i]), str(names[j])): int(n) for i, j, n in zip(*matrix.coords, matrix.data, strict=True)
    }


def test_lines_are_cited_then_citing_and_each_counts_once(folder):
    expected = {("b", "a"): 1, ("c", "a"): 2, ("c", "b"): 1, ("c", "c"): 1}
    assert arrows(graphs.load_citations("cora", folder)) == expected
    turned = graphs.load_citations("cora", folder, direction="citing_to_cited")
    assert arrows(turned) == {(j, i): n for (i, j), n in expected.items()}


@pytest.mark.parametrize("below", [".", "graphs"])
def test_the_environment_variable_names_a_directory(folder, monkeypatch, tmp_path_factory, below):
    root = tmp_path_factory.mktemp("data")
    (root / below).mkdir(exist_ok=True)
    (root / below / "cora.cites").write_text("x y\n")
    monkeypatch.setenv(graphs.DATA_VARIABLE, str(root))
    assert arrows(graphs.load_citations("cora")) == {("x", "y"): 1}
    # The argument goes before the environment.
    assert graphs.load_citations("cora", folder).total == 5


def test_errors_name_the_entry_and_the_next_step(folder, monkeypatch):
    with pytest.raises(ValueError, match="'cora', 'citeseer', got 'pubmed'"):
        graphs.load_citations("pubmed")
    with pytest.raises(ValueError, match="direction must be one of"):
        graphs.load_citations("cora", folder, direction="up")
    with pytest.raises(FileError, match=r"citeseer\.cites: no such file; put it there"):
        graphs.load_citations("citeseer", folder)
    (folder / "cora.cites").write_text("a b\na b c\n")
    with pytest.raises(FileError, match="line 2: 3 entries, 2 in the lines before"):
        graphs.load_citations("cora", folder)
    (folder / "cora.cites").write_text("\n")
    with pytest.raises(FileError, match="holds no citation"):
        graphs.load_citations("cora", folder)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"lingendice\[graphs\].*directory="):
        graphs.load_citations("cora")


def test_checksum(folder):
    path = folder / "cora.cites"
    graphs.check_sha256(path, hashlib.sha256(LINES.encode()).hexdigest())
    with pytest.raises(FileError, match=r"expected ec1a37.*delete it and load again"):
        graphs.check_sha256(path, graphs.CHECKSUMS["cora"])


@pytest.fixture
def served(folder, monkeypatch):
    """An archive like the published ones, on a server of this machine."""
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda name: folder / "cache")
    with tarfile.open(folder / "cora.tgz", "w:gz") as archive:
        for name, text in (("cora/README", "papers"), ("cora/cora.cites", LINES)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_download_is_checked(served, monkeypatch):
    right = hashlib.sha256(LINES.encode()).hexdigest()
    for sha256, address in ((right, served + "lost/"), ("0" * 64, served), (right, served)):
        monkeypatch.setattr(graphs, "ARCHIVES", address.rstrip("/"))
        monkeypatch.setitem(graphs.CHECKSUMS, "cora", sha256)
        if sha256 != right:
            with pytest.raises(FileError, match="expected 000"):
                graphs.load_citations("cora")
        elif address != served:
            with pytest.raises(FileError, match=r"download failed.*directory="):
                graphs.load_citations("cora")
        else:
            assert graphs.load_citations("cora").total == 5


@pytest.mark.skipif(not SHARED.is_dir(), reason="the citation graphs are not beside the repository")
def test_nodes_with_zeros_in_front_are_their_own(tmp_path):
    (tmp_path / "graph.csv").write_text("source,target\n007,7\n7,10\n10,007\n")
    assert graphs.read_edge_file(tmp_path / "graph.csv").state_labels == ("007", "10", "7")
    (tmp_path / "graph.csv").write_text("source,target\n0,7\n7,10\n10,0\n")
    assert graphs.read_edge_file(tmp_path / "graph.csv").state_labels == (0, 7, 10)


@pytest.mark.parametrize(("name", "papers", "lines"), [("cora", 2708, 5429), ("citeseer", 3327, 4732)])
def test_the_published_files(name, papers, lines):
    graphs.check_sha256(SHARED / f"{name}.cites", graphs.CHECKSUMS[name])
    counts = graphs.load_citations(name, SHARED)
    assert (counts.n_states, counts.total) == (papers, lines)
