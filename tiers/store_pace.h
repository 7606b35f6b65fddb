/*
 * store_pace: how fast the disk writes, measured, so that the queue of puts can be bounded by the time to drain it.
 *
 * The speed is bytes over the time in which a write was in flight. A disk that says nothing for longer than the bound
 * counts as stopped, whatever it was measured at. What the bound refuses is counted by the caller; nothing is ever
 * dropped that was accepted.
 * Thread:  begin and end: the I/O thread; allows: any.
 */
#ifndef KVT_TIERS_STORE_PACE_H
#define KVT_TIERS_STORE_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct kvt_pace {
    uint64_t drain_ns_max; /* fixed at open */
    /* Read by any thread: relaxed atomics. */
    uint64_t bytes_per_s; /* 0: not known yet */
    uint64_t heard_ns;    /* when the disk last ended a write, or was given the first one */
    uint32_t writes;      /* in flight */
    /* The I/O thread's: a window of measuring. */
    uint64_t busy_ns, bytes;
};

void kvt_pace_begin(struct kvt_pace *pace, uint64_t now_ns);
void kvt_pace_end(struct kvt_pace *pace, uint64_t bytes, uint64_t now_ns);

/* One more put of `bytes` may wait behind the queued ones. With an empty queue the answer is always yes. */
bool kvt_pace_allows(const struct kvt_pace *pace, uint64_t queued_bytes, uint64_t bytes, uint64_t now_ns);

static inline uint64_t kvt_pace_bytes_per_s(const struct kvt_pace *pace)
{
    return __atomic_load_n(&pace->bytes_per_s, __ATOMIC_RELAXED);
}

#endif
