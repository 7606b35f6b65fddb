/*
 * prefix: which block has this key in this group.
 *
 * Open addressing with linear probing and backward-shift deletion; an entry is a 32-bit tag and a block number. The home of an
 * entry follows from its tag, so that probing and shifting touch no blocks but true candidates.
 *
 * Owns:    the table of entries. Blocks belong to block.h.
 * Thread:  under the runtime's lock.
 * Memory:  two entries of 8 bytes for each block. At most half full: a search for what is not there, which every seal makes, looks at
 *          2.5 entries then; at three quarters it would be 8.5, and as many more to shift at each removal.
 */
#ifndef KVT_RUNTIME_PREFIX_H
#define KVT_RUNTIME_PREFIX_H

#include "runtime/block.h"

struct kvt_prefix_entry { uint32_t tag, block; }; /* block + 1; 0: empty */

struct kvt_prefix {
    struct kvt_prefix_entry *entries;
    uint32_t capacity;
    uint32_t count;
    const struct kvt_block *blocks; /* borrowed: the block table */
};

/* entries_max: the most blocks that are ever indexed at once. */
KVT_NODISCARD enum kvt_status kvt_prefix_init(struct kvt_prefix *prefix, const struct kvt_block *blocks, uint32_t entries_max);
void kvt_prefix_done(struct kvt_prefix *prefix);

/* KVT_NO_BLOCK when there is none. */
uint32_t kvt_prefix_find(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key);
/* The block's group and key are set, and no other block has them. */
void kvt_prefix_insert(struct kvt_prefix *prefix, uint32_t block);
/* Both in one walk: the block that has the same group and key already, or KVT_NO_BLOCK, and then `block` was inserted. */
uint32_t kvt_prefix_find_or_insert(struct kvt_prefix *prefix, uint32_t block);
/* The block was inserted. */
void kvt_prefix_remove(struct kvt_prefix *prefix, uint32_t block);

/* Asks the memory for the line that a find of this key will touch first. */
void kvt_prefix_prefetch(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key);

size_t kvt_prefix_bytes(const struct kvt_prefix *prefix);

#endif
