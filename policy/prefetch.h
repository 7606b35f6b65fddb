/*
 * prefetch: prefetch policies say when an idle sequence is likely to be used next, from what others like it did.
 *
 * Rules: those of policy.h. Time is data here, too: whoever asks says how long the sequence has been idle. What is said
 * is a guess; it may cost time when it is wrong, and never bytes.
 *
 * Thread: under the runtime's lock.
 */
#ifndef KVT_POLICY_PREFETCH_H
#define KVT_POLICY_PREFETCH_H

#include "policy/policy.h"

/* What is known of a sequence that is idle between two turns. */
struct kvt_prefetch_known {
    enum kvt_policy_next next; /* whom its next turn waits for */
    uint32_t turn;             /* the one that ended, the first is 0; KVT_POLICY_UNKNOWN */
};

struct kvt_prefetch_forecast {
    /* From now on until the share that was asked for of those that still come has come; UINT64_MAX: none does. */
    uint64_t wait_ns;
    double alive; /* 0 to 1: that it still comes at all; 0 too while nothing is known */
};

struct kvt_prefetcher; /* each implementation's own struct */

struct kvt_prefetcher_ops {
    const char *name;
    const char *summary; /* one line for --help */

    /* NOMEM. It knows nothing yet. */
    enum kvt_status (*create)(uint64_t seed, struct kvt_prefetcher **ret_prefetch);
    void (*destroy)(struct kvt_prefetcher *prefetch);

    /* What became of a sequence that had been idle for so long: used again, or ended. */
    void (*returned)(struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known, uint64_t idle_ns);
    void (*ended)(struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known, uint64_t idle_ns);

    /* Of one that has been idle for so long. share: above 0, at most 1. */
    void (*forecast)(const struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known, uint64_t idle_ns,
                     double share, struct kvt_prefetch_forecast *ret_forecast);
    /* 0 to 1: that one which has been idle for so long comes within the next within_ns. */
    double (*within)(const struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known, uint64_t idle_ns,
                     uint64_t within_ns);

    /* Walks everything and asserts; tests only. */
    void (*verify)(const struct kvt_prefetcher *prefetch);
};

/* NULL when there is none of that name. */
const struct kvt_prefetcher_ops *kvt_prefetcher_find(const char *name);
/* The i-th registered one, NULL past the end. */
const struct kvt_prefetcher_ops *kvt_prefetcher_at(uint32_t i);

#endif
