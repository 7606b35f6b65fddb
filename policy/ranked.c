#include "policy/ranked.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

#define FANOUT 4u
#define USED_WHILE_HELD UINT64_MAX /* in used_at: the time is taken at the release */

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
    KVT_ASSERT(slot_count < UINT32_MAX / FANOUT);
    *ranked = (struct kvt_ranked){ .slot_count = slot_count };
    ranked->slots = kvt_table_map(slots_bytes(ranked));
    if (!ranked->slots) return KVT_NOMEM;
    ranked->heap = kvt_table_map(heap_bytes(ranked));
    return ranked->heap ? KVT_OK : KVT_NOMEM;
}

void kvt_ranked_done(struct kvt_ranked *ranked)
{
    kvt_table_unmap(ranked->slots, slots_bytes(ranked));
    kvt_table_unmap(ranked->heap, heap_bytes(ranked));
    ranked->slots = NULL;
    ranked->heap = NULL;
}

static bool leaves_before(const struct kvt_ranked_entry *a, const struct kvt_ranked_entry *b)
{
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->used_at < b->used_at;
}

static void put(struct kvt_ranked *ranked, uint32_t place, struct kvt_ranked_entry entry)
{
    ranked->heap[place] = entry;
    ranked->slots[entry.slot].place = place;
}

static uint32_t parent_of(uint32_t place) { return (place - 2) / FANOUT + 1; }
static uint32_t first_child_of(uint32_t place) { return (place - 1) * FANOUT + 2; }

/* entry belongs at place or above it. */
static void sift_up(struct kvt_ranked *ranked, uint32_t place, struct kvt_ranked_entry entry)
{
    while (place > 1 && leaves_before(&entry, &ranked->heap[parent_of(place)])) {
        put(ranked, place, ranked->heap[parent_of(place)]);
        place = parent_of(place);
    }
    put(ranked, place, entry);
}

/* entry belongs at place or below it. */
static void sift_down(struct kvt_ranked *ranked, uint32_t place, struct kvt_ranked_entry entry)
{
    for (;;) {
        const uint32_t first = first_child_of(place);
        if (first > ranked->idle_count) break;
        uint32_t lowest = first;
        for (uint32_t child = first + 1; child < first + FANOUT && child <= ranked->idle_count; child++) {
            if (leaves_before(&ranked->heap[child], &ranked->heap[lowest])) lowest = child;
        }
        if (!leaves_before(&ranked->heap[lowest], &entry)) break;
        put(ranked, place, ranked->heap[lowest]);
        place = lowest;
    }
    put(ranked, place, entry);
}

static void sift(struct kvt_ranked *ranked, uint32_t place, struct kvt_ranked_entry entry)
{
    if (place > 1 && leaves_before(&entry, &ranked->heap[parent_of(place)])) sift_up(ranked, place, entry);
    else sift_down(ranked, place, entry);
}

static void take_out(struct kvt_ranked *ranked, uint32_t slot)
{
    const uint32_t place = ranked->slots[slot].place;
    const struct kvt_ranked_entry last = ranked->heap[ranked->idle_count];
    ranked->idle_count--;
    ranked->slots[slot].place = 0;
    if (last.slot != slot) sift(ranked, place, last);
}

static struct kvt_ranked_slot *present(struct kvt_ranked *ranked, uint32_t slot)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses > 0);
    return &ranked->slots[slot];
}

void kvt_ranked_insert(struct kvt_ranked *ranked, uint32_t slot, uint64_t rank)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses == 0);
    ranked->slots[slot] = (struct kvt_ranked_slot){ .rank = rank, .used_at = USED_WHILE_HELD, .uses = 1 };
}

void kvt_ranked_use(struct kvt_ranked *ranked, uint32_t slot, uint64_t rank)
{
    struct kvt_ranked_slot *s = present(ranked, slot);
    if (s->uses < UINT32_MAX) s->uses++;
    s->rank = rank;
    if (s->place == 0) {
        s->used_at = USED_WHILE_HELD;
        return;
    }
    s->used_at = ++ranked->now;
    sift(ranked, s->place, (struct kvt_ranked_entry){ s->rank, s->used_at, slot });
}

void kvt_ranked_hold(struct kvt_ranked *ranked, uint32_t slot)
{
    KVT_ASSERT(present(ranked, slot)->place != 0);
    take_out(ranked, slot);
}

void kvt_ranked_release(struct kvt_ranked *ranked, uint32_t slot)
{
    struct kvt_ranked_slot *s = present(ranked, slot);
    KVT_ASSERT(s->place == 0);
    if (s->used_at == USED_WHILE_HELD) s->used_at = ++ranked->now;
    ranked->idle_count++;
    sift_up(ranked, ranked->idle_count, (struct kvt_ranked_entry){ s->rank, s->used_at, slot });
}

void kvt_ranked_remove(struct kvt_ranked *ranked, uint32_t slot)
{
    struct kvt_ranked_slot *s = present(ranked, slot);
    if (s->place != 0) take_out(ranked, slot);
    *s = (struct kvt_ranked_slot){ 0 };
}

uint32_t kvt_ranked_uses(const struct kvt_ranked *ranked, uint32_t slot)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses > 0);
    return ranked->slots[slot].uses;
}

uint64_t kvt_ranked_rank(const struct kvt_ranked *ranked, uint32_t slot)
{
    KVT_ASSERT(slot < ranked->slot_count);
    KVT_ASSERT(ranked->slots[slot].uses > 0);
    return ranked->slots[slot].rank;
}

uint32_t kvt_ranked_lowest(const struct kvt_ranked *ranked)
{
    return ranked->idle_count ? ranked->heap[1].slot : KVT_POLICY_NONE;
}

void kvt_ranked_verify(const struct kvt_ranked *ranked)
{
    uint32_t idle_count = 0;
    for (uint32_t slot = 0; slot < ranked->slot_count; slot++) {
        const struct kvt_ranked_slot *s = &ranked->slots[slot];
        KVT_ASSERT(KVT_IMPLIES(s->uses == 0, s->place == 0));
        if (s->place == 0) continue;
        idle_count++;
        KVT_ASSERT(s->place <= ranked->idle_count);
        const struct kvt_ranked_entry *entry = &ranked->heap[s->place];
        KVT_ASSERT(entry->slot == slot);
        KVT_ASSERT(entry->rank == s->rank);
        KVT_ASSERT(entry->used_at == s->used_at);
        KVT_ASSERT(entry->used_at <= ranked->now);
        KVT_ASSERT(KVT_IMPLIES(s->place > 1, !leaves_before(entry, &ranked->heap[parent_of(s->place)])));
    }
    KVT_ASSERT(idle_count == ranked->idle_count);
}
