"""Many target policies on one log: ranked, and compared with simultaneous intervals.

References
----------
V. Chernozhukov, D. Chetverikov, K. Kato (2013). Gaussian approximations and multiplier bootstrap for maxima
    of sums of high-dimensional random vectors. The Annals of Statistics 41.
J. C. Hsu (1984). Constrained simultaneous confidence intervals for multiple comparisons with the best. The
    Annals of Statistics 12.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_choice
from lingendice.data.display import strict_json, table
from lingendice.data.episodes import effective_degrees
from lingendice.data.hints import Hinted
from lingendice.data.rows import read_only
from lingendice.results.allowance import half_width
from lingendice.results.interval import UNIDENTIFIED, require_sample_size
from lingendice.results.plots import plot_comparison
from lingendice.results.ranges import UNKNOWN, clipped, degrees_within, ends_within
from lingendice.results.result import QUANTITIES
from lingendice.results.returns import NO_EPISODES
from lingendice.results.solution import Solution
from lingendice.results.status import Status
from lingendice.results.tables import comparison_frame
from lingendice.results.targets import Interval, ValueScores, require_level
from lingendice.solvers.shrinkage import ROUNDING

DRAWS = 20_000
"""Gaussian draws behind a simultaneous quantile: its error is about 0.01."""
CONTRASTS_AT_A_TIME = 256
BEHAVIOR = "behavior"
"""The name of the logged behavior in differences."""
LOGGED = object()
"""The logged behavior, whatever policies are called."""


HEADINGS = {"return": "return", "value": "value per step", "length": "length"}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Hinted):
    """Solutions of several policies on one log, in the order given.

    They are ranked, and intervals, differences and probabilities are taken, by the return of an episode where
    episodes end, else by the value per step: ``of`` says which. ``by("value")`` is the same comparison by
    another quantity, and methods take ``of=``.
    """

    names: tuple[Any, ...]
    solutions: tuple[Any, ...]
    """Each a :class:`Solution`, or a :class:`ContinuousSolution` for transitions."""
    seed: int = 0
    chosen: str | None = None
    """What to compare by: "return", "value" or "length"; None: what ``of`` finds."""

    known_as = "Comparison"

    @cached_property
    def of(self) -> str:
        """What policies are compared by: "return" where episodes end, else "value", unless chosen."""
        if self.chosen is not None:
            return self.chosen
        return "return" if self._has_returns else "value"

    @property
    def _has_returns(self) -> bool:
        return any(one.headline_of == "return" for one in self.solutions)

    def by(self, of: str | None = None) -> Comparison:
        """The same policies compared by "return", "value" or "length"; None: as they are compared here."""
        if of is None or require_choice("of", of, QUANTITIES) == self.of:
            return self
        others = self.__dict__.setdefault("_by", {})
        if of not in others:
            others[of] = replace(self, chosen=of)
        found: Comparison = others[of]
        return found

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.solutions)

    def __getitem__(self, name: Any) -> Any:
        """The solution of a policy, by its name (its number where none was given)."""
        return self.solutions[self._place(name)]

    def _place(self, name: Any) -> int:
        if name not in self.names:
            raise KeyError(f"no policy is called {name!r}; there are {', '.join(map(repr, self.names[:10]))}")
        return self.names.index(name)

    @property
    def values(self) -> Floats:
        """Per-step value of every policy (read-only), whatever they are compared by."""
        return self.by("value").estimates

    @property
    def returns(self) -> Floats:
        """Return of every policy (read-only); nan where no episode of it ends."""
        return self.by("return").estimates

    @property
    def lengths(self) -> Floats:
        """Length of an episode of every policy (read-only); nan where none ends."""
        return self.by("length").estimates

    @property
    def estimates(self) -> Floats:
        """What the policies are compared by, of every policy (read-only)."""
        return read_only(self._estimates)

    @cached_property
    def _estimates(self) -> Floats:
        for name, one in zip(self.names, self.solutions, strict=True):
            if one.status is Status.SEVERAL_DISTRIBUTIONS:
                raise ValueError(f"the policy {name!r} has no single value to compare: {one.status.advice}")
        if self.of != "length" and any(one.value is None for one in self.solutions):
            raise ValueError("the data hold no rewards, so there are no values to compare; pass reward=")
        found = [one.estimate_of(self.of) for one in self.solutions]
        if all(one is None for one in found):
            raise ValueError(f"no policy has a {self.of}: {NO_EPISODES}")
        return np.array([math.nan if one is None else one for one in found])

    @property
    def ranking(self) -> tuple[Any, ...]:
        """Names from the largest estimate to the smallest; those that are not identified come last."""
        return tuple(self.names[k] for k in np.argsort(-self.estimates, kind="stable"))

    @property
    def best(self) -> Any:
        """Name of the policy with the largest estimate."""
        if np.isnan(self.estimates).all():
            raise ValueError(f"no policy can be called the best: {UNIDENTIFIED}, for any of them")
        return self.ranking[0]

    @property
    def unfinished(self) -> str:
        """The policies whose solve ended short of its goal, each with its status; empty where none did."""
        ended = [
            f"{name} ({solution.status.value})"
            for name, solution in zip(self.names, self.solutions, strict=True)
            if solution.status.ended_short
        ]
        return ", ".join(ended)

    @property
    def _note(self) -> str:
        """What intervals rest on, and what they leave out."""
        note = next((part.note for part in self._scores if part.rows is not None), self._scores[0].note)
        unknown = [
            str(name) for name, part in zip(self.names, self._scores, strict=True) if part.rows is None
        ]
        if unknown:
            note += f"; not identified, so without an interval: {', '.join(unknown)}"
        if self.unfinished:
            note += f"; ended short of their goals, which is not allowed for: {self.unfinished}"
        return note

    @cached_property
    def _covariance(self) -> Floats:
        """Of the estimates, and of the behavior's."""
        return self._rows.T @ self._rows

    @cached_property
    def _every_score(self) -> tuple[ValueScores, ...]:
        """Those of the policies, and of the behavior."""
        _ = self.estimates  # says what to do where there are no rewards
        return (*self._scores, self.solutions[0].behavior_scores(self.of))

    @cached_property
    def _rows(self) -> Floats:
        """Influence of every piece of the log on every estimate, the behavior's last."""
        found = [part.rows for part in self._every_score]
        size = max((rows.shape[0] for rows in found if rows is not None), default=1)
        return np.concatenate([_padded(rows, size) for rows in found], axis=1)

    @cached_property
    def _scores(self) -> tuple[ValueScores, ...]:
        if isinstance(self.solutions[0], Solution):
            require_sample_size(self.solutions[0].operator.counts)
        return tuple(solution.scores(self.of) for solution in self.solutions)

    @property
    def behavior_value(self) -> float | None:
        """What the logged behavior earns per step, on the scale of the values."""
        return self.solutions[0].behavior_value

    @property
    def behavior_estimate(self) -> float | None:
        """What the policies are compared by, of the logged behavior."""
        found: float | None = self.solutions[0].behavior_estimate(self.of)
        return found

    @property
    def bias_allowance(self) -> Floats:
        """How far each estimate may be off other than by noise, as far as intervals allow for it."""
        return np.array([part.bias_allowance for part in self._scores])

    @property
    def covariance(self) -> Floats:
        """Covariance of the estimates: all come from one log (read-only)."""
        return read_only(self._covariance[:-1, :-1])

    def interval(
        self, level: float = 0.95, of: str | None = None, *, confidence_level: float | None = None
    ) -> Interval:
        """Simultaneous intervals: all hold together with probability ``level`` (or ``confidence_level``).

        The half-width is the standard error times a quantile, plus the allowance for bias. The quantile is
        that of max_k |z_k|, drawn from the joint Gaussian distribution of the influence functions (a Gaussian
        multiplier bootstrap, summed in closed form), and for each policy Student's of the same probability.

        ``of``: "return", "value" or "length"; by default what the policies are compared by.
        """
        level = level if confidence_level is None else confidence_level
        if self.by(of) is not self:
            return self.by(of).interval(level)
        return self._simultaneous(np.eye(len(self), len(self) + 1), level, f"over {len(self)} policies")

    def difference(self, first: Any, second: Any, level: float = 0.95, of: str | None = None) -> Interval:
        """Interval of the estimate of ``first`` minus that of ``second``, paired: both come from one log.

        Their noise is correlated and mostly cancels; their allowances for bias are added. ``BEHAVIOR``
        ("behavior", unless a policy is called so) stands for the logged behavior. ``of`` is that of
        ``interval``.
        """
        if self.by(of) is not self:
            return self.by(of).difference(first, second, level)
        level = require_level(level)
        asked = self._asked(self._contrast([(first, second)]))
        gain, error, bias, degrees = (float(part[0]) for part in asked)
        found = Interval.around(
            gain,
            half_width(error, bias, level, degrees),
            standard_error=error,
            level=level,
            method="influence",
            note=f"{self._named}paired; {self._note}",
            bias_allowance=bias,
        )
        return clipped(found, self._limits(self._contrast([(first, second)])[0]))

    def differences(self, level: float = 0.95, of: str | None = None) -> list[dict[str, Any]]:
        """What each policy gains over the logged behavior, and loses to the best: one row per policy.

        ``over_behavior`` and ``to_best`` are paired intervals, simultaneous over all policies; the best one
        has no ``to_best``. Best first. ``of`` is that of ``interval``.
        """
        if self.by(of) is not self:
            return self.by(of).differences(level)
        order, best = self.ranking, self.ranking[0]
        over_logged = self._contrast([(name, LOGGED) for name in order])
        over = self._simultaneous(over_logged, level, "paired with the behavior")
        others = order[1:]
        contrast = self._contrast([(name, best) for name in others])
        to_best = self._simultaneous(contrast, level, f"paired with {best}") if others else None
        rows = []
        for k, name in enumerate(order):
            row = {"policy": name, "over_behavior": over.entry(k)}
            rows.append(row | {"to_best": None if k == 0 or to_best is None else to_best.entry(k - 1)})
        return rows

    @cached_property
    def probability_best(self) -> dict[Any, float]:
        """How likely each policy is the best of them, by name; nan for one whose estimate is not identified.

        From draws of the joint distribution of the estimates' noise, and of biases anywhere within their
        allowances; infinite ones, and noise that is not known, leave every policy as likely.
        """
        known = np.isfinite(self.estimates)
        if not known.any():
            return dict.fromkeys(self.names, math.nan)
        covariance, bias = self.covariance[np.ix_(known, known)], self.bias_allowance[known]
        if not (np.isfinite(bias).all() and np.isfinite(covariance).all()):
            shares = np.full(int(known.sum()), 1.0 / known.sum())
        else:
            rng = np.random.default_rng(self.seed)
            noise = self._noise(covariance, rng)
            degrees = np.array([part.degrees for part in self._scores])[known]
            few = np.isfinite(degrees)
            noise[:, few] /= np.sqrt(rng.chisquare(degrees[few], size=(DRAWS, int(few.sum()))) / degrees[few])
            drawn = self.estimates[known] + noise + bias * rng.uniform(-1.0, 1.0, size=noise.shape)
            shares = np.bincount(drawn.argmax(axis=1), minlength=noise.shape[1]) / DRAWS
        found = np.full(len(self), math.nan)
        found[known] = shares
        return dict(zip(self.names, found.tolist(), strict=True))

    # -- contrasts -------------------------------------------------------------------------------------

    def _contrast(self, pairs: list[tuple[Any, Any]]) -> Floats:
        """Rows that take the second value of each pair from the first; the behavior comes last."""
        contrast = np.zeros((len(pairs), len(self) + 1))
        for row, (first, second) in enumerate(pairs):
            for name, sign in ((first, 1.0), (second, -1.0)):
                called_so = isinstance(name, str) and name == BEHAVIOR and name not in self.names
                is_behavior = name is LOGGED or called_so
                contrast[row, len(self) if is_behavior else self._place(name)] += sign
        return contrast

    def _asked(self, contrast: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Estimates, standard errors, allowances and degrees of freedom of contrasts.

        A policy that a contrast does not ask for has no part in it, though 0 times nan or infinity is nan.
        """
        behavior, covariance = self.behavior_estimate, self._covariance
        every_value = np.append(self.estimates, math.nan if behavior is None else behavior)
        every_bias = np.append(self.bias_allowance, 0.0)
        asked = [np.flatnonzero(row) for row in contrast]
        values = np.array([row[at] @ every_value[at] for row, at in zip(contrast, asked, strict=True)])
        bias = np.array([every_bias[at].sum() for at in asked])
        degrees = np.array([self._degrees(row, at) for row, at in zip(contrast, asked, strict=True)])
        variance = np.array([
            row[at] @ covariance[np.ix_(at, at)] @ row[at] for row, at in zip(contrast, asked, strict=True)
        ])  # fmt: skip
        # Of noise that two policies have in common rounding is left, which is none.
        variance[variance <= ROUNDING * (contrast**2 @ np.diag(np.nan_to_num(covariance)))] = 0.0
        return values, np.sqrt(variance), bias, degrees

    def _degrees(self, row: Floats, at: NDArray[np.int64]) -> float:
        """Degrees of freedom of one contrast.

        Those of a difference are its own: what two policies have in common cancels, and of many pieces that
        each value rests on a few may be left.
        """
        parts = [self._every_score[place] for place in at]
        most = [part.most for part in parts if part.most is not None]
        if len(parts) < 2 or len(most) < len(parts):
            return min((part.degrees for part in parts), default=math.inf)
        if math.isinf(min(most)):
            return math.inf
        return effective_degrees(self._rows[:, at] @ row[at], min(most))

    def _simultaneous(self, contrast: Floats, level: float, over: str) -> Interval:
        values, error, bias, degrees = self._asked(contrast)
        limits = [self._limits(row) for row in contrast]
        alone = [int(row.argmax()) if np.count_nonzero(row) == 1 else None for row in contrast]
        for k, policy in enumerate(alone):
            if policy is not None:
                degrees[k] = degrees_within(self._scores[policy], values[k], limits[k])
        quantile = self._quantiles(contrast, error, degrees, level, two_sided=True)
        low, high = values - error * quantile - bias, values + error * quantile + bias
        for k, policy in enumerate(alone):
            least, most = limits[k]
            if policy is not None and limits[k] != UNKNOWN:
                noise = math.hypot(error[k], self.solutions[policy].unseen_error(self.of))
                low[k], high[k] = ends_within(values[k], noise * quantile[k], noise, bias[k], limits[k])
            low[k], high[k] = max(low[k], least), min(high[k], most)
        return Interval(
            low,
            high,
            values,
            error,
            level=float(level),
            method="influence",
            note=f"{self._named}simultaneous {over}; {self._note}",
            bias_allowance=bias,
        )

    def _limits(self, row: Floats) -> tuple[float, float]:
        """The range of a contrast, from what ``reward_range`` says of every policy and of the behavior."""
        ranges = [one.range_of(self.of) for one in (*self.solutions, self.solutions[0])]
        parts = [(weight, ranges[at]) for at, weight in enumerate(row) if weight != 0.0]
        low = sum(weight * (least if weight > 0.0 else most) for weight, (least, most) in parts)
        high = sum(weight * (most if weight > 0.0 else least) for weight, (least, most) in parts)
        return low, high

    def contenders(self, level: float = 0.95, of: str | None = None) -> tuple[Any, ...]:
        """Policies that may be the best: all but those significantly below some other, jointly.

        A policy is out if its estimate is below another's by more than the joint one-sided margin of all
        differences; the set holds the best policy with probability at least ``level``. A policy whose
        estimate is not identified is never ruled out. ``of`` is that of ``interval``.
        """
        if self.by(of) is not self:
            return self.by(of).contenders(level)
        k = len(self)
        pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
        if not pairs:
            return self.names
        contrast = self._contrast([(self.names[i], self.names[j]) for i, j in pairs])
        _, error, bias, degrees = self._asked(contrast)
        margin = error * self._quantiles(contrast, error, degrees, level, two_sided=False) + bias
        found = self.estimates
        beaten = {i for row, (i, j) in enumerate(pairs) if found[j] - found[i] > margin[row]}
        return tuple(name for place, name in enumerate(self.names) if place not in beaten)

    def _quantiles(
        self, contrast: Floats, error: Floats, degrees: Floats, level: float, two_sided: bool
    ) -> Floats:
        """Student's quantiles of the probability that the largest standardized contrast has as a Gaussian.

        That of the largest is no smaller than that of one, which draws may fall short of.
        """
        from scipy.special import ndtr, ndtri, stdtrit

        alone = float(ndtri(0.5 + level / 2.0 if two_sided else level))
        quantile = max(self._quantile(contrast, error, level, two_sided), alone)
        few = np.isfinite(degrees)
        quantiles = np.full(degrees.size, quantile)
        quantiles[few] = stdtrit(degrees[few], ndtr(quantile))
        return quantiles

    def _quantile(self, contrast: Floats, error: Floats, level: float, two_sided: bool) -> float:
        """Of the largest of all standardized contrasts: O(draws x (policies^2 + contrasts x policies))."""
        require_level(level)
        noisy = error > 0
        if not noisy.any():
            return 0.0
        covariance, rng = np.nan_to_num(self._covariance), np.random.default_rng(self.seed)
        contrast, error = contrast[noisy], error[noisy]
        if len(contrast) <= len(covariance):
            draws = self._noise(contrast @ covariance @ contrast.T / np.outer(error, error), rng)
            most = np.abs(draws).max(axis=1) if two_sided else draws.max(axis=1)
            return float(np.quantile(most, level))
        # More contrasts than values: these are drawn, and the contrasts follow, some at a time.
        draws, most = self._noise(covariance, rng), np.full(DRAWS, -np.inf)
        scaled = (contrast / error[:, None]).T
        for first in range(0, len(contrast), CONTRASTS_AT_A_TIME):
            some = draws @ scaled[:, first : first + CONTRASTS_AT_A_TIME]
            np.maximum(most, (np.abs(some) if two_sided else some).max(axis=1), out=most)
        return float(np.quantile(most, level))

    def _noise(self, covariance: Floats, rng: np.random.Generator) -> Floats:
        """Draws of the joint Gaussian distribution; the covariance may have lost rank."""
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        draws: Floats = rng.standard_normal((DRAWS, values.size)) @ root.T
        return draws

    def to_dict(self) -> dict[str, Any]:
        """Names, estimates and ranking as strict JSON types; None where there is none."""
        found = {of: strict_json([one.estimate_of(of) for one in self.solutions]) for of in QUANTITIES}
        return {
            "names": [str(name) for name in self.names],
            "of": self.of,
            "values": found["value"],
            "returns": found["return"],
            "lengths": found["length"],
            "ranking": None if self._is_unknown else [str(name) for name in self.ranking],
            "solutions": [solution.to_dict() for solution in self.solutions],
        }

    @property
    def _is_unknown(self) -> bool:
        """Whether there is nothing to rank."""
        return all(one.estimate_of(self.of) is None for one in self.solutions) or (
            self.of != "length" and any(one.value is None for one in self.solutions)
        )

    @property
    def _named(self) -> str:
        """What a note begins with where it is not the value that is compared."""
        return "" if self.of == "value" else f"{self.of} {self.unit}; "

    @property
    def unit(self) -> str:
        """What the numbers compared are per: "per step", "per episode", ..."""
        found: str = self.solutions[0].unit_of(self.of)
        return found

    @property
    def _beside(self) -> tuple[str, ...]:
        """Quantities shown beside what the policies are compared by, where episodes end."""
        if not self._has_returns:
            return ()
        others = (of for of in QUANTITIES if of != self.of)
        return tuple(of for of in others if any(one.estimate_of(of) is not None for one in self.solutions))

    def to_frame(self, library: str | None = None, *, level: float = 0.95, of: str | None = None) -> Any:
        """The rows of :meth:`table` as a frame of ``"pandas"`` or ``"polars"``; default: the one in use."""
        return comparison_frame(self.by(of), level, library)

    def plot(self, level: float = 0.95, of: str | None = None, *, ax: Any = None) -> Any:
        """Draw the simultaneous intervals, best policy on top, on ``ax`` or a new figure, which is returned.

        ``of`` is that of ``interval``. Needs matplotlib (``pip install 'lingendice[plots]'``).
        """
        return plot_comparison(self.by(of), level, ax)

    def table(self, level: float = 0.95, of: str | None = None) -> list[dict[str, Any]]:
        """One row per policy, best first: estimate, interval, leak, failed checks, how likely it is the best.

        The estimate is under the name of what is compared (``of``), its interval under ``low`` and ``high``.
        Where episodes end the other quantities follow.

        The status of a solve that ended short of its goal stands first among the failed checks.

        Computes the intervals and runs the checks of every policy; ``print`` shows them from then on.
        """
        if self.by(of) is not self:
            return self.by(of).table(level)
        found = self.interval(level)
        may_win = set(self.contenders(level))
        places = [self.names.index(name) for name in self.ranking]
        rows = [
            {
                "policy": self.names[k],
                self.of: float(self.estimates[k]),
                "low": float(found.low[k]),
                "high": float(found.high[k]),
                **{other: self.solutions[k].estimate_of(other) for other in self._beside},
                "leak": self.solutions[k].leak,
                "failed_checks": _failures(self.solutions[k]),
                "may_be_best": self.names[k] in may_win,
                "probability_best": self.probability_best[self.names[k]],
            }
            for k in places
        ]
        self.__dict__["_known_table"] = level, found, rows
        return rows

    def columns(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows for people: intervals and checks only where ``table`` was called."""
        known = self.__dict__.get("_known_table")
        if known is None:
            rows, shown = [], (self.of, *self._beside)
            for name in self.names if self._is_unknown else self.ranking:
                one = self[name]
                leak = "" if one.state_distribution is None else f"{one.leak:.2%}"
                rows.append([str(name), *(_number(one.estimate_of(of)) for of in shown), leak])
            return ["policy", *(HEADINGS[of] for of in shown), "leak"], rows
        level, found, table = known
        rows = []
        for row in table:
            one, chance = found.entry(self._place(row["policy"])), row["probability_best"]
            likely = "" if math.isnan(chance) else f"{chance:.0%}"
            value, low, high = one.rounded()
            rows.append([
                str(row["policy"]), value, f"[{low}, {high}]", *(_number(row[of]) for of in self._beside),
                f"{row['leak']:.2%}", "yes" if row["may_be_best"] else "no", likely,
                ", ".join(row["failed_checks"]) or "none",
            ])  # fmt: skip
        return [
            "policy", HEADINGS[self.of], f"{level:.0%}, simultaneous", *(HEADINGS[of] for of in self._beside),
            "leak", "may be the best", "P(best)", "failed checks",
        ], rows  # fmt: skip

    @property
    def caption(self) -> str:
        """What is compared, beside the logged behavior, and what was not computed yet."""
        title = repr(self) + ("" if self.of == "value" else f" by {self.of}")
        title += f"; ended short of their goals: {self.unfinished}" if self.unfinished else ""
        if "_known_table" not in self.__dict__:
            return f"{title}; intervals and checks not computed: call table()"
        behavior = self.behavior_estimate
        if behavior is None:
            return title
        note = self.solutions[0].behavior_note(self.of)
        return f"{title}; behavior's {self.of} {behavior:.4g}" + (f" ({note})" if note else "")

    def _repr_html_(self) -> str:
        return table(*self.columns(), self.caption)

    def __repr__(self) -> str:
        return f"Comparison({len(self)} policies)"

    def __str__(self) -> str:
        headings, rows = self.columns()
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *rows)]
        return "\n".join([self.caption, *lines])


def _number(found: float | None) -> str:
    return "" if found is None else f"{found:.4g}"


def _failures(solution: Any) -> list[str]:
    """How the solve ended, where that is short of its goal, and the names of the checks that fail."""
    ended = [solution.status.value] if solution.status.ended_short else []
    return ended + [check.name for check in solution.diagnose() if not check.ok]


def _padded(rows: Floats | None, size: int) -> Floats:
    """A column of that length; what one value's rows have beyond another's is independent of it."""
    if rows is None:
        return np.full((size, 1), np.nan)
    return np.concatenate([rows, np.zeros((size - rows.shape[0], 1))])
