/*
 * attention: decode attention of one query token over the KV of one layer, where it lies in pages.
 *
 * The keys and values of a block are two segments as in pages.h: those of slot n start at base + n * stride and hold
 * [token][kv head][head_dim]. Which blocks a call looks at is a list: entry i names a slot and the block of the sequence
 * that lies in it. Four kinds of list are one arithmetic: all blocks (first 0, step 1), local ones (first f, step 1),
 * strided ones (any step), and selected ones (numbers). Query heads share KV heads in groups (GQA): head h reads KV head
 * h / (query_heads / kv_heads).
 *
 * The result is a partial one: for each head the softmax-weighted mean of the values that were seen, and the logarithm
 * of the sum of the weights (lse). Two partial results over disjoint tokens merge into that over all of them, so a
 * context that device memory does not hold is attended in pieces, of any size and in any order. A partial result that
 * saw nothing has lse -infinity and zeros; it merges as nothing.
 *
 * Arithmetic: inputs are widened to fp32 exactly; everything is accumulated in fp32. attention_ref.c is the
 *             specification; the others differ from it by rounding alone. Keys and values that are masked are not read.
 * Thread:     any; no state, no memory.
 */
#ifndef KVT_KERNELS_ATTENTION_H
#define KVT_KERNELS_ATTENTION_H

#include "kernels/attention_body.h"

/* Every implementation has this prototype. */
typedef void kvt_attention_fn(const struct kvt_attention *args);

struct kvt_attention_ops {
    const char *name;
    bool (*is_supported)(void); /* by this machine */
    kvt_attention_fn *attend;
};

extern const struct kvt_attention_ops kvt_attention_ops_ref;

/* The fastest one that this machine supports. */
const struct kvt_attention_ops *kvt_attention_ops_best(void);
/* The i-th that is built in, the reference first; NULL past the end. It may be unsupported here. */
const struct kvt_attention_ops *kvt_attention_ops_at(uint32_t i);

/* True when the shape and the list are such that attend may be called; asserted by every implementation. */
bool kvt_attention_is_valid(const struct kvt_attention *args);

/* Merges the partial result `from` into `into`, both of query_heads heads of head_dim values. */
void kvt_attention_merge(uint32_t query_heads, uint32_t head_dim, float *into, float *into_lse, const float *from,
                         const float *from_lse);

#endif
