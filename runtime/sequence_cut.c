/* sequence_cut: truncate and window: what a sequence can still serve when its end, or its middle, is cut off. */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/core.h"
#include "runtime/lookup.h"
#include "runtime/residency.h"
#include "runtime/sequence.h"

#define NO_STEP UINT32_MAX

static uint64_t blocks_for(const struct kvt_core *core, uint64_t tokens)
{
    return (tokens + core->block_tokens - 1) / core->block_tokens;
}

/* First entry that a window group needs when the sequence has so many tokens. */
static uint32_t window_first(const struct kvt_core *core, uint32_t group, uint64_t tokens)
{
    const uint32_t window = core->groups[group].window_tokens;
    return tokens <= window ? 0 : (uint32_t)((tokens - window) / core->block_tokens);
}

/* The key of the block at entry i, taken from any group that still has it. */
static bool key_at(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t i,
                   struct kvt_key *ret_key)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        if (i >= table->count || table->blocks[i] == KVT_NO_BLOCK) continue;
        const struct kvt_block *block = kvt_core_block(core, table->blocks[i]);
        if (!kvt_block_has(block, KVT_BLOCK_SEALED)) continue;
        *ret_key = block->key;
        return true;
    }
    return false;
}

/* The chain after so many whole blocks. False: it cannot be told any more. */
static bool chain_at(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t blocks,
                     struct kvt_key *ret_chain)
{
    if (blocks == 0) {
        *ret_chain = (struct kvt_key){ 0, 0 };
        return sequence->drop_tokens == 0;
    }
    if (sequence->drop_tokens > 0 && blocks == sequence->drop_tokens / core->block_tokens) {
        *ret_chain = sequence->drop_chain;
        return true;
    }
    return key_at(core, sequence, blocks - 1, ret_chain);
}

/* ---- What can still be served ------------------------------------------------------------------------------------ */

static uint64_t limit_full(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t group,
                           uint64_t tokens)
{
    if (tokens >= sequence->drop_tokens) return tokens; /* holes below a drop are meant */
    const struct kvt_sequence_table *table = &sequence->groups[group];
    for (uint32_t i = 0; i < blocks_for(core, tokens); i++) {
        if (table->blocks[i] == KVT_NO_BLOCK) return (uint64_t)i * core->block_tokens;
    }
    return tokens;
}

static bool is_window_there(struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t group, uint64_t tokens)
{
    const struct kvt_sequence_table *table = &sequence->groups[group];
    const uint32_t sinks = (uint32_t)blocks_for(core, core->groups[group].sink_tokens);
    for (uint32_t i = window_first(core, group, tokens); i < blocks_for(core, tokens); i++) {
        if (table->blocks[i] != KVT_NO_BLOCK || i < sinks) continue;
        struct kvt_key key;
        uint32_t tier;
        if (!key_at(core, sequence, i, &key) || !kvt_lookup_exists(core, group, key, &tier)) return false;
    }
    return true;
}

static uint64_t limit_window(struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t group,
                             uint64_t tokens)
{
    while (tokens > 0 && !is_window_there(core, sequence, group, tokens))
        tokens = (tokens - 1) / core->block_tokens * core->block_tokens;
    return tokens;
}

static uint64_t limit_state(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t group,
                            uint64_t tokens)
{
    const struct kvt_sequence_table *table = &sequence->groups[group];
    const bool is_live_there = table->live != KVT_NO_BLOCK && sequence->lost_from == UINT64_MAX;
    if (tokens == sequence->tokens && is_live_there) return tokens;
    uint64_t i = kvt_min_u64(tokens / core->block_tokens, table->count);
    for (; i > 0; i--) {
        const uint32_t snapshot = table->blocks[i - 1];
        if (snapshot != KVT_NO_BLOCK && kvt_block_has_copies(kvt_core_block(core, snapshot))) break;
    }
    return i * core->block_tokens;
}

/* The most tokens, at most `tokens`, that every group can serve. Below `tokens` it is a multiple of block_tokens. */
static uint64_t servable(struct kvt_core *core, const struct kvt_sequence *sequence, uint64_t tokens)
{
    uint64_t limit = tokens;
    for (;;) {
        const uint64_t before = limit;
        for (uint32_t g = 0; g < core->group_count; g++) {
            uint64_t group_limit = limit;
            switch (core->groups[g].kind) {
            case KVT_GROUP_FULL: group_limit = limit_full(core, sequence, g, limit); break;
            case KVT_GROUP_WINDOW: group_limit = limit_window(core, sequence, g, limit); break;
            case KVT_GROUP_STATE: group_limit = limit_state(core, sequence, g, limit); break;
            }
            if (group_limit < limit) limit = group_limit / core->block_tokens * core->block_tokens;
        }
        struct kvt_key chain;
        if (limit > 0 && !chain_at(core, sequence, (uint32_t)(limit / core->block_tokens), &chain)) limit = 0;
        if (limit == before) return limit;
    }
}

/* ---- Cutting ----------------------------------------------------------------------------------------------------- */

/*
 * Holds again the blocks of the window that had been let go; the sequence is idle then. False: one is gone in the
 * meantime; nothing is lost by that.
 */
static bool refill_window(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint64_t tokens)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    const uint32_t first = window_first(core, group, tokens);
    for (uint32_t i = first; i < blocks_for(core, tokens); i++) {
        if (table->blocks[i] != KVT_NO_BLOCK) continue;
        struct kvt_key key;
        if (!key_at(core, sequence, i, &key)) return false;
        const uint32_t block = kvt_lookup_hold(core, group, key);
        if (block == KVT_NO_BLOCK) return false;
        table->blocks[i] = block;
        table->first = kvt_min_u32(table->first, i);
    }
    table->first = kvt_min_u32(table->first, first);
    return true;
}

/* The live state becomes a copy of the snapshot at the cut. */
static bool return_to_snapshot(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint64_t tokens)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    const bool is_claimed = kvt_sequence_claims(sequence, group, 0);
    uint32_t live = KVT_NO_BLOCK;
    if (tokens > 0) {
        live = kvt_sequence_copy_of(core, group, table->blocks[tokens / core->block_tokens - 1], 1, is_claimed);
        if (live == KVT_NO_BLOCK) return false;
    }
    if (table->live != KVT_NO_BLOCK) kvt_sequence_let_go(core, sequence, table->live, is_claimed);
    table->live = live;
    kvt_sequence_rewind(core, sequence, group, 0);
    return true;
}

static bool cut_group(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint64_t tokens)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    if (core->groups[group].kind == KVT_GROUP_STATE) {
        const bool is_live_kept = tokens == sequence->tokens && sequence->lost_from == UINT64_MAX;
        if (!is_live_kept && !return_to_snapshot(core, sequence, group, tokens)) return false;
        kvt_sequence_pop(core, sequence, group, tokens / core->block_tokens);
        return true;
    }
    kvt_sequence_pop(core, sequence, group, blocks_for(core, tokens));
    if (core->groups[group].kind == KVT_GROUP_WINDOW && !refill_window(core, sequence, group, tokens)) return false;
    const uint32_t tail = (uint32_t)(tokens / core->block_tokens);
    if (tail >= table->count || tokens % core->block_tokens == 0) return true;
    struct kvt_block *block = kvt_core_block(core, table->blocks[tail]);
    if (!kvt_block_has(block, KVT_BLOCK_SEALED) && block->refs == 1)
        block->tokens = (uint16_t)(tokens % core->block_tokens);
    return true;
}

/* True when a window group has to hold again what it had let go. */
static bool is_refill_needed(const struct kvt_core *core, const struct kvt_sequence *sequence, uint64_t tokens)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (core->groups[g].kind != KVT_GROUP_WINDOW) continue;
        for (uint32_t i = window_first(core, g, tokens); i < blocks_for(core, tokens); i++) {
            if (sequence->groups[g].blocks[i] == KVT_NO_BLOCK) return true;
        }
    }
    return false;
}

enum kvt_status kvt_sequence_truncate(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t tokens,
                                      const uint32_t *tail_tokens, uint64_t *ret_kept)
{
    if (sequence->step != NO_STEP || tokens > sequence->tokens) return KVT_INVAL;
    /* What a warming sequence claims lies before its cursor, which a cut moves back: the planner starts again from the beginning. */
    if (sequence->mode == KVT_SEQUENCE_WARMING) kvt_sequence_revoke(core, sequence);
    kvt_sequence_drop_reserved(core, sequence);
    const bool is_unchanged = tokens == sequence->tokens && sequence->lost_from == UINT64_MAX;
    if (is_unchanged) {
        *ret_kept = tokens;
        return KVT_OK;
    }
    const uint64_t bounded = kvt_min_u64(tokens, sequence->lost_from / core->block_tokens * core->block_tokens);
    uint64_t kept = servable(core, sequence, sequence->lost_from == UINT64_MAX ? tokens : bounded);
    if (kept % core->block_tokens != 0 && !tail_tokens) return KVT_INVAL;
    struct kvt_key chain = { 0, 0 };
    (void)chain_at(core, sequence, (uint32_t)(kept / core->block_tokens), &chain);
    /* An active sequence that comes to hold more must claim it as a resumed one does, or be idle. */
    const bool is_resumed = sequence->mode == KVT_SEQUENCE_ACTIVE
        && (sequence->is_streamed || is_refill_needed(core, sequence, kept));
    if (is_resumed) KVT_TRY(kvt_sequence_idle(core, sequence));

    for (uint32_t g = 0; g < core->group_count; g++) {
        if (cut_group(core, sequence, g, kept)) continue;
        /* A block went away between looking and holding: start from nothing, which is always right. */
        kept = 0;
        chain = (struct kvt_key){ 0, 0 };
        for (uint32_t h = 0; h < core->group_count; h++) {
            const bool is_cut = cut_group(core, sequence, h, 0);
            KVT_ASSERT(is_cut);
        }
        break;
    }
    if (kept < sequence->drop_tokens) sequence->drop_tokens = 0;
    sequence->chain = chain;
    if (kept % core->block_tokens)
        memcpy(sequence->tail_tokens, tail_tokens, (kept % core->block_tokens) * sizeof *tail_tokens);
    sequence->tokens = sequence->reserved = kept;
    sequence->reused = kvt_min_u64(sequence->reused, kept);
    sequence->lost_from = UINT64_MAX;
    if (kept <= sequence->suspect_from) {
        sequence->suspect_from = UINT64_MAX;
        sequence->is_unwaited = false;
    }
    sequence->retries = 0;
    enum kvt_room room;
    if (is_resumed) KVT_TRY(kvt_sequence_resume(core, sequence, &room));
    *ret_kept = kept;
    return KVT_OK;
}

enum kvt_status kvt_sequence_window(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t sinks,
                                    uint64_t window)
{
    if (sequence->step != NO_STEP) return KVT_INVAL;
    if (sinks >= sequence->tokens || window >= sequence->tokens - sinks) return KVT_OK;
    const uint32_t from = (uint32_t)blocks_for(core, sinks);
    const uint32_t to = (uint32_t)((sequence->tokens - window) / core->block_tokens);
    bool is_dropped = false;
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (core->groups[g].kind != KVT_GROUP_FULL) continue;
        struct kvt_sequence_table *table = &sequence->groups[g];
        for (uint32_t i = to; i-- > from;) {
            const uint32_t block = table->blocks[i];
            if (block == KVT_NO_BLOCK) continue;
            const bool is_claimed = kvt_sequence_claims(sequence, g, i);
            table->blocks[i] = KVT_NO_BLOCK;
            kvt_sequence_let_go(core, sequence, block, is_claimed);
            is_dropped = true;
        }
    }
    if (!is_dropped) return KVT_OK;
    /* What is computed from here on attends to less: its keys must say so. */
    const uint64_t drop[5] = { sequence->chain.lo, sequence->chain.hi, sinks, window, sequence->tokens };
    sequence->chain = kvt_key_digest(drop, sizeof drop);
    sequence->drop_chain = sequence->chain;
    sequence->drop_tokens = sequence->tokens;
    return KVT_OK;
}
