#include "connectors/llama/attached.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { ROUNDS_MAX = 256 };

struct filling {
    struct kvt_llama *llama;
    struct kvt_llama_state_view view;
};

/* A record came: its rows go to their place in the state. */
static bool take_piece(void *user, uint32_t i, const uint8_t *bytes, uint32_t length)
{
    struct filling *filling = user;
    struct kvt_llama *llama = filling->llama;
    struct kvt_llama_piece *piece = &llama->plan.pieces[i];
    if (!bytes) return false;
    if (kvt_llama_blocks_unpack(&llama->blocks, piece->cache, piece->from, piece->tokens, bytes, length) != KVT_OK)
        return false;
    const uint64_t record_first = piece->block_first + piece->from;
    const struct kvt_llama_span *span = &llama->plan.spans[piece->cache];
    uint32_t cells[KVT_LLAMA_BLOCK_TOKENS_MAX];
    for (uint32_t t = 0; t < piece->use_count && span->rotation > 0; t++)
        cells[t] = kvt_llama_span_cell(span, piece->use_first + t);
    const struct kvt_llama_rows rows = { .layout = &llama->layout.caches[piece->cache],
                                         .view = &filling->view.caches[piece->cache],
                                         .cells = span->rotation > 0 ? cells : NULL,
                                         .cell_first = kvt_llama_span_cell(span, piece->use_first),
                                         .count = (uint32_t)piece->use_count,
                                         .buffer_from = (uint32_t)(piece->use_first - record_first),
                                         .buffer_cells = piece->tokens };
    kvt_llama_rows_scatter(&rows, llama->blocks.raw, llama->staging);
    piece->is_there = true;
    return true;
}

/* The planned state, into staging. *ret_is_whole: every record was there. */
static enum kvt_status assemble(struct kvt_llama *llama, int32_t seq, size_t *ret_size,
                                struct kvt_llama_state_view *ret_view, bool *ret_is_whole)
{
    struct kvt_llama_plan *plan = &llama->plan;
    struct filling filling = { .llama = llama };
    const size_t size = kvt_llama_state_bytes(&llama->layout, plan->spans);
    if (size == 0) return KVT_NOMEM;
    KVT_TRY(kvt_llama_staging(llama, size));
    struct kvt_key *keys = kvt_alloc(plan->count, sizeof *keys);
    if (!keys) return KVT_NOMEM;
    for (uint32_t i = 0; i < plan->count; i++) keys[i] = plan->pieces[i].key;
    kvt_llama_state_write(&llama->layout, seq, plan->spans, llama->staging, &filling.view);
    kvt_llama_vault_get(llama->vault, keys, plan->count, take_piece, &filling);
    kvt_free(keys);
    *ret_is_whole = true;
    for (uint32_t i = 0; i < plan->count; i++) *ret_is_whole = *ret_is_whole && plan->pieces[i].is_there;
    *ret_size = size;
    *ret_view = filling.view;
    return KVT_OK;
}

/* What the engine did not take is not offered again. */
static void forget_plan(struct kvt_llama *llama)
{
    for (uint32_t i = 0; i < llama->plan.count; i++)
        (void)kvt_llama_vault_forget(llama->vault, llama->plan.pieces[i].key);
    llama->stats.refused_restores++;
    kvt_log(&llama->env, KVT_LOG_WARN, "the engine refused a state of %llu tokens: it is forgotten, serving a miss",
            (unsigned long long)llama->plan.tokens);
}

static bool take_check(void *user, uint32_t i, const uint8_t *bytes, uint32_t length)
{
    struct kvt_llama *llama = user;
    const struct kvt_llama_piece *piece = &llama->plan.pieces[i];
    return bytes
        && kvt_llama_blocks_unpack(&llama->blocks, piece->cache, piece->from, piece->tokens, bytes, length) == KVT_OK;
}

/*
 * Reads all that there seems to be of these tokens: what is damaged too, and was not met because something
 * before it is missing, would be taken for kept by the next save.
 */
static enum kvt_status check_rest(struct kvt_llama *llama, const int32_t *tokens, uint64_t count)
{
    const uint64_t size = llama->block_tokens;
    struct kvt_llama_plan *plan = &llama->plan;
    plan->count = 0;
    KVT_TRY(kvt_llama_chain(llama, tokens, count));
    for (uint64_t n = 1; n <= count; n++) {
        const uint64_t block = (n - 1) / size;
        if (n % size != 0 && block < count / size) continue;
        const struct kvt_key last = kvt_llama_chain_end(llama, tokens, block, (uint32_t)(n - block * size));
        for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
            struct kvt_llama_piece piece = { .cache = c, .tokens = (uint32_t)(n - block * size) };
            piece.key = kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, c, 0, last);
            if (kvt_llama_vault_has(llama->vault, piece.key)) KVT_TRY(kvt_llama_plan_add(plan, &piece));
        }
    }
    struct kvt_key *keys = kvt_alloc(plan->count, sizeof *keys);
    if (!keys) return KVT_NOMEM;
    for (uint32_t i = 0; i < plan->count; i++) keys[i] = plan->pieces[i].key;
    kvt_llama_vault_get(llama->vault, keys, plan->count, take_check, llama);
    kvt_free(keys);
    return KVT_OK;
}

static uint64_t damage_of(struct kvt_llama *llama, bool *ret_was_at_open)
{
    struct kvt_llama_vault_stats stats;
    kvt_llama_vault_stats(llama->vault, &stats);
    *ret_was_at_open = stats.has_store && stats.store.recovered_bad > 0;
    return stats.damaged;
}

/* BUSY: the engine refused. */
static enum kvt_status restore_once(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                                    uint64_t tokens_max, uint64_t *ret_tokens)
{
    size_t size = 0;
    bool is_whole = false;
    struct kvt_llama_state_view view = { 0 };
    /* A round that fails has forgotten at least one record; a disk that says less and less is not asked for ever. */
    for (uint32_t round = 0; !is_whole; round++) {
        KVT_TRY(kvt_llama_plan_prefix(llama, tokens, count, tokens_max));
        if (llama->plan.tokens == 0 || round == ROUNDS_MAX) return KVT_OK;
        KVT_TRY(assemble(llama, seq, &size, &view, &is_whole));
    }
    if (!kvt_llama_hand_over(llama, seq, llama->staging, size, llama->plan.tokens)) return KVT_BUSY;
    *ret_tokens = llama->plan.tokens;
    return kvt_llama_see(llama, seq, tokens, llama->plan.tokens, llama->staging, &view.caches[KVT_LLAMA_FULL], NULL);
}

enum kvt_status kvt_llama_restore_blocks(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                                         uint64_t tokens_max, uint64_t *ret_tokens)
{
    *ret_tokens = 0;
    bool was_at_open;
    const uint64_t damage = damage_of(llama, &was_at_open);
    enum kvt_status status = restore_once(llama, seq, tokens, count, tokens_max, ret_tokens);
    if (status == KVT_OK && *ret_tokens < tokens_max && (damage_of(llama, &was_at_open) > damage || was_at_open))
        return check_rest(llama, tokens, count);
    if (status != KVT_BUSY) return status;
    if (llama->ring_tokens > 0 && llama->plan.spans[KVT_LLAMA_WINDOW].cells > llama->window_tokens) {
        /* Its window cache is not what it was taken for: the same with no more than the engine writes itself. */
        llama->ring_tokens = 0;
        status = restore_once(llama, seq, tokens, count, tokens_max, ret_tokens);
        if (status != KVT_BUSY) return status;
    }
    if (!kvt_llama_has_room(llama, seq, llama->plan.tokens)) return KVT_FULL;
    forget_plan(llama);
    return KVT_OK;
}
