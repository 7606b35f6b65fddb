#include "tests/fakes/io_faulty.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/fakes/io_faulty_disk.h"
#include "tiers/block_io_base.h"

#define EXACT_MAX 256u
#define FILES_MAX 1024u
#define PER_MILLION 1000000u

struct exact {
    enum io_faulty_kind kind;
    enum io_faulty_fault fault;
    uint64_t left; /* operations of the kind until it strikes, itself included */
};

struct faulty_io;

struct io_faulty_image {
    struct io_faulty_config config;
    struct disk disk;
    struct kvt_rng rng; /* faults and order; the disk has its own for what a cut leaves */
    uint32_t rates[IO_FAULTY_ANY + 1][IO_FAULTY_COUNT];
    struct exact exact[EXACT_MAX];
    uint32_t exact_count;
    uint64_t cut_left; /* 0: no cut is set */
    bool is_off;
    const char *away; /* a directory that does not answer; NULL: none */
    struct io_faulty_counters counters;
    uint64_t polls;
    struct faulty_io *first_open; /* one per directory may be open at a time */
};

struct flight {
    struct kvt_io_op *op; /* NULL: free */
    uint64_t sequence;    /* of submit, in this instance */
    uint32_t faults;      /* bits of enum io_faulty_fault */
    uint64_t due_poll;
    bool is_held, may_land;                         /* may_land: submitted before the power went */
    uint64_t bytes_hash;                            /* of a write's buffer at submit */
    uint64_t sync_order, sync_size, sync_allocated; /* of a sync: what it makes safe */
};

struct faulty_io {
    struct kvt_block_io io;
    struct io_faulty_image *image;
    struct faulty_io *next_open;
    char *directory;
    uint32_t queue_depth, in_flight;
    uint64_t sequence;
    struct flight *flights;
    struct disk_file *files[FILES_MAX];
};

static struct faulty_io *faulty_of(struct kvt_block_io *io) { return (struct faulty_io *)io; }
static bool has_fault(uint32_t faults, enum io_faulty_fault fault) { return (faults >> fault & 1u) != 0; }

/* ---- the image ---- */

struct io_faulty_image *io_faulty_image_create(const struct io_faulty_config *config)
{
    struct io_faulty_image *image = kvt_alloc(1, sizeof *image);
    if (!image) return NULL;
    image->config = *config;
    if (image->config.alignment == 0) image->config.alignment = KVT_IO_ALIGNMENT_MIN;
    KVT_ASSERT(kvt_is_power_of_two(image->config.alignment));
    KVT_ASSERT(image->config.alignment >= KVT_IO_ALIGNMENT_MIN);
    KVT_ASSERT(image->config.alignment <= KVT_IO_ALIGNMENT_MAX);
    if (image->config.delay_polls_max == 0) image->config.delay_polls_max = 8;
    image->rng.state = config->seed;
    image->disk.rng.state = kvt_mix64(config->seed + 1);
    return image;
}

void io_faulty_image_destroy(struct io_faulty_image **image)
{
    if (!*image) return;
    KVT_ASSERT(!(*image)->first_open);
    disk_done(&(*image)->disk);
    kvt_free(*image);
    *image = NULL;
}

void io_faulty_rate(struct io_faulty_image *image, enum io_faulty_kind kind, enum io_faulty_fault fault,
                    uint32_t per_million)
{
    KVT_ASSERT(fault > IO_FAULTY_NONE);
    KVT_ASSERT(fault < IO_FAULTY_COUNT);
    KVT_ASSERT(per_million <= PER_MILLION);
    image->rates[kind][fault] = per_million;
}

void io_faulty_at(struct io_faulty_image *image, enum io_faulty_kind kind, uint64_t n, enum io_faulty_fault fault)
{
    KVT_ASSERT(n > 0);
    KVT_ASSERT(fault > IO_FAULTY_NONE);
    KVT_ASSERT(fault < IO_FAULTY_COUNT);
    KVT_ASSERT(image->exact_count < EXACT_MAX);
    image->exact[image->exact_count++] = (struct exact){ .kind = kind, .fault = fault, .left = n };
}

uint32_t io_faulty_release(struct io_faulty_image *image)
{
    uint32_t n = 0;
    for (struct faulty_io *faulty = image->first_open; faulty; faulty = faulty->next_open) {
        for (uint32_t i = 0; i < faulty->queue_depth; i++) {
            struct flight *flight = &faulty->flights[i];
            if (!flight->op || !flight->is_held) continue;
            flight->is_held = false;
            n++;
        }
    }
    return n;
}

static void forget_faults(struct io_faulty_image *image)
{
    memset(image->rates, 0, sizeof image->rates);
    image->exact_count = 0;
}

void io_faulty_heal(struct io_faulty_image *image)
{
    forget_faults(image);
    (void)io_faulty_release(image);
}

void io_faulty_set_bytes_max(struct io_faulty_image *image, uint64_t bytes_max) { image->config.bytes_max = bytes_max; }

void io_faulty_cut_at(struct io_faulty_image *image, uint64_t n) { image->cut_left = n; }

void io_faulty_set_away(struct io_faulty_image *image, const char *directory) { image->away = directory; }

bool io_faulty_was_cut(const struct io_faulty_image *image) { return image->is_off; }

static void power_on(struct io_faulty_image *image)
{
    forget_faults(image);
    image->cut_left = 0;
    image->is_off = false;
}

void io_faulty_power_cycle(struct io_faulty_image *image)
{
    KVT_ASSERT(!image->first_open);
    disk_power_cycle(&image->disk);
    power_on(image);
}

void io_faulty_process_restart(struct io_faulty_image *image)
{
    KVT_ASSERT(!image->first_open);
    disk_process_restart(&image->disk);
    power_on(image);
}

bool io_faulty_file_size(const struct io_faulty_image *image, const char *directory, const char *name,
                         uint64_t *ret_size)
{
    const struct disk_file *file = disk_find(&image->disk, directory, name);
    if (!file) return false;
    *ret_size = file->size;
    return true;
}

static bool is_inside(const struct disk_file *file, uint64_t offset, uint64_t size)
{
    return file && offset <= file->size && size <= file->size - offset;
}

bool io_faulty_peek(const struct io_faulty_image *image, const char *directory, const char *name, uint64_t offset,
                    void *ret_bytes, uint64_t size)
{
    const struct disk_file *file = disk_find(&image->disk, directory, name);
    if (!is_inside(file, offset, size)) return false;
    if (size > 0) memcpy(ret_bytes, file->current + offset, size);
    return true;
}

bool io_faulty_poke(struct io_faulty_image *image, const char *directory, const char *name, uint64_t offset,
                    const void *bytes, uint64_t size)
{
    struct disk_file *file = disk_find(&image->disk, directory, name);
    if (!is_inside(file, offset, size)) return false;
    disk_file_settle(file);
    if (size > 0) memcpy(file->current + offset, bytes, size);
    if (size > 0) memcpy(file->durable + offset, bytes, size);
    return true;
}

bool io_faulty_truncate(struct io_faulty_image *image, const char *directory, const char *name, uint64_t size)
{
    struct disk_file *file = disk_find(&image->disk, directory, name);
    return file && disk_file_truncate(file, size);
}

struct io_faulty_counters io_faulty_counters(const struct io_faulty_image *image)
{
    struct io_faulty_counters counters = image->counters;
    for (const struct faulty_io *faulty = image->first_open; faulty; faulty = faulty->next_open) {
        counters.in_flight += faulty->in_flight;
        for (uint32_t i = 0; i < faulty->queue_depth; i++)
            counters.held += faulty->flights[i].op && faulty->flights[i].is_held;
    }
    counters.bytes_used = disk_bytes_used(&image->disk);
    counters.bytes_peak = kvt_max_u64(counters.bytes_peak, counters.bytes_used);
    return counters;
}

/* ---- which fault an operation meets ---- */

static bool kind_matches(enum io_faulty_kind wanted, enum io_faulty_kind kind)
{
    return wanted == IO_FAULTY_ANY || wanted == kind;
}

/* FULL is decided first: an op that is refused has not happened. */
static bool is_refused(struct io_faulty_image *image, enum io_faulty_kind kind)
{
    for (uint32_t i = 0; i < image->exact_count; i++) {
        struct exact *exact = &image->exact[i];
        if (exact->fault != IO_FAULTY_FULL || exact->left != 1 || !kind_matches(exact->kind, kind)) continue;
        *exact = image->exact[--image->exact_count];
        image->counters.faults[IO_FAULTY_FULL]++;
        return true;
    }
    const uint32_t rate = image->rates[kind][IO_FAULTY_FULL] + image->rates[IO_FAULTY_ANY][IO_FAULTY_FULL];
    if (rate == 0 || kvt_rng_below(&image->rng, PER_MILLION) >= rate) return false;
    image->counters.faults[IO_FAULTY_FULL]++;
    return true;
}

/* Numbers an operation and returns the bits of its faults. Sets is_off when the power goes at it. */
static uint32_t begin_operation(struct io_faulty_image *image, enum io_faulty_kind kind)
{
    image->counters.operations++;
    if (image->cut_left > 0 && --image->cut_left == 0) image->is_off = true;

    uint32_t faults = 0;
    for (uint32_t i = 0; i < image->exact_count;) {
        struct exact *exact = &image->exact[i];
        if (kind_matches(exact->kind, kind) && --exact->left == 0) {
            faults |= 1u << exact->fault;
            *exact = image->exact[--image->exact_count];
        } else {
            i++;
        }
    }
    /* Delays and holds come on top; of the others an op meets one at most by chance. */
    bool has_other = (faults & ~(1u << IO_FAULTY_DELAY | 1u << IO_FAULTY_HELD)) != 0;
    for (enum io_faulty_fault fault = IO_FAULTY_EIO; fault < IO_FAULTY_FULL; fault++) {
        const uint32_t rate = image->rates[kind][fault] + image->rates[IO_FAULTY_ANY][fault];
        const bool is_extra = fault == IO_FAULTY_DELAY || fault == IO_FAULTY_HELD;
        if (rate == 0 || kvt_rng_below(&image->rng, PER_MILLION) >= rate || (has_other && !is_extra)) continue;
        faults |= 1u << fault;
        if (!is_extra) has_other = true;
    }
    return faults;
}

static bool strikes(struct io_faulty_image *image, uint32_t faults, enum io_faulty_fault fault)
{
    if (!has_fault(faults, fault)) return false;
    image->counters.faults[fault]++;
    return true;
}

static bool is_away(const struct io_faulty_image *image, const char *directory)
{
    return image->away && directory && strcmp(image->away, directory) == 0;
}

/* ---- opening and calls ---- */

static enum kvt_status faulty_open(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                   struct kvt_block_io **ret_io)
{
    struct io_faulty_image *image = env->block_io_user;
    KVT_ASSERT(image);
    if (image->is_off || is_away(image, config->directory)) return KVT_IO;
    if (!config->directory || config->queue_depth == 0) return KVT_INVAL;
    for (const struct faulty_io *open = image->first_open; open; open = open->next_open) {
        KVT_ASSERT(strcmp(open->directory, config->directory) != 0);
    }
    struct faulty_io *faulty = kvt_alloc(1, sizeof *faulty);
    if (!faulty) return KVT_NOMEM;
    faulty->directory = kvt_strdup(config->directory);
    faulty->flights = kvt_alloc(config->queue_depth, sizeof *faulty->flights);
    if (!faulty->directory || !faulty->flights) {
        kvt_free(faulty->directory);
        kvt_free(faulty->flights);
        kvt_free(faulty);
        return KVT_NOMEM;
    }
    faulty->io.ops = &io_faulty_ops;
    faulty->image = image;
    faulty->queue_depth = config->queue_depth;
    faulty->next_open = image->first_open;
    image->first_open = faulty;
    *ret_io = &faulty->io;
    return KVT_OK;
}

static void faulty_facts(struct kvt_block_io *io, struct kvt_block_io_facts *ret_facts)
{
    *ret_facts = (struct kvt_block_io_facts){ .path = "memory",
                                              .is_direct = true,
                                              .alignment = faulty_of(io)->image->config.alignment };
}

static enum kvt_status refuse(int error, int *ret_errno)
{
    *ret_errno = error;
    return KVT_IO;
}

/* 0 or an errno. *ret_may_land: the power went at this very call, which may or may not have done its work. */
static int begin_call(const struct faulty_io *faulty, bool takes_room, bool *ret_may_land)
{
    struct io_faulty_image *image = faulty->image;
    const bool was_off = image->is_off;
    const uint32_t faults = begin_operation(image, IO_FAULTY_CALL);
    *ret_may_land = false;
    if (image->is_off) {
        *ret_may_land = !was_off && kvt_rng_below(&image->rng, 2) == 0;
        return EIO;
    }
    if (is_away(image, faulty->directory) || strikes(image, faults, IO_FAULTY_EIO)) return EIO;
    return takes_room && strikes(image, faults, IO_FAULTY_ENOSPC) ? ENOSPC : 0;
}

static enum kvt_status faulty_open_file(struct kvt_block_io *io, const char *name, bool is_create, int *ret_file,
                                        int *ret_errno)
{
    struct faulty_io *faulty = faulty_of(io);
    if (!kvt_io_name_is_valid(name)) return refuse(EINVAL, ret_errno);
    bool may_land;
    const int error = begin_call(faulty, is_create, &may_land);
    if (error && !may_land) return refuse(error, ret_errno);

    struct disk_file *file = disk_find(&faulty->image->disk, faulty->directory, name);
    if (is_create && file) return refuse(EEXIST, ret_errno);
    if (!is_create && !file) return refuse(ENOENT, ret_errno);
    if (is_create) file = disk_create(&faulty->image->disk, faulty->directory, name);
    if (!file) return refuse(ENOMEM, ret_errno);
    if (error) return refuse(error, ret_errno);
    for (int i = 0; i < (int)FILES_MAX; i++) {
        if (faulty->files[i]) continue;
        faulty->files[i] = file;
        file->open_count++;
        *ret_file = i;
        return KVT_OK;
    }
    return refuse(EMFILE, ret_errno);
}

static struct disk_file *file_of(struct faulty_io *faulty, int file)
{
    KVT_ASSERT(file >= 0);
    KVT_ASSERT(file < (int)FILES_MAX);
    KVT_ASSERT(faulty->files[file]);
    return faulty->files[file];
}

static void faulty_close_file(struct kvt_block_io *io, int file)
{
    struct faulty_io *faulty = faulty_of(io);
    for (uint32_t i = 0; i < faulty->queue_depth; i++) {
        KVT_ASSERT(!faulty->flights[i].op || faulty->flights[i].op->file != file);
    }
    file_of(faulty, file)->open_count--;
    faulty->files[file] = NULL;
    disk_sweep(&faulty->image->disk);
}

/* Bytes that the disk has room for beyond what is used. */
static uint64_t room(const struct io_faulty_image *image)
{
    if (image->config.bytes_max == 0) return UINT64_MAX;
    const uint64_t used = disk_bytes_used(&image->disk);
    return used < image->config.bytes_max ? image->config.bytes_max - used : 0;
}

static void note_peak(struct io_faulty_image *image)
{
    image->counters.bytes_peak = kvt_max_u64(image->counters.bytes_peak, disk_bytes_used(&image->disk));
}

static enum kvt_status faulty_allocate(struct kvt_block_io *io, int file, uint64_t size, int *ret_errno)
{
    struct faulty_io *faulty = faulty_of(io);
    struct disk_file *disk_file = file_of(faulty, file);
    KVT_ASSERT(size > 0);
    KVT_ASSERT(kvt_is_aligned(size, faulty->image->config.alignment));
    bool may_land;
    const int error = begin_call(faulty, true, &may_land);
    if (error && !may_land) return refuse(error, ret_errno);
    const uint64_t extent = disk_file_extent(disk_file);
    if (size > extent && size - extent > room(faulty->image)) return refuse(ENOSPC, ret_errno);
    if (!disk_file_allocate(disk_file, size)) return refuse(ENOMEM, ret_errno);
    note_peak(faulty->image);
    return error ? refuse(error, ret_errno) : KVT_OK;
}

static enum kvt_status faulty_remove_file(struct kvt_block_io *io, const char *name, int *ret_errno)
{
    struct faulty_io *faulty = faulty_of(io);
    if (!kvt_io_name_is_valid(name)) return refuse(EINVAL, ret_errno);
    bool may_land;
    const int error = begin_call(faulty, false, &may_land);
    if (error && !may_land) return refuse(error, ret_errno);
    struct disk_file *file = disk_find(&faulty->image->disk, faulty->directory, name);
    if (!file) return refuse(ENOENT, ret_errno);
    file->is_linked = false;
    disk_sweep(&faulty->image->disk);
    return error ? refuse(error, ret_errno) : KVT_OK;
}

static enum kvt_status faulty_sync_directory(struct kvt_block_io *io, int *ret_errno)
{
    struct faulty_io *faulty = faulty_of(io);
    bool may_land;
    const int error = begin_call(faulty, false, &may_land);
    if (!error || may_land) disk_sync_names(&faulty->image->disk, faulty->directory);
    return error ? refuse(error, ret_errno) : KVT_OK;
}

/* ---- ops ---- */

static uint64_t hash_bytes(const void *bytes, uint64_t size)
{
    uint64_t hash = size;
    for (uint64_t i = 0; i + 8 <= size; i += 8) hash = kvt_mix64(hash ^ kvt_load_u64((const uint8_t *)bytes + i));
    return hash;
}

static enum io_faulty_kind kind_of(const struct kvt_io_op *op)
{
    switch (op->kind) {
    case KVT_IO_READ: return IO_FAULTY_READ;
    case KVT_IO_WRITE: return IO_FAULTY_WRITE;
    case KVT_IO_SYNC: break;
    }
    return IO_FAULTY_SYNC;
}

static enum kvt_status faulty_submit(struct kvt_block_io *io, struct kvt_io_op *op)
{
    struct faulty_io *faulty = faulty_of(io);
    struct io_faulty_image *image = faulty->image;
    kvt_io_check_op(op, image->config.alignment);
    const struct disk_file *file = file_of(faulty, op->file);
    struct flight *flight = NULL;
    for (uint32_t i = 0; i < faulty->queue_depth; i++) {
        KVT_ASSERT(faulty->flights[i].op != op);
        if (!faulty->flights[i].op) flight = &faulty->flights[i];
    }
    if (!flight || is_refused(image, kind_of(op))) return KVT_FULL;

    const bool was_off = image->is_off;
    *flight = (struct flight){
        .op = op, .sequence = faulty->sequence++, .may_land = !was_off, .due_poll = image->polls + 1
    };
    flight->faults = begin_operation(image, kind_of(op));
    if (strikes(image, flight->faults, IO_FAULTY_DELAY)) {
        flight->due_poll += 1 + kvt_rng_below(&image->rng, image->config.delay_polls_max);
    }
    flight->is_held = strikes(image, flight->faults, IO_FAULTY_HELD);
    if (op->kind == KVT_IO_READ) memset(op->buffer, IO_FAULTY_POISON, op->size);
    if (op->kind == KVT_IO_WRITE) flight->bytes_hash = hash_bytes(op->buffer, op->size);
    flight->sync_order = file->order;
    flight->sync_size = file->size;
    flight->sync_allocated = file->allocated;
    faulty->in_flight++;
    return KVT_OK;
}

/* A multiple of the alignment below size. */
static uint32_t shorten(struct io_faulty_image *image, uint32_t size)
{
    return (uint32_t)kvt_rng_below(&image->rng, size / image->config.alignment) * image->config.alignment;
}

static int32_t carry_out_read(struct io_faulty_image *image, const struct disk_file *file, const struct flight *flight)
{
    const struct kvt_io_op *op = flight->op;
    if (strikes(image, flight->faults, IO_FAULTY_EIO)) return -EIO;
    uint32_t n = op->offset < file->size ? (uint32_t)kvt_min_u64(op->size, file->size - op->offset) : 0;
    if (strikes(image, flight->faults, IO_FAULTY_SHORT)) n = kvt_min_u32(n, shorten(image, op->size));
    if (n > 0) memcpy(op->buffer, file->current + op->offset, n);
    if (n > 0 && strikes(image, flight->faults, IO_FAULTY_FLIP)) {
        const uint64_t bit = kvt_rng_below(&image->rng, (uint64_t)n * 8);
        ((uint8_t *)op->buffer)[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    image->counters.bytes_read += n;
    return (int32_t)n;
}

/* Another place of the same file; the same place when there is no other. */
static uint64_t misdirect(struct io_faulty_image *image, const struct disk_file *file, const struct kvt_io_op *op)
{
    const uint32_t alignment = image->config.alignment;
    if (file->size < (uint64_t)op->size + alignment) return op->offset;
    const uint64_t place_count = (file->size - op->size) / alignment + 1;
    const uint64_t place = kvt_rng_below(&image->rng, place_count) * alignment;
    if (place != op->offset) return place;
    return place >= alignment ? place - alignment : place + alignment;
}

static int32_t carry_out_write(struct io_faulty_image *image, struct disk_file *file, const struct flight *flight)
{
    const struct kvt_io_op *op = flight->op;
    KVT_ASSERT(hash_bytes(op->buffer, op->size) == flight->bytes_hash); /* the buffer was on loan */
    if (strikes(image, flight->faults, IO_FAULTY_ENOSPC)) return -ENOSPC;

    uint32_t n = op->size;
    const uint64_t extent = disk_file_extent(file);
    const uint64_t end = op->offset + op->size;
    const uint64_t free_bytes = room(image);
    if (end > extent && end - extent > free_bytes) {
        const uint64_t missing = kvt_align_up(end - extent - free_bytes, image->config.alignment);
        if (missing >= op->size) return -ENOSPC;
        n -= (uint32_t)missing;
    }
    bool is_ok;
    if (strikes(image, flight->faults, IO_FAULTY_EIO)) {
        if (kvt_rng_below(&image->rng, 2) == 0)
            (void)disk_file_write_torn(file, &image->rng, op->offset, op->buffer, n);
        note_peak(image);
        return -EIO;
    }
    if (strikes(image, flight->faults, IO_FAULTY_SHORT)) n = kvt_min_u32(n, shorten(image, op->size));
    if (n > 0 && strikes(image, flight->faults, IO_FAULTY_TORN)) {
        is_ok = disk_file_write_torn(file, &image->rng, op->offset, op->buffer, n);
    } else {
        const uint64_t offset = strikes(image, flight->faults, IO_FAULTY_MISDIRECT) ? misdirect(image, file, op)
                                                                                    : op->offset;
        is_ok = disk_file_write(file, offset, op->buffer, n);
    }
    note_peak(image);
    image->counters.bytes_written += is_ok ? n : 0;
    return is_ok ? (int32_t)n : -ENOMEM;
}

static int32_t carry_out(struct io_faulty_image *image, struct disk_file *file, const struct flight *flight)
{
    const struct kvt_io_op *op = flight->op;
    switch (op->kind) {
    case KVT_IO_READ: image->counters.reads++; return image->is_off ? -EIO : carry_out_read(image, file, flight);
    case KVT_IO_WRITE:
        image->counters.writes++;
        if (!image->is_off) return carry_out_write(image, file, flight);
        if (flight->may_land && op->offset + op->size <= disk_file_extent(file) + room(image)) {
            (void)disk_file_write_in_flight(file, op->offset, op->buffer, op->size);
        }
        return -EIO;
    case KVT_IO_SYNC: break;
    }
    image->counters.syncs++;
    if (image->is_off || strikes(image, flight->faults, IO_FAULTY_EIO)) return -EIO;
    disk_file_sync(file, flight->sync_order, flight->sync_size, flight->sync_allocated);
    return 0;
}

/* Ends a flight and returns its op. */
static struct kvt_io_op *end_flight(struct faulty_io *faulty, struct flight *flight)
{
    struct kvt_io_op *op = flight->op;
    op->ret_bytes = is_away(faulty->image, faulty->directory)
        ? -EIO
        : carry_out(faulty->image, file_of(faulty, op->file), flight);
    op->ret_ns = 0;
    flight->op = NULL;
    faulty->in_flight--;
    return op;
}

/* True when a goes before b. */
static bool goes_before(const struct flight *a, const struct flight *b)
{
    const bool is_urgent_a = a->op->is_urgent && a->op->kind == KVT_IO_READ;
    const bool is_urgent_b = b->op->is_urgent && b->op->kind == KVT_IO_READ;
    if (is_urgent_a != is_urgent_b) return is_urgent_a;
    return a->sequence < b->sequence;
}

/* The op that comes back next at this poll; NULL: none is ready. */
static struct flight *next_ready(struct faulty_io *faulty)
{
    struct io_faulty_image *image = faulty->image;
    struct flight *best = NULL;
    uint64_t ready_count = 0;
    for (uint32_t i = 0; i < faulty->queue_depth; i++) {
        struct flight *flight = &faulty->flights[i];
        if (!flight->op || flight->is_held || flight->due_poll > image->polls) continue;
        ready_count++;
        const bool is_taken = image->config.is_reordering ? kvt_rng_below(&image->rng, ready_count) == 0
                                                          : !best || goes_before(flight, best);
        if (is_taken) best = flight;
    }
    return best;
}

static bool is_anything_coming(const struct faulty_io *faulty)
{
    for (uint32_t i = 0; i < faulty->queue_depth; i++) {
        if (faulty->flights[i].op && !faulty->flights[i].is_held) return true;
    }
    return false;
}

static uint32_t faulty_poll(struct kvt_block_io *io, struct kvt_io_op **ret_done, uint32_t max, uint64_t wait_ns)
{
    struct faulty_io *faulty = faulty_of(io);
    struct io_faulty_image *image = faulty->image;
    image->polls++;
    if (wait_ns > 0 && !is_anything_coming(faulty) && image->config.wait)
        image->config.wait(image->config.user, wait_ns);
    while (wait_ns > 0 && max > 0 && is_anything_coming(faulty) && !next_ready(faulty)) image->polls++;
    uint32_t n = 0;
    struct flight *flight;
    while (n < max && (flight = next_ready(faulty)) != NULL) ret_done[n++] = end_flight(faulty, flight);
    return n;
}

static void faulty_close(struct kvt_block_io *io)
{
    struct faulty_io *faulty = faulty_of(io);
    struct io_faulty_image *image = faulty->image;
    for (uint32_t i = 0; i < faulty->queue_depth; i++) faulty->flights[i].is_held = false;
    image->polls += image->config.delay_polls_max + 2;
    struct flight *flight;
    while ((flight = next_ready(faulty)) != NULL) (void)end_flight(faulty, flight);
    KVT_ASSERT(faulty->in_flight == 0);
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        if (faulty->files[i]) faulty->files[i]->open_count--;
    }
    struct faulty_io **link = &image->first_open;
    while (*link != faulty) link = &(*link)->next_open;
    *link = faulty->next_open;
    disk_sweep(&image->disk);
    kvt_free(faulty->flights);
    kvt_free(faulty->directory);
    kvt_free(faulty);
}

static void faulty_kick(struct kvt_block_io *io) { (void)io; }

const struct kvt_block_io_ops io_faulty_ops = {
    .name = "faulty",
    .open = faulty_open,
    .close = faulty_close,
    .facts = faulty_facts,
    .open_file = faulty_open_file,
    .close_file = faulty_close_file,
    .allocate = faulty_allocate,
    .remove_file = faulty_remove_file,
    .sync_directory = faulty_sync_directory,
    .submit = faulty_submit,
    .poll = faulty_poll,
    .kick = faulty_kick,
};
