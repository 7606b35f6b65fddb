/* block_pack: what it packs the codec unpacks, and the other way round, byte for byte where LZ4 has no part. */
#include "tests/unit/codec_bench.h"

#include "kernels/block_pack.h"

enum { LAYERS_MAX = 8 };

/* A bench's block as the kernel takes it. */
struct kernel_block {
    struct kvt_rank_shape shape;
    struct kvt_block_chunk chunks[LAYERS_MAX], back[LAYERS_MAX];
    struct kvt_block_plan plans[LAYERS_MAX];
    uint8_t *target, *scratch;
    uint32_t tables_id, length, verdict;
};

static void kernel_init(struct kernel_block *k, struct bench *b)
{
    *k = (struct kernel_block){ .shape = { .dtype = b->shape.groups[0].dtype,
                                           .plane_count = b->plane_count,
                                           .elements = (uint32_t)(b->plane_bytes
                                                                  / kvt_dtype_bytes(b->shape.groups[0].dtype)) } };
    k->shape.channels = k->shape.elements / b->tokens;
    k->target = kvt_alloc(1, raw_bytes(b));
    k->scratch = kvt_alloc(1, kvt_block_scratch_bytes(&k->shape));
    assert_true(k->target && k->scratch && b->layers <= LAYERS_MAX);
    for (uint32_t layer = 0; layer < b->layers; layer++) {
        struct kvt_rank_bases bases = { { NULL, NULL } };
        (void)kvt_codec_bases(b->codec, 0, 0, layer, &bases, &k->tables_id);
        for (uint32_t p = 0; p < 2; p++) {
            k->chunks[layer].plane[p] = b->views[layer].plane[p];
            k->back[layer].plane[p] = b->target_views[layer].plane[p];
            k->chunks[layer].bases[p] = k->back[layer].bases[p] = bases.plane[p];
        }
    }
}

static void kernel_done(struct kernel_block *k)
{
    kvt_free(k->target);
    kvt_free(k->scratch);
}

static uint32_t kernel_pack(struct kernel_block *k, const struct bench *b, const struct kvt_rank_ops *ops)
{
    const struct kvt_block_pack block = { .shape = k->shape,
                                          .layers = b->layers,
                                          .tokens = b->tokens,
                                          .tables_id = k->tables_id,
                                          .capacity = (uint32_t)raw_bytes(b),
                                          .chunks = k->chunks,
                                          .plans = k->plans,
                                          .target = k->target,
                                          .ret_length = &k->length };
    kvt_block_pack(&block, ops, k->scratch);
    return k->length;
}

static uint32_t kernel_unpack(struct kernel_block *k, const struct bench *b, const uint8_t *packed, uint32_t length)
{
    const struct kvt_block_unpack block = { .shape = k->shape,
                                            .layers = b->layers,
                                            .tokens = b->tokens,
                                            .tables_id = k->tables_id,
                                            .length = length,
                                            .chunks = k->back,
                                            .packed = packed,
                                            .ret_verdict = &k->verdict };
    kvt_block_unpack(&block, &kvt_rank_ops_ref, k->scratch);
    return k->verdict;
}

/* Whether some chunk of a packed block has LZ4 in it. */
static bool is_staged(const struct bench *b, const uint8_t *packed)
{
    uint64_t at = kvt_block_directory_end(b->layers);
    bool is_staged = false;
    for (uint32_t layer = 0; layer < b->layers; layer++) {
        const uint8_t kind = packed[kvt_block_align(at)];
        is_staged = is_staged || kind == KVT_BLOCK_LZ4 || (kind & KVT_BLOCK_STAGED_FLAGS);
        at = kvt_load_u32(packed + KVT_BLOCK_HEADER_BYTES + 4 * layer);
    }
    return is_staged;
}

static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };

static struct kvt_group_shape group_of(uint32_t d, uint32_t heads, uint32_t dim, uint32_t planes)
{
    return (struct kvt_group_shape){
        .dtype = dtypes[d], .layers = 1 + dim % 5, .planes = planes, .kv_heads = heads, .head_dim = dim
    };
}

/* Both ways, and the same bytes whenever the codec found no use for LZ4. Returns how often that was so. */
static uint32_t compare(struct bench *b, uint32_t *ret_staged)
{
    struct kernel_block k;
    kernel_init(&k, b);
    const uint32_t length = kernel_pack(&k, b, &kvt_rank_ops_ref), codec_length = pack(b);
    uint32_t same = 0;
    if (length > 0) {
        memset(b->target.bytes, 0x5a, b->target.size);
        assert_int_equal(unpack(b, k.target, length), KVT_OK);
        assert_memory_equal(b->source.bytes, b->target.bytes, b->source.size);
        for (uint32_t i = 1; kvt_rank_ops_at(i); i++) {
            if (!kvt_rank_ops_at(i)->is_supported()) continue;
            uint8_t *wanted = kvt_alloc(1, length);
            memcpy(wanted, k.target, length);
            assert_int_equal(kernel_pack(&k, b, kvt_rank_ops_at(i)), length);
            assert_memory_equal(k.target, wanted, length);
            kvt_free(wanted);
        }
    }
    if (codec_length > 0) {
        memset(b->target.bytes, 0x5a, b->target.size);
        const uint32_t verdict = kernel_unpack(&k, b, b->packed.bytes, codec_length);
        if (is_staged(b, b->packed.bytes)) {
            assert_int_equal(verdict, KVT_BLOCK_STAGED);
            *ret_staged += 1;
        } else {
            assert_int_equal(verdict, KVT_BLOCK_OK);
            assert_memory_equal(b->source.bytes, b->target.bytes, b->source.size);
            assert_int_equal(length, codec_length);
            assert_memory_equal(k.target, b->packed.bytes, length);
            same++;
        }
    }
    kernel_done(&k);
    return same;
}

static void codec_and_kernel_understand_each_other_in_every_shape_and_fill(void **state)
{
    (void)state;
    uint32_t same = 0, staged = 0;
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
        for (uint32_t dim = 3; dim <= 128; dim += 25)
            for (uint32_t tokens = 1; tokens <= 16; tokens += 5)
                for (uint32_t kind = 0; kind < RANK_FILL_COUNT; kind++) {
                    const struct kvt_group_shape group = group_of(d, 2, dim, 1 + (tokens + kind) % 2);
                    struct bench b;
                    bench_init(&b, &group, 16, tokens);
                    fill(&b, (enum rank_fill)kind, 1 + dim);
                    same += compare(&b, &staged);
                    bench_done(&b);
                }
    assert_true(same > 50);
    assert_true(staged > 5); /* both cases came up */
}

static void with_base_tables_they_still_understand_each_other(void **state)
{
    (void)state;
    uint32_t same = 0, staged = 0;
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++) {
        const struct kvt_group_shape group = group_of(d, 2, 64, 2);
        struct bench b;
        bench_init(&b, &group, 16, 16);
        assert_int_equal(kvt_codec_learn(b.codec, true), KVT_OK);
        for (uint32_t seed = 1; kvt_codec_tables_count(b.codec) == 0 && seed < 100; seed++) {
            fill(&b, RANK_FILL_KV, seed);
            (void)pack(&b);
        }
        struct kvt_rank_bases bases;
        uint32_t id = 0, again = 0;
        assert_true(kvt_codec_bases(b.codec, 0, 0, 0, &bases, &id));
        assert_true(kvt_codec_bases(b.codec, 0, id, 0, &bases, &again));
        assert_int_equal(id, again);
        assert_false(kvt_codec_bases(b.codec, 0, id ^ 1, 0, &bases, &again));
        for (uint32_t seed = 1; seed <= 5; seed++) {
            fill(&b, RANK_FILL_KV, seed);
            same += compare(&b, &staged);
        }
        bench_done(&b);
    }
    assert_true(same > 0);
}

/* What a fetch of a few layers does. */
static void layers_can_be_unpacked_alone(void **state)
{
    (void)state;
    const struct kvt_group_shape group = group_of(0, 2, 64, 2);
    struct bench b;
    struct kernel_block k;
    bench_init(&b, &group, 16, 16);
    fill(&b, RANK_FILL_KV, 3);
    kernel_init(&k, &b);
    const uint32_t length = kernel_pack(&k, &b, &kvt_rank_ops_ref);
    assert_true(length > 0 && b.layers >= 4);
    memset(b.target.bytes, 0x5a, b.target.size);
    const struct kvt_block_unpack block = { .shape = k.shape,
                                            .layers = b.layers,
                                            .tokens = b.tokens,
                                            .length = length,
                                            .first = 1,
                                            .count = 2,
                                            .packed = k.target,
                                            .chunks = k.back + 1,
                                            .ret_verdict = &k.verdict };
    kvt_block_unpack(&block, &kvt_rank_ops_ref, k.scratch);
    assert_int_equal(k.verdict, KVT_BLOCK_OK);
    for (uint32_t layer = 0; layer < b.layers; layer++)
        for (uint32_t p = 0; p < 2; p++) {
            const bool is_wanted = layer == 1 || layer == 2;
            for (size_t i = 0; i < b.plane_bytes; i++)
                assert_int_equal(b.target_views[layer].plane[p][i], is_wanted ? b.views[layer].plane[p][i] : 0x5a);
        }
    kernel_done(&k);
    bench_done(&b);
}

static void a_block_of_other_tables_or_tokens_is_refused(void **state)
{
    (void)state;
    const struct kvt_group_shape group = group_of(0, 2, 64, 2);
    struct bench b;
    struct kernel_block k;
    bench_init(&b, &group, 16, 16);
    fill(&b, RANK_FILL_KV, 3);
    kernel_init(&k, &b);
    uint8_t bases[2][128 + KVT_RANK_GROUP] = { { 0 } };
    for (uint32_t layer = 0; layer < b.layers; layer++)
        for (uint32_t p = 0; p < 2; p++) k.chunks[layer].bases[p] = k.back[layer].bases[p] = bases[p];
    k.tables_id = 7;
    const uint32_t length = kernel_pack(&k, &b, &kvt_rank_ops_ref);
    assert_true(length > 0);
    assert_int_equal(kernel_unpack(&k, &b, k.target, length), KVT_BLOCK_OK);
    k.tables_id = 8;
    assert_int_equal(kernel_unpack(&k, &b, k.target, length), KVT_BLOCK_CORRUPT);
    k.tables_id = 0;
    assert_int_equal(kernel_unpack(&k, &b, k.target, length), KVT_BLOCK_CORRUPT);
    k.tables_id = 7;
    assert_int_equal(kernel_unpack(&k, &b, k.target, length - 1), KVT_BLOCK_CORRUPT);
    b.tokens--;
    assert_int_equal(kernel_unpack(&k, &b, k.target, length), KVT_BLOCK_CORRUPT);
    b.tokens++;
    kernel_done(&k);
    bench_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codec_and_kernel_understand_each_other_in_every_shape_and_fill),
        cmocka_unit_test(with_base_tables_they_still_understand_each_other),
        cmocka_unit_test(layers_can_be_unpacked_alone),
        cmocka_unit_test(a_block_of_other_tables_or_tokens_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
