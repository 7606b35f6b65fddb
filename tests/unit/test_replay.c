/*
 * replay: the loop that is compiled together with a policy decides as the policy's calls through its table do, access
 * for access and slot for slot.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

enum { BLOCKS = 400, SLOTS_MAX = 300, ACCESSES = 6000, CHUNK_MAX = 700 };

struct pool {
    struct kvt_policy *policy;
    uint32_t slot_of[BLOCKS];
    uint32_t block_of[SLOTS_MAX];
};

/* As a runtime calls. True: the block was there. */
static bool use(const struct kvt_policy_ops *ops, struct pool *pool, uint32_t block, uint32_t slot_count,
                uint32_t *used)
{
    uint32_t slot = pool->slot_of[block];
    if (slot != KVT_POLICY_NONE) {
        ops->touch(pool->policy, slot);
        return true;
    }
    if (*used < slot_count) {
        slot = (*used)++;
    } else {
        slot = ops->victim(pool->policy);
        ops->remove(pool->policy, slot, KVT_POLICY_EVICTED);
        pool->slot_of[pool->block_of[slot]] = KVT_POLICY_NONE;
    }
    pool->slot_of[block] = slot;
    pool->block_of[slot] = block;
    ops->insert(pool->policy, slot, block);
    ops->release(pool->policy, slot);
    return false;
}

/* Some blocks often, runs of neighbours, and some that come once in a while. */
static void make_accesses(uint32_t *blocks, struct kvt_rng *rng)
{
    for (uint32_t i = 0; i < ACCESSES + KVT_REPLAY_AHEAD;) {
        const uint64_t kind = kvt_rng_below(rng, 4);
        const uint32_t range = kind == 0 ? 8 : kind == 1 ? 60 : BLOCKS;
        uint32_t block = (uint32_t)kvt_rng_below(rng, range);
        const uint32_t run = 1 + (uint32_t)kvt_rng_below(rng, kind == 2 ? 40 : 3);
        for (uint32_t n = 0; n < run && i < ACCESSES + KVT_REPLAY_AHEAD; n++) blocks[i++] = (block + n) % BLOCKS;
    }
}

static void hint(const struct kvt_policy_ops *ops, struct pool *a, struct pool *b, struct kvt_rng *rng)
{
    const struct kvt_policy_hint known = {
        .offset = (uint32_t)kvt_rng_below(rng, 6),
        .length = (uint32_t)kvt_rng_below(rng, 8),
        .found = KVT_POLICY_UNKNOWN,
        .turn = (uint32_t)kvt_rng_below(rng, 4),
        .next = (enum kvt_policy_next)kvt_rng_below(rng, 4),
    };
    if (!ops->hint) return;
    ops->hint(a->policy, &known);
    ops->hint(b->policy, &known);
}

static void compare(const struct kvt_policy_ops *ops, uint32_t slot_count, uint64_t seed)
{
    static uint32_t blocks[ACCESSES + KVT_REPLAY_AHEAD];
    static struct pool called, replayed;
    struct kvt_rng rng = { .state = seed };
    bool is_hit[CHUNK_MAX];
    uint32_t used = 0, twin_used = 0, at = 0;
    make_accesses(blocks, &rng);
    memset(called.slot_of, 0xff, sizeof called.slot_of);
    memset(replayed.slot_of, 0xff, sizeof replayed.slot_of);
    assert_int_equal(ops->create(slot_count, seed, &called.policy), KVT_OK);
    assert_int_equal(ops->create(slot_count, seed, &replayed.policy), KVT_OK);
    for (; used < slot_count && at < ACCESSES; at++) {
        (void)use(ops, &called, blocks[at], slot_count, &used);
        (void)use(ops, &replayed, blocks[at], slot_count, &twin_used);
    }
    /* Chunk by chunk, now and then one by calls: what the loop leaves behind is a policy like any other. */
    while (at < ACCESSES) {
        const uint32_t count = kvt_min_u32((uint32_t)kvt_rng_below(&rng, CHUNK_MAX + 1), ACCESSES - at);
        hint(ops, &called, &replayed, &rng);
        if (kvt_rng_below(&rng, 4) > 0) {
            ops->replay(replayed.policy, replayed.slot_of, replayed.block_of, &blocks[at], count, is_hit);
        } else {
            for (uint32_t i = 0; i < count; i++) is_hit[i] = use(ops, &replayed, blocks[at + i], slot_count, &used);
        }
        for (uint32_t i = 0; i < count; i++) {
            if (use(ops, &called, blocks[at + i], slot_count, &used) != is_hit[i])
                fail_msg("%s, %u slots, seed %u: access %u", ops->name, slot_count, (unsigned)seed, at + i);
        }
        ops->verify(replayed.policy);
        assert_memory_equal(called.slot_of, replayed.slot_of, sizeof called.slot_of);
        assert_memory_equal(called.block_of, replayed.block_of, slot_count * sizeof called.block_of[0]);
        at += count;
    }
    ops->destroy(called.policy);
    ops->destroy(replayed.policy);
}

static void every_policy_replays_as_it_is_called(void **state)
{
    (void)state;
    static const uint32_t capacities[] = { 1, 2, 3, 5, 10, 33, 100, SLOTS_MAX };
    uint32_t compared = 0;
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        const struct kvt_policy_ops *ops = kvt_policy_at(i);
        if (!ops->replay) {
            print_message("%s is counted by its calls only\n", ops->name);
            continue;
        }
        compared++;
        for (uint32_t c = 0; c < KVT_ARRAY_COUNT(capacities); c++) {
            for (uint64_t seed = 1; seed <= 4; seed++) compare(ops, capacities[c], seed);
        }
    }
    assert_true(compared >= 12); /* none has lost its loop */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_replays_as_it_is_called),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
