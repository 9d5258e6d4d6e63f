"""Episodes that end: survival, funnels, costs per step, thresholds, walks past the log, few positives.

Written down before the treatment of episodes in the library was: `development` is what it was developed on,
`report` what judges it. The two share no family of dynamics with the same parameters.
"""

from __future__ import annotations

import numpy as np

from trust.model import Floats, Model, explore, from_outcomes, mix, optimal_q, sharpen, soft
from trust.problem import Problem, maker

BOTH = (0.99, 1.0)


# -- development ---------------------------------------------------------------------------------------


def ward(severities: int, treatments: int, rng: np.random.Generator) -> tuple[Model, Floats]:
    """Patients get better, worse, die (0) or are discharged (1); one treatment suits each severity."""
    suits = rng.integers(0, treatments, severities)

    def outcomes(state: int, treatment: int):
        off = abs(treatment - suits[state]) / treatments
        dies = 0.004 + 0.1 * (state / severities) ** 2 * (1.0 + off)
        worse, better = 0.1 + 0.3 * off, 0.35 - 0.25 * off
        yield dies, state, 0.0, True
        yield (1 - dies) * worse, min(state + 1, severities - 1), 0.0, False
        if state == 0:
            yield (1 - dies) * better, state, 1.0, True
        else:
            yield (1 - dies) * better, state - 1, 0.0, False
        yield (1 - dies) * (1 - worse - better), state, 0.0, False

    initial = np.zeros(severities)
    initial[severities // 4 : 3 * severities // 4] = 1.0
    return from_outcomes(severities, treatments, outcomes, initial), np.eye(treatments)[suits]


def funnel(stages: int, offers: int, pays: float, rng: np.random.Generator) -> tuple[Model, Floats]:
    """A visitor goes on, stays or leaves at each stage; the last one pays, every offer costs."""
    goes_on, leaves = rng.uniform(0.15, 0.5, (stages, offers)), rng.uniform(0.02, 0.3, (stages, offers))
    cost = rng.uniform(0.0, 0.2, offers)

    def outcomes(stage: int, offer: int):
        on, off = goes_on[stage, offer], leaves[stage, offer]
        yield off, stage, -cost[offer], True
        yield 1 - on - off, stage, -cost[offer], False
        if stage == stages - 1:
            yield on, stage, pays - cost[offer], True
        else:
            yield on, stage + 1, -cost[offer], False

    return from_outcomes(stages, offers, outcomes, np.eye(stages)[0]), np.eye(offers)[
        (goes_on - leaves).argmax(axis=1)
    ]


def stroll(places: int, start: int, both_ends: bool = False) -> Model:
    """One step left or right, -1 each; the right end is the way out, the left one a wall, or out, too."""

    def outcomes(place: int, right: int):
        after = place + (1 if right else -1)
        ends = after == places or (after < 0 and both_ends)
        yield 1.0, min(max(after, 0), places - 1), -1.0, ends

    return from_outcomes(places, 2, outcomes, np.eye(places)[start])


def rightward(places: int, chance: float) -> Floats:
    """Right with the given probability, everywhere."""
    return np.tile([1.0 - chance, chance], (places, 1))


def clinic(rooms: int, holding: float) -> Model:
    """Admit or turn away (thresholds); each visitor earns 1, waiting costs, the day ends once in 60 steps."""

    def outcomes(waiting: int, admit: int):
        for comes, chance in ((1, 0.45), (0, 0.55)):
            earned = -holding * waiting
            after = max(waiting - 1, 0)
            if comes:
                joins = bool(admit) and waiting < rooms - 1
                earned += 1.0 * joins - 0.2 * (bool(admit) and not joins)
                after = waiting + joins
            yield chance * (1 - 1 / 60), after, earned, False
            yield chance / 60, after, earned, True

    return from_outcomes(rooms, 2, outcomes, np.eye(rooms)[0])


def threshold(rooms: int, at: int, slip: float) -> Floats:
    """Admit below a number of waiting visitors, but for slips."""
    return explore(np.eye(2)[(np.arange(rooms) < at).astype(int)], 2 * slip)


def clicks(pages: int, layouts: int, rate: float, rng: np.random.Generator) -> tuple[Model, Floats]:
    """Few sessions end in a sale (1); most end in nothing."""
    moves = rng.dirichlet(np.full(pages, 0.3), (pages, layouts))
    sells = np.minimum(rate * rng.gamma(0.7, 1.4, (pages, layouts)), 0.5)
    leaves = rng.uniform(0.03, 0.1, (pages, layouts))

    def outcomes(page: int, layout: int):
        yield sells[page, layout], page, 1.0, True
        yield leaves[page, layout], page, 0.0, True
        for after in range(pages):
            rest = 1 - sells[page, layout] - leaves[page, layout]
            yield rest * moves[page, layout, after], after, 0.0, False

    return from_outcomes(pages, layouts, outcomes, np.ones(pages)), np.eye(layouts)[sells.argmax(axis=1)]


def subscribers(tiers: int, actions: int, rng: np.random.Generator) -> tuple[Model, Floats]:
    """Each month a tier's fee less what was spent on keeping the customer; few leave in a month."""
    fee, effect = np.sort(rng.uniform(0, 3, tiers)), rng.uniform(-0.5, 0.5, (tiers, actions))
    spent = np.linspace(0, 0.5, actions)

    def outcomes(tier: int, action: int):
        leaves = 0.01 + 0.05 * (1 - tier / tiers) * (1 - effect[tier, action])
        up = 0.25 + 0.3 * max(effect[tier, action], 0.0)
        down = 0.25 + 0.3 * max(-effect[tier, action], 0.0)
        earned = fee[tier] - spent[action]
        yield leaves, tier, earned, True
        yield (1 - leaves) * up, min(tier + 1, tiers - 1), earned, False
        yield (1 - leaves) * down, max(tier - 1, 0), earned, False
        yield (1 - leaves) * (1 - up - down), tier, earned, False

    return from_outcomes(tiers, actions, outcomes, np.ones(tiers)), np.eye(actions)[effect.argmax(axis=1)]


def prices(segments: int, levels: int, rng: np.random.Generator) -> tuple[Model, Floats, Floats]:
    """Many price levels, logged around one per segment; buyers come back more often than others."""
    grid, worth = np.linspace(0.2, 2.0, levels), rng.uniform(0.5, 1.6, segments)
    moves = rng.dirichlet(np.full(segments, 0.6), segments)
    buys = 1.0 / (1.0 + np.exp(5 * (grid[None, :] - worth[:, None])))

    def outcomes(segment: int, level: int):
        for sold, chance in ((1, buys[segment, level]), (0, 1 - buys[segment, level])):
            stays = 0.97 if sold else 0.9
            for after in range(segments):
                yield chance * stays * moves[segment, after], after, sold * float(grid[level]), False
            yield chance * (1 - stays), segment, sold * float(grid[level]), True

    model = from_outcomes(segments, levels, outcomes, np.ones(segments))
    center = rng.integers(levels // 4, 3 * levels // 4, segments)
    logged = np.exp(-0.5 * ((np.arange(levels) - center[:, None]) / (levels / 8)) ** 2) + 0.002
    best = np.eye(levels)[(grid * buys).argmax(axis=1)]
    return model, logged / logged.sum(axis=1, keepdims=True), best


def development() -> list[Problem]:
    """What the treatment of episodes was developed on."""
    family, found = "episodes", []

    def add(name: str, model: Model, target: Floats, logged: Floats, sizes, gammas=BOTH) -> None:
        found.append(Problem(family, name, model, target, (logged,), sizes, gammas=gammas))

    rng = maker(family, "ward")
    model, best = ward(24, 9, rng)
    staff = 0.5 * rng.dirichlet(np.full(9, 0.5), 24) + 0.3 * explore(best, 0.3) + 0.2 / 9
    add("ward, near", model, mix(explore(best, 0.3), staff, 0.3), staff, ((100, 300), (600, 300)))
    add("ward, far", model, sharpen(explore(best, 0.5), 2.0), staff, ((100, 300), (600, 300)))
    rng = maker(family, "funnel")
    model, best = funnel(6, 4, 4.0, rng)
    shown = 0.9 * rng.dirichlet(np.ones(4), 6) + 0.025
    add("funnel", model, mix(explore(best, 0.1), shown, 0.25), shown, ((60, 200), (500, 200)))
    for chance in (0.45, 0.3):
        add(f"stroll, right {chance}", stroll(20, 14), rightward(20, chance), rightward(20, 0.8),
            ((32, 2000), (128, 2000)), (0.99, 1.0))  # fmt: skip
    add(
        "stroll, both ends",
        stroll(20, 10, True),
        rightward(20, 0.4),
        rightward(20, 0.6),
        ((50, 500), (300, 500)),
    )
    add(
        "clinic, earlier",
        clinic(12, 0.1),
        threshold(12, 4, 0.02),
        threshold(12, 8, 0.15),
        ((20, 400), (100, 400)),
    )
    add(
        "clinic, later",
        clinic(12, 0.1),
        threshold(12, 9, 0.02),
        threshold(12, 5, 0.15),
        ((20, 400), (100, 400)),
    )
    rng = maker(family, "clicks")
    model, best = clicks(15, 5, 0.02, rng)
    shown = 0.9 * rng.dirichlet(np.full(5, 0.8), 15) + 0.02
    add("clicks", model, mix(explore(best, 0.1), shown, 0.3), shown, ((200, 200), (1500, 200)))
    rng = maker(family, "subscribers")
    model, best = subscribers(10, 4, rng)
    kept = 0.8 * rng.dirichlet(np.ones(4), 10) + 0.05
    add("subscribers", model, mix(explore(best, 0.1), kept, 0.4), kept, ((60, 1000), (400, 1000)))
    rng = maker(family, "prices")
    model, logged, best = prices(8, 20, rng)
    add("prices", model, mix(explore(best, 0.1), logged, 0.3), logged, ((100, 200), (600, 200)))
    return found


# -- report ----------------------------------------------------------------------------------------------


def loans(rng: np.random.Generator) -> tuple[Model, Floats]:
    """Months past due by size of the balance; contact costs and brings some back; ends: paid, written off."""
    due, sizes, contacts = 6, 4, 3
    balance, effort = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.0, 0.02, 0.08])
    brings = np.sort(rng.uniform(0.02, 0.35, (due * sizes, contacts)), axis=1)

    def outcomes(state: int, contact: int):
        late, size = divmod(state, sizes)
        cured, paid = brings[state, contact], 0.03 if late == 0 else 0.01
        earned = 0.01 * balance[size] * (late == 0) - effort[contact]
        yield paid, state, earned, True
        yield (1 - paid) * cured, size, earned, False
        if late == due - 1:
            yield (1 - paid) * (1 - cured) * 0.4, state, earned - balance[size], True
            yield (1 - paid) * (1 - cured) * 0.6, state, earned, False
        else:
            slips = 0.15 if late == 0 else 0.6
            yield (1 - paid) * (1 - cured) * slips, state + sizes, earned, False
            yield (1 - paid) * (1 - cured) * (1 - slips), state, earned, False

    initial = np.zeros((due, sizes))
    initial[0] = rng.dirichlet(np.ones(sizes))
    best = np.eye(contacts)[np.where(np.arange(due * sizes) // sizes > 1, 2, 1)]
    return from_outcomes(due * sizes, contacts, outcomes, initial.ravel()), best


def ladders(squares: int, rng: np.random.Generator) -> Model:
    """A board with jumps up and down: one of three dice is thrown until the last square, -1 a throw."""
    faces = ((1,), (1, 2, 3), (0, 0, 6))
    lands = np.arange(squares)
    for square in rng.choice(np.arange(2, squares - 1), squares // 5, replace=False):
        lands[square] = int(np.clip(square + rng.integers(-8, 9), 0, squares - 2))

    def outcomes(square: int, die: int):
        for face in faces[die]:
            after = square + face
            yield 1 / len(faces[die]), int(lands[min(after, squares - 1)]), -1.0, after >= squares - 1

    return from_outcomes(squares, 3, outcomes, np.eye(squares)[0])


def season(shelf: int, most: int, rng: np.random.Generator) -> Model:
    """Stock for a season that ends once in 30 days; what is left then is worth little."""
    demand = rng.dirichlet(np.full(5, 1.5))

    def outcomes(stock: int, order: int):
        have = min(stock + order, shelf)
        for asked, chance in enumerate(demand):
            sold = min(asked, have)
            earned = 1.0 * sold - 0.4 * (have - stock) - 0.03 * have
            yield chance * (29 / 30), have - sold, earned, False
            yield chance / 30, have - sold, earned + 0.1 * (have - sold), True

    return from_outcomes(shelf + 1, most, outcomes, np.eye(shelf + 1)[0])


def up_to(shelf: int, most: int, level: int) -> Floats:
    """Order up to a level."""
    return np.eye(most)[np.clip(level - np.arange(shelf + 1), 0, most - 1)]


def rescue(side: int, slip: float) -> tuple[Model, Floats]:
    """A grid with a goal (1) in one corner and three pits (-1); moves slip to a side."""
    steps, pits = ((-1, 0), (0, 1), (1, 0), (0, -1)), {side + 2, 2 * side + 4, 4 * side + 1}
    goal = side * side - 1

    def outcomes(cell: int, move: int):
        for turn, chance in ((0, 1 - slip), (1, slip / 2), (3, slip / 2)):
            down, right = steps[(move + turn) % 4]
            row, column = (
                min(max(cell // side + down, 0), side - 1),
                min(max(cell % side + right, 0), side - 1),
            )
            after = row * side + column
            yield chance, after, 1.0 * (after == goal) - 1.0 * (after in pits), after == goal or after in pits

    initial = np.array([cell not in pits and cell != goal for cell in range(side * side)], dtype=float)
    model = from_outcomes(side * side, 4, outcomes, initial)
    return model, soft(optimal_q(model, 0.98), 0.05)


def shelves(genres: int, items: int, rng: np.random.Generator) -> tuple[Model, Floats]:
    """A reader is shown one of many items; purchases (1) are rare, and any step may be the last."""
    taste = np.minimum(0.06 * rng.beta(0.5, 2.0, (genres, items)), 0.06)
    turns = rng.dirichlet(np.full(genres, 0.5), items)

    def outcomes(genre: int, item: int):
        bought = taste[genre, item]
        yield bought, genre, 1.0, True
        yield 0.08 * (1 - bought), genre, 0.0, True
        for after in range(genres):
            yield 0.92 * (1 - bought) * turns[item, after], after, 0.0, False

    return from_outcomes(genres, items, outcomes, np.ones(genres)), np.eye(items)[taste.argmax(axis=1)]


def report() -> list[Problem]:
    """What judges the treatment of episodes."""
    family, found = "episodes, unseen", []

    def add(name: str, model: Model, target: Floats, logged: Floats, sizes) -> None:
        found.append(Problem(family, name, model, target, (logged,), sizes))

    rng = maker(family, "loans")
    model, best = loans(rng)
    staff = 0.9 * rng.dirichlet(np.ones(3), 24) + 0.1 / 3
    add("loans", model, explore(best, 0.15), staff, ((80, 400), (600, 400)))
    model = ladders(60, maker(family, "ladders"))
    add("ladders, careful", model, np.tile([0.7, 0.2, 0.1], (60, 1)), np.tile([0.2, 0.5, 0.3], (60, 1)),
        ((30, 400), (200, 400)))  # fmt: skip
    add("ladders, bold", model, np.tile([0.02, 0.08, 0.9], (60, 1)), np.tile([0.2, 0.7, 0.1], (60, 1)),
        ((30, 400), (200, 400)))  # fmt: skip
    model = season(20, 8, maker(family, "season"))
    add("season, fuller", model, explore(up_to(20, 8, 8), 0.05), explore(up_to(20, 8, 4), 0.3),
        ((20, 200), (150, 200)))  # fmt: skip
    add("season, past the log", model, explore(up_to(20, 8, 14), 0.02), explore(up_to(20, 8, 3), 0.1),
        ((20, 200), (150, 200)))  # fmt: skip
    model, best = rescue(6, 0.2)
    add("rescue", model, best, explore(best, 0.6), ((60, 300), (500, 300)))
    model, best = shelves(6, 30, maker(family, "shelves"))
    shown = maker(family, "shelves", "shown").dirichlet(np.full(30, 0.5), 6) * 0.9 + 0.1 / 30
    add("shelves", model, mix(explore(best, 0.1), shown, 0.4), shown, ((300, 100), (2000, 100)))
    return found
