/*
 * Method: 256 MiB of real pages (tools/run/pages.h, repeated) in blocks of one 64 KiB chunk. In each round and for each
 * implementation a plain copy into another 256 MiB, then pack and unpack, with base tables; thread CPU time, so that
 * neighbours on the machine disturb less. A speed is the median of the rounds, its ratio the median of the rounds'
 * ratios to the copy beside it. Then the same for bf16 noise, which pack must refuse. A compression ratio has no ceiling;
 * beside it stands the order-0 entropy of the sample that was measured (bench_codec_samples.h).
 */
#include "tools/cmd_bench_codec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/rank_planes.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tiers/codec.h"
#include "tools/bench_codec_samples.h"
#include "tools/run/pages.h"

enum {
    ROUNDS = 11,
    SLOW_BLOCKS = 128, /* what the reference gets: it is 20 times slower, and its speed does not depend on memory */
    BLOCK_BYTES = 64 * 1024,
    IMPLEMENTATIONS_MAX = 4,
    CASES_MAX = 96
};
#define SET_BYTES (256 * KVT_MIB)

struct bench_case {
    char name[48];
    double value;
    const char *unit;
    double ceiling, ratio; /* 0: it is a compression ratio, which has none */
    double order0;         /* of a compression ratio */
};

/* One type: its blocks, and where they go. */
struct bench {
    enum kvt_dtype dtype;
    struct kvt_codec *codec;
    uint8_t *source, *target, *packed, *scratch;
    uint32_t block_count, tokens;
    uint32_t lengths[SET_BYTES / BLOCK_BYTES];
};

/* Seconds a block. */
struct times {
    double copy[IMPLEMENTATIONS_MAX][ROUNDS], pack[IMPLEMENTATIONS_MAX][ROUNDS], unpack[IMPLEMENTATIONS_MAX][ROUNDS];
    double refuse[IMPLEMENTATIONS_MAX][ROUNDS];
};

static double thread_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double values[ROUNDS])
{
    qsort(values, ROUNDS, sizeof values[0], compare_doubles);
    return values[ROUNDS / 2];
}

static struct kvt_chunk_view view_of(uint8_t *memory, uint32_t block)
{
    uint8_t *first = memory + (size_t)block * BLOCK_BYTES;
    return (struct kvt_chunk_view){ { first, first + BLOCK_BYTES / 2 } };
}

/* ---- The passes over the set ----------------------------------------------------------------------------------- */

static double copy_pass(const struct bench *b)
{
    const double start = thread_seconds();
    for (uint32_t i = 0; i < b->block_count; i++)
        memcpy(b->target + (size_t)i * BLOCK_BYTES, b->source + (size_t)i * BLOCK_BYTES, BLOCK_BYTES);
    return (thread_seconds() - start) / b->block_count;
}

/* Packs the first `count` blocks back to back; a block that stays raw is copied, as a stash would. Seconds a block. */
static double pack_pass(struct bench *b, uint32_t count)
{
    const double start = thread_seconds();
    uint8_t *at = b->packed;
    for (uint32_t i = 0; i < count; i++) {
        const struct kvt_chunk_view view = view_of(b->source, i);
        b->lengths[i] = kvt_codec_pack(b->codec, 0, &view, b->tokens, at, BLOCK_BYTES, b->scratch);
        if (b->lengths[i] == 0) memcpy(at, view.plane[0], BLOCK_BYTES);
        at += b->lengths[i] ? b->lengths[i] : BLOCK_BYTES;
    }
    return (thread_seconds() - start) / count;
}

/* Seconds a block; negative: one of them is damaged. */
static double unpack_pass(struct bench *b, uint32_t count)
{
    const double start = thread_seconds();
    const uint8_t *at = b->packed;
    for (uint32_t i = 0; i < count; i++) {
        const struct kvt_chunk_view view = view_of(b->target, i);
        if (b->lengths[i] == 0) memcpy(view.plane[0], at, BLOCK_BYTES);
        else if (kvt_codec_unpack(b->codec, 0, at, b->lengths[i], b->tokens, &view, b->scratch) != KVT_OK) return -1;
        at += b->lengths[i] ? b->lengths[i] : BLOCK_BYTES;
    }
    return (thread_seconds() - start) / count;
}

static bool is_measured(const struct kvt_rank_ops *ops) { return !ops->is_for_checks && ops->is_supported(); }

static bool run_rounds(struct bench *b, struct times *times)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t k = 0; kvt_rank_ops_at(k); k++) {
            const struct kvt_rank_ops *ops = kvt_rank_ops_at(k);
            if (!is_measured(ops)) continue;
            const uint32_t count = k == 0 ? SLOW_BLOCKS : b->block_count;
            kvt_codec_set_kernels(b->codec, ops);
            times->copy[k][round] = copy_pass(b);
            times->pack[k][round] = pack_pass(b, count);
            memset(b->target, 0, (size_t)count * BLOCK_BYTES);
            times->unpack[k][round] = unpack_pass(b, count);
            if (times->unpack[k][round] < 0 || memcmp(b->source, b->target, (size_t)count * BLOCK_BYTES) != 0) {
                (void)fprintf(stderr, "kvtier: bench codec: %s by %s does not come back exact\n",
                              kvt_dtype_name(b->dtype), ops->name);
                return false;
            }
        }
    }
    return true;
}

/* Noise in the place of the pages; what pack does with it. */
static bool run_noise(struct bench *b, struct times *times)
{
    struct kvt_rng rng = { .state = 1 };
    for (size_t at = 0; at < SET_BYTES; at += 8) kvt_store_u64(b->source + at, kvt_rng_next(&rng));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t k = 0; kvt_rank_ops_at(k); k++) {
            if (!is_measured(kvt_rank_ops_at(k))) continue;
            kvt_codec_set_kernels(b->codec, kvt_rank_ops_at(k));
            times->copy[k][round] = copy_pass(b);
            const double start = thread_seconds();
            for (uint32_t i = 0; i < b->block_count; i++) {
                const struct kvt_chunk_view view = view_of(b->source, i);
                if (kvt_codec_pack(b->codec, 0, &view, b->tokens, b->packed, BLOCK_BYTES, b->scratch) != 0)
                    return false;
            }
            times->refuse[k][round] = (thread_seconds() - start) / b->block_count;
        }
    }
    return true;
}

/* ---- Set-up ---------------------------------------------------------------------------------------------------- */

static void bench_done(struct bench *b)
{
    kvt_codec_destroy(&b->codec);
    if (b->source) kvt_table_unmap(b->source, SET_BYTES);
    if (b->target) kvt_table_unmap(b->target, SET_BYTES);
    if (b->packed) kvt_table_unmap(b->packed, SET_BYTES);
    if (b->scratch) kvt_table_unmap(b->scratch, KVT_MIB);
}

/* A page block holds 16 tokens of K, then of V; a bench block of 64 KiB takes the K and the V of as many as fit. */
static void fill_source(struct bench *b, const uint8_t *pages, size_t page_bytes)
{
    const size_t half = (size_t)KVT_PAGES_TOKENS * KVT_PAGES_CHANNELS * kvt_dtype_bytes(b->dtype);
    const size_t page_count = page_bytes / (2 * half);
    size_t page = 0;
    for (uint32_t i = 0; i < b->block_count; i++) {
        const struct kvt_chunk_view view = view_of(b->source, i);
        for (size_t at = 0; at < BLOCK_BYTES / 2; at += half, page++)
            for (uint32_t p = 0; p < 2; p++)
                memcpy(view.plane[p] + at, pages + (2 * (page % page_count) + p) * half, half);
    }
    memset(b->target, 0, SET_BYTES); /* touch every page once, before anything is timed */
    memset(b->packed, 0, SET_BYTES);
}

static bool bench_init(struct bench *b, enum kvt_dtype dtype)
{
    b->dtype = dtype;
    b->block_count = SET_BYTES / BLOCK_BYTES;
    b->tokens = BLOCK_BYTES / (2 * KVT_PAGES_CHANNELS * kvt_dtype_bytes(dtype));
    const struct kvt_model_shape shape = {
        .block_tokens = b->tokens,
        .group_count = 1,
        .groups = { { .dtype = dtype, .layers = 1, .kv_heads = 1, .head_dim = KVT_PAGES_CHANNELS } }
    };
    if (kvt_codec_create(&shape, &b->codec) != KVT_OK || kvt_codec_learn(b->codec, true) != KVT_OK) return false;
    b->source = kvt_table_map(SET_BYTES);
    b->target = kvt_table_map(SET_BYTES);
    b->packed = kvt_table_map(SET_BYTES);
    b->scratch = kvt_table_map(KVT_MIB);
    if (!b->source || !b->target || !b->packed || !b->scratch || kvt_codec_scratch_bytes(b->codec) > KVT_MIB)
        return false;
    size_t page_bytes;
    const uint8_t *pages = kvt_pages(dtype, &page_bytes);
    fill_source(b, pages, page_bytes);
    return true;
}

/* ---- The cases and their report -------------------------------------------------------------------------------- */

static void add_speed(struct bench_case *cases, uint32_t *count, const struct bench *b, const char *what,
                      const char *by, double *seconds, const double *copy_seconds)
{
    double ratios[ROUNDS], copies[ROUNDS];
    for (uint32_t i = 0; i < ROUNDS; i++) ratios[i] = copy_seconds[i] / seconds[i];
    memcpy(copies, copy_seconds, sizeof copies);
    struct bench_case *c = &cases[(*count)++];
    *c = (struct bench_case){ .unit = "GB/s" };
    (void)snprintf(c->name, sizeof c->name, "%s %s %s", kvt_dtype_name(b->dtype), what, by);
    c->value = BLOCK_BYTES / median(seconds) * 1e-9;
    c->ceiling = BLOCK_BYTES / median(copies) * 1e-9;
    c->ratio = median(ratios);
}

static void add_speeds(struct bench_case *cases, uint32_t *count, const struct bench *b, struct times *times)
{
    for (uint32_t k = 0; kvt_rank_ops_at(k); k++) {
        if (!is_measured(kvt_rank_ops_at(k))) continue;
        add_speed(cases, count, b, "pack", kvt_rank_ops_at(k)->name, times->pack[k], times->copy[k]);
        add_speed(cases, count, b, "unpack", kvt_rank_ops_at(k)->name, times->unpack[k], times->copy[k]);
    }
}

/* Measures one type; appends its cases. */
static bool bench_dtype(enum kvt_dtype dtype, struct bench_case *cases, uint32_t *count)
{
    struct bench *b = kvt_alloc(1, sizeof *b);
    struct times *times = kvt_alloc(1, sizeof *times);
    bool is_ok = false;
    if (!b || !times || !bench_init(b, dtype)) {
        (void)fprintf(stderr, "kvtier: bench codec: memory was refused: it needs 900 MiB\n");
    } else if (run_rounds(b, times)) {
        add_speeds(cases, count, b, times);
        is_ok = dtype != KVT_DTYPE_BF16 || run_noise(b, times);
        for (uint32_t k = 0; is_ok && dtype == KVT_DTYPE_BF16 && kvt_rank_ops_at(k); k++)
            if (is_measured(kvt_rank_ops_at(k)))
                add_speed(cases, count, b, "noise refused", kvt_rank_ops_at(k)->name, times->refuse[k], times->copy[k]);
    }
    if (b) bench_done(b);
    kvt_free(times);
    kvt_free(b);
    return is_ok;
}

static void add_ratio(struct bench_case *cases, uint32_t *count, const struct kvt_sample_ratios *sample, const char *by,
                      double value)
{
    if (value == 0) return;
    struct bench_case *c = &cases[(*count)++];
    *c = (struct bench_case){ .value = value, .unit = "x", .order0 = sample->order0 };
    (void)snprintf(c->name, sizeof c->name, "%.23s %.23s", sample->name, by);
}

static void add_ratios(struct bench_case *cases, uint32_t *count)
{
    struct kvt_sample_ratios ratios[KVT_SAMPLE_RATIOS_MAX];
    const uint32_t n = kvt_bench_sample_ratios(ratios);
    for (uint32_t i = 0; i < n; i++) {
        const struct kvt_sample_ratios *r = &ratios[i];
        add_ratio(cases, count, r, "with tables", r->tables);
        add_ratio(cases, count, r, "without tables", r->plain);
        add_ratio(cases, count, r, "zstd-1", r->zstd);
        add_ratio(cases, count, r, "bitshuffle + LZ4", r->shuffled_lz4);
        add_ratio(cases, count, r, "LZ4", r->lz4);
    }
}

static void print_table(const struct bench_case *cases, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_case *c = &cases[i];
        const bool is_first = i == 0 || (cases[i - 1].order0 > 0) != (c->order0 > 0);
        if (c->order0 > 0) {
            if (is_first) (void)printf("\n%-40s %10s %-6s %10s\n", "case", "value", "unit", "order-0");
            (void)printf("%-40s %10.3f %-6s %10.3f\n", c->name, c->value, c->unit, c->order0);
        } else {
            if (is_first) (void)printf("%-40s %10s %-6s %10s %8s\n", "case", "value", "unit", "ceiling", "ratio");
            (void)printf("%-40s %10.3f %-6s %10.3f %8.3f\n", c->name, c->value, c->unit, c->ceiling, c->ratio);
        }
    }
    (void)printf("order-0: the sample coded at the entropy of each chunk's exponents; no ceiling for what sees more "
                 "than that\n");
}

static void print_json(const struct bench_case *cases, uint32_t count)
{
    (void)printf("{\"cases\":[");
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_case *c = &cases[i];
        (void)printf("%s{\"name\":\"codec %s\",\"value\":%.4f,\"unit\":\"%s\",", i ? "," : "", c->name, c->value,
                     c->unit);
        if (c->order0 > 0) (void)printf("\"order0\":%.4f}", c->order0);
        else (void)printf("\"ceiling\":%.4f,\"ratio\":%.4f}", c->ceiling, c->ratio);
    }
    (void)printf("]}\n");
}

int kvt_bench_codec(bool is_json)
{
    static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };
    struct bench_case cases[CASES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(dtypes); i++)
        if (!bench_dtype(dtypes[i], cases, &count)) return 1;
    add_ratios(cases, &count);
    if (is_json) print_json(cases, count);
    else print_table(cases, count);
    return 0;
}
