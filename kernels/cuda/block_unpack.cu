/*
 * Packed blocks taken apart into their segments, in two kernels on one stream (kernels/block_pack.h has the format):
 *
 *   check    a thread for each block: header, directory, the zeros between chunks.
 *   unpack   a CTA for each chunk, in tiles of groups.
 *
 * Where a group's bits are in a stream is the sum of the counts of all groups before, and these counts are told by the
 * stream of the level before. So a tile goes level by level: the warps count what goes on, all add up, the tile's bytes
 * of the next streams come to shared memory, and each warp takes the words of its groups. Whether the streams reach so
 * far is asked before they are read, by all threads alike, so that a damaged chunk ends the CTA's work as a whole.
 */
#include "kernels/block_pack.h"
#include "kernels/cuda/launch_status.cuh"
#include "kernels/cuda/warp.cuh"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    WARP_GROUPS = 4,
    TILE_GROUPS = WARPS * WARP_GROUPS,
    STAGE_WORDS = TILE_GROUPS * 2 + 4
};

struct unpack_shared {
    struct kvt_block_found found;
    uint32_t verdict;
    uint32_t warp_counts[WARPS];
    uint32_t stage[2][2][STAGE_WORDS]; /* second 0 and 1, third 0 and 1 */
};

struct unpack_job {
    struct kvt_rank_shape shape;
    const struct kvt_block_chunk *chunk;
    const struct kvt_block_found *found;
    bool is_based;
};

static __global__ void check_blocks(const struct kvt_block_unpack *blocks, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) *blocks[i].ret_verdict = kvt_block_check_directory(&blocks[i]);
}

/* ---- A ranked chunk -------------------------------------------------------------------------------------------- */

/* What all warps count together: the sum before this warp, and all. Every thread calls it. */
static __device__ uint32_t add_up(struct unpack_shared *s, uint32_t mine, uint32_t *ret_all)
{
    if (threadIdx.x % 32 == 0) s->warp_counts[threadIdx.x / 32] = mine;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        if (w < threadIdx.x / 32) before += s->warp_counts[w];
        all += s->warp_counts[w];
    }
    __syncthreads();
    *ret_all = all;
    return before;
}

/* The tile's bytes of both streams of a level. */
static __device__ void stage_bytes(const uint8_t *stream0, const uint8_t *stream1, uint32_t base, uint32_t bits,
                                   uint32_t (*stage)[STAGE_WORDS])
{
    const uint32_t from = base / 8, count = (base + bits + 7) / 8 - from;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        ((uint8_t *)stage[0])[i] = stream0[from + i];
        ((uint8_t *)stage[1])[i] = stream1[from + i];
    }
    __syncthreads();
}

/* The first level of a warp's groups; false: bits behind the end of a short group. */
static __device__ bool load_first(const struct unpack_job *job, uint32_t tile, struct kvt_rank_planes *planes,
                                  uint32_t groups)
{
    const uint32_t plane_groups = kvt_rank_plane_groups(&job->shape);
    const uint8_t *first = job->found->packed + job->found->parts.first;
    bool is_ok = true;
#pragma unroll
    for (uint32_t j = 0; j < WARP_GROUPS; j++) {
        const uint32_t index = tile + threadIdx.x / 32 * WARP_GROUPS + j;
        struct kvt_rank_planes *p = &planes[j];
        p->count[0] = 0;
        p->word[0][0] = p->word[0][1] = 0;
        if (index >= groups) continue;
        p->count[0] = kvt_rank_group_count(&job->shape, index < plane_groups ? index : index - plane_groups);
        p->word[0][0] = kvt_rank_load_word(first + (uint64_t)16 * index);
        p->word[0][1] = kvt_rank_load_word(first + (uint64_t)16 * index + 8);
        if ((p->word[0][0] | p->word[0][1]) & ~kvt_rank_low_bits(p->count[0])) is_ok = false;
    }
    return is_ok;
}

/* Counts what goes on from `level` to the next in a warp's groups. */
static __device__ inline uint32_t count_on(struct kvt_rank_planes *planes, uint32_t level)
{
    uint32_t sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < WARP_GROUPS; j++) {
        planes[j].count[level + 1] = KVT_BODY_POPCOUNT64(kvt_rank_planes_on(&planes[j], level));
        sum += planes[j].count[level + 1];
    }
    return sum;
}

/* The words of a level from the stage; position: of the warp's first group. */
static __device__ inline void take_words(struct kvt_rank_planes *planes, uint32_t level,
                                         const uint32_t (*stage)[STAGE_WORDS], uint32_t position)
{
#pragma unroll
    for (uint32_t j = 0; j < WARP_GROUPS; j++) {
        planes[j].word[level][0] = planes[j].word[level][1] = 0;
        if (planes[j].count[level] == 0) continue; /* a group may have none where the stage ends */
        planes[j].word[level][0] = kvt_shared_bits(stage[0], position);
        planes[j].word[level][1] = kvt_shared_bits(stage[1], position);
        position += planes[j].count[level];
    }
}

static __device__ void unpack_group(const struct unpack_job *job, uint32_t index, const struct kvt_rank_planes *planes,
                                    const uint8_t *escapes)
{
    const struct kvt_rank_shape *shape = &job->shape;
    const uint32_t l = threadIdx.x % 32, plane_groups = kvt_rank_plane_groups(shape);
    const uint32_t plane = index >= plane_groups, group = plane ? index - plane_groups : index;
    const uint32_t count = kvt_rank_lane_count(shape, group, l);
    const uint8_t *rest_bytes = job->found->packed + job->found->parts.rest + plane * kvt_rank_plane_rest_bytes(shape);
    const uint8_t *bases = job->is_based ? job->chunk->bases[plane] : NULL;
    const uint32_t channel = bases ? (uint32_t)((uint64_t)group * KVT_RANK_GROUP % shape->channels) + 2 * l : 0;
    uint32_t rest[2], value[2] = { 0, 0 };
    uint64_t words[3] = { 0, 0, 0 };
    kvt_rank_lane_load_rest(shape, rest_bytes, group, l, count, rest);
    if (shape->dtype == KVT_DTYPE_FP16)
        for (uint32_t w = 0; w < 3; w++)
            words[w] = kvt_rank_load_word(rest_bytes + kvt_rank_planes_offset(shape, group) + 8 * w);
    for (uint32_t k = 0; k < count; k++) {
        const uint32_t i = 2 * l + k;
        uint32_t escape = 0;
        const uint32_t rank = kvt_rank_planes_rank(planes, i, &escape);
        uint32_t exponent = rank < KVT_RANK_SYMBOLS ? job->found->packed[1 + rank] : escapes[escape];
        if (bases) exponent += bases[channel + k];
        const uint32_t upper = (uint32_t)(words[0] >> i & 1) << 2 | (uint32_t)(words[1] >> i & 1) << 1
            | (uint32_t)(words[2] >> i & 1);
        value[k] = kvt_rank_join(shape->dtype, exponent, rest[k], upper);
    }
    kvt_rank_store_values(shape->dtype, job->chunk->plane[plane], (uint64_t)group * KVT_RANK_GROUP + 2 * l, count,
                          value);
}

/* False, in all threads alike: the streams do not fit together. */
static __device__ bool unpack_ranked(const struct unpack_job *job, struct unpack_shared *s)
{
    const struct kvt_block_found *found = job->found;
    const uint32_t groups = job->shape.plane_count * kvt_rank_plane_groups(&job->shape);
    const uint8_t *packed = found->packed;
    uint32_t base[3] = { 0, 0, 0 };
    for (uint32_t tile = 0; tile < groups; tile += TILE_GROUPS) {
        struct kvt_rank_planes planes[WARP_GROUPS];
        if (__syncthreads_or(!load_first(job, tile, planes, groups))) return false;

        uint32_t all;
        uint32_t before = add_up(s, count_on(planes, 0), &all);
        if (all > found->second_count - base[0]) return false;
        stage_bytes(packed + found->parts.second[0], packed + found->parts.second[1], base[0], all, s->stage[0]);
        take_words(planes, 1, s->stage[0], base[0] % 8 + before);
        base[0] += all;

        before = add_up(s, count_on(planes, 1), &all);
        if (all > found->third_count - base[1]) return false;
        stage_bytes(packed + found->parts.third[0], packed + found->parts.third[1], base[1], all, s->stage[1]);
        take_words(planes, 2, s->stage[1], base[1] % 8 + before);
        base[1] += all;

        before = add_up(s, count_on(planes, 2), &all);
        if (all > found->escape_count - base[2]) return false;
        const uint8_t *escapes = packed + found->parts.escapes + base[2] + before;
        base[2] += all;
#pragma unroll
        for (uint32_t j = 0; j < WARP_GROUPS; j++) {
            const uint32_t index = tile + threadIdx.x / 32 * WARP_GROUPS + j;
            if (index < groups) unpack_group(job, index, &planes[j], escapes);
            escapes += planes[j].count[3];
        }
    }
    return base[0] == found->second_count && base[1] == found->third_count && base[2] == found->escape_count;
}

template <enum kvt_dtype dtype> static __device__ bool unpack_ranked_as(struct unpack_job *job, struct unpack_shared *s)
{
    job->shape.dtype = dtype; /* a constant from here on */
    return unpack_ranked(job, s);
}

/* ---- Any chunk ------------------------------------------------------------------------------------------------- */

static __device__ void unpack_raw(const struct unpack_job *job)
{
    const uint64_t bytes = kvt_block_plane_bytes(&job->shape);
    for (uint32_t p = 0; p < job->shape.plane_count; p++)
        kvt_pages_move_body(job->found->packed + KVT_BLOCK_RAW_HEADER_BYTES + p * bytes, job->chunk->plane[p], bytes,
                            threadIdx.x, THREADS);
}

static __device__ void unpack_constant(const struct unpack_job *job)
{
    for (uint32_t p = 0; p < job->shape.plane_count; p++) {
        const uint32_t value = kvt_rank_load_value(job->shape.dtype, job->found->packed + 8 + 4 * p, 0);
        for (uint32_t i = threadIdx.x; i < job->shape.elements; i += THREADS)
            kvt_rank_store_value(job->shape.dtype, job->chunk->plane[p], i, value);
    }
}

/* The n-th of the layers that are wanted. */
static __device__ uint32_t unpack_chunk(const struct kvt_block_unpack *block, uint32_t n, struct unpack_shared *s)
{
    if (threadIdx.x == 0) {
        kvt_block_find_chunk(block, block->first + n, &s->found);
        s->verdict = kvt_block_check_chunk(block, &s->found);
    }
    __syncthreads();
    if (s->verdict != KVT_BLOCK_OK) return s->verdict;
    const uint8_t kind = s->found.packed[0];
    struct unpack_job job;
    job.shape = block->shape;
    job.chunk = &block->chunks[n];
    job.found = &s->found;
    job.is_based = kind & KVT_BLOCK_BASED;
    bool is_ok = true;
    if (kind == KVT_BLOCK_RAW) unpack_raw(&job);
    else if (kind == KVT_BLOCK_CONSTANT) unpack_constant(&job);
    else if (job.shape.dtype == KVT_DTYPE_BF16) is_ok = unpack_ranked_as<KVT_DTYPE_BF16>(&job, s);
    else if (job.shape.dtype == KVT_DTYPE_FP16) is_ok = unpack_ranked_as<KVT_DTYPE_FP16>(&job, s);
    else is_ok = unpack_ranked_as<KVT_DTYPE_FP8>(&job, s);
    return is_ok ? KVT_BLOCK_OK : KVT_BLOCK_CORRUPT;
}

static __global__ void __launch_bounds__(THREADS)
    unpack_chunks(const struct kvt_block_unpack *blocks, uint32_t count, uint32_t layers_max)
{
    __shared__ struct unpack_shared s;
    for (uint64_t i = blockIdx.x; i < (uint64_t)count * layers_max; i += gridDim.x) {
        const struct kvt_block_unpack *block = &blocks[i / layers_max];
        const uint32_t n = (uint32_t)(i % layers_max);
        if (n >= kvt_block_unpack_count(block)) continue;
        /* Another chunk's verdict may come between: whether to go on is one thread's decision for all. */
        const bool is_over = threadIdx.x == 0 && *(volatile uint32_t *)block->ret_verdict == KVT_BLOCK_CORRUPT;
        if (__syncthreads_or(is_over)) continue;
        const uint32_t verdict = unpack_chunk(block, n, &s);
        if (threadIdx.x == 0 && verdict != KVT_BLOCK_OK) atomicMax(block->ret_verdict, verdict);
        __syncthreads();
    }
}

enum kvt_status kvt_cuda_block_unpack(const struct kvt_block_unpack *blocks, uint32_t count, uint32_t layers_max,
                                      uint32_t ctas, void *stream)
{
    const uint64_t chunks = (uint64_t)count * layers_max;
    if (chunks == 0) return KVT_OK;
    KVT_LAUNCH(check_blocks, (count + 31) / 32, 32, stream, blocks, count);
    KVT_LAUNCH(unpack_chunks, kvt_cuda_grid(chunks, ctas), THREADS, stream, blocks, count, layers_max);
    return kvt_cuda_launch_status();
}
