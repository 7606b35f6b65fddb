/*
 * store: what it bounds and what it promises of puts: bytes written a day, time to drain, bytes held, and the watermark.
 */
#include "tests/unit/store_bench.h"

#include "tiers/store_pace.h"
#include "tiers/store_wear.h"

enum { KIB = 1024 };
#define SECOND UINT64_C(1000000000)
#define HOUR   (3600 * SECOND)

/* ---- Endurance ------------------------------------------------------------------------------------------------------ */

static void what_was_written_leaves_the_day_after_a_day(void **state)
{
    (void)state;
    struct kvt_wear wear = { .budget_bytes = 1000 };
    uint64_t total = 0;
    for (uint64_t hour = 1; hour <= 100; hour++) {
        total += 10;
        kvt_wear_update(&wear, total, hour * HOUR);
        assert_int_equal(wear.day_bytes, kvt_min_u64(hour, 24) * 10);
    }
    kvt_wear_update(&wear, total, 50 * HOUR); /* a clock that goes backwards changes nothing */
    assert_int_equal(wear.day_bytes, 240);
    assert_false(kvt_wear_is_over(&wear, 760));
    assert_true(kvt_wear_is_over(&wear, 761));
    assert_true(kvt_wear_is_over(&wear, UINT64_MAX));
    kvt_wear_update(&wear, total, 1000 * HOUR);
    assert_int_equal(wear.day_bytes, 0);
}

static void a_note_of_another_use_or_another_day_or_damaged_does_not_count(void **state)
{
    (void)state;
    uint8_t block[4096] = { 0 };
    uint64_t bytes = 7;
    const struct kvt_wear wear = { .day_bytes = 12345 };
    assert_false(kvt_wear_note_read(block, 0, 0, &bytes));
    kvt_wear_note_write(&wear, 9, 1000000, block);
    assert_true(kvt_wear_note_read(block, 9, 1000000 + 86399, &bytes));
    assert_int_equal(bytes, 12345);
    assert_true(kvt_wear_note_read(block, 9, 5, &bytes)); /* the wall clock was set back */
    assert_false(kvt_wear_note_read(block, 9, 1000000 + 86400, &bytes));
    assert_false(kvt_wear_note_read(block, 8, 1000000, &bytes));
    block[KVT_WEAR_NOTE_AT + 25] ^= 1;
    assert_false(kvt_wear_note_read(block, 9, 1000000, &bytes));
}

/* Puts until one is refused; returns how many were not. */
static uint32_t puts_until_refused(struct bench *bench, uint64_t first_key)
{
    uint32_t count = 0;
    while (count < 1000 && bench_put(bench, first_key + count, 16 * KIB) == KVT_OK) count++;
    return count;
}

static void the_days_budget_is_obeyed_over_restarts_and_comes_back(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench.now_ns = 10 * HOUR;
    bench.config.bytes_per_day = 2 * KVT_MIB;
    bench_open(&bench);
    const uint32_t count = puts_until_refused(&bench, 0);
    assert_in_range(count, 100, 128);
    const struct kvt_store_stats stats = bench_stats(&bench);
    assert_in_range(stats.day_bytes, 0, stats.day_bytes_max);
    assert_int_equal(stats.day_bytes, stats.written_bytes);
    assert_true(stats.refused_wear > 0 && stats.refused >= stats.refused_wear);
    assert_true(stats.write_amplification > 1 && stats.write_amplification < 1.2);
    assert_int_equal(bench_get(&bench, 0, 16 * KIB), KVT_OK); /* reads go on */
    assert_int_equal(bench_put_as(&bench, 5000, 1, 16 * KIB, KVT_STORE_NEEDED), KVT_OK);
    /* The log is ended by the restart: what it holds was written today all the same. */
    bench_reopen(&bench);
    assert_true(puts_until_refused(&bench, 1000) < count / 2);
    bench.now_ns += 25 * HOUR;
    assert_in_range(puts_until_refused(&bench, 2000), 100, 128);
    bench.now_ns += 25 * HOUR;
    bench_reopen(&bench);
    assert_true(puts_until_refused(&bench, 3000) >= 100);
    bench_done(&bench);
}

/* ---- Time to drain ---------------------------------------------------------------------------------------------------- */

static void the_queue_is_bounded_by_the_time_to_drain_it_at_the_measured_speed(void **state)
{
    (void)state;
    struct kvt_pace pace = { .drain_ns_max = SECOND };
    uint64_t now = 5 * SECOND;
    assert_true(kvt_pace_allows(&pace, 1u << 30, 1, now)); /* nothing is known yet */
    for (int i = 0; i < 100; i++) { /* 1 MiB in 10 ms, with pauses that do not count */
        kvt_pace_begin(&pace, now);
        now += SECOND / 100;
        kvt_pace_end(&pace, KVT_MIB, now);
        now += 10 * SECOND;
    }
    assert_in_range(kvt_pace_bytes_per_s(&pace), 99 * KVT_MIB, 101 * KVT_MIB);
    assert_true(kvt_pace_allows(&pace, 98 * KVT_MIB, KVT_MIB, now));
    assert_false(kvt_pace_allows(&pace, 101 * KVT_MIB, KVT_MIB, now));
    assert_true(kvt_pace_allows(&pace, 0, KVT_GIB, now)); /* one record always goes */
}

static void b26_a_disk_that_turns_slow_drops_puts_and_never_grows_a_queue(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 2);
    bench.config.queue_ms = 100;
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 0, 16 * KIB), KVT_OK);
    /* From now on no write comes back. */
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    static uint8_t bytes[16 * KIB];
    static struct kvt_store_op puts[64];
    uint32_t accepted = 0, refused = 0;
    for (uint32_t i = 0; i < 64; i++) {
        bench_fill(bytes, sizeof bytes, 7, 1);
        puts[i] = (struct kvt_store_op){ .kind = KVT_STORE_PUT, .name = bench_name(100 + i), .buffer = bytes, .length = sizeof bytes };
        struct kvt_store_op *const ops[] = { &puts[i] };
        if (kvt_store_submit(bench.store, ops, 1) == 1) accepted++;
        else refused++;
        struct kvt_store_op *done;
        assert_int_equal(kvt_store_poll(bench.store, &done, 1), 0);
        bench.now_ns += SECOND / 50;
    }
    assert_in_range(accepted, 1, 8); /* 100 ms of silence, one put every 20 ms */
    assert_int_equal(bench_stats(&bench).refused_slow, refused);
    assert_true(bench_stats(&bench).refused >= refused);
    /* It recovers by itself. */
    io_faulty_heal(bench.image);
    struct kvt_store_op *done[64];
    for (uint32_t left = accepted; left > 0;) {
        assert_true(kvt_store_wait(bench.store, SECOND));
        left -= kvt_store_poll(bench.store, done, 64);
    }
    for (uint32_t i = 0; i < accepted; i++) assert_int_equal(puts[i].status, KVT_OK);
    assert_int_equal(bench_put(&bench, 200, 16 * KIB), KVT_OK);
    bench_done(&bench);
}

/* ---- Pins --------------------------------------------------------------------------------------------------------------- */

static void pins_cannot_fill_the_store(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 3);
    bench_open(&bench);
    uint32_t held = 0;
    for (uint64_t key = 0; key < 600; key++) {
        assert_int_equal(bench_put(&bench, key, 20000), KVT_OK);
        const struct kvt_store_name name = bench_name(key);
        struct kvt_store_found found;
        if (kvt_store_hold(bench.store, &name, &found)) held++;
    }
    assert_in_range(bench_stats(&bench).held_bytes, bench.config.capacity_bytes / 4, bench.config.capacity_bytes / 2);
    assert_true(held < 600);
    /* Those that were pinned are all there; counting one up is no new pin; one that is given back makes room for another. */
    const struct kvt_store_name first = bench_name(0), last = bench_name(599);
    struct kvt_store_found found;
    for (uint64_t key = 0; key < held; key++) assert_int_equal(bench_get(&bench, key, 20000), KVT_OK);
    assert_true(kvt_store_hold(bench.store, &first, &found));
    assert_false(kvt_store_hold(bench.store, &last, &found));
    kvt_store_release(bench.store, &first);
    assert_false(kvt_store_hold(bench.store, &last, &found));
    kvt_store_release(bench.store, &first);
    assert_true(kvt_store_hold(bench.store, &last, &found));
    bench_done(&bench);
}

/* ---- The watermark -------------------------------------------------------------------------------------------------------- */

static uint64_t put_number(struct bench *bench, uint64_t key)
{
    static uint8_t bytes[3000];
    bench_fill(bytes, sizeof bytes, key, 1);
    struct kvt_store_op op = { .kind = KVT_STORE_PUT, .name = bench_name(key), .generation = 1, .buffer = bytes, .length = sizeof bytes,
                               .form = 1, .tokens = 16 };
    assert_int_equal(bench_run(bench, &op), KVT_OK);
    return op.ret_number;
}

static void the_watermark_says_which_puts_a_power_cut_leaves(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 4);
    bench_open(&bench);
    uint64_t last = 0;
    for (uint64_t key = 0; key < 10; key++) {
        const uint64_t number = put_number(&bench, key);
        assert_true(number > last);
        last = number;
    }
    assert_true(kvt_store_watermark(bench.store) < last);
    assert_int_equal(kvt_store_wait_durable(bench.store, last + 1, SECOND), KVT_INVAL);
    assert_int_equal(kvt_store_wait_durable(bench.store, last, SECOND), KVT_OK);
    assert_int_equal(kvt_store_watermark(bench.store), last);
    const uint64_t syncs = io_faulty_counters(bench.image).syncs;
    assert_int_equal(kvt_store_wait_durable(bench.store, last - 3, SECOND), KVT_OK); /* is already: nobody waits */
    assert_int_equal(io_faulty_counters(bench.image).syncs, syncs);
    (void)put_number(&bench, 10);
    io_faulty_cut_at(bench.image, 1);
    kvt_store_close(&bench.store);
    io_faulty_power_cycle(bench.image);
    bench_open(&bench);
    for (uint64_t key = 0; key < 10; key++) assert_int_equal(bench_get(&bench, key, 3000), KVT_OK);
    bench_done(&bench);
}

static void a_commit_waits_for_the_puts_that_were_accepted_before_it(void **state)
{
    (void)state;
    enum { PUTS = 12, LENGTH = 20000 };
    static uint8_t bytes[PUTS][LENGTH];
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct bench bench;
        bench_init_faulty(&bench, seed);
        bench_open(&bench);
        io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_DELAY, 700000);
        struct kvt_store_op puts[PUTS], *ops[PUTS], *done[PUTS];
        for (uint64_t key = 0; key < PUTS; key++) {
            bench_fill(bytes[key], LENGTH, key, 1);
            puts[key] = (struct kvt_store_op){ .kind = KVT_STORE_PUT, .name = bench_name(key), .generation = 1, .buffer = bytes[key],
                                               .length = LENGTH, .form = 1, .tokens = 16 };
            ops[key] = &puts[key];
        }
        assert_int_equal(kvt_store_submit(bench.store, ops, PUTS), PUTS);
        assert_int_equal(kvt_store_wait_durable(bench.store, puts[PUTS - 1].ret_number, SECOND), KVT_OK);
        io_faulty_cut_at(bench.image, 1);
        assert_int_equal(kvt_store_poll(bench.store, done, PUTS), PUTS); /* all had come back before */
        kvt_store_close(&bench.store);
        io_faulty_power_cycle(bench.image);
        bench_open(&bench);
        for (uint64_t key = 0; key < PUTS; key++) assert_int_equal(bench_get(&bench, key, LENGTH), KVT_OK);
        bench_done(&bench);
    }
}

static void a_commit_that_failed_moves_no_watermark_and_the_next_one_does(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 5);
    bench_open(&bench);
    const uint64_t number = put_number(&bench, 1);
    io_faulty_at(bench.image, IO_FAULTY_SYNC, 1, IO_FAULTY_EIO);
    assert_int_equal(kvt_store_wait_durable(bench.store, number, SECOND), KVT_IO);
    assert_true(kvt_store_watermark(bench.store) < number);
    assert_int_equal(kvt_store_wait_durable(bench.store, number, SECOND), KVT_OK);
    assert_int_equal(kvt_store_watermark(bench.store), number);
    bench_done(&bench);
}

struct committer { struct bench *bench; uint64_t first_key; bool is_good; };

static void *put_and_wait(void *user)
{
    struct committer *committer = user;
    uint8_t bytes[512] = { 1 };
    committer->is_good = true;
    for (uint64_t i = 0; i < 20; i++) {
        struct kvt_store_op op = { .kind = KVT_STORE_PUT, .name = bench_name(committer->first_key + i), .buffer = bytes, .length = sizeof bytes };
        struct kvt_store_op *const ops[] = { &op };
        while (kvt_store_submit(committer->bench->store, ops, 1) != 1) {}
        const uint64_t number = op.ret_number;
        if (kvt_store_wait_durable(committer->bench->store, number, 60 * SECOND) != KVT_OK) committer->is_good = false;
        if (kvt_store_watermark(committer->bench->store) < number) committer->is_good = false;
        /* Ops come back to whoever polls: this one's own, or another thread's. It is on this stack, so it must be back. */
        struct kvt_store_op *done[1];
        while (__atomic_load_n(&op.user, __ATOMIC_ACQUIRE) == NULL)
            if (kvt_store_poll(committer->bench->store, done, 1) == 1) __atomic_store_n(&done[0]->user, done[0], __ATOMIC_RELEASE);
    }
    return NULL;
}

static void those_who_wait_share_a_commit(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    pthread_t threads[THREADS];
    struct committer committers[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        committers[i] = (struct committer){ .bench = &bench, .first_key = i * 1000 };
        assert_int_equal(pthread_create(&threads[i], NULL, put_and_wait, &committers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(committers[i].is_good);
    }
    assert_int_equal(bench_stats(&bench).puts, THREADS * 20);
    assert_true(bench_stats(&bench).syncs < THREADS * 20);
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_leaves_the_day_after_a_day),
        cmocka_unit_test(a_note_of_another_use_or_another_day_or_damaged_does_not_count),
        cmocka_unit_test(the_days_budget_is_obeyed_over_restarts_and_comes_back),
        cmocka_unit_test(the_queue_is_bounded_by_the_time_to_drain_it_at_the_measured_speed),
        cmocka_unit_test(b26_a_disk_that_turns_slow_drops_puts_and_never_grows_a_queue),
        cmocka_unit_test(pins_cannot_fill_the_store),
        cmocka_unit_test(the_watermark_says_which_puts_a_power_cut_leaves),
        cmocka_unit_test(a_commit_waits_for_the_puts_that_were_accepted_before_it),
        cmocka_unit_test(a_commit_that_failed_moves_no_watermark_and_the_next_one_does),
        cmocka_unit_test(those_who_wait_share_a_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
