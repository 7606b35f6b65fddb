/*
 * ghost: keys of slots that left, remembered for a while. For policies that learn from what they evicted.
 *
 * A remembered key is a small number, 0 .. capacity - 1, that a policy puts on lists of its own (order.h). Who leaves to make
 * room is the policy's choice: add() requires room. Keys are 64-bit hashes; two blocks of one hash are taken for one,
 * which costs a policy a wrong guess and nobody a wrong byte.
 *
 * Thread: the caller's lock. Memory: all taken in init, touched as keys come.
 */
#ifndef KVT_POLICY_GHOST_H
#define KVT_POLICY_GHOST_H

#include <stdint.h>

#include "runtime/base/status.h"

#define KVT_GHOST_NONE UINT32_MAX

struct kvt_ghosts {
    uint64_t *keys;
    uint32_t *next;  /* of a bucket's chain, or of the free ones; number + 1, 0: the end */
    uint32_t *heads; /* first number + 1 of each bucket */
    uint32_t capacity;
    uint32_t bucket_mask;
    uint32_t count;
    uint32_t fresh;     /* numbers from here on were never used */
    uint32_t free_head; /* number + 1 */
};

/* NOMEM; then done() is still fine. */
KVT_NODISCARD enum kvt_status kvt_ghosts_init(struct kvt_ghosts *ghosts, uint32_t capacity);
void kvt_ghosts_done(struct kvt_ghosts *ghosts);

/* KVT_GHOST_NONE: not remembered. */
uint32_t kvt_ghosts_find(const struct kvt_ghosts *ghosts, uint64_t key_hash);

/* key_hash is not remembered yet and there is room. */
uint32_t kvt_ghosts_add(struct kvt_ghosts *ghosts, uint64_t key_hash);
void kvt_ghosts_forget(struct kvt_ghosts *ghosts, uint32_t ghost);

/* Tests only. */
void kvt_ghosts_verify(const struct kvt_ghosts *ghosts);

#endif
