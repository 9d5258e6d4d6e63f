"""The README names commands that exist; its code blocks run in test_docs.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_make_targets_exist():
    named = set(re.findall(r"\bmake ([a-z]+)", README))
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    assert {"demo", "test"} <= named <= targets
