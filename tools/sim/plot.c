#include "tools/sim/plot.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"

enum { PATH_BYTES = 4096 };

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_installed(const char *program)
{
    const char *folders = getenv("PATH");
    while (folders && *folders) {
        char path[PATH_BYTES];
        const size_t length = strcspn(folders, ":");
        const int written = snprintf(path, sizeof path, "%.*s/%s", (int)kvt_min_u64(length, PATH_BYTES), folders,
                                     program);
        if (written > 0 && written < PATH_BYTES && access(path, X_OK) == 0) return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

const char *kvt_sim_plot_check(const char *path)
{
    if (!ends_with(path, ".svg") && !ends_with(path, ".png")) return "a file that ends in .svg or .png";
    if (strpbrk(path, "'\n")) return "a path without quotes and line ends";
    if (!is_installed("gnuplot")) return "gnuplot, which draws it, is not installed";
    return NULL;
}

/* A name between single quotes: those inside are doubled, as gnuplot wants it. */
static void print_name(FILE *stream, const char *name)
{
    for (; *name; name++) {
        if (*name == '\'') (void)fputc('\'', stream);
        (void)fputc(*name == '\n' ? ' ' : *name, stream);
    }
}

static uint64_t blocks_of(const struct kvt_count_job *job)
{
    uint64_t blocks = 0;
    for (uint32_t t = 0; t < job->tier_count; t++) blocks += job->capacities[t];
    return blocks;
}

/* Results of one trace stand together, `columns` of each policy and admission behind each other. */
static void print_lines(const struct kvt_sim_report *report, FILE *stream)
{
    const uint32_t columns = report->options->capacity_count;
    for (uint32_t first = 0; first < report->job_count; first += columns) {
        const struct kvt_count_job *job = &report->jobs[first];
        (void)fprintf(stream, "%s'-' using 1:2 with linespoints title '", first == 0 ? "plot " : ", ");
        if (report->trace_count > 1) {
            const char *name = strrchr(report->traces[report->job_traces[first]].name, '/');
            print_name(stream, name ? name + 1 : report->traces[report->job_traces[first]].name);
            (void)fprintf(stream, ", ");
        }
        (void)fprintf(stream, "%s%s%s'", kvt_sim_policy_name(job->policy), job->admission ? ", " : "",
                      job->admission ? job->admission->name : "");
    }
    (void)fprintf(stream, "\n");
    for (uint32_t i = 0; i < report->job_count; i++) {
        const struct kvt_count_result *result = &report->results[i];
        const double ratio = result->accesses > 0 ? 100 * (double)result->hits / (double)result->accesses : 0;
        (void)fprintf(stream, "%" PRIu64 " %.4f\n", blocks_of(&report->jobs[i]), ratio);
        if (i % columns == columns - 1) (void)fprintf(stream, "e\n");
    }
}

/* gnuplot warns of a range without width: a single capacity has room on all sides. */
static void print_range(const struct kvt_sim_report *report, FILE *stream)
{
    const uint64_t first = blocks_of(&report->jobs[0]);
    for (uint32_t i = 1; i < report->job_count; i++) {
        if (blocks_of(&report->jobs[i]) != first) return;
    }
    (void)fprintf(stream, "set xrange [%g:%g]\nset yrange [0:100]\n", 0.5 * (double)first, 2 * (double)first);
}

int kvt_sim_plot(const struct kvt_sim_report *report, const char *path)
{
    /* gnuplot may end early: its status says so, not a signal. */
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    FILE *gnuplot = popen("gnuplot", "w");
    if (gnuplot) {
        (void)fprintf(gnuplot,
                      "set terminal %s size 960,600\nset output '%s'\nset xlabel 'blocks'\nset ylabel 'hits, %%'\n"
                      "set logscale x\nset grid\nset key outside noenhanced\nset title '",
                      ends_with(path, ".svg") ? "svg" : "pngcairo", path);
        print_name(gnuplot, report->traces[0].name);
        (void)fprintf(gnuplot, ", counted %s' noenhanced\n",
                      report->options->mode == KVT_COUNT_FLAT ? "flat" : "by prefix");
        print_range(report, gnuplot);
        print_lines(report, gnuplot);
    }
    const int status = gnuplot ? pclose(gnuplot) : -1;
    (void)signal(SIGPIPE, before);
    return status == 0 ? KVT_EXIT_OK : kvt_failure("kvtier sim", "--plot %s: gnuplot failed", path);
}
