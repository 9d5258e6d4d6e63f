"""Other methods as peers of ``solve``: one function each, on the same counts, with the same answer."""

from lingendice.baselines.dice import best_dice, dual_dice, gradient_dice, neural_dual_dice
from lingendice.baselines.direct import doubly_robust, fitted_q, ips, model_based
from lingendice.baselines.importance_sampling import (
    clone_behavior,
    naive_average,
    neural_importance_sampling,
    per_decision,
    step_wise,
    trajectory_wise,
)
from lingendice.continuous.clone import clone_log_density
from lingendice.results.targets import Estimate
from lingendice.results.variants import BaselineSolution

__all__ = [
    "BaselineSolution",
    "Estimate",
    "best_dice",
    "clone_behavior",
    "clone_log_density",
    "doubly_robust",
    "dual_dice",
    "fitted_q",
    "gradient_dice",
    "ips",
    "model_based",
    "naive_average",
    "neural_dual_dice",
    "neural_importance_sampling",
    "per_decision",
    "step_wise",
    "trajectory_wise",
]
