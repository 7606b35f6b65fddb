/*
 * plot: hit ratio against capacity, one line for each policy, drawn by gnuplot.
 *
 * Fails: one line on stderr.
 */
#ifndef KVT_TOOLS_SIM_PLOT_H
#define KVT_TOOLS_SIM_PLOT_H

#include "tools/output_file.h"
#include "tools/sim/report.h"

/* file: open, and not when this returns. The exit status: KVT_EXIT_OK, or KVT_EXIT_FAILED with one line printed. */
int kvt_sim_plot(const struct kvt_sim_report *report, const char *path, struct kvt_output_file *file);

#endif
