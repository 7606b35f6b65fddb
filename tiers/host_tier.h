/*
 * host_tier: the memory of the hub: chunks of pinned RAM, prepared in the background.
 *
 * Owns:    the chunks. Which slot class a chunk serves, and which slots are free, is runtime/pool's business.
 * Thread:  the calls below come under the runtime's lock; a worker faults and pins chunks behind it.
 * Memory:  address space for all chunks at open; pages are touched, and pinned where the limits allow, chunk after
 *          chunk in the background, so that open returns at once and nobody ever waits for a chunk: an unprepared one
 *          is not offered.
 * Fails:   open only. Pinning that is refused is a warning and pageable memory.
 */
#ifndef KVT_TIERS_HOST_TIER_H
#define KVT_TIERS_HOST_TIER_H

#include "runtime/base/env.h"
#include "runtime/base/status.h"
#include "tiers/tier.h"

struct kvt_host_tier;

/*
 * How a chunk is pinned for a device: by the device, whose registration pins it for the system as well. Called by
 * the worker, chunk after chunk; unpin by close, the last chunk first, when nothing uses the chunks any more. pin
 * NULL: mlock.
 */
struct kvt_host_pin {
    bool (*pin)(void *user, void *memory, size_t size_bytes);
    void (*unpin)(void *user, void *memory, size_t size_bytes);
    void *user;
};

struct kvt_host_tier_config {
    uint64_t capacity_bytes; /* chunk_count = capacity_bytes / chunk_bytes; the rest stays unused */
    uint64_t chunk_bytes;    /* a multiple of 4 KiB */
    bool is_pinning_wanted;
    struct kvt_host_pin pin;
    struct kvt_wake wake; /* a chunk has become ready */
};

/* NOMEM | INVAL. */
KVT_NODISCARD enum kvt_status kvt_host_tier_open(const struct kvt_host_tier_config *config, const struct kvt_env *env,
                                                 struct kvt_host_tier **ret_host);
void kvt_host_tier_close(struct kvt_host_tier **host);

uint32_t kvt_host_tier_chunk_count(const struct kvt_host_tier *host);

/*
 * Chunks 0 .. ready - 1 can be used. Grows until it is the chunk count. In a single-threaded env all are ready at
 * once.
 */
uint32_t kvt_host_tier_ready_chunks(const struct kvt_host_tier *host);

/* The start of a ready chunk, 4 KiB aligned. */
void *kvt_host_tier_chunk(const struct kvt_host_tier *host, uint32_t chunk);

/* More chunks may become ready. False, too, when memory ended before all of them were; then wake was called once more. */
bool kvt_host_tier_is_growing(const struct kvt_host_tier *host);

/* How many of the ready chunks are pinned. */
uint32_t kvt_host_tier_pinned_chunks(const struct kvt_host_tier *host);

#endif
