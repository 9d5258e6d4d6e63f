"""The notebooks run from top to bottom in a fresh kernel."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


@pytest.mark.parametrize("name", ["chain", "off_policy"])
def test_notebook_runs(name, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    kept = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert len(kept) >= 5, "a notebook is committed with its outputs"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel's own, about sockets and event loops
        resources = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    plots = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]  # fmt: skip
    assert plots
