"""Score tests of what an episode has shown lately: one slope per action taken and action before."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel


@kernel
def recent_scores(cell, action, first, y, able, shown, steps, n_actions):
    """Sums and outer products of y (m - mean of m in the cell), over the rows of each action.

    m(b) is the sum of ``shown`` over the rows of action b among the last ``steps`` of the episode, which
    begins in row ``first``. Cells that are not ``able`` are left out. Two passes: means of m by cell, sums.
    Returns (n_actions, n_actions), (n_actions, n_actions, n_actions), and the number of rows of each action.
    """
    mean, size = np.zeros((able.size, n_actions)), np.zeros(able.size)
    sums, products = np.zeros((n_actions, n_actions)), np.zeros((n_actions, n_actions, n_actions))
    rows, m, term = np.zeros(n_actions, np.int64), np.zeros(n_actions), np.zeros(n_actions)
    for last_pass in range(2):
        for row in range(cell.size):
            if first[row] == row:
                m[:] = 0.0
            else:
                m[action[row - 1]] += shown[row - 1]
                gone = row - 1 - steps
                if gone >= first[row]:
                    m[action[gone]] -= shown[gone]
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
            for b in range(n_actions):
                term[b] = y[row] * (m[b] - mean[x, b])
                sums[taken, b] += term[b]
                for c in range(b + 1):
                    products[taken, b, c] += term[b] * term[c]
        if not last_pass:
            for x in range(able.size):
                for b in range(n_actions):
                    mean[x, b] /= max(size[x], 1.0)
    for taken in range(n_actions):
        for b in range(n_actions):
            for c in range(b):
                products[taken, c, b] = products[taken, b, c]
    return sums, products, rows
