/*
 * Every implementation of rank_planes against the reference: the same sample, the same bytes, the same verdict on damaged
 * streams, nothing outside the buffers. Shapes at and around a group of 64, odd tails, channel counts that divide
 * nothing; fills from noise to constants.
 */
#include <string.h>

#include "kernels/rank_planes.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/kernels/checkkern.h"
#include "tests/unit/rank_cases.h"

static const uint32_t channel_counts[] = { 1, 3, 31, 63, 64, 65, 80, 96, 100, 127, 128, 129, 320, 1024 };
static const uint32_t element_counts[] = { 1, 2, 63, 64, 65, 127, 128, 129, 1000, 4096, 8191 };
static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };

struct run {
    const struct kvt_rank_ops *ops;
    struct kvt_rank_shape shape;
    enum rank_fill fill;
    bool is_based;
    uint64_t seed;
    struct kern_run *of;
};

static bool differs(const struct run *run, const char *what, size_t index)
{
    return kern_differs(
        run->of, "%s at %zu; %s, %u planes, %u channels, %u elements, fill %s, %s, seed of the case %llu", what, index,
        kvt_dtype_name(run->shape.dtype), run->shape.plane_count, run->shape.channels, run->shape.elements,
        rank_fill_name(run->fill), run->is_based ? "bases" : "no bases", (unsigned long long)run->seed);
}

static bool same_bytes(const struct run *run, const char *what, const uint8_t *a, const uint8_t *b, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (a[i] != b[i]) return differs(run, what, i);
    return true;
}

static bool same_packed(const struct run *run, const struct kvt_rank_pack *a, const struct kvt_rank_pack *b)
{
    if (memcmp(&a->table, &b->table, sizeof a->table) != 0) return differs(run, "the sample", 0);
    if (a->second_count != b->second_count) return differs(run, "second count", a->second_count);
    if (a->third_count != b->third_count) return differs(run, "third count", a->third_count);
    if (a->escape_count != b->escape_count) return differs(run, "escape count", a->escape_count);
    for (uint32_t k = 0; k < 2; k++) {
        if (!same_bytes(run, "second", a->second[k], b->second[k], (a->second_count + 7) / 8)) return false;
        if (!same_bytes(run, "third", a->third[k], b->third[k], (a->third_count + 7) / 8)) return false;
    }
    return same_bytes(run, "rest", a->rest, b->rest, kvt_rank_rest_bytes(&run->shape))
        && same_bytes(run, "first", a->first, b->first, kvt_rank_first_bytes(&run->shape))
        && same_bytes(run, "escapes", a->escapes, b->escapes, a->escape_count);
}

/* The same damage for both; the same verdict, and the same bytes when it is a good one. */
static bool same_unpacked(const struct run *run, struct rank_case *a, struct rank_case *b,
                          const struct kvt_rank_unpack *a_args, const struct kvt_rank_unpack *b_args)
{
    const bool a_verdict = rank_case_unpack(&kvt_rank_ops_ref, *a_args),
               b_verdict = rank_case_unpack(run->ops, *b_args);
    if (a_verdict != b_verdict) return differs(run, "the verdict", a_verdict);
    for (uint32_t p = 0; a_verdict && p < run->shape.plane_count; p++)
        if (!same_bytes(run, "unpacked plane", a->target[p].bytes, b->target[p].bytes, a->target[p].size)) return false;
    return true;
}

static void damage(struct rank_case *a, struct rank_case *b, struct kvt_rng *rng)
{
    struct rank_buffer *const of_a[] = { &a->first, &a->second[0], &a->third[1], &a->rest };
    struct rank_buffer *const of_b[] = { &b->first, &b->second[0], &b->third[1], &b->rest };
    const uint32_t which = (uint32_t)kvt_rng_below(rng, KVT_ARRAY_COUNT(of_a));
    if (of_a[which]->size <= KVT_RANK_SLACK) return;
    const size_t at = kvt_rng_below(rng, of_a[which]->size - (which == 1 || which == 2 ? KVT_RANK_SLACK : 0));
    const uint8_t bits = (uint8_t)(1u << kvt_rng_below(rng, 8));
    of_a[which]->bytes[at] ^= bits;
    of_b[which]->bytes[at] ^= bits;
}

static bool check(const struct run *run)
{
    struct rank_case a, b;
    struct kvt_rng rng_a = { .state = run->seed }, rng_b = rng_a;
    rank_case_init(&a, run->shape, run->is_based, run->fill, &rng_a);
    rank_case_init(&b, run->shape, run->is_based, run->fill, &rng_b);
    const struct kvt_rank_pack a_packed = rank_case_pack(&a, &kvt_rank_ops_ref),
                               b_packed = rank_case_pack(&b, run->ops);
    const struct kvt_rank_unpack a_args = rank_case_unpack_args(&a, &a_packed),
                                 b_args = rank_case_unpack_args(&b, &b_packed);
    bool is_same = same_packed(run, &a_packed, &b_packed) && same_unpacked(run, &a, &b, &a_args, &b_args);
    for (uint32_t p = 0; is_same && p < run->shape.plane_count; p++)
        is_same = same_bytes(run, "what came back", a.source[p].bytes, b.target[p].bytes, b.target[p].size);
    for (uint32_t i = 0; is_same && i < 8; i++) {
        damage(&a, &b, &rng_a);
        is_same = same_unpacked(run, &a, &b, &a_args, &b_args);
    }
    if (!rank_case_is_intact(&a)) is_same = differs(run, "the reference's canary", 0);
    if (!rank_case_is_intact(&b)) is_same = differs(run, "a canary", 0);
    rank_case_done(&a);
    rank_case_done(&b);
    return is_same;
}

static const char *impl(uint32_t i)
{
    const struct kvt_rank_ops *ops = kvt_rank_ops_at(i);
    return ops ? ops->name : NULL;
}

static bool is_here(uint32_t i) { return kvt_rank_ops_at(i)->is_supported(); }

static bool check_all(uint32_t i, struct kern_run *of)
{
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
        for (uint32_t c = 0; c < KVT_ARRAY_COUNT(channel_counts); c++)
            for (uint32_t e = 0; e < KVT_ARRAY_COUNT(element_counts); e++)
                for (uint32_t f = 0; f < RANK_FILL_COUNT; f++, of->compared++) {
                    const struct run run = { .ops = kvt_rank_ops_at(i),
                                             .fill = (enum rank_fill)f,
                                             .is_based = (c + e + f) % 2,
                                             .seed = of->seed + of->compared,
                                             .of = of,
                                             .shape = { .dtype = dtypes[d],
                                                        .plane_count = 1 + (e + f) % 2,
                                                        .channels = channel_counts[c],
                                                        .elements = element_counts[e] } };
                    if (!check(&run)) return false;
                }
    return true;
}

/* ---- Speed: a chunk of 2 x 32768 elements of bf16, packed ------------------------------------------------------ */

struct bench {
    const struct kvt_rank_ops *ops;
    struct rank_case of;
};

static void *bench_open(uint32_t i, uint64_t *ret_bytes)
{
    struct bench *b = kvt_alloc(1, sizeof *b);
    if (!b) return NULL;
    const struct kvt_rank_shape shape = {
        .dtype = KVT_DTYPE_BF16, .plane_count = 2, .channels = 1024, .elements = 32768
    };
    struct kvt_rng rng = { 1 };
    b->ops = kvt_rank_ops_at(i);
    rank_case_init(&b->of, shape, false, RANK_FILL_KV, &rng);
    *ret_bytes = (uint64_t)2 * 2 * shape.elements;
    return b;
}

static void bench_pass(void *user)
{
    struct bench *b = user;
    (void)rank_case_pack(&b->of, b->ops);
}

static void bench_close(void *user)
{
    struct bench *b = user;
    rank_case_done(&b->of);
    kvt_free(b);
}

const struct kern_kernel kern_rank_planes = {
    .name = "rank_planes",
    .what = "exponents as ranks in bit planes: sample, pack, unpack",
    .impl = impl,
    .is_here = is_here,
    .check = check_all,
    .bench_open = bench_open,
    .bench_pass = bench_pass,
    .bench_close = bench_close,
};
