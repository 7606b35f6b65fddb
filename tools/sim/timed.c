#include "tools/sim/timed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "policy/policy.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/mem.h"
#include "tools/cli.h"
#include "tools/run/options.h"
#include "tools/sim/model.h"
#include "tools/text.h"

#define POLICIES_MAX 32
#define GB 1000000000.0
#define PARAMETERS_MAX 1e15

static const struct gpu {
    const char *name;
    double flops_per_s, bytes_per_s; /* dense bf16; HBM */
    double link_bytes_per_s;         /* pinned copies, each way */
} gpus[] = {
    { "h200", 989e12, 4.8e12, 55e9 },
    { "h100", 989e12, 3.35e12, 55e9 },
    { "a100", 312e12, 2.04e12, 25e9 },
    { "4090", 165e12, 1.01e12, 25e9 },
};

/* What the sim's own options say. */
struct asked {
    struct kvt_model_roofline roofline;
    struct kvt_model_links links;
    const struct kvt_policy_ops *policies[POLICIES_MAX];
    uint32_t policy_count;
};

struct outcome {
    const char *policy;
    struct kvt_schedule_result run;
    struct kvt_stats stats;
    uint64_t busy_ns, elapsed_ns, bound_ns;
    uint64_t *first_ns, *token_ns; /* [run.requests_completed]: to the first token; between later ones, on average */
    uint32_t turn_count, spoken_count;
    double seconds; /* of this machine */
};

/* ---- Options ----------------------------------------------------------------------------------------------------- */

bool kvt_sim_is_timed(int argc, char **argv)
{
    static const char *const marks[] = { "--hbm",     "--host",       "--nvme",      "--gpu",
                                         "--step-ms", "--parameters", "--pack-ratio" };
    for (int i = 1; i < argc; i++) {
        for (uint32_t m = 0; m < KVT_ARRAY_COUNT(marks); m++) {
            const size_t length = strlen(marks[m]);
            if (strncmp(argv[i], marks[m], length) == 0 && (argv[i][length] == '\0' || argv[i][length] == '='))
                return true;
        }
    }
    return false;
}

/* "h200" or "flops=989e12,bytes=4.8e12,link=55e9": per second each. NULL, or the rule. */
static const char *read_gpu(const char *value, struct asked *asked)
{
    static const char rule[] = "h200, h100, a100, 4090, or flops=989e12,bytes=4.8e12,link=55e9 (each a second)";
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(gpus); i++) {
        if (strcmp(gpus[i].name, value) != 0) continue;
        asked->roofline.flops_per_s = gpus[i].flops_per_s;
        asked->roofline.bytes_per_s = gpus[i].bytes_per_s;
        asked->links.to_host_bytes_per_s = asked->links.to_device_bytes_per_s = (uint64_t)gpus[i].link_bytes_per_s;
        return NULL;
    }
    double flops = 0, bytes = 0, link = 0;
    int end = 0;
    if (sscanf(value, "flops=%lf,bytes=%lf,link=%lf%n", &flops, &bytes, &link, &end) != 3 || value[end] != '\0')
        return rule;
    if (!(flops >= 1 && flops <= 1e21) || !(bytes >= 1 && bytes <= 1e18) || !(link >= 1 && link <= 1e18)) return rule;
    asked->roofline.flops_per_s = flops;
    asked->roofline.bytes_per_s = bytes;
    asked->links.to_host_bytes_per_s = asked->links.to_device_bytes_per_s = (uint64_t)link;
    return NULL;
}

static const char *read_parameters(const char *value, struct asked *asked)
{
    char *end;
    const double parameters = strtod(value, &end);
    if (end == value || *end != '\0' || !(parameters >= 0 && parameters <= PARAMETERS_MAX))
        return "a count, as in 8e9, 0 to 1e15";
    asked->roofline.parameters = parameters;
    return NULL;
}

static const char *policies_rule(void)
{
    static char rule[640]; /* of a process that is about to end */
    char names[512];
    kvt_policy_names(names, sizeof names);
    (void)snprintf(rule, sizeof rule, "names with commas between, of %s", names);
    return rule;
}

static const char *read_policies(const char *value, struct asked *asked)
{
    char text[512];
    char *saved = NULL;
    if (snprintf(text, sizeof text, "%s", value) >= (int)sizeof text) return "too long";
    for (char *name = strtok_r(text, ",", &saved); name; name = strtok_r(NULL, ",", &saved)) {
        const struct kvt_policy_ops *ops = kvt_policy_find(name);
        if (!ops || asked->policy_count == POLICIES_MAX) return policies_rule();
        asked->policies[asked->policy_count++] = ops;
    }
    return asked->policy_count > 0 ? NULL : policies_rule();
}

static const char *read_ratio(const char *value, struct asked *asked)
{
    return kvt_parse_decimal(value, 1, 100, &asked->links.pack_ratio);
}

/* The value of `--name VALUE` or `--name=VALUE` at argv[*i], *i moved to its last word; NULL: it is another option. */
static const char *value_of(int argc, char **argv, int *i, const char *name)
{
    const size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0) return NULL;
    if (argv[*i][length] == '=') return argv[*i] + length + 1;
    if (argv[*i][length] != '\0') return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

/* Takes the sim's own options out of argv. KVT_EXIT_OK, or one line was printed. */
static int take_own(int *argc, char **argv, struct asked *asked)
{
    static const struct {
        const char *name;
        const char *(*read)(const char *value, struct asked *asked);
    } own[] = {
        { "--gpu", read_gpu },
        { "--parameters", read_parameters },
        { "--policies", read_policies },
        { "--pack-ratio", read_ratio },
    };
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        bool is_own = false;
        for (uint32_t o = 0; o < KVT_ARRAY_COUNT(own) && !is_own; o++) {
            const char *value = value_of(*argc, argv, &i, own[o].name);
            if (!value) continue;
            const char *rule = own[o].read(value, asked);
            if (rule) return kvt_refuse_value(argv[0], own[o].name, value, rule);
            is_own = true;
        }
        if (!is_own) argv[kept++] = argv[i];
    }
    argv[kept] = NULL;
    *argc = kept;
    return KVT_EXIT_OK;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void on_turn(void *user, const struct kvt_turn *turn)
{
    struct outcome *outcome = user;
    if (turn->generated == 0) return;
    outcome->first_ns[outcome->turn_count++] = turn->first_ns - kvt_min_u64(turn->due_ns, turn->first_ns);
    if (turn->generated > 1)
        outcome->token_ns[outcome->spoken_count++] = (turn->ended_ns - turn->first_ns) / (turn->generated - 1);
}

static void on_refused(void *user, const char *line)
{
    (void)user;
    (void)kvt_failure("kvtier sim", "%s", line);
}

static int compare(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/*
 * What the links alone take for what was fetched, less the time that they had it for themselves: no order of moves
 * stalls less.
 */
static uint64_t stall_bound_ns(const struct outcome *outcome, const struct kvt_model_links *links)
{
    uint64_t stalled_ns = 0;
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) stalled_ns += outcome->run.stall_ns[i];
    const uint64_t device_bytes = outcome->stats.tiers[KVT_TIER_DEVICE].bytes_in;
    const uint64_t nvme_bytes = outcome->stats.tiers[KVT_TIER_NVME].bytes_out;
    const uint64_t device_ns = kvt_max_u64(kvt_model_link_ns(device_bytes, links->to_device_bytes_per_s),
                                           kvt_model_link_ns(device_bytes, links->hbm_pace_bytes_per_s));
    const uint64_t nvme_ns = kvt_max_u64(kvt_model_link_ns(nvme_bytes, links->nvme_read_bytes_per_s),
                                         kvt_model_link_ns(nvme_bytes, links->nvme_pace_bytes_per_s));
    const uint64_t free_ns = outcome->elapsed_ns - kvt_min_u64(outcome->elapsed_ns, stalled_ns);
    const uint64_t need_ns = kvt_max_u64(device_ns, nvme_ns);
    return need_ns > free_ns ? need_ns - free_ns : 0;
}

/* One policy on fresh tiers. KVT_EXIT_OK, or one line was printed. */
static int run_one(const struct kvt_run_options *options, const struct asked *asked,
                   const struct kvt_workload *workload, const char *policy, struct outcome *outcome)
{
    struct kvt_model_clock clock = { .now_ns = 1000000000 };
    const struct kvt_env env = kvt_model_env(&clock, options->workload.seed);
    struct kvt_config config = kvt_run_options_config(options);
    char error[512] = "";
    config.env = &env;
    config.device_policy = policy;
    config.device = KVT_DEVICE_AUTO;
    config.sequences_max = kvt_max_u32(4096, kvt_min_u32(workload->request_count, 1u << 20) + 16);
    enum kvt_status status = kvt_model_runtime_open(&config, &asked->links, &clock, error, sizeof error);
    if (status != KVT_OK) {
        char field[32] = "";
        (void)sscanf(error, "%31[a-z_]", field);
        const char *option = kvt_run_option_of_field(field);
        return kvt_usage_error("kvtier sim", "%s%s", option ? option : "",
                               option         ? error + strlen(field)
                                   : error[0] ? error
                                              : kvt_status_text(status));
    }
    struct kvt_model_steps steps = { .clock = &clock, .shape = &options->model.shape, .roofline = asked->roofline };
    const struct kvt_schedule_options how = {
        .arrival = options->arrival,
        .speed = options->speed,
        .has_pauses = options->pause_ns != UINT64_MAX,
        .pause_ns = workload->session_count > 0 && options->workload.trace ? options->pause_ns : UINT64_MAX,
        .batch = options->batch,
        .prefill_chunk = options->prefill_chunk,
        .step_ns = options->step_ns,
        .is_lookahead = options->prefetch == KVT_PREFETCH_LOOKAHEAD,
        .on_turn = on_turn,
        .on_refused = on_refused,
        .user = outcome,
        .env = &env,
        .calls = &kvt_model_step_calls,
        .calls_user = &steps,
    };
    const struct kvt_env real = kvt_env_default();
    const uint64_t begun_ns = kvt_env_now_ns(&real), start_ns = clock.now_ns;
    outcome->policy = policy;
    status = kvt_schedule_run(clock.runtime, &options->model.shape, workload, NULL, &how, &outcome->run);
    outcome->seconds = (double)(kvt_env_now_ns(&real) - begun_ns) * 1e-9;
    outcome->elapsed_ns = clock.now_ns - start_ns;
    outcome->busy_ns = steps.busy_ns;
    kvt_stats(clock.runtime, &outcome->stats);
    outcome->bound_ns = stall_bound_ns(outcome, &asked->links);
    qsort(outcome->first_ns, outcome->turn_count, sizeof *outcome->first_ns, compare);
    qsort(outcome->token_ns, outcome->spoken_count, sizeof *outcome->token_ns, compare);
    kvt_close(&clock.runtime);
    if (status != KVT_OK) return kvt_failure("kvtier sim", "the schedule: %s", kvt_status_text(status));
    if (outcome->run.outcome != KVT_OUTCOME_DONE)
        return kvt_failure("kvtier sim", "%s: %s", policy, outcome->run.error);
    return KVT_EXIT_OK;
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static double quantile_ms(const uint64_t *sorted, uint32_t count, double share)
{
    return count > 0 ? (double)sorted[(uint32_t)((count - 1) * share)] * 1e-6 : 0;
}

static void put(struct json_object *object, const char *name, uint64_t value)
{
    (void)json_object_object_add(object, name, json_object_new_uint64(value));
}

static void put_double(struct json_object *object, const char *name, double value)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.6f", value);
    (void)json_object_object_add(object, name, json_object_new_double_s(value, text));
}

static void put_quantiles(struct json_object *object, const char *name, const uint64_t *sorted, uint32_t count)
{
    struct json_object *quantiles = json_object_new_object();
    put_double(quantiles, "p50", quantile_ms(sorted, count, 0.5));
    put_double(quantiles, "p90", quantile_ms(sorted, count, 0.9));
    put_double(quantiles, "p99", quantile_ms(sorted, count, 0.99));
    put_double(quantiles, "max", quantile_ms(sorted, count, 1));
    (void)json_object_object_add(object, name, quantiles);
}

static struct json_object *tiers_of(const struct outcome *outcome)
{
    static const char *const names[KVT_TIERS] = { "device", "host", "nvme" };
    struct json_object *tiers = json_object_new_array();
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        const struct kvt_tier_stats *stats = &outcome->stats.tiers[t];
        if (stats->capacity_bytes == 0) continue;
        struct json_object *tier = json_object_new_object();
        (void)json_object_object_add(tier, "name", json_object_new_string(names[t]));
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

static struct json_object *steps_of(const struct outcome *outcome)
{
    struct json_object *steps = json_object_new_object(), *causes = json_object_new_object();
    double stall_s = 0;
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) {
        put_double(causes, kvt_stall_name((enum kvt_stall_cause)i), (double)outcome->run.stall_ns[i] * 1e-9);
        stall_s += (double)outcome->run.stall_ns[i] * 1e-9;
    }
    put(steps, "count", outcome->run.steps);
    put(steps, "stalled", outcome->run.steps_stalled);
    put_double(steps, "busy_seconds", (double)outcome->busy_ns * 1e-9);
    put_double(steps, "stall_seconds", stall_s);
    put_double(steps, "stall_seconds_at_least", (double)outcome->bound_ns * 1e-9);
    (void)json_object_object_add(steps, "stall_causes", causes);
    return steps;
}

static struct json_object *result_of(const struct kvt_workload *workload, const struct outcome *outcome)
{
    struct json_object *object = json_object_new_object(), *requests = json_object_new_object(),
                       *tokens = json_object_new_object();
    (void)json_object_object_add(object, "trace", json_object_new_string(workload->name));
    (void)json_object_object_add(object, "policy", json_object_new_string(outcome->policy));
    put(requests, "total", outcome->run.requests);
    put(requests, "completed", outcome->run.requests_completed);
    put(requests, "failed", outcome->run.requests_failed);
    (void)json_object_object_add(object, "requests", requests);
    put(tokens, "prompt", outcome->run.tokens_prompt);
    put(tokens, "reused", outcome->run.tokens_reused);
    put(tokens, "recomputed", outcome->run.tokens_recomputed);
    put(tokens, "generated", outcome->run.tokens_generated);
    (void)json_object_object_add(object, "tokens", tokens);
    (void)json_object_object_add(object, "tiers", tiers_of(outcome));
    (void)json_object_object_add(object, "steps", steps_of(outcome));
    put_quantiles(object, "first_token_ms", outcome->first_ns, outcome->turn_count);
    put_quantiles(object, "token_ms", outcome->token_ns, outcome->spoken_count);
    put_double(object, "write_amplification", outcome->stats.store_write_amplification);
    put_double(object, "simulated_seconds", (double)outcome->elapsed_ns * 1e-9);
    put_double(object, "seconds", outcome->seconds);
    return object;
}

static int print_json(const struct kvt_workload *workload, const struct outcome *outcomes, uint32_t count)
{
    struct json_object *root = json_object_new_object(), *results = json_object_new_array();
    for (uint32_t i = 0; i < count; i++) (void)json_object_array_add(results, result_of(workload, &outcomes[i]));
    (void)json_object_object_add(root, "results", results);
    const char *text = json_object_to_json_string_ext(
        root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text) (void)printf("%s\n", text);
    (void)json_object_put(root);
    return text ? KVT_EXIT_OK : kvt_failure("kvtier sim", "the report: out of memory");
}

static void print_table(const struct kvt_workload *workload, const struct outcome *outcomes, uint32_t count)
{
    static const char *const heads[] = { "policy",       "reused %",     "fetched",    "stashed",
                                         "nvme written", "stalls s",     "at least s", "first token ms p50",
                                         "p99",          "token ms p50", "p99",        "simulated s",
                                         "took s" };
    struct kvt_listing listing;
    kvt_listing_init(&listing, "lrrrrrrrrrrrr");
    for (size_t i = 0; i < KVT_ARRAY_COUNT(heads); i++) kvt_listing_add(&listing, "%s", heads[i]);
    for (uint32_t i = 0; i < count; i++) {
        const struct outcome *o = &outcomes[i];
        uint64_t stalled_ns = 0;
        for (uint32_t c = 0; c < KVT_STALL_COUNT; c++) stalled_ns += o->run.stall_ns[c];
        kvt_listing_add(&listing, "%s", o->policy);
        kvt_listing_add(&listing, "%.2f",
                        o->run.tokens_prompt > 0 ? 100 * (double)o->run.tokens_reused / (double)o->run.tokens_prompt
                                                 : 0);
        kvt_listing_add(&listing, "%s", kvt_format_bytes(o->stats.tiers[KVT_TIER_DEVICE].bytes_in).text);
        kvt_listing_add(&listing, "%s", kvt_format_bytes(o->stats.tiers[KVT_TIER_DEVICE].bytes_out).text);
        kvt_listing_add(&listing, "%s", kvt_format_bytes(o->stats.store_written_bytes).text);
        kvt_listing_add(&listing, "%.3f", (double)stalled_ns * 1e-9);
        kvt_listing_add(&listing, "%.3f", (double)o->bound_ns * 1e-9);
        kvt_listing_add(&listing, "%.1f", quantile_ms(o->first_ns, o->turn_count, 0.5));
        kvt_listing_add(&listing, "%.1f", quantile_ms(o->first_ns, o->turn_count, 0.99));
        kvt_listing_add(&listing, "%.2f", quantile_ms(o->token_ns, o->spoken_count, 0.5));
        kvt_listing_add(&listing, "%.2f", quantile_ms(o->token_ns, o->spoken_count, 0.99));
        kvt_listing_add(&listing, "%.1f", (double)o->elapsed_ns * 1e-9);
        kvt_listing_add(&listing, "%.2f", o->seconds);
    }
    (void)printf("%s: %s of %s requests completed\n", workload->name,
                 kvt_format_count(outcomes[0].run.requests_completed).text,
                 kvt_format_count(outcomes[0].run.requests).text);
    kvt_listing_print(&listing, stdout, "  ");
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int run_all(const struct kvt_run_options *options, const struct asked *asked,
                   const struct kvt_workload *workload)
{
    struct outcome *outcomes = kvt_alloc(asked->policy_count, sizeof *outcomes);
    int exit_status = outcomes ? KVT_EXIT_OK : kvt_failure("kvtier sim", "out of memory");
    uint32_t count = 0;
    for (; exit_status == KVT_EXIT_OK && count < asked->policy_count; count++) {
        struct outcome *outcome = &outcomes[count];
        outcome->first_ns = kvt_alloc(workload->request_count, sizeof *outcome->first_ns);
        outcome->token_ns = kvt_alloc(workload->request_count, sizeof *outcome->token_ns);
        if (!outcome->first_ns || !outcome->token_ns) exit_status = kvt_failure("kvtier sim", "out of memory");
        else exit_status = run_one(options, asked, workload, asked->policies[count]->name, outcome);
    }
    if (exit_status == KVT_EXIT_OK) {
        if (options->is_json) exit_status = print_json(workload, outcomes, count);
        else print_table(workload, outcomes, count);
        for (uint32_t i = 0; i < count; i++) {
            if (outcomes[i].run.requests_failed > 0) exit_status = KVT_EXIT_FAILED;
        }
    }
    for (uint32_t i = 0; outcomes && i < count; i++) {
        kvt_free(outcomes[i].first_ns);
        kvt_free(outcomes[i].token_ns);
    }
    kvt_free(outcomes);
    return exit_status;
}

int kvt_sim_timed(int argc, char **argv)
{
    struct asked asked = { .links = { .to_host_latency_ns = 10000,
                                      .to_device_latency_ns = 10000,
                                      .nvme_read_latency_ns = 80000,
                                      .nvme_write_latency_ns = 80000,
                                      .nvme_alignment = 512,
                                      .pack_ratio = 1 } };
    struct kvt_run_options options;
    char error[512] = "";
    int exit_status = take_own(&argc, argv, &asked);
    if (exit_status == KVT_EXIT_OK) exit_status = kvt_run_options_parse(argc, argv, &options);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    asked.links.hbm_pace_bytes_per_s = options.link_hbm_bytes_per_s;
    asked.links.nvme_pace_bytes_per_s = options.link_nvme_bytes_per_s;
    asked.roofline.step_ns = options.step_ns;
    if (asked.policy_count == 0)
        asked.policies[asked.policy_count++] = options.policy ? kvt_policy_find(options.policy) : kvt_policy_at(0);
    if (!asked.policies[0]) return kvt_refuse_value("kvtier sim", "--policy", options.policy, policies_rule());

    struct kvt_workload *workload = NULL;
    const enum kvt_status status = kvt_workload_create(&options.workload, &workload, error, sizeof error);
    if (status != KVT_OK) {
        return kvt_usage_error("kvtier sim", "%s: %s", options.workload.trace ? "--trace" : "--workload",
                               error[0] ? error : kvt_status_text(status));
    }
    exit_status = run_all(&options, &asked, workload);
    kvt_workload_destroy(&workload);
    return exit_status;
}
