#include "tools/run/options.h"

#include <argp.h>
#include <errno.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/key_file.h"
#include "tools/text.h"

#define SHAPE_DEFAULT "layers=8,kv_heads=2,head_dim=64,dtype=bf16"
#define BLOCK_TOKENS_DEFAULT 16
#define BLOCK_TOKENS_TRACE 512
#define BLOCK_TOKENS_MAX 65535
#define BATCH_DEFAULT 16
#define BATCH_MAX 4096
#define PREFILL_DEFAULT 2048
#define SPEED_MOST 1e9
#define MS_MOST 86400000.0
#define CONTEXT_TOKENS_LEAST 64
#define CONTEXT_TOKENS_MOST ((uint64_t)1 << 24)

enum option_key {
    OPTION_TRACE = 0x100,
    OPTION_WORKLOAD,
    OPTION_REQUESTS,
    OPTION_MODEL,
    OPTION_SHAPE,
    OPTION_BLOCK_TOKENS,
    OPTION_HBM,
    OPTION_HOST,
    OPTION_NVME,
    OPTION_NVME_WRITES,
    OPTION_NVME_KEY,
    OPTION_DEVICE,
    OPTION_POLICY,
    OPTION_HOST_POLICY,
    OPTION_ADMISSION,
    OPTION_PREFETCH,
    OPTION_EXPECT,
    OPTION_ARRIVAL,
    OPTION_SPEED,
    OPTION_VERIFY,
    OPTION_READ,
    OPTION_LINK_HBM,
    OPTION_LINK_NVME,
    OPTION_STEP,
    OPTION_BATCH,
    OPTION_PREFILL,
    OPTION_THINK,
    OPTION_SEED,
    OPTION_TRACE_OUT,
    OPTION_RECORD,
    OPTION_METRICS,
    OPTION_CONTEXT,
    OPTION_STREAM,
    OPTION_JSON
};

static const struct argp_option option_table[] = {
    { 0, 0, 0, 0, "What is replayed:", 1 },
    { "trace", OPTION_TRACE, "FILE", 0, "a serving trace: Mooncake JSONL (also with session_id), or Azure CSV", 1 },
    { "workload", OPTION_WORKLOAD, "NAME", 0, "or a generated one: chat, agent, longdoc, batch", 1 },
    { "requests", OPTION_REQUESTS, "N", 0,
      "at most so many requests (default: all of a trace; of a generated "
      "workload 120 to 256, by its kind)",
      1 },
    { "seed", OPTION_SEED, "N", 0, "of the generated workload and of the tokens (default 0)", 1 },
    { "context-tokens", OPTION_CONTEXT, "N", 0,
      "of a generated workload: tokens of its longest contexts, about (default: as the generator has it)", 1 },
    { "think-ms", OPTION_THINK, "N", 0,
      "pause between the turns of a session: the generator's mean, or of every turn of a "
      "trace (default: as the generator or the trace has it)",
      1 },
    { "arrival", OPTION_ARRIVAL, "HOW", 0,
      "sequential: one after another; trace: at their times; asap: all at once (default)", 1 },
    { "speed", OPTION_SPEED, "X", 0, "with --arrival trace: times are divided by it (default 1)", 1 },
    { 0, 0, 0, 0, "On what:", 2 },
    { "model", OPTION_MODEL, "NAME", 0, "a model by name, as in kvtier plan", 2 },
    { "shape", OPTION_SHAPE, "SHAPE", 0,
      "or by layers=,kv_heads=,head_dim=,dtype=[,kind=full|window|state,window=,sinks=,planes=,"
      "state_bytes=]; '+' joins groups (default " SHAPE_DEFAULT ")",
      2 },
    { "block-tokens", OPTION_BLOCK_TOKENS, "N", 0, "tokens of a block (default 16, of a trace 512)", 2 },
    { "hbm", OPTION_HBM, "SIZE", 0, "device memory for blocks (default 64MiB)", 2 },
    { "host", OPTION_HOST, "SIZE", 0, "pinned host memory (default 256MiB)", 2 },
    { "nvme", OPTION_NVME, "DIR[,DIR...]:SIZE", 0,
      "directory of the store, or several on different devices, and the disk space that they may take together "
      "(default: no such tier)",
      2 },
    { "nvme-key-file", OPTION_NVME_KEY, "FILE", 0,
      "encrypt the store with the key in FILE: 32 bytes, or 64 hexadecimal digits. "
      "A directory whose records are under another key, or none, is emptied",
      2 },
    { "nvme-writes-per-day", OPTION_NVME_WRITES, "SIZE", 0,
      "endurance: written to the disk in 24 hours at most, but for what would be lost (default: no limit)", 2 },
    { "device", OPTION_DEVICE, "KIND", 0, "auto (default), cuda, emulated", 2 },
    { "link-hbm", OPTION_LINK_HBM, "GB/s", 0,
      "pace of the emulated device's link; 1 GB is 10^9 bytes "
      "(default: none)",
      2 },
    { "link-nvme", OPTION_LINK_NVME, "GB/s", 0, "pace of the store's disk (default: none)", 2 },
    { 0, 0, 0, 0, "How:", 3 },
    { "policy", OPTION_POLICY, "NAME", 0, "eviction: lru (default), or another of those that kvtier sim lists", 3 },
    { "host-policy", OPTION_HOST_POLICY, "NAME", 0, "eviction from host memory (default: as --policy)", 3 },
    { "admission", OPTION_ADMISSION, "NAME", 0,
      "which blocks are written to the store: all (default), second-sight, adaptive, budget (default with "
      "--nvme-writes-per-day)",
      3 },
    { "prefetch", OPTION_PREFETCH, "HOW", 0,
      "blocks are fetched ahead of need (lookahead, default), when a "
      "sequence is resumed (demand), or when a step asks for it (off); session: as lookahead, and for idle sessions "
      "before they are likely to come back, as is learned from those that came back",
      3 },
    { "expect", OPTION_EXPECT, "WHOM", 0,
      "whom look-ahead knows of: all, also when each idle session comes back, which only a replay can know "
      "(default), or those that have arrived, as a serving engine does (arrived)",
      3 },
    { "batch", OPTION_BATCH, "N", 0, "sequences in a step (default 16)", 3 },
    { "prefill-chunk", OPTION_PREFILL, "N", 0, "prompt tokens in a step (default 2048)", 3 },
    { "step-ms", OPTION_STEP, "N", 0, "a step takes at least so long (default 0)", 3 },
    { "read", OPTION_READ, "HOW", 0,
      "what a step reads of every block it attends to: line (default), or full, "
      "which is many times slower",
      3 },
    { "verify", OPTION_VERIFY, "HOW", 0,
      "check blocks that come back, and all at the end: full (default), sample: 1 of 16, off", 3 },
    { "trace-out", OPTION_TRACE_OUT, "FILE", 0,
      "write steps, stalls, transfers and sequences as a trace that Perfetto and Chrome show", 3 },
    { "record", OPTION_RECORD, "FILE", 0,
      "write the requests as a trace that run and sim replay (with the same --block-tokens)", 3 },
    { "metrics", OPTION_METRICS, "FILE", 0,
      "write the metrics to FILE once a second, as OpenMetrics text: kvtier top FILE shows them", 3 },
    { "stream", OPTION_STREAM, NULL, 0,
      "a request that is larger than the device is not refused: its blocks pass through a window of "
      "device slots, layer by layer, and are attended to in pieces",
      3 },
    { "json", OPTION_JSON, NULL, 0, "print JSON", 3 },
    { 0 }
};

/* What was asked for, before it is put together. */
struct asked {
    struct kvt_run_options *options;
    const char *model, *shape;
    uint64_t block_tokens;
    bool is_speed_given;
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

static error_t read_size(const struct argp_state *state, const char *option, const char *value, uint64_t *ret_bytes)
{
    const char *rule = kvt_parse_size(value, ret_bytes);
    return rule ? refuse(state, option, value, rule) : 0;
}

static error_t read_ms(const struct argp_state *state, const char *option, const char *value, uint64_t *ret_ns)
{
    double ms = 0;
    const char *rule = kvt_parse_decimal(value, 0, MS_MOST, &ms);
    if (rule) return refuse(state, option, value, rule);
    *ret_ns = (uint64_t)(ms * 1e6);
    return 0;
}

static error_t read_rate(const struct argp_state *state, const char *option, const char *value,
                         uint64_t *ret_bytes_per_s)
{
    const char *rule = kvt_parse_rate(value, ret_bytes_per_s);
    return rule ? refuse(state, option, value, rule) : 0;
}

static error_t read_path(const struct argp_state *state, const char *option, char *value, const char **ret_path)
{
    if (value[0] == '\0') return refuse(state, option, value, "the file to write");
    *ret_path = value;
    return 0;
}

/* The place of value in `names`, which ends with NULL. */
static error_t read_name(const struct argp_state *state, const char *option, const char *value,
                         const char *const *names, const char *rule, uint32_t *ret_index)
{
    for (uint32_t i = 0; names[i]; i++) {
        if (strcmp(names[i], value) != 0) continue;
        *ret_index = i;
        return 0;
    }
    return refuse(state, option, value, rule);
}

static error_t read_nvme(const struct argp_state *state, const char *value, struct kvt_run_options *options)
{
    const char *colon = strrchr(value, ':');
    if (!colon || colon == value)
        return refuse(state, "--nvme", value, "a directory and a size, as in /mnt/nvme/kv:64GiB");
    const size_t length = (size_t)(colon - value);
    if (length >= sizeof options->nvme_path) return refuse(state, "--nvme", value, "the path is too long");
    const char *rule = kvt_parse_size(colon + 1, &options->nvme_bytes);
    if (rule) return refuse(state, "--nvme", value, rule);
    memcpy(options->nvme_path, value, length);
    options->nvme_path[length] = '\0';
    return 0;
}

static error_t read_key(const struct argp_state *state, const char *value, struct kvt_run_options *options)
{
    const char *rule = kvt_read_key_file(value, options->nvme_key);
    if (rule) return refuse(state, "--nvme-key-file", value, rule);
    options->has_nvme_key = true;
    options->nvme_key_path = value;
    return 0;
}

/* Options that take one of a few words. */
static error_t read_word(int key, const char *value, const struct argp_state *state, struct kvt_run_options *options)
{
    static const char *const devices[] = { "auto", "cuda", "emulated", NULL };
    static const char *const prefetches[] = { "lookahead", "demand", "off", "session", NULL };
    static const char *const expects[] = { "all", "arrived", NULL };
    static const char *const arrivals[] = { "sequential", "trace", "asap", NULL };
    static const char *const verifies[] = { "full", "sample", "off", NULL };
    static const char *const reads[] = { "line", "full", NULL };
    uint32_t i = 0;
    error_t error = 0;
    switch (key) {
    case OPTION_DEVICE:
        error = read_name(state, "--device", value, devices, "one of auto, cuda, emulated", &i);
        options->device = (enum kvt_device_kind)i;
        break;
    case OPTION_PREFETCH:
        error = read_name(state, "--prefetch", value, prefetches, "one of lookahead, demand, off, session", &i);
        options->prefetch = (enum kvt_prefetch)i;
        break;
    case OPTION_EXPECT:
        error = read_name(state, "--expect", value, expects, "one of all, arrived", &i);
        options->is_expecting_arrived = i == 1;
        options->is_expect_given = true;
        break;
    case OPTION_ARRIVAL:
        error = read_name(state, "--arrival", value, arrivals, "one of sequential, trace, asap", &i);
        options->arrival = (enum kvt_arrival)i;
        break;
    case OPTION_VERIFY:
        error = read_name(state, "--verify", value, verifies, "one of full, sample, off", &i);
        options->verify = (enum kvt_verify)i;
        break;
    case OPTION_READ:
        error = read_name(state, "--read", value, reads, "one of line, full", &i);
        options->read = (enum kvt_read)i;
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return error;
}

static error_t read_workload(int key, char *value, const struct argp_state *state, struct asked *asked)
{
    struct kvt_run_options *options = asked->options;
    uint64_t n = 0;
    error_t error = 0;
    switch (key) {
    case OPTION_TRACE: options->workload.trace = value; break;
    case OPTION_WORKLOAD: options->workload.generator = value; break;
    case OPTION_REQUESTS:
        error = read_count(state, "--requests", value, 1, UINT32_MAX - 1, &n);
        options->workload.requests_max = (uint32_t)n;
        break;
    case OPTION_SEED: error = read_count(state, "--seed", value, 0, UINT64_MAX, &options->workload.seed); break;
    case OPTION_CONTEXT:
        error = read_count(state, "--context-tokens", value, CONTEXT_TOKENS_LEAST, CONTEXT_TOKENS_MOST,
                           &options->workload.context_tokens);
        break;
    case OPTION_THINK: error = read_ms(state, "--think-ms", value, &options->pause_ns); break;
    case OPTION_SPEED: {
        const char *rule = kvt_parse_decimal(value, 1 / SPEED_MOST, SPEED_MOST, &options->speed);
        if (rule) error = refuse(state, "--speed", value, rule);
        asked->is_speed_given = true;
        break;
    }
    default: return ARGP_ERR_UNKNOWN;
    }
    return error;
}

static error_t read_machine(int key, char *value, const struct argp_state *state, struct asked *asked)
{
    struct kvt_run_options *options = asked->options;
    uint64_t n = 0;
    error_t error = 0;
    switch (key) {
    case OPTION_MODEL: asked->model = value; break;
    case OPTION_SHAPE: asked->shape = value; break;
    case OPTION_BLOCK_TOKENS:
        error = read_count(state, "--block-tokens", value, 1, BLOCK_TOKENS_MAX, &asked->block_tokens);
        break;
    case OPTION_HBM: error = read_size(state, "--hbm", value, &options->hbm_bytes); break;
    case OPTION_HOST: error = read_size(state, "--host", value, &options->host_bytes); break;
    case OPTION_NVME: error = read_nvme(state, value, options); break;
    case OPTION_LINK_HBM: error = read_rate(state, "--link-hbm", value, &options->link_hbm_bytes_per_s); break;
    case OPTION_NVME_KEY: error = read_key(state, value, options); break;
    case OPTION_NVME_WRITES:
        error = read_size(state, "--nvme-writes-per-day", value, &options->nvme_bytes_per_day);
        break;
    case OPTION_LINK_NVME: error = read_rate(state, "--link-nvme", value, &options->link_nvme_bytes_per_s); break;
    case OPTION_POLICY: options->policy = value; break;
    case OPTION_HOST_POLICY: options->host_policy = value; break;
    case OPTION_ADMISSION: options->admission = value; break;
    case OPTION_BATCH:
        error = read_count(state, "--batch", value, 1, BATCH_MAX, &n);
        options->batch = (uint32_t)n;
        break;
    case OPTION_PREFILL:
        error = read_count(state, "--prefill-chunk", value, 1, UINT32_MAX, &options->prefill_chunk);
        break;
    case OPTION_STEP: error = read_ms(state, "--step-ms", value, &options->step_ns); break;
    case OPTION_TRACE_OUT: error = read_path(state, "--trace-out", value, &options->trace_out); break;
    case OPTION_RECORD: error = read_path(state, "--record", value, &options->record); break;
    case OPTION_METRICS: asked->options->metrics_path = value; return 0;
    case OPTION_STREAM: options->is_streaming = true; break;
    case OPTION_JSON: options->is_json = true; break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return error;
}

/* True when every group has attention that the kernel knows. Otherwise one line says why not. */
static bool is_attendable(const struct kvt_model_shape *shape, char *ret_error, uint32_t error_bytes)
{
    for (uint32_t g = 0; g < shape->group_count; g++) {
        const struct kvt_group_shape *group = &shape->groups[g];
        if (group->kind == KVT_GROUP_STATE) {
            (void)snprintf(ret_error, error_bytes, "group %u has a state: full and window groups are attended to", g);
            return false;
        }
        if (group->dtype != KVT_DTYPE_BF16 && group->dtype != KVT_DTYPE_FP16 && group->dtype != KVT_DTYPE_FP32) {
            (void)snprintf(ret_error, error_bytes, "group %u has dtype %s: bf16, fp16 or fp32 is attended to", g,
                           kvt_dtype_name(group->dtype));
            return false;
        }
    }
    return true;
}

static error_t check_stream(const struct argp_state *state, const struct kvt_run_options *options)
{
    char error[128];
    if (!options->is_streaming) return 0;
    if (is_attendable(&options->model.shape, error, sizeof error)) return 0;
    (void)kvt_usage_error(state->argv[0], "--stream: %s", error);
    return EINVAL;
}

/* An option without effect is a mistake: what it needs is said. */
static error_t check_effects(const struct argp_state *state, const struct asked *asked)
{
    const struct kvt_run_options *options = asked->options;
    const bool has_nvme = options->nvme_path[0] != '\0';
    const struct {
        bool is_idle;
        const char *line;
    } rules[] = {
        { asked->is_speed_given && options->arrival != KVT_ARRIVAL_TRACE, "--speed is for --arrival trace only" },
        { options->workload.trace && options->workload.context_tokens > 0, "--context-tokens is for --workload only" },
        { !has_nvme && options->admission, "--admission needs --nvme: it is about what is written there" },
        { !has_nvme && options->link_nvme_bytes_per_s > 0, "--link-nvme needs --nvme: it paces that disk" },
        { !has_nvme && options->nvme_bytes_per_day > 0, "--nvme-writes-per-day needs --nvme" },
        { !has_nvme && options->has_nvme_key, "--nvme-key-file needs --nvme" },
        { options->workload.trace && options->arrival == KVT_ARRIVAL_SEQUENTIAL && options->pause_ns != UINT64_MAX,
          "--think-ms means nothing with --arrival sequential: nothing is waited for" },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(rules); i++) {
        if (!rules[i].is_idle) continue;
        (void)kvt_usage_error(state->argv[0], "%s", rules[i].line);
        return EINVAL;
    }
    return 0;
}

/* What only the whole command line tells. */
static error_t put_together(const struct argp_state *state, struct asked *asked)
{
    struct kvt_run_options *options = asked->options;
    const bool is_trace = options->workload.trace != NULL;
    char error[256];
    if (is_trace == (options->workload.generator != NULL)) {
        (void)kvt_usage_error(state->argv[0], "%s",
                              is_trace ? "--trace and --workload exclude each other"
                                       : "one of --trace FILE and --workload NAME is needed");
        return EINVAL;
    }
    if (asked->model && asked->shape) {
        (void)kvt_usage_error(state->argv[0], "--model and --shape exclude each other");
        return EINVAL;
    }
    if (check_effects(state, asked) != 0) return EINVAL;
    const char *shape = asked->shape ? asked->shape : SHAPE_DEFAULT;
    const enum kvt_status status = asked->model ? kvt_model_find(asked->model, &options->model, error, sizeof error)
                                                : kvt_model_parse_shape(shape, &options->model, error, sizeof error);
    options->model_text = asked->model ? asked->model : shape;
    if (status != KVT_OK) {
        if (asked->model) (void)kvt_refuse_value(state->argv[0], "--model", asked->model, error);
        else (void)kvt_usage_error(state->argv[0], "--shape: %s", error);
        return EINVAL;
    }
    if (asked->block_tokens == 0) asked->block_tokens = is_trace ? BLOCK_TOKENS_TRACE : BLOCK_TOKENS_DEFAULT;
    options->model.shape.block_tokens = (uint32_t)asked->block_tokens;
    options->workload.block_tokens = (uint32_t)asked->block_tokens;
    options->workload.think_ns = is_trace ? UINT64_MAX : options->pause_ns;
    if (kvt_shape_check(&options->model.shape, error, sizeof error) != KVT_OK) {
        (void)kvt_usage_error(state->argv[0], "%s: %s", asked->model ? "--model" : "--shape", error);
        return EINVAL;
    }
    return check_stream(state, options);
}

static error_t read_option(int key, char *value, struct argp_state *state)
{
    struct asked *asked = state->input;
    if (key == ARGP_KEY_ARG) return kvt_refuse_argument(state, value);
    if (key == ARGP_KEY_END) return put_together(state, asked);
    error_t error = read_word(key, value, state, asked->options);
    if (error == ARGP_ERR_UNKNOWN) error = read_workload(key, value, state, asked);
    if (error == ARGP_ERR_UNKNOWN) error = read_machine(key, value, state, asked);
    return error;
}

int kvt_run_options_parse(int argc, char **argv, struct kvt_run_options *ret_options)
{
    static const struct argp parser = {
        .options = option_table,
        .parser = read_option,
        .doc = "Replays a workload on the real runtime with real bytes, and verifies every block that it gets back.",
    };
    *ret_options = (struct kvt_run_options){
        .hbm_bytes = 64 * KVT_MIB,
        .host_bytes = 256 * KVT_MIB,
        .device = KVT_DEVICE_AUTO,
        .prefetch = KVT_PREFETCH_LOOKAHEAD,
        .arrival = KVT_ARRIVAL_ASAP,
        .speed = 1,
        .pause_ns = UINT64_MAX,
        .batch = BATCH_DEFAULT,
        .prefill_chunk = PREFILL_DEFAULT,
    };
    struct asked asked = { .options = ret_options };
    return kvt_parse_options(&parser, argc, argv, &asked);
}

bool kvt_run_options_is_expect_idle(const struct kvt_run_options *options)
{
    return options->is_expect_given
        && (options->prefetch == KVT_PREFETCH_DEMAND || options->prefetch == KVT_PREFETCH_OFF);
}

int kvt_run_options_check_pauses(const char *command, const struct kvt_run_options *options, uint32_t session_count)
{
    if (options->pause_ns == UINT64_MAX || session_count > 0) return KVT_EXIT_OK;
    return kvt_usage_error(command, "--think-ms needs sessions: --workload chat or agent, or a trace with session_id");
}

struct kvt_config kvt_run_options_config(const struct kvt_run_options *options)
{
    struct kvt_config config = kvt_config_default();
    config.shape = options->model.shape;
    config.model = options->model_text;
    config.device = options->device;
    config.device_bytes = options->hbm_bytes;
    config.host_bytes = options->host_bytes;
    config.nvme_path = options->nvme_path[0] ? options->nvme_path : NULL;
    config.nvme_bytes = options->nvme_bytes;
    config.nvme_key = options->has_nvme_key ? options->nvme_key : NULL;
    config.nvme_bytes_per_day = options->nvme_bytes_per_day;
    config.device_policy = options->policy;
    config.host_policy = options->host_policy;
    config.admission = options->admission;
    config.prefetch = options->prefetch;
    config.step_ns = options->step_ns;
    config.link_hbm_bytes_per_s = options->link_hbm_bytes_per_s;
    config.link_nvme_bytes_per_s = options->link_nvme_bytes_per_s;
    return config;
}

const char *kvt_run_option_of_field(const char *field)
{
    static const struct {
        const char *field, *option;
    } names[] = {
        { "device_bytes", "--hbm" }, { "host_bytes", "--host" },      { "nvme_path", "--nvme" },
        { "nvme_bytes", "--nvme" },  { "device_policy", "--policy" }, { "host_policy", "--host-policy" },
        { "device", "--device" },    { "shape", "--shape" },          { "admission", "--admission" },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(names); i++) {
        if (strcmp(names[i].field, field) == 0) return names[i].option;
    }
    return NULL;
}
