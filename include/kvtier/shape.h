/*
 * shape: what the KV of a model looks like, as the public API and every layer below it describe it.
 *
 * Words: a layer group is the set of layers that need the same part of the past. A block is the KV of block_tokens
 * consecutive tokens in all layers of one group; in a state group it is one snapshot.
 *
 * Layout of a block in memory, unless an engine's own map says otherwise:
 * [layer][plane: K, V][token][KV head][head_dim], little-endian elements; a state block is [layer][state bytes].
 * One layer of a block (its K and V together) is a chunk.
 */
#ifndef KVTIER_SHAPE_H
#define KVTIER_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_GROUPS_MAX 4

enum kvt_dtype { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8, KVT_DTYPE_FP32, KVT_DTYPE_INT8 };

enum kvt_group_kind {
    KVT_GROUP_FULL,   /* a token attends to every token before it */
    KVT_GROUP_WINDOW, /* the next token after L needs the tokens [L - window_tokens, L) */
    KVT_GROUP_STATE   /* the next token after L needs the fixed-size state at L */
};

struct kvt_group_shape {
    enum kvt_group_kind kind;
    enum kvt_dtype dtype;
    uint32_t layers;
    uint32_t planes;        /* 2: K and V; 1: MLA's single latent. 0 means 2. Ignored in a state group */
    uint32_t kv_heads;      /* ignored in a state group */
    uint32_t head_dim;      /* ignored in a state group */
    uint32_t window_tokens; /* window groups only, at least 1 */
    uint32_t sink_tokens;   /* window groups: leading tokens that are always attended to; 0 is usual */
    uint64_t state_bytes;   /* state groups only: bytes of one layer's state */
};

struct kvt_model_shape {
    uint32_t block_tokens; /* 1 to 65535 */
    uint32_t group_count;  /* 1 to KVT_GROUPS_MAX */
    struct kvt_group_shape groups[KVT_GROUPS_MAX];
};

/* Bytes of one element; 0: no such type. */
KVT_API uint32_t kvt_dtype_bytes(enum kvt_dtype dtype);
KVT_API const char *kvt_dtype_name(enum kvt_dtype dtype); /* "bf16", "fp16", "fp8", "fp32", "int8"; or "?" */
KVT_API bool kvt_dtype_parse(const char *text, enum kvt_dtype *ret_dtype);

/* All functions below want a shape that kvt_shape_check() accepts. Any thread, no state. */

/* INVAL: one line (field, value, rule) is written to ret_error[error_bytes], which may be NULL. */
KVT_NODISCARD KVT_API enum kvt_status kvt_shape_check(const struct kvt_model_shape *shape, char *ret_error,
                                                      uint32_t error_bytes);

/* Bytes that one token adds in this group's layers while it is needed; 0 in a state group. */
KVT_API uint64_t kvt_group_bytes_per_token(const struct kvt_group_shape *group);

/* Bytes of one token row of one plane of one layer: kv_heads * head_dim * dtype bytes; a state group: state_bytes. */
KVT_API uint64_t kvt_group_row_bytes(const struct kvt_group_shape *group);

/* Bytes of one block of this group with `tokens` valid tokens (at most block_tokens; ignored in a state group). */
KVT_API uint64_t kvt_group_block_bytes(const struct kvt_group_shape *group, uint32_t tokens);

/* Blocks of this group that a sequence of `tokens` tokens keeps when nothing is shared (state: 1 once tokens > 0). */
KVT_API uint64_t kvt_group_blocks_kept(const struct kvt_group_shape *group, uint32_t block_tokens, uint64_t tokens);

/*
 * Bytes, counted by token, that a sequence of `tokens` tokens keeps in this group: the window's tokens in a window
 * group.
 */
KVT_API uint64_t kvt_group_bytes_kept(const struct kvt_group_shape *group, uint64_t tokens);

#ifdef __cplusplus
}
#endif

#endif
