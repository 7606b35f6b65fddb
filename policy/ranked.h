/*
 * ranked: what the policies share that give each slot a rank and let the lowest leave first.
 *
 * The idle slots stand in a 4-ary heap by (rank, time of the last use), so the order is exact whatever is
 * held, and hold, release, touch and remove cost O(log n). Time is the count of uses. A use lasts until its
 * release: a slot that was inserted or touched while held gets its time when it is released.
 *
 * Thread: the caller's lock. Memory: all taken in init.
 */
#ifndef KVT_POLICY_RANKED_H
#define KVT_POLICY_RANKED_H

#include "policy/policy.h"

struct kvt_ranked_slot {
    uint64_t rank;
    uint64_t used_at;
    uint32_t place; /* in the heap, from 1; 0: not in it */
    uint32_t uses;  /* saturates; 0: the slot is absent */
};

struct kvt_ranked_entry {
    uint64_t rank;
    uint64_t used_at; /* no two slots have the same */
    uint32_t slot;
};

struct kvt_ranked {
    struct kvt_ranked_slot *slots;
    struct kvt_ranked_entry *heap; /* entries 1 .. idle_count */
    uint64_t now;                  /* uses so far */
    uint32_t slot_count;
    uint32_t idle_count;
};

/* NOMEM; then done() is still fine. */
KVT_NODISCARD enum kvt_status kvt_ranked_init(struct kvt_ranked *ranked, uint32_t slot_count);
void kvt_ranked_done(struct kvt_ranked *ranked);

void kvt_ranked_insert(struct kvt_ranked *ranked, uint32_t slot, uint64_t rank);
/* One use more, and a rank from now on. */
void kvt_ranked_use(struct kvt_ranked *ranked, uint32_t slot, uint64_t rank);
void kvt_ranked_hold(struct kvt_ranked *ranked, uint32_t slot);
void kvt_ranked_release(struct kvt_ranked *ranked, uint32_t slot);
void kvt_ranked_remove(struct kvt_ranked *ranked, uint32_t slot);

/* Uses of a present slot, its insert included. */
uint32_t kvt_ranked_uses(const struct kvt_ranked *ranked, uint32_t slot);
uint64_t kvt_ranked_rank(const struct kvt_ranked *ranked, uint32_t slot);

/* The idle slot of the lowest rank, of equal ones that whose use is longest ago; KVT_POLICY_NONE. */
uint32_t kvt_ranked_lowest(const struct kvt_ranked *ranked);

/* Tests only. */
void kvt_ranked_verify(const struct kvt_ranked *ranked);

#endif
