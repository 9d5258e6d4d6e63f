"""What the paper scripts share: errors over seeds, their standard errors, and files of results."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import provenance  # noqa: E402

RESULTS = HERE / "results"


def data_directory(name: str) -> Path | None:
    """A folder of data beside the repository, or where LINGENDICE_DATA points; None where there is none."""
    roots = [os.environ.get("LINGENDICE_DATA"), HERE.parents[2] / "shared" / "data"]
    for root in roots:
        if root and (Path(root) / name).is_dir():
            return Path(root) / name
    return None


def errors(estimates: NDArray[np.float64], truth: float) -> dict[str, float]:
    """Natural log of the mean squared error with its standard error, bias and standard deviation."""
    squared = (estimates - truth) ** 2
    mean = float(squared.mean())
    return {
        "ln_mse": math.log(mean),
        "ln_mse_se": float(squared.std(ddof=1) / mean / math.sqrt(squared.size)),
        "bias": float(estimates.mean() - truth),
        "sd": float(estimates.std(ddof=1)),
        "n": int(estimates.size),
    }


def write(name: str, result: dict[str, Any], markdown: str) -> None:
    """Write NAME.json and NAME.md into the results folder, and what made them into the marks."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(markdown.rstrip() + "\n")
    if name in provenance.RESULTS:
        provenance.mark(name)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
