/*
 * count: hits of a policy on a stream of accesses, without time or bytes. The very policies of the runtime, driven
 *        through
 * policy.h.
 *
 * Flat: each access stands alone: a hit touches, a miss evicts and inserts. Prefix: the hits of a request end at its
 *       first
 * block that is not there, as in the runtime; then all its blocks are touched or inserted, from the first on (HEAD) or
 * from the last on (TAIL: tails leave first). Several tiers are exclusive: a block is in one of them; what leaves one
 * goes to the next, and a hit brings it to the first.
 *
 * A policy that takes hints is told, in prefix mode, each block's place in its request, and in both modes what the
 * trace says of the request: its turn, why it stopped, its time.
 *
 * Thread: jobs share the accesses, which they only read; otherwise each is its own.
 */
#ifndef KVT_TOOLS_SIM_COUNT_H
#define KVT_TOOLS_SIM_COUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "tools/sim/accesses.h"

enum kvt_count_mode { KVT_COUNT_FLAT, KVT_COUNT_PREFIX };
enum kvt_count_order { KVT_COUNT_TAIL, KVT_COUNT_HEAD };

#define KVT_COUNT_TIERS_MAX 3

struct kvt_count_job {
    const struct kvt_accesses *accesses;
    const struct kvt_policy_ops *policy;       /* NULL: the bound (belady.h), one tier only */
    const struct kvt_admission_ops *admission; /* NULL: all; one tier only */
    enum kvt_count_mode mode;
    enum kvt_count_order order;
    uint32_t capacities[KVT_COUNT_TIERS_MAX]; /* blocks, at least 1 */
    uint32_t tier_count;
    uint32_t warmup_requests; /* the first so many fill the tiers and are not counted */
    uint32_t repeat;          /* how often the accesses are gone through, at least 1 */
    uint64_t seed;
};

struct kvt_count_result {
    uint64_t accesses, hits;
    uint64_t tokens, hit_tokens; /* the same in tokens: the last block of a request need not be full */
    uint64_t tier_hits[KVT_COUNT_TIERS_MAX];
    bool is_filled_before; /* all tiers were full when counting began */
    /* as accesses and hits, not of the warm-up: */
    uint64_t writes;    /* blocks inserted into the first tier; of a bound, not known: 0 */
    uint64_t evictions; /* blocks that left the last tier */
    bool is_filled;        /* all tiers were full at some time; where not, more room would change nothing */
    double seconds;        /* of this thread's processor time */
};

/* NOMEM. */
KVT_NODISCARD enum kvt_status kvt_count(const struct kvt_count_job *job, struct kvt_count_result *ret_result);

/*
 * Runs jobs on so many threads; ret_statuses[i] says how job i went. on_done, if any, is called after each job, by one
 * thread at a time.
 */
void kvt_count_all(const struct kvt_count_job *jobs, uint32_t job_count, uint32_t thread_count,
                   struct kvt_count_result *ret_results, enum kvt_status *ret_statuses,
                   void (*on_done)(void *user, uint32_t done), void *user);

#endif
