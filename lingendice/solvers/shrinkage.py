"""Off-policy evaluation that assumes nothing about the target: advantages shrunk to a regression.

Let k = n(s, a), n = n(s), and let y = r + gamma V(s') be what a logged transition is worth. Action values are

    Q(s, a) = V_b(s) + A(s, a),        V_b(s) the mean of y over all transitions of s,

and the advantage A(s, a) is the cell's own mean, shrunk with a weight of kappa transitions toward a
prediction delta(s, a). Cells without transitions rest on V_b + delta alone. This is the same as following

    W(a|s) = pi (1 - g(s, a)) + (k / n) sum_a' pi(a'|s) g(s, a'),      g = kappa / (k + kappa)

a policy on logged actions whose rows sum to 1, with rho(s) = sum_a pi g delta added to the reward, so that
the library's solvers apply:  value = distribution . (r_W + rho).

delta is a regression of leave-one-out advantages (y - V_b) n / (n - 1) on how rarely the action was logged,
how likely the target takes it, and whether it would be unseen without this transition: cells seen once stand
for cells never seen (Good and Turing). It is multiplied by how far it predicts states that it was not
fitted to: each state is predicted from all others, whatever their numbers. kappa is the ratio of the noise
within cells to the differences between them, at most 1; without noise it is 0 and only cells never seen are
filled in. Differences that are no more than rounding count as none, in any unit of reward.

For gamma < 1 the equation is solved exactly. So it is where episodes end, with the ends absorbed: the
estimate at gamma = 1 is the limit of those for gamma < 1, Q is a return and not relative to the value, and
distribution . (r_W + rho) times the length of an episode is its return. States from which no logged step of
the effective policy leads to an end would hold mass for ever: at gamma = 1 one visit in n + 1 leaves them
for what follows a random transition of the log (:func:`lingendice.solvers.absorbing.open_traps`), and their
mass counts as unknown.

At gamma = 1 without ends small samples have spurious traps, which a ridge e = 1 / N removes.
Its bias is extrapolated away (Richardson) over e, e / 10 and e / 100; where the last step changes more than
the one before, a trap has opened, and the first two are used. Very close to 1 the discount is no help
against traps: there e = 1 / N - 10 (1 - gamma)^2 where that is positive, and traps of logs with ends are left
at the rate 1 / (n + 1) - N (1 - gamma), so that the estimate goes over into that of gamma = 1.

All sums over transitions are sums over the entries of the counts: y is affine in the reward and in
V(s'), and the leave-one-out terms are affine in y within a cell. Two rounds of one solve, one adjoint solve
and O(nnz) sums.

References
----------
Good (1953), The population frequencies of species and the estimation of population parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_policy
from lingendice.data.counts import Counts
from lingendice.data.rows import row_of_entry, row_sums
from lingendice.model.compose import Choices, checked_behavior, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers import control
from lingendice.solvers.absorbing import find_traps, open_traps, visits_of_an_episode, with_more_ends
from lingendice.solvers.adjoint import solve_adjoint
from lingendice.solvers.control import Controls
from lingendice.solvers.ridge import RidgeFit, RidgeSystem
from lingendice.solvers.stationary import stationary_distributions

ROUNDS = 2
PENALTY = 3.0
"""Ridge of the regression, in effective observations; 1 to 10 measure the same."""
RARE = 0.02
"""Added to the target's probabilities before their logarithm is taken."""
OWN_COUNT = 0.8
"""Of its own count, what is taken from a cell's when its transitions are weighted."""
STEP = 10.0
"""Each ridge of the extrapolation is smaller than the one before by this factor."""
ALONE = 10.0
"""No ridge where ALONE (1 - gamma)^2 is above 1 / N; at gamma = 0.99 from 1,000 transitions on."""
NO_NOISE = 1e-9
ROUNDING = 1e-13
"""Of the largest number that outcomes are computed from: differences below it are none."""
ROUGH = 1e-8
"""Accuracy of solves that only serve the regression and the extrapolation."""


@dataclass(frozen=True, eq=False)
class Shrinkage:
    """The estimate, and what its interval and its checks need."""

    operator: EmpiricalOperator
    """Of the effective policy ``operator.policy``: logged actions, rows that sum to 1."""
    target: Floats
    """The policy asked for, states by actions."""
    value: float
    state_distribution: Floats
    values: Floats
    """V over states: what one unit of mass is worth (relative to the value at gamma = 1)."""
    extra_reward: Floats
    """rho over states: what the regression adds to the reward of the effective policy."""
    prior_share: Floats
    """g(s, a): the share of each cell's advantage that is left to the regression."""
    delta: Floats
    """The regression's prediction for every cell, gate included."""
    kappa: float
    gate: float
    """How much of the regression was kept, 0 to 1."""
    ridge: float
    ridge_error: float
    """How far that extrapolation may be off, or what ends added to the log may bring as bias."""
    outcome: Outcome
    regression: Regression
    reward_bounds: tuple[float, float]
    """Smallest and largest logged reward, as far as the counts keep single ones."""
    behavior: Floats | None
    """Where it was given."""
    solved: control.Outcome
    """How the last distribution was found; converged where every solve on the way was."""
    length: float | None
    """Expected visits of one episode, at gamma = 1 with ends; None elsewhere."""
    trap_exits: Floats
    """Share of the visits to each state that leave it because no logged step leads on to an end."""
    added_ends: float
    """Ends that were added to those of the log, anywhere in it."""

    @property
    def counts(self) -> Counts:
        """The data."""
        return self.operator.counts

    @property
    def gamma(self) -> float:
        """The discount."""
        return self.operator.gamma

    @cached_property
    def visited(self) -> NDArray[np.bool_]:
        """States with outgoing transitions."""
        visited: NDArray[np.bool_] = self.state_count > 0
        return visited

    @cached_property
    def cell_count(self) -> Floats:
        """k over states and actions."""
        return self.counts.cell_count.reshape(self.target.shape).astype(float)

    @cached_property
    def state_count(self) -> Floats:
        """n over states."""
        return self.cell_count.sum(axis=1)

    @cached_property
    def leak(self) -> float:
        """Mass on states without outgoing transitions."""
        return float(self.state_distribution[~self.visited].sum())

    @property
    def identified(self) -> float:
        """1 - leak: what the value divides by."""
        return 1.0 - self.leak

    @cached_property
    def trapped(self) -> float:
        """Mass on visited states from which no logged step of the effective policy leads to an end."""
        return float(self.state_distribution[self.trap_exits > 0.0].sum())

    @property
    def steps(self) -> float | None:
        """What the value per step is multiplied by to give the return of an episode; None without ends."""
        return None if self.length is None else self.length * self.identified

    @cached_property
    def terminal_mass(self) -> float:
        """Mass that has ended in terminal states; 0 where they restart."""
        ended = float(self.operator.spread(self.state_distribution) @ self.operator.ended)
        return self.gamma * ended / (1.0 - self.gamma) if self.gamma < 1.0 else 0.0

    @cached_property
    def mass(self) -> float:
        """Share of the identified mass that earns rewards: 1, or less where terminals absorb.

        Mass on states without outgoing transitions is in neither part: the value divides by 1 - leak.
        """
        return _earning_share(self.state_distribution, self.visited)

    @cached_property
    def mass_without_loops(self) -> Floats:
        """The distribution; in states whose one transition leads back to them, the mass that arrives there.

        Without a transition the value changes by (mass of its state without it) (y - Q). That mass is nearly
        the mass with it, except where the transition is what keeps it: for 1 / (1 - gamma) steps.
        """
        counts, distribution, gamma = self.counts, self.state_distribution, self.gamma
        once = np.flatnonzero(counts.count == 1)
        state = row_of_entry(counts.indptr)[once] // self.target.shape[1]
        state = state[(counts.indices[once] == state) & (self.state_count[state] == 1.0)]
        if not state.size:
            return distribution
        arriving = gamma * (self.operator.chain.apply_transpose(distribution) - distribution)
        if gamma < 1.0 and self.operator.initial is not None:
            arriving += (1.0 - gamma) * self.operator.initial
        mass = distribution.copy()
        mass[state] = np.clip(arriving[state], 0.0, distribution[state])
        return mass

    @cached_property
    def filled_mass(self) -> Floats:
        """Target mass of each cell that rests on the regression alone."""
        mass = self.state_distribution[:, None] * self.target * self.prior_share
        return np.where(self.visited[:, None], mass, 0.0) / self.identified


class Outcome(NamedTuple):
    """y = r + gamma V(s') (minus the value at gamma = 1): its moments by entry, cell and state."""

    entry_mean: Floats
    entry_squares: Floats
    """Sum of squared deviations from the entry's mean."""
    cell_mean: Floats
    cell_squares: Floats
    """Sum of squared deviations from the cell's mean."""
    state_mean: Floats
    """V_b."""
    ending: float
    """Value after a terminal transition."""


class Regression(NamedTuple):
    """The regression of leave-one-out advantages, over the logged cells ``cells``."""

    cells: NDArray[np.int64]
    features: Floats
    """Of one transition of each cell, as if it were new."""
    fill_features: Floats
    """Of every cell, for one transition more."""
    weight: Floats
    """Of one transition of each cell; over all transitions they sum to the effective sample."""
    hessian: Floats
    coefficients: Floats
    """Gate included."""
    gate: float
    spread: float
    """Root mean square of the leave-one-out advantages."""


def shrink(
    counts: Counts, choices: Choices, controls: Controls | None = None, added_ends: float = 0.0
) -> Shrinkage:
    """Estimate the value of ``choices.policy`` from transitions with actions.

    They have rewards unless ``choices.reward`` is given; its ratio, unseen and clone are set here. At
    gamma = 1 with ends, ``added_ends`` are added to those of the log, anywhere in it.
    """
    estimate = _Estimate(counts, choices, controls or Controls(tol=1e-8), added_ends)
    prior, kappa = np.zeros_like(estimate.target), 1.0
    for last in [False] * (ROUNDS - 1) + [True]:
        round_ = estimate.solve(kappa, prior, estimate.controls if last else estimate.rough)
        regression = estimate.regress(round_)
        prior = (regression.fill_features @ regression.coefficients).reshape(prior.shape)
        if not last:
            kappa = estimate.shrinkage_strength(round_)
    return estimate.finish(round_, regression, prior, kappa)


class _Round(NamedTuple):
    """One solve with its adjoint."""

    operator: EmpiricalOperator
    distribution: Floats
    prior_share: Floats
    values: Floats
    outcome: Outcome


class _Estimate:
    """What stays the same from round to round."""

    def __init__(self, counts: Counts, choices: Choices, controls: Controls, added_ends: float = 0.0) -> None:
        if counts.n_actions is None or choices.policy is None:
            raise ValueError("shrinkage needs actions and a policy; pass policy=, and counts with action=")
        self.counts, self.controls = counts, controls
        self.rough = replace(controls, tol=max(controls.tol, ROUGH))
        self.target = require_policy("policy", choices.policy, counts.n_states, counts.n_actions)
        self.choices = choices._replace(behavior=None, ratio="state", unseen="renormalize", clone=0.0)
        self.k = counts.cell_count.astype(float)
        self.logged = self.k.reshape(self.target.shape)
        self.n = self.logged.sum(axis=1)
        self.behavior: Floats | None = None
        if choices.behavior is not None:
            self.behavior = checked_behavior(self.target, self.logged, choices)
        self.cell_of_entry = row_of_entry(counts.indptr)
        composed = compose(counts, self.choices)
        by_cell = composed.reward
        if by_cell is None:
            raise ValueError("the data hold no rewards, so there is no value; pass reward=")
        self.reward, self.reward_squares = _rewards_of_entries(
            counts, choices.reward is not None, by_cell, self.cell_of_entry
        )
        self.cell_reward = _mean_by_row(counts, self.reward)
        # Where they restart at gamma = 1, the distribution is that of episodes one after the other: the same.
        self.ends = bool(composed.ended.any()) or (counts.has_terminals and choices.gamma == 1.0)
        self.ridge = 0.0 if self.ends else _ridge(choices.gamma, float(counts.total))
        self.added_ends = added_ends if self.ends and choices.gamma == 1.0 else 0.0
        self.length: float | None = None
        self.trap_exits = np.zeros(counts.n_states)
        self.fit: RidgeFit | None = None
        self.outcomes: list[control.Outcome] = []
        self._prepare_features()

    # -- solves -------------------------------------------------------------------------------------

    def solve(self, kappa: float, prior: Floats, controls: Controls) -> _Round:
        """Distribution of the effective policy and values of its states."""
        k, n = self.logged, self.n[:, None]
        share = np.where(k > 0, kappa / np.where(k > 0, k + kappa, 1.0), 1.0)
        moved = (self.target * share).sum(axis=1, keepdims=True)
        policy = np.where(n > 0, self.target * (1.0 - share) + moved * k / np.maximum(n, 1e-300), self.target)
        operator = compose(self.counts, self.choices._replace(policy=policy))
        reward = operator.gather(self.cell_reward) + (self.target * share * prior).sum(axis=1)
        if self.ridge > 0.0:
            distribution, values, value = self._solve_ridge(operator, reward, controls)
        else:
            distribution, values, value = self._solve_exactly(operator, reward, controls)
        outcome = self._outcomes(operator, values, value)
        return _Round(operator, distribution, share, values, outcome)

    def _solve_exactly(
        self, operator: EmpiricalOperator, reward: Floats, controls: Controls
    ) -> tuple[Floats, Floats, float]:
        chain, gamma, value = operator.chain, operator.gamma, 0.0
        if self.ends:
            chain = self._ending(chain)
        if self.ends and gamma == 1.0:
            assert operator.initial is not None
            visits, outcome = visits_of_an_episode(chain, operator.initial, "auto", controls)
            self.length = float(visits.sum())
            found = visits / self.length
        else:
            distributions = stationary_distributions(chain, gamma, operator.initial, False, "auto", controls)
            assert distributions.single is not None
            found, outcome = distributions.single, distributions.outcome
            # States without outgoing transitions earn the value: the same as dividing by the identified mass.
            value = _ratio(found, reward, self.n > 0)
        self.outcomes.append(outcome)
        earned = np.where(self.n > 0, reward, value)
        tol, threads = self.rough.tol, controls.threads
        with self._limited() as monitor:
            return found, solve_adjoint(chain, gamma, earned, found, tol, threads, monitor), 0.0

    def _ending(self, chain: TransitionRows) -> TransitionRows:
        """The chain with its ends absorbed, traps opened, and the ends added that were asked for."""
        counts, gamma, visited, total = self.counts, self.choices.gamma, self.n > 0, float(self.counts.total)
        # At gamma = 1 ends of the operator restart; a visited state falls back to nothing else.
        chain = replace(chain, out=np.where(visited[:, None], 0.0, chain.out))
        rate = np.maximum(1.0 / (self.n + 1.0) - total * (1.0 - gamma), 0.0)
        if rate.any():
            self.trap_exits = np.where(visited & find_traps(chain), rate, 0.0)
        if self.trap_exits.any():
            goes_on = counts.indices < counts.n_states
            arrivals = np.bincount(
                counts.indices[goes_on],
                weights=counts.count[goes_on].astype(float),
                minlength=counts.n_states,
            )
            chain = open_traps(chain, self.trap_exits, arrivals / total)
        return (
            with_more_ends(chain, self.added_ends / (total + self.added_ends)) if self.added_ends else chain
        )

    @contextmanager
    def _limited(self) -> Iterator[control.Monitor]:
        """The limits of the call for an adjoint solve; one that they end counts against the last outcome."""
        with control.watch(self.rough) as monitor:
            yield monitor
        if monitor.stopped is not None:
            self.outcomes[-1] = replace(self.outcomes[-1], converged=False, stopped=monitor.stopped)

    def _solve_ridge(
        self, operator: EmpiricalOperator, reward: Floats, controls: Controls
    ) -> tuple[Floats, Floats, float]:
        system = RidgeSystem(operator, self.ridge)
        fit = system.solve(controls, None if self.fit is None else self.fit.y)
        self.fit = fit
        self.outcomes.append(fit.outcome)
        distribution = fit.row_distribution
        value = _ratio(distribution, reward, self.n > 0)
        surplus = np.where(self.n > 0, reward - value, 0.0)
        with self._limited() as monitor:
            values = system.adjoint(surplus, fit.free, self.rough.tol, monitor).values
        if operator.gamma < 1.0:
            return distribution, values + value / (1.0 - operator.gamma), 0.0
        return distribution, values, value

    def _outcomes(self, operator: EmpiricalOperator, values: Floats, value: float) -> Outcome:
        counts = self.counts
        restarts = counts.has_terminals and not self.ends and operator.initial is not None
        ending = float(operator.initial @ values) if restarts and operator.initial is not None else 0.0
        after = np.append(values, ending)[counts.indices]
        mean = self.reward - value + operator.gamma * after
        cell_mean = _mean_by_row(counts, mean)
        by_state = (self.k * cell_mean).reshape(self.target.shape).sum(axis=1)
        state_mean = by_state / np.where(self.n > 0, self.n, 1.0)
        # What differs by rounding alone is equal: the ratio of two roundings would decide kappa and the gate.
        rounding = ROUNDING * max(float(np.abs(column).max(initial=0.0)) for column in (self.reward, after))
        state_of_cell = np.repeat(state_mean, self.target.shape[1])
        cell_mean = np.where(np.abs(cell_mean - state_of_cell) <= rounding, state_of_cell, cell_mean)
        of_cell = cell_mean[self.cell_of_entry]
        mean = np.where(np.abs(mean - of_cell) <= rounding, of_cell, mean)
        noise = np.where(self.reward_squares <= counts.count * rounding**2, 0.0, self.reward_squares)
        return Outcome(
            entry_mean=mean,
            entry_squares=noise,
            cell_mean=cell_mean,
            cell_squares=row_sums(counts.indptr, counts.count * (mean - of_cell) ** 2 + noise),
            state_mean=state_mean,
            ending=ending,
        )

    # -- regression -----------------------------------------------------------------------------------

    def _prepare_features(self) -> None:
        n_actions = self.target.shape[1]
        actions = self.logged.sum(axis=0)
        # Actions that nobody takes are as good as not declared.
        taken = (actions > 0) | (self.target > 0).any(axis=0)
        self.marginal = (actions + 0.5) / (actions.sum() + 0.5 * np.count_nonzero(taken))
        every = np.arange(self.k.size)
        self.cells = np.flatnonzero(self.k > 0)
        self.state = self.cells // n_actions
        k, n = self.k[self.cells], self.n[self.state]
        self.features = self._features(self.cells, np.maximum(k - 1.0, 0.0), n - 1.0)
        self.fill_features = self._features(every, self.k, self.n[every // n_actions])
        self.donor = n >= 2.0
        self.again = np.where(self.donor, n / np.where(self.donor, n - 1.0, 1.0), 0.0)

    def _features(self, cells: NDArray[np.int64], k: Floats, n: Floats) -> Floats:
        """How often the behavior takes the action, how often the target does, and whether it is unseen."""
        if self.behavior is None:
            logged = (k + self.marginal[cells % self.target.shape[1]]) / (np.maximum(n, 0.0) + 1.0)
        else:
            given = self.behavior.reshape(-1)
            # Rarer than anything logged would be far outside of what the regression has seen.
            logged = np.maximum(given[cells], given[self.k > 0].min())
        wanted = self.target.reshape(-1)[cells]
        # The logarithm tells rare actions of the target from those it hardly takes, but not frequent ones.
        likely = (np.log(wanted + RARE) + 2.0, 2.0 * wanted)
        columns = (np.ones(cells.size), np.log(logged) + 1.5, *likely, k == 0.0)
        return np.stack(columns, axis=1).astype(float)

    def regress(self, found: _Round) -> Regression:
        """Fit the leave-one-out advantages, gated by how well they are predicted in other states."""
        k, x = self.k[self.cells], self.features
        total, squares = self._advantages(found.outcome)
        weight = self._weights(found, k)
        moments = (weight * k)[:, None] * x
        hessian = PENALTY * np.eye(x.shape[1]) + moments.T @ x
        right = x.T @ (weight * total)
        predicted = self._from_other_states(moments, weight * total, hessian, right)
        agreement = np.bincount(self.state, weights=weight * total * predicted)
        gate, gained = 0.0, float(agreement.sum())
        if gained > 0.0:
            gate = max(0.0, 1.0 - float((agreement**2).sum()) / gained**2)
        effective = float((weight * k).sum())
        return Regression(
            cells=self.cells,
            features=x,
            fill_features=self.fill_features,
            weight=weight,
            hessian=hessian,
            coefficients=gate * np.linalg.solve(hessian, right),
            gate=gate,
            spread=float(np.sqrt((weight * squares).sum() / effective)) if effective > 0 else 0.0,
        )

    def _from_other_states(
        self, moments: Floats, weighted_total: Floats, hessian: Floats, right: Floats
    ) -> Floats:
        """What the regression on all other states predicts for each logged cell. O(cells)."""
        x = self.features
        begin = np.flatnonzero(np.diff(self.state, prepend=-1))  # of each state's cells
        own_right = np.add.reduceat(weighted_total[:, None] * x, begin)
        own = np.stack([np.add.reduceat(moments * column[:, None], begin) for column in x.T], axis=1)
        others = np.linalg.solve(hessian - own, (right - own_right)[:, :, None])[:, :, 0]
        cells_of_state = np.diff(begin, append=self.state.size)
        predicted: Floats = np.einsum("ci,ci->c", x, np.repeat(others, cells_of_state, axis=0))
        return predicted

    def _advantages(self, outcome: Outcome) -> tuple[Floats, Floats]:
        """Sums over each logged cell of the leave-one-out advantages and of their squares."""
        k = self.k[self.cells]
        gap = outcome.cell_mean[self.cells] - outcome.state_mean[self.state]
        total = k * gap * self.again
        return total, (outcome.cell_squares[self.cells] + k * gap**2) * self.again**2

    def _weights(self, found: _Round, k: Floats) -> Floats:
        """Root of the target's mass over the count without the transition itself."""
        mass = np.maximum(found.distribution[self.state] * self.target.reshape(-1)[self.cells], 0.0)
        weight = np.where(self.donor, np.sqrt(mass) / np.maximum(k - OWN_COUNT, 1.0 - OWN_COUNT), 0.0)
        if not weight.sum() > 0.0:
            weight = self.donor.astype(float)
        squares = float((k * weight**2).sum())
        return weight * (float((k * weight).sum()) / squares) if squares > 0.0 else weight

    def shrinkage_strength(self, found: _Round) -> float:
        """Variance of y within cells over the mean product of two advantages of one cell, at most 1."""
        k = self.k[self.cells]
        total, squares = self._advantages(found.outcome)
        mass = found.distribution[self.state] * self.target.reshape(-1)[self.cells] / (k + 1.0)
        twice = k >= 2.0
        pairs = twice & (self.n[self.state] >= 3.0)
        if not (mass * twice).sum() > 0.0:
            return 1.0
        spare = np.where(twice, k - 1.0, 1.0)
        noise = mass * found.outcome.cell_squares[self.cells] / spare
        signal = mass * (total**2 - squares) / (k * spare)
        noise_level = float(noise[twice].sum() / mass[twice].sum())
        signal_level = 0.0
        if mass[pairs].sum() > 0.0:
            signal_level = max(float(signal[pairs].sum() / mass[pairs].sum()), 0.0)
        kappa = min(1.0, noise_level / max(signal_level, 1e-300))
        return kappa if kappa > NO_NOISE else 0.0

    # -- the end ------------------------------------------------------------------------------------------

    def finish(self, found: _Round, regression: Regression, prior: Floats, kappa: float) -> Shrinkage:
        """The value from the last round's distribution and the last regression."""
        extra = np.where(self.n > 0, (self.target * found.prior_share * prior).sum(axis=1), 0.0)
        reward = found.operator.gather(self.cell_reward) + extra
        value, correction, ridge_error = _ratio(found.distribution, reward, self.n > 0), 0.0, 0.0
        if self.ridge > 0.0:
            correction, ridge_error = self._without_ridge(reward, value)
        value += correction
        share = _earning_share(found.distribution, self.n > 0)
        logged = found.distribution[self.state] * self.target.reshape(-1)[self.cells]
        if not logged.any():
            value = float("nan")  # no transition of any action that the target takes: all would be filled in
        low, high = self.reward_bounds()
        return Shrinkage(
            operator=found.operator,
            target=self.target,
            value=float(np.clip(value, low * share, high * share)),
            state_distribution=found.distribution,
            values=found.values,
            extra_reward=extra,
            prior_share=found.prior_share,
            delta=prior,
            kappa=kappa,
            gate=regression.gate,
            ridge=self.ridge,
            ridge_error=ridge_error,
            outcome=found.outcome,
            regression=regression,
            reward_bounds=(low, high),
            behavior=self.behavior,
            solved=self._solved(kappa, regression.gate),
            length=self.length,
            trap_exits=self.trap_exits,
            added_ends=self.added_ends,
        )

    def _solved(self, kappa: float, gate: float) -> control.Outcome:
        """The last round's outcome, which the extrapolation's follow; any that failed speaks for all."""
        failed = next((outcome for outcome in self.outcomes if not outcome.converged), None)
        last = self.outcomes[ROUNDS - 1]
        return replace(
            last,
            method="shrinkage",
            reason=f"the default with a policy: kappa {kappa:.2g}, gate {gate:.2g}; {last.method}",
            converged=failed is None,
            stopped=None if failed is None else failed.stopped,
            n_iter=sum(outcome.n_iter for outcome in self.outcomes),
        )

    def reward_bounds(self) -> tuple[float, float]:
        """Of single rewards where episodes keep them, else of the means by (cell, next state)."""
        episodes = self.counts.episodes
        logged = self.reward[self.counts.count > 0]
        if self.choices.reward is None and episodes is not None and episodes.reward is not None:
            logged = episodes.reward
        return float(logged.min()), float(logged.max())

    def _without_ridge(self, reward: Floats, value: float) -> tuple[float, float]:
        """What the value changes by from the ridge to none, extrapolated, and how far that may be off."""
        found, fit = [value], self.fit
        assert fit is not None
        start = fit.y
        for power in (1, 2):
            before, fit = fit, fit.system.with_ridge(self.ridge / STEP**power).solve(self.rough, start)
            start = fit.y + (fit.y - before.y) / STEP  # nearly linear in the ridge
            self.outcomes.append(fit.outcome)
            found.append(_ratio(fit.row_distribution, reward, self.n > 0))
        first, second = found[1] - found[0], found[2] - found[1]
        # The bias of a mode far above the ridge is linear in it: each step is a tenth of the one before.
        if abs(second) >= abs(first):
            return first * STEP / (STEP - 1.0), abs(first)
        tail = abs(second) / (1.0 - abs(second / first))
        return first + second * STEP / (STEP - 1.0), min(abs(first), tail)


def _ridge(gamma: float, total: float) -> float:
    """The ridge that keeps mass out of spurious traps: 1 / N at gamma = 1, 0 where the discount does so.

    A state logged once whose only exit is itself holds mass m at a residual of N (1 - gamma)^2 m^2, against
    N ridge m^2.
    """
    return max(0.0, 1.0 / max(total, 1.0) - ALONE * (1.0 - gamma) ** 2)


def _ratio(distribution: Floats, reward: Floats, visited: NDArray[np.bool_]) -> float:
    """Reward of the identified mass: sum over visited states, divided by 1 - leak."""
    if not distribution[visited].any():
        return float("nan")
    identified = 1.0 - float(distribution[~visited].sum())
    return float(distribution[visited] @ reward[visited]) / identified if identified > 0 else float("nan")


def _earning_share(distribution: Floats, visited: NDArray[np.bool_]) -> float:
    """Mass of visited states, divided by 1 - leak; never more than 1 by rounding."""
    identified = 1.0 - float(distribution[~visited].sum())
    return min(float(distribution[visited].sum()) / identified, 1.0) if identified > 0.0 else 0.0


def _mean_by_row(counts: Counts, entries: Floats) -> Floats:
    n = counts.cell_count.astype(float)
    total = row_sums(counts.indptr, counts.count * entries)
    return np.divide(total, n, out=np.zeros_like(n), where=n > 0)


def _rewards_of_entries(
    counts: Counts, given: bool, by_cell: Floats, cell: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Mean reward of each (cell, next state) and the squared deviations from it.

    Entries without a logged reward take their cell's mean, cells without one that of the log.
    """
    known = np.isfinite(by_cell)
    n = counts.cell_count.astype(float)
    overall = float(n[known] @ by_cell[known]) / max(float(n[known].sum()), 1e-300)
    mean = np.where(known, by_cell, overall)[cell]
    if given or counts.reward_count is None or counts.reward_mean is None or counts.reward_m2 is None:
        return mean, np.zeros(cell.size)
    logged = counts.reward_count > 0
    return np.where(logged, counts.reward_mean, mean), np.where(logged, counts.reward_m2, 0.0)
