"""Work, patients, cars and debts that pile up, and parts that run down (report)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.stats import binom, poisson

from trust.model import Floats, Model, explore, from_outcomes, optimal_q, soft
from trust.operations import threshold
from trust.problem import Problem

SIZES = ((20, 100), (100, 200))


def _counts(mean: float, most: int) -> Floats:
    """Poisson probabilities of 0 to ``most``, the last of them with all that is beyond."""
    chance = poisson.pmf(np.arange(most + 1), mean)
    chance[-1] += 1.0 - chance.sum()
    return chance


def _successes(most: int, each: float) -> Floats:
    """Binomial probabilities: row n has the numbers of successes, 0 to n, among n."""
    return binom.pmf(np.arange(most + 1), np.arange(most + 1)[:, None], each)


# -- hospital beds ----------------------------------------------------------------------------------------


def hospital(beds: int, places: int) -> Model:
    """Patients in bed x patients listed for an elective admission; an action admits up to that many of them.

    An admission pays 4. Emergencies (1.2 a day) take a bed or are sent elsewhere at a cost of 6, referrals
    (1 a day) join the list or are lost at a cost of 2, and one patient in five leaves each day. Waiting costs
    .1 a patient and .03 times the square of their number.
    """
    emergencies, referrals, leaving = _counts(1.2, 5), _counts(1.0, 4), _successes(beds, 0.2)
    side = places + 1

    def outcomes(state: int, admit: int) -> Iterator[tuple]:
        in_bed, listed = divmod(state, side)
        admitted = min(admit, listed, beds - in_bed)
        paid = 4.0 * admitted - 0.1 * listed - 0.03 * listed**2
        for urgent, referred in product(range(emergencies.size), range(referrals.size)):
            chance = emergencies[urgent] * referrals[referred]
            taken = min(in_bed + admitted + urgent, beds)
            diverted = in_bed + admitted + urgent - taken
            waiting = min(listed - admitted + referred, places)
            turned_off = listed - admitted + referred - waiting
            reward = paid - 6.0 * diverted - 2.0 * turned_off
            for healed in range(taken + 1):
                yield chance * leaving[taken, healed], (taken - healed) * side + waiting, reward, False

    n_states = (beds + 1) * side
    return from_outcomes(n_states, 4, outcomes, np.eye(n_states)[beds // 2 * side])


def admit_above(beds: int, places: int, reserve: int) -> Floats:
    """Admit whom the list and the beds allow, up to three a day, with ``reserve`` beds kept free."""
    in_bed, listed = np.divmod(np.arange((beds + 1) * (places + 1)), places + 1)
    return np.eye(4)[np.clip(np.minimum(listed, beds - reserve - in_bed), 0, 3)]


# -- callbacks --------------------------------------------------------------------------------------------


def callback_desk(places: int, promises: int) -> Model:
    """Callers on hold x callbacks promised; an action is how many of two agents call back.

    An agent settles a matter within a step with probability .8, which pays 1. Of the callers (1.3 a step)
    those who find the line full are promised a callback, up to ``promises``; the others are lost at a cost of
    4. Being on hold costs .2 a caller, and promises cost .01 times the square of their number.
    """
    callers, settled = _counts(1.3, 5), _successes(2, 0.8)
    side = promises + 1

    def outcomes(state: int, calling_back: int) -> Iterator[tuple]:
        on_hold, promised = divmod(state, side)
        answering, dialing = min(2 - calling_back, on_hold), min(calling_back, promised)
        cost = 0.2 * on_hold + 0.01 * promised**2
        for answered, reached, come in product(range(answering + 1), range(dialing + 1), range(callers.size)):
            joining = min(come, places - on_hold + answered)
            promising = min(come - joining, promises - promised + reached)
            lost = come - joining - promising
            after = (on_hold - answered + joining) * side + promised - reached + promising
            chance = settled[answering, answered] * settled[dialing, reached] * callers[come]
            yield chance, after, answered + reached - cost - 4.0 * lost, False

    n_states = (places + 1) * side
    return from_outcomes(n_states, 3, outcomes, np.eye(n_states)[0])


# -- a garage ---------------------------------------------------------------------------------------------


def garage(spaces: int, noise: float) -> Model:
    """Cars parked; the price of entry is 1 to 4, and 5.5 to 2.2 drivers an hour come for it.

    One car in eight leaves each hour. A driver who finds the garage full costs 1; above three quarters full,
    cars that circle cost .1 times the square of what is above. Takings are logged with ``noise``.
    """
    drivers = [_counts(rate, 14) for rate in (5.5, 4.4, 3.3, 2.2)]
    leaving = _successes(spaces, 1 / 8)

    def outcomes(parked: int, price: int) -> Iterator[tuple]:
        crowding = 0.1 * max(parked - 0.75 * spaces, 0.0) ** 2
        for left, share in enumerate(leaving[parked, : parked + 1]):
            for come, chance in enumerate(drivers[price]):
                entering = min(come, spaces - parked + left)
                reward = (price + 1.0) * entering - (come - entering) - crowding
                yield share * chance, parked - left + entering, reward, False

    return from_outcomes(spaces + 1, 4, outcomes, np.eye(spaces + 1)[spaces // 4], noise)


# -- an inbox ---------------------------------------------------------------------------------------------


def inbox(places: int) -> Model:
    """Messages not answered; the day goes to a project, which pays 4, or to the answering of up to eight.

    Three messages a day come, and one more for every 20 that wait, since people ask again. One answer in five
    is put off. Waiting costs .01 a message and .002 times the square of their number; a message that the full
    inbox refuses costs 2.
    """
    answers = _successes(8, 0.8)

    def outcomes(waiting: int, answering: int) -> Iterator[tuple]:
        tried = min(8, waiting) if answering else 0
        paid = 4.0 * (not answering) - 0.01 * waiting - 0.002 * waiting**2
        for done, share in enumerate(answers[tried, : tried + 1]):
            for come, chance in enumerate(_counts(3.0 + waiting / 20, 14)):
                after = waiting - done + come
                yield share * chance, min(after, places), paid - 2.0 * max(after - places, 0), False

    return from_outcomes(places + 1, 2, outcomes, np.eye(places + 1)[3])


# -- accounts in arrears ----------------------------------------------------------------------------------


def arrears(most: int) -> Model:
    """Installments owed, 1 to ``most``; the lender waits, reminds (.2) or sends a collector (1).

    A month adds one installment; none to three are paid, more of them when asked. The account ends once
    nothing is owed, or by a default, likelier the more is owed, that loses .6 of the debt; funding costs .03
    of it a month. What would exceed ``most`` is written off.
    """
    paying = np.array([[0.4, 0.4, 0.15, 0.05], [0.25, 0.4, 0.25, 0.1], [0.15, 0.3, 0.35, 0.2]])
    price = (0.0, 0.2, 1.0)

    def outcomes(state: int, action: int) -> Iterator[tuple]:
        owed = state + 1
        cost = price[action] + 0.03 * owed
        default = 0.005 + 0.002 * owed
        yield default, state, -cost - 0.6 * owed, True
        for installments, chance in enumerate(paying[action]):
            paid = min(installments, owed + 1)
            after = min(owed + 1 - paid, most)
            yield (1 - default) * chance, max(after - 1, 0), paid - cost, after == 0

    initial = np.zeros(most)
    initial[3:8] = 1.0  # four to eight installments owed when the account is handed over
    return from_outcomes(most, 3, outcomes, initial)


# -- a repair depot ---------------------------------------------------------------------------------------


def depot(machines: int, shelf: int) -> Model:
    """Machines that await repair x spare parts on the shelf; an action orders none, three or six parts.

    Each machine at work pays .5 and breaks with probability .12; up to two a day are repaired, each with a
    part. An order costs 1 and arrives overnight with probability .6, else not at all; a part costs .3, and
    .04 a day on the shelf. Idle machines cost .05 times the square of their number.
    """
    breaking = _successes(machines, 0.12)
    side = shelf + 1

    def outcomes(state: int, order: int) -> Iterator[tuple]:
        broken, parts = divmod(state, side)
        repaired = min(2, broken, parts)
        bought = min(3 * order, shelf - parts + repaired)
        working = machines - broken
        paid = 0.5 * working - 1.0 * (bought > 0) - 0.04 * parts - 0.05 * broken**2
        for breaks, chance in enumerate(breaking[working, : working + 1]):
            for arrived, share in ((bought, 0.6), (0, 0.4)):
                after = (broken - repaired + breaks) * side + parts - repaired + arrived
                yield chance * share, after, paid - 0.3 * arrived, False

    n_states = (machines + 1) * side
    return from_outcomes(n_states, 3, outcomes, np.eye(n_states)[shelf // 2])


def reorder(machines: int, shelf: int, few: int, none: int) -> Floats:
    """Order three parts when no more than ``few`` are on the shelf, six when no more than ``none``."""
    parts = np.arange((machines + 1) * (shelf + 1)) % (shelf + 1)
    return np.eye(3)[np.where(parts <= none, 2, np.where(parts <= few, 1, 0))]


# -- the family -------------------------------------------------------------------------------------------


def problems() -> list[Problem]:
    """A ward, a desk, cars, mail, accounts and a depot; most targets fill what the behavior keeps emptier."""
    family = "backlogs"
    ward, desk, cars, mail = hospital(12, 9), callback_desk(4, 19), garage(40, 0.5), inbox(60)
    accounts, repairs = arrears(24), depot(12, 14)
    on_hold, promised = np.divmod(np.arange(desk.n_states), 20)
    calls_first = np.eye(3)[np.where(on_hold == 0, 2, np.where(on_hold == 1, 1, 0))]
    promises_first = np.eye(3)[np.where(promised >= 6, 2, np.where(promised >= 2, 1, 0))]
    return [
        Problem(family, "beds, no reserve", ward, explore(admit_above(12, 9, 0), 0.05),
                (explore(admit_above(12, 9, 4), 0.2),), SIZES),
        Problem(family, "callbacks, soft optimum", desk, soft(optimal_q(desk), 0.3),
                (explore(calls_first, 0.3), explore(promises_first, 0.3)), SIZES),
        Problem(family, "garage, cheaper", cars, explore(threshold(41, 4, (27, 33, 38)), 0.05),
                (explore(threshold(41, 4, (12, 18, 24)), 0.2),), SIZES),
        Problem(family, "inbox, answered late", mail, explore(threshold(61, 2, (20,)), 0.05),
                (explore(threshold(61, 2, (6,)), 0.2),), SIZES),
        Problem(family, "arrears, a patient lender", accounts, explore(threshold(24, 3, (6, 12)), 0.05),
                (explore(threshold(24, 3, (2, 8)), 0.2),), ((50, 100), (250, 100))),
        Problem(family, "depot, parts ordered earlier", repairs, explore(reorder(12, 14, 5, 2), 0.05),
                (explore(reorder(12, 14, 2, 0), 0.2), explore(reorder(12, 14, 0, 0), 0.4)), SIZES),
    ]  # fmt: skip
