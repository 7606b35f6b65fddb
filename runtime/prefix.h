/*
 * prefix: which block has this key in this group.
 *
 * A hash table of buckets. A bucket is one cache line: twelve entries of an 8-bit tag and a block number. All tags of a
 * bucket are compared at once, so a call reads one line, takes no branch that depends on where in it an entry stands,
 * and touches only blocks that are true candidates (and one in 35 that is not). An entry whose bucket is full goes to
 * the next one; a bucket counts how many went past it, so that a search stops at the first bucket that nobody passed,
 * and a removal shifts nothing.
 *
 * Owns:    the buckets. Blocks belong to block.h.
 * Thread:  under the runtime's lock.
 * Memory:  a bucket for each seven blocks: 9.2 bytes a block. One bucket in 40 overflows then.
 */
#ifndef KVT_RUNTIME_PREFIX_H
#define KVT_RUNTIME_PREFIX_H

#include "runtime/block.h"

#define KVT_PREFIX_LANES 12u

struct kvt_prefix_bucket {
    /*
     * A tag of each lane, 0 where the lane is empty: lanes 0 to 7 in the first word, the first in its lowest byte, lanes 8 to 11
     * in the low half of the second. Its high half counts the entries that belong here or before and stand in a later bucket.
     */
    uint64_t tags[2];
    uint32_t blocks[KVT_PREFIX_LANES];
};

struct kvt_prefix {
    struct kvt_prefix_bucket *buckets;
    uint32_t bucket_count;
    uint32_t count;
    const struct kvt_block *blocks; /* borrowed: the block table */
};

/* entries_max: the most blocks that are ever indexed at once. */
KVT_NODISCARD enum kvt_status kvt_prefix_init(struct kvt_prefix *prefix, const struct kvt_block *blocks,
                                              uint32_t entries_max);
void kvt_prefix_done(struct kvt_prefix *prefix);

/* KVT_NO_BLOCK when there is none. */
uint32_t kvt_prefix_find(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key);
/* The block's group and key are set, and no other block has them. */
void kvt_prefix_insert(struct kvt_prefix *prefix, uint32_t block);
/*
 * Both in one walk: the block that has the same group and key already, or KVT_NO_BLOCK, and then `block` was inserted.
 */
uint32_t kvt_prefix_find_or_insert(struct kvt_prefix *prefix, uint32_t block);
/* The block was inserted. */
void kvt_prefix_remove(struct kvt_prefix *prefix, uint32_t block);

/* Asks the memory for the line that a find of this key will touch first. */
void kvt_prefix_prefetch(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key);

size_t kvt_prefix_bytes(const struct kvt_prefix *prefix);

#endif
