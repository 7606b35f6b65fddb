/*
 * quantise_body: the arithmetic of quantise on the bits of floats, one source for the GPU, for SIMD and for plain C.
 *
 * An element comes as the bits of an fp32, exactly. Multiplications are by powers of two and exact, but for results that
 * round to code 0 anyway: so neither fused operations nor flushed subnormals make a difference.
 */
#ifndef KVT_KERNELS_QUANTISE_BODY_H
#define KVT_KERNELS_QUANTISE_BODY_H

#if !defined(__CUDACC__)
#include <string.h>
#endif

#include "kernels/body.h"
#include "kernels/quantise.h"

#define KVT_QUANT_INFINITY 0x7f800000u
#define KVT_QUANT_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer in the low bits */

KVT_BODY float kvt_quant_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

KVT_BODY uint32_t kvt_quant_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 2^k for k in -126 .. 127. */
KVT_BODY float kvt_quant_power(int32_t k) { return kvt_quant_float((uint32_t)(k + 127) << 23); }

/* ---- Elements as the bits of fp32 ------------------------------------------------------------------------------ */

/* Subnormals of fp32 are zeros of their sign. */
KVT_BODY uint32_t kvt_quant_flush(uint32_t bits)
{
    return (bits & KVT_QUANT_INFINITY) == 0 ? bits & 0x80000000u : bits;
}

KVT_BODY uint32_t kvt_quant_from_fp16(uint32_t half)
{
    const uint32_t sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t small = kvt_quant_bits((float)(int32_t)magnitude * kvt_quant_power(-24));
    const uint32_t finite = magnitude < 0x400 ? small : normal;
    return sign | (magnitude >= 0x7c00 ? KVT_QUANT_INFINITY : finite);
}

KVT_BODY uint32_t kvt_quant_load(enum kvt_dtype dtype, const uint8_t *page, uint64_t index)
{
    if (dtype == KVT_DTYPE_FP32) {
        uint32_t bits;
        memcpy(&bits, page + 4 * index, sizeof bits);
        return kvt_quant_flush(bits);
    }
    uint16_t bits;
    memcpy(&bits, page + 2 * index, sizeof bits);
    if (dtype == KVT_DTYPE_FP16) return kvt_quant_from_fp16(bits);
    return kvt_quant_flush((uint32_t)bits << 16);
}

/* bits: a value of fp16, a magnitude beyond them, or NaN. */
KVT_BODY uint32_t kvt_quant_to_fp16(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const uint32_t bounded = magnitude > 0x477fe000u ? 0x477fe000u : magnitude;
    const uint32_t small = (uint32_t)(int32_t)(kvt_quant_float(bounded < 0x38800000u ? bounded : 0)
                                               * kvt_quant_power(24));
    const uint32_t finite = bounded < 0x38800000u ? small : (bounded - (112u << 23)) >> 13;
    return sign | (magnitude > KVT_QUANT_INFINITY ? 0x7e00 : finite);
}

KVT_BODY void kvt_quant_store(enum kvt_dtype dtype, uint8_t *page, uint64_t index, uint32_t bits)
{
    const uint32_t magnitude = bits & 0x7fffffff, sign = bits & 0x80000000u;
    if (dtype == KVT_DTYPE_FP16) {
        const uint16_t half = (uint16_t)kvt_quant_to_fp16(bits);
        memcpy(page + 2 * index, &half, sizeof half);
        return;
    }
    const uint32_t largest = dtype == KVT_DTYPE_BF16 ? 0x7f7f0000u : 0x7f7fffffu;
    const uint32_t finite = magnitude > largest ? largest : magnitude;
    const uint32_t value = sign | (magnitude > KVT_QUANT_INFINITY ? 0x7fc00000u : finite);
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(page + 4 * index, &value, sizeof value);
        return;
    }
    const uint16_t upper = (uint16_t)(value >> 16);
    memcpy(page + 2 * index, &upper, sizeof upper);
}

/* ---- Scales ---------------------------------------------------------------------------------------------------- */

/*
 * What an element says about its row's scale: its magnitude in the type's own bits, which sort as the magnitudes do; 0
 * when it is not finite. No branch, so that a maximum of them is SIMD.
 */
KVT_BODY uint32_t kvt_quant_key(enum kvt_dtype dtype, const uint8_t *page, uint64_t index)
{
    if (dtype == KVT_DTYPE_FP32) {
        uint32_t bits;
        memcpy(&bits, page + 4 * index, sizeof bits);
        bits &= 0x7fffffff;
        return bits & (0u - (uint32_t)(bits < KVT_QUANT_INFINITY));
    }
    uint16_t bits;
    memcpy(&bits, page + 2 * index, sizeof bits);
    const uint32_t magnitude = bits & 0x7fff;
    return magnitude & (0u - (uint32_t)(magnitude < (dtype == KVT_DTYPE_BF16 ? 0x7f80u : 0x7c00u)));
}

/* The bits of fp32 of the magnitude that a key stands for. */
KVT_BODY uint32_t kvt_quant_magnitude(enum kvt_dtype dtype, uint32_t key)
{
    return dtype == KVT_DTYPE_FP32 ? key : dtype == KVT_DTYPE_BF16 ? key << 16 : kvt_quant_from_fp16(key);
}

KVT_BODY int32_t kvt_quant_least(enum kvt_dtype dtype, enum kvt_quant_code code)
{
    if (dtype != KVT_DTYPE_FP16) return -117;
    return code == KVT_QUANT_FP8 ? -15 : -24;
}

/*
 * k for a row whose largest magnitude has these bits. With f in [1, 2) its fraction and e its exponent: fp8 goes up to
 * 464 = 1.8125 * 2^8, from where on it would round past 448; int8 to below 127.5 = 1.9921875 * 2^6.
 */
KVT_BODY int32_t kvt_quant_exponent(enum kvt_dtype dtype, enum kvt_quant_code code, uint32_t magnitude)
{
    const int32_t e = (int32_t)(magnitude >> 23) - 127;
    const uint32_t fraction = magnitude & 0x7fffff;
    const int32_t k = code == KVT_QUANT_FP8 ? e - 8 + (fraction > 0x680000u) : e - 6 + (fraction >= 0x7f0000u);
    const int32_t least = kvt_quant_least(dtype, code);
    return k < least ? least : k;
}

/* ---- Codes ----------------------------------------------------------------------------------------------------- */

/* power: 2^-k. */
KVT_BODY uint32_t kvt_quant_encode(enum kvt_quant_code code, uint32_t bits, float power)
{
    const bool is_nan = (bits & 0x7fffffff) >= KVT_QUANT_INFINITY;
    const float scaled = kvt_quant_float(is_nan ? 0 : bits) * power;
    if (code == KVT_QUANT_INT8)
        return is_nan ? 0x80 : (kvt_quant_bits(scaled + KVT_QUANT_MAGIC) - kvt_quant_bits(KVT_QUANT_MAGIC)) & 0xff;
    const uint32_t magnitude = kvt_quant_bits(scaled) & 0x7fffffff, sign = bits >> 24 & 0x80;
    const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - 960;
    /* Below 2^-6 steps are 2^-9. Larger ones are kept out of the sum, which would not hold them. */
    const float small = kvt_quant_float(magnitude < 0x3c800000u ? magnitude : 0) * 512.0f + KVT_QUANT_MAGIC;
    const uint32_t steps = kvt_quant_bits(small) - kvt_quant_bits(KVT_QUANT_MAGIC);
    const uint32_t finite = magnitude < 0x3c800000u ? steps : normal;
    return (sign | (is_nan ? 0x7f : finite)) & 0xff;
}

/* power: 2^k. The bits of the value; NaN and beyond the range of fp32 as they are. */
KVT_BODY uint32_t kvt_quant_decode(enum kvt_quant_code code, uint32_t byte, float power)
{
    if (code == KVT_QUANT_INT8)
        return byte == 0x80 ? 0x7fc00000u : kvt_quant_bits((float)(int32_t)(int8_t)(uint8_t)byte * power);
    const uint32_t sign = (byte & 0x80) << 24, magnitude = byte & 0x7f;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t small = kvt_quant_bits((float)(int32_t)magnitude * kvt_quant_power(-9));
    const float value = kvt_quant_float(magnitude < 8 ? small : normal) * power;
    return sign | (magnitude == 0x7f ? 0x7fc00000u : kvt_quant_bits(value));
}

#endif
