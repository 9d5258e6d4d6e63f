"""The one door to PyArrow, which loads when first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def arrow(part: str = "") -> Any:
    """PyArrow, or one of its parts: ``"parquet"``, ``"csv"``, ``"ipc"``, ``"compute"``."""
    try:
        return import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ImportError as error:
        raise ImportError("Parquet, Arrow and frames need PyArrow: pip install 'lingendice[io]'") from error
