/* bench copy: what the link gives, and what of it arrives in blocks, in fragments, and beside a kernel. */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/bench/copy_bench.h"

#define ARENA_BYTES (64 * KVT_MIB) /* on each side, for each direction */
#define PEAK_BYTES (32 * KVT_MIB)
#define FRAGMENT_BYTES (32 * KVT_KIB)
#define COMPUTE_PASSES_MAX 64

enum { FRAGMENTS = 64, JOBS_MAX = 256, LAYERS = 32 };

struct links {
    struct kvt_copy_bench *bench;
    struct kvt_gpu *gpu;
    uint32_t lanes[KVT_COPY_DIRECTIONS], compute; /* streams */
    uint8_t *host[KVT_COPY_DIRECTIONS], *device[KVT_COPY_DIRECTIONS];
    bool is_pinned[KVT_COPY_DIRECTIONS];
    void *base[KVT_COPY_DIRECTIONS][FRAGMENTS];
    uint64_t stride[KVT_COPY_DIRECTIONS][FRAGMENTS];
    struct kvt_gpu_job jobs[KVT_COPY_DIRECTIONS][JOBS_MAX], kernels[COMPUTE_PASSES_MAX * LAYERS];
};

static void run_move(struct kvt_gpu_job *job)
{
    struct kvt_gpu_move *move = &job->move;
    if (move->kind == KVT_GPU_MOVE_GATHER) kvt_pages_gather_ref(&move->pages, move->host);
    else if (move->kind == KVT_GPU_MOVE_SCATTER) kvt_pages_scatter_ref(&move->pages, move->host);
    else kvt_pages_copy_ref(&move->source, &move->pages);
    job->link_bytes = move->kind == KVT_GPU_MOVE_COPY ? 0 : move->pages.count * move->pages.bytes;
}

/*
 * ---- Jobs --------------------------------------------------------------------------------------------------------
 */

/* A block of `count` segments of `bytes`, with as much between them as they have. */
struct layout {
    uint32_t count;
    uint64_t bytes;
};

/* Puts jobs for size_bytes on the direction's stream; returns how many bytes they move. */
static uint64_t submit_all(struct links *l, uint32_t direction, struct layout layout)
{
    const uint64_t block_bytes = layout.count * layout.bytes, gap = layout.count > 1 ? 2 : 1;
    const uint64_t slots = ARENA_BYTES / (gap * block_bytes);
    const uint64_t count = kvt_min_u64(JOBS_MAX, kvt_max_u64(l->bench->size_bytes / block_bytes, 2));
    for (uint32_t s = 0; s < layout.count; s++) {
        l->base[direction][s] = l->device[direction] + gap * s * layout.bytes;
        l->stride[direction][s] = gap * block_bytes;
    }
    for (uint64_t i = 0; i < count; i++) {
        struct kvt_gpu_job *job = &l->jobs[direction][i];
        *job = (struct kvt_gpu_job){ .run = run_move };
        job->move.kind = direction == KVT_COPY_TO_HOST ? KVT_GPU_MOVE_GATHER : KVT_GPU_MOVE_SCATTER;
        job->move.pages = (struct kvt_pages){ .count = layout.count,
                                              .base = l->base[direction],
                                              .stride = l->stride[direction],
                                              .slot = i % slots,
                                              .bytes = layout.bytes };
        job->move.host = l->host[direction] + i % (ARENA_BYTES / block_bytes) * block_bytes;
        l->gpu->ops->submit(l->gpu, l->lanes[direction], job);
    }
    return count * block_bytes;
}

static void wait_for(struct links *l, uint32_t stream)
{
    l->gpu->ops->synchronize(l->gpu, l->gpu->ops->mark(l->gpu, stream));
}

/* Median GB/s of one direction, or of both at once (direction KVT_COPY_DIRECTIONS). */
static double rate_of(struct links *l, uint32_t direction, struct layout layout)
{
    double rates[KVT_COPY_BENCH_ROUNDS_MAX];
    for (uint32_t round = 0; round <= l->bench->rounds; round++) {
        const double start = kvt_copy_bench_seconds();
        uint64_t bytes = 0;
        for (uint32_t d = 0; d < KVT_COPY_DIRECTIONS; d++)
            if (direction == d || direction == KVT_COPY_DIRECTIONS) bytes += submit_all(l, d, layout);
        for (uint32_t d = 0; d < KVT_COPY_DIRECTIONS; d++) wait_for(l, l->lanes[d]);
        const double seconds = kvt_copy_bench_seconds() - start;
        if (round > 0) rates[round - 1] = (double)bytes * 1e-9 / seconds; /* the first one warms up */
    }
    return kvt_copy_bench_median(rates, l->bench->rounds);
}

static double rate_of_memcpy(struct links *l)
{
    double rates[KVT_COPY_BENCH_ROUNDS_MAX];
    for (uint32_t round = 0; round <= l->bench->rounds; round++) {
        const double start = kvt_copy_bench_seconds();
        memcpy(l->host[KVT_COPY_TO_HOST], l->host[KVT_COPY_TO_DEVICE], ARENA_BYTES);
        if (round > 0) rates[round - 1] = (double)ARENA_BYTES * 1e-9 / (kvt_copy_bench_seconds() - start);
    }
    return kvt_copy_bench_median(rates, l->bench->rounds);
}

/*
 * ---- Cases -------------------------------------------------------------------------------------------------------
 */

static const char *const names[KVT_COPY_DIRECTIONS] = { "to host", "to device" };

static void measure_links(struct links *l)
{
    struct kvt_copy_bench *bench = l->bench;
    const bool is_emulated = bench->gpu_ops == &kvt_gpu_emulated_ops;
    const struct layout peak = { 1, PEAK_BYTES };
    bench->memcpy_rate = rate_of_memcpy(l);
    for (uint32_t d = 0; d < KVT_COPY_DIRECTIONS; d++) {
        bench->peak[d] = rate_of(l, d, peak);
        kvt_copy_bench_add(bench, "GB/s", bench->peak[d], is_emulated ? bench->memcpy_rate : bench->peak[d], 0,
                           "pinned peak %s", names[d]);
    }
    const double both = rate_of(l, KVT_COPY_DIRECTIONS, peak);
    kvt_copy_bench_add(bench, "GB/s", both, bench->peak[0] + bench->peak[1], 0, "pinned peak both ways");
    for (uint32_t d = 0; d < KVT_COPY_DIRECTIONS; d++) {
        for (uint64_t bytes = KVT_MIB; bytes <= 2 * KVT_MIB; bytes *= 2)
            kvt_copy_bench_add(bench, "GB/s", rate_of(l, d, (struct layout){ 1, bytes }), bench->peak[d], 0.95,
                               "blocks of %u MiB %s", (unsigned)(bytes / KVT_MIB), names[d]);
        kvt_copy_bench_add(bench, "GB/s", rate_of(l, d, (struct layout){ FRAGMENTS, FRAGMENT_BYTES }), bench->peak[d],
                           0.80, "fragments of 32 KiB %s", names[d]);
    }
}

/* Copies within the device on the engine's stream: they stand for a layer's kernels. */
static void submit_compute(struct links *l, uint32_t layer, uint32_t passes)
{
    const struct kvt_pages half = { .count = FRAGMENTS / 2,
                                    .base = l->base[KVT_COPY_TO_HOST],
                                    .stride = l->stride[KVT_COPY_TO_HOST],
                                    .bytes = FRAGMENT_BYTES };
    for (uint32_t i = 0; i < passes; i++) {
        struct kvt_gpu_job *job = &l->kernels[layer * COMPUTE_PASSES_MAX + i];
        *job = (struct kvt_gpu_job){ .run = run_move };
        job->move.kind = KVT_GPU_MOVE_COPY;
        job->move.source = half;
        job->move.pages = half;
        job->move.pages.base += FRAGMENTS / 2;
        l->gpu->ops->submit(l->gpu, l->compute, job);
    }
}

static void submit_layer(struct links *l, uint32_t layer)
{
    struct kvt_gpu_job *job = &l->jobs[KVT_COPY_TO_DEVICE][layer];
    *job = (struct kvt_gpu_job){ .run = run_move };
    job->move.kind = KVT_GPU_MOVE_SCATTER;
    job->move.pages = (struct kvt_pages){ .count = FRAGMENTS,
                                          .base = l->base[KVT_COPY_TO_DEVICE],
                                          .stride = l->stride[KVT_COPY_TO_DEVICE],
                                          .slot = layer % 8,
                                          .bytes = FRAGMENT_BYTES };
    job->move.host = l->host[KVT_COPY_TO_DEVICE] + layer % 8 * FRAGMENTS * FRAGMENT_BYTES;
    l->gpu->ops->submit(l->gpu, l->lanes[KVT_COPY_TO_DEVICE], job);
}

/* Milliseconds of a step of LAYERS layers: their fetches, their kernels, each kernel behind its own layer's fetch. */
static double step_of(struct links *l, bool has_fetch, uint32_t passes)
{
    double times[KVT_COPY_BENCH_ROUNDS_MAX];
    const struct kvt_gpu_ops *ops = l->gpu->ops;
    for (uint32_t round = 0; round <= l->bench->rounds; round++) {
        kvt_mark marks[LAYERS] = { 0 };
        const double start = kvt_copy_bench_seconds();
        for (uint32_t i = 0; i < LAYERS && has_fetch; i++) {
            submit_layer(l, i);
            marks[i] = ops->mark(l->gpu, l->lanes[KVT_COPY_TO_DEVICE]);
        }
        for (uint32_t i = 0; i < LAYERS && passes > 0; i++) {
            ops->wait(l->gpu, l->compute, marks[i]);
            submit_compute(l, i, passes);
        }
        wait_for(l, l->lanes[KVT_COPY_TO_DEVICE]);
        wait_for(l, l->compute);
        if (round > 0) times[round - 1] = (kvt_copy_bench_seconds() - start) * 1e3;
    }
    return kvt_copy_bench_median(times, l->bench->rounds);
}

/*
 * As much compute as there is fetching, or somewhat more; then both at once. What could be had is the longer of the
 * two.
 */
static void measure_overlap(struct links *l)
{
    (void)rate_of(l, KVT_COPY_TO_HOST, (struct layout){ FRAGMENTS, FRAGMENT_BYTES }); /* lays the fragments out */
    (void)rate_of(l, KVT_COPY_TO_DEVICE, (struct layout){ FRAGMENTS, FRAGMENT_BYTES });
    const double fetch = step_of(l, true, 0);
    uint32_t passes = 1;
    double compute = step_of(l, false, passes);
    while (compute < fetch && passes < COMPUTE_PASSES_MAX) compute = step_of(l, false, passes *= 2);
    const double both = step_of(l, true, passes);
    const double longer = fetch > compute ? fetch : compute;
    kvt_copy_bench_add(l->bench, "steps/s", 1e3 / both, 1e3 / longer, 0, "layers fetched beside a kernel");
    kvt_copy_bench_add(l->bench, "steps/s", 1e3 / both, 1e3 / (fetch + compute), 0, "  against one after the other");
}

/* What went to the device comes back, block by block, and is what it was. */
static void check(struct links *l)
{
    struct kvt_copy_bench *bench = l->bench;
    const struct layout layouts[] = { { 1, 2 * KVT_MIB }, { FRAGMENTS, FRAGMENT_BYTES } };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(layouts); i++) {
        const uint64_t bytes = ARENA_BYTES / 2, size_bytes = bench->size_bytes;
        uint8_t *out = l->host[KVT_COPY_TO_DEVICE], *in = l->host[KVT_COPY_TO_HOST], *device = l->device[0];
        for (uint64_t at = 0; at < bytes; at += 8) kvt_store_u64(out + at, (at + i) * UINT64_C(0x9e3779b97f4a7c15));
        memset(in, 0, bytes);
        bench->size_bytes = bytes;
        l->device[0] = l->device[1]; /* what comes is what went */
        (void)submit_all(l, KVT_COPY_TO_DEVICE, layouts[i]);
        wait_for(l, l->lanes[KVT_COPY_TO_DEVICE]);
        (void)submit_all(l, KVT_COPY_TO_HOST, layouts[i]);
        wait_for(l, l->lanes[KVT_COPY_TO_HOST]);
        l->device[0] = device;
        bench->size_bytes = size_bytes;
        for (uint64_t at = 0; at < bytes; at++) bench->mismatches += in[at] != out[at];
        bench->bytes_checked += bytes;
    }
}

/*
 * ---- Open and close ----------------------------------------------------------------------------------------------
 */

static bool open_links(struct links *l)
{
    const struct kvt_gpu_config config = { .segments_max = FRAGMENTS };
    const struct kvt_gpu_ops *ops = l->bench->gpu_ops;
    const enum kvt_status status = ops->open(&config, &l->bench->env, &l->gpu);
    if (status != KVT_OK) return kvt_copy_bench_fail("the %s device: %s", ops->name, kvt_status_text(status));
    ops->describe(l->gpu, l->bench->description, sizeof l->bench->description);
    for (uint32_t d = 0; d < KVT_COPY_DIRECTIONS; d++) {
        if (ops->stream(l->gpu, NULL, &l->lanes[d]) != KVT_OK) return kvt_copy_bench_fail("no stream");
        l->host[d] = kvt_table_map(ARENA_BYTES);
        l->device[d] = ops->memory_alloc(l->gpu, ARENA_BYTES);
        if (!l->host[d] || !l->device[d]) return kvt_copy_bench_fail("out of memory");
        memset(l->host[d], (int)d + 1, ARENA_BYTES);
        l->is_pinned[d] = ops->host_pin(l->gpu, l->host[d], ARENA_BYTES);
        if (!l->is_pinned[d]) return kvt_copy_bench_fail("host memory cannot be pinned for the device");
    }
    void *engine = ops->engine_stream(l->gpu, 0);
    if (!engine || ops->stream(l->gpu, engine, &l->compute) != KVT_OK) return kvt_copy_bench_fail("no stream");
    return true;
}

static void close_links(struct links *l)
{
    const struct kvt_gpu_ops *ops = l->bench->gpu_ops;
    for (uint32_t d = 0; d < KVT_COPY_DIRECTIONS && l->gpu; d++) {
        if (l->is_pinned[d]) ops->host_unpin(l->gpu, l->host[d], ARENA_BYTES);
        ops->memory_free(l->gpu, l->device[d], ARENA_BYTES);
        if (l->host[d]) kvt_table_unmap(l->host[d], ARENA_BYTES);
    }
    if (l->gpu) ops->close(l->gpu);
}

bool kvt_copy_bench_links(struct kvt_copy_bench *bench)
{
    struct links *l = kvt_alloc(1, sizeof *l);
    if (!l) return kvt_copy_bench_fail("out of memory");
    l->bench = bench;
    bool is_good = open_links(l);
    if (is_good) {
        check(l);
        measure_links(l);
        measure_overlap(l);
        if (l->gpu->ops->is_lost(l->gpu)) is_good = kvt_copy_bench_fail("the device was lost");
    }
    close_links(l);
    kvt_free(l);
    return is_good;
}
