/*
 * accesses: a workload in the form that counting reads: blocks as small numbers, request after request.
 *
 * A block of a trace is one of its ids; of requests without ids, the whole blocks of the prompt, two being the same
 * where the prompts agree up to their ends. Blocks are numbered by their first use, so tables are indexed by them.
 *
 * Memory: 4 bytes an access and 28 a request. Thread: read-only after creation.
 */
#ifndef KVT_TOOLS_SIM_ACCESSES_H
#define KVT_TOOLS_SIM_ACCESSES_H

#include <stdint.h>

#include "runtime/base/status.h"
#include "tools/workload/workload.h"

/* What is known of a request beside its blocks. */
struct kvt_access_info {
    uint64_t arrival_ms;
    uint32_t turn;        /* of its session; UINT32_MAX: it stands alone */
    uint32_t last_tokens; /* of its last block */
    enum kvt_stop stop;
};

struct kvt_accesses {
    uint32_t *blocks;              /* [access_count], in order of use; each below block_count */
    uint32_t *request_ends;        /* [request_count], the place behind each request's last access */
    struct kvt_access_info *infos; /* [request_count]; NULL: nothing is known, all blocks are full */
    uint32_t access_count, request_count, block_count;
    uint32_t block_tokens; /* 0: not known, a block is one token */
};

/* More accesses than a place can number are not counted. */
#define KVT_ACCESSES_MAX (UINT32_MAX / 2)

/*
 * workload NULL: a trace without requests. INVAL: more than KVT_ACCESSES_MAX accesses | NOMEM; then done() is still
 * fine.
 */
KVT_NODISCARD enum kvt_status kvt_accesses_init(struct kvt_accesses *accesses, const struct kvt_workload *workload);
/* The same with what requests generate: a request's blocks are the whole ones of its prompt and output together. */
KVT_NODISCARD enum kvt_status kvt_accesses_init_contexts(struct kvt_accesses *accesses,
                                                         const struct kvt_workload *workload);
void kvt_accesses_done(struct kvt_accesses *accesses);

#endif
