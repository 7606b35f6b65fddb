#include "tools/workload/workload.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/workload/lines.h"
#include "tools/workload/workload_build.h"

/* What the public pointer points at: the workload first, then what only this file needs. */
struct workload_full {
    struct kvt_workload public;
    char *name;
    struct kvt_request *requests;
    struct kvt_token_streams *streams; /* of each request */
    uint64_t *ids;
    uint64_t common; /* the stream that all share */
    uint64_t id_salt;
};

static const struct workload_full *full_of(const struct kvt_workload *workload)
{
    return (const struct workload_full *)(const void *)workload;
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 3, 0))) static void write_error(const struct kvt_workload_build *build,
                                                              const char *prefix, const char *format, va_list arguments)
{
    if (!build->ret_error || build->error_bytes == 0) return;
    const int prefix_bytes = snprintf(build->ret_error, build->error_bytes, "%s", prefix);
    if (prefix_bytes >= 0 && (uint32_t)prefix_bytes < build->error_bytes)
        (void)vsnprintf(build->ret_error + prefix_bytes, build->error_bytes - (uint32_t)prefix_bytes, format,
                        arguments);
    for (char *c = build->ret_error; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    }
}

enum kvt_status kvt_workload_refuse(const struct kvt_workload_build *build, uint64_t line, const char *format, ...)
{
    char prefix[512];
    if (line > 0) {
        (void)snprintf(prefix, sizeof prefix, "%.480s:%llu: ", build->options->trace, (unsigned long long)line);
    } else {
        (void)snprintf(prefix, sizeof prefix, "%.480s: ", build->options->trace);
    }
    va_list arguments;
    va_start(arguments, format);
    write_error(build, prefix, format, arguments);
    va_end(arguments);
    return KVT_INVAL;
}

enum kvt_status kvt_workload_refuse_option(const struct kvt_workload_build *build, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_error(build, "", format, arguments);
    va_end(arguments);
    return KVT_INVAL;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

enum kvt_status kvt_workload_add_row(struct kvt_workload_build *build, struct kvt_workload_row **ret_row)
{
    if (build->row_count == build->row_capacity) {
        if (build->row_capacity > UINT32_MAX / 2) return KVT_NOMEM;
        const uint32_t capacity = kvt_max_u32(64, build->row_capacity * 2);
        struct kvt_workload_row *grown = kvt_realloc(build->rows, capacity, sizeof *grown);
        if (!grown) return KVT_NOMEM;
        build->rows = grown;
        build->row_capacity = capacity;
    }
    struct kvt_workload_row *row = &build->rows[build->row_count];
    *row = (struct kvt_workload_row){
        .request = { .session = KVT_NO_SESSION, .is_last_turn = true },
        .streams.own = kvt_workload_mix(build->options->seed, ((uint64_t)1 << 32) + build->row_count),
        .ids_first = build->id_count,
        .order = build->row_count,
    };
    build->row_count++;
    *ret_row = row;
    return KVT_OK;
}

enum kvt_status kvt_workload_add_id(struct kvt_workload_build *build, uint64_t id)
{
    KVT_ASSERT(build->row_count > 0);
    if (build->id_count == build->id_capacity) {
        const size_t capacity = build->id_capacity ? build->id_capacity * 2 : 1024;
        uint64_t *grown = kvt_realloc(build->ids, capacity, sizeof *grown);
        if (!grown) return KVT_NOMEM;
        build->ids = grown;
        build->id_capacity = capacity;
    }
    build->ids[build->id_count++] = id;
    struct kvt_request *request = &build->rows[build->row_count - 1].request;
    if (request->has_output_ids) request->output_id_count++;
    else request->id_count++;
    return KVT_OK;
}

bool kvt_workload_has_enough(const struct kvt_workload_build *build)
{
    return build->options->requests_max > 0 && build->row_count >= build->options->requests_max;
}

/* ---- From rows to a workload ------------------------------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b)
{
    const struct kvt_workload_row *left = a, *right = b;
    if (left->request.arrival_ns != right->request.arrival_ns)
        return left->request.arrival_ns < right->request.arrival_ns ? -1 : 1;
    return left->order < right->order ? -1 : left->order > right->order;
}

/* A turn is the last one unless a later row continues its session. */
static enum kvt_status mark_last_turns(struct workload_full *full)
{
    if (full->public.session_count == 0) return KVT_OK;
    uint8_t *is_seen = kvt_alloc(full->public.session_count, 1);
    if (!is_seen) return KVT_NOMEM;
    for (uint32_t i = full->public.request_count; i-- > 0;) {
        struct kvt_request *request = &full->requests[i];
        if (request->session == KVT_NO_SESSION) continue;
        request->is_last_turn = !is_seen[request->session];
        is_seen[request->session] = 1;
    }
    kvt_free(is_seen);
    return KVT_OK;
}

/* Moves build's rows and ids into *full. */
static enum kvt_status finish(struct kvt_workload_build *build, struct workload_full *full)
{
    const struct kvt_workload_options *options = build->options;
    KVT_ASSERT(build->row_count > 0 || options->is_empty_allowed);
    full->name = kvt_strdup(options->trace ? options->trace : options->generator);
    full->requests = kvt_alloc((size_t)build->row_count + 1, sizeof *full->requests);
    full->streams = kvt_alloc((size_t)build->row_count + 1, sizeof *full->streams);
    if (!full->name || !full->requests || !full->streams) return KVT_NOMEM;

    if (build->row_count > 0) qsort(build->rows, build->row_count, sizeof *build->rows, compare_rows);
    full->ids = build->ids;
    build->ids = NULL;
    const uint64_t start_ns = build->row_count > 0 ? build->rows[0].request.arrival_ns : 0;
    for (uint32_t i = 0; i < build->row_count; i++) {
        const struct kvt_workload_row *row = &build->rows[i];
        full->requests[i] = row->request;
        full->requests[i].arrival_ns -= start_ns;
        full->requests[i].ids = row->request.id_count + row->request.output_id_count > 0 ? full->ids + row->ids_first
                                                                                         : NULL;
        full->streams[i] = row->streams;
    }
    full->common = kvt_workload_mix(options->seed, 1);
    full->id_salt = kvt_workload_mix(options->seed, 2);
    full->public = (struct kvt_workload){
        .name = full->name,
        .block_tokens = options->block_tokens,
        .request_count = build->row_count,
        .requests = full->requests,
        .session_count = build->session_count,
        .seed = options->seed,
        .shared_prefix_tokens = build->shared_prefix_tokens,
    };
    return mark_last_turns(full);
}

/* ---- Create and destroy ------------------------------------------------------------------------------------------ */

static bool starts_with(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

/* The first line that is not blank says which kind of trace it is. */
static enum kvt_status read_lines(struct kvt_workload_build *build, struct kvt_lines *lines)
{
    char *line;
    size_t length;
    do {
        KVT_TRY(kvt_lines_next(lines, &line, &length));
        if (!line && build->options->is_empty_allowed) return KVT_OK;
        if (!line) return kvt_workload_refuse(build, 0, "an empty file: a trace has at least one request");
    } while (length == 0);

    if (*line == '{') {
        KVT_TRY(kvt_trace_read_mooncake(build, lines, line, length));
    } else if (starts_with(line, "TIMESTAMP")) {
        KVT_TRY(kvt_trace_read_azure(build, lines, line, length));
    } else {
        return kvt_workload_refuse(build, lines->number,
                                   "'%.40s': neither a JSON object nor the header "
                                   "TIMESTAMP,ContextTokens,GeneratedTokens",
                                   line);
    }
    if (build->row_count == 0 && !build->options->is_empty_allowed)
        return kvt_workload_refuse(build, 0, "no requests: a trace has at least one");
    return KVT_OK;
}

static enum kvt_status read_trace(struct kvt_workload_build *build)
{
    struct kvt_lines lines;
    enum kvt_status status = kvt_lines_open(&lines, build->options->trace);
    if (status == KVT_OK) {
        status = read_lines(build, &lines);
        kvt_lines_close(&lines);
    }
    if (status == KVT_IO)
        (void)kvt_workload_refuse(build, lines.number, "cannot be read: %s", strerror(lines.os_errno));
    return status;
}

static enum kvt_status fill_rows(struct kvt_workload_build *build)
{
    const struct kvt_workload_options *options = build->options;
    if (!options->trace == !options->generator)
        return kvt_workload_refuse_option(build, "a workload is either a trace file or a generator's name");
    if (options->block_tokens < 1 || options->block_tokens > UINT16_MAX)
        return kvt_workload_refuse_option(build, "block_tokens is %u: 1 to 65535", options->block_tokens);
    return options->trace ? read_trace(build) : kvt_workload_generate(build);
}

enum kvt_status kvt_workload_create(const struct kvt_workload_options *options, struct kvt_workload **ret_workload,
                                    char *ret_error, uint32_t error_bytes)
{
    struct kvt_workload_build build = { .options = options, .ret_error = ret_error, .error_bytes = error_bytes };
    struct workload_full *full = kvt_alloc(1, sizeof *full);
    enum kvt_status status = full ? fill_rows(&build) : KVT_NOMEM;
    if (status == KVT_OK) status = finish(&build, full);
    kvt_free(build.rows);
    kvt_free(build.ids);
    struct kvt_workload *workload = full ? &full->public : NULL;
    if (status != KVT_OK) {
        if (status == KVT_NOMEM) (void)kvt_workload_refuse_option(&build, "the workload does not fit in memory");
        kvt_workload_destroy(&workload);
        return status;
    }
    *ret_workload = workload;
    return KVT_OK;
}

void kvt_workload_destroy(struct kvt_workload **workload)
{
    if (!*workload) return;
    struct workload_full *full = (struct workload_full *)(void *)*workload;
    kvt_free(full->name);
    kvt_free(full->requests);
    kvt_free(full->streams);
    kvt_free(full->ids);
    kvt_free(full);
    *workload = NULL;
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

static uint32_t token_at(uint64_t stream, uint64_t position) { return (uint32_t)kvt_workload_mix(stream, position); }

void kvt_workload_tokens(const struct kvt_workload *workload, uint32_t request, uint64_t first, uint64_t count,
                         uint32_t *ret_tokens)
{
    KVT_ASSERT(request < workload->request_count);
    const struct workload_full *full = full_of(workload);
    const struct kvt_request *r = &full->requests[request];
    const struct kvt_token_streams *streams = &full->streams[request];
    const uint64_t id_end = r->has_output_ids ? r->prompt_tokens + r->output_tokens : r->prompt_tokens;
    KVT_ASSERT(first <= r->prompt_tokens + r->output_tokens);
    KVT_ASSERT(count <= r->prompt_tokens + r->output_tokens - first);

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t position = first + i;
        const uint64_t block = position / workload->block_tokens;
        if (position < id_end && block < (uint64_t)r->id_count + r->output_id_count) {
            const uint64_t content = kvt_workload_mix(full->id_salt, r->ids[block]);
            ret_tokens[i] = token_at(content, position % workload->block_tokens);
        } else if (position < streams->common_end) {
            ret_tokens[i] = token_at(full->common, position);
        } else if (position < streams->group_end) {
            ret_tokens[i] = token_at(streams->group, position);
        } else {
            ret_tokens[i] = token_at(streams->own, position);
        }
    }
}
