"""Whether linear features are good enough for some transitions: fitted on a part, judged on the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.holdout import HeldOut, mean_features, sampled_inputs
from lingendice.continuous.linear_ratio import DUAL_CUTOFF, DUAL_WIDTHS, Bumps, LinearRatio
from lingendice.continuous.outcome import RatioOutcome
from lingendice.continuous.samples import Samples
from lingendice.data.checks import Floats
from lingendice.model.features import MatrixFeatures, median_distance, orthonormalized

JUDGED_SHARE = 0.2
"""Part of the log that judges the fit to the rest."""
MOST_OFF_MASS = 0.05
"""Largest distance of the mean ratio from 1."""
MOST_OFF_BALANCE = 2.5
"""Largest imbalance, in units of what the noise of the judging rows alone makes."""
MOST_OFF_DATA = 0.1
"""Largest share of the flow that may arrive where there are no logged rows."""


class Verdict(NamedTuple):
    """What the judging rows say of a ratio."""

    mean_ratio: float
    imbalance: float
    """Of stationarity through smooth functions that the fit did not use; 1 is noise."""
    off_data: float
    """Share of the flow that arrives farther from the log than 99 % of its own rows lie from it."""

    @property
    def accepted(self) -> bool:
        """Whether all three are within their limits."""
        return (
            abs(self.mean_ratio - 1.0) <= MOST_OFF_MASS
            and self.imbalance <= MOST_OFF_BALANCE
            and self.off_data <= MOST_OFF_DATA
        )

    def __str__(self) -> str:
        return (
            f"mean ratio {self.mean_ratio:.2f}, imbalance on rows held out {self.imbalance:.1f} times its "
            f"noise, {self.off_data:.0%} of the flow off the data"
        )


def at_all_rows(fitted: RatioOutcome, samples: Samples) -> RatioOutcome:
    """The fit to a part of the rows, evaluated at all of them."""
    assert isinstance(fitted.evaluate, LinearRatio)
    tau = fitted.evaluate.at(samples.logged)
    return replace(fitted, tau=tau, members=tau[None, :], mass_weight=samples.mass_weight)


def judge(
    samples: Samples, fitted: RatioOutcome, trained: NDArray[Any], held: NDArray[Any], seed: int
) -> Verdict:
    """Judge a linear fit to the rows ``trained`` by the rows ``held``."""
    assert isinstance(fitted.evaluate, LinearRatio)
    tau = fitted.evaluate.at(samples.logged[held])
    rng = np.random.default_rng([seed, 10])
    return Verdict(
        fitted.mean_ratio,
        imbalance(samples, tau, held, seed),
        _off_data(samples, tau, trained, held, rng),
    )


def imbalance(samples: Samples, tau: Floats, held: NDArray[Any], seed: int) -> float:
    """n m' S^-1 m / dim for the mean m and covariance S of the moments of n rows.

    Moments: tau (gamma phi(x') - phi(x)) + (1 - gamma) E phi(x0), whose mean vanishes for the true ratio;
    phi are bumps with centers of their own.
    """
    logged = samples.logged[held].astype(np.float64)
    rng = np.random.default_rng([seed, 11])
    n_bumps = max(2, min(30, len(held) // 20))
    bumps = Bumps(logged, n_bumps, median_distance(logged, rng), DUAL_WIDTHS, seed + 1)
    _, back = orthonormalized(MatrixFeatures(bumps(logged)), np.full(len(held), 1.0 / len(held)), DUAL_CUTOFF)

    def phi(inputs: Any) -> Floats:
        return bumps(inputs) @ back

    rows = HeldOut(samples, held, seed, most_rows=len(held))
    moments = tau[:, None] * (samples.gamma * mean_features(phi, *rows.following) - phi(rows.logged))
    mean = moments.mean(axis=0)
    if samples.gamma < 1.0 and rows.starting is not None:
        mean = mean + (1.0 - samples.gamma) * mean_features(phi, *rows.starting).mean(axis=0)
    covariance = np.atleast_2d(np.cov(moments.T))
    covariance += 1e-9 * np.trace(covariance) * np.eye(len(covariance)) + 1e-300 * np.eye(len(covariance))
    return float(len(held) * mean @ np.linalg.solve(covariance, mean) / len(mean))


def _off_data(
    samples: Samples, tau: Floats, trained: NDArray[Any], held: NDArray[Any], rng: np.random.Generator
) -> float:
    from scipy.spatial import cKDTree

    tree = cKDTree(samples.logged[trained])
    usual = np.quantile(tree.query(samples.logged[held])[0], 0.99)
    flows = ~(samples.absorbed | samples.restarted)[held]
    weight = np.maximum(tau, 0.0) * flows
    away = tree.query(sampled_inputs(samples, samples.following, held, rng))[0] > usual
    return float(weight @ away / max(weight.sum(), 1e-300))
