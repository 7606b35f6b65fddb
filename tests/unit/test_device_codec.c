/*
 * The device tier with the real codec: real KV is packed in the stash and comes back exact, at any alignment, while
 * base tables are learned, with stashes and fetches running side by side; damage is CORRUPT, or stays inside the
 * slot.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sched.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tests/unit/device_access.h"
#include "tiers/codec.h"
#include "tiers/device_tier.h"
#include "tools/run/pages.h"

#ifdef KVT_TEST_CUDA
#include "tests/fakes/cudart_fake.h"
#endif

enum { LAYERS = 4, SLOTS = 6, SEGMENTS = 2 * LAYERS, UNTOUCHED = 0xee };

struct rig {
    struct kvt_model_shape shape;
    struct kvt_codec *codec;
    struct kvt_tier *tier;
    uint64_t row_bytes, segment_bytes, block_bytes;
    uint8_t *memory; /* the engine's: segments at odd addresses with odd gaps */
    size_t memory_bytes;
    void *base[SEGMENTS];
    uint64_t stride[SEGMENTS];
    struct kvt_device_segments segments;
    uint8_t *host; /* SLOTS buffers of block_bytes; pinned where that is something */
    size_t host_bytes;
    bool is_pinned;
    uint8_t *kept; /* what was stashed, SLOTS raw blocks */
};

static bool are_buffers_pinned;

static void open_rig(struct rig *r, enum kvt_dtype dtype)
{
    *r = (struct rig){ 0 };
    r->shape = (struct kvt_model_shape){ .block_tokens = KVT_PAGES_TOKENS, .group_count = 1 };
    r->shape.groups[0] = (struct kvt_group_shape){
        .kind = KVT_GROUP_FULL, .dtype = dtype, .layers = LAYERS, .kv_heads = 2, .head_dim = KVT_PAGES_CHANNELS / 2
    };
    r->row_bytes = kvt_group_row_bytes(&r->shape.groups[0]);
    r->segment_bytes = r->row_bytes * KVT_PAGES_TOKENS;
    r->block_bytes = r->segment_bytes * SEGMENTS;
    r->memory_bytes = (r->segment_bytes + 64) * SEGMENTS * SLOTS;
    r->memory = device_alloc(r->memory_bytes);
    r->host_bytes = kvt_align_up(SLOTS * r->block_bytes, 4096);
    r->host = kvt_table_map(r->host_bytes);
    r->kept = kvt_alloc(SLOTS, r->block_bytes);
    assert_true(r->memory && r->host && r->kept);
    uint64_t at = 1;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        r->base[s] = r->memory + at;
        r->stride[s] = r->segment_bytes + 1 + 2 * s;
        at += r->stride[s] * SLOTS;
    }
    r->segments = (struct kvt_device_segments){ SEGMENTS, r->base, r->stride };
    assert_int_equal(kvt_codec_create(&r->shape, &r->codec), KVT_OK);
    assert_int_equal(kvt_codec_learn(r->codec, true), KVT_OK);
    const struct kvt_env env = kvt_env_default();
    const struct kvt_device_tier_config config = { .shape = r->shape,
                                                   .pool_count = 1,
                                                   .pool_slots = { SLOTS },
                                                   .segments = { &r->segments },
                                                   .gpu = DEVICE_OPS,
                                                   .codec = r->codec };
    assert_int_equal(kvt_device_tier_open(&config, &env, &r->tier), KVT_OK);
    struct kvt_gpu *gpu = kvt_device_tier_gpu(r->tier);
    r->is_pinned = are_buffers_pinned && gpu->ops->host_pin(gpu, r->host, r->host_bytes);
    assert_int_equal(r->is_pinned, are_buffers_pinned);
}

static void close_rig(struct rig *r)
{
    struct kvt_gpu *gpu = kvt_device_tier_gpu(r->tier);
    if (r->is_pinned) gpu->ops->host_unpin(gpu, r->host, r->host_bytes);
    kvt_tier_close(&r->tier);
    kvt_codec_destroy(&r->codec);
    device_free(r->memory, r->memory_bytes);
    kvt_table_unmap(r->host, r->host_bytes);
    kvt_free(r->kept);
}

static uint8_t *segment_at(const struct rig *r, uint32_t slot, uint32_t s)
{
    return (uint8_t *)r->base[s] + slot * r->stride[s];
}

static uint8_t *kept_at(const struct rig *r, uint32_t slot, uint32_t s)
{
    return r->kept + slot * r->block_bytes + s * r->segment_bytes;
}

/* Real KV where there is a sample of the type, mild noise elsewhere. */
static void fill(struct rig *r, uint32_t slot, struct kvt_rng *rng)
{
    size_t page_bytes;
    const uint8_t *pages = kvt_pages(r->shape.groups[0].dtype, &page_bytes);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        uint8_t *target = segment_at(r, slot, s);
        if (pages) {
            const uint64_t count = page_bytes / KVT_PAGES_LAYERS / (2 * r->segment_bytes);
            const uint64_t block = s / 2 * count + kvt_rng_below(rng, count);
            memcpy(target, pages + (block * 2 + s % 2) * r->segment_bytes, r->segment_bytes);
        } else {
            for (uint64_t i = 0; i < r->segment_bytes; i++) target[i] = (uint8_t)kvt_rng_below(rng, 4);
        }
        memcpy(kept_at(r, slot, s), target, r->segment_bytes);
    }
}

static bool is_exact(const struct rig *r, uint32_t slot, uint32_t source, uint32_t tokens)
{
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        if (memcmp(segment_at(r, slot, s), kept_at(r, source, s), tokens * r->row_bytes) != 0) return false;
    }
    return true;
}

static void blank(struct rig *r, uint32_t slot)
{
    for (uint32_t s = 0; s < SEGMENTS; s++) memset(segment_at(r, slot, s), UNTOUCHED, r->segment_bytes);
}

static bool is_untouched(const struct rig *r, uint32_t slot, uint32_t from_token)
{
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        for (uint64_t i = from_token * r->row_bytes; i < r->segment_bytes; i++) {
            if (segment_at(r, slot, s)[i] != UNTOUCHED) return false;
        }
    }
    return true;
}

static bool is_blank(const uint8_t *memory, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++) {
        if (memory[i] != UNTOUCHED) return false;
    }
    return true;
}

static void run_op(struct rig *r, struct kvt_tier_op *op)
{
    struct kvt_tier_op *done;
    assert_int_equal(kvt_tier_submit(r->tier, op), KVT_OK);
    while (kvt_tier_poll(r->tier, &done, 1) == 0) (void)sched_yield();
    assert_ptr_equal(done, op);
}

static struct kvt_tier_op stash_of(const struct rig *r, uint32_t slot, uint32_t tokens)
{
    return (struct kvt_tier_op){ .kind = KVT_OP_STASH,
                                 .slot = slot,
                                 .tokens = tokens,
                                 .form = KVT_FORM_PACKED,
                                 .host = r->host + slot * r->block_bytes,
                                 .host_capacity = (uint32_t)r->block_bytes };
}

static struct kvt_tier_op fetch_of(const struct kvt_tier_op *stash, uint32_t slot)
{
    return (struct kvt_tier_op){ .kind = KVT_OP_FETCH,
                                 .slot = slot,
                                 .tokens = stash->tokens,
                                 .host = stash->host,
                                 .form = stash->ret_form,
                                 .length = stash->ret_length };
}

static void real_kv_is_packed_and_comes_back_exact_at_odd_addresses(void **state)
{
    (void)state;
    for (uint32_t dtype = KVT_DTYPE_BF16; dtype <= KVT_DTYPE_INT8; dtype++) {
        struct rig r;
        struct kvt_rng rng = { dtype };
        open_rig(&r, (enum kvt_dtype)dtype);
        for (uint32_t round = 0; round < 48; round++) { /* enough tokens for the base tables to be learned on the way */
            const uint32_t tokens = round < 40 ? KVT_PAGES_TOKENS : 1 + (uint32_t)kvt_rng_below(&rng, KVT_PAGES_TOKENS);
            fill(&r, 0, &rng);
            struct kvt_tier_op stash = stash_of(&r, 0, tokens);
            run_op(&r, &stash);
            if (stash.status == KVT_FULL) { /* a short tail may gain too little */
                assert_true(tokens < KVT_PAGES_TOKENS);
                stash.form = KVT_FORM_RAW;
                run_op(&r, &stash);
            }
            assert_int_equal(stash.status, KVT_OK);
            assert_true(stash.ret_length <= tokens * r.row_bytes * SEGMENTS);
            if (tokens == KVT_PAGES_TOKENS) assert_true(stash.ret_length < r.block_bytes * 9 / 10);
            blank(&r, 1);
            struct kvt_tier_op fetch = fetch_of(&stash, 1);
            run_op(&r, &fetch);
            assert_int_equal(fetch.status, KVT_OK);
            assert_true(is_exact(&r, 1, 0, tokens));
            assert_true(is_untouched(&r, 1, tokens));
        }
        close_rig(&r);
    }
}

/*
 * Goal: some layers of a block, raw or packed, come alone, to their own places or to others', and nothing else is
 * written.
 */
static void some_layers_of_a_block_come_alone_to_any_place(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 60; round++) {
        struct rig r;
        struct kvt_rng rng = { round };
        open_rig(&r, round % 2 ? KVT_DTYPE_BF16 : KVT_DTYPE_FP32);
        fill(&r, 0, &rng);
        const uint32_t tokens = round % 3 ? KVT_PAGES_TOKENS : 1 + (uint32_t)kvt_rng_below(&rng, KVT_PAGES_TOKENS);
        struct kvt_tier_op stash = stash_of(&r, 0, tokens);
        if (round % 4 > 1) stash.form = KVT_FORM_RAW;
        run_op(&r, &stash);
        if (stash.status == KVT_FULL) {
            stash.form = KVT_FORM_RAW;
            run_op(&r, &stash);
        }
        assert_int_equal(stash.status, KVT_OK);
        blank(&r, 1);
        struct kvt_tier_op fetch = fetch_of(&stash, 1);
        fetch.layer_count = 1 + (uint32_t)kvt_rng_below(&rng, LAYERS);
        fetch.layer_first = (uint32_t)kvt_rng_below(&rng, LAYERS - fetch.layer_count + 1);
        fetch.layer_target = (uint32_t)kvt_rng_below(&rng, LAYERS - fetch.layer_count + 1);
        run_op(&r, &fetch);
        assert_int_equal(fetch.status, KVT_OK);
        assert_true(is_untouched(&r, 1, tokens));
        for (uint32_t s = 0; s < SEGMENTS; s++) {
            const bool is_written = s / 2 >= fetch.layer_target && s / 2 < fetch.layer_target + fetch.layer_count;
            const uint32_t source = s + 2 * fetch.layer_first - 2 * fetch.layer_target;
            if (is_written) assert_memory_equal(segment_at(&r, 1, s), kept_at(&r, 0, source), tokens * r.row_bytes);
            else assert_true(is_blank(segment_at(&r, 1, s), r.segment_bytes));
        }
        close_rig(&r);
    }
}

static void stashes_and_fetches_run_side_by_side(void **state)
{
    (void)state;
    enum { ROUNDS = 100 };
    struct rig r;
    struct kvt_rng rng = { 9 };
    open_rig(&r, KVT_DTYPE_BF16);
    fill(&r, 0, &rng);
    struct kvt_tier_op even = stash_of(&r, 0, KVT_PAGES_TOKENS);
    run_op(&r, &even);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        fill(&r, 1, &rng);
        blank(&r, 2);
        struct kvt_tier_op stash = stash_of(&r, 1, KVT_PAGES_TOKENS), fetch = fetch_of(&even, 2), *done[2];
        assert_int_equal(kvt_tier_submit(r.tier, &stash), KVT_OK);
        assert_int_equal(kvt_tier_submit(r.tier, &fetch), KVT_OK);
        for (uint32_t count = 0; count < 2;) {
            const uint32_t more = kvt_tier_poll(r.tier, done, 2);
            if (more == 0) (void)sched_yield();
            count += more;
        }
        assert_int_equal(stash.status, KVT_OK);
        assert_int_equal(fetch.status, KVT_OK);
        assert_true(is_exact(&r, 2, 0, KVT_PAGES_TOKENS));
        struct kvt_tier_op back = fetch_of(&stash, 3);
        run_op(&r, &back);
        assert_int_equal(back.status, KVT_OK);
        assert_true(is_exact(&r, 3, 1, KVT_PAGES_TOKENS));
    }
    close_rig(&r);
}

static void damage_is_corrupt_or_stays_inside_the_slot(void **state)
{
    (void)state;
    enum { ROUNDS = 500, TOKENS = 9 };
    struct rig r;
    struct kvt_rng rng = { 11 };
    uint32_t corrupt = 0;
    open_rig(&r, KVT_DTYPE_BF16);
    fill(&r, 0, &rng);
    struct kvt_tier_op stash = stash_of(&r, 0, TOKENS);
    run_op(&r, &stash);
    assert_int_equal(stash.status, KVT_OK);
    assert_int_equal(stash.ret_form, KVT_FORM_PACKED);
    uint8_t *packed = stash.host;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        /* Half of the damage to the directory, where it does the most harm. */
        const uint64_t at = kvt_rng_below(&rng, round % 2 ? stash.ret_length : 64);
        const uint8_t before = packed[at];
        struct kvt_tier_op fetch = fetch_of(&stash, 1);
        packed[at] ^= (uint8_t)(1 + kvt_rng_below(&rng, 255));
        if (round % 5 == 0) fetch.length = (uint32_t)kvt_rng_below(&rng, stash.ret_length);
        memset(r.memory, UNTOUCHED, r.memory_bytes);
        run_op(&r, &fetch);
        packed[at] = before;
        assert_true(fetch.status == KVT_CORRUPT || fetch.status == KVT_OK);
        if (fetch.status == KVT_CORRUPT) corrupt++;
        /* With the slot's valid tokens wiped out, nothing is left of what was written. */
        for (uint32_t s = 0; s < SEGMENTS; s++) memset(segment_at(&r, 1, s), UNTOUCHED, TOKENS * r.row_bytes);
        assert_true(is_blank(r.memory, r.memory_bytes));
    }
    assert_true(corrupt > ROUNDS / 4);
    close_rig(&r);
}

#ifdef KVT_TEST_CUDA

/* Packed and unpacked by the device, a call that fails is an error and never other bytes. */
static void the_device_packs_by_itself_and_says_so_when_it_cannot(void **state)
{
    (void)state;
    static const char *const calls[] = { "kvt_cuda_block_pack", "kvt_cuda_block_unpack", "cudaMemcpyAsync",
                                         "cudaEventRecord" };
    struct rig r;
    struct kvt_rng rng = { 21 };
    uint32_t errors = 0;
    open_rig(&r, KVT_DTYPE_BF16);
    for (uint32_t round = 0; round < 24; round++) { /* the tables are learned from what the CPU packs */
        fill(&r, 0, &rng);
        struct kvt_tier_op stash = stash_of(&r, 0, KVT_PAGES_TOKENS);
        run_op(&r, &stash);
        assert_int_equal(stash.status, KVT_OK);
    }
    const uint32_t packs = cudart_fake_calls(calls[0]), unpacks = cudart_fake_calls(calls[1]);
    for (uint32_t i = 0; i <= KVT_ARRAY_COUNT(calls) * 3; i++) {
        fill(&r, 0, &rng);
        blank(&r, 1);
        if (i > 0) cudart_fake_fail(calls[(i - 1) / 3], 1 + (i - 1) % 3, cudaErrorInvalidValue, false);
        struct kvt_tier_op stash = stash_of(&r, 0, KVT_PAGES_TOKENS);
        run_op(&r, &stash);
        errors += stash.status != KVT_OK;
        assert_true(stash.status == KVT_OK || stash.status == KVT_IO);
        if (stash.status != KVT_OK) continue;
        assert_int_equal(stash.ret_form, KVT_FORM_PACKED);
        struct kvt_tier_op fetch = fetch_of(&stash, 1);
        run_op(&r, &fetch);
        errors += fetch.status != KVT_OK;
        assert_true(fetch.status == KVT_OK || fetch.status == KVT_IO);
        if (fetch.status == KVT_OK) assert_true(is_exact(&r, 1, 0, KVT_PAGES_TOKENS));
    }
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(calls); i++) cudart_fake_fail(calls[i], 1, cudaSuccess, false);
    assert_true(cudart_fake_calls(calls[0]) >= packs + KVT_ARRAY_COUNT(calls) * 3);
    assert_true(cudart_fake_calls(calls[1]) > unpacks + KVT_ARRAY_COUNT(calls));
    assert_true(errors >= 5);
    close_rig(&r);
}

static int run_device(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_packs_by_itself_and_says_so_when_it_cannot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static int run_device(void) { return 0; }

#endif

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_kv_is_packed_and_comes_back_exact_at_odd_addresses),
        cmocka_unit_test(some_layers_of_a_block_come_alone_to_any_place),
        cmocka_unit_test(stashes_and_fetches_run_side_by_side),
        cmocka_unit_test(damage_is_corrupt_or_stays_inside_the_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * On CUDA the fake's memory is the CPU's, too; packed by the CPU, and, where the buffers are pinned, on the device.
 */
int main(void)
{
    if (!device_begin()) return DEVICE_SKIPPED;
    int failed = run_all();
    are_buffers_pinned = DEVICE_IS_CUDA;
    if (are_buffers_pinned) failed += run_all() + run_device();
    device_end();
    return failed;
}
