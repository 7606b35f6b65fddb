/*
 * flow: transfers from their beginning to their one end.
 *
 * Begin reserves everything that the whole way needs, or nothing. Completions change copy states, count, and start the
 * second leg.
 *
 * Thread: under the runtime's lock.
 */
#ifndef KVT_RUNTIME_FLOW_H
#define KVT_RUNTIME_FLOW_H

#include "runtime/core.h"

enum kvt_flow {
    KVT_FLOW_STARTED,
    KVT_FLOW_THERE, /* nothing to do: the copy is there, or on its way already */
    KVT_FLOW_WAIT,  /* its source is being filled: ask again after the next completion */
    KVT_FLOW_NO_DEVICE_SLOT,
    KVT_FLOW_NO_HOST_SLOT,
    KVT_FLOW_BUSY, /* no transfer free, or the store refuses for the moment */
    KVT_FLOW_LOST  /* no tier holds it */
};

/* Fills the device copy of a block from the fastest tier that has its bytes (or its origin's). */
enum kvt_flow kvt_flow_fetch(struct kvt_core *core, uint32_t index, enum kvt_op_priority priority);

/* Bytes of host memory that a fetch of the block from nvme passes through: its own record's, or its origin's. */
uint32_t kvt_flow_fetch_bytes(const struct kvt_core *core, uint32_t index);

/* Brings the block from nvme to host memory alone. */
enum kvt_flow kvt_flow_lift(struct kvt_core *core, uint32_t index, enum kvt_op_priority priority);

/* Where a reader wants one layer of a block: the window's block, the place in it, and what compute last did there. */
struct kvt_window_place {
    uint32_t block, place;
    kvt_mark after;
    uint32_t reader, pass, entry;
};
/* Moves a layer of a block that is in host memory to a place in a window. STARTED | BUSY. */
enum kvt_flow kvt_flow_to_window(struct kvt_core *core, uint32_t index, uint32_t layer,
                                 const struct kvt_window_place *place);

/* Ranges of layers that a block of the group comes in when it comes layer by layer. */
static inline uint32_t kvt_flow_land_ranges(const struct kvt_core *core, uint32_t group)
{
    return core->groups[group].layers < KVT_LAND_RANGES ? core->groups[group].layers : KVT_LAND_RANGES;
}
/*
 * Reserves the device copy of a block that host memory has; the transfer that fills it, with nothing submitted. Each of
 * its ranges is then submitted once, in order, as a transfer of its own but for the last one. Requires that all of
 * it has room: slot, transfers, and the device's queue. land_range: a mark behind the range.
 */
uint32_t kvt_flow_land(struct kvt_core *core, uint32_t index);
kvt_mark kvt_flow_land_range(struct kvt_core *core, uint32_t transfer, uint32_t range);

/* A transfer is free, and the device takes an op at once. */
bool kvt_flow_can_copy_now(const struct kvt_core *core);
/*
 * The copy within the device that fills a block whose slot is reserved already, from one that is RESIDENT and is not
 * held for it, in the order of the engine's stream: what is read earlier or later would be another state. Requires
 * can_copy_now.
 */
void kvt_flow_copy_reserved(struct kvt_core *core, uint32_t source, uint32_t target, uint32_t stream);

/* Copies a block one tier down: device -> host, host -> nvme. */
enum kvt_flow kvt_flow_stash_to_host(struct kvt_core *core, uint32_t index, enum kvt_op_priority priority);
enum kvt_flow kvt_flow_stash_to_nvme(struct kvt_core *core, uint32_t index, enum kvt_op_priority priority);

/* Takes what the tiers hand back, at most a batch from each. True when a batch was full. */
bool kvt_flow_poll(struct kvt_core *core);
/* Abandons what is past its deadline. */
void kvt_flow_check_deadlines(struct kvt_core *core);
/* Hands to the tiers what waits for a place in their queues. */
void kvt_flow_submit_waiting(struct kvt_core *core);
/* Ends what still waits for one, as failed: no tier has it. */
void kvt_flow_cancel_waiting(struct kvt_core *core);

#endif
