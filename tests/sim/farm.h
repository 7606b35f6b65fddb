/*
 * farm: many seeds in worker processes, and the shrinking of one that failed.
 *
 * A seed that fails, crashes or does not end takes its worker with it; a new one goes on with the next seed.
 */
#ifndef KVT_TESTS_SIM_FARM_H
#define KVT_TESTS_SIM_FARM_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/sim.h"

#define FARM_FAILURES_MAX 16

struct farm_result;

struct farm_config {
    uint64_t first, count; /* seeds */
    uint32_t ticks, without, jobs;
    uint32_t seconds_max; /* of processor time for a seed; then it counts as hanging */
    bool is_first_enough; /* ends at the first failure */
    /*
     * Called about twice a second, with how many seeds are done, how many from the first on without a gap, and what
     * failed so far.
     */
    void (*progress)(void *user, uint64_t done, uint64_t done_in_a_row, const struct farm_result *result);
    void *user;
};

struct farm_failure {
    uint64_t seed;
    struct sim_outcome outcome;
};

struct farm_result {
    uint64_t done, done_in_a_row, failed;
    struct farm_failure failures[FARM_FAILURES_MAX]; /* the first of them, by seed */
    struct sim_counts counts;
    double seconds;
};

/* False: no worker could be started, or no memory. */
bool farm_run(const struct farm_config *config, struct farm_result *ret_result);

/* One seed in a process of its own. */
struct sim_outcome farm_try(uint64_t seed, uint32_t ticks, uint32_t without, bool is_traced, uint32_t seconds_max);

/*
 * Fewer ticks, and faults switched off one by one, as long as the seed fails alike. Returns how it fails in the end;
 * ticks and without are changed.
 */
struct sim_outcome farm_shrink(uint64_t seed, uint32_t *ticks, uint32_t *without, uint32_t seconds_max);

#endif
