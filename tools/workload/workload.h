/*
 * workload: the requests that run and sim replay, from a trace file or a generator.
 *
 * A request's context is a stream of token ids by position: the prompt is positions 0 .. prompt_tokens - 1, what it
 * generates follows. Two requests share a prefix exactly where their streams agree. In a generated session, turn n + 1
 * continues turn n: its prompt begins with the whole earlier conversation, generated tokens included. In a trace one id
 * stands for one block of block_tokens tokens; generated tokens are unique to their request, unless the trace has ids
 * for them as well.
 *
 * Memory: everything belongs to the workload. Thread: read-only after creation.
 */
#ifndef KVT_TOOLS_WORKLOAD_WORKLOAD_H
#define KVT_TOOLS_WORKLOAD_WORKLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/status.h"

#define KVT_NO_SESSION UINT32_MAX

/* Why a request's answer ended: what the next turn waits for. */
enum kvt_stop { KVT_STOP_UNKNOWN, KVT_STOP_TOOL_USE, KVT_STOP_END_TURN };

struct kvt_request {
    /* from the start of the workload; turn > 0 of a session: not before think_ns after the turn before ended */
    uint64_t arrival_ns;
    uint32_t session;  /* KVT_NO_SESSION: the request stands alone */
    uint32_t turn;     /* 0 for the first */
    bool is_last_turn; /* true for a request that stands alone */
    enum kvt_stop stop;
    uint64_t think_ns;      /* pause before this turn, after the end of the one before */
    uint64_t prompt_tokens; /* at least 1 */
    uint64_t output_tokens;
    /* traces with block ids: floor or ceil of prompt_tokens / block_tokens of them; else NULL */
    const uint64_t *ids;
    uint32_t id_count;
    /* a recorded run's: output_id_count more ids follow, so that prompt and output together have all of theirs */
    bool has_output_ids;
    uint32_t output_id_count;
};

struct kvt_workload {
    const char *name;
    uint32_t block_tokens; /* tokens that one id of ids stands for */
    uint32_t request_count;
    const struct kvt_request *requests; /* ordered by arrival_ns; a session's turns in order */
    uint32_t session_count;
    uint64_t seed;
    uint32_t shared_prefix_tokens; /* generators: all sessions begin with the same system prompt of so many tokens */
};

struct kvt_workload_options {
    const char *trace;     /* file; or */
    const char *generator; /* "chat", "agent", "longdoc", "batch" */
    uint32_t requests_max; /* 0: all of a trace; a generator's default */
    uint32_t block_tokens;
    uint64_t seed;
    uint64_t think_ns;       /* generators: mean pause between turns; UINT64_MAX: the generator's default */
    uint64_t context_tokens; /* generators: rough tokens of a session at its end; 0: the generator's default */
    bool is_empty_allowed;   /* a trace without requests is a workload without any; otherwise it is refused */
};

/*
 * Reads or generates. INVAL: ret_error[error_bytes] gets one line: the file, the line number, the value and the rule.
 * IO: the file cannot be read (likewise). NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_workload_create(const struct kvt_workload_options *options,
                                                  struct kvt_workload **ret_workload, char *ret_error,
                                                  uint32_t error_bytes);
void kvt_workload_destroy(struct kvt_workload **workload);

/* Token ids of positions first .. first + count - 1 of a request's context (prompt, then output). Pure. */
void kvt_workload_tokens(const struct kvt_workload *workload, uint32_t request, uint64_t first, uint64_t count,
                         uint32_t *ret_tokens);

#endif
