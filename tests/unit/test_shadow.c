/* shadow: two LRU orders over one table of keys, held against plain ones; and what a sample of a large tier says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/shadow.h"
#include "runtime/base/bytes.h"
#include "runtime/base/rng.h"

enum { NAIVE_MAX = 64 };

/* An LRU of keys and bytes as anyone would write it: the warmest is last. */
struct naive {
    uint64_t keys[NAIVE_MAX];
    uint32_t bytes[NAIVE_MAX], count;
};

static uint32_t naive_find(const struct naive *naive, uint64_t key)
{
    uint32_t i = 0;
    while (i < naive->count && naive->keys[i] != key) i++;
    return i;
}

static void naive_remove(struct naive *naive, uint32_t i)
{
    naive->count--;
    memmove(&naive->keys[i], &naive->keys[i + 1], (naive->count - i) * sizeof naive->keys[0]);
    memmove(&naive->bytes[i], &naive->bytes[i + 1], (naive->count - i) * sizeof naive->bytes[0]);
}

static uint64_t naive_bytes(const struct naive *naive)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < naive->count; i++) bytes += naive->bytes[i];
    return bytes;
}

static bool naive_use(struct naive *naive, uint64_t key, uint32_t bytes, bool is_admitted, uint64_t bytes_max)
{
    const uint32_t at = naive_find(naive, key);
    const bool is_hit = at < naive->count;
    if (!is_hit && !is_admitted) return false;
    if (is_hit) naive_remove(naive, at);
    while (naive_bytes(naive) + bytes > bytes_max) naive_remove(naive, 0);
    naive->keys[naive->count] = key;
    naive->bytes[naive->count++] = bytes;
    return is_hit;
}

/* Goal: whoever admits what, each side has at each use exactly what a plain LRU of its bytes has. */
static void each_side_is_an_lru_of_the_tiers_bytes(void **state)
{
    (void)state;
    struct kvt_rng rng = { .state = 3 };
    for (uint32_t round = 0; round < 20; round++) {
        const uint64_t tier_bytes = 1 + kvt_rng_below(&rng, 50);
        struct kvt_shadow shadow;
        struct naive naive[KVT_SHADOW_SIDES] = { 0 };
        assert_int_equal(kvt_shadow_init(&shadow, tier_bytes), KVT_OK);
        for (uint32_t n = 0; n < 3000; n++) {
            const uint64_t key = kvt_mix64(1 + kvt_rng_below(&rng, 80));
            const uint32_t bytes = 1 + (uint32_t)(key % 5); /* a key keeps its size */
            const uint32_t admitting = 1u | (uint32_t)kvt_rng_below(&rng, 2) << 1;
            assert_int_equal(kvt_shadow_has_sampled(&shadow, key, bytes), bytes <= tier_bytes);
            if (bytes > tier_bytes) continue;
            const uint32_t had = kvt_shadow_use(&shadow, key, bytes, admitting);
            for (uint32_t s = 0; s < KVT_SHADOW_SIDES; s++)
                assert_int_equal(had >> s & 1, naive_use(&naive[s], key, bytes, admitting >> s & 1, tier_bytes));
            kvt_shadow_verify(&shadow);
        }
        kvt_shadow_done(&shadow);
    }
}

/* Goal: keys that both sides hold, or one, or none any more, never need more entries than there are. */
static void a_full_shadow_gives_its_entries_again(void **state)
{
    (void)state;
    struct kvt_shadow shadow;
    assert_int_equal(kvt_shadow_init(&shadow, KVT_SHADOW_KEYS_MAX), KVT_OK);
    for (uint64_t n = 0; n < 6 * KVT_SHADOW_KEYS_MAX; n++) {
        /* The first side sees all keys once, the second holds old ones: together they fill the table. */
        const uint32_t admitting = n < KVT_SHADOW_KEYS_MAX ? 2 : 1;
        (void)kvt_shadow_use(&shadow, kvt_mix64(n + 1), 1, admitting);
    }
    assert_int_equal(shadow.sides[0].count, KVT_SHADOW_KEYS_MAX);
    assert_int_equal(shadow.sides[1].count, KVT_SHADOW_KEYS_MAX);
    assert_true(shadow.sides[0].is_full);
    assert_false(shadow.sides[1].is_full);
    kvt_shadow_verify(&shadow);
    kvt_shadow_done(&shadow);
}

/* Goal: of a tier of 4 million blocks the sample has the share of hits that an LRU of all would have, within a point. */
static void a_sample_of_a_large_tier_has_its_share_of_hits(void **state)
{
    (void)state;
    const uint64_t slots = UINT64_C(1) << 22;
    struct kvt_rng rng = { .state = 8 };
    struct kvt_shadow shadow;
    uint64_t uses = 0, hits = 0;
    assert_int_equal(kvt_shadow_init(&shadow, slots * 100), KVT_OK);
    /* Keys at random out of twice the slots: an LRU holds half of them once it is full. */
    for (uint64_t n = 0; n < 8 * slots; n++) {
        const uint64_t key = kvt_mix64(1 + kvt_rng_below(&rng, 2 * slots));
        if (!kvt_shadow_has_sampled(&shadow, key, 100)) continue;
        const uint32_t had = kvt_shadow_use(&shadow, key, 100, 1);
        if (n < 4 * slots) continue;
        uses++;
        hits += had & 1;
    }
    assert_in_range(uses, 4 * slots / 128 * 95 / 100, 4 * slots / 128 * 105 / 100);
    assert_in_range(hits * 1000, uses * 490, uses * 510);
    kvt_shadow_done(&shadow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_side_is_an_lru_of_the_tiers_bytes),
        cmocka_unit_test(a_full_shadow_gives_its_entries_again),
        cmocka_unit_test(a_sample_of_a_large_tier_has_its_share_of_hits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
