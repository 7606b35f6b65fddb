/*
 * tier: the contract of a place that holds the bytes of blocks.
 *
 * A tier moves bytes. It knows no sequences, no copy states, no policy: the name, the generation, the form and the
 * length of an op are opaque labels to it (the nvme tier binds them into its records). Host memory is the hub: every
 * other tier stashes from, and fetches to, a buffer in host memory; the device can also copy within itself.
 *
 * The op rule: from a submit that returns KVT_OK until poll hands it back, the tier owns the op and its host buffer; at
 * every other time the caller does. Each op comes back exactly once, success or not. Nothing in a tier waits for ever:
 * an op whose device stopped answering may come back late, but a tier never invents a completion.
 *
 * Thread:  submit, poll, cancel, find, hold, release, forget, reset: one caller at a time (the runtime's lock). Workers
 *          live behind the tier; they call wake() when poll has something to give, and never take the caller's lock.
 * Memory:  taken in open(); an op is embedded in what needs it, so that no I/O allocates.
 */
#ifndef KVT_TIERS_TIER_H
#define KVT_TIERS_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/gpu.h"
#include "kvtier/shape.h"
#include "runtime/base/env.h"
#include "runtime/base/key.h"
#include "runtime/base/status.h"

enum kvt_tier_cap {
    KVT_TIER_MAPPED = 1 << 0, /* map is there: slots can be addressed by the CPU */
    KVT_TIER_COPIES = 1 << 1, /* KVT_OP_COPY: copies a slot to another slot of its own */
    /* finds its records by name itself: find, hold, release, forget, reset, poll_lost are there */
    KVT_TIER_INDEXED = 1 << 2,
    KVT_TIER_DURABLE = 1 << 3 /* sync is there: records outlive the process */
};

/* How the bytes of a copy are written down. */
enum kvt_form {
    KVT_FORM_RAW,   /* [layer][plane][valid tokens][row], nothing else */
    KVT_FORM_PACKED /* the codec's directory and chunks (tiers/codec.h) */
};

enum kvt_op_kind {
    KVT_OP_STASH, /* towards the slower tier: device -> host buffer, host buffer -> nvme */
    KVT_OP_FETCH, /* towards the faster tier: nvme -> host buffer, host buffer -> device */
    KVT_OP_COPY   /* within the device: slot source_slot -> slot */
};

enum kvt_op_priority { KVT_PRIORITY_DEMAND, KVT_PRIORITY_PREFETCH, KVT_PRIORITY_WRITE_BACK, KVT_PRIORITY_COUNT };

struct kvt_tier_op {
    /* Set by the caller. */
    enum kvt_op_kind kind;
    enum kvt_op_priority priority;
    uint32_t group;
    uint32_t slot;          /* device: the slot that is read (stash) or written (fetch, copy) */
    uint32_t source_slot;   /* device copy only */
    uint32_t stream;        /* device copy only: the engine's stream in whose order it runs; 0: the tier's own */
    uint32_t tokens;        /* valid tokens of the block; a state group: 1 */
    /*
     * device fetch of some layers only: layer_count layers from layer_first on, whose bytes are a sub-range of host's, to
     * where the layers from layer_target on lie in the slot. layer_count 0: all of them, each to its own place
     */
    uint32_t layer_first, layer_count, layer_target;
    void *host;             /* stash and fetch: the host buffer, owned by the tier while the op is in flight */
    uint32_t host_capacity; /* device stash: bytes that may be written; nvme fetch: likewise */
    enum kvt_form form;     /* device stash: the form wanted; fetch and nvme stash: the form of the bytes */
    uint32_t length;        /* fetch and nvme stash: bytes of that form */
    struct kvt_name name;   /* nvme: the record. Others ignore it */
    uint64_t generation;    /* nvme: bound into the record; a fetch wants the same one */
    bool is_private;        /* nvme stash: the record dies with the process and is swept at the next open */
    kvt_mark after[2];      /* device: the op starts only when both marks are reached (0: nothing to wait for) */

    /* Set by a submit that returns OK. */
    kvt_mark ret_mark; /* device: reached when the op is done; work that must see its bytes waits for it. Others: 0 */

    /* Set by the tier before poll hands the op back. */
    /* OK | FULL (stash: does not fit in host_capacity, or no room) | IO | CORRUPT | NOTFOUND | SHUTDOWN */
    enum kvt_status status;
    int os_errno;           /* for logs only */
    uint32_t ret_length;    /* device stash, nvme fetch: bytes written to the host buffer */
    enum kvt_form ret_form; /* device stash, nvme fetch: the form they have */
    uint64_t link_ns;       /* time spent on the link or the disk, queueing left out */
    uint64_t codec_ns;      /* time spent packing or unpacking */

    /* Shared with nobody: the tier's own while it owns the op. */
    struct kvt_tier_op *next;
    uint64_t submitted_ns;
    uint64_t tag;      /* for the implementation */
    bool is_in_flight; /* kept by tier.c; the exactly-once check */
};

/*
 * Called by a tier's workers when poll has something; any thread; must not block and must not call back into the tier.
 */
struct kvt_wake {
    void (*wake)(void *user);
    void *user;
};

struct kvt_found {
    uint32_t length;
    enum kvt_form form;
    uint32_t tokens;
    uint64_t generation;
};

struct kvt_tier_counters {
    uint64_t capacity_bytes;
    uint64_t used_bytes; /* at this moment */
    uint64_t peak_bytes; /* never above capacity_bytes */
    uint64_t bytes_in, bytes_out;
    uint64_t day_bytes; /* written to the device in the last 24 hours, where that is counted */
    uint64_t dropped;   /* ops refused or records dropped under pressure */
};

struct kvt_tier;

struct kvt_tier_ops {
    const char *name;
    uint32_t caps; /* enum kvt_tier_cap */

    void (*close)(struct kvt_tier *tier); /* requires nothing in flight; frees the tier */

    /* OK: the tier owns the op. FULL: the queue is full, nothing happened. */
    enum kvt_status (*submit)(struct kvt_tier *tier, struct kvt_tier_op *op);

    /* Hands back up to max finished ops, in any order; returns how many. Never blocks. */
    uint32_t (*poll)(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max);

    void (*counters)(struct kvt_tier *tier, struct kvt_tier_counters *ret_counters);

    /* KVT_TIER_MAPPED. The bytes of a slot; group says which pool the slot is of. */
    void *(*map)(struct kvt_tier *tier, uint32_t group, uint32_t slot);

    /* KVT_TIER_INDEXED. All of them answer from memory. */
    bool (*find)(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found);
    /* Finds and holds in one step: a held record is never dropped silently. False: there is none. Holds are counted. */
    bool (*hold)(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found);
    void (*release)(struct kvt_tier *tier, const struct kvt_name *name);
    void (*forget)(struct kvt_tier *tier, const struct kvt_name *name); /* no such record: nothing happens */
    /* Held records that had to be dropped (disk failure, no room): each is told once. Returns how many. */
    uint32_t (*poll_lost)(struct kvt_tier *tier, struct kvt_name *ret_names, uint32_t max);
    /* Forgets every record, durably; stashes in flight are not published. */
    enum kvt_status (*reset)(struct kvt_tier *tier);

    /* KVT_TIER_DURABLE. Returns when everything stashed before is on the device. */
    enum kvt_status (*sync)(struct kvt_tier *tier);
};

/* The first member of every tier. */
struct kvt_tier {
    const struct kvt_tier_ops *ops;
    uint32_t queue_depth; /* submits beyond it are FULL */
    uint32_t in_flight;   /* kept by tier.c */
};

/*
 * The only callers of ops->submit and ops->poll: they check the op, keep the count in flight, refuse beyond the
 * queue depth, and assert that each op comes back exactly once.
 * submit: OK | FULL, as above.
 */
KVT_NODISCARD enum kvt_status kvt_tier_submit(struct kvt_tier *tier, struct kvt_tier_op *op);
uint32_t kvt_tier_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max);

/* Closes and nulls; NULL is fine. Requires nothing in flight. */
void kvt_tier_close(struct kvt_tier **tier);

/* True when each optional member is there if and only if its capability is. Asserted once per tier at open. */
bool kvt_tier_ops_are_valid(const struct kvt_tier_ops *ops);

static inline bool kvt_tier_has(const struct kvt_tier *tier, enum kvt_tier_cap cap)
{
    return (tier->ops->caps & (uint32_t)cap) != 0;
}

#endif
