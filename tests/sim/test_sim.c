/* kvtier-sim from outside: it replays, shrinks, resumes, and refuses what it cannot do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/cli/run_program.h"

static const char *program, *planted;

static struct outcome run(const char *const *arguments)
{
    static struct outcome outcome; /* large */
    assert_true(run_program(program, arguments, &outcome));
    return outcome;
}

static void the_same_seed_gives_the_same_run_and_another_one_does_not(void **state)
{
    (void)state;
    static struct outcome first, again;
    char last[64] = "";
    for (uint32_t seed = 1; seed <= 24; seed++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%u", seed);
        const char *const arguments[] = { text, "--ticks", "700", NULL };
        first = run(arguments);
        again = run(arguments);
        assert_int_equal(first.exit_status, 0);
        const char *digest = strstr(first.out, "digest: "), *digest_again = strstr(again.out, "digest: ");
        assert_non_null(digest);
        assert_non_null(digest_again);
        assert_string_equal(digest, digest_again);
        assert_string_not_equal(digest, last);
        (void)snprintf(last, sizeof last, "%s", digest);
    }
}

static void a_trace_shows_the_calls_and_changes_nothing(void **state)
{
    (void)state;
    static struct outcome plain, traced;
    plain = run((const char *const[]){ "5", "--ticks", "300", NULL });
    traced = run((const char *const[]){ "5", "--ticks", "300", "--trace", NULL });
    assert_non_null(strstr(traced.out, "create 0: "));
    assert_string_equal(strstr(plain.out, "digest: "), strstr(traced.out, "digest: "));
}

/* The printed command line, run again, fails in the same way. */
static void a_seed_that_fails_is_shrunk_to_a_command_line_that_fails(void **state)
{
    (void)state;
    static struct outcome outcome;
    const char *const arguments[] = { "--seeds", "4..4", "--plant", "FOUND_NOT_HELD", NULL };
    assert_true(run_program(planted, arguments, &outcome));
    assert_int_equal(outcome.exit_status, 1);
    const char *line = NULL;
    for (const char *at = outcome.err; (at = strstr(at, "kvtier-sim 4 --ticks ")) != NULL; at++) line = at;
    assert_non_null(line);
    const unsigned long ticks = strtoul(line + strlen("kvtier-sim 4 --ticks "), NULL, 10);
    assert_in_range(ticks, 1, 4999);
    char text[16];
    (void)snprintf(text, sizeof text, "%lu", ticks);
    const char *const shorter[] = { "4", "--ticks", text, "--plant", "FOUND_NOT_HELD", NULL };
    assert_true(run_program(planted, shorter, &outcome));
    assert_int_equal(outcome.exit_status, 1);
    assert_non_null(strstr(outcome.err, "seed 4 fails at tick "));
}

static void a_total_is_kept_from_run_to_run(void **state)
{
    (void)state;
    static struct outcome outcome;
    char path[] = "/tmp/kvtier-sim-total-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(unlink(path), 0); /* no file is an empty total */
    (void)close(file);
    const char *const arguments[] = { "--resume", path, "--count", "3", "--ticks", "50", NULL };
    outcome = run(arguments);
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "3 seeds from 1 on"));
    outcome = run(arguments);
    assert_non_null(strstr(outcome.out, "3 seeds from 4 on"));
    assert_non_null(strstr(outcome.out, "all runs: 6 seeds, 300 ticks, 0 violations"));
    FILE *broken = fopen(path, "w");
    assert_non_null(broken);
    (void)fputs("no total", broken);
    (void)fclose(broken);
    outcome = run(arguments);
    assert_int_equal(outcome.exit_status, 2);
    (void)unlink(path);
}

static void json_is_one_object(void **state)
{
    (void)state;
    const struct outcome outcome = run((const char *const[]){ "--seeds", "1..2", "--ticks", "50", "--json", NULL });
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(outcome.out[0], '{');
    assert_non_null(strstr(outcome.out, "\"violations\":0"));
    assert_non_null(strstr(outcome.out, "\"ticks\":100"));
}

static void what_makes_no_sense_is_refused_in_one_line(void **state)
{
    (void)state;
    static const char *const wrong[][4] = {
        { NULL },
        { "x" },
        { "1", "2" },
        { "1", "--seeds", "1..2" },
        { "--seeds", "5..3" },
        { "--seeds", "5" },
        { "--ticks", "0" },
        { "1", "--without", "rain" },
        { "--seeds", "1..2", "--trace" },
        { "1", "--count", "3" },
        { "1", "--plant", "FOUND_NOT_HELD" }, /* this build has no bugs */
        { "1", "--jobs", "0" },
        { "1", "--nothing" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *const arguments[] = { wrong[i][0], wrong[i][1], wrong[i][2], NULL };
        const struct outcome outcome = run(arguments);
        assert_int_equal(outcome.exit_status, 2);
        assert_string_equal(outcome.out, "");
        const char *end = strchr(outcome.err, '\n');
        assert_non_null(end);
        assert_string_equal(end, "\n");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_run_and_another_one_does_not),
        cmocka_unit_test(a_trace_shows_the_calls_and_changes_nothing),
        cmocka_unit_test(a_seed_that_fails_is_shrunk_to_a_command_line_that_fails),
        cmocka_unit_test(a_total_is_kept_from_run_to_run),
        cmocka_unit_test(json_is_one_object),
        cmocka_unit_test(what_makes_no_sense_is_refused_in_one_line),
    };
    if (argc != 3) return 2;
    program = argv[1];
    planted = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
