/*
 * residency: claims, holds and copies of single blocks. The only place where they come and go, so that every counter
 *            that
 * is derived from them (claimed, leaving, idle lists, used bytes) is right at every moment.
 *
 * Thread: under the runtime's lock.
 */
#ifndef KVT_RUNTIME_RESIDENCY_H
#define KVT_RUNTIME_RESIDENCY_H

#include "runtime/core.h"

/*
 * A live sequence (or a copy in the making) holds the block. The first hold of a block also holds its record in the
 * store.
 */
void kvt_block_ref(struct kvt_core *core, uint32_t index);
/* The last one gone: a public block stays cached, a private one ends. */
void kvt_block_unref(struct kvt_core *core, uint32_t index);

/* An active sequence claims the block for the device; it may not leave. */
void kvt_block_claim(struct kvt_core *core, uint32_t index);
/* mark: the last compute work of that sequence, that may still read or write the slot. */
void kvt_block_unclaim(struct kvt_core *core, uint32_t index, kvt_mark mark);

/* The block is no longer found; without refs it ends. */
void kvt_block_unindex(struct kvt_core *core, uint32_t index);

/* Copies. EVICT edges with everything that hangs on them; the slot's next user waits for the slot's mark. */
void kvt_device_drop(struct kvt_core *core, uint32_t index, enum kvt_policy_why why);
void kvt_host_drop(struct kvt_core *core, uint32_t index, enum kvt_policy_why why);
/* The core no longer knows of a record; is_forgotten: the store shall not either. */
void kvt_nvme_drop(struct kvt_core *core, uint32_t index, bool is_forgotten);
/* A read of the record is back: one reader less. A copy whose record left meanwhile, and was not held, is none any more. */
void kvt_nvme_read_over(struct kvt_core *core, uint32_t index);

/* A slot for the block's device or host copy, which is FILLING then. False: there is none. */
bool kvt_device_reserve(struct kvt_core *core, uint32_t index);
bool kvt_host_reserve(struct kvt_core *core, uint32_t index, uint32_t bytes);

/* A reserved copy is not filled after all. is_quarantined: the slot stays taken; the caller gives it back later. */
void kvt_device_failed(struct kvt_core *core, uint32_t index, bool is_quarantined);
void kvt_host_failed(struct kvt_core *core, uint32_t index, bool is_quarantined);

/* A copy was chosen and could not leave: it is not chosen again before core->changes grows. */
void kvt_park(struct kvt_core *core, uint32_t index, bool is_device);
/*
 * Offers parked copies again when something has changed since. Each was parked by one look at it: the work is bounded
 * by that.
 */
void kvt_unpark_changed(struct kvt_core *core, struct kvt_parked *parked, bool is_device);

/* A copy was chosen to leave: it goes as soon as nobody reads it and it may. */
void kvt_device_leave(struct kvt_core *core, uint32_t index);
void kvt_host_leave(struct kvt_core *core, uint32_t index);
/*
 * A reader is gone: what was waiting for that happens now. has_failed: it was a stash that cannot be had, so that a
 * copy which nobody holds goes without one.
 */
void kvt_copy_reader_gone(struct kvt_core *core, uint32_t index, uint32_t tier, bool has_failed);

/* The device copy is filled (an engine's slot at once, a fetched one at its completion). */
void kvt_device_filled(struct kvt_core *core, uint32_t index);
void kvt_host_filled(struct kvt_core *core, uint32_t index);
/* The record is in the store; holds it when somebody holds the block. False: it is gone already. */
bool kvt_nvme_filled(struct kvt_core *core, uint32_t index);

/* Puts the device or host copy on its policy's idle list, or takes it off, as its state says. */
void kvt_device_update_idle(struct kvt_core *core, uint32_t index);
void kvt_host_update_idle(struct kvt_core *core, uint32_t index);

/* Asks the memory for the slot of the block's device copy. */
void kvt_device_prefetch(const struct kvt_core *core, uint32_t index);

/*
 * Gives a block of a fresh slot to the engine: RESIDENT at once, claimed by one, held by one. KVT_NO_BLOCK: no slot, or
 * no entry.
 */
uint32_t kvt_block_fresh(struct kvt_core *core, uint32_t group);

/* Ends the block when nothing holds it, reads it, or keeps it cached. */
void kvt_block_settle(struct kvt_core *core, uint32_t index);

/* Remembers that compute used the slot up to mark. */
void kvt_slot_mark(struct kvt_core *core, const struct kvt_block *block, kvt_mark mark);

/* True when another tier than `tier` holds the block. */
bool kvt_block_has_copy_besides(const struct kvt_block *block, uint32_t tier);

/* The name under which the store keeps the block. */
struct kvt_name kvt_block_name(const struct kvt_core *core, uint32_t index);

/* Raw bytes of so many valid tokens of the block's group. */
uint32_t kvt_block_raw_bytes(const struct kvt_core *core, const struct kvt_block *block, uint32_t tokens);

/* Puts a block into the queue of those that want a lower copy: 0 to host, 1 to nvme. */
void kvt_write_back_push(struct kvt_core *core, uint32_t queue, uint32_t index);

/* Tokens that an op on the block must name: a state block's ops move one row. */
uint32_t kvt_block_op_tokens(const struct kvt_core *core, const struct kvt_block *block, uint32_t tokens);

#endif
