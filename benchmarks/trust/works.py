"""Service desks, upkeep and lakes: development problems of the kinds of the report, with other structures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.stats import binom, poisson

from trust.model import Floats, Model, explore, from_outcomes, greedy, mix, optimal_q, soft, uniform
from trust.problem import Problem, maker

SIZES = ((20, 100), (100, 200))


def _first(n_states: int, state: int = 0) -> Floats:
    return np.eye(n_states)[state]


# -- service desks ----------------------------------------------------------------------------------------


def patrol(places: int, arrivals: tuple[float, float]) -> Model:
    """One server walks between two lines; walking takes a step, and whoever finds a line full costs 6."""
    side = places + 1

    def outcomes(state: int, walk: int) -> Iterator[tuple]:
        lines, here = divmod(state, 2)
        waiting = divmod(lines, side)
        for comes in product((0, 1), (0, 1)):
            chance = np.prod([rate if one else 1 - rate for one, rate in zip(comes, arrivals, strict=True)])
            after = [min(w + c, places) for w, c in zip(waiting, comes, strict=True)]
            cost = -0.3 * waiting[0] - 0.1 * waiting[1]
            cost -= 6.0 * sum(w + c > places for w, c in zip(waiting, comes, strict=True))
            if not walk:
                after[here] = max(after[here] - 1, 0)
            yield chance, (after[0] * side + after[1]) * 2 + (here ^ walk), cost, False

    return from_outcomes(2 * side * side, 2, outcomes, _first(2 * side * side))


def call_center(places: int, calls: float) -> Model:
    """One to three agents answer; a caller on hold hangs up with probability .05, which costs 4."""
    coming = poisson.pmf(np.arange(places + 1), calls)

    def outcomes(waiting: int, agents: int) -> Iterator[tuple]:
        left = max(waiting - agents - 1, 0)
        for gone in range(min(left, 4) + 1):
            share = binom.pmf(gone, left, 0.05) if gone < 4 else binom.sf(3, left, 0.05)
            paid = 1.0 * (waiting - left) - 0.8 * (agents + 1) - 4.0 * gone
            rest = left - gone
            for come in range(places - rest):
                yield share * coming[come], rest + come, paid, False
            yield share * (1.0 - coming[: places - rest].sum()), places, paid, False

    return from_outcomes(places + 1, 3, outcomes, _first(places + 1))


def emergency(urgent_places: int, places: int) -> Model:
    """The next patient is an urgent or a plain one; urgent ones who wait may be lost (-12)."""
    side = places + 1

    def outcomes(state: int, plain: int) -> Iterator[tuple]:
        urgent, others = divmod(state, side)
        served = [urgent - (not plain and urgent > 0), others - (bool(plain) and others > 0)]
        cost = -0.1 * others - 0.2 * urgent
        for u, v in product((0, 1), (0, 1)):
            chance = (0.25 if u else 0.75) * (0.55 if v else 0.45)
            after = min(served[0] + u, urgent_places) * side + min(served[1] + v, places)
            lost = 0.04 * served[0]
            fewer = min(max(served[0] - 1, 0) + u, urgent_places) * side + min(served[1] + v, places)
            yield chance * (1 - lost), after, cost, False
            yield chance * lost, fewer, cost - 12.0, False

    return from_outcomes((urgent_places + 1) * side, 2, outcomes, _first((urgent_places + 1) * side))


def kiln(places: int) -> Model:
    """Pots wait for a kiln that burns for four steps and holds eight; a full shelf breaks what comes (-2)."""
    coming = poisson.pmf(np.arange(4), 0.9)
    coming[-1] = 1.0 - coming[:-1].sum()
    side = places + 1

    def outcomes(state: int, start: int) -> Iterator[tuple]:
        phase, waiting = divmod(state, side)
        begins = start and phase == 0
        rest = max(waiting - 8, 0) if begins else waiting
        paid = 1.2 * (waiting - rest) - 4.0 * begins - 0.05 * waiting
        after = 3 if begins else max(phase - 1, 0)
        for come, chance in enumerate(coming):
            over = max(rest + come - places, 0)
            yield chance, after * side + min(rest + come, places), paid - 2.0 * over, False

    return from_outcomes(4 * side, 2, outcomes, _first(4 * side))


def desks() -> list[Problem]:
    """Queues: a server between lines, agents, urgent patients, a kiln."""
    family = "service desks"
    lines, center, ward, oven = patrol(6, (0.3, 0.35)), call_center(25, 1.7), emergency(5, 9), kiln(16)
    q = {name: optimal_q(model) for name, model in (("lines", lines), ("center", center), ("ward", ward))}
    waiting = np.arange(26)
    lean = np.eye(3)[np.where(waiting < 6, 0, np.where(waiting < 14, 1, 2))]
    staffed = np.eye(3)[np.where(waiting < 2, 0, np.where(waiting < 4, 1, 2))]
    urgent, others = np.divmod(np.arange(60), 10)
    urgent_first = np.eye(2)[(urgent == 0).astype(int)]
    longer = np.eye(2)[(others > 2 * urgent).astype(int)]
    shelf = np.arange(68) % 17
    return [
        Problem(family, "a server walks, soft optimum", lines, soft(q["lines"], 0.2),
                (explore(greedy(q["lines"]), 0.5),), SIZES),
        Problem(family, "a server stays", lines, np.tile([0.85, 0.15], (98, 1)),
                (explore(greedy(q["lines"]), 0.3),), SIZES),
        Problem(family, "fewer agents", center, explore(lean, 0.05), (explore(staffed, 0.2),), SIZES),
        Problem(family, "more agents", center, explore(staffed, 0.02), (explore(lean, 0.3),), SIZES),
        Problem(family, "urgent first", ward, explore(urgent_first, 0.05), (uniform(ward),), SIZES),
        Problem(family, "the longer line first", ward, explore(longer, 0.1),
                (explore(urgent_first, 0.3),), SIZES),
        Problem(family, "a fuller kiln", oven, explore(np.eye(2)[(shelf >= 8).astype(int)], 0.02),
                (explore(np.eye(2)[(shelf >= 4).astype(int)], 0.2),), SIZES),
    ]  # fmt: skip


# -- upkeep -----------------------------------------------------------------------------------------------


def deck(grades: int, loss: float) -> Model:
    """A bridge deck: leave, patch (one or two grades) or renew; from the middle grades on it may give way."""

    def outcomes(grade: int, action: int) -> Iterator[tuple]:
        breaks = 0.012 * max(grade - grades // 2, 0) ** 2
        earned = 2.0 - 0.15 * grade
        if action == 2:
            yield 1.0, 0, earned - 10.0, False
            return
        better = (max(grade - 2, 0), max(grade - 1, 0)) if action else (grade, grade)
        paid = earned - 1.5 * action
        for wear, chance in ((0, 0.5), (1, 0.4), (2, 0.1)):
            for base in better:
                yield chance * 0.5 * (1 - breaks), min(base + wear, grades - 1), paid, False
        yield breaks, 0, -loss, False

    return from_outcomes(grades, 3, outcomes, _first(grades))


def battery(levels: int) -> Model:
    """Charge gently or fast (earns more, wears more), or exchange; a worn cell fails for four steps."""

    def outcomes(state: int, action: int) -> Iterator[tuple]:
        if state >= levels:
            yield 1.0, state + 1 if state < levels + 3 else 0, -3.0, False
            return
        if action == 2:
            yield 1.0, 0, -6.0, False
            return
        fails = 0.002 * 1.35**state * (1 + action)
        yield fails, levels, -5.0, False
        for wear, chance in ((0, 0.7 - 0.3 * action), (1, 0.3 + 0.2 * action), (3, 0.1 * action)):
            yield (1 - fails) * chance, min(state + wear, levels - 1), 1.0 + 0.6 * action, False

    return from_outcomes(levels + 4, 3, outcomes, _first(levels + 4))


def fleet(buses: int) -> Model:
    """Buses are good, worn or broken; nothing, one repair or two; few on the road cost a fine."""
    places = [(good, worn) for good in range(buses + 1) for worn in range(buses + 1 - good)]
    number = {place: at for at, place in enumerate(places)}

    def outcomes(state: int, repairs: int) -> Iterator[tuple]:
        good, worn = places[state]
        broken = buses - good - worn
        mended = min(repairs, broken)
        spare = min(repairs - mended, worn)
        good, worn = good + mended + spare, worn - spare
        running = good + worn
        paid = 1.0 * running - 1.5 * repairs - 15.0 * (running < 2)
        for tired in range(good + 1):
            for down in range(worn + 1):
                chance = binom.pmf(tired, good, 0.12) * binom.pmf(down, worn, 0.15)
                yield chance, number[good - tired, worn - down + tired], paid, False

    return from_outcomes(len(places), 3, outcomes, _first(len(places), number[buses, 0]))


def upkeep() -> list[Problem]:
    """Decks, batteries and buses that wear."""
    family = "upkeep"
    weak, cell, buses = deck(12, 60.0), battery(14), fleet(5)
    best_buses, best_cell = optimal_q(buses), optimal_q(cell)
    grade, worn = np.arange(12), np.arange(18)
    patching = np.eye(3)[np.where(grade < 3, 0, np.where(grade < 8, 1, 2))]
    renewing = np.eye(3)[np.where(grade < 7, 0, 2)]
    fast = np.eye(3)[np.where(worn < 10, 1, 2)]
    gentle = np.eye(3)[np.where(worn < 6, 0, 2)]
    return [
        Problem(family, "renew in place of patching", weak, explore(renewing, 0.05),
                (explore(patching, 0.2),), SIZES),
        Problem(family, "patch in place of renewing", weak, explore(patching, 0.05),
                (explore(renewing, 0.2),), SIZES),
        Problem(family, "fast charging", cell, explore(fast, 0.05), (explore(gentle, 0.3),), SIZES),
        Problem(family, "gentle charging", cell, explore(gentle, 0.02),
                (explore(fast, 0.2), soft(best_cell, 1.0)), SIZES),
        Problem(family, "buses, soft optimum", buses, soft(best_buses, 0.2), (soft(best_buses, 1.0),), SIZES),
        Problem(family, "buses, fewer repairs", buses,
                mix(soft(best_buses, 0.3), np.tile([1.0, 0, 0], (buses.n_states, 1)), 0.5),
                (explore(greedy(best_buses), 0.4),), SIZES),
    ]  # fmt: skip


# -- lakes ------------------------------------------------------------------------------------------------

MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))


def lake(name: str, rows: int, columns: int, slip: float, step: float = 0.0, hole: float = 0.0) -> Model:
    """From one corner to the other, which pays 1; holes lie off a path and end the episode."""
    rng = maker("lakes", name)
    path, at = {(0, 0)}, (0, 0)
    while at != (rows - 1, columns - 1):
        down = at[1] == columns - 1 or (at[0] < rows - 1 and rng.random() < 0.5)
        at = (at[0] + 1, at[1]) if down else (at[0], at[1] + 1)
        path.add(at)
    free = [at for at in product(range(rows), range(columns)) if at not in path]
    holes = {free[i] for i in rng.permutation(len(free))[: rows * columns // 4]}
    goal = (rows - 1, columns - 1)

    def outcomes(state: int, action: int) -> Iterator[tuple]:
        here = divmod(state, columns)
        if here in holes or here == goal:
            yield 1.0, state, 0.0, True
            return
        for turn, chance in ((0, 1 - slip), (1, slip / 2), (3, slip / 2)):
            move = MOVES[(action + turn) % 4]
            row = min(max(here[0] + move[0], 0), rows - 1)
            column = min(max(here[1] + move[1], 0), columns - 1)
            ends = (row, column) in holes or (row, column) == goal
            reward = 1.0 if (row, column) == goal else hole if ends else step
            yield chance, row * columns + column, reward, ends

    return from_outcomes(rows * columns, 4, outcomes, _first(rows * columns))


def gambler(goal: int, chance: float) -> Model:
    """Stake 1, 2, 4 or all of the capital, up to what is missing; 1 is paid for reaching the goal."""

    def outcomes(state: int, action: int) -> Iterator[tuple]:
        capital = state + 1
        stake = min((1, 2, 4, capital)[action], capital, goal - capital)
        for won, share in ((1, chance), (0, 1 - chance)):
            after = capital + stake if won else capital - stake
            yield share, min(max(after - 1, 0), goal - 2), float(after == goal), after in (0, goal)

    return from_outcomes(goal - 1, 4, outcomes, _first(goal - 1, goal // 4))


def cards() -> Model:
    """Draw or stand at a sum of 4 to 21 against a dealer's card, who stands at 17; an endless deck."""
    deal = np.array([4.0] * 8 + [16.0, 4.0]) / 52  # 2 to 9, 10, and 11 for the ace
    totals = np.zeros((10, 27))
    for shown in range(10):
        held = np.eye(27)[shown + 2]
        for total in range(17):
            for card, chance in enumerate(deal):
                held[min(total + card + 2, 26)] += held[total] * chance
            held[total] = 0.0
        totals[shown] = held

    def outcomes(state: int, draw: int) -> Iterator[tuple]:
        shown, mine = divmod(state, 18)
        mine += 4
        if draw:
            for card, chance in enumerate(deal):
                after = mine + card + 2
                over = after > 21
                yield chance, shown * 18 + min(after, 21) - 4, -1.0 if over else 0.0, over
            return
        wins = totals[shown, :mine].sum() + totals[shown, 22:].sum()
        ties = totals[shown, mine]
        for result, chance in ((1.0, wins), (0.0, ties), (-1.0, 1 - wins - ties)):
            yield max(chance, 0.0), state, result, True

    pairs = np.convolve(deal, deal)[:18]
    pairs[-1] += deal[-1] ** 2  # two aces count as 21 here
    return from_outcomes(180, 2, outcomes, np.outer(deal, pairs).ravel())


def lakes() -> list[Problem]:
    """Lakes of other shapes, a gambler, cards."""
    family = "lakes"
    small, slick, wide = lake("5x5", 5, 5, 0.5), lake("4x6", 4, 6, 0.7), lake("7x7", 7, 7, 0.3)
    dry = lake("6x6 dry", 6, 6, 0.0)
    cold = lake("6x5 cold", 6, 5, 0.4, -0.05, -1.0)
    bets, table = gambler(32, 0.4), cards()
    few, many = ((50, 100), (400, 100)), ((100, 200), (600, 200))

    def made(name: str, model: Model, target: float, behavior: float, sizes: tuple) -> Problem:
        best = greedy(optimal_q(model, 0.99))
        return Problem(family, name, model, explore(best, target), (explore(best, behavior),), sizes)

    return [
        made("5x5", small, 0.1, 0.4, few), made("5x5, uniform behavior", small, 0.1, 1.0, many),
        made("4x6, slick", slick, 0.0, 0.5, few), made("7x7", wide, 0.1, 0.5, many),
        made("7x7, near", wide, 0.05, 0.3, few), made("6x6 dry", dry, 0.1, 0.6, few),
        made("6x5, cold", cold, 0.1, 0.5, few), made("gambler", bets, 0.1, 0.6, few),
        made("cards", table, 0.0, 0.4, ((200, 20), (2000, 20))),
    ]  # fmt: skip
