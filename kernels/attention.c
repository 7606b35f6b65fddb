/* The registry of attention, and the merge, which is the same for all. */
#include "kernels/attention.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/attention_simd.h"
#include "runtime/base/bytes.h"

static const struct kvt_attention_ops *const registry[] = {
    &kvt_attention_ops_ref,
#if defined(__x86_64__)
    &kvt_attention_ops_avx2,
    &kvt_attention_ops_avx512,
#endif
};

#if defined(__x86_64__)
/* Not every compiler's __builtin_cpu_supports knows its name. */
static bool is_f16c_here(void)
{
    unsigned int a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

bool kvt_attention_is_avx2_here(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && is_f16c_here();
}

bool kvt_attention_is_avx512_here(void)
{
    return kvt_attention_is_avx2_here() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl");
}
#endif

const struct kvt_attention_ops *kvt_attention_ops_at(uint32_t i)
{
    return i < KVT_ARRAY_COUNT(registry) ? registry[i] : NULL;
}

const struct kvt_attention_ops *kvt_attention_ops_best(void)
{
    const struct kvt_attention_ops *best = &kvt_attention_ops_ref;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(registry); i++)
        if (registry[i]->is_supported()) best = registry[i];
    return best;
}

bool kvt_attention_is_valid(const struct kvt_attention *args)
{
    const bool is_float = args->dtype == KVT_DTYPE_BF16 || args->dtype == KVT_DTYPE_FP16
        || args->dtype == KVT_DTYPE_FP32;
    if (!is_float || args->head_dim == 0 || args->block_tokens == 0) return false;
    if (args->kv_heads == 0 || args->query_heads == 0 || args->query_heads % args->kv_heads != 0) return false;
    if (args->to > args->length) return false;
    return args->count == 0 || args->slots != NULL;
}

void kvt_attention_merge(uint32_t query_heads, uint32_t head_dim, float *into, float *into_lse, const float *from,
                         const float *from_lse)
{
    for (uint32_t head = 0; head < query_heads; head++) {
        const struct kvt_attention_share share = kvt_attention_share_of(into_lse[head], from_lse[head]);
        const uint64_t at = (uint64_t)head * head_dim;
        for (uint32_t d = 0; d < head_dim; d++) into[at + d] = share.into * into[at + d] + share.from * from[at + d];
        into_lse[head] = share.lse;
    }
}
