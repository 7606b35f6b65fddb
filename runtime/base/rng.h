/* rng: seeded random numbers for tests, workloads and simulations (SplitMix64: Steele, Lea, Flood, OOPSLA 2014). */
#ifndef KVT_RUNTIME_BASE_RNG_H
#define KVT_RUNTIME_BASE_RNG_H

#include <stdint.h>

struct kvt_rng {
    uint64_t state;
};

static inline uint64_t kvt_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t kvt_rng_next(struct kvt_rng *rng) { return kvt_mix64(rng->state += 0x9e3779b97f4a7c15u); }

/* A number below bound; bound > 0. The bias is below 2^-32 for bounds under 2^32. */
static inline uint64_t kvt_rng_below(struct kvt_rng *rng, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)kvt_rng_next(rng) * bound) >> 64);
}

/* A number in [0, 1). */
static inline double kvt_rng_unit(struct kvt_rng *rng) { return (double)(kvt_rng_next(rng) >> 11) * 0x1.0p-53; }

#endif
