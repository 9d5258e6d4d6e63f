"""``python -m lingendice.gpu selftest``: run every path on the card and write a record of it."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the self-test; exit code 0 if all agreed, 1 if not, 2 where there is no device."""
    parser = argparse.ArgumentParser(prog="python -m lingendice.gpu", description=__doc__)
    parser.add_argument("command", choices=["selftest"])
    parser.add_argument("--output", default="lingendice_gpu_selftest.json", help="where the record goes")
    parser.add_argument("--states", type=int, default=200_000, help="size of the timed problem")
    given = parser.parse_args(arguments)
    from lingendice.gpu.selftest import selftest

    return selftest(given.output, given.states)


if __name__ == "__main__":
    sys.exit(main())
