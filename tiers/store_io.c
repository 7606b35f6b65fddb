#include <errno.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/plant.h"
#include "tiers/store_private.h"

static void queue_push(struct kvt_store_io_queue *queue, struct kvt_store_io *io)
{
    io->next = NULL;
    if (queue->tail) queue->tail->next = io;
    else queue->head = io;
    queue->tail = io;
}

static void enqueue(struct kvt_store *store, struct kvt_store_io *io)
{
    queue_push(io->op.is_urgent ? &store->urgent_io : &store->normal_io, io);
}

void kvt_store_io_start(struct kvt_store *store, struct kvt_store_io *io, enum kvt_io_kind kind, int file,
                        uint64_t offset, void *buffer, uint32_t size, bool is_urgent, kvt_store_io_fn complete,
                        void *owner)
{
    KVT_ASSERT(!io->is_busy);
    *io = (struct kvt_store_io){
        .op = { .kind = kind, .file = file, .offset = offset, .buffer = buffer, .size = size, .is_urgent = is_urgent },
        .size = size,
        .is_busy = true,
        .complete = complete,
        .owner = owner
    };
    if (kind == KVT_IO_WRITE) kvt_pace_begin(&store->pace, kvt_env_now_ns(&store->env));
    enqueue(store, io);
    store->has_moved = true;
}

/* False: the queue of the block I/O is full. */
static bool pump(struct kvt_store *store, struct kvt_store_io_queue *queue)
{
    while (queue->head) {
        struct kvt_store_io *io = queue->head;
        io->op.tag = 0;
        if (store->io->ops->submit(store->io, &io->op) != KVT_OK) return false;
        store->io_in_flight++;
        store->io_bytes_in_flight += io->op.size;
        queue->head = io->next;
        if (!queue->head) queue->tail = NULL;
    }
    return true;
}

void kvt_store_io_pump(struct kvt_store *store)
{
    if (pump(store, &store->urgent_io)) (void)pump(store, &store->normal_io);
}

/* True: a part is left and was queued again. */
static bool goes_on(struct kvt_store *store, struct kvt_store_io *io)
{
    const struct kvt_io_op *op = &io->op;
    if (op->ret_bytes < 0 || op->kind == KVT_IO_SYNC) {
        io->error = op->ret_bytes < 0 ? -op->ret_bytes : 0;
        return false;
    }
    if ((uint32_t)op->ret_bytes == op->size || KVT_PLANTED(SHORT_IS_WHOLE)) {
        io->done_bytes = io->size;
        return false;
    }
    pthread_mutex_lock(&store->lock);
    store->stats.short_transfers++;
    pthread_mutex_unlock(&store->lock);
    /* What is finished later must be aligned like everything; no whole unit, or more than was asked, is a failure. */
    const uint32_t moved = (uint32_t)op->ret_bytes & ~(store->alignment - 1);
    if (moved == 0 || moved > op->size) {
        io->error = EIO;
        return false;
    }
    io->done_bytes += moved;
    io->op.offset += moved;
    io->op.buffer = (uint8_t *)io->op.buffer + moved;
    io->op.size -= moved;
    enqueue(store, io);
    return true;
}

/*
 * How many ops to take at a time: as many as take about 0.1 ms to sum and copy. While that happens the device works on
 * what is queued, and what is queued next waits for the end of it.
 */
static uint32_t collect_max(const struct kvt_store *store)
{
    enum { BYTES = 524288 };
    if (store->io_bytes_in_flight == 0) return KVT_STORE_COLLECT_MAX;
    const uint64_t count = (uint64_t)BYTES * store->io_in_flight / store->io_bytes_in_flight;
    return (uint32_t)kvt_min_u64(kvt_max_u64(count, 2), KVT_STORE_COLLECT_MAX);
}

void kvt_store_io_collect(struct kvt_store *store, uint64_t wait_ns)
{
    struct kvt_io_op *done[KVT_STORE_COLLECT_MAX];
    const uint32_t count = store->io->ops->poll(store->io, done, collect_max(store), wait_ns);
    for (uint32_t i = 0; i < count; i++) {
        struct kvt_store_io *io = (struct kvt_store_io *)(void *)((uint8_t *)done[i]
                                                                  - offsetof(struct kvt_store_io, op));
        KVT_ASSERT(io->is_busy);
        KVT_ASSERT(store->io_in_flight > 0);
        KVT_ASSERT(store->io_bytes_in_flight >= io->op.size);
        store->io_in_flight--;
        store->io_bytes_in_flight -= io->op.size;
        store->has_moved = true;
        io->link_ns += io->op.ret_ns;
        if (goes_on(store, io)) continue;
        if (io->op.kind == KVT_IO_WRITE) kvt_pace_end(&store->pace, io->done_bytes, kvt_env_now_ns(&store->env));
        io->is_busy = false;
        io->complete(store, io);
    }
}

void kvt_store_io_nothing(struct kvt_store *store, struct kvt_store_io *io)
{
    (void)store;
    (void)io;
}

bool kvt_store_io_finish(struct kvt_store *store, const struct kvt_store_io *ios, uint32_t count)
{
    enum { ROUNDS_MAX = 10000 };
    const uint64_t deadline = kvt_env_now_ns(&store->env) + KVT_STORE_DEADLINE_NS;
    uint32_t round = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (; ios[i].is_busy; round++) {
            if (store->has_thread ? kvt_env_now_ns(&store->env) > deadline : round > ROUNDS_MAX) return false;
            kvt_store_io_pump(store);
            kvt_store_io_collect(store, 10000000);
        }
    }
    return true;
}

int kvt_store_io_now(struct kvt_store *store, enum kvt_io_kind kind, int file, uint64_t offset, void *buffer,
                     uint32_t size)
{
    struct kvt_store_io *io = &store->header_io;
    if (io->is_busy) return ETIME; /* an earlier one never came back */
    kvt_store_io_start(store, io, kind, file, offset, buffer, size, true, kvt_store_io_nothing, NULL);
    return kvt_store_io_finish(store, io, 1) ? io->error : ETIME;
}

/*
 * One region: 64 KiB for headers, footers and summaries, then a block for the header of each put in place, then the
 * extents, then the area that gets are read into.
 */
enum kvt_status kvt_store_memory_init(struct kvt_store *store, uint64_t staging_bytes)
{
    enum { META_BYTES = 65536 };
    staging_bytes &= ~(uint64_t)(KVT_STORE_BLOCK_BYTES - 1);
    store->memory = kvt_table_map(staging_bytes);
    if (!store->memory) return KVT_NOMEM;
    store->memory_bytes = staging_bytes;
    store->super_buffer = store->memory;
    store->header_buffer = store->memory + KVT_STORE_BLOCK_BYTES;
    store->footer_buffer = store->memory + 2 * KVT_STORE_BLOCK_BYTES;
    store->summary_buffer = store->memory + 3 * KVT_STORE_BLOCK_BYTES;
    store->summary_buffer_bytes = META_BYTES - 3 * KVT_STORE_BLOCK_BYTES;

    store->in_place_put_count = (uint32_t)kvt_min_u64(staging_bytes / (256 * KVT_KIB), KVT_STORE_IN_PLACE_PUTS_MAX);
    uint8_t *const headers = store->memory + META_BYTES;
    uint8_t *const extents = headers + (uint64_t)store->in_place_put_count * KVT_STORE_BLOCK_BYTES;
    const uint64_t rest = staging_bytes - (uint64_t)(extents - store->memory);
    const uint64_t write_bytes = kvt_max_u64(rest / 2, 512 * KVT_KIB);
    const uint64_t extent_bytes = kvt_min_u64(kvt_max_u64(write_bytes / 4, 256 * KVT_KIB), KVT_MIB + 64 * KVT_KIB);
    store->extent_bytes = (uint32_t)(extent_bytes & ~(uint64_t)(KVT_STORE_BLOCK_BYTES - 1));
    store->extent_count = (uint32_t)kvt_min_u64(write_bytes / store->extent_bytes, KVT_STORE_EXTENTS_MAX);
    KVT_ASSERT(store->extent_count >= 2);

    store->read_area = extents + (uint64_t)store->extent_count * store->extent_bytes;
    const uint64_t read_bytes = rest - (uint64_t)store->extent_count * store->extent_bytes;
    store->read_unit_count = (uint32_t)(read_bytes / KVT_STORE_READ_UNIT);
    KVT_ASSERT(store->read_unit_count >= 4);
    store->read_piece_bytes = store->read_unit_count / 2 * KVT_STORE_READ_UNIT;

    store->extents = kvt_alloc(store->extent_count, sizeof *store->extents);
    store->read_units = kvt_alloc(store->read_unit_count, 1);
    store->get_slots = kvt_alloc(KVT_STORE_GETS_MAX, sizeof *store->get_slots);
    store->in_place_puts = kvt_alloc(store->in_place_put_count, sizeof *store->in_place_puts);
    if (!store->extents || !store->read_units || !store->get_slots || !store->in_place_puts) return KVT_NOMEM;
    for (uint32_t i = 0; i < store->extent_count; i++)
        store->extents[i].buffer = extents + (uint64_t)i * store->extent_bytes;
    for (uint32_t i = 0; i < store->in_place_put_count; i++)
        store->in_place_puts[i].header = headers + (uint64_t)i * KVT_STORE_BLOCK_BYTES;
    return KVT_OK;
}

void kvt_store_memory_done(struct kvt_store *store)
{
    kvt_free(store->in_place_puts);
    kvt_free(store->get_slots);
    kvt_free(store->read_units);
    kvt_free(store->extents);
    kvt_table_unmap(store->memory, store->memory_bytes);
}
