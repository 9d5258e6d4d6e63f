"""A queueing network that watches its own stationary distribution while it runs.

Three stations in a closed network pass six jobs round. The simulator is one compiled loop; counting and
solving happen inside it, without a return to Python. The distribution of such a network is known in product
form (Gordon and Newell), so that the estimate can be held against the truth.

    python examples/queueing_network.py
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lingendice import embed

JOBS = 6
SERVICE_RATE = np.array([1.0, 1.5, 0.8])
ROUTING = np.array([[0.0, 0.7, 0.3], [0.5, 0.0, 0.5], [0.9, 0.1, 0.0]])
SIDE = JOBS + 1
"""A state is jobs at station 0 times SIDE, plus jobs at station 1; some numbers stay unused."""


@njit
def run(n_ticks, look_every, rng):
    """Simulate ticks of the uniformized network; returns the distribution, utilizations seen, and the last
    status."""
    counts = np.zeros((SIDE * SIDE, SIDE * SIDE))
    distribution = np.zeros(SIDE * SIDE)
    looks = np.zeros(n_ticks // look_every)
    clock = SERVICE_RATE.sum()
    jobs = np.array([JOBS, 0, 0])
    status = embed.NO_DATA
    for tick in range(n_ticks):
        state = jobs[0] * SIDE + jobs[1]
        u = rng.random() * clock
        station = 0
        while station < 2 and u >= SERVICE_RATE[station]:
            u -= SERVICE_RATE[station]
            station += 1
        if jobs[station] > 0:
            goes = rng.random()
            target = 0
            while target < 2 and goes >= ROUTING[station, target]:
                goes -= ROUTING[station, target]
                target += 1
            jobs[station] -= 1
            jobs[target] += 1
        embed.count(counts, state, jobs[0] * SIDE + jobs[1])
        if (tick + 1) % look_every == 0:
            status = embed.solve(counts, 1.0, distribution)
            looks[tick // look_every] = 1.0 - distribution[:SIDE].sum()
    return distribution, looks, status


def product_form() -> np.ndarray:
    """The exact distribution: pi(n) proportional to the product of (visits / rate) ** jobs over the
    stations."""
    values, vectors = np.linalg.eig(ROUTING.T)
    visits = np.abs(vectors[:, np.argmax(values.real)].real)
    load = visits / SERVICE_RATE
    distribution = np.zeros(SIDE * SIDE)
    for first in range(SIDE):
        for second in range(SIDE - first):
            jobs = np.array([first, second, JOBS - first - second])
            distribution[first * SIDE + second] = np.prod(load**jobs)
    return distribution / distribution.sum()


def main() -> tuple[np.ndarray, np.ndarray]:
    """Run the network and print how the estimate closes in on the truth."""
    exact = product_form()
    busy = 1.0 - exact[:SIDE].sum()
    distribution, looks, status = run(400_000, 50_000, np.random.default_rng(1))
    print(f"station 0 is busy {busy:.4f} of the time; seen while running:")
    print("  " + ", ".join(f"{look:.4f}" for look in looks))
    print(
        f"{embed.message(status)}; L1 distance of the distribution to the truth "
        f"{np.abs(distribution - exact).sum():.4f}"
    )
    return distribution, exact


if __name__ == "__main__":
    main()
