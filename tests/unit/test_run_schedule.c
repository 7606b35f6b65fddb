/* The schedule and the engine of the main job, against a small runtime that can be full, late, lossy or wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tests/unit/fake_runtime.h"
#include "tools/run/conversation.h"
#include "tools/run/schedule.h"

enum { BLOCK_TOKENS = 16, LINE_MAX = 160 };

static const struct kvt_model_shape plain_shape = {
    .block_tokens = BLOCK_TOKENS,
    .group_count = 1,
    .groups = { { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 64 } },
};

static const struct kvt_model_shape mixed_shape = {
    .block_tokens = BLOCK_TOKENS,
    .group_count = 3,
    .groups = { { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 1, .kv_heads = 1, .head_dim = 64 },
                { .kind = KVT_GROUP_WINDOW,
                  .dtype = KVT_DTYPE_FP16,
                  .layers = 2,
                  .kv_heads = 1,
                  .head_dim = 32,
                  .window_tokens = 40 },
                { .kind = KVT_GROUP_STATE, .dtype = KVT_DTYPE_FP32, .layers = 2, .state_bytes = 512 } },
};

/* One whole run on the small runtime. */
struct world {
    struct kvt_workload_options what;
    struct kvt_schedule_options how;
    struct kvt_engine_options engine_how;
    struct fake_knobs knobs;
    const struct kvt_model_shape *shape;
    struct kvt_workload *workload;
    struct kvt_schedule_result result;
    struct kvt_engine_counts checks;
    struct fake_seen seen;
    uint32_t live;
    uint32_t refused;
    uint32_t refused_request;
    char refused_line[LINE_MAX];
};

static void on_refused(void *user, uint32_t request, const char *line)
{
    struct world *world = user;
    world->refused_request = request;
    world->refused++;
    (void)snprintf(world->refused_line, sizeof world->refused_line, "%s", line);
}

static struct world world_of(const char *generator, uint32_t requests)
{
    return (struct world){
        .what = { .generator = generator,
                  .requests_max = requests,
                  .block_tokens = BLOCK_TOKENS,
                  .seed = 1,
                  .think_ns = 0,
                  .context_tokens = 600 },
        .how = { .arrival = KVT_ARRIVAL_ASAP, .speed = 1, .pause_ns = UINT64_MAX, .batch = 8, .prefill_chunk = 64 },
        .knobs = { .slots = 512 },
        .shape = &plain_shape,
    };
}

static void world_run(struct world *world)
{
    char error[256];
    struct kvt_content content;
    struct kvt_engine *engine;
    if (kvt_workload_create(&world->what, &world->workload, error, sizeof error) != KVT_OK) fail_msg("%s", error);
    struct kvt_runtime *runtime = fake_open(world->shape, &world->knobs);
    assert_int_equal(kvt_content_init(&content, world->shape), KVT_OK);
    assert_int_equal(kvt_engine_create(runtime, world->shape, &content, &world->engine_how, &engine), KVT_OK);
    world->how.on_refused = on_refused;
    world->how.user = world;
    assert_int_equal(kvt_schedule_run(runtime, world->shape, world->workload, engine, &world->how, &world->result),
                     KVT_OK);
    world->checks = *kvt_engine_counts(engine);
    world->seen = *fake_seen(runtime);
    world->live = fake_live(runtime);
    kvt_engine_destroy(&engine);
    kvt_content_done(&content);
    fake_close(&runtime);
}

static void world_done(struct world *world) { kvt_workload_destroy(&world->workload); }

static uint64_t prompt_tokens(const struct world *world)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < world->workload->request_count; i++) sum += world->workload->requests[i].prompt_tokens;
    return sum;
}

static uint64_t output_tokens(const struct world *world)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < world->workload->request_count; i++) sum += world->workload->requests[i].output_tokens;
    return sum;
}

static void assert_all_done(const struct world *world)
{
    if (world->result.outcome != KVT_OUTCOME_DONE) print_error("%s\n", world->result.error);
    assert_int_equal(world->result.outcome, KVT_OUTCOME_DONE);
    assert_int_equal(world->result.requests_completed, world->workload->request_count);
    assert_int_equal(world->result.requests_failed, 0);
    assert_int_equal(world->checks.mismatches, 0);
    assert_int_equal(world->live, 0);
    assert_int_equal(world->result.tokens_prompt, prompt_tokens(world));
    assert_int_equal(world->result.tokens_generated, output_tokens(world));
    if (world->result.tokens_recomputed > 0) return;
    assert_int_equal(world->result.tokens_computed,
                     prompt_tokens(world) - world->result.tokens_reused + output_tokens(world));
}

/* Goal: each generator's workload, each way of arriving: all complete, every block checks. */
static void every_workload_completes_and_verifies(void **state)
{
    (void)state;
    static const char *const generators[] = { "chat", "agent", "longdoc", "batch" };
    static const enum kvt_arrival arrivals[] = { KVT_ARRIVAL_SEQUENTIAL, KVT_ARRIVAL_TRACE, KVT_ARRIVAL_ASAP };
    for (size_t g = 0; g < KVT_ARRAY_COUNT(generators); g++) {
        for (size_t a = 0; a < KVT_ARRAY_COUNT(arrivals); a++) {
            struct world world = world_of(generators[g], 12);
            world.how.arrival = arrivals[a];
            world.how.speed = 1e6;
            world_run(&world);
            assert_all_done(&world);
            assert_true(world.checks.blocks_checked > 0);
            assert_true(world.checks.lines_checked > 0);
            if (arrivals[a] == KVT_ARRIVAL_SEQUENTIAL) assert_int_equal(world.result.running_max, 1);
            world_done(&world);
        }
    }
}

/*
 * Goal: windows and states are written, read and checked as what they keep; states are snapshot at ends of blocks only.
 */
static void windows_and_states_verify(void **state)
{
    (void)state;
    struct world world = world_of("batch", 10);
    world.shape = &mixed_shape;
    world_run(&world);
    assert_all_done(&world);
    assert_true(world.seen.snapshots > 0);
    world_done(&world);
}

/* Goal: a turn goes on in its session's sequence: all but its new tokens are reused, and it was idle in between. */
static void a_session_goes_on_in_its_sequence(void **state)
{
    (void)state;
    struct world world = world_of("chat", 16);
    world.how.arrival = KVT_ARRIVAL_SEQUENTIAL;
    world_run(&world);
    assert_all_done(&world);
    uint64_t reused_least = 0, turns = 0;
    for (uint32_t i = 0; i < world.workload->request_count; i++) {
        const struct kvt_request *request = &world.workload->requests[i];
        if (request->turn == 0) continue;
        turns++;
        for (uint32_t j = 0; j < i; j++) {
            const struct kvt_request *before = &world.workload->requests[j];
            if (before->session != request->session || before->turn + 1 != request->turn) continue;
            reused_least += before->prompt_tokens + before->output_tokens;
        }
    }
    assert_true(turns > 0);
    assert_true(world.result.tokens_reused >= reused_least);
    assert_int_equal(world.seen.resumes, turns);
    assert_int_equal(world.seen.idles, turns);
    assert_int_equal(world.seen.finishes, world.workload->session_count);
    world_done(&world);
}

/* Goal: on a full device the youngest is parked and comes back; all complete, and what came back is checked. */
static void a_full_device_parks_the_youngest(void **state)
{
    (void)state;
    struct world world = world_of("batch", 12);
    world.what.context_tokens = 500;
    world.knobs.slots = 80;
    world_run(&world);
    assert_all_done(&world);
    assert_true(world.result.parked > 0);
    assert_int_equal(world.seen.resumes, world.result.parked);
    assert_int_equal(world.result.tokens_recomputed, 0);
    world_done(&world);
}

/*
 * Goal: when idle sequences fill every tier, the one needed last is given up, and its tokens are computed again when it
 * is due.
 */
static void idle_sequences_are_given_up_when_nothing_else_helps(void **state)
{
    (void)state;
    struct world world = world_of("chat", 24);
    world.how.batch = 1;
    world.knobs.idle_max = 2;
    world_run(&world);
    assert_all_done(&world);
    assert_true(world.result.given_up > 0);
    world_done(&world);
}

/* Goal: blocks on their way stall the step for the cause that the runtime names, and for no other. */
static void unready_sequences_stall_by_their_cause(void **state)
{
    (void)state;
    struct world world = world_of("chat", 12);
    world.knobs.unready_begins = 3;
    world_run(&world);
    assert_all_done(&world);
    assert_true(world.result.steps_stalled > 0);
    assert_true(world.result.stall_ns[KVT_STALL_NVME_LINK] > 0);
    assert_int_equal(world.result.stall_ns[KVT_STALL_OTHER], 0);
    assert_int_equal(world.result.stall_ns[KVT_STALL_NO_SLOT], 0);
    world_done(&world);
}

/* Goal: nothing to wait for is no stall, though the run waits for arrivals. */
static void waiting_for_arrivals_is_no_stall(void **state)
{
    (void)state;
    struct world world = world_of("chat", 6);
    world.what.think_ns = 2000000;
    world.how.has_pauses = true;
    world_run(&world);
    assert_all_done(&world);
    /* host_link is left out: it has what a slow machine takes to start a job. */
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) {
        if (i != KVT_STALL_HOST_LINK) assert_int_equal(world.result.stall_ns[i], 0);
    }
    world_done(&world);
}

/* Goal: tokens lost on the way are computed again, counted as recomputed, and no longer as reused. */
static void lost_tokens_are_computed_again(void **state)
{
    (void)state;
    struct world clean = world_of("chat", 8), lossy = clean;
    clean.how.arrival = lossy.how.arrival = KVT_ARRIVAL_SEQUENTIAL;
    lossy.knobs.lose_from = 21;
    world_run(&clean);
    world_run(&lossy);
    assert_all_done(&clean);
    assert_all_done(&lossy);
    assert_int_equal(clean.result.tokens_recomputed, 0);
    assert_true(lossy.result.tokens_recomputed > 0);
    assert_int_equal(lossy.result.tokens_reused, clean.result.tokens_reused - lossy.result.tokens_recomputed);
    world_done(&clean);
    world_done(&lossy);
}

/* Goal: a request larger than the device fails by name and size, and the others complete. */
static void a_request_larger_than_the_device_fails_alone(void **state)
{
    (void)state;
    struct world world = world_of("batch", 10);
    world.what.context_tokens = 400;
    world_run(&world);
    uint64_t longest = 0, longer = 0;
    uint32_t index = 0;
    for (uint32_t i = 0; i < world.workload->request_count; i++) {
        const struct kvt_request *request = &world.workload->requests[i];
        const uint64_t tokens = request->prompt_tokens + request->output_tokens;
        if (tokens > longest) {
            longest = tokens;
            index = i;
        }
    }
    const uint32_t blocks = (uint32_t)((longest + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
    for (uint32_t i = 0; i < world.workload->request_count; i++) {
        const struct kvt_request *request = &world.workload->requests[i];
        longer += (request->prompt_tokens + request->output_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS >= blocks;
    }
    world_done(&world);

    world.knobs.slots = blocks - 1;
    world_run(&world);
    assert_int_equal(world.result.outcome, KVT_OUTCOME_DONE);
    assert_int_equal(world.result.requests_failed, longer);
    assert_int_equal(world.result.requests_completed, world.workload->request_count - longer);
    assert_int_equal(world.refused, longer);
    char name[32];
    (void)snprintf(name, sizeof name, "request %u: ", index);
    if (longer == 1) assert_memory_equal(world.refused_line, name, strlen(name));
    assert_non_null(strstr(world.refused_line, "more than the device holds"));
    assert_int_equal(world.result.requests_failed_after, 0);
    (void)snprintf(name, sizeof name, "request %u: ", world.refused_request);
    assert_memory_equal(world.refused_line, name, strlen(name));
    world_done(&world);
}

/* Goal: turns that follow a failed one fail with it, are counted as such, and only the first of them is said. */
static void turns_after_a_failed_one_are_counted_as_such(void **state)
{
    (void)state;
    struct world world = world_of("chat", 40);
    world.knobs.slots = 24;
    world_run(&world);
    assert_int_equal(world.result.outcome, KVT_OUTCOME_DONE);
    assert_true(world.result.requests_failed_after > 0);
    assert_true(world.refused > 0);
    assert_int_equal(world.result.requests_failed, world.refused + world.result.requests_failed_after);
    assert_int_equal(world.result.requests_completed + world.result.requests_failed, 40);
    const struct kvt_request *refused = &world.workload->requests[world.refused_request];
    assert_true((refused->prompt_tokens + refused->output_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS > 24);
    assert_non_null(strstr(world.refused_line, "it takes a larger --hbm, or --stream"));
    world_done(&world);
}

/* Goal: one wrong byte in a block that came back is a mismatch, named by its block and place. */
static void one_wrong_byte_is_a_mismatch_with_its_place(void **state)
{
    (void)state;
    struct world world = world_of("chat", 8);
    world.knobs.is_flipped = true;
    world.knobs.flip_block = 2;
    world.knobs.flip_byte = 1234;
    world_run(&world);
    assert_int_equal(world.result.outcome, KVT_OUTCOME_DONE);
    assert_true(world.checks.mismatches > 0);
    assert_int_equal(world.checks.kept[0].block, 2);
    assert_int_equal(world.checks.kept[0].offset, 1234);
    assert_int_equal(world.workload->requests[world.checks.kept[0].request].turn, 1);
    world_done(&world);
}

/* Goal: all of a sequence is checked at its end, once. */
static void a_sequence_is_checked_whole_at_its_end(void **state)
{
    (void)state;
    struct world world = world_of("batch", 1);
    world_run(&world);
    assert_all_done(&world);
    const uint64_t tokens = world.workload->requests[0].prompt_tokens + world.workload->requests[0].output_tokens;
    assert_int_equal(world.checks.blocks_checked, (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
    world_done(&world);
}

/* Goal: a wrong byte is found at the first step after its sequence was parked, not only at the end. */
static void what_was_parked_is_checked_when_it_is_back(void **state)
{
    (void)state;
    struct world world = world_of("batch", 12);
    world.what.context_tokens = 500;
    world.knobs.slots = 80;
    world.knobs.is_flipped = true;
    world.knobs.flip_block = 1;
    world.knobs.flip_byte = 777;
    world_run(&world);
    assert_int_equal(world.result.outcome, KVT_OUTCOME_DONE);
    assert_true(world.result.parked > 0);
    assert_true(world.checks.mismatches >= 2);
    assert_int_equal(world.checks.kept[0].block, 1);
    assert_int_equal(world.checks.kept[0].offset, 777);
    world_done(&world);
}

/* Goal: sampling checks fewer whole blocks than full, and off compares nothing. */
static void sampling_checks_fewer_and_off_none(void **state)
{
    (void)state;
    uint64_t checked[3];
    static const enum kvt_verify ways[] = { KVT_VERIFY_FULL, KVT_VERIFY_SAMPLE, KVT_VERIFY_OFF };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(ways); i++) {
        struct world world = world_of("chat", 12);
        world.engine_how.verify = ways[i];
        world_run(&world);
        assert_all_done(&world);
        checked[i] = world.checks.blocks_checked;
        if (ways[i] == KVT_VERIFY_OFF) assert_int_equal(world.checks.lines_checked, 0);
        world_done(&world);
    }
    assert_true(checked[1] > 0);
    assert_true(checked[1] < checked[0] / 4);
    assert_int_equal(checked[2], 0);
}

/* Goal: reading all finds what a line may miss, and counts whole blocks at every step. */
static void reading_all_checks_whole_blocks_at_every_step(void **state)
{
    (void)state;
    struct world world = world_of("batch", 4);
    world.engine_how.read = KVT_READ_FULL;
    world_run(&world);
    assert_all_done(&world);
    assert_int_equal(world.checks.lines_checked, 0);
    assert_true(world.checks.blocks_checked > world.result.steps);
    world_done(&world);
}

/* Goal: a runtime that never gets ready ends the run with a line, not a hang. */
static void a_run_in_which_nothing_moves_ends_and_says_why(void **state)
{
    (void)state;
    struct world world = world_of("batch", 4);
    world.knobs.is_never_ready = true;
    world.how.stuck_ns = 20000000;
    world.how.patience_ns = 5000000;
    world_run(&world);
    assert_int_equal(world.result.outcome, KVT_OUTCOME_STUCK);
    assert_non_null(strstr(world.result.error, "no progress"));
    assert_non_null(strstr(world.result.error, "nvme_link"));
    assert_false(world.result.is_engine_busy);
    world_done(&world);
}

/* Goal: one sequence that is late for long does not hold up the others for longer than the patience. */
static void patience_ends_and_the_ready_ones_go_on(void **state)
{
    (void)state;
    struct world world = world_of("chat", 12);
    world.knobs.unready_begins = 40;
    world.how.patience_ns = 1;
    world_run(&world);
    assert_all_done(&world);
    world_done(&world);
}

/* Goal: a signal ends the run with what was done so far. */
static void an_interrupt_ends_the_run_with_what_was_done(void **state)
{
    (void)state;
    atomic_bool interrupt = false;
    struct world world = world_of("chat", 24);
    world.how.is_interrupted = &interrupt;
    world.engine_how.is_interrupted = &interrupt;
    world.engine_how.step_ns = 1000000;
    world.knobs.interrupt_at_begin = &interrupt;
    world.knobs.interrupt_begin = 30;
    world_run(&world);
    assert_int_equal(world.result.outcome, KVT_OUTCOME_INTERRUPTED);
    assert_true(world.result.steps > 0);
    assert_true(world.result.requests_completed < world.workload->request_count);
    assert_int_equal(world.checks.mismatches, 0);
    world_done(&world);
}

/* Goal: look-ahead tells the runtime about idle sequences that are due; demand tells it nothing. */
static void lookahead_tells_what_is_due(void **state)
{
    (void)state;
    for (int is_lookahead = 0; is_lookahead <= 1; is_lookahead++) {
        struct world world = world_of("chat", 8);
        world.what.think_ns = 20000000;
        world.how.has_pauses = true;
        world.how.is_lookahead = is_lookahead == 1;
        world_run(&world);
        assert_all_done(&world);
        if (is_lookahead) assert_true(world.seen.expects > 0);
        else assert_int_equal(world.seen.expects, 0);
        world_done(&world);
    }
}

/* Goal: what only a replay can know, when idle sessions come back, is kept from the runtime when that is asked for. */
static void an_engine_does_not_know_who_has_not_arrived(void **state)
{
    (void)state;
    for (int is_arrived_only = 0; is_arrived_only <= 1; is_arrived_only++) {
        struct world world = world_of("chat", 8);
        world.what.think_ns = 20000000;
        world.how.has_pauses = true;
        world.how.is_lookahead = true;
        world.how.is_arrived_only = is_arrived_only == 1;
        world_run(&world);
        assert_all_done(&world);
        /* The batch is never full: whoever arrives goes on at once, so that all that could be said is of the future. */
        if (is_arrived_only) assert_int_equal(world.seen.expects, 0);
        else assert_true(world.seen.expects > 0);
        world_done(&world);
    }
}

/* Goal: the batch limit and the prefill budget hold. */
static void the_batch_limit_holds(void **state)
{
    (void)state;
    struct world world = world_of("batch", 12);
    world.how.batch = 3;
    world_run(&world);
    assert_all_done(&world);
    assert_int_equal(world.result.running_max, 3);
    assert_true(world.seen.step_sequences_max <= 3);
    world_done(&world);
}

/*
 * Goal: a prompt that differs from what the session holds is cut to what they share; at least one token is left to
 * evaluate.
 */
static void a_turn_is_cut_to_what_it_shares(void **state)
{
    (void)state;
    char path[] = "/tmp/kvt-run-XXXXXX", error[256];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char lines[] = "{\"timestamp\":0,\"input_length\":64,\"output_length\":5,\"hash_ids\":[1,2,3,4],"
                                "\"session_id\":\"a\",\"turn\":0}\n"
                                "{\"timestamp\":9,\"input_length\":64,\"output_length\":5,\"hash_ids\":[1,2,9,4],"
                                "\"session_id\":\"a\",\"turn\":1}\n";
    assert_int_equal(write(fd, lines, sizeof lines - 1), sizeof lines - 1);
    (void)close(fd);
    const struct kvt_workload_options what = { .trace = path, .block_tokens = BLOCK_TOKENS, .think_ns = UINT64_MAX };
    struct kvt_workload *workload;
    const enum kvt_status status = kvt_workload_create(&what, &workload, error, sizeof error);
    (void)unlink(path);
    if (status != KVT_OK) fail_msg("%s", error);
    struct kvt_conversations set;
    assert_int_equal(kvt_conversations_init(&set, workload), KVT_OK);
    assert_int_equal(set.count, 1);
    assert_int_equal(set.next_turn[0], 1);
    struct kvt_conversation *c = &set.all[0];
    kvt_conversation_begin(&set, c, 0, 0);
    assert_int_equal(kvt_conversation_identify(&set, c, 69), KVT_OK);
    while (!kvt_conversation_is_turn_over(c)) (void)kvt_conversation_advance(c, kvt_conversation_next_count(c, 40));
    assert_int_equal(c->committed, 69);
    assert_int_equal(kvt_conversation_common(&set, c), 63); /* the same request again: one token is left */
    assert_int_equal(kvt_conversation_identify(&set, c, 69), KVT_OK);
    c->request = 1;
    assert_int_equal(kvt_conversation_common(&set, c), 32);
    kvt_conversations_done(&set);
    kvt_workload_destroy(&workload);
}

/* Goal: what is computed after a loss counts as recomputed up to where it had been, not beyond. */
static void recomputing_is_counted_up_to_what_was_held(void **state)
{
    (void)state;
    struct kvt_conversation c = { .prompt = 50, .known = 50, .output = 2, .committed = 16, .held = 16, .reused = 16 };
    assert_int_equal(kvt_conversation_advance(&c, 20), 0);
    kvt_conversation_lose(&c, 10);
    assert_true(kvt_conversation_is_prefill(&c));
    assert_int_equal(kvt_conversation_advance(&c, 30), 26);
    assert_int_equal(c.reused, 10);
    assert_int_equal(kvt_conversation_advance(&c, 10), 0);
    assert_int_equal(kvt_conversation_generated(&c), 1);
    assert_false(kvt_conversation_is_prefill(&c));
    assert_int_equal(kvt_conversation_advance(&c, 1), 0);
    assert_int_equal(kvt_conversation_advance(&c, 1), 0);
    assert_true(kvt_conversation_is_turn_over(&c));
    assert_int_equal(kvt_conversation_generated(&c), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_workload_completes_and_verifies),
        cmocka_unit_test(windows_and_states_verify),
        cmocka_unit_test(a_session_goes_on_in_its_sequence),
        cmocka_unit_test(a_full_device_parks_the_youngest),
        cmocka_unit_test(idle_sequences_are_given_up_when_nothing_else_helps),
        cmocka_unit_test(unready_sequences_stall_by_their_cause),
        cmocka_unit_test(waiting_for_arrivals_is_no_stall),
        cmocka_unit_test(lost_tokens_are_computed_again),
        cmocka_unit_test(a_request_larger_than_the_device_fails_alone),
        cmocka_unit_test(turns_after_a_failed_one_are_counted_as_such),
        cmocka_unit_test(one_wrong_byte_is_a_mismatch_with_its_place),
        cmocka_unit_test(a_sequence_is_checked_whole_at_its_end),
        cmocka_unit_test(what_was_parked_is_checked_when_it_is_back),
        cmocka_unit_test(sampling_checks_fewer_and_off_none),
        cmocka_unit_test(reading_all_checks_whole_blocks_at_every_step),
        cmocka_unit_test(a_run_in_which_nothing_moves_ends_and_says_why),
        cmocka_unit_test(patience_ends_and_the_ready_ones_go_on),
        cmocka_unit_test(an_interrupt_ends_the_run_with_what_was_done),
        cmocka_unit_test(lookahead_tells_what_is_due),
        cmocka_unit_test(an_engine_does_not_know_who_has_not_arrived),
        cmocka_unit_test(the_batch_limit_holds),
        cmocka_unit_test(a_turn_is_cut_to_what_it_shares),
        cmocka_unit_test(recomputing_is_counted_up_to_what_was_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
