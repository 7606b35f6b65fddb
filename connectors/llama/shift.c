/*
 * Shifted sequences. A context shift takes tokens out of the middle and moves those behind them forward: the
 * positions are 0 to n - 1 again, but the KV was computed with the tokens that are gone, and nothing in a state
 * says so. V of an upper layer is a function of all tokens up to its own, and a shift does not touch it. So
 * where a sequence goes on with other tokens than it was last seen with, and the V found there is one that was
 * seen further behind, it was shifted. A sum of it is remembered for each token.
 */
#include "connectors/llama/attached.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mem.h"

/* The last V of the full layers; NULL: there is none, and nothing can be told. */
static const struct kvt_llama_plane *plane_of(const struct kvt_llama *llama, uint32_t *ret_index)
{
    const struct kvt_llama_cache_layout *cache = &llama->layout.caches[KVT_LLAMA_FULL];
    if (cache->layers == 0 || cache->plane_count != 2 * cache->layers) return NULL;
    *ret_index = cache->plane_count - 1;
    return &cache->planes[cache->plane_count - 1];
}

static uint32_t sum_of(struct kvt_llama *llama, const struct kvt_llama_plane *plane, const uint8_t *rows,
                       uint32_t cells, uint32_t cell)
{
    if (plane->element_bytes == 0) return kvt_crc32c(0, rows + (size_t)cell * plane->row_bytes, plane->row_bytes);
    const uint32_t size = plane->element_bytes;
    for (uint32_t e = 0; e < plane->row_bytes / size; e++)
        memcpy(llama->blocks.raw + (size_t)e * size, rows + ((size_t)e * cells + cell) * size, size);
    return kvt_crc32c(0, llama->blocks.raw, plane->row_bytes);
}

static enum kvt_status make_room(struct kvt_llama_seq *seq, uint64_t count)
{
    if (count <= seq->seen_capacity) return KVT_OK;
    const uint64_t capacity = kvt_max_u64(count, 2 * seq->seen_capacity);
    struct kvt_llama_seen *seen = kvt_realloc(seq->seen, capacity, sizeof *seen);
    if (!seen) return KVT_NOMEM;
    seq->seen = seen;
    seq->seen_capacity = capacity;
    return KVT_OK;
}

/* Whether what is at `position` now was further behind when the sequence was seen last. */
static bool was_behind(const struct kvt_llama_seq *seq, uint64_t position, uint32_t sum)
{
    for (uint64_t i = position + 1; i < seq->seen_count; i++)
        if (seq->seen[i].sum == sum) return true;
    return false;
}

enum kvt_status kvt_llama_see(struct kvt_llama *llama, int32_t seq_id, const int32_t *tokens, uint64_t count,
                              const uint8_t *state, const struct kvt_llama_cache_view *view, const uint32_t *cells)
{
    uint32_t index;
    struct kvt_llama_seq *seq = &llama->seqs[seq_id];
    const struct kvt_llama_plane *plane = plane_of(llama, &index);
    if (!plane) return KVT_OK;
    KVT_ASSERT(view->cells == count);
    KVT_TRY(make_room(seq, count));
    uint64_t same = 0;
    while (same < count && same < seq->seen_count && seq->seen[same].token == tokens[same]) same++;
    for (uint64_t i = same; i < count; i++) {
        const uint32_t cell = cells ? cells[i] : (uint32_t)i;
        const uint32_t sum = sum_of(llama, plane, state + view->rows[index], view->cells, cell);
        if (i == same && was_behind(seq, i, sum)) return KVT_INVAL;
        seq->seen[i] = (struct kvt_llama_seen){ .token = tokens[i], .sum = sum };
    }
    seq->seen_count = count;
    return KVT_OK;
}
