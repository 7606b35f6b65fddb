#include "tools/sim/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/sim/gnuplot.h"
#include "tools/text.h"

#define BLOCK_TOKENS_DEFAULT 16
#define BLOCK_TOKENS_TRACE 512
#define BLOCK_TOKENS_MAX 65535
#define CAPACITIES_DEFAULT "1%,5%,10%,25%,50%,100%"
#define CAPACITY_MAX ((UINT32_C(1) << 30) - 2)
#define REPEAT_MAX 10000
#define THREADS_MAX 64
#define ITEM_BYTES 64

enum option_key {
    OPTION_TRACE = 0x100,
    OPTION_WORKLOAD,
    OPTION_REQUESTS,
    OPTION_SEED,
    OPTION_BLOCK_TOKENS,
    OPTION_COUNT,
    OPTION_ORDER,
    OPTION_POLICIES,
    OPTION_CAPACITIES,
    OPTION_ADMISSION,
    OPTION_REPEAT,
    OPTION_WARMUP,
    OPTION_THREADS,
    OPTION_JSON,
    OPTION_CSV,
    OPTION_PLOT,
    OPTION_GPU
};

static const struct argp_option option_table[] = {
    { 0, 0, 0, 0, "What is replayed:", 1 },
    { "trace", OPTION_TRACE, "FILE", 0, "a serving trace: Mooncake JSONL, or Azure CSV; more than one may be given",
      1 },
    { "workload", OPTION_WORKLOAD, "NAME", 0, "or a generated one: chat, agent, longdoc, batch", 1 },
    { "requests", OPTION_REQUESTS, "N", 0, "at most so many requests of each", 1 },
    { "seed", OPTION_SEED, "N", 0, "of the generated workload and of the policies (default 0)", 1 },
    { "block-tokens", OPTION_BLOCK_TOKENS, "N", 0, "tokens of a block (default 16, of a trace 512)", 1 },
    { "repeat", OPTION_REPEAT, "N", 0, "go through it so many times (default 1)", 1 },
    { 0, 0, 0, 0, "What is counted:", 2 },
    { "count", OPTION_COUNT, "HOW", 0,
      "prefix (default): a request's hits end at its first miss; flat: each block stands alone", 2 },
    { "order", OPTION_ORDER, "HOW", 0,
      "prefix: a request's blocks are used from the tail (default) or from the head on", 2 },
    { "policies", OPTION_POLICIES, "NAME,...", 0, "eviction policies, or belady: the bound, or all (default all)", 2 },
    { "capacities", OPTION_CAPACITIES, "N,...", 0,
      "blocks, or N%: of the trace's different blocks, or N+N: tiers of so many "
      "blocks that share nothing (default " CAPACITIES_DEFAULT ")",
      2 },
    { "warmup", OPTION_WARMUP, "N", 0,
      "requests, or N%: the first so many of a trace fill the tiers and are not counted (default 0)", 2 },
    { "admission", OPTION_ADMISSION, "NAME,...", 0,
      "which missed blocks are written: admission policies, or all of them by 'each'", 2 },
    { 0, 0, 0, 0, "How:", 3 },
    { "threads", OPTION_THREADS, "N", 0, "count so many capacities at once (default: one for each processor)", 3 },
    { "json", OPTION_JSON, NULL, 0, "print JSON", 3 },
    { "csv", OPTION_CSV, NULL, 0, "print CSV", 3 },
    { "plot", OPTION_PLOT, "FILE", 0, "draw hits against capacity to FILE.svg or FILE.png, with gnuplot", 3 },
    { 0, 0, 0, 0,
      "In virtual time, which one of these asks for, or one of --hbm, --host, --nvme DIR:SIZE, --link-hbm, --link-nvme, "
      "--step-ms, --prefetch, --expect, --host-policy; the other options of kvtier run hold then, too (--arrival, --batch, "
      "--context-tokens, --model, ...), and --count, --order, --capacities, --warmup and --repeat do not:",
      4 },
    { "gpu", OPTION_GPU, "GPU", 0,
      "h200, h100, a100, 4090, or flops=F,bytes=B,link=L, each a second: the roofline and the link", 4 },
    { "parameters", OPTION_GPU, "N", 0, "of the model, as in 8e9: arithmetic and bytes of a step", 4 },
    { "pack-ratio", OPTION_GPU, "X", 0, "raw over packed bytes below HBM (default 1, or what --links says)", 4 },
    { "links", OPTION_GPU, "FILE", 0, "what kvtier bench --calibrate measured: links, codec, disk, engine", 4 },
    { "trace-out", OPTION_GPU, "FILE", 0, "steps, stalls, transfers and sequences, for Perfetto and Chrome", 4 },
    { 0, 0, 0, 0,
      "A comma in --policies, --host-policy, --admission, --hbm, --host, --nvme DIR:SIZE,SIZE, --prefetch, --link-hbm, --link-nvme or "
      "--seed makes a grid; --threads, --csv, --json and --plot hold here, too.",
      5 },
    { 0 }
};

static error_t refuse(const struct argp_state *state, const char *option, const char *value, const char *rule)
{
    (void)kvt_refuse_value(state->argv[0], option, value, rule);
    return EINVAL;
}

static error_t read_count(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                          uint64_t most, uint64_t *ret_count)
{
    const char *rule = kvt_parse_count(value, least, most, ret_count);
    return rule ? refuse(state, option, value, rule) : 0;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* Cuts the next item off *list into item[ITEM_BYTES]. False: it is empty or too long. */
static bool next_item(const char **list, char *item)
{
    const size_t length = strcspn(*list, ",");
    const bool is_item = length > 0 && length < ITEM_BYTES;
    if (is_item) {
        memcpy(item, *list, length);
        item[length] = '\0';
    }
    *list += length;
    return is_item;
}

static bool has_more(const char **list)
{
    if (**list != ',') return false;
    (*list)++;
    return true;
}

static bool add_policy(struct kvt_sim_options *options, const struct kvt_policy_ops *ops)
{
    for (uint32_t i = 0; i < options->policy_count; i++) {
        if (options->policies[i] == ops) return true;
    }
    if (options->policy_count == KVT_SIM_POLICIES_MAX) return false;
    options->policies[options->policy_count++] = ops;
    return true;
}

static error_t refuse_policies(const struct argp_state *state, const char *value)
{
    char names[512], rule[640];
    kvt_policy_names(names, sizeof names);
    (void)snprintf(rule, sizeof rule, "names with commas between, of %s, belady; or all", names);
    return refuse(state, "--policies", value, rule);
}

static error_t read_policies(const struct argp_state *state, const char *value, struct kvt_sim_options *options)
{
    const char *rest = value;
    options->policy_count = 0;
    do {
        char name[ITEM_BYTES];
        bool is_added = next_item(&rest, name);
        if (is_added && strcmp(name, "all") == 0) {
            for (uint32_t i = 0; kvt_policy_at(i); i++) is_added = is_added && add_policy(options, kvt_policy_at(i));
            is_added = is_added && add_policy(options, NULL);
        } else if (is_added) {
            const struct kvt_policy_ops *ops = kvt_policy_find(name);
            is_added = (ops || strcmp(name, "belady") == 0) && add_policy(options, ops);
        }
        if (!is_added) return refuse_policies(state, value);
    } while (has_more(&rest));
    return 0;
}

static error_t refuse_admissions(const struct argp_state *state, const char *value)
{
    char names[512], rule[640];
    kvt_admission_names(names, sizeof names);
    (void)snprintf(rule, sizeof rule, "names with commas between, of %s; or each", names);
    return refuse(state, "--admission", value, rule);
}

static bool add_admission(struct kvt_sim_options *options, const struct kvt_admission_ops *ops)
{
    for (uint32_t i = 0; i < options->admission_count; i++) {
        if (options->admissions[i] == ops) return true;
    }
    if (options->admission_count == KVT_SIM_ADMISSIONS_MAX) return false;
    options->admissions[options->admission_count++] = ops;
    return true;
}

static error_t read_admissions(const struct argp_state *state, const char *value, struct kvt_sim_options *options)
{
    const char *rest = value;
    options->admission_count = 0;
    if (strcmp(value, "each") == 0) {
        for (uint32_t i = 0; kvt_admission_at(i) && i < KVT_SIM_ADMISSIONS_MAX; i++)
            options->admissions[options->admission_count++] = kvt_admission_at(i);
        return 0;
    }
    do {
        char name[ITEM_BYTES];
        const struct kvt_admission_ops *ops = next_item(&rest, name) ? kvt_admission_find(name) : NULL;
        if (!ops || !add_admission(options, ops)) return refuse_admissions(state, value);
    } while (has_more(&rest));
    return 0;
}

/* "5859", "2.5%", "1000+5000". NULL, or the rule that it breaks. */
static const char *parse_capacity(char *text, struct kvt_sim_capacity *ret_capacity)
{
    static const char rule[] = "blocks, 1 to 1073741822, or 0.01% to 100%, or up to 3 tiers with + between";
    struct kvt_sim_capacity capacity = { 0 };
    const size_t length = strlen(text);
    if (text[length - 1] == '%') {
        double percent = 0;
        text[length - 1] = '\0';
        if (kvt_parse_decimal(text, 0.01, 100, &percent)) return rule;
        capacity.percent_e2 = (uint32_t)(percent * 100 + 0.5);
        capacity.tier_count = 1;
        *ret_capacity = capacity;
        return NULL;
    }
    char *saved = NULL;
    if (*text == '+' || text[length - 1] == '+' || strstr(text, "++")) return rule;
    for (char *part = strtok_r(text, "+", &saved); part; part = strtok_r(NULL, "+", &saved)) {
        uint64_t blocks = 0;
        if (capacity.tier_count == KVT_COUNT_TIERS_MAX || kvt_parse_count(part, 1, CAPACITY_MAX, &blocks)) return rule;
        capacity.blocks[capacity.tier_count++] = (uint32_t)blocks;
    }
    *ret_capacity = capacity;
    return NULL;
}

static error_t read_capacities(const struct argp_state *state, const char *value, struct kvt_sim_options *options)
{
    const char *rest = value;
    options->capacity_count = 0;
    do {
        char text[ITEM_BYTES];
        if (!next_item(&rest, text)) return refuse(state, "--capacities", value, "numbers with commas between");
        if (options->capacity_count == KVT_SIM_CAPACITIES_MAX)
            return refuse(state, "--capacities", value, "at most 128 of them");
        const char *rule = parse_capacity(text, &options->capacities[options->capacity_count++]);
        if (rule) return refuse(state, "--capacities", value, rule);
    } while (has_more(&rest));
    return 0;
}

/* "1000", "50%". Percents are rounded down to whole requests. */
static error_t read_warmup(const struct argp_state *state, const char *value, struct kvt_sim_options *options)
{
    static const char rule[] = "requests, 0 to 4294967294, or 0.01% to 100%";
    char text[ITEM_BYTES];
    const char *rest = value;
    uint64_t requests = 0;
    options->warmup_requests = options->warmup_percent_e2 = 0;
    options->warmup = value;
    if (!next_item(&rest, text) || *rest != '\0') return refuse(state, "--warmup", value, rule);
    const size_t length = strlen(text);
    if (text[length - 1] == '%') {
        double percent = 0;
        text[length - 1] = '\0';
        if (kvt_parse_decimal(text, 0.01, 100, &percent)) return refuse(state, "--warmup", value, rule);
        options->warmup_percent_e2 = (uint32_t)(percent * 100 + 0.5);
        return 0;
    }
    if (kvt_parse_count(text, 0, UINT32_MAX - 1, &requests)) return refuse(state, "--warmup", value, rule);
    options->warmup_requests = (uint32_t)requests;
    return 0;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static error_t read_trace(const struct argp_state *state, const char *value, struct kvt_sim_options *options)
{
    if (options->trace_count == KVT_SIM_TRACES_MAX) return refuse(state, "--trace", value, "at most 16 traces");
    options->traces[options->trace_count++] = value;
    return 0;
}

static error_t read_format(const struct argp_state *state, enum kvt_sim_format format, struct kvt_sim_options *options)
{
    if (options->format != KVT_SIM_TABLE && options->format != format) {
        (void)kvt_usage_error(state->argv[0], "--json and --csv exclude each other");
        return EINVAL;
    }
    options->format = format;
    return 0;
}

static void drop_bound(struct kvt_sim_options *options)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < options->policy_count; i++) {
        if (options->policies[i]) options->policies[kept++] = options->policies[i];
    }
    options->policy_count = kept;
}

/* The last of what only the whole command line tells. */
static error_t put_together(const struct argp_state *state, struct kvt_sim_options *options)
{
    const bool is_trace = options->trace_count > 0;
    if (is_trace == (options->workload.generator != NULL)) {
        (void)kvt_usage_error(state->argv[0], "%s",
                              is_trace ? "--trace and --workload exclude each other"
                                       : "one of --trace FILE and --workload NAME is needed");
        return EINVAL;
    }
    if (options->is_order_given && options->mode == KVT_COUNT_FLAT) {
        (void)kvt_usage_error(state->argv[0], "--order is for --count prefix only: with flat each block stands alone");
        return EINVAL;
    }
    bool is_tiered = false;
    for (uint32_t i = 0; i < options->capacity_count; i++)
        is_tiered = is_tiered || options->capacities[i].tier_count > 1;
    if (is_tiered && options->admission_count > 0) {
        (void)kvt_usage_error(state->argv[0], "--admission is for capacities of one tier only");
        return EINVAL;
    }
    for (uint32_t i = 0; i < options->policy_count; i++) {
        if (options->policies[i] || options->policy_count > 1 || (!is_tiered && options->admission_count == 0))
            continue;
        (void)kvt_usage_error(state->argv[0], "--policies belady: the bound has one tier and admits all");
        return EINVAL;
    }
    if (options->warmup_requests > 0 || options->warmup_percent_e2 > 0) {
        const uint32_t before = options->policy_count;
        drop_bound(options);
        if (options->is_policies_given && options->policy_count < before) {
            (void)kvt_usage_error(state->argv[0],
                                  "--warmup is for policies only: the bound, belady, counts from the first request on");
            return EINVAL;
        }
    }
    if (options->workload.block_tokens == 0)
        options->workload.block_tokens = is_trace ? BLOCK_TOKENS_TRACE : BLOCK_TOKENS_DEFAULT;
    return 0;
}

static error_t read_number(int key, const char *value, const struct argp_state *state, struct kvt_sim_options *options)
{
    uint64_t n = 0;
    error_t error;
    switch (key) {
    case OPTION_REQUESTS:
        error = read_count(state, "--requests", value, 1, UINT32_MAX - 1, &n);
        options->workload.requests_max = (uint32_t)n;
        return error;
    case OPTION_SEED: return read_count(state, "--seed", value, 0, UINT64_MAX, &options->workload.seed);
    case OPTION_BLOCK_TOKENS:
        error = read_count(state, "--block-tokens", value, 1, BLOCK_TOKENS_MAX, &n);
        options->workload.block_tokens = (uint32_t)n;
        return error;
    case OPTION_REPEAT:
        error = read_count(state, "--repeat", value, 1, REPEAT_MAX, &n);
        options->repeat = (uint32_t)n;
        return error;
    case OPTION_THREADS:
        error = read_count(state, "--threads", value, 1, THREADS_MAX, &n);
        options->threads = (uint32_t)n;
        return error;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_option(int key, char *value, struct argp_state *state)
{
    struct kvt_sim_options *options = state->input;
    switch (key) {
    case OPTION_TRACE: return read_trace(state, value, options);
    case OPTION_WORKLOAD: options->workload.generator = value; return 0;
    case OPTION_COUNT:
        if (strcmp(value, "flat") != 0 && strcmp(value, "prefix") != 0)
            return refuse(state, "--count", value, "flat or prefix");
        options->mode = *value == 'f' ? KVT_COUNT_FLAT : KVT_COUNT_PREFIX;
        return 0;
    case OPTION_ORDER:
        if (strcmp(value, "tail") != 0 && strcmp(value, "head") != 0)
            return refuse(state, "--order", value, "tail or head");
        options->is_order_given = true;
        options->order = *value == 't' ? KVT_COUNT_TAIL : KVT_COUNT_HEAD;
        return 0;
    case OPTION_POLICIES: options->is_policies_given = true; return read_policies(state, value, options);
    case OPTION_WARMUP: return read_warmup(state, value, options);
    case OPTION_CAPACITIES: return read_capacities(state, value, options);
    case OPTION_ADMISSION: return read_admissions(state, value, options);
    case OPTION_PLOT: {
        const char *rule = kvt_gnuplot_check(value);
        options->plot = value;
        return rule ? refuse(state, "--plot", value, rule) : 0;
    }
    case OPTION_JSON: return read_format(state, KVT_SIM_JSON, options);
    case OPTION_CSV: return read_format(state, KVT_SIM_CSV, options);
    case ARGP_KEY_ARG: return kvt_refuse_argument(state, value);
    case ARGP_KEY_INIT:
        (void)read_policies(state, "all", options);
        return read_capacities(state, CAPACITIES_DEFAULT, options);
    case ARGP_KEY_END: return put_together(state, options);
    default: return read_number(key, value, state, options);
    }
}

const char *kvt_sim_find_option(int argc, char **argv, const char *const *names)
{
    for (int i = 1; i < argc; i++) {
        for (uint32_t n = 0; names[n]; n++) {
            const size_t length = strlen(names[n]);
            if (strncmp(argv[i], names[n], length) == 0 && (argv[i][length] == '\0' || argv[i][length] == '='))
                return names[n];
        }
    }
    return NULL;
}

/* Options that hold elsewhere. KVT_EXIT_OK, or one line was printed. */
static int refuse_others(int argc, char **argv)
{
    static const char *const timed[] = { "--arrival",  "--batch",         "--context-tokens",
                                         "--device",   "--model",         "--nvme-key-file",
                                         "--policy",   "--prefill-chunk", "--nvme-writes-per-day",
                                         "--read",     "--shape",         "--speed",
                                         "--think-ms", "--verify",        NULL };
    static const char *const runs[] = { "--metrics", "--record", "--stream", NULL };
    const char *name = kvt_sim_find_option(argc, argv, timed);
    if (name) return kvt_usage_error(argv[0], "%s is for virtual time: with --hbm, --host or --nvme", name);
    name = kvt_sim_find_option(argc, argv, runs);
    return name ? kvt_usage_error(argv[0], "%s is for kvtier run", name) : KVT_EXIT_OK;
}

int kvt_sim_options_parse(int argc, char **argv, struct kvt_sim_options *ret_options)
{
    static const struct argp parser = {
        .options = option_table,
        .parser = read_option,
        .doc = "Counts what the runtime's policies would keep of a workload, or runs it in virtual time.",
    };
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    *ret_options = (struct kvt_sim_options){
        .mode = KVT_COUNT_PREFIX,
        .order = KVT_COUNT_TAIL,
        .repeat = 1,
        .threads = processors > 0 ? kvt_min_u32((uint32_t)processors, THREADS_MAX) : 1,
        .workload = { .think_ns = UINT64_MAX },
    };
    const int refused = refuse_others(argc, argv);
    return refused == KVT_EXIT_OK ? kvt_parse_options(&parser, argc, argv, ret_options) : refused;
}
