/* check: what holds at every moment, and what must lie in the store. */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/residency.h"
#include "tests/sim/sim.h"
#include "tiers/codec.h"
#include "tiers/store_format.h"
#include "tiers/store_seal.h"
#include "tiers/store_verify.h"
#include "tiers/tier.h"

#define LISTED_BATCH 64
#define RECORD_BYTES_MAX (256 * KVT_KIB)

/* ---- The core ---------------------------------------------------------------------------------------------------- */

void sim_check_tick(struct sim *sim)
{
    const struct kvt_core *core = sim_core(sim);
    /* Whoever was pumped at this time has told its waiters of every transfer that is too late. */
    if (core->transfers.oldest != KVT_NO_TRANSFER) {
        const uint64_t deadline_ns = core->transfers.items[core->transfers.oldest].deadline_ns;
        SIM_CHECK(sim, deadline_ns > core->now_ns, "a transfer is %llu ns past its deadline and still waited for",
                  (unsigned long long)(core->now_ns - deadline_ns));
    }
    const struct kvt_sequence_list *demand = &core->demand;
    SIM_CHECK(sim, (demand->head == KVT_NO_SEQUENCE) == (demand->tail == KVT_NO_SEQUENCE), "the demand list is broken");
}

static void check_caps(struct sim *sim, const struct kvt_stats *stats)
{
    const struct io_faulty_counters disk = io_faulty_counters(sim->image);
    SIM_CHECK(sim, disk.bytes_peak <= sim->nvme_bytes_most, "the disk held %llu bytes, the cap is %u",
              (unsigned long long)disk.bytes_peak, sim->nvme_bytes_most);
    /* A directory that is left out keeps what it has; a file that cannot be removed, too. */
    const bool may_be_more = sim->was_changed && (sim->plan.stripes > 1 || !sim_plan_is_calm_disk(&sim->plan));
    SIM_CHECK(sim, may_be_more || disk.bytes_used <= sim->config.nvme_bytes,
              "the disk holds %llu bytes, the cap is %llu", (unsigned long long)disk.bytes_used,
              (unsigned long long)sim->config.nvme_bytes);
    SIM_CHECK(sim, may_be_more || stats->store_allocated_peak <= sim->config.nvme_bytes,
              "the store says it took %llu of %llu bytes", (unsigned long long)stats->store_allocated_peak,
              (unsigned long long)sim->config.nvme_bytes);
    SIM_CHECK(sim, stats->tiers[KVT_TIER_HOST].peak_bytes <= sim->config.host_bytes,
              "host memory took %llu bytes, the cap is %llu",
              (unsigned long long)stats->tiers[KVT_TIER_HOST].peak_bytes, (unsigned long long)sim->config.host_bytes);
    SIM_CHECK(sim, stats->tiers[KVT_TIER_DEVICE].peak_bytes <= sim->config.device_bytes,
              "the device took %llu bytes, the cap is %llu",
              (unsigned long long)stats->tiers[KVT_TIER_DEVICE].peak_bytes,
              (unsigned long long)sim->config.device_bytes);
}

/* The numbers that operators see, counted again. Counting comes first: the call that asks for them goes on working. */
static void check_stats(struct sim *sim, struct kvt_stats *ret_stats)
{
    const struct kvt_core *core = sim_core(sim);
    uint64_t live = 0, device = 0, host = 0;
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) live += sim->sequences[i].is_live;
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        device += block->device_slot != KVT_NO_SLOT;
        host += block->host_slot != KVT_NO_SLOT;
    }
    const struct sim_tally tally = sim->tally;
    kvt_stats(sim->runtime, ret_stats);
    SIM_CHECK(sim, ret_stats->sequences == live, "%llu sequences, not %llu", (unsigned long long)ret_stats->sequences,
              (unsigned long long)live);
    SIM_CHECK(sim, ret_stats->tiers[KVT_TIER_DEVICE].blocks == device, "%llu blocks on the device, not %llu",
              (unsigned long long)ret_stats->tiers[KVT_TIER_DEVICE].blocks, (unsigned long long)device);
    SIM_CHECK(sim, ret_stats->tiers[KVT_TIER_HOST].blocks == host, "%llu blocks in host memory, not %llu",
              (unsigned long long)ret_stats->tiers[KVT_TIER_HOST].blocks, (unsigned long long)host);
    sim_check_counters(sim, ret_stats, &tally);
}

/* A window keeps its window: its memory does not grow with the sequence. */
static void check_windows(struct sim *sim, uint32_t i)
{
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const struct kvt_sequence *sequence = sim_sequence(sim, i);
    if (sequence->step != UINT32_MAX) return; /* it slides when the step ends */
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
        if (sim->plan.shape.groups[g].kind != KVT_GROUP_WINDOW) continue;
        const struct kvt_sequence_table *table = &sequence->groups[g];
        uint32_t held = 0;
        for (uint32_t b = twin_sink_blocks(&sim->twin, g); b < table->count; b++)
            held += table->blocks[b] != KVT_NO_BLOCK;
        const uint64_t ahead = (sequence->reserved - sequence->tokens + block_tokens - 1) / block_tokens;
        const uint32_t window = (sim->plan.shape.groups[g].window_tokens + block_tokens - 1) / block_tokens;
        SIM_CHECK(sim, held <= window + 2 + ahead, "sequence %u group %u holds %u blocks of a window of %u", i, g, held,
                  window);
    }
}

void sim_check_all(struct sim *sim)
{
    struct kvt_stats stats;
    sim->counts.recounts++;
    kvt_core_verify(sim_core(sim));
    check_stats(sim, &stats);
    check_caps(sim, &stats);
    for (uint32_t s = 0; s < SIM_SEQUENCES_MAX; s++) {
        const struct twin_sequence *twin = &sim->sequences[s];
        if (!twin->is_live) continue;
        const uint64_t tokens = kvt_seq_tokens(sim->runtime, twin->handle);
        SIM_CHECK(sim, sim_sequence(sim, s) != NULL, "sequence %u: its handle is stale", s);
        SIM_CHECK(sim, tokens == twin->tokens, "sequence %u: %llu tokens, not %u", s, (unsigned long long)tokens,
                  twin->tokens);
        check_windows(sim, s);
    }
}

void sim_check_idle(struct sim *sim)
{
    const struct kvt_core *core = sim_core(sim);
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        SIM_CHECK(sim, core->pools[p].claimed == 0, "pool %u: %u claims without sequences", p, core->pools[p].claimed);
        SIM_CHECK(sim, core->pools[p].quarantined == 0, "pool %u: %u in quarantine", p, core->pools[p].quarantined);
        SIM_CHECK(sim, core->pools[p].leaving == 0, "pool %u: %u are leaving", p, core->pools[p].leaving);
    }
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        if (!kvt_block_has_copies(block)) continue;
        SIM_CHECK(sim, block->refs == 0 && block->users == 0, "block %u: %u refs, %u users without sequences", b,
                  block->refs, block->users);
    }
    SIM_CHECK(sim, core->host.quarantined == 0, "%u host slots in quarantine", core->host.quarantined);
    SIM_CHECK(sim, core->transfers.abandoned == 0, "%u abandoned transfers", core->transfers.abandoned);
    SIM_CHECK(sim, core->transfers.prefetch_bytes == 0, "%llu bytes count as on their way",
              (unsigned long long)core->transfers.prefetch_bytes);
    SIM_CHECK(sim, core->sequence_count == 0, "%u sequences", core->sequence_count);
    if (!sim_store(sim)) return;
    struct kvt_store_stats stats;
    kvt_store_stats(sim_store(sim), &stats);
    SIM_CHECK(sim, stats.held_bytes == 0, "%llu bytes are held in the store without sequences",
              (unsigned long long)stats.held_bytes);
}

/* ---- Durable means durable --------------------------------------------------------------------------------------- */

typedef void (*record_fn)(struct sim *sim, const struct kvt_store_listed *listed, struct sim_sealed *sealed);

/* Every record that is listed; sealed is what must lie there, NULL for a private one. */
static uint64_t for_each_record(struct sim *sim, record_fn visit)
{
    struct kvt_store_listed listed[LISTED_BATCH];
    uint64_t cursor = 0, count = 0;
    uint32_t n;
    while ((n = kvt_store_list(sim_store(sim), &cursor, listed, LISTED_BATCH)) > 0) {
        for (uint32_t i = 0; i < n; i++) {
            struct sim_sealed *sealed = listed[i].is_private ? NULL : sim_content_find(&sim->content, &listed[i].name);
            SIM_CHECK(sim, listed[i].is_private || sealed, "a record of %u bytes that nobody sealed", listed[i].length);
            visit(sim, &listed[i], sealed);
            count++;
        }
    }
    return count;
}

static void mark_durable(struct sim *sim, const struct kvt_store_listed *listed, struct sim_sealed *sealed)
{
    (void)listed;
    if (sealed) sealed->durable = sim->durable_run;
}

void sim_check_synced(struct sim *sim)
{
    /* Without one of its directories a store puts records where nobody looks for them once it is back. */
    struct kvt_store_stats stats;
    kvt_store_stats(sim_store(sim), &stats);
    sim->durable_run++; /* what an earlier sync covered, and is not here any more, has left */
    if (stats.directories_lost == 0) (void)for_each_record(sim, mark_durable);
}

static void mark_unread(struct sim *sim, const struct kvt_store_listed *listed, struct sim_sealed *sealed)
{
    (void)sim;
    (void)listed;
    if (sealed) sealed->is_unread = true;
}

void sim_note_unread(struct sim *sim)
{
    if (sim_store(sim)) (void)for_each_record(sim, mark_unread);
}

/* A record that was durable and is still there goes from an even run to the next odd one. */
static void mark_expected(struct sim *sim, const struct kvt_store_listed *listed, struct sim_sealed *sealed)
{
    (void)listed;
    if (sealed && sealed->durable == sim->durable_run - 1) sealed->durable = sim->durable_run;
}

/*
 * A record may leave with its segment, and its block be stored again: until the next sync nothing is promised of that
 * one. A record that is copied forward stays the one that was durable.
 */
void sim_note_transfer(void *user, const struct kvt_transfer_event *event)
{
    struct sim *sim = user;
    sim_tally_transfer(sim, event);
    if (event->to != KVT_TIER_NVME) return;
    const struct kvt_name name = kvt_block_name(&sim->opened->core, event->block);
    struct sim_sealed *sealed = sim_content_find(
        &sim->content, &(struct kvt_store_name){ { name.space.lo, name.space.hi }, { name.key.lo, name.key.hi } });
    if (!sealed) return;
    sealed->durable = 0;
    sealed->is_unread = false;
    sealed->digest = 0; /* it may be packed in another way */
}

void sim_check_before_crash(struct sim *sim)
{
    sim->durable_run++;
    if (sim_store(sim)) (void)for_each_record(sim, mark_expected);
}

void sim_check_after_crash(struct sim *sim)
{
    if (sim_store(sim) && !sim_plan_is_lying(&sim->plan)) {
        for (uint32_t i = 0; i < sim->content.capacity; i++) {
            const struct sim_sealed *sealed = &sim->content.entries[i];
            if (sealed->durable != sim->durable_run) continue;
            struct kvt_store_found found;
            SIM_CHECK(sim, kvt_store_find(sim_store(sim), &sealed->name, &found),
                      "a record of group %u was durable, and is gone after the restart", sealed->group);
            sim->counts.records_durable++;
        }
    }
    if (sim_store(sim)) sim_check_store(sim);
}

/* What the records take by their lengths. */
static void add_live(struct sim *sim, const struct kvt_store_listed *listed, struct sim_sealed *sealed)
{
    (void)sealed;
    sim->listed_bytes += kvt_store_stored_bytes(listed->length + (sim->key_number > 0 ? KVT_SEAL_BYTES : 0),
                                                sim->plan.disk_alignment);
}

static void check_live_bytes(struct sim *sim, const struct kvt_store_stats *stats)
{
    sim->listed_bytes = 0;
    (void)for_each_record(sim, add_live);
    SIM_CHECK(sim, sim->listed_bytes == stats->live_bytes, "records take %llu bytes, and it says %llu",
              (unsigned long long)sim->listed_bytes, (unsigned long long)stats->live_bytes);
}

/* ---- Every record, read ------------------------------------------------------------------------------------------ */

static void take_buffers(struct sim *sim)
{
    const uint64_t scratch = sim->runtime && sim->runtime->codec ? kvt_codec_scratch_bytes(sim->runtime->codec) : 1;
    if (!sim->raw) sim->raw = kvt_table_map(RECORD_BYTES_MAX);
    KVT_ASSERT(sim->raw != NULL);
    if (scratch <= sim->scratch_size) return;
    kvt_table_unmap(sim->scratch_bytes, sim->scratch_size);
    sim->scratch_bytes = kvt_table_map(scratch);
    sim->scratch_size = scratch;
    KVT_ASSERT(sim->scratch_bytes != NULL);
}

/* The record's bytes as they lie in a block: [layer][plane][token][row]. NULL: they do not unpack. */
static const uint8_t *unpacked(struct sim *sim, const struct kvt_store_listed *listed, const uint8_t *bytes,
                               uint32_t group, uint32_t tokens)
{
    const struct kvt_group_shape *shape = &sim->plan.shape.groups[group];
    if ((enum kvt_form)listed->form == KVT_FORM_RAW) return bytes;
    const uint32_t planes = shape->kind == KVT_GROUP_STATE || shape->planes == 1 ? 1 : 2;
    const uint64_t plane_bytes = kvt_group_row_bytes(shape) * tokens;
    struct kvt_chunk_view views[8];
    KVT_ASSERT(shape->layers <= KVT_ARRAY_COUNT(views));
    for (uint32_t l = 0; l < shape->layers; l++) {
        for (uint32_t p = 0; p < planes; p++) views[l].plane[p] = sim->raw + (l * planes + p) * plane_bytes;
    }
    const enum kvt_status status = kvt_codec_unpack(sim->runtime->codec, group, bytes, listed->length, tokens, views,
                                                    sim->scratch_bytes);
    return status == KVT_OK ? sim->raw : NULL;
}

static bool is_content(struct sim *sim, const struct sim_sealed *sealed, const uint8_t *bytes, uint32_t tokens)
{
    const struct kvt_group_shape *shape = &sim->plan.shape.groups[sealed->group];
    const uint32_t planes = shape->kind == KVT_GROUP_STATE || shape->planes == 1 ? 1 : 2;
    const uint32_t row_bytes = (uint32_t)kvt_group_row_bytes(shape);
    uint8_t expected[SIM_ROW_BYTES_MAX];
    for (uint32_t s = 0; s < shape->layers * planes; s++) {
        for (uint32_t t = 0; t < tokens; t++, bytes += row_bytes) {
            twin_row(sealed->values[t], sealed->group, s, expected, row_bytes);
            if (memcmp(bytes, expected, row_bytes) != 0) return false;
        }
    }
    return true;
}

/*
 * The bytes of a record are those that were sealed under its name. Without a runtime there is no codec to unpack it with:
 * then they must be those that were right when they were last read.
 */
static bool is_right(void *user, const struct kvt_store_listed *listed, const void *bytes)
{
    struct sim *sim = user;
    struct sim_sealed *sealed = listed->is_private ? NULL : sim_content_find(&sim->content, &listed->name);
    SIM_CHECK(sim, listed->is_private || sealed, "a record of %u bytes that nobody sealed", listed->length);
    sim->counts.records_read++;
    if (!sealed) return true;
    sealed->is_unread = false;
    const bool is_state = sim->plan.shape.groups[sealed->group].kind == KVT_GROUP_STATE;
    const uint32_t tokens = is_state ? 1 : sim->plan.shape.block_tokens;
    const uint64_t digest = kvt_key_digest(bytes, listed->length).lo;
    const bool has_codec = sim->runtime && sim->runtime->codec && sealed->world == sim->world;
    if ((enum kvt_form)listed->form != KVT_FORM_RAW && !has_codec) {
        sim->counts.records_digested += sealed->digest != 0;
        return sealed->digest == 0 || sealed->digest == digest;
    }
    const uint8_t *content = unpacked(sim, listed, bytes, sealed->group, tokens);
    sealed->digest = 0;
    if (!content) return true; /* packed with tables that are lost: refused by its reader, a miss */
    if (!is_content(sim, sealed, content, tokens)) return false;
    sealed->digest = digest;
    return true;
}

static void note_refused(void *user, const struct kvt_store_listed *listed, enum kvt_status status)
{
    struct sim *sim = user;
    const struct sim_sealed *sealed = sim_content_find(&sim->content, &listed->name);
    /* What was being written when it all went dark may lie there torn: it is found out here, and forgotten. */
    const bool is_promised = sealed && sealed->durable == sim->durable_run && !sealed->is_unread;
    const bool may_be_torn = sim->was_crashed && sealed && !is_promised;
    SIM_CHECK(sim, may_be_torn || sim_plan_is_lying(&sim->plan),
              "a record fails its check on a disk that never lied: status %d", (int)status);
}

void sim_check_store(struct sim *sim)
{
    if (!sim_store(sim)) return;
    KVT_ASSERT(!sim->runtime || sim->runtime->nvme->in_flight == 0);
    take_buffers(sim);
    struct kvt_store_stats before, after;
    kvt_store_stats(sim_store(sim), &before);
    const struct kvt_store_verify how = { .is_right = is_right, .refused = note_refused, .user = sim };
    struct kvt_store_verified verified;
    const enum kvt_status status = kvt_store_verify(sim_store(sim), &how, &verified);
    KVT_ASSERT(status == KVT_OK);
    kvt_store_stats(sim_store(sim), &after);
    sim->tally.own_gets += verified.good;
    sim->counts.verifies++;
    SIM_CHECK(sim, verified.served_bad == 0, "%llu bad records are served of %llu",
              (unsigned long long)verified.served_bad, (unsigned long long)before.records);
    /* A segment may be in the middle of being recycled, and what cannot be moved any more be dropped. */
    const uint64_t bad = after.corrupt - before.corrupt + after.read_errors - before.read_errors,
                   unmoved = bad - kvt_min_u64(bad, verified.refused),
                   evicted = after.evicted_records - before.evicted_records + unmoved,
                   count = kvt_store_verified_count(&verified);
    SIM_CHECK(sim, verified.unreachable <= evicted, "%llu records are listed and not found",
              (unsigned long long)verified.unreachable);
    SIM_CHECK(sim, count <= before.records && count + evicted >= before.records, "%llu records, and %llu in the list",
              (unsigned long long)before.records, (unsigned long long)count);
    SIM_CHECK(sim, after.records + verified.refused + evicted == before.records,
              "%llu records are left of %llu, %llu were refused", (unsigned long long)after.records,
              (unsigned long long)before.records, (unsigned long long)verified.refused);
    SIM_CHECK(sim, unmoved == 0 || before.reclaims != after.reclaims, "%llu records are bad that nobody read",
              (unsigned long long)unmoved);
    SIM_CHECK(sim, bad >= verified.refused, "it counts %llu bad records, %llu were refused", (unsigned long long)bad,
              (unsigned long long)verified.refused);
    SIM_CHECK(sim, after.read_errors == before.read_errors || sim_plan_is_lying(&sim->plan),
              "reads failed on a healthy disk");
    if (verified.refused == 0) check_live_bytes(sim, &after);
}

void sim_check_directory(struct sim *sim)
{
    if (sim->plan.nvme_bytes == 0) return;
    KVT_ASSERT(!sim->runtime);
    struct kvt_store_config config = kvt_store_config_default();
    config.capacity_bytes = sim->config.nvme_bytes;
    config.key = sim->config.nvme_key;
    if (sim->plan.stripes > 1) {
        config.paths = sim_directories(sim);
        config.path_count = sim->plan.stripes;
    } else {
        config.path = sim_directories(sim)[0];
    }
    char error[256];
    const enum kvt_status status = kvt_store_open(&config, &sim->env, &sim->directory, error, sizeof error);
    SIM_CHECK(sim, status == KVT_OK, "the directory cannot be opened for a look: status %d: %s", (int)status, error);
    struct kvt_store_stats stats;
    kvt_store_stats(sim->directory, &stats);
    sim_say(sim, "the directory: %llu records, %llu bad at open", (unsigned long long)stats.records,
            (unsigned long long)stats.recovered_bad);
    SIM_CHECK(sim, stats.recovered_bad == 0 || !sim_plan_is_calm(&sim->plan), "%llu bad records after no fault",
              (unsigned long long)stats.recovered_bad);
    sim_check_after_crash(sim);
    kvt_store_close(&sim->directory);
}
