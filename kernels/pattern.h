/*
 * pattern: bytes that follow from a seed and their place, to fill memory with and to find what is wrong in it.
 *
 * The bytes at 8i .. 8i + 7 of a pattern are the little-endian word mix(seed + (i + 1) * golden), kvt_mix64's: a stream of
 * SplitMix64 that can be entered anywhere. A run may start and end at any byte of its pattern.
 *
 * Thread: any; no state.
 */
#ifndef KVT_KERNELS_PATTERN_H
#define KVT_KERNELS_PATTERN_H

#include "kernels/body.h"

/* What verify found. bad: bytes that differ; first: the place in the run of the first, its size when none does. */
struct kvt_pattern_result {
    unsigned long long bad, first; /* as wide as uint64_t, and the type that CUDA's atomics take */
};

struct kvt_pattern_run {
    uint8_t *bytes; /* verify only reads them */
    uint64_t size;
    uint64_t seed, start;              /* the run's first byte is the pattern's byte `start` */
    struct kvt_pattern_result *result; /* of verify; fill leaves it alone */
};

typedef void kvt_pattern_fn(const struct kvt_pattern_run *runs, uint32_t count);

kvt_pattern_fn kvt_pattern_fill_ref, kvt_pattern_verify_ref;
kvt_pattern_fn kvt_pattern_fill_body, kvt_pattern_verify_body; /* the GPU's thread body in a loop */

/* ---- The body -------------------------------------------------------------------------------------------------- */

enum { KVT_PATTERN_TILE = 16384, KVT_PATTERN_THREADS = 256 };

KVT_BODY uint64_t kvt_pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/*
 * Tiles are cut by the run; a thread's words by the run too, 8 bytes from its first on, so that they are aligned when the
 * run is. The pattern's bytes for them come from two of its words when start is no multiple of 8.
 */
KVT_BODY uint64_t kvt_pattern_bytes(uint64_t seed, uint64_t place)
{
    const uint64_t shift = place % 8 * 8, low = kvt_pattern_word(seed, place / 8);
    return shift ? low >> shift | kvt_pattern_word(seed, place / 8 + 1) << (64 - shift) : low;
}

KVT_BODY void kvt_pattern_fill_tile(const struct kvt_pattern_run *run, uint64_t tile, uint32_t thread, uint32_t threads)
{
    const uint64_t end = (tile + 1) * KVT_PATTERN_TILE < run->size ? (tile + 1) * KVT_PATTERN_TILE : run->size;
    const bool is_aligned = ((uintptr_t)run->bytes & 7) == 0;
    for (uint64_t at = tile * KVT_PATTERN_TILE + 8 * (uint64_t)thread; at < end; at += 8 * (uint64_t)threads) {
        const uint64_t word = kvt_pattern_bytes(run->seed, run->start + at);
        if (is_aligned && end - at >= 8) *(kvt_long_alias *)(void *)(run->bytes + at) = word;
        else
            for (uint32_t i = 0; i < 8 && at + i < end; i++) run->bytes[at + i] = (uint8_t)(word >> 8 * i);
    }
}

/* Adds to *bad, and lowers *first. */
KVT_BODY void kvt_pattern_verify_tile(const struct kvt_pattern_run *run, uint64_t tile, uint32_t thread,
                                      uint32_t threads, unsigned long long *bad, unsigned long long *first)
{
    const uint64_t end = (tile + 1) * KVT_PATTERN_TILE < run->size ? (tile + 1) * KVT_PATTERN_TILE : run->size;
    const bool is_aligned = ((uintptr_t)run->bytes & 7) == 0;
    for (uint64_t at = tile * KVT_PATTERN_TILE + 8 * (uint64_t)thread; at < end; at += 8 * (uint64_t)threads) {
        const uint64_t word = kvt_pattern_bytes(run->seed, run->start + at);
        if (is_aligned && end - at >= 8 && *(const kvt_long_alias *)(const void *)(run->bytes + at) == word) continue;
        for (uint32_t i = 0; i < 8 && at + i < end; i++) {
            if (run->bytes[at + i] == (uint8_t)(word >> 8 * i)) continue;
            *bad += 1;
            if (at + i < *first) *first = at + i;
        }
    }
}

#endif
