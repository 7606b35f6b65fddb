#include "tiers/device_tier.h"

#include <pthread.h>
#include <string.h>

#include "kernels/block_pack.h"
#include "kernels/gpu_emulated.h"
#include "kernels/pages.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/codec.h"
#include "tiers/codec_device.h"

#define QUEUE_DEPTH_DEFAULT 64

struct device_tier;

/* One op in flight. */
struct device_job {
    struct kvt_gpu_job job; /* first member */
    struct device_tier *tier;
    struct kvt_tier_op *op;
    bool is_refused;         /* the host's part of it said why in op->status */
    struct device_job *next; /* in the free list or the done list */
};

/* Where the blocks of a group lie: an engine's segments, or ours cut out of the pool's memory. */
struct group_map {
    uint32_t segment_count;
    uint32_t planes; /* segments of a layer */
    uint32_t layers;
    uint32_t tokens_max; /* rows of a segment */
    uint64_t row_bytes;
    uint64_t block_bytes; /* a full block, raw */
    uint32_t slot_count;
    bool is_owned;
    void **base;
    uint64_t *stride;
};

/* What the jobs of one stream need; they run one after the other. */
struct lane {
    void *scratch;                /* the codec's; NULL without one */
    struct kvt_chunk_view *views; /* one for each layer of the deepest group */
};

struct device_tier {
    struct kvt_tier tier;
    struct kvt_env env;
    struct kvt_gpu *gpu;
    bool is_remote; /* the CPU cannot touch the device's memory */
    bool can_pack;  /* the device does it by itself */
    struct kvt_codec *codec;
    struct kvt_wake wake;
    uint32_t group_count, pool_count;
    struct group_map groups[KVT_GROUPS_MAX];
    void *pool_memory[KVT_GROUPS_MAX];
    size_t pool_bytes[KVT_GROUPS_MAX];
    size_t scratch_bytes, views_bytes;
    struct lane lanes[KVT_DEVICE_STREAMS];
    uint64_t capacity_bytes;

    struct device_job *jobs;
    struct device_job *free_jobs; /* under the caller's lock, as submit and poll are */

    pthread_mutex_t lock;                  /* of the members below */
    struct device_job *done_first;         /* shared: finished jobs in the order in which they finished */
    struct device_job **done_last;         /* shared */
    uint64_t bytes_in, bytes_out, dropped; /* shared */
};

static struct device_tier *device_of(struct kvt_tier *tier) { return (struct device_tier *)tier; }

static struct kvt_pages pages_of(const struct group_map *map, uint32_t slot, uint32_t tokens)
{
    return (struct kvt_pages){
        .count = map->segment_count,
        .base = map->base,
        .stride = map->stride,
        .slot = slot,
        .bytes = tokens * map->row_bytes,
    };
}

/* ---- Jobs: in the thread of their stream ----------------------------------------------------- */

static const struct kvt_chunk_view *view_chunks(const struct group_map *map, struct lane *lane,
                                                const struct kvt_pages *pages)
{
    for (uint32_t layer = 0; layer < pages->count / map->planes; layer++) {
        struct kvt_chunk_view *view = &lane->views[layer];
        view->plane[0] = kvt_pages_segment(pages, layer * map->planes);
        view->plane[1] = map->planes == 2 ? kvt_pages_segment(pages, layer * 2 + 1) : NULL;
    }
    return lane->views;
}

/* Reads the valid tokens only: the engine may be writing the others at this moment. */
static enum kvt_status run_stash(struct device_tier *d, struct kvt_tier_op *op)
{
    const struct group_map *map = &d->groups[op->group];
    const struct kvt_pages pages = pages_of(map, op->slot, op->tokens);
    if (op->form == KVT_FORM_PACKED && d->codec) {
        struct lane *lane = &d->lanes[KVT_DEVICE_STREAM_STASH];
        const uint64_t start_ns = kvt_env_now_ns(&d->env);
        const uint32_t length = kvt_codec_pack(d->codec, op->group, view_chunks(map, lane, &pages), op->tokens,
                                               op->host, op->host_capacity, lane->scratch);
        op->codec_ns = kvt_env_now_ns(&d->env) - start_ns;
        KVT_ASSERT(length <= op->host_capacity);
        if (length == 0) return KVT_FULL;
        op->ret_form = KVT_FORM_PACKED;
        op->ret_length = length;
        return KVT_OK;
    }
    const uint64_t raw_bytes = pages.count * pages.bytes;
    if (raw_bytes > op->host_capacity) return KVT_FULL;
    kvt_pages_gather_ref(&pages, op->host);
    op->ret_form = KVT_FORM_RAW;
    op->ret_length = (uint32_t)raw_bytes;
    return KVT_OK;
}

static uint32_t layers_moved(const struct group_map *map, const struct kvt_tier_op *op)
{
    return op->layer_count == 0 ? map->layers : op->layer_count;
}

/* Of a raw block in host memory, the part that a fetch takes. */
static uint8_t *first_byte_fetched(const struct group_map *map, const struct kvt_tier_op *op)
{
    return (uint8_t *)op->host + (uint64_t)op->layer_first * map->planes * op->tokens * map->row_bytes;
}

/* The segments that a fetch writes: those of all layers, or of some, in their own places or in others'. */
static struct kvt_pages pages_of_fetch(const struct group_map *map, const struct kvt_tier_op *op)
{
    struct kvt_pages pages = pages_of(map, op->slot, op->tokens);
    if (op->layer_count == 0) return pages;
    pages.count = op->layer_count * map->planes;
    pages.base += op->layer_target * map->planes;
    pages.stride += op->layer_target * map->planes;
    return pages;
}

/* Of an op's bytes, those that cross the link: of some layers their share. */
static uint64_t fetched_bytes(const struct group_map *map, const struct kvt_tier_op *op)
{
    return op->layer_count == 0 ? op->length : (uint64_t)op->length * op->layer_count / map->layers;
}

/*
 * The form and length of the bytes may come from a record on disk: what does not fit the block is CORRUPT, no
 * assertion.
 */
static enum kvt_status run_fetch(struct device_tier *d, struct kvt_tier_op *op)
{
    const struct group_map *map = &d->groups[op->group];
    const struct kvt_pages pages = pages_of_fetch(map, op);
    if (op->form == KVT_FORM_PACKED) {
        if (!d->codec) return KVT_CORRUPT;
        struct lane *lane = &d->lanes[KVT_DEVICE_STREAM_FETCH];
        const uint64_t start_ns = kvt_env_now_ns(&d->env);
        const enum kvt_status status = kvt_codec_unpack_layers(d->codec, op->group, op->host, op->length, op->tokens,
                                                               op->layer_first, layers_moved(map, op),
                                                               view_chunks(map, lane, &pages), lane->scratch);
        op->codec_ns = kvt_env_now_ns(&d->env) - start_ns;
        return status;
    }
    if (op->length != map->segment_count * pages.bytes) return KVT_CORRUPT;
    kvt_pages_scatter_ref(&pages, first_byte_fetched(map, op));
    return KVT_OK;
}

static enum kvt_status run_copy(struct device_tier *d, struct kvt_tier_op *op)
{
    const struct group_map *map = &d->groups[op->group];
    const struct kvt_pages source = pages_of(map, op->source_slot, op->tokens);
    const struct kvt_pages target = pages_of(map, op->slot, op->tokens);
    kvt_pages_copy_ref(&source, &target);
    return KVT_OK;
}

static void run_job(struct kvt_gpu_job *gpu_job)
{
    struct device_job *job = (struct device_job *)gpu_job;
    struct device_tier *d = job->tier;
    struct kvt_tier_op *op = job->op;
    const uint64_t start_ns = kvt_env_now_ns(&d->env);
    switch (op->kind) {
    case KVT_OP_STASH:
        op->status = run_stash(d, op);
        gpu_job->link_bytes = op->status == KVT_OK ? op->ret_length : 0;
        break;
    case KVT_OP_FETCH:
        op->status = run_fetch(d, op);
        gpu_job->link_bytes = fetched_bytes(&d->groups[op->group], op);
        break;
    case KVT_OP_COPY: op->status = run_copy(d, op); break;
    }
    /* Without pacing the copy itself is the link. */
    const uint64_t run_ns = kvt_env_now_ns(&d->env) - start_ns;
    if (op->kind != KVT_OP_COPY) op->link_ns = run_ns > op->codec_ns ? run_ns - op->codec_ns : 0;
}

/* ---- The same on a device that the CPU cannot touch ------------------------------------------ */

/*
 * A raw block goes by itself to and from pinned host memory. What the CPU packs, or what lies in ordinary memory, goes
 * through the staging that the device lends; the stream's thread does the host's part.
 */

/* The layers that an op moves, as they lie in staging: their segments without gaps. */
static const struct kvt_chunk_view *view_staging(const struct group_map *map, struct lane *lane, void *staging,
                                                 const struct kvt_tier_op *op)
{
    uint8_t *at = staging;
    const uint64_t bytes = op->tokens * map->row_bytes;
    for (uint32_t layer = 0; layer < layers_moved(map, op); layer++) {
        lane->views[layer].plane[0] = at + layer * map->planes * bytes;
        lane->views[layer].plane[1] = map->planes == 2 ? at + (layer * 2 + 1) * bytes : NULL;
    }
    return lane->views;
}

static uint64_t raw_bytes_of(const struct group_map *map, const struct kvt_tier_op *op)
{
    return map->segment_count * op->tokens * map->row_bytes;
}

static void after_stash(struct kvt_gpu_job *gpu_job)
{
    struct device_job *job = (struct device_job *)gpu_job;
    struct device_tier *d = job->tier;
    struct kvt_tier_op *op = job->op;
    const struct group_map *map = &d->groups[op->group];
    op->ret_form = KVT_FORM_RAW;
    op->ret_length = (uint32_t)raw_bytes_of(map, op);
    if (!gpu_job->is_staged) return;
    if (op->form != KVT_FORM_PACKED || !d->codec) {
        memcpy(op->host, gpu_job->staging, op->ret_length);
        return;
    }
    struct lane *lane = &d->lanes[KVT_DEVICE_STREAM_STASH];
    const uint64_t start_ns = kvt_env_now_ns(&d->env);
    op->ret_length = kvt_codec_pack(d->codec, op->group, view_staging(map, lane, gpu_job->staging, op), op->tokens,
                                    op->host, op->host_capacity, lane->scratch);
    op->codec_ns = kvt_env_now_ns(&d->env) - start_ns;
    op->ret_form = KVT_FORM_PACKED;
    if (op->ret_length == 0) op->status = KVT_FULL;
}

static bool before_fetch(struct kvt_gpu_job *gpu_job)
{
    struct device_job *job = (struct device_job *)gpu_job;
    struct device_tier *d = job->tier;
    struct kvt_tier_op *op = job->op;
    const struct group_map *map = &d->groups[op->group];
    if (op->form != KVT_FORM_PACKED) {
        memcpy(gpu_job->staging, first_byte_fetched(map, op), fetched_bytes(map, op));
        return true;
    }
    struct lane *lane = &d->lanes[KVT_DEVICE_STREAM_FETCH];
    const uint64_t start_ns = kvt_env_now_ns(&d->env);
    op->status = kvt_codec_unpack_layers(d->codec, op->group, op->host, op->length, op->tokens, op->layer_first,
                                         layers_moved(map, op), view_staging(map, lane, gpu_job->staging, op),
                                         lane->scratch);
    op->codec_ns = kvt_env_now_ns(&d->env) - start_ns;
    job->is_refused = op->status != KVT_OK;
    return !job->is_refused;
}

/* What the op comes to without a move of its own: op->status, and no move. */
static void refuse_job(struct device_job *job, enum kvt_status status)
{
    job->op->status = status;
    job->job.move.kind = KVT_GPU_MOVE_NONE;
    job->job.after = NULL;
    job->job.is_staged = false;
}

static void after_device_pack(struct kvt_gpu_job *gpu_job)
{
    struct kvt_tier_op *op = ((struct device_job *)gpu_job)->op;
    op->ret_length = gpu_job->move.result;
    op->ret_form = KVT_FORM_PACKED;
    if (op->ret_length == 0) op->status = KVT_FULL;
    else if (gpu_job->is_staged) memcpy(op->host, gpu_job->staging, op->ret_length);
}

static void after_device_unpack(struct kvt_gpu_job *gpu_job)
{
    struct kvt_tier_op *op = ((struct device_job *)gpu_job)->op;
    if (gpu_job->move.result != KVT_BLOCK_OK) op->status = KVT_CORRUPT;
}

/* True when the device packs or unpacks the block by itself. The job is planned as if the CPU did. */
static bool plan_pack(struct device_job *job)
{
    struct device_tier *d = job->tier;
    const struct kvt_tier_op *op = job->op;
    const struct group_map *map = &d->groups[op->group];
    struct kvt_gpu_move *move = &job->job.move;
    struct kvt_codec_device device;
    const bool is_pinned = d->gpu->ops->host_is_pinned(d->gpu, op->host);
    if (op->kind == KVT_OP_STASH) {
        if (!kvt_codec_device_pack(d->codec, op->group, op->tokens, &device)) return false;
        move->kind = KVT_GPU_MOVE_PACK;
        job->job.is_staged = !is_pinned;
        job->job.after = after_device_pack;
    } else {
        if (!is_pinned || op->layer_count > 0 || op->length > map->block_bytes) return false;
        if (!kvt_codec_device_unpack(d->codec, op->group, op->host, op->length, op->tokens, &device)) return false;
        move->kind = KVT_GPU_MOVE_UNPACK;
        job->job.is_staged = false;
        job->job.before = NULL;
        job->job.after = after_device_unpack;
    }
    move->pack = (struct kvt_gpu_pack){ .shape = device.shape,
                                        .layers = map->layers,
                                        .tokens = op->tokens,
                                        .bases_id = device.bases_id,
                                        .bases = device.bases,
                                        .bases_row_bytes = device.bases_row_bytes,
                                        .length = op->length };
    if (op->kind == KVT_OP_STASH)
        move->pack.length = is_pinned ? op->host_capacity : (uint32_t)kvt_min_u64(op->host_capacity, map->block_bytes);
    return true;
}

static void plan_move(struct device_job *job)
{
    struct device_tier *d = job->tier;
    struct kvt_tier_op *op = job->op;
    const struct group_map *map = &d->groups[op->group];
    struct kvt_gpu_job *gpu_job = &job->job;
    const bool is_packed = op->form == KVT_FORM_PACKED && (d->codec || op->kind == KVT_OP_FETCH);
    gpu_job->move.pages = pages_of(map, op->slot, op->tokens);
    gpu_job->move.host = op->host;
    gpu_job->is_staged = op->kind != KVT_OP_COPY && (is_packed || !d->gpu->ops->host_is_pinned(d->gpu, op->host));
    switch (op->kind) {
    case KVT_OP_STASH:
        gpu_job->move.kind = KVT_GPU_MOVE_GATHER;
        gpu_job->after = after_stash;
        if (!is_packed && raw_bytes_of(map, op) > op->host_capacity) refuse_job(job, KVT_FULL);
        break;
    case KVT_OP_FETCH:
        gpu_job->move.kind = KVT_GPU_MOVE_SCATTER;
        gpu_job->move.pages = pages_of_fetch(map, op);
        gpu_job->move.host = first_byte_fetched(map, op);
        gpu_job->before = gpu_job->is_staged ? before_fetch : NULL;
        if (is_packed ? !d->codec : op->length != raw_bytes_of(map, op)) {
            gpu_job->before = NULL;
            refuse_job(job, KVT_CORRUPT);
        }
        break;
    case KVT_OP_COPY:
        gpu_job->move.kind = KVT_GPU_MOVE_COPY;
        gpu_job->move.source = pages_of(map, op->source_slot, op->tokens);
        break;
    }
    if (is_packed && d->can_pack && op->kind != KVT_OP_COPY) (void)plan_pack(job);
}

static void finish_job(struct kvt_gpu_job *gpu_job)
{
    struct device_job *job = (struct device_job *)gpu_job;
    struct device_tier *d = job->tier;
    struct kvt_tier_op *op = job->op;
    const struct kvt_wake wake = d->wake;
    if (gpu_job->is_failed && !job->is_refused) op->status = KVT_IO;
    if (gpu_job->is_failed) op->ret_length = 0;
    if (gpu_job->link_ns > 0) op->link_ns = gpu_job->link_ns;

    (void)pthread_mutex_lock(&d->lock);
    if (op->kind == KVT_OP_STASH) d->bytes_out += op->ret_length;
    if (op->kind == KVT_OP_FETCH && op->status == KVT_OK) d->bytes_in += fetched_bytes(&d->groups[op->group], op);
    if (op->status == KVT_FULL) d->dropped++;
    job->next = NULL;
    *d->done_last = job;
    d->done_last = &job->next;
    (void)pthread_mutex_unlock(&d->lock);
    /* From here on poll may have handed the op back, and the job may be in use again. */
    if (wake.wake) wake.wake(wake.user);
}

/* ---- The calls of tier.h --------------------------------------------------------------------- */

static enum kvt_status device_submit(struct kvt_tier *tier, struct kvt_tier_op *op)
{
    struct device_tier *d = device_of(tier);
    KVT_ASSERT(op->group < d->group_count);
    const struct group_map *map = &d->groups[op->group];
    KVT_ASSERT(op->slot < map->slot_count);
    KVT_ASSERT(op->tokens <= map->tokens_max);
    KVT_ASSERT(op->layer_first + op->layer_count <= map->layers);
    KVT_ASSERT(op->layer_target + op->layer_count <= map->layers);
    KVT_ASSERT(KVT_IMPLIES(op->kind == KVT_OP_COPY, op->source_slot < map->slot_count));
    KVT_ASSERT(KVT_IMPLIES(op->kind == KVT_OP_COPY, op->source_slot != op->slot));

    struct device_job *job = d->free_jobs;
    KVT_ASSERT(job != NULL); /* there are as many as the queue is deep */
    d->free_jobs = job->next;
    *job = (struct device_job){ .job = { .run = run_job, .done = finish_job }, .tier = d, .op = op };
    op->status = KVT_OK;
    op->os_errno = 0;
    op->ret_length = 0;
    op->ret_form = KVT_FORM_RAW;
    op->link_ns = 0;
    op->codec_ns = 0;
    if (d->is_remote) plan_move(job);

    const struct kvt_gpu_ops *gpu_ops = d->gpu->ops;
    uint32_t stream = op->kind == KVT_OP_STASH ? KVT_DEVICE_STREAM_STASH : KVT_DEVICE_STREAM_FETCH;
    if (op->kind == KVT_OP_COPY && op->stream != 0) stream = op->stream;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(op->after); i++) gpu_ops->wait(d->gpu, stream, op->after[i]);
    /* The op may be finished, but not handed back, before submit returns: poll has the same caller as this call. */
    gpu_ops->submit(d->gpu, stream, &job->job);
    op->ret_mark = gpu_ops->mark(d->gpu, stream);
    return KVT_OK;
}

/* Single-threaded: what the streams would have done by themselves, as far as gates and marks let them. */
static void run_streams(struct device_tier *d)
{
    if (!d->env.is_single_threaded || d->gpu->ops != &kvt_gpu_emulated_ops) return;
    for (uint32_t i = 0; i < KVT_DEVICE_STREAMS; i++) {
        while (kvt_gpu_emulated_run(d->gpu, i)) continue;
    }
}

static uint32_t device_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max)
{
    struct device_tier *d = device_of(tier);
    run_streams(d);
    uint32_t count = 0;
    (void)pthread_mutex_lock(&d->lock);
    while (count < max && d->done_first) {
        struct device_job *job = d->done_first;
        d->done_first = job->next;
        if (!d->done_first) d->done_last = &d->done_first;
        ret_done[count++] = job->op;
        job->op = NULL;
        job->next = d->free_jobs;
        d->free_jobs = job;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return count;
}

static void device_counters(struct kvt_tier *tier, struct kvt_tier_counters *ret_counters)
{
    struct device_tier *d = device_of(tier);
    (void)pthread_mutex_lock(&d->lock);
    *ret_counters = (struct kvt_tier_counters){
        .capacity_bytes = d->capacity_bytes,
        /* The pools' memory is taken at open, whoever sits in the slots. */
        .used_bytes = d->capacity_bytes,
        .peak_bytes = d->capacity_bytes,
        .bytes_in = d->bytes_in,
        .bytes_out = d->bytes_out,
        .dropped = d->dropped,
    };
    (void)pthread_mutex_unlock(&d->lock);
}

static void *device_map(struct kvt_tier *tier, uint32_t group, uint32_t slot)
{
    struct device_tier *d = device_of(tier);
    KVT_ASSERT(group < d->group_count);
    const struct group_map *map = &d->groups[group];
    KVT_ASSERT(slot < map->slot_count);
    return map->is_owned ? (uint8_t *)map->base[0] + slot * map->block_bytes : NULL;
}

static void device_close(struct kvt_tier *tier)
{
    struct device_tier *d = device_of(tier);
    if (d->gpu) {
        for (uint32_t p = 0; p < d->pool_count; p++) {
            if (d->pool_memory[p]) d->gpu->ops->memory_free(d->gpu, d->pool_memory[p], d->pool_bytes[p]);
        }
        d->gpu->ops->close(d->gpu);
    }
    for (uint32_t i = 0; i < KVT_DEVICE_STREAMS; i++) {
        kvt_table_unmap(d->lanes[i].scratch, d->scratch_bytes);
        kvt_free(d->lanes[i].views);
    }
    for (uint32_t g = 0; g < d->group_count; g++) {
        kvt_free(d->groups[g].base);
        kvt_free(d->groups[g].stride);
    }
    kvt_free(d->jobs);
    (void)pthread_mutex_destroy(&d->lock);
    kvt_free(d);
}

static const struct kvt_tier_ops device_tier_ops = {
    .name = "device",
    .caps = KVT_TIER_MAPPED | KVT_TIER_COPIES,
    .close = device_close,
    .submit = device_submit,
    .poll = device_poll,
    .counters = device_counters,
    .map = device_map,
};

/* ---- Open ------------------------------------------------------------------------------------ */

static uint32_t planes_of(const struct kvt_group_shape *group)
{
    return group->kind == KVT_GROUP_STATE || group->planes == 1 ? 1 : 2;
}

static uint32_t segment_count_of(const struct kvt_group_shape *group) { return group->layers * planes_of(group); }

static enum kvt_status map_group(struct device_tier *d, const struct kvt_device_tier_config *config, uint32_t g)
{
    const struct kvt_group_shape *group = &config->shape.groups[g];
    const struct kvt_device_segments *lent = config->segments[g];
    const uint32_t pool = config->pool_of_group[g];
    struct group_map *map = &d->groups[g];
    const bool is_state = group->kind == KVT_GROUP_STATE;
    KVT_ASSERT(pool < config->pool_count);
    map->planes = planes_of(group);
    map->layers = group->layers;
    map->segment_count = segment_count_of(group);
    map->tokens_max = is_state ? 1 : config->shape.block_tokens;
    map->row_bytes = kvt_group_row_bytes(group);
    map->block_bytes = kvt_group_block_bytes(group, config->shape.block_tokens);
    map->slot_count = config->pool_slots[pool];
    map->is_owned = lent == NULL;
    KVT_ASSERT(map->block_bytes == map->segment_count * map->tokens_max * map->row_bytes);
    if (lent && lent->count != map->segment_count) return KVT_INVAL;

    map->base = kvt_alloc(map->segment_count, sizeof *map->base);
    map->stride = kvt_alloc(map->segment_count, sizeof *map->stride);
    if (!map->base || !map->stride) return KVT_NOMEM;
    const uint64_t segment_bytes = map->tokens_max * map->row_bytes;
    for (uint32_t s = 0; s < map->segment_count; s++) {
        if (lent) {
            if (!lent->base[s] || lent->stride[s] < segment_bytes) return KVT_INVAL;
            map->base[s] = lent->base[s];
            map->stride[s] = lent->stride[s];
        } else {
            map->base[s] = (uint8_t *)d->pool_memory[pool] + s * segment_bytes;
            map->stride[s] = map->block_bytes;
        }
    }
    return KVT_OK;
}

/* One allocation for each pool that has a group without an engine's segments. */
static enum kvt_status open_pools(struct device_tier *d, const struct kvt_device_tier_config *config)
{
    d->pool_count = config->pool_count;
    for (uint32_t pool = 0; pool < config->pool_count; pool++) {
        uint64_t block_bytes = 0;
        bool is_owned = false;
        for (uint32_t g = 0; g < config->shape.group_count; g++) {
            if (config->pool_of_group[g] != pool) continue;
            const uint64_t bytes = kvt_group_block_bytes(&config->shape.groups[g], config->shape.block_tokens);
            if (block_bytes > 0 && bytes != block_bytes) return KVT_INVAL;
            block_bytes = bytes;
            if (!config->segments[g]) is_owned = true;
        }
        uint64_t pool_bytes;
        if (config->pool_slots[pool] == 0 || block_bytes == 0) return KVT_INVAL;
        if (!kvt_multiply(block_bytes, config->pool_slots[pool], &pool_bytes)) return KVT_INVAL;
        d->capacity_bytes += pool_bytes;
        if (!is_owned) continue;
        d->pool_bytes[pool] = pool_bytes;
        d->pool_memory[pool] = d->gpu->ops->memory_alloc(d->gpu, pool_bytes);
        if (!d->pool_memory[pool]) return KVT_NOMEM;
    }
    return KVT_OK;
}

static enum kvt_status open_lanes(struct device_tier *d, const struct kvt_model_shape *shape)
{
    uint32_t layers_max = 0;
    for (uint32_t g = 0; g < shape->group_count; g++) layers_max = kvt_max_u32(layers_max, shape->groups[g].layers);
    if (d->codec) d->scratch_bytes = kvt_max_u64(kvt_codec_scratch_bytes(d->codec), 1);
    for (uint32_t i = 0; i < KVT_DEVICE_STREAMS; i++) {
        struct lane *lane = &d->lanes[i];
        uint32_t stream;
        KVT_TRY(d->gpu->ops->stream(d->gpu, NULL, &stream));
        KVT_ASSERT(stream == i); /* a device numbers its streams from 0 as they are asked for */
        lane->views = kvt_alloc(layers_max, sizeof *lane->views);
        if (!lane->views) return KVT_NOMEM;
        if (!d->codec) continue;
        lane->scratch = kvt_table_map(d->scratch_bytes);
        if (!lane->scratch) return KVT_NOMEM;
    }
    return KVT_OK;
}

static enum kvt_status open_jobs(struct device_tier *d, uint32_t count)
{
    d->jobs = kvt_alloc(count, sizeof *d->jobs);
    if (!d->jobs) return KVT_NOMEM;
    for (uint32_t i = count; i-- > 0;) {
        d->jobs[i].next = d->free_jobs;
        d->free_jobs = &d->jobs[i];
    }
    return KVT_OK;
}

static enum kvt_status open_parts(struct device_tier *d, const struct kvt_device_tier_config *config)
{
    const struct kvt_gpu_ops *gpu_ops = config->gpu;
    if (!gpu_ops) gpu_ops = d->env.gpu ? d->env.gpu : kvt_gpu_default_ops();
    struct kvt_gpu_config gpu_config = config->gpu_config;
    for (uint32_t g = 0; g < config->shape.group_count; g++) {
        const struct kvt_group_shape *group = &config->shape.groups[g];
        gpu_config.segments_max = kvt_max_u32(gpu_config.segments_max, segment_count_of(group));
        gpu_config.staging_bytes = kvt_max_u64(gpu_config.staging_bytes,
                                               kvt_group_block_bytes(group, config->shape.block_tokens));
    }
    for (uint32_t g = 0; d->codec && g < config->shape.group_count; g++)
        gpu_config.bases_bytes = kvt_max_u64(gpu_config.bases_bytes, kvt_codec_device_bases_bytes(d->codec, g));
    KVT_TRY(gpu_ops->open(&gpu_config, &d->env, &d->gpu));
    d->is_remote = gpu_ops != &kvt_gpu_emulated_ops;
    KVT_TRY(open_pools(d, config));
    d->group_count = config->shape.group_count;
    for (uint32_t g = 0; g < d->group_count; g++) KVT_TRY(map_group(d, config, g));
    KVT_TRY(open_lanes(d, &config->shape));
    d->can_pack = d->codec && d->is_remote && d->gpu->ops->can_pack(d->gpu);
    return open_jobs(d, d->tier.queue_depth);
}

enum kvt_status kvt_device_tier_open(const struct kvt_device_tier_config *config, const struct kvt_env *env,
                                     struct kvt_tier **ret_tier)
{
    KVT_ASSERT(kvt_tier_ops_are_valid(&device_tier_ops));
    struct device_tier *d = kvt_alloc(1, sizeof *d);
    if (!d) return KVT_NOMEM;
    d->tier.ops = &device_tier_ops;
    d->tier.queue_depth = config->queue_depth ? config->queue_depth : QUEUE_DEPTH_DEFAULT;
    d->env = *env;
    if (!d->env.now_ns) d->env.now_ns = kvt_env_default().now_ns;
    d->codec = config->codec;
    d->wake = config->wake;
    d->done_last = &d->done_first;
    (void)pthread_mutex_init(&d->lock, NULL);
    const enum kvt_status status = open_parts(d, config);
    if (status != KVT_OK) {
        device_close(&d->tier);
        return status;
    }
    *ret_tier = &d->tier;
    return KVT_OK;
}

struct kvt_gpu *kvt_device_tier_gpu(struct kvt_tier *tier)
{
    KVT_ASSERT(tier->ops == &device_tier_ops);
    return device_of(tier)->gpu;
}
