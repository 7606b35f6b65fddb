/* codec: a block comes back bit for bit or is refused; damaged bytes are never believed. */
#include <pthread.h>

#include "tests/unit/codec_bench.h"

#include <lz4.h>

/* ---- Round trips ----------------------------------------------------------------------------------------------- */

static void every_type_shape_and_fill_comes_back_bit_for_bit(void **state)
{
    (void)state;
    const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8, KVT_DTYPE_FP32, KVT_DTYPE_INT8 };
    const struct {
        uint32_t heads, dim;
    } rows[] = { { 1, 1 }, { 1, 3 }, { 1, 64 }, { 1, 80 }, { 1, 96 }, { 1, 100 }, { 8, 128 } };
    uint32_t packed = 0;
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
        for (uint32_t r = 0; r < KVT_ARRAY_COUNT(rows); r++)
            for (uint32_t tokens = 1; tokens <= 16; tokens += 5)
                for (uint32_t kind = 0; kind < RANK_FILL_COUNT; kind++) {
                    const struct kvt_group_shape group = { .kind = KVT_GROUP_FULL,
                                                           .dtype = dtypes[d],
                                                           .layers = 1 + kind % 3,
                                                           .planes = 1 + (tokens + kind) % 2,
                                                           .kv_heads = rows[r].heads,
                                                           .head_dim = rows[r].dim };
                    struct bench b;
                    bench_init(&b, &group, 16, tokens);
                    fill(&b, (enum rank_fill)kind, 1 + r);
                    for (uint32_t k = 0; k < 3; k++) packed += round_trip(&b) != 0; /* the trial, and what follows it */
                    bench_done(&b);
                }
    assert_true(packed > 1000); /* most of it is not merely left raw */
}

static void a_state_snapshot_of_odd_size_comes_back_bit_for_bit(void **state)
{
    (void)state;
    const uint64_t sizes[] = { 1, 7, 4097, 100001 };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(sizes); i++)
        for (uint32_t kind = 0; kind < RANK_FILL_COUNT; kind++) {
            const struct kvt_group_shape group = {
                .kind = KVT_GROUP_STATE, .dtype = KVT_DTYPE_FP32, .layers = 2, .state_bytes = sizes[i]
            };
            struct bench b;
            bench_init(&b, &group, 16, 16);
            fill(&b, (enum rank_fill)kind, 5);
            const uint32_t length = round_trip(&b);
            if (kind == RANK_FILL_ZERO && sizes[i] > 1000) assert_int_equal(length, 16 + 2 * 16);
            bench_done(&b);
        }
}

static void a_constant_chunk_takes_sixteen_bytes(void **state)
{
    (void)state;
    const struct kvt_group_shape group = { .dtype = KVT_DTYPE_BF16, .layers = 3, .kv_heads = 4, .head_dim = 64 };
    struct bench b;
    bench_init(&b, &group, 16, 16);
    memset(b.source.bytes, 0, b.source.size);
    /* K and V of the middle layer are two different constants. */
    for (size_t i = 0; i < b.plane_bytes; i += 2) {
        kvt_store_u16(b.views[1].plane[0] + i, 0x7fc1);
        kvt_store_u16(b.views[1].plane[1] + i, 0x8000);
    }
    /* Header 8, directory 12, pad 4, and three chunks. */
    assert_int_equal(round_trip(&b), 24 + 3 * 16);
    bench_done(&b);
}

static void noise_stays_raw_and_the_target_is_not_written(void **state)
{
    (void)state;
    const struct kvt_group_shape group = { .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 8, .head_dim = 128 };
    struct bench b;
    bench_init(&b, &group, 16, 16);
    fill(&b, RANK_FILL_RANDOM, 1);
    memset(b.packed.bytes, 0x77, b.packed.size);
    assert_int_equal(pack(&b), 0);
    for (size_t i = 0; i < b.packed.size; i++) assert_int_equal(b.packed.bytes[i], 0x77);
    bench_done(&b);
}

static void only_valid_tokens_are_touched(void **state)
{
    (void)state;
    const struct kvt_group_shape group = { .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 80 };
    for (uint32_t tokens = 1; tokens <= 16; tokens++) {
        struct bench b;
        bench_init(&b, &group, 16, tokens); /* buffers as long as the valid tokens: canaries and ASan watch the rest */
        fill(&b, RANK_FILL_KV, tokens);
        (void)round_trip(&b);
        bench_done(&b);
    }
}

/* Every capacity where something happens: the headers, and around what is needed. */
static uint32_t step_of(uint32_t capacity, uint32_t needed)
{
    return capacity < 200 || (capacity + 300 > needed && capacity < needed + 20) ? 1 : 97;
}

static void too_small_a_capacity_gives_zero_and_is_never_overrun(void **state)
{
    (void)state;
    const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP8, KVT_DTYPE_INT8 };
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++) {
        const struct kvt_group_shape group = { .dtype = dtypes[d], .layers = 3, .kv_heads = 1, .head_dim = 96 };
        struct bench b;
        bench_init(&b, &group, 16, 16);
        fill(&b, RANK_FILL_KV, 9);
        memset(b.source.bytes, 3, d == 2 ? b.source.size / 2 : 50); /* something for LZ4 and escapes */
        const uint32_t needed = pack(&b);
        assert_true(needed > 0);
        for (uint32_t capacity = 0; capacity <= b.packed.size; capacity += step_of(capacity, needed)) {
            /* Where LZ4 is tried depends on what came before: the same past for each capacity. */
            kvt_codec_destroy(&b.codec);
            assert_int_equal(kvt_codec_create(&b.shape, &b.codec), KVT_OK);
            struct rank_buffer exact;
            rank_buffer_init(&exact, capacity);
            const uint32_t length = kvt_codec_pack(b.codec, 0, b.views, b.tokens, exact.bytes, capacity, b.scratch);
            assert_true(length <= capacity);
            assert_int_equal(length, capacity < needed ? 0 : needed);
            assert_true(rank_buffer_is_intact(&exact));
            if (length) {
                memset(b.target.bytes, 0, b.target.size);
                assert_int_equal(unpack(&b, exact.bytes, length), KVT_OK);
                assert_memory_equal(b.source.bytes, b.target.bytes, b.source.size);
            }
            rank_buffer_done(&exact);
        }
        bench_done(&b);
    }
}

/* Random and repeating data, LZ4 alone and as a second stage, long: each block independent, each size exact. */
static void b45_lz4_blocks_are_independent_and_of_exact_size(void **state)
{
    (void)state;
    struct kvt_rng rng = { .state = 45 };
    for (uint32_t i = 0; i < 400; i++) {
        const struct kvt_group_shape group = { .dtype = i % 2 ? KVT_DTYPE_INT8 : KVT_DTYPE_BF16,
                                               .layers = 1 + i % 3,
                                               .planes = 1 + i / 2 % 2,
                                               .kv_heads = 1 + (uint32_t)kvt_rng_below(&rng, 4),
                                               .head_dim = 1 + (uint32_t)kvt_rng_below(&rng, 130) };
        struct bench b;
        bench_init(&b, &group, 64, 1 + (uint32_t)kvt_rng_below(&rng, 64));
        fill(&b, (enum rank_fill)(i % RANK_FILL_COUNT), kvt_rng_next(&rng));
        const size_t period = 1 + kvt_rng_below(&rng, b.source.size); /* repeats across planes and layers */
        for (size_t k = period; k < b.source.size; k++)
            if (kvt_rng_below(&rng, 50)) b.source.bytes[k] = b.source.bytes[k - period];
        for (uint32_t k = 0; k < 3; k++) {
            const uint32_t length = round_trip(&b);
            if (length == 0) continue;
            /* One byte more or less is another block. */
            assert_int_equal(unpack(&b, b.packed.bytes, length - 1), KVT_CORRUPT);
            if (length < b.packed.size) assert_int_equal(unpack(&b, b.packed.bytes, length + 1), KVT_CORRUPT);
        }
        bench_done(&b);
    }
}

/* A well-formed LZ4 block of one byte less than the plane leaves old bytes at its end: it is refused. */
static void b45_an_lz4_block_of_another_raw_size_is_refused(void **state)
{
    (void)state;
    const struct kvt_group_shape group = {
        .dtype = KVT_DTYPE_INT8, .layers = 1, .planes = 1, .kv_heads = 1, .head_dim = 64
    };
    struct bench b;
    bench_init(&b, &group, 16, 16);
    memset(b.source.bytes, 3, b.source.size / 2);
    assert_true(round_trip(&b) > 0);
    for (int size = 1000; size <= 1040; size++) {
        uint8_t packed[2048] = { 1, 0, 16 }, raw[2048] = { 0 };
        const int stored = LZ4_compress_default((const char *)raw, (char *)packed + 32, size, 2000);
        packed[16] = 2;
        kvt_store_u32(packed + 8, (uint32_t)(32 + stored));
        kvt_store_u32(packed + 24, (uint32_t)stored);
        assert_int_equal(unpack(&b, packed, (uint32_t)(32 + stored)), size == 1024 ? KVT_OK : KVT_CORRUPT);
    }
    bench_done(&b);
}

static void all_implementations_pack_the_same_bytes(void **state)
{
    (void)state;
    const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++) {
        const struct kvt_group_shape group = { .dtype = dtypes[d], .layers = 2, .kv_heads = 1, .head_dim = 100 };
        struct bench a, b;
        bench_init(&a, &group, 16, 13);
        fill(&a, RANK_FILL_KV, 3);
        kvt_codec_set_kernels(a.codec, &kvt_rank_ops_ref);
        const uint32_t length = pack(&a);
        assert_true(length > 0);
        for (uint32_t k = 1; kvt_rank_ops_at(k); k++) {
            if (!kvt_rank_ops_at(k)->is_supported()) continue;
            bench_init(&b, &group, 16, 13);
            memcpy(b.source.bytes, a.source.bytes, a.source.size);
            kvt_codec_set_kernels(b.codec, kvt_rank_ops_at(k));
            assert_int_equal(round_trip(&b), length);
            assert_memory_equal(a.packed.bytes, b.packed.bytes, length);
            bench_done(&b);
        }
        bench_done(&a);
    }
}

/* ---- Damage ---------------------------------------------------------------------------------------------------- */

/* What is done to a good packed block; all of it must end in a verdict, inside the bounds. */
static void damage(struct bench *b, uint32_t length, struct kvt_rng *rng)
{
    uint8_t *copy = malloc(length + 64);
    /* Every bit of the headers, and every 61st of the rest. */
    for (uint32_t bit = 0; bit < 8 * length; bit += bit < 8 * 80 ? 1 : 61) {
        memcpy(copy, b->packed.bytes, length);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        (void)unpack(b, copy, length);
    }
    memcpy(copy, b->packed.bytes, length);
    memset(copy + length, 0, 64);
    for (uint32_t cut = 0; cut < length; cut += cut < 100 || cut > length - 100 ? 1 : 53)
        assert_int_equal(unpack(b, copy, cut), KVT_CORRUPT);
    for (uint32_t more = 1; more <= 64; more++) assert_int_equal(unpack(b, copy, length + more), KVT_CORRUPT);
    for (uint32_t i = 0; i < 200; i++) {
        memcpy(copy, b->packed.bytes, length);
        for (uint64_t k = 0; k < 1 + i % 8; k++) copy[kvt_rng_below(rng, length)] = (uint8_t)kvt_rng_next(rng);
        if (i % 3 == 0) /* a word of a header or a trailer becomes an extreme */
            kvt_store_u32(copy
                              + (i % 2 ? kvt_rng_below(rng, kvt_min_u32(40, length - 4))
                                       : length - 4 - 4 * kvt_rng_below(rng, 3)),
                          (uint32_t)(UINT32_MAX >> kvt_rng_below(rng, 32)));
        (void)unpack(b, copy, length);
    }
    free(copy);
}

static void damaged_blocks_never_read_or_write_out_of_bounds(void **state)
{
    (void)state;
    const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8, KVT_DTYPE_INT8, KVT_DTYPE_FP32 };
    struct kvt_rng rng = { .state = 11 };
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
        for (uint32_t kind = RANK_FILL_ZERO; kind < RANK_FILL_COUNT; kind++)
            for (uint32_t k = 0; kvt_rank_ops_at(k); k++) {
                if (!kvt_rank_ops_at(k)->is_supported() || (d >= 3 && k > 0)) continue;
                const struct kvt_group_shape group = {
                    .dtype = dtypes[d], .layers = 1 + d % 2, .kv_heads = 1, .head_dim = 96
                };
                struct bench b;
                bench_init(&b, &group, 16, 11);
                kvt_codec_set_kernels(b.codec, kvt_rank_ops_at(k));
                fill(&b, (enum rank_fill)kind, 4);
                memcpy(b.source.bytes + b.source.size / 2, b.source.bytes,
                       b.source.size / 2); /* LZ4 has something to find */
                const uint32_t length = pack(&b);
                if (length > 0) damage(&b, length, &rng);
                bench_done(&b);
            }
}

static void random_bytes_are_refused_inside_the_bounds(void **state)
{
    (void)state;
    const struct kvt_group_shape group = { .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 64 };
    struct bench b;
    bench_init(&b, &group, 16, 16);
    struct kvt_rng rng = { .state = 12 };
    uint8_t bytes[4096];
    for (uint32_t i = 0; i < 20000; i++) {
        const uint32_t length = (uint32_t)kvt_rng_below(&rng, sizeof bytes);
        for (uint32_t k = 0; k < kvt_min_u32(length, 600); k++) bytes[k] = (uint8_t)kvt_rng_next(&rng);
        if (i % 2 && length > 40) { /* past the block header, into the chunks */
            memcpy(bytes, (const uint8_t[]){ 1, 0, 16, 0, 0, 0, 0, 0 }, 8);
            kvt_store_u32(bytes + 8, length / 2);
            kvt_store_u32(bytes + 12, length);
            bytes[16] &= 0x73;
        }
        (void)unpack(&b, bytes, length);
    }
    bench_done(&b);
}

static void a_block_of_another_token_count_is_refused(void **state)
{
    (void)state;
    const struct kvt_group_shape group = { .dtype = KVT_DTYPE_BF16, .layers = 1, .kv_heads = 1, .head_dim = 64 };
    struct bench b;
    bench_init(&b, &group, 16, 16);
    memset(b.source.bytes, 0, b.source.size); /* constant: no size would tell */
    const uint32_t length = pack(&b);
    assert_true(length > 0);
    b.tokens = 15;
    assert_int_equal(unpack(&b, b.packed.bytes, length), KVT_CORRUPT);
    bench_done(&b);
}

/* ---- Base tables ----------------------------------------------------------------------------------------------- */

static const struct kvt_group_shape table_group = {
    .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 2, .head_dim = 50
};

/* Channels whose scales differ by far: what tables are for. */
static void fill_scaled_by(struct bench *b, uint64_t seed, uint32_t factor)
{
    struct kvt_rng rng = { .state = seed };
    for (size_t i = 0; i < b->source.size / 2; i++) {
        const uint64_t noise = kvt_rng_next(&rng);
        const uint32_t channel = i % 100;
        const uint32_t exponent = channel == 7
            ? 0
            : 100 + channel * factor % 41 - (uint32_t)__builtin_ctzll(noise >> 20 | 1u << 20);
        kvt_store_u16(b->source.bytes + 2 * i, (uint16_t)(channel == 7 ? 0 : (noise & 0x807f) | exponent << 7));
    }
}

static void fill_scaled(struct bench *b, uint64_t seed) { fill_scaled_by(b, seed, 37); }

static void learn_by(struct bench *b, uint32_t factor)
{
    assert_int_equal(kvt_codec_learn(b->codec, true), KVT_OK);
    for (uint32_t seen = 0; seen < KVT_BASE_LEARN_TOKENS; seen += b->tokens) {
        assert_int_equal(kvt_codec_tables_count(b->codec), 0);
        fill_scaled_by(b, 100 + seen, factor);
        (void)pack(b);
    }
    assert_int_equal(kvt_codec_tables_count(b->codec), 1);
}

static void learn(struct bench *b) { learn_by(b, 37); }

static void tables_are_off_until_asked_for_and_then_shrink_scaled_channels(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, &table_group, 16, 16);
    fill_scaled(&b, 1);
    for (uint32_t i = 0; i < 40; i++) (void)pack(&b);
    const uint32_t without = round_trip(&b);
    assert_int_equal(kvt_codec_tables_count(b.codec), 0);
    learn(&b);
    fill_scaled(&b, 1);
    const uint32_t with = round_trip(&b);
    assert_true(with > 0);
    assert_true(without == 0 || with < without * 9 / 10);
    bench_done(&b);
}

static void a_block_packed_with_a_table_is_corrupt_without_it_and_exact_after_import(void **state)
{
    (void)state;
    struct bench a, b;
    bench_init(&a, &table_group, 16, 16);
    bench_init(&b, &table_group, 16, 16);
    learn(&a);
    fill_scaled(&a, 2);
    const uint32_t length = pack(&a);
    assert_true(length > 0);
    assert_int_equal(unpack(&b, a.packed.bytes, length), KVT_CORRUPT);

    const size_t size = kvt_codec_tables_export(a.codec, NULL, 0);
    uint8_t *tables = malloc(size);
    assert_int_equal(kvt_codec_tables_export(a.codec, tables, size - 1), size);
    assert_int_equal(kvt_codec_tables_export(a.codec, tables, size), size);
    assert_int_equal(kvt_codec_tables_import(b.codec, tables, size), KVT_OK);
    assert_int_equal(kvt_codec_tables_import(b.codec, tables, size), KVT_OK); /* once more is no more */
    assert_int_equal(kvt_codec_tables_count(b.codec), 1);
    assert_int_equal(unpack(&b, a.packed.bytes, length), KVT_OK);
    assert_memory_equal(b.target.bytes, a.source.bytes, a.source.size);

    /* The new codec packs with it too, and has nothing to learn. */
    memcpy(b.source.bytes, a.source.bytes, a.source.size);
    assert_int_equal(kvt_codec_learn(b.codec, true), KVT_OK);
    assert_true(round_trip(&b) > 0);
    assert_int_equal(kvt_codec_tables_count(b.codec), 1);
    free(tables);
    bench_done(&a);
    bench_done(&b);
}

static void a_held_table_packs_only_once_it_was_imported_again(void **state)
{
    (void)state;
    static uint8_t tables[4096];
    struct bench a, b;
    bench_init(&a, &table_group, 16, 16);
    bench_init(&b, &table_group, 16, 16);
    kvt_codec_tables_hold(a.codec, true);
    learn(&a);
    fill_scaled(&a, 2);
    const uint32_t before = pack(&a);
    assert_true(before == 0 || unpack(&b, a.packed.bytes, before) == KVT_OK); /* it names no table */
    const size_t size = kvt_codec_tables_export(a.codec, tables, sizeof tables);
    assert_int_equal(size, kvt_codec_tables_bytes(a.codec));
    assert_int_equal(kvt_codec_tables_import(a.codec, tables, size), KVT_OK);
    const uint32_t after = pack(&a);
    assert_true(after > 0 && (before == 0 || after < before));
    /* A held one that is new reads, and does not pack. */
    kvt_codec_tables_hold(b.codec, true);
    assert_int_equal(kvt_codec_tables_import(b.codec, tables, size), KVT_OK);
    assert_int_equal(unpack(&b, a.packed.bytes, after), KVT_OK);
    memcpy(b.source.bytes, a.source.bytes, a.source.size);
    assert_int_equal(pack(&b), before);
    bench_done(&a);
    bench_done(&b);
}

static void a_base_is_the_mean_exponent_of_its_channel_zeros_left_out(void **state)
{
    (void)state;
    struct kvt_base_tables tables;
    kvt_base_tables_init(&tables, KVT_DTYPE_BF16, 1, 1, 3);
    assert_int_equal(kvt_base_tables_learn(&tables, true), KVT_OK);
    static uint8_t rows[KVT_BASE_LEARN_TOKENS][3][2];
    for (uint32_t t = 0; t < KVT_BASE_LEARN_TOKENS; t++) {
        kvt_store_u16(rows[t][0], t % 4 ? 0 : 100 << 7);           /* mostly zeros */
        kvt_store_u16(rows[t][1], (uint16_t)((110 + t % 3) << 7)); /* 110, 111, 112 */
    }                                                              /* channel 2: zeros only */
    const struct kvt_chunk_view view = { { &rows[0][0][0], NULL } };
    kvt_base_tables_observe(&tables, &view, KVT_BASE_LEARN_TOKENS);
    const struct kvt_base_set *set = kvt_base_tables_current(&tables);
    assert_non_null(set);
    const uint8_t *bases = kvt_base_set_layer(&tables, set, 0).plane[0];
    const uint8_t expected[3] = { 100, 111, 0 };
    for (uint32_t i = 0; i < 3 + KVT_RANK_GROUP; i++)
        assert_int_equal(bases[i], expected[i % 3]); /* and so on, periodically */
    kvt_base_tables_done(&tables);
}

static void learning_can_be_given_up_and_begun_again(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, &table_group, 16, 16);
    assert_int_equal(kvt_codec_learn(b.codec, true), KVT_OK);
    fill_scaled(&b, 1);
    (void)pack(&b);
    assert_int_equal(kvt_codec_learn(b.codec, false), KVT_OK);
    for (uint32_t seen = 0; seen < 2 * KVT_BASE_LEARN_TOKENS; seen += b.tokens) (void)pack(&b);
    assert_int_equal(kvt_codec_tables_count(b.codec), 0);
    learn(&b);
    bench_done(&b);
}

/* The one dangerous mistake: tables were lost, others were learned, and an old block meets them. */
static void tables_learned_from_other_tokens_do_not_open_a_block(void **state)
{
    (void)state;
    struct bench a, b;
    bench_init(&a, &table_group, 16, 16);
    bench_init(&b, &table_group, 16, 16);
    learn(&a);
    learn_by(&b, 29);
    fill_scaled(&a, 2);
    const uint32_t length = pack(&a);
    assert_true(length > 0);
    assert_int_equal(unpack(&b, a.packed.bytes, length), KVT_CORRUPT);
    bench_done(&a);
    bench_done(&b);
}

static void damaged_or_foreign_tables_are_refused_and_change_nothing(void **state)
{
    (void)state;
    struct bench a, b;
    bench_init(&a, &table_group, 16, 16);
    learn(&a);
    const size_t size = kvt_codec_tables_export(a.codec, NULL, 0);
    uint8_t *tables = malloc(size);
    assert_int_equal(kvt_codec_tables_export(a.codec, tables, size), size);
    bench_init(&b, &table_group, 16, 16);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        tables[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(kvt_codec_tables_import(b.codec, tables, size), KVT_CORRUPT);
        tables[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1);
        memcpy(exact, tables, cut);
        assert_int_equal(kvt_codec_tables_import(b.codec, exact, cut), KVT_CORRUPT);
        free(exact);
    }
    assert_int_equal(kvt_codec_tables_count(b.codec), 0);
    bench_done(&b);

    struct kvt_group_shape other = table_group;
    other.head_dim = 51;
    bench_init(&b, &other, 16, 16);
    assert_int_equal(kvt_codec_tables_import(b.codec, tables, size), KVT_CORRUPT);
    bench_done(&b);
    other = table_group;
    other.dtype = KVT_DTYPE_INT8;
    bench_init(&b, &other, 16, 16);
    assert_int_equal(kvt_codec_tables_import(b.codec, tables, size), KVT_CORRUPT);
    bench_done(&b);
    free(tables);
    bench_done(&a);
}

struct worker {
    struct bench *shared;
    uint64_t seed;
    bool is_exact;
};

/* Packs and unpacks its own blocks with the shared codec, while tables are learned and LZ4 is tried. */
static void *work(void *argument)
{
    struct worker *worker = argument;
    struct bench b = *worker->shared; /* the codec is shared, all memory is its own */
    rank_buffer_init(&b.source, raw_bytes(&b));
    rank_buffer_init(&b.target, raw_bytes(&b));
    rank_buffer_init(&b.packed, raw_bytes(&b));
    b.scratch = aligned_alloc(64, kvt_align_up(kvt_codec_scratch_bytes(b.codec), 64));
    b.views = kvt_alloc(b.layers, sizeof b.views[0]);
    set_views(&b, b.source.bytes, b.views);
    b.target_views = kvt_alloc(b.layers, sizeof b.views[0]);
    set_views(&b, b.target.bytes, b.target_views);
    worker->is_exact = true;
    for (uint32_t i = 0; i < 40; i++) {
        fill_scaled(&b, worker->seed * 1000 + i);
        const uint32_t length = pack(&b);
        if (length == 0) continue;
        const bool is_ok = kvt_codec_unpack(b.codec, 0, b.packed.bytes, length, b.tokens, b.target_views, b.scratch)
            == KVT_OK;
        worker->is_exact = worker->is_exact && is_ok && memcmp(b.source.bytes, b.target.bytes, b.source.size) == 0;
    }
    rank_buffer_done(&b.source);
    rank_buffer_done(&b.target);
    rank_buffer_done(&b.packed);
    kvt_free(b.views);
    kvt_free(b.target_views);
    free(b.scratch);
    return NULL;
}

static void blocks_stay_exact_while_threads_pack_and_one_table_is_learned(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, &table_group, 16, 16);
    assert_int_equal(kvt_codec_learn(b.codec, true), KVT_OK);
    struct worker workers[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        workers[i] = (struct worker){ .shared = &b, .seed = i + 1 };
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(workers[i].is_exact);
    }
    assert_int_equal(kvt_codec_tables_count(b.codec), 1);
    bench_done(&b);
}

static void create_and_learn_survive_any_failing_allocation(void **state)
{
    (void)state;
    struct kvt_model_shape shape = {
        .block_tokens = 16,
        .group_count = 3,
        .groups = { table_group,
                    table_group,
                    { .kind = KVT_GROUP_STATE, .dtype = KVT_DTYPE_FP32, .layers = 1, .state_bytes = 64 } }
    };
    enum kvt_status status = KVT_NOMEM;
    for (uint64_t n = 1; status == KVT_NOMEM; n++) {
        struct kvt_codec *codec = NULL;
        kvt_alloc_fail_at(n);
        status = kvt_codec_create(&shape, &codec);
        if (status == KVT_OK) status = kvt_codec_learn(codec, true);
        kvt_alloc_fail_at(0);
        assert_true(status == KVT_OK || status == KVT_NOMEM);
        kvt_codec_destroy(&codec);
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_shape_and_fill_comes_back_bit_for_bit),
        cmocka_unit_test(a_state_snapshot_of_odd_size_comes_back_bit_for_bit),
        cmocka_unit_test(a_constant_chunk_takes_sixteen_bytes),
        cmocka_unit_test(noise_stays_raw_and_the_target_is_not_written),
        cmocka_unit_test(only_valid_tokens_are_touched),
        cmocka_unit_test(too_small_a_capacity_gives_zero_and_is_never_overrun),
        cmocka_unit_test(b45_lz4_blocks_are_independent_and_of_exact_size),
        cmocka_unit_test(b45_an_lz4_block_of_another_raw_size_is_refused),
        cmocka_unit_test(all_implementations_pack_the_same_bytes),
        cmocka_unit_test(damaged_blocks_never_read_or_write_out_of_bounds),
        cmocka_unit_test(random_bytes_are_refused_inside_the_bounds),
        cmocka_unit_test(a_block_of_another_token_count_is_refused),
        cmocka_unit_test(tables_are_off_until_asked_for_and_then_shrink_scaled_channels),
        cmocka_unit_test(a_block_packed_with_a_table_is_corrupt_without_it_and_exact_after_import),
        cmocka_unit_test(a_held_table_packs_only_once_it_was_imported_again),
        cmocka_unit_test(a_base_is_the_mean_exponent_of_its_channel_zeros_left_out),
        cmocka_unit_test(learning_can_be_given_up_and_begun_again),
        cmocka_unit_test(tables_learned_from_other_tokens_do_not_open_a_block),
        cmocka_unit_test(damaged_or_foreign_tables_are_refused_and_change_nothing),
        cmocka_unit_test(blocks_stay_exact_while_threads_pack_and_one_table_is_learned),
        cmocka_unit_test(create_and_learn_survive_any_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
