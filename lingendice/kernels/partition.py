"""Turn transitions into sorted, duplicate-free (row, column) pairs.

The key of a transition is ``row << column_bits | column``, where an action is the last digit of its row; its
high bits name a *bucket*, its low ``shift`` bits are the *local key*. The work goes in three steps, each
parallel:

1. ``partition_chunk`` groups one chunk of transitions by bucket, inside the chunk. A chunk fits the
   second-level cache, so the scattered writes never reach main memory, and range checks cost no pass.
2. ``tally_dense`` or ``tally_sorted`` walks the segments which one bucket has in all chunks, finds the
   distinct local keys in order and counts them: by a table over all local keys where these are few,
   by a radix sort where they are many. Either can also say, for each transition, its pair (``slot``);
   ``add_payloads`` then sums weights and values over transitions in the order given.
3. ``emit_pairs`` writes pairs to the final CSR arrays, ``emit_entries`` undoes the partition.

Arrays in *partition order* hold transition ``t`` of chunk ``c`` at ``c * chunk_size + offset``; segment
``(c, b)`` is ``offsets[c, b]:offsets[c, b + 1]`` inside chunk ``c``. An array of length zero stands for
"not wanted". Local keys are uint32 where they fit, else int64.

Where distinct pairs are so few that a hash table of them stays in cache, ``hash_chunk`` counts and sums with
nothing moved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import kernel

_DIGIT_BITS = 11  # a radix table of 2**11 counters stays in the first-level cache
_BLOCK = 8  # table cells skipped at a time where all are empty
_KEYS = 512  # keys at a time: they stay in the first-level cache
_TINY = 48  # below this, insertion beats the cost of clearing radix tables
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # multiplicative hashing: 2**64 over the golden ratio


class Columns(NamedTuple):
    """Transitions of one chunk, ids of one type."""

    row: Any
    action: Any
    """Empty, or the last digit of the row."""
    column: Any
    ends: Any
    """Empty, or whether a transition goes to the last column, whatever its own says."""


class Sizes(NamedTuple):
    """What ids run up to."""

    n_rows: int
    n_actions: int
    """1 where there are none; rows have this as a factor."""
    n_columns: int
    column_bits: int


@kernel
def _all_below(ids, limit):
    low = high = ids[0]
    for i in range(ids.size):
        low, high = min(low, ids[i]), max(high, ids[i])
    return low >= 0 and high < limit


@kernel
def pack_keys(columns, sizes, first, keys):
    """Keys of transitions from ``first`` on; the number of keys before the first that is out of range."""
    n = min(keys.size, columns.row.size - first)
    row, column = columns.row[first : first + n], columns.column[first : first + n]
    action, ends = columns.action[first : first + n], columns.ends[first : first + n]
    n_states, n_actions = sizes.n_rows // sizes.n_actions, sizes.n_actions
    last, column_bits = sizes.n_columns - 1, sizes.column_bits
    fits = _all_below(row, n_states) and _all_below(column, sizes.n_columns)
    if not (fits and (action.size == 0 or _all_below(action, n_actions))):
        for i in range(n):
            fits = 0 <= row[i] < n_states and (action.size == 0 or 0 <= action[i] < n_actions)
            if not (fits and (0 <= column[i] <= last or (ends.size != 0 and ends[i]))):
                return i
    # Short loops, each of which runs in vectors.
    for i in range(n):
        keys[i] = row[i]
    for i in range(action.size):
        keys[i] = keys[i] * n_actions + action[i]
    if ends.size != 0:
        for i in range(n):
            keys[i] = (keys[i] << column_bits) | (last if ends[i] else np.int64(column[i]))
    else:
        for i in range(n):
            keys[i] = (keys[i] << column_bits) | np.int64(column[i])
    return n


@kernel
def partition_chunk(columns, sizes, shift, keys, order, offsets):
    """Group one chunk by bucket, stably; return the first position out of range, or -1.

    ``keys`` takes local keys by bucket, ``order`` (if wanted) the position of each in the chunk, and
    ``offsets[b]:offsets[b + 1]`` becomes the segment of bucket b. Two passes over the chunk.
    """
    shift, one = np.uint64(shift), np.uint64(1)
    packed = np.empty(_KEYS, np.int64)
    size = columns.row.size
    for b in range(offsets.size):
        offsets[b] = 0
    for first in range(0, size, _KEYS):
        n = pack_keys(columns, sizes, first, packed)
        if n < min(_KEYS, size - first):
            return first + n
        for i in range(n):
            offsets[(np.uint64(packed[i]) >> shift) + one] += np.int32(1)
    running = np.int32(0)
    for b in range(1, offsets.size):
        length = offsets[b]
        offsets[b] = running
        running += length
    # offsets[b + 1] is now the start of bucket b and becomes its end as the bucket fills.
    local_mask = (one << shift) - one
    want_order = order.size != 0
    # Keys are made once more: kept from the first pass, those of a chunk would push its output out of the
    # cache.
    for first in range(0, size, _KEYS):
        for i in range(pack_keys(columns, sizes, first, packed)):
            key = np.uint64(packed[i])
            b = (key >> shift) + one
            position = offsets[b]
            offsets[b] = position + np.int32(1)
            keys[np.uint64(position)] = key & local_mask
            if want_order:
                order[np.uint64(position)] = first + i
    return -1


@kernel
def gather_chunk(source, order, target):
    """Put a payload of one chunk into partition order."""
    for i in range(order.size):
        target[i] = source[order[i]]


@kernel
def histogram_chunk(columns, sizes, table):
    """Count keys straight into a table over all of them; return the first position out of range, or -1."""
    packed = np.empty(_KEYS, np.int64)
    for first in range(0, columns.row.size, _KEYS):
        n = pack_keys(columns, sizes, first, packed)
        if n < min(_KEYS, columns.row.size - first):
            return first + n
        for i in range(n):
            table[np.uint64(packed[i])] += 1
    return -1


@kernel
def add_value(value, weight, total, moments, pair):
    """Add a value and its weight to a pair.

    A pair has a record of four numbers: its total weight (in ``total``, integers or floats in the memory of
    ``moments``), an origin near the mean of its values, and the weighted sums of what they differ from it and
    of the squares of that. The origin moves to the mean where that is 0.4 standard deviations away: hardly
    anything cancels. Equal values have exactly their mean.
    """
    before = total[pair, 0]
    total[pair, 0] = before + weight
    if before == 0:
        moments[pair, 1], moments[pair, 2], moments[pair, 3] = value, 0.0, 0.0
        return
    difference = value - moments[pair, 1]
    if difference == 0.0 and moments[pair, 3] == 0.0:  # as where states and actions determine the reward
        return
    added = weight * difference
    excess, squares = moments[pair, 2] + added, moments[pair, 3] + added * difference
    # excess / total is how far the mean is from the origin, squares / total about the variance: the mean is
    # within a root of 1/8 standard deviations, and excess^2 / total takes an eighth of the squares at most.
    if 8.0 * excess * excess <= (before + weight) * squares:
        moments[pair, 2], moments[pair, 3] = excess, squares
    elif weight != 0:
        _pool(moments, pair, before, value, 0.0, 0.0, weight)


@kernel
def _pool(moments, pair, before, origin, excess, squares, weight):
    """Add values with these moments to a pair, and move its origin to the mean of all (Chan et al. 1983)."""
    total = np.float64(before + weight)
    shift, other_shift = moments[pair, 2] / before, excess / weight
    between = origin - moments[pair, 1]
    apart = between + (other_shift - shift)
    within = max(moments[pair, 3] - moments[pair, 2] * shift, 0.0) + max(squares - excess * other_shift, 0.0)
    excess += moments[pair, 2] + weight * between
    moved = moments[pair, 1] + excess / total
    moments[pair, 2] = excess - total * (moved - moments[pair, 1])
    moments[pair, 3] = within + apart * apart * before * (weight / total)
    moments[pair, 1] = moved


@kernel
def pool_pairs(place, total, moments, known_total, known):
    """Add the records of some pairs to those at ``place``."""
    for i in range(place.size):
        pair, before, weight = place[i], known_total[place[i], 0], total[i, 0]
        if before == 0:
            known[pair] = moments[i]
        elif weight != 0:
            _pool(known, pair, before, moments[i, 1], moments[i, 2], moments[i, 3], weight)
        known_total[pair, 0] = before + weight


@kernel
def settle_pairs(total, moments, count, mean, m2):
    """Total weights, means and sums of squared deviations; a pair of total weight zero has zeros."""
    for pair in range(count.size):
        count[pair] = total[pair, 0]
    for pair in range(mean.size):
        mean[pair] = m2[pair] = 0.0
        if total[pair, 0] != 0:
            shift = moments[pair, 2] / total[pair, 0]
            mean[pair] = moments[pair, 1] + shift
            m2[pair] = max(moments[pair, 3] - moments[pair, 2] * shift, 0.0)


@kernel
def hash_chunk(columns, sizes, weight, value, n_pairs, table, pair_key, total, moments, slot):
    """Number pairs as they are first met, and add the weights and values of transitions to theirs.

    ``table``, zeros in a power of two of cells at first, hashes keys to numbers, from 1 on; ``n_pairs`` are
    known. Returns how many there are then, or -1 where there is no room for another, and the first position
    out of range, or -1.
    """
    one, last, shift = np.uint64(1), np.uint64(table.size - 1), np.uint64(64)
    one_step, cells = weight.dtype.type(1), table.size
    while cells > 1:
        cells >>= 1
        shift -= one
    keys, pairs = np.empty(_KEYS, np.int64), np.empty(_KEYS, np.uint64)
    for first in range(0, columns.row.size, _KEYS):
        n = pack_keys(columns, sizes, first, keys)
        if n < min(_KEYS, columns.row.size - first):
            return n_pairs, first + n
        # Pairs come first and updates later, so that the processor waits for many of them at a time.
        for i in range(n):
            pairs[i] = (np.uint64(keys[i]) * _GOLDEN) >> shift
        for at in range(n):
            i = np.uint64(at)
            key, cell = keys[i], pairs[i]
            number = np.int64(table[cell])
            while number != 0 and pair_key[np.uint64(number - 1)] != key:
                cell = (cell + one) & last
                number = np.int64(table[cell])
            if number == 0:
                if n_pairs == pair_key.size:
                    return -1, -1
                pair_key[n_pairs], total[n_pairs, 0] = key, 0
                n_pairs += 1
                table[cell] = number = n_pairs
            pairs[i] = np.uint64(number - 1)
        if weight.size == 0 and value.size != 0:  # the usual log, by a loop that asks nothing else
            for i in range(n):
                add_value(value[np.uint64(first + i)], one_step, total, moments, pairs[np.uint64(i)])
        else:
            for i in range(n):
                w = weight[first + i] if weight.size != 0 else one_step
                if value.size != 0:
                    add_value(value[first + i], w, total, moments, pairs[i])
                else:
                    total[pairs[i], 0] += w
        if slot.size != 0:
            for i in range(n):
                slot[first + i] = pairs[i]
    return n_pairs, -1


@kernel
def add_segments(keys, offsets, chunk_size, bucket, first_chunk, last_chunk, table):
    """Count the local keys of one bucket in some chunks into a table over all local keys."""
    for chunk in range(first_chunk, last_chunk):
        base = chunk * chunk_size
        for i in range(base + offsets[chunk, bucket], base + offsets[chunk, bucket + 1]):
            table[np.uint64(keys[i])] += 1


@kernel
def collect_table(table, n_pairs, pair_key, pair_count):
    """Append the keys counted in a table, in order, and turn their counts into their slots.

    The table has a multiple of eight cells; the pair arrays need room for one pair more than there are.
    """
    for start in range(0, table.size, _BLOCK):
        found = np.int64(0)
        for key in range(start, start + _BLOCK):
            found |= table[key]
        if found == 0:
            continue
        for key in range(start, start + _BLOCK):
            # Written at every step, kept where the key was met: no branch to mispredict.
            count = table[key]
            pair_key[np.uint64(n_pairs)] = key
            pair_count[np.uint64(n_pairs)] = count
            table[key] = n_pairs
            n_pairs += np.int64(count != 0)
    return n_pairs


@kernel
def look_up_slots(keys, offsets, chunk_size, bucket, first_chunk, last_chunk, table, slot):
    """Give the transitions of one bucket in some chunks the slot which the table holds for their key."""
    for chunk in range(first_chunk, last_chunk):
        base = chunk * chunk_size
        for i in range(base + offsets[chunk, bucket], base + offsets[chunk, bucket + 1]):
            slot[i] = table[np.uint64(keys[i])]


@kernel
def tally_dense(
    keys, offsets, chunk_size, first_bucket, sizes, shift, pair_key, pair_count, pair_start, slot
):
    """Count buckets whose local keys are few: time O(transitions + 2**shift) a bucket.

    These buckets together hold fewer than 2**31 transitions: half-width cells keep the table in cache.
    """
    n_chunks = offsets.shape[0]
    n_pairs = 0
    table = np.zeros(max(np.int64(1) << shift, _BLOCK), np.int32)
    for b in range(sizes.size):
        pair_start[b] = n_pairs
        if sizes[b] == 0:
            continue
        bucket = first_bucket + b
        add_segments(keys, offsets, chunk_size, bucket, 0, n_chunks, table)
        n_pairs = collect_table(table, n_pairs, pair_key, pair_count)
        if slot.size != 0:
            look_up_slots(keys, offsets, chunk_size, bucket, 0, n_chunks, table, slot)
        for key in range(table.size):
            table[key] = 0
    pair_start[sizes.size] = n_pairs
    return n_pairs


@kernel
def _digit_starts(counts, n_values, size):
    """Turn counts of one digit's values into first positions; False if all keys share one value."""
    running = np.int32(0)
    several = True
    for value in range(n_values):
        count = counts[value]
        several &= count != size
        counts[value] = running
        running += count
    return several


@kernel
def _key_of(item, keys):
    """What an item is sorted by: its entry in ``keys``, or itself without any."""
    return item if keys is None else keys[np.uint64(item)]


@kernel
def _sort(items, scratch, keys, size, shift, starts):
    """Sort ``items[:size]`` by the low ``shift`` bits of their keys; True if the result is in ``scratch``."""
    swapped = False
    if size <= _TINY:
        for i in range(1, size):
            item = items[i]
            j = i
            while j > 0 and _key_of(items[j - 1], keys) > _key_of(item, keys):
                items[j] = items[j - 1]
                j -= 1
            items[j] = item
        return swapped
    n_digits = (shift + _DIGIT_BITS - 1) // _DIGIT_BITS
    width = (shift + n_digits - 1) // max(n_digits, 1)
    mask = np.uint64((np.int64(1) << width) - 1)
    n_values = np.int64(1) << width
    source, target = items, scratch
    for digit in range(n_digits):
        low = np.uint64(digit * width)
        for value in range(n_values):
            starts[value] = 0
        for i in range(size):
            key = items[i] if keys is None else keys[i]  # all of them, in whatever order
            starts[(np.uint64(key) >> low) & mask] += np.int32(1)
        # A digit that all keys share leaves their order as it is: no pass.
        if _digit_starts(starts, n_values, size):
            for i in range(size):
                value = (np.uint64(_key_of(source[i], keys)) >> low) & mask
                position = starts[value]
                starts[value] = position + np.int32(1)
                target[np.uint64(position)] = source[i]
            source, target = target, source
            swapped = not swapped
    return swapped


@kernel
def gather_bucket(keys, offsets, chunk_size, bucket, first_chunk, last_chunk, start, local):
    """Join the segments which one bucket has in some chunks, from ``local[start]`` on; return the end."""
    for chunk in range(first_chunk, last_chunk):
        base = chunk * chunk_size + offsets[chunk, bucket]
        length = offsets[chunk, bucket + 1] - offsets[chunk, bucket]
        for i in range(length):
            local[start + i] = keys[base + i]
        start += length
    return start


@kernel
def scatter_bucket(local, offsets, chunk_size, bucket, first_chunk, last_chunk, start, slot):
    """Undo ``gather_bucket`` for an array that runs along the transitions of one bucket."""
    for chunk in range(first_chunk, last_chunk):
        base = chunk * chunk_size
        for i in range(base + offsets[chunk, bucket], base + offsets[chunk, bucket + 1]):
            slot[i] = local[start]
            start += 1
    return start


@kernel
def _append_runs(local, size, n_pairs, pair_key, pair_count):
    """Append the distinct values of a sorted array and how often each occurs."""
    if size == 0:
        return n_pairs
    run_start = 0
    for i in range(1, size):
        # Written at every step and kept where a run ends, as in `collect_table`.
        pair_key[n_pairs] = local[i - 1]
        pair_count[n_pairs] = i - run_start
        ends = local[i] != local[i - 1]
        n_pairs += np.int64(ends)
        run_start = i if ends else run_start
    pair_key[n_pairs] = local[size - 1]
    pair_count[n_pairs] = size - run_start
    return n_pairs + 1


@kernel
def _append_groups(local, by_key, size, n_pairs, pair_key, pair_count, local_slot):
    """Append the distinct keys met in the order ``by_key``, and give every transition its slot."""
    for i in range(size):
        item = by_key[i]
        if i == 0 or local[item] != local[by_key[i - 1]]:
            pair_key[n_pairs] = local[item]
            pair_count[n_pairs] = 0
            n_pairs += 1
        pair_count[n_pairs - 1] += 1
        local_slot[item] = n_pairs - 1
    return n_pairs


@kernel
def tally_sorted(
    keys,
    offsets,
    chunk_size,
    first_bucket,
    sizes,
    shift,
    local,
    order,
    pair_key,
    pair_count,
    pair_start,
    slot,
):
    """Count buckets by a radix sort in cache: time O(transitions * shift / 11) a bucket.

    ``local`` has two rows of room for the largest of these buckets, and so has ``order`` where slots are
    wanted.
    """
    n_chunks = offsets.shape[0]
    starts = np.empty(1 << _DIGIT_BITS, np.int32)
    n_pairs = 0
    for b in range(sizes.size):
        pair_start[b] = n_pairs
        size = sizes[b]
        if size == 0:
            continue
        bucket = first_bucket + b
        gather_bucket(keys, offsets, chunk_size, bucket, 0, n_chunks, 0, local[0])
        if slot.size == 0:
            in_second = _sort(local[0], local[1], None, size, shift, starts)
            n_pairs = _append_runs(local[1 if in_second else 0], size, n_pairs, pair_key, pair_count)
            continue
        for i in range(size):
            order[0, i] = i
        in_second = _sort(order[0], order[1], local[0], size, shift, starts)
        by_key, spare = order[1 if in_second else 0], order[0 if in_second else 1]
        n_pairs = _append_groups(local[0], by_key, size, n_pairs, pair_key, pair_count, spare)
        scatter_bucket(spare, offsets, chunk_size, bucket, 0, n_chunks, 0, slot)
    pair_start[sizes.size] = n_pairs
    return n_pairs


@kernel
def add_payloads(
    slot,
    weight,
    value,
    offsets,
    chunk_size,
    first_bucket,
    last_bucket,
    first_chunk,
    last_chunk,
    total,
    moments,
):
    """Add the weights and values of some transitions to their pairs."""
    for bucket in range(first_bucket, last_bucket):
        for chunk in range(first_chunk, last_chunk):
            base = chunk * chunk_size
            for i in range(base + offsets[chunk, bucket], base + offsets[chunk, bucket + 1]):
                pair = slot[i]
                w = weight[i] if weight.size != 0 else weight.dtype.type(1)
                if value.size != 0:
                    add_value(value[i], w, total, moments, pair)
                else:
                    total[pair, 0] += w


@kernel
def emit_pairs(pair_key, pair_start, first_bucket, shift, column_bits, n_rows, offset, indices, indptr):
    """Write the columns of consecutive buckets and the starts of all rows that begin in them."""
    column_mask = (np.int64(1) << column_bits) - 1
    last_bucket = first_bucket + pair_start.size - 1
    # A bucket may begin or end in the midst of a row: that row's start is written with the bucket in which it
    # begins. Rounded up, every row has exactly one such bucket.
    first_row = ((first_bucket << shift) + column_mask) >> column_bits
    last_row = min(((last_bucket << shift) + column_mask) >> column_bits, n_rows)
    indptr[first_row:last_row] = 0
    for bucket in range(first_bucket, last_bucket):
        high = bucket << shift
        start, stop = pair_start[bucket - first_bucket], pair_start[bucket - first_bucket + 1]
        for i in range(start, stop):
            indices[np.uint64(offset + i)] = (high | np.int64(pair_key[np.uint64(i)])) & column_mask
        # Every pair says where the next row may start at the earliest; the last of a row prevails.
        for i in range(start, stop):
            row = ((high | np.int64(pair_key[np.uint64(i)])) >> column_bits) + 1
            if row < last_row:
                indptr[np.uint64(row)] = offset + i + 1
    running = np.int64(offset)
    # Rows without pairs begin where the one before them ends.
    for row in range(first_row, last_row):
        running = max(running, indptr[row])
        indptr[row] = running


@kernel
def emit_entries(slot, order, offsets, bucket_offset, entry):
    """Write, for the transitions of one chunk in their own order, where their pair stands."""
    for bucket in range(bucket_offset.size):
        for i in range(offsets[bucket], offsets[bucket + 1]):
            entry[order[i]] = bucket_offset[bucket] + slot[i]
