"""A CSV of a small MDP: what would another policy earn per step, and how sure is that?

python examples/newcomers/small_mdp_csv.py
"""

import csv
import random
import tempfile
from pathlib import Path

import lingendice as lg


def write_log(path):
    """Patients are well or ill; each day they rest or take a drug: 200 of them, for 20 days."""
    rng = random.Random(0)
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["episode", "state", "action", "reward", "next_state"])
        for patient in range(200):
            state = "well"
            for _ in range(20):
                action = rng.choice(["rest", "drug"])
                chance = {"well": 0.9, "ill": 0.7 if action == "drug" else 0.3}[state]
                following = "well" if rng.random() < chance else "ill"
                reward = (state == "well") - 0.2 * (action == "drug")
                rows.writerow([patient, state, action, reward, following])
                state = following


path = Path(tempfile.mkdtemp()) / "patients.csv"
write_log(path)

counts = lg.read_transitions(path)  # columns are found by their usual names
solution = lg.solve(counts, gamma=1, policy={"well": "rest", "ill": "drug"})
low, high = solution.interval()

print(f"value per day {solution.value:.3f}, between {low:.3f} and {high:.3f} at 95 %")
print(solution.to_frame()[["state", "stationary", "tau", "reward", "count"]])

# Known rules, exact answer: ill days are 1 / (1 + 0.7 / 0.1) of all, and each costs 1.2.
exact = 1.0 - 1.2 / 8
print(f"exact {exact:.3f}")
assert low < exact < high
