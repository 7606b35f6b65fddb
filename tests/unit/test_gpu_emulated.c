/* gpu_emulated: order within a stream only, marks, waits, gates, the link's pace, and what goes wrong when told to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/gpu.h"
#include "kernels/gpu_emulated.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define MS 1000000u

static uint64_t fake_ns;
static uint64_t fake_clock(void *user)
{
    (void)user;
    return fake_ns;
}

static const struct kvt_gpu_ops *const ops = &kvt_gpu_emulated_ops;

/* What happened, in order: small letters when a job runs, capitals when it is done. */
static char events[64];
static atomic_uint event_count;

static void note(char event)
{
    const unsigned at = atomic_fetch_add(&event_count, 1);
    assert_true(at < sizeof events - 1);
    events[at] = event;
}

struct letter {
    struct kvt_gpu_job job;
    char letter;
    uint64_t bytes;
    atomic_bool is_done;
    bool was_failed;
    uint64_t link_ns;
};

static void run_letter(struct kvt_gpu_job *job)
{
    struct letter *l = job->user;
    note(l->letter);
    job->link_bytes = l->bytes;
}

static void end_letter(struct kvt_gpu_job *job)
{
    struct letter *l = job->user;
    l->was_failed = job->is_failed;
    l->link_ns = job->link_ns;
    note((char)(l->letter - 'a' + 'A'));
    atomic_store(&l->is_done, true);
}

static void submit_letter(struct kvt_gpu *gpu, uint32_t stream, struct letter *l, char letter)
{
    l->letter = letter;
    l->job = (struct kvt_gpu_job){ .run = run_letter, .done = end_letter, .user = l };
    ops->submit(gpu, stream, &l->job);
}

static struct kvt_gpu *open_gpu(struct kvt_env env, struct kvt_gpu_config config, uint32_t streams)
{
    struct kvt_gpu *gpu;
    memset(events, 0, sizeof events);
    atomic_store(&event_count, 0);
    assert_int_equal(ops->open(&config, &env, &gpu), KVT_OK);
    for (uint32_t i = 0; i < streams; i++) {
        uint32_t stream;
        assert_int_equal(ops->stream(gpu, NULL, &stream), KVT_OK);
        assert_int_equal(stream, i);
    }
    return gpu;
}

/* No threads, and a clock that the test moves. */
static struct kvt_gpu *open_cranked(uint32_t streams)
{
    struct kvt_env env = kvt_env_default();
    env.is_single_threaded = true;
    env.now_ns = fake_clock;
    fake_ns = 1000;
    return open_gpu(env, (struct kvt_gpu_config){ 0 }, streams);
}

static void a_stream_runs_its_jobs_in_order_and_knows_no_other(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(2);
    struct letter a = { 0 }, b = { 0 }, c = { 0 };
    submit_letter(gpu, 0, &a, 'a');
    submit_letter(gpu, 0, &b, 'b');
    submit_letter(gpu, 1, &c, 'c');
    assert_string_equal(events, ""); /* nothing runs by itself */
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_string_equal(events, "cCaAbB");
    assert_false(kvt_gpu_emulated_run(gpu, 0));
    ops->close(gpu);
}

static void a_mark_is_reached_when_the_work_before_it_is_done(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(2);
    struct letter a = { 0 }, b = { 0 };
    assert_true(ops->is_reached(gpu, 0));
    assert_true(ops->is_reached(gpu, ops->mark(gpu, 0))); /* nothing was submitted before it */
    submit_letter(gpu, 0, &a, 'a');
    const kvt_mark after_a = ops->mark(gpu, 0);
    submit_letter(gpu, 0, &b, 'b');
    const kvt_mark after_b = ops->mark(gpu, 0);
    assert_int_equal(kvt_mark_stream(after_b), 0);
    assert_true(kvt_mark_serial(after_b) > kvt_mark_serial(after_a));
    assert_false(ops->is_reached(gpu, after_a));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(ops->is_reached(gpu, after_a));
    assert_false(ops->is_reached(gpu, after_b));
    ops->synchronize(gpu, after_b);
    assert_true(ops->is_reached(gpu, after_b));
    assert_string_equal(events, "aAbB");
    ops->close(gpu);
}

static void a_wait_orders_what_comes_after_it_and_nothing_else(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(3);
    struct letter a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
    submit_letter(gpu, 0, &a, 'a');
    const kvt_mark after_a = ops->mark(gpu, 0);
    submit_letter(gpu, 1, &b, 'b'); /* before the wait: free to run */
    ops->wait(gpu, 1, after_a);
    const kvt_mark after_wait = ops->mark(gpu, 1);
    submit_letter(gpu, 1, &c, 'c');
    submit_letter(gpu, 2, &d, 'd');
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_false(kvt_gpu_emulated_run(gpu, 1));
    assert_true(kvt_gpu_emulated_run(gpu, 2));
    assert_string_equal(events, "bBdD");
    assert_false(ops->is_reached(gpu, after_wait));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 1)); /* passes the wait */
    assert_true(ops->is_reached(gpu, after_wait));
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_string_equal(events, "bBdDaAcC");
    ops->close(gpu);
}

static void synchronize_runs_the_streams_that_the_mark_depends_on(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(3);
    struct letter a = { 0 }, b = { 0 }, c = { 0 };
    submit_letter(gpu, 2, &a, 'a');
    ops->wait(gpu, 1, ops->mark(gpu, 2));
    submit_letter(gpu, 1, &b, 'b');
    ops->wait(gpu, 0, ops->mark(gpu, 1));
    submit_letter(gpu, 0, &c, 'c');
    ops->synchronize(gpu, ops->mark(gpu, 0));
    assert_string_equal(events, "aAbBcC");
    ops->close(gpu);
}

static void a_gate_stops_a_stream_before_its_next_item(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(2);
    struct letter a = { 0 }, b = { 0 };
    kvt_gpu_emulated_gate(gpu, 0, true);
    submit_letter(gpu, 0, &a, 'a');
    submit_letter(gpu, 1, &b, 'b');
    assert_false(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_string_equal(events, "bB");
    kvt_gpu_emulated_gate(gpu, 0, false);
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_string_equal(events, "bBaA");
    ops->close(gpu);
}

enum { ASSERTED = 42 };

static void exit_asserted(int result, const char *expression, const char *file, int line)
{
    (void)result;
    (void)expression;
    (void)file;
    (void)line;
    _exit(ASSERTED);
}

/* In a process of its own: nothing goes on behind a failed assertion. */
static void synchronize_behind_a_closed_gate_asserts_instead_of_hanging(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(1);
    struct letter a = { 0 };
    kvt_gpu_emulated_gate(gpu, 0, true);
    submit_letter(gpu, 0, &a, 'a');
    const pid_t child = fork();
    if (child == 0) {
        kvt_check_hook = exit_asserted;
        ops->synchronize(gpu, ops->mark(gpu, 0));
        _exit(0);
    }
    int status = 0;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), ASSERTED);
    ops->close(gpu);
    assert_true(a.is_done);
}

static void an_engine_stream_keeps_its_number(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(1);
    int x, y;
    uint32_t first, again, second, own;
    assert_int_equal(ops->stream(gpu, &x, &first), KVT_OK);
    assert_int_equal(ops->stream(gpu, &y, &second), KVT_OK);
    assert_int_equal(ops->stream(gpu, &x, &again), KVT_OK);
    assert_int_equal(first, again);
    assert_int_not_equal(first, second);
    for (uint32_t i = 3; i < KVT_GPU_STREAMS_MAX; i++) assert_int_equal(ops->stream(gpu, NULL, &own), KVT_OK);
    assert_int_equal(ops->stream(gpu, NULL, &own), KVT_FULL);
    assert_int_equal(ops->stream(gpu, &y, &again), KVT_OK);
    assert_int_equal(second, again);
    ops->close(gpu);
}

static void the_link_decides_when_a_job_is_over(void **state)
{
    (void)state;
    struct kvt_env env = kvt_env_default();
    env.is_single_threaded = true;
    env.now_ns = fake_clock;
    fake_ns = 1000;
    /* 1 byte takes 1 ns. */
    const struct kvt_gpu_config config = { .link_bytes_per_s = 1000000000, .link_latency_ns = 10 };
    struct kvt_gpu *gpu = open_gpu(env, config, 2);
    struct letter a = { .bytes = 100 }, b = { .bytes = 100 }, c = { .bytes = 0 }, d = { .bytes = 50 };
    submit_letter(gpu, 0, &a, 'a');
    submit_letter(gpu, 0, &b, 'b');
    submit_letter(gpu, 0, &c, 'c');
    submit_letter(gpu, 1, &d, 'd');
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 1)); /* a link of its own: it is not behind a */
    assert_string_equal(events, "ad");
    assert_int_equal(kvt_gpu_emulated_next_ns(gpu), 1060);
    assert_false(kvt_gpu_emulated_run(gpu, 0));
    fake_ns = 1060;
    assert_false(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_string_equal(events, "adD");
    fake_ns = 1109;
    assert_false(kvt_gpu_emulated_run(gpu, 0));
    fake_ns = 1115; /* late: b follows a on the link without a gap all the same */
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_int_equal(kvt_gpu_emulated_next_ns(gpu), 1220);
    fake_ns = 1220;
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 0)); /* c crosses no link */
    assert_string_equal(events, "adDAbBcC");
    assert_int_equal(a.link_ns, 110);
    assert_int_equal(b.link_ns, 110);
    assert_int_equal(c.link_ns, 0);
    assert_int_equal(d.link_ns, 60);
    assert_int_equal(kvt_gpu_emulated_next_ns(gpu), UINT64_MAX);
    ops->close(gpu);
}

static void time_spent_waiting_gives_no_credit_on_the_link(void **state)
{
    (void)state;
    struct kvt_env env = kvt_env_default();
    env.is_single_threaded = true;
    env.now_ns = fake_clock;
    fake_ns = 1000;
    struct kvt_gpu *gpu = open_gpu(env, (struct kvt_gpu_config){ .link_bytes_per_s = 1000000000 }, 2);
    struct letter a = { 0 }, b = { .bytes = 100 }, c = { 0 }, d = { .bytes = 100 };
    submit_letter(gpu, 0, &a, 'a');
    ops->wait(gpu, 1, ops->mark(gpu, 0));
    submit_letter(gpu, 1, &b, 'b');
    submit_letter(gpu, 1, &c, 'c');
    submit_letter(gpu, 1, &d, 'd');
    assert_false(kvt_gpu_emulated_run(gpu, 1));
    fake_ns = 5000;
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 1)); /* passes the wait at 5000 */
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_int_equal(kvt_gpu_emulated_next_ns(gpu), 5100);
    fake_ns = 7000;
    assert_true(kvt_gpu_emulated_run(gpu, 1)); /* b is over */
    fake_ns = 9000;
    assert_true(kvt_gpu_emulated_run(gpu, 1)); /* c, a kernel, is over at 9000 */
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_int_equal(kvt_gpu_emulated_next_ns(gpu), 9100);
    ops->close(gpu);
}

static void synchronize_in_one_thread_does_not_wait_for_a_clock_that_nobody_moves(void **state)
{
    (void)state;
    struct kvt_env env = kvt_env_default();
    env.is_single_threaded = true;
    env.now_ns = fake_clock;
    struct kvt_gpu *gpu = open_gpu(env, (struct kvt_gpu_config){ .link_bytes_per_s = 1 }, 1);
    struct letter a = { .bytes = 1000000 };
    submit_letter(gpu, 0, &a, 'a');
    ops->synchronize(gpu, ops->mark(gpu, 0));
    assert_string_equal(events, "aA");
    ops->close(gpu);
}

static void a_threaded_job_is_over_no_earlier_than_its_link(void **state)
{
    (void)state;
    const struct kvt_env env = kvt_env_default();
    struct kvt_gpu *gpu = open_gpu(env, (struct kvt_gpu_config){ .link_bytes_per_s = 1000000000 }, 1);
    struct letter jobs[4];
    memset(jobs, 0, sizeof jobs);
    const uint64_t start_ns = kvt_env_now_ns(&env);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(jobs); i++) {
        jobs[i].bytes = 2 * MS;
        submit_letter(gpu, 0, &jobs[i], (char)('a' + i));
    }
    ops->synchronize(gpu, ops->mark(gpu, 0));
    assert_true(kvt_env_now_ns(&env) - start_ns >= 8 * MS);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(jobs); i++) assert_int_equal(jobs[i].link_ns, 2 * MS);
    ops->close(gpu);
}

static void a_failing_job_says_so_and_its_stream_goes_on(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(1);
    struct letter a = { 0 }, b = { 0 }, c = { 0 };
    kvt_gpu_emulated_fault_at(gpu, 0, 2, KVT_GPU_FAULT_FAIL);
    submit_letter(gpu, 0, &a, 'a');
    submit_letter(gpu, 0, &b, 'b');
    submit_letter(gpu, 0, &c, 'c');
    ops->synchronize(gpu, ops->mark(gpu, 0));
    assert_string_equal(events, "aABcC");
    assert_false(a.was_failed);
    assert_true(b.was_failed);
    assert_false(c.was_failed);
    kvt_gpu_emulated_fault_at(gpu, 0, 1, KVT_GPU_FAULT_FAIL_LATE);
    struct letter d = { 0 };
    submit_letter(gpu, 0, &d, 'd');
    ops->synchronize(gpu, ops->mark(gpu, 0));
    assert_string_equal(events, "aABcCdD");
    assert_true(d.was_failed);
    ops->close(gpu);
}

static void random_faults_repeat_with_their_seed(void **state)
{
    (void)state;
    uint64_t failed[2] = { 0, 0 };
    for (uint32_t round = 0; round < 2; round++) {
        struct kvt_gpu *gpu = open_cranked(1);
        kvt_gpu_emulated_fault_randomly(gpu, 0, 500000, 7, KVT_GPU_FAULT_FAIL);
        for (uint32_t i = 0; i < 24; i++) {
            struct letter a = { 0 };
            submit_letter(gpu, 0, &a, 'a');
            ops->synchronize(gpu, ops->mark(gpu, 0));
            if (a.was_failed) failed[round] |= (uint64_t)1 << i;
        }
        ops->close(gpu);
    }
    assert_int_equal(failed[0], failed[1]);
    assert_int_not_equal(failed[0], 0);
    assert_int_not_equal(failed[0], (1u << 24) - 1);
}

static void a_stuck_job_holds_up_its_stream_until_it_is_released(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_cranked(2);
    struct letter a = { 0 }, b = { 0 }, c = { 0 };
    kvt_gpu_emulated_fault_at(gpu, 0, 1, KVT_GPU_FAULT_STUCK_START);
    submit_letter(gpu, 0, &a, 'a');
    submit_letter(gpu, 0, &b, 'b');
    submit_letter(gpu, 1, &c, 'c');
    assert_false(kvt_gpu_emulated_is_stuck(gpu, 0));
    assert_false(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_is_stuck(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 1));
    assert_string_equal(events, "cC");
    kvt_gpu_emulated_fault_at(gpu, 0, 1, KVT_GPU_FAULT_STUCK_END);
    assert_true(kvt_gpu_emulated_release(gpu, 0));
    assert_false(kvt_gpu_emulated_release(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_string_equal(events, "cCaAb"); /* b's bytes have moved, and its completion does not come */
    assert_false(kvt_gpu_emulated_run(gpu, 0));
    assert_true(kvt_gpu_emulated_release(gpu, 0));
    assert_true(kvt_gpu_emulated_run(gpu, 0));
    assert_string_equal(events, "cCaAbB");
    assert_false(b.was_failed);
    ops->close(gpu);
}

static void close_ends_all_work_whatever_holds_it_up(void **state)
{
    (void)state;
    for (uint32_t is_threaded = 0; is_threaded < 2; is_threaded++) {
        struct kvt_env env = kvt_env_default();
        env.is_single_threaded = !is_threaded;
        struct kvt_gpu *gpu = open_gpu(env, (struct kvt_gpu_config){ 0 }, 3);
        struct letter a = { 0 }, b = { 0 }, c = { 0 };
        kvt_gpu_emulated_gate(gpu, 0, true);
        kvt_gpu_emulated_fault_at(gpu, 1, 1, KVT_GPU_FAULT_STUCK_START);
        submit_letter(gpu, 0, &a, 'a');
        submit_letter(gpu, 1, &b, 'b');
        ops->wait(gpu, 2, ops->mark(gpu, 0));
        ops->wait(gpu, 2, ops->mark(gpu, 1));
        submit_letter(gpu, 2, &c, 'c');
        while (!kvt_gpu_emulated_is_stuck(gpu, 1)) {
            if (is_threaded) (void)sched_yield();
            else (void)kvt_gpu_emulated_run(gpu, 1);
        }
        ops->close(gpu);
        assert_true(a.is_done && b.is_done && c.is_done);
    }
}

static void freeing_memory_waits_for_the_work_that_may_use_it(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_gpu(kvt_env_default(), (struct kvt_gpu_config){ 0 }, 1);
    void *memory = ops->memory_alloc(gpu, 4096);
    struct letter a = { 0 };
    kvt_gpu_emulated_gate(gpu, 0, true);
    submit_letter(gpu, 0, &a, 'a');
    assert_false(atomic_load(&a.is_done));
    ops->memory_free(gpu, memory, 4096);
    assert_true(atomic_load(&a.is_done));
    ops->close(gpu);
}

/* A chain of jobs over two streams, each behind the one before by a mark: any lost wait or wake-up breaks the count. */
static uint64_t chain_value;
static void run_chain(struct kvt_gpu_job *job)
{
    const uint64_t expected = (uint64_t)(uintptr_t)job->user;
    if (chain_value == expected) chain_value = expected + 1;
}

static void threads_keep_the_order_that_marks_and_waits_make(void **state)
{
    (void)state;
    enum { LINKS = 20000 }; /* more than a ring holds: the submitter blocks until there is room */
    struct kvt_gpu *gpu = open_gpu(kvt_env_default(), (struct kvt_gpu_config){ 0 }, 2);
    struct kvt_gpu_job *jobs = kvt_alloc(2 * LINKS, sizeof *jobs);
    assert_non_null(jobs);
    chain_value = 0;
    kvt_mark last = 0;
    for (uint32_t i = 0; i < 2 * LINKS; i++) {
        jobs[i] = (struct kvt_gpu_job){ .run = run_chain, .user = (void *)(uintptr_t)i };
        ops->wait(gpu, i % 2, last);
        ops->submit(gpu, i % 2, &jobs[i]);
        last = ops->mark(gpu, i % 2);
    }
    ops->synchronize(gpu, last);
    assert_int_equal(chain_value, 2 * LINKS);
    kvt_free(jobs);
    ops->close(gpu);
}

/* ---- Random programs against the rules ------------------------------------------------------- */

enum { PROGRAM_STREAMS = 4, PROGRAM_ITEMS = 60 };

/* A job notes the ticks at which it ran and ended; the rules are checked on the ticks. */
struct tick_job {
    struct kvt_gpu_job job;
    uint32_t stream;
    uint64_t serial;                  /* of its mark */
    uint64_t ran, ended;              /* 0: never ran (it failed) */
    kvt_mark behind[PROGRAM_STREAMS]; /* the latest mark of each stream that its stream waited for before it */
};

static _Atomic uint64_t ticks;
static struct tick_job program[PROGRAM_ITEMS];
static uint32_t program_jobs;

static void run_tick(struct kvt_gpu_job *job) { ((struct tick_job *)job)->ran = atomic_fetch_add(&ticks, 1) + 1; }
static void end_tick(struct kvt_gpu_job *job) { ((struct tick_job *)job)->ended = atomic_fetch_add(&ticks, 1) + 1; }

static void check_program(void)
{
    for (uint32_t i = 0; i < program_jobs; i++) {
        const struct tick_job *later = &program[i];
        assert_true(later->ended > 0);
        for (uint32_t k = 0; k < program_jobs; k++) {
            const struct tick_job *earlier = &program[k];
            const bool is_own = earlier->stream == later->stream && earlier->serial < later->serial;
            const kvt_mark mark = later->behind[earlier->stream];
            const bool is_waited_for = mark != 0 && earlier->serial <= kvt_mark_serial(mark);
            if (!is_own && !is_waited_for) continue;
            assert_true(earlier->ended < later->ended);
            if (later->ran > 0) assert_true(earlier->ended < later->ran);
        }
    }
}

static void build_program(struct kvt_gpu *gpu, struct kvt_rng *rng, bool is_cranked)
{
    kvt_mark waited[PROGRAM_STREAMS][PROGRAM_STREAMS] = { { 0 } };
    memset(program, 0, sizeof program);
    program_jobs = 0;
    for (uint32_t i = 0; i < PROGRAM_ITEMS; i++) {
        const uint32_t stream = (uint32_t)kvt_rng_below(rng, PROGRAM_STREAMS);
        const uint32_t other = (uint32_t)kvt_rng_below(rng, PROGRAM_STREAMS);
        struct tick_job *job = &program[program_jobs];
        switch (kvt_rng_below(rng, 6)) {
        case 0:
        case 1:
            waited[stream][other] = ops->mark(gpu, other);
            ops->wait(gpu, stream, waited[stream][other]);
            break;
        case 2: kvt_gpu_emulated_gate(gpu, stream, kvt_rng_below(rng, 2) == 0); break;
        case 3:
            if (is_cranked) (void)kvt_gpu_emulated_run(gpu, stream);
            break;
        default:
            memcpy(job->behind, waited[stream], sizeof job->behind);
            job->stream = stream;
            job->job = (struct kvt_gpu_job){ .run = run_tick, .done = end_tick };
            ops->submit(gpu, stream, &job->job);
            job->serial = kvt_mark_serial(ops->mark(gpu, stream));
            program_jobs++;
        }
    }
}

static void random_programs_keep_every_order_that_was_asked_for(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 400; seed++) {
        struct kvt_env env = kvt_env_default();
        struct kvt_rng rng = { seed };
        env.is_single_threaded = seed % 4 != 0;
        struct kvt_gpu *gpu = open_gpu(env, (struct kvt_gpu_config){ 0 }, PROGRAM_STREAMS);
        for (uint32_t s = 0; s < PROGRAM_STREAMS; s++)
            kvt_gpu_emulated_fault_randomly(gpu, s, 100000, seed, (enum kvt_gpu_fault)(seed % 5));
        build_program(gpu, &rng, env.is_single_threaded);
        ops->close(gpu);
        check_program();
    }
}

static void a_gated_thread_runs_nothing_until_it_is_opened(void **state)
{
    (void)state;
    struct kvt_gpu *gpu = open_gpu(kvt_env_default(), (struct kvt_gpu_config){ 0 }, 2);
    struct letter a = { 0 }, b = { 0 }, c = { 0 };
    kvt_gpu_emulated_gate(gpu, 0, true);
    submit_letter(gpu, 0, &a, 'a');
    ops->wait(gpu, 1, ops->mark(gpu, 0));
    submit_letter(gpu, 1, &b, 'b');
    uint32_t third;
    assert_int_equal(ops->stream(gpu, NULL, &third), KVT_OK);
    submit_letter(gpu, third, &c, 'c');
    ops->synchronize(gpu, ops->mark(gpu, third));
    assert_string_equal(events, "cC");
    kvt_gpu_emulated_gate(gpu, 0, false);
    ops->synchronize(gpu, ops->mark(gpu, 1));
    assert_string_equal(events, "cCaAbB");
    ops->close(gpu);
}

static void open_fails_cleanly_at_each_allocation(void **state)
{
    (void)state;
    const struct kvt_env env = kvt_env_default();
    const struct kvt_gpu_config config = { 0 };
    struct kvt_gpu *gpu;
    uint32_t stream;
    kvt_alloc_fail_at(1);
    assert_int_equal(ops->open(&config, &env, &gpu), KVT_NOMEM);
    kvt_alloc_fail_at(0);
    assert_int_equal(ops->open(&config, &env, &gpu), KVT_OK);
    kvt_alloc_fail_at(1);
    assert_int_equal(ops->stream(gpu, NULL, &stream), KVT_NOMEM);
    kvt_alloc_fail_at(1);
    assert_null(ops->memory_alloc(gpu, 4096));
    kvt_alloc_fail_at(0);
    assert_int_equal(ops->stream(gpu, NULL, &stream), KVT_OK);
    ops->close(gpu);
}

static void the_default_device_is_one_that_is_present(void **state)
{
    (void)state;
    assert_true(kvt_gpu_default_ops()->is_present());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_runs_its_jobs_in_order_and_knows_no_other),
        cmocka_unit_test(a_mark_is_reached_when_the_work_before_it_is_done),
        cmocka_unit_test(a_wait_orders_what_comes_after_it_and_nothing_else),
        cmocka_unit_test(synchronize_runs_the_streams_that_the_mark_depends_on),
        cmocka_unit_test(a_gate_stops_a_stream_before_its_next_item),
        cmocka_unit_test(synchronize_behind_a_closed_gate_asserts_instead_of_hanging),
        cmocka_unit_test(an_engine_stream_keeps_its_number),
        cmocka_unit_test(the_link_decides_when_a_job_is_over),
        cmocka_unit_test(time_spent_waiting_gives_no_credit_on_the_link),
        cmocka_unit_test(synchronize_in_one_thread_does_not_wait_for_a_clock_that_nobody_moves),
        cmocka_unit_test(a_threaded_job_is_over_no_earlier_than_its_link),
        cmocka_unit_test(a_failing_job_says_so_and_its_stream_goes_on),
        cmocka_unit_test(random_faults_repeat_with_their_seed),
        cmocka_unit_test(a_stuck_job_holds_up_its_stream_until_it_is_released),
        cmocka_unit_test(close_ends_all_work_whatever_holds_it_up),
        cmocka_unit_test(freeing_memory_waits_for_the_work_that_may_use_it),
        cmocka_unit_test(threads_keep_the_order_that_marks_and_waits_make),
        cmocka_unit_test(random_programs_keep_every_order_that_was_asked_for),
        cmocka_unit_test(a_gated_thread_runs_nothing_until_it_is_opened),
        cmocka_unit_test(open_fails_cleanly_at_each_allocation),
        cmocka_unit_test(the_default_device_is_one_that_is_present),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
