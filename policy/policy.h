/*
 * policy: orders. Eviction policies order the slots of one pool, admission policies say yes or no.
 *
 * Rules:
 * 1. Pure and deterministic: no clock, I/O, lock, log; no allocation after create. Time, if needed, is a count of
 *    calls.
 * 2. Per-slot data lives in the policy's own arrays, indexed by slot, never in the block.
 * 3. The core never names a policy: one file plus one line in registry.c. A need of one policy becomes data for all,
 *    or is refused.
 *
 * Thread:  under the runtime's lock.
 */
#ifndef KVT_POLICY_POLICY_H
#define KVT_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

#define KVT_POLICY_NONE UINT32_MAX

enum kvt_policy_why {
    KVT_POLICY_EVICTED, /* made room for another; a policy may remember its key (a ghost) */
    KVT_POLICY_DROPPED  /* its content ended (reset, released, lost); nothing may be remembered */
};

#define KVT_POLICY_UNKNOWN UINT32_MAX

/* Whom the next use of a sequence waits for, once its answer is there. */
enum kvt_policy_next {
    KVT_POLICY_NEXT_UNKNOWN,
    KVT_POLICY_NEXT_TOOL,   /* a program: it will be back soon */
    KVT_POLICY_NEXT_PERSON, /* somebody who reads and thinks first */
    KVT_POLICY_NEXT_NOBODY  /* the conversation is over */
};

/*
 * What the caller knows of a use. Time enters here and nowhere else: policies have no clock. All of it is a guess that
 * may be wrong, and costs hits then, never bytes.
 */
struct kvt_policy_hint {
    uint32_t offset;           /* the block's place in its sequence, in blocks; KVT_POLICY_UNKNOWN */
    uint32_t length;           /* blocks of the sequence; KVT_POLICY_UNKNOWN */
    uint32_t found;            /* so many of its first blocks were there when it was looked up; KVT_POLICY_UNKNOWN */
    uint32_t turn;             /* of its conversation, the first is 0; KVT_POLICY_UNKNOWN */
    enum kvt_policy_next next; /* after this use */
    uint64_t now_ms;           /* from any start, never going back; 0: there is no clock */
};

struct kvt_policy; /* each implementation's own struct */

/* So many accesses early replay asks the memory for a block's slot. */
#define KVT_REPLAY_AHEAD 12u

/* A slot is absent, held (pinned, moving: never a victim) or idle. */
struct kvt_policy_ops {
    const char *name;
    const char *summary; /* one line for --help */

    /* NOMEM. Slots are 0 .. slot_count - 1, all absent. */
    enum kvt_status (*create)(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy);
    void (*destroy)(struct kvt_policy *policy);

    void (*insert)(struct kvt_policy *policy, uint32_t slot, uint64_t key_hash); /* absent -> held */
    void (*touch)(struct kvt_policy *policy, uint32_t slot);                     /* used again; held or idle */
    void (*hold)(struct kvt_policy *policy, uint32_t slot);                      /* idle -> held */
    /* held -> idle; the release itself is no use */
    void (*release)(struct kvt_policy *policy, uint32_t slot);
    void (*remove)(struct kvt_policy *policy, uint32_t slot, enum kvt_policy_why why); /* held or idle -> absent */

    /* An idle slot, KVT_POLICY_NONE iff none is idle. May reorder, never removes. Asked twice it answers the same. */
    uint32_t (*victim)(struct kvt_policy *policy);

    /* Asks the memory for what the other calls will read of the slot; changes nothing. NULL: the policy does not say. */
    void (*prefetch)(const struct kvt_policy *policy, uint32_t slot);
    /* The same for an insert of the key, for policies that look keys up. NULL: the policy does not say. */
    void (*prefetch_key)(const struct kvt_policy *policy, uint64_t key_hash);

    /*
     * What is known of the inserts and touches that follow, until the next hint; before the first one, nothing is. The
     * hint is borrowed for the call. NULL: the policy does not ask.
     */
    void (*hint)(struct kvt_policy *policy, const struct kvt_policy_hint *hint);

    /* Walks everything and asserts; tests only. */
    void (*verify)(const struct kvt_policy *policy);

    /*
     * Makes the calls above for so many accesses to blocks, in a pool whose slots are all idle: a hit touches, a miss
     * evicts, inserts and releases. A block is a small number, which is its key as well; slot_of[block] is its slot or
     * KVT_POLICY_NONE, block_of[slot] what the slot has. ret_is_hit[i] says whether blocks[i] was there. Another
     * KVT_REPLAY_AHEAD blocks behind the last can be read. Made by replay.h, for counting; NULL: it was not.
     */
    void (*replay)(struct kvt_policy *policy, uint32_t *slot_of, uint32_t *block_of, const uint32_t *blocks,
                   uint32_t count, bool *ret_is_hit);
};

/* NULL when there is none of that name. */
const struct kvt_policy_ops *kvt_policy_find(const char *name);
/* The i-th registered policy, NULL past the end. */
const struct kvt_policy_ops *kvt_policy_at(uint32_t i);

/* All names with commas between, for a refusal; cut where they do not fit. */
void kvt_policy_names(char *ret_names, size_t names_bytes);
void kvt_admission_names(char *ret_names, size_t names_bytes);

/* What an admission policy is asked about: a block that is about to be written to nvme for the first time. */
struct kvt_admission_question {
    uint64_t key_hash;
    uint32_t bytes;     /* that would be written */
    uint32_t uses;      /* how often its tokens were used so far, 1 or more */
    bool is_referenced; /* a live sequence holds it: refusing loses its tokens */
    /* refused before (ahead of need, say), and not used since: to be asked about again is no second sight */
    bool is_asked_again;
    uint64_t day_bytes; /* written to nvme in the last 24 hours */
    /* the endurance budget; 0: none. Once it is used up the core asks only for what is referenced */
    uint64_t day_bytes_max;
};

struct kvt_admission;

struct kvt_admission_ops {
    const char *name;
    const char *summary;
    /* NOMEM. tier_bytes: what nvme can hold; 0: not known. */
    enum kvt_status (*create)(uint64_t tier_bytes, uint64_t seed, struct kvt_admission **ret_admission);
    void (*destroy)(struct kvt_admission *admission);
    bool (*admits)(struct kvt_admission *admission, const struct kvt_admission_question *question);
    /* A block is used that was found in nvme. NULL: the policy is not told. */
    void (*used)(struct kvt_admission *admission, uint64_t key_hash);
};

const struct kvt_admission_ops *kvt_admission_find(const char *name);
const struct kvt_admission_ops *kvt_admission_at(uint32_t i);

#endif
