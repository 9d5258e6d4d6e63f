"""What the answers must be, in exact rational arithmetic: the contract written as a slow program.

Nothing of the library is imported. A log is counted row by row in plain Python, the empirical operator is
a dense table, the equation is solved by Gaussian elimination and recurrent classes are found by looking
which state reaches which. Up to ``EXACT_STATES`` states all numbers are fractions, so the answers carry no
rounding at all; beyond, the same lines run in long double.

    count      a log -> a Table: c(x, s'), ends, rewards and first states
    merge      Tables of parts of a log -> the Table of all of it
    answer     a Table and a Question -> the Answer, or Refused where the contract asks for a ValueError

The quantities, for cells x = (s, a) (or x = s for a chain):

    n(x) = sum_s' c(x, s') + ends(x),   N = sum n,   p = n / N
    K(s'|x) = c(x, s') / n(x)                            the estimated next state; what ends is not in it
    T(x'|x) = K(s'|x) W(a'|s')                           W: the policy that is followed
    mu      = (1 - gamma) mu0 + gamma T' mu
    tau     = mu / p                                     where p > 0
    leak    = sum of mu over the cells with p = 0        visited, but no outgoing transitions
    value   = sum_x p(x) tau(x) r(x) / (1 - leak)        nan where no action of the target has mass and data
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

EXACT_STATES = 12
"""States up to which all arithmetic is that of fractions."""
LEAK_WORTH_BOUNDS = 1e-3
"""Mass in leaks that restart, beyond which a solution shows bounds of its value."""


class Refused(Exception):
    """The contract asks for a ValueError here; the text says why."""


@dataclass
class Log:
    """Logged transitions: plain lists, one entry per row; None where the log has no such column."""

    state: list[int]
    next_state: list[int]
    action: list[int] | None = None
    reward: list[float] | None = None
    weight: list[Any] | None = None
    terminal: list[bool] | None = None
    truncated: list[bool] | None = None
    episode: list[int] | None = None
    n_states: int = 0
    n_actions: int | None = None

    def rows(self, start: int, stop: int) -> Log:
        """A part of the log."""

        def cut(column: Any) -> Any:
            return None if column is None else column[start:stop]

        return Log(
            cut(self.state), cut(self.next_state), cut(self.action), cut(self.reward), cut(self.weight),
            cut(self.terminal), cut(self.truncated), cut(self.episode), self.n_states, self.n_actions,
        )  # fmt: skip


@dataclass
class Table:
    """Dense counts. Cells are numbered s * n_actions + a; a chain has one cell per state."""

    n_states: int
    n_actions: int | None
    count: list[list[Any]]
    """c(x, s'): cells by next states, what ended left out."""
    ends: list[Any]
    """How often each cell led to a terminal state."""
    reward: list[Any] | None
    """Sum of rewards of each cell; None where none were logged."""
    first: list[Any] | None
    """How many episodes began in each state; None where the log does not tell."""
    reward_size: list[Any] | None = None
    """Sum of absolute rewards of each cell: what rounding of their mean is measured by."""
    has_sample_size: bool = True
    """False for a row-stochastic matrix of floats."""


@dataclass
class Question:
    """What is asked of a table; the names and defaults are those of ``solve``, with ridge and clone 0."""

    gamma: float = 1.0
    policy: list[list[float]] | None = None
    behavior: list[list[float]] | None = None
    reward: list[Any] | None = None
    initial: list[float] | None = None
    restart: list[float] | None = None
    ratio: str = "auto"
    leak: str = "restart"
    unseen: str = "auto"
    terminal: str = "auto"
    reward_range: tuple[float, float] | None = None
    smoothing: float | tuple[float, list[float]] | None = None
    """Weight of a Dirichlet prior on every row, uniform or with the distribution given."""


@dataclass
class Answer:
    """All that is compared. Arrays run over cells, or over states where ``ratio`` is "state"."""

    over_states: bool
    p: np.ndarray
    distributions: list[np.ndarray]
    """One stationary distribution per recurrent class (gamma = 1), else the one there is."""
    stationary: np.ndarray | None
    """None where there are several distributions and nothing says which is meant."""
    leak: Any = None
    terminal_mass: Any = None
    value: Any = None
    """None without rewards; nan where the target's cells with data have no mass."""
    value_scale: Any = None
    """The value of |r|: what relative errors of the value are measured by."""
    identified: Any = None
    """1 - leak."""
    expected_return: Any = None
    """Of one episode; None without rewards, and at gamma = 1 where none ends."""
    expected_length: Any = None
    bounds: tuple[Any, Any] | None = None
    """Hard bounds of the value where mass leaks at gamma < 1."""
    warns: bool = field(default=False)
    """Whether the leak brings a LeakWarning."""


# -- counting ------------------------------------------------------------------------------------------


def count(log: Log) -> Table:
    """Count row by row.

    - A row of weight w stands for w equal rows; a row of weight 0 is none. An episode weighs as much as its
      first row.
    - ``terminal``: the episode ended; the next state is not entered.
    - ``truncated``: recording stopped; the next state is entered, its continuation is unknown.
    - An episode begins where an id appears first, or again after a row that ended or was cut. Without ids
      the log is one path, cut at such rows; without flags, too, nothing is known about episodes.
    """
    n_actions = log.n_actions or 1
    cells = log.n_states * n_actions
    table = Table(
        log.n_states,
        log.n_actions,
        count=[[0] * log.n_states for _ in range(cells)],
        ends=[0] * cells,
        reward=None if log.reward is None else [0] * cells,
        first=None,
        reward_size=None if log.reward is None else [0] * cells,
    )
    if log.episode is not None or log.terminal is not None or log.truncated is not None:
        table.first = [0] * log.n_states
    running = set()
    for row, state in enumerate(log.state):
        cell = state * n_actions + (0 if log.action is None else log.action[row])
        weight = 1 if log.weight is None else _exact(log.weight[row])
        ended = log.terminal is not None and log.terminal[row]
        cut = log.truncated is not None and log.truncated[row]
        if ended:
            table.ends[cell] += weight
        else:
            table.count[cell][log.next_state[row]] += weight
        if table.reward is not None and table.reward_size is not None and log.reward is not None:
            table.reward[cell] += weight * _exact(log.reward[row])
            table.reward_size[cell] += weight * abs(_exact(log.reward[row]))
        episode = None if log.episode is None else log.episode[row]
        if table.first is not None and episode not in running:
            table.first[state] += weight
            running.add(episode)
        if ended or cut:
            running.discard(episode)
    return table


def count_matrix(entries: list[tuple[int, int, Any]], n_states: int, stochastic: bool = False) -> Table:
    """A chain from entries (row, column, count); repeated ones are summed."""
    table = Table(n_states, None, [[0] * n_states for _ in range(n_states)], [0] * n_states, None, None)
    for row, column, value in entries:
        table.count[row][column] += _exact(value)
    table.has_sample_size = not stochastic
    return table


def merge(tables: list[Table]) -> Table:
    """Add the tables of several logs over the same states: all counts are sums."""

    def added(columns: list[Any]) -> Any:
        if any(column is None for column in columns):
            return None
        return [sum(entries) for entries in zip(*columns, strict=True)]

    return Table(
        tables[0].n_states,
        tables[0].n_actions,
        count=[added(list(rows)) for rows in zip(*(table.count for table in tables), strict=True)],
        ends=added([table.ends for table in tables]),
        reward=added([table.reward for table in tables]),
        first=added([table.first for table in tables]),
        reward_size=added([table.reward_size for table in tables]),
    )


# -- the operator --------------------------------------------------------------------------------------


class _Numbers:
    """Makes arrays of fractions for small problems, of long doubles for larger ones."""

    def __init__(self, n_states: int) -> None:
        self.exact = n_states <= EXACT_STATES
        self.dtype: Any = object if self.exact else np.longdouble

    def one(self, value: Any) -> Any:
        if self.exact:
            return Fraction(_exact(value))
        return value if isinstance(value, np.longdouble) else np.longdouble(float(value))

    def array(self, values: Any) -> np.ndarray:
        flat = np.empty(len(values), dtype=self.dtype)
        flat[:] = [self.one(value) for value in values]
        return flat

    def table(self, rows: Any) -> np.ndarray:
        return np.stack([self.array(row) for row in rows])

    def zeros(self, *shape: int) -> np.ndarray:
        return np.full(shape, self.one(0), dtype=self.dtype)


def _exact(value: Any) -> Any:
    """An integer or a fraction with the very value of a float."""
    if isinstance(value, (int, Fraction)):
        return value
    return Fraction(float(value))


def _normalized(weights: np.ndarray) -> np.ndarray:
    """Weights over their sum; zeros stay zeros."""
    return weights / weights.sum() if any(weights > 0) else weights


def answer(table: Table, question: Question) -> Answer:
    """Compose the operator, solve, and derive all that a solution shows."""
    make, gamma = _Numbers(table.n_states), question.gamma
    n = make.array([sum(row) + end for row, end in zip(table.count, table.ends, strict=True)])
    if not any(n > 0) and (gamma == 1 or table.n_actions is not None):
        raise Refused("there are no transitions")
    seen, p = n > 0, _normalized(n)
    has_ends = any(end > 0 for end in table.ends)
    if question.leak == "absorb" and gamma == 1:
        raise Refused("absorbed leaks take all mass at gamma = 1")
    if question.terminal == "absorb" and gamma == 1 and has_ends:
        raise Refused("absorbed ends take all mass at gamma = 1")
    if question.leak == "absorb" and question.restart is not None:
        raise Refused("what is absorbed does not restart")
    initial = _initial(table, question, make, has_ends)
    follow, over_states = followed_policy(table, question, n, make)
    kernel, ended = _kernel(table, question, make, n, initial)
    chain = _chain(kernel, follow)
    if gamma < 1:
        several = [_discounted(chain, make.one(gamma), initial, make)]
        single = several[0]
    else:
        several = _stationary(chain, make)
        single = several[0] if len(several) == 1 else None
        if single is None and question.initial is not None:
            single = _limit(chain, several, initial, make)
    cells = [_spread(distribution, follow) for distribution in several]
    if question.leak == "error" and any(_leaks(mu, kernel, seen, single) for mu in cells):
        raise Refused("a cell without outgoing transitions is reached")
    shown = several if over_states else cells
    result = Answer(
        over_states=over_states,
        p=p.reshape(table.n_states, -1).sum(axis=1) if over_states else p,
        distributions=shown,
        stationary=None,
    )
    if single is not None:
        result.stationary = single if over_states else _spread(single, follow)
        _derive(result, _spread(single, follow), seen, ended, table, question, make, n)
        if gamma < 1 and question.leak != "absorb" and float(result.leak) > LEAK_WORTH_BOUNDS:
            absorbing = replace(question, leak="absorb", restart=None, smoothing=None)
            result.bounds = answer(table, absorbing).bounds
    return result


def _initial(table: Table, question: Question, make: _Numbers, has_ends: bool) -> np.ndarray | None:
    """mu0 over states: the given one; the logged first states; uniform for a chain; else refused.

    At gamma = 1 nothing depends on it but restarts after an end, and the limit from a given start.
    """
    if question.initial is not None:
        return _normalized(make.array(question.initial))
    if question.gamma == 1 and not has_ends:
        return None
    if table.first is not None:
        return _normalized(make.array(table.first))
    if table.n_actions is None:
        return _normalized(make.array([1] * table.n_states))
    raise Refused("gamma < 1 needs the distribution of the first state")


def followed_policy(
    table: Table, question: Question, n: np.ndarray, make: _Numbers
) -> tuple[np.ndarray | None, bool]:
    """W(a|s), and whether the ratio is one over states.

    - A chain has no actions. Without a policy the logged chain is meant: W(a|s) = n(s, a) / n(s).
    - ``ratio="state_action"`` follows the target itself; mass of actions without data leaks.
    - ``ratio="state"`` weighs logged actions by target / behavior, with weights of mean 1 in every state:
      W is in proportion to n(s, a) target(a|s) / behavior(a|s). For the cloned behavior n(s, a) / n(s) that
      is the target restricted to the logged actions.
    - ``unseen`` says what becomes of target actions without data: "leak" keeps them, "renormalize" leaves
      them out, "mean" gives their mass to the state's logged actions, in proportion to n(s, a).
    - Where no weight is left in a state (its target actions have no data), W is the target, and leaks.
    """
    if table.n_actions is None:
        if question.policy is not None or question.ratio == "state_action":
            raise Refused("a chain has no actions")
        return None, True
    logged = n.reshape(table.n_states, table.n_actions)
    if question.policy is None:
        uniform = make.array([1] * table.n_actions)
        rows = [_normalized(row if any(row > 0) else uniform) for row in logged]
        return np.stack(rows), question.ratio in ("auto", "state")
    target = np.stack([_normalized(row) for row in make.table(question.policy)])
    ratio = "state_action" if question.ratio == "auto" else question.ratio
    unseen = question.unseen
    if unseen == "auto":
        unseen = "leak" if ratio == "state_action" else "renormalize"
    follow = target.copy()
    for state, row in enumerate(logged):
        known = np.where(row > 0, target[state], 0 * target[state])
        if question.behavior is not None:
            behavior = _normalized(make.array(question.behavior[state]))
            known = make.array(
                [c * t / b if b > 0 else 0 for c, t, b in zip(row, target[state], behavior, strict=True)]
            )
        elif unseen == "leak":
            continue
        if question.behavior is None and unseen == "mean":
            if any(row > 0):
                follow[state] = known + (1 - known.sum()) * _normalized(row)
        elif any(known > 0):
            follow[state] = _normalized(known)
    return follow, ratio == "state"


def _kernel(
    table: Table, question: Question, make: _Numbers, n: np.ndarray, initial: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """K(s'|x), and the share of each cell that is absorbed at a terminal state.

    Ends are absorbed at zero reward for gamma < 1, and restart from mu0 for gamma = 1, unless ``terminal``
    says otherwise. A prior leads on from every cell. Without one, a cell without outgoing transitions goes
    on from ``restart`` (by default mu0 for gamma < 1, p for gamma = 1), or nowhere with ``leak="absorb"``.
    """
    terminal = question.terminal
    if terminal == "auto":
        terminal = "absorb" if question.gamma < 1 else "restart"
    counts, ends = make.table(table.count), make.array(table.ends)
    weight, prior = make.one(0), make.array([1] * table.n_states)
    if isinstance(question.smoothing, tuple):
        weight, prior = make.one(question.smoothing[0]), make.array(question.smoothing[1])
    elif question.smoothing:
        weight = make.one(question.smoothing)
    prior = _normalized(prior)
    if question.restart is not None:
        restart = _normalized(make.array(question.restart))
    elif question.gamma < 1:
        restart = initial
    else:
        restart = _normalized(n.reshape(table.n_states, -1).sum(axis=1))
    kernel = make.zeros(*counts.shape)
    absorbed = make.zeros(len(counts))
    for cell, total in enumerate(n):
        if total + weight > 0:
            kernel[cell] = (counts[cell] + weight * prior) / (total + weight)
            if ends[cell] > 0 and terminal == "restart":
                kernel[cell] += ends[cell] / (total + weight) * initial
            elif ends[cell] > 0:
                absorbed[cell] = ends[cell] / (total + weight)
        elif question.leak != "absorb":
            kernel[cell] = restart
    return kernel, absorbed


def _chain(kernel: np.ndarray, follow: np.ndarray | None) -> np.ndarray:
    """P(s'|s) = sum_a W(a|s) K(s'|s, a)."""
    if follow is None:
        return kernel
    n_states, n_actions = follow.shape
    by_action = kernel.reshape(n_states, n_actions, n_states)
    return sum(follow[:, [a]] * by_action[:, a] for a in range(n_actions))


def _spread(states: np.ndarray, follow: np.ndarray | None) -> np.ndarray:
    """mu(s, a) = mu(s) W(a|s)."""
    return states if follow is None else (states[:, None] * follow).ravel()


def _leaks(mu: np.ndarray, kernel: np.ndarray, seen: np.ndarray, single: np.ndarray | None) -> bool:
    """Whether mass reaches a cell without data. Among several distributions one may be of states that
    no data lead to (they restart among themselves): nothing has reached those."""
    if not any(mu[~seen] > 0):
        return False
    visited = mu.reshape(kernel.shape[1], -1).sum(axis=1) > 0
    return single is not None or bool((kernel[seen][:, visited] > 0).any())


# -- solving -------------------------------------------------------------------------------------------


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Gauss-Jordan elimination with the largest pivot; exact for fractions. ``right`` may have columns."""
    size = len(matrix)
    system = np.concatenate([matrix, right.reshape(size, -1)], axis=1)
    for k in range(size):
        pivot = k + int(np.argmax(np.abs(system[k:, k])))
        system[[k, pivot]] = system[[pivot, k]]
        system[k] = system[k] / system[k, k]
        others = [row for row in np.flatnonzero(system[:, k]) if row != k]
        system[others, k:] = system[others, k:] - np.outer(system[others, k], system[k, k:])
    return system[:, size:].reshape(right.shape)


def _eye(size: int, make: _Numbers) -> np.ndarray:
    return make.table(np.eye(size, dtype=int).tolist())


def _discounted(chain: np.ndarray, gamma: Any, initial: np.ndarray, make: _Numbers) -> np.ndarray:
    """mu = (1 - gamma) mu0 + gamma P' mu. What is absorbed is missing from its sum."""
    return _solve(_eye(len(chain), make) - gamma * chain.T, (1 - gamma) * initial)


def recurrent_classes(chain: np.ndarray) -> list[list[int]]:
    """Sets of states that reach each other and nothing else, in the order of their first state."""
    reach = np.eye(len(chain), dtype=np.float32) + (chain > 0).astype(np.float32)
    while True:
        further = (reach @ reach > 0).astype(np.float32)
        if (further == (reach > 0)).all():
            break
        reach = further
    reaches = reach > 0
    classes, known = [], set()
    for state in range(len(chain)):
        members = np.flatnonzero(reaches[state])
        if state not in known and all(reaches[other, state] for other in members):
            classes.append(members.tolist())
            known.update(members.tolist())
    return classes


def _stationary(chain: np.ndarray, make: _Numbers) -> list[np.ndarray]:
    """mu = P' mu with sum 1 on every recurrent class: one equation is replaced by the sum."""
    found = []
    for members in recurrent_classes(chain):
        inside = chain[np.ix_(members, members)]
        system = _eye(len(members), make) - inside.T
        system[-1] = make.one(1)
        right = make.zeros(len(members))
        right[-1] = make.one(1)
        distribution = make.zeros(len(chain))
        distribution[members] = _solve(system, right)
        found.append(distribution)
    return found


def _limit(chain: np.ndarray, several: list[np.ndarray], initial: Any, make: _Numbers) -> np.ndarray:
    """The long-run average from mu0: every class weighs as much as the chain ends up in it."""
    classes = recurrent_classes(chain)
    stays = {state for members in classes for state in members}
    transient = [state for state in range(len(chain)) if state not in stays]
    total = make.zeros(len(chain))
    visits = make.zeros(0)
    if transient:
        inside = chain[np.ix_(transient, transient)]
        visits = _solve(_eye(len(transient), make) - inside.T, initial[transient])
    for members, distribution in zip(classes, several, strict=True):
        share = initial[members].sum()
        if transient:
            share = share + visits @ chain[np.ix_(transient, members)].sum(axis=1)
        total = total + share * distribution
    return total


# -- what follows from mu ------------------------------------------------------------------------------


def _derive(
    result: Answer, mu: np.ndarray, seen: np.ndarray, ended: np.ndarray, table: Table, question: Question,
    make: _Numbers, n: np.ndarray,
) -> None:  # fmt: skip
    """Leak, terminal mass, value and bounds from mu over cells.

    With ``leak="absorb"`` the leak is all mass absorbed where data end: the visit and what would have
    followed, mu / (1 - gamma). So mu over seen cells + leak + terminal mass = 1 (with "restart" the leak is
    part of mu). Only cells with data earn: the value is the mean reward of the identified mass 1 - leak.
    """
    gamma = make.one(question.gamma)
    visits = mu[~seen].sum() + make.one(0)
    result.leak = visits / (1 - gamma) if question.leak == "absorb" else visits
    result.terminal_mass = make.one(0)
    if question.gamma < 1:
        result.terminal_mass = gamma / (1 - gamma) * (mu @ ended)
    result.warns = (
        result.leak > Fraction(1, 100) if make.exact else result.leak > 0.01
    ) and question.leak == "restart" and question.restart is None  # fmt: skip
    result.identified = mu[seen].sum() + result.terminal_mass
    steps = _episode_steps(mu, seen, table, question, make, n)
    if question.gamma == 1:
        result.expected_length = steps
    else:
        known = result.identified > 0 and mu[seen].sum() > 0
        result.expected_length = mu[seen].sum() / result.identified * steps if known else float("nan")
    reward = cell_reward(table, question, make, n)
    if reward is None:
        return
    earned = (mu[seen] * reward[seen]).sum()
    size = np.abs(reward)
    if question.reward is None:
        size = make.array(
            [make.one(s) / c if c > 0 else 0 for s, c in zip(table.reward_size, n, strict=True)]
        )
    scale = (mu[seen] * size[seen]).sum()
    rewarded = seen & target_cells(question, len(seen))
    identified = bool(any(mu[rewarded] > 0))
    result.value = earned / result.identified if identified else float("nan")
    result.value_scale = scale / result.identified if identified else float("nan")
    result.expected_return = None if steps is None else result.value * steps
    if question.leak == "absorb":
        if question.reward_range is not None:
            low, high = (make.one(bound) for bound in question.reward_range)
        else:
            known = reward if question.reward is not None else reward[seen]
            low, high = min(known), max(known)
        if any(ended > 0):  # an episode may end past the data, too, and earns 0 from then on
            low, high = min(low, make.one(0)), max(high, make.one(0))
        result.bounds = earned + result.leak * low, earned + result.leak * high


def target_cells(question: Question, n_cells: int) -> np.ndarray:
    """The cells that the target visits where it visits their state: all of them without a target.

    A value is identified where mass lies on one of them with data. Mass on other actions is there by
    ``unseen="mean"`` or a ridge alone, and what those earn says nothing about the target.
    """
    if question.policy is None:
        return np.ones(n_cells, dtype=bool)
    return np.array(question.policy).ravel() > 0


def _episode_steps(
    mu: np.ndarray, seen: np.ndarray, table: Table, question: Question, make: _Numbers, n: np.ndarray
) -> Any:
    """What a value per step is multiplied by to be a return: 1 / (1 - gamma), or identified mass per end."""
    if question.gamma < 1:
        return 1 / (1 - make.one(question.gamma))
    if question.smoothing or not any(end > 0 for end in table.ends):
        return None
    rate = (mu[seen] * make.array(table.ends)[seen] / n[seen]).sum()
    return mu[seen].sum() / rate if rate > 0 else None


def cell_reward(table: Table, question: Question, make: _Numbers, n: np.ndarray) -> np.ndarray | None:
    """r(x): what the user gives, by state or by state and action, else the mean of the logged rewards."""
    n_actions = table.n_actions or 1
    if question.reward is not None:
        rows = [row if isinstance(row, list) else [row] * n_actions for row in question.reward]
        return make.array([entry for row in rows for entry in row])
    if table.reward is None:
        return None
    return make.array(
        [make.one(total) / count if count > 0 else 0 for total, count in zip(table.reward, n, strict=True)]
    )
