/*
 * workload-aware: what is least likely to be used again soon leaves first; how likely, is learned for each kind of use.
 *
 * A slot's kind is whom the next turn of its sequence waits for (a tool, a person, nobody, not known) and which turn it
 * was (the first, one of the next three, a later one, not known), as the hint of its last use says. Of each kind it learns
 * the mean time to the next use and the share of slots that had one, also of as many that were evicted as there are slots;
 * of all, how long a slot stays unused until it is evicted. The times to the next use are taken for exponential, so that
 * of a kind the slot unused for longest is the least likely: one list a kind, and only their coldest idle ones are
 * compared, by share * (exp(-t / mean) - exp(-(t + stay) / mean)). A kind with fewer than 64 samples takes those of all
 * turns that wait for the same; while there are not so many of these either, and where nothing is known, this is lru.
 *
 * Source: J. Wang et al., "KVCache Cache in the Wild: Characterizing and Optimizing KVCache Cache at a Large Cloud
 * Provider", USENIX ATC 2025, whose kinds are the provider's request types and turns, and whose distributions are
 * recent samples.
 */
#include <math.h>

#include "policy/policy.h"

#include "policy/ghost.h"
#include "policy/slots.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { TURN_UNKNOWN, TURN_FIRST, TURN_FEW, TURN_MANY, TURNS };
enum { NEXTS = KVT_POLICY_NEXT_NOBODY + 1 };

#define KINDS (NEXTS * TURNS)
#define SAMPLES_MIN 64u
#define SAMPLES_WINDOW 4096u /* a mean is one over so many samples, fading */

_Static_assert(KINDS <= KVT_SLOTS_LISTS_MAX, "one list a kind");

struct kind {
    double gap_mean; /* from a use to the next */
    double reused;   /* share of the samples that were used again */
    uint32_t gaps, samples;
};

/* Of a slot, or of a key that left. */
struct use {
    uint64_t at;
    uint64_t key_hash;
    uint32_t kind; /* of a key that left */
};

enum { LEFT, GHOST_LIST_COUNT };

struct kvt_policy {
    struct kvt_slots slots;
    struct kvt_ghosts ghosts; /* keys that left, and did not come back yet */
    struct use *uses;         /* by slot */
    struct use *ghost_uses;   /* by ghost */
    struct kind kinds[KINDS];
    struct kind nexts[NEXTS]; /* of all turns */
    double stay_mean; /* from the last use to the eviction */
    uint32_t stays;
    uint32_t kind; /* of the uses to come */
    uint64_t now;  /* milliseconds where hints have a clock, else uses */
    bool is_clocked;
};

static uint64_t uses_bytes(const struct kvt_policy *aware)
{
    return ((uint64_t)aware->slots.slot_count + 1) * sizeof aware->uses[0];
}

static void workload_aware_destroy(struct kvt_policy *aware)
{
    if (!aware) return;
    kvt_table_unmap(aware->ghost_uses, uses_bytes(aware));
    kvt_table_unmap(aware->uses, uses_bytes(aware));
    kvt_ghosts_done(&aware->ghosts);
    kvt_slots_done(&aware->slots);
    kvt_free(aware);
}

static enum kvt_status init(struct kvt_policy *aware, uint32_t slot_count)
{
    KVT_TRY(kvt_slots_init(&aware->slots, slot_count, KINDS));
    KVT_TRY(kvt_ghosts_init(&aware->ghosts, slot_count, GHOST_LIST_COUNT));
    aware->uses = kvt_table_map(uses_bytes(aware));
    aware->ghost_uses = kvt_table_map(uses_bytes(aware));
    return aware->uses && aware->ghost_uses ? KVT_OK : KVT_NOMEM;
}

static enum kvt_status workload_aware_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *aware = kvt_alloc(1, sizeof *aware);
    if (!aware) return KVT_NOMEM;
    if (init(aware, slot_count) != KVT_OK) {
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

static uint32_t turn_class(uint32_t turn)
{
    if (turn == KVT_POLICY_UNKNOWN) return TURN_UNKNOWN;
    if (turn == 0) return TURN_FIRST;
    return turn <= 3 ? TURN_FEW : TURN_MANY;
}

static void workload_aware_hint(struct kvt_policy *aware, const struct kvt_policy_hint *hint)
{
    aware->kind = (uint32_t)hint->next * TURNS + turn_class(hint->turn);
    if (hint->now_ms == 0) return;
    aware->is_clocked = true;
    aware->now = kvt_max_u64(aware->now, hint->now_ms);
}

static void learn_reuse(struct kvt_policy *aware, uint32_t kind, uint64_t used_at)
{
    struct kind *const learning[] = { &aware->kinds[kind], &aware->nexts[kind / TURNS] };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(learning); i++) {
        sample(&learning[i]->gap_mean, &learning[i]->gaps, (double)(aware->now - used_at));
        sample(&learning[i]->reused, &learning[i]->samples, 1);
    }
}

static void workload_aware_insert(struct kvt_policy *aware, uint32_t slot, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&aware->ghosts, key_hash);
    tick(aware);
    if (ghost != KVT_GHOST_NONE) {
        learn_reuse(aware, aware->ghost_uses[ghost].kind, aware->ghost_uses[ghost].at);
        kvt_ghosts_forget(&aware->ghosts, ghost);
    }
    kvt_slots_insert(&aware->slots, slot, aware->kind);
    aware->uses[slot] = (struct use){ .at = aware->now, .key_hash = key_hash };
}

static void workload_aware_touch(struct kvt_policy *aware, uint32_t slot)
{
    KVT_ASSERT(slot < aware->slots.slot_count);
    tick(aware);
    learn_reuse(aware, kvt_slots_list(&aware->slots, slot), aware->uses[slot].at);
    kvt_slots_use(&aware->slots, slot, aware->kind);
    aware->uses[slot].at = aware->now;
}

static void workload_aware_hold(struct kvt_policy *aware, uint32_t slot) { kvt_slots_hold(&aware->slots, slot); }

/* A use lasts until its release; what comes next is known by then. */
static void workload_aware_release(struct kvt_policy *aware, uint32_t slot)
{
    KVT_ASSERT(slot < aware->slots.slot_count);
    if (kvt_slots_is_held(&aware->slots, slot) && (aware->slots.bits[slot] & KVT_SLOT_WARM)) {
        kvt_slots_use(&aware->slots, slot, aware->kind);
        aware->uses[slot].at = aware->now;
    }
    kvt_slots_release(&aware->slots, slot);
}

/* An evicted key may still come back; that it did not is known when it is the oldest of as many as there are slots. */
static void workload_aware_remove(struct kvt_policy *aware, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t kind = kvt_slots_remove(&aware->slots, slot);
    const struct use *use = &aware->uses[slot];
    if (why != KVT_POLICY_EVICTED) return;
    sample(&aware->stay_mean, &aware->stays, (double)(aware->now - use->at));
    const uint32_t known = kvt_ghosts_find(&aware->ghosts, use->key_hash);
    if (known == KVT_GHOST_NONE && aware->ghosts.count == aware->ghosts.capacity) {
        const uint32_t oldest = kvt_ghosts_oldest(&aware->ghosts, LEFT);
        const uint32_t of = aware->ghost_uses[oldest].kind;
        sample(&aware->kinds[of].reused, &aware->kinds[of].samples, 0);
        sample(&aware->nexts[of / TURNS].reused, &aware->nexts[of / TURNS].samples, 0);
        kvt_ghosts_forget(&aware->ghosts, oldest);
    }
    const uint32_t ghost = kvt_ghosts_remember(&aware->ghosts, use->key_hash, LEFT);
    aware->ghost_uses[ghost] = (struct use){ .at = use->at, .kind = kind };
}

/* What is known of the kind; NULL: not enough. */
static const struct kind *known_of(const struct kvt_policy *aware, uint32_t kind)
{
    if (aware->kinds[kind].samples >= SAMPLES_MIN) return &aware->kinds[kind];
    return aware->nexts[kind / TURNS].samples >= SAMPLES_MIN ? &aware->nexts[kind / TURNS] : NULL;
}

/* That it is used again before it would be evicted. */
static double probability(const struct kvt_policy *aware, uint32_t kind, uint32_t slot)
{
    const struct kind *of = known_of(aware, kind);
    const double mean = of->gap_mean > 1 ? of->gap_mean : 1;
    const double unused = (double)(aware->now - aware->uses[slot].at);
    return of->reused * exp(-unused / mean) * (1 - exp(-(aware->stay_mean + 1) / mean));
}

static uint32_t workload_aware_victim(struct kvt_policy *aware)
{
    uint32_t candidates[KINDS], count = 0, oldest = KVT_POLICY_NONE;
    bool is_known = true;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        candidates[kind] = KVT_POLICY_NONE;
        if (aware->slots.size[kind] > 0) candidates[kind] = kvt_slots_coldest_idle(&aware->slots, kind);
        const uint32_t slot = candidates[kind];
        if (slot == KVT_POLICY_NONE) continue;
        count++;
        is_known = is_known && known_of(aware, kind) != NULL;
        if (oldest == KVT_POLICY_NONE || aware->uses[slot].at < aware->uses[oldest].at) oldest = slot;
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
    kvt_ghosts_verify(&aware->ghosts);
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
