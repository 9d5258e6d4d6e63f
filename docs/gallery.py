"""Draw the figures of the gallery: ``python docs/gallery.py`` writes docs/images/gallery_*.png."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lingendice as lg
from lingendice.environments import taxi

IMAGES = Path(__file__).resolve().parent / "images"


def main() -> None:
    """One solution of the taxi's log, a comparison, an audit, and a chain."""
    drivers = taxi.train_policies(seed=0)
    log = taxi.simulate(drivers.base, 200, 200, seed=1)
    columns = {"action": log.action, "reward": log.reward, "episode": log.episode}
    counts = lg.Counts.from_transitions(log.state, log.next_state, **columns)
    solution = lg.solve(counts, gamma=0.99, policy=drivers.target)
    mixed = {
        f"{share:.0%} target": share * drivers.target + (1 - share) * drivers.base
        for share in (0.0, 0.5, 1.0)
    }
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.choice([-1, 1], size=3000)) % 30
    chain = lg.solve(lg.Counts.from_transitions(walk[:-1], walk[1:]))
    figures = {
        "solution": solution.plot(),
        "comparison": lg.solve(counts, gamma=0.99, policy=mixed).plot(),
        "audit": lg.audit(counts, gamma=0.99, policy=drivers.target).plot(),
        "chain": chain.plot(),
    }
    for name, figure in figures.items():
        figure.savefig(IMAGES / f"gallery_{name}.png", dpi=80)


if __name__ == "__main__":
    main()
