/*
 * report: what a run came to, as JSON for programs and as a table for people.
 *
 * Thread: any; no state.
 */
#ifndef KVT_TOOLS_RUN_REPORT_H
#define KVT_TOOLS_RUN_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kvtier/kvtier.h"
#include "runtime/base/status.h"
#include "tools/run/engine.h"
#include "tools/run/latencies.h"
#include "tools/run/schedule.h"
#include "tools/run/stream.h"
#include "tools/workload/workload.h"

struct kvt_report {
    const struct kvt_workload *workload;
    const struct kvt_model_shape *shape;
    const char *model;
    const char *device;
    const struct kvt_schedule_result *run;
    const struct kvt_engine_counts *checks;
    const struct kvt_stream_counts *stream; /* NULL: nothing is streamed */
    const struct kvt_latencies *latencies;  /* sorted */
    struct kvt_stats stats;                 /* taken when the run ended */
    uint64_t du_bytes; /* blocks of the store's files, as the file system counts them; 0: no store */
    double seconds;
    bool has_host, has_store;
};

/* What a run did to memory, beside what contiguous preallocation would have done with the same HBM. */
struct kvt_report_memory {
    double used_over_allocated;    /* mean over the run's samples; 0 without any, and then it is not shown */
    uint64_t working_set_bytes;    /* raw KV of every token that was computed, once */
    uint64_t fast_bytes;           /* capacity of HBM and host together */
    uint64_t max_length_tokens;    /* longest context of the workload */
    uint64_t sequences_contiguous; /* that fit at once when each reserves that much in every layer */
    /* that fit at once at what sequences claimed when their turns ended, nothing shared; not shown when all were streamed */
    uint64_t sequences_paged;
};
struct kvt_report_memory kvt_report_memory(const struct kvt_report *report);

/* Raw bytes over bytes taken; 0 when nothing was taken. */
double kvt_report_ratio(uint64_t raw_bytes, uint64_t taken_bytes);

/* One JSON object and a newline. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_report_print_json(const struct kvt_report *report, FILE *stream);

void kvt_report_print_table(const struct kvt_report *report, FILE *stream);

/* The kept mismatches, one line each, then how many more there are. */
void kvt_report_print_mismatches(const struct kvt_engine_counts *checks, FILE *stream);

#endif
