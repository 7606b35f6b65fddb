/*
 * replay: accesses counted by one policy, in one loop that is compiled together with it.
 *
 * The loop makes the calls of policy.h and no others, as a cache of blocks does: a hit touches; a miss evicts the
 * victim, inserts and releases. It is given the policy's own table as a constant, so the compiler puts the policy's
 * functions into it. What decides is the same source as everywhere else; only the calls are gone.
 *
 * A policy has it by one line before its table, KVT_REPLAY(word), and one in it, `.replay = kvt_replay_word`.
 *
 * Rules:
 * 1. struct kvt_policy has no pointers into itself: the loop works on a copy of it, which nothing else points to, so
 * that its fields are kept in registers.
 * 2. What the policy's calls are made of is KVT_INLINE where it is in a header: one call that is left makes the copy
 * one that somebody points to.
 *
 * Thread: the caller's lock.
 */
#ifndef KVT_POLICY_REPLAY_H
#define KVT_POLICY_REPLAY_H

#include "policy/order.h"
#include "policy/policy.h"

KVT_INLINE void kvt_replay_run(const struct kvt_policy_ops *ops, struct kvt_policy *policy, uint32_t *restrict slot_of,
                               uint32_t *restrict block_of, const uint32_t *restrict blocks, uint32_t count,
                               bool *restrict ret_is_hit)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t block = blocks[i];
        uint32_t slot = slot_of[block];
        __builtin_prefetch(&slot_of[blocks[i + KVT_REPLAY_AHEAD]], 1);
        ret_is_hit[i] = slot != KVT_POLICY_NONE;
        if (slot != KVT_POLICY_NONE) {
            ops->touch(policy, slot);
            continue;
        }
        slot = ops->victim(policy);
        ops->remove(policy, slot, KVT_POLICY_EVICTED);
        slot_of[block_of[slot]] = KVT_POLICY_NONE;
        slot_of[block] = slot;
        block_of[slot] = block;
        ops->insert(policy, slot, block);
        ops->release(policy, slot);
    }
}

#define KVT_REPLAY(word)                                                                                               \
    extern const struct kvt_policy_ops kvt_policy_##word;                                                              \
    __attribute__((flatten)) static void kvt_replay_##word(struct kvt_policy *policy, uint32_t *slot_of,               \
                                                           uint32_t *block_of, const uint32_t *blocks, uint32_t count, \
                                                           bool *ret_is_hit)                                           \
    {                                                                                                                  \
        struct kvt_policy copy = *policy;                                                                              \
        kvt_replay_run(&kvt_policy_##word, &copy, slot_of, block_of, blocks, count, ret_is_hit);                       \
        *policy = copy;                                                                                                \
    }

#endif
