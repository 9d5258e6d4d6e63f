// The Bayesian bootstrap: random weights for clusters (episodes, blocks) or for counted entries, and the
// counts that they give. Numbers depend on the seed and on the place alone, not on the launch. Columns are stored as T
// (float or double), places in the log are I (int or long long); variates are drawn and summed in double, since
// accepting or rejecting one compares logarithms.

__device__ __forceinline__ double uniform(unsigned long long counter)
{
    return (double(random_bits(counter) >> 11) + 0.5) * 1.1102230246251565e-16;
}

__device__ __forceinline__ double exponential(unsigned long long counter)
{
    return -log(uniform(counter));
}

// Gamma variate of shape a > 0 (Marsaglia and Tsang, 2000), from the stream that begins at counter.
__device__ __forceinline__ double gamma_variate(double a, unsigned long long counter)
{
    double boost = 1.0;
    if (a < 1.0) {
        boost = pow(uniform(counter), 1.0 / a);
        counter += GOLDEN;
        a += 1.0;
    }
    const double d = a - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (int attempt = 0; attempt < 64; ++attempt) {
        const double radius = sqrt(2.0 * exponential(counter));
        const double normal = radius * cos(6.283185307179586 * uniform(counter + GOLDEN));
        const double cube = 1.0 + c * normal;
        const double u = uniform(counter + 2 * GOLDEN);
        counter += 3 * GOLDEN;
        if (cube > 0.0) {
            const double v = cube * cube * cube;
            if (log(u) < 0.5 * normal * normal + d - d * v + d * log(v))
                return boost * d * v;
        }
    }
    return boost * d;  // never in practice: each attempt is accepted with probability above 0.95
}

// One stream of 256 numbers for each place of each replicate.
__device__ __forceinline__ unsigned long long stream(unsigned long long seed, unsigned long long place)
{
    return random_bits(seed + place * GOLDEN);
}

template <typename T>
__global__ void draw_factors(long long n_clusters, unsigned long long seed, T *__restrict__ factor)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n_clusters;
         i += (long long)gridDim.x * blockDim.x)
        factor[i] = T(exponential(stream(seed, (unsigned long long)i)));
}

template <typename T>
__global__ void draw_counts(long long n, unsigned long long seed, const T *__restrict__ count, T *__restrict__ drawn)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        drawn[i] = T(count[i] > T(0) ? gamma_variate(double(count[i]), stream(seed, (unsigned long long)i)) : 0.0);
}

// Eight threads add up one entry: its transitions, in the order of the log, each weight * factor[cluster]
// times. order lists the transitions by entry.
template <typename T, typename I>
__global__ void __launch_bounds__(256, 4)
reweigh_entries(long long n_entries, const I *__restrict__ entry_first, const I *__restrict__ order,
                const I *__restrict__ cluster, const T *__restrict__ weight, const T *__restrict__ value,
                const T *__restrict__ factor, T *__restrict__ count, T *__restrict__ value_sum)
{
    const int lane = threadIdx.x % 8;
    const int entries_a_block = blockDim.x / 8;
    for (long long base = (long long)blockIdx.x * entries_a_block; base < n_entries;
         base += (long long)gridDim.x * entries_a_block) {
        const long long entry = base + threadIdx.x / 8;
        double weighed = 0.0, summed = 0.0;
        if (entry < n_entries)
            for (long long i = (long long)entry_first[entry] + lane; i < entry_first[entry + 1]; i += 8) {
                const I place = order[i];
                const double w = double(weight[place]) * double(factor[cluster[place]]);
                weighed += w;
                summed += w * double(value[place]);
            }
        for (int offset = 4; offset > 0; offset /= 2) {
            weighed += __shfl_down_sync(WHOLE_WARP, weighed, offset, 8);
            summed += __shfl_down_sync(WHOLE_WARP, summed, offset, 8);
        }
        if (lane == 0 && entry < n_entries) {
            count[entry] = T(weighed);
            value_sum[entry] = T(summed);
        }
    }
}

// Means of rewards drawn anew: mean + sqrt(m2) / n times a standard normal.
template <typename T>
__global__ void draw_means(long long n, unsigned long long seed, const T *__restrict__ mean, const T *__restrict__ m2,
                           const T *__restrict__ count, T *__restrict__ drawn)
{
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        const unsigned long long mine = stream(seed, (unsigned long long)i);
        const double radius = sqrt(2.0 * exponential(mine));
        const double normal = radius * cos(6.283185307179586 * uniform(mine + GOLDEN));
        const double seen = count[i] > T(1) ? double(count[i]) : 1.0;
        drawn[i] = T(double(mean[i]) + sqrt(double(m2[i])) / seen * normal);
    }
}
