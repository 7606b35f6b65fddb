/*
 * The key of a block is the identity of its context after its last token; that of a last block that is not full is the
 * key of the block that it becomes in the session's next turn, if that goes on from it. Keys are numbered in the order
 * in which they are first met.
 */
#include "tools/run/record.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tools/run/content.h"

enum { TOKENS_AT_ONCE = 512 };
#define TAIL_SALT UINT64_C(0x7461696c) /* a tail that nothing goes on from is no full block */
#define NO_REQUEST UINT32_MAX

/* Numbers of keys: an open-addressed table, at most half full. */
struct numbers {
    struct {
        uint64_t key, number; /* number + 1; 0: free */
    } * at;
    uint64_t count, capacity;
};

struct writer {
    const struct kvt_record *record;
    const struct kvt_workload *workload;
    FILE *stream;
    uint32_t *next_turn;                    /* [request_count]: of the session, completed; NO_REQUEST: none */
    uint64_t *tail_keys;                    /* [request_count] */
    uint64_t *identities, *next_identities; /* after each token of a context */
    struct numbers numbers;
};

enum kvt_status kvt_record_init(struct kvt_record *record, const struct kvt_workload *workload)
{
    *record = (struct kvt_record){ .workload = workload };
    record->took_ns = kvt_alloc(workload->request_count, sizeof *record->took_ns);
    if (!record->took_ns) return KVT_NOMEM;
    for (uint32_t i = 0; i < workload->request_count; i++) record->took_ns[i] = UINT64_MAX;
    return KVT_OK;
}

void kvt_record_done(struct kvt_record *record)
{
    kvt_free(record->took_ns);
    *record = (struct kvt_record){ 0 };
}

void kvt_record_turn(struct kvt_record *record, const struct kvt_turn *turn)
{
    KVT_ASSERT(turn->request < record->workload->request_count);
    record->took_ns[turn->request] = turn->ended_ns - turn->due_ns;
}

/* ---- Keys and numbers -------------------------------------------------------------------------------------------- */

static uint64_t context_tokens(const struct writer *w, uint32_t request)
{
    return w->workload->requests[request].prompt_tokens + w->workload->requests[request].output_tokens;
}

static void identify(const struct writer *w, uint32_t request, uint64_t *ret_identities)
{
    uint32_t tokens[TOKENS_AT_ONCE];
    uint64_t identity = KVT_CONTENT_ROOT;
    const uint64_t count = context_tokens(w, request);
    for (uint64_t first = 0; first < count; first += TOKENS_AT_ONCE) {
        const uint64_t n = kvt_min_u64(TOKENS_AT_ONCE, count - first);
        kvt_workload_tokens(w->workload, request, first, n, tokens);
        for (uint64_t i = 0; i < n; i++) ret_identities[first + i] = identity = kvt_content_next(identity, tokens[i]);
    }
}

/* The key of the request's last block when that is not full; w->identities are the request's. */
static uint64_t tail_key(const struct writer *w, uint32_t request)
{
    const uint64_t block_tokens = w->workload->block_tokens, count = context_tokens(w, request);
    const uint64_t block_end = count - count % block_tokens + block_tokens;
    const uint32_t next = w->next_turn[request];
    if (next != NO_REQUEST && context_tokens(w, next) > count) {
        identify(w, next, w->next_identities);
        if (w->next_identities[count - 1] == w->identities[count - 1])
            return context_tokens(w, next) >= block_end ? w->next_identities[block_end - 1] : w->tail_keys[next];
    }
    return kvt_mix64(w->identities[count - 1] + TAIL_SALT);
}

static enum kvt_status grow(struct numbers *numbers)
{
    const uint64_t capacity = kvt_max_u64(1024, 2 * numbers->capacity);
    struct numbers grown = { .at = kvt_alloc(capacity, sizeof *grown.at),
                             .count = numbers->count,
                             .capacity = capacity };
    if (!grown.at) return KVT_NOMEM;
    for (uint64_t i = 0; i < numbers->capacity; i++) {
        if (numbers->at[i].number == 0) continue;
        uint64_t at = kvt_mix64(numbers->at[i].key) & (capacity - 1);
        while (grown.at[at].number != 0) at = (at + 1) & (capacity - 1);
        grown.at[at] = numbers->at[i];
    }
    kvt_free(numbers->at);
    *numbers = grown;
    return KVT_OK;
}

static enum kvt_status number_of(struct numbers *numbers, uint64_t key, uint64_t *ret_number)
{
    if (2 * (numbers->count + 1) > numbers->capacity) KVT_TRY(grow(numbers));
    uint64_t at = kvt_mix64(key) & (numbers->capacity - 1);
    while (numbers->at[at].number != 0 && numbers->at[at].key != key) at = (at + 1) & (numbers->capacity - 1);
    if (numbers->at[at].number == 0) {
        numbers->at[at].key = key;
        numbers->at[at].number = ++numbers->count;
    }
    *ret_number = numbers->at[at].number - 1;
    return KVT_OK;
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

static void put_ms(struct json_object *object, const char *name, uint64_t ns)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%" PRIu64 ".%06u", ns / 1000000, (unsigned)(ns % 1000000));
    (void)json_object_object_add(object, name, json_object_new_double_s((double)ns * 1e-6, text));
}

/* Ids of blocks [first, end) of the context. */
static enum kvt_status put_ids(struct writer *w, uint32_t request, struct json_object *object, const char *name,
                               uint64_t first, uint64_t end)
{
    const uint64_t block_tokens = w->workload->block_tokens, count = context_tokens(w, request);
    struct json_object *ids = json_object_new_array();
    (void)json_object_object_add(object, name, ids);
    for (uint64_t block = first; block < end; block++) {
        const uint64_t block_end = (block + 1) * block_tokens;
        uint64_t number;
        KVT_TRY(
            number_of(&w->numbers, block_end <= count ? w->identities[block_end - 1] : w->tail_keys[request], &number));
        (void)json_object_array_add(ids, json_object_new_uint64(number));
    }
    return KVT_OK;
}

static enum kvt_status fill_line(struct writer *w, uint32_t i, struct json_object *line)
{
    const struct kvt_request *request = &w->workload->requests[i];
    const uint64_t block_tokens = w->workload->block_tokens;
    const uint64_t prompt_blocks = (request->prompt_tokens + block_tokens - 1) / block_tokens;
    const uint64_t blocks = (context_tokens(w, i) + block_tokens - 1) / block_tokens;
    put_ms(line, "timestamp", request->arrival_ns);
    (void)json_object_object_add(line, "input_length", json_object_new_uint64(request->prompt_tokens));
    (void)json_object_object_add(line, "output_length", json_object_new_uint64(request->output_tokens));
    identify(w, i, w->identities);
    KVT_TRY(put_ids(w, i, line, "hash_ids", 0, prompt_blocks));
    KVT_TRY(put_ids(w, i, line, "output_hash_ids", prompt_blocks, blocks));
    if (request->session != KVT_NO_SESSION) {
        (void)json_object_object_add(line, "session_id", json_object_new_uint64(request->session));
        (void)json_object_object_add(line, "turn", json_object_new_uint64(request->turn));
        put_ms(line, "think_ms", request->think_ns);
    }
    put_ms(line, "api_ms", w->record->took_ns[i]);
    return KVT_OK;
}

static enum kvt_status write_line(struct writer *w, uint32_t request)
{
    struct json_object *line = json_object_new_object();
    if (!line) return KVT_NOMEM;
    enum kvt_status status = fill_line(w, request, line);
    const char *text = json_object_to_json_string_ext(line, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (status == KVT_OK && !text) status = KVT_NOMEM;
    if (status == KVT_OK && fprintf(w->stream, "%s\n", text) < 0) status = KVT_IO;
    (void)json_object_put(line);
    return status;
}

/* Turns from the last to the first: what a tail becomes is known before it. */
static enum kvt_status prepare(struct writer *w)
{
    const uint32_t count = w->workload->request_count;
    uint64_t tokens_max = 1;
    for (uint32_t i = 0; i < count; i++) tokens_max = kvt_max_u64(tokens_max, context_tokens(w, i));
    w->next_turn = kvt_alloc(count, sizeof *w->next_turn);
    w->tail_keys = kvt_alloc(count, sizeof *w->tail_keys);
    w->identities = kvt_alloc(tokens_max, sizeof *w->identities);
    w->next_identities = kvt_alloc(tokens_max, sizeof *w->next_identities);
    uint32_t *first = kvt_alloc((size_t)w->workload->session_count + 1, sizeof *first);
    const bool has_memory = w->next_turn && w->tail_keys && w->identities && w->next_identities && first;
    for (uint32_t s = 0; has_memory && s < w->workload->session_count; s++) first[s] = NO_REQUEST;
    for (uint32_t i = count; has_memory && i-- > 0;) {
        const uint32_t session = w->workload->requests[i].session;
        w->next_turn[i] = session == KVT_NO_SESSION ? NO_REQUEST : first[session];
        if (w->record->took_ns[i] == UINT64_MAX) continue;
        if (session != KVT_NO_SESSION) first[session] = i;
        if (context_tokens(w, i) % w->workload->block_tokens == 0) continue;
        identify(w, i, w->identities);
        w->tail_keys[i] = tail_key(w, i);
    }
    kvt_free(first);
    return has_memory ? KVT_OK : KVT_NOMEM;
}

enum kvt_status kvt_record_write(const struct kvt_record *record, FILE *stream)
{
    struct writer w = { .record = record, .workload = record->workload, .stream = stream };
    enum kvt_status status = prepare(&w);
    for (uint32_t i = 0; status == KVT_OK && i < w.workload->request_count; i++) {
        if (record->took_ns[i] != UINT64_MAX) status = write_line(&w, i);
    }
    kvt_free(w.next_turn);
    kvt_free(w.tail_keys);
    kvt_free(w.identities);
    kvt_free(w.next_identities);
    kvt_free(w.numbers.at);
    if (status == KVT_OK && fflush(stream) != 0) status = KVT_IO;
    return status;
}
