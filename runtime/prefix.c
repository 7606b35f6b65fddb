#include "runtime/prefix.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

_Static_assert(KVT_NO_BLOCK == UINT32_MAX, "an empty entry minus one is no block");

static uint32_t tag_of(uint32_t group, struct kvt_key key)
{
    /* Keys are digests: their bits are as good as a hash's. The group only has to differ. */
    return (uint32_t)(key.lo >> 32) ^ (group * 0x9e3779b9u);
}

static uint32_t home_of(const struct kvt_prefix *prefix, uint32_t tag)
{
    return (uint32_t)(((uint64_t)tag * prefix->capacity) >> 32);
}

static uint32_t after(const struct kvt_prefix *prefix, uint32_t position)
{
    return position + 1 == prefix->capacity ? 0 : position + 1;
}

enum kvt_status kvt_prefix_init(struct kvt_prefix *prefix, const struct kvt_block *blocks, uint32_t entries_max)
{
    const uint64_t capacity = 2 * (uint64_t)entries_max + 8;
    if (capacity > UINT32_MAX) return KVT_NOMEM;
    *prefix = (struct kvt_prefix){ .capacity = (uint32_t)capacity, .blocks = blocks };
    prefix->entries = kvt_table_map(kvt_prefix_bytes(prefix));
    return prefix->entries ? KVT_OK : KVT_NOMEM;
}

void kvt_prefix_done(struct kvt_prefix *prefix)
{
    if (prefix->entries) kvt_table_unmap(prefix->entries, kvt_prefix_bytes(prefix));
    prefix->entries = NULL;
}

size_t kvt_prefix_bytes(const struct kvt_prefix *prefix) { return (size_t)prefix->capacity * sizeof *prefix->entries; }

/* The place of the entry with this group and key, or the empty place where it would be. */
static uint32_t seek(const struct kvt_prefix *prefix, uint32_t tag, uint32_t group, struct kvt_key key)
{
    for (uint32_t position = home_of(prefix, tag);; position = after(prefix, position)) {
        const struct kvt_prefix_entry entry = prefix->entries[position];
        if (entry.block == 0) return position;
        if (entry.tag != tag) continue;
        const struct kvt_block *block = &prefix->blocks[entry.block - 1];
        if (block->group == group && kvt_key_equal(block->key, key)) return position;
    }
}

uint32_t kvt_prefix_find(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key)
{
    /* An empty place has block 0, which makes it KVT_NO_BLOCK. */
    return prefix->entries[seek(prefix, tag_of(group, key), group, key)].block - 1;
}

uint32_t kvt_prefix_find_or_insert(struct kvt_prefix *prefix, uint32_t block)
{
    const struct kvt_block *entered = &prefix->blocks[block];
    const uint32_t tag = tag_of(entered->group, entered->key);
    struct kvt_prefix_entry *entry = &prefix->entries[seek(prefix, tag, entered->group, entered->key)];
    if (entry->block != 0) return entry->block - 1;
    KVT_ASSERT(prefix->count < prefix->capacity / 2);
    *entry = (struct kvt_prefix_entry){ .tag = tag, .block = block + 1 };
    prefix->count++;
    return KVT_NO_BLOCK;
}

void kvt_prefix_insert(struct kvt_prefix *prefix, uint32_t block)
{
    const uint32_t other = kvt_prefix_find_or_insert(prefix, block);
    KVT_ASSERT(other == KVT_NO_BLOCK);
}

void kvt_prefix_remove(struct kvt_prefix *prefix, uint32_t block)
{
    const uint32_t tag = tag_of(prefix->blocks[block].group, prefix->blocks[block].key);
    uint32_t hole = home_of(prefix, tag);
    while (prefix->entries[hole].block != block + 1) {
        KVT_ASSERT(prefix->entries[hole].block != 0);
        hole = after(prefix, hole);
    }
    /* Pull back each later entry of the run whose home is not behind the hole. */
    for (uint32_t position = after(prefix, hole);; position = after(prefix, position)) {
        const struct kvt_prefix_entry entry = prefix->entries[position];
        if (entry.block == 0) break;
        const uint32_t home = home_of(prefix, entry.tag);
        const bool is_home_after_hole = hole <= position ? (home > hole && home <= position)
                                                         : (home > hole || home <= position);
        if (is_home_after_hole) continue;
        prefix->entries[hole] = entry;
        hole = position;
    }
    prefix->entries[hole] = (struct kvt_prefix_entry){ 0 };
    prefix->count--;
}

void kvt_prefix_prefetch(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key)
{
    __builtin_prefetch(&prefix->entries[home_of(prefix, tag_of(group, key))]);
}
