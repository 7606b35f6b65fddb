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
enum { KVT_LIRS_OUT, KVT_LIRS_GHOST_LIST_COUNT };
enum { KVT_LIRS_STACK, KVT_LIRS_STACK_COUNT };

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

/* How many of so many slots may be LIR when so many percent, and at least one, are to be HIR. */
uint32_t kvt_lirs_share(uint32_t slot_count, uint32_t hir_percent);

KVT_INLINE bool kvt_lirs_is_lir(const struct kvt_lirs *lirs, uint32_t number)
{
    return number < lirs->slots.slot_count && kvt_slots_list(&lirs->slots, number) == KVT_LIRS_LIR;
}

KVT_INLINE void kvt_lirs_forget(struct kvt_lirs *lirs, uint32_t ghost)
{
    kvt_order_unlink(&lirs->stack, KVT_LIRS_STACK, lirs->slots.slot_count + ghost);
    kvt_ghosts_forget(&lirs->ghosts, ghost);
}

/* Cuts off what is below the lowest LIR. */
KVT_INLINE void kvt_lirs_prune(struct kvt_lirs *lirs)
{
    for (;;) {
        const uint32_t bottom = kvt_order_coldest(&lirs->stack, KVT_LIRS_STACK);
        if (bottom == KVT_ORDER_NONE || kvt_lirs_is_lir(lirs, bottom)) return;
        if (bottom < lirs->slots.slot_count) kvt_order_unlink(&lirs->stack, KVT_LIRS_STACK, bottom);
        else kvt_lirs_forget(lirs, bottom - lirs->slots.slot_count);
    }
}

/* Ends every change: a LIR at the bottom of S, and, of too many LIR, two fewer. */
KVT_INLINE void kvt_lirs_settle(struct kvt_lirs *lirs)
{
    kvt_lirs_prune(lirs);
    for (uint32_t n = 0; n < 2 && lirs->slots.size[KVT_LIRS_LIR] > lirs->lir_max; n++) {
        const uint32_t bottom = kvt_order_coldest(&lirs->stack, KVT_LIRS_STACK);
        kvt_slots_move(&lirs->slots, bottom, KVT_LIRS_HIR);
        kvt_lirs_prune(lirs);
    }
}

KVT_INLINE void kvt_lirs_insert(struct kvt_lirs *lirs, uint32_t slot, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&lirs->ghosts, key_hash);
    if (ghost != KVT_GHOST_NONE) kvt_lirs_forget(lirs, ghost);
    const bool becomes_lir = ghost != KVT_GHOST_NONE || lirs->slots.size[KVT_LIRS_LIR] < lirs->lir_max;
    kvt_slots_insert(&lirs->slots, slot, becomes_lir ? KVT_LIRS_LIR : KVT_LIRS_HIR);
    kvt_order_push_warm(&lirs->stack, KVT_LIRS_STACK, slot);
    lirs->keys[slot] = key_hash;
    kvt_lirs_settle(lirs);
}

KVT_INLINE void kvt_lirs_touch(struct kvt_lirs *lirs, uint32_t slot)
{
    KVT_ASSERT(slot < lirs->slots.slot_count);
    const bool is_in_stack = kvt_order_has(&lirs->stack, slot);
    kvt_slots_use(&lirs->slots, slot, is_in_stack ? KVT_LIRS_LIR : KVT_LIRS_HIR);
    if (is_in_stack) kvt_order_unlink(&lirs->stack, KVT_LIRS_STACK, slot);
    kvt_order_push_warm(&lirs->stack, KVT_LIRS_STACK, slot);
    kvt_lirs_settle(lirs);
}

/* An evicted HIR in S leaves its key in its place there; all else leaves nothing. */
KVT_INLINE void kvt_lirs_remove(struct kvt_lirs *lirs, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t list = kvt_slots_remove(&lirs->slots, slot);
    if (kvt_order_has(&lirs->stack, slot)) {
        if (why == KVT_POLICY_EVICTED && list == KVT_LIRS_HIR) {
            const uint64_t key_hash = lirs->keys[slot];
            uint32_t *end = kvt_ghosts_link(&lirs->ghosts, key_hash);
            if (*end != 0) {
                kvt_lirs_forget(lirs, *end - 1);
                end = kvt_ghosts_link(&lirs->ghosts, key_hash);
            }
            const uint32_t ghost = kvt_ghosts_add(&lirs->ghosts, end, key_hash, KVT_LIRS_OUT);
            kvt_order_replace(&lirs->stack, slot, lirs->slots.slot_count + ghost);
            if (lirs->ghosts.count > lirs->ghost_max)
                kvt_lirs_forget(lirs, kvt_ghosts_oldest(&lirs->ghosts, KVT_LIRS_OUT));
        } else {
            kvt_order_unlink(&lirs->stack, KVT_LIRS_STACK, slot);
        }
    }
    kvt_lirs_settle(lirs);
}

/* A key that is no slot's is not remembered any longer. */
KVT_INLINE void kvt_lirs_forget_key(struct kvt_lirs *lirs, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&lirs->ghosts, key_hash);
    if (ghost != KVT_GHOST_NONE) kvt_lirs_forget(lirs, ghost);
}

/* KVT_POLICY_NONE: none is idle. */
KVT_INLINE uint32_t kvt_lirs_victim(struct kvt_lirs *lirs)
{
    const uint32_t slot = kvt_slots_coldest_idle(&lirs->slots, KVT_LIRS_HIR);
    if (slot != KVT_POLICY_NONE) return slot;
    return kvt_slots_coldest_idle(&lirs->slots, KVT_LIRS_LIR);
}

/* Tests only. */
void kvt_lirs_verify(const struct kvt_lirs *lirs);

#endif
