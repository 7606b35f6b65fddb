/* host_tier: chunks are offered one by one as their pages are there, and nothing waits for the whole pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/host_tier.h"

#define CHUNK (64 * KVT_KIB)

static atomic_uint wakes;
static atomic_uint warnings;

static void count_wake(void *user)
{
    (void)user;
    atomic_fetch_add(&wakes, 1);
}

static void count_warning(void *user, enum kvt_log_level level, const char *line)
{
    (void)user;
    (void)line;
    if (level == KVT_LOG_WARN) atomic_fetch_add(&warnings, 1);
}

static struct kvt_host_tier_config config_of(uint64_t capacity_bytes, uint64_t chunk_bytes)
{
    atomic_store(&wakes, 0);
    atomic_store(&warnings, 0);
    return (struct kvt_host_tier_config){ .capacity_bytes = capacity_bytes,
                                          .chunk_bytes = chunk_bytes,
                                          .wake = { count_wake, NULL } };
}

static struct kvt_host_tier *open_host(const struct kvt_host_tier_config *config, const struct kvt_env *env)
{
    struct kvt_host_tier *host;
    assert_int_equal(kvt_host_tier_open(config, env, &host), KVT_OK);
    return host;
}

static void wait_ready(const struct kvt_host_tier *host, uint32_t chunks)
{
    while (kvt_host_tier_ready_chunks(host) < chunks) (void)sched_yield();
}

static uint32_t resident_pages(void *memory, size_t size_bytes)
{
    unsigned char map[4096];
    const size_t pages = size_bytes / 4096;
    assert_true(pages <= sizeof map);
    assert_int_equal(mincore(memory, size_bytes, map), 0);
    uint32_t count = 0;
    for (size_t i = 0; i < pages; i++) count += map[i] & 1;
    return count;
}

static void chunks_become_ready_one_by_one_with_their_pages_there(void **state)
{
    (void)state;
    const struct kvt_host_tier_config config = config_of(16 * CHUNK + 4096, CHUNK);
    const struct kvt_env env = kvt_env_default();
    struct kvt_host_tier *host = open_host(&config, &env);
    assert_int_equal(kvt_host_tier_chunk_count(host), 16); /* the rest stays unused */
    for (uint32_t i = 0; i < 16; i++) {
        wait_ready(host, i + 1);
        uint8_t *chunk = kvt_host_tier_chunk(host, i);
        assert_true(kvt_is_aligned((uintptr_t)chunk, 4096));
        assert_int_equal(resident_pages(chunk, CHUNK), CHUNK / 4096);
        memset(chunk, (int)i + 1, CHUNK);
    }
    for (uint32_t i = 0; i < 16; i++) {
        const uint8_t *chunk = kvt_host_tier_chunk(host, i);
        assert_int_equal(chunk[0], i + 1);
        assert_int_equal(chunk[CHUNK - 1], i + 1);
    }
    kvt_host_tier_close(&host);
    assert_null(host);
    assert_int_equal(atomic_load(&wakes), 16);
}

static pthread_mutex_t hold = PTHREAD_MUTEX_INITIALIZER;
static void wake_when_let(void *user)
{
    (void)user;
    (void)pthread_mutex_lock(&hold);
    (void)pthread_mutex_unlock(&hold);
}

static void b40_the_first_chunk_serves_while_a_huge_pool_is_prepared_and_close_does_not_wait_for_it(void **state)
{
    (void)state;
    /* So much that preparing all of it would run into the test's time limit, or out of memory. */
    struct kvt_host_tier_config config = config_of(64 * KVT_GIB, CHUNK);
    config.wake.wake = wake_when_let;
    const struct kvt_env env = kvt_env_default();
    (void)pthread_mutex_lock(&hold); /* the worker gets no further than the first chunk */
    struct kvt_host_tier *host = open_host(&config, &env);
    assert_int_equal(kvt_host_tier_chunk_count(host), 64 * KVT_GIB / CHUNK);
    wait_ready(host, 1);
    memset(kvt_host_tier_chunk(host, 0), 1, CHUNK);
    assert_int_equal(kvt_host_tier_ready_chunks(host), 1);
    (void)pthread_mutex_unlock(&hold);
    kvt_host_tier_close(&host);
}

static void close_ends_the_worker_in_the_middle_of_a_chunk(void **state)
{
    (void)state;
    const struct kvt_host_tier_config config = config_of(64 * KVT_GIB, 32 * KVT_GIB);
    const struct kvt_env env = kvt_env_default();
    struct kvt_host_tier *host = open_host(&config, &env);
    assert_int_equal(kvt_host_tier_ready_chunks(host), 0);
    kvt_host_tier_close(&host);
    assert_int_equal(atomic_load(&wakes), 0);
}

static uint64_t locked_kib(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmLck: %llu", &kib) == 1) break;
    }
    (void)fclose(file);
    return kib;
}

/* Sanitizers turn mlock into nothing. */
static bool mlock_is_real(void)
{
    static uint8_t page[8192];
    const uint64_t before = locked_kib();
    const bool is_locked = mlock(page, sizeof page) == 0;
    const bool is_real = !is_locked || locked_kib() > before;
    if (is_locked) (void)munlock(page, sizeof page);
    if (!is_real) print_message("skipped: mlock does nothing in this build\n");
    return is_real;
}

/* Leaves a child without the sanitizers' last looks, which would find the parent's threads. */
static void leave_child(int code) { (void)syscall(SYS_exit_group, code); }

static void pinning_that_is_refused_is_one_warning_and_pageable_memory(void **state)
{
    (void)state;
    if (!mlock_is_real()) skip();
    const pid_t child = fork(); /* the limit and the privilege are given up for good */
    if (child == 0) {
        const struct rlimit none = { 0, 0 };
        if (setrlimit(RLIMIT_MEMLOCK, &none) != 0) leave_child(2);
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) leave_child(77);
        struct kvt_host_tier_config config = config_of(8 * CHUNK, CHUNK);
        config.is_pinning_wanted = true;
        struct kvt_env env = kvt_env_default();
        env.log = count_warning;
        struct kvt_host_tier *host;
        if (kvt_host_tier_open(&config, &env, &host) != KVT_OK) leave_child(3);
        wait_ready(host, 8);
        if (kvt_host_tier_pinned_chunks(host) != 0) leave_child(4);
        if (atomic_load(&warnings) != 1) leave_child(5);
        memset(kvt_host_tier_chunk(host, 7), 1, CHUNK);
        kvt_host_tier_close(&host);
        leave_child(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: this process cannot give up its privilege\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void chunks_are_pinned_as_far_as_the_limit_goes(void **state)
{
    (void)state;
    if (!mlock_is_real()) skip();
    struct kvt_host_tier_config config = config_of(4 * CHUNK, CHUNK);
    config.is_pinning_wanted = true;
    const struct kvt_env env = kvt_env_default();
    const uint64_t before = locked_kib();
    struct kvt_host_tier *host = open_host(&config, &env);
    wait_ready(host, 4);
    const uint32_t pinned = kvt_host_tier_pinned_chunks(host);
    assert_true(pinned <= 4);
    if (pinned < 4) print_message("only %u of 4 chunks could be pinned here\n", pinned);
    assert_true(locked_kib() - before >= pinned * CHUNK / 1024);
    kvt_host_tier_close(&host);
    assert_int_equal(locked_kib(), before);
}

static void b59_the_memory_is_a_mapping_of_its_own_that_a_child_does_not_inherit(void **state)
{
    (void)state;
    const uint64_t mapped = kvt_table_bytes();
    const struct kvt_host_tier_config config = config_of(4 * CHUNK, CHUNK);
    const struct kvt_env env = kvt_env_default();
    struct kvt_host_tier *host = open_host(&config, &env);
    wait_ready(host, 4);
    assert_true(kvt_table_bytes() - mapped >= 4 * CHUNK);
    uint8_t *chunk = kvt_host_tier_chunk(host, 0);
    const pid_t child = fork();
    if (child == 0) {
        unsigned char present;
        leave_child(mincore(chunk, 4096, &present) == 0 ? 1 : 0); /* ENOMEM: there is no such mapping in the child */
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    kvt_host_tier_close(&host);
    assert_int_equal(kvt_table_bytes(), mapped);
}

static void in_one_thread_all_chunks_are_ready_at_once(void **state)
{
    (void)state;
    struct kvt_host_tier_config config = config_of(1024 * CHUNK, CHUNK);
    config.is_pinning_wanted = true;
    struct kvt_env env = kvt_env_default();
    env.is_single_threaded = true;
    struct kvt_host_tier *host = open_host(&config, &env);
    assert_int_equal(kvt_host_tier_ready_chunks(host), 1024);
    assert_int_equal(kvt_host_tier_pinned_chunks(host), 0);
    memset(kvt_host_tier_chunk(host, 1023), 1, CHUNK);
    kvt_host_tier_close(&host);
    assert_int_equal(atomic_load(&wakes), 0);
}

static void impossible_sizes_and_missing_memory_are_refused(void **state)
{
    (void)state;
    const struct kvt_env env = kvt_env_default();
    struct kvt_host_tier *host;
    struct kvt_host_tier_config config = config_of(CHUNK, 0);
    assert_int_equal(kvt_host_tier_open(&config, &env, &host), KVT_INVAL);
    config = config_of(CHUNK, 4097);
    assert_int_equal(kvt_host_tier_open(&config, &env, &host), KVT_INVAL);
    config = config_of(CHUNK - 1, CHUNK);
    assert_int_equal(kvt_host_tier_open(&config, &env, &host), KVT_INVAL);
    config = config_of(UINT64_MAX, 4096);
    assert_int_equal(kvt_host_tier_open(&config, &env, &host), KVT_INVAL);
    config = config_of((uint64_t)1 << 60, (uint64_t)1 << 40);
    assert_int_equal(kvt_host_tier_open(&config, &env, &host), KVT_NOMEM);
    config = config_of(CHUNK, CHUNK);
    for (uint64_t n = 1; n <= 2; n++) {
        kvt_alloc_fail_at(n);
        assert_int_equal(kvt_host_tier_open(&config, &env, &host), KVT_NOMEM);
    }
    kvt_alloc_fail_at(0);
    host = NULL;
    kvt_host_tier_close(&host);
}

static uint32_t shared_memory_entries(void)
{
    DIR *directory = opendir("/dev/shm");
    uint32_t count = 0;
    if (!directory) return 0;
    while (readdir(directory)) count++;
    (void)closedir(directory);
    return count;
}

/* A killed process leaves no pool behind: the memory has no name that could outlive it. */
static void b13_a_killed_process_leaves_no_memory_and_the_next_start_works(void **state)
{
    (void)state;
    const struct kvt_env env = kvt_env_default();
    const struct kvt_host_tier_config config = { .capacity_bytes = 16 * CHUNK, .chunk_bytes = CHUNK };
    const uint32_t before = shared_memory_entries();
    for (uint32_t round = 0; round < 5; round++) {
        int pipe_ends[2];
        assert_int_equal(pipe(pipe_ends), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct kvt_host_tier *host;
            const char answer = kvt_host_tier_open(&config, &env, &host) == KVT_OK ? 'y' : 'n';
            if (write(pipe_ends[1], &answer, 1) != 1) _exit(1);
            for (;;) (void)pause();
        }
        char answer;
        assert_int_equal(read(pipe_ends[0], &answer, 1), 1);
        assert_int_equal(answer, 'y');
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        (void)close(pipe_ends[0]);
        (void)close(pipe_ends[1]);
        assert_int_equal(shared_memory_entries(), before);
    }
    struct kvt_host_tier *host;
    assert_int_equal(kvt_host_tier_open(&config, &env, &host), KVT_OK);
    kvt_host_tier_close(&host);
}

/* ---- Pinned by a device ---------------------------------------------------------------------- */

enum { PINS_MAX = 16, PINS_REFUSED_FROM = 5 };

struct pins {
    void *order[PINS_MAX]; /* pinned now, in the order in which they were */
    uint32_t count, refusals;
    bool is_refusing;
};

static bool pin(void *user, void *memory, size_t size_bytes)
{
    struct pins *pins = user;
    assert_int_equal(size_bytes, CHUNK);
    if (pins->is_refusing && pins->count == PINS_REFUSED_FROM) {
        pins->refusals++;
        return false;
    }
    pins->order[pins->count++] = memory;
    return true;
}

static void unpin(void *user, void *memory, size_t size_bytes)
{
    struct pins *pins = user;
    assert_int_equal(size_bytes, CHUNK);
    assert_true(pins->count > 0);
    assert_ptr_equal(memory, pins->order[--pins->count]); /* the last one first */
}

static void a_device_pins_chunk_after_chunk_and_gets_each_back(void **state)
{
    (void)state;
    for (uint32_t refusing = 0; refusing < 2; refusing++) {
        struct pins pins = { .is_refusing = refusing != 0 };
        struct kvt_host_tier_config config = config_of(8 * CHUNK, CHUNK);
        config.is_pinning_wanted = true;
        config.pin = (struct kvt_host_pin){ pin, unpin, &pins };
        struct kvt_env env = kvt_env_default();
        env.log = count_warning;
        struct kvt_host_tier *host = open_host(&config, &env);
        wait_ready(host, 8); /* a refusal keeps no chunk away */
        const uint32_t pinned = kvt_host_tier_pinned_chunks(host);
        assert_int_equal(pinned, refusing ? PINS_REFUSED_FROM : 8);
        kvt_host_tier_close(&host);
        assert_int_equal(pins.count, 0);
        assert_int_equal(pins.refusals, refusing); /* asked no more after the first */
        assert_int_equal(atomic_load(&warnings), refusing);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_become_ready_one_by_one_with_their_pages_there),
        cmocka_unit_test(b40_the_first_chunk_serves_while_a_huge_pool_is_prepared_and_close_does_not_wait_for_it),
        cmocka_unit_test(close_ends_the_worker_in_the_middle_of_a_chunk),
        cmocka_unit_test(pinning_that_is_refused_is_one_warning_and_pageable_memory),
        cmocka_unit_test(chunks_are_pinned_as_far_as_the_limit_goes),
        cmocka_unit_test(b59_the_memory_is_a_mapping_of_its_own_that_a_child_does_not_inherit),
        cmocka_unit_test(b13_a_killed_process_leaves_no_memory_and_the_next_start_works),
        cmocka_unit_test(in_one_thread_all_chunks_are_ready_at_once),
        cmocka_unit_test(impossible_sizes_and_missing_memory_are_refused),
        cmocka_unit_test(a_device_pins_chunk_after_chunk_and_gets_each_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
