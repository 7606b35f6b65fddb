/*
 * latencies: how long turns waited for their first token, and for each one after it.
 *
 * Thread: the schedule's. Fails: NOMEM in init.
 */
#ifndef KVT_TOOLS_RUN_LATENCIES_H
#define KVT_TOOLS_RUN_LATENCIES_H

#include "tools/run/schedule.h"

struct json_object;

struct kvt_latencies {
    uint64_t *first_ns; /* [turn_count]: from its arrival */
    uint64_t *token_ns; /* [spoken_count]: between later tokens, the turn's mean */
    uint32_t turn_count, spoken_count;
    struct kvt_schedule_watch watch;
};

/* For so many requests at most; the struct must not move until done. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_latencies_init(struct kvt_latencies *latencies, uint32_t request_count);
void kvt_latencies_done(struct kvt_latencies *latencies);

/* After the run, before anything is asked. */
void kvt_latencies_sort(struct kvt_latencies *latencies);

/* Milliseconds of a quantile, by nearest rank (nearest_rank.h); 0 without any. */
double kvt_latencies_first_ms(const struct kvt_latencies *latencies, double quantile);
double kvt_latencies_token_ms(const struct kvt_latencies *latencies, double quantile);

/* "first_token_ms" and "token_ms", each with p50, p90, p99 and max. */
void kvt_latencies_put(const struct kvt_latencies *latencies, struct json_object *object);

#endif
