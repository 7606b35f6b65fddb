#include "tools/sim/report.h"

#include <inttypes.h>
#include <string.h>

#include <json-c/json.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/cli.h"
#include "tools/text.h"

enum { COLUMNS_MAX = 12 }; /* capacities that one table shows beside each other */

const char *kvt_sim_policy_name(const struct kvt_policy_ops *policy) { return policy ? policy->name : "belady"; }

static const char *mode_name(const struct kvt_sim_options *options)
{
    if (options->mode == KVT_COUNT_FLAT) return "flat";
    return options->order == KVT_COUNT_TAIL ? "prefix, tail first" : "prefix, head first";
}

static double ratio(uint64_t part, uint64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

static uint64_t total_blocks(const struct kvt_count_job *job)
{
    uint64_t blocks = 0;
    for (uint32_t t = 0; t < job->tier_count; t++) blocks += job->capacities[t];
    return blocks;
}

static double rate(const struct kvt_count_result *result)
{
    return result->seconds > 0 ? (double)result->accesses / result->seconds : 0;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void put(struct json_object *object, const char *name, uint64_t value)
{
    (void)json_object_object_add(object, name, json_object_new_uint64(value));
}

static void put_text(struct json_object *object, const char *name, const char *text)
{
    (void)json_object_object_add(object, name, json_object_new_string(text));
}

static void put_double(struct json_object *object, const char *name, double value, const char *format)
{
    char text[40];
    (void)snprintf(text, sizeof text, format, value);
    (void)json_object_object_add(object, name, json_object_new_double_s(value, text));
}

static struct json_object *traces_of(const struct kvt_sim_report *report)
{
    struct json_object *array = json_object_new_array();
    for (uint32_t i = 0; i < report->trace_count; i++) {
        struct json_object *object = json_object_new_object();
        const struct kvt_sim_trace *trace = &report->traces[i];
        put_text(object, "trace", trace->name);
        put(object, "requests", trace->accesses.request_count);
        put(object, "accesses", trace->accesses.access_count);
        put(object, "blocks", trace->accesses.block_count);
        put_double(object, "load_seconds", trace->load_seconds, "%.6f");
        (void)json_object_array_add(array, object);
    }
    return array;
}

static struct json_object *result_of(const struct kvt_sim_report *report, uint32_t i)
{
    const struct kvt_count_job *job = &report->jobs[i];
    const struct kvt_count_result *result = &report->results[i];
    struct json_object *object = json_object_new_object();
    put_text(object, "trace", report->traces[report->job_traces[i]].name);
    put_text(object, "policy", kvt_sim_policy_name(job->policy));
    put_text(object, "admission", job->admission ? job->admission->name : "all");
    put(object, "capacity_blocks", total_blocks(job));
    put(object, "accesses", result->accesses);
    put(object, "hits", result->hits);
    put_double(object, "hit_ratio", ratio(result->hits, result->accesses), "%.6f");
    put(object, "tokens", result->tokens);
    put(object, "hit_tokens", result->hit_tokens);
    if (job->warmup_requests > 0) {
        put(object, "warmup_requests", job->warmup_requests);
        (void)json_object_object_add(object, "filled_before", json_object_new_boolean(result->is_filled_before));
    }
    if (job->policy) {
        put(object, "blocks_written", result->writes);
        put(object, "evictions", result->evictions);
    }
    if (job->tier_count > 1) {
        struct json_object *tiers = json_object_new_array();
        for (uint32_t t = 0; t < job->tier_count; t++) {
            struct json_object *tier = json_object_new_object();
            put(tier, "capacity_blocks", job->capacities[t]);
            put(tier, "hits", result->tier_hits[t]);
            (void)json_object_array_add(tiers, tier);
        }
        (void)json_object_object_add(object, "tiers", tiers);
    }
    (void)json_object_object_add(object, "filled", json_object_new_boolean(result->is_filled));
    put_double(object, "seconds", result->seconds, "%.6f");
    put_double(object, "accesses_per_second", rate(result), "%.0f");
    return object;
}

static enum kvt_status print_json(const struct kvt_sim_report *report, FILE *stream)
{
    struct json_object *root = json_object_new_object();
    if (!root) return KVT_NOMEM;
    put_text(root, "count", report->options->mode == KVT_COUNT_FLAT ? "flat" : "prefix");
    if (report->options->mode == KVT_COUNT_PREFIX)
        put_text(root, "order", report->options->order == KVT_COUNT_TAIL ? "tail" : "head");
    put(root, "block_tokens", report->options->workload.block_tokens);
    put(root, "repeat", report->options->repeat);
    put(root, "seed", report->options->workload.seed);
    put(root, "threads", report->options->threads);
    put_double(root, "seconds", report->seconds, "%.6f");
    (void)json_object_object_add(root, "traces", traces_of(report));
    struct json_object *results = json_object_new_array();
    for (uint32_t i = 0; i < report->job_count; i++) (void)json_object_array_add(results, result_of(report, i));
    (void)json_object_object_add(root, "results", results);
    const char *text = json_object_to_json_string_ext(
        root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text) (void)fprintf(stream, "%s\n", text);
    (void)json_object_put(root);
    return text ? KVT_OK : KVT_NOMEM;
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

/* A field with what would end it in quotes. */
static void print_field(FILE *stream, const char *text)
{
    if (!strpbrk(text, ",\"\n\r")) {
        (void)fprintf(stream, "%s", text);
        return;
    }
    (void)fputc('"', stream);
    for (; *text; text++) {
        if (*text == '"') (void)fputc('"', stream);
        (void)fputc(*text, stream);
    }
    (void)fputc('"', stream);
}

static void print_csv(const struct kvt_sim_report *report, FILE *stream)
{
    (void)fprintf(
        stream,
        "trace,count,order,policy,admission,capacity_blocks,accesses,hits,hit_ratio,blocks_written,evictions,filled,"
        "seconds\n");
    for (uint32_t i = 0; i < report->job_count; i++) {
        const struct kvt_count_job *job = &report->jobs[i];
        const struct kvt_count_result *result = &report->results[i];
        print_field(stream, report->traces[report->job_traces[i]].name);
        (void)fprintf(stream, ",%s,%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f,",
                      job->mode == KVT_COUNT_FLAT ? "flat" : "prefix", job->order == KVT_COUNT_TAIL ? "tail" : "head",
                      kvt_sim_policy_name(job->policy), job->admission ? job->admission->name : "all",
                      total_blocks(job), result->accesses, result->hits, ratio(result->hits, result->accesses));
        /* What the bound writes is not known. */
        if (job->policy) (void)fprintf(stream, "%" PRIu64 ",%" PRIu64, result->writes, result->evictions);
        else (void)fputc(',', stream);
        (void)fprintf(stream, ",%d,%.6f\n", result->is_filled, result->seconds);
    }
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

static void add_capacity(struct kvt_listing *listing, const struct kvt_count_job *job)
{
    char text[KVT_LISTING_CELL_BYTES] = "";
    for (uint32_t t = 0; t < job->tier_count; t++) {
        const size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "%s%s", t > 0 ? "+" : "",
                       kvt_format_count(job->capacities[t]).text);
    }
    kvt_listing_add(listing, "%s", text);
}

/*
 * Hit ratios of one trace, capacities first .. first + count - 1: one row for each policy and admission. A star: the
 * pool was never full.
 */
static void print_ratios(const struct kvt_sim_report *report, uint32_t base, uint32_t first, uint32_t count,
                         FILE *stream)
{
    const struct kvt_sim_options *options = report->options;
    const bool has_admissions = options->admission_count > 0;
    char alignment[COLUMNS_MAX + 4] = "lr";
    struct kvt_listing listing;
    for (uint32_t c = 0; c < count; c++) alignment[1 + c] = 'r';
    alignment[1 + count] = '\0';
    kvt_listing_init(&listing, alignment);
    kvt_listing_add(&listing, "hits in %%, of blocks");
    for (uint32_t c = 0; c < count; c++) add_capacity(&listing, &report->jobs[base + first + c]);
    const uint32_t rows = report->job_count / report->trace_count / options->capacity_count;
    for (uint32_t row = 0; row < rows; row++) {
        const uint32_t row_base = base + row * options->capacity_count;
        const struct kvt_count_job *job = &report->jobs[row_base];
        if (listing.cell_count + count + 1 > KVT_LISTING_CELLS_MAX) break;
        if (has_admissions)
            kvt_listing_add(&listing, "%s, %s", kvt_sim_policy_name(job->policy),
                            job->admission ? job->admission->name : "all");
        else kvt_listing_add(&listing, "%s", kvt_sim_policy_name(job->policy));
        for (uint32_t c = first; c < first + count; c++) {
            const struct kvt_count_result *result = &report->results[row_base + c];
            kvt_listing_add(&listing, "%.2f%s", 100 * ratio(result->hits, result->accesses),
                            result->is_filled ? "" : "*");
        }
    }
    kvt_listing_print(&listing, stream, "  ");
}

/* Blocks written, in thousands, beside the table of hits. */
static void print_writes(const struct kvt_sim_report *report, uint32_t base, FILE *stream)
{
    const struct kvt_sim_options *options = report->options;
    struct kvt_listing listing;
    kvt_listing_init(&listing, "lllrrr");
    static const char *const heads[] = { "policy", "admission", "blocks", "hits %", "written", "of uses %" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(heads); i++) kvt_listing_add(&listing, "%s", heads[i]);
    uint32_t row = 0; /* of the policy: one for each admission, the bound has one alone */
    for (uint32_t p = 0; p < options->policy_count; row += options->policies[p++] ? options->admission_count : 1) {
        for (uint32_t c = 0; c < options->capacity_count; c++) {
            for (uint32_t a = 0; a < options->admission_count && options->policies[p]; a++) {
                const uint32_t i = base + (row + a) * options->capacity_count + c;
                const struct kvt_count_result *result = &report->results[i];
                if (listing.cell_count + 6 > KVT_LISTING_CELLS_MAX) {
                    kvt_listing_print(&listing, stream, "  ");
                    kvt_listing_init(&listing, "lllrrr");
                }
                kvt_listing_add(&listing, "%s", options->policies[p]->name);
                kvt_listing_add(&listing, "%s", options->admissions[a]->name);
                add_capacity(&listing, &report->jobs[i]);
                kvt_listing_add(&listing, "%.2f", 100 * ratio(result->hits, result->accesses));
                kvt_listing_add(&listing, "%s", kvt_format_count(result->writes).text);
                kvt_listing_add(&listing, "%.1f", 100 * ratio(result->writes, result->accesses));
            }
        }
    }
    kvt_listing_print(&listing, stream, "  ");
}

static bool has_unfilled(const struct kvt_sim_report *report)
{
    for (uint32_t i = 0; i < report->job_count; i++) {
        if (!report->results[i].is_filled) return true;
    }
    return false;
}

static void print_table(const struct kvt_sim_report *report, FILE *stream)
{
    const struct kvt_sim_options *options = report->options;
    const uint32_t jobs_each = report->trace_count > 0 ? report->job_count / report->trace_count : 0;
    double busy = 0, accesses = 0;
    for (uint32_t i = 0; i < report->trace_count; i++) {
        const struct kvt_sim_trace *trace = &report->traces[i];
        (void)fprintf(stream, "%s: %s requests, %s accesses, %s blocks, counted %s%s; loaded in %.2f s\n", trace->name,
                      kvt_format_count(trace->accesses.request_count).text,
                      kvt_format_count(trace->accesses.access_count).text,
                      kvt_format_count(trace->accesses.block_count).text, mode_name(options),
                      options->repeat > 1 ? ", repeated" : "", trace->load_seconds);
        for (uint32_t c = 0; c < options->capacity_count; c += COLUMNS_MAX)
            print_ratios(report, i * jobs_each, c, kvt_min_u32(COLUMNS_MAX, options->capacity_count - c), stream);
        if (options->admission_count > 0) print_writes(report, i * jobs_each, stream);
    }
    for (uint32_t i = 0; i < report->job_count; i++) {
        busy += report->results[i].seconds;
        accesses += (double)report->results[i].accesses;
    }
    if (has_unfilled(report)) (void)fprintf(stream, "* never filled: more room would change nothing\n");
    (void)fprintf(stream, "%.3f s by the clock, %.3f s of processors, %.1f M accesses/s on each\n", report->seconds,
                  busy, busy > 0 ? accesses / busy * 1e-6 : 0);
}

enum kvt_status kvt_sim_print(const struct kvt_sim_report *report, FILE *stream)
{
    switch (report->options->format) {
    case KVT_SIM_JSON: return print_json(report, stream);
    case KVT_SIM_CSV: print_csv(report, stream); return KVT_OK;
    case KVT_SIM_TABLE: print_table(report, stream); return KVT_OK;
    }
    return KVT_OK;
}
