#include "tools/run/outputs.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
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

static int refuse(const struct kvt_outputs *outputs, const char *option, const char *path, int error)
{
    return kvt_usage_error(outputs->command, "%s is '%s': it cannot be written: %s", option, path, strerror(error));
}

/* Two files that write over each other are none. */
static int refuse_same(const struct kvt_outputs *outputs)
{
    const struct kvt_run_options *options = outputs->options;
    const struct {
        const char *option, *path;
    } files[] = { { "--record", options->record },
                  { "--trace-out", options->trace_out },
                  { "--metrics", options->metrics_path } };
    for (uint32_t i = 1; i < KVT_ARRAY_COUNT(files); i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (files[i].path && files[j].path && strcmp(files[i].path, files[j].path) == 0)
                return kvt_usage_error(outputs->command, "%s is '%s': %s writes that file", files[i].option,
                                       files[i].path, files[j].option);
        }
    }
    return KVT_EXIT_OK;
}

static int open_record(struct kvt_outputs *outputs, const struct kvt_workload *workload)
{
    outputs->record_file = fopen(outputs->options->record, "w");
    if (!outputs->record_file) return refuse(outputs, "--record", outputs->options->record, errno);
    if (kvt_record_init(&outputs->record, workload) != KVT_OK) return kvt_failure(outputs->command, "out of memory");
    outputs->record_watch = (struct kvt_schedule_watch){ .on_turn = on_turn, .user = &outputs->record };
    kvt_outputs_watch(outputs, &outputs->record_watch);
    return KVT_EXIT_OK;
}

int kvt_outputs_open(struct kvt_outputs *outputs, const char *command, const struct kvt_run_options *options,
                     const struct kvt_workload *workload, uint64_t start_ns)
{
    *outputs = (struct kvt_outputs){ .command = command, .options = options };
    int exit_status = refuse_same(outputs);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    if (options->record) exit_status = open_record(outputs, workload);
    if (exit_status == KVT_EXIT_OK && options->trace_out) {
        int error = 0;
        const enum kvt_status status = kvt_trace_out_open(options->trace_out, start_ns, &outputs->trace, &error);
        if (status == KVT_NOMEM) exit_status = kvt_failure(command, "out of memory");
        else if (status != KVT_OK) exit_status = refuse(outputs, "--trace-out", options->trace_out, error);
        else kvt_outputs_watch(outputs, kvt_trace_out_watch(outputs->trace));
    }
    if (exit_status != KVT_EXIT_OK && outputs->record_file) {
        (void)fclose(outputs->record_file);
        kvt_remove_output(options->record);
        kvt_record_done(&outputs->record);
    }
    return exit_status;
}

static int finish_record(struct kvt_outputs *outputs)
{
    if (!outputs->record_file) return KVT_EXIT_OK;
    errno = 0;
    enum kvt_status status = kvt_record_write(&outputs->record, outputs->record_file);
    if (fclose(outputs->record_file) != 0 && status == KVT_OK) status = KVT_IO;
    const int error = errno;
    kvt_record_done(&outputs->record);
    if (status == KVT_OK) return KVT_EXIT_OK;
    return kvt_failure(outputs->command, "--record %s: %s", outputs->options->record,
                       status == KVT_NOMEM ? "out of memory" : strerror(error));
}

int kvt_outputs_finish(struct kvt_outputs *outputs, bool is_run)
{
    int error = 0;
    int exit_status = finish_record(outputs);
    const enum kvt_status status = kvt_trace_out_close(&outputs->trace, &error);
    if (!is_run) {
        if (outputs->options->record) kvt_remove_output(outputs->options->record);
        if (outputs->options->trace_out) kvt_remove_output(outputs->options->trace_out);
        return KVT_EXIT_OK;
    }
    if (status == KVT_OK) return exit_status;
    return kvt_failure(outputs->command, "--trace-out %s: %s", outputs->options->trace_out,
                       status == KVT_NOMEM ? "out of memory" : strerror(error));
}
