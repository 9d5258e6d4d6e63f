"""Gamma .999 on continuing models whose episodes are mostly shorter than its 1,000 steps (report)."""

from __future__ import annotations

import numpy as np

from trust import operations, services, stress, taxi_pairs
from trust.model import Floats, Model, explore, from_outcomes, greedy, mix, optimal_q, sharpen, soft
from trust.problem import Problem, maker

GAMMAS = (0.999,)
SIZES = ((20, 100), (100, 200))


def reservoir(levels: int) -> Model:
    """Water of a wet or a dry spell (60 steps on average) is kept, or released for power; it may spill."""

    def outcomes(state: int, release: int):
        dry, level = divmod(state, levels)
        used = min(release, level)
        earned = 2.0 * used**0.7 - 1.0 * (used < 1) - 0.02 * level
        for turns, chance in ((1, 1 / 60), (0, 1 - 1 / 60)):
            for inflow, share in enumerate((0.6, 0.35, 0.05) if dry else (0.1, 0.3, 0.6)):
                water = level - used + inflow
                spilled = max(water - (levels - 1), 0)
                after = (dry ^ turns) * levels + water - spilled
                yield chance * share, after, earned - 3.0 * spilled, False

    return from_outcomes(2 * levels, 4, outcomes, np.eye(2 * levels)[levels // 2])


def two_towns(places: int) -> Model:
    """A crew works in one of two towns that differ in pay; one action looks for the way to the other."""
    rng = maker("long horizons", "two towns")
    following = rng.integers(places, size=(2 * places, 3, 2))
    worth = rng.normal(size=(2 * places, 3)) + np.repeat([0.0, 0.8], places)[:, None]

    def outcomes(state: int, action: int):
        town = state // places
        leaves = 0.02 if action == 2 else 0.002
        earned = float(worth[state, action])
        yield leaves, (1 - town) * places, earned, False
        for place in following[state, action]:
            yield (1 - leaves) / 2, town * places + int(place), earned, False

    return from_outcomes(2 * places, 3, outcomes, np.eye(2 * places)[0])


def release_rule(levels: int, steps: tuple[int, int, int]) -> Floats:
    """One unit more is released from each of the given levels on, whatever the spell."""
    return np.tile(operations.threshold(levels, 4, steps), (2, 1))


def problems() -> list[Problem]:
    """New models, variants of those of other report families, and other pairs of policies on Taxi."""
    family = "long horizons"
    lake, towns = reservoir(25), two_towns(12)
    machines, store = operations.two_machines(9, 0.02), operations.inventory_model(14, 7, 3.0, 3.0)
    lines, ring = services.two_lines(8, 0.5, (0.4, 0.25)), stress.cycle(12, 3, "period 12")
    best = {
        name: optimal_q(model) for name, model in (("towns", towns), ("machines", machines), ("ring", ring))
    }
    first, second = np.divmod(np.arange(81), 9)
    shorter = np.eye(2)[(second < first).astype(int)]
    plan = [
        ("reservoir, released later", lake, explore(release_rule(25, (8, 14, 20)), 0.05),
         (explore(release_rule(25, (4, 10, 16)), 0.2),), SIZES),
        ("reservoir, few long episodes", lake, explore(release_rule(25, (3, 9, 18)), 0.1),
         (explore(release_rule(25, (4, 10, 16)), 0.3),), ((2, 1000), (5, 4000))),
        ("two towns", towns, soft(best["towns"], 0.3), (explore(greedy(best["towns"]), 0.5),), SIZES),
        ("two machines", machines, sharpen(soft(best["machines"], 0.4), 2),
         (soft(best["machines"], 1.2),), SIZES),
        ("store, two managers", store, explore(operations.order_up_to(store, 6, 12), 0.1),
         tuple(explore(operations.order_up_to(store, *levels), 0.15) for levels in ((3, 9), (5, 14))), SIZES),
        ("routing", lines, mix(shorter, np.tile([0.7, 0.3], (81, 1)), 0.5), (explore(shorter, 0.3),), SIZES),
        ("period 12", ring, soft(best["ring"], 0.3), (explore(greedy(best["ring"]), 0.5),), SIZES),
    ]  # fmt: skip
    taxi, policies = taxi_pairs.taxi_model(), taxi_pairs.policies(taxi_pairs.REPORT_SEED)
    for behavior, target in (("base", "trained"), ("earlier", "trained+20")):
        plan.append((f"Taxi: {behavior} -> {target}", taxi, policies[target], (policies[behavior],),
                     ((50, 200), (100, 400))))  # fmt: skip
    return [Problem(family, *rest, gammas=GAMMAS) for rest in plan]
