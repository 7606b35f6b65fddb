/*
 * kvtier run: the whole program is killed (SIGKILL) at a random moment on a real directory, again and again, and some of
 * its bytes are spoiled besides. Each time the real `kvtier store verify` looks at what is left: no bad record is served,
 * and its counts add up. And each time the same work is done again on that directory: no byte differs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <ftw.h>
#include <json-c/json.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "runtime/base/rng.h"
#include "tests/cli/run_program.h"

#define STORE_BYTES (48ull << 20)

static const char *program;
static struct outcome outcome;
static char root[128], store[160], nvme[192];

struct verified {
    uint64_t records, verified, bad, served_bad, allocated, live;
};

static uint64_t number(struct json_object *object, const char *name)
{
    struct json_object *value;
    if (!json_object_object_get_ex(object, name, &value)) fail_msg("no '%s' in %s", name, outcome.out);
    return json_object_get_uint64(value);
}

static struct json_object *section(struct json_object *object, const char *name)
{
    struct json_object *value;
    if (!json_object_object_get_ex(object, name, &value)) fail_msg("no '%s' in %s", name, outcome.out);
    return value;
}

static struct verified verify(void)
{
    assert_true(run_program(program, (const char *const[]){ "store", "verify", store, "--json", NULL }, &outcome));
    struct json_object *object = json_tokener_parse(outcome.out);
    if (!object) fail_msg("exit status %d: %s", outcome.exit_status, outcome.err);
    const struct verified verified = { .records = number(object, "records"),
                                       .verified = number(object, "verified"),
                                       .bad = number(object, "bad"),
                                       .served_bad = number(object, "served_bad"),
                                       .allocated = number(object, "allocated_bytes"),
                                       .live = number(object, "live_bytes") };
    (void)json_object_put(object);
    assert_int_equal(verified.served_bad, 0);
    assert_int_equal(outcome.exit_status, verified.bad > 0 ? 1 : 0);
    assert_int_equal(verified.records, verified.verified); /* what was refused is forgotten */
    assert_true(verified.allocated <= STORE_BYTES);
    assert_true(verified.live <= verified.allocated);
    return verified;
}

static void list_arguments(const char *seed, const char **ret_arguments)
{
    const char *const arguments[] = { "run",        "--workload", "chat",
                                      "--requests", "120",        "--seed",
                                      seed,         "--shape",    "layers=2,kv_heads=1,head_dim=64,dtype=bf16",
                                      "--hbm",      "4MiB",       "--host",
                                      "6MiB",       "--nvme",     nvme,
                                      "--json",     NULL };
    memcpy(ret_arguments, arguments, sizeof arguments);
}

static bool has_segment(void)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/segment-000000", store);
    return access(path, F_OK) == 0;
}

/* True: it was killed before it had ended. */
static bool run_and_kill(struct kvt_rng *rng, const char *seed)
{
    const char *arguments[ARGUMENTS_MAX] = { NULL };
    char *argv[ARGUMENTS_MAX + 1] = { (char *)(uintptr_t)program };
    list_arguments(seed, arguments);
    for (uint32_t i = 0; arguments[i]; i++) argv[i + 1] = (char *)(uintptr_t)arguments[i];
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    assert_int_equal(posix_spawn(&child, program, &actions, NULL, argv, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    /* When it has begun to write, and then at any moment. */
    while (!has_segment() && waitpid(child, &status, WNOHANG) == 0) (void)poll(NULL, 0, 1);
    (void)poll(NULL, 0, (int)kvt_rng_below(rng, 500));
    (void)kill(child, SIGKILL);
    if (waitpid(child, &status, 0) != child) return false;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* The work is done to its end on what is left. Returns how many records it says there are. */
static uint64_t run_whole(const char *seed)
{
    const char *arguments[ARGUMENTS_MAX] = { NULL };
    list_arguments(seed, arguments);
    assert_true(run_program(program, arguments, &outcome));
    if (outcome.exit_status != 0) fail_msg("exit status %d: %s%s", outcome.exit_status, outcome.out, outcome.err);
    struct json_object *object = json_tokener_parse(outcome.out);
    assert_non_null(object);
    struct json_object *requests = section(object, "requests"), *checked = section(object, "verify");
    assert_int_equal(number(requests, "completed"), number(requests, "total"));
    assert_int_equal(number(requests, "failed"), 0);
    assert_int_equal(number(checked, "mismatches"), 0);
    assert_true(number(checked, "blocks_checked") > 0);
    const uint64_t records = number(section(object, "store"), "records");
    (void)json_object_put(object);
    return records;
}

static void flip(int file, off_t at, uint32_t bit)
{
    uint8_t byte;
    if (pread(file, &byte, 1, at) != 1) return;
    byte = (uint8_t)(byte ^ (1u << bit));
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
}

/* Bits of every segment are other ones now: some anywhere, or else one in the payload of each record that there is. */
static void spoil(struct kvt_rng *rng, bool is_every_record)
{
    enum { SEGMENTS = 64, SOME = 200, STEP = 2048, BEHIND_A_HEADER = 300 };
    for (uint32_t segment = 0; segment < SEGMENTS; segment++) {
        char path[200];
        struct stat entry;
        (void)snprintf(path, sizeof path, "%s/segment-%06u", store, segment);
        const int file = open(path, O_RDWR);
        if (file < 0) continue;
        assert_int_equal(fstat(file, &entry), 0);
        for (uint32_t i = 0; !is_every_record && i < SOME; i++)
            flip(file, 4096 + (off_t)kvt_rng_below(rng, 1 << 20), (uint32_t)kvt_rng_below(rng, 8));
        /* Records begin at multiples of 512 and are longer than a step: their headers stay, so that each can be found. */
        for (off_t at = 4096 + BEHIND_A_HEADER; is_every_record && at < entry.st_size; at += STEP)
            flip(file, at, (uint32_t)kvt_rng_below(rng, 8));
        assert_int_equal(fsync(file), 0);
        assert_int_equal(close(file), 0);
    }
}

static int remove_entry(const char *path, const struct stat *entry, int kind, struct FTW *walk)
{
    (void)entry, (void)kind, (void)walk;
    return remove(path);
}

static void after_any_kill_and_damage_no_bad_record_is_served_and_the_next_run_is_exact(void **state)
{
    (void)state;
    const char *const more = getenv("KVTIER_KILLS"); /* longer by hand */
    const uint64_t rounds = more ? strtoull(more, NULL, 10) : 8;
    struct kvt_rng rng = { 77 };
    uint64_t kills = 0, records = 0, bad = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        const char *seed = round % 4 < 2 ? "1" : "2"; /* half of the rounds find what was stored for others */
        kills += run_and_kill(&rng, seed);
        struct verified left = verify();
        records += left.verified;
        bad += left.bad;
        if (round % 3 == 2) {
            const bool is_every_record = round % 6 == 2;
            const uint64_t before = left.verified;
            spoil(&rng, is_every_record);
            left = verify();
            if (is_every_record) {
                assert_int_equal(left.verified, 0);
                assert_true(left.bad > 0 || before == 0);
            }
            bad += left.bad;
        }
        if (round % 2 == 0) {
            const uint64_t told = run_whole(seed);
            assert_true(verify().verified >= told); /* what was on its way is stored at close */
        }
    }
    print_message("%llu kills; %llu records verified after them, %llu bad, none served\n", (unsigned long long)kills,
                  (unsigned long long)records, (unsigned long long)bad);
    assert_true(kills > 0);
    assert_true(records > 0);
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    program = argv[1];
    const char *parent = getenv("TMPDIR");
    (void)snprintf(root, sizeof root, "%.90s/kvtier-kill-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(root)) return 2;
    (void)snprintf(store, sizeof store, "%s/kv", root);
    (void)snprintf(nvme, sizeof nvme, "%s:%lluMiB", store, STORE_BYTES >> 20);
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        after_any_kill_and_damage_no_bad_record_is_served_and_the_next_run_is_exact) };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return failed;
}
