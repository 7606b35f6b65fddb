/*
 * fifo: the slot that came first leaves first.
 *
 * One list, cold end first. A new slot joins at the warm end when it is first released; nothing that happens
 * to it afterwards changes the order, neither a use nor a hold. The victim is the coldest idle slot. The
 * cheapest order there is, and the base line that every other one has to beat.
 *
 * Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
 * Journal 5(2), 1966.
 */
#include "policy/policy.h"

#include "policy/replay.h"
#include "policy/slots.h"
#include "runtime/base/mem.h"

enum { QUEUE, LIST_COUNT };

struct kvt_policy {
    struct kvt_slots slots;
};

static void fifo_destroy(struct kvt_policy *fifo)
{
    if (!fifo) return;
    kvt_slots_done(&fifo->slots);
    kvt_free(fifo);
}

static enum kvt_status fifo_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *fifo = kvt_alloc(1, sizeof *fifo);
    if (!fifo) return KVT_NOMEM;
    if (kvt_slots_init(&fifo->slots, slot_count, LIST_COUNT) != KVT_OK) {
        fifo_destroy(fifo);
        return KVT_NOMEM;
    }
    *ret_policy = fifo;
    return KVT_OK;
}

static void fifo_insert(struct kvt_policy *fifo, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_slots_insert(&fifo->slots, slot, QUEUE);
}

static void fifo_touch(struct kvt_policy *fifo, uint32_t slot)
{
    KVT_ASSERT(slot < fifo->slots.slot_count);
    KVT_ASSERT(fifo->slots.bits[slot] & KVT_SLOT_PRESENT);
}

static void fifo_hold(struct kvt_policy *fifo, uint32_t slot) { kvt_slots_hold(&fifo->slots, slot); }
static void fifo_release(struct kvt_policy *fifo, uint32_t slot) { kvt_slots_release(&fifo->slots, slot); }

static void fifo_remove(struct kvt_policy *fifo, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    (void)kvt_slots_remove(&fifo->slots, slot);
}

static uint32_t fifo_victim(struct kvt_policy *fifo) { return kvt_slots_coldest_idle(&fifo->slots, QUEUE); }

static void fifo_verify(const struct kvt_policy *fifo) { (void)kvt_slots_verify(&fifo->slots, LIST_COUNT); }

KVT_REPLAY(fifo)

const struct kvt_policy_ops kvt_policy_fifo = {
    .name = "fifo",
    .summary = "first in leaves first; uses do not count",
    .create = fifo_create,
    .destroy = fifo_destroy,
    .insert = fifo_insert,
    .touch = fifo_touch,
    .hold = fifo_hold,
    .release = fifo_release,
    .remove = fifo_remove,
    .victim = fifo_victim,
    .verify = fifo_verify,
    .replay = kvt_replay_fifo,
};
