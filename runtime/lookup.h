/* lookup: blocks by key, in any tier. Thread: under the runtime's lock. */
#ifndef KVT_RUNTIME_LOOKUP_H
#define KVT_RUNTIME_LOOKUP_H

#include "runtime/core.h"

/* True when some tier holds the block of this group and key. ret_tier: the fastest that does. Holds nothing. */
bool kvt_lookup_exists(struct kvt_core *core, uint32_t group, struct kvt_key key, uint32_t *ret_tier);

/*
 * Finds and holds in one step (the caller owns one ref). KVT_NO_BLOCK: no tier holds it (any more), or the block table
 * is full.
 */
uint32_t kvt_lookup_hold(struct kvt_core *core, uint32_t group, struct kvt_key key);

#endif
