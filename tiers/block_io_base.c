#include "tiers/block_io_base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define ZERO_FILL_BYTES (256 * KVT_KIB)

bool kvt_io_name_is_valid(const char *name)
{
    if (!name || name[0] == '\0' || strlen(name) > 255) return false;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
    return strchr(name, '/') == NULL;
}

void kvt_io_facts_add_note(struct kvt_block_io_facts *facts, const char *format, ...)
{
    size_t used = strlen(facts->note);
    if (used > 0 && used + 2 < sizeof facts->note) {
        memcpy(facts->note + used, "; ", 3);
        used += 2;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(facts->note + used, sizeof facts->note - used, format, arguments);
    va_end(arguments);
}

void kvt_io_check_op(const struct kvt_io_op *op, uint32_t alignment)
{
    KVT_ASSERT(op->kind == KVT_IO_READ || op->kind == KVT_IO_WRITE || op->kind == KVT_IO_SYNC);
    if (op->kind == KVT_IO_SYNC) return;
    KVT_ASSERT(op->size > 0);
    KVT_ASSERT(op->size <= INT32_MAX);
    KVT_ASSERT(op->buffer);
    KVT_ASSERT(kvt_is_aligned(op->offset, alignment));
    KVT_ASSERT(kvt_is_aligned(op->size, alignment));
    KVT_ASSERT(kvt_is_aligned((uintptr_t)op->buffer, alignment));
}

static uint64_t file_size_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
}

bool kvt_io_is_beyond_limit(const struct kvt_io_op *op)
{
    return op->kind == KVT_IO_WRITE && op->offset >= file_size_limit();
}

/* Creates the probe file and removes its name at once: nothing is left behind by a crash. -1 with errno. */
static int probe_file_create(int directory)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(directory, KVT_IO_PROBE_NAME, flags, 0600);
    if (fd < 0 && errno == EEXIST) {
        (void)unlinkat(directory, KVT_IO_PROBE_NAME, 0);
        fd = openat(directory, KVT_IO_PROBE_NAME, flags, 0600);
    }
    if (fd >= 0) (void)unlinkat(directory, KVT_IO_PROBE_NAME, 0);
    return fd;
}

/*
 * Writes and reads back one unit whose address, offset and length are aligned to `alignment` and no more. 0 or an
 * errno.
 */
static int probe_transfer(int fd, uint32_t alignment, uint8_t *page_aligned)
{
    uint8_t *buffer = page_aligned + alignment;
    if (file_size_limit() < 2 * alignment) return EFBIG;
    for (uint32_t i = 0; i < alignment; i++) buffer[i] = (uint8_t)(i * 31 + 7);
    ssize_t n = pwrite(fd, buffer, alignment, alignment);
    if (n < 0) return errno;
    if ((size_t)n != alignment) return ENOSPC;
    memset(buffer, 0, alignment);
    n = pread(fd, buffer, alignment, alignment);
    if (n < 0) return errno;
    if ((size_t)n != alignment) return EIO;
    for (uint32_t i = 0; i < alignment; i++) {
        if (buffer[i] != (uint8_t)(i * 31 + 7)) return EIO;
    }
    return 0;
}

/* What the kernel says O_DIRECT needs: 0 when it says nothing, UINT32_MAX when it says that O_DIRECT does not work. */
static uint32_t direct_alignment_claimed(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx stat_;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stat_) != 0 || !(stat_.stx_mask & STATX_DIOALIGN)) return 0;
    if (stat_.stx_dio_offset_align == 0) return UINT32_MAX;
    const uint32_t claimed = kvt_max_u32(stat_.stx_dio_mem_align, stat_.stx_dio_offset_align);
    return kvt_max_u32(claimed, KVT_IO_ALIGNMENT_MIN);
#else
    (void)fd;
    return 0;
#endif
}

static bool is_disk_full(int error) { return error == ENOSPC || error == EDQUOT; }

/* Sets is_direct and alignment from what fd, an empty file, accepts. 0, or the errno that refuses even buffered I/O. */
static int find_alignment(struct kvt_io_base *base, int fd, uint8_t *page_aligned)
{
    struct kvt_block_io_facts *facts = &base->facts;
    const uint32_t claimed = direct_alignment_claimed(fd);
    int refusal = claimed == UINT32_MAX ? EOPNOTSUPP : 0;
    if (!refusal && claimed > KVT_IO_ALIGNMENT_MAX) refusal = EINVAL;
    if (!refusal && fcntl(fd, F_SETFL, O_DIRECT) != 0) refusal = errno;
    if (!refusal) {
        refusal = EINVAL;
        for (uint32_t alignment = kvt_max_u32(claimed, KVT_IO_ALIGNMENT_MIN); alignment <= KVT_IO_ALIGNMENT_MAX;
             alignment *= 2) {
            if (!kvt_is_power_of_two(alignment)) break;
            refusal = probe_transfer(fd, alignment, page_aligned);
            if (is_disk_full(refusal) && claimed != 0) {
                kvt_io_facts_add_note(facts, "disk full: O_DIRECT not tried");
                refusal = 0;
            }
            facts->alignment = alignment;
            if (refusal != EINVAL) break;
        }
    }
    facts->is_direct = refusal == 0;
    if (facts->is_direct) return 0;

    char text[64];
    kvt_io_facts_add_note(facts, "buffered: O_DIRECT refused (%s)", strerror_r(refusal, text, sizeof text));
    facts->alignment = KVT_IO_ALIGNMENT_MIN;
    if (fcntl(fd, F_SETFL, 0) != 0) return errno;
    const int error = probe_transfer(fd, facts->alignment, page_aligned);
    return is_disk_full(error) ? 0 : error;
}

enum kvt_status kvt_io_base_init(struct kvt_io_base *base, const struct kvt_block_io_ops *ops, const char *path,
                                 const struct kvt_block_io_config *config, const struct kvt_env *env)
{
    const bool is_valid = config->directory && config->queue_depth > 0 && config->queue_depth <= KVT_IO_QUEUE_DEPTH_MAX
        && kvt_is_aligned((uintptr_t)config->buffers, KVT_IO_ALIGNMENT_MAX)
        && (config->buffers != NULL) == (config->buffers_bytes > 0);
    if (!is_valid) {
        errno = EINVAL;
        return KVT_INVAL;
    }
    *base = (struct kvt_io_base){ .io.ops = ops, .env = *env, .queue_depth = config->queue_depth, .facts.path = path };
    uint8_t *memory = kvt_alloc(1, 3 * KVT_IO_ALIGNMENT_MAX);
    if (!memory) {
        errno = ENOMEM;
        return KVT_NOMEM;
    }
    int error = 0;
    base->directory = open(config->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (base->directory < 0) {
        error = errno;
    } else {
        const int fd = probe_file_create(base->directory);
        error = fd < 0 ? errno
                       : find_alignment(base, fd, (uint8_t *)kvt_align_up((uintptr_t)memory, KVT_IO_ALIGNMENT_MAX));
        if (fd >= 0) (void)close(fd);
        if (fd < 0 && is_disk_full(error)) {
            /* What is there can still be read; buffered I/O fits any layout. */
            kvt_io_facts_add_note(&base->facts, "buffered: disk full, O_DIRECT not tried");
            base->facts.alignment = KVT_IO_ALIGNMENT_MIN;
            error = 0;
        }
        if (error) (void)close(base->directory);
    }
    kvt_free(memory);
    errno = error;
    return error ? KVT_IO : KVT_OK;
}

void kvt_io_base_done(struct kvt_io_base *base)
{
    (void)close(base->directory);
    base->directory = -1;
}

static struct kvt_io_base *base_of(struct kvt_block_io *io) { return (struct kvt_io_base *)io; }

void kvt_io_base_facts(struct kvt_block_io *io, struct kvt_block_io_facts *ret_facts)
{
    *ret_facts = base_of(io)->facts;
}

enum kvt_status kvt_io_base_open_file(struct kvt_block_io *io, const char *name, bool is_create, int *ret_file,
                                      int *ret_errno)
{
    const struct kvt_io_base *base = base_of(io);
    if (!kvt_io_name_is_valid(name)) {
        *ret_errno = EINVAL;
        return KVT_IO;
    }
    const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (base->facts.is_direct ? O_DIRECT : 0)
        | (is_create ? O_CREAT | O_EXCL : 0);
    const int fd = openat(base->directory, name, flags, 0600);
    if (fd < 0) {
        *ret_errno = errno;
        return KVT_IO;
    }
    struct stat stat_;
    int error = 0;
    if (is_create && fchmod(fd, 0600) != 0) error = errno;
    if (!error && fstat(fd, &stat_) != 0) error = errno;
    if (!error && !S_ISREG(stat_.st_mode)) error = EINVAL;
    if (error) {
        (void)close(fd);
        if (is_create) (void)unlinkat(base->directory, name, 0);
        *ret_errno = error;
        return KVT_IO;
    }
    *ret_file = fd;
    return KVT_OK;
}

void kvt_io_base_close_file(struct kvt_block_io *io, int file)
{
    (void)io;
    (void)close(file);
}

/* For file systems without fallocate: zeros from the end of the file on. Holes below it stay holes. */
static int zero_fill(int file, uint64_t size, uint32_t alignment)
{
    struct stat stat_;
    if (fstat(file, &stat_) != 0) return errno;
    uint8_t *memory = kvt_alloc(1, ZERO_FILL_BYTES + KVT_IO_ALIGNMENT_MAX);
    if (!memory) return ENOMEM;
    const uint8_t *zeros = (const uint8_t *)kvt_align_up((uintptr_t)memory, KVT_IO_ALIGNMENT_MAX);
    uint64_t offset = kvt_align_up((uint64_t)stat_.st_size, alignment);
    int error = 0;
    while (!error && offset < size) {
        const ssize_t n = pwrite(file, zeros, kvt_min_u64(ZERO_FILL_BYTES, size - offset), (off_t)offset);
        if (n > 0) offset += (uint64_t)n;
        else if (n == 0) error = ENOSPC;
        else if (errno != EINTR) error = errno;
        if (!error && offset < size && !kvt_is_aligned(offset, alignment)) error = ENOSPC;
    }
    kvt_free(memory);
    return error;
}

enum kvt_status kvt_io_base_allocate(struct kvt_block_io *io, int file, uint64_t size, int *ret_errno)
{
    KVT_ASSERT(size > 0);
    KVT_ASSERT(kvt_is_aligned(size, base_of(io)->facts.alignment));
    int error = size > file_size_limit() ? EFBIG : EINTR;
    while (error == EINTR) error = fallocate(file, 0, 0, (off_t)size) == 0 ? 0 : errno;
    if (error == EOPNOTSUPP) error = zero_fill(file, size, base_of(io)->facts.alignment);
    if (!error) return KVT_OK;
    *ret_errno = error;
    return KVT_IO;
}

enum kvt_status kvt_io_base_remove_file(struct kvt_block_io *io, const char *name, int *ret_errno)
{
    if (!kvt_io_name_is_valid(name)) {
        *ret_errno = EINVAL;
        return KVT_IO;
    }
    if (unlinkat(base_of(io)->directory, name, 0) == 0) return KVT_OK;
    *ret_errno = errno;
    return KVT_IO;
}

enum kvt_status kvt_io_base_sync_directory(struct kvt_block_io *io, int *ret_errno)
{
    if (fsync(base_of(io)->directory) == 0) return KVT_OK;
    *ret_errno = errno;
    return KVT_IO;
}
