/*
 * metrics_file: the running process's metrics in a file, for `kvtier top` and for collectors that read files.
 *
 * Written once a second by a thread of its own, each time as a whole: to another file of its directory, then renamed.
 */
#ifndef KVT_TOOLS_RUN_METRICS_FILE_H
#define KVT_TOOLS_RUN_METRICS_FILE_H

#include "kvtier/kvtier.h"

struct kvt_metrics_file;

/* Writes it for the first time before it returns. runtime and path are borrowed until stop. 0, or an errno. */
int kvt_metrics_file_start(struct kvt_runtime *runtime, const char *path, struct kvt_metrics_file **ret_file);

/* Writes it for the last time; nulls; NULL is fine. The file stays. */
void kvt_metrics_file_stop(struct kvt_metrics_file **file);

#endif
