"""A chain whose weights moved, solved again from the distribution before: a replicate of the bootstrap.

The pattern of a resampled log stays, and coefficients alone are written anew: a replicate costs a few sweeps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.extrapolation import project, record_pass, solve_gram
from lingendice.kernels.jit import fused_kernel, kernel


class ResampledChain(NamedTuple):
    """mu = (1 - gamma) mu0 + gamma P' mu by states.

    ``coefficient[column[j]:column[j + 1]]`` are the rates into j from the states in ``source``; ``out``
    (states x hubs) is what falls back to each row of ``hub_distribution``.
    """

    column: Any
    source: Any
    coefficient: Any
    gamma: Any
    initial: Any
    out: Any
    hub_distribution: Any


@kernel
def reweigh(entry, cluster, weight, reward, factor, count, reward_sum):
    """Add up transitions by (cell, next state), each counted ``weight * factor[cluster]`` times."""
    for i in range(entry.size):
        w = factor[cluster[i]] * weight[i]
        count[entry[i]] += w
        reward_sum[entry[i]] += w * reward[i]


@kernel
def pull_coefficients(order, cell, n_actions, weight, scale, policy, source, coefficient):
    """Rates into each state: ``coefficient[k] = W(a|s) K(s'|x)`` for the entries in column order."""
    for k in range(order.size):
        entry = order[k]
        x = cell[entry]
        source[k] = x // n_actions
        coefficient[k] = policy[x] * scale[x] * weight[entry]


@fused_kernel
def sweep_once(mu, mass, stay, chain):
    """One forward Gauss-Seidel sweep in place, hubs kept up to date; returns the L1 change."""
    column, source, coefficient, gamma, initial, out, hub_distribution = chain
    n = mu.size
    hubs = hub_distribution.shape[0]
    change = 0.0
    for j in range(n):
        total = 0.0
        for k in range(column[j], column[j + 1]):
            total += mu[source[k]] * coefficient[k]
        for h in range(hubs):
            total += mass[h] * hub_distribution[h, j]
        old = mu[j]
        leaves = 1.0 - gamma * stay[j]
        if leaves > 1e-14:
            new = ((1.0 - gamma) * initial[j] + gamma * (total - stay[j] * old)) / leaves
            if new != old:
                change += abs(new - old)
                mu[j] = new
                for h in range(hubs):
                    mass[h] += (new - old) * out[j, h]
    return change


@fused_kernel
def refresh_hubs(mu, mass, out, gamma):
    """Scale a distribution to sum one (gamma = 1) and add up what falls back to each hub."""
    if gamma == 1.0:
        whole = 0.0
        for j in range(mu.size):
            whole += mu[j]
        for j in range(mu.size):
            mu[j] /= whole
    for h in range(mass.size):
        mass[h] = 0.0
        for j in range(mu.size):
            mass[h] += mu[j] * out[j, h]


DEPTH = 8
"""Sweeps between two extrapolations."""


@kernel
def begin_warm(mu, mass, chain):
    """The share of every state that stays where it is; ``mu`` and ``mass`` are made ready for sweeps."""
    stay = np.zeros(mu.size)
    for j in range(mu.size):
        for k in range(chain.column[j], chain.column[j + 1]):
            if chain.source[k] == j:
                stay[j] += chain.coefficient[k]
        for h in range(chain.hub_distribution.shape[0]):
            stay[j] += chain.out[j, h] * chain.hub_distribution[h, j]
    refresh_hubs(mu, mass, chain.out, chain.gamma)
    return stay


@kernel
def warm_rounds(mu, mass, stay, past, chain, tol, slowest, rounds):
    """Solve for mu by Gauss-Seidel sweeps in place, the last eight extrapolated together.

    Stops after some rounds of nine sweeps, or once the L1 error, the last change times rho / (1 - rho) for
    the contraction rho seen between extrapolations, is below ``tol``. Returns that error, ``slowest`` (rho)
    for the next call, and whether it is done.
    """
    error = np.inf
    out, gamma = chain.out, chain.gamma
    for _ in range(rounds):
        sweep_once(mu, mass, stay, chain)
        refresh_hubs(mu, mass, out, gamma)
        past.before[:] = mu
        before = np.inf
        for step in range(DEPTH):
            change = sweep_once(mu, mass, stay, chain)
            refresh_hubs(mu, mass, out, gamma)
            record_pass(mu, past, 0.0, step)
            past.before[:] = mu
            # A change that grows in one sweep is the extrapolation's dust settling, not the chain.
            if change < before < np.inf:
                slowest = max(slowest, change / before)
            before = change
        error = before * slowest / (1.0 - slowest)
        if before == 0.0 or error <= tol:
            return error, slowest, True
        if np.diag(past.gram).min() > 0.0:
            share = solve_gram(past.gram, project(mu, past, 0.0))
            for j in range(mu.size):
                for k in range(share.size):
                    mu[j] -= share[k] * past.moves[k, j]
            refresh_hubs(mu, mass, out, gamma)
    return error, slowest, False
