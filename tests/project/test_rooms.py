"""The rooms of the package: no private name crosses one, and no import goes round, lazy ones included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "lingendice"


class Import:
    """One imported name: where, from which module, and what."""

    def __init__(self, importer: str, module: str, name: str, line: int) -> None:
        self.importer, self.module, self.name, self.line = importer, module, name, line

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}.{self.name}"


def modules_of(package: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(modules: dict[str, Path]) -> list[Import]:
    """Every import of the package's own modules that runs, at the top or within a function."""
    found = []
    for importer, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for_types = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) in for_types:
                continue
            if isinstance(node, ast.Import):
                found += [Import(importer, alias.name, "", node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{importer}:{node.lineno} is relative"
                found += [Import(importer, node.module or "", a.name, node.lineno) for a in node.names]
    return found


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else module


def private_across_rooms(imports: list[Import], package: str) -> list[str]:
    return [
        str(one)
        for one in imports
        if one.module.split(".")[0] == package
        and one.name.startswith("_")
        and not one.name.startswith("__")
        and room(one.module) != room(one.importer)
    ]


def cycles(modules: dict[str, Path], imports: list[Import], package: str) -> list[set[str]]:
    """Sets of modules that reach each other; the package's own __init__ names everything, lazily."""
    ahead: dict[str, set[str]] = {name: set() for name in modules}
    for one in imports:
        full = f"{one.module}.{one.name}"
        target = full if full in modules else one.module
        if target in modules and target != one.importer and one.importer != package:
            ahead[one.importer].add(target)

    def reached(first: str) -> set[str]:
        seen: set[str] = set()
        left = [first]
        while left:
            new = ahead[left.pop()] - seen
            seen |= new
            left += new
        return seen

    reach = {name: reached(name) for name in modules}
    around = {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in modules
        if name in reach[name]
    }
    return sorted(map(set, around), key=sorted)


@pytest.fixture(scope="module")
def ours() -> tuple[dict[str, Path], list[Import]]:
    modules = modules_of(PACKAGE)
    return modules, imports_of(modules)


def test_no_private_name_crosses_a_room(ours):
    assert private_across_rooms(ours[1], "lingendice") == []


def test_no_import_goes_round(ours):
    assert cycles(*ours, "lingendice") == []


def test_the_top_level_holds_doors_only(ours):
    top = {name for name, path in ours[0].items() if path.parent == PACKAGE}
    doors = ("", ".__main__", ".solve", ".solve_rates", ".hitting", ".pagerank", ".networkx_backend")
    doors += (".backtest", ".embed", ".features", ".policies")
    assert top == {f"lingendice{door}" for door in doors}


def test_what_is_wrong_would_be_found(tmp_path):
    """The same measures on a package with one lazy cycle and one private name taken across rooms."""
    package = tmp_path / "house"
    for name, text in {
        "__init__.py": "",
        "low/__init__.py": "",
        "low/a.py": "def late():\n    from house.high.b import _hidden\n",
        "high/__init__.py": "",
        "high/b.py": "import house.low.a\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from house.high import c\n",
        "high/c.py": "from house.high.b import _hidden\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    modules = modules_of(package)
    imports = imports_of(modules)
    assert private_across_rooms(imports, "house") == ["house.low.a:2 imports house.high.b._hidden"]
    assert cycles(modules, imports, "house") == [{"house.high.b", "house.low.a"}]
