/* mem: zeroed memory, refusals instead of overflow, and allocations that fail when a test asks for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

static bool is_all_zero(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != 0) return false;
    }
    return true;
}

static void memory_is_zeroed(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 3; round++) { /* again, so that memory given back dirty is among it */
        uint8_t *memory = kvt_alloc(100, 7);
        assert_non_null(memory);
        assert_true(is_all_zero(memory, 700));
        memset(memory, 0xff, 700);
        kvt_free(memory);
    }
    kvt_free(NULL);
}

static void no_bytes_are_still_memory_of_ones_own(void **state)
{
    (void)state;
    void *a = kvt_alloc(0, 8), *b = kvt_alloc(8, 0);
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);
    kvt_free(a);
    kvt_free(b);
}

static void a_product_that_overflows_is_refused(void **state)
{
    (void)state;
    volatile size_t huge = SIZE_MAX / 2; /* volatile: the compiler would warn about it */
    assert_null(kvt_alloc(huge, 4));
    uint8_t *memory = kvt_alloc(1, 16);
    assert_non_null(memory);
    memory[15] = 9;
    assert_null(kvt_realloc(memory, huge, 4));
    assert_int_equal(memory[15], 9);
    kvt_free(memory);
    assert_null(kvt_table_map(SIZE_MAX - 1));
}

static void growing_keeps_the_old_bytes(void **state)
{
    (void)state;
    uint32_t *memory = kvt_alloc(4, sizeof *memory);
    assert_non_null(memory);
    for (uint32_t i = 0; i < 4; i++) memory[i] = i + 1;
    uint32_t *grown = kvt_realloc(memory, 100000, sizeof *memory);
    assert_non_null(grown);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(grown[i], i + 1);
    kvt_free(grown);
}

static void a_table_is_zeroed_aligned_and_counted(void **state)
{
    (void)state;
    const uint64_t before = kvt_table_bytes();
    uint8_t *table = kvt_table_map(3 * KVT_MIB);
    assert_non_null(table);
    assert_true(kvt_is_aligned((uintptr_t)table, 2 * KVT_MIB));
    assert_int_equal(kvt_table_bytes() - before, 4 * KVT_MIB);
    assert_true(is_all_zero(table, 3 * KVT_MIB));
    table[3 * KVT_MIB - 1] = 1;
    kvt_table_unmap(table, 3 * KVT_MIB);
    assert_int_equal(kvt_table_bytes(), before);
    kvt_table_unmap(NULL, KVT_MIB);
    assert_int_equal(kvt_table_bytes(), before);
}

static void the_nth_allocation_fails_and_only_that_one(void **state)
{
    (void)state;
    void *kept = kvt_alloc(1, 1);
    kvt_alloc_fail_at(2);
    void *first = kvt_alloc(1, 1);
    assert_non_null(first);
    assert_null(kvt_strdup("x"));
    void *third = kvt_realloc(kept, 1, 2);
    assert_non_null(third);

    kvt_alloc_fail_at(1);
    assert_null(kvt_table_map(1));
    kvt_alloc_fail_at(1);
    assert_null(kvt_realloc(third, 1, 3));

    kvt_alloc_fail_at(1);
    kvt_alloc_fail_at(0);
    const uint64_t calls = kvt_alloc_calls();
    char *text = kvt_strdup("text");
    assert_string_equal(text, "text");
    assert_int_equal(kvt_alloc_calls() - calls, 1);
    kvt_free(text);
    kvt_free(first);
    kvt_free(third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed),
        cmocka_unit_test(no_bytes_are_still_memory_of_ones_own),
        cmocka_unit_test(a_product_that_overflows_is_refused),
        cmocka_unit_test(growing_keeps_the_old_bytes),
        cmocka_unit_test(a_table_is_zeroed_aligned_and_counted),
        cmocka_unit_test(the_nth_allocation_fails_and_only_that_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
