/*
 * store: KV blocks, or any other immutable blobs, on a local disk: exact bytes back, or a miss.
 *
 * A directory of preallocated segment files, written as a log and recycled, that never takes more disk space than it
 * was given. A put copies forward what is read again; what nobody read leaves with the oldest segment. Usable alone:
 *
 *     struct kvt_store_config config = kvt_store_config_default();
 *     config.path = "/scratch/kv"; config.capacity_bytes = 4ull << 30;
 *     kvt_store_open(&config, NULL, &store, error, sizeof error);
 *     struct kvt_store_op put = { .kind = KVT_STORE_PUT, .name = name, .buffer = bytes, .length = n };
 *     struct kvt_store_op *ops[] = { &put };
 *     kvt_store_submit(store, ops, 1);                how many of them were accepted
 *     kvt_store_wait(store, UINT64_MAX);              or poll() on kvt_store_eventfd(store)
 *     kvt_store_poll(store, done, 64);                each accepted op comes back exactly once, with its own status
 *     kvt_store_close(&store);
 *
 * The op rule: from the submit that accepts it until poll hands it back, the store owns the op and its buffer.
 * An op that breaks a rule of struct kvt_store_op comes back as well, with INVAL, and nothing was done.
 * A put that came back OK can be got from then on; after a kvt_store_sync that returned OK it is on the device as well.
 *
 * Threads: any call from any thread, but open and close. Units: bytes, nanoseconds. Pointers are NULL only where that is
 * said, or where their count is 0.
 */
#ifndef KVTIER_STORE_H
#define KVTIER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_STORE_VERSION 1
#define KVT_STORE_PATHS_MAX 8u

struct kvt_store;
struct kvt_env; /* runtime/base/env.h; callers outside the project pass NULL */

/*
 * What a record is called. The space says everything that changes the bytes and is not in the key (model, layout, salt,
 * tenant): records of different spaces never meet. kvt_store_digest makes either from any bytes.
 */
struct kvt_store_name {
    uint64_t space[2];
    uint64_t key[2];
};

struct kvt_store_config {
    uint32_t size;    /* sizeof(struct kvt_store_config) */
    uint32_t version; /* KVT_STORE_VERSION */
    const char *path; /* a directory; the last component is created (0700) when missing, a missing parent is refused */
    /* Or several, instead of path: on different devices, which share all sizes evenly (but reserve_bytes and link_bytes_per_s, which hold for
       each). A record lies in one of them, chosen by its name and their paths. One that is lost loses its own records only. */
    const char *const *paths;
    uint32_t path_count;       /* 0: path; at most KVT_STORE_PATHS_MAX */
    uint64_t capacity_bytes;   /* the most disk space that the directory takes, as du sees it */
    uint64_t reserve_bytes;    /* disk space that is left free for others besides; 0: none */
    uint64_t staging_bytes;    /* I/O buffers, at least 1 MiB; 0: 16 MiB */
    uint64_t queue_bytes;      /* puts that wait for the disk, at most; more are refused. 0: 64 MiB */
    uint64_t link_bytes_per_s; /* pacing for experiments; 0: none */
    uint32_t queue_depth;      /* ops in flight; 0: 256 */
    /* for tools: only a store that is there, with its last capacity; capacity_bytes is ignored */
    bool is_existing;
    /* endurance: the most that is written to the device in 24 hours, all in all; 0: no limit. Kept over restarts */
    uint64_t bytes_per_day;
    /* puts that wait for the disk take at most that long to write, as it was measured; 0: 2000 */
    uint32_t queue_ms;
    /* record bytes held at once; more holds fail, so that they cannot fill the store. 0: half the capacity */
    uint64_t held_bytes_max;
    const uint8_t
        *key; /* 32 bytes: records are encrypted and authenticated with it; borrowed for open. NULL: they are not. Over
                                  records of another key, or of none, the store starts empty */
    /* the longest record there will be, when known: segments are made to hold several. 0: unknown */
    uint32_t record_bytes_max;
};

/* size, version, and zeros. */
KVT_API struct kvt_store_config kvt_store_config_default(void);

/*
 * Opens a store, or makes one. INVAL: a bad path or size; ret_error (which may be NULL) gets one line: what, value,
 * rule.
 * BUSY: another one has it open. NOMEM | IO. Records of other spaces are kept until they are the oldest. A smaller
 *       capacity
 * than last time evicts at once.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_store_open(const struct kvt_store_config *config, const struct kvt_env *env,
                                                     struct kvt_store **ret_store, char *ret_error, size_t error_bytes);

/*
 * Makes durable, closes, nulls; NULL is fine. Ops that have not come back are the caller's again when it returns:
 * finished, or with status SHUTDOWN.
 */
KVT_API void kvt_store_close(struct kvt_store **store);

enum kvt_store_kind { KVT_STORE_PUT, KVT_STORE_GET };

enum {
    KVT_STORE_GENERATION_ANY = 1 << 0, /* get: whatever generation the record has */
    KVT_STORE_PRIVATE = 1 << 1,        /* put: dies with this process; swept at the next open */
    KVT_STORE_URGENT = 1 << 2,         /* get: something waits for it, it goes before the others */
    KVT_STORE_NEEDED = 1 << 3,         /* put: goes even when bytes_per_day is used up */
    KVT_STORE_IN_PLACE = 1 << 4
}; /* put, get: the buffer is worth moving to and from the device without a copy: it lies in
                                             huge pages, aligned to stats.alignment. Records that are large enough are; all others
                                             are copied as without the flag. A get may then write all of the buffer's `length` */

#define KVT_STORE_FORM_MAX 3

struct kvt_store_op {
    /* Set by the caller. INVAL: another kind, a bit that is no flag, a value out of range, a NULL buffer with a length. */
    enum kvt_store_kind kind;
    uint32_t flags; /* one of the other kind's has no effect */
    struct kvt_store_name name;
    uint64_t generation; /* bound into the record; a get wants the same one, unless its flag says any */
    /* put: the bytes, only read. get: where they go; what a failed get leaves in it is undefined */
    void *buffer;
    uint32_t length; /* put: how many, at least 1 (0: INVAL), at most kvt_store_length_max (more: submit refuses it) */
                     /* get: how many fit */
    uint32_t form;   /* put: a label of the caller's, 0 to KVT_STORE_FORM_MAX; more: INVAL */
    uint32_t tokens; /* put: another one, 0 to 65535; more: INVAL */
    void *user;      /* never touched */

    /*
     * Set by the store before poll hands the op back.
     * put: OK | FULL (no room, larger than a segment, paused after ENOSPC, reset meanwhile) | IO | SHUTDOWN. Nothing is kept
     * but with OK. get: OK | NOTFOUND | CORRUPT or IO (it failed and is forgotten) | FULL (longer than length: see ret_length) | SHUTDOWN.
     * Both: INVAL (the op breaks a rule above; it has no number).
     */
    enum kvt_status status;
    int os_errno;                              /* for logs only */
    uint32_t ret_length, ret_form, ret_tokens; /* get */
    uint64_t ret_generation;
    uint64_t ret_link_ns; /* time on the disk */
    uint64_t ret_number;  /* put: its number, in the order of acceptance; for kvt_store_wait_durable */

    /* The store's own while it owns the op. */
    struct kvt_store_op *next;
    uint64_t private_words[6];
};

/*
 * Queues as many of the n ops as fit in the queues, from the first on, and returns how many; the others are untouched.
 * 0 for a put also means: paused after ENOSPC, the disk too slow, the day's budget used up, or larger than can ever be
 * stored (kvt_store_length_max). An op that breaks a rule of its own is accepted, and comes back with INVAL.
 */
KVT_API uint32_t kvt_store_submit(struct kvt_store *store, struct kvt_store_op *const *ops, uint32_t n);

/* Hands back up to max finished ops; returns how many. Never blocks. */
KVT_API uint32_t kvt_store_poll(struct kvt_store *store, struct kvt_store_op **ret_done, uint32_t max);

/* Readable while poll has something to give. Owned by the store. */
KVT_API int kvt_store_eventfd(struct kvt_store *store);

/* Blocks until poll has something to give, or timeout_ns passed: false. */
KVT_API bool kvt_store_wait(struct kvt_store *store, uint64_t timeout_ns);

/* The longest record that can be put. */
KVT_API uint32_t kvt_store_length_max(const struct kvt_store *store);

/* A record in a list. */
struct kvt_store_listed {
    struct kvt_store_name name;
    uint64_t generation;
    uint32_t length, form, tokens;
    bool is_private;
};

/*
 * Lists what can be found, max at a time, in no order: *cursor is 0 at first and kept by the store. Returns how many;
 * 0: that was all. Records that are put, or deleted, meanwhile may or may not be in it.
 */
KVT_API uint32_t kvt_store_list(struct kvt_store *store, uint64_t *cursor, struct kvt_store_listed *ret_listed,
                                uint32_t max);

/*
 * Moves what lies scattered together, and gives segment files without records back to the file system. Returns when it
 * is done; puts and gets go on meanwhile. IO: it did not end within 10 minutes, or the disk failed.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_store_compact(struct kvt_store *store);

/* What the index says of n names, from memory: ret_exists[i]. Returns how many exist. */
KVT_API uint32_t kvt_store_exists(struct kvt_store *store, const struct kvt_store_name *names, uint32_t n,
                                  bool *ret_exists);

/*
 * Forgets the records of these names; none there is fine. They are not found from now on; after a restart a deleted
 * record may be there again, with its exact bytes, until its segment is recycled. kvt_store_reset is the durable form.
 * Returns how many there were.
 */
KVT_API uint32_t kvt_store_delete(struct kvt_store *store, const struct kvt_store_name *names, uint32_t n);

/* A record's description, from memory. */
struct kvt_store_found {
    uint64_t generation;
    uint32_t length, form, tokens;
};
/* ret_found may be NULL. */
KVT_API bool kvt_store_find(struct kvt_store *store, const struct kvt_store_name *name,
                            struct kvt_store_found *ret_found);

/*
 * Finds and holds: this is how hot keys are pinned. False also when config.held_bytes_max would be exceeded. While it
 * is held a record is not dropped to make room. Counted; false: no such record, or 65535 holds. What had to be dropped
 * all the same (the disk failed, a reset) is told once by poll_lost, and its holds are gone. ret_found may be NULL.
 */
KVT_API bool kvt_store_hold(struct kvt_store *store, const struct kvt_store_name *name,
                            struct kvt_store_found *ret_found);
KVT_API void kvt_store_release(struct kvt_store *store, const struct kvt_store_name *name);
KVT_API uint32_t kvt_store_poll_lost(struct kvt_store *store, struct kvt_store_name *ret_names, uint32_t max);

/* Returns when every put accepted before is on the device. IO: that could not be had, within 30 seconds. */
KVT_NODISCARD KVT_API enum kvt_status kvt_store_sync(struct kvt_store *store);

/*
 * The watermark: every put up to this number that came back OK is on the device (or was replaced, or has left since).
 * It moves with sync and wait_durable, whoever called them: all who wait share one commit.
 */
KVT_API uint64_t kvt_store_watermark(struct kvt_store *store);

/*
 * Returns when the watermark has reached the number. IO: the device refused | BUSY: timeout_ns passed | INVAL: no such
 * put yet.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_store_wait_durable(struct kvt_store *store, uint64_t number,
                                                             uint64_t timeout_ns);

/*
 * Forgets every record, durably; puts in flight are not published. IO: it could not be made durable; nothing is found
 * in this process all the same.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_store_reset(struct kvt_store *store);

/* 128-bit digest of any bytes: BLAKE2b, the same in every process. */
KVT_API void kvt_store_digest(const void *bytes, size_t size, uint64_t ret_digest[2]);

struct kvt_store_stats {
    uint64_t capacity_bytes;  /* what the directory may take */
    uint64_t allocated_bytes; /* what it takes, as du sees it; foreign files included */
    uint64_t allocated_peak;
    uint64_t foreign_bytes, foreign_files; /* not ours, found at open, left alone */
    uint64_t swept_files;                  /* ours, left by a crash, removed at open */
    uint64_t records;                      /* that can be found now */
    uint64_t live_bytes;                   /* their record bytes, with header and padding */
    uint64_t held_bytes, held_bytes_max;
    uint64_t segment_bytes, segments, segments_max;
    uint64_t puts, put_bytes, put_stored_bytes; /* came back OK; payload; with header and padding */
    uint64_t gets, get_bytes;
    uint64_t misses;  /* gets of what is not there */
    uint64_t corrupt; /* records that failed their check, and were forgotten */
    uint64_t read_errors, write_errors, short_transfers;
    uint64_t refused;                              /* puts: queue too long, no room, paused, too large */
    uint64_t pauses;                               /* after ENOSPC */
    uint64_t reclaims, moved_records, moved_bytes; /* segments recycled; copied forward */
    uint64_t evicted_records;                      /* left with their segment */
    uint64_t lost_records;                         /* held ones that had to be dropped */
    uint64_t written_bytes; /* to the device: records, moves, summaries; write amplification is this / put_bytes */
    uint64_t read_bytes, syncs;
    double write_amplification;        /* written_bytes / put_bytes; 0: nothing was put */
    uint64_t day_bytes, day_bytes_max; /* written in the last 24 hours, restarts included; config.bytes_per_day */
    /* puts, of those refused: over the day's budget; the disk would take too long */
    uint64_t refused_wear, refused_slow;
    uint64_t write_bytes_per_s; /* as measured; 0: not yet */
    uint64_t watermark;         /* kvt_store_watermark */
    /* at open: found; private and dropped; failed a check */
    uint64_t recovered_records, recovered_private, recovered_bad;
    uint64_t index_bytes;
    const char *io_path;                    /* "io_uring", "threads", ... */
    uint32_t directories, directories_lost; /* open; left out because their disk failed at open */
    const char *cipher;                     /* of new records; NULL: not encrypted */
    bool is_direct;                         /* O_DIRECT */
    uint32_t alignment;
    char io_note[160]; /* why something was not taken, or "" */
};
KVT_API void kvt_store_stats(struct kvt_store *store, struct kvt_store_stats *ret_stats);

#ifdef __cplusplus
}
#endif

#endif
