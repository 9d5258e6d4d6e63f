"""Inventory, queues and machine replacement: continuing models with costs."""

from __future__ import annotations

import numpy as np
from scipy.stats import poisson

from trust.model import Floats, Model, explore, from_outcomes, greedy, mix, optimal_q, sharpen, soft
from trust.problem import Problem

SIZES = ((20, 100), (100, 200))


def inventory_model(capacity: int, orders: int, demand: float, fixed: float) -> Model:
    """Stock 0 to ``capacity``; an action orders that many units, which arrive before the demand."""
    chance = poisson.pmf(np.arange(capacity + 1), demand)

    def outcomes(stock: int, order: int):
        bought = min(order, capacity - stock)
        level = stock + bought
        cost = 1.0 * bought + fixed * (bought > 0)
        for wanted in range(level):
            yield chance[wanted], level - wanted, 2.5 * wanted - cost - 0.1 * (level - wanted), False
        yield 1.0 - chance[:level].sum(), 0, 2.5 * level - cost, False

    initial = np.zeros(capacity + 1)
    initial[capacity // 2] = 1.0
    return from_outcomes(capacity + 1, orders, outcomes, initial)


def order_up_to(model: Model, reorder: int, level: int) -> Floats:
    """Below ``reorder`` order up to ``level``, as far as an order goes."""
    stock = np.arange(model.n_states)
    order = np.where(stock < reorder, np.minimum(level - stock, model.n_actions - 1), 0)
    return np.eye(model.n_actions)[np.maximum(order, 0)]


def inventory() -> list[Problem]:
    """Orders under random demand."""
    family = "inventory"
    shop, store = inventory_model(10, 5, 2.0, 0.5), inventory_model(20, 9, 4.0, 2.0)
    best_shop, best_store = optimal_q(shop), optimal_q(store)
    manual = order_up_to(store, 6, 14)
    return [
        Problem(family, "shop, soft optimum", shop, soft(best_shop, 0.1),
                (explore(order_up_to(shop, 3, 7), 0.2),), SIZES),
        Problem(family, "shop, order more", shop, explore(order_up_to(shop, 6, 10), 0.05),
                (explore(order_up_to(shop, 3, 7), 0.15),), SIZES),
        Problem(family, "store, optimum", store, greedy(best_store), (explore(manual, 0.3),), SIZES),
        Problem(family, "store, three managers", store, explore(order_up_to(store, 8, 16), 0.1),
                tuple(explore(order_up_to(store, *levels), 0.1) for levels in ((4, 12), (6, 18), (10, 15))),
                SIZES),
    ]  # fmt: skip


def service_queue(places: int, arrival: float, rates: tuple[float, ...], prices: tuple[float, ...]) -> Model:
    """Waiting customers cost .2 each, a full queue loses 5; actions are speeds of service with a price."""

    def outcomes(waiting: int, speed: int):
        served = rates[speed] if waiting else 0.0
        cost = -0.2 * waiting - prices[speed]
        for comes, chance in ((1, arrival), (0, 1 - arrival)):
            for done, share in ((1, served), (0, 1 - served)):
                after = waiting + comes - done
                lost = after > places
                yield chance * share, min(after, places), cost - 5.0 * lost, False

    initial = np.zeros(places + 1)
    initial[0] = 1.0
    return from_outcomes(places + 1, len(rates), outcomes, initial)


def admission_queue(places: int, arrival: float, service: float) -> Model:
    """A customer may be admitted (+2, waiting costs .1 each) or turned away."""

    def outcomes(waiting: int, admit: int):
        served = service if waiting else 0.0
        for comes, chance in ((1, arrival), (0, 1 - arrival)):
            taken = comes if admit and waiting < places else 0
            for done, share in ((1, served), (0, 1 - served)):
                yield chance * share, waiting + taken - done, 2.0 * taken - 0.1 * waiting, False

    initial = np.zeros(places + 1)
    initial[0] = 1.0
    return from_outcomes(places + 1, 2, outcomes, initial)


def threshold(n_states: int, n_actions: int, steps: tuple[int, ...]) -> Floats:
    """Action k from state ``steps[k - 1]`` on."""
    return np.eye(n_actions)[np.searchsorted(np.asarray(steps), np.arange(n_states), side="right")]


def queue() -> list[Problem]:
    """Service speeds and admission, one of them pushed into overload (development)."""
    family = "queue"
    busy = service_queue(20, 0.45, (0.3, 0.5, 0.7), (0.0, 0.3, 0.9))
    calm = service_queue(30, 0.3, (0.25, 0.4, 0.6), (0.0, 0.2, 0.6))
    door = admission_queue(15, 0.6, 0.5)
    slow = threshold(21, 3, (12, 17))
    return [
        Problem(family, "faster service", busy, explore(threshold(21, 3, (1, 4)), 0.05),
                (explore(threshold(21, 3, (2, 8)), 0.2),), SIZES),
        Problem(family, "pushed into overload", busy, explore(slow, 0.05),
                (explore(threshold(21, 3, (1, 3)), 0.15),), SIZES),
        Problem(family, "soft optimum, pooled", calm, soft(optimal_q(calm), 0.2),
                (explore(threshold(31, 3, (3, 10)), 0.2), explore(threshold(31, 3, (6, 9)), 0.4)), SIZES),
        Problem(family, "admission", door, explore(threshold(16, 2, (16,))[:, ::-1], 0.05),
                (explore(np.eye(2)[(np.arange(16) < 6).astype(int)], 0.2),), SIZES),
    ]  # fmt: skip


def aging_machine(ages: int, wear: float) -> Model:
    """Keep, repair (halves the age) or replace a machine that fails more often as it ages."""

    def outcomes(age: int, action: int):
        if action == 2:
            yield 1.0, 0, -8.0, False
            return
        used = age if action == 0 else age // 2
        fails = min(0.9, wear * used**1.5)
        earned = 3.0 - 0.1 * used - 2.0 * (action == 1)
        yield fails, 0, -20.0, False
        yield 1 - fails, min(used + 1, ages - 1), earned, False

    initial = np.zeros(ages)
    initial[0] = 1.0
    return from_outcomes(ages, 3, outcomes, initial)


def two_machines(ages: int, wear: float) -> Model:
    """Two aging machines; the actions keep both, replace the first, the second, or both."""

    def one(age: int, replaced: bool):
        if replaced:
            return [(1.0, 0, -6.0)]
        fails = min(0.9, wear * age)
        return [(fails, 0, -15.0), (1 - fails, min(age + 1, ages - 1), 2.0)]

    def outcomes(state: int, action: int):
        first, second = divmod(state, ages)
        for chance, age, earned in one(first, bool(action & 1)):
            for share, other, more in one(second, bool(action & 2)):
                yield chance * share, age * ages + other, earned + more, False

    initial = np.zeros(ages * ages)
    initial[0] = 1.0
    return from_outcomes(ages * ages, 4, outcomes, initial)


def replacement() -> list[Problem]:
    """When to repair and when to replace."""
    family = "replacement"
    old, pair = aging_machine(25, 0.004), two_machines(10, 0.03)
    best, both = optimal_q(old), optimal_q(pair)
    early, late = threshold(25, 3, (5, 9)), threshold(25, 3, (12, 20))
    return [
        Problem(family, "replace early", old, explore(early, 0.05), (explore(late, 0.2),), SIZES),
        Problem(family, "replace late", old, explore(late, 0.05), (explore(early, 0.15),), SIZES),
        Problem(family, "optimum, pooled", old, mix(greedy(best), soft(best, 0.3), 0.2),
                (explore(early, 0.1), explore(late, 0.1)), SIZES),
        Problem(family, "two machines", pair, sharpen(soft(both, 0.3), 2), (soft(both, 1.0),), SIZES),
    ]  # fmt: skip
