/*
 * Blocks in an engine's own tensors: a map for each group says where, and the bytes go through host memory and come
 * back to exactly those places. What no block could lie in is refused by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kvtier/kvtier.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

enum { BLOCK_TOKENS = 16, GROUPS = 2, SEGMENTS = 4, SLOTS = 5, BLOCKS = 2, TEXTS = 6, GUARD = 0xa5 };

struct engine {
    struct kvt_config config;
    struct kvt_device_map maps[GROUPS];
    void *base[GROUPS][SEGMENTS];
    uint64_t stride[GROUPS][SEGMENTS];
    uint8_t *memory;
    size_t memory_bytes;
    uint64_t segment_bytes;
    struct kvt_runtime *runtime;
    uint64_t wrong;
};

/* Tensors one behind the other, an odd gap after each slot. is_shared: both groups' blocks lie in the same ones. */
static void prepare(struct engine *e, bool is_shared)
{
    *e = (struct engine){ .config = kvt_config_default(), .memory_bytes = KVT_MIB };
    const struct kvt_group_shape group = {
        .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 32
    };
    e->config.shape = (struct kvt_model_shape){ .block_tokens = BLOCK_TOKENS,
                                                .group_count = GROUPS,
                                                .groups = { group, group } };
    e->config.shape.groups[1].kind = KVT_GROUP_WINDOW;
    e->config.shape.groups[1].window_tokens = BLOCKS * BLOCK_TOKENS;
    e->config.device = KVT_DEVICE_EMULATED;
    e->config.host_bytes = KVT_MIB;
    e->config.device_maps = e->maps;
    e->segment_bytes = BLOCK_TOKENS * kvt_group_row_bytes(&group);
    e->memory = kvt_table_map(e->memory_bytes);
    memset(e->memory, GUARD, e->memory_bytes);
    uint64_t at = 7;
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t s = 0; s < SEGMENTS; s++) {
            e->base[g][s] = is_shared && g > 0 ? e->base[0][s] : e->memory + at;
            e->stride[g][s] = e->segment_bytes + 3 + 2 * s;
            at += is_shared && g > 0 ? 0 : SLOTS * e->stride[g][s] + 11;
        }
        e->maps[g] = (struct kvt_device_map){ .slots = SLOTS,
                                              .segment_count = SEGMENTS,
                                              .base = e->base[g],
                                              .stride = e->stride[g],
                                              .bytes = e->segment_bytes };
    }
    assert_true(at < e->memory_bytes);
}

static void finish(struct engine *e)
{
    kvt_close(&e->runtime);
    kvt_table_unmap(e->memory, e->memory_bytes);
}

static uint8_t *place(const struct engine *e, uint32_t group, uint32_t slot, uint32_t segment)
{
    return (uint8_t *)e->base[group][segment] + slot * e->stride[group][segment];
}

/* What a kernel does to all blocks of a sequence, in its step. */
struct kernel {
    struct engine *e;
    uint32_t slots[GROUPS][BLOCKS];
    uint64_t text;
    bool is_write;
};

static void run_kernel(void *user)
{
    struct kernel *k = user;
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t i = 0; i < BLOCKS * SEGMENTS; i++) {
            uint8_t *bytes = place(k->e, g, k->slots[g][i / SEGMENTS], i % SEGMENTS);
            for (uint64_t b = 0; b < k->e->segment_bytes; b++) {
                const uint8_t wanted = (uint8_t)kvt_mix64(k->text * 131 + g * 17 + i * 100003 + b * 7);
                if (k->is_write) bytes[b] = wanted;
                else k->e->wrong += bytes[b] != wanted;
            }
        }
    }
}

/* A whole request: what is found is compared, what is not is written. Returns the tokens that were found. */
static uint64_t serve(struct engine *e, uint32_t text)
{
    uint32_t tokens[BLOCKS * BLOCK_TOKENS + 1];
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(tokens); i++) tokens[i] = text * 1000 + i;
    const struct kvt_seq_params params = { .tokens = tokens,
                                           .token_count = KVT_ARRAY_COUNT(tokens),
                                           .reuse_max = UINT64_MAX };
    const kvt_stream stream = kvt_device_stream(e->runtime, 0);
    kvt_seq seq;
    uint64_t reused, first, count;
    assert_int_equal(kvt_seq_create(e->runtime, &params, &seq, &reused), KVT_OK);
    enum kvt_room room = KVT_ROOM_PENDING;
    while (reused == 0 && room == KVT_ROOM_PENDING) {
        assert_int_equal(kvt_seq_append(e->runtime, seq, BLOCKS * BLOCK_TOKENS, &room), KVT_OK);
        if (room == KVT_ROOM_PENDING) (void)kvt_wait(e->runtime, 1000000);
    }
    struct kvt_step_entry entry = { .seq = seq, .ready = KVT_NOT_READY };
    kvt_step step = 0;
    while (entry.ready == KVT_NOT_READY) {
        assert_int_equal(kvt_step_begin(e->runtime, &entry, 1, stream, &step), KVT_OK);
        if (entry.ready == KVT_NOT_READY) (void)kvt_wait(e->runtime, 1000000);
    }
    assert_int_equal(entry.ready, KVT_READY);
    struct kernel kernel = { .e = e, .text = text, .is_write = reused == 0 };
    for (uint32_t g = 0; g < GROUPS; g++) {
        assert_int_equal(kvt_seq_table(e->runtime, seq, g, kernel.slots[g], BLOCKS, &first, &count), KVT_OK);
        assert_int_equal(count, BLOCKS);
        for (uint32_t b = 0; b < BLOCKS; b++) assert_true(kernel.slots[g][b] < SLOTS);
    }
    assert_int_equal(kvt_emulated_launch(e->runtime, stream, run_kernel, &kernel), KVT_OK);
    if (reused == 0)
        assert_int_equal(kvt_seq_commit(e->runtime, seq, tokens, BLOCKS * BLOCK_TOKENS, 0, stream), KVT_OK);
    assert_int_equal(kvt_step_end(e->runtime, step), KVT_OK);
    assert_true(kvt_device_wait(e->runtime, stream, UINT64_MAX));
    assert_int_equal(kvt_seq_finish(e->runtime, seq, true), KVT_OK);
    return reused;
}

static void assert_gaps_are_untouched(const struct engine *e)
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t i = 0; i < SLOTS * SEGMENTS; i++) {
            const uint8_t *end = place(e, g, i / SEGMENTS, i % SEGMENTS) + e->segment_bytes;
            for (uint64_t b = e->segment_bytes; b < e->stride[g][i % SEGMENTS]; b++)
                assert_int_equal(end[b - e->segment_bytes], GUARD);
        }
    }
}

static void blocks_in_an_engines_tensors_go_down_and_come_back_in_place(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct engine e;
        char error[256] = "";
        prepare(&e, (i & 1) != 0);
        e.config.is_codec_off = (i & 2) != 0;
        if (kvt_open(&e.config, &e.runtime, error, sizeof error) != KVT_OK) fail_msg("open: %s", error);
        assert_int_equal(kvt_device_slots(e.runtime, 0), SLOTS);
        assert_null(kvt_device_slot(e.runtime, 0, 0)); /* the engine knows where it is */
        for (uint32_t text = 0; text < TEXTS; text++) assert_int_equal(serve(&e, text), 0);
        /* More than the slots hold: the first ones have been in host memory. */
        for (uint32_t text = 0; text < TEXTS; text++) assert_int_equal(serve(&e, text), BLOCKS * BLOCK_TOKENS);
        assert_int_equal(e.wrong, 0);
        struct kvt_stats stats;
        kvt_stats(e.runtime, &stats);
        assert_true(stats.fetches >= 2 * BLOCKS);
        assert_gaps_are_untouched(&e);
        finish(&e);
    }
}

static void a_group_without_a_map_has_memory_of_kvtiers(void **state)
{
    (void)state;
    struct engine e;
    char error[256] = "";
    prepare(&e, false);
    e.maps[1].segment_count = 0;
    e.config.device_bytes = 3 * SEGMENTS * e.segment_bytes;
    if (kvt_open(&e.config, &e.runtime, error, sizeof error) != KVT_OK) fail_msg("open: %s", error);
    assert_int_equal(kvt_device_slots(e.runtime, 0), SLOTS);
    assert_int_equal(kvt_device_slots(e.runtime, 1), 3);
    assert_null(kvt_device_slot(e.runtime, 0, 1));
    assert_non_null(kvt_device_slot(e.runtime, 1, 2));
    /* What is not there is said to be nowhere. */
    assert_null(kvt_device_slot(e.runtime, 1, 3));
    assert_null(kvt_device_slot(e.runtime, 2, 0));
    assert_null(kvt_device_slot(e.runtime, UINT32_MAX, UINT32_MAX));
    assert_int_equal(kvt_device_slots(e.runtime, 2), 0);
    assert_null(kvt_host_alloc(e.runtime, 0));
    assert_int_equal(kvt_emulated_launch(e.runtime, NULL, NULL, NULL), KVT_INVAL);
    finish(&e);
}

static void a_map_that_does_not_fit_the_shape_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const texts[] = { "segment_count is 3",     "bytes is 1023",          "slots is 0",
                                         "base or stride is NULL", "device_maps[1].base[2]", "stride[3] is 1" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(texts); i++) {
        struct engine e;
        char error[256] = "";
        prepare(&e, false);
        struct kvt_device_map *map = &e.maps[1];
        if (i == 0) map->segment_count--;
        if (i == 1) map->bytes--;
        if (i == 2) map->slots = 0;
        if (i == 3) map->stride = NULL;
        if (i == 4) e.base[1][2] = NULL;
        if (i == 5) e.stride[1][3] = 1;
        assert_int_equal(kvt_open(&e.config, &e.runtime, error, sizeof error), KVT_INVAL);
        if (!strstr(error, texts[i])) fail_msg("%s: %s", texts[i], error);
        assert_null(strchr(error, '\n'));
        finish(&e);
    }
}

/* Goal: two blocks in one byte would be other bytes for one of them. */
static void segments_that_overlap_are_refused_and_interleaved_ones_are_not(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct engine e;
        char error[256] = "";
        prepare(&e, false);
        const uint64_t bytes = e.segment_bytes, stride = GROUPS * SEGMENTS * bytes;
        /* Slot by slot, all segments of a slot one behind the other. */
        for (uint32_t s = 0; s < GROUPS * SEGMENTS; s++) {
            e.base[s / SEGMENTS][s % SEGMENTS] = e.memory + s * bytes;
            e.stride[s / SEGMENTS][s % SEGMENTS] = stride;
        }
        if (i == 1) e.base[1][3] = e.memory + 6 * bytes + 1;             /* into the one before */
        if (i == 2) e.base[1][3] = e.memory + 7 * bytes + 1;             /* into the next slot of the first one */
        if (i == 3) e.base[0][1] = e.base[0][0];                         /* the same */
        if (i == 4) e.base[0][0] = e.memory + 2 * stride + 5 * bytes - 1; /* another group's, some slots on */
        if (i == 5) e.stride[1][3] = UINT64_MAX / 3;                     /* beyond all memory */
        const enum kvt_status status = kvt_open(&e.config, &e.runtime, error, sizeof error);
        assert_int_equal(status, i == 0 ? KVT_OK : KVT_INVAL);
        if (i > 0) assert_non_null(strstr(error, i == 5 ? "stride[3]" : "overlaps"));
        finish(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_in_an_engines_tensors_go_down_and_come_back_in_place),
        cmocka_unit_test(a_group_without_a_map_has_memory_of_kvtiers),
        cmocka_unit_test(a_map_that_does_not_fit_the_shape_is_refused_by_name),
        cmocka_unit_test(segments_that_overlap_are_refused_and_interleaved_ones_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
