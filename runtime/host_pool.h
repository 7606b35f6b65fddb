/*
 * host_pool: the slots of host memory. A copy's length depends on its form, so there are slot classes, not one slot
 *            size.
 *
 * Host memory comes in chunks (tiers/host_tier.h). A class takes a free chunk on demand, cuts it into slots of its
 * size, and gives it back when the last one is free. Classes: the raw size of each group, and, once its first packed
 * blocks have been seen, up to three packed sizes: one that nearly all of its packed blocks fit into, and a half and a
 * quarter of it for tails. They follow what is packed: the sizes that are asked for change, and the chunks of former
 * ones are emptied by eviction.
 *
 * A slot's number is chunk * slots_per_chunk_max + index in the chunk: the number the policy knows it by.
 *
 * Owns:    chunks' classes, free lists, owners, the host policy's instance.
 * Thread:  under the runtime's lock.
 */
#ifndef KVT_RUNTIME_HOST_POOL_H
#define KVT_RUNTIME_HOST_POOL_H

#include "policy/policy.h"
#include "runtime/block.h"
#include "tiers/host_tier.h"

#define KVT_HOST_CLASSES_MAX 64 /* raw and packed ones of each group, and those that drift leaves behind */
#define KVT_PACKED_SAMPLES \
    64 /* a window: packed blocks of a group after which its packed classes are chosen, again and again */

struct kvt_host_class {
    uint32_t slot_bytes;
    uint32_t slots_per_chunk;
    uint32_t partial_head; /* chunks of this class with a free slot, chained; UINT32_MAX: none */
    uint32_t chunk_count;
};

struct kvt_host_chunk {
    uint32_t class_index; /* UINT32_MAX: free */
    uint32_t used;
    uint32_t free_head;      /* free slots of the chunk, chained through owner[]; UINT32_MAX: none */
    uint32_t previous, next; /* in its class's list of partial chunks, or in the free list */
    bool is_listed;
};

struct kvt_host_pool {
    struct kvt_host_tier *tier;
    uint64_t chunk_bytes;
    uint32_t chunk_count;
    uint32_t chunks_seen; /* ready chunks that were put on the free list so far */
    uint32_t free_head;   /* free chunks; UINT32_MAX: none */
    uint32_t free_chunks;
    struct kvt_host_chunk *chunks;
    uint32_t slots_per_chunk_max;
    uint32_t slot_count; /* numbers, used or not */
    uint32_t *owner;     /* block of a taken slot; next free slot of a free one */

    uint32_t class_count;
    struct kvt_host_class classes[KVT_HOST_CLASSES_MAX];
    struct {
        uint32_t raw_bytes;    /* of a whole block */
        uint32_t packed_bytes; /* slot size that packed whole blocks are tried with; 0: not chosen yet */
        uint32_t sample_count, overflow_count; /* of this window */
        uint32_t quiet_windows;
        uint32_t samples[KVT_PACKED_SAMPLES];
    } groups[KVT_GROUPS_MAX];

    const struct kvt_policy_ops *policy_ops;
    struct kvt_policy *policy;
    uint32_t leaving;
    uint32_t unheld; /* idle copies of blocks that no sequence holds */
    uint32_t quarantined;
    struct kvt_parked parked;
    uint64_t used_slot_bytes; /* slots in use, by their class size */
    uint64_t used_slots, used_slots_peak;
    uint64_t chunk_bytes_used, chunk_bytes_peak;
    uint64_t raw_equivalent_bytes; /* what the resident copies would take raw */
    uint64_t evictions;
};

/* NOMEM. capacity_bytes are cut into chunks of chunk_bytes; raw_bytes[g] is a whole block of group g. */
KVT_NODISCARD enum kvt_status kvt_host_pool_init(struct kvt_host_pool *pool, struct kvt_host_tier *tier,
                                                 uint64_t chunk_bytes, const uint32_t *raw_bytes, uint32_t group_count,
                                                 const struct kvt_policy_ops *policy_ops, uint64_t seed);
void kvt_host_pool_done(struct kvt_host_pool *pool);

/* Bytes of the slot to ask for when a block of `raw` bytes is about to be stashed packed (or raw). */
uint32_t kvt_host_pool_wanted_bytes(const struct kvt_host_pool *pool, uint32_t group, uint32_t raw, bool is_packed);

/*
 * A free slot of the smallest class of at least `bytes`, now owned by block; a free chunk is cut when the class has
 * none. Pools of few chunks also give larger slots. KVT_NO_SLOT when there is none.
 */
uint32_t kvt_host_pool_take(struct kvt_host_pool *pool, uint32_t bytes, uint32_t block);
void kvt_host_pool_give(struct kvt_host_pool *pool, uint32_t slot);

/* True when a take of so many bytes would succeed. */
bool kvt_host_pool_has_room(const struct kvt_host_pool *pool, uint32_t bytes);

/* Share of the memory that is free, in 1/1024. */
uint32_t kvt_host_pool_free_share(const struct kvt_host_pool *pool);

/* Takes chunks that the tier has prepared since the last call. True when there were some. */
bool kvt_host_pool_refresh(struct kvt_host_pool *pool);
/* There are, or may be, more of them. False without host memory, and when memory ended before all were there. */
bool kvt_host_pool_is_growing(const struct kvt_host_pool *pool);

/*
 * A whole block of the group was packed into `length` bytes, or did not fit its class (length 0): how classes are
 * chosen.
 */
void kvt_host_pool_learn(struct kvt_host_pool *pool, uint32_t group, uint32_t length);

void *kvt_host_pool_address(const struct kvt_host_pool *pool, uint32_t slot);
uint32_t kvt_host_pool_slot_bytes(const struct kvt_host_pool *pool, uint32_t slot);
/* True when the slot is of the class that a block of so many bytes takes. */
bool kvt_host_pool_is_fitting(const struct kvt_host_pool *pool, uint32_t slot, uint32_t bytes);
/* The slots of the chunk that `slot` is in: first number and how many its class has. */
void kvt_host_pool_chunk_of(const struct kvt_host_pool *pool, uint32_t slot, uint32_t *ret_first, uint32_t *ret_count);
/* The block in a slot, KVT_NO_BLOCK when it is free. */
uint32_t kvt_host_pool_owner(const struct kvt_host_pool *pool, uint32_t slot);

size_t kvt_host_pool_bytes(const struct kvt_host_pool *pool);

#endif
