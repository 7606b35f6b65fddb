#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mem.h"
#include "runtime/base/plant.h"
#include "runtime/base/rng.h"
#include "tiers/store_geometry.h"
#include "tiers/store_private.h"

#define LOCK_NAME "lock"
#define SUPER_NAME "superblock"

enum kvt_status kvt_store_refuse(struct kvt_store_error error, enum kvt_status status, const char *format, ...)
{
    if (!error.text || error.size == 0) return status;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error.text, error.size, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- The directory ----------------------------------------------------------------------------------------------- */

static enum kvt_status check_path(const char *path, struct kvt_store_error error)
{
    if (!path || path[0] == '\0') return kvt_store_refuse(error, KVT_INVAL, "path is empty: a directory is needed");
    const char *last = strrchr(path, '/');
    last = last ? last + 1 : path;
    if (strcmp(last, "..") == 0 || strcmp(last, ".") == 0 || last[0] == '\0')
        return kvt_store_refuse(error, KVT_INVAL, "path is %s: its last component must name a directory of its own",
                                path);
    return KVT_OK;
}

static enum kvt_status make_directory(struct kvt_store *store, struct kvt_store_error error)
{
    struct stat status;
    const char *path = store->path;
    bool is_made = false;
    store->is_directory_made = false;
    if (lstat(path, &status) != 0) {
        if (store->is_existing) return kvt_store_refuse(error, KVT_INVAL, "path is %s: there is no store", path);
        if (mkdir(path, 0700) == 0) is_made = true;
        else if (errno == ENOENT)
            return kvt_store_refuse(error, KVT_INVAL, "path is %s: its parent directory must exist", path);
        else if (errno != EEXIST)
            return kvt_store_refuse(error, KVT_IO, "path is %s: it cannot be created: %s", path, strerror(errno));
        if (lstat(path, &status) != 0) return kvt_store_refuse(error, KVT_IO, "path is %s: %s", path, strerror(errno));
    }
    store->is_directory_made = is_made;
    if (S_ISLNK(status.st_mode))
        return kvt_store_refuse(error, KVT_INVAL, "path is %s: a symlink is not followed", path);
    if (!S_ISDIR(status.st_mode)) return kvt_store_refuse(error, KVT_INVAL, "path is %s: it must be a directory", path);
    if (is_made && chmod(path, 0700) != 0) /* a umask may have taken bits away */
        return kvt_store_refuse(error, KVT_IO, "path is %s: %s", path, strerror(errno));
    if (!is_made && (status.st_mode & 077) != 0)
        kvt_log(&store->env, KVT_LOG_WARN, "%s: mode %03o lets others in; files in it are 0600 all the same", path,
                (unsigned)status.st_mode & 0777);
    store->directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (store->directory < 0) return kvt_store_refuse(error, KVT_IO, "path is %s: %s", path, strerror(errno));
    if (store->is_existing && fstatat(store->directory, SUPER_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return kvt_store_refuse(error, KVT_INVAL, "path is %s: there is no store in it", path);
    return KVT_OK;
}

static enum kvt_status take_lock(struct kvt_store *store, struct kvt_store_error error)
{
    store->lock_file = openat(store->directory, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (store->lock_file < 0)
        return kvt_store_refuse(error, KVT_IO, "path is %s: its lock file cannot be opened: %s", store->path,
                                strerror(errno));
    if (flock(store->lock_file, LOCK_EX | LOCK_NB) != 0)
        return kvt_store_refuse(error, KVT_BUSY, "path is %s: another process has this store open, one at a time",
                                store->path);
    (void)fchmod(store->lock_file, 0600);
    return KVT_OK;
}

static bool has_prefix(const char *name, const char *prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; }

/* The number of a segment's file name; NONE for anything else. */
static uint32_t segment_of(const char *name)
{
    unsigned number;
    char again[24];
    if (sscanf(name, "segment-%6u", &number) != 1) return KVT_STORE_NONE;
    kvt_segment_name(number, again);
    return strcmp(name, again) == 0 ? number : KVT_STORE_NONE;
}

static bool is_ours(const char *name)
{
    return strcmp(name, LOCK_NAME) == 0 || has_prefix(name, SUPER_NAME) || has_prefix(name, "segment-")
        || has_prefix(name, ".kvtier-") || has_prefix(name, KVT_STORE_SIDE_PREFIX);
}

/*
 * Removes what a crash left: names in our manner that are no segment below `slots` and not the superblock. Symlinks and
 * files of an impossible size in the place of a segment go too.
 */
static void sweep(struct kvt_store *store, const char *name, const struct stat *status, uint32_t slots)
{
    const uint32_t index = segment_of(name);
    if (strcmp(name, LOCK_NAME) == 0 || has_prefix(name, KVT_STORE_SIDE_PREFIX)) return; /* side files: store_side.c */
    const bool is_plain = S_ISREG(status->st_mode);
    if (strcmp(name, SUPER_NAME) == 0 && is_plain) return;
    const bool is_fitting = (uint64_t)status->st_blocks * 512 <= store->segment_bytes + KVT_STORE_FILE_SLACK
        && (uint64_t)status->st_size <= store->segment_bytes;
    if (index != KVT_STORE_NONE && index < slots && is_plain && is_fitting) return;
    if (unlinkat(store->directory, name, 0) == 0) {
        store->stats.swept_files++;
        kvt_log(&store->env, KVT_LOG_INFO, "%s: swept %s", store->path, name);
    } else {
        kvt_log(&store->env, KVT_LOG_WARN, "%s: %s is in the way and cannot be removed: %s", store->path, name,
                strerror(errno));
        store->stats.foreign_bytes += (uint64_t)status->st_blocks * 512;
        store->stats.foreign_files++;
    }
}

/* Walks the directory as du does. Foreign files are counted; with slots > 0 ours are swept instead. */
static enum kvt_status scan_directory(struct kvt_store *store, uint32_t slots, struct kvt_store_error error)
{
    char *const paths[] = { store->path, NULL };
    FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
    if (!walk)
        return kvt_store_refuse(error, KVT_IO, "path is %s: it cannot be listed: %s", store->path, strerror(errno));
    for (FTSENT *entry = fts_read(walk); entry; entry = fts_read(walk)) {
        if (entry->fts_level == 0 || entry->fts_info == FTS_DP || !entry->fts_statp) continue;
        if (entry->fts_level == 1 && is_ours(entry->fts_name)) {
            if (slots > 0 || has_prefix(entry->fts_name, ".kvtier-"))
                sweep(store, entry->fts_name, entry->fts_statp, slots);
            continue;
        }
        if (slots > 0) continue;
        store->stats.foreign_bytes += (uint64_t)entry->fts_statp->st_blocks * 512;
        store->stats.foreign_files++;
        kvt_log(&store->env, KVT_LOG_WARN, "%s: %s is not ours: left alone, and counted", store->path, entry->fts_path);
    }
    (void)fts_close(walk);
    return KVT_OK;
}

enum kvt_status kvt_store_directory_open(struct kvt_store *store, struct kvt_store_error error)
{
    for (size_t n = strlen(store->path); n > 1 && store->path[n - 1] == '/'; n--) store->path[n - 1] = '\0';
    KVT_TRY(check_path(store->path, error));
    KVT_TRY(make_directory(store, error));
    KVT_TRY(take_lock(store, error));
    store->side_bytes = kvt_store_sides_count(store);
    return scan_directory(store, 0, error);
}

void kvt_store_directory_close(struct kvt_store *store)
{
    if (store->lock_file >= 0) (void)close(store->lock_file);
    if (store->directory >= 0) (void)close(store->directory);
}

void kvt_store_directory_undo(struct kvt_store *store)
{
    if (!store->is_directory_made) return;
    char *const paths[] = { store->path, NULL };
    FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
    for (FTSENT *entry = walk ? fts_read(walk) : NULL; entry; entry = fts_read(walk)) {
        if (entry->fts_level == 1 && is_ours(entry->fts_name)) (void)unlinkat(store->directory, entry->fts_name, 0);
    }
    if (walk) (void)fts_close(walk);
    (void)rmdir(store->path);
}

/* ---- Geometry ---------------------------------------------------------------------------------------------------- */

/*
 * What is not in segments: superblock, lock, the directory itself, the probe of the block I/O, side files (the one that
 * may be saved, and its predecessor beside it, and those of others), foreign files.
 */
static uint64_t fixed_bytes(const struct kvt_store *store, uint64_t slots)
{
    struct stat status;
    uint64_t directory = KVT_STORE_BLOCK_BYTES;
    if (fstat(store->directory, &status) == 0) directory = kvt_max_u64(directory, (uint64_t)status.st_blocks * 512);
    directory = kvt_max_u64(directory, kvt_align_up(slots * 32, KVT_STORE_BLOCK_BYTES));
    const uint64_t side = store->side_bytes + 2 * kvt_align_up(store->side_bytes_max, KVT_STORE_BLOCK_BYTES);
    return directory + 2 * KVT_STORE_BLOCK_BYTES + 16 * KVT_KIB + side + store->stats.foreign_bytes;
}

static void count_fixed(struct kvt_store *store)
{
    store->allocated_fixed = fixed_bytes(
        store, kvt_min_u64(store->capacity_bytes / KVT_STORE_SEGMENT_BYTES_MAX, KVT_STORE_SEGMENTS_MAX));
}

static void set_geometry(struct kvt_store *store, uint64_t segment_bytes)
{
    store->segment_bytes = segment_bytes;
    store->segments_max = kvt_store_segments_that_fit(kvt_store_usable_bytes(store), segment_bytes);
    if (KVT_PLANTED(NO_CAP)) store->segments_max++;
    store->entries_max = kvt_store_segment_entries(segment_bytes);
}

static uint64_t length_max(uint64_t segment_bytes)
{
    return segment_bytes - kvt_store_segment_meta_bytes(1) - KVT_STORE_BLOCK_BYTES - sizeof(struct kvt_record_header);
}

static enum kvt_status new_geometry(struct kvt_store *store, uint32_t record_bytes_max, struct kvt_store_error error)
{
    const uint64_t least = store->allocated_fixed
        + KVT_STORE_SEGMENTS_MIN * (KVT_STORE_SEGMENT_BYTES_MIN + KVT_STORE_FILE_SLACK);
    if (store->capacity_bytes < least)
        return kvt_store_refuse(error, KVT_INVAL,
                                "capacity is %llu bytes: at least %llu are needed, for 4 segments and what else "
                                "lies in the directory",
                                (unsigned long long)store->capacity_bytes, (unsigned long long)least);
    set_geometry(store,
                 kvt_store_choose_segment_bytes(kvt_store_usable_bytes(store), record_bytes_max, store->alignment));
    if (store->segments_max < KVT_STORE_SEGMENTS_MIN || record_bytes_max > length_max(store->segment_bytes))
        return kvt_store_refuse(error, KVT_INVAL,
                                "capacity is %llu bytes: it must hold 4 segments with a record of %u bytes each",
                                (unsigned long long)store->capacity_bytes, record_bytes_max);
    store->segment_slots = kvt_max_u32(store->segment_slots, store->segments_max);
    return KVT_OK;
}

/* ---- Superblock -------------------------------------------------------------------------------------------------- */

void kvt_store_superblock_fill(const struct kvt_store *store, uint64_t sequence, uint64_t epoch, uint8_t *block)
{
    struct kvt_superblock super = { .magic = KVT_SUPERBLOCK_MAGIC,
                                    .version = KVT_STORE_FORMAT_VERSION,
                                    .alignment = store->alignment,
                                    .store_id = store->store_id,
                                    .sequence = sequence,
                                    .epoch = epoch,
                                    .segment_bytes = store->segment_bytes,
                                    .capacity_bytes = store->capacity_bytes,
                                    .segment_slots = store->segment_slots };
    super.crc = kvt_crc32c(0, &super, offsetof(struct kvt_superblock, crc));
    memset(block, 0, KVT_STORE_BLOCK_BYTES);
    memcpy(block, &super, sizeof super);
    if (!store->seal) return;
    struct kvt_superblock_key key = { .magic = KVT_SUPERBLOCK_KEY_MAGIC };
    kvt_seal_id(store->seal, store->store_id, key.id);
    key.crc = kvt_crc32c(0, &key, offsetof(struct kvt_superblock_key, crc));
    memcpy(block + KVT_SUPERBLOCK_KEY_AT, &key, sizeof key);
}

static bool super_is_valid(const struct kvt_superblock *super)
{
    return super->magic == KVT_SUPERBLOCK_MAGIC
        && super->crc == kvt_crc32c(0, super, offsetof(struct kvt_superblock, crc))
        && super->version == KVT_STORE_FORMAT_VERSION && kvt_is_power_of_two(super->alignment)
        && super->alignment >= 512 && super->alignment <= KVT_STORE_BLOCK_BYTES
        && kvt_is_aligned(super->segment_bytes, KVT_STORE_BLOCK_BYTES)
        && super->segment_bytes >= KVT_STORE_SEGMENT_BYTES_MIN && super->segment_bytes <= UINT32_MAX
        && super->epoch <= KVT_STORE_SERIAL_MAX && super->sequence <= KVT_STORE_SERIAL_MAX / 2 && super->segment_slots >= KVT_STORE_SEGMENTS_MIN
        && super->segment_slots <= KVT_STORE_SEGMENTS_MAX;
}

/* One copy is enough: the other one's block may be bad, and that is what there are two for. */
static enum kvt_status supers_write(struct kvt_store *store, struct kvt_store_error error)
{
    int written = 0, failed = 0;
    for (int copy = 0; copy < 2; copy++) {
        store->super_sequence++;
        kvt_store_superblock_fill(store, store->super_sequence, store->epoch, store->super_buffer);
        int os_errno = kvt_store_io_now(store, KVT_IO_WRITE, store->super_file,
                                        (store->super_sequence & 1) * KVT_STORE_BLOCK_BYTES, store->super_buffer,
                                        KVT_STORE_BLOCK_BYTES);
        if (!os_errno) os_errno = kvt_store_io_now(store, KVT_IO_SYNC, store->super_file, 0, NULL, 0);
        written += os_errno == 0;
        if (os_errno) failed = os_errno;
        if (os_errno == ETIME) break; /* the op still has the buffer */
    }
    if (written == 0 || failed == ETIME)
        return kvt_store_refuse(error, KVT_IO, "path is %s: its superblock cannot be written: %s", store->path,
                                strerror(failed));
    if (failed)
        kvt_log(&store->env, KVT_LOG_WARN, "%s: one copy of the superblock cannot be written: %s", store->path,
                strerror(failed));
    return KVT_OK;
}

/*
 * Finds the newest valid copy. *ret_copies: how many were valid and of one epoch. IO: it is there and cannot be read.
 */
static enum kvt_status super_read(struct kvt_store *store, struct kvt_superblock *ret_super, int *ret_copies,
                                  struct kvt_store_error error)
{
    int copies = 0, failed = 0;
    struct kvt_superblock best = { 0 };
    for (uint64_t copy = 0; copy < 2; copy++) {
        const int os_errno = kvt_store_io_now(store, KVT_IO_READ, store->super_file, copy * KVT_STORE_BLOCK_BYTES,
                                              store->super_buffer, KVT_STORE_BLOCK_BYTES);
        struct kvt_superblock super;
        memcpy(&super, store->super_buffer, sizeof super);
        if (os_errno == ETIME) failed = os_errno;
        if (os_errno || !super_is_valid(&super)) continue;
        copies = copies > 0 && super.epoch != best.epoch ? 1 : copies + 1;
        if (super.sequence <= best.sequence) continue;
        best = super;
        struct kvt_superblock_key key;
        memcpy(&key, store->super_buffer + KVT_SUPERBLOCK_KEY_AT, sizeof key);
        const bool is_keyed = key.magic == KVT_SUPERBLOCK_KEY_MAGIC
            && key.crc == kvt_crc32c(0, &key, offsetof(struct kvt_superblock_key, crc));
        memset(store->key_id_found, 0, sizeof store->key_id_found);
        if (is_keyed) memcpy(store->key_id_found, key.id, sizeof store->key_id_found);
    }
    if (copies == 0 && failed)
        return kvt_store_refuse(error, KVT_IO, "path is %s: its superblock cannot be read: %s", store->path,
                                strerror(failed));
    *ret_super = best;
    *ret_copies = copies;
    return KVT_OK;
}

uint64_t kvt_store_wall_s(const struct kvt_store *store)
{
    struct timespec now;
    if (store->env.clock_user || store->env.is_single_threaded) return kvt_env_now_ns(&store->env) / 1000000000u;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec;
}

/* A new, empty store: with a new id nothing that lies in the directory is a record of it. */
static enum kvt_status format(struct kvt_store *store, uint32_t record_bytes_max, struct kvt_store_error error)
{
    KVT_TRY(new_geometry(store, record_bytes_max, error));
    for (uint32_t i = 0; i < store->segment_slots; i++) {
        char name[24];
        int os_errno;
        kvt_segment_name(i, name);
        if (store->io->ops->remove_file(store->io, name, &os_errno) != KVT_OK && os_errno != ENOENT)
            return kvt_store_refuse(error, KVT_IO, "path is %s: %s cannot be removed: %s", store->path, name,
                                    strerror(os_errno));
    }
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t drawn = store->env.clock_user || store->env.is_single_threaded
        ? kvt_env_now_ns(&store->env)
        : (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + (uint64_t)getpid();
    store->store_id = kvt_mix64(store->store_id ^ kvt_mix64(store->env.seed ^ kvt_mix64(drawn)));
    store->epoch++;
    store->next_epoch = store->epoch + 1;
    int os_errno;
    const struct kvt_block_io_ops *ops = store->io->ops;
    if (ops->allocate(store->io, store->super_file, 2 * KVT_STORE_BLOCK_BYTES, &os_errno) != KVT_OK)
        return kvt_store_refuse(error, KVT_IO, "path is %s: its superblock cannot be allocated: %s", store->path,
                                strerror(os_errno));
    KVT_TRY(supers_write(store, error));
    if (ops->sync_directory(store->io, &os_errno) != KVT_OK)
        return kvt_store_refuse(error, KVT_IO, "path is %s: it cannot be synced: %s", store->path, strerror(os_errno));
    return KVT_OK;
}

/* Takes over what the superblock says. Returns why that cannot be, or NULL. */
static const char *super_adopt(struct kvt_store *store, const struct kvt_superblock *super, uint32_t record_bytes_max)
{
    const uint32_t io_alignment = store->alignment;
    store->alignment = super->alignment;
    store->store_id = super->store_id;
    store->epoch = super->epoch;
    store->super_sequence = super->sequence;
    store->segment_slots = super->segment_slots;
    if (store->is_existing) {
        store->capacity_bytes = super->capacity_bytes;
        count_fixed(store);
    }
    set_geometry(store, super->segment_bytes);
    uint8_t key_id[KVT_SEAL_ID_BYTES];
    kvt_seal_id(store->seal, store->store_id, key_id);
    const char *why = NULL;
    if (memcmp(key_id, store->key_id_found, sizeof key_id) != 0)
        why = "its records are under another key, or under none";
    else if (super->alignment < io_alignment) why = "the device wants a larger alignment";
    else if (store->segments_max < KVT_STORE_SEGMENTS_MIN) why = "its segments are too large for the capacity";
    else if (record_bytes_max > length_max(super->segment_bytes)) why = "its segments are too small for the records";
    if (why) store->alignment = io_alignment;
    return why;
}

static enum kvt_status super_open(struct kvt_store *store, uint32_t record_bytes_max, bool *ret_is_new,
                                  struct kvt_store_error error)
{
    const struct kvt_block_io_ops *ops = store->io->ops;
    int os_errno, copies = 0;
    struct kvt_superblock super = { 0 };
    if (ops->open_file(store->io, SUPER_NAME, false, &store->super_file, &os_errno) == KVT_OK) {
        KVT_TRY(super_read(store, &super, &copies, error));
    } else if (store->is_existing) {
        store->super_file = -1;
        return kvt_store_refuse(error, KVT_INVAL, "path is %s: there is no store", store->path);
    } else if (os_errno != ENOENT
               || ops->open_file(store->io, SUPER_NAME, true, &store->super_file, &os_errno) != KVT_OK) {
        store->super_file = -1;
        return kvt_store_refuse(error, KVT_IO, "path is %s: its superblock cannot be opened: %s", store->path,
                                strerror(os_errno));
    }
    const char *why = copies > 0 ? super_adopt(store, &super, record_bytes_max) : NULL;
    *ret_is_new = copies == 0 || why != NULL;
    if (*ret_is_new) {
        if (store->is_existing)
            return kvt_store_refuse(error, KVT_CORRUPT, "path is %s: %s", store->path,
                                    why ? why : "its superblock is damaged");
        if (why) kvt_log(&store->env, KVT_LOG_WARN, "%s: starts empty: %s", store->path, why);
        return format(store, record_bytes_max, error);
    }
    const bool has_grown = store->segments_max > store->segment_slots;
    store->segment_slots = kvt_max_u32(store->segment_slots, store->segments_max);
    /* A tool that only looks writes nothing that is not broken. */
    return !store->is_existing || copies < 2 || has_grown ? supers_write(store, error) : KVT_OK;
}

/* ---- Segments found at open -------------------------------------------------------------------------------------- */

struct found_segment {
    uint32_t index;
    bool is_summarised;
    struct kvt_segment_footer footer;
};

static uint8_t *scan_buffer(const struct kvt_store *store) { return store->extents[0].buffer; }
static uint32_t scan_buffer_bytes(const struct kvt_store *store) { return store->extent_count * store->extent_bytes; }

/* Reads what there is of the range; returns how much. */
static uint32_t read_range(struct kvt_store *store, int file, uint64_t offset, void *buffer, uint32_t size)
{
    const int os_errno = kvt_store_io_now(store, KVT_IO_READ, file, offset, buffer, size);
    if (os_errno == 0) return size;
    return os_errno == ETIME ? 0 : store->header_io.done_bytes;
}

/*
 * blocks: the segment's first and its last one. True: it holds records of this store and epoch. The footer counts when
 * the header was lost.
 */
static bool classify(struct kvt_store *store, uint32_t index, const uint8_t *blocks, struct found_segment *ret_found)
{
    struct kvt_segment *segment = &store->segments[index];
    struct kvt_segment_header header;
    struct kvt_segment_footer footer;
    memcpy(&header, blocks, sizeof header);
    memcpy(&footer, blocks + KVT_STORE_BLOCK_BYTES, sizeof footer);
    const bool has_header = header.magic == KVT_SEGMENT_MAGIC && header.version == KVT_STORE_FORMAT_VERSION
        && header.crc == kvt_crc32c(0, &header, offsetof(struct kvt_segment_header, crc))
        && header.store_id == store->store_id && header.index == index && header.sequence <= KVT_STORE_SERIAL_MAX;
    bool has_footer = footer.magic == KVT_FOOTER_MAGIC && footer.version == KVT_STORE_FORMAT_VERSION
        && footer.crc == kvt_crc32c(0, &footer, offsetof(struct kvt_segment_footer, crc))
        && footer.store_id == store->store_id && footer.index == index && footer.sequence <= KVT_STORE_SERIAL_MAX
        && footer.entry_count <= store->entries_max;
    if (has_header && header.sequence >= store->segment_sequence)
        store->has_day_before = kvt_wear_note_read(blocks, header.sequence, kvt_store_wall_s(store),
                                                   &store->day_before_bytes);
    if (has_header) store->segment_sequence = kvt_max_u64(store->segment_sequence, header.sequence);
    if (has_footer) store->segment_sequence = kvt_max_u64(store->segment_sequence, footer.sequence);
    if (has_header && has_footer && footer.sequence < header.sequence) has_footer = false; /* of an earlier use */
    if (!has_header && !has_footer) return false;
    segment->sequence = has_footer ? footer.sequence : header.sequence;
    segment->epoch = has_footer ? footer.epoch : header.epoch;
    segment->is_findable = true;
    *ret_found = (struct found_segment){ .index = index, .is_summarised = has_footer, .footer = footer };
    return segment->epoch == store->epoch;
}

static bool find_file(struct kvt_store *store, uint32_t index)
{
    struct kvt_segment *segment = &store->segments[index];
    char name[24];
    int os_errno;
    kvt_segment_name(index, name);
    const bool is_open = store->io->ops->open_file(store->io, name, false, &segment->file, &os_errno) == KVT_OK;
    if (!is_open && os_errno == ENOENT) return false;
    struct stat status;
    segment->allocated_bytes = store->segment_bytes;
    if (fstatat(store->directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0)
        segment->allocated_bytes = (uint64_t)status.st_blocks * 512;
    store->allocated_bytes += segment->allocated_bytes; /* also of one that cannot be opened: it takes its space */
    if (!is_open) return false;
    segment->state = KVT_SEGMENT_FREE;
    store->file_count++;
    store->free_count++;
    return true;
}

static void start_scan(struct kvt_store *store, uint32_t i, int file, uint64_t offset, uint8_t *buffer, uint32_t size)
{
    memset(buffer, 0, size); /* what is not read says nothing */
    kvt_store_io_start(store, &store->scan_io[i], KVT_IO_READ, file, offset, buffer, size, true, kvt_store_io_nothing,
                       NULL);
}

/* Finds the files from *next on, as many as are read at once, and what they hold. Returns how many hold records. */
static uint32_t classify_some(struct kvt_store *store, uint32_t *next, struct found_segment *ret_found)
{
    enum { FILES = KVT_STORE_SCANS_MAX / 2 };
    uint32_t indexes[FILES], files = 0, count = 0;
    for (; *next < store->segment_slots && files < FILES; (*next)++) {
        if (!find_file(store, *next)) continue;
        const int file = store->segments[*next].file;
        uint8_t *blocks = scan_buffer(store) + 2 * (uint64_t)files * KVT_STORE_BLOCK_BYTES;
        start_scan(store, 2 * files, file, 0, blocks, KVT_STORE_BLOCK_BYTES);
        start_scan(store, 2 * files + 1, file, store->segment_bytes - KVT_STORE_BLOCK_BYTES,
                   blocks + KVT_STORE_BLOCK_BYTES, KVT_STORE_BLOCK_BYTES);
        indexes[files++] = *next;
    }
    if (!kvt_store_io_finish(store, store->scan_io, 2 * files)) {
        store->is_silent = true;
        return 0;
    }
    for (uint32_t i = 0; i < files; i++)
        count += classify(store, indexes[i], scan_buffer(store) + 2 * (uint64_t)i * KVT_STORE_BLOCK_BYTES,
                          &ret_found[count]);
    return count;
}

static int by_sequence(const void *a, const void *b, void *user)
{
    const struct kvt_store *store = user;
    const uint64_t x = store->segments[((const struct found_segment *)a)->index].sequence;
    const uint64_t y = store->segments[((const struct found_segment *)b)->index].sequence;
    return x < y ? -1 : x > y;
}

/* Puts what a summary or a walk found into the index; the higher record sequence wins, then the younger segment. */
static enum kvt_status recover_entry(struct kvt_store *store, uint32_t index, const struct kvt_summary_entry *listed)
{
    if (listed->sequence > KVT_STORE_SERIAL_MAX) {
        store->stats.recovered_bad++;
        return KVT_OK;
    }
    store->record_sequence = kvt_max_u64(store->record_sequence, listed->sequence);
    if (listed->flags & KVT_RECORD_PRIVATE) {
        store->stats.recovered_private++;
        return KVT_OK;
    }
    const uint64_t offset = (uint64_t)listed->offset_units * KVT_STORE_UNIT_BYTES;
    const uint64_t stored = kvt_store_stored_bytes(listed->length, store->alignment);
    if (listed->length == 0 || offset < KVT_STORE_BLOCK_BYTES || !kvt_is_aligned(offset, store->alignment)
        || offset + stored > store->segment_bytes || listed->form > KVT_STORE_FORM_MAX) {
        store->stats.recovered_bad++;
        return KVT_OK;
    }
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, &listed->name);
    if (entry) {
        if (entry->sequence > listed->sequence) return KVT_OK;
        kvt_store_entry_count(store, entry, -1);
    } else {
        KVT_TRY(kvt_store_index_insert(&store->index, &listed->name, &entry));
    }
    entry->generation = listed->generation;
    entry->sequence = listed->sequence & (((uint64_t)1 << 48) - 1);
    entry->segment = index & 0xffffu;
    entry->offset_units = listed->offset_units;
    entry->length = listed->length;
    entry->tokens = listed->tokens;
    entry->form = listed->form & 3u;
    kvt_store_entry_count(store, entry, 1);
    return KVT_OK;
}

/*
 * Summaries that are being read while an earlier one is taken over: of found[first .. next), in slots of the scan
 * buffer.
 */
struct ahead {
    uint32_t first, next;
};

static uint64_t summary_padded(const struct found_segment *found)
{
    return kvt_align_up((uint64_t)found->footer.entry_count * sizeof(struct kvt_summary_entry), KVT_STORE_BLOCK_BYTES);
}

static bool summary_is_placed(const struct kvt_store *store, const struct found_segment *found)
{
    return found->footer.summary_offset == store->segment_bytes - KVT_STORE_BLOCK_BYTES - summary_padded(found);
}

/* Has the reads of the next ones begun. */
static void ahead_start(struct kvt_store *store, struct ahead *ahead, const struct found_segment *found, uint32_t count,
                        uint32_t slots, uint64_t slot_bytes)
{
    for (; ahead->next < count && ahead->next - ahead->first < slots; ahead->next++) {
        const struct found_segment *next = &found[ahead->next];
        const uint32_t slot = ahead->next % slots;
        if (!next->is_summarised || !summary_is_placed(store, next) || next->footer.entry_count == 0) {
            store->scan_io[slot].error = EINVAL; /* nothing to read; who asks reads it the plain way, or walks */
            continue;
        }
        kvt_store_io_start(store, &store->scan_io[slot], KVT_IO_READ, store->segments[next->index].file,
                           next->footer.summary_offset, scan_buffer(store) + slot * slot_bytes,
                           (uint32_t)summary_padded(next), true, kvt_store_io_nothing, NULL);
    }
    kvt_store_io_pump(store);
}

/* Takes over the summary of found[f] from what was read ahead. False: not to be had like that. */
static bool summary_ahead(struct kvt_store *store, struct ahead *ahead, const struct found_segment *found, uint32_t f,
                          uint32_t count, enum kvt_status *ret_status)
{
    const uint64_t slot_bytes = kvt_align_up((uint64_t)store->entries_max * sizeof(struct kvt_summary_entry),
                                             KVT_STORE_BLOCK_BYTES);
    const uint32_t slots = (uint32_t)kvt_min_u64(scan_buffer_bytes(store) / slot_bytes, KVT_STORE_SCANS_MAX);
    if (slots < 2 || store->is_silent) return false;
    ahead->first = f;
    if (ahead->next < f) ahead->next = f;
    ahead_start(store, ahead, found, count, slots, slot_bytes);
    const uint32_t slot = f % slots;
    const struct kvt_store_io *io = &store->scan_io[slot];
    const struct kvt_summary_entry *entries = (const void *)(scan_buffer(store) + slot * slot_bytes);
    if (!kvt_store_io_finish(store, io, 1)) store->is_silent = true;
    const bool is_good = !io->is_busy && io->error == 0
        && kvt_crc32c(0, entries, (uint64_t)found[f].footer.entry_count * sizeof *entries)
            == found[f].footer.summary_crc;
    *ret_status = KVT_OK;
    for (uint32_t i = 0; is_good && i < found[f].footer.entry_count && *ret_status == KVT_OK; i++)
        *ret_status = recover_entry(store, found[f].index, &entries[i]);
    return is_good;
}

/* The plain ways use the buffer: nothing is in flight into it then, and what was read ahead is read again. */
static void ahead_stop(struct kvt_store *store, struct ahead *ahead)
{
    if (!kvt_store_io_finish(store, store->scan_io, KVT_STORE_SCANS_MAX)) store->is_silent = true;
    ahead->next = ahead->first;
}

/* False: the summary does not hold; the segment must be walked. */
static bool read_summary(struct kvt_store *store, const struct found_segment *found, enum kvt_status *ret_status)
{
    struct kvt_summary_entry *entries = store->summaries[0];
    const uint64_t bytes = (uint64_t)found->footer.entry_count * sizeof *entries;
    const uint64_t padded = kvt_align_up(bytes, KVT_STORE_BLOCK_BYTES);
    *ret_status = KVT_OK;
    if (found->footer.summary_offset != store->segment_bytes - KVT_STORE_BLOCK_BYTES - padded) return false;
    for (uint64_t at = 0; at < padded;) {
        const uint32_t piece = (uint32_t)kvt_min_u64(padded - at, scan_buffer_bytes(store));
        if (read_range(store, store->segments[found->index].file, found->footer.summary_offset + at, scan_buffer(store),
                       piece)
            != piece)
            return false;
        if (at < bytes) memcpy((uint8_t *)entries + at, scan_buffer(store), kvt_min_u64(piece, bytes - at));
        at += piece;
    }
    if (kvt_crc32c(0, entries, bytes) != found->footer.summary_crc) return false;
    for (uint32_t i = 0; i < found->footer.entry_count && *ret_status == KVT_OK; i++)
        *ret_status = recover_entry(store, found->index, &entries[i]);
    return true;
}

/* A window on a segment file, for walking it. */
struct walk {
    struct kvt_store *store;
    int file;
    uint64_t start;
    uint32_t size;
};

/* The bytes from offset on, as many as are at hand; NULL at the end of what can be read. */
static const uint8_t *walk_at(struct walk *walk, uint64_t offset, uint32_t *ret_size)
{
    struct kvt_store *store = walk->store;
    if (offset < walk->start || offset >= walk->start + walk->size) {
        walk->start = offset & ~(uint64_t)(store->alignment - 1);
        const uint32_t wanted = (uint32_t)kvt_min_u64(scan_buffer_bytes(store), store->segment_bytes - walk->start);
        walk->size = read_range(store, walk->file, walk->start, scan_buffer(store), wanted);
        if (offset >= walk->start + walk->size) return NULL;
    }
    *ret_size = (uint32_t)(walk->start + walk->size - offset);
    return scan_buffer(store) + (offset - walk->start);
}

static bool walk_payload_is_good(struct walk *walk, const struct kvt_record_header *header)
{
    uint32_t crc = 0;
    uint64_t at = header->offset + kvt_store_payload_at(header->length, walk->store->alignment);
    for (uint32_t left = header->length; left > 0;) {
        uint32_t size;
        const uint8_t *bytes = walk_at(walk, at, &size);
        if (!bytes) return false;
        size = kvt_min_u32(size, left);
        crc = kvt_crc32c(crc, bytes, size);
        at += size;
        left -= size;
    }
    return crc == header->payload_crc;
}

/* Finds the records of a segment without a summary, and lists them in summaries[1]. */
static enum kvt_status walk_segment(struct kvt_store *store, uint32_t index)
{
    struct kvt_segment *segment = &store->segments[index];
    struct walk walk = { .store = store, .file = segment->file };
    segment->entry_count = 0;
    segment->data_end = KVT_STORE_BLOCK_BYTES;
    for (uint64_t offset = KVT_STORE_BLOCK_BYTES; offset + sizeof(struct kvt_record_header) <= store->segment_bytes;) {
        uint32_t size;
        const uint8_t *bytes = walk_at(&walk, offset, &size);
        struct kvt_record_header header;
        if (!bytes || size < sizeof header) break;
        memcpy(&header, bytes, sizeof header);
        if (!kvt_record_header_is_valid(store, &header, store->epoch, segment->sequence, offset)) {
            offset += store->alignment;
            continue;
        }
        offset += header.stored;
        segment->data_end = offset;
        if (!walk_payload_is_good(&walk, &header) || segment->entry_count == store->entries_max) {
            store->stats.recovered_bad++; /* a torn tail */
            continue;
        }
        const struct kvt_summary_entry listed = { .name = header.name,
                                                  .generation = header.generation,
                                                  .sequence = header.sequence,
                                                  .offset_units = (uint32_t)(header.offset / KVT_STORE_UNIT_BYTES),
                                                  .length = header.length,
                                                  .tokens = (uint16_t)header.tokens,
                                                  .form = (uint8_t)header.form,
                                                  .flags = (uint8_t)header.flags };
        if (!(header.flags & KVT_RECORD_PRIVATE)) store->summaries[1][segment->entry_count++] = listed;
        KVT_TRY(recover_entry(store, index, &listed));
    }
    return KVT_OK;
}

/* The youngest segment was open when the store was last used: it goes on being filled. */
static void resume_segment(struct kvt_store *store, uint32_t index)
{
    struct kvt_segment *segment = &store->segments[index];
    segment->state = KVT_SEGMENT_OPEN;
    segment->summary = 1;
    store->is_summary_taken[1] = true;
    store->open_segment = index;
}

/* Files that were cut short get their space back, so that no write to them can meet a full disk. */
static void restore_allocation(struct kvt_store *store, uint32_t index)
{
    struct kvt_segment *segment = &store->segments[index];
    if (segment->allocated_bytes >= store->segment_bytes) return;
    int os_errno;
    if (store->io->ops->allocate(store->io, segment->file, store->segment_bytes, &os_errno) != KVT_OK) return;
    store->allocated_bytes += store->segment_bytes - segment->allocated_bytes;
    segment->allocated_bytes = store->segment_bytes;
}

/* A lowered capacity: the oldest leave before anything else happens. */
static uint32_t evict_to_capacity(struct kvt_store *store, struct found_segment *found, uint32_t count)
{
    for (uint32_t i = 0; i < store->segment_slots && store->file_count > store->segments_max; i++) {
        bool is_found = false;
        for (uint32_t f = 0; f < count; f++) is_found |= found[f].index == i;
        if (store->segments[i].state == KVT_SEGMENT_FREE && !is_found) kvt_segment_remove(store, i);
    }
    uint32_t first = 0;
    while (store->file_count > store->segments_max) kvt_segment_remove(store, found[first++].index);
    return first;
}

static enum kvt_status find_segments(struct kvt_store *store, struct found_segment *found)
{
    uint32_t count = 0;
    for (uint32_t next = 0; next < store->segment_slots && !store->is_silent;)
        count += classify_some(store, &next, found + count);
    qsort_r(found, count, sizeof *found, by_sequence, store);
    const uint32_t first = evict_to_capacity(store, found, count);
    uint64_t records = 0;
    for (uint32_t f = first; f < count; f++) records += found[f].is_summarised ? found[f].footer.entry_count : 0;
    KVT_TRY(kvt_store_index_reserve(&store->index, records));
    struct ahead ahead = { first, first };
    for (uint32_t i = 0; i < store->segment_slots; i++)
        if (store->segments[i].state == KVT_SEGMENT_FREE) restore_allocation(store, i);
    for (uint32_t f = first; f < count; f++) {
        struct kvt_segment *segment = &store->segments[found[f].index];
        enum kvt_status status;
        segment->state = KVT_SEGMENT_CLOSED;
        segment->is_dirty = true; /* a process that died wrote it, perhaps, and nobody synced it */
        store->free_count--;
        if (found[f].is_summarised && summary_ahead(store, &ahead, found, f, count, &status)) {
            KVT_TRY(status);
            continue;
        }
        ahead_stop(store, &ahead);
        if (found[f].is_summarised && read_summary(store, &found[f], &status)) {
            KVT_TRY(status);
            continue;
        }
        KVT_TRY(walk_segment(store, found[f].index));
        if (f == count - 1 && !found[f].is_summarised) resume_segment(store, found[f].index);
    }
    /* The note was made when the youngest segment was begun: what it holds was written after it. */
    if (store->has_day_before) {
        const struct kvt_segment *open = store->open_segment == KVT_STORE_NONE ? NULL
                                                                               : &store->segments[store->open_segment];
        store->wear.seen_bytes -= store->day_before_bytes + (open ? open->data_end : store->segment_bytes);
    }
    kvt_store_serials_raise(store);
    store->stats.recovered_records = store->index.live;
    return KVT_OK;
}

static enum kvt_status take_tables(struct kvt_store *store)
{
    store->segments = kvt_alloc(store->segment_slots, sizeof *store->segments);
    store->reclaim.kept = kvt_table_map((uint64_t)store->entries_max * sizeof *store->reclaim.kept);
    for (int i = 0; i < 2; i++)
        store->summaries[i] = kvt_table_map((uint64_t)store->entries_max * sizeof *store->summaries[i]);
    if (!store->segments || !store->reclaim.kept || !store->summaries[0] || !store->summaries[1]) return KVT_NOMEM;
    for (uint32_t i = 0; i < store->segment_slots; i++) store->segments[i].summary = KVT_STORE_NONE;
    return KVT_OK;
}

enum kvt_status kvt_store_recover(struct kvt_store *store, uint32_t record_bytes_max, struct kvt_store_error error)
{
    bool is_new = true;
    count_fixed(store);
    KVT_TRY(super_open(store, record_bytes_max, &is_new, error));
    const uint64_t foreign_before = store->stats.foreign_bytes;
    KVT_TRY(scan_directory(store, store->segment_slots, error));
    store->allocated_fixed += store->stats.foreign_bytes - foreign_before;
    KVT_TRY(take_tables(store));
    if (!is_new) {
        struct found_segment *found = kvt_alloc(store->segment_slots, sizeof *found);
        if (!found) return KVT_NOMEM;
        const enum kvt_status status = find_segments(store, found);
        kvt_free(found);
        KVT_TRY(status);
    }
    if (store->header_io.is_busy || store->is_silent)
        return kvt_store_refuse(error, KVT_IO, "path is %s: the disk does not answer", store->path);
    store->stats.allocated_bytes = store->stats.allocated_peak = store->allocated_fixed + store->allocated_bytes;
    store->stats.segments = store->file_count;
    return KVT_OK;
}
