/* models: the same model by name, by shape and by config.json is the same KV, and what is wrong is said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tools/models.h"

/* The config under test: a file in memory. */
static int config_fd;
static char config_path[64];

static int set_up(void **state)
{
    (void)state;
    config_fd = memfd_create("config", MFD_CLOEXEC);
    (void)snprintf(config_path, sizeof config_path, "/proc/self/fd/%d", config_fd);
    return config_fd < 0;
}

static int tear_down(void **state)
{
    (void)state;
    return close(config_fd);
}

static void write_config(const char *text)
{
    assert_int_equal(ftruncate(config_fd, 0), 0);
    assert_int_equal(pwrite(config_fd, text, strlen(text), 0), strlen(text));
}

static struct kvt_model find(const char *name)
{
    struct kvt_model model;
    assert_int_equal(kvt_model_find(name, &model, NULL, 0), KVT_OK);
    return model;
}

static struct kvt_model read_config(const char *text)
{
    struct kvt_model model;
    char error[256] = "";
    write_config(text);
    if (kvt_model_read_config(config_path, &model, error, sizeof error) != KVT_OK) fail_msg("%s", error);
    return model;
}

static struct kvt_model parse(const char *text)
{
    struct kvt_model model;
    char error[256] = "";
    if (kvt_model_parse_shape(text, &model, error, sizeof error) != KVT_OK) fail_msg("%s: %s", text, error);
    return model;
}

static void assert_same_kv(const struct kvt_model *a, const struct kvt_model *b)
{
    assert_int_equal(a->shape.group_count, b->shape.group_count);
    for (uint32_t g = 0; g < a->shape.group_count; g++) {
        const struct kvt_group_shape *x = &a->shape.groups[g], *y = &b->shape.groups[g];
        assert_int_equal(x->kind, y->kind);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->layers, y->layers);
        assert_int_equal(x->planes, y->planes);
        assert_int_equal(x->kv_heads, y->kv_heads);
        assert_int_equal(x->head_dim, y->head_dim);
        assert_int_equal(x->window_tokens, y->window_tokens);
        assert_int_equal(x->sink_tokens, y->sink_tokens);
        assert_int_equal(x->state_bytes, y->state_bytes);
    }
}

static uint64_t bytes_kept(const struct kvt_model *model, uint64_t tokens)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < model->shape.group_count; g++)
        bytes += kvt_group_bytes_kept(&model->shape.groups[g], tokens);
    return bytes;
}

static void named_models_keep_what_their_configs_say(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t at_1, at_32768;
    } wanted[] = { { "Llama-3-8B", 131072, 4294967296 }, { "llama-3-70b", 327680, 10737418240 },
                   { "qwen2.5-7b", 57344, 1879048192 },  { "qwen2.5-72b", 327680, 10737418240 },
                   { "gemma-3-270m", 18432, 108527616 }, { "gemma-3-27b", 507904, 3120562176 },
                   { "gpt-oss-20b", 49152, 808452096 },  { "qwen3-next-80b", 77291520, 882573312 },
                   { "deepseek-v3", 70272, 2302672896 } };
    const char *names = kvt_model_names();
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(wanted); i++) {
        const struct kvt_model model = find(wanted[i].name);
        assert_non_null(strstr(names, model.name));
        assert_int_equal(bytes_kept(&model, 1), wanted[i].at_1);
        assert_int_equal(bytes_kept(&model, 32768), wanted[i].at_32768);
    }
    struct kvt_model model;
    char error[256];
    assert_int_equal(kvt_model_find("llama-3", &model, error, sizeof error), KVT_INVAL);
    assert_non_null(strstr(error, "one of llama-3-8b, "));
}

static void a_shape_says_its_groups(void **state)
{
    (void)state;
    struct kvt_model gemma = parse(
        "layers=10,kv_heads=16,head_dim=128,dtype=bf16+layers=52,kv_heads=16,head_dim=128,dtype=bf16,window=1024");
    struct kvt_model named = find("gemma-3-27b");
    assert_same_kv(&gemma, &named);
    assert_int_equal(gemma.attention_heads, 16);
    struct kvt_model next = parse(
        "dtype=bf16,layers=12,kv_heads=2,head_dim=256+kind=state,layers=36,state_bytes=2146304");
    named = find("qwen3-next-80b");
    assert_same_kv(&next, &named);
    struct kvt_model implied = parse(
        "layers=12,kv_heads=2,head_dim=256,dtype=bf16,kind=full+layers=36,state_bytes=2146304");
    assert_same_kv(&implied, &next);
    struct kvt_model mla = parse("layers=61,kv_heads=1,head_dim=576,dtype=bf16,planes=1");
    named = find("deepseek-v3");
    assert_same_kv(&mla, &named);
    struct kvt_model sinks = parse("layers=1,kv_heads=1,head_dim=64,dtype=fp8,kind=window,window=128,sinks=4");
    assert_int_equal(sinks.shape.groups[0].sink_tokens, 4);
    assert_int_equal(sinks.dtype, KVT_DTYPE_FP8);
}

static void a_bad_shape_is_refused_by_key_value_and_rule(void **state)
{
    (void)state;
#define GROUP "layers=1,kv_heads=1,head_dim=64,dtype=bf16"
    static const struct {
        const char *text, *error;
    } bad[] = {
        { "", "'': a shape is key=value,key=value,.." },
        { "layers", "'layers': a shape is key=value,key=value,.." },
        { GROUP ",", "'': a shape is key=value,key=value,.." },
        { GROUP "+", "'': a shape is key=value,key=value,.." },
        { "layer=1",
          "'layer': the keys are layers, kv_heads, head_dim, dtype, kind, window, sinks, planes, state_bytes" },
        { " layers=1",
          "' layers': the keys are layers, kv_heads, head_dim, dtype, kind, window, sinks, planes, state_bytes" },
        { "layers=1,layers=2", "layers is there twice" },
        { "layers=", "layers has no value" },
        { "layers=0", "layers is '0': a whole number, 1 to 4294967295" },
        { "layers=-2", "layers is '-2': a whole number, 1 to 4294967295" },
        { "layers=2x", "layers is '2x': a whole number, 1 to 4294967295" },
        { "layers=4294967296", "layers is '4294967296': a whole number, 1 to 4294967295" },
        { "layers=1=2", "layers is '1=2': a whole number, 1 to 4294967295" },
        { "dtype=bfloat16", "dtype is 'bfloat16': bf16, fp16, fp8, fp32 or int8" },
        { "kind=half", "kind is 'half': full, window or state" },
        { "layers=1,kv_heads=1,head_dim=64", "dtype is missing: a full group needs it" },
        { GROUP ",kind=window", "window is missing: a window group needs it" },
        { GROUP ",kind=full,window=5", "window is there: a full group has none" },
        { GROUP ",sinks=5", "sinks is there: a full group has none" },
        { "layers=1,kind=state", "state_bytes is missing: a state group needs it" },
        { "layers=1,state_bytes=5,head_dim=3", "head_dim is there: a state group has none" },
        { GROUP ",planes=3", "planes is 3: 1 or 2" },
        { GROUP "+" GROUP "+" GROUP "+" GROUP "+" GROUP, "at most 4 groups" },
        { "layers=4294967295,kv_heads=4294967295,head_dim=4294967295,dtype=bf16",
          "block bytes is 18446744073709551615: the product must fit in 64 bits" },
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(bad); i++) {
        struct kvt_model model = { .name = "untouched" };
        char error[256] = "";
        assert_int_equal(kvt_model_parse_shape(bad[i].text, &model, error, sizeof error), KVT_INVAL);
        assert_string_equal(error, bad[i].error);
        assert_string_equal(model.name, "untouched");
    }
#undef GROUP
    char text[1200];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct kvt_model model;
    assert_int_equal(kvt_model_parse_shape(text, &model, NULL, 0), KVT_INVAL);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static void configs_of_the_named_models_give_the_named_models(void **state)
{
    (void)state;
    static const struct {
        const char *name, *config;
    } cases[] = {
        { "llama-3-8b",
          "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_attention_heads\":32,\"num_hidden_layers\":32,"
          "\"num_key_value_heads\":8,\"torch_dtype\":\"bfloat16\"}" },
        { "qwen2.5-7b",
          "{\"model_type\":\"qwen2\",\"hidden_size\":3584,\"num_attention_heads\":28,\"num_hidden_layers\":28,"
          "\"num_key_value_heads\":4,\"torch_dtype\":\"bfloat16\",\"max_window_layers\":28,\"sliding_window\":131072,"
          "\"use_sliding_window\":false}" },
        { "gemma-3-27b",
          "{\"model_type\":\"gemma3\",\"torch_dtype\":\"bfloat16\",\"text_config\":{\"model_type\":\"gemma3_text\","
          "\"head_dim\":128,\"hidden_size\":5376,\"num_attention_heads\":32,\"num_hidden_layers\":62,\"num_key_value_"
          "heads\":16,"
          "\"sliding_window\":1024},\"vision_config\":{\"num_hidden_layers\":27}}" },
        { "gemma-3-270m",
          "{\"model_type\":\"gemma3_text\",\"_sliding_window_pattern\":6,\"head_dim\":256,\"hidden_size\":640,"
          "\"num_attention_heads\":4,\"num_hidden_layers\":18,\"num_key_value_heads\":1,\"sliding_window\":512,"
          "\"dtype\":\"bfloat16\","
          "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
          "\"sliding_attention\","
          "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
          "\"sliding_attention\","
          "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
          "\"sliding_attention\","
          "\"full_attention\"]}" },
        { "gpt-oss-20b",
          "{\"model_type\":\"gpt_oss\",\"head_dim\":64,\"hidden_size\":2880,\"num_attention_heads\":64,"
          "\"num_hidden_layers\":24,\"num_key_value_heads\":8,\"sliding_window\":128}" },
        { "qwen3-next-80b",
          "{\"model_type\":\"qwen3_next\",\"head_dim\":256,\"hidden_size\":2048,\"num_attention_heads\":16,"
          "\"num_hidden_layers\":48,\"num_key_value_heads\":2,\"full_attention_interval\":4,\"linear_conv_kernel_dim\":"
          "4,"
          "\"linear_key_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"linear_value_head_"
          "dim\":128,"
          "\"torch_dtype\":\"bfloat16\"}" },
        { "deepseek-v3",
          "{\"model_type\":\"deepseek_v3\",\"hidden_size\":7168,\"kv_lora_rank\":512,\"q_lora_rank\":1536,"
          "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"num_attention_heads\":128,\"num_"
          "hidden_layers\":61,"
          "\"num_key_value_heads\":128,\"torch_dtype\":\"bfloat16\"}" },
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(cases); i++) {
        const struct kvt_model by_name = find(cases[i].name), by_config = read_config(cases[i].config);
        assert_same_kv(&by_config, &by_name);
        assert_int_equal(by_config.attention_heads, by_name.attention_heads);
    }
}

#define SMALL "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"hidden_size\":64"

static void every_way_of_saying_which_layers_is_understood(void **state)
{
    (void)state;
    static const struct {
        const char *config, *shape;
    } cases[] = {
        { "{" SMALL "}", "layers=4,kv_heads=4,head_dim=16,dtype=bf16" },
        { "{" SMALL ",\"torch_dtype\":\"float16\",\"sliding_window\":null}",
          "layers=4,kv_heads=4,head_dim=16,dtype=fp16" },
        { "{\"model_type\":\"mistral\",\"num_key_value_heads\":2,\"sliding_window\":99," SMALL "}",
          "layers=4,kv_heads=2,head_dim=16,dtype=bf16,window=99" },
        { "{\"model_type\":\"mistral\",\"num_key_value_heads\":2,\"sliding_window\":null," SMALL "}",
          "layers=4,kv_heads=2,head_dim=16,dtype=bf16" },
        { "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":99,\"max_window_layers\":3," SMALL
          "}",
          "layers=3,kv_heads=4,head_dim=16,dtype=bf16+layers=1,kv_heads=4,head_dim=16,dtype=bf16,window=99" },
        { "{\"model_type\":\"qwen2\",\"sliding_window\":99,\"max_window_layers\":3," SMALL "}",
          "layers=4,kv_heads=4,head_dim=16,dtype=bf16" },
        { "{\"sliding_window\":99,\"sliding_window_pattern\":2," SMALL "}",
          "layers=2,kv_heads=4,head_dim=16,dtype=bf16+layers=2,kv_heads=4,head_dim=16,dtype=bf16,window=99" },
        { "{\"attention_chunk_size\":50,\"layer_types\":[\"chunked_attention\",\"chunked_attention\",\"chunked_"
          "attention\",\"full_attention\"]," SMALL "}",
          "layers=1,kv_heads=4,head_dim=16,dtype=bf16+layers=3,kv_heads=4,head_dim=16,dtype=bf16,window=50" },
        { "{\"model_type\":\"jamba\",\"attn_layer_period\":4,\"attn_layer_offset\":1,\"mamba_expand\":2,\"mamba_d_"
          "state\":16,\"mamba_d_conv\":4," SMALL "}",
          "layers=1,kv_heads=4,head_dim=16,dtype=bf16+layers=3,state_bytes=8960" }, /* 128 * 16 * 4 + 3 * 128 * 2 */
        { "{\"hybrid_override_pattern\":\"M-*M\",\"mamba_num_heads\":8,\"mamba_head_dim\":4,\"ssm_state_size\":16,"
          "\"conv_kernel\":4,\"n_groups\":2," SMALL "}",
          "layers=1,kv_heads=4,head_dim=16,dtype=bf16+layers=2,state_bytes=2624" }, /* 512 * 4 + 3 * (32 + 64) * 2 */
        { "{\"layers_block_type\":[\"mamba\",\"mamba\",\"mamba\",\"attention\"],\"mamba_ssm_dtype\":\"bfloat16\","
          "\"mamba_n_heads\":8,\"mamba_d_head\":4,"
          "\"mamba_d_state\":16,\"mamba_d_conv\":4,\"mamba_n_groups\":2," SMALL "}",
          "layers=1,kv_heads=4,head_dim=16,dtype=bf16+layers=3,state_bytes=1600" },
        { "{\"num_kv_shared_layers\":1," SMALL "}", "layers=3,kv_heads=4,head_dim=16,dtype=bf16" },
        { "{\"thinker_config\":{\"text_config\":{" SMALL "}}}", "layers=4,kv_heads=4,head_dim=16,dtype=bf16" },
        { "{\"n_layer\":12,\"n_head\":12,\"n_embd\":768}", "layers=12,kv_heads=12,head_dim=64,dtype=bf16" },
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(cases); i++) {
        const struct kvt_model by_config = read_config(cases[i].config), by_shape = parse(cases[i].shape);
        assert_same_kv(&by_config, &by_shape);
    }
}

static void a_bad_config_is_refused_by_field_value_and_rule(void **state)
{
    (void)state;
    static const struct {
        const char *config, *error;
    } bad[] = {
        { "", "byte 0: unexpected end of data: not JSON" },
        { "[]", "a config.json is one JSON object" },
        { "null", "a config.json is one JSON object" },
        { "{\"num_hidden_layers\":4", "byte 22: unexpected end of data: not JSON" },
        { "{}", "num_hidden_layers is missing" },
        { "{\"num_hidden_layers\":0}", "num_hidden_layers is 0: a whole number, 1 to 2147483647" },
        { "{\"num_hidden_layers\":\"4\"}", "num_hidden_layers is \"4\": a whole number, 1 to 2147483647" },
        { "{\"num_hidden_layers\":99999}", "num_hidden_layers is 99999: at most 4096" },
        { "{\"num_hidden_layers\":4}", "num_attention_heads is missing" },
        { "{\"num_hidden_layers\":4,\"num_attention_heads\":4}",
          "head_dim is missing, and hidden_size to reckon it from" },
        { "{\"num_hidden_layers\":4,\"num_attention_heads\":3,\"hidden_size\":64}",
          "hidden_size is 64: a multiple of num_attention_heads, 3, when there is no head_dim" },
        { "{\"torch_dtype\":\"int4\"," SMALL "}",
          "torch_dtype is 'int4': bfloat16, float16, float32 or float8_e4m3fn" },
        { "{\"sliding_window\":-1," SMALL "}", "sliding_window is -1: a whole number, 1 to 2147483647" },
        { "{\"sliding_window\":99," SMALL "}",
          "sliding_window is 99: layer_types, sliding_window_pattern or max_window_layers must say which layers have "
          "it" },
        { "{\"layer_types\":[\"full_attention\"]," SMALL "}", "layer_types has 1 entries: num_hidden_layers is 4" },
        { "{\"layer_types\":3," SMALL "}", "layer_types is no list" },
        { "{\"layer_types\":[\"a\",\"b\",null,4]," SMALL "}",
          "layer_types has 'a': no kind of layer that is known here" },
        { "{\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]," SMALL
          "}",
          "sliding_window is missing: some layers have one" },
        { "{\"layer_types\":[\"mamba\",\"mamba\",\"mamba\",\"mamba\"]," SMALL "}", "mamba_expand is missing" },
        { "{\"hybrid_override_pattern\":\"MM?*\"," SMALL "}", "hybrid_override_pattern has '?': M, *, - or E" },
        { "{\"hybrid_override_pattern\":\"----\"," SMALL "}", "no layer keeps anything" },
        { "{\"kv_lora_rank\":512," SMALL "}", "qk_rope_head_dim is missing" },
        { "{\"num_kv_shared_layers\":4," SMALL "}", "num_kv_shared_layers is 4: below num_hidden_layers" },
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(bad); i++) {
        struct kvt_model model = { .name = "untouched" };
        char error[256] = "";
        write_config(bad[i].config);
        assert_int_equal(kvt_model_read_config(config_path, &model, error, sizeof error), KVT_INVAL);
        assert_string_equal(error, bad[i].error);
        assert_string_equal(model.name, "untouched");
    }
    struct kvt_model model;
    char error[256] = "";
    assert_int_equal(kvt_model_read_config("/nonexistent", &model, error, sizeof error), KVT_IO);
    assert_string_equal(error, "cannot be read: No such file or directory");
    assert_int_equal(kvt_model_read_config("/tmp", &model, error, sizeof error), KVT_IO);
    assert_string_equal(error, "cannot be read: Is a directory");
}

static void a_mangled_shape_or_config_never_gives_an_impossible_shape(void **state)
{
    (void)state;
    static const char shape[] =
        "layers=2,kv_heads=1,head_dim=64,dtype=bf16+layers=2,kv_heads=1,head_dim=64,dtype=bf16,window=1024";
    static const char config[] = "{\"sliding_window\":99,\"sliding_window_pattern\":2,\"layer_types\":null," SMALL "}";
    static const char letters[] = "0123456789,=+\"{}[]:-.abelnrstu_";
    struct kvt_rng rng = { 5 };
    for (uint32_t i = 0; i < 3000; i++) {
        char text[sizeof shape > sizeof config ? sizeof shape : sizeof config];
        const bool is_shape = i % 4 != 0;
        const size_t length = is_shape ? sizeof shape - 1 : sizeof config - 1;
        memcpy(text, is_shape ? shape : config, length + 1);
        const uint64_t changes = 1 + kvt_rng_below(&rng, 3);
        for (uint64_t c = 0; c < changes; c++)
            text[kvt_rng_below(&rng, length)] = letters[kvt_rng_below(&rng, sizeof letters - 1)];
        struct kvt_model model;
        char error[256] = "";
        if (!is_shape) write_config(text);
        const enum kvt_status status = is_shape ? kvt_model_parse_shape(text, &model, error, sizeof error)
                                                : kvt_model_read_config(config_path, &model, error, sizeof error);
        if (status == KVT_OK) {
            model.shape.block_tokens = 1;
            assert_int_equal(kvt_shape_check(&model.shape, NULL, 0), KVT_OK);
        } else {
            assert_int_equal(status, KVT_INVAL);
            assert_true(strlen(error) > 0);
        }
    }
}

static void a_dtype_is_set_for_every_group(void **state)
{
    (void)state;
    struct kvt_model model = find("gemma-3-27b");
    kvt_model_set_dtype(&model, KVT_DTYPE_FP8);
    assert_int_equal(bytes_kept(&model, 32768), 3120562176 / 2);
    assert_int_equal(model.dtype, KVT_DTYPE_BF16); /* what it computes in stays */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_models_keep_what_their_configs_say),
        cmocka_unit_test(a_shape_says_its_groups),
        cmocka_unit_test(a_bad_shape_is_refused_by_key_value_and_rule),
        cmocka_unit_test(configs_of_the_named_models_give_the_named_models),
        cmocka_unit_test(every_way_of_saying_which_layers_is_understood),
        cmocka_unit_test(a_bad_config_is_refused_by_field_value_and_rule),
        cmocka_unit_test(a_mangled_shape_or_config_never_gives_an_impossible_shape),
        cmocka_unit_test(a_dtype_is_set_for_every_group),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
