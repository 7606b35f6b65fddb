/* shape: the memory formula, by the numbers of well-known models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kvtier/shape.h"

static const struct kvt_group_shape llama_70b = {
    .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_FP16, .layers = 80, .kv_heads = 8, .head_dim = 128
};

static void bytes_of_a_token_follow_the_formula(void **state)
{
    (void)state;
    assert_int_equal(kvt_group_bytes_per_token(&llama_70b), 327680);
    assert_int_equal(kvt_group_bytes_kept(&llama_70b, 4096), 1342177280);
    assert_int_equal(kvt_group_block_bytes(&llama_70b, 16), 327680 * 16);
}

static void a_window_group_keeps_its_window(void **state)
{
    (void)state;
    const struct kvt_group_shape window = { .kind = KVT_GROUP_WINDOW,
                                            .dtype = KVT_DTYPE_BF16,
                                            .layers = 52,
                                            .kv_heads = 16,
                                            .head_dim = 128,
                                            .window_tokens = 1024 };
    assert_int_equal(kvt_group_bytes_kept(&window, 32768), 436207616);
    assert_int_equal(kvt_group_bytes_kept(&window, 1000), kvt_group_bytes_per_token(&window) * 1000);
    assert_int_equal(kvt_group_blocks_kept(&window, 16, 32768), 64);
    assert_int_equal(kvt_group_blocks_kept(&window, 16, 32767), 65); /* the window's first block is cut */
}

static void a_state_group_keeps_one_snapshot(void **state)
{
    (void)state;
    const struct kvt_group_shape mamba = {
        .kind = KVT_GROUP_STATE, .dtype = KVT_DTYPE_FP32, .layers = 3, .state_bytes = 100
    };
    assert_int_equal(kvt_group_bytes_per_token(&mamba), 0);
    assert_int_equal(kvt_group_bytes_kept(&mamba, 1), 300);
    assert_int_equal(kvt_group_bytes_kept(&mamba, 1000000), 300);
    assert_int_equal(kvt_group_blocks_kept(&mamba, 16, 0), 0);
}

static void impossible_shapes_are_refused_with_field_value_and_rule(void **state)
{
    (void)state;
    char error[128];
    struct kvt_model_shape shape = { .block_tokens = 16, .group_count = 1, .groups = { llama_70b } };
    assert_int_equal(kvt_shape_check(&shape, error, sizeof error), KVT_OK);
    shape.block_tokens = 0;
    assert_int_equal(kvt_shape_check(&shape, error, sizeof error), KVT_INVAL);
    assert_string_equal(error, "block_tokens is 0: 1 to 65535");
    shape.block_tokens = 16;
    shape.groups[0].head_dim = UINT32_MAX;
    shape.groups[0].kv_heads = UINT32_MAX;
    assert_int_equal(kvt_shape_check(&shape, error, sizeof error), KVT_INVAL);
    assert_non_null(strstr(error, "must fit in 64 bits"));
    shape.groups[0] = llama_70b;
    shape.groups[0].kind = KVT_GROUP_WINDOW;
    assert_int_equal(kvt_shape_check(&shape, NULL, 0), KVT_INVAL);
}

static void what_is_no_type_has_no_bytes_and_no_name(void **state)
{
    (void)state;
    assert_int_equal(kvt_dtype_bytes((enum kvt_dtype)9), 0);
    assert_string_equal(kvt_dtype_name((enum kvt_dtype)-1), "?");
    assert_int_equal(kvt_group_blocks_kept(&llama_70b, 0, 100), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_a_token_follow_the_formula),
        cmocka_unit_test(a_window_group_keeps_its_window),
        cmocka_unit_test(a_state_group_keeps_one_snapshot),
        cmocka_unit_test(impossible_shapes_are_refused_with_field_value_and_rule),
        cmocka_unit_test(what_is_no_type_has_no_bytes_and_no_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
