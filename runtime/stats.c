/* stats: the runtime's numbers, gathered from where they are kept. Nothing is counted twice. */
#include "kvtier/store.h"
#include "runtime/base/bytes.h"
#include "runtime/runtime.h"
#include "tiers/nvme_tier.h"

static void device_stats(const struct kvt_core *core, struct kvt_tier_stats *ret_stats)
{
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        const struct kvt_pool *pool = &core->pools[p];
        ret_stats->capacity_bytes += pool->slot_bytes * pool->slot_count;
        ret_stats->used_bytes += pool->slot_bytes * (pool->slot_count - pool->free_count);
        ret_stats->peak_bytes += pool->slot_bytes * pool->used_peak;
        ret_stats->blocks += pool->slot_count - pool->free_count - pool->quarantined;
        ret_stats->blocks_max += pool->used_peak;
        ret_stats->evictions += pool->evictions;
    }
}

static void host_stats(const struct kvt_runtime *runtime, struct kvt_tier_stats *ret_stats)
{
    const struct kvt_host_pool *host = &runtime->core.host;
    if (!runtime->core.has_host) return;
    ret_stats->capacity_bytes = host->chunk_bytes * host->chunk_count + runtime->overhead_bytes;
    ret_stats->used_bytes = host->chunk_bytes_used + runtime->overhead_bytes;
    ret_stats->peak_bytes = host->chunk_bytes_peak + runtime->overhead_bytes;
    ret_stats->blocks = host->used_slots - host->quarantined;
    ret_stats->blocks_max = host->used_slots_peak;
    ret_stats->evictions = host->evictions;
}

/* A modelled nvme tier has no store behind it: what its counters say. */
static void model_stats(struct kvt_runtime *runtime, struct kvt_stats *ret_stats)
{
    struct kvt_tier_stats *tier = &ret_stats->tiers[KVT_TIER_NVME];
    struct kvt_tier_counters counters;
    runtime->nvme->ops->counters(runtime->nvme, &counters);
    tier->capacity_bytes = counters.capacity_bytes;
    tier->used_bytes = counters.used_bytes;
    tier->peak_bytes = counters.peak_bytes;
    tier->blocks_max = runtime->core.nvme_blocks_peak;
    tier->evictions = counters.dropped;
    ret_stats->store_raw_bytes = runtime->core.counters.store_raw_bytes;
    ret_stats->store_stored_bytes = runtime->core.counters.bytes_in[KVT_TIER_NVME];
    ret_stats->store_written_bytes = counters.bytes_in;
    ret_stats->store_write_amplification = ret_stats->store_stored_bytes
        ? (double)counters.bytes_in / (double)ret_stats->store_stored_bytes
        : 0;
}

static void store_stats(struct kvt_runtime *runtime, struct kvt_stats *ret_stats)
{
    struct kvt_tier_stats *tier = &ret_stats->tiers[KVT_TIER_NVME];
    if (!runtime->nvme) return;
    if (runtime->is_modelled) {
        model_stats(runtime, ret_stats);
        return;
    }
    struct kvt_store_stats store;
    kvt_store_stats(kvt_nvme_tier_store(runtime->nvme), &store);
    tier->capacity_bytes = store.capacity_bytes;
    tier->used_bytes = store.allocated_bytes;
    tier->peak_bytes = store.allocated_peak;
    tier->blocks = store.records;
    tier->blocks_max = kvt_max_u64(store.records, runtime->core.nvme_blocks_peak);
    tier->evictions = store.evicted_records;
    ret_stats->store_raw_bytes = runtime->core.counters.store_raw_bytes;
    ret_stats->store_stored_bytes = store.put_stored_bytes;
    ret_stats->store_allocated_bytes = store.allocated_bytes;
    ret_stats->store_allocated_peak = store.allocated_peak;
    ret_stats->store_records = store.records;
    ret_stats->store_written_bytes = store.written_bytes;
    ret_stats->store_day_bytes = store.day_bytes;
    ret_stats->store_write_amplification = store.put_stored_bytes
        ? (double)store.written_bytes / (double)store.put_stored_bytes
        : 0;
}

/* Tokens of live sequences on the device: what their slots hold, and what is committed in them. */
static void count_tokens(const struct kvt_core *core, struct kvt_stats *ret_stats)
{
    for (uint32_t s = 0; s < core->config.sequences_max && core->sequences[s].generation != 0; s++) {
        const struct kvt_sequence *sequence = &core->sequences[s];
        if (sequence->mode != KVT_SEQUENCE_ACTIVE) continue;
        for (uint32_t g = 0; g < core->group_count; g++) {
            if (core->groups[g].kind != KVT_GROUP_FULL) continue;
            const struct kvt_sequence_table *table = &sequence->groups[g];
            ret_stats->slot_tokens += (uint64_t)(table->count - table->claimed_from) * core->block_tokens;
            ret_stats->used_tokens += sequence->tokens - (uint64_t)table->claimed_from * core->block_tokens;
        }
    }
}

static uint64_t bookkeeping_bytes(const struct kvt_core *core)
{
    uint64_t bytes = (uint64_t)core->table.high_water * (sizeof(struct kvt_block) + sizeof(uint32_t));
    for (uint32_t p = 0; p < core->config.pool_count; p++) bytes += kvt_pool_bytes(&core->pools[p]);
    if (core->has_host) bytes += kvt_host_pool_bytes(&core->host);
    return bytes + (uint64_t)core->prefix.count * sizeof(struct kvt_prefix_bucket) / 7;
}

void kvt_runtime_stats(struct kvt_runtime *runtime, struct kvt_stats *ret_stats)
{
    *ret_stats = (struct kvt_stats){ 0 };
    const struct kvt_core *core = &runtime->core;
    const struct kvt_counters *counters = &core->counters;
    device_stats(core, &ret_stats->tiers[KVT_TIER_DEVICE]);
    host_stats(runtime, &ret_stats->tiers[KVT_TIER_HOST]);
    if (core->has_host) ret_stats->host_slot_bytes = core->host.chunk_bytes_used;
    store_stats(runtime, ret_stats);
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        ret_stats->tiers[t].hits = counters->hits[t];
        ret_stats->tiers[t].misses = counters->misses[t];
        ret_stats->tiers[t].bytes_in = counters->bytes_in[t];
        ret_stats->tiers[t].bytes_out = counters->bytes_out[t];
    }
    count_tokens(core, ret_stats);
    ret_stats->sequences = core->sequence_count;
    ret_stats->sequences_max = core->sequence_peak;
    ret_stats->blocks = core->table.count;
    ret_stats->stashes = counters->stashes;
    ret_stats->fetches = counters->fetches;
    ret_stats->copies = counters->copies;
    ret_stats->failures = counters->failures;
    ret_stats->abandoned = counters->abandoned;
    ret_stats->quarantined = core->transfers.abandoned;
    ret_stats->lost_blocks = counters->lost_blocks;
    ret_stats->dropped_blocks = counters->dropped_blocks;
    ret_stats->packed_blocks = counters->packed_blocks;
    ret_stats->raw_blocks = counters->raw_blocks;
    ret_stats->packed_bytes = counters->packed_bytes;
    ret_stats->packed_raw_bytes = counters->packed_raw_bytes;
    ret_stats->host_raw_equivalent_bytes = core->has_host ? core->host.raw_equivalent_bytes : 0;
    ret_stats->bookkeeping_bytes = bookkeeping_bytes(core);
    ret_stats->prefetched_blocks = counters->prefetched_blocks;
    ret_stats->demand_blocks = counters->demand_blocks;
    ret_stats->window_chunks = counters->window_chunks;
}

void kvt_stats(struct kvt_runtime *runtime, struct kvt_stats *ret_stats)
{
    *ret_stats = (struct kvt_stats){ 0 };
    if (kvt_runtime_is_child(runtime)) return;
    kvt_runtime_lock(runtime);
    kvt_runtime_stats(runtime, ret_stats);
    kvt_runtime_unlock(runtime);
}
