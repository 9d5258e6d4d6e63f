"""Continuous states and a policy that is a function: a thermostat that is asked to act earlier.

python examples/newcomers/continuous_states.py
"""

import numpy as np

import lingendice as lg

rng = np.random.default_rng(0)
n_days, n_steps = 100, 24

temperature = np.empty((n_days, n_steps + 1))
heating = np.empty((n_days, n_steps), dtype=int)
temperature[:, 0] = rng.normal(18.0, 1.0, n_days)
for hour in range(n_steps):
    now = temperature[:, hour]
    heating[:, hour] = rng.random(n_days) < np.where(now < 18.0, 0.7, 0.3)  # the logged thermostat
    drift = 0.3 * (16.0 - now) + 1.5 * heating[:, hour]
    temperature[:, hour + 1] = now + drift + rng.normal(0.0, 0.3, n_days)

log = lg.Transitions(
    temperature[:, :-1].reshape(-1, 1),
    heating.ravel(),
    -np.abs(temperature[:, :-1] - 20.0).ravel(),  # the reward: as near to 20 degrees as can be
    temperature[:, 1:].reshape(-1, 1),
    episode=np.repeat(np.arange(n_days), n_steps),
)


def earlier(states):
    """Heat below 19 degrees: one row of probabilities (off, on) per state."""
    on = (states[:, 0] < 19.0).astype(float)
    return np.column_stack([1 - on, on])


solution = lg.solve(log, gamma=0.9, policy=earlier, method="linear")
print(f"logged {log.reward.mean():.2f} per hour; heating earlier {solution.value:.2f}")
assert solution.value > log.reward.mean()
