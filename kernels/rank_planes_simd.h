/* The SIMD implementations of rank_planes, and the little that they share. Private to kernels/. */
#ifndef KVT_KERNELS_RANK_PLANES_SIMD_H
#define KVT_KERNELS_RANK_PLANES_SIMD_H

#include "kernels/rank_planes.h"
#include "runtime/base/bytes.h"

#if defined(__x86_64__)
extern const struct kvt_rank_ops kvt_rank_ops_avx2;
extern const struct kvt_rank_ops kvt_rank_ops_avx512;

/* Asked in a file that is compiled for any machine. */
bool kvt_rank_is_avx2_here(void);
bool kvt_rank_is_avx512_here(void);
#endif

/*
 * The groups of a sample, all at once: they lie too far apart for the hardware to fetch them ahead, so the code must,
 * and the wait for memory would otherwise be longer than the counting.
 */
struct kvt_rank_samples {
    uint32_t count, group[KVT_RANK_SAMPLES_MAX];
};

static inline struct kvt_rank_samples kvt_rank_samples_of(const struct kvt_rank_shape *shape)
{
    struct kvt_rank_samples samples = { .count = 0 };
    struct kvt_rank_sampling sampling = kvt_rank_sampling_begin(shape);
    while (samples.count < KVT_RANK_SAMPLES_MAX && kvt_rank_sampling_next(&sampling, &samples.group[samples.count]))
        samples.count++;
    return samples;
}

/* Fetches what the i-th sample reads, if there is one. */
static inline void kvt_rank_samples_fetch(const struct kvt_rank_samples *samples, uint32_t i,
                                          const struct kvt_rank_shape *shape, const uint8_t *const source[2])
{
    if (i >= samples->count) return;
    const uint32_t plane_groups = kvt_rank_plane_groups(shape),
                   group_bytes = KVT_RANK_GROUP * kvt_dtype_bytes(shape->dtype);
    const uint8_t *first = source[samples->group[i] / plane_groups]
        + (size_t)(samples->group[i] % plane_groups) * group_bytes;
    __builtin_prefetch(first);
    __builtin_prefetch(first + group_bytes - 1);
}

/* Where a group of 64 finds its bases: the channel of its first element, moved on by one group at a time. */
struct kvt_rank_walk {
    const uint8_t *bases;
    uint32_t channel, step, channels;
};

static inline struct kvt_rank_walk kvt_rank_walk_begin(const uint8_t *bases, uint32_t channels)
{
    return (struct kvt_rank_walk){ .bases = bases, .step = KVT_RANK_GROUP % channels, .channels = channels };
}

/* Of the next group's first element. Not based: NULL, to which not even 0 may be added. */
static inline const uint8_t *kvt_rank_walk_at(bool is_based, const struct kvt_rank_walk *walk)
{
    return is_based ? walk->bases + walk->channel : NULL;
}

static inline void kvt_rank_walk_next(struct kvt_rank_walk *walk)
{
    walk->channel += walk->step;
    if (walk->channel >= walk->channels) walk->channel -= walk->channels;
}

/*
 * The six bits that an exponent costs at most, as one byte for each of the sixteen values of the window:
 * bits 0-1 first, 2-3 second, 4-5 third. 0x3f is an escape.
 */
static inline void kvt_rank_codes(const struct kvt_rank_table *table, uint8_t ret_code[KVT_RANK_WINDOW])
{
    static const uint8_t code_of_rank[KVT_RANK_SYMBOLS] = { 0x00, 0x01, 0x02, 0x03, 0x07, 0x0b, 0x0f, 0x1f, 0x2f };
    memset(ret_code, 0x3f, KVT_RANK_WINDOW);
    for (uint32_t r = 0; r < KVT_RANK_SYMBOLS; r++)
        ret_code[(uint8_t)(table->symbol[r] - table->low) & (KVT_RANK_WINDOW - 1)] = code_of_rank[r];
}

/*
 * The inverse, for a decoder that makes an index from its planes: bits 0-1 are the deciding pair, bit 2 says that
 * first is 3, bit 3 that second is 3 too. Index 15 is an escape, the entries that cannot occur are zero.
 */
static inline void kvt_rank_symbols_by_index(const uint8_t symbol[KVT_RANK_SYMBOLS], uint8_t ret_symbol[16])
{
    memset(ret_symbol, 0, 16);
    memcpy(ret_symbol, symbol, 3);
    memcpy(ret_symbol + 4, symbol + 3, 3);
    memcpy(ret_symbol + 12, symbol + 6, 3);
}

/* Two parallel bit streams (the planes of one level) that are written up to 64 bits at a time. */
struct kvt_rank_writer {
    uint8_t *stream[2];
    uint64_t held[2];
    uint32_t held_bits;
    uint32_t count;
};

/* Appends `bits` bits of each value; their higher bits are zero. Writes whole words: 8 bytes at the place reached. */
static inline __attribute__((always_inline)) void kvt_rank_write(struct kvt_rank_writer *w, uint64_t v0, uint64_t v1,
                                                                 uint32_t bits)
{
    const uint32_t held = w->held_bits;
    const uint64_t h0 = w->held[0] | v0 << held;
    const uint64_t h1 = w->held[1] | v1 << held;
    const uint32_t filled = held + bits;
    const bool is_full = filled >= 64;
    kvt_store_u64(w->stream[0], h0);
    kvt_store_u64(w->stream[1], h1);
    /* What did not fit: v >> (64 - held), which is nothing for held = 0 and must not be a shift by 64. */
    w->held[0] = is_full ? v0 >> 1 >> (63 - held) : h0;
    w->held[1] = is_full ? v1 >> 1 >> (63 - held) : h1;
    w->stream[0] += is_full ? 8 : 0;
    w->stream[1] += is_full ? 8 : 0;
    w->held_bits = filled & 63;
    w->count += bits;
}

static inline void kvt_rank_write_end(struct kvt_rank_writer *w)
{
    kvt_store_u64(w->stream[0], w->held[0]);
    kvt_store_u64(w->stream[1], w->held[1]);
}

/* 64 bits of a stream from any bit on; reads 9 bytes. */
static inline __attribute__((always_inline)) uint64_t kvt_rank_read(const uint8_t *stream, uint32_t position)
{
    const uint8_t *p = stream + (position >> 3);
    const uint32_t shift = position & 7;
    return kvt_load_u64(p) >> shift | (uint64_t)p[8] << 1 << (63 - shift);
}

#endif
