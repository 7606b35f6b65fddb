/* workload: traces read to the number, broken ones refused by line, generators that are pure functions of the seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tools/workload/workload.h"

/* The trace under test: a file in memory, so that thousands of them cost nothing. */
static int trace_fd;
static char trace_path[64];

static int set_up(void **state)
{
    (void)state;
    trace_fd = memfd_create("trace", MFD_CLOEXEC);
    (void)snprintf(trace_path, sizeof trace_path, "/proc/self/fd/%d", trace_fd);
    return trace_fd < 0;
}

static int tear_down(void **state)
{
    (void)state;
    return close(trace_fd);
}

static void write_trace(const char *text, size_t length)
{
    assert_int_equal(ftruncate(trace_fd, 0), 0);
    assert_int_equal(pwrite(trace_fd, text, length, 0), length);
}

static struct kvt_workload *create(const struct kvt_workload_options *options)
{
    char error[512] = "";
    struct kvt_workload *workload = NULL;
    const enum kvt_status status = kvt_workload_create(options, &workload, error, sizeof error);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_text(status), error);
    return workload;
}

static struct kvt_workload *read_text(const char *text)
{
    write_trace(text, strlen(text));
    return create(&(struct kvt_workload_options){ .trace = trace_path, .block_tokens = 4 });
}

static void expect_refused(const char *text, size_t length, const char *expected)
{
    write_trace(text, length);
    const struct kvt_workload_options options = { .trace = trace_path, .block_tokens = 4 };
    struct kvt_workload *workload = NULL;
    char error[512] = "", wanted[512];
    assert_int_equal(kvt_workload_create(&options, &workload, error, sizeof error), KVT_INVAL);
    assert_null(workload);
    (void)snprintf(wanted, sizeof wanted, "%s%s", trace_path, expected);
    assert_string_equal(error, wanted);
}

/* ---- Readers ----------------------------------------------------------------------------------------------------- */

static void a_mooncake_trace_is_read_field_by_field(void **state)
{
    (void)state;
    struct kvt_workload *w = read_text(
        "\n{\"timestamp\": 5, \"input_length\": 9, \"output_length\": 2, \"hash_ids\": [7, 8, "
        "18446744073709551614]}\r\n"
        "  \n{\"created_time\": 6.5, \"input_tokens\": 9, \"output_tokens\": 0, \"hash_ids\": [7, 9], \"more\": {}}");
    assert_int_equal(w->request_count, 2);
    assert_int_equal(w->session_count, 0);
    assert_int_equal(w->requests[0].arrival_ns, 0); /* times are counted from the first request */
    assert_int_equal(w->requests[0].prompt_tokens, 9);
    assert_int_equal(w->requests[0].output_tokens, 2);
    assert_int_equal(w->requests[0].id_count, 3);
    assert_true(w->requests[0].ids[2] == UINT64_MAX - 1);
    assert_int_equal(w->requests[0].session, KVT_NO_SESSION);
    assert_true(w->requests[0].is_last_turn);
    assert_int_equal(w->requests[1].arrival_ns, 1500000);
    assert_int_equal(w->requests[1].id_count, 2);
    kvt_workload_destroy(&w);
    assert_null(w);
}

/* Goal: ids of the output make its tokens theirs: a turn that goes on from them shares them, in a block cut by both. */
static void a_recorded_output_has_the_tokens_of_its_ids(void **state)
{
    (void)state;
    struct kvt_workload *w = read_text(
        "{\"timestamp\":0,\"input_length\":5,\"output_length\":5,\"hash_ids\":[1,2],\"output_hash_ids\":[3],"
        "\"session_id\":1,\"turn\":0}\n"
        "{\"timestamp\":1,\"input_length\":12,\"output_length\":2,\"hash_ids\":[1,2,3],\"output_hash_ids\":[4],"
        "\"session_id\":1,\"turn\":1}\n"
        "{\"timestamp\":2,\"input_length\":5,\"output_length\":5,\"hash_ids\":[1,2]}\n");
    uint32_t first[10], second[14], plain[10];
    assert_int_equal(w->requests[0].id_count, 2);
    assert_int_equal(w->requests[0].output_id_count, 1);
    kvt_workload_tokens(w, 0, 0, 10, first);
    kvt_workload_tokens(w, 1, 0, 14, second);
    kvt_workload_tokens(w, 2, 0, 10, plain);
    assert_memory_equal(first, second, sizeof first);
    assert_memory_equal(first, plain, 5 * sizeof *plain);                  /* the prompt */
    for (int i = 5; i < 10; i++) assert_int_not_equal(plain[i], first[i]); /* without ids it is the request's own */
    kvt_workload_destroy(&w);
}

static void sessions_are_dense_and_their_turns_in_order(void **state)
{
    (void)state;
#define TURN(time, id, turn)                                                                              \
    "{\"timestamp\":" #time ",\"input_length\":5,\"output_length\":1,\"hash_ids\":[1],\"session_id\":" id \
    ",\"turn\":" #turn ",\"stop\":\"end_turn\",\"think_ms\":" #time ",\"api_ms\":7}\n"
    struct kvt_workload *w = read_text(TURN(1, "\"b\"", 3) TURN(2, "7", 0) TURN(3, "\"b\"", 4) TURN(2, "\"7\"", 0)
                                           TURN(9, "7", 5));
    assert_int_equal(w->request_count, 5);
    assert_int_equal(w->session_count, 3);
    static const struct {
        uint32_t session, turn;
        bool is_last;
        uint64_t think_ns;
    } wanted[] = { { 0, 0, false, 1000000 },
                   { 1, 0, false, 2000000 },
                   { 2, 0, true, 2000000 },
                   { 0, 1, true, 3000000 },
                   { 1, 1, true, 9000000 } };
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(w->requests[i].session, wanted[i].session);
        assert_int_equal(w->requests[i].turn, wanted[i].turn);
        assert_int_equal(w->requests[i].is_last_turn, wanted[i].is_last);
        assert_int_equal(w->requests[i].think_ns, wanted[i].think_ns);
    }
    kvt_workload_destroy(&w);
#undef TURN
}

static void an_azure_trace_is_read_with_its_carriage_returns(void **state)
{
    (void)state;
    struct kvt_workload *w = read_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-02-29 23:59:59.5,374,44\r\n"
                                       "2024-03-01 00:00:00.7500001+00:00,1,0");
    assert_int_equal(w->request_count, 2);
    assert_int_equal(w->requests[0].prompt_tokens, 374);
    assert_int_equal(w->requests[0].output_tokens, 44);
    assert_null(w->requests[0].ids);
    assert_int_equal(w->requests[1].arrival_ns, 1250000100);
    kvt_workload_destroy(&w);
}

static void requests_max_reads_no_further(void **state)
{
    (void)state;
    const char *text = "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}\nbroken\n";
    write_trace(text, strlen(text));
    struct kvt_workload *w = create(
        &(struct kvt_workload_options){ .trace = trace_path, .block_tokens = 4, .requests_max = 1 });
    assert_int_equal(w->request_count, 1);
    kvt_workload_destroy(&w);
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

#define GOOD_LINE "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,2]}"
#define GOOD GOOD_LINE "\n"

static const struct {
    const char *text, *error;
} broken[] = {
    { "", ": an empty file: a trace has at least one request" },
    { "\n  \r\n\n", ": an empty file: a trace has at least one request" },
    { "PK\x03\x04", ":1: 'PK?\?': neither a JSON object nor the header TIMESTAMP,ContextTokens,GeneratedTokens" },
    { GOOD "{\"timestamp\":0,\"input_len",
      ":2: column 26: the line ends too early: a request is one JSON object on one line" },
    { GOOD "\n[1]\n", ":3: '[1]': a request is one JSON object on one line" },
    { GOOD "null", ":2: 'null': a request is one JSON object on one line" },
    { GOOD "{} x", ":2: column 4: unexpected character: a request is one JSON object on one line" },
    { GOOD "{}", ":2: timestamp is missing" },
    { "{\"timestamp\":-1}", ":1: timestamp is -1: milliseconds, 0 to 10000000000000" },
    { "{\"timestamp\":\"0\"}", ":1: timestamp is \"0\": milliseconds, 0 to 10000000000000" },
    { "{\"created_time\":1e300}", ":1: created_time is 1e300: milliseconds, 0 to 10000000000000" },
    { "{\"timestamp\":0,\"input_length\":0}", ":1: input_length is 0: a whole number, 1 to 1099511627776" },
    { "{\"timestamp\":0,\"input_length\":1.5}", ":1: input_length is 1.5: a whole number, 1 to 1099511627776" },
    { "{\"timestamp\":0,\"input_length\":1,\"output_length\":-7}",
      ":1: output_length is -7: a whole number, 0 to 1099511627776" },
    { "{\"timestamp\":0,\"input_length\":1,\"output_length\":null}",
      ":1: output_length is null: a whole number, 0 to 1099511627776" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1}", ":1: hash_ids is missing" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":3}",
      ":1: hash_ids is 3: an array of whole numbers" },
    { GOOD "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1]}",
      ":2: hash_ids has 1 ids: 9 tokens in blocks of 4 take 2 or 3" },
    { GOOD "{\"timestamp\":0,\"input_length\":8,\"output_length\":1,\"hash_ids\":[1,2,3]}",
      ":2: hash_ids has 3 ids: 8 tokens in blocks of 4 take 2 or 2" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,2,3],\"output_hash_ids\":7}",
      ":1: output_hash_ids is 7: an array of whole numbers" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":4,\"hash_ids\":[1,2,3],\"output_hash_ids\":[]}",
      ":1: output_hash_ids has 0 ids, and hash_ids 3: prompt and output take 1 and 3" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,2],\"output_hash_ids\":[3]}",
      ":1: output_hash_ids has 1 ids, and hash_ids 2: prompt and output take 0 and 3" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":4,\"hash_ids\":[1,2,3],\"output_hash_ids\":[-1]}",
      ":1: an id of output_hash_ids is -1: a whole number, 0 to 18446744073709551614" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,-2]}",
      ":1: an id of hash_ids is -2: a whole number, 0 to 18446744073709551614" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,18446744073709551616]}",
      ":1: an id of hash_ids is 18446744073709551615: a whole number, 0 to 18446744073709551614" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,NaN]}",
      ":1: an id of hash_ids is NaN: a whole number, 0 to 18446744073709551614" },
    { "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1,\"2\"]}",
      ":1: an id of hash_ids is \"2\": a whole number, 0 to 18446744073709551614" },
    { "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"session_id\":{}}",
      ":1: session_id is { }: a string or a whole number" },
    { "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"session_id\":"
      "99999999999999999999}",
      ":1: session_id is 18446744073709551615: a string or a whole number" },
    { "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"session_id\":1,\"turn\":2}\n"
      "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"session_id\":1,\"turn\":2}",
      ":2: turn is 2: higher than that of the session's turn before" },
    { "{\"timestamp\":5,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"session_id\":1}\n"
      "{\"timestamp\":4,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"session_id\":1}",
      ":2: timestamp is 4.000 ms: not before the session's turn before" },
    { "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[],\"session_id\":1,\"think_ms\":"
      "\"x\"}",
      ":1: think_ms is \"x\": milliseconds, 0 to 10000000000000" },
    { "TIMESTAMP,Context",
      ":1: 'TIMESTAMP,Context': the header of this kind of trace is TIMESTAMP,ContextTokens,GeneratedTokens" },
    { "TIMESTAMP,ContextTokens,GeneratedTokens\r\n", ": no requests: a trace has at least one" },
    { "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-01 00:00:00,1,1\n",
      ":2: TIMESTAMP is '2023-13-01 00:00:00': year-month-day hour:minute:second, and a comma behind it" },
    { "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-00-01 00:00:00,1,1\n",
      ":2: TIMESTAMP is '2023-00-01 00:00:00': year-month-day hour:minute:second, and a comma behind it" },
    { "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-01 00:00:00,1,44,5\n",
      ":2: GeneratedTokens is '44,5': a whole number, 0 to 1099511627776, at the line's end" },
    { "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-01 00:00:00,0,1\n",
      ":2: ContextTokens is '0': a whole number, 1 to 1099511627776, and a comma behind it" },
    { "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-01 00:00:00,1,-1\n",
      ":2: GeneratedTokens is '-1': a whole number, 0 to 1099511627776, at the line's end" },
    { "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-01 00:00:00,99999999999999999999,1\n",
      ":2: ContextTokens is '99999999999999999999': a whole number, 1 to 1099511627776, and a comma behind it" },
};

static void a_broken_line_is_refused_by_file_line_value_and_rule(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(broken); i++)
        expect_refused(broken[i].text, strlen(broken[i].text), broken[i].error);

    static const char nul_behind[] = GOOD_LINE "\0x\n";
    expect_refused(nul_behind, sizeof nul_behind - 1,
                   ":1: column 68: unexpected end of data: a request is one JSON object on one line");
    static const char nul[] = "{\"timestamp\":0,\0\"input_length\":9}";
    expect_refused(nul, sizeof nul - 1,
                   ":1: column 16: unexpected end of data: a request is one JSON object on one line");
}

static void a_file_that_cannot_be_read_is_said_by_name(void **state)
{
    (void)state;
    char error[512] = "";
    struct kvt_workload *workload = NULL;
    struct kvt_workload_options options = { .trace = "/nonexistent/a\nb", .block_tokens = 4 };
    assert_int_equal(kvt_workload_create(&options, &workload, error, sizeof error), KVT_IO);
    assert_string_equal(error, "/nonexistent/a?b: cannot be read: No such file or directory");
    options.trace = "/tmp";
    assert_int_equal(kvt_workload_create(&options, &workload, error, sizeof error), KVT_IO);
    assert_string_equal(error, "/tmp: cannot be read: Is a directory");
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    char error[512] = "";
    struct kvt_workload *workload = NULL;
    struct kvt_workload_options options = { .generator = "chit", .block_tokens = 16, .think_ns = UINT64_MAX };
    assert_int_equal(kvt_workload_create(&options, &workload, error, sizeof error), KVT_INVAL);
    assert_string_equal(error, "workload is 'chit': chat, agent, longdoc or batch");
    options.generator = "chat";
    options.context_tokens = 63;
    assert_int_equal(kvt_workload_create(&options, &workload, error, sizeof error), KVT_INVAL);
    assert_string_equal(error, "context_tokens is 63: 64 to 16777216");
    options.context_tokens = 0;
    options.block_tokens = 0;
    assert_int_equal(kvt_workload_create(&options, &workload, error, sizeof error), KVT_INVAL);
    options.block_tokens = 16;
    options.think_ns = UINT64_MAX - 1;
    assert_int_equal(kvt_workload_create(&options, &workload, error, sizeof error), KVT_INVAL);
    options.think_ns = UINT64_MAX;
    options.trace = "x";
    assert_int_equal(kvt_workload_create(&options, &workload, NULL, 0), KVT_INVAL);
    assert_null(workload);
}

/*
 * What a fuzzer would find first: any change of a few bytes is read or refused by line, never a crash, never a
 * broken promise.
 */
static void a_mangled_trace_is_read_or_refused(void **state)
{
    (void)state;
    static const char trace[] = GOOD "{\"timestamp\":3,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1],"
                                     "\"session_id\":\"s\",\"turn\":0,\"think_ms\":2}\n"
                                     "{\"timestamp\":4,\"input_length\":8,\"output_length\":0,\"hash_ids\":[1,2],"
                                     "\"session_id\":\"s\",\"turn\":1,\"think_ms\":2}\n";
    static const char azure[] =
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50,396,109";
    struct kvt_rng rng = { 11 };
    uint32_t read = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        char text[sizeof trace];
        const bool is_azure = i % 3 == 0;
        const size_t length = (is_azure ? sizeof azure : sizeof trace) - 1;
        memcpy(text, is_azure ? azure : trace, length);
        const uint64_t changes = 1 + kvt_rng_below(&rng, 2);
        for (uint64_t c = 0; c < changes; c++) {
            const char any = (char)kvt_rng_below(&rng, 256);
            text[kvt_rng_below(&rng, length)] = i % 2 == 0 ? any : trace[kvt_rng_below(&rng, sizeof trace - 1)];
        }
        write_trace(text, i % 7 == 0 ? kvt_rng_below(&rng, length) : length);
        struct kvt_workload *workload = NULL;
        char error[512] = "";
        const struct kvt_workload_options options = { .trace = trace_path, .block_tokens = 4 };
        const enum kvt_status status = kvt_workload_create(&options, &workload, error, sizeof error);
        if (status != KVT_OK) {
            assert_int_equal(status, KVT_INVAL);
            assert_int_equal(strncmp(error, trace_path, strlen(trace_path)), 0);
            for (const char *c = error; *c; c++) assert_true((unsigned char)*c >= ' ' && *c != 0x7f);
            continue;
        }
        read++;
        for (uint32_t r = 0; r < workload->request_count; r++) {
            const struct kvt_request *request = &workload->requests[r];
            assert_true(r == 0 || request->arrival_ns >= workload->requests[r - 1].arrival_ns);
            assert_true(request->prompt_tokens >= 1);
            assert_true(request->id_count <= (request->prompt_tokens + 3) / 4);
            assert_true(request->session == KVT_NO_SESSION || request->session < workload->session_count);
        }
        kvt_workload_destroy(&workload);
    }
    assert_true(read > 100);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

#define TOKENS_MAX 65536
static uint32_t left[TOKENS_MAX], right[TOKENS_MAX];

/* Leading tokens that two requests' prompts have in common. */
static uint64_t common_prefix(const struct kvt_workload *w, uint32_t a, uint32_t b)
{
    const uint64_t count = kvt_min_u64(TOKENS_MAX,
                                       kvt_min_u64(w->requests[a].prompt_tokens, w->requests[b].prompt_tokens));
    kvt_workload_tokens(w, a, 0, count, left);
    kvt_workload_tokens(w, b, 0, count, right);
    uint64_t same = 0;
    while (same < count && left[same] == right[same]) same++;
    return same;
}

static void equal_ids_are_equal_blocks_and_nothing_else_is_shared(void **state)
{
    (void)state;
    struct kvt_workload *w = read_text(
        "{\"timestamp\":0,\"input_length\":10,\"output_length\":8,\"hash_ids\":[1,2]}\n"
        "{\"timestamp\":1,\"input_length\":10,\"output_length\":8,\"hash_ids\":[1,2]}\n"
        "{\"timestamp\":2,\"input_length\":10,\"output_length\":8,\"hash_ids\":[1,3,2]}\n");
    assert_int_equal(common_prefix(w, 0, 1), 8); /* the tail behind the last id is each request's own */
    assert_int_equal(common_prefix(w, 0, 2), 4);
    kvt_workload_tokens(w, 0, 0, 18, left);
    kvt_workload_tokens(w, 2, 0, 18, right);
    assert_memory_equal(left + 4, right + 8, 2 * sizeof *left); /* id 2 is the same tokens wherever it stands */
    kvt_workload_tokens(w, 1, 0, 18, right);
    for (uint32_t i = 8; i < 18; i++) assert_int_not_equal(left[i], right[i]);
    kvt_workload_tokens(w, 0, 7, 5, right);
    assert_memory_equal(left + 7, right, 5 * sizeof *left); /* any part of the stream is the same stream */
    kvt_workload_destroy(&w);

    w = read_text("{\"timestamp\":0,\"input_length\":6,\"output_length\":9,\"hash_ids\":[1,2]}\n"
                  "{\"timestamp\":1,\"input_length\":6,\"output_length\":9,\"hash_ids\":[1,2]}\n");
    assert_int_equal(common_prefix(w, 0, 1),
                     6); /* the partial block has an id: it is equal as far as the prompt goes */
    kvt_workload_tokens(w, 0, 6, 9, left);
    kvt_workload_tokens(w, 1, 6, 9, right);
    for (uint32_t i = 0; i < 9; i++) assert_int_not_equal(left[i], right[i]); /* what is generated is each one's own */
    kvt_workload_destroy(&w);
}

static void assert_same_workload(const struct kvt_workload *a, const struct kvt_workload *b)
{
    assert_int_equal(a->request_count, b->request_count);
    for (uint32_t i = 0; i < a->request_count; i++) {
        const struct kvt_request *x = &a->requests[i], *y = &b->requests[i];
        assert_true(x->arrival_ns == y->arrival_ns && x->session == y->session && x->turn == y->turn
                    && x->think_ns == y->think_ns && x->prompt_tokens == y->prompt_tokens
                    && x->output_tokens == y->output_tokens && x->is_last_turn == y->is_last_turn);
        const uint64_t count = kvt_min_u64(TOKENS_MAX, x->prompt_tokens + x->output_tokens);
        kvt_workload_tokens(a, i, 0, count, left);
        kvt_workload_tokens(b, i, 0, count, right);
        assert_memory_equal(left, right, count * sizeof *left);
    }
}

static const char *const generator_names[] = { "chat", "agent", "longdoc", "batch" };

static void a_generator_is_a_pure_function_of_its_options(void **state)
{
    (void)state;
    for (uint32_t g = 0; g < 4; g++) {
        struct kvt_workload_options options = { .generator = generator_names[g],
                                                .block_tokens = 16,
                                                .seed = 7,
                                                .think_ns = UINT64_MAX,
                                                .context_tokens = 2048 };
        struct kvt_workload *a = create(&options), *b = create(&options);
        assert_same_workload(a, b);
        options.seed = 8;
        struct kvt_workload *c = create(&options);
        kvt_workload_tokens(a, 0, 0, 1, left);
        kvt_workload_tokens(c, 0, 0, 1, right);
        assert_int_not_equal(left[0], right[0]);
        kvt_workload_destroy(&a);
        kvt_workload_destroy(&b);
        kvt_workload_destroy(&c);
    }
}

/* The figures of one seed, so that a change of a generator is seen. */
static void generated_workloads_are_pinned(void **state)
{
    (void)state;
    static const struct {
        uint32_t requests, sessions;
        uint64_t prompt_tokens, digest;
    } wanted[] = { { 240, 42, 516753, 0x924f1fc2ea9d40b4 },
                   { 240, 10, 4423347, 0x99df7d648c259a0f },
                   { 120, 0, 1527103, 0x373bb9bfbaa1fa98 },
                   { 256, 0, 380385, 0x68669d4df87f0483 } };
    for (uint32_t g = 0; g < 4; g++) {
        struct kvt_workload *w = create(&(struct kvt_workload_options){
            .generator = generator_names[g], .block_tokens = 16, .seed = 1, .think_ns = UINT64_MAX });
        uint64_t prompt_tokens = 0, digest = 0;
        for (uint32_t i = 0; i < w->request_count; i++) {
            const struct kvt_request *r = &w->requests[i];
            prompt_tokens += r->prompt_tokens;
            kvt_workload_tokens(w, i, r->prompt_tokens, 1, left);
            digest = kvt_mix64(digest ^ r->arrival_ns) + r->think_ns + r->output_tokens + left[0];
        }
        print_message("%s: { %u, %u, %llu, 0x%llx }\n", generator_names[g], w->request_count, w->session_count,
                      (unsigned long long)prompt_tokens, (unsigned long long)digest);
        assert_int_equal(w->request_count, wanted[g].requests);
        assert_int_equal(w->session_count, wanted[g].sessions);
        assert_int_equal(prompt_tokens, wanted[g].prompt_tokens);
        assert_true(digest == wanted[g].digest);
        kvt_workload_destroy(&w);
    }
}

static void a_turn_continues_the_conversation_before_it(void **state)
{
    (void)state;
    for (uint32_t g = 0; g < 2; g++) {
        struct kvt_workload *w = create(&(struct kvt_workload_options){ .generator = generator_names[g],
                                                                        .block_tokens = 16,
                                                                        .seed = 3,
                                                                        .think_ns = 1000000,
                                                                        .requests_max = 101,
                                                                        .context_tokens = 1024 });
        assert_int_equal(w->request_count, 101);
        assert_int_equal(w->shared_prefix_tokens, 128);
        uint32_t last[101], turns = 0;
        for (uint32_t s = 0; s < w->session_count; s++) last[s] = UINT32_MAX;
        for (uint32_t i = 0; i < w->request_count; i++) {
            const struct kvt_request *r = &w->requests[i];
            assert_true(i == 0 || r->arrival_ns >= w->requests[i - 1].arrival_ns);
            assert_true(r->session < w->session_count);
            const uint32_t before = last[r->session];
            last[r->session] = i;
            if (before == UINT32_MAX) {
                assert_int_equal(r->turn, 0);
                assert_int_equal(r->think_ns, 0);
                if (i > 0) assert_int_equal(common_prefix(w, 0, i), w->shared_prefix_tokens);
                continue;
            }
            const struct kvt_request *p = &w->requests[before];
            assert_int_equal(r->turn, p->turn + 1);
            assert_false(p->is_last_turn);
            assert_true(r->think_ns <= 4000000);
            assert_true(r->prompt_tokens > p->prompt_tokens + p->output_tokens);
            kvt_workload_tokens(w, before, 0, p->prompt_tokens + p->output_tokens, left);
            kvt_workload_tokens(w, i, 0, p->prompt_tokens + p->output_tokens, right);
            assert_memory_equal(left, right, (p->prompt_tokens + p->output_tokens) * sizeof *left);
            turns++;
        }
        assert_true(turns > 50);
        for (uint32_t s = 0; s < w->session_count; s++) assert_true(w->requests[last[s]].is_last_turn);
        kvt_workload_destroy(&w);
    }
}

static void documents_and_examples_are_shared_whole(void **state)
{
    (void)state;
    for (uint32_t g = 2; g < 4; g++) {
        struct kvt_workload *w = create(&(struct kvt_workload_options){ .generator = generator_names[g],
                                                                        .block_tokens = 16,
                                                                        .seed = 3,
                                                                        .requests_max = 40,
                                                                        .context_tokens = 2048,
                                                                        .think_ns = UINT64_MAX });
        uint32_t shared = 0;
        for (uint32_t i = 1; i < w->request_count; i++) {
            assert_int_equal(w->requests[i].session, KVT_NO_SESSION);
            assert_true(w->requests[i].prompt_tokens + w->requests[i].output_tokens <= 2048);
            const uint64_t same = common_prefix(w, 0, i);
            assert_true(same == w->shared_prefix_tokens || same >= 800);
            assert_true(same < w->requests[i].prompt_tokens);
            if (same >= 800) shared++;
        }
        assert_true(shared > 0);
        assert_true(shared < w->request_count - 1);
        kvt_workload_destroy(&w);
    }
}

static void more_requests_change_none_of_the_earlier_sessions(void **state)
{
    (void)state;
    struct kvt_workload_options options = {
        .generator = "chat", .block_tokens = 16, .seed = 3, .think_ns = UINT64_MAX, .requests_max = 8
    };
    struct kvt_workload *few = create(&options);
    options.requests_max = 80;
    struct kvt_workload *many = create(&options);
    for (uint32_t i = 0; i < few->request_count; i++) {
        uint32_t j = 0;
        while (many->requests[j].session != few->requests[i].session || many->requests[j].turn != few->requests[i].turn)
            j++;
        assert_int_equal(many->requests[j].prompt_tokens, few->requests[i].prompt_tokens);
        assert_int_equal(many->requests[j].arrival_ns, few->requests[i].arrival_ns);
    }
    kvt_workload_destroy(&few);
    kvt_workload_destroy(&many);
}

/* ---- Failing allocations, and the published traces --------------------------------------------------------------- */

static void every_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    (void)state;
    const char *text =
        "{\"timestamp\":0,\"input_length\":4,\"output_length\":1,\"hash_ids\":[1],\"session_id\":\"s\"}\n";
    write_trace(text, strlen(text));
    const struct kvt_workload_options options[] = {
        { .trace = trace_path, .block_tokens = 4 },
        { .generator = "chat", .block_tokens = 16, .requests_max = 100, .think_ns = UINT64_MAX }
    };
    for (uint32_t i = 0; i < 2; i++) {
        enum kvt_status status = KVT_NOMEM;
        for (uint64_t n = 1; status == KVT_NOMEM; n++) {
            struct kvt_workload *workload = NULL;
            char error[64] = "";
            kvt_alloc_fail_at(n);
            status = kvt_workload_create(&options[i], &workload, error, sizeof error);
            kvt_alloc_fail_at(0);
            assert_true(status == KVT_OK ? n > 4 : status == KVT_NOMEM);
            if (status != KVT_OK) assert_string_equal(error, "the workload does not fit in memory");
            kvt_workload_destroy(&workload);
        }
        assert_int_equal(status, KVT_OK);
    }
}

static const char *data_folder(void)
{
    const char *folder = getenv("KVTIER_SHARED");
    return folder ? folder : "../shared";
}

static struct kvt_workload *read_published(const char *name, uint32_t requests_max)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/data/traces/%s", data_folder(), name);
    if (access(path, R_OK) != 0) {
        print_message("skipped: there is no %s (set KVTIER_SHARED)\n", path);
        return NULL;
    }
    return create(&(struct kvt_workload_options){ .trace = path, .block_tokens = 512, .requests_max = requests_max });
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* References to ids, and how many of them are different. */
static void count_ids(const struct kvt_workload *w, uint64_t *ret_references, uint64_t *ret_unique)
{
    uint64_t references = 0, unique = 0;
    for (uint32_t i = 0; i < w->request_count; i++) references += w->requests[i].id_count;
    uint64_t *ids = kvt_alloc(references, sizeof *ids);
    assert_non_null(ids);
    uint64_t n = 0;
    for (uint32_t i = 0; i < w->request_count; i++) {
        for (uint32_t k = 0; k < w->requests[i].id_count; k++) ids[n++] = w->requests[i].ids[k];
    }
    qsort(ids, n, sizeof *ids, compare_u64);
    for (uint64_t i = 0; i < n; i++) unique += i == 0 || ids[i] != ids[i - 1];
    kvt_free(ids);
    *ret_references = references;
    *ret_unique = unique;
}

static void published_traces_have_their_known_figures(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t requests, sessions;
        uint64_t references, unique;
    } wanted[] = {
        { "mooncake_conversation.jsonl", 12031, 0, 288500, 182790 },
        { "mooncake_synthetic.jsonl", 3993, 0, 121877, 43924 },
        { "agent_sessions.jsonl", 3441, 40, 967637, 32616 },
        { "azure_2023_conv.csv", 19366, 0, 0, 0 },
        { "azure_2023_code.csv", 8819, 0, 0, 0 },
    };
    uint32_t read = 0;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(wanted); i++) {
        struct kvt_workload *w = read_published(wanted[i].name, 0);
        if (!w) continue;
        uint64_t references, unique;
        count_ids(w, &references, &unique);
        assert_int_equal(w->request_count, wanted[i].requests);
        assert_int_equal(w->session_count, wanted[i].sessions);
        assert_int_equal(references, wanted[i].references);
        assert_int_equal(unique, wanted[i].unique);
        kvt_workload_destroy(&w);
        read++;
    }
    if (read == 0) skip();
}

/* Digests of prompts' prefixes, one for each full block, in the order of first use: an unbounded cache. */
static void the_conversation_trace_reuses_exactly_its_full_prefix_blocks(void **state)
{
    (void)state;
    struct kvt_workload *w = read_published("mooncake_conversation.jsonl", 500);
    if (!w) skip();
    uint64_t blocks = 0, reused = 0, known = 0;
    for (uint32_t i = 0; i < w->request_count; i++) blocks += w->requests[i].prompt_tokens / 512;
    uint64_t slots = 1;
    while (slots < 2 * blocks) slots *= 2;
    uint64_t *table = kvt_alloc(slots, sizeof *table);
    assert_non_null(table);
    for (uint32_t i = 0; i < w->request_count; i++) {
        uint64_t digest = 1;
        bool is_hit = true;
        for (uint64_t b = 0; b < w->requests[i].prompt_tokens / 512; b++) {
            kvt_workload_tokens(w, i, b * 512, 512, left);
            for (uint32_t k = 0; k < 512; k++) digest = kvt_mix64(digest ^ left[k]) + 1;
            uint64_t slot = digest & (slots - 1);
            while (table[slot] != 0 && table[slot] != digest) slot = (slot + 1) & (slots - 1);
            is_hit = is_hit && table[slot] == digest;
            if (is_hit) reused++;
            if (table[slot] == 0) known++;
            table[slot] = digest;
        }
    }
    assert_int_equal(reused, 2278);
    assert_int_equal(reused * 512, 1166336);
    assert_true(known == blocks - reused);
    kvt_free(table);
    kvt_workload_destroy(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mooncake_trace_is_read_field_by_field),
        cmocka_unit_test(a_recorded_output_has_the_tokens_of_its_ids),
        cmocka_unit_test(sessions_are_dense_and_their_turns_in_order),
        cmocka_unit_test(an_azure_trace_is_read_with_its_carriage_returns),
        cmocka_unit_test(requests_max_reads_no_further),
        cmocka_unit_test(a_broken_line_is_refused_by_file_line_value_and_rule),
        cmocka_unit_test(a_file_that_cannot_be_read_is_said_by_name),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(a_mangled_trace_is_read_or_refused),
        cmocka_unit_test(equal_ids_are_equal_blocks_and_nothing_else_is_shared),
        cmocka_unit_test(a_generator_is_a_pure_function_of_its_options),
        cmocka_unit_test(generated_workloads_are_pinned),
        cmocka_unit_test(a_turn_continues_the_conversation_before_it),
        cmocka_unit_test(documents_and_examples_are_shared_whole),
        cmocka_unit_test(more_requests_change_none_of_the_earlier_sessions),
        cmocka_unit_test(every_failed_allocation_is_reported_and_leaks_nothing),
        cmocka_unit_test(published_traces_have_their_known_figures),
        cmocka_unit_test(the_conversation_trace_reuses_exactly_its_full_prefix_blocks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
