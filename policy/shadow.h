/*
 * shadow: what a tier would hold under two rules of admission, without its bytes.
 *
 * Two LRU orders of keys, each with as many bytes as the tier. Of a tier that has room for more than
 * KVT_SHADOW_KEYS_MAX blocks a sample is kept: the keys whose hash falls into a 2^n-th, in a 2^n-th of the bytes. It
 * has very nearly the tier's share of hits (C. A. Waldspurger et al., "Efficient MRC construction with SHARDS", FAST
 * 2015).
 *
 * Thread: the caller's lock. Memory: at most 3 MiB, however large the tier.
 */
#ifndef KVT_POLICY_SHADOW_H
#define KVT_POLICY_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/order.h"
#include "runtime/base/status.h"

#define KVT_SHADOW_KEYS_MAX (UINT32_C(1) << 15) /* a side */
#define KVT_SHADOW_SIDES 2u

struct kvt_shadow_entry {
    uint64_t key;
    uint32_t next; /* of the bucket, or of the free ones; number + 1, 0: the last */
    uint32_t bytes;
};

struct kvt_shadow_side {
    struct kvt_order order;
    uint64_t bytes;
    uint32_t count;
    bool is_full; /* it was at some time */
};

struct kvt_shadow {
    struct kvt_shadow_side sides[KVT_SHADOW_SIDES];
    struct kvt_shadow_entry *entries; /* of keys that a side holds, or both */
    uint32_t *buckets;                /* number + 1, 0: empty */
    uint32_t free_head, taken;        /* number + 1; entries that were ever taken */
    uint64_t tier_bytes;
    uint32_t shift; /* a 2^shift-th of the keys is kept */
    bool is_sized;  /* the shift is chosen, by the bytes of the first key */
};

/* NOMEM; then done() is still fine. */
KVT_NODISCARD enum kvt_status kvt_shadow_init(struct kvt_shadow *shadow, uint64_t tier_bytes);
void kvt_shadow_done(struct kvt_shadow *shadow);

/* False: the key, a good hash, is not of the sample, or larger than all of it; nobody uses it. bytes: at least 1. */
bool kvt_shadow_has_sampled(struct kvt_shadow *shadow, uint64_t key, uint32_t bytes);

/* A sampled key is used. Sides are bits: those in admitting take it if they lack it. Returns those that had it. */
uint32_t kvt_shadow_use(struct kvt_shadow *shadow, uint64_t key, uint32_t bytes, uint32_t admitting);

/* Walks everything and asserts; tests only. */
void kvt_shadow_verify(const struct kvt_shadow *shadow);

#endif
