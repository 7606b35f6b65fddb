/*
 * blocks: a few tokens' KV of one layer group, as it is kept: a short header and one packed section for each
 * kind of row.
 *
 *     0   u32 "KVL1"
 *     4   u16 tokens | u16 first token in its block
 *     8   u32 bytes of each of two sections; bit 31: packed by the codec, otherwise as in the engine
 *     16  the sections
 *
 * What lies behind the header is a function of the tokens alone: rows are in token order, V is never
 * transposed. So contexts of the same sums share records, whatever cells they used.
 *
 * Thread: one at a time. Memory: taken in create. Trust: read believes nothing; what does not fit is CORRUPT.
 */
#ifndef KVT_CONNECTORS_LLAMA_BLOCKS_H
#define KVT_CONNECTORS_LLAMA_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "connectors/llama/state.h"
#include "runtime/base/status.h"

struct kvt_codec;

enum { KVT_LLAMA_BLOCK_HEADER_BYTES = 16, KVT_LLAMA_SECTIONS_MAX = 2, KVT_LLAMA_BLOCK_TOKENS_MAX = 1024 };

/* Planes with rows of one kind, which the codec packs together. */
struct kvt_llama_section {
    uint32_t codec_group;                          /* UINT32_MAX: never packed */
    uint32_t plane_first, layers, planes_of_layer; /* 2: K and V; their planes are `layers` apart */
    uint64_t token_bytes;
};

struct kvt_llama_blocks {
    const struct kvt_llama_layout *layout; /* borrowed */
    uint32_t block_tokens;
    struct kvt_codec *codec; /* NULL: nothing is packed */
    void *scratch;
    size_t scratch_bytes;
    uint32_t section_count[KVT_LLAMA_CACHES_MAX];
    struct kvt_llama_section sections[KVT_LLAMA_CACHES_MAX][KVT_LLAMA_SECTIONS_MAX];
    uint8_t *raw; /* rows of one block, [plane][token][row] */
    size_t raw_bytes;
    uint32_t record_bytes_max;
};

/* NOMEM. Of an unfinished one done is allowed. */
KVT_NODISCARD enum kvt_status kvt_llama_blocks_init(struct kvt_llama_blocks *blocks,
                                                    const struct kvt_llama_layout *layout, uint32_t block_tokens,
                                                    bool is_codec_off);
void kvt_llama_blocks_done(struct kvt_llama_blocks *blocks);

/*
 * Packs blocks->raw, which holds `tokens` tokens of cache c. target has room for record_bytes_max. Returns its
 * length.
 */
uint32_t kvt_llama_blocks_pack(struct kvt_llama_blocks *blocks, uint32_t c, uint32_t from, uint32_t tokens,
                               uint8_t *target);

/* The inverse, into blocks->raw. CORRUPT: raw is undefined then. */
KVT_NODISCARD enum kvt_status kvt_llama_blocks_unpack(struct kvt_llama_blocks *blocks, uint32_t c, uint32_t from,
                                                      uint32_t tokens, const uint8_t *record, uint32_t length);

#endif
