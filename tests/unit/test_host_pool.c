/* The slots of host memory: classes, chunks that pass from one class to another, and a naive twin. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "runtime/host_pool.h"
#include "tests/unit/assert_fails.h"

enum { CHUNK = 16384, RAW_LARGE = 8192, RAW_SMALL = 2048, GROUPS = 2, TWIN_SLOTS = 512 };

struct fixture {
    struct kvt_host_tier *tier;
    struct kvt_host_pool pool;
};

static void open_fixture(struct fixture *f, uint32_t chunks)
{
    struct kvt_env env = kvt_env_default();
    env.is_single_threaded = true;
    const struct kvt_host_tier_config config = { .capacity_bytes = (uint64_t)chunks * CHUNK, .chunk_bytes = CHUNK };
    const uint32_t raw[GROUPS] = { RAW_LARGE, RAW_SMALL };
    assert_int_equal(kvt_host_tier_open(&config, &env, &f->tier), KVT_OK);
    assert_int_equal(kvt_host_pool_init(&f->pool, f->tier, CHUNK, raw, GROUPS, kvt_policy_find("lru"), 1), KVT_OK);
}

static void close_fixture(struct fixture *f)
{
    kvt_host_pool_done(&f->pool);
    kvt_host_tier_close(&f->tier);
}

static void a_chunk_is_cut_for_a_class_on_demand(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2);
    assert_int_equal(f.pool.free_chunks, 2);
    const uint32_t large = kvt_host_pool_take(&f.pool, RAW_LARGE, 1);
    assert_int_equal(f.pool.free_chunks, 1);
    const uint32_t small = kvt_host_pool_take(&f.pool, RAW_SMALL, 2);
    assert_int_equal(f.pool.free_chunks, 0);
    assert_int_equal(kvt_host_pool_slot_bytes(&f.pool, large), RAW_LARGE);
    assert_int_equal(kvt_host_pool_slot_bytes(&f.pool, small), RAW_SMALL);
    assert_int_equal(kvt_host_pool_owner(&f.pool, large), 1);
    assert_int_equal(kvt_host_pool_owner(&f.pool, small), 2);
    close_fixture(&f);
}

static void an_empty_chunk_passes_to_another_class(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 1);
    uint32_t small[CHUNK / RAW_SMALL];
    for (uint32_t i = 0; i < CHUNK / RAW_SMALL; i++) small[i] = kvt_host_pool_take(&f.pool, RAW_SMALL, i);
    assert_int_equal(kvt_host_pool_take(&f.pool, RAW_SMALL, 99), KVT_NO_SLOT);
    assert_false(kvt_host_pool_has_room(&f.pool, RAW_SMALL));
    for (uint32_t i = 0; i < CHUNK / RAW_SMALL; i++) {
        /* as long as one block is in the chunk */
        assert_int_equal(kvt_host_pool_take(&f.pool, RAW_LARGE, 99), KVT_NO_SLOT);
        kvt_host_pool_give(&f.pool, small[i]);
    }
    assert_true(kvt_host_pool_has_room(&f.pool, RAW_LARGE));
    assert_int_not_equal(kvt_host_pool_take(&f.pool, RAW_LARGE, 7), KVT_NO_SLOT);
    assert_int_not_equal(kvt_host_pool_take(&f.pool, RAW_LARGE, 8), KVT_NO_SLOT);
    assert_int_equal(kvt_host_pool_take(&f.pool, RAW_LARGE, 9), KVT_NO_SLOT);
    close_fixture(&f);
}

/* Who sits where, in the simplest way: a list of (slot, bytes, owner). */
struct twin {
    uint32_t slot, owner, bytes;
};

static void check_twin(const struct fixture *f, const struct twin *twin, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(kvt_host_pool_owner(&f->pool, twin[i].slot), twin[i].owner);
        const uint8_t *at = kvt_host_pool_address(&f->pool, twin[i].slot);
        const uint32_t slot_bytes = kvt_host_pool_slot_bytes(&f->pool, twin[i].slot);
        assert_true(slot_bytes >= twin[i].bytes);
        uint32_t first, in_chunk;
        kvt_host_pool_chunk_of(&f->pool, twin[i].slot, &first, &in_chunk);
        assert_true(twin[i].slot >= first);
        assert_true(twin[i].slot < first + in_chunk);
        /* Its bytes are its own: both ends still say whose they are. */
        assert_int_equal(kvt_load_u32(at), twin[i].owner);
        assert_int_equal(kvt_load_u32(at + slot_bytes - 4), twin[i].owner);
        bytes += slot_bytes;
    }
    assert_int_equal(f->pool.used_slots, count);
    assert_int_equal(f->pool.used_slot_bytes, bytes);
    assert_true(f->pool.chunk_bytes_used >= bytes);
    assert_true(f->pool.chunk_bytes_used <= f->pool.chunk_bytes_peak);
}

static void run_twin(uint32_t chunks, uint64_t seed)
{
    struct fixture f;
    struct twin twin[TWIN_SLOTS];
    uint32_t count = 0;
    struct kvt_rng rng = { seed };
    open_fixture(&f, chunks);
    for (uint32_t n = 0; n < 4000; n++) {
        const bool is_growing = kvt_rng_below(&rng, 100) < (n / 500 % 2 ? 35 : 65);
        if (is_growing && count < TWIN_SLOTS) {
            const uint32_t bytes = kvt_rng_below(&rng, 2) ? RAW_SMALL : RAW_LARGE - (uint32_t)kvt_rng_below(&rng, 512);
            const bool has_room = kvt_host_pool_has_room(&f.pool, bytes);
            const uint32_t slot = kvt_host_pool_take(&f.pool, bytes, n);
            assert_int_equal(has_room, slot != KVT_NO_SLOT);
            if (slot == KVT_NO_SLOT) continue;
            uint8_t *at = kvt_host_pool_address(&f.pool, slot);
            kvt_store_u32(at, n);
            kvt_store_u32(at + kvt_host_pool_slot_bytes(&f.pool, slot) - 4, n);
            twin[count++] = (struct twin){ slot, n, bytes };
        } else if (count > 0) {
            const uint32_t i = (uint32_t)kvt_rng_below(&rng, count);
            kvt_host_pool_give(&f.pool, twin[i].slot);
            assert_int_equal(kvt_host_pool_owner(&f.pool, twin[i].slot), KVT_NO_BLOCK);
            twin[i] = twin[--count];
        }
        if (n % 16 == 0) check_twin(&f, twin, count);
    }
    while (count > 0) kvt_host_pool_give(&f.pool, twin[--count].slot);
    assert_int_equal(f.pool.free_chunks, chunks);
    assert_int_equal(kvt_host_pool_free_share(&f.pool), 1024);
    close_fixture(&f);
}

static void takes_and_gives_agree_with_a_list(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) run_twin(3, seed);
    run_twin(1, 6);
    for (uint64_t seed = 7; seed <= 9; seed++) run_twin(40, seed); /* so many that a block takes its own class only */
}

static void packed_classes_are_chosen_from_the_first_packed_blocks(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 4);
    assert_int_equal(kvt_host_pool_wanted_bytes(&f.pool, 0, RAW_LARGE, true), RAW_LARGE);
    for (uint32_t i = 0; i < KVT_PACKED_SAMPLES; i++) kvt_host_pool_learn(&f.pool, 0, 5000 + i);
    const uint32_t wanted = kvt_host_pool_wanted_bytes(&f.pool, 0, RAW_LARGE, true);
    assert_true(wanted >= 5000 + KVT_PACKED_SAMPLES - 3); /* nearly all of them fit */
    assert_true(wanted < RAW_LARGE);
    assert_int_equal(kvt_host_pool_wanted_bytes(&f.pool, 0, RAW_LARGE, false), RAW_LARGE);
    /* the other group has not begun */
    assert_int_equal(kvt_host_pool_wanted_bytes(&f.pool, 1, RAW_SMALL, true), RAW_SMALL);
    const uint32_t slot = kvt_host_pool_take(&f.pool, wanted, 1);
    assert_true(kvt_host_pool_slot_bytes(&f.pool, slot) < RAW_LARGE);
    /* tails take a half or a quarter */
    assert_true(kvt_host_pool_wanted_bytes(&f.pool, 0, RAW_LARGE / 8, true) < wanted);
    close_fixture(&f);
}

struct give_case {
    struct kvt_host_pool *pool;
    uint32_t slot;
};
static void give(void *user) { kvt_host_pool_give(((struct give_case *)user)->pool, ((struct give_case *)user)->slot); }

static void a_slot_is_not_given_back_twice(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 1);
    struct give_case given = { &f.pool, kvt_host_pool_take(&f.pool, RAW_SMALL, 1) };
    const uint32_t other = kvt_host_pool_take(&f.pool, RAW_SMALL, 2);
    assert_false(asserts(give, &given));
    assert_true(asserts(give, &given));
    given.slot = f.pool.slot_count;
    assert_true(asserts(give, &given));
    assert_int_equal(kvt_host_pool_owner(&f.pool, other), 2);
    close_fixture(&f);
}

static void what_is_larger_than_every_class_has_no_room(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2);
    assert_false(kvt_host_pool_has_room(&f.pool, RAW_LARGE + 1));
    assert_int_equal(kvt_host_pool_take(&f.pool, RAW_LARGE + 1, 1), KVT_NO_SLOT);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_is_cut_for_a_class_on_demand),
        cmocka_unit_test(an_empty_chunk_passes_to_another_class),
        cmocka_unit_test(takes_and_gives_agree_with_a_list),
        cmocka_unit_test(packed_classes_are_chosen_from_the_first_packed_blocks),
        cmocka_unit_test(a_slot_is_not_given_back_twice),
        cmocka_unit_test(what_is_larger_than_every_class_has_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
