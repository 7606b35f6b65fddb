/*
 * How bytes move between the device and the host: one copy, a batch of copies in one call, or a kernel.
 *
 * DMA leaves the multiprocessors to the engine, but pays for each fragment; a kernel of a few CTAs moves any number
 * of fragments at the price of one. From which fragment size on DMA is as fast is measured once, at open, in each
 * direction, alone and beside traffic the other way.
 */
#include <string.h>

#include "kernels/cuda/launch.h"
#include "kernels/gpu_cuda.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/plant.h"

#define CALIBRATION_BYTES (4 * KVT_MIB)
#define FRAGMENT_BYTES_MIN (4 * KVT_KIB)
#define FRAGMENT_BYTES_MAX (256 * KVT_KIB)
#define ROUNDS 3

/* ---- Tables ---------------------------------------------------------------------------------- */

void *kvt_cuda_pinned_alloc(struct kvt_cuda *cuda, size_t size_bytes)
{
    void *memory = NULL;
    return kvt_cuda_ok(cuda, cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable | cudaHostAllocMapped)) ? memory
                                                                                                              : NULL;
}

void *kvt_cuda_device_alloc(struct kvt_cuda *cuda, size_t size_bytes)
{
    void *memory = NULL;
    return kvt_cuda_ok(cuda, cudaMalloc(&memory, size_bytes)) ? memory : NULL;
}

/* One table for each move that can be under way; kernels are used where the memory for theirs is to be had. */
static enum kvt_status make_tables(struct kvt_cuda *c, struct kvt_cuda_stream *s)
{
    const size_t rows = c->config.segments_max, row_bytes = sizeof(struct kvt_pages_run);
    const size_t runs_bytes = rows * KVT_CUDA_TABLES * row_bytes;
    s->tables = kvt_alloc(KVT_CUDA_TABLES, sizeof *s->tables);
    s->table_memory = kvt_alloc(rows * KVT_CUDA_TABLES, 2 * sizeof(void *) + sizeof(size_t));
    if (!s->tables || !s->table_memory) return KVT_NOMEM;
    s->table_pinned = kvt_cuda_pinned_alloc(c, runs_bytes);
    s->table_device = kvt_cuda_device_alloc(c, runs_bytes);
    s->has_kernel_tables = s->table_pinned && s->table_device;
    if (!s->table_pinned) {
        s->table_pinned = kvt_alloc(rows * KVT_CUDA_TABLES, row_bytes);
        if (!s->table_pinned) return KVT_NOMEM;
        s->is_table_pinned_ours = true;
    }
    void **targets = s->table_memory, **sources = targets + rows * KVT_CUDA_TABLES;
    size_t *sizes = (size_t *)(void *)(sources + rows * KVT_CUDA_TABLES);
    for (uint32_t t = 0; t < KVT_CUDA_TABLES; t++) {
        s->tables[t] = (struct kvt_cuda_table){
            .runs = (struct kvt_pages_run *)s->table_pinned + t * rows,
            .device_runs = s->has_kernel_tables ? (struct kvt_pages_run *)s->table_device + t * rows : NULL,
            .targets = targets + t * rows,
            .sources = sources + t * rows,
            .sizes = sizes + t * rows,
        };
    }
    return KVT_OK;
}

void kvt_cuda_tables_done(struct kvt_cuda_stream *stream)
{
    kvt_cuda_pack_done(stream);
    if (stream->is_table_pinned_ours) kvt_free(stream->table_pinned);
    else if (stream->table_pinned) (void)cudaFreeHost(stream->table_pinned);
    if (stream->table_device) (void)cudaFree(stream->table_device);
    if (stream->is_staging_pinned) (void)cudaFreeHost(stream->staging);
    else if (stream->staging) kvt_table_unmap(stream->staging, stream->staging_bytes);
    kvt_free(stream->table_memory);
    kvt_free(stream->tables);
}

/* ---- Moves ----------------------------------------------------------------------------------- */

/* Neighbours on both sides become one run: a whole block of our own memory is a single one. */
static uint32_t join_runs(struct kvt_pages_run *runs, uint32_t count)
{
    uint32_t joined = 0;
    for (uint32_t i = 1; i < count; i++) {
        struct kvt_pages_run *last = &runs[joined];
        if (last->source + last->bytes == runs[i].source && last->target + last->bytes == runs[i].target)
            last->bytes += runs[i].bytes;
        else runs[++joined] = runs[i];
    }
    return count > 0 ? joined + 1 : 0;
}

static bool copy_each(struct kvt_cuda *c, const struct kvt_cuda_table *table, uint32_t count, cudaStream_t handle)
{
    bool is_good = true;
    for (uint32_t i = 0; is_good && i < count; i++) {
        const struct kvt_pages_run *run = &table->runs[i];
        is_good = kvt_cuda_ok(c, cudaMemcpyAsync(run->target, run->source, run->bytes, cudaMemcpyDefault, handle));
    }
    return is_good;
}

/*
 * One call for all copies. The source is read in stream order: "any" would let the engine's unfinished writes be read
 * (B01). The signature changed with CUDA 13 (B60).
 */
static cudaError_t call_batch(const struct kvt_cuda_table *table, uint32_t count, cudaStream_t handle)
{
#if CUDART_VERSION >= 12080
    struct cudaMemcpyAttributes attributes;
    size_t first = 0;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = KVT_PLANTED(ANY_ORDER) ? cudaMemcpySrcAccessOrderAny : cudaMemcpySrcAccessOrderStream;
#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(table->targets, (const void *const *)(void *)table->sources, table->sizes, count,
                                &attributes, &first, 1, handle);
#else
    size_t failed = 0;
    return cudaMemcpyBatchAsync(table->targets, table->sources, table->sizes, count, &attributes, &first, 1, &failed,
                                handle);
#endif
#else
    (void)table;
    (void)count;
    (void)handle;
    return cudaErrorNotSupported;
#endif
}

static bool copy_batch(struct kvt_cuda *c, const struct kvt_cuda_table *table, uint32_t count, cudaStream_t handle)
{
    for (uint32_t i = 0; i < count; i++) {
        table->targets[i] = table->runs[i].target;
        table->sources[i] = (void *)(uintptr_t)table->runs[i].source;
        table->sizes[i] = table->runs[i].bytes;
    }
    const cudaError_t error = call_batch(table, count, handle);
    if (error != cudaErrorNotSupported && error != cudaErrorCallRequiresNewerDriver) return kvt_cuda_ok(c, error);
    (void)cudaGetLastError();
    c->has_batch = false; /* an older driver: nothing was done */
    return copy_each(c, table, count, handle);
}

static bool run_kernel(struct kvt_cuda *c, const struct kvt_cuda_table *table, uint32_t count, uint64_t bytes_max,
                       cudaStream_t handle)
{
    const cudaError_t error = cudaMemcpyAsync(table->device_runs, table->runs, count * sizeof *table->runs,
                                              cudaMemcpyHostToDevice, handle);
    if (!kvt_cuda_ok(c, error)) return false;
    /* The launch takes the error; whether it stays is asked here. */
    if (kvt_cuda_pages_move(table->device_runs, count, bytes_max, KVT_CUDA_CTAS_FEW, handle) == KVT_OK) return true;
    return kvt_cuda_ok(c, cudaErrorLaunchFailure);
}

enum method { METHOD_KERNEL, METHOD_BATCH, METHOD_EACH };

static bool go(struct kvt_cuda *c, const struct kvt_cuda_table *table, uint32_t count, uint64_t bytes_max,
               cudaStream_t handle, enum method method)
{
    switch (method) {
    case METHOD_KERNEL: return run_kernel(c, table, count, bytes_max, handle);
    case METHOD_BATCH: return copy_batch(c, table, count, handle);
    case METHOD_EACH: break;
    }
    return copy_each(c, table, count, handle);
}

/*
 * CUDA loads a kernel when it is first launched, and may wait for the whole device then: for an engine's kernel that
 * waits for something of ours, for ever. So each is launched once before anything runs. It also shows whether there
 * is code for this device at all.
 */
static bool try_kernel(struct kvt_cuda *c, struct kvt_cuda_stream *s)
{
    struct kvt_cuda_table *table = &s->tables[0];
    uint8_t *memory = s->table_device;
    table->runs[0] = (struct kvt_pages_run){ .source = memory + 256, .target = memory + 512, .bytes = 64 };
    return run_kernel(c, table, 1, 64, s->handle) && kvt_cuda_ok(c, cudaStreamSynchronize(s->handle));
}

enum kvt_status kvt_cuda_tables_init(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream)
{
    KVT_TRY(make_tables(cuda, stream));
    /* On an engine's stream it would stand behind the engine's work; a stream of our own is always the first one. */
    if (!stream->engine_stream && stream->has_kernel_tables && !try_kernel(cuda, stream)) cuda->has_no_kernels = true;
    if (cuda->has_no_kernels) stream->has_kernel_tables = false;
    if (stream->engine_stream || cuda->config.staging_bytes == 0) return KVT_OK;
    stream->staging_bytes = KVT_CUDA_STAGING_DEPTH * cuda->config.staging_bytes;
    stream->staging = kvt_cuda_pinned_alloc(cuda, stream->staging_bytes);
    stream->is_staging_pinned = stream->staging != NULL;
    if (stream->staging) kvt_cuda_pack_init(cuda, stream);
    if (stream->staging) return KVT_OK;
    kvt_log(&cuda->env, KVT_LOG_WARN, "staging for copies of the CUDA device is not pinned: they go at pageable speed");
    stream->staging = kvt_table_map(stream->staging_bytes);
    return stream->staging ? KVT_OK : KVT_NOMEM;
}

bool kvt_cuda_issue_move(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream, struct kvt_cuda_table *table,
                         const struct kvt_gpu_move *move, const struct kvt_cuda_way *way)
{
    const struct kvt_pages *pages = &move->pages;
    KVT_ASSERT(pages->count <= cuda->config.segments_max);
    bool is_kernel_possible = stream->has_kernel_tables;
    uint64_t kernel_below = UINT64_MAX; /* within the device a kernel is never the slower one */
    switch (move->kind) {
    case KVT_GPU_MOVE_GATHER: kvt_pages_gather_runs(pages, way->host, table->runs); break;
    case KVT_GPU_MOVE_SCATTER: kvt_pages_scatter_runs(pages, way->host, table->runs); break;
    case KVT_GPU_MOVE_COPY: kvt_pages_copy_runs(&move->source, pages, table->runs); break;
    case KVT_GPU_MOVE_NONE:
    case KVT_GPU_MOVE_PACK:
    case KVT_GPU_MOVE_UNPACK: return true;
    }
    if (move->kind != KVT_GPU_MOVE_COPY) {
        const uint32_t direction = move->kind == KVT_GPU_MOVE_GATHER ? KVT_CUDA_TO_HOST : KVT_CUDA_TO_DEVICE;
        if (!cuda->is_unified || !way->is_pinned) is_kernel_possible = false;
        kernel_below = cuda->choice.kernel_below[direction][way->is_loaded];
    }
    const uint32_t count = join_runs(table->runs, pages->count);
    if (count == 0 || pages->bytes == 0) return true;
    uint64_t bytes_max = 0;
    for (uint32_t i = 0; i < count; i++) bytes_max = kvt_max_u64(bytes_max, table->runs[i].bytes);
    enum method method = METHOD_EACH;
    if (count > 1 && is_kernel_possible && bytes_max < kernel_below) method = METHOD_KERNEL;
    /* CUDA refuses a batch on a default stream (B60); on an engine's stream there are few copies anyway. */
    else if (count > 1 && cuda->has_batch && !stream->engine_stream) method = METHOD_BATCH;
    return go(cuda, table, count, bytes_max, way->handle, method);
}

/* ---- Calibration ----------------------------------------------------------------------------- */

struct trial {
    struct kvt_cuda *cuda;
    struct kvt_cuda_stream lanes[KVT_CUDA_DIRECTIONS]; /* tables and a handle each, nothing else of them is used */
    uint8_t *host[KVT_CUDA_DIRECTIONS], *device[KVT_CUDA_DIRECTIONS];
};

static bool prepare_trial(struct trial *t)
{
    struct kvt_cuda *c = t->cuda;
    for (uint32_t d = 0; d < KVT_CUDA_DIRECTIONS; d++) {
        struct kvt_cuda_stream *lane = &t->lanes[d];
        lane->cuda = c;
        lane->engine_stream = t; /* no staging */
        t->host[d] = kvt_cuda_pinned_alloc(c, CALIBRATION_BYTES);
        t->device[d] = kvt_cuda_device_alloc(c, 2 * CALIBRATION_BYTES);
        if (!t->host[d] || !t->device[d]) return false;
        if (!kvt_cuda_ok(c, cudaStreamCreateWithFlags(&lane->handle, cudaStreamNonBlocking))) return false;
        if (make_tables(c, lane) != KVT_OK || !lane->has_kernel_tables) return false;
    }
    return true;
}

static void end_trial(struct trial *t)
{
    for (uint32_t d = 0; d < KVT_CUDA_DIRECTIONS; d++) {
        struct kvt_cuda_stream *lane = &t->lanes[d];
        if (lane->handle) {
            (void)kvt_cuda_ok(t->cuda, cudaStreamSynchronize(lane->handle));
            (void)cudaStreamDestroy(lane->handle);
        }
        if (t->host[d]) (void)cudaFreeHost(t->host[d]);
        if (t->device[d]) (void)cudaFree(t->device[d]);
        kvt_cuda_tables_done(lane);
    }
    (void)cudaGetLastError();
}

/* Fragments with gaps between them on the device, one behind the other on the host. */
static uint32_t lay_out(struct trial *t, uint32_t direction, uint64_t fragment_bytes)
{
    const uint32_t count = (uint32_t)kvt_min_u64(t->cuda->config.segments_max, CALIBRATION_BYTES / fragment_bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *on_device = t->device[direction] + 2 * i * fragment_bytes;
        uint8_t *on_host = t->host[direction] + i * fragment_bytes;
        t->lanes[direction].tables[0].runs[i] = (struct kvt_pages_run){
            .source = direction == KVT_CUDA_TO_HOST ? on_device : on_host,
            .target = direction == KVT_CUDA_TO_HOST ? on_host : on_device,
            .bytes = fragment_bytes,
        };
    }
    return count;
}

/* The shortest of some rounds; UINT64_MAX when one failed. */
static uint64_t time_of(struct trial *t, uint32_t direction, uint32_t count, uint64_t fragment_bytes,
                        enum method method, bool is_loaded)
{
    struct kvt_cuda *c = t->cuda;
    const uint32_t other = 1 - direction;
    uint64_t best_ns = UINT64_MAX;
    for (uint32_t round = 0; round <= ROUNDS; round++) {
        void *target = other == KVT_CUDA_TO_HOST ? t->host[other] : t->device[other];
        const void *source = other == KVT_CUDA_TO_HOST ? t->device[other] : t->host[other];
        if (is_loaded) {
            const cudaError_t error = cudaMemcpyAsync(target, source, CALIBRATION_BYTES, cudaMemcpyDefault,
                                                      t->lanes[other].handle);
            if (!kvt_cuda_ok(c, error)) return UINT64_MAX;
        }
        const uint64_t start_ns = kvt_env_now_ns(&c->env);
        const cudaStream_t handle = t->lanes[direction].handle;
        if (!go(c, &t->lanes[direction].tables[0], count, fragment_bytes, handle, method)) return UINT64_MAX;
        if (!kvt_cuda_ok(c, cudaStreamSynchronize(handle))) return UINT64_MAX;
        /* The first round loads the kernel. */
        if (round > 0) best_ns = kvt_min_u64(best_ns, kvt_env_now_ns(&c->env) - start_ns);
        if (!kvt_cuda_ok(c, cudaStreamSynchronize(t->lanes[other].handle))) return UINT64_MAX;
    }
    return best_ns;
}

/* The smallest size from which on DMA is as fast; 0: it always is. */
static uint64_t find_limit(struct trial *t, uint32_t direction, bool is_loaded)
{
    uint64_t limit = 0;
    for (uint64_t bytes = FRAGMENT_BYTES_MIN; bytes <= FRAGMENT_BYTES_MAX; bytes *= 2) {
        const uint32_t count = lay_out(t, direction, bytes);
        const enum method dma = t->cuda->has_batch ? METHOD_BATCH : METHOD_EACH;
        const uint64_t dma_ns = time_of(t, direction, count, bytes, dma, is_loaded);
        const uint64_t kernel_ns = time_of(t, direction, count, bytes, METHOD_KERNEL, is_loaded);
        if (kernel_ns >= dma_ns) break;
        limit = 2 * bytes;
    }
    return limit;
}

void kvt_cuda_calibrate(struct kvt_cuda *cuda)
{
    struct kvt_cuda_choice *choice = &cuda->choice;
    const uint64_t fixed = cuda->config.fragment_bytes_max;
    if (fixed > 0 || cuda->config.segments_max < 2) {
        for (uint32_t i = 0; i < 4; i++) choice->kernel_below[i / 2][i % 2] = fixed;
        return;
    }
    struct trial trial = { .cuda = cuda };
    const bool is_possible = cuda->is_unified && prepare_trial(&trial);
    for (uint32_t i = 0; is_possible && i < 4; i++)
        choice->kernel_below[i / 2][i % 2] = find_limit(&trial, i / 2, i % 2);
    end_trial(&trial);
}
