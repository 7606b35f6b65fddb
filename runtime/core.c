#include "runtime/core.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/plant.h"
#include "runtime/flow.h"
#include "runtime/planner.h"
#include "runtime/residency.h"

#define WRITE_BACK_ENTRIES (1u << 16)
#define LOST_BATCH 32

static enum kvt_status init_sequences(struct kvt_core *core)
{
    core->sequences = kvt_table_map((size_t)core->config.sequences_max * sizeof *core->sequences);
    if (!core->sequences) return KVT_NOMEM;
    for (uint32_t i = 0; i < core->config.sequences_max; i++)
        core->sequences[i].next = i + 1 < core->config.sequences_max ? i + 1 : KVT_NO_SEQUENCE;
    core->sequence_free_head = 0;
    core->demand = core->expected = core->foreseen = (struct kvt_sequence_list){ KVT_NO_SEQUENCE, KVT_NO_SEQUENCE };
    return KVT_OK;
}

static size_t hints_bytes(const struct kvt_core *core)
{
    return (size_t)core->config.blocks_max * sizeof *core->hints;
}

static enum kvt_status init_hints(struct kvt_core *core)
{
    const struct kvt_core_config *config = &core->config;
    if (!config->device_policy->hint && !(config->host && config->host_policy->hint)) return KVT_OK;
    core->hints = kvt_table_map(hints_bytes(core));
    return core->hints ? KVT_OK : KVT_NOMEM;
}

static enum kvt_status init_host(struct kvt_core *core)
{
    uint32_t raw_bytes[KVT_GROUPS_MAX];
    for (uint32_t g = 0; g < core->group_count; g++)
        raw_bytes[g] = (uint32_t)kvt_group_block_bytes(&core->groups[g], core->block_tokens);
    core->has_host = true;
    return kvt_host_pool_init(&core->host, core->config.host, core->config.host_chunk_bytes, raw_bytes,
                              core->group_count, core->config.host_policy, core->config.seed);
}

static enum kvt_status init_admission(struct kvt_core *core)
{
    struct kvt_tier_counters nvme = { 0 };
    if (core->has_nvme) core->nvme->ops->counters(core->nvme, &nvme);
    return core->config.admission->create(nvme.capacity_bytes, core->config.seed, &core->admission);
}

enum kvt_status kvt_core_init(struct kvt_core *core, const struct kvt_core_config *config)
{
    memset(core, 0, sizeof *core);
    core->config = *config;
    core->block_tokens = config->shape.block_tokens;
    core->group_count = config->shape.group_count;
    memcpy(core->groups, config->shape.groups, sizeof core->groups);
    core->gpu = config->gpu;
    core->nvme = config->nvme;
    core->has_nvme = config->nvme != NULL;
    core->step_ns = config->step_ns;

    KVT_TRY(kvt_block_table_init(&core->table, config->blocks_max));
    KVT_TRY(kvt_prefix_init(&core->prefix, core->table.blocks, config->blocks_max));
    KVT_TRY(kvt_transfers_init(&core->transfers, config->transfers_max));
    core->landing = kvt_alloc(config->transfers_max, sizeof *core->landing);
    if (!core->landing) return KVT_NOMEM;
    KVT_TRY(init_sequences(core));
    for (uint32_t q = 0; q < 2; q++) {
        core->write_back[q].capacity = WRITE_BACK_ENTRIES;
        core->write_back[q].entries = kvt_table_map(WRITE_BACK_ENTRIES * sizeof *core->write_back[q].entries);
        if (!core->write_back[q].entries) return KVT_NOMEM;
    }
    for (uint32_t p = 0; p < config->pool_count; p++) {
        uint64_t slot_bytes = 0;
        for (uint32_t g = 0; g < core->group_count; g++) {
            if (config->pool_of_group[g] == p) slot_bytes = kvt_group_block_bytes(&core->groups[g], core->block_tokens);
        }
        KVT_TRY(kvt_pool_init(&core->pools[p], slot_bytes, config->pool_slots[p], config->device_policy, config->seed));
    }
    if (config->admission) KVT_TRY(init_admission(core));
    KVT_TRY(kvt_foresight_init(core));
    KVT_TRY(init_hints(core));
    return config->host ? init_host(core) : KVT_OK;
}

void kvt_core_done(struct kvt_core *core)
{
    if (core->transfers.items) kvt_transfers_done(&core->transfers);
    kvt_free(core->landing);
    if (core->admission) core->config.admission->destroy(core->admission);
    kvt_foresight_done(core);
    kvt_table_unmap(core->hints, hints_bytes(core));
    for (uint32_t i = 0; core->sequences && i < core->config.sequences_max; i++) {
        kvt_free(core->sequences[i].tail_tokens);
        for (uint32_t g = 0; g < KVT_GROUPS_MAX; g++) kvt_free(core->sequences[i].groups[g].blocks);
        if (core->sequences[i].generation == 0) break; /* taken in order: none after it was ever used */
    }
    if (core->sequences) kvt_table_unmap(core->sequences, (size_t)core->config.sequences_max * sizeof *core->sequences);
    for (uint32_t q = 0; q < 2; q++)
        kvt_table_unmap(core->write_back[q].entries, WRITE_BACK_ENTRIES * sizeof *core->write_back[q].entries);
    for (uint32_t r = 0; r < KVT_READERS_MAX; r++) kvt_reader_free(&core->readers[r]);
    for (uint32_t p = 0; p < core->config.pool_count; p++) kvt_pool_done(&core->pools[p]);
    if (core->has_host) kvt_host_pool_done(&core->host);
    kvt_prefix_done(&core->prefix);
    kvt_block_table_done(&core->table);
}

/* A record that the store had to let go although somebody holds it. */
static void record_lost(struct kvt_core *core, const struct kvt_name *name)
{
    uint32_t index = KVT_NO_BLOCK;
    if (kvt_key_equal(name->space, core->config.private_space)) {
        const uint32_t candidate = (uint32_t)name->key.lo;
        if (candidate < core->table.high_water && kvt_core_block(core, candidate)->generation == name->key.hi)
            index = candidate;
    }
    for (uint32_t g = 0; g < core->group_count && index == KVT_NO_BLOCK; g++) {
        if (kvt_key_equal(name->space, core->config.space[g])) index = kvt_prefix_find(&core->prefix, g, name->key);
    }
    if (index == KVT_NO_BLOCK) return;
    struct kvt_block *block = kvt_core_block(core, index);
    if (!kvt_copy_is_resident(block, KVT_TIER_NVME)) return;
    kvt_block_set(block, KVT_BLOCK_NVME_HELD, false); /* the hold went with the record */
    if (block->readers[KVT_TIER_NVME] > 0) return; /* the copy goes when the read is over */
    kvt_nvme_drop(core, index, false);
    core->events++;
    kvt_block_settle(core, index);
}

static void take_lost_records(struct kvt_core *core)
{
    if (!core->has_nvme) return;
    struct kvt_name names[LOST_BATCH];
    const uint32_t count = core->nvme->ops->poll_lost(core->nvme, names, LOST_BATCH);
    for (uint32_t i = 0; i < count; i++) record_lost(core, &names[i]);
}

static void forget_block(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const bool is_public_record = kvt_copy_is_resident(block, KVT_TIER_NVME)
        && !kvt_block_has(block, KVT_BLOCK_NVME_PRIVATE);
    if (is_public_record && block->readers[KVT_TIER_NVME] == 0) kvt_nvme_drop(core, index, false);
    if (kvt_block_has(block, KVT_BLOCK_INDEXED)) kvt_block_unindex(core, index);
}

enum kvt_status kvt_core_reset(struct kvt_core *core, uint64_t *ret_kept)
{
    uint64_t kept = 0;
    core->epoch++;
    for (uint32_t s = 0; s < core->config.sequences_max && core->sequences[s].generation != 0; s++)
        core->sequences[s].is_unshared = true;
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        if (block->refs == 0 && !kvt_block_has_copies(block)) continue;
        kept += block->refs > 0;
        forget_block(core, b);
    }
    const bool has_lower = core->has_nvme && !KVT_PLANTED(RESET_TOP_ONLY);
    const enum kvt_status status = has_lower ? core->nvme->ops->reset(core->nvme) : KVT_OK;
    *ret_kept = kept;
    return status;
}

bool kvt_core_pump(struct kvt_core *core, uint64_t now_ns)
{
    core->now_ns = kvt_max_u64(now_ns, core->now_ns);
    core->is_search_cut = false;
    kvt_flow_submit_waiting(core);
    bool is_more = kvt_flow_poll(core);
    kvt_flow_check_deadlines(core);
    take_lost_records(core);
    if (core->has_host && kvt_host_pool_refresh(&core->host)) {
        core->events++;
        core->changes++;
    }
    if (core->nvme_retry_ns != 0 && core->now_ns >= core->nvme_retry_ns) {
        core->nvme_retry_ns = 0;
        core->changes++;
    }
    if (core->device_retry_ns != 0 && core->now_ns >= core->device_retry_ns) {
        core->device_retry_ns = 0;
        core->changes++;
    }
    kvt_readers_pump(core);
    is_more = kvt_planner_make_room(core) || is_more;
    is_more = kvt_planner_start(core) || is_more;
    kvt_flow_submit_waiting(core);
    KVT_VERIFY(kvt_core_verify(core));
    return is_more || core->is_search_cut;
}

void kvt_core_drain(struct kvt_core *core, uint64_t now_ns)
{
    core->now_ns = kvt_max_u64(now_ns, core->now_ns);
    kvt_flow_submit_waiting(core);
    (void)kvt_flow_poll(core);
}

uint64_t kvt_core_next_timer(const struct kvt_core *core)
{
    uint64_t next = UINT64_MAX;
    if (core->transfers.oldest != KVT_NO_TRANSFER) next = core->transfers.items[core->transfers.oldest].deadline_ns;
    if (core->nvme_retry_ns > core->now_ns) next = kvt_min_u64(next, core->nvme_retry_ns);
    if (core->device_retry_ns > core->now_ns) next = kvt_min_u64(next, core->device_retry_ns);
    /* While a sequence waits for its blocks, prefetch waits for that. */
    if (kvt_core_looks_ahead(core) && core->demand.head == KVT_NO_SEQUENCE)
        next = kvt_min_u64(next, kvt_planner_next_start_ns(core));
    return kvt_min_u64(next, kvt_foresight_next_ns(core));
}
