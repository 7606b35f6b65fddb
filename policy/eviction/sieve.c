/*
 * sieve: a hand walks from the oldest slot to the newest and takes the first that was not used since its
 * last visit.
 *
 * One list in the order of arrival, one bit per slot, one hand. A use sets the bit. To find a victim, the
 * hand moves from where it stands towards the warm end: a slot with its bit set stays where it is and loses
 * the bit; the first idle one with its bit clear is the victim, and the hand stays there. Past the warm end
 * it starts again at the cold end. Unlike clock, what survives does not move, so new slots are looked at
 * soon after they came and the old, used ones rest. A held slot under the hand is parked (slots.h); released
 * unused it goes to the cold end, behind the hand. Each use and each hold pays for one step of the hand:
 * O(1) amortised, at most two rounds.
 *
 * Source: Y. Zhang et al., "SIEVE is simpler than LRU", NSDI 2024.
 */
#include "policy/policy.h"

#include "policy/replay.h"
#include "policy/slots.h"
#include "runtime/base/mem.h"

enum { QUEUE, LIST_COUNT };
enum { UNUSED, USED };

struct kvt_policy {
    struct kvt_slots slots;
    uint32_t hand; /* a slot on the list, KVT_POLICY_NONE: before the coldest */
};

static void sieve_destroy(struct kvt_policy *sieve)
{
    if (!sieve) return;
    kvt_slots_done(&sieve->slots);
    kvt_free(sieve);
}

static enum kvt_status sieve_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *sieve = kvt_alloc(1, sizeof *sieve);
    if (!sieve) return KVT_NOMEM;
    if (kvt_slots_init(&sieve->slots, slot_count, LIST_COUNT) != KVT_OK) {
        sieve_destroy(sieve);
        return KVT_NOMEM;
    }
    sieve->hand = KVT_POLICY_NONE;
    *ret_policy = sieve;
    return KVT_OK;
}

static void sieve_insert(struct kvt_policy *sieve, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_slots_insert(&sieve->slots, slot, QUEUE);
}

static void sieve_touch(struct kvt_policy *sieve, uint32_t slot)
{
    KVT_ASSERT(slot < sieve->slots.slot_count);
    KVT_ASSERT(sieve->slots.bits[slot] & KVT_SLOT_PRESENT);
    kvt_slots_set_own(&sieve->slots, slot, USED);
}

static void sieve_hold(struct kvt_policy *sieve, uint32_t slot) { kvt_slots_hold(&sieve->slots, slot); }
static void sieve_release(struct kvt_policy *sieve, uint32_t slot) { kvt_slots_release(&sieve->slots, slot); }

static void sieve_remove(struct kvt_policy *sieve, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    if (slot == sieve->hand) sieve->hand = kvt_order_warmer(&sieve->slots.order, slot);
    (void)kvt_slots_remove(&sieve->slots, slot);
}

static uint32_t sieve_victim(struct kvt_policy *sieve)
{
    struct kvt_slots *slots = &sieve->slots;
    if (slots->idle_count == 0) return KVT_POLICY_NONE;
    uint32_t slot = sieve->hand;
    for (;;) {
        if (slot == KVT_POLICY_NONE) slot = kvt_order_coldest(&slots->order, QUEUE);
        const uint32_t warmer = kvt_order_warmer(&slots->order, slot);
        if (kvt_slots_is_held(slots, slot)) {
            kvt_slots_park(slots, slot);
        } else if (kvt_slots_own(slots, slot) == USED) {
            kvt_slots_set_own(slots, slot, UNUSED);
        } else {
            sieve->hand = slot;
            return slot;
        }
        slot = warmer;
    }
}

static void sieve_verify(const struct kvt_policy *sieve)
{
    (void)kvt_slots_verify(&sieve->slots, LIST_COUNT);
    KVT_ASSERT(KVT_IMPLIES(sieve->hand != KVT_POLICY_NONE, kvt_order_has(&sieve->slots.order, sieve->hand)));
}

KVT_REPLAY(sieve)

const struct kvt_policy_ops kvt_policy_sieve = {
    .name = "sieve",
    .summary = "a hand passes over what was used and takes the first that was not",
    .create = sieve_create,
    .destroy = sieve_destroy,
    .insert = sieve_insert,
    .touch = sieve_touch,
    .hold = sieve_hold,
    .release = sieve_release,
    .remove = sieve_remove,
    .victim = sieve_victim,
    .verify = sieve_verify,
    .replay = kvt_replay_sieve,
};
