/*
 * Attention over lists of blocks in no order, with masks and pieces. Float arithmetic: a head's values agree with the
 * reference's to 1e-4 of the largest of them, its lse to 1e-4. Which token is read is no matter of rounding: another one's
 * values differ by far more.
 */
#include "kernels/attention.h"

#include <math.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "tests/kernels/checkkern.h"
#include "tests/kernels/launches.h"

#define TOLERANCE 1e-4

enum { BLOCKS_MAX = 12, SPLITS_MAX = 3, HEADS_MAX = 12, DIM_MAX = 128, TOKENS_MAX = 20 };

static uint32_t on_cpu(void)
{
    uint32_t count = 0;
    while (kvt_attention_ops_at(count)) count++;
    return count;
}

static const char *impl(uint32_t i)
{
    if (i < on_cpu()) return kvt_attention_ops_at(i)->name;
    const struct kern_launches *side = kern_launches_from(i, on_cpu());
    return side ? side->name : NULL;
}

static bool is_here(uint32_t i)
{
    return i < on_cpu() ? kvt_attention_ops_at(i)->is_supported() : kern_launches_from(i, on_cpu())->is_here();
}

/* Numbers of no great spread: signs and mantissas from the bytes, exponents near that of one. */
static void fill_numbers(uint8_t *bytes, size_t size, enum kvt_dtype dtype, struct kvt_rng *rng)
{
    kern_fill_random(bytes, size, rng);
    for (size_t at = 0; at < size; at += dtype == KVT_DTYPE_FP32 ? 4 : 2) {
        uint16_t *high = (uint16_t *)(void *)(bytes + at + (dtype == KVT_DTYPE_FP32 ? 2 : 0));
        const uint16_t drawn = *high;
        if (dtype == KVT_DTYPE_FP16) *high = (uint16_t)((drawn & 0x83ff) | (12 + (drawn >> 10 & 3)) << 10);
        else *high = (uint16_t)((drawn & 0x807f) | (124 + (drawn >> 7 & 3)) << 7);
    }
}

/* A shape, a list and a mask, over memory that is there already. */
static struct kvt_attention draw_case(struct kvt_rng *rng)
{
    static const uint32_t dims[] = { 16, 64, 72, 96, DIM_MAX };
    static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32 };
    struct kvt_attention args = { .dtype = dtypes[kvt_rng_below(rng, 3)],
                                  .kv_heads = 1 + (uint32_t)kvt_rng_below(rng, 3),
                                  .head_dim = dims[kvt_rng_below(rng, KVT_ARRAY_COUNT(dims))],
                                  .block_tokens = 1 + (uint32_t)kvt_rng_below(rng, TOKENS_MAX),
                                  .count = (uint32_t)kvt_rng_below(rng, BLOCKS_MAX + 1) };
    args.query_heads = args.kv_heads * (1 + (uint32_t)kvt_rng_below(rng, HEADS_MAX / args.kv_heads));
    args.scale = 1 / sqrtf((float)args.head_dim);
    args.first = kvt_rng_below(rng, 3);
    args.step = 1 + kvt_rng_below(rng, 2);
    args.length = (args.first + args.step * BLOCKS_MAX) * args.block_tokens - kvt_rng_below(rng, args.block_tokens);
    args.to = args.length - kvt_rng_below(rng, 2) * kvt_rng_below(rng, args.length);
    args.from = kvt_rng_below(rng, 2) * kvt_rng_below(rng, args.to + 1);
    args.window = kvt_rng_below(rng, 2) * kvt_rng_below(rng, args.length + 2);
    args.sinks = kvt_rng_below(rng, 2) * kvt_rng_below(rng, 40);
    return args;
}

static bool compare(struct kern_run *run, const struct kvt_attention *args, const float *out, const float *lse)
{
    for (uint32_t head = 0; head < args->query_heads; head++) {
        const float *wanted = args->out + (size_t)head * args->head_dim, *got = out + (size_t)head * args->head_dim;
        double most = 1e-20, differs = 0;
        for (uint32_t d = 0; d < args->head_dim; d++) {
            const double difference = fabs((double)got[d] - (double)wanted[d]);
            if (!(difference <= differs)) differs = difference;
            most = fmax(most, fabs((double)wanted[d]));
        }
        const bool is_nothing = args->lse[head] == -INFINITY;
        const double lse_differs = is_nothing ? (lse[head] == -INFINITY ? 0 : 1)
                                              : fabs((double)lse[head] - (double)args->lse[head]);
        if (!(differs <= TOLERANCE * most) || !(lse_differs <= TOLERANCE))
            return kern_differs(run, "head %u of %u, head_dim %u, dtype %s, %u blocks of %u: by %g of %g, lse by %g",
                                head, args->query_heads, args->head_dim, kvt_dtype_name(args->dtype), args->count,
                                args->block_tokens, differs, most, lse_differs);
    }
    return true;
}

static bool attend(const struct kern_launches *side, uint32_t i, const struct kvt_attention *args, uint32_t splits,
                   float *scratch)
{
    if (side) return side->attention(args, splits, scratch, NULL) == KVT_OK && side->finish();
    kvt_attention_ops_at(i)->attend(args);
    return true;
}

/* Memory of one case: the pool, the tables, the query; then results and scratch, between canaries. */
struct memory {
    struct kern_buffer pool, tables, query, out, scratch;
};

static bool check_case(uint32_t i, struct kern_run *run, struct kvt_rng *rng, struct memory *m, float *wanted)
{
    const struct kern_launches *side = kern_launches_from(i, on_cpu());
    struct kvt_attention args = draw_case(rng);
    const size_t row = (size_t)args.kv_heads * args.head_dim * kvt_dtype_bytes(args.dtype);
    const size_t plane = args.block_tokens * row;
    uint32_t *slots = (uint32_t *)(void *)m->tables.bytes, *numbers = slots + BLOCKS_MAX;
    fill_numbers(m->pool.bytes, 2 * plane * BLOCKS_MAX, args.dtype, rng);
    fill_numbers(m->query.bytes, m->query.size, KVT_DTYPE_FP32, rng);
    for (uint32_t b = 0; b < BLOCKS_MAX; b++) {
        slots[b] = kvt_rng_below(rng, 10) == 0 ? KVT_ATTENTION_NO_SLOT : (uint32_t)kvt_rng_below(rng, BLOCKS_MAX);
        numbers[b] = (uint32_t)kvt_rng_below(rng, BLOCKS_MAX);
    }
    args.keys = m->pool.bytes;
    args.values = m->pool.bytes + plane;
    args.key_stride = args.value_stride = 2 * plane;
    args.slots = slots;
    args.numbers = kvt_rng_below(rng, 3) == 0 ? numbers : NULL;
    args.query = (const float *)(void *)m->query.bytes;
    args.out = (float *)(void *)m->out.bytes;
    args.lse = args.out + HEADS_MAX * DIM_MAX;
    const uint32_t splits = 1 + (uint32_t)kvt_rng_below(rng, SPLITS_MAX);
    if (!attend(side, i, &args, splits, (float *)(void *)m->scratch.bytes))
        return kern_differs(run, "the launch failed");
    struct kvt_attention reference = args;
    reference.out = wanted;
    reference.lse = wanted + HEADS_MAX * DIM_MAX;
    kvt_attention_ops_ref.attend(&reference);
    run->compared += args.query_heads;
    return compare(run, &reference, args.out, args.lse);
}

static bool check(uint32_t i, struct kern_run *run)
{
    const struct kern_launches *side = kern_launches_from(i, on_cpu());
    static float wanted[HEADS_MAX * DIM_MAX + HEADS_MAX];
    struct kvt_rng rng = { run->seed };
    struct memory m;
    kern_buffer_init(&m.pool, side, (size_t)2 * TOKENS_MAX * 3 * DIM_MAX * 4 * BLOCKS_MAX, 0);
    kern_buffer_init(&m.tables, side, 2 * BLOCKS_MAX * sizeof(uint32_t), 0);
    kern_buffer_init(&m.query, side, HEADS_MAX * DIM_MAX * sizeof(float), 0);
    kern_buffer_init(&m.out, side, (HEADS_MAX * DIM_MAX + HEADS_MAX) * sizeof(float), 0);
    kern_buffer_init(&m.scratch, side, SPLITS_MAX * HEADS_MAX * (DIM_MAX + 1) * sizeof(float), 0);
    struct kern_buffer *const buffers[] = { &m.pool, &m.tables, &m.query, &m.out, &m.scratch };
    bool is_ok = true;
    for (uint32_t round = 0; is_ok && round < 20; round++) is_ok = check_case(i, run, &rng, &m, wanted);
    for (size_t b = 0; b < KVT_ARRAY_COUNT(buffers); b++) {
        if (is_ok && !kern_buffer_is_intact(buffers[b])) is_ok = kern_differs(run, "a canary of buffer %zu", b);
        kern_buffer_done(buffers[b]);
    }
    return is_ok;
}

const struct kern_kernel kern_attention = {
    .name = "attention",
    .what = "decode attention over lists of blocks, in pieces",
    .impl = impl,
    .is_here = is_here,
    .check = check,
};
