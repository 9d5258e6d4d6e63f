// The Bayesian bootstrap: random weights for clusters (episodes, blocks) or for counted entries. Numbers depend on
// the seed and on the place alone, not on the launch. Columns are stored as T (float or double); variates are drawn
// in double, since accepting or rejecting one compares logarithms.

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
