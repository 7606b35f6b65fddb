#include "tools/run/report.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/text.h"

static const char *const tier_names[KVT_TIERS] = { "device", "host", "nvme" };

double kvt_report_ratio(uint64_t raw_bytes, uint64_t taken_bytes)
{
    return taken_bytes > 0 ? (double)raw_bytes / (double)taken_bytes : 0;
}

static bool has_tier(const struct kvt_report *report, uint32_t tier)
{
    if (tier == KVT_TIER_HOST) return report->has_host;
    return tier == KVT_TIER_NVME ? report->has_store : true;
}

static uint64_t stall_ns(const struct kvt_report *report)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) sum += report->run->stall_ns[i];
    return sum;
}

/* What one sequence of so many tokens reserves when nothing is paged and windows are ignored. */
static uint64_t contiguous_bytes(const struct kvt_model_shape *shape, uint64_t tokens)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < shape->group_count; g++) {
        const struct kvt_group_shape *group = &shape->groups[g];
        bytes += group->kind == KVT_GROUP_STATE ? kvt_group_block_bytes(group, 0)
                                                : kvt_group_bytes_per_token(group) * tokens;
    }
    return bytes;
}

struct kvt_report_memory kvt_report_memory(const struct kvt_report *report)
{
    const struct kvt_schedule_result *run = report->run;
    const uint64_t hbm_bytes = report->stats.tiers[KVT_TIER_DEVICE].capacity_bytes;
    struct kvt_report_memory memory = { 0 };
    for (uint32_t i = 0; i < report->workload->request_count; i++) {
        const struct kvt_request *request = &report->workload->requests[i];
        memory.max_length_tokens = kvt_max_u64(memory.max_length_tokens,
                                               request->prompt_tokens + request->output_tokens);
    }
    const uint64_t longest_bytes = contiguous_bytes(report->shape, memory.max_length_tokens);
    if (longest_bytes > 0) memory.sequences_contiguous = hbm_bytes / longest_bytes;
    if (run->paged_count > 0) {
        memory.sequences_paged = (uint64_t)((double)hbm_bytes / (run->paged_bytes_sum / (double)run->paged_count));
    }
    for (uint32_t g = 0; g < report->shape->group_count; g++)
        memory.working_set_bytes += kvt_group_bytes_per_token(&report->shape->groups[g])
            * (run->tokens_computed - run->tokens_recomputed);
    memory.fast_bytes = hbm_bytes + report->stats.tiers[KVT_TIER_HOST].capacity_bytes;
    if (run->used_ratio_count > 0) memory.used_over_allocated = run->used_ratio_sum / (double)run->used_ratio_count;
    return memory;
}

/* Raw bytes of the records that the store holds at the end, by their mean: du stands beside it. */
static uint64_t store_raw_held(const struct kvt_report *report)
{
    const struct kvt_model_shape *shape = report->shape;
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < shape->group_count; g++)
        bytes += kvt_group_block_bytes(&shape->groups[g], shape->block_tokens);
    return report->stats.store_records * bytes / shape->group_count;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void put(struct json_object *object, const char *name, uint64_t value)
{
    (void)json_object_object_add(object, name, json_object_new_uint64(value));
}

/* Six significant decimals, so that reports can be compared by eye. */
static void put_double(struct json_object *object, const char *name, double value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%.6f", value);
    (void)json_object_object_add(object, name, json_object_new_double_s(value, text));
}

static void put_text(struct json_object *object, const char *name, const char *text)
{
    (void)json_object_object_add(object, name, json_object_new_string(text));
}

static struct json_object *put_object(struct json_object *object, const char *name)
{
    struct json_object *child = json_object_new_object();
    (void)json_object_object_add(object, name, child);
    return child;
}

static void put_work(struct json_object *root, const struct kvt_report *report)
{
    const struct kvt_schedule_result *run = report->run;
    struct json_object *requests = put_object(root, "requests");
    put(requests, "total", run->requests);
    put(requests, "completed", run->requests_completed);
    put(requests, "failed", run->requests_failed);
    put(requests, "failed_after_earlier_turn", run->requests_failed_after);

    struct json_object *tokens = put_object(root, "tokens");
    put(tokens, "prompt", run->tokens_prompt);
    put(tokens, "reused", run->tokens_reused);
    put(tokens, "recomputed", run->tokens_recomputed);
    put(tokens, "generated", run->tokens_generated);
    put(tokens, "computed", run->tokens_computed);

    struct json_object *verify = put_object(root, "verify");
    put(verify, "blocks_checked", report->checks->blocks_checked);
    put(verify, "lines_checked", report->checks->lines_checked);
    put(verify, "mismatches", report->checks->mismatches);
}

static void put_stream(struct json_object *root, const struct kvt_stream_counts *stream)
{
    struct json_object *object = put_object(root, "stream");
    put(object, "requests", stream->requests);
    put(object, "tokens_max", stream->tokens_max);
    put(object, "bytes_max", stream->bytes_max);
    put(object, "window_slots", stream->slots_max);
    put(object, "passes", stream->passes);
    put(object, "pieces", stream->pieces);
    put(object, "chunks", stream->chunks);
    put(object, "chunks_verified", stream->chunks_verified);
    put(object, "results_compared", stream->results);
    char text[32];
    (void)snprintf(text, sizeof text, "%.3e", stream->error_max);
    (void)json_object_object_add(object, "error_max", json_object_new_double_s(stream->error_max, text));
}

static void put_tiers(struct json_object *root, const struct kvt_report *report)
{
    struct json_object *tiers = json_object_new_array();
    (void)json_object_object_add(root, "tiers", tiers);
    for (uint32_t i = 0; i < KVT_TIERS; i++) {
        if (!has_tier(report, i)) continue;
        const struct kvt_tier_stats *stats = &report->stats.tiers[i];
        struct json_object *tier = json_object_new_object();
        put_text(tier, "name", tier_names[i]);
        put(tier, "capacity_bytes", stats->capacity_bytes);
        put(tier, "used_bytes", stats->used_bytes);
        put(tier, "peak_bytes", stats->peak_bytes);
        put(tier, "blocks", stats->blocks);
        put(tier, "blocks_max", stats->blocks_max);
        put(tier, "hits", stats->hits);
        put(tier, "misses", stats->misses);
        put(tier, "evictions", stats->evictions);
        put(tier, "bytes_in", stats->bytes_in);
        put(tier, "bytes_out", stats->bytes_out);
        (void)json_object_array_add(tiers, tier);
    }
}

static void put_steps(struct json_object *root, const struct kvt_report *report)
{
    const struct kvt_schedule_result *run = report->run;
    struct json_object *steps = put_object(root, "steps");
    put(steps, "count", run->steps);
    put(steps, "stalled", run->steps_stalled);
    put_double(steps, "stall_seconds", (double)stall_ns(report) * 1e-9);
    struct json_object *causes = put_object(steps, "stall_causes");
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) {
        put_double(causes, kvt_stall_name((enum kvt_stall_cause)i), (double)run->stall_ns[i] * 1e-9);
    }
    put_double(steps, "step_seconds", (double)run->step_ns_sum * 1e-9);
    put(steps, "sequences_max", run->running_max);
    put(steps, "parked", run->parked);
    put(steps, "given_up", run->given_up);
    kvt_latencies_put(report->latencies, root);
}

static void put_stores(struct json_object *root, const struct kvt_report *report)
{
    const struct kvt_stats *stats = &report->stats;
    if (report->has_host) {
        struct json_object *object = put_object(root, "host");
        put(object, "raw_equivalent_bytes", stats->host_raw_equivalent_bytes);
        put(object, "slot_bytes", stats->host_slot_bytes);
        put_double(object, "ratio", kvt_report_ratio(stats->host_raw_equivalent_bytes, stats->host_slot_bytes));
        put(object, "packed_blocks", stats->packed_blocks);
        put(object, "raw_blocks", stats->raw_blocks);
        put_double(object, "packed_ratio", kvt_report_ratio(stats->packed_raw_bytes, stats->packed_bytes));
    }
    struct json_object *store = put_object(root, "store");
    put(store, "raw_bytes", stats->store_raw_bytes);
    put(store, "stored_bytes", stats->store_stored_bytes);
    put_double(store, "ratio", kvt_report_ratio(stats->store_raw_bytes, stats->store_stored_bytes));
    put(store, "records", stats->store_records);
    put(store, "written_bytes", stats->store_written_bytes);
    put_double(store, "write_amplification", stats->store_write_amplification);
    put(store, "day_bytes", stats->store_day_bytes);
    put(store, "allocated_bytes", stats->store_allocated_bytes);
    put(store, "allocated_bytes_peak", stats->store_allocated_peak);
    put(store, "du_bytes", report->du_bytes);
    put_double(store, "du_ratio", kvt_report_ratio(store_raw_held(report), report->du_bytes));
}

static void put_memory(struct json_object *root, const struct kvt_report *report)
{
    const struct kvt_report_memory memory = kvt_report_memory(report);
    struct json_object *object = put_object(root, "memory");
    if (report->run->used_ratio_count > 0) put_double(object, "used_over_allocated", memory.used_over_allocated);
    put(object, "working_set_bytes", memory.working_set_bytes);
    put_double(object, "working_set_over_hbm_and_host", kvt_report_ratio(memory.working_set_bytes, memory.fast_bytes));
    struct json_object *baseline = put_object(object, "contiguous_baseline");
    if (report->run->paged_count > 0) put(baseline, "sequences_paged", memory.sequences_paged);
    put(baseline, "sequences_contiguous", memory.sequences_contiguous);
    put(baseline, "max_length_tokens", memory.max_length_tokens);
    put(object, "bookkeeping_bytes", report->stats.bookkeeping_bytes);
}

static void put_transfers(struct json_object *root, const struct kvt_report *report)
{
    const struct kvt_stats *stats = &report->stats;
    struct json_object *object = put_object(root, "transfers");
    put(object, "stashes", stats->stashes);
    put(object, "fetches", stats->fetches);
    put(object, "copies", stats->copies);
    put(object, "prefetched_blocks", stats->prefetched_blocks);
    put(object, "demand_blocks", stats->demand_blocks);
    put(object, "foreseen_blocks", stats->foreseen_blocks);
    put(object, "foreseen_used_blocks", stats->foreseen_used_blocks);
    put(object, "foreseen_wasted_blocks", stats->foreseen_wasted_blocks);
    put(object, "failures", stats->failures);
    put(object, "abandoned", stats->abandoned);
    put(object, "quarantined", stats->quarantined);
    put(object, "lost_blocks", stats->lost_blocks);
    put(object, "dropped_blocks", stats->dropped_blocks);
}

enum kvt_status kvt_report_print_json(const struct kvt_report *report, FILE *stream)
{
    struct json_object *root = json_object_new_object();
    if (!root) return KVT_NOMEM;
    put_text(root, "workload", report->workload->name);
    put_text(root, "model", report->model);
    put_text(root, "device", report->device);
    put(root, "block_tokens", report->shape->block_tokens);
    put(root, "seed", report->workload->seed);
    put_double(root, "seconds", report->seconds);
    (void)json_object_object_add(root, "interrupted",
                                 json_object_new_boolean(report->run->outcome == KVT_OUTCOME_INTERRUPTED));
    put_work(root, report);
    if (report->stream) put_stream(root, report->stream);
    put_tiers(root, report);
    put_steps(root, report);
    put_stores(root, report);
    put_memory(root, report);
    put_transfers(root, report);
    const char *text = json_object_to_json_string_ext(
        root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text) (void)fprintf(stream, "%s\n", text);
    (void)json_object_put(root);
    return text ? KVT_OK : KVT_NOMEM;
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

static void print_tiers(const struct kvt_report *report, FILE *stream)
{
    struct kvt_listing listing;
    kvt_listing_init(&listing, "lrrrrrrrr");
    static const char *const heads[] = { "tier",      "capacity", "peak", "blocks at once", "hits", "misses",
                                         "evictions", "in",       "out" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(heads); i++) kvt_listing_add(&listing, "%s", heads[i]);
    for (uint32_t i = 0; i < KVT_TIERS; i++) {
        if (!has_tier(report, i)) continue;
        const struct kvt_tier_stats *stats = &report->stats.tiers[i];
        kvt_listing_add(&listing, "%s", tier_names[i]);
        kvt_listing_add(&listing, "%s", kvt_format_bytes(stats->capacity_bytes).text);
        kvt_listing_add(&listing, "%s", kvt_format_bytes(stats->peak_bytes).text);
        kvt_listing_add(&listing, "%s", kvt_format_count(stats->blocks_max).text);
        kvt_listing_add(&listing, "%s", kvt_format_count(stats->hits).text);
        kvt_listing_add(&listing, "%s", kvt_format_count(stats->misses).text);
        kvt_listing_add(&listing, "%s", kvt_format_count(stats->evictions).text);
        kvt_listing_add(&listing, "%s", kvt_format_bytes(stats->bytes_in).text);
        kvt_listing_add(&listing, "%s", kvt_format_bytes(stats->bytes_out).text);
    }
    kvt_listing_print(&listing, stream, "  ");
}

static void print_steps(const struct kvt_report *report, FILE *stream)
{
    const struct kvt_schedule_result *run = report->run;
    const uint64_t stalled = stall_ns(report);
    (void)fprintf(stream, "  steps       %s, of them %s stalled; %s of stalls", kvt_format_count(run->steps).text,
                  kvt_format_count(run->steps_stalled).text, kvt_format_duration(stalled).text);
    const char *before = " (";
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) {
        if (run->stall_ns[i] == 0) continue;
        (void)fprintf(stream, "%s%s %s", before, kvt_stall_name((enum kvt_stall_cause)i),
                      kvt_format_duration(run->stall_ns[i]).text);
        before = ", ";
    }
    (void)fprintf(stream, "%s\n", stalled > 0 ? ")" : "");
}

static void print_latencies(const struct kvt_report *report, FILE *stream)
{
    const struct kvt_latencies *latencies = report->latencies;
    if (latencies->turn_count == 0) return;
    (void)fprintf(stream, "  latency     first token after %.1f ms (p99 %.1f), later ones %.2f ms apart (p99 %.2f)\n",
                  kvt_latencies_first_ms(latencies, 0.5), kvt_latencies_first_ms(latencies, 0.99),
                  kvt_latencies_token_ms(latencies, 0.5), kvt_latencies_token_ms(latencies, 0.99));
}

static void print_sizes(const struct kvt_report *report, FILE *stream)
{
    const struct kvt_stats *stats = &report->stats;
    if (report->has_host) {
        (void)fprintf(stream, "  host        holds %.2f times what raw slots would\n",
                      kvt_report_ratio(stats->host_raw_equivalent_bytes, stats->host_slot_bytes));
    }
    if (report->has_store) {
        (void)fprintf(
            stream, "  store       %s of blocks in %s of records, %.2f times less; %s by du, %.2f times less\n",
            kvt_format_bytes(stats->store_raw_bytes).text, kvt_format_bytes(stats->store_stored_bytes).text,
            kvt_report_ratio(stats->store_raw_bytes, stats->store_stored_bytes),
            kvt_format_bytes(report->du_bytes).text, kvt_report_ratio(store_raw_held(report), report->du_bytes));
    }
    const struct kvt_report_memory memory = kvt_report_memory(report);
    (void)fprintf(stream, "  working set %s of KV, %.1f times HBM and host together\n",
                  kvt_format_bytes(memory.working_set_bytes).text,
                  kvt_report_ratio(memory.working_set_bytes, memory.fast_bytes));
    if (report->run->used_ratio_count > 0) {
        (void)fprintf(stream, "  memory      %.1f %% of the allocated device KV is in use\n",
                      100 * memory.used_over_allocated);
    }
    if (report->run->paged_count == 0) return;
    (void)fprintf(stream,
                  "  at once     %s sequences fit in this HBM paged; %s would with %s tokens preallocated for each\n",
                  kvt_format_count(memory.sequences_paged).text, kvt_format_count(memory.sequences_contiguous).text,
                  kvt_format_count(memory.max_length_tokens).text);
}

static void print_stream(const struct kvt_stream_counts *stream, FILE *file)
{
    if (stream->requests == 0) {
        (void)fprintf(file, "  streamed    no request: all fit the device\n");
        return;
    }
    (void)fprintf(file, "  streamed    %s requests, the longest of %s tokens and %s, through %s device slots\n",
                  kvt_format_count(stream->requests).text, kvt_format_count(stream->tokens_max).text,
                  kvt_format_bytes(stream->bytes_max).text, kvt_format_count(stream->slots_max).text);
    (void)fprintf(file, "              %s layers of blocks read in %s pieces, %s of them verified wholly\n",
                  kvt_format_count(stream->chunks).text, kvt_format_count(stream->pieces).text,
                  kvt_format_count(stream->chunks_verified).text);
    if (stream->results == 0) return;
    (void)fprintf(file,
                  "  attention   %s results in pieces compared with all at once, largest error %.1e (at most %.0e)\n",
                  kvt_format_count(stream->results).text, stream->error_max, KVT_STREAM_ERROR_MAX);
}

void kvt_report_print_table(const struct kvt_report *report, FILE *stream)
{
    const struct kvt_schedule_result *run = report->run;
    (void)fprintf(stream, "%s of %s on the %s device%s: %.1f s\n", report->workload->name, report->model,
                  report->device, run->outcome == KVT_OUTCOME_INTERRUPTED ? ", interrupted" : "", report->seconds);
    (void)fprintf(stream, "  requests    %s of %s completed, %s failed\n",
                  kvt_format_count(run->requests_completed).text, kvt_format_count(run->requests).text,
                  kvt_format_count(run->requests_failed).text);
    if (run->requests_failed_after > 0) {
        (void)fprintf(stream, "              %s of them failed because an earlier turn of their session had failed\n",
                      kvt_format_count(run->requests_failed_after).text);
    }
    (void)fprintf(stream, "  tokens      %s prompt, of them %s reused; %s recomputed, %s generated\n",
                  kvt_format_count(run->tokens_prompt).text, kvt_format_count(run->tokens_reused).text,
                  kvt_format_count(run->tokens_recomputed).text, kvt_format_count(run->tokens_generated).text);
    (void)fprintf(stream, "  verified    %s whole blocks and %s lines, %s mismatches\n",
                  kvt_format_count(report->checks->blocks_checked).text,
                  kvt_format_count(report->checks->lines_checked).text,
                  kvt_format_count(report->checks->mismatches).text);
    if (report->stream) print_stream(report->stream, stream);
    print_tiers(report, stream);
    print_steps(report, stream);
    print_latencies(report, stream);
    print_sizes(report, stream);
}

void kvt_report_print_mismatches(const struct kvt_engine_counts *checks, FILE *stream)
{
    const uint64_t kept = kvt_min_u64(checks->mismatches, KVT_MISMATCHES_KEPT);
    for (uint64_t i = 0; i < kept; i++) {
        const struct kvt_mismatch *m = &checks->kept[i];
        (void)fprintf(stream, "kvtier run: mismatch: request %" PRIu32 ", group %" PRIu32 ", block %" PRIu64,
                      m->request, m->group, m->block);
        if (m->offset == KVT_CONTENT_SAME) (void)fprintf(stream, ": no slot holds it\n");
        else (void)fprintf(stream, ": first differing byte %" PRIu64 "\n", m->offset);
    }
    if (checks->mismatches > kept) {
        (void)fprintf(stream, "kvtier run: mismatch: %" PRIu64 " more\n", checks->mismatches - kept);
    }
}
