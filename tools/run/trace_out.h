/*
 * trace_out: what happened in a run, as a file that Perfetto and Chrome's trace viewer open (the JSON trace-event
 * format): steps, stalls with their causes, transfers by tier and direction, what each sequence did, and how full the
 * tiers were.
 *
 *   process 1  engine      one track of steps, one of stalls
 *   process 2  transfers   tracks by direction: as many as were in flight at once
 *   process 3  sequences   one track a conversation: its turns, and in each: queued, prefill, decode
 *   process 4  tiers       counters: bytes in use
 *
 * Times are microseconds from the start, to the nanosecond. Spans of one track never overlap but nest. Transfers whose
 * args have no "failed" add up to the counters of the runtime, stalls to the stall time of the report.
 *
 * Memory:  grows with what happens, 40 to 80 bytes an event; written as a file by write().
 * Thread:  the transfer's callback under the runtime's lock, in any thread; everything else in the schedule's.
 */
#ifndef KVT_TOOLS_RUN_TRACE_OUT_H
#define KVT_TOOLS_RUN_TRACE_OUT_H

#include <stdio.h>

#include "runtime/base/env.h"
#include "tools/run/schedule.h"

struct kvt_trace_out;

/* start_ns: the time that the file calls 0. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_trace_out_create(uint64_t start_ns, struct kvt_trace_out **ret_out);

/* For env->on_transfer, with the trace as its user. */
void kvt_trace_out_transfer(void *user, const struct kvt_transfer_event *event);

/* For kvt_schedule_options.watch; valid until destroy. */
const struct kvt_schedule_watch *kvt_trace_out_watch(struct kvt_trace_out *out);

/* Writes everything, once; nothing of the runtime may be going on. IO: not all of it, errno says why | NOMEM: likewise. */
KVT_NODISCARD enum kvt_status kvt_trace_out_write(struct kvt_trace_out *out, FILE *stream);

/* Nulls the pointer; NULL is fine. */
void kvt_trace_out_destroy(struct kvt_trace_out **out);

#endif
