#include "runtime/block.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

#define TAKES_AHEAD 8u /* appends take many in a row */

_Static_assert(sizeof(struct kvt_block) == 64, "a block is one cache line");

enum kvt_status kvt_block_table_init(struct kvt_block_table *table, uint32_t capacity)
{
    *table = (struct kvt_block_table){ .capacity = capacity };
    table->blocks = kvt_table_map((size_t)capacity * sizeof *table->blocks);
    table->free_entries = kvt_table_map((size_t)capacity * sizeof *table->free_entries);
    return table->blocks && table->free_entries ? KVT_OK : KVT_NOMEM;
}

void kvt_block_table_done(struct kvt_block_table *table)
{
    if (table->blocks) kvt_table_unmap(table->blocks, (size_t)table->capacity * sizeof *table->blocks);
    if (table->free_entries)
        kvt_table_unmap(table->free_entries, (size_t)table->capacity * sizeof *table->free_entries);
    *table = (struct kvt_block_table){ 0 };
}

uint32_t kvt_block_table_take(struct kvt_block_table *table, uint32_t group)
{
    const uint32_t free_count = table->high_water - table->count;
    if (free_count == 0 && table->high_water == table->capacity) return KVT_NO_BLOCK;
    const uint32_t index = free_count > 0 ? table->free_entries[free_count - 1] : table->high_water++;
    if (free_count > TAKES_AHEAD)
        __builtin_prefetch(&table->blocks[table->free_entries[free_count - 1 - TAKES_AHEAD]], 1);
    struct kvt_block *block = &table->blocks[index];
    *block = (struct kvt_block){ .device_slot = KVT_NO_SLOT,
                                 .host_slot = KVT_NO_SLOT,
                                 .origin = KVT_NO_BLOCK,
                                 .link = KVT_NO_BLOCK,
                                 .group = (uint8_t)group,
                                 .generation = block->generation + 1 };
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
    table->count--;
    table->free_entries[table->high_water - table->count - 1] = index;
}

const char *kvt_copy_state_name(enum kvt_copy_state state)
{
    static const char *const names[] = { "EMPTY", "FILLING", "RESIDENT" };
    return state < KVT_COPY_STATES ? names[state] : "?";
}

const char *kvt_copy_event_name(enum kvt_copy_event event)
{
    static const char *const names[] = {
#define KVT_COPY_EVENT_NAME(event, from, to) [KVT_COPY_##event] = #event,
        KVT_COPY_EDGES(KVT_COPY_EVENT_NAME)
#undef KVT_COPY_EVENT_NAME
    };
    return event < KVT_COPY_EVENTS ? names[event] : "?";
}
