/*
 * timed: `kvtier sim` with tier sizes: the runtime and the schedule of `kvtier run` on modelled tiers, in virtual time.
 *
 * The command line is that of `kvtier run`, with options of its own besides; --device, --verify and --read change
 * nothing, and the directory of --nvme is not touched.
 */
#ifndef KVT_TOOLS_SIM_TIMED_H
#define KVT_TOOLS_SIM_TIMED_H

#include <stdbool.h>

/* True when the command line asks for tiers rather than counts. */
bool kvt_sim_is_timed(int argc, char **argv);

/* Parses, runs, prints; the exit status. argv is reordered. */
int kvt_sim_timed(int argc, char **argv);

#endif
