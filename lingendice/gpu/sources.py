"""Find the text of a CUDA source: inside an installed wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_HOMES = (_PACKAGE / "_cuda", _PACKAGE.parent / "cuda")


def cuda_source(name: str) -> str:
    """Text of ``cuda/<name>.cu``, as CuPy's ``RawModule`` wants it."""
    for home in _HOMES:
        path = home / f"{name}.cu"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    known = sorted({path.stem for home in _HOMES for path in home.glob("*.cu")})
    raise FileNotFoundError(f"no CUDA source named {name!r}; there are: {', '.join(known) or 'none'}")
