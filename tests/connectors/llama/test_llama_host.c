/* host: records in one mapping, in LRU order, against a list that does the same without cleverness. */
#include "connectors/llama/host.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/rng.h"

static struct kvt_key key_of(uint64_t i) { return (struct kvt_key){ i * 0x9e3779b97f4a7c15u, i }; }

static void fill(uint8_t *bytes, uint32_t length, uint64_t seed)
{
    for (uint32_t i = 0; i < length; i++) bytes[i] = (uint8_t)(seed * 31 + i * 7);
}

static void what_was_put_is_read_until_it_leaves(void **state)
{
    (void)state;
    enum { CAPACITY = 1 << 20, LENGTH_MAX = 150000, KEYS = 60 };
    struct kvt_llama_host *host;
    assert_int_equal(kvt_llama_host_create(CAPACITY, &host), KVT_OK);
    struct kvt_rng rng = { .state = 3 };
    uint32_t lengths[KEYS] = { 0 };
    uint8_t *bytes = malloc(LENGTH_MAX), *want = malloc(LENGTH_MAX);
    for (uint32_t round = 0; round < 20000; round++) {
        const uint64_t i = kvt_rng_below(&rng, KEYS);
        uint32_t entry = kvt_llama_host_find(host, key_of(i));
        if (entry == KVT_LLAMA_NO_ENTRY) {
            lengths[i] = 1 + (uint32_t)kvt_rng_below(&rng, LENGTH_MAX);
            fill(bytes, lengths[i], i);
            assert_int_not_equal(kvt_llama_host_put(host, key_of(i), bytes, lengths[i], KVT_LLAMA_CLEAN),
                                 KVT_LLAMA_NO_ENTRY);
        } else if (kvt_rng_below(&rng, 4) == 0) {
            kvt_llama_host_drop(host, entry);
        } else {
            uint32_t length;
            const uint8_t *found = kvt_llama_host_read(host, entry, &length);
            assert_int_equal(length, lengths[i]);
            fill(want, length, i);
            assert_memory_equal(found, want, length);
            kvt_llama_host_touch(host, entry);
        }
        if (round % 64 == 0) kvt_llama_host_verify(host);
        struct kvt_llama_host_stats stats;
        kvt_llama_host_stats(host, &stats);
        assert_true(stats.used_bytes <= CAPACITY && stats.peak_bytes <= CAPACITY);
    }
    kvt_llama_host_destroy(&host);
    free(bytes);
    free(want);
}

static void the_least_recently_used_leaves_first(void **state)
{
    (void)state;
    struct kvt_llama_host *host;
    uint8_t bytes[4096] = { 0 };
    assert_int_equal(kvt_llama_host_create(4 * sizeof bytes, &host), KVT_OK);
    for (uint64_t i = 0; i < 4; i++) (void)kvt_llama_host_put(host, key_of(i), bytes, sizeof bytes, KVT_LLAMA_CLEAN);
    kvt_llama_host_touch(host, kvt_llama_host_find(host, key_of(0)));
    (void)kvt_llama_host_put(host, key_of(9), bytes, sizeof bytes, KVT_LLAMA_CLEAN);
    assert_int_not_equal(kvt_llama_host_find(host, key_of(0)), KVT_LLAMA_NO_ENTRY);
    assert_int_equal(kvt_llama_host_find(host, key_of(1)), KVT_LLAMA_NO_ENTRY);
    kvt_llama_host_destroy(&host);
}

static void what_is_not_written_yet_does_not_leave(void **state)
{
    (void)state;
    struct kvt_llama_host *host;
    uint8_t bytes[4096] = { 0 };
    assert_int_equal(kvt_llama_host_create(2 * sizeof bytes, &host), KVT_OK);
    (void)kvt_llama_host_put(host, key_of(1), bytes, sizeof bytes, KVT_LLAMA_DIRTY);
    const uint32_t writing = kvt_llama_host_put(host, key_of(2), bytes, sizeof bytes, KVT_LLAMA_WRITING);
    assert_int_equal(kvt_llama_host_put(host, key_of(3), bytes, sizeof bytes, KVT_LLAMA_CLEAN), KVT_LLAMA_NO_ENTRY);
    assert_int_equal(kvt_llama_host_dirty(host, KVT_LLAMA_NO_ENTRY), kvt_llama_host_find(host, key_of(1)));
    kvt_llama_host_set_clean(host, writing, KVT_LLAMA_CLEAN);
    assert_int_not_equal(kvt_llama_host_put(host, key_of(3), bytes, sizeof bytes, KVT_LLAMA_CLEAN), KVT_LLAMA_NO_ENTRY);
    assert_int_equal(kvt_llama_host_find(host, key_of(2)), KVT_LLAMA_NO_ENTRY);
    kvt_llama_host_destroy(&host);
}

static void bytes_that_changed_in_memory_are_not_given_out(void **state)
{
    (void)state;
    struct kvt_llama_host *host;
    uint8_t bytes[100] = { 1, 2, 3 };
    uint32_t length;
    assert_int_equal(kvt_llama_host_create(1 << 16, &host), KVT_OK);
    const uint32_t entry = kvt_llama_host_put(host, key_of(5), bytes, sizeof bytes, KVT_LLAMA_CLEAN);
    ((uint8_t *)(uintptr_t)kvt_llama_host_bytes(host, entry, &length))[50] ^= 4;
    assert_null(kvt_llama_host_read(host, entry, &length));
    assert_int_equal(kvt_llama_host_find(host, key_of(5)), KVT_LLAMA_NO_ENTRY);
    kvt_llama_host_destroy(&host);
}

static void b64_a_record_larger_than_host_memory_makes_nothing_leave(void **state)
{
    (void)state;
    struct kvt_llama_host *host;
    uint8_t bytes[3 * 4096] = { 0 };
    assert_int_equal(kvt_llama_host_create(2 * 4096, &host), KVT_OK);
    (void)kvt_llama_host_put(host, key_of(1), bytes, 4096, KVT_LLAMA_CLEAN);
    assert_int_equal(kvt_llama_host_put(host, key_of(2), bytes, sizeof bytes, KVT_LLAMA_CLEAN), KVT_LLAMA_NO_ENTRY);
    assert_int_not_equal(kvt_llama_host_find(host, key_of(1)), KVT_LLAMA_NO_ENTRY);
    kvt_llama_host_destroy(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_read_until_it_leaves),
        cmocka_unit_test(the_least_recently_used_leaves_first),
        cmocka_unit_test(what_is_not_written_yet_does_not_leave),
        cmocka_unit_test(bytes_that_changed_in_memory_are_not_given_out),
        cmocka_unit_test(b64_a_record_larger_than_host_memory_makes_nothing_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
