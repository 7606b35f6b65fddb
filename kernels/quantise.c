/* The registry of quantise, and the GPU's thread body on the CPU. */
#include "kernels/quantise.h"

#include "kernels/quantise_rows.h"
#include "runtime/base/bytes.h"

#if defined(__x86_64__)
extern const struct kvt_quant_ops kvt_quant_ops_avx2, kvt_quant_ops_avx512;
#endif

static const struct kvt_quant_ops *const registry[] = {
    &kvt_quant_ops_ref,
    &kvt_quant_ops_body,
#if defined(__x86_64__)
    &kvt_quant_ops_avx2,
    &kvt_quant_ops_avx512,
#endif
};

const struct kvt_quant_ops *kvt_quant_ops_at(uint32_t i) { return i < KVT_ARRAY_COUNT(registry) ? registry[i] : NULL; }

const struct kvt_quant_ops *kvt_quant_ops_best(void)
{
    const struct kvt_quant_ops *best = registry[0];
    for (uint32_t i = 1; i < KVT_ARRAY_COUNT(registry); i++)
        if (registry[i]->is_supported()) best = registry[i];
    return best;
}

static bool is_supported(void) { return true; }

KVT_QUANT_FUNCTIONS

const struct kvt_quant_ops kvt_quant_ops_body = {
    .name = "body",
    .is_supported = is_supported,
    .quantise = quantise,
    .dequantise = dequantise,
};
