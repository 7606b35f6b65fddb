/*
 * length-aware: lfu, where of equally often used slots the one that stands latest in its sequence leaves first.
 *
 * The rank of a slot is its uses and, below them, how near its place is to the head of its sequence, as the hint of its
 * last use says; the lowest of the heap in ranked.h leaves, of equal ones that whose last use is longest ago. A prefix
 * is worth nothing without its head, and a long prompt's tail is what is least likely to be shared. As with lfu, what
 * was popular once stays for ever. Where no place is known it is lfu.
 *
 * Source: the LengthAwareCache of R. Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025.
 */
#include "policy/policy.h"

#include "policy/ranked.h"
#include "policy/replay.h"
#include "runtime/base/mem.h"

struct kvt_policy {
    struct kvt_ranked ranked;
    uint32_t offset; /* of the uses to come */
};

static void length_aware_destroy(struct kvt_policy *aware)
{
    if (!aware) return;
    kvt_ranked_done(&aware->ranked);
    kvt_free(aware);
}

static enum kvt_status length_aware_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *aware = kvt_alloc(1, sizeof *aware);
    if (!aware) return KVT_NOMEM;
    if (kvt_ranked_init(&aware->ranked, slot_count) != KVT_OK) {
        length_aware_destroy(aware);
        return KVT_NOMEM;
    }
    *ret_policy = aware;
    return KVT_OK;
}

static uint64_t rank_of(const struct kvt_policy *aware, uint32_t uses)
{
    const uint32_t offset = aware->offset == KVT_POLICY_UNKNOWN ? 0 : aware->offset;
    return ((uint64_t)uses << 32) + (UINT32_MAX - offset);
}

static void length_aware_hint(struct kvt_policy *aware, const struct kvt_policy_hint *hint)
{
    aware->offset = hint->offset;
}

static void length_aware_insert(struct kvt_policy *aware, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_ranked_insert(&aware->ranked, slot, rank_of(aware, 1));
}

static void length_aware_touch(struct kvt_policy *aware, uint32_t slot)
{
    const uint32_t uses = kvt_ranked_uses(&aware->ranked, slot);
    kvt_ranked_use(&aware->ranked, slot, rank_of(aware, uses == UINT32_MAX ? uses : uses + 1));
}

static void length_aware_remove(struct kvt_policy *aware, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    kvt_ranked_remove(&aware->ranked, slot);
}

static void length_aware_hold(struct kvt_policy *aware, uint32_t slot) { kvt_ranked_hold(&aware->ranked, slot); }
static void length_aware_release(struct kvt_policy *aware, uint32_t slot) { kvt_ranked_release(&aware->ranked, slot); }
static uint32_t length_aware_victim(struct kvt_policy *aware) { return kvt_ranked_lowest(&aware->ranked); }
static void length_aware_verify(const struct kvt_policy *aware) { kvt_ranked_verify(&aware->ranked); }

KVT_REPLAY(length_aware)

const struct kvt_policy_ops kvt_policy_length_aware = {
    .name = "length-aware",
    .summary = "lfu, where of equally often used ones the latest in its sequence leaves first",
    .create = length_aware_create,
    .destroy = length_aware_destroy,
    .insert = length_aware_insert,
    .touch = length_aware_touch,
    .hold = length_aware_hold,
    .release = length_aware_release,
    .remove = length_aware_remove,
    .victim = length_aware_victim,
    .hint = length_aware_hint,
    .verify = length_aware_verify,
    .replay = kvt_replay_length_aware,
};
