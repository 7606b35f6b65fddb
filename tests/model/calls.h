/* calls: random calls on the core, each checked against the twin. */
#ifndef KVT_TESTS_MODEL_CALLS_H
#define KVT_TESTS_MODEL_CALLS_H

#include "tests/model/world.h"

/* One random call (or a little of what runs by itself). */
void calls_one(struct world *world);

/* Faults end, every sequence comes back ready or lost, everything drains, and nothing is left behind. */
void calls_finish(struct world *world);

/*
 * Creates with exactly these ids; checks what is found against the twin. The sequence's index in world.sequences;
 * UINT32_MAX: refused.
 */
uint32_t calls_create(struct world *world, const uint32_t *ids, uint32_t count, uint64_t reuse_max, uint32_t salt,
                      bool is_idle);
/*
 * Reserves, waits, steps and commits until the sequence has `tokens` more; ids are given. Snapshots where
 * `is_snapshot`.
 */
void calls_decode(struct world *world, uint32_t index, const uint32_t *ids, uint32_t count, bool is_snapshot);
void calls_finish_sequence(struct world *world, uint32_t index, bool is_kept);

#endif
