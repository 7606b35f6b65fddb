/* store: runs, records read at once because they lie and are asked for one behind the other (tiers/store_read.c). */
#include "tests/unit/store_bench.h"

enum { RUN = 20, RUN_LENGTH = 5000 };

/* Gets them all at once, in the order given; those that are OK have all their bytes. Returns how many are. */
static uint32_t get_all(struct bench *bench, const uint64_t *keys, uint32_t count, enum kvt_status *ret_statuses)
{
    static uint8_t bytes[RUN][RUN_LENGTH];
    struct kvt_store_op all[RUN], *ops[RUN], *done[RUN];
    uint32_t right = 0;
    for (uint32_t i = 0; i < count; i++) {
        all[i] = bench_get_op(keys[i], bytes[i], RUN_LENGTH);
        ops[i] = &all[i];
    }
    assert_int_equal(kvt_store_submit(bench->store, ops, count), count);
    for (uint32_t back = 0; back < count;) {
        assert_true(kvt_store_wait(bench->store, 20000000000u));
        back += kvt_store_poll(bench->store, done, RUN);
    }
    for (uint32_t i = 0; i < count; i++) {
        ret_statuses[i] = all[i].status;
        if (all[i].status != KVT_OK) continue;
        assert_int_equal(all[i].ret_length, RUN_LENGTH);
        assert_true(bench_is_filled(bytes[i], RUN_LENGTH, keys[i], 1));
        right++;
    }
    return right;
}

static void put_run(struct bench *bench, uint64_t seed, uint64_t keys[RUN])
{
    bench_init_faulty(bench, seed);
    bench_open(bench);
    for (uint64_t i = 0; i < RUN; i++) {
        keys[i] = i;
        assert_int_equal(bench_put(bench, i, RUN_LENGTH), KVT_OK);
    }
}

static void neighbours_that_are_asked_for_in_order_come_with_one_read(void **state)
{
    (void)state;
    struct bench bench;
    uint64_t keys[RUN], backwards[RUN], scattered[RUN];
    enum kvt_status statuses[RUN];
    put_run(&bench, 1, keys);
    uint64_t before = io_faulty_counters(bench.image).reads;
    assert_int_equal(get_all(&bench, keys, RUN, statuses), RUN);
    assert_int_equal(io_faulty_counters(bench.image).reads - before, 1);
    for (uint32_t i = 0; i < RUN; i++) backwards[i] = keys[RUN - 1 - i], scattered[i] = keys[i * 7 % RUN];
    before = io_faulty_counters(bench.image).reads;
    assert_int_equal(get_all(&bench, backwards, RUN, statuses), RUN);
    assert_int_equal(get_all(&bench, scattered, RUN, statuses), RUN);
    assert_int_equal(io_faulty_counters(bench.image).reads - before, 2 * RUN);
    /* A record that is not there, or was put again elsewhere, ends a run. */
    keys[3] = 1000;
    assert_int_equal(bench_put(&bench, 10, RUN_LENGTH), KVT_OK);
    before = io_faulty_counters(bench.image).reads;
    assert_int_equal(get_all(&bench, keys, RUN, statuses), RUN - 1);
    assert_int_equal(statuses[3], KVT_NOTFOUND);
    assert_int_equal(io_faulty_counters(bench.image).reads - before, 4);
    bench_done(&bench);
}

static void b43_one_record_of_a_run_that_cannot_be_read_takes_no_other_with_it(void **state)
{
    (void)state;
    struct bench bench;
    uint64_t keys[RUN];
    enum kvt_status statuses[RUN];
    put_run(&bench, 1, keys);
    /* The run fails, then the first of the records by itself. */
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_EIO);
    io_faulty_at(bench.image, IO_FAULTY_READ, 2, IO_FAULTY_EIO);
    assert_int_equal(get_all(&bench, keys, RUN, statuses), RUN - 1);
    assert_int_equal(statuses[0], KVT_IO);
    assert_int_equal(bench_stats(&bench).read_errors, 1);
    assert_int_equal(get_all(&bench, keys, RUN, statuses), RUN - 1);
    assert_int_equal(statuses[0], KVT_NOTFOUND);
    bench_done(&bench);
}

static void b47_a_damaged_record_of_a_run_is_the_only_miss(void **state)
{
    (void)state;
    struct bench bench;
    uint64_t keys[RUN], offset;
    char file[24];
    enum kvt_status statuses[RUN];
    put_run(&bench, 1, keys);
    assert_true(bench_find_record(&bench, 7, file, &offset));
    bench_flip(&bench, file, offset + 1000, 3); /* of its payload */
    assert_true(bench_find_record(&bench, 9, file, &offset));
    bench_flip(&bench, file, offset + 20, 3); /* of its header */
    assert_int_equal(get_all(&bench, keys, RUN, statuses), RUN - 2);
    assert_int_equal(statuses[7], KVT_CORRUPT);
    assert_int_equal(statuses[9], KVT_CORRUPT);
    assert_int_equal(bench_stats(&bench).corrupt, 2);
    bench_done(&bench);
}

/* Goal: whatever happens to a run, its memory and its place among the gets are given back. */
static void b35_runs_on_a_bad_disk_come_back_once_each_and_leave_nothing(void **state)
{
    (void)state;
    struct bench bench;
    uint64_t keys[RUN];
    enum kvt_status statuses[RUN];
    put_run(&bench, 5, keys);
    io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_EIO, 200000);
    io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_SHORT, 200000);
    io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_FLIP, 200000);
    io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_DELAY, 200000);
    uint32_t right = 0;
    for (uint32_t round = 0; round < 300; round++) {
        right += get_all(&bench, keys, RUN, statuses);
        for (uint32_t i = 0; i < RUN; i++)
            if (statuses[i] != KVT_OK) assert_int_equal(bench_put(&bench, keys[i], RUN_LENGTH), KVT_OK);
    }
    assert_true(right > 300);
    io_faulty_heal(bench.image);
    assert_int_equal(get_all(&bench, keys, RUN, statuses), RUN);
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_that_are_asked_for_in_order_come_with_one_read),
        cmocka_unit_test(b43_one_record_of_a_run_that_cannot_be_read_takes_no_other_with_it),
        cmocka_unit_test(b47_a_damaged_record_of_a_run_is_the_only_miss),
        cmocka_unit_test(b35_runs_on_a_bad_disk_come_back_once_each_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
