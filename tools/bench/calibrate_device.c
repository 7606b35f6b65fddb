/*
 * Method: blocks of sample KV go to the device raw, come back packed, go up packed and come back raw, one op at a time;
 *         what the tier says of an op's time on the link and in the codec is taken, the median of many. Two lengths of raw
 *         ops part the time of an op from that of its bytes.
 */
#include <string.h>

#include "kernels/gpu.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/mem.h"
#include "tiers/codec.h"
#include "tiers/device_tier.h"
#include "tools/bench/calibrate.h"
#include "tools/run/content.h"

enum { SLOTS = 16, ROUNDS = 12, OPS_MAX = SLOTS * ROUNDS, LEARN_ROUNDS = 64 };
#define PATIENCE_NS UINT64_C(10000000000)

struct bench {
    const struct kvt_calibration *calibration;
    struct kvt_env env;
    struct kvt_codec *codec;
    struct kvt_tier *tier;
    struct kvt_content content;
    uint32_t tokens; /* of a whole block; a state: 1 */
    uint64_t raw_bytes;
    uint8_t *raw, *packed; /* one block */
    uint64_t buffer_bytes;
    uint64_t *identities; /* [block_tokens] */
    double link_ns[OPS_MAX], codec_ns[OPS_MAX];
};

/* Waits for the one op. False: it failed, or did not come back. */
static bool run(struct bench *bench, struct kvt_tier_op *op)
{
    struct kvt_tier_op *done;
    if (kvt_tier_submit(bench->tier, op) != KVT_OK) return false;
    const uint64_t give_up_ns = kvt_env_now_ns(&bench->env) + PATIENCE_NS;
    while (kvt_tier_poll(bench->tier, &done, 1) == 0) {
        if (kvt_env_now_ns(&bench->env) > give_up_ns) return false;
    }
    return true;
}

static struct kvt_tier_op op_of(const struct bench *bench, enum kvt_op_kind kind, uint32_t slot, enum kvt_form form,
                                uint32_t tokens, uint32_t length)
{
    return (struct kvt_tier_op){ .kind = kind,
                                 .slot = slot,
                                 .tokens = tokens,
                                 .host = form == KVT_FORM_RAW ? bench->raw : bench->packed,
                                 .host_capacity = (uint32_t)bench->buffer_bytes,
                                 .form = form,
                                 .length = length };
}

/* A block that no other one is like. */
static void fill(struct bench *bench, uint64_t number)
{
    uint64_t identity = KVT_CONTENT_ROOT + number;
    for (uint32_t t = 0; t < bench->tokens; t++)
        bench->identities[t] = identity = kvt_content_next(identity, (uint32_t)(number * 7919 + t));
    if (bench->calibration->shape.groups[0].kind == KVT_GROUP_STATE) {
        kvt_content_write_state(&bench->content, 0, bench->identities[0], bench->raw);
        return;
    }
    const struct kvt_content_run of = { .count = bench->tokens,
                                        .position = number * bench->tokens,
                                        .identities = bench->identities };
    kvt_content_write(&bench->content, &of, bench->raw);
}

static bool put_on_device(struct bench *bench, uint32_t slot, uint64_t number)
{
    fill(bench, number);
    struct kvt_tier_op op = op_of(bench, KVT_OP_FETCH, slot, KVT_FORM_RAW, bench->tokens, (uint32_t)bench->raw_bytes);
    return run(bench, &op) && op.status == KVT_OK;
}

/* Median time of raw ops of so many tokens. */
static bool measure_raw(struct bench *bench, enum kvt_op_kind kind, uint32_t tokens, double *ret_ns, double *ret_bytes)
{
    const uint64_t bytes = bench->raw_bytes / bench->tokens * tokens;
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        struct kvt_tier_op op = op_of(bench, kind, i % SLOTS, KVT_FORM_RAW, tokens, (uint32_t)bytes);
        if (!run(bench, &op) || op.status != KVT_OK) return kvt_calibrate_fail("a raw copy failed");
        bench->link_ns[i] = (double)op.link_ns;
    }
    *ret_ns = kvt_calibrate_quantile(bench->link_ns, OPS_MAX, 0.5);
    *ret_bytes = (double)bytes;
    return true;
}

static bool measure_link(struct bench *bench, enum kvt_op_kind kind, struct kvt_link *ret_link)
{
    double whole_ns, whole_bytes, token_ns, token_bytes;
    if (!measure_raw(bench, kind, bench->tokens, &whole_ns, &whole_bytes)) return false;
    if (!measure_raw(bench, kind, 1, &token_ns, &token_bytes)) return false;
    const bool has_slope = whole_bytes > token_bytes && whole_ns > token_ns;
    const double ns_per_byte = has_slope ? (whole_ns - token_ns) / (whole_bytes - token_bytes) : whole_ns / whole_bytes;
    const double op_ns = whole_ns - ns_per_byte * whole_bytes;
    *ret_link = (struct kvt_link){ .bytes_per_s = 1e9 / (ns_per_byte > 0 ? ns_per_byte : 1e-9),
                                   .op_ns = op_ns > 0 ? op_ns : 0 };
    return true;
}

/* Blocks go down packed and up again. What does not pack says a ratio of 1 and no time. */
static bool measure_codec(struct bench *bench, double *ret_pack, double *ret_unpack, double *ret_ratio)
{
    double packed_bytes = 0, unpack_ns[OPS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < OPS_MAX; i++) {
        if (!put_on_device(bench, i % SLOTS, LEARN_ROUNDS + i)) return kvt_calibrate_fail("a raw copy failed");
        struct kvt_tier_op down = op_of(bench, KVT_OP_STASH, i % SLOTS, KVT_FORM_PACKED, bench->tokens, 0);
        if (!run(bench, &down)) return kvt_calibrate_fail("packing failed");
        if (down.status == KVT_FULL) continue; /* it gains too little */
        if (down.status != KVT_OK) return kvt_calibrate_fail("packing failed");
        if (down.ret_form != KVT_FORM_PACKED) continue;
        struct kvt_tier_op up = op_of(bench, KVT_OP_FETCH, i % SLOTS, KVT_FORM_PACKED, bench->tokens, down.ret_length);
        if (!run(bench, &up) || up.status != KVT_OK) return kvt_calibrate_fail("unpacking failed");
        bench->codec_ns[count] = (double)down.codec_ns;
        unpack_ns[count++] = (double)up.codec_ns;
        packed_bytes += down.ret_length;
    }
    const double raw_bytes = (double)bench->raw_bytes;
    *ret_pack = kvt_calibrate_quantile(bench->codec_ns, count, 0.5) / raw_bytes;
    *ret_unpack = kvt_calibrate_quantile(unpack_ns, count, 0.5) / raw_bytes;
    *ret_ratio = count > 0 && packed_bytes > 0 ? count * raw_bytes / packed_bytes : 1;
    return true;
}

static bool open_bench(struct bench *bench, const struct kvt_calibration *calibration,
                       const struct kvt_model_shape *shape)
{
    bench->calibration = calibration;
    bench->env = kvt_env_default();
    bench->tokens = shape->groups[0].kind == KVT_GROUP_STATE ? 1 : shape->block_tokens;
    bench->raw_bytes = kvt_group_block_bytes(&shape->groups[0], shape->block_tokens);
    bench->buffer_bytes = kvt_align_up(2 * bench->raw_bytes, 4096);
    bench->raw = kvt_table_map(bench->buffer_bytes);
    bench->packed = kvt_table_map(bench->buffer_bytes);
    bench->identities = kvt_alloc(bench->tokens, sizeof *bench->identities);
    if (!bench->raw || !bench->packed || !bench->identities) return kvt_calibrate_fail("out of memory");
    if (kvt_content_init(&bench->content, shape) != KVT_OK) return kvt_calibrate_fail("out of memory");
    if (kvt_codec_create(shape, &bench->codec) != KVT_OK || kvt_codec_learn(bench->codec, true) != KVT_OK)
        return kvt_calibrate_fail("out of memory");
    struct kvt_device_tier_config config = { .shape = *shape, .pool_count = 1, .codec = bench->codec };
    config.pool_slots[0] = SLOTS;
    const enum kvt_status status = kvt_device_tier_open(&config, &bench->env, &bench->tier);
    if (status != KVT_OK) return kvt_calibrate_fail("the device: %s", kvt_status_text(status));
    /* The codec learns its tables from what passes. */
    for (uint32_t i = 0; i < LEARN_ROUNDS; i++) {
        struct kvt_tier_op down = op_of(bench, KVT_OP_STASH, i % SLOTS, KVT_FORM_PACKED, bench->tokens, 0);
        if (!put_on_device(bench, i % SLOTS, i) || !run(bench, &down))
            return kvt_calibrate_fail("a copy to the device and back failed");
    }
    return true;
}

static void close_bench(struct bench *bench)
{
    kvt_tier_close(&bench->tier);
    kvt_codec_destroy(&bench->codec);
    kvt_content_done(&bench->content);
    kvt_table_unmap(bench->raw, bench->buffer_bytes);
    kvt_table_unmap(bench->packed, bench->buffer_bytes);
    kvt_free(bench->identities);
}

/* The first group's layers in another type. */
static struct kvt_model_shape shape_in(const struct kvt_model_shape *shape, enum kvt_dtype dtype)
{
    struct kvt_model_shape other = { .group_count = 1, .block_tokens = shape->block_tokens };
    other.groups[0] = shape->groups[0];
    other.groups[0].dtype = dtype;
    return other;
}

bool kvt_calibrate_device(struct kvt_calibration *calibration)
{
    struct kvt_links *links = &calibration->links;
    bool is_ok = true;
    for (uint32_t d = 0; d < KVT_LINKS_DTYPES && is_ok; d++) {
        const struct kvt_model_shape shape = shape_in(&calibration->shape, (enum kvt_dtype)d);
        struct bench bench = { 0 };
        if (kvt_shape_check(&shape, NULL, 0) != KVT_OK) continue;
        is_ok = open_bench(&bench, calibration, &shape);
        if (is_ok) {
            is_ok = measure_codec(&bench, &links->codec[d].pack_ns_per_byte, &links->codec[d].unpack_ns_per_byte,
                                  &links->codec[d].ratio);
            links->codec[d].is_measured = is_ok;
        }
        if (is_ok && d == (uint32_t)calibration->shape.groups[0].dtype) {
            is_ok = measure_link(&bench, KVT_OP_STASH, &links->to_host)
                && measure_link(&bench, KVT_OP_FETCH, &links->to_device);
            (void)snprintf(links->device, sizeof links->device, "%s", kvt_device_tier_gpu(bench.tier)->ops->name);
        }
        close_bench(&bench);
    }
    return is_ok;
}
