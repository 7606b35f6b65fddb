/*
 * model_config: the KV shape of a HuggingFace config.json.
 *
 * A config says which layers keep what in one of several ways, and leaves out what its model class has as a default.
 * The rules here follow the transformers library; where a config does not say which layers have a window, it is
 * refused rather than guessed: a plan that is too small is worse than none.
 */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/models.h"

#define CONFIG_BYTES_MAX ((size_t)KVT_MIB)
#define LAYERS_MAX 4096

enum layer { LAYER_FULL, LAYER_WINDOW, LAYER_STATE, LAYER_NONE };

/* What a model class takes when its config.json leaves it out; 0: nothing. */
struct family {
    const char *model_type;
    uint32_t heads, kv_heads, head_dim, window;
    uint32_t window_pattern; /* every so-manieth layer is full, the others have the window; 1: none is full */
    uint32_t interval;       /* every so-manieth layer is full, the others keep a state */
};

static const struct family families[] = {
    { "gemma", 16, 16, 256, 0, 0, 0 },        { "gemma2", 8, 4, 256, 4096, 2, 0 },
    { "gemma3_text", 8, 4, 256, 4096, 6, 0 }, { "cohere2", 0, 0, 0, 4096, 4, 0 },
    { "gpt_oss", 64, 8, 64, 128, 2, 0 },      { "mistral", 0, 8, 0, 0, 1, 0 },
    { "mixtral", 0, 8, 0, 0, 1, 0 },          { "phi3", 0, 0, 0, 0, 1, 0 },
    { "starcoder2", 0, 0, 0, 0, 1, 0 },       { "qwen3_next", 16, 2, 256, 0, 0, 4 },
};

struct config {
    struct json_object *root, *text; /* text: the language model's part, or root itself */
    const char *model_type;
    struct family family;
    uint32_t layers;
    uint8_t kinds[LAYERS_MAX]; /* enum layer of each */
    char *ret_error;
    uint32_t error_bytes;
};

__attribute__((format(printf, 2, 3))) static enum kvt_status refuse(const struct config *config, const char *format,
                                                                    ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (config->ret_error) (void)vsnprintf(config->ret_error, config->error_bytes, format, arguments);
    va_end(arguments);
    return KVT_INVAL;
}

/* ---- Fields ------------------------------------------------------------------------------------------------------ */

/* NULL when the field is not there, or null. */
static struct json_object *get(const struct config *config, const char *name)
{
    struct json_object *value = NULL;
    if (json_object_object_get_ex(config->text, name, &value) && value) return value;
    if (json_object_object_get_ex(config->root, name, &value)) return value;
    return NULL;
}

/* *ret_number is left as it is when none of the names is there. The list of names ends with NULL. */
static enum kvt_status get_number(const struct config *config, const char *const *names, uint32_t least,
                                  uint32_t *ret_number)
{
    for (; *names; names++) {
        struct json_object *value = get(config, *names);
        if (!value) continue;
        const int64_t number = json_object_get_int64(value);
        if (!json_object_is_type(value, json_type_int) || number < least || number > INT32_MAX)
            return refuse(config, "%s is %.40s: a whole number, %u to %d", *names, json_object_to_json_string(value),
                          least, INT32_MAX);
        *ret_number = (uint32_t)number;
        return KVT_OK;
    }
    return KVT_OK;
}

#define NAMES(...) ((const char *const[]){ __VA_ARGS__, NULL })

static enum kvt_status require_number(const struct config *config, const char *const *names, uint32_t *ret_number)
{
    uint32_t number = 0;
    KVT_TRY(get_number(config, names, 1, &number));
    if (number == 0) return refuse(config, "%s is missing", names[0]);
    *ret_number = number;
    return KVT_OK;
}

static const char *get_text(const struct config *config, const char *name)
{
    struct json_object *value = get(config, name);
    return value && json_object_is_type(value, json_type_string) ? json_object_get_string(value) : NULL;
}

static enum kvt_status get_dtype(const struct config *config, enum kvt_dtype *ret_dtype)
{
    static const struct {
        const char *name;
        enum kvt_dtype dtype;
    } dtypes[] = { { "bfloat16", KVT_DTYPE_BF16 }, { "float16", KVT_DTYPE_FP16 }, { "half", KVT_DTYPE_FP16 },
                   { "float32", KVT_DTYPE_FP32 },  { "float", KVT_DTYPE_FP32 },   { "float8_e4m3fn", KVT_DTYPE_FP8 } };
    const char *text = get_text(config, "torch_dtype");
    if (!text) text = get_text(config, "dtype");
    if (!text || strcmp(text, "auto") == 0) {
        *ret_dtype = KVT_DTYPE_BF16;
        return KVT_OK;
    }
    if (strncmp(text, "torch.", 6) == 0) text += 6;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(dtypes); i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *ret_dtype = dtypes[i].dtype;
            return KVT_OK;
        }
    }
    return refuse(config, "torch_dtype is '%.40s': bfloat16, float16, float32 or float8_e4m3fn", text);
}

/* ---- Which layer keeps what -------------------------------------------------------------------------------------- */

static bool kind_of_name(const char *name, uint8_t *ret_kind)
{
    static const struct {
        const char *name;
        enum layer kind;
    } kinds[] = { { "full_attention", LAYER_FULL },
                  { "attention", LAYER_FULL },
                  { "hybrid", LAYER_FULL },
                  { "sliding_attention", LAYER_WINDOW },
                  { "chunked_attention", LAYER_WINDOW },
                  { "linear_attention", LAYER_STATE },
                  { "mamba", LAYER_STATE },
                  { "mamba2", LAYER_STATE },
                  { "mlp", LAYER_NONE },
                  { "moe", LAYER_NONE } };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(kinds); i++) {
        if (strcmp(name, kinds[i].name) == 0) {
            *ret_kind = (uint8_t)kinds[i].kind;
            return true;
        }
    }
    return false;
}

static enum kvt_status kinds_of_list(struct config *config, const char *name, struct json_object *list)
{
    if (!json_object_is_type(list, json_type_array)) return refuse(config, "%s is no list", name);
    if (json_object_array_length(list) < config->layers) {
        return refuse(config, "%s has %zu entries: num_hidden_layers is %u", name, json_object_array_length(list),
                      config->layers);
    }
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *text = json_object_get_string(json_object_array_get_idx(list, i));
        if (!text || !kind_of_name(text, &config->kinds[i]))
            return refuse(config, "%s has '%.40s': no kind of layer that is known here", name, text ? text : "null");
    }
    return KVT_OK;
}

/* Nemotron-H: M a Mamba-2 layer, * attention, - and E a layer without a cache. */
static enum kvt_status kinds_of_pattern(struct config *config, const char *pattern)
{
    if (strlen(pattern) != config->layers)
        return refuse(config, "hybrid_override_pattern has %zu letters: num_hidden_layers is %u", strlen(pattern),
                      config->layers);
    for (uint32_t i = 0; i < config->layers; i++) {
        switch (pattern[i]) {
        case '*': config->kinds[i] = LAYER_FULL; break;
        case 'M': config->kinds[i] = LAYER_STATE; break;
        case '-':
        case 'E': config->kinds[i] = LAYER_NONE; break;
        default: return refuse(config, "hybrid_override_pattern has '%c': M, *, - or E", pattern[i]);
        }
    }
    return KVT_OK;
}

static void kinds_of_period(struct config *config, uint32_t period, uint32_t offset, enum layer others)
{
    for (uint32_t i = 0; i < config->layers; i++)
        config->kinds[i] = (uint8_t)(i % period == offset ? LAYER_FULL : others);
}

static bool is_window_off(const struct config *config)
{
    struct json_object *use = get(config, "use_sliding_window");
    if (use) return !json_object_get_boolean(use);
    return strncmp(config->model_type, "qwen", 4) == 0; /* the default of these classes */
}

/* Windows that no list of layers speaks of. */
static enum kvt_status kinds_of_window(struct config *config)
{
    uint32_t window = config->family.window, pattern = 0, first = UINT32_MAX;
    KVT_TRY(get_number(config, NAMES("sliding_window"), 1, &window));
    if (window == 0 || is_window_off(config)) return KVT_OK;
    KVT_TRY(get_number(config, NAMES("sliding_window_pattern", "_sliding_window_pattern"), 1, &pattern));
    KVT_TRY(get_number(config, NAMES("max_window_layers"), 0, &first));
    if (pattern > 0) {
        kinds_of_period(config, pattern, pattern - 1, LAYER_WINDOW);
    } else if (first != UINT32_MAX) { /* so many full layers come first */
        for (uint32_t i = first; i < config->layers; i++) config->kinds[i] = LAYER_WINDOW;
    } else if (config->family.window_pattern == 1) {
        memset(config->kinds, LAYER_WINDOW, config->layers);
    } else if (config->family.window_pattern > 1) {
        kinds_of_period(config, config->family.window_pattern, config->family.window_pattern - 1, LAYER_WINDOW);
    } else {
        return refuse(
            config,
            "sliding_window is %u: layer_types, sliding_window_pattern or max_window_layers must say which layers "
            "have it",
            window);
    }
    return KVT_OK;
}

static enum kvt_status find_kinds(struct config *config)
{
    memset(config->kinds, LAYER_FULL, sizeof config->kinds);
    uint32_t interval = config->family.interval, period = 0, offset = 0;
    KVT_TRY(get_number(config, NAMES("full_attention_interval"), 1, &interval));
    KVT_TRY(get_number(config, NAMES("attn_layer_period"), 1, &period));
    KVT_TRY(get_number(config, NAMES("attn_layer_offset"), 0, &offset));
    struct json_object *types = get(config, "layer_types"), *blocks = get(config, "layers_block_type");
    const char *pattern = get_text(config, "hybrid_override_pattern");
    if (types) {
        KVT_TRY(kinds_of_list(config, "layer_types", types));
    } else if (blocks) {
        KVT_TRY(kinds_of_list(config, "layers_block_type", blocks));
    } else if (pattern) {
        KVT_TRY(kinds_of_pattern(config, pattern));
    } else if (period > 0) {
        if (offset >= period) return refuse(config, "attn_layer_offset is %u: below attn_layer_period", offset);
        kinds_of_period(config, period, offset, LAYER_STATE);
    } else if (interval > 0) {
        kinds_of_period(config, interval, interval - 1, LAYER_STATE);
    } else {
        KVT_TRY(kinds_of_window(config));
    }

    /* The last layers of some models read an earlier layer's KV and keep none. */
    uint32_t sharing = 0;
    KVT_TRY(get_number(config, NAMES("num_kv_shared_layers"), 0, &sharing));
    if (sharing >= config->layers && sharing > 0)
        return refuse(config, "num_kv_shared_layers is %u: below num_hidden_layers", sharing);
    if (sharing > 0) memset(config->kinds + config->layers - sharing, LAYER_NONE, sharing);
    return KVT_OK;
}

/* ---- State layers ------------------------------------------------------------------------------------------------ */

/*
 * The recurrent state is kept in fp32 unless the config says otherwise, the convolution's last inputs in the
 * model's dtype.
 */
static enum kvt_status add_state(const struct config *config, enum kvt_dtype dtype, uint64_t state_elements,
                                 uint64_t channels, uint32_t kernel, uint64_t *ret_bytes)
{
    const char *state_dtype = get_text(config, "mamba_ssm_dtype");
    const bool is_half = state_dtype && (strcmp(state_dtype, "bfloat16") == 0 || strcmp(state_dtype, "float16") == 0);
    uint64_t state, inputs, bytes;
    if (!kvt_multiply(state_elements, is_half ? 2 : 4, &state) || !kvt_multiply(channels, kernel - 1, &inputs)
        || !kvt_multiply(inputs, kvt_dtype_bytes(dtype), &inputs) || __builtin_add_overflow(state, inputs, &bytes)
        || bytes > INT64_MAX)
        return refuse(config, "the state of one layer must fit in 64 bits");
    *ret_bytes = bytes;
    return KVT_OK;
}

static uint64_t saturating_product(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t product;
    return kvt_multiply(a, b, &product) && kvt_multiply(product, c, &product) ? product : UINT64_MAX;
}

static enum kvt_status delta_net_bytes(const struct config *config, enum kvt_dtype dtype, uint64_t *ret_bytes)
{
    uint32_t value_heads = 0, key_heads = 0, key_dim = 0, value_dim = 0, kernel = 0;
    KVT_TRY(require_number(config, NAMES("linear_num_value_heads"), &value_heads));
    KVT_TRY(require_number(config, NAMES("linear_num_key_heads"), &key_heads));
    KVT_TRY(require_number(config, NAMES("linear_key_head_dim"), &key_dim));
    KVT_TRY(require_number(config, NAMES("linear_value_head_dim"), &value_dim));
    KVT_TRY(require_number(config, NAMES("linear_conv_kernel_dim"), &kernel));
    const uint64_t channels = 2 * (uint64_t)key_heads * key_dim + (uint64_t)value_heads * value_dim;
    return add_state(config, dtype, saturating_product(value_heads, key_dim, value_dim), channels, kernel, ret_bytes);
}

/*
 * Mamba-2: heads with a [head_dim][state] matrix each; the convolution runs over the inner channels and the
 * groups' B and C.
 */
static enum kvt_status mamba2_bytes(const struct config *config, enum kvt_dtype dtype, uint32_t heads,
                                    uint64_t *ret_bytes)
{
    uint32_t head_dim = 0, state = 0, kernel = 0, groups = 1;
    KVT_TRY(require_number(config, NAMES("mamba_d_head", "mamba_head_dim"), &head_dim));
    KVT_TRY(require_number(config, NAMES("mamba_d_state", "ssm_state_size"), &state));
    KVT_TRY(require_number(config, NAMES("mamba_d_conv", "conv_kernel"), &kernel));
    KVT_TRY(get_number(config, NAMES("mamba_n_groups", "n_groups"), 1, &groups));
    const uint64_t channels = (uint64_t)heads * head_dim + 2 * (uint64_t)groups * state;
    return add_state(config, dtype, saturating_product(heads, head_dim, state), channels, kernel, ret_bytes);
}

/* Mamba-1: a [channels][state] matrix. */
static enum kvt_status mamba1_bytes(const struct config *config, enum kvt_dtype dtype, uint64_t *ret_bytes)
{
    uint32_t hidden = 0, expand = 0, state = 0, kernel = 0;
    KVT_TRY(require_number(config, NAMES("hidden_size"), &hidden));
    KVT_TRY(require_number(config, NAMES("mamba_expand"), &expand));
    KVT_TRY(require_number(config, NAMES("mamba_d_state"), &state));
    KVT_TRY(require_number(config, NAMES("mamba_d_conv"), &kernel));
    return add_state(config, dtype, saturating_product(hidden, expand, state), (uint64_t)hidden * expand, kernel,
                     ret_bytes);
}

static enum kvt_status state_bytes_of(const struct config *config, enum kvt_dtype dtype, uint64_t *ret_bytes)
{
    uint32_t heads = 0;
    if (get(config, "linear_num_value_heads")) return delta_net_bytes(config, dtype, ret_bytes);
    KVT_TRY(get_number(config, NAMES("mamba_n_heads", "mamba_num_heads"), 1, &heads));
    if (heads > 0) return mamba2_bytes(config, dtype, heads, ret_bytes);
    return mamba1_bytes(config, dtype, ret_bytes);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static enum kvt_status read_attention(const struct config *config, struct kvt_model *model,
                                      struct kvt_group_shape *ret_group)
{
    uint32_t heads = config->family.heads, hidden = 0, lora_rank = 0, rope_dim = 0;
    uint32_t head_dim = config->family.head_dim;
    KVT_TRY(get_number(config, NAMES("num_attention_heads", "n_head", "n_heads"), 1, &heads));
    if (heads == 0) return refuse(config, "num_attention_heads is missing");
    uint32_t kv_heads = config->family.kv_heads ? config->family.kv_heads : heads;
    KVT_TRY(get_number(config, NAMES("num_key_value_heads", "num_kv_heads"), 1, &kv_heads));
    KVT_TRY(get_number(config, NAMES("head_dim", "attention_head_dim"), 1, &head_dim));
    KVT_TRY(get_number(config, NAMES("hidden_size", "n_embd", "d_model"), 1, &hidden));
    KVT_TRY(get_number(config, NAMES("kv_lora_rank"), 1, &lora_rank));
    struct kvt_group_shape group = { .dtype = model->dtype, .planes = 2, .kv_heads = kv_heads };
    if (lora_rank > 0) { /* MLA: one latent and one rotary key for all heads at once */
        KVT_TRY(require_number(config, NAMES("qk_rope_head_dim"), &rope_dim));
        group.planes = 1;
        group.kv_heads = 1;
        head_dim = lora_rank + rope_dim;
    }
    if (head_dim == 0) {
        if (hidden == 0) return refuse(config, "head_dim is missing, and hidden_size to reckon it from");
        if (hidden % heads != 0)
            return refuse(config, "hidden_size is %u: a multiple of num_attention_heads, %u, when there is no head_dim",
                          hidden, heads);
        head_dim = hidden / heads;
    }
    group.head_dim = head_dim;
    model->attention_heads = heads;
    *ret_group = group;
    return KVT_OK;
}

static enum kvt_status window_of(const struct config *config, uint32_t *ret_window)
{
    uint32_t window = config->family.window, chunk = 0;
    KVT_TRY(get_number(config, NAMES("sliding_window"), 1, &window));
    KVT_TRY(get_number(config, NAMES("attention_chunk_size"), 1, &chunk));
    if (window == 0) window = chunk;
    if (window == 0) return refuse(config, "sliding_window is missing: some layers have one");
    *ret_window = window;
    return KVT_OK;
}

static enum kvt_status read_groups(const struct config *config, struct kvt_model *model)
{
    uint32_t counts[LAYER_NONE + 1] = { 0 };
    for (uint32_t i = 0; i < config->layers; i++) counts[config->kinds[i]]++;
    struct kvt_group_shape attention;
    KVT_TRY(read_attention(config, model, &attention));
    struct kvt_group_shape *next = model->shape.groups;
    if (counts[LAYER_FULL] > 0) {
        *next = attention;
        next->layers = counts[LAYER_FULL];
        /* Some models' full layers have heads of another size. */
        KVT_TRY(get_number(config, NAMES("global_head_dim"), 1, &next->head_dim));
        KVT_TRY(get_number(config, NAMES("num_global_key_value_heads"), 1, &next->kv_heads));
        next++;
    }
    if (counts[LAYER_WINDOW] > 0) {
        *next = attention;
        next->kind = KVT_GROUP_WINDOW;
        next->layers = counts[LAYER_WINDOW];
        KVT_TRY(window_of(config, &next->window_tokens));
        next++;
    }
    if (counts[LAYER_STATE] > 0) {
        *next = (struct kvt_group_shape){ .kind = KVT_GROUP_STATE,
                                          .dtype = model->dtype,
                                          .layers = counts[LAYER_STATE] };
        KVT_TRY(state_bytes_of(config, model->dtype, &next->state_bytes));
        next++;
    }
    model->shape.group_count = (uint32_t)(next - model->shape.groups);
    if (model->shape.group_count == 0) return refuse(config, "no layer keeps anything");
    struct kvt_model_shape of_one_token = model->shape;
    of_one_token.block_tokens = 1;
    return kvt_shape_check(&of_one_token, config->ret_error, config->error_bytes);
}

/* Models for more than text keep the language model's part in an object of its own, some inside another one. */
static bool descend(struct config *config)
{
    static const char *const nested[] = { "text_config", "llm_config", "language_config", "thinker_config" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(nested); i++) {
        struct json_object *inner;
        if (json_object_object_get_ex(config->text, nested[i], &inner)
            && json_object_is_type(inner, json_type_object)) {
            config->text = inner;
            return true;
        }
    }
    return false;
}

static enum kvt_status read_model(struct config *config, struct kvt_model *model)
{
    config->text = config->root;
    while (descend(config)) {}
    config->model_type = get_text(config, "model_type");
    if (!config->model_type) config->model_type = "";
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(families); i++) {
        if (strcmp(config->model_type, families[i].model_type) == 0) config->family = families[i];
    }
    if (strcmp(config->model_type, "gemma3") == 0)
        config->family = families[2]; /* a text_config without its own model_type */
    KVT_TRY(require_number(config, NAMES("num_hidden_layers", "n_layer", "n_layers", "num_layers"), &config->layers));
    if (config->layers > LAYERS_MAX)
        return refuse(config, "num_hidden_layers is %u: at most %d", config->layers, LAYERS_MAX);
    KVT_TRY(get_dtype(config, &model->dtype));
    KVT_TRY(find_kinds(config));
    return read_groups(config, model);
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

/* Reads on from *length until the end of the file or until the buffer is full, which it is for no sane config. */
static enum kvt_status read_all(const struct config *config, int fd, char *buffer, size_t *length)
{
    while (*length < CONFIG_BYTES_MAX) {
        const ssize_t got = read(fd, buffer + *length, CONFIG_BYTES_MAX - *length);
        if (got == 0) return KVT_OK;
        if (got > 0) {
            *length += (size_t)got;
        } else if (errno != EINTR) {
            (void)refuse(config, "cannot be read: %s", strerror(errno));
            return KVT_IO;
        }
    }
    return refuse(config, "a config.json is smaller than 1 MiB");
}

/* The text belongs to the caller and is terminated. */
static enum kvt_status read_file(const struct config *config, const char *path, char **ret_text, size_t *ret_length)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        (void)refuse(config, "cannot be read: %s", strerror(errno));
        return KVT_IO;
    }
    char *text = kvt_alloc(1, CONFIG_BYTES_MAX + 1);
    size_t length = 0;
    const enum kvt_status status = text ? read_all(config, fd, text, &length) : KVT_NOMEM;
    (void)close(fd);
    if (status != KVT_OK) {
        kvt_free(text);
        return status;
    }
    *ret_text = text;
    *ret_length = length;
    return KVT_OK;
}

enum kvt_status kvt_model_read_config(const char *path, struct kvt_model *ret_model, char *ret_error,
                                      uint32_t error_bytes)
{
    struct config config = { .ret_error = ret_error, .error_bytes = error_bytes };
    struct kvt_model model = { 0 };
    char *text;
    size_t length;
    KVT_TRY(read_file(&config, path, &text, &length));
    struct json_tokener *tokener = json_tokener_new();
    enum kvt_status status = tokener ? KVT_OK : KVT_NOMEM;
    if (tokener) {
        config.root = json_tokener_parse_ex(tokener, text, (int)length + 1);
        if (json_tokener_get_error(tokener) != json_tokener_success) {
            status = refuse(&config, "byte %zu: %s: not JSON", json_tokener_get_parse_end(tokener),
                            json_tokener_error_desc(json_tokener_get_error(tokener)));
        } else if (!json_object_is_type(config.root, json_type_object)) {
            status = refuse(&config, "a config.json is one JSON object");
        } else {
            status = read_model(&config, &model);
        }
    }
    if (status == KVT_OK) {
        (void)snprintf(model.name, sizeof model.name, "%s",
                       config.model_type && *config.model_type ? config.model_type : "config");
        *ret_model = model;
    }
    (void)json_object_put(config.root);
    if (tokener) json_tokener_free(tokener);
    kvt_free(text);
    return status;
}
