/*
 * policy: what every eviction policy owes its caller, over random calls; lru and lfu against naive twins;
 * lists of ghosts.
 *
 * The model knows which slots are absent, held and idle, which is all that the contract is about. All seeds
 * are fixed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/ghost.h"
#include "policy/policy.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define SLOTS_MAX 64u

enum slot_state { ABSENT, HELD, IDLE };

struct model {
    const struct kvt_policy_ops *ops;
    struct kvt_policy *policy;
    enum slot_state state[SLOTS_MAX];
    uint32_t slot_count;
    uint32_t count[3]; /* by state */
};

static void model_open(struct model *model, const struct kvt_policy_ops *ops, uint32_t slot_count)
{
    *model = (struct model){ .ops = ops, .slot_count = slot_count, .count = { slot_count, 0, 0 } };
    assert_int_equal(ops->create(slot_count, 1, &model->policy), KVT_OK);
}

static void model_set(struct model *model, uint32_t slot, enum slot_state state)
{
    model->count[model->state[slot]]--;
    model->state[slot] = state;
    model->count[state]++;
}

/* A random slot in this state, KVT_POLICY_NONE. */
static uint32_t model_pick(const struct model *model, struct kvt_rng *rng, enum slot_state state)
{
    if (model->count[state] == 0) return KVT_POLICY_NONE;
    uint64_t skip = kvt_rng_below(rng, model->count[state]);
    for (uint32_t slot = 0;; slot++) {
        if (model->state[slot] == state && skip-- == 0) return slot;
    }
}

static uint32_t model_victim(struct model *model)
{
    const uint32_t victim = model->ops->victim(model->policy);
    assert_int_equal(victim == KVT_POLICY_NONE, model->count[IDLE] == 0);
    if (victim != KVT_POLICY_NONE) {
        assert_true(victim < model->slot_count);
        assert_int_equal(model->state[victim], IDLE);
    }
    assert_int_equal(model->ops->victim(model->policy), victim);
    return victim;
}

static void model_remove(struct model *model, uint32_t slot, enum kvt_policy_why why)
{
    model->ops->remove(model->policy, slot, why);
    model_set(model, slot, ABSENT);
}

/* Weights of the calls; a profile is a way to live: mostly evicting, mostly pinned, mostly dropping. */
struct profile {
    uint8_t insert, touch, hold, release, victim, evict, remove;
};

static const struct profile profiles[] = {
    { 30, 30, 5, 40, 5, 25, 1 },  /* a cache at work */
    { 10, 30, 40, 12, 20, 5, 1 }, /* nearly all is pinned */
    { 20, 20, 20, 25, 10, 5, 20 } /* content ends early */
};

/* Hints as a runtime gives them, of requests from either end, and wild ones: they may be wrong in every way. */
static void model_hint(const struct model *model, struct kvt_rng *rng)
{
    struct kvt_policy_hint hint = {
        .offset = (uint32_t)kvt_rng_below(rng, 6),
        .length = (uint32_t)kvt_rng_below(rng, 8),
        .found = (uint32_t)kvt_rng_below(rng, 8),
        .turn = (uint32_t)kvt_rng_below(rng, 40),
        .next = (enum kvt_policy_next)kvt_rng_below(rng, 4),
        .now_ms = kvt_rng_below(rng, 1u << 30),
    };
    if (!model->ops->hint) return;
    if (kvt_rng_below(rng, 8) == 0) hint.offset = hint.length = hint.found = hint.turn = KVT_POLICY_UNKNOWN;
    model->ops->hint(model->policy, &hint);
}

static void model_step(struct model *model, struct kvt_rng *rng, const struct profile *profile)
{
    const uint32_t total = profile->insert + profile->touch + profile->hold + profile->release + profile->victim
        + profile->evict + profile->remove;
    uint32_t draw = (uint32_t)kvt_rng_below(rng, total);
    const uint64_t key = kvt_rng_below(rng, 3 * (uint64_t)model->slot_count + 1); /* so that ghosts come back */
    const struct kvt_policy_ops *ops = model->ops;
    uint32_t slot;
    if (draw < profile->insert) {
        slot = model_pick(model, rng, ABSENT);
        if (slot == KVT_POLICY_NONE) return;
        model_hint(model, rng);
        ops->insert(model->policy, slot, key);
        model_set(model, slot, HELD);
        return;
    }
    draw -= profile->insert;
    if (draw < profile->touch) {
        slot = model_pick(model, rng, kvt_rng_below(rng, 3) == 0 ? HELD : IDLE);
        if (kvt_rng_below(rng, 2) == 0) model_hint(model, rng);
        if (slot != KVT_POLICY_NONE) ops->touch(model->policy, slot);
        return;
    }
    draw -= profile->touch;
    if (draw < profile->hold) {
        slot = model_pick(model, rng, IDLE);
        if (slot == KVT_POLICY_NONE) return;
        ops->hold(model->policy, slot);
        model_set(model, slot, HELD);
        return;
    }
    draw -= profile->hold;
    if (draw < profile->release) {
        slot = model_pick(model, rng, HELD);
        if (slot == KVT_POLICY_NONE) return;
        ops->release(model->policy, slot);
        model_set(model, slot, IDLE);
        return;
    }
    draw -= profile->release;
    if (draw < (uint32_t)profile->victim + profile->evict) {
        slot = model_victim(model);
        if (slot != KVT_POLICY_NONE && draw >= profile->victim) model_remove(model, slot, KVT_POLICY_EVICTED);
        return;
    }
    slot = model_pick(model, rng, kvt_rng_below(rng, 2) == 0 ? HELD : IDLE);
    if (slot == KVT_POLICY_NONE) return;
    model_remove(model, slot, kvt_rng_below(rng, 4) == 0 ? KVT_POLICY_EVICTED : KVT_POLICY_DROPPED);
}

static void every_policy_answers_with_an_idle_slot_iff_one_is_idle(void **state)
{
    (void)state;
    static const uint32_t slot_counts[] = { 1, 2, 3, 5, 10, 64 };
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        for (uint32_t run = 0; run < 3 * KVT_ARRAY_COUNT(slot_counts); run++) {
            struct model model;
            struct kvt_rng rng = { .state = 1000 * i + run };
            model_open(&model, kvt_policy_at(i), slot_counts[run / 3]);
            for (uint32_t step = 0; step < 3000; step++) {
                model_step(&model, &rng, &profiles[run % 3]);
                if (step % 8 == 0) (void)model_victim(&model);
                model.ops->verify(model.policy);
            }
            model.ops->destroy(model.policy);
        }
    }
}

static void every_policy_gives_up_all_its_slots_once_released(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        struct model model;
        struct kvt_rng rng = { .state = i };
        model_open(&model, kvt_policy_at(i), SLOTS_MAX);
        for (uint32_t step = 0; step < 2000; step++) model_step(&model, &rng, &profiles[1]);
        for (uint32_t slot = 0; slot < SLOTS_MAX; slot++) {
            if (model.state[slot] != HELD) continue;
            model.ops->release(model.policy, slot);
            model_set(&model, slot, IDLE);
        }
        for (uint32_t left = model.count[IDLE]; left > 0; left--) {
            model_remove(&model, model_victim(&model), KVT_POLICY_EVICTED);
            model.ops->verify(model.policy);
        }
        assert_int_equal(model_victim(&model), KVT_POLICY_NONE);
        assert_int_equal(model.count[ABSENT], SLOTS_MAX);
        model.ops->destroy(model.policy);
    }
}

static void a_hold_and_a_release_are_no_use(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        struct model model;
        struct kvt_rng rng = { .state = i };
        model_open(&model, kvt_policy_at(i), SLOTS_MAX);
        for (uint32_t step = 0; step < 2000; step++) {
            model_step(&model, &rng, &profiles[0]);
            const uint32_t victim = model_victim(&model);
            if (victim == KVT_POLICY_NONE) continue;
            model.ops->hold(model.policy, victim);
            model.ops->release(model.policy, victim);
            assert_int_equal(model_victim(&model), victim);
            const uint32_t other = model_pick(&model, &rng, IDLE);
            model.ops->hold(model.policy, other);
            model.ops->release(model.policy, other);
            assert_int_equal(model_victim(&model), victim);
        }
        model.ops->destroy(model.policy);
    }
}

static void the_same_calls_give_the_same_victims(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        struct model a, b;
        struct kvt_rng rng_a = { .state = 7 }, rng_b = { .state = 7 };
        model_open(&a, kvt_policy_at(i), 33);
        model_open(&b, kvt_policy_at(i), 33);
        for (uint32_t step = 0; step < 5000; step++) {
            model_step(&a, &rng_a, &profiles[step / 500 % 3]);
            model_step(&b, &rng_b, &profiles[step / 500 % 3]);
            assert_int_equal(model_victim(&a), model_victim(&b));
        }
        assert_int_equal(memcmp(a.state, b.state, sizeof a.state), 0);
        a.ops->destroy(a.policy);
        b.ops->destroy(b.policy);
    }
}

static void asking_the_memory_ahead_changes_no_victim(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        const struct kvt_policy_ops *ops = kvt_policy_at(i);
        struct model a, b;
        struct kvt_rng rng_a = { .state = 8 }, rng_b = { .state = 8 }, rng = { .state = 9 };
        model_open(&a, ops, 33);
        model_open(&b, ops, 33);
        for (uint32_t step = 0; step < 5000; step++) {
            if (ops->prefetch) ops->prefetch(a.policy, (uint32_t)kvt_rng_below(&rng, 33));
            if (ops->prefetch_key) ops->prefetch_key(a.policy, kvt_rng_below(&rng, 100));
            model_step(&a, &rng_a, &profiles[step / 500 % 3]);
            model_step(&b, &rng_b, &profiles[step / 500 % 3]);
            assert_int_equal(model_victim(&a), model_victim(&b));
        }
        ops->verify(a.policy);
        assert_int_equal(memcmp(a.state, b.state, sizeof a.state), 0);
        ops->destroy(a.policy);
        ops->destroy(b.policy);
    }
}

/* A search that passed over pinned slots each time would take hours here. */
static void nothing_scans_what_is_pinned(void **state)
{
    (void)state;
    const uint32_t slot_count = 200000;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        const struct kvt_policy_ops *ops = kvt_policy_at(i);
        struct kvt_policy *policy;
        assert_int_equal(ops->create(slot_count, 1, &policy), KVT_OK);
        for (uint32_t slot = 0; slot < slot_count; slot++) {
            ops->insert(policy, slot, kvt_mix64(slot));
            ops->release(policy, slot);
        }
        for (uint32_t slot = 0; slot + 1 < slot_count; slot++) ops->hold(policy, slot);
        for (uint32_t n = 0; n < slot_count; n++) {
            const uint32_t victim = ops->victim(policy);
            assert_int_equal(victim, slot_count - 1);
            ops->remove(policy, victim, KVT_POLICY_EVICTED);
            ops->insert(policy, victim, kvt_mix64(slot_count + n));
            ops->release(policy, victim);
        }
        ops->destroy(policy);
    }
}

/* A naive twin: an array, coldest first, and a search that takes held slots out (rule 3 of policy/slots.h). */
struct lru_twin {
    uint32_t order[SLOTS_MAX];
    uint32_t length;
    bool is_used[SLOTS_MAX]; /* while held */
};

static void twin_take(struct lru_twin *twin, uint32_t slot)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < twin->length; i++) {
        if (twin->order[i] != slot) twin->order[kept++] = twin->order[i];
    }
    twin->length = kept;
}

static bool twin_has(const struct lru_twin *twin, uint32_t slot)
{
    for (uint32_t i = 0; i < twin->length; i++) {
        if (twin->order[i] == slot) return true;
    }
    return false;
}

static void twin_release(struct lru_twin *twin, uint32_t slot)
{
    if (twin->is_used[slot]) {
        twin_take(twin, slot);
        twin->order[twin->length++] = slot;
    } else if (!twin_has(twin, slot)) {
        memmove(&twin->order[1], &twin->order[0], twin->length * sizeof twin->order[0]);
        twin->order[0] = slot;
        twin->length++;
    }
    twin->is_used[slot] = false;
}

static uint32_t twin_victim(struct lru_twin *twin, const struct model *model)
{
    while (twin->length > 0 && model->state[twin->order[0]] != IDLE) twin_take(twin, twin->order[0]);
    return twin->length > 0 ? twin->order[0] : KVT_POLICY_NONE;
}

static void twin_touch(struct lru_twin *twin, const struct model *model, uint32_t slot)
{
    twin_take(twin, slot);
    if (model->state[slot] == IDLE) twin->order[twin->length++] = slot;
    else twin->is_used[slot] = true;
}

static void lru_equals_a_naive_list(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 20; run++) {
        struct model model;
        struct lru_twin twin = { .length = 0 };
        struct kvt_rng rng = { .state = run };
        model_open(&model, kvt_policy_find("lru"), 1 + run * 3);
        for (uint32_t step = 0; step < 5000; step++) {
            const uint32_t slot = (uint32_t)kvt_rng_below(&rng, model.slot_count);
            const uint64_t draw = kvt_rng_below(&rng, 8);
            if (model.state[slot] == ABSENT) {
                model.ops->insert(model.policy, slot, slot);
                model_set(&model, slot, HELD);
                twin.is_used[slot] = true;
            } else if (draw < 3) {
                model.ops->touch(model.policy, slot);
                twin_touch(&twin, &model, slot);
            } else if (draw == 3) {
                model_remove(&model, slot, KVT_POLICY_DROPPED);
                twin_take(&twin, slot);
                twin.is_used[slot] = false;
            } else if (model.state[slot] == HELD) {
                model.ops->release(model.policy, slot);
                twin_release(&twin, slot);
                model_set(&model, slot, IDLE);
            } else {
                model.ops->hold(model.policy, slot);
                model_set(&model, slot, HELD);
            }
            if (draw % 2 == 0) assert_int_equal(model_victim(&model), twin_victim(&twin, &model));
        }
        model.ops->destroy(model.policy);
    }
}

static void lfu_equals_a_naive_search(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 20; run++) {
        struct model model;
        struct kvt_rng rng = { .state = run };
        uint32_t uses[SLOTS_MAX] = { 0 };
        uint64_t used_at[SLOTS_MAX] = { 0 }; /* 0: used while held */
        uint64_t now = 0;
        model_open(&model, kvt_policy_find("lfu"), 1 + run * 3);
        for (uint32_t step = 0; step < 5000; step++) {
            const uint32_t slot = (uint32_t)kvt_rng_below(&rng, model.slot_count);
            const uint64_t draw = kvt_rng_below(&rng, 8);
            if (model.state[slot] == ABSENT) {
                model.ops->insert(model.policy, slot, slot);
                model_set(&model, slot, HELD);
                uses[slot] = 1;
                used_at[slot] = 0;
            } else if (draw < 3) {
                model.ops->touch(model.policy, slot);
                uses[slot]++;
                used_at[slot] = model.state[slot] == IDLE ? ++now : 0;
            } else if (draw == 3) {
                model_remove(&model, slot, KVT_POLICY_EVICTED);
            } else if (model.state[slot] == HELD) {
                model.ops->release(model.policy, slot);
                model_set(&model, slot, IDLE);
                if (used_at[slot] == 0) used_at[slot] = ++now;
            } else {
                model.ops->hold(model.policy, slot);
                model_set(&model, slot, HELD);
            }
            uint32_t lowest = KVT_POLICY_NONE;
            for (uint32_t s = 0; s < model.slot_count; s++) {
                if (model.state[s] != IDLE) continue;
                if (lowest == KVT_POLICY_NONE || uses[s] < uses[lowest]
                    || (uses[s] == uses[lowest] && used_at[s] < used_at[lowest]))
                    lowest = s;
            }
            assert_int_equal(model_victim(&model), lowest);
        }
        model.ops->destroy(model.policy);
    }
}

static void a_sequence_released_from_its_tail_loses_its_tail_first(void **state)
{
    (void)state;
    static const char *const names[] = { "lru", "fifo", "clock", "lfu", "lru-reward" };
    for (uint32_t n = 0; n < KVT_ARRAY_COUNT(names); n++) {
        struct model model;
        model_open(&model, kvt_policy_find(names[n]), 8);
        for (uint32_t slot = 0; slot < 8; slot++) model.ops->insert(model.policy, slot, slot);
        for (uint32_t slot = 0; slot < 8; slot++) model.ops->touch(model.policy, slot);
        for (uint32_t slot = 8; slot-- > 0;) model.ops->release(model.policy, slot);
        for (uint32_t slot = 8; slot-- > 0;) {
            assert_int_equal(model.ops->victim(model.policy), slot);
            model.ops->remove(model.policy, slot, KVT_POLICY_EVICTED);
        }
        model.ops->destroy(model.policy);
    }
}

/* A use of a key or its arrival, as in a cache; slot_of is by key. The slot that it gets first holds key dropped. */
static void access_key(struct model *model, uint32_t *slot_of, uint32_t *key_of, uint32_t key, uint32_t dropped)
{
    if (slot_of[key] != KVT_POLICY_NONE) {
        model->ops->touch(model->policy, slot_of[key]);
        return;
    }
    uint32_t slot = 0;
    while (slot < model->slot_count && model->state[slot] != ABSENT) slot++;
    if (slot == model->slot_count) {
        slot = model_victim(model);
        model_remove(model, slot, KVT_POLICY_EVICTED);
        slot_of[key_of[slot]] = KVT_POLICY_NONE;
    }
    if (dropped != KVT_POLICY_NONE) {
        model->ops->insert(model->policy, slot, dropped);
        model->ops->release(model->policy, slot);
        model->ops->remove(model->policy, slot, KVT_POLICY_DROPPED);
    }
    model->ops->insert(model->policy, slot, key);
    model->ops->release(model->policy, slot);
    model_set(model, slot, IDLE);
    slot_of[key] = slot;
    key_of[slot] = key;
}

/* Of two pools with the same life, one drops new keys just before their first real use, the other drops other keys. */
static void a_dropped_key_is_not_remembered(void **state)
{
    (void)state;
    enum { KEYS = 2000, NEVER_USED = 10000 };
    static uint32_t slot_of[2][KEYS], key_of[2][SLOTS_MAX];
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        struct model models[2];
        struct kvt_rng rng = { .state = i };
        for (uint32_t m = 0; m < 2; m++) model_open(&models[m], kvt_policy_at(i), 32);
        for (uint32_t key = 0; key < KEYS; key++) slot_of[0][key] = slot_of[1][key] = KVT_POLICY_NONE;
        for (uint32_t key = 0; key < KEYS; key++) {
            const uint32_t old_key = key - (uint32_t)kvt_rng_below(&rng, kvt_min_u32(key, 60) + 1);
            for (uint32_t m = 0; m < 2; m++) {
                access_key(&models[m], slot_of[m], key_of[m], key, key + m * NEVER_USED);
                access_key(&models[m], slot_of[m], key_of[m], old_key, KVT_POLICY_NONE);
            }
            assert_int_equal(model_victim(&models[0]), model_victim(&models[1]));
        }
        for (uint32_t m = 0; m < 2; m++) models[m].ops->destroy(models[m].policy);
    }
}

static void create_leaves_nothing_behind_when_memory_ends(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        const uint64_t bytes_before = kvt_table_bytes();
        struct kvt_policy *policy = NULL;
        uint32_t failures = 0;
        for (;;) {
            kvt_alloc_fail_at(failures + 1);
            if (kvt_policy_at(i)->create(1000, 1, &policy) == KVT_OK) break;
            assert_null(policy);
            assert_int_equal(kvt_table_bytes(), bytes_before);
            failures++;
            assert_true(failures < 100);
        }
        kvt_alloc_fail_at(0);
        assert_true(failures >= 2);
        assert_true(kvt_table_bytes() > bytes_before);
        const uint64_t calls = kvt_alloc_calls();
        kvt_policy_at(i)->insert(policy, 999, 5);
        kvt_policy_at(i)->remove(policy, 999, KVT_POLICY_EVICTED);
        assert_int_equal(kvt_alloc_calls(), calls);
        kvt_policy_at(i)->destroy(policy);
        kvt_policy_at(i)->destroy(NULL);
        assert_int_equal(kvt_table_bytes(), bytes_before);
    }
}

static void a_pool_without_slots_has_no_victim(void **state)
{
    (void)state;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        struct model model;
        model_open(&model, kvt_policy_at(i), 0);
        assert_int_equal(model_victim(&model), KVT_POLICY_NONE);
        model.ops->verify(model.policy);
        model.ops->destroy(model.policy);
    }
}

static void refuses_insert(const struct model *m, uint32_t slot)
{
    expect_assert_failure(m->ops->insert(m->policy, slot, 1));
}

static void refuses_touch(const struct model *m, uint32_t slot)
{
    expect_assert_failure(m->ops->touch(m->policy, slot));
}

static void refuses_hold(const struct model *m, uint32_t slot) { expect_assert_failure(m->ops->hold(m->policy, slot)); }

static void refuses_release(const struct model *m, uint32_t slot)
{
    expect_assert_failure(m->ops->release(m->policy, slot));
}

static void refuses_remove(const struct model *m, uint32_t slot)
{
    expect_assert_failure(m->ops->remove(m->policy, slot, KVT_POLICY_EVICTED));
}

static void calls_in_the_wrong_state_are_caught(void **state)
{
    (void)state;
    kvt_check_hook = mock_assert;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        struct model model;
        model_open(&model, kvt_policy_at(i), 4);
        for (uint32_t slot = 0; slot < 3; slot++) model.ops->insert(model.policy, slot, slot);
        model.ops->release(model.policy, 1);
        refuses_insert(&model, 0);
        refuses_hold(&model, 0);
        refuses_insert(&model, 1);
        refuses_release(&model, 1);
        for (uint32_t slot = 3; slot <= 4; slot++) { /* one absent, one that does not exist */
            refuses_touch(&model, slot);
            refuses_hold(&model, slot);
            refuses_release(&model, slot);
            refuses_remove(&model, slot);
        }
        refuses_insert(&model, 4);
        model.ops->verify(model.policy);
        model.ops->destroy(model.policy);
    }
    kvt_check_hook = NULL;
}

static void policies_are_found_by_name(void **state)
{
    (void)state;
    static const char *const names[] = { "lru",    "lru-reward", "fifo", "clock", "lfu", "sieve",
                                         "s3fifo", "arc",        "2q",   "lirs",  "gdsf" };
    for (uint32_t n = 0; n < KVT_ARRAY_COUNT(names); n++) {
        assert_non_null(kvt_policy_find(names[n]));
        assert_string_equal(kvt_policy_find(names[n])->name, names[n]);
    }
    assert_ptr_equal(kvt_policy_at(0), kvt_policy_find("lru"));
    assert_null(kvt_policy_find("LRU"));
    assert_null(kvt_policy_find(""));
    assert_null(kvt_policy_at(UINT32_MAX));
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        assert_ptr_equal(kvt_policy_find(kvt_policy_at(i)->name), kvt_policy_at(i)); /* no name twice */
        assert_true(strlen(kvt_policy_at(i)->summary) > 0);
    }
}

static void ghosts_are_found_until_they_are_forgotten(void **state)
{
    (void)state;
    struct kvt_ghosts ghosts;
    assert_int_equal(kvt_ghosts_init(&ghosts, 20, 2), KVT_OK);
    uint32_t list_of[50]; /* by key; 2: not remembered */
    struct kvt_rng rng = { .state = 3 };
    for (uint32_t key = 0; key < 50; key++) list_of[key] = 2;
    for (uint32_t step = 0; step < 20000; step++) {
        const uint64_t key = kvt_rng_below(&rng, 50);
        const uint32_t ghost = kvt_ghosts_find(&ghosts, key);
        assert_int_equal(ghost == KVT_GHOST_NONE, list_of[key] == 2);
        if (ghost != KVT_GHOST_NONE) assert_int_equal(ghosts.entries[ghost].list, list_of[key]);
        const uint32_t list = (uint32_t)kvt_rng_below(&rng, 3);
        if (list < 2 && (ghosts.count < 20 || ghost != KVT_GHOST_NONE)) {
            (void)kvt_ghosts_remember(&ghosts, key, list);
            list_of[key] = list;
        } else if (list < 2 && ghosts.size[list] > 0) {
            const uint32_t oldest = kvt_ghosts_oldest(&ghosts, list);
            list_of[ghosts.entries[oldest].key_hash] = 2;
            kvt_ghosts_forget(&ghosts, oldest);
        } else if (list == 2 && ghost != KVT_GHOST_NONE) {
            kvt_ghosts_forget(&ghosts, ghost);
            list_of[key] = 2;
        }
        kvt_ghosts_verify(&ghosts);
    }
    kvt_ghosts_done(&ghosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_answers_with_an_idle_slot_iff_one_is_idle),
        cmocka_unit_test(every_policy_gives_up_all_its_slots_once_released),
        cmocka_unit_test(a_hold_and_a_release_are_no_use),
        cmocka_unit_test(the_same_calls_give_the_same_victims),
        cmocka_unit_test(asking_the_memory_ahead_changes_no_victim),
        cmocka_unit_test(nothing_scans_what_is_pinned),
        cmocka_unit_test(lru_equals_a_naive_list),
        cmocka_unit_test(lfu_equals_a_naive_search),
        cmocka_unit_test(a_sequence_released_from_its_tail_loses_its_tail_first),
        cmocka_unit_test(a_dropped_key_is_not_remembered),
        cmocka_unit_test(create_leaves_nothing_behind_when_memory_ends),
        cmocka_unit_test(a_pool_without_slots_has_no_victim),
        cmocka_unit_test(calls_in_the_wrong_state_are_caught),
        cmocka_unit_test(policies_are_found_by_name),
        cmocka_unit_test(ghosts_are_found_until_they_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
