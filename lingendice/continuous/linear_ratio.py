"""``solve(transitions, method="linear")``: tau and f linear in features of (s, a), by the convex solver.

Every logged row, every arrival and every initial state is a cell of its own. Mass lies on logged rows only;
it flows from row i to arrival i, whose dual features are the expectation over the policy's action there. The
saddle point over those cells is the empirical one, convex in the coefficients of tau.

References
----------
R. Zhang, B. Dai, L. Li, D. Schuurmans (2020). GenDICE: Generalized offline estimation of stationary values.
    ICLR. Appendix C.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.continuous.outcome import RatioOutcome
from lingendice.continuous.samples import Arrivals, PolicySamples, expected_inputs, prepare, sampled_inputs
from lingendice.data.checks import Floats, refuse_unknown, require_choice, require_flag, require_whole
from lingendice.data.transitions import Transitions
from lingendice.model.features import (
    MatrixFeatures,
    gauss,
    median_distance,
    orthonormalized,
    random_fourier,
    read_features,
    spread_out,
    tile_coding,
)
from lingendice.model.operator import Flow
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers import convex
from lingendice.solvers.problem import RatioProblem, run_saddle, without_steps

if TYPE_CHECKING:
    from lingendice.solvers.request import Request

OPTIONS: dict[str, Any] = {
    "n_features": 300,
    "n_dual_features": 50,
    "action_samples": 4,
    "standardize": True,
    "on_interrupt": "raise",
}
FIT_ROWS = 4000
"""Rows that features are fitted on."""
_BUILDERS = ("rbf", "tile_coding", "random_fourier")
RATIO_WIDTHS = ((0.3, 0.4), (0.1, 0.6))
"""Bumps of tau: (width over the median distance between points, share of the features)."""
DUAL_WIDTHS = ((0.5, 1.0),)
DUAL_CUTOFF = 1e-4
"""Directions of f with a smaller share of its variance are dropped: they see only the noise of few rows."""
Features = Callable[[Any], Any]


class Bumps:
    """A constant and Gaussian bumps of one or more widths around points that are spread out."""

    def __init__(
        self, points: Floats, n: int, scale: float, widths: tuple[tuple[float, float], ...], seed: int
    ) -> None:
        rng = np.random.default_rng([seed, 6])
        self.parts = []
        for width, share in widths:
            centers = spread_out(points, max(1, round(share * (n - 1))), rng)
            # Few bumps must be wide, or they leave gaps between them.
            self.parts.append((centers, max(width * scale, 0.5 * _spacing(centers))))

    def __call__(self, inputs: Any) -> Floats:
        x = np.asarray(inputs, dtype=np.float64)
        return np.column_stack(
            [np.ones(len(x)), *(gauss(x, centers, width) for centers, width in self.parts)]
        )


def _spacing(points: Floats) -> float:
    """Median distance of a point to the nearest other one."""
    from scipy.spatial import cKDTree

    return float(np.median(cKDTree(points).query(points, k=2)[0][:, 1])) if len(points) > 1 else 1.0


class LinearRatio:
    """tau at new states and actions."""

    def __init__(self, samples: PolicySamples, features: Features, weights: Floats) -> None:
        self._samples, self._features, self._weights = samples, features, weights

    def __call__(self, state: Any, action: Any) -> Floats:
        return np.asarray(self._features(self._samples.inputs(state, action)) @ self._weights)


def read_linear_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check every entry and fill in the rest."""
    refuse_unknown(given or {}, OPTIONS, "for method='linear'")
    options = {**OPTIONS, **(given or {})}
    for name in ("n_features", "n_dual_features", "action_samples"):
        options[name] = require_whole(f"options[{name!r}]", options[name], at_least=1)
    require_flag("options['standardize']", options["standardize"])
    return options


def solve_features(transitions: Transitions, request: Request, reason: str) -> RatioOutcome:
    """Fit tau = psi' w, w >= 0, and f = phi' v to a primal-dual gap of ``tol``.

    Costs about 20 Newton steps of O(N d^2) for N rows and d features. Use it in few dimensions, where bumps
    or tiles cover the data; networks where they cannot.
    """
    options, seed = read_linear_options(request.method.options), request.method.seed
    asked, objective = request.problem, request.objective
    samples = prepare(transitions, asked.policy, asked.gamma, asked.terminal, options["standardize"])
    psi = phi = _features("features", objective.features, samples, options, seed)
    if objective.dual_features is not None or isinstance(psi, Bumps):
        phi = _features("dual_features", objective.dual_features, samples, options, seed)
    n = len(samples.logged)
    rng = np.random.default_rng([seed, 5])
    logged = _rows("features", psi, samples.logged)
    firsts = 0 if samples.starting is None else len(samples.starting.states)
    blocks = [_rows("dual_features", phi, samples.logged)]
    for place in (samples.following, samples.starting):
        if place is not None:
            blocks.append(_expected(phi, samples, place, options, rng))
    flow = _flow(samples, n, firsts)
    tau_features = MatrixFeatures(np.vstack([logged, np.zeros((n + firsts, logged.shape[1]))]))
    dual = MatrixFeatures(np.vstack(blocks))
    if isinstance(phi, Bumps):
        dual, _ = orthonormalized(dual, flow.p, DUAL_CUTOFF)
    problem = RatioProblem.build(
        flow, tau_features, dual, divergence=objective.divergence, penalty=objective.mass_penalty,
        ridge=request.ridge, normalize="penalty", bound=objective.bound,
    )  # fmt: skip
    problem, _ = problem.with_orthonormal_dual()
    if problem.unsolvable is not None:
        outcome = without_steps(problem, request.limits.tol, "convex")
    else:
        outcome = run_saddle(convex.solve_convex(problem, request.limits.tol), request.limits)
    tau = logged @ outcome.w
    return RatioOutcome(
        converged=outcome.converged,
        stopped=outcome.stopped,
        certified=True,
        gamma=samples.gamma,
        method="linear",
        reason=reason,
        tau=tau,
        members=tau[None, :],
        mass_weight=samples.mass_weight,
        residual=math.sqrt(max(0.0, float(outcome.gap.primal))),
        n_iter=outcome.n_iter,
        transitions=samples.transitions,
        divergence=problem.divergence.name,
        evaluate=LinearRatio(samples, psi, outcome.w),
        details={"w_tau": outcome.w, "gap": outcome.gap.value, "objective": outcome.gap.primal},
    )


def _features(name: str, given: Any, samples: PolicySamples, options: dict[str, Any], seed: int) -> Features:
    """A function from inputs to features: built by name on a part of the data, or as given."""
    if callable(given):
        return given
    given = "rbf" if given is None else given
    if not isinstance(given, str):
        raise ValueError(
            f"{name} must be the name of a builder ({', '.join(_BUILDERS)}) or a function of standardized "
            f"(state, action) rows, got {type(given).__name__}"
        )
    kind = require_choice(name, given, _BUILDERS)
    if name == "features" and kind == "random_fourier":
        raise ValueError("features='random_fourier' may be negative: use it for dual_features")
    rng = np.random.default_rng([seed, 6])
    rows = rng.permutation(len(samples.logged))[:FIT_ROWS]
    points = samples.logged[rows].astype(np.float64)
    if kind == "tile_coding":
        return tile_coding(points)
    n, n_dual = options["n_features"], options["n_dual_features"]
    if kind == "random_fourier":
        return random_fourier(points, n_features=n_dual, seed=seed)
    scale = median_distance(points, rng)
    if name == "dual_features":
        return Bumps(points, min(n, n_dual), scale, DUAL_WIDTHS, seed)
    return Bumps(_visited(samples, points, rows, rng), n, scale, RATIO_WIDTHS, seed)


def _visited(samples: PolicySamples, points: Floats, rows: Any, rng: np.random.Generator) -> Floats:
    """Those of the logged points that lie next to where the policy arrives or starts.

    tau is large there, and under a sharp policy that is a thin part of the log: bumps spread over all of it
    would be too wide to follow.
    """
    from scipy.spatial import cKDTree

    reached = [sampled_inputs(samples, samples.following, rows, rng)]
    if samples.starting is not None:
        firsts = rng.integers(0, len(samples.starting.states), max(1, len(rows) // 4))
        reached.append(sampled_inputs(samples, samples.starting, firsts, rng))
    _, nearest = cKDTree(points).query(np.vstack(reached))
    return points[np.unique(nearest)]


def _rows(name: str, features: Features, inputs: Any) -> Floats:
    """Features at some inputs, checked, as dense rows."""
    found = read_features(name, features(inputs), len(inputs), nonnegative=name == "features")
    matrix = found.scaled(np.ones(len(inputs)))
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def _expected(
    phi: Features,
    samples: PolicySamples,
    arrivals: Arrivals,
    options: dict[str, Any],
    rng: np.random.Generator,
) -> Floats:
    """Dual features at arrivals, averaged over the policy: exactly for discrete actions, else by samples."""
    rows = np.arange(len(arrivals.states))
    repeats = options["action_samples"] if samples.kind in ("gaussian", "sampled") else 1
    total: Any = 0.0
    for _ in range(repeats):
        inputs, weights = expected_inputs(samples, arrivals, rows, rng)
        for branch in range(inputs.shape[1]):
            features = _rows("dual_features", phi, inputs[:, branch])
            total = total + weights[:, branch, None] * features / repeats
    return np.asarray(total)


def _flow(samples: PolicySamples, n: int, firsts: int) -> Flow:
    """Rows, arrivals and initial states as the cells of a chain."""
    cells = 2 * n + firsts
    goes_on = np.zeros(cells)
    goes_on[:n] = ~(samples.absorbed | samples.restarted)
    total = np.zeros(cells)
    total[:n] = 1.0
    start = np.zeros(cells)
    if firsts:
        start[2 * n :] = 1.0 / firsts
    out = np.zeros((cells, 1))
    out[:n, 0] = samples.restarted
    ended = np.zeros(cells)
    ended[:n] = samples.absorbed
    chain = TransitionRows(
        np.minimum(np.arange(cells + 1), n).astype(np.int64),
        np.arange(n, 2 * n, dtype=np.int64),
        np.ones(n),
        total,
        goes_on,
        out,
        start[None, :],
    )
    initial = start if samples.gamma < 1.0 else np.zeros(cells)
    return Flow(samples.gamma, total / n, initial, chain, None, ended, False)
