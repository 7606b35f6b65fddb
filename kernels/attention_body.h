/*
 * attention_body: what every implementation of attention.h does in the same way, on the CPU and in a CUDA thread: which
 * token of which block is read, what the mask lets through, the online softmax, the merge. No exchange between threads.
 */
#ifndef KVT_KERNELS_ATTENTION_BODY_H
#define KVT_KERNELS_ATTENTION_BODY_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/body.h"
#include "kvtier/shape.h"

#define KVT_ATTENTION_NO_SLOT UINT32_MAX /* an entry whose block was dropped: it is passed over */

struct kvt_attention {
    enum kvt_dtype dtype; /* of keys and values: bf16, fp16 or fp32 */
    uint32_t query_heads; /* a multiple of kv_heads */
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t block_tokens;
    float scale; /* of the scores; usually 1 / sqrt(head_dim) */

    /* Where keys and values lie. MLA, which has one plane, gives the same twice. */
    const uint8_t *keys, *values;
    uint64_t key_stride, value_stride; /* bytes from a slot to the next */

    /* The list. */
    uint32_t count;
    const uint32_t *slots;   /* [count] */
    const uint32_t *numbers; /* [count] block numbers of selected blocks; NULL: entry i is block first + i * step */
    uint64_t first, step;

    /* The mask: a token t is seen when from <= t < to, and window is 0, t < sinks, or t >= length - window. */
    uint64_t from, to; /* of this piece; to <= length */
    uint64_t length;   /* tokens of the sequence: the query attends to the last `window` of these */
    uint64_t window;   /* 0: all of them */
    uint64_t sinks;    /* leading tokens that are seen whatever the window */

    const float *query; /* [query_heads][head_dim] */
    float *out;         /* [query_heads][head_dim] */
    float *lse;         /* [query_heads] */
};

/* The block of the sequence that lies in the i-th slot of the list. */
KVT_BODY uint64_t kvt_attention_block(const struct kvt_attention *args, uint32_t i)
{
    return args->numbers ? args->numbers[i] : args->first + i * args->step;
}

KVT_BODY bool kvt_attention_is_seen(const struct kvt_attention *args, uint64_t token)
{
    if (token < args->from || token >= args->to) return false;
    return args->window == 0 || token < args->sinks || token + args->window >= args->length;
}

/*
 * The tokens of entry i that may be seen: rows [*ret_first, *ret_end) of its block. Rows in between may still be hidden,
 * where sinks and window leave a gap.
 */
KVT_BODY void kvt_attention_rows(const struct kvt_attention *args, uint32_t i, uint32_t *ret_first, uint32_t *ret_end)
{
    const uint64_t start = kvt_attention_block(args, i) * args->block_tokens;
    const uint64_t stop = start + args->block_tokens;
    uint64_t from = start > args->from ? start : args->from;
    const uint64_t to = stop < args->to ? stop : args->to;
    const bool is_cut = args->window != 0 && args->length > args->window && from >= args->sinks;
    if (is_cut && from < args->length - args->window) from = args->length - args->window;
    const bool is_empty = from >= to || args->slots[i] == KVT_ATTENTION_NO_SLOT;
    *ret_first = is_empty ? 0 : (uint32_t)(from - start);
    *ret_end = is_empty ? 0 : (uint32_t)(to - start);
}

/* Bytes from the start of a segment to a row of one KV head. */
KVT_BODY uint64_t kvt_attention_row_offset(const struct kvt_attention *args, uint32_t row, uint32_t kv_head)
{
    const uint64_t element_bytes = args->dtype == KVT_DTYPE_FP32 ? 4 : 2;
    return ((uint64_t)row * args->kv_heads + kv_head) * args->head_dim * element_bytes;
}

KVT_BODY const uint8_t *kvt_attention_key(const struct kvt_attention *args, uint32_t i, uint32_t row, uint32_t kv_head)
{
    return args->keys + args->slots[i] * args->key_stride + kvt_attention_row_offset(args, row, kv_head);
}

KVT_BODY const uint8_t *kvt_attention_value(const struct kvt_attention *args, uint32_t i, uint32_t row,
                                            uint32_t kv_head)
{
    return args->values + args->slots[i] * args->value_stride + kvt_attention_row_offset(args, row, kv_head);
}

/* The largest score so far, and the sum of exp(score - that). */
struct kvt_attention_sum {
    float most, sum;
};

KVT_BODY struct kvt_attention_sum kvt_attention_sum_begin(void)
{
    struct kvt_attention_sum sum;
    sum.most = -INFINITY;
    sum.sum = 0;
    return sum;
}

/* Raises the largest score: returns the factor for everything that was accumulated under the one before. */
KVT_BODY float kvt_attention_sum_raise(struct kvt_attention_sum *sum, float score)
{
    if (!(score > sum->most)) return 1.0f;
    const float factor = sum->most == -INFINITY ? 0.0f : expf(sum->most - score);
    sum->most = score;
    sum->sum *= factor;
    return factor;
}

/* The weight of a score that is not above the largest; it is counted. */
KVT_BODY float kvt_attention_sum_add(struct kvt_attention_sum *sum, float score)
{
    const float weight = score == -INFINITY ? 0.0f : expf(score - sum->most);
    sum->sum += weight;
    return weight;
}

KVT_BODY float kvt_attention_sum_lse(const struct kvt_attention_sum *sum)
{
    return sum->sum > 0.0f ? sum->most + logf(sum->sum) : -INFINITY;
}

/* What of two partial results' values goes into their merge, and its lse. */
struct kvt_attention_share {
    float into, from, lse;
};

KVT_BODY struct kvt_attention_share kvt_attention_share_of(float into_lse, float from_lse)
{
    struct kvt_attention_share share;
    const float most = into_lse > from_lse ? into_lse : from_lse;
    if (most == -INFINITY) { /* neither has seen anything */
        share.into = 1.0f;
        share.from = 0.0f;
        share.lse = -INFINITY;
        return share;
    }
    const float into = expf(into_lse - most), from = expf(from_lse - most);
    share.into = into / (into + from);
    share.from = from / (into + from);
    share.lse = most + logf(into + from);
    return share;
}

/* fp16 -> fp32, exact; NaNs stay NaNs. */
KVT_BODY float kvt_attention_from_fp16(uint16_t half)
{
    union {
        uint32_t bits;
        float value;
    } both;
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) both.bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    else if (rest >= 0x0400) both.bits = sign | ((rest << 13) + 0x38000000);
    else {
        both.value = (float)rest * 5.9604644775390625e-8f; /* a subnormal is a multiple of 2^-24 */
        both.bits |= sign;
    }
    return both.value;
}

KVT_BODY float kvt_attention_from_bf16(uint16_t brain)
{
    union {
        uint32_t bits;
        float value;
    } both;
    both.bits = (uint32_t)brain << 16;
    return both.value;
}

/* Element d of a row. */
KVT_BODY float kvt_attention_element(enum kvt_dtype dtype, const uint8_t *row, uint32_t d)
{
    if (dtype == KVT_DTYPE_FP32) return ((const float *)(const void *)row)[d];
    const uint16_t bits = ((const uint16_t *)(const void *)row)[d];
    return dtype == KVT_DTYPE_FP16 ? kvt_attention_from_fp16(bits) : kvt_attention_from_bf16(bits);
}

#endif
