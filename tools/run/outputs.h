/*
 * outputs: the files that a run writes beside its report: --trace-out and --record.
 *
 * Files are opened before anything runs, so that one that cannot be written refuses the command, and filled when the
 * run is over.
 */
#ifndef KVT_TOOLS_RUN_OUTPUTS_H
#define KVT_TOOLS_RUN_OUTPUTS_H

#include "tools/run/options.h"
#include "tools/run/record.h"
#include "tools/run/trace_out.h"

enum { KVT_OUTPUTS_WATCHES_MAX = 4 };

struct kvt_outputs {
    const char *command;
    const struct kvt_run_options *options;
    struct kvt_trace_out *trace;
    FILE *record_file;
    struct kvt_record record;
    struct kvt_schedule_watch record_watch;
    const struct kvt_schedule_watch *watches[KVT_OUTPUTS_WATCHES_MAX + 1]; /* ended by NULL */
    uint32_t watch_count;
};

/*
 * KVT_EXIT_OK, or one line was printed and nothing is open. Borrows command, options and workload until done; the
 * struct must not move. start_ns: of the run's clock.
 */
int kvt_outputs_open(struct kvt_outputs *outputs, const char *command, const struct kvt_run_options *options,
                     const struct kvt_workload *workload, uint64_t start_ns);

/* One more that watches the schedule, beside the files. */
void kvt_outputs_watch(struct kvt_outputs *outputs, const struct kvt_schedule_watch *watch);

/* Makes env tell of transfers, if a file wants to know. Before the runtime is opened. */
void kvt_outputs_watch_transfers(struct kvt_outputs *outputs, struct kvt_env *env);

/*
 * Fills and closes the files; is_run false: nothing ran, and they are removed again. The runtime is closed. KVT_EXIT_OK,
 * or one line was printed.
 */
int kvt_outputs_finish(struct kvt_outputs *outputs, bool is_run);

#endif
