/*
 * lru-reward: least recently used, but each hit pushes a slot's time into the future.
 *
 * A new slot's time is now. A hit sets it to max(its time, now) + reward, so a slot that is hit k times
 * within a while outlives by k rewards one that is not. Now is the count of uses, and the reward is the
 * number of slots: at least the time in which an LRU of this size forgets. The victim is the earliest time;
 * of equal ones, the one whose last use is longest ago. Shared prefixes and running conversations gather
 * hits; one-shot prompts do not, and leave first. Rewards of 2 to 64 times the slots gain at some sizes of
 * the traces it was tried on and lose to plain lru at others; this one never lost.
 *
 * Source: the hit reward of FlexKV's prefix tree (its eviction guide), with uses for seconds; the idea is
 * that of the greedy dual: N. Young, "The k-server dual and loose competitiveness for paging", Algorithmica
 * 11, 1994.
 */
#include "policy/policy.h"

#include "policy/ranked.h"
#include "policy/replay.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

struct kvt_policy {
    struct kvt_ranked ranked;
};

static void lru_reward_destroy(struct kvt_policy *lru)
{
    if (!lru) return;
    kvt_ranked_done(&lru->ranked);
    kvt_free(lru);
}

static enum kvt_status lru_reward_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *lru = kvt_alloc(1, sizeof *lru);
    if (!lru) return KVT_NOMEM;
    if (kvt_ranked_init(&lru->ranked, slot_count) != KVT_OK) {
        lru_reward_destroy(lru);
        return KVT_NOMEM;
    }
    *ret_policy = lru;
    return KVT_OK;
}

static void lru_reward_insert(struct kvt_policy *lru, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_ranked_insert(&lru->ranked, slot, lru->ranked.now);
}

static void lru_reward_touch(struct kvt_policy *lru, uint32_t slot)
{
    const uint64_t reward = lru->ranked.slot_count;
    const uint64_t rank = kvt_max_u64(kvt_ranked_rank(&lru->ranked, slot), lru->ranked.now);
    kvt_ranked_use(&lru->ranked, slot, rank + reward);
}

static void lru_reward_remove(struct kvt_policy *lru, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    kvt_ranked_remove(&lru->ranked, slot);
}

static void lru_reward_hold(struct kvt_policy *lru, uint32_t slot) { kvt_ranked_hold(&lru->ranked, slot); }
static void lru_reward_release(struct kvt_policy *lru, uint32_t slot) { kvt_ranked_release(&lru->ranked, slot); }
static uint32_t lru_reward_victim(struct kvt_policy *lru) { return kvt_ranked_lowest(&lru->ranked); }
static void lru_reward_verify(const struct kvt_policy *lru) { kvt_ranked_verify(&lru->ranked); }

KVT_REPLAY(lru_reward)

const struct kvt_policy_ops kvt_policy_lru_reward = {
    .name = "lru-reward",
    .summary = "least recently used, where a hit counts as a use in the future",
    .create = lru_reward_create,
    .destroy = lru_reward_destroy,
    .insert = lru_reward_insert,
    .touch = lru_reward_touch,
    .hold = lru_reward_hold,
    .release = lru_reward_release,
    .remove = lru_reward_remove,
    .victim = lru_reward_victim,
    .verify = lru_reward_verify,
    .replay = kvt_replay_lru_reward,
};
