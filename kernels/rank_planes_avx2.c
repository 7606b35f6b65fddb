/*
 * rank_planes with AVX2 and BMI2: 64 elements at a time in two halves of 32, bit planes by movemask.
 * The build compiles this file alone with these instructions; nothing in it runs before kvt_rank_is_avx2_here() said
 * yes. Bytes and verdicts are those of rank_planes_ref.c.
 */
#include "kernels/rank_planes_simd.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* 64 bytes: one for each element of a group. */
struct pair {
    __m256i half[2];
};

INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void store(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
INLINE __m256i and (__m256i a, __m256i b) { return _mm256_and_si256(a, b); }
INLINE __m256i or (__m256i a, __m256i b) { return _mm256_or_si256(a, b); }

/* The low bytes of 32 words, which are all below 256. */
INLINE __m256i narrow(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8); }

/* Bit `bit` of each of the 64 bytes. */
INLINE uint64_t bits_of(struct pair v, int bit)
{
    const uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(v.half[0], 7 - bit));
    const uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(v.half[1], 7 - bit));
    return (uint64_t)high << 32 | low;
}

/* 32 bits as 32 bytes of 0 or 0xff. */
INLINE __m256i spread(uint32_t bits)
{
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    return _mm256_cmpeq_epi8(and(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), byte), bit), bit);
}

/* ---- Elements and their parts, 64 at a time -------------------------------------------------------------------- */

/* Where the parts of a plane's rest lie: words is fp16's only. */
struct rest {
    uint8_t *bytes, *words;
};

INLINE struct pair exponents(enum kvt_dtype dtype, const uint8_t *source)
{
    struct pair e;
    for (int h = 0; h < 2; h++) {
        if (dtype == KVT_DTYPE_FP8) {
            e.half[h] = and(_mm256_srli_epi16(load(source + 32 * h), 3), _mm256_set1_epi8(15));
            continue;
        }
        const __m256i a = load(source + 64 * h), b = load(source + 64 * h + 32);
        if (dtype == KVT_DTYPE_BF16) {
            const __m256i mask = _mm256_set1_epi16(0xff);
            e.half[h] = narrow(and(_mm256_srli_epi16(a, 7), mask), and(_mm256_srli_epi16(b, 7), mask));
        } else {
            const __m256i mask = _mm256_set1_epi16(31);
            e.half[h] = narrow(and(_mm256_srli_epi16(a, 10), mask), and(_mm256_srli_epi16(b, 10), mask));
        }
    }
    return e;
}

/* bf16: sign << 7 | mantissa in the low byte of each word. */
INLINE __m256i bf16_rest(__m256i x)
{
    return or (and(x, _mm256_set1_epi16(0x7f)), and(_mm256_srli_epi16(x, 8), _mm256_set1_epi16(0x80)));
}

INLINE void store_rest_fp8(const uint8_t *source, uint8_t *target)
{
    __m256i word[2];
    for (int h = 0; h < 2; h++) {
        const __m256i a = load(source + 32 * h);
        const __m256i nibble = or (and(a, _mm256_set1_epi8(7)), and(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(8)));
        word[h] = and(or (nibble, _mm256_srli_epi16(nibble, 4)), _mm256_set1_epi16(0xff));
    }
    store(target, narrow(word[0], word[1]));
}

INLINE void store_rest(enum kvt_dtype dtype, const uint8_t *source, struct rest rest)
{
    if (dtype == KVT_DTYPE_FP8) {
        store_rest_fp8(source, rest.bytes);
        return;
    }
    struct pair high = { { _mm256_setzero_si256(), _mm256_setzero_si256() } };
    for (int h = 0; h < 2; h++) {
        const __m256i a = load(source + 64 * h), b = load(source + 64 * h + 32), low = _mm256_set1_epi16(0xff);
        if (dtype == KVT_DTYPE_BF16) {
            store(rest.bytes + 32 * h, narrow(bf16_rest(a), bf16_rest(b)));
        } else {
            store(rest.bytes + 32 * h, narrow(and(a, low), and(b, low)));
            high.half[h] = narrow(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
        }
    }
    if (dtype == KVT_DTYPE_FP16) {
        kvt_store_u64(rest.words, bits_of(high, 7));
        kvt_store_u64(rest.words + 8, bits_of(high, 1));
        kvt_store_u64(rest.words + 16, bits_of(high, 0));
    }
}

INLINE __m256i widen(__m256i bytes, int half)
{
    return _mm256_cvtepu8_epi16(half ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes));
}

INLINE __m256i load_widen(const uint8_t *p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)); }

/* Puts 32 elements together, the half-th of a group. */
INLINE void join_half(enum kvt_dtype dtype, __m256i exponent, struct rest rest, int half, uint8_t *target)
{
    if (dtype == KVT_DTYPE_FP8) {
        const __m256i pair = load_widen(rest.bytes + 16 * half);
        const __m256i nibble = or (and(pair, _mm256_set1_epi16(15)), _mm256_slli_epi16(_mm256_srli_epi16(pair, 4), 8));
        const __m256i sign = _mm256_slli_epi16(and(nibble, _mm256_set1_epi8(8)), 4);
        const __m256i e = _mm256_slli_epi16(and(exponent, _mm256_set1_epi8(15)), 3);
        store(target + 32 * half, or (or (e, sign), and(nibble, _mm256_set1_epi8(7))));
        return;
    }
    __m256i high = exponent;
    if (dtype == KVT_DTYPE_FP16) {
        high = _mm256_slli_epi16(and(exponent, _mm256_set1_epi8(31)), 2);
        high = or (high,
                   and(spread((uint32_t)(kvt_load_u64(rest.words) >> (32 * half))), _mm256_set1_epi8((char)0x80)));
        high = or (high, and(spread((uint32_t)(kvt_load_u64(rest.words + 8) >> (32 * half))), _mm256_set1_epi8(2)));
        high = or (high, and(spread((uint32_t)(kvt_load_u64(rest.words + 16) >> (32 * half))), _mm256_set1_epi8(1)));
    }
    for (int quarter = 0; quarter < 2; quarter++) {
        const __m256i r = load_widen(rest.bytes + 32 * half + 16 * quarter), x = widen(high, quarter);
        const __m256i bf16 = or (or (_mm256_slli_epi16(x, 7), and(r, _mm256_set1_epi16(0x7f))),
                                 and(_mm256_slli_epi16(r, 8), _mm256_set1_epi16((short)0x8000)));
        store(target + 64 * half + 32 * quarter, dtype == KVT_DTYPE_BF16 ? bf16 : or (_mm256_slli_epi16(x, 8), r));
    }
}

INLINE uint32_t element_bytes(enum kvt_dtype dtype) { return dtype == KVT_DTYPE_FP8 ? 1 : 2; }
INLINE uint32_t group_rest_bytes(enum kvt_dtype dtype) { return dtype == KVT_DTYPE_FP8 ? 32 : 64; }

/* ---- Pack ------------------------------------------------------------------------------------------------------ */

struct pack_state {
    __m256i code, low;
    struct kvt_rank_writer second, third;
    uint8_t *first, *escapes;
};

/* One group; bits of valid say which elements there are. */
INLINE void pack_group(enum kvt_dtype dtype, bool is_based, struct pack_state *s, const uint8_t *source,
                       struct rest rest, const uint8_t *bases, uint64_t valid)
{
    store_rest(dtype, source, rest);
    struct pair e = exponents(dtype, source), code;
    for (int h = 0; h < 2; h++) {
        if (is_based) e.half[h] = _mm256_sub_epi8(e.half[h], load(bases + 32 * h));
        const __m256i distance = _mm256_sub_epi8(e.half[h], s->low), last = _mm256_set1_epi8(KVT_RANK_WINDOW - 1);
        const __m256i is_near = _mm256_cmpeq_epi8(_mm256_min_epu8(distance, last), distance);
        code.half[h] = _mm256_blendv_epi8(_mm256_set1_epi8(0x3f), _mm256_shuffle_epi8(s->code, distance), is_near);
    }
    const uint64_t p0 = bits_of(code, 0) & valid, p1 = bits_of(code, 1) & valid;
    const uint64_t q0 = bits_of(code, 2), q1 = bits_of(code, 3);
    const uint64_t r0 = bits_of(code, 4), r1 = bits_of(code, 5);
    const uint64_t in_second = p0 & p1;
    const uint64_t in_third = q0 & q1 & in_second;
    uint64_t is_escape = r0 & r1 & in_third;

    kvt_store_u64(s->first, p0);
    kvt_store_u64(s->first + 8, p1);
    s->first += 16;
    kvt_rank_write(&s->second, _pext_u64(q0, in_second), _pext_u64(q1, in_second), (uint32_t)_mm_popcnt_u64(in_second));
    kvt_rank_write(&s->third, _pext_u64(r0, in_third), _pext_u64(r1, in_third), (uint32_t)_mm_popcnt_u64(in_third));
    if (is_escape) {
        uint8_t exponent[KVT_RANK_GROUP];
        store(exponent, e.half[0]);
        store(exponent + 32, e.half[1]);
        for (; is_escape; is_escape &= is_escape - 1) *s->escapes++ = exponent[__builtin_ctzll(is_escape)];
    }
}

/* The short group at the end of a plane goes through copies of full length. */
static inline void pack_short_group(enum kvt_dtype dtype, bool is_based, struct pack_state *s, const uint8_t *source,
                                    uint32_t count, struct rest rest, const uint8_t *bases)
{
    uint8_t padded[2 * KVT_RANK_GROUP] = { 0 }, padded_rest[KVT_RANK_GROUP], words[24];
    memcpy(padded, source, (size_t)count * element_bytes(dtype));
    pack_group(dtype, is_based, s, padded, (struct rest){ padded_rest, words }, bases, ((uint64_t)1 << count) - 1);
    memcpy(rest.bytes, padded_rest, dtype == KVT_DTYPE_FP8 ? (count + 1) / 2 : count);
    if (dtype == KVT_DTYPE_FP16) memcpy(rest.words, words, sizeof words);
}

INLINE void pack_planes(enum kvt_dtype dtype, bool is_based, struct kvt_rank_pack *args)
{
    const struct kvt_rank_shape *shape = &args->shape;
    uint8_t code[KVT_RANK_WINDOW];
    kvt_rank_codes(&args->table, code);
    struct pack_state s = {
        .code = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)code)),
        .low = _mm256_set1_epi8((char)args->table.low),
        .second = { .stream = { args->second[0], args->second[1] } },
        .third = { .stream = { args->third[0], args->third[1] } },
        .first = args->first,
        .escapes = args->escapes,
    };
    const uint32_t full = shape->elements / KVT_RANK_GROUP, left = shape->elements % KVT_RANK_GROUP;
    for (uint32_t plane = 0; plane < shape->plane_count; plane++) {
        const uint8_t *source = args->source[plane];
        struct rest rest = { .bytes = args->rest + plane * kvt_rank_plane_rest_bytes(shape) };
        rest.words = rest.bytes + shape->elements;
        struct kvt_rank_walk walk = kvt_rank_walk_begin(args->bases.plane[plane], shape->channels);
        for (uint32_t group = 0; group < full; group++) {
            pack_group(dtype, is_based, &s, source, rest, kvt_rank_walk_at(is_based, &walk), UINT64_MAX);
            source += KVT_RANK_GROUP * element_bytes(dtype);
            rest.bytes += group_rest_bytes(dtype);
            if (dtype == KVT_DTYPE_FP16) rest.words += 24;
            if (is_based) kvt_rank_walk_next(&walk);
        }
        if (left > 0) pack_short_group(dtype, is_based, &s, source, left, rest, kvt_rank_walk_at(is_based, &walk));
    }
    kvt_rank_write_end(&s.second);
    kvt_rank_write_end(&s.third);
    args->second_count = s.second.count;
    args->third_count = s.third.count;
    args->escape_count = (uint32_t)(s.escapes - args->escapes);
}

static void pack(struct kvt_rank_pack *args)
{
    const bool is_based = args->bases.plane[0] != NULL;
    if (args->shape.dtype == KVT_DTYPE_BF16) {
        if (is_based) pack_planes(KVT_DTYPE_BF16, true, args);
        else pack_planes(KVT_DTYPE_BF16, false, args);
    } else if (args->shape.dtype == KVT_DTYPE_FP16) {
        if (is_based) pack_planes(KVT_DTYPE_FP16, true, args);
        else pack_planes(KVT_DTYPE_FP16, false, args);
    } else {
        if (is_based) pack_planes(KVT_DTYPE_FP8, true, args);
        else pack_planes(KVT_DTYPE_FP8, false, args);
    }
}

/* ---- Unpack ---------------------------------------------------------------------------------------------------- */

struct unpack_state {
    __m256i symbol;
    const uint8_t *first, *second[2], *third[2], *escapes;
    uint32_t second_at, third_at, escape_at;
    uint32_t second_count, third_count, escape_count;
};

/* 32 exponents from the bits of their index (kvt_rank_symbols_by_index). */
INLINE __m256i symbols_of(__m256i symbol, uint32_t low, uint32_t high, uint32_t in_second, uint32_t in_third)
{
    const __m256i level = or (and(spread(in_second), _mm256_set1_epi8(4)), and(spread(in_third), _mm256_set1_epi8(8)));
    const __m256i pair = or (and(spread(low), _mm256_set1_epi8(1)), and(spread(high), _mm256_set1_epi8(2)));
    return _mm256_shuffle_epi8(symbol, or (pair, level));
}

/* The exponents of the next group; false when a stream is too short for it. */
INLINE bool unpack_exponents(bool is_based, struct unpack_state *s, const uint8_t *bases, struct pair *ret_exponents)
{
    const uint64_t p0 = kvt_load_u64(s->first), p1 = kvt_load_u64(s->first + 8);
    s->first += 16;
    const uint64_t in_second = p0 & p1;
    const uint32_t second_end = s->second_at + (uint32_t)_mm_popcnt_u64(in_second);
    if (__builtin_expect(second_end > s->second_count, 0)) return false;
    const uint64_t q0 = _pdep_u64(kvt_rank_read(s->second[0], s->second_at), in_second);
    const uint64_t q1 = _pdep_u64(kvt_rank_read(s->second[1], s->second_at), in_second);
    s->second_at = second_end;

    const uint64_t in_third = q0 & q1;
    const uint32_t third_end = s->third_at + (uint32_t)_mm_popcnt_u64(in_third);
    if (__builtin_expect(third_end > s->third_count, 0)) return false;
    const uint64_t r0 = _pdep_u64(kvt_rank_read(s->third[0], s->third_at), in_third);
    const uint64_t r1 = _pdep_u64(kvt_rank_read(s->third[1], s->third_at), in_third);
    s->third_at = third_end;

    uint64_t is_escape = r0 & r1;
    const uint32_t escape_end = s->escape_at + (uint32_t)_mm_popcnt_u64(is_escape);
    if (__builtin_expect(escape_end > s->escape_count, 0)) return false;

    const uint64_t low = (p0 & ~in_second) | (q0 & ~in_third) | r0;
    const uint64_t high = (p1 & ~in_second) | (q1 & ~in_third) | r1;
    struct pair e;
    for (int h = 0; h < 2; h++)
        e.half[h] = symbols_of(s->symbol, (uint32_t)(low >> 32 * h), (uint32_t)(high >> 32 * h),
                               (uint32_t)(in_second >> 32 * h), (uint32_t)(in_third >> 32 * h));
    if (is_escape) {
        uint8_t exponent[KVT_RANK_GROUP];
        store(exponent, e.half[0]);
        store(exponent + 32, e.half[1]);
        const uint8_t *escape = s->escapes + s->escape_at;
        for (; is_escape; is_escape &= is_escape - 1) exponent[__builtin_ctzll(is_escape)] = *escape++;
        e.half[0] = load(exponent);
        e.half[1] = load(exponent + 32);
    }
    s->escape_at = escape_end;
    for (int h = 0; h < 2; h++)
        ret_exponents->half[h] = is_based ? _mm256_add_epi8(e.half[h], load(bases + 32 * h)) : e.half[h];
    return true;
}

/* The short group at the end of a plane: made in full length, copied as far as it goes. */
static inline bool unpack_short_group(enum kvt_dtype dtype, bool is_based, struct unpack_state *s, uint32_t count,
                                      struct rest rest, const uint8_t *bases, uint8_t *target)
{
    if ((kvt_load_u64(s->first) | kvt_load_u64(s->first + 8)) >> count) return false;
    struct pair e;
    if (!unpack_exponents(is_based, s, bases, &e)) return false;
    uint8_t padded[2 * KVT_RANK_GROUP], padded_rest[KVT_RANK_GROUP] = { 0 };
    memcpy(padded_rest, rest.bytes, dtype == KVT_DTYPE_FP8 ? (count + 1) / 2 : count);
    for (int h = 0; h < 2; h++) join_half(dtype, e.half[h], (struct rest){ padded_rest, rest.words }, h, padded);
    memcpy(target, padded, (size_t)count * element_bytes(dtype));
    return true;
}

INLINE bool unpack_planes(enum kvt_dtype dtype, bool is_based, const struct kvt_rank_unpack *args)
{
    const struct kvt_rank_shape *shape = &args->shape;
    uint8_t symbol[16];
    kvt_rank_symbols_by_index(args->symbol, symbol);
    struct unpack_state s = {
        .symbol = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)symbol)),
        .first = args->first,
        .second = { args->second[0], args->second[1] },
        .third = { args->third[0], args->third[1] },
        .escapes = args->escapes,
        .second_count = args->second_count,
        .third_count = args->third_count,
        .escape_count = args->escape_count,
    };
    const uint32_t full = shape->elements / KVT_RANK_GROUP, left = shape->elements % KVT_RANK_GROUP;
    for (uint32_t plane = 0; plane < shape->plane_count; plane++) {
        uint8_t *target = args->target[plane];
        struct rest rest = { .bytes = (uint8_t *)(uintptr_t)args->rest + plane * kvt_rank_plane_rest_bytes(shape) };
        rest.words = rest.bytes + shape->elements;
        struct kvt_rank_walk walk = kvt_rank_walk_begin(args->bases.plane[plane], shape->channels);
        for (uint32_t group = 0; group < full; group++) {
            struct pair e;
            if (!unpack_exponents(is_based, &s, kvt_rank_walk_at(is_based, &walk), &e)) return false;
            for (int h = 0; h < 2; h++) join_half(dtype, e.half[h], rest, h, target);
            target += KVT_RANK_GROUP * element_bytes(dtype);
            rest.bytes += group_rest_bytes(dtype);
            if (dtype == KVT_DTYPE_FP16) rest.words += 24;
            if (is_based) kvt_rank_walk_next(&walk);
        }
        if (left > 0 && !unpack_short_group(dtype, is_based, &s, left, rest, kvt_rank_walk_at(is_based, &walk), target))
            return false;
    }
    return s.second_at == s.second_count && s.third_at == s.third_count && s.escape_at == s.escape_count;
}

static bool unpack(const struct kvt_rank_unpack *args)
{
    const bool is_based = args->bases.plane[0] != NULL;
    if (args->shape.dtype == KVT_DTYPE_BF16)
        return is_based ? unpack_planes(KVT_DTYPE_BF16, true, args) : unpack_planes(KVT_DTYPE_BF16, false, args);
    if (args->shape.dtype == KVT_DTYPE_FP16)
        return is_based ? unpack_planes(KVT_DTYPE_FP16, true, args) : unpack_planes(KVT_DTYPE_FP16, false, args);
    return is_based ? unpack_planes(KVT_DTYPE_FP8, true, args) : unpack_planes(KVT_DTYPE_FP8, false, args);
}

/* ---- Sample ---------------------------------------------------------------------------------------------------- */

static struct pair exponents_of(enum kvt_dtype dtype, const uint8_t *source)
{
    if (dtype == KVT_DTYPE_BF16) return exponents(KVT_DTYPE_BF16, source);
    return dtype == KVT_DTYPE_FP16 ? exponents(KVT_DTYPE_FP16, source) : exponents(KVT_DTYPE_FP8, source);
}

enum { SAMPLES_AHEAD = 12 };

static void sample(const struct kvt_rank_shape *shape, const uint8_t *const source[2],
                   const struct kvt_rank_bases *bases, uint32_t ret_histogram[256])
{
    uint32_t counts[4][256] = { { 0 } }; /* four, so that equal exponents in a row do not wait for each other */
    const uint32_t plane_groups = kvt_rank_plane_groups(shape);
    const struct kvt_rank_samples samples = kvt_rank_samples_of(shape);
    for (uint32_t i = 0; i < SAMPLES_AHEAD; i++) kvt_rank_samples_fetch(&samples, i, shape, source);
    for (uint32_t s = 0; s < samples.count; s++) {
        kvt_rank_samples_fetch(&samples, s + SAMPLES_AHEAD, shape, source);
        const uint32_t index = samples.group[s];
        const uint32_t plane = index / plane_groups, first = index % plane_groups * KVT_RANK_GROUP;
        const uint32_t count = kvt_min_u32(KVT_RANK_GROUP, shape->elements - first);
        uint8_t padded[2 * KVT_RANK_GROUP];
        const uint8_t *elements = source[plane] + (size_t)first * element_bytes(shape->dtype);
        if (count < KVT_RANK_GROUP) {
            memset(padded, 0, sizeof padded);
            memcpy(padded, elements, (size_t)count * element_bytes(shape->dtype));
            elements = padded;
        }
        struct pair e = exponents_of(shape->dtype, elements);
        uint8_t exponent[KVT_RANK_GROUP];
        for (uint32_t h = 0; h < 2; h++) {
            if (bases->plane[plane])
                e.half[h] = _mm256_sub_epi8(e.half[h], load(bases->plane[plane] + first % shape->channels + 32 * h));
            store(exponent + 32 * h, e.half[h]);
        }
        if (count < KVT_RANK_GROUP) {
            for (uint32_t i = 0; i < count; i++) counts[0][exponent[i]]++;
            continue;
        }
        for (uint32_t i = 0; i < KVT_RANK_GROUP; i += 4)
            for (uint32_t k = 0; k < 4; k++) counts[k][exponent[i + k]]++;
    }
    for (uint32_t i = 0; i < 256; i++) ret_histogram[i] = counts[0][i] + counts[1][i] + counts[2][i] + counts[3][i];
}

const struct kvt_rank_ops kvt_rank_ops_avx2 = {
    .name = "avx2",
    .is_supported = kvt_rank_is_avx2_here,
    .sample = sample,
    .pack = pack,
    .unpack = unpack,
};

#endif
