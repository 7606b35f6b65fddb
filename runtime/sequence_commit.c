/* sequence_commit: tokens whose KV is written: full blocks are sealed and shared, states are kept, windows slide. */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/core.h"
#include "runtime/flow.h"
#include "runtime/layers.h"
#include "runtime/residency.h"
#include "runtime/sequence.h"

#define NO_STEP UINT32_MAX

static bool is_state(const struct kvt_core *core, uint32_t group)
{
    return core->groups[group].kind == KVT_GROUP_STATE;
}

static uint64_t blocks_for(const struct kvt_core *core, uint64_t tokens)
{
    return (tokens + core->block_tokens - 1) / core->block_tokens;
}

/* The running step may still use the block's slot: its claim and hold end with the step. */
static void to_limbo(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t index)
{
    struct kvt_step_state *step = &core->steps[sequence->step];
    kvt_core_block(core, index)->link = step->limbo;
    step->limbo = index;
}

/* The slot of `own` becomes the device copy of `other`, which has none. */
static void hand_slot_over(struct kvt_core *core, uint32_t own, uint32_t other)
{
    struct kvt_block *from = kvt_core_block(core, own);
    struct kvt_block *to = kvt_core_block(core, other);
    struct kvt_pool *pool = kvt_core_pool(core, from);
    const uint32_t slot = from->device_slot;
    if (kvt_block_has(from, KVT_BLOCK_DEVICE_KNOWN)) pool->policy_ops->remove(pool->policy, slot, KVT_POLICY_DROPPED);
    kvt_block_set(from, KVT_BLOCK_DEVICE_KNOWN, false);
    kvt_block_claim(core, other);
    from->users--;
    pool->claimed--;
    from->device_slot = KVT_NO_SLOT;
    kvt_copy_step(from, KVT_TIER_DEVICE, KVT_COPY_EVICT);
    to->device_slot = slot;
    pool->slots[slot].owner = other;
    kvt_copy_step(to, KVT_TIER_DEVICE, KVT_COPY_RESERVE);
    kvt_device_filled(core, other);
}

/* What the sequence's stream does from here on may read the block's slot, which another stream may still be writing. */
static void order_after(struct kvt_core *core, const struct kvt_sequence *sequence, const struct kvt_block *block)
{
    if (!core->gpu || sequence->last_mark == 0) return;
    const kvt_mark written = core->pools[core->config.pool_of_group[block->group]].slots[block->device_slot].mark;
    core->gpu->ops->wait(core->gpu, kvt_mark_stream(sequence->last_mark), written);
}

/*
 * Entry i of a group is full: it becomes immutable and gets its name; an equal block that is known already takes its
 * place.
 */
static void seal_entry(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t i,
                       struct kvt_key key)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    const uint32_t own = table->blocks[i];
    struct kvt_block *block = kvt_core_block(core, own);
    block->key = key;
    kvt_block_set(block, KVT_BLOCK_SEALED, true);
    if (sequence->is_unshared || kvt_sequence_is_suspect(sequence)) return;

    const uint32_t other = kvt_prefix_find_or_insert(&core->prefix, own);
    if (other == KVT_NO_BLOCK) {
        kvt_block_set(block, KVT_BLOCK_INDEXED, true);
        if (core->has_host) kvt_write_back_push(core, 0, own);
        return;
    }
    const struct kvt_block *held = kvt_core_block(core, other);
    const enum kvt_copy_state state = kvt_copy_state(held, KVT_TIER_DEVICE);
    if (state == KVT_COPY_RESIDENT) {
        kvt_block_ref(core, other);
        kvt_block_claim(core, other);
        table->blocks[i] = other;
        to_limbo(core, sequence, own);
        order_after(core, sequence, held);
    } else if (state == KVT_COPY_EMPTY && held->users == 0 && block->readers[KVT_TIER_DEVICE] == 0
               && block->users == 1) {
        kvt_block_ref(core, other);
        hand_slot_over(core, own, other);
        table->blocks[i] = other;
        kvt_block_unref(core, own);
    }
    /* Otherwise the other one is on its way: this sequence keeps its own, unshared. */
}

/*
 * Full blocks that have their keys and wait to be sealed, first in, first out. Each seal reads a random line of the
 * index: it comes while the keys of the next blocks are computed. All are sealed before anybody else can see the
 * sequence.
 */
enum { SEALS_AHEAD = 16 };
struct full_blocks {
    struct kvt_key keys[SEALS_AHEAD];
    uint32_t first, end; /* their entries */
};

static void seal_first(struct kvt_core *core, struct kvt_sequence *sequence, struct full_blocks *full)
{
    const uint32_t i = full->first++;
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (!is_state(core, g)) seal_entry(core, sequence, g, i, full->keys[i % SEALS_AHEAD]);
    }
}

static void add_full(struct kvt_core *core, struct kvt_sequence *sequence, struct full_blocks *full, struct kvt_key key)
{
    if (full->end - full->first == SEALS_AHEAD) seal_first(core, sequence, full);
    full->keys[full->end++ % SEALS_AHEAD] = key;
    sequence->chain = key;
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (!is_state(core, g)) kvt_prefix_prefetch(&core->prefix, g, key);
    }
}

/*
 * Keeps the live state at the end of the committed tokens: a copy in the stream's order, since the same step may go on
 * and write the state again. When none can start now there is no snapshot: a miss later.
 */
static void take_snapshot(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t stream)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    const uint32_t i = (uint32_t)(sequence->tokens / core->block_tokens - 1);
    if (table->count > i) return; /* taken already */
    if (kvt_sequence_table_reserve(table, (uint64_t)i + 1) != KVT_OK) return;
    while (table->count < i) table->blocks[table->count++] = KVT_NO_BLOCK;
    if (kvt_sequence_is_suspect(sequence)) return; /* it would be found before it is known to be right */
    uint32_t known = sequence->is_unshared ? KVT_NO_BLOCK : kvt_prefix_find(&core->prefix, group, sequence->chain);
    if (known != KVT_NO_BLOCK && !kvt_block_has_copies(kvt_core_block(core, known))) {
        kvt_block_unindex(core, known); /* its bytes were lost; this one takes its place */
        known = KVT_NO_BLOCK;
    }
    if (known != KVT_NO_BLOCK) {
        kvt_block_ref(core, known);
        table->blocks[table->count++] = known;
        return;
    }
    const uint32_t snapshot = table->spare;
    if (snapshot == KVT_NO_BLOCK || !kvt_flow_can_copy_now(core)) return;
    table->spare = KVT_NO_BLOCK;
    table->blocks[table->count++] = snapshot;
    struct kvt_block *block = kvt_core_block(core, snapshot);
    block->key = sequence->chain;
    block->tokens = (uint16_t)core->block_tokens;
    kvt_block_set(block, KVT_BLOCK_SEALED, true);
    if (!sequence->is_unshared) {
        kvt_block_set(block, KVT_BLOCK_INDEXED, true);
        kvt_prefix_insert(&core->prefix, snapshot);
    }
    kvt_flow_copy_reserved(core, table->live, snapshot, stream);
    kvt_block_unclaim(core, snapshot, 0);
}

enum kvt_status kvt_sequence_commit(struct kvt_core *core, struct kvt_sequence *sequence, const uint32_t *tokens,
                                    uint64_t n, uint32_t flags, uint32_t stream, const struct kvt_key *given_keys)
{
    const uint32_t block_tokens = core->block_tokens;
    if (sequence->step == NO_STEP || n > sequence->reserved - sequence->tokens) return KVT_INVAL;
    const bool is_snapshot = (flags & KVT_COMMIT_SNAPSHOT) != 0;
    if (is_snapshot && (sequence->tokens + n == 0 || (sequence->tokens + n) % block_tokens != 0)) return KVT_INVAL;

    const kvt_mark mark = core->gpu ? core->gpu->ops->mark(core->gpu, stream) : 0;
    if (core->gpu) core->stream_marks[stream] = mark;
    sequence->last_mark = mark;
    struct full_blocks full;
    full.first = full.end = (uint32_t)(sequence->tokens / block_tokens);
    uint32_t position = (uint32_t)(sequence->tokens % block_tokens);
    for (uint32_t i = full.first; n > 0; i++, position = 0) {
        const uint32_t count = (uint32_t)kvt_min_u64(n, block_tokens - position);
        if (!given_keys) memcpy(sequence->tail_tokens + position, tokens, count * sizeof *tokens);
        sequence->tokens += count;
        for (uint32_t g = 0; g < core->group_count; g++) {
            if (is_state(core, g)) continue;
            struct kvt_block *block = kvt_core_block(core, sequence->groups[g].blocks[i]);
            block->tokens = (uint16_t)(position + count);
            kvt_slot_mark(core, block, mark);
        }
        if (position + count == block_tokens) {
            const struct kvt_key key = given_keys
                ? *given_keys++
                : kvt_key_chain(&sequence->root, sequence->chain, sequence->tail_tokens, block_tokens);
            add_full(core, sequence, &full, key);
        }
        if (tokens) tokens += count;
        n -= count;
    }
    while (full.first < full.end) seal_first(core, sequence, &full);
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (!is_state(core, g) || sequence->groups[g].live == KVT_NO_BLOCK) continue; /* nothing was ever appended */
        kvt_slot_mark(core, kvt_core_block(core, sequence->groups[g].live), mark);
        if (is_snapshot) take_snapshot(core, sequence, g, stream);
    }
    return KVT_OK;
}

/* What a streamed sequence has filled may leave the device: it is read through a window from now on. */
static void unclaim_filled(struct kvt_core *core, struct kvt_sequence *sequence, struct kvt_sequence_table *table)
{
    const uint32_t full = (uint32_t)(sequence->tokens / core->block_tokens);
    while (table->claimed_from < full) {
        const uint32_t block = table->blocks[table->claimed_from++];
        if (block != KVT_NO_BLOCK) kvt_block_unclaim(core, block, sequence->last_mark);
    }
}

void kvt_sequence_slide(struct kvt_core *core, struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_group_shape *shape = &core->groups[g];
        if (sequence->is_streamed && shape->kind == KVT_GROUP_FULL)
            unclaim_filled(core, sequence, &sequence->groups[g]);
        if (shape->kind != KVT_GROUP_WINDOW || sequence->tokens <= shape->window_tokens) continue;
        struct kvt_sequence_table *table = &sequence->groups[g];
        const uint32_t first = (uint32_t)((sequence->tokens - shape->window_tokens) / core->block_tokens);
        const uint32_t sinks = (uint32_t)blocks_for(core, shape->sink_tokens);
        for (uint32_t i = kvt_max_u32(table->first, sinks); i < first; i++) {
            const uint32_t block = table->blocks[i];
            if (block == KVT_NO_BLOCK) continue;
            table->blocks[i] = KVT_NO_BLOCK;
            kvt_sequence_let_go(core, sequence, block, kvt_sequence_claims(sequence, g, i));
        }
        table->first = kvt_max_u32(table->first, first);
    }
}
