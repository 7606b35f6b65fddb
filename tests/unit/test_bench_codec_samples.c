/* bench_codec_samples: what stands beside a sample's ratios is that sample's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "tools/bench_codec_samples.h"
#include "tools/run/pages.h"

static const struct kvt_sample_ratios *find(const struct kvt_sample_ratios *ratios, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(ratios[i].name, name) == 0) return &ratios[i];
    return NULL;
}

/* Bits of an order-0 code of the exponents of a type with `bits` of them, of every element below size, in all. */
static double coded_bits(const uint8_t *bytes, size_t size, uint32_t element_bytes, uint32_t bits)
{
    double entropy = 0;
    for (uint32_t symbol = 0; symbol < 1u << bits; symbol++) {
        size_t count = 0;
        for (size_t at = 0; at < size; at += element_bytes) {
            const uint32_t element = element_bytes == 1 ? bytes[at] : (uint32_t)bytes[at] | (uint32_t)bytes[at + 1] << 8;
            count += (element >> (8 * element_bytes - 1 - bits) & ((1u << bits) - 1)) == symbol;
        }
        if (count > 0) entropy -= (double)count * log2((double)count * element_bytes / (double)size);
    }
    return entropy;
}

/* Goal: the figure is of the pages that are measured, the second half of each layer, and not of all or of others. */
static void the_order_0_figure_is_of_the_pages_that_are_measured(void **state)
{
    (void)state;
    static const struct {
        enum kvt_dtype dtype;
        const char *name;
        uint32_t exponent_bits;
    } types[] = { { KVT_DTYPE_BF16, "embedded bf16", 8 },
                  { KVT_DTYPE_FP16, "embedded fp16", 5 },
                  { KVT_DTYPE_FP8, "embedded fp8", 4 } };
    struct kvt_sample_ratios ratios[KVT_SAMPLE_RATIOS_MAX];
    assert_int_equal(setenv("KVTIER_SHARED", "/nonexistent", 1), 0);
    const uint32_t n = kvt_bench_sample_ratios(ratios);
    assert_int_equal(n, KVT_ARRAY_COUNT(types));
    for (size_t t = 0; t < KVT_ARRAY_COUNT(types); t++) {
        const struct kvt_sample_ratios *r = find(ratios, n, types[t].name);
        assert_non_null(r);
        const uint32_t element_bytes = kvt_dtype_bytes(types[t].dtype);
        const size_t page = (size_t)2 * KVT_PAGES_TOKENS * KVT_PAGES_CHANNELS * element_bytes;
        size_t size;
        const uint8_t *pages = kvt_pages(types[t].dtype, &size);
        const size_t layer = size / KVT_PAGES_LAYERS, page_count = layer / page;
        const size_t pages_a_chunk = kvt_min_u64(64 * 1024 / page, page_count / 2);
        double raw = 0, coded = 0;
        for (size_t l = 0; l < KVT_PAGES_LAYERS; l++) {
            for (size_t p = page_count / 2; p + pages_a_chunk <= page_count; p += pages_a_chunk) {
                const size_t bytes = pages_a_chunk * page;
                const double rest = (double)(bytes / element_bytes) * (8 * element_bytes - types[t].exponent_bits);
                coded += coded_bits(pages + l * layer + p * page, bytes, element_bytes, types[t].exponent_bits) + rest;
                raw += 8 * (double)bytes;
            }
        }
        assert_true(fabs(r->order0 - raw / coded) < 1e-9);
        assert_true(r->order0 > 1 && r->plain > 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_0_figure_is_of_the_pages_that_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
