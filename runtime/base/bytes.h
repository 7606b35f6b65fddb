/* bytes: alignment, sizes that cannot overflow, little-endian access. */
#ifndef KVT_RUNTIME_BASE_BYTES_H
#define KVT_RUNTIME_BASE_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define KVT_KIB ((uint64_t)1 << 10)
#define KVT_MIB ((uint64_t)1 << 20)
#define KVT_GIB ((uint64_t)1 << 30)

#define KVT_ARRAY_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* alignment is a power of two; the caller knows that the sum does not overflow. */
static inline uint64_t kvt_align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

static inline bool kvt_is_aligned(uint64_t value, uint64_t alignment) { return (value & (alignment - 1)) == 0; }

static inline bool kvt_is_power_of_two(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

/* False, with *ret_product untouched, when a * b does not fit in 64 bits. */
static inline bool kvt_multiply(uint64_t a, uint64_t b, uint64_t *ret_product)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *ret_product = product;
    return true;
}

static inline uint64_t kvt_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t kvt_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t kvt_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t kvt_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* kvtier runs on little-endian machines only; the store's format is little-endian. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "kvtier's formats are little-endian");

static inline uint16_t kvt_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t kvt_load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t kvt_load_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void kvt_store_u16(void *p, uint16_t v) { memcpy(p, &v, sizeof v); }
static inline void kvt_store_u32(void *p, uint32_t v) { memcpy(p, &v, sizeof v); }
static inline void kvt_store_u64(void *p, uint64_t v) { memcpy(p, &v, sizeof v); }

#endif
