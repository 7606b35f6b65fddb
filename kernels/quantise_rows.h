/* quantise_rows: the rows of a page by quantise_body.h, for the compiler to make SIMD of. Private to kernels/. */
#ifndef KVT_KERNELS_QUANTISE_ROWS_H
#define KVT_KERNELS_QUANTISE_ROWS_H

#include "kernels/quantise_body.h"

#define KVT_QUANT_INLINE static inline __attribute__((always_inline))

KVT_QUANT_INLINE void kvt_quant_rows(enum kvt_dtype dtype, enum kvt_quant_code code, uint32_t rows, uint32_t width,
                                     const uint8_t *restrict page, uint8_t *restrict ret_codes,
                                     uint8_t *restrict ret_scales)
{
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *row = page + (size_t)r * width * (dtype == KVT_DTYPE_FP32 ? 4 : 2);
        uint8_t *codes = ret_codes + (size_t)r * width;
        uint32_t largest = 0;
        for (uint32_t i = 0; i < width; i++) {
            const uint32_t key = kvt_quant_key(dtype, row, i);
            largest = key > largest ? key : largest;
        }
        const int32_t k = kvt_quant_exponent(dtype, code, kvt_quant_magnitude(dtype, largest));
        const float power = kvt_quant_power(-k);
        ret_scales[r] = (uint8_t)(k + 127);
        for (uint32_t i = 0; i < width; i++)
            codes[i] = (uint8_t)kvt_quant_encode(code, kvt_quant_load(dtype, row, i), power);
    }
}

KVT_QUANT_INLINE void kvt_quant_rows_back(enum kvt_dtype dtype, enum kvt_quant_code code, uint32_t rows, uint32_t width,
                                          const uint8_t *restrict all_codes, const uint8_t *restrict scales,
                                          uint8_t *restrict ret_page)
{
    for (uint32_t r = 0; r < rows; r++) {
        uint8_t *row = ret_page + (size_t)r * width * (dtype == KVT_DTYPE_FP32 ? 4 : 2);
        const uint8_t *codes = all_codes + (size_t)r * width;
        const float power = kvt_quant_power((int32_t)scales[r] - 127);
        for (uint32_t i = 0; i < width; i++) kvt_quant_store(dtype, row, i, kvt_quant_decode(code, codes[i], power));
    }
}

/* The two functions of an implementation, each type and code with a loop of its own. */
#define KVT_QUANT_FUNCTIONS                                                                                  \
    static void quantise(const struct kvt_quant_shape *shape, const uint8_t *page, uint8_t *ret_codes,       \
                         uint8_t *ret_scales)                                                                \
    {                                                                                                        \
        KVT_QUANT_EACH(kvt_quant_rows, page, ret_codes, ret_scales)                                          \
    }                                                                                                        \
    static void dequantise(const struct kvt_quant_shape *shape, const uint8_t *codes, const uint8_t *scales, \
                           uint8_t *ret_page)                                                                \
    {                                                                                                        \
        KVT_QUANT_EACH(kvt_quant_rows_back, codes, scales, ret_page)                                         \
    }
#define KVT_QUANT_EACH(rows_fn, a, b, c)                           \
    KVT_QUANT_IF(rows_fn, KVT_DTYPE_BF16, KVT_QUANT_FP8, a, b, c)  \
    KVT_QUANT_IF(rows_fn, KVT_DTYPE_BF16, KVT_QUANT_INT8, a, b, c) \
    KVT_QUANT_IF(rows_fn, KVT_DTYPE_FP16, KVT_QUANT_FP8, a, b, c)  \
    KVT_QUANT_IF(rows_fn, KVT_DTYPE_FP16, KVT_QUANT_INT8, a, b, c) \
    KVT_QUANT_IF(rows_fn, KVT_DTYPE_FP32, KVT_QUANT_FP8, a, b, c)  \
    KVT_QUANT_IF(rows_fn, KVT_DTYPE_FP32, KVT_QUANT_INT8, a, b, c)
#define KVT_QUANT_IF(rows_fn, d, q, a, b, c) \
    if (shape->dtype == (d) && shape->code == (q)) rows_fn(d, q, shape->rows, shape->width, a, b, c);

#endif
