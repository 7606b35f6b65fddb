/*
 * foresight: brings blocks of idle sequences nearer shortly before they are used again, although nobody said when that
 *            will be: a prefetch policy (policy/prefetch.h) learns it from those that came back.
 *
 * Only with KVT_PREFETCH_SESSION, and besides what look-ahead does. Rules:
 * 1. It claims and holds nothing: what it brought is an idle copy like any other, and may be evicted like any other.
 * 2. It takes room that is free, or that of a copy which its policy would evict next and which is less likely to be used
 *    soon: cached, held by nobody and never found again, or held by one idle sequence that is clearly less likely to come
 *    within that time. A device copy may go down to host memory for it; host copies are only forgotten, so that nothing is
 *    written to nvme. It never evicts what an active sequence, one that is expected, or one that it knows nothing of
 *    holds.
 * 3. What it brought for nothing tells how long such a copy stays. It brings nothing that is not likely enough to be used
 *    within that time.
 * 4. It starts transfers only while no sequence waits for its blocks, what is expected has all been started, and the
 *    links have little to do, within prefetch_bytes_max.
 *
 * Thread:  under the runtime's lock.
 * Memory:  all taken in init: 8 bytes a block, 4 bytes a sequence, and the policy's.
 * Work:    each call is bounded by a batch. Planning a look is O(log sequences).
 */
#ifndef KVT_RUNTIME_FORESIGHT_H
#define KVT_RUNTIME_FORESIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/shape.h"
#include "policy/prefetch.h"
#include "runtime/base/status.h"

struct kvt_core;
struct kvt_sequence;

#define KVT_BROUGHT_HOST 1u
#define KVT_BROUGHT_DEVICE 2u

struct kvt_foresight_block {
    uint32_t holder; /* the idle sequence that alone holds the block, counted from 1; 0: not known, none, or several */
    uint32_t brought : 2;        /* copies that were brought and not used yet: KVT_BROUGHT_ bits */
    uint32_t brought_at_ms : 30; /* the last of them */
};

struct kvt_foresight {
    const struct kvt_prefetcher_ops *ops; /* NULL: off */
    struct kvt_prefetcher *prefetcher;
    struct kvt_foresight_block *blocks; /* by block */
    uint32_t *looks;                    /* a heap of idle sequences, the one to look at first at its top */
    uint32_t look_count;
    uint64_t stay_ns[2]; /* on the device, in host memory: how long copies stayed that were brought for nothing; 0: none was */
    uint32_t making[KVT_GROUPS_MAX]; /* by pool: slots whose copies were sent down for this, and that were not taken yet */
};

/*
 * NOMEM. Requires the core's configuration; without a prefetch policy or host memory nothing is taken, and all else does
 * nothing.
 */
KVT_NODISCARD enum kvt_status kvt_foresight_init(struct kvt_core *core);
void kvt_foresight_done(struct kvt_core *core);

/* An active sequence went idle; was resumed; ended, or will not be followed any further. */
void kvt_foresight_idle(struct kvt_core *core, struct kvt_sequence *sequence);
void kvt_foresight_back(struct kvt_core *core, struct kvt_sequence *sequence);
void kvt_foresight_end(struct kvt_core *core, struct kvt_sequence *sequence);

/* Starts what is due. True when there may be more to do at once. is_busy: others want the links or the room. */
bool kvt_foresight_start(struct kvt_core *core, bool is_busy);
/* When it wants to look at a sequence; UINT64_MAX: never. */
uint64_t kvt_foresight_next_ns(const struct kvt_core *core);

/* ---- What residency.c tells; only while it is on ---- */

/* The sequence, which is idle now, gave up its claim. */
void kvt_foresight_unclaimed(struct kvt_core *core, uint32_t block, const struct kvt_sequence *sequence);
/* Somebody claims the block. */
void kvt_foresight_claimed(struct kvt_core *core, uint32_t block);
/* Its holds changed. */
static inline void kvt_foresight_rehold(struct kvt_foresight *foresight, uint32_t block)
{
    if (foresight->ops) foresight->blocks[block].holder = 0;
}
/* A copy on the device or in host memory is gone. */
void kvt_foresight_left(struct kvt_core *core, uint32_t block, uint32_t tier);

/* Tests and verifying builds. */
void kvt_foresight_verify(const struct kvt_core *core);

#endif
