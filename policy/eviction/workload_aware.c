/*
 * workload-aware: what is least likely to be used again soon leaves first; how likely, is learned for each kind of use.
 *
 * A slot's kind is whom the next turn of its sequence waits for, as the hint of its last use says: a tool, a person,
 * nobody, or not known. Of each kind it learns the mean time to the next use and the share of slots that had one before
 * they were evicted; of all, how long a slot stays unused until it is evicted. The times to the next use are taken for
 * exponential, so that of a kind the slot unused for longest is the least likely: one list a kind, and only their
 * coldest idle ones are compared, by share * (exp(-t / mean) - exp(-(t + stay) / mean)). Within a request its tail
 * leaves before its head. Until there are 64 samples of each kind that is there, and where nothing is known, this is
 * lru.
 *
 * Source: J. Wang et al., "KVCache Cache in the Wild: Characterizing and Optimizing KVCache Cache at a Large Cloud
 * Provider", USENIX ATC 2025, whose kinds are the provider's request types and turns, and whose distributions are
 * recent samples.
 */
#include <math.h>

#include "policy/policy.h"

#include "policy/slots.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define KINDS KVT_SLOTS_LISTS_MAX
#define SAMPLES_MIN 64u
#define SAMPLES_WINDOW 4096u /* a mean is one over so many samples, fading */

_Static_assert(KVT_POLICY_NEXT_NOBODY < KINDS, "one list a kind");

struct kind {
    double gap_mean; /* from a use to the next */
    double reused;   /* share of the samples that were used again */
    uint32_t gaps, samples;
};

struct kvt_policy {
    struct kvt_slots slots;
    uint64_t *used_at; /* by slot */
    struct kind kinds[KINDS];
    double stay_mean; /* from the last use to the eviction */
    uint32_t stays;
    uint32_t next; /* kind of the uses to come */
    uint64_t now;  /* milliseconds where hints have a clock, else uses */
    bool is_clocked;
};

static uint64_t used_at_bytes(const struct kvt_policy *aware)
{
    return ((uint64_t)aware->slots.slot_count + 1) * sizeof aware->used_at[0];
}

static void workload_aware_destroy(struct kvt_policy *aware)
{
    if (!aware) return;
    kvt_table_unmap(aware->used_at, used_at_bytes(aware));
    kvt_slots_done(&aware->slots);
    kvt_free(aware);
}

static enum kvt_status workload_aware_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *aware = kvt_alloc(1, sizeof *aware);
    if (!aware) return KVT_NOMEM;
    if (kvt_slots_init(&aware->slots, slot_count, KINDS) == KVT_OK)
        aware->used_at = kvt_table_map(used_at_bytes(aware));
    if (!aware->used_at) {
        workload_aware_destroy(aware);
        return KVT_NOMEM;
    }
    *ret_policy = aware;
    return KVT_OK;
}

/* A mean over the last samples, more or less. */
static void sample(double *mean, uint32_t *count, double value)
{
    if (*count < SAMPLES_WINDOW) (*count)++;
    *mean += (value - *mean) / *count;
}

static void tick(struct kvt_policy *aware)
{
    if (!aware->is_clocked) aware->now++;
}

static void workload_aware_hint(struct kvt_policy *aware, const struct kvt_policy_hint *hint)
{
    aware->next = hint->next;
    if (hint->now_ms == 0) return;
    aware->is_clocked = true;
    aware->now = kvt_max_u64(aware->now, hint->now_ms);
}

static void workload_aware_insert(struct kvt_policy *aware, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    tick(aware);
    kvt_slots_insert(&aware->slots, slot, aware->next);
    aware->used_at[slot] = aware->now;
}

static void workload_aware_touch(struct kvt_policy *aware, uint32_t slot)
{
    KVT_ASSERT(slot < aware->slots.slot_count);
    struct kind *kind = &aware->kinds[kvt_slots_list(&aware->slots, slot)];
    tick(aware);
    kvt_slots_use(&aware->slots, slot, aware->next);
    sample(&kind->gap_mean, &kind->gaps, (double)(aware->now - aware->used_at[slot]));
    sample(&kind->reused, &kind->samples, 1);
    aware->used_at[slot] = aware->now;
}

static void workload_aware_hold(struct kvt_policy *aware, uint32_t slot) { kvt_slots_hold(&aware->slots, slot); }

/* A use lasts until its release; what comes next is known by then. */
static void workload_aware_release(struct kvt_policy *aware, uint32_t slot)
{
    KVT_ASSERT(slot < aware->slots.slot_count);
    if (kvt_slots_is_held(&aware->slots, slot) && (aware->slots.bits[slot] & KVT_SLOT_WARM)) {
        kvt_slots_use(&aware->slots, slot, aware->next);
        aware->used_at[slot] = aware->now;
    }
    kvt_slots_release(&aware->slots, slot);
}

static void workload_aware_remove(struct kvt_policy *aware, uint32_t slot, enum kvt_policy_why why)
{
    struct kind *kind = &aware->kinds[kvt_slots_remove(&aware->slots, slot)];
    if (why != KVT_POLICY_EVICTED) return;
    sample(&kind->reused, &kind->samples, 0);
    sample(&aware->stay_mean, &aware->stays, (double)(aware->now - aware->used_at[slot]));
}

/* That it is used again before it would be evicted. */
static double probability(const struct kvt_policy *aware, uint32_t kind, uint32_t slot)
{
    const struct kind *of = &aware->kinds[kind];
    const double mean = of->gap_mean > 1 ? of->gap_mean : 1;
    const double unused = (double)(aware->now - aware->used_at[slot]);
    return of->reused * exp(-unused / mean) * (1 - exp(-(aware->stay_mean + 1) / mean));
}

static uint32_t workload_aware_victim(struct kvt_policy *aware)
{
    uint32_t candidates[KINDS], count = 0, oldest = KVT_POLICY_NONE;
    bool is_known = true;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        candidates[kind] = kvt_slots_coldest_idle(&aware->slots, kind);
        const uint32_t slot = candidates[kind];
        if (slot == KVT_POLICY_NONE) continue;
        count++;
        is_known = is_known && aware->kinds[kind].samples >= SAMPLES_MIN;
        if (oldest == KVT_POLICY_NONE || aware->used_at[slot] < aware->used_at[oldest]) oldest = slot;
    }
    if (count <= 1 || !is_known) return oldest;
    uint32_t least = KVT_POLICY_NONE;
    double least_probability = 0;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        if (candidates[kind] == KVT_POLICY_NONE) continue;
        const double p = probability(aware, kind, candidates[kind]);
        if (least != KVT_POLICY_NONE && p >= least_probability) continue;
        least = candidates[kind];
        least_probability = p;
    }
    return least;
}

static void workload_aware_verify(const struct kvt_policy *aware)
{
    (void)kvt_slots_verify(&aware->slots, KINDS);
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        KVT_ASSERT(aware->kinds[kind].reused >= 0);
        KVT_ASSERT(aware->kinds[kind].reused <= 1);
    }
}

const struct kvt_policy_ops kvt_policy_workload_aware = {
    .name = "workload-aware",
    .summary = "what is least likely to be used soon leaves first, learned for each kind of use",
    .create = workload_aware_create,
    .destroy = workload_aware_destroy,
    .insert = workload_aware_insert,
    .touch = workload_aware_touch,
    .hold = workload_aware_hold,
    .release = workload_aware_release,
    .remove = workload_aware_remove,
    .victim = workload_aware_victim,
    .hint = workload_aware_hint,
    .verify = workload_aware_verify,
};
