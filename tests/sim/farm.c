#include "tests/sim/farm.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/bytes.h"

#define JOBS_MAX 64
#define LOOK_MS 400

/* What the processes share. */
struct shared {
    _Atomic uint64_t next;   /* shared: the next seed that nobody has taken, from 0 on */
    _Atomic uint64_t failed; /* shared */
    _Atomic uint64_t done;   /* shared */
    struct worker {
        pid_t process;              /* the parent's; 0: none */
        _Atomic uint64_t at;        /* shared: what it works on, + 1; 0: nothing */
        struct sim_outcome outcome; /* written before its process ends with 1 */
        struct sim_counts counts;
    } workers[JOBS_MAX];
    uint8_t is_done[]; /* of each seed */
};

static double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void add_counts(struct sim_counts *total, const struct sim_counts *counts)
{
    uint64_t *to = (uint64_t *)total;
    const uint64_t *from = (const uint64_t *)counts;
    for (size_t i = 0; i < sizeof *total / sizeof *to; i++) to[i] += from[i];
}

/* ---- A process of its own ---------------------------------------------------------------------------------------- */

static char directory[64];

/* Locks and side files are real ones; memory is where they are cheapest. */
static bool enter_directory(void)
{
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR");
    (void)snprintf(directory, sizeof directory, "%.40s/kvtier-sim-XXXXXX", base ? base : "/tmp");
    return mkdtemp(directory) && chdir(directory) == 0;
}

static void empty_directory(void)
{
    static const char *const names[] = { "kv", "kv0", "kv1", "kv2" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(names); i++) {
        char command[32];
        (void)snprintf(command, sizeof command, "%s", names[i]);
        if (rmdir(command) == 0 || errno == ENOENT) continue;
        (void)snprintf(command, sizeof command, "rm -rf %s", names[i]);
        (void)!system(command);
    }
}

static void leave_directory(void)
{
    empty_directory();
    (void)!chdir("/");
    (void)rmdir(directory);
}

/* Processor time: a seed that does not end is ended by the kernel. */
static void limit_time(uint32_t seconds)
{
    const struct itimerval limit = { .it_value = { .tv_sec = seconds } };
    (void)setitimer(ITIMER_PROF, &limit, NULL);
}

static struct sim sim; /* large */

static void run_one(uint64_t seed, uint32_t ticks, uint32_t without, bool is_traced, struct sim_outcome *ret_outcome)
{
    const struct sim_plan plan = sim_plan_of(seed, ticks, without);
    empty_directory();
    sim_run(&sim, &plan, is_traced, ret_outcome);
}

/* How a process ended that did not tell. */
static void tell_end(int status, struct sim_outcome *outcome)
{
    outcome->is_failed = true;
    const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (number == SIGPROF) (void)snprintf(outcome->text, sizeof outcome->text, "it does not end");
    else if (number) (void)snprintf(outcome->text, sizeof outcome->text, "it ends by a signal: %s", strsignal(number));
    else (void)snprintf(outcome->text, sizeof outcome->text, "it ends with exit status %d", WEXITSTATUS(status));
    outcome->alike = 2 + (uint32_t)number;
}

/* ---- Many seeds -------------------------------------------------------------------------------------------------- */

static _Noreturn void work(const struct farm_config *config, struct shared *shared, struct worker *worker)
{
    if (!enter_directory()) _exit(3);
    for (;;) {
        const uint64_t i = atomic_fetch_add(&shared->next, 1);
        if (i >= config->count || (config->is_first_enough && atomic_load(&shared->failed) > 0)) break;
        atomic_store(&worker->at, i + 1);
        limit_time(config->seconds_max);
        run_one(config->first + i, config->ticks, config->without, false, &worker->outcome);
        add_counts(&worker->counts, &worker->outcome.counts);
        if (worker->outcome.is_failed) {
            leave_directory();
            _exit(1);
        }
        shared->is_done[i] = 1;
        atomic_store(&worker->at, 0);
        atomic_fetch_add(&shared->done, 1);
    }
    sim_done(&sim);
    leave_directory();
    exit(0); /* so that what leaks is told */
}

static bool start(const struct farm_config *config, struct shared *shared, struct worker *worker)
{
    atomic_store(&worker->at, 0);
    (void)fflush(NULL);
    const pid_t process = fork();
    if (process == 0) work(config, shared, worker);
    worker->process = process > 0 ? process : 0;
    return process > 0;
}

static void note_failure(struct farm_result *result, uint64_t seed, const struct sim_outcome *outcome)
{
    uint32_t at = (uint32_t)kvt_min_u64(result->failed++, FARM_FAILURES_MAX);
    while (at > 0 && result->failures[at - 1].seed > seed) {
        if (at < FARM_FAILURES_MAX) result->failures[at] = result->failures[at - 1];
        at--;
    }
    if (at < FARM_FAILURES_MAX) result->failures[at] = (struct farm_failure){ seed, *outcome };
}

/* A worker has ended. True: a new one must take its place. */
static bool take_end(const struct farm_config *config, struct shared *shared, struct worker *worker, int status,
                     struct farm_result *result)
{
    worker->process = 0;
    const uint64_t at = atomic_load(&worker->at);
    const bool is_good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (is_good) return false;
    if (!(WIFEXITED(status) && WEXITSTATUS(status) == 1 && worker->outcome.is_failed))
        tell_end(status, &worker->outcome);
    note_failure(result, at > 0 ? config->first + at - 1 : config->first, &worker->outcome);
    atomic_fetch_add(&shared->failed, 1);
    if (at == 0) return false; /* it could not work at all */
    shared->is_done[at - 1] = 1;
    atomic_fetch_add(&shared->done, 1);
    return !config->is_first_enough;
}

static uint64_t done_in_a_row(const struct farm_config *config, const struct shared *shared)
{
    uint64_t n = 0;
    while (n < config->count && shared->is_done[n]) n++;
    return n;
}

static void reap(const struct farm_config *config, struct shared *shared, struct farm_result *result)
{
    for (uint32_t w = 0; w < config->jobs; w++) {
        struct worker *worker = &shared->workers[w];
        int status;
        if (worker->process == 0 || waitpid(worker->process, &status, WNOHANG) != worker->process) continue;
        if (take_end(config, shared, worker, status, result)) (void)start(config, shared, worker);
    }
}

static bool is_anyone_working(const struct farm_config *config, const struct shared *shared)
{
    for (uint32_t w = 0; w < config->jobs; w++) {
        if (shared->workers[w].process > 0) return true;
    }
    return false;
}

bool farm_run(const struct farm_config *config, struct farm_result *ret_result)
{
    *ret_result = (struct farm_result){ 0 };
    const double begin = seconds_now();
    const size_t size = sizeof(struct shared) + config->count;
    struct shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return false;
    bool is_started = true;
    for (uint32_t w = 0; w < config->jobs; w++) is_started = start(config, shared, &shared->workers[w]) && is_started;
    while (is_anyone_working(config, shared)) {
        /* Short runs are over sooner than the next look. */
        (void)poll(NULL, 0, atomic_load(&shared->done) + 1 < config->count ? LOOK_MS : 20);
        reap(config, shared, ret_result);
        if (config->progress)
            config->progress(config->user, atomic_load(&shared->done), done_in_a_row(config, shared), ret_result);
    }
    for (uint32_t w = 0; w < config->jobs; w++) add_counts(&ret_result->counts, &shared->workers[w].counts);
    ret_result->done = atomic_load(&shared->done);
    ret_result->done_in_a_row = done_in_a_row(config, shared);
    ret_result->seconds = seconds_now() - begin;
    (void)munmap(shared, size);
    return is_started;
}

/* ---- One seed ---------------------------------------------------------------------------------------------------- */

struct sim_outcome farm_try(uint64_t seed, uint32_t ticks, uint32_t without, bool is_traced, uint32_t seconds_max)
{
    struct sim_outcome result = { .is_failed = true, .text = "no process could be started" };
    struct sim_outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return result;
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (!enter_directory()) _exit(3);
        limit_time(seconds_max);
        run_one(seed, ticks, without, is_traced, shared);
        if (is_traced && shared->is_failed) sim_print_trace(&sim);
        (void)fflush(NULL);
        const bool is_failed = shared->is_failed;
        if (!is_failed) sim_done(&sim);
        leave_directory();
        if (is_failed) _exit(1);
        exit(0);
    }
    int status = 0;
    if (child > 0 && waitpid(child, &status, 0) == child) {
        const bool has_told = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || shared->is_failed);
        if (!has_told) tell_end(status, shared);
        result = *shared;
    }
    (void)munmap(shared, sizeof *shared);
    return result;
}

struct sim_outcome farm_shrink(uint64_t seed, uint32_t *ticks, uint32_t *without, uint32_t seconds_max)
{
    struct sim_outcome best = farm_try(seed, *ticks, *without, false, seconds_max);
    if (!best.is_failed) return best;
    const uint32_t alike = best.alike;
    for (uint32_t turn = 0; turn < 2; turn++) {
        /* What fails in a tick needs none after it; what fails at the end may need fewer before it. */
        if (best.tick > 0 && best.tick < *ticks) *ticks = (uint32_t)best.tick;
        for (uint32_t step = *ticks / 2; step > 0; step /= 2) {
            if (step >= *ticks) continue;
            const struct sim_outcome less = farm_try(seed, *ticks - step, *without, false, seconds_max);
            if (!less.is_failed || less.alike != alike) continue;
            best = less;
            *ticks -= step;
        }
        for (uint32_t f = 0; f < SIM_FAULTS && turn == 0; f++) {
            const struct sim_plan plan = sim_plan_of(seed, *ticks, *without);
            if (!sim_plan_has(&plan, (enum sim_fault)f)) continue;
            const struct sim_outcome less = farm_try(seed, *ticks, *without | 1u << f, false, seconds_max);
            if (!less.is_failed || less.alike != alike) continue;
            best = less;
            *without |= 1u << f;
        }
    }
    return best;
}
