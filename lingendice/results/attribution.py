"""Attribution: what each channel of a journey adds to its conversions, by removal from a Markov chain.

A journey is a path start -> channel -> ... -> channel -> conversion, or it ends without one. With Q the
transition probabilities between channels (between the last ``order`` channels), V(x) is what x leads to,

    V = r + Q V ,       R = V(start) ,

and R_i the same where every arrival at channel i ends the journey. The removal effect of i is 1 - R_i / R,
its share the effect over the sum of all effects. With d_i the visits of a journey that ends at i,

    R - R_i = sum_{x, y in i} d_i(x) Q(x, y) V(y) ,

a sum of terms that are at least 0: no effect is negative, and none is a difference of two large numbers.

References
----------
E. Anderl, I. Becker, F. von Wangenheim, J. H. Schumann (2016). Mapping the customer journey: Lessons learned
    from graph-based online attribution modeling. International Journal of Research in Marketing 33.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import (
    Floats,
    first_bad,
    numeric_array,
    require_choice,
    require_nonnegative,
    require_whole,
)
from lingendice.data.display import amount, strict_json
from lingendice.data.interrupts import check
from lingendice.data.labels import index_of, label_or_number
from lingendice.data.paths import Paths, is_frame, names_of, read_paths
from lingendice.results.plots import plot_attribution
from lingendice.results.result import Row, Shown
from lingendice.results.tables import make_frame
from lingendice.results.targets import Interval, require_level, student_quantile

OF = ("share", "value", "removal_effect")
MOST_ENTRIES = 20_000_000
"""Numbers of scores that are held at one time."""
FACTORED_NODES = 2000
"""Contexts up to which the equations are factored; beyond, sums over the steps of journeys converge soon."""
MOST_SUMMED = 20_000
"""Steps of a journey that are summed up before the equations are factored after all."""


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Shown):
    """What each channel adds to the conversions of journeys, one entry per channel in every array."""

    channels: tuple[Hashable, ...]
    removal_effect: Floats
    """Share of what journeys earn that is lost where the channel ends every journey that comes to it."""
    share: Floats
    """Removal effects over their sum: they add up to 1."""
    total: float
    """What all journeys earned: the number of conversions, or their value."""
    n_journeys: float
    conversions: float
    order: int
    _covariance: Floats = field(repr=False)
    """Of the losses R - R_i of all channels, and last of R."""
    _per_journey: float = field(repr=False)

    @property
    def value(self) -> Floats:
        """What is credited to each channel: its share of the total."""
        return self.share * self.total

    def interval(self, level: float = 0.95, of: str = "share") -> Interval:
        """Confidence intervals of shares, values or removal effects, in closed form, clustered by journey.

        The value is the share of a total that is known: its interval is that of the share, in other units.
        """
        level, of = require_level(level), require_choice("of", of, OF)
        estimate = self.removal_effect if of == "removal_effect" else self.share
        n = len(self.channels)
        slope = np.hstack([np.eye(n), -self.removal_effect[:, None]]) / self._per_journey
        if of != "removal_effect":
            slope = (slope - self.share[:, None] * slope.sum(axis=0)) / self.removal_effect.sum()
        error = np.sqrt(np.maximum(np.einsum("ik,kl,il->i", slope, self._covariance, slope), 0.0))
        half = student_quantile(level, max(self.n_journeys - 1.0, 1.0)) * error
        note = f"clustered by {amount(self.n_journeys)} journeys"
        found = Interval(
            np.maximum(estimate - half, 0.0), np.minimum(estimate + half, 1.0), estimate, error, level,
            "influence", note,
        )  # fmt: skip
        return found.scaled(self.total) if of == "value" else found

    def to_frame(self, level: float | None = None, library: str | None = None) -> Any:
        """One row per channel, with the ends of the intervals of share and value where a level is given."""
        columns: dict[str, Any] = {"channel": list(self.channels), "removal_effect": self.removal_effect}
        for of in ("share", "value"):
            columns[of] = getattr(self, of)
            if level is not None:
                columns[f"{of}_low"], columns[f"{of}_high"] = self.interval(level, of)
        return make_frame(columns, library)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        names = ("removal_effect", "share", "value", "total", "n_journeys", "conversions", "order")
        arrays = {name: strict_json(getattr(self, name)) for name in names}
        return {"channels": [str(channel) for channel in self.channels], **arrays}

    def plot(self, ax: Any = None, level: float = 0.95) -> Any:
        """Draw the shares with their intervals; a Figure."""
        return plot_attribution(self, level, ax)

    def _table(self) -> list[Row]:
        said = [
            ("journeys", amount(self.n_journeys)),
            ("conversions", amount(self.conversions)),
            ("total", f"{self.total:,.6g}"),
            ("channels", f"share, value (order {self.order})"),
        ]
        first = np.argsort(-self.share, kind="stable")
        named = [(f"  {self.channels[i]}", f"{self.share[i]:.2%}, {self.value[i]:,.6g}") for i in first]
        return said + named

    def __repr__(self) -> str:
        return f"Attribution({len(self.channels):,} channels, {amount(self.n_journeys)} journeys)"


def removal_effects(
    paths: Any,
    conversion: Any,
    *,
    value: Any = None,
    order: int = 1,
    weight: Any = None,
    separator: str = ">",
    columns: Mapping[str, str] | None = None,
) -> Attribution:
    """Attribute conversions to the channels of journeys, by removing one channel at a time.

    Parameters
    ----------
    paths
        Journeys, of any kind that :meth:`lingendice.Counts.from_paths` reads.
    conversion
        The state in which a journey converts, or a list of such states: what comes after it does not count.
        Or the conversions of each path: one flag or number per path, or the name of their column in a frame
        with one row per path. A number is how often the path converted, of the times that it was seen.
    value
        What the conversions of each path are worth, one number per path or the name of a column; by default
        1 for every conversion. Shares are of this value then.
    order
        How many of the last channels decide what comes next: 1, 2 or 3, or more.
    weight, separator, columns
        As in :meth:`lingendice.Counts.from_paths`; ``weight`` (or the column ``count``) is how often each
        path was seen, with or without conversion.

    Notes
    -----
    Cost: O(states of the journeys), and for each channel two solves over the contexts (of ``order`` channels)
    that occur. Nothing is drawn at random and no effect is a difference, so that none is negative and every
    run gives the same bits.

    Examples
    --------
    >>> import lingendice as lg
    >>> journeys = ["C1 > C2 > C3 > buy", "C1", "C2 > C3"]
    >>> lg.removal_effects(journeys, "buy").share
    array([0.2, 0.4, 0.4])
    """
    order = require_whole("order", order, at_least=1)
    journeys = _read(paths, conversion, value, weight, separator, columns)
    chain = _chain(journeys, order)
    earned, losses, tables, rates = _remove(chain, journeys)
    if not earned > 0.0:
        raise ValueError(
            "no journey earns anything, so that there is nothing to attribute; check conversion="
        )
    effect = losses / earned
    if not effect.sum() > 0.0:
        raise ValueError("every conversion comes without a channel before it; there is nothing to attribute")
    labels = journeys.paths.labels
    return Attribution(
        channels=tuple(label_or_number(labels, int(channel)) for channel in chain.channels),
        removal_effect=effect,
        share=effect / effect.sum(),
        total=float(journeys.worth @ journeys.weight),
        n_journeys=float(journeys.weight.sum()),
        conversions=float(journeys.weight[journeys.converts].sum()),
        order=order,
        _covariance=_covariance(chain, journeys, tables, rates, earned),
        _per_journey=earned,
    )


# -- journeys -----------------------------------------------------------------------------------------------


class _Journeys(NamedTuple):
    """Paths of channels, and how each ended; one that converts at times is there twice."""

    paths: Paths
    """Without the conversion; some may be empty."""
    converts: NDArray[np.bool_]
    worth: Floats
    """What one journey of the path earned."""
    weight: Floats


def _read(
    paths: Any, conversion: Any, value: Any, weight: Any, separator: str, columns: Mapping[str, str] | None
) -> _Journeys:
    frame = paths if is_frame(paths) else None
    read = read_paths(paths, weight, separator, columns)
    if read.n_paths == 0:
        raise ValueError("paths is empty; give at least one path")
    seen = np.ones(read.n_paths) if read.weight is None else read.weight.astype(float)
    times = _column("conversion", conversion, frame, read.n_paths)
    if times is None:
        read, converts = _cut(read, conversion)
        times = np.where(converts, seen, 0.0)
    elif read.weight is None and ((times != 0.0) & (times != 1.0)).any():
        (row,) = first_bad((times != 0.0) & (times != 1.0))
        raise ValueError(
            f"path {row} converted {times[row]:g} times, but it is not said how often each path was seen: "
            'name the column by columns={"count": ...}, or pass weight='
        )
    elif (times > seen).any():
        (row,) = first_bad(times > seen)
        raise ValueError(f"path {row} converted {times[row]:g} times but was seen {seen[row]:g} times")
    earned = times
    if value is not None:
        given = _column("value", value, frame, read.n_paths)
        if given is None:
            raise ValueError("value must be one number per path, or the name of a column of the frame")
        if (given[times == 0.0] != 0.0).any():
            (row,) = first_bad((times == 0.0) & (given != 0.0))
            raise ValueError(f"value[{row}] is {given[row]:g} but path {row} did not convert; set it to 0")
        earned = given
    both = np.concatenate([np.flatnonzero(times > 0.0), np.flatnonzero(seen > times)])
    converts = np.arange(both.size) < np.count_nonzero(times > 0.0)
    worth = np.divide(earned, times, out=np.zeros_like(times), where=times > 0.0)[both]
    held = np.where(converts, times[both], (seen - times)[both])
    return _Journeys(read.take(both), converts, np.where(converts, worth, 0.0), held)


def _column(name: str, given: Any, frame: Any, n_paths: int) -> Floats | None:
    """Numbers per path, or None where ``given`` names a state."""
    if frame is not None and isinstance(given, str) and given in names_of(frame):
        given = frame[given]
    elif isinstance(given, (str, int)) or _are_states(given, n_paths):
        return None
    column = numeric_array(name, given).astype(float)
    if column.shape != (n_paths,):
        raise ValueError(
            f"{name} has shape {column.shape} but there are {n_paths:,} paths; give one per path"
        )
    require_nonnegative(name, column, f"{name} is at least 0 for every path")
    return column


def _are_states(given: Any, n_paths: int) -> bool:
    if not isinstance(given, (list, tuple, set)):
        return False
    return len(given) != n_paths or any(isinstance(entry, (str, tuple)) for entry in given)


def _cut(read: Paths, conversion: Any) -> tuple[Paths, NDArray[np.bool_]]:
    """Paths up to their first conversion, and whether there is one."""
    wanted = list(conversion) if isinstance(conversion, (list, tuple, set)) else [conversion]
    if read.labels is not None:
        known = index_of(read.labels)
        for state in wanted:
            if state not in known:
                raise ValueError(
                    f"conversion={state!r} is no state of the paths; pass one that is, or one flag per path"
                )
        wanted = [known[state] for state in wanted]
    row = np.arange(read.state.size)
    ends = np.append(np.where(np.isin(read.state, wanted), row, read.state.size), read.state.size)
    first = np.minimum.accumulate(ends[::-1])[::-1][read.start[:-1]]
    converts = first < read.start[1:]
    length = np.minimum(first, read.start[1:]) - read.start[:-1]
    start = np.concatenate([[0], np.cumsum(length)])
    place = np.arange(start[-1]) + np.repeat(read.start[:-1] - start[:-1], length)
    return Paths(read.state[place], start, read.labels, read.weight), converts


# -- the chain of contexts --------------------------------------------------------------------------------


class _Chain(NamedTuple):
    """Contexts (node 0 is the start) and the steps between them."""

    channels: NDArray[np.int64]
    """States that occur in journeys."""
    last: NDArray[np.int64]
    """Channel that each node ends with, by its place in ``channels``; -1 for the start."""
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    """Of every kind of step; the number of nodes for a conversion, one more for an end without."""
    probability: Floats
    reach: Floats
    """Visits of each node in a journey, on average."""
    step: NDArray[np.int64]
    """Kind of each step, journey by journey."""
    journey: NDArray[np.int64]

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.last.size


def _chain(journeys: _Journeys, order: int) -> _Chain:
    paths = journeys.paths
    channels, channel = np.unique(paths.state, return_inverse=True)
    length = paths.length
    begins = np.zeros(channel.size, bool)
    begins[paths.start[:-1][length > 0]] = True
    context = channel + 1
    for _ in range(order - 1):
        before = np.where(begins, 0, np.append(0, context[:-1])[: context.size])
        _, context = np.unique(before * (channels.size + 1) + channel, return_inverse=True)
        context = context + 1
    _, first, node = np.unique(context, return_index=True, return_inverse=True)
    n = first.size + 1
    # Every journey is its nodes between the start and an end.
    number = np.repeat(np.arange(length.size), length)
    n_steps = length + 1
    begin = np.cumsum(n_steps) - n_steps
    end = begin + length
    source, target = np.zeros((2, int(n_steps.sum())), np.int64)
    place = np.arange(channel.size) + number
    target[place] = source[place + 1] = node + 1
    target[end] = np.where(journeys.converts, n, n + 1)
    source[begin] = 0
    pair, step = np.unique(source * (n + 2) + target, return_inverse=True)
    journey = np.repeat(np.arange(length.size), n_steps)
    seen = np.bincount(step, journeys.weight[journey])
    source, target = np.divmod(pair, n + 2)
    visits = np.bincount(source, seen, n)
    return _Chain(
        channels, np.append(-1, channel[first]), source, target, seen / visits[source],
        visits / journeys.weight.sum(), step, journey,
    )  # fmt: skip


def _remove(chain: _Chain, journeys: _Journeys) -> tuple[float, Floats, Floats, Floats]:
    """R, the losses R - R_i, scores of every kind of step, and what a conversion counts by its last node.

    One journey moves R_i by the sum over its steps x -> y of d_i(x) / d(x) (r + V_i(y) - V_i(x)), and what it
    earned by itself takes the place of r in the last.
    """
    from scipy.sparse import csr_array

    n, m = chain.n, chain.channels.size
    inside = chain.target < n
    steps = csr_array((chain.probability[inside], (chain.source[inside], chain.target[inside])), shape=(n, n))
    last = chain.step[np.cumsum(np.bincount(chain.journey)) - 1]
    won = np.bincount(chain.source[last], journeys.weight * journeys.worth, n)
    reward = won / (chain.reach * journeys.weight.sum())
    worth = _solve(steps, reward[:, None], np.zeros((n, 1), bool))[:, 0]
    removed = chain.last[:, None] == np.arange(m)
    begin = np.zeros((n, m))
    begin[0] = 1.0
    after = _solve(steps, np.where(removed, 0.0, reward[:, None]), removed)
    visits = _solve(steps.T.tocsr(), begin, removed)
    arrivals = np.where(removed, steps.T @ visits, 0.0)
    losses = worth @ arrivals
    rates = visits / chain.reach[:, None]
    following = np.vstack([after, np.zeros((2, m))])
    tables = rates[chain.source] * (following[chain.target] - after[chain.source])
    return float(worth[0]), losses, tables, rates


def _solve(steps: Any, right: Floats, removed: NDArray[np.bool_]) -> Floats:
    """x = b + Q x for every column, x = 0 where removed; all terms at least 0, and so is every sum.

    Factors of I - Q with pivots on the diagonal have no positive entries beside it: nothing is subtracted but
    on the diagonal. Where there are many contexts, the terms Q^t b are summed until they no longer count.
    """
    if steps.shape[0] > FACTORED_NODES:
        found = _sum_of_powers(steps, right, removed)
        if found is not None:
            return found
    solved = np.zeros_like(right)
    for column in range(right.shape[1]):
        check()
        kept = np.flatnonzero(~removed[:, column])
        solved[kept, column] = _factored(steps[kept][:, kept], right[kept, column])
    return solved


def _factored(steps: Any, right: Floats) -> Floats:
    from scipy import sparse
    from scipy.sparse.linalg import splu

    system = (sparse.eye_array(right.size) - steps).tocsc()
    factor = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    solved: Floats = factor.solve(right)
    return solved


def _sum_of_powers(steps: Any, right: Floats, removed: NDArray[np.bool_]) -> Floats | None:
    total, term, before = right.copy(), right, np.inf
    for _ in range(MOST_SUMMED):
        check()
        term = np.where(removed, 0.0, steps @ term)
        total += term
        size = float(term.sum())
        if size == 0.0:
            return total
        shrinks = size / before
        # What is still to come is at most size * shrinks / (1 - shrinks), once terms shrink steadily.
        if 0.0 < shrinks < 1.0 and size * shrinks <= 1e-16 * (1.0 - shrinks) * float(
            total[total > 0.0].min()
        ):
            return total
        before = size
    return None


def _covariance(chain: _Chain, journeys: _Journeys, tables: Floats, rates: Floats, earned: float) -> Floats:
    """Covariance of the losses and R: products of what each journey adds, less what it adds on average."""
    from scipy.sparse import csr_array

    n_journeys, m = journeys.weight.size, tables.shape[1]
    begin = np.concatenate([[0], np.cumsum(np.bincount(chain.journey, minlength=n_journeys))])
    last = chain.source[chain.step[begin[1:] - 1]]
    total, products, sums = float(journeys.weight.sum()), np.zeros((m + 1, m + 1)), np.zeros(m + 1)
    at_once = max(1, MOST_ENTRIES // (m + 1))
    for first in range(0, n_journeys, at_once):
        check()
        some = slice(first, min(first + at_once, n_journeys))
        rows = slice(begin[first], begin[some.stop])
        held = csr_array(
            (np.ones(rows.stop - rows.start), chain.step[rows], begin[first : some.stop + 1] - rows.start),
            shape=(some.stop - first, tables.shape[0]),
        )
        kept = held @ tables + rates[last[some]] * journeys.worth[some, None]
        alone = journeys.worth[some] - earned
        scores = np.hstack([alone[:, None] - kept, alone[:, None]])
        weighted = journeys.weight[some, None] * scores
        products += scores.T @ weighted
        sums += weighted.sum(axis=0)
    products -= np.outer(sums, sums) / total
    covariance: Floats = products / total**2 * (total / max(total - 1.0, 1.0))
    return covariance
