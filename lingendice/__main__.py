"""Entry point of the ``lingendice`` command; says what to install where typer is absent."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line."""
    try:
        from lingendice.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        print("lingendice: the command line needs typer and rich.", file=sys.stderr)
        print("Next step: pip install 'lingendice[cli]'", file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        # What the encoding of the terminal (ASCII, in a C locale) does not have is shown escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="lingendice")


if __name__ == "__main__":
    main()
