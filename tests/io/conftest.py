"""Logs of these tests stand for long ones, which are counted batch by batch and not kept."""

from __future__ import annotations

import pytest

from lingendice.data import logs
from lingendice.io import stream_counter


@pytest.fixture(autouse=True, scope="module")
def long_logs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "MOST_KEPT", 0)
        patch.setattr(stream_counter, "MOST_KEPT", 0)
        yield
