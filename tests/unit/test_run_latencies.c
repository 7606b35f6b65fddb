/* Times to the first token, and between tokens: what a percentile of a few turns is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <json-c/json.h>

#include "runtime/base/bytes.h"
#include "tools/nearest_rank.h"
#include "tools/run/latencies.h"

#define MS UINT64_C(1000000)

/* So many turns that waited 1, 2, 3, ... ms for their first token and as long for the next one, the longest first. */
static void turns(struct kvt_latencies *latencies, uint32_t count)
{
    assert_int_equal(kvt_latencies_init(latencies, count), KVT_OK);
    for (uint64_t i = count; i > 0; i--) {
        const struct kvt_turn turn = {
            .due_ns = 5 * MS, .begun_ns = 5 * MS, .first_ns = (5 + i) * MS, .ended_ns = (5 + 2 * i) * MS, .generated = 2
        };
        latencies->watch.on_turn(latencies->watch.user, &turn);
    }
    kvt_latencies_sort(latencies);
}

/* Goal: a percentile is the smallest value with at least that share of the values at or below it, however few there are. */
static void a_percentile_is_the_nearest_rank(void **state)
{
    (void)state;
    static const struct {
        uint32_t count, p50, p90, p99;
    } cases[] = {
        { 1, 1, 1, 1 }, { 2, 1, 2, 2 }, { 3, 2, 3, 3 }, { 4, 2, 4, 4 }, { 10, 5, 9, 10 }, { 11, 6, 10, 11 },
        { 100, 50, 90, 99 }, { 101, 51, 91, 100 }, { 1000, 500, 900, 990 },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(cases); i++) {
        struct kvt_latencies latencies;
        turns(&latencies, cases[i].count);
        static const double quantiles[] = { 0.5, 0.9, 0.99, 1 };
        const uint32_t wanted[] = { cases[i].p50, cases[i].p90, cases[i].p99, cases[i].count };
        for (size_t q = 0; q < KVT_ARRAY_COUNT(quantiles); q++) {
            assert_int_equal((uint32_t)(kvt_latencies_first_ms(&latencies, quantiles[q]) + 0.5), wanted[q]);
            assert_int_equal((uint32_t)(kvt_latencies_token_ms(&latencies, quantiles[q]) + 0.5), wanted[q]);
        }
        kvt_latencies_done(&latencies);
    }
}

/* Goal: every rank is what counting says, also where the share of the count is a whole number only without rounding. */
static void a_rank_is_what_counting_says(void **state)
{
    (void)state;
    for (uint32_t percent = 1; percent <= 100; percent++) {
        for (uint32_t count = 1; count <= 400; count++) {
            uint32_t at = 0;
            while ((at + 1) * 100 < percent * count) at++; /* at + 1 values are at or below the one at `at` */
            assert_int_equal(kvt_nearest_rank(count, percent / 100.0), at);
        }
    }
    assert_int_equal(kvt_nearest_rank(UINT32_MAX, 1), UINT32_MAX - 1);
}

/* Goal: a report of two turns has the slower one as its p90 and p99; one of none has zeros. */
static void the_report_says_the_same(void **state)
{
    (void)state;
    for (uint32_t count = 0; count < 3; count += 2) {
        struct kvt_latencies latencies;
        turns(&latencies, count);
        struct json_object *object = json_object_new_object(), *inner, *value;
        kvt_latencies_put(&latencies, object);
        static const char *const names[] = { "p50", "p90", "p99", "max" };
        assert_true(json_object_object_get_ex(object, "first_token_ms", &inner));
        for (size_t i = 0; i < KVT_ARRAY_COUNT(names); i++) {
            assert_true(json_object_object_get_ex(inner, names[i], &value));
            const uint32_t wanted = count == 0 ? 0 : i == 0 ? 1 : 2;
            assert_int_equal((uint32_t)(json_object_get_double(value) + 0.5), wanted);
        }
        (void)json_object_put(object);
        kvt_latencies_done(&latencies);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_percentile_is_the_nearest_rank),
        cmocka_unit_test(a_rank_is_what_counting_says),
        cmocka_unit_test(the_report_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
