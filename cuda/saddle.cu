// Stochastic steps toward GenDICE's saddle point over one tau and one f for each cell:
//
//     J = (q - m)' f - sum_x c(x) excess(f(x)) + penalty (u (N - 1) - u^2 / 2) + ridge/2 E_p (tau - 1)^2
//
// m = p tau, q = start + gamma T' m, N = sum_x weight(x) m(x) + offset, c = m or p.
//
// Vectors are stored as T (float or double); arithmetic, sums over blocks and sums over steps are double. Cells are
// int, as on the host.

// f-divergences by number: the order of CONJUGATES in lingendice/divergences/base.py.
enum { CHI2, KL, REVERSE_KL, JENSEN_SHANNON, HELLINGER, TOTAL_VARIATION, WEIGHTED_L2, EQUALITY };

// excess(y) = phi*(y) - y and its slope. In double for either T: near y = 0 the value is a difference of nearly equal
// numbers.
__device__ __forceinline__ double excess_and_slope(int code, double y, double *slope)
{
    if (code == CHI2) {
        *slope = 0.5 * y;
        return 0.25 * y * y;
    }
    if (code == WEIGHTED_L2) {
        *slope = y;
        return 0.5 * y * y;
    }
    if (code == KL) {
        *slope = expm1(y);
        return *slope - y;
    }
    if (code == REVERSE_KL) {
        *slope = y / (1.0 - y);
        return -log1p(-y) - y;
    }
    if (code == JENSEN_SHANNON) {
        const double grown = expm1(y);
        *slope = 2.0 * grown / (1.0 - grown);
        return -log1p(-grown) - y;
    }
    if (code == HELLINGER) {
        const double left = 1.0 - y;
        *slope = y * (2.0 - y) / (left * left);
        return y * y / left;
    }
    const bool below = code == TOTAL_VARIATION && y < -0.5;
    *slope = below ? -1.0 : 0.0;
    return below ? -0.5 - y : 0.0;
}

// An entry of the alias table at first : first + size, from 64 random bits (size < 2^32).
__device__ __forceinline__ long long draw_alias(unsigned long long bits, const double *threshold, const int *alias,
                                                long long first, long long size)
{
    const long long i = first + (long long)(((bits >> 32) * (unsigned long long)size) >> 32);
    return double(bits & 0xffffffffull) * 2.3283064365386963e-10 < threshold[i] ? i : first + alias[i];
}

// Everything that changes from step to step lies on the device, so that many steps can be captured as one
// graph. The clock: steps made in this epoch, steps that it has, and the step length of the multiplier. Steps
// beyond the end of the epoch do nothing.
enum { STEP, EPOCH, MULTIPLIER_LENGTH, CLOCK };

// Samples (x, x', x0) for many steps at once: they do not depend on the iterates. Every sample has its own
// stream of six numbers. next codes: >= 0 a state, -1 the end, -2 - k a draw from distribution k. Thresholds are double
// whatever T is, for they meet 32 random bits; aliases are int, as the host builds them.
__global__ void draw_samples(long long n_samples, const unsigned long long *__restrict__ counter, long long n_events,
                             const double *__restrict__ event_t, const int *__restrict__ event_a,
                             const int *__restrict__ event_x, const int *__restrict__ event_next,
                             long long n_states, const double *__restrict__ distribution_t, const int *__restrict__ distribution_a,
                             int n_actions, const double *__restrict__ policy_t,
                             const int *__restrict__ policy_a, int redirects, double factor,
                             const double *__restrict__ p, long long n_cells,
                             const double *__restrict__ restart_t, const int *__restrict__ restart_a,
                             double start_mass, const double *__restrict__ start_t,
                             const int *__restrict__ start_a, double gamma, int *__restrict__ from,
                             int *__restrict__ to, int *__restrict__ started, double *__restrict__ discount)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n_samples;
         i += (long long)gridDim.x * blockDim.x) {
        const unsigned long long mine = counter[0] + 6ull * (unsigned long long)i * GOLDEN;
        const long long event = draw_alias(random_bits(mine), event_t, event_a, 0, n_events);
        const int code = event_next[event];
        long long cell = code;
        double weight = gamma;
        if (code < -1) {
            const long long k = -2 - code;
            cell = draw_alias(random_bits(mine + GOLDEN), distribution_t + k * n_states, distribution_a + k * n_states, 0, n_states);
        }
        if (code != -1 && n_actions > 1)
            cell = draw_alias(random_bits(mine + 2 * GOLDEN), policy_t, policy_a, cell * n_actions, n_actions);
        if (code != -1 && redirects && !(p[cell] > 0.0)) {
            weight = gamma * factor;
            cell = factor == 0.0 ? -1
                                 : draw_alias(random_bits(mine + 3 * GOLDEN), restart_t, restart_a, 0, n_cells);
        }
        from[i] = event_x[event];
        to[i] = code == -1 ? -1 : int(cell);
        discount[i] = weight;
        started[i] = start_mass > 0.0 ? int(draw_alias(random_bits(mine + 4 * GOLDEN), start_t, start_a, 0, n_cells))
                                      : -1;
    }
}

// What each step will move, a segment of `width` entries per step: coordinate << 32 | place of its gradient. A
// sample moves `each` coordinates, one of tau or three of f (at x, x', x0); n_cells stands for an absent one,
// and entries past the last place are larger than all others.
__global__ void list_entries(long long n_steps, int batch, int each, int width, long long n_cells,
                             const int *__restrict__ from, const int *__restrict__ to,
                             const int *__restrict__ started, unsigned long long *__restrict__ entries)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n_steps * width;
         i += (long long)gridDim.x * blockDim.x) {
        const int place = int(i % width);
        if (place >= batch * each) {
            entries[i] = ~0ull;
            continue;
        }
        const long long sample = i / width * batch + place / each;
        const int part = place % each;
        const long long met = part == 0 ? from[sample] : part == 1 ? to[sample] : started[sample];
        entries[i] = (unsigned long long)(met >= 0 ? met : n_cells) << 32 | (unsigned long long)place;
    }
}

// Sort each segment of `width` entries, a power of two, by a bitonic network: one block per segment, in shared
// memory where the segment fits. A library's sort would allocate, which a captured graph cannot.
__global__ void __launch_bounds__(256, 4)
sort_segments(int n_segments, int width, int in_shared, unsigned long long *__restrict__ entries)
{
    SHARED_MEMORY(unsigned long long, near);
    for (int segment = blockIdx.x; segment < n_segments; segment += gridDim.x) {
        unsigned long long *far = entries + (long long)segment * width;
        unsigned long long *mine = in_shared ? near : far;
        for (int i = threadIdx.x; in_shared && i < width; i += blockDim.x)
            near[i] = far[i];
        for (int size = 2; size <= width; size *= 2)
            for (int stride = size / 2; stride > 0; stride /= 2) {
                __syncthreads();  // the stage before is over
                for (int pair = threadIdx.x; pair < width / 2; pair += blockDim.x) {
                    const int low = 2 * pair - (pair & (stride - 1)), high = low + stride;
                    const unsigned long long first = mine[low], second = mine[high];
                    if ((first > second) == ((low & size) == 0)) {
                        mine[low] = second;
                        mine[high] = first;
                    }
                }
            }
        __syncthreads();  // all is sorted
        for (int i = threadIdx.x; in_shared && i < width; i += blockDim.x)
            far[i] = near[i];  // by the thread that will read far[i] of the next segment into near[i]
    }
}

// Gradients of the samples of one step, all at the iterates before it. u_parts: share of -dJ/du by block.
template <typename T>
__global__ void __launch_bounds__(256, 4)
sample_gradients(int step, int batch, const double *__restrict__ clock, const int *__restrict__ from,
                 const int *__restrict__ to, const double *__restrict__ discount, double start_mass,
                 const T *__restrict__ tau, const T *__restrict__ f, const double *__restrict__ u,
                 const T *__restrict__ weight, int code, int by_ratio, double penalty, double offset, double ridge,
                 T *__restrict__ on_tau, T *__restrict__ on_f, double *__restrict__ u_parts)
{
    SHARED_MEMORY(double, scratch);
    if (clock[STEP] + step >= clock[EPOCH])
        return;
    double on_u = 0.0;
    for (int b = blockIdx.x * blockDim.x + threadIdx.x; b < batch; b += gridDim.x * blockDim.x) {
        const long long i = (long long)step * batch + b;
        const int x = from[i], y = to[i];
        const double ratio = double(tau[x]), dual = double(f[x]), rate = discount[i];
        double slope;
        const double excess = excess_and_slope(code, dual, &slope);
        double to_tau = penalty * u[0] * double(weight[x]) - dual + ridge * (ratio - 1.0);
        if (y >= 0)
            to_tau += rate * double(f[y]);
        if (by_ratio)
            to_tau -= excess;
        on_tau[b] = T(to_tau);
        on_f[3 * b] = T(-ratio - (by_ratio ? ratio : 1.0) * slope);
        on_f[3 * b + 1] = T(y >= 0 ? rate * ratio : 0.0);
        on_f[3 * b + 2] = T(start_mass);
        on_u += penalty * (double(weight[x]) * ratio + offset - 1.0 - u[0]);
    }
    on_u = block_sum(on_u, scratch);
    if (threadIdx.x == 0)
        u_parts[blockIdx.x] = on_u;
}

// Move each coordinate that the step met, by the mean of its gradients. Entries are sorted by coordinate:
// the first of a run adds up the run, so that no two threads write to one place. A coordinate enters its sum
// with the number of steps it stayed unchanged; sums and step numbers are double, which no run exhausts.
template <typename T>
__global__ void update_coordinates(int step, int n_entries, int width, long long n_cells,
                                   const unsigned long long *__restrict__ entries, const T *__restrict__ gradient,
                                   double scale, const T *__restrict__ lengths, const T *__restrict__ low,
                                   const T *__restrict__ high, const double *__restrict__ clock,
                                   T *__restrict__ value, double *__restrict__ sum, double *__restrict__ last)
{
    const double now = clock[STEP] + step;
    if (now >= clock[EPOCH])
        return;
    const unsigned long long *mine = entries + (long long)step * width;
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < n_entries; e += gridDim.x * blockDim.x) {
        const unsigned long long met = mine[e] >> 32;
        const long long j = (long long)met;
        if (j == n_cells || (e > 0 && mine[e - 1] >> 32 == met))
            continue;
        double total = 0.0;
        for (int k = e; k < n_entries && mine[k] >> 32 == met; ++k)
            total += double(gradient[mine[k] & 0xffffffffull]);
        sum[j] += double(value[j]) * (now - last[j]);
        last[j] = now;
        const T moved = T(double(value[j]) + scale * double(lengths[j]) * total);
        value[j] = moved < low[j] ? low[j] : (moved > high[j] ? high[j] : moved);
    }
}

// The multiplier of the normalization, and its sum. One thread.
__global__ void update_multiplier(int step, int n_parts, const double *__restrict__ u_parts, double scale,
                                  double top, const double *__restrict__ clock, double *__restrict__ u)
{
    if (clock[STEP] + step >= clock[EPOCH])
        return;
    double total = 0.0;
    for (int part = 0; part < n_parts; ++part)
        total += u_parts[part];
    u[1] += u[0];
    const double moved = u[0] + scale * clock[MULTIPLIER_LENGTH] * total;
    u[0] = moved < -top ? -top : (moved > top ? top : moved);
}

// After n_steps steps: the clock of the epoch, and the random numbers that they used. One thread.
__global__ void advance_clock(int n_steps, int batch, double *__restrict__ clock,
                              unsigned long long *__restrict__ counter)
{
    const double now = clock[STEP] + n_steps;
    clock[STEP] = now < clock[EPOCH] ? now : clock[EPOCH];
    counter[0] += 6ull * (unsigned long long)n_steps * (unsigned long long)batch * GOLDEN;
}
