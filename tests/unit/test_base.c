/* base: the small ones. assert, bytes, env, rng and status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/rng.h"
#include "runtime/base/status.h"

/* ---- assert ---- */

static uint32_t failures;
static char failed_expression[64];
static jmp_buf behind_the_assertion;

static void count_failure(int result, const char *expression, const char *file, int line)
{
    assert_int_equal(result, 0);
    assert_non_null(strstr(file, "test_base.c"));
    assert_true(line > 0);
    (void)snprintf(failed_expression, sizeof failed_expression, "%s", expression);
    failures++;
    longjmp(behind_the_assertion, 1);
}

static void a_failing_assertion_reaches_the_hook_with_its_text(void **state)
{
    (void)state;
    failures = 0;
    kvt_check_hook = count_failure;
    KVT_ASSERT(failures < 10);
    assert_int_equal(failures, 0);
    if (setjmp(behind_the_assertion) == 0) KVT_ASSERT(failures == 10);
    kvt_check_hook = NULL;
    assert_int_equal(failures, 1);
    assert_string_equal(failed_expression, "failures == 10");
}

static void an_implication_fails_in_one_case_of_four(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < 2; a++) {
        for (uint32_t b = 0; b < 2; b++) assert_int_equal(KVT_IMPLIES(a, b), !(a == 1 && b == 0));
    }
}

/* ---- bytes ---- */

static void alignment_goes_up_and_never_down(void **state)
{
    (void)state;
    assert_int_equal(kvt_align_up(0, 512), 0);
    assert_int_equal(kvt_align_up(1, 512), 512);
    assert_int_equal(kvt_align_up(512, 512), 512);
    assert_int_equal(kvt_align_up(513, 512), 1024);
    assert_true(kvt_is_aligned(1024, 512));
    assert_false(kvt_is_aligned(1025, 512));
    assert_true(kvt_is_power_of_two(1));
    assert_true(kvt_is_power_of_two((uint64_t)1 << 63));
    assert_false(kvt_is_power_of_two(0));
    assert_false(kvt_is_power_of_two(6));
}

static void a_product_is_exact_or_refused(void **state)
{
    (void)state;
    uint64_t product = 7;
    assert_true(kvt_multiply(UINT32_MAX, UINT32_MAX, &product));
    assert_true(product == (uint64_t)UINT32_MAX * UINT32_MAX);
    assert_true(kvt_multiply(UINT64_MAX, 1, &product));
    assert_true(product == UINT64_MAX);
    product = 7;
    assert_false(kvt_multiply((uint64_t)1 << 32, (uint64_t)1 << 32, &product));
    assert_int_equal(product, 7);
}

static void numbers_are_stored_little_endian_at_any_address(void **state)
{
    (void)state;
    uint8_t bytes[9] = { 0 };
    kvt_store_u64(bytes + 1, 0x0807060504030201u);
    for (uint8_t i = 0; i < 9; i++) assert_int_equal(bytes[i], i);
    assert_true(kvt_load_u64(bytes + 1) == 0x0807060504030201u);
    assert_int_equal(kvt_load_u32(bytes + 1), 0x04030201u);
    assert_int_equal(kvt_load_u16(bytes + 1), 0x0201u);
    kvt_store_u32(bytes + 3, 0xddccbbaau);
    kvt_store_u16(bytes + 7, 0xffeeu);
    const uint8_t want[9] = { 0, 1, 2, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff };
    assert_memory_equal(bytes, want, sizeof want);
}

/* ---- env ---- */

static enum kvt_log_level logged_level;
static char logged_line[1024];

static void keep_line(void *user, enum kvt_log_level level, const char *line)
{
    *(uint32_t *)user += 1;
    logged_level = level;
    (void)snprintf(logged_line, sizeof logged_line, "%s", line);
}

static void a_log_line_is_formatted_bounded_and_handed_on(void **state)
{
    (void)state;
    uint32_t lines = 0;
    const struct kvt_env env = { .log = keep_line, .log_user = &lines };
    kvt_log(&env, KVT_LOG_WARN, "block %d, %s", 7, "serving a miss");
    assert_int_equal(lines, 1);
    assert_int_equal(logged_level, KVT_LOG_WARN);
    assert_string_equal(logged_line, "block 7, serving a miss");

    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    kvt_log(&env, KVT_LOG_INFO, "%s", text);
    assert_true(strlen(logged_line) < 1000);
    assert_memory_equal(logged_line, text, strlen(logged_line));
}

static void the_default_env_is_silent_and_its_time_does_not_go_back(void **state)
{
    (void)state;
    const struct kvt_env env = kvt_env_default();
    kvt_log(&env, KVT_LOG_ERROR, "nobody hears %s", "this");
    const uint64_t before = kvt_env_now_ns(&env);
    assert_true(before > 0);
    assert_true(kvt_env_now_ns(&env) >= before);
    assert_false(env.is_single_threaded);
}

/* ---- rng ---- */

/* The first outputs of SplitMix64 for seed 1234567, as published with its reference implementation. */
static void random_numbers_are_splitmix64(void **state)
{
    (void)state;
    struct kvt_rng rng = { .state = 1234567 };
    assert_true(kvt_rng_next(&rng) == 6457827717110365317u);
    assert_true(kvt_rng_next(&rng) == 3203168211198807973u);
    assert_true(kvt_rng_next(&rng) == 9817491932198370423u);
}

static void bounded_numbers_reach_all_of_their_range_and_nothing_else(void **state)
{
    (void)state;
    struct kvt_rng rng = { .state = 1 };
    uint32_t seen[5] = { 0 };
    for (uint32_t i = 0; i < 1000; i++) {
        const uint64_t number = kvt_rng_below(&rng, 5);
        assert_true(number < 5);
        seen[number]++;
        const double unit = kvt_rng_unit(&rng);
        assert_true(unit >= 0.0);
        assert_true(unit < 1.0);
    }
    for (uint32_t i = 0; i < 5; i++) assert_true(seen[i] > 100);
    assert_int_equal(kvt_rng_below(&rng, 1), 0);
}

/* ---- status ---- */

static void every_status_has_a_text_of_its_own(void **state)
{
    (void)state;
    assert_string_equal(kvt_status_text(KVT_OK), "ok");
    for (int a = KVT_NOTFOUND; a <= KVT_OK; a++) {
        assert_string_not_equal(kvt_status_text((enum kvt_status)a), "unknown status");
        for (int b = KVT_NOTFOUND; b < a; b++)
            assert_string_not_equal(kvt_status_text((enum kvt_status)a), kvt_status_text((enum kvt_status)b));
    }
    assert_string_equal(kvt_status_text((enum kvt_status)1), "unknown status");
}

static enum kvt_status try_and_count(enum kvt_status status, uint32_t *count)
{
    KVT_TRY(status);
    *count += 1;
    return KVT_OK;
}

static void try_leaves_with_the_status_and_goes_on_after_ok(void **state)
{
    (void)state;
    uint32_t count = 0;
    assert_int_equal(try_and_count(KVT_IO, &count), KVT_IO);
    assert_int_equal(count, 0);
    assert_int_equal(try_and_count(KVT_OK, &count), KVT_OK);
    assert_int_equal(count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_assertion_reaches_the_hook_with_its_text),
        cmocka_unit_test(an_implication_fails_in_one_case_of_four),
        cmocka_unit_test(alignment_goes_up_and_never_down),
        cmocka_unit_test(a_product_is_exact_or_refused),
        cmocka_unit_test(numbers_are_stored_little_endian_at_any_address),
        cmocka_unit_test(a_log_line_is_formatted_bounded_and_handed_on),
        cmocka_unit_test(the_default_env_is_silent_and_its_time_does_not_go_back),
        cmocka_unit_test(random_numbers_are_splitmix64),
        cmocka_unit_test(bounded_numbers_reach_all_of_their_range_and_nothing_else),
        cmocka_unit_test(every_status_has_a_text_of_its_own),
        cmocka_unit_test(try_leaves_with_the_status_and_goes_on_after_ok),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
