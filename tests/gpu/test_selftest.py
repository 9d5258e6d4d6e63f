"""The self-test that a GPU's owner runs, on the emulator."""

from __future__ import annotations

import json

from lingendice.gpu import selftest
from lingendice.gpu.device import DeviceUnavailable
from lingendice.gpu.selftest import main


def test_the_self_test_records_a_run(device, tmp_path, capsys):
    path = tmp_path / "record.json"
    assert main(["--output", str(path), "--states", "300"]) == 0
    record = json.loads(path.read_text())
    assert record["device"] == device.name
    assert len(record["checks"]) == 5
    assert all(check["agrees"] for check in record["checks"]), record["checks"]
    assert "0 failed" in capsys.readouterr().out


def test_the_self_test_records_kernels_that_do_not_compile(emulator, monkeypatch):
    """What may happen first of all on a GPU that nobody has tried."""

    def refuse(device):
        raise RuntimeError("nvrtc: error")

    monkeypatch.setattr(selftest, "load_everything", refuse)
    found = selftest._run(selftest._kernels, emulator, 50)
    assert found == {"name": "kernels", "agrees": False, "error": "RuntimeError: nvrtc: error"}


def test_the_self_test_says_when_there_is_no_device(tmp_path, capsys, monkeypatch):
    def absent():
        raise DeviceUnavailable("no GPU here")

    monkeypatch.setattr(selftest, "current_device", absent)
    path = tmp_path / "record.json"
    assert main(["--output", str(path)]) == 2
    assert json.loads(path.read_text())["device"] is None
    assert "nothing was run on a GPU" in capsys.readouterr().out
