"""How much of a path its next state depends on: tests of order 0, 1 and 2, and of drift.

Every test compares, within cells, how next states fall on groups of rows: the cell is what a chain of the
tested order knows, the groups what it would have to know beyond that. Within each cell Pearson's X^2 of
groups by next states is compared with its mean and variance over all permutations; sums over cells are taken
for chi-squared.

References
----------
R. B. Dawson (1954). A simplified expression for the variance of the chi-square function on a contingency
    table. Biometrika 41.
P. Billingsley (1961). Statistical methods in Markov chains. Annals of Mathematical Statistics 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_number, require_whole
from lingendice.data.display import strict_json
from lingendice.data.last_rows import TERMINAL, TRUNCATED, require_ends
from lingendice.data.logs import MOST_KEPT
from lingendice.data.paths import Paths, read_paths
from lingendice.results.result import Row, Shown
from lingendice.results.tables import make_frame

Ids = NDArray[np.int64]

PARTS = 4
"""Parts of the log that are compared for drift."""
LATEST_STEP = 10
"""Steps of a path that are told apart; later ones are put together."""
LEAST_ROWS = 4
"""Rows that a table needs for its X^2 to have a variance."""
MOST_ORDER = 2


class OrderTest(NamedTuple):
    """One test: whether next states depend on more than the cell."""

    name: str
    statistic: float
    """X^2, summed over cells."""
    degrees: float
    """Its mean over permutations: what chance alone gives."""
    p_value: float
    """Probability of a statistic as large by chance; nan where nothing can be compared."""


@dataclass(frozen=True, eq=False, repr=False)
class MarkovOrder(Shown):
    """Tests of what the next state of paths depends on."""

    tests: tuple[OrderTest, ...]
    level: float
    """p-values below it reject."""
    n_pairs: int
    lag: int

    @property
    def order(self) -> int | None:
        """The smallest order that no test rejects, of it or of a higher one; None where order 2 is rejected.

        The three tests share the level. A lower order may pass alone: where the next state depends on the one
        before the present alone, neighbors are independent.
        """
        orders = range(MOST_ORDER + 1)
        rejected = [order for order in orders if self[f"order {order}"].p_value < self.level / len(orders)]
        found = max(rejected, default=-1) + 1
        return found if found <= MOST_ORDER else None

    def __getitem__(self, name: str) -> OrderTest:
        """The test of that name: "order 0", "order 1", "order 2", "drift", "step", "path"."""
        for test in self.tests:
            if test.name == name:
                return test
        known = ", ".join(repr(test.name) for test in self.tests)
        raise KeyError(f"there is no test {name!r}; there are {known}")

    def to_frame(self, library: str | None = None) -> Any:
        """One row per test."""
        columns = {name: [getattr(test, name) for test in self.tests] for name in OrderTest._fields}
        return make_frame(columns, library)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        tests = {test.name: strict_json(test._asdict()) for test in self.tests}
        return {
            "order": self.order,
            "level": self.level,
            "lag": self.lag,
            "n_pairs": self.n_pairs,
            "tests": tests,
        }

    def _table(self) -> list[Row]:
        found = self.order
        said = f"more than {MOST_ORDER}" if found is None else str(found)
        rows = [("order", f"{said} (tests at {self.level:g}, {self.n_pairs:,} steps)")]
        for test in self.tests:
            verdict = "nothing to compare" if np.isnan(test.p_value) else f"p = {test.p_value:.3g}"
            if test.p_value < self.level:
                verdict += f": {_MEANING[test.name]}"
            rows.append((test.name, verdict))
        return rows

    def __repr__(self) -> str:
        return f"MarkovOrder(order {self.order}, {self.n_pairs:,} steps)"


_MEANING = {
    "order 0": "the next state depends on the present one",
    "order 1": "the next state depends on the state before the present one",
    "order 2": "the next state depends on more than the last two",
    "drift": "transitions differ between earlier and later parts of the log",
    "step": "transitions differ between early and late steps of a path",
    "path": "transitions differ from path to path",
}


def markov_order(
    paths: Any,
    *,
    lag: int = 1,
    level: float = 0.05,
    ends: str | None = None,
    weight: Any = None,
    separator: str = ">",
    columns: Mapping[str, str] | None = None,
) -> MarkovOrder:
    """Test which order of a Markov chain paths call for, and whether it drifts.

    Parameters
    ----------
    paths, weight, separator, columns
        As in :meth:`lingendice.Counts.from_paths`.
    lag
        Every ``lag``-th state of a path is looked at, so that pairs do not overlap.
    level
        p-values below it reject.
    ends
        As in :meth:`lingendice.Counts.from_paths`: where paths end (``"terminal"``), start and end count.

    Returns
    -------
    MarkovOrder
        ``order 0``: next states depend on nothing; ``order 1``: on the present state alone; ``order 2``: on
        the last two. ``drift``: transitions are the same in all quarters of the log; ``step`` and ``path``
        (of several paths): at all steps of a path, and in all paths. A table of distinct paths, with how
        often each was seen, tells nothing of drift and of single paths.

    Notes
    -----
    Takes a few sorts of all steps. Few steps in a cell show little: a test that does not reject has not shown
    that the chain has that order.

    Examples
    --------
    >>> import lingendice as lg
    >>> lg.markov_order([0, 1, 2] * 100).order
    1
    """
    lag = require_whole("lag", lag, at_least=1)
    level = require_number("level", level)
    require_ends(ends)
    given = read_paths(paths, weight, separator, columns)
    read = given.repeated(MOST_KEPT)
    if ends is None:
        ends = TERMINAL if read.n_paths > 1 else TRUNCATED
    rows = _rows(_every(read, lag), ends == TERMINAL)
    known = rows.before >= 0
    both = known & (rows.earlier >= 0)
    pair = rows.state * (rows.state.max(initial=0) + 2) + rows.before
    n = rows.state.size
    quarter = np.arange(n) * PARTS // max(n, 1)
    none = np.zeros(n, np.int64)
    tests = [
        _test("order 0", none, rows.state, rows.following),
        _test("order 1", rows.state[known], rows.before[known], rows.following[known]),
        _test("order 2", pair[both], rows.earlier[both], rows.following[both]),
    ]
    if given.weight is None:  # a table of distinct paths has no order in time
        tests.append(_test("drift", rows.state, quarter, rows.following))
    if read.n_paths > 1:
        step = np.minimum(rows.step, LATEST_STEP)
        tests.append(_test("step", rows.state, step, rows.following))
        if given.weight is None:
            tests.append(_test("path", rows.state, rows.path, rows.following))
    return MarkovOrder(tuple(tests), level, n, lag)


class _Rows(NamedTuple):
    """Steps of paths; of what came before, -1 is not known."""

    state: Ids
    following: Ids
    before: Ids
    earlier: Ids
    step: Ids
    path: Ids


def _every(paths: Paths, lag: int) -> Paths:
    """Every ``lag``-th state of each path."""
    if lag == 1:
        return paths
    place = np.arange(paths.state.size) - np.repeat(paths.start[:-1], paths.length)
    length = -(-paths.length // lag)
    return Paths(paths.state[place % lag == 0], np.concatenate([[0], np.cumsum(length)]), paths.labels)


def _rows(paths: Paths, whole: bool) -> _Rows:
    """Every step with the two states before it; before and after ``whole`` paths there is a state, too."""
    state, length = paths.state.astype(np.int64), paths.length
    outside = int(state.max(initial=0)) + 1
    path = np.repeat(np.arange(length.size), length)
    step = np.arange(state.size) - np.repeat(paths.start[:-1], length)
    last = np.zeros(state.size, bool)
    last[paths.start[1:][length > 0] - 1] = True
    unknown = outside if whole else -1
    before = np.where(step > 0, np.append(-1, state[:-1])[: state.size], unknown)
    earlier = np.where(step > 1, np.append([-1, -1], state[:-2])[: state.size], unknown)
    following = np.where(last, outside, np.append(state[1:], outside)[: state.size])
    kept = np.ones(state.size, bool) if whole else ~last
    return _Rows(*(column[kept] for column in (state, following, before, earlier, step, path)))


def _test(name: str, cell: Ids, group: Ids, following: Ids) -> OrderTest:
    """X^2 of groups by next states within cells, summed over cells, against all permutations within cells."""
    from scipy.special import chdtrc

    if not cell.size:
        return OrderTest(name, 0.0, 0.0, np.nan)
    cell = np.unique(cell, return_inverse=True)[1]
    row, row_size, row_cell = _grouped(cell, group)
    column, column_size, column_cell = _grouped(cell, following)
    key, count = np.unique(row * column_size.size + column, return_counts=True)
    of_row, of_column = np.divmod(key, column_size.size)
    n = np.bincount(cell).astype(float)
    terms = count.astype(float) ** 2 / (row_size[of_row] * column_size[of_column])
    found = n * (np.bincount(row_cell[of_row], terms, n.size) - 1.0)
    means, variances = permutation_moments(
        n,
        np.bincount(row_cell, minlength=n.size).astype(float),
        np.bincount(row_cell, 1.0 / row_size, n.size).astype(float),
        np.bincount(column_cell, minlength=n.size).astype(float),
        np.bincount(column_cell, 1.0 / column_size, n.size).astype(float),
    )
    statistic, mean, variance = (float(part[means > 0.0].sum()) for part in (found, means, variances))
    if not (mean > 0.0 and variance > 0.0):
        return OrderTest(name, statistic, mean, np.nan)
    # A chi-squared variable of that mean and variance, in units of its own.
    unit = variance / (2.0 * mean)
    return OrderTest(name, statistic, mean, float(chdtrc(mean / unit, statistic / unit)))


def _grouped(cell: Ids, group: Ids) -> tuple[Ids, Floats, Ids]:
    """Every row's pair of cell and group by number, the sizes of the pairs, and their cells."""
    width = int(group.max()) + 1
    key, number, size = np.unique(cell * width + group, return_inverse=True, return_counts=True)
    return number, size.astype(float), key // width


def permutation_moments(
    n: Floats, rows: Floats, inverse_rows: Floats, columns: Floats, inverse_columns: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance of X^2 of tables over all tables with their margins; 0 where a table is too small.

    ``rows`` and ``columns`` are how many there are, ``inverse_*`` the sums of one over their totals.
    """
    able = (n >= LEAST_ROWS) & (rows > 1.0) & (columns > 1.0)
    size = np.where(able, n, LEAST_ROWS)
    v, w = (
        ((number - 1.0) * (size - number) / (size - 1.0), (size * inverse - number**2) / (size - 2.0))
        for number, inverse in ((rows, inverse_rows), (columns, inverse_columns))
    )
    mean = (rows - 1.0) * (columns - 1.0) * size / (size - 1.0)
    variance = (
        2.0 * size / (size - 3.0) * (v[0] - v[1]) * (w[0] - w[1]) + size**2 / (size - 1.0) * v[1] * w[1]
    )
    return np.where(able, mean, 0.0), np.where(able, np.maximum(variance, 0.0), 0.0)
