"""``hitting``: whether and when a chain first reaches a set of states, from every state, with intervals.

Targets absorb. With T the steps between the states that can still reach one, and B those into the sets,

    h = B 1 + T h                 probability of reaching each set first
    m = 1 + T m                   expected steps until any of the sets, finite where all paths get there
    v = E (m(s') - E m(s'))^2 + T v     variance of the steps
    u = h + T u                   E[steps; the set is reached first]
    d = mu0 + T' d                visits to every state before a set is reached

are one linear problem, :class:`lingendice.solvers.absorbing.UntilEnd`. A logged step from x to s' moves mu0 h
by d(x) / n(x) (h(s') - E h(s')), from which the intervals come in closed form.
"""

from __future__ import annotations

import time
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.by_label import holds_several, read_state_sets
from lingendice.data.checks import Floats, lies_on_device, require_choice, require_distribution
from lingendice.data.counts import Counts
from lingendice.data.display import duration, strict_json
from lingendice.data.episodes import effective_degrees, group_sample
from lingendice.data.hints import Hinted
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.data.policies import is_list_of_policies
from lingendice.data.rows import row_of_entry, row_sums
from lingendice.data.transitions import Transitions
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.interval import Entries, Piece, require_sample_size
from lingendice.results.result import Row, Shown
from lingendice.results.status import Status
from lingendice.results.tables import make_frame
from lingendice.results.targets import Interval, require_level, student_quantile
from lingendice.solvers.absorbing import UntilEnd, leads_to
from lingendice.solvers.control import Controls, EliminationError

_Parts = list[tuple[Floats, Floats | None]]
OF = ("probability", "steps", "steps_if_reached", "return")
MOST_NAMED = 5
"""States that are named where they cannot reach a target."""


@heeds_ctrl_c
def hitting(
    data: Any,
    targets: Any = None,
    *,
    policy: Any = None,
    initial: Any = None,
    tol: float = 1e-10,
    time_limit: float | None = None,
    threads: int | None = None,
    progress: bool = False,
) -> Hitting:
    """How likely is a chain to reach a set of states, and how long does it take?

    Solves ``h = B 1 + T h`` and ``m = 1 + T m`` over the states that can reach a target: by elimination
    without subtractions, accurate entry by entry, where its fill allows that, else by sweeps of
    O(transitions) each until their error is proven. Which states cannot reach a target, and which may miss
    all of them, is found by a search of the graph.

    Parameters
    ----------
    data
        What :func:`lingendice.solve` takes: Counts, a matrix of counts or probabilities, a graph.
    targets
        A state, several states, or a mask over states; or a dict of named sets, of which the one reached
        first counts. States go by their labels, where there are any. Default: the ends of episodes, where
        the log has terminal transitions.
    policy
        Where the data have actions: the policy that is followed. Default: the one that was logged.
    initial
        Distribution of the first state, or a state. Default: first states of the log, where known.
    tol
        Largest relative error of any entry.
    time_limit, threads, progress
        As for :func:`lingendice.solve`. What is not found in time is nan.

    Returns
    -------
    Hitting

    Notes
    -----
    Episodes that end, states without outgoing transitions, and actions of the policy that were never logged
    end the path without reaching a target; `Hitting.without_data` says how much of that is for want of data.

    References
    ----------
    J. G. Kemeny, J. L. Snell (1960). Finite Markov chains. Van Nostrand.

    Examples
    --------
    >>> import lingendice as lg
    >>> hit = lg.hitting([[0, 1, 1], [2, 0, 1], [0, 0, 1]], targets=2)
    >>> hit.mean_steps
    array([2.25, 2.5 , 0.  ])
    """
    began = time.perf_counter()
    if isinstance(data, Transitions):
        raise ValueError("hitting needs discrete states; bin the states, and pass Counts.from_transitions")
    if lies_on_device(data):
        raise ValueError("hitting works on the host; copy the data there first, for example with .get()")
    counts = data if isinstance(data, Counts) else Counts.from_matrix(data, copy=False)
    controls = Controls.read(tol, None, time_limit, threads, progress=progress, started=began)
    names: tuple[Any, ...] = (None,)
    number = np.full(counts.n_states, -1)
    if targets is not None:
        names, number = read_state_sets("targets", targets, counts)
        _require_visited(counts, names, number)
    elif not counts.has_terminals:
        raise ValueError(
            "without targets= the question is when episodes end, and the data have no terminal transitions; "
            "name the states to be reached, or pass terminal= to Counts.from_transitions"
        )
    if policy is not None and (holds_several(policy, counts) or is_list_of_policies(policy)):
        raise ValueError("hitting follows one policy; call it once for each")
    choices = Choices(policy=policy, initial=initial, leak="absorb", horizon=1).as_arrays(counts)
    logged = counts.initial_count is not None and counts.initial_count.sum() > 0
    has_initial = choices.initial is not None or bool(logged)
    if not has_initial:
        choices = choices._replace(initial=np.full(counts.n_states, 1.0 / max(counts.n_states, 1)))
    found = Hitting(compose(counts, choices), names, number, has_initial, controls)
    _ = found.mean_steps
    found._limits_begin_anew = True
    found.seconds = time.perf_counter() - began
    return found


def _require_visited(counts: Counts, names: tuple[Any, ...], number: NDArray[np.int64]) -> None:
    """Refuse a set that only terminal transitions enter, if any do: counts do not keep where those lead."""
    if not counts.has_terminals:
        return
    visited = counts.cell_count.reshape(counts.n_states, -1).sum(axis=1) > 0
    entered = counts.indices[counts.count > 0]
    visited[entered[entered < counts.n_states]] = True
    for k, name in enumerate(names):
        if not visited[number == k].any():
            state = counts.label_of(int(np.flatnonzero(number == k)[0]))
            where = "targets" if name is None else f"targets[{name!r}]"
            raise ValueError(
                f"{where}: no transition leads to {state!r} or starts there, and counts do not keep where "
                "terminal transitions lead; count them without terminal=, or leave targets= out to ask when "
                "episodes end"
            )


class FromInitial(NamedTuple):
    """The same quantities from the initial distribution; arrays by set where there are several."""

    probability: Any
    mean_steps: float
    sd_steps: float
    mean_steps_if_reached: Any


class Hitting(Hinted, Shown):
    """Probabilities of reaching sets of states, and steps until then; made by :func:`lingendice.hitting`.

    Attributes
    ----------
    names : tuple
        Names of the sets; (None,) for one without a name.
    target_of : numpy.ndarray
        The number of every state's set, -1 for states outside all of them.
    cannot_reach : numpy.ndarray
        Whether no number of steps leads from a state to a target.
    may_miss : numpy.ndarray
        Whether some path from a state ends, or goes on forever, without reaching a target.
    probability : numpy.ndarray
        Probability of reaching each set before the others, states by sets; a vector for one set.
    initial : numpy.ndarray or None
        Distribution of the first state, where it was given or is known from the log.
    """

    known_as = "Hitting"

    def __init__(
        self, operator: EmpiricalOperator, names: tuple[Any, ...], target_of: NDArray[np.int64],
        has_initial: bool, controls: Controls,
    ) -> None:  # fmt: skip
        self.operator, self.counts, self.names, self.target_of = operator, operator.counts, names, target_of
        self.initial = operator.initial if has_initial else None
        self.seconds = 0.0
        self._intervals: dict[str, Interval] = {}
        self._limits_begin_anew = False
        self._next = rates = operator.chain.kernel()
        unseen = np.where(operator.seen, 0.0, 1.0)
        self._unseen = operator.gather(unseen)
        self._ended = ended = operator.gather(operator.ended)
        ending = ended + self._unseen
        self._is_target = is_target = target_of >= 0
        self._until_ends = not is_target.any()
        goal = ended > 0.0 if self._until_ends else is_target
        reaches = leads_to(rates, goal, stopped=is_target)
        self.cannot_reach = ~reaches
        lost = self._unseen if self._until_ends else ending
        misses = self.cannot_reach | (~is_target & (lost > 0.0))
        self.may_miss = leads_to(rates, misses, stopped=is_target)
        self._going = going = np.flatnonzero(reaches & ~is_target)
        onward = rates[going]
        away = onward[:, np.flatnonzero(~reaches | is_target)]
        self._ending = ending[going] + np.asarray(away.sum(axis=1)).ravel()
        self._system = UntilEnd(onward[:, going], self._ending, controls)
        self._by_set = self._probabilities()

    # -- what is found -------------------------------------------------------------------------------------

    def _values(self, reward: Floats) -> Floats:
        """What is earned until the end, from the states that can reach a target."""
        self._renew_limits()
        try:
            return self._system.values(reward)
        except EliminationError as error:
            raise error.renumbered(self._going) from None

    def _renew_limits(self) -> None:
        """What is asked for after the call has a time limit of its own."""
        if self._limits_begin_anew:
            self._system.controls = self._system.controls.begun_now(self._system.controls.threads)

    def _probabilities(self) -> Floats:
        """States by sets."""
        found = np.zeros((self.counts.n_states, len(self.names)))
        found[self._is_target, self.target_of[self._is_target]] = 1.0
        going, sure = self._going, ~self.may_miss[self._going]
        if len(self.names) == 1 and sure.all():
            found[going] = 1.0
            return found
        into = self._next[going]
        for k in range(len(self.names)):
            arrives = into @ (self.target_of == k).astype(float)
            found[going, k] = self._values(arrives + self._ended[going] if self._until_ends else arrives)
        # Rounding alone keeps what is certain from 1, and what is not from staying below it.
        total = found[going].sum(axis=1)
        over = np.where(sure, total, np.maximum(total, 1.0))
        found[going] /= over[:, None]
        return found

    def _shape(self, by_set: Floats) -> Any:
        return by_set[..., 0] if len(self.names) == 1 else by_set

    @property
    def probability(self) -> Floats:
        """Probability of reaching each set first, states by sets; a vector for one set."""
        return self._shape(self._by_set)  # type: ignore[no-any-return]

    @cached_property
    def mean_steps(self) -> Floats:
        """Expected steps until the first of the sets is reached; inf where that is not certain."""
        steps = np.where(self._is_target, 0.0, np.inf)
        sure = ~self.may_miss[self._going]
        if sure.any():
            found = self._values(np.ones(self._going.size))
            steps[self._going] = np.where(sure, found, np.inf)
        return steps

    @cached_property
    def sd_steps(self) -> Floats:
        """Standard deviation of the steps until the first of the sets; inf where that is not certain."""
        spread = np.where(self._is_target, 0.0, np.inf)
        sure = ~self.may_miss[self._going]
        if sure.any():
            steps = np.where(np.isinf(self.mean_steps), 0.0, self.mean_steps)
            onward = self._next[self._going]
            # The spread of what comes next, summed along the path: E m^2 - (E m)^2 would cancel.
            apart = steps[onward.indices] - (onward @ steps)[row_of_entry(onward.indptr)]
            one_step = row_sums(onward.indptr, onward.data * apart**2)
            found = self._values(np.where(sure, one_step, 0.0))
            spread[self._going] = np.where(sure, np.sqrt(found), np.inf)
        return spread

    @cached_property
    def _steps_reaching(self) -> Floats:
        """E[steps; the set is reached first], states by sets."""
        found = np.zeros_like(self._by_set)
        for k in range(len(self.names)):
            found[self._going, k] = self._values(self._by_set[self._going, k])
        return found

    @property
    def mean_steps_if_reached(self) -> Floats:
        """Expected steps of the paths that reach a set first, as `probability`; nan where none does."""
        by_set, steps = self._by_set, self._steps_reaching
        return self._shape(np.divide(steps, by_set, out=np.full_like(by_set, np.nan), where=by_set > 0))  # type: ignore[no-any-return]

    @cached_property
    def mean_return(self) -> Floats:
        """Expected steps from leaving a target until a target is entered again; nan for other states."""
        back = np.full(self.counts.n_states, np.nan)
        inside = np.flatnonzero(self._is_target)
        onward = self._next[inside]
        steps = self.mean_steps
        back[inside] = 1.0 + onward @ np.where(np.isinf(steps), 0.0, steps)
        ends = (self._ended + self._unseen)[inside] > 0.0
        lost = (onward @ self.may_miss.astype(float) > 0.0) | ends
        back[inside[lost]] = np.inf
        return back

    @cached_property
    def without_data(self) -> Floats:
        """Probability of coming to a state or action that the log never shows leaving, before any target.

        It counts as not reaching a target: with other data the probability could be larger by so much.
        """
        runs_out = leads_to(self._next, self._unseen > 0.0, stopped=self._is_target)
        found = np.where(self.cannot_reach & runs_out, 1.0, 0.0)
        onward = self._next[self._going] @ found + self._unseen[self._going]
        found[self._going] = self._values(onward)
        return np.minimum(found, 1.0)  # type: ignore[no-any-return]

    @cached_property
    def from_initial(self) -> FromInitial | None:
        """All of it from the initial distribution; None where that is not known."""
        if self.initial is None:
            return None
        start = np.flatnonzero(self.initial)
        weight = self.initial[start]
        reached = weight @ self._by_set[start]
        mean = float(weight @ self.mean_steps[start])
        spread = np.inf
        if np.isfinite(mean):
            variance = self.sd_steps[start] ** 2 + (self.mean_steps[start] - mean) ** 2
            spread = float(np.sqrt(weight @ variance))
        with np.errstate(invalid="ignore"):
            if_reached = (weight @ self._steps_reaching[start]) / reached
        shaped = (float(x) if np.ndim(x) == 0 else x for x in map(self._shape, (reached, if_reached)))
        probability, steps_if_reached = shaped
        return FromInitial(probability, mean, spread, steps_if_reached)

    # -- how it was found ----------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        """How the equations were solved: "gth", "elimination", "gauss-seidel", or "none" where none was."""
        return self._system.method

    @property
    def reason(self) -> str:
        """Why in this way."""
        return self._system.reason

    @property
    def error(self) -> float:
        """Largest relative error of any entry found: proven for sweeps, estimated for eliminations."""
        return self._system.error

    @property
    def status(self) -> Status:
        """How the solve ended."""
        if self._system.stopped:
            return Status.TIME_LIMIT
        return Status.SOLVED if self.error <= self._system.controls.tol else Status.STALLED

    @property
    def converged(self) -> bool:
        """Whether every entry is known to the tolerance."""
        return self.status is Status.SOLVED

    # -- intervals -----------------------------------------------------------------------------------------

    @heeds_ctrl_c
    def interval(self, level: float = 0.95, of: str = "probability", *, initial: Any = None) -> Interval:
        """Confidence interval from one initial distribution, by the influence of every logged transition.

        Clustered by episode where episodes are known, a single path by blocks. One solve for the visits; ends
        of probabilities lie on the scale of log-odds, those of steps on that of logarithms, so that they stay
        in their range.

        Parameters
        ----------
        level
            Coverage.
        of
            "probability" (by set), "steps" until the first of the sets, "steps_if_reached" (by set), or
            "return": steps from leaving a target, a single state, until it is entered again.
        initial
            A state or a distribution to begin from; by default that of the solve.
        """
        level = require_level(level)
        require_choice("of", of, OF)
        require_sample_size(self.counts)
        begin, is_logged = self._begin(of, initial)
        found = self._influence_on(of, begin, is_logged)
        sample = group_sample(self.counts)
        ends = []
        for estimate, piece in found:
            if piece is None:
                ends.append((estimate, np.nan, np.nan, np.inf))
                continue
            rows = piece.scores()
            error = float(np.sqrt((rows**2).sum()))
            quantile = student_quantile(level, effective_degrees(rows, sample.degrees))
            if of == "probability":
                never = 1.0 - ((1.0 - level) / 2.0) ** (1.0 / self._trials(begin))
                low, high = _odds_limits(estimate, error, quantile, never)
            else:
                low, high = estimate * np.exp(
                    np.array([-1.0, 1.0]) * quantile * error / max(estimate, 1e-300)
                )
            ends.append((estimate, error, low, high))
        note = sample.note
        if any(piece is None for _, piece in found):
            note = "not certain to be reached, so the mean is infinite; take of='steps_if_reached'"
        columns = np.array(ends, dtype=float).T
        by_set = of in ("probability", "steps_if_reached") and len(self.names) > 1
        estimate, error, low, high = columns if by_set else columns[:, 0].tolist()
        result = Interval(low, high, estimate, error, level, "influence", note)
        if initial is None:
            self._intervals[of] = result
        return result

    def _begin(self, of: str, initial: Any) -> tuple[Floats, bool]:
        """Distribution of the first state, and whether it is estimated from the log."""
        n = self.counts.n_states
        if of == "return":
            inside = np.flatnonzero(self._is_target)
            if inside.size != 1 or initial is not None:
                raise ValueError(
                    "of='return' is about a target of one state, which it begins from: "
                    + ("leave initial= out" if initial is not None else f"there are {inside.size:,}")
                )
            return np.eye(1, n, inside[0])[0], False
        if initial is not None:
            given = Choices(initial=initial).as_arrays(self.counts).initial
            return require_distribution("initial", given, n), False
        if self.initial is None:
            raise ValueError(
                "the first state is not known; pass initial=, a state or a distribution over states"
            )
        return self.initial, self.operator.initial_is_logged

    def _influence_on(self, of: str, begin: Floats, is_logged: bool) -> list[tuple[float, Piece | None]]:
        """Estimates and influences; no influence where the estimate is infinite."""
        n = self.counts.n_states
        active, visits = np.zeros(n, dtype=bool), np.zeros(n)
        active[self._going] = True
        entering = begin
        if of == "return":
            active |= begin > 0.0
            entering = self._next.T @ begin
        self._renew_limits()
        visits[self._going] = self._system.visits(entering[self._going])
        if of == "return":
            visits += begin
        entries = _Visited(self.operator, visits, active)
        piece = partial(self._piece, entries, is_logged=is_logged)
        if of in ("steps", "return"):
            times = self.mean_return if of == "return" else self.mean_steps
            at = begin > 0.0
            mean = float(begin[at] @ times[at])
            if not np.isfinite(mean):
                return [(mean, None)]
            steps = np.where(np.isfinite(self.mean_steps), self.mean_steps, 0.0)
            return [(mean, piece([(np.append(steps, 0.0), None)], begin))]
        # What follows a terminal transition is the last entry.
        by_set = np.vstack([self._by_set, np.full((1, len(self.names)), float(self._until_ends))])
        found: list[tuple[float, Piece | None]] = []
        if of == "probability":
            for column in by_set.T:
                found.append((float(begin @ column[:n]), piece([(column, None)], begin)))
            return found
        # E[steps; reached] / P(reached): its numerator moves with h too, by the visits that visits are worth.
        again = np.zeros(n)
        again[self._going] = self._system.visits(visits[self._going])
        more = np.divide(again, visits, out=np.zeros(n), where=visits > 0)
        for column, steps in zip(by_set.T, self._steps_reaching.T, strict=True):
            reached = float(begin @ column[:n])
            if reached == 0.0:
                found.append((np.nan, None))
                continue
            mean = float(begin @ steps) / reached
            parts: _Parts = [
                ((np.append(steps, 0.0) - mean * column) / reached, None),
                (column / reached, more),
            ]
            found.append((mean, piece(parts, begin)))
        return found

    def _piece(self, entries: _Visited, parts: _Parts, begin: Floats, *, is_logged: bool) -> Piece:
        """Influence on the sum of parts: values of the next state, and a factor of every state.

        The first part is what a first state is worth.
        """
        noise = np.zeros((self.counts.count.size, 1))
        per_state = self.counts.n_cells // max(self.counts.n_states, 1)
        for values, factor in parts:
            after = values[self.counts.indices][:, None]
            share = entries.active if factor is None else entries.active * np.repeat(factor, per_state)
            noise += entries.noise(share, after)
        first = None
        if is_logged:
            worth = parts[0][0][: begin.size]
            first = (worth - begin @ worth)[:, None]
        return Piece(entries, noise, np.zeros_like(noise), first, None)

    def _trials(self, begin: Floats) -> float:
        """Independent starts behind an event that was always or never seen."""
        episodes = self.counts.episodes
        if episodes is not None and episodes.first_state.size > 1:
            return float(episodes.first_state.size)
        visits = self.counts.cell_count.reshape(self.counts.n_states, -1).sum(axis=1)
        return max(float(visits[begin > 0.0].sum()), 1.0)

    # -- shown ---------------------------------------------------------------------------------------------

    def to_frame(self, library: str | None = None) -> Any:
        """One row per state: its label, and all that is known from there; pandas or polars."""
        counts = self.counts
        columns: dict[str, Any] = {"state": [counts.label_of(s) for s in range(counts.n_states)]}
        steps_if_reached = self.mean_steps_if_reached.reshape(counts.n_states, -1)
        for k, name in enumerate(self._column_names("probability")):
            columns[name] = self._by_set[:, k]
        columns |= {"mean_steps": self.mean_steps, "sd_steps": self.sd_steps}
        for k, name in enumerate(self._column_names("mean_steps_if_reached")):
            columns[name] = steps_if_reached[:, k]
        return make_frame(columns, library)

    def _column_names(self, what: str) -> list[str]:
        return [what] if len(self.names) == 1 else [f"{what}_{name}" for name in self.names]

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types: nan and infinity become None."""
        listed = (
            "names", "probability", "mean_steps", "sd_steps", "mean_steps_if_reached", "from_initial",
            "method", "reason", "error", "converged", "seconds",
        )  # fmt: skip
        found = {name: strict_json(getattr(self, name)) for name in listed}
        return {**found, "status": self.status.value}

    def plot(self, kind: str | None = None, *, ax: Any = None) -> Any:
        """Draw the probabilities (``"probability"``) and the steps (``"steps"``) by state; None: both.

        Needs matplotlib (``pip install 'lingendice[plots]'``).
        """
        from lingendice.results.hitting_plots import plot_hitting

        return plot_hitting(self, kind, ax)

    def __repr__(self) -> str:
        n_sets = len(self.names)
        sets = "one set" if n_sets == 1 else f"{n_sets} sets"
        return f"Hitting({self.counts.n_states:,} states, {sets} of targets, {self.status.value})"

    def _table(self) -> list[Row]:
        rows = []
        for k, name in enumerate(self.names):
            size = _states_text(int((self.target_of == k).sum()))
            text = "the end of the episode" if self._until_ends else size
            rows.append((f"target {name!r}" if name is not None else "target", text))
        rows += self._headline()
        lost = np.flatnonzero(self.cannot_reach)
        if lost.size:
            named = ", ".join(repr(self.counts.label_of(int(s))) for s in lost[:MOST_NAMED])
            more = ", ..." if lost.size > MOST_NAMED else ""
            rows.append(("cannot reach a target", f"{_states_text(lost.size)}: {named}{more}"))
        rows.append(("may miss all targets", _states_text(int(self.may_miss.sum()))))
        # A graph or matrix of probabilities has ends where it has no rows.
        if self.counts.has_sample_size and self.initial is not None and self._unseen.any():
            share = float(self.initial @ self.without_data)
            if share > 0.0:
                text = f"{share:.2%} of paths come to where the log has no data; counted as not reaching"
                rows.append(("no data", text))
        rows.append(("status", self.status.value))
        if not self.converged:
            rows.append(("", "entries that were not found are nan; raise time_limit= or tol="))
        if self.method != "none":
            rows.append(("solved by", f"{self.method} ({self.reason}), relative error {self.error:.1e}"))
        return [*rows, ("seconds", duration(self.seconds))]

    def _headline(self) -> list[Row]:
        """From the initial distribution where that is known."""
        start = self.from_initial
        if start is None:
            return [("from", "every state; pass initial= for one start")]
        rows: list[Row] = []
        reached = np.atleast_1d(start.probability)
        found = self._intervals.get("probability")
        for k, name in enumerate(self.names):
            what = "probability" if name is None else f"probability of {name!r}"
            rows.append((what, f"{reached[k]:.6g}" + _interval_text(found, k)))
        steps = self._intervals.get("steps")
        spread = f", standard deviation {start.sd_steps:.4g}" if np.isfinite(start.sd_steps) else ""
        rows.append(("mean steps", f"{start.mean_steps:.6g}{_interval_text(steps, 0)}{spread}"))
        if not np.isfinite(start.mean_steps):
            given = np.atleast_1d(start.mean_steps_if_reached)
            names = ("",) if self.names == (None,) else tuple(f"{name}: " for name in self.names)
            text = ", ".join(f"{name}{mean:.6g}" for name, mean in zip(names, given, strict=True))
            rows.append(("mean steps if reached", text))
        return rows


class _Visited(Entries):
    """Counted transitions from the states before a target, weighted by the visits to their cells."""

    def __init__(self, operator: EmpiricalOperator, visits: Floats, active: NDArray[np.bool_]) -> None:
        counts = operator.counts
        n_actions = operator.n_cells // operator.n_states
        self.active = np.repeat(active.astype(float), n_actions)
        n, total = counts.cell_count.astype(float), float(counts.total)
        tau = np.divide(operator.spread(visits) * total, n, out=np.zeros_like(n), where=n > 0)
        super().__init__(counts, tau, total)
        # Transitions from elsewhere say nothing, neither of the noise.
        self.n = np.where(self.active > 0.0, n, 0.0)
        self.sample = group_sample(counts)
        n_clusters = self.sample.n_clusters
        self.of_clusters = float(np.sqrt(n_clusters / (n_clusters - 1.0))) if n_clusters else 1.0


def _odds_limits(estimate: float, error: float, quantile: float, never: float) -> tuple[float, float]:
    """Ends of the interval of a probability; ``never``: the upper end of what was never seen."""
    if estimate <= 0.0 or estimate >= 1.0:
        return (0.0, never) if estimate <= 0.0 else (1.0 - never, 1.0)
    stretch = np.exp(min(quantile * error / (estimate * (1.0 - estimate)), 700.0))
    odds = estimate / (1.0 - estimate)
    low = odds / stretch
    return float(low / (1.0 + low)), float(1.0 / (1.0 + 1.0 / (odds * stretch)))


def _interval_text(found: Interval | None, k: int) -> str:
    if found is None:
        return ""
    low, high = (float(np.atleast_1d(end)[k]) for end in found)
    if np.isnan(low):
        return ""
    return f" [{low:.4g}, {high:.4g}] at {found.level:.0%}"


def _states_text(n: int) -> str:
    return f"{n:,} state{'s' * (n != 1)}"
