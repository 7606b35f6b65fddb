#include "policy/lirs_stack.h"

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

static uint64_t keys_bytes(const struct kvt_lirs *lirs)
{
    return ((uint64_t)lirs->slots.slot_count + 1) * sizeof lirs->keys[0];
}

enum kvt_status kvt_lirs_init(struct kvt_lirs *lirs, uint32_t slot_count, uint32_t lir_max, uint32_t ghost_max)
{
    *lirs = (struct kvt_lirs){ .lir_max = lir_max, .ghost_max = ghost_max };
    const uint32_t ghost_capacity = ghost_max + 1;
    KVT_TRY(kvt_slots_init(&lirs->slots, slot_count, KVT_LIRS_LIST_COUNT));
    KVT_TRY(kvt_ghosts_init(&lirs->ghosts, ghost_capacity, KVT_LIRS_GHOST_LIST_COUNT));
    KVT_TRY(kvt_order_init(&lirs->stack, slot_count + ghost_capacity, KVT_LIRS_STACK_COUNT));
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

uint32_t kvt_lirs_share(uint32_t slot_count, uint32_t hir_percent)
{
    const uint32_t hir = kvt_max_u32(1, (uint32_t)((uint64_t)slot_count * hir_percent / 100));
    return slot_count - kvt_min_u32(slot_count, hir);
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
        KVT_ASSERT(KVT_IMPLIES(kvt_lirs_is_lir(lirs, slot), is_in_stack));
        slots_in_stack += is_in_stack;
    }
    KVT_ASSERT(kvt_order_verify(&lirs->stack, KVT_LIRS_STACK) == slots_in_stack + lirs->ghosts.count);
    const uint32_t bottom = kvt_order_coldest(&lirs->stack, KVT_LIRS_STACK);
    KVT_ASSERT(bottom == KVT_ORDER_NONE || kvt_lirs_is_lir(lirs, bottom));
}
