"""Conjugate gradients for the ridge problem, on compressed rows and never on A'A.

In the scaled unknown y = sqrt(p) tau, one entry per seen cell, the ridge problem reads

    min over y >= 0 of  1/2 |M y - c|^2 + 1/2 (w'y - m)^2 + eps/2 |y - q|^2
    M = I - gamma (K spread + hubs)'        q = sqrt(p),  c = b / q,  w = q nu

w'y is what y adds to the total mass, m the total less what is elsewhere whatever y.

Rows hold K[x, s] q[x], the distribution of the next state, and behind the states one column per hub (the
low-rank part); ``spread[x'] = W(a'|s') / q[x']`` carries mass that arrives in state ``group[x']`` on to
cell x', and ``from_hubs`` what arrives in hubs. With H = M'M + w w' + eps I every product is two
sweeps over the entries, O(nnz).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from lingendice.kernels.jit import fused_kernel, internal


class Factor(NamedTuple):
    """M as its compressed rows, and what spreads next states and hubs to cells.

    ``flow`` (one entry per state and hub), ``work`` and ``image`` (one per cell) are scratch. Integers are
    unsigned: one that may be negative is tested at each access to an array, which takes half of the time.
    """

    indptr: Any
    indices: Any
    data: Any
    group: Any
    spread: Any
    from_hubs: Any
    gamma: Any
    flow: Any
    work: Any
    image: Any


@internal
def apply_normal(factor, mass_weight, ridge, y):
    """``image`` becomes H y, ``work`` M y."""
    indptr, indices, data, group, spread, from_hubs, gamma, flow, work, image = factor
    n, n_hubs = y.size, from_hubs.shape[0]
    hubs = flow[flow.size - n_hubs :]
    flow[:] = 0.0
    mass = 0.0
    for i in range(n):
        mass += mass_weight[i] * y[i]
        for entry in range(indptr[i], indptr[i + 1]):
            flow[indices[entry]] += data[entry] * y[i]
    for i in range(n):
        arriving = spread[i] * flow[group[i]]
        for hub in range(n_hubs):
            arriving += from_hubs[hub, i] * hubs[hub]
        work[i] = y[i] - gamma * arriving
    flow[:] = 0.0
    for i in range(n):
        flow[group[i]] += spread[i] * work[i]
        for hub in range(n_hubs):
            hubs[hub] += from_hubs[hub, i] * work[i]
    for i in range(n):
        total = 0.0
        for entry in range(indptr[i], indptr[i + 1]):
            total += data[entry] * flow[indices[entry]]
        image[i] = work[i] - gamma * total + mass * mass_weight[i] + ridge * y[i]


@fused_kernel
def descend(factor, mass_weight, ridge, diagonal, free, y, residual, direction, squared, goal, max_steps):
    """Preconditioned conjugate gradients on H y = rhs over the ``free`` entries, resumable.

    ``residual`` holds rhs - H y, ``direction`` the search direction, ``squared`` the squared residual in the
    norm of the preconditioner (negative to begin). Ends at ``goal`` or after ``max_steps``; entries that
    are not free keep their value. Returns (squared, steps); squared is nan for a matrix that is not
    positive definite in floating point.
    """
    n, image = y.size, factor.image
    if squared < 0.0:
        squared = 0.0
        for i in range(n):
            direction[i] = residual[i] / diagonal[i] if free[i] else 0.0
            squared += direction[i] * residual[i]
    steps = 0
    while steps < max_steps and squared > goal:
        apply_normal(factor, mass_weight, ridge, direction)
        curvature = 0.0
        for i in range(n):
            curvature += direction[i] * image[i]
        if not curvature > 0.0:
            return math.nan, steps
        length = squared / curvature
        following = 0.0
        for i in range(n):
            y[i] += length * direction[i]
            residual[i] -= length * image[i]
            if free[i]:
                following += residual[i] * residual[i] / diagonal[i]
        momentum = following / squared
        squared = following
        for i in range(n):
            direction[i] = (residual[i] / diagonal[i] if free[i] else 0.0) + momentum * direction[i]
        steps += 1
    return squared, steps
