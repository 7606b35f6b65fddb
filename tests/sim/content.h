/*
 * content: what each sealed block must hold, by the name that its record has in the store.
 *
 * The twin never looks at keys; this does, to ask the opposite question: is what lies under a name what was sealed
 * under it? Two contents under one name are a failure by themselves. Memory is kept between seeds.
 */
#ifndef KVT_TESTS_SIM_CONTENT_H
#define KVT_TESTS_SIM_CONTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/store.h"
#include "tests/sim/plan.h"

struct sim_sealed {
    struct kvt_store_name name;
    uint64_t values[SIM_BLOCK_TOKENS_MAX]; /* of the tokens; a state group: of the last one alone */
    uint32_t world;                        /* that it was sealed in */
    uint64_t digest;                       /* of the record's bytes when they were last found right; 0: they were not */
    uint32_t group;
    uint32_t durable; /* the run of sim.durable_run in which a sync covered it; 0: none did */
    bool is_unread;   /* its record was there after a crash, perhaps torn by it, and nobody has read it since */
};

struct sim_content {
    struct sim_sealed *entries; /* open addressing; an entry without a name is empty */
    uint32_t capacity, count;
};

/* Empties it; takes memory at the first call. */
void sim_content_clear(struct sim_content *content);
void sim_content_done(struct sim_content *content);

struct sim_sealed *sim_content_find(const struct sim_content *content, const struct kvt_store_name *name);
/* False: something else was sealed under this name. */
bool sim_content_note(struct sim_content *content, const struct sim_sealed *sealed);

#endif
