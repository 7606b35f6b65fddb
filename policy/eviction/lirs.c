/*
 * lirs: low inter-reference recency. Ranks a slot by the distance between its last two uses, not by the last
 * one.
 *
 * The slots whose last two uses were close to each other fill 99 % of the pool; newcomers and all others go
 * through the rest, and are kept only when they come back while they, or their keys, are younger than the
 * oldest of the 99 %. lirs_stack.h says how. As many keys are remembered as there are slots: the paper
 * leaves the bound open. Twice as many give about 2 points more hits on a trace of conversations at small
 * sizes. At large sizes a pool of 1 % is too small for newcomers: lirs-duel.
 *
 * Source: S. Jiang, X. Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to
 * improve buffer cache performance", SIGMETRICS 2002.
 */
#include "policy/policy.h"

#include "policy/lirs_stack.h"
#include "policy/replay.h"
#include "runtime/base/mem.h"

#define HIR_PERCENT 1u

struct kvt_policy {
    struct kvt_lirs lirs;
};

static void lirs_destroy(struct kvt_policy *policy)
{
    if (!policy) return;
    kvt_lirs_done(&policy->lirs);
    kvt_free(policy);
}

static enum kvt_status lirs_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *policy = kvt_alloc(1, sizeof *policy);
    if (!policy) return KVT_NOMEM;
    if (kvt_lirs_init(&policy->lirs, slot_count, kvt_lirs_share(slot_count, HIR_PERCENT), slot_count) != KVT_OK) {
        lirs_destroy(policy);
        return KVT_NOMEM;
    }
    *ret_policy = policy;
    return KVT_OK;
}

static void lirs_insert(struct kvt_policy *policy, uint32_t slot, uint64_t key_hash)
{
    kvt_lirs_insert(&policy->lirs, slot, key_hash);
}

static void lirs_touch(struct kvt_policy *policy, uint32_t slot) { kvt_lirs_touch(&policy->lirs, slot); }
static void lirs_hold(struct kvt_policy *policy, uint32_t slot) { kvt_slots_hold(&policy->lirs.slots, slot); }
static void lirs_release(struct kvt_policy *policy, uint32_t slot) { kvt_slots_release(&policy->lirs.slots, slot); }

static void lirs_remove(struct kvt_policy *policy, uint32_t slot, enum kvt_policy_why why)
{
    kvt_lirs_remove(&policy->lirs, slot, why);
}

static uint32_t lirs_victim(struct kvt_policy *policy) { return kvt_lirs_victim(&policy->lirs); }

static void lirs_verify(const struct kvt_policy *policy)
{
    kvt_lirs_verify(&policy->lirs);
    KVT_ASSERT(policy->lirs.slots.size[KVT_LIRS_LIR] <= policy->lirs.lir_max);
}

KVT_REPLAY(lirs)

const struct kvt_policy_ops kvt_policy_lirs = {
    .name = "lirs",
    .summary = "keeps what is used again soon, by the distance between its last two uses",
    .create = lirs_create,
    .destroy = lirs_destroy,
    .insert = lirs_insert,
    .touch = lirs_touch,
    .hold = lirs_hold,
    .release = lirs_release,
    .remove = lirs_remove,
    .victim = lirs_victim,
    .verify = lirs_verify,
    .replay = kvt_replay_lirs,
};
