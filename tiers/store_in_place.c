/*
 * Puts without a copy: the payload goes to the device from the caller's buffer, which lies in huge pages and is summed
 * once; the header goes from a block of our own. Two writes of consecutive bytes, which the kernel merges. The record
 * is what any other put would have written (store_format.h), and is published when both are on the device.
 */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "tiers/store_private.h"

bool kvt_store_is_put_in_place(const struct kvt_store *store, const struct kvt_store_op *op)
{
    return (op->flags & KVT_STORE_IN_PLACE) && op->length >= KVT_STORE_IN_PLACE_PUT_MIN
        && op->length <= KVT_STORE_IN_PLACE_LENGTH_MAX && kvt_is_aligned(op->length, store->alignment)
        && kvt_is_aligned((uintptr_t)op->buffer, store->alignment);
}

static struct kvt_in_place_put *slot_take(struct kvt_store *store, uint32_t length)
{
    if (store->in_place_put_bytes > 0 && store->in_place_put_bytes + length > KVT_STORE_IN_PLACE_BYTES_MAX / 2)
        return NULL;
    for (uint32_t i = 0; i < store->in_place_put_count; i++)
        if (!store->in_place_puts[i].op) return &store->in_place_puts[i];
    return NULL;
}

static void written(struct kvt_store *store, struct kvt_store_io *io);

static void write_part(struct kvt_store *store, struct kvt_in_place_put *slot, struct kvt_store_io *io)
{
    const struct kvt_put_state *put = kvt_put_state(slot->op);
    const uint64_t offset = (uint64_t)put->offset_units * KVT_STORE_UNIT_BYTES;
    const bool is_header = io == &slot->header_io;
    kvt_store_io_start(store, io, KVT_IO_WRITE, store->segments[put->segment].file,
                       is_header ? offset : offset + store->alignment, is_header ? slot->header : slot->op->buffer,
                       is_header ? store->alignment : slot->op->length, false, written, slot);
}

static void written(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_in_place_put *slot = io->owner;
    struct kvt_store_op *op = slot->op;
    if (kvt_store_may_retry(store, io, &slot->is_retried)) {
        write_part(store, slot, io);
        return;
    }
    kvt_store_write_ended(store, &store->segments[kvt_put_state(op)->segment], io);
    if (--slot->ios_pending == 0) {
        slot->op = NULL;
        KVT_ASSERT(store->in_place_put_bytes >= op->length);
        store->in_place_put_bytes -= op->length;
    }
    kvt_store_put_piece_done(store, op, io->link_ns, io->error);
}

bool kvt_store_put_in_place(struct kvt_store *store, struct kvt_store_op *op, uint32_t stored)
{
    struct kvt_in_place_put *slot = slot_take(store, op->length);
    if (!slot) return false;
    KVT_ASSERT(stored == store->alignment + op->length);
    struct kvt_record_header header = kvt_store_put_append(store, op, stored);
    header.payload_crc = kvt_crc32c(0, op->buffer, op->length);
    kvt_record_header_seal(&header);
    memset(slot->header, 0, store->alignment);
    memcpy(slot->header, &header, sizeof header);
    struct kvt_put_state *put = kvt_put_state(op);
    put->pieces = slot->ios_pending = 2;
    slot->op = op;
    slot->is_retried = false;
    store->in_place_put_bytes += op->length;
    store->segments[put->segment].writes += 2;
    write_part(store, slot, &slot->header_io);
    write_part(store, slot, &slot->payload_io);
    return true;
}
