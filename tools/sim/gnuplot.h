/*
 * gnuplot: draws a picture with gnuplot, in a process of its own, into an output file.
 *
 * What gnuplot says goes to nobody: of a failure its first line is told. A picture that fails leaves what was there.
 */
#ifndef KVT_TOOLS_SIM_GNUPLOT_H
#define KVT_TOOLS_SIM_GNUPLOT_H

#include <stdio.h>

#include "tools/output_file.h"

/* NULL, or why a picture cannot be written to this file: its kind, or that gnuplot is not installed. */
const char *kvt_gnuplot_check(const char *path);

/* The terminal that draws what the path's end says: "svg" or "pngcairo". */
const char *kvt_gnuplot_terminal(const char *path);

/* A name between single quotes: those inside are doubled, as gnuplot wants it. */
void kvt_gnuplot_print_name(FILE *script, const char *name);

/*
 * Draws what the script that write() prints says, and puts it in place. file: open; it is not when this returns. path:
 * as the user gave it. The exit status: KVT_EXIT_OK, or KVT_EXIT_FAILED with one line printed.
 */
int kvt_gnuplot_draw(const char *command, const char *path, struct kvt_output_file *file,
                     void (*write)(const void *user, FILE *script), const void *user);

#endif
