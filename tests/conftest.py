"""What every test relies on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell that runs the suite in the background has it ignore Ctrl-C, which some tests send.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
