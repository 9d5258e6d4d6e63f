"""Find the text of a CUDA source: inside an installed wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_HOMES = (_PACKAGE / "_cuda", _PACKAGE.parent / "cuda")


def cuda_source(name: str) -> str:
    """Text of ``cuda/<name>.cu``."""
    for home in _HOMES:
        path = home / f"{name}.cu"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    known = sorted({path.stem for home in _HOMES for path in home.glob("*.cu")})
    raise FileNotFoundError(f"no CUDA source named {name!r}; there are: {', '.join(known) or 'none'}")


def module_source(name: str) -> str:
    """A module as compilers take it: what all kernels share, then its own kernels. No includes."""
    return cuda_source("prelude") + "\n" + cuda_source(name)
