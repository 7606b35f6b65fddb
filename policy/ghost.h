/*
 * ghost: keys of slots that left, remembered for a while. For policies that learn from what they evicted.
 *
 * A remembered key is a small number, 0 .. capacity - 1, on one of a few lists, oldest first. Who is
 * forgotten to make room is the policy's choice. Keys are 64-bit hashes; two blocks of one hash are taken
 * for one, which costs a policy a wrong guess and nobody a wrong byte.
 *
 * Thread: the caller's lock. Memory: all taken in init, touched as keys come.
 */
#ifndef KVT_POLICY_GHOST_H
#define KVT_POLICY_GHOST_H

#include <stdint.h>

#include "policy/order.h"
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

/* KVT_GHOST_NONE: not remembered. */
uint32_t kvt_ghosts_find(const struct kvt_ghosts *ghosts, uint64_t key_hash);

/* Asks the memory for what find, remember or forget of the key will read first. */
void kvt_ghosts_prefetch(const struct kvt_ghosts *ghosts, uint64_t key_hash);

/* The same for what they read second; reads the first. */
void kvt_ghosts_prefetch_first(const struct kvt_ghosts *ghosts, uint64_t key_hash);

/*
 * Asks the memory for what forgetting the oldest of a list, call after call, will read two and three calls from now.
 * Returns the one whose turn is after the next one, for the caller's own tables; KVT_GHOST_NONE: there is none.
 */
uint32_t kvt_ghosts_prefetch_oldest(const struct kvt_ghosts *ghosts, uint32_t list);

/* The oldest of a list, KVT_GHOST_NONE when it is empty. */
uint32_t kvt_ghosts_oldest(const struct kvt_ghosts *ghosts, uint32_t list);

/* key_hash becomes the youngest of list, and leaves the place that it may have had. It had one, or there is room. */
uint32_t kvt_ghosts_remember(struct kvt_ghosts *ghosts, uint64_t key_hash, uint32_t list);
/* A remembered key becomes the youngest of list. */
void kvt_ghosts_move(struct kvt_ghosts *ghosts, uint32_t ghost, uint32_t list);
void kvt_ghosts_forget(struct kvt_ghosts *ghosts, uint32_t ghost);

/* Tests only. */
void kvt_ghosts_verify(const struct kvt_ghosts *ghosts);

#endif
