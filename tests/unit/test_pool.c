/* The slots of a device pool: each belongs to one block or is free. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "runtime/pool.h"
#include "tests/unit/assert_fails.h"

enum { SLOTS = 37 };

static struct kvt_pool pool;

static int open_pool(void **state)
{
    (void)state;
    return kvt_pool_init(&pool, 4096, SLOTS, kvt_policy_find("lru"), 1) == KVT_OK ? 0 : -1;
}

static int close_pool(void **state)
{
    (void)state;
    kvt_pool_done(&pool);
    return 0;
}

static void all_slots_are_handed_out_once(void **state)
{
    (void)state;
    bool is_taken[SLOTS] = { false };
    for (uint32_t i = 0; i < SLOTS; i++) {
        const uint32_t slot = kvt_pool_take(&pool, 100 + i);
        assert_true(slot < SLOTS);
        assert_false(is_taken[slot]);
        is_taken[slot] = true;
        assert_int_equal(pool.slots[slot].owner, 100 + i);
        assert_int_equal(pool.free_count, SLOTS - 1 - i);
    }
    assert_int_equal(kvt_pool_take(&pool, 1), KVT_NO_SLOT);
    assert_int_equal(pool.used_peak, SLOTS);
}

/* Against a table that says who sits where. */
static void takes_and_gives_agree_with_a_table(void **state)
{
    (void)state;
    uint32_t owner[SLOTS];
    uint32_t used = 0, peak = 0;
    struct kvt_rng rng = { 7 };
    for (uint32_t i = 0; i < SLOTS; i++) owner[i] = KVT_NO_BLOCK;
    for (uint32_t n = 0; n < 20000; n++) {
        const uint32_t at = (uint32_t)kvt_rng_below(&rng, SLOTS);
        if (kvt_rng_below(&rng, 100) < 50 + 40 * (n / 1000 % 2)) {
            const uint32_t slot = kvt_pool_take(&pool, n);
            assert_int_equal(slot == KVT_NO_SLOT, used == SLOTS);
            if (slot == KVT_NO_SLOT) continue;
            assert_int_equal(owner[slot], KVT_NO_BLOCK);
            owner[slot] = n;
            used++;
        } else if (owner[at] != KVT_NO_BLOCK) {
            kvt_pool_give(&pool, at);
            owner[at] = KVT_NO_BLOCK;
            used--;
        }
        peak = used > peak ? used : peak;
        assert_int_equal(pool.free_count, SLOTS - used);
        assert_int_equal(pool.used_peak, peak);
    }
    for (uint32_t i = 0; i < SLOTS; i++) assert_int_equal(pool.slots[i].owner, owner[i]);
}

static void give(void *user) { kvt_pool_give(&pool, *(const uint32_t *)user); }

static void a_slot_is_not_given_back_twice(void **state)
{
    (void)state;
    uint32_t slot = kvt_pool_take(&pool, 1);
    (void)kvt_pool_take(&pool, 2);
    assert_false(asserts(give, &slot));
    assert_true(asserts(give, &slot));
    slot = SLOTS;
    assert_true(asserts(give, &slot));
    assert_int_equal(pool.free_count, SLOTS - 1);
}

static void a_slot_keeps_its_mark_from_owner_to_owner(void **state)
{
    (void)state;
    const uint32_t slot = kvt_pool_take(&pool, 1);
    pool.slots[slot].mark = kvt_mark_make(2, 77);
    kvt_pool_give(&pool, slot);
    assert_int_equal(kvt_pool_take(&pool, 2), slot);
    assert_int_equal(pool.slots[slot].mark, kvt_mark_make(2, 77)); /* what the old owner's kernels did may still run */
}

static void missing_memory_is_told_and_nothing_is_left(void **state)
{
    (void)state;
    const uint64_t mapped = kvt_table_bytes();
    for (uint64_t n = 1; n <= 4; n++) {
        struct kvt_pool other;
        kvt_alloc_fail_at(n);
        assert_int_equal(kvt_pool_init(&other, 4096, SLOTS, kvt_policy_find("lru"), 1), KVT_NOMEM);
        kvt_alloc_fail_at(0);
        kvt_pool_done(&other);
        assert_int_equal(kvt_table_bytes(), mapped);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_slots_are_handed_out_once, open_pool, close_pool),
        cmocka_unit_test_setup_teardown(takes_and_gives_agree_with_a_table, open_pool, close_pool),
        cmocka_unit_test_setup_teardown(a_slot_is_not_given_back_twice, open_pool, close_pool),
        cmocka_unit_test_setup_teardown(a_slot_keeps_its_mark_from_owner_to_owner, open_pool, close_pool),
        cmocka_unit_test(missing_memory_is_told_and_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
