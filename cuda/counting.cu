// Transitions to counts. One number stands for a (cell, next state) pair: key = cell * n_columns + next, with
// n_columns = n_states + 1 and the last column for "ended in a terminal state". Few distinct keys are counted
// into a dense table; many are sorted (by a library) and runs of equal keys added up in order.
//
// Ids are S and keys K (int or long long, whichever holds them all), columns of numbers V (float or double). Counts are
// integers and means double whatever V is: a float holds no count above 2^24. The library's sort and running total
// number places in 64 bits.

// Keys of a log, and the first row with an id out of range.
template <typename S, typename K>
__global__ void transition_keys(long long n, const S *__restrict__ state, const S *__restrict__ action,
                                const S *__restrict__ next_state, const unsigned char *__restrict__ terminal,
                                int has_action, int has_terminal, long long n_states, long long n_actions,
                                K *__restrict__ keys, unsigned long long *__restrict__ first_bad)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        const long long s = (long long)state[i], following = (long long)next_state[i];
        const long long a = has_action ? (long long)action[i] : 0;
        const bool ended = has_terminal && terminal[i] != 0;
        if (s < 0 || s >= n_states || following < 0 || following >= n_states || a < 0 || a >= n_actions)
            atomicMin(first_bad, (unsigned long long)i);
        keys[i] = K((s * n_actions + a) * (n_states + 1) + (ended ? n_states : following));
    }
}

// Into a dense table.
template <typename K>
__global__ void count_in_global(long long n, const K *__restrict__ keys, long long n_bins,
                                unsigned long long *__restrict__ bins)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        if (keys[i] >= 0 && keys[i] < n_bins)
            atomicAdd(&bins[keys[i]], 1ull);
}

template <typename K>
__global__ void compress_bins(long long n_bins, const unsigned long long *__restrict__ bins,
                              const long long *__restrict__ number, K *__restrict__ distinct,
                              long long *__restrict__ count)
{
    for (long long b = (long long)blockIdx.x * blockDim.x + threadIdx.x; b < n_bins;
         b += (long long)gridDim.x * blockDim.x)
        if (bins[b]) {
            distinct[number[b] - 1] = K(b);
            count[number[b] - 1] = (long long)bins[b];
        }
}

// 1 where a run of equal keys begins.
template <typename K>
__global__ void mark_heads(long long n, const K *__restrict__ keys, const long long *__restrict__ order,
                           long long *__restrict__ heads)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        heads[i] = i == 0 || keys[order[i]] != keys[order[i - 1]] ? 1 : 0;
}

// Where each run begins, and its key. number is the running total of the heads.
template <typename K>
__global__ void list_runs(long long n, const K *__restrict__ keys, const long long *__restrict__ order,
                          const long long *__restrict__ number, K *__restrict__ distinct,
                          long long *__restrict__ run_first)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        if (i == 0 || number[i] != number[i - 1]) {
            distinct[number[i] - 1] = keys[order[i]];
            run_first[number[i] - 1] = i;
        }
        if (i == n - 1)
            run_first[number[i]] = n;
    }
}

// A warp adds up one run: its weight, the mean of its values, and their squared deviations.
template <typename V>
__global__ void __launch_bounds__(256, 4)
run_moments(long long n_runs, const long long *__restrict__ run_first, const long long *__restrict__ order,
            const V *__restrict__ weight, const V *__restrict__ value, int has_weight, int has_value,
            double *__restrict__ total, double *__restrict__ mean, double *__restrict__ deviation)
{
    const int lane = threadIdx.x % 32;
    const int runs_a_block = blockDim.x / 32;
    for (long long base = (long long)blockIdx.x * runs_a_block; base < n_runs;
         base += (long long)gridDim.x * runs_a_block) {
        const long long run = base + threadIdx.x / 32;
        const long long first = run < n_runs ? run_first[run] : 0;
        const long long last = run < n_runs ? run_first[run + 1] : 0;
        double weighed = 0.0, summed = 0.0, squared = 0.0;
        for (long long i = first + lane; i < last; i += 32) {
            const double w = has_weight ? double(weight[order[i]]) : 1.0;
            weighed += w;
            summed += has_value ? w * double(value[order[i]]) : 0.0;
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            weighed += __shfl_xor_sync(WHOLE_WARP, weighed, offset);
            summed += __shfl_xor_sync(WHOLE_WARP, summed, offset);
        }
        const double middle = weighed > 0.0 ? summed / weighed : 0.0;
        for (long long i = first + lane; has_value && i < last; i += 32) {
            const double away = double(value[order[i]]) - middle;
            squared += (has_weight ? double(weight[order[i]]) : 1.0) * away * away;
        }
        for (int offset = 16; offset > 0; offset /= 2)
            squared += __shfl_xor_sync(WHOLE_WARP, squared, offset);
        if (lane == 0 && run < n_runs) {
            total[run] = weighed;
            if (has_value) {
                mean[run] = middle;
                deviation[run] = squared;
            }
        }
    }
}

template <typename K, typename I>
__global__ void key_rows(long long n_distinct, const K *__restrict__ distinct, long long n_columns, long long n_rows,
                         I *__restrict__ indptr)
{
    for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row <= n_rows;
         row += (long long)gridDim.x * blockDim.x) {
        long long first = 0, last = n_distinct;
        while (first < last) {
            const long long middle = (first + last) / 2;
            if (distinct[middle] < row * n_columns)
                first = middle + 1;
            else
                last = middle;
        }
        indptr[row] = I(first);
    }
}
