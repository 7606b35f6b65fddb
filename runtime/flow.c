#include "runtime/flow.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/plant.h"
#include "runtime/reader.h"
#include "runtime/residency.h"

#define POLL_BATCH 64
#define FAILURES_MAX 8
#define STORE_RETRY_NS (50u * 1000u * 1000u)
#define DEVICE_RETRY_NS (50u * 1000u * 1000u)

static struct kvt_tier *tier_of(const struct kvt_core *core, uint32_t tier)
{
    return tier == KVT_TIER_NVME ? core->config.nvme : core->config.device;
}

/* ---- Handing ops to the tiers ------------------------------------------------------------------------------------ */

static void submit(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t tier = kvt_leg_tier(transfer->leg);
    core->transfers.tier_in_flight[tier]++;
    const bool is_queue_empty = core->transfers.waiting_count[tier] == 0;
    if (is_queue_empty && kvt_tier_submit(tier_of(core, tier), &transfer->op) == KVT_OK) return;
    kvt_transfers_wait(&core->transfers, tier, transfer);
}

static void complete(struct kvt_core *core, struct kvt_transfer *transfer);

void kvt_flow_submit_waiting(struct kvt_core *core)
{
    for (uint32_t tier = 0; tier < KVT_TIERS; tier++) {
        struct kvt_transfer *transfer;
        while ((transfer = kvt_transfers_next_waiting(&core->transfers, tier)) != NULL) {
            /* The store would publish what a reset has come before, since it has not seen it yet. */
            const bool is_late = transfer->leg == KVT_LEG_HOST_TO_NVME && transfer->epoch != core->epoch
                && !KVT_PLANTED(LATE_STASH);
            if (transfer->is_abandoned || is_late) { /* its op was never submitted: this is its return */
                kvt_transfers_pop_waiting(&core->transfers, tier);
                transfer->op.status = KVT_SHUTDOWN;
                complete(core, transfer);
                continue;
            }
            if (kvt_tier_submit(tier_of(core, tier), &transfer->op) != KVT_OK) break;
            kvt_transfers_pop_waiting(&core->transfers, tier);
        }
    }
}

void kvt_flow_cancel_waiting(struct kvt_core *core)
{
    for (uint32_t tier = 0; tier < KVT_TIERS; tier++) {
        struct kvt_transfer *transfer;
        while ((transfer = kvt_transfers_next_waiting(&core->transfers, tier)) != NULL) {
            kvt_transfers_pop_waiting(&core->transfers, tier);
            transfer->op.status = KVT_SHUTDOWN;
            complete(core, transfer);
        }
    }
}

/* ---- Beginnings -------------------------------------------------------------------------------------------------- */

static struct kvt_transfer *begin(struct kvt_core *core, enum kvt_leg leg, uint32_t source, uint32_t target,
                                  enum kvt_op_priority priority)
{
    struct kvt_transfer *transfer = kvt_transfers_begin(&core->transfers,
                                                        core->now_ns + core->config.transfer_deadline_ns);
    if (!transfer) return NULL;
    const struct kvt_block *block = kvt_core_block(core, source);
    transfer->leg = leg;
    transfer->leg_ns = core->now_ns;
    transfer->source = source;
    transfer->target = target;
    transfer->epoch = core->epoch;
    transfer->op.priority = priority;
    transfer->op.group = block->group;
    transfer->is_prefetch = priority == KVT_PRIORITY_PREFETCH;
    return transfer;
}

static void fill_fetch_op(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const struct kvt_block *source = kvt_core_block(core, transfer->source);
    struct kvt_block *target = kvt_core_block(core, transfer->target);
    const struct kvt_pool *pool = kvt_core_pool(core, target);
    struct kvt_tier_op *op = &transfer->op;
    op->kind = KVT_OP_FETCH;
    op->slot = target->device_slot;
    op->host = kvt_host_pool_address(&core->host, source->host_slot);
    op->form = kvt_block_has(source, KVT_BLOCK_HOST_PACKED) ? KVT_FORM_PACKED : KVT_FORM_RAW;
    op->length = source->host_length;
    op->tokens = kvt_block_op_tokens(core, source, source->lower_tokens);
    op->after[0] = pool->slots[target->device_slot].mark; /* compute may still read what was in the slot */
    if (KVT_PLANTED(FETCH_BEFORE_READ)) op->after[0] = 0;
    op->after[1] = 0;
}

static void submit_host_to_device(struct kvt_core *core, struct kvt_transfer *transfer)
{
    struct kvt_block *source = kvt_core_block(core, transfer->source);
    transfer->leg = KVT_LEG_HOST_TO_DEVICE;
    transfer->leg_ns = core->now_ns;
    transfer->host_slot = source->host_slot;
    source->readers[KVT_TIER_HOST]++;
    core->host.policy_ops->touch(core->host.policy, source->host_slot);
    fill_fetch_op(core, transfer);
    submit(core, transfer);
}

static void submit_copy(struct kvt_core *core, struct kvt_transfer *transfer)
{
    struct kvt_block *source = kvt_core_block(core, transfer->source);
    struct kvt_block *target = kvt_core_block(core, transfer->target);
    struct kvt_pool *pool = kvt_core_pool(core, source);
    source->readers[KVT_TIER_DEVICE]++;
    transfer->op.kind = KVT_OP_COPY;
    transfer->op.source_slot = source->device_slot;
    transfer->op.slot = target->device_slot;
    transfer->op.tokens = kvt_block_op_tokens(core, target, target->tokens);
    transfer->op.after[0] = pool->slots[source->device_slot].mark;
    transfer->op.after[1] = pool->slots[target->device_slot].mark;
    submit(core, transfer);
}

static void submit_nvme_to_host(struct kvt_core *core, struct kvt_transfer *transfer)
{
    struct kvt_block *source = kvt_core_block(core, transfer->source);
    struct kvt_tier_op *op = &transfer->op;
    transfer->host_slot = source->host_slot;
    source->readers[KVT_TIER_NVME]++;
    op->kind = KVT_OP_FETCH;
    op->host = kvt_host_pool_address(&core->host, source->host_slot);
    op->host_capacity = kvt_host_pool_slot_bytes(&core->host, source->host_slot);
    op->form = kvt_block_has(source, KVT_BLOCK_NVME_PACKED) ? KVT_FORM_PACKED : KVT_FORM_RAW;
    op->length = source->nvme_length;
    op->tokens = kvt_block_op_tokens(core, source, source->lower_tokens);
    op->name = kvt_block_name(core, transfer->source);
    submit(core, transfer);
}

/* Where a fetch would start. */
static enum kvt_flow choose_source(const struct kvt_core *core, uint32_t target, uint32_t *ret_source,
                                   enum kvt_leg *ret_leg)
{
    const struct kvt_block *block = kvt_core_block(core, target);
    const bool has_own = kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY
        || kvt_copy_is_resident(block, KVT_TIER_NVME);
    uint32_t source = target;
    if (!has_own) {
        if (block->origin == KVT_NO_BLOCK) return KVT_FLOW_LOST;
        source = block->origin;
    }
    const struct kvt_block *from = kvt_core_block(core, source);
    *ret_source = source;
    if (source != target && kvt_copy_is_resident(from, KVT_TIER_DEVICE)) *ret_leg = KVT_LEG_DEVICE_TO_DEVICE;
    else if (kvt_copy_is_resident(from, KVT_TIER_HOST)) *ret_leg = KVT_LEG_HOST_TO_DEVICE;
    else if (kvt_copy_state(from, KVT_TIER_HOST) == KVT_COPY_FILLING) return KVT_FLOW_WAIT;
    else if (source != target && kvt_copy_state(from, KVT_TIER_DEVICE) == KVT_COPY_FILLING) return KVT_FLOW_WAIT;
    else if (kvt_copy_is_resident(from, KVT_TIER_NVME)) *ret_leg = KVT_LEG_NVME_TO_HOST;
    else return source != target && from->origin != KVT_NO_BLOCK ? KVT_FLOW_WAIT : KVT_FLOW_LOST;
    return KVT_FLOW_STARTED;
}

/*
 * A block that starts as a copy of one that was never filled itself starts as a copy of that one's origin: an idle fork
 * of an idle fork must not wait for its parent, which nobody fetches.
 */
static void shorten_origin(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    while (block->origin != KVT_NO_BLOCK && !kvt_block_has_copies(kvt_core_block(core, block->origin))) {
        const uint32_t before = block->origin;
        const uint32_t next = kvt_core_block(core, before)->origin;
        if (next == KVT_NO_BLOCK) return;
        kvt_block_ref(core, next);
        block->origin = next;
        kvt_block_unref(core, before);
    }
}

uint32_t kvt_flow_fetch_bytes(const struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    const bool is_own = kvt_copy_is_resident(block, KVT_TIER_NVME) || block->origin == KVT_NO_BLOCK;
    return is_own ? block->nvme_length : kvt_core_block(core, block->origin)->nvme_length;
}

enum kvt_flow kvt_flow_fetch(struct kvt_core *core, uint32_t index, enum kvt_op_priority priority)
{
    struct kvt_block *block = kvt_core_block(core, index);
    if (kvt_copy_state(block, KVT_TIER_DEVICE) != KVT_COPY_EMPTY) return KVT_FLOW_THERE;
    shorten_origin(core, index);
    uint32_t source;
    enum kvt_leg leg;
    const enum kvt_flow choice = choose_source(core, index, &source, &leg);
    if (choice != KVT_FLOW_STARTED) return choice;

    if (kvt_core_pool(core, block)->free_count == 0) return KVT_FLOW_NO_DEVICE_SLOT;
    struct kvt_block *from = kvt_core_block(core, source);
    if (core->transfers.free_head == KVT_NO_TRANSFER) return KVT_FLOW_BUSY;
    if (leg == KVT_LEG_NVME_TO_HOST && !kvt_host_reserve(core, source, from->nvme_length)) return KVT_FLOW_NO_HOST_SLOT;
    const bool is_reserved = kvt_device_reserve(core, index);
    KVT_ASSERT(is_reserved);

    struct kvt_transfer *transfer = begin(core, leg, source, index, priority);
    transfer->device_slot = block->device_slot;
    transfer->goes_on = leg == KVT_LEG_NVME_TO_HOST;
    if (transfer->is_prefetch) core->transfers.prefetch_bytes += kvt_block_raw_bytes(core, block, core->block_tokens);
    if (leg == KVT_LEG_NVME_TO_HOST) submit_nvme_to_host(core, transfer);
    else if (leg == KVT_LEG_HOST_TO_DEVICE) submit_host_to_device(core, transfer);
    else submit_copy(core, transfer);
    if (KVT_PLANTED(STASH_BEFORE_FILL)) kvt_device_filled(core, index);
    return KVT_FLOW_STARTED;
}

uint32_t kvt_flow_land(struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(kvt_copy_is_resident(block, KVT_TIER_HOST)); /* invariant 2 */
    const bool is_reserved = kvt_device_reserve(core, index);
    KVT_ASSERT(is_reserved);
    struct kvt_transfer *transfer = begin(core, KVT_LEG_HOST_TO_DEVICE, index, index, KVT_PRIORITY_DEMAND);
    KVT_ASSERT(transfer != NULL);
    transfer->device_slot = block->device_slot;
    transfer->landing = ++core->landings;
    transfer->parts_left = kvt_flow_land_ranges(core, block->group) - 1;
    return kvt_transfer_index(&core->transfers, transfer);
}

kvt_mark kvt_flow_land_range(struct kvt_core *core, uint32_t index, uint32_t range)
{
    struct kvt_transfer *rest = &core->transfers.items[index], *transfer = rest;
    struct kvt_block *block = kvt_core_block(core, rest->source);
    const uint32_t layers = core->groups[block->group].layers, ranges = kvt_flow_land_ranges(core, block->group);
    if (range + 1 < ranges) {
        transfer = begin(core, KVT_LEG_HOST_TO_DEVICE_PART, rest->source, rest->target, KVT_PRIORITY_DEMAND);
        KVT_ASSERT(transfer != NULL);
        transfer->rest = index;
    }
    transfer->host_slot = block->host_slot;
    block->readers[KVT_TIER_HOST]++;
    core->host.policy_ops->touch(core->host.policy, block->host_slot);
    fill_fetch_op(core, transfer);
    transfer->op.layer_first = transfer->op.layer_target = range * layers / ranges;
    transfer->op.layer_count = (range + 1) * layers / ranges - transfer->op.layer_first;
    submit(core, transfer);
    KVT_ASSERT(transfer->op.is_in_flight); /* otherwise there is no mark to wait for */
    return transfer->op.ret_mark;
}

enum kvt_flow kvt_flow_lift(struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    if (kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY) return KVT_FLOW_THERE;
    if (!kvt_copy_is_resident(block, KVT_TIER_NVME)) return KVT_FLOW_LOST;
    if (core->transfers.free_head == KVT_NO_TRANSFER) return KVT_FLOW_BUSY;
    if (!kvt_host_reserve(core, index, block->nvme_length)) return KVT_FLOW_NO_HOST_SLOT;
    submit_nvme_to_host(core, begin(core, KVT_LEG_NVME_TO_HOST, index, index, KVT_PRIORITY_DEMAND));
    return KVT_FLOW_STARTED;
}

enum kvt_flow kvt_flow_to_window(struct kvt_core *core, uint32_t index, uint32_t layer,
                                 const struct kvt_window_place *place)
{
    struct kvt_block *source = kvt_core_block(core, index);
    struct kvt_block *window = kvt_core_block(core, place->block);
    KVT_ASSERT(kvt_copy_is_resident(source, KVT_TIER_HOST)); /* invariant 2 */
    struct kvt_transfer *transfer = begin(core, KVT_LEG_HOST_TO_WINDOW, index, place->block, KVT_PRIORITY_DEMAND);
    if (!transfer) return KVT_FLOW_BUSY;
    /* The window's block stays where it is until the op is back, whatever becomes of its reader. */
    kvt_block_ref(core, place->block);
    kvt_block_claim(core, place->block);
    transfer->reader = place->reader;
    transfer->pass = place->pass;
    transfer->entry = place->entry;
    transfer->host_slot = source->host_slot;
    source->readers[KVT_TIER_HOST]++;
    core->host.policy_ops->touch(core->host.policy, source->host_slot);
    struct kvt_tier_op *op = &transfer->op;
    op->kind = KVT_OP_FETCH;
    op->slot = window->device_slot;
    op->layer_first = layer;
    op->layer_count = 1;
    op->layer_target = place->place;
    op->host = kvt_host_pool_address(&core->host, source->host_slot);
    op->form = kvt_block_has(source, KVT_BLOCK_HOST_PACKED) ? KVT_FORM_PACKED : KVT_FORM_RAW;
    op->length = source->host_length;
    op->tokens = kvt_block_op_tokens(core, source, source->lower_tokens);
    op->after[0] = place->after;
    if (KVT_PLANTED(WINDOW_BEFORE_READ)) op->after[0] = 0;
    op->after[1] = kvt_core_pool(core, window)->slots[window->device_slot].mark;
    submit(core, transfer);
    return KVT_FLOW_STARTED;
}

bool kvt_flow_can_copy_now(const struct kvt_core *core)
{
    const struct kvt_tier *device = core->config.device;
    return core->transfers.free_head != KVT_NO_TRANSFER && core->transfers.waiting_count[KVT_TIER_DEVICE] == 0
        && device->in_flight < device->queue_depth;
}

void kvt_flow_copy_reserved(struct kvt_core *core, uint32_t source, uint32_t target, uint32_t stream)
{
    struct kvt_transfer *transfer = begin(core, KVT_LEG_DEVICE_TO_DEVICE, source, target, KVT_PRIORITY_DEMAND);
    KVT_ASSERT(transfer != NULL);
    transfer->device_slot = kvt_core_block(core, target)->device_slot;
    transfer->op.stream = stream;
    submit_copy(core, transfer);
    KVT_ASSERT(transfer->op.is_in_flight); /* later it would not be in its place of the stream */
}

enum kvt_flow kvt_flow_stash_to_host(struct kvt_core *core, uint32_t index, enum kvt_op_priority priority)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(kvt_copy_is_resident(block, KVT_TIER_DEVICE)); /* invariant 2 */
    if (kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY) return KVT_FLOW_THERE;
    if (core->now_ns < core->device_retry_ns) return KVT_FLOW_BUSY;
    if (core->transfers.free_head == KVT_NO_TRANSFER) return KVT_FLOW_BUSY;
    const bool is_packed = core->config.is_packing && !kvt_block_has(block, KVT_BLOCK_RAW_ONLY);
    const uint32_t raw = kvt_block_raw_bytes(core, block, block->tokens);
    if (!kvt_host_reserve(core, index, kvt_host_pool_wanted_bytes(&core->host, block->group, raw, is_packed)))
        return KVT_FLOW_NO_HOST_SLOT;

    struct kvt_transfer *transfer = begin(core, KVT_LEG_DEVICE_TO_HOST, index, index, priority);
    transfer->device_slot = block->device_slot;
    transfer->host_slot = block->host_slot;
    block->readers[KVT_TIER_DEVICE]++;
    block->lower_tokens = block->tokens;
    struct kvt_tier_op *op = &transfer->op;
    op->kind = KVT_OP_STASH;
    op->slot = block->device_slot;
    op->host = kvt_host_pool_address(&core->host, block->host_slot);
    op->host_capacity = kvt_host_pool_slot_bytes(&core->host, block->host_slot);
    op->form = is_packed ? KVT_FORM_PACKED : KVT_FORM_RAW;
    op->tokens = kvt_block_op_tokens(core, block, block->tokens);
    /* the kernel that fills it may still run */
    op->after[0] = kvt_core_pool(core, block)->slots[block->device_slot].mark;
    if (KVT_PLANTED(STASH_BEFORE_WRITE)) op->after[0] = 0;
    submit(core, transfer);
    return KVT_FLOW_STARTED;
}

enum kvt_flow kvt_flow_stash_to_nvme(struct kvt_core *core, uint32_t index, enum kvt_op_priority priority)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(kvt_copy_is_resident(block, KVT_TIER_HOST)); /* invariant 2 */
    if (kvt_copy_state(block, KVT_TIER_NVME) != KVT_COPY_EMPTY) return KVT_FLOW_THERE;
    if (core->now_ns < core->nvme_retry_ns) return KVT_FLOW_BUSY;
    struct kvt_transfer *transfer = begin(core, KVT_LEG_HOST_TO_NVME, index, index, priority);
    if (!transfer) return KVT_FLOW_BUSY;
    kvt_block_set(block, KVT_BLOCK_NVME_PRIVATE, !kvt_block_has(block, KVT_BLOCK_INDEXED));
    kvt_copy_step(block, KVT_TIER_NVME, KVT_COPY_RESERVE);
    transfer->host_slot = block->host_slot;
    block->readers[KVT_TIER_HOST]++;
    struct kvt_tier_op *op = &transfer->op;
    op->kind = KVT_OP_STASH;
    op->host = kvt_host_pool_address(&core->host, block->host_slot);
    op->host_capacity = kvt_host_pool_slot_bytes(&core->host, block->host_slot);
    op->form = kvt_block_has(block, KVT_BLOCK_HOST_PACKED) ? KVT_FORM_PACKED : KVT_FORM_RAW;
    op->length = block->host_length;
    op->tokens = kvt_block_op_tokens(core, block, block->lower_tokens);
    op->name = kvt_block_name(core, index);
    op->is_private = kvt_block_has(block, KVT_BLOCK_NVME_PRIVATE);
    submit(core, transfer);
    return KVT_FLOW_STARTED;
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

static void measure_link(struct kvt_core *core, uint32_t tier, const struct kvt_tier_op *op, uint32_t bytes)
{
    const uint64_t ns = op->link_ns + op->codec_ns;
    if (ns == 0 || bytes == 0) return;
    const double sample = (double)ns / bytes;
    double *average = &core->link_ns_per_byte[tier];
    *average = *average == 0 ? sample : *average * 0.9 + sample * 0.1;
}

/* The nvme copy failed its reader: it is no copy any more. */
static void nvme_read_failed(struct kvt_core *core, uint32_t index, enum kvt_status status)
{
    struct kvt_block *block = kvt_core_block(core, index);
    if (kvt_copy_is_resident(block, KVT_TIER_NVME) && block->readers[KVT_TIER_NVME] == 0)
        kvt_nvme_drop(core, index, status == KVT_IO || status == KVT_CORRUPT);
}

/*
 * Host bytes that do not unpack are no copy, and neither is the record with the same bytes: what needs it stores it
 * again.
 */
static void unpack_failed(struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    if (kvt_copy_is_resident(block, KVT_TIER_HOST) && block->readers[KVT_TIER_HOST] == 0)
        kvt_host_drop(core, index, KVT_POLICY_DROPPED);
    nvme_read_failed(core, index, KVT_CORRUPT);
}

static void end_prefetch(struct kvt_core *core, const struct kvt_transfer *transfer)
{
    if (!transfer->is_prefetch) return;
    const struct kvt_block *block = kvt_core_block(core, transfer->target);
    core->transfers.prefetch_bytes -= kvt_block_raw_bytes(core, block, core->block_tokens);
}

/* A packed block that does not fit is no failure: it tries again raw. */
static bool does_not_fit_packed(const struct kvt_transfer *transfer)
{
    return transfer->leg == KVT_LEG_DEVICE_TO_HOST && transfer->op.status == KVT_FULL
        && transfer->op.form == KVT_FORM_PACKED;
}

static void device_to_host_done(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t index = transfer->source;
    struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_tier_op *op = &transfer->op;
    const bool is_packed_too_large = does_not_fit_packed(transfer);
    const bool is_whole = block->lower_tokens == core->block_tokens;
    if (op->status == KVT_OK) {
        block->host_length = op->ret_length;
        kvt_block_set(block, KVT_BLOCK_HOST_PACKED, op->ret_form == KVT_FORM_PACKED);
        kvt_host_filled(core, index);
        core->device_failures = 0;
        const uint32_t raw = kvt_block_raw_bytes(core, block, block->lower_tokens);
        if (op->ret_form == KVT_FORM_PACKED) {
            core->counters.packed_blocks++;
            core->counters.packed_bytes += op->ret_length;
            core->counters.packed_raw_bytes += raw;
            if (is_whole) kvt_host_pool_learn(&core->host, block->group, op->ret_length);
        } else {
            core->counters.raw_blocks++;
        }
        core->counters.stashes++;
        core->counters.bytes_out[KVT_TIER_DEVICE] += op->ret_length;
        core->counters.bytes_in[KVT_TIER_HOST] += op->ret_length;
        measure_link(core, KVT_TIER_DEVICE, op, op->ret_length);
        if (core->has_nvme) kvt_write_back_push(core, 1, index);
    } else {
        kvt_host_failed(core, index, false);
        if (is_packed_too_large) {
            kvt_block_set(block, KVT_BLOCK_RAW_ONLY, true);
            if (is_whole) kvt_host_pool_learn(&core->host, block->group, 0);
        } else {
            core->counters.failures++;
            /* A device that keeps failing is asked less often: trying again at once would never end. */
            if (++core->device_failures >= FAILURES_MAX && !KVT_PLANTED(NO_PAUSE))
                core->device_retry_ns = core->now_ns + DEVICE_RETRY_NS;
        }
    }
    /* A block that did not fit packed tries again raw before its copy's readers are told that this one is gone. */
    if (is_packed_too_large) (void)kvt_flow_stash_to_host(core, index, op->priority);
    kvt_copy_reader_gone(core, index, KVT_TIER_DEVICE, op->status != KVT_OK && !is_packed_too_large);
    kvt_block_settle(core, index);
}

static void host_to_nvme_done(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t index = transfer->source;
    struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_tier_op *op = &transfer->op;
    if (op->status == KVT_OK && transfer->epoch == core->epoch) {
        block->nvme_length = op->length;
        kvt_block_set(block, KVT_BLOCK_NVME_PACKED, op->form == KVT_FORM_PACKED);
        (void)kvt_nvme_filled(core, index);
        core->nvme_refusals = 0;
        core->counters.bytes_out[KVT_TIER_HOST] += op->length;
        core->counters.bytes_in[KVT_TIER_NVME] += op->length;
        core->counters.store_raw_bytes += kvt_block_raw_bytes(core, block, block->lower_tokens);
    } else {
        kvt_copy_step(block, KVT_TIER_NVME, KVT_COPY_FILL_FAIL);
        kvt_block_set(block, KVT_BLOCK_NVME_PRIVATE, false);
        if (op->status != KVT_OK) {
            core->counters.failures++;
            core->nvme_refusals++;
            /* A disk that keeps failing is asked less often for what must not be dropped, so that waiting for it can end. */
            const bool is_failing = block->refs > 0 && core->nvme_refusals >= FAILURES_MAX;
            if (op->status == KVT_FULL || is_failing) core->nvme_retry_ns = core->now_ns + STORE_RETRY_NS;
        }
    }
    kvt_copy_reader_gone(core, index, KVT_TIER_HOST, op->status != KVT_OK);
    core->events++;
    kvt_block_settle(core, index);
}

/* Returns true when the transfer goes on to its second leg. */
static bool nvme_to_host_done(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t index = transfer->source;
    struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_tier_op *op = &transfer->op;
    kvt_nvme_read_over(core, index);
    if (op->status == KVT_OK) {
        block->host_length = op->ret_length;
        kvt_block_set(block, KVT_BLOCK_HOST_PACKED, op->ret_form == KVT_FORM_PACKED);
        kvt_host_filled(core, index);
        core->counters.bytes_out[KVT_TIER_NVME] += op->ret_length;
        core->counters.bytes_in[KVT_TIER_HOST] += op->ret_length;
        measure_link(core, KVT_TIER_NVME, op, op->ret_length);
        if (transfer->goes_on) {
            submit_host_to_device(core, transfer);
            return true;
        }
        core->events++;
        kvt_block_settle(core, index);
        return false;
    }
    core->counters.failures++;
    core->events++;
    kvt_host_failed(core, index, false);
    nvme_read_failed(core, index, op->status);
    if (transfer->goes_on) kvt_device_failed(core, transfer->target, false);
    end_prefetch(core, transfer);
    if (transfer->target != index) kvt_block_settle(core, index);
    kvt_block_settle(core, transfer->target);
    return false;
}

/* A snapshot whose copy failed is none: the state has gone on in the meantime. */
static void forget_snapshot(struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    const bool is_dead = !kvt_block_has_copies(block) && block->origin == KVT_NO_BLOCK;
    if (is_dead && kvt_block_has(block, KVT_BLOCK_INDEXED) && block->refs > 0) kvt_block_unindex(core, index);
}

static void device_fill_done(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t target = transfer->target;
    const uint32_t source = transfer->source;
    const struct kvt_tier_op *op = &transfer->op;
    const bool is_copy = transfer->leg == KVT_LEG_DEVICE_TO_DEVICE;
    const uint32_t source_tier = is_copy ? (uint32_t)KVT_TIER_DEVICE : (uint32_t)KVT_TIER_HOST;
    const enum kvt_status status = op->status == KVT_OK ? transfer->parts_status : op->status;
    struct kvt_block *block = kvt_core_block(core, target);
    uint32_t origin = KVT_NO_BLOCK;
    if (status == KVT_OK || KVT_PLANTED(FAILED_COPY)) {
        if (is_copy) {
            core->counters.copies++;
        } else {
            core->counters.fetches++;
            core->counters.bytes_out[KVT_TIER_HOST] += op->length;
            core->counters.bytes_in[KVT_TIER_DEVICE] += op->length;
            if (op->layer_count == 0) measure_link(core, KVT_TIER_DEVICE, op, op->length);
            if (op->link_ns + op->codec_ns > 0)
                core->codec_share = core->codec_share * 0.9
                    + 0.1 * (double)op->codec_ns / (double)(op->link_ns + op->codec_ns);
            if (transfer->is_prefetch) core->counters.prefetched_blocks++;
            else core->counters.demand_blocks++;
        }
        if (!KVT_PLANTED(STASH_BEFORE_FILL)) kvt_device_filled(core, target);
        origin = block->origin;
        block->origin = KVT_NO_BLOCK;
    } else {
        core->counters.failures++;
        core->fill_failures++;
        kvt_device_failed(core, target, false);
    }
    end_prefetch(core, transfer);
    kvt_copy_reader_gone(core, source, source_tier, false);
    if (status == KVT_CORRUPT) unpack_failed(core, source);
    if (source != target) kvt_block_settle(core, source);
    if (origin != KVT_NO_BLOCK) kvt_block_unref(core, origin);
    kvt_block_settle(core, target);
}

/* The window's block is no longer written by this op. */
static void let_window_go(struct kvt_core *core, const struct kvt_transfer *transfer)
{
    kvt_block_unclaim(core, transfer->target, 0);
    kvt_block_unref(core, transfer->target);
}

static void host_to_window_done(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t source = transfer->source;
    const struct kvt_tier_op *op = &transfer->op;
    kvt_copy_reader_gone(core, source, KVT_TIER_HOST, false);
    if (op->status == KVT_OK) {
        const uint64_t bytes = op->length / core->groups[op->group].layers;
        core->counters.window_chunks++;
        core->counters.bytes_out[KVT_TIER_HOST] += bytes;
        core->counters.bytes_in[KVT_TIER_DEVICE] += bytes;
    } else {
        core->counters.failures++;
        if (op->status == KVT_CORRUPT) unpack_failed(core, source);
    }
    core->events++;
    kvt_reader_landed(core, transfer->reader, transfer->pass, transfer->entry, op->status);
    let_window_go(core, transfer);
    kvt_block_settle(core, source);
}

/* Some layers are back; what fills the rest ends with its last part. */
static void part_done(struct kvt_core *core, struct kvt_transfer *transfer)
{
    struct kvt_transfer *rest = &core->transfers.items[transfer->rest];
    kvt_copy_reader_gone(core, transfer->source, KVT_TIER_HOST, false);
    if (transfer->op.status != KVT_OK && rest->parts_status != KVT_CORRUPT) rest->parts_status = transfer->op.status;
    KVT_ASSERT(rest->parts_left > 0);
    rest->parts_left--;
    if (rest->parts_left == 0 && rest->is_op_back) complete(core, rest);
}

/* The op of an abandoned transfer is back: nothing changes but the quarantine and the readers. */
static void abandoned_done(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t source = transfer->source;
    struct kvt_pool *pool = kvt_core_pool(core, kvt_core_block(core, transfer->target));
    switch (transfer->leg) {
    case KVT_LEG_DEVICE_TO_HOST:
        core->host.quarantined--;
        kvt_host_pool_give(&core->host, transfer->host_slot);
        kvt_copy_reader_gone(core, source, KVT_TIER_DEVICE, true);
        break;
    case KVT_LEG_HOST_TO_NVME: kvt_copy_reader_gone(core, source, KVT_TIER_HOST, true); break;
    case KVT_LEG_NVME_TO_HOST:
        core->host.quarantined--;
        kvt_host_pool_give(&core->host, transfer->host_slot);
        break;
    case KVT_LEG_HOST_TO_DEVICE:
    case KVT_LEG_DEVICE_TO_DEVICE:
        pool->quarantined--;
        kvt_pool_give(pool, transfer->device_slot);
        kvt_copy_reader_gone(
            core, source, transfer->leg == KVT_LEG_HOST_TO_DEVICE ? (uint32_t)KVT_TIER_HOST : (uint32_t)KVT_TIER_DEVICE,
            false);
        break;
    case KVT_LEG_HOST_TO_DEVICE_PART: part_done(core, transfer); break;
    case KVT_LEG_HOST_TO_WINDOW:
        kvt_copy_reader_gone(core, source, KVT_TIER_HOST, false);
        let_window_go(core, transfer);
        break;
    }
    core->events++;
    kvt_block_unref(core, source); /* the hold that abandoning took, so that its entry stays its own */
    if (transfer->target != source) kvt_block_unref(core, transfer->target);
}

/* Before the leg's end is acted on: the op may be filled anew for the next one. */
static void tell(const struct kvt_core *core, const struct kvt_transfer *transfer)
{
    static const struct {
        uint32_t from, to;
    } ends[] = {
        [KVT_LEG_DEVICE_TO_HOST] = { KVT_TIER_DEVICE, KVT_TIER_HOST },
        [KVT_LEG_HOST_TO_NVME] = { KVT_TIER_HOST, KVT_TIER_NVME },
        [KVT_LEG_NVME_TO_HOST] = { KVT_TIER_NVME, KVT_TIER_HOST },
        [KVT_LEG_HOST_TO_DEVICE] = { KVT_TIER_HOST, KVT_TIER_DEVICE },
        [KVT_LEG_DEVICE_TO_DEVICE] = { KVT_TIER_DEVICE, KVT_TIER_DEVICE },
        [KVT_LEG_HOST_TO_DEVICE_PART] = { KVT_TIER_HOST, KVT_TIER_DEVICE },
        [KVT_LEG_HOST_TO_WINDOW] = { KVT_TIER_HOST, KVT_TIER_DEVICE },
    };
    KVT_ASSERT(transfer->leg < KVT_ARRAY_COUNT(ends));
    const struct kvt_tier_op *op = &transfer->op;
    const bool is_filled_here = transfer->leg == KVT_LEG_DEVICE_TO_HOST || transfer->leg == KVT_LEG_NVME_TO_HOST;
    const bool is_late = transfer->is_abandoned
        || (transfer->leg == KVT_LEG_HOST_TO_NVME && transfer->epoch != core->epoch);
    struct kvt_transfer_event event = {
        .from = ends[transfer->leg].from,
        .to = ends[transfer->leg].to,
        .priority = (uint32_t)op->priority,
        .status = is_late && op->status == KVT_OK ? KVT_SHUTDOWN : op->status,
        .block = transfer->target,
        .group = op->group,
        .begun_ns = transfer->leg_ns,
        .ended_ns = core->now_ns,
        .link_ns = op->link_ns,
        .codec_ns = op->codec_ns,
    };
    if (transfer->leg != KVT_LEG_DEVICE_TO_DEVICE) event.bytes = is_filled_here ? op->ret_length : op->length;
    core->config.env->on_transfer(core->config.env->transfer_user, &event);
}

static void complete(struct kvt_core *core, struct kvt_transfer *transfer)
{
    if (transfer->parts_left > 0) {
        transfer->is_op_back = true;
        return;
    }
    if (core->config.env && core->config.env->on_transfer) tell(core, transfer);
    if (!transfer->is_abandoned)
        kvt_metrics_leg_done(&core->metrics, transfer, core->now_ns - transfer->leg_ns, !does_not_fit_packed(transfer));
    core->transfers.tier_in_flight[kvt_leg_tier(transfer->leg)]--;
    core->changes++;
    bool goes_on = false;
    if (transfer->is_abandoned) {
        abandoned_done(core, transfer);
    } else {
        switch (transfer->leg) {
        case KVT_LEG_DEVICE_TO_HOST: device_to_host_done(core, transfer); break;
        case KVT_LEG_HOST_TO_NVME: host_to_nvme_done(core, transfer); break;
        case KVT_LEG_NVME_TO_HOST: goes_on = nvme_to_host_done(core, transfer); break;
        case KVT_LEG_HOST_TO_DEVICE:
        case KVT_LEG_DEVICE_TO_DEVICE: device_fill_done(core, transfer); break;
        case KVT_LEG_HOST_TO_DEVICE_PART: part_done(core, transfer); break;
        case KVT_LEG_HOST_TO_WINDOW: host_to_window_done(core, transfer); break;
        }
    }
    if (!goes_on) kvt_transfers_end(&core->transfers, transfer);
}

bool kvt_flow_poll(struct kvt_core *core)
{
    bool is_more = false;
    struct kvt_tier *const tiers[] = { core->config.device, core->config.nvme };
    for (uint32_t t = 0; t < KVT_ARRAY_COUNT(tiers); t++) {
        if (!tiers[t] || tiers[t]->in_flight == 0) continue;
        struct kvt_tier_op *done[POLL_BATCH];
        const uint32_t count = kvt_tier_poll(tiers[t], done, POLL_BATCH);
        for (uint32_t i = 0; i < count; i++) {
            /* The op is the transfer's first member. */
            complete(core, (struct kvt_transfer *)done[i]);
        }
        is_more = is_more || count == POLL_BATCH;
    }
    return is_more;
}

/* ---- Deadlines --------------------------------------------------------------------------------------------------- */

static void abandon(struct kvt_core *core, struct kvt_transfer *transfer)
{
    const uint32_t source = transfer->source;
    const uint32_t target = transfer->target;
    core->counters.abandoned++;
    core->metrics.failures[transfer->leg][KVT_FAILURE_DEADLINE]++;
    /* The op still names these blocks: their entries must not be used for others before it is back. */
    kvt_block_ref(core, source);
    if (target != source) kvt_block_ref(core, target);
    kvt_transfers_abandon(&core->transfers, transfer);
    switch (transfer->leg) {
    case KVT_LEG_DEVICE_TO_HOST: kvt_host_failed(core, source, true); break;
    case KVT_LEG_HOST_TO_NVME:
        kvt_copy_step(kvt_core_block(core, source), KVT_TIER_NVME, KVT_COPY_FILL_FAIL);
        kvt_block_set(kvt_core_block(core, source), KVT_BLOCK_NVME_PRIVATE, false);
        break;
    case KVT_LEG_NVME_TO_HOST:
        kvt_nvme_read_over(core, source);
        kvt_host_failed(core, source, true);
        nvme_read_failed(core, source, KVT_NOTFOUND);
        if (transfer->goes_on) kvt_device_failed(core, target, false); /* no device work was under way */
        end_prefetch(core, transfer);
        break;
    case KVT_LEG_HOST_TO_DEVICE:
    case KVT_LEG_DEVICE_TO_DEVICE:
        core->fill_failures++;
        kvt_device_failed(core, target, true);
        forget_snapshot(core, target);
        end_prefetch(core, transfer);
        break;
    case KVT_LEG_HOST_TO_DEVICE_PART: core->transfers.items[transfer->rest].parts_status = KVT_IO; break;
    case KVT_LEG_HOST_TO_WINDOW:
        kvt_reader_landed(core, transfer->reader, transfer->pass, transfer->entry, KVT_IO);
        break;
    }
    core->events++;
}

void kvt_flow_check_deadlines(struct kvt_core *core)
{
    if (KVT_PLANTED(NO_DEADLINE)) return;
    for (uint32_t i = 0; i < POLL_BATCH && core->transfers.oldest != KVT_NO_TRANSFER; i++) {
        struct kvt_transfer *transfer = &core->transfers.items[core->transfers.oldest];
        if (core->now_ns < transfer->deadline_ns) return;
        abandon(core, transfer);
    }
}
