/*
 * outputs: the files that a run writes beside its report: --trace-out and --record.
 *
 * Before anything runs it is asked whether they can be written, so that one that cannot refuses the command. They are
 * written when the run has come to a report, be it an interrupted one; else what was there is as it was.
 */
#ifndef KVT_TOOLS_RUN_OUTPUTS_H
#define KVT_TOOLS_RUN_OUTPUTS_H

#include "tools/output_file.h"
#include "tools/run/options.h"
#include "tools/run/record.h"
#include "tools/run/trace_out.h"

enum { KVT_OUTPUTS_WATCHES_MAX = 4, KVT_OUTPUTS_FILES = 5 };

struct kvt_outputs {
    const char *command;
    const struct kvt_run_options *options;
    struct kvt_trace_out *trace;
    struct kvt_output_file trace_file, record_file;
    bool has_run; /* set by who runs: there is something to write */
    struct kvt_record record;
    struct kvt_schedule_watch record_watch;
    const struct kvt_schedule_watch *watches[KVT_OUTPUTS_WATCHES_MAX + 1]; /* ended by NULL */
    uint32_t watch_count;
};

/* Every file that the command line names, read or written, for kvt_output_files_check(). */
void kvt_outputs_name_files(const struct kvt_run_options *options, struct kvt_named_file ret_files[KVT_OUTPUTS_FILES]);

/* Before anything is read: refuses a file that is named twice. KVT_EXIT_OK, or one line was printed. */
int kvt_outputs_check(const char *command, const struct kvt_run_options *options);

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
 * Writes the files, if has_run, and lets go of everything. The runtime is closed. KVT_EXIT_OK, or one line was printed
 * for each file that is as it was.
 */
int kvt_outputs_finish(struct kvt_outputs *outputs);

#endif
