/*
 * report: what counting came to, as JSON, CSV, or a table for people.
 *
 * Thread: any; no state.
 */
#ifndef KVT_TOOLS_SIM_REPORT_H
#define KVT_TOOLS_SIM_REPORT_H

#include <stdio.h>

#include "tools/sim/options.h"

/* One trace, loaded. */
struct kvt_sim_trace {
    const char *name;
    struct kvt_accesses accesses;
    double load_seconds;
};

struct kvt_sim_report {
    const struct kvt_sim_options *options;
    const struct kvt_sim_trace *traces;
    uint32_t trace_count;
    const struct kvt_count_job *jobs; /* by trace, policy, admission (of the bound: one), capacity */
    const uint32_t *job_traces;       /* [job_count] */
    const struct kvt_count_result *results;
    uint32_t job_count;
    double seconds; /* counting, all threads together by the clock */
};

const char *kvt_sim_policy_name(const struct kvt_policy_ops *policy); /* NULL: belady */

/* NOMEM. */
KVT_NODISCARD enum kvt_status kvt_sim_print(const struct kvt_sim_report *report, FILE *stream);

#endif
