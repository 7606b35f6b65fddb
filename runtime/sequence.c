#include "runtime/sequence.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/core.h"
#include "runtime/flow.h"
#include "runtime/foresight.h"
#include "runtime/layers.h"
#include "runtime/lookup.h"
#include "runtime/planner.h"
#include "runtime/reader.h"
#include "runtime/residency.h"

#define NO_STEP UINT32_MAX

static bool is_state(const struct kvt_core *core, uint32_t group)
{
    return core->groups[group].kind == KVT_GROUP_STATE;
}

static uint64_t blocks_for(const struct kvt_core *core, uint64_t tokens)
{
    return (tokens + core->block_tokens - 1) / core->block_tokens;
}

static bool is_active(const struct kvt_sequence *sequence) { return sequence->mode == KVT_SEQUENCE_ACTIVE; }

/* ---- Handles, lists, tables -------------------------------------------------------------------------------------- */

struct kvt_sequence *kvt_sequence_of(struct kvt_core *core, kvt_seq seq)
{
    const uint32_t index = (uint32_t)seq - 1;
    if (seq == 0 || index >= core->config.sequences_max) return NULL;
    struct kvt_sequence *sequence = &core->sequences[index];
    if (sequence->mode == KVT_SEQUENCE_FREE || sequence->generation != (uint32_t)(seq >> 32)) return NULL;
    return sequence;
}

kvt_seq kvt_sequence_handle(const struct kvt_core *core, const struct kvt_sequence *sequence)
{
    return ((uint64_t)sequence->generation << 32) | (uint32_t)(sequence - core->sequences + 1);
}

static struct kvt_sequence_list *list_of(struct kvt_core *core, uint8_t list)
{
    if (list == KVT_LIST_FORESEEN) return &core->foreseen;
    return list == KVT_LIST_DEMAND ? &core->demand : &core->expected;
}

void kvt_sequence_list_remove(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (sequence->list == KVT_LIST_NONE) return;
    struct kvt_sequence_list *list = list_of(core, sequence->list);
    if (sequence->previous != KVT_NO_SEQUENCE) core->sequences[sequence->previous].next = sequence->next;
    else list->head = sequence->next;
    if (sequence->next != KVT_NO_SEQUENCE) core->sequences[sequence->next].previous = sequence->previous;
    else list->tail = sequence->previous;
    sequence->list = KVT_LIST_NONE;
}

void kvt_sequence_list_append(struct kvt_core *core, struct kvt_sequence *sequence, enum kvt_sequence_list_id id)
{
    if (sequence->list == (uint8_t)id && id == KVT_LIST_DEMAND) return;
    kvt_sequence_list_remove(core, sequence);
    struct kvt_sequence_list *list = list_of(core, (uint8_t)id);
    const uint32_t index = (uint32_t)(sequence - core->sequences);
    /* Expected sequences are ordered by need; most arrive in that order, so the walk from the end is short. */
    uint32_t before = list->tail;
    while (id == KVT_LIST_EXPECTED && before != KVT_NO_SEQUENCE && core->sequences[before].need_ns > sequence->need_ns)
        before = core->sequences[before].previous;
    sequence->previous = before;
    sequence->next = before == KVT_NO_SEQUENCE ? list->head : core->sequences[before].next;
    if (sequence->next != KVT_NO_SEQUENCE) core->sequences[sequence->next].previous = index;
    else list->tail = index;
    if (before != KVT_NO_SEQUENCE) core->sequences[before].next = index;
    else list->head = index;
    sequence->list = (uint8_t)id;
}

enum kvt_status kvt_sequence_table_reserve(struct kvt_sequence_table *table, uint64_t count)
{
    if (count <= table->capacity) return KVT_OK;
    if (count > UINT32_MAX / 2) return KVT_NOMEM;
    uint64_t capacity = table->capacity ? table->capacity : 16;
    while (capacity < count) capacity *= 2;
    uint32_t *blocks = kvt_realloc(table->blocks, capacity, sizeof *blocks);
    if (!blocks) return KVT_NOMEM;
    table->blocks = blocks;
    table->capacity = (uint32_t)capacity;
    return KVT_OK;
}

enum kvt_status kvt_sequence_push(struct kvt_sequence_table *table, uint32_t block)
{
    KVT_TRY(kvt_sequence_table_reserve(table, (uint64_t)table->count + 1));
    table->blocks[table->count++] = block;
    return KVT_OK;
}

void kvt_sequence_rewind(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t index)
{
    struct kvt_sequence_cursor *cursor = &sequence->fetch;
    if (group < cursor->group || (group == cursor->group && index < cursor->index))
        *cursor = (struct kvt_sequence_cursor){ .group = group, .index = index };
    sequence->groups[group].ready = kvt_min_u32(sequence->groups[group].ready, index);
    if (is_active(sequence)) {
        sequence->demand_ns = core->now_ns;
        kvt_sequence_list_append(core, sequence, KVT_LIST_DEMAND);
    }
}

struct kvt_sequence *kvt_sequence_begin(struct kvt_core *core, bool is_idle)
{
    const uint32_t index = core->sequence_free_head;
    if (index == KVT_NO_SEQUENCE) return NULL;
    struct kvt_sequence *sequence = &core->sequences[index];
    uint32_t *tail_tokens = sequence->tail_tokens;
    if (!tail_tokens) tail_tokens = kvt_alloc(core->block_tokens, sizeof *tail_tokens);
    if (!tail_tokens) return NULL;
    core->sequence_free_head = sequence->next;

    struct kvt_sequence_table tables[KVT_GROUPS_MAX];
    memcpy(tables, sequence->groups, sizeof tables);
    *sequence = (struct kvt_sequence){ .generation = sequence->generation + 1,
                                       .step = NO_STEP,
                                       .tail_tokens = tail_tokens,
                                       .mode = is_idle ? KVT_SEQUENCE_IDLE : KVT_SEQUENCE_ACTIVE,
                                       .lost_from = UINT64_MAX,
                                       .suspect_from = UINT64_MAX,
                                       .turn = UINT32_MAX };
    for (uint32_t g = 0; g < core->group_count; g++)
        sequence->groups[g] = (struct kvt_sequence_table){
            .blocks = tables[g].blocks, .capacity = tables[g].capacity, .live = KVT_NO_BLOCK, .spare = KVT_NO_BLOCK
        };
    core->sequence_count++;
    core->sequence_peak = kvt_max_u32(core->sequence_peak, core->sequence_count);
    return sequence;
}

enum kvt_status kvt_sequence_refusal(const struct kvt_core *core)
{
    return core->sequence_free_head == KVT_NO_SEQUENCE ? KVT_FULL : KVT_NOMEM;
}

/* ---- Claims of a whole sequence ---------------------------------------------------------------------------------- */

/*
 * Whoever lets entries go from the tail to the head touches a block each and then its slot, all of them untouched for
 * long: each is asked for a few entries before its turn.
 */
static void prefetch_below(const struct kvt_core *core, const struct kvt_sequence_table *table, uint32_t i)
{
    enum { BLOCKS_AHEAD = 16, SLOTS_AHEAD = 8 };
    if (i >= BLOCKS_AHEAD && table->blocks[i - BLOCKS_AHEAD] != KVT_NO_BLOCK)
        __builtin_prefetch(kvt_core_block(core, table->blocks[i - BLOCKS_AHEAD]), 1);
    if (i >= SLOTS_AHEAD && table->blocks[i - SLOTS_AHEAD] != KVT_NO_BLOCK)
        kvt_device_prefetch(core, table->blocks[i - SLOTS_AHEAD]);
}

void kvt_sequence_let_go(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t index, bool is_claimed)
{
    if (is_claimed) kvt_block_unclaim(core, index, sequence->last_mark);
    kvt_block_unref(core, index);
}

bool kvt_sequence_claims(const struct kvt_sequence *sequence, uint32_t group, uint32_t index)
{
    if (sequence->mode == KVT_SEQUENCE_ACTIVE) return index >= sequence->groups[group].claimed_from;
    if (sequence->mode != KVT_SEQUENCE_WARMING) return false;
    return group < sequence->fetch.group || (group == sequence->fetch.group && index < sequence->fetch.index);
}

/* What policies may want to know of entry i, which is about to be claimed or given up. */
static void give_hint(struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t group, uint32_t i)
{
    const struct kvt_sequence_table *table = &sequence->groups[group];
    const struct kvt_block_hint hint = {
        .offset = i + 1, .length = table->count + 1, .turn = sequence->turn + 1, .next = sequence->next_use
    };
    kvt_block_note(core, table->blocks[i], &hint);
}

/* An idle sequence's claim ends; it still holds the block. */
static void unclaim_idle(struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t block)
{
    kvt_block_unclaim(core, block, sequence->last_mark);
    kvt_foresight_unclaimed(core, block, sequence);
}

static void unclaim_all(struct kvt_core *core, struct kvt_sequence *sequence)
{
    for (uint32_t g = core->group_count; g-- > 0;) {
        struct kvt_sequence_table *table = &sequence->groups[g];
        if (is_state(core, g)) {
            if (table->live != KVT_NO_BLOCK && kvt_sequence_claims(sequence, g, 0))
                unclaim_idle(core, sequence, table->live);
            continue;
        }
        /* From the tail to the head: the tail is released first, so it is also evicted first. */
        for (uint32_t i = table->count; i-- > 0;) {
            prefetch_below(core, table, i);
            if (table->blocks[i] == KVT_NO_BLOCK || !kvt_sequence_claims(sequence, g, i)) continue;
            give_hint(core, sequence, g, i);
            kvt_host_use_over(core, table->blocks[i]);
            unclaim_idle(core, sequence, table->blocks[i]);
        }
        table->ready = 0;
    }
    sequence->fetch = (struct kvt_sequence_cursor){ 0, 0 };
}

void kvt_sequence_revoke(struct kvt_core *core, struct kvt_sequence *sequence)
{
    KVT_ASSERT(sequence->mode == KVT_SEQUENCE_WARMING);
    unclaim_all(core, sequence);
    sequence->mode = KVT_SEQUENCE_IDLE;
}

/* What a streamed sequence has filled is no longer claimed, once it is idle: its tail alone is what it goes on with. */
static void begin_claims_at_tail(const struct kvt_core *core, struct kvt_sequence *sequence)
{
    KVT_ASSERT(sequence->mode == KVT_SEQUENCE_IDLE);
    for (uint32_t g = 0; g < core->group_count && sequence->is_streamed; g++) {
        struct kvt_sequence_table *table = &sequence->groups[g];
        if (core->groups[g].kind == KVT_GROUP_FULL)
            table->claimed_from = kvt_min_u32(table->count, (uint32_t)(sequence->tokens / core->block_tokens));
    }
}

enum kvt_status kvt_sequence_stream(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (sequence->mode == KVT_SEQUENCE_WARMING) kvt_sequence_revoke(core, sequence);
    if (sequence->mode != KVT_SEQUENCE_IDLE) return KVT_INVAL;
    kvt_foresight_end(core, sequence);
    kvt_sequence_list_remove(core, sequence);
    sequence->is_streamed = true;
    begin_claims_at_tail(core, sequence);
    return KVT_OK;
}

/* How many claims are too many, over all pools, for `need` more. */
static uint32_t claims_missing(const struct kvt_core *core, const uint32_t need[KVT_GROUPS_MAX])
{
    uint64_t missing = 0;
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        const uint64_t claims = (uint64_t)core->pools[p].claimed + need[p];
        if (claims > core->pools[p].slot_count) missing += claims - core->pools[p].slot_count;
    }
    return (uint32_t)kvt_min_u64(missing, UINT32_MAX);
}

/* A warming sequence gives the last of its claims back. False: it had none left, and is idle. */
static bool retreat(struct kvt_core *core, struct kvt_sequence *sequence)
{
    struct kvt_sequence_cursor *cursor = &sequence->fetch;
    for (;;) {
        while (cursor->index == 0) {
            if (cursor->group == 0) {
                sequence->mode = KVT_SEQUENCE_IDLE;
                return false;
            }
            cursor->group--;
            cursor->index = is_state(core, cursor->group) ? 1 : sequence->groups[cursor->group].count;
        }
        cursor->index--;
        struct kvt_sequence_table *table = &sequence->groups[cursor->group];
        const uint32_t block = is_state(core, cursor->group) ? table->live : table->blocks[cursor->index];
        if (block == KVT_NO_BLOCK) continue;
        unclaim_idle(core, sequence, block);
        return true;
    }
}

/*
 * Takes up to `count` claims back from the warming sequence that is needed last: from its end, and no more than asked,
 * so that what it has fetched already is not fetched again. False: none is warming.
 */
static bool retreat_last(struct kvt_core *core, const struct kvt_sequence *besides, uint32_t count)
{
    uint32_t last = core->expected.tail;
    while (last != KVT_NO_SEQUENCE
           && (core->sequences[last].mode != KVT_SEQUENCE_WARMING || &core->sequences[last] == besides))
        last = core->sequences[last].previous;
    if (last == KVT_NO_SEQUENCE) return false;
    while (count-- > 0 && retreat(core, &core->sequences[last])) continue;
    return true;
}

bool kvt_sequence_make_claimable(struct kvt_core *core, const uint32_t need[KVT_GROUPS_MAX])
{
    uint32_t missing;
    while ((missing = claims_missing(core, need)) > 0) {
        if (!retreat_last(core, NULL, missing)) return false;
    }
    return true;
}

/* Adds to need[] the blocks that a fully active sequence would newly claim. */
static void count_unclaimed(const struct kvt_core *core, const struct kvt_sequence *sequence,
                            uint32_t need[KVT_GROUPS_MAX])
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        uint32_t *count = &need[core->config.pool_of_group[g]];
        if (is_state(core, g)) {
            if (table->live != KVT_NO_BLOCK && kvt_core_block(core, table->live)->users == 0) (*count)++;
            continue;
        }
        for (uint32_t i = table->claimed_from; i < table->count; i++) {
            if (table->blocks[i] != KVT_NO_BLOCK && kvt_core_block(core, table->blocks[i])->users == 0) (*count)++;
        }
    }
}

static void claim_all(struct kvt_core *core, struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        struct kvt_sequence_table *table = &sequence->groups[g];
        if (is_state(core, g)) {
            if (table->live != KVT_NO_BLOCK && !kvt_sequence_claims(sequence, g, 0)) kvt_block_claim(core, table->live);
            continue;
        }
        for (uint32_t i = table->claimed_from; i < table->count; i++) {
            if (table->blocks[i] == KVT_NO_BLOCK || kvt_sequence_claims(sequence, g, i)) continue;
            give_hint(core, sequence, g, i);
            kvt_block_claim(core, table->blocks[i]);
        }
        table->ready = 0;
    }
}

enum kvt_status kvt_sequence_resume(struct kvt_core *core, struct kvt_sequence *sequence, enum kvt_room *ret_room)
{
    if (is_active(sequence)) {
        *ret_room = KVT_ROOM_OK;
        return KVT_OK;
    }
    if (sequence->mode == KVT_SEQUENCE_IDLE) begin_claims_at_tail(core, sequence);
    for (;;) {
        /* Counted again each time: blocks that another one shared with this are no longer claimed. */
        uint32_t need[KVT_GROUPS_MAX] = { 0 };
        count_unclaimed(core, sequence, need);
        const uint32_t missing = claims_missing(core, need);
        if (missing == 0) break;
        if (retreat_last(core, sequence, missing)) continue;
        if (sequence->mode == KVT_SEQUENCE_WARMING) { /* what it claims itself counts too */
            kvt_sequence_revoke(core, sequence);
            continue;
        }
        *ret_room = KVT_ROOM_FULL;
        for (uint32_t p = 0; p < core->config.pool_count; p++) {
            if (need[p] > core->pools[p].slot_count) *ret_room = KVT_ROOM_TOO_LONG;
        }
        return KVT_OK;
    }
    claim_all(core, sequence);
    kvt_foresight_back(core, sequence);
    sequence->is_hint_late = sequence->list == KVT_LIST_EXPECTED
        && sequence->told_ns + kvt_planner_fetch_ns(core, sequence) > core->now_ns;
    sequence->mode = KVT_SEQUENCE_ACTIVE;
    sequence->retries = 0;
    sequence->demand_ns = core->now_ns;
    /* Goes on where warming stopped; without prefetch not before a step asks. */
    if (core->config.prefetch == KVT_PREFETCH_OFF) kvt_sequence_list_remove(core, sequence);
    else kvt_sequence_list_append(core, sequence, KVT_LIST_DEMAND);
    *ret_room = KVT_ROOM_OK;
    return KVT_OK;
}

/* ---- Cutting ----------------------------------------------------------------------------------------------------- */

void kvt_sequence_pop(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint64_t count)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    while (table->count > count) {
        const uint32_t i = --table->count;
        prefetch_below(core, table, i);
        const uint32_t block = table->blocks[i];
        if (block == KVT_NO_BLOCK) continue;
        const bool is_claimed = !is_state(core, group) && kvt_sequence_claims(sequence, group, i);
        give_hint(core, sequence, group, i);
        if (is_claimed) kvt_host_use_over(core, block);
        kvt_sequence_let_go(core, sequence, block, is_claimed);
    }
    table->first = kvt_min_u32(table->first, table->count);
    table->ready = kvt_min_u32(table->ready, table->count);
    table->claimed_from = kvt_min_u32(table->claimed_from, table->count);
}

static void give_spares_back(struct kvt_core *core, struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (sequence->groups[g].spare == KVT_NO_BLOCK) continue;
        const uint32_t spare = sequence->groups[g].spare;
        sequence->groups[g].spare = KVT_NO_BLOCK;
        kvt_block_unclaim(core, spare, 0);
        kvt_device_failed(core, spare, false);
        kvt_block_unref(core, spare);
    }
}

void kvt_sequence_drop_reserved(struct kvt_core *core, struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (!is_state(core, g)) kvt_sequence_pop(core, sequence, g, blocks_for(core, sequence->tokens));
    }
    sequence->reserved = sequence->tokens;
}

enum kvt_status kvt_sequence_idle(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (sequence->step != NO_STEP) return KVT_INVAL;
    if (sequence->mode == KVT_SEQUENCE_IDLE) return KVT_OK;
    kvt_core_end_stall(core, sequence);
    kvt_sequence_drop_reserved(core, sequence);
    give_spares_back(core, sequence);
    unclaim_all(core, sequence);
    kvt_sequence_list_remove(core, sequence);
    const bool was_active = is_active(sequence);
    sequence->mode = KVT_SEQUENCE_IDLE;
    if (was_active) kvt_foresight_idle(core, sequence);
    return KVT_OK;
}

static void mark_unkept(struct kvt_core *core, struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        for (uint64_t i = sequence->reused / core->block_tokens; i < table->count; i++) {
            if (table->blocks[i] != KVT_NO_BLOCK)
                kvt_block_set(kvt_core_block(core, table->blocks[i]), KVT_BLOCK_UNKEPT, true);
        }
    }
}

void kvt_sequence_finish(struct kvt_core *core, struct kvt_sequence *sequence, bool is_kept)
{
    KVT_ASSERT(sequence->step == NO_STEP);
    kvt_core_end_stall(core, sequence);
    kvt_readers_close_of(core, sequence);
    (void)kvt_layers_settle(core, sequence); /* what has not landed by now is not cached */
    if (!is_kept) mark_unkept(core, sequence);
    kvt_foresight_end(core, sequence);
    kvt_sequence_list_remove(core, sequence);
    give_spares_back(core, sequence);
    for (uint32_t g = 0; g < core->group_count; g++) {
        struct kvt_sequence_table *table = &sequence->groups[g];
        if (table->live != KVT_NO_BLOCK)
            kvt_sequence_let_go(core, sequence, table->live, kvt_sequence_claims(sequence, g, 0));
        table->live = KVT_NO_BLOCK;
        kvt_sequence_pop(core, sequence, g, 0);
    }
    sequence->mode = KVT_SEQUENCE_FREE;
    sequence->next = core->sequence_free_head;
    core->sequence_free_head = (uint32_t)(sequence - core->sequences);
    core->sequence_count--;
    core->events++;
}

/* ---- Append ------------------------------------------------------------------------------------------------------ */

/* True when the tail must not be written where it is: it is sealed, or somebody else holds it too. */
static bool is_tail_shared(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t group)
{
    if (sequence->tokens % core->block_tokens == 0 || is_state(core, group)) return false;
    const uint32_t tail = sequence->groups[group].blocks[sequence->tokens / core->block_tokens];
    const struct kvt_block *block = kvt_core_block(core, tail);
    return kvt_block_has(block, KVT_BLOCK_SEALED) || block->refs > 1;
}

/* A fork that has not been filled yet starts as a copy of this live state: it must not be written where it is. */
static bool is_live_shared(const struct kvt_core *core, const struct kvt_sequence_table *table)
{
    return table->live != KVT_NO_BLOCK && kvt_core_block(core, table->live)->refs > 1;
}

/*
 * Slots for more tokens would need a copy of the tail or of the state first, which a step that runs on them cannot wait
 * for.
 */
static bool must_copy(const struct kvt_core *core, const struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const bool is_shared = is_state(core, g) ? is_live_shared(core, &sequence->groups[g])
                                                 : is_tail_shared(core, sequence, g);
        if (is_shared) return true;
    }
    return false;
}

static void count_append(const struct kvt_core *core, const struct kvt_sequence *sequence, uint64_t reserved,
                         uint32_t need[KVT_GROUPS_MAX], uint64_t total[KVT_GROUPS_MAX])
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        const uint32_t p = core->config.pool_of_group[g];
        uint64_t fresh;
        uint64_t held;
        if (is_state(core, g)) {
            held = (table->live != KVT_NO_BLOCK) + (table->spare != KVT_NO_BLOCK);
            fresh = 2 - held + is_live_shared(core, table);
        } else {
            fresh = blocks_for(core, reserved) - table->count + is_tail_shared(core, sequence, g);
            held = table->count - kvt_max_u32(table->first, table->claimed_from);
        }
        need[p] += (uint32_t)kvt_min_u64(fresh, UINT32_MAX / KVT_GROUPS_MAX);
        total[p] += fresh + held;
    }
}

/*
 * A shared block becomes a private copy of the tokens that are kept: a transfer that the planner starts. *entry is the
 * sequence's block; its hold becomes the copy's.
 */
static enum kvt_status copy_shared(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t i,
                                   uint32_t tokens, uint32_t *entry)
{
    const uint32_t copy = kvt_block_table_take(&core->table, group);
    if (copy == KVT_NO_BLOCK) return KVT_NOMEM;
    struct kvt_block *block = kvt_core_block(core, copy);
    block->origin = *entry;
    block->refs = 1;
    block->tokens = (uint16_t)tokens;
    kvt_block_claim(core, copy);
    kvt_block_unclaim(core, *entry, sequence->last_mark);
    *entry = copy;
    kvt_sequence_rewind(core, sequence, group, i);
    return KVT_OK;
}

static enum kvt_status copy_tail(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group)
{
    const uint32_t i = (uint32_t)(sequence->tokens / core->block_tokens);
    return copy_shared(core, sequence, group, i, (uint32_t)(sequence->tokens % core->block_tokens),
                       &sequence->groups[group].blocks[i]);
}

static enum kvt_status take_state_slots(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    if (is_live_shared(core, table)) KVT_TRY(copy_shared(core, sequence, group, 0, 1, &table->live));
    if (table->live == KVT_NO_BLOCK) {
        table->live = kvt_block_fresh(core, group);
        if (table->live == KVT_NO_BLOCK) return KVT_NOMEM;
        kvt_core_block(core, table->live)->tokens = 1;
    }
    if (table->spare != KVT_NO_BLOCK) return KVT_OK;
    /* The spare is reserved, not resident: a snapshot fills it later. */
    const uint32_t spare = kvt_block_table_take(&core->table, group);
    if (spare == KVT_NO_BLOCK) return KVT_NOMEM;
    kvt_core_block(core, spare)->refs = 1;
    kvt_block_claim(core, spare);
    const bool is_reserved = kvt_device_reserve(core, spare);
    KVT_ASSERT(is_reserved);
    table->spare = spare;
    return KVT_OK;
}

static enum kvt_status take_slots(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t reserved)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        struct kvt_sequence_table *table = &sequence->groups[g];
        if (is_state(core, g)) {
            KVT_TRY(take_state_slots(core, sequence, g));
            continue;
        }
        KVT_TRY(kvt_sequence_table_reserve(table, blocks_for(core, reserved)));
        if (is_tail_shared(core, sequence, g)) KVT_TRY(copy_tail(core, sequence, g));
        while (table->count < blocks_for(core, reserved)) {
            const uint32_t block = kvt_block_fresh(core, g);
            if (block == KVT_NO_BLOCK) return KVT_NOMEM;
            table->blocks[table->count++] = block;
        }
    }
    return KVT_OK;
}

static bool has_free(struct kvt_core *core, const uint32_t need[KVT_GROUPS_MAX])
{
    bool has = true;
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        struct kvt_pool *pool = &core->pools[p];
        if (pool->free_count >= need[p]) continue;
        pool->wanted = kvt_max_u32(pool->wanted, need[p]);
        pool->promised = kvt_max_u32(pool->promised, need[p]);
        pool->promised_ns = core->now_ns;
        has = false;
    }
    return has;
}

/*
 * Entries of the block table. What idle sequences hold keeps its entry when its last copy was given up, so that with many
 * of them the table ends before the slots do.
 */
static bool has_entries(const struct kvt_core *core, const uint32_t need[KVT_GROUPS_MAX])
{
    uint64_t wanted = 0;
    for (uint32_t p = 0; p < core->config.pool_count; p++) wanted += need[p];
    return wanted <= core->table.capacity - core->table.count;
}

enum kvt_room kvt_sequence_room_for(struct kvt_core *core, const uint32_t need[KVT_GROUPS_MAX])
{
    if (!has_entries(core, need)) return KVT_ROOM_FULL;
    if (!kvt_sequence_make_claimable(core, need)) return KVT_ROOM_FULL;
    if (!has_free(core, need)) {
        kvt_planner_make_room(core);
        if (!has_free(core, need)) return kvt_planner_can_make_room(core) ? KVT_ROOM_PENDING : KVT_ROOM_FULL;
    }
    for (uint32_t p = 0; p < core->config.pool_count; p++) core->pools[p].wanted = core->pools[p].promised = 0;
    return KVT_ROOM_OK;
}

enum kvt_status kvt_sequence_append(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t n,
                                    enum kvt_room *ret_room)
{
    const bool is_stepping = sequence->step != NO_STEP;
    if (!is_active(sequence) || (is_stepping && must_copy(core, sequence))) return KVT_INVAL;
    if (n > UINT64_MAX / 2) { /* so much that counting its blocks would overflow */
        *ret_room = KVT_ROOM_TOO_LONG;
        return KVT_OK;
    }
    const uint64_t reserved = sequence->reserved + n;
    uint32_t need[KVT_GROUPS_MAX] = { 0 };
    uint64_t total[KVT_GROUPS_MAX] = { 0 };
    count_append(core, sequence, reserved, need, total);
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        if (total[p] > core->pools[p].slot_count) {
            *ret_room = KVT_ROOM_TOO_LONG;
            return KVT_OK;
        }
    }
    if (is_stepping && !kvt_core_step_extend(core, sequence)) {
        *ret_room = KVT_ROOM_PENDING;
        return KVT_OK;
    }
    *ret_room = kvt_sequence_room_for(core, need);
    if (*ret_room != KVT_ROOM_OK) return KVT_OK;
    const enum kvt_status status = take_slots(core, sequence, reserved);
    if (status != KVT_OK) {
        kvt_sequence_drop_reserved(core, sequence);
        return status;
    }
    sequence->reserved = reserved;
    *ret_room = KVT_ROOM_OK;
    return KVT_OK;
}

/* ---- Fork -------------------------------------------------------------------------------------------------------- */

uint32_t kvt_sequence_copy_of(struct kvt_core *core, uint32_t group, uint32_t origin, uint32_t tokens, bool is_claimed)
{
    const uint32_t copy = kvt_block_table_take(&core->table, group);
    if (copy == KVT_NO_BLOCK) return copy;
    struct kvt_block *block = kvt_core_block(core, copy);
    block->refs = 1;
    block->tokens = (uint16_t)tokens;
    block->origin = origin;
    kvt_block_ref(core, origin);
    if (is_claimed) kvt_block_claim(core, copy);
    return copy;
}

static enum kvt_status fork_group(struct kvt_core *core, struct kvt_sequence *parent, struct kvt_sequence *child,
                                  uint32_t g)
{
    const struct kvt_sequence_table *from = &parent->groups[g];
    struct kvt_sequence_table *to = &child->groups[g];
    const bool is_claimed = is_active(child);
    const uint64_t count = is_state(core, g) ? from->count : blocks_for(core, parent->tokens);
    KVT_TRY(kvt_sequence_table_reserve(to, count));
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t block = from->blocks[i];
        if (block != KVT_NO_BLOCK) {
            kvt_block_ref(core, block);
            if (is_claimed && !is_state(core, g) && i >= from->claimed_from) kvt_block_claim(core, block);
        }
        to->blocks[to->count++] = block;
    }
    to->first = from->first;
    to->claimed_from = from->claimed_from;
    if (from->live != KVT_NO_BLOCK) {
        to->live = kvt_sequence_copy_of(core, g, from->live, 1, is_claimed);
        if (to->live == KVT_NO_BLOCK) return KVT_NOMEM;
    }
    return KVT_OK;
}

enum kvt_status kvt_sequence_fork(struct kvt_core *core, struct kvt_sequence *parent, struct kvt_sequence **ret_fork)
{
    /* What a fork shares must be what its tokens say. */
    if (parent->step != NO_STEP || kvt_layers_settle(core, parent) == KVT_NOT_READY) return KVT_INVAL;
    /* With slots reserved it would go on writing tail and state, now shared, without asking; the next append makes them its own. */
    kvt_sequence_drop_reserved(core, parent);
    uint32_t need[KVT_GROUPS_MAX] = { 0 };
    for (uint32_t g = 0; g < core->group_count; g++)
        need[core->config.pool_of_group[g]] += parent->groups[g].live != KVT_NO_BLOCK;
    if (!has_entries(core, need) || (is_active(parent) && !kvt_sequence_make_claimable(core, need))) return KVT_FULL;
    struct kvt_sequence *child = kvt_sequence_begin(core, !is_active(parent));
    if (!child) return kvt_sequence_refusal(core);
    child->tokens = child->reserved = parent->tokens;
    child->reused = parent->tokens;
    child->is_unshared = parent->is_unshared;
    child->lost_from = parent->lost_from; /* it shares what was computed from other bytes, too */
    child->is_streamed = parent->is_streamed;
    child->root = parent->root;
    child->chain = parent->chain;
    child->drop_tokens = parent->drop_tokens;
    child->drop_chain = parent->drop_chain;
    child->last_mark = parent->last_mark;
    child->turn = parent->turn;
    child->next_use = parent->next_use;
    memcpy(child->tail_tokens, parent->tail_tokens, (parent->tokens % core->block_tokens) * sizeof *child->tail_tokens);
    for (uint32_t g = 0; g < core->group_count; g++) {
        const enum kvt_status status = fork_group(core, parent, child, g);
        if (status != KVT_OK) {
            kvt_sequence_finish(core, child, true);
            return status;
        }
    }
    if (is_active(child)) kvt_sequence_list_append(core, child, KVT_LIST_DEMAND);
    *ret_fork = child;
    return KVT_OK;
}
