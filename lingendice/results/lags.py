"""Chains of one log at several lags: implied timescales, and the Chapman-Kolmogorov comparison.

An eigenvalue lambda of the transition matrix at lag k decays as exp(-k / t), t = -k / ln |lambda|: its
implied timescale, the same at every lag at which the states are a Markov chain. With left and right
eigenvectors l and r, one logged pair x -> y moves

    lambda  by  l(x) (r(y) - lambda r(x)) / (n(x) l r) ,

and a probability (P^m)(x, A) by the same, with the visits of m steps for l and what is left of them for r.
Pairs of one path, or of one block of a single path, are summed before they are squared.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_whole
from lingendice.data.counts import Counts
from lingendice.data.display import strict_json
from lingendice.data.episodes import Sample, group_sample
from lingendice.data.interrupts import check
from lingendice.data.labels import index_of, label_or_number
from lingendice.data.paths import read_paths
from lingendice.data.rows import row_of_entry
from lingendice.results.plots import plot_lags
from lingendice.results.result import Row, Shown
from lingendice.results.tables import make_frame
from lingendice.results.targets import Interval, require_level, student_quantile

DENSE_STATES = 2000
"""States up to which all eigenvalues are computed; beyond, the largest ones alone."""
MOST_SETS = 5
"""Single states that are compared where no sets are given: those visited most."""


class SetComparison(NamedTuple):
    """Probability to be in a set again ``lag`` steps later: from the first lag, and as counted here."""

    name: Hashable
    lag: int
    predicted: float
    estimated: float
    predicted_error: float
    estimated_error: float
    degrees: float

    @property
    def z(self) -> float:
        """The difference in standard errors, which are taken for independent: too small if anything."""
        error = math.hypot(self.predicted_error, self.estimated_error)
        return (self.estimated - self.predicted) / error if error > 0.0 else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Lags(Shown):
    """Implied timescales of one log at several lags, with intervals."""

    lags: tuple[int, ...]
    timescales: Floats
    """Steps in which each slow process falls to 1 / e, lags by processes, slowest first."""
    chapman_kolmogorov: tuple[SetComparison, ...]
    """For all lags that are multiples of the first, set by set."""
    kept: Floats
    """Of each lag, the share of pairs between states that reach each other; the others are left out."""
    note: str
    _error: Floats
    """Standard errors of the logarithms of the timescales."""
    _degrees: Floats

    def interval(self, level: float = 0.95) -> Interval:
        """Intervals of all timescales, symmetric in their logarithm."""
        level = require_level(level)
        quantile = np.vectorize(lambda degrees: student_quantile(level, max(degrees, 1.0)))
        width = np.exp(quantile(self._degrees) * self._error) if self._error.size else self._error
        error = self.timescales * self._error
        return Interval(
            self.timescales / width,
            self.timescales * width,
            self.timescales,
            error,
            level,
            "influence",
            self.note,
        )

    def to_frame(self, level: float = 0.95, library: str | None = None) -> Any:
        """One row per lag and process."""
        low, high = self.interval(level)
        n_lags, n = self.timescales.shape
        return make_frame(
            {
                "lag": np.repeat(self.lags, n),
                "process": np.tile(np.arange(1, n + 1), n_lags),
                "timescale": self.timescales.ravel(),
                "low": low.ravel(),
                "high": high.ravel(),
            },
            library,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        compared = [
            strict_json({**one._asdict(), "name": str(one.name), "z": one.z})
            for one in self.chapman_kolmogorov
        ]
        names = ("lags", "timescales", "kept", "note")
        own = {name: strict_json(getattr(self, name)) for name in names}
        return {**own, "chapman_kolmogorov": strict_json(compared)}

    def plot(self, kind: str | None = None, ax: Any = None, level: float = 0.95) -> Any:
        """Draw timescales against lags ("timescales") and the comparison ("chapman_kolmogorov"); a Figure."""
        return plot_lags(self, level, kind, ax)

    def _table(self) -> list[Row]:
        low, high = self.interval()
        rows = [("lag", "implied timescales in steps (95%)")]
        for lag, *parts in zip(self.lags, self.timescales, low, high, strict=True):
            said = (f"{t:.4g} [{a:.4g}, {b:.4g}]" for t, a, b in zip(*parts, strict=True))
            rows.append((f"  {lag:,}", ", ".join(said) or "none"))
        if self.chapman_kolmogorov:
            worst = max(self.chapman_kolmogorov, key=lambda one: abs(one.z))
            rows.append(
                ("Chapman-Kolmogorov",
                 f"largest difference {worst.z:.2g} standard errors ({worst.name} at lag {worst.lag:,}: "
                 f"{worst.predicted:.3g} predicted, {worst.estimated:.3g} counted)")
            )  # fmt: skip
        if self.kept.min(initial=1.0) < 1.0:
            rows.append(
                ("left out", f"up to {1.0 - self.kept.min():.2%} of pairs: their states are not returned to")
            )
        return rows

    def __repr__(self) -> str:
        return f"Lags({', '.join(map(str, self.lags))}; {self.timescales.shape[1]} timescales)"


def lags(
    paths: Any,
    lags: Sequence[int] = (1, 2, 5, 10),
    *,
    timescales: int = 3,
    sets: Mapping[Hashable, Sequence[Any]] | None = None,
    weight: Any = None,
    separator: str = ">",
    columns: Mapping[str, str] | None = None,
) -> Lags:
    """Implied timescales at several lags, and what the first lag predicts for the others.

    Parameters
    ----------
    paths, weight, separator, columns
        As in :meth:`lingendice.Counts.from_paths`. Paths are taken to go on where they stop.
    lags
        Increasing; those that are multiples of the first are compared with what it predicts.
    timescales
        How many processes, slowest first.
    sets
        States by the name of their set, for the comparison; by default the states visited most, each alone.

    Notes
    -----
    Counts each lag once. Up to 2,000 states one dense eigenvalue problem for each lag, O(n^3).
    Of states that do not all reach each other the set with most pairs is taken; ``kept`` says how much of the
    log that is.

    Examples
    --------
    >>> import lingendice as lg
    >>> path = [0, 0, 0, 1, 1, 0, 0, 1, 1, 1] * 50
    >>> lg.lags(path, [1, 2]).timescales.shape
    (2, 1)
    """
    wanted = [require_whole("lags", lag, at_least=1) for lag in lags]
    if not wanted or any(b <= a for a, b in pairwise(wanted)):
        raise ValueError(f"lags={list(lags)} must be increasing whole numbers, at least one of them")
    timescales = require_whole("timescales", timescales, at_least=1)
    read = read_paths(paths, weight, separator, columns)
    chains = [
        _Chain.of(Counts.from_paths(read, lag, ends="truncated", keep_episodes=True), lag) for lag in wanted
    ]
    found = [_timescales(chain, timescales) for chain in chains]
    n = min(len(one) for one in found)
    columns_of = np.array([one[:n] for one in found], float).reshape(len(found), n, 3)
    return Lags(
        lags=tuple(wanted),
        timescales=columns_of[:, :, 0],
        chapman_kolmogorov=_compare(chains, sets),
        kept=np.array([chain.kept for chain in chains]),
        note=chains[0].sample.note,
        _error=columns_of[:, :, 1],
        _degrees=columns_of[:, :, 2],
    )


class _Chain(NamedTuple):
    """The states that reach each other at one lag."""

    counts: Counts
    lag: int
    states: NDArray[np.int64]
    matrix: Any
    """Transition probabilities between these states, a sparse array."""
    n: Floats
    """Pairs from each of them to another of them."""
    entry: NDArray[np.int64]
    """Entries of the counts between these states, and where each leads from and to."""
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    kept: float
    sample: Sample

    @classmethod
    def of(cls, counts: Counts, lag: int) -> _Chain:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        n_parts, part = connected_components(counts.matrix, connection="strong")
        source = row_of_entry(counts.indptr)
        inside = part[source] == part[counts.indices]
        held = np.bincount(part[source[inside]], counts.count[inside], n_parts)
        states = np.flatnonzero(part == held.argmax())
        place = np.full(counts.n_states, -1)
        place[states] = np.arange(states.size)
        entry = np.flatnonzero((place[source] >= 0) & (place[counts.indices] >= 0))
        source, target = place[source[entry]], place[counts.indices[entry]]
        n = np.bincount(source, counts.count[entry], states.size).astype(float)
        matrix = csr_array((counts.count[entry] / n[source], (source, target)), shape=(states.size,) * 2)
        kept = float(n.sum() / counts.total)
        return cls(counts, lag, states, matrix, n, entry, source, target, kept, group_sample(counts))

    def errors(self, scores: Floats) -> tuple[Floats, Floats]:
        """Standard errors and degrees of freedom of functionals, by scores of entries (one column each)."""
        from scipy.sparse import csr_array

        episodes, cluster = self.counts.episodes, self.sample.cluster
        assert episodes is not None
        assert cluster is not None
        column = np.full(self.counts.count.size, -1)
        column[self.entry] = np.arange(self.entry.size)
        where = column[episodes.entry]
        used = where >= 0
        weight = np.ones(where.size) if episodes.weight is None else episodes.weight
        n = self.sample.n_clusters
        sums = csr_array((weight[used], (cluster[used], where[used])), shape=(n, self.entry.size))
        rows = (sums @ scores) * math.sqrt(n / max(n - 1.0, 1.0))
        degrees = [self.sample.effective_degrees(rows[:, k]) for k in range(scores.shape[1])]
        return np.sqrt((rows**2).sum(axis=0)), np.array(degrees)


def _timescales(chain: _Chain, n: int) -> list[tuple[float, float, float]]:
    """Timescale, standard error of its logarithm and degrees of freedom, slowest first."""
    found = []
    for value, left, right in _eigenvectors(chain.matrix, n):
        size = abs(value)
        moved = left[chain.source] * (right[chain.target] - value * right[chain.source])
        moved = moved / (chain.n[chain.source] * (left @ right))
        # d|lambda| is what of d lambda points along lambda.
        scores = np.real(np.conj(value) * moved) / max(size, np.finfo(float).tiny)
        (error,), (degrees,) = chain.errors(scores[:, None])
        decay = -math.log(size) if 0.0 < size < 1.0 else (math.inf if size <= 0.0 else 0.0)
        timescale = chain.lag / decay if decay > 0.0 else math.inf
        # Of ln t, which is ln k less the logarithm of -ln |lambda|.
        of_log = error / (size * decay) if 0.0 < decay < math.inf else math.nan
        found.append((timescale, float(of_log), float(degrees)))
    return found


def _eigenvectors(matrix: Any, n: int) -> list[tuple[Any, Any, Any]]:
    """The n largest eigenvalues beside 1, with their left and right eigenvectors."""
    check()
    size = matrix.shape[0]
    if size <= DENSE_STATES:
        from scipy.linalg import eig

        values, left, right = eig(matrix.toarray(), left=True, right=True)
        left = left.conj()
    else:
        from scipy.sparse.linalg import eigs

        begin = np.random.default_rng(0).random(size)
        values, right = eigs(matrix, k=n + 1, which="LM", v0=begin)
        others, left = eigs(matrix.T.tocsr(), k=n + 1, which="LM", v0=begin)
        left = left[:, [int(np.abs(others - value).argmin()) for value in values]]
    one = int(np.abs(values - 1.0).argmin())
    order = [k for k in np.argsort(-np.abs(values), kind="stable") if k != one][:n]
    return [(values[k], left[:, k], right[:, k]) for k in order]


def _compare(
    chains: list[_Chain], sets: Mapping[Hashable, Sequence[Any]] | None
) -> tuple[SetComparison, ...]:
    """What the chain of the first lag predicts for the multiples of it, and what was counted there."""
    first, found = chains[0], []
    named = _sets(first, sets)
    for chain in chains:
        steps, rest = divmod(chain.lag, first.lag)
        if rest:
            continue
        for name, states in named.items():
            check()
            inside = [np.isin(one.states, states).astype(float) for one in (first, chain)]
            begin = [one.n * member for one, member in zip((first, chain), inside, strict=True)]
            if not (begin[0].any() and begin[1].any()):
                continue
            predicted = _staying(first, begin[0] / begin[0].sum(), inside[0], steps)
            estimated = _staying(chain, begin[1] / begin[1].sum(), inside[1], 1)
            found.append(
                SetComparison(
                    name, chain.lag, predicted[0], estimated[0], predicted[1], estimated[1],
                    min(predicted[2], estimated[2]),
                )
            )  # fmt: skip
    return tuple(found)


def _staying(chain: _Chain, begin: Floats, member: Floats, steps: int) -> tuple[float, float, float]:
    """Probability to be in the set after some steps, with its standard error and degrees of freedom."""
    ahead = [member]
    for _ in range(steps):
        ahead.append(chain.matrix @ ahead[-1])
    visits, scores = begin, np.zeros(chain.entry.size)
    for step in range(steps):
        after, before = ahead[steps - 1 - step], ahead[steps - step]
        rate = visits / np.maximum(chain.n, 1.0)
        scores += rate[chain.source] * (after[chain.target] - before[chain.source])
        visits = chain.matrix.T @ visits
    (error,), (degrees,) = chain.errors(scores[:, None])
    return float(begin @ ahead[steps]), float(error), float(degrees)


def _sets(chain: _Chain, sets: Mapping[Hashable, Sequence[Any]] | None) -> dict[Hashable, list[int]]:
    labels = chain.counts.state_labels
    if sets is None:
        top = chain.states[np.argsort(-chain.n, kind="stable")[:MOST_SETS]].tolist()
        return {label_or_number(labels, state): [state] for state in top}
    known = index_of(labels) if labels is not None else {k: k for k in range(chain.counts.n_states)}
    found: dict[Hashable, list[int]] = {}
    for name, states in sets.items():
        for state in states:
            if state not in known:
                raise ValueError(f"sets[{name!r}] has {state!r}, which is no state of the paths")
        found[name] = [known[state] for state in states]
    return found
