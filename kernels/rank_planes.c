/* The registry of rank_planes, and what all implementations share: the choice of the ranks. */
#include "kernels/rank_planes.h"

#include "kernels/rank_planes_simd.h"
#include "runtime/base/bytes.h"

static const struct kvt_rank_ops *const registry[] = {
    &kvt_rank_ops_ref,
#if defined(__x86_64__)
    &kvt_rank_ops_avx2,
    &kvt_rank_ops_avx512,
#endif
};

#if defined(__x86_64__)
bool kvt_rank_is_avx2_here(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("bmi")
        && __builtin_cpu_supports("popcnt");
}

bool kvt_rank_is_avx512_here(void)
{
    return kvt_rank_is_avx2_here() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi")
        && __builtin_cpu_supports("avx512vbmi2");
}
#endif

const struct kvt_rank_ops *kvt_rank_ops_at(uint32_t i) { return i < KVT_ARRAY_COUNT(registry) ? registry[i] : NULL; }

const struct kvt_rank_ops *kvt_rank_ops_best(void)
{
    const struct kvt_rank_ops *best = &kvt_rank_ops_ref;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(registry); i++)
        if (registry[i]->is_supported()) best = registry[i];
    return best;
}

/* The first value of the window of sixteen consecutive ones (mod 256) that holds most counts. */
static uint8_t best_window(const uint32_t histogram[256])
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < KVT_RANK_WINDOW; i++) held += histogram[i];
    uint64_t best = held;
    uint32_t low = 0;
    for (uint32_t i = 1; i < 256; i++) {
        held += histogram[(i + KVT_RANK_WINDOW - 1) & 255];
        held -= histogram[i - 1];
        if (held > best) {
            best = held;
            low = i;
        }
    }
    return (uint8_t)low;
}

uint64_t kvt_rank_choose(const uint32_t histogram[256], struct kvt_rank_table *ret_table)
{
    static const uint32_t rank_bits[KVT_RANK_SYMBOLS] = { 2, 2, 2, 4, 4, 4, 6, 6, 6 };
    const uint32_t escape_bits = 6 + 8;

    const uint8_t low = best_window(histogram);
    uint32_t count[KVT_RANK_WINDOW];
    uint8_t order[KVT_RANK_WINDOW];
    for (uint32_t i = 0; i < KVT_RANK_WINDOW; i++) {
        count[i] = histogram[(low + i) & 255];
        uint32_t place = i;
        for (; place > 0 && count[order[place - 1]] < count[i]; place--) order[place] = order[place - 1];
        order[place] = (uint8_t)i;
    }

    uint64_t total = 0;
    for (uint32_t i = 0; i < 256; i++) total += histogram[i];
    uint64_t bits = 0;
    uint64_t ranked = 0;
    ret_table->low = low;
    for (uint32_t r = 0; r < KVT_RANK_SYMBOLS; r++) {
        ret_table->symbol[r] = (uint8_t)(low + order[r]);
        bits += (uint64_t)count[order[r]] * rank_bits[r];
        ranked += count[order[r]];
    }
    return bits + (total - ranked) * escape_bits;
}
