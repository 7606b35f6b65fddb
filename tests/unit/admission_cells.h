/*
 * admission_cells: workloads on which the admission policies are held against each other.
 *
 * Published traces where they can be read, the generators of `kvtier sim`, and ten patterns made here: documents asked
 * by popularity, loops, scans beside what is hot, sets that shift, sessions, passages put together, what is asked twice
 * or a few times and never again, mixtures and phases of them. Each is a pure function of its number.
 */
#ifndef KVT_TESTS_UNIT_ADMISSION_CELLS_H
#define KVT_TESTS_UNIT_ADMISSION_CELLS_H

#include "tools/sim/count.h"

/* A pattern; there are KVT_PATTERNS of them, and each takes its sizes from the seed. */
#define KVT_PATTERNS 10u
const char *kvt_pattern_name(uint32_t pattern);
void kvt_pattern_accesses(uint32_t pattern, uint64_t seed, uint32_t accesses_max, struct kvt_accesses *ret_accesses);

/* A generator of kvtier sim, the i-th of KVT_GENERATORS. */
#define KVT_GENERATORS 4u
const char *kvt_generator_name(uint32_t i);
void kvt_generator_accesses(uint32_t i, uint64_t seed, uint32_t requests, uint32_t block_tokens,
                            struct kvt_accesses *ret_accesses);

/* A published trace, the i-th of KVT_TRACES; false where it cannot be read. */
#define KVT_TRACES 3u
const char *kvt_trace_name(uint32_t i);
bool kvt_trace_accesses(uint32_t i, struct kvt_accesses *ret_accesses);

#endif
