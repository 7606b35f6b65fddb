/* store: exact bytes or a miss, within its space, over every block I/O. */
#include "tests/unit/store_bench.h"

enum { KIB = 1024 };

struct world { const char *name; const struct kvt_block_io_ops *io; bool is_single; };

static const struct world worlds[] = {
    { "chosen", NULL, false },
    { "threads", &kvt_block_io_sync_ops, false },
    { "no threads", &kvt_block_io_sync_ops, true },
    { "memory", &io_faulty_ops, true },
};

static void world_init(struct bench *bench, const struct world *world)
{
    if (world->io == &io_faulty_ops)
        bench_init_faulty(bench, 1);
    else
        bench_init(bench, world->io, world->is_single);
}

#define EVERY_WORLD(world) for (const struct world *world = worlds; world < worlds + KVT_ARRAY_COUNT(worlds); world++)

static void what_was_put_is_got_at_every_length(void **state)
{
    (void)state;
    const uint32_t lengths[] = { 1, 383, 384, 385, 511, 512, 4096, 16384, 65536, 100003, 262144, 400000, 700001 };
    EVERY_WORLD(world) {
        struct bench bench;
        world_init(&bench, world);
        bench_open(&bench);
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++) assert_int_equal(bench_put(&bench, i, lengths[i]), KVT_OK);
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++) assert_int_equal(bench_get(&bench, i, lengths[i]), KVT_OK);
        assert_int_equal(bench_get(&bench, 99, 16), KVT_NOTFOUND);
        bench_reopen(&bench);
        assert_int_equal(bench_stats(&bench).records, KVT_ARRAY_COUNT(lengths));
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++) assert_int_equal(bench_get(&bench, i, lengths[i]), KVT_OK);
        bench_done(&bench);
    }
}

static void a_store_that_is_filled_many_times_keeps_the_youngest(void **state)
{
    (void)state;
    EVERY_WORLD(world) {
        struct bench bench;
        world_init(&bench, world);
        bench_open(&bench);
        const uint32_t length = 20 * KIB;
        const uint64_t count = 1600; /* four times the space */
        for (uint64_t i = 0; i < count; i++) assert_int_equal(bench_put(&bench, i, length), KVT_OK);
        const struct kvt_store_stats stats = bench_stats(&bench);
        assert_true(stats.reclaims > 20);
        assert_true(stats.allocated_peak <= bench.config.capacity_bytes);
        uint64_t found = 0;
        for (uint64_t i = 0; i < count; i++) {
            const enum kvt_status status = bench_get(&bench, i, length);
            assert_true(status == KVT_OK || status == KVT_NOTFOUND);
            found += status == KVT_OK;
            if (i >= count - 250) assert_int_equal(status, KVT_OK);
        }
        assert_int_equal(found, stats.records);
        bench_done(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_got_at_every_length),
        cmocka_unit_test(a_store_that_is_filled_many_times_keeps_the_youngest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
