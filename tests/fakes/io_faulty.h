/*
 * io_faulty: block I/O on a disk in memory that fails on purpose, and whose power can be cut.
 *
 * There are two objects. The image is the disk: files, bytes, faults, counters. It lives as long as the test wants. The
 * kvt_block_io instance is one opening of it and comes and goes with the store that uses it:
 *
 *     struct io_faulty_image *image = io_faulty_image_create(&(struct io_faulty_config){ .seed = 7 });
 *     struct kvt_env env = kvt_env_default();
 *     env.block_io = &io_faulty_ops;
 *     env.block_io_user = image;
 *     ... open a store with env, use it, close it, open it again: the files are still there ...
 *     io_faulty_image_destroy(&image);
 *
 * A file is found by (config.directory, name), so one image serves several directories. Directories need not exist.
 *
 * Determinism: one thread, no clock. Everything random comes from the seed and the order of calls; the same seed and
 *              the
 * same calls give the same run; ret_ns is always 0. An op is carried out when it comes back, never inside submit, and
 * comes back from a poll after its submit at the earliest. A poll with wait_ns > 0 passes over delays instead of
 * waiting; when only held ops are left it calls config.wait once and returns what there is then.
 *
 * Numbering: `n` below always means "the n-th from now on, 1 is the next". An operation is one submitted op (in order
 *            of
 * submit) or one call of open_file, allocate, remove_file or sync_directory.
 *
 * What it checks (KVT_ASSERT): alignment of offset, size and buffer; the queue depth; a file that is open; that an op
 * is not submitted twice; that the bytes of a write do not change while it is in flight. The buffer of a read is filled
 * with IO_FAULTY_POISON at its submit, and past a short read's end the poison stays: bytes read before their
 * completion, and stale bytes, show.
 *
 * Power: see io_faulty_cut_at. Thread: one at a time; kick may be called from any and does nothing.
 */
#ifndef KVT_TESTS_FAKES_IO_FAULTY_H
#define KVT_TESTS_FAKES_IO_FAULTY_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/block_io.h"

#define IO_FAULTY_POISON 0xdb
#define IO_FAULTY_SECTOR 512 /* a torn write tears here: a sector is old or new as a whole */

struct io_faulty_image;

/* A fault that an op cannot have (a bit flip of a write) leaves it as it is. */
enum io_faulty_fault {
    IO_FAULTY_NONE,
    IO_FAULTY_EIO,    /* any: ret_bytes = -EIO. A write may have landed in part, a sync has synced nothing */
    IO_FAULTY_ENOSPC, /* write, allocate, creation: -ENOSPC, nothing written */
    /* read, write: fewer bytes than asked, a multiple of the alignment, maybe 0; ret_bytes says so */
    IO_FAULTY_SHORT,
    IO_FAULTY_DELAY,     /* submitted ops: comes back 1 to delay_polls_max polls later than it could */
    IO_FAULTY_HELD,      /* submitted ops: does not come back until io_faulty_release (or close) */
    IO_FAULTY_FLIP,      /* read: one bit of what is handed back is wrong, the disk is right, ret_bytes says success */
    IO_FAULTY_TORN,      /* write: only some sectors are written, ret_bytes says success: a disk that lies */
    IO_FAULTY_MISDIRECT, /* write: all of it goes to another aligned offset of the same file, ret_bytes says success */
    IO_FAULTY_FULL,      /* submit returns FULL and nothing happens; the op keeps no number */
    IO_FAULTY_COUNT
};

enum io_faulty_kind {
    IO_FAULTY_READ,
    IO_FAULTY_WRITE,
    IO_FAULTY_SYNC,
    IO_FAULTY_CALL,
    IO_FAULTY_ANY
}; /* CALL: not an op */

struct io_faulty_config {
    uint64_t seed;
    uint32_t alignment; /* 512 to 4096; 0: 512. Reported in the facts and checked */
    /* of all files, allocated or written, the larger; then ENOSPC, a write up to it is short. 0: none */
    uint64_t bytes_max;
    /* ops come back in random order; otherwise in order of submit, delayed and held ones aside */
    bool is_reordering;
    uint32_t delay_polls_max;                   /* 0: 8 */
    void (*wait)(void *user, uint64_t wait_ns); /* may advance a virtual clock, or release held ops. NULL: nothing */
    void *user;
};

struct io_faulty_counters {
    uint64_t operations;           /* ops and calls, the ones after a cut included */
    uint64_t reads, writes, syncs; /* ops handed back, whatever their result */
    uint64_t bytes_read, bytes_written;
    uint64_t faults[IO_FAULTY_COUNT];
    uint32_t in_flight; /* of the open instance; the held ones too */
    uint32_t held;
    uint64_t bytes_used, bytes_peak; /* as bytes_max counts */
};

extern const struct kvt_block_io_ops io_faulty_ops;

/* NULL only when memory is out. */
struct io_faulty_image *io_faulty_image_create(const struct io_faulty_config *config);
/* Requires that no instance is open. Nulls; NULL is fine. */
void io_faulty_image_destroy(struct io_faulty_image **image);

/* From now on `per_million` of the operations of this kind meet this fault. 0 ends it. DELAY and HELD add to others. */
void io_faulty_rate(struct io_faulty_image *image, enum io_faulty_kind kind, enum io_faulty_fault fault,
                    uint32_t per_million);
/* The n-th operation of this kind from now on meets this fault, once. At most 256 are kept at a time. */
void io_faulty_at(struct io_faulty_image *image, enum io_faulty_kind kind, uint64_t n, enum io_faulty_fault fault);
/* No more faults: rates and exact ones are forgotten, held ops are let go. A cut stays. */
void io_faulty_heal(struct io_faulty_image *image);
/* Held ops come back from the next poll on. Returns how many there were. */
uint32_t io_faulty_release(struct io_faulty_image *image);
/* Changes the room there is; 0: no limit. */
void io_faulty_set_bytes_max(struct io_faulty_image *image, uint64_t bytes_max);

/*
 * The power goes at the n-th operation from now on: it and all later ones, and those still in flight, fail with EIO
 * (each op still comes back, exactly once). 0: no cut.
 *
 * What was written before a sync op was submitted, came back before that, and is of the same file, is safe once the
 * sync has come back with 0. So are a file's size and allocation; a file's name, or its removal, is safe once
 * sync_directory returned OK.
 *
 * Then close the instance and call one of:
 *   io_faulty_power_cycle: each write not made safe, in flight ones too, independently lands, vanishes, or tears (some
 *   of its
 *       sectors land); creations, removals and allocations not made safe land or vanish.
 *   io_faulty_process_restart: the process died, the machine did not: what came back stays, what was in flight lands or
 *   not.
 * Both end the cut, forget all faults, and keep the counters; the image can be opened again.
 */
void io_faulty_cut_at(struct io_faulty_image *image, uint64_t n);
bool io_faulty_was_cut(const struct io_faulty_image *image);
void io_faulty_power_cycle(struct io_faulty_image *image);
void io_faulty_process_restart(struct io_faulty_image *image);

/*
 * This directory does not answer: it cannot be opened, and its operations fail with EIO, what is in flight too. NULL: all
 * answer. The text is borrowed. Only this call ends it.
 */
void io_faulty_set_away(struct io_faulty_image *image, const char *directory);

/*
 * Looking at the disk as a read would see it, and damaging it by hand. What was written to a file that is poked or
 * truncated is safe from then on. False: no such file, or the range is not inside it.
 */
bool io_faulty_file_size(const struct io_faulty_image *image, const char *directory, const char *name,
                         uint64_t *ret_size);
bool io_faulty_peek(const struct io_faulty_image *image, const char *directory, const char *name, uint64_t offset,
                    void *ret_bytes, uint64_t size);
bool io_faulty_poke(struct io_faulty_image *image, const char *directory, const char *name, uint64_t offset,
                    const void *bytes, uint64_t size);
bool io_faulty_truncate(struct io_faulty_image *image, const char *directory, const char *name, uint64_t size);

struct io_faulty_counters io_faulty_counters(const struct io_faulty_image *image);

#endif
