/*
 * device_tier: what comes back is what was there, valid tokens only, in every kind of group, form and memory; each op
 * exactly once; the orders between streams hold with the marks of an op, and are seen to break without them.
 *
 * The codec is a stand-in that writes the bytes backwards and inverted, so that the tier's part is tested alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "kernels/gpu_emulated.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tiers/codec.h"
#include "tiers/device_tier.h"

enum { BLOCK_TOKENS = 16, SLOTS = 4, HOST_BYTES = 64 * 1024, UNTOUCHED = 0xee };

/* ---- The stand-in codec ------------------------------------------------------------------------------------------------- */

struct kvt_codec {
    struct kvt_model_shape shape;
    bool is_hopeless; /* packing gains too little */
};

static struct kvt_codec codec;

#define FAKE_MAGIC 0x6b636166u
#define FAKE_HEAD_BYTES 8u

static uint32_t planes_of(const struct kvt_group_shape *group)
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

enum kvt_status kvt_codec_unpack(struct kvt_codec *c, uint32_t group, const uint8_t *packed, uint32_t length, uint32_t tokens,
                                 const struct kvt_chunk_view *chunks, void *scratch)
{
    const struct kvt_group_shape *shape = &c->shape.groups[group];
    const uint64_t plane_bytes = kvt_group_row_bytes(shape) * tokens;
    if (length != FAKE_HEAD_BYTES + plane_bytes * planes_of(shape) * shape->layers) return KVT_CORRUPT;
    if (kvt_load_u32(packed) != FAKE_MAGIC || kvt_load_u32(packed + 4) != tokens) return KVT_CORRUPT;
    const uint8_t *in = packed + length;
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t p = 0; p < planes_of(shape); p++) {
            for (uint64_t i = 0; i < plane_bytes; i++) chunks[layer].plane[p][i] = (uint8_t)~*--in;
        }
    }
    memset(scratch, 0x77, 64);
    return KVT_OK;
}

/* ---- The fixture -------------------------------------------------------------------------------------------------------- */

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
    atomic_uint wakes;
};

static const struct kvt_group_shape plain = {
    .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 3, .kv_heads = 2, .head_dim = 8 };

static void count_wake(void *user) { atomic_fetch_add(&((struct fixture *)user)->wakes, 1); }

static uint64_t fake_ns;
static uint64_t fake_clock(void *user) { (void)user; return fake_ns; }

static struct kvt_env cranked(void)
{
    struct kvt_env env = kvt_env_default();
    env.is_single_threaded = true;
    env.now_ns = fake_clock;
    return env;
}

static struct kvt_device_tier_config config_of(struct fixture *f, bool has_codec)
{
    struct kvt_device_tier_config config = {
        .shape = { .block_tokens = BLOCK_TOKENS, .group_count = 1, .groups = { f->group } },
        .pool_count = 1,
        .pool_slots = { SLOTS },
        .segments = { f->is_engine ? &f->segments : NULL },
        .gpu = &kvt_gpu_emulated_ops,
        .codec = has_codec ? &codec : NULL,
        .queue_depth = 8,
        .wake = { count_wake, f },
    };
    codec = (struct kvt_codec){ .shape = config.shape };
    return config;
}

/* Segments with odd starts and odd gaps between slots, in an order of their own. */
static void lay_out_engine(struct fixture *f)
{
    f->engine_memory = kvt_alloc(1, ENGINE_BYTES);
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

static void prepare(struct fixture *f, struct kvt_group_shape group, bool is_engine)
{
    *f = (struct fixture){ .group = group, .is_engine = is_engine };
    f->segment_count = group.layers * planes_of(&group);
    f->row_bytes = kvt_group_row_bytes(&group);
    f->segment_bytes = f->row_bytes * (group.kind == KVT_GROUP_STATE ? 1 : BLOCK_TOKENS);
    assert_true(f->segment_count <= SEGMENTS_MAX);
    if (is_engine) lay_out_engine(f);
    f->host = kvt_alloc(2, HOST_BYTES);
    assert_non_null(f->host);
}

static void open_tier(struct fixture *f, struct kvt_env env, struct kvt_group_shape group, bool is_engine, bool has_codec)
{
    prepare(f, group, is_engine);
    const struct kvt_device_tier_config config = config_of(f, has_codec);
    assert_int_equal(kvt_device_tier_open(&config, &env, &f->tier), KVT_OK);
    f->gpu = kvt_device_tier_gpu(f->tier);
}

static void close_tier(struct fixture *f)
{
    kvt_tier_close(&f->tier);
    assert_null(f->tier);
    kvt_free(f->engine_memory);
    kvt_free(f->host);
}

/* Where the test itself believes a segment of a slot to be. */
static uint8_t *segment_at(const struct fixture *f, uint32_t slot, uint32_t s)
{
    if (f->is_engine) return (uint8_t *)f->base[s] + slot * f->stride[s];
    return (uint8_t *)f->tier->ops->map(f->tier, 0, slot) + s * f->segment_bytes;
}

static uint8_t pattern(uint64_t seed, uint32_t s, uint64_t i) { return (uint8_t)kvt_mix64(seed * 1000003 + s * 65537 + i); }

static void fill_slot(const struct fixture *f, uint32_t slot, uint64_t seed)
{
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = 0; i < f->segment_bytes; i++) segment_at(f, slot, s)[i] = pattern(seed, s, i);
    }
}

static void blank_slot(const struct fixture *f, uint32_t slot)
{
    for (uint32_t s = 0; s < f->segment_count; s++) memset(segment_at(f, slot, s), UNTOUCHED, f->segment_bytes);
}

static bool slot_holds(const struct fixture *f, uint32_t slot, uint64_t seed, uint32_t tokens)
{
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = 0; i < tokens * f->row_bytes; i++) {
            if (segment_at(f, slot, s)[i] != pattern(seed, s, i)) return false;
        }
    }
    return true;
}

static bool slot_is_untouched(const struct fixture *f, uint32_t slot, uint32_t from_token)
{
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = from_token * f->row_bytes; i < f->segment_bytes; i++) {
            if (segment_at(f, slot, s)[i] != UNTOUCHED) return false;
        }
    }
    return true;
}

/* True when raw bytes are [layer][plane][valid tokens][row] of the pattern. */
static bool raw_holds(const struct fixture *f, const uint8_t *raw, uint64_t seed, uint32_t tokens)
{
    uint64_t at = 0;
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = 0; i < tokens * f->row_bytes; i++) {
            if (raw[at++] != pattern(seed, s, i)) return false;
        }
    }
    return true;
}

static struct kvt_tier_op stash_of(struct fixture *f, uint32_t slot, uint32_t tokens, enum kvt_form form)
{
    return (struct kvt_tier_op){ .kind = KVT_OP_STASH, .slot = slot, .tokens = tokens, .host = f->host,
                                 .host_capacity = HOST_BYTES, .form = form };
}

static struct kvt_tier_op fetch_of(const struct kvt_tier_op *stash, uint32_t slot)
{
    return (struct kvt_tier_op){ .kind = KVT_OP_FETCH, .slot = slot, .tokens = stash->tokens, .host = stash->host,
                                 .form = stash->ret_form, .length = stash->ret_length };
}

static void submit(struct fixture *f, struct kvt_tier_op *op) { assert_int_equal(kvt_tier_submit(f->tier, op), KVT_OK); }

/* Waits for one op: by polling, with the processor given away in between. */
static struct kvt_tier_op *poll_one(struct fixture *f)
{
    struct kvt_tier_op *done;
    while (kvt_tier_poll(f->tier, &done, 1) == 0) (void)sched_yield();
    return done;
}

static void run_op(struct fixture *f, struct kvt_tier_op *op)
{
    submit(f, op);
    assert_ptr_equal(poll_one(f), op);
}

static bool poll_is_empty(struct fixture *f)
{
    struct kvt_tier_op *done;
    return kvt_tier_poll(f->tier, &done, 1) == 0;
}

/* ---- Round trips -------------------------------------------------------------------------------------------------------- */

static void round_trip(struct fixture *f, uint32_t tokens, enum kvt_form form, enum kvt_form form_expected)
{
    fill_slot(f, 1, tokens);
    blank_slot(f, 3);
    memset(f->host, UNTOUCHED, HOST_BYTES);
    struct kvt_tier_op stash = stash_of(f, 1, tokens, form);
    run_op(f, &stash);
    assert_int_equal(stash.status, KVT_OK);
    assert_int_equal(stash.ret_form, form_expected);
    const uint64_t raw_bytes = f->segment_count * tokens * f->row_bytes;
    if (stash.ret_form == KVT_FORM_RAW) {
        assert_int_equal(stash.ret_length, raw_bytes);
        assert_true(raw_holds(f, f->host, tokens, tokens));
    } else {
        assert_int_equal(stash.ret_length, raw_bytes + FAKE_HEAD_BYTES);
    }
    for (uint32_t i = stash.ret_length; i < HOST_BYTES; i++) assert_int_equal(f->host[i], UNTOUCHED);

    struct kvt_tier_op fetch = fetch_of(&stash, 3);
    run_op(f, &fetch);
    assert_int_equal(fetch.status, KVT_OK);
    assert_true(slot_holds(f, 3, tokens, tokens));
    assert_true(slot_is_untouched(f, 3, tokens));
    assert_true(slot_holds(f, 1, tokens, f->group.kind == KVT_GROUP_STATE ? 1 : BLOCK_TOKENS));
}

static void round_trips_of(struct kvt_group_shape group, bool is_engine, bool has_codec)
{
    static const uint32_t tails[] = { 1, 7, BLOCK_TOKENS };
    struct fixture f;
    open_tier(&f, kvt_env_default(), group, is_engine, has_codec);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(tails); i++) {
        if (group.kind == KVT_GROUP_STATE && tails[i] > 1) break;
        round_trip(&f, tails[i], KVT_FORM_RAW, KVT_FORM_RAW);
        round_trip(&f, tails[i], KVT_FORM_PACKED, has_codec ? KVT_FORM_PACKED : KVT_FORM_RAW);
    }
    assert_true(atomic_load(&f.wakes) > 0);
    close_tier(&f);
}

static void every_kind_and_dtype_comes_back_exact_in_both_forms(void **state)
{
    (void)state;
    for (uint32_t dtype = KVT_DTYPE_BF16; dtype <= KVT_DTYPE_INT8; dtype++) {
        for (uint32_t kind = KVT_GROUP_FULL; kind <= KVT_GROUP_STATE; kind++) {
            for (uint32_t planes = 0; planes <= 2; planes++) {
                struct kvt_group_shape group = { .kind = (enum kvt_group_kind)kind, .dtype = (enum kvt_dtype)dtype,
                    .layers = 3, .planes = planes, .kv_heads = 2, .head_dim = 5, .window_tokens = 32, .state_bytes = 777 };
                for (uint32_t i = 0; i < 4; i++) round_trips_of(group, (i & 1) != 0, (i & 2) != 0);
            }
        }
    }
}

static void groups_of_equal_block_bytes_share_a_pool_and_others_do_not(void **state)
{
    (void)state;
    struct kvt_group_shape window = plain, state_group = { .kind = KVT_GROUP_STATE, .layers = 2, .state_bytes = 100 };
    window.kind = KVT_GROUP_WINDOW;
    window.window_tokens = 32;
    const struct kvt_env env = cranked();
    struct kvt_device_tier_config config = {
        .shape = { .block_tokens = BLOCK_TOKENS, .group_count = 3, .groups = { plain, window, state_group } },
        .pool_of_group = { 0, 0, 1 }, .pool_count = 2, .pool_slots = { 3, 2 },
    };
    struct kvt_tier *tier;
    assert_int_equal(kvt_device_tier_open(&config, &env, &tier), KVT_OK);
    assert_ptr_equal(tier->ops->map(tier, 0, 2), tier->ops->map(tier, 1, 2));
    uint8_t *first = tier->ops->map(tier, 2, 0), *second = tier->ops->map(tier, 2, 1);
    assert_int_equal(second - first, 200);
    struct kvt_tier_counters counters;
    tier->ops->counters(tier, &counters);
    assert_int_equal(counters.capacity_bytes, 3 * kvt_group_block_bytes(&plain, BLOCK_TOKENS) + 2 * 200);
    kvt_tier_close(&tier);

    config.pool_of_group[2] = 0; /* other block bytes in the same pool */
    config.pool_count = 1;
    assert_int_equal(kvt_device_tier_open(&config, &env, &tier), KVT_INVAL);
}

static void a_copy_moves_the_valid_tokens_of_a_slot(void **state)
{
    (void)state;
    for (uint32_t is_engine = 0; is_engine < 2; is_engine++) {
        struct fixture f;
        open_tier(&f, kvt_env_default(), plain, is_engine != 0, false);
        fill_slot(&f, 2, 5);
        blank_slot(&f, 0);
        struct kvt_tier_op copy = { .kind = KVT_OP_COPY, .source_slot = 2, .slot = 0, .tokens = 9 };
        run_op(&f, &copy);
        assert_int_equal(copy.status, KVT_OK);
        assert_true(slot_holds(&f, 0, 5, 9));
        assert_true(slot_is_untouched(&f, 0, 9));
        close_tier(&f);
    }
}

static void only_the_valid_tokens_of_a_slot_are_read_and_written(void **state)
{
    (void)state;
    /* One segment whose valid tokens end where an inaccessible page begins: the engine's business at that moment. */
    const uint64_t page = 4096;
    const struct kvt_group_shape group = { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 1, .planes = 1,
                                           .kv_heads = 2, .head_dim = 8 };
    for (uint32_t form = KVT_FORM_RAW; form <= KVT_FORM_PACKED; form++) {
        struct fixture f;
        prepare(&f, group, true);
        uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(pages, MAP_FAILED);
        assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
        f.base[0] = pages + page - 7 * f.row_bytes;
        const struct kvt_device_tier_config config = config_of(&f, true);
        const struct kvt_env env = cranked();
        assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_OK);
        struct kvt_tier_op stash = stash_of(&f, 0, 7, (enum kvt_form)form);
        run_op(&f, &stash);
        assert_int_equal(stash.status, KVT_OK);
        struct kvt_tier_op fetch = fetch_of(&stash, 0);
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_OK);
        close_tier(&f);
        (void)munmap(pages, 2 * page);
    }
}

/* ---- What an op is told -------------------------------------------------------------------------------------------------- */

static void a_stash_that_does_not_fit_is_full_and_may_be_asked_again_raw(void **state)
{
    (void)state;
    struct fixture f;
    open_tier(&f, cranked(), plain, false, true);
    fill_slot(&f, 1, 1);
    const uint32_t raw_bytes = (uint32_t)kvt_group_block_bytes(&plain, BLOCK_TOKENS);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_PACKED);
    stash.host_capacity = raw_bytes; /* the stand-in needs a head more */
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_FULL);
    stash.host_capacity = HOST_BYTES;
    codec.is_hopeless = true;
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_FULL);
    stash.form = KVT_FORM_RAW;
    stash.host_capacity = raw_bytes - 1;
    f.host[raw_bytes - 1] = UNTOUCHED;
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_FULL);
    assert_int_equal(f.host[raw_bytes - 1], UNTOUCHED);
    stash.host_capacity = raw_bytes;
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_OK);
    assert_int_equal(stash.ret_form, KVT_FORM_RAW);
    assert_true(raw_holds(&f, f.host, 1, BLOCK_TOKENS));
    struct kvt_tier_counters counters;
    f.tier->ops->counters(f.tier, &counters);
    assert_int_equal(counters.dropped, 3);
    assert_int_equal(counters.bytes_out, raw_bytes);
    close_tier(&f);
}

static void damaged_bytes_are_corrupt_and_a_wrong_length_writes_nothing(void **state)
{
    (void)state;
    for (uint32_t has_codec = 0; has_codec < 2; has_codec++) {
        struct fixture f;
        open_tier(&f, cranked(), plain, false, has_codec != 0);
        struct kvt_tier_op stash = stash_of(&f, 1, 9, KVT_FORM_RAW);
        run_op(&f, &stash);
        struct kvt_tier_op fetch = fetch_of(&stash, 3);
        blank_slot(&f, 3);
        fetch.length--;
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_CORRUPT);
        fetch.length++;
        fetch.tokens++; /* bytes of another block */
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_CORRUPT);
        fetch.tokens--;
        fetch.form = KVT_FORM_PACKED; /* not packed at all, or nobody here can unpack it */
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_CORRUPT);
        assert_true(slot_is_untouched(&f, 3, 0));
        struct kvt_tier_counters counters;
        f.tier->ops->counters(f.tier, &counters);
        assert_int_equal(counters.bytes_in, 0);
        close_tier(&f);
    }
}

static void a_copy_that_the_device_fails_comes_back_once_with_an_error(void **state)
{
    (void)state;
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    for (uint32_t kind = KVT_OP_STASH; kind <= KVT_OP_COPY; kind++) {
        const uint32_t stream = kind == KVT_OP_STASH ? KVT_DEVICE_STREAM_STASH : KVT_DEVICE_STREAM_FETCH;
        kvt_gpu_emulated_fault_at(f.gpu, stream, 1, KVT_GPU_FAULT_FAIL_LATE);
        struct kvt_tier_op op = stash_of(&f, 1, 4, KVT_FORM_RAW);
        op.kind = (enum kvt_op_kind)kind;
        op.length = (uint32_t)(f.segment_count * 4 * f.row_bytes);
        op.source_slot = 2;
        run_op(&f, &op);
        assert_int_equal(op.status, KVT_IO);
        assert_int_equal(op.ret_length, 0);
        assert_true(poll_is_empty(&f));
        run_op(&f, &op); /* the next one is fine */
        assert_int_equal(op.status, KVT_OK);
    }
    close_tier(&f);
}

static void a_device_that_stops_answering_gives_no_completion_until_it_does(void **state)
{
    (void)state;
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    fill_slot(&f, 1, 3);
    kvt_gpu_emulated_fault_at(f.gpu, KVT_DEVICE_STREAM_STASH, 1, KVT_GPU_FAULT_STUCK_END);
    struct kvt_tier_op stash = stash_of(&f, 1, 4, KVT_FORM_RAW);
    submit(&f, &stash);
    assert_true(poll_is_empty(&f));
    struct kvt_tier_op copy = { .kind = KVT_OP_COPY, .source_slot = 1, .slot = 0, .tokens = 1 };
    run_op(&f, &copy); /* the other stream goes on */
    assert_true(kvt_gpu_emulated_release(f.gpu, KVT_DEVICE_STREAM_STASH));
    assert_ptr_equal(poll_one(&f), &stash);
    assert_int_equal(stash.status, KVT_OK);
    close_tier(&f);
}

static void each_op_comes_back_exactly_once_through_a_bounded_queue(void **state)
{
    (void)state;
    enum { OPS = 8, ROUNDS = 400 };
    struct fixture f;
    open_tier(&f, kvt_env_default(), plain, false, true);
    struct kvt_tier_op ops[OPS], extra = stash_of(&f, 0, 1, KVT_FORM_RAW);
    uint8_t *buffers = kvt_alloc(OPS + 1, 4096);
    struct kvt_rng rng = { 42 };
    uint32_t submitted = 0, returned = 0;
    assert_non_null(buffers);
    extra.host = buffers + OPS * 4096;
    fill_slot(&f, 0, 1);
    fill_slot(&f, 1, 2);
    memset(ops, 0, sizeof ops);
    while (returned < ROUNDS) {
        for (uint32_t i = 0; i < OPS; i++) {
            if (ops[i].is_in_flight || submitted == ROUNDS || kvt_rng_below(&rng, 4) == 0) continue;
            ops[i] = stash_of(&f, (uint32_t)kvt_rng_below(&rng, 2), 1 + (uint32_t)kvt_rng_below(&rng, BLOCK_TOKENS),
                              (enum kvt_form)kvt_rng_below(&rng, 2));
            ops[i].host = buffers + i * 4096;
            ops[i].host_capacity = 4096;
            submit(&f, &ops[i]);
            submitted++;
        }
        if (f.tier->in_flight == OPS) assert_int_equal(kvt_tier_submit(f.tier, &extra), KVT_FULL);
        struct kvt_tier_op *done[OPS];
        const uint32_t count = kvt_tier_poll(f.tier, done, 1 + (uint32_t)kvt_rng_below(&rng, OPS));
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(done[i]->status, KVT_OK);
            assert_true(kvt_device_tier_gpu(f.tier)->ops->is_reached(f.gpu, done[i]->after[0]));
            if (done[i]->ret_form == KVT_FORM_RAW)
                assert_true(raw_holds(&f, done[i]->host, done[i]->slot + 1, done[i]->tokens));
        }
        returned += count;
        if (count == 0) (void)sched_yield();
    }
    assert_int_equal(f.tier->in_flight, 0);
    assert_int_equal(atomic_load(&f.wakes), ROUNDS);
    kvt_free(buffers);
    close_tier(&f);
}

static void the_link_is_charged_for_the_form_that_crosses_it(void **state)
{
    (void)state;
    struct fixture f;
    prepare(&f, plain, false);
    struct kvt_device_tier_config config = config_of(&f, true);
    config.gpu_config.link_bytes_per_s = 1000000000; /* a byte takes a nanosecond */
    const struct kvt_env env = cranked();
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_OK);
    f.gpu = kvt_device_tier_gpu(f.tier);
    for (uint32_t form = KVT_FORM_RAW; form <= KVT_FORM_PACKED; form++) {
        struct kvt_tier_op stash = stash_of(&f, 1, 4, (enum kvt_form)form);
        submit(&f, &stash);
        assert_true(poll_is_empty(&f));
        fake_ns = kvt_gpu_emulated_next_ns(f.gpu);
        assert_ptr_equal(poll_one(&f), &stash);
        assert_int_equal(stash.link_ns, stash.ret_length);
        struct kvt_tier_op fetch = fetch_of(&stash, 2);
        submit(&f, &fetch);
        assert_true(poll_is_empty(&f));
        fake_ns = kvt_gpu_emulated_next_ns(f.gpu);
        assert_ptr_equal(poll_one(&f), &fetch);
        assert_int_equal(fetch.link_ns, fetch.length);
    }
    struct kvt_tier_op copy = { .kind = KVT_OP_COPY, .source_slot = 1, .slot = 0, .tokens = 4 };
    run_op(&f, &copy); /* crosses no link */
    assert_int_equal(copy.link_ns, 0);
    close_tier(&f);
}

/* ---- The orders between streams (each with its control) ------------------------------------------------------------------- */

/* A kernel of the engine's: writes a pattern to a slot, or compares the slot with one. */
struct kernel {
    struct kvt_gpu_job job;
    struct fixture *f;
    uint32_t slot;
    uint64_t seed;
    bool was_equal;
};

static void run_write(struct kvt_gpu_job *job)
{
    struct kernel *k = job->user;
    fill_slot(k->f, k->slot, k->seed);
}

static void run_read(struct kvt_gpu_job *job)
{
    struct kernel *k = job->user;
    k->was_equal = slot_holds(k->f, k->slot, k->seed, BLOCK_TOKENS);
}

static void launch(struct kernel *k, uint32_t stream, void (*run)(struct kvt_gpu_job *job))
{
    k->job = (struct kvt_gpu_job){ .run = run, .user = k };
    k->f->gpu->ops->submit(k->f->gpu, stream, &k->job);
}

static uint32_t compute_stream(struct fixture *f)
{
    uint32_t stream;
    assert_int_equal(f->gpu->ops->stream(f->gpu, f, &stream), KVT_OK);
    return stream;
}

/* Runs what the stream has left, in the one thread there is. */
static void crank(struct fixture *f, uint32_t stream)
{
    while (kvt_gpu_emulated_run(f->gpu, stream)) continue;
}

static bool stash_after_write(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    struct kernel write = { .f = &f, .slot = 1, .seed = 2 };
    fill_slot(&f, 1, 1); /* what was there before */
    launch(&write, compute, run_write);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    stash.after[1] = has_mark ? f.gpu->ops->mark(f.gpu, compute) : 0;
    submit(&f, &stash);
    struct kvt_tier_op *done;
    if (kvt_tier_poll(f.tier, &done, 1) == 0) {
        crank(&f, compute); /* the kernel is late */
        (void)poll_one(&f);
    } else {
        crank(&f, compute);
    }
    const bool is_exact = raw_holds(&f, f.host, 2, BLOCK_TOKENS);
    close_tier(&f);
    return is_exact;
}

static void b01_a_stash_sees_what_the_kernel_before_it_writes(void **state)
{
    (void)state;
    assert_true(stash_after_write(true));
    assert_false(stash_after_write(false)); /* the control: without the mark the old bytes are stashed */
}

static bool fetch_after_read(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op stash = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    fill_slot(&f, 1, 3);
    struct kernel read = { .f = &f, .slot = 1, .seed = 3 };
    launch(&read, compute, run_read);
    struct kvt_tier_op fetch = fetch_of(&stash, 1);
    fetch.after[0] = has_mark ? f.gpu->ops->mark(f.gpu, compute) : 0;
    submit(&f, &fetch);
    struct kvt_tier_op *done;
    const bool was_early = kvt_tier_poll(f.tier, &done, 1) == 1;
    crank(&f, compute);
    if (!was_early) (void)poll_one(&f);
    assert_true(slot_holds(&f, 1, 7, BLOCK_TOKENS));
    close_tier(&f);
    return read.was_equal;
}

static void b02_a_fetch_does_not_overwrite_what_a_kernel_still_reads(void **state)
{
    (void)state;
    assert_true(fetch_after_read(true));
    assert_false(fetch_after_read(false)); /* the control: without the mark the kernel reads the fetched bytes */
}

static bool reuse_after_stash(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    fill_slot(&f, 1, 1);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    submit(&f, &stash);
    if (has_mark) f.gpu->ops->wait(f.gpu, compute, stash.ret_mark);
    struct kernel write = { .f = &f, .slot = 1, .seed = 2 };
    launch(&write, compute, run_write);
    crank(&f, compute); /* the stash is late */
    (void)poll_one(&f);
    crank(&f, compute);
    assert_true(slot_holds(&f, 1, 2, BLOCK_TOKENS));
    const bool is_exact = raw_holds(&f, f.host, 1, BLOCK_TOKENS);
    close_tier(&f);
    return is_exact;
}

static void b03_a_slot_is_not_written_again_before_its_stash_has_read_it(void **state)
{
    (void)state;
    assert_true(reuse_after_stash(true));
    assert_false(reuse_after_stash(false));
}

static bool stash_after_fetch(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op first = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &first);
    fill_slot(&f, 1, 1);
    kvt_gpu_emulated_gate(f.gpu, KVT_DEVICE_STREAM_FETCH, true); /* the fetch is late */
    struct kvt_tier_op fetch = fetch_of(&first, 1);
    submit(&f, &fetch);
    struct kvt_tier_op second = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    second.host = f.host + HOST_BYTES;
    second.after[0] = has_mark ? fetch.ret_mark : 0;
    submit(&f, &second);
    struct kvt_tier_op *done[2];
    uint32_t count = kvt_tier_poll(f.tier, done, 2);
    kvt_gpu_emulated_gate(f.gpu, KVT_DEVICE_STREAM_FETCH, false);
    while (count < 2) count += kvt_tier_poll(f.tier, done, 2 - count);
    const bool is_exact = raw_holds(&f, second.host, 7, BLOCK_TOKENS);
    close_tier(&f);
    return is_exact;
}

static void b04_a_stash_of_a_slot_waits_for_the_fetch_that_fills_it(void **state)
{
    (void)state;
    assert_true(stash_after_fetch(true));
    assert_false(stash_after_fetch(false));
}

static bool read_after_fetch(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op stash = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    blank_slot(&f, 1);
    struct kvt_tier_op fetch = fetch_of(&stash, 1);
    submit(&f, &fetch);
    if (has_mark) f.gpu->ops->wait(f.gpu, compute, fetch.ret_mark);
    struct kernel read = { .f = &f, .slot = 1, .seed = 7 };
    launch(&read, compute, run_read);
    crank(&f, compute);
    (void)poll_one(&f);
    crank(&f, compute);
    close_tier(&f);
    return read.was_equal;
}

static void a_kernel_behind_the_mark_of_a_fetch_reads_its_bytes(void **state)
{
    (void)state;
    assert_true(read_after_fetch(true));
    assert_false(read_after_fetch(false));
}

static void threads_keep_the_four_orders_over_many_rounds(void **state)
{
    (void)state;
    enum { ROUNDS = 300 };
    struct fixture f;
    open_tier(&f, kvt_env_default(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        struct kernel write = { .f = &f, .slot = 1, .seed = round }, read = { .f = &f, .slot = 1, .seed = round };
        struct kernel spoil = { .f = &f, .slot = 1, .seed = 0 };
        launch(&write, compute, run_write);
        struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
        stash.after[0] = f.gpu->ops->mark(f.gpu, compute);
        submit(&f, &stash);
        f.gpu->ops->wait(f.gpu, compute, stash.ret_mark);
        launch(&spoil, compute, run_write);
        assert_ptr_equal(poll_one(&f), &stash);
        assert_true(raw_holds(&f, f.host, round, BLOCK_TOKENS));
        struct kvt_tier_op fetch = fetch_of(&stash, 1);
        fetch.after[0] = f.gpu->ops->mark(f.gpu, compute);
        submit(&f, &fetch);
        f.gpu->ops->wait(f.gpu, compute, fetch.ret_mark);
        launch(&read, compute, run_read);
        f.gpu->ops->synchronize(f.gpu, f.gpu->ops->mark(f.gpu, compute));
        assert_true(read.was_equal);
        assert_ptr_equal(poll_one(&f), &fetch);
    }
    close_tier(&f);
}

/* ---- Open ---------------------------------------------------------------------------------------------------------------- */

static void open_fails_cleanly_at_each_allocation(void **state)
{
    (void)state;
    const struct kvt_env env = kvt_env_default();
    const uint64_t mapped = kvt_table_bytes();
    for (uint32_t is_engine = 0; is_engine < 2; is_engine++) {
        struct fixture f;
        prepare(&f, plain, is_engine != 0);
        const struct kvt_device_tier_config config = config_of(&f, true);
        enum kvt_status status = KVT_NOMEM;
        uint64_t n = 0;
        while (status != KVT_OK) {
            kvt_alloc_fail_at(++n);
            status = kvt_device_tier_open(&config, &env, &f.tier);
            kvt_alloc_fail_at(0);
            if (status != KVT_OK) assert_int_equal(status, KVT_NOMEM);
        }
        assert_true(n > 5);
        close_tier(&f);
        assert_int_equal(kvt_table_bytes(), mapped);
    }
}

static void segments_that_cannot_hold_a_block_are_refused(void **state)
{
    (void)state;
    const struct kvt_env env = cranked();
    struct fixture f;
    prepare(&f, plain, true);
    const struct kvt_device_tier_config config = config_of(&f, false);
    f.segments.count--;
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_INVAL);
    f.segments.count++;
    f.stride[2] = f.segment_bytes - 1;
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_INVAL);
    f.stride[2] = f.segment_bytes;
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_OK);
    assert_null(f.tier->ops->map(f.tier, 0, 0)); /* the engine's memory is not ours to show */
    close_tier(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_and_dtype_comes_back_exact_in_both_forms),
        cmocka_unit_test(groups_of_equal_block_bytes_share_a_pool_and_others_do_not),
        cmocka_unit_test(a_copy_moves_the_valid_tokens_of_a_slot),
        cmocka_unit_test(only_the_valid_tokens_of_a_slot_are_read_and_written),
        cmocka_unit_test(a_stash_that_does_not_fit_is_full_and_may_be_asked_again_raw),
        cmocka_unit_test(damaged_bytes_are_corrupt_and_a_wrong_length_writes_nothing),
        cmocka_unit_test(a_copy_that_the_device_fails_comes_back_once_with_an_error),
        cmocka_unit_test(a_device_that_stops_answering_gives_no_completion_until_it_does),
        cmocka_unit_test(each_op_comes_back_exactly_once_through_a_bounded_queue),
        cmocka_unit_test(the_link_is_charged_for_the_form_that_crosses_it),
        cmocka_unit_test(b01_a_stash_sees_what_the_kernel_before_it_writes),
        cmocka_unit_test(b02_a_fetch_does_not_overwrite_what_a_kernel_still_reads),
        cmocka_unit_test(b03_a_slot_is_not_written_again_before_its_stash_has_read_it),
        cmocka_unit_test(b04_a_stash_of_a_slot_waits_for_the_fetch_that_fills_it),
        cmocka_unit_test(a_kernel_behind_the_mark_of_a_fetch_reads_its_bytes),
        cmocka_unit_test(threads_keep_the_four_orders_over_many_rounds),
        cmocka_unit_test(open_fails_cleanly_at_each_allocation),
        cmocka_unit_test(segments_that_cannot_hold_a_block_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
