/*
 * Two panels: reused tokens against the capacity of HBM and host together, a line for each policy and whatever else the
 * grid varies; and the first run's time: how full its tiers were, and the share of time that was stalled.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/sim/timed_build.h"

static uint64_t capacity_of(const struct kvt_timed_job *job)
{
    const struct kvt_tier_stats *tiers = job->outcome.stats.tiers;
    return tiers[KVT_TIER_DEVICE].capacity_bytes + tiers[KVT_TIER_HOST].capacity_bytes
        + tiers[KVT_TIER_NVME].capacity_bytes;
}

/* One unit for all figures of the picture. */
static double unit_of(const struct kvt_timed *timed, const char **ret_name)
{
    uint64_t most = 0;
    for (uint32_t j = 0; j < timed->job_count; j++) most = kvt_max_u64(most, capacity_of(&timed->jobs[j]));
    *ret_name = most >= 2 * KVT_GIB ? "GiB" : "MiB";
    return most >= 2 * KVT_GIB ? (double)KVT_GIB : (double)KVT_MIB;
}

/* A name between single quotes: those inside are doubled, as gnuplot wants it. */
static void print_name(FILE *stream, const char *name)
{
    for (; *name; name++) {
        if (*name == '\'') (void)fputc('\'', stream);
        (void)fputc(*name == '\n' ? ' ' : *name, stream);
    }
}

/* Two names, each of which may be NULL: the default. */
static bool is_same(const char *left, const char *right)
{
    return left == right || (left && right && strcmp(left, right) == 0);
}

/* Jobs that differ in capacity alone are one line. */
static bool is_same_line(const struct kvt_timed_job *a, const struct kvt_timed_job *b)
{
    const struct kvt_run_options *left = &a->options, *right = &b->options;
    const bool is_policy = is_same(left->policy, right->policy) && is_same(left->host_policy, right->host_policy)
        && is_same(left->admission, right->admission);
    return is_policy && left->prefetch == right->prefetch && left->workload.seed == right->workload.seed
        && left->link_hbm_bytes_per_s == right->link_hbm_bytes_per_s
        && left->link_nvme_bytes_per_s == right->link_nvme_bytes_per_s;
}

/* The label without what the axis shows. */
static void print_line_name(FILE *gnuplot, const struct kvt_timed_job *job)
{
    static const char *const capacities[] = { "hbm ", "host ", "nvme " };
    char label[KVT_TIMED_LABEL_BYTES], *rest = label;
    bool is_begun = false;
    (void)snprintf(label, sizeof label, "%s", job->label);
    for (char *part = strsep(&rest, ","); part; part = strsep(&rest, ",")) {
        part += *part == ' ';
        bool is_capacity = false;
        for (size_t i = 0; i < KVT_ARRAY_COUNT(capacities); i++)
            is_capacity = is_capacity || strncmp(part, capacities[i], strlen(capacities[i])) == 0;
        if (is_capacity) continue;
        if (is_begun) (void)fprintf(gnuplot, ", ");
        print_name(gnuplot, part);
        is_begun = true;
    }
}

static bool is_first_of_line(const struct kvt_timed *timed, uint32_t job)
{
    for (uint32_t i = 0; i < job; i++) {
        if (is_same_line(&timed->jobs[i], &timed->jobs[job])) return false;
    }
    return true;
}

static void print_reuse(const struct kvt_timed *timed, FILE *gnuplot)
{
    bool is_begun = false;
    const char *name;
    const double unit = unit_of(timed, &name);
    (void)fprintf(gnuplot, "set xlabel '%s in all tiers'\nset ylabel 'reused, %% of prompt tokens'\nset title '", name);
    print_name(gnuplot, timed->jobs[0].workload->name);
    (void)fprintf(gnuplot, "' noenhanced\n");
    for (uint32_t j = 0; j < timed->job_count; j++) {
        if (!is_first_of_line(timed, j)) continue;
        (void)fprintf(gnuplot, "%s'-' using 1:2 with linespoints title '", is_begun ? ", " : "plot ");
        print_line_name(gnuplot, &timed->jobs[j]);
        (void)fprintf(gnuplot, "'");
        is_begun = true;
    }
    (void)fprintf(gnuplot, "\n");
    for (uint32_t j = 0; j < timed->job_count; j++) {
        if (!is_first_of_line(timed, j)) continue;
        for (uint32_t i = j; i < timed->job_count; i++) {
            const struct kvt_schedule_result *run = &timed->jobs[i].outcome.run;
            if (!is_same_line(&timed->jobs[j], &timed->jobs[i])) continue;
            const double share = run->tokens_prompt > 0 ? 100 * (double)run->tokens_reused / (double)run->tokens_prompt
                                                        : 0;
            (void)fprintf(gnuplot, "%.6f %.4f\n", (double)capacity_of(&timed->jobs[i]) / unit, share);
        }
        (void)fprintf(gnuplot, "e\n");
    }
}

static void print_time(const struct kvt_timed *timed, FILE *gnuplot)
{
    static const char *const names[KVT_TIERS] = { "device", "host", "nvme" };
    const struct kvt_timed_job *job = &timed->jobs[0];
    const struct kvt_timed_line *line = &job->outcome.line;
    if (line->count == 0) return;
    const char *name;
    const double unit = unit_of(timed, &name);
    (void)fprintf(gnuplot,
                  "set xlabel 'seconds'\nset ylabel '%s in use'\nset y2label 'stalled, %% of time'\n"
                  "set y2range [0:100]\nset y2tics\nset ytics nomirror\nset title '",
                  name);
    print_name(gnuplot, job->label);
    (void)fprintf(gnuplot, "' noenhanced\n");
    for (uint32_t t = 0; t < KVT_TIERS; t++)
        (void)fprintf(gnuplot, "%s'-' using 1:2 with lines title '%s'", t == 0 ? "plot " : ", ", names[t]);
    (void)fprintf(gnuplot, ", '-' using 1:2 axes x1y2 with fsteps linecolor rgb 'gray' title 'stalled'\n");
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        for (uint32_t i = 0; i < line->count; i++) {
            const struct kvt_timed_sample *sample = &line->samples[i];
            (void)fprintf(gnuplot, "%.6f %.6f\n", (double)(sample->at_ns - KVT_MODEL_START_NS) * 1e-9,
                          (double)sample->used_bytes[t] / unit);
        }
        (void)fprintf(gnuplot, "e\n");
    }
    uint64_t at_ns = KVT_MODEL_START_NS, stalled_ns = 0;
    for (uint32_t i = 0; i < line->count; i++) {
        const struct kvt_timed_sample *sample = &line->samples[i];
        const uint64_t passed_ns = kvt_max_u64(1, sample->at_ns - at_ns);
        (void)fprintf(gnuplot, "%.6f %.3f\n", (double)(sample->at_ns - KVT_MODEL_START_NS) * 1e-9,
                      100 * (double)(sample->stalled_ns - stalled_ns) / (double)passed_ns);
        at_ns = sample->at_ns;
        stalled_ns = sample->stalled_ns;
    }
    (void)fprintf(gnuplot, "e\n");
}

int kvt_timed_plot(const struct kvt_timed *timed)
{
    const char *path = timed->plot;
    const size_t length = strlen(path);
    const bool is_svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;
    /* gnuplot may end early: its status says so, not a signal. */
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    FILE *gnuplot = popen("gnuplot", "w");
    if (gnuplot) {
        (void)fprintf(gnuplot,
                      "set terminal %s size 960,900\nset output '%s'\nset multiplot layout 2,1\nset grid\n"
                      "set key outside noenhanced\n",
                      is_svg ? "svg" : "pngcairo", path);
        print_reuse(timed, gnuplot);
        print_time(timed, gnuplot);
        (void)fprintf(gnuplot, "unset multiplot\n");
    }
    const int status = gnuplot ? pclose(gnuplot) : -1;
    (void)signal(SIGPIPE, before);
    return status == 0 ? KVT_EXIT_OK : kvt_failure("kvtier sim", "--plot %s: gnuplot failed", path);
}
