#include "runtime/block.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

_Static_assert(sizeof(struct kvt_block) == 64, "a block is one cache line");

static const struct {
    enum kvt_copy_state from, to;
    const char *name;
} edges[KVT_COPY_EVENTS] = {
#define KVT_COPY_EDGE_ROW(event, from_, to_) \
    [KVT_COPY_##event] = { .from = KVT_COPY_##from_, .to = KVT_COPY_##to_, .name = #event },
    KVT_COPY_EDGES(KVT_COPY_EDGE_ROW)
#undef KVT_COPY_EDGE_ROW
};

enum kvt_status kvt_block_table_init(struct kvt_block_table *table, uint32_t capacity)
{
    *table = (struct kvt_block_table){ .capacity = capacity, .free_head = KVT_NO_BLOCK };
    table->blocks = kvt_table_map((size_t)capacity * sizeof *table->blocks);
    return table->blocks ? KVT_OK : KVT_NOMEM;
}

void kvt_block_table_done(struct kvt_block_table *table)
{
    if (table->blocks) kvt_table_unmap(table->blocks, (size_t)table->capacity * sizeof *table->blocks);
    table->blocks = NULL;
}

uint32_t kvt_block_table_take(struct kvt_block_table *table, uint32_t group)
{
    uint32_t index = table->free_head;
    if (index != KVT_NO_BLOCK) {
        table->free_head = table->blocks[index].link;
    } else {
        if (table->high_water == table->capacity) return KVT_NO_BLOCK;
        index = table->high_water++;
    }
    struct kvt_block *block = &table->blocks[index];
    *block = (struct kvt_block){ .device_slot = KVT_NO_SLOT, .host_slot = KVT_NO_SLOT, .origin = KVT_NO_BLOCK,
                                 .link = KVT_NO_BLOCK, .group = (uint8_t)group, .generation = block->generation + 1 };
    table->count++;
    return index;
}

void kvt_block_table_give(struct kvt_block_table *table, uint32_t index)
{
    struct kvt_block *block = &table->blocks[index];
    KVT_ASSERT(block->refs == 0);
    KVT_ASSERT(block->users == 0);
    KVT_ASSERT(!kvt_block_has_copies(block));
    KVT_ASSERT((block->readers[0] | block->readers[1] | block->readers[2]) == 0);
    KVT_ASSERT(!kvt_block_has(block, KVT_BLOCK_INDEXED));
    KVT_ASSERT(block->origin == KVT_NO_BLOCK);
    KVT_ASSERT(table->count > 0);
    block->link = table->free_head;
    table->free_head = index;
    table->count--;
}

bool kvt_copy_is_valid(const struct kvt_block *block, uint32_t tier)
{
    const enum kvt_copy_state state = kvt_copy_state(block, tier);
    if (state == KVT_COPY_STATES) return false;
    if (state != KVT_COPY_RESIDENT && block->readers[tier] != 0) return false;
    if (tier == KVT_TIER_DEVICE) return (state == KVT_COPY_EMPTY) == (block->device_slot == KVT_NO_SLOT);
    if (tier == KVT_TIER_HOST) return (state == KVT_COPY_EMPTY) == (block->host_slot == KVT_NO_SLOT);
    return true;
}

void kvt_copy_step(struct kvt_block *block, uint32_t tier, enum kvt_copy_event event)
{
    KVT_ASSERT(tier < KVT_TIERS);
    KVT_ASSERT(kvt_copy_state(block, tier) == edges[event].from);
    if (event == KVT_COPY_EVICT) {
        KVT_ASSERT(block->readers[tier] == 0);
        KVT_ASSERT(KVT_IMPLIES(tier == KVT_TIER_DEVICE, block->users == 0));
    }
    block->state_bits = (uint8_t)((block->state_bits & ~(3u << (2 * tier))) | ((unsigned)edges[event].to << (2 * tier)));
    KVT_ASSERT(kvt_copy_is_valid(block, tier));
}

const char *kvt_copy_state_name(enum kvt_copy_state state)
{
    static const char *const names[] = { "EMPTY", "FILLING", "RESIDENT" };
    return state < KVT_COPY_STATES ? names[state] : "?";
}

const char *kvt_copy_event_name(enum kvt_copy_event event) { return event < KVT_COPY_EVENTS ? edges[event].name : "?"; }

void kvt_copy_edge(enum kvt_copy_event event, enum kvt_copy_state *ret_from, enum kvt_copy_state *ret_to)
{
    *ret_from = edges[event].from;
    *ret_to = edges[event].to;
}
