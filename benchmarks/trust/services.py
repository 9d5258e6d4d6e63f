"""Networks of queues, catalogs, ruin, and numbers of episodes (report)."""

from __future__ import annotations

import numpy as np
from scipy.stats import poisson

from trust import operations
from trust.model import Floats, Model, explore, from_outcomes, greedy, mix, optimal_q, sharpen, soft, uniform
from trust.problem import Problem, maker

SIZES = ((20, 100), (100, 200))


# -- networks of queues ------------------------------------------------------------------------------


def two_lines(places: int, arrival: float, rates: tuple[float, float]) -> Model:
    """Each arriving customer is sent to one of two lines of different speed; a full line loses 3."""
    side = places + 1

    def outcomes(state: int, line: int):
        lines = divmod(state, side)
        cost = -0.15 * sum(lines)
        for comes, chance in ((1, arrival), (0, 1 - arrival)):
            joined = list(lines)
            lost = comes and joined[line] == places
            joined[line] += comes and not lost
            for first, one in ((1, rates[0]), (0, 1 - rates[0])):
                for second, two in ((1, rates[1]), (0, 1 - rates[1])):
                    after = (max(joined[0] - first, 0), max(joined[1] - second, 0))
                    yield chance * one * two, after[0] * side + after[1], cost - 3.0 * lost, False

    return from_outcomes(side * side, 2, outcomes, np.eye(side * side)[0])


def tandem(places: int, arrival: float) -> Model:
    """Work passes two stations; one of them, or neither, is given the extra worker at a price."""
    side = places + 1

    def outcomes(state: int, helped: int):
        first, second = divmod(state, side)
        rates = (0.45 + 0.3 * (helped == 1), 0.45 + 0.3 * (helped == 2))
        cost = -0.2 * (first + second) - 0.4 * (helped > 0)
        for comes, chance in ((1, arrival), (0, 1 - arrival)):
            for one, share in ((1, rates[0]), (0, 1 - rates[0])):
                for two, part in ((1, rates[1]), (0, 1 - rates[1])):
                    moved = one and first > 0 and second < places
                    left = two and second > 0
                    waits = first + comes - moved
                    lost = waits > places
                    after = min(waits, places) * side + min(second + moved - left, places)
                    yield chance * share * part, after, cost - 4.0 * lost, False

    return from_outcomes(side * side, 3, outcomes, np.eye(side * side)[0])


def bulk_shuttle(capacity: int) -> Model:
    """Passengers (Poisson 1.2 per step) wait for a shuttle of ten seats; each departure costs 6."""
    chance = poisson.pmf(np.arange(capacity + 1), 1.2)

    def outcomes(waiting: int, depart: int):
        rest = max(waiting - 10, 0) if depart else waiting
        paid = 1.5 * (waiting - rest) - 6.0 * depart - 0.1 * waiting
        for come in range(capacity - rest):
            yield chance[come], rest + come, paid, False
        yield 1.0 - chance[: capacity - rest].sum(), capacity, paid, False

    return from_outcomes(capacity + 1, 2, outcomes, np.eye(capacity + 1)[0])


def networks() -> list[Problem]:
    """Routing, two stations, departures."""
    family = "networks of queues"
    lines, stations, shuttle = two_lines(6, 0.6, (0.5, 0.3)), tandem(6, 0.35), bulk_shuttle(25)
    best = optimal_q(lines)
    first, second = np.divmod(np.arange(49), 7)
    shorter = np.eye(2)[(second < first).astype(int)]
    busier = np.eye(3)[np.where(first + second < 3, 0, np.where(first > second, 1, 2))]
    waiting = np.arange(26)
    return [
        Problem(family, "routing, soft optimum", lines, soft(best, 0.2), (explore(shorter, 0.4),), SIZES),
        Problem(family, "routing, always the first", lines, np.tile([0.9, 0.1], (49, 1)),
                (explore(shorter, 0.2),), SIZES),
        Problem(family, "two stations", stations, explore(busier, 0.05), (uniform(stations),), SIZES),
        Problem(family, "shuttle, later", shuttle, explore(np.eye(2)[(waiting >= 14).astype(int)], 0.02),
                (explore(np.eye(2)[(waiting >= 7).astype(int)], 0.2),), SIZES),
    ]  # fmt: skip


# -- catalogs -------------------------------------------------------------------------------------------


def price_list(prices: int, segments: int, rng: np.random.Generator) -> Model:
    """A customer of a segment, new or returning, is offered one of many prices; sales bring them back."""
    grid = np.linspace(0.2, 4.0, prices)
    scale = rng.uniform(0.8, 2.5, segments)

    def outcomes(state: int, price: int):
        segment, loyalty = divmod(state, 3)
        buys = np.exp(-grid[price] / scale[segment]) * (0.5 + 0.25 * loyalty)
        for sold, chance in ((1, buys), (0, 1 - buys)):
            level = min(loyalty + 1, 2) if sold else max(loyalty - 1, 0)
            earned = float(grid[price]) * sold
            stays = 0.95 if sold else 0.85
            yield chance * stays, segment * 3 + level, earned, False
            yield chance * (1 - stays), state, earned, True

    initial = np.zeros((segments, 3))
    initial[:, 0] = rng.dirichlet(np.full(segments, 2.0))
    return from_outcomes(segments * 3, prices, outcomes, initial.ravel())


def playlist(genres: int, tracks: int, rng: np.random.Generator) -> Model:
    """The state is the genre heard last; tracks of other genres are skipped (-.2) more often."""
    genre = rng.integers(genres, size=tracks)
    quality = rng.beta(2.0, 2.0, tracks)
    near = rng.dirichlet(np.ones(genres), genres)

    def outcomes(heard: int, track: int):
        liked = quality[track] * (0.3 + 0.7 * near[heard, genre[track]] / near[heard].max())
        yield liked * 0.98, int(genre[track]), 1.0, False
        yield (1 - liked) * 0.98, heard, -0.2, False
        yield 0.02, 0, 0.0, False

    return from_outcomes(genres, tracks, outcomes, np.ones(genres))


def catalogs() -> list[Problem]:
    """Many actions, of which the behavior takes a few."""
    family = "catalogs"
    sizes = ((100, 60), (800, 60))
    shop = price_list(40, 5, maker(family, "prices"))
    music, long = (playlist(6, n, maker(family, f"tracks {n}")) for n in (50, 120))
    place = np.arange(40)
    bump = np.exp(-0.5 * ((place - 10) / 4.0) ** 2)
    usual = np.tile(bump / bump.sum(), (15, 1))
    higher = np.tile(np.roll(bump, 6) / bump.sum(), (15, 1))
    popular = maker(family, "popular").dirichlet(np.full(50, 0.3), 6)
    charts = maker(family, "charts").dirichlet(np.full(120, 0.2), 6)
    return [
        Problem(family, "40 prices, higher", shop, higher, (explore(usual, 0.1),), sizes),
        Problem(family, "40 prices, soft optimum", shop, soft(optimal_q(shop), 0.1), (usual,), sizes),
        Problem(family, "50 tracks, sharper", music, sharpen(popular, 1.5), (explore(popular, 0.1),), sizes),
        Problem(family, "120 tracks, half new", long,
                mix(charts, maker(family, "new").dirichlet(np.full(120, 0.2), 6), 0.5),
                (explore(charts, 0.2),), sizes),
    ]  # fmt: skip


# -- ruin -------------------------------------------------------------------------------------------------


def insurer(claim: float, loss: float) -> Model:
    """Wealth 0 to 19; risky contracts pay 2, safe ones 1; a large claim takes ``loss`` and all wealth."""

    def outcomes(wealth: int, risky: int):
        risk = claim * (0.2 + risky)
        yield risk, 0, -loss, False
        for change, chance in ((1, 0.5), (-1, 0.2), (0, 0.3)):
            after = min(max(wealth + change, 0), 19)
            yield (1 - risk) * chance, after, 1.0 + risky + 0.02 * wealth, False

    return from_outcomes(20, 2, outcomes, np.eye(20)[10])


def dike(flood: float, damage: float) -> Model:
    """A dike decays through eight conditions; maintenance costs 1; the lower it is, the likelier a flood."""

    def outcomes(state: int, maintain: int):
        risk = flood * 4.0 ** (7 - state)
        yield risk, 7, -damage, False
        keep = min(state + 2, 7) if maintain else state
        yield (1 - risk) * 0.3, max(keep - 1, 0), 1.0 - maintain, False
        yield (1 - risk) * 0.7, keep, 1.0 - maintain, False

    return from_outcomes(8, 2, outcomes, np.eye(8)[7])


def ruin() -> list[Problem]:
    """Losses that a log may or may not show."""
    family = "ruin"
    sound, frail = insurer(2e-3, 100.0), insurer(1e-4, 1500.0)
    river, sea = dike(2e-6, 300.0), dike(1e-7, 5000.0)

    def risky(model: Model, share: float) -> Floats:
        return np.tile([1 - share, share], (model.n_states, 1))

    late = np.eye(2)[(np.arange(8) <= 2).astype(int)]
    early = np.eye(2)[(np.arange(8) <= 5).astype(int)]
    return [
        Problem(family, "claims, one in 500", sound, risky(sound, 0.9), (risky(sound, 0.3),), SIZES),
        Problem(family, "claims, one in 10,000", frail, risky(frail, 0.8), (risky(frail, 0.5),), SIZES),
        Problem(family, "dike on a river, maintained late", river, explore(late, 0.05),
                (explore(early, 0.2),), SIZES),
        Problem(family, "dike at sea, maintained later", sea, explore(late, 0.1), (explore(late, 0.3),),
                SIZES),
    ]  # fmt: skip


# -- numbers of episodes -------------------------------------------------------------------------------


def episode_counts() -> list[Problem]:
    """Stock and an aging machine, logged in 2 to 400 episodes of different lengths."""
    family = "numbers of episodes"
    stock, machine = operations.inventory_model(15, 6, 2.5, 1.5), operations.two_machines(8, 0.04)
    made = []
    for model, what in ((stock, "stock"), (machine, "machines")):
        q = optimal_q(model)
        target, behavior = soft(q, 0.3), explore(greedy(q), 0.5)
        for count, steps in ((2, 1000), (7, 300), (60, 40), (400, 6)):
            sizes = ((count, steps), (count, 4 * steps))
            made.append(Problem(family, f"{what}, {count} episodes", model, target, (behavior,), sizes))
    return made
