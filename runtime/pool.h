/*
 * pool: the slots of one device pool: which are free, and whose the others are.
 *
 * A slot is on the free list or belongs to exactly one copy, or to one transfer in quarantine (invariant 1). A slot
 * remembers the mark of the last compute work that touched it: a transfer that reads or overwrites it waits for that
 * mark (invariant 6).
 *
 * Owns:    slot numbers, owners, marks, and the eviction policy's instance.
 * Thread:  under the runtime's lock.
 */
#ifndef KVT_RUNTIME_POOL_H
#define KVT_RUNTIME_POOL_H

#include "kernels/gpu.h"
#include "policy/policy.h"
#include "runtime/block.h"

#define KVT_POOL_AHEAD 16u /* releases */

/* What is known of a slot, in one place: whoever asks for one of these mostly needs the others too. */
struct kvt_pool_slot {
    kvt_mark mark;  /* last compute use */
    uint32_t owner; /* its block; KVT_NO_BLOCK: free or in quarantine */
    /* the slot that was released KVT_POOL_AHEAD releases after this one; a hint, see kvt_pool_released */
    uint32_t later;
};

struct kvt_pool {
    uint64_t slot_bytes;
    uint32_t slot_count;
    uint32_t free_count;
    uint32_t *free_slots; /* a stack of free_count slots */
    struct kvt_pool_slot *slots;
    const struct kvt_policy_ops *policy_ops;
    struct kvt_policy *policy;

    uint32_t claimed;     /* blocks of this pool with users > 0, on the device or on their way */
    uint32_t leaving;     /* copies whose eviction is under way */
    uint32_t unheld;      /* idle copies of blocks that no sequence holds */
    uint32_t quarantined; /* slots of abandoned transfers */
    struct kvt_parked parked;
    uint32_t wanted;      /* free slots that somebody waits for; 0: none */
    uint32_t promised;    /* free slots that a waiting append will come back for: prefetch leaves them */
    uint64_t promised_ns; /* when it asked last; it may never come back: kvt_pool_promised */
    uint32_t low, high;   /* watermarks: eviction starts below low free slots and ends at high */
    uint32_t used_peak;
    uint64_t evictions;
    uint32_t released[KVT_POOL_AHEAD]; /* the latest, a ring */
    uint32_t released_at;
};

/* NOMEM. policy_ops as kvt_policy_find() gave it. */
KVT_NODISCARD enum kvt_status kvt_pool_init(struct kvt_pool *pool, uint64_t slot_bytes, uint32_t slot_count,
                                            const struct kvt_policy_ops *policy_ops, uint64_t seed);
void kvt_pool_done(struct kvt_pool *pool);

/* A free slot, now owned by block; KVT_NO_SLOT when none is free. */
uint32_t kvt_pool_take(struct kvt_pool *pool, uint32_t block);
/* The slot's owner is done with it. */
void kvt_pool_give(struct kvt_pool *pool, uint32_t slot);

/*
 * The slot became one that may be evicted. Most policies evict about in this order, so each slot remembers the one
 * released a few releases later: an eviction can ask memory for what the evictions after it will need, where following
 * a policy's list would wait for one miss after the other. A hint only: nothing is decided by it.
 */
static inline void kvt_pool_released(struct kvt_pool *pool, uint32_t slot)
{
    uint32_t *place = &pool->released[pool->released_at++ % KVT_POOL_AHEAD];
    pool->slots[*place].later = slot;
    *place = slot;
}

#define KVT_POOL_PROMISE_NS (100u * 1000u * 1000u) /* how long slots are kept for an append that does not ask again */

/* The free slots that are kept for an append that waits. */
static inline uint32_t kvt_pool_promised(const struct kvt_pool *pool, uint64_t now_ns)
{
    return now_ns - pool->promised_ns < KVT_POOL_PROMISE_NS ? pool->promised : 0;
}

size_t kvt_pool_bytes(const struct kvt_pool *pool);

#endif
