/* verify: everything counted again from scratch. Tests and verifying builds only; any difference is a bug. */
#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "runtime/core.h"
#include "runtime/residency.h"

struct recount {
    uint32_t *refs, *users;       /* of each block, from the sequences, origins, steps and abandoned transfers */
    uint32_t *readers[KVT_TIERS]; /* of each block, from the transfers */
};

static void count_sequence(const struct kvt_core *core, const struct kvt_sequence *sequence, struct recount *recount)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        const bool is_state = core->groups[g].kind == KVT_GROUP_STATE;
        for (uint32_t i = 0; i < table->count; i++) {
            if (table->blocks[i] == KVT_NO_BLOCK) continue;
            recount->refs[table->blocks[i]]++;
            if (!is_state && kvt_sequence_claims(sequence, g, i)) recount->users[table->blocks[i]]++;
        }
        if (table->live != KVT_NO_BLOCK) {
            recount->refs[table->live]++;
            if (kvt_sequence_claims(sequence, g, 0)) recount->users[table->live]++;
        }
        if (table->spare != KVT_NO_BLOCK) {
            recount->refs[table->spare]++;
            recount->users[table->spare]++;
        }
    }
}

static void count_transfer(const struct kvt_transfer *transfer, struct recount *recount)
{
    static const uint32_t read_tier[] = {
        [KVT_LEG_DEVICE_TO_HOST] = KVT_TIER_DEVICE,   [KVT_LEG_HOST_TO_NVME] = KVT_TIER_HOST,
        [KVT_LEG_NVME_TO_HOST] = KVT_TIER_NVME,       [KVT_LEG_HOST_TO_DEVICE] = KVT_TIER_HOST,
        [KVT_LEG_DEVICE_TO_DEVICE] = KVT_TIER_DEVICE, [KVT_LEG_HOST_TO_WINDOW] = KVT_TIER_HOST,
        [KVT_LEG_HOST_TO_DEVICE_PART] = KVT_TIER_HOST,
    };
    if (transfer->is_abandoned) {
        recount->refs[transfer->source]++;
        if (transfer->target != transfer->source) recount->refs[transfer->target]++;
        if (transfer->leg == KVT_LEG_NVME_TO_HOST) return;
    }
    recount->readers[read_tier[transfer->leg]][transfer->source]++;
    if (transfer->leg == KVT_LEG_HOST_TO_WINDOW) {
        recount->refs[transfer->target]++;
        recount->users[transfer->target]++;
    }
}

static void count_reader(const struct kvt_reader *reader, struct recount *recount)
{
    for (uint32_t w = 0; reader->is_open && w < reader->slot_count; w++) {
        recount->refs[reader->window[w]]++;
        recount->users[reader->window[w]]++;
    }
    for (uint64_t i = reader->freed; reader->is_open && i < reader->started; i++) {
        const struct kvt_reader_entry *entry = &reader->entries[i % reader->place_count];
        if (entry->state != KVT_ENTRY_DIRECT) continue;
        recount->refs[entry->block]++;
        recount->users[entry->block]++;
    }
}

/* Transfers in flight are those that are not on the free list. */
static void count_transfers(const struct kvt_core *core, struct recount *recount)
{
    const struct kvt_transfers *transfers = &core->transfers;
    uint8_t *is_free = kvt_alloc(transfers->capacity, 1);
    KVT_ASSERT(is_free != NULL);
    uint32_t free_count = 0;
    for (uint32_t t = transfers->free_head; t != KVT_NO_TRANSFER; t = transfers->items[t].next) {
        is_free[t] = 1;
        free_count++;
    }
    KVT_ASSERT(free_count + transfers->in_flight == transfers->capacity);
    for (uint32_t t = 0; t < transfers->capacity; t++) {
        if (!is_free[t]) count_transfer(&transfers->items[t], recount);
    }
    kvt_free(is_free);
}

static void count_everything(const struct kvt_core *core, struct recount *recount)
{
    for (uint32_t s = 0; s < core->config.sequences_max; s++) {
        if (core->sequences[s].mode != KVT_SEQUENCE_FREE) count_sequence(core, &core->sequences[s], recount);
        if (core->sequences[s].generation == 0) break;
    }
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        if (block->origin != KVT_NO_BLOCK) recount->refs[block->origin]++;
    }
    for (uint32_t s = 0; s < KVT_STEPS_MAX; s++) {
        if (!core->steps[s].is_open) continue;
        for (uint32_t b = core->steps[s].limbo; b != KVT_NO_BLOCK; b = kvt_core_block(core, b)->link) {
            recount->refs[b]++;
            recount->users[b]++;
        }
    }
    for (uint32_t r = 0; r < KVT_READERS_MAX; r++) count_reader(&core->readers[r], recount);
    count_transfers(core, recount);
}

static void check_block(const struct kvt_core *core, uint32_t index, const struct recount *recount)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(block->refs == recount->refs[index]);
    KVT_ASSERT(block->users == recount->users[index]);
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        KVT_ASSERT(kvt_copy_is_valid(block, t));
        KVT_ASSERT(block->readers[t] == recount->readers[t][index]);
    }
    KVT_ASSERT(block->users <= block->refs);
    const struct kvt_pool *pool = &core->pools[core->config.pool_of_group[block->group]];
    if (block->device_slot != KVT_NO_SLOT) KVT_ASSERT(pool->slots[block->device_slot].owner == index);
    if (block->host_slot != KVT_NO_SLOT) KVT_ASSERT(kvt_host_pool_owner(&core->host, block->host_slot) == index);
    if (kvt_block_has(block, KVT_BLOCK_INDEXED)) {
        KVT_ASSERT(kvt_block_has(block, KVT_BLOCK_SEALED));
        KVT_ASSERT(kvt_prefix_find(&core->prefix, block->group, block->key) == index);
    }
    const bool is_device_idle = kvt_copy_is_resident(block, KVT_TIER_DEVICE) && block->users == 0
        && !kvt_block_has(block, KVT_BLOCK_DEVICE_LEAVING) && !kvt_block_has(block, KVT_BLOCK_DEVICE_PARKED);
    KVT_ASSERT(is_device_idle == kvt_block_has(block, KVT_BLOCK_DEVICE_IDLE));
    const bool is_host_idle = kvt_copy_is_resident(block, KVT_TIER_HOST)
        && !kvt_block_has(block, KVT_BLOCK_HOST_LEAVING) && !kvt_block_has(block, KVT_BLOCK_HOST_PARKED);
    KVT_ASSERT(is_host_idle == kvt_block_has(block, KVT_BLOCK_HOST_IDLE));
    KVT_ASSERT(KVT_IMPLIES(kvt_block_has(block, KVT_BLOCK_NVME_HELD),
                           kvt_copy_is_resident(block, KVT_TIER_NVME) && block->refs > 0));
    /* A block that nothing holds, keeps or moves has no entry. */
    KVT_ASSERT(block->refs > 0 || kvt_block_has_copies(block) || block->readers[KVT_TIER_NVME] > 0);
}

static bool has_limbo(const struct kvt_core *core)
{
    for (uint32_t s = 0; s < KVT_STEPS_MAX; s++) {
        if (core->steps[s].is_open && core->steps[s].limbo != KVT_NO_BLOCK) return true;
    }
    return false;
}

static void check_pool(const struct kvt_core *core, uint32_t p)
{
    const struct kvt_pool *pool = &core->pools[p];
    uint32_t taken = 0, copies = 0, claimed = 0, leaving = 0, unheld = 0;
    for (uint32_t s = 0; s < pool->slot_count; s++) taken += pool->slots[s].owner != KVT_NO_BLOCK;
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        if (core->config.pool_of_group[block->group] != p) continue;
        copies += block->device_slot != KVT_NO_SLOT;
        claimed += block->users > 0;
        leaving += kvt_block_has(block, KVT_BLOCK_DEVICE_LEAVING);
        unheld += kvt_block_has(block, KVT_BLOCK_DEVICE_IDLE) && block->refs == 0;
    }
    KVT_ASSERT(taken + pool->free_count == pool->slot_count);
    KVT_ASSERT(copies + pool->quarantined == taken);
    KVT_ASSERT(claimed == pool->claimed);
    KVT_ASSERT(leaving == pool->leaving);
    KVT_ASSERT(unheld == pool->unheld);
    /* Until its step ends, a block that an equal one took the place of is claimed besides that one. */
    KVT_ASSERT(has_limbo(core) || pool->claimed <= pool->slot_count);
    pool->policy_ops->verify(pool->policy);
}

static void check_host(const struct kvt_core *core)
{
    const struct kvt_host_pool *host = &core->host;
    uint64_t copies = 0, leaving = 0, unheld = 0, raw_bytes = 0, used_bytes = 0;
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        copies += block->host_slot != KVT_NO_SLOT;
        leaving += kvt_block_has(block, KVT_BLOCK_HOST_LEAVING);
        unheld += kvt_block_has(block, KVT_BLOCK_HOST_IDLE) && block->refs == 0;
        if (kvt_copy_is_resident(block, KVT_TIER_HOST))
            raw_bytes += kvt_block_raw_bytes(core, block, block->lower_tokens);
        if (block->host_slot != KVT_NO_SLOT) used_bytes += kvt_host_pool_slot_bytes(host, block->host_slot);
    }
    KVT_ASSERT(copies + host->quarantined == host->used_slots);
    KVT_ASSERT(leaving == host->leaving);
    KVT_ASSERT(unheld == host->unheld);
    KVT_ASSERT(raw_bytes == host->raw_equivalent_bytes);
    KVT_ASSERT(KVT_IMPLIES(host->quarantined == 0, used_bytes == host->used_slot_bytes));
    KVT_ASSERT(host->chunk_bytes_used <= host->chunk_bytes * host->chunk_count);
    if (host->policy) host->policy_ops->verify(host->policy);
}

static bool is_in_use(const struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    return block->refs > 0 || kvt_block_has_copies(block);
}

void kvt_core_verify(const struct kvt_core *core)
{
    const size_t count = (size_t)core->table.high_water + 1;
    uint32_t *memory = kvt_alloc(count * (2 + KVT_TIERS), sizeof *memory);
    KVT_ASSERT(memory != NULL);
    struct recount recount = { .refs = memory, .users = memory + count };
    for (uint32_t t = 0; t < KVT_TIERS; t++) recount.readers[t] = memory + count * (2 + t);
    count_everything(core, &recount);

    uint32_t in_use = 0, indexed = 0;
    uint64_t stored = 0;
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        if (!is_in_use(core, b)) {
            KVT_ASSERT(recount.refs[b] == 0);
            continue;
        }
        in_use++;
        indexed += kvt_block_has(kvt_core_block(core, b), KVT_BLOCK_INDEXED);
        stored += kvt_copy_is_resident(kvt_core_block(core, b), KVT_TIER_NVME);
        check_block(core, b, &recount);
    }
    KVT_ASSERT(in_use == core->table.count);
    KVT_ASSERT(indexed == core->prefix.count);
    KVT_ASSERT(stored == core->nvme_blocks);
    for (uint32_t p = 0; p < core->config.pool_count; p++) check_pool(core, p);
    if (core->has_host) check_host(core);
    kvt_foresight_verify(core);
    kvt_free(memory);
}
