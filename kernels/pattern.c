#include "kernels/pattern.h"

#include "runtime/base/rng.h"

static uint8_t byte_of(uint64_t seed, uint64_t place)
{
    struct kvt_rng rng = { .state = seed + place / 8 * 0x9e3779b97f4a7c15u };
    return (uint8_t)(kvt_rng_next(&rng) >> place % 8 * 8);
}

void kvt_pattern_fill_ref(const struct kvt_pattern_run *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        for (uint64_t i = 0; i < runs[r].size; i++) runs[r].bytes[i] = byte_of(runs[r].seed, runs[r].start + i);
}

void kvt_pattern_verify_ref(const struct kvt_pattern_run *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        struct kvt_pattern_result result = { .bad = 0, .first = runs[r].size };
        for (uint64_t i = runs[r].size; i-- > 0;)
            if (runs[r].bytes[i] != byte_of(runs[r].seed, runs[r].start + i)) {
                result.bad++;
                result.first = i;
            }
        *runs[r].result = result;
    }
}

void kvt_pattern_fill_body(const struct kvt_pattern_run *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        for (uint64_t tile = 0; tile * KVT_PATTERN_TILE < runs[r].size; tile++)
            for (uint32_t thread = KVT_PATTERN_THREADS; thread-- > 0;)
                kvt_pattern_fill_tile(&runs[r], tile, thread, KVT_PATTERN_THREADS);
}

void kvt_pattern_verify_body(const struct kvt_pattern_run *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        struct kvt_pattern_result result = { .bad = 0, .first = runs[r].size };
        for (uint64_t tile = 0; tile * KVT_PATTERN_TILE < runs[r].size; tile++)
            for (uint32_t thread = KVT_PATTERN_THREADS; thread-- > 0;)
                kvt_pattern_verify_tile(&runs[r], tile, thread, KVT_PATTERN_THREADS, &result.bad, &result.first);
        *runs[r].result = result;
    }
}
