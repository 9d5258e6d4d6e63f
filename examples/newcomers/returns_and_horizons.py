"""Return per episode, length of an episode, and the first steps of it: which number is which.

python examples/newcomers/returns_and_horizons.py
"""

import numpy as np

import lingendice as lg

# A corridor of five fields: each step costs 1, one goes on with probability 0.8, and the end is terminal.
rng = np.random.default_rng(0)
rows = {"state": [], "next_state": [], "reward": [], "episode": [], "terminal": []}
for episode in range(2_000):
    field = 0
    while field < 5:
        following = field + (rng.random() < 0.8)
        for column, entry in zip(
            rows.values(), (field, following, -1.0, episode, following == 5), strict=True
        ):
            column.append(entry)
        field = following
counts = lg.Counts.from_transitions(**rows)

average = lg.solve(counts, gamma=1.0)
print(f"per step {average.value:.3f}")
print(f"per episode {average.expected_return:.3f} in {average.expected_length:.3f} steps")
low, high = average.interval(of="return")
print(f"return per episode between {low:.3f} and {high:.3f} at 95 %")

discounted = lg.solve(counts, gamma=0.9)
print(f"discounted return {discounted.expected_return:.3f}, (1 - gamma) times that {discounted.value:.3f}")

first = lg.solve(counts, gamma=1.0, horizon=3)
print(f"the first three steps {first.expected_return:.3f}")

assert low < -5 / 0.8 < high
