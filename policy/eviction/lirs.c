/*
 * lirs: low inter-reference recency. Ranks a slot by the distance between its last two uses, not by the last
 * one.
 *
 * Slots with a short distance are LIR and fill 99 % of the pool, all others are HIR. The stack S orders by
 * last use all LIR, those HIR that were used since the coldest LIR, and keys of HIR that were evicted
 * meanwhile; its bottom is always LIR, and whatever is below the lowest LIR is cut off. The queue Q holds
 * the HIR slots, and its cold end is the victim. A HIR slot or key that is used while in S has a shorter
 * distance than the LIR at the bottom: it becomes LIR, and the bottom becomes the warm end of Q. A HIR slot
 * used while not in S goes to the top of S and the warm end of Q. Until there are enough LIR slots,
 * newcomers are LIR. When no HIR slot is idle, the coldest idle LIR is the victim. S is cut in O(1)
 * amortised. S keeps at most as many keys as there are slots, the oldest is forgotten first: the paper
 * leaves the bound open. Twice as many give about 2 points more hits on a trace of conversations at small
 * sizes.
 *
 * Source: S. Jiang, X. Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to
 * improve buffer cache performance", SIGMETRICS 2002.
 */
#include "policy/policy.h"

#include "policy/ghost.h"
#include "policy/slots.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define HIR_PERCENT 1u

enum { HIR, LIR, LIST_COUNT };
enum { OUT, GHOST_LIST_COUNT };
enum { STACK, STACK_COUNT };

struct kvt_policy {
    struct kvt_slots slots;   /* HIR is Q; LIR by last use */
    struct kvt_ghosts ghosts; /* evicted keys in S */
    struct kvt_order stack;   /* S; number slot_count + g is ghost g */
    uint64_t *keys;           /* by slot */
    uint32_t lir_max;
    uint32_t ghost_max;
};

static uint64_t keys_bytes(const struct kvt_policy *lirs)
{
    return ((uint64_t)lirs->slots.slot_count + 1) * sizeof lirs->keys[0];
}

static void lirs_destroy(struct kvt_policy *lirs)
{
    if (!lirs) return;
    kvt_table_unmap(lirs->keys, keys_bytes(lirs));
    kvt_order_done(&lirs->stack);
    kvt_ghosts_done(&lirs->ghosts);
    kvt_slots_done(&lirs->slots);
    kvt_free(lirs);
}

static enum kvt_status lirs_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *lirs = kvt_alloc(1, sizeof *lirs);
    if (!lirs) return KVT_NOMEM;
    const uint32_t hir_min = kvt_max_u32(1, (uint32_t)((uint64_t)slot_count * HIR_PERCENT / 100));
    lirs->lir_max = slot_count - kvt_min_u32(slot_count, hir_min);
    lirs->ghost_max = slot_count;

    const uint32_t ghost_capacity = lirs->ghost_max + 1;
    if (kvt_slots_init(&lirs->slots, slot_count, LIST_COUNT) != KVT_OK) goto fail;
    if (kvt_ghosts_init(&lirs->ghosts, ghost_capacity, GHOST_LIST_COUNT) != KVT_OK) goto fail;
    if (kvt_order_init(&lirs->stack, slot_count + ghost_capacity, STACK_COUNT) != KVT_OK) goto fail;
    lirs->keys = kvt_table_map(keys_bytes(lirs));
    if (!lirs->keys) goto fail;
    *ret_policy = lirs;
    return KVT_OK;

fail:
    lirs_destroy(lirs);
    return KVT_NOMEM;
}

static bool is_lir(const struct kvt_policy *lirs, uint32_t number)
{
    return number < lirs->slots.slot_count && kvt_slots_list(&lirs->slots, number) == LIR;
}

static void forget(struct kvt_policy *lirs, uint32_t ghost)
{
    kvt_order_unlink(&lirs->stack, lirs->slots.slot_count + ghost);
    kvt_ghosts_forget(&lirs->ghosts, ghost);
}

/* Cuts off what is below the lowest LIR. */
static void prune(struct kvt_policy *lirs)
{
    for (;;) {
        const uint32_t bottom = kvt_order_coldest(&lirs->stack, STACK);
        if (bottom == KVT_ORDER_NONE || is_lir(lirs, bottom)) return;
        if (bottom < lirs->slots.slot_count) kvt_order_unlink(&lirs->stack, bottom);
        else forget(lirs, bottom - lirs->slots.slot_count);
    }
}

/* Ends every change: not too many LIR, and a LIR at the bottom of S. */
static void settle(struct kvt_policy *lirs)
{
    prune(lirs);
    if (lirs->slots.size[LIR] <= lirs->lir_max) return;
    const uint32_t bottom = kvt_order_coldest(&lirs->stack, STACK);
    kvt_slots_move(&lirs->slots, bottom, HIR);
    prune(lirs);
}

static void lirs_insert(struct kvt_policy *lirs, uint32_t slot, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&lirs->ghosts, key_hash);
    if (ghost != KVT_GHOST_NONE) forget(lirs, ghost);
    const bool becomes_lir = ghost != KVT_GHOST_NONE || lirs->slots.size[LIR] < lirs->lir_max;
    kvt_slots_insert(&lirs->slots, slot, becomes_lir ? LIR : HIR);
    kvt_order_push_warm(&lirs->stack, STACK, slot);
    lirs->keys[slot] = key_hash;
    settle(lirs);
}

static void lirs_touch(struct kvt_policy *lirs, uint32_t slot)
{
    KVT_ASSERT(slot < lirs->slots.slot_count);
    const bool is_in_stack = kvt_order_has(&lirs->stack, slot);
    kvt_slots_use(&lirs->slots, slot, is_in_stack ? LIR : HIR);
    if (is_in_stack) kvt_order_unlink(&lirs->stack, slot);
    kvt_order_push_warm(&lirs->stack, STACK, slot);
    settle(lirs);
}

static void lirs_hold(struct kvt_policy *lirs, uint32_t slot) { kvt_slots_hold(&lirs->slots, slot); }
static void lirs_release(struct kvt_policy *lirs, uint32_t slot) { kvt_slots_release(&lirs->slots, slot); }

/* An evicted HIR in S leaves its key in its place there; all else leaves nothing. */
static void lirs_remove(struct kvt_policy *lirs, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t list = kvt_slots_remove(&lirs->slots, slot);
    if (kvt_order_has(&lirs->stack, slot)) {
        if (why == KVT_POLICY_EVICTED && list == HIR) {
            const uint32_t known = kvt_ghosts_find(&lirs->ghosts, lirs->keys[slot]);
            if (known != KVT_GHOST_NONE) forget(lirs, known);
            const uint32_t ghost = kvt_ghosts_remember(&lirs->ghosts, lirs->keys[slot], OUT);
            kvt_order_link_after(&lirs->stack, kvt_order_node(&lirs->stack, slot), lirs->slots.slot_count + ghost);
            if (lirs->ghosts.count > lirs->ghost_max) forget(lirs, kvt_ghosts_oldest(&lirs->ghosts, OUT));
        }
        kvt_order_unlink(&lirs->stack, slot);
    }
    settle(lirs);
}

static uint32_t lirs_victim(struct kvt_policy *lirs)
{
    const uint32_t slot = kvt_slots_coldest_idle(&lirs->slots, HIR);
    if (slot != KVT_POLICY_NONE) return slot;
    return kvt_slots_coldest_idle(&lirs->slots, LIR);
}

static void lirs_verify(const struct kvt_policy *lirs)
{
    (void)kvt_slots_verify(&lirs->slots, LIST_COUNT);
    kvt_ghosts_verify(&lirs->ghosts);
    KVT_ASSERT(lirs->slots.size[LIR] <= lirs->lir_max);
    KVT_ASSERT(lirs->ghosts.count <= lirs->ghost_max);
    uint32_t slots_in_stack = 0;
    for (uint32_t slot = 0; slot < lirs->slots.slot_count; slot++) {
        const bool is_in_stack = kvt_order_has(&lirs->stack, slot);
        KVT_ASSERT(KVT_IMPLIES(is_in_stack, lirs->slots.bits[slot] & KVT_SLOT_PRESENT));
        KVT_ASSERT(KVT_IMPLIES(is_lir(lirs, slot), is_in_stack));
        slots_in_stack += is_in_stack;
    }
    KVT_ASSERT(kvt_order_verify(&lirs->stack, STACK) == slots_in_stack + lirs->ghosts.count);
    const uint32_t bottom = kvt_order_coldest(&lirs->stack, STACK);
    KVT_ASSERT(bottom == KVT_ORDER_NONE || is_lir(lirs, bottom));
}

const struct kvt_policy_ops kvt_policy_lirs = {
    .name = "lirs",
    .summary = "keeps what is used again soon, by the distance between its last two uses",
    .create = lirs_create,
    .destroy = lirs_destroy,
    .insert = lirs_insert,
    .touch = lirs_touch,
    .hold = lirs_hold,
    .release = lirs_release,
    .remove = lirs_remove,
    .victim = lirs_victim,
    .verify = lirs_verify,
};
