/* prefetch: when idle sequences are said to come back, and that nothing is said that was not learned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/prefetch.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static const struct kvt_prefetcher_ops *ops;
static struct kvt_prefetcher *prefetcher;

static int set_up(void **state)
{
    (void)state;
    ops = kvt_prefetcher_find("session");
    assert_non_null(ops);
    assert_int_equal(ops->create(1, &prefetcher), KVT_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ops->verify(prefetcher);
    ops->destroy(prefetcher);
    return 0;
}

static const struct kvt_prefetch_known tool = { KVT_POLICY_NEXT_TOOL, 7 }, person = { KVT_POLICY_NEXT_PERSON, 7 },
                                       nobody = { KVT_POLICY_NEXT_NOBODY, 7 };

/* Around mean: nine tenths to eleven tenths of it. */
static uint64_t around(struct kvt_rng *rng, uint64_t mean_ns)
{
    return mean_ns - mean_ns / 10 + kvt_rng_below(rng, mean_ns / 5);
}

static void returns(const struct kvt_prefetch_known *known, uint32_t count, uint64_t mean_ns, uint64_t seed)
{
    struct kvt_rng rng = { seed };
    for (uint32_t i = 0; i < count; i++) ops->returned(prefetcher, known, around(&rng, mean_ns));
}

static struct kvt_prefetch_forecast forecast(const struct kvt_prefetch_known *known, uint64_t idle_ns, double share)
{
    struct kvt_prefetch_forecast said;
    ops->forecast(prefetcher, known, idle_ns, share, &said);
    return said;
}

static void nothing_is_said_before_something_was_learned(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 7; i++) {
        assert_true(forecast(&tool, 0, 0.5).wait_ns == UINT64_MAX);
        assert_true(forecast(&tool, 0, 0.5).alive == 0);
        assert_true(ops->within(prefetcher, &tool, 0, UINT64_MAX) == 0);
        ops->returned(prefetcher, &tool, SECOND);
    }
    ops->returned(prefetcher, &tool, SECOND);
    assert_in_range(forecast(&tool, 0, 0.5).wait_ns, SECOND * 8 / 10, SECOND * 12 / 10);
    assert_true(forecast(&tool, 0, 0.5).alive == 1);
}

static void a_bimodal_pause_is_learned_as_two_peaks(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        returns(&tool, 6, 2 * SECOND, i);
        returns(&tool, 4, 100 * SECOND, 1000 + i);
    }
    assert_in_range(forecast(&tool, 0, 0.1).wait_ns, SECOND * 3 / 2, SECOND * 5 / 2);
    assert_in_range(forecast(&tool, 0, 0.5).wait_ns, SECOND * 3 / 2, SECOND * 5 / 2);
    assert_in_range(forecast(&tool, 0, 0.8).wait_ns, 75 * SECOND, 125 * SECOND);
    /* Who did not come at the first peak comes at the second one. */
    const uint64_t left_ns = forecast(&tool, 10 * SECOND, 0.1).wait_ns;
    assert_in_range(left_ns, 65 * SECOND, 100 * SECOND);
    assert_true(ops->within(prefetcher, &tool, 0, 3 * SECOND) > 0.5);
    assert_true(ops->within(prefetcher, &tool, 0, 3 * SECOND) < 0.7);
    assert_true(ops->within(prefetcher, &tool, 10 * SECOND, 40 * SECOND) < 0.01);
    assert_true(ops->within(prefetcher, &tool, 10 * SECOND, 150 * SECOND) > 0.99);
}

static void kinds_are_learned_apart_and_new_ones_begin_with_what_others_did(void **state)
{
    (void)state;
    const struct kvt_prefetch_known first = { KVT_POLICY_NEXT_TOOL, 0 };
    const struct kvt_prefetch_known unknown = { KVT_POLICY_NEXT_UNKNOWN, KVT_POLICY_UNKNOWN };
    returns(&tool, 100, 2 * SECOND, 1);
    returns(&person, 100, 300 * SECOND, 2);
    assert_in_range(forecast(&tool, 0, 0.5).wait_ns, SECOND, 3 * SECOND);
    assert_in_range(forecast(&person, 0, 0.5).wait_ns, 200 * SECOND, 400 * SECOND);
    assert_in_range(forecast(&first, 0, 0.5).wait_ns, SECOND, 3 * SECOND);     /* as later turns that wait for a tool */
    assert_in_range(forecast(&unknown, 0, 0.75).wait_ns, 200 * SECOND, 400 * SECOND); /* as all */
    returns(&first, 100, 30 * SECOND, 3);
    assert_in_range(forecast(&first, 0, 0.5).wait_ns, 20 * SECOND, 40 * SECOND);
    assert_in_range(forecast(&tool, 0, 0.5).wait_ns, SECOND, 3 * SECOND);
}

static void what_was_learned_long_ago_fades(void **state)
{
    (void)state;
    returns(&tool, 5000, 2 * SECOND, 1);
    returns(&tool, 2000, 50 * SECOND, 2);
    assert_in_range(forecast(&tool, 0, 0.3).wait_ns, 40 * SECOND, 60 * SECOND);
    returns(&tool, 6000, 50 * SECOND, 3);
    /* Forgotten altogether: no weight is left at the old peak. */
    assert_true(ops->within(prefetcher, &tool, 0, 10 * SECOND) == 0);
}

static void a_dead_session_is_not_waited_for(void **state)
{
    (void)state;
    returns(&tool, 100, 2 * SECOND, 1);
    returns(&nobody, 100, 2 * SECOND, 2);
    assert_true(forecast(&nobody, 0, 0.5).wait_ns == UINT64_MAX);
    assert_true(forecast(&nobody, 0, 0.5).alive == 0);
    assert_true(ops->within(prefetcher, &nobody, 0, SECOND * 1000) == 0);
    /* Past the longest pause that anybody came back from. */
    assert_true(forecast(&tool, SECOND, 0.5).alive == 1);
    assert_true(forecast(&tool, 10 * SECOND, 0.5).wait_ns == UINT64_MAX);
    assert_true(forecast(&tool, 10 * SECOND, 0.5).alive == 0);
    assert_true(ops->within(prefetcher, &tool, 10 * SECOND, UINT64_MAX) == 0);
    /* Of those that are idle for so long, many ended. */
    for (uint32_t i = 0; i < 300; i++) ops->ended(prefetcher, &person, 600 * SECOND);
    returns(&person, 100, 2 * SECOND, 3);
    assert_true(forecast(&person, 0, 0.5).alive > 0.2);
    assert_true(forecast(&person, 0, 0.5).alive < 0.35);
    assert_true(forecast(&person, 100 * SECOND, 0.5).alive == 0);
}

static void what_is_said_is_never_in_the_past_and_grows_with_the_share(void **state)
{
    (void)state;
    struct kvt_rng rng = { 77 };
    for (uint32_t round = 0; round < 3000; round++) {
        const uint64_t pause_ns = kvt_rng_next(&rng) >> kvt_rng_below(&rng, 64);
        struct kvt_prefetch_known known = { (enum kvt_policy_next)kvt_rng_below(&rng, 4), kvt_rng_below(&rng, 6) };
        if (kvt_rng_below(&rng, 5) == 0) known.turn = KVT_POLICY_UNKNOWN;
        if (kvt_rng_below(&rng, 4) == 0) ops->ended(prefetcher, &known, pause_ns);
        else ops->returned(prefetcher, &known, pause_ns);
        const uint64_t idle_ns = kvt_rng_next(&rng) >> kvt_rng_below(&rng, 64);
        uint64_t before_ns = 0;
        double chance_before = 0;
        for (uint32_t share = 1; share <= 10; share++) {
            const struct kvt_prefetch_forecast said = forecast(&known, idle_ns, share / 10.0);
            assert_true(said.wait_ns >= before_ns);
            assert_true(said.alive >= 0);
            assert_true(said.alive <= 1);
            assert_int_equal(said.wait_ns == UINT64_MAX, said.alive == 0);
            before_ns = said.wait_ns;
            const double chance = ops->within(prefetcher, &known, idle_ns, (UINT64_C(1) << (4 * share)));
            assert_true(chance >= chance_before);
            assert_true(chance <= said.alive + 1e-9);
            chance_before = chance;
        }
        if (round % 64 == 0) ops->verify(prefetcher);
    }
}

static void the_same_calls_give_the_same_answers(void **state)
{
    (void)state;
    struct kvt_prefetcher *twin;
    assert_int_equal(ops->create(2, &twin), KVT_OK);
    struct kvt_rng rng = { 5 };
    for (uint32_t i = 0; i < 2000; i++) {
        const uint64_t idle_ns = kvt_rng_below(&rng, 100 * SECOND);
        ops->returned(prefetcher, &person, idle_ns);
        ops->returned(twin, &person, idle_ns);
        struct kvt_prefetch_forecast said;
        ops->forecast(twin, &person, idle_ns / 2, 0.25, &said);
        assert_true(said.wait_ns == forecast(&person, idle_ns / 2, 0.25).wait_ns);
    }
    ops->destroy(twin);
}

static void a_refused_allocation_is_said_and_leaves_nothing(void **state)
{
    (void)state;
    struct kvt_prefetcher *refused = NULL;
    kvt_alloc_fail_at(1);
    assert_int_equal(ops->create(1, &refused), KVT_NOMEM);
    kvt_alloc_fail_at(0);
    assert_null(refused);
    assert_null(kvt_prefetcher_find("xyz"));
    assert_ptr_equal(kvt_prefetcher_at(0), ops);
    assert_null(kvt_prefetcher_at(99));
}

int main(void)
{
#define ONE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        ONE(nothing_is_said_before_something_was_learned),
        ONE(a_bimodal_pause_is_learned_as_two_peaks),
        ONE(kinds_are_learned_apart_and_new_ones_begin_with_what_others_did),
        ONE(what_was_learned_long_ago_fades),
        ONE(a_dead_session_is_not_waited_for),
        ONE(what_is_said_is_never_in_the_past_and_grows_with_the_share),
        ONE(the_same_calls_give_the_same_answers),
        ONE(a_refused_allocation_is_said_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
