/*
 * layers: fetches in the order of layers, so that a step computes on layer 0 while layer 1 is still on its way.
 *
 * Where the configuration asks for it, sealed blocks that a sequence lacks on the device and that host memory has are left
 * to the step that needs them. step_begin then reserves their slots and submits all of them at once, layer range by layer
 * range (each block in up to eight ranges): the sequence is in the step, LANDING. The stream is ordered behind a range by
 * kvt_step_wait_layer alone.
 *
 * Such a step may read what does not land: a failure comes after the kernels were queued. So what it computes is suspect
 * until everything it was to read has landed:
 * 1. Blocks that it fills are sealed, and not found by their keys, before that.
 * 2. Any fill that fails while a sequence is suspect, and any layer that its step did not wait for, takes back all that was
 *    computed since: the sequence is LOST from there on.
 * 3. What the step writes lies in blocks that were on the device before: an unsealed block is never left to a step.
 *
 * Thread: under the runtime's lock.
 */
#ifndef KVT_RUNTIME_LAYERS_H
#define KVT_RUNTIME_LAYERS_H

#include "runtime/core.h"

/* True when the planner leaves this block of the sequence to the step that needs it. */
bool kvt_layers_are_left(const struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t index);

/*
 * Of a sequence that is not ready: LANDING, and what it lacks is reserved and waits for kvt_layers_begin(); or
 * NOT_READY, and it is brought whole when that does not help either.
 */
enum kvt_ready kvt_layers_admit(struct kvt_core *core, struct kvt_sequence *sequence);
/* Submits what was reserved for the step, range by range. */
void kvt_layers_begin(struct kvt_core *core, struct kvt_step_state *step);
/* The step ends: who did not wait for a range that was on its way has read what may not have been there. */
void kvt_layers_end(struct kvt_core *core, const struct kvt_step_state *step, struct kvt_sequence *sequence);

/* READY: nothing of the sequence is suspect (any more). NOT_READY: some of it is. LOST: lost_from says from where. */
enum kvt_ready kvt_layers_settle(struct kvt_core *core, struct kvt_sequence *sequence);

/* INVAL: no such step, group or layer. */
KVT_NODISCARD enum kvt_status kvt_core_step_wait_layer(struct kvt_core *core, kvt_step step, uint32_t group,
                                                       uint32_t layer, uint32_t stream);

static inline bool kvt_sequence_is_suspect(const struct kvt_sequence *sequence)
{
    return sequence->suspect_from != UINT64_MAX;
}

#endif
