#include "runtime/layers.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/plant.h"
#include "runtime/flow.h"
#include "runtime/residency.h"

#define NO_STEP UINT32_MAX
#define TRIES_MAX 8 /* without room for all at once; then the sequence is brought whole */

/* The range that a layer of a group is in, when its blocks come in so many. */
static uint32_t range_of(const struct kvt_core *core, uint32_t group, uint32_t layer)
{
    const uint32_t layers = core->groups[group].layers, ranges = kvt_flow_land_ranges(core, group);
    uint32_t range = 0;
    while ((range + 1) * layers / ranges <= layer) range++;
    return range;
}

bool kvt_layers_are_left(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    return core->config.is_layered && !sequence->is_whole && kvt_block_has(block, KVT_BLOCK_SEALED)
        && kvt_copy_state(block, KVT_TIER_DEVICE) == KVT_COPY_EMPTY && kvt_copy_is_resident(block, KVT_TIER_HOST);
}

/* ---- Admission --------------------------------------------------------------------------------------------------- */

/* What bringing all that is missing at once takes. */
struct wanted {
    uint32_t slots[KVT_GROUPS_MAX]; /* of each pool */
    uint32_t transfers;
};

/* Calls take for each block that is missing; false when it says so, or when one is missing that a step cannot bring. */
static bool for_each_missing(struct kvt_core *core, struct kvt_sequence *sequence, struct wanted *wanted,
                             void (*take)(struct kvt_core *core, uint32_t index, struct wanted *wanted))
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        const bool is_state = core->groups[g].kind == KVT_GROUP_STATE;
        const uint32_t first = kvt_max_u32(is_state ? 0 : table->ready, table->claimed_from);
        const uint32_t count = is_state ? 1 : table->count;
        for (uint32_t i = first; i < count; i++) {
            const uint32_t index = is_state ? table->live : table->blocks[i];
            if (index == KVT_NO_BLOCK || kvt_copy_is_resident(kvt_core_block(core, index), KVT_TIER_DEVICE)) continue;
            if (!kvt_layers_are_left(core, sequence, index)) return false;
            take(core, index, wanted);
        }
    }
    return true;
}

static void count_missing(struct kvt_core *core, uint32_t index, struct wanted *wanted)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    wanted->slots[core->config.pool_of_group[block->group]]++;
    wanted->transfers += kvt_flow_land_ranges(core, block->group);
}

static void land(struct kvt_core *core, uint32_t index, struct wanted *wanted)
{
    (void)wanted;
    core->landing[core->landing_count++] = kvt_flow_land(core, index);
}

static bool has_room(struct kvt_core *core, const struct wanted *wanted)
{
    const struct kvt_tier *device = core->config.device;
    const uint32_t ops = core->landing_ops + wanted->transfers;
    bool has = core->transfers.waiting_count[KVT_TIER_DEVICE] == 0 && device->in_flight + ops <= device->queue_depth
        && core->transfers.in_flight + ops <= core->transfers.capacity;
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        struct kvt_pool *pool = &core->pools[p];
        if (pool->free_count >= wanted->slots[p]) continue;
        pool->wanted = kvt_max_u32(pool->wanted, wanted->slots[p]);
        has = false;
    }
    return has;
}

static void bring_whole(struct kvt_core *core, struct kvt_sequence *sequence)
{
    sequence->is_whole = true;
    kvt_sequence_rewind(core, sequence, 0, 0);
}

/*
 * A block that nobody brings, and a step cannot: the planner left it to the step, since host memory had it, and it has gone
 * down from there; or it is lost, which is told when those before it are there.
 */
static bool has_stranded(const struct kvt_core *core, const struct kvt_sequence *sequence)
{
    if (sequence->list == KVT_LIST_DEMAND) return false; /* the planner has not come by yet */
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        const bool is_state = core->groups[g].kind == KVT_GROUP_STATE;
        const uint32_t count = is_state ? 1 : table->count;
        for (uint32_t i = kvt_max_u32(is_state ? 0 : table->ready, table->claimed_from); i < count; i++) {
            const uint32_t index = is_state ? table->live : table->blocks[i];
            if (index == KVT_NO_BLOCK || kvt_layers_are_left(core, sequence, index)) continue;
            if (kvt_copy_state(kvt_core_block(core, index), KVT_TIER_DEVICE) == KVT_COPY_EMPTY) return true;
        }
    }
    return false;
}

enum kvt_ready kvt_layers_admit(struct kvt_core *core, struct kvt_sequence *sequence)
{
    struct wanted wanted = { .transfers = 0 };
    if (!core->config.is_layered || sequence->is_whole || !core->gpu) return KVT_NOT_READY;
    if (!for_each_missing(core, sequence, &wanted, count_missing)) {
        if (has_stranded(core, sequence)) bring_whole(core, sequence);
        return KVT_NOT_READY;
    }
    if (wanted.transfers == 0) return KVT_NOT_READY;
    if (!has_room(core, &wanted)) {
        if (++sequence->landing_tries >= TRIES_MAX) bring_whole(core, sequence);
        return KVT_NOT_READY;
    }
    const bool is_landed = for_each_missing(core, sequence, &wanted, land);
    KVT_ASSERT(is_landed);
    core->landing_ops += wanted.transfers;
    sequence->landing_tries = 0;
    sequence->landing_last = core->landings;
    if (!kvt_sequence_is_suspect(sequence)) {
        sequence->suspect_from = sequence->tokens;
        sequence->failures_seen = core->fill_failures;
    }
    return KVT_LANDING;
}

void kvt_layers_begin(struct kvt_core *core, struct kvt_step_state *step)
{
    for (uint32_t range = 0; range < KVT_LAND_RANGES; range++) {
        for (uint32_t i = 0; i < core->landing_count; i++) {
            const uint32_t group = kvt_core_block(core, core->transfers.items[core->landing[i]].target)->group;
            if (range >= kvt_flow_land_ranges(core, group)) continue;
            step->range_marks[group][range] = kvt_flow_land_range(core, core->landing[i], range);
            step->landing_ranges[group] |= (uint8_t)(1u << range);
        }
    }
    core->landing_count = core->landing_ops = 0;
}

enum kvt_status kvt_core_step_wait_layer(struct kvt_core *core, kvt_step handle, uint32_t group, uint32_t layer,
                                         uint32_t stream)
{
    struct kvt_step_state *step = kvt_core_step_of(core, handle);
    if (!step || group >= core->group_count || layer >= core->groups[group].layers) return KVT_INVAL;
    const uint32_t range = range_of(core, group, layer);
    if ((step->landing_ranges[group] & 1u << range) == 0) return KVT_OK;
    step->waited_ranges[group] |= (uint8_t)(1u << range);
    if (KVT_PLANTED(LAYER_BEFORE_LOAD)) return KVT_OK;
    core->gpu->ops->wait(core->gpu, stream, step->range_marks[group][range]);
    return KVT_OK;
}

/* ---- What a step computed while its blocks were landing ---------------------------------------------------------- */

void kvt_layers_end(struct kvt_core *core, const struct kvt_step_state *step, struct kvt_sequence *sequence)
{
    bool is_waited = true;
    for (uint32_t g = 0; g < core->group_count; g++)
        is_waited = is_waited && (step->landing_ranges[g] & ~step->waited_ranges[g]) == 0;
    if (!is_waited && kvt_sequence_is_suspect(sequence)) sequence->is_unwaited = true;
}

/* True when everything that landed for the sequence's steps is back. What they read may be none of its blocks any more. */
static bool has_landed(const struct kvt_core *core, const struct kvt_sequence *sequence)
{
    for (uint32_t t = core->transfers.oldest; t != KVT_NO_TRANSFER; t = core->transfers.items[t].next) {
        const uint64_t landing = core->transfers.items[t].landing;
        if (landing > sequence->landing_last) return true; /* they began in this order */
        if (landing != 0) return false;
    }
    return true;
}

/* Its blocks can be found from now on. One whose key is known already stays the sequence's own. */
static void publish(struct kvt_core *core, const struct kvt_sequence *sequence)
{
    if (sequence->is_unshared) return;
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        if (core->groups[g].kind == KVT_GROUP_STATE) continue;
        for (uint64_t i = sequence->suspect_from / core->block_tokens; i < sequence->tokens / core->block_tokens; i++) {
            const uint32_t index = table->blocks[i];
            if (index == KVT_NO_BLOCK) continue;
            struct kvt_block *block = kvt_core_block(core, index);
            const bool is_public = kvt_block_has(block, KVT_BLOCK_INDEXED) || !kvt_block_has(block, KVT_BLOCK_SEALED);
            if (is_public || kvt_prefix_find_or_insert(&core->prefix, index) != KVT_NO_BLOCK) continue;
            kvt_block_set(block, KVT_BLOCK_INDEXED, true);
            if (core->has_host) kvt_write_back_push(core, 0, index);
        }
    }
}

enum kvt_ready kvt_layers_settle(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (!kvt_sequence_is_suspect(sequence)) return sequence->lost_from == UINT64_MAX ? KVT_READY : KVT_LOST;
    /* Whether it waits for each layer, and what it still commits, is known at its end. */
    if (sequence->step != NO_STEP) return KVT_NOT_READY;
    if (core->fill_failures != sequence->failures_seen || sequence->is_unwaited) {
        sequence->lost_from = kvt_min_u64(sequence->lost_from, sequence->suspect_from);
        core->counters.lost_blocks++;
        sequence->suspect_from = UINT64_MAX;
        sequence->is_unwaited = false;
        return KVT_LOST;
    }
    if (!has_landed(core, sequence)) return KVT_NOT_READY;
    publish(core, sequence);
    sequence->suspect_from = UINT64_MAX;
    return sequence->lost_from == UINT64_MAX ? KVT_READY : KVT_LOST;
}
