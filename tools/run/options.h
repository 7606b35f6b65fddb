/*
 * options: what `kvtier run` was asked for.
 *
 * Everything that can be judged without opening a runtime is judged here: one line on stderr names option, value and
 * rule. Texts point into argv or into the struct itself.
 */
#ifndef KVT_TOOLS_RUN_OPTIONS_H
#define KVT_TOOLS_RUN_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"
#include "tools/models.h"
#include "tools/run/engine.h"
#include "tools/run/schedule.h"
#include "tools/workload/workload.h"

struct kvt_run_options {
    struct kvt_workload_options workload;
    struct kvt_model model;         /* its shape has the block_tokens asked for */
    const char *model_text;         /* fingerprint: the name or the shape as written */
    uint64_t hbm_bytes, host_bytes; /* host 0: no such tier */
    char nvme_path[PATH_MAX];       /* "": no such tier */
    uint64_t nvme_bytes;
    uint8_t nvme_key[32];
    bool has_nvme_key;
    const char *nvme_key_path;   /* NULL: none */
    uint64_t nvme_bytes_per_day; /* 0: no limit */
    enum kvt_device_kind device;
    const char *policy;      /* eviction; NULL: the default */
    const char *host_policy; /* NULL: as policy */
    const char *admission;   /* NULL: the default */
    enum kvt_prefetch prefetch;
    bool is_expecting_arrived; /* look-ahead is told of what has arrived only */
    bool is_expect_given;
    enum kvt_arrival arrival;
    double speed;
    enum kvt_verify verify;
    enum kvt_read read;
    uint64_t link_hbm_bytes_per_s, link_nvme_bytes_per_s; /* 0: not paced */
    uint64_t step_ns;                                     /* 0: as fast as it goes */
    uint64_t pause_ns;                                    /* UINT64_MAX: not asked for */
    uint32_t batch;
    uint64_t prefill_chunk;
    const char *trace_out, *record; /* files to write; NULL: none */
    const char *metrics_path;       /* NULL: none */
    bool is_streaming;              /* requests larger than the device are streamed */
    bool is_json;
};

/* The exit status: KVT_EXIT_OK, or KVT_EXIT_USAGE with one line printed. --help prints and exits. */
int kvt_run_options_parse(int argc, char **argv, struct kvt_run_options *ret_options);

/* --expect was given, and there is no look-ahead: it has no effect. */
bool kvt_run_options_is_expect_idle(const struct kvt_run_options *options);
#define KVT_RUN_EXPECT_IDLE "--expect needs --prefetch lookahead or session: it is what look-ahead knows"

/* --think-ms wants a workload with sessions: KVT_EXIT_OK, or KVT_EXIT_USAGE with one line printed. */
int kvt_run_options_check_pauses(const char *command, const struct kvt_run_options *options, uint32_t session_count);

/* The runtime's configuration. Texts are borrowed from options. */
struct kvt_config kvt_run_options_config(const struct kvt_run_options *options);

/* The option that a field of kvt_config was set by, or NULL. */
const char *kvt_run_option_of_field(const char *field);

#endif
