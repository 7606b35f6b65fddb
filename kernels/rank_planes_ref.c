/*
 * The reference of rank_planes: plain C, one element after the other, the specification of every other implementation.
 *
 * An element is split into its exponent (bf16 8 bits, fp16 5, fp8 4) and the rest (sign and mantissa):
 *
 *     bf16  rest byte = sign << 7 | mantissa
 *     fp16  rest byte = the low 8 mantissa bits; three words a group, all behind the plane's bytes: signs, bits 9, bits 8
 *     fp8   rest nibble = sign << 3 | mantissa; the even element in the low half of the byte
 */
#include "kernels/rank_planes.h"
#include "runtime/base/bytes.h"

enum { CLASS_FULL = 3 }; /* the two bits that say "look in the next level" */

/* What one group of up to 64 elements of a plane is made of. */
struct group {
    uint32_t count;
    uint8_t exponent[KVT_RANK_GROUP];
    uint8_t rest[KVT_RANK_GROUP];
    uint64_t sign, bit9, bit8; /* fp16 only: bit i for element i */
};

/* ---- Elements and their parts -------------------------------------------------------------------------------------- */

static uint32_t group_count(const struct kvt_rank_shape *shape, uint32_t group)
{
    return kvt_min_u32(KVT_RANK_GROUP, shape->elements - group * KVT_RANK_GROUP);
}

/* Takes the elements of a plane's group apart. */
static void split(const struct kvt_rank_shape *shape, const uint8_t *source, uint32_t group, struct group *ret_group)
{
    const size_t first = (size_t)group * KVT_RANK_GROUP;
    struct group g = { .count = group_count(shape, group) };
    for (uint32_t i = 0; i < g.count; i++) {
        if (shape->dtype == KVT_DTYPE_FP8) {
            const uint8_t x = source[first + i];
            g.exponent[i] = (x >> 3) & 15;
            g.rest[i] = (uint8_t)((x >> 4 & 8) | (x & 7));
            continue;
        }
        const uint16_t x = kvt_load_u16(source + 2 * (first + i));
        if (shape->dtype == KVT_DTYPE_BF16) {
            g.exponent[i] = (uint8_t)(x >> 7);
            g.rest[i] = (uint8_t)((x >> 8 & 0x80) | (x & 0x7f));
        } else {
            g.exponent[i] = (x >> 10) & 31;
            g.rest[i] = (uint8_t)x;
            g.sign |= (uint64_t)(x >> 15) << i;
            g.bit9 |= (uint64_t)(x >> 9 & 1) << i;
            g.bit8 |= (uint64_t)(x >> 8 & 1) << i;
        }
    }
    *ret_group = g;
}

/* Puts them together again. Bits of an exponent that the type does not have are dropped. */
static void join(const struct kvt_rank_shape *shape, const struct group *g, uint32_t group, uint8_t *target)
{
    const size_t first = (size_t)group * KVT_RANK_GROUP;
    for (uint32_t i = 0; i < g->count; i++) {
        const uint32_t e = g->exponent[i], rest = g->rest[i];
        if (shape->dtype == KVT_DTYPE_FP8) {
            target[first + i] = (uint8_t)((rest & 8) << 4 | (e & 15) << 3 | (rest & 7));
        } else if (shape->dtype == KVT_DTYPE_BF16) {
            kvt_store_u16(target + 2 * (first + i), (uint16_t)((rest & 0x80) << 8 | e << 7 | (rest & 0x7f)));
        } else {
            const uint32_t high = (uint32_t)(g->sign >> i & 1) << 15 | (uint32_t)(g->bit9 >> i & 1) << 9
                                | (uint32_t)(g->bit8 >> i & 1) << 8;
            kvt_store_u16(target + 2 * (first + i), (uint16_t)(high | (e & 31) << 10 | rest));
        }
    }
}

static void store_rest(const struct kvt_rank_shape *shape, const struct group *g, uint32_t group, uint8_t *plane_rest)
{
    const size_t first = (size_t)group * KVT_RANK_GROUP;
    if (shape->dtype == KVT_DTYPE_FP8) {
        for (uint32_t i = 0; i < g->count; i += 2)
            plane_rest[(first + i) / 2] = (uint8_t)(g->rest[i] | g->rest[i + 1] << 4); /* rest[count] is 0 */
        return;
    }
    memcpy(plane_rest + first, g->rest, g->count);
    if (shape->dtype == KVT_DTYPE_FP16) {
        uint8_t *words = plane_rest + shape->elements + (size_t)24 * group;
        kvt_store_u64(words, g->sign);
        kvt_store_u64(words + 8, g->bit9);
        kvt_store_u64(words + 16, g->bit8);
    }
}

static void load_rest(const struct kvt_rank_shape *shape, const uint8_t *plane_rest, uint32_t group, struct group *g)
{
    const size_t first = (size_t)group * KVT_RANK_GROUP;
    if (shape->dtype == KVT_DTYPE_FP8) {
        for (uint32_t i = 0; i < g->count; i++) g->rest[i] = plane_rest[(first + i) / 2] >> (i % 2 * 4) & 15;
        return;
    }
    memcpy(g->rest, plane_rest + first, g->count);
    if (shape->dtype == KVT_DTYPE_FP16) {
        const uint8_t *words = plane_rest + shape->elements + (size_t)24 * group;
        g->sign = kvt_load_u64(words);
        g->bit9 = kvt_load_u64(words + 8);
        g->bit8 = kvt_load_u64(words + 16);
    }
}

/* The base of element i of a plane; nothing is subtracted without bases. */
static uint8_t base_of(const struct kvt_rank_bases *bases, uint32_t plane, const struct kvt_rank_shape *shape, uint32_t i)
{
    return bases->plane[plane] ? bases->plane[plane][i % shape->channels] : 0;
}

/* ---- Bit streams ---------------------------------------------------------------------------------------------------- */

/* Appends one bit to each of two streams; a byte is cleared when its first bit comes. */
static void put_pair(uint8_t *const stream[2], uint32_t position, uint32_t pair)
{
    const uint32_t byte = position / 8, bit = position % 8;
    for (uint32_t k = 0; k < 2; k++) {
        if (bit == 0) stream[k][byte] = 0;
        stream[k][byte] |= (uint8_t)((pair >> k & 1) << bit);
    }
}

static uint32_t get_pair(const uint8_t *const stream[2], uint32_t position)
{
    const uint32_t byte = position / 8, bit = position % 8;
    return (stream[0][byte] >> bit & 1) | (stream[1][byte] >> bit & 1) << 1;
}

/* ---- The operations ------------------------------------------------------------------------------------------------- */

static bool is_supported(void) { return true; }

static void sample(const struct kvt_rank_shape *shape, const uint8_t *const source[2], const struct kvt_rank_bases *bases,
                   uint32_t ret_histogram[256])
{
    memset(ret_histogram, 0, 256 * sizeof ret_histogram[0]);
    const uint32_t plane_groups = kvt_rank_plane_groups(shape);
    struct kvt_rank_sampling sampling = kvt_rank_sampling_begin(shape);
    uint32_t index;
    while (kvt_rank_sampling_next(&sampling, &index)) {
        const uint32_t plane = index / plane_groups, group = index % plane_groups;
        struct group g;
        split(shape, source[plane], group, &g);
        for (uint32_t i = 0; i < g.count; i++) {
            const uint32_t element = group * KVT_RANK_GROUP + i;
            ret_histogram[(uint8_t)(g.exponent[i] - base_of(bases, plane, shape, element))]++;
        }
    }
}

/* rank_of[e] is the rank of exponent e, KVT_RANK_SYMBOLS for an escape. */
static void pack_group(struct kvt_rank_pack *args, uint32_t plane, uint32_t group, const uint8_t rank_of[256])
{
    struct group g;
    split(&args->shape, args->source[plane], group, &g);
    store_rest(&args->shape, &g, group, args->rest + plane * kvt_rank_plane_rest_bytes(&args->shape));

    uint64_t word[2] = { 0, 0 };
    for (uint32_t i = 0; i < g.count; i++) {
        const uint8_t e = (uint8_t)(g.exponent[i] - base_of(&args->bases, plane, &args->shape, group * KVT_RANK_GROUP + i));
        const uint32_t rank = rank_of[e];
        const uint32_t first = kvt_min_u32(rank, CLASS_FULL);
        word[0] |= (uint64_t)(first & 1) << i;
        word[1] |= (uint64_t)(first >> 1) << i;
        if (first < CLASS_FULL) continue;
        const uint32_t second = kvt_min_u32(rank - 3, CLASS_FULL);
        put_pair(args->second, args->second_count++, second);
        if (second < CLASS_FULL) continue;
        const uint32_t third = rank - 6;
        put_pair(args->third, args->third_count++, third);
        if (third < CLASS_FULL) continue;
        args->escapes[args->escape_count++] = e;
    }
    uint8_t *words = args->first + (size_t)16 * (plane * kvt_rank_plane_groups(&args->shape) + group);
    kvt_store_u64(words, word[0]);
    kvt_store_u64(words + 8, word[1]);
}

static void pack(struct kvt_rank_pack *args)
{
    uint8_t rank_of[256];
    memset(rank_of, KVT_RANK_SYMBOLS, sizeof rank_of);
    for (uint32_t r = 0; r < KVT_RANK_SYMBOLS; r++) rank_of[args->table.symbol[r]] = (uint8_t)r;
    args->second_count = args->third_count = args->escape_count = 0;
    for (uint32_t plane = 0; plane < args->shape.plane_count; plane++)
        for (uint32_t group = 0; group < kvt_rank_plane_groups(&args->shape); group++)
            pack_group(args, plane, group, rank_of);
}

/* How far the streams have been read. */
struct position { uint32_t second, third, escape; };

static bool unpack_group(const struct kvt_rank_unpack *args, uint32_t plane, uint32_t group, struct position *at)
{
    const uint8_t *words = args->first + (size_t)16 * (plane * kvt_rank_plane_groups(&args->shape) + group);
    const uint64_t word[2] = { kvt_load_u64(words), kvt_load_u64(words + 8) };
    struct group g = { .count = group_count(&args->shape, group) };
    if (g.count < KVT_RANK_GROUP && (word[0] | word[1]) >> g.count) return false;

    for (uint32_t i = 0; i < g.count; i++) {
        uint32_t rank = (uint32_t)(word[0] >> i & 1) | (uint32_t)(word[1] >> i & 1) << 1;
        if (rank == 3) {
            if (at->second == args->second_count) return false;
            rank += get_pair(args->second, at->second++);
        }
        if (rank == 6) {
            if (at->third == args->third_count) return false;
            rank += get_pair(args->third, at->third++);
        }
        uint8_t e;
        if (rank < KVT_RANK_SYMBOLS) {
            e = args->symbol[rank];
        } else {
            if (at->escape == args->escape_count) return false;
            e = args->escapes[at->escape++];
        }
        g.exponent[i] = (uint8_t)(e + base_of(&args->bases, plane, &args->shape, group * KVT_RANK_GROUP + i));
    }
    load_rest(&args->shape, args->rest + plane * kvt_rank_plane_rest_bytes(&args->shape), group, &g);
    join(&args->shape, &g, group, args->target[plane]);
    return true;
}

static bool unpack(const struct kvt_rank_unpack *args)
{
    struct position at = { 0, 0, 0 };
    for (uint32_t plane = 0; plane < args->shape.plane_count; plane++)
        for (uint32_t group = 0; group < kvt_rank_plane_groups(&args->shape); group++)
            if (!unpack_group(args, plane, group, &at)) return false;
    return at.second == args->second_count && at.third == args->third_count && at.escape == args->escape_count;
}

const struct kvt_rank_ops kvt_rank_ops_ref = {
    .name = "reference",
    .is_supported = is_supported,
    .sample = sample,
    .pack = pack,
    .unpack = unpack,
};
