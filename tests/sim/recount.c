/* recount: what the process must say of itself, counted by the harness as it happens, and compared with what it says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/residency.h"
#include "tests/sim/sim.h"

#define METRICS_BYTES_MAX (64 * KVT_KIB)

void sim_tally_begin(struct sim *sim) { sim->tally = (struct sim_tally){ .disk = io_faulty_counters(sim->image) }; }

void sim_tally_transfer(struct sim *sim, const struct kvt_transfer_event *event)
{
    struct sim_tally *tally = &sim->tally;
    if (event->status != KVT_OK) {
        tally->failed++;
        return;
    }
    tally->moves[event->from][event->to]++;
    tally->bytes[event->from][event->to] += event->bytes;
}

void sim_tally_sequences(struct sim *sim)
{
    uint64_t live = 0;
    for (uint32_t i = 0; i < SIM_SEQUENCES_MAX; i++) live += sim->sequences[i].is_live;
    sim->tally.sequences_max = kvt_max_u64(sim->tally.sequences_max, live);
}

/* ---- Hits -------------------------------------------------------------------------------------------------------- */

/* The fastest tier that has the block; KVT_TIERS: none. */
static uint32_t tier_of(struct sim *sim, uint32_t group, struct kvt_key key)
{
    const uint32_t index = kvt_prefix_find(&sim_core(sim)->prefix, group, key);
    if (index != KVT_NO_BLOCK) {
        const struct kvt_block *block = kvt_core_block(sim_core(sim), index);
        for (uint32_t t = 0; t < KVT_TIERS; t++) {
            if (kvt_copy_state(block, t) != KVT_COPY_EMPTY) return t;
        }
    }
    if (!sim_store(sim)) return KVT_TIERS;
    const struct kvt_key space = sim_core(sim)->config.space[group];
    const struct kvt_store_name name = { { space.lo, space.hi }, { key.lo, key.hi } };
    struct kvt_store_found found;
    return kvt_store_find(sim_store(sim), &name, &found) ? KVT_TIER_NVME : KVT_TIERS;
}

void sim_tally_lookup(struct sim *sim, const struct kvt_seq_params *params, struct sim_lookup *ret_lookup)
{
    const struct kvt_core *core = sim_core(sim);
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const uint64_t limit = params->token_count ? kvt_min_u64(params->reuse_max, params->token_count - 1) : 0;
    const struct kvt_key space = kvt_key_digest(core->config.space, core->group_count * sizeof core->config.space[0]);
    struct kvt_key_root root;
    kvt_key_root(core->config.secret, core->config.secret_bytes, &space, params->salt, params->salt_bytes, &root);
    ret_lookup->asked = (uint32_t)(limit / block_tokens);
    KVT_ASSERT(ret_lookup->asked <= TWIN_TOKENS_MAX);
    struct kvt_key chain = { 0, 0 };
    for (uint32_t i = 0; i < ret_lookup->asked; i++) {
        chain = kvt_key_chain(&root, chain, params->tokens + (uint64_t)i * block_tokens, block_tokens);
        for (uint32_t g = 0; g < core->group_count; g++) ret_lookup->tiers[g][i] = (uint8_t)tier_of(sim, g, chain);
    }
}

/* Blocks [from, to) of a group were found where the lookup before says; each is a miss of the tiers above. */
static void add_found(struct sim *sim, const struct sim_lookup *lookup, uint32_t group, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const uint32_t tier = lookup->tiers[group][i];
        SIM_CHECK(sim, tier < KVT_TIERS, "group %u: block %u is reused and was nowhere", group, i);
        sim->tally.hits[tier]++;
        for (uint32_t t = 0; t < tier; t++) sim->tally.misses[t]++;
    }
}

void sim_tally_found(struct sim *sim, const struct sim_lookup *lookup, uint32_t reused)
{
    const uint32_t blocks = reused / sim->plan.shape.block_tokens;
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
        const enum kvt_group_kind kind = sim->plan.shape.groups[g].kind;
        if (kind == KVT_GROUP_FULL) {
            for (uint32_t t = 0; t < KVT_TIERS; t++) sim->tally.misses[t] += lookup->asked - blocks;
        }
        if (blocks == 0) continue;
        uint32_t first = 0;
        if (kind == KVT_GROUP_WINDOW) first = twin_first_needed(&sim->twin, g, reused);
        if (kind == KVT_GROUP_STATE) first = blocks - 1;
        if (kind == KVT_GROUP_WINDOW) add_found(sim, lookup, g, 0, kvt_min_u32(first, twin_sink_blocks(&sim->twin, g)));
        add_found(sim, lookup, g, first, blocks);
    }
}

/* ---- Compared ---------------------------------------------------------------------------------------------------- */

#define EQUAL(sim, what, said, counted)                                                                           \
    SIM_CHECK(sim, (said) == (counted), what ": it says %llu, and %llu were counted", (unsigned long long)(said), \
              (unsigned long long)(counted))
#define AT_MOST(sim, what, said, counted)                                                                           \
    SIM_CHECK(sim, (said) <= (counted), what ": it says %llu, and at most %llu can be", (unsigned long long)(said), \
              (unsigned long long)(counted))

static void compare_moves(struct sim *sim, const struct kvt_stats *stats, const struct sim_tally *tally)
{
    enum { D = KVT_TIER_DEVICE, H = KVT_TIER_HOST, N = KVT_TIER_NVME };
    EQUAL(sim, "stashes", stats->stashes, tally->moves[D][H]);
    EQUAL(sim, "stashes by form", stats->packed_blocks + stats->raw_blocks, tally->moves[D][H]);
    EQUAL(sim, "copies", stats->copies, tally->moves[D][D]);
    EQUAL(sim, "bytes out of the device", stats->tiers[D].bytes_out, tally->bytes[D][H]);
    EQUAL(sim, "bytes into host memory", stats->tiers[H].bytes_in, tally->bytes[D][H] + tally->bytes[N][H]);
    EQUAL(sim, "bytes into nvme", stats->tiers[N].bytes_in, tally->bytes[H][N]);
    EQUAL(sim, "bytes out of nvme", stats->tiers[N].bytes_out, tally->bytes[N][H]);
    EQUAL(sim, "fetches by why", stats->prefetched_blocks + stats->demand_blocks, stats->fetches);
    AT_MOST(sim, "failures", stats->failures, tally->failed);
    /* A block that goes layer by layer is told as its parts. */
    if (sim->plan.is_layered || sim->plan.is_reading) {
        AT_MOST(sim, "fetches", stats->fetches, tally->moves[H][D]);
        AT_MOST(sim, "bytes into the device", stats->tiers[D].bytes_in, tally->bytes[H][D]);
        return;
    }
    EQUAL(sim, "fetches", stats->fetches, tally->moves[H][D]);
    EQUAL(sim, "bytes into the device", stats->tiers[D].bytes_in, tally->bytes[H][D]);
    EQUAL(sim, "bytes out of host memory", stats->tiers[H].bytes_out, tally->bytes[H][N] + tally->bytes[H][D]);
}

/* The store counts what came back to it: a put that its waiters had given up, or that a reset overtook, is one as well. */
static void compare_store(struct sim *sim)
{
    if (!sim_store(sim)) return;
    struct kvt_store_stats store;
    kvt_store_stats(sim_store(sim), &store);
    const struct sim_tally *tally = &sim->tally;
    const struct io_faulty_counters disk = io_faulty_counters(sim->image);
    const uint64_t puts = tally->moves[KVT_TIER_HOST][KVT_TIER_NVME], gets = tally->moves[KVT_TIER_NVME][KVT_TIER_HOST];
    if (sim_core(sim)->counters.abandoned == 0 && !tally->has_reset) {
        EQUAL(sim, "puts", store.puts, puts);
        EQUAL(sim, "gets", store.gets, gets + tally->own_gets);
    }
    AT_MOST(sim, "moves to nvme", puts, store.puts);
    AT_MOST(sim, "moves from nvme", gets + tally->own_gets, store.gets);
    AT_MOST(sim, "bytes written", store.written_bytes, disk.bytes_written - tally->disk.bytes_written);
    AT_MOST(sim, "bytes read", store.read_bytes, disk.bytes_read - tally->disk.bytes_read);
    AT_MOST(sim, "bytes that records take", store.live_bytes, store.allocated_bytes);
    if (store.directories_lost == 0) AT_MOST(sim, "bytes on the disk", disk.bytes_used, store.allocated_bytes);
}

static void compare_lookups(struct sim *sim, const struct kvt_stats *stats)
{
    static const char *const names[KVT_TIERS] = { "device", "host", "nvme" };
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        SIM_CHECK(sim, stats->tiers[t].hits == sim->tally.hits[t], "%s: it says %llu hits, and %llu were counted",
                  names[t], (unsigned long long)stats->tiers[t].hits, (unsigned long long)sim->tally.hits[t]);
        SIM_CHECK(sim, stats->tiers[t].misses == sim->tally.misses[t], "%s: it says %llu misses, and %llu were counted",
                  names[t], (unsigned long long)stats->tiers[t].misses, (unsigned long long)sim->tally.misses[t]);
    }
    /* A call that finds no memory may have begun a sequence that it ends again. */
    if (!sim_plan_has(&sim->plan, SIM_FAULT_MEMORY))
        EQUAL(sim, "sequences at once", stats->sequences_max, sim->tally.sequences_max);
    AT_MOST(sim, "sequences at once", sim->tally.sequences_max, stats->sequences_max);
    SIM_CHECK(sim, stats->lost_blocks > 0 || sim->tally.losses == 0, "%llu losses were told, and no block is lost",
              (unsigned long long)sim->tally.losses);
}

/* ---- The text for operators -------------------------------------------------------------------------------------- */

/* The sum of all samples that begin with this text: a name, and as much of its labels as is given. */
static double sum_of(const char *text, const char *begin)
{
    double sum = 0;
    for (const char *line = strstr(text, begin); line; line = strstr(line + 1, begin)) {
        if (line > text && line[-1] != '\n') continue;
        const char *end = strchr(line, '\n');
        while (end && end > line && end[-1] != ' ') end--;
        if (end) sum += strtod(end, NULL);
    }
    return sum;
}

static void compare_text(struct sim *sim)
{
    enum { D = KVT_TIER_DEVICE, H = KVT_TIER_HOST, N = KVT_TIER_NVME };
    static char text[METRICS_BYTES_MAX];
    /* Before: the call goes on working. */
    const struct sim_tally tally = sim->tally;
    const struct kvt_counters counters = sim_core(sim)->counters;
    const uint64_t sequences = sim_core(sim)->sequence_count;
    const size_t length = kvt_metrics_text(sim->runtime, text, sizeof text);
    SIM_CHECK(sim, length < sizeof text, "%zu bytes of metrics", length);
    const struct {
        const char *begin;
        uint64_t value;
    } rows[] = {
        { "kvtier_lookup_blocks_total{found=\"device\"}", tally.hits[D] },
        { "kvtier_lookup_blocks_total{found=\"host\"}", tally.hits[H] },
        { "kvtier_lookup_blocks_total{found=\"nvme\"}", tally.hits[N] },
        { "kvtier_lookup_blocks_total{found=\"nowhere\"}", tally.misses[N] },
        { "kvtier_tier_moved_bytes_total{tier=\"device\",direction=\"out\"}", tally.bytes[D][H] },
        { "kvtier_tier_moved_bytes_total{tier=\"host\",direction=\"in\"}", tally.bytes[D][H] + tally.bytes[N][H] },
        { "kvtier_tier_moved_bytes_total{tier=\"nvme\",direction=\"in\"}", tally.bytes[H][N] },
        { "kvtier_tier_moved_bytes_total{tier=\"nvme\",direction=\"out\"}", tally.bytes[N][H] },
        { "kvtier_stashed_blocks_total{", tally.moves[D][H] },
        { "kvtier_transfer_seconds_count{leg=\"device_to_host\"}", tally.moves[D][H] },
        { "kvtier_transfer_seconds_count{leg=\"nvme_to_host\"}", tally.moves[N][H] },
        { "kvtier_transfer_seconds_count{leg=\"device_to_device\"}", tally.moves[D][D] },
        { "kvtier_transfer_seconds_bucket{leg=\"device_to_host\",le=\"+Inf\"}", tally.moves[D][H] },
        { "kvtier_steps_total ", tally.steps },
        { "kvtier_sequences ", sequences },
        { "kvtier_lost_blocks_total ", counters.lost_blocks },
        { "kvtier_dropped_blocks_total ", counters.dropped_blocks },
        { "kvtier_given_up_blocks_total ", counters.given_up_blocks },
        { "kvtier_transfer_failures_total{", counters.failures + counters.abandoned },
    };
    /* Parts that fail are legs that fail, and one transfer. */
    const uint32_t count = (uint32_t)KVT_ARRAY_COUNT(rows) - (sim->plan.is_layered ? 1 : 0);
    for (uint32_t i = 0; i < count; i++) {
        const double said = sum_of(text, rows[i].begin);
        SIM_CHECK(sim, said == (double)rows[i].value, "%s: the text says %.0f, and it is %llu", rows[i].begin, said,
                  (unsigned long long)rows[i].value);
    }
    SIM_CHECK(sim, strcmp(text + length - strlen("# EOF\n"), "# EOF\n") == 0, "the text does not end");
}

void sim_check_counters(struct sim *sim, const struct kvt_stats *stats, const struct sim_tally *tally)
{
    compare_lookups(sim, stats);
    compare_moves(sim, stats, tally);
    compare_store(sim);
    compare_text(sim);
}
