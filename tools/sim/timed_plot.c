/*
 * Two panels: reused tokens against the capacity of HBM and host together, a line for each policy and whatever else the
 * grid varies; and the first run's time: how full its tiers were, and the share of time that was stalled.
 */
#include <inttypes.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "tools/sim/gnuplot.h"
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
        kvt_gnuplot_print_name(gnuplot, part);
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

/* gnuplot warns of a range without width: a single capacity has room on all sides. */
static void print_reuse_range(const struct kvt_timed *timed, FILE *gnuplot)
{
    const char *name;
    const double unit = unit_of(timed, &name), first = (double)capacity_of(&timed->jobs[0]) / unit;
    for (uint32_t j = 1; j < timed->job_count; j++) {
        if (capacity_of(&timed->jobs[j]) != capacity_of(&timed->jobs[0])) return;
    }
    (void)fprintf(gnuplot, "set xrange [%g:%g]\nset yrange [0:100]\n", 0.5 * first, 2 * first);
}

static void print_reuse(const struct kvt_timed *timed, FILE *gnuplot)
{
    bool is_begun = false;
    const char *name;
    const double unit = unit_of(timed, &name);
    (void)fprintf(gnuplot, "set xlabel '%s in all tiers'\nset ylabel 'reused, %% of prompt tokens'\nset title '", name);
    kvt_gnuplot_print_name(gnuplot, timed->jobs[0].workload->name);
    (void)fprintf(gnuplot, "' noenhanced\n");
    print_reuse_range(timed, gnuplot);
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
                  "set autoscale x\nset autoscale y\nset xlabel 'seconds'\n"
                  "set ylabel '%s in use'\nset y2label 'stalled, %% of time'\n"
                  "set y2range [0:100]\nset y2tics\nset ytics nomirror\nset title '",
                  name);
    kvt_gnuplot_print_name(gnuplot, job->label);
    (void)fprintf(gnuplot, "' noenhanced\n");
    if (line->count == 1) {
        const double at_s = (double)(line->samples[0].at_ns - KVT_MODEL_START_NS) * 1e-9;
        (void)fprintf(gnuplot, "set xrange [0:%.6f]\n", at_s > 0 ? 2 * at_s : 1);
    }
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

static void write_script(const void *user, FILE *script)
{
    const struct kvt_timed *timed = user;
    (void)fprintf(script,
                  "set terminal %s size 960,900\nset multiplot layout 2,1\nset grid\nset key outside noenhanced\n",
                  kvt_gnuplot_terminal(timed->plot));
    print_reuse(timed, script);
    print_time(timed, script);
    (void)fprintf(script, "unset multiplot\n");
}

int kvt_timed_plot(const struct kvt_timed *timed, struct kvt_output_file *file)
{
    return kvt_gnuplot_draw("kvtier sim", timed->plot, file, write_script, timed);
}
