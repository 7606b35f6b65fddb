/*
 * Method: rounds; in each, and for each of put, sequential get and random get, the contestants (the store, fio, fio
 *         again as a
 * control, the raw loop) run in random order on the same directory, the same bytes at the same depth. What is judged is
 * the median over the rounds of the ratios within a round: the disk of a virtual machine swings by a factor of four
 * within minutes, and a single run says nothing. Before the first round everything is written once, so that no one
 * writes to fresh extents.
 */
#include "tools/bench/store_bench.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/cli.h"

enum contestant { STORE, FIO, FIO_AGAIN, RAW, CONTESTANTS };
enum kind { PUT, GET, GET_RANDOM, KINDS };

static const char *const kind_names[KINDS] = { "put", "get", "random get" };

struct speed {
    struct kvt_store_bench *bench;
    struct kvt_store *store;
    struct kvt_store_bench_file file;
    struct kvt_store_load loads[KINDS];
    double seconds[KINDS][CONTESTANTS][KVT_STORE_BENCH_PAIRS_MAX];
    double cpu_seconds[KINDS][CONTESTANTS][KVT_STORE_BENCH_PAIRS_MAX];
};

/*
 * The names go first, as the blocks of an old conversation do: what is recycled then has nothing to be copied forward.
 */
static void forget_all(struct speed *speed)
{
    for (uint32_t i = 0; i < speed->loads[PUT].count; i++) {
        const struct kvt_store_name name = kvt_store_bench_name(i);
        (void)kvt_store_delete(speed->store, &name, 1);
    }
}

static bool run_one(struct speed *speed, enum kind kind, enum contestant contestant, struct kvt_store_took *ret_took)
{
    const struct kvt_store_load *load = &speed->loads[kind];
    switch (contestant) {
    case STORE:
        if (kind == PUT) forget_all(speed);
        return kvt_store_bench_run_store(speed->bench, speed->store, load, ret_took);
    case FIO:
    case FIO_AGAIN: return kvt_store_bench_run_fio(speed->bench, load, ret_took);
    case RAW: return kvt_store_bench_run_file(speed->bench, &speed->file, load, ret_took);
    case CONTESTANTS: break;
    }
    return false;
}

static bool run_round(struct speed *speed, enum kind kind, uint32_t round)
{
    enum contestant order[CONTESTANTS] = { STORE, FIO, FIO_AGAIN, RAW };
    for (uint32_t i = CONTESTANTS; i > 1; i--) {
        const uint32_t j = (uint32_t)kvt_rng_below(&speed->bench->rng, i);
        const enum contestant swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
    for (uint32_t i = 0; i < CONTESTANTS; i++) {
        struct kvt_store_took took;
        if ((order[i] == FIO || order[i] == FIO_AGAIN) && !speed->bench->has_fio) continue;
        if (!run_one(speed, kind, order[i], &took)) return false;
        speed->seconds[kind][order[i]][round] = took.seconds;
        speed->cpu_seconds[kind][order[i]][round] = took.cpu_seconds;
    }
    return true;
}

/* Every segment of the store, and the file, have been written once when the rounds begin. */
static bool warm_up(struct speed *speed, uint64_t capacity_bytes)
{
    struct kvt_store_took ignored;
    struct kvt_store_load load = speed->loads[PUT];
    if (!kvt_store_bench_run_file(speed->bench, &speed->file, &load, &ignored)) return false;
    for (uint64_t done = 0; done < capacity_bytes; done += (uint64_t)load.count * load.length) {
        forget_all(speed);
        if (!kvt_store_bench_run_store(speed->bench, speed->store, &load, &ignored)) return false;
    }
    return true;
}

static double ratio_of(const struct speed *speed, enum kind kind, enum contestant a, enum contestant b)
{
    double ratios[KVT_STORE_BENCH_PAIRS_MAX];
    /* Speeds: the seconds the other way round. */
    for (uint32_t i = 0; i < speed->bench->pairs; i++)
        ratios[i] = speed->seconds[kind][b][i] / speed->seconds[kind][a][i];
    return kvt_store_bench_median(ratios, speed->bench->pairs);
}

static double rate_of(struct speed *speed, enum kind kind, enum contestant who)
{
    const double bytes = (double)speed->loads[kind].length * speed->loads[kind].count;
    double rates[KVT_STORE_BENCH_PAIRS_MAX];
    for (uint32_t i = 0; i < speed->bench->pairs; i++) rates[i] = bytes / speed->seconds[kind][who][i] * 1e-9;
    return kvt_store_bench_median(rates, speed->bench->pairs);
}

static double cpu_of(struct speed *speed, enum kind kind, enum contestant who)
{
    const double bytes = (double)speed->loads[kind].length * speed->loads[kind].count;
    double costs[KVT_STORE_BENCH_PAIRS_MAX];
    for (uint32_t i = 0; i < speed->bench->pairs; i++) costs[i] = speed->cpu_seconds[kind][who][i] / (bytes * 1e-9);
    return kvt_store_bench_median(costs, speed->bench->pairs);
}

static void add_cases(struct speed *speed, const char *size)
{
    struct kvt_store_bench *bench = speed->bench;
    const bool is_large = speed->loads[PUT].length >= KVT_MIB;
    struct kvt_store_bench_case *added;
    for (enum kind kind = PUT; kind < KINDS; kind++) {
        const char *name = kind_names[kind];
        const double store = rate_of(speed, kind, STORE), raw = rate_of(speed, kind, RAW);
        if (bench->has_fio) {
            const double fio = rate_of(speed, kind, FIO);
            added = kvt_store_bench_add(bench, "GB/s", fio, fio, "device, %s %s: fio", size, name);
            added = kvt_store_bench_add(bench, "GB/s", rate_of(speed, kind, FIO_AGAIN), fio,
                                        "control, %s %s: fio against fio", size, name);
            added->ratio = ratio_of(speed, kind, FIO_AGAIN, FIO);
            /* What a busy machine takes from any program that runs beside others for longer than fio does. */
            added = kvt_store_bench_add(bench, "GB/s", raw, fio, "control, %s %s: the raw loop against fio", size,
                                        name);
            added->ratio = ratio_of(speed, kind, RAW, FIO);
            added = kvt_store_bench_add(bench, "GB/s", store, fio, "store, %s %s: against fio", size, name);
            added->ratio = ratio_of(speed, kind, STORE, FIO);
            added->target = is_large ? 0.95 : 0.90;
        }
        added = kvt_store_bench_add(bench, "GB/s", store, raw, "store, %s %s: against the raw loop", size, name);
        added->ratio = ratio_of(speed, kind, STORE, RAW);
        added->target = is_large ? 0.85 : 0.65;
        added = kvt_store_bench_add(bench, "core-s/GB", cpu_of(speed, kind, STORE), cpu_of(speed, kind, RAW),
                                    "store, %s %s: CPU", size, name);
        added->target = 0.25;
        added->is_at_most = added->is_value_judged = true;
    }
}

static bool run_rounds(struct speed *speed, const char *size)
{
    struct kvt_progress progress;
    bool is_ok = true;
    kvt_progress_begin(&progress, "store speed", speed->bench->pairs);
    for (uint32_t round = 0; is_ok && round < speed->bench->pairs; round++) {
        for (enum kind kind = PUT; is_ok && kind < KINDS; kind++) is_ok = run_round(speed, kind, round);
        kvt_progress_update(&progress, round + 1, size);
    }
    kvt_progress_end(&progress);
    return is_ok;
}

static bool run_size(struct speed *speed, uint32_t length, uint32_t depth, const char *size)
{
    struct kvt_store_bench *bench = speed->bench;
    const uint32_t count = (uint32_t)(bench->size_bytes / length);
    for (enum kind kind = PUT; kind < KINDS; kind++)
        speed->loads[kind] = (struct kvt_store_load){
            .length = length, .count = count, .depth = depth, .is_put = kind == PUT, .is_random = kind == GET_RANDOM
        };
    struct kvt_store_config config = kvt_store_config_default();
    config.capacity_bytes = bench->size_bytes * 2 + 16 * KVT_MIB;
    config.record_bytes_max = length;
    speed->store = kvt_store_bench_open(bench, "store-speed", &config);
    bool is_ok = speed->store && kvt_store_bench_file_open(bench, (uint64_t)count * length, &speed->file);
    is_ok = is_ok && warm_up(speed, config.capacity_bytes) && run_rounds(speed, size);
    if (is_ok) add_cases(speed, size);
    kvt_store_bench_file_close(&speed->file);
    kvt_store_close(&speed->store);
    kvt_store_bench_remove(bench, "store-speed");
    return is_ok;
}

bool kvt_store_bench_speed(struct kvt_store_bench *bench)
{
    struct speed *speed = kvt_alloc(1, sizeof *speed);
    if (!speed) return kvt_store_bench_fail("out of memory");
    speed->bench = bench;
    const bool is_ok = run_size(speed, (uint32_t)KVT_MIB, 8, "1 MiB")
        && run_size(speed, 64 * (uint32_t)KVT_KIB, 32, "64 KiB");
    kvt_free(speed);
    return is_ok;
}
