/*
 * arc: adaptive replacement. Balances slots used once against slots used twice by what it regrets.
 *
 * T1 holds slots used once, T2 those used at least twice, both least recently used first; B1 and B2 remember
 * the keys that T1 and T2 evicted. target is the size that T1 should have. A key that comes back and is in
 * B1 says that T1 was too small: target grows by max(1, |B2| / |B1|); one in B2 says the opposite: target
 * shrinks by max(1, |B1| / |B2|). Such a key goes to T2, any other new one to T1; any use of a slot moves it
 * to the warm end of T2. The victim is the coldest of T1 when |T1| > target, else of T2; when that list has
 * no idle slot, of the other one. Of c slots, |T1| + |B1| <= c and all four lists together <= 2c; the oldest
 * keys are forgotten first.
 *
 * The paper picks the victim when it already knows the newcomer, and takes T1's at |T1| = target when that
 * one is in B2. Here room is made before the newcomer is known, so this one case is left out: at most one
 * slot's difference in |T1|. target is a fraction, as the paper's real number: whole steps give up to 0.6
 * points other hits on a real trace.
 *
 * Source: N. Megiddo, D. S. Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
 */
#include "policy/policy.h"

#include "policy/ghost.h"
#include "policy/replay.h"
#include "policy/slots.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define ONE_Q32 (UINT64_C(1) << 32)

enum { T1, T2, LIST_COUNT };
enum { B1, B2, GHOST_LIST_COUNT };

struct kvt_policy {
    struct kvt_slots slots;
    struct kvt_ghosts ghosts;
    uint64_t *keys;      /* by slot */
    uint64_t target_q32; /* of |T1|, in units of 2^-32 slots; at most the number of slots */
};

static uint64_t keys_bytes(const struct kvt_policy *arc)
{
    return ((uint64_t)arc->slots.slot_count + 1) * sizeof arc->keys[0];
}

static void arc_destroy(struct kvt_policy *arc)
{
    if (!arc) return;
    kvt_table_unmap(arc->keys, keys_bytes(arc));
    kvt_ghosts_done(&arc->ghosts);
    kvt_slots_done(&arc->slots);
    kvt_free(arc);
}

static enum kvt_status arc_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *arc = kvt_alloc(1, sizeof *arc);
    if (!arc) return KVT_NOMEM;

    if (kvt_slots_init(&arc->slots, slot_count, LIST_COUNT) != KVT_OK) goto fail;
    if (kvt_ghosts_init(&arc->ghosts, 2 * slot_count + 1, GHOST_LIST_COUNT) != KVT_OK) goto fail;
    arc->keys = kvt_table_map(keys_bytes(arc));
    if (!arc->keys) goto fail;
    *ret_policy = arc;
    return KVT_OK;

fail:
    arc_destroy(arc);
    return KVT_NOMEM;
}

/* Of c slots: |T1| + |B1| <= c, and |T1| + |T2| + |B1| + |B2| <= 2c. */
static void trim(struct kvt_policy *arc)
{
    const uint64_t slot_count = arc->slots.slot_count;
    const uint32_t *size = arc->slots.size;
    struct kvt_ghosts *ghosts = &arc->ghosts;
    while (ghosts->size[B1] > 0 && (uint64_t)size[T1] + ghosts->size[B1] > slot_count) {
        kvt_ghosts_forget(ghosts, kvt_ghosts_oldest(ghosts, B1));
    }
    while (ghosts->size[B2] > 0 && (uint64_t)size[T1] + size[T2] + ghosts->count > 2 * slot_count) {
        kvt_ghosts_forget(ghosts, kvt_ghosts_oldest(ghosts, B2));
    }
}

/* The sizes of B1 and B2 are taken before the key leaves its list, so the one divided by is not 0. */
static void learn(struct kvt_policy *arc, uint32_t ghost_list)
{
    const uint64_t b1 = arc->ghosts.size[B1];
    const uint64_t b2 = arc->ghosts.size[B2];
    if (ghost_list == B1) {
        const uint64_t step = kvt_max_u64(ONE_Q32, (b2 << 32) / b1);
        arc->target_q32 += kvt_min_u64(step, arc->slots.slot_count * ONE_Q32 - arc->target_q32);
    } else {
        const uint64_t step = kvt_max_u64(ONE_Q32, (b1 << 32) / b2);
        arc->target_q32 -= kvt_min_u64(step, arc->target_q32);
    }
}

static void arc_insert(struct kvt_policy *arc, uint32_t slot, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&arc->ghosts, key_hash);
    uint32_t list = T1;
    if (ghost != KVT_GHOST_NONE) {
        learn(arc, arc->ghosts.entries[ghost].list);
        kvt_ghosts_forget(&arc->ghosts, ghost);
        list = T2;
    }
    kvt_slots_insert(&arc->slots, slot, list);
    arc->keys[slot] = key_hash;
    trim(arc);
}

static void arc_touch(struct kvt_policy *arc, uint32_t slot) { kvt_slots_use(&arc->slots, slot, T2); }

static void arc_remove(struct kvt_policy *arc, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t list = kvt_slots_remove(&arc->slots, slot);
    if (why != KVT_POLICY_EVICTED) return;
    /* One slot less and one key more: the bounds still hold. */
    (void)kvt_ghosts_remember(&arc->ghosts, arc->keys[slot], list == T1 ? B1 : B2);
}

static uint32_t arc_victim(struct kvt_policy *arc)
{
    const uint32_t preferred = arc->slots.size[T1] * ONE_Q32 > arc->target_q32 ? T1 : T2;
    const uint32_t slot = kvt_slots_coldest_idle(&arc->slots, preferred);
    if (slot != KVT_POLICY_NONE) return slot;
    return kvt_slots_coldest_idle(&arc->slots, preferred == T1 ? T2 : T1);
}

static void arc_hold(struct kvt_policy *arc, uint32_t slot) { kvt_slots_hold(&arc->slots, slot); }
static void arc_release(struct kvt_policy *arc, uint32_t slot) { kvt_slots_release(&arc->slots, slot); }

static void arc_verify(const struct kvt_policy *arc)
{
    const uint32_t present = kvt_slots_verify(&arc->slots, LIST_COUNT);
    kvt_ghosts_verify(&arc->ghosts);
    KVT_ASSERT(arc->target_q32 <= arc->slots.slot_count * ONE_Q32);
    const uint64_t slot_count = arc->slots.slot_count;
    KVT_ASSERT((uint64_t)arc->slots.size[T1] + arc->ghosts.size[B1] <= slot_count);
    KVT_ASSERT((uint64_t)present + arc->ghosts.count <= 2 * slot_count);
}

KVT_REPLAY(arc)

const struct kvt_policy_ops kvt_policy_arc = {
    .name = "arc",
    .summary = "balances recency against frequency by what it regrets evicting",
    .create = arc_create,
    .destroy = arc_destroy,
    .insert = arc_insert,
    .touch = arc_touch,
    .hold = arc_hold,
    .release = arc_release,
    .remove = arc_remove,
    .victim = arc_victim,
    .verify = arc_verify,
    .replay = kvt_replay_arc,
};
