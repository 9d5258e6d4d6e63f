"""What the site is made of beside its pages: notebooks with outputs, figures, one signature of solve."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_become_pages(hooks, path):
    page = hooks.notebook_page(path)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert page.count("```python\n") == sum(cell["cell_type"] == "code" for cell in cells)
    assert page.startswith("# ")
    plots = sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", ()))
    assert page.count("data:image/png;base64,") == plots > 0
    assert f"notebooks/{path.stem}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_links_to_notebooks_lead_to_their_pages(hooks):
    text = hooks.on_page_markdown("[a](notebooks/chain.ipynb)", None, None, None)
    assert text == "[a](notebooks/chain.md)"


def test_roles_of_docstrings_are_not_shown(hooks):
    html = hooks.on_page_content("see :class:<code>Counts</code> and 1:2", None, None, None)
    assert html == "see <code>Counts</code> and 1:2"


def test_figures_of_the_gallery_are_there_and_small():
    shown = re.findall(r"\(images/(gallery_\w+\.png)\)", (DOCS / "gallery.md").read_text(encoding="utf-8"))
    drawn = re.findall(
        r'^        "(\w+)": ', (DOCS / "gallery.py").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert shown == [f"gallery_{name}.png" for name in drawn]
    assert all((DOCS / "images" / name).stat().st_size < 100_000 for name in shown)


def test_one_signature_is_shown():
    assert "show_overloads: false" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_readme_begins_with_what_a_reader_needs():
    headings = re.findall(r"^## (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == "Install"
    assert "Comparison with other libraries" in headings


def test_tables_say_what_measured_them_and_whether_the_code_has_changed_since(hooks, monkeypatch):
    monkeypatch.setattr(hooks.provenance, "measured_at", lambda name: f"0.9 ({name})")
    stale = {"trust": True, "speed": False}
    monkeypatch.setattr(hooks.provenance, "is_stale", stale.get)
    assert set(hooks.MEASURED_IN) == set(hooks.TABLES)
    assert set(hooks.MEASURED_IN.values()) <= set(hooks.provenance.RESULTS)
    page = hooks.on_page_markdown("<!-- table:readme-accuracy -->\n", None, None, None)
    assert page.endswith("|\n\n<small>Measured at 0.9 (trust); the code has changed since.</small>\n")
    page = hooks.on_page_markdown("<!-- table:readme-speed -->\n", None, None, None)
    assert page.endswith("|\n\n<small>Measured at 0.9 (speed).</small>\n")
    # What is committed does not turn with every change of the code.
    committed = hooks.refreshed("<!-- table:readme-accuracy -->\n<!-- /table -->")
    assert committed.endswith("\n\n<small>Measured at 0.9 (trust).</small>\n<!-- /table -->")
