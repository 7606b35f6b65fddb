/*
 * attention: every implementation against a naive softmax in double precision.
 *
 * Keys and values lie in the slots of a pool, in no order, with NaNs in every byte that a call must not use: slots that
 * are not on its list, tokens past the end, tokens that the mask hides. The naive one walks the tokens themselves and
 * knows no slots, lists or pieces.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/attention.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define ERROR_MOST 1e-3 /* of a head's output, over the largest of its values; of lse, absolute */

enum list { LIST_ALL, LIST_LOCAL, LIST_STRIDED, LIST_SELECTED, LISTS };

struct shape {
    enum kvt_dtype dtype;
    uint32_t kv_heads, ratio, head_dim, block_tokens;
    uint64_t length, window, sinks;
    enum list list;
};

struct fixture {
    struct shape shape;
    struct kvt_rng rng;
    uint64_t row_bytes, blocks, slots, slot_bytes, elements; /* elements of a row */
    uint8_t *pool;
    double *keys, *values; /* [length][elements] */
    uint32_t *slot_of;     /* [blocks] */
    uint32_t *list_blocks, *list_slots, list_count;
    uint64_t first, step;
    float *query, *out, *lse, *piece_out, *piece_lse;
    double *wanted, *wanted_lse, *weights;
};

static double uniform(struct kvt_rng *rng, double most)
{
    return ((double)(kvt_rng_next(rng) >> 11) / 9007199254740992.0 * 2 - 1) * most;
}

/* A number of the type near `value`, as the type has it; its bits go to *ret_bits. */
static double rounded(enum kvt_dtype dtype, double value, uint32_t *ret_bits)
{
    const float single = (float)value; /* rounded once: what follows is cut off from it */
    memcpy(ret_bits, &single, sizeof single);
    if (dtype == KVT_DTYPE_FP32) return single;
    int exponent;
    const double fraction = frexp(fabs((double)single), &exponent); /* 0.5 <= fraction < 1 */
    const uint32_t sign = value < 0;
    if (dtype == KVT_DTYPE_BF16) {
        *ret_bits >>= 16; /* towards zero */
        return ldexp(floor(ldexp(fraction, 8)), exponent - 8) * (sign ? -1 : 1);
    }
    if (exponent < -13) { /* subnormal: a multiple of 2^-24 */
        *ret_bits = sign << 15 | (uint32_t)ldexp(fabs((double)single), 24);
        return ldexp(floor(ldexp(fabs((double)single), 24)), -24) * (sign ? -1 : 1);
    }
    const double whole = floor(ldexp(fraction, 11));
    *ret_bits = sign << 15 | (uint32_t)(exponent + 14) << 10 | ((uint32_t)whole & 0x3ff);
    return ldexp(whole, exponent - 11) * (sign ? -1 : 1);
}

static bool is_listed(const struct fixture *f, uint64_t block)
{
    for (uint32_t i = 0; i < f->list_count; i++) {
        if (f->list_blocks[i] == block) return true;
    }
    return false;
}

/* What the naive one lets through: its own words, not the kernel's. */
static bool is_visible(const struct fixture *f, uint64_t token)
{
    if (f->shape.window == 0) return true;
    return token < f->shape.sinks || f->shape.length - token <= f->shape.window;
}

static void choose_list(struct fixture *f)
{
    const uint64_t blocks = f->blocks;
    f->first = 0;
    f->step = 1;
    if (f->shape.list == LIST_LOCAL) f->first = kvt_rng_below(&f->rng, blocks);
    if (f->shape.list == LIST_STRIDED) {
        f->first = kvt_rng_below(&f->rng, blocks);
        f->step = 2 + kvt_rng_below(&f->rng, 3);
    }
    for (uint64_t block = f->first; block < blocks; block += f->step) {
        if (f->shape.list == LIST_SELECTED && kvt_rng_below(&f->rng, 3) == 0) continue;
        f->list_blocks[f->list_count++] = (uint32_t)block;
    }
    for (uint32_t i = f->list_count; f->shape.list == LIST_SELECTED && i > 1; i--) {
        const uint32_t j = (uint32_t)kvt_rng_below(&f->rng, i), before = f->list_blocks[i - 1];
        f->list_blocks[i - 1] = f->list_blocks[j];
        f->list_blocks[j] = before;
    }
    for (uint32_t i = 0; i < f->list_count; i++) f->list_slots[i] = f->slot_of[f->list_blocks[i]];
}

static void write_row(struct fixture *f, uint64_t token, uint32_t plane, double *row, double most)
{
    const uint32_t element_bytes = kvt_dtype_bytes(f->shape.dtype);
    const uint64_t block = token / f->shape.block_tokens;
    uint8_t *bytes = f->pool + f->slot_of[block] * f->slot_bytes
        + (plane * f->shape.block_tokens + token % f->shape.block_tokens) * f->row_bytes;
    const bool is_used = is_listed(f, block) && is_visible(f, token);
    for (uint64_t e = 0; e < f->elements; e++) {
        uint32_t bits;
        row[e] = rounded(f->shape.dtype, uniform(&f->rng, most), &bits);
        if (is_used) memcpy(bytes + e * element_bytes, &bits, element_bytes);
    }
}

static void fill(struct fixture *f)
{
    memset(f->pool, 0xff, f->slots * f->slot_bytes); /* NaNs, in every type */
    for (uint32_t i = 0; i < f->slots; i++) f->slot_of[i] = i;
    for (uint32_t i = (uint32_t)f->slots; i > 1; i--) {
        const uint32_t j = (uint32_t)kvt_rng_below(&f->rng, i), before = f->slot_of[i - 1];
        f->slot_of[i - 1] = f->slot_of[j];
        f->slot_of[j] = before;
    }
    choose_list(f);
    for (uint64_t t = 0; t < f->shape.length; t++) {
        write_row(f, t, 0, f->keys + t * f->elements, 2);
        write_row(f, t, 1, f->values + t * f->elements, 1);
    }
    const uint64_t heads = (uint64_t)f->shape.kv_heads * f->shape.ratio;
    for (uint64_t i = 0; i < heads * f->shape.head_dim; i++) f->query[i] = (float)uniform(&f->rng, 4);
}

static void open_fixture(struct fixture *f, const struct shape *shape, uint64_t seed)
{
    const uint64_t heads = (uint64_t)shape->kv_heads * shape->ratio, numbers = heads * shape->head_dim;
    *f = (struct fixture){ .shape = *shape, .rng = { .state = seed } };
    f->elements = (uint64_t)shape->kv_heads * shape->head_dim;
    f->row_bytes = f->elements * kvt_dtype_bytes(shape->dtype);
    f->blocks = (shape->length + shape->block_tokens - 1) / shape->block_tokens;
    f->slots = f->blocks + 3;
    f->slot_bytes = 2 * shape->block_tokens * f->row_bytes + 64; /* other layers' bytes lie between */
    f->pool = kvt_alloc(f->slots, f->slot_bytes);
    f->keys = kvt_alloc(shape->length * f->elements, sizeof(double));
    f->values = kvt_alloc(shape->length * f->elements, sizeof(double));
    f->slot_of = kvt_alloc(f->slots, sizeof(uint32_t));
    f->list_blocks = kvt_alloc(f->blocks, sizeof(uint32_t));
    f->list_slots = kvt_alloc(f->blocks, sizeof(uint32_t));
    f->query = kvt_alloc(3 * numbers, sizeof(float));
    f->out = f->query + numbers;
    f->piece_out = f->out + numbers;
    f->lse = kvt_alloc(2 * heads, sizeof(float));
    f->piece_lse = f->lse + heads;
    f->wanted = kvt_alloc(numbers + heads + shape->length, sizeof(double));
    f->wanted_lse = f->wanted + numbers;
    f->weights = f->wanted_lse + heads;
    fill(f);
}

static void close_fixture(struct fixture *f)
{
    void *const all[] = { f->pool,       f->keys,  f->values, f->slot_of, f->list_blocks,
                          f->list_slots, f->query, f->lse,    f->wanted };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(all); i++) kvt_free(all[i]);
}

static double naive_score(const struct fixture *f, uint64_t head, uint64_t token)
{
    const double *key = f->keys + token * f->elements + head / f->shape.ratio * f->shape.head_dim;
    double score = 0;
    for (uint32_t d = 0; d < f->shape.head_dim; d++) score += f->query[head * f->shape.head_dim + d] * key[d];
    return score / sqrt(f->shape.head_dim);
}

/* exp(score) over the sum of all: two passes and no tricks but the largest score taken off. */
static void naive_head(struct fixture *f, uint64_t head)
{
    double *out = f->wanted + head * f->shape.head_dim, most = -INFINITY, sum = 0;
    memset(out, 0, f->shape.head_dim * sizeof *out);
    for (uint64_t t = 0; t < f->shape.length; t++) {
        const bool is_used = is_visible(f, t) && is_listed(f, t / f->shape.block_tokens);
        f->weights[t] = is_used ? naive_score(f, head, t) : -INFINITY;
        most = f->weights[t] > most ? f->weights[t] : most;
    }
    for (uint64_t t = 0; t < f->shape.length; t++) {
        f->weights[t] = f->weights[t] == -INFINITY ? 0 : exp(f->weights[t] - most);
        sum += f->weights[t];
    }
    f->wanted_lse[head] = sum > 0 ? most + log(sum) : -INFINITY;
    for (uint64_t t = 0; t < f->shape.length; t++) {
        if (f->weights[t] == 0) continue;
        const double *value = f->values + t * f->elements + head / f->shape.ratio * f->shape.head_dim;
        for (uint32_t d = 0; d < f->shape.head_dim; d++) out[d] += f->weights[t] / sum * value[d];
    }
}

static void naive(struct fixture *f)
{
    for (uint64_t head = 0; head < (uint64_t)f->shape.kv_heads * f->shape.ratio; head++) naive_head(f, head);
}

static struct kvt_attention args_of(const struct fixture *f)
{
    return (struct kvt_attention){
        .dtype = f->shape.dtype,
        .query_heads = f->shape.kv_heads * f->shape.ratio,
        .kv_heads = f->shape.kv_heads,
        .head_dim = f->shape.head_dim,
        .block_tokens = f->shape.block_tokens,
        .scale = 1 / sqrtf((float)f->shape.head_dim),
        .keys = f->pool,
        .values = f->pool + f->shape.block_tokens * f->row_bytes,
        .key_stride = f->slot_bytes,
        .value_stride = f->slot_bytes,
        .count = f->list_count,
        .slots = f->list_slots,
        .numbers = f->shape.list == LIST_SELECTED ? f->list_blocks : NULL,
        .first = f->first,
        .step = f->step,
        .to = f->shape.length,
        .length = f->shape.length,
        .window = f->shape.window,
        .sinks = f->shape.sinks,
        .query = f->query,
        .out = f->out,
        .lse = f->lse,
    };
}

/* The largest error of any head. NaNs are larger than everything. */
static double error_of(const struct fixture *f)
{
    double worst = 0;
    for (uint64_t head = 0; head < (uint64_t)f->shape.kv_heads * f->shape.ratio; head++) {
        double most = 0, differs = 0;
        for (uint32_t d = 0; d < f->shape.head_dim; d++) {
            const uint64_t at = head * f->shape.head_dim + d;
            const double difference = fabs(f->out[at] - f->wanted[at]);
            if (!(difference <= differs)) differs = difference;
            most = fmax(most, fabs(f->wanted[at]));
        }
        const double error = most > 0 ? differs / most : differs;
        if (!(error <= worst)) worst = error;
        const bool is_nothing = f->wanted_lse[head] == -INFINITY;
        const double lse_error = is_nothing ? (f->lse[head] == -INFINITY ? 0 : 1)
                                            : fabs(f->lse[head] - f->wanted_lse[head]);
        if (!(lse_error <= worst)) worst = lse_error;
    }
    return worst;
}

static double worst_seen; /* over all that was checked, for whoever reads the log */

static void check_error(const struct fixture *f, const char *name, const char *how)
{
    const double error = error_of(f);
    worst_seen = fmax(worst_seen, error);
    if (error < ERROR_MOST) return;
    fail_msg("%s, %s: error %g: dtype %s, %u KV heads x %u, head_dim %u, %u tokens a block, length %llu, window %llu, "
             "sinks %llu, list %d",
             name, how, error, kvt_dtype_name(f->shape.dtype), f->shape.kv_heads, f->shape.ratio, f->shape.head_dim,
             f->shape.block_tokens, (unsigned long long)f->shape.length, (unsigned long long)f->shape.window,
             (unsigned long long)f->shape.sinks, (int)f->shape.list);
}

/* Attends [from, to) alone, and merges it into what is there. The list is that of all pieces or just the blocks needed. */
static void attend_piece(struct fixture *f, const struct kvt_attention_ops *ops, uint64_t from, uint64_t to)
{
    struct kvt_attention args = args_of(f);
    args.from = from;
    args.to = to;
    args.out = f->piece_out;
    args.lse = f->piece_lse;
    if (f->shape.list == LIST_ALL) { /* only the blocks of the piece are there */
        const uint64_t first = from / f->shape.block_tokens;
        args.first = first;
        args.slots += first;
        args.count = (uint32_t)((to + f->shape.block_tokens - 1) / f->shape.block_tokens - first);
    }
    ops->attend(&args);
    kvt_attention_merge(args.query_heads, args.head_dim, f->out, f->lse, f->piece_out, f->piece_lse);
}

/* In pieces between random cuts, in no order. */
static void attend_in_pieces(struct fixture *f, const struct kvt_attention_ops *ops, uint32_t cuts)
{
    uint64_t ends[32];
    uint32_t count = 0;
    struct kvt_attention nothing = args_of(f);
    nothing.count = 0;
    ops->attend(&nothing);
    for (uint64_t from = 0; from < f->shape.length; from = ends[count++]) {
        const uint64_t left = f->shape.length - from;
        ends[count] = count == cuts ? f->shape.length : from + 1 + kvt_rng_below(&f->rng, left);
    }
    for (uint32_t i = count; i > 0; i--) { /* the even ones from the end, then the odd ones */
        const uint32_t p = i - 1;
        if (p % 2 == 0) attend_piece(f, ops, p > 0 ? ends[p - 1] : 0, ends[p]);
    }
    for (uint32_t p = 1; p < count; p += 2) attend_piece(f, ops, ends[p - 1], ends[p]);
}

static void check_shape(const struct shape *shape, uint64_t seed)
{
    struct fixture f;
    open_fixture(&f, shape, seed);
    naive(&f);
    for (uint32_t i = 0; kvt_attention_ops_at(i); i++) {
        const struct kvt_attention_ops *ops = kvt_attention_ops_at(i);
        if (!ops->is_supported()) continue;
        const struct kvt_attention args = args_of(&f);
        ops->attend(&args);
        check_error(&f, ops->name, "whole");
        const uint32_t cuts[] = { 1, 5, 31 };
        for (size_t c = 0; c < KVT_ARRAY_COUNT(cuts); c++) {
            attend_in_pieces(&f, ops, cuts[c]);
            check_error(&f, ops->name, "in pieces");
        }
    }
    close_fixture(&f);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void every_ratio_head_dim_and_length_is_within_a_thousandth(void **state)
{
    (void)state;
    static const uint32_t ratios[] = { 1, 4, 8 }, head_dims[] = { 64, 128, 256 };
    static const uint64_t lengths[] = { 1, 2, 15, 16, 17, 31, 63, 100, 777, 8192 };
    uint64_t seed = 1;
    for (size_t l = 0; l < KVT_ARRAY_COUNT(lengths); l++) {
        for (size_t r = 0; r < 3; r++) {
            for (size_t d = 0; d < 3; d++) {
                for (uint32_t type = 0; type < 2; type++) {
                    const struct shape shape = { .dtype = type ? KVT_DTYPE_FP16 : KVT_DTYPE_BF16,
                                                 .kv_heads = lengths[l] > 1000 ? 1 : 3,
                                                 .ratio = ratios[r],
                                                 .head_dim = head_dims[d],
                                                 .block_tokens = 16,
                                                 .length = lengths[l] };
                    check_shape(&shape, seed++);
                }
            }
        }
    }
}

static void every_list_and_every_mask_attends_to_its_tokens_and_to_no_others(void **state)
{
    (void)state;
    static const uint64_t windows[] = { 0, 1, 16, 50, 499, 600, 5000 }, sinks[] = { 0, 1, 16, 21, 700 };
    uint64_t seed = 1000;
    for (uint32_t list = 0; list < LISTS; list++) {
        for (size_t w = 0; w < KVT_ARRAY_COUNT(windows); w++) {
            for (size_t s = 0; s < KVT_ARRAY_COUNT(sinks); s++) {
                const struct shape shape = { .dtype = seed % 2 ? KVT_DTYPE_FP16 : KVT_DTYPE_BF16,
                                             .kv_heads = 2,
                                             .ratio = 4,
                                             .head_dim = 64,
                                             .block_tokens = (uint32_t)(1 + seed % 40),
                                             .length = 500,
                                             .window = windows[w],
                                             .sinks = sinks[s],
                                             .list = (enum list)list };
                check_shape(&shape, seed++);
            }
        }
    }
}

static void odd_shapes_are_within_a_thousandth_too(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        { KVT_DTYPE_FP32, 2, 2, 64, 16, 300, 0, 0, LIST_ALL },
        { KVT_DTYPE_BF16, 1, 3, 80, 16, 300, 0, 0, LIST_SELECTED },
        { KVT_DTYPE_FP16, 1, 13, 72, 16, 300, 100, 4, LIST_ALL }, /* 72 is no whole number of 16 */
        { KVT_DTYPE_BF16, 1, 5, 7, 3, 100, 0, 0, LIST_STRIDED },
        { KVT_DTYPE_BF16, 5, 1, 576, 64, 129, 0, 0, LIST_ALL },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(shapes); i++) check_shape(&shapes[i], 2000 + i);
}

/* Goal: what saw nothing merges as nothing, on either side. */
static void a_piece_that_sees_nothing_changes_nothing(void **state)
{
    (void)state;
    const float out_before[4] = { 1, 2, 3, 4 }, nothing[4] = { 0, 0, 0, 0 };
    const float lse_before[2] = { 0.5f, -70 }, none[2] = { -INFINITY, -INFINITY };
    float out[4], lse[2];
    memcpy(out, out_before, sizeof out);
    memcpy(lse, lse_before, sizeof lse);
    kvt_attention_merge(2, 2, out, lse, nothing, none);
    assert_memory_equal(out, out_before, sizeof out);
    assert_memory_equal(lse, lse_before, sizeof lse);
    memcpy(out, nothing, sizeof out);
    memcpy(lse, none, sizeof lse);
    kvt_attention_merge(2, 2, out, lse, nothing, none);
    assert_true(lse[0] == -INFINITY && out[0] == 0);
    kvt_attention_merge(2, 2, out, lse, out_before, lse_before);
    assert_memory_equal(out, out_before, sizeof out);
    assert_memory_equal(lse, lse_before, sizeof lse);
}

/* Goal: scores that exp() of a float would not survive come out right, in one piece and over a merge. */
static void scores_far_from_zero_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    enum { TOKENS = 3, DIM = 16 };
    float keys[TOKENS * DIM] = { 0 }, values[TOKENS * DIM];
    const float scores[TOKENS] = { -500, 800, 799 };
    for (uint32_t t = 0; t < TOKENS; t++) {
        keys[t * DIM] = scores[t];
        for (uint32_t d = 0; d < DIM; d++) values[t * DIM + d] = (float)(t + 1);
    }
    const float query[DIM] = { 1 };
    const uint32_t slots[TOKENS] = { 0, 1, 2 };
    const double second = 1 / (1 + exp(-1)), wanted = 2 * second + 3 * (1 - second);
    for (uint32_t i = 0; kvt_attention_ops_at(i); i++) {
        if (!kvt_attention_ops_at(i)->is_supported()) continue;
        float out[DIM], lse[1], piece_out[DIM], piece_lse[1];
        struct kvt_attention args = { .dtype = KVT_DTYPE_FP32,
                                      .query_heads = 1,
                                      .kv_heads = 1,
                                      .head_dim = DIM,
                                      .block_tokens = 1,
                                      .scale = 1,
                                      .keys = (const uint8_t *)keys,
                                      .values = (const uint8_t *)values,
                                      .key_stride = DIM * sizeof(float),
                                      .value_stride = DIM * sizeof(float),
                                      .count = TOKENS,
                                      .slots = slots,
                                      .step = 1,
                                      .to = TOKENS,
                                      .length = TOKENS,
                                      .query = query,
                                      .out = out,
                                      .lse = lse };
        kvt_attention_ops_at(i)->attend(&args);
        assert_float_equal(out[DIM - 1], wanted, 1e-5);
        assert_float_equal(lse[0], 800 + log(1 + exp(-1)), 1e-3);
        args.to = 2;
        kvt_attention_ops_at(i)->attend(&args);
        args.from = 2;
        args.to = 3;
        args.out = piece_out;
        args.lse = piece_lse;
        kvt_attention_ops_at(i)->attend(&args);
        kvt_attention_merge(1, DIM, out, lse, piece_out, piece_lse);
        assert_float_equal(out[0], wanted, 1e-5);
    }
}

/* Goal: a dropped block (a hole in a window group's table) is passed over. */
static void an_entry_without_a_slot_is_passed_over(void **state)
{
    (void)state;
    const struct shape shape = { KVT_DTYPE_BF16, 2, 4, 64, 16, 160, 0, 0, LIST_ALL };
    struct fixture f;
    open_fixture(&f, &shape, 77);
    f.list_slots[3] = KVT_ATTENTION_NO_SLOT;
    f.list_blocks[3] = UINT32_MAX; /* the naive one does not see it either */
    naive(&f);
    for (uint32_t i = 0; kvt_attention_ops_at(i); i++) {
        if (!kvt_attention_ops_at(i)->is_supported()) continue;
        const struct kvt_attention args = args_of(&f);
        kvt_attention_ops_at(i)->attend(&args);
        check_error(&f, kvt_attention_ops_at(i)->name, "with a hole");
    }
    close_fixture(&f);
}

static void impossible_arguments_are_told(void **state)
{
    (void)state;
    const uint32_t slot = 0;
    const struct kvt_attention good = { .dtype = KVT_DTYPE_BF16,
                                        .query_heads = 8,
                                        .kv_heads = 2,
                                        .head_dim = 64,
                                        .block_tokens = 16,
                                        .count = 1,
                                        .slots = &slot,
                                        .to = 5,
                                        .length = 5 };
    assert_true(kvt_attention_is_valid(&good));
    struct kvt_attention bad = good;
    bad.query_heads = 7;
    assert_false(kvt_attention_is_valid(&bad));
    bad = good;
    bad.to = 6;
    assert_false(kvt_attention_is_valid(&bad));
    bad = good;
    bad.dtype = KVT_DTYPE_FP8;
    assert_false(kvt_attention_is_valid(&bad));
    bad = good;
    bad.slots = NULL;
    assert_false(kvt_attention_is_valid(&bad));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_ratio_head_dim_and_length_is_within_a_thousandth),
        cmocka_unit_test(every_list_and_every_mask_attends_to_its_tokens_and_to_no_others),
        cmocka_unit_test(odd_shapes_are_within_a_thousandth_too),
        cmocka_unit_test(a_piece_that_sees_nothing_changes_nothing),
        cmocka_unit_test(scores_far_from_zero_neither_overflow_nor_vanish),
        cmocka_unit_test(an_entry_without_a_slot_is_passed_over),
        cmocka_unit_test(impossible_arguments_are_told),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("largest error: %.3g\n", worst_seen);
    return failed;
}
