/* rank_planes: what is packed comes back bit for bit, and nothing that is unpacked is believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/rank_planes.h"
#include "runtime/base/bytes.h"
#include "tests/unit/rank_cases.h"

static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };
static const uint32_t channel_counts[] = { 1, 3, 63, 64, 65, 80, 96, 100, 1024 };
static const uint32_t token_counts[] = { 1, 2, 7, 16, 33 };

/* A field of the reference packed by hand: the format, not the code, is what is tested here. */
static void the_reference_writes_the_documented_bits(void **state)
{
    (void)state;
    /* bf16 exponents: ranks 0, 1, 2, 3, 8 and an escape. */
    const uint8_t exponent[6] = { 120, 121, 122, 123, 128, 7 };
    uint8_t source[12], rest[6], first[16], second[2][72], third[2][72], escapes[70];
    for (uint32_t i = 0; i < 6; i++)
        kvt_store_u16(source + 2 * i, (uint16_t)(0x8000u * (i & 1) | (uint32_t)exponent[i] << 7 | i));
    struct kvt_rank_pack args = {
        .shape = { .dtype = KVT_DTYPE_BF16, .plane_count = 1, .channels = 6, .elements = 6 },
        .source = { source },
        .table = { .symbol = { 120, 121, 122, 123, 124, 125, 126, 127, 128 }, .low = 120 },
        .rest = rest,
        .first = first,
        .second = { second[0], second[1] },
        .third = { third[0], third[1] },
        .escapes = escapes,
    };
    kvt_rank_ops_ref.pack(&args);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(rest[i], 0x80 * (i & 1) | i);
    assert_int_equal(kvt_load_u64(first), 0x3a);     /* elements 1, 3, 4, 5 */
    assert_int_equal(kvt_load_u64(first + 8), 0x3c); /* elements 2, 3, 4, 5 */
    assert_int_equal(args.second_count, 3);
    assert_int_equal(second[0][0], 6); /* pairs 0, 3, 3 */
    assert_int_equal(second[1][0], 6);
    assert_int_equal(args.third_count, 2);
    assert_int_equal(third[0][0], 2); /* pairs 2, 3 */
    assert_int_equal(third[1][0], 3);
    assert_int_equal(args.escape_count, 1);
    assert_int_equal(escapes[0], 7);
}

static void the_nine_commonest_of_the_best_window_get_ranks(void **state)
{
    (void)state;
    uint32_t histogram[256] = { 0 };
    for (uint32_t i = 0; i < 12; i++) histogram[(250 + i) & 255] = 10 + i; /* over the end: 255 is followed by 0 */
    histogram[100] = 15;
    struct kvt_rank_table table;
    const uint64_t bits = kvt_rank_choose(histogram, &table);
    assert_int_equal(table.symbol[0], 5);
    assert_int_equal(table.symbol[8], 253);
    for (uint32_t r = 0; r < KVT_RANK_SYMBOLS; r++)
        assert_true((uint8_t)(table.symbol[r] - table.low) < KVT_RANK_WINDOW);
    /* 21, 20, 19 at 2 bits; 18, 17, 16 at 4; 15, 14, 13 at 6; 12 + 11 + 10 and the far 15 escape. */
    assert_int_equal(bits, 60 * 2 + 51 * 4 + 42 * 6 + (33 + 15) * 14);
}

static void round_trip(const struct kvt_rank_ops *ops, struct kvt_rank_shape shape, bool is_based, enum rank_fill fill)
{
    struct kvt_rng rng = { .state = shape.channels * 1000003u + shape.elements };
    struct rank_case c;
    rank_case_init(&c, shape, is_based, fill, &rng);
    const struct kvt_rank_pack packed = rank_case_pack(&c, ops);
    const struct kvt_rank_unpack args = rank_case_unpack_args(&c, &packed);
    assert_true(rank_case_unpack(ops, args));
    for (uint32_t p = 0; p < shape.plane_count; p++)
        assert_memory_equal(c.source[p].bytes, c.target[p].bytes, c.source[p].size);
    assert_true(rank_case_is_intact(&c));
    rank_case_done(&c);
}

static void every_shape_and_fill_comes_back_bit_for_bit(void **state)
{
    (void)state;
    for (uint32_t o = 0; kvt_rank_ops_at(o); o++) {
        if (!kvt_rank_ops_at(o)->is_supported()) continue;
        for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
            for (uint32_t c = 0; c < KVT_ARRAY_COUNT(channel_counts); c++)
                for (uint32_t t = 0; t < KVT_ARRAY_COUNT(token_counts); t++)
                    for (uint32_t fill = 0; fill < RANK_FILL_COUNT; fill++) {
                        const struct kvt_rank_shape shape = { .dtype = dtypes[d],
                                                              .plane_count = 1 + (t + fill) % 2,
                                                              .channels = channel_counts[c],
                                                              .elements = channel_counts[c] * token_counts[t] };
                        round_trip(kvt_rank_ops_at(o), shape, false, (enum rank_fill)fill);
                        round_trip(kvt_rank_ops_at(o), shape, true, (enum rank_fill)fill);
                    }
    }
}

/* The sample must not look at the same channels again and again, whatever the channel count. */
static void the_sample_sees_all_channel_groups(void **state)
{
    (void)state;
    const uint32_t counts[] = { 64, 128, 192, 256, 320, 512, 640, 1024 };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(counts); i++) {
        const struct kvt_rank_shape shape = {
            .dtype = KVT_DTYPE_BF16, .plane_count = 2, .channels = counts[i], .elements = counts[i] * 64
        };
        const uint32_t per_row = counts[i] / 64;
        uint32_t seen = 0, group;
        struct kvt_rank_sampling sampling = kvt_rank_sampling_begin(&shape);
        while (kvt_rank_sampling_next(&sampling, &group)) {
            assert_true(group < 2 * kvt_rank_plane_groups(&shape));
            seen |= 1u << group % per_row;
        }
        assert_int_equal(seen, (1u << per_row) - 1);
        assert_true(sampling.index <= KVT_RANK_SAMPLES_MAX);
    }
}

static void no_chunk_has_more_samples_than_there_is_room_for(void **state)
{
    (void)state;
    for (uint32_t groups = 1; groups < 5000; groups++) {
        const struct kvt_rank_shape shape = {
            .dtype = KVT_DTYPE_FP8, .plane_count = 1, .channels = 64, .elements = groups * 64
        };
        struct kvt_rank_sampling sampling = kvt_rank_sampling_begin(&shape);
        uint32_t group;
        while (kvt_rank_sampling_next(&sampling, &group)) continue;
        assert_true(sampling.index >= 1);
        assert_true(sampling.index <= KVT_RANK_SAMPLES_MAX);
    }
}

/* Any bits in the planes and streams give a verdict, and nothing outside the target is touched. */
static void damaged_planes_never_read_or_write_out_of_bounds(void **state)
{
    (void)state;
    struct kvt_rng rng = { .state = 7 };
    for (uint32_t o = 0; kvt_rank_ops_at(o); o++) {
        const struct kvt_rank_ops *ops = kvt_rank_ops_at(o);
        if (!ops->is_supported()) continue;
        for (uint32_t i = 0; i < 3000; i++) {
            const struct kvt_rank_shape shape = { .dtype = dtypes[i % 3],
                                                  .plane_count = 1 + i / 3 % 2,
                                                  .channels = channel_counts[i % 9],
                                                  .elements = channel_counts[i % 9] * (1 + i % 7) };
            struct rank_case c;
            rank_case_init(&c, shape, i % 2, i % 4 < 2 ? RANK_FILL_KV : RANK_FILL_ESCAPES, &rng);
            const struct kvt_rank_pack packed = rank_case_pack(&c, ops);
            struct kvt_rank_unpack args = rank_case_unpack_args(&c, &packed);
            for (uint32_t k = 0; k < 1 + i % 4; k++)
                c.first.bytes[kvt_rng_below(&rng, c.first.size)] ^= (uint8_t)kvt_rng_next(&rng);
            if (i % 5 == 0) args.second_count = (uint32_t)kvt_rng_below(&rng, args.second_count + 1);
            if (i % 7 == 0) args.third_count = (uint32_t)kvt_rng_below(&rng, args.third_count + 1);
            if (i % 11 == 0) args.escape_count = (uint32_t)kvt_rng_below(&rng, args.escape_count + 1);
            (void)rank_case_unpack(ops, args);
            assert_true(rank_case_is_intact(&c));
            rank_case_done(&c);
        }
    }
}

static void streams_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    for (uint32_t o = 0; kvt_rank_ops_at(o); o++) {
        const struct kvt_rank_ops *ops = kvt_rank_ops_at(o);
        if (!ops->is_supported()) continue;
        struct kvt_rng rng = { .state = 3 };
        const struct kvt_rank_shape shape = {
            .dtype = KVT_DTYPE_BF16, .plane_count = 2, .channels = 100, .elements = 1000
        };
        struct rank_case c;
        rank_case_init(&c, shape, false, RANK_FILL_ESCAPES, &rng);
        const struct kvt_rank_pack packed = rank_case_pack(&c, ops);
        const struct kvt_rank_unpack good = rank_case_unpack_args(&c, &packed);
        assert_true(rank_case_unpack(ops, good));
        struct kvt_rank_unpack bad = good;
        bad.second_count--;
        assert_false(rank_case_unpack(ops, bad));
        bad = good;
        bad.third_count--;
        assert_false(rank_case_unpack(ops, bad));
        bad = good;
        bad.escape_count--;
        assert_false(rank_case_unpack(ops, bad));
        bad = good;
        bad.second_count++;
        assert_false(rank_case_unpack(ops, bad));
        c.first.bytes[16 * 15 + 7] |= 0x80; /* 1000 = 15 * 64 + 40: a bit behind the last element of plane 0 */
        assert_false(rank_case_unpack(ops, good));
        rank_case_done(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_writes_the_documented_bits),
        cmocka_unit_test(the_nine_commonest_of_the_best_window_get_ranks),
        cmocka_unit_test(every_shape_and_fill_comes_back_bit_for_bit),
        cmocka_unit_test(the_sample_sees_all_channel_groups),
        cmocka_unit_test(no_chunk_has_more_samples_than_there_is_room_for),
        cmocka_unit_test(damaged_planes_never_read_or_write_out_of_bounds),
        cmocka_unit_test(streams_that_do_not_fit_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
