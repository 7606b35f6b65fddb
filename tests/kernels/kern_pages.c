/* Gather, scatter and copy: a table of runs, of lengths around a tile's and at every alignment. */
#include <string.h>

#include "kernels/pages.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/kernels/checkkern.h"
#include "tests/kernels/launches.h"

enum { REF, BODY, LAUNCHES, RUNS_MAX = 24 };

static const char *impl(uint32_t i)
{
    if (i == REF) return "reference";
    if (i == BODY) return "body";
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    return side ? side->name : NULL;
}

static bool is_here(uint32_t i) { return i < LAUNCHES || kern_launches_from(i, LAUNCHES)->is_here(); }

/* The table that an implementation gets lies on its side. */
static bool move(uint32_t i, const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max, uint32_t ctas)
{
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    if (!side) {
        (i == REF ? kvt_pages_move_runs_ref : kvt_pages_move_runs_body)(runs, count, bytes_max);
        return true;
    }
    return side->pages_move(runs, count, bytes_max, ctas, NULL) == KVT_OK && side->finish();
}

static uint64_t length_of(struct kvt_rng *rng)
{
    static const uint64_t lengths[] = { 0,
                                        1,
                                        3,
                                        15,
                                        16,
                                        17,
                                        31,
                                        255,
                                        256,
                                        4096,
                                        4097,
                                        KVT_PAGES_TILE - 1,
                                        KVT_PAGES_TILE,
                                        KVT_PAGES_TILE + 1,
                                        2 * KVT_PAGES_TILE + 33 };
    return lengths[kvt_rng_below(rng, KVT_ARRAY_COUNT(lengths))];
}

/* One table: the sources in one buffer, shuffled and overlapping; the targets one behind the other with gaps. */
static bool check_table(uint32_t i, struct kern_run *run, struct kvt_rng *rng)
{
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    const uint32_t count = (uint32_t)kvt_rng_below(rng, RUNS_MAX + 1);
    const uint32_t ctas = (uint32_t)kvt_rng_below(rng, 6);
    const size_t source_bytes = 3 * KVT_PAGES_TILE;
    uint64_t lengths[RUNS_MAX], bytes_max = 0;
    size_t total = 0;
    for (uint32_t r = 0; r < count; r++) {
        lengths[r] = length_of(rng);
        bytes_max = kvt_max_u64(bytes_max, lengths[r]);
        total += lengths[r] + 32;
    }
    struct kern_buffer source, targets[2], table;
    kern_buffer_init(&source, side, source_bytes, kvt_rng_below(rng, 2) * kvt_rng_below(rng, 32));
    kern_fill_random(source.bytes, source_bytes, rng);
    const size_t misalign = kvt_rng_below(rng, 32);
    for (uint32_t k = 0; k < 2; k++) kern_buffer_init(&targets[k], side, total, misalign);
    kern_buffer_init(&table, side, sizeof(struct kvt_pages_run) * RUNS_MAX, 0);
    struct kvt_pages_run *runs = (struct kvt_pages_run *)(void *)table.bytes, wanted[RUNS_MAX];
    size_t at = 0;
    for (uint32_t r = 0; r < count; r++) {
        const size_t gap = kvt_rng_below(rng, 2) ? kvt_rng_below(rng, 32) : 16;
        runs[r] = (struct kvt_pages_run){ .source = source.bytes + kvt_rng_below(rng, source_bytes - lengths[r] + 1),
                                          .target = targets[0].bytes + at + gap,
                                          .bytes = lengths[r] };
        if (kvt_rng_below(rng, 3) == 0) runs[r].source = source.bytes;
        wanted[r] = runs[r];
        wanted[r].target = targets[1].bytes + at + gap;
        at += gap + lengths[r];
    }
    bool is_ok = move(i, runs, count, bytes_max, ctas) || kern_differs(run, "the launch failed");
    kvt_pages_move_runs_ref(wanted, count, bytes_max);
    const size_t index = kern_first_difference(targets[0].bytes, targets[1].bytes, total);
    if (is_ok && index < total)
        is_ok = kern_differs(run, "%u runs of up to %zu bytes, byte %zu", count, (size_t)bytes_max, index);
    if (is_ok
        && !(kern_buffer_is_intact(&targets[0]) && kern_buffer_is_intact(&source) && kern_buffer_is_intact(&table)))
        is_ok = kern_differs(run, "%u runs of up to %zu bytes, a canary", count, (size_t)bytes_max);
    kern_buffer_done(&table);
    for (uint32_t k = 0; k < 2; k++) kern_buffer_done(&targets[k]);
    kern_buffer_done(&source);
    run->compared++;
    return is_ok;
}

static bool check(uint32_t i, struct kern_run *run)
{
    struct kvt_rng rng = { run->seed };
    for (uint32_t round = 0; round < 60; round++)
        if (!check_table(i, run, &rng)) return false;
    return true;
}

/* ---- Speed: 32 MiB of segments of 32 KiB ----------------------------------------------------------------------- */

enum { BENCH_RUNS = 1024, BENCH_RUN_BYTES = 32768 };

struct bench {
    uint32_t impl;
    const struct kern_launches *side;
    uint8_t *memory[2];
    struct kvt_pages_run *runs;
};

static void bench_close(void *user)
{
    struct bench *b = user;
    for (uint32_t k = 0; k < 2; k++) {
        if (b->side) b->side->device_free(b->memory[k]);
        else kvt_free(b->memory[k]);
    }
    if (b->side) b->side->memory_free(b->runs);
    else kvt_free(b->runs);
    kvt_free(b);
}

static void *bench_open(uint32_t i, uint64_t *ret_bytes)
{
    struct bench *b = kvt_alloc(1, sizeof *b);
    if (!b) return NULL;
    const size_t bytes = (size_t)BENCH_RUNS * BENCH_RUN_BYTES;
    b->impl = i;
    b->side = kern_launches_from(i, LAUNCHES);
    for (uint32_t k = 0; k < 2; k++) b->memory[k] = b->side ? b->side->device_alloc(bytes) : kvt_alloc(1, bytes);
    const size_t table = BENCH_RUNS * sizeof b->runs[0];
    b->runs = b->side ? b->side->memory_alloc(table) : kvt_alloc(1, table);
    if (!b->memory[0] || !b->memory[1] || !b->runs) {
        bench_close(b);
        return NULL;
    }
    for (uint32_t r = 0; r < BENCH_RUNS; r++)
        b->runs[r] = (struct kvt_pages_run){ .source = b->memory[0] + (size_t)(r * 37 % BENCH_RUNS) * BENCH_RUN_BYTES,
                                             .target = b->memory[1] + (size_t)r * BENCH_RUN_BYTES,
                                             .bytes = BENCH_RUN_BYTES };
    for (uint32_t k = 0; k < 2; k++) kern_touch(b->side, b->memory[k], bytes);
    *ret_bytes = bytes;
    return b;
}

static void bench_pass(void *user)
{
    const struct bench *b = user;
    (void)move(b->impl, b->runs, BENCH_RUNS, BENCH_RUN_BYTES, 16);
}

const struct kern_kernel kern_pages = {
    .name = "pages",
    .what = "gather, scatter and copy of segments",
    .impl = impl,
    .is_here = is_here,
    .check = check,
    .bench_open = bench_open,
    .bench_pass = bench_pass,
    .bench_close = bench_close,
};
