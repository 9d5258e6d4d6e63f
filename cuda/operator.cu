// The stationary equation mu = start + gamma T' mu in pull form: row j of the matrix lists the sources of
// the mass that arrives in j, so that each entry of the result is the work of one group of threads.
//
//     T' x  =  rates x  +  sum_k distribution_k (share_k . x)        K <= MOST_HUBS rank-one terms: restarts, priors
//
// A distribution is stored as T (float or double); all sums are made in double. Offsets into the matrix are I (int
// or long long), states are int. Rows are listed by degree: LANES threads work on each row of a list; rows too
// long for a warp are cut into segments, one block each. Only a part of the matrix may be on the device: its
// entries then begin with number first_entry.

// Settle one row: the new entry, and what it adds to the sums of the pass.
template <typename T>
__device__ __forceinline__ void settle(int row, double arrived, const T *x, const T *start, const T *distributions,
                                       const T *shares, int n_hubs, int n_rows, double gamma, double damping,
                                       const double *scalars, T *out, double (&sums)[SLOTS])
{
#pragma unroll
    for (int k = 0; k < MOST_HUBS; ++k)
        if (k < n_hubs)
            arrived += scalars[HUBS + k] * double(distributions[(long long)k * n_rows + row]);
    const double stepped = gamma * arrived + double(start[row]);
    const double old = double(x[row]);
    const double change = stepped - old;
    const T kept = T(old + damping * change);
    out[row] = kept;
    const double moved = change < 0.0 ? -change : change;
    sums[CHANGE] += moved;
    if (double(kept) > 0.0)
        sums[RELATIVE] = larger(sums[RELATIVE], damping * moved / double(kept));
    sums[MASS] += double(kept);
#pragma unroll
    for (int k = 0; k < MOST_HUBS; ++k)
        if (k < n_hubs)
            sums[HUBS + k] += double(shares[(long long)k * n_rows + row]) * double(kept);
}

__device__ __forceinline__ void write_partials(double (&sums)[SLOTS], double *scratch, double *partials,
                                               int part, int n_parts)
{
    block_sums(SLOTS, RELATIVE, sums, scratch);
    if (threadIdx.x == 0)
        for (int k = 0; k < SLOTS; ++k)
            partials[k * n_parts + part] = sums[k];
}

// Rows of up to a few dozen entries for each lane.
template <typename T, typename I, int LANES>
__global__ void __launch_bounds__(256, 4)
pull_rows(int n_listed, const int *__restrict__ rows, const I *__restrict__ indptr, I first_entry,
          const int *__restrict__ sources, const T *__restrict__ rates, const T *__restrict__ x,
          const T *__restrict__ start, const T *__restrict__ distributions, const T *__restrict__ shares, int n_hubs,
          int n_rows, double gamma, double damping, const double *__restrict__ scalars,
          const int *__restrict__ done, T *__restrict__ out, double *__restrict__ partials, int first_part,
          int n_parts)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    const int lane = threadIdx.x % LANES;
    const int rows_a_block = blockDim.x / LANES;
    double sums[SLOTS] = {};
    // The bound is the same for all threads of a block, which the full shuffle mask requires.
    for (long long base = (long long)blockIdx.x * rows_a_block; base < n_listed;
         base += (long long)gridDim.x * rows_a_block) {
        const long long place = base + threadIdx.x / LANES;
        const bool present = place < n_listed;
        const int row = present ? rows[place] : 0;
        double arrived = 0.0;
        if (present)
            for (I k = indptr[row] + lane; k < indptr[row + 1]; k += LANES)
                arrived += double(rates[k - first_entry]) * double(x[sources[k - first_entry]]);
        for (int offset = LANES / 2; offset > 0; offset /= 2)
            arrived += __shfl_down_sync(WHOLE_WARP, arrived, offset, LANES);
        if (lane == 0 && present)
            settle<T>(row, arrived, x, start, distributions, shares, n_hubs, n_rows, gamma, damping, scalars, out, sums);
    }
    write_partials(sums, scratch, partials, first_part + blockIdx.x, n_parts);
}

// One block sums one segment of a long row.
template <typename T, typename I>
__global__ void __launch_bounds__(256, 4)
pull_segments(int n_segments, const I *__restrict__ segment_first, const I *__restrict__ segment_last,
              const int *__restrict__ sources, const T *__restrict__ rates, const T *__restrict__ x,
              const int *__restrict__ done, double *__restrict__ segment_sums)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    for (int segment = blockIdx.x; segment < n_segments; segment += gridDim.x) {
        double sum = 0.0;
        for (I k = segment_first[segment] + threadIdx.x; k < segment_last[segment]; k += blockDim.x)
            sum += double(rates[k]) * double(x[sources[k]]);
        sum = block_sum(sum, scratch);
        if (threadIdx.x == 0)
            segment_sums[segment] = sum;
    }
}

// One warp settles one long row from its segments, in order.
template <typename T>
__global__ void __launch_bounds__(256, 4)
settle_long_rows(int n_listed, const int *__restrict__ rows, const int *__restrict__ first_segment,
                 const double *__restrict__ segment_sums, const T *__restrict__ x,
                 const T *__restrict__ start, const T *__restrict__ distributions, const T *__restrict__ shares,
                 int n_hubs, int n_rows, double gamma, double damping, const double *__restrict__ scalars,
                 const int *__restrict__ done, T *__restrict__ out, double *__restrict__ partials,
                 int first_part, int n_parts)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    const int lane = threadIdx.x % 32;
    const int rows_a_block = blockDim.x / 32;
    double sums[SLOTS] = {};
    for (int base = blockIdx.x * rows_a_block; base < n_listed; base += gridDim.x * rows_a_block) {
        const int place = base + threadIdx.x / 32;
        const bool present = place < n_listed;
        double arrived = 0.0;
        if (present)
            for (int k = first_segment[place] + lane; k < first_segment[place + 1]; k += 32)
                arrived += segment_sums[k];
        for (int offset = 16; offset > 0; offset /= 2)
            arrived += __shfl_down_sync(WHOLE_WARP, arrived, offset);
        if (lane == 0 && present)
            settle<T>(rows[place], arrived, x, start, distributions, shares, n_hubs, n_rows, gamma, damping, scalars, out,
                      sums);
    }
    write_partials(sums, scratch, partials, first_part + blockIdx.x, n_parts);
}

// Mass and hub masses of a distribution that no pass has just written.
template <typename T>
__global__ void __launch_bounds__(256, 4)
weigh_distribution(int n, const T *__restrict__ x, const T *__restrict__ shares, int n_hubs,
          const int *__restrict__ done, double *__restrict__ partials, int n_parts)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    double sums[SLOTS] = {};
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        sums[MASS] += double(x[i]);
#pragma unroll
        for (int k = 0; k < MOST_HUBS; ++k)
            if (k < n_hubs)
                sums[HUBS + k] += double(shares[(long long)k * n + i]) * double(x[i]);
    }
    write_partials(sums, scratch, partials, blockIdx.x, n_parts);
}

// One block adds up the partials of a pass. role 0: a distribution was weighed. role 1: a step was made. role 2: a
// step was made from a distribution whose residual decides whether to stop. role 3: as 0, and the distribution is about to be
// scaled to mass one by scale_distribution.
__global__ void __launch_bounds__(256)
finish_pass(int n_parts, const double *__restrict__ partials, int role, double gamma, double tolerance,
            double rounding, int n_history, double *__restrict__ scalars, int *__restrict__ done,
            double *__restrict__ history)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    double sums[SLOTS] = {};
    for (int part = threadIdx.x; part < n_parts; part += blockDim.x)
        for (int k = 0; k < SLOTS; ++k)
            sums[k] = k == RELATIVE ? larger(sums[k], partials[k * n_parts + part])
                                    : sums[k] + partials[k * n_parts + part];
    block_sums(SLOTS, RELATIVE, sums, scratch);
    if (threadIdx.x != 0)
        return;
    const double scale = role == 3 ? 1.0 / sums[MASS] : 1.0;
    scalars[MASS] = sums[MASS];
    for (int k = 0; k < MOST_HUBS; ++k)
        scalars[HUBS + k] = scale * sums[HUBS + k];
    if (role == 0 || role == 3)
        return;
    // The contraction that successive steps show; near rounding they show nothing.
    if (role == 1 && scalars[PREVIOUS] > 0.0 && sums[CHANGE] > 64.0 * rounding) {
        const double ratio = sums[CHANGE] / scalars[PREVIOUS];
        scalars[SLOWEST] = larger(scalars[SLOWEST], ratio < 1.0 - 1e-12 ? ratio : 1.0 - 1e-12);
    }
    scalars[CHANGE] = sums[CHANGE];
    scalars[RELATIVE] = sums[RELATIVE];
    scalars[PREVIOUS] = role == 2 ? 0.0 : sums[CHANGE];
    scalars[STEPS] += 1.0;
    if (role != 2)
        return;
    scalars[RESIDUAL] = sums[CHANGE];
    scalars[LARGEST] = sums[RELATIVE];
    const double error = gamma < 1.0 ? (sums[CHANGE] + 4.0 * rounding) / (1.0 - gamma)
                                     : (sums[RELATIVE] + 2.0 * rounding) / (1.0 - scalars[SLOWEST]);
    scalars[ERROR] = error;
    const int check = int(scalars[CHECKS]);
    history[check % n_history] = error;
    scalars[CHECKS] = check + 1.0;
    // Two checks at least: before the first the contraction is unknown. NaN stops as well.
    if (!(error > tolerance) && (gamma < 1.0 || check > 1 || !(error == error)))
        *done = 1;
}

// Inner products of the changes between successive iterates: pairs (i, k <= i) in rows of the triangle.
template <typename T, int DEPTH>
__global__ void __launch_bounds__(256)
change_products(int n, const T *__restrict__ iterates, const int *__restrict__ done,
                double *__restrict__ partials, int n_parts)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    const int n_pairs = DEPTH * (DEPTH + 1) / 2;
    double sums[n_pairs] = {};
    for (long long j = (long long)blockIdx.x * blockDim.x + threadIdx.x; j < n;
         j += (long long)gridDim.x * blockDim.x) {
        double change[DEPTH];
        double before = double(iterates[j]);
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const double after = double(iterates[(long long)(i + 1) * n + j]);
            change[i] = after - before;
            before = after;
        }
#pragma unroll
        for (int i = 0; i < DEPTH; ++i)
#pragma unroll
            for (int k = 0; k <= i; ++k)
                sums[i * (i + 1) / 2 + k] += change[i] * change[k];
    }
    block_sums(n_pairs, -1, sums, scratch);
    if (threadIdx.x == 0)
        for (int pair = 0; pair < n_pairs; ++pair)
            partials[pair * n_parts + blockIdx.x] = sums[pair];
}

// Reduced rank extrapolation: weights of sum one whose mixed change is least, from (D D') w = 1. Where the
// changes are too nearly parallel all weight goes to the last iterate. One block.
template <int DEPTH>
__global__ void __launch_bounds__(256)
mix_weights(int n_parts, const double *__restrict__ partials, const int *__restrict__ done,
            double *__restrict__ weights)
{
    SHARED_MEMORY(double, gram);
    if (*done)
        return;
    const int n_pairs = DEPTH * (DEPTH + 1) / 2;
    for (int pair = threadIdx.x; pair < n_pairs; pair += blockDim.x) {
        double total = 0.0;
        for (int part = 0; part < n_parts; ++part)
            total += partials[pair * n_parts + part];
        gram[pair] = total;
    }
    __syncthreads();  // all products are there
    if (threadIdx.x != 0)
        return;
    double factor[DEPTH][DEPTH], size[DEPTH], weight[DEPTH];
    bool sound = true;
    for (int i = 0; i < DEPTH; ++i) {
        size[i] = sqrt(gram[i * (i + 1) / 2 + i]);
        sound = sound && size[i] > 0.0;
    }
    for (int i = 0; sound && i < DEPTH; ++i)
        for (int k = 0; k <= i; ++k) {
            double total = i == k ? 1.0 + 1e-13 : gram[i * (i + 1) / 2 + k] / (size[i] * size[k]);
            for (int q = 0; q < k; ++q)
                total -= factor[i][q] * factor[k][q];
            if (i == k) {
                sound = sound && total > 1e-15;
                factor[i][i] = sound ? sqrt(total) : 1.0;
            } else {
                factor[i][k] = total / factor[k][k];
            }
        }
    double whole = 0.0;
    if (sound) {
        for (int i = 0; i < DEPTH; ++i) {
            weight[i] = 1.0 / size[i];
            for (int k = 0; k < i; ++k)
                weight[i] -= factor[i][k] * weight[k];
            weight[i] /= factor[i][i];
        }
        for (int i = DEPTH - 1; i >= 0; --i) {
            for (int k = i + 1; k < DEPTH; ++k)
                weight[i] -= factor[k][i] * weight[k];
            weight[i] /= factor[i][i];
        }
        for (int i = 0; i < DEPTH; ++i) {
            weight[i] /= size[i];
            whole += weight[i];
        }
    }
    sound = sound && (whole > 0.0 || whole < 0.0);
    for (int i = 0; i < DEPTH; ++i)
        weights[i] = sound ? weight[i] / whole : (i == DEPTH - 1 ? 1.0 : 0.0);
}

// The mix of all iterates but the first takes the place of the first; entries stay nonnegative.
template <typename T, int DEPTH>
__global__ void __launch_bounds__(256, 4)
mix_iterates(int n, const double *__restrict__ weights, const T *__restrict__ shares, int n_hubs,
             const int *__restrict__ done, T *__restrict__ iterates, double *__restrict__ partials, int n_parts)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    double sums[SLOTS] = {};
    for (long long j = (long long)blockIdx.x * blockDim.x + threadIdx.x; j < n;
         j += (long long)gridDim.x * blockDim.x) {
        double mixed = 0.0;
        for (int i = 0; i < DEPTH; ++i)
            mixed += weights[i] * double(iterates[(long long)(i + 1) * n + j]);
        const T kept = T(mixed > 0.0 ? mixed : 0.0);
        iterates[j] = kept;
        sums[MASS] += double(kept);
#pragma unroll
        for (int k = 0; k < MOST_HUBS; ++k)
            if (k < n_hubs)
                sums[HUBS + k] += double(shares[(long long)k * n + j]) * double(kept);
    }
    write_partials(sums, scratch, partials, blockIdx.x, n_parts);
}

template <typename T>
__global__ void scale_distribution(int n, const double *__restrict__ scalars, const int *__restrict__ done,
                          T *__restrict__ x)
{
    if (*done)
        return;
    const double scale = 1.0 / scalars[MASS];
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        x[i] = T(scale * double(x[i]));
}

// Standard exponential variates, for the trial of the condition. Each depends on the seed and on its place alone, not
// on the launch: the same numbers on every GPU. Drawn in double, since a logarithm in float has too few values.
template <typename T>
__global__ void draw_factors(long long n, unsigned long long seed, T *__restrict__ factor)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        const unsigned long long bits = random_bits(random_bits(seed + (unsigned long long)i * GOLDEN));
        factor[i] = T(-log((double(bits >> 11) + 0.5) * 1.1102230246251565e-16));
    }
}

// -- building the pull form ---------------------------------------------------------------------------

// Totals of compressed rows.
template <typename W, typename I>
__global__ void __launch_bounds__(256, 4)
row_totals(int n_rows, const I *__restrict__ indptr, const W *__restrict__ weight,
           double *__restrict__ totals)
{
    const int lane = threadIdx.x % 8;
    const int rows_a_block = blockDim.x / 8;
    for (long long base = (long long)blockIdx.x * rows_a_block; base < n_rows;
         base += (long long)gridDim.x * rows_a_block) {
        const long long row = base + threadIdx.x / 8;
        double total = 0.0;
        if (row < n_rows)
            for (I k = indptr[row] + lane; k < indptr[row + 1]; k += 8)
                total += double(weight[k]);
        for (int offset = 4; offset > 0; offset /= 2)
            total += __shfl_down_sync(WHOLE_WARP, total, offset, 8);
        if (lane == 0 && row < n_rows)
            totals[row] = total;
    }
}

// Compose the policy: entry k of cell x carries W(a|s) K(s'|x) from state s = x / n_actions.
template <typename T, typename W, typename I>
__global__ void __launch_bounds__(256, 4)
compose_rates(int n_cells, int n_actions, const I *__restrict__ indptr, const W *__restrict__ weight,
              const double *__restrict__ scale, const double *__restrict__ policy, int *__restrict__ sources,
              T *__restrict__ rates)
{
    const int lane = threadIdx.x % 8;
    const int rows_a_block = blockDim.x / 8;
    for (long long cell = (long long)blockIdx.x * rows_a_block + threadIdx.x / 8; cell < n_cells;
         cell += (long long)gridDim.x * rows_a_block) {
        const double rate = policy[cell] * scale[cell];
        for (I k = indptr[cell] + lane; k < indptr[cell + 1]; k += 8) {
            sources[k] = int(cell / n_actions);
            rates[k] = T(rate * double(weight[k]));
        }
    }
}
