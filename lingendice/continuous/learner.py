"""One pair of networks in training: their saddle point and options, where parameters lie, and the steps.

With z and y the outputs of the two networks, tau = out(z), f = dual(y), and batch means for expectations,

    J = (1 - gamma) E f(x0) + gamma E tau f(x') - E tau f - E c excess(f)
        + lambda (u (E nu tau - 1) - u^2 / 2) + rho / 2 E (tau - center)^2

is minimized over tau and maximized over f and u; c = tau for f-divergences and 1 for the weighted L2 norm of
GradientDICE. DualDICE (its nu is our f, its zeta our tau) is the case out = identity, no excess, lambda = 0,
rho = 1, center = 0.

References
----------
R. Zhang, B. Dai, L. Li, D. Schuurmans (2020). GenDICE: Generalized offline estimation of stationary values.
    ICLR.
D. P. Kingma, J. Ba (2015). Adam: A method for stochastic optimization. ICLR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.network import Network, read_widths
from lingendice.continuous.samples import Arrivals, PolicySamples, Singles
from lingendice.data.checks import (
    Floats,
    refuse_unknown,
    require_choice,
    require_flag,
    require_number,
    require_positive,
    require_whole,
)
from lingendice.divergences import FDivergence, require_divergence
from lingendice.divergences.base import CONJUGATES
from lingendice.kernels import ratio_step
from lingendice.kernels.parallel import run_all
from lingendice.kernels.ratio_step import GROUP, TILE, Gradients, Loss, Rates, SampleRows, Scratch, Shape

ACTIVATIONS = ("tanh", "relu")
OUTPUTS = ("square", "softplus", "exp", "identity")
BASES = ("auto", "none", "cloned")
CONSTRAINED = ("total_variation", "equality")
"""Divergences that hold f within a set, which networks do not keep."""
# -- options -----------------------------------------------------------------------------------------------

# Why the defaults are what they are. D is the divergence that is left at tau = 1, q / (p tau) the inflow of a
# cell over its mass, B the bound on |f|.
# - f has no unit: for chi-square f* = 2 (q / (p tau) - 1) whatever the rewards are, so B is a number. Beyond
#   |q / (p tau) - 1| = B / 2 the divergence is linear: gradients stop growing where networks err most.
# - At gamma = 1, J(c tau) = c D + lambda (c - 1)^2 / 2, so the mass ends at E tau = max(0, 1 - D / lambda).
#   With f free D is 7 on Reacher and 11 on HalfCheetah, and lambda = 1 collapses. With |f| <= B it is at most
#   2 B - B^2 / 4, and a cloned base leaves only what states differ by. E tau >= .9 takes lambda >= 10 D, and
#   the noise of u, which lambda multiplies, has to stay below B: lambda = 10 B.
# - A ridge of B / 10 keeps the ratio at its base where the log does not say otherwise.
# - Over a base f moves at B times the rate of tau, and each row is drawn some 230 times: a faster f and a
#   longer training both fit noise.
CLONED_BOUND, PLAIN_BOUND = 0.3, 1.0
"""B with a cloned base, and without one."""
PENALTY_OF_BOUND, RIDGE_OF_BOUND = 10.0, 0.1
FASTEST_DUAL = 3.0
"""Largest default rate of f, in units of that of tau."""
EPOCHS, FEWEST_STEPS, MOST_STEPS = 230, 500, 50_000
"""How often each row is drawn by default, and the limits of the steps that follow."""


@dataclass(frozen=True)
class NeuralOptions:
    """What ``options={...}`` may hold for ``method="gendice"``.

    With ``bound`` B (0.3 with a cloned base, else 1) the defaults of ``solve`` are ``penalty`` 10 B,
    ``ridge`` B / 10 with a cloned base and 0 without; without a policy f is free and the penalty 1.
    ``max_iter`` is 230 rows / ``batch`` within 500 and 50,000.
    ``preset="paper"`` is the paper's configuration: no base and no bound, penalty 1, batches of 2048, 10,000
    steps of plain Adam at rate 3e-3 for both networks.
    """

    preset: str = "default"
    """"default" or "paper": what the options that are left out are."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of tau and of f alike."""
    activation: str = "tanh"
    """Of hidden layers: "tanh" or "relu"."""
    output: str = "square"
    """What keeps tau nonnegative: "square", "softplus" or "exp"."""
    batch: int = 512
    learning_rate: float = 1e-3
    """Adam's, for tau."""
    dual_learning_rate: float | None = None
    """Adam's, for f; default that of tau times B with a cloned base, and times 3 without."""
    momentum: float = 0.0
    """Adam's decay of first moments; its usual 0.9 makes the iterates circle around a saddle point."""
    decay: bool = True
    """Lower the learning rates to zero along a half cosine over the planned steps."""
    clip: float = 1.0
    """Largest norm of each network's gradient; longer ones are scaled down."""
    average: float = 0.5
    """Share of the steps, at the end, whose tau parameters are averaged; 0 takes the last."""
    holdout: float = 0.1
    """Share of the episodes kept out of training, for the residual and the comparison with the base."""
    base: str = "auto"
    """"cloned": networks learn what the target over a cloned behavior does not explain; see ``clone.py``.
    "none": they learn all of tau. "auto" clones where the policy has a density."""
    ensemble: int = 1
    """Members, each with its own seed, trained side by side."""
    report_every: int | None = None
    """Steps between entries of ``history``; default a fiftieth of all."""
    standardize: bool = True
    checkpoint: str | Path | None = None
    """File (.npz) that holds the state of training, rewritten at every report."""
    resume: bool = False
    """Go on from ``checkpoint`` where it exists."""
    on_interrupt: str = "raise"

    def planned_steps(self, rows: int) -> int:
        """Steps where ``max_iter`` is left out."""
        if self.preset == "paper":
            return PAPER_STEPS
        return min(max(round(EPOCHS * rows / self.batch), FEWEST_STEPS), MOST_STEPS)


PAPER_STEPS = 10_000
PRESETS = {
    "default": NeuralOptions(),
    # Algorithm 1 as published: two layers of 64 tanh units, squares, Adam as it is, the last iterate.
    "paper": NeuralOptions(
        preset="paper", batch=2048, learning_rate=3e-3, dual_learning_rate=3e-3, momentum=0.9, decay=False,
        clip=1e30, average=0.0, base="none",
    ),
}  # fmt: skip
DUAL_DICE = NeuralOptions(output="identity", batch=2048, dual_learning_rate=3e-3, base="none")
"""The defaults of ``neural_dual_dice``."""


def _share(name: str, value: Any) -> float:
    """A number in [0, 1)."""
    share = require_number(name, value, at_least=-math.inf)
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {value!r}")
    return share


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "hidden": read_widths,
    "activation": partial(require_choice, choices=ACTIVATIONS),
    "output": partial(require_choice, choices=OUTPUTS),
    "base": partial(require_choice, choices=BASES),
    **dict.fromkeys(("batch", "ensemble", "report_every"), partial(require_whole, at_least=1)),
    **dict.fromkeys(("learning_rate", "dual_learning_rate", "clip"), require_positive),
    **dict.fromkeys(("average", "holdout", "momentum"), _share),
    **dict.fromkeys(("decay", "standardize", "resume"), require_flag),
}


def read_neural_options(
    given: Mapping[str, Any] | None, defaults: NeuralOptions | None = None
) -> NeuralOptions:
    """Check every entry and fill in the rest, from ``defaults`` or from the preset that is named."""
    given = dict(given or {})
    if defaults is None:
        defaults = PRESETS[
            require_choice("options['preset']", given.get("preset", "default"), tuple(PRESETS))
        ]
    refuse_unknown(given, vars(defaults), "for method='gendice'")
    for name, value in given.items():
        if name in _READERS and (value is not None or getattr(defaults, name) is not None):
            given[name] = _READERS[name](f"options[{name!r}]", value)
    options = replace(defaults, **given)
    if options.resume and options.checkpoint is None:
        raise ValueError("options['resume'] needs options['checkpoint'], the file to go on from")
    return options


class Objective(NamedTuple):
    """One saddle point of the family above: what it is called, and its terms as the kernels take them."""

    divergence: str
    output: str
    loss: Loss


def gendice_terms(
    options: NeuralOptions,
    penalty: float | None,
    ridge: float | None,
    bound: float | None,
    chain: bool = False,
) -> tuple[float, float, float | None]:
    """(penalty, ridge, bound) of GenDICE, those that are left out by the preset and the base.

    A chain without a policy has no ratio of actions: D is small, and a free f finds tails that a bounded one
    leaves.
    """
    if options.preset == "paper" or chain:
        return 1.0 if penalty is None else penalty, ridge or 0.0, bound
    cloned = options.base == "cloned"
    if bound is None:
        bound = CLONED_BOUND if cloned else PLAIN_BOUND
    if ridge is None:
        ridge = RIDGE_OF_BOUND * bound if cloned else 0.0
    return PENALTY_OF_BOUND * bound if penalty is None else penalty, ridge, bound


def gendice(
    gamma: float, divergence: Any, output: str, penalty: float, ridge: float, bound: float | None
) -> Objective:
    """GenDICE's objective for an f-divergence."""
    divergence = require_divergence(divergence)
    if not isinstance(divergence, FDivergence) or divergence.name in CONSTRAINED:
        known = ", ".join(name for name in CONJUGATES if name not in CONSTRAINED)
        raise ValueError(
            f"{divergence.name} needs a constrained f, which networks do not keep; use one of {known}"
        )
    if output == "identity" and divergence.weighs_by_ratio:
        raise ValueError(
            "options['output']='identity' lets tau be negative, where the objective is not concave in f; use "
            "'square', 'softplus' or 'exp', or divergence='weighted_l2'"
        )
    limited = divergence.default_bound if math.isinf(divergence.dual_limit) else math.inf
    loss = Loss(
        gamma=float(gamma),
        code=divergence.code,
        by_ratio=divergence.weighs_by_ratio,
        output=OUTPUTS.index(output),
        penalty=float(penalty),
        ridge=float(ridge),
        center=1.0,
        bound=limited if bound is None else float(bound),
        limit=divergence.dual_limit,
    )
    return Objective(divergence.name, output, loss)


def dual_dice(gamma: float) -> Objective:
    """DualDICE with squares: min over nu of E (nu - gamma nu')^2 / 2 - (1 - gamma) E nu(x0)."""
    loss = Loss(
        gamma=float(gamma),
        code=CONJUGATES.index("equality"),
        by_ratio=False,
        output=OUTPUTS.index("identity"),
        penalty=0.0,
        ridge=1.0,
        center=0.0,
        bound=math.inf,
        limit=math.inf,
    )
    return Objective("DualDICE", "identity", loss)


# -- the networks ------------------------------------------------------------------------------------------


def start(network: Network, rng: np.random.Generator, bias: float, output_scale: float = 0.1) -> Singles:
    """Random parameters, uniform in +- sqrt(6 / (in + out)).

    Those of the last layer are small, so that the output begins near ``bias``.
    """
    parameters = np.zeros(network.size, dtype=np.float32)
    layers = network.layers(parameters)
    for weights, _ in layers:
        limit = math.sqrt(6.0 / sum(weights.shape)) * (output_scale if weights is layers[-1][0] else 1.0)
        weights[:] = rng.uniform(-limit, limit, weights.shape)
    layers[-1][1][:] = bias
    return parameters


_KINDS = {
    "none": ratio_step.ACT_NONE,
    "discrete": ratio_step.ACT_DISCRETE,
    "gaussian": ratio_step.ACT_GAUSSIAN,
    "sampled": ratio_step.ACT_GIVEN,
}
_START = {"square": 1.0, "softplus": math.log(math.e - 1.0), "exp": 0.0, "identity": 1.0}
"""Output of the network at which tau is 1."""


class Batches:
    """Samples in the layout that the kernels gather from; shared by all members of an ensemble."""

    def __init__(self, samples: PolicySamples) -> None:
        self.samples = samples
        n = len(samples.logged)
        starting = samples.starting or Arrivals(
            np.empty(0), np.zeros((1, samples.n_states_in), np.float32), samples.following.action[:1]
        )
        n_firsts = 0 if samples.starting is None else len(starting.states)
        flags = np.full(n, ratio_step.FLOWS, dtype=np.int8)
        flags[samples.absorbed] = ratio_step.ABSORBED
        flags[samples.restarted] = ratio_step.RESTARTED
        self.rows = SampleRows(
            Shape(
                n, n_firsts, samples.n_inputs, samples.n_states_in, samples.n_actions_in,
                _KINDS[samples.kind], samples.n_branches, int(samples.restarted.sum()),
            ),
            np.hstack([samples.logged, _as_inputs(samples, samples.following)]).ravel(),
            _as_inputs(samples, starting).ravel(),
            np.ascontiguousarray(samples.following.action).ravel(),
            np.ascontiguousarray(starting.action).ravel(),
            samples.noise,
            flags,
            samples.mass_weight.astype(np.float32),
        )  # fmt: skip


def _as_inputs(samples: PolicySamples, arrivals: Arrivals) -> Singles:
    """States, and in the place of actions the means of Gaussian ones, else zeros."""
    inputs = np.zeros((len(arrivals.states), samples.n_inputs), dtype=np.float32)
    inputs[:, : samples.n_states_in] = arrivals.states
    if samples.kind == "gaussian":
        inputs[:, samples.n_states_in :] = arrivals.action
    return inputs


class Learner:
    """tau, f and u, the moments of Adam, and the average of tau; bits depend on the seed alone."""

    def __init__(
        self, batches: Batches, network: Network, objective: Objective, options: NeuralOptions, steps: int,
        seed: int,
    ) -> None:  # fmt: skip
        self.batches, self.network, self.objective, self.options = batches, network, objective, options
        self.seed = seed
        rng = np.random.default_rng([seed, 1])
        self.tau_parameters = start(network, rng, _START[objective.output])
        self.f_parameters = start(network, rng, 0.0)
        self.mean = self.tau_parameters.copy()
        self.moments = np.zeros((2, 2, network.size), dtype=np.float32)
        self.state = np.zeros(5)
        groups = -(-options.batch // GROUP)
        to_tau, to_f = np.zeros((2, groups, network.size), dtype=np.float32)
        self._gradients = Gradients(to_tau, to_f, np.zeros(groups))
        self._rates = Rates(
            options.learning_rate,
            options.dual_learning_rate or options.learning_rate * self._dual_pace,
            options.clip,
            float(steps),
            steps * (1.0 - options.average) if options.average > 0 else math.inf,
            float(options.decay),
            options.momentum,
        )
        self._works: list[Scratch] = []

    @property
    def _dual_pace(self) -> float:
        """Default rate of f, in units of that of tau."""
        cloned = self.options.base == "cloned"
        return min(self.objective.loss.bound, FASTEST_DUAL) if cloned else FASTEST_DUAL

    @property
    def step(self) -> int:
        """Steps taken."""
        return int(self.state[3])

    @property
    def u(self) -> float:
        """Multiplier of the normalization."""
        return float(self.state[0])

    # -- training ------------------------------------------------------------------------------------

    def advance(self, steps: int, threads: int = 1) -> None:
        """Take some steps; with threads, the groups of each step run side by side."""
        for _ in range(steps):
            self.add_gradients(threads)
            ratio_step.finish_step(
                self.options.batch, self._rates, self.tau_parameters, self.f_parameters, self._gradients,
                self.moments, self.mean, self.state,
            )  # fmt: skip

    def add_gradients(self, threads: int = 1) -> Gradients:
        """Gradients of the next step's batch, group by group."""
        nothing = np.zeros(1, dtype=np.float32)
        given = self._draw_actions() if self.batches.samples.kind == "sampled" else (nothing, nothing)
        common = (
            (self.seed, self.step), self.options.batch, self.objective.loss, self.u, self.batches.rows,
            self.network.net(self.tau_parameters), self.network.net(self.f_parameters), self._gradients,
            given,
        )  # fmt: skip
        groups = self._gradients.mass.size
        threads = min(threads, groups)
        cuts = [groups * k // threads for k in range(threads + 1)]
        while len(self._works) < threads:
            self._works.append(self._new_work())
        run_all(
            [
                partial(ratio_step.add_gradients, cuts[k], cuts[k + 1], *common, self._works[k])
                for k in range(threads)
            ],
            threads,
        )
        return self._gradients

    def _draw_actions(self) -> tuple[Singles, Singles]:
        """Actions of a policy that only the interpreter can sample, at the rows that the next step draws."""
        samples, batch = self.batches.samples, self.options.batch
        rng = np.random.default_rng([self.seed, 2, self.step])
        rows, firsts, restarts = np.empty((3, batch), dtype=np.int64)
        shape, flags = self.batches.rows.shape, self.batches.rows.flags
        ratio_step.draw_rows(
            self.seed, self.step, batch, shape.n_rows, shape.n_firsts, flags, rows, firsts, restarts
        )
        following = samples.draw(samples.following, rows, rng)
        if samples.starting is None:
            return following.ravel(), following[0]
        again = np.flatnonzero(restarts >= 0)
        if again.size:
            following[again] = samples.draw(samples.starting, restarts[again], rng)
        starting = samples.draw(samples.starting, firsts, rng) if samples.gamma < 1.0 else following[0]
        return following.ravel(), starting.ravel()

    def _new_work(self) -> Scratch:
        """Scratch of one thread."""
        samples, network = self.batches.samples, self.network
        branches = samples.n_branches
        rows = TILE * (1 + 2 * branches)
        normals = TILE * (samples.n_actions_in + 1)
        integers = np.zeros((2, normals), dtype=np.int32)

        def room(*shape: int) -> Singles:
            return np.zeros(shape, dtype=np.float32)

        def rooms(width: int) -> tuple[Singles, Singles]:
            return room(rows * width), room(TILE * width)

        return Scratch(
            inputs=room(rows * network.n_inputs),
            hidden=rooms(network.hidden_width),
            slopes=rooms(network.hidden_width),
            out=room(2, rows),
            delta=rooms(network.widest),
            spare=room(rows * network.widest),
            weights=room(2, TILE * branches),
            noise=room(2, normals),
            integers=integers,
            as_floats=integers.view(np.float32),
            indices=np.zeros((3, TILE), dtype=np.int64),
        )

    # -- what was learned -----------------------------------------------------------------------------

    @property
    def is_finite(self) -> bool:
        """Whether all parameters are numbers."""
        return bool(np.isfinite(self.tau_parameters.sum() + self.f_parameters.sum() + self.state.sum()))

    @property
    def best_parameters(self) -> Singles:
        """Of tau: the averaged ones once there are any."""
        return self.mean if self.state[4] > 0 else self.tau_parameters

    def tau(self, inputs: Singles) -> Floats:
        """The ratio at given inputs."""
        return ratio_at(self.network, self.objective.output, self.best_parameters, inputs)

    # -- to and from a file --------------------------------------------------------------------------

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "tau": self.tau_parameters,
            "f": self.f_parameters,
            "mean": self.mean,
            "tau_moments": self.moments[0],
            "f_moments": self.moments[1],
            "state": self.state,
        }

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Copies of all that training changes."""
        return {name: values.copy() for name, values in self._arrays().items()}

    def restore(self, held: dict[str, NDArray[Any]]) -> None:
        """Go back to a snapshot; training goes on from it to the bit."""
        for name, values in self._arrays().items():
            values[...] = held[name]


def ratio_at(network: Network, output: str, parameters: Singles, inputs: Singles) -> Floats:
    """tau at rows of inputs."""
    z = network.outputs(parameters, inputs)[:, 0].astype(np.float64)
    if output == "square":
        return z * z
    if output == "softplus":
        return np.logaddexp(0.0, z)
    return np.exp(np.minimum(z, 20.0)) if output == "exp" else z
