#include "runtime/planner.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/plant.h"
#include "runtime/core.h"
#include "runtime/flow.h"
#include "runtime/foresight.h"
#include "runtime/layers.h"
#include "runtime/residency.h"

#define BATCH 32             /* fetches, write-backs, host victims in one round */
#define VICTIMS 256          /* device victims in one round: most are only forgotten */
#define SEARCHED_MAX 2048    /* copies in a row that could not leave, after which none is thought to */
#define STRANGERS_MAX 8      /* host victims of the wrong slot class before a chunk is emptied */
#define LINK_DEPTH_DEMAND 48 /* transfers in flight per executing tier, by what asks for more */
#define LINK_DEPTH_PREFETCH 16
#define LINK_DEPTH_WRITE_BACK 4
#define EXPECTED_LOOK_AHEAD 64
#define REFUSALS_MAX 8                    /* stashes in a row that the store refuses: it has no room to give */
#define START_MARGIN_NS (2u * 1000u * 1000u)

/* ---- Room in host memory ----------------------------------------------------------------------------------------- */

static bool is_admitted(struct kvt_core *core, struct kvt_block *block)
{
    if (!core->has_nvme) return false;
    struct kvt_tier_counters nvme = { 0 };
    if (core->config.nvme_bytes_per_day > 0) core->nvme->ops->counters(core->nvme, &nvme);
    /* The rule for every policy: when the day's writes are used up, only what a live sequence would lose is written. */
    if (core->config.nvme_bytes_per_day > 0 && block->refs == 0
        && nvme.day_bytes + block->host_length > core->config.nvme_bytes_per_day)
        return false;
    const struct kvt_admission_question question = { .key_hash = kvt_block_key_hash(block),
                                                     .bytes = block->host_length,
                                                     .uses = 1u + block->uses,
                                                     .is_referenced = block->refs > 0,
                                                     .is_asked_again = kvt_block_has(block, KVT_BLOCK_REFUSED),
                                                     .day_bytes = nvme.day_bytes,
                                                     .day_bytes_max = core->config.nvme_bytes_per_day };
    const bool admits = core->config.admission->admits(core->admission, &question);
    kvt_block_set(block, KVT_BLOCK_REFUSED, !admits);
    return admits;
}

enum victim { VICTIM_GONE, VICTIM_LEAVING, VICTIM_STAYS };

/* Sends one host copy away: at once when it may go, otherwise through nvme. */
static enum victim evict_host_copy(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const bool is_read = block->readers[KVT_TIER_HOST] > 0;
    if (!is_read && kvt_block_has_copy_besides(block, KVT_TIER_HOST)) {
        kvt_host_drop(core, index, KVT_POLICY_EVICTED);
        kvt_block_settle(core, index);
        return VICTIM_GONE;
    }
    const bool is_stored = kvt_copy_state(block, KVT_TIER_NVME) != KVT_COPY_EMPTY;
    if (!is_stored && is_admitted(core, block)) {
        const enum kvt_flow flow = kvt_flow_stash_to_nvme(core, index, KVT_PRIORITY_DEMAND);
        if (flow != KVT_FLOW_STARTED && flow != KVT_FLOW_THERE && block->refs > 0) return VICTIM_STAYS;
        if (flow == KVT_FLOW_STARTED || flow == KVT_FLOW_THERE) {
            kvt_host_leave(core, index);
            return VICTIM_LEAVING;
        }
    } else if (is_read || is_stored) {
        kvt_host_leave(core, index); /* goes when its readers are done */
        return VICTIM_LEAVING;
    }
    if (block->refs > 0) return VICTIM_STAYS;
    core->counters.dropped_blocks++;
    if (is_read) { /* nvme refuses for now, and a fetch of it is under way */
        kvt_host_leave(core, index);
        return VICTIM_LEAVING;
    }
    kvt_host_drop(core, index, KVT_POLICY_EVICTED);
    kvt_block_settle(core, index);
    return VICTIM_GONE;
}

/* Empties the victim's whole chunk, so that another class can have it. */
static void evict_chunk_of(struct kvt_core *core, uint32_t slot)
{
    const uint32_t chunk = slot / core->host.slots_per_chunk_max;
    const uint32_t class_index = core->host.chunks[chunk].class_index;
    if (class_index == UINT32_MAX) return; /* the victim was its last block */
    uint32_t first, count;
    kvt_host_pool_chunk_of(&core->host, slot, &first, &count);
    for (uint32_t i = 0; i < count && core->host.chunks[chunk].class_index == class_index; i++) {
        const uint32_t index = kvt_host_pool_owner(&core->host, first + i);
        if (index == KVT_NO_BLOCK) continue;
        const struct kvt_block *block = kvt_core_block(core, index);
        if (block->host_slot != first + i || !kvt_block_has(block, KVT_BLOCK_HOST_IDLE)) continue;
        (void)evict_host_copy(core, index);
    }
}

/*
 * No idle copy can leave before something changes: all were tried, or so many that the rest is given up on. Not while
 * nobody holds some of the rest: those can always leave.
 */
static bool is_searched(const struct kvt_policy_ops *ops, struct kvt_policy *policy, const struct kvt_parked *parked,
                        uint32_t unheld)
{
    return (parked->count >= SEARCHED_MAX && unheld == 0) || ops->victim(policy) == KVT_POLICY_NONE;
}

static bool is_pool_searched(const struct kvt_pool *pool)
{
    return is_searched(pool->policy_ops, pool->policy, &pool->parked, pool->unheld);
}

static bool is_host_searched(const struct kvt_host_pool *host)
{
    return is_searched(host->policy_ops, host->policy, &host->parked, host->unheld);
}

/*
 * Makes room for a slot of so many bytes. True when it is there now. Victims of other classes do not help at once;
 * after a few of them the last one's chunk is emptied as a whole, so that it changes its class.
 */
static bool make_host_room(struct kvt_core *core, uint32_t bytes)
{
    struct kvt_host_pool *host = &core->host;
    uint32_t strangers = 0;
    kvt_unpark_changed(core, &host->parked, false);
    for (uint32_t i = 0; i < BATCH && !kvt_host_pool_has_room(host, bytes); i++) {
        /* What is leaving already may be enough; more would only shrink the cache. */
        if (host->leaving >= BATCH) return false;
        if (is_host_searched(host)) return false;
        const uint32_t slot = host->policy_ops->victim(host->policy);
        const bool is_fitting = kvt_host_pool_is_fitting(host, slot, bytes);
        const enum victim victim = evict_host_copy(core, kvt_host_pool_owner(host, slot));
        if (victim == VICTIM_STAYS) {
            kvt_park(core, kvt_host_pool_owner(host, slot), false); /* look at others */
        } else if (!is_fitting && ++strangers == STRANGERS_MAX) {
            evict_chunk_of(core, slot);
            strangers = 0;
        }
    }
    const bool has_room = kvt_host_pool_has_room(host, bytes);
    core->is_search_cut = core->is_search_cut || !has_room;
    return has_room;
}

/* ---- Room on the device ------------------------------------------------------------------------------------------ */

static enum victim evict_device_copy(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    const bool is_read = block->readers[KVT_TIER_DEVICE] > 0;
    const bool is_worthless = block->refs == 0 && !kvt_block_has(block, KVT_BLOCK_INDEXED);
    if (!is_read && (kvt_block_has_copy_besides(block, KVT_TIER_DEVICE) || is_worthless)) {
        kvt_device_drop(core, index, KVT_POLICY_EVICTED);
        kvt_block_settle(core, index);
        return VICTIM_GONE;
    }
    if (is_read || kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY) {
        kvt_device_leave(core, index); /* a write-back of it is under way */
        return VICTIM_LEAVING;
    }
    if (core->has_host) {
        enum kvt_flow flow = kvt_flow_stash_to_host(core, index, KVT_PRIORITY_DEMAND);
        if (flow == KVT_FLOW_NO_HOST_SLOT) {
            const bool is_packed = core->config.is_packing && !kvt_block_has(block, KVT_BLOCK_RAW_ONLY);
            const uint32_t raw = kvt_block_raw_bytes(core, block, block->tokens);
            if (make_host_room(core, kvt_host_pool_wanted_bytes(&core->host, block->group, raw, is_packed)))
                flow = kvt_flow_stash_to_host(core, index, KVT_PRIORITY_DEMAND);
        }
        if (flow == KVT_FLOW_STARTED) {
            kvt_device_leave(core, index);
            return VICTIM_LEAVING;
        }
        const bool is_host_moving = core->host.leaving > 0 || core->transfers.in_flight > 0
            || kvt_host_pool_is_growing(&core->host);
        /* What a failing device does not give is lost to the cache, and no reason to keep a slot that others need. */
        const bool is_failing = core->device_retry_ns != 0;
        if (!is_failing && (flow == KVT_FLOW_BUSY || is_host_moving)) return VICTIM_STAYS;
    }
    if (block->refs > 0) return VICTIM_STAYS;
    core->counters.dropped_blocks++;
    kvt_device_drop(core, index, KVT_POLICY_EVICTED);
    kvt_block_settle(core, index);
    return VICTIM_GONE;
}

/*
 * An eviction reads lines that nobody touched for a long time, found one through the other: the slot, its block, the
 * block's place in the index. While one slot is evicted, each of the three is asked for on behalf of a later one (see
 * kvt_pool_released).
 */
static void prefetch_victims(const struct kvt_core *core, const struct kvt_pool *pool, uint32_t slot)
{
    const struct kvt_pool_slot *first = &pool->slots[pool->slots[slot].later];
    const struct kvt_pool_slot *second = &pool->slots[first->later];
    __builtin_prefetch(&pool->slots[second->later], 1);
    if (pool->policy_ops->prefetch) pool->policy_ops->prefetch(pool->policy, first->later);
    if (second->owner != KVT_NO_BLOCK) __builtin_prefetch(kvt_core_block(core, second->owner), 1);
    if (first->owner == KVT_NO_BLOCK) return;
    const struct kvt_block *block = kvt_core_block(core, first->owner);
    kvt_prefix_prefetch(&core->prefix, block->group, block->key);
}

static bool make_pool_room(struct kvt_core *core, struct kvt_pool *pool)
{
    if (pool->free_count >= pool->wanted) pool->wanted = 0; /* whoever still wants it asks again */
    const uint32_t wanted = kvt_max_u32(pool->wanted, pool->low);
    if (pool->free_count + pool->leaving >= wanted) return false;
    const uint32_t target = kvt_max_u32(pool->wanted, pool->high);
    kvt_unpark_changed(core, &pool->parked, true);
    bool is_moved = false;
    uint32_t i = 0;
    for (; i < VICTIMS && pool->free_count + pool->leaving < target; i++) {
        if (is_pool_searched(pool)) break;
        const uint32_t slot = pool->policy_ops->victim(pool->policy);
        prefetch_victims(core, pool, slot);
        if (evict_device_copy(core, pool->slots[slot].owner) == VICTIM_STAYS) {
            kvt_park(core, pool->slots[slot].owner, true);
            continue;
        }
        is_moved = true;
    }
    core->is_search_cut = core->is_search_cut || i == VICTIMS;
    return is_moved;
}

bool kvt_planner_make_room(struct kvt_core *core)
{
    bool is_moved = false;
    for (uint32_t p = 0; p < core->config.pool_count; p++) is_moved = make_pool_room(core, &core->pools[p]) || is_moved;
    return is_moved;
}

/* Nothing is under way that could make room by itself. A store that has refused many times in a row is no hope. */
static bool is_at_rest(const struct kvt_core *core)
{
    if (core->transfers.in_flight > 0) return false;
    if (kvt_host_pool_is_growing(&core->host)) return false;
    return core->nvme_retry_ns == 0 || core->nvme_refusals >= REFUSALS_MAX;
}

bool kvt_planner_can_make_room(const struct kvt_core *core)
{
    if (!is_at_rest(core)) return true;
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        const struct kvt_pool *pool = &core->pools[p];
        /* All are claimed, or parked: nothing moves by itself any more. */
        if (pool->wanted > pool->free_count && is_pool_searched(pool)) return false;
    }
    return true;
}

/* ---- Fetches ----------------------------------------------------------------------------------------------------- */

bool kvt_planner_block_at(const struct kvt_core *core, const struct kvt_sequence *sequence,
                          struct kvt_sequence_cursor *cursor, uint32_t *ret_block)
{
    while (cursor->group < core->group_count) {
        const struct kvt_sequence_table *table = &sequence->groups[cursor->group];
        const bool is_state = core->groups[cursor->group].kind == KVT_GROUP_STATE;
        const uint32_t count = is_state ? 1 : table->count;
        if (cursor->index < table->claimed_from) cursor->index = table->claimed_from;
        if (cursor->index < count) {
            *ret_block = is_state ? table->live : table->blocks[cursor->index];
            return true;
        }
        *cursor = (struct kvt_sequence_cursor){ .group = cursor->group + 1, .index = 0 };
    }
    return false;
}

static bool block_at_cursor(const struct kvt_core *core, struct kvt_sequence *sequence, uint32_t *ret_block)
{
    return kvt_planner_block_at(core, sequence, &sequence->fetch, ret_block);
}

enum advance { ADVANCE_DONE, ADVANCE_BLOCKED, ADVANCE_BATCH };

/*
 * An active sequence waits for room, every tier is full of what idle ones hold, and nothing moves any more: neither
 * would ever go on. One block of an idle sequence is given up; that one is told when it comes back.
 */
static void give_one_up(struct kvt_core *core, const struct kvt_parked *parked, bool is_device)
{
    const enum kvt_block_flag flag = is_device ? KVT_BLOCK_DEVICE_PARKED : KVT_BLOCK_HOST_PARKED;
    const uint32_t tier = is_device ? KVT_TIER_DEVICE : KVT_TIER_HOST;
    if (!is_at_rest(core) || KVT_PLANTED(NO_GIVE_UP)) return;
    for (uint32_t i = 0; i < parked->count; i++) {
        const uint32_t index = parked->blocks[i];
        const struct kvt_block *block = kvt_core_block(core, index);
        if (!kvt_block_has(block, flag) || block->users > 0 || block->readers[tier] > 0) continue;
        core->counters.given_up_blocks++;
        if (is_device) kvt_device_drop(core, index, KVT_POLICY_EVICTED);
        else kvt_host_drop(core, index, KVT_POLICY_EVICTED);
        kvt_block_settle(core, index);
        return;
    }
}

/* Frees one device slot for a fetch that found none. */
static void ask_for_slot(struct kvt_core *core, const struct kvt_block *block, enum kvt_op_priority priority)
{
    struct kvt_pool *pool = kvt_core_pool(core, block);
    pool->wanted = kvt_max_u32(pool->wanted, pool->free_count + 1);
    kvt_unpark_changed(core, &pool->parked, true); /* nobody may have wanted room since the last search */
    if (priority == KVT_PRIORITY_DEMAND && is_pool_searched(pool)) give_one_up(core, &pool->parked, true);
}

/*
 * Host memory is full, and the block at the cursor comes from nvme: later ones of the same sequence that are in host
 * memory go up first, and leave room there.
 */
static bool fetch_from_host_ahead(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t *budget)
{
    const struct kvt_sequence_cursor before = sequence->fetch;
    const uint32_t budget_before = *budget;
    uint32_t index;
    for (uint32_t seen = 0; seen<BATCH && * budget> 0 && block_at_cursor(core, sequence, &index);
         seen++, sequence->fetch.index++) {
        if (index == KVT_NO_BLOCK || !kvt_copy_is_resident(kvt_core_block(core, index), KVT_TIER_HOST)) continue;
        if (kvt_flow_fetch(core, index, KVT_PRIORITY_DEMAND) == KVT_FLOW_STARTED) (*budget)--;
    }
    sequence->fetch = before;
    return *budget < budget_before;
}

static void give_host_copy_up(struct kvt_core *core)
{
    if (is_host_searched(&core->host)) give_one_up(core, &core->host.parked, false);
}

bool kvt_planner_make_host_room(struct kvt_core *core, uint32_t bytes)
{
    if (make_host_room(core, bytes)) return true;
    give_host_copy_up(core);
    return false;
}

static void ask_for_host_slot(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t *budget)
{
    if (!fetch_from_host_ahead(core, sequence, budget)) give_host_copy_up(core);
}

/*
 * A warming sequence claims block after block, as long as that takes no slot from active ones, or from a waiting
 * append.
 */
static bool claim_for_warming(struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_pool *pool = kvt_core_pool(core, block);
    const uint32_t promised = kvt_pool_promised(pool, core->now_ns);
    if (block->users == 0 && pool->claimed + kvt_max_u32(pool->high, promised) >= pool->slot_count) return false;
    if (kvt_copy_state(block, KVT_TIER_DEVICE) == KVT_COPY_EMPTY && promised > 0 && pool->free_count <= promised)
        return false;
    kvt_block_claim(core, index);
    return true;
}

static void unclaim_for_warming(struct kvt_core *core, uint32_t index) { kvt_block_unclaim(core, index, 0); }

static enum advance advance_fetch(struct kvt_core *core, struct kvt_sequence *sequence, enum kvt_op_priority priority,
                                  uint32_t *budget)
{
    const bool is_warming = sequence->mode == KVT_SEQUENCE_WARMING;
    uint32_t index;
    while (block_at_cursor(core, sequence, &index)) {
        if (*budget == 0) return ADVANCE_BATCH;
        if (index == KVT_NO_BLOCK) {
            sequence->fetch.index++;
            continue;
        }
        if (!is_warming && kvt_layers_are_left(core, sequence, index)) {
            sequence->fetch.index++;
            continue;
        }
        if (is_warming && !claim_for_warming(core, index)) return ADVANCE_BLOCKED;
        enum kvt_flow flow = kvt_flow_fetch(core, index, priority);
        if (flow == KVT_FLOW_NO_HOST_SLOT && make_host_room(core, kvt_flow_fetch_bytes(core, index)))
            flow = kvt_flow_fetch(core, index, priority);
        if (flow == KVT_FLOW_NO_DEVICE_SLOT) ask_for_slot(core, kvt_core_block(core, index), priority);
        if (flow == KVT_FLOW_NO_HOST_SLOT && priority == KVT_PRIORITY_DEMAND) ask_for_host_slot(core, sequence, budget);
        const bool is_passed = flow == KVT_FLOW_STARTED || flow == KVT_FLOW_THERE || flow == KVT_FLOW_LOST;
        if (!is_passed) {
            if (is_warming) unclaim_for_warming(core, index);
            return ADVANCE_BLOCKED;
        }
        if (flow == KVT_FLOW_STARTED) (*budget)--;
        sequence->fetch.index++;
        /* Read the cursor's block again: blocks before it may have moved on, entries are unchanged. */
    }
    return ADVANCE_DONE;
}

static bool start_demand(struct kvt_core *core)
{
    uint32_t budget = BATCH;
    uint32_t next;
    for (uint32_t s = core->demand.head; s != KVT_NO_SEQUENCE && budget > 0; s = next) {
        struct kvt_sequence *sequence = &core->sequences[s];
        next = sequence->next;
        if (core->transfers.tier_in_flight[KVT_TIER_DEVICE] >= LINK_DEPTH_DEMAND) break;
        if (core->transfers.tier_in_flight[KVT_TIER_NVME] >= LINK_DEPTH_DEMAND) break;
        if (advance_fetch(core, sequence, KVT_PRIORITY_DEMAND, &budget) == ADVANCE_DONE)
            kvt_sequence_list_remove(core, sequence);
    }
    return budget < BATCH;
}

uint64_t kvt_planner_fetch_ns(const struct kvt_core *core, const struct kvt_sequence *sequence)
{
    double bytes = 0;
    for (uint32_t g = 0; g < core->group_count; g++)
        bytes += (double)kvt_group_bytes_kept(&core->groups[g], sequence->tokens);
    const double slowest = core->link_ns_per_byte[KVT_TIER_NVME] > core->link_ns_per_byte[KVT_TIER_DEVICE]
        ? core->link_ns_per_byte[KVT_TIER_NVME]
        : core->link_ns_per_byte[KVT_TIER_DEVICE];
    /* The two links work at the same time; a quarter more for what is ahead in their queues. */
    return (uint64_t)(bytes * slowest * 1.25) + START_MARGIN_NS;
}

uint64_t kvt_planner_next_start_ns(const struct kvt_core *core)
{
    uint64_t next = UINT64_MAX;
    uint64_t ahead_ns = 0;
    uint32_t seen = 0;
    for (uint32_t s = core->expected.head; s != KVT_NO_SEQUENCE && seen < EXPECTED_LOOK_AHEAD;
         s = core->sequences[s].next, seen++) {
        const struct kvt_sequence *sequence = &core->sequences[s];
        ahead_ns += kvt_planner_fetch_ns(core, sequence);
        if (sequence->mode == KVT_SEQUENCE_WARMING) continue;
        const uint64_t lead_ns = ahead_ns + core->step_ns;
        next = kvt_min_u64(next, sequence->need_ns > lead_ns ? sequence->need_ns - lead_ns : 0);
    }
    return next;
}

/* Expected sequences start in the order of their need, each early enough for itself and all before it. */
static void begin_warming(struct kvt_core *core)
{
    uint64_t ahead_ns = 0;
    uint32_t seen = 0;
    uint32_t due = KVT_NO_SEQUENCE;
    for (uint32_t s = core->expected.head; s != KVT_NO_SEQUENCE && seen < EXPECTED_LOOK_AHEAD;
         s = core->sequences[s].next, seen++) {
        ahead_ns += kvt_planner_fetch_ns(core, &core->sequences[s]);
        if (core->now_ns + ahead_ns + core->step_ns >= core->sequences[s].need_ns) due = s;
    }
    if (due == KVT_NO_SEQUENCE) return;
    /* All up to the last one that is due, so that none evicts what is needed sooner. */
    for (uint32_t s = core->expected.head;; s = core->sequences[s].next) {
        struct kvt_sequence *sequence = &core->sequences[s];
        if (sequence->mode == KVT_SEQUENCE_IDLE) {
            sequence->mode = KVT_SEQUENCE_WARMING;
            sequence->fetch = (struct kvt_sequence_cursor){ 0, 0 };
        }
        if (s == due) return;
    }
}

/* *is_busy: what is expected waits for links, or for room. */
static bool start_prefetch(struct kvt_core *core, bool *is_busy)
{
    if (!kvt_core_looks_ahead(core) || core->expected.head == KVT_NO_SEQUENCE) return false;
    begin_warming(core);
    uint32_t budget = BATCH;
    uint32_t seen = 0;
    for (uint32_t s = core->expected.head; s != KVT_NO_SEQUENCE && budget > 0 && seen < EXPECTED_LOOK_AHEAD;
         s = core->sequences[s].next, seen++) {
        struct kvt_sequence *sequence = &core->sequences[s];
        if (sequence->mode != KVT_SEQUENCE_WARMING) continue;
        *is_busy = true; /* until all of it was started */
        if (core->transfers.prefetch_bytes >= core->config.prefetch_bytes_max) break;
        if (core->transfers.tier_in_flight[KVT_TIER_DEVICE] >= LINK_DEPTH_PREFETCH) break;
        if (core->transfers.tier_in_flight[KVT_TIER_NVME] >= LINK_DEPTH_PREFETCH) break;
        uint32_t room = kvt_min_u32(budget, LINK_DEPTH_PREFETCH - core->transfers.tier_in_flight[KVT_TIER_DEVICE]);
        const uint32_t room_before = room;
        const enum advance advance = advance_fetch(core, sequence, KVT_PRIORITY_PREFETCH, &room);
        budget -= room_before - room;
        if (advance == ADVANCE_BLOCKED) break;
        *is_busy = advance != ADVANCE_DONE;
    }
    return budget < BATCH;
}

/* ---- Write-back ahead of need ------------------------------------------------------------------------------------ */

static bool pop_write_back(struct kvt_core *core, uint32_t queue, uint32_t *ret_index)
{
    struct kvt_write_back *ring = &core->write_back[queue];
    if (ring->count == 0) return false;
    const struct kvt_write_back_entry entry = ring->entries[ring->head & (ring->capacity - 1)];
    ring->head = (ring->head + 1) & (ring->capacity - 1);
    ring->count--;
    const struct kvt_block *block = kvt_core_block(core, entry.block);
    const uint32_t source = queue == 0 ? (uint32_t)KVT_TIER_DEVICE : (uint32_t)KVT_TIER_HOST;
    const bool is_same = block->generation == entry.generation && kvt_copy_is_resident(block, source);
    *ret_index = is_same ? entry.block : KVT_NO_BLOCK;
    return true;
}

static bool write_back_to_host(struct kvt_core *core)
{
    /* Only into room that nobody needs: a lower copy ahead of need must not push anything out. */
    bool is_started = false;
    uint32_t index;
    for (uint32_t i = 0; i < BATCH; i++) {
        if (core->transfers.tier_in_flight[KVT_TIER_DEVICE] >= LINK_DEPTH_WRITE_BACK) break;
        if (kvt_host_pool_free_share(&core->host) < 1024 / 4) break;
        if (!pop_write_back(core, 0, &index)) break;
        if (index == KVT_NO_BLOCK || kvt_block_has_copy_besides(kvt_core_block(core, index), KVT_TIER_DEVICE)) continue;
        is_started = kvt_flow_stash_to_host(core, index, KVT_PRIORITY_WRITE_BACK) == KVT_FLOW_STARTED || is_started;
    }
    return is_started;
}

static bool write_back_to_nvme(struct kvt_core *core)
{
    bool is_started = false;
    uint32_t index;
    for (uint32_t i = 0; i < BATCH; i++) {
        if (core->transfers.tier_in_flight[KVT_TIER_NVME] >= LINK_DEPTH_WRITE_BACK) break;
        if (!pop_write_back(core, 1, &index)) break;
        if (index == KVT_NO_BLOCK) continue;
        struct kvt_block *block = kvt_core_block(core, index);
        if (!kvt_block_has(block, KVT_BLOCK_INDEXED) || !is_admitted(core, block)) continue;
        is_started = kvt_flow_stash_to_nvme(core, index, KVT_PRIORITY_WRITE_BACK) == KVT_FLOW_STARTED || is_started;
    }
    return is_started;
}

bool kvt_planner_start(struct kvt_core *core)
{
    bool is_started = start_demand(core);
    bool is_busy = core->demand.head != KVT_NO_SEQUENCE;
    if (!is_busy) is_started = start_prefetch(core, &is_busy) || is_started;
    if (core->has_host) is_started = write_back_to_host(core) || is_started;
    if (core->has_nvme) is_started = write_back_to_nvme(core) || is_started;
    if (core->has_host) is_started = kvt_foresight_start(core, is_busy) || is_started;
    return is_started;
}
