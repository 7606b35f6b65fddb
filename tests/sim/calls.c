/* calls: what engines do with sessions, at random, each call checked against the twin. */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/layers.h"
#include "tests/sim/sim.h"
#include "tiers/nvme_tier.h"

#define NO_STEP UINT32_MAX

static const char *const rooms[] = { "ok", "pending", "full", "too long" };
static const char *const readies[] = { "ready", "not ready", "lost", "landing" };

static bool has_group(const struct sim *sim, enum kvt_group_kind kind)
{
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
        if (sim->plan.shape.groups[g].kind == kind) return true;
    }
    return false;
}

/* A random live sequence; UINT32_MAX: there is none. */
static uint32_t pick(struct sim *sim)
{
    const uint32_t start = sim_below(sim, SIM_SEQUENCES_MAX);
    for (uint32_t n = 0; n < SIM_SEQUENCES_MAX; n++) {
        const uint32_t i = (start + n) % SIM_SEQUENCES_MAX;
        if (sim->sequences[i].is_live) return i;
    }
    return UINT32_MAX;
}

static uint32_t free_place(const struct sim *sim)
{
    uint32_t i = 0;
    while (i < SIM_SEQUENCES_MAX && sim->sequences[i].is_live) i++;
    return i;
}

static bool is_in_step(struct sim *sim, uint32_t i) { return sim_sequence(sim, i)->step != NO_STEP; }
static bool is_active(struct sim *sim, uint32_t i) { return sim_sequence(sim, i)->mode == KVT_SEQUENCE_ACTIVE; }

void sim_forget_sequences(struct sim *sim)
{
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) {
        if (!sim->sequences[i].is_live) continue;
        if (sim->sequences[i].last_drop == 0) sim->archive[i % SIM_ARCHIVE] = sim->sequences[i];
        sim->sequences[i].is_live = false;
    }
    memset(sim->more, 0, sizeof sim->more);
    memset(sim->windows, 0, sizeof sim->windows);
    memset(sim->steps, 0, sizeof sim->steps);
}

/* ---- Create ------------------------------------------------------------------------------------------------------ */

/* True while nothing was ever dropped from any tier: then reuse is exactly what the twin says. */
static bool is_pristine(struct sim *sim)
{
    const struct kvt_counters *counters = &sim_core(sim)->counters;
    if (sim->was_kept_false || sim->was_restarted || !sim_plan_is_calm(&sim->plan)) return false;
    if (counters->dropped_blocks + counters->given_up_blocks + counters->failures + counters->abandoned > 0)
        return false;
    if (sim->plan.transfers_max < 64 || sim->plan.prefill_tokens_per_s > 0) return false;
    if (sim->plan.is_layered) return false; /* what is computed while blocks land is found later */
    if (!sim_store(sim)) return true;
    struct kvt_store_stats stats;
    kvt_store_stats(sim_store(sim), &stats);
    return stats.evicted_records + stats.refused + stats.lost_records == 0;
}

/* Where the blocks of a prefix were found, for the report. */
static void describe_found(struct sim *sim, kvt_seq handle)
{
    const struct kvt_sequence *sequence = kvt_sequence_of(sim_core(sim), handle);
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
        const struct kvt_sequence_table *table = &sequence->groups[g];
        for (uint32_t i = 0; i < table->count; i++) {
            if (table->blocks[i] == KVT_NO_BLOCK) continue;
            const struct kvt_block *block = kvt_core_block(sim_core(sim), table->blocks[i]);
            sim_say(sim, "  group %u entry %u: block %u, device %d host %d nvme %d, refs %u, flags %x", g, i,
                    table->blocks[i], (int)kvt_copy_state(block, KVT_TIER_DEVICE),
                    (int)kvt_copy_state(block, KVT_TIER_HOST), (int)kvt_copy_state(block, KVT_TIER_NVME), block->refs,
                    block->flags);
        }
    }
}

static void check_reuse(struct sim *sim, uint32_t index, kvt_seq handle, uint32_t reused, uint64_t limit)
{
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    SIM_CHECK(sim, reused % block_tokens == 0, "%u tokens reused", reused);
    SIM_CHECK(sim, reused <= limit, "%u tokens reused, limit %llu", reused, (unsigned long long)limit);
    const bool was_sealed = twin_is_prefix(&sim->twin, &sim->scratch, reused / block_tokens);
    if (!was_sealed) describe_found(sim, handle);
    SIM_CHECK(sim, was_sealed, "sequence %u reuses %u tokens that were never all sealed", index, reused);
    if (!is_pristine(sim)) return;
    uint32_t longest = (uint32_t)(limit / block_tokens);
    while (longest > 0 && !twin_is_prefix(&sim->twin, &sim->scratch, longest)) longest--;
    SIM_CHECK(sim, longest * block_tokens == reused, "sequence %u reuses %u tokens of %u that are all there", index,
              reused, longest * block_tokens);
}

static void create(struct sim *sim, const struct kvt_seq_params *params, uint32_t salt)
{
    const uint32_t index = free_place(sim);
    if (index == SIM_SEQUENCES_MAX) return;
    static struct sim_lookup lookup;
    sim_tally_lookup(sim, params, &lookup);
    const bool is_short = sim_memory_short(sim);
    kvt_seq handle = 0;
    uint64_t reused = 0;
    const enum kvt_status status = kvt_seq_create(sim->runtime, params, &handle, &reused);
    sim_memory_done(sim);
    sim_say(sim, "create %u: %llu ids, reuse_max %llu, salt %u, %s: status %d, reused %llu", index,
            (unsigned long long)params->token_count, (unsigned long long)params->reuse_max, salt,
            params->is_idle ? "idle" : "active", (int)status, (unsigned long long)reused);
    if (status != KVT_OK) {
        const bool is_full = sim_core(sim)->sequence_count == sim->plan.sequences_max;
        SIM_CHECK(sim, (status == KVT_FULL && is_full) || (status == KVT_NOMEM && is_short), "status %d with %u",
                  (int)status, sim_core(sim)->sequence_count);
        return;
    }
    twin_begin(&sim->scratch, sim_world_salt(sim, salt));
    for (uint32_t i = 0; i < params->token_count; i++) twin_push(&sim->scratch, params->tokens[i]);
    const uint64_t count = params->token_count;
    check_reuse(sim, index, handle, (uint32_t)reused, count ? kvt_min_u64(params->reuse_max, count - 1) : 0);
    struct twin_sequence *twin = &sim->sequences[index];
    *twin = sim->scratch;
    twin->tokens = (uint32_t)reused;
    twin->prompt = (uint32_t)count;
    twin->handle = handle;
    sim->more[index] = (struct sim_sequence_more){ 0 };
    sim->counts.reused_tokens += reused;
    sim_tally_found(sim, &lookup, (uint32_t)reused);
    sim_tally_sequences(sim);
}

/* Ids of a document, or the beginning of what some sequence has or had. */
static uint32_t make_prompt(struct sim *sim, uint32_t *ret_ids, uint32_t *ret_salt)
{
    const uint32_t length_max = sim_chance(sim, 80) ? 40 : 160;
    uint32_t count = sim_below(sim, length_max);
    *ret_salt = sim_chance(sim, 80) ? 0 : 1 + sim_below(sim, SIM_SALTS - 1);
    const struct twin_sequence *from = &sim->archive[sim_below(sim, SIM_ARCHIVE)];
    const uint32_t live = pick(sim);
    if (sim_chance(sim, 40) && live != UINT32_MAX) from = &sim->sequences[live];
    if (sim_chance(sim, 75) && from->tokens > 0) {
        count = 1 + sim_below(sim, from->tokens);
        memcpy(ret_ids, from->ids, count * sizeof *ret_ids);
        if (sim_chance(sim, 90))
            *ret_salt = from->salt % SIM_WORLD_SALTS; /* otherwise another tenant asks for the same */
        for (uint32_t extra = sim_below(sim, 8); extra > 0 && count < TWIN_TOKENS_MAX / 2; extra--, count++)
            ret_ids[count] = count % 7;
    } else {
        const uint32_t document = sim_below(sim, 3);
        for (uint32_t i = 0; i < count; i++)
            ret_ids[i] = document ? (uint32_t)(kvt_mix64(document * 1000 + i) % 50) : i % 7;
    }
    return kvt_min_u32(count, TWIN_TOKENS_MAX / 2);
}

static void call_create(struct sim *sim)
{
    uint32_t ids[TWIN_TOKENS_MAX + 16];
    uint32_t salt;
    const uint32_t count = make_prompt(sim, ids, &salt);
    const struct kvt_seq_params params = { .tokens = ids,
                                           .token_count = count,
                                           .reuse_max = sim_chance(sim, 80) ? UINT64_MAX : sim_below(sim, 30),
                                           .salt = salt ? &salt : NULL,
                                           .salt_bytes = salt ? sizeof salt : 0,
                                           .is_idle = sim_chance(sim, 25) };
    create(sim, &params, salt);
}

/* ---- Append ------------------------------------------------------------------------------------------------------ */

static enum kvt_room append(struct sim *sim, uint32_t i, uint64_t n)
{
    const struct kvt_sequence *sequence = sim_sequence(sim, i);
    const uint64_t before = sequence->reserved;
    const bool was_in_step = sequence->step != NO_STEP;
    enum kvt_room room = KVT_ROOM_FULL;
    const bool is_short = sim_memory_short(sim);
    const enum kvt_status status = kvt_seq_append(sim->runtime, sim->sequences[i].handle, n, &room);
    sim_memory_done(sim);
    sim_say(sim, "append %u: %llu: status %d, %s", i, (unsigned long long)n, (int)status, rooms[room]);
    if (status != KVT_OK) {
        /* A shared tail under a step that began without room. */
        SIM_CHECK(sim, (status == KVT_INVAL && was_in_step) || (status == KVT_NOMEM && is_short), "status %d",
                  (int)status);
        SIM_CHECK(sim, sequence->reserved <= before, "reserved %llu", (unsigned long long)sequence->reserved);
        return KVT_ROOM_FULL;
    }
    SIM_CHECK(sim, sequence->reserved == before + (room == KVT_ROOM_OK ? n : 0), "reserved %llu, before %llu",
              (unsigned long long)sequence->reserved, (unsigned long long)before);
    return room;
}

/* What an engine would ask for: a prompt whole or in chunks, then a few tokens. */
static uint64_t choose_append(struct sim *sim, uint32_t i)
{
    const struct twin_sequence *twin = &sim->sequences[i];
    const struct kvt_sequence *sequence = sim_sequence(sim, i);
    uint64_t n = sim_chance(sim, 70) ? sim_below(sim, 4) : sim_below(sim, 4 * sim->plan.shape.block_tokens);
    if (twin->prompt > sequence->reserved && sim_chance(sim, 60)) n = twin->prompt - sequence->reserved;
    if (n > 1 && sim_chance(sim, 40)) n = 1 + sim_below(sim, (uint32_t)n);
    return sequence->reserved + n > TWIN_TOKENS_MAX ? 0 : n;
}

static void call_append(struct sim *sim)
{
    const uint32_t i = pick(sim);
    if (i == UINT32_MAX) return;
    const uint64_t n = choose_append(sim, i);
    if (is_active(sim, i)) {
        (void)append(sim, i, n);
        return;
    }
    enum kvt_room room;
    const enum kvt_status status = kvt_seq_append(sim->runtime, sim->sequences[i].handle, n, &room);
    SIM_CHECK(sim, status == KVT_INVAL, "append to an idle sequence: status %d", (int)status);
}

static void call_idle(struct sim *sim)
{
    const uint32_t i = pick(sim);
    if (i == UINT32_MAX) return;
    const bool was_in_step = is_in_step(sim, i);
    if (sim->plan.is_hinting && sim->plan.prefetch == KVT_PREFETCH_SESSION) {
        const struct kvt_seq_hint hint = { .next = (enum kvt_next)sim_below(sim, 4), .turn = sim_below(sim, 6) };
        const enum kvt_status told = kvt_seq_hint(sim->runtime, sim->sequences[i].handle, &hint);
        SIM_CHECK(sim, told == KVT_OK, "status %d", (int)told);
    }
    const enum kvt_status status = kvt_seq_idle(sim->runtime, sim->sequences[i].handle);
    sim_say(sim, "idle %u: status %d", i, (int)status);
    SIM_CHECK(sim, status == (was_in_step ? KVT_INVAL : KVT_OK), "status %d", (int)status);
}

static void finish(struct sim *sim, uint32_t i, bool is_kept)
{
    struct twin_sequence *twin = &sim->sequences[i];
    const enum kvt_status status = kvt_seq_finish(sim->runtime, twin->handle, is_kept);
    sim_say(sim, "finish %u: %s: status %d", i, is_kept ? "kept" : "not kept", (int)status);
    SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    sim->was_kept_false = sim->was_kept_false || !is_kept;
    if (twin->last_drop == 0) sim->archive[sim_below(sim, SIM_ARCHIVE)] = *twin;
    twin->is_live = false;
    SIM_CHECK(sim, kvt_seq_finish(sim->runtime, twin->handle, true) == KVT_INVAL, "the handle still works");
}

static void call_finish(struct sim *sim)
{
    const uint32_t i = pick(sim);
    if (i == UINT32_MAX || is_in_step(sim, i)) return;
    finish(sim, i, sim->plan.is_keeping || sim_chance(sim, 70));
}

/* ---- Commit ------------------------------------------------------------------------------------------------------ */

/* What lies under the name of a block that is sealed now. */
static void note_content(struct sim *sim, const struct twin_sequence *twin, uint32_t g, uint32_t i)
{
    const struct kvt_sequence_table *table = &sim_sequence(sim, sim_index_of(sim, twin))->groups[g];
    if (i >= table->count || table->blocks[i] == KVT_NO_BLOCK) return;
    const struct kvt_block *block = kvt_core_block(sim_core(sim), table->blocks[i]);
    if (!kvt_block_has(block, KVT_BLOCK_SEALED)) return;
    const struct kvt_key space = sim_core(sim)->config.space[g];
    struct sim_sealed sealed = { .name = { { space.lo, space.hi }, { block->key.lo, block->key.hi } },
                                 .group = g,
                                 .world = sim->world };
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    if (sim->plan.shape.groups[g].kind == KVT_GROUP_STATE) sealed.values[0] = twin_block_value(&sim->twin, twin, i);
    else memcpy(sealed.values, twin->value + i * block_tokens, block_tokens * sizeof sealed.values[0]);
    SIM_CHECK(sim, sim_content_note(&sim->content, &sealed), "group %u: two blocks with other bytes have one key", g);
}

/* Blocks that a commit of tokens [from, to) sealed, and the snapshot at the end. */
static void note_sealed(struct sim *sim, const struct twin_sequence *twin, uint32_t from, uint32_t to, bool is_snapshot)
{
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const struct kvt_sequence *sequence = sim_sequence(sim, sim_index_of(sim, twin));
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
        if (sim->plan.shape.groups[g].kind == KVT_GROUP_STATE) {
            const struct kvt_sequence_table *table = &sequence->groups[g];
            const uint32_t i = to / block_tokens - 1;
            if (!is_snapshot || table->count <= i || table->blocks[i] == KVT_NO_BLOCK) continue;
            if (!twin->is_unshared) twin_seal(&sim->twin, g, twin_block_value(&sim->twin, twin, i));
            note_content(sim, twin, g, i);
            continue;
        }
        for (uint32_t i = from / block_tokens; (i + 1) * block_tokens <= to; i++) {
            if (!twin->is_unshared) twin_seal(&sim->twin, g, twin_block_value(&sim->twin, twin, i));
            note_content(sim, twin, g, i);
        }
    }
}

static uint32_t next_id(struct sim *sim, const struct twin_sequence *twin)
{
    if (twin->tokens < twin->prompt) return twin->ids[twin->tokens];
    /* Mostly what others computed too. */
    return sim_chance(sim, 85) ? twin->tokens % 7 : sim_below(sim, 3);
}

/* Writes and commits n of the reserved tokens of a sequence in a step. */
static void compute(struct sim *sim, uint32_t i, uint32_t n, uint32_t stream, bool is_snapshot_wanted)
{
    struct twin_sequence *twin = &sim->sequences[i];
    const uint32_t from = twin->tokens;
    const uint32_t prompt = twin->prompt;
    for (uint32_t t = 0; t < n; t++) twin_push(twin, next_id(sim, twin));
    twin->prompt = kvt_max_u32(prompt, twin->tokens);
    twin->tokens = from;
    sim_launch_write(sim, twin, n, stream);
    const bool is_snapshot = is_snapshot_wanted && n > 0 && (from + n) % sim->plan.shape.block_tokens == 0;
    (void)sim_memory_short(sim);
    const enum kvt_status status = kvt_seq_commit(sim->runtime, twin->handle, twin->ids + from, n,
                                                  is_snapshot ? KVT_COMMIT_SNAPSHOT : 0, sim_stream(sim, stream));
    sim_memory_done(sim);
    sim_say(sim, "commit %u: %u tokens from %u%s: status %d", i, n, from, is_snapshot ? ", snapshot" : "", (int)status);
    SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    twin->tokens = from + n;
    note_sealed(sim, twin, from, from + n, is_snapshot);
}

static void compute_in_step(struct sim *sim, uint32_t i, uint32_t stream)
{
    const struct twin_sequence *twin = &sim->sequences[i];
    const struct kvt_sequence *sequence = sim_sequence(sim, i);
    const uint32_t room = (uint32_t)(sequence->reserved - sequence->tokens);
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    uint32_t n = sim_chance(sim, 70) ? room : sim_below(sim, room + 1);
    const bool is_snapshot = has_group(sim, KVT_GROUP_STATE) && sim_chance(sim, 60);
    if (is_snapshot && n > block_tokens) n -= (twin->tokens + n) % block_tokens;
    const uint32_t first = sim_chance(sim, 30) ? sim_below(sim, n + 1) : n;
    compute(sim, i, first, stream, is_snapshot);
    if (n > first) compute(sim, i, n - first, stream, is_snapshot);
    /* The tables may name other slots now, of equal blocks. */
    if (sim_chance(sim, 30)) sim_launch_read(sim, twin, stream);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* A sequence that lost tokens is cut to what is left. */
static void truncate_to(struct sim *sim, uint32_t i, uint32_t tokens)
{
    struct twin_sequence *twin = &sim->sequences[i];
    const struct kvt_sequence *sequence = sim_sequence(sim, i);
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const uint64_t lost_from = sequence->lost_from;
    const uint32_t tail = tokens % block_tokens;
    uint64_t kept = UINT64_MAX;
    const bool is_short = sim_memory_short(sim);
    const enum kvt_status status = kvt_seq_truncate(sim->runtime, twin->handle, tokens,
                                                    tail ? twin->ids + tokens - tail : NULL, &kept);
    sim_memory_done(sim);
    sim_say(sim, "truncate %u: from %u to %u: status %d, kept %lld", i, twin->tokens, tokens, (int)status,
            (long long)kept);
    if (status == KVT_NOMEM && is_short) return;
    SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    SIM_CHECK(sim, kept <= tokens, "kept %llu", (unsigned long long)kept);
    SIM_CHECK(sim, kept == tokens || kept % block_tokens == 0, "kept %llu", (unsigned long long)kept);
    SIM_CHECK(sim, kept <= lost_from, "kept %llu, lost from %llu", (unsigned long long)kept,
              (unsigned long long)lost_from);
    SIM_CHECK(sim, sequence->lost_from == UINT64_MAX, "still lost");
    twin_cut(&sim->twin, twin, (uint32_t)kept);
    /* Nothing is left that could be wrong, and what the kernels gave is thrown away. */
    if (kept <= sim->episodes[sim->more[i].episode].from && !kvt_sequence_is_suspect(sequence))
        sim_episode_end(sim, i, false);
}

static void note_loss(struct sim *sim, uint32_t i, uint64_t lost_from)
{
    const struct twin_sequence *twin = &sim->sequences[i];
    sim->counts.losses++;
    sim->tally.losses++;
    SIM_CHECK(sim, lost_from <= twin->tokens, "sequence %u lost from %llu", i, (unsigned long long)lost_from);
    /* What a window told of says nothing of the step that is landing. */
    if (!kvt_sequence_is_suspect(sim_sequence(sim, i))) sim_episode_end(sim, i, false);
    /* Layer by layer all that was computed since the step is lost. A fork of a lost sequence is lost from the same token on. */
    SIM_CHECK(sim, sim->plan.is_layered || lost_from % sim->plan.shape.block_tokens == 0, "sequence %u lost from %llu",
              i, (unsigned long long)lost_from);
    struct kvt_store_stats stats = { 0 };
    if (sim_store(sim)) kvt_store_stats(sim_store(sim), &stats);
    const struct kvt_counters *counters = &sim_core(sim)->counters;
    const bool may_lose = counters->given_up_blocks > 0 || counters->abandoned > 0 || stats.lost_records > 0
        || sim->was_reset || sim->was_unwaited || !sim_plan_is_calm(&sim->plan);
    SIM_CHECK(sim, may_lose, "sequence %u lost tokens from %llu and nothing had failed", i,
              (unsigned long long)lost_from);
}

/* Layer 0 is computed while layer 1 loads. Now and then an engine forgets to wait. */
static void read_by_layers(struct sim *sim, const struct sim_step *step)
{
    uint32_t layers = 0;
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++)
        layers = kvt_max_u32(layers, sim->plan.shape.groups[g].layers);
    for (uint32_t l = 0; l < layers; l++) {
        for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
            if (l >= sim->plan.shape.groups[g].layers) continue;
            if (!sim->is_calm && sim_chance(sim, 3)) {
                sim->was_unwaited = true;
                continue;
            }
            const enum kvt_status status = kvt_step_wait_layer(sim->runtime, step->handle, g, l,
                                                               sim_stream(sim, step->stream));
            SIM_CHECK(sim, status == KVT_OK, "group %u: layer %u cannot be waited for: status %d", g, l, (int)status);
        }
        if (!sim->is_calm && sim_chance(sim, 30)) sim_drift(sim);
        for (uint32_t m = 0; m < step->count; m++)
            sim_launch_read_layer(sim, &sim->sequences[step->members[m]], l, step->stream);
    }
}

/* Begins a step of these sequences; those that are ready read. False: none was. */
static bool begin_step(struct sim *sim, const uint32_t *members, uint32_t count, struct sim_step *step)
{
    struct kvt_step_entry entries[SIM_SEQUENCES_MAX];
    for (uint32_t m = 0; m < count; m++)
        entries[m] = (struct kvt_step_entry){ .seq = sim->sequences[members[m]].handle };
    const uint32_t stream = sim_below(sim, SIM_ENGINE_STREAMS);
    bool are_landing = false;
    *step = (struct sim_step){ .stream = stream };
    const enum kvt_status status = kvt_step_begin(sim->runtime, entries, count, sim_stream(sim, stream), &step->handle);
    SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    for (uint32_t m = 0; m < count; m++) {
        sim_say(sim, "step on %u: %u is %s", stream, members[m], readies[entries[m].ready]);
        if (entries[m].ready == KVT_LOST) note_loss(sim, members[m], entries[m].lost_from);
        if (entries[m].ready == KVT_READY || entries[m].ready == KVT_LANDING) step->members[step->count++] = members[m];
        if (entries[m].ready == KVT_LANDING) sim_episode_begin(sim, members[m]);
        are_landing = are_landing || entries[m].ready == KVT_LANDING;
    }
    SIM_CHECK(sim, !are_landing || sim->plan.is_layered, "a sequence is landing, and nobody asked for that");
    SIM_CHECK(sim, (step->handle != 0) == (step->count > 0), "%u are ready", step->count);
    sim->counts.readies += step->count;
    sim->tally.steps += step->count > 0;
    if (are_landing) {
        read_by_layers(sim, step);
    } else {
        for (uint32_t m = 0; m < step->count; m++) sim_launch_read(sim, &sim->sequences[step->members[m]], stream);
    }
    for (uint32_t m = 0; m < count; m++) {
        /* A loss is dealt with at once, or later. */
        if (entries[m].ready == KVT_LOST && sim_chance(sim, 70))
            truncate_to(sim, members[m], (uint32_t)entries[m].lost_from);
    }
    return step->count > 0;
}

static void end_step(struct sim *sim, struct sim_step *step)
{
    const enum kvt_status status = kvt_step_end(sim->runtime, step->handle);
    sim_say(sim, "step end on %u: status %d", step->stream, (int)status);
    SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    step->count = 0;
    step->handle = 0;
}

/* What an engine does that finds no room: waits, sets somebody idle, ends what can never run. */
static void answer_room(struct sim *sim, uint32_t i, enum kvt_room room)
{
    if (room == KVT_ROOM_PENDING && sim_chance(sim, 50)) {
        for (uint32_t n = 0; n < 6; n++) sim_drift(sim);
    }
    if (room == KVT_ROOM_FULL && sim_chance(sim, 60)) call_idle(sim);
    if (room == KVT_ROOM_FULL && sim_chance(sim, 8)) call_finish(sim);
    if (room == KVT_ROOM_TOO_LONG && sim_chance(sim, 50) && sim->sequences[i].is_live && !is_in_step(sim, i))
        finish(sim, i, true);
}

/* Active ones that want to decode, with room asked for. */
static uint32_t choose_members(struct sim *sim, uint32_t *ret_members)
{
    uint32_t count = 0, active = 0;
    const uint32_t percent = 20 + sim_below(sim, 80);
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) {
        if (!sim->sequences[i].is_live || !is_active(sim, i) || is_in_step(sim, i)) continue;
        if (!sim_chance(sim, percent)) continue;
        const struct kvt_sequence *sequence = sim_sequence(sim, i);
        if (sequence->reserved == sequence->tokens && sim_chance(sim, 85))
            answer_room(sim, i, append(sim, i, choose_append(sim, i)));
        if (sim->sequences[i].is_live) ret_members[count++] = i;
    }
    for (uint32_t m = 0; m < count; m++) {
        if (sim->sequences[ret_members[m]].is_live && is_active(sim, ret_members[m]))
            ret_members[active++] = ret_members[m];
    }
    return active;
}

static void call_step(struct sim *sim)
{
    struct sim_step *step = &sim->steps[sim_below(sim, SIM_STEPS_MAX)];
    if (step->handle) {
        end_step(sim, step);
        return;
    }
    uint32_t members[SIM_SEQUENCES_MAX];
    const uint32_t count = choose_members(sim, members);
    if (count == 0 || !begin_step(sim, members, count, step)) return;
    for (uint32_t m = 0; m < step->count; m++) {
        if (sim_chance(sim, 95)) compute_in_step(sim, step->members[m], step->stream);
        if (sim_chance(sim, 15)) sim_drift(sim);
    }
    if (sim_chance(sim, 70)) end_step(sim, step);
}

/* ---- The other calls --------------------------------------------------------------------------------------------- */

static void call_fork(struct sim *sim)
{
    const uint32_t i = pick(sim);
    const uint32_t to = free_place(sim);
    if (i == UINT32_MAX || to == SIM_SEQUENCES_MAX) return;
    kvt_seq fork = 0;
    const bool was_in_step = is_in_step(sim, i);
    const bool is_short = sim_memory_short(sim);
    const enum kvt_status status = kvt_seq_fork(sim->runtime, sim->sequences[i].handle, &fork);
    sim_memory_done(sim);
    sim_say(sim, "fork %u: status %d, %u", i, (int)status, to);
    if (was_in_step) SIM_CHECK(sim, status == KVT_INVAL, "in a step: status %d", (int)status);
    if (status != KVT_OK) {
        const bool is_landing = status == KVT_INVAL && sim->more[i].episode != 0;
        SIM_CHECK(sim, status == KVT_FULL || was_in_step || is_landing || (status == KVT_NOMEM && is_short),
                  "status %d", (int)status);
        return;
    }
    sim->sequences[to] = sim->sequences[i];
    sim->sequences[to].handle = fork;
    sim->more[to] = (struct sim_sequence_more){ .is_streamed = sim->more[i].is_streamed };
    /* Only what has landed is shared; of what is lost the fork is lost, too. */
    sim_episode_end(sim, i, sim_sequence(sim, i)->lost_from == UINT64_MAX);
    if (sim_chance(sim, 50)) sim->sequences[to].prompt = sim->sequences[to].tokens;
    sim_tally_sequences(sim);
}

static void call_truncate(struct sim *sim)
{
    const uint32_t i = pick(sim);
    if (i == UINT32_MAX) return;
    const struct twin_sequence *twin = &sim->sequences[i];
    uint32_t tokens = sim_below(sim, twin->tokens + 1);
    if (sim_chance(sim, 40)) tokens = twin->tokens - sim_below(sim, kvt_min_u32(twin->tokens, 4) + 1);
    if (sim_chance(sim, 30)) tokens = tokens / sim->plan.shape.block_tokens * sim->plan.shape.block_tokens;
    if (!is_in_step(sim, i)) {
        truncate_to(sim, i, tokens);
        return;
    }
    uint64_t kept;
    const enum kvt_status status = kvt_seq_truncate(sim->runtime, twin->handle, tokens, twin->ids, &kept);
    SIM_CHECK(sim, status == KVT_INVAL, "in a step: status %d", (int)status);
}

static void call_window(struct sim *sim)
{
    const uint32_t i = pick(sim);
    if (i == UINT32_MAX) return;
    struct twin_sequence *twin = &sim->sequences[i];
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const uint32_t sinks = sim_below(sim, 6), window = sim_below(sim, 24);
    const bool was_in_step = is_in_step(sim, i);
    const enum kvt_status status = kvt_seq_window(sim->runtime, twin->handle, sinks, window);
    sim_say(sim, "window %u: sinks %u, window %u, tokens %u: status %d", i, sinks, window, twin->tokens, (int)status);
    SIM_CHECK(sim, status == (was_in_step ? KVT_INVAL : KVT_OK), "status %d", (int)status);
    if (was_in_step || !has_group(sim, KVT_GROUP_FULL) || twin->tokens <= sinks + window) return;
    const uint32_t from = (sinks + block_tokens - 1) / block_tokens;
    (void)twin_drop(twin, from, (twin->tokens - window) / block_tokens, sinks, window);
}

static enum kvt_room resume(struct sim *sim, uint32_t i)
{
    enum kvt_room room = KVT_ROOM_PENDING;
    const bool is_short = sim_memory_short(sim);
    const enum kvt_status status = kvt_seq_resume(sim->runtime, sim->sequences[i].handle, &room);
    sim_memory_done(sim);
    sim_say(sim, "resume %u: status %d, %s", i, (int)status, rooms[room]);
    if (status == KVT_NOMEM && is_short) return KVT_ROOM_FULL;
    SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    SIM_CHECK(sim, (room == KVT_ROOM_OK) == is_active(sim, i), "room %d", (int)room);
    SIM_CHECK(sim, room != KVT_ROOM_PENDING, "resume never waits");
    return room;
}

static void call_resume(struct sim *sim)
{
    const uint32_t i = pick(sim);
    if (i != UINT32_MAX) (void)resume(sim, i);
}

static void call_expect(struct sim *sim)
{
    kvt_seq seqs[6];
    uint32_t steps[6];
    const uint32_t n = sim_below(sim, 6);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = pick(sim);
        seqs[k] = i == UINT32_MAX || sim_chance(sim, 5) ? sim_below(sim, 1000) : sim->sequences[i].handle;
        steps[k] = sim_below(sim, 12);
    }
    kvt_expect(sim->runtime, seqs, steps, n);
    sim_say(sim, "expect %u", n);
}

static void call_reset(struct sim *sim)
{
    uint64_t kept = 0;
    const bool is_short = sim_memory_short(sim);
    const enum kvt_status status = kvt_reset(sim->runtime, &kept);
    sim_memory_done(sim);
    sim_say(sim, "reset: status %d, kept %llu", (int)status, (unsigned long long)kept);
    const bool may_fail = is_short || (sim_store(sim) && !sim->is_calm && !sim_plan_is_calm(&sim->plan));
    SIM_CHECK(sim, status == KVT_OK || (status == KVT_IO && may_fail), "status %d", (int)status);
    /* What could not be forgotten durably may be found again by the next process; by this one it is not. */
    if (status == KVT_OK && !sim_plan_is_lying(&sim->plan)) twin_forget(&sim->before_reset);
    else twin_add(&sim->before_reset, &sim->twin);
    twin_forget(&sim->twin);
    sim->counts.resets++;
    sim->durable_run++;
    sim->was_reset = sim->tally.has_reset = true;
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) sim->sequences[i].is_unshared = true;
}

/* One of the next syncs of the disk fails, or comes back late: whoever's it is. */
static void spoil_a_sync(struct sim *sim)
{
    if (sim->is_calm || !sim_plan_has(&sim->plan, SIM_FAULT_EIO) || sim_chance(sim, 60)) return;
    io_faulty_at(sim->image, IO_FAULTY_SYNC, 1 + sim_below(sim, 3), IO_FAULTY_EIO);
}

static void call_sync(struct sim *sim)
{
    if (!sim_store(sim)) return;
    spoil_a_sync(sim);
    const enum kvt_status status = kvt_store_sync(sim_store(sim));
    sim_say(sim, "sync: status %d", (int)status);
    SIM_CHECK(sim, status == KVT_OK || (!sim->is_calm && !sim_plan_is_calm(&sim->plan)), "status %d", (int)status);
    if (status != KVT_OK) return;
    sim_check_synced(sim);
    /* Nothing that comes later helps what was acknowledged: the power goes at once. */
    if (!sim->is_calm && sim_plan_has(&sim->plan, SIM_FAULT_POWER) && sim_chance(sim, 15)) io_faulty_cut_at(sim->image, 1);
}

static void call_bad(struct sim *sim)
{
    const uint32_t i = pick(sim);
    kvt_step handle = 0;
    struct kvt_step_entry entry = { .seq = sim_below(sim, 100000) + ((uint64_t)77777 << 32) };
    enum kvt_status status = kvt_step_begin(sim->runtime, &entry, 1, sim_stream(sim, 0), &handle);
    SIM_CHECK(sim, status == KVT_INVAL, "a step of a stale sequence: status %d", (int)status);
    status = kvt_step_end(sim->runtime, sim_below(sim, 20) + ((uint64_t)0xffff << 40));
    SIM_CHECK(sim, status == KVT_INVAL, "the end of no step: status %d", (int)status);
    if (i == UINT32_MAX) return;
    const struct kvt_sequence *sequence = sim_sequence(sim, i);
    const uint32_t ids[4] = { 1, 2, 3, 4 };
    const uint64_t room = sequence->reserved - sequence->tokens;
    if (sequence->step == NO_STEP || room < 4) {
        status = kvt_seq_commit(sim->runtime, sim->sequences[i].handle, ids, room < 4 ? room + 1 : 1, 0,
                                sim_stream(sim, 0));
        SIM_CHECK(sim, status == KVT_INVAL, "more than is reserved, or not in a step: status %d", (int)status);
    }
    (void)kvt_seq_stall(sim->runtime, sim->sequences[i].handle);
}

/* What only some plans do. */
static void call_more(struct sim *sim)
{
    const uint32_t i = sim_below(sim, SIM_SEQUENCES_MAX);
    const bool is_live = sim->sequences[i].is_live;
    if (sim->plan.is_layered && is_live && sim_chance(sim, 40)) (void)sim_ask_landed(sim, i);
    if (sim->plan.is_reading && sim_chance(sim, 12)) sim_call_window(sim);
    if (sim->plan.is_reading && is_live && sim_chance(sim, 4)) sim_call_stream(sim, i);
    if (sim->plan.is_hinting && is_live && sim_chance(sim, 10)) sim_call_hint(sim, i);
    if (sim->plan.is_compacting && sim_store(sim) && sim_below(sim, 400) == 0) {
        const enum kvt_status status = kvt_store_compact(sim_store(sim));
        sim_say(sim, "compact: status %d", (int)status);
        SIM_CHECK(sim, status == KVT_OK || (status == KVT_IO && !sim_plan_is_calm(&sim->plan)), "status %d",
                  (int)status);
    }
}

void sim_call(struct sim *sim)
{
    const uint32_t draw = sim_below(sim, 1000);
    sim->counts.calls++;
    if (draw < 120) call_create(sim);
    else if (draw < 260) call_append(sim);
    else if (draw < 490) call_step(sim);
    else if (draw < 525) call_fork(sim);
    else if (draw < 580) call_truncate(sim);
    else if (draw < 605) call_window(sim);
    else if (draw < 665) call_idle(sim);
    else if (draw < 745) call_resume(sim);
    else if (draw < 775) call_finish(sim);
    else if (draw < 805) call_expect(sim);
    else if (draw < 815) call_bad(sim);
    else if (draw < 820) call_sync(sim);
    else if (draw < 823 && sim_below(sim, 1000) < sim->plan.reset_share) call_reset(sim);
    else sim_drift(sim);
    for (uint32_t n = sim_below(sim, 1 + sim->plan.haste); n > 0; n--) sim_drift(sim);
    call_more(sim);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void sim_drain(struct sim *sim)
{
    for (uint32_t round = 0; round < SIM_ROUNDS_MAX; round++) {
        sim_round(sim);
        if (sim_core(sim)->transfers.in_flight == 0 && round > 8) return;
    }
    sim_fail(sim, "%u transfers are still in flight after %u rounds", sim_core(sim)->transfers.in_flight,
             SIM_ROUNDS_MAX);
}

static void append_at_last(struct sim *sim, uint32_t i)
{
    for (uint32_t round = 0; round < SIM_ROUNDS_MAX; round++) {
        if (append(sim, i, 1) != KVT_ROOM_PENDING) return;
        sim_round(sim);
    }
    sim_fail(sim, "sequence %u: append is pending for ever", i);
}

/* What a streamed sequence attends to, whole, through a window of its own. */
static void read_through_window(struct sim *sim, uint32_t i, struct sim_step *step)
{
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
        if (sim->plan.shape.groups[g].kind == KVT_GROUP_STATE || !step->handle) continue;
        struct sim_window window = { .sequence = i, .group = g, .handle = sim->sequences[i].handle };
        enum kvt_room room;
        const enum kvt_status status = kvt_reader_open(sim->runtime, window.handle, g, 1, &room, &window.reader);
        SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
        sim_say(sim, "window of 1 for %u, group %u, at the end: room %d", i, g, (int)room);
        if (room != KVT_ROOM_OK) continue;
        sim_window_read(sim, &window, step->stream, true);
        end_step(sim, step);
        sim_window_close(sim, &window);
    }
}

/* The sequence is the only active one: it must become ready, or lost, and read everything. */
static void bring_back(struct sim *sim, uint32_t i)
{
    const enum kvt_room room = resume(sim, i);
    SIM_CHECK(sim, room != KVT_ROOM_FULL, "sequence %u is the only one and finds no room", i);
    if (room != KVT_ROOM_OK) return;
    for (uint32_t round = 0; round < SIM_ROUNDS_MAX; round++) {
        struct sim_step step;
        sim_round(sim);
        if (begin_step(sim, &i, 1, &step)) {
            /* One group a step: a window is closed outside of it. */
            if (sim->more[i].is_streamed) read_through_window(sim, i, &step);
            if (step.handle) end_step(sim, &step);
            for (uint32_t n = 0; !sim_ask_landed(sim, i); n++) {
                SIM_CHECK(sim, n < SIM_ROUNDS_MAX, "sequence %u does not land", i);
                sim_round(sim);
            }
            const uint64_t lost = sim_sequence(sim, i)->lost_from;
            if (lost != UINT64_MAX) {
                truncate_to(sim, i, (uint32_t)lost);
                continue;
            }
            append_at_last(sim, i);
            return;
        }
        const uint64_t lost_from = sim_sequence(sim, i)->lost_from;
        if (lost_from != UINT64_MAX) truncate_to(sim, i, (uint32_t)lost_from);
        /* A cut that finds no room for a window leaves the sequence idle. */
        if (!is_active(sim, i)) (void)resume(sim, i);
    }
    sim_fail(sim, "sequence %u does not become ready: it waits for %s", i,
             kvt_stall_name(kvt_seq_stall(sim->runtime, sim->sequences[i].handle)));
}

static void idle_all(struct sim *sim)
{
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) {
        if (!sim->sequences[i].is_live) continue;
        const enum kvt_status status = kvt_seq_idle(sim->runtime, sim->sequences[i].handle);
        SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    }
}

void sim_finish_all(struct sim *sim)
{
    for (uint32_t s = 0; s < SIM_STEPS_MAX; s++) {
        if (sim->steps[s].handle) end_step(sim, &sim->steps[s]);
    }
    for (uint32_t w = 0; w < SIM_WINDOWS; w++) {
        if (sim->windows[w].reader) sim_window_close(sim, &sim->windows[w]);
    }
    idle_all(sim);
    sim_drain(sim);
    sim_check_all(sim);
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) {
        if (!sim->sequences[i].is_live) continue;
        bring_back(sim, i);
        idle_all(sim);
        sim_check_all(sim);
    }
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) {
        if (sim->sequences[i].is_live) finish(sim, i, sim_chance(sim, 80));
    }
    sim_drain(sim);
    sim_check_all(sim);
    sim_check_idle(sim);
}
