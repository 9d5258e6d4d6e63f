"""Turn transitions into sorted, duplicate-free (row, column) pairs.

The key of a transition is ``row << column_bits | column``; its high bits name a *bucket*, its low
``shift`` bits are the *local key*. The work goes in three steps, each parallel:

1. ``partition_chunk`` groups one chunk of transitions by bucket, inside the chunk. A chunk fits the
   second-level cache, so the scattered writes never reach main memory, and range checks cost no pass.
2. ``tally_dense`` or ``tally_sorted`` walks the segments which one bucket has in all chunks, finds the
   distinct local keys in order and counts them: by a table over all local keys where these are few,
   by a radix sort where they are many. Either can also say, for each transition, its pair (``slot``);
   ``add_weights``, ``add_values`` and ``add_deviations`` then sum over transitions in the order given.
3. ``emit_pairs`` writes pairs to the final CSR arrays, ``emit_entries`` undoes the partition.

Arrays in *partition order* hold transition ``t`` of chunk ``c`` at ``c * chunk_size + offset``; segment
``(c, b)`` is ``offsets[c, b]:offsets[c, b + 1]`` inside chunk ``c``. An array of length zero stands for
"not wanted". Local keys are uint32 where they fit, else int64.

Where distinct pairs are so few that a hash table of them stays in cache, ``look_up_pairs`` gives transitions
their slots with nothing moved.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel

_DIGIT_BITS = 11  # a radix table of 2**11 counters stays in the first-level cache
_BLOCK = 8  # table cells skipped at a time where all are empty
_TINY = 48  # below this, insertion beats the cost of clearing radix tables
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # multiplicative hashing: 2**64 over the golden ratio


@kernel
def partition_chunk(row, column, n_rows, n_columns, column_bits, shift, keys, order, offsets):
    """Group one chunk by bucket, stably; return the first position out of range, or -1.

    ``keys`` takes local keys by bucket, ``order`` (if wanted) the position of each in the chunk, and
    ``offsets[b]:offsets[b + 1]`` becomes the segment of bucket b. Two passes over the chunk.
    """
    n_rows, n_columns = np.uint64(n_rows), np.uint64(n_columns)
    column_bits, shift = np.uint64(column_bits), np.uint64(shift)
    one = np.uint64(1)
    for b in range(offsets.size):
        offsets[b] = 0
    for i in range(row.size):
        r, c = np.uint64(row[i]), np.uint64(column[i])
        if (r >= n_rows) | (c >= n_columns):
            return i
        offsets[(((r << column_bits) | c) >> shift) + one] += np.int32(1)
    running = np.int32(0)
    for b in range(1, offsets.size):
        length = offsets[b]
        offsets[b] = running
        running += length
    # offsets[b + 1] is now the start of bucket b and becomes its end as the bucket fills.
    local_mask = (one << shift) - one
    want_order = order.size != 0
    for i in range(row.size):
        key = (np.uint64(row[i]) << column_bits) | np.uint64(column[i])
        b = (key >> shift) + one
        position = offsets[b]
        offsets[b] = position + np.int32(1)
        keys[np.uint64(position)] = key & local_mask
        if want_order:
            order[np.uint64(position)] = i
    return -1


@kernel
def gather_chunk(source, order, target):
    """Put a payload of one chunk into partition order."""
    for i in range(order.size):
        target[i] = source[order[i]]


@kernel
def histogram_chunk(row, column, n_rows, n_columns, column_bits, table):
    """Count keys straight into a table over all of them; return the first position out of range, or -1."""
    n_rows, n_columns, column_bits = np.uint64(n_rows), np.uint64(n_columns), np.uint64(column_bits)
    for i in range(row.size):
        r, c = np.uint64(row[i]), np.uint64(column[i])
        if (r >= n_rows) | (c >= n_columns):
            return i
        table[(r << column_bits) | c] += 1
    return -1


@kernel
def look_up_pairs(row, column, n_rows, n_columns, column_bits, n_pairs, table, pair_key, pair_count, slot):
    """Number pairs as they are first met, count them, and give every transition the number of its pair.

    ``table``, zeros in a power of two of cells at first, hashes keys to numbers, from 1 on; ``n_pairs`` are
    known. Returns how many there are then, or -1 where there is no room for another, and the first position
    out of range, or -1.
    """
    n_rows, n_columns, column_bits = np.uint64(n_rows), np.uint64(n_columns), np.uint64(column_bits)
    one, last, shift = np.uint64(1), np.uint64(table.size - 1), np.uint64(64)
    cells = table.size
    while cells > 1:
        cells >>= 1
        shift -= one
    for i in range(row.size):
        r, c = np.uint64(row[i]), np.uint64(column[i])
        if (r >= n_rows) | (c >= n_columns):
            return n_pairs, i
        key = (r << column_bits) | c
        cell = (key * _GOLDEN) >> shift
        number = np.int64(table[cell])
        while number != 0 and pair_key[np.uint64(number - 1)] != key:
            cell = (cell + one) & last
            number = np.int64(table[cell])
        if number == 0:
            if n_pairs == pair_key.size:
                return -1, -1
            pair_key[n_pairs], pair_count[n_pairs] = key, 0
            n_pairs += 1
            table[cell] = number = n_pairs
        pair_count[np.uint64(number - 1)] += 1
        slot[i] = number - 1
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
def _sort_keys(local, scratch, size, shift, starts):
    """Sort ``local[:size]`` by its low ``shift`` bits; True if the result is in ``scratch``."""
    swapped = False
    if size <= _TINY:
        for i in range(1, size):
            key = local[i]
            j = i
            while j > 0 and local[j - 1] > key:
                local[j] = local[j - 1]
                j -= 1
            local[j] = key
        return swapped
    n_digits = (shift + _DIGIT_BITS - 1) // _DIGIT_BITS
    width = (shift + n_digits - 1) // max(n_digits, 1)
    mask = np.uint64((np.int64(1) << width) - 1)
    n_values = np.int64(1) << width
    source, target = local, scratch
    for digit in range(n_digits):
        low = np.uint64(digit * width)
        for value in range(n_values):
            starts[value] = 0
        for i in range(size):
            starts[(np.uint64(source[i]) >> low) & mask] += np.int32(1)
        if _digit_starts(starts, n_values, size):
            for i in range(size):
                value = (np.uint64(source[i]) >> low) & mask
                position = starts[value]
                starts[value] = position + np.int32(1)
                target[np.uint64(position)] = source[i]
            source, target = target, source
            swapped = not swapped
    return swapped


@kernel
def _sort_order(local, order, scratch, size, shift, starts):
    """Sort the positions ``0 .. size - 1`` by their key; True if the result is in ``scratch``."""
    swapped = False
    for i in range(size):
        order[i] = i
    if size <= _TINY:
        for i in range(1, size):
            key = local[i]
            j = i
            while j > 0 and local[order[j - 1]] > key:
                order[j] = order[j - 1]
                j -= 1
            order[j] = i
        return swapped
    n_digits = (shift + _DIGIT_BITS - 1) // _DIGIT_BITS
    width = (shift + n_digits - 1) // max(n_digits, 1)
    mask = np.uint64((np.int64(1) << width) - 1)
    n_values = np.int64(1) << width
    source, target = order, scratch
    for digit in range(n_digits):
        low = np.uint64(digit * width)
        for value in range(n_values):
            starts[value] = 0
        for i in range(size):
            starts[(np.uint64(local[i]) >> low) & mask] += np.int32(1)
        if _digit_starts(starts, n_values, size):
            for i in range(size):
                value = (np.uint64(local[np.uint64(source[i])]) >> low) & mask
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
    keys, offsets, chunk_size, first_bucket, sizes, shift, local, pair_key, pair_count, pair_start
):
    """Count buckets by a radix sort in cache: time O(transitions * shift / 11) a bucket.

    ``local`` has two rows of room for the largest of these buckets.
    """
    n_chunks = offsets.shape[0]
    starts = np.empty(1 << _DIGIT_BITS, np.int32)
    n_pairs = 0
    for b in range(sizes.size):
        pair_start[b] = n_pairs
        size = sizes[b]
        if size == 0:
            continue
        gather_bucket(keys, offsets, chunk_size, first_bucket + b, 0, n_chunks, 0, local[0])
        in_second = _sort_keys(local[0], local[1], size, shift, starts)
        n_pairs = _append_runs(local[1 if in_second else 0], size, n_pairs, pair_key, pair_count)
    pair_start[sizes.size] = n_pairs
    return n_pairs


@kernel
def tally_sorted_slots(
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
    """As ``tally_sorted``, with a slot for every transition; ``order`` has the shape of ``local``."""
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
        in_second = _sort_order(local[0], order[0], order[1], size, shift, starts)
        by_key, spare = order[1 if in_second else 0], order[0 if in_second else 1]
        n_pairs = _append_groups(local[0], by_key, size, n_pairs, pair_key, pair_count, spare)
        scatter_bucket(spare, offsets, chunk_size, bucket, 0, n_chunks, 0, slot)
    pair_start[sizes.size] = n_pairs
    return n_pairs


@kernel
def add_weights(slot, weight, offsets, chunk_size, first_bucket, last_bucket, first_chunk, last_chunk, total):
    """Add the weights of some transitions to their pairs."""
    for bucket in range(first_bucket, last_bucket):
        for chunk in range(first_chunk, last_chunk):
            base = chunk * chunk_size
            for i in range(base + offsets[chunk, bucket], base + offsets[chunk, bucket + 1]):
                total[slot[i]] += weight[i]


@kernel
def add_values(
    slot,
    value,
    weight,
    offsets,
    chunk_size,
    first_bucket,
    last_bucket,
    first_chunk,
    last_chunk,
    origin,
    excess,
):
    """Add weighted values, measured from the first value of each pair (its origin, nan until met).

    Equal values then have an excess of exactly zero, and so a mean that is exactly their value. Returns
    whether some value differs from that of its pair.
    """
    differs = False
    for bucket in range(first_bucket, last_bucket):
        for chunk in range(first_chunk, last_chunk):
            base = chunk * chunk_size
            for i in range(base + offsets[chunk, bucket], base + offsets[chunk, bucket + 1]):
                pair = slot[i]
                if np.isnan(origin[pair]):
                    origin[pair] = value[i]
                difference = value[i] - origin[pair]
                differs |= difference != 0
                excess[pair] += difference if weight.size == 0 else weight[i] * difference
    return differs


@kernel
def add_deviations(
    slot,
    value,
    weight,
    offsets,
    chunk_size,
    first_bucket,
    last_bucket,
    first_chunk,
    last_chunk,
    mean,
    drift,
    m2,
):
    """Add weighted deviations from the mean (``drift``, zero but for rounding) and their squares."""
    for bucket in range(first_bucket, last_bucket):
        for chunk in range(first_chunk, last_chunk):
            base = chunk * chunk_size
            for i in range(base + offsets[chunk, bucket], base + offsets[chunk, bucket + 1]):
                pair = slot[i]
                deviation = value[i] - mean[pair]
                weighted = deviation if weight.size == 0 else weight[i] * deviation
                drift[pair] += weighted
                m2[pair] += weighted * deviation


@kernel
def emit_pairs(pair_key, pair_start, first_bucket, shift, column_bits, n_rows, offset, indices, indptr):
    """Write the columns of consecutive buckets and the starts of all rows that begin in them."""
    column_mask = (np.int64(1) << column_bits) - 1
    last_bucket = first_bucket + pair_start.size - 1
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
    for row in range(first_row, last_row):
        running = max(running, indptr[row])
        indptr[row] = running


@kernel
def emit_entries(slot, order, offsets, bucket_offset, entry):
    """Write, for the transitions of one chunk in their own order, where their pair stands."""
    for bucket in range(bucket_offset.size):
        for i in range(offsets[bucket], offsets[bucket + 1]):
            entry[order[i]] = bucket_offset[bucket] + slot[i]
