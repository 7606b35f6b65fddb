/*
 * codec: the packed form of a block: a directory of chunk offsets, then one chunk for each layer.
 *
 * Lossless and bit-exact. The rank planes (kernels/) do the work on bf16, fp16 and fp8; LZ4 is an adaptive second
 * stage where it pays, and the whole of it for other types. docs/codec.md and codec.c open with the byte table.
 *
 * Thread:  pack and unpack from any thread; each caller brings its own scratch. What the codec learns (base tables,
 *          where LZ4 pays) is published atomically inside.
 * Memory:  taken in create, learn and import; pack and unpack take none.
 * Trust:   unpack believes nothing: every offset, size and stream position is bounded by what it was given. Damaged
 *          input is CORRUPT, never a read or write out of bounds. A wrong but well-formed input cannot be told here:
 *          that is what the store's checksum is for.
 */
#ifndef KVT_TIERS_CODEC_H
#define KVT_TIERS_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/rank_planes.h"
#include "kvtier/shape.h"
#include "runtime/base/status.h"

struct kvt_codec;
struct kvt_rank_bases;
struct kvt_rank_ops;

/* One chunk as it lies in memory: plane[p] points to the first of `tokens` contiguous rows of kvt_group_row_bytes(). */
struct kvt_chunk_view {
    uint8_t *plane[2];
};

/* NOMEM. The shape is copied. */
KVT_NODISCARD enum kvt_status kvt_codec_create(const struct kvt_model_shape *shape, struct kvt_codec **ret_codec);
void kvt_codec_destroy(struct kvt_codec **codec);

/* Bytes of scratch that pack and unpack want; 64-byte aligned memory, one per thread. */
size_t kvt_codec_scratch_bytes(const struct kvt_codec *codec);

/*
 * Packs the valid tokens of a block. chunks: one view per layer of the group. Returns the packed length, or 0 when
 * packing saves less than 1/32 or does not fit in capacity: then the block stays raw. target is undefined after 0.
 */
uint32_t kvt_codec_pack(struct kvt_codec *codec, uint32_t group, const struct kvt_chunk_view *chunks, uint32_t tokens,
                        uint8_t *target, uint32_t capacity, void *scratch);

/*
 * The inverse: writes the valid tokens into chunks. CORRUPT: packed[0 .. length) is no packed block of this group with
 * that many tokens; the chunks are undefined then.
 */
KVT_NODISCARD enum kvt_status kvt_codec_unpack(struct kvt_codec *codec, uint32_t group, const uint8_t *packed,
                                               uint32_t length, uint32_t tokens, const struct kvt_chunk_view *chunks,
                                               void *scratch);

/* The same for `count` layers from `first` on alone; chunks: one view for each of these. */
KVT_NODISCARD enum kvt_status kvt_codec_unpack_layers(struct kvt_codec *codec, uint32_t group, const uint8_t *packed,
                                                      uint32_t length, uint32_t tokens, uint32_t first, uint32_t count,
                                                      const struct kvt_chunk_view *chunks, void *scratch);

/* ---- On a device ----------------------------------------------------------------------------------------------- */

/* What a device that packs by itself (kernels/block_pack.h) is told of a block. */
struct kvt_codec_device {
    struct kvt_rank_shape shape; /* of a layer's valid tokens */
    uint32_t bases_id;           /* 0: nothing is subtracted */
    const uint8_t *bases;        /* [layer][plane] rows; they stay as they are until destroy */
    uint32_t bases_row_bytes;
};

/* False: the CPU has to pack it, because its type has no ranks, or because the codec learns from it. */
bool kvt_codec_device_pack(struct kvt_codec *codec, uint32_t group, uint32_t tokens,
                           struct kvt_codec_device *ret_device);

/* False: the CPU has to unpack it, or to find out what is wrong with it. Looks at headers only. */
bool kvt_codec_device_unpack(struct kvt_codec *codec, uint32_t group, const uint8_t *packed, uint32_t length,
                             uint32_t tokens, struct kvt_codec_device *ret_device);

/* Bytes of the rows of a set of bases, of the group where they are the most; 0: no group has any. */
size_t kvt_codec_bases_bytes(const struct kvt_codec *codec);

/* ---- Base tables ----------------------------------------------------------------------------------------------- */

/*
 * True: learns a base table for each group that has none, from the first few hundred tokens that pass through pack,
 * and packs with it from then on. False: gives up what is not finished. A codec starts without tables. NOMEM: some
 * groups do not learn.
 *
 * A block packed with a table can be unpacked only by a codec that has this table: whoever keeps packed blocks keeps
 * the tables too, and imports them first. Without it the block is CORRUPT, never other bytes.
 */
KVT_NODISCARD enum kvt_status kvt_codec_learn(struct kvt_codec *codec, bool is_on);

/*
 * True: tables that are new from now on, learned or imported, unpack, and pack only once they are imported (again). So
 * whoever keeps packed blocks can save a table before any block needs it: hold, and import what was exported and saved.
 */
void kvt_codec_tables_hold(struct kvt_codec *codec, bool is_on);

/*
 * How many tables there are, over all groups. It only grows: when it has, export again before the blocks that name
 * them count.
 */
uint32_t kvt_codec_tables_count(const struct kvt_codec *codec);

/* Bytes of an export with a table for each group that can have one: what learning leads to. */
size_t kvt_codec_tables_bytes(const struct kvt_codec *codec);

/*
 * Writes all tables, with a checksum, if they fit in capacity; returns the bytes that they take. target may be NULL
 * with 0.
 */
size_t kvt_codec_tables_export(struct kvt_codec *codec, uint8_t *target, size_t capacity);

/*
 * Adds exported tables to those that are there and packs with them, unless new ones are held; with those that were
 * there already in any case. CORRUPT, nothing changed: damaged, or of another shape. NOMEM | FULL: not all were added;
 * blocks that need the others are misses.
 */
KVT_NODISCARD enum kvt_status kvt_codec_tables_import(struct kvt_codec *codec, const uint8_t *bytes, size_t size);

/*
 * The bases that a packer elsewhere, on a GPU, subtracts: those of one layer in the set `id`, or, with id 0, in the set
 * that pack uses now; *ret_id is the set's. False: there is no such set. The bases never change and stay where they are
 * as long as the codec lives; they are ordinary memory, of which a GPU wants a copy, once for each set.
 */
bool kvt_codec_bases(struct kvt_codec *codec, uint32_t group, uint32_t id, uint32_t layer,
                     struct kvt_rank_bases *ret_bases, uint32_t *ret_id);

/* ---- For tests and benchmarks ---------------------------------------------------------------------------------- */

/*
 * Uses these kernels instead of the best that the machine has. The bytes are the same. Not while another thread
 * packs.
 */
void kvt_codec_set_kernels(struct kvt_codec *codec, const struct kvt_rank_ops *kernels);

#endif
