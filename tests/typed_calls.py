"""What a type checker is told that ``solve`` returns; ``make lint`` checks it, nothing here is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import lingendice as lg

if TYPE_CHECKING:
    from typing_extensions import assert_type

    counts = lg.Counts.from_matrix([[1, 2], [3, 4]])
    table = np.full((2, 2), 0.5)
    log = lg.Transitions(np.ones((3, 2)), [0, 1, 0], None, np.ones((3, 2)))

    assert_type(lg.solve([[90, 10], [30, 70]]), lg.Solution)
    assert_type(lg.solve(counts, 0.9, policy=table, ridge=1e-3), lg.Solution)
    assert_type(lg.solve(counts, policy=[[0.5, 0.5], [1.0, 0.0]]), lg.Solution)
    assert_type(lg.solve(counts, policy=[0, 1]), lg.Solution)
    assert_type(lg.solve(counts, policy={"ill": "drug"}, initial={"ill": 1.0}), lg.Solution)
    assert_type(lg.solve(counts, policy={"ill": {"drug": 0.5, "rest": 0.5}}), lg.Solution)
    assert_type(lg.solve(counts, policy={"a": {"ill": {"drug": 1.0}}}), lg.Comparison)
    assert_type(lg.solve(counts, policy=lambda state: "drug"), lg.Solution)
    assert_type(lg.solve(counts, policy=[table, table]), lg.Comparison)
    assert_type(lg.solve(counts, policy={"careful": table}, tol=1e-8), lg.Comparison)
    assert_type(lg.solve(log, 0.9, policy=lg.policies.TablePolicy(table[0]), seed=3), lg.ContinuousSolution)
