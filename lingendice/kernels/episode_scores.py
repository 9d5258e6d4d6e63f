"""Score tests of what an episode has shown lately: one slope per action taken and action before."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel


@kernel
def recent_scores(cell, action, first, y, able, shown, steps, n_actions):
    """Sums of y (m - mean of m in the cell) over the rows of each action, and two matrices of their variance.

    m(b) is the sum of ``shown`` over the rows of action b among the last ``steps`` of the episode, which
    begins in row ``first``. Cells that are not ``able`` are left out. Two passes: means of m by cell, sums.

    ``products`` adds up outer products of the terms, ``spreads`` those of m - mean of m: the variance where
    y, of variance 1, is permuted within cells. ``pairs`` counts, for each row, earlier rows of its cell in
    the window, over the size of the cell: y centered within the cell makes their products that much smaller.
    """
    mean, size = np.zeros((able.size, n_actions)), np.zeros(able.size)
    sums, pairs = np.zeros((n_actions, n_actions)), np.zeros(n_actions)
    products = np.zeros((n_actions, n_actions, n_actions))
    spreads = np.zeros((n_actions, n_actions, n_actions))
    rows, m, centered = np.zeros(n_actions, np.int64), np.zeros(n_actions), np.zeros(n_actions)
    recent = np.zeros(able.size, np.int64)
    for last_pass in range(2):
        for row in range(cell.size):
            if first[row] == row:
                m[:] = 0.0
                if row > 0:
                    for earlier in range(max(first[row - 1], row - 1 - steps), row):
                        recent[cell[earlier]] = 0
            else:
                m[action[row - 1]] += shown[row - 1]
                recent[cell[row - 1]] += 1
                gone = row - 1 - steps
                if gone >= first[row]:
                    m[action[gone]] -= shown[gone]
                    recent[cell[gone]] -= 1
            x = cell[row]
            if not able[x]:
                continue
            if not last_pass:
                size[x] += 1.0
                for b in range(n_actions):
                    mean[x, b] += m[b]
                continue
            taken = action[row]
            rows[taken] += 1
            pairs[taken] += recent[x] / size[x]
            for b in range(n_actions):
                centered[b] = m[b] - mean[x, b]
                sums[taken, b] += y[row] * centered[b]
                for c in range(b + 1):
                    spread = centered[b] * centered[c]
                    spreads[taken, b, c] += spread
                    products[taken, b, c] += y[row] ** 2 * spread
        if not last_pass:
            recent[:] = 0
            for x in range(able.size):
                for b in range(n_actions):
                    mean[x, b] /= max(size[x], 1.0)
    for taken in range(n_actions):
        for b in range(n_actions):
            for c in range(b):
                products[taken, c, b] = products[taken, b, c]
                spreads[taken, c, b] = spreads[taken, b, c]
    return sums, products, spreads, pairs, rows
