#include "policy/slots.h"

_Static_assert(KVT_ORDER_NONE == KVT_POLICY_NONE, "the end of a list is no slot");

uint32_t kvt_slots_verify(const struct kvt_slots *slots, uint32_t list_count)
{
    uint32_t idle_count = 0;
    uint32_t present_count = 0;
    uint32_t size[KVT_SLOTS_LISTS_MAX] = { 0 };
    uint32_t linked[KVT_SLOTS_LISTS_MAX] = { 0 };
    for (uint32_t slot = 0; slot < slots->slot_count; slot++) {
        const uint16_t bits = slots->bits[slot];
        const bool is_linked = kvt_order_has(&slots->order, slot);
        if (!(bits & KVT_SLOT_PRESENT)) {
            KVT_ASSERT(bits == 0);
            KVT_ASSERT(!is_linked);
            continue;
        }
        KVT_ASSERT(KVT_IMPLIES(bits & KVT_SLOT_OFF, bits & KVT_SLOT_HELD));
        KVT_ASSERT(KVT_IMPLIES(bits & KVT_SLOT_WARM, bits & KVT_SLOT_OFF));
        KVT_ASSERT(is_linked == !(bits & KVT_SLOT_OFF));
        const uint32_t list = kvt_slots_list(slots, slot);
        KVT_ASSERT(list < list_count);
        present_count++;
        idle_count += !(bits & KVT_SLOT_HELD);
        size[list]++;
        linked[list] += is_linked;
    }
    KVT_ASSERT(idle_count == slots->idle_count);
    for (uint32_t list = 0; list < list_count; list++) {
        KVT_ASSERT(size[list] == slots->size[list]);
        uint32_t walked = 0;
        for (uint32_t slot = kvt_order_coldest(&slots->order, list); slot != KVT_ORDER_NONE;
             slot = kvt_order_warmer(&slots->order, slot)) {
            KVT_ASSERT(slot < slots->slot_count);
            KVT_ASSERT(kvt_slots_list(slots, slot) == list);
            walked++;
        }
        KVT_ASSERT(walked == linked[list]);
        KVT_ASSERT(kvt_order_verify(&slots->order, list) == walked);
    }
    return present_count;
}
