/* plan: what a model's KV cache takes, group by group, and how many sequences fit in each tier. */
#include <errno.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "kvtier/shape.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/models.h"
#include "tools/text.h"

#define CONTEXT_DEFAULT 8192
#define BLOCK_TOKENS_DEFAULT 16
#define CONTEXT_MAX ((uint64_t)1 << 40)

enum tier { TIER_HBM, TIER_HOST, TIER_NVME, TIER_COUNT };
static const char *const tier_names[TIER_COUNT] = { "hbm", "host", "nvme" };

struct options {
    const char *model, *config, *shape;
    uint64_t context, batch, block_tokens;
    bool is_dtype_given, is_json;
    enum kvt_dtype dtype;
    uint64_t tier_bytes[TIER_COUNT]; /* 0: not asked for */
};

/* All that is printed. */
struct plan {
    struct kvt_model model;
    uint64_t bytes_per_token, bytes_per_sequence, total_bytes, bytes_ignoring_windows, attention_matrix_bytes;
    uint64_t block_bytes_per_sequence;    /* in whole blocks: what tiers are filled with */
    uint64_t group_bytes[KVT_GROUPS_MAX]; /* per sequence */
    uint64_t fit[TIER_COUNT], packed_fit[TIER_COUNT];
    double ratio; /* that the codec is expected to reach */
};

/* ---- Options ----------------------------------------------------------------------------------------------------- */

enum option_key {
    OPTION_MODEL = 0x100,
    OPTION_CONFIG,
    OPTION_SHAPE,
    OPTION_CONTEXT,
    OPTION_BATCH,
    OPTION_DTYPE,
    OPTION_BLOCK_TOKENS,
    OPTION_HBM,
    OPTION_HOST,
    OPTION_NVME,
    OPTION_JSON
};

static const struct argp_option option_table[] = {
    { "model", OPTION_MODEL, "NAME", 0,
      "a model by name: llama-3-8b, llama-3-70b, qwen2.5-7b, qwen2.5-72b, gemma-3-270m, "
      "gemma-3-27b, gpt-oss-20b, qwen3-next-80b, deepseek-v3",
      0 },
    { "config", OPTION_CONFIG, "FILE", 0, "a model by its HuggingFace config.json", 0 },
    { "shape", OPTION_SHAPE, "SHAPE", 0,
      "a model by layers=,kv_heads=,head_dim=,dtype=[,kind=full|window|state,window=,sinks=,"
      "planes=,state_bytes=]; '+' joins groups of layers",
      0 },
    { "context", OPTION_CONTEXT, "TOKENS", 0, "tokens of a sequence (default 8192)", 1 },
    { "batch", OPTION_BATCH, "N", 0, "sequences at once (default 1)", 1 },
    { "dtype", OPTION_DTYPE, "DTYPE", 0, "of the KV cache: bf16, fp16, fp8, fp32 or int8 (default: the model's)", 1 },
    { "block-tokens", OPTION_BLOCK_TOKENS, "N", 0, "tokens of a block (default 16)", 1 },
    { "hbm", OPTION_HBM, "SIZE", 0, "HBM for KV: how many sequences fit; sizes as in 64GiB", 2 },
    { "host", OPTION_HOST, "SIZE", 0, "host memory for KV", 2 },
    { "nvme", OPTION_NVME, "SIZE", 0, "NVMe space for KV", 2 },
    { "json", OPTION_JSON, NULL, 0, "print JSON", 3 },
    { 0 }
};

static error_t refuse(const struct argp_state *state, const char *option, const char *value, const char *rule)
{
    (void)kvt_refuse_value(state->argv[0], option, value, rule);
    return EINVAL;
}

static error_t read_count(const struct argp_state *state, const char *option, const char *value, uint64_t most,
                          uint64_t *ret_count)
{
    const char *rule = kvt_parse_count(value, 1, most, ret_count);
    return rule ? refuse(state, option, value, rule) : 0;
}

static error_t read_size(const struct argp_state *state, const char *option, const char *value, uint64_t *ret_bytes)
{
    const char *rule = kvt_parse_size(value, ret_bytes);
    return rule ? refuse(state, option, value, rule) : 0;
}

static error_t read_option(int key, char *value, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case OPTION_MODEL: options->model = value; return 0;
    case OPTION_CONFIG: options->config = value; return 0;
    case OPTION_SHAPE: options->shape = value; return 0;
    case OPTION_CONTEXT: return read_count(state, "--context", value, CONTEXT_MAX, &options->context);
    case OPTION_BATCH: return read_count(state, "--batch", value, UINT64_MAX, &options->batch);
    case OPTION_BLOCK_TOKENS: return read_count(state, "--block-tokens", value, UINT16_MAX, &options->block_tokens);
    case OPTION_HBM: return read_size(state, "--hbm", value, &options->tier_bytes[TIER_HBM]);
    case OPTION_HOST: return read_size(state, "--host", value, &options->tier_bytes[TIER_HOST]);
    case OPTION_NVME: return read_size(state, "--nvme", value, &options->tier_bytes[TIER_NVME]);
    case OPTION_JSON: options->is_json = true; return 0;
    case OPTION_DTYPE:
        options->is_dtype_given = true;
        if (kvt_dtype_parse(value, &options->dtype)) return 0;
        return refuse(state, "--dtype", value, "bf16, fp16, fp8, fp32 or int8");
    case ARGP_KEY_ARG: return kvt_refuse_argument(state, value);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp plan_argp = { .options = option_table,
                                       .parser = read_option,
                                       .doc = "What a model's KV cache takes, and how many sequences fit.\vKV grows "
                                              "linearly with the context; window and state layers stop "
                                              "growing. Only a materialised attention matrix grows with its square, "
                                              "and kernels of the FlashAttention kind never make one." };

static int read_model(const char *command, const struct options *options, struct kvt_model *ret_model)
{
    char error[512] = "";
    enum kvt_status status;
    const char *option, *value;
    if (!options->model + !options->config + !options->shape != 2)
        return kvt_usage_error(command, "one of --model, --config and --shape says which model");
    if (options->model) {
        option = "--model", value = options->model;
        status = kvt_model_find(value, ret_model, error, sizeof error);
    } else if (options->config) {
        option = "--config", value = options->config;
        status = kvt_model_read_config(value, ret_model, error, sizeof error);
    } else {
        option = "--shape", value = options->shape;
        status = kvt_model_parse_shape(value, ret_model, error, sizeof error);
    }
    if (status == KVT_OK) return KVT_EXIT_OK;
    return kvt_refuse_value(command, option, value, *error ? error : kvt_status_text(status));
}

/* ---- The figures ------------------------------------------------------------------------------------------------- */

/*
 * What rank planes reach on real KV pages, headers and padding included; groups of states and other dtypes stay as
 * they are.
 */
static double expected_ratio(enum kvt_dtype dtype)
{
    switch (dtype) {
    case KVT_DTYPE_BF16: return 1.4;
    case KVT_DTYPE_FP16: return 1.12;
    case KVT_DTYPE_FP8: return 1.12;
    case KVT_DTYPE_FP32:
    case KVT_DTYPE_INT8: break;
    }
    return 1.0;
}

static bool add(uint64_t a, uint64_t b, uint64_t *ret_sum) { return !__builtin_add_overflow(a, b, ret_sum); }

/* Bytes of the group's kept tokens, by token and in whole blocks. False: a product does not fit in 64 bits. */
static bool group_figures(const struct kvt_model_shape *shape, const struct kvt_group_shape *group, uint64_t context,
                          uint64_t *ret_bytes, uint64_t *ret_block_bytes, uint64_t *ret_bytes_ignoring)
{
    uint64_t all;
    if (!kvt_multiply(kvt_group_bytes_per_token(group), context, &all)) return false;
    *ret_bytes = kvt_group_bytes_kept(group, context);
    *ret_bytes_ignoring = group->kind == KVT_GROUP_WINDOW ? all : *ret_bytes;
    return kvt_multiply(kvt_group_blocks_kept(group, shape->block_tokens, context),
                        kvt_group_block_bytes(group, shape->block_tokens), ret_block_bytes);
}

static bool fill_plan(const struct options *options, struct plan *plan)
{
    const struct kvt_model_shape *shape = &plan->model.shape;
    bool fits = true;
    double packed = 0, raw = 0;
    for (uint32_t g = 0; g < shape->group_count && fits; g++) {
        const struct kvt_group_shape *group = &shape->groups[g];
        uint64_t blocks, ignoring;
        fits = group_figures(shape, group, options->context, &plan->group_bytes[g], &blocks, &ignoring)
            && add(plan->bytes_per_token, kvt_group_bytes_per_token(group), &plan->bytes_per_token)
            && add(plan->bytes_per_sequence, plan->group_bytes[g], &plan->bytes_per_sequence)
            && add(plan->block_bytes_per_sequence, blocks, &plan->block_bytes_per_sequence)
            && add(plan->bytes_ignoring_windows, ignoring, &plan->bytes_ignoring_windows);
        if (!fits) break;
        raw += (double)blocks;
        packed += (double)blocks / (group->kind == KVT_GROUP_STATE ? 1.0 : expected_ratio(group->dtype));
    }
    fits = fits && kvt_multiply(plan->bytes_per_sequence, options->batch, &plan->total_bytes);
    plan->attention_matrix_bytes = plan->model.attention_heads;
    fits = fits && kvt_multiply(plan->attention_matrix_bytes, options->context, &plan->attention_matrix_bytes)
        && kvt_multiply(plan->attention_matrix_bytes, options->context, &plan->attention_matrix_bytes)
        && kvt_multiply(plan->attention_matrix_bytes, kvt_dtype_bytes(plan->model.dtype),
                        &plan->attention_matrix_bytes);
    if (!fits) return false;

    KVT_ASSERT(plan->block_bytes_per_sequence > 0); /* a token of context, a group: at least a block */
    plan->ratio = raw / packed;
    for (uint32_t t = 0; t < TIER_COUNT; t++) {
        plan->fit[t] = options->tier_bytes[t] / plan->block_bytes_per_sequence;
        plan->packed_fit[t] = (uint64_t)((double)options->tier_bytes[t] / packed);
    }
    return true;
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

static const char *kind_name(enum kvt_group_kind kind)
{
    switch (kind) {
    case KVT_GROUP_FULL: return "full";
    case KVT_GROUP_WINDOW: return "window";
    case KVT_GROUP_STATE: break;
    }
    return "state";
}

static void add_number(struct json_object *object, const char *name, uint64_t number)
{
    (void)json_object_object_add(object, name, json_object_new_uint64(number));
}

static void add_text(struct json_object *object, const char *name, const char *text)
{
    (void)json_object_object_add(object, name, json_object_new_string(text));
}

static struct json_object *groups_json(const struct plan *plan)
{
    struct json_object *groups = json_object_new_array();
    for (uint32_t g = 0; g < plan->model.shape.group_count; g++) {
        const struct kvt_group_shape *group = &plan->model.shape.groups[g];
        struct json_object *object = json_object_new_object();
        add_text(object, "kind", kind_name(group->kind));
        add_number(object, "layers", group->layers);
        if (group->kind == KVT_GROUP_WINDOW) add_number(object, "window", group->window_tokens);
        else (void)json_object_object_add(object, "window", NULL);
        if (group->kind != KVT_GROUP_STATE) add_text(object, "dtype", kvt_dtype_name(group->dtype));
        add_number(object, "bytes_per_token", kvt_group_bytes_per_token(group));
        add_number(object, "bytes_per_sequence", plan->group_bytes[g]);
        (void)json_object_array_add(groups, object);
    }
    return groups;
}

/* Raw first, then, below HBM, what the codec is expected to make of it. */
static struct json_object *fit_json(const struct options *options, const struct plan *plan)
{
    struct json_object *fit = json_object_new_object();
    for (uint32_t t = 0; t < TIER_COUNT; t++) {
        if (options->tier_bytes[t] > 0) add_number(fit, tier_names[t], plan->fit[t]);
    }
    if (options->tier_bytes[TIER_HOST] > 0) add_number(fit, "host_packed", plan->packed_fit[TIER_HOST]);
    if (options->tier_bytes[TIER_NVME] > 0) add_number(fit, "nvme_packed", plan->packed_fit[TIER_NVME]);
    return fit;
}

static void print_json(const struct options *options, const struct plan *plan)
{
    char ratio[16];
    (void)snprintf(ratio, sizeof ratio, "%.2f", plan->ratio);
    struct json_object *root = json_object_new_object();
    add_text(root, "model", plan->model.name);
    add_number(root, "context", options->context);
    add_number(root, "batch", options->batch);
    add_number(root, "block_tokens", options->block_tokens);
    add_number(root, "bytes_per_token", plan->bytes_per_token);
    add_number(root, "bytes_per_sequence", plan->bytes_per_sequence);
    add_number(root, "total_bytes", plan->total_bytes);
    (void)json_object_object_add(root, "sequences_that_fit", fit_json(options, plan));
    (void)json_object_object_add(root, "expected_ratio", json_object_new_double_s(plan->ratio, ratio));
    (void)json_object_object_add(root, "groups", groups_json(plan));
    add_number(root, "bytes_per_sequence_ignoring_windows", plan->bytes_ignoring_windows);
    add_number(root, "bytes_per_sequence_in_blocks", plan->block_bytes_per_sequence);
    add_number(root, "attention_heads", plan->model.attention_heads);
    add_number(root, "attention_matrix_bytes", plan->attention_matrix_bytes);
    (void)printf("%s\n",
                 json_object_to_json_string_ext(
                     root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE));
    (void)json_object_put(root);
}

static void print_bytes_row(struct kvt_listing *rows, const char *name, uint64_t bytes)
{
    kvt_listing_add(rows, "%s", name);
    kvt_listing_add(rows, "%s", kvt_format_count(bytes).text);
    kvt_listing_add(rows, "B");
    kvt_listing_add(rows, "%s", kvt_format_bytes(bytes).text);
}

static void print_groups(const struct plan *plan)
{
    struct kvt_listing rows;
    kvt_listing_init(&rows, "lrrrr");
    static const char *const titles[] = { "layer group", "layers", "window", "bytes per token", "bytes per sequence" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(titles); i++) kvt_listing_add(&rows, "%s", titles[i]);
    for (uint32_t g = 0; g < plan->model.shape.group_count; g++) {
        const struct kvt_group_shape *group = &plan->model.shape.groups[g];
        const bool is_window = group->kind == KVT_GROUP_WINDOW;
        kvt_listing_add(&rows, "%s", kind_name(group->kind));
        kvt_listing_add(&rows, "%u", group->layers);
        kvt_listing_add(&rows, "%s", is_window ? kvt_format_count(group->window_tokens).text : "-");
        kvt_listing_add(&rows, "%s", kvt_format_count(kvt_group_bytes_per_token(group)).text);
        kvt_listing_add(&rows, "%s", kvt_format_count(plan->group_bytes[g]).text);
    }
    kvt_listing_print(&rows, stdout, "  ");
}

static void print_fit(const struct options *options, const struct plan *plan)
{
    struct kvt_listing rows;
    kvt_listing_init(&rows, "lrrr");
    static const char *const titles[] = { "tier", "size", "sequences, raw", "packed (expected)" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(titles); i++) kvt_listing_add(&rows, "%s", titles[i]);
    for (uint32_t t = 0; t < TIER_COUNT; t++) {
        if (options->tier_bytes[t] == 0) continue;
        kvt_listing_add(&rows, "%s", tier_names[t]);
        kvt_listing_add(&rows, "%s", kvt_format_bytes(options->tier_bytes[t]).text);
        kvt_listing_add(&rows, "%s", kvt_format_count(plan->fit[t]).text);
        kvt_listing_add(&rows, "%s", t == TIER_HBM ? "-" : kvt_format_count(plan->packed_fit[t]).text);
    }
    if (rows.cell_count == rows.column_count) return;
    (void)printf("\n");
    kvt_listing_print(&rows, stdout, "  ");
    (void)printf("  HBM holds blocks raw; below it the codec is expected to reach %.2fx. Blocks of %llu tokens.\n",
                 plan->ratio, (unsigned long long)options->block_tokens);
}

static void print_table(const struct options *options, const struct plan *plan)
{
    struct kvt_listing rows;
    (void)printf("%s: %s tokens of context, %s at once\n\n", plan->model.name, kvt_format_count(options->context).text,
                 kvt_format_count(options->batch).text);
    print_groups(plan);
    (void)printf("\n");
    kvt_listing_init(&rows, "lrll");
    print_bytes_row(&rows, "KV per token, all layers", plan->bytes_per_token);
    print_bytes_row(&rows, "KV per sequence", plan->bytes_per_sequence);
    if (plan->bytes_ignoring_windows != plan->bytes_per_sequence)
        print_bytes_row(&rows, "  if the windows were ignored", plan->bytes_ignoring_windows);
    print_bytes_row(&rows, "KV in all", plan->total_bytes);
    print_bytes_row(&rows, "one layer's attention matrix", plan->attention_matrix_bytes);
    kvt_listing_print(&rows, stdout, "  ");
    (void)printf("\n  KV grows linearly with the context. The attention matrix (%u heads, materialised) is all that "
                 "grows with its\n"
                 "  square; kernels of the FlashAttention kind never make one, and it is not part of the sums above.\n",
                 plan->model.attention_heads);
    print_fit(options, plan);
}

int kvt_cmd_plan(int argc, char **argv)
{
    struct options options = { .context = CONTEXT_DEFAULT, .batch = 1, .block_tokens = BLOCK_TOKENS_DEFAULT };
    struct plan plan = { 0 };
    int exit_status = kvt_parse_options(&plan_argp, argc, argv, &options);
    if (exit_status == KVT_EXIT_OK) exit_status = read_model(argv[0], &options, &plan.model);
    if (exit_status != KVT_EXIT_OK) return exit_status;

    char error[128];
    if (options.is_dtype_given) kvt_model_set_dtype(&plan.model, options.dtype);
    plan.model.shape.block_tokens = (uint32_t)options.block_tokens;
    if (kvt_shape_check(&plan.model.shape, error, sizeof error) != KVT_OK)
        return kvt_usage_error(argv[0], "--block-tokens is '%u': %s", plan.model.shape.block_tokens, error);
    if (!fill_plan(&options, &plan)) {
        return kvt_usage_error(argv[0], "--context is '%llu' and --batch is '%llu': the bytes must fit in 64 bits",
                               (unsigned long long)options.context, (unsigned long long)options.batch);
    }
    if (options.is_json) print_json(&options, &plan);
    else print_table(&options, &plan);
    return KVT_EXIT_OK;
}
