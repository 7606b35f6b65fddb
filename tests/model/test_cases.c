/* Single cases on the model's world: what the random calls found, and what must hold at every block boundary. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_emulated.h"
#include "runtime/residency.h"
#include "tests/fakes/nvme_memory.h"
#include "tests/model/calls.h"
#include "tiers/device_tier.h"

enum { BLOCK_TOKENS = 4, BLOCKS = 12, TOKENS = BLOCKS * BLOCK_TOKENS };

static struct world world; /* large */

static const struct kvt_group_shape full = {
    .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 1, .kv_heads = 1, .head_dim = 8
};
static const struct kvt_group_shape window = {
    .kind = KVT_GROUP_WINDOW, .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 8, .window_tokens = 10
};
static const struct kvt_group_shape state_group = {
    .kind = KVT_GROUP_STATE, .dtype = KVT_DTYPE_BF16, .layers = 1, .state_bytes = 48
};

/* A calm world: no faults, room for everything. */
static struct world_config calm(uint32_t group_count, const struct kvt_group_shape *groups)
{
    struct world_config config = { .seed = 1,
                                   .shape = { .block_tokens = BLOCK_TOKENS, .group_count = group_count },
                                   .blocks_max = 4096,
                                   .host_chunks = 16,
                                   .chunk_bytes = 4096,
                                   .sequences_max = 12,
                                   .transfers_max = 64,
                                   .device_policy = "lru",
                                   .host_policy = "lru",
                                   .prefetch = KVT_PREFETCH_DEMAND,
                                   .deadline_ns = UINT64_C(1) << 60,
                                   .is_careful = true };
    memcpy(config.shape.groups, groups, group_count * sizeof *groups);
    for (uint32_t g = 0; g < group_count; g++) config.pool_slots[g] = 64;
    return config;
}

static void fill_ids(uint32_t *ids, uint32_t count, uint32_t branch_at, uint32_t branch)
{
    for (uint32_t i = 0; i < count; i++) ids[i] = i < branch_at ? 100 + i : 1000 * branch + i;
}

/* A cached prefix is asked for at every length: what is found has no hole in its window, and is read. */
static void reuse_at_every_length(struct world_config config, bool is_snapshot)
{
    uint32_t ids[TOKENS + 1];
    world_open(&world, &config);
    fill_ids(ids, TOKENS + 1, TOKENS + 1, 0);
    uint32_t index = calls_create(&world, ids, TOKENS + 1, UINT64_MAX, 0, false);
    for (uint32_t t = 0; t < TOKENS; t += BLOCK_TOKENS) calls_decode(&world, index, ids + t, BLOCK_TOKENS, is_snapshot);
    calls_finish_sequence(&world, index, true);
    for (uint32_t limit = 0; limit <= TOKENS; limit++) {
        index = calls_create(&world, ids, TOKENS + 1, limit, 0, false);
        /* nothing was ever dropped */
        assert_int_equal(world.sequences[index].tokens, limit / BLOCK_TOKENS * BLOCK_TOKENS);
        calls_decode(&world, index, ids + world.sequences[index].tokens, 1, false);
        calls_finish_sequence(&world, index, true);
    }
    calls_finish(&world);
    world_close(&world);
}

static void b61_a_prefix_of_a_window_model_is_reused_with_its_whole_window(void **state)
{
    (void)state;
    const struct kvt_group_shape groups[] = { full, window, state_group };
    reuse_at_every_length(calm(1, &groups[1]), false);
    reuse_at_every_length(calm(2, groups), false);
    reuse_at_every_length(calm(3, groups), true);
}

/* Window blocks that slid out are dropped one by one; what is still found is the exact window, or less. */
static void a_branch_inside_a_cached_prefix_gets_the_exact_window_or_less(void **state)
{
    (void)state;
    const struct kvt_group_shape groups[] = { full, window };
    for (uint32_t dropped = 0; dropped < BLOCKS; dropped++) {
        const struct world_config config = calm(2, groups);
        uint32_t ids[TOKENS + 8];
        world_open(&world, &config);
        fill_ids(ids, TOKENS, TOKENS, 0);
        uint32_t index = calls_create(&world, ids, TOKENS, UINT64_MAX, 0, false);
        calls_decode(&world, index, ids, TOKENS, false);
        const uint32_t block = world_core_sequence(&world, &world.sequences[index])->groups[1].blocks[dropped];
        const uint32_t gone = block != KVT_NO_BLOCK
            ? block
            : kvt_prefix_find(
                &world.core.prefix, 1,
                kvt_core_block(&world.core,
                               world_core_sequence(&world, &world.sequences[index])->groups[0].blocks[dropped])
                    ->key);
        assert_int_not_equal(gone, KVT_NO_BLOCK);
        calls_finish_sequence(&world, index, true);
        for (uint32_t n = 0; n < 20; n++) world_round(&world);
        kvt_block_unindex(&world.core, gone); /* as if it had been evicted from every tier */
        world.core.counters.dropped_blocks++;
        for (uint32_t branch = 1; branch <= BLOCKS; branch++) {
            fill_ids(ids, TOKENS + 1, branch * BLOCK_TOKENS, branch);
            index = calls_create(&world, ids, TOKENS + 1, UINT64_MAX, 0, false);
            const uint32_t reused = world.sequences[index].tokens;
            const uint32_t first = twin_first_needed(&world.twin, 1, branch * BLOCK_TOKENS);
            const bool is_touched = dropped >= first && dropped < branch;
            if (is_touched) assert_true(reused < branch * BLOCK_TOKENS);
            else assert_int_equal(reused, branch * BLOCK_TOKENS);
            for (uint32_t i = twin_first_needed(&world.twin, 1, reused); i < reused / BLOCK_TOKENS; i++)
                assert_int_not_equal(i, dropped);
            calls_finish_sequence(&world, index, true);
        }
        calls_finish(&world);
        world_close(&world);
    }
}

static void b17_nothing_stays_claimed_or_held_when_no_sequence_lives(void **state)
{
    (void)state;
    const struct kvt_group_shape groups[] = { full, window, state_group };
    struct world_config config = calm(3, groups);
    config.nvme_records = 40;
    for (uint32_t g = 0; g < 3; g++) config.pool_slots[g] = 20;
    uint32_t ids[TOKENS];
    fill_ids(ids, TOKENS, TOKENS, 0);
    world_open(&world, &config);
    for (uint32_t n = 0; n < 10; n++) {
        /* Found and held, and never loaded. */
        const uint32_t a = calls_create(&world, ids, TOKENS, UINT64_MAX, 0, true);
        const uint32_t b = calls_create(&world, ids, TOKENS, UINT64_MAX, 0, false);
        if (n % 2 == 0)
            calls_decode(&world, b, ids + world.sequences[b].tokens, TOKENS - world.sequences[b].tokens, true);
        calls_finish_sequence(&world, a, true);
        calls_finish_sequence(&world, b, true);
        for (uint32_t r = 0; r < 10; r++) world_round(&world);
        world_verify(&world);
        for (uint32_t p = 0; p < world.core.config.pool_count; p++) assert_int_equal(world.core.pools[p].claimed, 0);
        assert_int_equal(kvt_nvme_memory_holds(world.nvme), 0);
    }
    calls_finish(&world);
    world_close(&world);
}

/* A fork's state starts as a copy of its parent's; the parent goes on before the copy has begun. */
static void a_fork_gets_the_state_at_the_fork_though_its_parent_goes_on(void **state)
{
    (void)state;
    const struct world_config config = calm(1, &state_group);
    uint32_t ids[TOKENS];
    fill_ids(ids, TOKENS, TOKENS, 0);
    world_open(&world, &config);
    const uint32_t parent = calls_create(&world, ids, TOKENS, UINT64_MAX, 0, false);
    calls_decode(&world, parent, ids, 6, false);
    enum kvt_room room;
    assert_int_equal(kvt_sequence_append(&world.core, world_core_sequence(&world, &world.sequences[parent]), 3, &room),
                     KVT_OK);
    assert_int_equal(kvt_sequence_idle(&world.core, world_core_sequence(&world, &world.sequences[parent])), KVT_OK);
    struct kvt_sequence *fork;
    assert_int_equal(kvt_sequence_fork(&world.core, world_core_sequence(&world, &world.sequences[parent]), &fork),
                     KVT_OK);
    const uint32_t child = parent + 1;
    world.sequences[child] = world.sequences[parent];
    world.sequences[child].handle = kvt_sequence_handle(&world.core, fork);
    assert_int_equal(kvt_sequence_resume(&world.core, world_core_sequence(&world, &world.sequences[parent]), &room),
                     KVT_OK);
    calls_decode(&world, parent, ids + 6, 5, false); /* the child is idle: nothing of its copy has begun */
    assert_int_equal(kvt_sequence_resume(&world.core, fork, &room), KVT_OK);
    calls_decode(&world, child, ids + 6, 1, false);
    calls_finish(&world);
    world_close(&world);
}

/* The mark of a slot's last use survives a sequence that takes the slot, does not use it, and has an older mark. */
static void the_mark_of_a_slot_never_goes_back(void **state)
{
    (void)state;
    const struct world_config config = calm(1, &full);
    uint32_t ids[TOKENS];
    fill_ids(ids, TOKENS, TOKENS, 0);
    world_open(&world, &config);
    const uint32_t index = calls_create(&world, ids, TOKENS, UINT64_MAX, 0, false);
    calls_decode(&world, index, ids, 2, false);
    const uint32_t tail = world_core_sequence(&world, &world.sequences[index])->groups[0].blocks[0];
    const struct kvt_block *block = kvt_core_block(&world.core, tail);
    struct kvt_pool_slot *slot = &world.core.pools[0].slots[block->device_slot];
    const uint32_t stream = world.engine_streams[0];
    const kvt_mark newer = kvt_mark_make(stream, kvt_mark_serial(world.gpu->ops->mark(world.gpu, stream)) + 8);
    slot->mark = 0;
    kvt_slot_mark(&world.core, block, newer);
    kvt_slot_mark(&world.core, block, kvt_mark_make(stream, kvt_mark_serial(newer) - 3));
    kvt_slot_mark(&world.core, block, 0);
    assert_int_equal(slot->mark, newer);
    slot->mark = 0;
    calls_finish(&world);
    world_close(&world);
}

/* Device and host full of what idle sequences hold: an active one that comes back is ready all the same. */
static void two_full_tiers_do_not_wait_for_each_other(void **state)
{
    (void)state;
    struct world_config config = calm(1, &full);
    config.pool_slots[0] = 6;
    config.host_chunks = 1; /* eight slots */
    uint32_t index[4];
    world_open(&world, &config);
    for (uint32_t s = 0; s < 3; s++) {
        uint32_t ids[4 * BLOCK_TOKENS];
        fill_ids(ids, 4 * BLOCK_TOKENS, 0, s + 1);
        index[s] = calls_create(&world, ids, 4 * BLOCK_TOKENS, UINT64_MAX, 0, false);
        calls_decode(&world, index[s], ids, 4 * BLOCK_TOKENS, false);
        assert_int_equal(kvt_sequence_idle(&world.core, world_core_sequence(&world, &world.sequences[index[s]])),
                         KVT_OK);
    }
    calls_finish(&world); /* brings each of them back */
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b61_a_prefix_of_a_window_model_is_reused_with_its_whole_window),
        cmocka_unit_test(a_branch_inside_a_cached_prefix_gets_the_exact_window_or_less),
        cmocka_unit_test(b17_nothing_stays_claimed_or_held_when_no_sequence_lives),
        cmocka_unit_test(a_fork_gets_the_state_at_the_fork_though_its_parent_goes_on),
        cmocka_unit_test(the_mark_of_a_slot_never_goes_back),
        cmocka_unit_test(two_full_tiers_do_not_wait_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
