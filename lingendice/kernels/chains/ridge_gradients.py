"""Conjugate gradients for the ridge problem, on compressed rows and never on A'A.

In the scaled unknown y = sqrt(p) tau, one entry per seen cell, the ridge problem reads

    min over y >= 0 of  1/2 |M y - c|^2 + lambda/2 (q'y - 1)^2 + eps/2 |y - q|^2
    M = I - gamma (spread K + hubs)'        q = sqrt(p),  c = b / q

``data`` holds K[x, s] q[x], the distribution of the next state; ``spread[x'] = W(a'|s') / q[x']`` carries
mass that arrives in state ``group[x']`` on to cell x'. Hubs are the low-rank part. With
H = M'M + lambda q q' + eps I every product is two sweeps over the entries, O(nnz).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel


class Factor(NamedTuple):
    """M as its compressed rows, what spreads next states to cells, and the low-rank part.

    ``flow`` (one entry per state) is scratch.
    """

    indptr: Any
    indices: Any
    data: Any
    group: Any
    spread: Any
    hub_out: Any
    hub_distribution: Any
    gamma: Any
    flow: Any


@fused_kernel
def apply_scaled(factor, y, z):
    """z = M y."""
    indptr, indices, data, group, spread, hub_out, hub_distribution, gamma, flow = factor
    n = y.size
    flow[:] = 0.0
    for i in range(n):
        amount = y[i]
        if amount != 0.0:
            for entry in range(indptr[i], indptr[i + 1]):
                flow[indices[entry]] += data[entry] * amount
    for i in range(n):
        z[i] = y[i] - gamma * spread[i] * flow[group[i]]
    for hub in range(hub_distribution.shape[0]):
        amount = 0.0
        for i in range(n):
            amount += hub_out[hub, i] * y[i]
        amount *= gamma
        for i in range(n):
            z[i] -= hub_distribution[hub, i] * amount


@fused_kernel
def apply_scaled_transpose(factor, z, y):
    """y = M' z."""
    indptr, indices, data, group, spread, hub_out, hub_distribution, gamma, flow = factor
    n = z.size
    flow[:] = 0.0
    for i in range(n):
        flow[group[i]] += spread[i] * z[i]
    for i in range(n):
        total = 0.0
        for entry in range(indptr[i], indptr[i + 1]):
            total += data[entry] * flow[indices[entry]]
        y[i] = z[i] - gamma * total
    for hub in range(hub_distribution.shape[0]):
        total = 0.0
        for i in range(n):
            total += hub_distribution[hub, i] * z[i]
        total *= gamma
        for i in range(n):
            y[i] -= hub_out[hub, i] * total


@kernel
def normal_diagonal(factor, q, penalty, ridge):
    """Diagonal of H, the preconditioner, up to the products of counted and low-rank part."""
    indptr, indices, data, group, spread, hub_out, hub_distribution, gamma, flow = factor
    n = q.size
    diagonal = np.empty(n)
    flow[:] = 0.0
    for i in range(n):
        flow[group[i]] += spread[i] ** 2
    distribution_norm = np.zeros(hub_distribution.shape[0])
    for hub in range(hub_distribution.shape[0]):
        for i in range(n):
            distribution_norm[hub] += hub_distribution[hub, i] ** 2
    for i in range(n):
        total = 1.0
        for entry in range(indptr[i], indptr[i + 1]):
            step = gamma * data[entry]
            total += step * step * flow[indices[entry]]
            if indices[entry] == group[i]:
                total -= 2.0 * step * spread[i]
        for hub in range(hub_distribution.shape[0]):
            total += (gamma * hub_out[hub, i]) ** 2 * distribution_norm[hub]
        diagonal[i] = max(total, 0.0) + penalty * q[i] ** 2 + ridge
    return diagonal


@fused_kernel
def apply_normal(factor, q, penalty, ridge, y, work, h):
    """h = H y; ``work`` is overwritten with M y."""
    apply_scaled(factor, y, work)
    apply_scaled_transpose(factor, work, h)
    mass = 0.0
    for i in range(y.size):
        mass += q[i] * y[i]
    mass *= penalty
    for i in range(y.size):
        h[i] += mass * q[i] + ridge * y[i]


@fused_kernel
def descend(factor, q, penalty, ridge, diagonal, free, y, residual, direction, squared, goal, max_steps):
    """Preconditioned conjugate gradients on H y = rhs over the ``free`` entries, resumable.

    ``residual`` holds rhs - H y, ``direction`` the search direction, ``squared`` the squared residual in the
    norm of the preconditioner (negative to begin). Ends at ``goal`` or after ``max_steps``; entries that
    are not free keep their value. Returns (squared, steps); squared is nan for a matrix that is not
    positive definite in floating point.
    """
    n = y.size
    work, image = np.empty(n), np.empty(n)
    if squared < 0.0:
        squared = 0.0
        for i in range(n):
            direction[i] = residual[i] / diagonal[i] if free[i] else 0.0
            squared += direction[i] * residual[i]
    steps = 0
    while steps < max_steps and squared > goal:
        apply_normal(factor, q, penalty, ridge, direction, work, image)
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
