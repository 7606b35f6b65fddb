/*
 * store_verify: reads every record that a store lists, as any reader would, and counts what came of it.
 *
 * Each record that is listed comes out as one of these:
 *   good         it was handed back, and nothing contradicts it.
 *   refused      it failed its check, or could not be read: its reader is told of a miss, and it is forgotten.
 *   unreachable  it is listed and not found: its segment was recycled meanwhile.
 *   served bad   it was handed back with OK, and is not what was put: another length, form, number of tokens or generation than
 *                listed; other bytes than its caller knows, or (looks_itself) than a second reader finds in the file, which
 *                shares no code with the first but the checksum. It never happens; this is how one would know.
 *
 * Thread: any; blocks. Nobody else puts, deletes or compacts meanwhile.
 */
#ifndef KVT_TIERS_STORE_VERIFY_H
#define KVT_TIERS_STORE_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/store.h"

struct kvt_store_verify {
    /* False: these are not the bytes that were put under the name. NULL: nobody knows. */
    bool (*is_right)(void *user, const struct kvt_store_listed *listed, const void *bytes);
    /* Told of each record that is refused: CORRUPT, IO, or what its get said. May be NULL. */
    void (*refused)(void *user, const struct kvt_store_listed *listed, enum kvt_status status);
    void (*progress)(void *user, uint64_t done); /* records so far, after each batch; may be NULL */
    void *user;
    /* The record is read once more, from its file: only of one directory that lies in a file system. */
    bool looks_itself;
};

struct kvt_store_verified {
    uint64_t good, refused, unreachable, served_bad;
};

static inline uint64_t kvt_store_verified_count(const struct kvt_store_verified *verified)
{
    return verified->good + verified->refused + verified->unreachable + verified->served_bad;
}

/* NOMEM. */
KVT_NODISCARD enum kvt_status kvt_store_verify(struct kvt_store *store, const struct kvt_store_verify *how,
                                               struct kvt_store_verified *ret_verified);

#endif
