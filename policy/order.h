/*
 * order: doubly linked lists of small numbers (slots, remembered keys), cold end first.
 *
 * Every policy keeps its lists in one array of 8-byte links, so that 8 neighbours of a list share a cache
 * line's worth of memory and an untouched slot costs none. A number is on at most one list. Node 0 stands
 * for "on no list" in zeroed memory, nodes 1 .. list_count are the ends of the lists, and number n is node
 * KVT_ORDER_ENDS + n.
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

/* What a policy's calls are made of is put into the one loop of replay.h, too, wherever it is called. */
#define KVT_INLINE __attribute__((always_inline)) static inline

#define KVT_ORDER_NONE UINT32_MAX
#define KVT_ORDER_ENDS 128u /* nodes that are no numbers; a constant, so that it costs no instruction */
#define KVT_ORDER_COUNT_MAX (UINT32_MAX - KVT_ORDER_ENDS)

struct kvt_link {
    uint32_t colder, warmer; /* nodes; both 0: on no list */
};

struct kvt_order {
    struct kvt_link *links;
    /* The coldest nodes of the first two lists, again: a loop has them at hand, and waits for no store to read them. */
    uint32_t coldest_0, coldest_1;
    uint32_t list_count; /* below KVT_ORDER_ENDS */
    uint32_t count;      /* numbers 0 .. count - 1 */
};

KVT_INLINE uint64_t kvt_order_bytes(const struct kvt_order *order)
{
    return ((uint64_t)order->count + KVT_ORDER_ENDS) * sizeof order->links[0];
}

/* NOMEM. All lists are empty. */
KVT_NODISCARD static inline enum kvt_status kvt_order_init(struct kvt_order *order, uint32_t count, uint32_t list_count)
{
    KVT_ASSERT(count <= KVT_ORDER_COUNT_MAX);
    KVT_ASSERT(list_count < KVT_ORDER_ENDS);
    *order = (struct kvt_order){ .coldest_0 = 1, .coldest_1 = 2, .list_count = list_count, .count = count };
    order->links = kvt_table_map(kvt_order_bytes(order));
    if (!order->links) return KVT_NOMEM;
    for (uint32_t end = 1; end <= list_count; end++) order->links[end] = (struct kvt_link){ end, end };
    return KVT_OK;
}

/* An order that was never made, or not made for lack of memory, is fine. */
KVT_INLINE void kvt_order_done(struct kvt_order *order)
{
    kvt_table_unmap(order->links, kvt_order_bytes(order));
    order->links = NULL;
}

KVT_INLINE uint32_t kvt_order_node(const struct kvt_order *order, uint32_t number)
{
    (void)order;
    return number + KVT_ORDER_ENDS;
}

/* KVT_ORDER_NONE for the end of a list. */
KVT_INLINE uint32_t kvt_order_number(const struct kvt_order *order, uint32_t node)
{
    (void)order;
    return node < KVT_ORDER_ENDS ? KVT_ORDER_NONE : node - KVT_ORDER_ENDS;
}

KVT_INLINE bool kvt_order_has(const struct kvt_order *order, uint32_t number)
{
    return order->links[kvt_order_node(order, number)].warmer != 0;
}

/* The end of the list when it is empty. Chosen by branches, which are foreseen, and not by a place in a table. */
KVT_INLINE uint32_t kvt_order_coldest_node(const struct kvt_order *order, uint32_t list)
{
    if (list == 0) return order->coldest_0;
    if (list == 1) return order->coldest_1;
    return order->links[list + 1].warmer;
}

KVT_INLINE void kvt_order_set_coldest_node(struct kvt_order *order, uint32_t list, uint32_t node)
{
    if (list == 0) {
        order->coldest_0 = node;
        order->links[1].warmer = node;
    } else if (list == 1) {
        order->coldest_1 = node;
        order->links[2].warmer = node;
    } else {
        order->links[list + 1].warmer = node;
    }
}

/* node may be the end of a list. */
KVT_INLINE void kvt_order_set_warmer(struct kvt_order *order, uint32_t node, uint32_t warmer)
{
    if (node < KVT_ORDER_ENDS) kvt_order_set_coldest_node(order, node - 1, warmer);
    else order->links[node].warmer = warmer;
}

/* number is on no list. Puts it between node cold and the next warmer one. */
KVT_INLINE void kvt_order_link_after(struct kvt_order *order, uint32_t cold, uint32_t number)
{
    const uint32_t node = kvt_order_node(order, number);
    const uint32_t warm = order->links[cold].warmer;
    order->links[node] = (struct kvt_link){ .colder = cold, .warmer = warm };
    kvt_order_set_warmer(order, cold, node);
    order->links[warm].colder = node;
}

KVT_INLINE void kvt_order_push_warm(struct kvt_order *order, uint32_t list, uint32_t number)
{
    kvt_order_link_after(order, order->links[list + 1].colder, number);
}

KVT_INLINE void kvt_order_push_cold(struct kvt_order *order, uint32_t list, uint32_t number)
{
    kvt_order_link_after(order, list + 1, number);
}

/*
 * number is on the list. The coldest is mostly whom it is about: then what is written does not depend on what its link
 * says, and the next coldest is known sooner. Its link is asked for, and read, before the stores that follow.
 */
KVT_INLINE void kvt_order_unlink(struct kvt_order *order, uint32_t list, uint32_t number)
{
    const uint32_t node = kvt_order_node(order, number), end = list + 1;
    const struct kvt_link link = order->links[node];
    KVT_ASSERT(link.warmer != 0);
    if (kvt_order_coldest_node(order, list) == node) {
        order->links[link.warmer].colder = end;
        __builtin_prefetch(&order->links[order->links[link.warmer].warmer]);
        kvt_order_set_coldest_node(order, list, link.warmer);
    } else {
        order->links[link.colder].warmer = link.warmer;
        order->links[link.warmer].colder = link.colder;
    }
    order->links[node] = (struct kvt_link){ 0, 0 };
}

/* other, which is on no list, takes the place of number. */
KVT_INLINE void kvt_order_replace(struct kvt_order *order, uint32_t number, uint32_t other)
{
    const uint32_t node = kvt_order_node(order, number), other_node = kvt_order_node(order, other);
    const struct kvt_link link = order->links[node];
    KVT_ASSERT(link.warmer != 0);
    order->links[other_node] = link;
    kvt_order_set_warmer(order, link.colder, other_node);
    order->links[link.warmer].colder = other_node;
    order->links[node] = (struct kvt_link){ 0, 0 };
}

/* KVT_ORDER_NONE when the list is empty. */
KVT_INLINE uint32_t kvt_order_coldest(const struct kvt_order *order, uint32_t list)
{
    return kvt_order_number(order, kvt_order_coldest_node(order, list));
}

KVT_INLINE uint32_t kvt_order_warmest(const struct kvt_order *order, uint32_t list)
{
    return kvt_order_number(order, order->links[list + 1].colder);
}

/* The next number towards the warm end, KVT_ORDER_NONE past it. */
KVT_INLINE uint32_t kvt_order_warmer(const struct kvt_order *order, uint32_t number)
{
    return kvt_order_number(order, order->links[kvt_order_node(order, number)].warmer);
}

/* Walks a list, asserts its links, returns how many are on it. Tests only. */
KVT_INLINE uint32_t kvt_order_verify(const struct kvt_order *order, uint32_t list)
{
    uint32_t count = 0;
    uint32_t node = list + 1;
    KVT_ASSERT(kvt_order_coldest_node(order, list) == order->links[node].warmer);
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
