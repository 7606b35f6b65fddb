/*
 * state: what llama.cpp writes as the state of one sequence, taken apart and put together again.
 *
 * The layout is llama.cpp's own business and has changed before. What is understood here:
 *
 *     u32 magic | i32 sequence | one cache, or two: the layers that need all of the past, then those with a window
 *     a cache:   u32 streams | for each stream: u32 cells, and when there are any: their positions, then their data
 *     positions: for each cell: i32 position | u32 1 | i32 sequence
 *     data:      u32 V is transposed | u32 layers | K of each layer | V of each layer, or of none
 *     K, and V that is not transposed: i32 type | u64 bytes of a row | a row for each cell
 *     V, transposed:                   i32 type | u32 bytes of an element | u32 elements | for each: one of each cell
 *
 * Whether a layout is this one is never guessed: kvt_llama_state_parse accepts bytes only when each of them has
 * its place, and attach compares a state that was put together with the one it was taken from.
 *
 * Thread: any, no state. Trust: parse believes nothing and reads inside what it was given.
 */
#ifndef KVT_CONNECTORS_LLAMA_STATE_H
#define KVT_CONNECTORS_LLAMA_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

enum {
    KVT_LLAMA_CACHES_MAX = 2,
    KVT_LLAMA_LAYERS_MAX = 512,
    KVT_LLAMA_STREAMS_MAX = 1024,
    KVT_LLAMA_CELL_BYTES = 12, /* of a cell's position */
    KVT_LLAMA_STATE_HEADER_BYTES = 8
};

/* K or V of one layer. */
struct kvt_llama_plane {
    int32_t type;           /* ggml's number */
    uint32_t row_bytes;     /* of one cell */
    uint32_t element_bytes; /* of what lies transposed; 0: rows */
};

/* What is the same in every state of a context: what is learned from one. */
struct kvt_llama_cache_layout {
    uint32_t streams;
    uint32_t layers;
    uint32_t plane_count; /* 2 * layers, or layers where there is no V */
    bool is_transposed;
    uint64_t cell_bytes;                                     /* of all planes */
    struct kvt_llama_plane planes[2 * KVT_LLAMA_LAYERS_MAX]; /* K of each layer, then V of each */
};

struct kvt_llama_layout {
    uint32_t magic;
    uint32_t cache_count;
    struct kvt_llama_cache_layout caches[KVT_LLAMA_CACHES_MAX];
};

/* Where the parts of one state lie. */
struct kvt_llama_cache_view {
    uint32_t cells;
    uint32_t stream;                       /* the one that has them; 0 without cells */
    size_t positions;                      /* offset of the first cell's */
    size_t rows[2 * KVT_LLAMA_LAYERS_MAX]; /* offset of each plane's data; meaningless without cells */
};

struct kvt_llama_state_view {
    int32_t seq;
    struct kvt_llama_cache_view caches[KVT_LLAMA_CACHES_MAX];
};

enum kvt_llama_parsed {
    KVT_LLAMA_PARSED,
    KVT_LLAMA_UNKNOWN /* not of this layout, or damaged */
};

/*
 * Learns the layout from a state whose caches all have cells. UNKNOWN: these bytes can be read in no way, or in two.
 * ret_layout is undefined then.
 */
enum kvt_llama_parsed kvt_llama_state_learn(const uint8_t *bytes, size_t size, struct kvt_llama_layout *ret_layout);

/* Reads a state of a known layout; every byte must have its place. */
enum kvt_llama_parsed kvt_llama_state_parse(const struct kvt_llama_layout *layout, const uint8_t *bytes, size_t size,
                                            struct kvt_llama_state_view *ret_view);

int32_t kvt_llama_state_position(const uint8_t *bytes, const struct kvt_llama_cache_view *cache, uint32_t cell);

/*
 * The cells of one cache: positions first, first + 1, ..., in cells of which the one with the first position is cell
 * `rotation`, and the one after the last is cell 0.
 */
struct kvt_llama_span {
    uint32_t cells;
    uint32_t rotation;
    int32_t first;
};

static inline uint32_t kvt_llama_span_cell(const struct kvt_llama_span *span, uint64_t position)
{
    return (uint32_t)((position - (uint64_t)span->first + span->rotation) % span->cells);
}

/* Bytes of a state with these cells in each cache. 0: they do not fit in memory. */
size_t kvt_llama_state_bytes(const struct kvt_llama_layout *layout,
                             const struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX]);

/*
 * Writes everything but the rows. bytes has room for kvt_llama_state_bytes(). The view says where the rows go.
 */
void kvt_llama_state_write(const struct kvt_llama_layout *layout, int32_t seq,
                           const struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX], uint8_t *bytes,
                           struct kvt_llama_state_view *ret_view);

/*
 * Copies rows between a state and a buffer of [plane][cell][row]: of all planes, and `count` cells, cell i
 * being cell cells[i] of the state, or cell_first + i when cells is NULL. buffer_cells: how many the buffer
 * holds for each plane; its first one of these is buffer_from.
 */
struct kvt_llama_rows {
    const struct kvt_llama_cache_layout *layout;
    const struct kvt_llama_cache_view *view;
    const uint32_t *cells;
    uint32_t cell_first, count;
    uint32_t buffer_from, buffer_cells;
};
void kvt_llama_rows_gather(const struct kvt_llama_rows *rows, const uint8_t *state, uint8_t *buffer);
void kvt_llama_rows_scatter(const struct kvt_llama_rows *rows, const uint8_t *buffer, uint8_t *state);

#endif
