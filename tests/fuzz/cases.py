"""Random cases, each made from its number alone: a log or matrix, a question, and how they are handed over.

The data live in a small space of states and actions, where the oracle answers. ``Form`` says how the same
data reach the library: dtypes, memory layouts, labels or widely spread ids, the reader, and what is done to
the counts before they are asked. Nothing of the library is imported here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .oracle import Answer, Log, Question, Refused, Table, answer, count, count_matrix, merge

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">u2", ">i4", ">u4", ">i8", ">u8")
LAYOUTS = ("plain", "strided", "reversed", "fortran", "readonly", "list", "unaligned")
READERS = ("mapping", "batches", "pandas", "polars", "arrow", "csv", "parquet", "feather")
GAMMAS = (0.1, 0.5, 0.9, 0.99, 1 - 1e-6, 1.0)
METHODS = ("auto", "gth", "elimination", "gauss-seidel", "aggregation")
SPARSE = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
LOG, MATRIX = "log", "matrix"


@dataclass
class Form:
    """How data reach the library."""

    reader: str = "transitions"
    """"transitions" (Counts.from_transitions), a name of READERS, or for matrices "dense", "list", "graph",
    "multigraph" or a sparse format."""
    dtype: dict[str, str] = field(default_factory=dict)
    layout: dict[str, str] = field(default_factory=dict)
    state_id: list[int] = field(default_factory=list)
    """The library's id of each state of the small space."""
    action_id: list[int] = field(default_factory=list)
    n_states: int = 0
    n_actions: int = 0
    say_sizes: bool = False
    """Whether n_states and n_actions are given; else they follow from the largest id."""
    labels: str | None = None
    """"str", "tuple" or "category": states and actions go by names."""
    cuts: list[int] = field(default_factory=list)
    """Rows at which the log is cut into pieces that are counted apart and merged, or into batches."""
    merged: bool = False
    derived: bool = False
    """Whether the reader has to find next states from the rows that follow."""
    ends: str | None = None
    """The reader's ``ends=``: what the last row of an episode is where nothing marks it."""
    last_rows_end: bool = False
    """Whether ends are in no column, and the last rows of episodes are taken for them."""
    ended_name: str = "terminal"
    """Name of the column of ends in a table: "terminated" and "done" are common, too."""
    keep_episodes: bool = False
    then: str = "nothing"
    """"npz", "parquet", "pickle": the counts are saved and loaded before they are asked."""
    direct: bool = False
    """Whether a matrix goes to ``solve`` as it is, without Counts."""
    masked: str | None = None
    """The argument that is a masked array, which must be refused."""
    deterministic: bool = False
    """Whether the policy is given as one action per state."""


@dataclass
class Case:
    """Everything about one case; ``expected`` is an Answer, or Refused for a ValueError."""

    number: int
    kind: str
    table: Table
    question: Question
    form: Form
    method: str
    max_iter: int | None = None
    log: Log | None = None
    pieces: list[Log] = field(default_factory=list)
    entries: list[tuple[int, int, Any]] = field(default_factory=list)
    expected: Answer | Refused = field(default_factory=lambda: Refused("not asked yet"))
    may_refuse: bool = False
    """Whether a ValueError is right as well as the answer."""


def make_case(number: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([20200219, number])
    kind = rng.random()
    if number % 331 == 330:
        case = _matrix_case(rng, number, int(rng.integers(301, 331)))
    elif number % 41 == 40:
        case = _matrix_case(rng, number, int(rng.integers(13, 41)))
    elif kind < 0.7:
        case = _log_case(rng, number)
    else:
        case = _matrix_case(rng, number, int(rng.integers(1, 7)))
    if case.method == "gauss-seidel" and case.question.gamma > 0.999:
        # Sweeps cannot come down to tol here, and the status has to say so, with and without a limit.
        case.max_iter = None if number % 2 == 0 else 1000
    if case.form.masked is not None:
        case.expected = Refused(f"{case.form.masked} is masked")
        return case
    # A chain without transitions restarts for ever at gamma < 1, which one may answer or refuse.
    case.may_refuse = case.may_refuse or (not any(map(any, case.table.count)) and not any(case.table.ends))
    try:
        case.expected = answer(case.table, case.question)
    except Refused as refusal:
        case.expected = refusal
    return case


def _pick(rng: np.random.Generator, options: Any, p: Any = None) -> Any:
    return options[int(rng.choice(len(options), p=p))]


def _chance(rng: np.random.Generator, p: float) -> bool:
    return bool(rng.random() < p)


# -- logs ----------------------------------------------------------------------------------------------


def _log_case(rng: np.random.Generator, number: int) -> Case:
    n_states = int(rng.integers(1, 7))
    n_actions = None if _chance(rng, 0.35) else int(rng.integers(1, 4))
    log, is_path = _walk(rng, n_states, n_actions)
    form = Form(reader="transitions" if _chance(rng, 0.75) else _pick(rng, READERS))
    form.derived = form.reader != "transitions" and is_path and _chance(rng, 0.4)
    form.say_sizes = form.derived or _chance(rng, 0.4)
    if not form.derived and _chance(rng, 0.15):
        form.labels, form.say_sizes = _pick(rng, ("str", "tuple", "category")), False
    if form.labels in ("tuple", "category") and form.reader != "transitions":
        form.labels = "str"
    if not form.say_sizes:
        log = _compressed(log)
    if form.derived:
        _choose_ends(rng, form, log)
    weighted = _add_weights(rng, log, form) if not form.derived and _chance(rng, 0.3) else False
    _choose_ids(rng, form, log)
    _choose_handing_over(rng, form, log, weighted)
    pieces = [log]
    if form.merged:
        borders = [0, *form.cuts, len(log.state)]
        pieces = [log.rows(a, b) for a, b in itertools.pairwise(borders)]
    table = merge([count(piece) for piece in pieces])
    question = _question(rng, table, form)
    if log.reward is not None and question.reward_range is not None:
        question.reward_range = (min([-8.0, *log.reward]), max([16.0, *log.reward]))
    case = Case(number, LOG, table, question, form, _pick(rng, METHODS), log=log, pieces=pieces)
    ended = log.terminal is not None and any(log.terminal) and not form.last_rows_end
    if form.reader != "transitions" and not form.labels and ended and _chance(rng, 0.15):
        # "done" alone may mean either kind of end, which is why a refusal is right, too.
        names = ("terminated", "done") if log.truncated is None else ("terminated",)
        form.ended_name, case.may_refuse = _pick(rng, names), True
    if form.reader in ("transitions", "mapping", "batches") and form.labels is None and _chance(rng, 0.04):
        form.masked = _pick(rng, _arguments(case))
    return case


def _choose_ends(rng: np.random.Generator, form: Form, log: Log) -> None:
    """Say what becomes of last rows, or leave it to the reader.

    With ids of episodes and no column of terminals they end their episodes by default; else they are left
    out.
    """
    ends_by_default = log.episode is not None and log.terminal is None
    if log.episode is not None and log.terminal is None and log.truncated is None and _chance(rng, 0.8):
        form.last_rows_end = True
        last = {episode: row for row, episode in enumerate(log.episode)}
        log.terminal = [last[episode] == row for row, episode in enumerate(log.episode)]
        form.ends = "terminal" if _chance(rng, 0.5) else None
    else:
        form.ends = "truncated" if ends_by_default or _chance(rng, 0.5) else None


def _walk(rng: np.random.Generator, n_states: int, n_actions: int | None) -> tuple[Log, bool]:
    """A log of a few short episodes of a sparse chain, and whether next states follow from the rows."""
    cells = n_states * (n_actions or 1)
    successors = [rng.integers(n_states, size=int(rng.integers(1, 4))) for _ in range(cells)]
    starts = rng.integers(n_states, size=int(rng.integers(1, 3)))
    ending = _pick(rng, (0.0, 0.1, 0.3))
    jumps = _chance(rng, 0.2)
    has = {name: _chance(rng, p) for name, p in (("terminal", 0.5), ("truncated", 0.35), ("episode", 0.6))}
    reuse = _chance(rng, 0.15)
    episodes = []
    for number in range(int(rng.integers(1, 6))):
        rows, state = [], int(_pick(rng, starts))
        for step in range(length := int(rng.integers(1, 14))):
            action = int(rng.integers(n_actions or 1))
            following = int(_pick(rng, successors[state * (n_actions or 1) + action]))
            last = step == length - 1 or _chance(rng, ending)
            end = bool(last and has["terminal"] and _chance(rng, 0.6))
            cut = bool(last and has["truncated"] and (not end or _chance(rng, 0.1)) and _chance(rng, 0.7))
            rows.append((state, action, following, end, cut, number % 2 if reuse else number))
            if last:
                break
            state = int(rng.integers(n_states)) if jumps else following
        episodes.append(rows)
    rows = (
        _interleaved(rng, episodes)
        if has["episode"] and _chance(rng, 0.3)
        else list(itertools.chain(*episodes))
    )
    state, action, following, end, cut, episode = (list(column) for column in zip(*rows, strict=True))
    cuts_known = has["episode"] or all(rows[-1][3] or rows[-1][4] for rows in episodes[:-1])
    log = Log(
        state, following,
        action=action if n_actions is not None else None,
        reward=_rewards(rng, len(state)) if _chance(rng, 0.8) else None,
        terminal=end if has["terminal"] else None,
        truncated=cut if has["truncated"] else None,
        episode=episode if has["episode"] else None,
        n_states=n_states, n_actions=n_actions,
    )  # fmt: skip
    return log, cuts_known and not jumps and not reuse


def _interleaved(rng: np.random.Generator, episodes: list[list[Any]]) -> list[Any]:
    order = rng.permutation(np.repeat(np.arange(len(episodes)), [len(rows) for rows in episodes]))
    queues = [iter(rows) for rows in episodes]
    return [next(queues[number]) for number in order]


def _rewards(rng: np.random.Generator, n: int) -> list[float]:
    scale = _pick(rng, ("eighths", "whole", "normal", "offset"), [0.5, 0.2, 0.2, 0.1])
    if scale == "eighths":
        return (rng.integers(-32, 33, n) / 8).tolist()
    if scale == "whole":
        return rng.integers(-3, 4, n).astype(float).tolist()
    return (rng.normal(size=n) + (1e6 if scale == "offset" else 0.0)).tolist()


def _compressed(log: Log) -> Log:
    """The same log over the states and actions that occur in it."""
    states = {s: i for i, s in enumerate(sorted({*log.state, *log.next_state}))}
    log = replace(
        log, state=[states[s] for s in log.state], next_state=[states[s] for s in log.next_state],
        n_states=len(states),
    )  # fmt: skip
    if log.action is not None:
        actions = {a: i for i, a in enumerate(sorted(set(log.action)))}
        log = replace(log, action=[actions[a] for a in log.action], n_actions=len(actions))
    return log


def _add_weights(rng: np.random.Generator, log: Log, form: Form) -> bool:
    """Frequency weights that fill their dtype, or quarters; zeros only inside episodes."""
    n = len(log.state)
    if _chance(rng, 0.3):
        form.dtype["weight"] = _pick(rng, ("f8", "f4", ">f8"))
        log.weight = (rng.integers(1, 17, n) / 4).tolist()
    else:
        form.dtype["weight"] = _pick(rng, INTEGERS)
        largest = min(int(np.iinfo(form.dtype["weight"]).max), 2**40)
        log.weight = rng.integers(1, largest if _chance(rng, 0.5) else 6, n).tolist()
    if _chance(rng, 0.2) and log.episode is None:
        # Where a whole episode, or its first row, has weight 0, it is a matter of taste where it began.
        border = np.ones(n, dtype=bool)
        for flags in (log.terminal, log.truncated):
            if flags is not None:
                border |= np.array(flags)
                border[1:] |= np.array(flags[:-1], dtype=bool)
        plain = log.terminal is None and log.truncated is None
        for row in range(1, n):
            if (plain or not border[row]) and _chance(rng, 0.3):
                log.weight[row] = 0
    return True


def _choose_ids(rng: np.random.Generator, form: Form, log: Log) -> None:
    """Place the small space in the library's: as it is, spread, or up to the last id that a dtype holds."""
    form.state_id, form.action_id = list(range(log.n_states)), list(range(log.n_actions or 1))
    form.dtype["state"], form.dtype["next_state"] = _pick(rng, INTEGERS), _pick(rng, INTEGERS)
    form.dtype["action"], form.dtype["episode"] = _pick(rng, INTEGERS), _pick(rng, INTEGERS)
    if form.labels is None and _chance(rng, 0.35):
        narrow = _pick(rng, ("i1", "u1", "i2", ">i2"), [0.45, 0.35, 0.1, 0.1])
        top = int(np.iinfo(narrow).max) if _chance(rng, 0.8) else int(rng.integers(10, 120))
        form.dtype["state"] = form.dtype["next_state"] = narrow
        form.state_id = _spread_ids(rng, log.n_states, top)
    if form.labels is None and log.action is not None and max(form.state_id) < 300 and _chance(rng, 0.1):
        form.dtype["action"] = _pick(rng, ("i1", "u1"))
        form.action_id = _spread_ids(rng, len(form.action_id), int(np.iinfo(form.dtype["action"]).max))
    for name in ("state", "next_state"):
        if max(form.state_id) > np.iinfo(form.dtype[name]).max:
            form.dtype[name] = "i8"
    if max(form.action_id) > np.iinfo(form.dtype["action"]).max:
        form.dtype["action"] = "i8"
    form.n_states, form.n_actions = max(form.state_id) + 1, max(form.action_id) + 1
    # A few ids in a huge range may as well be names; whoever gives the size says that they are ids.
    form.say_sizes = form.say_sizes or form.n_states > 1000


def _spread_ids(rng: np.random.Generator, n: int, top: int) -> list[int]:
    ids = rng.choice(top, size=n - 1, replace=False).tolist() if n > 1 else []
    return rng.permutation([*ids, top]).tolist()


def _choose_handing_over(rng: np.random.Generator, form: Form, log: Log, weighted: bool) -> None:
    for name in ("state", "next_state", "action", "episode", "weight", "reward", "terminal", "truncated"):
        form.layout[name] = _pick(rng, LAYOUTS)
    form.dtype["reward"] = _pick(rng, ("f8", ">f8"))
    if log.reward is not None and all(r == round(r) for r in log.reward):
        form.dtype["reward"] = _pick(rng, ("f8", "f4", "i1", "i8", ">i4"))
    for name in ("terminal", "truncated"):
        form.dtype[name] = _pick(rng, ("?", "?", "i1", "u1", "i8", "f8", ">i2"))
    n = len(log.state)
    if n > 2 and _chance(rng, 0.5):
        form.cuts = sorted({int(row) for row in rng.integers(1, n, size=int(rng.integers(1, 4)))})
    form.merged = form.reader == "transitions" and bool(form.cuts) and _chance(rng, 0.6) and not form.labels
    if form.merged and not form.say_sizes:
        form.say_sizes = True
    tells_episodes = log.episode is not None or log.terminal is not None or log.truncated is not None
    form.keep_episodes = form.reader == "transitions" and tells_episodes and _chance(rng, 0.2)
    form.then = _pick(rng, ("nothing", "npz", "parquet", "pickle"), [0.86, 0.05, 0.04, 0.05])
    if form.keep_episodes and form.then == "parquet":
        form.then = "npz"


# -- matrices ------------------------------------------------------------------------------------------


def _matrix_case(rng: np.random.Generator, number: int, n_states: int) -> Case:
    form = Form(reader=_pick(rng, ("dense", "list", "graph", "multigraph", *SPARSE)))
    if n_states > 300:
        form.reader = _pick(rng, SPARSE[:3])
    form.dtype["matrix"] = _pick(rng, (*INTEGERS, "f8", "f4", ">f8", "?"))
    form.layout["matrix"] = _pick(rng, LAYOUTS)
    entries = _entries(rng, form, n_states)
    form.state_id = list(range(n_states))
    if form.reader in SPARSE and n_states < 13 and _chance(rng, 0.1):
        form.state_id = _spread_ids(rng, n_states, int(rng.integers(n_states, 140)))
    form.n_states = max(form.state_id) + 1
    if form.reader in ("graph", "multigraph"):
        form.labels = "str"
    form.direct = form.reader != "multigraph" and _chance(rng, 0.5)
    no_sample = form.reader in ("graph", "multigraph") or _is_stochastic(form, entries, n_states)
    table = count_matrix(entries, n_states, no_sample)
    question = _question(rng, table, form)
    method = _pick(rng, METHODS)
    if form.direct and form.reader == "dense" and _chance(rng, 0.5):
        question, method = Question(gamma=question.gamma), "auto"  # the plainest call has a path of its own
    case = Case(number, MATRIX, table, question, form, method, entries=entries)
    if form.reader == "dense" and _chance(rng, 0.06):
        form.masked = _pick(rng, _arguments(case))
    return case


def _entries(rng: np.random.Generator, form: Form, n_states: int) -> list[tuple[int, int, Any]]:
    """Entries of a sparse matrix: rows without any, blocks, repeated entries, zeros, extreme counts."""
    dtype = np.dtype(form.dtype["matrix"])
    blocks = rng.integers(int(rng.integers(1, 4)), size=n_states)
    empty = _pick(rng, (0.0, 0.15, 0.4))
    repeats = form.reader in ("csr", "csc", "coo", "multigraph") and _chance(rng, 0.5)
    extreme = _chance(rng, 0.3) and n_states < 13
    rows = []
    for row in range(n_states):
        inside = np.flatnonzero(blocks == blocks[row])
        if _chance(rng, empty):
            continue
        for column in rng.choice(inside, size=min(len(inside), int(rng.integers(1, 4))), replace=False):
            for _ in range(int(rng.integers(1, 4)) if repeats else 1):
                rows.append((row, int(column)))
    stochastic = dtype.kind == "f" and _chance(rng, 0.4) and not repeats
    if dtype.kind == "b":
        values = [1] * len(rows)
        rows = sorted(set(rows))  # a sum of booleans is no boolean
    elif stochastic:
        share = {row: [r for r, _ in rows].count(row) for row, _ in rows}
        values = [1 / share[row] for row, _ in rows]
    elif dtype.kind == "f":
        values = (rng.integers(0, 33, len(rows)) / 8).tolist()
    else:
        largest = min(int(np.iinfo(dtype).max), 2**50)
        values = rng.integers(0, largest if extreme else min(largest, 9), len(rows), endpoint=True).tolist()
    as_held = np.array(values[: len(rows)], dtype=dtype).tolist()
    return [(row, column, value) for (row, column), value in zip(rows, as_held, strict=True)]


def _is_stochastic(form: Form, entries: list[tuple[int, int, Any]], n_states: int) -> bool:
    """Whether rows are probabilities, or were meant to be: all sums near 1, or half of them at 1."""
    dtype = np.dtype(form.dtype["matrix"])
    if dtype.kind != "f":
        return False
    sums, summed = [0.0] * n_states, {}
    for row, column, value in entries:
        sums[row] += value
        summed[row, column] = summed.get((row, column), 0.0) + value
    off = [abs(total - 1.0) for total in sums if total]
    exact = sum(each <= (1e-5 if dtype.itemsize < 8 else 1e-8) for each in off)
    if not off or exact == len(off):
        return bool(off)
    return max(summed.values()) <= 1.0 and max(off) <= (0.2 if 2 * exact >= len(off) else 0.02)


# -- questions -----------------------------------------------------------------------------------------


def _question(rng: np.random.Generator, table: Table, form: Form) -> Question:
    """What is asked; options are drawn so that most questions have an answer."""
    n_states, n_actions = table.n_states, table.n_actions
    ends = any(table.ends)
    gamma = _pick(rng, GAMMAS, [0.12, 0.12, 0.16, 0.14, 0.14, 0.32])
    question = Question(gamma=gamma)
    question.leak = _pick(rng, ("restart", "absorb", "error"), [0.55, 0.25, 0.2])
    if gamma == 1 and question.leak == "absorb" and not _chance(rng, 0.1):
        question.leak = "restart"
    if ends and _chance(rng, 0.3):
        question.terminal = _pick(rng, ("restart", "absorb"))
    if gamma == 1 and question.terminal == "absorb" and not _chance(rng, 0.1):
        question.terminal = "restart"
    if n_actions is not None:
        _ask_policy(rng, question, table, form)
    needs = gamma < 1 and table.first is None and (n_actions is not None or form.n_states != n_states)
    if _chance(rng, 0.95 if needs else 0.25) or (needs and n_actions is None):
        question.initial = _distribution(rng, n_states)
    if _chance(rng, 0.05 if question.leak == "absorb" else 0.3):
        question.restart = _distribution(rng, n_states)
    if _chance(rng, 0.15 if table.reward is not None else 0.4):
        by_state = n_actions is None or _chance(rng, 0.5)
        values = (rng.integers(-8, 9, (n_states, n_actions or 1)) / 4).tolist()
        question.reward = [row[0] for row in values] if by_state else values
    wider = form.n_states > n_states or (n_actions is not None and form.n_actions > n_actions)
    elsewhere = question.reward is not None and wider
    if elsewhere or _chance(rng, 0.6):  # rewards given outside the small space are in the range of those seen
        question.reward_range = (-8.0, 16.0)
    return question


def _ask_policy(rng: np.random.Generator, question: Question, table: Table, form: Form) -> None:
    n_states, n_actions = table.n_states, table.n_actions or 1
    question.ratio = _pick(rng, ("auto", "state", "state_action"))
    if _chance(rng, 0.2):
        if form.n_actions != n_actions:
            # An unvisited state is left by all actions alike, those outside the small space, too.
            question.ratio = "state"
        return
    form.deterministic = _chance(rng, 0.15)
    if form.deterministic:
        question.policy = np.eye(n_actions)[rng.integers(n_actions, size=n_states)].tolist()
    else:
        question.policy = [_distribution(rng, n_actions) for _ in range(n_states)]
    if question.ratio == "state" and _chance(rng, 0.2):
        question.behavior = ((1 + rng.integers(0, 4, (n_states, n_actions))) / 1.0).tolist()
        question.behavior = [[b / sum(row) for b in row] for row in question.behavior]
    elif _chance(rng, 0.4):
        question.unseen = _pick(rng, ("leak", "renormalize", "mean"))


def _distribution(rng: np.random.Generator, n: int) -> list[float]:
    """A distribution: a point, a few eighths, tenths (which floats do not sum to 1), or arbitrary floats."""
    kind = _pick(rng, ("point", "eighths", "tenths", "floats"), [0.25, 0.35, 0.15, 0.25])
    if kind == "point":
        weights = np.eye(n)[int(rng.integers(n))]
    elif kind == "eighths":
        weights = np.bincount(rng.integers(n, size=8), minlength=n) / 8
    elif kind == "tenths":
        weights = np.bincount(rng.integers(n, size=10), minlength=n) / 10
    else:
        weights = rng.dirichlet(np.ones(n))
    return weights.tolist()


def _arguments(case: Case) -> list[str]:
    """Names of the arrays that a call hands over: one of them may be masked."""
    question, log = case.question, case.log
    names = [
        name for name in ("policy", "behavior", "reward", "initial", "restart")
        if getattr(question, name) is not None
    ]  # fmt: skip
    if log is None:
        return ["matrix", *names]
    columns = ("action", "reward", "weight", "terminal", "truncated", "episode")
    held = [f"log {name}" for name in columns if getattr(log, name) is not None]
    if case.form.last_rows_end:
        held.remove("log terminal")
    following = [] if case.form.derived else ["log next_state"]
    return ["log state", *following, *held, *names]
