#include "policy/ghost.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define CAPACITY_MAX (UINT32_C(1) << 31)

static uint64_t keys_bytes(const struct kvt_ghosts *g) { return ((uint64_t)g->capacity + 1) * sizeof g->keys[0]; }
static uint64_t next_bytes(const struct kvt_ghosts *g) { return ((uint64_t)g->capacity + 1) * sizeof g->next[0]; }
static uint64_t heads_bytes(const struct kvt_ghosts *g) { return ((uint64_t)g->bucket_mask + 1) * sizeof g->heads[0]; }

enum kvt_status kvt_ghosts_init(struct kvt_ghosts *ghosts, uint32_t capacity)
{
    KVT_ASSERT(capacity <= CAPACITY_MAX);
    *ghosts = (struct kvt_ghosts){ .capacity = capacity };
    uint64_t buckets = 1;
    while (buckets < capacity) buckets *= 2;
    ghosts->bucket_mask = (uint32_t)(buckets - 1);
    ghosts->keys = kvt_table_map(keys_bytes(ghosts));
    if (!ghosts->keys) return KVT_NOMEM;
    ghosts->next = kvt_table_map(next_bytes(ghosts));
    if (!ghosts->next) return KVT_NOMEM;
    ghosts->heads = kvt_table_map(heads_bytes(ghosts));
    return ghosts->heads ? KVT_OK : KVT_NOMEM;
}

void kvt_ghosts_done(struct kvt_ghosts *ghosts)
{
    kvt_table_unmap(ghosts->keys, keys_bytes(ghosts));
    kvt_table_unmap(ghosts->next, next_bytes(ghosts));
    kvt_table_unmap(ghosts->heads, heads_bytes(ghosts));
    ghosts->keys = NULL;
    ghosts->next = NULL;
    ghosts->heads = NULL;
}

static uint32_t *head_of(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    return &ghosts->heads[kvt_mix64(key_hash) & ghosts->bucket_mask];
}

uint32_t kvt_ghosts_find(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    for (uint32_t link = *head_of(ghosts, key_hash); link != 0; link = ghosts->next[link - 1]) {
        if (ghosts->keys[link - 1] == key_hash) return link - 1;
    }
    return KVT_GHOST_NONE;
}

uint32_t kvt_ghosts_add(struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    KVT_ASSERT(ghosts->count < ghosts->capacity);
    uint32_t ghost;
    if (ghosts->free_head != 0) {
        ghost = ghosts->free_head - 1;
        ghosts->free_head = ghosts->next[ghost];
    } else {
        ghost = ghosts->fresh++;
    }
    uint32_t *head = head_of(ghosts, key_hash);
    ghosts->keys[ghost] = key_hash;
    ghosts->next[ghost] = *head;
    *head = ghost + 1;
    ghosts->count++;
    return ghost;
}

void kvt_ghosts_forget(struct kvt_ghosts *ghosts, uint32_t ghost)
{
    KVT_ASSERT(ghost < ghosts->fresh);
    uint32_t *link = head_of(ghosts, ghosts->keys[ghost]);
    while (*link != ghost + 1) {
        KVT_ASSERT(*link != 0);
        link = &ghosts->next[*link - 1];
    }
    *link = ghosts->next[ghost];
    ghosts->next[ghost] = ghosts->free_head;
    ghosts->free_head = ghost + 1;
    ghosts->count--;
}

void kvt_ghosts_verify(const struct kvt_ghosts *ghosts)
{
    uint32_t chained = 0;
    for (uint64_t bucket = 0; bucket <= ghosts->bucket_mask; bucket++) {
        for (uint32_t link = ghosts->heads[bucket]; link != 0; link = ghosts->next[link - 1]) {
            KVT_ASSERT(link <= ghosts->fresh);
            KVT_ASSERT(kvt_ghosts_find(ghosts, ghosts->keys[link - 1]) == link - 1);
            KVT_ASSERT(head_of(ghosts, ghosts->keys[link - 1]) == &ghosts->heads[bucket]);
            KVT_ASSERT(chained++ < ghosts->count);
        }
    }
    KVT_ASSERT(chained == ghosts->count);
    uint32_t unused = 0;
    for (uint32_t link = ghosts->free_head; link != 0; link = ghosts->next[link - 1]) {
        KVT_ASSERT(unused++ < ghosts->fresh);
    }
    KVT_ASSERT(chained + unused == ghosts->fresh);
}
