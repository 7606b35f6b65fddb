/*
 * The reference of rank_planes: plain C, one element after the other, the specification of every other
 * implementation.
 *
 * An element is split into its exponent (bf16 8 bits, fp16 5, fp8 4) and the rest (sign and mantissa):
 *
 *     bf16  rest byte = sign << 7 | mantissa
 *     fp16  rest byte = the low 8 mantissa bits; behind a plane's bytes three words a group: signs, bits 9, bits 8
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

/* ---- Elements and their parts ---------------------------------------------------------------------------------- */

static uint32_t group_count(const struct kvt_rank_shape *shape, uint32_t group)
{
    return kvt_min_u32(KVT_RANK_GROUP, shape->elements - group * KVT_RANK_GROUP);
}

static void split_bf16(const uint8_t *source, struct group *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        const uint16_t x = kvt_load_u16(source + 2 * (size_t)i);
        g->exponent[i] = (uint8_t)(x >> 7);
        g->rest[i] = (uint8_t)((x >> 8 & 0x80) | (x & 0x7f));
    }
}

static void split_fp16(const uint8_t *source, struct group *g)
{
    g->sign = g->bit9 = g->bit8 = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const uint16_t x = kvt_load_u16(source + 2 * (size_t)i);
        g->exponent[i] = x >> 10 & 31;
        g->rest[i] = (uint8_t)x;
        g->sign |= (uint64_t)(x >> 15) << i;
        g->bit9 |= (uint64_t)(x >> 9 & 1) << i;
        g->bit8 |= (uint64_t)(x >> 8 & 1) << i;
    }
}

static void split_fp8(const uint8_t *source, struct group *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        g->exponent[i] = source[i] >> 3 & 15;
        g->rest[i] = (uint8_t)((source[i] >> 4 & 8) | (source[i] & 7));
    }
}

static size_t group_offset(const struct kvt_rank_shape *shape, uint32_t group)
{
    return (size_t)group * KVT_RANK_GROUP * kvt_dtype_bytes(shape->dtype);
}

/* Takes the elements of a plane's group apart, and subtracts the bases of their channels from the exponents. */
static void split(const struct kvt_rank_shape *shape, const uint8_t *source, const uint8_t *bases, uint32_t group,
                  struct group *g)
{
    g->count = group_count(shape, group);
    source += group_offset(shape, group);
    if (shape->dtype == KVT_DTYPE_BF16) split_bf16(source, g);
    else if (shape->dtype == KVT_DTYPE_FP16) split_fp16(source, g);
    else split_fp8(source, g);
    if (!bases) return;
    bases += group * KVT_RANK_GROUP % shape->channels;
    for (uint32_t i = 0; i < g->count; i++) g->exponent[i] = (uint8_t)(g->exponent[i] - bases[i]);
}

static void join_bf16(const struct group *g, uint8_t *target)
{
    for (uint32_t i = 0; i < g->count; i++) {
        const uint32_t e = g->exponent[i], rest = g->rest[i];
        kvt_store_u16(target + 2 * (size_t)i, (uint16_t)((rest & 0x80) << 8 | e << 7 | (rest & 0x7f)));
    }
}

static void join_fp16(const struct group *g, uint8_t *target)
{
    for (uint32_t i = 0; i < g->count; i++) {
        const uint32_t e = g->exponent[i] & 31;
        const uint32_t high = (uint32_t)(g->sign >> i & 1) << 15 | e << 10 | (uint32_t)(g->bit9 >> i & 1) << 9
            | (uint32_t)(g->bit8 >> i & 1) << 8;
        kvt_store_u16(target + 2 * (size_t)i, (uint16_t)(high | g->rest[i]));
    }
}

static void join_fp8(const struct group *g, uint8_t *target)
{
    for (uint32_t i = 0; i < g->count; i++)
        target[i] = (uint8_t)((g->rest[i] & 8) << 4 | (g->exponent[i] & 15) << 3 | (g->rest[i] & 7));
}

/* Adds the bases and puts the elements together. Bits of an exponent that the type does not have are dropped. */
static void join(const struct kvt_rank_shape *shape, struct group *g, const uint8_t *bases, uint32_t group,
                 uint8_t *target)
{
    if (bases) {
        bases += group * KVT_RANK_GROUP % shape->channels;
        for (uint32_t i = 0; i < g->count; i++) g->exponent[i] = (uint8_t)(g->exponent[i] + bases[i]);
    }
    target += group_offset(shape, group);
    if (shape->dtype == KVT_DTYPE_BF16) join_bf16(g, target);
    else if (shape->dtype == KVT_DTYPE_FP16) join_fp16(g, target);
    else join_fp8(g, target);
}

static void store_rest(const struct kvt_rank_shape *shape, const struct group *g, uint32_t group, uint8_t *plane_rest)
{
    const size_t first = (size_t)group * KVT_RANK_GROUP;
    if (shape->dtype == KVT_DTYPE_FP8) {
        for (uint32_t i = 0; i < g->count; i += 2) {
            const uint8_t odd = i + 1 < g->count ? g->rest[i + 1] : 0;
            plane_rest[(first + i) / 2] = (uint8_t)(g->rest[i] | odd << 4);
        }
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

/* ---- Bit streams ----------------------------------------------------------------------------------------------- */

/*
 * Appends `count` bits, at most 64, to each of two streams. Bits behind them up to a byte's end, and some bytes more,
 * become 0.
 */
static void put_bits(uint8_t *const stream[2], uint32_t position, const uint64_t bits[2], uint32_t count)
{
    const uint32_t shift = position % 8;
    for (uint32_t k = 0; k < 2; k++) {
        uint8_t *p = stream[k] + position / 8;
        const uint64_t held = shift ? *p & ((1u << shift) - 1) : 0;
        kvt_store_u64(p, held | bits[k] << shift);
        if (shift + count > 64) p[8] = (uint8_t)(bits[k] >> (64 - shift));
    }
}

/* 64 bits from a position on: fewer may count, the rest is slack. */
static uint64_t get_bits(const uint8_t *stream, uint32_t position)
{
    const uint8_t *p = stream + position / 8;
    const uint32_t shift = position % 8;
    return shift ? kvt_load_u64(p) >> shift | (uint64_t)p[8] << (64 - shift) : kvt_load_u64(p);
}

/* ---- The operations -------------------------------------------------------------------------------------------- */

static bool is_supported(void) { return true; }

static void sample(const struct kvt_rank_shape *shape, const uint8_t *const source[2],
                   const struct kvt_rank_bases *bases, uint32_t ret_histogram[256])
{
    memset(ret_histogram, 0, 256 * sizeof ret_histogram[0]);
    const uint32_t plane_groups = kvt_rank_plane_groups(shape);
    struct kvt_rank_sampling sampling = kvt_rank_sampling_begin(shape);
    uint32_t index;
    while (kvt_rank_sampling_next(&sampling, &index)) {
        const uint32_t plane = index / plane_groups, group = index % plane_groups;
        struct group g;
        split(shape, source[plane], bases->plane[plane], group, &g);
        for (uint32_t i = 0; i < g.count; i++) ret_histogram[g.exponent[i]]++;
    }
}

/* The bits of one level, collected over a group. */
struct level {
    uint64_t bits[2];
    uint32_t count;
};

/*
 * Adds a pair when is_there is 1, nothing when it is 0: without a branch, as which of both comes is as good as
 * random.
 */
static inline void level_add(struct level *level, uint32_t pair, uint32_t is_there)
{
    level->bits[0] |= (uint64_t)(pair & is_there) << level->count;
    level->bits[1] |= (uint64_t)(pair >> 1 & is_there) << level->count;
    level->count += is_there;
}

/* rank_of[e] is the rank of exponent e, KVT_RANK_SYMBOLS for an escape. */
static void pack_group(struct kvt_rank_pack *args, uint32_t plane, uint32_t group, const uint8_t rank_of[256])
{
    struct group g;
    split(&args->shape, args->source[plane], args->bases.plane[plane], group, &g);
    store_rest(&args->shape, &g, group, args->rest + plane * kvt_rank_plane_rest_bytes(&args->shape));

    struct level first = { { 0, 0 }, 0 }, second = first, third = first;
    for (uint32_t i = 0; i < g.count; i++) {
        const uint32_t rank = rank_of[g.exponent[i]];
        level_add(&first, kvt_min_u32(rank, CLASS_FULL), 1);
        level_add(&second, kvt_min_u32(rank - 3, CLASS_FULL), rank >= 3);
        if (rank < 6) continue;
        level_add(&third, rank - 6, 1);
        if (rank < KVT_RANK_SYMBOLS) continue;
        args->escapes[args->escape_count++] = g.exponent[i];
    }
    uint8_t *words = args->first + (size_t)16 * (plane * kvt_rank_plane_groups(&args->shape) + group);
    kvt_store_u64(words, first.bits[0]);
    kvt_store_u64(words + 8, first.bits[1]);
    put_bits(args->second, args->second_count, second.bits, second.count);
    put_bits(args->third, args->third_count, third.bits, third.count);
    args->second_count += second.count;
    args->third_count += third.count;
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
struct position {
    uint32_t second, third, escape;
};

static struct level level_begin(const uint8_t *const stream[2], uint32_t position)
{
    return (struct level){ .bits = { get_bits(stream[0], position), get_bits(stream[1], position) } };
}

/* The next pair when is_there is 1, 0 when it is 0. */
static inline uint32_t level_take(struct level *level, uint32_t is_there)
{
    const uint32_t pair = (uint32_t)(level->bits[0] & is_there) | (uint32_t)(level->bits[1] & is_there) << 1;
    level->bits[0] >>= is_there;
    level->bits[1] >>= is_there;
    return pair;
}

/*
 * Positions lie within the streams before, so that 64 bits can be read there; whether so many count is checked for
 * each.
 */
static bool unpack_group(const struct kvt_rank_unpack *args, uint32_t plane, uint32_t group, struct position *at)
{
    const uint8_t *words = args->first + (size_t)16 * (plane * kvt_rank_plane_groups(&args->shape) + group);
    struct level first = { { kvt_load_u64(words), kvt_load_u64(words + 8) }, 0 };
    struct level second = level_begin(args->second, at->second), third = level_begin(args->third, at->third);
    struct group g = { .count = group_count(&args->shape, group) };
    if (g.count < KVT_RANK_GROUP && (first.bits[0] | first.bits[1]) >> g.count) return false;
    at->second += (uint32_t)__builtin_popcountll(first.bits[0] & first.bits[1]);
    if (at->second > args->second_count) return false;

    for (uint32_t i = 0; i < g.count; i++) {
        uint32_t rank = level_take(&first, 1);
        rank += level_take(&second, rank == 3);
        if (rank == 6) {
            if (at->third++ == args->third_count) return false;
            rank += level_take(&third, 1);
        }
        if (rank < KVT_RANK_SYMBOLS) {
            g.exponent[i] = args->symbol[rank];
        } else {
            if (at->escape == args->escape_count) return false;
            g.exponent[i] = args->escapes[at->escape++];
        }
    }
    load_rest(&args->shape, args->rest + plane * kvt_rank_plane_rest_bytes(&args->shape), group, &g);
    join(&args->shape, &g, args->bases.plane[plane], group, args->target[plane]);
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
