/* rank_cases: chunks of many shapes and contents, between canaries, for the tests of rank_planes. */
#ifndef KVT_TESTS_UNIT_RANK_CASES_H
#define KVT_TESTS_UNIT_RANK_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/rank_planes.h"
#include "runtime/base/rng.h"

enum rank_fill {
    RANK_FILL_RANDOM, /* every bit random */
    RANK_FILL_ZERO,
    RANK_FILL_CONSTANT,
    RANK_FILL_KV,      /* exponents in a narrow band around one that depends on the channel */
    RANK_FILL_SPECIAL, /* NaN payloads, infinities, denormals, zeros of both signs */
    RANK_FILL_TWO,     /* two far exponents: one ranked, one or both escapes */
    RANK_FILL_ESCAPES, /* more exponents than ranks, equally often */
    RANK_FILL_COUNT
};

const char *rank_fill_name(enum rank_fill fill);

/* Fills `elements` elements; element i is of channel i % channels. */
void rank_fill(uint8_t *target, enum kvt_dtype dtype, uint32_t elements, uint32_t channels, enum rank_fill fill,
               struct kvt_rng *rng);

/* Memory with canaries on both sides, at an odd address; ASan sees what they do not. */
struct rank_buffer {
    uint8_t *memory, *bytes;
    size_t size;
};
void rank_buffer_init(struct rank_buffer *buffer, size_t size);
/* False: something was written outside. */
bool rank_buffer_is_intact(const struct rank_buffer *buffer);
void rank_buffer_done(struct rank_buffer *buffer);

/* The buffers of one pack and its unpack. */
struct rank_case {
    struct kvt_rank_shape shape;
    struct rank_buffer source[2], target[2], rest, first, second[2], third[2], escapes;
    uint8_t *bases[2]; /* NULL without bases */
};

void rank_case_init(struct rank_case *c, struct kvt_rank_shape shape, bool is_based, enum rank_fill fill,
                    struct kvt_rng *rng);
bool rank_case_is_intact(const struct rank_case *c);
void rank_case_done(struct rank_case *c);

/* Samples, chooses and packs. */
struct kvt_rank_pack rank_case_pack(struct rank_case *c, const struct kvt_rank_ops *ops);
/* What unpacks into the targets what pack made. */
struct kvt_rank_unpack rank_case_unpack_args(struct rank_case *c, const struct kvt_rank_pack *packed);
/*
 * Unpacks from copies of the streams that are as long as the counts say and the slack, no more: ASan sees what reads
 * further.
 */
bool rank_case_unpack(const struct kvt_rank_ops *ops, struct kvt_rank_unpack args);

#endif
