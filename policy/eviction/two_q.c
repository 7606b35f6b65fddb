/*
 * 2q: a queue for newcomers in front of an LRU, so that what is used once never gets there.
 *
 * A1in holds newcomers, first in first out, and is to have a quarter of the slots. Keys that it evicts are
 * remembered in A1out, as many as half of the slots. A key that comes back while in A1out has proved itself:
 * it goes to Am, an LRU. A use inside A1in changes nothing (uses close to each other are one), a use inside
 * Am moves the slot to its warm end; what Am evicts is forgotten. The victim is the coldest of A1in when
 * |A1in| exceeds its quarter, else of Am; when that list has no idle slot, of the other one.
 *
 * Source: T. Johnson, D. Shasha, "2Q: a low overhead high performance buffer management replacement
 * algorithm", VLDB 1994 (the full version, Kin = 25 %, Kout = 50 %).
 */
#include "policy/policy.h"

#include "policy/ghost.h"
#include "policy/replay.h"
#include "policy/slots.h"
#include "runtime/base/mem.h"

enum { A1IN, AM, LIST_COUNT };
enum { A1OUT, GHOST_LIST_COUNT };

struct kvt_policy {
    struct kvt_slots slots;
    struct kvt_ghosts ghosts;
    uint64_t *keys;   /* by slot */
    uint32_t in_max;  /* Kin */
    uint32_t out_max; /* Kout */
};

static uint64_t keys_bytes(const struct kvt_policy *two_q)
{
    return ((uint64_t)two_q->slots.slot_count + 1) * sizeof two_q->keys[0];
}

static void two_q_destroy(struct kvt_policy *two_q)
{
    if (!two_q) return;
    kvt_table_unmap(two_q->keys, keys_bytes(two_q));
    kvt_ghosts_done(&two_q->ghosts);
    kvt_slots_done(&two_q->slots);
    kvt_free(two_q);
}

static enum kvt_status two_q_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *two_q = kvt_alloc(1, sizeof *two_q);
    if (!two_q) return KVT_NOMEM;
    two_q->in_max = slot_count / 4;
    two_q->out_max = slot_count / 2;

    if (kvt_slots_init(&two_q->slots, slot_count, LIST_COUNT) != KVT_OK) goto fail;
    if (kvt_ghosts_init(&two_q->ghosts, two_q->out_max + 1, GHOST_LIST_COUNT) != KVT_OK) goto fail;
    two_q->keys = kvt_table_map(keys_bytes(two_q));
    if (!two_q->keys) goto fail;
    *ret_policy = two_q;
    return KVT_OK;

fail:
    two_q_destroy(two_q);
    return KVT_NOMEM;
}

static void two_q_insert(struct kvt_policy *two_q, uint32_t slot, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&two_q->ghosts, key_hash);
    if (ghost != KVT_GHOST_NONE) kvt_ghosts_forget(&two_q->ghosts, ghost);
    kvt_slots_insert(&two_q->slots, slot, ghost != KVT_GHOST_NONE ? AM : A1IN);
    two_q->keys[slot] = key_hash;
}

static void two_q_touch(struct kvt_policy *two_q, uint32_t slot)
{
    KVT_ASSERT(slot < two_q->slots.slot_count);
    KVT_ASSERT(two_q->slots.bits[slot] & KVT_SLOT_PRESENT);
    if (kvt_slots_list(&two_q->slots, slot) == AM) kvt_slots_use(&two_q->slots, slot, AM);
}

static void two_q_remove(struct kvt_policy *two_q, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t list = kvt_slots_remove(&two_q->slots, slot);
    if (why != KVT_POLICY_EVICTED || list != A1IN) return;
    struct kvt_ghosts *ghosts = &two_q->ghosts;
    (void)kvt_ghosts_remember(ghosts, two_q->keys[slot], A1OUT);
    if (ghosts->count > two_q->out_max) kvt_ghosts_forget(ghosts, kvt_ghosts_oldest(ghosts, A1OUT));
}

static uint32_t two_q_victim(struct kvt_policy *two_q)
{
    const uint32_t preferred = two_q->slots.size[A1IN] > two_q->in_max ? A1IN : AM;
    const uint32_t slot = kvt_slots_coldest_idle(&two_q->slots, preferred);
    if (slot != KVT_POLICY_NONE) return slot;
    return kvt_slots_coldest_idle(&two_q->slots, preferred == A1IN ? AM : A1IN);
}

static void two_q_hold(struct kvt_policy *two_q, uint32_t slot) { kvt_slots_hold(&two_q->slots, slot); }
static void two_q_release(struct kvt_policy *two_q, uint32_t slot) { kvt_slots_release(&two_q->slots, slot); }

static void two_q_verify(const struct kvt_policy *two_q)
{
    (void)kvt_slots_verify(&two_q->slots, LIST_COUNT);
    kvt_ghosts_verify(&two_q->ghosts);
    KVT_ASSERT(two_q->ghosts.count <= two_q->out_max);
}

KVT_REPLAY(two_q)

const struct kvt_policy_ops kvt_policy_two_q = {
    .name = "2q",
    .summary = "newcomers queue apart; only what comes back enters the LRU",
    .create = two_q_create,
    .destroy = two_q_destroy,
    .insert = two_q_insert,
    .touch = two_q_touch,
    .hold = two_q_hold,
    .release = two_q_release,
    .remove = two_q_remove,
    .victim = two_q_victim,
    .verify = two_q_verify,
    .replay = kvt_replay_two_q,
};
