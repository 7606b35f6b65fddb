/*
 * rank_body: the rank planes as a warp does them, one source for the GPU and for the CPU.
 *
 * A warp of 32 lanes takes a group of 64 elements: lane l the elements 2l and 2l + 1, so that neighbouring lanes read
 * and write neighbouring bytes. Three levels of the code (rank_planes.h) have two bits an element each; an element takes
 * part in a level when its pair of the level before is 3.
 *
 * What lanes have to tell each other is two things only: who takes part in a level (votes: a ballot of the even and one
 * of the odd elements), and the words of a level's planes (each lane's part of a word, or-ed). A CUDA warp does both
 * with its instructions, the CPU with a loop over the lanes; all else is here.
 */
#ifndef KVT_KERNELS_RANK_BODY_H
#define KVT_KERNELS_RANK_BODY_H

#include "kernels/body.h"
#include "kernels/rank_planes.h"

enum { KVT_RANK_LANES = 32, KVT_RANK_LEVELS = 3 };

/* One byte for each value of the window: the pairs of all three levels, 0x3f is an escape; and where the window is. */
struct kvt_rank_coder {
    uint8_t code[KVT_RANK_WINDOW];
    uint8_t low;
};

/* The two elements of a lane; count of them are there, the others have code 0 and take part in nothing. */
struct kvt_rank_lane {
    uint32_t count;
    uint32_t value[2], exponent[2], code[2];
};

/* Bit l: the even (odd) element of lane l takes part. */
struct kvt_rank_votes {
    uint32_t even, odd;
};

/* ---- Elements -------------------------------------------------------------------------------------------------- */

KVT_BODY uint32_t kvt_rank_exponent(enum kvt_dtype dtype, uint32_t value)
{
    if (dtype == KVT_DTYPE_BF16) return value >> 7 & 255;
    if (dtype == KVT_DTYPE_FP16) return value >> 10 & 31;
    return value >> 3 & 15;
}

/* Sign and mantissa, but for fp16's sign and two upper mantissa bits, which are planes. */
KVT_BODY uint32_t kvt_rank_rest(enum kvt_dtype dtype, uint32_t value)
{
    if (dtype == KVT_DTYPE_BF16) return (value >> 8 & 0x80) | (value & 0x7f);
    if (dtype == KVT_DTYPE_FP16) return value & 0xff;
    return (value >> 4 & 8) | (value & 7);
}

/* The inverse; planes: fp16's sign, bit 9 and bit 8 as bits 2, 1 and 0. Bits that the type does not have are dropped. */
KVT_BODY uint32_t kvt_rank_join(enum kvt_dtype dtype, uint32_t exponent, uint32_t rest, uint32_t planes)
{
    if (dtype == KVT_DTYPE_BF16) return (rest & 0x80) << 8 | (exponent & 255) << 7 | (rest & 0x7f);
    if (dtype == KVT_DTYPE_FP16) return (planes & 4) << 13 | (exponent & 31) << 10 | (planes & 3) << 8 | (rest & 255);
    return (rest & 8) << 4 | (exponent & 15) << 3 | (rest & 7);
}

KVT_BODY uint32_t kvt_rank_group_count(const struct kvt_rank_shape *shape, uint32_t group)
{
    const uint32_t left = shape->elements - group * KVT_RANK_GROUP;
    return left < KVT_RANK_GROUP ? left : KVT_RANK_GROUP;
}

KVT_BODY uint32_t kvt_rank_lane_count(const struct kvt_rank_shape *shape, uint32_t group, uint32_t lane)
{
    const uint32_t count = kvt_rank_group_count(shape, group);
    return count <= 2 * lane ? 0 : count - 2 * lane < 2 ? 1 : 2;
}

KVT_BODY uint32_t kvt_rank_load_value(enum kvt_dtype dtype, const uint8_t *source, uint64_t index)
{
    if (dtype == KVT_DTYPE_FP8) return source[index];
    return (uint32_t)source[2 * index] | (uint32_t)source[2 * index + 1] << 8;
}

KVT_BODY void kvt_rank_store_value(enum kvt_dtype dtype, uint8_t *target, uint64_t index, uint32_t value)
{
    if (dtype == KVT_DTYPE_FP8) {
        target[index] = (uint8_t)value;
        return;
    }
    target[2 * index] = (uint8_t)value;
    target[2 * index + 1] = (uint8_t)(value >> 8);
}

/* Both values of a lane at once where the address allows it: the whole warp then makes one access of its group. */
KVT_BODY void kvt_rank_load_values(enum kvt_dtype dtype, const uint8_t *source, uint64_t index, uint32_t count,
                                   uint32_t ret_value[2])
{
    if (count == 2 && dtype != KVT_DTYPE_FP8 && ((uintptr_t)(source + 2 * index) & 3) == 0) {
        const uint32_t both = *(const kvt_word_alias *)(const void *)(source + 2 * index);
        ret_value[0] = both & 0xffff;
        ret_value[1] = both >> 16;
        return;
    }
    for (uint32_t k = 0; k < 2; k++) ret_value[k] = k < count ? kvt_rank_load_value(dtype, source, index + k) : 0;
}

KVT_BODY void kvt_rank_store_values(enum kvt_dtype dtype, uint8_t *target, uint64_t index, uint32_t count,
                                    const uint32_t value[2])
{
    if (count == 2 && dtype != KVT_DTYPE_FP8 && ((uintptr_t)(target + 2 * index) & 3) == 0) {
        *(kvt_word_alias *)(void *)(target + 2 * index) = value[0] | value[1] << 16;
        return;
    }
    for (uint32_t k = 0; k < count; k++) kvt_rank_store_value(dtype, target, index + k, value[k]);
}

/* ---- The code -------------------------------------------------------------------------------------------------- */

KVT_BODY void kvt_rank_coder_init(const struct kvt_rank_table *table, struct kvt_rank_coder *ret_coder)
{
    for (uint32_t i = 0; i < KVT_RANK_WINDOW; i++) ret_coder->code[i] = 0x3f;
    for (uint32_t r = 0; r < KVT_RANK_SYMBOLS; r++) {
        const uint32_t code = r < 3 ? r : r < 6 ? 3 | (r - 3) << 2 : 15 | (r - 6) << 4;
        ret_coder->code[(uint8_t)(table->symbol[r] - table->low) & (KVT_RANK_WINDOW - 1)] = (uint8_t)code;
    }
    ret_coder->low = table->low;
}

KVT_BODY uint32_t kvt_rank_code(const struct kvt_rank_coder *coder, uint32_t exponent)
{
    const uint32_t place = (exponent - coder->low) & 255;
    return place < KVT_RANK_WINDOW ? coder->code[place] : 0x3f;
}

/* Reads a lane's elements and subtracts the bases of their channels. The code is left 0. */
KVT_BODY void kvt_rank_lane_load(const struct kvt_rank_shape *shape, const uint8_t *source, const uint8_t *bases,
                                 uint32_t group, uint32_t lane, struct kvt_rank_lane *ret_lane)
{
    const uint64_t first = (uint64_t)group * KVT_RANK_GROUP + 2 * lane;
    ret_lane->count = kvt_rank_lane_count(shape, group, lane);
    kvt_rank_load_values(shape->dtype, source, first, ret_lane->count, ret_lane->value);
    const uint32_t channel = bases ? (uint32_t)((uint64_t)group * KVT_RANK_GROUP % shape->channels) + 2 * lane : 0;
    for (uint32_t k = 0; k < 2; k++) {
        ret_lane->code[k] = 0;
        ret_lane->exponent[k] = kvt_rank_exponent(shape->dtype, ret_lane->value[k]);
        if (bases)
            ret_lane->exponent[k] = (ret_lane->exponent[k] - (k < ret_lane->count ? bases[channel + k] : 0)) & 255;
    }
}

KVT_BODY void kvt_rank_lane_encode(const struct kvt_rank_coder *coder, struct kvt_rank_lane *lane)
{
    for (uint32_t k = 0; k < lane->count; k++) lane->code[k] = kvt_rank_code(coder, lane->exponent[k]);
}

/* Whether element k takes part in `level`; level 3: it is an escape. */
KVT_BODY bool kvt_rank_lane_takes_part(const struct kvt_rank_lane *lane, uint32_t k, uint32_t level)
{
    const uint32_t mask = (1u << 2 * level) - 1;
    return k < lane->count && (lane->code[k] & mask) == mask;
}

KVT_BODY uint32_t kvt_rank_votes_count(struct kvt_rank_votes votes)
{
    return KVT_BODY_POPCOUNT64((uint64_t)votes.even << 32 | votes.odd);
}

/* How many elements before element k of the lane take part. */
KVT_BODY uint32_t kvt_rank_votes_before(struct kvt_rank_votes votes, uint32_t lane, uint32_t k)
{
    const uint32_t below = (1u << lane) - 1;
    return KVT_BODY_POPCOUNT64((uint64_t)(votes.even & below) << 32 | (votes.odd & below))
        + (k ? votes.even >> lane & 1 : 0);
}

/* The lane's part of the two words of a level's planes: a bit for each element that takes part, without gaps. */
KVT_BODY void kvt_rank_lane_words(const struct kvt_rank_lane *lane, uint32_t index, uint32_t level,
                                  struct kvt_rank_votes votes, uint64_t ret_words[2])
{
    ret_words[0] = ret_words[1] = 0;
    for (uint32_t k = 0; k < 2; k++) {
        if (!kvt_rank_lane_takes_part(lane, k, level)) continue;
        const uint32_t place = level == 0 ? 2 * index + k : kvt_rank_votes_before(votes, index, k);
        ret_words[0] |= (uint64_t)(lane->code[k] >> 2 * level & 1) << place;
        ret_words[1] |= (uint64_t)(lane->code[k] >> (2 * level + 1) & 1) << place;
    }
}

/* The lane's part of fp16's three words of a group: signs, bits 9, bits 8. */
KVT_BODY void kvt_rank_lane_planes(const struct kvt_rank_lane *lane, uint32_t index, uint64_t ret_words[3])
{
    ret_words[0] = ret_words[1] = ret_words[2] = 0;
    for (uint32_t k = 0; k < lane->count; k++) {
        ret_words[0] |= (uint64_t)(lane->value[k] >> 15 & 1) << (2 * index + k);
        ret_words[1] |= (uint64_t)(lane->value[k] >> 9 & 1) << (2 * index + k);
        ret_words[2] |= (uint64_t)(lane->value[k] >> 8 & 1) << (2 * index + k);
    }
}

/* ---- The parts in memory --------------------------------------------------------------------------------------- */

/* A word whose address may have any alignment; one access where it is aligned. */
KVT_BODY void kvt_rank_store_word(uint8_t *target, uint64_t word)
{
    if (((uintptr_t)target & 7) == 0) {
        *(kvt_long_alias *)(void *)target = word;
        return;
    }
    for (uint32_t i = 0; i < 8; i++) target[i] = (uint8_t)(word >> 8 * i);
}

KVT_BODY uint64_t kvt_rank_load_word(const uint8_t *source)
{
    if (((uintptr_t)source & 7) == 0) return *(const kvt_long_alias *)(const void *)source;
    uint64_t word = 0;
    for (uint32_t i = 0; i < 8; i++) word |= (uint64_t)source[i] << 8 * i;
    return word;
}

/* plane_rest: where the plane's part of rest begins. */
KVT_BODY void kvt_rank_lane_store_rest(const struct kvt_rank_shape *shape, const struct kvt_rank_lane *lane,
                                       uint32_t group, uint32_t index, uint8_t *plane_rest)
{
    const uint64_t first = (uint64_t)group * KVT_RANK_GROUP + 2 * index;
    uint32_t rest[2] = { 0, 0 };
    for (uint32_t k = 0; k < lane->count; k++) rest[k] = kvt_rank_rest(shape->dtype, lane->value[k]);
    if (shape->dtype == KVT_DTYPE_FP8) {
        if (lane->count > 0) plane_rest[first / 2] = (uint8_t)(rest[0] | rest[1] << 4);
        return;
    }
    for (uint32_t k = 0; k < lane->count; k++) plane_rest[first + k] = (uint8_t)rest[k];
}

KVT_BODY void kvt_rank_lane_load_rest(const struct kvt_rank_shape *shape, const uint8_t *plane_rest, uint32_t group,
                                      uint32_t index, uint32_t count, uint32_t ret_rest[2])
{
    const uint64_t first = (uint64_t)group * KVT_RANK_GROUP + 2 * index;
    ret_rest[0] = ret_rest[1] = 0;
    if (count == 0) return;
    if (shape->dtype == KVT_DTYPE_FP8) {
        ret_rest[0] = plane_rest[first / 2] & 15;
        ret_rest[1] = plane_rest[first / 2] >> 4;
        return;
    }
    for (uint32_t k = 0; k < count; k++) ret_rest[k] = plane_rest[first + k];
}

/* Where the three words of a group of fp16 lie. */
KVT_BODY uint64_t kvt_rank_planes_offset(const struct kvt_rank_shape *shape, uint32_t group)
{
    return shape->elements + (uint64_t)24 * group;
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

/* What a group's elements are told by: the planes of the three levels, each from the group's first bit on. */
struct kvt_rank_planes {
    uint64_t word[KVT_RANK_LEVELS][2];
    uint32_t count[KVT_RANK_LEVELS + 1]; /* elements that take part; the last: escapes */
};

KVT_BODY uint64_t kvt_rank_low_bits(uint32_t count) { return count < 64 ? ((uint64_t)1 << count) - 1 : ~(uint64_t)0; }

/* The elements that go on from `level` to the next, as bits in the numbering of this level. */
KVT_BODY uint64_t kvt_rank_planes_on(const struct kvt_rank_planes *planes, uint32_t level)
{
    return planes->word[level][0] & planes->word[level][1] & kvt_rank_low_bits(planes->count[level]);
}

/*
 * The rank of element i of the group, KVT_RANK_SYMBOLS for an escape, whose number among the group's escapes is then in
 * *ret_escape.
 */
KVT_BODY uint32_t kvt_rank_planes_rank(const struct kvt_rank_planes *planes, uint32_t i, uint32_t *ret_escape)
{
    uint32_t rank = 0;
    for (uint32_t level = 0; level < KVT_RANK_LEVELS; level++) {
        const uint32_t pair = (uint32_t)(planes->word[level][0] >> i & 1)
            | (uint32_t)(planes->word[level][1] >> i & 1) << 1;
        rank += pair;
        if (pair != 3) return rank;
        i = KVT_BODY_POPCOUNT64(kvt_rank_planes_on(planes, level) & (((uint64_t)1 << i) - 1));
    }
    *ret_escape = i;
    return rank;
}

/* ---- The choice of the ranks ----------------------------------------------------------------------------------- */

/* The first value of the window of sixteen consecutive ones (mod 256) that holds most counts. */
KVT_BODY uint32_t kvt_rank_best_window(const uint32_t *histogram)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < KVT_RANK_WINDOW; i++) held += histogram[i];
    uint64_t best = held;
    uint32_t low = 0;
    for (uint32_t i = 1; i < 256; i++) {
        held += histogram[(i + KVT_RANK_WINDOW - 1) & 255];
        held -= histogram[i - 1];
        if (held > best) {
            best = held;
            low = i;
        }
    }
    return low;
}

/* kvt_rank_choose() of rank_planes.h. */
KVT_BODY uint64_t kvt_rank_choose_body(const uint32_t *histogram, struct kvt_rank_table *ret_table)
{
    const uint32_t escape_bits = 6 + 8;
    const uint32_t low = kvt_rank_best_window(histogram);
    uint32_t count[KVT_RANK_WINDOW];
    uint8_t order[KVT_RANK_WINDOW];
    for (uint32_t i = 0; i < KVT_RANK_WINDOW; i++) {
        count[i] = histogram[(low + i) & 255];
        uint32_t place = i;
        for (; place > 0 && count[order[place - 1]] < count[i]; place--) order[place] = order[place - 1];
        order[place] = (uint8_t)i;
    }

    uint64_t total = 0;
    for (uint32_t i = 0; i < 256; i++) total += histogram[i];
    uint64_t bits = 0;
    uint64_t ranked = 0;
    ret_table->low = (uint8_t)low;
    for (uint32_t r = 0; r < KVT_RANK_SYMBOLS; r++) {
        ret_table->symbol[r] = (uint8_t)(low + order[r]);
        bits += (uint64_t)count[order[r]] * (2 * (r / 3) + 2);
        ranked += count[order[r]];
    }
    return bits + (total - ranked) * escape_bits;
}

#endif
