/*
 * clock: first in leaves first, but a slot that was used since the hand last saw it gets another round.
 *
 * One list in the order of arrival, whose cold end is where the hand stands, and one bit per slot. A use
 * sets the bit. To find a victim, the hand looks at the coldest idle slot: with the bit clear it is the
 * victim; with the bit set the bit is cleared and the slot goes to the warm end. A new slot comes with its
 * bit clear. Each use pays for one such move, so the search is O(1) amortised, at most one round.
 *
 * Source: F. J. Corbato, "A paging experiment with the Multics system", MIT Project MAC report, 1968.
 */
#include "policy/policy.h"

#include "policy/replay.h"
#include "policy/slots.h"
#include "runtime/base/mem.h"

enum { QUEUE, LIST_COUNT };
enum { UNUSED, USED };

struct kvt_policy {
    struct kvt_slots slots;
};

static void clock_destroy(struct kvt_policy *clock)
{
    if (!clock) return;
    kvt_slots_done(&clock->slots);
    kvt_free(clock);
}

static enum kvt_status clock_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *clock = kvt_alloc(1, sizeof *clock);
    if (!clock) return KVT_NOMEM;
    if (kvt_slots_init(&clock->slots, slot_count, LIST_COUNT) != KVT_OK) {
        clock_destroy(clock);
        return KVT_NOMEM;
    }
    *ret_policy = clock;
    return KVT_OK;
}

static void clock_insert(struct kvt_policy *clock, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_slots_insert(&clock->slots, slot, QUEUE);
}

static void clock_touch(struct kvt_policy *clock, uint32_t slot)
{
    KVT_ASSERT(slot < clock->slots.slot_count);
    KVT_ASSERT(clock->slots.bits[slot] & KVT_SLOT_PRESENT);
    kvt_slots_set_own(&clock->slots, slot, USED);
}

static void clock_hold(struct kvt_policy *clock, uint32_t slot) { kvt_slots_hold(&clock->slots, slot); }
static void clock_release(struct kvt_policy *clock, uint32_t slot) { kvt_slots_release(&clock->slots, slot); }

static void clock_remove(struct kvt_policy *clock, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    (void)kvt_slots_remove(&clock->slots, slot);
}

static uint32_t clock_victim(struct kvt_policy *clock)
{
    struct kvt_slots *slots = &clock->slots;
    if (slots->idle_count == 0) return KVT_POLICY_NONE;
    for (;;) {
        const uint32_t slot = kvt_slots_coldest_idle(slots, QUEUE);
        if (kvt_slots_own(slots, slot) == UNUSED) return slot;
        kvt_slots_set_own(slots, slot, UNUSED);
        kvt_slots_move(slots, slot, QUEUE);
    }
}

static void clock_verify(const struct kvt_policy *clock) { (void)kvt_slots_verify(&clock->slots, LIST_COUNT); }

KVT_REPLAY(clock)

const struct kvt_policy_ops kvt_policy_clock = {
    .name = "clock",
    .summary = "first in leaves first, with a second chance for what was used",
    .create = clock_create,
    .destroy = clock_destroy,
    .insert = clock_insert,
    .touch = clock_touch,
    .hold = clock_hold,
    .release = clock_release,
    .remove = clock_remove,
    .victim = clock_victim,
    .verify = clock_verify,
    .replay = kvt_replay_clock,
};
