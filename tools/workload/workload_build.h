/*
 * workload_build: what the readers and generators of a workload share. Only tools/workload includes this.
 *
 * A reader adds rows in any order of arrival; kvt_workload_create() sorts them and makes the workload of them.
 */
#ifndef KVT_TOOLS_WORKLOAD_WORKLOAD_BUILD_H
#define KVT_TOOLS_WORKLOAD_WORKLOAD_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/rng.h"
#include "tools/workload/workload.h"

/* Limits on what a trace may say: sums of them stay far inside 64 bits. */
#define KVT_TRACE_TOKENS_MAX ((uint64_t)1 << 40)
#define KVT_TRACE_TIME_MS_MAX ((uint64_t)10000000000000) /* 317 years: the epoch in milliseconds is fine */

#define KVT_NS_PER_MS ((uint64_t)1000000)
#define KVT_NS_PER_S ((uint64_t)1000000000)

/*
 * Where the tokens come from that no id stands for: positions below common_end from the workload's own stream, below
 * group_end from the group's (a document, a set of examples), the others from the request's or session's own.
 */
struct kvt_token_streams {
    uint64_t common_end, group_end;
    uint64_t group, own;
};

struct kvt_workload_row {
    struct kvt_request request; /* ids: set at the end; id_count: of those from ids_first on */
    struct kvt_token_streams streams;
    size_t ids_first;
    uint32_t order; /* in which rows were added: ties of arrival_ns */
};

struct kvt_workload_build {
    const struct kvt_workload_options *options;
    struct kvt_workload_row *rows;
    uint32_t row_count, row_capacity;
    uint64_t *ids;
    size_t id_count, id_capacity;
    uint32_t session_count;
    uint32_t shared_prefix_tokens;
    char *ret_error;
    uint32_t error_bytes;
};

/* A number that depends on both in every bit. Not symmetric. */
static inline uint64_t kvt_workload_mix(uint64_t a, uint64_t b)
{
    return kvt_mix64(a ^ kvt_mix64(b + 0x9e3779b97f4a7c15u));
}

/*
 * Writes "file:line: " (line 0: "file: ") and the text to ret_error, kept to one line of printable characters.
 * Returns INVAL.
 */
enum kvt_status kvt_workload_refuse(const struct kvt_workload_build *build, uint64_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same without a file: for what the options say. */
enum kvt_status kvt_workload_refuse_option(const struct kvt_workload_build *build, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A new row, zeroed, valid until the next call; its stream is its own. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_workload_add_row(struct kvt_workload_build *build, struct kvt_workload_row **ret_row);

/* One more id, of the row that was added last. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_workload_add_id(struct kvt_workload_build *build, uint64_t id);

/* True when the trace has as many requests as were asked for. */
bool kvt_workload_has_enough(const struct kvt_workload_build *build);

struct kvt_lines;

/*
 * Readers: from the line that was just read (the first that is not blank) to the end of the file.
 * INVAL: ret_error says it | IO: lines->os_errno says why | NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_trace_read_mooncake(struct kvt_workload_build *build, struct kvt_lines *lines,
                                                      char *line, size_t length);
KVT_NODISCARD enum kvt_status kvt_trace_read_azure(struct kvt_workload_build *build, struct kvt_lines *lines,
                                                   char *line, size_t length);

/* INVAL: no such generator, or options that it cannot honour | NOMEM. */
KVT_NODISCARD enum kvt_status kvt_workload_generate(struct kvt_workload_build *build);

#endif
