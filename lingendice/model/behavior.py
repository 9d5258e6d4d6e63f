"""Weights for logged actions when the behavior policy is not known: clone it, and mind what was not seen.

In a state with n(s) visits a target action of behavior probability b is seen at all with chance
1 - (1 - b)^n(s). A plug-in that follows the target on the seen actions alone therefore leaves out rare
actions, whose values differ from the rest, and is biased. Dividing each seen action's target probability
by its chance of having been seen (Horvitz and Thompson) removes that bias to first order:

    weight(a|s) = pi(a|s) / (1 - (1 - b(a|s))^n(s))    for seen a, 0 for others.

Often seen actions keep weight pi whatever b is, so b need only be right about rare ones, and is
fitted as one mixture for all states. At the other end, n(s) b << 1, these are importance weights.
"""

from __future__ import annotations

import numpy as np

from lingendice.data.checks import Floats

ROW_VISITS = 5.0
"""Pseudo-visits that hold a state's total weight at 1 when rows are free."""
_ROUNDS = 60
_SETTLED = 1e-4


def fit_behavior(seen: Floats, target: Floats) -> Floats:
    """Fit the behavior by maximum likelihood as a mixture over distributions that the data suggest.

    The mixture (one set of shares for all states) is of the target, the target sharpened and flattened
    (squared, square root), the marginal distribution of the logged actions, and the uniform distribution. Its
    likelihood is concave in the shares; expectation-maximization takes O(states x actions) a round.

    Parameters
    ----------
    seen
        n(s, a), states by actions.
    target
        pi(a|s).
    """
    flat, sharp = np.sqrt(target), target**2
    candidates = (
        target,
        flat / flat.sum(axis=1, keepdims=True),
        sharp / sharp.sum(axis=1, keepdims=True),
        np.broadcast_to(seen.sum(axis=0) / seen.sum(), target.shape),
        np.full(target.shape, 1.0 / target.shape[1]),
    )
    logged = seen > 0
    count = seen[logged] / seen.sum()
    likelihood = np.stack([distribution[logged] for distribution in candidates])
    share = np.full(len(candidates), 1.0 / len(candidates))
    for _ in range(_ROUNDS):
        updated = share * (likelihood @ (count / (share @ likelihood)))
        settled = np.abs(updated - share).max() < _SETTLED
        share = updated
        if settled:
            break
    behavior: Floats = np.einsum("k,ksa->sa", share, np.stack(candidates))
    return behavior


def weights_of_seen(seen: Floats, target: Floats, behavior: Floats) -> Floats:
    """pi(a|s) / P(a seen in n(s) visits) for seen actions, 0 for others."""
    state, action = np.nonzero(seen)
    visits = seen.sum(axis=1)[state]
    chance = -np.expm1(visits * np.log1p(-np.minimum(behavior[state, action], 1.0 - 1e-12)))
    weights = np.zeros_like(target)
    weights[state, action] = target[state, action] / chance
    return weights


def free_rows(weights: Floats, visits: Floats) -> Floats:
    """Divide each row by its total shrunk toward 1, (n(s) total + k) / (n(s) + k), k = ROW_VISITS.

    Totals are 1 in expectation. Dividing by them (rows that sum to 1) makes the distribution of actions in
    rarely visited states that of the behavior, a bias; not dividing leaves the noise of the totals in.
    """
    total = weights.sum(axis=1, keepdims=True)
    held = (visits[:, None] * total + ROW_VISITS) / (visits[:, None] + ROW_VISITS)
    return weights / held
