"""Citation graphs of the paper's experiments: read as they are, never trusted unchecked."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "paper"))

import citations  # noqa: E402

LINES = "b\ta\nc\ta\nc\tb\nc\tc\nc\ta\n"
SHARED = ROOT.parent / "shared" / "data" / "graphs"


def arrows(counts):
    matrix = counts.matrix.tocoo()
    names = np.asarray(counts.state_labels)
    return {
        (str(names[i]), str(names[j])): int(n) for i, j, n in zip(*matrix.coords, matrix.data, strict=True)
    }


def trust(monkeypatch, text):
    monkeypatch.setitem(citations.CHECKSUMS, "cora", hashlib.sha256(text.encode()).hexdigest())


def test_lines_are_cited_then_citing_and_each_counts_once(tmp_path, monkeypatch):
    (tmp_path / "cora.cites").write_text(LINES)
    with pytest.raises(ValueError, match=r"expected ec1a37.*fetch it again"):
        citations.load_citations("cora", tmp_path)
    trust(monkeypatch, LINES)
    expected = {("b", "a"): 1, ("c", "a"): 2, ("c", "b"): 1, ("c", "c"): 1}
    assert arrows(citations.load_citations("cora", tmp_path)) == expected
    turned = citations.load_citations("cora", tmp_path, "citing_to_cited")
    assert arrows(turned) == {(j, i): n for (i, j), n in expected.items()}


def test_what_is_downloaded_is_checked(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "cora.tgz", "w:gz") as archive:
        for name, text in (("cora/README", "papers"), ("cora/cora.cites", LINES)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setattr(citations, "ARCHIVES", tmp_path.as_uri())
    with pytest.raises(ValueError, match=r"SHA-256 is .* expected ec1a37"):
        citations.load_citations("cora", tmp_path / "empty")
    trust(monkeypatch, LINES)
    assert citations.load_citations("cora", None).total == 5


@pytest.mark.skipif(not SHARED.is_dir(), reason="the citation graphs are not beside the repository")
@pytest.mark.parametrize(("name", "papers", "lines"), [("cora", 2708, 5429), ("citeseer", 3327, 4732)])
def test_the_published_files(name, papers, lines):
    counts = citations.load_citations(name, SHARED)
    assert (counts.n_states, counts.total) == (papers, lines)
