"""The citation graphs Cora and Citeseer, from a directory or by download.

Lines of a ``.cites`` file name two papers, the cited one first: ``cited <tab> citing``. The archives are
those of the LINQS group; what is trusted is the SHA-256 of the ``.cites`` file inside, whoever sends it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lingendice.data.counts import Counts
from lingendice.io.formats import FileError

DATA_VARIABLE = "LINGENDICE_DATA"
DIRECTIONS = ("cited_to_citing", "citing_to_cited")


@dataclass(frozen=True)
class CitationSource:
    """Where a citation graph comes from, and the checksum of its list of citations."""

    url: str
    member: str
    sha256: str


SOURCES = {
    "cora": CitationSource(
        "https://linqs-data.soe.ucsc.edu/public/lbc/cora.tgz",
        "cora/cora.cites",
        "ec1a372391b7f0f60a6aff0084e8abd8f19f0faa7e1f2441a41c492042d5945e",
    ),
    "citeseer": CitationSource(
        "https://linqs-data.soe.ucsc.edu/public/lbc/citeseer.tgz",
        "citeseer/citeseer.cites",
        "cd9730630eaaa745058c2cd2cce6b9afb79ca71278a479aebec55f4cf5eb7f30",
    ),
}


def load_citations(
    name: str, directory: str | Path | None = None, direction: str = "cited_to_citing"
) -> Counts:
    """Citation graph as counts: one count per line of the file, papers as state labels.

    Looks for ``NAME.cites`` in ``directory`` and nowhere else where that is given; else in the directory
    that the environment variable LINGENDICE_DATA names (or its ``graphs`` folder); else downloads it
    once with pooch (``pip install 'lingendice[graphs]'``) and checks its SHA-256. A file of your own is
    read as it is. Self-citations and repeated lines are kept. O(lines).

    Parameters
    ----------
    name
        ``"cora"`` (2,708 papers, 5,429 citations) or ``"citeseer"`` (3,327 and 4,732).
    directory
        Where ``cora.cites`` or ``citeseer.cites`` lies.
    direction
        ``"cited_to_citing"`` walks from a paper to those that cite it, ``"citing_to_cited"`` along
        its references. Either way hundreds of papers are dangling: give ``solve`` a ``restart``.

    Examples
    --------
    >>> counts = load_citations("cora")                                  # doctest: +SKIP
    >>> lingendice.solve(counts, gamma=0.85, restart=uniform).stationary  # doctest: +SKIP
    """
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(map(repr, SOURCES))}, got {name!r}")
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(map(repr, DIRECTIONS))}, got {direction!r}")
    cited, citing = read_citations(find_citations(name, directory))
    first, second = (cited, citing) if direction == DIRECTIONS[0] else (citing, cited)
    return Counts.from_transitions(first, second)


def find_citations(name: str, directory: str | Path | None = None) -> Path:
    """Path of ``NAME.cites`` by the rules of :func:`load_citations`; downloads where nothing else is left."""
    if directory is not None:
        path = Path(directory) / f"{name}.cites"
        if not path.is_file():
            raise FileError(f"{path}: no such file; put it there, or leave directory out to download it")
        return path
    root = os.environ.get(DATA_VARIABLE)
    if root:
        for path in (Path(root) / f"{name}.cites", Path(root) / "graphs" / f"{name}.cites"):
            if path.is_file():
                return path
    return _download(SOURCES[name])


def read_citations(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Cited and citing paper of every line, as strings."""
    path = Path(path)
    cited, citing = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2:
            raise FileError(f"{path}, line {number}: expected 'cited <tab> citing', found {line!r}")
        cited.append(fields[0])
        citing.append(fields[1])
    if not cited:
        raise FileError(f"{path}: holds no citation; delete it and load again to download it anew")
    return np.array(cited), np.array(citing)


def check_sha256(path: str | Path, expected: str) -> None:
    """Raise unless the file has that SHA-256."""
    found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if found != expected:
        raise FileError(
            f"{path}: SHA-256 is {found}, expected {expected}; delete it and load again, or pass "
            "directory= to use a file of your own"
        )


def _download(source: CitationSource) -> Path:
    name = source.member.rsplit("/", 1)[-1]
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            f"downloading {name} needs pooch: pip install 'lingendice[graphs]'; or put {name} into a folder "
            f"and name it by directory= or the environment variable {DATA_VARIABLE}"
        ) from error
    try:
        # The archive's own checksum is not known to us: its packing may change, its contents may not.
        files = pooch.retrieve(
            source.url,
            known_hash=None,
            path=pooch.os_cache("lingendice"),
            fname=source.url.rsplit("/", 1)[-1],
            processor=pooch.Untar(members=[source.member]),
        )
    except (OSError, ValueError, KeyError) as error:
        raise FileError(
            f"{source.url}: download failed ({error}); fetch {name} by other means, put it into a folder and "
            f"name it by directory= or the environment variable {DATA_VARIABLE}"
        ) from error
    path = next((Path(file) for file in files if Path(file).name == name), None)
    if path is None:
        raise FileError(f"{source.url}: the archive holds no {source.member}; pass directory= instead")
    check_sha256(path, source.sha256)
    return path
