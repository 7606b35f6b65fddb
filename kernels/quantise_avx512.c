/* quantise in SIMD: the compiler's, from the arithmetic that all implementations share. */
#if defined(__x86_64__)

#include "kernels/quantise_rows.h"
#include "kernels/rank_planes_simd.h"

KVT_QUANT_FUNCTIONS

extern const struct kvt_quant_ops kvt_quant_ops_avx512;
const struct kvt_quant_ops kvt_quant_ops_avx512 = {
    .name = "avx512",
    .is_supported = kvt_rank_is_avx512_here,
    .quantise = quantise,
    .dequantise = dequantise,
};

#endif
