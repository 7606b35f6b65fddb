/*
 * planner: decides what moves between tiers, and when.
 *
 * By priority: fetches that a sequence waits for, prefetches by the time they are needed, write-back while links are
 * idle. Making room starts at a low watermark of free slots and ends at a high one, in the order of the pool's policy.
 *
 * Thread:  under the runtime's lock.
 * Work:    each call is bounded by a batch; what is left over is done in the next round.
 */
#ifndef KVT_RUNTIME_PLANNER_H
#define KVT_RUNTIME_PLANNER_H

#include <stdbool.h>
#include <stdint.h>

struct kvt_core;
struct kvt_sequence;
struct kvt_sequence_cursor;

/* Evicts as far as watermarks and waiting appends ask. True when something moved. */
bool kvt_planner_make_room(struct kvt_core *core);

/*
 * Makes room for a host slot of so many bytes. True when it is there now. When nothing moves any more and no copy may
 * go, one that an idle sequence alone holds is given up.
 */
bool kvt_planner_make_host_room(struct kvt_core *core, uint32_t bytes);

/* False: nothing in flight or evictable can give a slot any more until some sequence lets go. */
bool kvt_planner_can_make_room(const struct kvt_core *core);

/* Starts fetches and write-backs. True when something was started. */
bool kvt_planner_start(struct kvt_core *core);

/* What bringing the whole sequence back is expected to take, as if nothing of it were on the device. */
uint64_t kvt_planner_fetch_ns(const struct kvt_core *core, const struct kvt_sequence *sequence);

/*
 * The sequence's block at a place, KVT_NO_BLOCK where there is none; false past the end. Moves the cursor over group
 * ends.
 */
bool kvt_planner_block_at(const struct kvt_core *core, const struct kvt_sequence *sequence,
                          struct kvt_sequence_cursor *cursor, uint32_t *ret_block);

/* When a prefetch wants to start; UINT64_MAX: never. */
uint64_t kvt_planner_next_start_ns(const struct kvt_core *core);

#endif
