/*
 * lirs-duel: LIRS, where two shadows say whether newcomers get a hundredth of the pool or most of it.
 *
 * LIRS (lirs_stack.h) with keys of twice as many slots. With 1 % for newcomers it keeps what comes back again
 * and again, and does best when the pool is small beside what is used; with 80 % it is much like LRU, and does
 * best when newcomers have time to come back. Which it is, is measured: one shadow for each share, a LIRS
 * without bytes, sees the uses of one key of 4, chosen by its hash, in a pool of a quarter of the slots
 * (small pools: of half of them, or all, so that a shadow has at least 128 slots). Each shadow's hit ratio
 * is averaged over its last uses, 3 for each of its slots, and the pool takes the share of the better one, if
 * it is ahead by half a point. A change of the share moves two slots with each call; no content is thrown out.
 *
 * Sources: LIRS as in lirs_stack.h; the choice after M. K. Qureshi et al., "Adaptive insertion policies for
 * high performance caching" (set dueling), ISCA 2007; samples by hash after C. A. Waldspurger et al.,
 * "Efficient MRC construction with SHARDS", FAST 2015. The combination is ours.
 */
#include "policy/policy.h"

#include "policy/lirs_stack.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define SHADOW_SLOTS_MIN 128u
#define RATE_MAX 4u
#define USES_A_SLOT 3u
#define GHOSTS_A_SLOT 2u
#define ONE_Q32 (UINT64_C(1) << 32)
#define AHEAD_Q32 (ONE_Q32 / 200)

static const uint32_t newcomer_percents[] = { 1, 80 };
enum { SHADOW_COUNT = KVT_ARRAY_COUNT(newcomer_percents) };

struct shadow {
    struct kvt_lirs lirs;
    struct kvt_ghosts resident; /* keys; a key's number is its slot */
    uint64_t ratio_q32;         /* of hits, averaged; at most 1 */
};

struct kvt_policy {
    struct kvt_lirs lirs;
    struct shadow shadows[SHADOW_COUNT];
    uint32_t rate;   /* one key of so many; a power of two */
    uint32_t window; /* uses that a ratio is averaged over */
    uint32_t chosen;
};

static uint32_t shadow_slots(const struct kvt_policy *duel)
{
    return kvt_max_u32(1, duel->lirs.slots.slot_count / duel->rate);
}

static void duel_destroy(struct kvt_policy *duel)
{
    if (!duel) return;
    for (uint32_t i = 0; i < SHADOW_COUNT; i++) {
        kvt_ghosts_done(&duel->shadows[i].resident);
        kvt_lirs_done(&duel->shadows[i].lirs);
    }
    kvt_lirs_done(&duel->lirs);
    kvt_free(duel);
}

static enum kvt_status lirs_init(struct kvt_lirs *lirs, uint32_t slot_count, uint32_t newcomer_percent)
{
    const uint32_t ghost_max = GHOSTS_A_SLOT * kvt_min_u32(slot_count, KVT_SLOTS_COUNT_MAX / GHOSTS_A_SLOT);
    return kvt_lirs_init(lirs, slot_count, kvt_lirs_share(slot_count, newcomer_percent), ghost_max);
}

static enum kvt_status duel_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *duel = kvt_alloc(1, sizeof *duel);
    if (!duel) return KVT_NOMEM;
    duel->rate = RATE_MAX;
    while (duel->rate > 1 && slot_count / duel->rate < SHADOW_SLOTS_MIN) duel->rate /= 2;
    duel->chosen = SHADOW_COUNT - 1;

    if (lirs_init(&duel->lirs, slot_count, newcomer_percents[duel->chosen]) != KVT_OK) goto fail;
    duel->window = USES_A_SLOT * shadow_slots(duel);
    for (uint32_t i = 0; i < SHADOW_COUNT; i++) {
        struct shadow *shadow = &duel->shadows[i];
        if (lirs_init(&shadow->lirs, shadow_slots(duel), newcomer_percents[i]) != KVT_OK) goto fail;
        if (kvt_ghosts_init(&shadow->resident, shadow_slots(duel), 1) != KVT_OK) goto fail;
    }
    *ret_policy = duel;
    return KVT_OK;

fail:
    duel_destroy(duel);
    return KVT_NOMEM;
}

/* One use of a shadow. True: it was a hit. */
static bool use_shadow(struct shadow *shadow, uint64_t key_hash)
{
    struct kvt_lirs *lirs = &shadow->lirs;
    const uint32_t known = kvt_ghosts_find(&shadow->resident, key_hash);
    if (known != KVT_GHOST_NONE) {
        kvt_lirs_touch(lirs, known);
        return true;
    }
    if (shadow->resident.count == lirs->slots.slot_count) {
        const uint32_t victim = kvt_lirs_victim(lirs);
        kvt_lirs_remove(lirs, victim, KVT_POLICY_EVICTED);
        kvt_ghosts_forget(&shadow->resident, victim);
    }
    const uint32_t slot = kvt_ghosts_remember(&shadow->resident, key_hash, 0);
    kvt_lirs_insert(lirs, slot, key_hash);
    kvt_slots_release(&lirs->slots, slot);
    return false;
}

static bool is_sampled(const struct kvt_policy *duel, uint64_t key_hash)
{
    return (kvt_mix64(key_hash ^ UINT64_C(0x5bd1e995)) & (duel->rate - 1)) == 0;
}

static void learn(struct kvt_policy *duel, uint64_t key_hash)
{
    if (!is_sampled(duel, key_hash)) return;
    uint32_t best = duel->chosen;
    for (uint32_t i = 0; i < SHADOW_COUNT; i++) {
        struct shadow *shadow = &duel->shadows[i];
        shadow->ratio_q32 -= shadow->ratio_q32 / duel->window;
        if (use_shadow(shadow, key_hash)) shadow->ratio_q32 += ONE_Q32 / duel->window;
        if (shadow->ratio_q32 > duel->shadows[best].ratio_q32) best = i;
    }
    if (duel->shadows[best].ratio_q32 <= duel->shadows[duel->chosen].ratio_q32 + AHEAD_Q32) return;
    duel->chosen = best;
    duel->lirs.lir_max = kvt_lirs_share(duel->lirs.slots.slot_count, newcomer_percents[best]);
}

static void duel_insert(struct kvt_policy *duel, uint32_t slot, uint64_t key_hash)
{
    kvt_lirs_insert(&duel->lirs, slot, key_hash);
    learn(duel, key_hash);
}

static void duel_touch(struct kvt_policy *duel, uint32_t slot)
{
    kvt_lirs_touch(&duel->lirs, slot);
    learn(duel, duel->lirs.keys[slot]);
}

static void duel_hold(struct kvt_policy *duel, uint32_t slot) { kvt_slots_hold(&duel->lirs.slots, slot); }
static void duel_release(struct kvt_policy *duel, uint32_t slot) { kvt_slots_release(&duel->lirs.slots, slot); }

/* A key whose content ended leaves the shadows, too. */
static void duel_remove(struct kvt_policy *duel, uint32_t slot, enum kvt_policy_why why)
{
    const uint64_t key_hash = duel->lirs.keys[slot];
    kvt_lirs_remove(&duel->lirs, slot, why);
    if (why != KVT_POLICY_DROPPED || !is_sampled(duel, key_hash)) return;
    for (uint32_t i = 0; i < SHADOW_COUNT; i++) {
        struct shadow *shadow = &duel->shadows[i];
        const uint32_t known = kvt_ghosts_find(&shadow->resident, key_hash);
        kvt_lirs_forget_key(&shadow->lirs, key_hash);
        if (known == KVT_GHOST_NONE) continue;
        kvt_lirs_remove(&shadow->lirs, known, KVT_POLICY_DROPPED);
        kvt_ghosts_forget(&shadow->resident, known);
    }
}

static uint32_t duel_victim(struct kvt_policy *duel) { return kvt_lirs_victim(&duel->lirs); }

static void duel_verify(const struct kvt_policy *duel)
{
    kvt_lirs_verify(&duel->lirs);
    for (uint32_t i = 0; i < SHADOW_COUNT; i++) {
        const struct shadow *shadow = &duel->shadows[i];
        kvt_lirs_verify(&shadow->lirs);
        kvt_ghosts_verify(&shadow->resident);
        KVT_ASSERT(shadow->resident.count == shadow->lirs.slots.idle_count);
        KVT_ASSERT(shadow->ratio_q32 <= ONE_Q32);
    }
}

const struct kvt_policy_ops kvt_policy_lirs_duel = {
    .name = "lirs-duel",
    .summary = "lirs, where sampled shadows say how much room newcomers get",
    .create = duel_create,
    .destroy = duel_destroy,
    .insert = duel_insert,
    .touch = duel_touch,
    .hold = duel_hold,
    .release = duel_release,
    .remove = duel_remove,
    .victim = duel_victim,
    .verify = duel_verify,
};
