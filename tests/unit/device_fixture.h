/*
 * device_fixture: a device tier with one group of layers; its slots are filled with patterns and compared with them.
 *
 * The device is the emulated one, or, with KVT_TEST_CUDA, CUDA's: on the fake runtime (tests/fakes/cudart_fake.h) or
 * on a real one, depending on what the program links. device_access.h has what differs.
 *
 * The codec is a stand-in that writes the bytes backwards and inverted, so that the tier's part is tested alone: a
 * program that includes this defines the codec's functions itself.
 */
#ifndef KVT_TESTS_UNIT_DEVICE_FIXTURE_H
#define KVT_TESTS_UNIT_DEVICE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_emulated.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tests/unit/device_access.h"
#include "tiers/codec.h"
#include "tiers/codec_device.h"
#include "tiers/device_tier.h"

enum { BLOCK_TOKENS = 16, SLOTS = 4, HOST_BYTES = 64 * 1024, UNTOUCHED = 0xee };

/* ---- The stand-in codec ---------------------------------------------------------------------- */

struct kvt_codec {
    struct kvt_model_shape shape;
    bool is_hopeless; /* packing gains too little */
};

static struct kvt_codec codec;

#define FAKE_MAGIC 0x6b636166u
#define FAKE_HEAD_BYTES 8u

static inline uint32_t planes_of(const struct kvt_group_shape *group)
{
    return group->kind == KVT_GROUP_STATE || group->planes == 1 ? 1 : 2;
}

size_t kvt_codec_scratch_bytes(const struct kvt_codec *c)
{
    (void)c;
    return 64;
}

uint32_t kvt_codec_pack(struct kvt_codec *c, uint32_t group, const struct kvt_chunk_view *chunks, uint32_t tokens,
                        uint8_t *target, uint32_t capacity, void *scratch)
{
    const struct kvt_group_shape *shape = &c->shape.groups[group];
    const uint64_t plane_bytes = kvt_group_row_bytes(shape) * tokens;
    const uint64_t length = FAKE_HEAD_BYTES + plane_bytes * planes_of(shape) * shape->layers;
    assert_true(scratch && kvt_is_aligned((uintptr_t)scratch, 64));
    if (c->is_hopeless || length > capacity) return 0;
    kvt_store_u32(target, FAKE_MAGIC);
    kvt_store_u32(target + 4, tokens);
    uint8_t *out = target + length;
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t p = 0; p < planes_of(shape); p++) {
            for (uint64_t i = 0; i < plane_bytes; i++) *--out = (uint8_t)~chunks[layer].plane[p][i];
        }
    }
    memset(scratch, 0x77, 64);
    return (uint32_t)length;
}

enum kvt_status kvt_codec_unpack_layers(struct kvt_codec *c, uint32_t group, const uint8_t *packed, uint32_t length,
                                        uint32_t tokens, uint32_t first, uint32_t count,
                                        const struct kvt_chunk_view *chunks, void *scratch)
{
    const struct kvt_group_shape *shape = &c->shape.groups[group];
    const uint64_t plane_bytes = kvt_group_row_bytes(shape) * tokens;
    if (length != FAKE_HEAD_BYTES + plane_bytes * planes_of(shape) * shape->layers) return KVT_CORRUPT;
    if (kvt_load_u32(packed) != FAKE_MAGIC || kvt_load_u32(packed + 4) != tokens) return KVT_CORRUPT;
    const uint8_t *in = packed + length - first * planes_of(shape) * plane_bytes;
    for (uint32_t layer = 0; layer < count; layer++) {
        for (uint32_t p = 0; p < planes_of(shape); p++) {
            for (uint64_t i = 0; i < plane_bytes; i++) chunks[layer].plane[p][i] = (uint8_t) ~*--in;
        }
    }
    memset(scratch, 0x77, 64);
    return KVT_OK;
}

/* It knows nothing that a device could do by itself. */
bool kvt_codec_device_pack(struct kvt_codec *c, uint32_t group, uint32_t tokens, struct kvt_codec_device *ret_device)
{
    (void)c, (void)group, (void)tokens, (void)ret_device;
    return false;
}

bool kvt_codec_device_unpack(struct kvt_codec *c, uint32_t group, const uint8_t *packed, uint32_t length,
                             uint32_t tokens, struct kvt_codec_device *ret_device)
{
    (void)c, (void)group, (void)packed, (void)length, (void)tokens, (void)ret_device;
    return false;
}

size_t kvt_codec_device_bases_bytes(struct kvt_codec *c, uint32_t group)
{
    (void)c, (void)group;
    return 0;
}

/* ---- The fixture ----------------------------------------------------------------------------- */

enum { SEGMENTS_MAX = 8, ENGINE_BYTES = 256 * 1024 };

struct fixture {
    struct kvt_tier *tier;
    struct kvt_gpu *gpu;
    struct kvt_group_shape group;
    uint32_t segment_count;
    uint64_t segment_bytes, row_bytes;
    /* An engine's memory; ours is found through map. */
    bool is_engine;
    uint8_t *engine_memory;
    void *base[SEGMENTS_MAX];
    uint64_t stride[SEGMENTS_MAX];
    struct kvt_device_segments segments;
    uint8_t *host; /* two buffers of HOST_BYTES */
    bool is_pinned;
    atomic_uint wakes;
};

/* Host buffers are pinned for the device; otherwise they are ordinary memory. */
static bool are_buffers_pinned;

static const struct kvt_group_shape plain = {
    .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 3, .kv_heads = 2, .head_dim = 8
};

static inline void count_wake(void *user) { atomic_fetch_add(&((struct fixture *)user)->wakes, 1); }

static uint64_t fake_ns;
static inline uint64_t fake_clock(void *user)
{
    (void)user;
    return fake_ns;
}

/* One thread that turns everything, where the device allows it. */
static inline struct kvt_env cranked(void)
{
    struct kvt_env env = kvt_env_default();
    if (DEVICE_IS_CUDA) return env;
    env.is_single_threaded = true;
    env.now_ns = fake_clock;
    return env;
}

static inline struct kvt_device_tier_config config_of(struct fixture *f, bool has_codec)
{
    struct kvt_device_tier_config config = {
        .shape = { .block_tokens = BLOCK_TOKENS, .group_count = 1, .groups = { f->group } },
        .pool_count = 1,
        .pool_slots = { SLOTS },
        .segments = { f->is_engine ? &f->segments : NULL },
        .gpu = DEVICE_OPS,
        .codec = has_codec ? &codec : NULL,
        /* CUDA: no calibration in each test; by copies, and by a kernel where that reaches the host's memory */
        .gpu_config = { .fragment_bytes_max = are_buffers_pinned ? UINT64_MAX : 1 },
        .queue_depth = 8,
        .wake = { count_wake, f },
    };
    codec = (struct kvt_codec){ .shape = config.shape };
    return config;
}

/* Segments with odd starts and odd gaps between slots, in an order of their own. */
static inline void lay_out_engine(struct fixture *f)
{
    f->engine_memory = device_alloc(ENGINE_BYTES);
    assert_non_null(f->engine_memory);
    uint64_t at = 3;
    for (uint32_t i = 0; i < f->segment_count; i++) {
        const uint32_t s = f->segment_count - 1 - i;
        f->base[s] = f->engine_memory + at;
        f->stride[s] = f->segment_bytes + 5 + 2 * s;
        at += f->stride[s] * SLOTS + 1;
    }
    assert_true(at <= ENGINE_BYTES);
    f->segments = (struct kvt_device_segments){ f->segment_count, f->base, f->stride };
}

static inline void prepare(struct fixture *f, struct kvt_group_shape group, bool is_engine)
{
    *f = (struct fixture){ .group = group, .is_engine = is_engine };
    f->segment_count = group.layers * planes_of(&group);
    f->row_bytes = kvt_group_row_bytes(&group);
    f->segment_bytes = f->row_bytes * (group.kind == KVT_GROUP_STATE ? 1 : BLOCK_TOKENS);
    assert_true(f->segment_count <= SEGMENTS_MAX);
    if (is_engine) lay_out_engine(f);
    f->host = kvt_table_map(2 * HOST_BYTES);
    assert_non_null(f->host);
}

static inline void take_tier(struct fixture *f)
{
    f->gpu = kvt_device_tier_gpu(f->tier);
    f->is_pinned = are_buffers_pinned && f->gpu->ops->host_pin(f->gpu, f->host, 2 * HOST_BYTES);
    assert_int_equal(f->is_pinned, are_buffers_pinned);
}

static inline void open_tier(struct fixture *f, struct kvt_env env, struct kvt_group_shape group, bool is_engine,
                             bool has_codec)
{
    prepare(f, group, is_engine);
    const struct kvt_device_tier_config config = config_of(f, has_codec);
    assert_int_equal(kvt_device_tier_open(&config, &env, &f->tier), KVT_OK);
    take_tier(f);
}

static inline void close_tier(struct fixture *f)
{
    if (f->is_pinned) f->gpu->ops->host_unpin(f->gpu, f->host, 2 * HOST_BYTES);
    kvt_tier_close(&f->tier);
    assert_null(f->tier);
    device_free(f->engine_memory, ENGINE_BYTES);
    kvt_table_unmap(f->host, 2 * HOST_BYTES);
}

/* Where the test itself believes a segment of a slot to be. */
static inline uint8_t *segment_at(const struct fixture *f, uint32_t slot, uint32_t s)
{
    if (f->is_engine) return (uint8_t *)f->base[s] + slot * f->stride[s];
    return (uint8_t *)f->tier->ops->map(f->tier, 0, slot) + s * f->segment_bytes;
}

static inline uint8_t pattern(uint64_t seed, uint32_t s, uint64_t i)
{
    return (uint8_t)kvt_mix64(seed * 1000003 + s * 65537 + i);
}

enum { SEGMENT_BYTES_MAX = 8192 };

static inline void fill_slot(const struct fixture *f, uint32_t slot, uint64_t seed)
{
    uint8_t bytes[SEGMENT_BYTES_MAX];
    assert_true(f->segment_bytes <= sizeof bytes);
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = 0; i < f->segment_bytes; i++) bytes[i] = pattern(seed, s, i);
        device_put(segment_at(f, slot, s), bytes, f->segment_bytes);
    }
}

static inline void blank_slot(const struct fixture *f, uint32_t slot)
{
    uint8_t bytes[SEGMENT_BYTES_MAX];
    memset(bytes, UNTOUCHED, sizeof bytes);
    for (uint32_t s = 0; s < f->segment_count; s++) device_put(segment_at(f, slot, s), bytes, f->segment_bytes);
}

static inline bool slot_holds(const struct fixture *f, uint32_t slot, uint64_t seed, uint32_t tokens)
{
    uint8_t bytes[SEGMENT_BYTES_MAX];
    for (uint32_t s = 0; s < f->segment_count; s++) {
        device_get(bytes, segment_at(f, slot, s), tokens * f->row_bytes);
        for (uint64_t i = 0; i < tokens * f->row_bytes; i++) {
            if (bytes[i] != pattern(seed, s, i)) return false;
        }
    }
    return true;
}

static inline bool slot_is_untouched(const struct fixture *f, uint32_t slot, uint32_t from_token)
{
    uint8_t bytes[SEGMENT_BYTES_MAX];
    for (uint32_t s = 0; s < f->segment_count; s++) {
        device_get(bytes, segment_at(f, slot, s), f->segment_bytes);
        for (uint64_t i = from_token * f->row_bytes; i < f->segment_bytes; i++) {
            if (bytes[i] != UNTOUCHED) return false;
        }
    }
    return true;
}

/* True when raw bytes are [layer][plane][valid tokens][row] of the pattern. */
static inline bool raw_holds(const struct fixture *f, const uint8_t *raw, uint64_t seed, uint32_t tokens)
{
    uint64_t at = 0;
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = 0; i < tokens * f->row_bytes; i++) {
            if (raw[at++] != pattern(seed, s, i)) return false;
        }
    }
    return true;
}

static inline struct kvt_tier_op stash_of(struct fixture *f, uint32_t slot, uint32_t tokens, enum kvt_form form)
{
    return (struct kvt_tier_op){
        .kind = KVT_OP_STASH, .slot = slot, .tokens = tokens, .host = f->host, .host_capacity = HOST_BYTES, .form = form
    };
}

static inline struct kvt_tier_op fetch_of(const struct kvt_tier_op *stash, uint32_t slot)
{
    return (struct kvt_tier_op){ .kind = KVT_OP_FETCH,
                                 .slot = slot,
                                 .tokens = stash->tokens,
                                 .host = stash->host,
                                 .form = stash->ret_form,
                                 .length = stash->ret_length };
}

static inline void submit(struct fixture *f, struct kvt_tier_op *op)
{
    assert_int_equal(kvt_tier_submit(f->tier, op), KVT_OK);
}

/* Waits for one op: by polling, with the processor given away in between. */
static inline struct kvt_tier_op *poll_one(struct fixture *f)
{
    struct kvt_tier_op *done;
    while (kvt_tier_poll(f->tier, &done, 1) == 0) (void)sched_yield();
    return done;
}

static inline void run_op(struct fixture *f, struct kvt_tier_op *op)
{
    submit(f, op);
    assert_ptr_equal(poll_one(f), op);
}

static inline bool poll_is_empty(struct fixture *f)
{
    struct kvt_tier_op *done;
    return kvt_tier_poll(f->tier, &done, 1) == 0;
}

#endif
