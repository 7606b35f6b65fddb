/* store: any call from any thread. Bytes stay exact, every op comes back once, and nothing deadlocks. */
#include "tests/unit/store_bench.h"

#include <poll.h>
#include <pthread.h>

enum { KIB = 1024, THREADS = 3, OPS = 8, KEYS = 120, TURNS = 1500, LENGTH_MAX = 16 * KIB };

/* Ops of all threads come out of one poll: whoever polls says so in the op's flag. */
struct slot {
    struct kvt_store_op op;
    uint8_t bytes[LENGTH_MAX];
    bool is_out;  /* the owner's */
    int is_done;  /* shared */
};

struct worker {
    struct bench *bench;
    uint64_t seed, exact, done;
    struct slot slots[OPS];
};

static uint32_t length_of(uint64_t key) { return 1 + (uint32_t)(kvt_mix64(key) % LENGTH_MAX); }

static void poll_some(struct worker *worker)
{
    struct kvt_store_op *done[4];
    const uint32_t count = kvt_store_poll(worker->bench->store, done, 4);
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = done[i]->user;
        if (__atomic_exchange_n(&slot->is_done, 1, __ATOMIC_ACQ_REL) != 0) abort();
    }
}

static void take_back(struct worker *worker, struct slot *slot)
{
    slot->is_out = false;
    worker->done++;
    const struct kvt_store_op *op = &slot->op;
    if (op->kind == KVT_STORE_PUT || op->status != KVT_OK) return;
    const uint64_t key = op->name.key[0];
    if (op->ret_length != length_of(key) || !bench_is_filled(slot->bytes, op->ret_length, key, 1)) abort();
    worker->exact++;
}

static void submit(struct worker *worker, struct slot *slot, struct kvt_rng *rng)
{
    const uint64_t key = kvt_rng_below(rng, KEYS);
    const bool is_put = kvt_rng_below(rng, 2) == 0;
    if (is_put) bench_fill(slot->bytes, length_of(key), key, 1);
    slot->op = (struct kvt_store_op){ .kind = is_put ? KVT_STORE_PUT : KVT_STORE_GET, .name = bench_name(key), .generation = 1,
        .buffer = slot->bytes, .length = is_put ? length_of(key) : LENGTH_MAX, .user = slot };
    __atomic_store_n(&slot->is_done, 0, __ATOMIC_RELEASE);
    struct kvt_store_op *const ops[] = { &slot->op };
    slot->is_out = kvt_store_submit(worker->bench->store, ops, 1) == 1;
}

/* The calls that answer from memory, and the ones that wait. */
static void other_calls(struct worker *worker, struct kvt_rng *rng)
{
    struct kvt_store *store = worker->bench->store;
    const struct kvt_store_name name = bench_name(kvt_rng_below(rng, KEYS));
    struct kvt_store_found found;
    struct kvt_store_name lost[4];
    struct kvt_store_stats stats;
    switch (kvt_rng_below(rng, 64)) {
    case 0: (void)kvt_store_delete(store, &name, 1); break;
    case 1:
        if (kvt_store_sync(store) != KVT_OK) abort();
        break;
    case 2:
        if (kvt_rng_below(rng, 8) == 0 && kvt_store_reset(store) != KVT_OK) abort();
        break;
    case 3: kvt_store_stats(store, &stats); break;
    case 4: (void)kvt_store_poll_lost(store, lost, 4); break;
    default:
        if (!kvt_store_hold(store, &name, &found)) break;
        if (found.length != length_of(name.key[0])) abort();
        kvt_store_release(store, &name);
    }
}

static void *work(void *user)
{
    struct worker *worker = user;
    struct kvt_rng rng = { worker->seed };
    uint32_t out = 0;
    for (uint32_t turn = 0; turn < TURNS || out > 0; turn++) {
        struct slot *slot = &worker->slots[turn % OPS];
        if (slot->is_out && __atomic_load_n(&slot->is_done, __ATOMIC_ACQUIRE)) {
            take_back(worker, slot);
            out--;
        }
        if (!slot->is_out && turn < TURNS) {
            submit(worker, slot, &rng);
            out += slot->is_out;
            other_calls(worker, &rng);
        }
        poll_some(worker);
        if (slot->is_out) (void)kvt_store_wait(worker->bench->store, 100000);
    }
    return NULL;
}

static void threads_share_a_store_and_every_op_comes_back_once(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench.config.capacity_bytes = 1200 * KIB; /* about half of the keys fit: constant reclaim */
    bench.config.queue_ms = 60000; /* however slow the machine is */
    bench_open(&bench);
    static struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){ .bench = &bench, .seed = i + 1 };
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(workers[i].done > OPS); /* how many in so many turns is the machine's affair */
    }
    assert_true(workers[0].exact > 0);
    const struct kvt_store_stats stats = bench_stats(&bench);
    assert_true(stats.reclaims > 0);
    assert_int_equal(stats.corrupt, 0);
    assert_int_equal(stats.held_bytes, 0);
    assert_true(stats.allocated_peak <= bench.config.capacity_bytes);
    bench_done(&bench);
}

/* A caller that waits drives the store itself; one that has stopped waiting must find its ops done all the same. */
static void the_store_goes_on_when_the_caller_that_drove_it_does_not_wait_any_more(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    static uint8_t bytes[4][4096];
    for (uint64_t turn = 0; turn < 50; turn++) {
        assert_int_equal(bench_put(&bench, turn, 4096), KVT_OK); /* waits: this thread has driven */
        struct kvt_store_op ops[4], *listed[4], *done[4];
        for (uint64_t i = 0; i < 4; i++) {
            const uint64_t key = 1000 + 4 * turn + i;
            bench_fill(bytes[i], 4096, key, 1);
            ops[i] = (struct kvt_store_op){ .kind = KVT_STORE_PUT, .name = bench_name(key), .generation = 1, .buffer = bytes[i], .length = 4096 };
            listed[i] = &ops[i];
        }
        assert_int_equal(kvt_store_submit(bench.store, listed, 4), 4);
        for (uint32_t count = 0; count < 4;) {
            struct pollfd ready = { .fd = kvt_store_eventfd(bench.store), .events = POLLIN };
            assert_int_equal(poll(&ready, 1, 20000), 1);
            count += kvt_store_poll(bench.store, done, 4);
        }
        for (uint64_t i = 0; i < 4; i++) assert_int_equal(ops[i].status, KVT_OK);
        struct pollfd ready = { .fd = kvt_store_eventfd(bench.store), .events = POLLIN };
        assert_int_equal(poll(&ready, 1, 0), 0);
    }
    bench_done(&bench);
}

struct sync_worker { struct bench *bench; bool is_ok; };

static void *sync_often(void *user)
{
    struct sync_worker *worker = user;
    worker->is_ok = true;
    for (uint32_t i = 0; i < 40; i++) worker->is_ok = kvt_store_sync(worker->bench->store) == KVT_OK && worker->is_ok;
    return NULL;
}

/* Each blocks, one of them drives, and none may be left behind when that one leaves. */
static void callers_that_block_at_once_all_come_back(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    struct sync_worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct sync_worker){ .bench = &bench };
        assert_int_equal(pthread_create(&threads[i], NULL, sync_often, &workers[i]), 0);
    }
    for (uint64_t key = 0; key < 200; key++) assert_int_equal(bench_put(&bench, key, 1000), KVT_OK);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(workers[i].is_ok);
    }
    assert_false(kvt_store_wait(bench.store, 1000000)); /* nothing comes: the time ends it */
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_store_and_every_op_comes_back_once),
        cmocka_unit_test(the_store_goes_on_when_the_caller_that_drove_it_does_not_wait_any_more),
        cmocka_unit_test(callers_that_block_at_once_all_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
