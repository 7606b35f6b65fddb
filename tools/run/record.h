/*
 * record: a run's requests as a trace that run and sim replay (tools/workload/trace_mooncake.c).
 *
 * One line a completed request, in the workload's order: timestamp, input_length, output_length, hash_ids and, beyond
 * the published format, output_hash_ids, so that a turn that goes on from what the one before generated shares it in the
 * replay as well; session_id, turn, think_ms where there is a session; api_ms, what the request took. Two requests have
 * the same id at a block exactly when they have the same tokens up to its end.
 *
 * Memory:  an id for each different block, and the identities of two contexts.
 * Thread:  the schedule's.
 */
#ifndef KVT_TOOLS_RUN_RECORD_H
#define KVT_TOOLS_RUN_RECORD_H

#include <stdio.h>

#include "tools/run/schedule.h"

struct kvt_record {
    const struct kvt_workload *workload;
    uint64_t *took_ns; /* [request_count]; UINT64_MAX: not completed */
};

/* workload is borrowed until done. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_record_init(struct kvt_record *record, const struct kvt_workload *workload);
void kvt_record_done(struct kvt_record *record);

/* A turn was completed. */
void kvt_record_turn(struct kvt_record *record, const struct kvt_turn *turn);

/* Writes all lines. IO: errno says why | NOMEM. */
KVT_NODISCARD enum kvt_status kvt_record_write(const struct kvt_record *record, FILE *stream);

#endif
