"""Names that one might try end in a sentence with the right name, and every right name exists."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest

import lingendice as lg
from lingendice.data.hints import HINTS


@pytest.fixture(scope="module")
def things():
    rng = np.random.default_rng(0)
    walk = rng.integers(0, 3, (30, 11))
    counts = lg.Counts.from_transitions(
        walk[:, :-1].ravel(), walk[:, 1:].ravel(), action=rng.integers(0, 2, 300),
        reward=rng.normal(size=300), episode=np.repeat(np.arange(30), 10), keep_episodes=True,
    )  # fmt: skip
    table = np.full((3, 2), 0.5)
    solution = lg.solve(counts, 0.9, policy=table)
    several = lg.solve(counts, 0.9, policy={"a": table, "b": [[1, 0]] * 3})
    return {
        "lingendice": lg, "Counts": counts, "Solution": solution, "Comparison": several,
        "Backtest": lg.backtest(counts, 0.9, n_splits=1), "Interval": solution.interval(),
        "Hitting": lg.hitting(counts, 2),
    }  # fmt: skip


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, names in HINTS.items() for name in names])
def test_wrong_names_end_in_the_right_one(things, what, name):
    meant = HINTS[what][name]
    with pytest.raises(AttributeError, match=f"has no attribute {name!r}; you may mean {re.escape(meant)}$"):
        getattr(things[what], name)


@pytest.mark.parametrize("what", HINTS)
def test_right_names_exist(things, what):
    """The first word of every hint is followed along its dots, from the thing itself or what is named."""
    for meant in set(HINTS[what].values()):
        path = re.match(r"[\w.]+", meant)[0].split(".")
        found = things[what]
        if path[0] in ("print", "json", "pickle", "from"):
            continue
        if path[0] in ("lingendice", "comparison"):
            found, path = {"lingendice": lg, "comparison": things["Comparison"]}[path[0]], path[1:]
        for name in path:
            found = getattr(found, name)


def test_unknown_names_are_plain_errors(things):
    for what, thing in things.items():
        with pytest.raises(AttributeError, match=rf"^(module )?'{what}'( object)? has no attribute 'xyzzy'$"):
            thing.xyzzy  # noqa: B018
        assert not hasattr(thing, "__array_interface__")


def test_solutions_over_other_data_give_hints_too():
    assert not hasattr(lg.solve([[1, 2], [3, 4]]), "pi")
    with pytest.raises(AttributeError, match="you may mean tau"):
        lg.solve([[1, 2], [3, 4]]).ratio  # noqa: B018


def test_copies_and_pickles_still_work(things):
    for what in ("Counts", "Solution", "Comparison", "Interval"):
        copy.copy(things[what])
        assert type(pickle.loads(pickle.dumps(things[what]))) is type(things[what])


def test_the_level_has_two_names(things):
    for what in ("Solution", "Comparison"):
        one, other = things[what].interval(level=0.8), things[what].interval(confidence_level=0.8)
        assert one.level == other.level == 0.8
        np.testing.assert_array_equal(one.high, other.high)
    low, high = things["Solution"].interval(confidence_level=0.5)
    assert low < things["Solution"].value < high
