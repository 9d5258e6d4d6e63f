"""One HTML page that shows a result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lingendice.report.page import Page
    from lingendice.results.comparison import Comparison
    from lingendice.results.continuous_solution import ContinuousSolution
    from lingendice.results.solution import Solution

__all__ = ["report"]


def report(
    result: Solution | Comparison | ContinuousSolution,
    path: str | Path | None = None,
    *,
    title: str = "lingendice report",
    call: str | None = None,
    source: str | None = None,
    level: float = 0.95,
    plots: bool = True,
) -> Page | Path:
    """Write a self-contained HTML page about a solution, or about several policies.

    It begins with a verdict in one sentence. For the page the interval, the checks, the bounds and gap of the
    value, the behavior's value, an audit and, with plots of a ridge, its path are computed where they were
    not; the page says so.

    Parameters
    ----------
    result
        What :func:`lingendice.solve` returned.
    path
        The file to write; without it the page is returned, and a notebook shows it.
    title
        Heading of the page.
    call
        The exact call or command that made the result; by default a Python script of the call as it was
        recorded, which takes the data (and long arrays and functions) by name.
    source
        Where the data come from, in words.
    level
        Confidence level of the intervals.
    plots
        False leaves the plots out, and matplotlib is not needed then.

    Returns
    -------
    pathlib.Path or Page
        The path where one was given, else the page: a string with a ``_repr_html_``.

    Examples
    --------
    >>> import lingendice as lg
    >>> page = lg.report(lg.solve([[90, 10], [30, 70]]), plots=False)
    >>> page.startswith("<!doctype html>")
    True
    """
    from lingendice.data.saving import write_text
    from lingendice.report.build import page_of

    if path is not None and Path(path).suffix.lower() in (".pdf", ".docx", ".md", ".png"):
        raise ValueError(f"{path}: a report is an HTML page; write it as .html, and print that to a PDF")
    page = page_of(result, title, call, source, level, plots)
    if path is None:
        return page
    write_text(path, page)
    return Path(path)
