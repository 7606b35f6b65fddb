/*
 * nvme_tier: the store (store.h) behind the tier contract.
 *
 * Caps:    INDEXED and DURABLE. The order of eviction is the store's own: segment age and re-admission. Held records are
 *          carried forward; when even that does not fit, poll_lost tells.
 * Ops:     STASH writes host[0 .. length) as one record under (name, generation). OK: it can be fetched from now on. FULL: the
 *          store refuses (paused after ENOSPC, larger than the cap, write queue too long); nothing is kept.
 *          FETCH reads and verifies; NOTFOUND: no such record (any more); CORRUPT: it failed its check and is forgotten.
 */
#ifndef KVT_TIERS_NVME_TIER_H
#define KVT_TIERS_NVME_TIER_H

#include "tiers/tier.h"

struct kvt_nvme_tier_config {
    const char *path;            /* a directory; its last component is created (0700) when missing */
    uint64_t capacity_bytes;     /* of allocated disk space, as du sees it */
    uint64_t link_bytes_per_s;   /* pacing for experiments; 0: none */
    uint64_t staging_bytes;      /* the most memory for its I/O buffers */
    uint32_t queue_depth;        /* ops in flight; 0: 64 */
    uint32_t record_bytes_max;   /* the longest copy there will be, so that segments hold several; 0: unknown */
    struct kvt_wake wake;
    char *ret_error;             /* one line (what, value, rule) when open refuses; may be NULL */
    uint32_t error_bytes;
};

/* INVAL: bad path or capacity | BUSY: the directory has an owner | IO | NOMEM. */
KVT_NODISCARD enum kvt_status kvt_nvme_tier_open(const struct kvt_nvme_tier_config *config, const struct kvt_env *env,
                                                 struct kvt_tier **ret_tier);

struct kvt_store;
/* The store behind the tier, for reports (stored bytes, allocated bytes, write amplification). */
struct kvt_store *kvt_nvme_tier_store(struct kvt_tier *tier);

#endif
