/* crc32c: every way gives the published numbers, and all ways give the same ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

/* RFC 3720, B.4, and the usual check value. */
static void published_values_come_out_of_every_way(void **state)
{
    (void)state;
    uint8_t zeros[32] = { 0 }, ones[32], rising[32];
    memset(ones, 0xff, sizeof ones);
    for (uint8_t i = 0; i < 32; i++) rising[i] = i;
    for (int w = 0; w < KVT_CRC32C_WAYS; w++) {
        const enum kvt_crc32c_way way = (enum kvt_crc32c_way)w;
        if (!kvt_crc32c_has(way)) {
            print_message("skipped: this CPU has no %s\n", kvt_crc32c_name(way));
            continue;
        }
        assert_int_equal(kvt_crc32c_by(way, 0, "123456789", 9), 0xe3069283);
        assert_int_equal(kvt_crc32c_by(way, 0, zeros, 32), 0x8a9136aa);
        assert_int_equal(kvt_crc32c_by(way, 0, ones, 32), 0x62a8ab43);
        assert_int_equal(kvt_crc32c_by(way, 0, rising, 32), 0x46dd794e);
        assert_int_equal(kvt_crc32c_by(way, 0, "", 0), 0);
    }
}

enum { BYTES = 5000 };

static void all_ways_agree_on_every_length_and_alignment(void **state)
{
    (void)state;
    uint8_t bytes[BYTES + 64];
    struct kvt_rng rng = { 7 };
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)kvt_rng_next(&rng);
    for (size_t size = 0; size < BYTES; size += size < 1200 ? 1 : 97) {
        const uint8_t *start = bytes + kvt_rng_below(&rng, 64);
        const uint32_t before = (uint32_t)kvt_rng_next(&rng);
        const uint32_t wanted = kvt_crc32c_by(KVT_CRC32C_TABLES, before, start, size);
        for (int w = 1; w < KVT_CRC32C_WAYS; w++)
            if (kvt_crc32c_has((enum kvt_crc32c_way)w))
                assert_int_equal(kvt_crc32c_by((enum kvt_crc32c_way)w, before, start, size), wanted);
        assert_int_equal(kvt_crc32c(before, start, size), wanted);
    }
}

static void a_message_may_come_in_pieces(void **state)
{
    (void)state;
    uint8_t bytes[BYTES];
    struct kvt_rng rng = { 8 };
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)kvt_rng_next(&rng);
    const uint32_t whole = kvt_crc32c(0, bytes, BYTES);
    for (int round = 0; round < 200; round++) {
        const size_t cut = (size_t)kvt_rng_below(&rng, BYTES + 1);
        assert_int_equal(kvt_crc32c(kvt_crc32c(0, bytes, cut), bytes + cut, BYTES - cut), whole);
    }
}

static void a_copy_is_exact_and_has_the_same_sum(void **state)
{
    (void)state;
    const size_t size = 100003;
    uint8_t *source = kvt_alloc(1, size), *target = kvt_alloc(1, size + 2);
    assert_non_null(source);
    assert_non_null(target);
    struct kvt_rng rng = { 9 };
    for (size_t i = 0; i < size; i++) source[i] = (uint8_t)kvt_rng_next(&rng);
    target[0] = target[size + 1] = 0xa5;
    assert_int_equal(kvt_crc32c_copy(5, target + 1, source, size), kvt_crc32c(5, source, size));
    assert_memory_equal(target + 1, source, size);
    assert_int_equal(target[0], 0xa5);
    assert_int_equal(target[size + 1], 0xa5);
    kvt_free(source);
    kvt_free(target);
}

static void any_flipped_bit_changes_the_sum(void **state)
{
    (void)state;
    uint8_t bytes[700] = { 1, 2, 3 };
    const uint32_t before = kvt_crc32c(0, bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(kvt_crc32c(0, bytes, sizeof bytes), before);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values_come_out_of_every_way),
        cmocka_unit_test(all_ways_agree_on_every_length_and_alignment),
        cmocka_unit_test(a_message_may_come_in_pieces),
        cmocka_unit_test(a_copy_is_exact_and_has_the_same_sum),
        cmocka_unit_test(any_flipped_bit_changes_the_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
