/*
 * fault_log: one line whenever a fault was absorbed, so that an operator learns of it though every reader was served.
 *
 * At most one line a second for each leg and reason: a disk that fails a thousand times says so once a second, with the
 * number of times. Written outside of the core, which calls nobody back.
 *
 * Thread: under the runtime's lock.
 */
#ifndef KVT_RUNTIME_FAULT_LOG_H
#define KVT_RUNTIME_FAULT_LOG_H

#include "runtime/metrics.h"

struct kvt_env;
struct kvt_core;

struct kvt_fault_log {
    uint64_t told[KVT_LEGS][KVT_FAILURE_COUNT]; /* of metrics.failures: what the lines so far have said */
    uint64_t told_ns[KVT_LEGS][KVT_FAILURE_COUNT];
    uint64_t lost_told, lost_told_ns; /* the same of counters.lost_blocks */
    uint64_t seen;                    /* sum of what was failed and lost at the last look: nothing new, nothing to do */
    bool is_owing;                    /* something was kept back by the limit */
};

/* is_last: nothing is kept back. */
void kvt_fault_log_write(struct kvt_fault_log *log, const struct kvt_core *core, const struct kvt_env *env,
                         bool is_last);

#endif
