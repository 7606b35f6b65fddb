#include "runtime/block.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

_Static_assert(sizeof(struct kvt_block) == 64, "a block is one cache line");

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
        /* The next call reads its line first thing. */
        if (table->free_head != KVT_NO_BLOCK) __builtin_prefetch(&table->blocks[table->free_head], 1);
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
