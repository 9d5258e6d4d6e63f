"""Can this estimate be trusted? Each check has a number, a threshold, a sentence and a remedy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.outcome import (
    FEWEST_DRAWS,
    LARGEST_SPREAD,
    LEAST_GAIN,
    LEAST_SAMPLE_SHARE,
    LEAST_TRAINED_GAIN,
    MOST_BEGUN,
    MOST_CLIPPED,
    RATIO_MASS,
    SMALL_IMBALANCE,
)
from lingendice.data.checks import Floats
from lingendice.data.display import amount
from lingendice.data.rows import row_sums
from lingendice.model.leaks import LARGE_LEAK

if TYPE_CHECKING:
    from lingendice.continuous.outcome import Evidence
    from lingendice.results.continuous_solution import ContinuousSolution
    from lingendice.results.solution import Solution

LEAST_COVERAGE = 0.95
LEAST_SAMPLE = 200.0
LEAST_WAY = 0.5
LARGEST_SHARE = 0.5
LEAST_LOOKS = 100.0
LEAST_VARIATION = 0.01
LEAST_REWARDS = 0.99
LARGEST_OFFSET = 0.01
LARGEST_MISFIT = 1.0
MOST_NOISY_RATIO = 2.0
"""How far from 1, as a factor, the mean of noisy weights may be."""
FEW_CELLS = 0.01
"""The share of cells that counts as few."""
STEPS = 200
"""Steps of the chain from which its mixing time is extrapolated."""


class Check(NamedTuple):
    """One diagnostic."""

    name: str
    number: float
    threshold: float
    ok: bool
    sentence: str
    remedy: str
    """What to do where it is not ok; empty where it is."""


def diagnose(solution: Solution | ContinuousSolution) -> tuple[Check, ...]:
    """Check whether a solution can be trusted; each check has a number, a threshold, a sentence and a remedy.

    - The default with a policy: effective sample, leak, actions never logged, rewards and, at gamma = 1, the
      ridge; where episodes were kept also the order of rows, the Markov property and forgotten ends.
      O(nnz), and O(N log N) for the Markov property.
    - Any other solution over counts: leak, coverage, effective sample size, shift from the behavior,
      concentration and mixing. Three more are shown where they fail: that rewards are known, that logged
      outcomes vary, and that all mass is accounted for. O(nnz), and at most 200 steps of the chain. Over
      features also how far they keep the value from that of the exact equation, by one exact solve.
    - Several distributions, or none: no checks. A matrix without a sample size, or no data: the leak alone.
    - A :class:`ContinuousSolution`: agreement of its members, whether simulations stay within the log, and
      the ratio's mean, effective sample size, shift and concentration.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> solution = lg.solve(counts, 0.9, policy=[[0.9, 0.1], [0.2, 0.8]])
    >>> [check.name for check in lg.diagnose(solution)][:3]
    ['effective sample', 'leak', 'never logged']
    """
    if not hasattr(solution, "diagnose"):
        raise ValueError(
            f"there are no checks of a {type(solution).__name__}; pass a solution, of a Comparison that of "
            "one policy: comparison[name]"
        )
    return solution.diagnose()


def diagnose_counts(solution: Solution) -> tuple[Check, ...]:
    """The checks of a solution over counts."""
    distribution = solution.state_distribution
    if distribution is None or not np.isfinite(distribution).all():
        return ()
    if not distribution.any():
        return (_sample(solution),) if solution.operator.counts.has_sample_size else ()
    if not solution.operator.counts.has_sample_size or not solution.operator.counts.total:
        return (_leak(solution),)
    checks = [_leak(solution), _coverage(solution), _sample(solution)]
    if solution.operator.choices.policy is not None:
        checks.append(_way(solution))
    if solution.value is not None:
        checks.append(_concentration(solution))
    checks.append(_mixing(solution))
    if solution.value is not None:
        # Shown only where something is wrong: that rewards are logged and outcomes vary is the rule.
        rare = (_rewards(solution), _variation(solution), _ridge_at_ends(solution))
        checks += [check for check in rare if not check.ok]
    return tuple(checks)


def make_check(
    name: str, number: float, threshold: float, at_least: bool, sentence: str, remedy: str
) -> Check:
    """A check that is ok where ``number`` is at least, or at most, ``threshold``."""
    ok = bool(number >= threshold if at_least else number <= threshold)
    return Check(name, float(number), threshold, ok, sentence, "" if ok else remedy)


def _leak(solution: Solution) -> Check:
    if not solution.operator.counts.has_sample_size:
        return _dangling(solution)
    sentence = f"{solution.leak:.2%} of the stationary mass lies where there is no data"
    if solution.value_bounds is not None:
        low, high = solution.value_bounds
        sentence += f"; the value lies in [{low:.4g}, {high:.4g}] {solution.bounds_note}"
    remedy = "collect data there, or take ratio='state' or a target closer to the behavior"
    return make_check("leak", solution.leak, LARGE_LEAK, False, sentence, remedy)


def _dangling(solution: Solution) -> Check:
    """Of a graph or a matrix of probabilities: nothing is unknown there, walks restart by convention."""
    sentence = f"{solution.leak:.2%} of the stationary mass lies in states without outgoing transitions"
    decided = solution.gamma < 1.0 or solution.operator.choices.restart is not None
    remedy = "give restart=, the distribution of states that follow them"
    return make_check("dangling", solution.leak, 1.0 if decided else LARGE_LEAK, False, sentence, remedy)


def _coverage(solution: Solution) -> Check:
    """Share of the target's actions, at the states of the distribution, that the log contains."""
    operator, wanted, mass = solution.operator, solution.operator.target, solution.cell_distribution
    if wanted is None:
        number = float(mass[operator.seen].sum() / max(mass.sum(), 1e-300))
        sentence = f"{number:.2%} of the distribution lies in states with outgoing transitions"
    else:
        seen = operator.seen.reshape(wanted.shape)
        visited = solution._single() * seen.any(axis=1)
        covered = np.einsum("sa,sa->s", wanted, seen.astype(float))
        number = float(visited @ covered / max(visited.sum(), 1e-300))
        sentence = f"{number:.2%} of the target's actions, at the states it visits, are in the log"
    remedy = (
        "log the missing actions; until then the estimate rests on how unseen ones are filled in (unseen=)"
    )
    return make_check("coverage", number, LEAST_COVERAGE, True, sentence, remedy)


def _sample(solution: Solution) -> Check:
    size = solution.effective_sample_size or 0.0
    total, unit = solution.sample
    sentence = f"{size:,.0f} of {amount(total)} {unit} count after weighting"
    remedy = "collect more data, or take a target closer to the behavior"
    return make_check("effective sample size", size, LEAST_SAMPLE, True, sentence, remedy)


def _way(solution: Solution) -> Check:
    """How far the effective policy goes from the logged behavior to the target asked for.

    Total variation of policies, averaged over the log's states: |W - clone| / |target - clone|.
    """
    operator = solution.operator
    wanted = operator.target
    assert wanted is not None
    assert operator.policy is not None
    seen = operator.counts.cell_count.reshape(wanted.shape).astype(float)
    visits = seen.sum(axis=1)
    clone = seen / np.where(visits > 0, visits, 1.0)[:, None]
    whole = float(visits @ np.abs(wanted - clone).sum(axis=1))
    gone = float(visits @ np.abs(operator.policy - clone).sum(axis=1))
    number = gone / whole if whole > 0 else 1.0
    sentence = f"the estimate makes {number:.0%} of the shift from the behavior policy to the target"
    if solution.value is not None and solution.behavior_value is not None:
        sentence += f" (value {solution.value:.4g}, behavior's {solution.behavior_value:.4g})"
    remedy = "the estimate is stuck near the behavior: lower clone= or ridge=, or collect more data"
    return make_check("shift from behavior", number, LEAST_WAY, True, sentence, remedy)


def _concentration(solution: Solution) -> Check:
    """Share of all reward, in absolute terms, that the top one per cent of cells earns."""
    operator = solution.operator
    assert operator.reward is not None
    earned = np.abs(np.where(operator.seen, solution.cell_distribution * np.nan_to_num(operator.reward), 0.0))
    held = int((solution.cell_distribution > 0).sum())
    remedy = "look at these cells' counts (sol.cell_distribution, counts.cell_count): the value is theirs"
    return _top_share(earned, held, "cells", remedy)


def _top_share(earned: Floats, held: int, unit: str, remedy: str) -> Check:
    few = max(1, math.ceil(FEW_CELLS * held))
    whole = float(earned.sum())
    number = float(np.partition(earned, -few)[-few:].sum() / whole) if whole > 0 else 0.0
    sentence = f"{number:.0%} of the reward, in absolute terms, comes from {few:,} of {held:,} {unit}"
    # Of a handful a single one is bound to earn much.
    threshold = LARGEST_SHARE if held >= 100 else 1.0
    return make_check("concentration", number, threshold, False, sentence, remedy)


def _rewards(solution: Solution) -> Check:
    """Share of the distribution, where there is data, whose reward is known: the rest is left out."""
    operator = solution.operator
    assert operator.reward is not None
    partly = operator.counts.partly_rewarded if operator.logged_reward is not None else None
    if partly is not None:
        return check_of_partial_rewards(partly, solution.cell_distribution)
    mass = np.where(operator.seen, solution.cell_distribution, 0.0)
    share = float(mass[np.isfinite(operator.reward)].sum() / max(mass.sum(), 1e-300))
    sentence = f"rewards are known for {share:.1%} of the distribution where there is data"
    remedy = "the value leaves out the rest: log rewards there, or pass reward="
    return make_check("rewards", share, LEAST_REWARDS, True, sentence, remedy)


def check_of_partial_rewards(partly: NDArray[np.bool_], cell_distribution: Floats) -> Check:
    """A failing check: with rewards of some transitions only, no standard error shows a value's noise."""
    share = float(cell_distribution[partly].sum() / max(cell_distribution.sum(), 1e-300))
    sentence = (
        f"some rewards are missing in cells with {share:.1%} of the distribution, while others were logged"
    )
    remedy = "merge only logs that have rewards, or pass reward="
    return Check("rewards", 1.0 - share, LEAST_REWARDS, False, sentence, remedy)


def check_of_misfit(misfit: float, noise: float) -> Check:
    """How far features keep the value from the exact equation's, in half-widths that noise alone has."""
    share = misfit / noise if noise > 0.0 else (math.inf if misfit > 0.0 else 0.0)
    sentence = (
        f"the exact equation's value is {misfit:.3g} away, {share:.2g} times what noise explains at 95%"
    )
    remedy = "features, a bound or a ridge keep the ratio from its place: give more features, or none"
    return make_check("features", share, LARGEST_MISFIT, False, sentence, remedy)


def _variation(solution: Solution) -> Check:
    """Share of the distribution in cells whose logged outcomes differ in a way that can move the value."""
    operator, counts = solution.operator, solution.operator.counts
    assert operator.reward is not None
    known = operator.reward[operator.seen & np.isfinite(operator.reward)]
    rounding = 1e-12 * float(np.abs(known).max(initial=0.0))
    noisy = np.zeros(counts.n_cells, dtype=bool)
    if operator.logged_reward is not None and counts.reward_m2 is not None and counts.reward_mean is not None:
        off = np.abs(counts.reward_mean - np.repeat(operator.reward, np.diff(counts.indptr))) > rounding
        spread = counts.reward_m2 > rounding**2 * counts.count
        noisy = row_sums(counts.indptr, (spread | off).astype(float)) > 0
    constant = not (noisy.any() or operator.ended.any() or (known.size and np.ptp(known) > rounding))
    branches = row_sums(counts.indptr, (counts.count > 0).astype(float)) > 1
    varies = operator.seen & (noisy | (branches & (not constant)))
    number = float(solution.cell_distribution[varies].sum() / max(solution.cell_distribution.sum(), 1e-300))
    sentence = (
        f"{number:.2%} of the distribution lies in cells whose logged outcomes differ in what they are worth"
    )
    if constant and known.size:
        sentence = f"every logged reward is {known[0]:.4g}, so that no policy can be told from another"
    remedy = "an interval sees next to no noise here: do not take its width, or a width of 0, for certainty"
    return make_check("variation", number, LEAST_VARIATION, True, sentence, remedy)


def _ridge_at_ends(solution: Solution) -> Check:
    """What a ridge given as a number lets begin anew, beside the episodes, to keep the ratio near 1.

    Mass that ends is small on the data near gamma = 1, and a ratio near 1 is not: the ridge feeds mass into
    the first states and takes it away on the way, in equal parts, so that the total stays 1.
    """
    number = 0.0
    if solution.ridge > 0.0 and solution.operator.ended.any() and not solution.operator.absorbs_leaks:
        residual = solution.operator.residual(solution.cell_distribution)
        number = float(np.maximum(residual, 0.0).sum()) / (1.0 - solution.gamma)
    sentence = f"beside every episode of the log the ridge begins {number:.2g} of its own"
    remedy = "take ridge=0: a ridge draws the ratio to 1, but mass that ends leaves it below"
    return make_check("ridge at ends", number, LARGEST_OFFSET, False, sentence, remedy)


def check_of_mean_ratio(mean: float, most: float) -> Check:
    """Whether the weights of a log add up to the mass that they stand for, within a factor of ``most``."""
    number = max(mean, 1.0 / mean) if mean > 0.0 else math.inf
    sentence = f"the weights' mean over the log is {mean:.4f}, and should be 1"
    remedy = "the log does not show where the rest of the target's mass goes: log the actions that it takes"
    return make_check("mean ratio", number, most, False, sentence, remedy)


def check_of_largest_weight(share: float, most: float) -> Check:
    """Whether one weight is so large that the spread of the others says little about the noise."""
    sentence = f"the heaviest episode has {share:.1%} of all weight, and the standard error rests on it"
    remedy = "the true spread is probably larger: log more episodes, count fewer steps, or use solve"
    return make_check("largest weight", share, most, False, sentence, remedy)


def _mixing(solution: Solution) -> Check:
    steps = mixing_time(solution)
    reach = steps if solution.gamma == 1.0 else min(steps, 1.0 / (1.0 - solution.gamma))
    looks = float(solution.operator.counts.total) / max(reach, 1.0)
    span = (
        "longer than can be seen"
        if math.isinf(steps)
        else f"about {max(steps, 1.0):,.0f} step{'s' * (steps >= 1.5)}"
    )
    sentence = f"the chain forgets where it was in {span}; the log is {looks:,.0f} times that"
    if reach != steps:
        sentence = (
            f"what counts is forgotten in {reach:,.0f} steps (gamma); the log is {looks:,.0f} times that"
        )
    remedy = "the log is short beside that time: collect longer data, add smoothing=, or take gamma < 1"
    return make_check("mixing", looks, LEAST_LOOKS, True, sentence, remedy)


def mixing_time(solution: Solution) -> float:
    """Relaxation time 1 / (1 - lambda) of the chain under the policy, in steps: an estimate.

    A distribution off the stationary one takes up to 200 lazy steps, (I + P) / 2, by which periodic chains
    settle, too; the decay of its distance over the last half gives (1 + lambda) / 2. Rounding bounds it
    from below.
    """
    chain, distribution = solution.operator.chain, solution._single()
    states = solution.operator.counts.data_distribution.reshape(chain.n, -1).sum(axis=1)
    off = states * np.linspace(0.5, 1.5, chain.n)
    off = off / off.sum() - distribution / distribution.sum()
    start = float(np.abs(off).sum())
    sizes = [start]
    for _ in range(STEPS if chain.indices.size < 10**6 else STEPS // 10):
        off = 0.5 * (off + chain.apply_transpose(off))
        off -= distribution * (off.sum() / distribution.sum())
        sizes.append(float(np.abs(off).sum()))
        if sizes[-1] < 1e-12 * max(start, 1e-300):
            break
    middle = len(sizes) // 2
    if sizes[-1] <= 0.0 or start == 0.0:
        return 1.0
    decay = (sizes[-1] / sizes[middle]) ** (1.0 / max(len(sizes) - 1 - middle, 1))
    return math.inf if decay >= 1.0 - 1e-9 else 0.5 / (1.0 - decay)


# -- over continuous states ---------------------------------------------------------------------------

LARGEST_RISE = 3.0
"""Of the held-out residual over its least value while training."""
LARGEST_RESIDUAL = 1.0
"""Root of a chi-square distance: beyond it a ratio is not nearly stationary."""
LEAST_MOVED = 0.01
_AUTO = 'take method="auto": its model found the value where ratio networks collapsed (17 + 6 coordinates)'


def diagnose_continuous(solution: ContinuousSolution) -> tuple[Check, ...]:
    """All checks: those that decide over the value, and those that tell how much the rest says."""
    checks = list(decisive_checks(solution))
    names = {check.name for check in checks}
    others = []
    if np.isfinite(solution.tau).all():
        others = [_mass(solution), _row_sample(solution), _moved(solution)]
        if solution.value is not None:
            others.append(_row_concentration(solution))
    return (*checks, *(check for check in others if check.name not in names))


def decisive_checks(solution: ContinuousSolution) -> tuple[Check, ...]:
    """The checks whose failure takes "trained" from the status: those that the headline rests on."""
    evidence = solution.evidence
    checks = []
    if solution.spread is not None:
        checks.append(_agreement(solution))
    if evidence is None or evidence.headline in ("ratio", "DR"):
        checks += [_mass(solution), _row_sample(solution)]
    if evidence is None:
        checks += [*_residual(solution), *_gain(solution)]
    elif evidence.headline == "FQE":
        checks += [_explosion(evidence), _sweeps(evidence)]
    # FQE in the place of a model that left the log goes on from the same data, by smoothness alone.
    if evidence is not None and (evidence.headline in ("model", "DR") or evidence.clipped > 0.0):
        checks.append(_clipped(evidence))
    return tuple(checks)


def _mass(solution: ContinuousSolution) -> Check:
    mass = solution.mean_ratio if solution.evidence is None else solution.evidence.ratio_mass
    number = math.inf if not mass > 0 else max(mass, 1.0 / mass)
    sentence = f"the ratio's mean over the data is {mass:.4f}, and should be 1"
    remedy = _AUTO if solution.evidence is None else "rest nothing on sol.tau and DR: their ratio is off"
    return make_check("mean ratio", number, RATIO_MASS[1], False, sentence, remedy)


def _row_sample(solution: ContinuousSolution) -> Check:
    size, total = solution.effective_sample_size, len(solution.transitions)
    sentence = f"{size:,.0f} of {total:,} transitions count after weighting"
    remedy = (
        "log the target's own actions: weighted means rest on few rows; the model and FQE do not need weights"
    )
    return make_check("effective sample size", size / total, LEAST_SAMPLE_SHARE, True, sentence, remedy)


def _residual(solution: ContinuousSolution) -> list[Check]:
    """Whether stationarity on rows held out got worse while training."""
    paths = [[point.residual for point in member] for member in solution.history if len(member) > 1]
    if not paths:
        return []
    last = float(np.mean([path[-1] for path in paths]))
    least = float(np.mean([min(path) for path in paths]))
    rise = last / max(least, 1e-12) if last > LARGEST_RESIDUAL else 1.0
    sentence = f"the held-out residual ends at {last:.2g}; its least while training was {least:.2g}"
    return [make_check("held-out residual", rise, LARGEST_RISE, False, sentence, _AUTO)]


def _gain(solution: ContinuousSolution) -> list[Check]:
    """Whether networks over a cloned base learned something, or are the base still."""
    if not solution.gains:
        return []
    held_out, clear, trained, imbalance, draws = np.mean(solution.gains, axis=0).tolist()
    name = "gain over the base"
    remedy = "the ratio is that of cloned policies still: more steps (max_iter=), or " + _AUTO
    if draws < FEWEST_DRAWS:
        sentence = f"networks drew each row {draws:.2g} times: too few to leave their cloned base"
        return [make_check(name, draws, FEWEST_DRAWS, True, sentence, remedy)]
    if imbalance <= SMALL_IMBALANCE:
        sentence = f"the cloned base has an imbalance of {imbalance:.2g}: it leaves little to learn"
        return [make_check(name, imbalance, SMALL_IMBALANCE, False, sentence, remedy)]
    if clear >= 0.5:
        sentence = f"training removed {held_out:.0%} of the cloned base's imbalance on held-out episodes"
        return [make_check(name, held_out, LEAST_GAIN, True, sentence, remedy)]
    sentence = (
        "held-out episodes show no imbalance of the cloned base beyond their noise; on the others training "
        f"removed {trained:.0%} of it"
    )
    return [make_check(name, trained, LEAST_TRAINED_GAIN, True, sentence, remedy)]


def _agreement(solution: ContinuousSolution) -> Check:
    """Spread of the members' values in units of the rewards' standard deviation."""
    reward = solution.transitions.reward
    assert reward is not None
    assert solution.spread is not None
    assert solution.member_values is not None
    scale = float(np.std(reward))
    number = solution.spread / scale if scale > 0 else 0.0
    sentence = f"the values of {len(solution.member_values)} members spread by {solution.spread:.2g}"
    sentence += f", {number:.1%} of the rewards' standard deviation"
    remedy = "more episodes, or episodes that run longer: each member sees two thirds of them"
    if solution.evidence is None:
        remedy = "training has not settled: more steps (max_iter=), or " + _AUTO
    return make_check("agreement", number, LARGEST_SPREAD, False, sentence, remedy)


def _explosion(evidence: Evidence) -> Check:
    sentence = f"the largest |Q| is {evidence.largest_q:.2g} of what rewards allow"
    return make_check("size of Q", evidence.largest_q, 1.0, False, sentence, 'take method="model"')


def _sweeps(evidence: Evidence) -> Check:
    sentence = f"the sweeps of FQE leave up to {evidence.begun:.0%} of what it began at, the log's mean"
    remedy = 'take method="model", or a smaller gamma: such a horizon needs more sweeps'
    return make_check("sweeps", evidence.begun, MOST_BEGUN, False, sentence, remedy)


def _clipped(evidence: Evidence) -> Check:
    sentence = f"{evidence.clipped:.1%} of simulated coordinates leave the range of the log"
    remedy = "the target goes where the log has no data, and neither model nor FQE can know: log closer to it"
    return make_check("within the log", evidence.clipped, MOST_CLIPPED, False, sentence, remedy)


def _moved(solution: ContinuousSolution) -> Check:
    """Share of the data's mass that the ratio moves: the total variation between mu and p, as estimated."""
    mean = float(solution.tau.mean())
    number = 0.5 * float(np.mean(np.abs(solution.tau / mean - 1.0))) if mean != 0.0 else 0.0
    sentence = f"the ratio moves {number:.1%} of the data's mass"
    reward = solution.transitions.reward
    if solution.value is not None and reward is not None:
        sentence += f" (value {solution.value:.4g}, average of the log {float(np.mean(reward)):.4g})"
    remedy = (
        "the estimate is the log's own average: right if the target acts as the log did; "
        "else train longer (max_iter=) or with a larger learning rate"
    )
    return make_check("shift from behavior", number, LEAST_MOVED, True, sentence, remedy)


def _row_concentration(solution: ContinuousSolution) -> Check:
    """Share of all reward, in absolute terms, that the top one per cent of transitions earns."""
    assert solution.transitions.reward is not None
    earned = np.abs(solution.tau * solution.transitions.reward)
    remedy = "look at the rows of largest sol.tau * reward: weighted means are theirs"
    return _top_share(earned, earned.size, "rows", remedy)
