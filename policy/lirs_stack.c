#include "policy/lirs_stack.h"

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { OUT, GHOST_LIST_COUNT };
enum { STACK, STACK_COUNT };

static uint64_t keys_bytes(const struct kvt_lirs *lirs)
{
    return ((uint64_t)lirs->slots.slot_count + 1) * sizeof lirs->keys[0];
}

enum kvt_status kvt_lirs_init(struct kvt_lirs *lirs, uint32_t slot_count, uint32_t lir_max, uint32_t ghost_max)
{
    *lirs = (struct kvt_lirs){ .lir_max = lir_max, .ghost_max = ghost_max };
    const uint32_t ghost_capacity = ghost_max + 1;
    KVT_TRY(kvt_slots_init(&lirs->slots, slot_count, KVT_LIRS_LIST_COUNT));
    KVT_TRY(kvt_ghosts_init(&lirs->ghosts, ghost_capacity, GHOST_LIST_COUNT));
    KVT_TRY(kvt_order_init(&lirs->stack, slot_count + ghost_capacity, STACK_COUNT));
    lirs->keys = kvt_table_map(keys_bytes(lirs));
    return lirs->keys ? KVT_OK : KVT_NOMEM;
}

void kvt_lirs_done(struct kvt_lirs *lirs)
{
    kvt_table_unmap(lirs->keys, keys_bytes(lirs));
    kvt_order_done(&lirs->stack);
    kvt_ghosts_done(&lirs->ghosts);
    kvt_slots_done(&lirs->slots);
    lirs->keys = NULL;
}

static bool is_lir(const struct kvt_lirs *lirs, uint32_t number)
{
    return number < lirs->slots.slot_count && kvt_slots_list(&lirs->slots, number) == KVT_LIRS_LIR;
}

static void forget(struct kvt_lirs *lirs, uint32_t ghost)
{
    kvt_order_unlink(&lirs->stack, lirs->slots.slot_count + ghost);
    kvt_ghosts_forget(&lirs->ghosts, ghost);
}

/* Cuts off what is below the lowest LIR. */
static void prune(struct kvt_lirs *lirs)
{
    for (;;) {
        const uint32_t bottom = kvt_order_coldest(&lirs->stack, STACK);
        if (bottom == KVT_ORDER_NONE || is_lir(lirs, bottom)) return;
        if (bottom < lirs->slots.slot_count) kvt_order_unlink(&lirs->stack, bottom);
        else forget(lirs, bottom - lirs->slots.slot_count);
    }
}

/* Ends every change: a LIR at the bottom of S, and, of too many LIR, two fewer. */
static void settle(struct kvt_lirs *lirs)
{
    prune(lirs);
    for (uint32_t n = 0; n < 2 && lirs->slots.size[KVT_LIRS_LIR] > lirs->lir_max; n++) {
        const uint32_t bottom = kvt_order_coldest(&lirs->stack, STACK);
        kvt_slots_move(&lirs->slots, bottom, KVT_LIRS_HIR);
        prune(lirs);
    }
}

void kvt_lirs_insert(struct kvt_lirs *lirs, uint32_t slot, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&lirs->ghosts, key_hash);
    if (ghost != KVT_GHOST_NONE) forget(lirs, ghost);
    const bool becomes_lir = ghost != KVT_GHOST_NONE || lirs->slots.size[KVT_LIRS_LIR] < lirs->lir_max;
    kvt_slots_insert(&lirs->slots, slot, becomes_lir ? KVT_LIRS_LIR : KVT_LIRS_HIR);
    kvt_order_push_warm(&lirs->stack, STACK, slot);
    lirs->keys[slot] = key_hash;
    settle(lirs);
}

void kvt_lirs_touch(struct kvt_lirs *lirs, uint32_t slot)
{
    KVT_ASSERT(slot < lirs->slots.slot_count);
    const bool is_in_stack = kvt_order_has(&lirs->stack, slot);
    kvt_slots_use(&lirs->slots, slot, is_in_stack ? KVT_LIRS_LIR : KVT_LIRS_HIR);
    if (is_in_stack) kvt_order_unlink(&lirs->stack, slot);
    kvt_order_push_warm(&lirs->stack, STACK, slot);
    settle(lirs);
}

/*
 * Evictions mostly come in a row, each of the next HIR, whose key is remembered while the oldest one is forgotten. Asks
 * the memory for what the next of both will read, one eviction earlier for each thing that is read to find another.
 */
static void look_ahead(const struct kvt_lirs *lirs)
{
    const struct kvt_order *queue = &lirs->slots.order, *stack = &lirs->stack;
    const uint32_t slot = kvt_order_coldest(queue, KVT_LIRS_HIR);
    const uint32_t next = slot == KVT_ORDER_NONE ? slot : kvt_order_warmer(queue, slot);
    if (next != KVT_ORDER_NONE) {
        kvt_slots_prefetch(&lirs->slots, next);
        __builtin_prefetch(&lirs->keys[next]);
        __builtin_prefetch(&stack->links[kvt_order_node(stack, next)], 1);
        kvt_ghosts_prefetch(&lirs->ghosts, lirs->keys[slot]);
    }
    const uint32_t ghost = kvt_ghosts_prefetch_oldest(&lirs->ghosts, OUT);
    if (ghost == KVT_GHOST_NONE) return;
    __builtin_prefetch(&stack->links[kvt_order_node(stack, lirs->slots.slot_count + ghost)], 1);
}

/* An evicted HIR in S leaves its key in its place there; all else leaves nothing. */
void kvt_lirs_remove(struct kvt_lirs *lirs, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t list = kvt_slots_remove(&lirs->slots, slot);
    if (why == KVT_POLICY_EVICTED) look_ahead(lirs);
    if (kvt_order_has(&lirs->stack, slot)) {
        if (why == KVT_POLICY_EVICTED && list == KVT_LIRS_HIR) {
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

void kvt_lirs_forget_key(struct kvt_lirs *lirs, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&lirs->ghosts, key_hash);
    if (ghost != KVT_GHOST_NONE) forget(lirs, ghost);
}

uint32_t kvt_lirs_share(uint32_t slot_count, uint32_t hir_percent)
{
    const uint32_t hir = kvt_max_u32(1, (uint32_t)((uint64_t)slot_count * hir_percent / 100));
    return slot_count - kvt_min_u32(slot_count, hir);
}

uint32_t kvt_lirs_victim(struct kvt_lirs *lirs)
{
    const uint32_t slot = kvt_slots_coldest_idle(&lirs->slots, KVT_LIRS_HIR);
    if (slot != KVT_POLICY_NONE) return slot;
    return kvt_slots_coldest_idle(&lirs->slots, KVT_LIRS_LIR);
}

void kvt_lirs_verify(const struct kvt_lirs *lirs)
{
    (void)kvt_slots_verify(&lirs->slots, KVT_LIRS_LIST_COUNT);
    kvt_ghosts_verify(&lirs->ghosts);
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
