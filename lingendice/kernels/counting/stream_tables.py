"""Add transitions, in the order of the log, to tables that grow: hash tables with open addressing.

Rows of a table are records of 64-bit words, read as integers (``table``) or as floats (``reals``), which
are two views of the same memory. Capacity is a power of two; ``held[0]`` counts the records in use.

A kernel returns the row at which it stopped for want of room, or ``stop``. Sums run over the rows in the
order given, so results do not depend on how the rows were cut into calls. An array of length zero stands
for "not there".

Records of pairs: 0 key, 1 weight, then with rewards 2 an origin near their mean, 3 the sum and
4 the sum of squares of what they differ from it.
Records of episodes: 0 id, 1 status, then at ``first_at`` the first row's state and weight, and at
``last_at`` the last row's state, action, reward and weight, which wait for the row that follows, or at
``next_at`` its next state, with which that row is compared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import kernel

EMPTY, OPEN, CLOSED = 0, 1, 2
_KEYS = 512  # keys at a time: they and their slots stay in the first-level cache
_STEPS = 64  # rows looked over at a time for ends of episodes
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # multiplicative hashing: 2**64 over the golden ratio


class Table(NamedTuple):
    """A table of ``words``, how far hashes are shifted to places in it, and how many records it takes."""

    words: Any
    reals: Any
    held: Any
    shift: Any
    room: Any


class EpisodeRows(NamedTuple):
    """Rows of a log with the ids of their episodes."""

    episode: Any
    state: Any
    action: Any
    reward: Any
    terminal: Any
    truncated: Any
    following: Any


class Completed(NamedTuple):
    """Room for transitions that are completed by a later row."""

    state: Any
    action: Any
    next_state: Any
    reward: Any
    terminal: Any


class EpisodeLayout(NamedTuple):
    """Where parts of an episode's record begin (-1: not kept), and whether weights are floats."""

    first_at: Any
    last_at: Any
    next_at: Any
    fractional: Any


@kernel
def _home(key, shift):
    return np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(shift))


@kernel
def _side(key, mask):
    """Which of several tables, ``mask`` + 1 in number, holds a key; by bits that its place does not use."""
    return np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(32)) & mask


@kernel
def sides(keys, mask):
    """The table of each key."""
    out = np.empty(keys.size, np.int64)
    for i in range(keys.size):
        out[i] = _side(keys[i], mask)
    return out


@kernel
def _pack_cells(state, action, following, action_bits, next_bits, keys):
    """Keys of rows with actions; the smallest id or 0, the largest state and action."""
    low, high_state, high_action = np.int64(0), np.int64(-1), np.int64(-1)
    for i in range(keys.size):
        x, a, y = np.int64(state[i]), np.int64(action[i]), np.int64(following[i])
        keys[i] = (((x << action_bits) | a) << next_bits) | (y + 1)
        low = min(low, min(a, min(x, y)))
        high_state = max(high_state, max(x, y))
        high_action = max(high_action, a)
    return low, high_state, high_action


@kernel
def _pack_states(state, following, next_bits, keys):
    """Keys of rows without actions; the smallest id or 0, and the largest state."""
    low, high_state = np.int64(0), np.int64(-1)
    for i in range(keys.size):
        x, y = np.int64(state[i]), np.int64(following[i])
        keys[i] = (x << next_bits) | (y + 1)
        low = min(low, min(x, y))
        high_state = max(high_state, max(x, y))
    return low, high_state


@kernel
def pack_keys(state, action, following, terminal, action_bits, next_bits, keys):
    """Keys of rows: state, action and next state + 1, or 0 where the episode ended.

    Returns the smallest id or 0, the largest state and the largest action: what the keys are worth. Without
    actions ``action_bits`` is 0.
    """
    high_action = np.int64(-1)
    if action.size != 0:
        low, high_state, high_action = _pack_cells(state, action, following, action_bits, next_bits, keys)
    else:
        low, high_state = _pack_states(state, following, next_bits, keys)
    if terminal.size != 0:
        for i in range(keys.size):
            keys[i] = (keys[i] >> next_bits) << next_bits if terminal[i] else keys[i]
    return low, high_state, high_action


@kernel
def _changes(ids):
    """Whether not all are equal; without a way out, so that the loop is vectorized."""
    some = np.int64(0)
    for i in range(ids.size):
        some |= np.int64(ids[i]) ^ np.int64(ids[0])
    return some != 0


@kernel
def _some(flags):
    some = np.int64(0)
    for i in range(flags.size):
        some |= np.int64(flags[i])
    return some != 0


@kernel
def find_events(episode, terminal, truncated, n, rows):
    """Rows that may begin an episode or end one; all others just go on. Returns their number.

    Most blocks of a log have none.
    """
    found = 0
    if n > 0:
        rows[0] = 0
        found = 1
    for first in range(1, n, _STEPS):
        last = min(first + _STEPS, n)
        if not (
            _changes(episode[first - 1 : last])
            or _some(terminal[first - 1 : last])
            or _some(truncated[first - 1 : last])
        ):
            continue
        for i in range(first, last):
            event = False
            if episode.size != 0:
                event = episode[i] != episode[i - 1]
            if terminal.size != 0:
                event |= terminal[i] or terminal[i - 1]
            if truncated.size != 0:
                event |= truncated[i] or truncated[i - 1]
            rows[found] = i
            found += event
    return found


@kernel
def count_breaks(episode, state, following, terminal, truncated):
    """Rows that are no events and whose state is not the next state of the row above: number, and first.

    Most blocks of a log have none, so that they are looked for only where some pair of rows differs at all.
    """
    n, first_row = 0, -1
    for first in range(1, state.size, _STEPS):
        last = min(first + _STEPS, state.size)
        some = np.int64(0)
        for i in range(first, last):
            some |= np.int64(following[i - 1]) ^ np.int64(state[i])
        if some == 0:
            continue
        for i in range(first, last):
            if following[i - 1] == state[i] or (episode.size != 0 and episode[i] != episode[i - 1]):
                continue
            if terminal.size != 0 and (terminal[i] or terminal[i - 1]):
                continue
            if truncated.size != 0 and (truncated[i] or truncated[i - 1]):
                continue
            n += 1
            first_row = i if first_row < 0 else first_row
    return n, first_row


@kernel
def extent(ids):
    """Smallest and largest of some ids, in one pass."""
    low = high = np.int64(ids[0])
    for i in range(ids.size):
        low = min(low, np.int64(ids[i]))
        high = max(high, np.int64(ids[i]))
    return low, high


@kernel
def _place(keys, n, place_in, slots):
    """Slots of the first keys, empty ones taken for what is new; how many there was room for.

    Slots come first and updates later, each in a short loop, so that the processor waits for many records
    at a time.
    """
    table, _, held, shift, room = place_in
    mask = np.uint64(table.shape[0] - 1)
    for i in range(n):
        slots[i] = np.uint64(_home(keys[i], shift))
    for i in range(n):
        key, slot = keys[i], slots[i]
        while table[slot, 0] != key:
            if table[slot, 0] < 0:
                if held[0] >= room:
                    return i
                held[0] += 1
                table[slot, 0] = key
                table[slot, 1] = 0  # the same bits as 0.0
                break
            slot = (slot + np.uint64(1)) & mask
        slots[i] = slot
    return n


@kernel
def _move_origin(slot, total, reals):
    """Put the origin of rewards at their mean, so that no difference ever cancels."""
    moved = reals[slot, 3] / total
    origin = reals[slot, 2] + moved
    moved = origin - reals[slot, 2]
    reals[slot, 4] += moved * (total * moved - 2.0 * reals[slot, 3])
    reals[slot, 3] -= total * moved
    reals[slot, 2] = origin


@kernel
def _add_rewards(reward, rows, slots, n, table, reals):
    """Add rows of weight one with their rewards.

    The origin moves whenever a count reaches a power of two: what came since is then never more than what
    came before, and the squares about the origin are at most twice those about the mean.
    """
    for i in range(n):
        slot, r = slots[i], reward[rows[i]]
        before = table[slot, 1]
        table[slot, 1] = before + 1
        if before == 0:
            reals[slot, 2] = r
            reals[slot, 3] = 0.0
            reals[slot, 4] = 0.0
        shifted = r - reals[slot, 2]
        # Rewards that never differ are common, and then half of the record need not be touched.
        if shifted != 0.0:
            reals[slot, 3] += shifted
            reals[slot, 4] += shifted * shifted
        if before & (before + 1) == 0:
            _move_origin(slot, np.float64(before + 1), reals)


@kernel
def _add_weighted(weight, reward, extra_m2, rows, slots, n, fractional, table, reals):
    """Add rows that stand for several steps each."""
    for i in range(n):
        row, slot = rows[i], slots[i]
        w = weight[row] if weight.size != 0 else weight.dtype.type(1)
        if w == 0:
            continue
        if reward.size != 0 and table[slot, 1] == 0:
            reals[slot, 2] = reward[row]
            reals[slot, 3] = 0.0
            reals[slot, 4] = 0.0
        if fractional:
            reals[slot, 1] += w
            total = reals[slot, 1]
        else:
            table[slot, 1] += np.int64(w)
            total = np.float64(table[slot, 1])
        if reward.size != 0:
            shifted = reward[row] - reals[slot, 2]
            reals[slot, 3] += w * shifted
            reals[slot, 4] += w * shifted * shifted
            if extra_m2.size != 0:
                reals[slot, 4] += extra_m2[row]
            if 4.0 * reals[slot, 3] * reals[slot, 3] > total * reals[slot, 4]:
                _move_origin(slot, total, reals)


@kernel
def _choose(keys, weight, first, last, side, mask, rows, chosen):
    """Rows of one side, and their keys; how many they are."""
    found = 0
    for i in range(first, last):
        rows[found] = i
        chosen[found] = keys[np.uint64(i)]
        found += _side(keys[np.uint64(i)], mask) == side
    if weight.size != 0:
        for i in range(found):
            # The key of an empty slot finds one and leaves it empty.
            chosen[i] = chosen[i] if weight[rows[i]] != 0 else -1
    return found


@kernel
def add_pairs(keys, weight, reward, reward_m2, start, stop, side, mask, fractional, table):
    """Add rows of one side (see `sides`) to the records of their pairs; weight zero is no transition."""
    words, reals = table.words, table.reals
    slots = np.empty(_KEYS, np.uint64)
    chosen = np.empty(_KEYS, np.int64)
    rows = np.empty(_KEYS, np.uint64)
    for first in range(start, stop, _KEYS):
        found = _choose(keys, weight, first, min(first + _KEYS, stop), side, mask, rows, chosen)
        placed = _place(chosen, found, table, slots)
        if weight.size != 0 or reward_m2.size != 0:
            _add_weighted(weight, reward, reward_m2, rows, slots, placed, fractional, words, reals)
        elif reward.size != 0:
            _add_rewards(reward, rows, slots, placed, words, reals)
        else:
            for i in range(placed):
                words[slots[i], 1] += 1
        if placed < found:
            return np.int64(rows[placed])
    return stop


@kernel
def move_records(old, old_first, old_last, shift, by_status, table):
    """Put the records of a smaller table into a larger, empty one."""
    mask = table.shape[0] - 1
    for i in range(old_first, old_last):
        if old[i, 1] == EMPTY if by_status else old[i, 0] < 0:
            continue
        slot = _home(old[i, 0], shift)
        while table[slot, 1] != EMPTY if by_status else table[slot, 0] >= 0:
            slot = (slot + 1) & mask
        for word in range(old.shape[1]):
            table[slot, word] = old[i, word]


@kernel
def _episode_slot(episode, shift, table, mask):
    slot = _home(episode, shift)
    while table[slot, 1] != EMPTY and table[slot, 0] != episode:
        slot = (slot + 1) & mask
    return slot


@kernel
def follow_episodes(rows, weight, start, stop, layout, episodes, breaks, begins, completed, out_weight):
    """Mark rows that begin an episode, and complete transitions by the row that follows in the episode.

    ``begins[i]`` becomes True for the first row of an id and for the row of that id after a terminal or
    truncated one; rows that `find_events` passes over would change nothing and need not be given. With
    ``last_at >= 0`` the completed transitions are written to ``completed`` and ``out_weight``, their number
    to ``held[1]``; a row gives at most two: the one it completes and, if terminal, its own.

    With ``next_at >= 0``, ``following[i]`` is the next state of the last row before the next one given, and
    a row that goes on with an episode elsewhere adds to ``breaks[0]``; ``breaks[1]`` is the first.
    """
    episode, state, action, reward, terminal, truncated, following = rows
    first_at, last_at, next_at, fractional = layout
    table, reals, held, shift, room = episodes
    out_state, out_action, out_next, out_reward, out_terminal = completed
    mask = table.shape[0] - 1
    slot = np.int64(-1)
    written = held[1]
    for i in range(start, stop):
        if slot < 0 or table[slot, 0] != episode[i]:
            slot = _episode_slot(episode[i], shift, table, mask)
        if table[slot, 1] == EMPTY:
            if held[0] >= room:
                held[1] = written
                return i
            held[0] += 1
            table[slot, 0] = episode[i]
            if first_at >= 0:
                table[slot, first_at] = state[i]
                if weight.size == 0:
                    table[slot, first_at + 1] = 1
                elif fractional:
                    reals[slot, first_at + 1] = weight[i]
                else:
                    table[slot, first_at + 1] = np.int64(weight[i])
        begins[i] = table[slot, 1] != OPEN
        if next_at >= 0:
            if not begins[i] and table[slot, next_at] != state[i]:
                breaks[0] += 1
                breaks[1] = i if breaks[1] < 0 else breaks[1]
            table[slot, next_at] = following[i]
        if last_at >= 0 and not begins[i]:
            out_state[written] = table[slot, last_at]
            out_action[written] = table[slot, last_at + 1]
            out_reward[written] = reals[slot, last_at + 2]
            if fractional:
                out_weight[written] = reals[slot, last_at + 3]
            else:
                out_weight[written] = table[slot, last_at + 3]
            out_next[written] = state[i]
            out_terminal[written] = False
            written += 1
        ends = terminal.size != 0 and terminal[i]
        stops = truncated.size != 0 and truncated[i]
        table[slot, 1] = CLOSED if ends or stops else OPEN
        if last_at < 0:
            continue
        w = weight[i] if weight.size != 0 else weight.dtype.type(1)
        a = action[i] if action.size != 0 else action.dtype.type(0)
        r = reward[i] if reward.size != 0 else 0.0
        if ends:
            out_state[written] = state[i]
            out_action[written] = a
            out_reward[written] = r
            out_weight[written] = w
            out_next[written] = state[i]
            out_terminal[written] = True
            written += 1
        elif not stops:
            table[slot, last_at] = state[i]
            table[slot, last_at + 1] = a
            reals[slot, last_at + 2] = r
            if fractional:
                reals[slot, last_at + 3] = w
            else:
                table[slot, last_at + 3] = np.int64(w)
    held[1] = written
    return stop


_SHORT = 48  # entries of a row up to which they are sorted by insertion


@kernel
def _cell(key, action_bits, next_bits, n_actions):  # type: ignore[no-untyped-def]
    cell = key >> next_bits
    return (cell >> action_bits) * n_actions + (cell & ((np.int64(1) << action_bits) - 1))


@kernel
def split_keys(keys, start, stop, action_bits, next_bits, n_actions, end, pairs):  # type: ignore[no-untyped-def]
    """Cell and column of each key; ``end`` is the column for ends of episodes.

    ``pairs`` may be the same memory as ``keys``, in which case the keys are gone.
    """
    following = (np.int64(1) << next_bits) - 1
    for i in range(start, stop):
        key = keys[i]
        column = key & following
        pairs[i, 0] = _cell(key, action_bits, next_bits, n_actions)
        pairs[i, 1] = column - 1 if column > 0 else end


@kernel
def count_rows(table, start, stop, cells, action_bits, next_bits, n_actions, sizes):  # type: ignore[no-untyped-def]
    """Add the number of pairs of every cell in a range, for records ``start`` to ``stop`` of the table."""
    for slot in range(start, stop):
        if table[slot, 0] >= 0:
            cell = _cell(table[slot, 0], action_bits, next_bits, n_actions)
            if cells[0] <= cell < cells[1]:
                sizes[cell] += 1


@kernel
def fill_rows(table, start, stop, cells, action_bits, next_bits, n_actions, end, cursor, columns, values):  # type: ignore[no-untyped-def]
    """Put records into the rows of their cells, where these are in a range, at the row's cursor.

    Column ``end`` is for ends of episodes; ``values`` takes the words after the key.
    """
    following = (np.int64(1) << next_bits) - 1
    for slot in range(start, stop):
        key = table[slot, 0]
        if key < 0:
            continue
        cell = _cell(key, action_bits, next_bits, n_actions)
        if not cells[0] <= cell < cells[1]:
            continue
        at = cursor[cell]
        cursor[cell] = at + 1
        column = key & following
        columns[at] = column - 1 if column > 0 else end
        for word in range(values.shape[1]):
            values[at, word] = table[slot, word + 1]


@kernel
def sort_rows(indptr, start, stop, columns, values):  # type: ignore[no-untyped-def]
    """Sort the entries of rows ``start`` to ``stop`` by column, in place."""
    width = values.shape[1]
    moved = np.empty(width, values.dtype)
    for row in range(start, stop):
        first, last = indptr[row], indptr[row + 1]
        if last - first > _SHORT:
            order = np.argsort(columns[first:last])
            columns[first:last] = columns[first:last][order]
            values[first:last] = values[first:last][order]
            continue
        for i in range(first + 1, last):
            column = columns[i]
            if columns[i - 1] <= column:
                continue
            moved[:] = values[i]
            j = i
            while j > first and columns[j - 1] > column:
                columns[j] = columns[j - 1]
                for word in range(width):
                    values[j, word] = values[j - 1, word]
                j -= 1
            columns[j] = column
            values[j] = moved
