#include "tools/sim/timed.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/mem.h"
#include "tools/cli.h"
#include "tools/run/outputs.h"
#include "tools/sim/belady.h"
#include "tools/sim/timed_build.h"

#define COMMAND "kvtier sim"

uint64_t kvt_timed_stalled_ns(const struct kvt_timed_outcome *outcome)
{
    uint64_t stalled_ns = 0;
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) stalled_ns += outcome->run.stall_ns[i];
    return stalled_ns;
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/*
 * What the links alone take for what was fetched, less the time that they had it for themselves: no order of moves
 * stalls less.
 */
static uint64_t stall_least_ns(const struct kvt_timed_outcome *outcome, const struct kvt_model_links *links)
{
    const uint64_t stalled_ns = kvt_timed_stalled_ns(outcome);
    const uint64_t device_bytes = outcome->stats.tiers[KVT_TIER_DEVICE].bytes_in;
    const uint64_t nvme_bytes = outcome->stats.tiers[KVT_TIER_NVME].bytes_out;
    const uint64_t device_ns = kvt_max_u64(kvt_model_link_ns(device_bytes, links->to_device_bytes_per_s),
                                           kvt_model_link_ns(device_bytes, links->hbm_pace_bytes_per_s));
    const uint64_t nvme_ns = kvt_max_u64(kvt_model_link_ns(nvme_bytes, links->nvme_read_bytes_per_s),
                                         kvt_model_link_ns(nvme_bytes, links->nvme_pace_bytes_per_s));
    const uint64_t free_ns = outcome->elapsed_ns - kvt_min_u64(outcome->elapsed_ns, stalled_ns);
    const uint64_t need_ns = kvt_max_u64(device_ns, nvme_ns);
    return need_ns > free_ns ? need_ns - free_ns : 0;
}

/* Blocks of one token range that all tiers hold together, packed ones counted as packed. */
static uint32_t blocks_in_all(const struct kvt_timed_job *job, double pack_ratio)
{
    const struct kvt_model_shape *shape = &job->options.model.shape;
    uint64_t block_bytes = 0;
    for (uint32_t g = 0; g < shape->group_count; g++)
        block_bytes += kvt_group_block_bytes(&shape->groups[g], shape->block_tokens);
    const struct kvt_tier_stats *tiers = job->outcome.stats.tiers;
    const double bytes = (double)tiers[KVT_TIER_DEVICE].capacity_bytes
        + pack_ratio * ((double)tiers[KVT_TIER_HOST].capacity_bytes + (double)tiers[KVT_TIER_NVME].capacity_bytes);
    const double blocks = bytes / (double)block_bytes + 1;
    return blocks < (double)(1u << 30) ? (uint32_t)blocks : 1u << 30;
}

/*
 * Prompt tokens that a cache of as many blocks reuses when it knows the future and requests come in the workload's
 * order, and what a session's turn may have besides, in its last block.
 */
static enum kvt_status find_reused_most(struct kvt_timed_job *job, double pack_ratio)
{
    struct kvt_accesses accesses;
    struct kvt_count_result result = { 0 };
    const struct kvt_workload *workload = job->workload;
    /* What did not run reused nothing, and what it would have had is no bound on what the others did. */
    if (job->outcome.run.requests_failed > 0) return KVT_OK;
    enum kvt_status status = kvt_accesses_init_contexts(&accesses, workload);
    if (status == KVT_OK) {
        const struct kvt_count_job count = { .accesses = &accesses,
                                             .mode = KVT_COUNT_PREFIX,
                                             .capacities = { blocks_in_all(job, pack_ratio) },
                                             .tier_count = 1,
                                             .repeat = 1 };
        status = kvt_count(&count, &result);
    }
    kvt_accesses_done(&accesses);
    if (status != KVT_OK) return status == KVT_INVAL ? KVT_OK : status; /* too many accesses to be counted: no bound */
    uint64_t tails = 0;
    for (uint32_t r = 0; r < workload->request_count; r++)
        tails += workload->requests[r].turn > 0 ? workload->block_tokens - 1 : 0;
    job->outcome.reused_most = kvt_min_u64(job->outcome.run.tokens_prompt,
                                           result.hits * workload->block_tokens + tails);
    job->outcome.has_reused_most = true;
    return KVT_OK;
}

/* ---- The line of time -------------------------------------------------------------------------------------------- */

static void on_stall(void *user, enum kvt_stall_cause cause, uint64_t from_ns, uint64_t to_ns)
{
    (void)cause;
    ((struct kvt_timed_line *)user)->stalled_ns += to_ns - from_ns;
}

static void on_sample(void *user, uint64_t now_ns, const struct kvt_stats *stats)
{
    struct kvt_timed_line *line = user;
    if (++line->skipped < line->stride) return;
    line->skipped = 0;
    if (line->count == KVT_TIMED_SAMPLES_MAX) {
        for (uint32_t i = 0; i < line->count / 2; i++) line->samples[i] = line->samples[2 * i + 1];
        line->count /= 2;
        line->stride *= 2;
    }
    struct kvt_timed_sample *sample = &line->samples[line->count++];
    *sample = (struct kvt_timed_sample){ .at_ns = now_ns, .stalled_ns = line->stalled_ns };
    for (uint32_t t = 0; t < KVT_TIERS; t++) sample->used_bytes[t] = stats->tiers[t].used_bytes;
}

static enum kvt_status line_init(struct kvt_timed_line *line)
{
    line->samples = kvt_alloc(KVT_TIMED_SAMPLES_MAX, sizeof *line->samples);
    line->stride = 1;
    line->watch = (struct kvt_schedule_watch){ .on_stall = on_stall, .on_sample = on_sample, .user = line };
    return line->samples ? KVT_OK : KVT_NOMEM;
}

/* ---- One job ----------------------------------------------------------------------------------------------------- */

struct crew {
    const struct kvt_timed *timed;
    pthread_mutex_t lock;
    uint32_t next;                /* shared: under lock */
    bool is_over;                 /* shared: a job failed, no more are begun */
    uint64_t requests_over;       /* shared: of all jobs */
    struct kvt_progress progress; /* shared */
};

/* What a job's schedule reports to. */
struct reporter {
    struct crew *crew;
    uint64_t requests_over; /* of this job, counted in the crew's */
    struct kvt_timed_job *job;
};

static void on_progress(void *user, uint64_t requests_over, uint64_t tokens_computed)
{
    struct reporter *reporter = user;
    struct crew *crew = reporter->crew;
    (void)tokens_computed;
    if (requests_over == reporter->requests_over) return;
    (void)pthread_mutex_lock(&crew->lock);
    crew->requests_over += requests_over - reporter->requests_over;
    reporter->requests_over = requests_over;
    kvt_progress_update(&crew->progress, crew->requests_over, NULL);
    (void)pthread_mutex_unlock(&crew->lock);
}

/* Said once, however many points of the grid refuse the request. */
static void on_refused(void *user, uint32_t request, const char *line)
{
    const struct reporter *reporter = user;
    (void)pthread_mutex_lock(&reporter->crew->lock);
    bool *is_refused = &reporter->job->is_refused[request];
    if (!*is_refused) (void)kvt_failure(COMMAND, "%s", line);
    *is_refused = true;
    (void)pthread_mutex_unlock(&reporter->crew->lock);
}

static int fail(struct kvt_timed_job *job, int exit_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct kvt_timed_job *job, int exit_status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(job->error, sizeof job->error, format, arguments);
    va_end(arguments);
    return exit_status;
}

/* Names the option where the runtime names the field of its configuration. */
static int fail_open(struct kvt_timed_job *job, enum kvt_status status, const char *error)
{
    char field[32] = "";
    (void)sscanf(error, "%31[a-z_]", field);
    const char *option = kvt_run_option_of_field(field);
    if (option) return fail(job, KVT_EXIT_USAGE, "%s%s", option, error + strlen(field));
    if (!error[0] && status == KVT_INVAL && job->options.nvme_path[0])
        return fail(job, KVT_EXIT_USAGE, "--nvme is %" PRIu64 " bytes: it must hold 4 segments with a block each",
                    job->options.nvme_bytes);
    return fail(job, KVT_EXIT_USAGE, "%s", error[0] ? error : kvt_status_text(status));
}

static struct kvt_schedule_options schedule_options(const struct kvt_timed_job *job)
{
    const struct kvt_run_options *options = &job->options;
    return (struct kvt_schedule_options){
        .arrival = options->arrival,
        .speed = options->speed,
        .has_pauses = options->pause_ns != UINT64_MAX,
        .pause_ns = job->workload->session_count > 0 && options->workload.trace ? options->pause_ns : UINT64_MAX,
        .batch = options->batch,
        .prefill_chunk = options->prefill_chunk,
        .step_ns = options->step_ns,
        .is_lookahead = options->prefetch == KVT_PREFETCH_LOOKAHEAD || options->prefetch == KVT_PREFETCH_SESSION,
        .is_arrived_only = options->is_expecting_arrived,
        .on_progress = on_progress,
        .on_refused = on_refused,
        .calls = &kvt_model_step_calls,
    };
}

/* The schedule on an open runtime. */
static int run_schedule(struct kvt_timed_job *job, struct reporter *reporter, struct kvt_model_clock *clock,
                        const struct kvt_env *env, struct kvt_outputs *outputs)
{
    const struct kvt_timed *timed = reporter->crew->timed;
    struct kvt_model_steps steps = { .clock = clock, .shape = &job->options.model.shape, .roofline = timed->roofline };
    struct kvt_schedule_options how = schedule_options(job);
    struct kvt_timed_outcome *outcome = &job->outcome;
    const struct kvt_env real = kvt_env_default();
    const uint64_t begun_ns = kvt_env_now_ns(&real), start_ns = clock->now_ns;
    steps.roofline.step_ns = job->options.step_ns;
    how.user = reporter;
    how.env = env;
    how.calls_user = &steps;
    how.watches = outputs->watches;
    const enum kvt_status status = kvt_schedule_run(clock->runtime, steps.shape, job->workload, NULL, &how,
                                                    &outcome->run);
    outcome->seconds = (double)(kvt_env_now_ns(&real) - begun_ns) * 1e-9;
    if (status != KVT_OK) return fail(job, KVT_EXIT_FAILED, "the schedule: %s", kvt_status_text(status));
    outputs->has_run = true;
    outcome->elapsed_ns = clock->now_ns - start_ns;
    outcome->busy_ns = steps.busy_ns;
    kvt_stats(clock->runtime, &outcome->stats);
    kvt_latencies_sort(&outcome->latencies);
    if (outcome->run.outcome != KVT_OUTCOME_DONE)
        return fail(job, KVT_EXIT_FAILED, "%s: %s", job->label, outcome->run.error);
    return KVT_EXIT_OK;
}

/* On fresh tiers. */
static int run_on_model(struct kvt_timed_job *job, struct reporter *reporter, struct kvt_outputs *outputs)
{
    struct kvt_model_clock clock = { .now_ns = KVT_MODEL_START_NS };
    struct kvt_env env = kvt_model_env(&clock, job->options.workload.seed);
    struct kvt_config config = kvt_run_options_config(&job->options);
    struct kvt_model_links links = reporter->crew->timed->links;
    char error[256] = "";
    links.hbm_pace_bytes_per_s = job->options.link_hbm_bytes_per_s;
    links.nvme_pace_bytes_per_s = job->options.link_nvme_bytes_per_s;
    kvt_outputs_watch_transfers(outputs, &env);
    config.env = &env;
    config.device = KVT_DEVICE_AUTO;
    config.sequences_max = kvt_max_u32(4096, kvt_min_u32(job->workload->request_count, 1u << 20) + 16);
    const enum kvt_status status = kvt_model_runtime_open(&config, &links, &clock, error, sizeof error);
    if (status != KVT_OK) return fail_open(job, status, error);
    const int exit_status = run_schedule(job, reporter, &clock, &env, outputs);
    kvt_close(&clock.runtime);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    job->outcome.stall_least_ns = stall_least_ns(&job->outcome, &links);
    if (find_reused_most(job, links.pack_ratio) != KVT_OK) return fail(job, KVT_EXIT_FAILED, "out of memory");
    return KVT_EXIT_OK;
}

static int run_job(struct crew *crew, struct kvt_timed_job *job)
{
    struct reporter reporter = { .crew = crew, .job = job };
    struct kvt_outputs outputs;
    struct kvt_timed_outcome *outcome = &job->outcome;
    if (kvt_latencies_init(&outcome->latencies, job->workload->request_count) != KVT_OK)
        return fail(job, KVT_EXIT_FAILED, "out of memory");
    const int opened = kvt_outputs_open(&outputs, COMMAND, &job->options, job->workload, KVT_MODEL_START_NS);
    if (opened != KVT_EXIT_OK) return opened;
    kvt_outputs_watch(&outputs, &outcome->latencies.watch);
    int exit_status = KVT_EXIT_OK;
    if (crew->timed->plot && job == crew->timed->jobs) { /* the picture shows the first one's tiers */
        if (line_init(&outcome->line) != KVT_OK) exit_status = fail(job, KVT_EXIT_FAILED, "out of memory");
        else kvt_outputs_watch(&outputs, &outcome->line.watch);
    }
    if (exit_status == KVT_EXIT_OK) exit_status = run_on_model(job, &reporter, &outputs);
    const int finished = kvt_outputs_finish(&outputs);
    return exit_status == KVT_EXIT_OK ? finished : exit_status;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static void *work(void *context)
{
    struct crew *crew = context;
    (void)pthread_mutex_lock(&crew->lock);
    while (!crew->is_over && crew->next < crew->timed->job_count) {
        struct kvt_timed_job *job = &crew->timed->jobs[crew->next++];
        (void)pthread_mutex_unlock(&crew->lock);
        job->exit_status = run_job(crew, job);
        (void)pthread_mutex_lock(&crew->lock);
        crew->is_over = crew->is_over || job->exit_status != KVT_EXIT_OK;
    }
    (void)pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* KVT_EXIT_OK, or one line was printed. */
static int run_all(const struct kvt_timed *timed)
{
    enum { THREADS_MAX = 64 };
    struct crew crew = { .timed = timed };
    pthread_t threads[THREADS_MAX];
    uint64_t requests = 0;
    uint32_t started = 0;
    for (uint32_t j = 0; j < timed->job_count; j++) requests += timed->jobs[j].workload->request_count;
    (void)pthread_mutex_init(&crew.lock, NULL);
    kvt_progress_begin(&crew.progress, "sim", requests);
    const uint32_t helpers = kvt_min_u32(kvt_min_u32(timed->threads, timed->job_count), THREADS_MAX + 1);
    /* This thread is one of them; where another one is refused, fewer do the same work. */
    while (started + 1 < helpers && pthread_create(&threads[started], NULL, work, &crew) == 0) started++;
    (void)work(&crew);
    for (uint32_t i = 0; i < started; i++) (void)pthread_join(threads[i], NULL);
    (void)pthread_mutex_destroy(&crew.lock);
    kvt_progress_end(&crew.progress);
    for (uint32_t j = 0; j < timed->job_count; j++) {
        const struct kvt_timed_job *job = &timed->jobs[j];
        if (job->exit_status == KVT_EXIT_OK) continue;
        if (!job->error[0]) return job->exit_status; /* it was said */
        if (job->exit_status == KVT_EXIT_USAGE) return kvt_usage_error(COMMAND, "%s", job->error);
        return kvt_failure(COMMAND, "%s", job->error);
    }
    return KVT_EXIT_OK;
}

/* Jobs of the same seed share a workload. KVT_EXIT_OK, or one line was printed. */
static int take_workloads(struct kvt_timed *timed)
{
    for (uint32_t j = 0; j < timed->job_count; j++) {
        struct kvt_timed_job *job = &timed->jobs[j];
        for (uint32_t i = 0; i < j && !job->workload; i++) {
            if (timed->jobs[i].options.workload.seed != job->options.workload.seed) continue;
            job->workload = timed->jobs[i].workload;
            job->is_refused = timed->jobs[i].is_refused;
        }
        if (job->workload) continue;
        char error[512] = "";
        const enum kvt_status status = kvt_workload_create(&job->options.workload, &job->workload, error, sizeof error);
        if (status != KVT_OK) {
            return kvt_usage_error(COMMAND, "%s: %s", job->options.workload.trace ? "--trace" : "--workload",
                                   error[0] ? error : kvt_status_text(status));
        }
        const int paused = kvt_run_options_check_pauses(COMMAND, &job->options, job->workload->session_count);
        if (paused != KVT_EXIT_OK) return paused;
        job->is_refused = kvt_alloc(job->workload->request_count, sizeof *job->is_refused);
        if (!job->is_refused) return kvt_failure(COMMAND, "out of memory");
    }
    return KVT_EXIT_OK;
}

static void give_workloads(struct kvt_timed *timed)
{
    for (uint32_t j = 0; j < timed->job_count; j++) {
        struct kvt_workload *workload = timed->jobs[j].workload;
        for (uint32_t i = j + 1; i < timed->job_count; i++) {
            if (timed->jobs[i].workload != workload) continue;
            timed->jobs[i].workload = NULL;
            timed->jobs[i].is_refused = NULL;
        }
        kvt_free(timed->jobs[j].is_refused);
        kvt_workload_destroy(&timed->jobs[j].workload);
    }
}

int kvt_sim_timed(int argc, char **argv)
{
    struct kvt_timed timed;
    struct kvt_output_file picture = { 0 };
    int exit_status = kvt_timed_parse(argc, argv, &timed);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    exit_status = kvt_output_file_open_option(&picture, COMMAND, "--plot", timed.plot);
    if (exit_status == KVT_EXIT_OK) exit_status = take_workloads(&timed);
    if (exit_status == KVT_EXIT_OK) exit_status = run_all(&timed);
    if (exit_status == KVT_EXIT_OK) exit_status = kvt_timed_print(&timed);
    if (exit_status == KVT_EXIT_OK && timed.plot) exit_status = kvt_timed_plot(&timed, &picture);
    kvt_output_file_abandon(&picture);
    for (uint32_t j = 0; j < timed.job_count; j++) {
        if (exit_status == KVT_EXIT_OK && timed.jobs[j].outcome.run.requests_failed > 0) exit_status = KVT_EXIT_FAILED;
    }
    give_workloads(&timed);
    kvt_timed_done(&timed);
    return exit_status;
}
