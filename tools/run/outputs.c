#include "tools/run/outputs.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "tools/cli.h"

static void on_turn(void *user, const struct kvt_turn *turn) { kvt_record_turn(user, turn); }

void kvt_outputs_watch(struct kvt_outputs *outputs, const struct kvt_schedule_watch *watch)
{
    KVT_ASSERT(outputs->watch_count < KVT_OUTPUTS_WATCHES_MAX);
    outputs->watches[outputs->watch_count++] = watch;
}

void kvt_outputs_watch_transfers(struct kvt_outputs *outputs, struct kvt_env *env)
{
    if (!outputs->trace) return;
    env->on_transfer = kvt_trace_out_transfer;
    env->transfer_user = outputs->trace;
}

void kvt_outputs_name_files(const struct kvt_run_options *options, struct kvt_named_file ret_files[KVT_OUTPUTS_FILES])
{
    const struct kvt_named_file files[KVT_OUTPUTS_FILES] = { { "--trace", options->workload.trace, false },
                                                             { "--nvme-key-file", options->nvme_key_path, false },
                                                             { "--record", options->record, true },
                                                             { "--trace-out", options->trace_out, true },
                                                             { "--metrics", options->metrics_path, true } };
    memcpy(ret_files, files, sizeof files);
}

int kvt_outputs_check(const char *command, const struct kvt_run_options *options)
{
    struct kvt_named_file files[KVT_OUTPUTS_FILES];
    kvt_outputs_name_files(options, files);
    return kvt_output_files_check(command, files, KVT_OUTPUTS_FILES);
}

static int open_record(struct kvt_outputs *outputs, const struct kvt_workload *workload)
{
    const int refused = kvt_output_file_open_option(&outputs->record_file, outputs->command, "--record",
                                                    outputs->options->record);
    if (refused != KVT_EXIT_OK) return refused;
    if (kvt_record_init(&outputs->record, workload) != KVT_OK) return kvt_failure(outputs->command, "out of memory");
    outputs->record_watch = (struct kvt_schedule_watch){ .on_turn = on_turn, .user = &outputs->record };
    kvt_outputs_watch(outputs, &outputs->record_watch);
    return KVT_EXIT_OK;
}

static int open_trace(struct kvt_outputs *outputs, uint64_t start_ns)
{
    const int refused = kvt_output_file_open_option(&outputs->trace_file, outputs->command, "--trace-out",
                                                    outputs->options->trace_out);
    if (refused != KVT_EXIT_OK) return refused;
    if (kvt_trace_out_create(start_ns, &outputs->trace) != KVT_OK)
        return kvt_failure(outputs->command, "out of memory");
    kvt_outputs_watch(outputs, kvt_trace_out_watch(outputs->trace));
    return KVT_EXIT_OK;
}

static void let_go(struct kvt_outputs *outputs)
{
    kvt_output_file_abandon(&outputs->record_file);
    kvt_output_file_abandon(&outputs->trace_file);
    kvt_record_done(&outputs->record);
    kvt_trace_out_destroy(&outputs->trace);
}

int kvt_outputs_open(struct kvt_outputs *outputs, const char *command, const struct kvt_run_options *options,
                     const struct kvt_workload *workload, uint64_t start_ns)
{
    int exit_status = KVT_EXIT_OK;
    *outputs = (struct kvt_outputs){ .command = command, .options = options };
    if (options->record) exit_status = open_record(outputs, workload);
    if (exit_status == KVT_EXIT_OK && options->trace_out) exit_status = open_trace(outputs, start_ns);
    if (exit_status != KVT_EXIT_OK) let_go(outputs);
    return exit_status;
}

/* Puts the file in its place, if what filled it says OK. KVT_EXIT_OK, or one line was printed. */
static int commit(struct kvt_outputs *outputs, struct kvt_output_file *file, enum kvt_status status, const char *option,
                  const char *path)
{
    const int error = errno;
    const int committed = status == KVT_OK ? kvt_output_file_commit(file) : error;
    if (status == KVT_OK && committed == 0) return KVT_EXIT_OK;
    return kvt_failure(outputs->command, "%s %.200s: %s", option, path,
                       status == KVT_NOMEM ? "out of memory" : strerror(committed));
}

static int write_record(struct kvt_outputs *outputs)
{
    FILE *stream = NULL;
    enum kvt_status status = KVT_IO;
    if (!outputs->record_file.is_open) return KVT_EXIT_OK;
    errno = kvt_output_file_begin(&outputs->record_file, &stream);
    if (stream) status = kvt_record_write(&outputs->record, stream);
    return commit(outputs, &outputs->record_file, status, "--record", outputs->options->record);
}

static int write_trace(struct kvt_outputs *outputs)
{
    FILE *stream = NULL;
    enum kvt_status status = KVT_IO;
    if (!outputs->trace_file.is_open) return KVT_EXIT_OK;
    errno = kvt_output_file_begin(&outputs->trace_file, &stream);
    if (stream) status = kvt_trace_out_write(outputs->trace, stream);
    return commit(outputs, &outputs->trace_file, status, "--trace-out", outputs->options->trace_out);
}

int kvt_outputs_finish(struct kvt_outputs *outputs)
{
    int exit_status = KVT_EXIT_OK;
    if (outputs->has_run) {
        exit_status = write_record(outputs);
        const int traced = write_trace(outputs);
        if (exit_status == KVT_EXIT_OK) exit_status = traced;
    }
    let_go(outputs);
    return exit_status;
}
