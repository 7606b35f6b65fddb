/*
 * ghost: keys of slots that left, remembered for a while. For policies that learn from what they evicted.
 *
 * A remembered key is a small number, 0 .. capacity - 1, on one of a few lists, oldest first. Who is
 * forgotten to make room is the policy's choice. Keys are 64-bit hashes whose low bits choose a bucket; two blocks of
 * one hash are taken for one, which costs a policy a wrong guess and nobody a wrong byte.
 *
 * Thread: the caller's lock. Memory: all taken in init, touched as keys come.
 */
#ifndef KVT_POLICY_GHOST_H
#define KVT_POLICY_GHOST_H

#include <stdint.h>

#include "policy/order.h"
#include "runtime/base/assert.h"
#include "runtime/base/status.h"

#define KVT_GHOST_NONE UINT32_MAX
#define KVT_GHOST_LISTS_MAX 2u

struct kvt_ghost {
    uint64_t key_hash;
    uint32_t next; /* of its bucket's chain, or of the free ones; number + 1, 0: the end */
    uint32_t list; /* KVT_GHOST_NONE: free */
};

struct kvt_ghosts {
    struct kvt_ghost *entries;
    uint32_t *heads; /* first number + 1 of each bucket */
    struct kvt_order order;
    uint32_t capacity;
    uint32_t bucket_mask;
    uint32_t count; /* remembered now, all lists together */
    uint32_t size[KVT_GHOST_LISTS_MAX];
    uint32_t fresh;     /* numbers from here on were never used */
    uint32_t free_head; /* number + 1 */
};

/* NOMEM; then done() is still fine. */
KVT_NODISCARD enum kvt_status kvt_ghosts_init(struct kvt_ghosts *ghosts, uint32_t capacity, uint32_t list_count);
void kvt_ghosts_done(struct kvt_ghosts *ghosts);

KVT_INLINE uint32_t *kvt_ghosts_head(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    return &ghosts->heads[key_hash & ghosts->bucket_mask];
}

/* The link to the key, or the end of its bucket's chain. */
KVT_INLINE uint32_t *kvt_ghosts_link(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    uint32_t *link = kvt_ghosts_head(ghosts, key_hash);
    while (*link != 0 && ghosts->entries[*link - 1].key_hash != key_hash) link = &ghosts->entries[*link - 1].next;
    return link;
}

/* KVT_GHOST_NONE: not remembered. */
KVT_INLINE uint32_t kvt_ghosts_find(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    const uint32_t link = *kvt_ghosts_link(ghosts, key_hash);
    return link != 0 ? link - 1 : KVT_GHOST_NONE;
}

/* Asks the memory for what find, remember or forget of the key will read first. */
KVT_INLINE void kvt_ghosts_prefetch(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    __builtin_prefetch(kvt_ghosts_head(ghosts, key_hash), 1);
}

/* The same for what they read second; reads the first. */
KVT_INLINE void kvt_ghosts_prefetch_first(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    const uint32_t link = *kvt_ghosts_head(ghosts, key_hash);
    if (link != 0) __builtin_prefetch(&ghosts->entries[link - 1]);
}

/* The oldest of a list, KVT_GHOST_NONE when it is empty. */
KVT_INLINE uint32_t kvt_ghosts_oldest(const struct kvt_ghosts *ghosts, uint32_t list)
{
    return kvt_order_coldest(&ghosts->order, list);
}

KVT_INLINE void kvt_ghosts_forget(struct kvt_ghosts *ghosts, uint32_t ghost)
{
    KVT_ASSERT(ghost < ghosts->fresh);
    struct kvt_ghost *entry = &ghosts->entries[ghost];
    uint32_t *link = kvt_ghosts_head(ghosts, entry->key_hash);
    while (*link != ghost + 1) {
        KVT_ASSERT(*link != 0); /* else it is not remembered */
        link = &ghosts->entries[*link - 1].next;
    }
    *link = entry->next;
    kvt_order_unlink(&ghosts->order, entry->list, ghost);
    ghosts->size[entry->list]--;
    ghosts->count--;
    entry->next = ghosts->free_head;
    entry->list = KVT_GHOST_NONE;
    ghosts->free_head = ghost + 1;
}

/* The key is not remembered, end is its kvt_ghosts_link(), and there is room. */
KVT_INLINE uint32_t kvt_ghosts_add(struct kvt_ghosts *ghosts, uint32_t *end, uint64_t key_hash, uint32_t list)
{
    KVT_ASSERT(*end == 0);
    KVT_ASSERT(ghosts->count < ghosts->capacity);
    uint32_t ghost;
    if (ghosts->free_head != 0) {
        ghost = ghosts->free_head - 1;
        ghosts->free_head = ghosts->entries[ghost].next;
    } else {
        ghost = ghosts->fresh++;
    }
    /* At the end of its chain: who is forgotten is mostly the oldest, and is met first. */
    *end = ghost + 1;
    ghosts->entries[ghost].key_hash = key_hash;
    ghosts->entries[ghost].next = 0;
    ghosts->entries[ghost].list = list;
    kvt_order_push_warm(&ghosts->order, list, ghost);
    ghosts->count++;
    ghosts->size[list]++;
    return ghost;
}

/* key_hash becomes the youngest of list, and leaves the place that it may have had. It had one, or there is room. */
KVT_INLINE uint32_t kvt_ghosts_remember(struct kvt_ghosts *ghosts, uint64_t key_hash, uint32_t list)
{
    uint32_t *end = kvt_ghosts_link(ghosts, key_hash);
    if (*end != 0) {
        kvt_ghosts_forget(ghosts, *end - 1);
        end = kvt_ghosts_link(ghosts, key_hash);
    }
    return kvt_ghosts_add(ghosts, end, key_hash, list);
}

/* A remembered key becomes the youngest of list. */
KVT_INLINE void kvt_ghosts_move(struct kvt_ghosts *ghosts, uint32_t ghost, uint32_t list)
{
    KVT_ASSERT(ghost < ghosts->fresh);
    struct kvt_ghost *entry = &ghosts->entries[ghost];
    KVT_ASSERT(entry->list != KVT_GHOST_NONE);
    kvt_order_unlink(&ghosts->order, entry->list, ghost);
    kvt_order_push_warm(&ghosts->order, list, ghost);
    ghosts->size[entry->list]--;
    ghosts->size[list]++;
    entry->list = list;
}

/* Tests only. */
void kvt_ghosts_verify(const struct kvt_ghosts *ghosts);

#endif
