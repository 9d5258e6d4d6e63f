// What all kernels share. The loader puts this text before each of the other sources, which are free of
// includes: NVRTC has no header search path on a user's machine. Three compilers read the result: nvcc (in
// the tests), NVRTC (through CuPy) and g++ (the emulator of the tests, which defines EMULATED).
//
// Sums are made in a fixed order: no floating-point atomics, so that every run gives the same bits.

#define WHOLE_WARP 0xffffffffu
#define MOST_HUBS 4

#ifndef EMULATED
#define SHARED_MEMORY(TYPE, NAME)                                                                    \
    extern __shared__ __align__(16) unsigned char shared_bytes[];                                    \
    TYPE *NAME = reinterpret_cast<TYPE *>(shared_bytes)
#endif

// What one pass over a distribution adds up, each block into its own place: partials[slot * n_parts + part].
enum { CHANGE, RELATIVE, MASS, HUBS };
#define SLOTS (HUBS + MOST_HUBS)

// What the host may read: one array of doubles on the device.
enum { PREVIOUS = SLOTS, SLOWEST, RESIDUAL, LARGEST, ERROR, STEPS, CHECKS, SCALARS };

__device__ __forceinline__ double larger(double a, double b)
{
    return a > b ? a : b;
}

// Sums of n values over a block (of entry `maximum` the largest), valid in thread 0. All threads of the block
// must call it; scratch holds 32 * n doubles. Not inlined: it ends a kernel, where a call costs nothing.
__device__ __noinline__ void block_sums(int n, int maximum, double *value, double *scratch)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int n_warps = (blockDim.x + 31) >> 5;
    for (int k = 0; k < n; ++k) {
        double mine = value[k];
        for (int offset = 16; offset > 0; offset >>= 1) {
            const double other = __shfl_down_sync(WHOLE_WARP, mine, offset);
            mine = k == maximum ? larger(mine, other) : mine + other;
        }
        if (lane == 0)
            scratch[k * 32 + warp] = mine;
    }
    __syncthreads();  // warp sums are written
    if (threadIdx.x == 0)
        for (int k = 0; k < n; ++k) {
            double total = scratch[k * 32];
            for (int w = 1; w < n_warps; ++w)
                total = k == maximum ? larger(total, scratch[k * 32 + w]) : total + scratch[k * 32 + w];
            value[k] = total;
        }
    __syncthreads();  // scratch may be used again
}

__device__ __forceinline__ double block_sum(double value, double *scratch)
{
    block_sums(1, -1, &value, scratch);
    return value;
}

// 64 random bits from a counter (SplitMix64); the next counter is counter + GOLDEN.
#define GOLDEN 0x9E3779B97F4A7C15ull
__device__ __forceinline__ unsigned long long random_bits(unsigned long long counter)
{
    unsigned long long bits = (counter ^ (counter >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}
