/* nvme_tier: the store keeps the tier contract. */
#include "tests/unit/store_bench.h"

#include "tiers/nvme_tier.h"

enum { KIB = 1024, LENGTH = 20 * KIB };

struct tier_bench {
    struct bench bench;
    struct kvt_nvme_tier_config config;
    struct kvt_tier *tier;
    uint32_t wakes;
};

static void count_wake(void *user) { __atomic_add_fetch(&((struct tier_bench *)user)->wakes, 1, __ATOMIC_RELAXED); }

static void tier_open(struct tier_bench *tb)
{
    const enum kvt_status status = kvt_nvme_tier_open(&tb->config, &tb->bench.env, &tb->tier);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_text(status), tb->bench.error);
}

static void tier_init(struct tier_bench *tb, bool is_faulty)
{
    memset(tb, 0, sizeof *tb);
    if (is_faulty) bench_init_faulty(&tb->bench, 1);
    else bench_init(&tb->bench, NULL, false);
    tb->config = (struct kvt_nvme_tier_config){ .path = tb->bench.path,
                                                .capacity_bytes = 8 * KVT_MIB,
                                                .staging_bytes = KVT_MIB,
                                                .wake = { count_wake, tb },
                                                .ret_error = tb->bench.error,
                                                .error_bytes = sizeof tb->bench.error };
    /* The env's log goes to the bench, which moved. */
    tb->bench.env.log_user = &tb->bench;
    if (is_faulty) tb->bench.env.clock_user = &tb->bench;
    tier_open(tb);
}

static void tier_done(struct tier_bench *tb)
{
    kvt_tier_close(&tb->tier);
    bench_done(&tb->bench);
}

static struct kvt_name tier_name(uint64_t key) { return (struct kvt_name){ .space = { 7, 7 }, .key = { key, ~key } }; }

static void wait_for(struct tier_bench *tb, struct kvt_tier_op *op)
{
    struct kvt_tier_op *done;
    while (kvt_tier_poll(tb->tier, &done, 1) == 0) (void)kvt_store_wait(kvt_nvme_tier_store(tb->tier), 20000000000u);
    assert_ptr_equal(done, op);
}

static enum kvt_status stash(struct tier_bench *tb, uint64_t key, uint32_t length, bool is_private)
{
    uint8_t *bytes = kvt_alloc(1, length);
    bench_fill(bytes, length, key, 3);
    struct kvt_tier_op op = { .kind = KVT_OP_STASH,
                              .tokens = 5,
                              .host = bytes,
                              .form = KVT_FORM_PACKED,
                              .length = length,
                              .name = tier_name(key),
                              .generation = 3,
                              .is_private = is_private };
    enum kvt_status status = kvt_tier_submit(tb->tier, &op);
    if (status == KVT_OK) {
        wait_for(tb, &op);
        status = op.status;
    }
    kvt_free(bytes);
    return status;
}

static enum kvt_status fetch(struct tier_bench *tb, uint64_t key, uint64_t generation, uint32_t capacity)
{
    uint8_t *bytes = kvt_alloc(1, capacity);
    struct kvt_tier_op op = { .kind = KVT_OP_FETCH,
                              .tokens = 5,
                              .host = bytes,
                              .host_capacity = capacity,
                              .form = KVT_FORM_PACKED,
                              .name = tier_name(key),
                              .generation = generation };
    enum kvt_status status = kvt_tier_submit(tb->tier, &op);
    if (status == KVT_OK) {
        wait_for(tb, &op);
        status = op.status;
        if (status == KVT_OK) {
            assert_int_equal(op.ret_form, KVT_FORM_PACKED);
            assert_true(bench_is_filled(bytes, op.ret_length, key, 3));
        }
    }
    kvt_free(bytes);
    return status;
}

static void what_was_stashed_is_found_and_fetched(void **state)
{
    (void)state;
    for (int is_faulty = 0; is_faulty < 2; is_faulty++) {
        struct tier_bench tb;
        tier_init(&tb, is_faulty);
        assert_true(kvt_tier_has(tb.tier, KVT_TIER_INDEXED));
        assert_true(kvt_tier_has(tb.tier, KVT_TIER_DURABLE));
        const struct kvt_name name = tier_name(1), none = tier_name(2);
        struct kvt_found found;
        assert_int_equal(stash(&tb, 1, LENGTH, false), KVT_OK);
        assert_true(tb.tier->ops->find(tb.tier, &name, &found));
        assert_int_equal(found.length, LENGTH);
        assert_int_equal(found.form, KVT_FORM_PACKED);
        assert_int_equal(found.tokens, 5);
        assert_int_equal(found.generation, 3);
        assert_false(tb.tier->ops->find(tb.tier, &none, &found));
        assert_int_equal(fetch(&tb, 1, 3, LENGTH), KVT_OK);
        assert_int_equal(fetch(&tb, 1, 3, LENGTH + 100), KVT_OK);
        assert_int_equal(fetch(&tb, 1, 4, LENGTH), KVT_NOTFOUND);
        assert_int_equal(fetch(&tb, 2, 3, LENGTH), KVT_NOTFOUND);
        assert_int_equal(fetch(&tb, 1, 3, LENGTH - 1), KVT_FULL);
        assert_true(tb.tier->ops->find(tb.tier, &name, &found)); /* too small a buffer is no damage */
        assert_true(tb.wakes > 0);
        assert_int_equal(tb.tier->ops->sync(tb.tier), KVT_OK);
        struct kvt_tier_counters counters;
        tb.tier->ops->counters(tb.tier, &counters);
        assert_int_equal(counters.capacity_bytes, 8 * KVT_MIB);
        assert_true(counters.used_bytes > 0 && counters.used_bytes <= counters.peak_bytes);
        assert_int_equal(counters.bytes_in, LENGTH);
        assert_int_equal(counters.bytes_out, 2 * LENGTH);
        tier_done(&tb);
    }
}

static void a_restart_keeps_records_and_sweeps_private_ones(void **state)
{
    (void)state;
    struct tier_bench tb;
    tier_init(&tb, false);
    assert_int_equal(stash(&tb, 1, LENGTH, false), KVT_OK);
    assert_int_equal(stash(&tb, 2, LENGTH, true), KVT_OK);
    assert_int_equal(fetch(&tb, 2, 3, LENGTH), KVT_OK);
    kvt_tier_close(&tb.tier);
    tier_open(&tb);
    assert_int_equal(fetch(&tb, 1, 3, LENGTH), KVT_OK);
    assert_int_equal(fetch(&tb, 2, 3, LENGTH), KVT_NOTFOUND);
    tier_done(&tb);
}

static void hold_release_forget_and_reset_follow_the_contract(void **state)
{
    (void)state;
    struct tier_bench tb;
    tier_init(&tb, true);
    const struct kvt_tier_ops *ops = tb.tier->ops;
    const struct kvt_name name = tier_name(1), other = tier_name(2);
    struct kvt_found found;
    assert_false(ops->hold(tb.tier, &name, &found));
    assert_int_equal(stash(&tb, 1, LENGTH, false), KVT_OK);
    assert_int_equal(stash(&tb, 2, LENGTH, false), KVT_OK);
    assert_true(ops->hold(tb.tier, &name, &found));
    for (uint64_t i = 10; i < 1000; i++) assert_int_equal(stash(&tb, i, LENGTH, false), KVT_OK);
    assert_true(ops->find(tb.tier, &name, &found));
    assert_false(ops->find(tb.tier, &other, &found));
    assert_int_equal(fetch(&tb, 1, 3, LENGTH), KVT_OK);
    ops->release(tb.tier, &name);
    ops->forget(tb.tier, &name);
    ops->forget(tb.tier, &name);
    assert_false(ops->find(tb.tier, &name, &found));
    struct kvt_name lost[4];
    assert_int_equal(ops->poll_lost(tb.tier, lost, 4), 0);
    assert_int_equal(stash(&tb, 1, LENGTH, false), KVT_OK);
    assert_true(ops->hold(tb.tier, &name, &found));
    assert_int_equal(ops->reset(tb.tier), KVT_OK);
    assert_false(ops->find(tb.tier, &name, &found));
    assert_int_equal(ops->poll_lost(tb.tier, lost, 4), 1);
    assert_true(kvt_name_equal(&lost[0], &name));
    assert_int_equal(ops->poll_lost(tb.tier, lost, 4), 0);
    ops->release(tb.tier, &name);
    tier_done(&tb);
}

static void b25_a_failed_fetch_is_a_miss_until_the_next_stash(void **state)
{
    (void)state;
    struct tier_bench tb;
    tier_init(&tb, true);
    const struct kvt_name name = tier_name(1);
    struct kvt_found found;
    assert_int_equal(stash(&tb, 1, LENGTH, false), KVT_OK);
    io_faulty_at(tb.bench.image, IO_FAULTY_READ, 1, IO_FAULTY_FLIP);
    const enum kvt_status status = fetch(&tb, 1, 3, LENGTH);
    if (status != KVT_CORRUPT) assert_int_equal(status, KVT_OK); /* the flip hit the padding */
    if (status == KVT_CORRUPT) assert_false(tb.tier->ops->find(tb.tier, &name, &found));
    io_faulty_at(tb.bench.image, IO_FAULTY_READ, 1, IO_FAULTY_EIO);
    assert_int_equal(stash(&tb, 1, LENGTH, false), KVT_OK);
    assert_int_equal(fetch(&tb, 1, 3, LENGTH), KVT_IO);
    assert_int_equal(fetch(&tb, 1, 3, LENGTH), KVT_NOTFOUND);
    assert_int_equal(stash(&tb, 1, LENGTH, false), KVT_OK);
    assert_int_equal(fetch(&tb, 1, 3, LENGTH), KVT_OK);
    tier_done(&tb);
}

static void b26_stashes_beyond_the_queue_are_full_and_nothing_happened(void **state)
{
    (void)state;
    struct tier_bench tb;
    tier_init(&tb, true);
    io_faulty_rate(tb.bench.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    static uint8_t bytes[LENGTH];
    struct kvt_tier_op ops[80], *done[80];
    uint32_t accepted = 0;
    for (uint64_t i = 0; i < 80; i++) {
        ops[i] = (struct kvt_tier_op){
            .kind = KVT_OP_STASH, .tokens = 1, .host = bytes, .length = LENGTH, .name = tier_name(i)
        };
        const enum kvt_status status = kvt_tier_submit(tb.tier, &ops[i]);
        assert_true(status == KVT_OK || status == KVT_FULL);
        assert_int_equal(status == KVT_OK, i < 64);
        accepted += status == KVT_OK;
        assert_int_equal(kvt_tier_poll(tb.tier, done, 80), 0);
    }
    io_faulty_heal(tb.bench.image);
    uint32_t count = 0;
    while (count < accepted) {
        (void)kvt_store_wait(kvt_nvme_tier_store(tb.tier), 0);
        count += kvt_tier_poll(tb.tier, done, 80);
    }
    assert_int_equal(tb.tier->in_flight, 0);
    tier_done(&tb);
}

static void a_refused_open_says_why_and_leaves_nothing_behind(void **state)
{
    (void)state;
    struct tier_bench tb;
    tier_init(&tb, false);
    struct kvt_tier *second = NULL;
    assert_int_equal(kvt_nvme_tier_open(&tb.config, &tb.bench.env, &second), KVT_BUSY);
    assert_null(second);
    assert_non_null(strstr(tb.bench.error, tb.bench.path));
    tb.config.capacity_bytes = 1;
    assert_int_equal(kvt_nvme_tier_open(&tb.config, &tb.bench.env, &second), KVT_BUSY);
    kvt_tier_close(&tb.tier);
    assert_int_equal(kvt_nvme_tier_open(&tb.config, &tb.bench.env, &second), KVT_INVAL);
    assert_non_null(strstr(tb.bench.error, "capacity is 1"));
    /* Every allocation of an open may fail: nothing leaks, nothing stays locked. */
    tb.config.capacity_bytes = 8 * KVT_MIB;
    const uint64_t tables = kvt_table_bytes();
    enum kvt_status status = KVT_NOMEM;
    for (uint64_t n = 1; status != KVT_OK; n++) {
        kvt_alloc_fail_at(n);
        status = kvt_nvme_tier_open(&tb.config, &tb.bench.env, &tb.tier);
        kvt_alloc_fail_at(0);
        assert_true(status == KVT_OK || status == KVT_NOMEM || status == KVT_IO);
        if (status != KVT_OK) assert_int_equal(kvt_table_bytes(), tables);
        assert_true(n < 100);
    }
    tier_done(&tb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_stashed_is_found_and_fetched),
        cmocka_unit_test(a_restart_keeps_records_and_sweeps_private_ones),
        cmocka_unit_test(hold_release_forget_and_reset_follow_the_contract),
        cmocka_unit_test(b25_a_failed_fetch_is_a_miss_until_the_next_stash),
        cmocka_unit_test(b26_stashes_beyond_the_queue_are_full_and_nothing_happened),
        cmocka_unit_test(a_refused_open_says_why_and_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
