"""Monitors that tests answer for."""

from __future__ import annotations

from lingendice.solvers.control import Monitor, Stop


class Asked(Monitor):
    """Ends the work once ``answer()`` is true."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def _limit(self):
        return Stop.INTERRUPT if self.answer() else None
