"""The ``lingendice`` command. This package is the only home of typer and rich.

Exit codes: 0 for an answer, 1 where the solver did not converge or no unique law exists, 2 for
wrong usage or input, 130 after Ctrl-C, 141 where the reader of the output went away.
"""

from lingendice.cli import estimate, show  # noqa: F401  (they register their commands)
from lingendice.cli.base import app

__all__ = ["app"]
