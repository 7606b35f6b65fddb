/*
 * The codec. The first bytes choose a shape, tokens, and a way: any bytes are unpacked (refused or not, never out of
 * bounds), any bytes are tables (likewise), any values are packed and come back bit for bit.
 */
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/fuzz/fuzz.h"
#include "tiers/codec.h"

enum { TOKENS = 16, LAYERS = 2, BLOCK_BYTES_MAX = TOKENS * LAYERS * 2 * 3 * 67 * 2 };

static uint8_t block[BLOCK_BYTES_MAX], back[BLOCK_BYTES_MAX], packed[2 * BLOCK_BYTES_MAX];

static void view(struct kvt_chunk_view *chunks, uint8_t *bytes, uint64_t row_bytes)
{
    for (uint32_t c = 0; c < LAYERS; c++)
        for (uint32_t p = 0; p < 2; p++) chunks[c].plane[p] = bytes + (c * 2 + p) * TOKENS * row_bytes;
}

/* The valid tokens of both are the same. */
static bool is_same(const struct kvt_chunk_view *a, const struct kvt_chunk_view *b, uint64_t bytes)
{
    for (uint32_t c = 0; c < LAYERS; c++)
        for (uint32_t p = 0; p < 2; p++)
            if (memcmp(a[c].plane[p], b[c].plane[p], bytes) != 0) return false;
    return true;
}

static void round_trip(struct kvt_codec *codec, const struct kvt_group_shape *group, uint32_t tokens, void *scratch)
{
    const uint64_t row_bytes = kvt_group_row_bytes(group);
    struct kvt_chunk_view source[LAYERS], target[LAYERS];
    view(source, block, row_bytes);
    view(target, back, row_bytes);
    memset(back, 0x5a, sizeof back);
    const uint32_t length = kvt_codec_pack(codec, 0, source, tokens, packed, sizeof packed, scratch);
    if (length == 0) return;
    FUZZ_HOLDS(kvt_codec_unpack(codec, 0, packed, length, tokens, target, scratch) == KVT_OK);
    FUZZ_HOLDS(is_same(source, target, tokens * row_bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8, KVT_DTYPE_FP32,
                                             KVT_DTYPE_INT8 };
    if (size < 4) return 0;
    struct kvt_model_shape shape = { .block_tokens = TOKENS, .group_count = 1 };
    struct kvt_group_shape *group = &shape.groups[0];
    *group = (struct kvt_group_shape){ .kind = KVT_GROUP_FULL,
                                       .dtype = dtypes[data[0] % KVT_ARRAY_COUNT(dtypes)],
                                       .layers = LAYERS,
                                       .planes = 2,
                                       .kv_heads = 1 + data[1] % 3 };
    group->head_dim = group->dtype == KVT_DTYPE_FP32 ? 33 : 1 + data[2] % 67;
    const uint32_t tokens = 1 + (data[3] & 15);
    const uint32_t way = data[3] >> 4;
    data += 4;
    size -= 4;

    struct kvt_codec *codec;
    FUZZ_HOLDS(kvt_codec_create(&shape, &codec) == KVT_OK);
    void *scratch = aligned_alloc(64, (kvt_codec_scratch_bytes(codec) + 63) / 64 * 64);
    FUZZ_HOLDS(scratch != NULL);
    if (way % 3 == 0) {
        /* Exactly as long as it says, so that one byte too far is seen. */
        uint8_t *input = malloc(size ? size : 1);
        FUZZ_HOLDS(input != NULL);
        memcpy(input, data, size);
        struct kvt_chunk_view target[LAYERS];
        view(target, back, kvt_group_row_bytes(group));
        const enum kvt_status status = kvt_codec_unpack(codec, 0, input, (uint32_t)size, tokens, target, scratch);
        FUZZ_HOLDS(status == KVT_OK || status == KVT_CORRUPT);
        free(input);
    } else {
        if (way % 3 == 2) {
            const enum kvt_status status = kvt_codec_tables_import(codec, data, size);
            FUZZ_HOLDS(status == KVT_OK || status == KVT_CORRUPT);
        }
        for (size_t i = 0; i < sizeof block; i++) block[i] = size ? data[i % size] : 0;
        round_trip(codec, group, tokens, scratch);
    }
    free(scratch);
    kvt_codec_destroy(&codec);
    return 0;
}
