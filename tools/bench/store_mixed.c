/*
 * Method: a paced device, slow enough that the link and not this machine's scheduling is what an op waits for. Gets of
 *         64 KiB
 * arrive at random moments (a Poisson process) and take 40 % of the link; then the same with puts between them, 30 % of
 * all ops. Both alternate; the median of the rounds' p99s is what counts. Then a burst: as many puts as the queue takes
 * at once, and gets while it drains: none may wait for the queue.
 */
#include "tools/bench/store_bench.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { LENGTH = 65536, RECORDS = 256, ROUNDS = 5, OPS_MAX = 128, GETS_MAX = 4096, BURST_GETS = 32 };
#define LINK_BYTES_PER_S 100000000u /* a get takes 0.66 ms */
#define GET_SHARE 0.40
#define PUT_SHARE 0.30 /* of all ops */

struct slot {
    struct kvt_store_op op;
    double start;
    bool is_busy;
};

struct mixed {
    struct kvt_store_bench *bench;
    struct kvt_store *store;
    struct slot slots[OPS_MAX];
    uint64_t puts_made, puts_refused;
    double latencies[GETS_MAX];
    uint32_t latency_count;
};

/* False: every slot is busy. */
static bool start_op(struct mixed *mixed, enum kvt_store_kind kind)
{
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        struct slot *slot = &mixed->slots[i];
        if (slot->is_busy) continue;
        const uint64_t index = kind == KVT_STORE_PUT ? RECORDS + mixed->puts_made % RECORDS
                                                     : kvt_rng_below(&mixed->bench->rng, RECORDS);
        slot->op = (struct kvt_store_op){ .kind = kind,
                                          .flags = kind == KVT_STORE_GET ? KVT_STORE_URGENT : 0,
                                          .generation = 1,
                                          .name = kvt_store_bench_name(index),
                                          .length = LENGTH,
                                          .buffer = mixed->bench->buffers + (uint64_t)i * LENGTH };
        if (kind == KVT_STORE_PUT) kvt_store_u64(slot->op.buffer, index);
        struct kvt_store_op *const ops[] = { &slot->op };
        slot->start = kvt_store_bench_seconds();
        slot->is_busy = kvt_store_submit(mixed->store, ops, 1) == 1;
        if (kind == KVT_STORE_PUT) mixed->puts_made++;
        if (!slot->is_busy) mixed->puts_refused++;
        return slot->is_busy;
    }
    return false;
}

/* Takes back what has finished; false: an op failed. */
static bool collect(struct mixed *mixed, uint32_t *in_flight)
{
    struct kvt_store_op *done[OPS_MAX];
    const uint32_t n = kvt_store_poll(mixed->store, done, OPS_MAX);
    const double now = kvt_store_bench_seconds();
    for (uint32_t i = 0; i < n; i++) {
        struct slot *slot = (struct slot *)(void *)done[i]; /* the op is its first member */
        slot->is_busy = false;
        if (done[i]->status != KVT_OK)
            return kvt_store_bench_fail("an op failed: %s", kvt_status_text(done[i]->status));
        if (done[i]->kind == KVT_STORE_GET && mixed->latency_count < GETS_MAX)
            mixed->latencies[mixed->latency_count++] = now - slot->start;
    }
    *in_flight -= n;
    return true;
}

static void wait_until(const struct mixed *mixed, double when)
{
    const double left = when - kvt_store_bench_seconds();
    if (left <= 0) return;
    const struct timespec timeout = { .tv_sec = (time_t)left, .tv_nsec = (long)((left - floor(left)) * 1e9) };
    struct pollfd ready = { .fd = kvt_store_eventfd(mixed->store), .events = POLLIN };
    (void)ppoll(&ready, 1, &timeout, NULL);
}

/* `gets` gets and, with puts, 30 % puts between them. Leaves the gets' latencies. */
static bool run_arrivals(struct mixed *mixed, uint32_t gets, double put_share)
{
    const double gets_per_s = GET_SHARE * LINK_BYTES_PER_S / LENGTH;
    uint32_t in_flight = 0;
    bool is_ok = true;
    mixed->latency_count = 0;
    double next = kvt_store_bench_seconds();
    for (uint32_t started = 0; is_ok && (started < gets || in_flight > 0);) {
        is_ok = collect(mixed, &in_flight);
        if (started < gets && kvt_store_bench_seconds() >= next) {
            const bool is_put = kvt_rng_unit(&mixed->bench->rng) < put_share;
            if (start_op(mixed, is_put ? KVT_STORE_PUT : KVT_STORE_GET)) in_flight++;
            if (!is_put) started++;
            next -= log(1 - kvt_rng_unit(&mixed->bench->rng)) / gets_per_s * (1 - put_share);
        }
        wait_until(mixed, started < gets ? next : kvt_store_bench_seconds() + 1);
    }
    return is_ok;
}

/* The longest get while a queue of puts drains; *ret_drain: how long that takes. */
static bool run_burst(struct mixed *mixed, double *ret_longest, double *ret_drain)
{
    uint32_t in_flight = 0;
    bool is_ok = true;
    mixed->latency_count = 0;
    const double start = kvt_store_bench_seconds();
    for (uint32_t i = 0; i < OPS_MAX / 2; i++)
        if (start_op(mixed, KVT_STORE_PUT)) in_flight++;
    const double interval = 0.4 * (double)in_flight * LENGTH / LINK_BYTES_PER_S / BURST_GETS;
    for (uint32_t started = 0; is_ok && in_flight > 0;) {
        if (started < BURST_GETS && kvt_store_bench_seconds() >= start + started * interval) {
            if (start_op(mixed, KVT_STORE_GET)) in_flight++;
            started++;
        }
        wait_until(mixed, started < BURST_GETS ? start + started * interval : kvt_store_bench_seconds() + 1);
        is_ok = collect(mixed, &in_flight);
    }
    *ret_drain = kvt_store_bench_seconds() - start;
    *ret_longest = kvt_store_bench_quantile(mixed->latencies, mixed->latency_count, 1);
    return is_ok;
}

static bool fill(struct mixed *mixed)
{
    const struct kvt_store_load load = { .length = LENGTH, .count = RECORDS, .depth = 32, .is_put = true };
    struct kvt_store_took ignored;
    return kvt_store_bench_run_store(mixed->bench, mixed->store, &load, &ignored);
}

static bool run(struct mixed *mixed, uint32_t rounds, uint32_t gets)
{
    double idle[ROUNDS], busy[ROUNDS], ratios[ROUNDS], longest[ROUNDS], drain[ROUNDS];
    for (uint32_t round = 0; round < rounds; round++) {
        if (!run_arrivals(mixed, gets, 0)) return false;
        idle[round] = kvt_store_bench_quantile(mixed->latencies, mixed->latency_count, 0.99);
        if (!run_arrivals(mixed, gets, PUT_SHARE)) return false;
        busy[round] = kvt_store_bench_quantile(mixed->latencies, mixed->latency_count, 0.99);
        ratios[round] = busy[round] / idle[round];
        if (!run_burst(mixed, &longest[round], &drain[round])) return false;
    }
    struct kvt_store_bench_case *added = kvt_store_bench_add(
        mixed->bench, "ms", 1e3 * kvt_store_bench_median(busy, rounds), 1e3 * kvt_store_bench_median(idle, rounds),
        "mixed, get p99 with 30 %% puts: idle");
    added->ratio = kvt_store_bench_median(ratios, rounds);
    added->target = 2;
    added->is_at_most = true;
    added = kvt_store_bench_add(mixed->bench, "ms", 1e3 * kvt_store_bench_median(longest, rounds),
                                1e3 * kvt_store_bench_median(drain, rounds),
                                "mixed, longest get in a burst: the drain");
    added->target = 0.5;
    added->is_at_most = true;
    return true;
}

bool kvt_store_bench_mixed(struct kvt_store_bench *bench)
{
    struct mixed *mixed = kvt_alloc(1, sizeof *mixed);
    if (!mixed) return kvt_store_bench_fail("out of memory");
    mixed->bench = bench;
    struct kvt_store_config config = kvt_store_config_default();
    config.capacity_bytes = 256 * KVT_MIB;
    config.link_bytes_per_s = LINK_BYTES_PER_S;
    mixed->store = kvt_store_bench_open(bench, "store-mixed", &config);
    const uint32_t gets = bench->size_bytes >= 256 * KVT_MIB ? 1000 : 100;
    const bool is_ok = mixed->store && fill(mixed) && run(mixed, kvt_min_u32(bench->pairs, ROUNDS), gets);
    kvt_store_close(&mixed->store);
    kvt_store_bench_remove(bench, "store-mixed");
    kvt_free(mixed);
    return is_ok;
}
