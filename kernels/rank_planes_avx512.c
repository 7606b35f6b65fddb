/*
 * rank_planes with AVX-512 (F, BW, VL, VBMI, VBMI2) and BMI2: 64 elements at a time, bit planes as mask registers.
 * The build compiles this file alone with these instructions; nothing in it runs before kvt_rank_is_avx512_here()
 * said yes. Bytes and verdicts are those of rank_planes_ref.c.
 */
#include "kernels/rank_planes_simd.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void store(void *p, __m512i v) { _mm512_storeu_si512(p, v); }

/* Bitwise: mask ? a : b. */
INLINE __m512i choose(__m512i mask, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }

/* The even bytes of the 128 bytes a, b. */
INLINE __m512i even_bytes(__m512i a, __m512i b)
{
    static const uint8_t even[64] = { 0,  2,  4,   6,   8,   10,  12,  14,  16,  18,  20,  22,  24,  26,  28,  30,
                                      32, 34, 36,  38,  40,  42,  44,  46,  48,  50,  52,  54,  56,  58,  60,  62,
                                      64, 66, 68,  70,  72,  74,  76,  78,  80,  82,  84,  86,  88,  90,  92,  94,
                                      96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122, 124, 126 };
    return _mm512_permutex2var_epi8(a, load(even), b);
}

/* ---- Elements and their parts, 64 at a time -------------------------------------------------------------------- */

/* Where the parts of a plane's rest lie: words is fp16's only. */
struct rest {
    uint8_t *bytes, *words;
};

/* The exponents of 64 elements at source. */
INLINE __m512i exponents(enum kvt_dtype dtype, const uint8_t *source)
{
    const __m512i a = load(source);
    if (dtype == KVT_DTYPE_FP8) return _mm512_and_si512(_mm512_srli_epi16(a, 3), _mm512_set1_epi8(15));
    const __m512i b = load(source + 64);
    if (dtype == KVT_DTYPE_BF16) return even_bytes(_mm512_srli_epi16(a, 7), _mm512_srli_epi16(b, 7));
    return _mm512_and_si512(even_bytes(_mm512_srli_epi16(a, 10), _mm512_srli_epi16(b, 10)), _mm512_set1_epi8(31));
}

/* Writes the rest of 64 elements: bf16 64 bytes; fp16 64 bytes and 3 words; fp8 32 bytes. */
INLINE void store_rest(enum kvt_dtype dtype, const uint8_t *source, struct rest rest)
{
    const __m512i a = load(source);
    if (dtype == KVT_DTYPE_FP8) {
        const __m512i nibble = choose(_mm512_set1_epi8(7), a, _mm512_srli_epi16(a, 4));
        const __m512i clean = _mm512_and_si512(nibble, _mm512_set1_epi8(15));
        const __m512i pair = _mm512_or_si512(clean, _mm512_srli_epi16(clean, 4));
        _mm256_storeu_si256((__m256i *)rest.bytes, _mm512_cvtepi16_epi8(pair));
        return;
    }
    const __m512i b = load(source + 64);
    if (dtype == KVT_DTYPE_BF16) {
        const __m512i mantissa = _mm512_set1_epi16(0x7f);
        store(rest.bytes,
              even_bytes(choose(mantissa, a, _mm512_srli_epi16(a, 8)), choose(mantissa, b, _mm512_srli_epi16(b, 8))));
        return;
    }
    store(rest.bytes, even_bytes(a, b));
    const __m512i high = even_bytes(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    kvt_store_u64(rest.words, _mm512_movepi8_mask(high));
    kvt_store_u64(rest.words + 8, _mm512_test_epi8_mask(high, _mm512_set1_epi8(2)));
    kvt_store_u64(rest.words + 16, _mm512_test_epi8_mask(high, _mm512_set1_epi8(1)));
}

/* 32 bytes as the low halves of 32 words. */
INLINE __m512i widen(__m512i bytes, int half)
{
    return _mm512_cvtepu8_epi16(half ? _mm512_extracti64x4_epi64(bytes, 1) : _mm512_castsi512_si256(bytes));
}

INLINE __m512i load_widen(const uint8_t *p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p)); }

/* Puts 64 elements together from their exponents and their rest. */
INLINE void join(enum kvt_dtype dtype, __m512i exponent, struct rest rest, uint8_t *target)
{
    if (dtype == KVT_DTYPE_FP8) {
        const __m512i pair = load_widen(rest.bytes);
        const __m512i nibble = _mm512_or_si512(_mm512_and_si512(pair, _mm512_set1_epi16(15)),
                                               _mm512_slli_epi16(_mm512_srli_epi16(pair, 4), 8));
        const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(nibble, _mm512_set1_epi8(8)), 4);
        const __m512i e = _mm512_slli_epi16(_mm512_and_si512(exponent, _mm512_set1_epi8(15)), 3);
        store(target, choose(_mm512_set1_epi8(7), nibble, _mm512_or_si512(e, sign)));
        return;
    }
    if (dtype == KVT_DTYPE_BF16) {
        const __m512i mantissa = _mm512_set1_epi16(0x7f), sign = _mm512_set1_epi16((short)0x8000);
        for (int half = 0; half < 2; half++) {
            const __m512i r = load_widen(rest.bytes + 32 * half);
            const __m512i e = _mm512_slli_epi16(widen(exponent, half), 7);
            const __m512i high = _mm512_ternarylogic_epi32(e, _mm512_slli_epi16(r, 8), sign,
                                                           0xf8); /* e | (r << 8 & sign) */
            store(target + 64 * half, choose(mantissa, r, high));
        }
        return;
    }
    __m512i high = _mm512_slli_epi16(_mm512_and_si512(exponent, _mm512_set1_epi8(31)), 2);
    high = _mm512_mask_add_epi8(high, kvt_load_u64(rest.words), high, _mm512_set1_epi8((char)0x80));
    high = _mm512_mask_add_epi8(high, kvt_load_u64(rest.words + 8), high, _mm512_set1_epi8(2));
    high = _mm512_mask_add_epi8(high, kvt_load_u64(rest.words + 16), high, _mm512_set1_epi8(1));
    for (int half = 0; half < 2; half++)
        store(target + 64 * half,
              _mm512_or_si512(_mm512_slli_epi16(widen(high, half), 8), load_widen(rest.bytes + 32 * half)));
}

INLINE uint32_t element_bytes(enum kvt_dtype dtype) { return dtype == KVT_DTYPE_FP8 ? 1 : 2; }
INLINE uint32_t group_rest_bytes(enum kvt_dtype dtype) { return dtype == KVT_DTYPE_FP8 ? 32 : 64; }

/* ---- Pack ------------------------------------------------------------------------------------------------------ */

struct pack_state {
    __m512i code, low;
    struct kvt_rank_writer second, third;
    uint8_t *first, *escapes;
};

/* One group; bits of valid say which elements there are. */
INLINE void pack_group(enum kvt_dtype dtype, bool is_based, struct pack_state *s, const uint8_t *source,
                       struct rest rest, const uint8_t *bases, uint64_t valid)
{
    store_rest(dtype, source, rest);
    __m512i e = exponents(dtype, source);
    if (is_based) e = _mm512_sub_epi8(e, load(bases));
    const __m512i distance = _mm512_sub_epi8(e, s->low);
    const __mmask64 is_far = _mm512_cmpgt_epu8_mask(distance, _mm512_set1_epi8(KVT_RANK_WINDOW - 1));
    const __m512i code = _mm512_mask_mov_epi8(_mm512_shuffle_epi8(s->code, distance), is_far, _mm512_set1_epi8(0x3f));

    const uint64_t p0 = _mm512_test_epi8_mask(code, _mm512_set1_epi8(1)) & valid;
    const uint64_t p1 = _mm512_test_epi8_mask(code, _mm512_set1_epi8(2)) & valid;
    const uint64_t q0 = _mm512_test_epi8_mask(code, _mm512_set1_epi8(4));
    const uint64_t q1 = _mm512_test_epi8_mask(code, _mm512_set1_epi8(8));
    const uint64_t r0 = _mm512_test_epi8_mask(code, _mm512_set1_epi8(16));
    const uint64_t r1 = _mm512_test_epi8_mask(code, _mm512_set1_epi8(32));
    const uint64_t in_second = p0 & p1;
    const uint64_t in_third = q0 & q1 & in_second;
    const uint64_t is_escape = r0 & r1 & in_third;

    kvt_store_u64(s->first, p0);
    kvt_store_u64(s->first + 8, p1);
    s->first += 16;
    kvt_rank_write(&s->second, _pext_u64(q0, in_second), _pext_u64(q1, in_second), (uint32_t)_mm_popcnt_u64(in_second));
    kvt_rank_write(&s->third, _pext_u64(r0, in_third), _pext_u64(r1, in_third), (uint32_t)_mm_popcnt_u64(in_third));
    store(s->escapes, _mm512_maskz_compress_epi8(is_escape, e));
    s->escapes += _mm_popcnt_u64(is_escape);
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
        .code = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)code)),
        .low = _mm512_set1_epi8((char)args->table.low),
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
    __m512i symbol;
    const uint8_t *first, *second[2], *third[2], *escapes;
    uint32_t second_at, third_at, escape_at;
    uint32_t second_count, third_count, escape_count;
};

/* The exponents of the next group; false when a stream is too short for it. */
INLINE bool unpack_exponents(bool is_based, struct unpack_state *s, const uint8_t *bases, __m512i *ret_exponents)
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

    const uint64_t is_escape = r0 & r1;
    const uint32_t escape_end = s->escape_at + (uint32_t)_mm_popcnt_u64(is_escape);
    if (__builtin_expect(escape_end > s->escape_count, 0)) return false;

    /*
     * The index into the symbols (kvt_rank_symbols_by_index): the pair of the level that decides, and which level it
     * is.
     */
    const uint64_t low = (p0 & ~in_second) | (q0 & ~in_third) | r0;
    const uint64_t high = (p1 & ~in_second) | (q1 & ~in_third) | r1;
    __m512i index = _mm512_maskz_mov_epi8(low, _mm512_set1_epi8(1));
    index = _mm512_mask_add_epi8(index, high, index, _mm512_set1_epi8(2));
    index = _mm512_mask_add_epi8(index, in_second, index, _mm512_set1_epi8(4));
    index = _mm512_mask_add_epi8(index, in_third, index, _mm512_set1_epi8(8));
    __m512i e = _mm512_shuffle_epi8(s->symbol, index);
    e = _mm512_mask_expand_epi8(e, is_escape, load(s->escapes + s->escape_at));
    s->escape_at = escape_end;
    *ret_exponents = is_based ? _mm512_add_epi8(e, load(bases)) : e;
    return true;
}

/* The short group at the end of a plane: made in full length, copied as far as it goes. */
static inline bool unpack_short_group(enum kvt_dtype dtype, bool is_based, struct unpack_state *s, uint32_t count,
                                      struct rest rest, const uint8_t *bases, uint8_t *target)
{
    if ((kvt_load_u64(s->first) | kvt_load_u64(s->first + 8)) >> count) return false;
    __m512i e;
    if (!unpack_exponents(is_based, s, bases, &e)) return false;
    uint8_t padded[2 * KVT_RANK_GROUP], padded_rest[KVT_RANK_GROUP] = { 0 };
    memcpy(padded_rest, rest.bytes, dtype == KVT_DTYPE_FP8 ? (count + 1) / 2 : count);
    join(dtype, e, (struct rest){ padded_rest, rest.words }, padded);
    memcpy(target, padded, (size_t)count * element_bytes(dtype));
    return true;
}

INLINE bool unpack_planes(enum kvt_dtype dtype, bool is_based, const struct kvt_rank_unpack *args)
{
    const struct kvt_rank_shape *shape = &args->shape;
    uint8_t symbol[16];
    kvt_rank_symbols_by_index(args->symbol, symbol);
    struct unpack_state s = {
        .symbol = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)symbol)),
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
            __m512i e;
            if (!unpack_exponents(is_based, &s, kvt_rank_walk_at(is_based, &walk), &e)) return false;
            join(dtype, e, rest, target);
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

static __m512i exponents_of(enum kvt_dtype dtype, const uint8_t *source)
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
        __m512i e = exponents_of(shape->dtype, elements);
        if (bases->plane[plane]) e = _mm512_sub_epi8(e, load(bases->plane[plane] + first % shape->channels));
        uint8_t exponent[KVT_RANK_GROUP];
        store(exponent, e);
        if (count < KVT_RANK_GROUP) {
            for (uint32_t i = 0; i < count; i++) counts[0][exponent[i]]++;
            continue;
        }
        for (uint32_t i = 0; i < KVT_RANK_GROUP; i += 4)
            for (uint32_t k = 0; k < 4; k++) counts[k][exponent[i + k]]++;
    }
    for (uint32_t i = 0; i < 256; i++) ret_histogram[i] = counts[0][i] + counts[1][i] + counts[2][i] + counts[3][i];
}

const struct kvt_rank_ops kvt_rank_ops_avx512 = {
    .name = "avx512",
    .is_supported = kvt_rank_is_avx512_here,
    .sample = sample,
    .pack = pack,
    .unpack = unpack,
};

#endif
