/* What a block's bytes must be: a pure function of the tokens before and in it, in the sample's exponents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "kvtier/shape.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/codec.h"
#include "tools/run/content.h"

enum { BLOCK_TOKENS = 16, TOKENS = 16 };

static struct kvt_model_shape shape_of(enum kvt_dtype dtype, uint32_t kv_heads, uint32_t head_dim)
{
    return (struct kvt_model_shape){
        .block_tokens = BLOCK_TOKENS,
        .group_count = 2,
        .groups = { { .kind = KVT_GROUP_FULL,
                      .dtype = dtype,
                      .layers = 3,
                      .planes = 2,
                      .kv_heads = kv_heads,
                      .head_dim = head_dim },
                    { .kind = KVT_GROUP_STATE, .dtype = dtype, .layers = 2, .state_bytes = 1000 } },
    };
}

/* A block of the full group, written from the identities of tokens that begin with `first_token`. */
struct block {
    struct kvt_content content;
    struct kvt_model_shape shape;
    uint64_t bytes;
    uint8_t *memory;
    uint64_t identities[TOKENS];
    struct kvt_content_run run;
};

static void block_init(struct block *block, struct kvt_model_shape shape, uint32_t first_token, uint64_t position)
{
    block->shape = shape;
    assert_int_equal(kvt_content_init(&block->content, &shape), KVT_OK);
    block->bytes = kvt_group_block_bytes(&shape.groups[0], BLOCK_TOKENS);
    block->memory = kvt_alloc(1, block->bytes);
    assert_non_null(block->memory);
    uint64_t identity = KVT_CONTENT_ROOT;
    for (uint32_t i = 0; i < TOKENS; i++) block->identities[i] = identity = kvt_content_next(identity, first_token + i);
    block->run = (struct kvt_content_run){
        .group = 0,
        .first = 0,
        .count = TOKENS,
        .position = position,
        .identities = block->identities,
    };
    kvt_content_write(&block->content, &block->run, block->memory);
}

static void block_done(struct block *block)
{
    kvt_free(block->memory);
    kvt_content_done(&block->content);
}

static const struct {
    enum kvt_dtype dtype;
    uint32_t kv_heads, head_dim;
} shapes[] = {
    { KVT_DTYPE_BF16, 1, 64 },  { KVT_DTYPE_BF16, 4, 64 }, { KVT_DTYPE_BF16, 8, 128 }, { KVT_DTYPE_BF16, 1, 3 },
    { KVT_DTYPE_BF16, 1, 576 }, { KVT_DTYPE_FP16, 1, 64 }, { KVT_DTYPE_FP16, 3, 80 },  { KVT_DTYPE_FP8, 2, 64 },
    { KVT_DTYPE_FP8, 1, 5 },    { KVT_DTYPE_FP32, 2, 64 }, { KVT_DTYPE_INT8, 2, 64 },
};

/* Goal: what was written passes every check, in every type and odd shape, at positions past the sample's end. */
static void what_is_written_passes_the_checks(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVT_ARRAY_COUNT(shapes); i++) {
        struct block block;
        block_init(&block, shape_of(shapes[i].dtype, shapes[i].kv_heads, shapes[i].head_dim), 7, 4096 + 16 * i);
        assert_true(kvt_content_check(&block.content, &block.run, block.memory) == KVT_CONTENT_SAME);
        assert_true(kvt_content_check_line(&block.content, &block.run, block.memory) == KVT_CONTENT_SAME);
        block_done(&block);
    }
}

/* Goal: no flipped byte of a block escapes the whole check, and its offset is the one that is named. */
static void a_flipped_byte_is_found_where_it_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVT_ARRAY_COUNT(shapes); i++) {
        struct block block;
        block_init(&block, shape_of(shapes[i].dtype, shapes[i].kv_heads, shapes[i].head_dim), 7, 0);
        for (uint64_t at = 0; at < block.bytes; at += 1 + block.bytes / 97) {
            block.memory[at] ^= 0x80;
            assert_int_equal(kvt_content_check(&block.content, &block.run, block.memory), at);
            block.memory[at] ^= 0x80;
        }
        block_done(&block);
    }
}

/* Goal: blocks of other tokens, or after other tokens, differ in every row, not just somewhere. */
static void other_tokens_give_other_bytes_in_every_row(void **state)
{
    (void)state;
    struct block a, b;
    block_init(&a, shape_of(KVT_DTYPE_BF16, 1, 64), 7, 0);
    block_init(&b, shape_of(KVT_DTYPE_BF16, 1, 64), 8, 0);
    const uint64_t row_bytes = kvt_group_row_bytes(&a.shape.groups[0]);
    for (uint64_t at = 0; at < a.bytes; at += row_bytes)
        assert_memory_not_equal(a.memory + at, b.memory + at, row_bytes);
    assert_int_equal(kvt_content_check(&a.content, &a.run, b.memory), 0);
    assert_int_equal(kvt_content_check_line(&a.content, &a.run, b.memory), 0);
    block_done(&a);
    block_done(&b);
}

/* Goal: rows of one token differ between layers, planes and groups, so a misplaced chunk is seen. */
static void layers_planes_and_groups_have_bytes_of_their_own(void **state)
{
    (void)state;
    struct block block;
    struct kvt_model_shape shape = shape_of(KVT_DTYPE_INT8, 1, 64);
    shape.groups[1] = shape.groups[0];
    block_init(&block, shape, 7, 0);
    const uint64_t plane_bytes = kvt_group_row_bytes(&shape.groups[0]) * BLOCK_TOKENS;
    for (uint64_t a = 0; a < block.bytes; a += plane_bytes) {
        for (uint64_t b = 0; b < a; b += plane_bytes) {
            assert_memory_not_equal(block.memory + a, block.memory + b, plane_bytes);
        }
    }
    uint8_t *other = kvt_alloc(1, block.bytes);
    struct kvt_content_run run = block.run;
    run.group = 1;
    kvt_content_write(&block.content, &run, other);
    for (uint64_t a = 0; a < block.bytes; a += plane_bytes)
        assert_memory_not_equal(block.memory + a, other + a, plane_bytes);
    kvt_free(other);
    block_done(&block);
}

/* Goal: a block written token by token is the block written at once; what a tail does not hold stays untouched. */
static void writing_in_pieces_is_writing_at_once(void **state)
{
    (void)state;
    struct block block;
    block_init(&block, shape_of(KVT_DTYPE_FP16, 2, 64), 7, 320);
    uint8_t *other = kvt_alloc(1, block.bytes);
    memset(other, 0xee, block.bytes);
    static const uint32_t pieces[] = { 1, 4, 1, 9 };
    struct kvt_content_run run = block.run;
    run.count = 0;
    for (size_t i = 0; i < KVT_ARRAY_COUNT(pieces); i++) {
        run.first += run.count;
        run.position += run.count;
        run.identities += run.count;
        run.count = pieces[i];
        kvt_content_write(&block.content, &run, other);
    }
    run = block.run;
    run.count = 15;
    assert_true(kvt_content_check(&block.content, &run, other) == KVT_CONTENT_SAME);
    const uint64_t row_bytes = kvt_group_row_bytes(&block.shape.groups[0]);
    for (uint64_t i = 0; i < row_bytes; i++) assert_int_equal(other[15 * row_bytes + i], 0xee);
    kvt_free(other);
    block_done(&block);
}

/* Goal: the stream changes mantissas only: over any two blocks at one position, signs and exponents agree. */
static void signs_and_exponents_are_the_samples(void **state)
{
    (void)state;
    static const struct {
        enum kvt_dtype dtype;
        uint64_t kept;
    } types[] = {
        { KVT_DTYPE_BF16, UINT64_C(0xff80ff80ff80ff80) },
        { KVT_DTYPE_FP16, UINT64_C(0xfc00fc00fc00fc00) },
        { KVT_DTYPE_FP8, UINT64_C(0xf8f8f8f8f8f8f8f8) },
        { KVT_DTYPE_FP32, UINT64_C(0xff800000ff800000) },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(types); i++) {
        struct block a, b;
        block_init(&a, shape_of(types[i].dtype, 1, 64), 7, 48);
        block_init(&b, shape_of(types[i].dtype, 1, 64), 700, 48);
        uint64_t changed = 0, present = 0;
        for (uint64_t at = 0; at < a.bytes; at += 8) {
            const uint64_t word = kvt_load_u64(a.memory + at);
            const uint64_t diff = word ^ kvt_load_u64(b.memory + at);
            assert_true((diff & types[i].kept) == 0);
            changed |= diff;
            present |= word;
        }
        assert_true(changed == ~types[i].kept);
        assert_true((present & types[i].kept) != 0);
        block_done(&a);
        block_done(&b);
    }
}

/* Goal: a state is a function of the whole past, checked to its odd last byte. */
static void a_state_is_a_function_of_everything_before(void **state)
{
    (void)state;
    struct kvt_content content;
    const struct kvt_model_shape shape = shape_of(KVT_DTYPE_BF16, 1, 64);
    assert_int_equal(kvt_content_init(&content, &shape), KVT_OK);
    const uint64_t a = kvt_content_next(KVT_CONTENT_ROOT, 1), b = kvt_content_next(a, 2);
    uint8_t bytes[2000];
    kvt_content_write_state(&content, 1, b, bytes);
    assert_true(kvt_content_check_state(&content, 1, b, bytes) == KVT_CONTENT_SAME);
    assert_true(kvt_content_check_state_line(&content, 1, b, bytes) == KVT_CONTENT_SAME);
    assert_true(kvt_content_check_state(&content, 1, a, bytes) != KVT_CONTENT_SAME);
    assert_true(kvt_content_check_state_line(&content, 1, a, bytes) != KVT_CONTENT_SAME);
    bytes[1999] ^= 0x01;
    assert_int_equal(kvt_content_check_state(&content, 1, b, bytes), 1999);
    kvt_content_done(&content);
}

/* Goal: an identity depends on every token and on their order. */
static void an_identity_depends_on_every_token_and_their_order(void **state)
{
    (void)state;
    const uint64_t root = KVT_CONTENT_ROOT;
    assert_true(kvt_content_next(root, 0) != root);
    assert_true(kvt_content_next(root, 0) != kvt_content_next(root, 1));
    assert_true(kvt_content_next(kvt_content_next(root, 1), 2) != kvt_content_next(kvt_content_next(root, 2), 1));
    assert_true(kvt_content_next(kvt_content_next(root, 1), 2) == kvt_content_next(kvt_content_next(root, 1), 2));
}

/* Raw over packed bytes of a few blocks of consecutive tokens. */
static double packed_ratio(enum kvt_dtype dtype, uint32_t block_tokens)
{
    enum { BLOCKS = 16, BLOCK_TOKENS_MAX = 512 };
    static uint64_t identities[BLOCK_TOKENS_MAX];
    const struct kvt_model_shape shape = {
        .block_tokens = block_tokens,
        .group_count = 1,
        .groups = { { .dtype = dtype, .layers = 2, .kv_heads = 1, .head_dim = 64 } },
    };
    struct kvt_content content;
    struct kvt_codec *codec;
    assert_int_equal(kvt_content_init(&content, &shape), KVT_OK);
    assert_int_equal(kvt_codec_create(&shape, &codec), KVT_OK);
    const uint64_t bytes = kvt_group_block_bytes(&shape.groups[0], block_tokens);
    const uint64_t plane_bytes = bytes / 4;
    uint8_t *block = kvt_alloc(1, bytes), *packed = kvt_alloc(1, bytes);
    void *scratch = kvt_table_map(kvt_codec_scratch_bytes(codec));
    uint64_t identity = KVT_CONTENT_ROOT, packed_bytes = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (uint32_t i = 0; i < block_tokens; i++) identities[i] = identity = kvt_content_next(identity, i);
        const struct kvt_content_run run = {
            .count = block_tokens,
            .position = (uint64_t)b * block_tokens,
            .identities = identities,
        };
        kvt_content_write(&content, &run, block);
        const struct kvt_chunk_view views[2] = { { { block, block + plane_bytes } },
                                                 { { block + 2 * plane_bytes, block + 3 * plane_bytes } } };
        const uint32_t length = kvt_codec_pack(codec, 0, views, block_tokens, packed, (uint32_t)bytes, scratch);
        packed_bytes += length > 0 ? length : bytes;
    }
    kvt_table_unmap(scratch, kvt_codec_scratch_bytes(codec));
    kvt_free(packed);
    kvt_free(block);
    kvt_codec_destroy(&codec);
    kvt_content_done(&content);
    return (double)(BLOCKS * bytes) / (double)packed_bytes;
}

/* Goal: blocks pack as real KV does, no worse and, above all, no better. */
static void blocks_pack_as_real_kv_does(void **state)
{
    (void)state;
    static const struct {
        enum kvt_dtype dtype;
        double least, most;
    } types[] = {
        { KVT_DTYPE_BF16, 1.38, 1.55 },
        { KVT_DTYPE_FP16, 1.08, 1.20 },
        { KVT_DTYPE_FP8, 1.08, 1.25 },
        { KVT_DTYPE_INT8, 1.0, 1.01 },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(types); i++) {
        for (uint32_t block_tokens = 16; block_tokens <= 512; block_tokens *= 32) {
            const double ratio = packed_ratio(types[i].dtype, block_tokens);
            if (ratio < types[i].least || ratio > types[i].most) {
                fail_msg("%s in blocks of %u tokens packs to %.3f", kvt_dtype_name(types[i].dtype), block_tokens,
                         ratio);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_passes_the_checks),
        cmocka_unit_test(a_flipped_byte_is_found_where_it_is),
        cmocka_unit_test(other_tokens_give_other_bytes_in_every_row),
        cmocka_unit_test(layers_planes_and_groups_have_bytes_of_their_own),
        cmocka_unit_test(writing_in_pieces_is_writing_at_once),
        cmocka_unit_test(signs_and_exponents_are_the_samples),
        cmocka_unit_test(a_state_is_a_function_of_everything_before),
        cmocka_unit_test(blocks_pack_as_real_kv_does),
        cmocka_unit_test(an_identity_depends_on_every_token_and_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
