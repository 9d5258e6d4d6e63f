"""The citation graphs Cora and Citeseer as counts: from a folder of data, or by a checked download."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from urllib.request import urlopen

import numpy as np

import lingendice as lg

ARCHIVES = "https://linqs-data.soe.ucsc.edu/public/lbc"
CHECKSUMS = {
    "cora": "ec1a372391b7f0f60a6aff0084e8abd8f19f0faa7e1f2441a41c492042d5945e",
    "citeseer": "cd9730630eaaa745058c2cd2cce6b9afb79ca71278a479aebec55f4cf5eb7f30",
}
"""SHA-256 of the list of citations of each graph."""
DIRECTIONS = ("cited_to_citing", "citing_to_cited")
TIMEOUT = 60.0  # seconds


def load_citations(name: str, folder: Path | None, direction: str = DIRECTIONS[0]) -> lg.Counts:
    """One count per line of ``NAME.cites``, papers as state labels; O(lines).

    Cora has 2,708 papers and 5,429 citations, Citeseer 3,327 and 4,732, those of a paper by itself and
    repeated lines included. The file is that in ``folder``, else it is downloaded. ``"cited_to_citing"``
    walks from a paper to those that cite it, ``"citing_to_cited"`` along its references. Either way hundreds
    of papers are dangling.
    """
    stored = None if folder is None else folder / f"{name}.cites"
    text = stored.read_bytes() if stored is not None and stored.is_file() else download(name)
    found = hashlib.sha256(text).hexdigest()
    if found != CHECKSUMS[name]:
        raise ValueError(f"{name}.cites: SHA-256 is {found}, expected {CHECKSUMS[name]}; fetch it again")
    cited, citing = np.array([line.split() for line in text.decode().splitlines()]).T
    first, second = (cited, citing) if direction == DIRECTIONS[0] else (citing, cited)
    return lg.Counts.from_transitions(first, second)


def download(name: str) -> bytes:
    """The list of citations in the published archive."""
    with urlopen(f"{ARCHIVES}/{name}.tgz", timeout=TIMEOUT) as answer:
        packed = io.BytesIO(answer.read())
    with tarfile.open(fileobj=packed) as archive:
        member = archive.extractfile(f"{name}/{name}.cites")
        assert member is not None
        return member.read()
