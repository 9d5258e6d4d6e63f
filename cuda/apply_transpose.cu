// y = P'x in double precision, pull form: the matrix given is P' in CSR, so that every row of
// the result is the work of one group of threads and no atomic is needed (the same bits on
// every run). No includes and no host code: nvcc and NVRTC (which CuPy uses) both compile it.
//
// Launch: 256 threads a block, THREADS_PER_ROW * n_rows threads in all, or fewer: rows beyond the
// grid are taken in strides.

#define THREADS_PER_ROW 8

extern "C" __global__ void __launch_bounds__(256)
apply_transpose(long long n_rows, const long long *__restrict__ indptr, const int *__restrict__ indices,
                const double *__restrict__ data, const double *__restrict__ x, double *__restrict__ y)
{
    const int lane = threadIdx.x % THREADS_PER_ROW;
    const long long rows_a_block = blockDim.x / THREADS_PER_ROW;

    // The bound is the same for all threads of a block, which the full shuffle mask requires.
    for (long long base = blockIdx.x * rows_a_block; base < n_rows; base += gridDim.x * rows_a_block) {
        const long long row = base + threadIdx.x / THREADS_PER_ROW;
        double sum = 0.0;
        if (row < n_rows)
            for (long long k = indptr[row] + lane; k < indptr[row + 1]; k += THREADS_PER_ROW)
                sum += data[k] * x[indices[k]];
        for (int offset = THREADS_PER_ROW / 2; offset > 0; offset /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, offset, THREADS_PER_ROW);
        if (lane == 0 && row < n_rows)
            y[row] = sum;
    }
}
