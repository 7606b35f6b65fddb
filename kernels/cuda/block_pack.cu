/*
 * Blocks packed from their segments, in three kernels on one stream (kernels/block_pack.h has the format):
 *
 *   plan     a CTA for each chunk: is it constant, the histogram of a sample, the table, and for a ranked chunk how many
 *            elements go on to each level. So the size of every chunk is exact before a byte of it is written.
 *   lay_out  a thread for each block: the places of its chunks, header and directory.
 *   write    a CTA for each chunk, straight to its place in the packed block.
 *
 * A CTA takes a chunk in tiles of groups in the order of the format. Every warp makes its groups' parts, rest and first
 * go to their places at once; of the second and third streams the warps know their bits, and where these belong once
 * they have added up the counts of the warps before. The bits of a tile are put together in shared memory and leave it
 * as bytes; a byte that is not full is carried over.
 *
 * The source is read twice, from HBM; the target is written once, in order, and may lie behind a link.
 */
#include "kernels/block_pack.h"
#include "kernels/cuda/launch_status.cuh"
#include "kernels/cuda/warp.cuh"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    WARP_GROUPS = 4, /* of a tile; a warp keeps what it knows of them in registers */
    TILE_GROUPS = WARPS * WARP_GROUPS,
    STAGE_WORDS = TILE_GROUPS * 2 + 4 /* a tile's bits of one stream, a carried byte, and what is read behind */
};

struct pack_shared {
    uint32_t histogram[256];
    struct kvt_block_plan plan;
    struct kvt_rank_coder coder;
    uint32_t counts[3];
    uint32_t warp_counts[WARPS][3];
    uint32_t stage[2][4][STAGE_WORDS]; /* of two tiles in turn: second 0 and 1, third 0 and 1 */
};

/* Where a group lies. */
struct place {
    uint32_t plane, group;
};

static __device__ inline struct place place_of(const struct kvt_rank_shape *shape, uint32_t index)
{
    const uint32_t plane_groups = kvt_rank_plane_groups(shape);
    struct place place;
    place.plane = index >= plane_groups;
    place.group = place.plane ? index - plane_groups : index;
    return place;
}

/* ---- Plan ------------------------------------------------------------------------------------------------------ */

static __device__ bool is_constant(const struct kvt_rank_shape *shape, const struct kvt_block_chunk *chunk)
{
    for (uint32_t p = 0; p < shape->plane_count; p++) {
        const uint32_t first = kvt_rank_load_value(shape->dtype, chunk->plane[p], 0);
        for (uint32_t start = 0; start < shape->elements; start += THREADS) {
            const uint32_t i = start + threadIdx.x;
            const bool differs = i < shape->elements && kvt_rank_load_value(shape->dtype, chunk->plane[p], i) != first;
            if (__syncthreads_or(differs)) return false;
        }
    }
    return true;
}

static __device__ void sample_chunk(const struct kvt_block_pack *block, const struct kvt_block_chunk *chunk,
                                    struct pack_shared *s)
{
    const struct kvt_rank_shape *shape = &block->shape;
    const uint32_t warp = threadIdx.x / 32, l = threadIdx.x % 32;
    for (uint32_t i = threadIdx.x; i < 256; i += THREADS) s->histogram[i] = 0;
    __syncthreads();
    struct kvt_rank_sampling sampling = kvt_rank_sampling_begin(shape);
    uint32_t index;
    for (uint32_t i = 0; kvt_rank_sampling_next(&sampling, &index); i++) {
        if (i % WARPS != warp) continue;
        const struct place at = place_of(shape, index);
        struct kvt_rank_lane lane;
        kvt_rank_lane_load(shape, chunk->plane[at.plane], block->tables_id ? chunk->bases[at.plane] : NULL, at.group, l,
                           &lane);
        for (uint32_t k = 0; k < lane.count; k++) atomicAdd(&s->histogram[lane.exponent[k]], 1u);
    }
    __syncthreads();
}

static __device__ void count_chunk(const struct kvt_block_pack *block, const struct kvt_block_chunk *chunk,
                                   struct pack_shared *s)
{
    const struct kvt_rank_shape *shape = &block->shape;
    const uint32_t warp = threadIdx.x / 32, l = threadIdx.x % 32;
    const uint32_t groups = shape->plane_count * kvt_rank_plane_groups(shape);
    uint32_t counts[3] = { 0, 0, 0 };
    for (uint32_t index = warp; index < groups; index += WARPS) {
        const struct place at = place_of(shape, index);
        struct kvt_rank_lane lane;
        kvt_rank_lane_load(shape, chunk->plane[at.plane], block->tables_id ? chunk->bases[at.plane] : NULL, at.group, l,
                           &lane);
        kvt_rank_lane_encode(&s->coder, &lane);
        for (uint32_t level = 0; level < 3; level++)
            for (uint32_t k = 0; k < 2; k++) counts[level] += kvt_rank_lane_takes_part(&lane, k, level + 1);
    }
    for (uint32_t level = 0; level < 3; level++) {
        const uint32_t sum = __reduce_add_sync(KVT_WARP_ALL, counts[level]);
        if (l == 0) atomicAdd(&s->counts[level], sum);
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS)
    plan_chunks(const struct kvt_block_pack *blocks, uint32_t count, uint32_t layers_max)
{
    __shared__ struct pack_shared s;
    for (uint64_t i = blockIdx.x; i < (uint64_t)count * layers_max; i += gridDim.x) {
        const struct kvt_block_pack *block = &blocks[i / layers_max];
        const uint32_t layer = (uint32_t)(i % layers_max);
        if (layer >= block->layers) continue;
        const struct kvt_block_chunk *chunk = &block->chunks[layer];
        const bool is_flat = is_constant(&block->shape, chunk);
        sample_chunk(block, chunk, &s);
        if (threadIdx.x == 0) {
            kvt_block_choose(&block->shape, s.histogram, is_flat, &s.plan);
            if (s.plan.kind == KVT_BLOCK_RANKED) kvt_rank_coder_init(&s.plan.table, &s.coder);
            s.counts[0] = s.counts[1] = s.counts[2] = 0;
        }
        __syncthreads();
        if (s.plan.kind == KVT_BLOCK_RANKED) count_chunk(block, chunk, &s);
        if (threadIdx.x == 0) {
            s.plan.second_count = s.counts[0];
            s.plan.third_count = s.counts[1];
            s.plan.escape_count = s.counts[2];
            block->plans[layer] = s.plan;
        }
        __syncthreads();
    }
}

static __global__ void lay_out_blocks(const struct kvt_block_pack *blocks, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) *blocks[i].ret_length = kvt_block_lay_out(&blocks[i]);
}

/* ---- Write ----------------------------------------------------------------------------------------------------- */

/* What a warp knows of one of its groups until the tile's positions are known. */
struct group_bits {
    uint64_t second[2], third[2];
    uint32_t counts[3];
    struct kvt_rank_votes escapes;
    uint32_t exponent[2];
    bool is_escape[2];
};

/* The chunk that is written, and where its parts are. */
struct write_job {
    struct kvt_rank_shape shape;
    const struct kvt_block_chunk *chunk;
    bool is_based;
    uint8_t *target;
    struct kvt_block_parts parts;
};

static __device__ void pack_group(const struct write_job *job, const struct pack_shared *s, uint32_t index,
                                  struct group_bits *ret_bits)
{
    const struct kvt_rank_shape *shape = &job->shape;
    const uint32_t l = threadIdx.x % 32;
    const struct place at = place_of(shape, index);
    struct kvt_rank_lane lane;
    kvt_rank_lane_load(shape, job->chunk->plane[at.plane], job->is_based ? job->chunk->bases[at.plane] : NULL, at.group,
                       l, &lane);
    kvt_rank_lane_encode(&s->coder, &lane);

    uint8_t *rest = job->target + job->parts.rest + at.plane * kvt_rank_plane_rest_bytes(shape);
    kvt_rank_lane_store_rest(shape, &lane, at.group, l, rest);
    if (shape->dtype == KVT_DTYPE_FP16) {
        uint64_t planes[3];
        kvt_rank_lane_planes(&lane, l, planes);
        for (uint32_t w = 0; w < 3; w++) planes[w] = kvt_warp_or(planes[w]);
        if (l < 3)
            kvt_rank_store_word(rest + kvt_rank_planes_offset(shape, at.group) + 8 * l,
                                l == 0       ? planes[0]
                                    : l == 1 ? planes[1]
                                             : planes[2]);
    }
    uint64_t first[2];
    kvt_warp_words(&lane, l, 0, kvt_warp_vote(&lane, 0), first);
    if (l < 2)
        kvt_rank_store_word(job->target + job->parts.first + (uint64_t)16 * index + 8 * l, l ? first[1] : first[0]);

    const struct kvt_rank_votes second = kvt_warp_vote(&lane, 1), third = kvt_warp_vote(&lane, 2);
    ret_bits->escapes = kvt_warp_vote(&lane, 3);
    kvt_warp_words(&lane, l, 1, second, ret_bits->second);
    kvt_warp_words(&lane, l, 2, third, ret_bits->third);
    ret_bits->counts[0] = kvt_rank_votes_count(second);
    ret_bits->counts[1] = kvt_rank_votes_count(third);
    ret_bits->counts[2] = kvt_rank_votes_count(ret_bits->escapes);
    for (uint32_t k = 0; k < 2; k++) {
        ret_bits->exponent[k] = lane.exponent[k];
        ret_bits->is_escape[k] = kvt_rank_lane_takes_part(&lane, k, 3);
    }
}

/*
 * Puts a warp's groups into the tile's streams. at: the positions of the warp's first group in the chunk's streams;
 * base: those of the tile.
 */
static __device__ void put_bits(const struct write_job *job, const struct group_bits *bits, const uint32_t base[3],
                                uint32_t at[3], uint32_t (*stage)[STAGE_WORDS])
{
    const uint32_t l = threadIdx.x % 32;
    const uint64_t word = l == 0 ? bits->second[0]
        : l == 1                 ? bits->second[1]
        : l == 2                 ? bits->third[0]
                                 : bits->third[1];
    const uint32_t level = l / 2;
    if (l < 4) kvt_shared_or(stage[l], at[level] - (base[level] & ~7u), word);
    uint8_t *escapes = job->target + job->parts.escapes + at[2];
    for (uint32_t k = 0; k < 2; k++)
        if (bits->is_escape[k]) escapes[kvt_rank_votes_before(bits->escapes, l, k)] = (uint8_t)bits->exponent[k];
    for (uint32_t i = 0; i < 3; i++) at[i] += bits->counts[i];
}

/* Writes the full bytes of the tile's streams, the last one of the chunk too, and carries the rest to the next stage. */
static __device__ void flush(const struct write_job *job, const uint32_t base[3], const uint32_t end[3], bool is_last,
                             const uint32_t (*stage)[STAGE_WORDS], uint32_t (*next)[STAGE_WORDS])
{
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t from = base[k / 2] / 8, to = (end[k / 2] + (is_last ? 7 : 0)) / 8;
        const uint64_t stream = k == 0 ? job->parts.second[0]
            : k == 1                   ? job->parts.second[1]
            : k == 2                   ? job->parts.third[0]
                                       : job->parts.third[1];
        const uint8_t *bytes = (const uint8_t *)stage[k];
        for (uint32_t i = threadIdx.x; from + i < to; i += THREADS) job->target[stream + from + i] = bytes[i];
        for (uint32_t i = threadIdx.x; i < STAGE_WORDS; i += THREADS)
            next[k][i] = i == 0 && !is_last ? bytes[to - from] : 0;
    }
}

/* The sums of the counts of the warps before this one, and of all. */
static __device__ inline void add_up(const struct pack_shared *s, uint32_t which, uint32_t *ret_before,
                                     uint32_t *ret_all)
{
    uint32_t before = 0, all = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        if (w < threadIdx.x / 32) before += s->warp_counts[w][which];
        all += s->warp_counts[w][which];
    }
    *ret_before = before;
    *ret_all = all;
}

static __device__ void write_ranked(const struct write_job *job, struct pack_shared *s)
{
    const uint32_t groups = job->shape.plane_count * kvt_rank_plane_groups(&job->shape);
    const uint32_t warp = threadIdx.x / 32, l = threadIdx.x % 32;
    uint32_t base[3] = { 0, 0, 0 };
    for (uint32_t i = threadIdx.x; i < 4 * STAGE_WORDS; i += THREADS) s->stage[0][i / STAGE_WORDS][i % STAGE_WORDS] = 0;

    for (uint32_t tile = 0, turn = 0; tile < groups; tile += TILE_GROUPS, turn ^= 1) {
        struct group_bits bits[WARP_GROUPS];
        uint32_t counts[3] = { 0, 0, 0 };
#pragma unroll
        for (uint32_t j = 0; j < WARP_GROUPS; j++) {
            const uint32_t index = tile + warp * WARP_GROUPS + j;
            if (index < groups) pack_group(job, s, index, &bits[j]);
            for (uint32_t i = 0; i < 3 && index < groups; i++) counts[i] += bits[j].counts[i];
        }
        if (l < 3) s->warp_counts[warp][l] = l == 0 ? counts[0] : l == 1 ? counts[1] : counts[2];
        __syncthreads();
        uint32_t at[3], end[3];
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t before, all;
            add_up(s, i, &before, &all);
            at[i] = base[i] + before;
            end[i] = base[i] + all;
        }
#pragma unroll
        for (uint32_t j = 0; j < WARP_GROUPS; j++)
            if (tile + warp * WARP_GROUPS + j < groups) put_bits(job, &bits[j], base, at, s->stage[turn]);
        __syncthreads();
        flush(job, base, end, tile + TILE_GROUPS >= groups, s->stage[turn], s->stage[turn ^ 1]);
        for (uint32_t i = 0; i < 3; i++) base[i] = end[i];
    }
}

template <enum kvt_dtype dtype> static __device__ void write_ranked_as(struct write_job *job, struct pack_shared *s)
{
    job->shape.dtype = dtype; /* a constant from here on */
    write_ranked(job, s);
}

static __device__ void write_chunk(const struct kvt_block_pack *block, uint32_t layer, struct pack_shared *s)
{
    struct write_job job;
    job.shape = block->shape;
    job.chunk = &block->chunks[layer];
    job.is_based = block->tables_id != 0;
    const struct kvt_block_plan *plan = &block->plans[layer];
    job.target = block->target + plan->start;
    if (threadIdx.x == 0) {
        kvt_block_write_chunk_header(block, job.chunk, plan);
        if (plan->kind == KVT_BLOCK_RANKED) kvt_rank_coder_init(&plan->table, &s->coder);
    }
    __syncthreads();
    if (plan->kind == KVT_BLOCK_RAW) {
        const uint64_t bytes = kvt_block_plane_bytes(&job.shape);
        for (uint32_t p = 0; p < job.shape.plane_count; p++)
            kvt_pages_move_body(job.chunk->plane[p], job.target + KVT_BLOCK_RAW_HEADER_BYTES + p * bytes, bytes,
                                threadIdx.x, THREADS);
    } else if (plan->kind == KVT_BLOCK_RANKED) {
        kvt_block_parts_of(&job.shape, plan->second_count, plan->third_count, plan->escape_count, &job.parts);
        if (job.shape.dtype == KVT_DTYPE_BF16) write_ranked_as<KVT_DTYPE_BF16>(&job, s);
        else if (job.shape.dtype == KVT_DTYPE_FP16) write_ranked_as<KVT_DTYPE_FP16>(&job, s);
        else write_ranked_as<KVT_DTYPE_FP8>(&job, s);
    }
}

static __global__ void __launch_bounds__(THREADS)
    write_chunks(const struct kvt_block_pack *blocks, uint32_t count, uint32_t layers_max)
{
    __shared__ struct pack_shared s;
    for (uint64_t i = blockIdx.x; i < (uint64_t)count * layers_max; i += gridDim.x) {
        const struct kvt_block_pack *block = &blocks[i / layers_max];
        const uint32_t layer = (uint32_t)(i % layers_max);
        if (layer >= block->layers || *block->ret_length == 0) continue;
        write_chunk(block, layer, &s);
        __syncthreads();
    }
}

enum kvt_status kvt_cuda_block_pack(const struct kvt_block_pack *blocks, uint32_t count, uint32_t layers_max,
                                    uint32_t ctas, void *stream)
{
    const uint64_t chunks = (uint64_t)count * layers_max;
    if (chunks == 0) return KVT_OK;
    const unsigned grid = kvt_cuda_grid(chunks, ctas);
    KVT_LAUNCH(plan_chunks, grid, THREADS, stream, blocks, count, layers_max);
    KVT_LAUNCH(lay_out_blocks, (count + 31) / 32, 32, stream, blocks, count);
    KVT_LAUNCH(write_chunks, grid, THREADS, stream, blocks, count, layers_max);
    return kvt_cuda_launch_status();
}
