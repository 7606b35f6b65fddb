/* bench copy: blocks of sample KV through the device tier, packed on their way down and unpacked on their way up. */
#include <sched.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/codec.h"
#include "tiers/device_tier.h"
#include "tools/bench/copy_bench.h"
#include "tools/run/content.h"

enum { SLOTS = 16, DEPTH = 8, BLOCK_TOKENS = 32, LEARN_ROUNDS = 32 };

struct blocks {
    struct kvt_copy_bench *bench;
    struct kvt_model_shape shape;
    struct kvt_content content;
    struct kvt_codec *codec;
    struct kvt_tier *tier;
    uint64_t raw_bytes, buffer_bytes;
    uint8_t *buffers; /* one for each slot */
    bool is_pinned;
    uint64_t identities[BLOCK_TOKENS];
    struct kvt_tier_op ops[SLOTS];
    uint32_t lengths[SLOTS];
    double ratio;
};

static uint8_t *buffer_of(const struct blocks *b, uint32_t slot) { return b->buffers + slot * b->buffer_bytes; }

static struct kvt_content_run run_of(struct blocks *b, uint32_t number)
{
    uint64_t identity = KVT_CONTENT_ROOT + number;
    for (uint32_t t = 0; t < BLOCK_TOKENS; t++)
        b->identities[t] = identity = kvt_content_next(identity, number * 7919 + t);
    return (struct kvt_content_run){ .count = BLOCK_TOKENS, .identities = b->identities };
}

/* One op for each slot, at most DEPTH of them under way. False: one did not end well. */
static bool run_ops(struct blocks *b, enum kvt_op_kind kind, enum kvt_form form)
{
    uint32_t submitted = 0, returned = 0;
    bool is_good = true;
    while (returned < SLOTS) {
        while (submitted < SLOTS && submitted - returned < DEPTH) {
            struct kvt_tier_op *op = &b->ops[submitted];
            *op = (struct kvt_tier_op){ .kind = kind,
                                        .slot = submitted,
                                        .tokens = BLOCK_TOKENS,
                                        .host = buffer_of(b, submitted),
                                        .host_capacity = (uint32_t)b->buffer_bytes,
                                        .form = form,
                                        .length = b->lengths[submitted] };
            if (kvt_tier_submit(b->tier, op) != KVT_OK) break;
            submitted++;
        }
        struct kvt_tier_op *done[DEPTH];
        const uint32_t count = kvt_tier_poll(b->tier, done, DEPTH);
        for (uint32_t i = 0; i < count; i++) {
            is_good = is_good && done[i]->status == KVT_OK && (kind == KVT_OP_FETCH || done[i]->ret_form == form);
            if (kind == KVT_OP_STASH) b->lengths[done[i]->slot] = done[i]->ret_length;
        }
        returned += count;
        if (count == 0) (void)sched_yield();
    }
    return is_good;
}

/* Sample KV goes to every slot raw. */
static bool fill_slots(struct blocks *b, uint32_t number)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        const struct kvt_content_run run = run_of(b, number + i);
        kvt_content_write(&b->content, &run, buffer_of(b, i));
        b->lengths[i] = (uint32_t)b->raw_bytes;
    }
    return run_ops(b, KVT_OP_FETCH, KVT_FORM_RAW);
}

/* GB/s of raw KV. */
static bool rate_of(struct blocks *b, enum kvt_op_kind kind, double *ret_rate)
{
    double rates[KVT_COPY_BENCH_ROUNDS_MAX];
    for (uint32_t round = 0; round <= b->bench->rounds; round++) {
        const double start = kvt_copy_bench_seconds();
        if (!run_ops(b, kind, KVT_FORM_PACKED)) return kvt_copy_bench_fail("a packed transfer failed");
        const double seconds = kvt_copy_bench_seconds() - start;
        if (round > 0) rates[round - 1] = (double)(SLOTS * b->raw_bytes) * 1e-9 / seconds;
    }
    *ret_rate = kvt_copy_bench_median(rates, b->bench->rounds);
    return true;
}

/* What went down packed and came up again is what it was. */
static bool check(struct blocks *b, uint32_t number)
{
    if (!run_ops(b, KVT_OP_STASH, KVT_FORM_RAW)) return kvt_copy_bench_fail("a raw transfer failed");
    for (uint32_t i = 0; i < SLOTS; i++) {
        const struct kvt_content_run run = run_of(b, number + i);
        b->bench->mismatches += kvt_content_check(&b->content, &run, buffer_of(b, i)) != KVT_CONTENT_SAME;
        b->bench->bytes_checked += b->raw_bytes;
    }
    return true;
}

static bool measure(struct blocks *b)
{
    struct kvt_copy_bench *bench = b->bench;
    double down, up;
    for (uint32_t i = 0; i < LEARN_ROUNDS; i += SLOTS)
        if (!fill_slots(b, i) || !run_ops(b, KVT_OP_STASH, KVT_FORM_PACKED))
            return kvt_copy_bench_fail("a packed transfer failed");
    if (!fill_slots(b, LEARN_ROUNDS)) return kvt_copy_bench_fail("a raw transfer failed");
    if (!rate_of(b, KVT_OP_STASH, &down) || !rate_of(b, KVT_OP_FETCH, &up)) return false;
    uint64_t packed_bytes = 0;
    for (uint32_t i = 0; i < SLOTS; i++) packed_bytes += b->lengths[i];
    if (!check(b, LEARN_ROUNDS)) return false;
    kvt_copy_bench_add(bench, "GB/s of KV", down, bench->peak[KVT_COPY_TO_HOST], 1.35, "packed bf16 to host");
    kvt_copy_bench_add(bench, "GB/s of KV", up, bench->peak[KVT_COPY_TO_DEVICE], 1.35, "packed bf16 to device");
    kvt_copy_bench_add(bench, "times less", (double)(SLOTS * b->raw_bytes) / (double)packed_bytes, 1, 0,
                       "packed bf16, bytes");
    return true;
}

static bool open_blocks(struct blocks *b)
{
    b->shape = (struct kvt_model_shape){
        .block_tokens = BLOCK_TOKENS,
        .group_count = 1,
        .groups = { { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 16, .kv_heads = 8, .head_dim = 128 } }
    };
    b->raw_bytes = kvt_group_block_bytes(&b->shape.groups[0], BLOCK_TOKENS);
    b->buffer_bytes = kvt_align_up(b->raw_bytes + b->raw_bytes / 8, 4096);
    b->buffers = kvt_table_map(SLOTS * b->buffer_bytes);
    if (!b->buffers || kvt_content_init(&b->content, &b->shape) != KVT_OK) return kvt_copy_bench_fail("out of memory");
    if (kvt_codec_create(&b->shape, &b->codec) != KVT_OK || kvt_codec_learn(b->codec, true) != KVT_OK)
        return kvt_copy_bench_fail("out of memory");
    const struct kvt_device_tier_config config = {
        .shape = b->shape, .pool_count = 1, .pool_slots = { SLOTS }, .gpu = b->bench->gpu_ops, .codec = b->codec
    };
    const enum kvt_status status = kvt_device_tier_open(&config, &b->bench->env, &b->tier);
    if (status != KVT_OK) return kvt_copy_bench_fail("the device tier: %s", kvt_status_text(status));
    struct kvt_gpu *gpu = kvt_device_tier_gpu(b->tier);
    b->is_pinned = gpu->ops->host_pin(gpu, b->buffers, SLOTS * b->buffer_bytes);
    return true;
}

static void close_blocks(struct blocks *b)
{
    if (b->tier && b->is_pinned) {
        struct kvt_gpu *gpu = kvt_device_tier_gpu(b->tier);
        gpu->ops->host_unpin(gpu, b->buffers, SLOTS * b->buffer_bytes);
    }
    kvt_tier_close(&b->tier);
    kvt_codec_destroy(&b->codec);
    kvt_content_done(&b->content);
    if (b->buffers) kvt_table_unmap(b->buffers, SLOTS * b->buffer_bytes);
}

bool kvt_copy_bench_blocks(struct kvt_copy_bench *bench)
{
    struct blocks *b = kvt_alloc(1, sizeof *b);
    if (!b) return kvt_copy_bench_fail("out of memory");
    b->bench = bench;
    const bool is_good = open_blocks(b) && measure(b);
    close_blocks(b);
    kvt_free(b);
    return is_good;
}
