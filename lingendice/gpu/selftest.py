"""``python -m lingendice.gpu.selftest``: run every path on the device against the host and write a record."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

import lingendice as lg
from lingendice.data.counts import Counts
from lingendice.data.saving import write_text
from lingendice.gpu.device import Device, DeviceUnavailable, current_device, load_everything
from lingendice.gpu.device_counts import count_transitions


def main(arguments: list[str] | None = None) -> int:
    """Run the self-test; exit code 0 if all agreed, 1 if not, 2 where there is no device."""
    parser = argparse.ArgumentParser(prog="python -m lingendice.gpu.selftest", description=__doc__)
    parser.add_argument("--output", default="lingendice_gpu_selftest.json", help="where the record goes")
    parser.add_argument("--states", type=int, default=200_000, help="size of the timed problem")
    given = parser.parse_args(arguments)
    record: dict[str, Any] = {
        "lingendice": version("lingendice"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "device": None,
        "checks": [],
    }
    try:
        device = current_device()
    except DeviceUnavailable as reason:
        record["unavailable"] = str(reason)
        _write(given.output, record)
        print(f"lingendice: no device, nothing was run on a GPU. {reason}")
        return 2
    record["device"] = device.name
    for check in (_kernels, _counting, _chain, _policy, _stochastic):
        record["checks"].append(_run(check, device, given.states))
    _write(given.output, record)
    n_checks, n_failed = len(record["checks"]), sum(not check["agrees"] for check in record["checks"])
    print(f"lingendice: {n_checks} checks on {device.name}, {n_failed} failed; see {given.output}")
    return 1 if n_failed else 0


def _write(output: str, record: dict[str, Any]) -> None:
    write_text(output, json.dumps(record, indent=1) + "\n")


def _run(check: Callable[..., tuple[float, float]], device: Device, n_states: int) -> dict[str, Any]:
    name = check.__name__.strip("_")
    began = time.perf_counter()
    try:
        difference, limit = check(device, n_states)
    except Exception as error:  # the record must say what went wrong, whatever it was
        return {"name": name, "agrees": False, "error": f"{type(error).__name__}: {error}"}
    return {
        "name": name,
        "agrees": bool(difference <= limit),
        "difference": difference,
        "limit": limit,
        "seconds": time.perf_counter() - began,
    }


def _log(n_states: int, n: int, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    # Every action of every state is seen: nothing leaks.
    state, action = np.arange(n) % n_states, np.arange(n) // n_states % 2
    following = (state + 1 + action * rng.integers(n_states, size=n)) % n_states
    return state, action, following, rng.standard_normal(n)


def _distance(first: Any, second: Any) -> float:
    return float(np.abs(first - second).sum())


def _kernels(device: Device, n_states: int) -> tuple[float, float]:
    """Every kernel, by the compiler of the device."""
    load_everything(device)
    return 0.0, 0.0


def _chain(device: Device, n_states: int) -> tuple[float, float]:
    """A distribution at gamma < 1 against the host's Gauss-Seidel."""
    state, _, following, _ = _log(n_states, 5 * n_states)
    counts = Counts.from_transitions(state, following, n_states=n_states)
    there = lg.solve(counts, 0.9, device="cuda")
    return _distance(there.stationary, lg.solve(counts, 0.9).stationary), 2e-10


def _small() -> tuple[Counts, Any]:
    state, action, following, reward = _log(30, 3000, 1)
    counts = Counts.from_transitions(
        state, following, action=action, reward=reward, episode=np.arange(3000) // 50, keep_episodes=True,
        n_states=30, n_actions=2,
    )  # fmt: skip
    return counts, np.random.default_rng(2).dirichlet(np.ones(2), size=30)


def _policy(device: Device, n_states: int) -> tuple[float, float]:
    """Another policy at gamma = 1 against the host's elimination."""
    counts, policy = _small()
    there, here = (
        lg.solve(counts, policy=policy, ridge=0, clone=0, device=where) for where in ("cuda", "cpu")
    )
    return _distance(there.stationary, here.stationary), 1e-8


def _counting(device: Device, n_states: int) -> tuple[float, float]:
    """A log with rewards, counted on the device and on the host."""
    state, action, following, reward = _log(n_states, 5 * n_states, 3)
    up = device.upload
    there = count_transitions(
        up(state), up(following), up(action), n_states=n_states, n_actions=2, reward=up(reward)
    ).to_host()
    here = Counts.from_transitions(
        state, following, action=action, reward=reward, n_states=n_states, n_actions=2
    )
    assert there.reward_mean is not None
    assert here.reward_mean is not None
    return _distance(there.count, here.count) + _distance(there.reward_mean, here.reward_mean), 1e-8


def _stochastic(device: Device, n_states: int) -> tuple[float, float]:
    """Two runs of SGD from one seed must agree in every bit."""
    counts, policy = _small()
    choices: dict[str, Any] = {"bound": 5.0, "max_iter": 48, "options": {"batch": 256, "first_epoch": 16}}
    runs = [
        lg.solve(counts, 0.9, policy=policy, method="sgd", device="cuda", **choices).stationary
        for _ in range(2)
    ]
    return _distance(*runs), 0.0


if __name__ == "__main__":
    sys.exit(main())
