/* quantise: the errors that its header states, what is not finite, and the same bytes when it is done again. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quantise.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32 };

/* IEEE 754 by the book: what an element is worth. */
static double value_of(enum kvt_dtype dtype, const uint8_t *page, size_t index)
{
    if (dtype == KVT_DTYPE_FP32) {
        float value;
        memcpy(&value, page + 4 * index, sizeof value);
        return (double)value;
    }
    const uint16_t bits = kvt_load_u16(page + 2 * index);
    if (dtype == KVT_DTYPE_BF16) {
        const uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return (double)value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

static void set_bits(enum kvt_dtype dtype, uint8_t *page, size_t index, uint32_t bits)
{
    if (dtype == KVT_DTYPE_FP32) kvt_store_u32(page + 4 * index, bits);
    else kvt_store_u16(page + 2 * index, (uint16_t)bits);
}

struct page {
    struct kvt_quant_shape shape;
    uint8_t *source, *codes, *scales, *back, *codes_again, *scales_again;
};

static void page_init(struct page *p, enum kvt_dtype dtype, enum kvt_quant_code code, uint32_t rows, uint32_t width)
{
    const size_t elements = (size_t)rows * width;
    *p = (struct page){ .shape = { .dtype = dtype, .code = code, .rows = rows, .width = width },
                        .source = kvt_alloc(4, elements),
                        .codes = kvt_alloc(1, elements),
                        .scales = kvt_alloc(1, rows),
                        .back = kvt_alloc(4, elements),
                        .codes_again = kvt_alloc(1, elements),
                        .scales_again = kvt_alloc(1, rows) };
    assert_true(p->source && p->codes && p->scales && p->back && p->codes_again && p->scales_again);
}

static void page_done(struct page *p)
{
    kvt_free(p->source);
    kvt_free(p->codes);
    kvt_free(p->scales);
    kvt_free(p->back);
    kvt_free(p->codes_again);
    kvt_free(p->scales_again);
}

/* There, back, and there again. */
static void round_trip(struct page *p, const struct kvt_quant_ops *ops)
{
    ops->quantise(&p->shape, p->source, p->codes, p->scales);
    ops->dequantise(&p->shape, p->codes, p->scales, p->back);
    ops->quantise(&p->shape, p->back, p->codes_again, p->scales_again);
}

/* The bounds of the header, for every element; and that the scale is no larger than it says. */
static void check_bounds(const struct page *p)
{
    const int least = p->shape.dtype != KVT_DTYPE_FP16 ? -117 : p->shape.code == KVT_QUANT_FP8 ? -15 : -24;
    for (uint32_t r = 0; r < p->shape.rows; r++) {
        const size_t first = (size_t)r * p->shape.width;
        double largest = 0;
        for (size_t i = first; i < first + p->shape.width; i++) {
            const double x = value_of(p->shape.dtype, p->source, i);
            if (isfinite(x) && fabs(x) > largest) largest = fabs(x);
        }
        const int k = p->scales[r] - 127;
        assert_true(k >= least);
        if (k > least && p->shape.code == KVT_QUANT_INT8) assert_true(ldexp(1, k - 1) <= largest / 127.5);
        if (k > least && p->shape.code == KVT_QUANT_FP8) assert_true(ldexp(1, k - 10) <= largest / 237568);
        for (size_t i = first; i < first + p->shape.width; i++) {
            const double x = value_of(p->shape.dtype, p->source, i), back = value_of(p->shape.dtype, p->back, i);
            if (!isfinite(x)) {
                assert_true(isnan(back));
                continue;
            }
            if (fabs(x) < ldexp(1, -126)) {
                assert_true(back == 0);
                continue;
            }
            const double bound = p->shape.code == KVT_QUANT_INT8 ? ldexp(1, k - 1)
                                                                 : fmax(fabs(x) / 16, ldexp(1, k - 10));
            assert_true(fabs(x - back) <= bound);
        }
    }
}

static void check_replay(const struct page *p)
{
    assert_memory_equal(p->codes, p->codes_again, (size_t)p->shape.rows * p->shape.width);
    assert_memory_equal(p->scales, p->scales_again, p->shape.rows);
}

/* Every bit pattern of the two short types is the row's largest once, its only one once, and a neighbour often. */
static void each_value_of_bf16_and_fp16_keeps_the_bounds_and_replays(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < 2; d++)
        for (uint32_t code = 0; code < 2; code++)
            for (uint32_t width = 1; width <= 8; width += 7) {
                struct page p;
                page_init(&p, dtypes[d], (enum kvt_quant_code)code, 65536 / width, width);
                for (uint32_t i = 0; i < 65536; i++) set_bits(dtypes[d], p.source, i, i * 40503u & 0xffff);
                for (uint32_t o = 1; kvt_quant_ops_at(o); o++) {
                    if (!kvt_quant_ops_at(o)->is_supported()) continue;
                    round_trip(&p, kvt_quant_ops_at(o));
                    check_bounds(&p);
                    check_replay(&p);
                }
                page_done(&p);
            }
}

static void rows_of_any_magnitude_keep_the_bounds_and_replay(void **state)
{
    (void)state;
    struct kvt_rng rng = { 11 };
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
        for (uint32_t code = 0; code < 2; code++) {
            struct page p;
            page_init(&p, dtypes[d], (enum kvt_quant_code)code, 512, 80);
            for (uint32_t i = 0; i < 512 * 80; i++) {
                /* A row's exponents lie within 16 of a place that moves with the row, over the whole range. */
                const uint32_t row = i / 80, noise = (uint32_t)kvt_rng_next(&rng), down = noise >> 24 & 15;
                const uint32_t top = dtypes[d] == KVT_DTYPE_FP16 ? row % 31 : row % 255;
                const uint32_t exponent = top > down ? top - down : 0;
                set_bits(dtypes[d], p.source, i,
                         dtypes[d] == KVT_DTYPE_FP32       ? (noise & 0x807fffff) | exponent << 23
                             : dtypes[d] == KVT_DTYPE_BF16 ? (noise & 0x807f) | exponent << 7
                                                           : (noise & 0x83ff) | exponent << 10);
            }
            for (uint32_t o = 0; kvt_quant_ops_at(o); o++) {
                if (!kvt_quant_ops_at(o)->is_supported()) continue;
                round_trip(&p, kvt_quant_ops_at(o));
                check_bounds(&p);
                check_replay(&p);
            }
            page_done(&p);
        }
}

/* A NaN or an infinity says so afterwards, and its neighbours are what they are without it. */
static void what_is_not_finite_becomes_nan_and_leaves_its_row_alone(void **state)
{
    (void)state;
    const uint32_t infinity[] = { 0x7f80, 0x7c00, 0x7f800000 }, nan[] = { 0x7fc1, 0x7d01, 0x7f800001 };
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
        for (uint32_t code = 0; code < 2; code++) {
            struct page with, without;
            page_init(&with, dtypes[d], (enum kvt_quant_code)code, 1, 64);
            page_init(&without, dtypes[d], (enum kvt_quant_code)code, 1, 64);
            const uint32_t one[] = { 0x3f80, 0x3c00, 0x3f800000 },
                           sign = dtypes[d] == KVT_DTYPE_FP32 ? 1u << 31 : 0x8000;
            for (uint32_t i = 0; i < 64; i++) {
                set_bits(dtypes[d], without.source, i, i % 9 ? one[d] + 11 * i : 0);
                set_bits(dtypes[d], with.source, i, i % 9 ? one[d] + 11 * i : i % 2 ? infinity[d] : nan[d] | sign);
            }
            for (uint32_t o = 0; kvt_quant_ops_at(o); o++) {
                if (!kvt_quant_ops_at(o)->is_supported()) continue;
                round_trip(&with, kvt_quant_ops_at(o));
                round_trip(&without, kvt_quant_ops_at(o));
                check_replay(&with);
                assert_int_equal(with.scales[0], without.scales[0]);
                for (uint32_t i = 0; i < 64; i++) {
                    if (i % 9) {
                        assert_int_equal(with.codes[i], without.codes[i]);
                        continue;
                    }
                    assert_true(isnan(value_of(dtypes[d], with.back, i)));
                    if (code == KVT_QUANT_FP8) assert_int_equal(with.codes[i], i % 2 ? 0x7f : 0xff);
                    else assert_int_equal(with.codes[i], 0x80);
                }
            }
            page_done(&with);
            page_done(&without);
        }
}

static void published_e4m3_codes_come_out(void **state)
{
    (void)state;
    /* OCP 8-bit floating point: largest 448, least normal 2^-6, least 2^-9, ties to even; the row's 448 makes k 0. */
    const struct {
        float value;
        uint8_t code;
    } known[] = { { 448, 0x7e },      { -448, 0xfe },     { 0x1p-6f, 0x08 }, { 0x1p-9f, 0x01 },
                  { 0x1p-10f, 0x00 }, { 0x3p-10f, 0x02 }, { 1, 0x38 },       { -1.5f, 0xbc },
                  { 17, 0x58 },       { 19, 0x5a },       { -0.0f, 0x80 } };
    const uint32_t count = KVT_ARRAY_COUNT(known);
    struct page p;
    page_init(&p, KVT_DTYPE_FP32, KVT_QUANT_FP8, 1, count);
    for (uint32_t i = 0; i < count; i++) memcpy(p.source + 4 * (size_t)i, &known[i].value, 4);
    for (uint32_t o = 0; kvt_quant_ops_at(o); o++) {
        if (!kvt_quant_ops_at(o)->is_supported()) continue;
        round_trip(&p, kvt_quant_ops_at(o));
        assert_int_equal(p.scales[0], 127);
        for (uint32_t i = 0; i < count; i++) assert_int_equal(p.codes[i], known[i].code);
    }
    page_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_value_of_bf16_and_fp16_keeps_the_bounds_and_replays),
        cmocka_unit_test(rows_of_any_magnitude_keep_the_bounds_and_replay),
        cmocka_unit_test(what_is_not_finite_becomes_nan_and_leaves_its_row_alone),
        cmocka_unit_test(published_e4m3_codes_come_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
