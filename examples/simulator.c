/* A walk on a ring, simulated in C, that counts and solves with lingendice.
 * Python hands over the addresses: see docs/embedding.md.
 *     cc -O2 -shared -fPIC -o simulator.so simulator.c
 */
#include <stdint.h>
#include <stdlib.h>

typedef int32_t (*count_function)(double *counts, int64_t n, int64_t state, int64_t next_state, double weight);
typedef int32_t (*solve_function)(double *counts, int64_t n, double gamma, double *initial, int64_t n_initial,
                                  double *restart, int64_t n_restart, double *distribution);

enum { BAD_ENTRY = 1, NO_MEMORY = 9 }; /* of lingendice.embed, whose message() puts them into words */

static uint64_t draw(uint64_t *word) { /* xorshift64 */
    *word ^= *word << 13;
    *word ^= *word >> 7;
    *word ^= *word << 17;
    return *word;
}

/* Walk n_steps over n states, two in three of them clockwise and state 0 sticky; fill distribution; return a status. */
int32_t simulate(count_function count, solve_function solve, int64_t n, int64_t n_steps, uint64_t seed,
                 double gamma, double *distribution) {
    if (n < 1)
        return BAD_ENTRY;
    double *counts = calloc((size_t)n, (size_t)n * sizeof(double)); /* checks their product for overflow */
    if (counts == NULL)
        return NO_MEMORY;
    uint64_t word = seed != 0 ? seed : 0x9e3779b97f4a7c15; /* 0 would be followed by 0 for ever */
    int64_t state = 0;
    int32_t status = 0;
    for (int64_t t = 0; t < n_steps && status == 0; t++) {
        int64_t next = (state + (draw(&word) % 3 != 0 ? 1 : n - 1)) % n;
        if (state == 0 && draw(&word) % 2 == 0)
            next = 0;
        status = count(counts, n, state, next, 1.0);
        state = next;
    }
    if (status == 0)
        status = solve(counts, n, gamma, NULL, 0, NULL, 0, distribution);
    free(counts);
    return status;
}
