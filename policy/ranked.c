#include "policy/ranked.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

static uint64_t slots_bytes(const struct kvt_ranked *ranked)
{
    return ((uint64_t)ranked->slot_count + 1) * sizeof ranked->slots[0];
}

static uint64_t heap_bytes(const struct kvt_ranked *ranked)
{
    return ((uint64_t)ranked->slot_count + 1) * sizeof ranked->heap[0];
}

enum kvt_status kvt_ranked_init(struct kvt_ranked *ranked, uint32_t slot_count)
{
    KVT_ASSERT(slot_count < UINT32_MAX / KVT_RANKED_FANOUT);
    *ranked = (struct kvt_ranked){ .slot_count = slot_count };
    KVT_TRY(kvt_order_init(&ranked->order, slot_count, KVT_RANKED_WINDOW));
    ranked->slots = kvt_table_map(slots_bytes(ranked));
    if (!ranked->slots) return KVT_NOMEM;
    ranked->heap = kvt_table_map(heap_bytes(ranked));
    return ranked->heap ? KVT_OK : KVT_NOMEM;
}

void kvt_ranked_done(struct kvt_ranked *ranked)
{
    kvt_table_unmap(ranked->heap, heap_bytes(ranked));
    kvt_table_unmap(ranked->slots, slots_bytes(ranked));
    kvt_order_done(&ranked->order);
    ranked->slots = NULL;
    ranked->heap = NULL;
}

/* Of one list: all of one rank in the window, in the order of their times. */
static uint32_t verify_list(const struct kvt_ranked *ranked, uint32_t list)
{
    const uint32_t coldest = kvt_order_coldest(&ranked->order, list);
    KVT_ASSERT((coldest != KVT_ORDER_NONE) == ((ranked->filled >> list & 1) != 0));
    uint64_t before = 0;
    uint32_t count = 0;
    for (uint32_t slot = coldest; slot != KVT_ORDER_NONE; slot = kvt_order_warmer(&ranked->order, slot)) {
        KVT_ASSERT(slot < ranked->slot_count);
        const struct kvt_ranked_slot *s = &ranked->slots[slot];
        KVT_ASSERT(s->uses > 0);
        KVT_ASSERT(s->place == 0);
        KVT_ASSERT(s->rank == ranked->slots[coldest].rank);
        KVT_ASSERT(s->rank - ranked->base < KVT_RANKED_WINDOW);
        KVT_ASSERT(s->rank % KVT_RANKED_WINDOW == list);
        KVT_ASSERT(s->used_at > before);
        KVT_ASSERT(s->used_at <= ranked->now);
        before = s->used_at;
        count++;
    }
    KVT_ASSERT(kvt_order_verify(&ranked->order, list) == count);
    return count;
}

void kvt_ranked_verify(const struct kvt_ranked *ranked)
{
    uint32_t listed = 0, heaped = 0;
    for (uint32_t list = 0; list < KVT_RANKED_WINDOW; list++) listed += verify_list(ranked, list);
    for (uint32_t slot = 0; slot < ranked->slot_count; slot++) {
        const struct kvt_ranked_slot *s = &ranked->slots[slot];
        listed -= kvt_ranked_is_listed(ranked, slot);
        KVT_ASSERT(KVT_IMPLIES(s->uses == 0, s->place == 0));
        if (s->place == 0) continue;
        heaped++;
        KVT_ASSERT(!kvt_ranked_is_listed(ranked, slot));
        KVT_ASSERT(s->place <= ranked->heap_count);
        const struct kvt_ranked_entry *entry = &ranked->heap[s->place];
        const struct kvt_ranked_entry now = { s->rank, s->used_at, slot };
        KVT_ASSERT(entry->slot == slot);
        KVT_ASSERT(!kvt_ranked_leaves_before(&now, entry));
        KVT_ASSERT(KVT_IMPLIES(entry->used_at == s->used_at, entry->rank == s->rank));
        KVT_ASSERT(s->used_at <= ranked->now);
        KVT_ASSERT(
            KVT_IMPLIES(s->place > 1, !kvt_ranked_leaves_before(entry, &ranked->heap[kvt_ranked_parent(s->place)])));
    }
    KVT_ASSERT(listed == 0);
    KVT_ASSERT(heaped == ranked->heap_count);
}
