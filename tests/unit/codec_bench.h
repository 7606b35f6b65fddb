/* codec_bench: a codec of one group and one block, for the tests of the codec. */
#ifndef KVT_TESTS_UNIT_CODEC_BENCH_H
#define KVT_TESTS_UNIT_CODEC_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/rank_planes.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/unit/rank_cases.h"
#include "tiers/base_tables.h"
#include "tiers/codec.h"
#include "tools/run/pages.h"

/* A codec of one group, its scratch, and a block with room for its packed form and for what comes back. */
struct bench {
    struct kvt_model_shape shape;
    struct kvt_codec *codec;
    uint8_t *scratch;
    uint32_t layers, tokens, plane_count;
    size_t plane_bytes; /* of the valid tokens */
    struct rank_buffer source, target, packed;
    struct kvt_chunk_view *views, *target_views;
};

static inline size_t raw_bytes(const struct bench *b) { return b->plane_bytes * b->plane_count * b->layers; }

/* Planes lie apart and in no order: nothing may rely on the default layout. */
static inline void set_views(const struct bench *b, uint8_t *memory, struct kvt_chunk_view *views)
{
    for (uint32_t layer = 0; layer < b->layers; layer++)
        for (uint32_t p = 0; p < b->plane_count; p++)
            views[layer].plane[p] = memory + ((size_t)(b->layers - 1 - layer) + (size_t)p * b->layers) * b->plane_bytes;
}

static inline void bench_init(struct bench *b, const struct kvt_group_shape *group, uint32_t block_tokens,
                              uint32_t tokens)
{
    *b = (struct bench){ .shape = { .block_tokens = block_tokens, .group_count = 1, .groups = { *group } },
                         .layers = group->layers,
                         .tokens = tokens };
    const bool is_state = group->kind == KVT_GROUP_STATE;
    char error[200];
    assert_int_equal(kvt_shape_check(&b->shape, error, sizeof error), KVT_OK);
    assert_int_equal(kvt_codec_create(&b->shape, &b->codec), KVT_OK);
    b->scratch = aligned_alloc(64, kvt_align_up(kvt_codec_scratch_bytes(b->codec), 64));
    b->plane_count = is_state || group->planes == 1 ? 1 : 2;
    b->plane_bytes = kvt_group_row_bytes(group) * (is_state ? 1 : tokens);
    rank_buffer_init(&b->source, raw_bytes(b));
    rank_buffer_init(&b->target, raw_bytes(b));
    rank_buffer_init(&b->packed, raw_bytes(b));
    b->views = kvt_alloc(b->layers, sizeof b->views[0]);
    b->target_views = kvt_alloc(b->layers, sizeof b->views[0]);
    set_views(b, b->source.bytes, b->views);
    set_views(b, b->target.bytes, b->target_views);
}

static inline void bench_done(struct bench *b)
{
    assert_true(rank_buffer_is_intact(&b->source));
    assert_true(rank_buffer_is_intact(&b->target));
    assert_true(rank_buffer_is_intact(&b->packed));
    rank_buffer_done(&b->source);
    rank_buffer_done(&b->target);
    rank_buffer_done(&b->packed);
    kvt_free(b->views);
    kvt_free(b->target_views);
    free(b->scratch);
    kvt_codec_destroy(&b->codec);
    assert_null(b->codec);
}

static inline uint32_t pack(struct bench *b)
{
    return kvt_codec_pack(b->codec, 0, b->views, b->tokens, b->packed.bytes, (uint32_t)b->packed.size, b->scratch);
}

/* From memory of exactly this length, so that ASan sees a read behind it. */
static inline enum kvt_status unpack(struct bench *b, const uint8_t *packed, uint32_t length)
{
    uint8_t *exact = malloc(length ? length : 1);
    memcpy(exact, packed, length);
    const enum kvt_status status = kvt_codec_unpack(b->codec, 0, exact, length, b->tokens, b->target_views, b->scratch);
    free(exact);
    return status;
}

/* Packs, unpacks, compares. Returns the packed length, 0 when the block stays raw. */
static inline uint32_t round_trip(struct bench *b)
{
    const uint32_t length = pack(b);
    if (length == 0) return 0;
    assert_true(length <= raw_bytes(b) - raw_bytes(b) / 32);
    memset(b->target.bytes, 0x5a, b->target.size);
    assert_int_equal(unpack(b, b->packed.bytes, length), KVT_OK);
    assert_memory_equal(b->source.bytes, b->target.bytes, b->source.size);
    return length;
}

static inline void fill(struct bench *b, enum rank_fill kind, uint64_t seed)
{
    struct kvt_rng rng = { .state = seed };
    const struct kvt_group_shape *group = &b->shape.groups[0];
    const enum kvt_dtype dtype = group->dtype == KVT_DTYPE_FP32 || group->dtype == KVT_DTYPE_INT8
            || group->kind == KVT_GROUP_STATE
        ? KVT_DTYPE_FP8
        : group->dtype;
    const uint32_t channels = (uint32_t)kvt_group_row_bytes(group) / kvt_dtype_bytes(dtype);
    rank_fill(b->source.bytes, dtype, (uint32_t)(b->source.size / kvt_dtype_bytes(dtype)), channels ? channels : 1,
              kind, &rng);
}

#endif
