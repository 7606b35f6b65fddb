#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <json-c/json.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/sim/timed_build.h"
#include "tools/text.h"

static const char *const tier_names[KVT_TIERS] = { "device", "host", "nvme" };
static const char *const prefetch_names[] = { "lookahead", "demand", "off", "session" };

static const char *policy_of(const struct kvt_timed_job *job)
{
    return job->options.policy ? job->options.policy : kvt_policy_at(0)->name;
}

static const char *host_policy_of(const struct kvt_timed_job *job)
{
    return job->options.host_policy ? job->options.host_policy : policy_of(job);
}

/* What the runtime takes when nothing is asked for. */
static const char *admission_of(const struct kvt_timed_job *job)
{
    if (job->options.admission) return job->options.admission;
    return job->options.nvme_bytes_per_day > 0 ? "budget" : "all";
}

static double seconds_of(uint64_t ns) { return (double)ns * 1e-9; }

static double percent(uint64_t part, uint64_t whole) { return whole > 0 ? 100 * (double)part / (double)whole : 0; }

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void put(struct json_object *object, const char *name, uint64_t value)
{
    (void)json_object_object_add(object, name, json_object_new_uint64(value));
}

static void put_text(struct json_object *object, const char *name, const char *text)
{
    (void)json_object_object_add(object, name, json_object_new_string(text));
}

static void put_double(struct json_object *object, const char *name, double value)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.6f", value);
    (void)json_object_object_add(object, name, json_object_new_double_s(value, text));
}

static struct json_object *tiers_of(const struct kvt_timed_outcome *outcome)
{
    struct json_object *tiers = json_object_new_array();
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        const struct kvt_tier_stats *stats = &outcome->stats.tiers[t];
        if (stats->capacity_bytes == 0) continue;
        struct json_object *tier = json_object_new_object();
        put_text(tier, "name", tier_names[t]);
        put(tier, "capacity_bytes", stats->capacity_bytes);
        put(tier, "peak_bytes", stats->peak_bytes);
        put(tier, "hits", stats->hits);
        put(tier, "misses", stats->misses);
        put(tier, "evictions", stats->evictions);
        put(tier, "bytes_in", stats->bytes_in);
        put(tier, "bytes_out", stats->bytes_out);
        (void)json_object_array_add(tiers, tier);
    }
    return tiers;
}

static struct json_object *steps_of(const struct kvt_timed_outcome *outcome)
{
    struct json_object *steps = json_object_new_object(), *causes = json_object_new_object();
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++)
        put_double(causes, kvt_stall_name((enum kvt_stall_cause)i), seconds_of(outcome->run.stall_ns[i]));
    put(steps, "count", outcome->run.steps);
    put(steps, "stalled", outcome->run.steps_stalled);
    put_double(steps, "busy_seconds", seconds_of(outcome->busy_ns));
    put_double(steps, "stall_seconds", seconds_of(kvt_timed_stalled_ns(outcome)));
    put_double(steps, "stall_seconds_at_least", seconds_of(outcome->stall_least_ns));
    (void)json_object_object_add(steps, "stall_causes", causes);
    put(steps, "sequences_max", outcome->run.running_max);
    put(steps, "parked", outcome->run.parked);
    put(steps, "given_up", outcome->run.given_up);
    return steps;
}

static void put_grid(struct json_object *object, const struct kvt_timed_job *job)
{
    put_text(object, "trace", job->workload->name);
    put_text(object, "policy", policy_of(job));
    put_text(object, "host_policy", host_policy_of(job));
    put_text(object, "admission", admission_of(job));
    put_text(object, "prefetch", prefetch_names[job->options.prefetch]);
    put(object, "seed", job->options.workload.seed);
    put(object, "hbm_bytes", job->options.hbm_bytes);
    put(object, "host_bytes", job->options.host_bytes);
    put(object, "nvme_bytes", job->options.nvme_bytes);
    put(object, "link_hbm_bytes_per_second", job->options.link_hbm_bytes_per_s);
    put(object, "link_nvme_bytes_per_second", job->options.link_nvme_bytes_per_s);
}

static struct json_object *result_of(const struct kvt_timed_job *job)
{
    const struct kvt_timed_outcome *outcome = &job->outcome;
    struct json_object *object = json_object_new_object(), *requests = json_object_new_object(),
                       *tokens = json_object_new_object(), *transfers = json_object_new_object();
    put_grid(object, job);
    put(requests, "total", outcome->run.requests);
    put(requests, "completed", outcome->run.requests_completed);
    put(requests, "failed", outcome->run.requests_failed);
    put(requests, "failed_after_earlier_turn", outcome->run.requests_failed_after);
    (void)json_object_object_add(object, "requests", requests);
    put(tokens, "prompt", outcome->run.tokens_prompt);
    put(tokens, "reused", outcome->run.tokens_reused);
    if (outcome->has_reused_most) put(tokens, "reused_belady", outcome->reused_most);
    else (void)json_object_object_add(tokens, "reused_belady", NULL);
    put(tokens, "recomputed", outcome->run.tokens_recomputed);
    put(tokens, "generated", outcome->run.tokens_generated);
    (void)json_object_object_add(object, "tokens", tokens);
    (void)json_object_object_add(object, "tiers", tiers_of(outcome));
    (void)json_object_object_add(object, "steps", steps_of(outcome));
    kvt_latencies_put(&outcome->latencies, object);
    put(transfers, "stashes", outcome->stats.stashes);
    put(transfers, "fetches", outcome->stats.fetches);
    put(transfers, "copies", outcome->stats.copies);
    put(transfers, "prefetched_blocks", outcome->stats.prefetched_blocks);
    put(transfers, "demand_blocks", outcome->stats.demand_blocks);
    put(transfers, "foreseen_blocks", outcome->stats.foreseen_blocks);
    put(transfers, "foreseen_used_blocks", outcome->stats.foreseen_used_blocks);
    put(transfers, "foreseen_wasted_blocks", outcome->stats.foreseen_wasted_blocks);
    (void)json_object_object_add(object, "transfers", transfers);
    put(object, "written_bytes", outcome->stats.store_written_bytes);
    put_double(object, "write_amplification", outcome->stats.store_write_amplification);
    put_double(object, "simulated_seconds", seconds_of(outcome->elapsed_ns));
    put_double(object, "seconds", outcome->seconds);
    return object;
}

/* What the times stand on. */
static void put_machine(struct json_object *root, const struct kvt_timed *timed)
{
    const struct kvt_model_roofline *roofline = &timed->roofline;
    const struct kvt_model_links *links = &timed->links;
    struct json_object *steps = json_object_new_object(), *moves = json_object_new_object();
    put_double(steps, "flops_per_second", roofline->flops_per_s);
    put_double(steps, "bytes_per_second", roofline->bytes_per_s);
    put_double(steps, "parameters", roofline->parameters);
    put(steps, "step_ns", timed->jobs[0].options.step_ns);
    (void)json_object_object_add(root, "roofline", steps);
    put(moves, "to_host_bytes_per_second", links->to_host_bytes_per_s);
    put(moves, "to_device_bytes_per_second", links->to_device_bytes_per_s);
    put(moves, "to_host_op_ns", links->to_host_latency_ns);
    put(moves, "to_device_op_ns", links->to_device_latency_ns);
    put(moves, "nvme_read_bytes_per_second", links->nvme_read_bytes_per_s);
    put(moves, "nvme_write_bytes_per_second", links->nvme_write_bytes_per_s);
    put(moves, "nvme_read_op_ns", links->nvme_read_latency_ns);
    put(moves, "nvme_write_op_ns", links->nvme_write_latency_ns);
    put_double(moves, "pack_ratio", links->pack_ratio);
    (void)json_object_object_add(root, "links", moves);
}

static int print_json(const struct kvt_timed *timed)
{
    struct json_object *root = json_object_new_object(), *results = json_object_new_array();
    for (uint32_t j = 0; j < timed->job_count; j++) (void)json_object_array_add(results, result_of(&timed->jobs[j]));
    put_machine(root, timed);
    (void)json_object_object_add(root, "results", results);
    const char *text = json_object_to_json_string_ext(
        root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text) (void)printf("%s\n", text);
    (void)json_object_put(root);
    return text ? KVT_EXIT_OK : kvt_failure("kvtier sim", "the report: out of memory");
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

/* A trace's name is the one field that may hold anything. */
static void print_field(const char *text)
{
    (void)putchar('"');
    for (; *text; text++) {
        if (*text == '"') (void)putchar('"');
        (void)putchar(*text);
    }
    (void)putchar('"');
}

static void print_csv(const struct kvt_timed *timed)
{
    (void)printf(
        "trace,policy,host_policy,admission,prefetch,seed,hbm_bytes,host_bytes,nvme_bytes,link_hbm,link_nvme,prompt,reused,"
        "reused_belady,recomputed,device_hits,host_hits,nvme_hits,fetched_bytes,stashed_bytes,nvme_read_bytes,"
        "written_bytes,write_amplification,steps,stalled_steps,stall_seconds,stall_seconds_at_least,"
        "first_token_ms_p50,first_token_ms_p99,token_ms_p50,token_ms_p99,simulated_seconds\n");
    for (uint32_t j = 0; j < timed->job_count; j++) {
        const struct kvt_timed_job *job = &timed->jobs[j];
        const struct kvt_timed_outcome *o = &job->outcome;
        const struct kvt_tier_stats *tiers = o->stats.tiers;
        print_field(job->workload->name);
        (void)printf(",%s,%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, policy_of(job),
                     host_policy_of(job), admission_of(job), prefetch_names[job->options.prefetch], job->options.workload.seed,
                     job->options.hbm_bytes, job->options.host_bytes, job->options.nvme_bytes,
                     job->options.link_hbm_bytes_per_s, job->options.link_nvme_bytes_per_s);
        (void)printf(",%" PRIu64 ",%" PRIu64 ",", o->run.tokens_prompt, o->run.tokens_reused);
        if (o->has_reused_most) (void)printf("%" PRIu64, o->reused_most);
        (void)printf(",%" PRIu64, o->run.tokens_recomputed);
        for (uint32_t t = 0; t < KVT_TIERS; t++) (void)printf(",%" PRIu64, tiers[t].hits);
        (void)printf(",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f", tiers[KVT_TIER_DEVICE].bytes_in,
                     tiers[KVT_TIER_DEVICE].bytes_out, tiers[KVT_TIER_NVME].bytes_out, o->stats.store_written_bytes,
                     o->stats.store_write_amplification);
        (void)printf(",%" PRIu64 ",%" PRIu64 ",%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f\n", o->run.steps,
                     o->run.steps_stalled, seconds_of(kvt_timed_stalled_ns(o)), seconds_of(o->stall_least_ns),
                     kvt_latencies_first_ms(&o->latencies, 0.5), kvt_latencies_first_ms(&o->latencies, 0.99),
                     kvt_latencies_token_ms(&o->latencies, 0.5), kvt_latencies_token_ms(&o->latencies, 0.99),
                     seconds_of(o->elapsed_ns));
    }
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

static void add_row(struct kvt_listing *listing, const struct kvt_timed_job *job)
{
    const struct kvt_timed_outcome *o = &job->outcome;
    kvt_listing_add(listing, "%s", job->label);
    kvt_listing_add(listing, "%.2f", percent(o->run.tokens_reused, o->run.tokens_prompt));
    if (o->has_reused_most) kvt_listing_add(listing, "%.2f", percent(o->reused_most, o->run.tokens_prompt));
    else kvt_listing_add(listing, "-");
    kvt_listing_add(listing, "%s", kvt_format_bytes(o->stats.tiers[KVT_TIER_DEVICE].bytes_in).text);
    kvt_listing_add(listing, "%s", kvt_format_bytes(o->stats.tiers[KVT_TIER_DEVICE].bytes_out).text);
    kvt_listing_add(listing, "%s", kvt_format_bytes(o->stats.store_written_bytes).text);
    kvt_listing_add(listing, "%.2f", o->stats.store_write_amplification);
    kvt_listing_add(listing, "%.3f", seconds_of(kvt_timed_stalled_ns(o)));
    kvt_listing_add(listing, "%.3f", seconds_of(o->stall_least_ns));
    kvt_listing_add(listing, "%.1f", kvt_latencies_first_ms(&o->latencies, 0.5));
    kvt_listing_add(listing, "%.1f", kvt_latencies_first_ms(&o->latencies, 0.99));
    kvt_listing_add(listing, "%.2f", kvt_latencies_token_ms(&o->latencies, 0.5));
    kvt_listing_add(listing, "%.2f", kvt_latencies_token_ms(&o->latencies, 0.99));
    kvt_listing_add(listing, "%.1f", seconds_of(o->elapsed_ns));
    kvt_listing_add(listing, "%.2f", o->seconds);
}

static void print_rate(const char *name, uint64_t bytes_per_s)
{
    if (bytes_per_s > 0) (void)printf(", %s %.1f GB/s", name, (double)bytes_per_s * 1e-9);
}

/* One line: what the times stand on. */
static void print_machine(const struct kvt_timed *timed)
{
    const struct kvt_model_roofline *roofline = &timed->roofline;
    const uint64_t step_ns = timed->jobs[0].options.step_ns;
    if (step_ns > 0) (void)printf("steps of %s", kvt_format_duration(step_ns).text);
    else if (roofline->flops_per_s > 0)
        (void)printf("steps by a roofline of %.0f TFLOP/s and %.0f GB/s, %.3g parameters",
                     roofline->flops_per_s * 1e-12, roofline->bytes_per_s * 1e-9, roofline->parameters);
    else (void)printf("steps that take %s", timed->has_links ? "what was measured" : "no time");
    print_rate("host link", timed->links.to_device_bytes_per_s);
    print_rate("disk reads", timed->links.nvme_read_bytes_per_s);
    (void)printf(", packed %.2f times\n", timed->links.pack_ratio);
}

/* How many requests did not run, and why: a line for all points that it is true of. */
static void print_failures(const struct kvt_timed *timed)
{
    const struct kvt_schedule_result *first = &timed->jobs[0].outcome.run;
    bool is_same = true;
    for (uint32_t j = 1; j < timed->job_count; j++) {
        const struct kvt_schedule_result *run = &timed->jobs[j].outcome.run;
        is_same = is_same && run->requests_failed == first->requests_failed
            && run->requests_failed_after == first->requests_failed_after;
    }
    for (uint32_t j = 0; j < (is_same ? 1 : timed->job_count); j++) {
        const struct kvt_schedule_result *run = &timed->jobs[j].outcome.run;
        if (run->requests_failed == 0) continue;
        (void)printf("%s%s%s of %s requests failed", is_same ? "" : timed->jobs[j].label, is_same ? "" : ": ",
                     kvt_format_count(run->requests_failed).text, kvt_format_count(run->requests).text);
        if (run->requests_failed_after > 0) {
            (void)printf(", %s of them because an earlier turn of their session had failed",
                         kvt_format_count(run->requests_failed_after).text);
        }
        (void)printf("\n");
    }
}

static void print_table(const struct kvt_timed *timed)
{
    static const char *const heads[] = { "policy",     "reused %",           "belady %",  "fetched",
                                         "stashed",    "nvme written",       "amplified", "stalls s",
                                         "at least s", "first token ms p50", "p99",       "token ms p50",
                                         "p99",        "simulated s",        "took s" };
    enum { ROWS = KVT_LISTING_CELLS_MAX / (int)KVT_ARRAY_COUNT(heads) - 1 };
    const struct kvt_timed_job *first = &timed->jobs[0];
    (void)printf("%s: %s of %s requests completed\n", first->workload->name,
                 kvt_format_count(first->outcome.run.requests_completed).text,
                 kvt_format_count(first->outcome.run.requests).text);
    print_failures(timed);
    print_machine(timed);
    for (uint32_t j = 0; j < timed->job_count;) {
        struct kvt_listing listing;
        kvt_listing_init(&listing, "lrrrrrrrrrrrrrr");
        for (size_t i = 0; i < KVT_ARRAY_COUNT(heads); i++) kvt_listing_add(&listing, "%s", heads[i]);
        for (uint32_t row = 0; row < ROWS && j < timed->job_count; row++) add_row(&listing, &timed->jobs[j++]);
        kvt_listing_print(&listing, stdout, "  ");
    }
}

int kvt_timed_print(const struct kvt_timed *timed)
{
    switch (timed->format) {
    case KVT_TIMED_JSON: return print_json(timed);
    case KVT_TIMED_CSV: print_csv(timed); break;
    case KVT_TIMED_TABLE: print_table(timed); break;
    }
    return KVT_EXIT_OK;
}
