/*
 * store: the process is killed (SIGKILL) at a random moment, on real files, again and again; each time the next one
 *        checks all.
 *
 * The child puts records whose bytes are a function of key and generation, syncs, and writes into a pipe what a sync
 * acknowledged. The parent kills it, opens the store itself, and wants every acknowledged record that room was kept
 * for, exact.
 */
#include "tests/unit/store_bench.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { KIB = 1024, KEYS = 40, LENGTH = 9000 };

struct report {
    uint64_t key, generation;
};

static void child(struct bench *bench, int pipe_end, uint64_t generation)
{
    bench->store = NULL;
    if (bench_try_open(bench) != KVT_OK) _exit(2);
    static uint8_t bytes[LENGTH];
    for (;; generation++) {
        for (uint64_t key = 0; key < KEYS; key++) {
            bench_fill(bytes, LENGTH, key, generation);
            struct kvt_store_op put = { .kind = KVT_STORE_PUT,
                                        .name = bench_name(key),
                                        .generation = generation,
                                        .buffer = bytes,
                                        .length = LENGTH,
                                        .form = 1,
                                        .tokens = 16 },
                                *done;
            struct kvt_store_op *const ops[] = { &put };
            if (kvt_store_submit(bench->store, ops, 1) != 1) _exit(3);
            if (!kvt_store_wait(bench->store, 10000000000u)) _exit(4);
            (void)kvt_store_poll(bench->store, &done, 1);
            if (put.status != KVT_OK) _exit(5);
        }
        if (kvt_store_sync(bench->store) != KVT_OK) _exit(6);
        const struct report report = { KEYS, generation };
        if (write(pipe_end, &report, sizeof report) != sizeof report) _exit(7);
    }
}

static uint64_t run_child(struct bench *bench, uint64_t generation, struct kvt_rng *rng)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(ends[0]);
        child(bench, ends[1], generation);
    }
    (void)close(ends[1]);
    /* After the first acknowledgement, so that there is something to lose, and then at any moment. */
    struct report report = { 0, 0 };
    uint64_t acknowledged = 0;
    const uint64_t wanted = 1 + kvt_rng_below(rng, 3);
    for (uint64_t i = 0; i < wanted && read(ends[0], &report, sizeof report) == sizeof report; i++)
        acknowledged = report.generation;
    struct pollfd next = { .fd = ends[0], .events = POLLIN };
    (void)poll(&next, 1, (int)kvt_rng_below(rng, 20)); /* until then, or until it has more to say */
    assert_int_equal(kill(pid, SIGKILL), 0);
    while (read(ends[0], &report, sizeof report) == sizeof report) acknowledged = report.generation;
    (void)close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    return acknowledged;
}

static void check(struct bench *bench, uint64_t acknowledged)
{
    static uint8_t bytes[LENGTH];
    bench_open(bench);
    for (uint64_t key = 0; key < KEYS; key++) {
        struct kvt_store_op op = { .kind = KVT_STORE_GET,
                                   .flags = KVT_STORE_GENERATION_ANY,
                                   .name = bench_name(key),
                                   .buffer = bytes,
                                   .length = LENGTH };
        assert_int_equal(bench_run(bench, &op), KVT_OK);
        assert_true(bench_is_filled(bytes, LENGTH, key, op.ret_generation));
        assert_true(op.ret_generation >= acknowledged);
    }
    assert_int_equal(bench_stats(bench).records, KEYS);
    assert_int_equal(bench_stats(bench).live_bytes, KEYS * ((128 + LENGTH + 511) / 512 * 512));
    assert_true(bench_stats(bench).allocated_bytes <= bench->config.capacity_bytes);
    kvt_store_close(&bench->store);
}

static void b63_a_killed_process_loses_nothing_acknowledged(void **state)
{
    (void)state;
    const char *const more = getenv("KVTIER_KILLS"); /* longer by hand */
    const uint64_t rounds = more ? strtoull(more, NULL, 10) : 50;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench.config.capacity_bytes = 3 * KVT_MIB;
    struct kvt_rng rng = { 42 };
    uint64_t generation = 1;
    for (uint64_t round = 0; round < rounds; round++) {
        const uint64_t acknowledged = run_child(&bench, generation, &rng);
        assert_true(acknowledged >= generation);
        check(&bench, acknowledged);
        generation = acknowledged + 2; /* the killed round's puts have the one in between */
    }
    print_message("%llu kills\n", (unsigned long long)rounds);
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(b63_a_killed_process_loses_nothing_acknowledged) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
