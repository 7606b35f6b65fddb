/*
 * ranked: what the policies share that give each slot a rank and let the lowest leave first.
 *
 * The order is exact, by (rank, time of the last use), whatever is held. Time is the count of uses. A use lasts until
 * its release: a slot that was inserted or touched while held gets its time when it is released.
 *
 * Ranks that are small steps apart (uses, or uses above a level that rises) are kept in buckets: one list for each rank
 * of a window, of 64 ranks from base on. What is used now is the newest of its rank, so it joins at the warm end, and
 * all calls cost O(1). What fits in no list waits in a 4-ary heap, whose calls cost O(log n): ranks outside the window,
 * and slots that were held and are released unused, whose time is older than their list's warmest. A use mostly raises
 * a slot's rank, and always its time; in the heap it then stays where it is, below what it is worth, until it gets to
 * the top. The lowest is that of the lists or the heap's top.
 *
 * The window moves up when a rank does not fit, but never past the rank of the last newcomer: the next one's is near.
 *
 * Thread: the caller's lock. Memory: all taken in init.
 */
#ifndef KVT_POLICY_RANKED_H
#define KVT_POLICY_RANKED_H

#include "policy/order.h"
#include "policy/policy.h"
#include "runtime/base/bytes.h"

#define KVT_RANKED_FANOUT 4u
#define KVT_RANKED_WINDOW 64u                 /* lists; a bit each */
#define KVT_RANKED_USED_WHILE_HELD UINT64_MAX /* in used_at: the time is taken at the release */

struct kvt_ranked_slot {
    uint64_t rank;
    uint64_t used_at;
    uint32_t place; /* in the heap, from 1; 0: not in it */
    uint32_t uses;  /* saturates; 0: the slot is absent */
};

/* What a slot was worth when it came here or was last looked at: never more than it is worth now. */
struct kvt_ranked_entry {
    uint64_t rank;
    uint64_t used_at; /* no two slots have the same */
    uint32_t slot;
};

struct kvt_ranked {
    struct kvt_order order; /* list rank % 64; in each, longest unused first */
    struct kvt_ranked_slot *slots;
    struct kvt_ranked_entry *heap; /* entries 1 .. heap_count */
    uint64_t now;                  /* uses so far */
    uint64_t base;                 /* no list has a rank below, or at base + 64 or above */
    uint64_t filled;               /* bit n: list n is not empty */
    uint64_t newcomer;             /* rank of the last insert */
    uint32_t slot_count;
    uint32_t heap_count;
};

/* NOMEM; then done() is still fine. */
KVT_NODISCARD enum kvt_status kvt_ranked_init(struct kvt_ranked *ranked, uint32_t slot_count);
void kvt_ranked_done(struct kvt_ranked *ranked);

/* ---- The heap ---------------------------------------------------------------------------------------------------- */

KVT_INLINE bool kvt_ranked_leaves_before(const struct kvt_ranked_entry *a, const struct kvt_ranked_entry *b)
{
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->used_at < b->used_at;
}

KVT_INLINE void kvt_ranked_put(struct kvt_ranked_entry *heap, struct kvt_ranked_slot *slots, uint32_t place,
                               struct kvt_ranked_entry entry)
{
    heap[place] = entry;
    slots[entry.slot].place = place;
}

KVT_INLINE uint32_t kvt_ranked_parent(uint32_t place) { return (place - 2) / KVT_RANKED_FANOUT + 1; }
KVT_INLINE uint32_t kvt_ranked_first_child(uint32_t place) { return (place - 1) * KVT_RANKED_FANOUT + 2; }

/* entry belongs at place or above it. */
KVT_INLINE void kvt_ranked_sift_up(struct kvt_ranked_entry *heap, struct kvt_ranked_slot *slots, uint32_t place,
                                   struct kvt_ranked_entry entry)
{
    while (place > 1 && kvt_ranked_leaves_before(&entry, &heap[kvt_ranked_parent(place)])) {
        kvt_ranked_put(heap, slots, place, heap[kvt_ranked_parent(place)]);
        place = kvt_ranked_parent(place);
    }
    kvt_ranked_put(heap, slots, place, entry);
}

/* entry belongs at place or below it. */
KVT_INLINE void kvt_ranked_sift_down(struct kvt_ranked_entry *heap, struct kvt_ranked_slot *slots, uint32_t heap_count,
                                     uint32_t place, struct kvt_ranked_entry entry)
{
    for (;;) {
        const uint32_t first = kvt_ranked_first_child(place);
        if (first > heap_count) break;
        uint32_t lowest = first;
        for (uint32_t child = first + 1; child < first + KVT_RANKED_FANOUT && child <= heap_count; child++) {
            if (kvt_ranked_leaves_before(&heap[child], &heap[lowest])) lowest = child;
        }
        if (!kvt_ranked_leaves_before(&heap[lowest], &entry)) break;
        kvt_ranked_put(heap, slots, place, heap[lowest]);
        place = lowest;
    }
    kvt_ranked_put(heap, slots, place, entry);
}

KVT_INLINE void kvt_ranked_heap_remove(struct kvt_ranked *ranked, uint32_t slot)
{
    struct kvt_ranked_entry *heap = ranked->heap;
    const uint32_t place = ranked->slots[slot].place;
    const struct kvt_ranked_entry last = heap[ranked->heap_count];
    ranked->heap_count--;
    ranked->slots[slot].place = 0;
    if (last.slot == slot) return;
    if (place > 1 && kvt_ranked_leaves_before(&last, &heap[kvt_ranked_parent(place)]))
        kvt_ranked_sift_up(heap, ranked->slots, place, last);
    else kvt_ranked_sift_down(heap, ranked->slots, ranked->heap_count, place, last);
}

/* ---- The lists --------------------------------------------------------------------------------------------------- */

/* Some list is filled: the lowest rank of them. */
KVT_INLINE uint64_t kvt_ranked_first(const struct kvt_ranked *ranked)
{
    const uint32_t turn = (uint32_t)(ranked->base % KVT_RANKED_WINDOW);
    const uint64_t turned = ranked->filled >> turn | ranked->filled << ((64 - turn) % 64);
    return ranked->base + (uint32_t)__builtin_ctzll(turned);
}

/* The highest. */
KVT_INLINE uint64_t kvt_ranked_last(const struct kvt_ranked *ranked)
{
    const uint32_t turn = (uint32_t)(ranked->base % KVT_RANKED_WINDOW);
    const uint64_t turned = ranked->filled >> turn | ranked->filled << ((64 - turn) % 64);
    return ranked->base + (63 - (uint32_t)__builtin_clzll(turned));
}

/* Moves the window so that the rank is in it, where what is in the lists lets it. False: it does not. */
KVT_INLINE bool kvt_ranked_reach(struct kvt_ranked *ranked, uint64_t rank)
{
    if (rank - ranked->base < KVT_RANKED_WINDOW) return true;
    if (ranked->filled == 0) {
        ranked->base = kvt_min_u64(rank, ranked->newcomer);
    } else if (rank < ranked->base) {
        if (kvt_ranked_last(ranked) - rank < KVT_RANKED_WINDOW) ranked->base = rank;
    } else {
        ranked->base = kvt_max_u64(ranked->base, kvt_min_u64(ranked->newcomer, kvt_ranked_first(ranked)));
    }
    return rank - ranked->base < KVT_RANKED_WINDOW;
}

KVT_INLINE void kvt_ranked_leave_list(struct kvt_ranked *ranked, uint32_t slot)
{
    const uint32_t list = (uint32_t)(ranked->slots[slot].rank % KVT_RANKED_WINDOW);
    kvt_order_unlink(&ranked->order, list, slot);
    if (kvt_order_coldest(&ranked->order, list) == KVT_ORDER_NONE) ranked->filled &= ~(UINT64_C(1) << list);
}

/* The slot has its rank and its time, and is in no list and not in the heap. is_newest: no other has a later time. */
KVT_INLINE void kvt_ranked_file(struct kvt_ranked *ranked, uint32_t slot, bool is_newest)
{
    const struct kvt_ranked_slot *s = &ranked->slots[slot];
    const uint32_t list = (uint32_t)(s->rank % KVT_RANKED_WINDOW);
    bool is_listed = kvt_ranked_reach(ranked, s->rank);
    if (is_listed && !is_newest) {
        const uint32_t warmest = kvt_order_warmest(&ranked->order, list);
        is_listed = warmest == KVT_ORDER_NONE || ranked->slots[warmest].used_at < s->used_at;
    }
    if (is_listed) {
        kvt_order_push_warm(&ranked->order, list, slot);
        ranked->filled |= UINT64_C(1) << list;
        return;
    }
    ranked->heap_count++;
    kvt_ranked_sift_up(ranked->heap, ranked->slots, ranked->heap_count,
                       (struct kvt_ranked_entry){ s->rank, s->used_at, slot });
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

KVT_INLINE struct kvt_ranked_slot *kvt_ranked_present(struct kvt_ranked *ranked, uint32_t slot)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses > 0);
    return &ranked->slots[slot];
}

KVT_INLINE bool kvt_ranked_is_listed(const struct kvt_ranked *ranked, uint32_t slot)
{
    return kvt_order_has(&ranked->order, slot);
}

KVT_INLINE void kvt_ranked_insert(struct kvt_ranked *ranked, uint32_t slot, uint64_t rank)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses == 0);
    ranked->slots[slot] = (struct kvt_ranked_slot){ .rank = rank, .used_at = KVT_RANKED_USED_WHILE_HELD, .uses = 1 };
    ranked->newcomer = rank;
}

/* One use more, and a rank from now on. */
KVT_INLINE void kvt_ranked_use(struct kvt_ranked *ranked, uint32_t slot, uint64_t rank)
{
    struct kvt_ranked_slot *s = kvt_ranked_present(ranked, slot);
    if (s->uses < UINT32_MAX) s->uses++;
    if (kvt_ranked_is_listed(ranked, slot)) {
        kvt_ranked_leave_list(ranked, slot);
        s->rank = rank;
        s->used_at = ++ranked->now;
        kvt_ranked_file(ranked, slot, true);
    } else if (s->place != 0) {
        const bool is_lower = rank < s->rank;
        s->rank = rank;
        s->used_at = ++ranked->now;
        const struct kvt_ranked_entry entry = { rank, s->used_at, slot };
        if (is_lower && kvt_ranked_leaves_before(&entry, &ranked->heap[s->place]))
            kvt_ranked_sift_up(ranked->heap, ranked->slots, s->place, entry);
    } else {
        s->rank = rank;
        s->used_at = KVT_RANKED_USED_WHILE_HELD;
    }
}

KVT_INLINE void kvt_ranked_hold(struct kvt_ranked *ranked, uint32_t slot)
{
    const struct kvt_ranked_slot *s = kvt_ranked_present(ranked, slot);
    if (kvt_ranked_is_listed(ranked, slot)) {
        kvt_ranked_leave_list(ranked, slot);
    } else {
        KVT_ASSERT(s->place != 0);
        kvt_ranked_heap_remove(ranked, slot);
    }
}

KVT_INLINE void kvt_ranked_release(struct kvt_ranked *ranked, uint32_t slot)
{
    struct kvt_ranked_slot *s = kvt_ranked_present(ranked, slot);
    KVT_ASSERT(s->place == 0);
    KVT_ASSERT(!kvt_ranked_is_listed(ranked, slot));
    const bool is_newest = s->used_at == KVT_RANKED_USED_WHILE_HELD;
    if (is_newest) s->used_at = ++ranked->now;
    kvt_ranked_file(ranked, slot, is_newest);
}

KVT_INLINE void kvt_ranked_remove(struct kvt_ranked *ranked, uint32_t slot)
{
    struct kvt_ranked_slot *s = kvt_ranked_present(ranked, slot);
    if (kvt_ranked_is_listed(ranked, slot)) kvt_ranked_leave_list(ranked, slot);
    else if (s->place != 0) kvt_ranked_heap_remove(ranked, slot);
    *s = (struct kvt_ranked_slot){ 0 };
}

/* Uses of a present slot, its insert included. */
KVT_INLINE uint32_t kvt_ranked_uses(const struct kvt_ranked *ranked, uint32_t slot)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses > 0);
    return ranked->slots[slot].uses;
}

KVT_INLINE uint64_t kvt_ranked_rank(const struct kvt_ranked *ranked, uint32_t slot)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses > 0);
    return ranked->slots[slot].rank;
}

/* The idle slot of the lowest rank, of equal ones that whose use is longest ago; KVT_POLICY_NONE. */
KVT_INLINE uint32_t kvt_ranked_lowest(struct kvt_ranked *ranked)
{
    struct kvt_ranked_entry first = { .rank = UINT64_MAX, .used_at = UINT64_MAX, .slot = KVT_POLICY_NONE };
    if (ranked->filled != 0) {
        first.rank = kvt_ranked_first(ranked);
        first.slot = kvt_order_coldest(&ranked->order, (uint32_t)(first.rank % KVT_RANKED_WINDOW));
        first.used_at = ranked->slots[first.slot].used_at;
    }
    while (ranked->heap_count > 0 && kvt_ranked_leaves_before(&ranked->heap[1], &first)) {
        const struct kvt_ranked_entry top = ranked->heap[1];
        const struct kvt_ranked_slot *s = &ranked->slots[top.slot];
        if (top.used_at == s->used_at) return top.slot;
        kvt_ranked_sift_down(ranked->heap, ranked->slots, ranked->heap_count, 1,
                             (struct kvt_ranked_entry){ s->rank, s->used_at, top.slot });
    }
    return first.slot;
}

/* Tests only. */
void kvt_ranked_verify(const struct kvt_ranked *ranked);

#endif
