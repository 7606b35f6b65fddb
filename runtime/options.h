/*
 * options: from a caller's kvt_config to what each part gets: checked, defaults filled in, memory shared out.
 *
 * Thread: any; no state.
 */
#ifndef KVT_RUNTIME_OPTIONS_H
#define KVT_RUNTIME_OPTIONS_H

#include "kvtier/kvtier.h"
#include "runtime/core.h"

struct kvt_options {
    struct kvt_config config;            /* with every default filled in */
    uint64_t slot_bytes[KVT_GROUPS_MAX]; /* of each pool */
    struct kvt_core_config core;         /* all but the tiers */
    uint32_t block_bytes_max;            /* of any group's whole block */
    uint64_t staging_bytes;              /* of the host budget: the store's I/O buffers */
    uint64_t scratch_bytes;              /* of the host budget: the codec's scratch */
    uint64_t host_chunk_bytes;
    uint64_t host_slot_bytes; /* of the host budget: what is cut into slots */
};

/* Before anything else of the config is read. INVAL: it is of another version. */
KVT_NODISCARD enum kvt_status kvt_options_check_version(const struct kvt_config *config, char *ret_error,
                                                        size_t error_bytes);

/*
 * INVAL: ret_error[error_bytes] (may be NULL) gets one line: field, value, rule. scratch_bytes: what the codec wants in
 * all.
 */
KVT_NODISCARD enum kvt_status kvt_options_resolve(const struct kvt_config *config, uint64_t scratch_bytes,
                                                  struct kvt_options *ret_options, char *ret_error, size_t error_bytes);

#endif
