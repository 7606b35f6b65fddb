/*
 * timed_build: what the files of virtual time share: timed_options.c (what is asked for), timed.c (runs), timed_report.c
 * (figures), timed_plot.c (the picture).
 */
#ifndef KVT_TOOLS_SIM_TIMED_BUILD_H
#define KVT_TOOLS_SIM_TIMED_BUILD_H

#include "tools/output_file.h"
#include "tools/run/latencies.h"
#include "tools/run/options.h"
#include "tools/sim/model.h"

enum { KVT_TIMED_JOBS_MAX = 4096, KVT_TIMED_SAMPLES_MAX = 1024, KVT_TIMED_LABEL_BYTES = 128 };

enum kvt_timed_format { KVT_TIMED_TABLE, KVT_TIMED_JSON, KVT_TIMED_CSV };

/* How full the tiers were at a time, and for how long had been stalled by then. */
struct kvt_timed_sample {
    uint64_t at_ns, stalled_ns;
    uint64_t used_bytes[KVT_TIERS];
};

/* At most KVT_TIMED_SAMPLES_MAX of them: when they are too many, every other one goes. */
struct kvt_timed_line {
    struct kvt_timed_sample *samples;
    uint32_t count, stride, skipped;
    uint64_t stalled_ns;
    struct kvt_schedule_watch watch;
};

struct kvt_timed_outcome {
    struct kvt_schedule_result run;
    struct kvt_stats stats;
    struct kvt_latencies latencies;
    uint64_t busy_ns, elapsed_ns;
    uint64_t stall_least_ns; /* no order of the same moves stalls less */
    uint64_t reused_most;    /* tokens: what knows the future reuses in as many blocks */
    bool has_reused_most;    /* all requests ran, and they were not too many to be counted */
    double seconds;          /* of this machine */
    struct kvt_timed_line line;
};

/* One point of the grid. */
struct kvt_timed_job {
    struct kvt_run_options options;
    char label[KVT_TIMED_LABEL_BYTES]; /* what it has that not all have */
    struct kvt_workload *workload;     /* borrowed: jobs of a seed share one */
    bool *is_refused;                  /* [request_count], likewise: it was said that the request is refused */
    struct kvt_timed_outcome outcome;
    int exit_status;
    char error[512]; /* one line, when that is not KVT_EXIT_OK */
};

struct kvt_timed {
    struct kvt_model_roofline roofline;
    struct kvt_model_links links; /* paces are a job's */
    bool has_links, has_gpu, has_pack_ratio, has_parameters;
    const char *links_path;
    enum kvt_timed_format format;
    const char *plot; /* NULL: none */
    uint32_t threads;
    struct kvt_timed_job *jobs;
    uint32_t job_count;
    void *memory; /* of the values that jobs borrow */
};

/* timed_options.c. KVT_EXIT_OK: jobs are there, without workloads; or one line was printed. */
int kvt_timed_parse(int argc, char **argv, struct kvt_timed *ret_timed);
void kvt_timed_done(struct kvt_timed *timed);

/* timed_report.c */
int kvt_timed_print(const struct kvt_timed *timed);
uint64_t kvt_timed_stalled_ns(const struct kvt_timed_outcome *outcome);

/* timed_plot.c. file: open, and not when this returns. KVT_EXIT_OK, or one line was printed. */
int kvt_timed_plot(const struct kvt_timed *timed, struct kvt_output_file *file);

#endif
