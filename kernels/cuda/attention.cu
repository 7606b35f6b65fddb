/*
 * Decode attention, one query head a CTA and share of the list: each warp takes every fourth token of a block, each of
 * its lanes every 32nd element. What is read, the mask, the online softmax and the merge are those of
 * kernels/attention_body.h; here stands only what threads exchange.
 */
#include "kernels/cuda/launch_status.cuh"

#define WARPS 4
#define LANES 32

/* Where the partial results of all splits lie in scratch: the values first, then the lse. */
static __device__ float *split_out(const struct kvt_attention &args, float *scratch, uint32_t split, uint32_t head)
{
    return scratch + ((uint64_t)split * args.query_heads + head) * args.head_dim;
}

static __device__ float *split_lse(const struct kvt_attention &args, float *scratch, uint32_t splits, uint32_t split,
                                   uint32_t head)
{
    return scratch + (uint64_t)splits * args.query_heads * args.head_dim + (uint64_t)split * args.query_heads + head;
}

/* The sum over a warp, in every lane. */
static __device__ float warp_sum(float value)
{
    for (int other = LANES / 2; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
    return value;
}

/* One token: its score by the whole warp, its value into each lane's elements. */
template <uint32_t ELEMENTS>
static __device__ void take_token(const struct kvt_attention &args, uint32_t i, uint32_t row, uint32_t kv_head,
                                  const float *query, struct kvt_attention_sum *sum, float *out)
{
    const uint32_t lane = threadIdx.x % LANES;
    const uint8_t *key = kvt_attention_key(&args, i, row, kv_head);
    const uint8_t *value = kvt_attention_value(&args, i, row, kv_head);
    float score = 0;
#pragma unroll
    for (uint32_t e = 0; e < ELEMENTS; e++) {
        const uint32_t d = e * LANES + lane;
        if (d < args.head_dim) score += query[e] * kvt_attention_element(args.dtype, key, d);
    }
    score = warp_sum(score) * args.scale;
    const float factor = kvt_attention_sum_raise(sum, score);
    const float weight = kvt_attention_sum_add(sum, score);
#pragma unroll
    for (uint32_t e = 0; e < ELEMENTS; e++) {
        const uint32_t d = e * LANES + lane;
        if (d < args.head_dim) out[e] = out[e] * factor + weight * kvt_attention_element(args.dtype, value, d);
    }
}

/* Merges what the warps found, through shared memory, into the split's partial result. */
static __device__ void merge_warps(const struct kvt_attention &args, const float *warp_out, const float *warp_lse,
                                   float *out, float *lse)
{
    float merged_lse = warp_lse[0];
    for (uint32_t d = threadIdx.x; d < args.head_dim; d += WARPS * LANES) out[d] = warp_out[d];
    for (uint32_t warp = 1; warp < WARPS; warp++) {
        const struct kvt_attention_share share = kvt_attention_share_of(merged_lse, warp_lse[warp]);
        for (uint32_t d = threadIdx.x; d < args.head_dim; d += WARPS * LANES)
            out[d] = share.into * out[d] + share.from * warp_out[warp * args.head_dim + d];
        merged_lse = share.lse;
    }
    if (threadIdx.x == 0) *lse = merged_lse;
}

template <uint32_t ELEMENTS>
static __global__ void __launch_bounds__(WARPS *LANES) attend(const struct kvt_attention args, float *scratch)
{
    KVT_LAUNCH_SHARED(float, shared); /* [WARPS][head_dim], then [WARPS] */
    const uint32_t head = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const uint32_t kv_head = head / (args.query_heads / args.kv_heads);
    float query[ELEMENTS], out[ELEMENTS];
    struct kvt_attention_sum sum = kvt_attention_sum_begin();
    for (uint32_t e = 0; e < ELEMENTS; e++) {
        const uint32_t d = e * LANES + lane;
        query[e] = d < args.head_dim ? args.query[(uint64_t)head * args.head_dim + d] : 0;
        out[e] = 0;
    }
    for (uint32_t i = split; i < args.count; i += splits) {
        const uint64_t start = kvt_attention_block(&args, i) * args.block_tokens;
        uint32_t first, end;
        kvt_attention_rows(&args, i, &first, &end);
        for (uint32_t row = first + warp; row < end; row += WARPS) {
            if (kvt_attention_is_seen(&args, start + row))
                take_token<ELEMENTS>(args, i, row, kv_head, query, &sum, out);
        }
    }
    for (uint32_t e = 0; e < ELEMENTS; e++) {
        const uint32_t d = e * LANES + lane;
        if (d < args.head_dim) shared[warp * args.head_dim + d] = sum.sum > 0 ? out[e] / sum.sum : 0;
    }
    if (lane == 0) shared[WARPS * args.head_dim + warp] = kvt_attention_sum_lse(&sum);
    __syncthreads();
    merge_warps(args, shared, shared + WARPS * args.head_dim, split_out(args, scratch, split, head),
                split_lse(args, scratch, splits, split, head));
}

/* One CTA a head: the splits' partial results become the call's. */
static __global__ void merge_splits(const struct kvt_attention args, float *scratch, uint32_t splits)
{
    const uint32_t head = blockIdx.x;
    float *out = args.out + (uint64_t)head * args.head_dim;
    float lse = -INFINITY;
    for (uint32_t d = threadIdx.x; d < args.head_dim; d += blockDim.x) out[d] = 0;
    for (uint32_t split = 0; split < splits; split++) {
        const float *from = split_out(args, scratch, split, head);
        const struct kvt_attention_share share = kvt_attention_share_of(lse,
                                                                        *split_lse(args, scratch, splits, split, head));
        for (uint32_t d = threadIdx.x; d < args.head_dim; d += blockDim.x)
            out[d] = share.into * out[d] + share.from * from[d];
        lse = share.lse;
    }
    if (threadIdx.x == 0) args.lse[head] = lse;
}

uint64_t kvt_cuda_attention_scratch_floats(const struct kvt_attention *args, uint32_t splits)
{
    return (uint64_t)splits * args->query_heads * (args->head_dim + 1);
}

enum kvt_status kvt_cuda_attention(const struct kvt_attention *args, uint32_t splits, float *scratch, void *stream)
{
    const size_t shared_bytes = WARPS * (args->head_dim + 1) * sizeof(float);
    const uint32_t heads = args->query_heads, threads = WARPS * LANES;
    if (args->head_dim > KVT_CUDA_HEAD_DIM_MAX) return KVT_UNSUPPORTED;
    if (args->head_dim <= 2 * LANES)
        KVT_LAUNCH_WIDE(attend<2>, heads, splits, threads, shared_bytes, stream, *args, scratch);
    else if (args->head_dim <= 4 * LANES)
        KVT_LAUNCH_WIDE(attend<4>, heads, splits, threads, shared_bytes, stream, *args, scratch);
    else if (args->head_dim <= 8 * LANES)
        KVT_LAUNCH_WIDE(attend<8>, heads, splits, threads, shared_bytes, stream, *args, scratch);
    else KVT_LAUNCH_WIDE(attend<18>, heads, splits, threads, shared_bytes, stream, *args, scratch);
    KVT_LAUNCH(merge_splits, heads, threads, stream, *args, scratch, splits);
    return kvt_cuda_launch_status();
}
