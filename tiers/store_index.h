/*
 * store_index: which record is where. Open addressing in one table of 64-byte entries that doubles when it is three
 * quarters full.
 *
 * An entry stays where it is until the next insert, so positions can be walked while others remove.
 * Thread:  under the store's lock.
 * Memory:  one table; grows in insert. NOMEM there changes nothing.
 */
#ifndef KVT_TIERS_STORE_INDEX_H
#define KVT_TIERS_STORE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/key.h"
#include "runtime/base/status.h"

#define KVT_STORE_HOLDS_MAX UINT16_MAX
#define KVT_STORE_SEGMENTS_MAX 65535u

enum kvt_entry_state {
    KVT_ENTRY_EMPTY,
    KVT_ENTRY_LIVE,
    KVT_ENTRY_REMOVED,
    KVT_ENTRY_LOST /* was held and had to be dropped; not found any more, kept until it was told */
};

struct kvt_store_entry {
    struct kvt_name name;
    uint64_t generation;
    uint64_t sequence : 48; /* of the put */
    uint64_t segment : 16;
    uint32_t offset_units; /* of KVT_STORE_UNIT_BYTES */
    uint32_t length;
    uint16_t tokens;
    uint16_t holds;
    uint32_t state : 2;
    uint32_t form : 2;
    uint32_t is_private : 1;
    uint32_t is_hit : 1; /* read since it was written */
    uint32_t unused : 26;
};
_Static_assert(sizeof(struct kvt_store_entry) == 64, "bookkeeping of a record");

struct kvt_store_index {
    struct kvt_store_entry *entries;
    uint64_t capacity; /* a power of two */
    uint64_t live;
    uint64_t lost;
    uint64_t used; /* live, lost and removed */
    uint64_t lost_cursor;
};

KVT_NODISCARD enum kvt_status kvt_store_index_init(struct kvt_store_index *index);
void kvt_store_index_done(struct kvt_store_index *index);

/* Room for so many entries, so that filling it grows nothing. Only while it is empty. NOMEM: it grows as it fills. */
KVT_NODISCARD enum kvt_status kvt_store_index_reserve(struct kvt_store_index *index, uint64_t count);

/* NULL: none. Valid until the next insert. */
struct kvt_store_entry *kvt_store_index_find(struct kvt_store_index *index, const struct kvt_name *name);

/* A new live entry with this name and the rest zero. The name is not there yet. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_store_index_insert(struct kvt_store_index *index, const struct kvt_name *name,
                                                     struct kvt_store_entry **ret_entry);
void kvt_store_index_remove(struct kvt_store_index *index, struct kvt_store_entry *entry);
/* Removes it, but keeps its name until take_lost. */
void kvt_store_index_lose(struct kvt_store_index *index, struct kvt_store_entry *entry);
/* Names of lost entries, each told once; returns how many. */
uint32_t kvt_store_index_take_lost(struct kvt_store_index *index, struct kvt_name *ret_names, uint32_t max);

#endif
