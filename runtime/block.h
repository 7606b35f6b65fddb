/*
 * block: what the core knows of one block, and the state of its copies.
 *
 * Residency and operation are separate facts. A copy (block, tier) has a state, changed by kvt_copy_step() alone, from
 * the one edge table below. Beside it stand counters: `readers` counts the transfers that read the copy, `users` the
 * active sequences that claim the block for the device (its pins). Whether a block is dirty is derived: no lower tier
 * holds it.
 *
 *     EMPTY --RESERVE--> FILLING --FILL_OK--> RESIDENT --EVICT--> EMPTY
 *                        FILLING --FILL_FAIL--> EMPTY
 *
 * Owns:    the block table. Which slot a copy sits in belongs to the pools.
 * Thread:  under the runtime's lock.
 * Memory:  one mapped table, touched as far as it was ever used.
 */
#ifndef KVT_RUNTIME_BLOCK_H
#define KVT_RUNTIME_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"
#include "runtime/base/assert.h"
#include "runtime/base/key.h"

#define KVT_NO_BLOCK UINT32_MAX

enum kvt_copy_state { KVT_COPY_EMPTY, KVT_COPY_FILLING, KVT_COPY_RESIDENT, KVT_COPY_STATES };

/*    event      from      to                                                                  */
#define KVT_COPY_EDGES(X)                                                             \
    X(RESERVE, EMPTY, FILLING)    /* a transfer, or an engine, is about to fill it */ \
    X(FILL_OK, FILLING, RESIDENT) /* its own completion */                            \
    X(FILL_FAIL, FILLING, EMPTY)  /* its own completion, or its deadline */           \
    X(EVICT, RESIDENT, EMPTY)     /* readers == 0; on the device also users == 0 */

enum kvt_copy_event {
#define KVT_COPY_EVENT(event, from, to) KVT_COPY_##event,
    KVT_COPY_EDGES(KVT_COPY_EVENT)
#undef KVT_COPY_EVENT
        KVT_COPY_EVENTS
};

enum kvt_block_flag {
    KVT_BLOCK_SEALED = 1 << 0,         /* immutable; its key is set */
    KVT_BLOCK_INDEXED = 1 << 1,        /* found by its key; only sealed blocks are */
    KVT_BLOCK_DEVICE_IDLE = 1 << 2,    /* the device policy may choose it */
    KVT_BLOCK_HOST_IDLE = 1 << 3,      /* the host policy may choose it */
    KVT_BLOCK_DEVICE_LEAVING = 1 << 4, /* chosen: its device copy goes when its readers are done */
    KVT_BLOCK_HOST_LEAVING = 1 << 5,
    KVT_BLOCK_HOST_PACKED = 1 << 6, /* form of the host copy */
    KVT_BLOCK_NVME_PACKED = 1 << 7,
    KVT_BLOCK_NVME_HELD = 1 << 8,     /* this block holds its record in the store */
    KVT_BLOCK_DEVICE_KNOWN = 1 << 9,  /* the device policy knows its slot */
    KVT_BLOCK_RAW_ONLY = 1 << 10,     /* did not fit its packed class: stash it raw */
    KVT_BLOCK_NVME_PRIVATE = 1 << 11, /* its record has the private name, not the public one */
    KVT_BLOCK_REFUSED = 1 << 12,      /* admission refused to write it to nvme, and it was not used since */
    KVT_BLOCK_UNKEPT = 1 << 13,       /* its sequence ended without leaving it cached */
    /* chosen, and it could not leave: not chosen again before something has changed */
    KVT_BLOCK_DEVICE_PARKED = 1 << 14,
    KVT_BLOCK_HOST_PARKED = 1 << 15
};

/* The blocks that were parked; those that went on in the meantime no longer have the flag. */
struct kvt_parked {
    uint32_t *blocks;
    uint32_t capacity, count;
    uint64_t changes; /* core.changes when the first of them was parked */
};

/* 64 bytes: one cache line a block. */
struct kvt_block {
    struct kvt_key key;   /* sealed: the name of its bytes */
    uint32_t refs;        /* live sequences (and copies in the making) that hold it */
    uint32_t users;       /* active sequences that claim it for the device */
    uint32_t device_slot; /* KVT_NO_SLOT unless FILLING or RESIDENT */
    uint32_t host_slot;
    uint32_t host_length; /* bytes of the host copy in its form */
    uint32_t nvme_length;
    uint32_t origin;       /* the block that this one starts as a copy of, held until it is filled; KVT_NO_BLOCK */
    uint32_t link;         /* next in a step's limbo */
    uint32_t generation;   /* how often this entry was used */
    uint16_t tokens;       /* valid tokens */
    uint16_t lower_tokens; /* valid tokens of the host and nvme copies */
    uint16_t flags;        /* enum kvt_block_flag */
    uint8_t group;
    uint8_t state_bits; /* 2 bits a tier: enum kvt_copy_state */
    uint8_t readers[KVT_TIERS];
    uint8_t uses; /* prefix hits, saturating; asked by admission */
};

struct kvt_block_table {
    struct kvt_block *blocks;
    uint32_t capacity;
    uint32_t high_water; /* entries ever used */
    uint32_t count;      /* of them in use */
    /* a stack of high_water - count entries; beside the blocks, so that the next ones are known early */
    uint32_t *free_entries;
};

KVT_NODISCARD enum kvt_status kvt_block_table_init(struct kvt_block_table *table, uint32_t capacity);
void kvt_block_table_done(struct kvt_block_table *table);

/* A fresh block of the group: no copies, no refs, nothing set. KVT_NO_BLOCK when the table is full. */
uint32_t kvt_block_table_take(struct kvt_block_table *table, uint32_t group);
/* The block has no copies, refs, users or readers. */
void kvt_block_table_give(struct kvt_block_table *table, uint32_t index);

static inline enum kvt_copy_state kvt_copy_state(const struct kvt_block *block, uint32_t tier)
{
    return (enum kvt_copy_state)((block->state_bits >> (2 * tier)) & 3);
}

static inline bool kvt_copy_is_resident(const struct kvt_block *block, uint32_t tier)
{
    return kvt_copy_state(block, tier) == KVT_COPY_RESIDENT;
}

static inline bool kvt_block_has(const struct kvt_block *block, enum kvt_block_flag flag)
{
    return (block->flags & (uint16_t)flag) != 0;
}

static inline void kvt_block_set(struct kvt_block *block, enum kvt_block_flag flag, bool is_set)
{
    block->flags = is_set ? (uint16_t)(block->flags | (uint16_t)flag) : (uint16_t)(block->flags & ~(uint16_t)flag);
}

/* By which admission knows it: blocks of several groups have one key. */
static inline uint64_t kvt_block_key_hash(const struct kvt_block *block)
{
    return block->key.lo + block->group * UINT64_C(0x9e3779b97f4a7c15);
}

static inline bool kvt_block_has_copies(const struct kvt_block *block) { return block->state_bits != 0; }

/* The edge of an event. */
static inline void kvt_copy_edge(enum kvt_copy_event event, enum kvt_copy_state *ret_from, enum kvt_copy_state *ret_to)
{
    switch (event) {
#define KVT_COPY_EDGE_CASE(event, from, to) \
    case KVT_COPY_##event:                  \
        *ret_from = KVT_COPY_##from;        \
        *ret_to = KVT_COPY_##to;            \
        return;
        KVT_COPY_EDGES(KVT_COPY_EDGE_CASE)
#undef KVT_COPY_EDGE_CASE
    case KVT_COPY_EVENTS: break;
    }
    KVT_ASSERT(false);
    *ret_from = *ret_to = KVT_COPY_STATES; /* a test's hook may have come back */
}

/* True when the copy's state, slot and counters agree; the shared predicate of assertions and tests. */
static inline bool kvt_copy_is_valid(const struct kvt_block *block, uint32_t tier)
{
    const enum kvt_copy_state state = kvt_copy_state(block, tier);
    if (state == KVT_COPY_STATES) return false;
    if (state != KVT_COPY_RESIDENT && block->readers[tier] != 0) return false;
    if (tier == KVT_TIER_DEVICE) return (state == KVT_COPY_EMPTY) == (block->device_slot == KVT_NO_SLOT);
    if (tier == KVT_TIER_HOST) return (state == KVT_COPY_EMPTY) == (block->host_slot == KVT_NO_SLOT);
    return true;
}

/*
 * The only writer of copy states. Asserts that the edge exists and that the copy is valid before and after. Inline,
 * because tier and event are constants where it is called: what remains of it there are a mask and the assertions.
 */
static inline void kvt_copy_step(struct kvt_block *block, uint32_t tier, enum kvt_copy_event event)
{
    enum kvt_copy_state from, to;
    kvt_copy_edge(event, &from, &to);
    KVT_ASSERT(tier < KVT_TIERS);
    KVT_ASSERT(kvt_copy_state(block, tier) == from);
    if (event == KVT_COPY_EVICT) {
        KVT_ASSERT(block->readers[tier] == 0);
        KVT_ASSERT(KVT_IMPLIES(tier == KVT_TIER_DEVICE, block->users == 0));
    }
    block->state_bits = (uint8_t)((block->state_bits & ~(3u << (2 * tier))) | ((unsigned)to << (2 * tier)));
    KVT_ASSERT(kvt_copy_is_valid(block, tier));
}

const char *kvt_copy_state_name(enum kvt_copy_state state);
const char *kvt_copy_event_name(enum kvt_copy_event event);

#endif
