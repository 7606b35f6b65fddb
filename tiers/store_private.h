/*
 * store_private: the inside of a store, shared by the store_*.c files and nobody else.
 *
 * Whoever drives, one thread at a time, owns everything that touches the disk: the log, the extents, the gets in
 * flight. That is the I/O thread, or a caller while it blocks in wait, sync and their like (store.c); "the I/O
 * thread's" below means the driver's. Callers queue ops and read the index. What both touch is under `lock` and is
 * marked so; nothing is copied, summed or submitted with the lock held. In a single-threaded env there is no thread,
 * and callers drive in poll, too.
 *
 *     submit -> queues -> step: completions, reads, reclaim, closing, syncing, placing puts -> I/O
 *                          |
 *     poll   <- done list <-
 *
 * Files:  store_io.c     ops of the block I/O: short transfers finished, reads first; memory for I/O
 *         store_log.c    segments, placing puts into extents, closing a segment, syncing
 *         store_reclaim.c  making room: the oldest segment, what is copied forward
 *         store_read.c   gets
 *         store_in_place.c  puts without a copy
 *         store_commit.c  group commit: which puts are durable
 *         store_stripes.c  several directories, each a store, behind one handle
 *         store_seal.c   encryption: an op of the caller becomes an inner one
 *         store_pace.c   how fast the disk writes; store_wear.c  how much it was written in a day
 *         store_recover.c  the directory, the superblock, what is found at open
 *         store.c        public calls, the step, the thread
 */
#ifndef KVT_TIERS_STORE_PRIVATE_H
#define KVT_TIERS_STORE_PRIVATE_H

#include <pthread.h>

#include "kvtier/store.h"
#include "runtime/base/env.h"
#include "runtime/base/status.h"
#include "tiers/block_io.h"
#include "tiers/store_format.h"
#include "tiers/store_index.h"
#include "tiers/store_pace.h"
#include "tiers/store_seal.h"
#include "tiers/store_stripes.h"
#include "tiers/store_wear.h"

#define KVT_STORE_NONE UINT32_MAX
#define KVT_STORE_EXTENTS_MAX 16
#define KVT_STORE_EXTENT_OPS 256      /* puts that end or begin in one extent */
#define KVT_STORE_EXTENT_FULL 524288u /* is written at once: the next one is filled while the device is at work */
#define KVT_STORE_MOVES_MAX 16        /* records copied forward in one extent */
#define KVT_STORE_SCANS_MAX 32        /* reads in flight at open */
#define KVT_STORE_GETS_MAX 64         /* being read at once */
#define KVT_STORE_READ_UNIT 16384u
#define KVT_STORE_RUN_BYTES_MAX 131072u        /* of neighbours that are read at once */
#define KVT_STORE_COLLECT_MAX 32               /* completions taken at a time */
#define KVT_STORE_IN_PLACE_PUTS_MAX 64         /* being written at once */
#define KVT_STORE_IN_PLACE_GET_MIN 32768u      /* shorter ones are copied: that costs less than another op */
#define KVT_STORE_IN_PLACE_PUT_MIN 262144u     /* shorter ones share a write */
#define KVT_STORE_IN_PLACE_LENGTH_MAX 4194304u /* longer ones go in pieces, so that no op holds the device up */
#define KVT_STORE_IN_PLACE_BYTES_MAX 16777216u /* in flight, of gets; half as much of puts */
#define KVT_STORE_PAUSE_NS 1000000000u         /* after ENOSPC */
#define KVT_STORE_DEADLINE_NS 30000000000u     /* of sync, reset, and draining at close */
#define KVT_STORE_SERIAL_BITS 24                /* numbers that go with one write of the superblock */
/* No counter gets that far; one that says so is no counter of ours, and must not make ours wrap. */
#define KVT_STORE_SERIAL_MAX (((uint64_t)1 << 47) - 1)
#define KVT_STORE_FILE_SLACK 4096u             /* what a file system may add to a segment file */

/* ---- Ops of the block I/O ------------------------------------------------------------------------------------- */

struct kvt_store_io;
typedef void (*kvt_store_io_fn)(struct kvt_store *store, struct kvt_store_io *io);

struct kvt_store_io {
    struct kvt_io_op op; /* the part that is still to do */
    uint32_t size;       /* the whole */
    uint32_t done_bytes;
    int error;    /* errno, 0 when all of it was moved */
    bool is_busy; /* queued or in flight */
    uint64_t link_ns;
    kvt_store_io_fn complete;
    void *owner;
    struct kvt_store_io *next;
};

struct kvt_store_io_queue {
    struct kvt_store_io *head, *tail;
};

/* ---- Segments --------------------------------------------------------------------------------------------------- */

enum kvt_segment_state {
    KVT_SEGMENT_ABSENT,  /* no file */
    KVT_SEGMENT_FREE,    /* a file whose records are all dead */
    KVT_SEGMENT_OPEN,    /* the one that is appended to */
    KVT_SEGMENT_CLOSING, /* full; its summary is being written */
    KVT_SEGMENT_CLOSED,
    KVT_SEGMENT_RECLAIMED /* what is kept of it is being copied forward */
};

struct kvt_segment {
    /* The I/O thread's. */
    enum kvt_segment_state state;
    int file;
    uint32_t summary;     /* open and closing: which summary array lists its records; else NONE */
    uint32_t entry_count; /* in the summary */
    uint32_t writes;      /* in flight */
    uint64_t sequence;
    uint64_t epoch;
    uint64_t data_end; /* where the next record goes */
    uint64_t allocated_bytes; /* absent: of a file that could not be removed */
    bool is_dirty;    /* written since its last sync was submitted */
    bool is_findable; /* its header, or its footer, is written: the next open knows its sequence */
    /* shared: under the lock */
    uint32_t records, held_records; /* live in it; held of those */
    uint32_t readers;               /* gets in flight */
    uint64_t live_bytes, held_bytes;
};

/* ---- Puts -------------------------------------------------------------------------------------------------------- */

/* Lies in kvt_store_op.private_words. */
struct kvt_put_state {
    uint64_t epoch;
    uint64_t sequence;
    uint32_t segment;
    uint32_t offset_units;
    uint32_t summary_index;
    uint32_t pieces; /* extents that still have to come back, and one while it is being placed */
    uint64_t link_ns;
    int32_t error; /* errno of a failed piece */
    uint8_t phase; /* which sync waits for it */
};
_Static_assert(sizeof(struct kvt_put_state) <= sizeof(((struct kvt_store_op *)0)->private_words), "put state fits");

static inline struct kvt_put_state *kvt_put_state(struct kvt_store_op *op)
{
    return (struct kvt_put_state *)(void *)op->private_words;
}

struct kvt_op_queue {
    struct kvt_store_op *head, *tail;
};

/* A record on its way from a victim to the open segment. */
struct kvt_move {
    struct kvt_name name;
    uint64_t source_offset, target_offset;
    uint64_t sequence, generation;
    uint32_t length, stored;
    uint32_t summary_index;
    uint32_t buffer_at; /* where it lies in the extent */
    bool is_good;
    struct kvt_store_io read;
};

enum kvt_extent_state { KVT_EXTENT_FREE, KVT_EXTENT_FILLING, KVT_EXTENT_WRITING, KVT_EXTENT_READING };

/* A write of consecutive bytes of one segment. */
struct kvt_extent {
    enum kvt_extent_state state;
    struct kvt_store_io io;
    uint8_t *buffer;
    uint32_t segment;
    uint64_t offset;
    uint32_t fill;
    bool is_retried; /* after ENOSPC */
    uint32_t op_count;
    struct kvt_store_op *ops[KVT_STORE_EXTENT_OPS];
    /* Copying forward. */
    uint32_t move_count, reads_pending;
    struct kvt_move moves[KVT_STORE_MOVES_MAX];
    bool is_piecewise; /* one record larger than an extent, piece by piece */
    uint64_t piece_at;
    uint32_t piece_crc, wanted_crc;
};

/* A put whose payload is written from the caller's buffer. */
struct kvt_in_place_put {
    struct kvt_store_io header_io, payload_io;
    struct kvt_store_op *op; /* NULL: free */
    uint8_t *header;         /* a block of the device */
    uint32_t ios_pending;
    bool is_retried; /* after ENOSPC */
};

struct kvt_get {
    struct kvt_store_io io;
    struct kvt_store_io payload_io; /* in place: io reads the header */
    uint32_t ios_pending;
    bool is_in_place;
    struct kvt_store_op *op; /* NULL: none */
    /* The gets of a run are read at once; every other one is a run of itself. */
    struct kvt_get *leader, *next_in_run;
    uint32_t run_left; /* the leader's: of its gets, those that still use its part of the area */
    uint64_t epoch;
    uint32_t segment;
    uint64_t segment_sequence;
    struct kvt_store_entry entry; /* as it was found */
    uint8_t *buffer;
    uint32_t unit, unit_count;
    uint32_t stored, at, piece;
    uint32_t crc; /* of the payload so far */
    uint64_t link_ns;
    struct kvt_record_header header;
};

enum kvt_closer_stage {
    KVT_CLOSER_IDLE,
    KVT_CLOSER_WRITES,
    KVT_CLOSER_SYNC,
    KVT_CLOSER_SUMMARY,
    KVT_CLOSER_FOOTER,
    KVT_CLOSER_DONE
};

enum kvt_commit_stage { KVT_COMMIT_IDLE, KVT_COMMIT_WRITES, KVT_COMMIT_SYNC };

enum kvt_reclaim_stage { KVT_RECLAIM_IDLE, KVT_RECLAIM_COPY, KVT_RECLAIM_READERS, KVT_RECLAIM_SYNC };

/* What copying forward knows of a record before it starts. */
struct kvt_kept {
    struct kvt_name name;
    uint64_t offset;
    uint32_t stored;
};

enum kvt_syncer_stage { KVT_SYNCER_IDLE, KVT_SYNCER_SUPER_WRITE, KVT_SYNCER_SUPER_SYNC, KVT_SYNCER_SEGMENTS };

struct kvt_store {
    struct kvt_stripes *stripes; /* several directories: then there is nothing else in here */
    bool is_member;              /* one of them: puts are numbered by the stripes */
    /* Fixed at open. */
    struct kvt_env env;
    char *path;
    int directory, lock_file;
    bool is_directory_made; /* by this open: a failed one takes it away again */
    uint64_t capacity_bytes, reserve_bytes, queue_bytes_max;
    uint64_t side_bytes_max; /* of the side file that may be saved */
    uint64_t side_name[2];   /* its name */
    uint64_t side_bytes;     /* what the others that were found at open take */
    uint32_t queue_depth;
    bool is_existing; /* a tool's open: nothing is made */
    uint64_t segment_bytes;
    uint32_t segment_slots; /* length of `segments` */
    uint32_t segments_max;  /* files at once */
    uint32_t entries_max;   /* records in a segment */
    uint32_t alignment;
    uint64_t store_id;
    bool has_thread;
    struct kvt_block_io_facts facts;
    void (*wake)(void *user);
    void *wake_user;
    int event;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* told to callers that wait */
    pthread_cond_t turn;    /* told to the I/O thread while a caller drives */

    /* shared: under the lock */
    struct kvt_store_index index;
    struct kvt_op_queue puts, gets, urgent_gets, done;
    uint32_t ops_outstanding; /* accepted, not yet handed back */
    uint32_t ops_unfinished;  /* accepted, not yet on the done list */
    uint64_t queued_bytes;
    uint64_t record_sequence;
    uint64_t epoch, next_epoch; /* the next one is that of the next reset */
    uint64_t paused_until_ns;
    uint32_t phase, phase_pending[2];
    struct {
        enum kvt_commit_stage stage;
        uint64_t wanted, started, finished, failed; /* numbers of runs */
        uint64_t target, watermark;                 /* numbers of puts */
        uint64_t run;                               /* of the syncer */
        uint32_t phase;
    } commit;
    struct kvt_wear wear;
    uint64_t held_bytes_max;
    struct kvt_seal *seal;                   /* NULL: nothing is encrypted */
    uint32_t seal_bytes;                     /* that each record takes for it */
    uint8_t key_id_found[KVT_SEAL_ID_BYTES]; /* in the superblock, at open */
    bool has_day_before;
    uint64_t day_before_bytes; /* found at open: written in the day before the youngest segment was begun */
    uint64_t sync_wanted, sync_started, sync_finished, sync_failed; /* numbers of runs */
    bool is_super_dirty;
    bool is_compacting; /* until the I/O thread says that it is done */
    bool has_compact_failed;
    bool is_closing, is_stopping, has_news;
    bool is_event_set;                       /* the eventfd is readable */
    bool is_driven, is_asleep, has_requests; /* somebody runs steps; it sleeps; it must look again before it does */
    bool is_thread_driving;                  /* and it is the I/O thread */
    bool is_dozing;                          /* the I/O thread waits for `turn` without a time */
    uint32_t callers_waiting;                /* to drive */
    uint64_t stint;                          /* how often a caller has driven and left */
    uint64_t thread_after_ns;                /* the I/O thread does not take the turn before */
    struct kvt_store_stats stats;

    /* The I/O thread's (any one thread before it starts and after it ended). */
    struct kvt_block_io *io;
    struct kvt_store_io_queue urgent_io, normal_io;
    uint32_t io_in_flight;
    uint64_t io_bytes_in_flight;
    bool has_moved;       /* this step did something */
    struct kvt_pace pace; /* says itself who may what */
    uint8_t *memory;
    uint64_t memory_bytes;
    uint8_t *header_buffer, *footer_buffer, *super_buffer, *summary_buffer;
    uint32_t summary_buffer_bytes;
    uint32_t extent_bytes, extent_count;
    struct kvt_extent *extents;
    struct kvt_extent *filling;
    uint8_t *read_area;
    uint8_t *read_units; /* 1: taken */
    uint32_t read_unit_count, read_piece_bytes;
    struct kvt_get *get_slots;
    uint32_t gets_active;
    struct kvt_in_place_put *in_place_puts;
    uint32_t in_place_put_count;
    uint64_t in_place_put_bytes, in_place_get_bytes; /* in flight */

    struct kvt_segment *segments;
    uint64_t allocated_fixed; /* everything but our segments */
    uint64_t allocated_bytes;
    uint64_t segment_sequence; /* of the last one opened */
    uint32_t open_segment;
    uint32_t free_count, file_count;
    uint64_t grow_after_ns; /* no new file before that */
    struct kvt_summary_entry *summaries[2];
    bool is_summary_taken[2];
    struct kvt_store_io header_io;
    bool is_silent;                                   /* at open: the disk did not answer */
    struct kvt_store_io scan_io[KVT_STORE_SCANS_MAX]; /* at open only */
    uint32_t header_segment, header_tries;
    struct kvt_store_op *big; /* a put larger than an extent, being placed */
    uint64_t big_at;
    struct kvt_record_header big_header;

    struct {
        enum kvt_closer_stage stage;
        uint32_t segment;
        uint64_t at; /* bytes of the summary written */
        struct kvt_store_io io;
    } closer;
    struct {
        enum kvt_reclaim_stage stage;
        uint32_t victim;
        struct kvt_kept *kept;
        uint32_t kept_count, next;
        uint32_t extents_busy;
        uint64_t reserve_bytes; /* of the open segment, for what is still to be copied */
        uint32_t reserve_count;
        bool is_keeping_all; /* compacting: not only what is held or was read */
        uint64_t run;        /* the sync that must be through */
        uint64_t retry_ns;   /* it failed, and is tried again then; 0: it did not */
        uint64_t epoch;
    } reclaim;
    struct {
        enum kvt_syncer_stage stage;
        uint32_t segment;
        uint32_t copy, written; /* of the superblock */
        uint64_t super_epoch;
        bool has_failed;
        bool is_header_tried; /* of the segment, in this run */
        struct kvt_store_io io;
    } syncer;
    uint64_t compact_below; /* segments with a lower sequence are looked at; 0: it has not begun */
    int super_file;
    uint64_t super_sequence;
};

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/*
 * Epochs, segments and records are numbered from a floor that no earlier opening reached: each opening writes the
 * superblock first, with a higher number, and writes it again long before it has used up the numbers that go with it.
 * So what is not found at an open (its header went with the power, or could not be read today) has numbers of its own,
 * and can never be taken for what is written now, or for newer.
 */
static inline uint64_t kvt_store_serial_floor(const struct kvt_store *store)
{
    const uint64_t top = KVT_STORE_SERIAL_MAX >> KVT_STORE_SERIAL_BITS;
    return (store->super_sequence < top ? store->super_sequence : top) << KVT_STORE_SERIAL_BITS;
}

/* Under the lock, the I/O thread's: the superblock is written. */
static inline void kvt_store_serials_raise(struct kvt_store *store)
{
    const uint64_t floor = kvt_store_serial_floor(store);
    if (store->record_sequence < floor) store->record_sequence = floor;
    if (store->segment_sequence < floor) store->segment_sequence = floor;
    if (store->next_epoch <= floor) store->next_epoch = floor + 1;
    if (store->next_epoch <= store->epoch) store->next_epoch = store->epoch + 1;
}

/* ---- store_io.c -------------------------------------------------------------------------------------------------- */

/* Queues an op; complete comes from a later kvt_store_io_collect, once, with io->error set. */
void kvt_store_io_start(struct kvt_store *store, struct kvt_store_io *io, enum kvt_io_kind kind, int file,
                        uint64_t offset, void *buffer, uint32_t size, bool is_urgent, kvt_store_io_fn complete,
                        void *owner);
void kvt_store_io_pump(struct kvt_store *store);
void kvt_store_io_collect(struct kvt_store *store, uint64_t wait_ns);
/* Does one op and waits for it; before the thread starts. Returns errno, ETIME when it did not come back. */
int kvt_store_io_now(struct kvt_store *store, enum kvt_io_kind kind, int file, uint64_t offset, void *buffer,
                     uint32_t size);

/* Waits until these have come back; before the thread starts. False: the disk does not answer. */
bool kvt_store_io_finish(struct kvt_store *store, const struct kvt_store_io *ios, uint32_t count);
void kvt_store_io_nothing(struct kvt_store *store, struct kvt_store_io *io); /* a completion that does nothing */

KVT_NODISCARD enum kvt_status kvt_store_memory_init(struct kvt_store *store, uint64_t staging_bytes);
void kvt_store_memory_done(struct kvt_store *store);

/* ---- store_log.c ------------------------------------------------------------------------------------------------- */

void kvt_segment_name(uint32_t index, char ret_name[24]);
bool kvt_record_header_is_valid(const struct kvt_store *store, const struct kvt_record_header *header, uint64_t epoch,
                                uint64_t segment_sequence, uint64_t offset);
void kvt_record_header_seal(struct kvt_record_header *header);

/* Under the lock. The entry leaves the index; a held one is lost and will be told. */
void kvt_store_entry_drop(struct kvt_store *store, struct kvt_store_entry *entry);
/* Under the lock. Adds (sign 1) or takes (-1) the entry from its segment's counters. */
void kvt_store_entry_count(struct kvt_store *store, const struct kvt_store_entry *entry, int sign);

/* What can be had of the open segment for one record of `stored` bytes, beside what is reserved. */
bool kvt_store_has_room(const struct kvt_store *store, uint64_t stored, uint64_t reserve_bytes, uint32_t reserve_count);
/* Appends: sets the place and lists it in the summary. Returns the summary's index. */
uint32_t kvt_store_append(struct kvt_store *store, const struct kvt_summary_entry *entry, uint32_t stored,
                          uint64_t *ret_offset);
void kvt_store_summary_strike(struct kvt_store *store, uint32_t segment, uint32_t summary_index);

struct kvt_extent *kvt_store_extent_take(struct kvt_store *store);
void kvt_store_extent_write(struct kvt_store *store, struct kvt_extent *extent, kvt_store_io_fn complete);

/* Lock taken inside. */
void kvt_store_finish(struct kvt_store *store, struct kvt_store_op *op, enum kvt_status status, int os_errno);
void kvt_store_finish_locked(struct kvt_store *store, struct kvt_store_op *op, enum kvt_status status, int os_errno);

void kvt_store_place_puts(struct kvt_store *store);
/* Gives the put its place in the open segment; the header still lacks the payload's checksum. */
struct kvt_record_header kvt_store_put_append(struct kvt_store *store, struct kvt_store_op *op, uint32_t stored);
/* One of the put's writes came back, or its placing has ended. */
void kvt_store_put_piece_done(struct kvt_store *store, struct kvt_store_op *op, uint64_t link_ns, int error);
/* True: a write that failed for want of space may be tried again: some has been given back. Once per write. */
bool kvt_store_may_retry(struct kvt_store *store, const struct kvt_store_io *io, bool *is_retried);
/* A write of puts has ended: counters, a line in the log, a pause after ENOSPC. */
void kvt_store_write_ended(struct kvt_store *store, struct kvt_segment *segment, const struct kvt_store_io *io);
void kvt_store_closer_step(struct kvt_store *store);
void kvt_store_syncer_step(struct kvt_store *store);
/* Asks for a run of the syncer that starts after now; returns its number. Under the lock. */
uint64_t kvt_store_want_sync(struct kvt_store *store);

/* Makes a file for a segment that has none. False, with errno: not now. */
bool kvt_segment_create(struct kvt_store *store, uint32_t index, int *ret_errno);
void kvt_segment_remove(struct kvt_store *store, uint32_t index);
uint64_t kvt_store_usable_bytes(const struct kvt_store *store);

/* ---- store_commit.c ---------------------------------------------------------------------------------------------- */

/* Asks for a run that begins after now; returns its number. Under the lock. */
uint64_t kvt_store_want_commit(struct kvt_store *store);
void kvt_store_commit_step(struct kvt_store *store);
/* store.c: has a commit begun that covers the put; does not wait. */
void kvt_store_commit_begin(struct kvt_store *store, uint64_t number);

/* ---- store_reclaim.c --------------------------------------------------------------------------------------------- */

enum kvt_advance { KVT_ADVANCE_READY, KVT_ADVANCE_WAIT, KVT_ADVANCE_FULL, KVT_ADVANCE_NOSPACE };

/* Makes the open segment one that has room for `stored` bytes. */
enum kvt_advance kvt_store_advance(struct kvt_store *store, uint64_t stored);
/* Writes a segment's header again. No header is being written. */
void kvt_store_write_header(struct kvt_store *store, uint32_t index);
void kvt_store_reclaim_step(struct kvt_store *store);

/* ---- store.c ----------------------------------------------------------------------------------------------------- */

/* False: a caller's mistake, which comes back with INVAL. How long a put may be is not looked at. */
bool kvt_store_op_is_valid(const struct kvt_store_op *op);

/* ---- store_in_place.c -------------------------------------------------------------------------------------------- */

bool kvt_store_is_put_in_place(const struct kvt_store *store, const struct kvt_store_op *op);
/* False: as many as may be are being written. */
bool kvt_store_put_in_place(struct kvt_store *store, struct kvt_store_op *op, uint32_t stored);

/* ---- store_read.c ------------------------------------------------------------------------------------------------ */

void kvt_store_start_gets(struct kvt_store *store);

/* ---- store_recover.c --------------------------------------------------------------------------------------------- */

struct kvt_store_error {
    char *text;
    size_t size;
};
enum kvt_status kvt_store_refuse(struct kvt_store_error error, enum kvt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

KVT_NODISCARD enum kvt_status kvt_store_directory_open(struct kvt_store *store, struct kvt_store_error error);
void kvt_store_directory_close(struct kvt_store *store);
/* After a failed open: removes the directory, if this open made it, with what it has put there. Before the close. */
void kvt_store_directory_undo(struct kvt_store *store);
KVT_NODISCARD enum kvt_status kvt_store_recover(struct kvt_store *store, uint32_t record_bytes_max,
                                                struct kvt_store_error error);
/* Seconds of the wall clock; in a simulation of its own clock. */
uint64_t kvt_store_wall_s(const struct kvt_store *store);
void kvt_store_superblock_fill(const struct kvt_store *store, uint64_t sequence, uint64_t epoch, uint8_t *block);

/* ---- store.c ----------------------------------------------------------------------------------------------------- */

/* What the tier above wants besides. */
struct kvt_store_more {
    void (*wake)(void *user); /* from the I/O thread, when poll or poll_lost has something */
    void *wake_user;
    uint64_t side_bytes_max; /* room for a side file of so many bytes; 0: there will be none */
    uint64_t side_name[2];   /* that one's: the room is for it, whether it is there already or not */
};

/* As kvt_store_open. more may be NULL. */
KVT_NODISCARD enum kvt_status kvt_store_open_with(const struct kvt_store_config *config, const struct kvt_env *env,
                                                  const struct kvt_store_more *more, struct kvt_store **ret_store,
                                                  char *ret_error, size_t error_bytes);

/* ---- store_side.c: a few KiB beside the segments that records cannot be read without ----------------------------- */

#define KVT_STORE_SIDE_PREFIX "side-"
#define KVT_STORE_SIDES_MAX 16 /* files of different names; the oldest of more are removed at open */

/*
 * Replaces the side file of this name. OK: it is on the device, whole, before any record that is put from now on. FULL:
 * larger than what was announced at open. IO, with ret_errno: it could not be; what was there before still is. Blocks;
 * not from the I/O thread; one call at a time.
 */
KVT_NODISCARD enum kvt_status kvt_store_side_save(struct kvt_store *store, const uint64_t name[2], const void *bytes,
                                                  size_t size, int *ret_errno);
/* Reads it: NOTFOUND | FULL: larger than capacity | IO. Whoever saved it checks that it is what was saved. */
KVT_NODISCARD enum kvt_status kvt_store_side_load(struct kvt_store *store, const uint64_t name[2], void *target,
                                                  size_t capacity, size_t *ret_size);
/* None there is fine. */
void kvt_store_side_remove(struct kvt_store *store, const uint64_t name[2]);
/* What they take on disk, as du sees it; with more than KVT_STORE_SIDES_MAX the oldest are removed. At open. */
uint64_t kvt_store_sides_count(struct kvt_store *store);

static inline const struct kvt_name *kvt_name_of(const struct kvt_store_name *name)
{
    return (const struct kvt_name *)(const void *)name;
}
_Static_assert(sizeof(struct kvt_name) == sizeof(struct kvt_store_name), "one layout");

#endif
