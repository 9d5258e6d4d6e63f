"""Counts of observed transitions: the frozen record that every estimator starts from."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingendice.data.checks import (
    Floats,
    require_compressed,
    require_nonnegative,
    require_room,
    require_whole,
)
from lingendice.data.display import amount, table_of_facts
from lingendice.data.episodes import Episodes, count_breaks, warn_breaks, warn_swapped
from lingendice.data.hints import Hinted
from lingendice.data.labels import Labels, label_or_number
from lingendice.data.rows import read_only, row_sums, unsorted_row
from lingendice.kernels.parallel import resolve_threads

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lingendice.data.logs import Log


@dataclass(frozen=True, eq=False, repr=False)
class Counts(Hinted):
    """How often each next state followed each cell, with reward statistics.

    A cell is a state of a chain (``n_actions is None``) or a state-action pair of an MDP, numbered
    ``state * n_actions + action``. Pairs are held in compressed rows, one row per cell; the column
    ``n_states`` stands for "the episode ended in a terminal state".

    Build one with :meth:`from_transitions`, :meth:`from_paths` or :meth:`from_matrix`; add two with ``+``.
    """

    n_states: int
    n_actions: int | None
    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    count: NDArray[Any]
    reward_count: NDArray[Any] | None = None
    reward_mean: Floats | None = None
    reward_m2: Floats | None = None
    initial_count: NDArray[Any] | None = None
    """How many episodes began in each state; None where episodes are unknown."""
    state_labels: Labels | None = None
    action_labels: Labels | None = None
    episodes: Episodes | None = None
    has_sample_size: bool = True
    """False for graphs and row-stochastic matrices: they say nothing of how much data is behind them."""
    lag: int = 1
    """Steps between the two states of every pair; beyond 1 the pairs of a path overlap."""

    known_as = "Counts"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, field.name, read_only(value))
        if self.episodes is not None:
            kept = (None if part is None else read_only(part) for part in self.episodes)
            object.__setattr__(self, "episodes", Episodes(*kept))  # type: ignore[arg-type]
        self._require_rows()

    def _require_rows(self) -> None:
        """Check once, in O(cells + pairs), what every kernel behind trusts."""
        size = self.count.shape[0] if self.count.ndim == 1 else -1
        require_compressed("counts", self.indptr, self.indices, self.n_cells, self.n_states + 1, size)
        row = unsorted_row(self.indptr, self.indices) if int(self.indptr[-1]) == size else self.n_cells
        if row >= 0:
            raise ValueError(
                f"counts.indices must rise within every row and end with the last one; row {row} differs: "
                "build the counts with Counts.from_matrix or Counts.from_transitions"
            )
        require_nonnegative("counts.count", self.count, "counts are at least 0")
        for name in ("reward_count", "reward_mean", "reward_m2", "initial_count"):
            column, wanted = getattr(self, name), self.n_states if name == "initial_count" else size
            if column is not None and column.shape != (wanted,):
                raise ValueError(f"counts.{name} must have shape ({wanted},), got {column.shape}")

    # -- building ---------------------------------------------------------------------------

    @classmethod
    def empty(cls, n_states: int = 0, n_actions: int | None = None) -> Counts:
        """No transitions at all: the identity of :meth:`merge`."""
        n_states = require_whole("n_states", n_states)
        n_actions = None if n_actions is None else require_whole("n_actions", n_actions)
        n_cells = n_states * (1 if n_actions is None else n_actions)
        require_room(n_cells)
        return cls(
            n_states=n_states,
            n_actions=n_actions,
            indptr=np.zeros(n_cells + 1, dtype=np.int64),
            indices=np.empty(0, dtype=np.int32),
            count=np.empty(0, dtype=np.int64),
        )

    @classmethod
    def from_transitions(
        cls,
        state: Any,
        next_state: Any = None,
        action: Any = None,
        reward: ArrayLike | None = None,
        episode: Any = None,
        weight: ArrayLike | None = None,
        n_states: int | None = None,
        n_actions: int | None = None,
        terminal: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        *,
        ends: str | None = None,
        time: ArrayLike | None = None,
        keep_episodes: bool | None = None,
        threads: int | None = None,
    ) -> Counts:
        """Count logged transitions, one entry of every array per transition.

        Parameters
        ----------
        state, next_state, action
            Integer ids of any integer dtype, or labels (strings, tuples, pandas categories), which
            are mapped to ids and kept in ``state_labels`` and ``action_labels``: strings in sorted
            order, categories in theirs, others as they come. Without ``next_state`` the next row of the same
            episode is the next state, and ``ends`` says what the last row is.
        reward
            One finite number per transition; its count, mean and sum of squared deviations (M2) are
            kept for each (cell, next state).
        episode
            Ids or labels of the episode of each transition, rows of one episode in time order.
            Episodes may have any length. Without it a new episode begins after each row that is
            ``terminal`` or ``truncated``.
        weight
            Frequency weights: a weight of 3 is the same as the row three times.
        n_states, n_actions
            Sizes, where larger than what the log happens to contain.
        terminal
            True where the episode ended: the next state is not left, and what follows is decided
            by the ``terminal`` option of ``solve``.
        truncated
            True where recording stopped although the chain went on: the next state counts, only its
            continuation is unknown.
        ends
            For logs without ``next_state``: what the last row of an episode is where neither ``terminal`` nor
            ``truncated`` marks it. ``"terminal"``: the episode ended there; the row is a terminal transition,
            with its action and reward. ``"truncated"``: recording stopped. As the next state is unknown, the
            row is no transition: its state is the next state of the row before, its action and reward are
            left out. By default ``"terminal"`` where the log has ``episode`` and no ``terminal``; a log that
            marks its ends, or is one single path, is cut off. An :class:`EpisodeEndWarning` counts the
            last rows that had an action or a reward, unless ``ends="terminal"`` was passed.
        time
            Numbers or dates by which rows are put in order within each episode (a stable sort); without it
            they are taken to be in order.
        keep_episodes
            Keep what each episode contributed (O(N) memory): intervals are clustered by episode then, and the
            order of rows is tested. By default where episodes are known and there are at most 5,000,000 rows.

        Notes
        -----
        Where episodes are known, every next state is compared with the state of the following row of its
        episode, unless the row is terminal or truncated or rows have weights; a :class:`RowOrderWarning`
        tells of rows that disagree. Pairs ``(x[:-k], x[k:])`` of one path overlap; an :class:`OverlapWarning`
        names :meth:`from_paths`, which counts them for intervals that hold.

        Takes O(N + n_cells) memory and about two passes over the data, whatever ``n_states`` is.

        Examples
        --------
        >>> import lingendice as lg
        >>> lg.Counts.from_transitions([0, 1, 0], [1, 0, 1])
        Counts(2 states, 3 transitions, 2 distinct)

        >>> log = {"state": [0, 1, 0], "reward": [1.0, 0.0, 5.0], "episode": [7, 7, 8]}
        >>> lg.Counts.from_transitions(**log, ends="terminal")
        Counts(2 states, 3 transitions, 3 distinct, 2 episodes)
        """
        from lingendice.data.last_rows import ends_of, require_ends, warn_last_rows
        from lingendice.data.logs import count_log, initial_counts, read_log, require_size, with_next_states

        derive = next_state is None
        require_ends(ends, has_next_states=not derive)
        log, cut_off, order, state_labels, action_labels = read_log(
            state, next_state, action, reward, episode, weight, terminal, truncated, time
        )
        given = {"action": action, "reward": reward, "episode": episode, "terminal": terminal}
        columns = [name for name, column in given.items() if column is not None]
        started = log
        if derive:
            log, last_rows = with_next_states(log, cut_off, ends_of(ends, columns))
            warn_last_rows(last_rows, ends, columns)
        else:
            _warn_rows(log, order)
        if log.reward is not None and state_labels is None and not derive:
            warn_swapped(log.state, log.next_state, log.reward)
        n_states = require_size("n_states", n_states, state_labels, (started.state, log.next_state))
        if started.action is not None:
            n_actions = require_size("n_actions", n_actions, action_labels, (started.action,))
        elif n_actions is not None:
            raise ValueError("n_actions is given but action is not; pass action=, one entry per transition")
        require_room(n_states * (1 if n_actions is None else n_actions))
        counted = count_log(log, n_states, n_actions, keep_episodes, resolve_threads(threads))
        if derive:  # an episode of one row that is left out began, too
            counted["initial_count"] = initial_counts(started, n_states)
        return cls(**counted, state_labels=state_labels, action_labels=action_labels)

    @classmethod
    def from_paths(
        cls,
        paths: Any,
        lag: int = 1,
        *,
        weight: ArrayLike | None = None,
        separator: str = ">",
        ends: str | None = None,
        columns: Mapping[str, str] | None = None,
        n_states: int | None = None,
        keep_episodes: bool | None = None,
        threads: int | None = None,
    ) -> Counts:
        """Count pairs of states ``lag`` steps apart in paths: journeys, trajectories, sequences of states.

        Parameters
        ----------
        paths
            A list of paths, each a list or an array of states or a string ``"a > b > c"``; one path as an
            array or a list of states; a two-dimensional array with a path in each row; a frame (pandas,
            polars, Arrow, or a dictionary of columns) with one row per state (``path``, ``state`` and, where
            rows are not in order, ``time``) or one row per path (``path``, and ``count`` for how often it was
            seen). States are integer ids or labels, as in :meth:`from_transitions`.
        lag
            Steps between the states of a pair. Every pair of a path counts, so that pairs overlap.
        weight
            How often each path was seen.
        separator
            What separates the states of a path that is a string; blanks around it do not matter.
        ends
            ``"terminal"``: a path ends after its last state, as a journey does. ``"truncated"``: recording
            stopped there and the chain goes on, as in a simulation. By default ``"terminal"`` where there are
            several paths and ``lag`` is 1, else ``"truncated"``.
        columns
            Names of the columns of a frame, as ``{"path": "id", "state": "channel", "time": "clicked"}``; the
            usual names are found without it.
        n_states
            Number of states, where larger than what the paths happen to contain.
        keep_episodes
            Keep what each path contributed, which intervals rest on: by default up to 5,000,000 states.

        Notes
        -----
        Each path is an episode. Intervals are clustered by path; a single path is cut into blocks that are
        long compared with the lag, as pairs that overlap are not independent.

        Takes O(states) memory; of strings each distinct one is read once.

        Examples
        --------
        >>> import lingendice as lg
        >>> lg.Counts.from_paths(["home > cart > buy", ["home", "exit"]])
        Counts(4 states, 5 transitions, 5 distinct, 2 episodes)
        >>> lg.Counts.from_paths([0, 0, 1, 1, 0, 1], lag=2)
        Counts(2 states, 4 transitions at lag 2, 3 distinct, 1 episodes)
        """
        from lingendice.data.paths import count_paths

        return cls(
            **count_paths(paths, lag, weight, separator, ends, columns, n_states, keep_episodes, threads)
        )

    @classmethod
    def from_matrix(cls, matrix: Any, *, weight: str | None = "weight", copy: bool = True) -> Counts:
        """Read a square matrix of counts, a row-stochastic matrix, or a graph; rows are sources.

        Parameters
        ----------
        matrix
            Nested list, array, any SciPy sparse matrix or array (duplicates are summed), a frame of pandas
            (columns are matched with rows by name, and names become labels), or a graph of NetworkX, igraph
            or rustworkx (an undirected edge counts in both directions; nodes become labels).
            Edges of a graph are no sample: intervals and checks of a log do not apply to it.
        weight
            The edge attribute of a graph that holds the weight; 1 where it is missing, or None for
            1 everywhere.
        copy
            False lets the counts share memory with a sparse matrix, which must then not be changed.

        Examples
        --------
        >>> import lingendice as lg
        >>> lg.Counts.from_matrix([[90, 10], [30, 70]])
        Counts(2 states, 200 transitions, 4 distinct)
        """
        from lingendice.data.matrices import read_matrix

        return cls(**read_matrix(matrix, weight=weight, copy=copy))

    # -- sizes and sums -----------------------------------------------------------------------

    @property
    def n_cells(self) -> int:
        """Number of states, or of state-action pairs."""
        return self.n_states * (1 if self.n_actions is None else self.n_actions)

    @cached_property
    def cell_count(self) -> NDArray[Any]:
        """n(x): outgoing transitions of each cell."""
        return read_only(row_sums(self.indptr, self.count))

    @cached_property
    def total(self) -> int | float:
        """N: the number (or total weight) of transitions."""
        return self.cell_count.sum().item()  # type: ignore[no-any-return]

    @cached_property
    def data_distribution(self) -> Floats:
        """p = n / N over cells; zeros where there is no data at all."""
        return read_only(self.cell_count / (self.total or 1.0))

    @cached_property
    def reward(self) -> Floats | None:
        """Mean reward of each cell, nan where none was seen; None for logs without rewards."""
        if self.reward_mean is None or self.reward_count is None:
            return None
        seen = row_sums(self.indptr, self.reward_count).astype(float)
        total = row_sums(self.indptr, self.reward_count * self.reward_mean)
        return read_only(np.divide(total, seen, out=np.full(seen.shape, np.nan), where=seen > 0))

    @cached_property
    def unrewarded(self) -> NDArray[np.bool_] | None:
        """Cells with a transition whose reward was not logged; None for logs without rewards."""
        if self.reward_count is None:
            return None
        return read_only(row_sums(self.indptr, (self.reward_count < self.count).astype(np.int64)) > 0)

    @property
    def partly_rewarded(self) -> NDArray[np.bool_] | None:
        """Cells that lack rewards of transitions while rewards were logged; None where none is missing.

        So are logs merged of one with rewards and one without. Whole columns of nan are no rewards at all.
        """
        missing, known = self.unrewarded, self.reward
        if missing is None or known is None or not missing.any() or np.isnan(known).all():
            return None
        return missing

    @cached_property
    def terminal_count(self) -> NDArray[Any]:
        """How many transitions of each cell ended their episode in a terminal state."""
        return read_only(row_sums(self.indptr, np.where(self.indices == self.n_states, self.count, 0)))

    @property
    def has_terminals(self) -> bool:
        """Whether any transition ended its episode in a terminal state."""
        return bool(self.indices.size) and bool(self.indices.max() == self.n_states)

    @property
    def matrix(self) -> csr_array:
        """Counts as a SciPy sparse array, cells by next states (terminal transitions left out)."""
        from scipy.sparse import csr_array

        shape = (self.n_cells, self.n_states + 1)
        held = csr_array((self.count.copy(), self.indices.copy(), self.indptr.copy()), shape=shape)
        return held[:, : self.n_states]

    # -- algebra --------------------------------------------------------------------------------

    def merge(self, other: Counts) -> Counts:
        """Add the transitions of two logs.

        Associative, with :meth:`empty` as identity; exact for integer counts. Labeled states are
        matched by label, new ones appended; unlabeled ids are matched by number.
        """
        from lingendice.data.merging import merge

        return merge(self, other)

    def __add__(self, other: object) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        return self.merge(other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Counts):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def with_states(self, n_states: int, n_actions: int | None = None) -> Counts:
        """The same counts over a larger space: further states and actions were never seen.

        Without ``n_actions`` the actions stay as they are.
        """
        n_states = require_whole("n_states", n_states)
        n_actions = self.n_actions if n_actions is None else require_whole("n_actions", n_actions)
        require_room(n_states * (1 if n_actions is None else n_actions))
        if self.n_states == 0 and self.n_actions is None:
            return replace(
                self, n_states=n_states, n_actions=n_actions, indptr=Counts.empty(n_states, n_actions).indptr
            )
        if n_actions is not None and self.n_actions is None:
            raise ValueError(f"n_actions={n_actions} but the data hold no actions; leave n_actions out")
        sizes = {"states": (n_states, self.n_states), "actions": (n_actions or 0, self.n_actions or 0)}
        for what, (asked, held) in sizes.items():
            if asked < held:
                raise ValueError(
                    f"n_{what}={asked} but the data are over {held} {what}; raise n_{what}, or leave it out"
                )
        if (n_states, n_actions) == (self.n_states, self.n_actions):
            return self
        old, new = self.n_actions or 1, n_actions or 1
        lengths = np.zeros((n_states, new), dtype=np.int64)
        lengths[: self.n_states, :old] = np.diff(self.indptr).reshape(self.n_states, old)
        indices = self.indices
        if self.has_terminals and n_states != self.n_states:
            indices = np.where(indices == self.n_states, n_states, indices).astype(indices.dtype)
        initial = self.initial_count
        if initial is not None:
            initial = np.concatenate([initial, np.zeros(n_states - self.n_states, dtype=initial.dtype)])
        return replace(
            self,
            n_states=n_states,
            n_actions=n_actions,
            indptr=np.concatenate([[0], np.cumsum(lengths.ravel())]),
            indices=indices,
            initial_count=initial,
        )

    def without_rows(self) -> Counts:
        """The same states, labels and first states, without transitions."""
        left_out: dict[str, Any] = dict.fromkeys(("reward_count", "reward_mean", "reward_m2", "episodes"))
        empty = Counts.empty(self.n_states, self.n_actions)
        return replace(self, indptr=empty.indptr, indices=empty.indices, count=self.count[:0], **left_out)

    def save(self, path: str | Path) -> None:
        """Write to a file: ``.npz`` (everything) or ``.parquet`` (a table of pairs, without what
        each episode contributed: intervals are not clustered by episode then, and say so).

        The file is checksummed and takes the place of an older one in one step; nothing is pickled.
        Parquet needs ``pip install 'lingendice[io]'``, paths such as ``s3://`` fsspec.
        """
        from lingendice.data.saving import save_counts

        save_counts(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Counts:
        """Read what :meth:`save` wrote; a damaged file is a ValueError."""
        from lingendice.data.saving import load_counts

        return cls(**load_counts(path))

    def __repr__(self) -> str:
        size = f"{self.n_states:,} state{'s' * (self.n_states != 1)}"
        if self.n_actions is not None:
            size += f" x {self.n_actions:,} action{'s' * (self.n_actions != 1)}"
        if not self.has_sample_size:
            return f"Counts({size}, {self.count.size:,} edges or probabilities, not a sample)"
        at_lag = f" at lag {self.lag:,}" if self.lag > 1 else ""
        text = f"Counts({size}, {amount(self.total)} transitions{at_lag}, {self.count.size:,} distinct"
        if self.initial_count is not None:
            text += f", {amount(self.initial_count.sum())} episodes"
        return text + ")"

    def _repr_html_(self) -> str:
        rows = [("states", f"{self.n_states:,}")]
        if self.n_actions is not None:
            rows.append(("actions", f"{self.n_actions:,}"))
        shown = amount(self.total) if self.has_sample_size else "not a sample: edges or probabilities"
        rows.append(("transitions", shown))
        if self.lag > 1:
            rows.append(("lag", f"{self.lag:,}"))
        rows.append(("distinct", f"{self.count.size:,}"))
        if self.initial_count is not None:
            rows.append(("episodes", amount(self.initial_count.sum()) + (", kept" if self.episodes else "")))
        if self.reward is not None:
            rows.append(
                ("mean reward", f"{np.nansum(self.data_distribution * np.nan_to_num(self.reward)):.6g}")
            )
        return table_of_facts("Counts", rows)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def label_of(self, state: int) -> Hashable:
        """The label of a state, or its number where it has none."""
        return label_or_number(self.state_labels, state)

    def label_of_action(self, action: int) -> Hashable:
        """The label of an action, or its number where it has none."""
        return label_or_number(self.action_labels, action)


class CellSums(Counts):
    """Sums over the cells of counts whose rows lie elsewhere: what an operator is composed from."""

    has_terminals: bool = False  # type: ignore[assignment]

    @classmethod
    def of(
        cls, frame: Counts, cell_count: NDArray[Any], terminal_count: NDArray[Any] | None,
        reward: Floats | None, unrewarded: NDArray[np.bool_] | None = None,
    ) -> CellSums:  # fmt: skip
        """Sizes, labels and first states of ``frame``; ``terminal_count`` is None where nothing ended."""
        kept = ("initial_count", "state_labels", "action_labels", "has_sample_size", "lag")
        rows = {**Counts.empty(frame.n_states, frame.n_actions).__getstate__(), "count": cell_count[:0]}
        own = cls(**rows | {name: getattr(frame, name) for name in kept})
        own.__dict__.update(
            cell_count=read_only(cell_count),
            has_terminals=terminal_count is not None,
            terminal_count=read_only(np.zeros_like(cell_count) if terminal_count is None else terminal_count),
            reward=None if reward is None else read_only(reward),
            unrewarded=None if unrewarded is None else read_only(unrewarded),
        )
        return own

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _warn_rows(log: Log, order: NDArray[Any] | None) -> None:
    """Say of rows with next states that they are overlapping pairs of a path, or out of order."""
    n_breaks, row = 0, 0
    if log.runs is not None:
        n_breaks, row = count_breaks(log.state, log.next_state, log.runs) if log.weight is None else (0, 0)
    if log.action is None and (n_breaks or log.runs is None):
        from lingendice.data.paths import find_lag, warn_overlap

        if (lag := find_lag(log.state, log.next_state)) is not None:
            warn_overlap(lag)
            return
    if n_breaks:
        warn_breaks(n_breaks, f"row {row if order is None else order[row]}")


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return all(_same(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    return bool(first == second)
