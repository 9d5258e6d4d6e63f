"""The phases that all parts of a spread problem go through together: each is run by every part at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.rows import row_sums
from lingendice.distributed.cluster_rounds import Mixer
from lingendice.distributed.mesh import Array, Mesh
from lingendice.distributed.part import Part
from lingendice.distributed.rounds import Found, Rounds, Terms, vector

_MOST_PASSES = 5_000
_STALLED = 200  # passes without a new least step


def prepare(part: Part, mesh: Mesh, system: Any, row_weight: Any) -> int:
    """Bring the rows into pull form; returns the number of entries."""
    weight = None if row_weight is None else vector(row_weight, part.block.n_cells)
    return part.prepare(mesh, system, weight)


def stationary(part: Part, mesh: Mesh, terms: Terms) -> Found:
    """The stationary distribution over the part's states."""
    return Rounds(part, mesh, terms, _totals(part)).run()


def _totals(part: Part) -> Floats | None:
    """What turns weights into probabilities: sums of counts; None where weights are probabilities."""
    assert part.pull is not None
    if part.pull.row_weight is not None:
        return None
    block = part.block
    goes_on = block.indices != block.n_states
    counted = block.count if goes_on.all() else np.where(goes_on, block.count, 0)
    return row_sums(block.indptr, counted).astype(float)


class Condensed(NamedTuple):
    """A part's strongly connected components, and which of them lead to which of any part."""

    component: Array
    """Of every state of the part, numbered over all parts."""
    n_all: int
    edges: Array
    """Pairs of components, once each; distributions that rows fall back to are numbered after all of them."""


def condense(part: Part, mesh: Mesh, out: Floats, distribution: Floats) -> Condensed:
    """Components of the part's own graph: all that the whole graph's components are made of.

    What is left to look at is edges between components, on the client: few where a part holds most of what
    its states lead to.
    """
    from scipy.sparse import csr_array

    from lingendice.model.classes import find_classes

    pull, size = part.pull, part.size
    assert pull is not None
    first, last = pull.cuts[part.index], pull.cuts[part.index + 1]
    entries = slice(int(pull.indptr[first]), int(pull.indptr[last]))
    sources = pull.sources[entries]
    own = csr_array(
        (np.ones(sources.size, np.int8), sources, pull.indptr[first : last + 1] - entries.start),
        shape=(size, size),
    )
    # Components are the same with all edges turned round.
    local = find_classes(own).component.astype(np.int64)
    counts = [int(held[0][0]) for held in mesh.gather(np.array([int(local.max(initial=-1)) + 1]))]
    n_all = sum(counts)
    component = local + sum(counts[: part.index])
    to = np.repeat(part.fetched(mesh, component), np.diff(pull.indptr))
    came = component[pull.sources]
    apart = to != came
    pairs = [np.unique(came[apart] * (n_all + len(distribution)) + to[apart])]
    for hub, (leaving, entering) in enumerate(zip(out.T, distribution, strict=True)):
        pairs.append(np.unique(component[leaving > 0.0]) * (n_all + len(distribution)) + n_all + hub)
        pairs.append((n_all + hub) * (n_all + len(distribution)) + np.unique(component[entering > 0.0]))
    keys = np.concatenate(pairs)
    return Condensed(component, n_all, np.stack(np.divmod(keys, n_all + len(distribution))))


def expected_next(part: Part, mesh: Mesh, values: Floats) -> Floats:
    """For every cell, the sum of ``values`` over its counted next states, terminal ones aside."""
    assert part.pull is not None
    block = part.block
    fetched = part.fetched(mesh, vector(values, part.size))
    place = np.searchsorted(part.pull.targets, block.indices)
    goes_on = block.indices != block.n_states
    after = np.where(goes_on, fetched[np.minimum(place, fetched.size - 1)], 0.0)
    return row_sums(block.indptr, block.count * after)


class Values(NamedTuple):
    """Values of a part's states, and how far the equation is from being met."""

    values: Floats
    residual: float


def state_values(part: Part, mesh: Mesh, terms: Terms, reward: Any, distribution: Any, goal: float) -> Values:
    """V = r + gamma P V, or at gamma = 1 the bias with mu V = 0, by passes that are extrapolated."""
    rounds = Rounds(part, mesh, terms, _totals(part))
    gamma, r, mu = terms.gamma, vector(reward, part.size), vector(distribution, part.size)
    c = np.broadcast_to(rounds.c, (part.size,))
    v, mixer = np.zeros(part.size), Mixer(mesh, relative=False)
    least, since, best = math.inf, 0, v
    residual = math.inf
    for _ in range(_MOST_PASSES):
        image = r + c * part.pulled_back(part.fetched(mesh, v.copy()))
        if terms.out.shape[1]:
            image += rounds.out @ mesh.total(terms.distribution @ v)
        if gamma == 1.0:
            image -= mesh.total(np.array([mu @ image]))[0]
        own = float(np.abs(image - v).max(initial=0.0)), float(mesh.told_to_stop)
        held = [numbers[0] for numbers in mesh.gather(np.array(own))]
        residual = max(float(numbers[0]) for numbers in held)
        mesh.tell(_, residual)
        since = 0 if residual < least else since + 1
        if residual < least:
            least, best = residual, image.copy()
        if residual <= goal or since > _STALLED or any(numbers[1] for numbers in held):
            break
        v = mixer.mix(v, image).copy()
    return Values(best, least)


class EntrySums(NamedTuple):
    """Sums over a part's entries that a standard error is made of."""

    level: float
    """count (factor (noise + reward noise) + shift)^2"""
    reward: float
    """factor^2 m2"""
    pooled: float
    """count (noise + reward noise)^2, and m2"""


def influence(
    part: Part, mesh: Mesh, values: Floats, ending: float, factor: Any, share: Any, shift: Any, reward: Any
) -> EntrySums:
    """Sums of squares of the influence of every entry; all but ``values`` is by cell."""
    assert part.pull is not None
    block = part.block
    fetched = np.append(part.fetched(mesh, vector(values, part.size)), ending)
    place = np.searchsorted(part.pull.targets, block.indices)
    after = fetched[np.where(block.indices == block.n_states, fetched.size - 1, place)]
    n = row_sums(block.indptr, block.count).astype(float)
    mean = np.divide(row_sums(block.indptr, block.count * after), n, out=np.zeros(n.size), where=n > 0)
    lengths = np.diff(block.indptr)

    def by_entry(cells: Any) -> Floats:
        return np.repeat(vector(cells, block.n_cells), lengths)

    noise = by_entry(share) * (after - np.repeat(mean, lengths))
    if reward is not None and block.reward_mean is not None:
        centered = block.reward_mean - by_entry(reward)
        noise += np.where(np.isfinite(centered), centered, 0.0)
    weight = by_entry(factor)
    count = block.count.astype(float)
    level = float(np.sum(count * (weight * noise + by_entry(shift)) ** 2))
    pooled = float(np.sum(count * noise**2))
    if reward is None or block.reward_m2 is None:
        return EntrySums(level, 0.0, pooled)
    return EntrySums(level, float(np.sum(weight**2 * block.reward_m2)), pooled + float(block.reward_m2.sum()))


PHASES: dict[str, Callable[..., Any]] = {
    "prepare": prepare,
    "stationary": stationary,
    "condense": condense,
    "expected_next": expected_next,
    "state_values": state_values,
    "influence": influence,
}
"""By name: what a task of the client asks for."""
