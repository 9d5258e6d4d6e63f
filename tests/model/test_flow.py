"""The flow over cells: adjointness, closed unseen cells, and the total mass."""

from __future__ import annotations

import numpy as np
import pytest
from flows import mdp_flow
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("redirect", [True, False])
@pytest.mark.parametrize("ratio", ["state", "state_action"])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000))
def test_pull_is_the_adjoint_of_push(gamma, redirect, ratio, seed):
    flow, _ = mdp_flow(gamma, redirect, ratio)
    rng = np.random.default_rng(seed)
    mass = np.where(flow.seen, rng.uniform(size=flow.n_cells), 0.0)
    values = rng.standard_normal(flow.n_cells)
    values = np.where(flow.seen, values, 0.0) if redirect else values
    assert flow.apply_transpose(mass) @ values == pytest.approx(mass @ flow.apply(values), abs=1e-12)
    several = np.stack([mass, 2 * mass], axis=1)
    assert np.allclose(flow.apply_transpose(several)[:, 1], 2 * flow.apply_transpose(mass))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("leak", ["restart", "absorb"])
def test_closed_flow_has_the_distribution_of_the_operator(gamma, leak):
    if gamma == 1.0 and leak == "absorb":
        return
    flow, operator = mdp_flow(gamma, True, leak=leak)
    n = flow.n_cells
    dense = np.stack([operator.spread(operator.next_state_distribution(row)) for row in np.eye(n)])
    start = (1 - gamma) * operator.cell_initial if gamma < 1 else np.zeros(n)
    if gamma < 1:
        mu = np.linalg.solve(np.eye(n) - gamma * dense.T, start)
    else:
        mu = np.linalg.lstsq(
            np.vstack([dense.T - np.eye(n), np.ones(n)]), np.append(np.zeros(n), 1.0), rcond=None
        )[0]
    mass = np.where(flow.seen, mu, 0.0)
    assert np.abs(flow.inflow(mass) - mass).max() < 1e-14
    assert flow.mass_weight @ mass + flow.mass_offset == pytest.approx(1.0)
    assert np.allclose(flow.completed(mass), mu)
