#include "tests/fakes/io_faulty_disk.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/fakes/io_faulty.h"

#define IN_FLIGHT UINT64_MAX

static void file_free(struct disk_file *file)
{
    while (file->first) {
        struct disk_write *write = file->first;
        file->first = write->next;
        kvt_free(write);
    }
    kvt_free(file->current);
    kvt_free(file->durable);
    kvt_free(file->directory);
    kvt_free(file->name);
    kvt_free(file);
}

void disk_done(struct disk *disk)
{
    while (disk->first) {
        struct disk_file *file = disk->first;
        disk->first = file->next;
        file_free(file);
    }
    disk->last = NULL;
}

struct disk_file *disk_find(const struct disk *disk, const char *directory, const char *name)
{
    for (struct disk_file *file = disk->first; file; file = file->next) {
        if (file->is_linked && strcmp(file->name, name) == 0 && strcmp(file->directory, directory) == 0) return file;
    }
    return NULL;
}

struct disk_file *disk_create(struct disk *disk, const char *directory, const char *name)
{
    struct disk_file *file = kvt_alloc(1, sizeof *file);
    if (!file) return NULL;
    file->directory = kvt_strdup(directory);
    file->name = kvt_strdup(name);
    if (!file->directory || !file->name) {
        file_free(file);
        return NULL;
    }
    file->is_linked = true;
    if (disk->last) disk->last->next = file;
    else disk->first = file;
    disk->last = file;
    return file;
}

void disk_sweep(struct disk *disk)
{
    struct disk_file **link = &disk->first;
    disk->last = NULL;
    while (*link) {
        struct disk_file *file = *link;
        if (file->is_linked || file->is_linked_durably || file->open_count > 0) {
            disk->last = file;
            link = &file->next;
        } else {
            *link = file->next;
            file_free(file);
        }
    }
}

void disk_sync_names(struct disk *disk, const char *directory)
{
    for (struct disk_file *file = disk->first; file; file = file->next) {
        if (strcmp(file->directory, directory) == 0) file->is_linked_durably = file->is_linked;
    }
    disk_sweep(disk);
}

uint64_t disk_file_extent(const struct disk_file *file) { return kvt_max_u64(file->size, file->allocated); }

uint64_t disk_bytes_used(const struct disk *disk)
{
    uint64_t used = 0;
    for (const struct disk_file *file = disk->first; file; file = file->next) {
        if (file->is_linked || file->open_count > 0) used += disk_file_extent(file);
    }
    return used;
}

/* Fresh memory instead of a grown one: its untouched pages cost nothing. */
static bool grow_one(uint8_t **bytes, uint64_t old_capacity, uint64_t capacity)
{
    uint8_t *grown = kvt_alloc(1, capacity);
    if (!grown) return false;
    if (*bytes) memcpy(grown, *bytes, old_capacity);
    kvt_free(*bytes);
    *bytes = grown;
    return true;
}

static bool reserve(struct disk_file *file, uint64_t size)
{
    if (size <= file->capacity) return true;
    const uint64_t capacity = kvt_max_u64(size, file->capacity * 2);
    if (!grow_one(&file->current, file->capacity, capacity) || !grow_one(&file->durable, file->capacity, capacity))
        return false;
    file->capacity = capacity;
    return true;
}

bool disk_file_allocate(struct disk_file *file, uint64_t size)
{
    if (!reserve(file, size)) return false;
    file->allocated = kvt_max_u64(file->allocated, size);
    file->size = kvt_max_u64(file->size, size);
    return true;
}

static bool record(struct disk_file *file, uint64_t offset, const void *bytes, uint64_t size, uint64_t order)
{
    if (!reserve(file, offset + size)) return false;
    struct disk_write *write = kvt_alloc(1, sizeof *write + size);
    if (!write) return false;
    *write = (struct disk_write){ .offset = offset, .size = size, .order = order };
    memcpy(write->bytes, bytes, size);
    if (file->last) file->last->next = write;
    else file->first = write;
    file->last = write;
    return true;
}

bool disk_file_write(struct disk_file *file, uint64_t offset, const void *bytes, uint64_t size)
{
    if (size == 0) return true;
    if (!record(file, offset, bytes, size, file->order + 1)) return false;
    file->order++;
    memcpy(file->current + offset, bytes, size);
    file->size = kvt_max_u64(file->size, offset + size);
    return true;
}

bool disk_file_write_torn(struct disk_file *file, struct kvt_rng *rng, uint64_t offset, const void *bytes,
                          uint64_t size)
{
    const uint64_t sector_count = (size + IO_FAULTY_SECTOR - 1) / IO_FAULTY_SECTOR;
    const uint64_t lost = kvt_rng_below(rng, sector_count);
    for (uint64_t i = 0; i < sector_count; i++) {
        if (i == lost || kvt_rng_below(rng, 2) == 0) continue;
        const uint64_t start = i * IO_FAULTY_SECTOR;
        if (!disk_file_write(file, offset + start, (const uint8_t *)bytes + start,
                             kvt_min_u64(IO_FAULTY_SECTOR, size - start))) {
            return false;
        }
    }
    return true;
}

bool disk_file_write_in_flight(struct disk_file *file, uint64_t offset, const void *bytes, uint64_t size)
{
    return record(file, offset, bytes, size, IN_FLIGHT);
}

static void land(struct disk_file *file, const struct disk_write *write)
{
    memcpy(file->durable + write->offset, write->bytes, write->size);
    file->durable_size = kvt_max_u64(file->durable_size, write->offset + write->size);
}

void disk_file_sync(struct disk_file *file, uint64_t order, uint64_t size, uint64_t allocated)
{
    struct disk_write **link = &file->first;
    file->last = NULL;
    while (*link) {
        struct disk_write *write = *link;
        if (write->order <= order) {
            land(file, write);
            *link = write->next;
            kvt_free(write);
        } else {
            file->last = write;
            link = &write->next;
        }
    }
    file->durable_size = kvt_max_u64(file->durable_size, size);
    file->durable_allocated = kvt_max_u64(file->durable_allocated, allocated);
}

void disk_file_settle(struct disk_file *file) { disk_file_sync(file, file->order, file->size, file->allocated); }

bool disk_file_truncate(struct disk_file *file, uint64_t size)
{
    if (!reserve(file, size)) return false;
    disk_file_settle(file);
    if (size < file->size) {
        memset(file->current + size, 0, file->size - size);
        memset(file->durable + size, 0, file->size - size);
    }
    file->size = file->durable_size = size;
    file->allocated = kvt_min_u64(file->allocated, size);
    file->durable_allocated = kvt_min_u64(file->durable_allocated, size);
    return true;
}

static void land_some(struct disk_file *file, struct kvt_rng *rng, const struct disk_write *write)
{
    switch (kvt_rng_below(rng, 3)) {
    case 0: return;
    case 1: land(file, write); return;
    default: break;
    }
    for (uint64_t start = 0; start < write->size; start += IO_FAULTY_SECTOR) {
        if (kvt_rng_below(rng, 2) == 0) continue;
        const uint64_t size = kvt_min_u64(IO_FAULTY_SECTOR, write->size - start);
        memcpy(file->durable + write->offset + start, write->bytes + start, size);
        file->durable_size = kvt_max_u64(file->durable_size, write->offset + start + size);
    }
}

static void file_power_cycle(struct disk_file *file, struct kvt_rng *rng)
{
    if (file->allocated > file->durable_allocated && kvt_rng_below(rng, 2) == 0) {
        file->durable_allocated = file->allocated;
        file->durable_size = kvt_max_u64(file->durable_size, file->allocated);
    }
    for (const struct disk_write *write = file->first; write; write = write->next) land_some(file, rng, write);
    while (file->first) {
        struct disk_write *write = file->first;
        memcpy(file->current + write->offset, file->durable + write->offset, write->size);
        file->first = write->next;
        kvt_free(write);
    }
    file->last = NULL;
    file->size = file->durable_size;
    file->allocated = file->durable_allocated;
}

void disk_power_cycle(struct disk *disk)
{
    for (struct disk_file *file = disk->first; file; file = file->next) {
        KVT_ASSERT(file->open_count == 0);
        file_power_cycle(file, &disk->rng);
        if (file->is_linked != file->is_linked_durably && kvt_rng_below(&disk->rng, 2) == 0) {
            file->is_linked_durably = file->is_linked;
        }
        file->is_linked = false;
    }
    /* A name belongs to one file: a newer one that landed means that the removal of the older one did, too. */
    for (struct disk_file *file = disk->first; file; file = file->next) {
        if (!file->is_linked_durably) continue;
        struct disk_file *older = disk_find(disk, file->directory, file->name);
        if (older) older->is_linked = older->is_linked_durably = false;
        file->is_linked = true;
    }
    disk_sweep(disk);
}

static void file_process_restart(struct disk_file *file, struct kvt_rng *rng)
{
    struct disk_write **link = &file->first;
    file->last = NULL;
    while (*link) {
        struct disk_write *write = *link;
        if (write->order == IN_FLIGHT && kvt_rng_below(rng, 2) == 0) {
            *link = write->next;
            kvt_free(write);
            continue;
        }
        if (write->order == IN_FLIGHT) {
            write->order = ++file->order;
            memcpy(file->current + write->offset, write->bytes, write->size);
            file->size = kvt_max_u64(file->size, write->offset + write->size);
        }
        file->last = write;
        link = &write->next;
    }
}

void disk_process_restart(struct disk *disk)
{
    for (struct disk_file *file = disk->first; file; file = file->next) {
        KVT_ASSERT(file->open_count == 0);
        file_process_restart(file, &disk->rng);
    }
    disk_sweep(disk);
}
