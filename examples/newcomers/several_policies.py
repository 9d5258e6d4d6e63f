"""Labeled rows and several policies: which campaign is best, and by how much?

python examples/newcomers/several_policies.py
"""

import numpy as np

import lingendice as lg

rng = np.random.default_rng(0)
segments, channels = np.array(["new", "regular", "lapsing"]), np.array(["email", "none", "sms"])
n_customers, n_weeks = 2_000, 12

state = np.zeros((n_customers, n_weeks + 1), dtype=int)
action = rng.integers(0, 3, (n_customers, n_weeks))
reward = np.zeros((n_customers, n_weeks))
stays = np.array(
    [[0.6, 0.3, 0.5], [0.8, 0.6, 0.7], [0.5, 0.2, 0.7]]
)  # chance to be regular next, by segment and channel
for week in range(n_weeks):
    now, sent = state[:, week], action[:, week]
    reward[:, week] = 5.0 * (now == 1) + rng.normal(size=n_customers) - 0.3 * (sent == 2)
    state[:, week + 1] = np.where(rng.random(n_customers) < stays[now, sent], 1, 2)

counts = lg.Counts.from_transitions(
    segments[state[:, :-1].ravel()],
    segments[state[:, 1:].ravel()],
    action=channels[action.ravel()],
    reward=reward.ravel(),
    episode=np.repeat(np.arange(n_customers), n_weeks),
)

everyone = dict.fromkeys(segments.tolist(), "email")
comparison = lg.solve(
    counts,
    gamma=0.9,
    policy={
        "email": everyone,
        "text the lapsing": {**everyone, "lapsing": "sms"},
        "half and half": lambda segment: {"email": 0.5, "sms": 0.5},
    },
)

comparison.table()  # computes intervals and checks, which print then shows
print(comparison)
low, high = comparison.difference("text the lapsing", "email")
print(f"texting the lapsing earns {low:.3f} to {high:.3f} more a week than email alone")
assert comparison.best == "text the lapsing"
