/*
 * block_io: the seam under the store. Reads, writes and syncs of files at offsets, asynchronously.
 *
 * Implementations: io_uring with O_DIRECT and registered buffers (block_io_uring.c), a thread with pread and pwrite
 * (block_io_sync.c) where io_uring or O_DIRECT is refused, and in tests one in memory that fails, delays, tears and
 * cuts power.
 *
 * The op rule of tier.h holds: from a submit that returns OK until poll hands the op back, the I/O owns op and buffer;
 * each op comes back exactly once. Cancelling is a request, not an end: only its own completion ends the loan.
 * ret_bytes is what really happened: a short transfer is reported as such, and the caller finishes or fails it.
 *
 * Submitted ops may wait for the next poll to start: whoever submits must poll. A sync makes safe what came back before
 * its submit, no more. close ends what has not started with -ECANCELED and waits for the rest; it hands nothing back,
 * but no op or buffer is touched afterwards. A kick ends the poll that waits, or else the next one that would.
 *
 * Thread: one caller at a time per instance.
 */
#ifndef KVT_TIERS_BLOCK_IO_H
#define KVT_TIERS_BLOCK_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/env.h"
#include "runtime/base/status.h"

struct kvt_block_io;

enum kvt_io_kind { KVT_IO_READ, KVT_IO_WRITE, KVT_IO_SYNC };

struct kvt_io_op {
    enum kvt_io_kind kind;
    int file;        /* from open_file */
    uint64_t offset; /* aligned to `alignment`, as buffer and size are */
    void *buffer;
    uint32_t size;
    bool is_urgent;    /* reads that something waits for go before writes */
    int32_t ret_bytes; /* bytes moved, or -errno */
    uint64_t ret_ns;   /* from submit to completion */
    struct kvt_io_op *next;
    uint64_t tag; /* the implementation's */
};

struct kvt_block_io_config {
    const char *directory; /* probed at open with a real write and read through the real path */
    uint32_t queue_depth;  /* ops in flight at most */
    /* one region that all I/O buffers come from, registered where limits allow; NULL: none */
    void *buffers;
    uint64_t buffers_bytes;
    uint64_t link_bytes_per_s; /* pacing for experiments: reads and writes together; 0: none */
};

/* What open found, for people: printed by doctor and the bench. */
struct kvt_block_io_facts {
    const char *path;   /* "io_uring", "threads" */
    bool is_direct;     /* O_DIRECT accepted */
    bool is_registered; /* buffers registered */
    uint32_t alignment; /* of offset, size and buffer: 512 to 4096 */
    char note[160];     /* why something was not taken, or "" */
};

struct kvt_block_io_ops {
    const char *name;
    enum kvt_status (*open)(const struct kvt_block_io_config *config, const struct kvt_env *env,
                            struct kvt_block_io **ret_io);
    void (*close)(struct kvt_block_io *io); /* drains to zero in flight first */
    void (*facts)(struct kvt_block_io *io, struct kvt_block_io_facts *ret_facts);

    /* Opens or creates (mode 0600, exclusive, no symlink followed) `name` inside the directory. IO with *ret_errno. */
    enum kvt_status (*open_file)(struct kvt_block_io *io, const char *name, bool is_create, int *ret_file,
                                 int *ret_errno);
    void (*close_file)(struct kvt_block_io *io, int file);
    /* Allocates the range [0, size) of the file for real (fallocate); size is aligned. IO with *ret_errno (ENOSPC among them). */
    enum kvt_status (*allocate)(struct kvt_block_io *io, int file, uint64_t size, int *ret_errno);
    enum kvt_status (*remove_file)(struct kvt_block_io *io, const char *name, int *ret_errno);
    enum kvt_status (*sync_directory)(struct kvt_block_io *io, int *ret_errno);

    enum kvt_status (*submit)(struct kvt_block_io *io, struct kvt_io_op *op); /* OK | FULL */
    /* Hands back up to max finished ops. wait_ns > 0: blocks up to that long for the first (or until kick). */
    uint32_t (*poll)(struct kvt_block_io *io, struct kvt_io_op **ret_done, uint32_t max, uint64_t wait_ns);
    void (*kick)(struct kvt_block_io *io); /* any thread: ends a poll that waits */
};

struct kvt_block_io {
    const struct kvt_block_io_ops *ops;
};

extern const struct kvt_block_io_ops kvt_block_io_uring_ops;
extern const struct kvt_block_io_ops kvt_block_io_sync_ops;

/* The best of the two that a probe of the directory finds to work within its time limit; the facts say why. */
KVT_NODISCARD enum kvt_status kvt_block_io_open(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                                struct kvt_block_io **ret_io);

#endif
