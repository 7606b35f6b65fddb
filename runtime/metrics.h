/*
 * metrics: what the core measures of itself besides kvt_counters: how long transfers took, why they failed, what steps
 * waited for. metrics_text.c writes all of it down for operators; fault_log.c tells of failures as they come.
 *
 * Thread: under the runtime's lock.
 */
#ifndef KVT_RUNTIME_METRICS_H
#define KVT_RUNTIME_METRICS_H

#include "kvtier/kvtier.h"
#include "runtime/transfer.h"

#define KVT_HISTOGRAM_BOUNDS 22
#define KVT_HISTOGRAM_FIRST_NS UINT64_C(8192) /* each bound is twice the one before: 8.192 us to 17.2 s */

/* counts[i]: values of at most bound i and above the one before; the last one: longer than all bounds. */
struct kvt_histogram {
    uint64_t counts[KVT_HISTOGRAM_BOUNDS + 1];
    uint64_t sum_ns;
};

static inline uint64_t kvt_histogram_bound_ns(uint32_t i) { return KVT_HISTOGRAM_FIRST_NS << i; }

void kvt_histogram_add(struct kvt_histogram *histogram, uint64_t ns);

enum kvt_failure {
    KVT_FAILURE_IO,       /* the device said so */
    KVT_FAILURE_CORRUPT,  /* a check of the bytes failed */
    KVT_FAILURE_NOTFOUND, /* the record was gone */
    KVT_FAILURE_FULL,     /* the store had no room, or would have been too slow */
    KVT_FAILURE_SHUTDOWN, /* it ended before it began */
    KVT_FAILURE_DEADLINE, /* given up: it did not come back in time */
    KVT_FAILURE_COUNT
};

struct kvt_metrics {
    struct kvt_histogram whole[KVT_LEGS]; /* from its reservation to its end, queues included */
    struct kvt_histogram link[KVT_LEGS];  /* on the link or the disk alone */
    struct kvt_histogram codec[KVT_LEGS]; /* packing or unpacking */
    uint64_t failures[KVT_LEGS][KVT_FAILURE_COUNT];
    uint64_t stalls[KVT_STALL_COUNT]; /* waits of a sequence that a step wanted, by their first cause */
    uint64_t stall_ns[KVT_STALL_COUNT];
    uint64_t steps;
};

const char *kvt_leg_name(enum kvt_leg leg);              /* "device_to_host" */
const char *kvt_failure_name(enum kvt_failure failure);  /* "corrupt" */
enum kvt_failure kvt_failure_of(enum kvt_status status); /* status is not OK */

/* The op of a leg is back after `ns`; is_failure: and its status counts as one. */
void kvt_metrics_leg_done(struct kvt_metrics *metrics, const struct kvt_transfer *transfer, uint64_t ns,
                          bool is_failure);

#endif
