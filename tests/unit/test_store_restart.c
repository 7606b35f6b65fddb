/*
 * store: a restart with many small records finds them all. KVTIER_RESTART_RECORDS=1000000 by hand: the time is printed
 *        (about a
 * second is the aim), and nothing depends on it.
 */
#include "tests/unit/store_bench.h"

#include <time.h>

enum { BATCH = 256, LENGTH = 64 };

static double seconds(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void put_many(struct bench *bench, uint64_t count)
{
    static struct kvt_store_op ops[BATCH];
    static uint8_t bytes[BATCH][LENGTH];
    struct kvt_store_op *free_ops[BATCH], *done[BATCH];
    uint32_t free_count = BATCH;
    for (uint32_t i = 0; i < BATCH; i++) free_ops[i] = &ops[i];
    uint64_t next = 0, back = 0;
    while (back < count) {
        while (free_count > 0 && next < count) {
            struct kvt_store_op *op = free_ops[free_count - 1];
            uint8_t *buffer = bytes[op - ops];
            memcpy(buffer, &next, sizeof next);
            *op = (struct kvt_store_op){
                .kind = KVT_STORE_PUT, .name = bench_name(next), .generation = 1, .buffer = buffer, .length = LENGTH
            };
            if (kvt_store_submit(bench->store, &op, 1) != 1) break;
            free_count--;
            next++;
        }
        (void)kvt_store_wait(bench->store, 1000000000u);
        const uint32_t n = kvt_store_poll(bench->store, done, BATCH);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(done[i]->status, KVT_OK);
            free_ops[free_count++] = done[i];
        }
        back += n;
    }
}

static void a_restart_finds_every_record(void **state)
{
    (void)state;
    const char *const more = getenv("KVTIER_RESTART_RECORDS");
    const uint64_t count = more ? strtoull(more, NULL, 10) : 30000;
    struct bench bench;
    bench_init(&bench, NULL, false);
    /* 16384 records in a segment of 64 MiB, at most */
    bench.config.capacity_bytes = (count / 16384 + 4) * 65 * KVT_MIB;
    bench.config.staging_bytes = 0;
    bench_open(&bench);
    put_many(&bench, count);
    uint64_t live_bytes = bench_stats(&bench).live_bytes;
    kvt_store_close(&bench.store);
    for (int round = 0; round < 3; round++) {
        const double start = seconds(CLOCK_MONOTONIC), start_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
        bench_open(&bench);
        print_message("%llu records in %llu segments: opened in %.3f s, %.3f s of CPU\n",
                      (unsigned long long)bench_stats(&bench).recovered_records,
                      (unsigned long long)bench_stats(&bench).segments, seconds(CLOCK_MONOTONIC) - start,
                      seconds(CLOCK_PROCESS_CPUTIME_ID) - start_cpu);
        assert_int_equal(bench_stats(&bench).records, count);
        assert_int_equal(bench_stats(&bench).live_bytes, live_bytes);
        for (uint64_t key = 0; key < count; key += count / 50) {
            uint8_t bytes[LENGTH];
            struct kvt_store_op op = {
                .kind = KVT_STORE_GET, .name = bench_name(key), .generation = 1, .buffer = bytes, .length = LENGTH
            };
            assert_int_equal(bench_run(&bench, &op), KVT_OK);
            assert_memory_equal(bytes, &key, sizeof key);
        }
        kvt_store_close(&bench.store);
    }
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_restart_finds_every_record) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
