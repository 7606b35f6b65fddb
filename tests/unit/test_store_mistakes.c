/* store: a caller's mistakes. An op that breaks a rule comes back once, with INVAL; nothing aborts, and nothing is done. */
#include "tests/unit/store_bench.h"

#include <poll.h>

enum { LENGTH = 3000, PATHS = 3 };
#define DAY_NS UINT64_C(86400000000000)

static uint8_t bytes[LENGTH];

/* One store of each kind: with and without threads, of one directory and of several, encrypted or not. */
enum { HOWS = 8 };
struct stores {
    struct bench bench;
    char paths[PATHS][96];
    const char *list[PATHS];
};

static void open_stores(struct stores *stores, int how)
{
    static const uint8_t key[32] = { 1, 2, 3 };
    bench_init(&stores->bench, NULL, how & 1);
    struct kvt_store_config *config = &stores->bench.config;
    if (how & 2) config->key = key;
    if (how & 4) {
        for (int i = 0; i < PATHS; i++) {
            (void)snprintf(stores->paths[i], sizeof stores->paths[i], "%.60s/disk%d", stores->bench.directory, i);
            stores->list[i] = stores->paths[i];
        }
        config->path = NULL;
        config->paths = stores->list;
        config->path_count = PATHS;
        config->capacity_bytes = PATHS * 8 * KVT_MIB;
        config->staging_bytes = 0;
    }
    bench_open(&stores->bench);
}

static struct kvt_store_op put_of(uint64_t key)
{
    return (struct kvt_store_op){
        .kind = KVT_STORE_PUT, .name = bench_name(key), .generation = 1, .buffer = bytes, .length = LENGTH
    };
}

enum { MISTAKES = 9 };
static void make_mistakes(struct kvt_store_op ops[MISTAKES])
{
    for (uint64_t i = 0; i < MISTAKES; i++) ops[i] = put_of(100 + i);
    ops[0].length = 0;
    ops[1].buffer = NULL;
    ops[2].kind = (enum kvt_store_kind)7;
    ops[3].form = KVT_STORE_FORM_MAX + 1;
    ops[4].tokens = 65536;
    ops[5].flags = 1u << 5;
    ops[6].flags = 1u << 31;
    ops[7] = bench_get_op(1, NULL, LENGTH);
    ops[8] = bench_get_op(1, bytes, LENGTH);
    ops[8].flags = 1u << 9;
}

static void an_op_that_breaks_a_rule_comes_back_once_with_inval_and_nothing_is_done(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++) {
        struct stores stores;
        open_stores(&stores, how);
        assert_int_equal(bench_put(&stores.bench, 1, LENGTH), KVT_OK);
        const struct kvt_store_stats before = bench_stats(&stores.bench);
        struct kvt_store_op ops[MISTAKES];
        make_mistakes(ops);
        for (int i = 0; i < MISTAKES; i++) {
            struct kvt_store_op *none = NULL;
            ops[i].ret_number = 5;
            if (bench_run(&stores.bench, &ops[i]) != KVT_INVAL) fail_msg("mistake %d: status %d", i, ops[i].status);
            assert_int_equal(ops[i].ret_number, 0);
            assert_int_equal(kvt_store_poll(stores.bench.store, &none, 1), 0);
        }
        const struct kvt_store_stats after = bench_stats(&stores.bench);
        assert_int_equal(after.records, before.records);
        assert_int_equal(after.puts, before.puts);
        assert_int_equal(after.gets, before.gets);
        assert_int_equal(after.refused, before.refused);
        for (uint64_t i = 0; i < MISTAKES; i++) assert_false(bench_has(&stores.bench, 100 + i));
        assert_int_equal(kvt_store_sync(stores.bench.store), KVT_OK);
        assert_int_equal(bench_get(&stores.bench, 1, LENGTH), KVT_OK);
        bench_done(&stores.bench);
    }
}

/* Mistakes among good ops, in one batch: each comes back once, with its own status, and numbers have no gaps. */
static void the_others_of_the_batch_are_done_as_ever(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++) {
        struct stores stores;
        open_stores(&stores, how);
        struct kvt_store_op ops[2 * MISTAKES];
        struct kvt_store_op *pointers[2 * MISTAKES], *done[2 * MISTAKES];
        make_mistakes(ops + MISTAKES);
        for (uint64_t i = 0; i < MISTAKES; i++) {
            ops[i] = put_of(i);
            pointers[2 * i] = &ops[i];
            pointers[2 * i + 1] = &ops[MISTAKES + i];
        }
        assert_int_equal(kvt_store_submit(stores.bench.store, pointers, 2 * MISTAKES), 2 * MISTAKES);
        uint32_t count = 0;
        while (count < 2 * MISTAKES) {
            assert_true(kvt_store_wait(stores.bench.store, UINT64_C(20000000000)));
            count += kvt_store_poll(stores.bench.store, done + count, 2 * MISTAKES - count);
        }
        uint64_t number_max = 0;
        for (int i = 0; i < MISTAKES; i++) {
            assert_int_equal(ops[i].status, KVT_OK);
            assert_int_equal(ops[MISTAKES + i].status, KVT_INVAL);
            number_max = kvt_max_u64(number_max, ops[i].ret_number);
        }
        assert_int_equal(number_max, MISTAKES);
        assert_int_equal(kvt_store_wait_durable(stores.bench.store, MISTAKES, DAY_NS), KVT_OK);
        assert_int_equal(bench_stats(&stores.bench).records, MISTAKES);
        bench_done(&stores.bench);
    }
}

static void whoever_waits_on_the_eventfd_is_told_of_a_mistake(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how += 2) { /* with a thread */
        struct stores stores;
        open_stores(&stores, how);
        struct kvt_store_op op = put_of(1), *const ops[] = { &op }, *done = NULL;
        op.length = 0;
        assert_int_equal(kvt_store_submit(stores.bench.store, ops, 1), 1);
        struct pollfd event = { .fd = kvt_store_eventfd(stores.bench.store), .events = POLLIN };
        assert_int_equal(poll(&event, 1, 20000), 1);
        assert_int_equal(kvt_store_poll(stores.bench.store, &done, 1), 1);
        assert_ptr_equal(done, &op);
        assert_int_equal(op.status, KVT_INVAL);
        bench_done(&stores.bench);
    }
}

static void what_is_longer_than_the_longest_record_is_refused_by_submit(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++) {
        struct stores stores;
        open_stores(&stores, how);
        struct kvt_store_op op = put_of(1), *const ops[] = { &op };
        op.length = kvt_store_length_max(stores.bench.store) + 1; /* nobody reads so far: it is refused */
        assert_int_equal(kvt_store_submit(stores.bench.store, ops, 1), 0);
        op.length = UINT32_MAX;
        assert_int_equal(kvt_store_submit(stores.bench.store, ops, 1), 0);
        assert_int_equal(bench_stats(&stores.bench).refused, 2);
        bench_done(&stores.bench);
    }
}

static void mistakes_nobody_polled_are_the_callers_after_close(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++) {
        struct stores stores;
        open_stores(&stores, how);
        struct kvt_store_op op = put_of(1), *const ops[] = { &op };
        op.tokens = UINT32_MAX;
        assert_int_equal(kvt_store_submit(stores.bench.store, ops, 1), 1);
        kvt_store_close(&stores.bench.store);
        assert_int_equal(op.status, KVT_INVAL);
        bench_done(&stores.bench);
    }
}

static void found_may_be_left_out_and_no_names_are_fine(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++) {
        struct stores stores;
        open_stores(&stores, how);
        struct kvt_store *store = stores.bench.store;
        const struct kvt_store_name name = bench_name(1);
        assert_int_equal(bench_put(&stores.bench, 1, LENGTH), KVT_OK);
        assert_true(kvt_store_find(store, &name, NULL));
        assert_true(kvt_store_hold(store, &name, NULL));
        kvt_store_release(store, &name);
        kvt_store_release(store, &name); /* one too many */
        assert_int_equal(kvt_store_delete(store, NULL, 0), 0);
        assert_int_equal(kvt_store_exists(store, NULL, 0, NULL), 0);
        assert_int_equal(kvt_store_poll_lost(store, NULL, 0), 0);
        assert_int_equal(kvt_store_submit(store, NULL, 0), 0);
        assert_int_equal(kvt_store_wait_durable(store, UINT64_MAX, 0), KVT_INVAL);
        bench_done(&stores.bench);
    }
}

static void a_path_that_is_null_is_refused(void **state)
{
    (void)state;
    struct kvt_store_config config = kvt_store_config_default();
    struct kvt_store *store = NULL;
    char error[256];
    const char *const paths[] = { "/tmp/kvt-never-made", NULL };
    config.capacity_bytes = 64 * KVT_MIB;
    assert_int_equal(kvt_store_open(&config, NULL, &store, error, sizeof error), KVT_INVAL);
    assert_true(error[0] != '\0');
    config.path_count = 2;
    assert_int_equal(kvt_store_open(&config, NULL, &store, error, sizeof error), KVT_INVAL);
    assert_string_equal(error, "path 0 of 2 is NULL: the path of a directory");
    config.paths = paths;
    assert_int_equal(kvt_store_open(&config, NULL, &store, error, sizeof error), KVT_INVAL);
    assert_string_equal(error, "path 1 of 2 is NULL: the path of a directory");
    assert_int_equal(access(paths[0], F_OK), -1);
    assert_null(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_op_that_breaks_a_rule_comes_back_once_with_inval_and_nothing_is_done),
        cmocka_unit_test(the_others_of_the_batch_are_done_as_ever),
        cmocka_unit_test(whoever_waits_on_the_eventfd_is_told_of_a_mistake),
        cmocka_unit_test(what_is_longer_than_the_longest_record_is_refused_by_submit),
        cmocka_unit_test(mistakes_nobody_polled_are_the_callers_after_close),
        cmocka_unit_test(found_may_be_left_out_and_no_names_are_fine),
        cmocka_unit_test(a_path_that_is_null_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
