/*
 * options: what `kvtier sim` was asked for.
 *
 * Everything that can be judged without reading a trace is judged here: one line on stderr names option, value and
 * rule. Texts point into argv.
 */
#ifndef KVT_TOOLS_SIM_OPTIONS_H
#define KVT_TOOLS_SIM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/sim/count.h"
#include "tools/workload/workload.h"

#define KVT_SIM_TRACES_MAX 16
#define KVT_SIM_POLICIES_MAX 32
#define KVT_SIM_CAPACITIES_MAX 128
#define KVT_SIM_ADMISSIONS_MAX 8

enum kvt_sim_format { KVT_SIM_TABLE, KVT_SIM_JSON, KVT_SIM_CSV };

/* Blocks of each tier, or, with one tier, hundredths of a percent of the trace's blocks. */
struct kvt_sim_capacity {
    uint32_t blocks[KVT_COUNT_TIERS_MAX];
    uint32_t tier_count;
    uint32_t percent_e2; /* 0: blocks are given */
};

struct kvt_sim_options {
    struct kvt_workload_options workload; /* of each trace, trace left out; or of the generator */
    const char *traces[KVT_SIM_TRACES_MAX];
    uint32_t trace_count; /* 0: a generator */
    enum kvt_count_mode mode;
    enum kvt_count_order order;
    const struct kvt_policy_ops *policies[KVT_SIM_POLICIES_MAX]; /* NULL: the bound */
    uint32_t policy_count;
    struct kvt_sim_capacity capacities[KVT_SIM_CAPACITIES_MAX];
    uint32_t capacity_count;
    const struct kvt_admission_ops *admissions[KVT_SIM_ADMISSIONS_MAX];
    uint32_t admission_count;
    uint32_t warmup_requests;   /* not counted */
    const char *warmup;         /* as it was given */
    uint32_t warmup_percent_e2; /* or so many hundredths of a percent of each trace's requests; 0: requests are given */
    bool is_policies_given, is_order_given;
    uint32_t repeat;
    uint32_t threads;
    enum kvt_sim_format format;
    const char *plot; /* NULL: none */
};

/* The first word that is one of the options `names`, which ends with NULL, alone or with '=' and a value; NULL: none. */
const char *kvt_sim_find_option(int argc, char **argv, const char *const *names);

/* The exit status: KVT_EXIT_OK, or KVT_EXIT_USAGE with one line printed. --help prints and exits. */
int kvt_sim_options_parse(int argc, char **argv, struct kvt_sim_options *ret_options);

#endif
