"""Score tests of what an episode has shown so far: one slope per action taken and kind of event before."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel


@kernel
def fading_scores(cell, action, first, y, able, event, shown, keeps, n_actions, n_events):
    """Sums of y (m - mean of m in the cell) over the rows of each action, and two matrices of their variance.

    m(b) is the sum of ``shown`` over earlier rows of event b (-1: none) of the episode, which begins in row
    ``first``; of it a share ``keeps`` is left after each step. Cells that are not ``able`` are left out. Two
    passes: means of m by cell, sums.

    ``products`` adds up outer products of the terms, ``spreads`` those of m - mean of m: the variance where
    y, of variance 1, is permuted within cells. ``pairs`` adds up what earlier rows of the same cell weigh in
    m, over the size of the cell: y centered within the cell makes their products that much smaller.
    """
    mean, size = np.zeros((able.size, n_events)), np.zeros(able.size)
    sums, pairs = np.zeros((n_actions, n_events)), np.zeros(n_actions)
    products = np.zeros((n_actions, n_events, n_events))
    spreads = np.zeros((n_actions, n_events, n_events))
    rows, m, centered = np.zeros(n_actions, np.int64), np.zeros(n_events), np.zeros(n_events)
    weight, visited = np.zeros(able.size), np.full(able.size, -1)
    for last_pass in range(2):
        for row in range(cell.size):
            if first[row] == row:
                m[:] = 0.0
            else:
                for b in range(n_events):
                    m[b] *= keeps
                if event[row - 1] >= 0:
                    m[event[row - 1]] += shown[row - 1]
            x = cell[row]
            if not able[x]:
                continue
            if not last_pass:
                size[x] += 1.0
                for b in range(n_events):
                    mean[x, b] += m[b]
                continue
            taken = action[row]
            rows[taken] += 1
            if visited[x] >= first[row]:
                weight[x] *= keeps ** (row - 1 - visited[x])
                pairs[taken] += weight[x] / size[x]
                weight[x] = weight[x] * keeps + 1.0
            else:
                weight[x] = 1.0
            visited[x] = row
            for b in range(n_events):
                centered[b] = m[b] - mean[x, b]
                sums[taken, b] += y[row] * centered[b]
                for c in range(b + 1):
                    spread = centered[b] * centered[c]
                    spreads[taken, b, c] += spread
                    products[taken, b, c] += y[row] ** 2 * spread
        if not last_pass:
            for x in range(able.size):
                for b in range(n_events):
                    mean[x, b] /= max(size[x], 1.0)
    for taken in range(n_actions):
        for b in range(n_events):
            for c in range(b):
                products[taken, c, b] = products[taken, b, c]
                spreads[taken, c, b] = spreads[taken, b, c]
    return sums, products, spreads, pairs, rows
