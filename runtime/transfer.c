#include "runtime/transfer.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

enum kvt_status kvt_transfers_init(struct kvt_transfers *transfers, uint32_t capacity)
{
    *transfers = (struct kvt_transfers){
        .capacity = capacity, .free_head = 0, .oldest = KVT_NO_TRANSFER, .newest = KVT_NO_TRANSFER
    };
    transfers->items = kvt_table_map((size_t)capacity * sizeof *transfers->items);
    if (!transfers->items) return KVT_NOMEM;
    for (uint32_t i = 0; i < capacity; i++) transfers->items[i].next = i + 1 < capacity ? i + 1 : KVT_NO_TRANSFER;
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        for (uint32_t p = 0; p < KVT_PRIORITY_COUNT; p++)
            transfers->waiting[t][p] = (struct kvt_transfer_queue){ KVT_NO_TRANSFER, KVT_NO_TRANSFER };
    }
    return KVT_OK;
}

void kvt_transfers_done(struct kvt_transfers *transfers)
{
    KVT_ASSERT(transfers->in_flight == 0);
    if (transfers->items) kvt_table_unmap(transfers->items, (size_t)transfers->capacity * sizeof *transfers->items);
    transfers->items = NULL;
}

struct kvt_transfer *kvt_transfers_begin(struct kvt_transfers *transfers, uint64_t deadline_ns)
{
    const uint32_t index = transfers->free_head;
    if (index == KVT_NO_TRANSFER) return NULL;
    struct kvt_transfer *transfer = &transfers->items[index];
    transfers->free_head = transfer->next;
    *transfer = (struct kvt_transfer){ .source = KVT_NO_BLOCK,
                                       .target = KVT_NO_BLOCK,
                                       .device_slot = KVT_NO_SLOT,
                                       .host_slot = KVT_NO_SLOT,
                                       .deadline_ns = deadline_ns,
                                       .previous = transfers->newest,
                                       .next = KVT_NO_TRANSFER,
                                       .queue_next = KVT_NO_TRANSFER };
    if (transfers->newest != KVT_NO_TRANSFER) transfers->items[transfers->newest].next = index;
    else transfers->oldest = index;
    transfers->newest = index;
    transfers->in_flight++;
    return transfer;
}

static void unlink_transfer(struct kvt_transfers *transfers, struct kvt_transfer *transfer)
{
    if (transfer->previous != KVT_NO_TRANSFER) transfers->items[transfer->previous].next = transfer->next;
    else transfers->oldest = transfer->next;
    if (transfer->next != KVT_NO_TRANSFER) transfers->items[transfer->next].previous = transfer->previous;
    else transfers->newest = transfer->previous;
}

void kvt_transfers_abandon(struct kvt_transfers *transfers, struct kvt_transfer *transfer)
{
    KVT_ASSERT(!transfer->is_abandoned);
    unlink_transfer(transfers, transfer);
    transfer->is_abandoned = true;
    transfers->abandoned++;
}

void kvt_transfers_end(struct kvt_transfers *transfers, struct kvt_transfer *transfer)
{
    const uint32_t index = kvt_transfer_index(transfers, transfer);
    KVT_ASSERT(!transfer->op.is_in_flight);
    KVT_ASSERT(transfers->in_flight > 0);
    if (transfer->is_abandoned) transfers->abandoned--;
    else unlink_transfer(transfers, transfer);
    transfer->next = transfers->free_head;
    transfers->free_head = index;
    transfers->in_flight--;
}

uint32_t kvt_leg_tier(enum kvt_leg leg)
{
    return leg == KVT_LEG_HOST_TO_NVME || leg == KVT_LEG_NVME_TO_HOST ? (uint32_t)KVT_TIER_NVME
                                                                      : (uint32_t)KVT_TIER_DEVICE;
}

void kvt_transfers_wait(struct kvt_transfers *transfers, uint32_t tier, struct kvt_transfer *transfer)
{
    struct kvt_transfer_queue *queue = &transfers->waiting[tier][transfer->op.priority];
    const uint32_t index = kvt_transfer_index(transfers, transfer);
    transfer->queue_next = KVT_NO_TRANSFER;
    if (queue->tail != KVT_NO_TRANSFER) transfers->items[queue->tail].queue_next = index;
    else queue->head = index;
    queue->tail = index;
    transfers->waiting_count[tier]++;
}

static struct kvt_transfer_queue *first_queue(struct kvt_transfers *transfers, uint32_t tier)
{
    for (uint32_t p = 0; p < KVT_PRIORITY_COUNT; p++) {
        if (transfers->waiting[tier][p].head != KVT_NO_TRANSFER) return &transfers->waiting[tier][p];
    }
    return NULL;
}

struct kvt_transfer *kvt_transfers_next_waiting(struct kvt_transfers *transfers, uint32_t tier)
{
    struct kvt_transfer_queue *queue = first_queue(transfers, tier);
    return queue ? &transfers->items[queue->head] : NULL;
}

void kvt_transfers_pop_waiting(struct kvt_transfers *transfers, uint32_t tier)
{
    struct kvt_transfer_queue *queue = first_queue(transfers, tier);
    KVT_ASSERT(queue != NULL);
    queue->head = transfers->items[queue->head].queue_next;
    if (queue->head == KVT_NO_TRANSFER) queue->tail = KVT_NO_TRANSFER;
    transfers->waiting_count[tier]--;
}
