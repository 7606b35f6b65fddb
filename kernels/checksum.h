/*
 * checksum: CRC32C (runtime/base/crc32c.h) of many runs of bytes at once, in pieces that are combined.
 *
 * A checksum is linear: that of a message is the xor of what its pieces contribute, each moved on by the bytes behind it
 * (a multiplication by a power of x mod P). So pieces can be summed in any order by any number of threads.
 *
 * Thread: any; no state.
 */
#ifndef KVT_KERNELS_CHECKSUM_H
#define KVT_KERNELS_CHECKSUM_H

#include "kernels/body.h"

/* A run of bytes, as a row of the table that the GPU kernel takes. *ret_crc = kvt_crc32c(before, bytes, size). */
struct kvt_checksum_run {
    const uint8_t *bytes;
    uint64_t size;
    uint32_t before;
    uint32_t *ret_crc;
};

typedef void kvt_checksum_fn(const struct kvt_checksum_run *runs, uint32_t count);

kvt_checksum_fn kvt_checksum_ref;  /* bit by bit: the specification */
kvt_checksum_fn kvt_checksum_body; /* the GPU's thread body in a loop */
kvt_checksum_fn kvt_checksum_best; /* the CPU's fastest way */

/* The checksum of two messages one behind the other, the second of second_size bytes and summed from 0. */
uint32_t kvt_checksum_combine(uint32_t first, uint32_t second, uint64_t second_size);

/* ---- The body -------------------------------------------------------------------------------------------------- */

enum {
    KVT_CHECKSUM_PIECE = 256,
    KVT_CHECKSUM_THREADS = 256,
    KVT_CHECKSUM_TILE = KVT_CHECKSUM_PIECE * KVT_CHECKSUM_THREADS
};

/* x * value mod P, reflected: bit 31 is x^0. */
KVT_BODY uint32_t kvt_checksum_times_x(uint32_t value) { return (value >> 1) ^ (0x82f63b78u & (0u - (value & 1))); }

/* a * b mod P. */
KVT_BODY uint32_t kvt_checksum_times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 0; bit < 32; bit++) {
        product ^= a & (0u - (b >> (31 - bit) & 1));
        a = kvt_checksum_times_x(a);
    }
    return product;
}

/* x^(8 * bytes) mod P: a register moved on over so many zero bytes is multiplied by it. */
KVT_BODY uint32_t kvt_checksum_power(uint64_t bytes)
{
    uint32_t power = 0x80000000u, square = 0x00800000u; /* x^0, x^8 */
    for (; bytes > 0; bytes >>= 1) {
        if (bytes & 1) power = kvt_checksum_times(power, square);
        square = kvt_checksum_times(square, square);
    }
    return power;
}

/* Entry i of the table that moves a register on by a byte. */
KVT_BODY uint32_t kvt_checksum_entry(uint32_t i)
{
    for (uint32_t bit = 0; bit < 8; bit++) i = kvt_checksum_times_x(i);
    return i;
}

/*
 * What the piece at `start` of a run contributes to its register; the first piece carries the register before it.
 * table: kvt_checksum_entry() of 0 .. 255.
 */
KVT_BODY uint32_t kvt_checksum_piece(const struct kvt_checksum_run *run, uint64_t start, const uint32_t *table)
{
    if (start >= run->size) return 0;
    const uint64_t left = run->size - start, size = left < KVT_CHECKSUM_PIECE ? left : KVT_CHECKSUM_PIECE;
    const uint8_t *p = run->bytes + start;
    uint32_t state = start == 0 ? ~run->before : 0;
    uint64_t i = 0;
    for (; i < size && ((uintptr_t)(p + i) & 3); i++) state = state >> 8 ^ table[(state ^ p[i]) & 255];
    for (; i + 4 <= size; i += 4) {
        state ^= *(const kvt_word_alias *)(const void *)(p + i);
        for (uint32_t b = 0; b < 4; b++) state = state >> 8 ^ table[state & 255];
    }
    for (; i < size; i++) state = state >> 8 ^ table[(state ^ p[i]) & 255];
    return kvt_checksum_times(state, kvt_checksum_power(left - size));
}

/* What the register is when nothing is left out: nothing at all for an empty run but what was before. */
KVT_BODY uint32_t kvt_checksum_start(const struct kvt_checksum_run *run) { return run->size == 0 ? run->before : ~0u; }

#endif
