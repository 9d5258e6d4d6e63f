"""What a backtest found: one row per split of the log, and a verdict in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lingendice.data.display import amount, strict_json, table
from lingendice.data.hints import Hinted
from lingendice.results.tables import make_frame
from lingendice.results.targets import Interval, student_quantile

DEVIATIONS_OF_ALLOWANCE = 3.0
"""Standard deviations that an allowance for bias stands for. It is a bound, and where the target is close to
what was logged hardly any bias reaches it: added in full, 99 % of the differences on logs without drift were
inside their 95 % intervals; left out, 85 % where rewards are rare. As three deviations 97 % are."""
ROUNDING = 1e-9
"""Share of the larger number below which a difference is none."""
CHANCE = 0.05
"""How likely a group of splits without any fault is to be called in disagreement, by either rule."""
NAMES = {
    "random": "random halves",
    "interleaved": "interleaved parts",
    "time": "later parts",
}
"""What is predicted, by kind of split."""


@dataclass(frozen=True)
class Split:
    """What one part of a log predicts for the policy of the other, and what the other earned."""

    split: str
    """"random", "interleaved" or "time"."""
    number: int
    n_fitted: int
    """Episodes (or blocks of one path) that predict."""
    n_held_out: int
    """Episodes (or blocks) whose behavior is cloned and whose earnings are predicted."""
    predicted: float
    earned: float
    standard_error: float
    """Of the difference: noise of both parts, and the allowance for bias as a random error."""
    degrees: float
    level: float
    note: str = ""
    """Why there is no answer; empty where there is one."""

    @classmethod
    def of(cls, predicted: Interval, earned: Interval, degrees: tuple[float, float], **where: Any) -> Split:
        """Both parts are independent given the cloned policy, so that their variances add.

        The degrees of freedom are Satterthwaite's; an allowance for bias has no noise of its own.
        """
        variances = (predicted.standard_error**2, earned.standard_error**2)
        biases = (predicted.bias_allowance, earned.bias_allowance)
        total = sum(variances) + sum((bias / DEVIATIONS_OF_ALLOWANCE) ** 2 for bias in biases)
        spread = sum(part**2 / free for part, free in zip(variances, degrees, strict=True))
        return cls(
            predicted=float(predicted.estimate),
            earned=float(earned.estimate),
            standard_error=math.sqrt(total),
            degrees=total**2 / spread if spread > 0.0 else math.inf,
            **where,
        )

    @classmethod
    def unanswered(cls, note: str, **where: Any) -> Split:
        """A split of which nothing can be said."""
        return cls(
            predicted=math.nan, earned=math.nan, standard_error=math.nan, degrees=math.inf, note=note, **where
        )

    @property
    def difference(self) -> float:
        """What was predicted less what was earned."""
        return self.predicted - self.earned

    def half_width(self, level: float | None = None) -> float:
        """Half the width of the interval of the difference."""
        return self.standard_error * student_quantile(level or self.level, self.degrees)

    @property
    def low(self) -> float:
        """Lower end of the interval of the difference."""
        return self.difference - self.half_width()

    @property
    def high(self) -> float:
        """Upper end of the interval of the difference."""
        return self.difference + self.half_width()

    @property
    def answered(self) -> bool:
        """Whether both numbers and their noise are finite."""
        return not self.note and math.isfinite(self.difference) and math.isfinite(self.standard_error)

    @property
    def inside(self) -> bool | None:
        """Whether the interval of the difference holds 0; None where there is no answer."""
        return self.within(self.level)

    def within(self, level: float) -> bool | None:
        """The same for an interval of another level."""
        if not self.answered:
            return None
        least = ROUNDING * max(abs(self.predicted), abs(self.earned))
        return abs(self.difference) <= self.half_width(level) + least


@dataclass(frozen=True, eq=False, repr=False)
class Backtest(Hinted):
    """How well parts of a log predict each other: ``print`` shows the table and the verdict.

    Returned by :func:`lingendice.backtest`.
    """

    rows: tuple[Split, ...]
    gamma: float
    level: float
    of: str
    """"return" of an episode, or "value" per step."""
    pieces: str
    """What the log was split into."""

    known_as = "Backtest"

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The kinds of splits that were made."""
        return tuple(dict.fromkeys(row.split for row in self.rows))

    def inside(self, split: str | None = None) -> tuple[int, int]:
        """How many splits, of all or of one kind, lie inside their intervals, of how many with an answer."""
        asked = [row.inside for row in self._of(split) if row.answered]
        return sum(map(bool, asked)), len(asked)

    def agrees(self, split: str) -> bool | None:
        """Whether splits of one kind lie outside no more often and no farther than by chance.

        They disagree where so many are outside that the binomial distribution has less than 5 % of its mass
        there, or where any is outside an interval that all of them meet with probability ``level``. None
        without an answer.
        """
        rows = [row for row in self._of(split) if row.answered]
        if not rows:
            return None
        joint = 1.0 - (1.0 - self.level) / len(rows)
        too_many = _most_by_chance(len(rows), 1.0 - self.level) < sum(not row.inside for row in rows)
        return not too_many and all(row.within(joint) for row in rows)

    @property
    def drift(self) -> bool:
        """Whether later parts are not what earlier ones predict, while parts drawn at random agree."""
        mixed = [self.agrees(split) for split in self.splits if split != "time"]
        return self.agrees("time") is False and True in mixed and False not in mixed

    @property
    def smallest_visible(self) -> float:
        """Median half-width: a smaller difference would mostly not be seen. nan without an answer."""
        widths = [row.half_width() for row in self.rows if row.answered]
        return float(np.median(widths)) if widths else math.nan

    @property
    def verdict(self) -> str:
        """What was found, in plain words."""
        counted = []
        for split in self.splits:
            inside, n = self.inside(split)
            if n:
                counted.append(f"{inside} of {n} {NAMES[split]}")
        sentences = []
        if counted:
            sentences.append(f"{' and '.join(counted)} inside their {100 * self.level:g} % intervals.")
        sentences.append(self._conclusion)
        silent = [row for row in self.rows if not row.answered]
        if silent:
            note = silent[0].note or "its interval has no ends"
            sentences.append(f"{len(silent)} of {len(self.rows)} splits give no answer: {note}.")
        return " ".join(sentences)

    @property
    def _conclusion(self) -> str:
        agreed = {split: self.agrees(split) for split in self.splits}
        answers = [answer for answer in agreed.values() if answer is not None]
        if not answers:
            return "Nothing can be said of this log."
        if all(answers):
            seen = f"Differences below {self.smallest_visible:.2g} would mostly not be seen."
            return f"No sign against the log: one part predicts what the other earned. {seen}"
        if self.drift:
            return (
                "Drift: earlier rows do not predict later ones, though parts drawn at random predict each "
                "other. The process changed, or episodes close in time are alike. An estimate from all rows "
                "is an average over that time, and its interval is too narrow for what comes next: take the "
                "latest rows alone, or put what changed into the state."
            )
        if agreed.get("time") is False and len(answers) == 1:
            return (
                "Earlier rows do not predict later ones: the process drifts, or intervals are too narrow for "
                'this log. split="random" tells which.'
            )
        return (
            "Parts drawn at random do not predict each other: intervals are too narrow for this log. It may "
            "be small for the states that it has, or a few rewards may be most of what was earned."
        )

    def _of(self, split: str | None) -> list[Split]:
        return [row for row in self.rows if split in (None, row.split)]

    _NUMBERS = (
        "split", "number", "n_fitted", "n_held_out", "predicted", "earned", "difference", "low", "high",
        "inside", "note",
    )  # fmt: skip

    def to_frame(self, library: str | None = None) -> Any:
        """One row per split, as a frame of pandas or polars."""
        return make_frame(
            {name: [getattr(row, name) for row in self.rows] for name in self._NUMBERS}, library
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types: nan and infinity become None."""
        facts = {name: getattr(self, name) for name in ("of", "gamma", "level", "drift", "verdict")}
        facts |= {"agrees": {split: self.agrees(split) for split in self.splits}}
        facts |= {"smallest_visible": self.smallest_visible}
        rows = [{name: getattr(row, name) for name in self._NUMBERS} for row in self.rows]
        return {**{name: strict_json(fact) for name, fact in facts.items()}, "rows": strict_json(rows)}

    def columns(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows for people."""
        headings = ["split", "from", "to", "predicted", "earned", "difference", f"{100 * self.level:g} %", ""]
        return headings, [self._line(row) for row in self.rows]

    def _line(self, row: Split) -> list[str]:
        where = [f"{row.split} {row.number}", amount(row.n_fitted), amount(row.n_held_out)]
        if not row.answered:
            return [*where, f"{row.predicted:.4g}", f"{row.earned:.4g}", "", "", "no answer"]
        ends = f"[{row.low:.3g}, {row.high:.3g}]"
        return [
            *where, f"{row.predicted:.4g}", f"{row.earned:.4g}", f"{row.difference:.3g}", ends,
            "inside" if row.inside else "OUTSIDE",
        ]  # fmt: skip

    @property
    def caption(self) -> str:
        """What was split, and what was predicted."""
        what = "return of an episode" if self.of == "return" else "value per step"
        return f"Backtest of the {what} at gamma = {self.gamma:g}, split by {self.pieces}"

    def _repr_html_(self) -> str:
        return table(*self.columns(), f"{self.caption}. {self.verdict}")

    def __repr__(self) -> str:
        inside, n = self.inside()
        return f"Backtest({inside} of {n} splits inside{', drift' * self.drift})"

    def __str__(self) -> str:
        headings, rows = self.columns()
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (headings, *rows)]
        return "\n".join([self.caption, *lines, self.verdict])


def _most_by_chance(n: int, chance: float) -> int:
    """The smallest count that a binomial variable exceeds with probability ``CHANCE`` at most."""
    from scipy.special import bdtrc

    return next(k for k in range(n + 1) if bdtrc(k, n, chance) <= CHANCE)
