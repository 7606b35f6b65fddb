/*
 * fake_runtime: the calls of kvtier.h that the main job makes, on plain memory: no tiers, no threads but a stream's.
 *
 * An idle sequence's blocks move to memory of their own and come back into other slots when it is resumed; a finished
 * one's stay as a cache. Knobs make it late, lossy or wrong. One at a time; link it instead of the runtime.
 */
#ifndef KVT_TESTS_UNIT_FAKE_RUNTIME_H
#define KVT_TESTS_UNIT_FAKE_RUNTIME_H

#include <stdatomic.h>

#include "kvtier/kvtier.h"

struct fake_knobs {
    uint32_t slots; /* of each group */
    /* idle sequences that it has room for: with more of them everything is full; 0: any number */
    uint32_t idle_max;
    uint32_t unready_begins; /* what comes back is not ready for so many kvt_step_begin calls */
    bool is_never_ready;
    uint64_t lose_from; /* the first resume finds the tokens from here on lost; 0: none */
    bool is_flipped;    /* the first resume brings a block back with one wrong byte */
    uint64_t flip_block, flip_byte;
    atomic_bool *interrupt_at_begin; /* set at kvt_step_begin number interrupt_begin */
    uint64_t interrupt_begin;
};

/* What the main job did to it. */
struct fake_seen {
    uint64_t begins, steps, expects, idles, resumes, finishes, snapshots;
    uint32_t step_sequences_max; /* sequences of one step */
    uint64_t expected_steps_max;
};

struct kvt_runtime *fake_open(const struct kvt_model_shape *shape, const struct fake_knobs *knobs);
const struct fake_seen *fake_seen(const struct kvt_runtime *runtime);
/* Sequences that are live at this moment. */
uint32_t fake_live(const struct kvt_runtime *runtime);
void fake_close(struct kvt_runtime **runtime);

#endif
