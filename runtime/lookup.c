/*
 * lookup: the longest prefix that every layer group has in some tier, found and held in one operation (invariant 4).
 *
 * A prefix of L tokens is there when the full groups have every block below L, the window groups every block that
 * overlaps [L - window, L) (and their sinks), and the state groups the snapshot at L. Anything else would leave a hole.
 */
#include "runtime/lookup.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/plant.h"
#include "runtime/residency.h"

bool kvt_lookup_exists(struct kvt_core *core, uint32_t group, struct kvt_key key, uint32_t *ret_tier)
{
    const uint32_t index = kvt_prefix_find(&core->prefix, group, key);
    if (index != KVT_NO_BLOCK) {
        const struct kvt_block *block = kvt_core_block(core, index);
        for (uint32_t t = 0; t < KVT_TIERS; t++) {
            if (kvt_copy_state(block, t) == KVT_COPY_EMPTY) continue;
            *ret_tier = t;
            return true;
        }
    }
    if (!core->has_nvme) return false;
    const struct kvt_name name = { core->config.space[group], key };
    struct kvt_found found;
    if (!core->nvme->ops->find(core->nvme, &name, &found)) return false;
    *ret_tier = KVT_TIER_NVME;
    return true;
}

/* Enters a block that only the store has. */
static uint32_t enter_stored(struct kvt_core *core, uint32_t group, struct kvt_key key)
{
    const struct kvt_name name = { core->config.space[group], key };
    struct kvt_found found;
    if (!core->has_nvme || !core->nvme->ops->hold(core->nvme, &name, &found)) return KVT_NO_BLOCK;
    const uint32_t index = kvt_block_table_take(&core->table, group);
    if (index == KVT_NO_BLOCK) {
        core->nvme->ops->release(core->nvme, &name);
        return KVT_NO_BLOCK;
    }
    struct kvt_block *block = kvt_core_block(core, index);
    block->key = key;
    block->refs = 1;
    block->nvme_length = found.length;
    block->tokens = (uint16_t)core->block_tokens;
    block->lower_tokens = (uint16_t)core->block_tokens;
    kvt_block_set(block, KVT_BLOCK_SEALED, true);
    kvt_block_set(block, KVT_BLOCK_INDEXED, true);
    kvt_block_set(block, KVT_BLOCK_NVME_HELD, true);
    kvt_block_set(block, KVT_BLOCK_NVME_PACKED, found.form == KVT_FORM_PACKED);
    kvt_copy_step(block, KVT_TIER_NVME, KVT_COPY_RESERVE);
    kvt_copy_step(block, KVT_TIER_NVME, KVT_COPY_FILL_OK);
    core->nvme_blocks++;
    core->nvme_blocks_peak = kvt_max_u64(core->nvme_blocks_peak, core->nvme_blocks);
    kvt_prefix_insert(&core->prefix, index);
    return index;
}

uint32_t kvt_lookup_hold(struct kvt_core *core, uint32_t group, struct kvt_key key)
{
    const uint32_t index = kvt_prefix_find(&core->prefix, group, key);
    if (index == KVT_NO_BLOCK) return enter_stored(core, group, key);
    struct kvt_block *block = kvt_core_block(core, index);
    if (!KVT_PLANTED(FOUND_NOT_HELD)) kvt_block_ref(core, index); /* may find that the record behind it is gone */
    if (block->uses < UINT8_MAX) block->uses++;
    if (kvt_block_has_copies(block)) return index;
    kvt_block_unref(core, index);
    return KVT_NO_BLOCK;
}

/* ---- The longest prefix ------------------------------------------------------------------------------------------ */

struct prefix_search {
    struct kvt_core *core;
    const struct kvt_key *keys; /* of the leading blocks */
    uint32_t count;             /* blocks that the full groups may have */
};

static bool group_exists(const struct prefix_search *search, uint32_t group, uint32_t i)
{
    uint32_t tier;
    return kvt_lookup_exists(search->core, group, search->keys[i], &tier);
}

/* The largest L <= count for which the window group has every block of its window (and its sinks). */
static uint32_t longest_window(const struct prefix_search *search, uint32_t group, uint32_t count)
{
    const struct kvt_group_shape *shape = &search->core->groups[group];
    const uint64_t block_tokens = search->core->block_tokens;
    const uint32_t sinks = (uint32_t)((shape->sink_tokens + block_tokens - 1) / block_tokens);
    for (uint32_t i = 0; i < sinks && i < count; i++) {
        if (!group_exists(search, group, i)) return i;
    }
    /* Walk down from the end: `have` blocks below L are known to be there; the first hole moves L below it. */
    uint32_t length = count;
    uint32_t next = count; /* entries next .. length - 1 are there */
    while (length > 0) {
        const uint64_t tokens = length * block_tokens;
        const uint32_t first = tokens <= shape->window_tokens
            ? 0
            : (uint32_t)((tokens - shape->window_tokens) / block_tokens);
        if (next <= kvt_max_u32(first, kvt_min_u32(sinks, length))) return length;
        next--;
        if (!group_exists(search, group, next)) length = next;
    }
    return 0;
}

static uint32_t longest_state(const struct prefix_search *search, uint32_t group, uint32_t count)
{
    while (count > 0 && !group_exists(search, group, count - 1)) count--;
    return count;
}

/* Blocks of the longest prefix that all groups have. */
static uint32_t longest_prefix(const struct prefix_search *search)
{
    uint32_t count = search->count;
    for (bool is_stable = false; !is_stable;) {
        is_stable = true;
        for (uint32_t g = 0; g < search->core->group_count; g++) {
            uint32_t limit = count;
            if (search->core->groups[g].kind == KVT_GROUP_WINDOW) limit = longest_window(search, g, count);
            if (search->core->groups[g].kind == KVT_GROUP_STATE) limit = longest_state(search, g, count);
            is_stable = is_stable && limit == count;
            count = limit;
        }
    }
    return count;
}

/* Computes the chain block by block, as far as the full groups have it. Returns how many keys were written. */
static uint32_t match_full_groups(struct kvt_core *core, const struct kvt_sequence *sequence, const uint32_t *tokens,
                                  uint32_t blocks_max, struct kvt_key *ret_keys)
{
    struct kvt_key chain = { 0, 0 };
    for (uint32_t i = 0; i < blocks_max; i++) {
        chain = kvt_key_chain(&sequence->root, chain, tokens + (uint64_t)i * core->block_tokens, core->block_tokens);
        for (uint32_t g = 0; g < core->group_count; g++) {
            if (core->groups[g].kind != KVT_GROUP_FULL) continue;
            uint32_t tier;
            if (!kvt_lookup_exists(core, g, chain, &tier)) return i;
        }
        ret_keys[i] = chain;
    }
    return blocks_max;
}

/* ---- Load or recompute ------------------------------------------------------------------------------------------- */

/* True when computing the prefix again is expected to be faster than fetching what is not on the device. */
static bool is_recompute_faster(struct kvt_core *core, const struct kvt_key *keys, uint32_t count)
{
    if (core->config.prefill_tokens_per_s == 0) return false;
    double fetch_ns = 0;
    for (uint32_t g = 0; g < core->group_count; g++) {
        if (core->groups[g].kind != KVT_GROUP_FULL) continue;
        const double bytes = (double)kvt_group_block_bytes(&core->groups[g], core->block_tokens);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t tier = KVT_TIER_DEVICE;
            (void)kvt_lookup_exists(core, g, keys[i], &tier);
            if (tier >= KVT_TIER_HOST) fetch_ns += bytes * core->link_ns_per_byte[KVT_TIER_DEVICE];
            if (tier == KVT_TIER_NVME) fetch_ns += bytes * core->link_ns_per_byte[KVT_TIER_NVME];
        }
    }
    const double tokens = (double)count * core->block_tokens;
    return fetch_ns > tokens * 1e9 / (double)core->config.prefill_tokens_per_s;
}

/* ---- Holding ----------------------------------------------------------------------------------------------------- */

/* Fills the group's table for a prefix of `count` blocks. Returns the first entry that could not be held, or count. */
static uint32_t hold_group(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group,
                           const struct kvt_key *keys, uint32_t count)
{
    const struct kvt_group_shape *shape = &core->groups[group];
    struct kvt_sequence_table *table = &sequence->groups[group];
    const uint64_t tokens = (uint64_t)count * core->block_tokens;
    uint32_t first = 0;
    uint32_t sinks = 0;
    if (shape->kind == KVT_GROUP_WINDOW && tokens > shape->window_tokens) {
        first = (uint32_t)((tokens - shape->window_tokens) / core->block_tokens);
        sinks = (uint32_t)(((uint64_t)shape->sink_tokens + core->block_tokens - 1) / core->block_tokens);
    }
    if (shape->kind == KVT_GROUP_STATE) first = count - 1;
    if (KVT_PLANTED(WINDOW_HOLE) && shape->kind == KVT_GROUP_WINDOW && first > 0) first++;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block = KVT_NO_BLOCK;
        if (i >= first || i < sinks) {
            block = kvt_lookup_hold(core, group, keys[i]);
            if (block == KVT_NO_BLOCK) return i;
        }
        if (kvt_sequence_push(table, block) != KVT_OK) {
            if (block != KVT_NO_BLOCK) kvt_block_unref(core, block);
            return i;
        }
    }
    table->first = first;
    if (shape->kind == KVT_GROUP_STATE) {
        table->first = 0;
        table->live = kvt_sequence_copy_of(core, group, table->blocks[count - 1], 1, false);
        if (table->live == KVT_NO_BLOCK) return count - 1;
    }
    return count;
}

static void release_all(struct kvt_core *core, struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        struct kvt_sequence_table *table = &sequence->groups[g];
        if (table->live != KVT_NO_BLOCK) kvt_block_unref(core, table->live);
        table->live = KVT_NO_BLOCK;
        kvt_sequence_pop(core, sequence, g, 0);
    }
}

/* Holds the prefix of search->count blocks at most; shrinks it while a block turns out to be gone. */
static uint32_t hold_prefix(struct kvt_core *core, struct kvt_sequence *sequence, struct prefix_search *search)
{
    for (;;) {
        const uint32_t count = longest_prefix(search);
        if (count == 0) return 0;
        uint32_t held = count;
        for (uint32_t g = 0; g < core->group_count && held == count; g++)
            held = kvt_min_u32(held, hold_group(core, sequence, g, search->keys, count));
        if (held == count) return count;
        release_all(core, sequence);
        search->count = held;
    }
}

static void count_hits(struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t held, uint32_t asked)
{
    const struct kvt_admission_ops *admission = core->config.admission;
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        for (uint32_t i = 0; i < held; i++) {
            if (table->blocks[i] == KVT_NO_BLOCK) continue;
            const struct kvt_block *block = kvt_core_block(core, table->blocks[i]);
            uint32_t tier = 0;
            while (kvt_copy_state(block, tier) == KVT_COPY_EMPTY) core->counters.misses[tier++]++;
            if (!KVT_PLANTED(HIT_MISCOUNTED) || tier < KVT_TIER_NVME) core->counters.hits[tier]++;
            if (tier == KVT_TIER_NVME && admission && admission->used)
                admission->used(core->admission, kvt_block_key_hash(block));
        }
        if (core->groups[g].kind != KVT_GROUP_FULL) continue;
        for (uint32_t t = 0; t < KVT_TIERS; t++) core->counters.misses[t] += asked - held;
    }
}

enum kvt_status kvt_sequence_create(struct kvt_core *core, const struct kvt_seq_params *params,
                                    struct kvt_sequence **ret_sequence)
{
    /* Found and held before it claims: it begins idle, and resumes at the end. */
    struct kvt_sequence *sequence = kvt_sequence_begin(core, true);
    if (!sequence) return kvt_sequence_refusal(core);
    struct kvt_key space;
    space = kvt_key_digest(core->config.space, core->group_count * sizeof core->config.space[0]);
    const size_t salt_bytes = KVT_PLANTED(SALT_IGNORED) ? 0 : params->salt_bytes;
    kvt_key_root(core->config.secret, core->config.secret_bytes, &space, params->salt, salt_bytes, &sequence->root);

    const uint64_t limit = params->token_count ? kvt_min_u64(params->reuse_max, params->token_count - 1) : 0;
    const uint64_t blocks_max = kvt_min_u64(limit / core->block_tokens, UINT32_MAX / 2);
    struct kvt_key *keys = blocks_max ? kvt_alloc(blocks_max, sizeof *keys) : NULL;
    if (blocks_max && !keys) {
        kvt_sequence_finish(core, sequence, true);
        return KVT_NOMEM;
    }
    uint32_t held = 0;
    if (blocks_max) {
        struct prefix_search search = { core, keys,
                                        match_full_groups(core, sequence, params->tokens, (uint32_t)blocks_max, keys) };
        held = hold_prefix(core, sequence, &search);
        if (held > 0 && is_recompute_faster(core, keys, held)) {
            release_all(core, sequence);
            held = 0;
        }
    }
    if (held > 0) sequence->chain = keys[held - 1];
    kvt_free(keys);
    sequence->tokens = sequence->reserved = sequence->reused = (uint64_t)held * core->block_tokens;
    count_hits(core, sequence, held, (uint32_t)blocks_max);
    *ret_sequence = sequence;
    if (params->is_idle) return KVT_OK;

    /* When the device has no room for all of it now, it stays idle: appending says so, and resume brings it back. */
    enum kvt_room room;
    return kvt_sequence_resume(core, sequence, &room);
}
