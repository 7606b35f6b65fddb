/* The registry of rank_planes. */
#include "kernels/rank_planes.h"

#include "kernels/rank_body.h"
#include "kernels/rank_planes_simd.h"
#include "runtime/base/bytes.h"

static const struct kvt_rank_ops *const registry[] = {
    &kvt_rank_ops_ref,
    &kvt_rank_ops_body,
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
        if (!registry[i]->is_for_checks && registry[i]->is_supported()) best = registry[i];
    return best;
}

uint64_t kvt_rank_choose(const uint32_t histogram[256], struct kvt_rank_table *ret_table)
{
    return kvt_rank_choose_body(histogram, ret_table);
}
