"""One HTML page that shows a result."""

from lingendice.report.build import report

__all__ = ["report"]
