"""Flows of small random problems."""

from __future__ import annotations

import numpy as np

from lingendice.data.counts import Counts
from lingendice.model.compose import Choices, compose


def mdp_flow(gamma, redirect, ratio="state_action", leak="restart", seed=0):
    rng = np.random.default_rng(seed)
    state, action = rng.integers(0, 5, 60), rng.integers(0, 2, 60)
    following = rng.integers(0, 6, 60)
    counts = Counts.from_transitions(state, following, action, n_states=7, n_actions=2)
    policy = rng.dirichlet(np.ones(2), 7)
    initial = rng.dirichlet(np.ones(7))
    operator = compose(counts, Choices(gamma=gamma, policy=policy, initial=initial, ratio=ratio, leak=leak))
    return operator.flow(closed=redirect), operator
