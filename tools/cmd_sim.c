/* sim: what policies would keep of a workload: the runtime's own policies, driven without bytes. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/mem.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/output_file.h"
#include "tools/sim/options.h"
#include "tools/sim/plot.h"
#include "tools/sim/report.h"
#include "tools/sim/timed.h"
#include "tools/workload/workload.h"

#define COMMAND "kvtier sim"

struct sim {
    const struct kvt_sim_options *options;
    struct kvt_sim_trace *traces;
    uint32_t trace_count;
    struct kvt_count_job *jobs;
    uint32_t *job_traces;
    struct kvt_count_result *results;
    enum kvt_status *statuses;
    uint32_t job_count;
    struct kvt_output_file picture;
};

static uint64_t now_ns(void)
{
    const struct kvt_env env = kvt_env_default();
    return kvt_env_now_ns(&env);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static uint32_t warmup_of(const struct kvt_sim_options *options, uint32_t request_count)
{
    if (options->warmup_percent_e2 == 0) return options->warmup_requests;
    return (uint32_t)((uint64_t)request_count * options->warmup_percent_e2 / 10000);
}

/* Something must be left to count, of a trace that has something. KVT_EXIT_OK, or one line was printed. */
static int check_warmup(const struct kvt_sim_options *options, const struct kvt_sim_trace *trace)
{
    const uint32_t requests = trace->accesses.request_count;
    if (requests == 0 || warmup_of(options, requests) < requests || options->repeat > 1) return KVT_EXIT_OK;
    return kvt_usage_error(COMMAND, "--warmup is '%.200s': fewer than the %u requests of %s, so that some are counted",
                           options->warmup, requests, trace->name);
}

/* KVT_EXIT_OK, or one line was printed. */
static int load(const struct kvt_sim_options *options, uint32_t i, struct kvt_sim_trace *trace)
{
    struct kvt_workload_options how = options->workload;
    struct kvt_workload *workload = NULL;
    char error[512] = "";
    const char *option = options->trace_count > 0 ? "--trace" : "--workload";
    const uint64_t begun_ns = now_ns();
    how.is_empty_allowed = true;
    how.trace = options->trace_count > 0 ? options->traces[i] : NULL;
    trace->name = how.trace ? how.trace : how.generator;
    enum kvt_status status = kvt_workload_create(&how, &workload, error, sizeof error);
    if (status != KVT_OK) return kvt_usage_error(COMMAND, "%s: %s", option, error[0] ? error : kvt_status_text(status));

    status = kvt_accesses_init(&trace->accesses, workload);
    kvt_workload_destroy(&workload);
    trace->load_seconds = (double)(now_ns() - begun_ns) * 1e-9;
    if (status == KVT_INVAL)
        return kvt_usage_error(COMMAND, "%s: %s: more than 2147483647 blocks", option, trace->name);
    if (status != KVT_OK) return kvt_failure(COMMAND, "%s: out of memory", trace->name);
    return check_warmup(options, trace);
}

/* ---- The jobs ---------------------------------------------------------------------------------------------------- */

static uint32_t blocks_of(const struct kvt_sim_capacity *capacity, uint32_t tier, uint32_t block_count)
{
    if (capacity->percent_e2 == 0) return capacity->blocks[tier];
    return kvt_max_u32(1, (uint32_t)((uint64_t)block_count * capacity->percent_e2 / 10000));
}

static void add_job(struct sim *sim, uint32_t trace, uint32_t policy, uint32_t admission, uint32_t capacity)
{
    const struct kvt_sim_options *options = sim->options;
    const struct kvt_sim_capacity *c = &options->capacities[capacity];
    struct kvt_count_job *job = &sim->jobs[sim->job_count];
    *job = (struct kvt_count_job){
        .accesses = &sim->traces[trace].accesses,
        .policy = options->policies[policy],
        .admission = options->admission_count > 0 && options->policies[policy] ? options->admissions[admission] : NULL,
        .mode = options->mode,
        .order = options->order,
        .tier_count = c->tier_count,
        .warmup_requests = warmup_of(options, sim->traces[trace].accesses.request_count),
        .repeat = options->repeat,
        .seed = options->workload.seed,
    };
    for (uint32_t t = 0; t < c->tier_count; t++) job->capacities[t] = blocks_of(c, t, job->accesses->block_count);
    if (!job->policy && c->tier_count > 1) { /* the bound of as many blocks in one place */
        for (uint32_t t = 1; t < c->tier_count; t++) job->capacities[0] += job->capacities[t];
        job->tier_count = 1;
    }
    sim->job_traces[sim->job_count++] = trace;
}

static void add_jobs(struct sim *sim)
{
    const struct kvt_sim_options *options = sim->options;
    for (uint32_t t = 0; t < sim->trace_count; t++) {
        for (uint32_t p = 0; p < options->policy_count; p++) {
            /* The bound knows no admission. */
            const uint32_t admissions = options->policies[p] ? kvt_max_u32(1, options->admission_count) : 1;
            for (uint32_t a = 0; a < admissions; a++) {
                for (uint32_t c = 0; c < options->capacity_count; c++) add_job(sim, t, p, a, c);
            }
        }
    }
}

static void on_done(void *user, uint32_t done) { kvt_progress_update(user, done, NULL); }

static int count(struct sim *sim)
{
    const struct kvt_sim_options *options = sim->options;
    const uint64_t job_count = (uint64_t)sim->trace_count * options->policy_count * options->capacity_count
        * kvt_max_u32(1, options->admission_count);
    sim->jobs = kvt_alloc(job_count, sizeof *sim->jobs);
    sim->job_traces = kvt_alloc(job_count, sizeof *sim->job_traces);
    sim->results = kvt_alloc(job_count, sizeof *sim->results);
    sim->statuses = kvt_alloc(job_count, sizeof *sim->statuses);
    if (!sim->jobs || !sim->job_traces || !sim->results || !sim->statuses) return kvt_failure(COMMAND, "out of memory");
    add_jobs(sim);

    struct kvt_progress progress;
    kvt_progress_begin(&progress, "sim", sim->job_count);
    const uint64_t begun_ns = now_ns();
    kvt_count_all(sim->jobs, sim->job_count, options->threads, sim->results, sim->statuses, on_done, &progress);
    const uint64_t took_ns = now_ns() - begun_ns;
    kvt_progress_end(&progress);
    for (uint32_t i = 0; i < sim->job_count; i++) {
        if (sim->statuses[i] == KVT_OK) continue;
        return kvt_failure(COMMAND, "%s with %u blocks: %s", kvt_sim_policy_name(sim->jobs[i].policy),
                           sim->jobs[i].capacities[0], kvt_status_text(sim->statuses[i]));
    }
    const struct kvt_sim_report report = {
        .options = options,
        .traces = sim->traces,
        .trace_count = sim->trace_count,
        .jobs = sim->jobs,
        .job_traces = sim->job_traces,
        .results = sim->results,
        .job_count = sim->job_count,
        .seconds = (double)took_ns * 1e-9,
    };
    if (kvt_sim_print(&report, stdout) != KVT_OK) return kvt_failure(COMMAND, "the report: out of memory");
    return options->plot ? kvt_sim_plot(&report, options->plot, &sim->picture) : KVT_EXIT_OK;
}

/* The picture must be a file of its own, and one that can be written. KVT_EXIT_OK, or one line was printed. */
static int open_picture(const struct kvt_sim_options *options, struct kvt_output_file *file)
{
    struct kvt_named_file files[KVT_SIM_TRACES_MAX + 1];
    if (!options->plot) return KVT_EXIT_OK;
    for (uint32_t i = 0; i < options->trace_count; i++)
        files[i] = (struct kvt_named_file){ "--trace", options->traces[i], false };
    files[options->trace_count] = (struct kvt_named_file){ "--plot", options->plot, true };
    const int exit_status = kvt_output_files_check(COMMAND, files, options->trace_count + 1);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    return kvt_output_file_open_option(file, COMMAND, "--plot", options->plot);
}

static void sim_done(struct sim *sim)
{
    kvt_output_file_abandon(&sim->picture);
    for (uint32_t i = 0; sim->traces && i < sim->trace_count; i++) kvt_accesses_done(&sim->traces[i].accesses);
    kvt_free(sim->traces);
    kvt_free(sim->jobs);
    kvt_free(sim->job_traces);
    kvt_free(sim->results);
    kvt_free(sim->statuses);
}

int kvt_cmd_sim(int argc, char **argv)
{
    if (kvt_sim_is_timed(argc, argv)) return kvt_sim_timed(argc, argv);
    struct kvt_sim_options options;
    const int parsed = kvt_sim_options_parse(argc, argv, &options);
    if (parsed != KVT_EXIT_OK) return parsed;

    struct sim sim = { .options = &options, .trace_count = kvt_max_u32(1, options.trace_count) };
    sim.traces = kvt_alloc(sim.trace_count, sizeof *sim.traces);
    int exit_status = sim.traces ? KVT_EXIT_OK : kvt_failure(COMMAND, "out of memory");
    if (exit_status == KVT_EXIT_OK) exit_status = open_picture(&options, &sim.picture);
    for (uint32_t i = 0; exit_status == KVT_EXIT_OK && i < sim.trace_count; i++)
        exit_status = load(&options, i, &sim.traces[i]);
    if (exit_status == KVT_EXIT_OK) exit_status = count(&sim);
    sim_done(&sim);
    return exit_status;
}
