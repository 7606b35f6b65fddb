/*
 * codec_device: what of the codec's work a device does by itself (kernels/block_pack.h), and what it is told for it.
 *
 * Thread:  any, as with pack and unpack.
 */
#ifndef KVT_TIERS_CODEC_DEVICE_H
#define KVT_TIERS_CODEC_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/rank_planes.h"
#include "tiers/codec.h"

struct kvt_base_tables;

struct kvt_codec_device {
    struct kvt_rank_shape shape; /* of a layer's valid tokens */
    uint32_t bases_id;           /* 0: nothing is subtracted */
    const uint8_t *bases;        /* [layer][plane] rows; they stay as they are until the codec is destroyed */
    uint32_t bases_row_bytes;
};

/* False: the CPU has to pack it, because its type has no ranks, or because the codec learns from it. */
bool kvt_codec_device_pack(struct kvt_codec *codec, uint32_t group, uint32_t tokens,
                           struct kvt_codec_device *ret_device);

/* False: the CPU has to unpack it, or to find out what is wrong with it. Looks at headers only. */
bool kvt_codec_device_unpack(struct kvt_codec *codec, uint32_t group, const uint8_t *packed, uint32_t length,
                             uint32_t tokens, struct kvt_codec_device *ret_device);

/* Bytes of the rows of a set of bases of the group; 0: it has none. */
size_t kvt_codec_device_bases_bytes(struct kvt_codec *codec, uint32_t group);

/* codec.c: the group's tables, which say what its chunks are; NULL: it is not packed by ranks. */
struct kvt_base_tables *kvt_codec_ranked_tables(struct kvt_codec *codec, uint32_t group);

#endif
