/*
 * rank_planes as a warp does them, on the CPU: rank_body.h with loops in place of a warp's exchanges. It is there to be
 * compared with the reference, not to be fast.
 */
#include "kernels/rank_body.h"
#include "runtime/base/bytes.h"

static bool is_supported(void) { return true; }

static void sample(const struct kvt_rank_shape *shape, const uint8_t *const source[2],
                   const struct kvt_rank_bases *bases, uint32_t ret_histogram[256])
{
    memset(ret_histogram, 0, 256 * sizeof ret_histogram[0]);
    const uint32_t plane_groups = kvt_rank_plane_groups(shape);
    struct kvt_rank_sampling sampling = kvt_rank_sampling_begin(shape);
    uint32_t index;
    while (kvt_rank_sampling_next(&sampling, &index)) {
        const uint32_t plane = index / plane_groups;
        for (uint32_t l = 0; l < KVT_RANK_LANES; l++) {
            struct kvt_rank_lane lane;
            kvt_rank_lane_load(shape, source[plane], bases->plane[plane], index % plane_groups, l, &lane);
            for (uint32_t k = 0; k < lane.count; k++) ret_histogram[lane.exponent[k]]++;
        }
    }
}

/* ---- Pack ------------------------------------------------------------------------------------------------------ */

/* A warp's registers. */
struct warp {
    struct kvt_rank_lane lane[KVT_RANK_LANES];
};

static struct kvt_rank_votes vote(const struct warp *warp, uint32_t level)
{
    struct kvt_rank_votes votes = { 0, 0 };
    for (uint32_t l = 0; l < KVT_RANK_LANES; l++) {
        votes.even |= (uint32_t)kvt_rank_lane_takes_part(&warp->lane[l], 0, level) << l;
        votes.odd |= (uint32_t)kvt_rank_lane_takes_part(&warp->lane[l], 1, level) << l;
    }
    return votes;
}

static void or_words(const struct warp *warp, uint32_t level, struct kvt_rank_votes votes, uint64_t ret_words[2])
{
    ret_words[0] = ret_words[1] = 0;
    for (uint32_t l = 0; l < KVT_RANK_LANES; l++) {
        uint64_t part[2];
        kvt_rank_lane_words(&warp->lane[l], l, level, votes, part);
        ret_words[0] |= part[0];
        ret_words[1] |= part[1];
    }
}

/* Appends `count` bits to a stream that was cleared up to here: it or-s, as warps that share a word do. */
static void or_bits(uint8_t *stream, uint32_t position, uint64_t bits, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *byte = &stream[(position + i) / 8];
        const uint32_t shift = (position + i) % 8;
        if (shift == 0) *byte = 0;
        *byte |= (uint8_t)((bits >> i & 1) << shift);
    }
}

static void pack_group(struct kvt_rank_pack *args, const struct kvt_rank_coder *coder, uint32_t plane, uint32_t group)
{
    struct warp warp;
    uint8_t *rest = args->rest + plane * kvt_rank_plane_rest_bytes(&args->shape);
    uint64_t planes[3] = { 0, 0, 0 };
    for (uint32_t l = 0; l < KVT_RANK_LANES; l++) {
        kvt_rank_lane_load(&args->shape, args->source[plane], args->bases.plane[plane], group, l, &warp.lane[l]);
        kvt_rank_lane_encode(coder, &warp.lane[l]);
        kvt_rank_lane_store_rest(&args->shape, &warp.lane[l], group, l, rest);
        uint64_t part[3];
        kvt_rank_lane_planes(&warp.lane[l], l, part);
        for (uint32_t i = 0; i < 3; i++) planes[i] |= part[i];
    }
    if (args->shape.dtype == KVT_DTYPE_FP16)
        for (uint32_t i = 0; i < 3; i++)
            kvt_rank_store_word(rest + kvt_rank_planes_offset(&args->shape, group) + 8 * i, planes[i]);

    uint64_t words[2];
    or_words(&warp, 0, vote(&warp, 0), words);
    uint8_t *first = args->first + (size_t)16 * (plane * kvt_rank_plane_groups(&args->shape) + group);
    kvt_rank_store_word(first, words[0]);
    kvt_rank_store_word(first + 8, words[1]);

    const struct kvt_rank_votes second = vote(&warp, 1), third = vote(&warp, 2), escapes = vote(&warp, 3);
    or_words(&warp, 1, second, words);
    for (uint32_t i = 0; i < 2; i++)
        or_bits(args->second[i], args->second_count, words[i], kvt_rank_votes_count(second));
    or_words(&warp, 2, third, words);
    for (uint32_t i = 0; i < 2; i++) or_bits(args->third[i], args->third_count, words[i], kvt_rank_votes_count(third));
    for (uint32_t l = 0; l < KVT_RANK_LANES; l++)
        for (uint32_t k = 0; k < 2; k++)
            if (kvt_rank_lane_takes_part(&warp.lane[l], k, 3))
                args->escapes[args->escape_count + kvt_rank_votes_before(escapes, l, k)] =
                    (uint8_t)warp.lane[l].exponent[k];
    args->second_count += kvt_rank_votes_count(second);
    args->third_count += kvt_rank_votes_count(third);
    args->escape_count += kvt_rank_votes_count(escapes);
}

static void pack(struct kvt_rank_pack *args)
{
    struct kvt_rank_coder coder;
    kvt_rank_coder_init(&args->table, &coder);
    args->second_count = args->third_count = args->escape_count = 0;
    for (uint32_t plane = 0; plane < args->shape.plane_count; plane++)
        for (uint32_t group = 0; group < kvt_rank_plane_groups(&args->shape); group++)
            pack_group(args, &coder, plane, group);
}

/* ---- Unpack ---------------------------------------------------------------------------------------------------- */

/* How far the streams have been read. */
struct position {
    uint32_t second, third, escape;
};

static uint64_t bits_at(const uint8_t *stream, uint32_t position, uint32_t count)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; i++) bits |= (uint64_t)(stream[(position + i) / 8] >> (position + i) % 8 & 1) << i;
    return bits;
}

/* Moves a position on; false when the stream ends before. */
static bool take(uint32_t *position, uint32_t count, uint32_t end)
{
    if (count > end - *position) return false;
    *position += count;
    return true;
}

static bool read_planes(const struct kvt_rank_unpack *args, uint32_t plane, uint32_t group, struct position *at,
                        struct kvt_rank_planes *ret_planes)
{
    const uint8_t *first = args->first + (size_t)16 * (plane * kvt_rank_plane_groups(&args->shape) + group);
    struct kvt_rank_planes *p = ret_planes;
    p->count[0] = kvt_rank_group_count(&args->shape, group);
    p->word[0][0] = kvt_rank_load_word(first);
    p->word[0][1] = kvt_rank_load_word(first + 8);
    if ((p->word[0][0] | p->word[0][1]) & ~kvt_rank_low_bits(p->count[0])) return false;

    struct position start = *at;
    p->count[1] = KVT_BODY_POPCOUNT64(kvt_rank_planes_on(p, 0));
    if (!take(&at->second, p->count[1], args->second_count)) return false;
    for (uint32_t i = 0; i < 2; i++) p->word[1][i] = bits_at(args->second[i], start.second, p->count[1]);
    p->count[2] = KVT_BODY_POPCOUNT64(kvt_rank_planes_on(p, 1));
    if (!take(&at->third, p->count[2], args->third_count)) return false;
    for (uint32_t i = 0; i < 2; i++) p->word[2][i] = bits_at(args->third[i], start.third, p->count[2]);
    p->count[3] = KVT_BODY_POPCOUNT64(kvt_rank_planes_on(p, 2));
    return take(&at->escape, p->count[3], args->escape_count);
}

static void unpack_lane(const struct kvt_rank_unpack *args, const struct kvt_rank_planes *planes, uint32_t plane,
                        uint32_t group, uint32_t l, const uint8_t *escapes)
{
    const struct kvt_rank_shape *shape = &args->shape;
    const uint8_t *plane_rest = args->rest + plane * kvt_rank_plane_rest_bytes(shape);
    const uint8_t *bases = args->bases.plane[plane];
    const uint32_t count = kvt_rank_lane_count(shape, group, l);
    uint32_t rest[2], value[2] = { 0, 0 };
    kvt_rank_lane_load_rest(shape, plane_rest, group, l, count, rest);
    for (uint32_t k = 0; k < count; k++) {
        const uint32_t i = 2 * l + k;
        uint32_t escape = 0, upper = 0;
        const uint32_t rank = kvt_rank_planes_rank(planes, i, &escape);
        uint32_t exponent = rank < KVT_RANK_SYMBOLS ? args->symbol[rank] : escapes[escape];
        if (bases) exponent += bases[(uint64_t)group * KVT_RANK_GROUP % shape->channels + i];
        if (shape->dtype == KVT_DTYPE_FP16) {
            const uint8_t *words = plane_rest + kvt_rank_planes_offset(shape, group);
            for (uint32_t w = 0; w < 3; w++) upper = upper << 1 | (words[8 * w + i / 8] >> i % 8 & 1);
        }
        value[k] = kvt_rank_join(shape->dtype, exponent, rest[k], upper);
    }
    kvt_rank_store_values(shape->dtype, args->target[plane], (uint64_t)group * KVT_RANK_GROUP + 2 * l, count, value);
}

static bool unpack(const struct kvt_rank_unpack *args)
{
    struct position at = { 0, 0, 0 };
    for (uint32_t plane = 0; plane < args->shape.plane_count; plane++)
        for (uint32_t group = 0; group < kvt_rank_plane_groups(&args->shape); group++) {
            const uint8_t *escapes = args->escapes + at.escape;
            struct kvt_rank_planes planes;
            if (!read_planes(args, plane, group, &at, &planes)) return false;
            for (uint32_t l = 0; l < KVT_RANK_LANES; l++) unpack_lane(args, &planes, plane, group, l, escapes);
        }
    return at.second == args->second_count && at.third == args->third_count && at.escape == args->escape_count;
}

const struct kvt_rank_ops kvt_rank_ops_body = {
    .name = "body",
    .is_for_checks = true,
    .is_supported = is_supported,
    .sample = sample,
    .pack = pack,
    .unpack = unpack,
};
