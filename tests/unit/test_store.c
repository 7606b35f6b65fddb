/* store: exact bytes or a miss, within its space, over every block I/O. */
#include "tests/unit/store_bench.h"

#include <sys/select.h>

enum { KIB = 1024, MIB = 1024 * KIB };

struct world {
    const char *name;
    const struct kvt_block_io_ops *io;
    bool is_single;
};

static const struct world worlds[] = {
    { "chosen", NULL, false },
    { "threads", &kvt_block_io_sync_ops, false },
    { "no threads", &kvt_block_io_sync_ops, true },
    { "memory", &io_faulty_ops, true },
};

static void world_init(struct bench *bench, const struct world *world)
{
    if (world->io == &io_faulty_ops) bench_init_faulty(bench, 1);
    else bench_init(bench, world->io, world->is_single);
}

#define EVERY_WORLD(world) for (const struct world *world = worlds; world < worlds + KVT_ARRAY_COUNT(worlds); world++)

static void what_was_put_is_got_at_every_length(void **state)
{
    (void)state;
    const uint32_t lengths[] = { 1, 383, 384, 385, 511, 512, 4096, 16384, 65536, 100003, 262144, 400000, 700001 };
    EVERY_WORLD(world)
    {
        struct bench bench;
        world_init(&bench, world);
        bench_open(&bench);
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++)
            assert_int_equal(bench_put(&bench, i, lengths[i]), KVT_OK);
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++)
            assert_int_equal(bench_get(&bench, i, lengths[i]), KVT_OK);
        assert_int_equal(bench_get(&bench, 99, 16), KVT_NOTFOUND);
        bench_reopen(&bench);
        assert_int_equal(bench_stats(&bench).records, KVT_ARRAY_COUNT(lengths));
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++)
            assert_int_equal(bench_get(&bench, i, lengths[i]), KVT_OK);
        bench_done(&bench);
    }
}

static void a_store_that_is_filled_many_times_keeps_the_youngest(void **state)
{
    (void)state;
    EVERY_WORLD(world)
    {
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

/* ---- Order of records ------------------------------------------------------------------------------------------- */

static void b10_a_read_that_races_with_eviction_is_exact_or_a_miss(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 3);
    bench_open(&bench);
    const uint32_t length = 40 * KIB;
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(bench_put(&bench, i, length), KVT_OK);
    /* The read of record 0 stays on the disk while everything around it is written over several times. */
    uint8_t *bytes = kvt_alloc(1, length);
    struct kvt_store_op get = {
        .kind = KVT_STORE_GET, .name = bench_name(0), .generation = 1, .buffer = bytes, .length = length
    };
    struct kvt_store_op *const ops[] = { &get };
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_HELD);
    assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
    struct kvt_store_op *done;
    assert_int_equal(kvt_store_poll(bench.store, &done, 1), 0);
    uint32_t length_small = 16 * KIB;
    uint8_t *many = kvt_alloc(400, length_small);
    struct kvt_store_op *puts = kvt_alloc(400, sizeof *puts);
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < 400; i++) {
        bench_fill(many + (size_t)i * length_small, length_small, 100 + i, 1);
        puts[i] = (struct kvt_store_op){ .kind = KVT_STORE_PUT,
                                         .name = bench_name(100 + i),
                                         .generation = 1,
                                         .buffer = many + (size_t)i * length_small,
                                         .length = length_small };
        struct kvt_store_op *const put_ops[] = { &puts[i] };
        accepted += kvt_store_submit(bench.store, put_ops, 1);
        while (kvt_store_poll(bench.store, &done, 1) == 1) assert_ptr_not_equal(done, &get);
    }
    assert_true(accepted > 200);
    io_faulty_heal(bench.image);
    while (kvt_store_wait(bench.store, 0)) {
        assert_int_equal(kvt_store_poll(bench.store, &done, 1), 1);
        if (done != &get) continue;
        assert_true(get.status == KVT_OK || get.status == KVT_NOTFOUND);
        if (get.status == KVT_OK) assert_true(bench_is_filled(bytes, length, 0, 1));
    }
    kvt_free(puts);
    kvt_free(many);
    kvt_free(bytes);
    const struct kvt_store_name name = bench_name(1);
    (void)kvt_store_delete(bench.store, &name, 1);
    assert_int_equal(kvt_store_delete(bench.store, &name, 1), 0);
    bench_done(&bench);
}

static void b15_another_space_or_generation_is_a_miss(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 7, 1000), KVT_OK);
    for (int reopened = 0; reopened < 2; reopened++) {
        uint8_t bytes[1000];
        struct kvt_store_op op = {
            .kind = KVT_STORE_GET, .name = bench_name(7), .generation = 1, .buffer = bytes, .length = 1000
        };
        for (int word = 0; word < 2; word++) {
            for (int bit = 0; bit < 64; bit++) {
                op.name = bench_name(7);
                op.name.space[word] ^= (uint64_t)1 << bit;
                assert_int_equal(bench_run(&bench, &op), KVT_NOTFOUND);
            }
        }
        op.name = bench_name(7);
        op.generation = 2;
        assert_int_equal(bench_run(&bench, &op), KVT_NOTFOUND);
        op.flags = KVT_STORE_GENERATION_ANY;
        assert_int_equal(bench_run(&bench, &op), KVT_OK);
        assert_int_equal(op.ret_generation, 1);
        bench_reopen(&bench);
    }
    bench_done(&bench);
}

static void of_two_records_of_a_name_the_later_put_counts(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t generation = 1; generation <= 100; generation++)
        assert_int_equal(bench_put_as(&bench, 5, generation, 30 * KIB, 0), KVT_OK);
    assert_int_equal(bench_get_as(&bench, 5, 99, 30 * KIB), KVT_NOTFOUND);
    assert_int_equal(bench_get_as(&bench, 5, 100, 30 * KIB), KVT_OK);
    bench_reopen(&bench);
    assert_int_equal(bench_stats(&bench).records, 1);
    assert_int_equal(bench_get_as(&bench, 5, 100, 30 * KIB), KVT_OK);
    assert_int_equal(bench_put_as(&bench, 5, 101, 30 * KIB, 0), KVT_OK);
    bench_reopen(&bench);
    assert_int_equal(bench_get_as(&bench, 5, 101, 30 * KIB), KVT_OK);
    bench_done(&bench);
}

static void private_records_die_with_the_process(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(bench_put_as(&bench, i, 1, 30 * KIB, i % 2 ? KVT_STORE_PRIVATE : 0), KVT_OK);
    for (uint64_t i = 0; i < 60; i++) assert_int_equal(bench_get(&bench, i, 30 * KIB), KVT_OK);
    for (int times = 0; times < 2; times++) {
        bench_reopen(&bench);
        assert_int_equal(bench_stats(&bench).records, 30);
        for (uint64_t i = 0; i < 60; i++)
            assert_int_equal(bench_get(&bench, i, 30 * KIB), i % 2 ? KVT_NOTFOUND : KVT_OK);
    }
    bench_done(&bench);
}

static void deletes_are_idempotent_and_a_put_after_one_is_served(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    const struct kvt_store_name names[] = { bench_name(1), bench_name(2), bench_name(3) };
    bool exists[3];
    assert_int_equal(bench_put(&bench, 1, 100), KVT_OK);
    assert_int_equal(bench_put(&bench, 3, 100), KVT_OK);
    assert_int_equal(kvt_store_exists(bench.store, names, 3, exists), 2);
    assert_true(exists[0] && !exists[1] && exists[2]);
    assert_int_equal(kvt_store_delete(bench.store, names, 3), 2);
    assert_int_equal(kvt_store_delete(bench.store, names, 3), 0);
    assert_int_equal(bench_get(&bench, 1, 100), KVT_NOTFOUND);
    assert_int_equal(bench_put(&bench, 1, 100), KVT_OK);
    assert_int_equal(bench_get(&bench, 1, 100), KVT_OK);
    assert_int_equal(bench_stats(&bench).records, 1);
    bench_done(&bench);
}

/* ---- Reset ------------------------------------------------------------------------------------------------------- */

static void b16_after_a_reset_nothing_of_before_is_ever_found(void **state)
{
    (void)state;
    EVERY_WORLD(world)
    {
        struct bench bench;
        world_init(&bench, world);
        bench_open(&bench);
        for (uint64_t i = 0; i < 100; i++) assert_int_equal(bench_put(&bench, i, 30 * KIB), KVT_OK);
        assert_int_equal(kvt_store_reset(bench.store), KVT_OK);
        for (uint64_t i = 0; i < 100; i++) assert_int_equal(bench_get(&bench, i, 30 * KIB), KVT_NOTFOUND);
        for (uint64_t i = 100; i < 150; i++) assert_int_equal(bench_put(&bench, i, 30 * KIB), KVT_OK);
        assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
        for (int times = 0; times < 2; times++) {
            bench_reopen(&bench);
            for (uint64_t i = 0; i < 100; i++) assert_int_equal(bench_get(&bench, i, 30 * KIB), KVT_NOTFOUND);
            for (uint64_t i = 100; i < 150; i++) assert_int_equal(bench_get(&bench, i, 30 * KIB), KVT_OK);
        }
        bench_done(&bench);
    }
}

static void b16_what_is_in_flight_at_a_reset_is_not_published_after_it(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 5000), KVT_OK);
    uint8_t bytes[2][5000], got[5000];
    struct kvt_store_op put = { .kind = KVT_STORE_PUT, .name = bench_name(2), .buffer = bytes[0], .length = 5000 };
    struct kvt_store_op queued = { .kind = KVT_STORE_PUT, .name = bench_name(3), .buffer = bytes[1], .length = 5000 };
    struct kvt_store_op get = {
        .kind = KVT_STORE_GET, .name = bench_name(1), .generation = 1, .buffer = got, .length = 5000
    };
    memset(bytes, 1, sizeof bytes);
    struct kvt_store_op *ops[] = { &put, &get }, *done[3];
    io_faulty_at(bench.image, IO_FAULTY_WRITE, 1, IO_FAULTY_HELD);
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_HELD);
    assert_int_equal(kvt_store_submit(bench.store, ops, 2), 2);
    assert_int_equal(kvt_store_poll(bench.store, done, 3), 0);
    ops[0] = &queued;
    assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
    assert_int_equal(kvt_store_reset(bench.store), KVT_OK);
    io_faulty_heal(bench.image);
    uint32_t count = 0;
    while (count < 3) {
        assert_true(kvt_store_wait(bench.store, 0));
        count += kvt_store_poll(bench.store, done, 3);
    }
    assert_int_equal(put.status, KVT_FULL);
    assert_int_equal(queued.status, KVT_FULL);
    assert_int_equal(get.status, KVT_NOTFOUND);
    for (int times = 0; times < 2; times++) {
        for (uint64_t i = 1; i <= 3; i++) assert_false(bench_has(&bench, i));
        bench_reopen(&bench);
    }
    bench_done(&bench);
}

static void a_reset_tells_held_records_as_lost_once(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    struct kvt_store_found found;
    for (uint64_t i = 0; i < 10; i++) {
        const struct kvt_store_name name = bench_name(i);
        assert_int_equal(bench_put(&bench, i, 1000), KVT_OK);
        if (i < 3) assert_true(kvt_store_hold(bench.store, &name, &found));
    }
    assert_int_equal(kvt_store_reset(bench.store), KVT_OK);
    struct kvt_store_name lost[10];
    assert_int_equal(kvt_store_poll_lost(bench.store, lost, 2), 2);
    assert_int_equal(kvt_store_poll_lost(bench.store, lost + 2, 8), 1);
    assert_int_equal(kvt_store_poll_lost(bench.store, lost, 10), 0);
    assert_int_equal(bench_stats(&bench).held_bytes, 0);
    bench_done(&bench);
}

/* ---- Room -------------------------------------------------------------------------------------------------------- */

static void what_was_read_outlives_what_was_not(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(bench_put(&bench, i, 30 * KIB), KVT_OK);
        for (uint64_t hot = 0; hot < 10 && hot <= i; hot++) assert_int_equal(bench_get(&bench, hot, 30 * KIB), KVT_OK);
    }
    const struct kvt_store_stats stats = bench_stats(&bench);
    assert_true(stats.moved_records > 0);
    assert_true(stats.written_bytes > stats.put_bytes);
    assert_true(stats.evicted_records > 700);
    bench_reopen(&bench);
    for (uint64_t hot = 0; hot < 10; hot++) assert_int_equal(bench_get(&bench, hot, 30 * KIB), KVT_OK);
    bench_done(&bench);
}

static void held_records_stay_whatever_is_put(void **state)
{
    (void)state;
    EVERY_WORLD(world)
    {
        struct bench bench;
        world_init(&bench, world);
        bench_open(&bench);
        struct kvt_store_found found;
        /* Small ones, and ones larger than an extent. */
        for (uint64_t i = 0; i < 900; i++) {
            const struct kvt_store_name name = bench_name(i);
            const uint32_t length = i % 100 == 50 ? 600 * KIB : 20 * KIB;
            assert_int_equal(bench_put(&bench, i, length), KVT_OK);
            if (i % 100 == 50 || i % 10 == 3) {
                if (i < 300) assert_true(kvt_store_hold(bench.store, &name, &found));
            }
        }
        for (uint64_t i = 0; i < 300; i++)
            if (i % 100 == 50 || i % 10 == 3)
                assert_int_equal(bench_get(&bench, i, i % 100 == 50 ? 600 * KIB : 20 * KIB), KVT_OK);
        struct kvt_store_name lost;
        assert_int_equal(kvt_store_poll_lost(bench.store, &lost, 1), 0);
        assert_true(bench_stats(&bench).moved_records >= 30);
        bench_done(&bench);
    }
}

static void with_everything_held_puts_are_refused_and_come_back_after_a_release(void **state)
{
    (void)state;
    EVERY_WORLD(world)
    {
        struct bench bench;
        world_init(&bench, world);
        bench.config.held_bytes_max = UINT64_MAX;
        bench_open(&bench);
        struct kvt_store_found found;
        uint64_t held = 0;
        for (; held < 2000; held++) {
            const struct kvt_store_name name = bench_name(held);
            const enum kvt_status status = bench_put(&bench, held, 20 * KIB);
            if (status == KVT_FULL) break;
            assert_int_equal(status, KVT_OK);
            assert_true(kvt_store_hold(bench.store, &name, &found));
        }
        assert_true(held > 250 && held < 400);
        assert_int_equal(bench_put(&bench, 5000, 20 * KIB), KVT_FULL);
        for (uint64_t i = 0; i < held; i++) assert_int_equal(bench_get(&bench, i, 20 * KIB), KVT_OK);
        for (uint64_t i = 0; i < held; i++) {
            const struct kvt_store_name name = bench_name(i);
            kvt_store_release(bench.store, &name);
        }
        assert_int_equal(bench_stats(&bench).held_bytes, 0);
        for (uint64_t i = 6000; i < 6400; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
        for (uint64_t i = 6300; i < 6400; i++) assert_int_equal(bench_get(&bench, i, 20 * KIB), KVT_OK);
        struct kvt_store_name lost;
        assert_int_equal(kvt_store_poll_lost(bench.store, &lost, 1), 0);
        bench_done(&bench);
    }
}

/* Summaries take room too: the smallest records, all held, beside puts of nearly any size. */
static void held_records_of_the_smallest_size_are_never_lost(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench.config.capacity_bytes = 2 * KVT_MIB;
    bench_open(&bench);
    struct kvt_store_found found;
    struct kvt_rng rng = { 5 };
    uint64_t held = 0;
    for (uint64_t i = 0; i < 6000; i++) {
        const uint32_t length = i % 20 == 7 ? 1 + (uint32_t)kvt_rng_below(&rng, kvt_store_length_max(bench.store))
                                            : 100;
        const struct kvt_store_name name = bench_name(i);
        if (bench_put(&bench, i, length) != KVT_OK || length != 100) continue;
        assert_true(kvt_store_hold(bench.store, &name, &found));
        held++;
    }
    assert_true(held > 1000);
    struct kvt_store_name lost;
    assert_int_equal(kvt_store_poll_lost(bench.store, &lost, 1), 0);
    assert_int_equal(bench_stats(&bench).held_bytes, held * 512);
    bench_done(&bench);
}

static void compacting_gives_space_back_and_drops_nothing(void **state)
{
    (void)state;
    EVERY_WORLD(world)
    {
        struct bench bench;
        world_init(&bench, world);
        bench_open(&bench);
        for (uint64_t i = 0; i < 240; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
        for (uint64_t i = 0; i < 240; i++) {
            const struct kvt_store_name name = bench_name(i);
            if (i % 4) assert_int_equal(kvt_store_delete(bench.store, &name, 1), 1);
        }
        const struct kvt_store_stats before = bench_stats(&bench);
        assert_int_equal(kvt_store_compact(bench.store), KVT_OK);
        const struct kvt_store_stats after = bench_stats(&bench);
        assert_true(after.allocated_bytes < before.allocated_bytes / 2 + MIB);
        assert_int_equal(after.records, 60);
        assert_int_equal(after.live_bytes, before.live_bytes);
        bench_reopen(&bench);
        for (uint64_t i = 0; i < 240; i += 4) assert_int_equal(bench_get(&bench, i, 20 * KIB), KVT_OK);
        struct kvt_store_listed listed[7];
        uint64_t cursor = 0, sum = 0, count = 0;
        for (uint32_t n = kvt_store_list(bench.store, &cursor, listed, 7); n > 0;
             n = kvt_store_list(bench.store, &cursor, listed, 7)) {
            for (uint32_t i = 0; i < n; i++) sum += listed[i].name.key[0];
            count += n;
        }
        assert_int_equal(count, bench_stats(&bench).records);
        assert_true(count >= 60);
        assert_true(sum >= 60 * 59 / 2 * 4);
        bench_done(&bench);
    }
}

static void holds_are_counted(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    const struct kvt_store_name name = bench_name(1), none = bench_name(2);
    struct kvt_store_found found;
    assert_false(kvt_store_hold(bench.store, &none, &found));
    kvt_store_release(bench.store, &none);
    assert_int_equal(bench_put(&bench, 1, 20 * KIB), KVT_OK);
    assert_true(kvt_store_hold(bench.store, &name, &found));
    assert_true(kvt_store_hold(bench.store, &name, &found));
    assert_int_equal(found.length, 20 * KIB);
    kvt_store_release(bench.store, &name);
    for (uint64_t i = 10; i < 1000; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    assert_true(bench_has(&bench, 1));
    kvt_store_release(bench.store, &name);
    for (uint64_t i = 10; i < 1000; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    assert_false(bench_has(&bench, 1));
    bench_done(&bench);
}

static void b26_the_write_queue_is_bounded_and_the_excess_is_refused(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench.config.queue_bytes = 300 * KIB;
    bench_open(&bench);
    /* The disk does not answer: what was accepted stays queued, and that is little. */
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    static uint8_t bytes[20 * KIB];
    struct kvt_store_op puts[100], *done[100];
    uint32_t accepted = 0;
    for (uint64_t i = 0; i < 100; i++) {
        puts[i] = (struct kvt_store_op){
            .kind = KVT_STORE_PUT, .name = bench_name(i), .buffer = bytes, .length = sizeof bytes
        };
        struct kvt_store_op *const ops[] = { &puts[i] };
        accepted += kvt_store_submit(bench.store, ops, 1);
        assert_int_equal(kvt_store_poll(bench.store, done, 100), 0);
    }
    assert_int_equal(accepted, 15);
    assert_int_equal(bench_stats(&bench).refused, 85);
    io_faulty_heal(bench.image);
    uint32_t count = 0;
    while (count < accepted) {
        assert_true(kvt_store_wait(bench.store, 0));
        count += kvt_store_poll(bench.store, done, 100);
    }
    assert_int_equal(bench_put(&bench, 200, sizeof bytes), KVT_OK);
    bench_done(&bench);
}

static void small_puts_share_large_writes(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench.config.capacity_bytes = 64 * KVT_MIB;
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1000, 10), KVT_OK);
    static uint8_t bytes[4 * KIB];
    struct kvt_store_op puts[128], *ops[128], *done[128];
    for (uint64_t i = 0; i < 128; i++) {
        puts[i] = (struct kvt_store_op){
            .kind = KVT_STORE_PUT, .name = bench_name(i), .buffer = bytes, .length = sizeof bytes
        };
        ops[i] = &puts[i];
    }
    const uint64_t writes = io_faulty_counters(bench.image).writes;
    assert_int_equal(kvt_store_submit(bench.store, ops, 128), 128);
    for (uint32_t count = 0; count < 128;) {
        assert_true(kvt_store_wait(bench.store, 0));
        count += kvt_store_poll(bench.store, done, 128);
    }
    assert_in_range(io_faulty_counters(bench.image).writes - writes, 1, 4); /* 576 KiB in extents of 256 KiB */
    bench_done(&bench);
}

static void the_eventfd_is_readable_while_there_is_something_to_poll(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    fd_set set;
    struct timeval now = { 0 };
    const int event = kvt_store_eventfd(bench.store);
    uint8_t bytes[100] = { 1 };
    struct kvt_store_op put = { .kind = KVT_STORE_PUT, .name = bench_name(1), .buffer = bytes, .length = 100 }, *done;
    struct kvt_store_op *const ops[] = { &put };
    for (int round = 0; round < 3; round++) {
        FD_ZERO(&set);
        FD_SET(event, &set);
        assert_int_equal(select(event + 1, &set, NULL, NULL, &now), 0);
        assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
        struct timeval patience = { .tv_sec = 20 };
        FD_SET(event, &set);
        assert_int_equal(select(event + 1, &set, NULL, NULL, &patience), 1);
        assert_int_equal(kvt_store_poll(bench.store, &done, 1), 1);
    }
    bench_done(&bench);
}

static void close_gives_every_op_back(void **state)
{
    (void)state;
    EVERY_WORLD(world)
    {
        struct bench bench;
        world_init(&bench, world);
        bench_open(&bench);
        static uint8_t bytes[50][20 * KIB];
        struct kvt_store_op puts[50], *ops[50];
        for (uint64_t i = 0; i < 50; i++) {
            bench_fill(bytes[i], sizeof bytes[i], i, 1);
            puts[i] = (struct kvt_store_op){ .kind = KVT_STORE_PUT,
                                             .name = bench_name(i),
                                             .generation = 1,
                                             .buffer = bytes[i],
                                             .length = sizeof bytes[i],
                                             .form = 1,
                                             .tokens = 16,
                                             .status = KVT_BUSY };
            ops[i] = &puts[i];
        }
        assert_int_equal(kvt_store_submit(bench.store, ops, 50), 50);
        kvt_store_close(&bench.store);
        for (uint64_t i = 0; i < 50; i++) assert_int_equal(puts[i].status, KVT_OK);
        bench_open(&bench);
        for (uint64_t i = 0; i < 50; i++) assert_int_equal(bench_get(&bench, i, sizeof bytes[i]), KVT_OK);
        bench_done(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_got_at_every_length),
        cmocka_unit_test(a_store_that_is_filled_many_times_keeps_the_youngest),
        cmocka_unit_test(b10_a_read_that_races_with_eviction_is_exact_or_a_miss),
        cmocka_unit_test(b15_another_space_or_generation_is_a_miss),
        cmocka_unit_test(of_two_records_of_a_name_the_later_put_counts),
        cmocka_unit_test(private_records_die_with_the_process),
        cmocka_unit_test(deletes_are_idempotent_and_a_put_after_one_is_served),
        cmocka_unit_test(b16_after_a_reset_nothing_of_before_is_ever_found),
        cmocka_unit_test(b16_what_is_in_flight_at_a_reset_is_not_published_after_it),
        cmocka_unit_test(a_reset_tells_held_records_as_lost_once),
        cmocka_unit_test(what_was_read_outlives_what_was_not),
        cmocka_unit_test(held_records_stay_whatever_is_put),
        cmocka_unit_test(with_everything_held_puts_are_refused_and_come_back_after_a_release),
        cmocka_unit_test(held_records_of_the_smallest_size_are_never_lost),
        cmocka_unit_test(compacting_gives_space_back_and_drops_nothing),
        cmocka_unit_test(holds_are_counted),
        cmocka_unit_test(b26_the_write_queue_is_bounded_and_the_excess_is_refused),
        cmocka_unit_test(small_puts_share_large_writes),
        cmocka_unit_test(the_eventfd_is_readable_while_there_is_something_to_poll),
        cmocka_unit_test(close_gives_every_op_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
