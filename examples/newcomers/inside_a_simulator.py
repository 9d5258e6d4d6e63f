"""Inside a simulator: an estimate that follows the stream, one step after another.

python examples/newcomers/inside_a_simulator.py
"""

import numpy as np

import lingendice as lg

rng = np.random.default_rng(0)
chain = np.array(
    [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.3, 0.7]]
)  # the simulator's, which the estimate does not see

estimate = lg.OnlineRatio(n_states=3, gamma=1.0)
state = 0
for step in range(30_000):
    following = int(rng.choice(3, p=chain[state]))
    estimate.update(state, following)
    state = following
    if step + 1 in (300, 3_000, 30_000):
        print(step + 1, estimate.stationary.round(3))

exact = lg.solve(chain).stationary
print("exact", exact.round(3))
assert np.abs(estimate.stationary - exact).sum() < 0.05
