/*
 * metrics_text: the runtime's numbers in the OpenMetrics text format, version 1.0.0
 * (https://github.com/prometheus/OpenMetrics, specification).
 *
 * A family's samples stand together behind its TYPE, UNIT and HELP lines; a counter's samples end in _total; a
 * histogram's buckets are cumulative. docs/operations.md says what each family means and what to do.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "kvtier/store.h"
#include "runtime/base/bytes.h"
#include "runtime/runtime.h"
#include "tiers/nvme_tier.h"

/* Counts on when the room is used up, so that the caller learns how much is needed. */
struct text {
    char *at;
    size_t room;
    size_t length;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...)
{
    const size_t left = text->length < text->room ? text->room - text->length : 0;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(left > 0 ? text->at + text->length : NULL, left, format, arguments);
    va_end(arguments);
    if (length > 0) text->length += (size_t)length;
}

enum type { GAUGE, COUNTER, HISTOGRAM };

/* unit: also the end of the name, as the format wants it; NULL: none. */
static void family(struct text *text, const char *name, enum type type, const char *unit, const char *help)
{
    static const char *const types[] = { [GAUGE] = "gauge", [COUNTER] = "counter", [HISTOGRAM] = "histogram" };
    add(text, "# TYPE kvtier_%s %s\n", name, types[type]);
    if (unit) add(text, "# UNIT kvtier_%s %s\n", name, unit);
    add(text, "# HELP kvtier_%s %s\n", name, help);
}

static void gauge(struct text *text, const char *name, const char *unit, const char *help, uint64_t value)
{
    family(text, name, GAUGE, unit, help);
    add(text, "kvtier_%s %" PRIu64 "\n", name, value);
}

static void counter(struct text *text, const char *name, const char *unit, const char *help, uint64_t value)
{
    family(text, name, COUNTER, unit, help);
    add(text, "kvtier_%s_total %" PRIu64 "\n", name, value);
}

/* ---- Tiers ------------------------------------------------------------------------------------------------------- */

static const char *const tier_names[KVT_TIERS] = { "device", "host", "nvme" };

/* What of a tier's stats a family shows. */
struct tier_family {
    const char *name;
    enum type type;
    const char *unit;
    const char *help;
    size_t offset;
};

#define TIER_FIELD(field) offsetof(struct kvt_tier_stats, field)

static const struct tier_family tier_families[] = {
    { "tier_capacity_bytes", GAUGE, "bytes", "What the tier may take.", TIER_FIELD(capacity_bytes) },
    { "tier_used_bytes", GAUGE, "bytes", "What it takes now.", TIER_FIELD(used_bytes) },
    { "tier_peak_bytes", GAUGE, "bytes", "The most it ever took; never above the capacity.", TIER_FIELD(peak_bytes) },
    { "tier_blocks", GAUGE, NULL, "Copies of blocks that it holds.", TIER_FIELD(blocks) },
    { "tier_evictions", COUNTER, NULL, "Copies that made room for others.", TIER_FIELD(evictions) },
};

static void tiers_text(struct text *text, const struct kvt_stats *stats)
{
    for (uint32_t f = 0; f < KVT_ARRAY_COUNT(tier_families); f++) {
        const struct tier_family *row = &tier_families[f];
        family(text, row->name, row->type, row->unit, row->help);
        for (uint32_t t = 0; t < KVT_TIERS; t++) {
            const uint64_t value = *(const uint64_t *)((const char *)&stats->tiers[t] + row->offset);
            add(text, "kvtier_%s%s{tier=\"%s\"} %" PRIu64 "\n", row->name, row->type == COUNTER ? "_total" : "",
                tier_names[t], value);
        }
    }
    family(text, "tier_moved_bytes", COUNTER, "bytes", "Bytes that crossed into and out of the tier, as they crossed.");
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        add(text, "kvtier_tier_moved_bytes_total{tier=\"%s\",direction=\"in\"} %" PRIu64 "\n", tier_names[t],
            stats->tiers[t].bytes_in);
        add(text, "kvtier_tier_moved_bytes_total{tier=\"%s\",direction=\"out\"} %" PRIu64 "\n", tier_names[t],
            stats->tiers[t].bytes_out);
    }
}

/* Each block that a new sequence looked for was found in one tier or in none: the four add up to all. */
static void lookups_text(struct text *text, const struct kvt_stats *stats)
{
    family(text, "lookup_blocks", COUNTER, NULL, "Blocks that new sequences looked for, by where they were found.");
    for (uint32_t t = 0; t < KVT_TIERS; t++)
        add(text, "kvtier_lookup_blocks_total{found=\"%s\"} %" PRIu64 "\n", tier_names[t], stats->tiers[t].hits);
    add(text, "kvtier_lookup_blocks_total{found=\"nowhere\"} %" PRIu64 "\n", stats->tiers[KVT_TIER_NVME].misses);
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

static void histograms(struct text *text, const char *name, const char *help, const struct kvt_histogram *of_leg)
{
    family(text, name, HISTOGRAM, "seconds", help);
    for (uint32_t leg = 0; leg < KVT_LEGS; leg++) {
        const char *label = kvt_leg_name((enum kvt_leg)leg);
        uint64_t count = 0;
        for (uint32_t i = 0; i < KVT_HISTOGRAM_BOUNDS; i++) {
            count += of_leg[leg].counts[i];
            add(text, "kvtier_%s_bucket{leg=\"%s\",le=\"%.9g\"} %" PRIu64 "\n", name, label,
                (double)kvt_histogram_bound_ns(i) / 1e9, count);
        }
        count += of_leg[leg].counts[KVT_HISTOGRAM_BOUNDS];
        add(text, "kvtier_%s_bucket{leg=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", name, label, count);
        add(text, "kvtier_%s_count{leg=\"%s\"} %" PRIu64 "\n", name, label, count);
        add(text, "kvtier_%s_sum{leg=\"%s\"} %.9f\n", name, label, (double)of_leg[leg].sum_ns / 1e9);
    }
}

static void transfers_text(struct text *text, const struct kvt_core *core)
{
    const struct kvt_metrics *metrics = &core->metrics;
    histograms(text, "transfer_seconds", "One leg of a transfer from its beginning to its end, queues included.",
               metrics->whole);
    histograms(text, "link_seconds", "Of that, on the link or the disk.", metrics->link);
    histograms(text, "codec_seconds", "Of that, packing or unpacking.", metrics->codec);
    family(text, "transfer_failures", COUNTER, NULL, "Legs that failed and were absorbed, by reason.");
    for (uint32_t leg = 0; leg < KVT_LEGS; leg++) {
        for (uint32_t f = 0; f < KVT_FAILURE_COUNT; f++)
            add(text, "kvtier_transfer_failures_total{leg=\"%s\",reason=\"%s\"} %" PRIu64 "\n",
                kvt_leg_name((enum kvt_leg)leg), kvt_failure_name((enum kvt_failure)f), metrics->failures[leg][f]);
    }
    gauge(text, "transfers_in_flight", NULL, "Transfers that have begun and not ended.", core->transfers.in_flight);
    gauge(text, "quarantined_transfers", NULL,
          "Abandoned transfers whose memory waits until a device or a kernel is done with it.",
          core->transfers.abandoned);
}

static void blocks_text(struct text *text, const struct kvt_stats *stats, const struct kvt_core *core)
{
    gauge(text, "sequences", NULL, "Live sequences.", stats->sequences);
    gauge(text, "blocks", NULL, "Blocks known to the core.", stats->blocks);
    counter(text, "steps", NULL, "Steps that began with at least one ready sequence.", core->metrics.steps);
    family(text, "stalls", COUNTER, NULL, "Times that a step wanted a sequence that was not ready, by first cause.");
    for (uint32_t c = 0; c < KVT_STALL_COUNT; c++)
        add(text, "kvtier_stalls_total{cause=\"%s\"} %" PRIu64 "\n", kvt_stall_name((enum kvt_stall_cause)c),
            core->metrics.stalls[c]);
    family(text, "stall_seconds", COUNTER, "seconds", "How long they took until ready, summed over sequences.");
    for (uint32_t c = 0; c < KVT_STALL_COUNT; c++)
        add(text, "kvtier_stall_seconds_total{cause=\"%s\"} %.9f\n", kvt_stall_name((enum kvt_stall_cause)c),
            (double)core->metrics.stall_ns[c] / 1e9);
    family(text, "fetched_blocks", COUNTER, NULL, "Blocks brought to the device, by why.");
    add(text, "kvtier_fetched_blocks_total{why=\"prefetch\"} %" PRIu64 "\n", stats->prefetched_blocks);
    add(text, "kvtier_fetched_blocks_total{why=\"demand\"} %" PRIu64 "\n", stats->demand_blocks);
    family(text, "stashed_blocks", COUNTER, NULL, "Blocks stashed from the device, by form.");
    add(text, "kvtier_stashed_blocks_total{form=\"packed\"} %" PRIu64 "\n", stats->packed_blocks);
    add(text, "kvtier_stashed_blocks_total{form=\"raw\"} %" PRIu64 "\n", stats->raw_blocks);
    counter(text, "packed_bytes", "bytes", "What packed blocks take.", stats->packed_bytes);
    counter(text, "packed_raw_bytes", "bytes", "What they would take raw.", stats->packed_raw_bytes);
    counter(text, "lost_blocks", NULL, "Blocks of live sequences that had to be computed again.", stats->lost_blocks);
    counter(text, "dropped_blocks", NULL, "Cached blocks that found no room below and were forgotten.",
            stats->dropped_blocks);
    counter(text, "given_up_blocks", NULL, "Blocks of idle sequences dropped because an active one needed the room.",
            core->counters.given_up_blocks);
}

/* ---- The store --------------------------------------------------------------------------------------------------- */

static void store_refusals_text(struct text *text, const struct kvt_store_stats *store)
{
    family(text, "store_refused_puts", COUNTER, NULL, "Records that the store did not take, by reason.");
    add(text, "kvtier_store_refused_puts_total{reason=\"endurance\"} %" PRIu64 "\n", store->refused_wear);
    add(text, "kvtier_store_refused_puts_total{reason=\"slow_disk\"} %" PRIu64 "\n", store->refused_slow);
    add(text, "kvtier_store_refused_puts_total{reason=\"no_room\"} %" PRIu64 "\n",
        store->refused - store->refused_wear - store->refused_slow);
    family(text, "store_errors", COUNTER, NULL, "What the disk did wrong and the store absorbed, by kind.");
    add(text, "kvtier_store_errors_total{kind=\"read\"} %" PRIu64 "\n", store->read_errors);
    add(text, "kvtier_store_errors_total{kind=\"write\"} %" PRIu64 "\n", store->write_errors);
    add(text, "kvtier_store_errors_total{kind=\"short\"} %" PRIu64 "\n", store->short_transfers);
    add(text, "kvtier_store_errors_total{kind=\"corrupt\"} %" PRIu64 "\n", store->corrupt);
}

static void store_text(struct text *text, const struct kvt_store_stats *store)
{
    gauge(text, "store_records", NULL, "Records that can be found.", store->records);
    gauge(text, "store_live_bytes", "bytes", "Their bytes, with header and padding.", store->live_bytes);
    gauge(text, "store_allocated_bytes", "bytes", "Disk space taken, as du sees it.", store->allocated_bytes);
    gauge(text, "store_held_bytes", "bytes", "Record bytes that live sequences hold.", store->held_bytes);
    counter(text, "store_put_bytes", "bytes", "Payload stored.", store->put_bytes);
    counter(text, "store_got_bytes", "bytes", "Payload read back.", store->get_bytes);
    counter(text, "store_written_bytes", "bytes", "Written to the disk, all in all.", store->written_bytes);
    counter(text, "store_moved_bytes", "bytes", "Of that, records copied forward.", store->moved_bytes);
    counter(text, "store_reclaims", NULL, "Segments recycled.", store->reclaims);
    counter(text, "store_evicted_records", NULL, "Records that left with their segment.", store->evicted_records);
    counter(text, "store_lost_records", NULL, "Held records that had to be dropped.", store->lost_records);
    counter(text, "store_pauses", NULL, "Times that puts paused because the disk was full.", store->pauses);
    store_refusals_text(text, store);
    gauge(text, "store_day_bytes", "bytes", "Written in the last 24 hours, restarts included.", store->day_bytes);
    if (store->day_bytes_max != 0)
        gauge(text, "store_day_left_bytes", "bytes", "What is left of the day's endurance budget.",
              store->day_bytes_max > store->day_bytes ? store->day_bytes_max - store->day_bytes : 0);
}

size_t kvt_metrics_text(struct kvt_runtime *runtime, char *ret_text, size_t bytes)
{
    if (kvt_runtime_is_child(runtime)) return 0;
    struct kvt_stats stats;
    struct kvt_store_stats store;
    const bool has_store = runtime->nvme && !runtime->is_modelled;

    struct text text = { ret_text, bytes, 0 };
    /* All numbers are of one moment, so that they add up. */
    kvt_runtime_lock(runtime);
    kvt_runtime_stats(runtime, &stats);
    if (has_store) kvt_store_stats(kvt_nvme_tier_store(runtime->nvme), &store);
    family(&text, "device", GAUGE, NULL, "Which device it is.");
    add(&text, "kvtier_device{kind=\"%s\"} 1\n", runtime->core.gpu->ops->name);
    tiers_text(&text, &stats);
    lookups_text(&text, &stats);
    blocks_text(&text, &stats, &runtime->core);
    transfers_text(&text, &runtime->core);
    kvt_runtime_unlock(runtime);
    if (has_store) store_text(&text, &store);
    add(&text, "# EOF\n");
    return text.length;
}
