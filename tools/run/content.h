/*
 * content: what the bytes of every token's KV must be, so that a reader can tell its own bytes from any others.
 *
 * A sequence's identity is a running hash over its token ids, kept here and never taken from the runtime: identity(p)
 * is known when token p is written, long before its block is sealed. A token's row in one plane of one layer is a pure
 * function of (identity(p), p, group, layer, plane); a state at position p is one of (identity(p - 1), group, layer).
 * So the runtime cannot make a wrong block look right: two contexts that differ anywhere before a token differ in its
 * bytes.
 *
 * Bytes: a sample of real KV (pages.h) gives signs and exponents, a stream from the identity is laid over the
 *        mantissas.
 * They therefore pack as real KV does. Sample rows are chosen by position so that no run of exponents repeats within a
 * block of ordinary size; a second stage that looks for repeats finds none that real KV would not have. int8 has no
 * exponent: its bytes are the stream's.
 *
 * Thread: read-only after init; any thread.
 */
#ifndef KVT_TOOLS_RUN_CONTENT_H
#define KVT_TOOLS_RUN_CONTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/shape.h"
#include "runtime/base/status.h"

#define KVT_CONTENT_SAME UINT64_MAX

struct kvt_content_group {
    const uint8_t *pages; /* sample blocks; NULL: zeros */
    uint64_t page_layer_bytes;
    uint64_t page_tokens; /* tokens of one sample layer */
    uint64_t mask;        /* bits of eight bytes that the stream may change */
    uint64_t row_bytes;
    uint32_t element_bytes;
    uint32_t planes, layers;
    bool is_state;
};

struct kvt_content {
    uint32_t block_tokens;
    uint32_t group_count;
    struct kvt_content_group groups[KVT_GROUPS_MAX];
    uint8_t *widened; /* owned: fp32 pages made from the bf16 ones */
};

/* shape passes kvt_shape_check(). NOMEM. */
KVT_NODISCARD enum kvt_status kvt_content_init(struct kvt_content *content, const struct kvt_model_shape *shape);
void kvt_content_done(struct kvt_content *content);

/* Identity of nothing yet, and of a sequence once token follows. */
#define KVT_CONTENT_ROOT UINT64_C(0x6b7674696572)
uint64_t kvt_content_next(uint64_t identity, uint32_t token);

/*
 * A run of tokens of one block, as the functions below see it: `count` tokens from token `first` of the block on, the
 * first of them at `position` of its sequence, identities[i] the identity once that token is in. base: the block's
 * first byte.
 */
struct kvt_content_run {
    uint32_t group;
    uint32_t first, count;
    uint64_t position;
    const uint64_t *identities;
};

/* Writes the run's rows in every layer and plane. */
void kvt_content_write(const struct kvt_content *content, const struct kvt_content_run *run, uint8_t *base);

/* Checks every byte of the run's rows: the lowest offset in the block that differs, or KVT_CONTENT_SAME. */
uint64_t kvt_content_check(const struct kvt_content *content, const struct kvt_content_run *run, const uint8_t *base);

/*
 * Checks the header word (the first eight bytes of the run's first row) and one line of up to 64 bytes at a place given
 * by the last identity of the run; the same result.
 */
uint64_t kvt_content_check_line(const struct kvt_content *content, const struct kvt_content_run *run,
                                const uint8_t *base);

/*
 * The same two for one layer of a block alone: chunk points to the layer's first byte in memory, wherever that is. The
 * line is one of that layer's. An offset is one in the layer.
 */
uint64_t kvt_content_check_layer(const struct kvt_content *content, const struct kvt_content_run *run, uint32_t layer,
                                 const uint8_t *chunk);
uint64_t kvt_content_check_layer_line(const struct kvt_content *content, const struct kvt_content_run *run,
                                      uint32_t layer, const uint8_t *chunk);

/* Writes one row of one plane of one layer: that of the token at position, of which identity is known. */
void kvt_content_write_row(const struct kvt_content *content, uint32_t group, uint32_t layer, uint32_t plane,
                           uint64_t position, uint64_t identity, uint8_t *target);

/* The same three for a state group's block once the token of this identity is in. */
void kvt_content_write_state(const struct kvt_content *content, uint32_t group, uint64_t identity, uint8_t *base);
uint64_t kvt_content_check_state(const struct kvt_content *content, uint32_t group, uint64_t identity,
                                 const uint8_t *base);
uint64_t kvt_content_check_state_line(const struct kvt_content *content, uint32_t group, uint64_t identity,
                                      const uint8_t *base);

#endif
