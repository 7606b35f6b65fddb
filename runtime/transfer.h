/*
 * transfer: one move of one block between two tiers, or within the device, in flight until its completion.
 *
 * A fetch from nvme to the device is one transfer of two legs: both slots are reserved before the first leg starts, so
 * that nothing in flight ever waits for memory that something else in flight holds. A transfer past its deadline is
 * abandoned: the copy it was filling fails, its waiters get a miss, and the memory stays in quarantine until the tier
 * hands the op back. A late completion changes nothing but the quarantine.
 *
 * Owns:    the fixed set of transfers and the order in which they wait for a place in a tier's queue.
 * Thread:  under the runtime's lock.
 */
#ifndef KVT_RUNTIME_TRANSFER_H
#define KVT_RUNTIME_TRANSFER_H

#include "runtime/block.h"
#include "tiers/tier.h"

#define KVT_NO_TRANSFER UINT32_MAX

enum kvt_leg {
    KVT_LEG_DEVICE_TO_HOST,
    KVT_LEG_HOST_TO_NVME,
    KVT_LEG_NVME_TO_HOST,
    KVT_LEG_HOST_TO_DEVICE,
    KVT_LEG_DEVICE_TO_DEVICE,
    KVT_LEG_HOST_TO_DEVICE_PART, /* some layers ahead of the rest, which is a transfer host -> device */
    KVT_LEG_HOST_TO_WINDOW /* one layer of source, to a place in a reader's window: target is the window's block */
};
enum { KVT_LEGS = KVT_LEG_HOST_TO_WINDOW + 1 };

struct kvt_transfer {
    struct kvt_tier_op op;
    enum kvt_leg leg;
    uint32_t source;      /* block that is read */
    uint32_t target;      /* block that is filled; differs from source when its bytes start as a copy */
    uint32_t device_slot; /* reserved for the device copy of target, or read by a stash */
    uint32_t host_slot;   /* reserved for, or read as, the host copy of source */
    bool goes_on;         /* nvme -> host, then on to the device copy of target; false: a reader takes it from there */
    uint32_t reader, pass, entry; /* to a window: who is told */
    /* Layer by layer: a part names the transfer of the rest, which ends with its last part. */
    uint64_t landing; /* of the rest: core.landings when it began; 0: of others */
    uint32_t rest;
    uint32_t parts_left;
    enum kvt_status parts_status; /* of the parts that are back */
    bool is_op_back;              /* of the rest, before its parts */
    bool is_abandoned;
    bool is_prefetch;
    uint32_t epoch; /* of the core when it began: a reset in between forbids publication */
    uint64_t deadline_ns;
    uint64_t leg_ns; /* when this leg began */
    uint32_t previous, next; /* in flight by deadline, or in the free list */
    uint32_t queue_next;     /* waiting for a place in a tier's queue */
};

struct kvt_transfer_queue {
    uint32_t head, tail;
};

struct kvt_transfers {
    struct kvt_transfer *items;
    uint32_t capacity;
    uint32_t free_head;
    uint32_t in_flight;
    uint32_t oldest, newest; /* in flight, in order of their deadlines (all have the same length) */
    uint32_t abandoned;      /* in flight and past their deadline */
    struct kvt_transfer_queue waiting[KVT_TIERS][KVT_PRIORITY_COUNT];
    uint32_t waiting_count[KVT_TIERS];
    uint32_t tier_in_flight[KVT_TIERS]; /* submitted or waiting, by the tier that executes the op */
    uint64_t prefetch_bytes;            /* in flight */
};

KVT_NODISCARD enum kvt_status kvt_transfers_init(struct kvt_transfers *transfers, uint32_t capacity);
void kvt_transfers_done(struct kvt_transfers *transfers);

/*
 * A transfer with everything zero but its slots and links, on the list of those in flight. NULL when all are in flight.
 */
struct kvt_transfer *kvt_transfers_begin(struct kvt_transfers *transfers, uint64_t deadline_ns);
/* Its op is back (or was never submitted). */
void kvt_transfers_end(struct kvt_transfers *transfers, struct kvt_transfer *transfer);

/* Past its deadline: off the list; only its op's return ends it. */
void kvt_transfers_abandon(struct kvt_transfers *transfers, struct kvt_transfer *transfer);

static inline uint32_t kvt_transfer_index(const struct kvt_transfers *transfers, const struct kvt_transfer *transfer)
{
    return (uint32_t)(transfer - transfers->items);
}

/* The tier that executes a leg. */
uint32_t kvt_leg_tier(enum kvt_leg leg);

/* Appends to, and takes the first of, what waits for a place in a tier's queue, most urgent priority first. */
void kvt_transfers_wait(struct kvt_transfers *transfers, uint32_t tier, struct kvt_transfer *transfer);
struct kvt_transfer *kvt_transfers_next_waiting(struct kvt_transfers *transfers, uint32_t tier);
void kvt_transfers_pop_waiting(struct kvt_transfers *transfers, uint32_t tier);

#endif
