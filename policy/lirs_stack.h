/*
 * lirs_stack: low inter-reference recency, as a part that policies are made of.
 *
 * Slots with a short distance between their last two uses are LIR, all others are HIR. The stack S orders by last use
 * all LIR, those HIR that were used since the coldest LIR, and keys of HIR that were evicted meanwhile; its bottom is
 * always LIR, and whatever is below the lowest LIR is cut off. The queue Q holds the HIR slots, and its cold end is the
 * victim. A HIR slot or key that is used while in S has a shorter distance than the LIR at the bottom: it becomes LIR,
 * and the bottom becomes the warm end of Q. A HIR slot used while not in S goes to the top of S and the warm end of Q.
 * Until there are enough LIR slots, newcomers are LIR. When no HIR slot is idle, the coldest idle LIR is the victim. S
 * is cut in O(1) amortised, and keeps at most ghost_max keys: the oldest is forgotten first.
 *
 * lir_max can be changed at any time: what is LIR too many becomes HIR two with each call, so that no call is long.
 *
 * Source: S. Jiang, X. Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to improve buffer
 * cache performance", SIGMETRICS 2002.
 *
 * Thread: the caller's lock. Memory: all taken in init.
 */
#ifndef KVT_POLICY_LIRS_STACK_H
#define KVT_POLICY_LIRS_STACK_H

#include "policy/ghost.h"
#include "policy/slots.h"

enum { KVT_LIRS_HIR, KVT_LIRS_LIR, KVT_LIRS_LIST_COUNT };

struct kvt_lirs {
    struct kvt_slots slots;   /* HIR is Q; LIR by last use */
    struct kvt_ghosts ghosts; /* evicted keys in S */
    struct kvt_order stack;   /* S; number slot_count + g is ghost g */
    uint64_t *keys;           /* by slot */
    uint32_t lir_max;
    uint32_t ghost_max;
};

/* NOMEM; then done() is still fine. */
KVT_NODISCARD enum kvt_status kvt_lirs_init(struct kvt_lirs *lirs, uint32_t slot_count, uint32_t lir_max,
                                            uint32_t ghost_max);
void kvt_lirs_done(struct kvt_lirs *lirs);

void kvt_lirs_insert(struct kvt_lirs *lirs, uint32_t slot, uint64_t key_hash);
void kvt_lirs_touch(struct kvt_lirs *lirs, uint32_t slot);
void kvt_lirs_remove(struct kvt_lirs *lirs, uint32_t slot, enum kvt_policy_why why);
/* A key that is no slot's is not remembered any longer. */
void kvt_lirs_forget_key(struct kvt_lirs *lirs, uint64_t key_hash);

/* How many of so many slots may be LIR when so many percent, and at least one, are to be HIR. */
uint32_t kvt_lirs_share(uint32_t slot_count, uint32_t hir_percent);

/* KVT_POLICY_NONE: none is idle. */
uint32_t kvt_lirs_victim(struct kvt_lirs *lirs);

/* Tests only. */
void kvt_lirs_verify(const struct kvt_lirs *lirs);

#endif
