/*
 * block_io_queue: what every block I/O keeps about its ops: the order in which they start, and who a completion belongs
 *                 to.
 *
 * Queue rule: urgent reads leave before everything else; within a class, first in first out. push_front is for an op
 * that was taken and could not start. Slot rule: an id is a slot and the slot's generation. A completion whose id is
 * not that of an op under way is a stranger: it is counted and credited to nobody.
 *
 * Thread: under the owner's lock.
 */
#ifndef KVT_TIERS_BLOCK_IO_QUEUE_H
#define KVT_TIERS_BLOCK_IO_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "tiers/block_io.h"

/* Ops in order, linked by op->next. */
struct kvt_io_fifo {
    struct kvt_io_op *first, *last;
};

static inline void kvt_io_fifo_push(struct kvt_io_fifo *fifo, struct kvt_io_op *op)
{
    op->next = NULL;
    if (fifo->last) fifo->last->next = op;
    else fifo->first = op;
    fifo->last = op;
}

static inline void kvt_io_fifo_push_front(struct kvt_io_fifo *fifo, struct kvt_io_op *op)
{
    op->next = fifo->first;
    fifo->first = op;
    if (!fifo->last) fifo->last = op;
}

/* NULL when empty. */
static inline struct kvt_io_op *kvt_io_fifo_pop(struct kvt_io_fifo *fifo)
{
    struct kvt_io_op *op = fifo->first;
    if (!op) return NULL;
    fifo->first = op->next;
    if (!fifo->first) fifo->last = NULL;
    op->next = NULL;
    return op;
}

/* Pops up to max ops into ret_done; returns how many. */
static inline uint32_t kvt_io_fifo_pop_many(struct kvt_io_fifo *fifo, struct kvt_io_op **ret_done, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && fifo->first) ret_done[n++] = kvt_io_fifo_pop(fifo);
    return n;
}

struct kvt_io_queue {
    struct kvt_io_fifo urgent, bulk;
};

static inline bool kvt_io_is_urgent(const struct kvt_io_op *op) { return op->is_urgent && op->kind == KVT_IO_READ; }

static inline void kvt_io_queue_push(struct kvt_io_queue *queue, struct kvt_io_op *op)
{
    kvt_io_fifo_push(kvt_io_is_urgent(op) ? &queue->urgent : &queue->bulk, op);
}

static inline void kvt_io_queue_push_front(struct kvt_io_queue *queue, struct kvt_io_op *op)
{
    kvt_io_fifo_push_front(kvt_io_is_urgent(op) ? &queue->urgent : &queue->bulk, op);
}

/* NULL when there is nothing, or nothing but bulk while is_bulk_allowed is false. */
static inline struct kvt_io_op *kvt_io_queue_pop(struct kvt_io_queue *queue, bool is_bulk_allowed)
{
    struct kvt_io_op *op = kvt_io_fifo_pop(&queue->urgent);
    return op || !is_bulk_allowed ? op : kvt_io_fifo_pop(&queue->bulk);
}

struct kvt_io_slot {
    struct kvt_io_op *op; /* NULL: free */
    uint32_t generation;  /* of the op that has the slot, or of the next one */
    uint32_t next_free;
};

struct kvt_io_slots {
    struct kvt_io_slot *slots;
    uint32_t count, used, first_free;
    uint64_t strangers;
};

/* False: out of memory. */
static inline bool kvt_io_slots_init(struct kvt_io_slots *slots, uint32_t count)
{
    *slots = (struct kvt_io_slots){ .slots = kvt_alloc(count, sizeof *slots->slots), .count = count };
    if (!slots->slots) return false;
    for (uint32_t i = 0; i < count; i++) slots->slots[i] = (struct kvt_io_slot){ .generation = 1, .next_free = i + 1 };
    return true;
}

static inline void kvt_io_slots_done(struct kvt_io_slots *slots)
{
    kvt_free(slots->slots);
    slots->slots = NULL;
}

/* Gives op a slot and writes its id to op->tag. A slot must be free. */
static inline void kvt_io_slots_take(struct kvt_io_slots *slots, struct kvt_io_op *op)
{
    const uint32_t index = slots->first_free;
    KVT_ASSERT(index < slots->count);
    struct kvt_io_slot *slot = &slots->slots[index];
    KVT_ASSERT(!slot->op);
    slots->first_free = slot->next_free;
    slots->used++;
    slot->op = op;
    op->tag = (uint64_t)slot->generation << 32 | index;
}

/* Ends the slot that id names and returns its op; NULL, counted, when id names no op under way. */
static inline struct kvt_io_op *kvt_io_slots_match(struct kvt_io_slots *slots, uint64_t id)
{
    const uint32_t index = (uint32_t)id;
    struct kvt_io_slot *slot = index < slots->count ? &slots->slots[index] : NULL;
    if (!slot || !slot->op || slot->generation != id >> 32) {
        slots->strangers++;
        return NULL;
    }
    struct kvt_io_op *op = slot->op;
    slot->op = NULL;
    /* The top bit stays clear: ids with it belong to the owner's own requests. */
    slot->generation = (slot->generation + 1) & 0x7fffffffu;
    slot->next_free = slots->first_free;
    slots->first_free = index;
    slots->used--;
    return op;
}

#endif
