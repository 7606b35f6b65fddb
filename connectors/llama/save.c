#include "connectors/llama/attached.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

/* One cache of a state, by position. */
struct source {
    const struct kvt_llama_cache_view *view;
    uint64_t first, end;   /* positions */
    const uint32_t *cells; /* of position first + i; NULL: cell i */
};

static enum kvt_status room_for_cells(struct kvt_llama *llama, uint64_t count)
{
    if (count <= llama->cell_of_count) return KVT_OK;
    uint32_t *cells = kvt_realloc(llama->cell_of, count, sizeof *cells);
    if (!cells) return KVT_NOMEM;
    llama->cell_of = cells;
    llama->cell_of_count = count;
    return KVT_OK;
}

/*
 * Positions first to end - 1, each once, and no others: INVAL otherwise. In a state that was evaluated in one go they
 * are in order; behind the end of a ring, or after a branch, they are not.
 */
static enum kvt_status map_positions(const uint8_t *state, const struct kvt_llama_cache_view *view, uint64_t end,
                                     uint32_t *cells, struct source *ret_source)
{
    if (view->cells > end) return KVT_INVAL;
    const uint64_t first = end - view->cells;
    bool is_ordered = true;
    for (uint32_t i = 0; i < view->cells; i++) cells[i] = UINT32_MAX;
    for (uint32_t i = 0; i < view->cells; i++) {
        const uint64_t position = (uint32_t)kvt_llama_state_position(state, view, i);
        if (position < first || position >= end || cells[position - first] != UINT32_MAX) return KVT_INVAL;
        cells[position - first] = i;
        is_ordered = is_ordered && position - first == i;
    }
    *ret_source = (struct source){ .view = view, .first = first, .end = end, .cells = is_ordered ? NULL : cells };
    return KVT_OK;
}

static enum kvt_status check_positions(struct kvt_llama *llama, uint64_t count, const struct kvt_llama_state_view *view,
                                       struct source sources[KVT_LLAMA_CACHES_MAX])
{
    uint64_t cells = 0;
    for (uint32_t c = 0; c < llama->layout.cache_count; c++) cells += view->caches[c].cells;
    KVT_TRY(room_for_cells(llama, cells));
    uint32_t *map = llama->cell_of;
    for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
        KVT_TRY(map_positions(llama->staging, &view->caches[c], count, map, &sources[c]));
        map += view->caches[c].cells;
    }
    if (sources[KVT_LLAMA_FULL].first != 0) return KVT_INVAL;
    const uint64_t window = llama->window_tokens;
    const uint64_t needed = count + 1 > window ? count + 1 - window : 0;
    return window > 0 && sources[KVT_LLAMA_WINDOW].first > needed ? KVT_INVAL : KVT_OK;
}

/* Tokens [from, end) of block k, as a record of their own. */
static enum kvt_status save_record(struct kvt_llama *llama, uint32_t c, const struct source *source, uint64_t k,
                                   uint32_t from, uint32_t end, struct kvt_key key)
{
    const uint64_t first = k * llama->block_tokens + from - source->first;
    const struct kvt_llama_rows rows = { .layout = &llama->layout.caches[c],
                                         .view = source->view,
                                         .cells = source->cells ? source->cells + first : NULL,
                                         .cell_first = (uint32_t)first,
                                         .count = end - from,
                                         .buffer_cells = end - from };
    kvt_llama_rows_gather(&rows, llama->staging, llama->blocks.raw);
    const uint32_t length = kvt_llama_blocks_pack(&llama->blocks, c, from, end - from, llama->record);
    KVT_TRY(kvt_llama_vault_put(llama->vault, key, llama->record, length, end < llama->block_tokens));
    llama->stats.saved_blocks++;
    llama->stats.raw_bytes += rows.layout->cell_bytes * rows.count;
    llama->stats.packed_bytes += length;
    return KVT_OK;
}

/* Keeps block k as far as the state has it, unless it is kept. */
static enum kvt_status save_block(struct kvt_llama *llama, uint32_t c, const struct source *source, uint64_t k,
                                  const int32_t *tokens)
{
    const uint64_t size = llama->block_tokens, block = k * size;
    const uint32_t from = source->first > block ? (uint32_t)(source->first - block) : 0;
    const uint32_t end = (uint32_t)kvt_min_u64(size, source->end - block);
    const struct kvt_key last = end == size ? llama->chain[k + 1] : kvt_llama_chain_end(llama, tokens, k, end);
    const struct kvt_key key = kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, c, from, last);
    const struct kvt_key complete = kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, c, 0, last);
    if (kvt_llama_vault_has(llama->vault, key) || (from > 0 && kvt_llama_vault_has(llama->vault, complete))) {
        llama->stats.shared_blocks++;
        return KVT_OK;
    }
    return save_record(llama, c, source, k, from, end, key);
}

/* The tail of the last save is part of what was kept now. */
static void outdate_tail(struct kvt_llama *llama, const struct kvt_llama_seq *seq, const int32_t *tokens,
                         uint64_t count)
{
    const uint64_t size = llama->block_tokens, before = seq->saved_tokens;
    if (before == 0 || before >= count || before % size == 0) return;
    const struct kvt_key last = kvt_llama_chain_end(llama, tokens, before / size, (uint32_t)(before % size));
    for (uint32_t c = 0; c < llama->layout.cache_count; c++)
        kvt_llama_vault_outdate(llama->vault, kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, c, 0, last));
}

/* More than any packing brings under the caps: what is kept would leave for it, and it would not be kept either. */
static bool is_too_large(struct kvt_llama *llama, const struct source sources[KVT_LLAMA_CACHES_MAX])
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < llama->layout.cache_count; c++)
        bytes += llama->layout.caches[c].cell_bytes * (sources[c].end - sources[c].first);
    struct kvt_llama_vault_stats vault;
    kvt_llama_vault_stats(llama->vault, &vault);
    const uint64_t cap = kvt_max_u64(vault.host.capacity_bytes, vault.has_store ? vault.store.capacity_bytes : 0);
    if (bytes / 2 <= cap) return false;
    llama->stats.too_large++;
    kvt_log(&llama->env, KVT_LOG_WARN, "a state of %llu bytes is not kept: the larger cap is %llu bytes",
            (unsigned long long)bytes, (unsigned long long)cap);
    return true;
}

enum kvt_status kvt_llama_save_blocks(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                                      const struct kvt_llama_state_view *view)
{
    const uint64_t size = llama->block_tokens;
    struct source sources[KVT_LLAMA_CACHES_MAX];
    KVT_TRY(check_positions(llama, count, view, sources));
    KVT_TRY(kvt_llama_see(llama, seq, tokens, count, llama->staging, sources[KVT_LLAMA_FULL].view,
                          sources[KVT_LLAMA_FULL].cells));
    if (is_too_large(llama, sources)) return KVT_FULL;
    KVT_TRY(kvt_llama_chain(llama, tokens, count));
    enum kvt_status status = KVT_OK;
    for (uint32_t c = 0; c < llama->layout.cache_count && status == KVT_OK; c++) {
        if (llama->layout.caches[c].plane_count == 0 || sources[c].first == sources[c].end) continue;
        for (uint64_t k = sources[c].first / size; k <= (count - 1) / size && status == KVT_OK; k++)
            status = save_block(llama, c, &sources[c], k, tokens);
    }
    kvt_llama_keep_tables(llama);
    KVT_TRY(status);
    outdate_tail(llama, &llama->seqs[seq], tokens, count);
    llama->seqs[seq].saved_tokens = count;
    return KVT_OK;
}
