"""Beyond one machine, on Dask: count where the data lies, solve with the rows kept on the workers.

Dask moves and repeats the work; nothing here is an engine of its own. ``pip install 'lingendice[dask]'``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lingendice.data.arrow import arrow
from lingendice.data.checks import Floats, require_gamma
from lingendice.data.counts import Counts
from lingendice.data.interrupts import interruptible
from lingendice.distributed.blocks import cut_rows, run_on_worker, work_edges
from lingendice.distributed.cluster import (
    REPLY,
    SECONDS_PER_BYTE,
    SECONDS_PER_ENTRY,
    Losses,
    await_count,
    await_tasks,
    client_of,
    lost_worker,
    within,
    workers_of,
)  # fmt: skip
from lingendice.io.formats import PARQUET, format_of
from lingendice.io.read import ReadOptions, Span, count_piece
from lingendice.io.segments import Piece, join
from lingendice.io.sources import find_files
from lingendice.kernels.parallel import resolve_threads
from lingendice.model.classes import find_classes
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.model.transition_rows import TransitionRows
from lingendice.results.build import exact_solution
from lingendice.results.solution import Solution
from lingendice.solvers.control import Controls, Outcome, Solver, Step, Stopped, error_bound, run
from lingendice.solvers.extrapolation import Extrapolation
from lingendice.solvers.pull_system import PullSystem, transposed_system
from lingendice.solvers.stationary import Distributions, limit_distributions

ROWS_PER_TASK = 20_000_000
"""Rows that one counting task takes at least, where a file has row groups to choose from."""
MOST_ROUNDS = 10_000
_FEWEST_GROUPS, _MOST_GROUPS = 8, 256  # of rows whose masses are balanced together
_GROUP_ENTRIES = (
    5_000_000  # numbers that the client keeps for them, one vector per group, beyond the fewest groups
)
_ROWS_PER_GROUP = 20  # at least, where there are more groups than the fewest
_LOCAL = 0.7  # share of the entries from the same eighth of the rows beyond which more groups pay
_ROUNDING = 1e-12  # factors as near to one as this are rounding, which would hide how rounds still converge
_APART = 0.3  # share of a block's entries from other blocks beyond which a second sweep gains next to nothing
_PROMISING = 10.0  # times tol: a round of such a change may have met it
_FAST = 0.5  # share of the error that a round leaves, below which extrapolation costs more than it gains
_DAMPING = 0.7  # share of a round's step that is taken at gamma = 1: blocks of a periodic chain may swap


# -- counting -------------------------------------------------------------------------------------------


def count(source: Any, client: Any = None, **columns: Any) -> Counts:
    """Count a log on the workers of a Dask cluster, each piece where it lies, and merge in a tree.

    Parameters
    ----------
    source
        Paths, folders or patterns as :func:`lingendice.read_transitions` takes them (the workers must see
        the files), or a Dask dataframe whose partitions are in the order of the log.
    client
        A ``dask.distributed.Client``; None takes the current one.
    **columns
        Names of columns and other options of :func:`lingendice.read_transitions`.

    Returns
    -------
    Counts
        Equal to the counts of one machine; means of rewards agree up to rounding.

    Notes
    -----
    Pieces are counted apart; neighbors are joined in order, with episodes that run from one to the next
    counted once and, where next states are derived, linked. A lost worker costs its pieces, which Dask
    counts again elsewhere. Every task needs memory for the distinct pairs and the episodes of its piece,
    about 100 bytes per episode; what travels is counts, never rows.

    Examples
    --------
    >>> client = dask.distributed.Client()                                      # doctest: +SKIP
    >>> lg.distributed.count("s3/log-*.parquet", client, state="s", episode="e")  # doctest: +SKIP
    """
    client = client_of(client)
    alone = {"checkpoint", "progress", "threads", "checkpoint_every", "keep_episodes", "time"}
    unknown = sorted(set(columns) & alone)
    if unknown:
        raise ValueError(f"{unknown[0]}= is an option of lg.read_transitions alone; leave it out here")
    pieces = [client.submit(_count_part, *part, columns, pure=False) for part in _parts(source, client)]
    while len(pieces) > 1:
        pairs = [pieces[first : first + 2] for first in range(0, len(pieces), 2)]
        pieces = [client.submit(join, *pair, pure=False) if len(pair) == 2 else pair[0] for pair in pairs]
    piece: Piece = await_count(client, pieces[0])
    if piece.counts.n_states == 0:
        raise ValueError("no transitions: the log has no rows; give at least one")
    return piece.result()


def _parts(source: Any, client: Any) -> Iterator[tuple[Any, int, int | None]]:
    """Pieces of the log in order: (file or partition, first row group, end)."""
    if hasattr(source, "to_delayed"):
        yield from ((partition, 0, None) for partition in client.compute(source.to_delayed()))
        return
    if not isinstance(source, (str, os.PathLike, list, tuple)):
        raise ValueError(
            f"cannot count a {type(source).__name__} on a cluster; give paths or a Dask dataframe, or use "
            "lg.read_transitions here"
        )
    for file in find_files(source):
        if format_of(file) not in PARQUET:
            yield str(file), 0, None
            continue
        yield from ((str(file), first, stop) for first, stop in _row_groups(str(file)))


def _row_groups(file: str) -> list[tuple[int, int]]:
    """Ranges of row groups with about ``ROWS_PER_TASK`` rows."""
    with arrow("parquet").ParquetFile(file) as stored:
        rows = [stored.metadata.row_group(group).num_rows for group in range(stored.num_row_groups)]
    ranges, first, held = [], 0, 0
    for group, size in enumerate(rows):
        held += size
        if held >= ROWS_PER_TASK or group == len(rows) - 1:
            ranges.append((first, group + 1))
            first, held = group + 1, 0
    return ranges


def _count_part(source: Any, first: int, stop: int | None, columns: dict[str, Any]) -> Piece:
    """Runs on a worker."""
    span = Span((0, first), None if stop is None else (0, stop), keep_ends=True)
    return count_piece(source, ReadOptions.of(threads=1, **columns), span)


# -- solving --------------------------------------------------------------------------------------------


def solve(
    data: Any,
    gamma: float = 1.0,
    *,
    client: Any = None,
    policy: ArrayLike | None = None,
    reward: ArrayLike | None = None,
    initial: ArrayLike | None = None,
    leak: str = "restart",
    restart: ArrayLike | None = None,
    terminal: str = "auto",
    tol: float = 1e-10,
    max_iter: int | None = None,
    time_limit: float | None = None,
    blocks: int | None = None,
    sweeps: int | None = None,
    progress: bool = False,
    **columns: Any,
) -> Solution:
    """Solve ``mu = (1 - gamma) mu0 + gamma T' mu`` with the rows of T' kept on the workers.

    Parameters
    ----------
    data
        :class:`Counts`, a matrix or graph, or a log that :func:`count` counts first (with ``columns``).
    gamma, policy, reward, initial, leak, restart, terminal, tol, max_iter, time_limit, progress
        As in :func:`lingendice.solve`; the exact equation is solved: a policy is followed as it is, without
        ridge or cloning, as by ``lingendice.solve(..., ridge=0)``. ``max_iter`` counts rounds.
    client
        A ``dask.distributed.Client``; None takes the current one.
    blocks
        Number of blocks of rows; default one per worker thread.
    sweeps
        Gauss-Seidel sweeps that a worker makes over its block in each round. None: one where much of what a
        block takes in comes from other blocks, as on a graph without locality, else two.

    Returns
    -------
    Solution
        The ordinary one, with its statuses. At gamma < 1 its error is a proven bound of the L1 error; at
        gamma = 1 an estimate of the largest relative error of an entry.

    Notes
    -----
    Each round sends the distribution to every worker and brings one slice back from each: 8 n (workers + 1)
    bytes. Workers sweep over their own rows with the rest of the distribution as it was (block Jacobi with
    Gauss-Seidel
    inside); the client balances the masses of groups of rows, extrapolates (Anderson) where rounds are slow,
    and has the residual measured once the rounds promise that it is small enough. The counts stay with the
    client: where a worker is lost, its block is sent to another and the round repeated, so no round is ever
    half used. Use it where one machine's cores are not enough; on one machine :func:`lingendice.solve` is
    faster.

    Examples
    --------
    >>> sol = lg.distributed.solve(counts, gamma=0.99, client=client)   # doctest: +SKIP
    """
    client = client_of(client)
    controls = Controls.read(tol, max_iter, time_limit, progress=progress)
    for name, given in (("blocks", blocks), ("sweeps", sweeps)):
        if given is not None and (isinstance(given, bool) or int(given) != given or given < 1):
            raise ValueError(f"{name} must be a positive whole number or None, got {given!r}")
    choices = Choices(
        require_gamma(gamma),
        policy,
        reward=reward,
        initial=initial,
        leak=leak,
        restart=restart,
        terminal=terminal,
    )
    if not isinstance(data, Counts) and (
        hasattr(data, "to_delayed") or isinstance(data, (str, os.PathLike, list, tuple))
    ):
        counts = count(data, client, **columns)
    elif columns:
        name = next(iter(columns))
        raise ValueError(f"{name}= is for logs, and the data are counts or a matrix; leave it out")
    else:
        counts = data if isinstance(data, Counts) else Counts.from_matrix(data)
    operator = compose(counts, choices)
    with interruptible() as work:
        system = _Spread(operator, client, blocks, sweeps, controls)
        try:
            distributions = _distributions(operator, system, controls, initial is not None)
        finally:
            system.close()
        work.solution = solution = exact_solution(operator, distributions, controls)
    return solution


def _distributions(
    operator: EmpiricalOperator, system: _Spread, controls: Controls, follow_initial: bool
) -> Distributions:
    """Stationary distributions as ``solvers.stationary.stationary_distributions`` gives them, by rounds."""
    if operator.gamma < 1.0:
        everywhere = np.ones(operator.n_states, bool)
        outcome = run(_rounds(system, everywhere, controls), controls)
        return Distributions(outcome.distribution, (outcome.distribution,), outcome)
    rates, _ = operator.chain.extended()
    classes = find_classes(rates)
    outcomes = []
    for nodes in classes.recurrent:
        members = np.zeros(rates.shape[0], bool)
        members[nodes] = True
        outcomes.append(run(_rounds(system, members[: operator.n_states], controls), controls))
    distributions = [outcome.distribution for outcome in outcomes]
    initial = operator.initial if follow_initial else None
    return limit_distributions(distributions, outcomes, rates, classes, initial, "auto", controls)


class _Coarse:
    """The equation summed over groups of rows: a few unknowns, the factors by which the groups are scaled.

    Where states send to their neighbors, mass wanders slowly from group to group; this sets the groups'
    shares right in every round, the better the more groups there are. Five thousand states on a ring in two
    blocks take 33 rounds at gamma = 0.999 with 250 groups, and 281 with eight or without. On a graph without
    locality it changes nothing, and there are only eight groups, a cost of 8 n.
    """

    def __init__(
        self, whole: PullSystem, chain: TransitionRows, base: Floats, c: Floats, out: Floats
    ) -> None:
        edges = work_edges(whole.indptr, _count_groups(whole))
        self.starts, self.out = edges[:-1], out
        self.base = np.add.reduceat(base, self.starts)
        self.distribution = np.add.reduceat(chain.distribution, self.starts, axis=1)
        self.into = np.zeros((self.starts.size, chain.n))
        """What a unit of mass at a state sends to the rows of each group, distributions aside."""
        for row, (first, last) in zip(self.into, pairwise(edges.tolist()), strict=True):
            entries = slice(int(whole.indptr[first]), int(whole.indptr[last]))
            weights = whole.weights[entries] if whole.weights.size else None
            row += np.bincount(whole.sources[entries], weights, chain.n)
            row[first:last] += whole.loops[first:last]
            row *= c

    def share(self, x: Floats) -> Floats:
        """x with the mass shared among the groups as the equation has it; x where the sums do not tell."""
        mass = np.add.reduceat(x, self.starts)
        ends = [*self.starts[1:].tolist(), x.size]
        parts = [slice(first, last) for first, last in zip(self.starts.tolist(), ends, strict=True)]
        flow = np.stack([self.into[:, part] @ x[part] for part in parts], axis=1)
        flow += self.distribution.T @ np.add.reduceat(x[:, None] * self.out, self.starts, axis=0).T
        empty = mass <= 0.0
        matrix = np.diag(np.where(empty, 1.0, mass)) - flow
        right = np.where(empty, 1.0, self.base)
        if not self.base.any():
            # Any one equation follows from the others; the total mass takes its place.
            heaviest = int(mass.argmax())
            matrix[heaviest], right[heaviest] = mass, mass.sum()
        try:
            factors = np.linalg.solve(matrix, right)
        except np.linalg.LinAlgError:
            return x
        if not np.isfinite(factors).all() or factors.min() <= 0.0 or np.abs(factors - 1.0).max() < _ROUNDING:
            return x
        return x * np.repeat(factors, np.diff(np.append(self.starts, x.size)))


def _count_groups(whole: PullSystem) -> int:
    """Many groups of rows where most entries come from rows near by, judged by a sample of them."""
    n, sources = whole.size, whole.sources
    entries = np.arange(0, sources.size, 1 + sources.size // 100_000)
    eighths = work_edges(whole.indptr, 8)
    rows = np.searchsorted(whole.indptr, entries, side="right") - 1
    own, other = (np.searchsorted(eighths, found, side="right") for found in (rows, sources[entries]))
    if entries.size == 0 or (own == other).mean() < _LOCAL:
        return _FEWEST_GROUPS
    return max(_FEWEST_GROUPS, min(n // _ROWS_PER_GROUP, _GROUP_ENTRIES // n, _MOST_GROUPS))


class _Spread:
    """The equation of an operator, its rows spread over the workers of a cluster."""

    def __init__(
        self, operator: EmpiricalOperator, client: Any, blocks: int | None, sweeps: int | None,
        controls: Controls,
    ) -> None:  # fmt: skip
        self.client, self.operator, self.controls = client, operator, controls
        chain, self.gamma = operator.chain, operator.gamma
        self.n, self.out = chain.n, self.gamma * chain.out
        base = np.zeros(chain.n)
        if self.gamma < 1.0 and operator.initial is not None:
            base = (1.0 - self.gamma) * operator.initial
        self.loss = chain.restarts(self.gamma)
        workers = workers_of(client)
        threads = sum(workers.values())
        whole = transposed_system(
            chain.indptr,
            chain.indices,
            np.ascontiguousarray(chain.weight, dtype=np.float64),
            threads=resolve_threads(None),
        )
        c = self.gamma * chain.scale
        self.blocks = cut_rows(whole, chain, c, base, blocks or max(threads, 1))
        shares = [block.is_inside().mean() for block in self.blocks if block.sources.size]
        apart = min(shares, default=1.0) < 1.0 - _APART
        self.sweeps = max(1, int(sweeps)) if sweeps is not None else 1 if apart else 2
        self.coarse = _Coarse(whole, chain, base, c, self.out)
        self.kept: list[Any] | None = None
        self.members: tuple[Any, Any] | None = None
        """The active states of the rounds at hand, here and on the workers."""
        self.n_lost = 0
        self.reason = f"{len(self.blocks)} blocks on {len(workers)} workers"
        entries = sum(block.sources.size for block in self.blocks)
        self.patience = REPLY + SECONDS_PER_ENTRY * self.sweeps * entries

    def close(self) -> None:
        """Let the workers forget their blocks."""
        self.kept = self.members = None

    def balance(self, x: Floats) -> Floats:
        """x with the mass that the equation has, in total and in groups of rows."""
        x = self.coarse.share(x)
        if self.gamma == 1.0:
            return x / x.sum()
        return x * ((1.0 - self.gamma) / float(self.loss @ x))

    def residual(self, x: Floats, active: Any) -> float:
        """L1 residual of a distribution."""
        return float(sum(self._ask(x, active, "residual")))

    def round(self, x: Floats, active: Any) -> Floats:
        """Swept x, not balanced."""
        return np.concatenate(self._ask(x, active, "sweep", self.sweeps))

    def _ask(self, x: Floats, active: Any, *task: Any) -> list[Any]:
        """What every block makes of x; asked again if a worker is lost meanwhile, or nobody answers."""
        losses = Losses()
        while True:
            try:
                return self._ask_once(x, active, *task)
            except lost_worker() as error:
                self.kept = self.members = None
                self.n_lost += 1
                losses.count(error)

    def _ask_once(self, x: Floats, active: Any, name: str, *options: Any) -> list[Any]:
        client = self.client
        if self.kept is None:
            workers = list(workers_of(client))
            self.kept = [
                self._send(block, 16 * block.sources.size, [workers[number % len(workers)]])
                for number, block in enumerate(self.blocks)
            ]
        if self.members is None or self.members[0] is not active:
            self.members = active, self._send(active, active.nbytes)
        distribution, inflow = self._send(x, x.nbytes), x @ self.out
        tasks = [
            client.submit(
                run_on_worker, name, block, distribution, inflow, self.members[1], *options, pure=False
            )
            for block in self.kept
        ]
        await_tasks(tasks, self.patience, self.controls)
        answers: list[Any] = within(client, REPLY + SECONDS_PER_BYTE * x.nbytes, client.gather, tasks)
        return answers

    def _send(self, data: Any, size: int, workers: list[str] | None = None) -> Any:
        """Data on one worker; the others fetch it there.

        Not ``broadcast=True``: a worker that dies while the scheduler copies has it copy for ever, and every
        later broadcast, of any client, wait for that.
        """
        patience = REPLY + SECONDS_PER_BYTE * size
        (sent,) = within(self.client, patience, self.client.scatter, [data], workers=workers, hash=False)
        return sent


def _rounds(system: _Spread, active: Any, controls: Controls) -> Solver:
    """Iterate to the distribution on the active states; driven by :func:`lingendice.solvers.control.run`."""
    x = system.balance(np.where(active, 1.0, 0.0))
    kind = "bound" if system.gamma < 1.0 else "estimate"
    outcome = Outcome(x, "block-gauss-seidel", system.reason, converged=False, error_kind=kind)
    if active.sum() == 1 and system.gamma == 1.0:
        outcome.converged, outcome.error, outcome.error_kind, outcome.residual = True, 0.0, "direct", 0.0
        yield Step(0)
        return outcome
    extrapolation: Extrapolation | None = None
    pace = _Pace()
    history: list[float] = []
    for n_iter in range(1, (controls.max_iter or MOST_ROUNDS) + 1):
        try:
            swept = system.round(x, active)
        except Stopped:
            yield Step(outcome.n_iter)
            return outcome
        if system.gamma == 1.0:
            swept = (1.0 - _DAMPING) * x + _DAMPING * swept
        swept = system.balance(swept)
        if system.gamma < 1.0:
            error, proven = _discounted_error(system, x, swept, active, controls.tol)
            distribution = swept
        else:
            error, proven, distribution = pace.error(x, swept), True, x
        history.append(error)
        if outcome.error is None or error < outcome.error:
            outcome.distribution, outcome.error = distribution, error
            outcome.condition = pace.condition
            # A little stricter than asked: the residual is measured again, and rounds otherwise.
            outcome.converged = proven and error <= (0.9 if system.gamma < 1.0 else 1.0) * controls.tol
        outcome.n_iter, outcome.history = n_iter, tuple(history)
        stop = yield Step(n_iter, error)
        if outcome.converged or stop is not None or pace.stalled(history):
            return outcome
        # An error that is not known yet, infinite, tells of no fast round.
        if extrapolation is None and len(history) > 1 and not history[-1] < _FAST * history[-2]:
            extrapolation = Extrapolation(x)
        x = swept if extrapolation is None else swept.copy()
        if extrapolation is not None and extrapolation.observe(x):
            x = system.balance(x)
            extrapolation.before[:] = x
            pace.begin()
    return outcome


def _discounted_error(
    system: _Spread, x: Floats, swept: Floats, active: Any, tol: float
) -> tuple[float, bool]:
    """L1 error of what a round made of x, and whether that is a bound: measured only where it may be small.

    Until then the change of the round stands for it, which is about as large as the residual of x.
    """
    guess = float(np.abs(swept - x).sum()) / (1.0 - system.gamma)
    if guess > _PROMISING * tol:
        return guess, False
    return error_bound(system.residual(swept, active), system.gamma), True


class _Pace:
    """Estimates the error at gamma = 1 from how fast consecutive rounds shrink their change."""

    def __init__(self) -> None:
        self.changes: list[float] = []
        self.recent: list[float] = []
        self.condition: float | None = None

    def begin(self) -> None:
        """x was replaced: changes before and after do not compare."""
        self.changes = []

    def error(self, x: Floats, swept: Floats) -> float:
        """Largest relative change of an entry, magnified by the slowest pace seen lately."""
        known = swept > 0.0
        self.changes.append(float((np.abs(swept[known] - x[known]) / swept[known]).max(initial=0.0)))
        if len(self.changes) < 3 or self.changes[-2] == 0.0:
            return math.inf if self.changes[-1] > 0.0 else 0.0
        shrink = max(
            self.changes[-1] / self.changes[-2], self.changes[-2] / max(self.changes[-3], self.changes[-2])
        )
        self.recent = [*self.recent[-8:], min(shrink, 1.0)]
        slowest = max(self.recent)
        if slowest >= 1.0:
            return math.inf
        self.condition = 1.0 / (1.0 - slowest)
        return self.changes[-1] * self.condition

    @staticmethod
    def stalled(history: list[float]) -> bool:
        """No new least error for a hundred rounds."""
        return len(history) > 400 and min(history[-200:]) >= min(history[:-200])
