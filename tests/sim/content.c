#include "tests/sim/content.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

#define CAPACITY_MIN 4096u

static bool is_empty(const struct sim_sealed *entry)
{
    return (entry->name.key[0] | entry->name.key[1] | entry->name.space[0] | entry->name.space[1]) == 0;
}

static struct sim_sealed *place(const struct sim_content *content, const struct kvt_store_name *name)
{
    const uint32_t mask = content->capacity - 1;
    uint32_t i = (uint32_t)(name->key[0] ^ name->space[1]) & mask;
    while (!is_empty(&content->entries[i]) && memcmp(&content->entries[i].name, name, sizeof *name) != 0)
        i = (i + 1) & mask;
    return &content->entries[i];
}

void sim_content_clear(struct sim_content *content)
{
    if (!content->entries) {
        content->capacity = CAPACITY_MIN;
        content->entries = kvt_alloc(content->capacity, sizeof *content->entries);
        KVT_ASSERT(content->entries != NULL);
    }
    memset(content->entries, 0, content->capacity * sizeof *content->entries);
    content->count = 0;
}

void sim_content_done(struct sim_content *content)
{
    kvt_free(content->entries);
    *content = (struct sim_content){ 0 };
}

struct sim_sealed *sim_content_find(const struct sim_content *content, const struct kvt_store_name *name)
{
    struct sim_sealed *entry = place(content, name);
    return is_empty(entry) ? NULL : entry;
}

static void grow(struct sim_content *content)
{
    struct sim_content next = { .capacity = content->capacity * 2, .count = content->count };
    next.entries = kvt_alloc(next.capacity, sizeof *next.entries);
    KVT_ASSERT(next.entries != NULL);
    for (uint32_t i = 0; i < content->capacity; i++) {
        if (!is_empty(&content->entries[i])) *place(&next, &content->entries[i].name) = content->entries[i];
    }
    kvt_free(content->entries);
    *content = next;
}

bool sim_content_note(struct sim_content *content, const struct sim_sealed *sealed)
{
    struct sim_sealed *entry = place(content, &sealed->name);
    if (!is_empty(entry))
        return entry->group == sealed->group && memcmp(entry->values, sealed->values, sizeof entry->values) == 0;
    *entry = *sealed;
    if (++content->count > content->capacity / 2) grow(content);
    return true;
}
