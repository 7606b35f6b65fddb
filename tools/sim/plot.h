/*
 * plot: hit ratio against capacity, one line for each policy, drawn by gnuplot.
 *
 * Fails: one line on stderr.
 */
#ifndef KVT_TOOLS_SIM_PLOT_H
#define KVT_TOOLS_SIM_PLOT_H

#include "tools/sim/report.h"

/* NULL, or why a picture cannot be written to this file: its kind, or that gnuplot is not installed. */
const char *kvt_sim_plot_check(const char *path);

/* The exit status: KVT_EXIT_OK, or KVT_EXIT_FAILED with one line printed. */
int kvt_sim_plot(const struct kvt_sim_report *report, const char *path);

#endif
