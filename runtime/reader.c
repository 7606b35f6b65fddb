#include "runtime/reader.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/core.h"
#include "runtime/flow.h"
#include "runtime/planner.h"
#include "runtime/residency.h"

#define NO_STEP UINT32_MAX
#define RETRIES_MAX 2
#define BATCH 32 /* beginnings of one reader in one call */
#define FREE_SHARE_LOW (1024 / 4)
#define LIFTS_MAX 16 /* records of one reader on their way through host memory at a time */

static uint32_t index_of(const struct kvt_core *core, const struct kvt_reader *reader)
{
    return (uint32_t)(reader - core->readers);
}

static uint32_t place_of(const struct kvt_reader *reader, uint64_t block) { return block % reader->place_count; }

static struct kvt_reader_entry *entry_at(const struct kvt_reader *reader, uint64_t block)
{
    return &reader->entries[place_of(reader, block)];
}

/* The only writer of entries' states. */
static void entry_step(struct kvt_reader_entry *entry, enum kvt_entry_event event)
{
    static const struct {
        uint8_t from, to;
    } edges[KVT_ENTRY_EVENTS] = {
#define KVT_ENTRY_EDGE(event, from, to) [KVT_ENTRY_##event] = { KVT_ENTRY_##from, KVT_ENTRY_##to },
        KVT_ENTRY_EDGES(KVT_ENTRY_EDGE)
#undef KVT_ENTRY_EDGE
    };
    KVT_ASSERT(event < KVT_ENTRY_EVENTS);
    KVT_ASSERT(entry->state == edges[event].from);
    entry->state = edges[event].to;
}

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

struct kvt_reader *kvt_reader_of(struct kvt_core *core, kvt_reader_id reader)
{
    const uint32_t index = (uint32_t)reader - 1;
    if (reader == 0 || index >= KVT_READERS_MAX) return NULL;
    struct kvt_reader *found = &core->readers[index];
    return found->is_open && found->generation == (uint32_t)(reader >> 32) ? found : NULL;
}

void kvt_reader_free(struct kvt_reader *reader)
{
    kvt_free(reader->window);
    kvt_free(reader->entries);
    kvt_free(reader->marks);
    *reader = (struct kvt_reader){ .generation = reader->generation };
}

static bool take_memory(struct kvt_reader *reader, uint32_t slots, uint32_t places)
{
    reader->window = kvt_alloc(slots, sizeof *reader->window);
    reader->entries = kvt_alloc(places, sizeof *reader->entries);
    reader->marks = kvt_alloc(places, sizeof *reader->marks);
    return reader->window && reader->entries && reader->marks;
}

static void give_window(struct kvt_core *core, struct kvt_reader *reader, kvt_mark mark)
{
    while (reader->slot_count > 0) {
        const uint32_t block = reader->window[--reader->slot_count];
        kvt_block_unclaim(core, block, mark);
        kvt_block_unref(core, block);
    }
}

enum kvt_status kvt_reader_take(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t slots,
                                enum kvt_room *ret_room, kvt_reader_id *ret_reader)
{
    if (group >= core->group_count || slots == 0 || core->groups[group].kind == KVT_GROUP_STATE) return KVT_INVAL;
    uint32_t index = 0;
    while (index < KVT_READERS_MAX && core->readers[index].is_open) index++;
    if (index == KVT_READERS_MAX) return KVT_FULL;
    uint32_t need[KVT_GROUPS_MAX] = { 0 };
    need[core->config.pool_of_group[group]] = slots;
    if (slots > core->pools[core->config.pool_of_group[group]].slot_count) *ret_room = KVT_ROOM_TOO_LONG;
    else *ret_room = kvt_sequence_room_for(core, need);
    if (*ret_room != KVT_ROOM_OK) return KVT_OK;

    struct kvt_reader *reader = &core->readers[index];
    const uint32_t layers = core->groups[group].layers;
    *reader = (struct kvt_reader){ .generation = reader->generation + 1,
                                   .seq = kvt_sequence_handle(core, sequence),
                                   .group = group,
                                   .layers = layers,
                                   .place_count = slots * layers };
    enum kvt_status status = take_memory(reader, slots, reader->place_count) ? KVT_OK : KVT_NOMEM;
    while (status == KVT_OK && reader->slot_count < slots) {
        const uint32_t block = kvt_block_fresh(core, group);
        if (block == KVT_NO_BLOCK) status = KVT_NOMEM;
        else reader->window[reader->slot_count++] = block;
    }
    if (status != KVT_OK) {
        give_window(core, reader, 0);
        kvt_reader_free(reader);
        return status;
    }
    reader->is_open = true;
    *ret_reader = (uint64_t)reader->generation << 32 | (index + 1);
    return KVT_OK;
}

void kvt_reader_give(struct kvt_core *core, struct kvt_reader *reader)
{
    KVT_ASSERT(reader->freed == reader->started); /* no pass is under way */
    const struct kvt_sequence *sequence = kvt_sequence_of(core, reader->seq);
    give_window(core, reader, sequence ? sequence->last_mark : 0);
    kvt_reader_free(reader);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* Compute is done with the entry at mark (0: it never had it). */
static void release(struct kvt_core *core, struct kvt_reader *reader, uint64_t block, kvt_mark mark)
{
    const struct kvt_reader_entry *entry = entry_at(reader, block);
    if (entry->state == KVT_ENTRY_DIRECT) {
        kvt_block_unclaim(core, entry->block, mark);
        kvt_block_unref(core, entry->block);
    } else if (mark != 0) {
        reader->marks[place_of(reader, block)] = mark;
    }
}

static void release_given(struct kvt_core *core, struct kvt_reader *reader, kvt_mark mark)
{
    while (reader->freed < reader->given) {
        release(core, reader, reader->freed, mark);
        reader->freed++;
    }
}

static void end_pass(struct kvt_core *core, struct kvt_reader *reader, kvt_mark mark)
{
    release_given(core, reader, mark);
    for (; reader->freed < reader->started; reader->freed++) release(core, reader, reader->freed, 0);
    reader->given = reader->started = reader->end = reader->freed;
    reader->pass++;
}

/* Behind what reads the piece that is out: it was submitted to the stream of that piece. 0: none is. */
static kvt_mark mark_given(struct kvt_core *core, const struct kvt_reader *reader)
{
    if (reader->freed == reader->given || !core->gpu) return 0;
    return core->stream_marks[reader->stream] = core->gpu->ops->mark(core->gpu, reader->stream);
}

void kvt_readers_end_of(struct kvt_core *core, const struct kvt_sequence *sequence)
{
    for (uint32_t r = 0; r < KVT_READERS_MAX; r++) {
        struct kvt_reader *reader = &core->readers[r];
        if (reader->is_open && kvt_sequence_of(core, reader->seq) == sequence)
            end_pass(core, reader, mark_given(core, reader));
    }
}

void kvt_readers_close_of(struct kvt_core *core, const struct kvt_sequence *sequence)
{
    for (uint32_t r = 0; r < KVT_READERS_MAX; r++) {
        struct kvt_reader *reader = &core->readers[r];
        if (reader->is_open && kvt_sequence_of(core, reader->seq) == sequence) kvt_reader_give(core, reader);
    }
}

/* ---- One entry --------------------------------------------------------------------------------------------------- */

/* A copy on the device is read where it is, and may not leave meanwhile. False: too much is claimed already. */
static bool take_direct(struct kvt_core *core, struct kvt_reader_entry *entry)
{
    const struct kvt_block *block = kvt_core_block(core, entry->block);
    uint32_t need[KVT_GROUPS_MAX] = { 0 };
    need[core->config.pool_of_group[block->group]] = 1;
    if (block->users == 0 && !kvt_sequence_make_claimable(core, need)) return false;
    kvt_block_ref(core, entry->block);
    kvt_block_claim(core, entry->block);
    entry_step(entry, KVT_ENTRY_CLAIM);
    return true;
}

/* True when a layer was sent on its way. */
static bool move_layer(struct kvt_core *core, struct kvt_reader *reader, uint64_t number)
{
    struct kvt_reader_entry *entry = entry_at(reader, number);
    const uint32_t place = place_of(reader, number);
    const struct kvt_window_place to = { .block = reader->window[place / reader->layers],
                                         .place = place % reader->layers,
                                         .after = reader->marks[place],
                                         .reader = index_of(core, reader),
                                         .pass = reader->pass,
                                         .entry = place };
    if (kvt_flow_to_window(core, entry->block, reader->layer, &to) != KVT_FLOW_STARTED) return false;
    entry_step(entry, KVT_ENTRY_MOVE);
    return true;
}

/* True when a record was sent on its way to host memory. */
static bool lift(struct kvt_core *core, struct kvt_reader_entry *entry)
{
    enum kvt_flow flow = kvt_flow_lift(core, entry->block, KVT_PRIORITY_DEMAND);
    if (flow == KVT_FLOW_NO_HOST_SLOT
        && kvt_planner_make_host_room(core, kvt_core_block(core, entry->block)->nvme_length))
        flow = kvt_flow_lift(core, entry->block, KVT_PRIORITY_DEMAND);
    if (flow == KVT_FLOW_STARTED) entry->is_lifted = true;
    return flow == KVT_FLOW_STARTED;
}

/* Does for a wanted entry what can be done now. True when something was started. */
static bool try_entry(struct kvt_core *core, struct kvt_reader *reader, uint64_t number, bool may_lift)
{
    struct kvt_reader_entry *entry = entry_at(reader, number);
    if (entry->block == KVT_NO_BLOCK) {
        entry_step(entry, KVT_ENTRY_PASS_BY);
        return false;
    }
    const struct kvt_block *block = kvt_core_block(core, entry->block);
    if (kvt_copy_is_resident(block, KVT_TIER_DEVICE) && take_direct(core, entry)) return false;
    if (kvt_copy_is_resident(block, KVT_TIER_HOST)) return move_layer(core, reader, number);
    const bool is_coming = kvt_copy_state(block, KVT_TIER_DEVICE) != KVT_COPY_EMPTY
        || kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY;
    if (is_coming) return false;
    if (kvt_copy_is_resident(block, KVT_TIER_NVME)) return may_lift && lift(core, entry);
    entry_step(entry, KVT_ENTRY_LOSE);
    core->counters.lost_blocks++;
    core->events++;
    return false;
}

/* Lets entries into the window as far as there are places, and starts what can start. */
static void advance(struct kvt_core *core, struct kvt_reader *reader)
{
    const struct kvt_sequence *sequence = kvt_sequence_of(core, reader->seq);
    const struct kvt_sequence_table *table = &sequence->groups[reader->group];
    while (reader->started < reader->end && reader->started - reader->freed < reader->place_count) {
        *entry_at(reader, reader->started) = (struct kvt_reader_entry){ .state = KVT_ENTRY_WANTED,
                                                                        .block = table->blocks[reader->started] };
        reader->started++;
    }
    uint32_t begun = 0, lifts = 0;
    for (uint64_t i = reader->given; i < reader->started && begun < BATCH; i++) {
        const struct kvt_reader_entry *entry = entry_at(reader, i);
        if (entry->state == KVT_ENTRY_WANTED) begun += try_entry(core, reader, i, lifts < LIFTS_MAX);
        lifts += entry->is_lifted && entry->state != KVT_ENTRY_LANDED && entry->state != KVT_ENTRY_DIRECT;
    }
}

void kvt_readers_pump(struct kvt_core *core)
{
    for (uint32_t r = 0; r < KVT_READERS_MAX; r++) {
        struct kvt_reader *reader = &core->readers[r];
        if (reader->is_open && reader->given < reader->end) advance(core, reader);
    }
}

/*
 * Host memory is short: what was brought there for this pass alone makes room for what comes next. Were it left to the
 * policy, each pass would push out what the next one needs first.
 */
static void drop_lifted(struct kvt_core *core, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(core, index);
    const bool may_go = kvt_copy_is_resident(block, KVT_TIER_HOST) && block->readers[KVT_TIER_HOST] == 0
        && kvt_copy_is_resident(block, KVT_TIER_NVME) && !kvt_block_has(block, KVT_BLOCK_HOST_LEAVING);
    if (may_go && kvt_host_pool_free_share(&core->host) < FREE_SHARE_LOW)
        kvt_host_drop(core, index, KVT_POLICY_EVICTED);
}

void kvt_reader_landed(struct kvt_core *core, uint32_t index, uint32_t pass, uint32_t place, enum kvt_status status)
{
    struct kvt_reader *reader = &core->readers[index];
    if (!reader->is_open || reader->pass != pass) return;
    struct kvt_reader_entry *entry = &reader->entries[place];
    if (entry->state != KVT_ENTRY_MOVING) return;
    if (status == KVT_OK) {
        entry_step(entry, KVT_ENTRY_LAND);
        if (entry->is_lifted) drop_lifted(core, entry->block);
    } else if (entry->retries++ < RETRIES_MAX) {
        entry_step(entry, KVT_ENTRY_AGAIN);
    } else {
        entry_step(entry, KVT_ENTRY_GIVE_UP);
        core->counters.lost_blocks++;
    }
}

static enum kvt_stall_cause stall_of(struct kvt_core *core, const struct kvt_reader_entry *entry)
{
    const struct kvt_block *block = kvt_core_block(core, entry->block);
    if (entry->state == KVT_ENTRY_MOVING || kvt_copy_is_resident(block, KVT_TIER_HOST))
        return core->codec_share > 0.5 ? KVT_STALL_CODEC : KVT_STALL_HOST_LINK;
    if (kvt_copy_state(block, KVT_TIER_HOST) == KVT_COPY_FILLING)
        return entry->is_lifted ? KVT_STALL_NVME_LINK : KVT_STALL_HOST_LINK;
    if (kvt_copy_state(block, KVT_TIER_DEVICE) != KVT_COPY_EMPTY) return KVT_STALL_HOST_LINK;
    return kvt_host_pool_has_room(&core->host, block->nvme_length) ? KVT_STALL_NVME_QUEUE : KVT_STALL_NO_SLOT;
}

enum kvt_stall_cause kvt_readers_stall(struct kvt_core *core, const struct kvt_sequence *sequence)
{
    for (uint32_t r = 0; r < KVT_READERS_MAX; r++) {
        const struct kvt_reader *reader = &core->readers[r];
        if (!reader->is_open || kvt_sequence_of(core, reader->seq) != sequence) continue;
        for (uint64_t i = reader->given; i < reader->started; i++) {
            const struct kvt_reader_entry *entry = entry_at(reader, i);
            if (entry->state == KVT_ENTRY_WANTED || entry->state == KVT_ENTRY_MOVING) return stall_of(core, entry);
        }
    }
    return KVT_STALL_OTHER;
}

/* ---- The calls --------------------------------------------------------------------------------------------------- */

enum kvt_status kvt_reader_pass(struct kvt_core *core, struct kvt_reader *reader, uint32_t layer, uint64_t first,
                                uint64_t end)
{
    const struct kvt_sequence *sequence = kvt_sequence_of(core, reader->seq);
    KVT_ASSERT(sequence != NULL); /* it closes its readers when it ends */
    if (sequence->step == NO_STEP || layer >= reader->layers) return KVT_INVAL;
    if (first > end || end > sequence->groups[reader->group].count) return KVT_INVAL;
    end_pass(core, reader, mark_given(core, reader));
    reader->layer = layer;
    reader->freed = reader->given = reader->started = first;
    reader->end = end;
    advance(core, reader);
    return KVT_OK;
}

static bool is_here(const struct kvt_reader_entry *entry)
{
    return entry->state == KVT_ENTRY_LANDED || entry->state == KVT_ENTRY_DIRECT || entry->state == KVT_ENTRY_HOLE;
}

static uint32_t chunk_of(const struct kvt_core *core, const struct kvt_reader *reader, uint64_t number)
{
    const struct kvt_reader_entry *entry = entry_at(reader, number);
    const uint32_t place = place_of(reader, number);
    if (entry->state == KVT_ENTRY_HOLE) return KVT_NO_SLOT;
    if (entry->state == KVT_ENTRY_DIRECT)
        return kvt_core_block(core, entry->block)->device_slot * reader->layers + reader->layer;
    return kvt_core_block(core, reader->window[place / reader->layers])->device_slot * reader->layers
        + place % reader->layers;
}

/* How many of the next entries can be handed out: half of the window, or all that is left; 0: not yet. */
static uint32_t next_count(const struct kvt_reader *reader, uint32_t max)
{
    const uint64_t half = kvt_max_u32(reader->place_count / 2, 1);
    const uint64_t wanted = kvt_min_u64(kvt_min_u64(half, max), reader->end - reader->given);
    uint64_t count = 0;
    while (count < wanted && reader->given + count < reader->started
           && is_here(entry_at(reader, reader->given + count)))
        count++;
    return count == wanted ? (uint32_t)count : 0;
}

/* The first entry that is lost among those on their way; UINT64_MAX: none. */
static uint64_t first_lost(const struct kvt_reader *reader)
{
    for (uint64_t i = reader->given; i < reader->started; i++) {
        if (entry_at(reader, i)->state == KVT_ENTRY_LOST) return i;
    }
    return UINT64_MAX;
}

enum kvt_status kvt_reader_next_piece(struct kvt_core *core, struct kvt_reader *reader, uint32_t stream,
                                      uint32_t *ret_chunks, uint32_t max, struct kvt_piece *ret_piece)
{
    struct kvt_sequence *sequence = kvt_sequence_of(core, reader->seq);
    KVT_ASSERT(sequence != NULL);
    if (sequence->step == NO_STEP || max == 0) return KVT_INVAL;
    if (reader->freed < reader->given) release_given(core, reader, mark_given(core, reader));
    *ret_piece = (struct kvt_piece){ .state = KVT_PIECE_END, .first = reader->given, .lost_from = UINT64_MAX };
    if (reader->given == reader->end) return KVT_OK;
    advance(core, reader);
    const uint64_t lost = first_lost(reader);
    if (lost != UINT64_MAX) {
        sequence->lost_from = kvt_min_u64(sequence->lost_from, lost * core->block_tokens);
        *ret_piece = (struct kvt_piece){ .state = KVT_PIECE_LOST, .lost_from = sequence->lost_from };
        return KVT_OK;
    }
    const uint32_t count = next_count(reader, max);
    *ret_piece = (struct kvt_piece){ .state = count > 0 ? KVT_PIECE_HERE : KVT_PIECE_PENDING,
                                     .first = reader->given,
                                     .count = count,
                                     .lost_from = UINT64_MAX };
    if (count == 0) return KVT_OK;
    for (uint32_t i = 0; i < count; i++) ret_chunks[i] = chunk_of(core, reader, reader->given + i);
    reader->given += count;
    reader->stream = stream;
    /* What is on the device may have been written on another stream. What went through a place has landed. */
    kvt_core_order_after_other_streams(core, stream);
    return KVT_OK;
}
