/*
 * lfu: the slot that was used least often leaves first; of equal ones, the one whose last use is longest
 * ago.
 *
 * A slot counts its uses from its insert on; what left and came back starts at one again. The victim is the
 * lowest of the heap in ranked.h. What was popular once stays for ever: good for a fixed set of shared
 * prefixes, bad when they change.
 *
 * Source: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2),
 * 1970.
 */
#include "policy/policy.h"

#include "policy/ranked.h"
#include "policy/replay.h"
#include "runtime/base/mem.h"

struct kvt_policy {
    struct kvt_ranked ranked;
};

static void lfu_destroy(struct kvt_policy *lfu)
{
    if (!lfu) return;
    kvt_ranked_done(&lfu->ranked);
    kvt_free(lfu);
}

static enum kvt_status lfu_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *lfu = kvt_alloc(1, sizeof *lfu);
    if (!lfu) return KVT_NOMEM;
    if (kvt_ranked_init(&lfu->ranked, slot_count) != KVT_OK) {
        lfu_destroy(lfu);
        return KVT_NOMEM;
    }
    *ret_policy = lfu;
    return KVT_OK;
}

static void lfu_insert(struct kvt_policy *lfu, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_ranked_insert(&lfu->ranked, slot, 1);
}

static void lfu_touch(struct kvt_policy *lfu, uint32_t slot)
{
    kvt_ranked_use(&lfu->ranked, slot, (uint64_t)kvt_ranked_uses(&lfu->ranked, slot) + 1);
}

static void lfu_remove(struct kvt_policy *lfu, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    kvt_ranked_remove(&lfu->ranked, slot);
}

static void lfu_hold(struct kvt_policy *lfu, uint32_t slot) { kvt_ranked_hold(&lfu->ranked, slot); }
static void lfu_release(struct kvt_policy *lfu, uint32_t slot) { kvt_ranked_release(&lfu->ranked, slot); }
static uint32_t lfu_victim(struct kvt_policy *lfu) { return kvt_ranked_lowest(&lfu->ranked); }
static void lfu_verify(const struct kvt_policy *lfu) { kvt_ranked_verify(&lfu->ranked); }

KVT_REPLAY(lfu)

const struct kvt_policy_ops kvt_policy_lfu = {
    .name = "lfu",
    .summary = "least often used leaves first, of equal ones the least recently used",
    .create = lfu_create,
    .destroy = lfu_destroy,
    .insert = lfu_insert,
    .touch = lfu_touch,
    .hold = lfu_hold,
    .release = lfu_release,
    .remove = lfu_remove,
    .victim = lfu_victim,
    .verify = lfu_verify,
    .replay = kvt_replay_lfu,
};
