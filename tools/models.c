#include "tools/models.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/bytes.h"
#include "tools/text.h"

#define SHAPE_TEXT_MAX 1000

__attribute__((format(printf, 3, 4))) static enum kvt_status refuse(char *ret_error, uint32_t error_bytes,
                                                                    const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (ret_error) (void)vsnprintf(ret_error, error_bytes, format, arguments);
    va_end(arguments);
    return KVT_INVAL;
}

/* ---- Named models ------------------------------------------------------------------------------------------------ */

#define FULL(layers_, heads_, dim_)                                                                              \
    {                                                                                                            \
        .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = (layers_), .planes = 2, .kv_heads = (heads_), \
        .head_dim = (dim_)                                                                                       \
    }
#define WINDOW(layers_, heads_, dim_, window_)                                                                     \
    {                                                                                                              \
        .kind = KVT_GROUP_WINDOW, .dtype = KVT_DTYPE_BF16, .layers = (layers_), .planes = 2, .kv_heads = (heads_), \
        .head_dim = (dim_), .window_tokens = (window_)                                                             \
    }

/*
 * Qwen3-Next: one layer's Gated DeltaNet state: [32 value heads][128][128] in fp32, and the last 3 inputs of its
 * convolution over 2 * 16 * 128 key and 32 * 128 value channels in bf16. Engines may keep the state in bf16 too; it
 * is half of this then.
 */
#define QWEN3_NEXT_STATE_BYTES (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)

/* From the config.json of each model's repository on HuggingFace; all of them compute in bf16. */
static const struct kvt_model models[] = {
    /* meta-llama/Meta-Llama-3-8B: 32 layers, 32 heads, 8 KV heads, hidden 4096. */
    { "llama-3-8b", 32, KVT_DTYPE_BF16, { .group_count = 1, .groups = { FULL(32, 8, 128) } } },
    /* meta-llama/Meta-Llama-3-70B: 80 layers, 64 heads, 8 KV heads, hidden 8192. */
    { "llama-3-70b", 64, KVT_DTYPE_BF16, { .group_count = 1, .groups = { FULL(80, 8, 128) } } },
    /* Qwen/Qwen2.5-7B: 28 layers, 28 heads, 4 KV heads, hidden 3584; use_sliding_window is false. */
    { "qwen2.5-7b", 28, KVT_DTYPE_BF16, { .group_count = 1, .groups = { FULL(28, 4, 128) } } },
    /* Qwen/Qwen2.5-72B: 80 layers, 64 heads, 8 KV heads, hidden 8192; use_sliding_window is false. */
    { "qwen2.5-72b", 64, KVT_DTYPE_BF16, { .group_count = 1, .groups = { FULL(80, 8, 128) } } },
    /* google/gemma-3-270m: 18 layers, 4 heads, 1 KV head, head_dim 256, sliding_window 512, every sixth layer full. */
    { "gemma-3-270m", 4, KVT_DTYPE_BF16, { .group_count = 2, .groups = { FULL(3, 1, 256), WINDOW(15, 1, 256, 512) } } },
    /*
     * google/gemma-3-27b-it: 62 layers, 32 heads, 16 KV heads, head_dim 128, sliding_window 1024, every sixth
     * layer full.
     */
    { "gemma-3-27b",
      32,
      KVT_DTYPE_BF16,
      { .group_count = 2, .groups = { FULL(10, 16, 128), WINDOW(52, 16, 128, 1024) } } },
    /*
     * openai/gpt-oss-20b: 24 layers, 64 heads, 8 KV heads, head_dim 64, sliding_window 128, every second layer full.
     * Its attention sinks are learned biases, not tokens.
     */
    { "gpt-oss-20b", 64, KVT_DTYPE_BF16, { .group_count = 2, .groups = { FULL(12, 8, 64), WINDOW(12, 8, 64, 128) } } },
    /* Qwen/Qwen3-Next-80B-A3B-Instruct: 48 layers, 16 heads, 2 KV heads, head_dim 256, full_attention_interval 4. */
    { "qwen3-next-80b",
      16,
      KVT_DTYPE_BF16,
      { .group_count = 2,
        .groups = { FULL(12, 2, 256),
                    { .kind = KVT_GROUP_STATE,
                      .dtype = KVT_DTYPE_BF16,
                      .layers = 36,
                      .state_bytes = QWEN3_NEXT_STATE_BYTES } } } },
    /*
     * deepseek-ai/DeepSeek-V3: 61 layers, 128 heads; MLA keeps kv_lora_rank 512 + qk_rope_head_dim 64 for all
     * heads at once.
     */
    { "deepseek-v3",
      128,
      KVT_DTYPE_BF16,
      { .group_count = 1,
        .groups = { { .kind = KVT_GROUP_FULL,
                      .dtype = KVT_DTYPE_BF16,
                      .layers = 61,
                      .planes = 1,
                      .kv_heads = 1,
                      .head_dim = 576 } } } },
};

#define NAMES                                                                                                    \
    "llama-3-8b, llama-3-70b, qwen2.5-7b, qwen2.5-72b, gemma-3-270m, gemma-3-27b, gpt-oss-20b, qwen3-next-80b, " \
    "deepseek-v3"

const char *kvt_model_names(void) { return NAMES; }

enum kvt_status kvt_model_find(const char *name, struct kvt_model *ret_model, char *ret_error, uint32_t error_bytes)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(models); i++) {
        if (strcasecmp(name, models[i].name) == 0) {
            *ret_model = models[i];
            return KVT_OK;
        }
    }
    return refuse(ret_error, error_bytes, "one of %s", NAMES);
}

void kvt_model_set_dtype(struct kvt_model *model, enum kvt_dtype dtype)
{
    for (uint32_t g = 0; g < model->shape.group_count; g++) model->shape.groups[g].dtype = dtype;
}

/* ---- Written shapes ---------------------------------------------------------------------------------------------- */

enum shape_key {
    KEY_LAYERS = 1 << 0,
    KEY_KV_HEADS = 1 << 1,
    KEY_HEAD_DIM = 1 << 2,
    KEY_DTYPE = 1 << 3,
    KEY_KIND = 1 << 4,
    KEY_WINDOW = 1 << 5,
    KEY_SINKS = 1 << 6,
    KEY_PLANES = 1 << 7,
    KEY_STATE_BYTES = 1 << 8,
    KEYS_OF_STATE = KEY_LAYERS | KEY_DTYPE | KEY_KIND | KEY_STATE_BYTES,
    KEYS_OF_WINDOW = KEY_WINDOW | KEY_SINKS
};

static const struct {
    const char *name;
    enum shape_key key;
} shape_keys[] = { { "layers", KEY_LAYERS }, { "kv_heads", KEY_KV_HEADS }, { "head_dim", KEY_HEAD_DIM },
                   { "dtype", KEY_DTYPE },   { "kind", KEY_KIND },         { "window", KEY_WINDOW },
                   { "sinks", KEY_SINKS },   { "planes", KEY_PLANES },     { "state_bytes", KEY_STATE_BYTES } };

struct shape_reader {
    struct kvt_group_shape group;
    uint32_t seen; /* enum shape_key */
    char *ret_error;
    uint32_t error_bytes;
};

static enum kvt_status set_u32(struct shape_reader *reader, const char *name, const char *value, uint32_t least,
                               uint32_t *ret_number)
{
    uint64_t number;
    const char *rule = kvt_parse_count(value, least, UINT32_MAX, &number);
    if (rule) return refuse(reader->ret_error, reader->error_bytes, "%s is '%s': %s", name, value, rule);
    *ret_number = (uint32_t)number;
    return KVT_OK;
}

static enum kvt_status set_kind(struct shape_reader *reader, const char *value)
{
    static const char *const kinds[] = {
        [KVT_GROUP_FULL] = "full", [KVT_GROUP_WINDOW] = "window", [KVT_GROUP_STATE] = "state"
    };
    for (uint32_t kind = 0; kind < KVT_ARRAY_COUNT(kinds); kind++) {
        if (strcmp(value, kinds[kind]) == 0) {
            reader->group.kind = (enum kvt_group_kind)kind;
            return KVT_OK;
        }
    }
    return refuse(reader->ret_error, reader->error_bytes, "kind is '%s': full, window or state", value);
}

static enum kvt_status set_value(struct shape_reader *reader, enum shape_key key, const char *name, const char *value)
{
    struct kvt_group_shape *group = &reader->group;
    const char *rule;
    switch (key) {
    case KEY_LAYERS: return set_u32(reader, name, value, 1, &group->layers);
    case KEY_KV_HEADS: return set_u32(reader, name, value, 1, &group->kv_heads);
    case KEY_HEAD_DIM: return set_u32(reader, name, value, 1, &group->head_dim);
    case KEY_WINDOW: return set_u32(reader, name, value, 1, &group->window_tokens);
    case KEY_SINKS: return set_u32(reader, name, value, 0, &group->sink_tokens);
    case KEY_PLANES: return set_u32(reader, name, value, 1, &group->planes);
    case KEY_KIND: return set_kind(reader, value);
    case KEY_DTYPE:
        if (kvt_dtype_parse(value, &group->dtype)) return KVT_OK;
        return refuse(reader->ret_error, reader->error_bytes, "dtype is '%s': bf16, fp16, fp8, fp32 or int8", value);
    case KEY_STATE_BYTES:
        rule = kvt_parse_count(value, 1, INT64_MAX, &group->state_bytes);
        if (!rule) return KVT_OK;
        return refuse(reader->ret_error, reader->error_bytes, "%s is '%s': %s", name, value, rule);
    case KEYS_OF_STATE:
    case KEYS_OF_WINDOW: break;
    }
    return KVT_INVAL;
}

/* One "key=value". */
static enum kvt_status read_pair(struct shape_reader *reader, char *pair)
{
    char *value = strchr(pair, '=');
    if (!value) return refuse(reader->ret_error, reader->error_bytes, "'%s': a shape is key=value,key=value,..", pair);
    *value++ = '\0';
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(shape_keys); i++) {
        if (strcmp(pair, shape_keys[i].name) != 0) continue;
        if (reader->seen & shape_keys[i].key)
            return refuse(reader->ret_error, reader->error_bytes, "%s is there twice", pair);
        if (*value == '\0') return refuse(reader->ret_error, reader->error_bytes, "%s has no value", pair);
        reader->seen |= shape_keys[i].key;
        return set_value(reader, shape_keys[i].key, pair, value);
    }
    return refuse(reader->ret_error, reader->error_bytes,
                  "'%s': the keys are layers, kv_heads, head_dim, dtype, kind, window, sinks, planes, state_bytes",
                  pair);
}

/* What a group of its kind must have and may not have. */
static enum kvt_status finish_group(struct shape_reader *reader)
{
    if (!(reader->seen & KEY_KIND)) {
        if (reader->seen & KEY_WINDOW) reader->group.kind = KVT_GROUP_WINDOW;
        else if (reader->seen & KEY_STATE_BYTES) reader->group.kind = KVT_GROUP_STATE;
    }
    uint32_t wanted = KEY_LAYERS | KEY_KV_HEADS | KEY_HEAD_DIM | KEY_DTYPE, refused = KEY_STATE_BYTES | KEYS_OF_WINDOW;
    const char *kind = "full";
    if (reader->group.kind == KVT_GROUP_WINDOW) {
        kind = "window";
        wanted |= KEY_WINDOW;
        refused = KEY_STATE_BYTES;
    } else if (reader->group.kind == KVT_GROUP_STATE) {
        kind = "state";
        wanted = KEY_LAYERS | KEY_STATE_BYTES;
        refused = ~(uint32_t)KEYS_OF_STATE;
    }
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(shape_keys); i++) {
        if (wanted & ~reader->seen & shape_keys[i].key)
            return refuse(reader->ret_error, reader->error_bytes, "%s is missing: a %s group needs it",
                          shape_keys[i].name, kind);
        if (refused & reader->seen & shape_keys[i].key)
            return refuse(reader->ret_error, reader->error_bytes, "%s is there: a %s group has none",
                          shape_keys[i].name, kind);
    }
    if (reader->group.planes == 0 && reader->group.kind != KVT_GROUP_STATE) reader->group.planes = 2;
    return KVT_OK;
}

static enum kvt_status read_group(char *text, struct kvt_group_shape *ret_group, char *ret_error, uint32_t error_bytes)
{
    struct shape_reader reader = { .ret_error = ret_error, .error_bytes = error_bytes };
    for (char *pair = text; pair;) {
        char *comma = strchr(pair, ',');
        if (comma) *comma = '\0';
        KVT_TRY(read_pair(&reader, pair));
        pair = comma ? comma + 1 : NULL;
    }
    KVT_TRY(finish_group(&reader));
    *ret_group = reader.group;
    return KVT_OK;
}

enum kvt_status kvt_model_parse_shape(const char *text, struct kvt_model *ret_model, char *ret_error,
                                      uint32_t error_bytes)
{
    char copy[SHAPE_TEXT_MAX + 1];
    if (strlen(text) > SHAPE_TEXT_MAX)
        return refuse(ret_error, error_bytes, "a shape has at most %d characters", SHAPE_TEXT_MAX);
    memcpy(copy, text, strlen(text) + 1);

    struct kvt_model model = { .name = "shape" };
    for (char *group = copy; group;) {
        char *plus = strchr(group, '+');
        if (plus) *plus = '\0';
        if (model.shape.group_count == KVT_GROUPS_MAX)
            return refuse(ret_error, error_bytes, "at most %d groups", KVT_GROUPS_MAX);
        KVT_TRY(read_group(group, &model.shape.groups[model.shape.group_count++], ret_error, error_bytes));
        group = plus ? plus + 1 : NULL;
    }

    /* Products that overflow are found here; the caller's block size makes them larger and is checked by the caller. */
    struct kvt_model_shape of_one_token = model.shape;
    of_one_token.block_tokens = 1;
    KVT_TRY(kvt_shape_check(&of_one_token, ret_error, error_bytes));
    for (uint32_t g = 0; g < model.shape.group_count; g++) {
        if (model.shape.groups[g].kind == KVT_GROUP_STATE) continue;
        model.attention_heads = model.shape.groups[g].kv_heads;
        model.dtype = model.shape.groups[g].dtype;
        break;
    }
    *ret_model = model;
    return KVT_OK;
}
