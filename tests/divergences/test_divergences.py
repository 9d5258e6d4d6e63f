"""phi, phi*, their domains and gradients, and the metrics, against brute force and linear programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saddle_problems import F_DIVERGENCES, SMOOTH, chain_flow
from scipy import sparse
from scipy.optimize import linprog, minimize_scalar

import lingendice as lg
from lingendice.data.checks import NotAvailableYet
from lingendice.divergences import DIVERGENCES, MMD, Chi2, Dudley, FDivergence, Wasserstein, read_divergence
from lingendice.kernels.saddle_steps import excess_and_slope

settings.register_profile("lingendice", deadline=None)
settings.load_profile("lingendice")
ratios = st.floats(1e-6, 1e3)
duals = st.floats(-5.0, 5.0)


def one(value):
    return np.array([float(value)])


def read(name) -> FDivergence:
    return DIVERGENCES[name]()


@pytest.mark.parametrize("name", F_DIVERGENCES)
def test_normalized_at_one(name):
    divergence = read(name)
    assert divergence.phi(one(1.0))[0] == 0.0
    assert divergence.slope(one(1.0))[0] == pytest.approx(0.0, abs=1e-15)
    assert divergence.conjugate(one(0.0))[0] == 0.0
    assert divergence.excess_slope(one(0.0))[0] == 0.0


@pytest.mark.parametrize("name", F_DIVERGENCES)
@given(t=ratios, y=duals)
def test_fenchel_young(name, t, y):
    divergence = read(name)
    total = divergence.phi(one(t))[0] + divergence.conjugate(one(y))[0]
    assert total >= t * y - 1e-9 * (1.0 + abs(t * y) + t)


@pytest.mark.parametrize("name", F_DIVERGENCES)
@given(t=st.floats(1e-3, 50.0))
def test_fenchel_young_is_tight_at_the_slope(name, t):
    divergence = read(name)
    y = divergence.slope(one(t))
    total = divergence.phi(one(t))[0] + divergence.conjugate(y)[0]
    assert total == pytest.approx(t * y[0], abs=1e-10 * (1.0 + t + abs(t * y[0])))


@pytest.mark.parametrize("name", F_DIVERGENCES)
@settings(max_examples=25)
@given(y=duals)
def test_conjugate_is_the_maximum(name, y):
    divergence = read(name)
    if y > 0.9 * divergence.dual_limit:
        assert y <= divergence.dual_limit or divergence.conjugate(one(y))[0] == np.inf
        return
    low = -10.0 if name in ("chi2", "weighted_l2") else 1e-12
    found = minimize_scalar(
        lambda t: divergence.phi(one(t))[0] - t * y,
        bounds=(low, 3e3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    # The maximum may sit at the lower end (total variation); compare values, with the ends looked at too.
    ends = [divergence.phi(one(t))[0] - t * y for t in (low, 1.0)]
    assert divergence.conjugate(one(y))[0] == pytest.approx(-min(found.fun, *ends), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", SMOOTH)
@given(y=st.floats(-3.0, 3.0))
def test_gradients_of_the_excess(name, y):
    divergence = read(name)
    y = min(y, 0.6 * divergence.dual_limit)
    h = 1e-5
    slope = (divergence.excess(one(y + h)) - divergence.excess(one(y - h)))[0] / (2 * h)
    bend = (divergence.excess_slope(one(y + h)) - divergence.excess_slope(one(y - h)))[0] / (2 * h)
    assert divergence.excess_slope(one(y))[0] == pytest.approx(slope, rel=1e-6, abs=1e-8)
    assert divergence.excess_curvature(one(y))[0] == pytest.approx(bend, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", SMOOTH)
@given(y=st.floats(-1e-3, 1e-3).filter(lambda y: abs(y) > 1e-9))
def test_excess_keeps_its_digits_near_zero(name, y):
    import mpmath

    with mpmath.workdps(50):
        m = mpmath.mpf(y)
        exact = {
            "chi2": m**2 / 4,
            "weighted_l2": m**2 / 2,
            "kl": mpmath.exp(m) - 1 - m,
            "reverse_kl": -mpmath.log(1 - m) - m,
            "jensen_shannon": -mpmath.log(2 - mpmath.exp(m)) - m,
            "hellinger": m / (1 - m) - m,
        }[name]
        assert read(name).excess(one(y))[0] == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("name", F_DIVERGENCES)
@given(y=st.floats(-3.0, 3.0))
def test_kernel_agrees(name, y):
    divergence = read(name)
    y = min(y, 0.6 * divergence.dual_limit)
    value, slope = excess_and_slope(divergence.code, y)
    assert value == pytest.approx(divergence.excess(one(y))[0], rel=1e-9, abs=1e-15)
    assert slope == pytest.approx(divergence.excess_slope(one(y))[0], rel=1e-12, abs=1e-15)


class Halved(Chi2):
    """A divergence of a user's own: half of chi-square."""

    def excess(self, y):
        return 0.5 * y * y

    def excess_slope(self, y):
        return y


class Named(Halved):
    name = "halved"


@pytest.mark.parametrize("divergence", [Halved(), Named()])
def test_compiled_code_refuses_divergences_it_does_not_know(divergence):
    counts = lg.Counts.from_transitions([0, 1, 0, 1], [1, 0, 0, 1])
    with pytest.raises(NotAvailableYet, match=r"in compiled code.*convex"):
        lg.solve(counts, 0.9, divergence=divergence, method="sgd", max_iter=10)


@pytest.mark.parametrize("name", F_DIVERGENCES)
@given(seed=st.integers(0, 10**6))
def test_value_is_the_divergence(name, seed):
    rng = np.random.default_rng(seed)
    inflow, mass = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    divergence = read(name)
    free = np.full(6, np.inf)
    weight = mass if divergence.weighs_by_ratio else np.full(6, 1 / 6)
    direct = (
        float(mass @ divergence.phi(inflow / mass))
        if divergence.weighs_by_ratio
        else float(0.5 * 6 * ((inflow - mass) ** 2).sum())
    )
    top = np.minimum(free, divergence.dual_limit)
    assert divergence.value(inflow, mass, weight, -free, top) == pytest.approx(direct, rel=1e-9, abs=1e-12)


# -- metrics --------------------------------------------------------------------------------------------


def distance(metric, residual):
    """max over the set of residual' f, as a linear program."""
    limits = metric.dual_set(residual.size, metric.default_bound)
    cost = np.concatenate([-residual, np.zeros(limits.on_extra.shape[1])])
    rows = sparse.hstack([limits.on_dual, limits.on_extra], format="csr")
    return -linprog(cost, A_ub=rows, b_ub=limits.limit, bounds=(None, None)).fun


def transport(residual, cost):
    """W1 of the two parts of a balanced residual, as a transport program."""
    n = residual.size
    from_, to = np.maximum(residual, 0), np.maximum(-residual, 0)
    rows = np.vstack([np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))])
    return linprog(cost.ravel(), A_eq=rows, b_eq=np.concatenate([from_, to]), bounds=(0, None)).fun


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_wasserstein_is_optimal_transport(seed):
    rng = np.random.default_rng(seed)
    flow = chain_flow(6)
    at = rng.uniform(size=(6, 2))
    cost = np.linalg.norm(at[:, None] - at[None], axis=2)
    residual = rng.dirichlet(np.ones(6)) - rng.dirichlet(np.ones(6))
    fitted = read_divergence(Wasserstein(metric=cost), flow)
    assert distance(fitted, residual) == pytest.approx(transport(residual, cost), abs=1e-9)


def test_wasserstein_on_a_path_graph_is_the_sum_of_flows():
    flow = chain_flow(5)
    path = np.diag(np.arange(1.0, 5.0), 1)
    residual = np.array([0.3, -0.1, 0.2, -0.5, 0.1])
    fitted = read_divergence(Wasserstein(graph=path), flow)
    expected = (np.abs(np.cumsum(residual))[:-1] * np.arange(1.0, 5.0)).sum()
    assert distance(fitted, residual) == pytest.approx(expected, abs=1e-9)


def test_dudley_lies_between_nothing_and_its_two_parts():
    flow = chain_flow(8)
    rng = np.random.default_rng(3)
    residual = rng.dirichlet(np.ones(8)) - rng.dirichlet(np.ones(8))
    dudley = distance(read_divergence(Dudley(), flow), residual)
    assert 0 < dudley <= min(np.abs(residual).sum(), distance(read_divergence("wasserstein", flow), residual))


def test_mmd_features_are_a_root_of_the_kernel():
    rng = np.random.default_rng(1)
    for bandwidth in ("median", "learned", 0.7):
        fitted = read_divergence(MMD(points=rng.uniform(size=(7, 2)), bandwidth=bandwidth), chain_flow(7))
        assert np.allclose(fitted.root() @ fitted.root().T, fitted.kernel, atol=1e-10)


def test_points_are_one_per_cell():
    """Four points in the plane were read as eight numbers, one for each of eight state-action cells."""
    for points in (np.zeros((4, 2)), np.zeros((8, 2, 2)), np.float64(1.0)):
        with pytest.raises(ValueError, match=r"one row of coordinates per cell \(8\)"):
            read_divergence(MMD(points=points), chain_flow(8))
    with pytest.raises(ValueError, match=r"points\[3\] is nan"):
        read_divergence(MMD(points=[0.0, 1.0, 2.0, np.nan]), chain_flow(4))


class Short(Wasserstein):
    """A metric of a user's own: |f| <= 1 alone."""

    def dual_set(self, n, bound):
        return super().dual_set(n, 1.0)


def test_fitting_keeps_the_class_of_a_metric():
    for one in (Short(), Dudley(), Wasserstein(), MMD()):
        fitted = read_divergence(one, chain_flow(5))
        assert type(fitted) is type(one)
        assert not hasattr(one, "first")
        assert not hasattr(one, "kernel")


def test_gradient_penalty_has_its_gradient():
    flow = chain_flow(6)
    fitted = read_divergence(Wasserstein(gradient_penalty=3.0), flow)
    rng = np.random.default_rng(0)
    f, direction = 4.0 * rng.standard_normal(6), rng.standard_normal(6)
    h = 1e-6
    slope = (fitted.penalty(f + h * direction)[0] - fitted.penalty(f - h * direction)[0]) / (2 * h)
    assert fitted.penalty(f)[1] @ direction == pytest.approx(slope, rel=1e-6)


def test_names_are_checked():
    with pytest.raises(ValueError, match="one of 'chi2'"):
        read_divergence("tv", chain_flow(4))
    with pytest.raises(ValueError, match="bandwidth"):
        MMD(bandwidth="best")


@given(residual=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=6), bound=st.floats(0.1, 100.0))
def test_equality_costs_the_bound_for_every_unit_of_residual(residual, bound):
    """max over |f| <= C of (q - m)' f = C |q - m|_1, and no excess in the kernels either."""
    equality, inflow = read("equality"), np.maximum(np.array(residual), 0.0)
    mass = inflow - np.array(residual)
    limit = np.full(mass.size, bound)
    found = equality.value(inflow, mass, mass, -limit, limit)
    assert found == pytest.approx(bound * np.abs(inflow - mass).sum(), rel=1e-12)
    assert excess_and_slope(equality.code, bound) == (0.0, 0.0)
    assert equality.phi(np.array([1.0, 0.5])).tolist() == [0.0, np.inf]


def test_gradient_penalties_that_would_be_ignored_or_divide_by_zero_are_refused():
    metric = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    counts = [[1, 2, 3], [2, 1, 1], [4, 1, 2]]
    with pytest.raises(TypeError, match="gradient_penalty"):
        Dudley(metric, gradient_penalty=1.0)
    soft = Wasserstein(metric, gradient_penalty=1.0)
    with pytest.raises(ValueError, match="cells 0 and 1 lie at distance 0"):
        lg.solve(counts, 0.9, features=np.eye(3), divergence=soft)
    assert lg.solve(counts, 0.9, features=np.eye(3), divergence=Wasserstein(metric)).converged
