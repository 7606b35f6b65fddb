/* pages: the embedded sample is there, whole, and looks like KV. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tools/run/pages.h"

static void each_sample_is_a_whole_number_of_blocks_in_every_layer(void **state)
{
    (void)state;
    const enum kvt_dtype types[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };
    for (size_t i = 0; i < 3; i++) {
        size_t bytes;
        const uint8_t *pages = kvt_pages(types[i], &bytes);
        const size_t block = (size_t)2 * KVT_PAGES_TOKENS * KVT_PAGES_CHANNELS * kvt_dtype_bytes(types[i]);
        assert_non_null(pages);
        assert_true(bytes >= KVT_PAGES_LAYERS * block);
        assert_int_equal(bytes % (KVT_PAGES_LAYERS * block), 0);
        assert_int_equal((uintptr_t)pages % 64, 0);
    }
}

static void types_without_a_sample_say_so(void **state)
{
    (void)state;
    size_t bytes = 1;
    assert_null(kvt_pages(KVT_DTYPE_FP32, &bytes));
    assert_int_equal(bytes, 0);
}

/* The exponents of bf16 KV sit in a narrow band: other bytes, or bytes out of step, would spread over all of it. */
static void bf16_exponents_sit_in_a_narrow_band(void **state)
{
    (void)state;
    size_t bytes;
    const uint8_t *pages = kvt_pages(KVT_DTYPE_BF16, &bytes);
    size_t in_band = 0;
    for (size_t i = 0; i < bytes; i += 2) {
        const unsigned exponent = ((unsigned)(pages[i + 1] << 1) | pages[i] >> 7) & 0xff;
        in_band += exponent >= 112 && exponent <= 136;
    }
    assert_true(in_band > bytes / 2 * 9 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sample_is_a_whole_number_of_blocks_in_every_layer),
        cmocka_unit_test(types_without_a_sample_say_so),
        cmocka_unit_test(bf16_exponents_sit_in_a_narrow_band),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
