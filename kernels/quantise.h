/*
 * quantise: pages of bf16, fp16 or fp32 as bytes with scales, and back: a lossy form, for whoever asks for it by a
 * setting of its own. The form has a namespace of its own, so that its blocks never match others.
 *
 * A page is rows of `width` elements: a row is what one KV head has for one token, width its head_dim. Each row has a
 * scale, a power of two 2^k, kept as the byte k + 127 (E8M0). A code times the scale is the value:
 *
 *     fp8   e4m3 (OCP): up to 448; codes 0x7f and 0xff are NaN
 *     int8  -127 to 127; code 0x80 is NaN
 *
 * k is the smallest with which no element of the row rounds to more than the largest code, and not below a least one:
 * -117; for fp16 pages -15 (fp8) or -24 (int8), so that a code times a scale is always a value of the page's type.
 *
 * Errors, x an element, x' what comes back, m the largest magnitude of its row, k not the least one:
 *
 *     int8  |x - x'| <= 2^(k-1) <= m / 127.5
 *     fp8   |x - x'| <= max(|x| / 16, 2^(k-10)), and 2^(k-10) <= m / 237568
 *
 * With the least k the middle terms hold, the others do not. Rounding is to nearest, ties to even. A code times a scale
 * beyond the type's range is its largest finite value, which is nearer to x.
 *
 * Not finite: a NaN or an infinity becomes NaN (its sign stays in fp8), and the scale is that of the row's finite
 * elements. Magnitudes below 2^-126 (fp32's and bf16's subnormals) count as 0, so that no processor mode matters. The
 * sign of a zero stays in fp8, not in int8.
 *
 * Replay: quantising what dequantise gave makes the same codes and scales, for every input.
 *
 * Implementations: quantise_ref.c is the specification, the others write the same bytes.
 * Thread:  any, no state. Memory: the caller's; sources and targets do not overlap; any alignment.
 */
#ifndef KVT_KERNELS_QUANTISE_H
#define KVT_KERNELS_QUANTISE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/shape.h"

enum kvt_quant_code { KVT_QUANT_FP8, KVT_QUANT_INT8 };

struct kvt_quant_shape {
    enum kvt_dtype dtype; /* of the page: bf16, fp16 or fp32 */
    enum kvt_quant_code code;
    uint32_t rows, width;
};

/* A page and its lossy form, as a row of the table that the GPU kernels take. */
struct kvt_quant_page {
    struct kvt_quant_shape shape;
    uint8_t *page, *codes, *scales;
};

struct kvt_quant_ops {
    const char *name;
    bool (*is_supported)(void); /* by this machine */
    /* rows * width codes, rows scales */
    void (*quantise)(const struct kvt_quant_shape *shape, const uint8_t *page, uint8_t *ret_codes, uint8_t *ret_scales);
    void (*dequantise)(const struct kvt_quant_shape *shape, const uint8_t *codes, const uint8_t *scales,
                       uint8_t *ret_page);
};

/* The fastest one that this machine supports. */
const struct kvt_quant_ops *kvt_quant_ops_best(void);
/* The i-th that is built in, the reference first; NULL past the end. It may be unsupported here. */
const struct kvt_quant_ops *kvt_quant_ops_at(uint32_t i);

extern const struct kvt_quant_ops kvt_quant_ops_ref;
extern const struct kvt_quant_ops kvt_quant_ops_body; /* the GPU's thread body in a loop */

#endif
