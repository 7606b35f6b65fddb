/* Checksums of tables of runs: of lengths around a piece's and a tile's, at every alignment, from any start. */
#include "kernels/checksum.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/kernels/checkkern.h"
#include "tests/kernels/launches.h"

enum { REF, BODY, BEST, LAUNCHES, RUNS_MAX = 12, SOURCE_BYTES = 3 * KVT_CHECKSUM_TILE };

static const char *impl(uint32_t i)
{
    static const char *const names[] = { "reference", "body", "best" };
    if (i < LAUNCHES) return names[i];
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    return side ? side->name : NULL;
}

static bool is_here(uint32_t i) { return i < LAUNCHES || kern_launches_from(i, LAUNCHES)->is_here(); }

static bool sum(uint32_t i, const struct kvt_checksum_run *runs, uint32_t count, uint64_t size_max, uint32_t ctas)
{
    static kvt_checksum_fn *const on_cpu[] = { kvt_checksum_ref, kvt_checksum_body, kvt_checksum_best };
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    if (side) return side->checksum(runs, count, size_max, ctas, NULL) == KVT_OK && side->finish();
    on_cpu[i](runs, count);
    return true;
}

static uint64_t size_of_run(struct kvt_rng *rng)
{
    static const uint64_t sizes[] = { 0,
                                      1,
                                      2,
                                      7,
                                      255,
                                      256,
                                      257,
                                      4095,
                                      8192,
                                      KVT_CHECKSUM_TILE - 1,
                                      KVT_CHECKSUM_TILE,
                                      KVT_CHECKSUM_TILE + 1,
                                      2 * KVT_CHECKSUM_TILE + 77 };
    return sizes[kvt_rng_below(rng, KVT_ARRAY_COUNT(sizes))];
}

static bool check_table(uint32_t i, struct kern_run *run, struct kvt_rng *rng)
{
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    const uint32_t count = (uint32_t)kvt_rng_below(rng, RUNS_MAX + 1);
    struct kern_buffer source, table, results;
    kern_buffer_init(&source, side, SOURCE_BYTES, 0);
    kern_fill_random(source.bytes, SOURCE_BYTES, rng);
    kern_buffer_init(&table, side, sizeof(struct kvt_checksum_run) * RUNS_MAX, 0);
    kern_buffer_init(&results, side, sizeof(uint32_t) * RUNS_MAX, 0);
    struct kvt_checksum_run *runs = (struct kvt_checksum_run *)(void *)table.bytes, wanted_runs[RUNS_MAX];
    uint32_t *crc = (uint32_t *)(void *)results.bytes, wanted[RUNS_MAX];
    uint64_t size_max = 0;
    for (uint32_t r = 0; r < count; r++) {
        const uint64_t size = size_of_run(rng);
        runs[r] = (struct kvt_checksum_run){ .bytes = source.bytes + kvt_rng_below(rng, SOURCE_BYTES - size + 1),
                                             .size = size,
                                             .before = kvt_rng_below(rng, 2) ? (uint32_t)kvt_rng_next(rng) : 0,
                                             .ret_crc = &crc[r] };
        wanted_runs[r] = runs[r];
        wanted_runs[r].ret_crc = &wanted[r];
        size_max = kvt_max_u64(size_max, size);
    }
    bool is_ok = sum(i, runs, count, size_max, (uint32_t)kvt_rng_below(rng, 5))
        || kern_differs(run, "the launch failed");
    kvt_checksum_ref(wanted_runs, count);
    for (uint32_t r = 0; is_ok && r < count; r++)
        if (crc[r] != wanted[r])
            is_ok = kern_differs(run, "run %u of %zu bytes: %08x, not %08x", r, (size_t)runs[r].size, crc[r],
                                 wanted[r]);
    if (is_ok && !(kern_buffer_is_intact(&source) && kern_buffer_is_intact(&results) && kern_buffer_is_intact(&table)))
        is_ok = kern_differs(run, "a canary");
    kern_buffer_done(&source);
    kern_buffer_done(&table);
    kern_buffer_done(&results);
    run->compared += count;
    return is_ok;
}

static bool check(uint32_t i, struct kern_run *run)
{
    struct kvt_rng rng = { run->seed };
    for (uint32_t round = 0; round < 12; round++)
        if (!check_table(i, run, &rng)) return false;
    return true;
}

/* ---- Speed: 16 runs of 1 MiB ----------------------------------------------------------------------------------- */

enum { BENCH_RUNS = 16, BENCH_SIZE = 1 << 20 };

struct bench {
    uint32_t impl;
    const struct kern_launches *side;
    uint8_t *memory;
    uint32_t *results;
    struct kvt_checksum_run *runs;
};

static void bench_close(void *user)
{
    struct bench *b = user;
    if (b->side) {
        b->side->device_free(b->memory);
        b->side->memory_free(b->results);
        b->side->memory_free(b->runs);
    } else {
        kvt_free(b->memory);
        kvt_free(b->results);
        kvt_free(b->runs);
    }
    kvt_free(b);
}

static void *bench_open(uint32_t i, uint64_t *ret_bytes)
{
    struct bench *b = i == REF ? NULL : kvt_alloc(1, sizeof *b);
    if (!b) return NULL;
    const size_t bytes = (size_t)BENCH_RUNS * BENCH_SIZE, table = BENCH_RUNS * sizeof b->runs[0];
    b->impl = i;
    b->side = kern_launches_from(i, LAUNCHES);
    b->memory = b->side ? b->side->device_alloc(bytes) : kvt_alloc(1, bytes);
    b->results = b->side ? b->side->memory_alloc(sizeof(uint32_t) * BENCH_RUNS)
                         : kvt_alloc(BENCH_RUNS, sizeof(uint32_t));
    b->runs = b->side ? b->side->memory_alloc(table) : kvt_alloc(1, table);
    if (!b->memory || !b->results || !b->runs) {
        bench_close(b);
        return NULL;
    }
    for (uint32_t r = 0; r < BENCH_RUNS; r++)
        b->runs[r] = (struct kvt_checksum_run){ .bytes = b->memory + (size_t)r * BENCH_SIZE,
                                                .size = BENCH_SIZE,
                                                .ret_crc = &b->results[r] };
    kern_touch(b->side, b->memory, bytes);
    *ret_bytes = bytes;
    return b;
}

static void bench_pass(void *user)
{
    const struct bench *b = user;
    (void)sum(b->impl, b->runs, BENCH_RUNS, BENCH_SIZE, 64);
}

const struct kern_kernel kern_checksum = {
    .name = "checksum",
    .what = "CRC32C of many runs, in pieces",
    .impl = impl,
    .is_here = is_here,
    .check = check,
    .bench_open = bench_open,
    .bench_pass = bench_pass,
    .bench_close = bench_close,
};
