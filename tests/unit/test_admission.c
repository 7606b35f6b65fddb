/* admission: which blocks may be written to nvme. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "policy/shadow.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

static struct kvt_admission *open_admission(const char *name, uint64_t seed)
{
    struct kvt_admission *admission = NULL;
    assert_non_null(kvt_admission_find(name));
    assert_int_equal(kvt_admission_find(name)->create(1 << 20, seed, &admission), KVT_OK);
    return admission;
}

static bool asks(const char *name, struct kvt_admission *admission, uint64_t key_hash)
{
    const struct kvt_admission_question question = { .key_hash = key_hash, .bytes = 4096, .uses = 1 };
    return kvt_admission_find(name)->admits(admission, &question);
}

static void what_a_live_sequence_holds_is_admitted_by_all(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_admission_at(i); i++) {
        struct kvt_admission *admission = open_admission(kvt_admission_at(i)->name, 1);
        for (uint64_t key = 0; key < 1000; key++) {
            const struct kvt_admission_question question = {
                .key_hash = key, .bytes = 1, .uses = 1, .is_referenced = true
            };
            assert_true(kvt_admission_at(i)->admits(admission, &question));
        }
        kvt_admission_at(i)->destroy(admission);
    }
}

static void all_admits_everything(void **state)
{
    (void)state;
    struct kvt_admission *admission = open_admission("all", 1);
    for (uint64_t key = 0; key < 1000; key++) assert_true(asks("all", admission, key));
    kvt_admission_find("all")->destroy(admission);
}

static void second_sight_admits_at_the_second_question(void **state)
{
    (void)state;
    struct kvt_admission *admission = open_admission("second-sight", 1);
    for (uint64_t key = 0; key < 10000; key++) assert_false(asks("second-sight", admission, key));
    for (uint64_t key = 0; key < 10000; key++) assert_true(asks("second-sight", admission, key));
    const struct kvt_admission_question used_twice = { .key_hash = 77777, .bytes = 1, .uses = 2 };
    assert_true(kvt_admission_find("second-sight")->admits(admission, &used_twice));
    kvt_admission_find("second-sight")->destroy(admission);
}

static void to_be_asked_again_is_no_second_sight(void **state)
{
    (void)state;
    struct kvt_admission *admission = open_admission("second-sight", 1);
    const struct kvt_admission_question again = { .key_hash = 1, .bytes = 1, .uses = 1, .is_asked_again = true };
    assert_false(asks("second-sight", admission, 1));
    assert_false(kvt_admission_find("second-sight")->admits(admission, &again));
    assert_true(asks("second-sight", admission, 1));
    kvt_admission_find("second-sight")->destroy(admission);
}

static void second_sight_forgets_in_the_end(void **state)
{
    (void)state;
    struct kvt_admission *admission = open_admission("second-sight", 1);
    uint32_t admitted = 0;
    for (uint64_t key = 0; key < 1000; key++) assert_false(asks("second-sight", admission, key));
    for (uint64_t key = 1000; key < 8000000; key++) admitted += asks("second-sight", admission, key);
    assert_true(admitted < 100); /* two keys of one fingerprint are rare */
    for (uint64_t key = 0; key < 1000; key++) admitted += asks("second-sight", admission, key);
    assert_true(admitted < 100);
    kvt_admission_find("second-sight")->destroy(admission);
}

static void the_same_questions_get_the_same_answers(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_admission_at(i); i++) {
        const char *name = kvt_admission_at(i)->name;
        struct kvt_admission *a = open_admission(name, 5), *b = open_admission(name, 5);
        struct kvt_rng rng = { .state = 9 };
        for (uint32_t n = 0; n < 10000; n++) {
            const uint64_t key = kvt_rng_below(&rng, 5000);
            assert_int_equal(asks(name, a, key), asks(name, b, key));
        }
        kvt_admission_at(i)->destroy(a);
        kvt_admission_at(i)->destroy(b);
    }
}

/* A use of a tier that is an LRU behind the policy. True: the tier had it. */
static bool uses_tier(struct kvt_shadow *tier, const char *name, struct kvt_admission *admission, uint64_t key)
{
    const uint64_t hash = kvt_mix64(key + 1);
    if (kvt_shadow_use(tier, hash, 1, 0) != 0) {
        if (kvt_admission_find(name)->used) kvt_admission_find(name)->used(admission, hash);
        return true;
    }
    const struct kvt_admission_question question = { .key_hash = hash, .bytes = 1, .uses = 1 };
    if (kvt_admission_find(name)->admits(admission, &question)) (void)kvt_shadow_use(tier, hash, 1, 1);
    return false;
}

/*
 * Goal: where keys that never come back push out those that do, adaptive comes to keep them out; where all come back
 *       soon, and once, it never refuses one.
 */
static void adaptive_refuses_first_sights_only_where_it_gains(void **state)
{
    (void)state;
    enum { SLOTS = 1000, USES = 100000 };
    for (uint32_t is_scan = 0; is_scan <= 1; is_scan++) {
        struct kvt_rng rng = { .state = 4 };
        struct kvt_shadow tier;
        struct kvt_admission *admission = NULL;
        uint32_t hits = 0;
        assert_int_equal(kvt_shadow_init(&tier, SLOTS), KVT_OK);
        assert_int_equal(kvt_admission_find("adaptive")->create(SLOTS, 7, &admission), KVT_OK);
        for (uint32_t n = 0; n < USES; n++) {
            /* Scan: two of three never come back, the third is one of 1,500. Else: each comes back once, soon. */
            const uint64_t scan_key = n % 3 < 2 ? 1000000 + n : kvt_rng_below(&rng, 1500);
            const uint64_t key = is_scan ? scan_key : n / 1000 * 500 + n % 500;
            hits += uses_tier(&tier, "adaptive", admission, key) && n >= USES / 2;
        }
        /* All would have a sixth of the popular third, second sight two thirds of it. */
        if (is_scan) assert_true(hits > USES / 2 / 3 * 55 / 100);
        else assert_int_equal(hits, USES / 2 / 2);
        kvt_admission_find("adaptive")->destroy(admission);
        kvt_shadow_done(&tier);
    }
}

static void adaptive_admits_everything_into_a_tier_of_unknown_size(void **state)
{
    (void)state;
    struct kvt_rng rng = { .state = 5 };
    struct kvt_admission *admission = NULL;
    assert_int_equal(kvt_admission_find("adaptive")->create(0, 1, &admission), KVT_OK);
    for (uint32_t n = 0; n < 50000; n++) assert_true(asks("adaptive", admission, kvt_rng_below(&rng, 20000)));
    kvt_admission_find("adaptive")->destroy(admission);
}

static void create_leaves_nothing_behind_when_memory_ends(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_admission_at(i); i++) {
        const uint64_t bytes_before = kvt_table_bytes();
        struct kvt_admission *admission = NULL;
        uint32_t failures = 0;
        for (;;) {
            kvt_alloc_fail_at(failures + 1);
            if (kvt_admission_at(i)->create(1 << 20, 1, &admission) == KVT_OK) break;
            assert_null(admission);
            assert_int_equal(kvt_table_bytes(), bytes_before);
            failures++;
        }
        kvt_alloc_fail_at(0);
        assert_true(failures < 10);
        kvt_admission_at(i)->destroy(admission);
        kvt_admission_at(i)->destroy(NULL);
        assert_int_equal(kvt_table_bytes(), bytes_before);
    }
}

static void admission_policies_are_found_by_name(void **state)
{
    (void)state;
    assert_string_equal(kvt_admission_at(0)->name, "all");
    assert_non_null(kvt_admission_find("second-sight"));
    assert_null(kvt_admission_find("none"));
    assert_null(kvt_admission_at(UINT32_MAX));
    for (uint32_t i = 0; kvt_admission_at(i); i++) {
        assert_ptr_equal(kvt_admission_find(kvt_admission_at(i)->name), kvt_admission_at(i));
    }
}

static bool budget_asks(uint64_t day_bytes, uint32_t uses)
{
    struct kvt_admission *admission = open_admission("budget", 1);
    const struct kvt_admission_question question = {
        .key_hash = 1, .bytes = 10, .uses = uses, .day_bytes = day_bytes, .day_bytes_max = 1000
    };
    return kvt_admission_find("budget")->admits(admission, &question);
}

static void budget_wants_more_uses_the_less_is_left_of_the_day(void **state)
{
    (void)state;
    const struct {
        uint64_t day_bytes;
        uint32_t uses;
    } least[] = { { 0, 1 }, { 499, 1 }, { 500, 2 }, { 749, 2 }, { 750, 3 }, { 874, 3 }, { 875, 4 }, { 990, 4 } };
    for (size_t i = 0; i < sizeof least / sizeof least[0]; i++) {
        assert_true(budget_asks(least[i].day_bytes, least[i].uses));
        assert_false(budget_asks(least[i].day_bytes, least[i].uses - 1));
    }
    assert_false(budget_asks(991, 1000)); /* it would not fit */
    assert_false(budget_asks(1000, 1000));
    assert_false(budget_asks(UINT64_MAX, 1000));
    struct kvt_admission *admission = open_admission("budget", 1);
    assert_true(asks("budget", admission, 1)); /* there is no budget */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget_wants_more_uses_the_less_is_left_of_the_day),
        cmocka_unit_test(what_a_live_sequence_holds_is_admitted_by_all),
        cmocka_unit_test(all_admits_everything),
        cmocka_unit_test(second_sight_admits_at_the_second_question),
        cmocka_unit_test(to_be_asked_again_is_no_second_sight),
        cmocka_unit_test(second_sight_forgets_in_the_end),
        cmocka_unit_test(the_same_questions_get_the_same_answers),
        cmocka_unit_test(adaptive_refuses_first_sights_only_where_it_gains),
        cmocka_unit_test(adaptive_admits_everything_into_a_tier_of_unknown_size),
        cmocka_unit_test(create_leaves_nothing_behind_when_memory_ends),
        cmocka_unit_test(admission_policies_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
