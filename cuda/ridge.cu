// Conjugate gradients for the ridge problem over seen cells, in the scaled unknown y = sqrt(p) tau:
//
//     H y = right,  H = M'M + penalty q q' + ridge,  M = I - spread gamma (K + hubs)'
//
// Both products with the counted matrix are passes of the operator; what lies between them and all scalars of
// the method are here, so that a step does not involve the host. Cells of one state are neighbors: those of
// state s are group_first[s] : group_first[s + 1].
//
// Vectors are stored as T (float or double), sums and scalars are double. In float the host refines: it measures
// what is left in double and begins again from there.

// Scalars of the descent, on the device.
enum { GOAL, REMAINING, ALONG, STRIDE, MOMENTUM, MADE, DESCENT };

// z = d - spread pushed, and what z gathers in each state: the end of M d and the beginning of M'z.
template <typename T>
__global__ void turn_around(int n_states, const int *__restrict__ group_first, const T *__restrict__ spread,
                            const T *__restrict__ pushed, const T *__restrict__ direction,
                            const int *__restrict__ done, T *__restrict__ misfit, T *__restrict__ gathered)
{
    if (*done)
        return;
    for (long long s = (long long)blockIdx.x * blockDim.x + threadIdx.x; s < n_states;
         s += (long long)gridDim.x * blockDim.x) {
        double total = 0.0;
        for (int i = group_first[s]; i < group_first[s + 1]; ++i) {
            const double here = double(direction[i]) - double(spread[i]) * double(pushed[s]);
            misfit[i] = T(here);
            total += double(spread[i]) * here;
        }
        gathered[s] = T(total);
    }
}

// image = H d, and d'H d.
template <typename T>
__global__ void __launch_bounds__(256, 4)
normal_image(int n, const T *__restrict__ direction, const T *__restrict__ misfit, const T *__restrict__ pulled,
             const T *__restrict__ q, double penalty, double ridge, const double *__restrict__ scalars,
             const int *__restrict__ done, T *__restrict__ image, double *__restrict__ partials)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    double curvature = 0.0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        const double along = double(direction[i]);
        const double here =
            double(misfit[i]) - double(pulled[i]) + penalty * scalars[ALONG] * double(q[i]) + ridge * along;
        image[i] = T(here);
        curvature += along * here;
    }
    curvature = block_sum(curvature, scratch);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = curvature;
}

// One step along the direction, and what is left: sum of residual^2 / diagonal over the free entries.
template <typename T>
__global__ void __launch_bounds__(256, 4)
step_along(int n, const T *__restrict__ direction, const T *__restrict__ image, const T *__restrict__ diagonal,
           const unsigned char *__restrict__ free_entries, const double *__restrict__ scalars,
           const int *__restrict__ done, T *__restrict__ y, T *__restrict__ residual, double *__restrict__ partials)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    double left = 0.0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        y[i] = T(double(y[i]) + scalars[STRIDE] * double(direction[i]));
        const double here = double(residual[i]) - scalars[STRIDE] * double(image[i]);
        residual[i] = T(here);
        if (free_entries[i])
            left += here * here / double(diagonal[i]);
    }
    left = block_sum(left, scratch);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = left;
}

// The next direction, and its mass q'd.
template <typename T>
__global__ void __launch_bounds__(256, 4)
turn_direction(int n, const T *__restrict__ residual, const T *__restrict__ diagonal,
               const unsigned char *__restrict__ free_entries, const T *__restrict__ q,
               const double *__restrict__ scalars, const int *__restrict__ done, T *__restrict__ direction,
               double *__restrict__ partials)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    double along = 0.0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        const double downhill = free_entries[i] ? double(residual[i]) / double(diagonal[i]) : 0.0;
        const double here = downhill + scalars[MOMENTUM] * double(direction[i]);
        direction[i] = T(here);
        along += double(q[i]) * here;
    }
    along = block_sum(along, scratch);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = along;
}

// Add up what the blocks left, and decide. role 0: the mass of a direction. role 1: its curvature, which sets the
// length of the step; one that is not positive ends the descent. role 2: what is left, which sets the momentum and
// ends the descent at the goal. One block.
__global__ void __launch_bounds__(256)
finish_descent(int n_parts, const double *__restrict__ partials, int role, double *__restrict__ scalars,
               int *__restrict__ done)
{
    SHARED_MEMORY(double, scratch);
    if (*done)
        return;
    double total = 0.0;
    for (int part = threadIdx.x; part < n_parts; part += blockDim.x)
        total += partials[part];
    total = block_sum(total, scratch);
    if (threadIdx.x != 0)
        return;
    if (role == 0) {
        scalars[ALONG] = total;
        if (!(scalars[REMAINING] > scalars[GOAL]))
            *done = 1;
    } else if (role == 1) {
        scalars[STRIDE] = scalars[REMAINING] / total;
        if (!(total > 0.0)) {
            scalars[REMAINING] = __longlong_as_double(0x7ff8000000000000ll);
            *done = 1;
        }
    } else {
        scalars[MOMENTUM] = total / scalars[REMAINING];
        scalars[REMAINING] = total;
        scalars[MADE] += 1.0;
    }
}
