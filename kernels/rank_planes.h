/*
 * rank_planes: the reversible transform that packs floating-point KV.
 *
 * Only the exponents of KV are redundant; sign and mantissa are noise. The transform takes the two apart. Exponents
 * get ranks: the nine commonest of a chunk (all inside one window of sixteen) the ranks 0 to 8, in order of
 * frequency, any other is an escape. A rank costs 2 bits, or 4, or 6:
 *
 *     rank      0  1  2 | 3  4  5 | 6  7  8 | escape
 *     first     0  1  2 | 3  3  3 | 3  3  3 | 3        2 bits of every element
 *     second            | 0  1  2 | 3  3  3 | 3        2 bits of those with first = 3
 *     third                       | 0  1  2 | 3        2 bits of those with second = 3
 *     escapes                                 exponent a byte for those with third = 3
 *
 * Bits are kept as planes in groups of 64 elements, bit i for element i, so that SIMD makes and reads them as masks.
 * docs/codec.md has the layout byte by byte.
 *
 * A chunk has one or two planes (K and V), each of its own address, each cut into groups of its own; the last group
 * of a plane may be short. Element i of a plane belongs to channel i % channels.
 *
 * Implementations: rank_planes_ref.c is the specification. The others write identical bytes and give identical
 * verdicts. Inline functions here are host and device code.
 * Thread:  any, no state.
 * Memory:  the caller's.
 */
#ifndef KVT_KERNELS_RANK_PLANES_H
#define KVT_KERNELS_RANK_PLANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/body.h"
#include "kvtier/shape.h"

enum {
    KVT_RANK_GROUP = 64,       /* elements of a group */
    KVT_RANK_SYMBOLS = 9,      /* exponents that have a rank */
    KVT_RANK_WINDOW = 16,      /* values among which they lie */
    KVT_RANK_SAMPLES_MAX = 40, /* groups of a sample: 32 stretches of at least 4 groups, and what is left over */
    KVT_RANK_SLACK = 64        /* bytes that may be read behind, or written behind, a stream: see below */
};

struct kvt_rank_shape {
    enum kvt_dtype dtype; /* bf16, fp16 or fp8 (e4m3) */
    uint32_t plane_count; /* 1 or 2 */
    uint32_t channels;    /* at least 1 */
    uint32_t elements;    /* of one plane; plane_count * elements < 2^32 - 128 */
};

/*
 * What is subtracted (mod 256) from the exponents of each channel. bases[p] has channels + KVT_RANK_GROUP bytes, and
 * goes on periodically behind the last channel: bases[p][i] = bases[p][i % channels]. NULL: nothing is subtracted.
 */
struct kvt_rank_bases {
    const uint8_t *plane[2];
};

/* symbol[r] is the exponent (after subtraction) of rank r; all lie in low .. low + 15 (mod 256). */
struct kvt_rank_table {
    uint8_t symbol[KVT_RANK_SYMBOLS];
    uint8_t low;
};

/* rest: sign and mantissa. first: two words for each group. second, third: bit streams. */
struct kvt_rank_pack {
    struct kvt_rank_shape shape;
    const uint8_t *source[2];
    struct kvt_rank_bases bases;
    struct kvt_rank_table table;
    uint8_t *rest;         /* exactly kvt_rank_rest_bytes() are written */
    uint8_t *first;        /* exactly kvt_rank_first_bytes() are written */
    uint8_t *second[2];    /* room for kvt_rank_stream_room() each; bits behind the last are 0 up to a byte's end */
    uint8_t *third[2];     /* the same */
    uint8_t *escapes;      /* room for all elements and KVT_RANK_SLACK */
    uint32_t second_count; /* out: bits of each second stream */
    uint32_t third_count;  /* out */
    uint32_t escape_count; /* out */
};

/*
 * The caller has checked that rest and first are there in full, and escape_count <= third_count <= second_count <=
 * elements.
 */
struct kvt_rank_unpack {
    struct kvt_rank_shape shape;
    uint8_t *target[2];
    struct kvt_rank_bases bases;
    uint8_t symbol[KVT_RANK_SYMBOLS];
    const uint8_t *rest;      /* read exactly */
    const uint8_t *first;     /* read exactly */
    const uint8_t *second[2]; /* KVT_RANK_SLACK readable bytes must follow what the counts say, in all of the rest */
    const uint8_t *third[2];
    const uint8_t *escapes;
    uint32_t second_count;
    uint32_t third_count;
    uint32_t escape_count;
};

struct kvt_rank_ops {
    const char *name;
    bool is_for_checks;         /* never the best: it is there to be compared */
    bool (*is_supported)(void); /* by this machine */

    /*
     * Counts the exponents (after subtraction) of a sample of groups: at most 40, spread over the chunk and over the
     * channels.
     */
    void (*sample)(const struct kvt_rank_shape *shape, const uint8_t *const source[2],
                   const struct kvt_rank_bases *bases, uint32_t ret_histogram[256]);
    void (*pack)(struct kvt_rank_pack *args);
    /* False: the streams do not fit together. Never reads or writes out of bounds; the target is undefined then. */
    bool (*unpack)(const struct kvt_rank_unpack *args);
};

extern const struct kvt_rank_ops kvt_rank_ops_ref;
extern const struct kvt_rank_ops kvt_rank_ops_body; /* the GPU's thread body in a loop: rank_body.h */

/* The fastest one that this machine supports. */
const struct kvt_rank_ops *kvt_rank_ops_best(void);
/* The i-th that is built in, the reference first; NULL past the end. It may be unsupported here. */
const struct kvt_rank_ops *kvt_rank_ops_at(uint32_t i);

/*
 * The nine ranks for a histogram: the window of sixteen that holds most, and in it the nine commonest, the smaller
 * first among equals. Returns the bits that the counted elements would take, escapes included.
 */
uint64_t kvt_rank_choose(const uint32_t histogram[256], struct kvt_rank_table *ret_table);

KVT_BODY uint32_t kvt_rank_plane_groups(const struct kvt_rank_shape *shape)
{
    return (shape->elements + KVT_RANK_GROUP - 1) / KVT_RANK_GROUP;
}

/* Sign and mantissa of one plane: bf16 a byte an element; fp16 a byte and three bit planes; fp8 a nibble. */
KVT_BODY size_t kvt_rank_plane_rest_bytes(const struct kvt_rank_shape *shape)
{
    if (shape->dtype == KVT_DTYPE_FP8) return ((size_t)shape->elements + 1) / 2;
    return shape->elements + (shape->dtype == KVT_DTYPE_FP16 ? (size_t)24 * kvt_rank_plane_groups(shape) : 0);
}

KVT_BODY size_t kvt_rank_rest_bytes(const struct kvt_rank_shape *shape)
{
    return shape->plane_count * kvt_rank_plane_rest_bytes(shape);
}

KVT_BODY size_t kvt_rank_first_bytes(const struct kvt_rank_shape *shape)
{
    return (size_t)16 * shape->plane_count * kvt_rank_plane_groups(shape);
}

/* Room that pack wants for each second and third stream. */
KVT_BODY size_t kvt_rank_stream_room(const struct kvt_rank_shape *shape)
{
    return (size_t)8 * shape->plane_count * kvt_rank_plane_groups(shape) + KVT_RANK_SLACK;
}

/*
 * The groups that sample looks at: one of each stretch of groups, at a place in it that moves from stretch to
 * stretch, so that no channel count makes it see the same channels again and again. Next one after the `index`-th;
 * ends at or past the group count.
 */
struct kvt_rank_sampling {
    uint32_t group_count, stretch, index;
};

KVT_BODY struct kvt_rank_sampling kvt_rank_sampling_begin(const struct kvt_rank_shape *shape)
{
    const uint32_t groups = shape->plane_count * kvt_rank_plane_groups(shape);
    const uint32_t stretch = groups / 32 > 4 ? groups / 32 : 4;
    struct kvt_rank_sampling sampling = { groups, stretch, 0 };
    return sampling;
}

KVT_BODY bool kvt_rank_sampling_next(struct kvt_rank_sampling *sampling, uint32_t *ret_group)
{
    const uint64_t start = (uint64_t)sampling->index * sampling->stretch;
    if (start >= sampling->group_count) return false;
    const uint64_t left = sampling->group_count - start;
    const uint32_t width = left < sampling->stretch ? (uint32_t)left : sampling->stretch;
    *ret_group = (uint32_t)start + ((sampling->index * 0x9e3779b1u) >> 16) % width;
    sampling->index++;
    return true;
}

#endif
