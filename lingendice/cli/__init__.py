"""The ``lingendice`` command. This package is the only home of typer and rich.

Exit codes: 0 for an answer, 1 where the solver did not converge or no unique distribution exists, 2 for
wrong usage or input, 3 where a check fails (``--strict``), 130 after Ctrl-C, 141 where the
reader of the output went away.
"""

from lingendice.cli import commands, paths, showcase  # noqa: F401  (importing them registers their commands)
from lingendice.cli.app import app

__all__ = ["app"]
