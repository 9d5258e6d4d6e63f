"""The logged policy, read off the counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingendice.data.checks import Floats, require_number, require_policy
from lingendice.data.counts import Counts


def clone_behavior(counts: Counts, strength: float = 0.0, prior: Any = None) -> Floats:
    """Maximum-likelihood policy n(s, a) / n(s), or its mean under a Dirichlet prior.

    With ``strength`` c > 0, (n(s, a) + c prior(a|s)) / (n(s) + c). States never left take the prior
    (uniform by default). O(n_cells). Does not depend on gamma.
    """
    if counts.n_actions is None:
        raise ValueError("a behavior is a distribution over actions; pass action= to Counts.from_transitions")
    shape = (counts.n_states, counts.n_actions)
    believed = np.full(shape, 1.0 / shape[1]) if prior is None else require_policy("prior", prior, *shape)
    seen = counts.cell_count.reshape(shape).astype(float) + require_number("strength", strength) * believed
    visits = seen.sum(axis=1, keepdims=True)
    return np.where(visits > 0, seen / np.where(visits > 0, visits, 1.0), believed)
