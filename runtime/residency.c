#include "runtime/residency.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/plant.h"

struct kvt_name kvt_block_name(const struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    if (kvt_block_has(block, KVT_BLOCK_NVME_PRIVATE))
        return (struct kvt_name){ core->config.private_space, { index, block->generation } };
    return (struct kvt_name){ core->config.space[block->group], block->key };
}

uint32_t kvt_block_raw_bytes(const struct kvt_core *core, const struct kvt_block *block, uint32_t tokens)
{
    return (uint32_t)kvt_group_block_bytes(&core->groups[block->group], tokens);
}

uint32_t kvt_block_op_tokens(const struct kvt_core *core, const struct kvt_block *block, uint32_t tokens)
{
    return core->groups[block->group].kind == KVT_GROUP_STATE ? 1 : tokens;
}

bool kvt_block_has_copy_besides(const struct kvt_block *block, uint32_t tier)
{
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        if (t != tier && kvt_copy_is_resident(block, t)) return true;
    }
    return false;
}

void kvt_slot_mark(struct kvt_core *core, const struct kvt_block *block, kvt_mark mark)
{
    if (mark == 0 || block->device_slot == KVT_NO_SLOT) return;
    kvt_mark *slot_mark = &core->pools[core->config.pool_of_group[block->group]].slots[block->device_slot].mark;
    const kvt_mark before = *slot_mark;
    const bool is_other_stream = before != 0 && kvt_mark_stream(before) != kvt_mark_stream(mark);
    /* Who lets go last need not be who used it last: a mark never goes back. */
    if (!is_other_stream && mark <= before && !KVT_PLANTED(MARK_GOES_BACK)) return;
    if (is_other_stream && core->gpu && !core->gpu->ops->is_reached(core->gpu, before)) {
        /* Two streams used the slot. Make the newer one wait for the older, so that one mark speaks for both. */
        core->gpu->ops->wait(core->gpu, kvt_mark_stream(mark), before);
        mark = core->gpu->ops->mark(core->gpu, kvt_mark_stream(mark));
    }
    *slot_mark = mark;
}

/* ---- Hints ------------------------------------------------------------------------------------------------------- */

void kvt_block_note(struct kvt_core *core, uint32_t index, const struct kvt_block_hint *hint)
{
    if (core->hints) core->hints[index] = *hint;
}

static uint32_t known_or_not(uint32_t one_more) { return one_more > 0 ? one_more - 1 : KVT_POLICY_UNKNOWN; }

/* Before the policy inserts, touches or releases the block's slot. */
static void tell(const struct kvt_core *core, const struct kvt_policy_ops *ops, struct kvt_policy *policy,
                 const struct kvt_block *block)
{
    if (!ops->hint) return;
    const struct kvt_block_hint *known = &core->hints[block - core->table.blocks];
    const struct kvt_policy_hint hint = {
        .offset = known_or_not(known->offset),
        .length = known_or_not(known->length),
        .found = KVT_POLICY_UNKNOWN, /* of one tier that is not known; its policy sees each touch */
        .turn = known_or_not(known->turn),
        .next = (enum kvt_policy_next)known->next,
        .now_ms = core->now_ns / 1000000 + 1,
    };
    ops->hint(policy, &hint);
}

static void tell_host(struct kvt_core *core, const struct kvt_block *block)
{
    tell(core, core->host.policy_ops, core->host.policy, block);
}

void kvt_host_use(struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    tell_host(core, block);
    core->host.policy_ops->touch(core->host.policy, block->host_slot);
}

void kvt_host_use_over(struct kvt_core *core, uint32_t index)
{
    const bool is_there = core->has_host && kvt_core_block(core, index)->host_slot != KVT_NO_SLOT;
    if (is_there && core->host.policy_ops->hint) kvt_host_use(core, index);
}

/* ---- Idle lists -------------------------------------------------------------------------------------------------- */

static void device_know(struct kvt_core *core, struct kvt_block *block)
{
    struct kvt_pool *pool = kvt_core_pool(core, block);
    if (kvt_block_has(block, KVT_BLOCK_DEVICE_KNOWN)) return;
    tell(core, pool->policy_ops, pool->policy, block);
    pool->policy_ops->insert(pool->policy, block->device_slot, block->key.lo);
    kvt_block_set(block, KVT_BLOCK_DEVICE_KNOWN, true);
}

void kvt_device_prefetch(const struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_pool *pool = &core->pools[core->config.pool_of_group[block->group]];
    if (block->device_slot == KVT_NO_SLOT) return;
    __builtin_prefetch(&pool->slots[block->device_slot], 1);
    if (pool->policy_ops->prefetch) pool->policy_ops->prefetch(pool->policy, block->device_slot);
}

/* The idle copies of a block come to be held by nobody, or somebody holds it again. */
static void count_unheld(struct kvt_core *core, const struct kvt_block *block, bool is_unheld)
{
    const uint32_t change = is_unheld ? 1 : UINT32_MAX; /* or one less */
    if (kvt_block_has(block, KVT_BLOCK_DEVICE_IDLE)) kvt_core_pool(core, block)->unheld += change;
    if (kvt_block_has(block, KVT_BLOCK_HOST_IDLE)) core->host.unheld += change;
}

static void set_device_idle(struct kvt_core *core, struct kvt_block *block, bool is_idle)
{
    if (is_idle == kvt_block_has(block, KVT_BLOCK_DEVICE_IDLE)) return;
    kvt_block_set(block, KVT_BLOCK_DEVICE_IDLE, is_idle);
    if (block->refs == 0) kvt_core_pool(core, block)->unheld += is_idle ? 1 : UINT32_MAX;
}

static void set_host_idle(struct kvt_core *core, struct kvt_block *block, bool is_idle)
{
    if (is_idle == kvt_block_has(block, KVT_BLOCK_HOST_IDLE)) return;
    kvt_block_set(block, KVT_BLOCK_HOST_IDLE, is_idle);
    if (block->refs == 0) core->host.unheld += is_idle ? 1 : UINT32_MAX;
}

void kvt_device_update_idle(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    struct kvt_pool *pool = kvt_core_pool(core, block);
    const bool is_idle = kvt_copy_is_resident(block, KVT_TIER_DEVICE) && block->users == 0
        && !kvt_block_has(block, KVT_BLOCK_DEVICE_LEAVING) && !kvt_block_has(block, KVT_BLOCK_DEVICE_PARKED);
    if (is_idle == kvt_block_has(block, KVT_BLOCK_DEVICE_IDLE)) return;
    if (is_idle) {
        device_know(core, block);
        tell(core, pool->policy_ops, pool->policy, block);
        pool->policy_ops->release(pool->policy, block->device_slot);
        kvt_pool_released(pool, block->device_slot);
    } else {
        pool->policy_ops->hold(pool->policy, block->device_slot);
    }
    set_device_idle(core, block, is_idle);
}

void kvt_host_update_idle(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const bool is_idle = kvt_copy_is_resident(block, KVT_TIER_HOST) && !kvt_block_has(block, KVT_BLOCK_HOST_LEAVING)
        && !kvt_block_has(block, KVT_BLOCK_HOST_PARKED);
    if (is_idle == kvt_block_has(block, KVT_BLOCK_HOST_IDLE)) return;
    if (is_idle) tell_host(core, block);
    if (is_idle) core->host.policy_ops->release(core->host.policy, block->host_slot);
    else core->host.policy_ops->hold(core->host.policy, block->host_slot);
    set_host_idle(core, block, is_idle);
}

/* ---- Copies on the device ---------------------------------------------------------------------------------------- */

bool kvt_device_reserve(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const uint32_t slot = kvt_pool_take(kvt_core_pool(core, block), index);
    if (slot == KVT_NO_SLOT) return false;
    block->device_slot = slot;
    kvt_copy_step(block, KVT_TIER_DEVICE, KVT_COPY_RESERVE);
    return true;
}

/* What every end of a device copy has in common. Returns the slot that it had. */
static uint32_t device_end(struct kvt_core *core, struct kvt_block *block, enum kvt_copy_event event,
                           enum kvt_policy_why why)
{
    struct kvt_pool *pool = kvt_core_pool(core, block);
    const uint32_t slot = block->device_slot;
    if (kvt_block_has(block, KVT_BLOCK_DEVICE_LEAVING)) pool->leaving--;
    if (kvt_block_has(block, KVT_BLOCK_DEVICE_KNOWN)) pool->policy_ops->remove(pool->policy, slot, why);
    kvt_block_set(block, KVT_BLOCK_DEVICE_LEAVING, false);
    set_device_idle(core, block, false);
    kvt_block_set(block, KVT_BLOCK_DEVICE_KNOWN, false);
    kvt_block_set(block, KVT_BLOCK_DEVICE_PARKED, false);
    block->device_slot = KVT_NO_SLOT;
    kvt_copy_step(block, KVT_TIER_DEVICE, event);
    kvt_foresight_left(core, (uint32_t)(block - core->table.blocks), KVT_TIER_DEVICE);
    core->changes++;
    return slot;
}

void kvt_device_drop(struct kvt_core *core, uint32_t index, enum kvt_policy_why why)
{
    struct kvt_block *block = kvt_core_block(core, index);
    struct kvt_pool *pool = kvt_core_pool(core, block);
    if (why == KVT_POLICY_EVICTED) pool->evictions++;
    kvt_pool_give(pool, device_end(core, block, KVT_COPY_EVICT, why));
    core->events++;
}

void kvt_device_failed(struct kvt_core *core, uint32_t index, bool is_quarantined)
{
    struct kvt_block *block = kvt_core_block(core, index);
    struct kvt_pool *pool = kvt_core_pool(core, block);
    const uint32_t slot = device_end(core, block, KVT_COPY_FILL_FAIL, KVT_POLICY_DROPPED);
    if (is_quarantined) pool->quarantined++;
    else kvt_pool_give(pool, slot);
    if (KVT_PLANTED(SLOT_TWICE)) kvt_pool_give(pool, slot);
    core->events++;
}

void kvt_device_filled(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    kvt_copy_step(block, KVT_TIER_DEVICE, KVT_COPY_FILL_OK);
    if (kvt_block_has(block, KVT_BLOCK_SEALED)) device_know(core, block);
    kvt_device_update_idle(core, index);
    core->events++;
}

void kvt_device_leave(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(!kvt_block_has(block, KVT_BLOCK_DEVICE_LEAVING));
    kvt_block_set(block, KVT_BLOCK_DEVICE_LEAVING, true);
    kvt_core_pool(core, block)->leaving++;
    kvt_device_update_idle(core, index);
    if (KVT_PLANTED(REUSE_BEFORE_STASH)) {
        block->readers[KVT_TIER_DEVICE] = 0;
        kvt_device_drop(core, index, KVT_POLICY_EVICTED);
    }
}

/* ---- Copies in host memory --------------------------------------------------------------------------------------- */

bool kvt_host_reserve(struct kvt_core *core, uint32_t index, uint32_t bytes)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const uint32_t slot = kvt_host_pool_take(&core->host, bytes, index);
    if (slot == KVT_NO_SLOT) return false;
    block->host_slot = slot;
    kvt_copy_step(block, KVT_TIER_HOST, KVT_COPY_RESERVE);
    tell_host(core, block);
    core->host.policy_ops->insert(core->host.policy, slot, block->key.lo);
    return true;
}

static uint32_t host_end(struct kvt_core *core, struct kvt_block *block, enum kvt_copy_event event,
                         enum kvt_policy_why why)
{
    const uint32_t slot = block->host_slot;
    if (event == KVT_COPY_EVICT)
        core->host.raw_equivalent_bytes -= kvt_block_raw_bytes(core, block, block->lower_tokens);
    if (kvt_block_has(block, KVT_BLOCK_HOST_LEAVING)) core->host.leaving--;
    core->host.policy_ops->remove(core->host.policy, slot, why);
    kvt_block_set(block, KVT_BLOCK_HOST_LEAVING, false);
    set_host_idle(core, block, false);
    kvt_block_set(block, KVT_BLOCK_HOST_PARKED, false);
    block->host_slot = KVT_NO_SLOT;
    kvt_copy_step(block, KVT_TIER_HOST, event);
    kvt_foresight_left(core, (uint32_t)(block - core->table.blocks), KVT_TIER_HOST);
    core->changes++;
    return slot;
}

void kvt_host_drop(struct kvt_core *core, uint32_t index, enum kvt_policy_why why)
{
    if (why == KVT_POLICY_EVICTED) core->host.evictions++;
    kvt_host_pool_give(&core->host, host_end(core, kvt_core_block(core, index), KVT_COPY_EVICT, why));
}

void kvt_host_failed(struct kvt_core *core, uint32_t index, bool is_quarantined)
{
    const uint32_t slot = host_end(core, kvt_core_block(core, index), KVT_COPY_FILL_FAIL, KVT_POLICY_DROPPED);
    if (is_quarantined) core->host.quarantined++;
    else kvt_host_pool_give(&core->host, slot);
}

void kvt_host_filled(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    kvt_copy_step(block, KVT_TIER_HOST, KVT_COPY_FILL_OK);
    core->host.raw_equivalent_bytes += kvt_block_raw_bytes(core, block, block->lower_tokens);
    kvt_host_update_idle(core, index);
}

void kvt_host_leave(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(!kvt_block_has(block, KVT_BLOCK_HOST_LEAVING));
    kvt_block_set(block, KVT_BLOCK_HOST_LEAVING, true);
    core->host.leaving++;
    kvt_host_update_idle(core, index);
}

/* A leaving copy that nobody reads goes when invariant 3 lets it, and otherwise stays. */
static void leave_now(struct kvt_core *core, uint32_t index, uint32_t tier, bool has_failed)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const bool is_device = tier == KVT_TIER_DEVICE;
    const bool is_worth_less = has_failed || !kvt_block_has(block, KVT_BLOCK_INDEXED);
    const bool is_dropped = block->refs == 0 && is_worth_less && !kvt_block_has_copy_besides(block, tier);
    const bool may_go = is_dropped || kvt_block_has_copy_besides(block, tier);
    if (is_dropped && kvt_block_has(block, KVT_BLOCK_INDEXED)) core->counters.dropped_blocks++;
    if (may_go && !(is_device && block->users > 0)) {
        if (is_device) kvt_device_drop(core, index, KVT_POLICY_EVICTED);
        else kvt_host_drop(core, index, KVT_POLICY_EVICTED);
        return;
    }
    kvt_block_set(block, is_device ? KVT_BLOCK_DEVICE_LEAVING : KVT_BLOCK_HOST_LEAVING, false);
    if (is_device) {
        kvt_core_pool(core, block)->leaving--;
        kvt_device_update_idle(core, index);
    } else {
        core->host.leaving--;
        kvt_host_update_idle(core, index);
    }
}

void kvt_copy_reader_gone(struct kvt_core *core, uint32_t index, uint32_t tier, bool has_failed)
{
    struct kvt_block *block = kvt_core_block(core, index);
    if (KVT_PLANTED(REUSE_BEFORE_STASH) && block->readers[tier] == 0) return;
    KVT_ASSERT(block->readers[tier] > 0);
    block->readers[tier]--;
    if (block->readers[tier] > 0) return;
    if (tier == KVT_TIER_DEVICE) core->events++; /* the engine may write the slot again */
    if (tier == KVT_TIER_DEVICE && kvt_block_has(block, KVT_BLOCK_DEVICE_LEAVING))
        leave_now(core, index, tier, has_failed);
    if (tier == KVT_TIER_HOST && kvt_block_has(block, KVT_BLOCK_HOST_LEAVING)) leave_now(core, index, tier, has_failed);
}

/* ---- Parking ----------------------------------------------------------------------------------------------------- */

static void unpark(struct kvt_core *core, struct kvt_parked *parked, bool is_device)
{
    const enum kvt_block_flag flag = is_device ? KVT_BLOCK_DEVICE_PARKED : KVT_BLOCK_HOST_PARKED;
    while (parked->count > 0) {
        const uint32_t index = parked->blocks[--parked->count];
        struct kvt_block *block = kvt_core_block(core, index);
        if (!kvt_block_has(block, flag)) continue; /* it went, or was claimed */
        kvt_block_set(block, flag, false);
        if (is_device) kvt_device_update_idle(core, index);
        else kvt_host_update_idle(core, index);
    }
}

void kvt_unpark_changed(struct kvt_core *core, struct kvt_parked *parked, bool is_device)
{
    if (parked->count > 0 && parked->changes != core->changes) unpark(core, parked, is_device);
}

void kvt_park(struct kvt_core *core, uint32_t index, bool is_device)
{
    struct kvt_block *block = kvt_core_block(core, index);
    struct kvt_parked *parked = is_device ? &kvt_core_pool(core, block)->parked : &core->host.parked;
    if (parked->count == parked->capacity) unpark(core, parked, is_device);
    if (parked->count == 0) parked->changes = core->changes;
    parked->blocks[parked->count++] = index;
    kvt_block_set(block, is_device ? KVT_BLOCK_DEVICE_PARKED : KVT_BLOCK_HOST_PARKED, true);
    if (is_device) kvt_device_update_idle(core, index);
    else kvt_host_update_idle(core, index);
}

/* ---- Records on nvme --------------------------------------------------------------------------------------------- */

static void nvme_hold(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_name name = kvt_block_name(core, index);
    struct kvt_found found;
    if (core->nvme->ops->hold(core->nvme, &name, &found)) {
        kvt_block_set(block, KVT_BLOCK_NVME_HELD, true);
        return;
    }
    /* A read that began before the record left may still bring it: kvt_nvme_read_over() asks again. */
    if (block->readers[KVT_TIER_NVME] == 0) kvt_nvme_drop(core, index, false);
}

void kvt_nvme_read_over(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(block->readers[KVT_TIER_NVME] > 0);
    block->readers[KVT_TIER_NVME]--;
    const bool is_unheld = block->refs > 0 && !kvt_block_has(block, KVT_BLOCK_NVME_HELD);
    if (block->readers[KVT_TIER_NVME] == 0 && is_unheld && kvt_copy_is_resident(block, KVT_TIER_NVME))
        nvme_hold(core, index);
}

bool kvt_nvme_filled(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    kvt_copy_step(block, KVT_TIER_NVME, KVT_COPY_FILL_OK);
    core->nvme_blocks++;
    core->nvme_blocks_peak = kvt_max_u64(core->nvme_blocks_peak, core->nvme_blocks);
    if (block->refs > 0) nvme_hold(core, index);
    return kvt_copy_is_resident(block, KVT_TIER_NVME);
}

void kvt_nvme_drop(struct kvt_core *core, uint32_t index, bool is_forgotten)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_name name = kvt_block_name(core, index);
    if (kvt_block_has(block, KVT_BLOCK_NVME_HELD)) core->nvme->ops->release(core->nvme, &name);
    if (is_forgotten) core->nvme->ops->forget(core->nvme, &name);
    kvt_block_set(block, KVT_BLOCK_NVME_HELD, false);
    kvt_block_set(block, KVT_BLOCK_NVME_PRIVATE, false);
    kvt_copy_step(block, KVT_TIER_NVME, KVT_COPY_EVICT);
    core->nvme_blocks--;
}

/* ---- Holds and claims -------------------------------------------------------------------------------------------- */

void kvt_block_ref(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    if (block->refs == 0) count_unheld(core, block, false);
    kvt_block_set(block, KVT_BLOCK_REFUSED, false);
    block->refs++;
    KVT_ASSERT(block->refs != 0);
    kvt_foresight_rehold(&core->foresight, index);
    if (block->refs == 1 && kvt_copy_is_resident(block, KVT_TIER_NVME)) nvme_hold(core, index);
}

void kvt_block_unref(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(block->refs > 0);
    block->refs--;
    kvt_foresight_rehold(&core->foresight, index);
    if (block->refs > 0) return;
    core->changes++;
    count_unheld(core, block, true);
    if (kvt_block_has(block, KVT_BLOCK_NVME_HELD)) {
        const struct kvt_name name = kvt_block_name(core, index);
        core->nvme->ops->release(core->nvme, &name);
        core->nvme_refusals = 0; /* it may take another one now */
        kvt_block_set(block, KVT_BLOCK_NVME_HELD, false);
    }
    if (kvt_block_has(block, KVT_BLOCK_UNKEPT) && kvt_block_has(block, KVT_BLOCK_INDEXED))
        kvt_block_unindex(core, index);
    else kvt_block_settle(core, index);
}

void kvt_block_unindex(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    kvt_prefix_remove(&core->prefix, index);
    kvt_block_set(block, KVT_BLOCK_INDEXED, false);
    kvt_block_settle(core, index);
}

static void drop_what_may_go(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    if (kvt_copy_is_resident(block, KVT_TIER_DEVICE) && block->readers[KVT_TIER_DEVICE] == 0)
        kvt_device_drop(core, index, KVT_POLICY_DROPPED);
    if (kvt_copy_is_resident(block, KVT_TIER_HOST) && block->readers[KVT_TIER_HOST] == 0)
        kvt_host_drop(core, index, KVT_POLICY_DROPPED);
    if (kvt_copy_is_resident(block, KVT_TIER_NVME) && block->readers[KVT_TIER_NVME] == 0)
        kvt_nvme_drop(core, index, true);
}

void kvt_block_settle(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    if (block->refs > 0 || block->users > 0) return;
    if (!kvt_block_has(block, KVT_BLOCK_INDEXED)) drop_what_may_go(core, index);

    const bool is_in_memory = kvt_copy_state(block, KVT_TIER_DEVICE) != KVT_COPY_EMPTY
        || kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY
        || kvt_copy_state(block, KVT_TIER_NVME) == KVT_COPY_FILLING || block->readers[KVT_TIER_NVME] > 0;
    if (is_in_memory) return;
    /* What only the store knows needs no entry here: the next lookup asks the store. */
    if (kvt_copy_is_resident(block, KVT_TIER_NVME)) kvt_nvme_drop(core, index, false);
    if (kvt_block_has(block, KVT_BLOCK_INDEXED)) {
        kvt_prefix_remove(&core->prefix, index);
        kvt_block_set(block, KVT_BLOCK_INDEXED, false);
    }
    const uint32_t origin = block->origin;
    block->origin = KVT_NO_BLOCK;
    kvt_block_note(core, index, &(struct kvt_block_hint){ 0 });
    kvt_block_table_give(&core->table, index);
    if (origin != KVT_NO_BLOCK) kvt_block_unref(core, origin);
}

void kvt_block_claim(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    struct kvt_pool *pool = kvt_core_pool(core, block);
    block->users++;
    kvt_foresight_claimed(core, index);
    if (block->users == 1) {
        pool->claimed++;
        if (kvt_block_has(block, KVT_BLOCK_DEVICE_LEAVING)) {
            kvt_block_set(block, KVT_BLOCK_DEVICE_LEAVING, false);
            pool->leaving--;
        }
        kvt_block_set(block, KVT_BLOCK_DEVICE_PARKED, false);
        kvt_device_update_idle(core, index);
    }
    /* The claim is the use; holding and releasing alone are none. */
    if (!kvt_block_has(block, KVT_BLOCK_DEVICE_KNOWN)) return;
    tell(core, pool->policy_ops, pool->policy, block);
    pool->policy_ops->touch(pool->policy, block->device_slot);
}

void kvt_block_unclaim(struct kvt_core *core, uint32_t index, kvt_mark mark)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(block->users > 0);
    block->users--;
    kvt_slot_mark(core, block, mark);
    if (block->users > 0) return;
    kvt_core_pool(core, block)->claimed--;
    kvt_device_update_idle(core, index);
    kvt_block_settle(core, index);
}

uint32_t kvt_block_fresh(struct kvt_core *core, uint32_t group)
{
    if (core->pools[core->config.pool_of_group[group]].free_count == 0) return KVT_NO_BLOCK;
    const uint32_t index = kvt_block_table_take(&core->table, group);
    if (index == KVT_NO_BLOCK) return KVT_NO_BLOCK;
    struct kvt_block *block = kvt_core_block(core, index);
    block->refs = 1;
    block->users = 1;
    kvt_foresight_claimed(core, index);
    kvt_core_pool(core, block)->claimed++;
    const bool is_reserved = kvt_device_reserve(core, index);
    KVT_ASSERT(is_reserved);
    kvt_copy_step(block, KVT_TIER_DEVICE, KVT_COPY_FILL_OK);
    return index;
}

void kvt_write_back_push(struct kvt_core *core, uint32_t queue, uint32_t index)
{
    struct kvt_write_back *ring = &core->write_back[queue];
    struct kvt_block *block = kvt_core_block(core, index);
    if (ring->count == ring->capacity) return; /* evicting will stash it when the time comes */
    ring->entries[(ring->head + ring->count) & (ring->capacity - 1)] = (struct kvt_write_back_entry){
        .block = index, .generation = block->generation
    };
    ring->count++;
}
