/*
 * gdsf: greedy dual, size, frequency. A use is worth more the later it comes, so that what was popular once
 * does age.
 *
 * A slot's rank at each use is L + uses * cost / size. All slots of a pool have the same size, and a block
 * costs what its tokens cost to compute, so cost / size is 1 here. L starts at 0 and becomes the rank of
 * whatever was evicted last: newcomers are ranked from there, and a slot that is no longer used is overtaken
 * after as many units of L as it had uses. The victim is the lowest rank; of equal ones, the one whose last
 * use is longest ago.
 *
 * Source: L. Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy",
 * HP Laboratories HPL-98-69, 1998.
 */
#include "policy/policy.h"

#include "policy/ranked.h"
#include "policy/replay.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

struct kvt_policy {
    struct kvt_ranked ranked;
    uint64_t inflation; /* L */
};

static void gdsf_destroy(struct kvt_policy *gdsf)
{
    if (!gdsf) return;
    kvt_ranked_done(&gdsf->ranked);
    kvt_free(gdsf);
}

static enum kvt_status gdsf_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *gdsf = kvt_alloc(1, sizeof *gdsf);
    if (!gdsf) return KVT_NOMEM;
    if (kvt_ranked_init(&gdsf->ranked, slot_count) != KVT_OK) {
        gdsf_destroy(gdsf);
        return KVT_NOMEM;
    }
    *ret_policy = gdsf;
    return KVT_OK;
}

static void gdsf_insert(struct kvt_policy *gdsf, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_ranked_insert(&gdsf->ranked, slot, gdsf->inflation + 1);
}

static void gdsf_touch(struct kvt_policy *gdsf, uint32_t slot)
{
    const uint64_t uses = (uint64_t)kvt_ranked_uses(&gdsf->ranked, slot) + 1;
    kvt_ranked_use(&gdsf->ranked, slot, gdsf->inflation + uses);
}

static void gdsf_remove(struct kvt_policy *gdsf, uint32_t slot, enum kvt_policy_why why)
{
    if (why == KVT_POLICY_EVICTED) {
        gdsf->inflation = kvt_max_u64(gdsf->inflation, kvt_ranked_rank(&gdsf->ranked, slot));
    }
    kvt_ranked_remove(&gdsf->ranked, slot);
}

static void gdsf_hold(struct kvt_policy *gdsf, uint32_t slot) { kvt_ranked_hold(&gdsf->ranked, slot); }
static void gdsf_release(struct kvt_policy *gdsf, uint32_t slot) { kvt_ranked_release(&gdsf->ranked, slot); }
static uint32_t gdsf_victim(struct kvt_policy *gdsf) { return kvt_ranked_lowest(&gdsf->ranked); }
static void gdsf_verify(const struct kvt_policy *gdsf) { kvt_ranked_verify(&gdsf->ranked); }

KVT_REPLAY(gdsf)

const struct kvt_policy_ops kvt_policy_gdsf = {
    .name = "gdsf",
    .summary = "uses count, and count for more the later they come",
    .create = gdsf_create,
    .destroy = gdsf_destroy,
    .insert = gdsf_insert,
    .touch = gdsf_touch,
    .hold = gdsf_hold,
    .release = gdsf_release,
    .remove = gdsf_remove,
    .victim = gdsf_victim,
    .verify = gdsf_verify,
    .replay = kvt_replay_gdsf,
};
