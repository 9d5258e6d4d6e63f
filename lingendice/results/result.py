"""What every result has in common: it shows what is known, and computes only what it is asked for.

``repr``, ``str``, ``to_dict`` and notebooks never solve, check or bound anything. ``diagnose()``,
``interval()`` and the like compute when they are called, and what they found is shown from then on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from lingendice.data.checks import require_choice
from lingendice.data.display import duration, strict_json, table_of_facts
from lingendice.data.hints import Hinted
from lingendice.results.status import Status

if TYPE_CHECKING:
    from lingendice.results.diagnostics import Check
    from lingendice.results.targets import Interval

Row = tuple[str, str]
"""A name and what is said of it."""
# Keys of what was found, beside cached properties; spaces keep them from being attributes.
_CHECKS = "all checks"
_INTERVAL = "interval of "
QUANTITIES = ("return", "value", "length")
"""What is estimated of a policy, and policies may be ranked by."""


class Shown:
    """A table of facts, as text and as HTML."""

    def _table(self) -> list[Row]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(f"{name:<22} {text}" for name, text in self._table())

    def _repr_html_(self) -> str:
        return table_of_facts(type(self).__name__, self._table())


class Result(Hinted, Shown):
    """The base of what ``solve`` returns. Subclasses say what they know and how they compute the rest."""

    status: Status
    gamma: float
    method: str
    reason: str
    n_iter: int
    seconds: float
    listed: ClassVar[tuple[str, ...]] = ()
    """What ``to_dict`` shows beyond how the result was found."""
    costly: ClassVar[tuple[str, ...]] = ()
    """Those of them that take a solve: they are shown once they were asked for."""

    known_as = "Solution"

    @property
    def value(self) -> float | None:
        """Per-step value; None without rewards."""
        raise NotImplementedError

    @property
    def expected_return(self) -> float | None:
        """Discounted return from the initial distribution, value / (1 - gamma); None at gamma = 1."""
        return None if self.value is None or self.gamma == 1.0 else self.value / (1.0 - self.gamma)

    @property
    def expected_length(self) -> float | None:
        """Steps of an episode; None where none is estimated."""
        return None

    @property
    def _episodes_end(self) -> bool:
        """Whether the data show ends of episodes."""
        return False

    @property
    def headline_of(self) -> str:
        """What is shown first and policies are ranked by: "return" where episodes end, else "value"."""
        return "return" if self._episodes_end and self.expected_return is not None else "value"

    def estimate_of(self, of: str) -> float | None:
        """``value``, ``expected_return`` or ``expected_length``, by the name that ``interval`` takes."""
        require_choice("of", of, QUANTITIES)
        return {"value": self.value, "return": self.expected_return}.get(of, self.expected_length)

    def range_of(self, of: str) -> tuple[float, float]:
        """What ``reward_range`` says of the value or the return; infinite where it says nothing."""
        return -math.inf, math.inf

    def unseen_error(self, of: str) -> float:
        """Standard error of outcomes that ``reward_range`` allows and the log may just not show."""
        return 0.0

    def _within_range(self, found: Interval, of: Any, in_closed_form: bool) -> Interval:
        """The interval with ends that respect ``range_of``."""
        return found

    def unit_of(self, of: str) -> str:
        """What the numbers of a quantity are per."""
        if of == "value":
            return "per step"
        counted = "" if self.gamma == 1.0 else ", discounted"
        return f"{'steps ' * (of == 'length')}per episode{counted}"

    @property
    def converged(self) -> bool:
        """Whether the answer meets what was asked of it."""
        raise NotImplementedError

    def _checks(self) -> tuple[Check, ...]:
        raise NotImplementedError

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        raise NotImplementedError

    def _episode_interval(self, level: float, of: str, method: str, **options: Any) -> Interval:
        if of == "length" or self.gamma == 1.0:
            raise ValueError(f"{self.method} gives the return for gamma < 1, and no length")
        return self._interval(level, "value", method, **options).scaled(1.0 / (1.0 - self.gamma))

    def _value_rows(self) -> list[Row]:
        """The value per step, and what it amounts to from the first state on."""
        if self.value is None:
            return []
        rows = [("value per step", f"{self.value:.6g}{self._value_note()}")]
        if self.expected_return is not None:
            place = 0 if self.headline_of == "return" else 1
            rows.insert(place, ("return", f"{self.expected_return:.6g}  ({self.return_note})"))
        if self.gamma == 1.0 and self.expected_length is not None:
            rows.append(("length", f"{self.expected_length:.6g}  (steps of an episode)"))
        return rows

    @property
    def return_note(self) -> str:
        """What ``expected_return`` is, in words."""
        return "an episode's, undiscounted" if self.gamma == 1.0 else "discounted: value / (1 - gamma)"

    def _value_note(self) -> str:
        """What the value per step is."""
        kind = "average reward" if self.gamma == 1.0 else "(1 - gamma) times the discounted return"
        return f"  ({kind})"

    @property
    def _data(self) -> Any:
        """What was solved for."""
        raise NotImplementedError

    def _accuracy_rows(self) -> list[Row]:
        """How exact the answer is, and what it took."""
        raise NotImplementedError

    def facts(self, asked: bool = True) -> list[Row]:
        """What is known, by name, without computing anything; ``asked``: with the interval and the checks."""
        rows = [("data", repr(self._data)), ("gamma", f"{self.gamma:g}"), *self._value_rows()]
        rows += self._asked() if asked else []
        return [*rows, *self._accuracy_rows(), ("time", duration(self.seconds))]

    def diagnose(self) -> tuple[Check, ...]:
        """Checks of whether the estimate can be trusted, run once: see :func:`lingendice.diagnose`."""
        found = self.known(_CHECKS)
        return self._remember(_CHECKS, self._checks()) if found is None else found

    def interval(
        self,
        level: float = 0.95,
        of: Any = "value",
        method: str = "influence",
        *,
        confidence_level: float | None = None,
        **options: Any,
    ) -> Interval:
        """Confidence interval of the value, a return, the distribution, or the mean of any function on cells.

        Parameters
        ----------
        level, confidence_level
            Confidence level, by either name.
        of
            ``"value"``; ``"return"`` or ``"length"`` of an episode (``expected_return``,
            ``expected_length``); ``"stationary"``, entry by entry (``entries=`` picks some of them); or
            numbers on cells or states, whose mean under the distribution is meant.
        method
            ``"influence"``: closed form, one adjoint solve (for the distribution one per entry, up to 2,000
            states all from one dense factorization). ``"bootstrap"``: resample episodes and solve again.
        **options
            ``entries``, and ``time_limit`` in seconds, looked at between entries: those that were not reached
            are nan, and the interval's ``note`` counts them. For the bootstrap ``replicates`` (1000),
            ``kind`` ("t", "percentile" or "basic"; of the default with a policy "t" alone), ``seed`` and
            ``threads``, on which no number depends.

        Notes
        -----
        Clustered by episode where the counts kept them (up to 5,000,000 rows, or asked to); a
        single kept path is cut into blocks; else each transition stands for itself, which is right for
        Markov data and said in the interval's ``note``. The interval of the default with a policy allows for
        bias (``bias_allowance``); others cover the noise of the data, not the bias of unseen cells: see
        ``leak`` and ``value_bounds``.
        """
        level = level if confidence_level is None else confidence_level
        of_episode = isinstance(of, str) and of in ("return", "length")
        found = (self._episode_interval if of_episode else self._interval)(level, of, method, **options)
        in_closed_form = method == "influence" and all(option is None for option in options.values())
        found = self._within_range(found, of, in_closed_form)
        if self.status.ended_short:
            short = f"the solve ended short of its goal ({self.status.value}), which is not allowed for"
            found = replace(found, note=f"{found.note}; {short}")
        return self._remember(_INTERVAL + of, found) if isinstance(of, str) else found

    @property
    def trusted(self) -> bool:
        """Whether the solve found one answer and every check passes, which it runs; see ``why_not``."""
        return not self.why_not

    @property
    def why_not(self) -> tuple[str, ...]:
        """What speaks against the estimate, one sentence each: the status, and every failed check.

        Runs the checks (``diagnose``).
        """
        doubts = [f"{check.sentence}: {check.remedy}" for check in self.diagnose() if not check.ok]
        return (*((self.status.advice,) if self.status.advice else ()), *doubts)

    def _drawn(self, kind: str | None, ax: Any) -> Any:
        raise NotImplementedError

    def plot(self, kind: str | None = None, *, ax: Any = None) -> Any:
        """Draw the result with matplotlib (``pip install 'lingendice[plots]'``).

        Parameters
        ----------
        kind
            One panel alone. Over counts: ``"value"`` with its interval beside the behavior's (which are
            computed for it), ``"ratio"``: tau against p, ``"cells"``: those that earn or cost most (heaviest
            ones without rewards), ``"distributions"``: how large each of several is, and ``"history"``:
            residual, change or gap of an iterative method. Over continuous states: ``"ratio"``,
            ``"weight"``: how much the heaviest transitions carry, and ``"value"`` and ``"residual"`` while
            training. None: all that apply, side by side, but for histories.
        ax
            The axes to draw on, one per panel; by default those of a new figure.

        Returns
        -------
        matplotlib.figure.Figure
            pyplot and rcParams are left alone; save it by ``figure.savefig(path)``.
        """
        return self._drawn(kind, ax)

    # -- what is known ---------------------------------------------------------------------------------

    def known(self, name: str) -> Any:
        """What was computed under this name, such as ``"value_bounds"``; None where nothing was yet."""
        return self.__dict__.get(name)

    def known_interval(self, of: str = "value") -> Interval | None:
        """The last interval of the value, the return or the length that was asked for."""
        found: Interval | None = self.known(_INTERVAL + of)
        return found

    @property
    def is_checked(self) -> bool:
        """Whether the checks have been run."""
        return self.known(_CHECKS) is not None

    def _remember(self, name: str, found: Any) -> Any:
        self.__dict__[name] = found
        return found

    def _table(self) -> list[Row]:
        rows = [("Solution", self.told_status), *self.facts()]
        return [*rows, ("next step", self.status.advice)] if self.status.advice else rows

    @property
    def told_status(self) -> str:
        """How the solve ended, by which method, and why that one."""
        return f"{self.status.value}, by {self.method} ({self.reason})"

    def _asked(self) -> list[Row]:
        """Interval and checks where they were asked for, else how to ask."""
        rows = []
        if self.value is not None:
            first = self.headline_of
            for of in sorted(QUANTITIES, key=lambda of: of != first):
                found = self.known_interval(of)
                if found is not None:
                    rows.append(("interval" if of == first else f"{of}'s interval", str(found)))
            if not rows:
                asked = "" if first == "value" else f"of={first!r}"
                rows.append(("interval", f"not computed: sol.interval({asked})"))
        checks = self.known(_CHECKS)
        if checks is None:
            return [*rows, ("checks", "not run: sol.diagnose()")]
        rows += [(check.name, f"{'ok' if check.ok else '!!'}  {check.sentence}") for check in checks]
        return rows + [(f"  {check.name}", check.remedy) for check in checks if not check.ok]

    def told(self, name: str) -> Any:
        """What is known under a name without a solve; None where it would take one."""
        return self.known(name) if name in self.costly else getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """Everything that is known, as strict JSON types: nan and infinity become None.

        Nothing is computed for it: what takes a solve, ``interval`` and ``checks`` are None until they were
        asked for.
        """
        always = ("converged", "gamma", "method", "reason", "n_iter", "seconds")
        intervals = {of: self.known_interval(of) for of in QUANTITIES}
        told = {of: None if interval is None else interval.to_dict() for of, interval in intervals.items()}
        found = {
            "status": self.status.name.lower(),
            "advice": self.status.advice,
            "headline": self.headline_of,
            **{name: self.told(name) for name in (*always, *self.listed)},
            "interval": told["value"],
            "return_interval": told["return"],
            "length_interval": told["length"],
            "checks": self.known(_CHECKS),
        }
        return {name: strict_json(value) for name, value in found.items()}

    def _repr_html_(self) -> str:
        return table_of_facts(type(self).__name__, self._table()[1:])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.status.value}, gamma={self.gamma:g}, method={self.method!r})"
