"""Dense elimination of a Markov chain without subtractions (Grassmann, Taksar and Heyman).

Eliminating state k of a chain with rates W (rows are sources, the diagonal is ignored) leaves a chain on
the remaining states with the same stationary distribution up to scale:

    S_k = sum over later j of W_kj ,   U_kj = W_kj / S_k ,   W_ij <- W_ij + W_ik U_kj .

Nothing is subtracted, so every entry keeps its relative accuracy, whatever the order of the sums: blocks may
go through BLAS. A factor is held in place: W_ik below the diagonal, U_kj above it, S apart. Dividing the
rows (not the columns) keeps every multiplier at most one, so nothing overflows.

References
----------
W. K. Grassmann, M. I. Taksar, D. P. Heyman (1985). Regenerative analysis and steady state distributions for
    Markov chains. Operations Research 33.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lingendice.kernels.blas import add_product
from lingendice.kernels.jit import fused_kernel, inlined, kernel

# Pivots in one block step: at most this many.
BLOCK = 64

# Operations in one kernel call: a twentieth of a second or so on a slow core, so that limits and Ctrl-C are
# noticed.
PORTION = 400_000_000

# Below this many later states plain loops beat the call overhead of BLAS.
BLAS_CUTOFF = 40

# Up to this many states the whole answer comes from one small kernel.
SMALL = 96

# The plain back substitution is trusted while its values stay in this range: what underflows beside them is
# then below the rounding error. Outside, the substitution is redone with an exponent for every entry.
SAFE_LOW = 2.0**-400
SAFE_HIGH = 2.0**400
SAFE_SUM = 2.0**-600


@inlined
def carried_by_blas(n, first, last):
    """Whether pivots ``first:last`` of n states enter the later rows through BLAS."""
    return n - last >= BLAS_CUTOFF and last - first >= 4


@kernel
def rows_at_once(n, first, last):
    """Later rows that one call carries pivots into: some `PORTION` operations, at least one tile of BLAS."""
    return max(64, PORTION // (2 * (last - first) * (n - first)) // 64 * 64)


@kernel
def _count_paths(front, first, last, work):
    """Write (I - N)^-1 = I + N + N^2 + ... into ``work``, N the strict upper triangle of the pivots' U."""
    width = last - first
    paths = work[:width, :width]
    for l in range(width):  # noqa: E741
        for j in range(width):
            paths[l, j] = 0.0
        paths[l, l] = 1.0
        for m in range(l, width):
            a = paths[l, m]
            if a > 0.0:
                for j in range(m + 1, width):
                    paths[l, j] += a * front[first + m, first + j]


@kernel
def carry_pivots(front, first, last, low, high, work):
    """Carry the eliminated pivot rows ``first:last`` into the later rows ``low:high``.

    With N the strict upper triangle of the pivots' U, a later row enters the pivots' columns as
    a <- a (I - N)^-1, a nonnegative product, then adds a U to its later columns. ``work`` is as
    `eliminate_pivots` left it.
    """
    width = last - first
    keep = np.zeros(2)
    keep[0] = 1.0
    entering = work[width : width + high - low, :width]
    for i in range(high - low):
        for j in range(width):
            entering[i, j] = front[low + i, first + j]
    add_product(entering, work[:width, :width], keep, front[low:high, first:last])
    keep[1] = 1.0
    add_product(front[low:high, first:last], front[first:last, last:], keep, front[low:high, last:])


@fused_kernel
def eliminate_pivots(front, first, last, exit_rate, work):
    """Eliminate states ``first:last`` of a dense front in place; all states before them are gone already.

    Where `carried_by_blas` says so the rows from ``last`` on are left to `carry_pivots`, which is nearly all
    of the work; else they are done here. Writes S into ``exit_rate[first:last]``. Returns -1, or the first
    state whose S is zero (such a state cannot leave towards the later ones), where the work stops. ``work``
    is (n + BLOCK, BLOCK) or larger, and ``last - first`` at most ``BLOCK``.
    """
    n = front.shape[0]
    by_blas = carried_by_blas(n, first, last)
    stop = last if by_blas else n
    for i in range(first, stop):
        # Two pivot rows at a time halve the memory traffic of the row they enter.
        k = first
        pivots = i if i < last else last
        while k < pivots:
            a = front[i, k]
            if k + 1 < pivots:
                b = front[i, k + 1] + a * front[k, k + 1]
                front[i, k + 1] = b
                row = front[i, k + 2 :]
                u = front[k, k + 2 :]
                v = front[k + 1, k + 2 :]
                for j in range(n - k - 2):
                    row[j] += a * u[j] + b * v[j]
            elif a > 0.0:
                row = front[i, k + 1 :]
                u = front[k, k + 1 :]
                for j in range(n - k - 1):
                    row[j] += a * u[j]
            k += 2
        if i < last:
            later = front[i, i + 1 :]
            total = 0.0
            for j in range(n - i - 1):
                total += later[j]
            exit_rate[i] = total
            if not total > 0.0 and i < n - 1:
                return i
            for j in range(n - i - 1):
                later[j] = later[j] / total
    if by_blas:
        _count_paths(front, first, last, work)
    return -1


@inlined
def eliminate_block(front, first, last, exit_rate, work):
    """`eliminate_pivots`, and all later rows at once: 2 (last - first) n'^2 operations for n' states left."""
    n = front.shape[0]
    status = eliminate_pivots(front, first, last, exit_rate, work)
    if status < 0 and carried_by_blas(n, first, last):
        carry_pivots(front, first, last, last, n, work)
    return status


@kernel
def solve_pivot_wide(flat, base, pivot_stride, state_stride, k, states, exit_rate, mantissa, exponent):
    """Back substitution for one pivot with exponents: x = mantissa * 2**exponent.

    ``flat[base + k pivot_stride + i state_stride]`` is W_ik, ``states[i]`` the place of i in the vectors;
    ``exit_rate`` is that of the pivot. Terms are summed relative to the largest of them, so that one is
    dropped only if it is beyond the precision of the sum.
    """
    at = base + k * pivot_stride
    top = np.int64(0)
    found = False
    for i in range(k + 1, states.size):
        s = states[i]
        rate, shift = math.frexp(flat[at + i * state_stride])
        if rate > 0.0 and mantissa[s] > 0.0 and (not found or exponent[s] + shift > top):
            top = exponent[s] + shift
            found = True
    total = 0.0
    for i in range(k + 1, states.size):
        s = states[i]
        rate, shift = math.frexp(flat[at + i * state_stride])
        behind = exponent[s] + shift - top
        if behind > -200:
            total += math.ldexp(rate * mantissa[s], np.int32(behind))
    rate, shift = math.frexp(exit_rate)
    value, carry = math.frexp(total / rate)
    mantissa[states[k]] = value
    exponent[states[k]] = top + carry - shift


@kernel
def gather_wide(mantissa, exponent, x):
    """Write the distribution, normalized to sum one; returns -1, or a state that got nothing at all."""
    top = exponent[x.size - 1]
    lost = -1
    for i in range(x.size):
        if not mantissa[i] > 0.0:
            lost = i
        elif exponent[i] > top:
            top = exponent[i]
    total = 0.0
    for i in range(x.size):
        x[i] = 0.0
        if exponent[i] - top > -1200:
            x[i] = math.ldexp(mantissa[i], np.int32(exponent[i] - top))
        total += x[i]
    for i in range(x.size):
        x[i] /= total
    return lost


@fused_kernel
def dense_distribution(front, exit_rate):
    """The stationary distribution (sum 1) from a dense factor, and -1 or a state whose entry was lost."""
    n = front.shape[0]
    x = np.zeros(n)
    x[n - 1] = 1.0
    total = 1.0
    safe = True
    for i in range(n - 1, 0, -1):
        value = x[i]
        row = front[i, :i]
        head = x[:i]
        for j in range(i):
            head[j] += value * row[j]
        below = x[i - 1]
        x[i - 1] = below / exit_rate[i - 1]
        total += x[i - 1]
        if not (below > SAFE_SUM and x[i - 1] > SAFE_LOW and x[i - 1] < SAFE_HIGH):
            safe = False
            break
    if safe:
        for i in range(n):
            x[i] /= total
        return x, -1
    mantissa = np.zeros(n)
    exponent = np.zeros(n, np.int64)
    states = np.arange(n)
    mantissa[n - 1] = 1.0
    flat = front.reshape(n * n)
    for k in range(n - 2, -1, -1):
        solve_pivot_wide(flat, 0, 1, n, k, states, exit_rate[k], mantissa, exponent)
    lost = gather_wide(mantissa, exponent, x)
    return x, lost


@fused_kernel
def gth_small(rates):
    """The distribution of a small chain by plain loops, and whether it can be trusted (see `SAFE_LOW`)."""
    n = rates.shape[0]
    front = rates.copy()
    x = np.zeros(n)
    for k in range(n - 1):
        pivot_row = front[k, k + 1 :]
        total = 0.0
        for j in range(n - 1 - k):
            total += pivot_row[j]
        if not total > 0.0:
            return x, False
        front[k, k] = total
        # The row, not a multiplier: reordered, W_ik (1 / S) W_kj may begin with a product that underflows.
        inverse = 1.0 / total
        for j in range(n - 1 - k):
            pivot_row[j] *= inverse
        for i in range(k + 1, n):
            a = front[i, k]
            row = front[i, k + 1 :]
            for j in range(n - 1 - k):
                row[j] += a * pivot_row[j]
    x[n - 1] = 1.0
    total = 1.0
    for k in range(n - 2, -1, -1):
        entering = 0.0
        for i in range(k + 1, n):
            entering += x[i] * front[i, k]
        value = entering / front[k, k]
        x[k] = value
        total += value
        if not (entering > SAFE_SUM and SAFE_LOW < value < SAFE_HIGH):
            return x, False
    for i in range(n):
        x[i] /= total
    return x, True


def dense_factor(
    rates: np.ndarray, monitor: Callable[[], bool] | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Factor a copy of ``rates`` block by block: (front, exit rates S, status as `eliminate_pivots`).

    The ``monitor`` is asked between kernel calls of some `PORTION` operations, and raises `InterruptedError`
    here when it answers yes.
    """
    n = rates.shape[0]
    front = np.array(rates, dtype=np.float64, order="C")
    exit_rate = np.empty(n)
    step = BLOCK if n > 700 else BLOCK // 2
    work = np.empty((n + BLOCK, BLOCK))

    def look() -> None:
        if monitor is not None and monitor():
            raise InterruptedError("elimination stopped on request")

    for first in range(0, n, step):
        last = min(n, first + step)
        look()
        status = eliminate_pivots(front, first, last, exit_rate, work)
        if status >= 0:
            return front, exit_rate, status
        if n - last >= BLAS_CUTOFF and last - first >= 4:
            at_once = rows_at_once(n, first, last)
            for low in range(last, n, at_once):
                look()
                carry_pivots(front, first, last, low, min(n, low + at_once), work)
    return front, exit_rate, -1


def gth_dense(rates: np.ndarray, monitor: Callable[[], bool] | None = None) -> tuple[np.ndarray, bool]:
    """Stationary distribution x of a dense irreducible chain: x_j sum_k W_jk = sum_i x_i W_ij, sum x = 1.

    ``rates`` are nonnegative, the diagonal is ignored, and rows need not sum to one; ``monitor`` is that of
    `dense_factor`. Every entry of x is relatively accurate, down to the smallest that float64 can hold beside
    the largest. Also returns whether x is a distribution: False where the chain is not irreducible (or its
    rates underflow). Exit rates above 0 prove that the last state is reached from every other, entries that
    it reaches all.

    Cost 2 n^3 / 3, most of it in BLAS. For a sparse chain of many states use the sparse elimination.
    """
    if rates.shape[0] <= SMALL:
        x, trusted = gth_small(rates)
        if trusted:
            return x, True
    front, exit_rate, status = dense_factor(rates, monitor)
    if status >= 0:
        return np.full(rates.shape[0], np.nan), False
    x, lost = dense_distribution(front, exit_rate)
    return x, lost < 0


@fused_kernel
def dense_bias(front, exit_rate, reward):
    """Bias h of (D - W) h = reward - g, h = 0 at the last state, from a dense factor.

    D holds the row sums of W, g is the gain. Cost 4 n^2.
    """
    n = front.shape[0]
    r, t = reward.copy(), np.ones(n)
    for i in range(n):
        row = front[i, :i]
        sum_r = 0.0
        sum_t = 0.0
        for k in range(i):
            sum_r += row[k] * r[k]
            sum_t += row[k] * t[k]
        r[i] += sum_r
        t[i] += sum_t
        if i < n - 1:
            # From here on the vectors hold r / S and t / S.
            r[i] /= exit_rate[i]
            t[i] /= exit_rate[i]
    gain = r[n - 1] / t[n - 1]
    h = np.zeros(n)
    for k in range(n - 2, -1, -1):
        row = front[k, k + 1 :]
        tail = h[k + 1 :]
        total = r[k] - gain * t[k]
        for j in range(n - 1 - k):
            total += row[j] * tail[j]
        h[k] = total
    return h


SMALLEST_TOTAL = 2.2250738585072014e-308
"""The smallest normal number: what divides by less overflows, or keeps few digits."""


@kernel
def prepare_dense(matrix, gamma, largest):
    """Rates of a dense chain, with a restart node at gamma < 1, and its row sums.

    Returns (ok, rates, totals); ok is False for anything that is not a plain chain (a bad entry or one
    above ``largest``, an empty row, sums that overflow or are too small to divide by), which the caller
    then treats at leisure. At gamma < 1 node n restarts uniformly.
    """
    n = matrix.shape[0]
    nodes = n if gamma == 1.0 else n + 1
    rates = np.zeros((nodes, nodes))
    totals = np.zeros(n)
    grand, smallest = 0.0, np.inf
    for i in range(n):
        total = 0.0
        for j in range(n):
            entry = float(matrix[i, j])
            if not (entry >= 0.0 and entry <= largest):
                return False, rates, totals
            total += entry
        grand, smallest = grand + total, min(smallest, total)
        if not (total >= SMALLEST_TOTAL and grand < np.inf):
            return False, rates, totals
        totals[i] = total
        for j in range(n):
            rates[i, j] = gamma * (matrix[i, j] / total)
    if smallest < SMALLEST_TOTAL * grand:
        return False, rates, totals
    if nodes > n:
        for i in range(n):
            rates[i, n] = 1.0 - gamma
            rates[n, i] = 1.0 / n
    return True, rates, totals


@kernel
def dense_residual(rates, distribution, gamma):
    """L1 norm of mu - (1 - gamma) / n - gamma P' mu for the first n nodes of ``rates`` (= gamma P)."""
    n = distribution.size
    stepped = np.full(n, (1.0 - gamma) / n)
    for i in range(n):
        for j in range(n):
            stepped[j] += distribution[i] * rates[i, j]
    return np.abs(distribution - stepped).sum()
