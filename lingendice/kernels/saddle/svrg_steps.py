"""Variance-reduced primal-dual steps around a snapshot, over compressed rows of features."""

from __future__ import annotations

from lingendice.kernels.jit import kernel
from lingendice.kernels.saddle.conjugates import excess_and_slope
from lingendice.kernels.saddle.draws import GOLDEN, draw_event, draw_next, mix
from lingendice.kernels.saddle.sgd_sparse import sparse_clip, sparse_dot


@kernel
def catch_up(indptr, indices, x, t, values, drift, since, low, high):  # type: ignore[no-untyped-def]
    """Bring the coordinates of a row up to step ``t``."""
    for k in range(indptr[x], indptr[x + 1]):
        j = indices[k]
        values[j] = min(max(values[j] + (t - since[j]) * drift[j], low[j]), high[j])
        since[j] = t


@kernel
def shift(indptr, indices, data, x, scale, metric, values):  # type: ignore[no-untyped-def]
    """values += scale row / metric."""
    for k in range(indptr[x], indptr[x + 1]):
        values[indices[k]] += scale * data[k] / metric[indices[k]]


@kernel
def svrg_steps(counter, first, last, events, tables, redirects, scalars, code, by_ratio, actions, ratio,
               psi, phi, w, v, u, tau_0, f_0, u_0, w_drift, v_drift, u_drift, w_last, v_last,
               w_metric, v_metric, mass_weight, w_low, w_top, v_low, v_high):  # type: ignore[no-untyped-def]  # fmt: skip
    """Steps ``first : last`` around a snapshot with (tau_0, f_0) over cells and u_0; returns (counter, u).

    The full field at the snapshot moves every coordinate each step. It is constant, so a coordinate that
    was left alone is brought up to date by one clipped move (``w_last``, ``v_last``) when it is met.
    ``ratio`` holds p(x) / (chance of drawing x).
    """
    gamma, penalty, ridge, step = scalars
    psi_p, psi_i, psi_d = psi
    phi_p, phi_i, phi_d = phi
    plain = actions == 1 and redirects[0].size == 0
    for t in range(first, last):
        x, y = draw_event(mix(counter), events)
        counter += GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        catch_up(psi_p, psi_i, x, t, w, w_drift, w_last, w_low, w_top)
        catch_up(phi_p, phi_i, x, t, v, v_drift, v_last, v_low, v_high)
        if y >= 0:
            catch_up(phi_p, phi_i, y, t, v, v_drift, v_last, v_low, v_high)
        tau = sparse_dot(psi_p, psi_i, psi_d, x, w)
        f = sparse_dot(phi_p, phi_i, phi_d, x, v)
        nu = mass_weight[x]
        excess, slope = excess_and_slope(code, f)
        excess_0, slope_0 = excess_and_slope(code, f_0[x])
        moved = tau - tau_0[x]
        to_tau = penalty * nu * (u - u_0) - (f - f_0[x]) + ridge * moved
        if by_ratio:
            to_tau -= excess - excess_0
            slope = slope * tau - slope_0 * tau_0[x]
        else:
            slope = slope - slope_0
        scale = step * ratio[x]
        if y >= 0:
            weight = gamma * factor
            to_tau += weight * (sparse_dot(phi_p, phi_i, phi_d, y, v) - f_0[y])
            shift(phi_p, phi_i, phi_d, y, scale * weight * moved, v_metric, v)
        shift(phi_p, phi_i, phi_d, x, -scale * (moved + slope), v_metric, v)
        if y >= 0:
            sparse_clip(phi_p, phi_i, y, v_low, v_high, v)
        sparse_clip(phi_p, phi_i, x, v_low, v_high, v)
        shift(psi_p, psi_i, psi_d, x, -scale * to_tau, w_metric, w)
        sparse_clip(psi_p, psi_i, x, w_low, w_top, w)
        u += scale * nu * moved - step * (u - u_0) + u_drift
    return counter, u


@kernel
def finish_drift(t, values, drift, since, low, high):  # type: ignore[no-untyped-def]
    """Bring every coordinate up to step ``t``."""
    for j in range(values.size):
        values[j] = min(max(values[j] + (t - since[j]) * drift[j], low[j]), high[j])
        since[j] = t
