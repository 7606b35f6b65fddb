/*
 * nvme_tier: the store (store.h) behind the tier contract.
 *
 * Caps:    INDEXED and DURABLE. The order of eviction is the store's own: segment age and re-admission. Held records
 *          are carried forward; when even that does not fit, poll_lost tells.
 * Ops:     STASH writes host[0 .. length) as one record under (name, generation). OK: it can be fetched from now on.
 *          FULL: the store refuses (paused after ENOSPC, larger than the cap, write queue too long); nothing is kept.
 *          FETCH reads and verifies; NOTFOUND: no such record (any more); CORRUPT: it failed its check and is
 *          forgotten.
 */
#ifndef KVT_TIERS_NVME_TIER_H
#define KVT_TIERS_NVME_TIER_H

#include "tiers/tier.h"

struct kvt_nvme_tier_config {
    /* a directory, or up to 8 with commas between; the last component is created (0700) when missing */
    const char *path;
    uint64_t capacity_bytes;   /* of allocated disk space, as du sees it */
    uint64_t link_bytes_per_s; /* pacing for experiments; 0: none */
    uint64_t staging_bytes;    /* the most memory for its I/O buffers */
    uint32_t queue_depth;      /* ops in flight; 0: 64 */
    const uint8_t *key;        /* 32 bytes, borrowed for open; NULL: nothing is encrypted */
    uint64_t bytes_per_day;    /* endurance budget that admission is asked with; 0: none */
    uint32_t record_bytes_max; /* the longest copy there will be, so that segments hold several; 0: unknown */
    uint64_t side_bytes_max;   /* of a side file, see below; 0: there is none */
    struct kvt_key side_name;  /* that one's name */
    struct kvt_wake wake;
    char *ret_error; /* one line (what, value, rule) when open refuses; may be NULL */
    uint32_t error_bytes;
};

/* INVAL: bad path or capacity | BUSY: the directory has an owner | IO | NOMEM. */
KVT_NODISCARD enum kvt_status kvt_nvme_tier_open(const struct kvt_nvme_tier_config *config, const struct kvt_env *env,
                                                 struct kvt_tier **ret_tier);

/*
 * A side file: a few KiB that records cannot be read without (the codec's base tables), under a name of its own. It
 * outlives resets and reclaims. Saved: it is on the device, whole, before any record that is stashed later. FULL:
 * larger than side_bytes_max | IO, with ret_errno: what was saved before still is. Blocks; one caller at a time.
 */
KVT_NODISCARD enum kvt_status kvt_nvme_tier_side_save(struct kvt_tier *tier, struct kvt_key name, const void *bytes,
                                                      size_t size, int *ret_errno);
/* NOTFOUND | FULL: it is larger than capacity | IO. The caller checks that it is what was saved. */
KVT_NODISCARD enum kvt_status kvt_nvme_tier_side_load(struct kvt_tier *tier, struct kvt_key name, void *target,
                                                      size_t capacity, size_t *ret_size);
void kvt_nvme_tier_side_remove(struct kvt_tier *tier, struct kvt_key name);

struct kvt_store;
/* The store behind the tier, for reports (stored bytes, allocated bytes, write amplification). */
struct kvt_store *kvt_nvme_tier_store(struct kvt_tier *tier);

#endif
