/*
 * ranked: the lowest leaves, whatever the ranks are, by lists and by the heap: against a naive search.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/ranked.h"
#include "runtime/base/rng.h"

enum { SLOTS_MAX = 70, STEPS = 8000 };

struct twin {
    uint64_t rank[SLOTS_MAX], used_at[SLOTS_MAX]; /* used_at 0: used while held */
    bool is_there[SLOTS_MAX], is_held[SLOTS_MAX];
    uint64_t now, level;
};

static uint32_t twin_lowest(const struct twin *twin, uint32_t slot_count)
{
    uint32_t lowest = KVT_POLICY_NONE;
    for (uint32_t s = 0; s < slot_count; s++) {
        if (!twin->is_there[s] || twin->is_held[s]) continue;
        if (lowest == KVT_POLICY_NONE || twin->rank[s] < twin->rank[lowest]
            || (twin->rank[s] == twin->rank[lowest] && twin->used_at[s] < twin->used_at[lowest]))
            lowest = s;
    }
    return lowest;
}

/* Ways to rank: by uses; above a level that rises; far apart; falling; a few ranks around what the window is wide. */
enum way { USES, LEVEL, FAR, FALLING, WINDOW, WAY_COUNT };

static uint64_t next_rank(struct twin *twin, enum way way, uint64_t before, struct kvt_rng *rng)
{
    switch (way) {
    case USES: return before + 1;
    case LEVEL: return twin->level + 1 + kvt_rng_below(rng, 5);
    case FAR: return kvt_rng_next(rng) >> kvt_rng_below(rng, 64);
    case FALLING: return before == 0 ? UINT64_MAX - kvt_rng_below(rng, 100) : before - 1 - kvt_rng_below(rng, 70);
    case WINDOW:
    case WAY_COUNT:
    default: return 1000 + kvt_rng_below(rng, 3) * (KVT_RANKED_WINDOW - 1) + kvt_rng_below(rng, 3);
    }
}

static void use(struct kvt_ranked *ranked, struct twin *twin, uint32_t slot, enum way way, struct kvt_rng *rng)
{
    const uint64_t rank = next_rank(twin, way, twin->is_there[slot] ? twin->rank[slot] : 0, rng);
    if (twin->is_there[slot]) {
        kvt_ranked_use(ranked, slot, rank);
        twin->used_at[slot] = twin->is_held[slot] ? 0 : ++twin->now;
    } else {
        kvt_ranked_insert(ranked, slot, rank);
        twin->is_there[slot] = twin->is_held[slot] = true;
        twin->used_at[slot] = 0;
    }
    twin->rank[slot] = rank;
}

static void hold_or_release(struct kvt_ranked *ranked, struct twin *twin, uint32_t slot)
{
    if (twin->is_held[slot]) {
        kvt_ranked_release(ranked, slot);
        if (twin->used_at[slot] == 0) twin->used_at[slot] = ++twin->now;
    } else {
        kvt_ranked_hold(ranked, slot);
    }
    twin->is_held[slot] = !twin->is_held[slot];
}

static void the_lowest_leaves_however_slots_are_ranked(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 6 * WAY_COUNT; run++) {
        const enum way way = run % WAY_COUNT;
        const uint32_t slot_count = 1 + run * (SLOTS_MAX - 1) / (6 * WAY_COUNT - 1);
        struct kvt_rng rng = { .state = run };
        struct twin twin = { 0 };
        struct kvt_ranked ranked;
        assert_int_equal(kvt_ranked_init(&ranked, slot_count), KVT_OK);
        for (uint32_t step = 0; step < STEPS; step++) {
            const uint32_t slot = (uint32_t)kvt_rng_below(&rng, slot_count);
            const uint64_t draw = kvt_rng_below(&rng, 20);
            const uint32_t lowest = twin_lowest(&twin, slot_count);
            if (draw < 10 || !twin.is_there[slot]) {
                use(&ranked, &twin, slot, way, &rng);
            } else if (draw < 16) {
                hold_or_release(&ranked, &twin, slot);
            } else if (draw < 19 && lowest != KVT_POLICY_NONE) {
                twin.level = twin.rank[lowest];
                kvt_ranked_remove(&ranked, lowest);
                twin.is_there[lowest] = false;
            } else {
                kvt_ranked_remove(&ranked, slot);
                twin.is_there[slot] = false;
            }
            if (draw % 2 == 0) assert_int_equal(kvt_ranked_lowest(&ranked), twin_lowest(&twin, slot_count));
            if (step % 16 == 0) kvt_ranked_verify(&ranked);
        }
        kvt_ranked_done(&ranked);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lowest_leaves_however_slots_are_ranked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
