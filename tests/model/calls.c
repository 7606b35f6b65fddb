#include "tests/model/calls.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/planner.h"
#include "tests/fakes/nvme_memory.h"

#define NO_STEP UINT32_MAX
#define ROUNDS_MAX 400 /* within which everything that can happen has happened, once faults have ended */

static const char *const rooms[] = { "ok", "pending", "full", "too long" };
static const char *const readies[] = { "ready", "not ready", "lost" };

/* State alone grows without end. */
static bool is_only_state(const struct world *world)
{
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        if (world->config.shape.groups[g].kind != KVT_GROUP_STATE) return false;
    }
    return true;
}

static bool has_state(const struct world *world)
{
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        if (world->config.shape.groups[g].kind == KVT_GROUP_STATE) return true;
    }
    return false;
}

/* A random live sequence; UINT32_MAX: there is none. */
static uint32_t pick(struct world *world)
{
    const uint32_t start = world_below(world, WORLD_SEQUENCES_MAX);
    for (uint32_t n = 0; n < WORLD_SEQUENCES_MAX; n++) {
        const uint32_t i = (start + n) % WORLD_SEQUENCES_MAX;
        if (world->sequences[i].is_live) return i;
    }
    return UINT32_MAX;
}

static bool is_in_step(struct world *world, uint32_t i)
{
    return world_core_sequence(world, &world->sequences[i])->step != NO_STEP;
}

static bool is_active(struct world *world, uint32_t i)
{
    return world_core_sequence(world, &world->sequences[i])->mode == KVT_SEQUENCE_ACTIVE;
}

/* What a refused call must not change. */
static uint64_t digest(const struct world *world)
{
    const struct kvt_core *core = &world->core;
    const uint64_t parts[] = { core->table.count,        core->prefix.count,  core->sequence_count,
                               core->demand.head,        core->expected.head, core->transfers.in_flight,
                               core->transfers.free_head };
    struct kvt_key key = kvt_key_digest(parts, sizeof parts);
    const struct kvt_key blocks = kvt_key_digest(core->table.blocks,
                                                 core->table.high_water * sizeof *core->table.blocks);
    const struct kvt_key sequences = kvt_key_digest(core->sequences,
                                                    core->config.sequences_max * sizeof *core->sequences);
    key.lo ^= blocks.lo ^ kvt_mix64(sequences.lo);
    for (uint32_t p = 0; p < core->config.pool_count; p++)
        key.lo = kvt_mix64(key.lo ^ core->pools[p].free_count ^ (uint64_t)core->pools[p].claimed << 32);
    return key.lo;
}

/* ---- Create ------------------------------------------------------------------------------------------------------ */

/* True while nothing was ever dropped from any tier: then reuse is exactly what the twin says. */
static bool is_pristine(const struct world *world)
{
    const struct kvt_core *core = &world->core;
    if (world->was_kept_false || core->counters.dropped_blocks > 0 || core->counters.given_up_blocks > 0
        || core->counters.failures > 0)
        return false;
    if (core->counters.abandoned > 0 || world->config.blocks_max < 4096 || world->config.transfers_max < 64)
        return false;
    return !world->nvme || kvt_nvme_memory_dropped(world->nvme) == 0;
}

static void check_reuse(struct world *world, uint32_t index, uint32_t reused, uint64_t limit)
{
    const uint32_t block_tokens = world->config.shape.block_tokens;
    WORLD_CHECK(world, reused % block_tokens == 0, "%u tokens reused", reused);
    WORLD_CHECK(world, reused <= limit, "%u tokens reused, limit %llu", reused, (unsigned long long)limit);
    WORLD_CHECK(world, twin_is_prefix(&world->twin, &world->scratch, reused / block_tokens),
                "sequence %u reuses %u tokens that were never all sealed", index, reused);
    uint32_t longest = (uint32_t)(limit / block_tokens);
    while (longest > 0 && !twin_is_prefix(&world->twin, &world->scratch, longest)) longest--;
    if (is_pristine(world))
        WORLD_CHECK(world, longest * block_tokens == reused, "sequence %u reuses %u tokens of %u that are all there",
                    index, reused, longest * block_tokens);
}

uint32_t calls_create(struct world *world, const uint32_t *ids, uint32_t count, uint64_t reuse_max, uint32_t salt,
                      bool is_idle)
{
    uint32_t index = 0;
    while (index < WORLD_SEQUENCES_MAX && world->sequences[index].is_live) index++;
    if (index == WORLD_SEQUENCES_MAX) return UINT32_MAX;
    const struct kvt_seq_params params = { .tokens = ids,
                                           .token_count = count,
                                           .reuse_max = reuse_max,
                                           .salt = salt ? &salt : NULL,
                                           .salt_bytes = salt ? sizeof salt : 0,
                                           .is_idle = is_idle };
    struct kvt_sequence *sequence;
    const enum kvt_status status = kvt_sequence_create(&world->core, &params, &sequence);
    world_say(world, "create %u: %u ids, reuse_max %llu, salt %u, %s: status %d", index, count,
              (unsigned long long)reuse_max, salt, is_idle ? "idle" : "active", (int)status);
    if (status != KVT_OK) {
        WORLD_CHECK(world, status == KVT_FULL, "status %d", (int)status);
        WORLD_CHECK(world, world->core.sequence_count == world->config.sequences_max, "refused with %u sequences",
                    world->core.sequence_count);
        return UINT32_MAX;
    }
    const uint32_t reused = (uint32_t)sequence->reused;
    world_say(world, "create %u: reused %u, mode %d", index, reused, sequence->mode);
    twin_begin(&world->scratch, salt);
    for (uint32_t i = 0; i < count; i++) twin_push(&world->scratch, ids[i]);
    check_reuse(world, index, reused, count ? kvt_min_u64(reuse_max, count - 1) : 0);
    struct twin_sequence *twin = &world->sequences[index];
    *twin = world->scratch;
    twin->tokens = reused;
    twin->prompt = count;
    twin->handle = kvt_sequence_handle(&world->core, sequence);
    world->reused_tokens += reused;
    return index;
}

static uint32_t next_id(struct world *world, const struct twin_sequence *twin)
{
    if (twin->tokens < twin->prompt) return twin->ids[twin->tokens];
    /* Mostly what others computed too. */
    return world_chance(world, 85) ? twin->tokens % 7 : world_below(world, 3);
}

/* Ids of a document, or the beginning of what some sequence has or had. */
static uint32_t make_prompt(struct world *world, uint32_t *ret_ids, uint32_t *ret_salt)
{
    const uint32_t length_max = world_chance(world, 80) ? 40 : 160;
    uint32_t count = world_below(world, length_max);
    *ret_salt = world_chance(world, 80) ? 0 : 1 + world_below(world, 2);
    const struct twin_sequence *from = &world->archive[world_below(world, WORLD_ARCHIVE)];
    const uint32_t live = pick(world);
    if (world_chance(world, 40) && live != UINT32_MAX) from = &world->sequences[live];
    if (world_chance(world, 75) && from->tokens > 0) {
        count = 1 + world_below(world, from->tokens);
        memcpy(ret_ids, from->ids, count * sizeof *ret_ids);
        *ret_salt = from->salt;
        for (uint32_t extra = world_below(world, 8); extra > 0 && count < TWIN_TOKENS_MAX / 2; extra--, count++)
            ret_ids[count] = count % 7;
    } else {
        const uint32_t document = world_below(world, 3);
        for (uint32_t i = 0; i < count; i++)
            ret_ids[i] = document ? (uint32_t)(kvt_mix64(document * 1000 + i) % 50) : i % 7;
    }
    if (count > TWIN_TOKENS_MAX / 2) count = TWIN_TOKENS_MAX / 2;
    return count;
}

static void call_create(struct world *world)
{
    uint32_t ids[TWIN_TOKENS_MAX + 16];
    uint32_t salt;
    const uint32_t count = make_prompt(world, ids, &salt);
    const uint64_t reuse_max = world_chance(world, 80) ? UINT64_MAX : world_below(world, 30);
    (void)calls_create(world, ids, count, reuse_max, salt, world_chance(world, 25));
}

/* ---- Append ------------------------------------------------------------------------------------------------------ */

static enum kvt_room append(struct world *world, uint32_t i, uint64_t n)
{
    struct kvt_sequence *sequence = world_core_sequence(world, &world->sequences[i]);
    const uint64_t before = sequence->reserved;
    enum kvt_room room;
    const enum kvt_status status = kvt_sequence_append(&world->core, sequence, n, &room);
    if (status != KVT_OK) {
        world_say(world, "append %u: %llu: status %d", i, (unsigned long long)n, (int)status);
        /* a shared tail under a step that began without room */
        const bool is_refused = status == KVT_INVAL && sequence->step != NO_STEP;
        WORLD_CHECK(world, is_refused || (status == KVT_NOMEM && world->config.blocks_max < 4096), "status %d",
                    (int)status);
        WORLD_CHECK(world, sequence->reserved <= before, "reserved %llu", (unsigned long long)sequence->reserved);
        return KVT_ROOM_FULL;
    }
    world_say(world, "append %u: %llu: %s", i, (unsigned long long)n, rooms[room]);
    WORLD_CHECK(world, (n < 1000000) || room == KVT_ROOM_TOO_LONG, "room %d", (int)room);
    WORLD_CHECK(world, sequence->reserved == before + (room == KVT_ROOM_OK ? n : 0), "reserved %llu",
                (unsigned long long)sequence->reserved);
    if (room == KVT_ROOM_PENDING) world->pendings++;
    return room;
}

/* What an engine would ask for: a prompt whole or in chunks, then a few tokens. */
static uint64_t choose_append(struct world *world, uint32_t i)
{
    const struct twin_sequence *twin = &world->sequences[i];
    const struct kvt_sequence *sequence = world_core_sequence(world, twin);
    uint64_t n = world_chance(world, 70) ? world_below(world, 4)
                                         : world_below(world, 4 * world->config.shape.block_tokens);
    if (twin->prompt > sequence->reserved && world_chance(world, 60)) n = twin->prompt - sequence->reserved;
    if (n > 1 && world_chance(world, 40)) n = 1 + world_below(world, (uint32_t)n);
    return sequence->reserved + n > TWIN_TOKENS_MAX ? 0 : n;
}

static void call_append(struct world *world)
{
    const uint32_t i = pick(world);
    if (i == UINT32_MAX) return;
    struct kvt_sequence *sequence = world_core_sequence(world, &world->sequences[i]);
    uint64_t n = choose_append(world, i);
    if (world_chance(world, 1))
        n = world_chance(world, 50) && !is_only_state(world) ? 1000000 + world_below(world, 100)
                                                             : UINT64_MAX - world_below(world, 3);
    if (!is_active(world, i)) {
        enum kvt_room room;
        const uint64_t before = digest(world);
        const enum kvt_status status = kvt_sequence_append(&world->core, sequence, n, &room);
        WORLD_CHECK(world, status == KVT_INVAL, "append to an idle sequence: status %d", (int)status);
        WORLD_CHECK(world, digest(world) == before, "a refused append changed something");
        return;
    }
    (void)append(world, i, n);
}

static void call_idle(struct world *world)
{
    const uint32_t i = pick(world);
    if (i == UINT32_MAX) return;
    const bool was_in_step = is_in_step(world, i);
    const enum kvt_status status = kvt_sequence_idle(&world->core, world_core_sequence(world, &world->sequences[i]));
    world_say(world, "idle %u: status %d", i, (int)status);
    WORLD_CHECK(world, status == (was_in_step ? KVT_INVAL : KVT_OK), "status %d", (int)status);
}

void calls_finish_sequence(struct world *world, uint32_t i, bool is_kept)
{
    struct twin_sequence *twin = &world->sequences[i];
    kvt_sequence_finish(&world->core, world_core_sequence(world, twin), is_kept);
    world_say(world, "finish %u: %s", i, is_kept ? "kept" : "not kept");
    world->was_kept_false = world->was_kept_false || !is_kept;
    if (twin->last_drop == 0) world->archive[world_below(world, WORLD_ARCHIVE)] = *twin;
    twin->is_live = false;
    WORLD_CHECK(world, kvt_sequence_of(&world->core, twin->handle) == NULL, "the handle still works");
}

static void call_finish(struct world *world)
{
    const uint32_t i = pick(world);
    if (i == UINT32_MAX || is_in_step(world, i)) return;
    /* Some worlds keep everything, so that reuse can be told exactly. */
    calls_finish_sequence(world, i, world->config.seed % 2 == 0 || world_chance(world, 70));
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* Blocks that commits of tokens [from, to) seal, and the snapshot at the end. */
static void note_sealed(struct world *world, struct twin_sequence *twin, uint32_t from, uint32_t to, bool is_snapshot)
{
    const uint32_t block_tokens = world->config.shape.block_tokens;
    if (twin->is_unshared) return;
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        if (world->config.shape.groups[g].kind == KVT_GROUP_STATE) {
            const struct kvt_sequence_table *table = &world_core_sequence(world, twin)->groups[g];
            const uint32_t i = to / block_tokens - 1;
            if (is_snapshot && table->count > i && table->blocks[i] != KVT_NO_BLOCK)
                twin_seal(&world->twin, g, twin_block_value(&world->twin, twin, i));
            continue;
        }
        for (uint32_t i = from / block_tokens; (i + 1) * block_tokens <= to; i++)
            twin_seal(&world->twin, g, twin_block_value(&world->twin, twin, i));
    }
}

/* Writes and commits n of the reserved tokens of a sequence in a step. */
static void compute(struct world *world, uint32_t i, uint32_t n, uint32_t stream, bool is_snapshot_wanted)
{
    struct twin_sequence *twin = &world->sequences[i];
    const uint32_t from = twin->tokens;
    const uint32_t prompt = twin->prompt;
    for (uint32_t t = 0; t < n; t++) twin_push(twin, next_id(world, twin));
    twin->prompt = kvt_max_u32(prompt, twin->tokens);
    twin->tokens = from;
    world_launch_write(world, twin, n, stream);
    const bool is_snapshot = is_snapshot_wanted && n > 0 && (from + n) % world->config.shape.block_tokens == 0;
    const enum kvt_status status = kvt_sequence_commit(&world->core, world_core_sequence(world, twin), twin->ids + from,
                                                       n, is_snapshot ? KVT_COMMIT_SNAPSHOT : 0,
                                                       world->engine_streams[stream], NULL);
    world_say(world, "commit %u: %u tokens from %u%s: status %d", i, n, from, is_snapshot ? ", snapshot" : "",
              (int)status);
    WORLD_CHECK(world, status == KVT_OK, "status %d", (int)status);
    twin->tokens = from + n;
    note_sealed(world, twin, from, from + n, is_snapshot);
}

static void compute_in_step(struct world *world, uint32_t i, uint32_t stream)
{
    struct twin_sequence *twin = &world->sequences[i];
    const struct kvt_sequence *sequence = world_core_sequence(world, twin);
    const uint32_t room = (uint32_t)(sequence->reserved - sequence->tokens);
    const uint32_t block_tokens = world->config.shape.block_tokens;
    uint32_t n = world_chance(world, 70) ? room : world_below(world, room + 1);
    const bool is_snapshot = has_state(world) && world_chance(world, 60);
    if (is_snapshot && n > block_tokens) n -= (twin->tokens + n) % block_tokens;
    const uint32_t first = world_chance(world, 30) ? world_below(world, n + 1) : n;
    compute(world, i, first, stream, is_snapshot);
    if (n > first) compute(world, i, n - first, stream, is_snapshot);
    /* The tables may name other slots now, of equal blocks. */
    if (world_chance(world, 30)) world_launch_read(world, twin, stream);
}

/* A sequence that lost tokens is cut to what is left. */
static void truncate_to(struct world *world, uint32_t i, uint32_t tokens)
{
    struct twin_sequence *twin = &world->sequences[i];
    struct kvt_sequence *sequence = world_core_sequence(world, twin);
    const uint32_t block_tokens = world->config.shape.block_tokens;
    const uint64_t lost_from = sequence->lost_from;
    uint64_t kept;
    const uint32_t tail = tokens % block_tokens;
    const enum kvt_status status = kvt_sequence_truncate(&world->core, sequence, tokens,
                                                         tail ? twin->ids + tokens - tail : NULL, &kept);
    world_say(world, "truncate %u: from %u to %u: status %d, kept %lld", i, twin->tokens, tokens, (int)status,
              status == KVT_OK ? (long long)kept : -1LL);
    WORLD_CHECK(world, status == KVT_OK, "status %d", (int)status);
    WORLD_CHECK(world, kept <= tokens, "kept %llu", (unsigned long long)kept);
    WORLD_CHECK(world, kept == tokens || kept % block_tokens == 0, "kept %llu", (unsigned long long)kept);
    WORLD_CHECK(world, kept <= lost_from, "kept %llu, lost from %llu", (unsigned long long)kept,
                (unsigned long long)lost_from);
    WORLD_CHECK(world, sequence->lost_from == UINT64_MAX, "still lost");
    twin_cut(&world->twin, twin, (uint32_t)kept);
}

static void note_loss(struct world *world, uint32_t i, uint64_t lost_from)
{
    const struct twin_sequence *twin = &world->sequences[i];
    world->losses++;
    WORLD_CHECK(world, lost_from <= twin->tokens, "sequence %u lost from %llu", i, (unsigned long long)lost_from);
    WORLD_CHECK(world, lost_from % world->config.shape.block_tokens == 0, "sequence %u lost from %llu", i,
                (unsigned long long)lost_from);
    const bool may_lose = world->core.counters.given_up_blocks > 0 || world->config.fail_per_million > 0
        || world->config.is_losing || world->was_reset;
    WORLD_CHECK(world, may_lose, "sequence %u lost tokens from %llu and nothing had failed", i,
                (unsigned long long)lost_from);
}

/* Begins a step of these sequences; those that are ready compute. False: none was. */
static bool begin_step(struct world *world, const uint32_t *members, uint32_t count, struct world_step *step)
{
    struct kvt_step_entry entries[WORLD_SEQUENCES_MAX];
    for (uint32_t m = 0; m < count; m++)
        entries[m] = (struct kvt_step_entry){ .seq = world->sequences[members[m]].handle };
    const uint32_t stream = world_below(world, WORLD_ENGINE_STREAMS);
    *step = (struct world_step){ .stream = stream };
    const enum kvt_status status = kvt_core_step_begin(&world->core, entries, count, world->engine_streams[stream],
                                                       &step->handle);
    WORLD_CHECK(world, status == KVT_OK, "status %d", (int)status);
    for (uint32_t m = 0; m < count; m++) {
        world_say(world, "step on %u: %u is %s", stream, members[m], readies[entries[m].ready]);
        if (entries[m].ready == KVT_LOST) note_loss(world, members[m], entries[m].lost_from);
        if (entries[m].ready == KVT_READY) step->members[step->count++] = members[m];
    }
    WORLD_CHECK(world, (step->handle != 0) == (step->count > 0), "%u are ready", step->count);
    world->readies += step->count;
    for (uint32_t m = 0; m < step->count; m++) world_launch_read(world, &world->sequences[step->members[m]], stream);
    for (uint32_t m = 0; m < count; m++) {
        /* A loss is dealt with at once, or later. */
        if (entries[m].ready == KVT_LOST && world_chance(world, 70))
            truncate_to(world, members[m], (uint32_t)entries[m].lost_from);
    }
    return step->count > 0;
}

static void check_windows(struct world *world, uint32_t i)
{
    const uint32_t block_tokens = world->config.shape.block_tokens;
    const struct kvt_sequence *sequence = world_core_sequence(world, &world->sequences[i]);
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        if (world->config.shape.groups[g].kind != KVT_GROUP_WINDOW) continue;
        const struct kvt_sequence_table *table = &sequence->groups[g];
        const uint32_t sinks = twin_sink_blocks(&world->twin, g);
        uint32_t held = 0;
        for (uint32_t b = sinks; b < table->count; b++) held += table->blocks[b] != KVT_NO_BLOCK;
        const uint64_t ahead = (sequence->reserved - sequence->tokens + block_tokens - 1) / block_tokens;
        const uint32_t window = (world->config.shape.groups[g].window_tokens + block_tokens - 1) / block_tokens;
        WORLD_CHECK(world, held <= window + 2 + ahead, "sequence %u group %u holds %u blocks of a window of %u", i, g,
                    held, window);
    }
}

static void end_step(struct world *world, struct world_step *step)
{
    const enum kvt_status status = kvt_core_step_end(&world->core, step->handle);
    world_say(world, "step end on %u: status %d", step->stream, (int)status);
    WORLD_CHECK(world, status == KVT_OK, "status %d", (int)status);
    for (uint32_t m = 0; m < step->count; m++) check_windows(world, step->members[m]);
    step->count = 0;
    step->handle = 0;
}

/* What an engine does that finds no room: waits, sets somebody idle, ends what can never run. */
static void answer_room(struct world *world, uint32_t i, enum kvt_room room)
{
    if (room == KVT_ROOM_PENDING && world_chance(world, 50)) {
        for (uint32_t n = 0; n < 10; n++) world_drift(world);
    }
    if (room == KVT_ROOM_FULL && world_chance(world, 60)) call_idle(world);
    if (room == KVT_ROOM_FULL && world_chance(world, 8)) call_finish(world);
    if (room == KVT_ROOM_TOO_LONG && world_chance(world, 50) && !is_in_step(world, i))
        calls_finish_sequence(world, i, true);
}

static void call_step(struct world *world)
{
    struct world_step *step = &world->steps[world_below(world, WORLD_STEPS_MAX)];
    if (step->handle) {
        end_step(world, step);
        return;
    }
    uint32_t members[WORLD_SEQUENCES_MAX];
    uint32_t count = 0;
    const uint32_t percent = 20 + world_below(world, 80);
    for (uint32_t i = 0; i < WORLD_SEQUENCES_MAX; i++) {
        if (!world->sequences[i].is_live || !is_active(world, i) || is_in_step(world, i)) continue;
        if (!world_chance(world, percent)) continue;
        const struct kvt_sequence *sequence = world_core_sequence(world, &world->sequences[i]);
        if (sequence->reserved == sequence->tokens && world_chance(world, 85)) {
            answer_room(world, i, append(world, i, choose_append(world, i)));
        }
        if (!world->sequences[i].is_live) continue;
        members[count++] = i;
    }
    uint32_t active = 0;
    for (uint32_t m = 0; m < count; m++) {
        if (world->sequences[members[m]].is_live && is_active(world, members[m])) members[active++] = members[m];
    }
    count = active;
    if (count == 0 || !begin_step(world, members, count, step)) return;
    for (uint32_t m = 0; m < step->count; m++) {
        if (world_chance(world, 95)) compute_in_step(world, step->members[m], step->stream);
        if (world_chance(world, 15)) world_drift(world);
    }
    if (world_chance(world, 70)) end_step(world, step);
}

/* ---- The other calls --------------------------------------------------------------------------------------------- */

static void call_fork(struct world *world)
{
    const uint32_t i = pick(world);
    uint32_t to = 0;
    while (to < WORLD_SEQUENCES_MAX && world->sequences[to].is_live) to++;
    if (i == UINT32_MAX || to == WORLD_SEQUENCES_MAX) return;
    struct kvt_sequence *fork;
    const bool was_in_step = is_in_step(world, i);
    const enum kvt_status status = kvt_sequence_fork(&world->core, world_core_sequence(world, &world->sequences[i]),
                                                     &fork);
    world_say(world, "fork %u: status %d, %u", i, (int)status, to);
    if (was_in_step) WORLD_CHECK(world, status == KVT_INVAL, "in a step: status %d", (int)status);
    if (status != KVT_OK) {
        WORLD_CHECK(world,
                    status == KVT_FULL || was_in_step || (status == KVT_NOMEM && world->config.blocks_max < 4096),
                    "status %d", (int)status);
        return;
    }
    world->sequences[to] = world->sequences[i];
    world->sequences[to].handle = kvt_sequence_handle(&world->core, fork);
    if (world_chance(world, 50)) world->sequences[to].prompt = world->sequences[to].tokens;
}

static void call_truncate(struct world *world)
{
    const uint32_t i = pick(world);
    if (i == UINT32_MAX) return;
    struct twin_sequence *twin = &world->sequences[i];
    struct kvt_sequence *sequence = world_core_sequence(world, twin);
    const uint32_t block_tokens = world->config.shape.block_tokens;
    uint32_t tokens = world_below(world, twin->tokens + 1);
    if (world_chance(world, 40)) tokens = twin->tokens - world_below(world, kvt_min_u32(twin->tokens, 4) + 1);
    if (world_chance(world, 30)) tokens = tokens / block_tokens * block_tokens;
    if (is_in_step(world, i) || world_chance(world, 3)) {
        const uint64_t before = digest(world);
        uint64_t kept;
        const uint64_t asked = is_in_step(world, i) ? tokens : twin->tokens + 1;
        const enum kvt_status status = kvt_sequence_truncate(&world->core, sequence, asked, twin->ids, &kept);
        WORLD_CHECK(world, status == KVT_INVAL, "in a step, or longer than it is: status %d", (int)status);
        WORLD_CHECK(world, digest(world) == before, "a refused truncate changed something");
        return;
    }
    truncate_to(world, i, tokens);
}

static void call_window(struct world *world)
{
    const uint32_t i = pick(world);
    if (i == UINT32_MAX) return;
    struct twin_sequence *twin = &world->sequences[i];
    const uint32_t block_tokens = world->config.shape.block_tokens;
    const uint32_t sinks = world_below(world, 6), window = world_below(world, 24);
    const bool was_in_step = is_in_step(world, i);
    const enum kvt_status status = kvt_sequence_window(&world->core, world_core_sequence(world, twin), sinks, window);
    world_say(world, "window %u: sinks %u, window %u, tokens %u: status %d", i, sinks, window, twin->tokens,
              (int)status);
    WORLD_CHECK(world, status == (was_in_step ? KVT_INVAL : KVT_OK), "status %d", (int)status);
    bool has_full = false;
    for (uint32_t g = 0; g < world->config.shape.group_count; g++)
        has_full = has_full || world->config.shape.groups[g].kind == KVT_GROUP_FULL;
    if (was_in_step || !has_full || twin->tokens <= sinks + window) return;
    const uint32_t from = (sinks + block_tokens - 1) / block_tokens;
    (void)twin_drop(twin, from, (twin->tokens - window) / block_tokens, sinks, window);
}

static enum kvt_room resume(struct world *world, uint32_t i)
{
    enum kvt_room room;
    const enum kvt_status status = kvt_sequence_resume(&world->core, world_core_sequence(world, &world->sequences[i]),
                                                       &room);
    WORLD_CHECK(world, status == KVT_OK, "status %d", (int)status);
    world_say(world, "resume %u: %s", i, rooms[room]);
    WORLD_CHECK(world, (room == KVT_ROOM_OK) == is_active(world, i), "room %d", (int)room);
    WORLD_CHECK(world, room != KVT_ROOM_PENDING, "resume never waits");
    return room;
}

static void call_resume(struct world *world)
{
    const uint32_t i = pick(world);
    if (i != UINT32_MAX) (void)resume(world, i);
}

static void call_expect(struct world *world)
{
    kvt_seq seqs[6];
    uint32_t steps[6];
    const uint32_t n = world_below(world, 6);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = pick(world);
        seqs[k] = i == UINT32_MAX || world_chance(world, 5) ? world_below(world, 1000) : world->sequences[i].handle;
        steps[k] = world_below(world, 12);
    }
    kvt_core_expect(&world->core, seqs, steps, n);
    world_say(world, "expect %u", n);
}

static void call_reset(struct world *world)
{
    uint64_t kept;
    const enum kvt_status status = kvt_core_reset(&world->core, &kept);
    world_say(world, "reset: status %d, kept %llu", (int)status, (unsigned long long)kept);
    WORLD_CHECK(world, status == KVT_OK, "status %d", (int)status);
    twin_forget(&world->twin);
    world->was_reset = true;
    for (uint32_t i = 0; i < WORLD_SEQUENCES_MAX; i++) world->sequences[i].is_unshared = true;
}

static void call_bad(struct world *world)
{
    struct kvt_core *core = &world->core;
    const uint64_t before = digest(world);
    const uint32_t i = pick(world);
    kvt_step handle = 0;
    struct kvt_step_entry entry = { .seq = world_below(world, 100000) + ((uint64_t)77777 << 32) };
    enum kvt_status status = kvt_core_step_begin(core, &entry, 1, world->engine_streams[0], &handle);
    WORLD_CHECK(world, status == KVT_INVAL, "a step of a stale sequence: status %d", (int)status);
    status = kvt_core_step_end(core, world_below(world, 20) + ((uint64_t)0xffff << 40));
    WORLD_CHECK(world, status == KVT_INVAL, "the end of no step: status %d", (int)status);
    if (i != UINT32_MAX) {
        const struct twin_sequence *twin = &world->sequences[i];
        struct kvt_sequence *sequence = world_core_sequence(world, twin);
        const uint32_t ids[4] = { 1, 2, 3, 4 };
        const uint64_t room = sequence->reserved - sequence->tokens;
        if (sequence->step == NO_STEP || room < 4) {
            status = kvt_sequence_commit(core, sequence, ids, room < 4 ? room + 1 : 1, 0, world->engine_streams[0],
                                         NULL);
            WORLD_CHECK(world, status == KVT_INVAL, "more than is reserved, or not in a step: status %d", (int)status);
        }
        if (sequence->step != NO_STEP && room > 0 && (sequence->tokens + 1) % world->config.shape.block_tokens != 0) {
            status = kvt_sequence_commit(core, sequence, ids, 1, KVT_COMMIT_SNAPSHOT, world->engine_streams[0], NULL);
            WORLD_CHECK(world, status == KVT_INVAL, "a snapshot inside a block: status %d", (int)status);
        }
        if (sequence->step != NO_STEP || sequence->mode != KVT_SEQUENCE_ACTIVE) {
            entry.seq = twin->handle;
            status = kvt_core_step_begin(core, &entry, 1, world->engine_streams[1], &handle);
            WORLD_CHECK(world, status == KVT_INVAL, "a step of an idle or stepping sequence: status %d", (int)status);
        }
    }
    WORLD_CHECK(world, digest(world) == before, "a refused call changed something");
    if (i != UINT32_MAX) (void)kvt_core_stall(core, world_core_sequence(world, &world->sequences[i]));
}

void calls_one(struct world *world)
{
    const uint32_t draw = world_below(world, 100);
    if (draw < 12) call_create(world);
    else if (draw < 28) call_append(world);
    else if (draw < 50) call_step(world);
    else if (draw < 54) call_fork(world);
    else if (draw < 60) call_truncate(world);
    else if (draw < 63) call_window(world);
    else if (draw < 69) call_idle(world);
    else if (draw < 77) call_resume(world);
    else if (draw < 79) call_finish(world);
    else if (draw < 82) call_expect(world);
    else if (draw < 83) {
        if (world_chance(world, 4)) call_reset(world);
        else call_bad(world);
    } else world_drift(world);
    for (uint32_t n = world_below(world, 1 + world->config.haste); n > 0; n--) world_drift(world);
    if (world_chance(world, 60)) (void)kvt_core_pump(&world->core, world->now_ns);
    if (world->is_traced)
        world_say(world, "        claimed %u free %u", world->core.pools[0].claimed, world->core.pools[0].free_count);
    if (world->config.is_careful || world->operation % 16 == 0) world_verify(world);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Runs the world until nothing is in flight. */
static void drain(struct world *world)
{
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        world_round(world);
        if (world->core.transfers.in_flight == 0 && round > 8) return;
    }
    world_fail(world, "%u transfers are still in flight after %u rounds", world->core.transfers.in_flight, ROUNDS_MAX);
}

static void append_at_last(struct world *world, uint32_t i)
{
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        if (append(world, i, 1) != KVT_ROOM_PENDING) return;
        world_round(world);
    }
    world_fail(world, "sequence %u: append is pending for ever", i);
}

/* What the core knows of a sequence, for the report. */
static void describe_block(struct world *world, uint32_t g, uint32_t i, uint32_t index)
{
    const struct kvt_block *block = kvt_core_block(&world->core, index);
    world_say(world,
              "  group %u entry %u: block %u, device %d host %d nvme %d, refs %u, users %u, readers %u %u %u, flags "
              "%x, origin %d",
              g, i, index, kvt_copy_state(block, 0), kvt_copy_state(block, 1), kvt_copy_state(block, 2), block->refs,
              block->users, block->readers[0], block->readers[1], block->readers[2], block->flags, (int)block->origin);
    if (block->origin != KVT_NO_BLOCK) describe_block(world, g, i, block->origin);
}

static void describe(struct world *world, uint32_t s)
{
    const struct kvt_sequence *sequence = world_core_sequence(world, &world->sequences[s]);
    world_say(world,
              "sequence %u: mode %d, list %d, fetch %u/%u, retries %u, tokens %llu, reserved %llu; %u transfers, %u "
              "free in pool 0",
              s, sequence->mode, sequence->list, sequence->fetch.group, sequence->fetch.index, sequence->retries,
              (unsigned long long)sequence->tokens, (unsigned long long)sequence->reserved,
              world->core.transfers.in_flight, world->core.pools[0].free_count);
    const struct kvt_host_pool *host = &world->core.host;
    if (world->core.has_host)
        world_say(
            world,
            "host: %llu slots used, %u chunks free, %u leaving, %u parked, %u quarantined, victim %d; %u refusals",
            (unsigned long long)host->used_slots, host->free_chunks, host->leaving, host->parked.count,
            host->quarantined, (int)host->policy_ops->victim(host->policy), world->core.nvme_refusals);
    for (uint32_t b = 0; b < world->core.table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(&world->core, b);
        if (block->host_slot != KVT_NO_SLOT && kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY)
            world_say(world, "  in host memory: block %u of group %u, %u bytes, refs %u, users %u, device %d, nvme %d",
                      b, block->group, block->host_length, block->refs, block->users, kvt_copy_state(block, 0),
                      kvt_copy_state(block, 2));
    }
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        for (uint32_t i = 0; i < table->count; i++) {
            if (table->blocks[i] != KVT_NO_BLOCK) describe_block(world, g, i, table->blocks[i]);
        }
        if (table->live != KVT_NO_BLOCK) describe_block(world, g, UINT32_MAX, table->live);
    }
}

void calls_decode(struct world *world, uint32_t i, const uint32_t *ids, uint32_t count, bool is_snapshot)
{
    struct twin_sequence *twin = &world->sequences[i];
    memmove(twin->ids + twin->tokens, ids, count * sizeof *ids);
    twin->prompt = kvt_max_u32(twin->prompt, twin->tokens + count);
    bool has_room = false;
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        has_room = has_room || append(world, i, count) == KVT_ROOM_OK;
        world_round(world);
        struct world_step step;
        if (!has_room || !begin_step(world, &i, 1, &step)) continue;
        compute(world, i, count, step.stream, is_snapshot);
        end_step(world, &step);
        return;
    }
    describe(world, i);
    world_fail(world, "sequence %u cannot decode", i);
}

/* The sequence is the only active one: it must become ready, or lost, and read everything. */
static void bring_back(struct world *world, uint32_t i)
{
    struct twin_sequence *twin = &world->sequences[i];
    const enum kvt_room room = resume(world, i);
    WORLD_CHECK(world, room != KVT_ROOM_FULL, "sequence %u is the only one and finds no room", i);
    if (room != KVT_ROOM_OK) return;
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        struct world_step step;
        world_round(world);
        if (begin_step(world, &i, 1, &step)) {
            end_step(world, &step);
            append_at_last(world, i);
            return;
        }
        const struct kvt_sequence *sequence = world_core_sequence(world, twin);
        if (sequence->lost_from != UINT64_MAX) truncate_to(world, i, (uint32_t)sequence->lost_from);
    }
    describe(world, i);
    world_fail(world, "sequence %u does not become ready: stall %s", i,
               (const char *[]){ "late hint", "no slot", "nvme queue", "nvme link", "host link", "codec",
                                 "other" }[kvt_core_stall(&world->core, world_core_sequence(world, twin))]);
}

static void check_nothing_is_left(struct world *world)
{
    const struct kvt_core *core = &world->core;
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        const struct kvt_pool *pool = &core->pools[p];
        WORLD_CHECK(world, pool->claimed == 0, "pool %u: %u claims", p, pool->claimed);
        WORLD_CHECK(world, pool->free_count == pool->slot_count, "pool %u: %u of %u free", p, pool->free_count,
                    pool->slot_count);
    }
    WORLD_CHECK(world, core->table.count == 0, "%u blocks", core->table.count);
    WORLD_CHECK(world, core->prefix.count == 0, "%u indexed", core->prefix.count);
    WORLD_CHECK(world, core->host.used_slots == 0, "%llu host slots", (unsigned long long)core->host.used_slots);
    WORLD_CHECK(world, core->nvme_blocks == 0, "%llu on nvme", (unsigned long long)core->nvme_blocks);
    if (world->nvme) {
        WORLD_CHECK(world, kvt_nvme_memory_holds(world->nvme) == 0, "%u holds in the store",
                    kvt_nvme_memory_holds(world->nvme));
        WORLD_CHECK(world, kvt_nvme_memory_records(world->nvme) == 0, "%u records",
                    kvt_nvme_memory_records(world->nvme));
    }
}

void calls_finish(struct world *world)
{
    for (uint32_t s = 0; s < WORLD_STEPS_MAX; s++) {
        if (world->steps[s].handle) end_step(world, &world->steps[s]);
    }
    world_say(world, "faults end");
    world_heal(world);
    for (uint32_t i = 0; i < WORLD_SEQUENCES_MAX; i++) {
        if (world->sequences[i].is_live)
            KVT_ASSERT(kvt_sequence_idle(&world->core, world_core_sequence(world, &world->sequences[i])) == KVT_OK);
    }
    drain(world);
    world_verify(world);
    for (uint32_t i = 0; i < WORLD_SEQUENCES_MAX; i++) {
        if (!world->sequences[i].is_live) continue;
        bring_back(world, i);
        KVT_ASSERT(kvt_sequence_idle(&world->core, world_core_sequence(world, &world->sequences[i])) == KVT_OK);
        world_verify(world);
    }
    for (uint32_t i = 0; i < WORLD_SEQUENCES_MAX; i++) {
        if (world->sequences[i].is_live) calls_finish_sequence(world, i, world_chance(world, 30));
    }
    drain(world);
    for (uint32_t p = 0; p < world->core.config.pool_count; p++)
        WORLD_CHECK(world, world->core.pools[p].claimed == 0, "pool %u: %u claims without sequences", p,
                    world->core.pools[p].claimed);
    if (world->nvme)
        WORLD_CHECK(world, kvt_nvme_memory_holds(world->nvme) == 0, "%u holds without sequences",
                    kvt_nvme_memory_holds(world->nvme));
    world_verify(world);
    call_reset(world);
    drain(world);
    world_verify(world);
    check_nothing_is_left(world);
}
