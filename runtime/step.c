/* step: who is ready, what a step pins, and how streams are ordered around it. */
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/plant.h"
#include "runtime/core.h"
#include "runtime/flow.h"
#include "runtime/layers.h"
#include "runtime/planner.h"
#include "runtime/reader.h"
#include "runtime/residency.h"

#define NO_STEP UINT32_MAX
#define RETRIES_MAX 2

static bool is_state(const struct kvt_core *core, uint32_t group)
{
    return core->groups[group].kind == KVT_GROUP_STATE;
}

/* ---- Look-ahead -------------------------------------------------------------------------------------------------- */

void kvt_core_expect(struct kvt_core *core, const kvt_seq *seqs, const uint32_t *steps, uint32_t n)
{
    if (!kvt_core_looks_ahead(core)) return;
    for (uint32_t i = 0; i < n; i++) {
        struct kvt_sequence *sequence = kvt_sequence_of(core, seqs[i]);
        if (!sequence || sequence->mode == KVT_SEQUENCE_ACTIVE || sequence->is_streamed) continue;
        if (sequence->list != KVT_LIST_EXPECTED) sequence->told_ns = core->now_ns;
        const uint64_t ahead_ns = steps[i] < UINT64_MAX / 2 / (core->step_ns + 1) ? steps[i] * core->step_ns
                                                                                  : UINT64_MAX / 2;
        sequence->need_ns = core->now_ns + ahead_ns;
        kvt_sequence_list_append(core, sequence, KVT_LIST_EXPECTED);
    }
}

/* ---- Ready ------------------------------------------------------------------------------------------------------- */

/* True when the planner has not come to this place of the sequence yet. */
static bool is_still_to_start(const struct kvt_sequence *sequence, uint32_t group, uint32_t index)
{
    return sequence->list == KVT_LIST_DEMAND
        && (sequence->fetch.group < group || (sequence->fetch.group == group && sequence->fetch.index <= index));
}

static uint64_t lost_position(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t group,
                              uint32_t index)
{
    if (!is_state(core, group)) return (uint64_t)index * core->block_tokens;
    const struct kvt_sequence_table *table = &sequence->groups[group];
    uint32_t i = table->count;
    while (
        i > 0
        && (table->blocks[i - 1] == KVT_NO_BLOCK || !kvt_block_has_copies(kvt_core_block(core, table->blocks[i - 1]))))
        i--;
    return (uint64_t)i * core->block_tokens;
}

/* A block that should be on the device is not, and nothing brings it: once more, or it is lost. */
static enum kvt_ready absent(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t index,
                             uint32_t block_index)
{
    const struct kvt_block *block = kvt_core_block(core, block_index);
    const bool has_source = kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY
        || kvt_copy_is_resident(block, KVT_TIER_NVME) || block->origin != KVT_NO_BLOCK;
    if (has_source && sequence->retries < RETRIES_MAX) {
        sequence->retries++;
        kvt_sequence_rewind(core, sequence, group, index);
        return KVT_NOT_READY;
    }
    core->counters.lost_blocks++;
    sequence->lost_from = kvt_min_u64(sequence->lost_from, lost_position(core, sequence, group, index));
    return KVT_LOST;
}

static enum kvt_ready check_block(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t index,
                                  uint32_t block_index)
{
    switch (kvt_copy_state(kvt_core_block(core, block_index), KVT_TIER_DEVICE)) {
    case KVT_COPY_RESIDENT: return KVT_READY;
    case KVT_COPY_EMPTY:
        if (is_still_to_start(sequence, group, index)) return KVT_NOT_READY;
        if (kvt_layers_are_left(core, sequence, block_index)) return KVT_NOT_READY;
        return absent(core, sequence, group, index, block_index);
    case KVT_COPY_FILLING:
    case KVT_COPY_STATES: break;
    }
    return KVT_NOT_READY;
}

/* Moves the group's ready cursor as far as it goes: claimed resident copies stay, so it never has to look back. */
static enum kvt_ready check_table(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group)
{
    struct kvt_sequence_table *table = &sequence->groups[group];
    const uint32_t sinks = (uint32_t)((core->groups[group].sink_tokens + (uint64_t)core->block_tokens - 1)
                                      / core->block_tokens);
    if (table->ready < table->claimed_from) table->ready = table->claimed_from;
    while (table->ready < table->count) {
        if (table->ready >= sinks && table->ready < table->first) {
            table->ready = table->first;
            continue;
        }
        const uint32_t block = table->blocks[table->ready];
        if (block != KVT_NO_BLOCK) {
            const enum kvt_ready ready = check_block(core, sequence, group, table->ready, block);
            if (ready != KVT_READY) return ready;
        }
        table->ready++;
    }
    return KVT_READY;
}

/*
 * A block that the step will write: nobody may still be reading it, and its lower copies, which will be out of date,
 * go. Sealed and shared ones were replaced by a copy when the slots were reserved (invariant 8).
 */
static enum kvt_ready make_writable(struct kvt_core *core, uint32_t index)
{
    struct kvt_block *block = kvt_core_block(core, index);
    KVT_ASSERT(!kvt_block_has(block, KVT_BLOCK_SEALED));
    const enum kvt_copy_state host = kvt_copy_state(block, KVT_TIER_HOST);
    const enum kvt_copy_state nvme = kvt_copy_state(block, KVT_TIER_NVME);
    if (block->readers[KVT_TIER_DEVICE] > 0 || block->readers[KVT_TIER_HOST] > 0) return KVT_NOT_READY;
    if (host == KVT_COPY_FILLING || nvme == KVT_COPY_FILLING) return KVT_NOT_READY;
    if (host == KVT_COPY_RESIDENT) kvt_host_drop(core, index, KVT_POLICY_DROPPED);
    if (nvme == KVT_COPY_RESIDENT) kvt_nvme_drop(core, index, true);
    return KVT_READY;
}

static enum kvt_ready make_ends_writable(struct kvt_core *core, const struct kvt_sequence *sequence)
{
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        uint32_t block = table->live;
        if (!is_state(core, g)) {
            if (sequence->tokens % core->block_tokens == 0) continue;
            block = table->blocks[sequence->tokens / core->block_tokens];
        }
        if (block != KVT_NO_BLOCK && make_writable(core, block) != KVT_READY) return KVT_NOT_READY;
    }
    return KVT_READY;
}

static enum kvt_ready check_writable(struct kvt_core *core, struct kvt_sequence *sequence)
{
    return sequence->reserved == sequence->tokens ? KVT_READY : make_ends_writable(core, sequence);
}

static enum kvt_ready check_ready(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (kvt_layers_settle(core, sequence) == KVT_LOST) return KVT_LOST;
    const bool is_started = sequence->list == KVT_LIST_DEMAND || sequence->fetch.group == core->group_count;
    if (core->config.prefetch == KVT_PREFETCH_OFF && !is_started)
        kvt_sequence_list_append(core, sequence, KVT_LIST_DEMAND);
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        enum kvt_ready ready = KVT_READY;
        if (!is_state(core, g)) ready = check_table(core, sequence, g);
        else if (table->live != KVT_NO_BLOCK) ready = check_block(core, sequence, g, 0, table->live);
        if (ready != KVT_READY) return ready;
    }
    const enum kvt_ready ready = check_writable(core, sequence);
    if (ready == KVT_READY) {
        sequence->retries = 0;
        sequence->is_whole = false;
    }
    return ready;
}

/* Ready, or so that what it lacks can land while the step runs; what it writes must be there. */
static enum kvt_ready check_or_land(struct kvt_core *core, struct kvt_sequence *sequence)
{
    const enum kvt_ready ready = check_ready(core, sequence);
    if (ready != KVT_NOT_READY || !core->config.is_layered) return ready;
    for (uint32_t g = 0; g < core->group_count && sequence->reserved != sequence->tokens; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        uint32_t block = table->live;
        if (!is_state(core, g))
            block = table->blocks[kvt_min_u64(sequence->tokens / core->block_tokens, table->count - 1)];
        if (block == KVT_NO_BLOCK || !kvt_copy_is_resident(kvt_core_block(core, block), KVT_TIER_DEVICE))
            return KVT_NOT_READY;
    }
    return check_writable(core, sequence) == KVT_READY ? kvt_layers_admit(core, sequence) : KVT_NOT_READY;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

struct kvt_step_state *kvt_core_step_of(struct kvt_core *core, kvt_step step)
{
    const uint32_t index = (uint32_t)step - 1;
    if (step == 0 || index >= KVT_STEPS_MAX) return NULL;
    struct kvt_step_state *state = &core->steps[index];
    return state->is_open && state->generation == (uint32_t)(step >> 32) ? state : NULL;
}

static struct kvt_step_state *open_step(struct kvt_core *core, uint32_t stream)
{
    for (uint32_t i = 0; i < KVT_STEPS_MAX; i++) {
        struct kvt_step_state *state = &core->steps[i];
        if (state->is_open) continue;
        *state = (struct kvt_step_state){ .generation = state->generation + 1,
                                          .is_open = true,
                                          .stream = stream,
                                          .first_sequence = KVT_NO_SEQUENCE,
                                          .limbo = KVT_NO_BLOCK };
        return state;
    }
    return NULL;
}

void kvt_core_order_after_other_streams(struct kvt_core *core, uint32_t stream)
{
    if (!core->gpu) return;
    for (uint32_t s = 0; s < KVT_GPU_STREAMS_MAX; s++) {
        const kvt_mark mark = core->stream_marks[s];
        if (s == stream || mark == 0) continue;
        if (!core->gpu->ops->is_reached(core->gpu, mark)) core->gpu->ops->wait(core->gpu, stream, mark);
    }
}

bool kvt_core_step_extend(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (make_ends_writable(core, sequence) != KVT_READY) return false;
    kvt_core_order_after_other_streams(core, core->steps[sequence->step].stream);
    return true;
}

static void measure_step(struct kvt_core *core)
{
    const uint64_t gap_ns = core->now_ns - core->last_step_ns;
    /* A pause between requests is no step. */
    if (core->last_step_ns != 0 && gap_ns < 8 * core->step_ns + 1000000u)
        core->step_ns = (core->step_ns * 7 + gap_ns) / 8;
    core->last_step_ns = core->now_ns;
}

/* A stall is the time from the step that first wanted the sequence until one that has it, or until nobody wants it. */
static void note_stall(struct kvt_core *core, struct kvt_sequence *sequence, bool is_waiting)
{
    if (!is_waiting) {
        kvt_core_end_stall(core, sequence);
    } else if (!sequence->is_stalled) {
        sequence->is_stalled = true;
        sequence->stalled_ns = core->now_ns;
        sequence->stall_cause = (uint8_t)kvt_core_stall(core, sequence);
    }
}

void kvt_core_end_stall(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (!sequence->is_stalled) return;
    sequence->is_stalled = false;
    core->metrics.stalls[sequence->stall_cause]++;
    core->metrics.stall_ns[sequence->stall_cause] += core->now_ns - sequence->stalled_ns;
}

enum kvt_status kvt_core_step_begin(struct kvt_core *core, struct kvt_step_entry *entries, uint32_t n, uint32_t stream,
                                    kvt_step *ret_step)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct kvt_sequence *sequence = kvt_sequence_of(core, entries[i].seq);
        if (!sequence || sequence->mode != KVT_SEQUENCE_ACTIVE || sequence->step != NO_STEP) return KVT_INVAL;
    }
    struct kvt_step_state *step = open_step(core, stream);
    if (!step) return KVT_INVAL;
    const uint32_t step_index = (uint32_t)(step - core->steps);
    for (uint32_t i = 0; i < n; i++) {
        struct kvt_sequence *sequence = kvt_sequence_of(core, entries[i].seq);
        const bool is_named_twice = sequence->step != NO_STEP;
        entries[i].ready = is_named_twice ? KVT_NOT_READY : check_or_land(core, sequence);
        if (!is_named_twice) note_stall(core, sequence, entries[i].ready == KVT_NOT_READY);
        entries[i].lost_from = sequence->lost_from;
        if (entries[i].ready != KVT_READY && entries[i].ready != KVT_LANDING) continue;
        sequence->step = step_index;
        sequence->step_next = step->first_sequence;
        step->first_sequence = (uint32_t)(sequence - core->sequences);
    }
    if (step->first_sequence == KVT_NO_SEQUENCE) {
        step->is_open = false;
        *ret_step = 0;
        return KVT_OK;
    }
    core->metrics.steps++;
    kvt_layers_begin(core, step);
    kvt_core_order_after_other_streams(core, stream);
    measure_step(core);
    *ret_step = ((uint64_t)step->generation << 32) | (step_index + 1);
    return KVT_OK;
}

enum kvt_status kvt_core_step_end(struct kvt_core *core, kvt_step handle)
{
    struct kvt_step_state *step = kvt_core_step_of(core, handle);
    if (!step) return KVT_INVAL;
    const kvt_mark mark = core->gpu ? core->gpu->ops->mark(core->gpu, step->stream) : 0;
    if (core->gpu) core->stream_marks[step->stream] = mark;
    for (uint32_t s = step->first_sequence; s != KVT_NO_SEQUENCE; s = core->sequences[s].step_next) {
        struct kvt_sequence *sequence = &core->sequences[s];
        sequence->last_mark = mark;
        kvt_readers_end_of(core, sequence);
        kvt_layers_end(core, step, sequence);
        sequence->step = NO_STEP;
        kvt_sequence_slide(core, sequence);
    }
    while (step->limbo != KVT_NO_BLOCK) {
        const uint32_t index = step->limbo;
        step->limbo = kvt_core_block(core, index)->link;
        if (!KVT_PLANTED(DROPPED_UNPIN)) kvt_block_unclaim(core, index, mark);
        kvt_block_unref(core, index);
    }
    step->is_open = false;
    return KVT_OK;
}

/* ---- Stalls ------------------------------------------------------------------------------------------------------ */

/* The transfer that fills the block's device copy, among the oldest in flight. */
static const struct kvt_transfer *transfer_to(const struct kvt_core *core, uint32_t block)
{
    uint32_t seen = 0;
    for (uint32_t t = core->transfers.oldest; t != KVT_NO_TRANSFER && seen < 256;
         t = core->transfers.items[t].next, seen++) {
        const struct kvt_transfer *transfer = &core->transfers.items[t];
        if (transfer->target == block && transfer->leg != KVT_LEG_DEVICE_TO_HOST
            && transfer->leg != KVT_LEG_HOST_TO_NVME)
            return transfer;
    }
    return NULL;
}

static enum kvt_stall_cause stall_of_block(struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    const struct kvt_transfer *transfer = transfer_to(core, index);
    const bool is_nvme = transfer ? transfer->leg == KVT_LEG_NVME_TO_HOST
                                  : kvt_copy_state(block, KVT_TIER_HOST) == KVT_COPY_EMPTY;
    if (!transfer && kvt_copy_state(block, KVT_TIER_DEVICE) == KVT_COPY_EMPTY) {
        if (kvt_core_pool(core, block)->free_count == 0) return KVT_STALL_NO_SLOT;
        if (is_nvme && core->has_host && !kvt_host_pool_has_room(&core->host, kvt_flow_fetch_bytes(core, index)))
            return KVT_STALL_NO_SLOT;
    }
    if (sequence->is_hint_late) return KVT_STALL_LATE_HINT;
    if (is_nvme) return transfer && transfer->op.is_in_flight ? KVT_STALL_NVME_LINK : KVT_STALL_NVME_QUEUE;
    return core->codec_share > 0.5 ? KVT_STALL_CODEC : KVT_STALL_HOST_LINK;
}

enum kvt_stall_cause kvt_core_stall(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (sequence->mode != KVT_SEQUENCE_ACTIVE) return KVT_STALL_NO_SLOT;
    for (uint32_t g = 0; g < core->group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        uint32_t block = table->live;
        if (!is_state(core, g)) {
            if (check_table(core, sequence, g) == KVT_READY || table->ready >= table->count) continue;
            block = table->blocks[table->ready];
        }
        if (block == KVT_NO_BLOCK || kvt_copy_is_resident(kvt_core_block(core, block), KVT_TIER_DEVICE)) continue;
        return stall_of_block(core, sequence, block);
    }
    if (sequence->step != NO_STEP) return kvt_readers_stall(core, sequence);
    return check_writable(core, sequence) == KVT_READY ? KVT_STALL_OTHER : KVT_STALL_HOST_LINK;
}
