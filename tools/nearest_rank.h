/*
 * nearest_rank: where a quantile lies among sorted values: the smallest value that at least that share of them is not
 * above. It is always one of the values, and of a few values a high quantile is the largest.
 */
#ifndef KVT_TOOLS_NEAREST_RANK_H
#define KVT_TOOLS_NEAREST_RANK_H

#include <stdint.h>

/* The index among `count` sorted values, at least 1; quantile: above 0, at most 1. */
static inline uint32_t kvt_nearest_rank(uint32_t count, double quantile)
{
    /* A product that only rounding puts above a whole number is that number: 0.07 of 100 is 7. */
    const double share = quantile * (double)count * (1 - 4e-16);
    uint32_t rank = (uint32_t)share;
    if ((double)rank < share) rank++;
    if (rank > count) rank = count;
    return rank > 0 ? rank - 1 : 0;
}

#endif
