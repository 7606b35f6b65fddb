/*
 * A side file is written under a name of its own that the next open sweeps, synced, renamed, and the directory synced:
 * at any moment the old one is there as a whole, or the new one is, or none was.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "tiers/store_private.h"

#define SAVING_NAME ".kvtier-side" /* swept at open, as all of .kvtier- */

struct side_name {
    char text[48];
};

static struct side_name side_name(const uint64_t name[2])
{
    struct side_name side;
    (void)snprintf(side.text, sizeof side.text, KVT_STORE_SIDE_PREFIX "%016" PRIx64 "%016" PRIx64, name[0], name[1]);
    return side;
}

static bool write_all(int file, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t written = write(file, bytes, size);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            if (written == 0) errno = EIO;
            return false;
        }
        bytes += written;
        size -= (size_t)written;
    }
    return true;
}

/* Closes the file in any case; errno says why it failed. */
static bool fill_and_sync(int file, const void *bytes, size_t size)
{
    /* A umask may have taken bits away. */
    bool is_ok = fchmod(file, 0600) == 0 && write_all(file, bytes, size) && fsync(file) == 0;
    const int os_errno = errno;
    if (close(file) != 0 && is_ok) return false;
    errno = os_errno;
    return is_ok;
}

enum kvt_status kvt_store_side_save(struct kvt_store *store, const uint64_t name[2], const void *bytes, size_t size,
                                    int *ret_errno)
{
    const struct side_name side = side_name(name);
    *ret_errno = 0;
    if (size > store->side_bytes_max) return KVT_FULL;
    (void)unlinkat(store->directory, SAVING_NAME, 0);
    const int file = openat(store->directory, SAVING_NAME, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0 && fill_and_sync(file, bytes, size)
        && renameat(store->directory, SAVING_NAME, store->directory, side.text) == 0 && fsync(store->directory) == 0)
        return KVT_OK;
    *ret_errno = errno;
    (void)unlinkat(store->directory, SAVING_NAME, 0);
    return KVT_IO;
}

static enum kvt_status read_all(int file, uint8_t *target, size_t capacity, size_t *ret_size)
{
    struct stat status;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return KVT_IO;
    if ((uint64_t)status.st_size > capacity) return KVT_FULL;
    size_t size = 0;
    while (size < capacity) {
        const ssize_t got = read(file, target + size, capacity - size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return KVT_IO;
        if (got == 0) break;
        size += (size_t)got;
    }
    *ret_size = size;
    return KVT_OK;
}

enum kvt_status kvt_store_side_load(struct kvt_store *store, const uint64_t name[2], void *target, size_t capacity,
                                    size_t *ret_size)
{
    const struct side_name side = side_name(name);
    const int file = openat(store->directory, side.text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return errno == ENOENT ? KVT_NOTFOUND : KVT_IO;
    const enum kvt_status status = read_all(file, target, capacity, ret_size);
    (void)close(file);
    return status;
}

void kvt_store_side_remove(struct kvt_store *store, const uint64_t name[2])
{
    const struct side_name side = side_name(name);
    (void)unlinkat(store->directory, side.text, 0);
}

/* ---- What lies there --------------------------------------------------------------------------------------------- */

struct found_side {
    char name[256];
    uint64_t bytes;
    struct timespec written;
};

static bool is_older(const struct found_side *a, const struct found_side *b)
{
    if (a->written.tv_sec != b->written.tv_sec) return a->written.tv_sec < b->written.tv_sec;
    return a->written.tv_nsec < b->written.tv_nsec;
}

static void remove_side(struct kvt_store *store, const char *name)
{
    if (store->is_existing || unlinkat(store->directory, name, 0) != 0) return;
    store->stats.swept_files++;
    kvt_log(&store->env, KVT_LOG_INFO, "%s: swept %s", store->path, name);
}

/* Keeps the newest: the oldest of one too many goes. */
static void keep(struct kvt_store *store, struct found_side *found, uint32_t *count, const struct found_side *side)
{
    if (*count < KVT_STORE_SIDES_MAX) {
        found[(*count)++] = *side;
        return;
    }
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < *count; i++)
        if (is_older(&found[i], &found[oldest])) oldest = i;
    if (is_older(side, &found[oldest])) {
        remove_side(store, side->name);
        return;
    }
    remove_side(store, found[oldest].name);
    found[oldest] = *side;
}

uint64_t kvt_store_sides_count(struct kvt_store *store)
{
    struct found_side found[KVT_STORE_SIDES_MAX];
    uint32_t count = 0;
    const int again = openat(store->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = again >= 0 ? fdopendir(again) : NULL;
    if (!directory) {
        if (again >= 0) (void)close(again);
        return 0;
    }
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        struct stat status;
        if (strncmp(entry->d_name, KVT_STORE_SIDE_PREFIX, strlen(KVT_STORE_SIDE_PREFIX)) != 0) continue;
        if (fstatat(store->directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        struct found_side side = { .bytes = (uint64_t)status.st_blocks * 512, .written = status.st_mtim };
        (void)snprintf(side.name, sizeof side.name, "%s", entry->d_name);
        if (S_ISREG(status.st_mode)) keep(store, found, &count, &side);
        else remove_side(store, side.name); /* in the way of one, and none of ours */
    }
    (void)closedir(directory);
    /* There is room for our own in any case: a store must not shrink by it from one opening to the next. */
    const struct side_name own = side_name(store->side_name);
    const uint64_t own_max = kvt_align_up(store->side_bytes_max, KVT_STORE_BLOCK_BYTES);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(found[i].name, own.text) != 0 || found[i].bytes > own_max) bytes += found[i].bytes;
    return bytes;
}
