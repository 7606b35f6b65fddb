/* run: the main job. Replays a workload on the real runtime with real bytes and verifies every block it gets back. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "kvtier/kvtier.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/run/content.h"
#include "tools/run/engine.h"
#include "tools/run/latencies.h"
#include "tools/run/metrics_file.h"
#include "tools/run/options.h"
#include "tools/run/outputs.h"
#include "tools/run/report.h"
#include "tools/run/schedule.h"
#include "tools/run/stream.h"
#include "tools/text.h"

enum { EXIT_INTERRUPTED = 130, CLOSE_LIMIT_MS = 300 };

#define COMMAND "kvtier run"

static atomic_bool is_interrupted; /* shared: set by the signal handler */

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static void on_signal(int number)
{
    (void)number;
    atomic_store(&is_interrupted, true);
}

static void on_close_limit(int number)
{
    (void)number;
    _exit(EXIT_INTERRUPTED);
}

/* The first signal ends the run with its report; a second one ends the process. */
static void catch_signals(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

/*
 * After a signal, closing may not take long either: what is on disk by then is what a later run finds. Files beside the
 * report are written after that, without a limit.
 */
static void limit_close(bool is_limited)
{
    struct sigaction action = { .sa_handler = on_close_limit };
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGALRM, &action, NULL);
    const struct itimerval timer = { .it_value = { .tv_usec = is_limited ? CLOSE_LIMIT_MS * 1000 : 0 } };
    (void)setitimer(ITIMER_REAL, &timer, NULL);
}

/* ---- Talking ----------------------------------------------------------------------------------------------------- */

static void on_progress(void *user, uint64_t requests_over, uint64_t tokens_computed)
{
    char note[64];
    struct kvt_progress *progress = user;
    if (!progress->is_shown) return;
    (void)snprintf(note, sizeof note, "%s tokens computed", kvt_format_count(tokens_computed).text);
    kvt_progress_update(progress, requests_over, note);
}

static void on_refused(void *user, uint32_t request, const char *line)
{
    (void)user;
    (void)request;
    (void)kvt_failure(COMMAND, "%s", line);
}

static void on_log(void *user, enum kvt_log_level level, const char *line)
{
    (void)user;
    if (level <= KVT_LOG_WARN) (void)kvt_failure(COMMAND, "%s", line);
}

/* Names the option where the runtime names the field of its configuration that the option sets. */
static int refuse_open(const struct kvt_run_options *options, enum kvt_status status, const char *error)
{
    if (error[0] == '\0') return kvt_usage_error(COMMAND, "the runtime did not open: %s", kvt_status_text(status));
    char field[32];
    const size_t length = strcspn(error, " :.");
    if (length < sizeof field) {
        memcpy(field, error, length);
        field[length] = '\0';
        const char *option = kvt_run_option_of_field(field);
        if (option) return kvt_usage_error(COMMAND, "%s%s", option, error + length);
    }
    /* What is left is the store's: it knows a directory and a capacity, not who asked for them. */
    return kvt_usage_error(COMMAND, options->nvme_path[0] ? "--nvme: %s" : "%s", error);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

/* Bytes of the files in a directory, as the file system counts them. */
static uint64_t du_bytes(const char *path)
{
    uint64_t bytes = 0;
    DIR *directory = opendir(path);
    if (!directory) return 0;
    for (const struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        struct stat file;
        if (fstatat(dirfd(directory), entry->d_name, &file, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISREG(file.st_mode)) bytes += (uint64_t)file.st_blocks * 512;
    }
    (void)closedir(directory);
    return bytes;
}

/* Of all directories in the list. */
static uint64_t du_bytes_of_all(const char *list)
{
    char path[PATH_MAX];
    uint64_t bytes = 0;
    for (const char *next = list; *next;) {
        const size_t size = strcspn(next, ",");
        (void)snprintf(path, sizeof path, "%.*s", (int)size, next);
        bytes += du_bytes(path);
        next += size + (next[size] == ',');
    }
    return bytes;
}

/* Prints what the run came to; the exit status. */
static int print_report(const struct kvt_run_options *options, const struct kvt_report *report)
{
    const struct kvt_schedule_result *run = report->run;
    kvt_report_print_mismatches(report->checks, stderr);
    if (options->is_json) {
        if (kvt_report_print_json(report, stdout) != KVT_OK) return kvt_failure(COMMAND, "the report: out of memory");
    } else {
        kvt_report_print_table(report, stdout);
    }
    (void)fflush(stdout);
    if (run->outcome == KVT_OUTCOME_STUCK || run->outcome == KVT_OUTCOME_ERROR)
        return kvt_failure(COMMAND, "%s", run->error);
    if (run->outcome == KVT_OUTCOME_INTERRUPTED) return EXIT_INTERRUPTED;
    const struct kvt_stream_counts *stream = report->stream;
    const bool is_stream_right = !stream || stream->error_max <= KVT_STREAM_ERROR_MAX;
    const bool holds = report->checks->mismatches == 0 && run->requests_completed == run->requests && is_stream_right;
    return holds ? KVT_EXIT_OK : KVT_EXIT_FAILED;
}

/* streamer: NULL where requests larger than the device are refused. */
static int replay(const struct kvt_run_options *options, const struct kvt_workload *workload,
                  struct kvt_runtime *runtime, struct kvt_engine *engine, struct kvt_streamer *streamer,
                  struct kvt_outputs *outputs,
                  bool *ret_is_engine_busy)
{
    struct kvt_progress progress;
    struct kvt_latencies latencies;
    if (kvt_latencies_init(&latencies, workload->request_count) != KVT_OK) return kvt_failure(COMMAND, "out of memory");
    kvt_outputs_watch(outputs, &latencies.watch);
    kvt_progress_begin(&progress, "run", workload->request_count);
    const struct kvt_schedule_options how = {
        .arrival = options->arrival,
        .speed = options->speed,
        .has_pauses = options->pause_ns != UINT64_MAX,
        .pause_ns = workload->session_count > 0 && options->workload.trace ? options->pause_ns : UINT64_MAX,
        .batch = options->batch,
        .prefill_chunk = options->prefill_chunk,
        .step_ns = options->step_ns,
        .is_lookahead = options->prefetch == KVT_PREFETCH_LOOKAHEAD || options->prefetch == KVT_PREFETCH_SESSION,
        .is_arrived_only = options->is_expecting_arrived,
        .is_interrupted = &is_interrupted,
        .on_progress = on_progress,
        .on_refused = on_refused,
        .on_larger = streamer ? kvt_streamer_run : NULL,
        .larger_user = streamer,
        .user = &progress,
        .watches = outputs->watches,
    };
    struct kvt_schedule_result result;
    const struct kvt_env env = kvt_env_default();
    const uint64_t begun_ns = kvt_env_now_ns(&env);
    const enum kvt_status status = kvt_schedule_run(runtime, &options->model.shape, workload, engine, &how, &result);
    kvt_progress_end(&progress);
    if (status != KVT_OK) {
        kvt_latencies_done(&latencies);
        return kvt_failure(COMMAND, "the schedule: %s", kvt_status_text(status));
    }
    outputs->has_run = true;
    kvt_latencies_sort(&latencies);

    struct kvt_engine_counts checks = *kvt_engine_counts(engine);
    if (streamer) kvt_engine_counts_add(&checks, &kvt_streamer_counts(streamer)->checks);
    struct kvt_report report = {
        .workload = workload,
        .shape = &options->model.shape,
        .model = options->model_text,
        .device = kvt_device_name(runtime),
        .run = &result,
        .checks = &checks,
        .stream = streamer ? kvt_streamer_counts(streamer) : NULL,
        .latencies = &latencies,
        .seconds = (double)(kvt_env_now_ns(&env) - begun_ns) * 1e-9,
        .has_host = options->host_bytes > 0,
        .has_store = options->nvme_path[0] != '\0',
    };
    kvt_stats(runtime, &report.stats);
    if (report.has_store) report.du_bytes = du_bytes_of_all(options->nvme_path);
    *ret_is_engine_busy = result.is_engine_busy;
    const int exit_status = print_report(options, &report);
    kvt_latencies_done(&latencies);
    return exit_status;
}

static int run_on(const struct kvt_run_options *options, const struct kvt_workload *workload,
                  struct kvt_runtime *runtime, struct kvt_outputs *outputs)
{
    struct kvt_content content;
    if (kvt_content_init(&content, &options->model.shape) != KVT_OK) return kvt_failure(COMMAND, "out of memory");
    const struct kvt_engine_options how = {
        .verify = options->verify,
        .read = options->read,
        .step_ns = options->step_ns,
        .is_interrupted = &is_interrupted,
    };
    struct kvt_engine *engine = NULL;
    struct kvt_streamer *streamer = NULL;
    bool is_engine_busy = false;
    int exit_status;
    enum kvt_status status = kvt_engine_create(runtime, &options->model.shape, &content, &how, &engine);
    if (status == KVT_OK && options->is_streaming)
        status = kvt_streamer_create(runtime, &options->model.shape, &content, &how, &streamer);
    if (status == KVT_OK) {
        exit_status = replay(options, workload, runtime, engine, streamer, outputs, &is_engine_busy);
    } else if (status == KVT_UNSUPPORTED) {
        exit_status = kvt_failure(COMMAND, "the %s device gives no stream", kvt_device_name(runtime));
    } else {
        exit_status = kvt_failure(COMMAND, "%s", kvt_status_text(status));
    }
    /* A step that never ends holds the engine and the runtime: neither can be closed, and the report is out. */
    if (is_engine_busy) _exit(exit_status);
    kvt_streamer_destroy(&streamer);
    kvt_engine_destroy(&engine);
    kvt_content_done(&content);
    return exit_status;
}

/* The run, and its metrics in a file while it goes on, when that was asked for. */
static int run_watched(const struct kvt_run_options *options, const struct kvt_workload *workload,
                       struct kvt_runtime *runtime, struct kvt_outputs *outputs)
{
    struct kvt_metrics_file *file = NULL;
    const int error = options->metrics_path ? kvt_metrics_file_start(runtime, options->metrics_path, &file) : 0;
    if (error != 0)
        return kvt_usage_error(COMMAND, "--metrics is '%s': it cannot be written: %s", options->metrics_path,
                               strerror(error));
    const int exit_status = run_on(options, workload, runtime, outputs);
    kvt_metrics_file_stop(&file);
    return exit_status;
}

int kvt_cmd_run(int argc, char **argv)
{
    struct kvt_run_options options;
    char error[512] = "";
    const int parsed = kvt_run_options_parse(argc, argv, &options);
    if (parsed != KVT_EXIT_OK) return parsed;
    const int named = kvt_outputs_check(COMMAND, &options);
    if (named != KVT_EXIT_OK) return named;

    if (kvt_run_options_is_expect_idle(&options)) return kvt_usage_error(COMMAND, "%s", KVT_RUN_EXPECT_IDLE);
    if (options.device == KVT_DEVICE_CUDA && options.link_hbm_bytes_per_s > 0)
        return kvt_usage_error(COMMAND, "--link-hbm needs --device emulated: nothing paces a real link");
    struct kvt_workload *workload;
    enum kvt_status status = kvt_workload_create(&options.workload, &workload, error, sizeof error);
    if (status != KVT_OK) {
        const char *option = options.workload.trace ? "--trace" : "--workload";
        return kvt_usage_error(COMMAND, "%s: %s", option, error[0] ? error : kvt_status_text(status));
    }
    const int paused = kvt_run_options_check_pauses(COMMAND, &options, workload->session_count);
    if (paused != KVT_EXIT_OK) {
        kvt_workload_destroy(&workload);
        return paused;
    }
    catch_signals();
    struct kvt_env env = kvt_env_default();
    env.log = on_log;
    env.seed = options.workload.seed;
    struct kvt_outputs outputs;
    const int opened = kvt_outputs_open(&outputs, COMMAND, &options, workload, kvt_env_now_ns(&env));
    if (opened != KVT_EXIT_OK) {
        kvt_workload_destroy(&workload);
        return opened;
    }
    kvt_outputs_watch_transfers(&outputs, &env);
    struct kvt_config config = kvt_run_options_config(&options);
    config.env = &env;
    config.sequences_max = kvt_max_u32(4096, kvt_min_u32(workload->request_count, 1u << 20) + 16);
    struct kvt_runtime *runtime = NULL;
    error[0] = '\0';
    status = kvt_open(&config, &runtime, error, sizeof error);
    int exit_status;
    if (status == KVT_OK) {
        exit_status = run_watched(&options, workload, runtime, &outputs);
        if (exit_status == EXIT_INTERRUPTED) limit_close(true);
        kvt_close(&runtime);
        limit_close(false);
    } else {
        exit_status = refuse_open(&options, status, error);
    }
    const int finished = kvt_outputs_finish(&outputs);
    if (exit_status == KVT_EXIT_OK) exit_status = finished;
    kvt_workload_destroy(&workload);
    return exit_status;
}
