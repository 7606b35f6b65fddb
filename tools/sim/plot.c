#include "tools/sim/plot.h"

#include <inttypes.h>
#include <string.h>

#include "tools/sim/gnuplot.h"

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
            kvt_gnuplot_print_name(stream, name ? name + 1 : report->traces[report->job_traces[first]].name);
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

struct picture {
    const struct kvt_sim_report *report;
    const char *path;
};

static void write_script(const void *user, FILE *script)
{
    const struct picture *picture = user;
    const struct kvt_sim_report *report = picture->report;
    (void)fprintf(script,
                  "set terminal %s size 960,600\nset xlabel 'blocks'\nset ylabel 'hits, %%'\nset logscale x\nset grid\n"
                  "set key outside noenhanced\nset title '",
                  kvt_gnuplot_terminal(picture->path));
    kvt_gnuplot_print_name(script, report->traces[0].name);
    (void)fprintf(script, ", counted %s' noenhanced\n",
                  report->options->mode == KVT_COUNT_FLAT ? "flat" : "by prefix");
    print_range(report, script);
    print_lines(report, script);
}

int kvt_sim_plot(const struct kvt_sim_report *report, const char *path, struct kvt_output_file *file)
{
    const struct picture picture = { report, path };
    return kvt_gnuplot_draw("kvtier sim", path, file, write_script, &picture);
}
