/*
 * Method: blocks of real pages (tools/run/pages.h), eight layers of 64 tokens of bf16, put raw and put packed, got raw
 *         and got packed and unpacked, by one caller with 32 of them in flight, so that the disk always has some. Once
 *         on a paced device, where the link is the bottleneck by design, and once on the disk as it is; the case of
 *         unpacking alone says which of the two it was there. GB/s are those of raw bytes delivered. One chunk of every
 *         delivered block is compared with what was put.
 */
#include "tools/bench/store_bench.h"

#include <string.h>
#include <time.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/codec.h"
#include "tools/run/pages.h"

enum {
    TOKENS = 64,
    LAYERS = KVT_PAGES_LAYERS,
    PLANE_BYTES = TOKENS * KVT_PAGES_CHANNELS * 2,
    CHUNK_BYTES = 2 * PLANE_BYTES,
    BLOCK_BYTES = LAYERS * CHUNK_BYTES,
    SOURCES = 16,
    DEPTH = 32,
    ROUNDS = 5
};
enum { FORM_RAW, FORM_PACKED };
#define LINK_BYTES_PER_S 400000000u

struct codec_bench {
    struct kvt_store_bench *bench;
    struct kvt_store *store;
    struct kvt_codec *codec;
    uint8_t *memory, *sources, *target, *scratch; /* memory: all of them */
    uint64_t memory_bytes;
    uint32_t count;
    uint64_t packed_bytes;
    struct kvt_store_op ops[DEPTH];
};

static uint8_t *staging_of(const struct codec_bench *b, const struct kvt_store_op *op)
{
    return b->bench->buffers + (uint64_t)(op - b->ops) * BLOCK_BYTES;
}

static void views_of(uint8_t *block, struct kvt_chunk_view views[LAYERS])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        views[layer] = (struct kvt_chunk_view){ { block + layer * CHUNK_BYTES,
                                                  block + layer * CHUNK_BYTES + PLANE_BYTES } };
}

/* A page block is 16 tokens of K, then of V; a chunk takes the next four of its layer. */
static void fill_sources(struct codec_bench *b)
{
    const size_t half = (size_t)KVT_PAGES_TOKENS * KVT_PAGES_CHANNELS * 2;
    size_t bytes;
    const uint8_t *pages = kvt_pages(KVT_DTYPE_BF16, &bytes);
    const size_t per_layer = bytes / (2 * half) / LAYERS;
    for (uint32_t s = 0; s < SOURCES; s++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint8_t *chunk = b->sources + (uint64_t)s * BLOCK_BYTES + layer * CHUNK_BYTES;
            for (uint32_t part = 0; part < TOKENS / KVT_PAGES_TOKENS; part++) {
                const size_t page = layer * per_layer + (s * (TOKENS / KVT_PAGES_TOKENS) + part) % per_layer;
                for (uint32_t plane = 0; plane < 2; plane++)
                    memcpy(chunk + plane * PLANE_BYTES + part * half, pages + (2 * page + plane) * half, half);
            }
        }
    }
}

static uint8_t *source_of(const struct codec_bench *b, uint64_t index)
{
    return b->sources + index % SOURCES * BLOCK_BYTES;
}

static uint32_t pack(struct codec_bench *b, uint64_t index, uint8_t *target)
{
    struct kvt_chunk_view views[LAYERS];
    views_of(source_of(b, index), views);
    return kvt_codec_pack(b->codec, 0, views, TOKENS, target, BLOCK_BYTES, b->scratch);
}

static void set_op(struct codec_bench *b, struct kvt_store_op *op, uint64_t index, bool is_put, bool is_packed)
{
    *op = (struct kvt_store_op){ .kind = is_put ? KVT_STORE_PUT : KVT_STORE_GET,
                                 .flags = KVT_STORE_IN_PLACE,
                                 .generation = 1,
                                 .length = BLOCK_BYTES,
                                 .name = kvt_store_bench_name(2 * index + is_packed),
                                 .buffer = staging_of(b, op) };
    if (!is_put) return;
    const uint32_t length = is_packed ? pack(b, index, op->buffer) : 0;
    op->form = length ? FORM_PACKED : FORM_RAW;
    op->length = length ? length : BLOCK_BYTES;
    if (length == 0) op->buffer = source_of(b, index);
    b->packed_bytes += op->length;
}

/* What a reader does with a block that came: it is unpacked into place, or was read there. */
static bool deliver(struct codec_bench *b, const struct kvt_store_op *op)
{
    if (op->status != KVT_OK) return kvt_store_bench_fail("an op failed: %s", kvt_status_text(op->status));
    if (op->kind == KVT_STORE_PUT) return true;
    const uint64_t index = op->name.key[1] / 2;
    const uint8_t *block = op->buffer;
    if (op->ret_form == FORM_PACKED) {
        struct kvt_chunk_view views[LAYERS];
        views_of(b->target, views);
        if (kvt_codec_unpack(b->codec, 0, op->buffer, op->ret_length, TOKENS, views, b->scratch) != KVT_OK)
            return kvt_store_bench_fail("a packed block is damaged");
        block = b->target;
    }
    const uint64_t at = index % LAYERS * CHUNK_BYTES;
    if (memcmp(block + at, source_of(b, index) + at, CHUNK_BYTES) == 0) return true;
    return kvt_store_bench_fail("a block did not come back exact");
}

/* The store refuses puts for a while when its disk has become slow. */
static bool submit(struct codec_bench *b, struct kvt_store_op *op)
{
    enum { REFUSED_MAX = 10000 };
    const struct timespec moment = { .tv_nsec = 1000000 };
    struct kvt_store_op *const ops[] = { op };
    for (uint32_t refused = 0; kvt_store_submit(b->store, ops, 1) != 1; refused++) {
        if (refused == REFUSED_MAX) return kvt_store_bench_fail("the store takes no ops");
        (void)nanosleep(&moment, NULL);
    }
    return true;
}

/* GB/s of raw bytes; negative: failed. */
static double run(struct codec_bench *b, bool is_put, bool is_packed)
{
    uint32_t next = 0, in_flight = 0;
    bool is_ok = true;
    b->packed_bytes = 0;
    const double start = kvt_store_bench_seconds();
    struct kvt_store_op *done[DEPTH];
    for (uint32_t i = 0; i < DEPTH; i++) done[i] = &b->ops[i];
    for (uint32_t n = DEPTH; is_ok;) {
        for (uint32_t i = 0; i < n && next < b->count && is_ok; i++) {
            set_op(b, done[i], next++, is_put, is_packed);
            is_ok = submit(b, done[i]);
            in_flight += is_ok;
        }
        if (in_flight == 0) break;
        (void)kvt_store_wait(b->store, UINT64_MAX);
        n = kvt_store_poll(b->store, done, DEPTH);
        in_flight -= n;
        for (uint32_t i = 0; i < n; i++) is_ok = deliver(b, done[i]) && is_ok;
    }
    is_ok = is_ok && (!is_put || kvt_store_sync(b->store) == KVT_OK);
    const double seconds = kvt_store_bench_seconds() - start;
    while (in_flight > 0) {
        (void)kvt_store_wait(b->store, UINT64_MAX);
        in_flight -= kvt_store_poll(b->store, done, DEPTH);
    }
    return is_ok ? (double)b->count * BLOCK_BYTES / seconds * 1e-9 : -1;
}

static double unpack_rate(struct codec_bench *b)
{
    struct kvt_chunk_view views[LAYERS];
    views_of(b->target, views);
    double seconds = 0;
    for (uint32_t i = 0; i < 4 * SOURCES; i++) {
        const uint32_t length = pack(b, i, b->bench->buffers);
        const double start = kvt_store_bench_seconds();
        if (length == 0
            || kvt_codec_unpack(b->codec, 0, b->bench->buffers, length, TOKENS, views, b->scratch) != KVT_OK)
            return 0;
        seconds += kvt_store_bench_seconds() - start;
    }
    return 4.0 * SOURCES * BLOCK_BYTES / seconds * 1e-9;
}

/* kinds: put, get; forms: raw, packed. */
static bool measure(struct codec_bench *b, uint32_t rounds, double rates[2][2][ROUNDS], double *ret_ratio)
{
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t kind = 0; kind < 2; kind++) {
            const uint32_t first = (uint32_t)kvt_rng_below(&b->bench->rng, 2);
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t form = i ^ first;
                rates[kind][form][round] = run(b, kind == 0, form == 1);
                if (rates[kind][form][round] < 0) return false;
                if (kind == 0 && form == 1) *ret_ratio = (double)b->count * BLOCK_BYTES / (double)b->packed_bytes;
            }
        }
    }
    return true;
}

static bool run_device(struct codec_bench *b, uint64_t link_bytes_per_s)
{
    const char *device = link_bytes_per_s ? "paced" : "disk";
    const char *name = link_bytes_per_s ? "store-paced" : "store-codec";
    const uint32_t rounds = kvt_min_u32(b->bench->pairs, ROUNDS);
    struct kvt_store_config config = kvt_store_config_default();
    config.capacity_bytes = (uint64_t)b->count * BLOCK_BYTES * 4 + 32 * KVT_MIB;
    config.record_bytes_max = BLOCK_BYTES;
    config.link_bytes_per_s = link_bytes_per_s;
    b->store = kvt_store_bench_open(b->bench, name, &config);
    double rates[2][2][ROUNDS], packed_ratio = 0;
    const bool is_ok = b->store && measure(b, rounds, rates, &packed_ratio);
    kvt_store_close(&b->store);
    kvt_store_bench_remove(b->bench, name);
    if (!is_ok) return false;
    for (uint32_t kind = 0; kind < 2; kind++) {
        double ratios[ROUNDS];
        for (uint32_t i = 0; i < rounds; i++) ratios[i] = rates[kind][1][i] / rates[kind][0][i];
        const double raw = kvt_store_bench_median(rates[kind][0], rounds);
        struct kvt_store_bench_case *added = kvt_store_bench_add(
            b->bench, "GB/s", kvt_store_bench_median(rates[kind][1], rounds), raw, "codec, %s %s packed: raw", device,
            kind == 0 ? "put" : "get");
        added->ratio = kvt_store_bench_median(ratios, rounds);
        const double unpack = unpack_rate(b);
        if (kind == 0) continue;
        if (link_bytes_per_s) added->target = 1.3;
        /* Twice the disk's pace: then the codec, which works beside the disk, is not what is waited for. */
        const bool is_disk = unpack >= 2 * raw * packed_ratio;
        if (is_disk) added->target = 1.3;
        (void)kvt_store_bench_add(b->bench, "GB/s", unpack, raw, "codec, unpack alone: %s; bottleneck: %s", device,
                                  is_disk ? "disk" : "CPU");
    }
    if (link_bytes_per_s) (void)kvt_store_bench_add(b->bench, "x", packed_ratio, 1, "codec, raw over packed bytes");
    return true;
}

bool kvt_store_bench_codec(struct kvt_store_bench *bench)
{
    const struct kvt_model_shape shape = {
        .block_tokens = TOKENS,
        .group_count = 1,
        .groups = { { .dtype = KVT_DTYPE_BF16, .layers = LAYERS, .kv_heads = 1, .head_dim = KVT_PAGES_CHANNELS } }
    };
    struct codec_bench *b = kvt_alloc(1, sizeof *b);
    if (!b) return kvt_store_bench_fail("out of memory");
    b->bench = bench;
    b->count = (uint32_t)(kvt_min_u64(bench->size_bytes, 256 * KVT_MIB) / BLOCK_BYTES);
    bool is_ok = kvt_codec_create(&shape, &b->codec) == KVT_OK && kvt_codec_learn(b->codec, true) == KVT_OK;
    b->memory_bytes = (uint64_t)(SOURCES + 1) * BLOCK_BYTES + (is_ok ? kvt_codec_scratch_bytes(b->codec) : 0);
    b->memory = kvt_table_map(b->memory_bytes);
    if (is_ok && b->memory) {
        b->sources = b->memory;
        b->target = b->sources + (uint64_t)SOURCES * BLOCK_BYTES;
        b->scratch = b->target + BLOCK_BYTES;
        fill_sources(b);
        is_ok = run_device(b, LINK_BYTES_PER_S) && run_device(b, 0);
    } else {
        is_ok = kvt_store_bench_fail("out of memory");
    }
    kvt_table_unmap(b->memory, b->memory_bytes);
    kvt_codec_destroy(&b->codec);
    kvt_free(b);
    return is_ok;
}
