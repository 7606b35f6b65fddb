/*
 * order: doubly linked lists of small numbers (slots, remembered keys), cold end first.
 *
 * Every policy keeps its lists in one array of 8-byte links, so that 8 neighbours of a list share a cache
 * line's worth of memory and an untouched slot costs none. A number is on at most one list. Node 0 stands
 * for "on no list" in zeroed memory, nodes 1 .. list_count are the ends of the lists, and number n is node
 * list_count + 1 + n.
 *
 * Thread: the caller's lock.
 */
#ifndef KVT_POLICY_ORDER_H
#define KVT_POLICY_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "runtime/base/status.h"

#define KVT_ORDER_NONE UINT32_MAX
#define KVT_ORDER_COUNT_MAX (UINT32_MAX - 64)

struct kvt_link {
    uint32_t colder, warmer; /* nodes; both 0: on no list */
};

struct kvt_order {
    struct kvt_link *links;
    uint32_t list_count; /* below 32 */
    uint32_t count;      /* numbers 0 .. count - 1 */
};

static inline uint64_t kvt_order_bytes(const struct kvt_order *order)
{
    return ((uint64_t)order->count + order->list_count + 1) * sizeof order->links[0];
}

/* NOMEM. All lists are empty. */
KVT_NODISCARD static inline enum kvt_status kvt_order_init(struct kvt_order *order, uint32_t count, uint32_t list_count)
{
    KVT_ASSERT(count <= KVT_ORDER_COUNT_MAX);
    KVT_ASSERT(list_count < 32);
    *order = (struct kvt_order){ .list_count = list_count, .count = count };
    order->links = kvt_table_map(kvt_order_bytes(order));
    if (!order->links) return KVT_NOMEM;
    for (uint32_t end = 1; end <= list_count; end++) order->links[end] = (struct kvt_link){ end, end };
    return KVT_OK;
}

/* An order that was never made, or not made for lack of memory, is fine. */
static inline void kvt_order_done(struct kvt_order *order)
{
    kvt_table_unmap(order->links, kvt_order_bytes(order));
    order->links = NULL;
}

static inline uint32_t kvt_order_node(const struct kvt_order *order, uint32_t number)
{
    return number + order->list_count + 1;
}

/* KVT_ORDER_NONE for the end of a list. */
static inline uint32_t kvt_order_number(const struct kvt_order *order, uint32_t node)
{
    return node <= order->list_count ? KVT_ORDER_NONE : node - order->list_count - 1;
}

static inline bool kvt_order_has(const struct kvt_order *order, uint32_t number)
{
    return order->links[kvt_order_node(order, number)].warmer != 0;
}

/* number is on no list. Puts it between node cold and the next warmer one. */
static inline void kvt_order_link_after(struct kvt_order *order, uint32_t cold, uint32_t number)
{
    const uint32_t node = kvt_order_node(order, number);
    const uint32_t warm = order->links[cold].warmer;
    order->links[node] = (struct kvt_link){ .colder = cold, .warmer = warm };
    order->links[cold].warmer = node;
    order->links[warm].colder = node;
}

static inline void kvt_order_push_warm(struct kvt_order *order, uint32_t list, uint32_t number)
{
    kvt_order_link_after(order, order->links[list + 1].colder, number);
}

static inline void kvt_order_push_cold(struct kvt_order *order, uint32_t list, uint32_t number)
{
    kvt_order_link_after(order, list + 1, number);
}

/* number is on a list. */
static inline void kvt_order_unlink(struct kvt_order *order, uint32_t number)
{
    const uint32_t node = kvt_order_node(order, number);
    const struct kvt_link link = order->links[node];
    KVT_ASSERT(link.warmer != 0);
    order->links[link.colder].warmer = link.warmer;
    order->links[link.warmer].colder = link.colder;
    order->links[node] = (struct kvt_link){ 0, 0 };
}

/* KVT_ORDER_NONE when the list is empty. */
static inline uint32_t kvt_order_coldest(const struct kvt_order *order, uint32_t list)
{
    return kvt_order_number(order, order->links[list + 1].warmer);
}

static inline uint32_t kvt_order_warmest(const struct kvt_order *order, uint32_t list)
{
    return kvt_order_number(order, order->links[list + 1].colder);
}

/* The next number towards the warm end, KVT_ORDER_NONE past it. */
static inline uint32_t kvt_order_warmer(const struct kvt_order *order, uint32_t number)
{
    return kvt_order_number(order, order->links[kvt_order_node(order, number)].warmer);
}

/* Walks a list, asserts its links, returns how many are on it. Tests only. */
static inline uint32_t kvt_order_verify(const struct kvt_order *order, uint32_t list)
{
    uint32_t count = 0;
    uint32_t node = list + 1;
    do {
        const uint32_t warmer = order->links[node].warmer;
        KVT_ASSERT(order->links[warmer].colder == node);
        KVT_ASSERT(count <= order->count);
        node = warmer;
        count++;
    } while (node != list + 1);
    return count - 1;
}

#endif
