/*
 * io_faulty_disk: the files of the disk in memory: what a read sees, and what a power cut leaves.
 *
 * Each file is kept twice: `current`, what reads see, and `durable`, what is safe. The writes that are in the first and
 * not yet in the second are listed in order; a sync moves them over, a power cut decides about each. Internal to
 * io_faulty.
 */
#ifndef KVT_TESTS_FAKES_IO_FAULTY_DISK_H
#define KVT_TESTS_FAKES_IO_FAULTY_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/rng.h"

struct disk_write {
    struct disk_write *next;
    uint64_t offset, size;
    uint64_t order; /* of its completion; UINT64_MAX: it was in flight when the power went */
    uint8_t bytes[];
};

struct disk_file {
    struct disk_file *next; /* in order of creation */
    char *directory, *name;
    bool is_linked, is_linked_durably; /* has its name now; would have it after a power cut, if nothing unsafe lands */
    uint32_t open_count;
    uint8_t *current, *durable;
    uint64_t capacity;        /* of both */
    uint64_t size, allocated; /* current */
    uint64_t durable_size, durable_allocated;
    struct disk_write *first, *last; /* not yet safe */
    uint64_t order;                  /* of the last write that completed */
};

struct disk {
    struct disk_file *first, *last;
    struct kvt_rng rng;
};

void disk_done(struct disk *disk);

struct disk_file *disk_find(const struct disk *disk, const char *directory, const char *name);
/* A new, empty file with a name that is not safe yet. NULL: out of memory. */
struct disk_file *disk_create(struct disk *disk, const char *directory, const char *name);
/* Frees what has neither a name, nor would get one back, nor is open. */
void disk_sweep(struct disk *disk);
void disk_sync_names(struct disk *disk, const char *directory);
/* Of all files that have a name or are open. */
uint64_t disk_bytes_used(const struct disk *disk);

/* The larger of what is allocated and what is written. */
uint64_t disk_file_extent(const struct disk_file *file);
bool disk_file_allocate(struct disk_file *file, uint64_t size);
/* False: out of memory, nothing written. */
bool disk_file_write(struct disk_file *file, uint64_t offset, const void *bytes, uint64_t size);
/* Only some sectors of it; never all. False: out of memory, maybe something written. */
bool disk_file_write_torn(struct disk_file *file, struct kvt_rng *rng, uint64_t offset, const void *bytes,
                          uint64_t size);
/* A write that the power cut caught under way: seen by nobody, decided about at the restart. */
bool disk_file_write_in_flight(struct disk_file *file, uint64_t offset, const void *bytes, uint64_t size);
/* Writes up to this order, and this size and allocation, are safe. */
void disk_file_sync(struct disk_file *file, uint64_t order, uint64_t size, uint64_t allocated);
/* All that completed is safe. */
void disk_file_settle(struct disk_file *file);
bool disk_file_truncate(struct disk_file *file, uint64_t size);

void disk_power_cycle(struct disk *disk);
void disk_process_restart(struct disk *disk);

#endif
