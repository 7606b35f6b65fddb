/*
 * All ways work on the inverted register and on reflected bits. Folding: a 128-bit lane A that lies D bits before a
 * lane B of the same message is congruent to (A.low * x^(D+31) + A.high * x^(D-33)) mod P at the place of B (the 31 and
 * 33 instead of 32 account for the reflected product, which comes out one bit short). What is left at the end, one
 * 128-bit lane, goes through the crc32 instruction.
 */
#include "runtime/base/crc32c.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"

#define POLYNOMIAL 0x82f63b78u

/* One step of division by P: x * value mod P, reflected. */
static uint32_t times_x(uint32_t value) { return (value >> 1) ^ (POLYNOMIAL & (0u - (value & 1))); }

/* ---- Tables: slicing by eight --------------------------------------------------------------------------------- */

static uint32_t tables[8][256];

static void tables_fill(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = times_x(value);
        tables[0][i] = value;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++) tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
}

static uint32_t by_tables(uint32_t state, const uint8_t *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        const uint64_t v = kvt_load_u64(p) ^ state;
        state = tables[7][v & 0xff] ^ tables[6][(v >> 8) & 0xff] ^ tables[5][(v >> 16) & 0xff]
            ^ tables[4][(v >> 24) & 0xff] ^ tables[3][(v >> 32) & 0xff] ^ tables[2][(v >> 40) & 0xff]
            ^ tables[1][(v >> 48) & 0xff] ^ tables[0][v >> 56];
    }
    for (; size > 0; p++, size--) state = (state >> 8) ^ tables[0][(state ^ *p) & 0xff];
    return state;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* x^n mod P, reflected. */
static uint64_t x_to_the(uint32_t n)
{
    uint32_t value = 0x80000000u;
    for (; n > 0; n--) value = times_x(value);
    return value;
}

/* { x^(D+31), x^(D-33) } for the distances that are folded over. */
static uint64_t fold_128[2], fold_512[2], fold_2048[2];

static void fold_fill(void)
{
    fold_128[0] = x_to_the(128 + 31);
    fold_128[1] = x_to_the(128 - 33);
    fold_512[0] = x_to_the(512 + 31);
    fold_512[1] = x_to_the(512 - 33);
    fold_2048[0] = x_to_the(2048 + 31);
    fold_2048[1] = x_to_the(2048 - 33);
}

__attribute__((target("sse4.2"))) static uint32_t by_sse42(uint32_t state, const uint8_t *p, size_t size)
{
    uint64_t wide = state;
    for (; size >= 8; p += 8, size -= 8) wide = _mm_crc32_u64(wide, kvt_load_u64(p));
    state = (uint32_t)wide;
    for (; size > 0; p++, size--) state = _mm_crc32_u8(state, *p);
    return state;
}

__attribute__((target("sse4.2,pclmul"))) static inline __m128i fold(__m128i lane, __m128i by, __m128i next)
{
    const __m128i low = _mm_clmulepi64_si128(lane, by, 0x00);
    const __m128i high = _mm_clmulepi64_si128(lane, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t last_lane(__m128i lane)
{
    uint64_t halves[2];
    _mm_storeu_si128((__m128i *)halves, lane);
    return (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, halves[0]), halves[1]);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t by_fold128(uint32_t state, const uint8_t *p, size_t size)
{
    if (size < 128) return by_sse42(state, p, size);
    const __m128i *lanes = (const __m128i *)p;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(lanes), _mm_cvtsi32_si128((int)state));
    __m128i b = _mm_loadu_si128(lanes + 1), c = _mm_loadu_si128(lanes + 2), d = _mm_loadu_si128(lanes + 3);
    const __m128i by_512 = _mm_loadu_si128((const __m128i *)fold_512);
    for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
        lanes = (const __m128i *)p;
        a = fold(a, by_512, _mm_loadu_si128(lanes));
        b = fold(b, by_512, _mm_loadu_si128(lanes + 1));
        c = fold(c, by_512, _mm_loadu_si128(lanes + 2));
        d = fold(d, by_512, _mm_loadu_si128(lanes + 3));
    }
    const __m128i by_128 = _mm_loadu_si128((const __m128i *)fold_128);
    a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
    for (; size >= 16; p += 16, size -= 16) a = fold(a, by_128, _mm_loadu_si128((const __m128i *)p));
    return by_sse42(last_lane(a), p, size);
}

#define TARGET_512 __attribute__((target("avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2")))

TARGET_512 static inline __m512i fold_wide(__m512i lane, __m512i by, __m512i next)
{
    const __m512i low = _mm512_clmulepi64_epi128(lane, by, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(lane, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

TARGET_512 static uint32_t by_fold512(uint32_t state, const uint8_t *p, size_t size)
{
    if (size < 512) return by_fold128(state, p, size);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    __m512i b = _mm512_loadu_si512(p + 64), c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fold_2048));
    for (p += 256, size -= 256; size >= 256; p += 256, size -= 256) {
        a = fold_wide(a, by_2048, _mm512_loadu_si512(p));
        b = fold_wide(b, by_2048, _mm512_loadu_si512(p + 64));
        c = fold_wide(c, by_2048, _mm512_loadu_si512(p + 128));
        d = fold_wide(d, by_2048, _mm512_loadu_si512(p + 192));
    }
    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fold_512));
    a = fold_wide(fold_wide(fold_wide(a, by_512, b), by_512, c), by_512, d);
    const __m128i by_128 = _mm_loadu_si128((const __m128i *)fold_128);
    __m128i lane = fold(_mm512_extracti32x4_epi32(a, 0), by_128, _mm512_extracti32x4_epi32(a, 1));
    lane = fold(lane, by_128, _mm512_extracti32x4_epi32(a, 2));
    lane = fold(lane, by_128, _mm512_extracti32x4_epi32(a, 3));
    for (; size >= 16; p += 16, size -= 16) lane = fold(lane, by_128, _mm_loadu_si128((const __m128i *)p));
    return by_sse42(last_lane(lane), p, size);
}

static bool cpu_has(enum kvt_crc32c_way way)
{
    switch (way) {
    case KVT_CRC32C_TABLES: return true;
    case KVT_CRC32C_SSE42: return __builtin_cpu_supports("sse4.2");
    case KVT_CRC32C_FOLD128: return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
    case KVT_CRC32C_FOLD512:
        return cpu_has(KVT_CRC32C_FOLD128) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")
            && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq");
    case KVT_CRC32C_WAYS: break;
    }
    return false;
}

static uint32_t run(enum kvt_crc32c_way way, uint32_t state, const uint8_t *p, size_t size)
{
    switch (way) {
    case KVT_CRC32C_SSE42: return by_sse42(state, p, size);
    case KVT_CRC32C_FOLD128: return by_fold128(state, p, size);
    case KVT_CRC32C_FOLD512: return by_fold512(state, p, size);
    case KVT_CRC32C_TABLES:
    case KVT_CRC32C_WAYS: break;
    }
    return by_tables(state, p, size);
}

#else

static void fold_fill(void) {}
static bool cpu_has(enum kvt_crc32c_way way) { return way == KVT_CRC32C_TABLES; }
static uint32_t run(enum kvt_crc32c_way way, uint32_t state, const uint8_t *p, size_t size)
{
    (void)way;
    return by_tables(state, p, size);
}

#endif

/* ---- Choice ----------------------------------------------------------------------------------------------------- */

static enum kvt_crc32c_way chosen;

/* Before main and before any thread, so that no call has to ask whether the tables are there. */
__attribute__((constructor)) static void choose(void)
{
    tables_fill();
    fold_fill();
    for (int way = KVT_CRC32C_TABLES; way < KVT_CRC32C_WAYS; way++)
        if (cpu_has((enum kvt_crc32c_way)way)) chosen = (enum kvt_crc32c_way)way;
}

bool kvt_crc32c_has(enum kvt_crc32c_way way) { return cpu_has(way); }
enum kvt_crc32c_way kvt_crc32c_chosen(void) { return chosen; }

const char *kvt_crc32c_name(enum kvt_crc32c_way way)
{
    static const char *const names[] = { "tables", "sse4.2", "pclmulqdq", "vpclmulqdq" };
    KVT_ASSERT(way < KVT_CRC32C_WAYS);
    return names[way];
}

uint32_t kvt_crc32c_by(enum kvt_crc32c_way way, uint32_t crc, const void *bytes, size_t size)
{
    KVT_ASSERT(cpu_has(way));
    return ~run(way, ~crc, bytes, size);
}

uint32_t kvt_crc32c(uint32_t crc, const void *bytes, size_t size) { return ~run(chosen, ~crc, bytes, size); }

uint32_t kvt_crc32c_copy(uint32_t crc, void *target, const void *source, size_t size)
{
    enum { PIECE_BYTES = 16384 }; /* half of a first-level cache */
    const uint8_t *from = source;
    uint8_t *to = target;
    uint32_t state = ~crc;
    while (size > 0) {
        const size_t piece = size < PIECE_BYTES ? size : PIECE_BYTES;
        memcpy(to, from, piece);
        state = run(chosen, state, to, piece);
        from += piece;
        to += piece;
        size -= piece;
    }
    return ~state;
}
