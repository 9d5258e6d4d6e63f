"""The split, made before any method was judged on it: families for development, others for the report."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from trust import (
    backlogs,
    blind,
    careless,
    derived,
    episodes,
    faint,
    garnets,
    grids,
    long_run,
    operations,
    partial,
    people,
    services,
    stress,
    taxi_pairs,
    toy_text,
    unseen,
    veiled,
    works,
)
from trust.problem import Problem


class Family(NamedTuple):
    """Problems of one kind."""

    build: Callable[[], list[Problem]]
    fits: bool = True
    """Whether a Markov model of the log identifies the value; where not, a flag is the right answer."""


DEVELOPMENT = {
    "random MDPs": Family(garnets.continuing),
    "random MDPs, episodic": Family(garnets.episodic),
    "grids": Family(grids.plain),
    "grids, slippery": Family(grids.slippery),
    "Taxi": Family(taxi_pairs.development),
    "formerly in the report": Family(derived.looked_at),
    "rare losses": Family(derived.disasters),
    "tiny logs": Family(derived.tiny),
    "slow chains": Family(derived.slow),
    "one paying cell": Family(derived.lone_reward),
    "service desks": Family(works.desks),
    "upkeep": Family(works.upkeep),
    "episodes": Family(episodes.development),
    "lakes": Family(works.lakes),
    "actions left out": Family(derived.never_taken, fits=False),
    "hidden or merged states": Family(derived.hidden, fits=False),
    "partial observation": Family(partial.problems, fits=False),
    "faint memories": Family(faint.problems, fits=False),
    "blind spots": Family(blind.problems, fits=False),
    "veiled states": Family(veiled.problems, fits=False),
    "careless": Family(derived.careless_logs, fits=False),
}
REPORT = {
    "cliffs": Family(grids.cliffs),
    "sparse rewards": Family(grids.sparse_rewards),
    "Gymnasium toy text": Family(toy_text.problems),
    "inventory": Family(operations.inventory),
    "networks of queues": Family(services.networks),
    "backlogs": Family(backlogs.problems),
    "replacement": Family(operations.replacement),
    "clinical": Family(people.clinical),
    "catalogs": Family(services.catalogs),
    "Taxi": Family(taxi_pairs.report),
    "ruin": Family(services.ruin),
    "structural zeros": Family(stress.zeros),
    "cycles": Family(stress.cycles),
    "numbers of episodes": Family(services.episode_counts),
    "episodes, unseen": Family(episodes.report),
    "on-policy": Family(stress.on_policy),
    "long horizons": Family(long_run.problems),
    "actions never taken": Family(stress.unidentified, fits=False),
    "unseen causes": Family(unseen.problems, fits=False),
    "careless logs": Family(careless.corrupted, fits=False),
}
SPLITS = {"development": DEVELOPMENT, "report": REPORT}


@lru_cache(maxsize=64)
def problems(split: str, family: str) -> tuple[Problem, ...]:
    """The problems of a family."""
    made = tuple(SPLITS[split][family].build())
    names = [problem.name for problem in made]
    if len(set(names)) != len(names) or any(problem.family != family for problem in made):
        raise ValueError(f"names in the family {family!r} must be unique and carry its name: {names}")
    return made


def all_problems(split: str) -> list[Problem]:
    """Every problem of a split."""
    return [problem for family in SPLITS[split] for problem in problems(split, family)]
