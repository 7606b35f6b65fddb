/*
 * attention with vectors. The build compiles this file once for AVX2 (with FMA and F16C) and once for AVX-512, each time
 * alone with its instructions; nothing in it runs before kvt_attention_is_..._here() said yes.
 *
 * All query heads of a KV head (up to eight at once) go through its tokens together, so that a row is widened once for
 * all of them. A run of up to 32 tokens of one block is a tile: first its scores, then one raise of the largest score,
 * then its values.
 */
#include "kernels/attention_simd.h"

#if defined(__AVX2__)

#include <immintrin.h>

#include "runtime/base/assert.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- A vector ---------------------------------------------------------------------------------------------------- */

#if defined(__AVX512F__)

#define VEC __m512
enum { LANES = 16 };

INLINE VEC vec_zero(void) { return _mm512_setzero_ps(); }
INLINE VEC vec_all(float value) { return _mm512_set1_ps(value); }
INLINE VEC vec_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vec_store(float *p, VEC v) { _mm512_storeu_ps(p, v); }
INLINE VEC vec_product(VEC a, VEC b) { return _mm512_mul_ps(a, b); }
INLINE VEC vec_add_product(VEC sum, VEC a, VEC b) { return _mm512_fmadd_ps(a, b, sum); }
INLINE float vec_sum(VEC v) { return _mm512_reduce_add_ps(v); }

/* Elements d to d + 15 of a row, widened. */
INLINE VEC vec_widen(enum kvt_dtype dtype, const uint8_t *row, uint32_t d)
{
    if (dtype == KVT_DTYPE_FP32) return _mm512_loadu_ps(row + 4 * (uint64_t)d);
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * (uint64_t)d));
    if (dtype == KVT_DTYPE_FP16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#else

#define VEC __m256
enum { LANES = 8 };

INLINE VEC vec_zero(void) { return _mm256_setzero_ps(); }
INLINE VEC vec_all(float value) { return _mm256_set1_ps(value); }
INLINE VEC vec_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vec_store(float *p, VEC v) { _mm256_storeu_ps(p, v); }
INLINE VEC vec_product(VEC a, VEC b) { return _mm256_mul_ps(a, b); }
INLINE VEC vec_add_product(VEC sum, VEC a, VEC b) { return _mm256_fmadd_ps(a, b, sum); }

/* Elements d to d + 7 of a row, widened. */
INLINE VEC vec_widen(enum kvt_dtype dtype, const uint8_t *row, uint32_t d)
{
    if (dtype == KVT_DTYPE_FP32) return _mm256_loadu_ps((const float *)(const void *)(row + 4 * (uint64_t)d));
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * (uint64_t)d));
    if (dtype == KVT_DTYPE_FP16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE float vec_sum(VEC v)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#endif

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

enum { TILE_TOKENS = 32, HEADS_AT_ONCE = 8 };

/* Rows of one block that are seen. */
struct tile {
    uint32_t count;
    const uint8_t *keys[TILE_TOKENS], *values[TILE_TOKENS];
};

/* Takes the next tile of entry i, from row *row on; the rows end at `end`. */
INLINE void tile_take(const struct kvt_attention *args, uint32_t i, uint32_t kv_head, uint32_t *row, uint32_t end,
                      struct tile *tile)
{
    const uint64_t start = kvt_attention_block(args, i) * args->block_tokens;
    tile->count = 0;
    for (; *row < end && tile->count < TILE_TOKENS; (*row)++) {
        if (!kvt_attention_is_seen(args, start + *row)) continue;
        tile->keys[tile->count] = kvt_attention_key(args, i, *row, kv_head);
        tile->values[tile->count++] = kvt_attention_value(args, i, *row, kv_head);
    }
}

INLINE void tile_scores(const struct kvt_attention *args, const struct tile *tile, const float *query, uint32_t heads,
                        enum kvt_dtype dtype, float scores[HEADS_AT_ONCE][TILE_TOKENS])
{
    for (uint32_t t = 0; t < tile->count; t++) {
        VEC sums[HEADS_AT_ONCE];
        for (uint32_t h = 0; h < heads; h++) sums[h] = vec_zero();
        for (uint32_t d = 0; d < args->head_dim; d += LANES) {
            const VEC key = vec_widen(dtype, tile->keys[t], d);
            for (uint32_t h = 0; h < heads; h++)
                sums[h] = vec_add_product(sums[h], key, vec_load(query + (uint64_t)h * args->head_dim + d));
        }
        for (uint32_t h = 0; h < heads; h++) scores[h][t] = vec_sum(sums[h]) * args->scale;
    }
}

/* Scores become weights; factors[h] is for what was accumulated before. */
INLINE void tile_weights(const struct tile *tile, uint32_t heads, struct kvt_attention_sum *sums,
                         float scores[HEADS_AT_ONCE][TILE_TOKENS], float factors[HEADS_AT_ONCE])
{
    for (uint32_t h = 0; h < heads; h++) {
        float most = scores[h][0];
        for (uint32_t t = 1; t < tile->count; t++) most = scores[h][t] > most ? scores[h][t] : most;
        factors[h] = kvt_attention_sum_raise(&sums[h], most);
        for (uint32_t t = 0; t < tile->count; t++) scores[h][t] = kvt_attention_sum_add(&sums[h], scores[h][t]);
    }
}

INLINE void tile_values(const struct kvt_attention *args, const struct tile *tile, uint32_t heads, enum kvt_dtype dtype,
                        float weights[HEADS_AT_ONCE][TILE_TOKENS], const float factors[HEADS_AT_ONCE], float *out)
{
    for (uint32_t d = 0; d < args->head_dim; d += LANES) {
        VEC sums[HEADS_AT_ONCE];
        for (uint32_t h = 0; h < heads; h++)
            sums[h] = vec_product(vec_all(factors[h]), vec_load(out + (uint64_t)h * args->head_dim + d));
        for (uint32_t t = 0; t < tile->count; t++) {
            const VEC value = vec_widen(dtype, tile->values[t], d);
            for (uint32_t h = 0; h < heads; h++) sums[h] = vec_add_product(sums[h], value, vec_all(weights[h][t]));
        }
        for (uint32_t h = 0; h < heads; h++) vec_store(out + (uint64_t)h * args->head_dim + d, sums[h]);
    }
}

/* `heads` query heads from `head` on, all of one KV head; heads and dtype are constants where it is called. */
INLINE void attend_heads(const struct kvt_attention *args, uint32_t head, uint32_t heads, enum kvt_dtype dtype)
{
    const float *query = args->query + (uint64_t)head * args->head_dim;
    float *out = args->out + (uint64_t)head * args->head_dim;
    const uint32_t kv_head = head / (args->query_heads / args->kv_heads);
    struct kvt_attention_sum sums[HEADS_AT_ONCE];
    float scores[HEADS_AT_ONCE][TILE_TOKENS], factors[HEADS_AT_ONCE];
    for (uint32_t h = 0; h < heads; h++) sums[h] = kvt_attention_sum_begin();
    for (uint64_t d = 0; d < (uint64_t)heads * args->head_dim; d++) out[d] = 0;
    for (uint32_t i = 0; i < args->count; i++) {
        uint32_t row, end;
        kvt_attention_rows(args, i, &row, &end);
        while (row < end) {
            struct tile tile;
            tile_take(args, i, kv_head, &row, end, &tile);
            if (tile.count == 0) continue;
            tile_scores(args, &tile, query, heads, dtype, scores);
            tile_weights(&tile, heads, sums, scores, factors);
            tile_values(args, &tile, heads, dtype, scores, factors, out);
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        args->lse[head + h] = kvt_attention_sum_lse(&sums[h]);
        for (uint32_t d = 0; d < args->head_dim && sums[h].sum > 0; d++)
            out[(uint64_t)h * args->head_dim + d] /= sums[h].sum;
    }
}

INLINE void attend_dtype(const struct kvt_attention *args, enum kvt_dtype dtype)
{
    const uint32_t group = args->query_heads / args->kv_heads;
    for (uint32_t kv_head = 0; kv_head < args->kv_heads; kv_head++) {
        const uint32_t end = (kv_head + 1) * group;
        uint32_t head = kv_head * group;
        for (; head + 8 <= end; head += 8) attend_heads(args, head, 8, dtype);
        for (; head + 4 <= end; head += 4) attend_heads(args, head, 4, dtype);
        for (; head < end; head++) attend_heads(args, head, 1, dtype);
    }
}

/* A head_dim that is no whole number of vectors goes through the reference. */
static void attend(const struct kvt_attention *args)
{
    KVT_ASSERT(kvt_attention_is_valid(args));
    if (args->head_dim % LANES != 0) {
        kvt_attention_ops_ref.attend(args);
        return;
    }
    switch (args->dtype) {
    case KVT_DTYPE_BF16: attend_dtype(args, KVT_DTYPE_BF16); break;
    case KVT_DTYPE_FP16: attend_dtype(args, KVT_DTYPE_FP16); break;
    case KVT_DTYPE_FP32: attend_dtype(args, KVT_DTYPE_FP32); break;
    case KVT_DTYPE_FP8:
    case KVT_DTYPE_INT8: break;
    }
}

#if defined(__AVX512F__)
const struct kvt_attention_ops kvt_attention_ops_avx512 = {
    .name = "avx512",
    .is_supported = kvt_attention_is_avx512_here,
    .attend = attend,
};
#else
const struct kvt_attention_ops kvt_attention_ops_avx2 = {
    .name = "avx2",
    .is_supported = kvt_attention_is_avx2_here,
    .attend = attend,
};
#endif

#endif
