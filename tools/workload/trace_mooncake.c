/*
 * trace_mooncake: one JSON object a line, as Mooncake's published traces and those derived from them have it.
 *
 *   timestamp | created_time        milliseconds
 *   input_length | input_tokens     at least 1
 *   output_length | output_tokens
 *   hash_ids                        one id for each block of block_tokens prompt tokens; a partial last one may be
 *                                   left out
 *   output_hash_ids                 of a recorded run: ids of the blocks after those of hash_ids, which then has all of
 *                                   the prompt's, to the end of the output; the output's tokens are theirs as well
 *   session_id, turn, think_ms, stop, api_ms   may be there; api_ms is checked but not used
 *
 * Other fields are skipped.
 */
#include <json-c/json.h>
#include <math.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/workload/lines.h"
#include "tools/workload/workload_build.h"

struct session {
    char *name; /* the JSON text of its id */
    uint64_t hash;
    uint64_t timestamp_ns, turn_in_file; /* of its last request so far */
    uint32_t turns;
};

/* Sessions by name: an open-addressed table of indices + 1, at most half full. */
struct session_table {
    struct session *sessions;
    uint32_t count, capacity;
    uint32_t *slots;
    uint32_t slot_count;
};

struct reader {
    struct kvt_workload_build *build;
    struct kvt_lines *lines;
    struct json_tokener *tokener;
    struct json_object *object; /* of the current line */
    struct session_table table;
};

/* ---- Fields ------------------------------------------------------------------------------------------------------ */

static enum kvt_status refuse_field(const struct reader *reader, const char *name, struct json_object *value,
                                    const char *rule)
{
    return kvt_workload_refuse(reader->build, reader->lines->number, "%s is %.40s: %s", name,
                               value ? json_object_to_json_string(value) : "null", rule);
}

/* The field called `name`, or else `other`; *ret_name is the one found. False: neither is there. */
static bool find(const struct reader *reader, const char *name, const char *other, const char **ret_name,
                 struct json_object **ret_value)
{
    *ret_name = name;
    if (json_object_object_get_ex(reader->object, name, ret_value)) return true;
    if (!other || !json_object_object_get_ex(reader->object, other, ret_value)) return false;
    *ret_name = other;
    return true;
}

static enum kvt_status refuse_missing(const struct reader *reader, const char *name)
{
    return kvt_workload_refuse(reader->build, reader->lines->number, "%s is missing", name);
}

static enum kvt_status read_tokens(const struct reader *reader, const char *name, const char *other, uint64_t least,
                                   uint64_t *ret_tokens)
{
    struct json_object *value;
    const char *found;
    if (!find(reader, name, other, &found, &value)) return refuse_missing(reader, name);
    const char *rule = least > 0 ? "a whole number, 1 to 1099511627776" : "a whole number, 0 to 1099511627776";
    if (!json_object_is_type(value, json_type_int)) return refuse_field(reader, found, value, rule);
    const int64_t tokens = json_object_get_int64(value);
    if (tokens < (int64_t)least || tokens > (int64_t)KVT_TRACE_TOKENS_MAX)
        return refuse_field(reader, found, value, rule);
    *ret_tokens = (uint64_t)tokens;
    return KVT_OK;
}

static enum kvt_status parse_ms(const struct reader *reader, const char *name, struct json_object *value,
                                uint64_t *ret_ns)
{
    if (json_object_is_type(value, json_type_int)) {
        const int64_t ms = json_object_get_int64(value);
        if (ms >= 0 && (uint64_t)ms <= KVT_TRACE_TIME_MS_MAX) {
            *ret_ns = (uint64_t)ms * KVT_NS_PER_MS;
            return KVT_OK;
        }
    } else if (json_object_is_type(value, json_type_double)) {
        const double ms = json_object_get_double(value);
        if (isfinite(ms) && ms >= 0 && ms <= (double)KVT_TRACE_TIME_MS_MAX) {
            *ret_ns = (uint64_t)(ms * (double)KVT_NS_PER_MS);
            return KVT_OK;
        }
    }
    return refuse_field(reader, name, value, "milliseconds, 0 to 10000000000000");
}

/* json-c turns a whole number that is too large into the nearest that is not: two ids would become one. */
static bool is_clamped(struct json_object *number)
{
    return json_object_get_uint64(number) == UINT64_MAX || json_object_get_int64(number) == INT64_MIN;
}

static enum kvt_status add_ids(const struct reader *reader, struct json_object *array, const char *name)
{
    const size_t count = json_object_array_length(array);
    for (size_t i = 0; i < count; i++) {
        struct json_object *id = json_object_array_get_idx(array, i);
        if (!json_object_is_type(id, json_type_int) || json_object_get_int64(id) < 0 || is_clamped(id))
            return refuse_field(reader, name, id, "a whole number, 0 to 18446744073709551614");
        KVT_TRY(kvt_workload_add_id(reader->build, json_object_get_uint64(id)));
    }
    return KVT_OK;
}

static enum kvt_status read_ids(const struct reader *reader, const struct kvt_request *request)
{
    struct json_object *array;
    if (!json_object_object_get_ex(reader->object, "hash_ids", &array)) return refuse_missing(reader, "hash_ids");
    if (!json_object_is_type(array, json_type_array))
        return refuse_field(reader, "hash_ids", array, "an array of whole numbers");

    const uint32_t block_tokens = reader->build->options->block_tokens;
    const uint64_t floor = request->prompt_tokens / block_tokens;
    const uint64_t ceil = (request->prompt_tokens + block_tokens - 1) / block_tokens;
    const size_t count = json_object_array_length(array);
    if (count != floor && count != ceil) {
        return kvt_workload_refuse(reader->build, reader->lines->number,
                                   "hash_ids has %zu ids: %llu tokens in blocks of %u take %llu or %llu", count,
                                   (unsigned long long)request->prompt_tokens, block_tokens, (unsigned long long)floor,
                                   (unsigned long long)ceil);
    }
    return add_ids(reader, array, "an id of hash_ids");
}

/* After read_ids(). Nothing happens when the trace has none. */
static enum kvt_status read_output_ids(const struct reader *reader, struct kvt_request *request)
{
    struct json_object *array;
    if (!json_object_object_get_ex(reader->object, "output_hash_ids", &array)) return KVT_OK;
    if (!json_object_is_type(array, json_type_array))
        return refuse_field(reader, "output_hash_ids", array, "an array of whole numbers");
    const uint32_t block_tokens = reader->build->options->block_tokens;
    const uint64_t prompt_blocks = (request->prompt_tokens + block_tokens - 1) / block_tokens;
    const uint64_t blocks = (request->prompt_tokens + request->output_tokens + block_tokens - 1) / block_tokens;
    const size_t count = json_object_array_length(array);
    if (request->id_count != prompt_blocks || prompt_blocks + count != blocks) {
        return kvt_workload_refuse(reader->build, reader->lines->number,
                                   "output_hash_ids has %zu ids, and hash_ids %u: prompt and output take %llu and %llu",
                                   count, request->id_count, (unsigned long long)(blocks - prompt_blocks),
                                   (unsigned long long)prompt_blocks);
    }
    request->has_output_ids = true;
    return add_ids(reader, array, "an id of output_hash_ids");
}

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0;
    for (; *name; name++) hash = kvt_workload_mix(hash, (unsigned char)*name);
    return hash;
}

static uint32_t find_slot(const struct session_table *table, const char *name, uint64_t hash)
{
    uint32_t slot = (uint32_t)hash & (table->slot_count - 1);
    while (table->slots[slot] != 0) {
        const struct session *session = &table->sessions[table->slots[slot] - 1];
        if (session->hash == hash && strcmp(session->name, name) == 0) break;
        slot = (slot + 1) & (table->slot_count - 1);
    }
    return slot;
}

static enum kvt_status grow_table(struct session_table *table)
{
    if (table->count < table->capacity) return KVT_OK;
    const uint32_t capacity = kvt_max_u32(64, table->capacity * 2);
    struct session *sessions = kvt_realloc(table->sessions, capacity, sizeof *sessions);
    if (!sessions) return KVT_NOMEM;
    table->sessions = sessions;
    uint32_t *slots = kvt_alloc((size_t)capacity * 2, sizeof *slots);
    if (!slots) return KVT_NOMEM;
    kvt_free(table->slots);
    table->slots = slots;
    table->slot_count = capacity * 2;
    table->capacity = capacity;
    for (uint32_t i = 0; i < table->count; i++) slots[find_slot(table, sessions[i].name, sessions[i].hash)] = i + 1;
    return KVT_OK;
}

static enum kvt_status find_session(struct session_table *table, const char *name, uint32_t *ret_index)
{
    KVT_TRY(grow_table(table));
    const uint64_t hash = hash_of(name);
    const uint32_t slot = find_slot(table, name, hash);
    if (table->slots[slot] == 0) {
        struct session *session = &table->sessions[table->count];
        *session = (struct session){ .name = kvt_strdup(name), .hash = hash };
        if (!session->name) return KVT_NOMEM;
        table->slots[slot] = ++table->count;
    }
    *ret_index = table->slots[slot] - 1;
    return KVT_OK;
}

static void destroy_table(struct session_table *table)
{
    for (uint32_t i = 0; i < table->count; i++) kvt_free(table->sessions[i].name);
    kvt_free(table->sessions);
    kvt_free(table->slots);
}

/* Other texts are as good as none. */
static enum kvt_stop stop_of(const char *text)
{
    if (strcmp(text, "tool_use") == 0) return KVT_STOP_TOOL_USE;
    if (strcmp(text, "end_turn") == 0) return KVT_STOP_END_TURN;
    return KVT_STOP_UNKNOWN;
}

/* A trace may begin in the middle of a session: turns are counted from the first one that is there. */
static enum kvt_status read_turn(struct reader *reader, struct json_object *id, struct kvt_request *request)
{
    const bool is_number = json_object_is_type(id, json_type_int) && !is_clamped(id);
    if (!is_number && !json_object_is_type(id, json_type_string))
        return refuse_field(reader, "session_id", id, "a string or a whole number");
    uint32_t index;
    KVT_TRY(find_session(&reader->table, json_object_to_json_string(id), &index));
    struct session *session = &reader->table.sessions[index];

    struct json_object *value;
    uint64_t turn_in_file = session->turns > 0 ? session->turn_in_file + 1 : 0;
    if (json_object_object_get_ex(reader->object, "turn", &value)) {
        KVT_TRY(read_tokens(reader, "turn", NULL, 0, &turn_in_file));
        if (session->turns > 0 && turn_in_file <= session->turn_in_file)
            return refuse_field(reader, "turn", value, "higher than that of the session's turn before");
    }
    if (session->turns > 0 && request->arrival_ns < session->timestamp_ns) {
        return kvt_workload_refuse(reader->build, reader->lines->number,
                                   "timestamp is %.3f ms: not before the session's turn before",
                                   (double)request->arrival_ns / (double)KVT_NS_PER_MS);
    }
    request->session = index;
    request->turn = session->turns++;
    session->timestamp_ns = request->arrival_ns;
    session->turn_in_file = turn_in_file;
    if (json_object_object_get_ex(reader->object, "think_ms", &value))
        KVT_TRY(parse_ms(reader, "think_ms", value, &request->think_ns));
    if (json_object_object_get_ex(reader->object, "stop", &value)) {
        if (!json_object_is_type(value, json_type_string)) return refuse_field(reader, "stop", value, "a string");
        request->stop = stop_of(json_object_get_string(value));
    }
    uint64_t api_ns;
    if (json_object_object_get_ex(reader->object, "api_ms", &value))
        KVT_TRY(parse_ms(reader, "api_ms", value, &api_ns));
    return KVT_OK;
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

static enum kvt_status read_request(struct reader *reader)
{
    struct kvt_workload_row *row;
    KVT_TRY(kvt_workload_add_row(reader->build, &row));
    struct kvt_request *request = &row->request;

    struct json_object *value;
    const char *found;
    if (!find(reader, "timestamp", "created_time", &found, &value)) return refuse_missing(reader, "timestamp");
    KVT_TRY(parse_ms(reader, found, value, &request->arrival_ns));
    KVT_TRY(read_tokens(reader, "input_length", "input_tokens", 1, &request->prompt_tokens));
    KVT_TRY(read_tokens(reader, "output_length", "output_tokens", 0, &request->output_tokens));
    KVT_TRY(read_ids(reader, request));
    KVT_TRY(read_output_ids(reader, request));
    if (json_object_object_get_ex(reader->object, "session_id", &value) && value)
        return read_turn(reader, value, request);
    return KVT_OK;
}

static enum kvt_status read_line(struct reader *reader, const char *line, size_t length)
{
    const uint64_t number = reader->lines->number;
    if (length >= INT32_MAX)
        return kvt_workload_refuse(reader->build, number, "a line of %zu bytes: at most 2 GiB", length);
    json_tokener_reset(reader->tokener);
    /* The terminator tells the parser that the text is over: a bare number or null has no other end. */
    reader->object = json_tokener_parse_ex(reader->tokener, line, (int)length + 1);
    enum json_tokener_error error = json_tokener_get_error(reader->tokener);
    const size_t parsed = json_tokener_get_parse_end(reader->tokener);
    if (error == json_tokener_continue || (error == json_tokener_success && parsed != length))
        error = json_tokener_error_parse_eof;
    enum kvt_status status;
    if (error != json_tokener_success) {
        status = kvt_workload_refuse(reader->build, number, "column %llu: %s: a request is one JSON object on one line",
                                     (unsigned long long)kvt_min_u64(parsed, length) + 1,
                                     parsed < length ? json_tokener_error_desc(error) : "the line ends too early");
    } else if (!json_object_is_type(reader->object, json_type_object)) {
        status = kvt_workload_refuse(reader->build, number, "'%.40s': a request is one JSON object on one line", line);
    } else {
        status = read_request(reader);
    }
    (void)json_object_put(reader->object);
    reader->object = NULL;
    return status;
}

enum kvt_status kvt_trace_read_mooncake(struct kvt_workload_build *build, struct kvt_lines *lines, char *line,
                                        size_t length)
{
    struct reader reader = { .build = build, .lines = lines, .tokener = json_tokener_new() };
    if (!reader.tokener) return KVT_NOMEM;
    json_tokener_set_flags(reader.tokener, JSON_TOKENER_STRICT);

    enum kvt_status status = KVT_OK;
    while (status == KVT_OK && line && !kvt_workload_has_enough(build)) {
        if (length > 0) status = read_line(&reader, line, length);
        if (status == KVT_OK) status = kvt_lines_next(lines, &line, &length);
    }
    build->session_count = reader.table.count;
    destroy_table(&reader.table);
    json_tokener_free(reader.tokener);
    return status;
}
