/*
 * slots: what the list-based eviction policies share. Which slot is absent, held or idle, and on which list
 * it stands.
 *
 * Rules:
 * 1. An idle slot is on its list. A held slot is on its list or off it; hold and release alone never change
 * an order.
 * 2. A new slot is off its list until its first release, and joins at the warm end then. So does a slot that
 * was used while held: a use lasts until its release, and whoever releases a sequence from its tail to its
 * head has its tail leave first.
 * 3. A held slot that reaches the cold end is parked: taken off, so that no search meets it again, and put
 * back at the cold end when it is released unused. Each hold pays for one parking at most: nothing scans
 * what is pinned.
 *
 * Thread: the caller's lock.
 */
#ifndef KVT_POLICY_SLOTS_H
#define KVT_POLICY_SLOTS_H

#include "policy/order.h"
#include "policy/policy.h"

#define KVT_SLOT_PRESENT 0x01u
#define KVT_SLOT_HELD 0x02u
#define KVT_SLOT_OFF 0x04u  /* held and off its list */
#define KVT_SLOT_WARM 0x08u /* off, and release puts it at the warm end, not at the cold one */
#define KVT_SLOT_LIST_SHIFT 4
#define KVT_SLOT_LIST_MASK 0xf0u
#define KVT_SLOT_OWN_SHIFT 8 /* two bits for the policy itself; 0 in a new slot */
#define KVT_SLOT_OWN_MASK 0x300u

#define KVT_SLOTS_LISTS_MAX 16u
#define KVT_SLOTS_COUNT_MAX ((UINT32_C(1) << 30) - 2) /* twice as many ghosts beside them have numbers, too */

struct kvt_slots {
    struct kvt_order order;
    uint16_t *bits; /* a byte would do, but bytes may alias all else, and cost more instructions than room */
    uint32_t slot_count;
    uint32_t idle_count;
    uint32_t size[KVT_SLOTS_LISTS_MAX]; /* slots that belong to a list, be they on it or off */
};

static inline uint64_t kvt_slots_bytes(uint32_t slot_count) { return ((uint64_t)slot_count + 1) * sizeof(uint16_t); }

/* NOMEM; then done() is still fine. */
KVT_NODISCARD static inline enum kvt_status kvt_slots_init(struct kvt_slots *slots, uint32_t slot_count,
                                                           uint32_t list_count)
{
    KVT_ASSERT(slot_count <= KVT_SLOTS_COUNT_MAX);
    KVT_ASSERT(list_count <= KVT_SLOTS_LISTS_MAX);
    *slots = (struct kvt_slots){ .slot_count = slot_count };
    slots->bits = kvt_table_map(kvt_slots_bytes(slot_count));
    if (!slots->bits) return KVT_NOMEM;
    return kvt_order_init(&slots->order, slot_count, list_count);
}

KVT_INLINE void kvt_slots_done(struct kvt_slots *slots)
{
    kvt_order_done(&slots->order);
    kvt_table_unmap(slots->bits, kvt_slots_bytes(slots->slot_count));
    slots->bits = NULL;
}

KVT_INLINE bool kvt_slots_is_held(const struct kvt_slots *slots, uint32_t slot)
{
    return (slots->bits[slot] & KVT_SLOT_HELD) != 0;
}

KVT_INLINE uint32_t kvt_slots_list(const struct kvt_slots *slots, uint32_t slot)
{
    return (slots->bits[slot] & KVT_SLOT_LIST_MASK) >> KVT_SLOT_LIST_SHIFT;
}

KVT_INLINE uint32_t kvt_slots_own(const struct kvt_slots *slots, uint32_t slot)
{
    return slots->bits[slot] >> KVT_SLOT_OWN_SHIFT;
}

KVT_INLINE void kvt_slots_set_own(struct kvt_slots *slots, uint32_t slot, uint32_t value)
{
    slots->bits[slot] = (uint16_t)((slots->bits[slot] & ~KVT_SLOT_OWN_MASK) | (value << KVT_SLOT_OWN_SHIFT));
}

KVT_INLINE void kvt_slots_insert(struct kvt_slots *slots, uint32_t slot, uint32_t list)
{
    KVT_ASSERT(slot < slots->slot_count);
    KVT_ASSERT(slots->bits[slot] == 0);
    slots->bits[slot] = (uint16_t)(KVT_SLOT_PRESENT | KVT_SLOT_HELD | KVT_SLOT_OFF | KVT_SLOT_WARM
                                   | (list << KVT_SLOT_LIST_SHIFT));
    slots->size[list]++;
}

KVT_INLINE void kvt_slots_hold(struct kvt_slots *slots, uint32_t slot)
{
    KVT_ASSERT(slot < slots->slot_count);
    KVT_ASSERT((slots->bits[slot] & (KVT_SLOT_PRESENT | KVT_SLOT_HELD)) == KVT_SLOT_PRESENT);
    slots->bits[slot] |= KVT_SLOT_HELD;
    slots->idle_count--;
}

KVT_INLINE void kvt_slots_release(struct kvt_slots *slots, uint32_t slot)
{
    KVT_ASSERT(slot < slots->slot_count);
    const uint16_t bits = slots->bits[slot];
    KVT_ASSERT(bits & KVT_SLOT_HELD);
    slots->bits[slot] = (uint16_t)(bits & ~(KVT_SLOT_HELD | KVT_SLOT_OFF | KVT_SLOT_WARM));
    slots->idle_count++;
    if (!(bits & KVT_SLOT_OFF)) return;
    const uint32_t list = kvt_slots_list(slots, slot);
    if (bits & KVT_SLOT_WARM) kvt_order_push_warm(&slots->order, list, slot);
    else kvt_order_push_cold(&slots->order, list, slot);
}

/* The slot becomes absent; returns the list that it belonged to. */
KVT_INLINE uint32_t kvt_slots_remove(struct kvt_slots *slots, uint32_t slot)
{
    KVT_ASSERT(slot < slots->slot_count);
    const uint16_t bits = slots->bits[slot];
    KVT_ASSERT(bits & KVT_SLOT_PRESENT);
    const uint32_t list = kvt_slots_list(slots, slot);
    if (!(bits & KVT_SLOT_OFF)) kvt_order_unlink(&slots->order, list, slot);
    if (!(bits & KVT_SLOT_HELD)) slots->idle_count--;
    slots->size[list]--;
    slots->bits[slot] = 0;
    return list;
}

/* A use: the slot goes to the warm end of list, now when it is idle, at its release when it is held. */
KVT_INLINE void kvt_slots_use(struct kvt_slots *slots, uint32_t slot, uint32_t list)
{
    KVT_ASSERT(slot < slots->slot_count);
    const uint16_t bits = slots->bits[slot];
    KVT_ASSERT(bits & KVT_SLOT_PRESENT);
    const uint32_t before = kvt_slots_list(slots, slot);
    slots->size[before]--;
    slots->size[list]++;
    uint16_t changed = (uint16_t)((bits & ~KVT_SLOT_LIST_MASK) | (list << KVT_SLOT_LIST_SHIFT));
    if (!(bits & KVT_SLOT_OFF)) kvt_order_unlink(&slots->order, before, slot);
    if (bits & KVT_SLOT_HELD) changed |= KVT_SLOT_OFF | KVT_SLOT_WARM;
    else kvt_order_push_warm(&slots->order, list, slot);
    slots->bits[slot] = changed;
}

/* The policy moves a slot to the warm end of list by itself, without a use. */
KVT_INLINE void kvt_slots_move(struct kvt_slots *slots, uint32_t slot, uint32_t list)
{
    const uint16_t bits = slots->bits[slot];
    KVT_ASSERT(bits & KVT_SLOT_PRESENT);
    const uint32_t before = kvt_slots_list(slots, slot);
    slots->size[before]--;
    slots->size[list]++;
    slots->bits[slot] = (uint16_t)((bits & ~KVT_SLOT_LIST_MASK) | (list << KVT_SLOT_LIST_SHIFT));
    if (bits & KVT_SLOT_OFF) {
        slots->bits[slot] |= KVT_SLOT_WARM;
    } else {
        kvt_order_unlink(&slots->order, before, slot);
        kvt_order_push_warm(&slots->order, list, slot);
    }
}

/* A held slot that is on its list leaves it until its release (rule 3). */
KVT_INLINE void kvt_slots_park(struct kvt_slots *slots, uint32_t slot)
{
    kvt_order_unlink(&slots->order, kvt_slots_list(slots, slot), slot);
    slots->bits[slot] |= KVT_SLOT_OFF;
}

/* The coldest idle slot of a list, KVT_POLICY_NONE when it has none. */
KVT_INLINE uint32_t kvt_slots_coldest_idle(struct kvt_slots *slots, uint32_t list)
{
    for (;;) {
        const uint32_t slot = kvt_order_coldest(&slots->order, list);
        if (slot == KVT_ORDER_NONE || !kvt_slots_is_held(slots, slot)) return slot;
        kvt_slots_park(slots, slot);
    }
}

/* See prefetch in policy.h. */
KVT_INLINE void kvt_slots_prefetch(const struct kvt_slots *slots, uint32_t slot)
{
    __builtin_prefetch(&slots->bits[slot], 1);
    __builtin_prefetch(&slots->order.links[kvt_order_node(&slots->order, slot)], 1);
}

/* Asserts that bits, lists and counts agree; returns the number of present slots. Tests only. */
uint32_t kvt_slots_verify(const struct kvt_slots *slots, uint32_t list_count);

#endif
