"""True values of the control experiments: long rollouts of the target policy, kept in
results/control_truth.json.

    python benchmarks/paper/control_truth.py [--environment NAME] [--steps 1000000]

For gamma < 1 each trajectory is as long as its weight ``gamma^t`` needs to fall to 1e-4; for gamma = 1
trajectories have 10,000 steps, the first 1,000 left out. A value that is in the file already is not
computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path

# `control` is the package beside this folder, not control.py in it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from control import environments as control
from reporting import RESULTS

ENVIRONMENTS = ("cartpole", "reacher", "halfcheetah")
GAMMAS = (0.99, 1.0)
FILE = RESULTS / "control_truth.json"
SEED = 1_000_003
AVERAGE_STEPS, AVERAGE_WARM_UP = 10_000, 1_000
DEFAULT_STEPS = {"cartpole": 100_000_000, "reacher": 400_000, "halfcheetah": 400_000}
"""Steps in all, for each gamma: Cartpole is compiled."""
DEFAULT_AVERAGE_STEPS = {**DEFAULT_STEPS, "halfcheetah": 1_600_000}
"""At gamma = 1, where a runner on its back earns nothing until its restart, and trajectories differ much."""


def read() -> dict[str, dict[str, dict[str, float]]]:
    """Every value known: by environment, then by gamma."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def compute(environment: str, gamma: float, total_steps: int) -> dict[str, float]:
    """One value with its standard error."""
    steps = AVERAGE_STEPS if gamma == 1 else math.ceil(math.log(1e-4) / math.log(gamma))
    begun = time.perf_counter()
    found = control.on_policy_value(
        environment,
        control.policy(environment),
        [gamma],
        max(total_steps // steps, 20),
        steps,
        warm_up=AVERAGE_WARM_UP if gamma == 1 else 0,
        seed=SEED,
    )[0]
    return {**found._asdict(), "seconds": round(time.perf_counter() - begun, 1)}


def complete(environments: Iterable[str], gammas: Iterable[float], total_steps: int | None = None) -> None:
    """Compute what is not in the file."""
    environments = tuple(environments)
    for gamma in gammas:
        for environment in environments:
            if f"{gamma:g}" in read().get(environment, {}):
                continue
            usual = DEFAULT_AVERAGE_STEPS if gamma == 1 else DEFAULT_STEPS
            found = compute(environment, gamma, total_steps or usual[environment])
            known = read()
            known.setdefault(environment, {})[f"{gamma:g}"] = found
            FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
            print(environment, gamma, found, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", choices=ENVIRONMENTS)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    complete(ENVIRONMENTS if given.environment is None else (given.environment,), GAMMAS, given.steps)


if __name__ == "__main__":
    main()
