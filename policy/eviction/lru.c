/*
 * lru: the slot whose last use is longest ago leaves first.
 *
 * One list, cold end first. A slot that is idle is on the list; a held one is on none, so that whatever is pinned costs
 * nothing. Release puts it at the recent end: a use lasts until its release. Touch of a held slot therefore does nothing,
 * touch of an idle slot moves it to the recent end. The victim is the cold end.
 *
 * The hot loop of the core is victim, remove, insert, touch, release. It writes the slot's own links and the two ends of the
 * list; victim prefetches the links that the next calls will read.
 *
 * Source: P. J. Denning, "The working set model for program behavior", CACM 11(5), 1968.
 */
#include "policy/policy.h"

#include "policy/order.h"
#include "policy/registry.h"
#include "runtime/base/mem.h"

#define HELD UINT32_MAX /* in both links of a held slot */

enum { IDLE_LIST, LIST_COUNT };

struct kvt_policy {
    struct kvt_order order;
    uint32_t present_count; /* held and idle */
    uint32_t idle_count;
};

static struct kvt_link *link_of(struct kvt_policy *lru, uint32_t slot)
{
    return &lru->order.links[kvt_order_node(&lru->order, slot)];
}

static enum kvt_status lru_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *lru = kvt_alloc(1, sizeof *lru);
    if (!lru) return KVT_NOMEM;
    if (kvt_order_init(&lru->order, slot_count, LIST_COUNT) != KVT_OK) {
        kvt_free(lru);
        return KVT_NOMEM;
    }
    *ret_policy = lru;
    return KVT_OK;
}

static void lru_destroy(struct kvt_policy *lru)
{
    if (!lru) return;
    kvt_order_done(&lru->order);
    kvt_free(lru);
}

static void lru_insert(struct kvt_policy *lru, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    KVT_ASSERT(slot < lru->order.count);
    struct kvt_link *link = link_of(lru, slot);
    KVT_ASSERT(link->warmer == 0);
    *link = (struct kvt_link){ HELD, HELD };
    lru->present_count++;
}

static void lru_touch(struct kvt_policy *lru, uint32_t slot)
{
    KVT_ASSERT(slot < lru->order.count);
    if (link_of(lru, slot)->warmer == HELD) return;
    kvt_order_unlink(&lru->order, slot);
    kvt_order_push_warm(&lru->order, IDLE_LIST, slot);
}

static void lru_hold(struct kvt_policy *lru, uint32_t slot)
{
    KVT_ASSERT(slot < lru->order.count);
    struct kvt_link *link = link_of(lru, slot);
    KVT_ASSERT(link->warmer != HELD);
    kvt_order_unlink(&lru->order, slot);
    *link = (struct kvt_link){ HELD, HELD };
    lru->idle_count--;
}

static void lru_release(struct kvt_policy *lru, uint32_t slot)
{
    KVT_ASSERT(slot < lru->order.count);
    KVT_ASSERT(link_of(lru, slot)->warmer == HELD);
    kvt_order_push_warm(&lru->order, IDLE_LIST, slot);
    lru->idle_count++;
}

static void lru_remove(struct kvt_policy *lru, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    KVT_ASSERT(slot < lru->order.count);
    struct kvt_link *link = link_of(lru, slot);
    if (link->warmer == HELD) {
        *link = (struct kvt_link){ 0, 0 };
    } else {
        kvt_order_unlink(&lru->order, slot);
        lru->idle_count--;
    }
    lru->present_count--;
}

static uint32_t lru_victim(struct kvt_policy *lru)
{
    const struct kvt_link *links = lru->order.links;
    const uint32_t coldest = links[IDLE_LIST + 1].warmer;
    const uint32_t second = links[coldest].warmer;
    __builtin_prefetch(&links[second], 1);
    __builtin_prefetch(&links[links[second].warmer], 1);
    return kvt_order_number(&lru->order, coldest);
}

static void lru_verify(const struct kvt_policy *lru)
{
    uint32_t idle_count = 0;
    uint32_t held_count = 0;
    for (uint32_t slot = 0; slot < lru->order.count; slot++) {
        const struct kvt_link link = lru->order.links[kvt_order_node(&lru->order, slot)];
        KVT_ASSERT((link.warmer == HELD) == (link.colder == HELD));
        KVT_ASSERT((link.warmer == 0) == (link.colder == 0));
        held_count += link.warmer == HELD;
        idle_count += link.warmer != HELD && link.warmer != 0;
    }
    KVT_ASSERT(kvt_order_verify(&lru->order, IDLE_LIST) == idle_count);
    KVT_ASSERT(idle_count == lru->idle_count);
    KVT_ASSERT(idle_count + held_count == lru->present_count);
}

const struct kvt_policy_ops kvt_policy_lru = {
    .name = "lru",
    .summary = "least recently used leaves first (default)",
    .create = lru_create,
    .destroy = lru_destroy,
    .insert = lru_insert,
    .touch = lru_touch,
    .hold = lru_hold,
    .release = lru_release,
    .remove = lru_remove,
    .victim = lru_victim,
    .verify = lru_verify,
};
