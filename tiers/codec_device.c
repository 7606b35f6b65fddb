#include "tiers/codec_device.h"

#include "kernels/block_pack.h"
#include "runtime/base/bytes.h"
#include "tiers/base_tables.h"

/* False: the group's blocks are none for a device. set NULL: nothing is subtracted. */
static bool describe(const struct kvt_base_tables *tables, const struct kvt_base_set *set, uint32_t tokens,
                     struct kvt_codec_device *ret_device)
{
    const uint64_t elements = (uint64_t)tables->channels * tokens;
    if (elements * tables->plane_count > KVT_BLOCK_ELEMENTS_MAX) return false;
    *ret_device = (struct kvt_codec_device){
        .shape = { .dtype = tables->dtype,
                   .plane_count = tables->plane_count,
                   .channels = tables->channels,
                   .elements = (uint32_t)elements },
        .bases_id = set ? set->id : 0,
        .bases = set ? set->bases : NULL,
        .bases_row_bytes = tables->channels + KVT_RANK_GROUP,
    };
    return true;
}

bool kvt_codec_device_pack(struct kvt_codec *codec, uint32_t group, uint32_t tokens,
                           struct kvt_codec_device *ret_device)
{
    struct kvt_base_tables *tables = kvt_codec_ranked_tables(codec, group);
    if (!tables || kvt_base_tables_is_learning(tables)) return false;
    return describe(tables, kvt_base_tables_current(tables), tokens, ret_device);
}

bool kvt_codec_device_unpack(struct kvt_codec *codec, uint32_t group, const uint8_t *packed, uint32_t length,
                             uint32_t tokens, struct kvt_codec_device *ret_device)
{
    struct kvt_base_tables *tables = kvt_codec_ranked_tables(codec, group);
    if (!tables || length < KVT_BLOCK_HEADER_BYTES) return false;
    const uint32_t id = kvt_load_u32(packed + 4);
    const struct kvt_base_set *set = id ? kvt_base_tables_find(tables, id) : NULL;
    struct kvt_codec_device device;
    if (id != 0 && !set) return false;
    if (!describe(tables, set, tokens, &device)) return false;
    const struct kvt_block_unpack block = { .shape = device.shape,
                                            .layers = tables->layers,
                                            .tokens = tokens,
                                            .tables_id = id,
                                            .length = length,
                                            .packed = packed };
    if (kvt_block_check_directory(&block) != KVT_BLOCK_OK) return false;
    for (uint32_t layer = 0; layer < tables->layers; layer++) {
        struct kvt_block_found found;
        kvt_block_find_chunk(&block, layer, &found);
        if (kvt_block_check_chunk(&block, &found) != KVT_BLOCK_OK) return false;
    }
    *ret_device = device;
    return true;
}

size_t kvt_codec_device_bases_bytes(struct kvt_codec *codec, uint32_t group)
{
    const struct kvt_base_tables *tables = kvt_codec_ranked_tables(codec, group);
    return tables ? (size_t)tables->layers * tables->plane_count * (tables->channels + KVT_RANK_GROUP) : 0;
}
