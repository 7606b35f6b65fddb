#include "tools/run/engine.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

enum { SAMPLE_ONE_OF = 16, SLEEP_SLICE_NS = 50 * 1000 * 1000 };

/* Of a step on a device that the CPU cannot touch: what is under way between two waits. At least a block. */
#define STAGING_BYTES (64 * KVT_MIB)
#define DEVICE_WAIT_NS (UINT64_C(60) * 1000000000)

/* One group's table of one item: slots are at arena[at .. at + count), of blocks first .. first + count - 1. */
struct table {
    uint64_t at, first, count;
};

struct step_item {
    struct kvt_engine_item item;
    struct table tables[KVT_GROUPS_MAX];
};

/* How a block is looked at. */
enum look { LOOK_TOUCH, LOOK_LINE, LOOK_WHOLE };

/* A look at one block of a step. */
struct sight {
    const struct step_item *item;
    bool is_state;
    struct kvt_content_run run; /* of a state only the group is set */
    uint64_t identity;          /* of a state */
    uint64_t block;
    enum look look;
    const uint8_t *base; /* where it was copied to; on an emulated device: where it is */
};

struct kvt_engine {
    struct kvt_runtime *runtime;
    const struct kvt_model_shape *shape;
    const struct kvt_content *content;
    const struct kvt_engine_options *options;
    kvt_stream stream;
    uint8_t **slots[KVT_GROUPS_MAX]; /* address of each slot of the group's pool */
    uint32_t slot_count[KVT_GROUPS_MAX];

    /* The step being built or run. */
    struct step_item *items;
    uint32_t item_count, item_capacity;
    uint32_t *arena;
    uint64_t arena_count, arena_capacity;
    struct kvt_engine_times times;
    struct kvt_engine_counts counts;
    uint64_t sink; /* what --verify off reads goes somewhere */

    /*
     * On a device that the CPU cannot touch the step's "kernels" are copies in the order of its stream: what it attends to comes to
     * staging, what it writes is made there, and what came is compared when the stream is done.
     */
    bool is_remote;
    uint8_t *staging;
    uint64_t staging_bytes, staging_used;
    struct sight *sights; /* what has been asked for and is still to be compared */
    uint32_t sight_count, sight_capacity;
    enum kvt_status status; /* of the copies */

    pthread_mutex_t mutex;
    pthread_cond_t done;
    bool is_done; /* shared: under mutex */
};

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / UINT64_C(1000000000)),
                              .tv_nsec = (long)(ns % UINT64_C(1000000000)) };
}

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

static enum kvt_status take_slots(struct kvt_engine *engine)
{
    for (uint32_t g = 0; g < engine->shape->group_count; g++) {
        engine->slot_count[g] = kvt_device_slots(engine->runtime, g);
        engine->slots[g] = kvt_alloc(engine->slot_count[g], sizeof *engine->slots[g]);
        if (!engine->slots[g]) return KVT_NOMEM;
        for (uint32_t i = 0; i < engine->slot_count[g]; i++) {
            engine->slots[g][i] = kvt_device_slot(engine->runtime, g, i);
        }
    }
    return KVT_OK;
}

static enum kvt_status take_staging(struct kvt_engine *engine)
{
    engine->staging_bytes = STAGING_BYTES;
    for (uint32_t g = 0; g < engine->shape->group_count; g++)
        engine->staging_bytes = kvt_max_u64(
            engine->staging_bytes, kvt_group_block_bytes(&engine->shape->groups[g], engine->shape->block_tokens));
    engine->staging = kvt_host_alloc(engine->runtime, engine->staging_bytes);
    return engine->staging ? KVT_OK : KVT_NOMEM;
}

enum kvt_status kvt_engine_create(struct kvt_runtime *runtime, const struct kvt_model_shape *shape,
                                  const struct kvt_content *content, const struct kvt_engine_options *options,
                                  struct kvt_engine **ret_engine)
{
    const bool is_remote = !kvt_emulated_stream(runtime, 0);
    const kvt_stream stream = kvt_device_stream(runtime, 0);
    if (!stream) return KVT_UNSUPPORTED;
    struct kvt_engine *engine = kvt_alloc(1, sizeof *engine);
    if (!engine) return KVT_NOMEM;
    engine->runtime = runtime;
    engine->shape = shape;
    engine->content = content;
    engine->options = options;
    engine->stream = stream;
    engine->is_remote = is_remote;
    engine->is_done = true;
    (void)pthread_mutex_init(&engine->mutex, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&engine->done, &attributes);
    (void)pthread_condattr_destroy(&attributes);

    enum kvt_status status = take_slots(engine);
    if (status == KVT_OK && is_remote) status = take_staging(engine);
    if (status != KVT_OK) {
        kvt_engine_destroy(&engine);
        return status;
    }
    *ret_engine = engine;
    return KVT_OK;
}

void kvt_engine_destroy(struct kvt_engine **engine)
{
    struct kvt_engine *e = *engine;
    if (!e) return;
    KVT_ASSERT(e->is_done);
    if (e->staging && kvt_device_wait(e->runtime, e->stream, DEVICE_WAIT_NS))
        kvt_host_free(e->runtime, e->staging, e->staging_bytes);
    kvt_free(e->sights);
    for (uint32_t g = 0; g < KVT_GROUPS_MAX; g++) kvt_free(e->slots[g]);
    kvt_free(e->items);
    kvt_free(e->arena);
    (void)pthread_cond_destroy(&e->done);
    (void)pthread_mutex_destroy(&e->mutex);
    kvt_free(e);
    *engine = NULL;
}

kvt_stream kvt_engine_stream(const struct kvt_engine *engine) { return engine->stream; }

const struct kvt_engine_counts *kvt_engine_counts(const struct kvt_engine *engine) { return &engine->counts; }

/* ---- Building a step --------------------------------------------------------------------------------------------- */

static enum kvt_status reserve_arena(struct kvt_engine *engine, uint64_t more)
{
    if (engine->arena_count + more <= engine->arena_capacity) return KVT_OK;
    const uint64_t capacity = kvt_max_u64(2 * engine->arena_capacity, engine->arena_count + more);
    uint32_t *arena = kvt_realloc(engine->arena, capacity, sizeof *arena);
    if (!arena) return KVT_NOMEM;
    engine->arena = arena;
    engine->arena_capacity = capacity;
    return KVT_OK;
}

static enum kvt_status read_table(struct kvt_engine *engine, struct step_item *step_item, uint32_t group)
{
    const struct kvt_engine_item *item = &step_item->item;
    const uint64_t block_tokens = engine->shape->block_tokens;
    uint64_t max = (item->committed + item->count) / block_tokens + 2;
    for (;;) {
        uint64_t first, count;
        KVT_TRY(reserve_arena(engine, max));
        KVT_TRY(
            kvt_seq_table(engine->runtime, item->seq, group, engine->arena + engine->arena_count, max, &first, &count));
        if (count <= max) {
            step_item->tables[group] = (struct table){ .at = engine->arena_count, .first = first, .count = count };
            engine->arena_count += count;
            return KVT_OK;
        }
        max = count;
    }
}

enum kvt_status kvt_engine_add(struct kvt_engine *engine, const struct kvt_engine_item *item)
{
    KVT_ASSERT(engine->is_done);
    KVT_ASSERT(item->count > 0);
    if (engine->item_count == engine->item_capacity) {
        const uint32_t capacity = engine->item_capacity ? 2 * engine->item_capacity : 16;
        struct step_item *items = kvt_realloc(engine->items, capacity, sizeof *items);
        if (!items) return KVT_NOMEM;
        engine->items = items;
        engine->item_capacity = capacity;
    }
    struct step_item *step_item = &engine->items[engine->item_count];
    *step_item = (struct step_item){ .item = *item };
    for (uint32_t g = 0; g < engine->shape->group_count; g++) KVT_TRY(read_table(engine, step_item, g));
    engine->item_count++;
    return KVT_OK;
}

/* ---- The job ----------------------------------------------------------------------------------------------------- */

void kvt_engine_count_mismatch(struct kvt_engine_counts *counts, const struct kvt_mismatch *mismatch)
{
    const uint64_t n = counts->mismatches++;
    if (n < KVT_MISMATCHES_KEPT) counts->kept[n] = *mismatch;
}

void kvt_engine_counts_add(struct kvt_engine_counts *counts, const struct kvt_engine_counts *more)
{
    counts->blocks_checked += more->blocks_checked;
    counts->lines_checked += more->lines_checked;
    for (uint64_t i = 0; i < kvt_min_u64(more->mismatches, KVT_MISMATCHES_KEPT); i++)
        kvt_engine_count_mismatch(counts, &more->kept[i]);
    if (more->mismatches > KVT_MISMATCHES_KEPT) counts->mismatches += more->mismatches - KVT_MISMATCHES_KEPT;
}

static void mismatch(struct kvt_engine *engine, const struct step_item *item, uint32_t group, uint64_t block,
                     uint64_t offset)
{
    kvt_engine_count_mismatch(&engine->counts, &(struct kvt_mismatch){ item->item.request, group, block, offset });
}

/* The slot of a block in the step's table, or KVT_NO_SLOT when the table has none for it. */
static uint32_t block_slot(const struct kvt_engine *engine, const struct step_item *item, uint32_t group,
                           uint64_t block)
{
    const struct table *table = &item->tables[group];
    if (block < table->first) return KVT_NO_SLOT;
    if (block - table->first >= table->count) return KVT_NO_SLOT;
    const uint32_t slot = engine->arena[table->at + block - table->first];
    return slot < engine->slot_count[group] ? slot : KVT_NO_SLOT;
}

static void compare(struct kvt_engine *engine, const struct sight *sight)
{
    const struct kvt_content_run *run = &sight->run;
    const uint8_t *base = sight->base;
    uint64_t differs = KVT_CONTENT_SAME;
    switch (sight->look) {
    case LOOK_TOUCH: engine->sink ^= base[0]; break;
    case LOOK_LINE:
        engine->counts.lines_checked++;
        differs = sight->is_state ? kvt_content_check_state_line(engine->content, run->group, sight->identity, base)
                                  : kvt_content_check_line(engine->content, run, base);
        break;
    case LOOK_WHOLE:
        engine->counts.blocks_checked++;
        differs = sight->is_state ? kvt_content_check_state(engine->content, run->group, sight->identity, base)
                                  : kvt_content_check(engine->content, run, base);
        break;
    }
    if (differs != KVT_CONTENT_SAME) mismatch(engine, sight->item, run->group, sight->block, differs);
}

/* ---- On a device that the CPU cannot touch ----------------------------------------------------------------------- */

static void note_status(struct kvt_engine *engine, enum kvt_status status)
{
    if (engine->status == KVT_OK) engine->status = status;
}

/* The stream is done: what came is compared, and staging is free again. */
static void compare_all(struct kvt_engine *engine)
{
    for (uint32_t i = 0; i < engine->sight_count; i++) compare(engine, &engine->sights[i]);
    engine->sight_count = 0;
    engine->staging_used = 0;
}

/* Room for one block of the group; what is under way is waited for when there is none. */
static uint8_t *staging_room(struct kvt_engine *engine, uint32_t group)
{
    const uint64_t bytes = kvt_group_block_bytes(&engine->shape->groups[group], engine->shape->block_tokens);
    if (engine->staging_used + bytes > engine->staging_bytes) {
        if (!kvt_device_wait(engine->runtime, engine->stream, DEVICE_WAIT_NS)) {
            note_status(engine, KVT_IO);
            return NULL;
        }
        compare_all(engine);
    }
    uint8_t *room = engine->staging + engine->staging_used;
    engine->staging_used += bytes;
    return room;
}

static void copy_sight(struct kvt_engine *engine, struct sight sight, uint32_t slot)
{
    const uint32_t group = sight.run.group;
    if (engine->sight_count == engine->sight_capacity) {
        const uint32_t capacity = engine->sight_capacity ? 2 * engine->sight_capacity : 64;
        struct sight *sights = kvt_realloc(engine->sights, capacity, sizeof *sights);
        if (!sights) {
            note_status(engine, KVT_NOMEM);
            return;
        }
        engine->sights = sights;
        engine->sight_capacity = capacity;
    }
    uint8_t *room = staging_room(engine, group);
    if (!room) return;
    const uint64_t bytes = kvt_group_block_bytes(&engine->shape->groups[group], engine->shape->block_tokens);
    note_status(engine, kvt_device_read(engine->runtime, engine->stream, group, slot, 0, room, bytes));
    sight.base = room;
    engine->sights[engine->sight_count++] = sight;
}

/* Rows first .. first + count - 1 of every segment of the block at base go to the slot. */
static void put_rows(struct kvt_engine *engine, uint32_t group, uint32_t slot, const uint8_t *base, uint64_t first,
                     uint64_t count)
{
    const struct kvt_group_shape *shape = &engine->shape->groups[group];
    const uint64_t bytes = kvt_group_block_bytes(shape, engine->shape->block_tokens);
    const bool is_whole = shape->kind == KVT_GROUP_STATE || count == engine->shape->block_tokens;
    const uint64_t row_bytes = kvt_group_row_bytes(shape), segment_bytes = engine->shape->block_tokens * row_bytes;
    const uint64_t step = is_whole ? bytes : segment_bytes, size = is_whole ? bytes : count * row_bytes;
    for (uint64_t at = is_whole ? 0 : first * row_bytes; at < bytes; at += step)
        note_status(engine, kvt_device_write(engine->runtime, engine->stream, group, slot, at, base + at, size));
}

/* ---- Reading and writing ----------------------------------------------------------------------------------------- */

static void look_at(struct kvt_engine *engine, struct sight sight, uint64_t index)
{
    const uint32_t group = sight.run.group, slot = block_slot(engine, sight.item, group, index);
    if (slot == KVT_NO_SLOT) {
        mismatch(engine, sight.item, group, sight.block, KVT_CONTENT_SAME);
    } else if (engine->is_remote) {
        copy_sight(engine, sight, slot);
    } else {
        sight.base = engine->slots[group][slot];
        compare(engine, &sight);
    }
}

/* The state after `tokens` tokens. */
static void look_at_state(struct kvt_engine *engine, const struct step_item *item, uint32_t group, uint64_t tokens,
                          enum look look)
{
    const struct sight sight = { .item = item,
                                 .is_state = true,
                                 .run = { .group = group },
                                 .identity = item->item.identities[tokens - 1],
                                 .block = (tokens - 1) / engine->shape->block_tokens,
                                 .look = look };
    look_at(engine, sight, item->tables[group].first);
}

static bool is_sampled(const struct kvt_engine *engine, uint64_t identity)
{
    if (engine->options->verify == KVT_VERIFY_FULL) return true;
    return engine->options->verify == KVT_VERIFY_SAMPLE && kvt_mix64(identity + 1) % SAMPLE_ONE_OF == 0;
}

/* What a plain read of the step does, and what a check of the whole block does where it is due. */
static enum look look_for(const struct kvt_engine *engine, bool is_check, uint64_t identity)
{
    if (engine->options->verify == KVT_VERIFY_OFF) return LOOK_TOUCH;
    if (engine->options->read == KVT_READ_FULL) return LOOK_WHOLE;
    return is_check && is_sampled(engine, identity) ? LOOK_WHOLE : LOOK_LINE;
}

/* Looks at the group's blocks that hold tokens [from, to) of a sequence of `tokens` tokens. */
static void look_at_tokens(struct kvt_engine *engine, const struct step_item *item, uint32_t group, uint64_t from,
                           uint64_t to, uint64_t tokens, bool is_check)
{
    const uint64_t block_tokens = engine->shape->block_tokens;
    for (uint64_t block = from / block_tokens; block * block_tokens < to; block++) {
        const uint64_t start = block * block_tokens;
        const struct kvt_content_run run = {
            .group = group,
            .first = 0,
            .count = (uint32_t)kvt_min_u64(block_tokens, tokens - start),
            .position = start,
            .identities = item->item.identities + start,
        };
        const enum look look = look_for(engine, is_check, run.identities[run.count - 1]);
        look_at(engine, (struct sight){ .item = item, .run = run, .block = block, .look = look }, block);
    }
}

/* Looks at everything that the token after `tokens` tokens attends to. */
static void look_at_past(struct kvt_engine *engine, const struct step_item *item, uint64_t tokens, bool is_check)
{
    if (tokens == 0) return;
    for (uint32_t g = 0; g < engine->shape->group_count; g++) {
        const struct kvt_group_shape *group = &engine->shape->groups[g];
        switch (group->kind) {
        case KVT_GROUP_FULL: look_at_tokens(engine, item, g, 0, tokens, tokens, is_check); break;
        case KVT_GROUP_WINDOW: {
            const uint64_t from = tokens - kvt_min_u64(tokens, group->window_tokens);
            const uint64_t sinks = kvt_min_u64(group->sink_tokens, from);
            if (sinks > 0) look_at_tokens(engine, item, g, 0, sinks, tokens, is_check);
            look_at_tokens(engine, item, g, from, tokens, tokens, is_check);
            break;
        }
        case KVT_GROUP_STATE:
            look_at_state(engine, item, g, tokens, look_for(engine, is_check, item->item.identities[tokens - 1]));
            break;
        }
    }
}

/* Where a block's new rows are made: in its slot, or in staging. NULL: it has no slot, or there is no room. */
static uint8_t *write_base(struct kvt_engine *engine, const struct step_item *item, uint32_t group, uint32_t slot,
                           uint64_t block)
{
    if (slot == KVT_NO_SLOT) mismatch(engine, item, group, block, KVT_CONTENT_SAME);
    if (slot == KVT_NO_SLOT) return NULL;
    return engine->is_remote ? staging_room(engine, group) : engine->slots[group][slot];
}

static void write_tokens(struct kvt_engine *engine, const struct step_item *item, uint32_t group)
{
    const uint64_t block_tokens = engine->shape->block_tokens;
    const uint64_t end = item->item.committed + item->item.count;
    for (uint64_t position = item->item.committed; position < end;) {
        const uint64_t block = position / block_tokens;
        const uint64_t first = position - block * block_tokens;
        const struct kvt_content_run run = {
            .group = group,
            .first = (uint32_t)first,
            .count = (uint32_t)kvt_min_u64(block_tokens - first, end - position),
            .position = position,
            .identities = item->item.identities + position,
        };
        const uint32_t slot = block_slot(engine, item, group, block);
        uint8_t *base = write_base(engine, item, group, slot, block);
        if (base) kvt_content_write(engine->content, &run, base);
        if (base && engine->is_remote) put_rows(engine, group, slot, base, first, run.count);
        position += run.count;
    }
}

static void write_state(struct kvt_engine *engine, const struct step_item *item, uint32_t group)
{
    const uint64_t last = item->item.committed + item->item.count - 1;
    const uint32_t slot = block_slot(engine, item, group, item->tables[group].first);
    uint8_t *base = write_base(engine, item, group, slot, last / engine->shape->block_tokens);
    if (base) kvt_content_write_state(engine->content, group, item->item.identities[last], base);
    if (base && engine->is_remote) put_rows(engine, group, slot, base, 0, 1);
}

static void run_item(struct kvt_engine *engine, const struct step_item *item)
{
    look_at_past(engine, item, item->item.committed, item->item.is_back);
    for (uint32_t g = 0; g < engine->shape->group_count; g++) {
        if (engine->shape->groups[g].kind == KVT_GROUP_STATE) write_state(engine, item, g);
        else write_tokens(engine, item, g);
    }
    if (item->item.is_last) look_at_past(engine, item, item->item.committed + item->item.count, true);
}

/* Sleeps to an absolute time, in slices, so that a signal ends it soon. */
static void sleep_until(const struct kvt_engine *engine, uint64_t deadline_ns)
{
    for (uint64_t now = now_ns(); now < deadline_ns; now = now_ns()) {
        if (engine->options->is_interrupted && atomic_load(engine->options->is_interrupted)) return;
        const struct timespec until = timespec_of(kvt_min_u64(deadline_ns, now + SLEEP_SLICE_NS));
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

static void run_step(void *user)
{
    struct kvt_engine *engine = user;
    engine->times.started_ns = now_ns();
    for (uint32_t i = 0; i < engine->item_count; i++) run_item(engine, &engine->items[i]);
    if (engine->options->step_ns > 0) sleep_until(engine, engine->times.started_ns + engine->options->step_ns);
    engine->times.ended_ns = now_ns();

    (void)pthread_mutex_lock(&engine->mutex);
    engine->is_done = true;
    (void)pthread_cond_signal(&engine->done);
    (void)pthread_mutex_unlock(&engine->mutex);
}

enum kvt_status kvt_engine_launch(struct kvt_engine *engine)
{
    KVT_ASSERT(engine->item_count > 0);
    engine->times.launched_ns = now_ns();
    engine->is_done = false;
    enum kvt_status status;
    if (engine->is_remote) {
        engine->status = KVT_OK;
        engine->times.started_ns = engine->times.launched_ns;
        for (uint32_t i = 0; i < engine->item_count; i++) run_item(engine, &engine->items[i]);
        status = engine->status;
    } else {
        status = kvt_emulated_launch(engine->runtime, engine->stream, run_step, engine);
    }
    if (status != KVT_OK) {
        engine->is_done = true;
        engine->item_count = 0;
        engine->arena_count = 0;
    }
    return status;
}

static bool wait_remote(struct kvt_engine *engine, uint64_t timeout_ns, struct kvt_engine_times *ret_times)
{
    if (!kvt_device_wait(engine->runtime, engine->stream, timeout_ns)) return false;
    compare_all(engine);
    if (engine->options->step_ns > 0) sleep_until(engine, engine->times.started_ns + engine->options->step_ns);
    engine->times.ended_ns = now_ns();
    engine->is_done = true;
    engine->item_count = 0;
    engine->arena_count = 0;
    *ret_times = engine->times;
    return true;
}

bool kvt_engine_wait(struct kvt_engine *engine, uint64_t timeout_ns, struct kvt_engine_times *ret_times)
{
    if (engine->is_remote) return wait_remote(engine, timeout_ns, ret_times);
    const struct timespec until = timespec_of(now_ns() + timeout_ns);
    (void)pthread_mutex_lock(&engine->mutex);
    int error = 0;
    while (!engine->is_done && error == 0) error = pthread_cond_timedwait(&engine->done, &engine->mutex, &until);
    const bool is_done = engine->is_done;
    (void)pthread_mutex_unlock(&engine->mutex);
    if (!is_done) return false;
    kvt_emulated_synchronize(engine->runtime, engine->stream);
    engine->item_count = 0;
    engine->arena_count = 0;
    *ret_times = engine->times;
    return true;
}

uint64_t kvt_engine_blocks_claimed(const struct kvt_model_shape *shape, uint32_t group, uint64_t tokens, uint64_t chunk)
{
    const struct kvt_group_shape *of = &shape->groups[group];
    const uint64_t block_tokens = shape->block_tokens;
    const uint64_t all = tokens / block_tokens + (tokens % block_tokens != 0);
    switch (of->kind) {
    case KVT_GROUP_FULL: return all;
    case KVT_GROUP_WINDOW: {
        const uint64_t kept = ((uint64_t)of->window_tokens + of->sink_tokens + chunk) / block_tokens + 3;
        return kvt_min_u64(all, kept);
    }
    case KVT_GROUP_STATE: break;
    }
    return 1;
}
