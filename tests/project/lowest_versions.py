"""Print the lowest version that pyproject.toml allows of each direct dependency, as constraints for pip.

``python tests/project/lowest_versions.py cli plots`` prints those of the core and of the named extras. It
runs on the oldest Python without any package, hence no TOML parser.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
REQUIREMENT = re.compile(r'"([A-Za-z0-9_.-]+)(?:\[[^"]*\])?>=([0-9.]+)[^"]*"')


def lowest_versions(text: str, extras: list[str]) -> dict[str, str]:
    """Package to lowest version, for the core dependencies and the named extras."""
    found: dict[str, str] = {}
    for name in ("dependencies", *extras):
        line = re.search(rf"^{name} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        if line is None:
            raise ValueError(f"pyproject.toml has no list called {name!r}")
        found.update(REQUIREMENT.findall(line[1]))
    return found


if __name__ == "__main__":
    for package, version in lowest_versions(PYPROJECT.read_text(encoding="utf-8"), sys.argv[1:]).items():
        print(f"{package}=={version}")
