"""Add transitions, in the order of the log, to tables that grow: hash tables with open addressing.

Rows of a table are records of 64-bit words, read as integers (``table``) or as floats (``reals``), which
are two views of the same memory. Capacity is a power of two; ``held[0]`` counts the records in use.

A kernel returns the row at which it stopped for want of room, or ``stop``. Sums run over the rows in the
order given, so results do not depend on how the rows were cut into calls. An array of length zero stands
for "not there".

Records of pairs: 0 key, 1 weight, then with rewards 2 an origin near their mean, 3 the sum and
4 the sum of squares of what they differ from it.
Records of episodes: 0 id, 1 status, then at ``first_at`` the first row's state and weight, and at
``last_at`` the last row's state, action, reward and weight, which wait for the row that follows.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel

EMPTY, OPEN, CLOSED = 0, 1, 2
_KEYS = 512  # keys written at a time: they stay in the first-level cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # multiplicative hashing: 2**64 over the golden ratio


@kernel
def _home(key, shift):
    return np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(shift))


@kernel
def _write_keys(state, action, following, terminal, start, stop, action_bits, next_bits, keys):
    """Keys of some rows: state, action and next state + 1, or 0 where the episode ended."""
    one = np.int64(1)
    if action.size != 0:
        for i in range(start, stop):
            cell = (np.int64(state[i]) << action_bits) | np.int64(action[i])
            keys[i - start] = (cell << next_bits) | (np.int64(following[i]) + one)
    else:
        for i in range(start, stop):
            keys[i - start] = (np.int64(state[i]) << next_bits) | (np.int64(following[i]) + one)
    if terminal.size != 0:
        for i in range(start, stop):
            if terminal[i]:
                keys[i - start] = (keys[i - start] >> next_bits) << next_bits


@kernel
def add_to_square(state, action, following, terminal, start, stop, n_actions, width, square):
    """Add rows, without weights and rewards, to a table with a place for every pair.

    A cell has ``width`` places: 0 for ends of episodes, then one a next state.
    """
    for i in range(start, stop):
        cell = np.int64(state[i])
        if action.size != 0:
            cell = cell * n_actions + np.int64(action[i])
        place = np.int64(following[i]) + 1
        if terminal.size != 0 and terminal[i]:
            place = np.int64(0)
        square[np.uint64(cell * width + place)] += 1


@kernel
def take_from_square(square, start, stop, places, counts):
    """Collect places that are not zero, until the arrays are full; their number, and where to go on."""
    found = 0
    for i in range(start, stop):
        if square[i] != 0:
            if found == places.size:
                return found, i
            places[found] = i
            counts[found] = square[i]
            found += 1
    return found, stop


@kernel
def extent(ids):
    """Smallest and largest of some ids, in one pass."""
    low = high = np.int64(ids[0])
    for i in range(ids.size):
        low = min(low, np.int64(ids[i]))
        high = max(high, np.int64(ids[i]))
    return low, high


@kernel
def _place(keys, n, shift, table, held, room, slots):
    """Slots of the first keys, empty ones taken for what is new; how many there was room for.

    Slots come first and updates later, each in a short loop, so that the processor waits for many records
    at a time.
    """
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
def _add_rewards(reward, first, slots, n, table, reals):
    """Add rows of weight one with their rewards.

    The origin moves whenever a count reaches a power of two: what came since is then never more than what
    came before, and the squares about the origin are at most twice those about the mean.
    """
    for i in range(n):
        slot, r = slots[i], reward[first + i]
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
def _add_weighted(weight, reward, extra_m2, first, slots, n, fractional, table, reals):
    """Add rows that stand for several steps each."""
    for i in range(n):
        slot, w = slots[i], weight[first + i] if weight.size != 0 else weight.dtype.type(1)
        if w == 0:
            continue
        if reward.size != 0 and table[slot, 1] == 0:
            reals[slot, 2] = reward[first + i]
            reals[slot, 3] = 0.0
            reals[slot, 4] = 0.0
        if fractional:
            reals[slot, 1] += w
            total = reals[slot, 1]
        else:
            table[slot, 1] += np.int64(w)
            total = np.float64(table[slot, 1])
        if reward.size != 0:
            shifted = reward[first + i] - reals[slot, 2]
            reals[slot, 3] += w * shifted
            reals[slot, 4] += w * shifted * shifted
            if extra_m2.size != 0:
                reals[slot, 4] += extra_m2[first + i]
            if 4.0 * reals[slot, 3] * reals[slot, 3] > total * reals[slot, 4]:
                _move_origin(slot, total, reals)


@kernel
def add_pairs(
    state, action, following, terminal, weight, reward, extra_m2, start, stop, action_bits, next_bits, shift,
    fractional, table, reals, held, room,
):  # fmt: skip
    """Add rows to the records of their pairs; rows of weight zero are no transitions."""
    keys = np.empty(_KEYS, np.int64)
    slots = np.empty(_KEYS, np.uint64)
    # No actions: the state stands where state and action would.
    action_bits = action_bits if action.size != 0 else 0
    for first in range(start, stop, _KEYS):
        last = min(first + _KEYS, stop)
        _write_keys(state, action, following, terminal, first, last, action_bits, next_bits, keys)
        if weight.size != 0:
            for i in range(first, last):
                if weight[i] == 0:
                    keys[i - first] = -1  # the key of an empty slot: finds one and leaves it empty
        placed = _place(keys, last - first, shift, table, held, room, slots)
        if weight.size != 0 or extra_m2.size != 0:
            _add_weighted(weight, reward, extra_m2, first, slots, placed, fractional, table, reals)
        elif reward.size != 0:
            _add_rewards(reward, first, slots, placed, table, reals)
        else:
            for i in range(placed):
                table[slots[i], 1] += 1
        if placed < last - first:
            return first + placed
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
def _goes_on(episode, terminal, truncated, start, stop):
    """The first row from ``start`` on that is of another episode than the row before it, or ends one."""
    current = episode[start - 1]
    if terminal.size == 0 and truncated.size == 0:
        for i in range(start, stop):
            if episode[i] != current:
                return i
        return stop
    for i in range(start, stop):
        ends = (terminal.size != 0 and terminal[i]) or (truncated.size != 0 and truncated[i])
        if ends or episode[i] != current:
            return i
    return stop


@kernel
def follow_episodes(
    episode, state, action, reward, weight, terminal, truncated, start, stop, shift, first_at, last_at,
    fractional, table, reals, held, room, begins, out_state, out_action, out_next, out_reward, out_weight,
    out_terminal,
):  # fmt: skip
    """Mark rows that begin an episode, and complete transitions by the row that follows in the episode.

    ``begins[i]`` becomes True for the first row of an id and for the row of that id after a terminal or
    truncated one. With ``last_at >= 0`` the completed transitions are written to the ``out`` arrays, their
    number to ``held[1]``; a row gives at most two: the one it completes and, if terminal, its own.
    """
    mask = table.shape[0] - 1
    slot = np.int64(-1)
    written = held[1]
    goes_on = -1  # rows before this one go on with the episode of the row before them
    for i in range(start, stop):
        if i < goes_on:
            continue
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
            if table[slot, 1] == OPEN:
                goes_on = _goes_on(episode, terminal, truncated, i + 1, stop)
                begins[i + 1 : goes_on] = False
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
