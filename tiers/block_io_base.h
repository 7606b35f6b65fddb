/*
 * block_io_base: what the implementations on real files share: the directory, its files, and what its file system can
 *                do.
 *
 * File rule: a name is one path component. A file is opened without following a symlink, must be a regular file, is not
 * inherited by exec, and is created exclusively with mode 0600 whatever the umask. The file number of an op is a
 * descriptor. Alignment rule: is_direct and alignment come from a real write and read at that address, offset and
 * length, not from a claim.
 *
 * The directory itself (its mode, owner and lock) is the caller's business.
 * Thread: as block_io.h. Memory: none.
 */
#ifndef KVT_TIERS_BLOCK_IO_BASE_H
#define KVT_TIERS_BLOCK_IO_BASE_H

#include "tiers/block_io.h"

#define KVT_IO_ALIGNMENT_MIN 512u
#define KVT_IO_ALIGNMENT_MAX 4096u
#define KVT_IO_QUEUE_DEPTH_MAX 4096u
#define KVT_IO_PROBE_NAME ".kvtier-probe"
#define KVT_IO_PROBE_LIMIT_NS 5000000000u /* an open that takes longer is given up */

/* The first member of an implementation on real files. */
struct kvt_io_base {
    struct kvt_block_io io;
    struct kvt_env env;
    int directory;
    uint32_t queue_depth;
    struct kvt_block_io_facts facts;
};

/*
 * Opens the directory and finds is_direct and alignment. errno says why not.
 * INVAL: no directory, a queue depth of 0 or above the maximum, buffers that are not aligned | IO | NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_io_base_init(struct kvt_io_base *base, const struct kvt_block_io_ops *ops,
                                               const char *path, const struct kvt_block_io_config *config,
                                               const struct kvt_env *env);
void kvt_io_base_done(struct kvt_io_base *base);

/* Adds a sentence to the facts' note, as far as it fits. */
void kvt_io_facts_add_note(struct kvt_block_io_facts *facts, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* One path component that stays in its directory. */
bool kvt_io_name_is_valid(const char *name);

/* Asserts what a caller owes: kind, size, alignment of offset, size and buffer. */
void kvt_io_check_op(const struct kvt_io_op *op, uint32_t alignment);

/*
 * True for a write that starts beyond the process's file size limit: the kernel would answer with SIGXFSZ, which kills
 * whoever does not expect it. Such an op ends with -EFBIG and is not tried.
 */
bool kvt_io_is_beyond_limit(const struct kvt_io_op *op);

/* The members of kvt_block_io_ops that need nothing but the base. */
void kvt_io_base_facts(struct kvt_block_io *io, struct kvt_block_io_facts *ret_facts);
enum kvt_status kvt_io_base_open_file(struct kvt_block_io *io, const char *name, bool is_create, int *ret_file,
                                      int *ret_errno);
void kvt_io_base_close_file(struct kvt_block_io *io, int file);
enum kvt_status kvt_io_base_allocate(struct kvt_block_io *io, int file, uint64_t size, int *ret_errno);
enum kvt_status kvt_io_base_remove_file(struct kvt_block_io *io, const char *name, int *ret_errno);
enum kvt_status kvt_io_base_sync_directory(struct kvt_block_io *io, int *ret_errno);

/*
 * The parts of kvt_block_io_open that a test drives alone.
 *
 * probe: writes, syncs and reads back a small file through io, and removes it. OK | IO with *ret_errno (ETIMEDOUT: an
 *        op did not
 * come back within limit_ns; then io must not be closed, its op and buffer are left to it for good) | NOMEM.
 * A full disk is no refusal: ENOSPC counts as OK.
 */
KVT_NODISCARD enum kvt_status kvt_block_io_probe(struct kvt_block_io *io, const struct kvt_env *env, uint64_t limit_ns,
                                                 int *ret_errno);
/*
 * Opens with ops and probes, in a thread of its own unless env is single-threaded, so that a directory that hangs
 * cannot hang the caller: past limit_ns the thread is left behind and cleans up after itself if it ever comes back.
 * Same statuses as probe and ops->open; errno beside them.
 */
KVT_NODISCARD enum kvt_status kvt_block_io_open_within(const struct kvt_block_io_ops *ops,
                                                       const struct kvt_block_io_config *config,
                                                       const struct kvt_env *env, uint64_t limit_ns,
                                                       struct kvt_block_io **ret_io, int *ret_errno);

/*
 * Paces inner (takes it; on failure it is the caller's again): see block_io_paced.c. env's clock.
 * NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_block_io_pace(struct kvt_block_io *inner, uint32_t queue_depth,
                                                uint64_t link_bytes_per_s, const struct kvt_env *env,
                                                struct kvt_block_io **ret_io);

#endif
